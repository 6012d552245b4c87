import pytest
import torch

from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError
from badpo.objective.objectives import OBJECTIVES, GroupWeights, Step, VoteWeights, make_objective
from badpo.theory.likelihood import judgment_loss
from tests import tiny


def batch(n: int, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "sign": torch.randint(0, 2, (n,), generator=generator).float() * 2 - 1,
        "annotator": torch.randint(0, 5, (n,), generator=generator),
        "delta": torch.randint(-1, 2, (n, 2), generator=generator).float(),
        "weight": torch.rand(n, generator=generator),
        "scoring": {},
    }


def test_a_step_is_its_micro_batches_in_order():
    batches = [batch(3, 0), batch(0, 1), batch(2, 2)]
    step = Step.of(batches)
    assert len(step) == 5
    assert torch.equal(step.annotator, torch.cat([batches[0]["annotator"], batches[2]["annotator"]]))
    assert torch.equal(step.vote_weight[3:], batches[2]["weight"])
    assert step.delta.shape == (5, 2)


def test_unit_weights_give_the_mean_over_the_step():
    margins = torch.randn(8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows = batch(8, 3) | {"weight": torch.ones(8)}
    weights, normaliser = VoteWeights()(Step.of([rows]))
    losses = judgment_loss(margins, torch.zeros(8), rows["sign"])
    assert torch.equal((weights * losses).sum() / normaliser, losses.mean())


def test_the_loss_does_not_depend_on_the_micro_batches():
    rows = batch(32, 4)
    margins = torch.randn(32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    losses = judgment_loss(margins, torch.zeros(32), rows["sign"])
    names = ("sign", "annotator", "delta", "weight")
    values = []
    for sizes in ([32], [5, 0, 27], [8, 8, 8, 8]):
        parts = [
            dict(zip(names, part, strict=True))
            for part in zip(*(rows[n].split(sizes) for n in names), strict=True)
        ]
        weights, normaliser = VoteWeights()(Step.of(parts))
        pieces = [(w * x).sum() for w, x in zip(weights.split(sizes), losses.split(sizes), strict=True)]
        values.append((sum(pieces) / normaliser).item())
    assert values == pytest.approx([values[0]] * 3, rel=1e-15)


def test_a_vote_of_weight_two_counts_as_two():
    rows = batch(3, 5) | {"weight": torch.tensor([2.0, 1.0, 1.0])}
    twice = {name: value[[0, 0, 1, 2]] for name, value in rows.items() if name != "scoring"} | {
        "weight": torch.ones(4)
    }
    losses = torch.tensor([0.3, 0.7, 1.1], dtype=torch.float64)
    weights, normaliser = VoteWeights()(Step.of([rows]))
    other_weights, other_normaliser = VoteWeights()(Step.of([twice]))
    assert (weights * losses).sum() / normaliser == (
        other_weights * losses[[0, 0, 1, 2]]
    ).sum() / other_normaliser


def test_weights_and_normaliser_are_float64():
    weights, normaliser = VoteWeights()(Step.of([batch(4, 6)]))
    assert weights.dtype == normaliser.dtype == torch.float64


def test_an_empty_share_adds_nothing():
    weights, normaliser = VoteWeights()(Step.of([batch(0, 0)]))
    assert len(weights) == 0
    assert normaliser == 0


def test_the_state_is_empty_and_anothers_state_is_refused():
    objective = VoteWeights()
    objective.load_state_dict(objective.state_dict())
    with pytest.raises(ValueError, match="group_weights"):
        objective.load_state_dict({"group_weights": torch.ones(3)})


SETTINGS = {
    "discounted_tail": {"alpha": 0.5},
    "group_weights": {"groups": "annotator", "eta": 0.5, "chunk": 2},
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_each_objective_is_made_by_its_name(name):
    votes = Judgments.read(tiny.votes())
    made = make_objective({"name": name, **SETTINGS.get(name, {})}, votes, seed=3, beta=0.2)
    public = {key: value for key, value in vars(made).items() if not key.startswith("_")}
    expected = {
        "votes": {},
        "sampled_tokens": {"seed": 3},
        "discounted_tail": {"alpha": 0.5},
        "identity_preference": {"beta": 0.2},
        "group_weights": {"eta": 0.5, "chunk": 2, "n_groups": 5},
    }
    assert public == expected[name]


def test_groups_are_classes_where_everyone_has_one():
    frame = tiny.votes()
    votes = Judgments.read(frame)
    made = make_objective({"name": "group_weights", "groups": "class", "eta": 1.0}, votes, 0, 0.1)
    assert isinstance(made, GroupWeights) and made.n_groups == frame["annotator_class"].nunique()
    lacking = Judgments.read(frame.drop(columns="annotator_class"))
    with pytest.raises(ConfigError, match="5 of 5 annotators have no class .*groups: annotator"):
        make_objective({"name": "group_weights", "groups": "class", "eta": 1.0}, lacking, 0, 0.1)


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ({"name": "group_weight"}, 'Did you mean "group_weights"'),
        ({"name": "em_dpo"}, "procedures of the paper, in badpo_paper"),
        ({"name": "votes", "alpha": 1}, "objective votes: .*alpha"),
        ({"name": "discounted_tail", "alpha": 2}, "objective discounted_tail: alpha is a share"),
        ({"name": "group_weights", "groups": "all", "eta": 1}, 'groups is "all"; choose class or annotator'),
        ({"name": "group_weights", "groups": "annotator", "seed": 1}, "seed"),
    ],
)
def test_what_is_no_objective_is_told(named, told):
    with pytest.raises(ConfigError, match=told):
        make_objective(named, Judgments.read(tiny.votes()), 0, 0.1)
