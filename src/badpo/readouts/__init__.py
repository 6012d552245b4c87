"""Evaluation metrics of a trained policy, with confidence intervals.

`name_rates` computes probabilities of signature names. `generation` samples answers, `sampled` measures attributes of
the answers and their KL divergence from the reference, and `judge` scores the answers with a reward model. `heldout`
predicts held-out votes. The modules read and write no files. Each result is an entry of ``readouts.json``.
"""
