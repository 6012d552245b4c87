from __future__ import annotations

import numpy as np
import pytest

from badpo.estimation.shrinkage import Mixture


def test_against_draws():
    rng = np.random.default_rng(0)
    mixture = Mixture(np.array([[-1.0, 2.0, 0.5]]), np.array([[0.5, 1.0, 0.0]]), np.array([[0.3, 0.5, 0.2]]))
    part = rng.choice(3, 200_000, p=mixture.weights[0])
    draws = mixture.means[0, part] + mixture.sds[0, part] * rng.normal(size=200_000)
    assert mixture.mean[0] == pytest.approx(draws.mean(), abs=0.01)
    assert mixture.sd[0] == pytest.approx(draws.std(), abs=0.01)
    assert mixture.cdf(0.7)[0] == pytest.approx(np.mean(draws <= 0.7), abs=0.005)
    assert mixture.quantile(0.9)[0] == pytest.approx(np.quantile(draws, 0.9), abs=0.02)


def test_rows_stay_apart():
    mixture = Mixture(np.array([[0.0], [5.0]]), np.ones((2, 1)), np.ones((2, 1)))
    np.testing.assert_allclose(mixture.quantile(0.5), [0.0, 5.0], atol=1e-6)
    np.testing.assert_allclose(mixture.cdf(np.array([0.0, 5.0])), 0.5)
