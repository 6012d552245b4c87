"""Which way annotators lean, from votes alone."""
