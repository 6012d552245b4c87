"""The audit: judgments in; tables, checks, warnings and a page out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.sparse.linalg import eigsh
from scipy.special import expit

from badpo import __version__
from badpo.auditing.people import AuditedPeople, AuditOptions, Design, Flag, design_of, people_of
from badpo.auditing.pool import pool_attributes, scan_features, vote_prompts, voters
from badpo.auditing.result import ANNOTATORS_FILE, REQUESTS_FILE, SCHEMA, AuditResult, plain
from badpo.data.attributes import Attribute
from badpo.data.checks import check
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError, DataError, Problem, counted
from badpo.data.tables import has_column
from badpo.estimation.conditional_likelihood import Leans
from badpo.estimation.next_votes import joining_comparisons, votes_needed
from badpo.estimation.pool import offline_log_odds
from badpo.estimation.significance import annotator_agreement, pool_agreement, self_contradictions
from badpo.results.audit_verdicts import audit_verdicts

Progress = Callable[[str, float], None]
DEFAULT_FLAG = Flag()
QUANTILES = {"min": 0.0, "lower_quartile": 0.25, "median": 0.5, "upper_quartile": 0.75, "max": 1.0}
HALF_WIDTHS = (0.5, 0.25)
REQUEST_COLUMNS = ("round", "comparison_id", "prompt_id", "annotator", "attribute", "reason")
HOW_TO_REQUEST = (
    "the votes of a round enter as a comparison of their own, under a new comparison_id: added to the votes that made "
    "the comparison look worth asking about, they would bias the estimates"
)


def audit(
    data: Any,
    attributes: Sequence[Attribute] = (),
    *,
    quality: str | None = None,
    shrink: str = "normal",
    anchors: Sequence[str] = (),
    anchor_class: str | None = None,
    flag: Flag = DEFAULT_FLAG,
    min_informative: int = 10,
    source: str | None = None,
    progress: Progress = lambda what, share: None,
    **reading: Any,
) -> AuditResult:
    """Which way the pool and each annotator lean, how sure that is, and what the votes cannot say.

    Parameters
    ----------
    data : Judgments, or anything that `Judgments.read` takes
    attributes : sequence of Attribute
        Needed for data that are still to be read; Judgments may bring their own.
    quality : None, "conditional", "random", "fixed:COLUMN" or "joint"
        How the unknown quality of a comparison is dealt with. Conditional: it drops out, given how many votes each
        side got. Random: drawn from a normal distribution, which is wrong where annotators judge different kinds of
        comparisons. Fixed: the difference of two columns, times a fitted scale. Joint: a free number for every
        comparison, as in the paper; it inflates deviations. None: conditional, unless it would say nothing about
        most annotators; ``checks.estimator.why`` has the reason.
    shrink : "normal", "npmle" or "none"
        The distribution of leans that estimates are pulled toward.
    anchors, anchor_class : sequence of str; str or None
        Annotators known to lean nowhere, by id or by class. They fix the common level.
    flag : Flag
    min_informative : int
        Informative votes below which an annotator's estimate is called insufficient.
    source : str or None
        What the page calls the data; None: the file's name.
    progress : callable
        Takes what is being done and the share of it that is done.
    **reading
        Options of `Judgments.read`.

    Returns
    -------
    AuditResult

    Raises
    ------
    DataError
        The table is wrong, or an attribute cannot be estimated from it at all.
    ConfigError
        An option, an anchor or a column that is not there.

    References
    ----------
    BA-DPO, Section `theory`: who votes which way on cross-group comparisons identifies differences between
    annotators, and leaves one common level open.

    Examples
    --------
    >>> from badpo.attributes import Length
    >>> texts = {"response_a": "It just is so, always.", "response_b": "So."}
    >>> rows = [{"prompt": str(p), "annotator": who, "winner": "a" if (p + len(who)) % 3 else "b", **texts}
    ...     for p in range(30) for who in ("1", "22", "333")]
    >>> result = audit(rows, [Length()])
    >>> result.checks["estimator"]["quality"], len(result.annotators)
    ('conditional', 3)
    """
    options = AuditOptions(quality, shrink, anchors, anchor_class, flag, min_informative)
    options.check()
    progress("reading", 0.0)
    judgments = _judgments(data, attributes, options, reading)
    problems = check(judgments)
    errors = [problem for problem in problems if problem.severity == "error"]
    if errors:
        raise DataError(errors)
    design = design_of(judgments)
    progress("annotators", 0.2)
    people = people_of(judgments, design, options)
    agreement, agreement_of_each = agreement_of(judgments, design)
    steps, requests = next_steps(judgments, design, people.leans, min_informative)
    progress("pool", 0.7)
    rows = pool_attributes(judgments)
    adjusted = {row["name"]: row["quality_adjusted"] for row in rows}
    swaps = {name: found for name, found in adjusted.items() if found and found["how"] == "swap pairs"}
    checks = people.checks() | {"swap_pairs": swaps or None}
    progress("undeclared features", 0.8)
    if source is None:  # the file's name without its folder, which may say whose computer it was
        source = Path(data).name if isinstance(data, str | os.PathLike) else type(data).__name__
    summary = plain(
        {
            "schema": SCHEMA,
            "version": __version__,
            "about_single_people": True,
            "data": data_health(judgments, design, source) | agreement,
            "settings": _settings(judgments, options),
            "attributes": rows,
            "pool": people.pool(),
            "checks": checks,
            "scan": scan_features(judgments),
            "next": steps,
            "warnings": _as_rows([*problems, *audit_findings(judgments, people, checks)], data),
            "annotators_file": ANNOTATORS_FILE,
        }
    )
    for row, verdict in zip(summary["attributes"], audit_verdicts(summary), strict=True):
        row["verdict"] = verdict.finding
    tables = people.table(agreement_of_each), requests
    for table in tables:
        table.attrs["about_single_people"] = True
    return AuditResult(summary, *tables)


def _judgments(
    data: Any, attributes: Sequence[Attribute], options: AuditOptions, reading: dict[str, Any]
) -> Judgments:
    if not isinstance(data, Judgments):
        column = options.quality_column
        if column is not None and has_column(data, column):
            reading = reading | {"keep": [*reading.get("keep", ()), column]}
        data = Judgments.read(data, attributes=attributes, **reading)
    elif reading:
        raise ConfigError(f"these judgments are read already; give {', '.join(reading)} to Judgments.read")
    elif attributes:
        data = data.with_attributes(attributes)
    if not data.n_attributes:
        raise ConfigError(
            "name an attribute to audit, as in --attribute length:ratio=1.5 or [Length(ratio=1.5)]"
        )
    return data


def _settings(judgments: Judgments, options: AuditOptions) -> dict[str, Any]:
    """What was asked for: enough to run the same audit again."""
    flag = options.flag
    return {
        "attributes": [dict(attribute.config) for attribute in judgments.attributes],
        "quality": options.quality,
        "shrink": options.shrink,
        "rho": flag.rho,
        "fdr": flag.fdr,
        "flag_rule": flag.rule,
        "min_informative": options.min_informative,
    }


def _as_rows(problems: Sequence[Problem], data: Any) -> list[dict[str, Any]]:
    """Problems as rows, errors first; a path is shown by its file's name alone."""
    order = ("error", "warning", "notice")
    rows = [asdict(problem) for problem in sorted(problems, key=lambda p: order.index(p.severity))]
    if isinstance(data, str | os.PathLike):
        path, name = str(data), Path(data).name
        for row in rows:
            row |= {key: row[key].replace(path, name) for key in ("where", "what")}
    return rows


# -- the data ----------------------------------------------------------------------------------------------------


def data_health(judgments: Judgments, design: Design, source: str) -> dict[str, Any]:
    """The part ``data`` of audit.json, without agreement."""
    n_votes = design.n_votes[design.n_votes > 0]
    per_comparison = np.bincount(design.comparison, minlength=judgments.n_comparisons)
    wins = np.bincount(design.comparison, weights=design.sign > 0, minlength=judgments.n_comparisons)
    several = per_comparison > 1
    unanimous = several & ((wins == 0) | (wins == per_comparison))
    dropped = judgments.dropped.groupby("reason", sort=False)["n"].agg(["sum", "size"])
    return {
        "source": source,
        "fingerprint": judgments.fingerprint(),
        "n_judgments": judgments.n_votes,
        "n_comparisons": judgments.n_comparisons,
        "n_prompts": judgments.comparisons["prompt_id"].nunique(),
        "n_annotators": len(n_votes) if judgments.has_identities else 0,
        "has_annotators": judgments.has_identities,
        "n_dropped": judgments.dropped["n"].sum(),
        "dropped": [
            {"reason": str(reason), "n": n, "n_annotators": people}
            for reason, n, people in dropped.itertuples()
        ],
        "votes_per_comparison": dict(zip(*np.unique(per_comparison, return_counts=True), strict=True)),
        "judgments_per_annotator": {name: np.quantile(n_votes, share) for name, share in QUANTILES.items()},
        "unanimous_share": unanimous.sum() / several.sum() if several.any() else None,
        "position": _position(judgments),
    }


def _position(judgments: Judgments) -> dict[str, Any] | None:
    """How often the side that was shown first won, with its interval clustered by prompt; None when nobody knows."""
    first = judgments.votes["shown_first"].map({"a": 1, "b": -1}).to_numpy(dtype=np.float64, na_value=np.nan)
    known = np.isfinite(first)
    if not known.any():
        return None
    sign = judgments.votes["sign"].to_numpy()[known]
    cross, prompts = np.ones((len(sign), 1), dtype=bool), vote_prompts(judgments)[known]
    (found,) = offline_log_odds(sign, first[known, None], cross, prompts)
    ends: list[float | None] = [None, None]
    if found.ci_low is not None or found.ci_high is not None:
        # where every vote went one way the interval has one end, and the share itself is the other
        ends = [found.carrier_wins if end is None else expit(end) for end in (found.ci_low, found.ci_high)]
    return {
        "n_annotators": voters(judgments, known),
        "n_known": found.n_cross,
        "first_wins": found.carrier_wins,
        "ci_low": ends[0],
        "ci_high": ends[1],
    }


def agreement_of(judgments: Judgments, design: Design) -> tuple[dict[str, Any], pd.DataFrame]:
    """How far annotators agree with others and with themselves: of the pool, and of annotator k in row k."""
    votes, m = (design.comparison, design.sign, design.annotator), len(design.annotators)
    pool = pool_agreement(*votes, vote_prompts(judgments))
    each = annotator_agreement(*votes, m)
    repeats = self_contradictions(*votes, m)
    return {
        "agreement": {
            "n_comparisons": pool.n_comparisons,
            "n_votes": pool.n_votes,
            "percent": pool.percent,
            "ci_low": pool.low,
            "ci_high": pool.high,
            "kappa": pool.kappa,
            "alpha": pool.alpha,
        },
        "self_contradictions": {
            "n_repeated": repeats.n_repeated.sum(),
            "n_contradicted": repeats.n_contradicted.sum(),
            "n_annotators": (repeats.n_contradicted > 0).sum(),
            "share": repeats.share,
        },
    }, pd.DataFrame({"agreement": each.agreement, "agreement_low": each.low, "agreement_high": each.high})


# -- what to collect next ----------------------------------------------------------------------------------------


def next_steps(
    judgments: Judgments, design: Design, leans: Leans, min_informative: int
) -> tuple[dict[str, Any], pd.DataFrame]:
    """The part ``next`` of audit.json, and the rows of the requests file.

    ``votes_needed`` has for each attribute and half-width of an interval the informative votes in all that the median
    annotator needs, and the judgments that come to so many. Requests of one round are votes on one comparison.
    """
    share = leans.n_informative.sum(axis=0) / max(len(design.comparison), 1)
    needed = []
    for half_width in HALF_WIDTHS:
        of_median = votes_needed(leans.se, leans.n_informative, half_width)
        with np.errstate(divide="ignore", invalid="ignore"):
            judged = np.ceil(of_median / share)
        needed += [
            {"attribute": name, "half_width": half_width, "informative_votes": votes, "judgments": n}
            for name, votes, n in zip(design.attributes, of_median, judged, strict=True)
        ]
    requests = _requests(judgments, design, min_informative)
    return {
        "votes_needed": needed,
        "n_requests": len(requests),
        "n_rounds": requests["round"].nunique(),
        "requests_file": REQUESTS_FILE,
        "how": HOW_TO_REQUEST,
    }, requests


def _requests(judgments: Judgments, design: Design, min_informative: int) -> pd.DataFrame:
    """Nobody is asked for anything where nobody knows who voted."""
    if not design.has_identities:
        return pd.DataFrame({name: pd.Series(dtype=object) for name in REQUEST_COLUMNS})
    found = joining_comparisons(design.comparison, *design.votes[1:], min_informative=min_informative)
    comparison, annotator, attribute = (
        found[name].to_numpy(dtype=np.intp) for name in ("comparison", "annotator", "attribute")
    )
    asked = judgments.comparisons[["comparison_id", "prompt_id"]].iloc[comparison].reset_index(drop=True)
    asked.insert(0, "round", found["round"].to_numpy())
    asked["annotator"] = design.annotators[annotator]
    asked["attribute"] = np.array(design.attributes, dtype=object)[attribute]
    asked["reason"] = found["reason"].to_numpy()
    return asked


# -- warnings and notices ----------------------------------------------------------------------------------------

# With fewer annotators the pool's interval says little about others, and so does the test of classes with so few each.
FEW_ANNOTATORS = 20
NOT_RANDOM, UNLIKE, OUTLYING = 0.05, 0.01, 10.0
# Groups are joined by few comparisons where one difference between at least so many people holds more than this share
# of all that is not known of single leans, and moves each of them by this standard error in log-odds.
FEWEST_APART, MOST_OF_VARIANCE, LARGE_ERROR = 2.9, 0.6, 0.25
GROUPS_SHOWN = 5
# Code -> what was found, and what to do.
FINDINGS = {
    "W401": (
        "{} carry a weight, which the audit does not use",
        "every vote counts once here",
    ),
    "W402": (
        "deviations are inflated by {:.2f} or more: a free quality for every comparison, with {:.1f} votes on each",
        "leave --quality out",
    ),
    "W403": (
        "comparisons were not given at random (p = {:.3g}), which quality={} takes for granted",
        "use --quality conditional, which does not assume it",
    ),
    "N403": (
        "comparisons were not given to annotators at random (p = {:.3g}); raw rates of two annotators are not "
        "comparable; the estimates do not take it for granted",
        "compare estimates, not raw rates",
    ),
    "W404": (
        "{:,} of {} ({:.0%}) have fewer than {} informative votes",
        "read the spread over annotators and the classes; single estimates of these people are not sure",
    ),
    "W405": (
        "the votes give {} no bounded estimate: all that compare them with some others went one way",
        "their estimate is infinite; read the shrunken value",
    ),
    "W406": (
        "annotators form {:,} groups that the informative votes do not compare ({}{})",
        "requests.parquet lists the comparisons that would join them",
    ),
    "W407": (
        "the anchors differ among themselves (p = {:.2g}): they cannot all lean nowhere",
        "look at their rows in an audit without anchors, and drop those who stand apart",
    ),
    "W408": (
        "the anchors do not reach everyone, so the level stays open",
        "let an anchor judge comparisons with the others; requests.parquet names some",
    ),
    "W409": (
        "{} do not say how far annotators differ; no estimate is shrunk",
        "have more people judge the same comparisons; requests.parquet names some",
    ),
    "W410": (
        "a flag need not be a lean: care is not modelled (whoever answers at random can look as if they lean), nor is "
        "a lean toward what goes with the attribute and is not declared; the rate of false flags holds on average, "
        "not for each",
        "read comparisons of whoever is flagged, with the agreement and prob_exceeds beside",
    ),
    "W411": (
        "groups of annotators are joined by few comparisons: inside a group leans are compared, between groups hardly, "
        "and tau and shrunken values take that for agreement",
        "compare within groups; let people of either group judge the same comparisons",
    ),
    "W412": (
        "the test that classes differ rejects too often where a class has few annotators who differ themselves",
        "take more annotators before training by class",
    ),
    "W413": (
        "prompts have several comparisons, which the estimates of single annotators, tau and the tests between them "
        "take for independent; only the pool's intervals are clustered by prompt",
        "take these intervals for too short where people judge one prompt in one way",
    ),
    "W414": (
        "leans, tau and rho count per unit; the sides typically differ by {:#.3g}{}",
        "choose the unit so that a typical difference is 1, or declare a threshold as a 0/1 attribute",
    ),
    "N415": (
        "the pool's intervals hold for other prompts judged by these annotators, who are few; others may differ",
        "have more people judge before saying how people lean",
    ),
}


def _finding(code: str, where: str, *told: Any, count: int = 1) -> Problem:
    what, remedy = FINDINGS[code]
    return Problem(code, what.format(*told), where, remedy, "warning" if code[0] == "W" else "notice", count)


def audit_findings(judgments: Judgments, people: AuditedPeople, checks: dict[str, Any]) -> Iterator[Problem]:
    """Warnings and notices of the estimates, the most general first."""
    weighted = int((judgments.votes["weight"] != 1).sum())
    if weighted:
        yield _finding("W401", "column weight", counted(weighted, "judgment"), count=weighted)
    n_prompts = judgments.comparisons["prompt_id"].nunique()
    if judgments.has_identities and judgments.n_comparisons >= 2 * n_prompts:
        yield _finding("W413", "column prompt_id")
    yield from _of_estimator(people)
    named = [(j, f'attribute "{name}"') for j, name in enumerate(people.design.attributes)]
    for j, where in named if checks["anchors"] else ():
        p_value = checks["anchors"]["equal_leans_p"][people.design.attributes[j]]
        if p_value < UNLIKE:
            yield _finding("W407", where, p_value)
        if not people.leans.absolute[j]:
            yield _finding("W408", where)
    for j, where in named if people.design.has_identities else ():
        yield from _of_attribute(j, where, people)
    for j, where in named:
        if judgments.attributes[j].continuous:
            differences = np.abs(judgments.delta[judgments.cross_group()[:, j], j])
            typical, largest, outlying = np.median(differences), differences.max(initial=0.0), ""
            if largest > OUTLYING * typical:
                outlying = f", and by up to {largest:#.3g}: the few judgments with such differences decide"
            yield _finding("W414", where, typical, outlying)


def _of_estimator(people: AuditedPeople) -> Iterator[Problem]:
    p_value = people.assignment.p_value if people.assignment else np.nan
    if people.quality == "joint":
        sizes = np.bincount(people.design.comparison)
        mean = float(sizes[sizes > 1].mean()) if (sizes > 1).any() else 2.0
        yield _finding("W402", "quality: joint", mean / (mean - 1), mean)
    if p_value < NOT_RANDOM:
        code = "N403" if people.quality == "conditional" else "W403"
        yield _finding(code, "checks.assignment", p_value, people.quality)


def _of_attribute(j: int, where: str, people: AuditedPeople) -> Iterator[Problem]:
    design, leans, least = people.design, people.leans, people.options.min_informative
    rows = people.rows[j]
    voted = rows["n_judgments"] > 0
    n_voted, n_few = int(voted.sum()), int((voted & (rows["n_informative"] < least)).sum())
    if n_few:
        told = n_few, counted(n_voted, "annotator"), n_few / n_voted, least
        yield _finding("W404", where, *told, count=n_few)
    separated = int(rows["status"].str.startswith("separated").sum())
    if separated:
        yield _finding("W405", where, counted(separated, "annotator"), count=separated)
    component = rows["component"][rows["component"] >= 0]
    sizes = component.value_counts().tolist()
    if leans.quality == "conditional" and len(sizes) > 1:
        shown, smaller = " + ".join(f"{n:,}" for n in sizes[:GROUPS_SHOWN]), sum(sizes[GROUPS_SHOWN:])
        more = f" + {smaller:,} in smaller ones" if smaller else ""
        yield _finding("W406", where, len(sizes), shown, more, count=len(sizes))
    if _is_joined_by_few(leans, j):
        yield _finding("W411", where)
    if rows["flag"].any():
        yield _finding("W410", where)
    sizes = [row["n"] for row in people.classes[j] if row["n"]]
    if people.class_p[j] < NOT_RANDOM and min(sizes) < FEW_ANNOTATORS:
        yield _finding("W412", where)
    if n_voted < FEW_ANNOTATORS:
        yield _finding("N415", where)
    told_apart = int(design.informative[:, j].sum())
    if told_apart and not np.isfinite(people.spreads[j].tau):
        yield _finding("W409", where, counted(told_apart, "informative vote"), count=told_apart)


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
