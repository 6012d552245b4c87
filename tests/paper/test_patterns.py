"""Every pattern of the paper: found in readouts that show it, not in others, and open where they cannot tell."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest

from badpo_paper.patterns import (
    PATTERNS,
    above,
    below,
    check,
    found_pattern,
    found_patterns,
    not_above,
    read,
    within,
)
from badpo_paper.suites import SUITES
from badpo_paper.tables import Found

SEEDS = (42, 123, 456)
# Of every condition its places, with one number for all seeds or one for each.
Numbers = Mapping[str, float | tuple[float, float, float]]
Readouts = Mapping[str, Numbers]


class Case(NamedTuple):
    """Readouts that show a pattern; for every reading of it, in their order, a change that turns it and the pattern; a
    change after which an interval reaches to both sides of a bound that allows for that."""

    holds: Readouts
    fails: Sequence[Readouts]
    wide: Readouts | None = None


def changed(readouts: Readouts, change: Readouts) -> Readouts:
    return {name: {**readouts.get(name, {}), **change.get(name, {})} for name in {**readouts, **change}}


def place_in(folder: Path, readouts: Readouts, seeds: Sequence[int] = SEEDS) -> Path:
    """Write the readouts of a panel's runs."""
    for name, numbers in readouts.items():
        for seed in seeds:
            told: dict = {}
            for place, number in numbers.items():
                *above_it, last = place.split(".")
                within_it = told
                for key in above_it:
                    within_it = within_it.setdefault(key, {})
                within_it[last] = number[SEEDS.index(seed)] if isinstance(number, tuple) else number
            run = folder / (name if name == "reference" else f"{name}-s{seed}")
            run.mkdir(parents=True, exist_ok=True)
            (run / "readouts.json").write_text(json.dumps(told), encoding="utf-8")
    return folder


def found_in(name: str, folder: Path, readouts: Readouts):
    return found_pattern(name, Found(place_in(folder, readouts), SEEDS))


# -- readouts that show the patterns ---------------------------------------------------------------------------

WOMAN, BLACK, TOKENS, KL = "rates.woman.rate", "rates.black.rate", "tokens.mean", "kl.per_token"
WIDE = (0.4, 0.6, 0.8)  # with a reference of 0.5 and DPO at 0.9: shares removed of 1.25, 0.75 and 0.25
ARMS = ("pooled", "shared_mean")


def rates(*seeds: float) -> Numbers:
    """Rates of both attributes, alike at every seed or one for each."""
    return dict.fromkeys((WOMAN, BLACK), seeds if len(seeds) > 1 else seeds[0])


def tokens(**conditions) -> Readouts:
    return {name.replace("__", "-"): {TOKENS: value} for name, value in conditions.items()}


def either(condition: str, rate) -> list[Readouts]:
    """Changes of one attribute's rate, and of the other's."""
    return [{condition: {place: rate}} for place in (WOMAN, BLACK)]


def gap(condition: str, attribute: str, *seeds: float) -> Readouts:
    return {condition: {f"heldout.{attribute}.gap": seeds if len(seeds) > 1 else seeds[0]}}


def ceiling(**values) -> Readouts:
    return {"shared_mean": {f"votes_minus_ceiling.black.{c}.difference": values[c] for c in values}}


def correlations(woman, black) -> Readouts:
    return {"shared_mean": {"theta.woman.correlation": woman, "theta.black.correlation": black}}


NAMES = {"reference": rates(0.5), "dpo": rates(0.9, 0.91, 0.92)}
NAMES_BA = {**NAMES, **dict.fromkeys(ARMS, rates(0.54, 0.55, 0.56))}
POOLED = {**NAMES, "pooled": rates(0.55)}
LENGTHS = tokens(reference=30.0, dpo=(40.0, 41.0, 42.0))
SHORTER = {**LENGTHS, **{f"{arm}-length": {TOKENS: (34.0, 34.5, 35.0)} for arm in ARMS}}
# DPO's gap and smaller ones of the variants, and changes by which they are not smaller
GAPS, WIDER = (
    {
        attribute: [gap(f"{arm}-{attribute}", attribute, *seeds) for arm in ARMS]
        for attribute in ("length", "markdown")
    }
    for seeds in ((0.01, 0.02, 0.02), (0.05, 0.11, 0.3))
)
SMALLER = {
    attribute: gap("dpo", attribute, 0.1, 0.11, 0.12) | each[0] | each[1]
    for attribute, each in GAPS.items()
}
LORA = {"dpo_lora": rates(0.8), "pooled_lora": rates(0.55), "dpo_lora_fast": rates(0.95, 0.96, 0.97)}

CASES: dict[str, Case] = {
    "amplifies_names": Case(NAMES, either("dpo", (0.45, 0.55, 0.6))),
    # of DPO's shift, surely something and surely less than half
    "removes_names": Case(
        NAMES_BA, [*either("pooled", (0.8, 0.81, 0.82)), *either("shared_mean", WIDE)]
    ),
    "kl_names": Case(
        {"dpo": {KL: (0.2, 0.21, 0.22)}, **dict.fromkeys(ARMS, {KL: 0.1})},
        [{arm: {KL: 0.3}} for arm in ARMS],
        wide={"pooled": {KL: (0.01, 0.2, 0.4)}},
    ),
    "agree_names": Case(
        NAMES_BA,
        either("shared_mean", (0.7, 0.71, 0.72)),
        wide={"shared_mean": {WOMAN: (0.45, 0.55, 0.65)}},
    ),
    "group_dro_names": Case({**NAMES, "group_dro": rates(0.88)}, either("group_dro", WIDE)),
    "theta_correlation": Case(
        correlations((0.93, 0.94, 0.95), 0.98),
        [correlations((0.88, 0.93, 0.98), 0.98), correlations((0.93, 0.94, 0.95), (0.86, 0.87, 0.88))],
    ),
    "class_names": Case(
        {**POOLED, "class": rates(0.53, 0.54, 0.55)},
        either("class", 0.7),
        wide={"class": {BLACK: (0.4, 0.55, 0.7)}},
    ),
    **{
        name: Case({**POOLED, arm: rates(0.7, 0.71, 0.72)}, either(arm, (0.5, 0.6, 0.7)))
        for name, arm in (("shuffled_names", "shuffled_ids"), ("free_names", "per_annotator"))
    },
    "undeclared_names": Case(
        {**NAMES, "declared_subset": {BLACK: (0.88, 0.89, 0.9)}}, [{"declared_subset": {BLACK: WIDE}}]
    ),
    "length_methods_names": Case(
        {**NAMES, "rdpo": rates(0.89), "sampo": rates(0.9)},
        [*either("rdpo", WIDE), *either("sampo", WIDE)],
    ),
    "samples_saturate": Case(
        {"dpo": {**NAMES["dpo"], "sampled.woman.rate": 0.97, "sampled.black.rate": 0.97}},
        [{"dpo": {"sampled.woman.rate": 0.8}}, {"dpo": {"sampled.black.rate": 0.8}}],
        wide={"dpo": {"sampled.woman.rate": (0.8, 0.9, 0.99)}},
    ),
    "votes_ceiling": Case(
        ceiling(A=(-0.001, 0.0, 0.001), B=0.0, C=0.0),
        [ceiling(A=-0.05), ceiling(B=-0.05), ceiling(C=0.05)],
        wide=ceiling(C=(-0.04, 0.0, 0.03)),
    ),
    "votes_chance": Case(
        {"pooled": {"votes.black.B.accuracy": (0.49, 0.5, 0.51)}},
        [{"pooled": {"votes.black.B.accuracy": (0.6, 0.61, 0.62)}}],
        wide={"pooled": {"votes.black.B.accuracy": (0.4, 0.5, 0.6)}},
    ),
    "lora_rate": Case(
        {"reference": rates(0.5), **LORA, "pooled_lora_fast": rates(0.75)},
        either("pooled_lora_fast", (0.5, 0.6, 0.75)),
    ),
    "amplifies_length": Case(LENGTHS, [tokens(dpo=(29.0, 31.0, 34.0))]),
    "removes_length": Case(SHORTER, [{f"{arm}-length": {TOKENS: (38.0, 41.0, 44.0)}} for arm in ARMS]),
    # a gap of DPO's own that is not above zero, with variants far below it
    "gap_length": Case(
        SMALLER["length"],
        [
            gap("dpo", "length", -0.02, 0.01, 0.03)
            | gap("pooled-length", "length", -0.3)
            | gap("shared_mean-length", "length", -0.3),
            *WIDER["length"],
        ],
    ),
    **{
        name: Case(gap(condition, attribute, *holds), [gap(condition, attribute, *fails)])
        for name, condition, attribute, holds, fails in (
            ("rdpo_gap", "rdpo", "length", (-0.05, -0.04, -0.03), (-0.05, 0.0, 0.02)),
            ("sampo_gap", "sampo", "length", (0.05, 0.06, 0.07), (-0.02, 0.01, 0.05)),
            ("gap_markdown", "dpo", "markdown", (0.05, 0.06, 0.07), (-0.02, 0.01, 0.05)),
        )
    },
    "group_dro_length": Case(
        LENGTHS | tokens(group_dro_annotators=(40.0, 40.5, 41.0)),
        [tokens(group_dro_annotators=(28.0, 37.0, 44.0))],
    ),
    "closes_markdown": Case(SMALLER["markdown"], WIDER["markdown"]),
    "rdpo_gap_markdown": Case(
        gap("rdpo", "markdown", -0.05, -0.04, -0.03) | gap("sampo", "markdown", 0.05, 0.06, 0.07),
        [gap("rdpo", "markdown", 0.01), gap("sampo", "markdown", -0.01)],
    ),
    "free_length": Case(
        LENGTHS | tokens(pooled__length=34.0, per_annotator__length=(37.0, 37.5, 38.0)),
        [tokens(per_annotator__length=(31.0, 35.0, 38.0))],
    ),
    "warm_length": Case(
        {**SHORTER, **{f"{arm}_warm-length": {TOKENS: (34.2, 34.6, 35.1)} for arm in ARMS}},
        [tokens(pooled_warm__length=31.0), tokens(shared_mean_warm__length=39.0)],
        wide=tokens(pooled_warm__length=(31.0, 34.5, 38.0)),
    ),
    "strong_rdpo": Case(
        tokens(rdpo=(32.0, 33.0, 34.0), rdpo_strong=(22.0, 22.5, 23.0)),
        [tokens(rdpo_strong=(22.0, 33.0, 40.0))],
    ),
}
ALLOW_FOR_WIDTH = [name for name, case in CASES.items() if case.wide]
# Patterns that read a share removed.
SHARES = {
    *("removes_names", "agree_names", "group_dro_names", "class_names", "shuffled_names", "free_names"),
    *("undeclared_names", "length_methods_names", "lora_rate", "removes_length", "group_dro_length"),
    *("free_length", "warm_length"),
}


# -- every pattern -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_is_reproduced_where_it_is_there_and_each_of_its_readings_can_fail_it(tmp_path, name):
    holds, fails, _ = CASES[name]
    shown = found_in(name, tmp_path / "holds", holds)
    assert (shown.verdict, shown.holds) == ("reproduced", True), shown.figures
    assert len(shown.figures) == len(fails)
    for place, change in enumerate(fails):
        found = found_in(name, tmp_path / str(place), changed(holds, change))
        assert (found.verdict, found.holds) == ("pattern not reproduced", False), found.figures
        assert found.figures[place] != shown.figures[place]


@pytest.mark.parametrize("name", ALLOW_FOR_WIDTH)
def test_an_interval_that_reaches_past_a_bound_decides_nothing(tmp_path, name):
    found = found_in(name, tmp_path, changed(CASES[name].holds, CASES[name].wide))
    assert (found.verdict, found.holds) == ("undecided", None), found.figures


@pytest.mark.parametrize("name", PATTERNS)
def test_what_is_not_measured_leaves_it_open(tmp_path, name):
    found = found_pattern(name, Found(tmp_path, SEEDS))
    assert (found.verdict, found.holds, found.is_begun) == ("not measured", None, False)
    assert all("not measured, 0 of 3 seeds" in figure for figure in found.figures)
    for condition in set(CASES[name].holds) - {"reference"}:
        folder = place_in(tmp_path / condition, CASES[name].holds)
        (folder / f"{condition}-s456" / "readouts.json").unlink()
        found = found_pattern(name, Found(folder, SEEDS))
        assert (found.verdict, found.holds) == ("not measured", None), condition
        assert any("not measured, 2 of 3 seeds" in figure for figure in found.figures), condition


@pytest.mark.parametrize("name", PATTERNS)
def test_where_one_seed_is_planned_its_value_decides(tmp_path, name):
    place_in(tmp_path, CASES[name].holds, seeds=SEEDS[:1])
    found = found_pattern(name, Found(tmp_path, SEEDS, dict.fromkeys(CASES[name].holds, SEEDS[:1])))
    assert found.verdict == "reproduced", found.figures
    assert all("one seed, no interval" in figure for figure in found.figures)


@pytest.mark.parametrize("name", PATTERNS)
def test_no_share_is_removed_of_a_shift_that_dpo_did_not_make(tmp_path, name):
    still = {**rates(0.45, 0.5, 0.58), TOKENS: (28.0, 30.0, 33.0)}
    unmoved = dict.fromkeys(("dpo", "dpo_lora", "dpo_lora_fast"), still)
    found = found_in(name, tmp_path, changed(CASES[name].holds, unmoved))
    reasons = ["own shift in" in figure for figure in found.figures]
    assert all(reasons) if name in SHARES else not any(reasons)
    if name in SHARES:
        assert (found.verdict, found.holds) == ("not measured", None)


class Asked(Found):
    """Readouts that note whose they were asked for."""

    def __init__(self, folder: Path):
        super().__init__(folder, SEEDS)
        self.conditions: set[str] = set()

    def planned(self, condition: str) -> tuple[int, ...]:
        self.conditions.add(condition)
        return super().planned(condition)


@pytest.mark.parametrize("name", SUITES)
def test_a_suite_plans_whatever_its_patterns_read(tmp_path, name):
    found = Asked(tmp_path)
    found_patterns(SUITES[name].patterns, [found])
    assert found.conditions <= {
        row.condition.name for panel in SUITES[name].panels for row in panel.rows
    }


def test_a_pattern_is_told_for_each_corpus_that_has_some_of_its_runs(tmp_path):
    one, other, empty = tmp_path / "signed", tmp_path / "signed-other", tmp_path / "style"
    place_in(one, NAMES)
    place_in(other, NAMES, seeds=SEEDS[:2])
    panels = [Found(folder, SEEDS) for folder in (one, other, empty)]
    told = found_patterns(("amplifies_names",), panels)
    assert [(found.verdict, found.sentence) for found in told] == [
        ("reproduced", "DPO amplifies both attributes (signed)"),
        ("not measured", "DPO amplifies both attributes (signed-other)"),
    ]
    (alone,) = found_patterns(("amplifies_names",), [panels[0], panels[2]])
    assert alone.sentence == "DPO amplifies both attributes"
    (none,) = found_patterns(("amplifies_names",), [panels[2]] * 2)
    assert none.verdict == "not measured"


# -- orders ----------------------------------------------------------------------------------------------------------


APART, ACROSS = (0.9, 1.0, 1.1), (-3.0, 1.0, 4.0)  # 0.752 to 1.248; -8.4 to 9.7
YES, NO, OPEN = "reproduced", "pattern not reproduced", "undecided"


@pytest.mark.parametrize(
    ("values", "order", "verdict"),
    [
        # the whole interval has to lie above or below
        (APART, above(), YES),
        (APART, below(1.3), YES),
        (APART, above(0.8), NO),
        (APART, below(1.2), NO),
        (ACROSS, above(), NO),
        (ACROSS, below(), NO),
        # an interval on both sides leaves the others open
        (APART, within(0.3, 1.0), YES),
        (APART, within(0.2, 1.0), OPEN),
        (APART, within(0.2, 1.5), NO),
        (APART, within(0.5), NO),
        ((-0.9, 0.0, 0.9), within(0.1), OPEN),
        (APART, not_above(1.3), YES),
        (APART, not_above(1.0), OPEN),
        (APART, not_above(0.7), NO),
        ((0.001, 0.20, 0.40), not_above(), OPEN),
        # one planned seed is compared by itself
        ((0.5,), above(), YES),
        ((0.0,), not_above(), YES),
        ((0.1,), not_above(0.05), NO),
    ],
)
def test_what_an_interval_says_of_an_order(values, order, verdict):
    assert check("x", pd.Series(values), order).verdict == verdict


def test_what_was_asked_and_measured_is_told():
    told = "x: +0.50 (one seed, no interval; asked: above 0.00)"
    assert check("x", pd.Series([0.5]), above(), 2).figure == told
    told = "x: +1.000 (95 % interval +0.752 to +1.248, 3 seeds; asked: within +0.800 to +1.200)"
    assert check("x", pd.Series(APART), within(0.2, 1.0)).figure == told
    missing = "x: not measured, 1 of 3 seeds", "not measured", True
    assert check("x", pd.Series([0.5, np.nan, np.nan]), above()) == missing
    assert check("x", pd.Series(dtype=float), above()).verdict == "not measured"


def test_a_difference_is_of_the_seeds_of_both(tmp_path):
    place_in(tmp_path, {"reference": rates(0.5), "dpo": rates(0.4, 0.3, 0.2)})
    place_in(tmp_path, {"pooled": rates(0.5, 0.6, 0.7)}, seeds=(42, 123))
    place_in(tmp_path, {"class": rates(0.1, 0.1, 0.3)}, seeds=(42, 456))
    found = Found(tmp_path, SEEDS, {"class": (42, 456)})
    values, reason = read(found, f"pooled {WOMAN} - class {WOMAN}")
    assert values.index.tolist() == [42, 456] and not reason
    assert values[42] == pytest.approx(0.4) and np.isnan(values[456])
    for source in (f"pooled removed:{WOMAN} - class {WOMAN}", f"class {WOMAN} - pooled removed:{WOMAN}"):
        assert "own shift in" in read(found, source)[1]


def test_a_failing_reading_comes_before_a_missing_one_and_that_before_an_open_one(tmp_path):
    apart, wide = {"C": (-0.04, 0.0, 0.03)}, {"B": 0.0, "C": (-0.04, 0.0, 0.03)}
    cases = [
        ({"A": 0.0, **wide}, OPEN),
        ({"A": 0.0, **apart}, "not measured"),
        ({"A": 0.5, **apart}, NO),
    ]
    for place, (values, verdict) in enumerate(cases):
        found = found_in("votes_ceiling", tmp_path / str(place), ceiling(**values))
        assert found.verdict == verdict, found.figures
