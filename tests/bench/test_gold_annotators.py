"""The page about gold annotators: what is compared with what, and that a case without a run has no row."""

from __future__ import annotations

import json

import pytest

from bench import gold_page
from bench.gold_annotators import CASES, gold_numbers


def test_gold_annotators_are_spread_over_the_classes():
    assert gold_numbers(5, 60) == [0, 12, 24, 36, 48]
    assert gold_numbers(60, 60) == list(range(60))


@pytest.fixture
def page(tmp_path, monkeypatch):
    monkeypatch.setattr(gold_page, "PAGE", tmp_path / "page.md")

    def write(name: str, seed: int | None, rate: float) -> None:
        folder = tmp_path / (name if seed is None else f"{name}-s{seed}")
        folder.mkdir()
        readouts = {
            "rates": {"woman": {"rate": rate, "se": 0.01}},
            "theta": {"woman": {"level": 1.1, "planted_level": 0.9}},
            "kl": {"per_token": 0.2},
            "heldout": {"any": {"gap": 0.05}},
            "sampled": {"signed": 0.6},
        }
        (folder / "readouts.json").write_text(json.dumps(readouts))

    write("reference", None, 0.48)
    for seed, rate in ((42, 0.90), (123, 0.94)):
        write("dpo_unbiased", seed, rate)
        write("gold_10", seed, rate - 0.04)
    write("pooled", 42, 0.60)
    gold_page.write_page(
        tmp_path, CASES, (42, 123, 456), {"steps": 8, "batch": 4, "beta": 0.1, "reward": 0.8}
    )
    return (tmp_path / "page.md").read_text()


def test_rates_are_compared_at_the_same_seed(page):
    assert "| 10 gold | 2 | 0.880 (0.626 to 1.134) | \u22120.040 (\u22120.040 to \u22120.040) |" in page
    # of the pooled arm there is one seed, so its difference is from that seed and has no interval
    assert "| pooled, not told (10 lean nowhere) | 1 | 0.600 | \u22120.300 (beyond) |" in page
    assert "The reference's rate is 0.480." in page


def test_a_case_without_a_run_has_no_row(page):
    assert "20 gold" not in page
