"""The checks say whether BA-DPO kept the bias out, and never call a failure a success."""

from pathlib import Path

import numpy as np
import pytest

from badpo.results.bias_check import bias_findings, check_bias
from badpo.results.run_files import BiasContent, MeasuredRuns, Readouts, Run
from badpo.theory.summaries import cluster_mean

N = 200
LENGTH = {"attributes": [{"type": "length", "name": "length"}]}
NOISE = np.random.default_rng(0).normal(size=N)
OWN = dict(
    zip(("dpo", "dpo_placebo", "pooled"), np.random.default_rng(1).normal(size=(3, N)), strict=True)
)


def run(
    arm: str, tilt: float | None, seed=42, tokens=20.0, drift=-0.05, typical=1.0, theta=None, fit=None
):
    """A run whose policy has about this tilt; what all policies share is larger than what is their own."""
    found: dict = {"by_prompt": {"tokens": {"sums": (tokens + NOISE).tolist(), "sizes": [1.0] * N}}}
    if tilt is not None:
        sums = (tilt + NOISE + 0.3 * OWN[arm]) * typical**2
        found["by_prompt"]["tilt/length"] = {"sums": sums.tolist(), "sizes": [typical**2] * N}
        unit = "coefficient per unit" if typical != 1 else "mean margin toward the attribute"
        found["tilt"] = {"length": {"tilt": tilt, "unit": unit, "typical": typical}}
        found["log_ratio"] = {"per_token": drift, "se": 0.01}
    found["theta"] = {"length": theta} if theta else {}
    parts = ["mean"] if arm == "pooled" else []
    bias = BiasContent.model_validate({"attributes": ["length"], "parts": parts, "extra": LENGTH})
    config = {"learning_rate": 1e-3, "bias": {"fit": fit} if fit else {}}
    return Run(Path(f"{arm}-s{seed}"), arm, seed, Readouts.model_validate(found), bias, config)


def suite(*runs: Run) -> MeasuredRuns:
    return MeasuredRuns("suite", runs, ())


def three(dpo: float, placebo: float | None, pooled: float, **of_pooled) -> MeasuredRuns:
    runs = [run("reference", None, seed=7, tokens=12.0), run("dpo", dpo, tokens=22.0)]
    runs += [run("dpo_placebo", placebo, tokens=18.0)] if placebo is not None else []
    return suite(*runs, run("pooled", pooled, **of_pooled))


def told(of: MeasuredRuns) -> str:
    text = [
        "\n".join([verdict.title, verdict.finding, *(": ".join(each) for each in verdict.sentences)])
        for verdict in bias_findings(of)
    ]
    return "\n".join(text).replace("\u00a0", " ").replace("\u2212", "-").replace("\u2019", "'")


def test_differences_are_paired_by_prompt():
    (check,) = check_bias(three(0.9, 0.1, 0.15))
    found = check.differences["dpo", "dpo_placebo"].interval
    expected = cluster_mean(0.8 + 0.3 * (OWN["dpo"] - OWN["dpo_placebo"]))
    assert (found.estimate, found.low) == pytest.approx((expected.estimate, expected.low))
    assert found.half_width < 0.5 * check.tilts["dpo"].interval.half_width
    assert check.target == "dpo_placebo"


@pytest.mark.parametrize(
    ("tilts", "outcome", "share"),
    [
        ((0.9, 0.1, 0.15), "removed", 0.94),
        ((0.9, None, 0.09), "removed", 0.9),  # minus zero, where no placebo is
        ((0.9, 0.1, -0.4), "overshoot", 1.62),
        ((0.9, 0.1, 1.0), "not nearer", -0.12),
        ((0.22, 0.1, 0.15), "nothing to remove", None),  # an excess that may be below 0.1
        ((0.15, 0.1, 0.6), "not nearer", None),  # a bias that no vote put there
        ((-0.9, -0.1, -0.12), "removed", 0.97),
    ],
)
def test_what_ba_dpo_did(tilts, outcome, share):
    (check,) = check_bias(three(*tilts))
    found = check.arms["pooled"]
    assert found.outcome == outcome
    assert (found.share is None) == (share is None)
    if share is not None:
        assert found.share == pytest.approx(share, abs=0.08)
    text = told(three(*tilts))
    assert ("It removed" in text) == (outcome == "removed" and share is not None)
    assert ("did not remove the bias" in text) == (outcome in ("overshoot", "not nearer"))
    assert ("no share removed is given" in text) == (outcome == "nothing to remove" or tilts[0] == 0.15)


LAGGING = {"level": 0.35, "implied": 0.96, "low": 0.8, "high": 1.12}


def test_a_failure_says_why_and_what_to_change():
    text = told(three(0.9, 0.1, 0.95, theta=LAGGING, fit="adam"))
    assert (
        "Theta ended at 0.35, but given the final policy the votes imply 0.96" in text
        and "--bias_fit anchored" in text
    )
    assert "learned too slowly" in text
    drifted = told(three(0.9, 0.1, 0.95, drift=-0.5))
    assert "the policy drifted far from the reference" in drifted
    assert "twice the max_steps" in told(three(0.9, 0.1, 0.95))
    fine = told(three(0.9, 0.1, 0.12, theta=LAGGING | {"level": 0.9}, fit="adam"))
    assert "should" not in fine


def test_small_units_have_a_small_threshold():
    """A tilt of 0.002 per word is one of 0.08 log-odds at the typical difference of 40 words."""
    small = suite(run("dpo", 0.004, typical=40.0), run("pooled", 0.0, typical=40.0))
    (check,) = check_bias(small)
    assert check.small == pytest.approx(0.1 / 40) and check.unit == "coefficient per unit"


def test_the_length_that_bias_adds_is_apart_from_dpos_own_drift():
    text = told(three(0.9, 0.1, 0.15))
    assert "The votes' bias adds +4.0 tokens" in text and "own drift adds +6.0 tokens" in text
    assert "own drift" not in told(three(0.9, None, 0.15))
    remedy = "lower the learning rate first"
    assert remedy not in text and remedy in told(three(0.9, 0.1, 0.15, drift=-0.4))


def test_several_seeds_are_paired_by_seed_and_other_rows_are_not_compared():
    runs = [
        run(arm, t + s / 100, seed=s) for arm, t in (("dpo", 0.9), ("pooled", 0.1)) for s in (1, 2, 3)
    ]
    (check,) = check_bias(suite(*runs))
    assert check.differences["pooled", "dpo"].values == pytest.approx([-0.8] * 3, abs=0.05)
    other = suite(run("dpo", 0.9), run("pooled", 0.1, typical=2.0))
    assert ("pooled", "dpo") not in check_bias(other)[0].differences
