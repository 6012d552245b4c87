"""Readers of other programs' exports, one file a format: each turns its source into columns of votes."""
