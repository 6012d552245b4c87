"""Nothing is left here."""
