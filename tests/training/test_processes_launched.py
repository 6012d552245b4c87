"""`badpo train` under a launcher: two processes are one run, and one that dies ends it with one message."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests import tiny
from tests.runs.recipes import log_lines, write_recipe
from tests.training.groups import ROOT, free_port

pytestmark = pytest.mark.slow

STEPS = 8


def recipe(folder: Path, **changes) -> Path:
    table = tiny.for_the_longer(tiny.votes(n_comparisons=40, n_annotators=6))
    reference = {"sft": True, "num_train_epochs": 1}
    settings = dict(max_steps=STEPS, per_device_train_batch_size=2, reference=reference)
    return write_recipe(folder, table, **settings, **changes)


def launched(n: int, config: Path, *options: str) -> subprocess.Popen:
    """`badpo train` in ``n`` processes, as accelerate launch starts them."""
    launcher = ["torch.distributed.run", "--nproc_per_node", str(n), "--master_port", str(free_port()), "-m"]
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            *(launcher if n > 1 else ()),
            "badpo",
            "train",
            "--config",
            str(config),
            *options,
        ],
        cwd=ROOT,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT / "src"),
            "ACCELERATE_USE_CPU": "true",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finished(process: subprocess.Popen) -> str:
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    return output


def of_rank(launcher: subprocess.Popen, rank: int) -> int:
    """The process id of a rank of a launcher."""
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    for child in children:
        if f"\0RANK={rank}\0" in "\0" + Path(f"/proc/{child}/environ").read_text():
            return int(child)
    raise AssertionError(f"no rank {rank} among {children}")


def wait_for(path: Path, launcher: subprocess.Popen) -> None:
    for _ in range(2400):
        if path.exists():
            return
        assert launcher.poll() is None, launcher.communicate()[0]
        time.sleep(0.05)
    raise AssertionError(f"{path} did not appear")


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model" / "model.safetensors")


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> tuple[Path, str]:
    """The run of two processes that nothing happened to, and what it printed."""
    folder = tmp_path_factory.mktemp("two")
    output = finished(launched(2, recipe(folder, gradient_accumulation_steps=2)))
    return folder / "runs" / "shared_mean-s42", output


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the ranks in /proc")
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_dies_ends_the_run_with_one_message_and_it_resumes_to_the_bit(tmp_path, two, rank):
    config = recipe(tmp_path, gradient_accumulation_steps=2)
    run = tmp_path / "runs" / "shared_mean-s42"
    process = launched(2, config)
    wait_for(run / "checkpoints" / "checkpoint-2" / "complete.json", process)
    os.kill(of_rank(process, rank), signal.SIGKILL)
    output, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    assert output.count("another process of this run has ended") == 1, output
    assert output.count("--resume") == 1

    finished(launched(2, config, "--resume"))
    assert log_lines(run) == log_lines(two[0])
    for name, value in weights(two[0]).items():
        assert torch.equal(weights(run)[name], value), name
    for name, value in load_file(two[0] / "bias.safetensors").items():
        assert torch.equal(load_file(run / "bias.safetensors")[name], value), name


def test_two_processes_equal_one_with_the_supervised_stage_and_print_once(tmp_path, two):
    run, output = two
    assert output.count(f"next: badpo evaluate {run}") == 1, output
    finished(launched(1, recipe(tmp_path, gradient_accumulation_steps=4)))
    alone = tmp_path / "runs" / "shared_mean-s42"
    losses = [[line["loss"] for line in log_lines(folder)] for folder in (run, alone)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for name, value in weights(alone).items():
        torch.testing.assert_close(weights(run)[name], value, rtol=1e-3, atol=1e-5)


def test_an_error_that_all_processes_meet_is_told_once(tmp_path):
    process = launched(2, recipe(tmp_path, bias="clas"))
    output, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    assert output.count("E202") == 1, output
