"""A person among the types that EM-DPO fits: the probabilities of a round, and the weights of a type's run.

Neither names anyone. Whose the numbers are is known from the description of a bias term beside them, which has the same
annotators in the same order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from badpo.data.bias_files import DESCRIPTION
from badpo.data.files import RUN_SEAL, is_unfinished, read_seal, rewrite_seal
from badpo.data.forgetting_people import People
from badpo.data.forgetting_traces import Trace, remover, write_json
from badpo.data.problems import ConfigError, counted

_ROUND = re.compile(r"round\d+\.json")
_WEIGHTS = "annotator_weights"
_AGAIN = "fit the types and train their policies again, on the table without them"
_UNKNOWN = (
    "nothing beside it says whose; remove it if they voted in this run, and fit the types again without them"
)


def in_types(folder: Path, people: People) -> list[Trace]:
    """Their type probabilities, and the runs of types that were weighted by them.

    Parameters
    ----------
    folder : Path
        A run folder, or a folder of such.
    people : People

    Raises
    ------
    ConfigError
        A round, or the description of a bias term, cannot be read.
    """
    found = []
    for path in sorted(folder.rglob("*.json")):
        if is_unfinished(path):
            continue
        if _ROUND.fullmatch(path.name):
            found += _in_round(path, people)
        elif path.name in ("begun.json", RUN_SEAL):
            found += _in_weights(path, people)
    return found


def annotators_of(description: Path) -> list[str]:
    """The annotators of a bias term, from its description; a `ConfigError` where it is none."""
    try:
        return list(json.loads(description.read_text(encoding="utf-8"))["annotators"])
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{description} is not the description of a bias term; restore it or remove it"
        ) from error


def _in_round(path: Path, people: People) -> list[Trace]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        rows = list(content["probabilities"])
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is not a round of EM-DPO; restore it or remove it") from error
    names = content.get("annotators") or _names_beside(path.parent, len(rows))
    if names is None:
        return [Trace(path, f"type probabilities of {counted(len(rows), 'annotator')}", _UNKNOWN)]
    theirs = people.pseudonyms.intersection(names)
    if not theirs:
        return []
    what = f"type probabilities of {counted(len(theirs), 'annotator')}"
    return [Trace(path, what, _AGAIN, _round_eraser(path, content, names, theirs))]


def _round_eraser(
    path: Path, content: dict[str, Any], names: list[str], theirs: frozenset[str]
) -> Callable[[], None]:
    kept = [i for i, name in enumerate(names) if name not in theirs]
    if not kept:
        return remover(path)
    # With the names of those who are left, the next call needs no description, which may be of fewer people by then.
    # Without the key, a fit of all people is not continued from the rows of some.
    left = {
        "key": None,
        "annotators": [names[i] for i in kept],
        "probabilities": [content["probabilities"][i] for i in kept],
    }
    return lambda: write_json(path, {**content, **left})


def _in_weights(path: Path, people: People) -> list[Trace]:
    try:
        weights = json.loads(path.read_text(encoding="utf-8"))["facts"][_WEIGHTS]
    except (ValueError, KeyError, TypeError):
        return []
    what = "the weights of the votes, by annotator, that a type's policy was trained with"
    names = _names_beside(path.parent, len(weights)) or _names_beside(path.parent.parent, len(weights))
    if names is None:
        return [Trace(path, what, _UNKNOWN)]
    if people.pseudonyms.isdisjoint(names):
        return []
    return [Trace(path, what, _AGAIN, lambda: _drop_weights(path))]


def _drop_weights(path: Path) -> None:
    """Take the weights of everybody out of a run's facts: they are those of the last round, which names its rows."""
    sealed = path.name == RUN_SEAL
    content = read_seal(path) if sealed else json.loads(path.read_text(encoding="utf-8"))
    facts = {name: value for name, value in content["facts"].items() if name != _WEIGHTS}
    (rewrite_seal if sealed else write_json)(path, {**content, "facts": facts})


def _names_beside(folder: Path, n_annotators: int) -> list[str] | None:
    """The annotators of the bias terms in a folder, of those with as many."""
    for description in sorted(folder.rglob(DESCRIPTION)):
        names = annotators_of(description)
        if len(names) == n_annotators:
            return names
    return None
