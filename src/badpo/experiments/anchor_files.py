"""What an anchor leaves on the disk: a result that is there whole or not at all, and rounds to go on from.

Everything is made beside the result, in a folder of a hidden name. The result takes its own name when it is whole, by
renaming, and is sealed; what is beside it is then removed. The same command finds the rounds of one that was killed.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from badpo.anchoring.calibration import KeptLines
from badpo.data.files import RUN_SEAL, SealError, flush_folder, read_seal, seal_damage, write_seal
from badpo.data.problems import ConfigError
from badpo.training.run_folder import flush_tree, write_json

RESULT = "anchor.json"
ROUND_SEAL, BEGUN = "round.json", "begun.json"
# What a result consists of; an earlier version left its rounds there.
OWN = (RESULT, RUN_SEAL, "model")


def require_own_folder(out: Path, source: str) -> None:
    """Refuse a folder for the result that holds something else, which would be gone."""
    remedy = "give the result a folder of its own, such as " + str(
        out.parent / f"{Path(source).name}-anchored"
    )
    here, theirs = out.resolve(), Path(source).resolve()
    if here == theirs or (theirs.exists() and (here.is_relative_to(theirs) or theirs.is_relative_to(here))):
        what = "is what is anchored" if here == theirs else f"and what is anchored, {source}, share a folder"
        raise ConfigError(f"--out {out} {what}, and its model would be replaced; {remedy}")
    if not out.exists():
        return
    if not out.is_dir():
        raise ConfigError(f"--out {out} is a file; {remedy}")
    names = sorted(path.name for path in out.iterdir())
    if "config.yaml" in names or (RUN_SEAL in names and RESULT not in names):
        raise ConfigError(f"--out {out} holds a run, and its model would be replaced; {remedy}")
    others = [name for name in names if name not in OWN and not name.startswith("round-")]
    if others:
        raise ConfigError(f"--out {out} holds {others[0]}, which the result would replace; {remedy}")


class AnchorFolder:
    """The folder of one anchor."""

    def __init__(self, out: Path, key: str):
        self.out, self._key = out, key
        self._work = out.with_name(f".{out.name}.anchoring")
        self._before = out.with_name(f".{out.name}.before")

    @property
    def cache(self) -> Path:
        """Where log-probabilities are kept, beside the result: other anchors of the source share them."""
        return self.out.parent / "anchor_cache"

    def finished(self) -> dict | None:
        """The result, where it is there and whole; what a killed command left of the swap is put right."""
        if self._before.exists() and not self.out.exists():
            self._before.rename(self.out)
        seal = self.out / RUN_SEAL
        if not seal.exists() or seal_damage(seal) is not None or read_seal(seal).get("anchor") != self._key:
            return None
        result = json.loads((self.out / RESULT).read_text(encoding="utf-8"))
        self._remove_work()
        return result

    def begin(self, source: str, lines: KeptLines) -> KeptLines:
        """The lines that the anchor of a source starts from: these, or those that it was begun with."""
        begun = _read(self._work / BEGUN)
        if begun is None or begun.get("anchor") != self._key:
            shutil.rmtree(self._work, ignore_errors=True)
            self._work.mkdir(parents=True)
            write_seal(self._work / BEGUN, {"anchor": self._key, "source": source, "lines": lines.points}, [])
            return lines
        return KeptLines({key: [tuple(point) for point in points] for key, points in begun["lines"].items()})

    def round(self, number: int) -> Path:
        """The run folder of a round."""
        return self._work / f"round-{number + 1}"

    def kept_round(self, number: int, shift: list[float]) -> dict | None:
        """What was measured of a finished round that asked for this shift; anything else in its place is removed."""
        folder = self.round(number)
        found = _read(folder / ROUND_SEAL)
        if found is not None and found["shift"] == shift:
            return found
        shutil.rmtree(folder, ignore_errors=True)
        return None

    def keep_round(self, number: int, measured: Mapping) -> None:
        """Seal a round with what was measured of it."""
        folder = self.round(number)
        write_seal(folder / ROUND_SEAL, measured, _files(folder, "model"))

    def finish(self, result: dict, model: Path | None) -> None:
        """Put the result, and a policy with it, in the place of what stands there, and remove the rounds."""
        new = self._work / "result"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        if model is not None:
            # the round keeps its own until the result has its name
            shutil.copytree(model, new / "model", copy_function=_link_or_copy)
        write_json(new / RESULT, result)
        write_seal(new / RUN_SEAL, {"anchor": self._key}, [RESULT, *_files(new, "model")])
        flush_tree(new)
        shutil.rmtree(self._before, ignore_errors=True)
        if self.out.exists():
            self.out.rename(self._before)
        new.rename(self.out)
        flush_folder(self.out.parent)
        self._remove_work()

    def _remove_work(self) -> None:
        shutil.rmtree(self._before, ignore_errors=True)
        shutil.rmtree(self._work, ignore_errors=True)


def _read(seal: Path) -> dict | None:
    """What a seal says; None where it is not there, or not everything is as it was sealed."""
    try:
        return read_seal(seal) if seal_damage(seal) is None else None
    except (FileNotFoundError, SealError):
        return None


def _files(folder: Path, part: str) -> list[str]:
    return [str(path.relative_to(folder)) for path in (folder / part).rglob("*") if path.is_file()]


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
