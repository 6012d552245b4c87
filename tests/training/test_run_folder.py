"""The files of a run: whole or not there, damaged ones named, the log cut back to a whole line."""

from __future__ import annotations

import errno
import io
import json
import os
import socket
from pathlib import Path

import pytest

from badpo.data.files import write_atomically
from badpo.training.checkpoints import (
    MARKER,
    changed_facts,
    checkpoints,
    damage,
    environment,
    keep_newest,
    mark_complete,
    newest_complete,
    whole_folder,
    write_json,
)


def checkpoint(folder: Path, step: int, whole: bool = True) -> Path:
    path = folder / f"checkpoint-{step}"
    (path / "inner").mkdir(parents=True)
    (path / "weights.bin").write_bytes(b"weights of %d" % step)
    (path / "inner" / "state.json").write_text("{}")
    if whole:
        mark_complete(path, {"beta": 0.1})
    return path


def steps(folder: Path) -> list[int]:
    return [int(path.name.split("-")[-1]) for path in checkpoints(folder)]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def no_space(*args):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class FullDiskFile(io.FileIO):
    """A file that takes half of what is written to it."""

    def write(self, content):
        super().write(content[: len(content) // 2])
        no_space()


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, call):
    path = tmp_path / "facts.json"
    write_atomically(path, b"old")
    with monkeypatch.context() as disk:
        if call == "write":
            disk.setattr(Path, "open", lambda path, mode, **_: FullDiskFile(path, mode))
        else:
            disk.setattr(os, call, no_space)
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            write_atomically(path, b"new")
    assert names(tmp_path) == ["facts.json"]
    assert path.read_bytes() == b"old"
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"


def test_json_is_readable_text(tmp_path):
    write_json(tmp_path / "a.json", {"name": "Åsa", "n": 1})
    text = (tmp_path / "a.json").read_text(encoding="utf-8")
    assert "Åsa" in text and text.endswith("}\n")
    assert json.loads(text) == {"name": "Åsa", "n": 1}


def test_what_is_damaged_is_named(tmp_path):
    path = checkpoint(tmp_path, 2, whole=False)
    assert damage(path) == f"checkpoint-2 was not finished (no {MARKER})"
    mark_complete(path, {})
    assert damage(path) is None

    (path / "inner" / "state.json").write_text("[]")
    assert damage(path) == "checkpoint-2/inner/state.json is damaged (its checksum does not match)"
    (path / "inner" / "state.json").unlink()
    assert damage(path) == "checkpoint-2/inner/state.json is missing"
    whole = (path / MARKER).read_text()
    for content in ('{"files": {', "{}", "[]", "", whole.replace("inner", "innar"), whole[:-9]):
        (path / MARKER).write_text(content)
        assert damage(path) == f"checkpoint-2/{MARKER} is damaged"


def test_the_marker_holds_the_facts(tmp_path):
    path = checkpoint(tmp_path, 1)
    marker = json.loads((path / MARKER).read_text())
    assert marker["facts"] == {"beta": 0.1}
    assert set(marker["files"]) == {"weights.bin", "inner/state.json"}


def test_the_newest_whole_checkpoint_and_why_newer_ones_were_passed_over(tmp_path):
    for step in (2, 4, 10):
        checkpoint(tmp_path, step)
    checkpoint(tmp_path, 12, whole=False)
    (tmp_path / "checkpoint-10" / "weights.bin").write_bytes(b"other")
    (tmp_path / "checkpoint-best").mkdir()

    newest, passed_over = newest_complete(tmp_path)
    assert newest == tmp_path / "checkpoint-4"
    assert passed_over == [
        f"checkpoint-12 was not finished (no {MARKER})",
        "checkpoint-10/weights.bin is damaged (its checksum does not match)",
    ]
    assert newest_complete(tmp_path / "nowhere") == (None, [])


def test_the_newest_whole_checkpoints_are_kept(tmp_path):
    for step in (2, 4, 8, 10):
        checkpoint(tmp_path, step)
    for step in (6, 12):
        checkpoint(tmp_path, step, whole=False)
    keep_newest(tmp_path, 2)
    assert steps(tmp_path) == [12, 10, 8]  # 12 is being written


def test_nothing_is_deleted_before_there_are_enough(tmp_path):
    checkpoint(tmp_path, 2, whole=False)
    checkpoint(tmp_path, 4)
    keep_newest(tmp_path, 2)
    assert steps(tmp_path) == [4, 2]
    checkpoint(tmp_path, 6)
    keep_newest(tmp_path, 2)
    assert steps(tmp_path) == [6, 4]


def test_changed_facts_name_what_appeared_and_went():
    assert changed_facts({"beta": 0.1, "old": 1}, {"beta": 0.1, "new": 2}) == [
        "new was None, is now 2",
        "old was 1, is now None",
    ]


def test_the_environment_names_versions_and_no_machine():
    pytest.importorskip("torch")
    found = environment("badpo train --config run.yaml")
    assert found["command"] == "badpo train --config run.yaml"
    assert {"torch", "transformers", "numpy"} <= set(found["packages"])
    assert socket.gethostname() not in json.dumps(found)
    assert str(Path.home()) not in json.dumps(found)


def test_a_checkpoint_that_is_half_deleted_never_looks_whole(tmp_path, monkeypatch):
    for step in (2, 4):
        checkpoint(tmp_path, step)

    def stop(path, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", stop)
        with pytest.raises(KeyboardInterrupt):
            keep_newest(tmp_path, 1)
    assert damage(tmp_path / "checkpoint-2") == f"checkpoint-2 was not finished (no {MARKER})"
    keep_newest(tmp_path, 1)
    assert steps(tmp_path) == [4]


@pytest.mark.parametrize("torn", ["{", None], ids=["seal", "file"])
def test_no_checkpoint_goes_before_the_newest_one_can_be_read(tmp_path, torn):
    for step in (2, 4):
        checkpoint(tmp_path, step)
    if torn is None:
        (tmp_path / "checkpoint-4" / "weights.bin").unlink()
    else:
        (tmp_path / "checkpoint-4" / MARKER).write_text(torn)
    keep_newest(tmp_path, 1)
    assert steps(tmp_path) == [4, 2]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(28, "No space left on device", "model.safetensors"), errno.ENOSPC),
        (OSError(errno.EXDEV, os.strerror(errno.EXDEV), "model"), errno.EXDEV),
        (Exception("No space left on device (os error 28)"), errno.ENOSPC),
        (RuntimeError("PytorchStreamWriter failed writing file data.pkl: file write failed"), errno.EIO),
        (RuntimeError("basic_ios::clear: iostream error"), errno.EIO),
    ],
    ids=["safetensors", "rename", "tokenizers", "torch", "torch's stream"],
)
def test_a_failed_write_is_told_as_what_it_is_and_leaves_no_folder(tmp_path, error, code):
    with pytest.raises(OSError) as raised, whole_folder(tmp_path / "model") as unfinished:
        unfinished.mkdir()
        raise error
    assert raised.value.errno == code and raised.value.filename
    assert not list(tmp_path.iterdir())


def test_other_errors_pass_as_they_are(tmp_path):
    with pytest.raises(ZeroDivisionError), whole_folder(tmp_path / "model"):
        raise ZeroDivisionError
