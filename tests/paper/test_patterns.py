"""Every pattern of the paper: reproduced within its bounds and not beyond either; open if nothing is known."""

from collections.abc import Collection, Mapping
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from badpo_paper import patterns
from badpo_paper.suites import SUITES
from badpo_paper.tables import PanelRuns

SEEDS = (42, 123, 456)
# Of every condition its places, with one number for all seeds or one for each.
Numbers = Mapping[str, float | tuple[float, float, float]]
Readouts = Mapping[str, Numbers]


class Planted(PanelRuns):
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


def rates(*seeds: float) -> Numbers:
    """Rates of both attributes, alike at every seed or one for each."""
    return dict.fromkeys((WOMAN, BLACK), seeds if len(seeds) > 1 else seeds[0])


WOMAN, BLACK, TOKENS = "rates.woman.rate", "rates.black.rate", "tokens.mean"


def fields(label: str) -> list[tuple[str, ...]]:
    """The values of the fields of a label, for each of its readings."""
    return [*product(*(values for field, values in patterns.EACH.items() if f"{{{field}}}" in label))]


CHECK = patterns.check
YES, NO, OPEN, UNKNOWN = "reproduced", "pattern not reproduced", "undecided", "not measured"


class Told(PanelRuns):
    """Values of readings, which a test sets by source; the value of every other source is one."""

    def __init__(self, missing: Collection[str] = ()):
        super().__init__(Path("panel"), SEEDS)
        self._missing = missing

    def values(self, condition: str, source: str, against: str = "dpo") -> dict[int, float]:
        needed = (condition, against) if source.startswith("removed:") else (condition,)
        return {
            seed: 1.0 for seed in SEEDS if not {f"{one}-s{seed}" for one in needed} & {*self._missing}
        }

    def explain_missing_share(self, against: str, source: str) -> str:
        return ""


def verdict_with(monkeypatch, name: str, place: int, values: tuple[float, ...]) -> str:
    """Verdict on a pattern one of whose readings has these values; the others lie within their bounds."""
    number = iter(range(99))

    def planted(label, _, order, places=3, reason=""):
        inside = (middle(order),) * 3
        given = values if next(number) == place else inside
        return CHECK(label, pd.Series(given), order, places, reason)

    monkeypatch.setattr(patterns, "check", planted)
    return patterns.evaluate_pattern(name, Told()).verdict


def middle(order: patterns.Order) -> float:
    """A value within the bounds of an order."""
    if order.must_contain or order.high == np.inf:
        return order.low + (not order.must_contain)
    return order.high - 1 if order.low == -np.inf else (order.low + order.high) / 2


ASKED = [
    (name, place, order)
    for name, found in patterns.PATTERNS.items()
    for place, order in enumerate(o for label, (_, o) in found["reads"].items() for _ in fields(label))
]


@pytest.mark.parametrize(("name", "place", "asked"), ASKED)
def test_a_reading_beyond_either_bound_is_no_success(monkeypatch, name, place, asked):
    order = patterns.parse_order(asked)
    assert verdict_with(monkeypatch, name, -1, ()) == YES
    bounds = [bound for bound in (order.low, order.high) if np.isfinite(bound)]
    assert bounds
    for bound in bounds:
        beyond = bound - 0.5 if bound == order.low else bound + 0.5
        assert verdict_with(monkeypatch, name, place, (beyond, beyond - 1e-6, beyond + 1e-6)) == NO
        if not order.must_contain:
            reaching = (bound - 0.1, bound, bound + 0.1)
            expected = OPEN if order.may_be_open else NO
            assert verdict_with(monkeypatch, name, place, reaching) == expected


@pytest.mark.parametrize("name", patterns.PATTERNS)
def test_what_is_not_measured_leaves_it_open(name):
    none = Planted({})
    found = patterns.evaluate_pattern(name, none)
    assert (found.verdict, found.holds, found.is_begun) == (UNKNOWN, None, False)
    assert all("not measured, 0 of 3 seeds" in figure for figure in found.figures)
    for condition in none.asked:
        found = patterns.evaluate_pattern(name, Told(missing=[f"{condition}-s456"]))
        assert any("not measured, 2 of 3 seeds" in figure for figure in found.figures), condition


def test_a_share_has_two_bounds_and_needs_a_shift():
    world = {
        "reference": {TOKENS: 30.0, **rates(0.5)},
        "dpo": {TOKENS: (40.0, 41.0, 42.0), **rates(0.9, 0.91, 0.92)},
    }

    def verdicts(tokens: float, rate: float) -> list[str]:
        arms = {arm: rates(rate) for arm in ("pooled", "shared_mean")}
        arms |= {f"{arm}-length": {TOKENS: tokens} for arm in arms}
        found = Planted(world | arms)
        return [
            patterns.evaluate_pattern(name, found).verdict
            for name in ("removes_length", "removes_names")
        ]

    assert verdicts(35.5, 0.55) == [YES, YES]
    assert verdicts(40.5, 0.85) == [NO, NO]  # too little
    assert verdicts(28.0, 0.35) == [NO, NO]  # an overshoot
    world["dpo"] = {TOKENS: (28.0, 30.0, 33.0), **rates(0.45, 0.5, 0.58)}
    assert verdicts(35.5, 0.55) == [UNKNOWN, UNKNOWN]


def test_a_gap_that_is_inverted_is_not_closed():
    gaps = {"dpo": {"heldout.length.gap": 0.1}}

    def verdict(gap: float) -> str:
        arms = {f"{arm}-length": {"heldout.length.gap": gap} for arm in ("pooled", "shared_mean")}
        return patterns.evaluate_pattern("gap_length", Planted(gaps | arms)).verdict

    assert [verdict(gap) for gap in (0.01, 0.12, -0.03)] == [YES, NO, NO]


@pytest.mark.parametrize("name", SUITES)
def test_a_suite_plans_whatever_its_patterns_read(name):
    found = Planted({})
    patterns.evaluate_patterns(patterns.select_patterns(name), [found])
    assert found.asked <= {row.condition.name for panel in SUITES[name].panels for row in panel.rows}


def test_a_pattern_is_told_for_each_corpus_that_has_some_of_its_runs():
    world = {"reference": rates(0.5), "dpo": rates(0.9)}
    one, empty = Planted(world, name="signed"), Planted({}, name="style")
    other = Planted(world, missing=["dpo-s456"], name="signed-other")
    told = patterns.evaluate_patterns(("amplifies_names",), [one, other, empty])
    assert [(found.verdict, found.sentence) for found in told] == [
        (YES, "DPO amplifies both attributes (signed)"),
        (UNKNOWN, "DPO amplifies both attributes (signed-other)"),
    ]
    (none,) = patterns.evaluate_patterns(("amplifies_names",), [empty] * 2)
    assert (none.verdict, none.sentence) == (UNKNOWN, "DPO amplifies both attributes")


APART = (0.9, 1.0, 1.1)  # 0.752 to 1.248


@pytest.mark.parametrize(
    ("values", "order", "verdict"),
    [
        (APART, patterns.parse_order("within 0.2 of 1"), OPEN),
        # one planned seed is compared by itself
        ((0.5,), patterns.parse_order("above 0"), YES),
        ((0.0,), patterns.parse_order("not above 0"), YES),
        ((0.1,), patterns.parse_order("not above 0.05"), NO),
    ],
)
def test_what_an_interval_says_of_an_order(values, order, verdict):
    assert patterns.check("x", pd.Series(values), order).verdict == verdict


def test_a_difference_is_of_the_seeds_of_both_and_what_was_asked_is_told():
    readouts = {"dpo": rates(0.4, 0.3, 0.2), "pooled": rates(0.5, 0.6, 0.7)}
    readouts["class"] = rates(0.1, 0.1, 0.3)
    readouts["reference"] = rates(0.5)
    found = Planted(readouts, missing=["pooled-s456"], planned={"class": (42, 456)})
    values, reason = patterns.read(found, f"pooled {WOMAN} - class {WOMAN}")
    assert values.index.tolist() == [42, 456] and not reason
    assert values[42] == pytest.approx(0.4) and np.isnan(values[456])
    for source in (f"pooled removed:{WOMAN} - class {WOMAN}", f"class {WOMAN} - pooled removed:{WOMAN}"):
        assert "own shift in" in patterns.read(found, source)[1]
    told = "x: +0.50 (one seed, no interval; required: above 0.00)"
    assert patterns.check("x", pd.Series([0.5]), patterns.parse_order("above 0"), 2).figure == told
    told = "x: +1.000 (95 % CI +0.752 to +1.248, 3 seeds; required: within +0.800 to +1.200)"
    assert patterns.check("x", pd.Series(APART), patterns.parse_order("within 0.2 of 1")).figure == told


def ceiling(**values) -> Readouts:
    return {"shared_mean": {f"votes_minus_ceiling.black.{c}.difference": values[c] for c in values}}


@pytest.mark.parametrize(
    ("values", "verdict"), [({"A": 0.0, "B": 0.0}, OPEN), ({"A": 0.0}, UNKNOWN), ({"A": 0.5}, NO)]
)
def test_a_failing_reading_comes_before_a_missing_one_and_that_before_an_open_one(values, verdict):
    found = patterns.evaluate_pattern("votes_ceiling", Planted(ceiling(**values, C=(-0.04, 0.0, 0.03))))
    assert found.verdict == verdict, found.figures


def test_the_paper_map_has_a_row_for_each_pattern_and_suite():
    text = (Path(__file__).parents[2] / "docs" / "paper_map.md").read_text(encoding="utf-8")
    rows = {
        tuple(line.strip("| ").split(" | ")[:4]) for line in text.splitlines() if line.startswith("|")
    }
    asked = {
        (f"`{found['place']}`", found["says"], f"`{name}`", f"`{suite}`")
        for name, found in patterns.PATTERNS.items()
        for suite in found["suites"]
    }
    assert asked <= rows and {suite for *_, suite in asked} <= {f"`{name}`" for name in SUITES}
