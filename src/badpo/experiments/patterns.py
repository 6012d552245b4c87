"""What the paper found, as orders that a suite's readouts either show or do not.

The bounds were set before any suite was run: half of DPO's shift for "most of it", a tenth of it for "agree", 0.15 of
it for "meet", a quarter for "near DPO's level", 0.05 around one half for "chance", 0.02 for "at the ceiling". What was
put in after the runs of `names` had been seen, and what it decides, stands in ``docs/reproduce.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean

from badpo.experiments.pattern_checks import (
    Check,
    Pattern,
    above,
    below,
    not_above,
    pattern,
    plain,
    removed,
    shifts,
    within,
)
from badpo.experiments.suite_tables import Found

MOST, AGREE, MEET, CHANCE, CEILING, CORRELATED = 0.5, 0.1, 0.15, 0.05, 0.02, 0.90
WOMAN, BLACK = "rates.woman.rate", "rates.black.rate"
NAMES = (("woman", WOMAN), ("black", BLACK))
KL, TOKENS = "kl.per_token", "tokens.mean"


# -- names ---------------------------------------------------------------------------------------------------


def amplifies_names(found: Found) -> Pattern:
    """DPO moves both rates up."""
    checks = [above(f"DPO minus reference, {name}", shifts(found, "dpo", place)) for name, place in NAMES]
    return pattern("DPO amplifies both attributes", checks)


def removes_names(found: Found) -> Pattern:
    """Both variants remove most of it."""
    checks = [
        above(f"removed by {arm}, {name}", removed(found, arm, place), MOST, 2)
        for arm in ("pooled", "shared_mean")
        for name, place in NAMES
    ]
    return pattern("Pooled and shared mean each remove more than half of DPO's shift", checks)


def kl_names(found: Found) -> Pattern:
    """Neither goes further from the reference than DPO."""
    dpo = plain(found, "dpo", KL)
    margin = AGREE * fmean(dpo.values.values()) if dpo.values else 0.0
    checks = [
        not_above(f"KL of {arm} minus DPO's", plain(found, arm, KL).minus(dpo), margin=margin, places=4)
        for arm in ("pooled", "shared_mean")
    ]
    return pattern("They do so at no higher KL than DPO, to a tenth of its own", checks)


def agree_names(found: Found) -> Pattern:
    """The two variants give the same policy."""
    checks = [
        within(
            f"removed by shared mean minus pooled, {name}",
            removed(found, "shared_mean", place).minus(removed(found, "pooled", place)),
            0.0,
            AGREE,
            2,
        )
        for name, place in NAMES
    ]
    return pattern("Pooled and shared mean agree to a tenth of DPO's shift", checks)


def group_dro_names(found: Found) -> Pattern:
    """Group-DRO leaves most of it."""
    checks = [below(f"removed by Group-DRO, {n}", removed(found, "group_dro", p), MOST, 2) for n, p in NAMES]
    return pattern("Group-DRO removes less than half of it", checks)


def theta_correlation(found: Found) -> Pattern:
    """The deviations find who leans which way."""
    checks = [
        above(f"correlation, {name}", plain(found, "shared_mean", f"theta.{name}.correlation"), CORRELATED, 2)
        for name, _ in NAMES
    ]
    return pattern("theta of shared mean correlates with the planted values by more than 0.90", checks)


def class_names(found: Found) -> Pattern:
    """Known classes do no harm."""
    checks = [
        not_above(
            f"removed by pooled minus class, {name}",
            removed(found, "pooled", place).minus(removed(found, "class", place)),
            0.0,
            AGREE,
            2,
        )
        for name, place in NAMES
    ]
    return pattern("Class offsets remove at least as much as pooled, to a tenth of DPO's shift", checks)


def _less_than_pooled(found: Found, arm: str) -> list[Check]:
    return [
        below(
            f"removed by {arm} minus pooled, {name}",
            removed(found, arm, place).minus(removed(found, "pooled", place)),
            0.0,
            2,
        )
        for name, place in NAMES
    ]


def shuffled_names(found: Found) -> Pattern:
    """Without identities the parameters lag."""
    return pattern("Shuffled ids remove less than pooled", _less_than_pooled(found, "shuffled_ids"))


def free_names(found: Found) -> Pattern:
    """A theta for each annotator and nothing shared lags too; by how much depends on scale."""
    return pattern(
        "One theta per annotator removes less than pooled", _less_than_pooled(found, "per_annotator")
    )


def undeclared_names(found: Found) -> Pattern:
    """What is not declared stays."""
    values = removed(found, "declared_subset", BLACK)
    check = below("removed of the undeclared attribute, black", values, 0.25, 2)
    return pattern("Declaring one attribute leaves the other near DPO's level", [check])


def length_methods_names(found: Found) -> Pattern:
    """Methods made for length do not touch names."""
    checks = [
        below(f"removed by {label}, {name}", removed(found, arm, place), MOST, 2)
        for arm, label in (("rdpo", "R-DPO"), ("sampo", "SamPO"))
        for name, place in NAMES
    ]
    return pattern("The two length methods remove less than half of it", checks)


def samples_saturate(found: Found) -> Pattern:
    """Samples exaggerate what probabilities say of DPO's policy."""
    checks = [
        not_above(
            f"DPO's rate by probability minus by samples, {name}",
            plain(found, "dpo", place).minus(plain(found, "dpo", f"sampled.{name}.rate")),
        )
        for name, place in NAMES
    ]
    return pattern("DPO's sampled rates are no lower than its rates by probability", checks)


# -- votes ---------------------------------------------------------------------------------------------------


def votes_ceiling(found: Found) -> Pattern:
    """The deviations predict votes as well as the planted theta."""
    checks = []
    for name in ("A", "B", "C"):
        values = plain(found, "shared_mean", f"votes_minus_ceiling.black.{name}.difference")
        checks.append(within(f"shared mean minus ceiling, race, class {name}", values, 0.0, CEILING))
    return pattern("Shared mean predicts votes at the ceiling in every class", checks)


def votes_chance(found: Found) -> Pattern:
    """One level for everyone says nothing of the class that leans the other way."""
    values = plain(found, "pooled", "votes.black.B.accuracy")
    return pattern("Pooled is at chance in class B", [within("pooled, race, class B", values, 0.5, CHANCE)])


def lora_rate(found: Found) -> Pattern:
    """A policy that moves faster than theta keeps more of the bias."""
    checks = []
    for name, place in NAMES:
        slow = removed(found, "pooled_lora", place, "dpo_lora")
        fast = removed(found, "pooled_lora_fast", place, "dpo_lora_fast")
        checks.append(
            below(f"removed at the larger rate minus the smaller, {name}", fast.minus(slow), 0.0, 2)
        )
    return pattern("A larger LoRA rate removes less", checks)


# -- length and Markdown ---------------------------------------------------------------------------------------


def amplifies_length(found: Found) -> Pattern:
    """DPO writes longer answers."""
    check = above("DPO minus reference, tokens", shifts(found, "dpo", TOKENS), 0.0, 1)
    return pattern("DPO lengthens the answers", [check])


def removes_length(found: Found) -> Pattern:
    """BA-DPO lengthens them less."""
    checks = [
        above(f"removed by {arm}", removed(found, f"{arm}-length", TOKENS), 0.0, 2)
        for arm in ("pooled", "shared_mean")
    ]
    return pattern("Pooled and shared mean take a part of it away", checks)


def _smaller_gap(found: Found, attribute: str) -> list[Check]:
    place = f"heldout.{attribute}.gap"
    return [
        below(
            f"gap of {arm} minus DPO's",
            plain(found, f"{arm}-{attribute}", place).minus(plain(found, "dpo", place)),
        )
        for arm in ("pooled", "shared_mean")
    ]


def gap_length(found: Found) -> Pattern:
    """The lean leaves the implicit reward."""
    checks = [above("DPO's gap", plain(found, "dpo", "heldout.length.gap")), *_smaller_gap(found, "length")]
    return pattern("DPO opens a held-out gap on length, and both variants make it smaller", checks)


def rdpo_gap(found: Found) -> Pattern:
    """A penalty on length inverts the lean."""
    return pattern(
        "R-DPO turns the gap negative", [below("R-DPO's gap", plain(found, "rdpo", "heldout.length.gap"))]
    )


def sampo_gap(found: Found) -> Pattern:
    """Equal numbers of tokens do not take the lean away."""
    return pattern(
        "SamPO does not close the gap", [above("SamPO's gap", plain(found, "sampo", "heldout.length.gap"))]
    )


def group_dro_length(found: Found) -> Pattern:
    """A lean that everyone shares is no disagreement between groups."""
    values = removed(found, "group_dro_annotators", TOKENS)
    return pattern(
        "Group-DRO removes less than half of the lengthening",
        [below("removed by Group-DRO", values, MOST, 2)],
    )


def gap_markdown(found: Found) -> Pattern:
    """DPO takes up the lean toward Markdown."""
    return pattern(
        "DPO opens a held-out gap on Markdown",
        [above("DPO's gap", plain(found, "dpo", "heldout.markdown.gap"))],
    )


def closes_markdown(found: Found) -> Pattern:
    """Declaring it takes it out."""
    return pattern("Both variants make that gap smaller", _smaller_gap(found, "markdown"))


def rdpo_gap_markdown(found: Found) -> Pattern:
    """Correcting length does not correct Markdown: the paper's gap is inverted by R-DPO and left by SamPO."""
    checks = [
        below("R-DPO's gap", plain(found, "rdpo", "heldout.markdown.gap")),
        above("SamPO's gap", plain(found, "sampo", "heldout.markdown.gap")),
    ]
    return pattern("Under Markdown R-DPO's gap is negative and SamPO's is not closed", checks)


def free_length(found: Found) -> Pattern:
    """One theta for each annotator lags behind a shared one."""
    free, pooled = (removed(found, f"{arm}-length", TOKENS) for arm in ("per_annotator", "pooled"))
    check = below("removed by theta_k only minus pooled", free.minus(pooled), 0.0, 2)
    return pattern("theta_k only removes less than pooled", [check])


def warm_length(found: Found) -> Pattern:
    """From above and from below the scalar ends at the same place."""
    checks = [
        within(
            f"removed by {arm} started warm minus cold",
            removed(found, f"{arm}_warm-length", TOKENS).minus(removed(found, f"{arm}-length", TOKENS)),
            0.0,
            MEET,
            2,
        )
        for arm in ("pooled", "shared_mean")
    ]
    return pattern("Warm and cold starts meet", checks)


def strong_rdpo(found: Found) -> Pattern:
    """At its published strength the penalty collapses the answers."""
    values = plain(found, "rdpo_strong", TOKENS).minus(plain(found, "rdpo", TOKENS))
    return pattern(
        "A penalty four times as strong makes the answers shorter still",
        [below("tokens, minus R-DPO", values, 0.0, 1)],
    )


PATTERNS: dict[str, Callable[[Found], Pattern]] = {
    function.__name__: function
    for function in (
        amplifies_names,
        removes_names,
        kl_names,
        agree_names,
        group_dro_names,
        theta_correlation,
        class_names,
        shuffled_names,
        free_names,
        undeclared_names,
        length_methods_names,
        samples_saturate,
        votes_ceiling,
        votes_chance,
        lora_rate,
        amplifies_length,
        removes_length,
        gap_length,
        rdpo_gap,
        sampo_gap,
        group_dro_length,
        gap_markdown,
        closes_markdown,
        rdpo_gap_markdown,
        free_length,
        warm_length,
        strong_rdpo,
    )
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
