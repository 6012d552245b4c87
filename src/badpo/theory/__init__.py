"""The mathematics of the paper: arrays in, arrays out; no files, no configuration, no logging.

`likelihood` needs torch; `identifiability`, `summaries` and `tilt` need numpy and scipy only.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.intp]
