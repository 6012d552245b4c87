from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from badpo.data.problems import DataError
from badpo.data.tables import read_table

ROWS = [
    {"prompt": "Why?", "chosen": "So, it is.", "rejected": "No", "annotator": "0123"},
    {"prompt": "How?", "chosen": 'He said "yes"\nand left', "rejected": "NA", "annotator": "7"},
]


def unreadable(source) -> str:
    with pytest.raises(DataError) as caught:
        read_table(source)
    (problem,) = caught.value.problems
    assert problem.code == "E102"
    return str(problem)


def written(folder, name: str):
    path = folder / name
    frame = pd.DataFrame(ROWS)
    if path.suffix.lower() == ".csv":
        frame.to_csv(path, index=False)
    elif path.suffix == ".tsv":
        frame.to_csv(path, index=False, sep="\t")
    elif path.suffix == ".parquet":
        frame.to_parquet(path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(ROWS))
    else:
        path.write_text("\n".join(json.dumps(row) for row in ROWS) + "\n")
    return path


@pytest.mark.parametrize("name", ["v.csv", "v.tsv", "v.parquet", "v.json", "v.jsonl", "v.ndjson", "V.CSV"])
def test_every_file_format_gives_the_same_cells(tmp_path, name):
    table = read_table(written(tmp_path, name))
    assert table.frame.to_dict("records") == ROWS
    assert table.name.endswith(name)


class Polars:
    """Anything that can hand out an Arrow table."""

    def to_arrow(self):
        return pa.Table.from_pylist(ROWS)


class DatasetSplit:
    """What is used of a split of the datasets library."""

    num_rows = 2

    def with_format(self, kind):
        assert kind == "arrow"
        return self

    def __getitem__(self, index):
        return pa.Table.from_pylist(ROWS)


@pytest.mark.parametrize(
    "source",
    [
        ROWS,
        tuple(ROWS),
        pd.DataFrame(ROWS, index=[3, 8]),
        pa.Table.from_pylist(ROWS),
        Polars(),
        DatasetSplit(),
    ],
    ids=lambda source: type(source).__name__,
)
def test_every_object_gives_the_same_cells(source):
    assert read_table(source).frame.to_dict("index") == dict(enumerate(ROWS))


def test_a_real_dataset_is_read():
    datasets = pytest.importorskip("datasets")
    assert read_table(datasets.Dataset.from_list(ROWS)).frame.to_dict("records") == ROWS
    assert "it holds several tables: train" in unreadable(
        datasets.DatasetDict(train=datasets.Dataset.from_list(ROWS))
    )


def test_semicolons_and_a_byte_order_mark_are_understood(tmp_path):
    path = tmp_path / "v.csv"
    path.write_bytes("\ufeffprompt;chosen;rejected\r\nWhy?;a, b;\r\n".encode())
    assert read_table(path).frame.to_dict("records") == [
        {"prompt": "Why?", "chosen": "a, b", "rejected": None}
    ]


@pytest.mark.parametrize("shape", ["many in a row", "one more in each row"])
def test_a_table_of_thousands_of_columns_is_refused(tmp_path, shape):
    """A frame has a cell for each row and name, so that each row with a name of its own costs the square."""
    names = [f"k{i}" for i in range(20_000)]
    rows = [dict.fromkeys(names, 1)] if shape == "many in a row" else [{name: 1} for name in names]
    path = tmp_path / "v.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "20,000 names of cells together" in unreadable(path)
    assert len(read_table([dict.fromkeys(names[:2_000], 1)]).frame.columns) == 2_000


def test_rows_know_their_lines(tmp_path):
    table = read_table(written(tmp_path, "v.csv"))
    assert table.lines.tolist() == [2, 3]
    path = tmp_path / "gaps.jsonl"
    path.write_text('{"a": 1}\n\n{"a": 2}\n')
    assert read_table(path).lines.tolist() == [1, 3]
    path = tmp_path / "breaks.csv"
    path.write_text('a,b\n"x\ny",1\nz,2\n')
    assert read_table(path).lines.tolist() == [2, 4]


def test_long_cells_are_read_and_the_limit_is_put_back(tmp_path):
    import csv

    path, limit = tmp_path / "v.csv", csv.field_size_limit()
    path.write_text("a,b\n" + "x" * 200_000 + ",1\n")
    assert len(read_table(path).frame["a"][0]) == 200_000
    assert csv.field_size_limit() == limit


def test_large_whole_numbers_stay_exact_beside_missing_ones(tmp_path):
    pa_table = pa.table({"id": pa.array([2**53 + 1, None], pa.int64())})
    assert read_table(pa_table).frame["id"].tolist() == [2**53 + 1, None]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('a,b\n"x,1\n', "line 2"),
        (
            "a,b\n1,2\n1,2,3\n1\n",
            "the header has 2 columns, but 2 rows have another number: line 3 has 3, line 4 has 1",
        ),
    ],
)
def test_broken_csv_names_the_line(tmp_path, content, message):
    path = tmp_path / "v.csv"
    path.write_text(content)
    assert message in unreadable(path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "v.jsonl",
            b'{"a": 1}\n{"a": \n[1]\n',
            "2 lines are no JSON objects: line 2: Expecting value; line 3: not an object",
        ),
        ("v.json", b'{"a": 1}', "it holds no list"),
        ("v.json", b"[1, {}]", "1 rows are no objects with named cells, first: row 1"),
        ("v.json", b"[", "write a JSON list of objects"),
        ("v.csv", b"a\n\xff\n", "byte 2 is not UTF-8"),
        ("v.parquet", b"PAR1 and nothing", "export the table again"),
        ("v.xlsx", b"", 'files that end in ".xlsx" are not known'),
    ],
)
def test_unreadable_files_say_why(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    assert message in unreadable(path)


def test_a_missing_file_and_a_folder_say_so(tmp_path):
    (tmp_path / "votes.csv").write_text("a\n1\n")
    assert 'there is no such file. Did you mean "votes.csv"?' in unreadable(tmp_path / "vote.csv")
    assert "it is a folder" in unreadable(tmp_path)
    (tmp_path / ".absent.parquet.lock").touch()
    assert "there is no such file.\n" in unreadable(tmp_path / "absent.parquet")


@pytest.mark.parametrize("source", [3, np.zeros(2), {"train": ROWS}, ["row"]], ids=str)
def test_what_is_no_table_is_refused(source):
    unreadable(source)


def test_an_empty_csv_has_no_rows(tmp_path):
    path = tmp_path / "v.csv"
    path.write_text("a,b\n")
    assert list(read_table(path).frame.columns) == ["a", "b"]
    assert len(read_table(path).frame) == 0
