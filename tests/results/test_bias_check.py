"""The checks say whether BA-DPO removed the bias, why a result is empty, and which command comes next."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from badpo.results.bias_check import bias_findings, bias_verdicts, check_bias, outcome_of
from badpo.results.run_files import BiasContent, MeasuredRuns, Readouts, Run
from badpo.results.run_page import page_notices
from badpo.theory.summaries import Interval, cluster_mean, ratio_of_sums
from tests.results.plain import plain

N = 200
LENGTH = {"attributes": [{"type": "length", "name": "length"}]}
NOISE = np.random.default_rng(0).normal(size=N)
OWN = dict(
    zip(("dpo", "dpo_placebo", "pooled"), np.random.default_rng(1).normal(size=(3, N)), strict=True)
)
BIASED = {"level": 0.9, "offline": 0.9, "offline_low": 0.7, "offline_high": 1.1}


def run(
    arm: str,
    tilt: float | None,
    seed=42,
    tokens=20.0,
    drift=-0.05,
    typical=1.0,
    theta=None,
    fit=None,
    noise=0.3,
    kl=0.03,
    training=(1e-3, 100),
    recipe=True,
) -> Run:
    """A run whose policy has about this tilt; the noise that policies share is larger than their own noise."""
    found: dict = {"by_prompt": {"tokens": {"sums": (tokens + NOISE).tolist(), "sizes": [1.0] * N}}}
    found["tokens"] = {"mean": tokens, "se": 0.1}
    if tilt is not None:
        sums = (tilt + noise / 0.3 * NOISE + noise * OWN[arm]) * typical**2
        found["by_prompt"]["tilt/length"] = {"sums": sums.tolist(), "sizes": [typical**2] * N}
        unit = "coefficient per unit" if typical != 1 else "mean margin toward the attribute"
        found["tilt"] = {"length": {"tilt": tilt, "unit": unit, "typical": typical, "n_comparisons": N}}
        found["log_ratio"] = {"per_token": drift, "se": 0.01}
        found["kl"] = {"per_token": kl, "se": 0.01}
    if training:
        found["training"] = {"learning_rate": training[0], "steps": training[1]}
    found["theta"] = {"length": theta} if theta else {}
    parts = ["mean"] if arm == "pooled" else []
    bias = BiasContent.model_validate({"attributes": ["length"], "parts": parts, "extra": LENGTH})
    config = {"dataset_name": "../../votes.csv"} if recipe else {}
    config["bias"] = {"fit": fit} if fit else {}
    folder = Path("runs") / f"{arm}-s{seed}"
    return Run(folder, arm, seed, Readouts.model_validate(found), bias, config, is_made_here=True)


def suite(*runs: Run) -> MeasuredRuns:
    return MeasuredRuns("suite", runs, ())


def three(dpo: float, placebo: float | None, pooled: float, all_runs=None, **of_pooled) -> MeasuredRuns:
    shared = all_runs or {}
    runs = [run("reference", None, seed=7, tokens=12.0), run("dpo", dpo, tokens=22.0, **shared)]
    runs += [run("dpo_placebo", placebo, tokens=18.0, **shared)] if placebo is not None else []
    return suite(*runs, run("pooled", pooled, **shared | of_pooled))


def text_of(runs: MeasuredRuns) -> str:
    lines = [
        "\n".join([finding.title, finding.finding, *(": ".join(each) for each in finding.sentences)])
        for finding in bias_findings(runs)
    ]
    return plain("\n".join([*bias_verdicts(runs), *lines]))


def commands(runs: MeasuredRuns) -> list[str]:
    return text_of(runs).split("`")[1::2]


def test_differences_are_paired_by_prompt():
    (check,) = check_bias(three(0.9, 0.1, 0.15))
    found = check.differences["dpo", "dpo_placebo"].interval
    expected = cluster_mean(0.8 + 0.3 * (OWN["dpo"] - OWN["dpo_placebo"]))
    assert (found.estimate, found.low) == pytest.approx((expected.estimate, expected.low))
    assert found.half_width < 0.5 * check.tilts["dpo"].interval.half_width
    assert check.target == "dpo_placebo"
    share = check.arms["pooled"].share.interval
    removed = 0.75 + 0.3 * (OWN["dpo"] - OWN["pooled"])
    expected = ratio_of_sums(removed, 0.8 + 0.3 * (OWN["dpo"] - OWN["dpo_placebo"]))
    assert (share.estimate, share.low) == pytest.approx((expected.estimate, expected.low))


def interval(estimate: float, half: float) -> Interval:
    return Interval(estimate, half / 2, estimate - half, estimate + half, 50)


@pytest.mark.parametrize(
    ("left", "half", "outcome"),
    [
        (-0.056, 0.02, "removed"),  # beyond the target by 7 % of DPO's excess
        (-0.2, 0.15, "removed"),  # the interval reaches 6 %
        (-0.2, 0.05, "overshoot"),
        (-1.0, 0.05, "overshoot"),
        (0.35, 0.3, "removed"),
        (0.5, 0.1, "partly removed"),
        (0.8, 0.1, "not nearer"),
    ],
)
@pytest.mark.parametrize("direction", [1, -1])
def test_an_overshoot_lies_beyond_a_tenth_of_the_excess(left, half, outcome, direction):
    assert outcome_of(interval(0.8 * direction, 0.1), interval(left * direction, half)) == outcome


@pytest.mark.parametrize(
    ("tilts", "outcome", "share"),
    [
        ((0.9, 0.1, 0.15), "removed", 0.94),
        ((0.9, None, 0.09), "removed", 0.9),  # minus the reference's zero, if there is no placebo
        ((0.9, 0.1, -0.4), "overshoot", 1.62),
        ((0.9, 0.1, 1.0), "not nearer", -0.12),
        ((0.22, 0.1, 0.15), "nothing to remove", None),  # an excess that may be below 0.1
        ((0.15, 0.1, 0.6), "added", None),  # a bias that no vote has
        ((-0.9, -0.1, -0.12), "removed", 0.97),
    ],
)
def test_outcome_and_share(tilts, outcome, share):
    runs = three(*tilts)
    (check,) = check_bias(runs)
    found = check.arms["pooled"]
    assert found.outcome == outcome
    assert (found.share is None) == (share is None)
    (verdict,) = bias_verdicts(runs)
    if share is not None:
        assert found.share.value == pytest.approx(share, abs=0.08)
        is_success = outcome == "removed"
        assert (f"{100 * found.share.value:.0f} %" in plain(verdict)) == is_success
    assert ("0.1 log-odds" in text_of(runs)) == (share is None)


LAGGING = {"level": 0.35, "implied": 0.96, "low": 0.8, "high": 1.12}


def test_a_failure_says_why_and_gives_the_command():
    lagging = three(0.9, 0.1, 0.95, theta=LAGGING, fit="adam")
    assert "0.35" in text_of(lagging) and "0.96" in text_of(lagging)
    config = "badpo train --config runs/pooled-s42/config.yaml"
    assert commands(lagging) == [f"{config} --bias_fit anchored --output_dir runs-2 --compare"]
    slower = f"{config} --learning_rate 0.0002 --output_dir runs-2 --compare"
    for tilt in (-0.4, 0.95, 0.6):  # an overshoot, a failure and half a success
        assert commands(three(0.9, 0.1, tilt)) == [slower]
        assert commands(three(0.9, 0.1, tilt, training=None)) == []
    drifted = text_of(three(0.9, 0.1, 0.95, drift=-0.5))
    assert "0.3 nats per token" in drifted and slower in drifted
    assert commands(three(0.9, 0.1, 0.12, theta=LAGGING | {"level": 0.9}, fit="adam")) == []


NO_BIAS = {"level": 0.0, "offline": -0.08, "offline_low": -0.27, "offline_high": 0.1}


def test_an_empty_result_has_a_reason_and_a_next_command():
    """The votes show no bias; the evaluation is too small; training was too short; DPO did not learn the bias."""
    none = three(0.12, 0.1, 0.1, {"theta": NO_BIAS})
    assert "log-odds -0.08, 95 % confidence interval -0.27 to +0.10" in text_of(none)
    assert commands(none) == ["badpo audit votes.csv"]
    few = three(0.26, 0.1, 0.1, {"theta": BIASED, "noise": 0.9})
    assert f"with {N} held-out comparisons" in text_of(few)
    config = "badpo train --config runs/pooled-s42/config.yaml"
    assert commands(few) == [f"{config} --held_out 0.3 --output_dir runs-2 --compare"]
    short = three(0.0005, 0.0, 0.0001, {"theta": BIASED, "kl": 1e-6, "training": (1e-6, 20), "noise": 0})
    (verdict,) = bias_verdicts(short)
    assert all(text in verdict for text in ("20 steps", "1e-06", "nats per token"))
    assert commands(short) == [
        f"{config} --learning_rate 3e-05 --max_steps 100 --output_dir runs-2 --compare"
    ]
    moved = three(0.02, 0.0, 0.0, {"theta": BIASED, "kl": 0.2, "noise": 0})
    assert commands(moved) == [f"{config} --max_steps 300 --output_dir runs-2 --compare"]


def test_a_run_without_held_out_votes_or_dpo_has_notices_with_commands():
    """If the policy hardly changed, DPO would hardly change either, so both are trained again."""
    config = "badpo train --config runs/pooled-s42/config.yaml"
    told = {kl: run("pooled", 0.001, kl=kl, training=(1e-6, 1000)) for kl in (1e-6, 0.03)}
    told[0.03] = replace(told[0.03], config={**told[0.03].config, "held_out_name": "../../votes.csv"})
    little, enough = ("\n".join(page_notices(suite(one))) for one in told.values())
    assert f"`{config} --learning_rate 0.0002 --output_dir runs-2 --compare`" in little
    assert f"`{config} --compare`" in enough and "--learning_rate" not in enough
    assert ["on its own training votes" in text for text in (little, enough)] == [False, True]


def test_a_lower_learning_rate_is_advised_only_if_the_excess_stays_large_enough():
    small, large = three(0.5, 0.1, -0.1), three(1.3, 0.1, -0.2)
    assert [check_bias(one)[0].arms["pooled"].outcome for one in (small, large)] == ["overshoot"] * 2
    assert commands(small) == [] and "--learning_rate 0.0002" in commands(large)[0]


def test_small_effects_are_printed_with_enough_digits():
    (check,) = check_bias(three(0.0013, 0.0, 0.0002, {"noise": 0}))
    assert plain(check.number(0.0013)) == "+0.0013" and plain(check.number(-0.00021)) == "-0.0002"
    (check,) = check_bias(three(0.2, 0.0, 0.002, {"noise": 0.01}))
    assert check.arms["pooled"].share and plain(check.number(0.002)) == "+0.002"


def test_small_units_have_a_small_threshold():
    """A tilt of 0.002 per word is one of 0.08 log-odds at the typical difference of 40 words."""
    small = suite(run("dpo", 0.004, typical=40.0), run("pooled", 0.0, typical=40.0))
    (check,) = check_bias(small)
    assert check.small == pytest.approx(0.1 / 40) and check.unit == "coefficient per unit"


def test_without_dpo_there_is_no_verdict_and_without_a_placebo_the_share_says_so():
    alone = suite(run("pooled", 0.1))
    assert bias_verdicts(alone) == [] and check_bias(alone)[0].arms["pooled"].outcome == "not compared"
    assert commands(three(0.9, None, 0.09)) == [
        "badpo train --config runs/pooled-s42/config.yaml --compare"
    ]


def test_the_length_that_bias_adds_is_apart_from_dpos_own_drift():
    title = "Length of the answers"
    text = text_of(three(0.9, 0.1, 0.15))
    assert "+4.0 tokens" in text and "+6.0 tokens" in text and title in text
    assert title not in text_of(three(0.9, None, 0.15))
    without_bias = text_of(three(0.12, 0.1, 0.1, {"theta": NO_BIAS}))
    assert "+6.0 tokens" in without_bias and "+4.0 tokens" not in without_bias
    remedy = "Against the drift"
    assert remedy not in text and remedy in text_of(three(0.9, 0.1, 0.15, {"drift": -0.4}))


def test_several_seeds_are_paired_by_seed_and_other_rows_are_not_compared():
    tilts = (("dpo", 0.9), ("pooled", 0.1))
    runs = [run(arm, t + s / 100, seed=s) for arm, t in tilts for s in (1, 2, 3)]
    (check,) = check_bias(suite(*runs))
    assert check.differences["pooled", "dpo"].values == pytest.approx([-0.8] * 3, abs=0.05)
    assert len(check.arms["pooled"].share.values) == 3
    other = suite(run("dpo", 0.9), run("pooled", 0.1, typical=2.0))
    assert ("pooled", "dpo") not in check_bias(other)[0].differences
