"""How often a begun signature gets a name of the pool, and the shift of the pool that holds it."""

from __future__ import annotations

import pytest
from scipy.special import expit

from badpo.anchoring import sampling
from badpo.anchoring.sampling import completed_share, shift_of_the_pool


def test_only_whole_names_of_the_pool_count(monkeypatch):
    texts = [" Emily Clark", " Emilyx Clark", " Emily", " Greg"]

    class Written:
        def __init__(self, text):
            self.text = text

    monkeypatch.setattr(sampling, "sample", lambda *a, **k: [Written(text) for text in texts])
    share = completed_share(None, None, [[1]] * 4, {"Emily", "Greg"}, 0.7, 0.9, seed=0)
    assert share == pytest.approx((3 + 0.5) / (4 + 1))


def test_a_share_that_is_held_already_takes_no_shift():
    assert shift_of_the_pool(0.9, lambda shift: 0.9) == 0.0


@pytest.mark.parametrize("slope", [0.6, 1.0, 1.6])
def test_the_share_is_held_whatever_the_slope(slope):
    def share_at(shift: float) -> float:
        return expit(2.0 + slope * shift)

    assert share_at(shift_of_the_pool(0.98, share_at)) == pytest.approx(0.98, abs=0.01)
