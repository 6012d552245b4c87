"""The audit: judgments in; tables, checks, warnings and a page out."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from badpo import __version__
from badpo.auditing.agreement import agreement_of
from badpo.auditing.design import design_of
from badpo.auditing.findings import audit_findings
from badpo.auditing.health import data_health
from badpo.auditing.options import Flag, Options
from badpo.auditing.people import people_of
from badpo.auditing.pool import pool_attributes, vote_prompts
from badpo.auditing.requests import next_steps
from badpo.auditing.result import ANNOTATORS_FILE, SCHEMA, AuditResult, plain
from badpo.auditing.scan import scan_features
from badpo.data.attribute import Attribute
from badpo.data.checks import check
from badpo.data.importers.tables import has_column
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError, DataError, Problem
from badpo.results.audit_verdicts import audit_verdicts

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
