"""The figures draw what the runs measured, and say so where they draw only a part."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from badpo.results.run_files import read_suite
from badpo.results.run_page import (
    figures,
    style_of,
    theta_over_steps,
    thinned,
)
from tests.results.suites import write_suite
from tests.results.test_charts import elements, ticks

OTHERS = ("per_annotator", "class", "shuffled_ids", "pooled_warm", "shared_mean_warm", "declared_subset")


@pytest.fixture(scope="module")
def every_arm(tmp_path_factory):
    """Ten arms; the later ones are copies of shared_mean under other names."""
    folder = write_suite(tmp_path_factory.mktemp("suite") / "all")
    for arm in OTHERS:
        copy = folder / f"{arm}-s42"
        shutil.copytree(folder / "shared_mean-s42", copy)
        readouts = json.loads((copy / "readouts.json").read_text())
        (copy / "readouts.json").write_text(json.dumps({**readouts, "arm": arm}))
    return read_suite(folder)


def test_every_arm_has_a_style_of_its_own(every_arm):
    assert len({style_of(every_arm, arm) for arm in every_arm.arms}) == len(every_arm.arms) == 10


def test_theta_over_steps_is_the_mean_over_seeds_without_arms_that_have_none(tmp_path):
    folder = write_suite(tmp_path / "demo", seeds=(1, 2))
    for seed, end in ((1, 0.4), (2, 0.8)):
        steps = [{"step": step, "bias/theta/woman": end * step / 100} for step in range(1, 101)]
        (folder / f"pooled-s{seed}" / "log.jsonl").write_text("\n".join(map(json.dumps, steps)))
    figure = theta_over_steps(read_suite(folder))
    assert ("woman-coded, pooled", "100", "0.600") in figure.table.rows
    assert "DPO" not in figure.legend
    assert "Mean over seeds of the learned bias term" in figure.caption


def test_votes_are_told_with_each_arm_s_own_ceiling(tmp_path):
    folder = write_suite(tmp_path / "demo")
    readouts = json.loads((folder / "pooled-s42" / "readouts.json").read_text())
    (figure,) = [f for f in figures(read_suite(folder)) if f.title == "Votes predicted"]
    rows = {row[0]: row[1:] for row in figure.table.rows}
    cell, own = readouts["votes_minus_ceiling"]["black"]["B"], readouts["votes"]["black"]["B"]
    assert rows["black-coded, class B, pooled"][0] == f"{own['accuracy']:.3f}"
    told = [f"{cell[key]:+.3f}".replace("-", "\u2212") for key in ("difference", "low", "high")]
    assert rows["black-coded minus own ceiling, class B, pooled"] == (told[0], f"{told[1]} to {told[2]}")


def test_thinned_points_keep_both_ends():
    assert thinned(range(1000), 4) == [0, 333, 666, 999]
    assert thinned([5, 6], 100) == [5, 6]


def test_rates_stand_between_nothing_and_everything_and_votes_beside_a_coin(every_arm):
    drawn = {figure.title: figure for figure in figures(every_arm)}
    for _, svg in drawn["Attribute rates"].panels:
        assert {"0.0", "1.0"} <= set(ticks(svg))
    for _, svg in drawn["Votes predicted"].panels:
        (coin,) = elements(svg, "line", "level")
        at = ticks(svg)
        (low, high) = sorted(at, key=float)[:2]
        per_unit = (at[high] - at[low]) / (float(high) - float(low))
        assert float(coin.get("x1")) == pytest.approx(at[low] + (0.5 - float(low)) * per_unit, abs=0.2)


def test_each_attribute_is_read_against_its_own_planted_mean(tmp_path):
    folder = write_suite(tmp_path / "demo")
    suite, planted = read_suite(folder), json.loads((folder / "pooled-s42" / "planted.json").read_text())
    means = np.mean([person["theta"] for person in planted["annotators"]], axis=0)
    assert abs(means[0] - means[1]) > 0.02
    for (_, svg), mean in zip(theta_over_steps(suite).panels, means, strict=True):
        (level,) = elements(svg, "line", "level")
        beside = [e for e in elements(svg, "text", "tick") if e.get("text-anchor") == "end"]
        at = sorted((float(e.text.replace("\N{MINUS SIGN}", "-")), float(e.get("y")) - 4) for e in beside)
        (low, below), (high, above) = at[0], at[-1]
        drawn = below + (mean - low) / (high - low) * (above - below)
        assert float(level.get("y1")) == pytest.approx(drawn, abs=0.2)
