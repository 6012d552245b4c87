"""From any table of votes to `Judgments`: reading, attributes, privacy, checks."""
