"""Figures that are known of real tables of votes; skipped where the tables are not there."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from badpo.attributes import Length, Markdown, Position, Regex
from badpo.data.judgments import Judgments

FOLDER = Path(__file__).parents[3] / "shared" / "data"
UKP, MTBENCH, VICUNA = "ukpconvarg1_human.parquet", "mtbench_human_gpt4.parquet", "vicuna80_gpt4.parquet"

# The published Markdown figures of these tables come from a looser rule than that of `Markdown`: bullet characters
# count as bullets, and two asterisks count as bold without being closed.
LOOSE = Regex("loose", r"(?m)^\s*#{1,6}\s|^\s*[-*+\N{BULLET}]\s|^\s*\d+\.\s|\*\*|```|^\s*\|.*\|\s*$")


def path(name: str) -> Path:
    if not (FOLDER / name).is_file():
        pytest.skip(f"needs {name} in ../shared/data beside the project")
    return FOLDER / name


def read(name: str, *attributes) -> Judgments:
    return Judgments.read(path(name), attributes=attributes)


def figures(name: str, attribute) -> tuple[int, float, float, float]:
    (found,) = read(name, attribute).offline_log_odds()
    return found.n_cross, round(found.carrier_wins, 3), round(found.log_odds, 2), round(found.se_naive, 3)


@pytest.mark.parametrize(
    ("name", "votes", "comparisons", "annotators"),
    [(UKP, 84_445, 16_927, 3_815), (MTBENCH, 5_755, 2_400, 66), (VICUNA, 9_256, 4_407, 2)],
)
def test_sizes_with_ties(name, votes, comparisons, annotators):
    table = pd.read_parquet(path(name))
    table["winner"] = table["winner"].replace("tie", "a")
    judgments = Judgments.read(table)
    assert (judgments.n_votes, judgments.n_comparisons, judgments.n_annotators) == (
        votes,
        comparisons,
        annotators,
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (UKP, (40_558, 0.745, 1.07, 0.011)),
        (MTBENCH, (2_867, 0.756, 1.13, 0.043)),
        (VICUNA, (5_542, 0.808, 1.44, 0.034)),
    ],
)
def test_how_often_the_longer_response_wins(name, expected):
    assert figures(name, Length(ratio=1.5)) == expected


@pytest.mark.parametrize(
    ("name", "published", "by_our_rule"),
    [
        # 711 of 1,314 is +0.165; the published +0.17 is rounded once too often
        (UKP, (1_314, 0.541, 0.16, 0.055), (1_001, 0.635, 0.56, 0.066)),
        (MTBENCH, (603, 0.743, 1.06, 0.093), (595, 0.726, 0.97, 0.092)),
        (VICUNA, (3_059, 0.798, 1.37, 0.045), (3_059, 0.798, 1.37, 0.045)),
    ],
)
def test_how_often_the_markdown_side_wins(name, published, by_our_rule):
    assert figures(name, LOOSE) == published
    assert figures(name, Markdown()) == by_our_rule


def test_thirty_two_prompts_make_a_wider_interval():
    (found,) = read(UKP, Length(ratio=1.5)).offline_log_odds()
    assert found.se_clustered == pytest.approx(0.062, abs=0.001)


def test_how_often_the_first_shown_side_wins():
    (found,) = read(VICUNA, Position()).offline_log_odds()
    assert (found.n_cross, round(found.carrier_wins, 3)) == (9_117, 0.577)


def test_wrinkles_are_counted():
    findings = {}
    for name in (UKP, MTBENCH, VICUNA):
        table = pd.read_parquet(path(name))
        table["winner"] = table["winner"].replace("tie", "a")
        findings[name] = {problem.code: problem for problem in Judgments.read(table).findings}
    assert findings[UKP]["N139"].count == 448
    assert "75 judgments" in findings[UKP]["W131"].what
    assert "36 judgments" in findings[MTBENCH]["W131"].what
    assert findings[MTBENCH]["W133"].count == 1
    assert findings[VICUNA]["N131"].count == 4_397
    assert "W133" not in findings[VICUNA]


def test_ties_are_counted():
    dropped = read(UKP).dropped
    assert dropped["reason"].unique().tolist() == ["tie"]
    assert round(dropped["n"].sum() / 84_445, 3) == 0.226


def test_real_votes_read_back_the_same(tmp_path):
    judgments = read(UKP, Length())
    judgments.to_parquet(tmp_path / "j.parquet")
    again = Judgments.read(tmp_path / "j.parquet", attributes=[Length()])
    assert again.fingerprint() == judgments.fingerprint()
    assert again.dropped["n"].sum() == judgments.dropped["n"].sum()
