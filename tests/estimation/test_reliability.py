"""Care beside bias: who clicks at random is careless and does not bias."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

from badpo.estimation import reliability as of_care
from badpo.estimation.fit import Votes, fit_conditional
from badpo.estimation.reliability import (
    LOG_MASS,
    NODES,
    Reliability,
    adjust_for_reliability,
    equal_reliability_p_value,
    find_unexplained_choices,
    fit_reliability,
)
from badpo.estimation.significance import equal_bias_p_value

M = 16


def drawn(care, bias, n=600, better=1.0, quality_sd=1.5, seed=0):
    """Votes of 16 annotators, 4 on each comparison; half of the comparisons differ in the attribute."""
    random = np.random.default_rng(seed)
    difference = random.choice([-1.0, 0.0, 1.0], n, p=[0.25, 0.5, 0.25])
    quality = quality_sd * random.standard_normal(n) + better * difference
    who = np.argsort(random.random((n, M)), axis=1)[:, :4]
    logit = np.asarray(care)[who] * quality[:, None] + np.asarray(bias)[who] * difference[:, None]
    sign = np.where(random.logistic(size=who.shape) < logit, 1, -1)
    comparison = np.repeat(np.arange(n), 4)
    return Votes(comparison, sign.ravel(), who.ravel(), np.repeat(difference, 4)[:, None], M)


CARELESS = np.repeat([0.0, 1.0], [4, M - 4])
NOBODY = np.zeros(M)


def about_the_line(votes):
    biases, care = fit_conditional(votes), fit_reliability(votes)
    return *adjust_for_reliability(biases, care), care


def test_clickers_are_careless_and_do_not_lean():
    votes = drawn(CARELESS, NOBODY)
    biases, _, p, care = about_the_line(votes)
    assert equal_bias_p_value(votes, fit_conditional(votes))[0] < 0.05 < p[0]
    assert (np.abs(biases.deviation) < 1.96 * biases.se).mean() > 0.85
    assert biases.deviation.sum() == pytest.approx(0, abs=1e-9)
    assert care.mean[:4].max() < care.mean[4:].min() + 0.3
    truth = CARELESS / CARELESS.mean()
    assert (np.abs(care.mean - truth) < 1.96 * care.sd).mean() > 0.8


@pytest.mark.parametrize(("care", "unequal"), [(np.ones(M), False), (CARELESS, True)])
def test_of_equal_care_looks_past_leans(care, unequal):
    p = [equal_reliability_p_value(drawn(care, np.linspace(-2, 2, M), seed=seed)) for seed in range(12)]
    assert (np.median(p) < 0.05) == unequal


def test_of_equal_care_uses_the_covariance_of_all_outcomes(monkeypatch):
    monkeypatch.setattr(of_care._SameVotes, "fit_common_slope", lambda votes: (1.3, 0.0))
    random, mass, chance = np.random.default_rng(0), np.exp(LOG_MASS), expit(1.3 * NODES)
    comparison = np.repeat(np.arange(40), random.integers(1, 5, 40))
    who = np.concatenate([random.permutation(6)[: sum(comparison == c)] for c in range(40)])
    won, total, covariance = random.integers(2, size=len(who)), np.zeros(6), np.zeros((6, 6))

    def scored(won):
        joint = mass * chance ** sum(won) * (1 - chance) ** (len(won) - sum(won))
        quality, expected = joint @ NODES, joint @ (NODES * chance)
        return joint.sum(), (np.array(won) * quality - expected) / joint.sum()

    for mine in (comparison == c for c in range(40) if sum(comparison == c) > 1):
        total[who[mine]] += scored(won[mine])[1]
        for other in product([0, 1], repeat=sum(mine)):
            p, score = scored(other)
            covariance[np.ix_(who[mine], who[mine])] += p * np.outer(score, score)
    without = np.eye(6) - np.outer(covariance.sum(axis=1), np.ones(6)) / covariance.sum()
    left = without @ covariance @ without.T
    mean, spread, squares = np.trace(left), (left**2).sum(), ((without @ total) ** 2).sum()
    expected = stats.chi2.sf(squares * mean / spread, mean**2 / spread)
    found = equal_reliability_p_value(Votes(comparison, 2 * won - 1, who, np.zeros((len(who), 1)), 6))
    assert found == pytest.approx(expected)


def test_a_deviation_moves_to_the_line_by_its_chance_and_groups_cost_degrees_of_freedom():
    """Annotators of four groups, in whose means neither bias nor care differs."""
    biases, group = fit_conditional(drawn(CARELESS, NOBODY)), np.repeat(np.arange(4), 4)
    x = np.tile([-0.6, -0.2, 0.2, 0.6], 4)
    bias = 0.9 * x + 0.3 * np.tile([1.0, -1.0, -1.0, 1.0], 4)
    own = {"deviation": bias[:, None], "se": np.full((M, 1), 0.2), "component": group[:, None]}
    biases = replace(biases, finite_deviation=bias[:, None] + 0, finite_se=own["se"] + 0, **own)
    care = Reliability(1 + x[:, None], np.full((M, 1), 0.5), np.ones((M, 1)), 0.5, "", np.full(M, 99))
    found, lines, p_value = adjust_for_reliability(biases, care)
    line, left = lines[0], bias - lines[0].slope * x
    variance = 0.2**2 + (line.slope**2 - line.open_slope) * 0.5**2 + line.open_slope * x**2
    assert 0.05 < line.chance < 0.95 < line.slope / line.open_slope**0.5
    np.testing.assert_allclose(found.deviation[:, 0], bias + line.chance * (left - bias))
    either = (1 - line.chance) * (0.2**2 + line.chance * (left - bias) ** 2) + line.chance * variance
    np.testing.assert_allclose(found.se[:, 0] ** 2, either)
    assert p_value[0] == pytest.approx(stats.chi2.sf((left**2 / variance).sum(), M - 1 - 4))


def test_a_known_lean_and_who_always_chooses_the_attribute_are_not_taken_for_carelessness():
    comparison, sign, annotator, delta, m = drawn(np.ones(M), NOBODY, better=0.0, n=1200)
    first = np.random.default_rng(1).choice([-1.0, 1.0], len(sign))
    shift = np.where(annotator < 4, 4.0, 0.0) * first
    sign = np.where(shift, first, sign)
    votes = Votes(comparison, sign, annotator, delta, m)
    seen, unseen = (fit_reliability(votes, known).mean[:4].mean() for known in (shift, 0.0))
    assert unseen < seen - 0.1
    clicks = fit_reliability(drawn(CARELESS, 8.0 * (np.arange(M) == 0))).weights[:, -1]
    assert clicks[0] < 0.01 < clicks[1:4].min()


def test_without_care_to_know_nothing_changes_and_the_line_counts_by_its_chance():
    comparison, _, *rest = all_careless = drawn(NOBODY, NOBODY)
    unanimous = Votes(comparison, np.where(comparison % 2, 1, -1), *rest)
    few = all_careless.select(slice(40))
    for votes, why in ((all_careless, "unreliable"), (unanimous, "unanimous"), (few, "few")):
        care = fit_reliability(votes)
        assert care.unknown == why
        assert np.isnan(care.mean).all()
    biases = fit_conditional(all_careless)
    assert (adjust_for_reliability(biases, care).biases.deviation == biases.deviation).all()
    alike = drawn(np.ones(M), 0.5 * np.tile([-1, 1], M // 2), n=1200)
    unlike = drawn(CARELESS, NOBODY, n=1200, better=1.5)
    one, other = (about_the_line(votes)[1][0].chance for votes in (alike, unlike))
    assert one < 0.5 < 0.9 < other


@pytest.mark.parametrize("larger", [False, True])
def test_equal_care_is_not_spread_out(monkeypatch, larger):
    if larger:
        monkeypatch.setattr("badpo.estimation.reliability.LARGEST_FACTORED", 3)
    care = fit_reliability(drawn(np.ones(M), NOBODY))
    assert care.between_sd < 0.4
    assert (np.abs(care.mean - 1) < 1.96 * care.sd).mean() > 0.8


@pytest.mark.parametrize("way", [-1, 1])
def test_an_adversary_who_is_blind_to_quality_draws_no_line(way):
    votes = drawn(NOBODY + (np.arange(M) > 0), 2.2 * way * (np.arange(M) == 0), better=0.7, n=900)
    biases, care, beyond = (
        fit_conditional(votes),
        fit_reliability(votes),
        find_unexplained_choices(votes),
    )
    assert beyond.ravel().tolist() == [True] + [False] * (M - 1)
    without, found = adjust_for_reliability(biases, care, beyond), adjust_for_reliability(biases, care)
    assert without.lines[0].chance < 0.25 < 0.5 < found.lines[0].chance
    far, near = (way * each.biases.deviation[0, 0] / each.biases.se[0, 0] for each in (without, found))
    assert far > 1.5 * near


def test_the_most_reliable_who_choose_the_attribute_most_take_part_in_the_line():
    """Without them the line would be flatter, because they are chosen by what it is about."""
    votes = drawn(np.linspace(0.2, 1.8, M), NOBODY, better=1.5, n=2400)
    biases, care, beyond = (
        fit_conditional(votes),
        fit_reliability(votes),
        find_unexplained_choices(votes),
    )
    assert beyond[M // 2 :].any() and not beyond[: M // 2].any()
    without, found = adjust_for_reliability(biases, care), adjust_for_reliability(biases, care, beyond)
    assert found.lines[0].slope == without.lines[0].slope > 0.5
