"""Corpora of the paper: a corpus with signatures and planted annotator biases, and public data sets."""
