"""Readings over seeds and within a run, and the share of DPO's shift that an arm removed."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from badpo.results.run_files import (
    MeasuredRuns,
    Readouts,
    Run,
    accuracy,
    estimate,
    gap,
    kl,
    moved,
    rate,
    removal,
    tokens,
    votes_minus_ceiling,
)


def run(arm: str, seed: int = 42, **readouts) -> Run:
    return Run(Path(f"{arm}-s{seed}"), arm, seed, Readouts.model_validate(readouts))


def suite(*runs: Run) -> MeasuredRuns:
    return MeasuredRuns("suite", runs, ())


def rates(value: float, se: float | None = 0.01) -> dict:
    return {"woman": {"rate": value, "se": se}}


def test_one_seed_keeps_the_run_s_own_interval():
    found = estimate(suite(run("dpo", rates=rates(0.9, 0.02))), "dpo", rate("woman"))
    assert found.value == 0.9
    assert found.interval.low == pytest.approx(0.9 - 1.959964 * 0.02)
    assert found.values == (0.9,)


def test_several_seeds_give_student_s_t_over_the_seeds():
    runs = [run("dpo", seed, rates=rates(value)) for seed, value in ((42, 0.90), (123, 0.95), (456, 1.0))]
    found = estimate(suite(*runs), "dpo", rate("woman"))
    assert found.value == pytest.approx(0.95)
    assert found.interval.half_width == pytest.approx(4.302653 * 0.05 / math.sqrt(3), rel=1e-6)
    assert found.seeds == (42, 123, 456)


def test_what_was_not_measured_is_none():
    measured = suite(run("dpo", rates=rates(0.9)))
    assert estimate(measured, "pooled", rate("woman")) is None
    for read in (rate("black"), tokens, gap("woman"), kl, accuracy("votes", "woman", "all")):
        assert estimate(measured, "dpo", read) is None
    empty = run("dpo", votes={"woman": {"A": {"accuracy": None, "n": 0}}})
    assert estimate(suite(empty), "dpo", accuracy("votes", "woman", "A")) is None


def test_sampled_rates_stand_in_where_there_are_no_probabilities():
    sampled = {"n": 10, "woman": {"rate": 0.7, "low": 0.6, "high": 0.8, "n": 8}}
    found = estimate(suite(run("dpo", sampled=sampled)), "dpo", rate("woman"))
    assert (found.value, found.interval.low, found.interval.high) == (0.7, 0.6, 0.8)
    both = run("dpo", sampled=sampled, rates=rates(0.9))
    assert estimate(suite(both), "dpo", rate("woman")).value == 0.9


def test_accuracy_without_a_standard_error_gets_wilson_s_interval():
    votes = {"woman": {"all": {"accuracy": 1.0, "n": 10}}}
    found = estimate(suite(run("pooled", votes=votes)), "pooled", accuracy("votes", "woman", "all"))
    assert found.interval.high == 1.0
    assert found.interval.low == pytest.approx(1 - 0.2775, abs=1e-3)


def test_votes_minus_ceiling_uses_the_paired_readout_else_the_difference():
    votes = {"woman": {"all": {"accuracy": 0.70, "n": 10}}}
    ceiling = {"woman": {"all": {"accuracy": 0.74, "n": 10}}}
    paired = {"woman": {"all": {"difference": -0.05, "low": -0.06, "high": -0.04}}}
    read = votes_minus_ceiling("woman", "all")
    assert estimate(
        suite(run("pooled", votes=votes, ceiling=ceiling)), "pooled", read
    ).value == pytest.approx(-0.04)
    with_pairs = run("pooled", votes=votes, ceiling=ceiling, votes_minus_ceiling=paired)
    assert estimate(suite(with_pairs), "pooled", read).interval.high == -0.04


def test_share_removed_and_log_odds_by_hand():
    found = removal(
        suite(
            run("reference", 0, rates=rates(0.5)),
            run("dpo", rates=rates(0.96)),
            run("pooled", rates=rates(0.55)),
        ),
        "pooled",
        rate("woman"),
        is_rate=True,
    )
    assert found.share.value == pytest.approx(0.41 / 0.46)
    assert found.distance.value == pytest.approx(math.log(0.55 / 0.45))


def test_no_share_where_dpo_did_not_move_by_more_than_its_interval():
    still = suite(
        run("reference", 0, rates=rates(0.50, 0.02)),
        run("dpo", rates=rates(0.54, 0.02)),
        run("pooled", rates=rates(0.51)),
    )
    assert moved(still, rate("woman")).high == pytest.approx(0.04 + 1.959964 * math.hypot(0.02, 0.02))
    assert removal(still, "pooled", rate("woman"), is_rate=True).share is None
    assert removal(still, "pooled", rate("woman"), is_rate=True).distance.value > 0


def test_seeds_that_disagree_withhold_the_share_too():
    reference = run("reference", 0, rates=rates(0.56))
    dpo = [run("dpo", seed, rates=rates(v)) for seed, v in ((42, 0.60), (123, 0.55), (456, 0.62))]
    assert not moved(suite(reference, *dpo), rate("woman")).excludes(0.0)


def test_the_share_is_taken_seed_by_seed_over_the_seeds_that_both_arms_have():
    runs = [run("reference", 0, rates=rates(0.5))]
    runs += [run("dpo", seed, rates=rates(v)) for seed, v in ((1, 0.90), (2, 0.95), (3, 0.92))]
    runs += [run("pooled", seed, rates=rates(v)) for seed, v in ((2, 0.59), (3, 0.71), (4, 0.99))]
    found = removal(suite(*runs), "pooled", rate("woman"), is_rate=True).share
    assert found.seeds == (2, 3)
    assert found.values == pytest.approx((0.36 / 0.45, 0.21 / 0.42))


def test_lengths_keep_their_unit():
    runs = [
        run(arm, tokens={"mean": mean, "se": 1.0})
        for arm, mean in (("reference", 288), ("dpo", 384), ("pooled", 335))
    ]
    found = removal(suite(*runs), "pooled", tokens, is_rate=False)
    assert found.distance.value == pytest.approx(47)
    assert found.share.value == pytest.approx(49 / 96)
