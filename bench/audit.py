"""Time, memory and precision of the audit's estimators and of other libraries: `python -m bench.audit [--json]`.

Every library runs in its own process, which reads the votes from a file, so that its peak memory is that of the votes,
the libraries and the fits. Reliability and its test follow the conditional fit of the same votes: their seconds and
memory include those of the conditional fit. Seconds are the smallest of three rounds. For statsmodels they include the
design matrix.
"""

import os
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench import timing

# Sizes at which other libraries run too; at other sizes only badpo runs.
PLAN = {"S": ("badpo", "statsmodels"), "judges": ("audit",), "jury": ("audit",)}
GOALS = (
    "Goals: with the test at most 1.5, with care at most 10 times the processor time of the conditional fit; the jury "
    "at most 10 times the judges."
)

# -- votes of large pools with known biases ----------------------------------------------------------------------


class Size(NamedTuple):
    """Size of a table: comparisons have unit-normal quality, and the sides of half of them differ in an attribute."""

    n_comparisons: int
    n_annotators: int
    n_attributes: int
    votes_each: int = 4


SIZES = {
    "tiny": Size(300, 12, 2),
    "S": Size(7_177, 60, 2),
    "L": Size(1_000_000, 10_000, 1),
    "L3": Size(1_000_000, 10_000, 3),
    "judges": Size(19_200, 48, 2),
    "jury": Size(800, 48, 2, 96),
}


class Votes(NamedTuple):
    """Votes in the form that every estimator takes, and the true biases, of shape (n_annotators, n_attributes)."""

    comparison: NDArray[np.int64]
    sign: NDArray[np.int64]
    annotator: NDArray[np.int64]
    delta: NDArray[np.float64]
    theta: NDArray[np.float64]


def draw(size: Size, seed: int = 0) -> Votes:
    """Draw votes of distinct annotators on every comparison, or two votes of every annotator."""
    random = np.random.default_rng(seed)
    n, q, each = size.n_comparisons, size.n_attributes, size.votes_each
    theta = 0.8 + 0.5 * random.standard_normal((size.n_annotators, q))
    differs = random.choice([-1.0, 0.0, 1.0], (n, q), p=[0.25, 0.5, 0.25])
    annotator = _distinct(random, n, size.n_annotators, each).ravel()
    comparison = np.repeat(np.arange(n), each)
    delta = differs[comparison]
    logit = random.standard_normal(n)[comparison] + np.einsum("ij,ij->i", theta[annotator], delta)
    sign = np.where(random.random(n * each) < 1 / (1 + np.exp(-logit)), 1, -1)
    return Votes(comparison, sign, annotator, delta, theta)


def _distinct(random: np.random.Generator, n: int, m: int, each: int) -> NDArray[np.int64]:
    """Draw rows of distinct annotators; rows with a repetition are drawn again."""
    if each == 2 * m:
        return np.resize(np.repeat(np.arange(m), 2), (n, each))
    drawn = random.integers(m, size=(n, each))
    while len(again := np.flatnonzero((np.diff(np.sort(drawn, axis=1), axis=1) == 0).any(axis=1))):
        drawn[again] = random.integers(m, size=(len(again), each))
    return drawn


# -- fits: the fitted quantity, the estimated biases, and facts about the fit --------------------

Found = Iterator[tuple[str, np.ndarray, dict[str, float]]]


def badpo(votes: Votes) -> Found:
    from badpo.estimation import fit, reliability

    pool = fit.Votes(*votes[:4], len(votes.theta))
    leans = fit.fit_conditional(pool)
    yield "conditional fit", leans.deviation, {"gradient": leans.gradient_norm}
    reliability.equal_reliability_p_value(pool)
    yield "and the test for equal care", leans.deviation, {}
    yield (
        "and care beside lean",
        reliability.adjust_for_reliability(leans, reliability.fit_reliability(pool)).biases.deviation,
        {},
    )


def whole_audit(votes: Votes) -> Found:
    """Run the public audit with two columns and the position as attributes, and return its seconds."""
    import pandas as pd

    from badpo.attributes import Column, Position
    from badpo.auditing.audit import audit

    number = votes.comparison.astype(str)
    names = [f"judge {k}" for k in range(len(votes.theta))]
    table = {"comparison_id": number, "prompt": number, "annotator": np.take(names, votes.annotator)}
    table["winner"] = np.where(votes.sign > 0, "a", "b")
    table["shown_first"] = np.resize(["a", "b"], len(number))
    for side, says in zip("ab", ("yes ", "no "), strict=True):
        table[f"response_{side}"] = np.char.add(says, number)
    for name, delta in zip("xy", votes.delta.T, strict=True):
        table[f"{name}_a"], table[f"{name}_b"] = np.maximum(delta, 0), np.maximum(-delta, 0)
    columns = [Column(name, a=f"{name}_a", b=f"{name}_b") for name in "xy"]
    start = time.process_time()
    rows = audit(pd.DataFrame(table), [*columns, Position()], models=names).annotators
    seconds = time.process_time() - start
    leans = rows.pivot(index="model", columns="attribute", values="deviation").loc[names, ["x", "y"]]
    yield "audit, three attributes", leans.to_numpy(), {"cpu_seconds": seconds}


def statsmodels(votes: Votes) -> Found:
    """Fit `ConditionalLogit` with one column per annotator and attribute; annotator 0 is the reference."""
    from statsmodels.discrete.conditional_models import ConditionalLogit

    m, q = votes.theta.shape
    design = np.zeros((len(votes.sign), m * q))
    for j in range(q):
        design[np.arange(len(votes.sign)), votes.annotator * q + j] = votes.delta[:, j]
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # a warning says that unanimous comparisons contain no information
        model = ConditionalLogit((votes.sign > 0).astype(int), design[:, q:], groups=votes.comparison)
        result = model.fit(method="bfgs", disp=0, maxiter=1000)
    leans = np.concatenate([np.zeros(q), result.params]).reshape(m, q)
    yield "ConditionalLogit", leans, {"gradient": float(np.abs(model.score(result.params)).max())}


FITS = {"badpo": badpo, "audit": whole_audit, "statsmodels": statsmodels}


# -- measuring ----------------------------------------------------------------------------------------------------


def measure(tool: str, path: Path) -> list[dict[str, Any]]:
    """Fit with one library, and measure seconds, peak memory of the process, and the error of the estimates."""
    with np.load(path) as stored:
        votes = Votes(**stored)
    list(FITS[tool](draw(SIZES["tiny"])))  # imports and first calls do not count as the fit
    rounds = [list(_timed(FITS[tool](votes))) for _ in range(3 if tool == "badpo" else 1)]
    rows = []
    for fits in zip(*rounds, strict=True):
        leans, row = fits[0]
        known = np.isfinite(leans).all(axis=1)
        truth, found = (each - each[known].mean(axis=0) for each in (votes.theta, leans))
        slope = float((found * truth)[known].sum() / (truth**2)[known].sum())
        least = {key: min(each[key] for _, each in fits) for key in ("cpu_seconds", "seconds")}
        rows.append(row | least | {"slope": slope})
    return rows


def _timed(fits: Found) -> Iterator[tuple[np.ndarray, dict[str, Any]]]:
    wall, cpu = time.perf_counter(), time.process_time()
    for title, leans, found in fits:
        seconds = {"cpu_seconds": time.process_time() - cpu, "seconds": time.perf_counter() - wall}
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
        yield leans, {"fit": title} | seconds | {"peak_mb": peak} | found


def compare(sizes: list[str], tools: list[str] | None) -> list[dict[str, Any]]:
    """Make a row for each fit and size; ``ratio`` is the processor time relative to the first fit."""
    rows, first = [], dict[str, float]()
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            path = Path(folder) / f"{size}.npz"
            np.savez(path, **draw(SIZES[size])._asdict())
            for tool in tools or PLAN.get(size, ("badpo",)):
                print(f"{size}, {tool}", file=sys.stderr, flush=True)
                for row in timing.apart(measure, tool, path):
                    first.setdefault(size, row["cpu_seconds"])
                    base = first.get("judges" if size == "jury" else size, np.nan)
                    ratio = row["cpu_seconds"] / base
                    rows.append({"size": size, "tool": tool} | row | {"ratio": ratio})
    return rows


def main() -> None:
    parser = timing.options_parser(__doc__.splitlines()[0], list(SIZES))
    parser.add_argument(
        "--tool", choices=list(FITS), action="append", help="only this one; may be repeated"
    )
    options = parser.parse_args()
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    sizes = options.case or [size for size in SIZES if size != "tiny"]
    rows = compare(sizes, options.tool)
    notes = [
        f"{name}: {size.n_comparisons:,} comparisons x {size.votes_each} votes, {size.n_annotators:,} annotators, "
        f"{size.n_attributes} attributes"
        for name, size in SIZES.items()
        if name in sizes
    ] + [GOALS]
    timing.report("Speed of the audit", rows, options, notes, ("numpy", "scipy", "statsmodels"))


if __name__ == "__main__":
    main()
