"""Evidence that may be looked at after every comparison."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from badpo.estimation.sequential import GRID, e_bh, log_e_values, log_tilt_ratios, mean_tilt, winner_shares

ALPHA = 0.05


def votes(random, lean, n_comparisons, votes_each=4, position=0.0):
    """Who voted (n_comparisons, votes_each), whether for a, and the difference that each voter saw."""
    m = len(lean)
    people = np.argsort(random.random((n_comparisons, m)), axis=1)[:, :votes_each]
    delta = np.repeat(random.choice([-1.0, 1.0], (n_comparisons, 1)), votes_each, axis=1)
    if position:
        delta = random.choice([-1.0, 1.0], people.shape)
    logit = random.normal(0, 1, (n_comparisons, 1)) + (lean[people] + position) * delta
    return people, random.random(people.shape) < 1 / (1 + np.exp(-logit)), delta


def paths(people, chose_a, delta, m, shares=None):
    """Log e-value of each annotator after each comparison, (n_comparisons, m)."""
    if shares is None:
        shares = np.stack(
            [winner_shares(np.where(a, 1, -1), d[:, None]) for a, d in zip(chose_a, delta, strict=True)]
        )
    steps = np.zeros((len(people), m, len(GRID)))
    steps[np.arange(len(people))[:, None], people] = log_tilt_ratios(chose_a, shares, delta)
    return log_e_values(np.cumsum(steps, axis=0))


def share_of(people, chose_a):
    return np.repeat(chose_a.mean(axis=1, keepdims=True), people.shape[1], axis=1)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("delta", [-1.0, 0.0, 0.3, 40.0])
def test_a_ratio_has_mean_one_under_the_null(share, delta):
    won, lost = (np.exp(log_tilt_ratios(x, share, delta)) for x in (True, False))
    np.testing.assert_allclose(share * won + (1 - share) * lost, 1.0, rtol=1e-12)


def test_a_ratio_is_that_of_the_conditional_likelihood():
    lean, delta, n, n_for_a = 0.7, -1.0, 5, 2
    weights = {
        winners: np.exp(lean * delta) if 0 in winners else 1.0 for winners in combinations(range(n), n_for_a)
    }
    chance = sum(w for winners, w in weights.items() if 0 in winners) / sum(weights.values())
    won, lost = (
        np.exp(log_tilt_ratios(x, n_for_a / n, delta, [lean])).item() * p
        for x, p in ((True, n_for_a / n), (False, 1 - n_for_a / n))
    )
    assert won == pytest.approx(chance)
    assert lost == pytest.approx(1 - chance)


def test_unanimous_votes_and_equal_sides_are_exactly_nothing():
    assert not log_tilt_ratios([True, False], [1.0, 0.0], 1.0).any()
    assert not log_tilt_ratios([True, False], 0.5, 0.0).any()


def test_false_alarms_with_a_look_after_every_comparison():
    random, m, pools = np.random.default_rng(0), 12, 400
    alarms, flagged = np.zeros((pools, m)), np.zeros(pools)
    for i in range(pools):
        people, chose_a, delta = votes(random, np.full(m, 0.8), 200)
        log_e = paths(people, chose_a, delta, m, share_of(people, chose_a))
        alarms[i] = (log_e >= -np.log(ALPHA)).any(axis=0)
        flagged[i] = any(e_bh(now, ALPHA).any() for now in log_e[9::10])
    # annotators of one pool are dependent: the error is counted over pools
    rate, error = alarms.mean(), alarms.mean(axis=1).std() / np.sqrt(pools)
    assert rate <= ALPHA + 3 * error
    assert alarms.any()
    assert flagged.mean() <= ALPHA + 3 * np.sqrt(ALPHA * (1 - ALPHA) / pools)


def test_a_planted_lean_is_found_and_its_direction():
    random, m, pools = np.random.default_rng(1), 12, 30
    found = np.zeros((pools, 2))
    for i in range(pools):
        lean = np.full(m, 0.5)
        lean[:2] += [1.5, -1.5]
        people, chose_a, delta = votes(random, lean, 300)
        log_e = paths(people, chose_a, delta, m, share_of(people, chose_a))
        found[i] = (log_e[:, :2] >= -np.log(ALPHA)).any(axis=0)
    assert found.mean() > 0.9
    up, down = log_tilt_ratios([True, False], 0.5, 1.0)
    assert mean_tilt(up) > 0 > mean_tilt(down)


def test_voters_who_saw_different_sides_first_are_not_alike():
    """Everyone leans toward the side shown first: nobody differs, but shares over all voters would say so."""
    random, m, pools = np.random.default_rng(3), 6, 40
    ours, naive = [], []
    for _ in range(pools):
        people, chose_a, delta = votes(random, np.zeros(m), 150, position=1.5)
        for kept, shares in ((ours, None), (naive, share_of(people, chose_a))):
            kept.append((paths(people, chose_a, delta, m, shares) >= -np.log(ALPHA)).any(axis=0).mean())
    assert np.mean(ours) <= ALPHA
    assert np.mean(naive) > 0.5


def test_e_bh_against_its_definition():
    random = np.random.default_rng(4)
    for _ in range(50):
        e = np.exp(random.normal(1, 3, random.integers(1, 12)))
        ranks = [i for i in range(1, len(e) + 1) if np.sort(e)[-i] >= len(e) / (0.1 * i)]
        expected = e >= np.sort(e)[-max(ranks)] if ranks else np.zeros(len(e), dtype=bool)
        np.testing.assert_array_equal(e_bh(np.log(e), 0.1), expected)
