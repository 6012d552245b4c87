"""Reproduce the paper's experiments: corpora with planted biases, arms, readouts, suites and the demo."""
