"""Experiments of the paper: arms, corpora with planted biases, readouts, suites and the demo."""
