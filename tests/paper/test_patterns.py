"""Every pattern of the paper: found in readouts that show it, not in others, and open where they cannot tell."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from badpo_paper.patterns import PATTERNS, Reading, above, below, found_patterns, not_above, pattern, within
from badpo_paper.suites import SUITES
from badpo_paper.tables import Found

SEEDS = (42, 123, 456)
# Of every condition its places, with one number for all seeds or one for each.
Numbers = Mapping[str, float | tuple[float, float, float]]
Readouts = Mapping[str, Numbers]


@dataclass(frozen=True)
class Case:
    """Readouts that show a pattern, and what changes them so that they do not.

    Attributes
    ----------
    holds : mapping of str to mapping
    fails : sequence of mapping
        For every reading of the pattern, in their order, a change that turns it and with it the pattern.
    wide : mapping, or None
        A change after which an interval reaches to both sides of a bound that allows for that.
    """

    holds: Readouts
    fails: Sequence[Readouts]
    wide: Readouts | None = None


def changed(readouts: Readouts, change: Readouts) -> Readouts:
    return {name: {**readouts.get(name, {}), **change.get(name, {})} for name in {**readouts, **change}}


def place_in(folder: Path, readouts: Readouts, seeds: Sequence[int] = SEEDS) -> None:
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


def verdict_of(name: str, folder: Path, readouts: Readouts):
    place_in(folder, readouts)
    return PATTERNS[name](Found(folder, SEEDS))


# -- readouts that show the patterns ---------------------------------------------------------------------------

WOMAN, BLACK, TOKENS, KL = "rates.woman.rate", "rates.black.rate", "tokens.mean", "kl.per_token"
LENGTH_GAP, MARKDOWN_GAP = "heldout.length.gap", "heldout.markdown.gap"
WIDE = (0.4, 0.6, 0.8)  # with a reference of 0.5 and DPO at 0.9: shares removed of 1.25, 0.75 and 0.25


def rates(woman, black=None) -> Numbers:
    return {WOMAN: woman, BLACK: woman if black is None else black}


def each_of_both(condition: str, rate) -> list[Readouts]:
    return [{condition: {WOMAN: rate}}, {condition: {BLACK: rate}}]


NAMES: Readouts = {"reference": rates(0.5), "dpo": rates((0.9, 0.91, 0.92))}
NAMES_BA: Readouts = {**NAMES, "pooled": rates((0.54, 0.55, 0.56)), "shared_mean": rates((0.54, 0.55, 0.56))}
KLS: Readouts = {"dpo": {KL: (0.2, 0.21, 0.22)}, "pooled": {KL: 0.1}, "shared_mean": {KL: 0.1}}
LENGTHS: Readouts = {"reference": {TOKENS: 30.0}, "dpo": {TOKENS: (40.0, 41.0, 42.0)}}
SHORTER: Readouts = {
    **LENGTHS,
    "pooled-length": {TOKENS: (34.0, 34.5, 35.0)},
    "shared_mean-length": {TOKENS: (34.0, 34.5, 35.0)},
}


def gaps(attribute: str) -> tuple[Readouts, list[Readouts]]:
    """DPO's gap and smaller ones of the variants; and changes by which they are not smaller."""
    place, arms = f"heldout.{attribute}.gap", [f"{arm}-{attribute}" for arm in ("pooled", "shared_mean")]
    holds: Readouts = {
        "dpo": {place: (0.1, 0.11, 0.12)},
        **{arm: {place: (0.01, 0.02, 0.02)} for arm in arms},
    }
    return holds, [{arm: {place: (0.05, 0.11, 0.3)}} for arm in arms]


def ceiling(a, b, c) -> Readouts:
    places = {name: f"votes_minus_ceiling.black.{name}.difference" for name in "ABC"}
    return {
        "shared_mean": {
            places[name]: value for name, value in zip("ABC", (a, b, c), strict=True) if value is not None
        }
    }


CASES: dict[str, Case] = {
    "amplifies_names": Case(NAMES, each_of_both("dpo", (0.45, 0.55, 0.6))),
    "removes_names": Case(
        NAMES_BA,
        # of DPO's shift, surely something and surely less than half
        [*each_of_both("pooled", (0.8, 0.81, 0.82)), *each_of_both("shared_mean", WIDE)],
    ),
    "kl_names": Case(
        KLS,
        [{"pooled": {KL: 0.3}}, {"shared_mean": {KL: 0.3}}],
        wide={"pooled": {KL: (0.01, 0.2, 0.4)}},
    ),
    "agree_names": Case(
        NAMES_BA,
        each_of_both("shared_mean", (0.7, 0.71, 0.72)),
        wide={"shared_mean": {WOMAN: (0.45, 0.55, 0.65)}},
    ),
    "group_dro_names": Case({**NAMES, "group_dro": rates(0.88)}, each_of_both("group_dro", WIDE)),
    "theta_correlation": Case(
        {"shared_mean": {"theta.woman.correlation": (0.93, 0.94, 0.95), "theta.black.correlation": 0.98}},
        [
            {"shared_mean": {"theta.woman.correlation": (0.88, 0.93, 0.98)}},
            {"shared_mean": {"theta.black.correlation": (0.86, 0.87, 0.88)}},
        ],
    ),
    "class_names": Case(
        {**NAMES, "pooled": rates(0.55), "class": rates((0.53, 0.54, 0.55))},
        each_of_both("class", 0.7),
        wide={"class": {BLACK: (0.4, 0.55, 0.7)}},
    ),
    "shuffled_names": Case(
        {**NAMES, "pooled": rates(0.55), "shuffled_ids": rates((0.7, 0.71, 0.72))},
        each_of_both("shuffled_ids", (0.5, 0.6, 0.7)),
    ),
    "free_names": Case(
        {**NAMES, "pooled": rates(0.55), "per_annotator": rates((0.7, 0.71, 0.72))},
        each_of_both("per_annotator", (0.5, 0.6, 0.7)),
    ),
    "undeclared_names": Case(
        {**NAMES, "declared_subset": {BLACK: (0.88, 0.89, 0.9)}}, [{"declared_subset": {BLACK: WIDE}}]
    ),
    "length_methods_names": Case(
        {**NAMES, "rdpo": rates(0.89), "sampo": rates(0.9)},
        [*each_of_both("rdpo", WIDE), *each_of_both("sampo", WIDE)],
    ),
    "samples_saturate": Case(
        {"dpo": {**rates((0.9, 0.91, 0.92)), "sampled.woman.rate": 0.97, "sampled.black.rate": 0.97}},
        [{"dpo": {"sampled.woman.rate": 0.8}}, {"dpo": {"sampled.black.rate": 0.8}}],
        wide={"dpo": {"sampled.woman.rate": (0.8, 0.9, 0.99)}},
    ),
    "votes_ceiling": Case(
        ceiling((-0.001, 0.0, 0.001), 0.0, 0.0),
        [ceiling(-0.05, None, None), ceiling(None, -0.05, None), ceiling(None, None, 0.05)],
        wide=ceiling(None, None, (-0.04, 0.0, 0.03)),
    ),
    "votes_chance": Case(
        {"pooled": {"votes.black.B.accuracy": (0.49, 0.5, 0.51)}},
        [{"pooled": {"votes.black.B.accuracy": (0.6, 0.61, 0.62)}}],
        wide={"pooled": {"votes.black.B.accuracy": (0.4, 0.5, 0.6)}},
    ),
    "lora_rate": Case(
        {
            "reference": rates(0.5),
            "dpo_lora": rates(0.8),
            "pooled_lora": rates(0.55),
            "dpo_lora_fast": rates((0.95, 0.96, 0.97)),
            "pooled_lora_fast": rates(0.75),
        },
        each_of_both("pooled_lora_fast", (0.5, 0.6, 0.75)),
    ),
    "amplifies_length": Case(LENGTHS, [{"dpo": {TOKENS: (29.0, 31.0, 34.0)}}]),
    "removes_length": Case(
        SHORTER,
        [
            {"pooled-length": {TOKENS: (38.0, 41.0, 44.0)}},
            {"shared_mean-length": {TOKENS: (38.0, 41.0, 44.0)}},
        ],
    ),
    "gap_length": Case(
        gaps("length")[0],
        # a gap of DPO's own that is not above zero, with variants far below it
        [
            {
                "dpo": {LENGTH_GAP: (-0.02, 0.01, 0.03)},
                **{f"{arm}-length": {LENGTH_GAP: -0.3} for arm in ("pooled", "shared_mean")},
            },
            *gaps("length")[1],
        ],
    ),
    "rdpo_gap": Case(
        {"rdpo": {LENGTH_GAP: (-0.05, -0.04, -0.03)}}, [{"rdpo": {LENGTH_GAP: (-0.05, 0.0, 0.02)}}]
    ),
    "sampo_gap": Case(
        {"sampo": {LENGTH_GAP: (0.05, 0.06, 0.07)}}, [{"sampo": {LENGTH_GAP: (-0.02, 0.01, 0.05)}}]
    ),
    "group_dro_length": Case(
        {**LENGTHS, "group_dro_annotators": {TOKENS: (40.0, 40.5, 41.0)}},
        [{"group_dro_annotators": {TOKENS: (28.0, 37.0, 44.0)}}],
    ),
    "gap_markdown": Case(
        {"dpo": {MARKDOWN_GAP: (0.05, 0.06, 0.07)}}, [{"dpo": {MARKDOWN_GAP: (-0.02, 0.01, 0.05)}}]
    ),
    "closes_markdown": Case(*gaps("markdown")),
    "rdpo_gap_markdown": Case(
        {"rdpo": {MARKDOWN_GAP: (-0.05, -0.04, -0.03)}, "sampo": {MARKDOWN_GAP: (0.05, 0.06, 0.07)}},
        [{"rdpo": {MARKDOWN_GAP: 0.01}}, {"sampo": {MARKDOWN_GAP: -0.01}}],
    ),
    "free_length": Case(
        {**LENGTHS, "pooled-length": {TOKENS: 34.0}, "per_annotator-length": {TOKENS: (37.0, 37.5, 38.0)}},
        [{"per_annotator-length": {TOKENS: (31.0, 35.0, 38.0)}}],
    ),
    "warm_length": Case(
        {
            **SHORTER,
            "pooled_warm-length": {TOKENS: (34.2, 34.6, 35.1)},
            "shared_mean_warm-length": {TOKENS: (34.2, 34.6, 35.1)},
        },
        [{"pooled_warm-length": {TOKENS: 31.0}}, {"shared_mean_warm-length": {TOKENS: 39.0}}],
        wide={"pooled_warm-length": {TOKENS: (31.0, 34.5, 38.0)}},
    ),
    "strong_rdpo": Case(
        {"rdpo": {TOKENS: (32.0, 33.0, 34.0)}, "rdpo_strong": {TOKENS: (22.0, 22.5, 23.0)}},
        [{"rdpo_strong": {TOKENS: (22.0, 33.0, 40.0)}}],
    ),
}

ALLOW_FOR_WIDTH = {
    "kl_names",
    "agree_names",
    "class_names",
    "samples_saturate",
    "votes_ceiling",
    "votes_chance",
    "warm_length",
}
SHARES = {
    "removes_names",
    "agree_names",
    "group_dro_names",
    "class_names",
    "shuffled_names",
    "free_names",
    "undeclared_names",
    "length_methods_names",
    "lora_rate",
    "removes_length",
    "group_dro_length",
    "free_length",
    "warm_length",
}


# -- every pattern -----------------------------------------------------------------------------------------------


def test_every_pattern_has_a_case():
    assert set(CASES) == set(PATTERNS)
    assert {name for name, case in CASES.items() if case.wide} == ALLOW_FOR_WIDTH


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_is_reproduced_where_it_is_there(tmp_path, name):
    found = verdict_of(name, tmp_path, CASES[name].holds)
    assert (found.verdict, found.holds) == ("reproduced", True), found.figures


@pytest.mark.parametrize(
    ("name", "place"), [(name, i) for name, case in CASES.items() for i in range(len(case.fails))]
)
def test_each_of_its_readings_can_fail_it(tmp_path, name, place):
    shown = verdict_of(name, tmp_path / "holds", CASES[name].holds)
    assert len(shown.figures) == len(CASES[name].fails)
    found = verdict_of(name, tmp_path / "fails", changed(CASES[name].holds, CASES[name].fails[place]))
    assert (found.verdict, found.holds) == ("pattern not reproduced", False), found.figures
    assert found.figures[place] != shown.figures[place]


@pytest.mark.parametrize("name", sorted(ALLOW_FOR_WIDTH))
def test_an_interval_that_reaches_past_a_bound_decides_nothing(tmp_path, name):
    wide = CASES[name].wide
    assert wide is not None
    found = verdict_of(name, tmp_path, changed(CASES[name].holds, wide))
    assert (found.verdict, found.holds) == ("undecided", None), found.figures


@pytest.mark.parametrize("name", PATTERNS)
def test_a_missing_seed_of_any_run_leaves_it_unmeasured(tmp_path, name):
    for condition in CASES[name].holds:
        if condition == "reference":
            continue
        folder = tmp_path / condition
        place_in(folder, CASES[name].holds)
        (folder / f"{condition}-s456" / "readouts.json").unlink()
        found = PATTERNS[name](Found(folder, SEEDS))
        assert (found.verdict, found.holds) == ("not measured", None), condition
        assert any("not measured, 2 of 3 seeds" in figure for figure in found.figures), condition


@pytest.mark.parametrize("name", PATTERNS)
def test_where_one_seed_is_planned_its_value_decides(tmp_path, name):
    place_in(tmp_path, CASES[name].holds, seeds=SEEDS[:1])
    found = PATTERNS[name](Found(tmp_path, SEEDS, dict.fromkeys(CASES[name].holds, SEEDS[:1])))
    assert found.verdict == "reproduced", found.figures
    assert all("one seed, no interval" in figure for figure in found.figures)


@pytest.mark.parametrize("name", PATTERNS)
def test_no_share_is_removed_of_a_shift_that_dpo_did_not_make(tmp_path, name):
    still: Readouts = {
        condition: {
            WOMAN: (0.45, 0.5, 0.58),
            BLACK: (0.45, 0.5, 0.58),
            TOKENS: (28.0, 30.0, 33.0),
        }
        for condition in ("dpo", "dpo_lora", "dpo_lora_fast")
    }
    found = verdict_of(name, tmp_path, changed(CASES[name].holds, still))
    reasons = ["own shift in" in figure for figure in found.figures]
    assert all(reasons) if name in SHARES else not any(reasons)
    if name in SHARES:
        assert (found.verdict, found.holds) == ("not measured", None)


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_without_its_runs_is_not_measured(tmp_path, name):
    found = PATTERNS[name](Found(tmp_path, SEEDS))
    assert (found.verdict, found.holds, found.is_begun) == ("not measured", None, False)
    assert all("not measured, 0 of 3 seeds" in figure for figure in found.figures)


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
    assert found.conditions <= {row.condition.name for panel in SUITES[name].panels for row in panel.rows}


# -- several corpora -----------------------------------------------------------------------------------------------


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
    assert [found.sentence for found in found_patterns(("amplifies_names",), [panels[0], panels[2]])] == [
        "DPO amplifies both attributes"
    ]
    assert [found.verdict for found in found_patterns(("amplifies_names",), [panels[2]] * 2)] == [
        "not measured"
    ]


# -- orders ----------------------------------------------------------------------------------------------------------


def reading(*values: float, n_planned: int | None = None, reason: str = "") -> Reading:
    planned = tuple(range(len(values) if n_planned is None else n_planned))
    return Reading(dict(enumerate(values)), planned, reason)


APART, ACROSS = reading(0.9, 1.0, 1.1), reading(-3.0, 1.0, 4.0)  # 0.752 to 1.248; -8.4 to 9.7


def test_above_and_below_ask_for_the_whole_interval():
    assert above("x", APART).verdict == "reproduced" == below("x", APART, 1.3).verdict
    assert above("x", APART, 0.8).verdict == "pattern not reproduced" == below("x", APART, 1.2).verdict
    assert above("x", ACROSS).verdict == "pattern not reproduced" == below("x", ACROSS).verdict


def test_within_and_not_above_are_left_open_by_an_interval_on_both_sides():
    found = [within("x", APART, 1.0, distance).verdict for distance in (0.3, 0.2)]
    assert found == ["reproduced", "undecided"]
    assert (
        within("x", APART, 1.5, 0.2).verdict == "pattern not reproduced" == within("x", APART, 0, 0.5).verdict
    )
    assert within("x", reading(-0.9, 0.0, 0.9), 0.0, 0.1).verdict == "undecided"
    found = [not_above("x", APART, 0.5, margin).verdict for margin in (0.8, 0.5, 0.2)]
    assert found == ["reproduced", "undecided", "pattern not reproduced"]
    assert not_above("x", reading(0.001, 0.20, 0.40)).verdict == "undecided"


def test_one_planned_seed_is_compared_by_itself_and_one_of_three_not_at_all():
    assert above("x", reading(0.5)).verdict == "reproduced" == not_above("x", reading(0.0)).verdict
    assert not_above("x", reading(0.1), 0.0, 0.05).verdict == "pattern not reproduced"
    short = above("x", reading(0.5, n_planned=3))
    assert (short.verdict, short.figure, short.is_begun) == (
        "not measured",
        "x: not measured, 1 of 3 seeds",
        True,
    )
    assert above("x", reading(n_planned=0)).verdict == "not measured"


def test_a_difference_is_of_the_seeds_of_both():
    one = Reading({42: 3.0, 123: 5.0}, (42, 123, 456))
    found = one.minus(Reading({42: 1.0, 456: 1.0}, (42, 456), "no shift"))
    assert (found.values, found.planned, found.reason) == ({42: 2.0}, (42, 456), "no shift")
    assert found.minus(one).reason == "no shift" == above("x", found).figure.removeprefix("x: ")


def test_a_failing_reading_comes_before_a_missing_one_and_that_before_an_open_one():
    good, bad, missing = above("x", reading(1.0)), above("x", reading(-1.0)), above("x", reading(n_planned=3))
    wide = within("x", ACROSS, 0.0, 1.0)
    assert pattern("p", [good, good]).verdict == "reproduced"
    assert pattern("p", [good, wide]).verdict == "undecided"
    assert pattern("p", [wide, good, missing]).verdict == "not measured"
    assert pattern("p", [wide, missing, bad]).verdict == "pattern not reproduced"
