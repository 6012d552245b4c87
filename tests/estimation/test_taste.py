"""Camps of taste: who shares another taste is not taken for a random responder, nor the other way round."""

import numpy as np
import pytest

from badpo.estimation.fit import Votes
from badpo.estimation.taste import find_camps

M = 16


def drawn(sizes, random, reliability=1.0, n=800, bias_sd=0.8):
    """Votes of 16 annotators in camps of these sizes, 4 on each comparison, whose sides differ every other time."""
    quality, camp = 2 * random.standard_normal((n, len(sizes))), np.repeat(np.arange(len(sizes)), sizes)
    who = np.argsort(random.random((n, M)), axis=1)[:, :4]
    side = random.choice([-1.0, 0.0, 0.0, 1.0], (n, 1))
    bias = random.normal(0, bias_sd, M)
    logit = np.take_along_axis(quality, camp[who], axis=1) * np.broadcast_to(reliability, M)[who]
    logit += bias[who] * side
    sign = np.where(random.logistic(size=who.shape) < logit, 1, -1)
    return Votes(np.repeat(np.arange(n), 4), sign.ravel(), who.ravel(), np.repeat(side, 4)[:, None], M)


@pytest.mark.parametrize(
    ("sizes", "reliability", "has_camps"),
    [
        ((M,), 1.0, False),
        ((M,), np.repeat([1.0, 0.0], [12, 4]), False),
        ((M,), np.linspace(0.3, 1.7, M), False),
        ((8, 8), 1.0, True),
        ((12, 4), 1.0, True),
    ],
)
def test_camps_are_told_from_random_responders(sizes, reliability, has_camps):
    suspect = np.arange(M) >= 12
    found = [
        find_camps(drawn(sizes, np.random.default_rng(seed), reliability), suspect) for seed in range(12)
    ]
    assert (np.mean([one.are_found for one in found]) > 0.7) == has_camps
    assert has_camps or sum(one.are_found for one in found) <= 1
    if sizes == (8, 8):
        # two tastes of sd 2 beside logistic errors: 1.81 / (1.81^2 + 2^2)^0.5 is 0.67
        assert np.mean([one.attenuation for one in found]) == pytest.approx(0.67, abs=0.1)


@pytest.mark.parametrize(("sizes", "bias", "are_possible"), [((M,), 2.0, False), ((13, 3), 0.8, True)])
def test_few_of_another_taste_agree_less_than_the_rest(sizes, bias, are_possible):
    """Neither biases nor chance make annotators agree unequally; too few votes tell three of another taste."""
    found = [
        find_camps(drawn(sizes, np.random.default_rng(seed), 1.0, 300, bias), np.zeros(M, bool))
        for seed in range(12)
    ]
    assert (np.mean([one.are_found or one.are_possible for one in found]) > 0.7) == are_possible
    assert are_possible or sum(one.are_possible for one in found) <= 1
    assert not any(one.are_found and one.are_possible for one in found)


def test_of_camps_nothing_is_known_without_pairs_of_votes():
    alone = Votes(np.arange(40), np.ones(40), np.repeat(np.arange(4), 10), np.zeros((40, 1)), 4)
    found = find_camps(alone, np.zeros(4, bool))
    assert np.isnan(found.p_value) and not found.are_found
