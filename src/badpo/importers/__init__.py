"""Readers for exports from other programs; most modules read one format and convert the export to a table of votes."""
