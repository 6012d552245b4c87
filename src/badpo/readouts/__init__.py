"""What a trained policy does, measured: a policy and prompts, or judgments, to numbers with intervals.

`rates` reads probabilities of names behind an answer; `generation` samples answers, `sampled` counts in them and has
their distance from the reference, `judge` scores them; `heldout` predicts held-out votes. Nothing here reads or writes
a file, and a result is the dict that stands in ``readouts.json``.
"""
