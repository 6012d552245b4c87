"""Real processes: two give what one gives, and a killed one is continued to the same bits."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def start(folder: Path, *options: str, **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.training.run_one", str(folder), *options],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(folder: Path, *options: str) -> str:
    process = start(folder, *options)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    return output


def run_in_processes(n: int, folder: Path, *options: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [
        start(
            folder,
            *options,
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(n),
            LOCAL_WORLD_SIZE=str(n),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            ACCELERATE_USE_CPU="true",
        )
        for rank in range(n)
    ]
    outputs = [process.communicate(timeout=240)[0] for process in processes]
    assert all(process.returncode == 0 for process in processes), "\n".join(outputs)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model" / "model.safetensors")


def theta(folder: Path) -> torch.Tensor:
    return torch.load(folder / "theta.pt", weights_only=True)


def losses(folder: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (folder / "log.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    "options",
    [(), ("--uneven",), ("--uneven", "--batching", "grouped"), ("--batching", "comparisons")],
    ids=["even", "uneven", "skipped micro-batches", "comparisons"],
)
def test_two_processes_equal_one(tmp_path, options):
    run(tmp_path / "one", *options)
    run_in_processes(2, tmp_path / "two", *options)
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)
    torch.testing.assert_close(theta(tmp_path / "two"), theta(tmp_path / "one"), rtol=1e-4, atol=1e-5)
    for name, value in weights(tmp_path / "one").items():
        torch.testing.assert_close(weights(tmp_path / "two")[name], value, rtol=1e-3, atol=1e-5)


def test_killed_and_resumed_equals_uninterrupted_to_the_bit(tmp_path):
    run(tmp_path / "whole")
    killed = start(tmp_path / "cut", "--die-at", "4")
    killed.communicate(timeout=240)
    assert killed.returncode == -9
    run(tmp_path / "cut", "--resume")
    assert (tmp_path / "cut" / "log.jsonl").read_text() == (tmp_path / "whole" / "log.jsonl").read_text()
    assert torch.equal(theta(tmp_path / "cut"), theta(tmp_path / "whole"))
    for name, value in weights(tmp_path / "whole").items():
        assert torch.equal(weights(tmp_path / "cut")[name], value), name
