"""The audit reads judgments and returns tables, checks, warnings and a report page."""

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Unpack

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.special import ndtri

from badpo import __version__
from badpo.auditing.annotators import (
    AuditOptions,
    Design,
    both_orders,
    build_model_rows,
    estimate_annotators,
    mark_models,
)
from badpo.auditing.dependence import estimate_tie_effects, find_selective_ties, select_independent_votes
from badpo.auditing.findings import AuditFacts, find_problems
from badpo.auditing.impact import choose_example_pairs, count_changed_labels, select_votes_to_reread
from badpo.auditing.pool_bias import (
    add_default_attributes,
    measure_undeclared_features,
    plain,
    pool_attributes,
    scan_features,
    swap_pair_sides,
)
from badpo.auditing.result import ANNOTATORS_FILE, SCHEMA, AuditResult
from badpo.data.attributes import Attributes, as_attributes
from badpo.data.checks import check, estimable
from badpo.data.judgments import Judgments, ReadingOptions
from badpo.data.privacy import is_dominated
from badpo.data.problems import (
    ConfigError,
    DataError,
    Problem,
    did_you_mean,
    refuse_other_types,
    worst_first,
)
from badpo.data.tables import Source
from badpo.estimation.fit import BiasEstimates
from badpo.estimation.significance import PoolAgreement, pool_agreement
from badpo.results import audit_json
from badpo.results.audit_findings import attribute_findings
from badpo.theory import Floats

Progress = Callable[[str, float], None]
# The audit reports the number of votes needed for confidence intervals of these half-widths, in log-odds.
HALF_WIDTHS = (0.5, 0.25)
# When a stage begins, this share of the audit's running time has passed; reading the data counts as running time.
# The shares of the running time are medians over four tables (1,000 to 20,000 comparisons, 30 to 200 annotators).
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
    source: str | None = None,
    progress: Progress = lambda what, share: None,
    **reading: Unpack[ReadingOptions],
) -> AuditResult:
    """Estimate the bias of the pool and of each annotator, with intervals, and report what the votes cannot identify.

    Parameters
    ----------
    data : Judgments, or anything that `Judgments.read` takes, with its options as ``reading``
    attributes : Attribute, or text such as "length:ratio=1.5", or several
        Default: the attributes of the Judgments, or length, Markdown and, if known, the side shown first. If the sides
        never differ in an attribute and another attribute remains, the audit warns and omits the attribute.
    quality : None, "conditional" or "marginal"
        "conditional" conditions on the number of votes for each side, so that the quality of a comparison cancels out.
        "marginal" leaves the quality in, so that every estimate is the sum of bias and of reliability times merit. None
        chooses "conditional", unless most annotators would have no estimate; ``checks.estimator.why`` has the reason.
    anchors, anchor_class : sequence of str; str or None
        Annotators known to be unbiased, by id or by class. They identify the shared bias (BA-DPO, Section `theory`).
    rho, fdr, min_informative : float, float, int
        The audit flags annotators whose deviation from the pool mean probably exceeds ``rho`` log-odds. Among the
        flagged annotators, the expected share with a smaller deviation is at most ``fdr``. Log-odds compare the
        attribute present with absent, or are per median difference. An annotator with fewer than ``min_informative``
        informative votes has the status insufficient.
    models : sequence of str
        Ids of annotators that are models. Annotators of the class "model" are models too. The report names models and
        never names people.
    source, progress : str or None, callable
        ``source`` is the path or name of the data. ``progress`` is called with the name of the current stage and the
        completed share of the work.

    Raises
    ------
    DataError, ConfigError
        DataError if the table or an attribute cannot be used; ConfigError if an option is wrong.

    Examples
    --------
    >>> from badpo.attributes import Length
    >>> texts = {"response_a": "It just is so, always.", "response_b": "So."}
    >>> rows = [{"prompt": str(p), "annotator": who, "winner": "a" if (p + len(who)) % 3 else "b", **texts}
    ...     for p in range(30) for who in ("1", "22", "333")]
    >>> len(audit(rows, [Length()]).annotators)
    3
    """
    refuse_other_types(models=models, progress=progress, keep=reading.get("keep", ()))
    options = AuditOptions(quality, anchors, anchor_class, rho, fdr, min_informative)
    progress("audit: reading", 0.0)
    whole, problems = keep_estimable_attributes(read_judgments(data, attributes, models, reading))
    judgments, left_out = select_independent_votes(whole)
    progress("audit: annotators", DONE_BEFORE["annotators"])
    design = Design(judgments)
    estimates = estimate_annotators(judgments, design, options)
    agreement = pool_agreement(*design.first_votes, design.prompt_of_first_votes)
    progress("audit: undeclared features", DONE_BEFORE["features"])
    features, ties = measure_undeclared_features(judgments), estimate_tie_effects(whole)
    facts = AuditFacts(judgments, features, design, options, estimates, agreement)
    problems = [*problems, *left_out, *find_selective_ties(ties), *find_problems(facts)]
    progress("audit: pool", DONE_BEFORE["pool"])
    return AuditResult(
        add_verdicts(plain(build_summary(whole, facts, ties, problems, source or data))),
        finish_annotator_table(judgments, estimates.table),
        select_votes_to_reread(judgments, design, estimates.table),
        choose_example_pairs(judgments),
    )


# -- steps -------------------------------------------------------------------------------------------------------


def read_judgments(
    data: Judgments | Source, attributes: Attributes, models: Sequence[str], reading: ReadingOptions
) -> Judgments:
    """Read the judgments, measure the attributes, and mark the annotators that are models."""
    attributes = as_attributes(attributes)
    known = (*inspect.signature(audit).parameters, *ReadingOptions.__annotations__)
    for name in reading.keys() - set(known):
        raise ConfigError(f'audit takes no "{name}".{did_you_mean(name, known)}')
    if not isinstance(data, Judgments):
        data = Judgments.read(data, attributes=attributes, **reading)
    elif reading:
        options = ", ".join(reading)
        raise ConfigError(f"these judgments have already been read; pass {options} to Judgments.read")
    elif attributes:
        data = data.with_attributes(attributes)
    return mark_models(add_default_attributes(data), models)


def keep_estimable_attributes(judgments: Judgments) -> tuple[Judgments, list[Problem]]:
    """Remove attributes whose bias cannot be estimated; return the warnings, and raise `DataError` for errors."""
    judgments, left_out = estimable(judgments)
    problems = [*left_out, *check(judgments)]
    if errors := [one for one in problems if one.severity == "error"]:
        raise DataError(errors)
    return judgments, problems


def name_file(data: Judgments | Source) -> str:
    """Return the file name without its folder, or an empty string if the data are not from a file.

    The result omits the folder, because folder names can identify people.
    """
    return Path(data).name if isinstance(data, str | os.PathLike) else ""


def build_problem_rows(
    problems: Sequence[Problem], data: Judgments | Source
) -> list[audit_json.ProblemRow]:
    """Return one row for each problem, errors first; the rows show file names without folders."""
    # The report page may be shared, so the rows omit the user's commands and the rows of the table.
    rows: list[audit_json.ProblemRow] = [
        {
            "code": problem.code,
            "what": problem.what,
            "where": problem.where,
            "remedy": problem.remedy,
            "severity": problem.severity,
            "count": problem.count,
        }
        for problem in worst_first(problems)
    ]
    if isinstance(data, str | os.PathLike):
        path = str(Path(data).expanduser())
        for row in rows:
            row["where"] = row["where"].replace(path, name_file(data))
            row["what"] = row["what"].replace(path, name_file(data))
    return rows


def list_settings(judgments: Judgments, options: AuditOptions) -> audit_json.Settings:
    """Return the attributes and the options of the audit."""
    return {
        "attributes": [{**one.config, "name": one.name} for one in judgments.attributes],
        "quality": options.quality,
        "rho": options.rho,
        "fdr": options.fdr,
        "min_informative": options.min_informative,
    }


def build_summary(
    whole: Judgments,
    facts: AuditFacts,
    ties: Mapping[str, audit_json.TieRow],
    problems: Sequence[Problem],
    data: Judgments | Source,
) -> audit_json.AuditSummary:
    """Compute the figures for audit.json.

    ``whole`` contains all judgments. Some of the figures are NumPy numbers.
    """
    judgments, design, estimates = facts.judgments, facts.design, facts.estimates
    both, swap = both_orders(whole), swap_pair_sides(judgments)
    return {
        "schema": SCHEMA,
        "version": __version__,
        "about_single_people": True,
        "settings": list_settings(judgments, facts.options),
        "data": describe_data(whole, design, both, facts.agreement, name_file(data)),
        "attributes": pool_attributes(judgments, ties, swap),
        "pool": estimates.pool,
        "models": build_model_rows(estimates.table, design, both),
        "checks": estimates.checks,
        "flips": count_changed_labels(design, estimates.fit),
        "next": {"votes_needed": build_votes_needed(design, estimates.fit.biases)},
        "warnings": build_problem_rows(problems, data),
        "scan": scan_features(judgments, facts.features, swap),
        "annotators_file": ANNOTATORS_FILE,
    }


def add_verdicts(summary: audit_json.AuditSummary) -> audit_json.AuditSummary:
    """Add a verdict to each attribute."""
    for row, verdict in zip(summary["attributes"], attribute_findings(summary), strict=True):
        row["verdict"] = verdict.finding
    return summary


def finish_annotator_table(judgments: Judgments, table: pd.DataFrame) -> pd.DataFrame:
    """Remove annotators without votes, and add each annotator's number of ties."""
    has_row = (table["n_judgments"] > 0) & judgments.has_identities
    tie_counts = judgments.dropped[judgments.dropped["reason"] == "tie"]
    n_ties = table["annotator"].map(tie_counts.groupby("annotator")["n"].sum()).fillna(0).astype(int)
    annotators = table.assign(n_ties=n_ties)[has_row].reset_index(drop=True)
    annotators.attrs["about_single_people"] = True
    return annotators


def describe_data(
    judgments: Judgments, design: Design, both: pd.DataFrame, agreement: PoolAgreement, source: str
) -> audit_json.DataFacts:
    """The part ``data`` of audit.json."""
    annotator = judgments.votes["annotator"].to_numpy()
    cast = np.bincount(annotator, minlength=len(design.annotators))
    n_votes, votes_of_people = cast[cast > 0], cast[design.is_person]
    wins = (judgments.votes["sign"] > 0).groupby(judgments.votes["comparison"]).agg(["mean", "size"])
    reasons = judgments.dropped.groupby("reason", sort=False)["n"]
    dropped = reasons.agg(n="sum", n_annotators="size", is_dominated=is_dominated)
    in_both, figures = both["annotator"].unique(), asdict(agreement)
    both_counts = np.bincount(both["annotator"], minlength=len(cast))
    return {
        "source": source or judgments.source or "this table",
        "fingerprint": judgments.fingerprint(),
        "n_judgments": judgments.n_votes,
        "n_comparisons": judgments.n_comparisons,
        "n_prompts": judgments.comparisons["prompt_id"].nunique(),
        "n_annotators": len(n_votes) if judgments.has_identities else 0,
        "n_people": (votes_of_people > 0).sum() if judgments.has_identities else 0,
        "is_dominated": judgments.has_identities and is_dominated(votes_of_people),
        "has_annotators": judgments.has_identities,
        "n_dropped": judgments.dropped["n"].sum(),
        "dropped": dropped.reset_index().to_dict("records"),
        "votes_per_comparison": wins["size"].value_counts().sort_index().to_dict(),
        "judgments_per_annotator": {
            "median": float(np.median(n_votes)),
            "max": n_votes.max(initial=0),
            "most_of_people": votes_of_people.max(initial=0),
        },
        "unanimous_share": wins["mean"][wins["size"] > 1].isin([0.0, 1.0]).mean(),
        "agreement": {"ci_low": figures.pop("low"), "ci_high": figures.pop("high"), **figures},
        "both_orders": {
            "n": len(both),
            "same_share": both["same"].mean(),
            "n_annotators": len(in_both),
            "n_people": design.is_person[in_both].sum(),
            "is_dominated": is_dominated(both_counts[design.is_person]),
        },
    }


# -- what to collect next ----------------------------------------------------------------------------------------


def build_votes_needed(design: Design, biases: BiasEstimates) -> list[audit_json.VotesNeededRow]:
    """Number of votes that the median annotator needs, in total, for each attribute and interval half-width.

    If almost no comparison has two annotators, the list is empty, and ``pool[name].sum.needed`` is the number of
    comparisons that need a second annotator.
    """
    if biases.quality == "marginal":
        return []
    share = biases.n_informative.sum(axis=0) / max(len(design.comparison), 1)
    rows: list[audit_json.VotesNeededRow] = []
    for half_width in HALF_WIDTHS:
        votes = votes_needed(biases.se, biases.n_informative, half_width)
        for name, n, n_judgments in zip(design.attributes, votes, votes / share, strict=True):
            needed = float(np.ceil(n_judgments))
            rows.append(
                {
                    "attribute": name,
                    "informative_votes": n,
                    "judgments": needed,
                    "half_width": half_width,
                }
            )
    return rows


def votes_needed(se: ArrayLike, n_informative: ArrayLike, half_width: float) -> Floats:
    r"""Number of informative votes that the median annotator needs for a 95 % confidence interval of ±``half_width``.

    The information of independent votes is additive. If v = n se^2 is the variance of a single informative vote, the
    number of votes needed is

    .. math:: n^* = v\, (1.96 / h)^2

    ``se`` and ``n_informative`` have the shape (n_annotators, n_attributes). The result is NaN for an attribute without
    any estimate. Informative votes exclude votes on unanimous comparisons and on comparisons whose sides do not differ.

    Examples
    --------
    >>> votes_needed([[0.5], [0.4], [np.nan]], [[20], [25], [0]], half_width=0.25)
    array([277.])
    """
    se, n = np.asarray(se, float), np.asarray(n_informative, float)
    of_one_vote = pd.DataFrame(np.where(np.isfinite(se) & (n > 0), n * se**2, np.nan))
    return np.asarray(np.ceil(of_one_vote.median().to_numpy() * (float(ndtri(0.975)) / half_width) ** 2))
