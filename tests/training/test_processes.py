"""Real processes: two or four give what one gives, divided or not, and a killed group goes on to the same bits."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.training.groups import Groups

pytestmark = pytest.mark.slow

MODELS = {"tied": (), "untied": ("--untied",), "adapter": ("--lora",)}


@pytest.fixture(scope="module")
def groups() -> Iterator[Groups]:
    with Groups() as server:
        yield server


@pytest.fixture(scope="module")
def alone(groups, tmp_path_factory):
    """Runs of one process by their options, each made once."""
    made: dict[tuple[str, ...], Path] = {}

    def run(*options: str) -> Path:
        if options not in made:
            folder = tmp_path_factory.mktemp("one")
            succeeded(groups, 1, folder, *options)
            made[options] = folder
        return made[options]

    return run


def succeeded(groups: Groups, n: int, folder: Path, *options: str) -> Path:
    ended = groups.run(n, folder, *options)
    assert ended.ok, "\n".join([f"statuses {ended.statuses}, hung {ended.hung}", *ended.outputs])
    return folder


def weights(folder: Path) -> dict[str, torch.Tensor]:
    [path] = (folder / "model").glob("*.safetensors")
    return load_file(path)


def theta(folder: Path) -> torch.Tensor:
    return torch.load(folder / "theta.pt", weights_only=True)


def losses(folder: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (folder / "log.jsonl").read_text().splitlines()]


def assert_same_run(ours: Path, theirs: Path) -> None:
    assert losses(ours) == pytest.approx(losses(theirs), rel=1e-5)
    torch.testing.assert_close(theta(ours), theta(theirs), rtol=1e-4, atol=1e-5)
    assert weights(ours).keys() == weights(theirs).keys()
    for name, value in weights(theirs).items():
        torch.testing.assert_close(weights(ours)[name], value, rtol=1e-3, atol=1e-5)


def assert_same_bits(ours: Path, theirs: Path) -> None:
    assert (ours / "log.jsonl").read_text() == (theirs / "log.jsonl").read_text()
    assert torch.equal(theta(ours), theta(theirs))
    for name, value in weights(theirs).items():
        assert torch.equal(weights(ours)[name], value), name


@pytest.mark.parametrize(
    ("n", "options"),
    [
        (2, ()),
        (4, ()),
        (4, ("--uneven",)),
        (4, ("--uneven", "--batching", "grouped")),
        (2, ("--batching", "comparisons")),
        (2, ("--own-annotators",)),
        (4, ("--own-annotators", "--uneven", "--bias", "per_annotator")),
        (2, ("--lora",)),
        (4, ("--experts", "--uneven")),
        (2, ("--objective", "sampo")),
        (4, ("--objective", "group_dro", "--uneven")),
    ],
)
def test_processes_equal_one(groups, alone, tmp_path, n, options):
    assert_same_run(succeeded(groups, n, tmp_path, *options), alone(*options))


@pytest.mark.parametrize(("model", "n"), [("tied", 4), ("untied", 2), ("adapter", 2)])
def test_divided_weights_equal_one_process(groups, alone, tmp_path, n, model):
    options = MODELS[model]
    assert_same_run(succeeded(groups, n, tmp_path, "--fsdp", *options), alone(*options))


def test_divided_weights_in_chunks_of_the_vocabulary_equal_one_process(groups, alone, tmp_path):
    options = ("--logits-at-once", "200")
    assert_same_run(succeeded(groups, 2, tmp_path, "--fsdp", *options), alone(*options))


def test_divided_weights_with_fewer_comparisons_than_micro_batches(groups, alone, tmp_path):
    assert_same_run(succeeded(groups, 4, tmp_path, "--fsdp", "--uneven"), alone("--uneven"))


@pytest.mark.parametrize(("n", "options"), [(4, ()), (2, ("--fsdp",)), (4, ("--fsdp",))])
def test_evaluation_on_votes_that_do_not_divide_evenly(groups, alone, tmp_path, n, options):
    found = succeeded(groups, n, tmp_path, "--evaluate", *options)
    for ours, theirs in zip(*(evaluated(folder) for folder in (found, alone("--evaluate"))), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)
    assert len(evaluated(found)) == 3


def evaluated(folder: Path) -> list[dict]:
    return json.loads((folder / "evaluated.json").read_text())


@pytest.mark.parametrize("options", [(), ("--lora",)], ids=["all weights", "adapter"])
@pytest.mark.parametrize("divided", [(), ("--fsdp",)], ids=["whole", "divided"])
def test_two_processes_in_bf16_start_at_log_two_and_equal_one(groups, alone, tmp_path, options, divided):
    found = succeeded(groups, 2, tmp_path, "--bf16", *options, *divided)
    assert losses(found)[0] == pytest.approx(math.log(2), abs=1e-3)
    # autocast rounds each product, so that only the order of sums may differ: far below the rounding of bf16
    assert losses(found) == pytest.approx(losses(alone("--bf16", *options)), rel=1e-4)


@pytest.mark.parametrize("n", [2, 4])
def test_all_killed_and_resumed_equals_uninterrupted_to_the_bit(groups, tmp_path, n):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    succeeded(groups, n, whole)
    assert set(groups.run(n, cut, "--die-at", "4").statuses) == {-9}
    assert_same_bits(succeeded(groups, n, cut, "--resume"), whole)


@pytest.mark.parametrize("options", [(), ("--lora",)], ids=["tied", "adapter"])
def test_divided_weights_killed_and_resumed_to_the_bit(groups, tmp_path, options):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    succeeded(groups, 2, whole, "--fsdp", *options)
    assert set(groups.run(2, cut, "--fsdp", "--die-at", "4", *options).statuses) == {-9}
    assert_same_bits(succeeded(groups, 2, cut, "--fsdp", "--resume", *options), whole)


@pytest.mark.parametrize(("rank", "options"), [(0, ()), (3, ()), (1, ("--fsdp",))])
def test_one_that_dies_ends_all(groups, tmp_path, rank, options):
    ended = groups.run(4, tmp_path, "--die-at", "3", "--die-rank", str(rank), *options, seconds=60)
    assert not ended.hung, ended.outputs
    assert ended.statuses[rank] == -9
    assert all(status == 1 for i, status in enumerate(ended.statuses) if i != rank), ended.statuses


def test_processes_that_do_not_start_alike_are_refused(groups, tmp_path):
    ended = groups.run(2, tmp_path, "--own-weights", seconds=60)
    assert not ended.hung
    assert all("the processes do not start alike: reference differ" in text for text in ended.outputs)


def test_divided_weights_are_refused_where_they_would_stay_whole(groups, tmp_path):
    ended = groups.run(2, tmp_path, "--fsdp", "--as-accelerate-does", seconds=60)
    assert all("fsdp was asked for, but" in text for text in ended.outputs)


def test_weights_that_no_text_goes_through_are_no_hindrance(groups, alone, tmp_path):
    assert_same_run(succeeded(groups, 2, tmp_path, "--multimodal"), alone("--multimodal"))


@pytest.mark.parametrize("options", [(), ("--bf16",), ("--fsdp",)])
def test_a_start_away_from_the_reference_on_one_process_stops_all_of_them(groups, tmp_path, options):
    ended = groups.run(2, tmp_path, "--break", "weights", "--break-at", "1", *options, seconds=60)
    assert not ended.hung and ended.statuses == (1, 1), ended.outputs
    told = [text.splitlines()[-1] for text in ended.outputs]
    assert told[0] == told[1] and "though the policy is its own reference" in told[0]


@pytest.mark.parametrize(
    ("broken", "options"),
    [
        ("margin", ()),
        ("margin", ("--fsdp",)),
        ("gradient", ("--bf16",)),
        ("gradient", ("--fsdp",)),
        ("theta", ()),
    ],
)
def test_what_is_not_finite_on_one_process_stops_all_of_them(groups, tmp_path, broken, options):
    ended = groups.run(2, tmp_path, "--break", broken, *options, seconds=60)
    assert not ended.hung and ended.statuses == (1, 1), ended.outputs
    for text in ended.outputs:
        said = text.splitlines()[-1]
        assert "NotFiniteError: step 3: " in said, text
        assert "comparison" in said and " c" in said
    assert len(losses(tmp_path)) == 2
    newest = max((tmp_path / "checkpoints").glob("checkpoint-*"))
    assert newest.name == "checkpoint-2"
