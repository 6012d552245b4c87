"""Who is to be forgotten: pseudonyms, and the ids that they stand for."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from badpo.data.privacy import KEY_VARIABLE, is_pseudonym, known_key, pseudonym
from badpo.data.problems import ConfigError, counted


@dataclass(frozen=True)
class People:
    """Who is to be forgotten.

    Attributes
    ----------
    pseudonyms : frozenset of str
    raw_ids : frozenset of str
        Ids as the user gave them, for tables that were never pseudonymised.
    key : bytes or None
        This machine's key; None when there is none.
    """

    pseudonyms: frozenset[str]
    raw_ids: frozenset[str]
    key: bytes | None

    def rows(self, ids: NDArray[np.object_]) -> NDArray[np.bool_]:
        """Where a column of ids, raw or pseudonyms, names one of them."""
        known = {name: self._is_one(name) for name in set(ids.tolist()) if name is not None}
        return np.array([name is not None and known[name] for name in ids], dtype=bool)

    def _is_one(self, name: str) -> bool:
        if name in self.pseudonyms or name in self.raw_ids:
            return True
        return self.key is not None and pseudonym(name, self.key) in self.pseudonyms


def find_people(annotators: Sequence[str], mapping: str | os.PathLike[str] | None = None) -> People:
    """The pseudonyms of people who are named by pseudonym or by the id in the source.

    Parameters
    ----------
    annotators : sequence of str
    mapping : path or None
        A file that `badpo import --write-mapping` wrote; it knows pseudonyms without the key.

    Raises
    ------
    ConfigError
        An id that is no pseudonym where the key is lost and no mapping names it.

    Examples
    --------
    >>> sorted(find_people(["ann_wdfyjw2xn4g5pc"]).pseudonyms)
    ['ann_wdfyjw2xn4g5pc']
    """
    key = known_key()
    whose = read_mapping(mapping) if mapping is not None else {}
    names: set[str] = set()
    unknown = []
    for annotator in annotators:
        listed = [name for name, raw in whose.items() if raw == annotator]
        if is_pseudonym(annotator):
            names.add(annotator)
        elif listed:
            names.update(listed)
        elif key is not None:
            names.add(pseudonym(annotator, key))
        else:
            unknown.append(annotator)
    if unknown:
        raise ConfigError(
            f"the pseudonym key is not there, so the pseudonyms of {counted(len(unknown), 'id')} cannot be computed: "
            f"bring the key back ({KEY_VARIABLE}, or pseudonym.key in the configuration folder), give the mapping "
            "that was written at import, or name the pseudonyms; without any of these, import the source again "
            "without these people"
        )
    raw_ids = {raw for name, raw in whose.items() if name in names} | set(annotators)
    return People(frozenset(names), frozenset(raw_ids), key)


def read_mapping(path: str | os.PathLike[str]) -> dict[str, str]:
    """Ids by pseudonym, from the file of `badpo import --write-mapping`; a `ConfigError` where it is none."""
    try:
        whose = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is no mapping that badpo import wrote ({error})") from error
    if not isinstance(whose, dict):
        raise ConfigError(f"{path} is no mapping that badpo import wrote")
    return whose
