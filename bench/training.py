"""Training steps of badpo and of TRL's `DPOTrainer` on the same judgments: `python -m bench.training`.

Every row first compares the gradients of the first step, then times whole optimizer steps in CPU time: collating,
forward, backward, clipping, AdamW. TRL's reference log-probabilities are computed before, as ours are.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from badpo.training.batches import BATCHING
from bench import timing
from bench.workloads import CASES, SIZES, Workload, build_model, cases_to_run, tokenizer_of

LARGEST_DIFFERENCE = 2e-5
N_COMPARISONS = 160  # of the design effect
MOVED = 0.05


@dataclass(frozen=True)
class Row:
    """One line of the table; ``whole`` times ``train()`` with all that a Trainer does, instead of bare steps.

    ``micro_batch`` are the judgments of TRL's micro-batch, and of ours unless ``ours_takes`` more.
    """

    case: str
    batching: str
    micro_batch: int
    size: str = "0.5B-like"
    batch_size: int = 16
    n_steps: int = 3
    whole: bool = False
    ours_takes: int | None = None


ROWS = (
    Row("signed", "random", 8),
    Row("signed", "random", 2),
    Row("multipref", "random", 8),
    Row("mtbench", "random", 8),
    Row("signed", "grouped", 8, batch_size=32, n_steps=6),
    Row("signed", "grouped", 8, batch_size=32, n_steps=6, ours_takes=16),
    Row("multipref", "grouped", 8, batch_size=32, n_steps=6),
    Row("multipref", "grouped", 8, batch_size=32, n_steps=6, ours_takes=16),
    Row("signed", "random", 8, whole=True),
    Row("signed", "grouped", 8, batch_size=32, n_steps=6, whole=True, ours_takes=16),
    Row("signed", "random", 8, "8B-like"),
    Row("signed", "grouped", 8, "8B-like", batch_size=32, ours_takes=16),
    Row("signed", "random", 2, "head-dominated", batch_size=2),
    Row("signed", "grouped", 4, "head-dominated", batch_size=4),
)

NOTES = (
    "Ratios are TRL's CPU time over ours, medians of 5 rounds of 3 optimizer steps (6 where grouped, since such a "
    "step has 8 comparisons only). `ratio_vs_trl_compact`: TRL with its GPU head path; `ratio_vs_trl`: stock TRL on a "
    "processor. `micro_batch` are TRL's judgments a forward and `ours_takes` ours: 16 grouped judgments are 4 "
    "comparisons, fewer tokens than TRL's 8 judgments and less memory (the table of memory). `equal_variance` is "
    "`ratio_vs_trl_compact` over the measured design effect: a grouped step has as many judgments as a random one, but "
    "they say less.",
    "`rel_grad_diff`: largest difference of a gradient entry from TRL's, relative to the largest entry; "
    "`rel_error_ours` and `rel_error_trl`: either side's from the same step in float64.",
    "`mtbench` has real texts and votes; the other cases have the lengths of `bench/workloads.py`.",
)


def main() -> None:
    options = timing.options_parser(__doc__.splitlines()[0], list(CASES)).parse_args()
    timing.quiet()
    timing.pin_threads()
    cases = cases_to_run(options.case)
    rows = [measured(row) for row in ROWS if row.case in cases]
    timing.report("Training steps", rows, options, NOTES)
    if any(row["rel_grad_diff"] > LARGEST_DIFFERENCE for row in rows):
        raise SystemExit(
            f"a gradient differs by more than {LARGEST_DIFFERENCE:.0e}: these ratios do not count"
        )


def measured(row: Row) -> dict[str, Any]:
    """The row's ratios, in a folder of its own."""
    from bench.peers import TRL, Ours, exact_gradients, gpu_head, relative_difference

    size = SIZES[row.size]
    workload = CASES[row.case](size.vocabulary)
    tokenizer = tokenizer_of(workload, size.vocabulary)
    part = judgments_of_steps(workload, row.batching, row.batch_size, row.n_steps)
    models = build_model(size, moved=MOVED), build_model(size)
    with tempfile.TemporaryDirectory() as folder:
        takes = row.ours_takes or row.micro_batch
        ours = Ours(part, tokenizer, models, row.batching, takes, row.batch_size // takes, Path(folder))
        peer = TRL(ours, models, Path(folder), micro_batch=row.micro_batch)
        gradients, theirs = ours.first_gradients(), [peer.first_gradients()]
        with gpu_head():
            theirs.append(peer.first_gradients())
        exact = exact_gradients(ours, models)
        seconds = timing.median_seconds(runs_of(ours, peer, row.whole))
    found = {
        "case": row.case,
        "what": "train()" if row.whole else "steps",
        "model": row.size,
        "batching": row.batching,
        "micro_batch": row.micro_batch,
        "ours_takes": row.ours_takes or row.micro_batch,
        "ratio_vs_trl_compact": seconds["compact"] / seconds["ours"],
        "ratio_vs_trl": seconds["trl"] / seconds["ours"],
        "rel_grad_diff": max(relative_difference(gradients, found) for found in theirs),
        "peak_memory_ratio": None,
        "rel_error_ours": relative_difference(gradients, exact),
        "rel_error_trl": max(relative_difference(found, exact) for found in theirs),
        "seconds_per_step": seconds["ours"] / row.n_steps,
    }
    if row.batching == "grouped":
        effect = effect_of(workload, tokenizer, models[1])
        found |= {"design_effect": effect, "equal_variance": found["ratio_vs_trl_compact"] / effect}
    return found


def runs_of(ours, peer, whole: bool) -> dict[str, Callable[[], None]]:
    """What is timed; the comparison of gradients before has warmed all three up."""
    from bench.peers import gpu_head

    def run(side) -> None:
        (side.train if whole else side.run)()

    def compact() -> None:
        with gpu_head():
            run(peer)

    return {"ours": lambda: run(ours), "trl": lambda: run(peer), "compact": compact}


def judgments_of_steps(workload: Workload, batching: str, batch_size: int, n_steps: int) -> Workload:
    """The judgments that the first steps of a run on the whole workload would take."""
    plan = BATCHING[batching](workload.comparison, batch_size, np.random.default_rng(0))
    return workload.take(np.concatenate(plan[:n_steps]))


def effect_of(workload: Workload, tokenizer, model) -> float:
    """The design effect of the workload's own votes, on some of its comparisons."""
    from badpo.data.judgments import Judgments
    from badpo.training.encoding import encode_comparisons

    part = workload.take(np.flatnonzero(workload.comparison < N_COMPARISONS))
    judgments = Judgments.read(part.votes)
    encoded = encode_comparisons(judgments, tokenizer, max_length=workload.max_length)
    return design_effect(part, model, encoded)


def design_effect(workload: Workload, model, encoded) -> float:
    r"""Variance of a grouped step's gradient over that of a random step with as many judgments, at the start of DPO.

    At the start every margin is 0 and the gradient of judgment j is :math:`s_j \nabla u_c` but for a factor, so that
    the votes on a comparison differ in their sign only. Steps that keep the m votes of a comparison together have
    the variance of :math:`\sum_j s_j \nabla u_c`, random steps that of independent judgments.
    The workload has the comparisons of ``encoded``, in order of appearance, with all of their votes.
    """
    comparison = workload.comparison
    position = np.unique(comparison, return_inverse=True)[1]
    sign = np.where(workload.votes["winner"] == "a", 1.0, -1.0)
    n_votes = np.bincount(position).astype(float)
    vote_sum = np.bincount(position, weights=sign)
    squares, mean = _margin_gradients(model, encoded, vote_sum)
    n = len(encoded)
    # the squared length of the mean gradient, from products of different comparisons only
    pairs = (mean - (vote_sum**2 * squares).sum()) / (n * (n - 1))
    grouped = (vote_sum**2 * squares).mean() - pairs
    random = (n_votes * squares).mean() - pairs / n_votes.mean()
    return float(grouped / random)


def _margin_gradients(model, encoded, weight: np.ndarray) -> tuple[np.ndarray, float]:
    """Squared length of each margin's gradient, and of their sum with the given weights."""
    import torch

    from badpo.training.logprobs import attach, on_device, packed_layout, scoring_attention

    attach(model)
    parameters = list(model.parameters())
    total = [torch.zeros_like(p) for p in parameters]
    squares = np.empty(len(encoded))
    with scoring_attention(model, packed_layout):
        for c in range(len(encoded)):
            inputs, _ = packed_layout([encoded.prompt_ids[c]], [encoded.a_ids[c]], [encoded.b_ids[c]])
            scoring = on_device(inputs, torch.device("cpu"))
            side = 1.0 - 2.0 * scoring["response"]
            gradients = torch.autograd.grad((side * model(scoring=scoring)).sum(), parameters)
            squares[c] = sum(float(g.square().sum(dtype=torch.float64)) for g in gradients)
            for sum_, g in zip(total, gradients, strict=True):
                sum_ += weight[c] * g
    return squares, sum(float(g.square().sum(dtype=torch.float64)) for g in total)


if __name__ == "__main__":
    main()
