"""The audit's estimator beside its peers, in time, memory and precision: `python -m bench.audit [--json]`.

Every fit runs in a process of its own, which reads the votes from a file, so that its peak memory is that of the
votes, the libraries and the fit. Seconds are those of the fit alone, from arrays as a table holds them; for
statsmodels they include building the matrix that they need. Ratios are of processor time, which other
programs on the machine hardly change.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench import timing

PLAN = {
    "S": ("conditional", "tested", "care", "statsmodels"),
    "L": ("conditional", "tested", "care"),
    "judges": ("audit",),
    "jury": ("audit",),
}
# What the ratios of a size are to, where not to its conditional fit.
BASES = {"jury": ("judges", "audit")}
LIBRARIES = ("numpy", "scipy", "statsmodels")

# -- votes of large pools with known leans ----------------------------------------------------------------------

MEAN_LEAN, SPREAD = 0.8, 0.5


class Size(NamedTuple):
    """Comparisons with unit-normal quality; the sides differ in an attribute in every other one."""

    n_comparisons: int
    n_annotators: int
    n_attributes: int
    votes_each: int = 4


SIZES = {
    "tiny": Size(300, 12, 2),
    "S": Size(7_177, 60, 2),
    "L": Size(1_000_000, 10_000, 3),
    "judges": Size(19_200, 48, 2),
    "jury": Size(800, 48, 2, 96),
}


class Votes(NamedTuple):
    """Votes as every estimator takes them, and the leans behind them, of shape (n_annotators, n_attributes)."""

    comparison: NDArray[np.int64]
    sign: NDArray[np.int64]
    annotator: NDArray[np.int64]
    delta: NDArray[np.float64]
    theta: NDArray[np.float64]


def draw(size: Size, seed: int = 0) -> Votes:
    """Votes of distinct annotators on every comparison, assigned at random, or of all of them, twice each."""
    random = np.random.default_rng(seed)
    n, q, each = size.n_comparisons, size.n_attributes, size.votes_each
    theta = MEAN_LEAN + SPREAD * random.standard_normal((size.n_annotators, q))
    differs = random.choice([-1.0, 0.0, 1.0], (n, q), p=[0.25, 0.5, 0.25])
    annotator = _distinct(random, n, size.n_annotators, each).ravel()
    comparison = np.repeat(np.arange(n), each)
    delta = differs[comparison]
    logit = random.standard_normal(n)[comparison] + np.einsum("ij,ij->i", theta[annotator], delta)
    sign = np.where(random.random(n * each) < 1 / (1 + np.exp(-logit)), 1, -1)
    return Votes(comparison, sign, annotator, delta, theta)


def _distinct(random: np.random.Generator, n: int, m: int, each: int) -> NDArray[np.int64]:
    """Rows of distinct annotators; those with a repetition are drawn again."""
    if each == 2 * m:
        return np.resize(np.repeat(np.arange(m), 2), (n, each))
    drawn = random.integers(m, size=(n, each))
    while len(again := np.flatnonzero((np.diff(np.sort(drawn, axis=1), axis=1) == 0).any(axis=1))):
        drawn[again] = random.integers(m, size=(len(again), each))
    return drawn


# -- the fits: from votes to the estimated leans, and what is known of how they were reached ----------------------


def conditional(votes: Votes) -> tuple[np.ndarray, dict]:
    from badpo.estimation.fit import fit_conditional

    leans = fit_conditional(*votes[:4], len(votes.theta))
    return np.where(np.isfinite(leans.deviation), leans.deviation, np.nan), {
        "gradient": leans.gradient_norm
    }


def beside_conditional(votes: Votes, more: Sequence[str]) -> tuple[np.ndarray, dict]:
    """The conditional fit, and these functions of care."""
    from badpo.estimation import care

    for name in more:
        getattr(care, name)(*votes[:4], len(votes.theta))
    return conditional(votes)


def whole_audit(votes: Votes) -> tuple[np.ndarray, dict]:
    """The public audit of two columns and the position, in turn of either order; the seconds of that alone."""
    import pandas as pd

    from badpo.attributes import Column, Position
    from badpo.auditing.audit import audit

    number = votes.comparison.astype(str)
    names = [f"judge {k}" for k in range(len(votes.theta))]
    table = pd.DataFrame(
        {"comparison_id": number, "prompt": number, "annotator": np.take(names, votes.annotator)}
    )
    table["winner"], table["shown_first"] = (
        np.where(votes.sign > 0, "a", "b"),
        np.resize(["a", "b"], len(table)),
    )
    table["response_a"], table["response_b"] = "yes " + table["prompt"], "no " + table["prompt"]
    for name, delta in zip("xy", votes.delta.T, strict=True):
        table[f"{name}_a"], table[f"{name}_b"] = np.maximum(delta, 0), np.maximum(-delta, 0)
    columns = [Column(name, a=f"{name}_a", b=f"{name}_b") for name in "xy"]
    start = time.process_time()
    rows = audit(table, [*columns, Position()], models=names).annotators
    seconds = time.process_time() - start
    leans = rows.pivot(index="model", columns="attribute", values="deviation").loc[names, ["x", "y"]]
    return leans.to_numpy(), {"cpu_seconds": seconds}


def statsmodels(votes: Votes) -> tuple[np.ndarray, dict]:
    """`ConditionalLogit` with a column per annotator and attribute, annotator 0 left out as the reference."""
    from statsmodels.discrete.conditional_models import ConditionalLogit

    m, q = votes.theta.shape
    design = np.zeros((len(votes.sign), m * q))
    for j in range(q):
        design[np.arange(len(votes.sign)), votes.annotator * q + j] = votes.delta[:, j]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that unanimous comparisons say nothing
        model = ConditionalLogit((votes.sign > 0).astype(int), design[:, q:], groups=votes.comparison)
        result = model.fit(method="bfgs", disp=0, maxiter=1000)
    leans = np.concatenate([np.zeros(q), result.params]).reshape(m, q)
    return leans, {"gradient": float(np.abs(model.score(result.params)).max())}


FITS: dict[str, Callable[[Votes], tuple[np.ndarray, dict]]] = {
    "conditional": conditional,
    "tested": partial(beside_conditional, more=["equal_care_test"]),
    "care": partial(beside_conditional, more=["equal_care_test", "fit_care"]),
    "audit": whole_audit,
    "statsmodels": statsmodels,
}
TITLES = {
    "conditional": "badpo, conditional",
    "tested": "badpo, conditional with the test for care",
    "care": "badpo, care beside lean",
    "audit": "badpo audit, three attributes",
    "statsmodels": "statsmodels ConditionalLogit",
}


# -- measuring ----------------------------------------------------------------------------------------------------


def measure(tool: str, path: Path) -> dict[str, Any]:
    """One fit: its seconds, the peak memory of this process, and how near the estimate is to the truth."""
    with np.load(path) as stored:
        votes = Votes(**stored)
    FITS[tool](draw(SIZES["tiny"]))  # imports and first calls are not the fit
    wall, cpu = time.perf_counter(), time.process_time()
    leans, found = FITS[tool](votes)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    known = np.isfinite(leans).all(axis=1)
    truth = votes.theta - votes.theta[known].mean(axis=0)
    leans = leans - leans[known].mean(axis=0)
    return {
        "cpu_seconds": cpu,
        "seconds": wall,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
        "slope": float((leans * truth)[known].sum() / (truth**2)[known].sum()),
        **found,
    }


def compare(sizes: list[str], tools: list[str] | None) -> list[dict[str, Any]]:
    """A row for each tool on the votes of each size; ``ratio`` is of processor time, to our conditional fit."""
    rows, cpu = [], dict[tuple[str, str], float]()
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            path = Path(folder) / f"{size}.npz"
            np.savez(path, **draw(SIZES[size])._asdict())
            for tool in tools or PLAN.get(size, ("conditional",)):
                print(f"{size}, {TITLES[tool]}", file=sys.stderr, flush=True)
                found = timing.apart(measure, tool, path)
                cpu[size, tool] = found["cpu_seconds"]
                base = BASES.get(size, (size, "conditional"))
                is_other = base in cpu and base != (size, tool)
                ratio = {"ratio": found["cpu_seconds"] / cpu[base]} if is_other else {}
                rows.append({"size": size, "tool": TITLES[tool]} | found | ratio)
    return rows


def main() -> None:
    parser = timing.options_parser(__doc__.splitlines()[0], list(SIZES))
    parser.add_argument(
        "--tool", choices=list(FITS), action="append", help="only this tool; may be repeated"
    )
    options = parser.parse_args()
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    sizes = options.case or list(PLAN)
    rows = compare(sizes, options.tool)
    notes = [
        f"{name}: {size.n_comparisons:,} comparisons x {size.votes_each} votes, {size.n_annotators:,} annotators, "
        f"{size.n_attributes} attributes"
        for name, size in SIZES.items()
        if name in sizes
    ]
    where = timing.machine() | {name: version(name) for name in LIBRARIES}
    timing.report("Speed of the audit", rows, options, notes, where)


if __name__ == "__main__":
    main()
