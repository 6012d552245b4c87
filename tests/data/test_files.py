"""Files that appear whole, and checksums that tell when they are not what they were."""

import errno
import os
import random
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from badpo.data.files import (
    RUN_SCHEMA,
    RUN_SEAL,
    BusyError,
    SealError,
    appearing,
    checksum_file,
    file_checksum,
    holder,
    is_changed,
    locked,
    read_seal,
    resealed,
    run_damage,
    seal_damage,
    write_json,
    write_seal,
)
from badpo.data.problems import ConfigError, DataError
from badpo.data.tables import read_table, write_table


@pytest.mark.parametrize("held", ["votes.parquet", ".", None])
def test_who_holds_the_lock_removes_what_a_killed_writer_left(tmp_path, held):
    path, token = tmp_path / "folder" / "votes.parquet", ".writing-0123456789abcdef-"
    path.parent.mkdir()
    left = [path.with_name(token * n + path.name) for n in (1, 2)]
    other = path.with_name(token + "my-votes.parquet")
    for file in (*left, other):
        file.write_text("of people")
    with nullcontext() if held is None else locked(path.parent / held):
        write_json(path, 1)
    assert [file.exists() for file in (*left, other)] == [held is None, held is None, True]


def test_a_killed_writer_leaves_the_old_file_and_its_half_is_removed_later(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    killed = appearing(path)  # and never left
    half = killed.__enter__()
    half.write_text("hal")
    os.utime(half, (time.time() - 900,) * 2)
    assert path.read_text() == "old"
    for content in ("new", "newer"):  # the first time somebody might still be at work
        assert half.exists()
        with appearing(path) as unfinished:
            unfinished.write_text(content)
        os.utime(half, (0, 0)) if content == "new" else None
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_writers_share_nothing_but_the_name_and_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    # process and thread are the same here, as they are for process 1 of two containers
    path = tmp_path / "a.txt"
    with appearing(path) as first:
        with appearing(path) as second:
            second.write_text("second")
        first.write_text("first")
        assert path.read_text() == "second"
    assert path.read_text() == "first" and [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    no_space = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(os, "fsync", Mock(side_effect=no_space))
    full = pytest.raises(OSError, match=r"No space left on device: '.*a\.txt'")
    with full, appearing(path) as unfinished:
        unfinished.write_text("new")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"] and path.read_text() == "first"


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
@pytest.mark.parametrize(("private", "mode"), [(True, 0o600), (False, 0o640)])
def test_a_private_file_is_its_owners_alone_and_another_one_keeps_the_mode_of_the_replaced_one(
    tmp_path, private, mode
):
    path = tmp_path / "a.txt"
    before = os.umask(0o027)
    try:
        for kept in (mode, 0o600 if private else 0o604):
            with appearing(path, private) as unfinished:
                unfinished.write_text("content")
            assert stat.S_IMODE(path.stat().st_mode) == kept
            path.chmod(0o604)
    finally:
        os.umask(before)


def test_who_holds_a_run_may_ask_again_and_who_is_killed_holds_none(tmp_path):
    run, link = tmp_path / "dpo-s42", tmp_path / "link"
    link.symlink_to(run)
    with locked(run):
        with locked(link):
            pass
        assert holder(run) == f"process {os.getpid()} on {socket.gethostname()}"
    assert holder(run) is None
    with held(run) as pid, pytest.raises(BusyError, match=f"process {pid}"), locked(run):
        pass
    with locked(run):
        pass


HOLDS = """
import sys, time
from badpo.data.files import locked
with locked(sys.argv[1]):
    print(flush=True)
    time.sleep(60)
"""


@contextmanager
def held(path: Path) -> Iterator[int]:
    """A process that holds a file or folder, and is killed in the end."""
    with subprocess.Popen([sys.executable, "-c", HOLDS, str(path)], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline()
            yield process.pid
        finally:
            process.kill()


def test_a_lock_that_is_a_link_is_not_followed(tmp_path):
    target = tmp_path / "precious"
    target.write_text("kept", encoding="utf-8")
    (tmp_path / ".dpo-s42.lock").symlink_to(target)
    for place in (tmp_path / "dpo-s42", "/proc/badpo"):
        with (
            pytest.raises(ConfigError, match="cannot be created .* choose a folder"),
            locked(place, wait=True),
        ):
            pass
    assert target.read_text(encoding="utf-8") == "kept"


def test_where_files_cannot_be_locked_a_command_says_so_and_does_not_wait(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def missing(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", missing)
    for wait in (False, True):
        (tmp_path / f".{wait}.lock").touch()  # as a killed process leaves it
        with (
            pytest.raises(ConfigError, match="cannot be locked") as told,
            locked(tmp_path / str(wait), wait),
        ):
            pass
        assert not isinstance(told.value, BusyError)


def test_who_waits_for_a_lock_says_for_whom_and_not_for_ever(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("badpo.data.files._PATIENCE_SECONDS", 0.01)
    with (
        held(tmp_path / "votes") as pid,
        pytest.raises(BusyError),
        locked(tmp_path / "votes", wait=True),
    ):
        pass
    assert f"is in use by process {pid}" in caplog.text


def test_no_file_is_written_through_a_link(tmp_path):
    target, link = tmp_path / "precious.parquet", tmp_path / "votes.parquet"
    target.write_text("kept", encoding="utf-8")
    link.symlink_to(target)
    for write in (lambda: write_json(link, 1), lambda: write_table(pa.table({"n": [1]}), link)):
        with pytest.raises(ConfigError, match=r"symbolic link, .* precious\.parquet|precious\.parquet"):
            write()
        assert target.read_text(encoding="utf-8") == "kept" and link.is_symlink()


def test_a_tilde_is_the_users_folder_and_a_folder_in_the_way_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME" if os.name == "posix" else "USERPROFILE", str(tmp_path))
    write_json(Path("~/found.json"), 1)
    assert (tmp_path / "found.json").read_text() == "1\n"
    with pytest.raises(OSError) as error:
        write_json(tmp_path, 1)
    assert error.value.filename == str(tmp_path) and str(error.value).count(str(tmp_path)) == 1


@pytest.fixture
def folder(tmp_path):
    """A run with its seal."""
    (tmp_path / "model").mkdir()
    for name in ("model/weights", "log.jsonl", "bias.json"):
        (tmp_path / name).write_text(f"content of {name}")
    write_seal(tmp_path / RUN_SEAL, {"key": "abc"}, ["model/weights", "log.jsonl", "bias.json"])
    return tmp_path


def test_a_sealed_run_is_undamaged_and_any_change_is_named(folder):
    assert run_damage(folder) is None
    (folder / "log.jsonl").write_text("other")
    assert run_damage(folder) == f"{folder.name}/log.jsonl is damaged (its checksum does not match)"
    assert run_damage(folder, but=["log.jsonl"]) is None
    assert run_damage(folder, names=["bias.json"]) is None
    (folder / "bias.json").unlink()
    assert run_damage(folder) == f"{folder.name}/bias.json is missing"


def flipped(content: bytes, place: int, draw: random.Random) -> bytes:
    changed = bytearray(content)
    changed[place] ^= 1 << draw.randrange(8)
    return bytes(changed)


def test_every_bit_of_a_seal_counts(folder):
    path, draw = folder / RUN_SEAL, random.Random(0)
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(flipped(content, place, draw))
        try:  # white space, or the other case of a digit that JSON reads alike
            assert read_seal(path)["key"] == "abc"
        except SealError as error:
            assert str(error).endswith("run.json is damaged") and run_damage(folder) is not None
    for length in range(0, len(content) - 1, 9):
        path.write_bytes(content[:length])
        assert seal_damage(path) is not None


def test_files_that_are_written_anew_are_sealed_again(folder):
    with resealed(folder / "model", ["weights"]):  # a run that is not finished has no seal
        assert run_damage(folder / "model") is None
    assert not (folder / "model" / RUN_SEAL).exists()
    with resealed(folder, ["log.jsonl", "readouts.json"]):
        (folder / "log.jsonl").write_text("new")
        assert run_damage(folder) is None
    assert run_damage(folder) is None and read_seal(folder / RUN_SEAL)["key"] == "abc"
    (folder / "log.jsonl").write_text("old")
    assert "log.jsonl is damaged" in str(run_damage(folder))


@pytest.mark.parametrize("schema", [None, "badpo.run/0", 2])
def test_a_run_of_another_version_is_named(folder, schema):
    assert read_seal(folder / RUN_SEAL)["schema"] == RUN_SCHEMA and run_damage(folder) is None
    write_seal(folder / RUN_SEAL, {"key": "abc", "schema": schema}, ["log.jsonl"])
    assert "another version of badpo" in run_damage(folder) and str(schema) in run_damage(folder)


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "votes.parquet"
    write_table(pa.table({"prompt": ["a", "b"] * 20, "n": range(40)}), path)
    return path


@pytest.mark.parametrize("name", ["votes.parquet", "votes.parquet.sha256"])
def test_no_bit_of_a_table_or_its_checksum_makes_it_another(table, name):
    path = table.with_name(name)
    content, draw = path.read_bytes(), random.Random(0)
    for place in draw.sample(range(len(content)), min(len(content), 400)):
        path.write_bytes(flipped(content, place, draw))
        try:
            assert read_table(table).frame["n"].tolist() == list(range(40))
            assert path != table and place >= 64
        except DataError as error:
            assert "votes.parquet" in str(error)
    for length in range(0, len(content), 97):
        path.write_bytes(content[:length])
        with pytest.raises(DataError, match="E102"):
            read_table(table)


def test_the_pages_of_a_table_without_its_checksum_have_their_own(table):
    checksum_file(table).unlink()
    column = pq.ParquetFile(table).metadata.row_group(0).column(1)
    changed = bytearray(table.read_bytes())
    changed[column.dictionary_page_offset + column.total_compressed_size - 2] ^= 4
    table.write_bytes(changed)
    with pytest.raises(DataError, match=r"votes\.parquet"):
        read_table(table)


def test_a_table_that_was_changed_on_purpose_is_read_without_its_checksum(table):
    assert checksum_file(table).read_text() == f"{file_checksum(table)}  votes.parquet\n"
    pq.write_table(pq.read_table(table).slice(0, 4), table)
    remedy = r"if the table was changed on purpose, remove .*votes\.parquet\.sha256"
    with pytest.raises(DataError, match=remedy):
        read_table(table)
    checksum_file(table).unlink()
    assert len(read_table(table).frame) == 4


def test_a_table_that_is_replaced_while_it_is_compared_is_no_damaged_one(table, monkeypatch):
    before = checksum_file(table).read_bytes()
    write_table(pa.table({"n": [1]}), table)
    after = checksum_file(table).read_bytes()
    checksum_file(table).write_bytes(before)

    def catch_up(path):
        checksum_file(table).write_bytes(after)
        return file_checksum(path)

    monkeypatch.setattr("badpo.data.files.file_checksum", catch_up)
    assert not is_changed(table)
