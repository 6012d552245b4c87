"""The audit: judgments in; tables, checks, warnings and a page out."""

import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.special import expit, ndtri

from badpo import __version__
from badpo.auditing.dependence import independent_votes, selective_ties, tie_effects
from badpo.auditing.people import (
    MOST_UNITS,
    OUTLYING,
    AuditedPeople,
    AuditOptions,
    Design,
    both_orders,
    models_of,
    people_of,
    with_models,
)
from badpo.auditing.pool import (
    features_behind_biases,
    plain,
    pool_attributes,
    scan_features,
    undeclared_features,
    voters,
    with_usual_attributes,
)
from badpo.auditing.result import ANNOTATORS_FILE, SCHEMA, AuditResult
from badpo.auditing.worth import drift, flips_without_leans, telling_pairs, times_of, to_reread
from badpo.data.attributes import Attributes, Position, as_attributes
from badpo.data.checks import check, estimable
from badpo.data.files import Json
from badpo.data.judgments import Judgments, ReadingOptions
from badpo.data.problems import (
    ConfigError,
    DataError,
    Problem,
    counted,
    did_you_mean,
    refuse_other_types,
    worst_first,
)
from badpo.data.tables import Source
from badpo.estimation.significance import pool_agreement, self_contradictions
from badpo.results.audit_verdicts import audit_verdicts
from badpo.theory import Floats

Progress = Callable[[str, float], None]
HALF_WIDTHS = (0.5, 0.25)
# Share of an audit's seconds, reading included, that have passed when a stage begins: the middle of four tables of
# 1,000 to 20,000 comparisons with 30 to 200 annotators.
DONE_BEFORE = {"annotators": 0.1, "features": 0.65, "pool": 0.85}


def audit(
    data: Judgments | Source,
    attributes: Attributes = (),
    *,
    quality: str | None = None,
    anchors: Sequence[str] = (),
    anchor_class: str | None = None,
    rho: float = 0.5,
    fdr: float = 0.1,
    min_informative: int = 10,
    models: Sequence[str] = (),
    time: str | None = None,
    source: str | None = None,
    progress: Progress = lambda what, share: None,
    **reading: Unpack[ReadingOptions],
) -> AuditResult:
    """Which way the pool and each annotator lean, how sure that is, and what the votes cannot say.

    Parameters
    ----------
    data : Judgments, or anything that `Judgments.read` takes, with its options as ``reading``
    attributes : Attribute, or text such as "length:ratio=1.5", or several
        Without any, those of Judgments; else length, Markdown and, where it is known, the side shown first. One on
        which the sides never differ is left out, with a warning, while another is left.
    quality : None, "conditional" or "marginal"
        A comparison's quality drops out, given how many votes each side got; or stays in every estimate, which is then
        the sum of bias and of reliability times merit. None: conditional, unless that says nothing about most
        annotators (``checks.estimator.why``).
    anchors, anchor_class : sequence of str; str or None
        Annotators known to lean nowhere, by id or by class. They fix the common level (BA-DPO, Section `theory`).
    rho, fdr, min_informative : float, float, int
        Flagged is whose deviation exceeds ``rho`` log-odds more likely than not; a share ``fdr`` of the flagged may
        deviate by less. Log-odds are of the attribute present against absent, or per median difference. Below so
        many informative votes an annotator's estimate is called insufficient.
    models : sequence of str
        Annotators that are models, by id; so are those of the class "model". Models are named, people never.
    time, source, progress : str or None, str or None, callable
        The column of times (None: "time", "timestamp" or "created_at" if kept); the path or name of the data; takes
        what is being done and the share of it that is done.

    Raises
    ------
    DataError, ConfigError
        The table or an attribute is of no use; an option.

    Examples
    --------
    >>> from badpo.attributes import Length
    >>> texts = {"response_a": "It just is so, always.", "response_b": "So."}
    >>> rows = [{"prompt": str(p), "annotator": who, "winner": "a" if (p + len(who)) % 3 else "b", **texts}
    ...     for p in range(30) for who in ("1", "22", "333")]
    >>> len(audit(rows, [Length()]).annotators)
    3
    """
    refuse_other_types(models=models, time=time, progress=progress, keep=reading.get("keep", ()))
    options = AuditOptions(quality, anchors, anchor_class, rho, fdr, min_informative)
    progress("audit: reading", 0.0)
    whole, judgments, times, problems = _read(data, attributes, models, time, reading)
    progress("audit: annotators", DONE_BEFORE["annotators"])
    design = Design(judgments)
    people, both = people_of(judgments, design, options), both_orders(whole)
    health = data_health(whole, design, both)
    progress("audit: undeclared features", DONE_BEFORE["features"])
    features, ties = undeclared_features(judgments), tie_effects(whole)
    found = audit_findings(judgments, features, design, options, people, health["agreement"])
    problems += [*selective_ties(ties), *found]
    progress("audit: pool", DONE_BEFORE["pool"])
    parts = {
        "data": {"source": _named(source or data) or whole.source or "this table", **health},
        "attributes": pool_attributes(judgments, ties),
        "pool": people.pool,
        "models": models_of(people.table, design, both),
        "checks": people.checks,
        "flips": flips_without_leans(design, people.leans, people.spreads),
        "drift": None if times is None else drift(judgments, design, times, min_informative),
        "next": {"votes_needed": next_votes(design, people)},
        "warnings": _as_rows(problems, source or data),
        "scan": scan_features(judgments, features),
    }
    return _result(judgments, design, options, people.table, parts)


def _read(
    data: Any,
    attributes: Attributes,
    models: Sequence[str],
    time: str | None,
    reading: ReadingOptions,
) -> tuple[Judgments, Judgments, pd.Series | None, list[Problem]]:
    """All judgments, those that count, when each of them was cast, and what is odd; an error if something is wrong."""
    attributes = as_attributes(attributes)
    known = (*inspect.signature(audit).parameters, *ReadingOptions.__annotations__)
    for name in reading.keys() - set(known):
        raise ConfigError(f'audit takes no "{name}".{did_you_mean(name, known)}')
    if not isinstance(data, Judgments):
        if time:
            reading["keep"] = [*reading.get("keep", ()), time]
        data = Judgments.read(data, attributes=attributes, **reading)
    elif reading:
        given = ", ".join(reading)
        raise ConfigError(f"these judgments are read already; give {given} to Judgments.read")
    elif attributes:
        data = data.with_attributes(attributes)
    judgments, left_out = estimable(with_models(with_usual_attributes(data), models))
    times, problems = times_of(judgments, time)
    problems = [*left_out, *check(judgments), *problems]
    if errors := [one for one in problems if one.severity == "error"]:
        raise DataError(errors)
    used, is_used, left_out = independent_votes(judgments)
    times = None if times is None else times[is_used].reset_index(drop=True)
    return judgments, used, times, worst_first([*problems, *left_out])


def _named(data: Any) -> str:
    """The file's name without its folder, which may say whose computer it was; nothing where there is no file."""
    return Path(data).name if isinstance(data, str | os.PathLike) else ""


def _as_rows(problems: Sequence[Problem], data: Any) -> list[Json]:
    """Problems as rows, errors first; a path is shown by its file's name alone."""
    rows = [asdict(problem) for problem in worst_first(problems)]
    for row in rows:
        # what a user types, and rows of the table: neither is for a page that is passed on
        del row["fix"], row["shown"]
    if isinstance(data, str | os.PathLike):
        for row in rows:
            row |= {
                key: row[key].replace(str(Path(data).expanduser()), _named(data))
                for key in ("where", "what")
            }
    return rows


def _result(
    judgments: Judgments, design: Design, options: AuditOptions, table: pd.DataFrame, parts: Json
) -> AuditResult:
    """The tables, and the parts of audit.json with what was asked for and a verdict on each attribute."""
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
    is_told = (table["n_judgments"] > 0) & judgments.has_identities
    of_ties = judgments.dropped[judgments.dropped["reason"] == "tie"]
    n_ties = table["annotator"].map(of_ties.groupby("annotator")["n"].sum()).fillna(0).astype(int)
    annotators = table.assign(n_ties=n_ties)[is_told].reset_index(drop=True)
    annotators.attrs["about_single_people"] = True
    reread = to_reread(judgments, design, table)
    return AuditResult(summary, annotators, reread, telling_pairs(judgments))


# -- the data ----------------------------------------------------------------------------------------------------


def data_health(judgments: Judgments, design: Design, both: pd.DataFrame) -> Json:
    """The part ``data`` of audit.json."""
    annotator = judgments.votes["annotator"].to_numpy()
    cast = np.bincount(annotator, minlength=len(design.annotators))
    n_votes, of_people = cast[cast > 0], cast[design.is_person]
    wins = (judgments.votes["sign"] > 0).groupby(judgments.votes["comparison"]).agg(["mean", "size"])
    dropped = judgments.dropped.groupby("reason", sort=False)["n"].agg(n="sum", n_annotators="size")
    agreement = asdict(pool_agreement(*design.first_votes, design.prompt_of_first_votes))
    # who saw the other side first was not asked the same again
    shown = pd.factorize(judgments.votes["shown_first"])[0]
    asked = judgments.votes["comparison"].to_numpy() * 3 + shown
    repeats = self_contradictions(asked, judgments.votes["sign"].to_numpy(), annotator)
    contradicted = repeats["annotator"][repeats["contradicted"]]
    in_both = both["annotator"].unique()
    return {
        "fingerprint": judgments.fingerprint(),
        "n_judgments": judgments.n_votes,
        "n_comparisons": judgments.n_comparisons,
        "n_prompts": judgments.comparisons["prompt_id"].nunique(),
        "n_annotators": len(n_votes) if judgments.has_identities else 0,
        "n_people": (of_people > 0).sum() if judgments.has_identities else 0,
        "has_annotators": judgments.has_identities,
        "n_dropped": judgments.dropped["n"].sum(),
        "dropped": dropped.reset_index().to_dict("records"),
        "votes_per_comparison": wins["size"].value_counts().sort_index().to_dict(),
        "judgments_per_annotator": {
            "median": np.median(n_votes),
            "max": n_votes.max(initial=0),
            "most_of_people": of_people.max(initial=0),
        },
        "unanimous_share": wins["mean"][wins["size"] > 1].isin([0.0, 1.0]).mean(),
        "position": _position(judgments),
        "agreement": {
            "ci_low": agreement.pop("low"),
            "ci_high": agreement.pop("high"),
            **agreement,
        },
        "self_contradictions": {
            "n_repeated": len(repeats),
            "n_contradicted": len(contradicted),
            "n_annotators": contradicted.nunique(),
            "share": repeats["contradicted"].mean(),
        },
        "both_orders": {
            "n": len(both),
            "same_share": both["same"].mean(),
            "n_annotators": len(in_both),
            "n_people": design.is_person[in_both].sum(),
        },
    }


def _position(judgments: Judgments) -> Json | None:
    """How often the side that was shown first won, with its interval clustered by prompt; None when nobody knows."""
    if judgments.votes["shown_first"].isna().all():
        return None
    position = judgments.with_attributes([Position()])
    (found,) = position.offline_log_odds()
    low, high = found.interval()
    if (low, high) != (None, None):
        # where every vote went one way the interval has one end, and the share itself is the other
        low, high = (found.carrier_wins if end is None else float(expit(end)) for end in (low, high))
    return {
        **voters(judgments, position.cross_group()[:, 0], position.delta[:, 0]),
        "n_known": found.n_cross,
        "first_wins": found.carrier_wins,
        "ci_low": low,
        "ci_high": high,
    }


# -- what to collect next ----------------------------------------------------------------------------------------


def next_votes(design: Design, people: AuditedPeople) -> list[Json]:
    """For each attribute and half-width how many votes the median annotator needs in all.

    The list is empty if annotators share no comparisons; ``pool[name].sum.needed`` then says how many comparisons
    need a second annotator.
    """
    leans = people.leans
    if leans.quality == "marginal":
        return []
    share = leans.n_informative.sum(axis=0) / max(len(design.comparison), 1)
    rows = []
    for half_width in HALF_WIDTHS:
        votes = votes_needed(leans.se, leans.n_informative, half_width)
        for name, n, n_judgments in zip(design.attributes, votes, votes / share, strict=True):
            needed = {"informative_votes": n, "judgments": np.ceil(n_judgments)}
            rows.append({"attribute": name, **needed, "half_width": half_width})
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

NOT_RANDOM, UNLIKE = 0.05, 0.01
# Agreement whose interval ends here is no better than that of coins, by anything that matters.
BY_CHANCE = 0.55
# Fewer prompts with several comparisons leave single leans less sure than their intervals say.
FEW_PROMPTS = 200
# Code -> what was found, and what to do.
FINDINGS = {
    "W401": (
        "{} carry a weight, which the audit does not use",
        "every vote counts once here",
    ),
    "W411": (
        "hardly any comparison has two annotators: figures of annotators and of the pool are sums of bias and of "
        "reliability times the merit that goes with the attribute, and these votes do not split them",
        "let a second annotator judge at least {:,} of the comparisons whose sides differ",
    ),
    "W412": (
        "annotators are not compared: {}",
        "let annotators judge the same comparisons",
    ),
    "W404": (
        "{:,} of {} with fewer than {} informative votes",
        "read the spread over annotators and the classes; single estimates of these are not sure",
    ),
    "W405": (
        "the votes give {} no bounded estimate: all that compare them with some others went one way",
        "their own estimate is infinite: read the shrunken one, where there is one",
    ),
    "W406": (
        "annotators form groups that the informative votes do not compare, or hardly ({}); each has a mean of its own",
        "let people of each group judge the same comparisons; the column component of annotators.parquet says who is "
        "in which",
    ),
    "W407": (
        "the anchors differ among themselves (p = {:.2g}): they do not all lean nowhere, or they differ in reliability",
        "look at their rows in an audit without anchors, and drop those who stand apart",
    ),
    "W408": (
        "the anchors do not reach everyone, so the level stays open",
        "let an anchor judge comparisons with the others; until then leans count from the mean of their group",
    ),
    "W409": (
        "{} do not say how far annotators differ{}",
        "have more people judge the same comparisons",
    ),
    "W410": (
        "{}; random responders can look biased, and tau, the test of one shared bias and the flags include such "
        "differences",
        "have annotators judge comparisons whose sides do not differ in what is declared; until then read comparisons "
        "of whoever is flagged (reread.csv of --people)",
    ),
    "N433": (
        "{:,} comparisons stand on {} prompts: a lean that differs from prompt to prompt is smaller on average, and "
        "intervals of tau and of single annotators hold somewhat less often than they say",
        "have annotators judge more prompts, with fewer comparisons each",
    ),
    "W414": (
        "{} differ by more than {:g} times as much as the typical one ({:#.3g}), up to {:#.3g}; for the leans of "
        "annotators they count as if by {:g} times, and beyond {:g} times not at all",
        "look at them: are they errors? A threshold that is declared as a 0/1 attribute knows no outliers",
    ),
    "W416": (
        "{}, which is not declared, goes with {} (correlation {:.2f}), and explains the annotators' biases better on "
        "comparisons where only one of both differs (p = {:.2g}): tau, intervals and flags may be about either",
        "declare it beside the other, and read the flags again",
    ),
    "W417": (
        "classes of annotators choose the side with more of it differently often, and the votes do not say whether "
        "that is bias or reliability: {}",
        "have annotators of each class judge comparisons whose sides do not differ in what is declared",
    ),
    "W418": (
        "the anchors say little about the biases: their votes are few, or their reliability is low or hardly known, "
        "and the mean bias is not known within 1 log-odds",
        "name more anchors, and have them judge comparisons whose sides do not differ in what is declared too",
    ),
    "W419": (
        "annotators do not share one taste (p = {:.2g}): some agree with each other more than their agreement with "
        "everybody explains. Where tastes differ, biases and tau are attenuated to about {:.0%} of their size, and low "
        "reliability is not told apart from another taste, so that nobody is flagged for it",
        "audit annotators with one taste, such as a class or a family of models, by themselves; have annotators whose "
        "reliability seems low judge the same comparisons: random responders agree by chance, people who share another "
        "taste agree more often",
    ),
    "W430": (
        "whoever judged the same comparison chose the same side: the votes tell no annotator from another",
        "check the export: does a majority, or one vote, stand there for everyone? Else have them judge closer calls",
    ),
    "W431": (
        "annotators agree no more than by chance ({:.0%} of pairs of votes, 95 % interval {:.0%} to {:.0%}): they may "
        "answer at random, or no side is better, and that nobody seems to lean then means little",
        "give each of them some comparisons of which one side is plainly better, and look at who misses those",
    ),
    "N432": (
        "this class has a single annotator: what is said of it is about that one, and tells nothing about its kind",
        "have more of its kind judge before comparing it with others",
    ),
}


# A code of `FINDINGS`, whether it is found and how often, and what its sentence is told.
Found = tuple[Any, ...]


def audit_findings(
    judgments: Judgments,
    features: Judgments,
    design: Design,
    options: AuditOptions,
    people: AuditedPeople,
    agreement: Json,
) -> list[Problem]:
    """Warnings and notices of the estimates, the most general first."""
    weighted = int((judgments.votes["weight"] != 1).sum())
    is_marginal = people.checks["estimator"]["quality"] == "marginal"
    repeated = design.prompt if design.has_identities and design.has_repeated_prompts else None
    n_prompts = 0 if repeated is None else repeated.max(initial=-1) + 1
    n_compared = design.comparison.max(initial=-1) + 1
    are_few = not is_marginal and 0 < n_prompts < FEW_PROMPTS
    shares = [agreement[name] for name in ("percent", "ci_low", "ci_high")]
    needed = max((pool["sum"]["needed"] for pool in people.pool.values() if is_marginal), default=0)
    why_not = (people.checks["assignment"] or {}).get("reason", "")
    rows = [
        ("column weight", "W401", weighted, counted(weighted, "judgment")),
        ("checks.estimator", "W411", is_marginal, needed),
        ("checks.assignment", "W412", bool(why_not), why_not),
        ("column prompt_id", "N433", are_few, n_compared, n_prompts),
        ("checks.care", "W419", people.camps.are_found, *people.camps),
        ("data.agreement", "W430", agreement["percent"] == 1),
        ("data.agreement", "W431", shares[1] <= 0.5 and shares[2] <= BY_CHANCE, *shares),
    ]
    if len(design.labels) > 1:
        sizes = pd.Series(design.classes[design.n_votes > 0]).value_counts()
        rows += [(f'class "{label}"', "N432", True) for label in sizes.index[sizes == 1]]
    for j, name in enumerate(design.attributes):
        largest, unit = np.abs(judgments.delta[:, j]).max(initial=0.0), design.unit[j]
        is_vast, of_cut = largest > OUTLYING * unit, counted(int(design.n_cut[j]), "judgment")
        found = _of_people(j, design, options, people) if design.has_identities else []
        measured = of_cut, MOST_UNITS, unit, largest, MOST_UNITS, OUTLYING
        found.append(("W414", design.n_cut[j] * is_vast, *measured))
        rows += [(f'attribute "{name}"', *row) for row in found]
    if design.has_identities:
        shrunk = people.table.pivot(index="annotator", columns="attribute", values="shrunk")
        leans = shrunk.reindex(index=design.annotators, columns=design.attributes).to_numpy()
        for name, other, *told in features_behind_biases(judgments, features, design.votes[:4], leans):
            rows.append((f'attribute "{name}"', "W416", True, other, name, *told))
    return [
        Problem(
            code, FINDINGS[code][0].format(*told), where, FINDINGS[code][1].format(*told), int(is_found)
        )
        for where, code, is_found, *told in rows
        if is_found
    ]


def _of_people(j: int, design: Design, options: AuditOptions, people: AuditedPeople) -> list[Found]:
    name, least, checks = design.attributes[j], options.min_informative, people.checks
    pool, graph = people.pool[name], checks["components"]["informative"][name]
    anchors_p = checks["anchors"]["equal_leans_p"][name] if checks["anchors"] else np.nan
    informative = people.leans.n_informative[design.n_votes > 0, j]
    n_voted, n_few = len(informative), (informative < least).sum()
    sizes = [f"{n:,}" for n in graph["sizes"]] + ["..."] * (graph["n"] > len(graph["sizes"]))
    are_groups = graph["n"] > 1 and people.leans.quality == "conditional"
    n_informative, equal_p = int(design.informative[:, j].sum()), pool["equal_leans_p"]
    is_unknown = np.isnan(pool["tau"]) and n_informative and pool["sum"] is None
    is_open = checks["care"]["is_unknown"] or checks["care"]["is_hardly_known"]
    is_open &= pool["sum"] is None
    is_anchored = checks["anchors"] and pool["absolute"] and not design.is_shown[j]
    needs_care = not pool["absolute"] or is_anchored
    though = f", though a test says that they do (p = {equal_p:.2g})" * bool(equal_p < NOT_RANDOM)
    return [
        ("W407", anchors_p < UNLIKE, anchors_p),
        ("W408", checks["anchors"] and not pool["absolute"]),
        ("W404", n_voted > 1 and n_few, n_few, counted(n_voted, "annotator"), least),
        ("W405", pool["n_separated"], counted(int(pool["n_separated"]), "annotator")),
        ("W406", are_groups and graph["n"], " + ".join(sizes)),
        ("W410", is_open and needs_care and n_informative, checks["care"]["why"]),
        ("W418", is_anchored and (pool["level_ci"] is None or np.diff(pool["level_ci"])[0] > 2)),
        ("W417", bool(people.class_doubts[j]), people.class_doubts[j]),
        ("W409", is_unknown, counted(n_informative, "informative vote"), though),
    ]
