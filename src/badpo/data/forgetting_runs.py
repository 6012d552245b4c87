"""A person's parameters in run folders: theta, checkpoints, and what a policy learned from their votes."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from badpo.data.bias_files import DESCRIPTION, TENSORS, without_annotators
from badpo.data.files import appearing, file_checksum, is_unfinished, left_open, resealed
from badpo.data.forgetting_anchors import anchored_policies
from badpo.data.forgetting_people import People
from badpo.data.forgetting_traces import Trace, mentions, remover, write_json
from badpo.data.forgetting_types import annotators_of, in_types
from badpo.data.problems import counted

OBJECTIVE = "objective.safetensors"
_SEAL = "complete.json"
_NEXT = f"{TENSORS}.next"  # the tensors without them, until the description that goes with them is written


def in_runs(folder: Path, people: People, checkpoints: str) -> list[Trace]:
    """Their parameters in run folders, checkpoints, policies that learned from them, and files that name them.

    Parameters
    ----------
    folder : Path
        A run folder, or a folder of such.
    people : People
    checkpoints : "list" or "remove"

    Raises
    ------
    ConfigError
        The description of a bias term, or the result of an anchor, cannot be read.
    """
    # before the names go: whose a round's rows are is known from the descriptions of the bias terms beside it
    found = in_types(folder, people)
    dealt_with = {trace.path for trace in found}
    learned: list[Path] = []
    for description in sorted(folder.rglob(DESCRIPTION)):
        here = description.parent
        if is_unfinished(here):
            continue
        theirs = people.pseudonyms.intersection(annotators_of(description))
        if _is_half_erased(here) or left_open(here, [DESCRIPTION, TENSORS]):
            what = "theta of people whose removal was interrupted"
            found.append(Trace(here / TENSORS, what, erase=partial(_finish_erasing, here)))
        if theirs and ((here / _SEAL).is_file() or here.parent.name == "checkpoints"):
            found.append(_checkpoint(here, theirs, checkpoints))
            dealt_with.add(here)
        elif theirs:
            found += _run(here, theirs)
            learned.append(here)
            dealt_with |= {description, here / TENSORS}
    return found + anchored_policies(folder, learned) + mentions(folder, people, dealt_with)


def _checkpoint(folder: Path, theirs: frozenset[str], checkpoints: str) -> Trace:
    held = "theta and the weight of the votes" if _has_weights(folder) else "theta"
    what = f"a checkpoint with {held} of {counted(len(theirs), 'annotator')}"
    if checkpoints == "remove":
        return Trace(folder, what, erase=remover(folder))
    return Trace(folder, what, "remove it: --checkpoints remove; the run cannot be resumed after that")


def _has_weights(checkpoint: Path) -> bool:
    """Whether the state of the objective has a number for every annotator."""
    if not (checkpoint / OBJECTIVE).is_file():
        return False
    from safetensors import SafetensorError
    from safetensors.numpy import load

    n_annotators = len(annotators_of(checkpoint / DESCRIPTION))
    try:
        state = load((checkpoint / OBJECTIVE).read_bytes())
    except SafetensorError:
        # half written by a training that was killed: what is whole of it goes with the checkpoint
        return True
    return any(values.shape[:1] == (n_annotators,) for values in state.values())


def _run(folder: Path, theirs: frozenset[str]) -> list[Trace]:
    what = f"theta of {counted(len(theirs), 'annotator')}"
    found = [Trace(folder / TENSORS, what, erase=_bias_eraser(folder, theirs))]
    if (folder / "model").is_dir():
        remedy = "train again on the table without them; a policy's weights cannot be changed back"
        found.append(Trace(folder / "model", "a policy that was trained on their votes", remedy))
    return found


def _bias_eraser(folder: Path, theirs: frozenset[str]) -> Callable[[], None]:
    def erase_from_bias() -> None:
        from safetensors.numpy import load, save

        _finish_erasing(folder)
        description = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
        with resealed(folder, [DESCRIPTION, TENSORS]):
            if theirs.issuperset(description["annotators"]):
                # the names last: killed in between, another call still finds them
                for name in (TENSORS, DESCRIPTION):
                    (folder / name).unlink(missing_ok=True)
                return
            left = without_annotators(description, load((folder / TENSORS).read_bytes()), theirs)
            assert left is not None
            content = save({name: np.ascontiguousarray(values) for name, values in left[1].items()})
            with appearing(folder / _NEXT) as unfinished:
                unfinished.write_bytes(content)
            write_json(folder / DESCRIPTION, {**left[0], "sha256": hashlib.sha256(content).hexdigest()})
            _finish_erasing(folder)

    return erase_from_bias


def _is_half_erased(folder: Path) -> bool:
    """Whether a killed call wrote a description without them and did not come to put the tensors in place."""
    if not (folder / _NEXT).is_file():
        return False
    described = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8")).get("sha256")
    return described == file_checksum(folder / _NEXT)


def _finish_erasing(folder: Path) -> None:
    with resealed(folder, [DESCRIPTION, TENSORS]):
        if _is_half_erased(folder):
            os.replace(folder / _NEXT, folder / TENSORS)
    (folder / _NEXT).unlink(missing_ok=True)
