"""What an audit has to say beside its tables, in the words of `badpo.data.problems`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import eigsh

from badpo.auditing.people import People
from badpo.data.judgments import Judgments
from badpo.data.problems import Problem, counted
from badpo.estimation.leans import Leans

NOT_RANDOM = 0.05
UNLIKE = 0.01
SIZES_SHOWN = 5
# With fewer annotators the pool's interval says little about others, and so does the test of classes with so few each.
FEW_ANNOTATORS = 20
# Groups are joined by few comparisons where one difference between at least so many people holds more than this share
# of all that is not known of single leans, and moves each of them by this standard error in log-odds.
FEWEST_APART, MOST_OF_VARIANCE, LARGE_ERROR = 2.9, 0.6, 0.25
OUTLYING = 10.0


def audit_findings(judgments: Judgments, people: People, checks: dict[str, Any]) -> list[Problem]:
    """Warnings and notices of the estimates, the most general first."""
    found = [*_of_votes(judgments), *_of_estimator(people, checks), *_of_anchors(people, checks)]
    if people.design.has_identities:
        for j, name in enumerate(people.design.attributes):
            found.extend(_of_attribute(j, f'attribute "{name}"', people))
    for j, attribute in enumerate(judgments.attributes):
        if attribute.continuous:
            found.extend(_units(judgments.delta[judgments.cross_group()[:, j], j], attribute.name))
    return found


def _of_votes(judgments: Judgments) -> Iterable[Problem]:
    weighted = int((judgments.votes["weight"] != 1).sum())
    if weighted:
        what = f"{counted(weighted, 'judgment')} carry a weight, which the audit does not use"
        yield Problem("W401", what, "column weight", "every vote counts once here", "warning", weighted)
    if (
        judgments.has_identities
        and judgments.n_comparisons >= 2 * judgments.comparisons["prompt_id"].nunique()
    ):
        what = (
            "prompts have several comparisons, which the estimates of single annotators, tau and the tests between "
            "them take for independent; only the pool's intervals are clustered by prompt"
        )
        remedy = "take these intervals for too short where people judge one prompt in one way"
        yield Problem("W413", what, "column prompt_id", remedy, "warning")


def _units(differences: NDArray[np.float64], name: str) -> Iterable[Problem]:
    """Of a continuous attribute: what its unit does, and whether a few judgments have most of it."""
    typical, largest = np.median(np.abs(differences)), np.abs(differences).max(initial=0.0)
    what = f"leans, tau and rho count per unit; the sides typically differ by {typical:#.3g}"
    if largest > OUTLYING * typical:
        what += f", and by up to {largest:#.3g}: the few judgments with such differences decide"
    remedy = "choose the unit so that a typical difference is 1, or declare a threshold as a 0/1 attribute"
    yield Problem("W414", what, f'attribute "{name}"', remedy, "warning")


def _of_estimator(people: People, checks: dict[str, Any]) -> Iterable[Problem]:
    quality = checks["estimator"]["quality"]
    p_value = (checks["assignment"] or {}).get("p_value")
    not_random = p_value is not None and p_value < NOT_RANDOM
    if quality == "joint":
        sizes = np.bincount(people.design.comparison)
        mean = float(sizes[sizes > 1].mean()) if (sizes > 1).any() else 2.0
        what = (
            f"deviations are inflated by {mean / (mean - 1):.2f} or more: a free quality for every comparison, with "
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
            "not comparable; the estimates do not take it for granted"
        )
        yield Problem("N403", what, "checks.assignment", "compare estimates, not raw rates", "notice")


def _of_anchors(people: People, checks: dict[str, Any]) -> Iterable[Problem]:
    if checks["anchors"] is None:
        return
    for j, name in enumerate(people.design.attributes):
        where = f'attribute "{name}"'
        p_value = checks["anchors"]["equal_leans_p"][name]
        if p_value is not None and p_value < UNLIKE:
            what = f"the anchors differ among themselves (p = {p_value:.2g}): they cannot all lean nowhere"
            remedy = "look at their rows in an audit without anchors, and drop those who stand apart"
            yield Problem("W407", what, where, remedy, "warning")
        if not people.leans.absolute[j]:
            what = "the anchors do not reach everyone, so the level stays open"
            remedy = "let an anchor judge comparisons with the others; requests.parquet names some"
            yield Problem("W408", what, where, remedy, "warning")


def _of_attribute(j: int, where: str, people: People) -> Iterable[Problem]:
    design, leans, least = people.design, people.leans, people.options.min_informative
    voted = design.per_annotator(np.ones(len(design.annotator), dtype=bool)) > 0
    few = voted & (leans.n_informative[:, j] < least)
    if few.any():
        n, everyone = int(few.sum()), counted(int(voted.sum()), "annotator")
        what = f"{n:,} of {everyone} ({n / voted.sum():.0%}) have fewer than {least} informative votes"
        remedy = (
            "read the spread over annotators and the classes; single estimates of these people are not sure"
        )
        yield Problem("W404", what, where, remedy, "warning", n)
    separated = int(np.char.startswith(leans.status[:, j].astype(str), "separated").sum())
    if separated:
        what = (
            f"the votes give {counted(separated, 'annotator')} no bounded estimate: all that compare them with some "
            "others went one way"
        )
        remedy = "their estimate is infinite; read the shrunken value"
        yield Problem("W405", what, where, remedy, "warning", separated)
    yield from _components(j, where, people)
    if _is_joined_by_few(leans, j):
        what = (
            "groups of annotators are joined by few comparisons: inside a group leans are compared, between groups "
            "hardly, and tau and shrunken values take that for agreement"
        )
        remedy = "compare within groups; let people of either group judge the same comparisons"
        yield Problem("W411", what, where, remedy, "warning")
    if people.posteriors[j].flag.any():
        what = (
            "a flag need not be a lean: care is not modelled (whoever answers at random can look as if they lean), nor "
            "is a lean toward what goes with the attribute and is not declared; the rate of false flags holds on "
            "average, not for each"
        )
        remedy = "read comparisons of whoever is flagged, with the agreement and prob_exceeds beside"
        yield Problem("W410", what, where, remedy, "warning")
    classes = people.classes[j]
    sizes = [row["n"] for row in classes.rows if row["n"]]
    if classes.p_value is not None and classes.p_value < NOT_RANDOM and min(sizes) < FEW_ANNOTATORS:
        what = "the test that classes differ rejects too often where a class has few annotators who differ themselves"
        yield Problem("W412", what, where, "take more annotators before training by class", "warning")
    if voted.sum() < FEW_ANNOTATORS:
        what = "the pool's intervals hold for other prompts judged by these annotators, who are few; others may differ"
        yield Problem("N415", what, where, "have more people judge before saying how people lean", "notice")
    told = int(design.informative[:, j].sum())
    if told and not np.isfinite(people.posteriors[j].spread.tau):
        what = (
            f"{counted(told, 'informative vote')} do not say how far annotators differ; no estimate is shrunk"
        )
        remedy = "have more people judge the same comparisons; requests.parquet names some"
        yield Problem("W409", what, where, remedy, "warning", told)


def _is_joined_by_few(leans: Leans, j: int) -> bool:
    """Whether one difference between groups is most of what is not known of the leans."""
    if leans.covariance is None:
        return False
    q = leans.deviation.shape[1]
    covariance = leans.covariance[j::q, j::q]
    there = np.diag(covariance) > 0
    n = int(there.sum())
    if n < 2 * FEWEST_APART:
        return False
    covariance = covariance[np.ix_(there, there)]
    (variance,), direction = eigsh(covariance, k=1, v0=np.random.default_rng(0).standard_normal(n))
    moved = 1 / (direction**4).sum()
    large = variance > MOST_OF_VARIANCE * np.trace(covariance) and variance > n * LARGE_ERROR**2
    return bool(large and moved >= FEWEST_APART)


def _components(j: int, where: str, people: People) -> Iterable[Problem]:
    component = people.leans.component[:, j]
    sizes = np.sort(np.unique(component[component >= 0], return_counts=True)[1])[::-1]
    if people.leans.quality == "conditional" and len(sizes) > 1:
        shown = " + ".join(f"{size:,}" for size in sizes[:SIZES_SHOWN])
        smaller = int(sizes[SIZES_SHOWN:].sum())
        more = f" + {smaller:,} in smaller ones" if smaller else ""
        what = (
            f"annotators form {len(sizes):,} groups that the informative votes do not compare ({shown}{more})"
        )
        remedy = "requests.parquet lists the comparisons that would join them"
        yield Problem("W406", what, where, remedy, "warning", len(sizes))
