"""What the paper found, as orders that a suite's readouts either show or do not.

The bounds were set before any suite was run: half of DPO's shift for "most of it", a tenth of it for "agree", 0.15 of
it for "meet", a quarter for "near DPO's level", 0.05 around one half for "chance", 0.02 for "at the ceiling". What was
put in after the runs of `names` had been seen, and what it decides, stands in ``docs/reproduce.md``.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf
from typing import Literal, NamedTuple

import pandas as pd

from badpo.results.words import signed
from badpo.theory.summaries import t_interval
from badpo_paper.tables import Found

Verdict = Literal["reproduced", "pattern not reproduced", "undecided", "not measured"]
# Of several readings the pattern has the first of these that one of them has: one that fails fails it.
VERDICTS: tuple[Verdict, ...] = (
    "pattern not reproduced",
    "not measured",
    "undecided",
    "reproduced",
)


# -- orders -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Order:
    """What is asked of a reading: where its interval over seeds lies, or its value where one seed is all.

    ``asked`` says it in words, with the bounds as ``{low}`` and ``{high}``. Where it ``may_be_open`` an interval that
    reaches past a bound decides nothing; else it decides against. The bounds are shares of the mean of the source
    ``of``, where there is one.
    """

    asked: str
    low: float = -inf
    high: float = inf
    may_be_open: bool = False
    of: str = ""

    def verdict(self, low: float, high: float) -> Verdict:
        """What an interval from its low to its high end says."""
        if not self.may_be_open:
            return "reproduced" if self.low < low and high < self.high else "pattern not reproduced"
        if low > self.high or high < self.low:
            return "pattern not reproduced"
        return "reproduced" if self.low <= low and high <= self.high else "undecided"


def above(bound: float = 0.0) -> Order:
    """Above a bound."""
    return Order("above {low}", low=bound)


def below(bound: float = 0.0) -> Order:
    """Below a bound."""
    return Order("below {high}", high=bound)


def not_above(bound: float = 0.0, of: str = "") -> Order:
    """No further up than a bound."""
    return Order("not above {high}", high=bound, may_be_open=True, of=of)


def within(distance: float, center: float = 0.0) -> Order:
    """No further than this from a value."""
    return Order("within {low} to {high}", center - distance, center + distance, may_be_open=True)


# -- readings ---------------------------------------------------------------------------------------------------------


class Check(NamedTuple):
    """One reading of a pattern in words with its interval, what it says, and whether any of its runs are there."""

    figure: str
    verdict: Verdict
    is_begun: bool


def read(found: Found, source: str) -> tuple[pd.Series, str]:
    """A number for each planned seed, NaN where it lacks; and why there can be none, or nothing.

    A source is a condition and a column's source (`badpo_paper.suites.Columns`), such as ``pooled tokens.mean``; a
    share removed is of DPO's shift, or of that of a condition that is named last. Two of them with a minus between them
    are read as their difference, each seed against itself.
    """
    one, _, other = source.partition(" - ")
    if other:
        (values, reason), (others, other_reason) = read(found, one), read(found, other)
        both = pd.concat([values, others], axis=1, join="inner")
        return both[0] - both[1], reason or other_reason
    condition, column, against = (*source.split(), "dpo")[:3]
    planned, reason = found.planned(condition), ""
    if column.startswith("removed:"):
        planned = tuple(seed for seed in planned if seed in found.planned(against))
        reason = found.no_share(against, column.removeprefix("removed:"))
    values = found.values(condition, column, against)
    return pd.Series(values, dtype=float).reindex(planned), reason


def check(name: str, values: pd.Series, order: Order, places: int = 3, reason: str = "") -> Check:
    """What a reading says of an order; not measured where a planned seed lacks, or there is a reason."""
    known = values.dropna().to_numpy()
    if reason:
        return Check(f"{name}: {reason}", "not measured", True)
    if not len(known) or len(known) < len(values):
        seeds = f"{len(known)} of {len(values)} seeds"
        return Check(f"{name}: not measured, {seeds}", "not measured", len(known) > 0)
    low = high = estimate = known[0]
    ends = "one seed, no interval"
    if len(known) > 1:
        found = t_interval(known)
        estimate, low, high = found.estimate, found.low, found.high
        ends = f"95 % interval {signed(low, places)} to {signed(high, places)}, {len(known)} seeds"
    asked = order.asked.format(low=signed(order.low, places), high=signed(order.high, places))
    told = f"{name}: {signed(estimate, places)} ({ends}; asked: {asked})"
    return Check(told, order.verdict(low, high), True)


# -- the patterns -----------------------------------------------------------------------------------------------------

MOST, AGREE, MEET, NEAR, CHANCE, CEILING, CORRELATED = 0.5, 0.1, 0.15, 0.25, 0.05, 0.02, 0.90
# What stands for a field of a label and a source, one after the other.
EACH = {"arm": ("pooled", "shared_mean"), "name": ("woman", "black"), "letter": ("A", "B", "C")}
# With how many decimals columns are told, by how they begin, where these are not three.
PLACES = {"removed:": 2, "theta.": 2, "shift:tokens": 1, "tokens": 1, "kl": 4}
REMOVED = "removed:rates.{name}.rate"
LENGTH_GAP, MARKDOWN_GAP = "heldout.length.gap", "heldout.markdown.gap"

# For each pattern what the paper found, and of each reading its label, its source, and the order that is asked.
ASKED = {
    "kl_names": (
        "They do so at no higher KL than DPO, to a tenth of its own",
        [
            (
                "KL of {arm} minus DPO's",
                "{arm} kl.per_token - dpo kl.per_token",
                not_above(AGREE, of="dpo kl.per_token"),
            )
        ],
    ),
    "amplifies_names": (
        "DPO amplifies both attributes",
        [("DPO minus reference, {name}", "dpo shift:rates.{name}.rate", above())],
    ),
    "removes_names": (
        "Pooled and shared mean each remove more than half of DPO's shift",
        [("removed by {arm}, {name}", "{arm} " + REMOVED, above(MOST))],
    ),
    "agree_names": (
        "Pooled and shared mean agree to a tenth of DPO's shift",
        [
            (
                "removed by shared mean minus pooled, {name}",
                f"shared_mean {REMOVED} - pooled {REMOVED}",
                within(AGREE),
            )
        ],
    ),
    "group_dro_names": (
        "Group-DRO removes less than half of it",
        [("removed by Group-DRO, {name}", f"group_dro {REMOVED}", below(MOST))],
    ),
    "theta_correlation": (
        "theta of shared mean correlates with the planted values by more than 0.90",
        [("correlation, {name}", "shared_mean theta.{name}.correlation", above(CORRELATED))],
    ),
    "class_names": (
        "Class offsets remove at least as much as pooled, to a tenth of DPO's shift",
        [
            (
                "removed by pooled minus class, {name}",
                f"pooled {REMOVED} - class {REMOVED}",
                not_above(AGREE),
            )
        ],
    ),
    "shuffled_names": (
        "Shuffled ids remove less than pooled",
        [
            (
                "removed by shuffled_ids minus pooled, {name}",
                f"shuffled_ids {REMOVED} - pooled {REMOVED}",
                below(),
            )
        ],
    ),
    # by how much depends on scale
    "free_names": (
        "One theta per annotator removes less than pooled",
        [
            (
                "removed by per_annotator minus pooled, {name}",
                f"per_annotator {REMOVED} - pooled {REMOVED}",
                below(),
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
            )
        ],
    ),
    "length_methods_names": (
        "The two length methods remove less than half of it",
        [
            ("removed by R-DPO, {name}", f"rdpo {REMOVED}", below(MOST)),
            ("removed by SamPO, {name}", f"sampo {REMOVED}", below(MOST)),
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
            )
        ],
    ),
    "amplifies_length": (
        "DPO lengthens the answers",
        [("DPO minus reference, tokens", "dpo shift:tokens.mean", above())],
    ),
    "removes_length": (
        "Pooled and shared mean take a part of it away",
        [("removed by {arm}", "{arm}-length removed:tokens.mean", above())],
    ),
    "gap_length": (
        "DPO opens a held-out gap on length, and both variants make it smaller",
        [
            ("DPO's gap", f"dpo {LENGTH_GAP}", above()),
            (
                "gap of {arm} minus DPO's",
                f"{{arm}}-length {LENGTH_GAP} - dpo {LENGTH_GAP}",
                below(),
            ),
        ],
    ),
    "rdpo_gap": (
        "R-DPO turns the gap negative",
        [("R-DPO's gap", f"rdpo {LENGTH_GAP}", below())],
    ),
    "sampo_gap": (
        "SamPO does not close the gap",
        [("SamPO's gap", f"sampo {LENGTH_GAP}", above())],
    ),
    # a lean that everyone shares is no disagreement between groups
    "group_dro_length": (
        "Group-DRO removes less than half of the lengthening",
        [("removed by Group-DRO", "group_dro_annotators removed:tokens.mean", below(MOST))],
    ),
    "gap_markdown": (
        "DPO opens a held-out gap on Markdown",
        [("DPO's gap", f"dpo {MARKDOWN_GAP}", above())],
    ),
    "closes_markdown": (
        "Both variants make that gap smaller",
        [
            (
                "gap of {arm} minus DPO's",
                f"{{arm}}-markdown {MARKDOWN_GAP} - dpo {MARKDOWN_GAP}",
                below(),
            )
        ],
    ),
    "rdpo_gap_markdown": (
        "Under Markdown R-DPO's gap is negative and SamPO's is not closed",
        [
            ("R-DPO's gap", f"rdpo {MARKDOWN_GAP}", below()),
            ("SamPO's gap", f"sampo {MARKDOWN_GAP}", above()),
        ],
    ),
    "free_length": (
        "theta_k only removes less than pooled",
        [
            (
                "removed by theta_k only minus pooled",
                "per_annotator-length removed:tokens.mean - pooled-length removed:tokens.mean",
                below(),
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
            )
        ],
    ),
    "strong_rdpo": (
        "A penalty four times as strong makes the answers shorter still",
        [("tokens, minus R-DPO", "rdpo_strong tokens.mean - rdpo tokens.mean", below())],
    ),
}
PATTERNS = tuple(ASKED)


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


def found_pattern(name: str, found: Found) -> Pattern:
    """One of the patterns on the runs of a panel."""
    sentence, asked = ASKED[name]
    checks = [one for reading in asked for one in _checks(found, *reading)]
    verdict = min((one.verdict for one in checks), key=VERDICTS.index)
    figures = tuple(one.figure for one in checks)
    return Pattern(sentence, verdict, figures, any(one.is_begun for one in checks))


def _checks(found: Found, label: str, source: str, order: Order) -> Iterator[Check]:
    """The readings of a label and a source with everything that stands for their fields."""
    if order.of:
        mean = read(found, order.of)[0].mean()
        order = replace(order, low=order.low * mean, high=order.high * mean)
    column = source.split()[1]
    places = next((n for start, n in PLACES.items() if column.startswith(start)), 3)
    fields = [field for field in EACH if f"{{{field}}}" in label]
    for values in product(*map(EACH.__getitem__, fields)):
        given = dict(zip(fields, values, strict=True))
        reading, reason = read(found, source.format(**given))
        yield check(label.format(**given), reading, order, places, reason)


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
