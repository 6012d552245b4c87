"""Training of a policy on judgments. This package imports nothing, so that badpo can read a recipe without torch."""
