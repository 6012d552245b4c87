"""The audit while labels still arrive: evidence per annotator that may be looked at as often as one likes."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from badpo.data.files import appearing
from badpo.data.problems import ConfigError, DataError, Problem
from badpo.estimation.sequential import (
    GRID,
    e_bh,
    log_e_values,
    log_tilt_ratios,
    mean_tilt,
    winner_shares,
)

SCHEMA = "badpo.watch/1"
COLUMNS = ("annotator", "attribute", "n_informative", "e_value", "highest", "toward", "alarm", "flag")
_ID_BYTES, _VOTES_BYTES = 8, 4
_LARGEST_LOG = 700.0  # e-values above 1e304 are shown as that


@dataclass(frozen=True, eq=False)
class ClosedComparison:
    """A comparison that will get no further vote.

    Attributes
    ----------
    comparison_id : str
    annotators : sequence of str
        Pseudonym of each vote's annotator. Of repeated votes the first counts.
    sign : array of shape (n_votes,)
        +1 chose a, -1 chose b.
    delta : array of shape (n_votes, n_attributes) or (n_attributes,)
        g(a) - g(b).
    """

    comparison_id: str
    annotators: Sequence[str]
    sign: ArrayLike
    delta: ArrayLike


class ReopenedComparison(DataError):
    """A comparison was fed that the monitor has had before; nothing was changed."""

    def __init__(self, comparison_id: str):
        super().__init__(
            [
                Problem(
                    "E420",
                    "the comparison has been counted already",
                    f"comparison {comparison_id}",
                    "feed a comparison once, with all its votes; votes that come later need a comparison of their own",
                    "error",
                )
            ]
        )


class AuditMonitor:
    """An e-process for each annotator and attribute, fed one closed comparison after the other.

    The e-value of an annotator who votes as their co-voters do ever reaches 1 / alpha with probability at most alpha,
    however often one looks. Stopping a comparison by looking at its votes breaks that.

    Parameters
    ----------
    attributes : sequence of str
        Names, in the order of the columns of delta.
    alpha : float
        Level of an alarm about one annotator and attribute, and of the false discovery rate of the flags.
    grid : sequence of float
        Leans relative to the co-voters that the evidence is averaged over, in log-odds per unit.
    units : sequence of float, or None
        Size of a unit of each attribute, 1 unless given. It may depend on the texts but not on votes.
    definitions : sequence of mapping, or None
        What the attributes are, as JSON; kept in the state, so that a caller sees whether they are still the same.

    Examples
    --------
    >>> monitor = AuditMonitor(["length"])
    >>> for i in range(30):
    ...     _ = monitor.update(ClosedComparison(f"c{i}", ["ann", "bob", "eve"], [1, -1, -1], [1.0]))
    >>> monitor.table()[["annotator", "toward", "flag"]].values.tolist()
    [['ann', 'more', True], ['bob', 'less', True], ['eve', 'less', True]]
    """

    def __init__(
        self,
        attributes: Sequence[str],
        alpha: float = 0.05,
        grid: Sequence[float] = GRID,
        units: Sequence[float] | None = None,
        definitions: Sequence[Mapping[str, Any]] | None = None,
    ):
        self.attributes = tuple(attributes)
        self.alpha = float(alpha)
        self.grid = tuple(float(tilt) for tilt in grid)
        self.units = tuple(float(unit) for unit in units or [1.0] * len(self.attributes))
        self.definitions = definitions
        self.n_repeated = 0
        self._check()
        self._row: dict[str, int] = {}
        self._seen: dict[bytes, bytes] = {}
        shape = (0, len(self.attributes))
        self._log_ratio = np.zeros((*shape, len(self.grid)))
        self._highest, self._n_informative = np.zeros(shape), np.zeros(shape, dtype=np.int64)

    def update(self, closed: ClosedComparison) -> tuple[tuple[str, str], ...]:
        """Count the votes of a closed comparison.

        Returns
        -------
        tuple of (annotator, attribute)
            Whose e-value reaches 1 / alpha for the first time.

        Raises
        ------
        ReopenedComparison
            When a comparison with this id was fed before.
        ValueError
            When the shapes do not fit together.
        """
        key = _id_digest(closed.comparison_id)
        if key in self._seen:
            raise ReopenedComparison(closed.comparison_id)
        sign, delta = self._arrays(closed)
        first = {annotator: i for i, annotator in reversed(list(enumerate(closed.annotators)))}
        kept = sorted(first.values())
        rows = np.array([self._row_of(closed.annotators[i]) for i in kept], dtype=np.intp)
        self.n_repeated += len(sign) - len(kept)
        self._seen[key] = _votes_digest(closed)
        share = winner_shares(sign[kept], delta[kept])
        if not (((share > 0) & (share < 1))[:, None] & (delta[kept] != 0)).any():
            return ()
        ratios = log_tilt_ratios((sign[kept] > 0)[:, None], share[:, None], delta[kept], self.grid)
        self._log_ratio[rows] += ratios
        self._n_informative[rows] += ratios.any(axis=-1)
        before = self._highest[rows]
        highest = np.maximum(before, log_e_values(self._log_ratio[rows]))
        self._highest[rows] = highest
        crossed = np.argwhere((before < self._threshold) & (highest >= self._threshold))
        return tuple((closed.annotators[kept[i]], self.attributes[j]) for i, j in crossed.tolist())

    def has_seen(self, comparison_id: str) -> bool:
        """Whether a comparison was fed."""
        return _id_digest(comparison_id) in self._seen

    def is_reopened(self, closed: ClosedComparison) -> bool:
        """Whether a comparison was fed with other votes than it has here."""
        votes = self._seen.get(_id_digest(closed.comparison_id))
        return votes is not None and votes != _votes_digest(closed)

    @property
    def n_comparisons(self) -> int:
        """Comparisons that were fed."""
        return len(self._seen)

    def table(self) -> pd.DataFrame:
        """One row for each annotator and attribute, by pseudonym.

        Returns
        -------
        DataFrame
            ``annotator, attribute``; ``n_informative``: votes on comparisons that differ and are not unanimous;
            ``e_value`` now and ``highest`` so far; ``toward`` "more" or "less" of the attribute than the co-voters,
            which is the direction of the evidence and no estimate; ``alarm``: ``highest`` is 1 / alpha or more, which
            holds for this annotator and attribute alone; ``flag``: stands out among all annotators and attributes
            (e-BH: at most a share alpha of the flags is false on average).
        """
        m = len(self._row)
        log_e = log_e_values(self._log_ratio[:m])
        toward = np.where(mean_tilt(self._log_ratio[:m], self.grid) >= 0, "more", "less").astype(object)
        toward[self._n_informative[:m] == 0] = ""
        names = np.array(list(self._row), dtype=object)
        columns = {
            "annotator": np.repeat(names, len(self.attributes)),
            "attribute": np.tile(np.array(self.attributes, dtype=object), m),
            "n_informative": self._n_informative[:m].ravel(),
            "e_value": np.exp(np.minimum(log_e, _LARGEST_LOG)).ravel(),
            "highest": np.exp(np.minimum(self._highest[:m], _LARGEST_LOG)).ravel(),
            "toward": toward.ravel(),
            "alarm": (self._highest[:m] >= self._threshold).ravel(),
            "flag": e_bh(log_e, self.alpha).ravel(),
        }
        table = pd.DataFrame(columns, columns=list(COLUMNS))
        return table.sort_values("annotator", kind="stable", ignore_index=True)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state as JSON that only this user can read; the file appears whole or not at all.

        It holds numbers per annotator and twelve bytes per comparison, no votes, and a checksum of itself.
        """
        state = {
            "schema": SCHEMA,
            "attributes": self.attributes,
            "alpha": self.alpha,
            "grid": self.grid,
            "units": self.units,
            "definitions": self.definitions,
            "n_repeated": self.n_repeated,
            "annotators": {
                name: {
                    "log_ratio": self._log_ratio[k].tolist(),
                    "highest": self._highest[k].tolist(),
                    "n_informative": self._n_informative[k].tolist(),
                }
                for name, k in self._row.items()
            },
            "comparisons": base64.b64encode(b"".join(k + v for k, v in self._seen.items())).decode(),
        }
        with appearing(path, private=True) as unfinished:
            unfinished.write_bytes(_sealed(json.dumps(state, allow_nan=False).encode()))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> AuditMonitor:
        """Go on from a saved state: feeding the rest gives what feeding all would have given.

        Raises
        ------
        ConfigError
            When the file is no state of a monitor, or a bit of it has changed.
        """
        state = _read_state(Path(path))
        monitor = cls(
            state["attributes"], state["alpha"], state["grid"], state["units"], state["definitions"]
        )
        monitor.n_repeated = int(state["n_repeated"])
        people = state["annotators"]
        monitor._reserve(len(people))
        for name, numbers in people.items():
            k = monitor._row_of(name)
            monitor._log_ratio[k] = numbers["log_ratio"]
            monitor._highest[k] = numbers["highest"]
            monitor._n_informative[k] = numbers["n_informative"]
        packed = base64.b64decode(state["comparisons"])
        size = _ID_BYTES + _VOTES_BYTES
        entries = (packed[i : i + size] for i in range(0, len(packed), size))
        monitor._seen = {entry[:_ID_BYTES]: entry[_ID_BYTES:] for entry in entries}
        return monitor

    @property
    def _threshold(self) -> float:
        return -float(np.log(self.alpha)) - 1e-12

    def _check(self) -> None:
        if not self.attributes or len(set(self.attributes)) < len(self.attributes):
            raise ConfigError(f"a monitor takes one attribute or more, each once; got {self.attributes}")
        if not 0 < self.alpha < 1:
            raise ConfigError(f"alpha is a share above 0 and below 1, such as 0.05; got {self.alpha}")
        if not self.grid or not np.isfinite(self.grid).all() or 0.0 in self.grid:
            raise ConfigError(f"the grid holds leans in log-odds other than 0; got {self.grid}")
        if len(self.units) != len(self.attributes) or not all(0 < unit < np.inf for unit in self.units):
            raise ConfigError(f"one unit above 0 for each attribute is needed; got {self.units}")

    def _arrays(self, closed: ClosedComparison) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        sign, n = np.asarray(closed.sign, dtype=np.float64), len(closed.annotators)
        delta = np.asarray(closed.delta, dtype=np.float64)
        shape = (n, len(self.attributes))
        if sign.shape != (n,) or n == 0 or not (np.abs(sign) == 1).all():
            raise ValueError(
                f"comparison {closed.comparison_id}: one sign, +1 or -1, for each annotator is needed"
            )
        if delta.shape not in (shape, shape[1:]) or not np.isfinite(delta).all():
            raise ValueError(
                f"comparison {closed.comparison_id}: delta has shape {delta.shape}, needed are finite numbers of shape "
                f"{shape} or {shape[1:]}"
            )
        return sign, np.broadcast_to(delta, shape) / self.units

    def _row_of(self, annotator: str) -> int:
        if annotator not in self._row:
            self._row[annotator] = len(self._row)
            if len(self._row) > len(self._highest):
                self._reserve(2 * len(self._row))
        return self._row[annotator]

    def _reserve(self, n: int) -> None:
        """Make room for n annotators; those that are there keep their rows."""
        room = max(n - len(self._highest), 0)
        self._log_ratio, self._highest, self._n_informative = (
            np.concatenate([kept, np.zeros((room, *kept.shape[1:]), dtype=kept.dtype)])
            for kept in (self._log_ratio, self._highest, self._n_informative)
        )


def _id_digest(comparison_id: str) -> bytes:
    return hashlib.blake2b(comparison_id.encode("utf-8", "surrogatepass"), digest_size=_ID_BYTES).digest()


def _votes_digest(closed: ClosedComparison) -> bytes:
    """The same for the same votes in another order, or with the two responses exchanged."""
    votes = sorted(zip(closed.annotators, (np.asarray(closed.sign) > 0).tolist(), strict=True))
    text = json.dumps([(annotator, side == votes[0][1]) for annotator, side in votes])
    return hashlib.blake2b(text.encode(), digest_size=_VOTES_BYTES).digest()


def _sealed(state: bytes) -> bytes:
    """A JSON object with the checksum of its text as the last entry."""
    return state[:-1] + f', "sha256": "{hashlib.sha256(state).hexdigest()}"}}'.encode()


def _read_state(path: Path) -> Mapping[str, Any]:
    content = path.read_bytes()
    try:
        state = json.loads(content)
    except ValueError as error:
        raise _no_state(path, "it does not hold JSON") from error
    if not isinstance(state, dict) or state.get("schema") != SCHEMA:
        found = state.get("schema") if isinstance(state, dict) else None
        raise _no_state(path, f"its schema is {found!r}, not {SCHEMA!r}")
    if content != _sealed(content[: content.rfind(b', "sha256": "')] + b"}"):
        raise _no_state(path, "its checksum does not match, so that it is damaged or was edited")
    return state


def _no_state(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{path} is no state of badpo watch: {why}. Name another file, or delete it to begin anew"
    )
