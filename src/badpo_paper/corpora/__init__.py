"""Make the paper's corpora: a corpus with signatures and planted annotator biases, and public data sets."""
