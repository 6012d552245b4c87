"""The page about anchors: seeds keep their labels, differences are paired, and what is missed is named."""

from __future__ import annotations

import json

import pytest

from bench import anchoring
from bench.anchoring_page import write_page


def paired(before: float, difference: float, half: float = 0.001) -> dict:
    ends = {"ci_low": difference - half, "ci_high": difference + half}
    return {"before": before, "after": before + difference, "difference": difference, **ends}


def result(mode: str, target: float, *, signs: float = 0.0, kl: float = -0.01) -> dict:
    rate = {"rate": target, "low": 0.0, "high": 1.0, "n": 9}
    row = {"asked": target, "before": 0.98, "achieved": target + 0.01, "c": -0.5}
    moved = {
        "sampled": {name: {"before": rate, "after": rate} for name in ("woman", "black")},
        "editable": paired(0.5, signs),
        "ended": paired(0.6, 0.0),
        "tokens": {**paired(100.0, 1.0), "ratio": 1.01},
        "kl_source": {"per_token": 0.02, "n_generations": 40},
        "kl_reference": {"before": {"per_token": 0.24}, "after": {"per_token": 0.24 + kl}},
        "heldout": {"same": paired(0.6, 0.0), "gap": paired(0.07, -0.05)},
        "deviations": {"woman": 0.1, "black": 0.2},
    }
    step = {"intended": [-5.0, -4.0], "achieved": [-4.9, None], "rate": [target, target]}
    rounds = {"calibration": [step]} if mode == "train" else {}
    return {"woman": row, "black": row, "moved": moved, **rounds}


@pytest.fixture
def page(tmp_path):
    def write(mode: str, target: float, seed: int, **how) -> None:
        folder = tmp_path / f"dpo-s{seed}-{mode}-{target:g}"
        folder.mkdir()
        (folder / "anchor.json").write_text(json.dumps(result(mode, target, **how)))

    for target in (0.3, 0.5):
        # of the first seed nothing is there
        for seed, signs in ((123, 0.005), (456, 0.015)):
            write("sample", target, seed, kl=0.01 if (seed, target) == (456, 0.3) else -0.01)
            write("train", target, seed, signs=signs + (0.03 if target == 0.5 else 0.0))
    results = anchoring.finished(tmp_path)
    write_page(results, tmp_path / "page.md", tmp_path / "picture.svg")
    return (tmp_path / "page.md").read_text()


def test_a_missing_seed_shifts_no_label(page):
    assert "at seeds 123, 456." in page and "read on 10 others" in page
    rows = [line for line in page.splitlines() if line.startswith(("| 42 |", "| 123 |", "| 456 |"))]
    assert [line.split(" | ")[0] for line in rows] == ["| 123", "| 456"] * 2
    assert "| 123 | 0.3 | 1 | -5.00 | -4.00 | -4.90 | - | 0.300 | 0.300 |" in page


def test_differences_are_paired_with_an_interval_over_seeds_and_one_over_prompts(page):
    train = next(line for line in page.splitlines() if line.startswith("| train | 0.3 | 2 |"))
    assert "+0.010 (\u22120.054 to +0.074); +0.009 to +0.011: mean only" in train


def test_what_is_missed_is_named_with_its_target(page):
    (told,) = [line for line in page.splitlines() if line.startswith("Not everything")]
    assert "*signed within 0.03* is kept in the mean only at train 0.3 and missed at train 0.5" in told
    assert "*KL to the reference falls at every seed* is missed at sample 0.3" in told
    assert "tokens within" not in told and "same-group" not in told


def test_the_closed_form_is_no_measurement(page):
    assert "Of `sample`, same-group accuracy, gap and deviations are no measurement" in page
