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

STATE_SCHEMA = "badpo.watch/1"
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
        what, where = "the comparison has been counted already", f"comparison {comparison_id}"
        remedy = (
            "feed a comparison once, with all its votes; votes that come later need a comparison of their own"
        )
        super().__init__([Problem("E420", what, where, remedy, "error")])


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
        self._threshold = -float(np.log(self.alpha)) - 1e-12
        self._people: dict[str, dict[str, NDArray]] = {}
        self._seen: dict[bytes, bytes] = {}

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
        names, kept = zip(*sorted(first.items(), key=lambda vote: vote[1]), strict=True)
        self.n_repeated += len(sign) - len(kept)
        self._seen[key] = _votes_digest(closed)
        people = [self._people.setdefault(name, self._nothing()) for name in names]
        won, delta = sign[list(kept)] > 0, delta[list(kept)]
        share = winner_shares(sign[list(kept)], delta)
        if not (((share > 0) & (share < 1))[:, None] & (delta != 0)).any():
            return ()
        ratios = log_tilt_ratios(won[:, None], share[:, None], delta, self.grid)
        log_ratio = np.stack([person["log_ratio"] for person in people]) + ratios
        before = np.stack([person["highest"] for person in people])
        highest = np.maximum(before, log_e_values(log_ratio))
        for i, person in enumerate(people):
            person["log_ratio"], person["highest"] = log_ratio[i], highest[i]
            person["n_informative"] = person["n_informative"] + ratios[i].any(axis=-1)
        crossed = np.argwhere((before < self._threshold) & (highest >= self._threshold))
        return tuple((names[i], self.attributes[j]) for i, j in crossed.tolist())

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
        names = sorted(self._people)
        found = {
            key: np.array([self._people[name][key] for name in names]).reshape(len(names), *nothing.shape)
            for key, nothing in self._nothing().items()
        }
        log_e, highest = log_e_values(found["log_ratio"]), found["highest"]
        toward = np.where(mean_tilt(found["log_ratio"], self.grid) >= 0, "more", "less").astype(object)
        toward[found["n_informative"] == 0] = ""
        columns = {
            "n_informative": found["n_informative"].astype(np.int64),
            "e_value": np.exp(np.minimum(log_e, _LARGEST_LOG)),
            "highest": np.exp(np.minimum(highest, _LARGEST_LOG)),
            "toward": toward,
            "alarm": highest >= self._threshold,
            "flag": e_bh(log_e, self.alpha),
        }
        rows = pd.MultiIndex.from_product([names, self.attributes], names=["annotator", "attribute"])
        return pd.DataFrame({key: cells.ravel() for key, cells in columns.items()}, rows).reset_index()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state as JSON that only this user can read; the file appears whole or not at all.

        It holds numbers per annotator and twelve bytes per comparison, no votes, and a checksum of itself.
        """
        state = {
            "schema": STATE_SCHEMA,
            "attributes": self.attributes,
            "alpha": self.alpha,
            "grid": self.grid,
            "units": self.units,
            "definitions": self.definitions,
            "n_repeated": self.n_repeated,
            "annotators": {
                name: {key: numbers.tolist() for key, numbers in person.items()}
                for name, person in self._people.items()
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
        monitor = cls(*(state[name] for name in ("attributes", "alpha", "grid", "units", "definitions")))
        monitor.n_repeated = int(state["n_repeated"])
        monitor._people = {
            name: {key: np.array(numbers) for key, numbers in person.items()}
            for name, person in state["annotators"].items()
        }
        packed, size = base64.b64decode(state["comparisons"]), _ID_BYTES + _VOTES_BYTES
        entries = (packed[i : i + size] for i in range(0, len(packed), size))
        monitor._seen = {entry[:_ID_BYTES]: entry[_ID_BYTES:] for entry in entries}
        return monitor

    def _nothing(self) -> dict[str, NDArray]:
        """What is known of an annotator before their first vote."""
        q = len(self.attributes)
        return {
            "log_ratio": np.zeros((q, len(self.grid))),
            "highest": np.zeros(q),
            "n_informative": np.zeros(q, dtype=np.int64),
        }

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
    except ValueError:
        why = "it does not hold JSON"
    else:
        found = state.get("schema") if isinstance(state, dict) else None
        if found != STATE_SCHEMA:
            why = f"its schema is {found!r}, not {STATE_SCHEMA!r}"
        elif content != _sealed(content[: content.rfind(b', "sha256": "')] + b"}"):
            why = "its checksum does not match, so that it is damaged or was edited"
        else:
            return state
    remedy = "Name another file, or delete it to begin anew"
    raise ConfigError(f"{path} is no state of badpo watch: {why}. {remedy}")
