"""The estimators that make something of the comparisons' quality: given, or left in the estimate."""

import numpy as np
import pytest
from scipy import sparse, stats
from scipy.special import expit

from badpo.estimation import alternative_estimators
from badpo.estimation.conditional_likelihood import KnownWins, sort_into_blocks
from badpo.estimation.fit import Votes, fit_conditional
from badpo.estimation.shrinkage import shrink_normal
from bench.simulated_pools import Pool, draw_votes

ALL = {
    "conditional": fit_conditional,
    "marginal": lambda votes, **options: alternative_estimators.fit_marginal(
        votes, np.zeros(int(votes.comparison.max(initial=-1)) + 1), absolute=False, **options
    ),
}
EVERY = pytest.mark.parametrize("kind", ALL)


def drawn(pool, seed=0):
    votes = draw_votes(pool, np.random.default_rng(seed))
    return votes, votes.arrays


def test_beside_a_given_quality_it_is_a_logistic_regression_with_a_scale():
    from statsmodels.discrete.discrete_model import Logit

    votes, arrays = drawn(Pool(300, n_annotators=6))
    biases = alternative_estimators.fit_marginal(arrays, 2.0 * votes.quality, absolute=False)
    of_people = np.eye(6)[votes.annotator] * votes.delta
    columns = np.column_stack([of_people, 2.0 * votes.quality[votes.comparison]])
    peer = Logit((votes.sign > 0).astype(float), columns).fit(disp=0)
    centering = np.eye(6) - 1 / 6
    np.testing.assert_allclose(biases.deviation[:, 0], centering @ peer.params[:6], atol=1e-5)
    expected = centering @ peer.cov_params()[:6, :6] @ centering
    np.testing.assert_allclose(biases.covariance, expected, rtol=1e-4, atol=1e-8)


def test_marginal_sums_and_the_pooled_one_are_logistic_regressions():
    """Beside the strengths of models, which the regression has as a given quality or as columns of its own."""
    from statsmodels.discrete.discrete_model import Logit

    votes, (comparison, sign, annotator, delta, m) = drawn(Pool(4000, n_annotators=5, votes_each=1))
    delta = np.column_stack([delta, np.random.default_rng(0).choice([-1.0, 0.0, 1.0], len(sign))])
    given = Votes(comparison, sign, annotator, delta, m)
    sums = alternative_estimators.fit_marginal(given, votes.quality, absolute=[True, False])
    columns = (np.eye(m)[annotator][:, :, None] * delta[:, None]).reshape(len(sign), -1)
    columns = np.column_stack([columns, votes.quality[comparison]])
    peer = Logit((sign > 0).astype(float), columns).fit(disp=0)
    theirs, se = peer.params[:-1].reshape(m, 2), peer.bse[:-1].reshape(m, 2)
    np.testing.assert_allclose(sums.deviation[:, 0], theirs[:, 0], atol=1e-5)
    np.testing.assert_allclose(sums.se[:, 0], se[:, 0], rtol=1e-4)
    np.testing.assert_allclose(sums.deviation[:, 1], theirs[:, 1] - theirs[:, 1].mean(), atol=1e-5)
    assert sums.absolute.tolist() == [True, False]
    sides = np.array([np.random.default_rng(c).choice(3, 2, replace=False) for c in comparison])
    models = np.eye(3)[sides[:, 0]] - np.eye(3)[sides[:, 1]]
    pooled = alternative_estimators.pooled_sums(sign, delta, sparse.csr_array(models), comparison)
    peer = Logit((sign > 0).astype(float), np.column_stack([delta, models[:, :2]])).fit(disp=0)
    np.testing.assert_allclose(pooled.log_odds, peer.params[:2], atol=0.01)
    np.testing.assert_allclose(pooled.se, peer.bse[:2], rtol=0.1)
    twice = np.column_stack([delta, delta[:, 0]])
    one_way = alternative_estimators.pooled_sums(
        sign, twice, sparse.csr_array((len(sign), 0)), comparison
    )
    assert np.isinf(one_way.se).tolist() == [True, False, True]


MODELS = {
    "known wins": KnownWins,
    "given quality": lambda blocks, sign: alternative_estimators.GivenQuality(
        blocks, sign, np.linspace(-1, 2, len(sign))
    ),
}


@pytest.mark.parametrize("kind", MODELS)
def test_derivatives_are_those_of_the_values(kind):
    rng = np.random.default_rng(2)
    _, blocks = sort_into_blocks(np.repeat(np.arange(6), [1, 2, 3, 4, 4, 12]))
    sign = rng.choice([-1.0, 1.0], 26)
    model = MODELS[kind](blocks, sign)
    point = np.append(rng.normal(size=26), np.full(len(model.start), 0.3))
    at = model.curvature(point[:26], point[26:])
    cross = at.extra_cross if len(model.start) else np.zeros((26, 0))
    information = np.block([[at.information.toarray(), cross], [cross.T, at.extra_information]])

    def moved(i, step):
        end = point + step * (np.arange(len(point)) == i)
        there = model.curvature(end[:26], end[26:])
        return np.array([model.values(end[:26], end[26:]).sum(), *there.score, *there.extra_score])

    for i, score in enumerate((*at.score, *at.extra_score)):
        slope = (moved(i, 1e-5) - moved(i, -1e-5)) / 2e-5
        assert slope[0] == pytest.approx(score, abs=1e-6)
        np.testing.assert_allclose(-slope[1:], information[i], atol=1e-6)


@EVERY
def test_statuses_and_infinite_leans(kind):
    _, (comparison, sign, annotator, delta, m) = drawn(Pool(600, n_annotators=8))
    delta = delta.copy()
    delta[np.isin(comparison, comparison[annotator == 0])] = 0.0
    sign = np.where((annotator == 1) & (delta[:, 0] != 0), np.sign(delta[:, 0]), sign).astype(int)
    biases = ALL[kind](Votes(comparison, sign, annotator, delta, m + 1))
    assert biases.status[0, 0] == biases.status[m, 0] == "no_cross"
    assert np.isnan(biases.deviation[[0, m], 0]).all() and (biases.component[[0, m], 0] == -1).all()
    assert biases.status[1, 0] == "separated_high"
    assert biases.deviation[1, 0] == np.inf and np.isnan(biases.se[1, 0])
    assert (biases.status[2:m, 0] == "ok").all()
    assert biases.deviation[2:m, 0].mean() == pytest.approx(0.0, abs=1e-9)
    assert np.isnan(biases.shared_bias).all() and not biases.absolute.any()
    few = ALL[kind](Votes(comparison, sign, annotator, delta, m + 1), min_informative=10_000)
    assert (few.status[2:m, 0] == "insufficient").all()
    np.testing.assert_array_equal(few.deviation, biases.deviation)


@pytest.mark.parametrize(("n_votes", "sd"), [(1, 0.5), (3, 0.5), (12, 0.7), (40, 0.7)])
def test_an_infinite_lean_stands_for_about_what_its_votes_say(n_votes, sd):
    """Unanimous logistic votes beside a given quality of zero, integrated under the prior that the pool fixes."""
    m, each = 41, 400
    chance = expit(stats.norm.ppf((np.arange(m - 1) + 0.5) / (m - 1)) * sd)
    wins = np.where(np.arange(each) < np.round(each * chance)[:, None], 1, -1).ravel()
    annotator = np.append(np.repeat(np.arange(m - 1), each), np.full(n_votes, m - 1))
    sign = np.append(wins, np.ones(n_votes, dtype=int))
    votes = np.arange(len(sign)), sign, annotator, np.ones((len(sign), 1)), m
    biases = alternative_estimators.fit_marginal(Votes(*votes), np.zeros(len(sign)), absolute=False)
    assert biases.deviation[-1, 0] == np.inf
    found = shrink_normal(biases.finite_deviation[:, 0], biases.finite_se[:, 0])
    grid = np.linspace(-8, 10, 20_001)
    weight = stats.norm.pdf(grid, 0, sd) * expit(grid) ** n_votes
    assert found.posterior.mean[-1] == pytest.approx(np.average(grid, weights=weight), rel=0.25)


def test_anchors_make_leans_absolute():
    votes, (comparison, sign, annotator, delta, m) = drawn(Pool(3000, n_annotators=10))
    rng = np.random.default_rng(3)
    gold = np.arange(m) < 3
    fair = np.where(rng.random(len(sign)) < expit(votes.quality[comparison]), 1, -1)
    sign = np.where(gold[annotator], fair, sign)
    biases = fit_conditional(Votes(comparison, sign, annotator, delta, m), anchored=gold)
    assert (biases.status[gold, 0] == "anchored").all() and (biases.deviation[gold, 0] == 0).all()
    assert biases.absolute.all()
    assert biases.shared_bias[0] == pytest.approx(biases.deviation[~gold, 0].mean())
    assert 0.5 < biases.shared_bias[0] < 1.5 and 0 < biases.shared_bias_se[0] < 0.3


def test_attributes_that_only_move_together_are_not_known():
    _, (comparison, sign, annotator, delta, m) = drawn(Pool(400, n_annotators=6))
    both = np.column_stack([delta, delta])
    both[annotator != 0, 1] = np.roll(delta[:, 0], 7)[annotator != 0]
    biases = ALL["marginal"](Votes(comparison, sign, annotator, both, m))
    assert (biases.status[0] == "no_information").all()
    assert (biases.status[1:] == "ok").all()


@pytest.mark.parametrize(
    ("at", "wrong", "words"),
    [
        (1, [1, 0], "sign of vote 1 is 0"),
        (1, [1], "1 signs"),
        (3, [[np.nan], [1.0]], "delta is not finite at judgment 0"),
        (4, 1, "annotator indices"),
    ],
)
def test_wrong_input_is_named(at, wrong, words):
    votes = [[0, 1], [1, -1], [0, 1], [[1.0], [1.0]], 2]
    votes[at] = wrong
    with pytest.raises(ValueError, match=words):
        fit_conditional(Votes(*votes))


@EVERY
def test_no_votes_at_all(kind):
    empty = np.zeros(0, dtype=int)
    biases = ALL[kind](Votes(empty, empty, empty, np.zeros((0, 1)), 2))
    assert (biases.status == "no_cross").all() and np.isnan(biases.deviation).all()
