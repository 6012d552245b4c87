"""What the paper found, as orders that a suite's readouts either show or do not.

The bounds were set before any suite was run: half of DPO's shift for "most of it", a tenth of it for "agree", 0.15 of
it for "meet", a quarter for "near DPO's level", 0.05 around one half for "chance", 0.02 for "at the ceiling". What was
put in after the runs of `names` had been seen, and what it decides, stands in ``docs/reproduce.md``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf
from statistics import fmean
from string import Formatter
from typing import Literal

from badpo.results.words import signed
from badpo.theory.summaries import t_interval
from badpo_paper.tables import Found

Verdict = Literal["reproduced", "pattern not reproduced", "undecided", "not measured"]
# Of several readings the pattern has the first of these that one of them has.
VERDICTS: tuple[Verdict, ...] = ("pattern not reproduced", "not measured", "undecided", "reproduced")


# -- orders -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Order:
    """What is asked of a reading: where its interval over seeds lies, or its value where one seed is all.

    Attributes
    ----------
    asked : str
        In words, with the bounds as ``{low}`` and ``{high}``.
    low, high : float
    may_be_open : bool
        Whether an interval that reaches past a bound decides nothing; else it decides against.
    """

    asked: str
    low: float
    high: float
    may_be_open: bool = False

    def verdict(self, low: float, high: float) -> Verdict:
        """What an interval from its low to its high end says."""
        if not self.may_be_open:
            return "reproduced" if self.low < low and high < self.high else "pattern not reproduced"
        if low > self.high or high < self.low:
            return "pattern not reproduced"
        return "reproduced" if self.low <= low and high <= self.high else "undecided"


def above(bound: float = 0.0) -> Order:
    """Above a bound."""
    return Order("above {low}", bound, inf)


def below(bound: float = 0.0) -> Order:
    """Below a bound."""
    return Order("below {high}", -inf, bound)


def not_above(bound: float = 0.0) -> Order:
    """No further up than a bound."""
    return Order("not above {high}", -inf, bound, may_be_open=True)


def within(distance: float, center: float = 0.0) -> Order:
    """No further than this from a value."""
    return Order("within {low} to {high}", center - distance, center + distance, may_be_open=True)


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


# -- readings ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reading:
    """A number at each seed."""

    values: Mapping[int, float]
    planned: tuple[int, ...]
    reason: str = ""

    def minus(self, other: Reading) -> Reading:
        """The difference from another reading, each seed against itself."""
        both = self.values.keys() & other.values.keys()
        values = {seed: self.values[seed] - other.values[seed] for seed in both}
        planned = tuple(seed for seed in self.planned if seed in other.planned)
        return Reading(values, planned, self.reason or other.reason)

    def check(self, name: str, order: Order, places: int = 3) -> Check:
        """What the reading says of an order; not measured where a planned seed lacks, or there is a reason."""
        known = [self.values[seed] for seed in self.planned if seed in self.values]
        if self.reason:
            return Check(f"{name}: {self.reason}", "not measured", True)
        if not known or len(known) < len(self.planned):
            seeds = f"{len(known)} of {len(self.planned)} seeds"
            return Check(f"{name}: not measured, {seeds}", "not measured", bool(known))
        low = high = estimate = known[0]
        ends = "one seed, no interval"
        if len(known) > 1:
            found = t_interval(known)
            estimate, low, high = found.estimate, found.low, found.high
            ends = f"95 % interval {signed(low, places)} to {signed(high, places)}, {len(known)} seeds"
        asked = order.asked.format(low=signed(order.low, places), high=signed(order.high, places))
        told = f"{name}: {signed(estimate, places)} ({ends}; asked: {asked})"
        return Check(told, order.verdict(low, high), True)


def read(found: Found, source: str) -> Reading:
    """A reading by its source, or the difference of two with a minus between them.

    A source is a condition and a column's source (`badpo_paper.suites.Column`), such as ``pooled tokens.mean``; a share
    removed is of DPO's shift, or of that of a condition that is named last.
    """
    one, _, other = source.partition(" - ")
    if other:
        return read(found, one).minus(read(found, other))
    condition, column, against = (*source.split(), "dpo")[:3]
    planned, reason = found.planned(condition), ""
    if column.startswith("removed:"):
        planned = tuple(seed for seed in planned if seed in found.planned(against))
        reason = found.no_share(against, column.removeprefix("removed:"))
    return Reading(found.values(condition, column, against), planned, reason)


# -- the patterns -----------------------------------------------------------------------------------------------------

MOST, AGREE, MEET, NEAR, CHANCE, CEILING, CORRELATED = 0.5, 0.1, 0.15, 0.25, 0.05, 0.02, 0.90
# What stands for a field of a label and a source, one after the other.
EACH = {"arm": ("pooled", "shared_mean"), "name": ("woman", "black"), "letter": ("A", "B", "C")}
# Shares are told with two decimals, tokens with one.
SHARES, TOKENS = 2, 1
REMOVED = "removed:rates.{name}.rate"
LESS = "removed by {of} minus pooled, {{name}}"

# For each pattern what the paper found, and for each reading its label, its source, the order that is asked, and with
# how many decimals it is told where these are not three.
ASKED: dict[str, tuple[str, list[tuple]]] = {
    "amplifies_names": (
        "DPO amplifies both attributes",
        [("DPO minus reference, {name}", "dpo shift:rates.{name}.rate", above())],
    ),
    "removes_names": (
        "Pooled and shared mean each remove more than half of DPO's shift",
        [("removed by {arm}, {name}", "{arm} " + REMOVED, above(MOST), SHARES)],
    ),
    "agree_names": (
        "Pooled and shared mean agree to a tenth of DPO's shift",
        [
            (
                "removed by shared mean minus pooled, {name}",
                f"shared_mean {REMOVED} - pooled {REMOVED}",
                within(AGREE),
                SHARES,
            )
        ],
    ),
    "group_dro_names": (
        "Group-DRO removes less than half of it",
        [("removed by Group-DRO, {name}", f"group_dro {REMOVED}", below(MOST), SHARES)],
    ),
    "theta_correlation": (
        "theta of shared mean correlates with the planted values by more than 0.90",
        [("correlation, {name}", "shared_mean theta.{name}.correlation", above(CORRELATED), SHARES)],
    ),
    "class_names": (
        "Class offsets remove at least as much as pooled, to a tenth of DPO's shift",
        [
            (
                "removed by pooled minus class, {name}",
                f"pooled {REMOVED} - class {REMOVED}",
                not_above(AGREE),
                SHARES,
            )
        ],
    ),
    "shuffled_names": (
        "Shuffled ids remove less than pooled",
        [
            (
                LESS.format(of="shuffled_ids"),
                f"shuffled_ids {REMOVED} - pooled {REMOVED}",
                below(),
                SHARES,
            )
        ],
    ),
    # by how much depends on scale
    "free_names": (
        "One theta per annotator removes less than pooled",
        [
            (
                LESS.format(of="per_annotator"),
                f"per_annotator {REMOVED} - pooled {REMOVED}",
                below(),
                SHARES,
            )
        ],
    ),
    "undeclared_names": (
        "Declaring one attribute leaves the other near DPO's level",
        [
            (
                "removed of the undeclared attribute, black",
                "declared_subset removed:rates.black.rate",
                below(NEAR),
                SHARES,
            )
        ],
    ),
    "length_methods_names": (
        "The two length methods remove less than half of it",
        [
            ("removed by R-DPO, {name}", f"rdpo {REMOVED}", below(MOST), SHARES),
            ("removed by SamPO, {name}", f"sampo {REMOVED}", below(MOST), SHARES),
        ],
    ),
    "samples_saturate": (
        "DPO's sampled rates are no lower than its rates by probability",
        [
            (
                "DPO's rate by probability minus by samples, {name}",
                "dpo rates.{name}.rate - dpo sampled.{name}.rate",
                not_above(),
            )
        ],
    ),
    "votes_ceiling": (
        "Shared mean predicts votes at the ceiling in every class",
        [
            (
                "shared mean minus ceiling, race, class {letter}",
                "shared_mean votes_minus_ceiling.black.{letter}.difference",
                within(CEILING),
            )
        ],
    ),
    "votes_chance": (
        "Pooled is at chance in class B",
        [("pooled, race, class B", "pooled votes.black.B.accuracy", within(CHANCE, 0.5))],
    ),
    "lora_rate": (
        "A larger LoRA rate removes less",
        [
            (
                "removed at the larger rate minus the smaller, {name}",
                f"pooled_lora_fast {REMOVED} dpo_lora_fast - pooled_lora {REMOVED} dpo_lora",
                below(),
                SHARES,
            )
        ],
    ),
    "amplifies_length": (
        "DPO lengthens the answers",
        [("DPO minus reference, tokens", "dpo shift:tokens.mean", above(), TOKENS)],
    ),
    "removes_length": (
        "Pooled and shared mean take a part of it away",
        [("removed by {arm}", "{arm}-length removed:tokens.mean", above(), SHARES)],
    ),
    "gap_length": (
        "DPO opens a held-out gap on length, and both variants make it smaller",
        [
            ("DPO's gap", "dpo heldout.length.gap", above()),
            (
                "gap of {arm} minus DPO's",
                "{arm}-length heldout.length.gap - dpo heldout.length.gap",
                below(),
            ),
        ],
    ),
    "rdpo_gap": ("R-DPO turns the gap negative", [("R-DPO's gap", "rdpo heldout.length.gap", below())]),
    "sampo_gap": (
        "SamPO does not close the gap",
        [("SamPO's gap", "sampo heldout.length.gap", above())],
    ),
    # a lean that everyone shares is no disagreement between groups
    "group_dro_length": (
        "Group-DRO removes less than half of the lengthening",
        [("removed by Group-DRO", "group_dro_annotators removed:tokens.mean", below(MOST), SHARES)],
    ),
    "gap_markdown": (
        "DPO opens a held-out gap on Markdown",
        [("DPO's gap", "dpo heldout.markdown.gap", above())],
    ),
    "closes_markdown": (
        "Both variants make that gap smaller",
        [
            (
                "gap of {arm} minus DPO's",
                "{arm}-markdown heldout.markdown.gap - dpo heldout.markdown.gap",
                below(),
            )
        ],
    ),
    "rdpo_gap_markdown": (
        "Under Markdown R-DPO's gap is negative and SamPO's is not closed",
        [
            ("R-DPO's gap", "rdpo heldout.markdown.gap", below()),
            ("SamPO's gap", "sampo heldout.markdown.gap", above()),
        ],
    ),
    "free_length": (
        "theta_k only removes less than pooled",
        [
            (
                "removed by theta_k only minus pooled",
                "per_annotator-length removed:tokens.mean - pooled-length removed:tokens.mean",
                below(),
                SHARES,
            )
        ],
    ),
    "warm_length": (
        "Warm and cold starts meet",
        [
            (
                "removed by {arm} started warm minus cold",
                "{arm}_warm-length removed:tokens.mean - {arm}-length removed:tokens.mean",
                within(MEET),
                SHARES,
            )
        ],
    ),
    "strong_rdpo": (
        "A penalty four times as strong makes the answers shorter still",
        [("tokens, minus R-DPO", "rdpo_strong tokens.mean - rdpo tokens.mean", below(), TOKENS)],
    ),
}
KL = "kl_names"
PATTERNS = (KL, *ASKED)


def filled(label: str, source: str) -> Iterator[tuple[str, str]]:
    """A label and its source with everything that stands for their fields."""
    fields = [name for _, name, _, _ in Formatter().parse(label) if name]
    for values in product(*(EACH[name] for name in fields)):
        given = dict(zip(fields, values, strict=True))
        yield label.format(**given), source.format(**given)


def found_pattern(name: str, found: Found) -> Pattern:
    """One of the patterns on the runs of a panel."""
    if name == KL:
        return kl_names(found)
    sentence, asked = ASKED[name]
    checks = [
        read(found, source).check(told, order, *places)
        for label, given, order, *places in asked
        for told, source in filled(label, given)
    ]
    return pattern(sentence, checks)


def kl_names(found: Found) -> Pattern:
    """Neither variant goes further from the reference than DPO; the margin is a share of DPO's own divergence."""
    dpo = read(found, "dpo kl.per_token").values
    order = not_above(AGREE * fmean(dpo.values()) if dpo else 0.0)
    checks = [
        read(found, f"{arm} kl.per_token - dpo kl.per_token").check(f"KL of {arm} minus DPO's", order, 4)
        for arm in EACH["arm"]
    ]
    return pattern("They do so at no higher KL than DPO, to a tenth of its own", checks)


def found_patterns(names: Iterable[str], panels: Sequence[Found]) -> list[Pattern]:
    """Every pattern on every panel that has some of its runs; the first panel's where none has."""
    results = []
    for name in names:
        each = [(found, found_pattern(name, found)) for found in panels]
        begun = [(found, one) for found, one in each if one.is_begun] or each[:1]
        for found, one in begun:
            where = f" ({found.folder.name})" if len(begun) > 1 else ""
            results.append(replace(one, sentence=one.sentence + where))
    return results
