"""Finite and infinite biases against the top of the likelihood by brute force; large designs against their rank."""

import numpy as np
import pytest

from badpo.estimation import fit, newton
from badpo.estimation.conditional_likelihood import KnownWins, sort_into_blocks
from badpo.estimation.fit import Votes
from badpo.estimation.log_odds import cluster_errors
from badpo.estimation.newton import Information
from badpo.theory.identifiability import separating_mixes
from bench.simulated_pools import Pool, draw_votes
from tests.estimation.test_conditional import pool


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
    """Biases after 200 Newton steps with the whole design; what is finite there has long settled."""
    comparison, sign, annotator, delta, m = votes
    order, blocks = sort_into_blocks(comparison)
    model = KnownWins(blocks, sign[order].astype(float))
    design = np.zeros((len(sign), *delta.shape[1:], m))
    design[np.arange(len(sign)), :, annotator] = delta * ~anchored[annotator][:, None]
    design = design.reshape(len(sign), -1)[order]
    theta = np.zeros(design.shape[1])
    for _ in range(200):
        at = model.curvature(design @ theta)
        gradient = design.T @ at.score
        size, axes = np.linalg.eigh(design.T @ (at.information @ design))
        usable = size > max(1e-13 * size.max(initial=0.0), 1e-200)
        step = axes[:, usable] @ ((axes.T @ gradient)[usable] / size[usable])
        theta += step * min(1.0, 2.0 / max(np.abs(step).max(initial=0.0), 1e-300))
        if np.abs(gradient).max(initial=0.0) < 1e-12:
            break
    return theta.reshape(-1, m).T


def test_what_is_finite_agrees_with_brute_force_and_the_rest_is_said(monkeypatch):
    """But for pools in which several attributes explain an annotator's votes together: those votes are not used."""
    n_compared, n_not_finite, mixes = 0, 0, []

    def spy(annotator, toward, m):
        lowest, highest = separating_mixes(annotator, toward, m)
        voted = np.zeros(lowest.shape, dtype=bool)
        np.logical_or.at(voted, annotator, toward != 0)
        mixes.append((voted & (lowest < highest)).any())
        return lowest, highest

    monkeypatch.setattr(fit, "separating_mixes", spy)
    for seed in range(140):
        votes, anchored = small_pool(seed)
        mixes.clear()
        biases = fit.fit_conditional(Votes(*votes), anchored=anchored, min_informative=1)
        assert biases.gradient_norm < 1e-8
        assert np.isfinite(biases.deviation[biases.status == "ok"]).all()
        n_not_finite += int(np.isin(biases.status, ("separated_high", "separated_low")).sum())
        if any(mixes):
            continue
        truth = brute_force(votes, anchored)
        for j in range(truth.shape[1]):
            for group in np.unique(biases.component[biases.status[:, j] == "ok", j]):
                mine = (biases.component[:, j] == group) & (biases.status[:, j] == "ok")
                found, expected = biases.deviation[mine, j], truth[mine, j]
                if not biases.absolute[j]:
                    found, expected = found - found.mean(), expected - expected.mean()
                n_compared += int(mine.sum())
                np.testing.assert_allclose(found, expected, atol=1e-4 * (1 + np.abs(found).max()))
    assert min(n_compared, n_not_finite) > 100


def test_infinite_leans_beside_others():
    """0 follows a mix of both attributes, or the first alone: how 0's votes go with the second is open then."""
    (comparison, sign, annotator, _, m), _ = pool(n=300, m=6, votes=3)
    delta, mine = np.random.default_rng(0).normal(size=(300, 2))[comparison], annotator == 0
    delta[:, 0] = np.sign(delta[:, 0])
    others = [each[~mine] for each in (comparison, sign, annotator, delta)]
    without = fit.fit_conditional(Votes(*others, m))
    for follows, status in ((1.0, "separated_high"), (0.0, "no_information")):
        weighed = delta * [1.0, 1.0 if follows else 0.1]
        sign[mine] = np.where(weighed[mine] @ [1.0, follows] > 0, 1, -1)
        biases = fit.fit_conditional(Votes(comparison, sign, annotator, weighed, m))
        assert biases.status[0].tolist() == ["separated_high", status]
        assert (biases.status[1:] == "ok").all()
        if follows:
            # the last vote on a comparison beside one that infinity explains says nothing of the others
            np.testing.assert_allclose(biases.deviation[1:], without.deviation[1:], atol=1e-6)
    # votes that the other attribute explains to the last digit have no error, rather than one beyond all numbers
    delta = np.repeat([[0.0, 1.0], [1.0, 4000.0]], [60, 20], axis=0)
    sign = np.tile([1, -1], 40) * np.repeat([-1, 1], [20, 60])
    biases = fit.fit_conditional(Votes(np.repeat(np.arange(40), 2), sign, np.tile([0, 1], 40), delta, 2))
    assert biases.status[0].tolist() == ["separated_high", "ok"] and np.isnan(biases.finite_se[0, 0])


def decided(*meetings: tuple[int, int]):
    """The biases after meetings of two, the winner first, all sides different."""
    comparison = np.repeat(np.arange(len(meetings)), 2)
    sign, delta = np.tile([1, -1], len(meetings)), np.ones((len(comparison), 1))
    votes = comparison, sign, np.ravel(meetings), delta, np.max(meetings) + 1
    return fit.fit_conditional(Votes(*votes), min_informative=1)


@pytest.mark.parametrize("anchored", [None, np.arange(5) == 4])
def test_an_infinite_lean_is_in_the_component_of_those_whom_it_met(anchored):
    """0 wins against everybody, and the others win and lose."""
    meetings = np.array([(1, 2), (2, 1), (2, 3), (3, 2), (3, 4), (4, 3), (0, 1), (0, 2)])
    votes = np.repeat(np.arange(8), 2), np.tile([1, -1], 8), meetings.ravel(), np.ones((16, 1)), 5
    biases = fit.fit_conditional(Votes(*votes), anchored=anchored, min_informative=1)
    assert biases.status[0] == "separated_high"
    assert len(set(biases.component.ravel())) == 1


def test_groups_that_part_are_components_and_who_stands_between_two_is_not_estimated():
    """0 and 1 disagree both ways, and so do 2 and 3; whenever the groups meet, 0 or 1 wins."""
    within = [(0, 1)] * 3 + [(1, 0)] * 2 + [(2, 3)] * 4 + [(3, 2)] * 2
    biases = decided(*within, (0, 2), (1, 3), (0, 3), (1, 2))
    assert biases.status.ravel().tolist() == ["ok"] * 4
    component = biases.component.ravel()
    assert component[0] == component[1] != component[2] == component[3]
    expected = np.array([np.log(3 / 2), -np.log(3 / 2), np.log(2), -np.log(2)]) / 2
    np.testing.assert_allclose(biases.deviation.ravel(), expected, atol=1e-6)
    assert (biases.se < 2).all()
    # 1 loses to 0 and wins against 2, always; 0 and 2 meet others of their own kind
    biases = decided((0, 3), (3, 0), (2, 4), (4, 2), (0, 1), (1, 2), (3, 1), (1, 4))
    assert biases.status[1, 0] == "no_information"
    assert np.isfinite(biases.deviation[[0, 2, 3, 4], 0]).all()


@pytest.mark.parametrize(
    ("comparison", "won", "change", "explained"),
    [
        ([0, 0, 1, 1], [1, 0, 1, 0], [1.0, 0, 0, 0], [True, True, False, False]),
        ([0, 0, 1, 1], [1, 0, 1, 0], [1.0, 0, 0, 1.0], [False] * 4),
        ([0] * 4, [1, 1, 0, 0], [2.0, 1.0, 1.0, 0.0], [True, False, False, True]),
    ],
    ids=["recession", "a loser gains", "ties at the border remain"],
)
def test_votes_that_a_direction_explains(comparison, won, change, explained):
    _, blocks = sort_into_blocks(comparison)
    assert fit.find_explained_votes(np.array(change), np.array(won) > 0, blocks).tolist() == explained


def grouped_pool(n=400, m=30, q=2, seed=0, varying=0, groups=1):
    """Votes of annotators who judge beside others of their group only: (comparison, sign, annotator, delta, m).

    The first attribute varies between the votes on one comparison in the first ``varying`` groups.
    """
    rng = np.random.default_rng(seed)
    comparison = np.repeat(np.arange(n), 4)
    annotator = np.argsort(rng.random((n, m // groups)), axis=1)[:, :4] * groups
    annotator += np.arange(n)[:, None] % groups
    delta = rng.choice([-1.0, 0.0, 1.0], p=[0.25, 0.5, 0.25], size=(n, q))[comparison]
    free = comparison % groups < varying
    delta[free, 0] = rng.choice([-1.0, 1.0], size=free.sum())
    sign = np.where(rng.random(4 * n) < 1 / (1 + np.exp(-0.5 * delta[:, 0])), 1, -1)
    return comparison, sign, annotator.ravel(), delta, m


def both_ways(votes, anchored=None):
    """What the graph leads to expect with whether the information confirms it, and what the rank says."""
    given = fit.arrange_votes(Votes(*votes), anchored)
    status = np.where(given.saw_difference & ~given.anchored[:, None], "ok", "no_cross").astype(object)
    used = fit.remove_infinite_biases(given, status)
    active = status == "ok"
    at = KnownWins(used.blocks, used.sign).curvature(np.zeros(len(used.row)))
    expected, exact = (fit.find_identified_biases(used, active, by_rank) for by_rank in (False, True))
    information = Information(used.design(active), at)
    assert np.abs(information.times(exact.flat)).max(initial=0.0) < 1e-8
    return expected, fit.has_expected_rank(expected, information), exact


@pytest.mark.parametrize(
    ("options", "anchored"),
    [
        ({}, False),
        ({"groups": 3}, False),
        ({"varying": 1}, False),
        ({"varying": 1, "groups": 2, "n": 800}, False),
        ({}, True),
        ({"groups": 2, "n": 800}, True),
    ],
)
def test_the_graph_is_confirmed_and_says_what_the_rank_says(options, anchored):
    held = np.arange(30) < 2 if anchored else None
    expected, sure, exact = both_ways(grouped_pool(**options), held)
    assert sure
    np.testing.assert_array_equal(expected.absolute, exact.absolute)
    np.testing.assert_array_equal(expected.compared, exact.compared)
    n_groups = 0
    for j in range(2):
        relative = (expected.attribute == j) & ~exact.absolute
        groups = expected.group[relative], exact.group[relative]
        np.testing.assert_array_equal(*(each[:, None] == each for each in groups))
        n_groups += len(set(exact.group[relative]))
    # a level that is known of a part alone is left open, and its direction is no flat one
    assert exact.flat.shape[1] == n_groups - (len({"varying", "groups"} & set(options)) == 2)
    variance = np.random.default_rng(0).random(len(exact.group))
    whole = exact.centered(np.eye(len(variance)))
    np.testing.assert_allclose(exact.centered_variance(variance), whole**2 @ variance)


def test_groups_that_meet_where_attributes_move_together_are_not_confirmed():
    """Each attribute's graph joins the groups, but only the sum of the two biases is compared between them."""
    comparison, sign, annotator, delta, m = grouped_pool(groups=2, n=600)
    rng = np.random.default_rng(3)
    both = 2 * rng.integers(m // 2, size=(60, 2)) + [0, 1]
    votes = (
        np.append(comparison, np.repeat(np.arange(600, 660), 2)),
        np.append(sign, np.tile([1, -1], 60)),
        np.append(annotator, both),
        np.append(delta, np.ones((120, 2)), axis=0),
        m,
    )
    expected, sure, exact = both_ways(votes)
    assert not sure
    for known, n_groups in ((expected, 1), (exact, 2)):
        assert [len(set(known.group[known.attribute == j])) for j in range(2)] == [n_groups] * 2


def votes_twice():
    """Everybody votes twice on each of their comparisons."""
    rng = np.random.default_rng(4)
    annotator = np.repeat(rng.integers(40, size=(3000, 2)), 2)
    sign = rng.choice([-1, 1], size=12_000)
    return np.repeat(np.arange(3000), 4), sign, annotator, np.ones((12_000, 1)), 40


@pytest.mark.parametrize(("votes", "error"), [(grouped_pool(n=1500, m=40), 0.05), (votes_twice(), 0.1)])
def test_a_large_pool_is_fitted_as_a_small_one(votes, error, monkeypatch):
    small = fit.fit_conditional(Votes(*votes))
    for module in (fit, newton):
        monkeypatch.setattr(module, "LARGEST_DENSE", 10)
    monkeypatch.setattr(newton, "LARGEST_FACTORED", 10)
    large = fit.fit_conditional(Votes(*votes))
    assert large.covariance is None
    np.testing.assert_allclose(large.deviation, small.deviation, atol=1e-7)
    np.testing.assert_allclose(large.se, small.se, rtol=error)
    np.testing.assert_array_equal(large.status, small.status)
    np.testing.assert_array_equal(large.component, small.component)


def tastes_by_prompt(seed, m=12):
    """Votes of people whose bias differs from prompt to prompt, and the prompts."""
    even = Pool(480, m, taste=0.8, per_prompt=40, cross_share=1.0, spread=0.0, mean=0.0)
    votes = draw_votes(even, np.random.default_rng(seed))
    return *votes.arrays, votes.comparison // 40


def test_intervals_clustered_by_prompt_hold_tastes_by_prompt(monkeypatch):
    held = []
    for seed in range(25):
        *votes, prompt = tastes_by_prompt(seed)
        biases, plain = (
            fit.fit_conditional(Votes(*votes), clusters=prompt),
            fit.fit_conditional(Votes(*votes)),
        )
        np.testing.assert_array_equal(biases.deviation, plain.deviation)
        known = biases.status == "ok"
        held.append([((x.ci_low < 0) & (x.ci_high > 0))[known].mean() for x in (biases, plain)])
    clustered, plain = np.mean(held, axis=0)
    assert 0.93 < clustered < 0.97 and plain < 0.9
    monkeypatch.setattr(fit, "LARGEST_DENSE", 5)
    large = fit.fit_conditional(Votes(*votes), clusters=prompt)
    assert large.covariance is None
    np.testing.assert_allclose(large.df, biases.df)
    assert np.median(np.abs(np.log(large.se / biases.se))) < 0.1


def test_each_lean_has_the_errors_of_its_own_clusters_and_one_prompt_gives_none():
    random = np.random.default_rng(0)
    bias, cluster = random.integers(3, size=300), random.integers(9, size=300)
    cluster[bias == 2] = 4
    score, information = random.standard_normal(300), random.uniform(0.1, 0.3, 300)
    inflation, df = fit.clustered_variance_ratios(bias, cluster, score, information, 3)
    for k in range(2):
        mine = bias == k
        sums = [np.bincount(cluster[mine], x[mine], 9) for x in (score, information)]
        alone = cluster_errors(sums[0][:, None], sums[1][:, None, None])
        variance = inflation[k] / information[mine].sum()
        assert (np.sqrt(variance), df[k]) == pytest.approx((alone.se[0], alone.df[0]))
    assert np.isnan(df[2])
    *votes, prompt = tastes_by_prompt(0, m=6)
    prompt[votes[2] == 0] = 0
    biases = fit.fit_conditional(Votes(*votes), clusters=prompt)
    assert np.isfinite(biases.deviation[0]).all()
    assert np.isnan([biases.se[0], biases.finite_deviation[0]]).all()


@pytest.mark.parametrize(("n_bridges", "are_apart"), [(1, True), (3, True), (200, False)])
@pytest.mark.parametrize("by_steps", [False, True])
def test_teams_are_found_by_what_joins_them(n_bridges, are_apart, by_steps, monkeypatch):
    if by_steps:
        monkeypatch.setattr(fit, "LARGEST_FACTORED", 1)
    for seed in range(3):
        two = Pool(600 + n_bridges, 12, mean=0.0, spread=0.0, teams=1.0, n_joint=n_bridges)
        votes = draw_votes(two, np.random.default_rng(seed))
        teams = fit.find_weakly_joined_teams(votes.arrays)[:, 0]
        assert len(set(teams[:6])) == len(set(teams[6:])) == 1
        assert (teams[0] != teams[6]) == are_apart


@pytest.mark.parametrize(("m", "n", "each"), [(12, 300, 4), (30, 300, 2), (100, 400, 2), (200, 2000, 3)])
def test_random_assignment_makes_one_team(m, n, each):
    for seed in range(10):
        votes, _ = pool(n=n, m=m, votes=each, seed=seed)
        assert not fit.find_weakly_joined_teams(Votes(*votes)).any()
