"""What DPO's signatures rest on, from readouts of a few names."""

from __future__ import annotations

import json

import pytest

from badpo_paper.name_readouts import FIRST_NAMES
from badpo_paper.suites import Corpus
from badpo_paper.tables import SHIFT_TITLE, TOKENS_TITLE, Found, name_tables

SEEDS = (42, 123)


def signatures(**shares: float) -> dict:
    return {"signatures": dict.fromkeys(FIRST_NAMES, 0.0) | shares}


def write(folder, name: str, readouts: dict) -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / "readouts.json").write_text(json.dumps(readouts), encoding="utf-8")


def test_the_shift_is_the_mean_over_seeds_and_hangs_on_one_name(tmp_path):
    write(tmp_path, "reference", signatures(Emily=0.4, Jamal=0.1))
    write(tmp_path, "dpo-s42", signatures(Latisha=0.9))
    write(tmp_path, "dpo-s123", signatures(Latisha=0.7, Emily=0.1))
    (table,) = name_tables(Corpus("signed"), Found(tmp_path, SEEDS))
    assert table.panel.title == SHIFT_TITLE
    black = {c.label: cell.mean for c, cell in zip(table.columns, table.rows[1].cells, strict=True)}
    assert table.rows[1].label == "black"
    assert black["shift of the share"] == pytest.approx(0.8 - 0.1)
    assert black["three names' share"] == pytest.approx(1.0)
    assert black["shift without them"] == pytest.approx(-0.1)
    assert table.rows[1].cells[0].paper == (0.15, None) and table.rows[0].cells[0].paper is None


def test_tokens_stand_with_the_papers(tmp_path):
    tokens = {"n_names": 18, "mean_tokens": 2.0, "one_token_share": 0.0, "first_tokens": 9}
    write(tmp_path, "reference", {"name_tokens": {"black_woman": tokens | {"largest_first_share": 0.5}}})
    (table,) = name_tables(Corpus("signed"), Found(tmp_path, SEEDS))
    assert table.panel.title == TOKENS_TITLE and table.rows[0].label == "black woman"
    assert table.rows[0].cells[1].paper == (2.1, None)


def test_without_readouts_there_is_no_table(tmp_path):
    assert name_tables(Corpus("signed"), Found(tmp_path, SEEDS)) == []
