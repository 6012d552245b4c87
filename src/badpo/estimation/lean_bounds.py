"""The kind of function that makes a quality model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from badpo.estimation.comparison_blocks import ComparisonBlocks
from badpo.estimation.maximizing import QualityModel

MakeModel = Callable[[ComparisonBlocks, NDArray[np.intp]], QualityModel]
