from __future__ import annotations

import csv

import numpy as np
import pandas as pd
import pytest

from badpo.data.tables import inert, write_csv


def rows_of(path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


@pytest.mark.parametrize(
    "text",
    [
        "=1+1",
        "+1",
        "-1",
        "@SUM(A1)",
        "\t=1",
        "\n=1",
        "\uff1d1",
        "x;=cmd|'/c calc'!A1",
        "x; @SUM(A1);-1",
        'say "\n+1',
    ],
)
@pytest.mark.parametrize("separator", [",", ";"])
def test_a_formula_is_no_formula_any_more(text, separator, tmp_path):
    """Whichever separator a spreadsheet expects: where it is a semicolon, quotes inside of a cell quote nothing."""
    write_csv(pd.DataFrame({"n": [1], "class": [text]}), tmp_path / "t.csv")
    if separator == ",":
        cells = rows_of(tmp_path / "t.csv")[1]
        assert cells[1].replace("'", "") == text.replace("'", "")
    else:
        cells = (tmp_path / "t.csv").read_text().replace("\n", ";").replace("\t", ";").split(";")
    assert "'" in "".join(cells)
    assert not [cell for cell in cells if cell.lstrip().startswith(("=", "+", "-", "@", "\uff1d"))]


def test_numbers_stay_numbers(tmp_path):
    frame = pd.DataFrame(
        {
            "lean": [-0.5, np.nan, -np.inf],
            "n": [-3, 2, 1],
            "mixed": pd.Series([-1.5, "=x", None], dtype=object),
            "flag": [True, False, True],
        }
    )
    write_csv(frame, tmp_path / "t.csv")
    assert rows_of(tmp_path / "t.csv")[1:] == [
        ["-0.5", "-3", "-1.5", "True"],
        ["", "2", "'=x", "False"],
        ["-inf", "1", "", "True"],
    ]


def test_ordinary_text_and_quotes_come_back(tmp_path):
    texts = ["a,b", 'say "so"', "two\nlines", "na\u00efve \U0001f600", "a-b", ""]
    write_csv(pd.DataFrame({"class": texts}), tmp_path / "t.csv")
    assert [row[0] if row else "" for row in rows_of(tmp_path / "t.csv")[1:]] == texts


def test_hostile_text_is_written_out():
    assert inert("a\x00b\x1b[31m") == "a\\u0000b\\u001b[31m"
    assert inert("a\u202egpj.exe") == "a\\u202egpj.exe"
    assert inert("a\r=1") == "a\\u000d=1"
    assert inert("a\r\nb") == "a\nb"
    assert inert("\ud800") == "\\ud800"
    assert inert("<script>alert(1)</script>") == "<script>alert(1)</script>"
    long = inert("=" + "y" * 1_000_000)
    assert len(long) == 32_767
    assert long.endswith("(1,000,001 characters)")


def test_a_column_name_is_made_inert_too(tmp_path):
    write_csv(pd.DataFrame([[1, 2]], columns=["=a", "=a"]), tmp_path / "t.csv")
    assert rows_of(tmp_path / "t.csv") == [["'=a", "'=a"], ["1", "2"]]


def test_categories_and_dates(tmp_path):
    frame = pd.DataFrame(
        {"c": pd.Categorical(["-x", None]), "d": pd.to_datetime(["2024-01-02", None]), "l": [["=1"], None]}
    )
    write_csv(frame, tmp_path / "t.csv")
    assert rows_of(tmp_path / "t.csv")[1:] == [["'-x", "2024-01-02 00:00:00", "['=1']"], ["", "", ""]]
