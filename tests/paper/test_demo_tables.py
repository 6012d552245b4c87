"""The demo's table for a terminal, and the figures over seeds for a document."""

from __future__ import annotations

import json
import re

import numpy as np

from badpo.objective.bias import BiasTerm
from badpo.results.run_files import read_suite
from badpo_paper.demo import demo_table, learned_against_planted, seeds_markdown
from tests.results.suites import write_suite

ARMS = ("dpo", "pooled", "shared_mean")


def summary(seed: int = 42, pooled: float = 0.55, votes: float = 0.74) -> dict:
    rates = {
        "reference": {"woman": 0.50, "black": 0.53},
        "dpo": {"woman": 0.96, "black": 0.94},
        "pooled": {"woman": pooled, "black": 0.58},
        "shared_mean": {"woman": 0.51, "black": 0.50},
    }
    by_class = {"all": votes, "B": votes - 0.05}
    return {
        "seed": seed,
        "seconds": 512.3,
        "rates": rates,
        "removed": {"pooled": {"woman": 0.89, "black": 0.88}, "shared_mean": {"woman": 0.98, "black": 1.07}},
        "log_odds_distance": {arm: {"woman": 0.2, "black": -0.12} for arm in ARMS},
        "theta_correlation": {"woman": 0.90, "black": None},
        "votes": {arm: {"woman": by_class, "black": by_class} for arm in ("ceiling", *ARMS)},
        "votes_minus_ceiling": {"shared_mean": {"woman": {"all": votes - 0.75, "B": -0.01}}},
        "gap": dict.fromkeys(ARMS, 0.01),
        "kl": {"dpo": 0.031, "pooled": 0.0187, "shared_mean": 0.0204},
    }


def rows(summaries: list[dict], title: str) -> list[str]:
    """The rows of one table, with single spaces."""
    section = seeds_markdown(summaries).split(f"### {title}")[1].split("###")[0]
    return [re.sub(" +", " ", line) for line in section.splitlines() if line.startswith("| ")]


def test_the_demo_is_told_in_ten_lines_of_plain_text():
    lines = demo_table(summary()).splitlines()
    assert len(lines) == 10
    assert max(map(len, lines)) <= 90
    assert demo_table(summary()).isascii()
    assert lines[0].split() == ["seed", "42,", "512", "s", "woman", "black"]
    assert lines[2].split() == ["reference", "0.50", "0.53"]
    assert lines[4].split() == ["pooled", "0.55", "89", "%", "+0.20", "0.58", "88", "%", "-0.12", "0.0187"]
    assert lines[6] == "learned against planted theta: woman r = 0.90"
    assert lines[7] == "votes, woman: ceiling 0.740, DPO 0.740, pooled 0.740, shared mean 0.740"


def test_columns_stand_under_their_attribute():
    top, header, *body = demo_table(summary()).splitlines()[:6]
    assert abs(header.index("rate") - top.index("woman")) <= 3
    assert abs(header.rindex("rate") - top.index("black")) <= 3
    ends = header.index("rate") + len("rate")
    assert [row[:ends].split()[-1] for row in body] == ["0.50", "0.96", "0.55", "0.51"]


def test_a_share_that_was_withheld_is_blank():
    withheld = summary()
    withheld["removed"]["pooled"]["woman"] = None
    assert demo_table(withheld).splitlines()[4].split()[:3] == ["pooled", "0.55", "+0.20"]
    assert not any("pooled | woman" in row for row in rows([withheld], "Share of DPO's shift removed"))


def test_seeds_give_mean_and_student_s_interval():
    """4.302653 * 0.01 / sqrt(3) = 0.025; a reference is one run and gets no interval."""
    found = rows([summary(1, 0.54), summary(2, 0.55), summary(3, 0.56)], "Attribute rates")
    assert found[0] == "| Arm | Attribute | Mean | 95 % interval | seed 1 | seed 2 | seed 3 |"
    assert "| pooled | woman | 0.550 | 0.525 to 0.575 | 0.540 | 0.550 | 0.560 |" in found
    assert "| reference | woman | 0.500 | \u2013 | 0.500 | 0.500 | 0.500 |" in found


def test_votes_minus_ceiling_is_paired_by_seed_overall_and_by_class():
    summaries = [summary(1, votes=0.74), summary(2, votes=0.75), summary(3, votes=0.76)]
    found = rows(summaries, "Votes predicted minus the planted ceiling")
    told = "| shared mean | woman | all | 0.000 | \u22120.025 to +0.025 | \u22120.010 | 0.000 | +0.010 |"
    assert told in found
    assert any(row.startswith("| shared mean | woman | B | \u22120.010 |") for row in found)


def test_what_one_seed_lacks_is_left_out_of_the_mean():
    without = summary(2)
    del without["rates"]["pooled"]
    found = rows([summary(1, 0.54), without, summary(3, 0.56)], "Attribute rates")
    (row,) = [row for row in found if row.startswith("| pooled | woman |")]
    assert row.startswith("| pooled | woman | 0.550 |") and row.endswith("| 0.540 | \u2013 | 0.560 |")


def test_the_learned_theta_is_drawn_against_the_planted_one(tmp_path):
    """The points are everybody's pairs, in whatever order they are written; an arm with one theta for all has none."""
    folder = write_suite(tmp_path / "demo")
    path = folder / "shared_mean-s42" / "planted.json"
    planted = json.loads(path.read_text())
    theta = np.array([who["theta"] for who in planted["annotators"]])
    path.write_text(json.dumps(planted | {"annotators": planted["annotators"][::-1]}))
    figure = learned_against_planted(read_suite(folder))
    assert [title for title, _ in figure.panels] == ["woman-coded, shared mean", "black-coded, shared mean"]
    learned = BiasTerm.load(folder / "shared_mean-s42").theta().detach().numpy()
    r = np.corrcoef(theta[:, 0], learned[:, 0])[0, 1]
    assert f"woman-coded, shared mean r = {r:.2f};" in figure.caption
    assert sum(int(n) for n in re.findall(r"<title>class .: (\d+)<", figure.panels[0][1])) == 60
    rows = {row[0]: row[1:3] for row in figure.table.rows}
    assert rows["black-coded, shared mean, class A"] == ("20", f"{theta[:20, 1].mean():.2f}")
    pooled = read_suite(write_suite(tmp_path / "pooled", arms=("dpo", "pooled")))
    assert learned_against_planted(pooled) is None
