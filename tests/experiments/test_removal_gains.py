"""The rule that says which arm removes more at no cost, from readouts that were written by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from badpo.theory.summaries import t_interval
from badpo_paper.patterns import gains, recommendation, starts_at_the_audit, verdict
from badpo_paper.suites import SUITES, Condition, Row
from badpo_paper.tables import Found

SEEDS = (42, 123, 456)
SWAP = Row("Pooled from the swap pairs' level", Condition("pooled_swap", "pooled", start="swap"))
SHARED_SWAP = Row("Shared mean from it", Condition("shared_mean_swap", "shared_mean", start="swap"))


def write(
    folder: Path, name: str, distance: float, kl: float = 0.2, same: float = 0.6, votes: float = 0.7
) -> None:
    """A run at a distance from a reference of one half, in log-odds, on both attributes."""
    from scipy.special import expit

    rate = {"rate": float(expit(distance))}
    accuracy = {"all": {"accuracy": votes}}
    readouts = {
        "rates": {"woman": rate, "black": rate},
        "kl": {"per_token": kl},
        "heldout": {"any": {"same": same}},
        "votes": {"woman": accuracy, "black": accuracy},
    }
    (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / name / "readouts.json").write_text(json.dumps(readouts), encoding="utf-8")


@pytest.fixture
def founds(tmp_path) -> list[Found]:
    """Pooled 0.3 from the reference, its start at the swap pairs' level 0.1 below or above it; three data seeds."""
    for data_seed in range(3):
        folder = tmp_path / f"d{data_seed}"
        write(folder, "reference", 0.0)
        for i, seed in enumerate(SEEDS):
            jitter = (i - data_seed) / 100
            write(folder, f"pooled-s{seed}", 0.3 + jitter)
            write(folder, f"shared_mean-s{seed}", 0.25 + jitter, votes=0.8)
            write(folder, f"pooled_swap-s{seed}", (-0.1 if i else 0.1) + jitter / 2)
    return [Found(tmp_path / f"d{data_seed}", SEEDS) for data_seed in range(3)]


def test_distances_count_without_their_sign_and_pair_by_pair(founds):
    (training, data, *_) = gains([SWAP], founds)
    assert (training.against, training.over, data.over) == ("pooled", "training seeds", "data seeds")
    own = [abs(0.1), abs(-0.1 + 0.005), abs(-0.1 + 0.01)]
    expected = t_interval([x - y for x, y in zip(own, [0.3, 0.31, 0.32], strict=True)])
    found = training.differences["distance"]
    assert (found.estimate, found.low, found.n) == (
        pytest.approx(expected.estimate),
        pytest.approx(expected.low),
        3,
    )
    assert data.differences["distance"].n == 3


def test_an_arm_that_is_nearer_over_both_kinds_of_seeds_earns_it(founds):
    told = verdict(SWAP, gains([SWAP], founds))
    assert told.earns and "nearer to the reference than pooled" in told.reason
    assert recommendation([told]).endswith("`warm_start: audit` is recommended by this rule.")
    assert SWAP.label in recommendation([told])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kl": 0.3}, "worse in KL over training seeds; KL over data seeds"),
        ({"same": 0.5}, "worse in same-group over training seeds"),
        ({"votes": 0.6}, "worse in votes, woman, votes, black over training seeds"),
        ({"distance": 0.3}, "not shown to be nearer to the reference over training seeds and data seeds"),
    ],
)
def test_a_cost_or_no_gain_loses_it(founds, change, reason):
    for found in founds:
        for i, seed in enumerate(SEEDS):
            write(found.folder, f"pooled_swap-s{seed}", **({"distance": 0.1 + i / 100} | change))
    told = verdict(SWAP, gains([SWAP], founds))
    assert not told.earns and reason in told.reason
    assert "`warm_start: audit` is not recommended" in recommendation([told])


def test_training_seeds_alone_are_not_enough(founds):
    for found in founds[1:]:
        for seed in SEEDS:
            (found.folder / f"pooled_swap-s{seed}" / "readouts.json").unlink()
    told = verdict(SWAP, gains([SWAP], founds))
    assert not told.earns and told.reason == "not run at enough data seeds"


def test_an_arm_is_measured_against_its_own_kind(founds):
    for found in founds:
        for i, seed in enumerate(SEEDS):
            write(found.folder, f"shared_mean_swap-s{seed}", 0.1 + i / 100, votes=0.75)
    # better than pooled in everything, worse than shared mean in votes
    told = verdict(SHARED_SWAP, gains([SHARED_SWAP], founds))
    assert not told.earns and "votes" in told.reason


def test_only_a_start_that_is_trained_on_is_the_audits():
    starts = {
        row.condition.name for row in SUITES["beyond"].panels[0].rows if starts_at_the_audit(row.condition)
    }
    assert starts == {"pooled_swap", "shared_mean_swap"}
