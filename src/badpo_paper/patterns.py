"""What the paper found, as orders that a suite's readouts either show or do not.

The bounds were set before any suite was run: half of DPO's shift for "most of it", a tenth of it for "agree", 0.15 of
it for "meet", a quarter for "near DPO's level", 0.05 around one half for "chance", 0.02 for "at the ceiling". What was
put in after the runs of `names` had been seen, and what it decides, stands in ``docs/reproduce.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Literal

from badpo.results.words import signed
from badpo.theory.summaries import t_interval
from badpo_paper.tables import Found, place_of

Verdict = Literal["reproduced", "pattern not reproduced", "undecided", "not measured"]
# Of several readings the pattern has the first of these that one of them has.
VERDICTS: tuple[Verdict, ...] = ("pattern not reproduced", "not measured", "undecided", "reproduced")
# What the interval from its low to its high end says of an order; None where it says neither.
Order = Callable[[float, float], bool | None]


@dataclass(frozen=True)
class Reading:
    """A number at each seed."""

    values: Mapping[int, float]
    planned: tuple[int, ...]
    reason: str = ""

    def minus(self, other: Reading) -> Reading:
        """The difference from another reading, each seed against itself."""
        values = {
            seed: self.values[seed] - other.values[seed] for seed in self.values if seed in other.values
        }
        planned = tuple(seed for seed in self.planned if seed in other.planned)
        return Reading(values, planned, self.reason or other.reason)


@dataclass(frozen=True)
class Check:
    """One reading of a pattern in words with its interval, what it says, and whether any of its runs are there."""

    figure: str
    verdict: Verdict
    is_begun: bool


@dataclass(frozen=True)
class Pattern:
    """Whether an order was found."""

    sentence: str
    verdict: Verdict
    figures: tuple[str, ...]
    is_begun: bool

    @property
    def holds(self) -> bool | None:
        """None where nothing was decided."""
        return {"reproduced": True, "pattern not reproduced": False}.get(self.verdict)


def pattern(sentence: str, checks: Sequence[Check]) -> Pattern:
    """A pattern holds where all of its readings do; one that fails fails it, whatever the others say."""
    verdict = min((check.verdict for check in checks), key=VERDICTS.index)
    figures = tuple(check.figure for check in checks)
    return Pattern(sentence, verdict, figures, any(check.is_begun for check in checks))


# -- orders --------------------------------------------------------------------------------------------------
# Each asks for the whole interval; where one seed is all that is planned, for the value itself.


def above(name: str, reading: Reading, bound: float = 0.0, places: int = 3) -> Check:
    """Whether a reading lies above a bound; not reproduced where its interval reaches down to it."""
    return _check(name, reading, places, f"above {signed(bound, places)}", lambda low, high: low > bound)


def below(name: str, reading: Reading, bound: float = 0.0, places: int = 3) -> Check:
    """Whether a reading lies below a bound, as `above`."""
    return _check(name, reading, places, f"below {signed(bound, places)}", lambda low, high: high < bound)


def not_above(name: str, reading: Reading, bound: float = 0.0, margin: float = 0.0, places: int = 3) -> Check:
    """Whether a reading lies no further above a bound than the margin; undecided where its interval reaches past."""
    limit = bound + margin
    return _check(name, reading, places, f"not above {signed(limit, places)}", _inside(-float("inf"), limit))


def within(name: str, reading: Reading, center: float, distance: float, places: int = 3) -> Check:
    """Whether a reading is no further than this from a value; undecided where its interval reaches past."""
    low, high = center - distance, center + distance
    words = f"within {signed(low, places)} to {signed(high, places)}"
    return _check(name, reading, places, words, _inside(low, high))


def _inside(least: float, most: float) -> Order:
    def order(low: float, high: float) -> bool | None:
        if low > most or high < least:
            return False
        return True if least <= low and high <= most else None

    return order


def _check(name: str, reading: Reading, places: int, asked: str, order: Order) -> Check:
    known = [reading.values[seed] for seed in reading.planned if seed in reading.values]
    if reading.reason:
        return Check(f"{name}: {reading.reason}", "not measured", True)
    if not known or len(known) < len(reading.planned):
        seeds = f"{len(known)} of {len(reading.planned)} seeds"
        return Check(f"{name}: not measured, {seeds}", "not measured", bool(known))
    if len(known) == 1:
        estimate = low = high = known[0]
        ends = "one seed, no interval"
    else:
        found = t_interval(known)
        estimate, low, high = found.estimate, found.low, found.high
        ends = f"95 % interval {signed(low, places)} to {signed(high, places)}, {len(known)} seeds"
    verdicts: dict[bool | None, Verdict] = {
        True: "reproduced",
        False: "pattern not reproduced",
        None: "undecided",
    }
    return Check(
        f"{name}: {signed(estimate, places)} ({ends}; asked: {asked})", verdicts[order(low, high)], True
    )


# -- readings ------------------------------------------------------------------------------------------------


def plain(found: Found, condition: str, place: str) -> Reading:
    """A reading as it stands in ``readouts.json``."""
    return Reading(found.values(condition, place), found.planned(condition))


def shifts(found: Found, condition: str, place: str) -> Reading:
    """A condition's reading minus the reference's."""
    base = place_of(found.readouts("reference"), place)
    values = {} if base is None else {s: v - base for s, v in found.values(condition, place).items()}
    return Reading(values, found.planned(condition))


def removed(found: Found, condition: str, place: str, against: str = "dpo") -> Reading:
    """Share of DPO's shift that a condition does not make; not defined where DPO made none."""
    planned = tuple(seed for seed in found.planned(condition) if seed in found.planned(against))
    values = found.values(condition, f"removed:{place}", against)
    return Reading(values, planned, found.no_share(against, place))


# -- the patterns ----------------------------------------------------------------------------------------------------

MOST, AGREE, MEET, CHANCE, CEILING, CORRELATED = 0.5, 0.1, 0.15, 0.05, 0.02, 0.90
WOMAN, BLACK = "rates.woman.rate", "rates.black.rate"
NAMES = (("woman", WOMAN), ("black", BLACK))
KL, TOKENS = "kl.per_token", "tokens.mean"
BA = ("pooled", "shared_mean")

# Reads a number at each seed from the runs that were found.
Reads = Callable[[Found], Reading]


def _plain(condition: str, place: str) -> Reads:
    return lambda found: plain(found, condition, place)


def _shift(condition: str, place: str) -> Reads:
    return lambda found: shifts(found, condition, place)


def _removed(condition: str, place: str, against: str = "dpo") -> Reads:
    return lambda found: removed(found, condition, place, against)


def _minus(one: Reads, other: Reads) -> Reads:
    return lambda found: one(found).minus(other(found))


def _more_removed(one: str, other: str, place: str) -> Reads:
    return _minus(_removed(one, place), _removed(other, place))


def _gap(condition: str, attribute: str) -> Reads:
    return _plain(condition, f"heldout.{attribute}.gap")


def _less_than_pooled(arm: str) -> list[tuple]:
    return [
        (below, f"removed by {arm} minus pooled, {name}", _more_removed(arm, "pooled", place), 0.0, 2)
        for name, place in NAMES
    ]


def _smaller_gap(attribute: str) -> list[tuple]:
    of_dpo = _gap("dpo", attribute)
    return [
        (below, f"gap of {arm} minus DPO's", _minus(_gap(f"{arm}-{attribute}", attribute), of_dpo))
        for arm in BA
    ]


# What the paper found, and for each reading the order that is asked of it: order, label, reading, and its bounds.
ASKED: dict[str, tuple[str, list[tuple]]] = {
    "amplifies_names": (
        "DPO amplifies both attributes",
        [(above, f"DPO minus reference, {name}", _shift("dpo", place)) for name, place in NAMES],
    ),
    "removes_names": (
        "Pooled and shared mean each remove more than half of DPO's shift",
        [
            (above, f"removed by {arm}, {name}", _removed(arm, place), MOST, 2)
            for arm in BA
            for name, place in NAMES
        ],
    ),
    "agree_names": (
        "Pooled and shared mean agree to a tenth of DPO's shift",
        [
            (
                within,
                f"removed by shared mean minus pooled, {name}",
                _more_removed("shared_mean", "pooled", place),
                0.0,
                AGREE,
                2,
            )
            for name, place in NAMES
        ],
    ),
    "group_dro_names": (
        "Group-DRO removes less than half of it",
        [
            (below, f"removed by Group-DRO, {name}", _removed("group_dro", place), MOST, 2)
            for name, place in NAMES
        ],
    ),
    "theta_correlation": (
        "theta of shared mean correlates with the planted values by more than 0.90",
        [
            (above, f"correlation, {name}", _plain("shared_mean", f"theta.{name}.correlation"), CORRELATED, 2)
            for name, _ in NAMES
        ],
    ),
    "class_names": (
        "Class offsets remove at least as much as pooled, to a tenth of DPO's shift",
        [
            (
                not_above,
                f"removed by pooled minus class, {name}",
                _more_removed("pooled", "class", place),
                0.0,
                AGREE,
                2,
            )
            for name, place in NAMES
        ],
    ),
    "shuffled_names": ("Shuffled ids remove less than pooled", _less_than_pooled("shuffled_ids")),
    # by how much depends on scale
    "free_names": ("One theta per annotator removes less than pooled", _less_than_pooled("per_annotator")),
    "undeclared_names": (
        "Declaring one attribute leaves the other near DPO's level",
        [
            (
                below,
                "removed of the undeclared attribute, black",
                _removed("declared_subset", BLACK),
                0.25,
                2,
            )
        ],
    ),
    "length_methods_names": (
        "The two length methods remove less than half of it",
        [
            (below, f"removed by {label}, {name}", _removed(arm, place), MOST, 2)
            for arm, label in (("rdpo", "R-DPO"), ("sampo", "SamPO"))
            for name, place in NAMES
        ],
    ),
    "samples_saturate": (
        "DPO's sampled rates are no lower than its rates by probability",
        [
            (
                not_above,
                f"DPO's rate by probability minus by samples, {name}",
                _minus(_plain("dpo", place), _plain("dpo", f"sampled.{name}.rate")),
            )
            for name, place in NAMES
        ],
    ),
    "votes_ceiling": (
        "Shared mean predicts votes at the ceiling in every class",
        [
            (
                within,
                f"shared mean minus ceiling, race, class {name}",
                _plain("shared_mean", f"votes_minus_ceiling.black.{name}.difference"),
                0.0,
                CEILING,
            )
            for name in ("A", "B", "C")
        ],
    ),
    "votes_chance": (
        "Pooled is at chance in class B",
        [(within, "pooled, race, class B", _plain("pooled", "votes.black.B.accuracy"), 0.5, CHANCE)],
    ),
    "lora_rate": (
        "A larger LoRA rate removes less",
        [
            (
                below,
                f"removed at the larger rate minus the smaller, {name}",
                _minus(
                    _removed("pooled_lora_fast", place, "dpo_lora_fast"),
                    _removed("pooled_lora", place, "dpo_lora"),
                ),
                0.0,
                2,
            )
            for name, place in NAMES
        ],
    ),
    "amplifies_length": (
        "DPO lengthens the answers",
        [(above, "DPO minus reference, tokens", _shift("dpo", TOKENS), 0.0, 1)],
    ),
    "removes_length": (
        "Pooled and shared mean take a part of it away",
        [(above, f"removed by {arm}", _removed(f"{arm}-length", TOKENS), 0.0, 2) for arm in BA],
    ),
    "gap_length": (
        "DPO opens a held-out gap on length, and both variants make it smaller",
        [(above, "DPO's gap", _gap("dpo", "length")), *_smaller_gap("length")],
    ),
    "rdpo_gap": ("R-DPO turns the gap negative", [(below, "R-DPO's gap", _gap("rdpo", "length"))]),
    "sampo_gap": ("SamPO does not close the gap", [(above, "SamPO's gap", _gap("sampo", "length"))]),
    # a lean that everyone shares is no disagreement between groups
    "group_dro_length": (
        "Group-DRO removes less than half of the lengthening",
        [(below, "removed by Group-DRO", _removed("group_dro_annotators", TOKENS), MOST, 2)],
    ),
    "gap_markdown": (
        "DPO opens a held-out gap on Markdown",
        [(above, "DPO's gap", _gap("dpo", "markdown"))],
    ),
    "closes_markdown": ("Both variants make that gap smaller", _smaller_gap("markdown")),
    "rdpo_gap_markdown": (
        "Under Markdown R-DPO's gap is negative and SamPO's is not closed",
        [
            (below, "R-DPO's gap", _gap("rdpo", "markdown")),
            (above, "SamPO's gap", _gap("sampo", "markdown")),
        ],
    ),
    "free_length": (
        "theta_k only removes less than pooled",
        [
            (
                below,
                "removed by theta_k only minus pooled",
                _more_removed("per_annotator-length", "pooled-length", TOKENS),
                0.0,
                2,
            )
        ],
    ),
    "warm_length": (
        "Warm and cold starts meet",
        [
            (
                within,
                f"removed by {arm} started warm minus cold",
                _more_removed(f"{arm}_warm-length", f"{arm}-length", TOKENS),
                0.0,
                MEET,
                2,
            )
            for arm in BA
        ],
    ),
    "strong_rdpo": (
        "A penalty four times as strong makes the answers shorter still",
        [
            (
                below,
                "tokens, minus R-DPO",
                _minus(_plain("rdpo_strong", TOKENS), _plain("rdpo", TOKENS)),
                0.0,
                1,
            )
        ],
    ),
}


def asked_pattern(name: str, found: Found) -> Pattern:
    """One of the patterns on the runs of a panel."""
    sentence, orders = ASKED[name]
    return pattern(sentence, [order(label, reads(found), *bounds) for order, label, reads, *bounds in orders])


def kl_names(found: Found) -> Pattern:
    """Neither variant goes further from the reference than DPO; the margin is a share of DPO's own divergence."""
    dpo = plain(found, "dpo", KL)
    margin = AGREE * fmean(dpo.values.values()) if dpo.values else 0.0
    checks = [
        not_above(f"KL of {arm} minus DPO's", plain(found, arm, KL).minus(dpo), margin=margin, places=4)
        for arm in BA
    ]
    return pattern("They do so at no higher KL than DPO, to a tenth of its own", checks)


PATTERNS: dict[str, Callable[[Found], Pattern]] = {
    "kl_names": kl_names,
    **{name: partial(asked_pattern, name) for name in ASKED},
}


def found_patterns(names: Sequence[str], panels: Sequence[Found]) -> list[Pattern]:
    """Every pattern on every panel that has some of its runs; the first panel's where none has."""
    results = []
    for name in names:
        each = [(found, PATTERNS[name](found)) for found in panels]
        begun = [(found, one) for found, one in each if one.is_begun] or each[:1]
        for found, one in begun:
            where = f" ({found.folder.name})" if len(begun) > 1 else ""
            results.append(replace(one, sentence=one.sentence + where))
    return results
