"""Faults, injected: what `make faults` does to runs, files and tables, and what became of them."""
