"""Make the paper's corpora: texts with signatures and votes with planted biases, and public data sets."""
