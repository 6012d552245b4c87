"""A statistic agrees with a published one when it rounds to it."""

from __future__ import annotations

import pytest

from badpo_paper.corpora import bundled, signed, ultrafeedback
from badpo_paper.corpora.published import GateRow, Published, compared, gate_text


@pytest.mark.parametrize(
    ("found", "published", "decimals", "agrees"),
    [(0.5866, 0.587, 3, True), (0.5864, 0.587, 3, False), (30_847, 30_847, 0, True), (None, 0.99, 2, False)],
)
def test_rounding_decides(found, published, decimals, agrees):
    assert GateRow("x", found, published, decimals).agrees is agrees


def test_what_is_missing_is_no_figure_and_does_not_agree():
    (row,) = compared({"pairs": {"swap": 1}}, [Published(("swap_log_odds", "woman", "all"), 0.95, 2)])
    assert row.found is None and not row.agrees
    assert "| - | 0.95 | **differs** |" in gate_text([row])


def test_the_plan_alone_gives_every_published_statistic_that_needs_no_text():
    """7,177 pairs of other texts and scores: counts, class means, cross-group shares and swap pairs are the paper's."""
    found = ultrafeedback.gate(signed.build(bundled.scored_pairs(7177), seed=0))
    rows = compared(found, ultrafeedback.PUBLISHED_PLAN)
    assert len(rows) == 22 and [row.name for row in rows if not row.agrees] == []


def test_other_pairs_give_other_figures():
    found = ultrafeedback.gate(signed.build(bundled.scored_pairs(500), seed=1))
    assert sum(row.agrees for row in compared(found, ultrafeedback.PUBLISHED_PLAN)) < 8
