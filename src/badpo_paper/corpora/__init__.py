"""Corpora of the paper: the signed one with planted annotators, and public ones checked against their figures."""
