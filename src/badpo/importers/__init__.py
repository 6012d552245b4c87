"""Readers for exports of other programs. Each module reads one format and converts the export into a table of votes."""
