"""Audit votes as they arrive, and control the false discovery rate no matter how often you look at the votes."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, Unpack

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from badpo.auditing.dependence import name_votes
from badpo.auditing.pool_bias import add_default_attributes
from badpo.data.attributes import ATTRIBUTES, Attributes, Config, as_attributes
from badpo.data.files import SealError, locked, read_seal, write_seal
from badpo.data.judgments import Judgments, ReadingOptions
from badpo.data.problems import ConfigError, DataError, Problem, counted, refuse_other_types
from badpo.data.tables import Source
from badpo.estimation.significance import (
    GRID,
    RELIABILITY_GRID,
    bias_e_values,
    e_bh,
    log_e_values,
    log_random_ratios,
    log_reliability_ratios,
    log_tilt_ratios,
    winner_shares,
)
from badpo.theory import Bools, Floats

STATE_SCHEMA = "badpo.watch/5"
# In an array of evidence, the three kinds of log-likelihood ratios end at these positions.
_ENDS = np.cumsum([len(GRID), len(GRID), len(RELIABILITY_GRID)])
_LARGEST_LOG = 700.0  # larger e-values are shown as exp(700), about 1e304
_WHEN_TO_CLOSE = "close a comparison only after its last vote; give later votes a new comparison id"


class AuditMonitor:
    """Sequential test (e-process) for each annotator and attribute, updated with each closed comparison.

    The false discovery rate is at most alpha for all flags, for the flags with the reading "bias", and for the
    unreliable annotators, no matter how often the flags are inspected. The false discovery rate is not controlled if
    the decision to close a comparison depends on its votes.

    Parameters
    ----------
    attributes : sequence of str
        Names of the attributes, in the order of the columns of delta.
    alpha : float
        False discovery rate of the flags.
    units : sequence of float, or None
        Unit of each attribute, by default 1. A unit may depend on the texts but not on the votes.
    definitions : sequence of mapping, or None
        Definitions of the attributes as JSON. The saved state contains the definitions, so that callers can compare
        them.

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
        definitions: Sequence[Config] | None = None,
    ):
        several = attributes if isinstance(attributes, Iterable) else [attributes]
        self.attributes = names = (attributes,) if isinstance(attributes, str) else tuple(several)
        for name in names if definitions is None else ():
            if not isinstance(name, str) or name.partition(":")[0] in {*ATTRIBUTES} - {name}:
                takes = (
                    'AuditMonitor takes names of attributes, such as "length", and measured differences'
                )
                raise ConfigError(f"{takes}; to measure attributes, use badpo.auditing.watch.watch")
        self.alpha, self.definitions = float(alpha), definitions
        self.units = tuple(units or [1.0] * len(names))
        if not names or len(set(names)) < len(names):
            raise ConfigError(f"AuditMonitor needs one or more distinct attributes; got {names}")
        if not 0 < self.alpha < 1:
            raise ConfigError(f"alpha must be above 0 and below 1, such as 0.05; got {self.alpha}")
        if len(self.units) != len(names) or not all(0 < unit < np.inf for unit in self.units):
            raise ConfigError(
                f"units must contain one finite number above 0 for each attribute; got {self.units}"
            )
        # `_evidence` maps each annotator to an array with one row per attribute.
        # Each row of evidence contains three kinds of log-likelihood ratios and the number of informative votes.
        # The first kind of log-likelihood ratio tests whether the annotator votes like the co-voters.
        # The second kind of ratio tests for random responding, and the third kind tests for low reliability.
        self._evidence: dict[str, Floats] = {}
        self._seen: dict[str, str] = {}

    def update(
        self, comparison_id: str, annotators: Sequence[str], sign: ArrayLike, delta: ArrayLike
    ) -> None:
        """Add the votes of a closed comparison; adding the same votes again changes nothing.

        Parameters
        ----------
        comparison_id : str
        annotators : sequence of str
            Pseudonym of the annotator of each vote. Only the first vote of each annotator counts.
        sign : array of shape (n_votes,)
            +1 for a vote for a, -1 for a vote for b.
        delta : array of shape (n_votes, n_attributes) or (n_attributes,)
            g(a) - g(b); NaN if a measurement is missing.

        Raises
        ------
        DataError
            E420 if the comparison was already added with different votes. The monitor then remains unchanged.
        ValueError
            If the shapes do not match.
        """
        sign, delta = np.asarray(sign, float), np.asarray(delta, float)
        shape, where = (len(annotators), len(self.attributes)), f"comparison {comparison_id}"
        if any(map(pd.isna, annotators)):
            raise ValueError(f"{where}: an annotator has no id")
        annotators = [*map(str, annotators)]  # a saved state stores annotator ids as strings
        if sign.shape != shape[:1] or not len(sign) or not (np.abs(sign) == 1).all():
            raise ValueError(f"{where}: sign must be +1 or -1 for each annotator")
        if delta.shape not in (shape, shape[1:]) or np.isinf(delta).any():
            needed = f"expected an array of finite numbers with shape {shape} or {shape[1:]}"
            raise ValueError(f"{where}: delta has the shape {delta.shape}; {needed}")
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
        chance = log_random_ratios(won, won.sum(), len(won), known)
        reliability = log_reliability_ratios(won, share) * bool((delta == 0).all())
        reliability = np.broadcast_to(reliability, (*delta.shape, len(RELIABILITY_GRID)))
        kinds = ratios, chance, reliability, ratios.any(axis=-1, keepdims=True)
        for name, added in zip(names, np.concatenate(kinds, axis=-1), strict=True):
            self._evidence[name] = self._evidence.get(name, 0.0) + added

    def has_seen(self, comparison_id: str) -> bool:
        """Whether the votes of this comparison have been added to the monitor."""
        return _digest(comparison_id, 8) in self._seen

    @property
    def n_comparisons(self) -> int:
        """Number of comparisons that have been added to the monitor."""
        return len(self._seen)

    def table(self) -> pd.DataFrame:
        """Return one row for each annotator and attribute, sorted by pseudonym.

        Returns
        -------
        DataFrame
            ``annotator``, ``attribute``; ``n_informative``: number of votes on comparisons that differ in the attribute
            and are not unanimous; ``e_value``: evidence against the hypothesis that the annotator votes like the
            co-voters; ``toward``: direction of the evidence, "more" or "less" of the attribute than the co-voters;
            ``flag``: whether the evidence is significant (e-BH over all annotators and attributes); ``reading`` of a
            flag: "bias" (random responding does not explain the difference), "reliability" (low reliability) or "open"
            (either of the two). ``e_unreliable``: evidence against the hypothesis that the annotator is as reliable as
            the co-voters, from comparisons whose sides do not differ; ``unreliable``: whether ``e_unreliable`` is
            significant. Both values are the same in all rows of an annotator.
        """
        names = sorted(self._evidence)
        rows = pd.MultiIndex.from_product([names, self.attributes], names=["annotator", "attribute"])
        evidence = np.array([self._evidence[name] for name in names]).reshape(len(rows), _ENDS[-1] + 1)
        ratios, chance, reliability, n_informative = np.split(evidence, _ENDS, axis=1)
        log_e, log_reliability = log_e_values(ratios), log_e_values(reliability)
        bias = bias_e_values(log_e, log_e_values(chance), log_reliability)
        n_informative, each = n_informative[:, 0].astype(int), len(self.attributes)
        unreliable = np.repeat(e_bh(log_reliability[::each], self.alpha), each)
        flag, is_biased = e_bh(log_e, self.alpha), e_bh(bias, self.alpha)
        less, more = (log_e_values(half) for half in np.split(ratios, 2, axis=1))
        toward = np.select([n_informative == 0, more >= less], ["", "more"], "less")
        reading = np.select([~flag, is_biased, unreliable], ["", "bias", "reliability"], "open")
        e_value, e_unreliable = np.exp(np.minimum([log_e, log_reliability], _LARGEST_LOG))
        columns = {
            "n_informative": n_informative,
            "e_value": e_value,
            "toward": toward.astype(object),
            "flag": flag,
            "reading": reading.astype(object),
            "e_unreliable": e_unreliable,
            "unreliable": unreliable,
        }
        return pd.DataFrame(columns, rows).reset_index()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state atomically to a JSON file that only the current user can read.

        The state file contains numbers for each annotator, 24 characters for each comparison and a checksum, but no
        votes.
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
    def load(cls, path: str | os.PathLike[str]) -> AuditMonitor:
        """Load a saved monitor. Further updates give the same results as if the monitor had never been saved.

        Raises
        ------
        ConfigError
            If the file is not a monitor's state, or is damaged.
        """
        place = Path(path).absolute()
        try:
            state = read_seal(place)
            if state.get("schema") != STATE_SCHEMA:
                raise SealError(f"its schema is {state.get('schema')!r}, not {STATE_SCHEMA!r}")
        except (SealError, OSError) as error:
            remedy = "; name another file"
            # A file that badpo watch did not write may be the only copy, so the message does not suggest deleting it.
            if isinstance(error, SealError) and b'"badpo.watch/' in place.read_bytes()[:100]:
                remedy = f": {error}. Name another file, or delete this file to start again"
            raise ConfigError(f"{path} is not a state of badpo watch{remedy}") from error
        monitor = cls(*(state[name] for name in ("attributes", "alpha", "units", "definitions")))
        monitor._evidence = {name: np.array(numbers) for name, numbers in state["annotators"].items()}
        seen = state["comparisons"]
        monitor._seen = {seen[i : i + 16]: seen[i + 16 : i + 24] for i in range(0, len(seen), 24)}
        return monitor


def _digest(text: str, size: int) -> str:
    """Return a digest with a length of ``size`` bytes as a hexadecimal string."""
    return hashlib.blake2b(str(text).encode("utf-8", "surrogatepass"), digest_size=size).hexdigest()


def _votes_digest(annotators: Sequence[str], sign: Floats) -> str:
    """Return a digest of the votes that depends neither on the order of the votes nor on the order of the responses."""
    votes = sorted(zip(annotators, (sign > 0).tolist(), strict=True))
    return _digest(json.dumps([(annotator, side == votes[0][1]) for annotator, side in votes]), 4)


# -- the command -------------------------------------------------------------------------------------------------

GUARANTEE = (
    "The guaranteed error rate holds no matter how often you look at the votes. The guarantee fails if the decision to "
    "close a comparison, or to add votes to a comparison, depends on its votes."
)
MEANING = (
    "A flag says that an annotator votes differently from the co-voters, not that the annotator is wrong. If most "
    "annotators are biased or respond at random, the other annotators are flagged. A bias is a difference that random "
    "responding does not explain, but an annotator with half the reliability of the co-voters may still seem biased. "
    "Reliability is tested on comparisons whose sides do not differ in any declared attribute. On these comparisons, a "
    "bias toward an undeclared attribute may look like low reliability."
)
_READINGS = {
    "bias": "biased",
    "reliability": "unreliable",
    "open": "biased or unreliable, not yet decided",
}
_NAMED = 10


class FlagRow(TypedDict):
    """Flagged annotator; the keys are columns of `AuditMonitor.table`."""

    annotator: str
    toward: str
    e_value: float
    n_informative: int
    reading: str


class WatchSummary(TypedDict):
    """The output of `badpo watch --json`."""

    n_new: int
    n_open: int
    closing: str
    reopened: list[str]
    alpha: float
    n_counted: int
    n_annotators: int
    flagged: dict[str, list[FlagRow]]
    unreliable: dict[str, float]
    warnings: list[Mapping[str, object]]
    rule: str
    guarantee: str


@dataclass(frozen=True, eq=False)
class WatchResult:
    """Findings of one call of `watch` on the votes cast so far.

    ``summary`` contains counts, the flagged annotators of each attribute with the reading of each flag ("bias",
    "reliability" or "open"), the unreliable annotators (``unreliable``) and warnings. ``table`` contains the e-values
    of all annotators and is the result of `badpo.auditing.watch.AuditMonitor.table`.
    """

    summary: WatchSummary
    table: pd.DataFrame

    def __str__(self) -> str:
        summary = self.summary
        lines = [
            f"{counted(summary['n_new'], 'new comparison')} counted, "
            f"{summary['n_counted']:,} in all, {summary['n_open']:,} still open; "
            f"{counted(summary['n_annotators'], 'annotator')}",
            summary["closing"],
        ]
        for name, flagged in summary["flagged"].items():
            lines += ["", f"{name}: {counted(len(flagged), 'annotator')} flagged"]
            lines += [
                f"  {row['annotator']}  toward {row['toward']}  e-value "
                f"{row['e_value']:.3g}  "
                f"{counted(row['n_informative'], 'informative vote')}  "
                f"{_READINGS[row['reading']]}"
                for row in flagged
            ]
        unreliable = summary["unreliable"].items()
        lines += ["", f"unreliable: {counted(len(unreliable), 'annotator')}"]
        lines += [f"  {name}  e-value {e_value:.3g}" for name, e_value in unreliable]
        lines += ["", *(f"{problem['code']} {problem['what']}" for problem in summary["warnings"])]
        return "\n".join([*lines, summary["rule"], MEANING, GUARANTEE])


def watch(
    data: Source,
    attributes: Attributes,
    state: str | os.PathLike[str],
    *,
    votes_per_comparison: int | None = None,
    alpha: float = 0.05,
    **reading: Unpack[ReadingOptions],
) -> WatchResult:
    """Update the saved state with the comparisons closed since the last call, and report the flagged annotators.

    Parameters
    ----------
    data : anything that `Judgments.read` takes
        All votes so far, or the votes since the last look.
    attributes : Attribute, or text such as "length:ratio=1.5", or several
        Attributes to test. Every call must name the same attributes.
    state : path
        File that keeps the monitor's state between calls. The first call creates the file.
    votes_per_comparison : int or None
        Number of judgments that closes a comparison. Ties count, but repeated judgments (same annotator, same order of
        the two responses) do not. With None, all comparisons in the table count as closed.
    alpha : float
        False discovery rate of the flags.
    **reading
        Options of `Judgments.read`.

    Returns
    -------
    WatchResult

    Raises
    ------
    DataError
        If the table has errors or no annotators.
    ConfigError
        If an option is wrong, if the file is not a monitor's state, or if the saved attributes are different.
    """
    declared = as_attributes(attributes)
    if votes_per_comparison is not None and votes_per_comparison < 2:
        raise ConfigError(
            f"votes per comparison must be 2 or more, so that votes can be compared; got {votes_per_comparison}"
        )
    # The state is locked before the table is read, so a deleted annotator cannot return to the state.
    refuse_other_types(state=state)
    with locked(state, wait=True):
        judgments = add_default_attributes(Judgments.read(data, attributes=declared, **reading))
        if not judgments.has_identities:
            what, where = "the table has no annotator column", "column annotator"
            raise DataError([Problem("E421", what, where, "name the column with the annotator ids")])
        is_closed, warnings = _find_closed(judgments, votes_per_comparison)
        monitor = _open_monitor(Path(state), judgments, alpha)
        n_before, reopened = monitor.n_comparisons, _add_votes(monitor, judgments, is_closed)
        if monitor.n_comparisons > n_before or not Path(state).exists():
            monitor.save(state)
    closing = "badpo watch treated all comparisons in the table as closed."
    if votes_per_comparison is not None:
        closing = f"A comparison is closed when it has {votes_per_comparison} judgments."
    table = monitor.table()
    flagged, unreliable = table[table["flag"]], table[table["unreliable"]]
    problems = [*_report_changed_votes(reopened), *warnings, *_report_equal_votes(table)]
    summary: WatchSummary = {
        "n_new": monitor.n_comparisons - n_before,
        "n_open": int((~is_closed).sum()),
        "closing": closing,
        "reopened": reopened,
        "alpha": monitor.alpha,
        "n_counted": monitor.n_comparisons,
        "n_annotators": table["annotator"].nunique(),
        "flagged": {
            name: flagged.loc[flagged["attribute"] == name, [*FlagRow.__annotations__]].to_dict(
                "records"
            )
            for name in monitor.attributes
        },
        "unreliable": dict(zip(unreliable["annotator"], unreliable["e_unreliable"], strict=True)),
        "warnings": [vars(problem) for problem in problems],
        "rule": f"Annotators are listed by pseudonym. The false discovery rate (e-BH) is at most {monitor.alpha:.0%} "
        "for the flags, for the biased annotators and for the unreliable annotators.",
        "guarantee": GUARANTEE,
    }
    return WatchResult(summary, table)


def _report_changed_votes(reopened: Sequence[str]) -> Iterator[Problem]:
    """W420: the votes on some comparisons differ from the votes in an earlier call."""
    if n := len(reopened):
        what = (
            f"{counted(n, 'comparison')} have different votes than in an earlier call; badpo watch ignores the new "
            f"votes: {', '.join(reopened[:_NAMED])}"
        )
        yield Problem("W420", what, "comparison_id", _WHEN_TO_CLOSE, n)


def _report_equal_votes(table: pd.DataFrame) -> Iterator[Problem]:
    """W422: the votes show no difference between annotators."""
    if len(table) and not table["n_informative"].any():
        what = "the votes show no difference between annotators: comparisons whose sides differ are unanimous"
        yield Problem("W422", what, "the votes", "have several annotators judge the same comparisons")


def _find_closed(judgments: Judgments, needed: int | None) -> tuple[Bools, list[Problem]]:
    """Return a mask of the closed comparisons, and a warning if ties could not be counted."""
    if needed is None:
        return np.ones(judgments.n_comparisons, dtype=bool), []
    both = [judgments] if judgments.ties is None else [judgments, judgments.ties]
    votes = pd.concat([name_votes(each) for each in both])
    cast = votes.drop_duplicates(["comparison", "annotator", "shown_first"])
    ids = judgments.comparisons["comparison_id"]
    is_closed = cast["comparison"].value_counts().loc[ids].to_numpy() >= needed
    n_ties = int(judgments.dropped.loc[judgments.dropped["reason"] == "tie", "n"].sum())
    n_unknown = n_ties - sum(each.n_votes for each in both[1:])
    if not n_unknown:
        return is_closed, []
    what = (
        f"{counted(n_unknown, 'tie')} could not be counted toward the votes of a "
        "comparison, because the file has only a total number of ties; comparisons with ties may stay open"
    )
    remedy = (
        "run badpo watch on the original table, before the import, which still has the rows with ties"
    )
    return is_closed, [Problem("W421", what, "column winner", remedy, n_unknown)]


def _open_monitor(state: Path, judgments: Judgments, alpha: float) -> AuditMonitor:
    """Load the monitor that an earlier call saved, or create a new monitor."""
    names, definitions = judgments.attribute_names, [dict(one.config) for one in judgments.attributes]
    if not state.exists():
        # The unit of a continuous attribute is the root mean square of its nonzero differences.
        delta = pd.DataFrame(judgments.delta)
        sized = delta.where((delta != 0) & [one.continuous for one in judgments.attributes])
        units = np.sqrt((sized**2).mean()).fillna(1.0)
        return AuditMonitor(names, alpha, units.tolist(), definitions)
    monitor = AuditMonitor.load(state)
    saved = {"attributes": monitor.attributes, "definitions": monitor.definitions}
    current = {"attributes": names, "definitions": definitions}
    for name, *pair in (("attributes", saved, current), ("alpha", monitor.alpha, alpha)):
        before, after = (json.dumps(each, sort_keys=True) for each in pair)
        if before != after:
            raise ConfigError(
                f"{state} was created with other {name}: {before}, now {after}. Choosing a setting after looking "
                "at votes invalidates the error rate. Keep the earlier setting, or name another state file"
            )
    return monitor


def _add_votes(monitor: AuditMonitor, judgments: Judgments, is_closed: Bools) -> list[str]:
    """Add closed comparisons in the order of their last votes.

    Return the ids of comparisons that an earlier call added and whose votes have changed since then.
    """
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
