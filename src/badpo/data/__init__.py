"""Read any table of votes into `Judgments`: recognize columns, measure attributes, replace ids, and check the data."""
