"""The logged metrics of a step, by hand."""

from __future__ import annotations

import pytest
import torch

from badpo.objective.bias import BiasTerm
from badpo.training.metrics import StepSums, publishable


def judgments() -> dict[str, torch.Tensor]:
    """Four judgments on two attributes; the second attribute differs in the first two by 2 and 0.5."""
    return {
        "margins": torch.tensor([2.0, -1.0, 1.0, 0.0]),
        "bias_logits": torch.tensor([-3.0, 2.0, 0.0, 1.0]),
        "sign": torch.tensor([1.0, -1.0, -1.0, 1.0]),
        "delta": torch.tensor([[1.0, 2.0], [0.0, 0.5], [-1.0, 0.0], [0.0, 0.0]]),
        "weight": torch.tensor([1.0, 1.0, 3.0, 0.0]),
        "losses": torch.tensor([0.25, 0.5, 1.0, 9.0]),
    }


def test_metrics_by_hand():
    sums = StepSums(["length", "tone"], [0.0, 1.0])
    sums.add(**judgments())
    # s u is 2, 1, -1, 0: right, right, wrong, and a margin of 0 decides nothing
    # s (u + b) is -1, -1, -1, 1
    assert sums.metrics() == {
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
    assert sums.n_judgments == 4


def test_sums_of_parts_are_the_sum():
    whole, parts = StepSums(["length", "tone"], [0.0, 1.0]), StepSums(["length", "tone"], [0.0, 1.0])
    whole.add(**judgments())
    for part in (slice(0, 1), slice(1, 1), slice(1, 4)):
        parts.add(**{name: values[part] for name, values in judgments().items()})
    assert torch.equal(whole.vector, parts.vector)


def test_a_ratio_over_nothing_is_left_out():
    assert StepSums(["length"], [0.0]).metrics() == {}
    sums = StepSums(["length"], [0.0])
    sums.add(
        **{name: values[1:2] for name, values in judgments().items() if name != "delta"},
        delta=torch.zeros(1, 1),
    )
    assert "rewards/accuracies_same/length" in sums.metrics()
    assert not {"rewards/accuracies_cross/length", "rewards/gap/length"} & set(sums.metrics())


def test_a_difference_of_the_threshold_is_within_it():
    # 0.3 is more than 0.3 once it was rounded to 32 bits and is compared in 64
    sums = StepSums(["tone"], [0.3])
    one = {name: values[:1] for name, values in judgments().items()}
    sums.add(**(one | {"delta": torch.tensor([[0.3]])}))
    assert "rewards/accuracies_same/tone" in sums.metrics()


def test_gradients_do_not_enter_the_sums():
    sums = StepSums(["length", "tone"], [0.0, 1.0])
    sums.add(**(judgments() | {"losses": torch.ones(4, requires_grad=True)}))
    assert not sums.vector.requires_grad


@pytest.mark.parametrize(("n_learned", "told"), [(4, False), (5, True)])
def test_a_mean_of_theta_over_fewer_than_five_learned_annotators_is_not_published(n_learned, told):
    people = [f"ann_{i}" for i in range(n_learned + 3)]
    mask = torch.tensor([0] * 3 + [1] * n_learned)
    bias = BiasTerm(["length"], people, ["mean"], mask=mask)
    logged = {"bias/theta/length": 0.5, "groups/weight_max": 2.0, "loss": 1.0}
    assert set(publishable(logged, bias)) == (set(logged) if told else {"loss"})
