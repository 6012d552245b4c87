"""A disk that is full during each write: a small file system with less and less room, where one may be mounted."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.faults import small_project
from bench.faults.children import run_child
from bench.faults.table import Row

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_REMOUNT, MS_REC, MS_PRIVATE = 32, 0x4000, 1 << 18
PAGE = 4096
MOST = 40
OUTCOME = "one message, earlier checkpoints whole; with room again bit-equal"


@dataclass(frozen=True)
class Stage:
    """A command that writes, and what has been done to the project before."""

    name: str
    command: Callable[[], None]
    before: tuple[Callable[[], None], ...] = ()


STAGES = (
    Stage("a training run", small_project.train),
    Stage("a demo", small_project.suite),
    Stage("readouts", small_project.evaluate, (small_project.train,)),
    Stage("badpo import", small_project.import_votes),
    Stage("badpo audit", small_project.audit),
)


def rows(budget_seconds: float) -> list[Row]:
    """Fill the disk at different moments of every stage; nothing where this system lets nobody mount."""
    small_project.prepare()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        told, disk = place / "rows.json", place / "disk"
        disk.mkdir()
        folders = [place / stage.name.replace(" ", "-") for stage in STAGES]
        templates = [
            small_project.make_template(folder, stage.before)
            for folder, stage in zip(folders, STAGES, strict=True)
        ]
        child = os.fork()
        if child == 0:
            status = 1
            try:
                fill_in_turn(templates, disk, budget_seconds, told)
                status = 0
            finally:
                os._exit(status)
        if os.waitpid(child, 0)[1]:
            raise RuntimeError("the process that fills the disk did not come to its end")
        return [Row(**row) for row in json.loads(told.read_text())]


def fill_in_turn(templates: list[Path], disk: Path, seconds: float, told: Path) -> None:
    """Every stage on a small disk of its own, in this process's own view of the file systems."""
    try:
        be_alone()
        mount(disk, 64 * PAGE)
        unmount(disk)
    except OSError as error:
        why = f"not run: no file system may be mounted here ({os.strerror(error.errno or 0)})"
        found = [Row("a full disk", stage.name, 0, why, 0) for stage in STAGES]
    else:
        found = [
            fill(stage, template, disk, seconds / len(STAGES))
            for stage, template in zip(STAGES, templates, strict=True)
        ]
    told.write_text(json.dumps([asdict(row) for row in found]))


def fill(stage: Stage, template: Path, disk: Path, seconds: float) -> Row:
    """One stage with less room than it needs, at many sizes."""
    end = time.monotonic() + seconds
    mount(disk, 1 << 30)
    shutil.copytree(template, disk, dirs_exist_ok=True)
    before = n_pages(disk)
    small_project.must(stage.command, disk)
    needed = n_pages(disk) - before
    expected = small_project.contents(disk)
    unmount(disk)
    injected = lost = 0
    for room in sizes(needed):
        if injected >= 3 and time.monotonic() > end:
            break
        mount(disk, (before + room) * PAGE)
        shutil.copytree(template, disk, dirs_exist_ok=True)
        ended = run_child(stage.command, disk, prepare=small_project.make_smaller)
        if ended.status:
            injected += 1
            problem = said_badly(ended.output) or left_badly(disk)
            mount(disk, 1 << 30, MS_REMOUNT)
            again = run_child(stage.command, disk, prepare=small_project.make_smaller)
            problem = problem or (f"and then: {again.output[-800:]}" if again.status else "")
            problem = problem or small_project.differences(small_project.contents(disk), expected)
            lost += bool(problem)
            if problem:
                print(f"{stage.name}, {room} of {needed} pages: {problem}", file=sys.stderr, flush=True)
        unmount(disk)
    return Row("a full disk", stage.name, injected, OUTCOME, lost)


def sizes(needed: int) -> list[int]:
    """Numbers of pages below what is needed: both ends and the middle first, then more and more between."""
    steps = [1.0, 0.0, 0.5, 0.25, 0.75, *(i / 16 for i in range(1, 16)), *(i / 31 for i in range(1, 31))]
    return list(dict.fromkeys(int((needed - 1) * step) for step in steps))[:MOST]


def said_badly(output: str) -> str:
    """What is wrong with the message; empty where it is one that names the disk."""
    if "Traceback" in output:
        return f"a traceback: {output[-800:]}"
    if not re.search("No space left on device|quota exceeded", output):
        return f"the disk is not named: {output[-800:]}"
    return ""


def left_badly(disk: Path) -> str:
    """Checkpoints that are neither whole nor gone."""
    from badpo.training.checkpoints import damage

    for checkpoint in disk.rglob("checkpoint-*"):
        if checkpoint.is_dir() and (reason := damage(checkpoint)):
            return reason
    return ""


def n_pages(disk: Path) -> int:
    """Pages that are taken."""
    found = os.statvfs(disk)
    return (found.f_blocks - found.f_bfree) * found.f_frsize // PAGE


def be_alone() -> None:
    """Mounts of this process are its own from here on, with a user's rights or as root."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    _succeed(libc.unshare(CLONE_NEWNS if user == 0 else CLONE_NEWNS | CLONE_NEWUSER))
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    _succeed(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))


def mount(folder: Path, size: int, flags: int = 0) -> None:
    """A file system of so many bytes in memory."""
    libc = ctypes.CDLL(None, use_errno=True)
    _succeed(libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", flags, f"size={size}".encode()))


def unmount(folder: Path) -> None:
    """Take it away with all that is in it."""
    libc = ctypes.CDLL(None, use_errno=True)
    _succeed(libc.umount2(os.fsencode(folder), 2))


def _succeed(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
