"""The figures of `bench.audit_statistics` as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

TITLES = {
    "slope": "Slope and coverage by votes per comparison",
    "few votes": "Few votes",
    "assumptions": "Where assumptions fail",
    "flags": "Flags",
    "sequential": "While labels still arrive",
}
HEADS = {
    "informative": "informative votes, mean",
    "least": "least",
    "slope": "slope of estimate on truth",
    "coverage": "95 % intervals hold the truth, %",
    "infinite": "infinite estimates, %",
    "posterior_coverage": "posterior intervals hold the truth, %",
    "posterior_coverage_from_estimates": "the same from estimates, %",
    "tau": "tau",
    "tau_from_estimates": "tau from estimates",
    "tau_coverage": "tau's interval holds it, %",
    "false": "wrong, % of flags",
    "found": "found, % of large deviations",
    "e_process": "alarms about the others, % of annotators",
    "peeking": "the same of a test repeated at every look",
    "e_bh": "pools with a wrong flag by e-BH, %",
    "power": "alarm about the planted, %",
    "votes_to_flag": "informative votes until then",
}
COUNTS = {"informative", "least", "votes_to_flag"}
PLAIN = {"slope", "tau", "tau_from_estimates"}


def statistics_page(tables: Mapping[str, Sequence[Row]], replicates: int, seconds: float) -> str:
    """Markdown with one section per table.

    Parameters
    ----------
    tables : mapping
        Rows by table; a figure is a mapping with mean, low and high.
    replicates : int
    seconds : float
        How long the whole took.
    """
    lines = [
        "# What the audit's figures are worth",
        "",
        "Votes are drawn from pools whose leans are known, and what the audit finds is compared with them. "
        "Written by",
        "",
        "    OMP_NUM_THREADS=1 python -m bench.audit_statistics"
        + ("" if replicates == 100 else f" --replicates {replicates}"),
        "",
        f"in {seconds:,.0f} seconds on one core ({replicates} pools a row). A figure stands with the half-width "
        "of its 95 % Monte Carlo interval. Unless a table says otherwise a pool has 60 annotators whose leans have "
        "mean 0.8 and sd 0.5 log-odds, four of them vote on a comparison, its quality has sd 1, and its sides differ "
        "in the attribute every other time. A vote is informative when the sides differ and the votes on the "
        "comparison are not unanimous.",
        "",
    ]
    for name, rows in tables.items():
        lines += [f"## {TITLES[name]}", "", READINGS[name], "", *_table(rows), ""]
    return "\n".join(lines)


READINGS = {
    "slope": (
        "Conditional likelihood, and shrinkage from the votes. A slope of 1 is an unbiased estimate, above 1 an "
        "inflated one. The goals: a slope that meets [0.95, 1.05], intervals that hold the truth in 93.5 to 96.5 % "
        "of cases, posterior intervals in at least 93 %."
    ),
    "few votes": (
        "Ever fewer votes per annotator. The 95 % intervals are those of annotators with ten informative votes or "
        "more, the posterior intervals everyone's; true tau is 0.5. Slopes leave infinite estimates out and are then "
        'not meaningful. "From estimates" takes estimates as normal with their standard errors (`shrink_normal`), '
        "where the audit integrates the leans out of the votes (`shrink_votes`)."
    ),
    "assumptions": (
        "4,000 comparisons. In the second and the last pool the side with more of the attribute is better by 0.7 "
        "log-odds; in the last one it is worse by as much in a second domain, and specialists cast nine tenths of "
        "the votes in theirs."
    ),
    "flags": (
        "100 annotators who all differ. A flag is wrong when the true deviation is at most 0.5; the target is 10 % "
        "of the flags. Testing that a deviation is exactly zero answers another question, and its flags are counted "
        "by the same rule to show that."
    ),
    "sequential": (
        "4,000 comparisons arrive one after the other, and every annotator's e-value is looked at after each of them "
        "(e-BH after every twentieth); the level is 5 %. The repeated test looks whenever an annotator has ten "
        "informative votes or more. An alarm is about one annotator alone; `badpo watch` prints the flags of e-BH, "
        "which hold for everyone together and take more votes."
    ),
}


def _table(rows: Sequence[Row]) -> list[str]:
    columns = [name for name in dict.fromkeys(name for row in rows for name in row) if name != "replicates"]
    head = "| " + " | ".join(HEADS.get(name, name) for name in columns) + " |"
    body = ["| " + " | ".join(_cell(name, row.get(name)) for name in columns) + " |" for row in rows]
    return [head, "|" + "---|" * len(columns), *body]


def _cell(name: str, value: Any) -> str:
    if not isinstance(value, Mapping):
        return "" if value is None else str(value)
    if name in COUNTS:
        return f"{value['mean']:.0f}"
    scale, digits = (1, 3) if name in PLAIN else (100, 1)
    half = (value["high"] - value["low"]) / 2
    return f"{scale * value['mean']:.{digits}f} ± {scale * half:.{digits}f}"
