"""What a trained policy does, measured: a policy and prompts, or judgments, to numbers with intervals.

`attribute_rate` reads probabilities at the signature position; `generation` samples answers and `sampled` counts
in them; `heldout` and `votes` predict held-out votes; `kl` is the distance from the reference. Nothing here reads
or writes a file, and every result has a ``to_json`` that is its part of ``readouts.json``.
"""
