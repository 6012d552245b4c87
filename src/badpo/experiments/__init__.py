"""Arms, suites and small models: what is trained, beside how."""
