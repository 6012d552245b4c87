"""Objectives from their own definitions, and as a recipe names them."""

import numpy as np
import pytest
import torch

from badpo.attributes import Length
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError
from badpo.objective.objectives import (
    DiscountedTail,
    GroupWeights,
    IdentityPreference,
    PlaceboWeights,
    SampledTokens,
    Step,
    VoteWeights,
)
from badpo.objective.registry import OBJECTIVES, make_objective
from badpo.objective.theta import WINDOW, JudgedVotes
from tests import tiny


def test_the_loss_does_not_depend_on_the_micro_batches_and_is_the_weighted_mean():
    draw = torch.Generator().manual_seed(4)
    rows = {
        "sign": torch.randint(0, 2, (32,), generator=draw).float() * 2 - 1,
        "annotator": torch.randint(0, 5, (32,), generator=draw),
        "delta": torch.randint(-1, 2, (32, 2), generator=draw).float(),
        "weight": torch.rand(32, generator=draw),
    }
    losses = torch.rand(32, generator=draw, dtype=torch.float64)
    expected = np.average(losses, weights=rows["weight"].double())
    for sizes in ([32], [5, 0, 27], [8, 8, 8, 8]):
        columns = zip(*(column.split(sizes) for column in rows.values()), strict=True)
        step = Step.of([dict(zip(rows, part, strict=True)) for part in columns])
        weights, normaliser = VoteWeights()(step)
        assert weights.dtype == normaliser.dtype == torch.float64 and len(step) == 32
        assert float((weights * losses).sum() / normaliser) == pytest.approx(expected, rel=1e-15)
    # a share of the step without judgments adds nothing
    assert VoteWeights()(Step.of([{name: column[:0] for name, column in rows.items()}]))[1] == 0


@pytest.mark.parametrize(
    ("objective", "state"),
    [
        (VoteWeights(), {"group_weights": torch.ones(3)}),
        (GroupWeights([0, 1], 0.5), {}),
        (GroupWeights([0, 1], 0.5), {"group_weights": torch.ones(3)}),
        (GroupWeights([0, 1], 0.5), {"other": torch.ones(2)}),
    ],
)
def test_the_state_of_another_objective_is_refused(objective, state):
    objective.load_state_dict(objective.state_dict())
    with pytest.raises(ValueError, match="resume with the objective of the checkpoint"):
        objective.load_state_dict(state)


WEIGHTS = {"name": "group_weights", "eta": 0.5}
MADE = [
    ({"name": "votes"}, {}),
    ({"name": "sampled_tokens"}, {"seed": 3}),
    ({"name": "discounted_tail", "alpha": 0.5}, {"alpha": 0.5}),
    ({"name": "placebo"}, {}),
    ({"name": "identity_preference"}, {"beta": 0.2}),
    (WEIGHTS | {"groups": "annotator"}, {"eta": 0.5, "n_groups": 5}),
    (WEIGHTS | {"groups": "class"}, {"eta": 0.5, "n_groups": 2}),
]


def lengths(table) -> Judgments:
    return Judgments.read(table, attributes=[Length(ratio=1.5)])


def draw_votes_of_people(bias: float, n: int = 24_000) -> tuple[Step, torch.Tensor]:
    """Votes with a bias beside quality, and the quality of each comparison as a margin."""
    rng = np.random.default_rng(0)
    delta, quality = rng.choice([-1.0, 0.0, 1.0], (n, 1)), 1.5 * rng.standard_normal(n)
    wins = rng.random(n) < 1 / (1 + np.exp(-quality - bias * delta[:, 0]))
    sign = torch.from_numpy(np.where(wins, 1.0, -1.0))
    step = Step(sign, torch.zeros(n, dtype=torch.long), torch.from_numpy(delta), torch.ones(n))
    return step, torch.from_numpy(quality)


def slope_along_attribute(objective: PlaceboWeights, step: Step, margin: torch.Tensor) -> float:
    """Gradient of the weighted DPO loss along the attribute, for each vote on sides that differ."""
    weights, _ = objective(step)
    is_cross = step.delta[:, 0] != 0
    gradient = weights * step.sign * step.delta[:, 0] * torch.sigmoid(-step.sign * margin)
    return float(gradient[is_cross].sum() / weights[is_cross].sum())


@pytest.mark.parametrize("bias", [0.0, 1.2])
def test_the_placebos_weights_cancel_the_bias_before_and_after_the_policy_learns_quality(bias):
    step, quality = draw_votes_of_people(bias)
    objective = PlaceboWeights(step)
    start = objective.state_dict()["placebo_theta"].item()
    assert abs(slope_along_attribute(objective, step, 0 * quality)) < 1e-3
    tilt = 0.7 * step.delta[:, 0]  # a tilt of the policy must not change theta
    parts = torch.arange(len(quality)).split(WINDOW)
    for rows in parts:
        weights, _ = objective(select_rows(step, rows))
        own = (step.annotator[rows], step.sign[rows], step.delta[rows], weights)
        objective.learn(JudgedVotes(*own, (quality + tilt)[rows], 0 * quality[rows]))
    end = objective.state_dict()["placebo_theta"].item()
    assert abs(end - bias) < 0.25 and (abs(start) < bias - 0.25 or not bias)
    assert abs(slope_along_attribute(objective, step, quality)) < 0.03
    resumed = PlaceboWeights(step)
    resumed.load_state_dict(objective.state_dict())
    assert torch.equal(resumed(step)[0], objective(step)[0])


def select_rows(step: Step, rows: torch.Tensor) -> Step:
    return Step(*(getattr(step, name)[rows] for name in Step.__annotations__))


def test_the_placebo_needs_an_attribute():
    with pytest.raises(ConfigError, match="placebo: it needs an attribute"):
        make_objective({"name": "placebo"}, Judgments.read(tiny.votes()), 0, 0.1)


def test_each_objective_is_made_by_its_name():
    assert list(dict.fromkeys(named["name"] for named, _ in MADE)) == list(OBJECTIVES)
    for named, expected in MADE:
        made = make_objective(named, lengths(tiny.votes()), seed=3, beta=0.2)
        assert {key: value for key, value in vars(made).items() if key[0] != "_"} == expected
    without = Judgments.read(tiny.votes().drop(columns="annotator_class"))
    with pytest.raises(ConfigError, match="5 of 5 have none .*groups: annotator"):
        make_objective({"name": "group_weights", "groups": "class", "eta": 1.0}, without, 0, 0.1)


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ({"name": "group_weight"}, 'Did you mean "group_weights"'),
        ({"name": "em_dpo"}, "procedures of the paper"),
        ({"name": "votes", "alpha": 1}, "objective votes: .*alpha"),
        *(
            (
                {"name": "discounted_tail", "alpha": x},
                "objective discounted_tail: alpha is .*between 0 and 1",
            )
            for x in (-0.1, 1.1, float("nan"))
        ),
        ({"name": "group_weights", "groups": "all", "eta": 1}, 'is "all"; choose class or annotator'),
        ({"name": "group_weights", "groups": "annotator", "seed": 1}, "seed"),
    ],
)
def test_what_is_no_objective_is_told(named, told):
    with pytest.raises(ConfigError, match=told):
        make_objective(named, Judgments.read(tiny.votes()), 0, 0.1)


def step(annotator, weight=None) -> Step:
    ones, people = torch.ones(len(annotator)), torch.tensor(annotator, dtype=torch.long)
    weights = ones if weight is None else torch.tensor(weight)
    return Step(ones, annotator=people, delta=0 * ones[:, None], vote_weight=weights)


def taught(objective: GroupWeights, annotator, losses, times=1) -> GroupWeights:
    for _ in range(times):
        objective.learn(judged(annotator, losses))
    return objective


def judged(annotator, losses) -> JudgedVotes:
    one = step(annotator)
    losses = torch.as_tensor(losses, dtype=torch.float64)
    return JudgedVotes(one.annotator, one.sign, one.delta, one.vote_weight, 0 * losses, losses)


def weight_of(objective: GroupWeights) -> torch.Tensor:
    return objective.state_dict()["group_weights"]


# annotators, their losses, and the mean loss of each group: 0 where it has no judgment
STEPS = [
    ([0, 1, 2, 3], [0.2, 0.4, 1.5, 0.6], [0.3, 1.5, 0.6]),
    ([0, 1, 1, 1, 2], [0.1, 0.2, 0.5, 0.4, 0.9], [0.3, 0.9, 0.0]),
    ([3], [2.0], [0.0, 0.0, 2.0]),
]


@pytest.mark.parametrize("eta", [0.5, -0.5])
def test_weights_follow_the_mean_losses_of_their_groups(eta):
    objective, expected = GroupWeights([0, 0, 1, 2], eta), np.ones(3)
    for annotator, losses, means in STEPS:
        taught(objective, annotator, losses)
        expected *= np.exp(eta * np.array(means))
        expected /= expected.mean()
        np.testing.assert_allclose(weight_of(objective), expected, rtol=1e-6)
    weights, normaliser = objective(step([0, 2, 3], [1.0, 2.0, 0.5]))
    weighted = expected * [1.0, 2.0, 0.5]
    np.testing.assert_allclose(weights / normaliser, weighted / weighted.sum(), rtol=1e-6)
    # a weight of one annotator is told with two digits
    told = {"sd": round(expected.std(), 2), "max": round(expected.max(), 2)}
    assert objective.metrics() == {f"groups/weight_{name}": value for name, value in told.items()}


def test_shares_of_a_step_add_up_to_the_step_and_no_weight_falls_to_nothing():
    annotator = [0, 1, 1, 0, 2]
    whole, parts = (taught(GroupWeights([0, 1, 1], 0.5), [0, 1], [0.2, 1.5]) for _ in range(2))
    weights, normaliser = whole(step(annotator))
    pieces = [parts(step(annotator[part])) for part in (slice(2), slice(0), slice(2, None))]
    assert torch.equal(torch.cat([w for w, _ in pieces]), weights)
    assert sum(n for _, n in pieces) == pytest.approx(float(normaliser))
    weight = weight_of(taught(GroupWeights([0, 1], 0.5), [0, 1], [0.0, 5.0], times=40))
    # 1e-4 before the weights are divided by their mean, which the other group then makes about 12
    assert 5e-6 < weight.min() < 1e-4


def sampled(lengths, places, step=0, seed=0):
    return SampledTokens(seed).token_weights(np.array(lengths), np.array(places), step)


def test_sampo_counts_as_many_tokens_of_either_side_drawn_anew_at_every_step():
    lengths = [[3, 7], [5, 5], [9, 2]]
    for (n_a, n_b), (a, b) in zip(lengths, sampled(lengths, [4, 0, 11], 5, seed=3), strict=True):
        assert (len(a), len(b)) == (n_a, n_b)
        assert a.sum() == b.sum() == min(n_a, n_b)
        assert set(np.concatenate([a, b])) <= {0.0, 1.0}

    def drawn(place=7, **of):
        return sampled([[4, 200]], [place], **of)[0][1].tolist()

    assert drawn() == drawn()
    assert drawn() not in (drawn(step=1), drawn(seed=1), drawn(place=8))
    # every token alike: 2 of 8 are 500 times each, with a standard error of 19
    times = sum(sampled([[2, 8]], [1], step)[0][1] for step in range(2000))
    assert np.abs(times - 500).max() < 80


@pytest.mark.parametrize(
    ("objective", "a", "b"),
    [
        (DiscountedTail(1.0), [1, 1, 1], [1, 1, 1, 1, 1]),
        (DiscountedTail(0.3), [1, 1, 1], [1, 1, 1, 0.3, 0.3]),
        (DiscountedTail(0.0), [1, 1, 1], [1, 1, 1, 0, 0]),
        (IdentityPreference(0.1), [1 / 3] * 3, [0.2] * 5),
    ],
)
def test_what_a_token_counts_beside_the_other_response(objective, a, b):
    both, reverse = objective.token_weights(np.array([[3, 5], [5, 3]]), np.array([0, 1]), 0)
    assert [side.tolist() for side in both] == [a, b]
    assert [side.tolist() for side in reverse] == [b, a]


def test_ipo_is_the_squared_distance_from_its_target_of_the_log_ratio_and_the_bias():
    beta, h, bias = 0.2, torch.tensor([0.7, -0.4, 0.1]).double(), torch.tensor([0.0, 0.3, -0.5]).double()
    sign = torch.tensor([1.0, -1.0, 1.0])
    losses = IdentityPreference(beta).losses(beta * h, bias, sign)
    torch.testing.assert_close(losses, (sign * (h + bias / beta) - 1 / (2 * beta)) ** 2)
