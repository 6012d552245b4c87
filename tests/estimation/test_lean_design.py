"""What large designs are taken to identify, against the rank of the same designs."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from badpo.estimation import fit, newton
from badpo.estimation.conditional_likelihood import KnownWins
from badpo.estimation.fit import (
    Centering,
    LeanDesign,
    confirmed,
    expected_leans,
    find_estimable,
    fit_conditional,
    identified_leans,
    lean_votes,
)
from badpo.estimation.newton import Information
from badpo.theory.identifiability import informative_judgments


def pool(n=400, m=30, q=2, seed=0, varying=False, groups=1):
    """Votes of annotators who judge beside others of their group only: (comparison, sign, annotator, delta, m)."""
    rng = np.random.default_rng(seed)
    comparison = np.repeat(np.arange(n), 4)
    annotator = (
        np.argsort(rng.random((n, m // groups)), axis=1)[:, :4] * groups + np.arange(n)[:, None] % groups
    )
    delta = rng.choice([-1.0, 0.0, 1.0], p=[0.25, 0.5, 0.25], size=(n, q))[comparison]
    if varying:
        delta[:, 0] = rng.choice([-1.0, 1.0], size=4 * n)
    sign = np.where(rng.random(4 * n) < 1 / (1 + np.exp(-0.5 * delta[:, 0])), 1, -1)
    return comparison, sign, annotator.ravel(), delta, m


def both_ways(votes, anchored=None):
    """What the graph leads to expect with whether the information confirms it, and what the rank says."""
    given = lean_votes(*votes, anchored, informative_judgments)
    found = find_estimable(given, np.zeros(len(given.row), dtype=bool))
    design = LeanDesign(given, found.status == "ok")
    model = KnownWins(given.blocks, given.sign)
    information = Information(design.matrix, model.curvature(np.zeros(len(given.row))))
    expected = expected_leans(design)
    return expected, confirmed(expected, information), identified_leans(design)


def same_partition(first, second) -> bool:
    pairs = set(zip(first.tolist(), second.tolist(), strict=True))
    return len(pairs) == len(set(first.tolist())) == len(set(second.tolist()))


@pytest.mark.parametrize(
    ("options", "anchored"),
    [
        ({}, False),
        ({"groups": 3}, False),
        ({"varying": True}, False),
        ({}, True),
        ({"groups": 2, "n": 800}, True),
    ],
)
def test_the_graph_is_confirmed_and_says_what_the_rank_says(options, anchored):
    held = np.arange(30) < 2 if anchored else None
    expected, sure, exact = both_ways(pool(**options), held)
    assert sure
    np.testing.assert_array_equal(expected.absolute, exact.absolute)
    np.testing.assert_array_equal(expected.compared, exact.compared)
    for j in range(2):
        relative = (expected.group[:, j] >= 0) & ~exact.absolute[:, j]
        assert same_partition(expected.group[relative, j], exact.group[relative, j])


def test_groups_that_meet_where_attributes_move_together_are_not_confirmed():
    """Each attribute's graph joins the groups, but only the sum of the two leans is compared between them."""
    comparison, sign, annotator, delta, m = pool(groups=2, n=600)
    rng = np.random.default_rng(3)
    meetings = np.repeat(np.arange(600, 660), 2)
    both = np.column_stack([2 * rng.integers(m // 2, size=60), 2 * rng.integers(m // 2, size=60) + 1]).ravel()
    votes = (
        np.concatenate([comparison, meetings]),
        np.concatenate([sign, np.tile([1, -1], 60)]),
        np.concatenate([annotator, both]),
        np.concatenate([delta, np.ones((120, 2))]),
        m,
    )
    expected, sure, exact = both_ways(votes)
    assert not sure
    assert [len(set(x)) for x in expected.group.T] == [1, 1]
    assert [len(set(x)) for x in exact.group.T] == [2, 2]


def test_a_large_pool_is_fitted_as_a_small_one(monkeypatch):
    votes = pool(n=1500, m=40)
    small = fit_conditional(*votes)
    for module in (fit, newton):
        monkeypatch.setattr(module, "LARGEST_DENSE", 10)
    monkeypatch.setattr(newton, "LARGEST_FACTORED", 10)
    large = fit_conditional(*votes)
    assert large.n_cg > 0 == small.n_cg
    assert large.covariance is None
    np.testing.assert_allclose(large.deviation, small.deviation, atol=1e-7)
    np.testing.assert_allclose(large.se, small.se, rtol=0.05)
    np.testing.assert_array_equal(large.status, small.status)
    np.testing.assert_array_equal(large.component, small.component)


def test_votes_twice_on_a_comparison_enter_the_errors_of_a_large_pool(monkeypatch):
    rng = np.random.default_rng(4)
    comparison, annotator = np.repeat(np.arange(3000), 4), np.repeat(rng.integers(40, size=(3000, 2)), 2)
    delta = np.ones((12_000, 1))
    sign = rng.choice([-1, 1], size=12_000)
    small = fit_conditional(comparison, sign, annotator, delta, 40)
    for module in (fit, newton):
        monkeypatch.setattr(module, "LARGEST_DENSE", 10)
    large = fit_conditional(comparison, sign, annotator, delta, 40)
    np.testing.assert_allclose(large.se, small.se, rtol=0.1)


def test_variances_after_centering_are_those_of_the_whole_matrix():
    rng = np.random.default_rng(0)
    group = np.array([0, 0, 0, 1, 1, 2])
    member = sparse.csr_array(np.eye(3)[group])
    centering, variance = Centering(member, np.asarray(member.sum(axis=0)).ravel()), rng.random(6)
    whole = centering @ np.eye(6)
    np.testing.assert_allclose(centering.variance(variance), np.diag(whole @ np.diag(variance) @ whole.T))
