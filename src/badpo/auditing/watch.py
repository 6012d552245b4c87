"""`badpo watch`: comparisons that closed since the last look go to the monitor; who stands out is said."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from badpo.auditing.monitor import AuditMonitor, ClosedComparison
from badpo.data.attribute import Attribute
from badpo.data.files import locked
from badpo.data.importers.cells import as_ids
from badpo.data.importers.columns import recognise
from badpo.data.importers.tables import read_table
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError, DataError, Problem, counted

GUARANTEE = (
    "You may look as often as you like. Stopping a comparison, or adding votes to it, by looking at its votes breaks "
    "the guarantee."
)
MEANING = (
    "A flag says that someone votes unlike their co-voters on such comparisons, not that they are wrong. Someone who "
    "leans nowhere among co-voters who lean is unlike them, and so is someone who answers at random."
)
_CLOSED = {"true": True, "1": True, "yes": True, "closed": True}
_CLOSED |= {"false": False, "0": False, "no": False, "open": False}
_NAMED = 10


@dataclass(frozen=True, eq=False)
class WatchResult:
    """What a look at the votes found.

    ``summary`` is what `badpo watch --json` prints: counts, the flagged annotators of each attribute, warnings.
    ``table`` has everyone's e-values, by pseudonym, as `badpo.auditing.monitor.AuditMonitor.table` gives them.
    """

    summary: dict[str, Any]
    table: pd.DataFrame

    def __str__(self) -> str:
        found = self.summary
        lines = [
            f"{counted(found['n_new'], 'new comparison')} counted, {found['n_counted']:,} in all, "
            f"{found['n_open']:,} still open; {counted(found['n_annotators'], 'annotator')}",
            found["closing"],
        ]
        for name, flagged in found["flagged"].items():
            lines += ["", f"{name}: {counted(len(flagged), 'annotator')} flagged"]
            lines += [
                f"  {row['annotator']}  toward {row['toward']}  e-value {row['e_value']:.3g}  "
                f"{counted(row['n_informative'], 'informative vote')}"
                for row in flagged
            ]
        lines += ["", *(f"{problem['code']} {problem['what']}" for problem in found["warnings"])]
        return "\n".join([*lines, found["rule"], MEANING, GUARANTEE])


def watch(
    data: Any,
    attributes: Sequence[Attribute],
    state: str | os.PathLike[str],
    *,
    closed: str | None = None,
    votes_per_comparison: int | None = None,
    alpha: float = 0.05,
    **reading: Any,
) -> WatchResult:
    """Feed the comparisons that closed since the last call, and say who stands out.

    Parameters
    ----------
    data : anything that `Judgments.read` takes
        All votes so far, or those since the last look.
    attributes : sequence of Attribute
        The same in every call.
    state : path
        Where the monitor's state is kept between calls; made when it is not there.
    closed : str or None
        A column that says whether a comparison is closed (true or false, yes or no, 1 or 0). A comparison is closed
        when all its rows say so.
    votes_per_comparison : int or None
        A comparison is closed when it has so many judgments. Ties count where the table has comparison ids.
        With neither this nor ``closed`` all comparisons in the table are taken as closed.
    alpha : float
        Share of the flags that may be false.
    **reading
        Options of `Judgments.read`.

    Returns
    -------
    WatchResult

    Raises
    ------
    DataError
        The table is wrong, or has no annotators.
    ConfigError
        An option that makes no sense, a file that is no state, or a state of other attributes.
    """
    if not attributes:
        raise ConfigError("watch needs an attribute to look at, such as length")
    if closed is not None and votes_per_comparison is not None:
        raise ConfigError(
            "say which comparisons are closed by a column or by their number of votes, not both"
        )
    if votes_per_comparison is not None and votes_per_comparison < 2:
        raise ConfigError(f"votes per comparison must be 2 or more to compare; got {votes_per_comparison}")
    keep = [*reading.pop("keep", ()), *([closed] if closed else [])]
    # with the state held before the table is read, whoever is forgotten meanwhile is in neither
    with locked(state, wait=True):
        judgments = Judgments.read(data, attributes=attributes, keep=keep, **reading)
        if not judgments.has_identities:
            what, remedy = "the table has no annotator column", "name it: columns={'annotator': 'yours'}"
            raise DataError([Problem("E421", what, "column annotator", remedy, "error")])
        is_closed = np.ones(judgments.n_comparisons, dtype=bool)
        closing, ties_counted = "All comparisons in the table were taken as closed.", True
        if closed is not None:
            closing = f'A comparison is closed when the column "{closed}" says so in all its rows.'
            is_closed = _closed_by_column(judgments, closed)
        if votes_per_comparison is not None:
            closing = f"A comparison is closed when it has {votes_per_comparison} judgments."
            n_judged, ties_counted = _judgments_of(judgments, data, reading.get("columns"))
            is_closed = n_judged >= votes_per_comparison
        monitor = _monitor(Path(state), judgments, alpha)
        new, reopened = _feed(monitor, judgments, is_closed)
        if new or not Path(state).exists():
            monitor.save(state)
    warnings = [_reopened_warning(reopened)] if reopened else []
    warnings += [] if ties_counted else [_ties_warning(judgments)]
    table = monitor.table()
    summary = {
        "alpha": monitor.alpha,
        "n_new": new,
        "n_counted": monitor.n_comparisons,
        "n_open": int((~is_closed).sum()),
        "n_repeated": monitor.n_repeated,
        "n_annotators": table["annotator"].nunique(),
        "closing": closing,
        "flagged": {name: _flagged(table, name) for name in monitor.attributes},
        "reopened": reopened,
        "warnings": [vars(problem) for problem in warnings],
        "rule": f"Flags by e-BH at {monitor.alpha:.0%} over annotators and attributes, listed by pseudonym.",
        "guarantee": GUARANTEE,
    }
    return WatchResult(summary, table)


def _judgments_of(
    judgments: Judgments, data: Any, columns: Mapping[str, str | None] | None
) -> tuple[NDArray[np.int64], bool]:
    """How often each comparison was judged, and whether ties are among these."""
    n_votes = np.bincount(judgments.votes["comparison"], minlength=judgments.n_comparisons)
    if not (judgments.dropped["reason"] == "tie").any():
        return n_votes, True
    table = read_table(data)
    layout = recognise(table.frame, table.name, columns)
    if table.dropped or not layout.has("comparison_id"):
        return n_votes, False
    counts = pd.Series(as_ids(layout.frame["comparison_id"])).value_counts()
    return counts.loc[judgments.comparisons["comparison_id"]].to_numpy(dtype=np.int64), True


def _closed_by_column(judgments: Judgments, column: str) -> NDArray[np.bool_]:
    labels = judgments.votes[column].map(
        lambda cell: _CLOSED.get(str(cell).strip().casefold().removesuffix(".0"))
    )
    unknown = labels.isna().to_numpy()
    if unknown.any():
        rows = ", ".join(str(row + 1) for row in judgments.votes["row"].to_numpy()[unknown][:5])
        what = f"{counted(int(unknown.sum()), 'judgment')} that is neither closed nor open"
        remedy = f"write one of {', '.join(_CLOSED)}"
        raise DataError([Problem("E422", what, f"column {column}, rows {rows}", remedy, "error")])
    n_open = np.bincount(
        judgments.votes["comparison"], weights=~labels.to_numpy(dtype=bool), minlength=judgments.n_comparisons
    )
    return n_open == 0


def _monitor(state: Path, judgments: Judgments, alpha: float) -> AuditMonitor:
    """The monitor of an earlier call, or a new one."""
    definitions = [dict(attribute.config) for attribute in judgments.attributes]
    if not state.exists():
        units = [
            _typical_difference(delta) if attribute.continuous else 1.0
            for attribute, delta in zip(judgments.attributes, judgments.delta.T, strict=True)
        ]
        return AuditMonitor(judgments.attribute_names, alpha, units=units, definitions=definitions)
    monitor = AuditMonitor.load(state)
    was = json.dumps([monitor.attributes, monitor.definitions], sort_keys=True)
    now = json.dumps([judgments.attribute_names, definitions], sort_keys=True)
    if was != now:
        raise ConfigError(
            f"{state} was made with other attributes: {was}, now {now}. Declare those, or name another state file"
        )
    if monitor.alpha != alpha:
        raise ConfigError(
            f"{state} was made with alpha {monitor.alpha}, now {alpha}: a level chosen after looking is none. Keep it, "
            "or name another state file"
        )
    return monitor


def _typical_difference(delta: NDArray[np.float64]) -> float:
    """Root mean square of the differences that there are."""
    differs = delta[delta != 0]
    return float(np.sqrt(np.mean(differs**2))) if len(differs) else 1.0


def _feed(monitor: AuditMonitor, judgments: Judgments, is_closed: NDArray[np.bool_]) -> tuple[int, list[str]]:
    """Feed what is closed and new, in the order of last votes; how many, and ids that were fed with other votes."""
    votes = judgments.votes
    order = np.argsort(votes["comparison"].to_numpy(), kind="stable")
    ends = np.cumsum(np.bincount(votes["comparison"], minlength=judgments.n_comparisons))
    sign, delta = votes["sign"].to_numpy()[order], judgments.delta[order]
    names = judgments.annotators["pseudonym"].to_numpy()[votes["annotator"].to_numpy()[order]]
    ids = judgments.comparisons["comparison_id"].to_numpy()
    last = votes["row"].to_numpy()[order][ends - 1]
    new, reopened = 0, []
    for c in np.argsort(last, kind="stable"):
        of = slice(ends[c - 1] if c else 0, ends[c])
        comparison = ClosedComparison(str(ids[c]), names[of].tolist(), sign[of], delta[of])
        if monitor.has_seen(comparison.comparison_id):
            if monitor.is_reopened(comparison):
                reopened.append(comparison.comparison_id)
        elif is_closed[c]:
            monitor.update(comparison)
            new += 1
    return new, reopened


def _reopened_warning(reopened: Sequence[str]) -> Problem:
    named = ", ".join(reopened[:_NAMED])
    what = f"{counted(len(reopened), 'comparison')} had other votes when counted; the new ones are refused: {named}"
    remedy = (
        "close a comparison when it has all its votes; give votes that come later a comparison of their own"
    )
    return Problem("W420", what, "comparison_id", remedy, "warning", len(reopened))


def _ties_warning(judgments: Judgments) -> Problem:
    n = int(judgments.dropped.loc[judgments.dropped["reason"] == "tie", "n"].sum())
    what = f"{counted(n, 'tie')} could not be counted toward the votes of a comparison; those with a tie may stay open"
    remedy = "name a column that says which comparisons are closed, or give comparison ids with the ties"
    return Problem("W421", what, "column winner", remedy, "warning", n)


def _flagged(table: pd.DataFrame, attribute: str) -> list[dict[str, Any]]:
    rows = table[(table["attribute"] == attribute) & table["flag"]]
    return rows[["annotator", "toward", "e_value", "n_informative"]].to_dict("records")
