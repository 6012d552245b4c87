"""Files that appear whole, and checksums that tell when they are not what they were."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from badpo.data.importers.tables import read_table
from badpo.data.judgments import Judgments
from badpo.data.problems import DataError
from badpo.data.sealed_tables import DamagedTableError, is_sealed, write_sealed
from badpo.data.seals import (
    RUN_SEAL,
    SealError,
    left_open,
    read_seal,
    resealed,
    run_damage,
    seal_damage,
    write_seal,
)
from badpo.data.whole_files import appearing, leftovers, remove_leftovers, unfinished_name

DROPPED = [{"reason": "tie", "annotator": "ann_x", "n": 1}]
KILLED_WHILE_WRITING = """
import os, pathlib, signal, sys
from badpo.data.whole_files import appearing
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


def test_what_a_living_process_writes_is_left_alone(tmp_path):
    half = tmp_path / unfinished_name("a.txt")
    half.touch()
    os.utime(half, (0, 0))
    assert leftovers(tmp_path) == []
    (tmp_path / f".writing-{2**22 + 5}.1-b.txt").touch()
    assert [path.name[-5:] for path in leftovers(tmp_path)] == ["b.txt"]


def test_a_full_disk_is_told_with_the_file(tmp_path):
    def full():
        with appearing(tmp_path / "a.txt"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match=r"No space left on device: '.*a\.txt'"):
        full()


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


def test_a_run_of_before_there_were_seals_passes(tmp_path):
    assert run_damage(tmp_path) is None
    (tmp_path / RUN_SEAL).write_text(json.dumps({"key": "abc"}))
    assert run_damage(tmp_path) is None
    with resealed(tmp_path, ["a"]):
        pass
    assert json.loads((tmp_path / RUN_SEAL).read_text()) == {"key": "abc"}


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
