"""The page of tables at the scale of a laptop, from runs that are not there and from a few that are."""

from __future__ import annotations

import json
from pathlib import Path

from badpo.experiments import patterns
from badpo.experiments.suites import SUITES
from bench.pattern_causes import EXPLANATIONS, explanation, gap_by_prompt
from bench.results_tiny import PAGE, SEEDS, gains_section, page, time_section, votes_section


def test_minutes_are_the_seconds_of_the_runs_over_two_cores(tmp_path):
    timing = {"train_seconds": 200.0, "measure_seconds": 40.0, "peak_mib": 900, "threads": 1, "processors": 2}
    for name in ("reference", *(f"dpo-s{seed}" for seed in SEEDS)):
        (tmp_path / "style" / name).mkdir(parents=True)
        (tmp_path / "style" / name / "timing.json").write_text(json.dumps(timing), encoding="utf-8")
    told = time_section(tmp_path)
    assert "| attributes | 4 | 4 | 8.0 | 8.0 | 30 |" in told
    assert "4 of the 4 timed runs are of a version that kept the time on the clock alone" in told
    timing["processor_seconds"] = 120.0
    for name in ("reference", "dpo-s42"):
        (tmp_path / "style" / name / "timing.json").write_text(json.dumps(timing), encoding="utf-8")
    # two runs with 120 processor seconds, and two with 240 on the clock that count with 120
    assert "| attributes | 4 | 4 | 4.0 | 6.0 | 30 |" in time_section(tmp_path)
    assert "2 of the 4 timed runs" in time_section(tmp_path) and "with 120 s" in time_section(tmp_path)
    assert "| lora | 19 | 0 | 0.0 | 0.0 | 30 |" in told
    assert "Machine: 2 processors, 1 thread a run." in told


def test_nothing_that_was_run_makes_a_page_that_says_so(tmp_path):
    told = page(tmp_path)
    assert told.count("Not run.") == len(SUITES) + 2 and "None." in told
    assert "Machine: not known" in told and PAGE.name == "results_tiny.md"


def test_runs_that_are_begun_are_counted_on_real_votes(tmp_path):
    (tmp_path / "tiny-mtbench" / "style" / "dpo-s42").mkdir(parents=True)
    assert "`multipref-length`: 0 of 19 runs are there." in votes_section(tmp_path, ())


def test_the_gains_name_the_rule_and_end_in_one_sentence(tmp_path):
    rates = {"woman": {"rate": 0.5}, "black": {"rate": 0.5}}
    accuracy = {"woman": {"all": {"accuracy": 0.7}}, "black": {"all": {"accuracy": 0.7}}}
    readouts = {
        "rates": rates,
        "kl": {"per_token": 0.1},
        "heldout": {"any": {"same": 0.6}},
        "votes": accuracy,
    }
    for name in ("reference", *(f"{arm}-s{s}" for arm in ("pooled", "pooled_swap") for s in SEEDS)):
        (tmp_path / "signed" / name).mkdir(parents=True)
        (tmp_path / "signed" / name / "readouts.json").write_text(json.dumps(readouts), encoding="utf-8")
    told = gains_section(tmp_path)
    assert "| Pooled from the swap pairs' level | pooled | 3 training seeds | 0.000 (0.000 to 0.000)" in told
    assert "`warm_start: audit` is not recommended by this rule" in told


def test_every_explanation_is_of_a_pattern():
    source = Path(patterns.__file__).read_text(encoding="utf-8")
    for votes, known in EXPLANATIONS.items():
        for beginning, text in known.items():
            assert beginning in source, f"no pattern begins with {beginning!r} any more"
            assert explanation(f"{beginning} and so on", votes) == text
    assert explanation("SamPO does not close the gap", "other votes") == "Not explained."


def test_the_gap_over_prompts_is_told_for_each_seed(tmp_path):
    assert gap_by_prompt(tmp_path, SEEDS) == ""
    for seed, low in zip(SEEDS, (-0.2, -0.1, 0.0), strict=True):
        run = tmp_path / f"dpo-s{seed}"
        run.mkdir()
        found = {"heldout": {"length": {"gap_low": low, "gap_high": 0.1}}}
        (run / "readouts.json").write_text(json.dumps(found), encoding="utf-8")
    assert "\u22120.200 to +0.100; \u22120.100 to +0.100; 0.000 to +0.100." in gap_by_prompt(tmp_path, SEEDS)
