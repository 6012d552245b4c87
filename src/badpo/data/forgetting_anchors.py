"""Policies that were anchored: they come from a run, so from everybody's votes in it, and name nobody themselves."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from badpo.data.forgetting_traces import Trace
from badpo.data.problems import ConfigError

RESULT, BEGUN = "anchor.json", "begun.json"
_REMEDY = "train the run again on the table without them, then anchor it again: badpo anchor; or remove it"


def anchored_policies(folder: Path, runs: Collection[Path]) -> list[Trace]:
    """The policies that were anchored from some runs, or from a policy that was.

    Parameters
    ----------
    folder : Path
        A run folder, or a folder of such; an anchored policy that stands beside a run folder is found too, and so are
        the rounds of an anchor that was interrupted.
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
    beside = folder.parent / f"{folder.name}-anchored"
    begun = beside.with_name(f".{beside.name}.anchoring") / BEGUN
    told = [beside / RESULT, begun, *folder.rglob(RESULT), *folder.rglob(f".*.anchoring/{BEGUN}")]
    records = {path.resolve(): path for path in told if path.is_file()}
    anchors = [Anchored(path) for path in records.values()]
    learned = {path.resolve() for path in runs}
    found: list[Trace] = []
    while new := [anchor for anchor in anchors if anchor.comes_from(learned)]:
        anchors = [anchor for anchor in anchors if anchor not in new]
        learned |= {anchor.folder.resolve() for anchor in new}
        what = "a policy that was anchored from one that was trained on their votes"
        found += [Trace(policy, what, _REMEDY) for anchor in new for policy in anchor.policies]
    return sorted(found, key=lambda trace: trace.path)


@dataclass(frozen=True)
class Anchored:
    """An anchor, finished or not, by the file that tells its source.

    Attributes
    ----------
    record : Path
        ``anchor.json`` of a result, ``begun.json`` beside the rounds of one that was interrupted.
    """

    record: Path

    @property
    def folder(self) -> Path:
        """Where its policies are."""
        return self.record.parent

    @property
    def policies(self) -> list[Path]:
        """Its policy, or those of its rounds; none of an anchor at sampling time."""
        return [path for path in (self.folder / "model", *self.folder.glob("*/model")) if path.is_dir()]

    def comes_from(self, learned: Collection[Path]) -> bool:
        """Whether its source is one of some run folders or anchors."""
        try:
            name = Path(str(json.loads(self.record.read_text(encoding="utf-8"))["source"])).name
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{self.record} does not tell what was anchored; restore it or remove it"
            ) from error
        beside = self.folder.parent / name
        if beside.is_dir():
            return beside.resolve() in learned
        return any(run.name == name for run in learned)
