"""Metrics by hand, sums over processes, and errors for values that are not finite."""

import math
import types
from dataclasses import replace

import numpy as np
import pytest
import torch

from badpo.attributes import Length, Markdown
from badpo.data.judgments import Judgments
from badpo.objective.bias import BiasTerm
from badpo.training.metrics import (
    NotFiniteError,
    Tally,
    report_unmoved_policy,
    require_finite_reference,
    select_publishable,
)
from tests import tiny
from tests.runs.recipes import log_lines
from tests.training.groups import Fault
from tests.training.tiny_runs import judgments, trainer

# two processes with the same values
TWICE = types.SimpleNamespace(reduce=lambda parts, reduction: [2 * part for part in parts])
# Four judgments on two attributes; the second attribute differs by 2 and 0.5 in the first two judgments.
MARGINS, BIAS_LOGITS = torch.tensor([2.0, -1.0, 1.0, 0.0]), torch.tensor([-3.0, 2.0, 0.0, 1.0])
LOSSES = torch.tensor([0.25, 0.5, 1.0, 9.0])
INPUTS = {
    "sign": torch.tensor([1.0, -1.0, -1.0, 1.0]),
    "delta": torch.tensor([[1.0, 2.0], [0.0, 0.5], [-1.0, 0.0], [0.0, 0.0]]),
    "weight": torch.tensor([1.0, 1.0, 3.0, 0.0]),
    "vote_index": torch.arange(4),
}


def tally(*parts: slice, threshold: float = 1.0, delta=INPUTS["delta"]) -> Tally:
    """Add parts of the four judgments to a tally."""
    data = Judgments.read(tiny.votes(), attributes=[Length(ratio=1.5), Markdown()])
    attributes = (data.attributes[0], types.SimpleNamespace(name="tone", threshold=threshold))
    found = Tally(replace(data, attributes=attributes), torch.device("cpu"))
    for part in parts:
        inputs = {name: values[part] for name, values in (INPUTS | {"delta": delta}).items()}
        found.add(inputs, MARGINS[part], BIAS_LOGITS[part], LOSSES[part].requires_grad_())
    return found


def test_metrics_by_hand_and_metrics_without_data_are_left_out():
    found = tally(slice(None))
    # s u is 2, 1, -1 and 0; a margin of 0 does not count as correct
    # s (u + b) is -1, -1, -1 and 1
    assert found.metrics() == {
        "loss": (0.25 + 0.5 + 3 * 1.0) / 5,
        "rewards/margins": (2 + 1 - 1 + 0) / 4,
        "rewards/accuracies": 2 / 4,
        "votes/accuracy": 1 / 4,
        "rewards/accuracies_same/length": 1 / 2,
        "rewards/accuracies_cross/length": 1 / 2,
        "rewards/gap/length": 0.0,
        "rewards/accuracies_same/tone": 1 / 3,
        "rewards/accuracies_cross/tone": 1.0,
        "rewards/gap/tone": pytest.approx(2 / 3),
    }
    assert found.n_judgments == 4 and not found.sums.requires_grad
    assert torch.equal(found.sums, tally(slice(0, 1), slice(1, 1), slice(1, 4)).sums)
    assert tally().metrics() == {}
    found = tally(slice(1, 2)).metrics()
    assert "rewards/accuracies_same/length" in found
    assert not {"rewards/accuracies_cross/length", "rewards/gap/length"} & set(found)
    # a difference equal to the threshold counts as the same group, although 0.3 is larger in float32 than in float64
    found = tally(slice(0, 1), threshold=0.3, delta=torch.full((4, 2), 0.3)).metrics()
    assert "rewards/accuracies_same/tone" in found


def test_a_step_adds_up_each_gradient_and_sum():
    found = tally(slice(0, 3))
    theta = [torch.nn.Parameter(torch.zeros(2, 1)), torch.nn.Parameter(torch.zeros(1))]
    theta[0].grad = torch.tensor([[1.0], [2.0]])
    policy = torch.nn.Parameter(torch.zeros(2))
    policy.grad = torch.ones(2)
    found.add_up_step(TWICE, "step 1", [policy], theta)
    assert theta[0].grad.tolist() == [[2.0], [4.0]]
    assert theta[1].grad.tolist() == [0.0]  # a part of theta that no vote touched
    assert theta[0].grad.dtype == theta[0].dtype
    assert policy.grad.tolist() == [1.0, 1.0]  # DDP has done it
    assert found.n_judgments == 6
    assert found.metrics()["loss"] == (0.25 + 0.5 + 3 * 1.0) / 5
    evaluated = tally(slice(0, 2))
    assert evaluated.add_up(TWICE, "evaluation at step 0") == []
    assert evaluated.n_judgments == 4


@pytest.mark.parametrize(("n_learned", "told"), [(4, False), (5, True)])
def test_a_mean_of_theta_over_fewer_than_five_learned_annotators_is_not_published(n_learned, told):
    people = [f"ann_{i}" for i in range(n_learned + 3)]
    mask = torch.tensor([0] * 3 + [1] * n_learned)
    bias = BiasTerm(["length"], people, ["mean"], mask=mask)
    logged = {"bias/theta/length": 0.5, "groups/weight_max": 2.0, "loss": 1.0}
    assert set(select_publishable(logged, bias, [])) == (set(logged) if told else {"loss"})
    assert "bias/theta/length" not in select_publishable(logged, bias, ["length"])


# -- what is not finite ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["margin", "gradient", "theta"])
def test_a_value_that_is_not_finite_stops_the_run_with_the_name_of_its_comparison(tmp_path, kind):
    run = trainer(tmp_path, save_strategy="steps", save_steps=1)
    run.add_callback(Fault(run, 3, kind))
    with pytest.raises(NotFiniteError, match=r"^step 3: .*comparisons? .*\bc\d+") as caught:
        run.train()
    assert len(log_lines(tmp_path)) == 2
    sealed = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert sealed == {"checkpoint-1", "checkpoint-2"}
    if kind == "theta":
        assert "annotator ann_" in str(caught.value)
    assert "Lower the learning rate" in str(caught.value)


def test_the_error_names_the_comparison_the_row_and_the_annotator():
    data = judgments(per_comparison=2)
    found, wrong = Tally(data, torch.device("cpu")), torch.tensor([0.0, math.inf, 0.0])
    delta = torch.zeros(3, 1)
    # in a step with two micro-batches, the margin of vote 5 (comparison c2) and the bias logit of vote 2 (c1) are NaN
    for votes, broken in ([4, 5, 6], (wrong, 0 * delta[:, 0])), ([3, 2, 1], (0 * delta[:, 0], wrong)):
        inputs = {"vote_index": torch.tensor(votes), "delta": delta}
        inputs |= dict.fromkeys(("sign", "weight"), torch.ones(3))
        found.add(inputs, *broken, torch.zeros(3))
    with pytest.raises(NotFiniteError) as caught:
        found.add_up(TWICE, "step 2")
    who = data.annotators["pseudonym"][data.votes["annotator"][2]]
    assert str(caught.value).startswith(
        "step 2: the margin of comparison c2 (row 6 of the table) is inf; "
        f"the bias logit of comparison c1 (row 3 of the table, annotator {who}) is inf. Lower"
    )


@pytest.mark.parametrize(
    ("n_steps", "margins", "told"),
    [
        (1000, [0.0, 0.002], "--learning_rate 0.0003,"),
        (1000, [0.002, 0.01], "--learning_rate 5e-05,"),
        (1000, [0.3, 0.01], None),
        (1000, [0.0, -0.3], None),
        (1000, [0.01, 0.03], None),
        (29, [0.0], None),
        (1000, [], None),
    ],
)
def test_a_policy_that_hardly_changed_is_reported_with_a_learning_rate(n_steps, margins, told):
    logs = [{"rewards/margins": margin} for margin in margins] + [{"train_runtime": 1.0}]
    problems = report_unmoved_policy(logs, n_steps, 1e-6)
    assert [told in problem.remedy for problem in problems] == [True] * (told is not None)


def test_broken_weights_stop_the_reference_and_an_evaluation(tmp_path):
    run = trainer(tmp_path, eval_dataset=judgments())
    again = trainer(tmp_path / "again", model=run.model)
    run.compute_references()
    next(run.model.parameters()).detach().fill_(math.nan)
    with pytest.raises(NotFiniteError, match="^evaluation at step 0: .*c.* is nan; .* comparisons more"):
        run.evaluate()
    with pytest.raises(NotFiniteError, match="^the reference gives 24 comparisons of 24 a log-prob"):
        again.train()
    # a single value is sufficient
    values = [np.zeros(2, dtype=np.float32)] * 48
    require_finite_reference(values, judgments())
    values[11] = np.array([0.0, np.nan])
    with pytest.raises(NotFiniteError, match=r"1 comparison of 24 .*\(first: c5\)"):
        require_finite_reference(values, judgments())
