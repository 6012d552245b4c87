"""What an audit has to say beside its tables, in the words of `badpo.data.problems`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from badpo.auditing.design import Design
from badpo.auditing.options import Options
from badpo.data.judgments import Judgments
from badpo.data.problems import Problem, counted
from badpo.estimation.leans import Leans

NOT_RANDOM = 0.05


def audit_findings(
    judgments: Judgments, design: Design, leans: Leans, checks: dict[str, Any], options: Options
) -> list[Problem]:
    """Warnings and notices of the estimates, the most general first.

    Parameters
    ----------
    judgments : Judgments
    design : Design
    leans : Leans
    checks : dict
        The part ``checks`` of audit.json, with ``estimator`` and ``assignment``.
    options : Options
    """
    found = [*_of_votes(judgments), *_of_estimator(design, checks)]
    for j, name in enumerate(design.attributes):
        found.extend(_of_attribute(j, name, design, leans, options))
    return found


def _of_votes(judgments: Judgments) -> Iterable[Problem]:
    weighted = int((judgments.votes["weight"] != 1).sum())
    if weighted:
        what = f"{counted(weighted, 'judgment')} carry a weight, which the audit does not use"
        yield Problem("W401", what, "column weight", "every vote counts once here", "warning", weighted)


def _of_estimator(design: Design, checks: dict[str, Any]) -> Iterable[Problem]:
    quality = checks["estimator"]["quality"]
    p_value = (checks["assignment"] or {}).get("p_value")
    not_random = p_value is not None and p_value < NOT_RANDOM
    if quality == "joint":
        sizes = np.bincount(design.comparison)
        mean = float(sizes[sizes > 1].mean()) if (sizes > 1).any() else 2.0
        what = (
            f"deviations are inflated by about {mean / (mean - 1):.2f}: a free quality for every comparison, with "
            f"{mean:.1f} votes on each"
        )
        yield Problem("W402", what, "quality: joint", "leave --quality out", "warning")
    if quality in ("random", "fixed", "joint") and not_random:
        what = f"comparisons were not given at random (p = {p_value:.3g}), which quality={quality} takes for granted"
        remedy = "use --quality conditional, which does not assume it"
        yield Problem("W403", what, "checks.assignment", remedy, "warning")
    elif not_random:
        what = (
            f"comparisons were not given to annotators at random (p = {p_value:.3g}); raw rates of two annotators are "
            "not comparable, the estimates are"
        )
        yield Problem("N403", what, "checks.assignment", "compare estimates, not raw rates", "notice")


def _of_attribute(j: int, name: str, design: Design, leans: Leans, options: Options) -> Iterable[Problem]:
    where = f'attribute "{name}"'
    voted = design.per_annotator(np.ones(len(design.annotator), dtype=bool)) > 0
    n_informative = leans.n_informative[:, j]
    few = voted & (n_informative < options.min_informative)
    if few.any():
        what = (
            f"{int(few.sum()):,} of {counted(int(voted.sum()), 'annotator')} ({few.sum() / voted.sum():.0%}) have "
            f"fewer than {options.min_informative} informative votes"
        )
        remedy = (
            "read the spread over annotators and the classes; single estimates of these people are not sure"
        )
        yield Problem("W404", what, where, remedy, "warning", int(few.sum()))
    separated = np.char.startswith(leans.status[:, j].astype(str), "separated")
    if separated.any():
        what = f"every informative vote of {counted(int(separated.sum()), 'annotator')} went one way"
        remedy = "their estimate is infinite and shown with a one-sided bound; read the shrunken value"
        yield Problem("W405", what, where, remedy, "warning", int(separated.sum()))
    yield from _components(j, where, leans)


def _components(j: int, where: str, leans: Leans) -> Iterable[Problem]:
    component = leans.component[:, j]
    sizes = np.sort(np.unique(component[component >= 0], return_counts=True)[1])[::-1]
    if leans.quality == "conditional" and len(sizes) > 1:
        shown = " + ".join(f"{size:,}" for size in sizes[:5])
        more = f" + {int(sizes[5:].sum()):,} in smaller ones" if len(sizes) > 5 else ""
        what = (
            f"annotators form {len(sizes):,} groups that the informative votes do not compare ({shown}{more})"
        )
        remedy = "requests.parquet lists the comparisons that would join them"
        yield Problem("W406", what, where, remedy, "warning", len(sizes))
