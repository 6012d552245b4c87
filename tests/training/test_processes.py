"""Several processes give the results of one process, resume with identical bits and end together."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import cache
from pathlib import Path

import psutil
import pytest
import torch
import typer
from safetensors.torch import load_file
from torch.distributed import DistNetworkError

from badpo.cli.options import report_errors
from badpo.objective.bias import BiasTerm
from badpo.training.processes import is_peer_lost
from tests import tiny
from tests.runs.recipes import write_recipe
from tests.training.groups import ROOT, Options, free_port, run_group
from tests.training.tiny_runs import untimed

slow = pytest.mark.slow


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Cache of runs of one process by their options."""
    return cache(lambda options: succeeded(1, tmp_path_factory.mktemp("one"), options))


def succeeded(n: int, folder: Path, options: Options) -> Path:
    statuses, outputs = run_group(n, folder, options)
    assert not any(statuses), "\n".join([str(statuses), *outputs])
    return folder


def weights(folder: Path) -> dict[str, torch.Tensor]:
    [path] = (folder / "model").glob("*.safetensors")
    return load_file(path)


def theta(folder: Path) -> torch.Tensor:
    return BiasTerm.load(folder).theta().detach()


def losses(folder: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (folder / "log.jsonl").read_text().splitlines()]


def evaluations(folder: Path) -> list[dict]:
    state = json.loads((folder / "checkpoints" / "checkpoint-6" / "trainer_state.json").read_text())
    return [untimed(line) for line in state["log_history"] if "eval_loss" in line]


@slow
@pytest.mark.parametrize(
    ("n", "options"),
    [
        (4, Options(uneven=True)),
        (4, Options(uneven=True, batching="grouped")),
        (2, Options(batching="comparisons")),
        (4, Options(own_annotators=True, uneven=True, bias="per_annotator")),
        (2, Options(lora=True)),
        (2, Options(multimodal=True)),
        (4, Options(experts=True, uneven=True)),
        (4, Options(anchored=True, uneven=True)),
        (2, Options(objective="sampo")),
        (4, Options(objective="group_dro", uneven=True)),
        (2, Options(fsdp=True, untied=True)),
        (2, Options(fsdp=True, lora=True)),
        (2, Options(fsdp=True, logits_at_once=200)),
        (4, Options(fsdp=True, uneven=True)),
        # the number of votes is not divisible by the number of processes
        (4, Options(evaluate=True)),
        (4, Options(evaluate=True, fsdp=True)),
    ],
)
def test_processes_equal_one(alone, tmp_path, n, options):
    ours, theirs = succeeded(n, tmp_path, options), alone(replace(options, fsdp=False))
    assert losses(ours) == pytest.approx(losses(theirs), rel=1e-5)
    torch.testing.assert_close(theta(ours), theta(theirs), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(weights(ours), weights(theirs), rtol=1e-3, atol=1e-5)
    measured = [evaluations(folder) for folder in (ours, theirs)]
    assert [len(found) for found in measured] == [3 * options.evaluate] * 2
    for one, other in zip(*measured, strict=True):
        assert one == pytest.approx(other, rel=1e-5)


@slow
@pytest.mark.parametrize("lora", [False, True], ids=["all weights", "adapter"])
@pytest.mark.parametrize("fsdp", [False, True], ids=["whole", "divided"])
def test_two_processes_in_bf16_start_at_log_two_and_equal_one(alone, tmp_path, lora, fsdp):
    found = succeeded(2, tmp_path, Options(bf16=True, lora=lora, fsdp=fsdp))
    assert losses(found)[0] == pytest.approx(math.log(2), abs=1e-3)
    # autocast rounds each product to bfloat16; a processor without instructions for bfloat16 also rounds parts of sums,
    # whose sizes depend on the number of processes, so that losses may differ by one rounding
    one_rounding = 2.0**-8
    assert losses(found) == pytest.approx(losses(alone(Options(bf16=True, lora=lora))), rel=one_rounding)


@slow
@pytest.mark.parametrize(
    ("n", "options"),
    [(4, Options()), (2, Options(fsdp=True)), (2, Options(fsdp=True, lora=True))],
)
def test_killed_and_resumed_processes_equal_uninterrupted_ones_bit_by_bit(tmp_path, n, options):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    succeeded(n, whole, options)
    assert set(run_group(n, cut, replace(options, fault="killed", fault_at=4))[0]) == {-9}
    succeeded(n, cut, replace(options, resume=True))
    assert (cut / "log.jsonl").read_text() == (whole / "log.jsonl").read_text()
    assert torch.equal(theta(cut), theta(whole))
    torch.testing.assert_close(weights(cut), weights(whole), rtol=0, atol=0)


@slow
@pytest.mark.parametrize(("rank", "options"), [(0, Options()), (3, Options()), (1, Options(fsdp=True))])
def test_the_death_of_one_process_ends_all_processes(tmp_path, rank, options):
    options = replace(options, fault="killed", fault_rank=rank)
    statuses, _ = run_group(4, tmp_path, options, seconds=60)
    assert statuses[rank] == -9
    assert all(status == 1 for i, status in enumerate(statuses) if i != rank), statuses


@slow
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (Options(own_weights=True), "the processes start with different values of reference"),
        # divided weights were requested, but accelerate would not divide them
        (Options(fsdp=True, as_accelerate_does=True), "fsdp was requested, but"),
        (Options(fault="weights", fault_at=1), "though the policy is its own reference"),
        (Options(fault="margin"), "NotFiniteError: step 3: .*comparison c"),
        (Options(fault="gradient", bf16=True), "NotFiniteError: step 3: "),
        (Options(fault="gradient", fsdp=True), "NotFiniteError: step 3: "),
        (Options(fault="theta"), "NotFiniteError: step 3: .*comparison c"),
    ],
)
def test_an_error_of_one_process_stops_all_processes_with_the_same_message(tmp_path, options, said):
    statuses, outputs = run_group(2, tmp_path, replace(options, fault_rank=1), seconds=60)
    assert statuses == (1, 1), outputs
    told = [text.splitlines()[-1] for text in outputs]
    assert all(re.search(said, line) for line in told), told
    if "step 3" in said:
        assert len(losses(tmp_path)) == 2
        newest = max((tmp_path / "checkpoints").glob("checkpoint-*"))
        assert newest.name == "checkpoint-2"


# -- under a launcher ------------------------------------------------------------------------------------------------


def launched(n: int, folder: Path, *options: str, **changes) -> subprocess.Popen:
    """Start `badpo train` in ``n`` processes as accelerate launch does."""
    table = tiny.for_the_longer(tiny.votes(n_comparisons=40, n_annotators=6))
    reference = {"sft": True, "num_train_epochs": 1}
    sizes = dict(per_device_train_batch_size=2, gradient_accumulation_steps=4 // n)
    config = write_recipe(folder, table, max_steps=8, reference=reference, **sizes, **changes)
    module = ["-m", "badpo", "train", "--config", str(config), *options]
    if n > 1:
        launcher = f"torch.distributed.run --nproc_per_node {n} --master_port {free_port()}".split()
        module = ["-m", *launcher, *module]
    settings = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src"), "ACCELERATE_USE_CPU": "true"}
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return subprocess.Popen([sys.executable, *module], cwd=ROOT, env=os.environ | settings, **pipes)


def finished(process: subprocess.Popen) -> str:
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    return output


@slow
@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_run_whose_rank_died_ends_with_one_message_and_can_be_resumed(tmp_path, rank):
    run, alone = (tmp_path / name / "runs" / "shared_mean-s42" for name in ("two", "one"))
    process = launched(2, tmp_path / "two")
    sealed = run / "checkpoints" / "checkpoint-2" / "complete.json"
    while not sealed.exists():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    ranks = {child.environ().get("RANK"): child for child in psutil.Process(process.pid).children()}
    ranks[rank].kill()
    output, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    assert output.count("another process of this run has ended") == 1, output
    assert output.count("--resume") == 1

    output = finished(launched(2, tmp_path / "two", "--resume"))
    assert output.count(f"next: badpo evaluate {run}") == 1, output
    finished(launched(1, tmp_path / "one"))
    assert losses(run) == pytest.approx(losses(alone), rel=1e-5)
    torch.testing.assert_close(weights(run), weights(alone), rtol=1e-3, atol=1e-5)


# -- how one of several ends, without starting several ----------------------------------------------------------------


@pytest.fixture
def one_of_two(monkeypatch):
    """Set the environment of a launcher with two processes."""
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setenv("WORLD_SIZE", "2")
    yield
    signal.signal(signal.SIGTERM, before)


LEFT = "another process of this run has ended"
OWN = "no module of gloomy weights"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (None, LEFT),  # the launcher ends it
        (RuntimeError("[gloo/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]"), LEFT),
        (RuntimeError(OWN), f"RuntimeError: {OWN}"),
    ],
)
def test_a_process_reports_why_it_ends_and_a_later_signal_changes_nothing(
    one_of_two, capsys, error, said
):
    def end():
        if error is not None:
            raise error
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

    with pytest.raises(typer.Exit) as raised:
        report_errors(end)()
    told = capsys.readouterr().err
    assert raised.value.exit_code == 1
    assert told.count(said) == 1 and ("--resume" in told) == (said == LEFT)
    os.kill(os.getpid(), signal.SIGTERM)


def test_only_connection_errors_mean_a_lost_process(one_of_two):
    lost = ("Connection reset by peer", "NCCL error in: a.cpp, remote process exited or a network error")
    assert all(is_peer_lost(RuntimeError(said)) for said in lost)
    assert is_peer_lost(DistNetworkError("the store is gone"))
    own = ("NCCL error in: a.cpp:94, invalid usage", "mat1 and mat2 shapes cannot be multiplied")
    assert not any(is_peer_lost(RuntimeError(said)) for said in own)
    assert not is_peer_lost(ValueError("Connection closed by peer"))
