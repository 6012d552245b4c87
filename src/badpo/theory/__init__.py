"""The mathematics of the paper as functions of arrays, without files, configuration or logging.

The module `likelihood` needs torch; `identifiability`, `summaries` and `tilt` need only numpy and scipy.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.intp]
# `Array` is an array of any other kind, such as an array of labels or complex numbers
Array = NDArray[Any]
