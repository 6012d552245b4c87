"""The audit on votes whose leans are known: `python -m bench.audit_planted [ukpconvarg1|mtbench] [-o DIR]`.

Takes the design of real votes (who judged which comparison, and where the responses differ), draws leans and
qualities, lets every annotator vote anew, and prints what the audit finds beside what was planted.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from badpo.attributes import Length, Markdown
from badpo.auditing.audit import audit
from badpo.auditing.result import AuditResult
from badpo.data.judgments import Judgments

DATA = Path("../shared/data")
DESIGNS = {
    "ukpconvarg1": ("ukpconvarg1_human.parquet", [Length()]),
    "mtbench": ("mtbench_human_gpt4.parquet", [Length(), Markdown()]),
}
MEAN, SPREAD, QUALITY_SD = 0.8, 0.4, 1.0


def planted(design: Judgments, seed: int) -> tuple[Judgments, NDArray[np.float64]]:
    """The same judgments with votes drawn from known leans, and these leans, of shape (n_annotators, n_attributes)."""
    random = np.random.default_rng(seed)
    theta = MEAN + SPREAD * random.standard_normal((design.n_annotators, design.n_attributes))
    quality = QUALITY_SD * random.standard_normal(design.n_comparisons)
    comparison, annotator = (design.votes[name].to_numpy() for name in ("comparison", "annotator"))
    logit = quality[comparison] + (theta[annotator] * design.delta).sum(axis=1)
    sign = np.where(random.random(len(logit)) < 1 / (1 + np.exp(-logit)), 1, -1)
    return dataclasses.replace(design, votes=design.votes.assign(sign=sign)), theta


def against_truth(result: AuditResult, design: Judgments, theta: NDArray[np.float64]) -> list[dict[str, Any]]:
    """One row for each attribute: the estimates of the audit beside the planted values."""
    number = pd.Series(np.arange(design.n_annotators), index=design.annotators["pseudonym"])
    return [
        {"attribute": name, **_compared(rows, theta[number[rows["annotator"]].to_numpy(), j], result, name)}
        for j, name in enumerate(design.attribute_names)
        for rows in [result.annotators[result.annotators["attribute"] == name]]
    ]


def _compared(
    rows: pd.DataFrame, theta: NDArray[np.float64], result: AuditResult, name: str
) -> dict[str, Any]:
    rows = rows.assign(theta=theta).query("component >= 0").copy()
    # a deviation is from the mean of the annotators that the votes compare with each other
    rows["truth"] = rows["theta"] - rows.groupby("component")["theta"].transform("mean")
    sure = rows[rows["status"] == "ok"]
    known = rows[np.isfinite(rows["shrunk"])]
    pool, flagged = result.pool[name], rows[rows["flag"]]
    low, high = pool["tau_ci"] or (None, None)
    return {
        "tau planted": SPREAD,
        "tau estimated": pool["tau"],
        "tau low": low,
        "tau high": high,
        "annotators": len(rows),
        "with enough votes": len(sure),
        "slope": _slope(sure["deviation"], sure["truth"]),
        "interval covers": _covers(sure["truth"], sure["ci_low"], sure["ci_high"]),
        "posterior covers": _covers(known["truth"], known["post_low"], known["post_high"]),
        "posterior covers, enough votes": _covers(sure["truth"], sure["post_low"], sure["post_high"]),
        "all intervals and bounds cover": _covers(rows["truth"], rows["ci_low"], rows["ci_high"]),
        "error raw": _rms(sure["deviation"] - sure["truth"]),
        "error shrunken": _rms(sure["shrunk"] - sure["truth"]),
        "flagged": len(flagged),
        "flagged, truth within rho": int((flagged["truth"].abs() <= 0.5).sum()),
        "level printed": pool["level"],
    }


def _slope(estimate: pd.Series, truth: pd.Series) -> float | None:
    """Regression of the estimate on the truth; 1 where neither inflated nor flattened."""
    return float(np.cov(estimate, truth)[0, 1] / truth.var()) if len(truth) > 2 else None


def _covers(truth: pd.Series, low: pd.Series, high: pd.Series) -> float | None:
    return float(((low <= truth) & (truth <= high)).mean()) if len(truth) else None


def _rms(error: pd.Series) -> float | None:
    return float(np.sqrt((error**2).mean())) if len(error) else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("design", nargs="?", choices=DESIGNS, default="ukpconvarg1")
    parser.add_argument("-o", "--out", type=Path, help="folder for the planted votes' audit")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    name, attributes = DESIGNS[arguments.design]
    if not (DATA / name).is_file():
        parser.exit(1, f"{DATA / name} is not there; this bench needs the table of real votes\n")
    design = Judgments.read(DATA / name, attributes=attributes)
    judgments, theta = planted(design, arguments.seed)
    result = audit(judgments, source=f"votes planted on the design of {name}")
    if arguments.out is not None:
        result.write(arguments.out)
    rows = against_truth(result, design, theta)
    print(json.dumps(rows, indent=2) if arguments.json else _as_lines(rows))


def _as_lines(rows: list[dict[str, Any]]) -> str:
    names = list(rows[0])
    lines = [f"{name:<32}" + "".join(f"{_text(row[name]):>12}" for row in rows) for name in names]
    return "\n".join(lines)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
