"""Policies that were anchored: they come from a run, so from everybody's votes in it, and name nobody themselves."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from badpo.data.forgetting_traces import Trace
from badpo.data.problems import ConfigError

RESULT = "anchor.json"
_REMEDY = "train the run again on the table without them, then anchor it again: badpo anchor; or remove it"


def anchored_policies(folder: Path, runs: Collection[Path]) -> list[Trace]:
    """The policies that were anchored from some runs, or from a policy that was.

    Parameters
    ----------
    folder : Path
        A run folder, or a folder of such; an anchored policy that stands beside a run folder is found too.
    runs : collection of paths
        The run folders whose policies learned from the people's votes. An anchor tells its source by name: the folder
        of that name beside it counts, and where there is none, any of these runs with that name.

    Raises
    ------
    ConfigError
        The result of an anchor cannot be read.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> (folder / "dpo-s42-anchored" / "model").mkdir(parents=True)
    >>> _ = (folder / "dpo-s42-anchored" / "anchor.json").write_text('{"source": "dpo-s42"}')
    >>> [trace.path.parent.name for trace in anchored_policies(folder, [folder / "dpo-s42"])]
    ['dpo-s42-anchored']
    """
    beside = folder.parent / f"{folder.name}-anchored" / RESULT
    results = {path.resolve(): path for path in [beside, *folder.rglob(RESULT)] if path.is_file()}
    anchors = [path.parent for path in results.values() if (path.parent / "model").is_dir()]
    learned = {path.resolve() for path in runs}
    found: list[Trace] = []
    while new := [anchor for anchor in anchors if _comes_from(anchor, learned)]:
        anchors = [anchor for anchor in anchors if anchor not in new]
        learned |= {anchor.resolve() for anchor in new}
        what = "a policy that was anchored from one that was trained on their votes"
        found += [Trace(anchor / "model", what, _REMEDY) for anchor in new]
    return sorted(found, key=lambda trace: trace.path)


def _comes_from(anchor: Path, learned: Collection[Path]) -> bool:
    try:
        name = Path(str(json.loads((anchor / RESULT).read_text(encoding="utf-8"))["source"])).name
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{anchor / RESULT} is not the result of an anchor; restore it or remove it"
        ) from error
    beside = anchor.parent / name
    if beside.is_dir():
        return beside.resolve() in learned
    return any(run.name == name for run in learned)
