"""Every pattern of the paper: found in readouts that show it, not in others, and open where they cannot tell."""

from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from badpo_paper import patterns
from badpo_paper.suites import SUITES
from badpo_paper.tables import Found

SEEDS = (42, 123, 456)
# Of every condition its places, with one number for all seeds or one for each.
Numbers = Mapping[str, float | tuple[float, float, float]]
Readouts = Mapping[str, Numbers]


class Planted(Found):
    """The readouts of a panel's runs but of those that are missing; notes which conditions are asked for."""

    def __init__(self, readouts: Readouts, missing: Collection[str] = (), planned=None, name="panel"):
        super().__init__(Path(name), SEEDS, planned)
        self._numbers, self._missing = readouts, missing
        self.asked: set[str] = set()

    def planned(self, condition: str) -> tuple[int, ...]:
        self.asked.add(condition)
        return super().planned(condition)

    def readouts(self, name: str) -> dict:
        condition, _, seed = name.rpartition("-s") if name != "reference" else (name, "", SEEDS[0])
        told: dict = {}
        numbers = {} if name in self._missing else self._numbers.get(condition, {})
        for place, number in numbers.items():
            *above_it, last = place.split(".")
            within_it = told
            for key in above_it:
                within_it = within_it.setdefault(key, {})
            within_it[last] = number[SEEDS.index(int(seed))] if isinstance(number, tuple) else number
        return told


def changed(change: Readouts) -> Readouts:
    return {name: {**WORLD.get(name, {}), **change.get(name, {})} for name in {**WORLD, **change}}


def rates(*seeds: float) -> Numbers:
    """Rates of both attributes, alike at every seed or one for each."""
    return dict.fromkeys((WOMAN, BLACK), seeds if len(seeds) > 1 else seeds[0])


def either(condition: str, rate) -> list[Readouts]:
    """Changes of one attribute's rate, and of the other's."""
    return [{condition: {place: rate}} for place in (WOMAN, BLACK)]


def ceiling(**values) -> Readouts:
    return {"shared_mean": {f"votes_minus_ceiling.black.{c}.difference": values[c] for c in values}}


WOMAN, BLACK, TOKENS, KL = "rates.woman.rate", "rates.black.rate", "tokens.mean", "kl.per_token"
LENGTH, MARKDOWN, CHANCE = "heldout.length.gap", "heldout.markdown.gap", "votes.black.B.accuracy"
SAMPLED, THETA = "sampled.{}.rate", "theta.{}.correlation"
WIDE = (0.4, 0.6, 0.8)  # with a reference of 0.5 and DPO at 0.9: shares removed of 1.25, 0.75 and 0.25
GAP, SMALL_GAP, WIDE_GAP = (0.1, 0.11, 0.12), (0.01, 0.02, 0.02), (0.05, 0.11, 0.3)
BELOW, ABOVE = (-0.05, -0.04, -0.03), (0.05, 0.06, 0.07)  # zero
ARMS = ("pooled", "shared_mean")

WORLD: Readouts = {
    "reference": {**rates(0.5), TOKENS: 30.0},
    "dpo": {
        **rates(0.9, 0.91, 0.92),
        **{SAMPLED.format(name): 0.97 for name in ("woman", "black")},
        **{TOKENS: (40.0, 41.0, 42.0), KL: (0.2, 0.21, 0.22), LENGTH: GAP, MARKDOWN: GAP},
    },
    "pooled": {**rates(0.54, 0.55, 0.56), KL: 0.1, CHANCE: (0.49, 0.5, 0.51)},
    "shared_mean": {
        **rates(0.54, 0.55, 0.56),
        **{KL: 0.1, THETA.format("woman"): (0.93, 0.94, 0.95), THETA.format("black"): 0.98},
        **ceiling(A=(-0.001, 0.0, 0.001), B=0.0, C=0.0)["shared_mean"],
    },
    "class": rates(0.53, 0.55, 0.56),
    **dict.fromkeys(("shuffled_ids", "per_annotator"), rates(0.7, 0.71, 0.72)),
    "declared_subset": {BLACK: (0.88, 0.89, 0.9)},
    "group_dro": rates(0.88),
    "group_dro_annotators": {TOKENS: (40.0, 40.5, 41.0)},
    "rdpo": {**rates(0.89), TOKENS: (32.0, 33.0, 34.0), LENGTH: BELOW, MARKDOWN: BELOW},
    "rdpo_strong": {TOKENS: (22.0, 22.5, 23.0)},
    "sampo": {**rates(0.9), LENGTH: ABOVE, MARKDOWN: ABOVE},
    "dpo_lora": rates(0.8),
    "pooled_lora": rates(0.55),
    # of its own DPO's shift a smaller part than at the smaller rate, of DPO's a larger one
    "dpo_lora_fast": rates(0.7, 0.71, 0.72),
    "pooled_lora_fast": rates(0.56),
    **{f"{arm}-length": {TOKENS: (34.0, 34.5, 35.0), LENGTH: SMALL_GAP} for arm in ARMS},
    **{f"{arm}_warm-length": {TOKENS: (34.2, 34.6, 35.1)} for arm in ARMS},
    **{f"{arm}-markdown": {MARKDOWN: SMALL_GAP} for arm in ARMS},
    "per_annotator-length": {TOKENS: (37.0, 37.5, 38.0)},
}
# For every reading of a pattern, in their order, a change that turns it and the pattern.
FAILS: dict[str, list[Readouts]] = {
    "amplifies_names": either("dpo", (0.45, 0.55, 0.6)),
    # of DPO's shift, surely something and surely less than half
    "removes_names": [*either("pooled", (0.8, 0.81, 0.82)), *either("shared_mean", WIDE)],
    "kl_names": [{arm: {KL: 0.3}} for arm in ARMS],
    "agree_names": either("shared_mean", (0.6, 0.61, 0.62)),
    "group_dro_names": either("group_dro", WIDE),
    "theta_correlation": [
        {"shared_mean": {THETA.format("woman"): (0.88, 0.93, 0.98)}},
        {"shared_mean": {THETA.format("black"): (0.86, 0.87, 0.88)}},
    ],
    "class_names": either("class", 0.7),
    "shuffled_names": either("shuffled_ids", (0.5, 0.6, 0.7)),
    "free_names": either("per_annotator", (0.5, 0.6, 0.7)),
    "undeclared_names": [{"declared_subset": {BLACK: WIDE}}],
    "length_methods_names": [*either("rdpo", WIDE), *either("sampo", WIDE)],
    "samples_saturate": [{"dpo": {SAMPLED.format(name): 0.8}} for name in ("woman", "black")],
    "votes_ceiling": [ceiling(A=-0.05), ceiling(B=-0.05), ceiling(C=0.05)],
    "votes_chance": [{"pooled": {CHANCE: (0.6, 0.61, 0.62)}}],
    "lora_rate": either("pooled_lora_fast", (0.5, 0.52, 0.56)),
    "amplifies_length": [{"dpo": {TOKENS: (29.0, 31.0, 34.0)}}],
    "removes_length": [{f"{arm}-length": {TOKENS: (38.0, 41.0, 44.0)}} for arm in ARMS],
    "gap_length": [
        # a gap of DPO's own that is not above zero, with variants far below it
        {"dpo": {LENGTH: (-0.02, 0.01, 0.03)}, **{f"{arm}-length": {LENGTH: -0.3} for arm in ARMS}},
        *({f"{arm}-length": {LENGTH: WIDE_GAP}} for arm in ARMS),
    ],
    "rdpo_gap": [{"rdpo": {LENGTH: (-0.05, 0.0, 0.02)}}],
    "sampo_gap": [{"sampo": {LENGTH: (-0.02, 0.01, 0.05)}}],
    "group_dro_length": [{"group_dro_annotators": {TOKENS: (28.0, 37.0, 44.0)}}],
    "gap_markdown": [{"dpo": {MARKDOWN: (-0.02, 0.01, 0.05)}}],
    "closes_markdown": [{f"{arm}-markdown": {MARKDOWN: WIDE_GAP}} for arm in ARMS],
    "rdpo_gap_markdown": [{"rdpo": {MARKDOWN: 0.01}}, {"sampo": {MARKDOWN: -0.01}}],
    "free_length": [{"per_annotator-length": {TOKENS: (31.0, 35.0, 38.0)}}],
    "warm_length": [{"pooled_warm-length": {TOKENS: 31.0}}, {"shared_mean_warm-length": {TOKENS: 39.0}}],
    "strong_rdpo": [{"rdpo_strong": {TOKENS: (22.0, 33.0, 40.0)}}],
}
# A change after which an interval reaches to both sides of a bound that allows for that.
OPENS: dict[str, Readouts] = {
    "kl_names": {"pooled": {KL: (0.01, 0.2, 0.4)}},
    "agree_names": {"shared_mean": {WOMAN: (0.45, 0.55, 0.65)}},
    "class_names": {"class": {BLACK: (0.4, 0.55, 0.7)}},
    "samples_saturate": {"dpo": {SAMPLED.format("woman"): (0.8, 0.9, 0.99)}},
    "votes_ceiling": ceiling(C=(-0.04, 0.0, 0.03)),
    "votes_chance": {"pooled": {CHANCE: (0.4, 0.5, 0.6)}},
    "warm_length": {"pooled_warm-length": {TOKENS: (31.0, 34.5, 38.0)}},
}
YES, NO, OPEN, UNKNOWN = "reproduced", "pattern not reproduced", "undecided", "not measured"


@pytest.mark.parametrize("name", patterns.PATTERNS)
def test_a_pattern_is_reproduced_where_it_is_there_and_each_of_its_readings_can_fail_it(name):
    shown, fails = patterns.found_pattern(name, Planted(WORLD)), FAILS[name]
    assert (shown.verdict, shown.holds) == (YES, True), shown.figures
    assert len(shown.figures) == len(fails)
    for place, change in enumerate(fails):
        found = patterns.found_pattern(name, Planted(changed(change)))
        assert (found.verdict, found.holds) == (NO, False), found.figures
        assert found.figures[place] != shown.figures[place]


@pytest.mark.parametrize("name", OPENS)
def test_an_interval_that_reaches_past_a_bound_decides_nothing(name):
    found = patterns.found_pattern(name, Planted(changed(OPENS[name])))
    assert (found.verdict, found.holds) == (OPEN, None), found.figures


@pytest.mark.parametrize("name", patterns.PATTERNS)
def test_what_is_not_measured_leaves_it_open(name):
    none = Planted({})
    found = patterns.found_pattern(name, none)
    assert (found.verdict, found.holds, found.is_begun) == (UNKNOWN, None, False)
    assert all("not measured, 0 of 3 seeds" in figure for figure in found.figures)
    for condition in none.asked:
        found = patterns.found_pattern(name, Planted(WORLD, missing=[f"{condition}-s456"]))
        assert (found.verdict, found.holds) == (UNKNOWN, None), condition
        assert any("not measured, 2 of 3 seeds" in figure for figure in found.figures), condition


@pytest.mark.parametrize("name", patterns.PATTERNS)
def test_no_share_is_removed_of_a_shift_that_dpo_did_not_make(name):
    still = {**rates(0.45, 0.5, 0.58), TOKENS: (28.0, 30.0, 33.0)}
    unmoved = dict.fromkeys(("dpo", "dpo_lora", "dpo_lora_fast"), still)
    found = patterns.found_pattern(name, Planted(changed(unmoved)))
    reads_shares = "removed:" in str(patterns.ASKED[name])
    assert ["own shift in" in figure for figure in found.figures] == [reads_shares] * len(found.figures)
    assert not reads_shares or (found.verdict, found.holds) == (UNKNOWN, None)


@pytest.mark.parametrize("name", SUITES)
def test_a_suite_plans_whatever_its_patterns_read(name):
    found = Planted({})
    patterns.found_patterns(SUITES[name].patterns, [found])
    assert found.asked <= {row.condition.name for panel in SUITES[name].panels for row in panel.rows}


def test_a_pattern_is_told_for_each_corpus_that_has_some_of_its_runs():
    one, empty = Planted(WORLD, name="signed"), Planted({}, name="style")
    other = Planted(WORLD, missing=["dpo-s456"], name="signed-other")
    told = patterns.found_patterns(("amplifies_names",), [one, other, empty])
    assert [(found.verdict, found.sentence) for found in told] == [
        (YES, "DPO amplifies both attributes (signed)"),
        (UNKNOWN, "DPO amplifies both attributes (signed-other)"),
    ]
    (none,) = patterns.found_patterns(("amplifies_names",), [empty] * 2)
    assert (none.verdict, none.sentence) == (UNKNOWN, "DPO amplifies both attributes")


APART = (0.9, 1.0, 1.1)  # 0.752 to 1.248


@pytest.mark.parametrize(
    ("values", "order", "verdict"),
    [
        (APART, patterns.within(0.2, 1.0), OPEN),
        # one planned seed is compared by itself
        ((0.5,), patterns.above(), YES),
        ((0.0,), patterns.not_above(), YES),
        ((0.1,), patterns.not_above(0.05), NO),
    ],
)
def test_what_an_interval_says_of_an_order(values, order, verdict):
    assert patterns.check("x", pd.Series(values), order).verdict == verdict


def test_a_difference_is_of_the_seeds_of_both_and_what_was_asked_is_told():
    readouts = {"dpo": rates(0.4, 0.3, 0.2), "pooled": rates(0.5, 0.6, 0.7)}
    readouts["class"] = rates(0.1, 0.1, 0.3)
    found = Planted(changed(readouts), missing=["pooled-s456"], planned={"class": (42, 456)})
    values, reason = patterns.read(found, f"pooled {WOMAN} - class {WOMAN}")
    assert values.index.tolist() == [42, 456] and not reason
    assert values[42] == pytest.approx(0.4) and np.isnan(values[456])
    for source in (f"pooled removed:{WOMAN} - class {WOMAN}", f"class {WOMAN} - pooled removed:{WOMAN}"):
        assert "own shift in" in patterns.read(found, source)[1]
    told = "x: +0.50 (one seed, no interval; asked: above 0.00)"
    assert patterns.check("x", pd.Series([0.5]), patterns.above(), 2).figure == told
    told = "x: +1.000 (95 % interval +0.752 to +1.248, 3 seeds; asked: within +0.800 to +1.200)"
    assert patterns.check("x", pd.Series(APART), patterns.within(0.2, 1.0)).figure == told


@pytest.mark.parametrize(
    ("values", "verdict"), [({"A": 0.0, "B": 0.0}, OPEN), ({"A": 0.0}, UNKNOWN), ({"A": 0.5}, NO)]
)
def test_a_failing_reading_comes_before_a_missing_one_and_that_before_an_open_one(values, verdict):
    found = patterns.found_pattern("votes_ceiling", Planted(ceiling(**values, C=(-0.04, 0.0, 0.03))))
    assert found.verdict == verdict, found.figures
