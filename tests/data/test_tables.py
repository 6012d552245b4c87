"""Tables of any kind: every file gives the same cells, names of columns are told, and what is written is inert."""

import csv
import gzip
import json
import re
import sys
import time
import tracemalloc
import zipfile
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from badpo.data.cells import Table, as_ids, as_messages, as_objects, numbered_cells
from badpo.data.judgments import Judgments
from badpo.data.layouts import recognise
from badpo.data.problems import DataError
from badpo.data.tables import _limit_data_segment, decoded, inert, read_table, write_csv
from badpo.data.vocabulary import KNOWN, columns_named, folded, side_of, side_pairs

ROWS = [
    {"prompt": "Why?", "chosen": "So, it is.", "rejected": "No", "annotator": "0123"},
    {"prompt": "How?", "chosen": 'He said "yes"\nand left', "rejected": "NA", "annotator": "7"},
]
NO_EXCEL = find_spec("openpyxl") is None
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)


def unreadable(source) -> str:
    with pytest.raises(DataError) as caught:
        read_table(source)
    (problem,) = caught.value.problems
    assert problem.code == "E102"
    return str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "v.csv",
        "v.tsv",
        "v.parquet",
        "v.json",
        "v.jsonl",
        "v.ndjson",
        "V.CSV",
        "v.csv.gz",
        "v.feather",
        "v.arrow",
    ],
)
def test_every_file_format_gives_the_same_cells(tmp_path, name):
    path, frame = tmp_path / name, pd.DataFrame(ROWS)
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    elif path.suffix == ".feather":
        frame.to_feather(path)
    elif path.suffix == ".arrow":
        with pa.ipc.new_stream(path, pa.table(frame).schema) as stream:
            stream.write_table(pa.table(frame))
    elif path.suffix.lower() in (".csv", ".tsv", ".gz"):
        frame.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")
    else:
        path.write_text(json.dumps(ROWS) if path.suffix == ".json" else LINES)
    table = read_table(path)
    assert table.frame.to_dict("records") == ROWS
    assert table.name == str(path)


def test_every_object_gives_the_same_cells():
    arrow = pa.concat_tables([pa.Table.from_pylist(ROWS[:1]), pa.Table.from_pylist(ROWS[1:])])
    polars = SimpleNamespace(to_arrow=lambda: arrow)
    frame = pd.DataFrame(ROWS)
    named, columns = frame.set_index(["prompt", "annotator"]), frame.to_dict("list")
    for source in (ROWS, tuple(ROWS), pd.DataFrame(ROWS, index=[3, 8]), named, columns, arrow, polars):
        assert read_table(source).frame.to_dict("index") == dict(enumerate(ROWS))
    assert [*read_table(named.rename_axis(index=["who", "who"])).frame][:2] == ["who", "who"]
    assert 'as source["train"]' in unreadable({"train": ROWS})
    assert all(unreadable(source) for source in (3, np.zeros(2), ["row"]))
    datasets = pytest.importorskip("datasets")
    read = read_table(datasets.Dataset.from_list(ROWS))
    assert (read.frame.to_dict("records"), read.name) == (ROWS, "the Dataset")
    assert [read_table(one).name for one in (ROWS, arrow)] == ["the rows given", "the Arrow table"]


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        ("\ufeffa;b;c\r\nWhy?;a, b;\r\n", [{"a": "Why?", "b": "a, b", "c": None}]),
        (f"a,b\n{'x' * 200_000},1\n", [{"a": "x" * 200_000, "b": "1"}]),
        ("a,b\n", []),
        ("Top\n\nprompt|chosen\nx, y; z|1\nprompt|chosen\n|\n", [{"prompt": "x, y; z", "chosen": "1"}]),
        ("prompt;chosen;;\nx;1;;\n", [{"prompt": "x", "chosen": "1"}]),
        (
            'prompt,chosen\nText,Answer\n"{""ImportId"":""Q1""}",y\n---,:--\nx,1\n',
            [{"prompt": "x", "chosen": "1"}],
        ),
        (
            '"prompt" "chosen"\n"1" "Why so?" "He said \\"yes\\" to it"\n"3" "x y" ""\n',
            [
                {"column_1": "1", "prompt": "Why so?", "chosen": 'He said "yes" to it'},
                {"column_1": "3", "prompt": "x y", "chosen": None},
            ],
        ),
    ],
    ids=[
        *("semicolons and a byte order mark", "a long cell", "a header alone"),
        *("a title, pipes, a repeated header and an empty row", "columns without a name"),
        *("a header in three forms, and a rule", "spaces, backslashes and row names, as of R"),
    ],
)
def test_a_csv_is_understood(tmp_path, content, rows):
    (tmp_path / "v.csv").write_bytes(content.encode())
    assert read_table(tmp_path / "v.csv").frame.to_dict("records") == rows


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16", "utf-16-le", "utf-16-be"])
def test_what_is_no_utf_8_is_read_and_said(tmp_path, encoding):
    (tmp_path / "v.csv").write_bytes("prompt,chosen\nCaf\u00e9 \u201cx\u201d?,y\n".encode(encoding))
    table = read_table(tmp_path / "v.csv")
    assert table.frame["prompt"].tolist() == ["Caf\u00e9 \u201cx\u201d?"]
    assert f"encoding {encoding}" in table.notes[0].what


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("gb18030", "编号,问题,回答\n1,天空为什么是蓝色的？,因为阳光被空气散开了\n"),
        ("big5", "編號,問題,回答\n1,為什麼天空是藍色的？,因為陽光照到空氣的時候會散開\n"),
        ("cp932", "番号,質問,回答\n1,空はなぜ青いのですか？,光が空気の中で散らばるからです。\n"),
        ("cp949", "번호,질문,대답\n1,하늘은 왜 파란가요?,빛이 흩어지기 때문입니다\n"),
        ("cp1251", "Номер,Вопрос,Ответ\n1,Почему небо голубое?,Потому что свет рассеивается\n"),
        ("cp1252", "Nr;Frage;Antwort\n1;Warum größer, Sören?;it\u2019s \u201ctrès\u201d schön\n"),
    ],
)
def test_encodings_before_utf_8_are_told_apart(tmp_path, encoding, text):
    (tmp_path / "v.csv").write_bytes(text.encode(encoding))
    assert decoded(tmp_path / "v.csv") == (text, encoding)


def test_folders_of_data_sets_are_read_without_the_package(tmp_path):
    frame = pd.DataFrame(ROWS)
    (tmp_path / "set" / "train").mkdir(parents=True)
    (tmp_path / "set" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    state = {"_data_files": [{"filename": "data-0.arrow"}]}
    (tmp_path / "set" / "train" / "state.json").write_text(json.dumps(state))
    arrow = pa.Table.from_pandas(frame)
    with pa.ipc.new_stream(tmp_path / "set" / "train" / "data-0.arrow", arrow.schema) as file:
        file.write_table(arrow)
    assert read_table(tmp_path / "set" / "train").frame.to_dict("records") == ROWS
    assert read_table(tmp_path / "set").frame.to_dict("records") == ROWS
    (tmp_path / "hub" / "data").mkdir(parents=True)
    for i, row in enumerate(ROWS):
        pd.DataFrame([row]).to_parquet(tmp_path / "hub" / "data" / f"train-{i}-of-2.parquet")
    assert read_table(tmp_path / "hub").frame.to_dict("records") == ROWS
    (tmp_path / "hub" / "data" / "test-0-of-1.parquet").write_bytes(b"")
    with pytest.raises(DataError, match="several tables: test, train") as caught:
        read_table(tmp_path / "hub")
    assert caught.value.problems[0].fix == {"source": f"{tmp_path / 'hub'}:test"}
    assert read_table(f"{tmp_path / 'hub'}:train").frame.to_dict("records") == ROWS


@pytest.mark.parametrize("name", ["..", "../other", ".", "votes.csv", "other/data", 7])
def test_a_data_set_names_only_its_own_folders(tmp_path, name):
    (tmp_path / "set" / "other" / "data").mkdir(parents=True)
    for folder in ("set", "other", "set/other/data"):
        (tmp_path / folder).mkdir(exist_ok=True)
        pd.DataFrame(ROWS).to_csv(tmp_path / folder / "votes.csv")
    for one in (name, str(tmp_path / "other") if name == ".." else name):
        (tmp_path / "set" / "dataset_dict.json").write_text(json.dumps({"splits": [one]}))
        with pytest.raises(DataError, match="which is not a folder in"):
            read_table(tmp_path / "set")


@pytest.mark.parametrize("kind", ["parquet", "arrow", "memory"])
def test_the_names_of_class_labels_stand_for_their_numbers(kind, tmp_path):
    names = {"_type": "ClassLabel", "names": ["response_a", "response_b", "tie"]}
    info = {"info": {"features": {"preference": names, "other": {"_type": "Value"}}}}
    numbers = pa.table({"preference": [1, 2, -1, 0], "other": [0, 1, 2, 3]})
    source = arrow = numbers.replace_schema_metadata({"huggingface": json.dumps(info)})
    if kind == "parquet":
        pq.write_table(arrow, source := tmp_path / "votes.parquet")
    elif kind == "arrow":
        source = tmp_path / "votes.arrow"
        with pa.ipc.new_stream(source, arrow.schema) as file:
            file.write_table(arrow)
    frame = read_table(source).frame
    assert frame["preference"].map(str).tolist() == ["response_b", "tie", "nan", "response_a"]
    assert frame["other"].tolist() == [0, 1, 2, 3]


def test_a_name_on_the_hub_is_read_where_no_file_is(monkeypatch):
    datasets = pytest.importorskip("datasets")
    splits = {split: datasets.Dataset.from_list(ROWS) for split in ("dev", "test")}
    asked = []

    def load(name, config, split, revision):
        asked.append((name, split))
        return splits[split] if split else splits

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert read_table("some-one/votes:test").frame.to_dict("records") == ROWS
    with pytest.raises(DataError, match="several tables: dev, test") as caught:
        read_table("some-one/votes")
    assert caught.value.problems[0].fix == {"source": "some-one/votes:dev"}
    with pytest.raises(DataError, match="(?s)^the file is not there:.*there is no such file"):
        read_table("tests/votes")
    assert asked == [("some-one/votes", "test"), ("some-one/votes", None)]
    splits["train"] = splits["dev"].select([1])
    table = read_table("some-one/votes")
    assert table.frame.to_dict("records") == ROWS[1:2] and table.name == "some-one/votes"


def test_rows_with_thousands_of_names_are_refused_and_large_numbers_stay_exact(tmp_path):
    """A frame has a cell for each row and name, so that each row with a name of its own costs the square."""
    names = [f"k{i}" for i in range(20_000)]
    (tmp_path / "v.jsonl").write_text("".join(json.dumps({name: 1}) + "\n" for name in names))
    assert "20,000 columns" in unreadable(tmp_path / "v.jsonl")
    assert len(read_table([dict.fromkeys(names[:2_000], 1)]).frame.columns) == 2_000
    table = pa.table({"id": pa.array([2**53 + 1, None], pa.int64())})
    assert read_table(table).frame["id"].tolist() == [2**53 + 1, None]


@pytest.mark.parametrize(
    ("name", "content", "lines"),
    [
        ("v.csv", 'a,b\n"x\ny",1\nz,2\n', [2, 4]),
        ("v.csv", "a,b\n1,2\n\n3,4\n", [2, 4]),
        ("v.jsonl", '{"a": 1}\n\n{"a": 2}\n', [1, 3]),
        ("v.jsonl", '{"a": 1}\r\n{"a":\r2}\n', [1, 2]),
    ],
)
def test_rows_know_their_lines(tmp_path, name, content, lines):
    (tmp_path / name).write_text(content)
    assert read_table(tmp_path / name).lines.tolist() == lines


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("v.csv", b'a,b\n"x,1\n', "line 2"),
        (
            "v.csv",
            b"a,b\n1,2\n1,2,3\n" + b"1\n" * 6,
            "7 rows have a different number of cells: line 3 has 3",
        ),
        ("v.csv", b"a,b\n" + b"1\n" * 7, "line 5 has 1, line 6 has 1 and 2 more"),
        ("v.csv", b"a\n\x81\n", "the file's encoding is neither UTF-8 nor UTF-16 nor cp1252"),
        (
            "v.csv",
            "a\n\u00e9\u00e8\u00ea".encode() + b"\xe9\n",
            "the file's encoding is neither UTF-8 nor",
        ),
        ("v.jsonl", b'{"a": 1}\n{"a": \n[\n', "2 lines are not JSON: line 2: Expecting value, line 3: "),
        (
            "v.jsonl",
            b'{"a": 1}\n[1]\n',
            "1 rows are not objects with names and values; the first of these is row 2",
        ),
        ("v.json", b'{"a": 1}', "it holds no list"),
        ("v.json", b'{"train": [{}, {}], "test": [{}]}', "several lists of objects: train, test"),
        (
            "v.json",
            b"[1, {}]",
            "1 rows are not objects with names and values; the first of these is row 1",
        ),
        ("v.json", b"[", "write a JSON list with one object"),
        ("v.parquet", b"PAR1 and nothing", "export the table again"),
        ("v.sql", b"", "sqlite3 new.db < "),
        ("v.arrow", b"ARROW1 and nothing", "export the table again"),
        ("v.xls", b"", 'badpo cannot read files that end in ".xls"'),
        (
            "v.xlsx",
            b"PK",
            "badpo reads Excel files with openpyxl" if NO_EXCEL else "it is not a workbook",
        ),
        (".absent.csv.lock", b"", "there is no such file.\n"),
        ("absnt.csv", b"", 'there is no such file. Did you mean "absnt.csv"?'),
        ("absnt.csv", b"", "absnt.csv')"),
        ("absent.csv/x", b"", "it holds no table"),
    ],
)
def test_unreadable_files_say_why(tmp_path, name, content, message):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    assert message in unreadable(tmp_path / "absent.csv" if "ab" in name else path)


def named(names, columns=None) -> Table:
    frame = pd.DataFrame([[f"its {name}" for name in names]], columns=names)
    return recognise(Table(frame, "votes.csv"), columns)


def wrong_columns(names, columns=None) -> list[str]:
    with pytest.raises(DataError) as caught:
        named(names, columns)
    return [str(problem) for problem in caught.value.problems]


def test_votes_on_a_and_b_come_first_mapped_columns_take_their_place_and_pairs_need_both_sides():
    names = ["chosen", "rejected", "annotator", "who", "comparison_id"]
    columns = {"annotator": "who", "comparison_id": None}
    sides = ["prompt", "response_a", "response_b", "winner"]
    for more, kind in (([], "chosen_rejected"), (sides, "a_b")):
        table = named([*names, *more], columns)
        assert table.kind == kind and set(table.theirs) <= set(table.frame.columns)
        assert table.frame["annotator"].tolist() == ["its who"] and "comparison_id" not in table.frame
    names = ["score_a", "score_b", "b_x", "a_x", "only_a", "arg_a_id", "arg_b_id", "a_to_b"]
    names += ["n_chosen", "n_rejected"]
    assert side_pairs(names) == {"score_a": "score_b", "a_x": "b_x", "n_chosen": "n_rejected"}


def test_missing_and_wrong_columns_are_all_named():
    (text,) = wrong_columns(["prompt", "chosn", "rejected"])
    assert 'columns missing: chosen. "chosen": Did you mean "chosn"?' in text
    assert "found: prompt, chosn, rejected" in text
    assert "response_b, winner" in wrong_columns(["prompt", "response_a"])[0]
    assert "badpo import" not in wrong_columns(["id", "data", "annotations"])[0]
    mapped = {"ANNOTATOR": "worker", "prompt_id": "promt", "weight": "wait", "worker": "annotator"}
    texts = wrong_columns(["prompt", "chosen", "rejected", "worker"], mapped)
    assert 'columns has no entry "ANNOTATOR". Did you mean "annotator"?' in texts[0]
    assert (
        len(texts) == 4 and '"annotator" is badpo\'s name and "worker" is the table\'s name' in texts[3]
    )
    assert 'column "promt" (for prompt_id) is not in the table. Did you mean "prompt"?' in texts[1]
    assert wrong_columns(["prompt", "respons_2", "choice"])[0].count("Did you mean") == 1
    (text,) = wrong_columns(["prompt", "chosen", "chosen", "rejected"])
    assert '2 columns are called "chosen"' in text


@pytest.mark.parametrize(
    ("names", "ours"),
    [
        (["Question", "Response A", "Response B"], "prompt response_a response_b"),
        (["instruction", "answer1", "answer2", "preferred"], "prompt response_a response_b winner"),
        (["prompt", "left_text", "right_text", "raterName"], "prompt response_a response_b annotator"),
        (["A", "B", "Prolific PID", "userInput"], "response_a response_b annotator prompt"),
        (["fields.prompt", "x.response_1.text", "x.response_2.text"], "prompt response_a response_b"),
        (["conversations", "chosen", "rejected", "Network ID"], "prompt chosen rejected annotator"),
        # either could be meant: neither is taken
        (["response_a", "response_b", "worker", "rater"], "response_a response_b"),
        (["answer_a", "answer_b", "text_a", "text_b"], ""),
        (["annotator_age", "judgement_time", "1", "2", "context", "#"], ""),
        (["INPUT:prompt", "ASSIGNMENT:worker_id"], "prompt annotator"),
    ],
)
def test_columns_are_known_by_what_people_call_them(names, ours):
    found = columns_named(names, KNOWN)
    assert found == dict(zip(ours.split(), names, strict=False))


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["0123", "123"], ["0123", "123"]),
        ([123, 123.0, np.int64(5), 1.5], ["123", "123", "5", "1.5"]),
        ([None, float("nan"), pd.NA, pd.NaT, "", "  ", "nan", "None"], [None] * 8),
        ([" a", "a "], [" a", "a "]),
        ([b"bytes", True], ["bytes", "True"]),
        (pd.Series([7, None, 8]), ["7", None, "8"]),
        (pd.Series(["x", None, "x"], dtype="category"), ["x", None, "x"]),
        (["w\0a", "w\0b", "w"], [r"w\x00a", r"w\x00b", "w"]),
    ],
)
def test_ids_are_text(cells, expected):
    ids = as_ids(cells)
    assert ids.tolist() == expected
    # also where pandas compares up to a NUL
    assert pd.Series(ids).nunique() == len({*expected} - {None})
    with pytest.raises(ValueError, match="not an identifier"):
        as_ids([{"id": 1}])


def test_distinct_texts_and_messages_are_numbered_and_empty_keys_go():
    messages, like = [{"role": "user", "content": "hi"}], '[{"content": "hi", "role": "user"}]'
    cells = ["hi", messages, None, "hi", np.array(messages, dtype=object), float("nan"), like]
    numbers, texts = numbered_cells(as_objects(cells))
    assert texts[numbers].tolist() == ["hi", messages, None, "hi", messages, None, like]
    assert numbers.tolist() == [0, 1, -1, 0, 1, -1, 3]
    parts = [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]
    cell = [{"role": "user", "content": parts, "name": "n", "tool_calls": None}]
    assert as_messages(cell) == [{"role": "user", "content": "xy", "name": "n"}]


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        (3, "it is of type int"),
        ({"from": "gpt"}, "the content of the assistant message is not text"),
        (["x"], "must have a role and content"),
        ([{"content": "x"}], "must have a role and content"),
        ([{"role": "user"}], "the content of the user message is not text"),
        ([{"role": "assistant", "tool_calls": [{"type": "function"}]}], "calls a tool and has no text"),
        ([{"role": "user", "content": [{"type": "image"}]}], "is not text"),
        ("\ud800", "half of a surrogate pair"),
        ([{"role": "user", "content": "\udc00"}], "half of a surrogate pair"),
    ],
)
def test_faulty_cells_say_why(cell, reason):
    numbers, texts = numbered_cells(as_objects([5j, "fine", cell, cell]))
    assert numbers.tolist() == [0, 1, 2, 2] and isinstance(texts[0], ValueError)
    assert texts[1] == "fine" and isinstance(texts[2], ValueError) and reason in str(texts[2])


def rows_of(path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


@pytest.mark.parametrize(
    "text",
    [
        "=1+1",
        "+1",
        "-1",
        "@S(A1)",
        "\t=1",
        "\n=1",
        "\uff1d1",
        "x;=c|'/c'!A1",
        "x; @S(A1);-1",
        'say "\n+1',
    ],
)
def test_a_formula_is_no_formula_any_more(text, tmp_path):
    """Whichever separator a spreadsheet expects: where it is a semicolon, quotes inside of a cell quote nothing."""
    write_csv(pd.DataFrame({"n": [1], "class": [text]}), tmp_path / "t.csv")
    cells = rows_of(tmp_path / "t.csv")[1]
    assert cells[1].replace("'", "") == text.replace("'", "")
    later = (tmp_path / "t.csv").read_text().replace("\n", ";").replace("\t", ";").split(";")
    for read in (cells, later):
        assert "'" in "".join(read)
        assert not [cell for cell in read if cell.lstrip().startswith(("=", "+", "-", "@", "\uff1d"))]


def test_numbers_stay_numbers_and_other_cells_become_text(tmp_path):
    columns = {
        "lean": [-0.5, np.nan, -np.inf],
        "n": [-3, 2, 1],
        "mixed": pd.Series([-1.5, "=x", None], dtype=object),
        "flag": [True, False, True],
        "=c": pd.Categorical(["-x", None, "y"]),
        "d": pd.to_datetime(["2024-01-02", None, "2024-01-03"]),
        "l": [["=1"], None, None],
    }
    frame = pd.DataFrame(columns)
    frame.columns = [*frame.columns[:-1], "=c"]
    write_csv(frame, tmp_path / "t.csv")
    assert rows_of(tmp_path / "t.csv") == [
        ["lean", "n", "mixed", "flag", "'=c", "d", "'=c"],
        ["-0.5", "-3", "-1.5", "True", "'-x", "2024-01-02 00:00:00", "['=1']"],
        ["", "2", "'=x", "False", "", "", ""],
        ["-inf", "1", "", "True", "y", "2024-01-03 00:00:00", ""],
    ]


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("a\x00b\x1b[31m", "a\\u0000b\\u001b[31m"),
        ("a\u202egpj.exe", "a\\u202egpj.exe"),
        *(("a\r=1", "a\\u000d=1"), ("a\r\nb", "a\nb"), ("\ud800", "\\ud800")),
        *[(text, text) for text in ("<b>", "a,b", 'say "so"', "two\nlines", "na\u00efve \U0001f600")],
    ],
)
def test_hostile_text_is_written_out_and_ordinary_text_comes_back(text, written, tmp_path):
    assert inert(text) == written
    write_csv(pd.DataFrame({"class": [text, "", "a-b"]}, dtype=object), tmp_path / "t.csv")
    assert rows_of(tmp_path / "t.csv") == [["class"], [written], [""], ["a-b"]]


def too_large(kind: str, folder):
    """A small file that would be a large table."""
    head, row = "prompt,response_a,response_b", "Why so?,Because it is so,No reason at all"
    path = folder / f"votes.{kind.split()[0]}"
    match kind:
        case "csv of counts":
            path.write_text(f"{head},votes_a,votes_b\n{row},1000000000,1\n")
        case "csv of names":
            path.write_text(",".join(f"answer {i} is better" for i in range(20_000)))
        case "csv.gz":
            path.write_bytes(gzip.compress(f"{head},winner\n".encode() + b"a" * 2**28, compresslevel=1))
        case "parquet of rows":
            cells = pa.DictionaryArray.from_arrays(np.zeros(6_000_000, dtype=np.int8), ["a b"])
            pq.write_table(pa.table(dict.fromkeys((*head.split(","), "winner"), cells)), path)
        case "parquet of deep lists":
            cells = pa.array([[0] * 2_000_000])
            for _ in range(30):
                cells = pa.ListArray.from_arrays(pa.array([0, len(cells)], pa.int32()), cells)
            pq.write_table(pa.table({"prompt": cells}), path)
        case "parquet of repeated texts in lists":
            cells = pa.DictionaryArray.from_arrays(np.zeros(100_000, dtype=np.int8), ["x" * 2**17])
            lists = pa.ListArray.from_arrays(pa.array([0, len(cells)], pa.int32()), cells)
            pq.write_table(pa.table({"prompt": lists}), path)
        case "arrow with large texts":
            cells = pa.array(["x" * 2**27] * 2, pa.large_string())
            schema = pa.schema({"prompt": cells.type})
            options = pa.ipc.IpcWriteOptions(compression="zstd")
            with pa.ipc.new_file(path.with_suffix(".arrow"), schema, options=options) as file:
                file.write(pa.record_batch([cells], schema))
            return path.with_suffix(".arrow")
        case "arrow with repeated bytes":
            cells = pa.DictionaryArray.from_arrays(np.zeros(1_000, dtype=np.int8), [b"x" * 2**23])
            with pa.ipc.new_file(path.with_suffix(".arrow"), pa.schema({"audio": cells.type})) as file:
                file.write(pa.record_batch([cells], ["audio"]))
            return path.with_suffix(".arrow")
        case "folder of shards":
            cells = pa.DictionaryArray.from_arrays(np.zeros(1_000, dtype=np.int8), ["x" * 2**24])
            path = path.with_suffix("")
            path.mkdir()
            for i in (0, 1):
                pq.write_table(pa.table({"prompt": cells}), path / f"train-0000{i}-of-00002.parquet")
        case "json of lists":
            path.write_text(json.dumps([{"prompt": "Why?", "responses": ["a"] * 30_000}]))
        case "jsonl":
            path.write_text("\n" * 5_000_001)
    return path


@pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
def test_a_parquet_file_with_another_encoding_of_texts_is_read(encoding, tmp_path):
    frame = pd.DataFrame(ROWS)
    encodings = dict.fromkeys(frame.columns, encoding)
    table = pa.Table.from_pandas(frame, preserve_index=False)
    pq.write_table(table, tmp_path / "v.parquet", use_dictionary=False, column_encoding=encodings)
    assert read_table(tmp_path / "v.parquet").frame.to_dict("records") == ROWS
    # texts with a common prefix, which a DELTA_BYTE_ARRAY encoding stores only once
    frame = pd.DataFrame({**ROWS[0], "chosen": [f"{'x' * 200_000}{i}" for i in range(400)]})
    table = pa.Table.from_pandas(frame, preserve_index=False)
    pq.write_table(table, tmp_path / "v.parquet", use_dictionary=False, column_encoding=encodings)
    if encoding == "DELTA_BYTE_ARRAY":
        assert "too large" in unreadable(tmp_path / "v.parquet")


LARGE = ["csv of counts", "csv of names", "csv.gz", "parquet of rows"]
LARGE += [
    "json of lists",
    "jsonl",
    "parquet of deep lists",
    "parquet of repeated texts in lists",
    "arrow with large texts",
    "arrow with repeated bytes",
    "folder of shards",
]


@pytest.mark.parametrize("kind", LARGE)
def test_a_table_that_would_be_too_large_is_refused_before_memory_is_taken(kind, tmp_path):
    path = too_large(kind, tmp_path)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="too large"):
            Judgments.read(path, columns={"annotator": None})
        assert tracemalloc.get_traced_memory()[1] < 2**29
    finally:
        tracemalloc.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a process")
@pytest.mark.parametrize("suffix", ["parquet", "json"])
def test_a_file_that_takes_more_memory_than_its_sizes_tell_is_refused(suffix, monkeypatch, tmp_path):
    path = tmp_path / f"votes.{suffix}"
    if suffix == "parquet":
        pq.write_table(pa.table({"a": np.zeros(2**28, np.int64)}), path)
    else:
        path.write_text('[{"a": [' + "{}," * 2**21 + "{}]}]")
    monkeypatch.setattr("badpo.data.tables.require_size", lambda *sizes: None)
    monkeypatch.setattr("badpo.data.tables._require_bytes", lambda *sizes: None)
    monkeypatch.setattr("badpo.data.tables._MOST_MEMORY", 2**26)
    monkeypatch.setattr("badpo.data.tables._MOST_MEMORY_TIMES", 1)
    assert "takes more than 0.1 GiB of memory" in unreadable(path)
    assert len(np.zeros(2**27).tobytes()) == 2**30  # the limit has ended


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a process")
def test_two_threads_that_read_tables_leave_no_limit_of_memory():
    import resource

    first, second = (_limit_data_segment(2**33) for _ in range(2))
    before = resource.getrlimit(resource.RLIMIT_DATA)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)  # the reader that started first ends first
    second.__exit__(None, None, None)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_lists_of_objects_without_unique_ids_are_not_joined_by_position(tmp_path):
    numbers = [0, 1, 2, 0]
    pairs = [
        {"pair_id": i, "prompt": f"q{i}", "response_a": "It is.", "response_b": "No."} for i in numbers
    ]
    votes = [{"pair_id": i, "winner": "a", "annotator": f"w{i}"} for i in numbers[::-1]]
    (tmp_path / "v.json").write_text(json.dumps({"pairs": pairs, "votes": votes}))
    assert "no ids join" in unreadable(tmp_path / "v.json")


def test_an_arrow_file_whose_texts_lie_outside_its_memory_is_refused(tmp_path):
    places = pa.py_buffer(np.array([0, 2_000_000, 2_000_064, 4], dtype=np.int32).tobytes())
    cells = pa.Array.from_buffers(pa.string(), 3, [None, places, pa.py_buffer(b"text")])
    with pa.ipc.new_file(tmp_path / "v.arrow", pa.schema({"prompt": cells.type})) as file:
        file.write(pa.record_batch([cells], ["prompt"]))
    assert "out of bounds" in unreadable(tmp_path / "v.arrow")


def test_an_arrow_file_that_stores_a_list_once_for_many_rows_is_refused(tmp_path):
    lists = pa.array([[1] * 100_000], pa.list_(pa.uint8()))
    cells = pa.DictionaryArray.from_arrays(np.zeros(16_000, dtype=np.int8), lists)
    with pa.ipc.new_file(tmp_path / "v.arrow", pa.schema({"audio": cells.type})) as file:
        file.write(pa.record_batch([cells], ["audio"]))
    assert "cannot read columns of the Arrow type dictionary" in unreadable(tmp_path / "v.arrow")


def test_rows_that_a_layout_would_make_are_counted_before_they_are_made(monkeypatch):
    monkeypatch.setattr("badpo.data.cells.MOST_ROWS", 100)
    pair = {
        "prompt": "Why is it so?",
        "response_a": "It is not so",
        "response_b": "It is so, since it is",
    }
    people = pd.DataFrame([{**pair, **{f"p{i}": "a" for i in range(9)}}] * 12)
    ranked = {f"response_{i}": f"Answer {i}" for i in range(1, 13)}
    ranking = pd.DataFrame([{"prompt": "Why?", **ranked, "ranking": "1"}] * 12)
    for table, options in ((people, {"layout": "wide"}), (ranking, {})):
        with pytest.raises(DataError, match="too large"):
            Judgments.read(table, **options)


def test_a_long_label_or_name_takes_no_long_search():
    for text in ("(" * 300_000, " " * 300_000 + "x"):
        assert folded(text) in ("", "x") and side_of(text) is None


def test_a_workbook_with_a_far_cell_is_refused(tmp_path):
    book = pytest.importorskip("openpyxl").Workbook()
    book.active.append(["prompt", "response_a"])
    book.active["XFD1048576"] = "x"
    book.save(tmp_path / "v.xlsx")
    assert "E102" in unreadable(tmp_path / "v.xlsx")


def patch_workbook(path: Path, part: str, old: str, new: str) -> None:
    """Replace a text in one part of a workbook."""
    with zipfile.ZipFile(path) as packed:
        parts = {name: packed.read(name) for name in packed.namelist()}
    assert old.encode() in parts[part]
    parts[part] = parts[part].replace(old.encode(), new.encode())
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in parts.items():
            packed.writestr(name, content)


SHEET, STYLES = "xl/worksheets/sheet1.xml", "xl/styles.xml"
HUGE = '<mergeCell ref="B5:XFD1048576"/>'
MANY = '<mergeCell ref="Y99:Z99"/>' * 1_500_000
RULES = '<conditionalFormatting sqref="A1"/>' * 1_500_000
OVERLAPPING = "".join(f'<mergeCell ref="A{i}:E{i + 10**6}"/>' for i in range(2, 2_000))


@pytest.mark.parametrize(
    ("part", "old", "new", "told"),
    [
        (SHEET, "</sheetData>", f"</sheetData><mergeCells>{HUGE}</mergeCells>", ""),
        (SHEET, "</sheetData>", f"</sheetData><mergeCells>{OVERLAPPING}</mergeCells>", "overlap"),
        (SHEET, "</sheetData>", f"</sheetData><mergeCells>{MANY}</mergeCells>", "250,000 merged ranges"),
        (SHEET, "</sheetData>", f"</sheetData>{RULES}", "250,000 merged ranges, rules"),
        (STYLES, "</fonts>", '<font><sz val="11"/></font>' * 200_000 + "</fonts>", "cell formats"),
    ],
    ids=["merged range", "overlapping ranges", "many ranges", "many rules", "cell formats"],
)
def test_the_form_of_a_small_workbook_exhausts_no_time(part, old, new, told, tmp_path):
    path, book = tmp_path / "v.xlsx", pytest.importorskip("openpyxl").Workbook()
    book.active.append(["prompt", "response_a", "response_b", "winner"])
    for i in range(9):
        book.active.append([f"why {i}", "so it is", "no", "a"])
    book.save(path)
    patch_workbook(path, part, old, new)
    start = time.process_time()
    if told:
        assert told in unreadable(path)
    else:
        assert read_table(path).frame["response_a"].nunique() == 1
    assert time.process_time() - start < 10


def test_the_limits_of_a_table_are_limits_of_all_sheets_of_a_workbook(tmp_path, monkeypatch):
    monkeypatch.setattr("badpo.data.cells.MOST_ROWS", 100)
    book = pytest.importorskip("openpyxl").Workbook()
    for i in range(30):
        sheet = book.create_sheet(f"s{i}")
        for _ in range(9):
            sheet.append(["prompt", "response_a"])
    book.save(tmp_path / "v.xlsx")
    assert "too large" in unreadable(tmp_path / "v.xlsx")


def test_a_notice_says_how_many_sheets_are_hidden(tmp_path):
    path, book = tmp_path / "v.xlsx", pytest.importorskip("openpyxl").Workbook()
    for sheet in (book.active, book.create_sheet("Tom")):
        sheet.append(["prompt", "response_a", "response_b", "winner"])
        for i in range(9):
            sheet.append([f"why {i}", "so it is", "no", "a"])
    book["Tom"].sheet_state = "veryHidden"
    book.save(path)
    (told,) = [str(note) for note in read_table(path).notes if "hidden" in str(note)]
    assert "1 of 2 sheets" in told and "Tom" not in told


def workbook(path, sheet: str, strings: str, declaration: str) -> None:
    """Three votes in a workbook, with these texts in place of the first prompt and of the shared string."""
    book = pytest.importorskip("openpyxl").Workbook()
    for row in [
        ["prompt", "response_a", "response_b", "winner"],
        *[["FIRST", "so it is", "no", "a"]] * 3,
    ]:
        book.active.append(row)
    book.save(path.with_suffix(".plain"))
    kind = "application/vnd.openxmlformats-officedocument.spreadsheetml.sharedStrings+xml"
    types = f'<Override PartName="/xl/sharedStrings.xml" ContentType="{kind}"/></Types>'
    strings = f"<si><t>{strings}</t></si>" * bool(strings)
    shared = f"<sst xmlns='http://schemas.openxmlformats.org/spreadsheetml/2006/main'>{strings}</sst>"
    with zipfile.ZipFile(path.with_suffix(".plain")) as read, zipfile.ZipFile(path, "w") as written:
        for name in read.namelist():
            text = read.read(name).decode()
            if name == "xl/worksheets/sheet1.xml":
                text = declaration + text.replace("FIRST", sheet)
                text = re.sub(r'<c r="C1".*?</c>', '<c r="C1" t="s"><v>0</v></c>', text)
            written.writestr(name, text.replace("</Types>", types))
        written.writestr("xl/sharedStrings.xml", declaration + shared)


NESTED = "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10}">' for i in range(1, 10))


@pytest.mark.parametrize(
    ("entities", "text"),
    [
        pytest.param(f'<!ENTITY l0 "lol">{NESTED}', "&l9;", id="nested"),
        pytest.param(f'<!ENTITY l0 "{"a" * 100_000}">', "&l0;" * 20_000, id="repeated"),
    ],
)
@pytest.mark.parametrize("is_shared", [True, False])
def test_a_workbook_whose_entities_grow_is_refused(entities, text, is_shared, tmp_path):
    texts = ("why", text) if is_shared else (text, "response_b")
    workbook(tmp_path / "v.xlsx", *texts, f"<!DOCTYPE a [{entities}]>")
    assert "E102" in unreadable(tmp_path / "v.xlsx")
    # the entities are what is refused: the same workbook without them is read
    workbook(tmp_path / "v.xlsx", "why", "response_b", "")
    assert Judgments.read(tmp_path / "v.xlsx").n_votes == 3


def test_a_workbook_that_names_a_text_it_lacks_is_no_workbook(tmp_path):
    workbook(tmp_path / "v.xlsx", "why", "", "")
    assert "E102" in unreadable(tmp_path / "v.xlsx")


def test_chat_messages_are_read_from_arrays_and_from_json_text(tmp_path):
    told = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So {it} is."}]
    row = {"chosen": told, "rejected": [told[0], {"role": "assistant", "content": "No."}]}
    frame = pd.DataFrame([{**row, "annotator": who} for who in "xyz"])
    frame.to_parquet(tmp_path / "v.parquet")
    frame.map(lambda cell: json.dumps(cell) if isinstance(cell, list) else cell).to_csv(
        tmp_path / "v.csv"
    )
    frame.to_csv(tmp_path / "python.csv")
    frame.map(lambda cell: np.array(cell) if isinstance(cell, list) else cell).to_csv(
        tmp_path / "numpy.csv"
    )
    frames = [Judgments.read(path).comparisons for path in sorted(tmp_path.iterdir())]
    assert len(frames) == 4
    for found in (*frames, Judgments.read(pd.read_parquet(tmp_path / "v.parquet")).comparisons):
        assert found["response_a"][0] == told[1:] and found["prompt"][0] == told[:1]
    # an answer may be JSON, and stays the text that it is
    texts = pd.DataFrame([{"prompt": "Give JSON", "chosen": '{"a": [1, 2]}', "rejected": "[3, 4]"}])
    texts.to_csv(tmp_path / "v.csv")
    assert Judgments.read(tmp_path / "v.csv").comparisons["response_a"][0] == '{"a": [1, 2]}'


def test_records_inside_an_object_of_counts_and_parquet_files_in_named_folders_are_read(tmp_path):
    names = ("prompt", "response_a", "response_b", "winner", "annotator")
    cells = (
        (f"p{i}?", f"long {i} " * 3, f"short {i}", "ab"[i % 3 == 0], f"w{i % 4}") for i in range(24)
    )
    votes = pd.DataFrame(cells, columns=names)
    path = tmp_path / "answer.json"
    hits = {"total": {"value": len(votes)}, "hits": votes.to_dict("records")}
    path.write_text(json.dumps({"took": 12, "_shards": {"total": 1}, "hits": hits}))
    folder = tmp_path / "votes.parquet"
    for annotator, rows in votes.groupby("annotator"):
        (folder / f"annotator={annotator}").mkdir(parents=True)
        file = folder / f"annotator={annotator}" / "part-0.parquet"
        rows.drop(columns="annotator").to_parquet(file)
    whole = Judgments.read(votes).votes["sign"].sum()
    for source in (path, folder):
        read = Judgments.read(source)
        assert (read.n_votes, read.votes["sign"].sum()) == (len(votes), whole)
        assert read.n_annotators == votes["annotator"].nunique()
