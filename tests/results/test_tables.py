"""The demo's table for a terminal, and the figures over seeds for a document."""

from __future__ import annotations

import math

import pytest

from badpo.results.tables import (
    demo_table,
    markdown_text,
    seed_rows,
    seeds_markdown,
)

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
        "theta_correlation": {"woman": 0.90, "black": 0.97},
        "votes": {arm: {"woman": by_class, "black": by_class} for arm in ("ceiling", *ARMS)},
        "votes_minus_ceiling": {"shared_mean": {"woman": {"all": votes - 0.75, "B": -0.01}}},
        "gap": dict.fromkeys(ARMS, 0.01),
        "kl": {"dpo": 0.031, "pooled": 0.0187, "shared_mean": 0.0204},
    }


def test_the_demo_is_told_in_ten_lines_of_plain_text():
    lines = demo_table(summary()).splitlines()
    assert len(lines) == 10
    assert max(map(len, lines)) <= 90
    assert demo_table(summary()).isascii()
    assert lines[4].split() == ["pooled", "0.55", "89", "%", "+0.20", "0.58", "88", "%", "-0.12", "0.0187"]
    assert lines[6] == "learned against planted theta: woman r = 0.90, black r = 0.97"
    assert lines[7] == "votes, woman: ceiling 0.740, DPO 0.740, pooled 0.740, shared mean 0.740"


def test_columns_stand_under_their_attribute():
    top, header, *rows = demo_table(summary()).splitlines()[:6]
    assert header.index("rate") - top.index("woman") in range(0, 4)
    assert header.rindex("rate") - top.index("black") in range(0, 4)
    ends = header.index("rate") + len("rate")
    assert [row[:ends].split()[-1] for row in rows] == ["0.50", "0.96", "0.55", "0.51"]


def test_a_share_that_was_withheld_is_blank():
    withheld = summary()
    withheld["removed"]["pooled"]["woman"] = None
    assert demo_table(withheld).splitlines()[4].split()[:3] == ["pooled", "0.55", "+0.20"]
    assert not any(
        r.reading == "removed" and r.arm == "pooled" and r.attribute == "woman" for r in seed_rows([withheld])
    )


def test_seeds_give_mean_and_student_s_interval():
    summaries = [summary(1, 0.54), summary(2, 0.55), summary(3, 0.56)]
    (row,) = [
        r for r in seed_rows(summaries) if (r.reading, r.arm, r.attribute) == ("rates", "pooled", "woman")
    ]
    assert row.interval.estimate == pytest.approx(0.55)
    assert row.interval.half_width == pytest.approx(4.302653 * 0.01 / math.sqrt(3), rel=1e-6)
    assert row.values == (0.54, 0.55, 0.56)
    assert "| pooled | woman | 0.550 | 0.525 to 0.575 | 0.540 | 0.550 | 0.560 |" in seeds_markdown(summaries)


def test_votes_minus_ceiling_is_paired_by_seed_overall_and_by_class():
    text = seeds_markdown([summary(1, votes=0.74), summary(2, votes=0.75), summary(3, votes=0.76)])
    section = text.split("### Votes predicted minus the planted ceiling")[1]
    assert (
        "| shared mean | woman | all | 0.000 | \u22120.025 to +0.025 | \u22120.010 | 0.000 | +0.010 |"
        in section
    )
    assert "| shared mean | woman | B | \u22120.010 |" in section


def test_the_reference_is_one_run_and_gets_no_interval():
    rows = [r for r in seed_rows([summary(1), summary(2)]) if r.reading == "rates" and r.arm == "reference"]
    assert all(math.isnan(row.interval.low) for row in rows)
    assert "| reference | woman | 0.500 | \u2013 | 0.500 | 0.500 |" in seeds_markdown(
        [summary(1), summary(2)]
    )


def test_every_markdown_row_has_the_columns_of_its_header():
    for block in seeds_markdown([summary(1), summary(2)]).split("### ")[1:]:
        table = [line for line in block.splitlines() if line.startswith("|")]
        assert len(table) > 2
        assert len({line.count("|") for line in table}) == 1, block


def test_markdown_cells_carry_no_markup():
    assert markdown_text("a|b\n<script>[x](y) `c` _d_ e_f") == (
        r"a\|b &lt;script&gt;\[x\](y) \`c\` \_d\_ e_f"
    )
