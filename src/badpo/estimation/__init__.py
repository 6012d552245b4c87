"""Which way annotators bias, from votes alone."""
