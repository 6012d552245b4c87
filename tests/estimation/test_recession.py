"""Finite and infinite leans on small designs of every kind, against the top of the likelihood by brute force."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from badpo.estimation.alternative_estimators import fit_joint
from badpo.estimation.conditional_likelihood import sorted_blocks
from badpo.estimation.fit import (
    explained_by_receding,
    find_estimable,
    fit_conditional,
    lean_votes,
    overlapping_annotators,
)
from badpo.theory.identifiability import informative_judgments, jointly_separated


def small_pool(seed: int):
    """A few votes: attributes whole or continuous, of responses or of judgments, annotators twice, some anchored."""
    rng = np.random.default_rng(seed)
    m, q, n = int(rng.integers(2, 6)), int(rng.integers(1, 3)), int(rng.integers(4, 25))
    most, twice, kind = int(rng.integers(2, 5)), rng.random() < 0.2, int(rng.integers(3))
    sizes = rng.integers(1, most + 1, size=n)
    annotator = np.concatenate([rng.choice(m, size=min(t, m), replace=bool(twice)) for t in sizes])
    comparison = np.repeat(np.arange(n), np.minimum(sizes, m))
    by_response = rng.normal(size=(n, q)) if kind == 2 else rng.choice([-1.0, 0.0, 1.0], size=(n, q))
    delta = by_response[comparison]
    if kind == 1:
        delta = rng.choice([-1.0, 0.0, 1.0], size=delta.shape)
    theta = rng.normal(size=(m, q))
    logit = rng.normal(size=n)[comparison] + (theta[annotator] * delta).sum(axis=1)
    sign = np.where(rng.random(len(logit)) < 1 / (1 + np.exp(-logit)), 1, -1)
    return (comparison, sign, annotator, delta, m), rng.random(m) < 0.3 * (seed % 3 == 0)


def brute_force(votes, anchored) -> np.ndarray:
    """Leans after 200 Newton steps on the likelihood by its definition; what is finite there has long settled."""
    comparison, sign, annotator, delta, m = votes
    q = delta.shape[1]
    design = np.zeros((len(sign), m, q))
    design[np.arange(len(sign)), annotator] = delta * ~anchored[annotator][:, None]
    design = design.reshape(len(sign), m * q)
    terms = []
    for c in np.unique(comparison):
        rows = np.flatnonzero(comparison == c)
        won = sign[rows] > 0
        if 0 < won.sum() < len(rows):
            sets = [
                design[rows[list(chosen)]].sum(axis=0) for chosen in combinations(range(len(rows)), won.sum())
            ]
            terms.append((design[rows[won]].sum(axis=0), np.array(sets)))
    theta = np.zeros(m * q)
    for _ in range(200):
        gradient, information = np.zeros(m * q), np.zeros((m * q, m * q))
        for observed, sets in terms:
            weight = np.exp(sets @ theta - (sets @ theta).max())
            weight /= weight.sum()
            mean = weight @ sets
            gradient += observed - mean
            information += (sets * weight[:, None]).T @ sets - np.outer(mean, mean)
        size, axes = np.linalg.eigh(information)
        usable = size > max(1e-13 * size.max(initial=0.0), 1e-200)
        step = axes[:, usable] @ ((axes.T @ gradient)[usable] / size[usable])
        theta += step * min(1.0, 2.0 / max(np.abs(step).max(initial=0.0), 1e-300))
        if np.abs(gradient).max(initial=0.0) < 1e-12:
            break
    return theta.reshape(m, q)


def without_mixes(votes, anchored):
    """The votes but for those of annotators whom several attributes explain together: they are not used."""
    given = lean_votes(*votes, anchored, informative_judgments)
    found = find_estimable(given, np.zeros(len(given.row), dtype=bool))
    kept = np.ones(len(votes[0]), dtype=bool)
    kept[given.row[found.set_aside == 2]] = False
    return *(values[kept] for values in votes[:4]), votes[4]


def test_what_is_finite_agrees_with_brute_force_and_the_rest_is_said():
    n_compared, n_not_finite = 0, 0
    for seed in range(120):
        votes, anchored = small_pool(seed)
        leans = fit_conditional(*votes, anchored=anchored, min_informative=1)
        truth = brute_force(without_mixes(votes, anchored), anchored)
        assert leans.gradient_norm < 1e-8
        assert np.isfinite(leans.deviation[leans.status == "ok"]).all()
        n_not_finite += int(np.isin(leans.status, ("separated_high", "separated_low")).sum())
        for j in range(truth.shape[1]):
            for group in np.unique(leans.component[leans.status[:, j] == "ok", j]):
                mine = (leans.component[:, j] == group) & (leans.status[:, j] == "ok")
                found, expected = leans.deviation[mine, j], truth[mine, j]
                if not leans.absolute[j]:
                    found, expected = found - found.mean(), expected - expected.mean()
                n_compared += int(mine.sum())
                np.testing.assert_allclose(found, expected, atol=1e-4 * (1 + np.abs(found).max()))
    assert min(n_compared, n_not_finite) > 100


def test_an_infinite_lean_that_takes_two_attributes_does_not_count_as_zero_elsewhere():
    """0 is explained by a mix, on which their last vote is neutral: that vote says nothing of the others."""
    rng = np.random.default_rng(0)
    n, m = 300, 6
    comparison = np.repeat(np.arange(n), 3)
    annotator = np.argsort(rng.random((n, m)), axis=1)[:, :3].ravel()
    delta = rng.normal(size=(n, 2))[comparison]
    theta = rng.normal(size=(m, 2))
    sign = np.where(rng.random(3 * n) < 1 / (1 + np.exp(-(theta[annotator] * delta).sum(axis=1))), 1, -1)
    mine = annotator == 0
    sign[mine] = np.where(delta[mine].sum(axis=1) > 0, 1, -1)
    leans = fit_conditional(comparison, sign, annotator, delta, m)
    others = ~mine
    without = fit_conditional(comparison[others], sign[others], annotator[others], delta[others], m)
    assert (leans.status[0] == "separated_high").all()
    np.testing.assert_allclose(leans.deviation[1:], without.deviation[1:], atol=1e-6)


def test_an_attribute_of_undetermined_sign_is_not_called_infinite():
    """All votes of annotator 0 follow attribute 0; how they go with attribute 1 is open in both directions."""
    rng = np.random.default_rng(1)
    n, m = 200, 5
    comparison = np.repeat(np.arange(n), 3)
    annotator = np.argsort(rng.random((n, m)), axis=1)[:, :3].ravel()
    delta = np.column_stack([rng.choice([-1.0, 1.0], n), 0.1 * rng.normal(size=n)])[comparison]
    sign = rng.choice([-1, 1], size=3 * n)
    mine = annotator == 0
    sign[mine] = np.sign(delta[mine, 0]).astype(int)
    leans = fit_conditional(comparison, sign, annotator, delta, m)
    assert leans.status[0, 0] == "separated_high"
    assert leans.status[0, 1] == "no_information"
    assert (leans.status[1:] == "ok").all()


def two_groups() -> tuple[np.ndarray, ...]:
    """Annotators 0, 1 disagree both ways, so do 2, 3; whenever the groups meet, 0 or 1 wins. All sides differ."""
    meetings = [(0, 1)] * 3 + [(1, 0)] * 2 + [(2, 3)] * 4 + [(3, 2)] * 2 + [(0, 2), (1, 3), (0, 3), (1, 2)]
    comparison = np.repeat(np.arange(len(meetings)), 2)
    return comparison, np.tile([1, -1], len(meetings)), np.ravel(meetings), np.ones((len(comparison), 1))


@pytest.mark.parametrize("fit", [fit_conditional, fit_joint])
def test_groups_that_part_are_components_with_finite_leans(fit):
    leans = fit(*two_groups(), 4, min_informative=1)
    assert leans.status.ravel().tolist() == ["ok"] * 4
    component = leans.component.ravel()
    assert component[0] == component[1] != component[2] == component[3]
    assert (np.abs(leans.deviation) < 1).all()
    assert (leans.se < 2).all()


def test_the_pairs_within_a_group_decide_its_estimate():
    comparison, sign, annotator, delta = two_groups()
    leans = fit_conditional(comparison, sign, annotator, delta, 4, min_informative=1)
    expected = np.array([np.log(3 / 2), -np.log(3 / 2), np.log(2), -np.log(2)]) / 2
    np.testing.assert_allclose(leans.deviation.ravel(), expected, atol=1e-6)


def test_an_annotator_between_two_groups_is_not_estimated():
    """1 loses to 0 and wins against 2, always; 0 and 2 meet others of their own kind."""
    meetings = [(0, 3), (3, 0), (2, 4), (4, 2), (0, 1), (1, 2), (3, 1), (1, 4)]
    comparison = np.repeat(np.arange(len(meetings)), 2)
    votes = comparison, np.tile([1, -1], len(meetings)), np.ravel(meetings), np.ones((len(comparison), 1))
    leans = fit_conditional(*votes, 5, min_informative=1)
    assert leans.status[1, 0] == "no_information"
    assert np.isfinite(leans.deviation[[0, 2, 3, 4], 0]).all()


def votes(seed: int, continuous: bool):
    """Some 12 votes each of 20 annotators on up to three attributes, as (annotator, sign, delta)."""
    rng = np.random.default_rng(seed)
    q, n = int(rng.integers(1, 4)), 240
    annotator = rng.integers(20, size=n)
    delta = rng.normal(size=(n, q)) if continuous else rng.choice([-1.0, 0.0, 1.0], size=(n, q))
    lean = rng.normal(size=(20, q))
    chance = 1 / (1 + np.exp(-(lean[annotator] * delta).sum(axis=1)))
    return annotator, np.where(rng.random(n) < chance, 1, -1), delta


@pytest.mark.parametrize("continuous", [False, True])
def test_no_separated_annotator_is_said_to_overlap_and_nearly_all_others_are(continuous):
    n_overlapping, n_missed = 0, 0
    for seed in range(30):
        annotator, sign, delta = votes(seed, continuous)
        differed = np.stack([np.bincount(annotator, x != 0, 20) > 0 for x in delta.T], axis=1)
        found = overlapping_annotators(annotator, sign[:, None] * delta, differed)
        separated = jointly_separated(annotator, sign, delta, 20)
        assert not (found & separated).any()
        n_overlapping += int((~separated).sum())
        n_missed += int((~separated & ~found).sum())
    assert n_missed < 0.02 * n_overlapping


def test_a_direction_along_which_a_loser_gains_is_none_of_recession():
    _, blocks = sorted_blocks([0, 0, 1, 1])
    won = np.array([True, False, True, False])
    assert explained_by_receding(np.array([1.0, 0, 0, 0]), won, blocks).tolist() == [True, True, False, False]
    assert not explained_by_receding(np.array([1.0, 0, 0, 1.0]), won, blocks).any()
    assert not explained_by_receding(np.zeros(4), won, blocks).any()


def test_votes_that_tie_at_the_border_remain():
    _, blocks = sorted_blocks([0] * 4)
    won = np.array([True, True, False, False])
    change = np.array([2.0, 1.0, 1.0, 0.0])
    assert explained_by_receding(change, won, blocks).tolist() == [True, False, False, True]
