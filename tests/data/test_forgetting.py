"""Forgetting a person: nothing names them and nothing tells what they voted; whatever cannot be taken out is listed."""

import bz2
import csv
import gzip
import io
import json
import lzma
import os
import random
import re
import resource
import shutil
import stat
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from badpo.attributes import Length
from badpo.auditing.audit import audit
from badpo.auditing.watch import watch
from badpo.data import forgetting
from badpo.data.files import BusyError, checksum_file, file_checksum
from badpo.data.forgetting import find_people
from badpo.data.judgments import Judgments
from badpo.data.privacy import pseudonym, pseudonyms
from badpo.data.problems import ConfigError, DataError
from badpo.importers.convert import import_file
from tests.data.test_files import held
from tests.public_face import invoke

LABEL_STUDIO = Path(__file__).parents[2] / "examples" / "label_studio.json"
HEADER = "prompt,response_a,response_b,winner,annotator\n"
PEOPLE = [f"Worker-{k}" for k in range(8)]
TOM = "Worker-3"
NUMBER = re.compile(rb"-?\d+\.\d+(?:e-?\d+)?")
KEY = "a key that only this test knows"
TABLES = ("csv", "json", "parquet")


@pytest.fixture(autouse=True, scope="module")
def key():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BADPO_PSEUDONYM_KEY", KEY)
        yield


@pytest.fixture
def judgments(tmp_path) -> Path:
    import_file(LABEL_STUDIO, tmp_path / "judgments.parquet", mapping=tmp_path / "who.json")
    return tmp_path / "judgments.parquet"


def forget(*annotators: str, **where) -> list:
    return forgetting.forget(find_people(annotators, where.get("mapping")), **where)


@pytest.mark.parametrize("by_id", [True, False])
def test_a_table_loses_the_rows_and_the_counts(judgments, by_id):
    (tom,) = pseudonyms(["7"])
    (judgments.parent / "who.json").unlink()
    (trace,) = forget("7" if by_id else tom, data=[judgments])
    assert trace.what == "2 judgments, and the count of 1 left out at import"
    left = Judgments.read(judgments)
    assert tom not in set(left.annotators["pseudonym"])
    assert (left.n_votes, left.n_annotators, left.dropped["n"].sum()) == (4, 2, 2)
    assert checksum_file(judgments).exists() and forget(tom, data=[judgments]) == []


CELLS = ["", "so", "a,b", 'say "so"', "\n", "\r", "two\r\nlines", "a\x0b\x1c\x85\u2028b", "\ufeff\xe9"]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_any_csv_ends_as_if_they_had_never_voted(end, mark, tmp_path):
    def written(some) -> bytes:
        out = io.StringIO(newline="")
        writer = csv.writer(out, lineterminator=end, quoting=csv.QUOTE_ALL)
        writer.writerows([("x", "y", "annotator"), *some])
        return mark + out.getvalue().encode()

    path, rng = tmp_path / "votes.csv", random.Random(0)
    for n in range(40):
        rows = [(*rng.choices(CELLS, k=2), rng.choice(PEOPLE[:3])) for _ in range(1 + n % 8)]
        path.write_bytes(written(rows))
        forget(PEOPLE[0], data=[path])
        assert path.read_bytes() == written([row for row in rows if row[2] != PEOPLE[0]])


def test_the_pseudonym_finds_a_raw_table_and_what_is_beside_it_by_any_name_of_the_column(tmp_path):
    path = tmp_path / "votes.csv"
    path.write_text(HEADER.replace("annotator", "worker_mail") + "p,b,c,b,ann-1\np,b,c,b,ann-2\n")
    shutil.copy(path, tmp_path / "votes.csv.bak")
    with pytest.raises(DataError, match="worker_mail looks like it"):
        forget("ann-2", data=[path])
    gone, left = forget(pseudonyms(["ann-2"])[0], data=[path], column="worker_mail")
    assert gone.what == "1 judgment" and left.path.name == "votes.csv.bak" and not left.goes


@pytest.mark.parametrize("suffix", ["jsonl", "json"])
def test_json_tables(tmp_path, suffix):
    row = {"prompt": "p\u2028q", "note": "\ud800", "chosen": "c", "rejected": "r"}
    rows = [row | {"annotator": who} for who in ("\udc80x", "y", "\udc80x")]
    path = tmp_path / f"votes.{suffix}"
    lines = "".join(json.dumps(row, separators=(",", ":\r")) + "\n" for row in rows)
    path.write_text(json.dumps(rows) if suffix == "json" else lines)
    path.chmod(0o640)
    forget("\udc80x", data=[path])
    assert Judgments.read(path).n_votes == 1 and "dc80" not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_without_the_key_the_mapping_or_a_pseudonym_finds_people(judgments, monkeypatch, tmp_path):
    monkeypatch.delenv("BADPO_PSEUDONYM_KEY")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    who = judgments.parent / "who.json"
    votes, entry = forget("7", data=[judgments], mapping=who)
    assert "2 judgments" in votes.what and entry.what == "1 pseudonym"
    left = json.loads(who.read_text())
    assert sorted(left.values()) == ["3", "9"] and stat.S_IMODE(who.stat().st_mode) == 0o600
    who.unlink()
    assert len(forget(*left, data=[judgments])) == 1
    with pytest.raises(ConfigError, match="no pseudonym can be computed"):
        find_people(["7"])
    assert not (tmp_path / "config").exists()


def test_on_a_full_disk_nothing_is_changed_and_no_part_of_a_record_is_left(judgments):
    votes, name = judgments.read_bytes(), pq.read_table(judgments)["annotator"][0].as_py()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            forget(name, data=[judgments])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert judgments.read_bytes() == votes
    assert not (judgments.parent / forgetting.RECORD).exists()


def test_two_at_once_lose_nothing_and_delete_nobody_else(tmp_path, monkeypatch):
    path, lines = tmp_path / "votes.csv", forgetting._text_without

    def slowly(*args):
        time.sleep(0.5)
        return lines(*args)

    monkeypatch.setattr(forgetting, "_text_without", slowly)
    names = [f"person {k % 6}" for k in range(600)]
    pd.DataFrame({"n": range(600), "annotator": names}).to_csv(path, index=False)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda name: forget(name, data=[path]), ("person 1", "person 4")))
    assert pd.read_csv(path)["n"].tolist() == [n for n in range(600) if n % 6 not in (1, 4)]


def votes() -> pd.DataFrame:
    """Eight votes of each of eight people, the longer answer on the left."""
    rows = [(f"Why {c}?", f"It just is so {c}.", f"So {c}.", name) for c in range(8) for name in PEOPLE]
    frame = pd.DataFrame(rows, columns=["prompt", "response_a", "response_b", "annotator"])
    return frame.assign(winner=np.random.default_rng(0).choice(["a", "b"], 64))


def write(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def write_run(folder: Path, read: Judgments, theta: np.ndarray, **extra) -> None:
    """What training leaves, with a checkpoint; theta of everyone."""
    save = pytest.importorskip("safetensors.numpy").save
    names, facts = read.annotators["pseudonym"].tolist(), {"data": read.fingerprint()}
    mean = round(float(theta.mean()), 2)
    learned = {
        "bias.safetensors": save({"deviation": theta}),
        "bias.json": json.dumps({"annotators": names, "extra": facts}).encode(),
        "log.jsonl": json.dumps({"bias/theta/length": mean}).encode() + b"\n",
    }
    write(folder / "checkpoints/checkpoint-10", learned | {"objective.safetensors": save({"w": theta})})
    others = {"model/model.safetensors": bytes(64), "config.yaml": b"bias: shared_mean\n"}
    write(folder, learned | others | {"run.json": json.dumps({"facts": facts, **extra}).encode()})


@pytest.fixture(scope="module")
def made(key, tmp_path_factory) -> Path:
    """Everything that commands write of eight people, and copies that users and killed commands leave."""
    root, raw = tmp_path_factory.mktemp("made") / "project", votes()
    data, runs, table = root / "data", root / "runs", root / "judgments[1].parquet"
    data.mkdir(parents=True)
    raw.to_csv(data / "votes.csv", index=False)
    raw.to_json(data / "votes.json", orient="records")
    parted = pa.Table.from_pandas(raw.astype({"annotator": "category"}))
    noted = parted.replace_schema_metadata({b"note": f"checked by {TOM}".encode()})
    pq.write_table(noted, data / "votes.parquet")
    import_file(data / "votes.csv", table, mapping=root / "who.json")
    read = Judgments.read(table, attributes=[Length()])
    audit(read).write(root / "audit")
    (root / "audit" / "reread.csv").write_text("votes of others")
    watch(table, [Length()], root / "watch.json")
    theta = np.linspace(-1.03, 0.97, 8, dtype=np.float32).reshape(8, 1) ** 3
    run, em = runs / "shared_mean-s42", runs / "em_dpo-s42"
    write_run(run, read, theta)
    write_run(em / "type0", read, theta, annotator_weights=theta.ravel().tolist())
    write(em / "type0", {"config.yaml": f"gold_annotators: {pseudonyms([TOM])}\n".encode()})
    rounds = json.dumps({"key": "k", "probabilities": theta.tolist()}).encode()
    write(em, {"round0.json": rounds, "begun.json": b"{}"})
    for name in ("reference", "shared_mean-s42-anchored"):
        write(runs / name, {"model/model.safetensors": name.encode(), "run.json": b"{}"})
    write(runs / "shared_mean-s42-anchored", {"anchor.json": b'{"source": "shared_mean-s42"}'})
    for copied in (data / "votes.csv", run / "bias.json"):
        shutil.copy(copied, f"{copied}.bak")
    shutil.copy(table, run / "votes.parquet.bak")
    write(run, {".writing-0123456789abcdef-bias.json": b"half"})
    write(root, {".writing-0123456789abcdef-judgments[1].parquet": table.read_bytes()[:200]})
    return root


@pytest.fixture
def project(made, tmp_path) -> Path:
    return shutil.copytree(made, tmp_path / "project")


def everywhere(root: Path) -> dict:
    return {
        "data": [root / "judgments[1].parquet", *(root / "data" / f"votes.{kind}" for kind in TABLES)],
        "audits": [root / "audit"],
        "runs": [root / "runs"],
        "states": [root / "watch.json"],
        "mapping": root / "who.json",
    }


def contents(root: Path) -> dict[str, bytes]:
    """All bytes below a folder, parquet decoded too, by path."""
    found = {}
    for path in root.rglob("*"):
        if path.is_file() and not path.name.startswith("."):
            content = path.read_bytes()
            decoded = pq.read_table(path).to_pylist() if content.startswith(b"PAR1") else ""
            found[str(path.relative_to(root))] = content + str(decoded).encode()
    return found


def test_nothing_of_a_person_is_left_but_the_policies(project):
    def naming() -> list[str]:
        names = [TOM.encode(), pseudonyms([TOM])[0].encode()]
        return [path for path, content in contents(project).items() if any(n in content for n in names)]

    assert len(naming()) == 16
    before = contents(project)
    planned = forget(TOM, **everywhere(project), dry_run=True)
    assert contents(project) == before
    traces = forget(TOM, **everywhere(project))
    assert {(t.path, t.what) for t in planned} == {(t.path, t.what) for t in traces}
    assert not [*project.rglob(".writing-*")]
    copies = {"data/votes.csv.bak", "runs/shared_mean-s42/votes.parquet.bak"}
    runs = ("reference", "shared_mean-s42", "shared_mean-s42-anchored", "em_dpo-s42/type0")
    policies = {f"runs/{name}/model" for name in runs}
    still = {str(trace.path.relative_to(project)) for trace in traces if not trace.goes}
    assert still == copies | policies and {*naming()} == copies
    assert f"badpo audit DATA --out {project / 'audit'}" in str(traces)
    for name in copies:
        (project / name).unlink()
    left = {path for path in contents(project) if not path.endswith(("lock", "forgotten.jsonl"))}
    assert left == {f"{policy}/model.safetensors" for policy in policies} | {
        *(f"data/votes.{kind}" for kind in TABLES),
        *("judgments[1].parquet", "judgments[1].parquet.sha256", "who.json"),
        *("runs/shared_mean-s42/config.yaml", "runs/shared_mean-s42-anchored/anchor.json"),
    }
    for path in everywhere(project)["data"]:
        assert Judgments.read(path).n_votes == 56
    assert pq.read_schema(project / "data" / "votes.parquet").field("annotator").type == pa.string()
    assert stat.S_IMODE((project / "forgotten.jsonl").stat().st_mode) == 0o600
    again = forget(TOM, **everywhere(project))
    assert {trace.path.name for trace in again} == {"model"} and len(again) == 4
    shutil.rmtree(project / "runs" / "reference" / "model")
    (project / "runs" / "reference" / "model").mkdir()
    assert len(forget(TOM, **everywhere(project))) == 3


def test_what_stays_does_not_tell_what_went(project, monkeypatch):
    theta = np.linspace(-1.03, 0.97, 8) ** 3
    before = contents(project)
    checksums = {path: file_checksum(path) for path in project.rglob("*") if path.is_file()}
    audited = shutil.copy(project / "audit" / "annotators.parquet", project.parent)
    forget(TOM, **everywhere(project))
    left = contents(project)
    left = {path: content for path, content in left.items() if not path.endswith(".bak")}
    # of each step and of held-out votes the exact figures: who trains again on a guess sees whether it was right
    assert not any(path.endswith(("log.jsonl", "readouts.json")) for path in left)
    # no number of theirs stands anywhere, and no sum over all from which the numbers of others could be taken
    deviation = pd.read_parquet(audited).set_index("annotator").loc[pseudonyms([TOM])[0], "deviation"]
    texts = b" ".join(left[path] for path in left if path.endswith(("l", "json", "csv")))
    numbers = [float(number) for number in NUMBER.findall(texts)]
    assert all(abs(n - value) > 1e-4 for n in numbers for value in (deviation, -deviation, theta[3]))
    # what was made of their votes without a key
    changed = [sha for path, sha in checksums.items() if not path.exists() or file_checksum(path) != sha]
    everything = b" ".join(left.values())
    assert len(changed) > 20 and not any(sha.encode() in everything for sha in changed)
    # a guess at their votes, which is right, is confirmed by nothing that is left, and was only with the key
    for key, stood in (("another key than that of the test", False), (KEY, True)):
        monkeypatch.setenv("BADPO_PSEUDONYM_KEY", key)
        guess = Judgments.read(votes(), attributes=[Length()]).fingerprint().encode()[:12]
        assert guess not in everything
        assert stood == (guess in b" ".join(before.values()))


def test_an_audit_that_does_not_say_whose_votes_it_has_goes_and_its_other_copies_are_listed(project):
    audit, data = project / "audit", project / "data"
    others = project / "others"
    shutil.copytree(audit, others)
    for path in [*audit.glob("annotators.*"), *audit.glob("*.lock")]:
        path.unlink()
    pd.DataFrame({"annotator": ["somebody else"]}).to_csv(others / "annotators.csv")
    (others / "annotators.parquet").unlink()
    half = others / ".writing-0123456789abcdef-audit.json"
    (others / "old").mkdir()
    copies = [data / "exact.json", others / "exact.json.bak", others / "old" / "audit.json"]
    for copy in (half, *copies):
        shutil.copy(audit / "audit.json", copy)
    traces = forget(TOM, data=[data / "votes.csv"], audits=[audit, others])
    assert {*copies} <= {trace.path for trace in traces if not trace.goes}
    assert not half.exists() and (others / "audit.json").exists()
    assert {path.name for path in audit.iterdir()} == {".gitignore", "forgotten.jsonl"}


@pytest.mark.parametrize("name", ["elsewhere/shared_mean-s42", "runs/other-s42", "runs"])
def test_people_who_voted_elsewhere_lose_nothing(project, name):
    other = project / name
    data = Judgments.read(votes()[votes()["annotator"] != TOM], attributes=[Length()])
    write_run(project / "new", data, np.zeros((7, 1), dtype=np.float32))
    shutil.copytree(project / "new", other, dirs_exist_ok=True)
    anchored, source = other.with_name(f"{other.name}-anchored"), json.dumps({"source": other.name})
    write(anchored, {"model/weights": b"", "anchor.json": source.encode()})
    (project / "checkpoint-of-mine").touch()
    before = contents(project)
    (project / "model").mkdir()
    forget(TOM, data=[project / "judgments[1].parquet"])  # the record of that makes a run of no folder
    assert project / "model" not in [trace.path for trace in forget(TOM, runs=[project])]
    left = contents(project)
    theirs = [other / path.relative_to(project / "new") for path in (project / "new").rglob("*")]
    for path in [*theirs, *anchored.rglob("*"), *project.glob("new/*"), project / "checkpoint-of-mine"]:
        name = str(path.relative_to(project))
        assert left.get(name) == before.get(name)


def test_an_anchor_elsewhere_is_found_by_the_name_of_its_source(project):
    moved = project / "anchored" / "mine"
    moved.parent.mkdir()
    (project / "runs" / "shared_mean-s42-anchored").rename(moved)
    traces = forget(TOM, runs=[project / "runs", moved.parent])
    assert moved / "model" in [trace.path for trace in traces if not trace.goes]


@pytest.mark.parametrize(("here", "named"), [("runs", "."), ("runs/reference", "..")])
def test_the_folder_of_runs_may_be_the_one_that_one_stands_in(project, monkeypatch, here, named):
    by_name = forget(TOM, runs=[project / "runs"], dry_run=True)
    monkeypatch.chdir(project / here)
    assert forget(TOM, runs=[named], dry_run=True) == by_name
    forget(TOM, runs=[named])
    assert not (project / "runs" / "shared_mean-s42" / "bias.json").exists()


KILLED_AT = ["audit.json", "begun.json", "round0.json", "objective.safetensors", "bias.json"]


@pytest.mark.parametrize("name", KILLED_AT)
def test_a_call_that_was_killed_is_finished_by_the_next(project, monkeypatch, name):
    unlink = Path.unlink

    def dying(path, *args, **kwargs):
        if path.name == name:
            raise KeyboardInterrupt
        unlink(path, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", dying)
        with pytest.raises(KeyboardInterrupt):
            forget(TOM, **everywhere(project))
    forget(TOM, **everywhere(project))
    left_over = {path.name for path in project.rglob("*") if path.is_file()}
    assert not left_over & {"bias.json", "bias.safetensors", "round0.json", "audit.json"}
    assert len(forget(TOM, **everywhere(project))) == 4 + 2  # the policies, and copies of users


def test_a_run_that_names_them_and_is_being_trained_stops_everything(project):
    before, runs = contents(project), project / "runs"
    with held(runs / "shared_mean-s42"), pytest.raises(BusyError, match="shared_mean-s42"):
        forget(TOM, **everywhere(project))
    left = contents(project)
    assert {path: left[path] for path in before} == before


def test_a_table_below_the_runs_is_not_waited_for(project):
    below = Path(shutil.copy(project / "data" / "votes.csv", project / "runs"))
    traces = forget(TOM, data=[below], runs=[project / "runs"])
    assert below in [trace.path for trace in traces]


def test_an_id_that_is_a_word_of_the_files_removes_nothing(project):
    made = [project / "audit" / "report.html", project / "audit" / "audit.json", project / "watch.json"]
    texts = [path.read_text().partition("</style>") for path in made]
    words = {*re.findall("[a-z_]{6,}", " ".join(style and end or start for start, style, end in texts))}
    before, places = contents(project), everywhere(project)
    del places["mapping"]
    for word in ("annotator", "length", "nobody", *sorted(words)[::80]):
        traces = forget(word, **places)
        assert traces and not any(trace.goes for trace in traces)
        assert {trace.path.name[:9] for trace in traces if trace.is_sure} == {
            ".writing-"
        }  # cannot be read
    assert contents(project) == before
    with pytest.raises(ConfigError, match="nothing was changed"):
        forget(TOM, "length", **places)
    words = ("length", "--data", str(places["data"][1]), "--audit", str(project / "audit"))
    assert invoke("forget", *words).exit_code == 3


def workbook() -> bytes | None:
    """A workbook that names them; None without the extra that writes one."""
    if not find_spec("openpyxl"):
        return None
    pd.DataFrame({"annotator": [TOM] * 50}).to_excel(out := io.BytesIO(), index=False)
    return out.getvalue()


def parquet(cell: object, told: dict | None = None, **options) -> bytes:
    table = pa.table({"x": [cell]}).replace_schema_metadata(told)
    pq.write_table(table, out := io.BytesIO(), compression="gzip", **options)
    return out.getvalue()


def arrow(start: Callable, compression: str | None) -> bytes:
    """Arrow's bytes, in which the id of the next person follows without a separator."""
    table = pa.table({"annotator": [TOM, "Worker-4", "y" * 999]})
    with start(
        out := io.BytesIO(), table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)
    ) as to:
        to.write_table(table)
    return out.getvalue()


def zip_archive(text: str) -> bytes:
    with zipfile.ZipFile(out := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("votes.csv", text + "y" * 99)
    return out.getvalue()


# no byte of it shows what is in it
HIDDEN = parquet(["y" * 99, TOM] * 20, use_dictionary=False, write_statistics=False, store_schema=False)
COPIES = {  # what a file holds, and whom it names
    "text.bak": (f"of {TOM}.", TOM),
    "in_json": (json.dumps({"note": f"a\n{TOM}\nb"}), TOM),
    "php.json": (r'{"who": "https:\/\/orcid.org\/0000-0002"}', "https://orcid.org/0000-0002"),
    "gson.json": (r'{"who": "QWxhZGRpbjo\u003d\u003d"}', "QWxhZGRpbjo=="),
    "escaped.json": ("".join(f"\\u{ord(character):04X}" for character in TOM), TOM),
    "in_json_in_json": (json.dumps({"note": r'{"who": "a team\/anna"}'}), "team/anna"),
    "pseudonym.tsv": (f"n\n{pseudonym(TOM, KEY.encode())}\n", TOM),
    "other_case": ("WORKER-3 ", TOM),
    "utf-16.csv": (f"n,rater\n1,{TOM}\n".encode("utf-16"), TOM),
    "copy.csv.gz": (gzip.compress(f"n,rater\n1,{TOM}\n".encode()), TOM),
    "copy.xlsx": (workbook(), TOM),
    "nested.bin": (HIDDEN, TOM),
    "metadata.parquet": (parquet(1, {b"pandas": TOM.encode()}), TOM),
    "data-00000-of-00001.arrow": (arrow(pa.ipc.new_stream, None), TOM),
    "packed.feather": (arrow(pa.ipc.new_file, "zstd"), TOM),
    "frame.pkl": (b"\x80\x04\x95\0\0" + TOM.encode() + b"Worker-4", TOM),
    "copy.csv.xz": (lzma.compress(f"n,rater\n1,{TOM}\n".encode()), TOM),
    "notes.log.zst": (pa.compress(f"of {TOM}.".encode(), "zstd", asbytes=True), TOM),
    "copies.zip": (zip_archive(f"n,rater\n1,{TOM}\n"), TOM),
    "copies.7z": (b"7z\xbc\xaf\x27\x1c and what nobody can read", TOM),
    "broken.zip": (b"PK\x03\x04 and then nothing", TOM),
    "notes.txt.bz2": (bz2.compress(TOM.encode()), TOM),
    "large": (b" " * (2**24 - 4) + TOM.encode() + b" " * 2**24, TOM),
    f"of {TOM}": (b"", TOM),
    "broken.parquet": (b"PAR1 and then nothing", TOM),
    "unicode": ("from Åke_Berg here", "Åke_Berg"),
    "upper.log": ("from ÅKE_BERG.", "Åke_Berg"),
    "lower.log": ("from åke_berg.", "ÅKE_BERG"),
    "cp1252.log": ("von Åke_Berg.".encode("cp1252"), "Åke_Berg"),
    "cp1251.log": ("от Иванова_7.".encode("cp1251"), "Иванова_7"),
    "wide_little.log": (f"Worker-30, {TOM}".encode("utf-16-le"), TOM),
    "wide_big.log": (f"Worker-30, {TOM}, ".encode("utf-16-be"), TOM),
    "wide_other.log": ("of Иванова_Ж".encode("utf-16-be"), "иванова_ж"),
}


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_of_any_kind_is_listed(tmp_path, name):
    content, who = COPIES[name]
    if content is None:
        pytest.skip("needs the extra [excel]")
    assert TOM.encode() not in HIDDEN
    table, copy = tmp_path / "votes.csv", tmp_path / "runs" / "deep" / name
    table.write_text(HEADER + "p,b,c,b,Worker-30\n")  # one that only begins like theirs
    (tmp_path / "large").write_bytes(b" " * (2**24 - len(TOM)) + b"Worker-30")
    (tmp_path / "wide").write_bytes(
        b"".join(f"Worker-30, {end}".encode(f"utf-16-{end}") for end in ("le", "be"))
    )
    write(copy.parent, {name: content if isinstance(content, bytes) else content.encode()})
    (trace,) = forget(who, data=[table], runs=[tmp_path / "runs"])
    assert trace.path == copy and not trace.goes and copy.exists()


def test_a_short_id_is_looked_for_where_people_stand(tmp_path):
    table = tmp_path / "votes.csv"
    table.write_text(HEADER + "7,7,7,b,70\n")
    (tmp_path / "numbers.json").write_text('{"seed": 7}')
    (tmp_path / "numbers.csv").write_text("n\n7\n")
    counts = {"n_annotators": 7, "judgments_per_annotator": {"max": 7}, "decoder_layers": 7}
    (tmp_path / "counts.json").write_text(json.dumps({"data": counts}))
    assert forget("7", data=[table]) == []
    (tmp_path / "a.csv.bak").write_text("n,worker\n1,7\n")
    (tmp_path / "b.jsonl").write_text('{"n": 1, "user_id": 7}\n')
    (tmp_path / "c.jsonl").write_text('{"n": 1, "user_id": [1]}\n')
    pd.DataFrame({"judge": [7, 8]}).to_parquet(tmp_path / "d.parquet.1")
    pd.DataFrame({"judge": [7, 8]}).to_feather(tmp_path / "e.feather")
    traces = forget("7", data=[table])
    assert [trace.path.name for trace in traces] == ["a.csv.bak", "b.jsonl", "d.parquet.1", "e.feather"]


COMPOSED, DECOMPOSED = "anna.m\u00fcller", "anna.mu\u0308ller"


@pytest.mark.parametrize("who", [COMPOSED, DECOMPOSED])
def test_one_person_in_two_spellings_of_unicode_goes_whole(tmp_path, who):
    table, copy = tmp_path / "votes.csv", tmp_path / "copies.md"
    table.write_text(HEADER + f"p,b,c,b,{COMPOSED}\nq,b,c,b,{DECOMPOSED}\nq,b,c,b,other\n")
    assert Judgments.read(table).n_annotators == 2
    for spelling in (COMPOSED, DECOMPOSED):
        copy.write_text(f"from {spelling} here")
        assert copy in [trace.path for trace in forget(who, data=[table])]
    assert Judgments.read(table).n_votes == 1


@pytest.mark.parametrize("name", ["data", "states", "mapping"])
def test_what_a_link_leads_to_is_not_left_as_it_is(project, name):
    link, places = project / "link", everywhere(project)
    place = places[name]
    link.symlink_to(place[0] if isinstance(place, list) else place)
    before = contents(project)
    with pytest.raises(ConfigError, match="symbolic link"):
        forget(TOM, **places | {name: [link] if isinstance(place, list) else link})
    assert contents(project) == before


def test_a_folder_that_cannot_be_read_is_listed_and_a_pipe_is_not_waited_for(tmp_path, monkeypatch):
    closed = tmp_path / "runs" / "closed"
    closed.mkdir(parents=True)
    if hasattr(os, "mkfifo"):
        (tmp_path / "runs" / "model").mkdir()
        for name in ("pipe", "bias.json", "anchor.json", "run.json", "forgotten.jsonl", "votes.csv"):
            os.mkfifo(tmp_path / "runs" / name)
    scan = os.scandir

    def scandir(path):
        if os.fspath(path) == str(closed):
            raise PermissionError(13, "Permission denied", str(closed))
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert [(t.path, t.goes) for t in forget(TOM, runs=[tmp_path / "runs"])] == [(closed, False)]


def test_wrong_places_are_told(tmp_path, judgments):
    for where in ({"runs": [tmp_path / "nowhere"]}, {"states": [tmp_path / "state.json"]}):
        with pytest.raises(ConfigError, match="does not exist"):
            forget("7", **where)
    wrong = {"runs": judgments, "audits": judgments, "states": tmp_path}
    for name, path in wrong.items():
        with pytest.raises(ConfigError, match="is a (file|folder), but an? "):
            forget("7", **{name: [path]})
    with pytest.raises(ConfigError, match="is not a mapping"):
        find_people(["7"], mapping=judgments)
    with pytest.raises(DataError, match="no such file"):
        forget("7", data=[tmp_path / "nothing.csv"])
    (tmp_path / "votes.csv.gz").write_bytes(gzip.compress(b"annotator,x\n7,1\n8,2\n7,3\n"))
    with pytest.raises(
        DataError, match="badpo cannot remove the annotators' 2 rows from this file: 2, 4"
    ):
        forget("7", data=[tmp_path / "votes.csv.gz"])
    pd.DataFrame({"annotator": ["7", "8"], "x": ["1", "2"]}).to_feather(tmp_path / "votes.feather")
    with pytest.raises(DataError, match="badpo cannot remove the annotators' 1 row from this file: 1"):
        forget("7", data=[tmp_path / "votes.feather"])


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("Worker-3", "--data", "jan.csv", "feb.csv"), 2),
        (("Worker-3", "--audit", "audit", "runs"), 2),
        (("Worker-3", "Worker-33", "--data", "jan.csv"), 2),
        (("Worker-3", "", "--data", "jan.csv"), 2),
        (("Worker-3", "--data", "jan.csv", "--data", "fab.csv"), 3),
        (("Worker-3", "--data", "jan.csv", "--state", "fab.json"), 2),
        (("Worker-33", "--data", "jan.csv"), 3),
        (("Worker-3", "--data", "jan.csv", "--column", "winner=annotator"), 2),
        (("Worker-3", "--data", "jan.csv", "--column", "annotator="), 2),
        (("Worker-3", "Worker-4", "Worker-3", "--data", "jan.csv", "--data", "feb.csv"), 0),
    ],
)
@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_a_call_of_which_a_word_is_not_understood_fails_and_changes_nothing(
    words, code, dry, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for name in ("audit", "runs"):
        (tmp_path / name).mkdir()
    for name in ("jan.csv", "feb.csv"):
        votes().to_csv(name, index=False)
    before = contents(tmp_path)
    found = invoke("forget", *words, *dry)
    assert found.exit_code == code, found.output
    assert (contents(tmp_path) == before) == bool(code or dry)
    if not code and not dry:
        assert {*pd.read_csv("feb.csv")["annotator"]} == {*PEOPLE} - {"Worker-3", "Worker-4"}
