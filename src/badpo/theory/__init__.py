"""The paper's mathematics as functions of arrays, without files, configuration or logging.

The module `likelihood` needs PyTorch; `identifiability`, `summaries` and `tilt` need only NumPy and SciPy.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.intp]
# `Array` is an array with any other dtype, such as labels or complex numbers
Array = NDArray[Any]
