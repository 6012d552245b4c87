"""The mathematics of the paper as functions of arrays, without files, configuration or logging.

The module `likelihood` needs torch; `identifiability`, `summaries` and `tilt` need only numpy and scipy.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.intp]
# an array of another kind, such as labels or complex numbers
Array = NDArray[Any]
