"""The audit: judgments in; tables, checks, warnings and a page out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.sparse.linalg import eigsh
from scipy.special import expit

from badpo import __version__
from badpo.auditing.people import Design, Flag, Options, People, design_of, people_of
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


@dataclass(frozen=True, eq=False)
class Agreement:
    """Agreement of an audit."""

    summary: dict[str, Any]
    annotators: pd.DataFrame


def agreement_of(design: Design, prompts: NDArray) -> Agreement:
    """Agreement of the pool and of each annotator."""
    votes = design.comparison, design.sign, design.annotator
    pool = pool_agreement(*votes, prompts)
    each = annotator_agreement(*votes, design.n_annotators)
    repeats = self_contradictions(*votes, design.n_annotators)
    return Agreement(
        {
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
                "n_repeated": int(repeats.n_repeated.sum()),
                "n_contradicted": int(repeats.n_contradicted.sum()),
                "n_annotators": int((repeats.n_contradicted > 0).sum()),
                "share": repeats.share,
            },
        },
        pd.DataFrame({"agreement": each.agreement, "agreement_low": each.low, "agreement_high": each.high}),
    )


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


QUANTILES = {"min": 0.0, "lower_quartile": 0.25, "median": 0.5, "upper_quartile": 0.75, "max": 1.0}


def data_health(judgments: Judgments, design: Design, source: str) -> dict[str, Any]:
    """The part ``data`` of audit.json."""
    n_votes = np.bincount(design.annotator, minlength=design.n_annotators)
    n_votes = n_votes[n_votes > 0]
    per_comparison = np.bincount(design.comparison, minlength=judgments.n_comparisons)
    wins = np.bincount(design.comparison, weights=design.sign > 0, minlength=judgments.n_comparisons)
    several = per_comparison > 1
    unanimous = several & ((wins == 0) | (wins == per_comparison))
    sizes, counts = np.unique(per_comparison, return_counts=True)
    return {
        "source": source,
        "fingerprint": judgments.fingerprint(),
        "n_judgments": judgments.n_votes,
        "n_comparisons": judgments.n_comparisons,
        "n_prompts": int(judgments.comparisons["prompt_id"].nunique()),
        "n_annotators": len(n_votes) if judgments.has_identities else 0,
        "has_annotators": judgments.has_identities,
        "n_dropped": int(judgments.dropped["n"].sum()),
        "dropped": _dropped(judgments),
        "votes_per_comparison": {str(k): int(n) for k, n in zip(sizes, counts, strict=True)},
        "judgments_per_annotator": {
            name: float(np.quantile(n_votes, share)) for name, share in QUANTILES.items()
        },
        "unanimous_share": float(unanimous.sum() / several.sum()) if several.any() else None,
        "position": _position(judgments),
    }


def _dropped(judgments: Judgments) -> list[dict[str, Any]]:
    """Rows that are no vote, by reason, with the number of annotators who had one."""
    groups = judgments.dropped.groupby("reason", sort=False)
    return [
        {"reason": str(reason), "n": int(rows["n"].sum()), "n_annotators": len(rows)}
        for reason, rows in groups
    ]


def _position(judgments: Judgments) -> dict[str, Any] | None:
    """How often the side that was shown first won, with its interval clustered by prompt; None when nobody knows."""
    first = judgments.votes["shown_first"].map({"a": 1, "b": -1}).to_numpy(dtype=np.float64, na_value=np.nan)
    known = np.isfinite(first)
    if not known.any():
        return None
    prompts = judgments.comparisons["prompt_id"].to_numpy()[judgments.votes["comparison"].to_numpy()[known]]
    sign = judgments.votes["sign"].to_numpy()[known]
    (found,) = offline_log_odds(sign, first[known, None], np.ones((len(sign), 1), dtype=bool), prompts)
    # where every vote went one way the interval has one end, and the share itself is the other
    ends = [found.carrier_wins if end is None else float(expit(end)) for end in (found.ci_low, found.ci_high)]
    known_ends = found.ci_low is not None or found.ci_high is not None
    return {
        "n_annotators": voters(judgments, known),
        "n_known": found.n_cross,
        "first_wins": found.carrier_wins,
        "ci_low": ends[0] if known_ends else None,
        "ci_high": ends[1] if known_ends else None,
    }


HALF_WIDTHS = (0.5, 0.25)
COLUMNS = ("round", "comparison_id", "prompt_id", "annotator", "attribute", "reason")
HOW = (
    "the votes of a round enter as a comparison of their own, under a new comparison_id: added to the votes that made "
    "the comparison look worth asking about, they would bias the estimates"
)


def next_steps(
    judgments: Judgments, design: Design, leans: Leans, min_informative: int
) -> tuple[dict[str, Any], pd.DataFrame]:
    """The part ``next`` of audit.json, and the rows of the requests file."""
    requests = _requests(judgments, design, min_informative)
    return {
        "votes_needed": [row for half_width in HALF_WIDTHS for row in _needed(half_width, design, leans)],
        "n_requests": len(requests),
        "n_rounds": int(requests["round"].nunique()),
        "requests_file": REQUESTS_FILE,
        "how": HOW,
    }, requests


def _needed(half_width: float, design: Design, leans: Leans) -> list[dict[str, Any]]:
    of_median = votes_needed(leans.se, leans.n_informative, half_width).of_median
    share = leans.n_informative.sum(axis=0) / max(len(design.comparison), 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        judgments = np.ceil(of_median / share)
    return [
        {
            "attribute": name,
            "half_width": half_width,
            "informative_votes": of_median[j],
            "judgments": judgments[j],
        }
        for j, name in enumerate(design.attributes)
    ]


def _requests(judgments: Judgments, design: Design, min_informative: int) -> pd.DataFrame:
    """Nobody is asked for anything where nobody knows who voted."""
    if not design.has_identities:
        return pd.DataFrame({name: pd.Series(dtype=object) for name in COLUMNS})
    found = joining_comparisons(design.comparison, *design.votes[1:], min_informative=min_informative)
    comparison = judgments.comparisons.iloc[found["comparison"].to_numpy(dtype=np.intp)]
    return pd.DataFrame(
        {
            "round": found["round"].to_numpy(),
            "comparison_id": comparison["comparison_id"].to_numpy(),
            "prompt_id": comparison["prompt_id"].to_numpy(),
            "annotator": design.annotators[found["annotator"].to_numpy(dtype=np.intp)],
            "attribute": np.array(design.attributes, dtype=object)[
                found["attribute"].to_numpy(dtype=np.intp)
            ],
            "reason": found["reason"].to_numpy(),
        }
    )


Progress = Callable[[str, float], None]
DEFAULT_FLAG = Flag()


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
    options = Options(quality, shrink, anchors, anchor_class, flag, min_informative)
    options.check()
    progress("reading", 0.0)
    judgments = _judgments(data, attributes, options, reading)
    problems = _stopping_at_errors(check(judgments))
    design = design_of(judgments)
    progress("annotators", 0.2)
    people = people_of(judgments, design, options)
    agreed = agreement_of(design, vote_prompts(judgments))
    steps, requests = next_steps(judgments, design, people.leans, min_informative)
    progress("pool", 0.7)
    rows = pool_attributes(judgments)
    checks = people.checks() | {"swap_pairs": _swap_pairs(rows)}
    progress("undeclared features", 0.8)
    summary = {
        "schema": SCHEMA,
        "version": __version__,
        "about_single_people": True,
        "data": data_health(judgments, design, source or _name(data)) | agreed.summary,
        "settings": _settings(judgments, options),
        "attributes": rows,
        "pool": people.pool(),
        "checks": checks,
        "scan": scan_features(judgments),
        "next": steps,
        "warnings": _as_rows([*problems, *audit_findings(judgments, people, checks)], data),
        "annotators_file": ANNOTATORS_FILE,
    }
    summary = plain(summary)
    for row, verdict in zip(summary["attributes"], audit_verdicts(summary), strict=True):
        row["verdict"] = verdict.finding
    tables = people.table(agreed.annotators), requests
    for table in tables:
        table.attrs["about_single_people"] = True
    return AuditResult(summary, *tables)


def _judgments(
    data: Any, attributes: Sequence[Attribute], options: Options, reading: dict[str, Any]
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


def _stopping_at_errors(problems: list[Problem]) -> list[Problem]:
    errors = [problem for problem in problems if problem.severity == "error"]
    if errors:
        raise DataError(errors)
    return problems


def _name(data: Any) -> str:
    """The file's name without its folder, which may say whose computer it was."""
    return Path(data).name if isinstance(data, str | os.PathLike) else type(data).__name__


def _settings(judgments: Judgments, options: Options) -> dict[str, Any]:
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


def _swap_pairs(rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Attributes whose lean swap pairs show, with the convention that this takes; None where there are none."""
    found = {row["name"]: row["quality_adjusted"] for row in rows if row["quality_adjusted"] is not None}
    found = {name: adjusted for name, adjusted in found.items() if adjusted["how"] == "swap pairs"}
    return found or None


def _as_rows(problems: Sequence[Problem], data: Any) -> list[dict[str, Any]]:
    """Problems as rows, errors first; a path is shown by its file's name alone."""
    order = {"error": 0, "warning": 1, "notice": 2}
    rows = [vars(problem) for problem in sorted(problems, key=lambda problem: order[problem.severity])]
    if not isinstance(data, str | os.PathLike):
        return rows
    path, name = str(data), Path(data).name
    return [
        row | {"where": row["where"].replace(path, name), "what": row["what"].replace(path, name)}
        for row in rows
    ]
