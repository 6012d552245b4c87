"""Corpora with planted annotators: the signed recipe on any scored pairs, its names, and our own bundled text."""
