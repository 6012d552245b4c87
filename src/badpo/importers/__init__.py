"""Readers that convert exports from other programs to tables of votes."""
