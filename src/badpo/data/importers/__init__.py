"""Readers of other programs' tables; each turns its source into the columns that `badpo.data.reading` knows."""
