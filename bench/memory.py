"""Peak memory of the activations of one micro-batch, each side in a process of its own: `python -m bench.memory`.

Resident memory of the process above what model, gradients and data take, read from Linux's counters. Large blocks are
mapped apart (``MALLOC_MMAP_THRESHOLD_``), so that what is freed is given back.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from bench import timing
from bench.training import MOVED, judgments_of_steps
from bench.workloads import CASES, SIZES, build_model, tokenizer_of

SIZE = SIZES["0.5B-like"]
MICRO_BATCH, DIVIDED_BY = 8, 2
CASES_MEASURED = ("signed", "multipref")
# Batching, and the judgments of our micro-batch; TRL's has 8.
SETTINGS = (("random", 8), ("grouped", 8), ("grouped", 16))
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
NOTES = (
    "Peak resident memory of forward and backward of one micro-batch (8 judgments of TRL's, `ours_takes` of ours) "
    "above model, gradients and data; lengths are half of the full-size ones. `peak_memory_ratio` is ours over TRL "
    "with its GPU head path, `peak_memory_ratio_vs_stock` ours over stock TRL.",
)


def main() -> None:
    options = timing.options_parser(__doc__.splitlines()[0], CASES_MEASURED).parse_args()
    if not CLEAR.exists():
        raise SystemExit("bench.memory reads Linux's /proc; it cannot run on this system")
    os.environ |= {"MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": str(timing.THREADS)}
    rows = [measured(case, *setting) for case in options.case or CASES_MEASURED for setting in SETTINGS]
    timing.report("Peak activation memory", rows, options, NOTES)


def measured(case: str, batching: str, ours_takes: int) -> dict[str, Any]:
    """The row of a case: what each side needs, in megabytes, and how ours compares."""
    takes = {"ours": ours_takes, "trl": MICRO_BATCH, "compact": MICRO_BATCH}
    found = {side: timing.apart(peak_megabytes, side, case, batching, n) for side, n in takes.items()}
    return {
        "case": case,
        "batching": batching,
        "micro_batch": MICRO_BATCH,
        "ours_takes": ours_takes,
        "peak_memory_ratio": found["ours"] / found["compact"],
        "peak_memory_ratio_vs_stock": found["ours"] / found["trl"],
        **{f"{side}_megabytes": round(megabytes) for side, megabytes in found.items()},
    }


def peak_megabytes(side: str, case: str, batching: str, n_judgments: int) -> float:
    """What a forward and backward of one micro-batch needs above what is there before."""
    from bench.peers import TRL, Ours, gpu_head

    timing.quiet()
    timing.pin_threads()
    workload = CASES[case](SIZE.vocabulary, divided_by=DIVIDED_BY)
    part = judgments_of_steps(workload, batching, n_judgments, 1)
    models = build_model(SIZE, moved=MOVED), build_model(SIZE)
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = tokenizer_of(workload, SIZE.vocabulary)
        ours = Ours(part, tokenizer, models, batching, n_judgments, 1, Path(folder))
        measured_side = ours if side == "ours" else TRL(ours, models, Path(folder))
        with gpu_head() if side == "compact" else nullcontext():
            # gradients are there and every library is loaded
            _backward(measured_side)
            before = _counter("VmRSS")
            CLEAR.write_text("5")
            _backward(measured_side)
            return _counter("VmHWM") - before


def _backward(side) -> None:
    side.trainer.model.train().zero_grad(set_to_none=False)
    with side.around():
        for loss in next(side.losses()):
            loss.backward()
        side.after_backward()


def _counter(name: str) -> float:
    """A counter of this process in megabytes."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    main()
