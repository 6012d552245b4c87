"""Run the paper's experiments: arms, corpora with planted biases, readouts, suites and the demo."""
