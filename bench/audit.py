"""The audit's estimator beside its peers, in time, memory and precision: `python -m bench.audit [--json]`.

Every fit runs in a process of its own, which reads the votes from a file, so that its peak memory is that of the
votes, the libraries and the fit. Seconds are those of the fit alone, from arrays as a table holds them; for
scikit-learn and statsmodels they include building the matrix that they need. Ratios are of processor time, which other
programs on the machine hardly change. The last case is the command on real votes, from a cold start.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from bench.audit_votes import SIZES, Votes, draw, load, save

REAL = Path("../shared/data/ukpconvarg1_human.parquet")
PLAN = {
    "S": ("conditional", "statsmodels", "joint", "sklearn"),
    "L": ("conditional", "sklearn", "sklearn-exact"),
    "panel": ("conditional", "posterior"),
}
LIBRARIES = ("numpy", "scipy", "statsmodels", "scikit-learn")
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


# -- the fits: from votes to the estimated leans, and what is known of how they were reached ----------------------


def conditional(votes: Votes) -> tuple[np.ndarray, dict]:
    from badpo.estimation.conditional import fit_conditional

    return _ours(fit_conditional(*votes.arrays))


def joint(votes: Votes) -> tuple[np.ndarray, dict]:
    from badpo.estimation.joint import fit_joint

    return _ours(fit_joint(*votes.arrays))


def posterior(votes: Votes) -> tuple[np.ndarray, dict]:
    """The leans and their spread by integration, which the audit adds: a hundred penalised fits or more."""
    from badpo.estimation.integrated import shrink_votes

    found = shrink_votes(*votes.arrays)
    leans, se = (np.column_stack([getattr(one, name) for one in found]) for name in ("shrunk", "post_sd"))
    return leans, {"gradient": None, "se": se}


def _ours(leans) -> tuple[np.ndarray, dict]:
    found = {"gradient": leans.gradient_norm, "newton": leans.n_newton, "cg": leans.n_cg, "se": leans.se}
    return np.where(np.isfinite(leans.deviation), leans.deviation, np.nan), found


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


def sklearn(votes: Votes, largest_gradient: float) -> tuple[np.ndarray, dict]:
    """`LogisticRegression` with a column for each comparison beside those of the leans: the joint estimate.

    Its tolerance is of the mean gradient; the default is met by zeros where there are this many votes, and nothing is
    fitted. Here it stops at 0.01, a million times the gradient of our fits, or at 0.0001.
    """
    from scipy import sparse
    from sklearn.linear_model import LogisticRegression

    m, q = votes.theta.shape
    n = len(votes.sign)
    kept = np.flatnonzero(votes.delta)
    row, attribute = np.divmod(kept, q)
    rows = np.concatenate([row, np.arange(n)])
    columns = np.concatenate([votes.annotator[row] * q + attribute, m * q + votes.comparison])
    values = np.concatenate([votes.delta.ravel()[kept], np.ones(n)])
    design = sparse.csr_matrix((values, (rows, columns)))
    model = LogisticRegression(C=1e6, fit_intercept=False, max_iter=10_000, tol=largest_gradient / n)
    model.fit(design, votes.sign)
    logit = design @ model.coef_[0]
    gradient = design.T @ (votes.sign / (1 + np.exp(votes.sign * logit)))
    found = {"gradient": float(np.abs(gradient).max()), "iterations": int(model.n_iter_[0])}
    return model.coef_[0, : m * q].reshape(m, q), found


FITS: dict[str, Callable[[Votes], tuple[np.ndarray, dict]]] = {
    "conditional": conditional,
    "joint": joint,
    "posterior": posterior,
    "statsmodels": statsmodels,
    "sklearn": partial(sklearn, largest_gradient=1e-2),
    "sklearn-exact": partial(sklearn, largest_gradient=1e-4),
}
TITLES = {
    "conditional": "badpo, conditional",
    "joint": "badpo, joint",
    "posterior": "badpo, posteriors and tau",
    "statsmodels": "statsmodels ConditionalLogit",
    "sklearn": "scikit-learn one-hot (joint)",
    "sklearn-exact": "scikit-learn one-hot (joint), to 1e-4",
}


# -- inside a child process ---------------------------------------------------------------------------------------


def measure(tool: str, path: Path) -> dict[str, Any]:
    """One fit: its seconds, the peak memory of this process, and how near the estimate is to the truth."""
    votes = load(path)
    FITS[tool](draw(SIZES["tiny"]))  # imports and first calls are not the fit
    wall, cpu = time.perf_counter(), time.process_time()
    leans, found = FITS[tool](votes)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    se = found.pop("se", None)
    known = np.isfinite(leans).all(axis=1)
    truth = votes.theta - votes.theta[known].mean(axis=0)
    leans = leans - leans[known].mean(axis=0)
    return {
        "seconds": wall,
        "cpu_seconds": cpu,
        "peak_mb": peak,
        "slope": float((leans * truth)[known].sum() / (truth**2)[known].sum()),
        "covered": None if se is None else float(np.mean((np.abs(leans - truth) < 1.96 * se)[known])),
        **found,
    }


# -- the parent ---------------------------------------------------------------------------------------------------


def compare(sizes: list[str], tools: list[str] | None, threads: int) -> list[dict[str, Any]]:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            path = Path(folder) / f"{size}.npz"
            _child(["--draw", size, "--votes", str(path)], threads)
            for tool in tools or PLAN.get(size, ("conditional", "joint")):
                print(f"{size}, {TITLES[tool]}", file=sys.stderr, flush=True)
                found = json.loads(_child(["--fit", tool, "--votes", str(path)], threads))
                rows.append({"size": size, "tool": tool} | found)
    return rows


def _child(options: list[str], threads: int) -> str:
    command = [sys.executable, "-m", "bench.audit", *options]
    environment = os.environ | dict.fromkeys(THREADS, str(threads))
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return done.stdout


def ratios(rows: list[dict[str, Any]]) -> dict[str, float]:
    """How many times the processor time of our conditional fit each peer takes on the same votes.

    >>> rows = [{"size": "S", "tool": tool, "cpu_seconds": s} for tool, s in (("conditional", 0.5), ("sklearn", 4.0))]
    >>> ratios(rows)
    {'S, scikit-learn one-hot (joint)': 8.0}
    """
    ours = {row["size"]: row["cpu_seconds"] for row in rows if row["tool"] == "conditional"}
    return {
        f"{row['size']}, {TITLES[row['tool']]}": row["cpu_seconds"] / ours[row["size"]]
        for row in rows
        if row["tool"] in ("statsmodels", "sklearn", "sklearn-exact") and row["size"] in ours
    }


def cold_start(data: Path) -> dict[str, Any] | None:
    """`badpo audit` on real judgments in a new process, to its first line and to its end; None without the data."""
    if not data.is_file():
        return None
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "badpo", "audit", str(data), "--attribute", "length", "-o", folder]
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert process.stdout is not None
        first = process.stdout.readline()
        to_first = time.perf_counter() - start
        rest = process.stdout.read()
        code = process.wait()
        seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if code:
        raise RuntimeError(f"{' '.join(command)} failed:\n{first}{rest}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"first_line_seconds": to_first, "seconds": seconds, "cpu_seconds": cpu}


def machine(threads: int) -> dict[str, str]:
    where = {"threads": str(threads), "cores": str(os.cpu_count()), "python": platform.python_version()}
    return where | {name: version(name) for name in LIBRARIES}


def as_text(found: dict[str, Any]) -> str:
    """The tables as Markdown."""
    sizes = dict.fromkeys(row["size"] for row in found["fits"])
    lines = [
        f"{name}: {SIZES[name].n_comparisons:,} comparisons x {SIZES[name].votes_each} votes, "
        f"{SIZES[name].n_annotators:,} annotators, {SIZES[name].n_attributes} attributes\n"
        for name in sizes
    ]
    columns = ("size", "tool", "cpu s", "wall s", "peak MB", "gradient", "slope", "95 % covered")
    lines += ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(_cells(row)) + " |" for row in found["fits"]]
    lines += [
        f"\n{name}: {times:.1f} times the processor time of badpo's"
        for name, times in found["ratios"].items()
    ]
    if found["cold_start"] is not None:
        cold = found["cold_start"]
        lines.append(
            "\n`badpo audit` on 84,445 real judgments with its report, from a cold start: first line after "
            f"{cold['first_line_seconds']:.1f} s, done after {cold['seconds']:.1f} s ({cold['cpu_seconds']:.1f} s of "
            "processor time)"
        )
    where = "; ".join(f"{name} {value}" for name, value in found["machine"].items())
    return "\n".join([*lines, f"\n{where}."])


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        row["size"],
        TITLES[row["tool"]],
        f"{row['cpu_seconds']:.2f}",
        f"{row['seconds']:.2f}",
        f"{row['peak_mb']:.0f}",
        "" if row["gradient"] is None else f"{row['gradient']:.0e}",
        f"{row['slope']:.3f}",
        "" if row["covered"] is None else f"{row['covered']:.3f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write the tables to FILE")
    parser.add_argument(
        "--size", choices=list(SIZES), action="append", help="only this size; may be repeated"
    )
    parser.add_argument("--tool", choices=list(FITS), action="append", help="only this tool; may be repeated")
    parser.add_argument("--threads", type=int, default=1, help="threads of the libraries below numpy")
    parser.add_argument("--draw", choices=list(SIZES), help=argparse.SUPPRESS)
    parser.add_argument("--fit", choices=list(FITS), help=argparse.SUPPRESS)
    parser.add_argument("--votes", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.draw:
        save(draw(SIZES[options.draw]), options.votes)
    elif options.fit:
        print(json.dumps(measure(options.fit, options.votes)))
    else:
        report(options)


def report(options: argparse.Namespace) -> None:
    rows = compare(options.size or list(PLAN), options.tool, options.threads)
    everything = options.size is None and options.tool is None
    found = {
        "machine": machine(options.threads),
        "fits": rows,
        "ratios": ratios(rows),
        "cold_start": cold_start(REAL) if everything else None,
    }
    text = as_text(found)
    if options.markdown is not None:
        said = (
            f"# Speed of the audit\n\nWritten by `python -m bench.audit --markdown {options.markdown}`.\n\n"
        )
        options.markdown.write_text(said + text + "\n")
    print(json.dumps(found, indent=2) if options.json else text)


if __name__ == "__main__":
    main()
