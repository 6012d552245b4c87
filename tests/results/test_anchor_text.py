"""Whose rate the policy keeps: the start, what fixes the level, the reference's own rate; and that no one is named."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from safetensors.numpy import load_file

from badpo.results.model_card import model_card
from badpo.results.run_files import read_run, read_suite
from badpo.results.run_page import report_html, settings
from badpo.results.verdicts import anchor_of_run, anchor_sentences, limits
from tests.results.suites import write_suite, write_tensors

GOLD = ["ann_0000000003", "ann_0000000007"]


def changed(folder, **changes):
    """A run whose bias.json says otherwise; keys of ``extra`` are named extra_KEY."""
    content = json.loads((folder / "bias.json").read_text())
    for name, value in changes.items():
        place, key = (content["extra"], name[6:]) if name.startswith("extra_") else (content, name)
        place[key] = value
    (folder / "bias.json").write_text(json.dumps(content))


@pytest.fixture
def suite(tmp_path):
    return write_suite(tmp_path / "demo")


def text(folder) -> str:
    return "\n".join(anchor_sentences(read_suite(folder)))


@pytest.mark.parametrize(("arm", "name"), [("pooled_warm", "warm pooled"), ("pooled_audit", "pooled")])
def test_each_arm_is_said_to_be_anchored_as_it_is(suite, arm, name):
    (suite / "pooled-s42").rename(suite / f"{arm}-s42")
    readouts = json.loads((suite / f"{arm}-s42" / "readouts.json").read_text())
    (suite / f"{arm}-s42" / "readouts.json").write_text(json.dumps({**readouts, "arm": arm}))
    told = text(suite)
    assert "Anchored at the reference: BA-DPO (shared mean). Theta starts at zero" in told
    (warm,) = re.findall(r"with a warm start: ([^.]*)", told)
    assert name in warm and "shared mean" not in warm
    assert "Without an anchor: DPO." in told
    assert "gold" not in told


def test_the_reference_has_its_own_rate_and_tilt(suite):
    told = text(suite)
    assert "own p(woman-coded) is 0.52 (95\u00a0% interval 0.50 to 0.54)" in told
    assert "its tilt from one half is +0.08 in log-odds" in told  # log(0.52 / 0.48)
    (suite / "reference" / "readouts.json").unlink()
    assert "The reference\u2019s own rate was not measured: woman-coded, black-coded." in text(suite)


def test_the_reference_alone_anchors_nothing(suite):
    assert anchor_sentences(read_suite(suite / "reference")) == []


@pytest.mark.parametrize(
    ("mean", "difference", "told"),
    [
        (3e-8, 3e-7, "All 3 runs start at the reference: the mean margin of the first step is 0"),
        (
            -0.42,
            0.2,
            "1 of 3 runs do not start at the reference: their first log-probabilities are not its own, and the mean "
            "margin of the first step, which is 0 there, is up to \u22120.42",
        ),
    ],
)
def test_the_first_margin_is_told(suite, mean, difference, told):
    recorded = {"mean": mean, "difference": difference, "tolerance": 1e-5}
    changed(suite / "pooled-s42", extra_first_margin=recorded)
    assert told in text(suite)


def test_without_a_first_step_nothing_is_claimed(suite):
    for run in suite.glob("*-s42"):
        changed(run, extra_first_margin=None)
    assert "was not recorded" in text(suite)
    changed(suite / "pooled-s42", extra_first_margin={"mean": 0.0, "difference": 0.0, "tolerance": 1e-5})
    assert "The run starts at the reference" in text(suite)
    assert "It was not recorded for 2 others." in text(suite)


def test_gold_annotators_are_counted_and_said_to_carry_the_level(suite):
    folder = suite / "shared_mean-s42"
    changed(folder, gold_annotators=GOLD, extra_gold_votes={"woman": 1204, "black": 980})
    assert anchor_of_run(read_run(folder)) == "gold"
    told = text(suite)
    assert (
        "Anchored by gold annotators: BA-DPO (shared mean). There theta of fewer than 5 gold annotators"
        in told
    )
    assert (
        "responses that differ (woman-coded 1,200, black-coded 980), not on the reference\u2019s rate" in told
    )
    assert "Anchored at the reference: BA-DPO (pooled)." in told
    assert "except for BA-DPO (shared mean), whose level gold annotators fix" in " ".join(
        limits(read_suite(suite))
    )
    page = report_html(read_suite(suite))
    assert "Whose rate the policy keeps" in page and "theta of fewer than 5 gold annotators" in page
    card = model_card(folder)
    assert "In training, theta of fewer than 5 gold annotators" in card
    assert not any(name in document for name in GOLD for document in (page, card, told))


def test_settings_count_gold_annotators(suite):
    (suite / "dpo-s42" / "config.yaml").write_text(
        json.dumps({"bias": {"variant": "pooled", "gold_annotators": GOLD}, "beta": 0.1})
    )
    assert ("bias", "variant: pooled, gold_annotators: 2") in settings(read_suite(suite))


def test_the_card_means_over_those_whose_theta_was_learned(tmp_path):
    """Otherwise the zeros of gold annotators would thin out the lean, and with it the number of people behind it."""
    suite = write_suite(tmp_path / "demo", n_annotators=12)
    folder = suite / "shared_mean-s42"
    names = json.loads((folder / "bias.json").read_text())["annotators"]
    tensors = load_file(folder / "bias.safetensors")
    tensors["deviation"] = np.zeros_like(tensors["deviation"])
    tensors["mean"] = np.array([1.5, 0.25], dtype=np.float32)
    for n_gold, told, n in ((6, "+1.50", "10"), (9, "not shown (fewer than 5 annotators)", "fewer than 5")):
        changed(folder, gold_annotators=names[:n_gold])
        description = json.loads((folder / "bias.json").read_text())
        write_tensors(folder, tensors | {"mask": np.arange(12) >= n_gold}, description)
        card = model_card(folder)
        assert f"| {told} |" in card
        assert f"over {n} annotators" in card
