"""Forgetting a person: found everywhere, taken out whole, and honest about what stays."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from badpo.data.forgetting import erase, find_people, find_traces
from badpo.data.importing import import_file
from badpo.data.judgments import Judgments
from badpo.data.privacy import pseudonyms
from badpo.data.problems import ConfigError, DataError

LABEL_STUDIO = Path(__file__).parents[2] / "examples" / "label_studio.json"
HEADER = "prompt,response_a,response_b,winner,annotator\n"
TABLE = HEADER + '"Why,\nso?",yes,"no ""really""",a,ann-1\n\nHow?,b,c,b,ann-2\nWho?,d,e,tie,ann-1\n'


@pytest.fixture(autouse=True)
def key(monkeypatch, tmp_path):
    monkeypatch.setenv("BADPO_PSEUDONYM_KEY", "a key that only this test knows")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no-config"))


@pytest.fixture
def judgments(tmp_path) -> Path:
    import_file(LABEL_STUDIO, tmp_path / "judgments.parquet", mapping=tmp_path / "who.json")
    return tmp_path / "judgments.parquet"


@pytest.fixture
def run(tmp_path) -> Path:
    """A run folder with a policy, a bias term, a sealed checkpoint and planted leans."""
    save = pytest.importorskip("safetensors.numpy").save
    names = pseudonyms(["3", "7", "9"])
    folder = tmp_path / "runs" / "shared_mean-s42"
    for here in (folder, folder / "checkpoints" / "checkpoint-10"):
        here.mkdir(parents=True)
        tensors = {
            "mean": np.array([0.5], dtype=np.float32),
            "deviation": np.array([[0.1], [0.2], [0.3]], dtype=np.float32),
            "fixed": np.zeros((3, 1), dtype=np.float32),
            "mask": np.ones(3, dtype=np.float32),
        }
        content = save(tensors)
        (here / "bias.safetensors").write_bytes(content)
        description = {
            "format": 1,
            "attributes": ["length"],
            "parts": ["mean", "deviation"],
            "annotators": names,
            "annotator_class": None,
            "sha256": hashlib.sha256(content).hexdigest(),
            "extra": {"variant": "shared_mean"},
        }
        (here / "bias.json").write_text(json.dumps(description))
    (folder / "checkpoints" / "checkpoint-10" / "complete.json").write_text("{}")
    (folder / "model").mkdir()
    (folder / "log.jsonl").write_text('{"step": 1, "bias/theta/length": 0.5}\n')
    (folder / "planted.json").write_text(json.dumps({"annotators": [{"pseudonym": name} for name in names]}))
    return folder


@pytest.fixture
def audit(tmp_path) -> Path:
    folder = tmp_path / "audit"
    folder.mkdir()
    names = pseudonyms(["3", "7"])
    table = pd.DataFrame(
        {"annotator": [*names, *names], "attribute": ["p", "p", "q", "q"], "deviation": [0.1] * 4}
    )
    table.to_parquet(folder / "annotators.parquet")
    table.to_csv(folder / "annotators.csv", index=False)
    requests = pd.DataFrame({"comparison_id": ["1", "2"], "annotator": [[names[1]], [names[0]]]})
    requests.to_parquet(folder / "requests.parquet")
    (folder / "audit.json").write_text("{}")
    (folder / "report.html").write_text(names[1])
    (folder / "watch.json").write_text(json.dumps({names[1]: 1.0}))
    return folder


def forget(*annotators: str, **where) -> list:
    traces = find_traces(find_people(annotators, where.get("mapping")), **where)
    erase(traces)
    return traces


@pytest.mark.parametrize("name", ["7", None])
def test_a_table_loses_the_rows_and_the_counts(judgments, name):
    tom = pseudonyms(["7"])[0]
    (trace,) = forget(name or tom, data=[judgments])
    assert trace.what == "2 judgments, and the count of 1 left out at import"
    left = Judgments.read(judgments)
    assert tom not in set(left.annotators["pseudonym"])
    assert (left.n_votes, left.n_annotators, left.dropped["n"].sum()) == (4, 2, 2)
    assert tom.encode() not in judgments.read_bytes()
    assert [path.name for path in judgments.parent.glob(".*")] == []
    assert forget(name or tom, data=[judgments]) == []


def test_a_csv_keeps_every_other_byte(tmp_path):
    path = tmp_path / "votes.csv"
    path.write_bytes(b"\xef\xbb\xbf" + TABLE.encode())
    (trace,) = forget("ann-1", data=[path])
    assert trace.what == "2 judgments"
    assert path.read_bytes() == b"\xef\xbb\xbf" + HEADER.encode() + b"How?,b,c,b,ann-2\n"


CELL = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=8)


@given(
    rows=st.lists(
        st.tuples(CELL, CELL, st.sampled_from(["ann-1", "ann-2", "ann-3"])), min_size=1, max_size=8
    ),
    end=st.sampled_from(["\n", "\r\n"]),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_csv_ends_as_if_they_had_never_voted(rows, end, tmp_path):
    def written(some) -> bytes:
        out = io.StringIO(newline="")
        csv.writer(out, lineterminator=end, quoting=csv.QUOTE_ALL).writerows([("x", "y", "annotator"), *some])
        return out.getvalue().encode()

    path = tmp_path / "votes.csv"
    path.write_bytes(written(rows))
    forget("ann-1", data=[path])
    assert path.read_bytes() == written([row for row in rows if row[2] != "ann-1"])


def test_a_csv_with_other_line_ends(tmp_path):
    path = tmp_path / "votes.csv"
    path.write_bytes(TABLE.replace("\n", "\r\n").encode())
    forget("ann-2", data=[path])
    assert path.read_bytes() == TABLE.replace("How?,b,c,b,ann-2\n", "").replace("\n", "\r\n").encode()


def test_the_pseudonym_finds_a_raw_table_too(tmp_path):
    path = tmp_path / "votes.csv"
    path.write_text(TABLE)
    (trace,) = forget(pseudonyms(["ann-2"])[0], data=[path])
    assert trace.what == "1 judgment"


@pytest.mark.parametrize("suffix", ["jsonl", "json"])
def test_json_tables(tmp_path, suffix):
    rows = [
        {"prompt": "p\u2028q", "chosen": "c", "rejected": "r", "annotator": who} for who in ("x", "y", "x")
    ]
    path = tmp_path / f"votes.{suffix}"
    text = (
        json.dumps(rows)
        if suffix == "json"
        else "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows)
    )
    path.write_text(text, encoding="utf-8")
    forget("x", data=[path])
    assert Judgments.read(path).n_votes == 1


def test_another_name_for_the_column(tmp_path):
    path = tmp_path / "votes.csv"
    path.write_text(TABLE.replace("annotator", "worker_id"))
    with pytest.raises(DataError, match='columns={"annotator": "worker_id"}'):
        forget("ann-1", data=[path])
    assert len(forget("ann-1", data=[path], columns={"annotator": "worker_id"})) == 1


def test_a_run_loses_the_parameters_and_says_what_stays(run):
    load_file = pytest.importorskip("safetensors.numpy").load_file
    tom = pseudonyms(["7"])[0]
    before = (run / "checkpoints" / "checkpoint-10" / "bias.safetensors").read_bytes()
    traces = forget("7", runs=[run.parent])
    assert [(trace.path.relative_to(run).as_posix(), trace.erase is not None) for trace in traces] == [
        ("bias.safetensors", True),
        ("model", False),
        ("checkpoints/checkpoint-10", False),
        ("planted.json", False),
    ]
    assert "train again" in traces[1].remedy
    tensors, description = load_file(run / "bias.safetensors"), json.loads((run / "bias.json").read_text())
    assert tensors["deviation"].ravel().tolist() == pytest.approx([0.1, 0.3])
    assert tom not in description["annotators"]
    assert description["sha256"] == hashlib.sha256((run / "bias.safetensors").read_bytes()).hexdigest()
    assert description["extra"] == {"variant": "shared_mean", "annotators_forgotten": 1}
    assert (run / "checkpoints" / "checkpoint-10" / "bias.safetensors").read_bytes() == before


def test_checkpoints_go_when_asked(run):
    forget("7", runs=[run], checkpoints="remove")
    assert list((run / "checkpoints").iterdir()) == []


def test_a_bias_term_of_nobody_goes_whole(run):
    forget("3", "7", "9", runs=[run])
    assert not (run / "bias.json").exists()
    assert not (run / "bias.safetensors").exists()


def test_an_audit_loses_rows_and_page(audit):
    traces = forget("7", audits=[audit])
    tom, mia = pseudonyms(["7", "3"])
    assert {path.name for path in audit.iterdir()} == {
        "annotators.parquet",
        "annotators.csv",
        "requests.parquet",
        "watch.json",
    }
    assert set(pd.read_parquet(audit / "annotators.parquet")["annotator"]) == {mia}
    assert set(pd.read_csv(audit / "annotators.csv")["annotator"]) == {mia}
    assert pd.read_parquet(audit / "requests.parquet")["comparison_id"].tolist() == ["2"]
    (listed,) = [trace for trace in traces if trace.erase is None]
    assert (listed.path.name, listed.what) == ("watch.json", "a file that names them")
    assert tom in (audit / "watch.json").read_text()


def test_the_mapping_knows_people_without_the_key_and_loses_them(judgments, monkeypatch):
    who = judgments.parent / "who.json"
    monkeypatch.delenv("BADPO_PSEUDONYM_KEY")
    traces = forget("7", data=[judgments], mapping=who)
    assert [trace.what for trace in traces] == [
        "2 judgments, and the count of 1 left out at import",
        "1 entry",
    ]
    assert sorted(json.loads(who.read_text()).values()) == ["3", "9"]
    assert stat.S_IMODE(who.stat().st_mode) == 0o600


def test_a_lost_key_is_told_and_no_new_one_is_made(judgments, monkeypatch, tmp_path):
    monkeypatch.delenv("BADPO_PSEUDONYM_KEY")
    with pytest.raises(ConfigError, match="cannot be computed"):
        find_people(["7"])
    assert not (tmp_path / "no-config").exists()
    monkeypatch.setenv("BADPO_PSEUDONYM_KEY", "a key that only this test knows")
    (tom,) = find_people(["7"]).pseudonyms
    monkeypatch.delenv("BADPO_PSEUDONYM_KEY")
    assert len(forget(tom, data=[judgments])) == 1


def test_nothing_changes_before_erase(judgments, run, audit):
    files = [path for path in judgments.parent.rglob("*") if path.is_file()]
    before = [path.read_bytes() for path in files]
    traces = find_traces(find_people(["7"]), data=[judgments], audits=[audit], runs=[run])
    assert len(traces) == 1 + 6 + 4
    assert [path.read_bytes() for path in files] == before


def test_a_failed_write_leaves_the_old_table(judgments, monkeypatch):
    before = judgments.read_bytes()
    traces = find_traces(find_people(["7"]), data=[judgments])

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pyarrow.parquet.write_table", full)
    with pytest.raises(OSError, match="No space"):
        erase(traces)
    assert judgments.read_bytes() == before
    assert [path.name for path in judgments.parent.glob(".*")] == []


def test_wrong_places_are_told(tmp_path, judgments):
    with pytest.raises(ConfigError, match="is no folder"):
        find_traces(find_people(["7"]), runs=[tmp_path / "nowhere"])
    with pytest.raises(ConfigError, match="checkpoints must be list or remove"):
        find_traces(find_people(["7"]), runs=[tmp_path], checkpoints="keep")
    with pytest.raises(ConfigError, match="is no mapping"):
        find_people(["7"], mapping=judgments)
    with pytest.raises(DataError, match="no such file"):
        find_traces(find_people(["7"]), data=[tmp_path / "nothing.csv"])


def test_forgetting_loads_no_torch(run):
    program = (
        "import sys\nfrom badpo.data.forgetting import erase, find_people, find_traces\n"
        f"erase(find_traces(find_people(['7']), runs=[{str(run)!r}]))\n"
        "print(*[name for name in ('torch', 'transformers', 'datasets') if name in sys.modules])"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (finished.returncode, finished.stdout.split()) == (0, []), finished.stderr
    assert len(json.loads((run / "bias.json").read_text())["annotators"]) == 2
