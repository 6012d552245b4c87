"""The audit: judgments in; tables, checks, warnings and a page out."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.sparse.linalg import eigsh
from scipy.special import expit, ndtri

from badpo import __version__
from badpo.auditing.people import AuditedPeople, AuditOptions, Design, people_of
from badpo.auditing.pool import plain, pool_attributes, scan_features, vote_prompts, voters
from badpo.auditing.result import ANNOTATORS_FILE, SCHEMA, AuditResult
from badpo.data.attributes import Attribute, Position
from badpo.data.checks import check
from badpo.data.files import Json
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError, DataError, Problem, counted, worst_first
from badpo.estimation.fit import Leans
from badpo.estimation.significance import pool_agreement, self_contradictions
from badpo.results.audit_verdicts import audit_verdicts
from badpo.theory import Floats

Progress = Callable[[str, float], None]
HALF_WIDTHS = (0.5, 0.25)


def audit(
    data: Any,
    attributes: Sequence[Attribute] = (),
    *,
    quality: str | None = None,
    anchors: Sequence[str] = (),
    anchor_class: str | None = None,
    rho: float = 0.5,
    fdr: float = 0.1,
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
    quality : None, "conditional", "random" or "fixed:COLUMN"
        How the unknown quality of a comparison is dealt with. Conditional: it drops out, given how many votes each
        side got. Random: drawn from a normal distribution, which is wrong where annotators judge different kinds of
        comparisons. Fixed: the difference of two columns, times a fitted scale. None: conditional, unless it would
        say nothing about most annotators; ``checks.estimator.why`` has the reason.
    anchors, anchor_class : sequence of str; str or None
        Annotators known to lean nowhere, by id or by class. They fix the common level.
    rho, fdr : float
        Annotators are flagged whose deviation exceeds ``rho`` log-odds, given everyone's votes; ``fdr`` is the share
        of the flagged that may deviate by less (false discovery rate).
    min_informative : int
        Informative votes below which an annotator's estimate is called insufficient.
    source : str or None
        What the page calls the data; None: the file's name.
    progress : callable
        Takes what is being done and the share of it that is done.
    **reading
        Options of `Judgments.read`.

    Raises
    ------
    DataError, ConfigError
        The table is wrong, or an attribute cannot be estimated from it at all; an option is.

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
    >>> len(audit(rows, [Length()]).annotators)
    3
    """
    options = AuditOptions(quality, anchors, anchor_class, rho, fdr, min_informative)
    progress("reading", 0.0)
    judgments = _judgments(data, attributes, reading)
    problems = check(judgments)
    if any(problem.severity == "error" for problem in problems):
        raise DataError(problem for problem in problems if problem.severity == "error")
    progress("annotators", 0.2)
    design = Design(judgments)
    people = people_of(judgments, design, options)
    problems += audit_findings(judgments, design, options, people)
    progress("pool", 0.7)
    parts = {
        "data": data_health(judgments, design, source or _named(data)),
        "attributes": pool_attributes(judgments),
        "pool": people.pool,
        "checks": people.checks,
        "next": {"votes_needed": next_votes(design, people.leans)},
        "warnings": _as_rows(problems, data),
    }
    progress("undeclared features", 0.8)
    return _result(judgments, options, people.table, parts | {"scan": scan_features(judgments)})


def _judgments(data: Any, attributes: Sequence[Attribute], reading: Json) -> Judgments:
    if not isinstance(data, Judgments):
        data = Judgments.read(data, attributes=attributes, **reading)
    elif reading:
        raise ConfigError(
            f"these judgments are read already; give {', '.join(reading)} to Judgments.read"
        )
    elif attributes:
        data = data.with_attributes(attributes)
    if not data.n_attributes:
        raise ConfigError(
            "name an attribute to audit, as in --attribute length:ratio=1.5 or [Length(ratio=1.5)]"
        )
    return data


def _named(data: Any) -> str:
    """The file's name without its folder, which may say whose computer it was."""
    return Path(data).name if isinstance(data, str | os.PathLike) else type(data).__name__


def _as_rows(problems: Sequence[Problem], data: Any) -> list[Json]:
    """Problems as rows, errors first; a path is shown by its file's name alone."""
    rows = [asdict(problem) for problem in worst_first(problems)]
    if isinstance(data, str | os.PathLike):
        for row in rows:
            row |= {key: row[key].replace(str(data), _named(data)) for key in ("where", "what")}
    return rows


def _result(
    judgments: Judgments, options: AuditOptions, people: pd.DataFrame, parts: Json
) -> AuditResult:
    """The parts of audit.json with what was asked for and a verdict on each attribute, and those who voted."""
    declared = [{**found.config, "name": found.name} for found in judgments.attributes]
    asked = {name: getattr(options, name) for name in ("quality", "rho", "fdr", "min_informative")}
    summary = plain(
        {
            "schema": SCHEMA,
            "version": __version__,
            "about_single_people": True,
            "settings": {"attributes": declared, **asked},
            **parts,
            "annotators_file": ANNOTATORS_FILE,
        }
    )
    for row, verdict in zip(summary["attributes"], audit_verdicts(summary), strict=True):
        row["verdict"] = verdict.finding
    voted = (people["n_judgments"] > 0) & judgments.has_identities
    annotators = people[voted].reset_index(drop=True)
    annotators.attrs["about_single_people"] = True
    return AuditResult(summary, annotators)


# -- the data ----------------------------------------------------------------------------------------------------


def data_health(judgments: Judgments, design: Design, source: str) -> Json:
    """The part ``data`` of audit.json."""
    n_votes = design.n_votes[design.n_votes > 0]
    wins = pd.Series(design.sign > 0).groupby(design.comparison).agg(["mean", "size"])
    dropped = judgments.dropped.groupby("reason", sort=False)["n"].agg(n="sum", n_annotators="size")
    votes = design.comparison, design.sign, design.annotator
    agreement = asdict(pool_agreement(*votes, vote_prompts(judgments)))
    repeats = self_contradictions(*votes)
    contradicted = repeats["annotator"][repeats["contradicted"]]
    return {
        "source": source,
        "fingerprint": judgments.fingerprint(),
        "n_judgments": judgments.n_votes,
        "n_comparisons": judgments.n_comparisons,
        "n_prompts": judgments.comparisons["prompt_id"].nunique(),
        "n_annotators": len(n_votes) if judgments.has_identities else 0,
        "has_annotators": judgments.has_identities,
        "n_dropped": judgments.dropped["n"].sum(),
        "dropped": dropped.reset_index().to_dict("records"),
        "votes_per_comparison": wins["size"].value_counts().sort_index().to_dict(),
        "judgments_per_annotator": {"median": np.median(n_votes), "max": n_votes.max(initial=0)},
        "unanimous_share": wins["mean"][wins["size"] > 1].isin([0.0, 1.0]).mean(),
        "position": _position(judgments),
        "agreement": {"ci_low": agreement.pop("low"), "ci_high": agreement.pop("high"), **agreement},
        "self_contradictions": {
            "n_repeated": len(repeats),
            "n_contradicted": len(contradicted),
            "n_annotators": contradicted.nunique(),
            "share": repeats["contradicted"].mean(),
        },
    }


def _position(judgments: Judgments) -> Json | None:
    """How often the side that was shown first won, with its interval clustered by prompt; None when nobody knows."""
    if judgments.votes["shown_first"].isna().all():
        return None
    position = judgments.with_attributes([Position()])
    (found,) = position.offline_log_odds()
    ends: tuple[Any, ...] = found.interval()
    if ends != (None, None):
        # where every vote went one way the interval has one end, and the share itself is the other
        ends = tuple(found.carrier_wins if end is None else expit(end) for end in ends)
    return {
        "n_annotators": voters(judgments, position.cross_group()[:, 0]),
        "n_known": found.n_cross,
        "first_wins": found.carrier_wins,
        "ci_low": ends[0],
        "ci_high": ends[1],
    }


# -- what to collect next ----------------------------------------------------------------------------------------


def next_votes(design: Design, leans: Leans) -> list[Json]:
    """For each attribute and half-width how many votes the median annotator needs in all."""
    share = leans.n_informative.sum(axis=0) / max(len(design.comparison), 1)
    rows = []
    for half_width in HALF_WIDTHS:
        votes = votes_needed(leans.se, leans.n_informative, half_width)
        with np.errstate(divide="ignore", invalid="ignore"):
            judged = np.ceil(votes / share)
        columns = {"attribute": design.attributes, "informative_votes": votes, "judgments": judged}
        rows += pd.DataFrame(columns).assign(half_width=half_width).to_dict("records")
    return rows


def votes_needed(se: ArrayLike, n_informative: ArrayLike, half_width: float) -> Floats:
    r"""Informative votes until the median annotator's 95 % interval is as narrow as asked for, for each attribute.

    The information of votes adds up, so with v = n se^2 the variance of one informative vote

    .. math:: n^* = v\, (1.96 / h)^2

    ``se`` and ``n_informative`` are of shape (n_annotators, n_attributes); NaN where nobody has an estimate. Votes on
    comparisons that turn out unanimous, or whose sides do not differ, come on top.

    Examples
    --------
    >>> votes_needed([[0.5], [0.4], [np.nan]], [[20], [25], [0]], half_width=0.25)
    array([277.])
    """
    se, n = np.asarray(se, float), np.asarray(n_informative, float)
    of_one_vote = pd.DataFrame(np.where(np.isfinite(se) & (n > 0), n * se**2, np.nan))
    return np.ceil(of_one_vote.median().to_numpy() * (float(ndtri(0.975)) / half_width) ** 2)


# -- warnings and notices ----------------------------------------------------------------------------------------

# With fewer annotators the pool's interval says little about others, and so does the test of classes with so few each.
FEW_ANNOTATORS = 20
NOT_RANDOM, UNLIKE, OUTLYING = 0.05, 0.01, 10.0
# Groups are joined by few comparisons where one difference between at least so many people holds more than this share
# of all that is not known of single leans, and moves each of them by this standard error in log-odds.
FEWEST_APART, MOST_OF_VARIANCE, LARGE_ERROR = 2.9, 0.6, 0.25
# Code -> what was found, and what to do.
FINDINGS = {
    "W401": (
        "{} carry a weight, which the audit does not use",
        "every vote counts once here",
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
        "annotators form {:,} groups that the informative votes do not compare ({})",
        "let people of each group judge the same comparisons; the column component of annotators.parquet says "
        "who is in which",
    ),
    "W407": (
        "the anchors differ among themselves (p = {:.2g}): they cannot all lean nowhere",
        "look at their rows in an audit without anchors, and drop those who stand apart",
    ),
    "W408": (
        "the anchors do not reach everyone, so the level stays open",
        "let an anchor judge comparisons with the others",
    ),
    "W409": (
        "{} do not say how far annotators differ; no estimate is shrunk",
        "have more people judge the same comparisons",
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


# A code of `FINDINGS`, whether it is found and how often, and what its sentence is told.
Found = tuple[Any, ...]


def audit_findings(
    judgments: Judgments, design: Design, options: AuditOptions, people: AuditedPeople
) -> list[Problem]:
    """Warnings and notices of the estimates, the most general first."""
    weighted = int((judgments.votes["weight"] != 1).sum())
    n_prompts = judgments.comparisons["prompt_id"].nunique()
    are_several = judgments.has_identities and judgments.n_comparisons >= 2 * n_prompts
    quality, assignment = people.checks["estimator"]["quality"], people.checks["assignment"]
    p_value = assignment["p_value"] if assignment else np.nan
    unlike_chance = "N403" if quality == "conditional" else "W403"
    rows: list[Found] = [
        ("column weight", "W401", weighted, counted(weighted, "judgment")),
        ("column prompt_id", "W413", are_several),
        ("checks.assignment", unlike_chance, p_value < NOT_RANDOM, p_value, quality),
    ]
    for j, name in enumerate(design.attributes):
        found = _of_people(j, design, options, people) if design.has_identities else []
        found += _of_unit(judgments, j)
        rows += [(f'attribute "{name}"', *row) for row in found]
    return [
        Problem(code, FINDINGS[code][0].format(*told), where, FINDINGS[code][1], int(is_found))
        for where, code, is_found, *told in rows
        if is_found
    ]


def _of_people(j: int, design: Design, options: AuditOptions, people: AuditedPeople) -> list[Found]:
    name, least = design.attributes[j], options.min_informative
    pool, anchors = people.pool[name], people.checks["anchors"]
    graph = people.checks["components"]["informative"][name]
    anchors_p = anchors["equal_leans_p"][name] if anchors else np.nan
    informative = people.leans.n_informative[design.n_votes > 0, j]
    n_voted, n_few = len(informative), (informative < least).sum()
    sizes = [f"{n:,}" for n in graph["sizes"]] + ["..."] * (graph["n"] > len(graph["sizes"]))
    are_groups = graph["n"] > 1 and people.leans.quality == "conditional"
    class_p = np.nan if pool["class_test_p"] is None else pool["class_test_p"]
    smallest = min((row["n"] for row in pool["classes"] if row["n"]), default=0)
    told_apart = int(design.informative[:, j].sum())
    return [
        ("W407", anchors_p < UNLIKE, anchors_p),
        ("W408", anchors and not pool["absolute"]),
        ("W404", n_few, n_few, counted(n_voted, "annotator"), n_few / n_voted, least),
        ("W405", pool["n_separated"], counted(int(pool["n_separated"]), "annotator")),
        ("W406", are_groups and graph["n"], graph["n"], " + ".join(sizes)),
        ("W411", _is_joined_by_few(people.leans, j)),
        ("W410", pool["n_flagged"] > 0),
        ("W412", class_p < NOT_RANDOM and smallest < FEW_ANNOTATORS),
        ("N415", n_voted < FEW_ANNOTATORS),
        ("W409", np.isnan(pool["tau"]) and told_apart, counted(told_apart, "informative vote")),
    ]


def _of_unit(judgments: Judgments, j: int) -> list[Found]:
    """What leans on a continuous attribute count per."""
    if not judgments.attributes[j].continuous:
        return []
    differences = np.abs(judgments.delta[judgments.cross_group()[:, j], j])
    typical, largest, outlying = np.median(differences), differences.max(initial=0.0), ""
    if largest > OUTLYING * typical:
        outlying = f", and by up to {largest:#.3g}: the few judgments with such differences decide"
    return [("W414", True, typical, outlying)]


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
