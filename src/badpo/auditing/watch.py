"""The audit while labels still arrive: a monitor that may be looked at as often as one likes, and `badpo watch`."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from badpo.auditing.pool import with_usual_attributes
from badpo.data.attributes import ATTRIBUTES, Attributes, as_attributes
from badpo.data.cells import as_ids
from badpo.data.files import Json, SealError, locked, read_seal, write_seal
from badpo.data.judgments import Judgments
from badpo.data.layouts import recognise
from badpo.data.problems import ConfigError, DataError, Problem, counted, refuse_other_types
from badpo.data.tables import read_table
from badpo.estimation.sequential import (
    CARE_GRID,
    GRID,
    e_bh,
    lean_e_values,
    log_care_ratios,
    log_chance_ratios,
    log_e_values,
    log_tilt_ratios,
    winner_shares,
)
from badpo.theory import Bools, Floats

STATE_SCHEMA = "badpo.watch/5"
# where the kinds of log-likelihood ratios end among the numbers of an annotator and attribute
_ENDS = np.cumsum([len(GRID), len(GRID), len(CARE_GRID)])
_LARGEST_LOG = 700.0  # e-values above 1e304 are shown as that
_WHEN_TO_CLOSE = (
    "close a comparison when it has all its votes; give votes that come later a comparison of their own"
)


class AuditMonitor:
    """An e-process for each annotator and attribute, fed one closed comparison after the other.

    At most a share alpha of the flags is false on average, however often one looks, and so of those that are read as a
    lean, and of the annotators called careless. Stopping a comparison by looking at its votes breaks that.

    Parameters
    ----------
    attributes : sequence of str
        Names, in the order of the columns of delta.
    alpha : float
        False discovery rate of the flags.
    units : sequence of float, or None
        Size of a unit of each attribute, 1 unless given. It may depend on the texts but not on votes.
    definitions : sequence of mapping, or None
        What the attributes are, as JSON; kept in the state, so that a caller sees whether they are still the same.

    Examples
    --------
    >>> monitor = AuditMonitor(["length"])
    >>> for i in range(30):
    ...     monitor.update(f"c{i}", ["ann", "bob", "eve"], [1, -1, -1], [1.0])
    >>> monitor.table()[["annotator", "toward", "flag"]].values.tolist()
    [['ann', 'more', True], ['bob', 'less', True], ['eve', 'less', True]]
    """

    def __init__(
        self,
        attributes: Sequence[str],
        alpha: float = 0.05,
        units: Sequence[float] | None = None,
        definitions: Sequence[Json] | None = None,
    ):
        several = attributes if isinstance(attributes, Iterable) else [attributes]
        self.attributes = names = (attributes,) if isinstance(attributes, str) else tuple(several)
        for name in names if definitions is None else ():
            if not isinstance(name, str) or name.partition(":")[0] in {*ATTRIBUTES} - {name}:
                told = 'a monitor takes names of attributes, such as "length", and their differences with the votes'
                raise ConfigError(f"{told}; badpo.auditing.watch.watch measures attributes")
        self.alpha, self.definitions = float(alpha), definitions
        self.units = tuple(units or [1.0] * len(names))
        if not names or len(set(names)) < len(names):
            raise ConfigError(f"a monitor takes one attribute or more, each once; got {names}")
        if not 0 < self.alpha < 1:
            raise ConfigError(f"alpha is a share above 0 and below 1, such as 0.05; got {self.alpha}")
        if len(self.units) != len(names) or not all(0 < unit < np.inf for unit in self.units):
            raise ConfigError(f"one unit above 0 for each attribute is needed; got {self.units}")
        # of each annotator, a row for each attribute: log-likelihood ratios against voting as the others, against
        # clicking at random, and of less care (in all rows the same); informative votes
        self._evidence: dict[str, Floats] = {}
        self._seen: dict[str, str] = {}

    def update(
        self, comparison_id: str, annotators: Sequence[str], sign: ArrayLike, delta: ArrayLike
    ) -> None:
        """Count the votes of a comparison that will get no further vote; the same votes again change nothing.

        Parameters
        ----------
        comparison_id : str
        annotators : sequence of str
            Pseudonym of each vote's annotator. Of an annotator's repeated votes only the first counts.
        sign : array of shape (n_votes,)
            +1 chose a, -1 chose b.
        delta : array of shape (n_votes, n_attributes) or (n_attributes,)
            g(a) - g(b); NaN where that is not known.

        Raises
        ------
        DataError
            E420, when the comparison was counted with other votes; nothing is changed.
        ValueError
            When the shapes do not fit together.
        """
        sign, delta = np.asarray(sign, float), np.asarray(delta, float)
        shape, where = (len(annotators), len(self.attributes)), f"comparison {comparison_id}"
        if any(map(pd.isna, annotators)):
            raise ValueError(f"{where}: an annotator has no id")
        annotators = [*map(str, annotators)]  # text, as a saved state has them
        if sign.shape != shape[:1] or not len(sign) or not (np.abs(sign) == 1).all():
            raise ValueError(f"{where}: one sign, +1 or -1, for each annotator is needed")
        if delta.shape not in (shape, shape[1:]) or np.isinf(delta).any():
            needed = f"needed are numbers of shape {shape} or {shape[1:]}"
            raise ValueError(f"{where}: delta has shape {delta.shape}, {needed}")
        names, first = np.unique(np.asarray(annotators, dtype=object), return_index=True)
        key, votes = _digest(comparison_id, 8), _votes_digest(names.tolist(), sign[first])
        if self._seen.get(key, votes) != votes:
            what = "the comparison was counted with other votes"
            raise DataError([Problem("E420", what, where, _WHEN_TO_CLOSE)])
        if key in self._seen:
            return
        self._seen[key] = votes
        delta = (np.broadcast_to(delta, shape) / self.units)[first]
        won, known = sign[first, None] > 0, np.nan_to_num(delta)
        share = winner_shares(sign[first], known)[:, None]
        ratios = log_tilt_ratios(won, share, known)
        chance = log_chance_ratios(won, won.sum(), len(won), known)
        care = log_care_ratios(won, share) * bool((delta == 0).all())
        care = np.broadcast_to(care, (*delta.shape, len(CARE_GRID)))
        kinds = ratios, chance, care, ratios.any(axis=-1, keepdims=True)
        for name, added in zip(names, np.concatenate(kinds, axis=-1), strict=True):
            self._evidence[name] = self._evidence.get(name, 0.0) + added

    def has_seen(self, comparison_id: str) -> bool:
        """Whether a comparison was counted."""
        return _digest(comparison_id, 8) in self._seen

    @property
    def n_comparisons(self) -> int:
        """Comparisons that were counted."""
        return len(self._seen)

    def table(self) -> pd.DataFrame:
        """One row for each annotator and attribute, by pseudonym.

        Returns
        -------
        DataFrame
            ``annotator, attribute``; ``n_informative``: votes on comparisons that differ and are not unanimous;
            ``e_value`` against voting as the co-voters do; ``toward`` "more" or "less" of the attribute than they,
            which is the direction of the evidence and no estimate; ``flag``: stands out among all annotators and
            attributes (e-BH); ``reading`` of a flag: a "lean", which clicking at random does not explain either;
            "care", of who is careless; "open". ``e_careless``: against as much care as the co-voters have, where
            the sides do not differ; ``careless``: stands out by that; both the same in all rows of an annotator.
        """
        names = sorted(self._evidence)
        rows = pd.MultiIndex.from_product([names, self.attributes], names=["annotator", "attribute"])
        found = np.array([self._evidence[name] for name in names]).reshape(len(rows), _ENDS[-1] + 1)
        ratios, chance, care, n_informative = np.split(found, _ENDS, axis=1)
        log_e, log_care = log_e_values(ratios), log_e_values(care)
        lean = lean_e_values(log_e, log_e_values(chance), log_care)
        n_informative, each = n_informative[:, 0].astype(int), len(self.attributes)
        careless = np.repeat(e_bh(log_care[::each], self.alpha), each)
        flag, is_lean = e_bh(log_e, self.alpha), e_bh(lean, self.alpha)
        less, more = (log_e_values(half) for half in np.split(ratios, 2, axis=1))
        toward = np.select([n_informative == 0, more >= less], ["", "more"], "less")
        reading = np.select([~flag, is_lean, careless], ["", "lean", "care"], "open")
        e_value, e_careless = np.exp(np.minimum([log_e, log_care], _LARGEST_LOG))
        columns = {
            "n_informative": n_informative,
            "e_value": e_value,
            "toward": toward.astype(object),
            "flag": flag,
            "reading": reading.astype(object),
            "e_careless": e_careless,
            "careless": careless,
        }
        return pd.DataFrame(columns, rows).reset_index()

    def save(self, path: str | os.PathLike) -> None:
        """Write the state as JSON that only this user can read; the file appears whole or not at all.

        It holds numbers per annotator and 24 letters per comparison, no votes, and a checksum of itself.
        """
        state = {
            "schema": STATE_SCHEMA,
            "attributes": self.attributes,
            "alpha": self.alpha,
            "units": self.units,
            "definitions": self.definitions,
            "annotators": {name: numbers.tolist() for name, numbers in self._evidence.items()},
            "comparisons": "".join(key + votes for key, votes in self._seen.items()),
        }
        write_seal(Path(path), state, ())

    @classmethod
    def load(cls, path: str | os.PathLike) -> AuditMonitor:
        """Go on from a saved state: feeding the rest gives what feeding all would have given.

        Raises
        ------
        ConfigError
            When the file is no state of a monitor, or is damaged.
        """
        place = Path(path).absolute()
        try:
            state = read_seal(place)
            if state.get("schema") != STATE_SCHEMA:
                raise SealError(f"its schema is {state.get('schema')!r}, not {STATE_SCHEMA!r}")
        except (SealError, OSError) as error:
            remedy = "; name another file"
            # what else is there may be somebody's only copy
            if isinstance(error, SealError) and b'"badpo.watch/' in place.read_bytes()[:100]:
                remedy = f": {error}. Name another file, or delete it to begin anew"
            raise ConfigError(f"{path} is no state of badpo watch{remedy}") from error
        monitor = cls(*(state[name] for name in ("attributes", "alpha", "units", "definitions")))
        monitor._evidence = {name: np.array(numbers) for name, numbers in state["annotators"].items()}
        seen = state["comparisons"]
        monitor._seen = {seen[i : i + 16]: seen[i + 16 : i + 24] for i in range(0, len(seen), 24)}
        return monitor


def _digest(text: str, size: int) -> str:
    return hashlib.blake2b(str(text).encode("utf-8", "surrogatepass"), digest_size=size).hexdigest()


def _votes_digest(annotators: Sequence[str], sign: Floats) -> str:
    """The same for the same votes in another order, or with the two responses exchanged."""
    votes = sorted(zip(annotators, (sign > 0).tolist(), strict=True))
    return _digest(json.dumps([(annotator, side == votes[0][1]) for annotator, side in votes]), 4)


# -- the command -------------------------------------------------------------------------------------------------

GUARANTEE = (
    "You may look as often as you like. Stopping a comparison, or adding votes to it, "
    "by looking at its votes breaks the guarantee."
)
MEANING = (
    "A flag says that someone votes unlike their co-voters on such comparisons, not "
    "that they are wrong: where most lean or click at random, whoever does neither is "
    "flagged. A lean is what clicking at random does not explain; half the care of "
    "the others may still look like one. Carelessness is told where the sides do not "
    "differ; there a taste for what is not declared looks like it."
)
_READINGS = {
    "lean": "leans",
    "care": "careless",
    "open": "lean or carelessness, not told apart yet",
}
_NAMED = 10


@dataclass(frozen=True, eq=False)
class WatchResult:
    """What a look at the votes found.

    ``summary`` is what `badpo watch --json` prints: counts, the flagged annotators of each attribute with the reading
    of each flag ("lean", "care" or "open"), the careless ones, warnings.
    ``table`` has everyone's e-values, by pseudonym, as `badpo.auditing.watch.AuditMonitor.table` gives them.
    """

    summary: Json
    table: pd.DataFrame

    def __str__(self) -> str:
        found = self.summary
        lines = [
            f"{counted(found['n_new'], 'new comparison')} counted, "
            f"{found['n_counted']:,} in all, {found['n_open']:,} still open; "
            f"{counted(found['n_annotators'], 'annotator')}",
            found["closing"],
        ]
        for name, flagged in found["flagged"].items():
            lines += ["", f"{name}: {counted(len(flagged), 'annotator')} flagged"]
            lines += [
                f"  {row['annotator']}  toward {row['toward']}  e-value "
                f"{row['e_value']:.3g}  "
                f"{counted(row['n_informative'], 'informative vote')}  "
                f"{_READINGS[row['reading']]}"
                for row in flagged
            ]
        careless = found["careless"].items()
        lines += ["", f"careless: {counted(len(careless), 'annotator')}"]
        lines += [f"  {name}  e-value {e_value:.3g}" for name, e_value in careless]
        lines += ["", *(f"{problem['code']} {problem['what']}" for problem in found["warnings"])]
        return "\n".join([*lines, found["rule"], MEANING, GUARANTEE])


def watch(
    data: Any,
    attributes: Attributes,
    state: str | os.PathLike,
    *,
    votes_per_comparison: int | None = None,
    alpha: float = 0.05,
    **reading: Any,
) -> WatchResult:
    """Feed the comparisons that closed since the last call, and say who stands out.

    Parameters
    ----------
    data : anything that `Judgments.read` takes
        All votes so far, or those since the last look.
    attributes : Attribute, or text such as "length:ratio=1.5", or several
        The same in every call.
    state : path
        Where the monitor's state is kept between calls; made when it is not there.
    votes_per_comparison : int or None
        A comparison is closed when it has so many judgments. A repeated judgment (same annotator, same order of the
        two responses) does not count. Ties count if the table has comparison ids. Without ``votes_per_comparison``
        all comparisons in the table are taken as closed.
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
    declared = as_attributes(attributes)
    if votes_per_comparison is not None and votes_per_comparison < 2:
        raise ConfigError(
            f"votes per comparison must be 2 or more to compare; got {votes_per_comparison}"
        )
    # with the state held before the table is read, whoever is forgotten meanwhile is in neither
    refuse_other_types(state=state)
    with locked(state, wait=True):
        judgments = with_usual_attributes(Judgments.read(data, attributes=declared, **reading))
        if not judgments.has_identities:
            what, remedy = (
                "the table has no annotator column",
                "name the column that says who voted",
            )
            raise DataError([Problem("E421", what, "column annotator", remedy)])
        is_closed, warnings = _closed(judgments, votes_per_comparison, data, reading)
        monitor = _monitor(Path(state), judgments, alpha)
        n_before, reopened = monitor.n_comparisons, _feed(monitor, judgments, is_closed)
        if monitor.n_comparisons > n_before or not Path(state).exists():
            monitor.save(state)
    closing = "All comparisons in the table were taken as closed."
    if votes_per_comparison is not None:
        closing = f"A comparison is closed when it has {votes_per_comparison} judgments."
    counts = {"n_new": monitor.n_comparisons - n_before, "n_open": int((~is_closed).sum())}
    return _found(monitor, counts | {"closing": closing, "reopened": reopened}, warnings)


def _found(monitor: AuditMonitor, look: Json, warnings: list[Problem]) -> WatchResult:
    """What a look found, with the state that it left."""
    table, n_reopened = monitor.table(), len(look["reopened"])
    if n_reopened:
        named = ", ".join(look["reopened"][:_NAMED])
        what = f"{counted(n_reopened, 'comparison')} had other votes when counted; the new ones are refused: {named}"
        warnings = [
            Problem("W420", what, "comparison_id", _WHEN_TO_CLOSE, n_reopened),
            *warnings,
        ]
    if monitor.n_comparisons and not table["n_informative"].any():
        what = "nothing tells annotators apart: wherever the sides differ, all votes are for one of them"
        remedy = "let several people judge the same comparisons"
        warnings = [*warnings, Problem("W422", what, "the votes", remedy)]
    shown = ["annotator", "toward", "e_value", "n_informative", "reading"]
    flagged, careless = table[table["flag"]], table[table["careless"]]
    summary = look | {
        "alpha": monitor.alpha,
        "n_counted": monitor.n_comparisons,
        "n_annotators": table["annotator"].nunique(),
        "flagged": {
            name: flagged.loc[flagged["attribute"] == name, shown].to_dict("records")
            for name in monitor.attributes
        },
        "careless": dict(zip(careless["annotator"], careless["e_careless"], strict=True)),
        "warnings": [vars(problem) for problem in warnings],
        "rule": f"By pseudonym. By e-BH over all, at most {monitor.alpha:.0%} of the flags are "
        "false on average; so of the leans, and of the careless.",
        "guarantee": GUARANTEE,
    }
    return WatchResult(summary, table)


def _closed(
    judgments: Judgments, needed: int | None, data: Any, reading: Mapping[str, Any]
) -> tuple[Bools, list[Problem]]:
    """Which comparisons have all their votes, and a warning where ties could not be counted."""
    once = judgments.votes.drop_duplicates(["comparison", "annotator", "shown_first"])
    n_votes = np.bincount(once["comparison"], minlength=judgments.n_comparisons)
    n_ties = int(judgments.dropped.loc[judgments.dropped["reason"] == "tie", "n"].sum())
    if needed is None or not n_ties:
        return n_votes >= (needed or 0), []
    source = read_table(data, reading.get("bad_rows") == "drop")
    table = recognise(source, reading.get("columns"), reading.get("layout"))
    if not table.dropped and "comparison_id" in table.frame:
        # by rows: an id that names an annotator is another one in judgments
        rows = table.rows if table.rows is not None else np.arange(len(table.frame))
        ids = pd.Series(as_ids(table.frame["comparison_id"]), rows)
        firsts = judgments.votes.groupby("comparison")["row"].first()
        of_first = ids[~ids.index.duplicated()].loc[firsts]
        voter = [name for name in ("annotator", "shown_first") if name in table.frame]
        cast = table.frame[voter].set_axis(rows).assign(comparison=ids)
        cast = cast[cast["comparison"].isin(of_first)].drop_duplicates()
        return cast["comparison"].value_counts().loc[of_first].to_numpy() >= needed, []
    what = (
        f"{counted(n_ties, 'tie')} could not be counted toward the votes of a "
        "comparison; those with a tie may stay open"
    )
    remedy = (
        "give comparison ids with the ties, or leave comparisons that are still open out of the table"
    )
    return n_votes >= needed, [Problem("W421", what, "column winner", remedy, n_ties)]


def _monitor(state: Path, judgments: Judgments, alpha: float) -> AuditMonitor:
    """The monitor of an earlier call, or a new one."""
    definitions = [dict(attribute.config) for attribute in judgments.attributes]
    now: Json = {"attributes": list(judgments.attribute_names), "definitions": definitions}
    if not state.exists():
        # of a continuous attribute the root mean square of the differences that there are
        delta = pd.DataFrame(judgments.delta)
        sized = delta.where((delta != 0) & [one.continuous for one in judgments.attributes])
        units = np.sqrt((sized**2).mean()).fillna(1.0)
        return AuditMonitor(**now, alpha=alpha, units=units.tolist())
    monitor = AuditMonitor.load(state)
    was = {name: getattr(monitor, name) for name in now}
    for name, *pair in (("attributes", was, now), ("alpha", monitor.alpha, alpha)):
        before, after = (json.dumps(each, sort_keys=True) for each in pair)
        if before != after:
            raise ConfigError(
                f"{state} was made with other {name}: {before}, now {after}; what is "
                "chosen after looking holds no level. Keep it, or name another state "
                "file"
            )
    return monitor


def _feed(monitor: AuditMonitor, judgments: Judgments, is_closed: Bools) -> list[str]:
    """Count what is closed, in the order of last votes; ids of comparisons that were counted with other votes."""
    votes, reopened = judgments.votes, []
    names = judgments.annotators["pseudonym"].to_numpy()[votes["annotator"]]
    ids, sign = judgments.comparisons["comparison_id"].to_numpy(), votes["sign"].to_numpy()
    delta = np.where(judgments.missing, np.nan, judgments.delta)
    last_rows = votes.groupby("comparison")["row"].last().sort_values(kind="stable")
    rows_of = votes.groupby("comparison").indices
    for c in last_rows.index:
        rows = rows_of[c]
        if is_closed[c] or monitor.has_seen(ids[c]):
            try:
                monitor.update(ids[c], names[rows].tolist(), sign[rows], delta[rows])
            except DataError:
                reopened.append(ids[c])
    return reopened
