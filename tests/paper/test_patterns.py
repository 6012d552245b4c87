"""A pattern of the paper is reproduced within its bounds, not reproduced beyond them, and open without runs."""

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
# Path in the readouts -> one number for all seeds, or one number for each seed.
Numbers = Mapping[str, float | tuple[float, float, float]]
Readouts = Mapping[str, Numbers]


class SimulatedRuns(PanelRuns):
    """Runs of a panel with simulated readouts, some of which are missing; records the conditions that are read."""

    def __init__(self, readouts: Readouts, missing: Collection[str] = (), planned=None, name="panel"):
        super().__init__(Path(name), SEEDS, planned)
        self._numbers, self._missing = readouts, missing
        self.conditions: set[str] = set()

    def planned_seeds(self, condition: str) -> tuple[int, ...]:
        self.conditions.add(condition)
        return super().planned_seeds(condition)

    def readouts(self, name: str) -> dict:
        condition, _, seed = name.rpartition("-s") if name != "reference" else (name, "", SEEDS[0])
        content: dict = {}
        numbers = {} if name in self._missing else self._numbers.get(condition, {})
        for path, number in numbers.items():
            *parents, last = path.split(".")
            part = content
            for key in parents:
                part = part.setdefault(key, {})
            part[last] = number[SEEDS.index(int(seed))] if isinstance(number, tuple) else number
        return content


def rates(*seeds: float) -> Numbers:
    """Make rates of both attributes, one rate for all seeds or one rate for each seed."""
    return dict.fromkeys((WOMAN, BLACK), seeds if len(seeds) > 1 else seeds[0])


WOMAN, BLACK, TOKENS = "rates.woman.rate", "rates.black.rate", "tokens.mean"


def fields(label: str) -> list[tuple[str, ...]]:
    """List the values of the fields of a label, one combination for each reading."""
    return [*product(*(values for field, values in patterns.EACH.items() if f"{{{field}}}" in label))]


CHECK = patterns.check_reading
YES, NO, OPEN, UNKNOWN = "reproduced", "pattern not reproduced", "undecided", "not measured"


class ConstantRuns(PanelRuns):
    """Runs in which the value of every source is 1, unless the run is missing."""

    def __init__(self, missing: Collection[str] = ()):
        super().__init__(Path("panel"), SEEDS)
        self._missing = missing

    def values(self, condition: str, source: str, against: str = "dpo") -> dict[int, float]:
        needed = (condition, against) if source.startswith("removed:") else (condition,)
        return {
            seed: 1.0 for seed in SEEDS if not {f"{name}-s{seed}" for name in needed} & {*self._missing}
        }

    def explain_missing_share(self, against: str, source: str) -> str:
        return ""


def evaluate_with(monkeypatch, name: str, position: int, values: tuple[float, ...]) -> str:
    """Verdict on a pattern if the reading at a position has some values and the other readings are in their bounds."""
    number = iter(range(99))

    def check_reading(label, _, order, decimals=3):
        reading_values = values if next(number) == position else (middle(order),) * 3
        return CHECK(label, patterns.Reading(pd.Series(reading_values), ""), order, decimals)

    monkeypatch.setattr(patterns, "check_reading", check_reading)
    return patterns.evaluate_pattern(name, ConstantRuns()).verdict


def middle(order: patterns.Order) -> float:
    """Return a value within the bounds of an order."""
    if order.must_contain or order.high == np.inf:
        return order.low + (not order.must_contain)
    return order.high - 1 if order.low == -np.inf else (order.low + order.high) / 2


READINGS = [
    (name, position, order)
    for name, entry in patterns.PATTERNS.items()
    for position, order in enumerate(
        order for label, (_, order) in entry["reads"].items() for _ in fields(label)
    )
]


@pytest.mark.parametrize(("name", "position", "order_text"), READINGS)
def test_a_reading_beyond_a_bound_is_not_reproduced(monkeypatch, name, position, order_text):
    order = patterns.parse_order(order_text)
    assert evaluate_with(monkeypatch, name, -1, ()) == YES
    bounds = [bound for bound in (order.low, order.high) if np.isfinite(bound)]
    assert bounds
    for bound in bounds:
        beyond = bound - 0.5 if bound == order.low else bound + 0.5
        values = (beyond, beyond - 1e-6, beyond + 1e-6)
        assert evaluate_with(monkeypatch, name, position, values) == NO
        if not order.must_contain:
            around = (bound - 0.1, bound, bound + 0.1)
            expected = OPEN if order.may_be_open else NO
            assert evaluate_with(monkeypatch, name, position, around) == expected


@pytest.mark.parametrize("name", patterns.PATTERNS)
def test_a_pattern_with_missing_runs_is_not_measured(name):
    empty = SimulatedRuns({})
    pattern = patterns.evaluate_pattern(name, empty)
    assert (pattern.verdict, pattern.holds, pattern.is_begun) == (UNKNOWN, None, False)
    assert all("0 of 3 seeds" in figure for figure in pattern.figures)
    for condition in empty.conditions:
        pattern = patterns.evaluate_pattern(name, ConstantRuns(missing=[f"{condition}-s456"]))
        assert any("2 of 3 seeds" in figure for figure in pattern.figures), condition


def test_a_removed_share_has_two_bounds_and_requires_a_shift():
    readouts = {
        "reference": {TOKENS: 30.0, **rates(0.5)},
        "dpo": {TOKENS: (40.0, 41.0, 42.0), **rates(0.9, 0.91, 0.92)},
    }

    def verdicts(tokens: float, rate: float) -> list[str]:
        arms = {arm: rates(rate) for arm in ("pooled", "shared_mean")}
        arms |= {f"{arm}-length": {TOKENS: tokens} for arm in arms}
        runs = SimulatedRuns(readouts | arms)
        return [
            patterns.evaluate_pattern(name, runs).verdict for name in ("removes_length", "removes_names")
        ]

    assert verdicts(35.5, 0.55) == [YES, YES]
    assert verdicts(40.5, 0.85) == [NO, NO]  # too little
    assert verdicts(28.0, 0.35) == [NO, NO]  # an overshoot
    readouts["dpo"] = {TOKENS: (28.0, 30.0, 33.0), **rates(0.45, 0.5, 0.58)}
    assert verdicts(35.5, 0.55) == [UNKNOWN, UNKNOWN]


def test_an_inverted_gap_is_not_closed():
    gaps = {"dpo": {"heldout.length.gap": 0.1}}

    def verdict(gap: float) -> str:
        arms = {f"{arm}-length": {"heldout.length.gap": gap} for arm in ("pooled", "shared_mean")}
        return patterns.evaluate_pattern("gap_length", SimulatedRuns(gaps | arms)).verdict

    assert [verdict(gap) for gap in (0.01, 0.12, -0.03)] == [YES, NO, NO]


@pytest.mark.parametrize("name", SUITES)
def test_a_suite_plans_all_conditions_that_its_patterns_read(name):
    runs = SimulatedRuns({})
    patterns.evaluate_patterns(patterns.select_patterns(name), [runs])
    assert runs.conditions <= {row.condition.name for panel in SUITES[name].panels for row in panel.rows}


def test_a_pattern_is_evaluated_for_each_corpus_with_some_of_its_runs():
    readouts = {"reference": rates(0.5), "dpo": rates(0.9)}
    complete, empty = SimulatedRuns(readouts, name="signed"), SimulatedRuns({}, name="style")
    partial = SimulatedRuns(readouts, missing=["dpo-s456"], name="signed-other")
    evaluated = patterns.evaluate_patterns(("amplifies_names",), [complete, partial, empty])
    assert [(pattern.verdict, pattern.sentence) for pattern in evaluated] == [
        (YES, "DPO amplifies both attributes (signed)"),
        (UNKNOWN, "DPO amplifies both attributes (signed-other)"),
    ]
    (pattern,) = patterns.evaluate_patterns(("amplifies_names",), [empty] * 2)
    assert (pattern.verdict, pattern.sentence) == (UNKNOWN, "DPO amplifies both attributes")


# The 95 % confidence interval of these values is 0.752 to 1.248.
APART = (0.9, 1.0, 1.1)


def check(values: tuple[float, ...], order: str, decimals: int = 3) -> patterns.Check:
    """Check values of a reading that was measured at every seed."""
    reading = patterns.Reading(pd.Series(values), "")
    return patterns.check_reading("x", reading, patterns.parse_order(order), decimals)


@pytest.mark.parametrize(
    ("values", "order", "verdict"),
    [
        (APART, "within 0.2 of 1", OPEN),
        # the value of a single seed is compared with the bounds
        ((0.5,), "above 0", YES),
        ((0.0,), "not above 0", YES),
        ((0.1,), "not above 0.05", NO),
    ],
)
def test_the_interval_of_a_reading_is_compared_with_the_bounds(values, order, verdict):
    assert check(values, order).verdict == verdict


def test_a_difference_uses_the_common_seeds_and_a_figure_states_the_requirement():
    readouts = {"dpo": rates(0.4, 0.3, 0.2), "pooled": rates(0.5, 0.6, 0.7)}
    readouts["class"] = rates(0.1, 0.1, 0.3)
    readouts["reference"] = rates(0.5)
    runs = SimulatedRuns(readouts, missing=["pooled-s456"], planned={"class": (42, 456)})
    values, reason = patterns.read_source(runs, f"pooled {WOMAN} - class {WOMAN}")
    assert values.index.tolist() == [42, 456] and not reason
    assert values[42] == pytest.approx(0.4) and np.isnan(values[456])
    for source in (f"pooled removed:{WOMAN} - class {WOMAN}", f"class {WOMAN} - pooled removed:{WOMAN}"):
        assert "is not reported: " in patterns.read_source(runs, source).reason
    figure = check((0.5,), "above 0", 2).figure
    assert figure == "x: +0.50 (one seed, no interval; required: above 0.00)"
    figure = check(APART, "within 0.2 of 1").figure
    assert figure == "x: +1.000 (95 % CI +0.752 to +1.248, 3 seeds; required: within +0.800 to +1.200)"


def ceiling(**values) -> Readouts:
    return {"shared_mean": {f"votes_minus_ceiling.black.{c}.difference": values[c] for c in values}}


@pytest.mark.parametrize(
    ("values", "verdict"), [({"A": 0.0, "B": 0.0}, OPEN), ({"A": 0.0}, UNKNOWN), ({"A": 0.5}, NO)]
)
def test_a_failed_reading_precedes_a_missing_one_and_a_missing_one_precedes_an_open_one(values, verdict):
    runs = SimulatedRuns(ceiling(**values, C=(-0.04, 0.0, 0.03)))
    pattern = patterns.evaluate_pattern("votes_ceiling", runs)
    assert pattern.verdict == verdict, pattern.figures


def test_the_paper_map_has_a_row_for_each_pattern_and_suite():
    text = (Path(__file__).parents[2] / "docs" / "paper_map.md").read_text(encoding="utf-8")
    rows = {
        tuple(line.strip("| ").split(" | ")[:4]) for line in text.splitlines() if line.startswith("|")
    }
    expected = {
        (f"`{entry['place']}`", entry["says"], f"`{name}`", f"`{suite}`")
        for name, entry in patterns.PATTERNS.items()
        for suite in entry["suites"]
    }
    assert expected <= rows and {suite for *_, suite in expected} <= {f"`{name}`" for name in SUITES}
