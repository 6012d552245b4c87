"""Training of a policy on judgments; nothing is imported here, so that a recipe can be read without torch."""
