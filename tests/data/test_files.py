"""Files that appear whole, and checksums that tell when they are not what they were."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import socket
import stat
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from badpo.data.files import (
    RUN_SEAL,
    BusyError,
    SealError,
    appearing,
    holder,
    left_open,
    leftovers,
    locked,
    read_seal,
    remove_leftovers,
    resealed,
    run_damage,
    seal_damage,
    write_seal,
)
from badpo.data.importers.tables import read_table
from badpo.data.judgments import Judgments
from badpo.data.problems import DataError
from badpo.data.sealed_tables import DamagedTableError, is_sealed, write_sealed

DROPPED = [{"reason": "tie", "annotator": "ann_x", "n": 1}]
KILLED_WHILE_WRITING = """
import os, pathlib, signal, sys
from badpo.data.files import appearing
with appearing(pathlib.Path(sys.argv[1])) as unfinished:
    unfinished.write_text("hal")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def run_folder(tmp_path):
    (tmp_path / "model").mkdir()
    for name in ("model/weights", "log.jsonl", "bias.json"):
        (tmp_path / name).write_text(f"content of {name}")
    write_seal(tmp_path / RUN_SEAL, {"key": "abc"}, ["model/weights", "log.jsonl", "bias.json"])
    return tmp_path


# -- whole files -----------------------------------------------------------------------------------------------


@pytest.fixture
def killed_writer(tmp_path):
    """A file, and what a process left that was killed while it wrote another content."""
    path = tmp_path / "a.txt"
    path.write_text("old")
    done = subprocess.run([sys.executable, "-c", KILLED_WHILE_WRITING, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    return path


def test_a_killed_writer_leaves_the_old_file_and_its_half_is_removed_later(killed_writer):
    (half,) = leftovers(killed_writer.parent)
    assert killed_writer.read_text() == "old" and half.read_text() == "hal"
    remove_leftovers(killed_writer)
    assert half.exists()  # a process of another machine might be at work
    os.utime(half, (0, 0))
    with appearing(killed_writer) as unfinished:
        unfinished.write_text("new")
    assert [path.name for path in killed_writer.parent.iterdir()] == ["a.txt"]


def test_writers_of_one_file_share_nothing_but_its_name(tmp_path):
    # process and thread are the same here, as they are for process 1 of two containers
    path = tmp_path / "a.txt"
    with appearing(path) as first:
        with appearing(path) as second:
            second.write_text("second")
        first.write_text("first")
        assert path.read_text() == "second"
    assert path.read_text() == "first" and [path.name for path in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
@pytest.mark.parametrize(("private", "mode"), [(True, 0o600), (False, 0o640)])
def test_a_new_file_has_the_mode_of_its_kind_and_a_replaced_one_keeps_its_own(tmp_path, private, mode):
    path = tmp_path / "a.txt"
    before = os.umask(0o027)
    try:
        for kept in (mode, 0o604):
            with appearing(path, private) as unfinished:
                unfinished.write_text("content")
            assert stat.S_IMODE(path.stat().st_mode) == kept
            path.chmod(0o604)
    finally:
        os.umask(before)


def test_a_link_stays_and_the_file_that_it_names_is_replaced(tmp_path):
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere" / "a.txt")
    for content in ("made", "replaced"):
        with appearing(link) as unfinished:
            unfinished.write_text(content)
        assert link.is_symlink() and (tmp_path / "elsewhere" / "a.txt").read_text() == content
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "link"]


def test_a_full_disk_is_told_with_the_file(tmp_path):
    def full():
        with appearing(tmp_path / "a.txt"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match=r"No space left on device: '.*a\.txt'"):
        full()


# -- locks -------------------------------------------------------------------------------------------------------


def test_who_holds_a_run_may_ask_again_and_lets_go_at_the_end(tmp_path):
    run, link = tmp_path / "dpo-s42", tmp_path / "link"
    link.symlink_to(run)
    with locked(run):
        with locked(link):
            pass
        assert holder(run) == f"process {os.getpid()} on {socket.gethostname()}"
    assert holder(run) is None


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path):
    run = tmp_path / "dpo-s42"
    code = (
        "import sys, time; from pathlib import Path; from badpo.data.files import locked\n"
        "with locked(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(run)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        with pytest.raises(BusyError, match=f"process {process.pid}"), locked(run):
            pass
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    with locked(run):
        pass


def test_a_lock_that_is_a_link_is_not_followed(tmp_path):
    target = tmp_path / "precious"
    target.write_text("kept", encoding="utf-8")
    (tmp_path / ".dpo-s42.lock").symlink_to(target)
    with pytest.raises(OSError), locked(tmp_path / "dpo-s42"):
        pass
    assert target.read_text(encoding="utf-8") == "kept"


# -- seals -----------------------------------------------------------------------------------------------------


def test_a_sealed_run_is_undamaged_and_any_change_is_named(tmp_path):
    folder = run_folder(tmp_path)
    assert run_damage(folder) is None
    (folder / "log.jsonl").write_text("other")
    assert run_damage(folder) == f"{folder.name}/log.jsonl is damaged (its checksum does not match)"
    assert run_damage(folder, but=["log.jsonl"]) is None
    assert run_damage(folder, names=["bias.json"]) is None
    (folder / "bias.json").unlink()
    assert run_damage(folder) == f"{folder.name}/bias.json is missing"


def test_every_bit_of_a_seal_counts(tmp_path):
    path = run_folder(tmp_path) / RUN_SEAL
    content = path.read_bytes()
    draw = random.Random(0)
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1 << draw.randrange(8)
        path.write_bytes(changed)
        try:
            assert (
                read_seal(path)["key"] == "abc"
            )  # white space, or the other case of a digit that JSON reads alike
        except SealError as error:
            assert str(error).endswith("run.json is damaged")
            assert run_damage(tmp_path) is not None
    for length in range(0, len(content) - 1, 9):
        path.write_bytes(content[:length])
        assert seal_damage(path) is not None


def test_a_run_that_is_not_finished_has_no_seal(tmp_path):
    assert run_damage(tmp_path) is None
    with resealed(tmp_path, ["a"]):
        pass
    assert not (tmp_path / RUN_SEAL).exists()


def test_files_that_are_written_anew_are_sealed_again(tmp_path):
    folder = run_folder(tmp_path)
    with resealed(folder, ["log.jsonl", "readouts.json"]):
        assert left_open(folder, ["log.jsonl", "readouts.json"]) == ["log.jsonl"]
        (folder / "log.jsonl").write_text("new")
        assert run_damage(folder) is None
    assert run_damage(folder) is None and left_open(folder, ["log.jsonl"]) == []
    assert read_seal(folder / RUN_SEAL)["key"] == "abc"
    (folder / "log.jsonl").write_text("old")
    assert "log.jsonl is damaged" in str(run_damage(folder))


# -- tables ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "votes.parquet"
    rows = {"prompt": ["a", "b"] * 20, "n": range(40)}
    write_sealed(
        pa.table(rows).replace_schema_metadata({b"badpo.dropped": json.dumps(DROPPED).encode()}), path
    )
    return path


def test_a_sealed_table_reads_as_any_other(table):
    assert is_sealed(table) and not read_table(table).rewritten
    assert read_table(table).frame["n"].tolist() == list(range(40))
    assert read_table(table).dropped == tuple(DROPPED)
    assert pq.read_table(table).num_rows == 40


def test_every_bit_of_a_table_counts(table, tmp_path):
    content = table.read_bytes()
    path = tmp_path / "votes.parquet"
    draw = random.Random(0)
    first, last = content.find(b"=badpo.sha256="), content.rfind(b"=badpo.sha256=")
    assert 0 < first < last
    for place in sorted({*range(0, len(content), 5), *range(first, last + 14)}):
        changed = bytearray(content)
        changed[place] ^= 1 << draw.randrange(8)
        path.write_bytes(changed)
        with pytest.raises(DataError, match=r"votes\.parquet"):
            read_table(path)


def test_a_table_that_is_cut_short_is_refused(table, tmp_path):
    path = tmp_path / "votes.parquet"
    for length in range(0, table.stat().st_size, 97):
        path.write_bytes(table.read_bytes()[:length])
        with pytest.raises(DataError, match="E102"):
            read_table(path)


def test_a_table_of_another_program_has_no_checksum(tmp_path):
    pq.write_table(pa.table({"n": [1]}), tmp_path / "a.parquet")
    assert not is_sealed(tmp_path / "a.parquet")
    assert not read_table(tmp_path / "a.parquet").rewritten


def test_a_damaged_table_is_told_from_a_rewritten_one(tmp_path):
    path = tmp_path / "votes.parquet"
    rows = [{"prompt": str(i), "response_a": "yes", "response_b": "no", "winner": "a"} for i in range(9)]
    Judgments.read(rows).to_parquet(path)
    same, fewer = tmp_path / "same.parquet", tmp_path / "fewer.parquet"
    pq.write_table(pq.read_table(path), same)
    pq.write_table(pq.read_table(path).slice(0, 4), fewer)
    for rewritten, n_votes in ((same, 9), (fewer, 4)):
        assert not is_sealed(rewritten)
        read = Judgments.read(rewritten)
        (finding,) = [finding for finding in read.findings if finding.code == "N103"]
        assert read.n_votes == n_votes and finding.severity == "notice"
        assert (
            "another program has written this table anew" in finding.what and str(rewritten) in finding.where
        )
        read.to_parquet(rewritten)
        assert is_sealed(rewritten)
        assert "N103" not in {finding.code for finding in Judgments.read(rewritten).findings}
    content = bytearray(path.read_bytes())
    content[12] ^= 4
    path.write_bytes(content)
    with pytest.raises(DamagedTableError, match="its checksum does not match"):
        is_sealed(path)
    with pytest.raises(
        DataError, match=r"bytes of it have changed(.|\n)*take an undamaged copy, or import the export again"
    ):
        read_table(path)
