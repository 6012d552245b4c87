from __future__ import annotations

import numpy as np
import pytest

from badpo.estimation.shrinkage import shrink_normal
from badpo.estimation.significance import recommend

SPREAD = shrink_normal([0.8, -0.7, 0.1, -0.2], [0.1] * 4)
ALIKE = shrink_normal([0.01, -0.02, 0.01, 0.0], [0.3] * 4)
ALONE = shrink_normal([0.8], [0.1])


@pytest.mark.parametrize(
    ("shrunk", "equal_p", "class_p", "variant"),
    [
        (SPREAD, 1e-9, 1e-9, "class"),
        (SPREAD, 1e-9, 0.4, "shared_mean"),
        (SPREAD, 1e-9, np.nan, "shared_mean"),
        (SPREAD, 1e-9, None, "shared_mean"),
        (SPREAD, np.nan, None, "shared_mean"),
        (ALIKE, 0.8, None, "pooled"),
        (ALIKE, np.nan, np.nan, "pooled"),
        (ALIKE, 0.8, 0.01, "class"),
        (ALONE, np.nan, None, "pooled"),
    ],
)
def test_the_variant_follows_the_evidence(shrunk, equal_p, class_p, variant):
    assert recommend(shrunk, equal_p, class_p).variant == variant


def test_the_sentence_carries_the_figures():
    assert "p = 0.8" in recommend(ALIKE, 0.8).reason
    assert f"{ALIKE.tau_high:.2g} log-odds remains possible" in recommend(ALIKE, 0.8).reason
    assert "p < 0.001" in recommend(SPREAD, 1e-9, 1e-9).reason
    assert "too few" in recommend(ALONE, np.nan).reason
    for shrunk in (SPREAD, ALIKE, ALONE):
        assert "nan" not in recommend(shrunk, np.nan).reason
