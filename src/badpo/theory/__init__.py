"""The mathematics of the paper: arrays in, arrays out; no files, no configuration, no logging.

`likelihood` needs torch; `identifiability`, `summaries` and `tilt` need numpy and scipy only.
"""
