"""Warnings and notices about an audit's estimates; each code has a function with the condition and the remedy."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pandas as pd

from badpo.auditing.annotators import (
    MOST_UNITS,
    OUTLYING,
    AnnotatorEstimates,
    AuditOptions,
    Design,
    has_known_tau,
)
from badpo.auditing.pool_bias import find_confounding_features
from badpo.data.judgments import Judgments
from badpo.data.problems import Problem, counted
from badpo.estimation.significance import PoolAgreement, format_p_value

# If the p-value of the test for differences is below DIFFERENT, W409 mentions that annotators differ.
# If the p-value for the anchors is below ANCHORS_DIFFER, W407 reports that the anchors differ.
DIFFERENT, ANCHORS_DIFFER = 0.05, 0.01
# The audit reports chance agreement (W431) if the upper confidence limit of the agreement is at most this value.
BY_CHANCE = 0.55
# With fewer prompts than this and several comparisons per prompt, annotators' intervals have a coverage below 95 %.
FEW_PROMPTS = 200
EQUAL_SIDES = "judge comparisons whose sides do not differ in any declared attribute"
TEST_TASTE = (
    "have annotators with low estimated reliability judge the same comparisons: random responders agree only by "
    "chance, but annotators who share a different taste agree more often"
)

Found = Iterator[Problem]


@dataclass(frozen=True)
class AuditFacts:
    """Votes and estimates that the functions of this module check for problems.

    ``features`` contains the same votes with the scanned features as attributes.
    """

    judgments: Judgments
    features: Judgments
    design: Design
    options: AuditOptions
    estimates: AnnotatorEstimates
    agreement: PoolAgreement


def find_problems(facts: AuditFacts) -> list[Problem]:
    """Return the warnings and notices about the estimates, most general first."""
    about_people = [
        *(differing_anchors, unconnected_anchors, imprecise_anchors, few_informative_votes),
        *(infinite_estimates, separate_groups, unknown_tau, unknown_reliability, doubtful_classes),
    ]
    of_attribute = [*(about_people if facts.design.has_identities else ()), outliers]
    general = [
        *(unused_weights, one_vote_per_comparison, incomparable_annotators, few_prompts),
        *(different_tastes, unequal_agreement, unanimous_votes, chance_agreement, single_member_classes),
    ]
    found = [find(facts) for find in general]
    found += [find(facts, j) for j in range(len(facts.design.attributes)) for find in of_attribute]
    return [*chain(*found), *(confounding_features(facts) if facts.design.has_identities else ())]


# -- the votes ---------------------------------------------------------------------------------------------------


def unused_weights(facts: AuditFacts) -> Found:
    """W401: votes have weights."""
    n = int((facts.judgments.votes["weight"] != 1).sum())
    if n:
        what = f"{counted(n, 'judgment')} have a weight other than 1, but the audit does not use weights"
        remedy = "no action is needed; the audit counts every vote once"
        yield Problem("W401", what, "column weight", remedy, n)


def one_vote_per_comparison(facts: AuditFacts) -> Found:
    """W411: estimates are sums of bias and merit."""
    needed = max(
        (row["needed"] for pool in facts.estimates.pool.values() if (row := pool["sum"])), default=0
    )
    if facts.estimates.fit.sums:
        yield Problem(
            "W411",
            "almost no comparison has two annotators: each estimate for an annotator or for the pool is the sum of "
            "bias and of reliability times the merit that correlates with the attribute, and votes cannot separate "
            "the two parts",
            "checks.estimator",
            f"have a second annotator judge at least {needed:,} of the comparisons whose sides differ",
        )


def incomparable_annotators(facts: AuditFacts) -> Found:
    """W412: comparisons were not, or may not have been, assigned to annotators at random."""
    assignment = facts.estimates.checks["assignment"]
    if assignment and assignment["reason"]:
        what = f"the audit does not compare annotators: {assignment['reason']}"
        remedy = "have annotators judge the same comparisons"
        yield Problem("W412", what, "checks.assignment", remedy)


def few_prompts(facts: AuditFacts) -> Found:
    """N433: many comparisons share few prompts."""
    design = facts.design
    if design.prompt is None or not design.has_repeated_prompts or not design.has_identities:
        return
    n_prompts, n_comparisons = (each.max(initial=-1) + 1 for each in (design.prompt, design.comparison))
    if not facts.estimates.fit.sums and 0 < n_prompts < FEW_PROMPTS:
        yield Problem(
            "N433",
            f"{n_comparisons:,} comparisons have only {n_prompts} prompts: if biases differ by prompt, the intervals "
            "of tau and of individual annotators have a coverage below the nominal level",
            "column prompt_id",
            "have annotators judge more prompts, with fewer comparisons for each prompt",
        )


# -- agreement ---------------------------------------------------------------------------------------------------


def different_tastes(facts: AuditFacts) -> Found:
    """W419: annotators do not share one taste."""
    camps = facts.estimates.camps
    if camps.are_found:
        yield Problem(
            "W419",
            f"annotators do not share one taste ({format_p_value(camps.p_value)}): some pairs of annotators agree "
            "more often than their reliability explains. Different tastes attenuate biases and tau to about "
            f"{camps.attenuation:.0%} of their size. The votes cannot separate low reliability from a different "
            "taste, so the audit flags nobody for low reliability",
            "checks.reliability",
            "run a separate audit for each group of annotators with one taste, such as each class or each family of "
            f"models; {TEST_TASTE}",
        )


def unequal_agreement(facts: AuditFacts) -> Found:
    """N435: some annotators agree less with the pool."""
    camps = facts.estimates.camps
    if camps.are_possible:
        yield Problem(
            "N435",
            f"some annotators agree less with the pool than other annotators do ({format_p_value(camps.equal_p)}): "
            "these annotators are less reliable or have a different taste, and the votes cannot separate the two. "
            "Differences in reliability or taste decrease the coverage of credible intervals below the nominal level, "
            "and different tastes attenuate biases and tau",
            "checks.reliability",
            TEST_TASTE,
        )


def unanimous_votes(facts: AuditFacts) -> Found:
    """W430: every comparison is unanimous."""
    if facts.agreement.percent == 1:
        yield Problem(
            "W430",
            "on every comparison, all annotators chose the same side, so the votes show no difference between "
            "annotators",
            "data.agreement",
            "check whether the export gives every annotator the majority vote or the same single vote; otherwise have "
            "annotators judge comparisons with more similar responses",
        )


def chance_agreement(facts: AuditFacts) -> Found:
    """W431: annotators agree no more than by chance."""
    share, low, high = facts.agreement.percent, facts.agreement.low, facts.agreement.high
    if low <= 0.5 and high <= BY_CHANCE:
        yield Problem(
            "W431",
            f"annotators agree no more than by chance ({share:.0%} of pairs of votes, 95 % confidence interval "
            f"{low:.0%} to {high:.0%}): annotators may answer at random, or the two sides are equally good, so small "
            "bias estimates do not show that biases are small",
            "data.agreement",
            "give each annotator some comparisons with a clearly better side, and check which annotators choose the "
            "worse side",
        )


def single_member_classes(facts: AuditFacts) -> Found:
    """N432: a class has one annotator."""
    design = facts.design
    sizes = pd.Series(design.classes[design.n_votes > 0]).value_counts()
    for label in sizes.index[sizes == 1] if len(design.labels) > 1 else ():
        what = "this class has a single annotator, so the estimates for the class describe only this annotator"
        remedy = "have more annotators of the class judge before comparing the class with other classes"
        yield Problem("N432", what, f'class "{label}"', remedy)


# -- anchors of one attribute ------------------------------------------------------------------------------------


def _place(facts: AuditFacts, j: int) -> str:
    """Name of the attribute that a problem concerns."""
    return f'attribute "{facts.design.attributes[j]}"'


def differing_anchors(facts: AuditFacts, j: int) -> Found:
    """W407: the anchors have different biases."""
    anchors = facts.estimates.checks["anchors"]
    if anchors and (p_value := anchors["equal_biases_p"][facts.design.attributes[j]]) < ANCHORS_DIFFER:
        yield Problem(
            "W407",
            f"the anchors differ from each other ({format_p_value(p_value)}): some anchors are biased, or anchors "
            "differ in reliability",
            _place(facts, j),
            "run the audit without anchors, and remove the anchors whose biases differ from those of the other anchors",
        )


def unconnected_anchors(facts: AuditFacts, j: int) -> Found:
    """W408: no votes connect the anchors with some annotators."""
    fit = facts.estimates.fit
    if fit.anchored.any() and not fit.biases.absolute[j]:
        yield Problem(
            "W408",
            "no votes connect the anchors with some annotators, so the shared bias is not identified",
            _place(facts, j),
            "have an anchor judge the same comparisons as the other annotators; until then, biases are measured from "
            "the mean of each annotator's group",
        )


def imprecise_anchors(facts: AuditFacts, j: int) -> Found:
    """W418: the votes of the anchors leave a wide confidence interval for the shared bias."""
    fit, design = facts.estimates.fit, facts.design
    ends = facts.estimates.pool[design.attributes[j]]["shared_bias_ci"]
    is_wide = ends is None or ends[1] - ends[0] > 2
    if is_wide and fit.anchored.any() and fit.biases.absolute[j] and not design.is_judgment_attribute[j]:
        yield Problem(
            "W418",
            "the 95 % confidence interval of the shared bias is wider than \u00b11 log-odds, because the anchors have "
            "few votes, or have low or uncertain reliability",
            _place(facts, j),
            f"name more anchors, and have the anchors also {EQUAL_SIDES}",
        )


# -- estimates for one attribute ---------------------------------------------------------------------------------


def few_informative_votes(facts: AuditFacts, j: int) -> Found:
    """W404: some annotators have too few informative votes for an individual estimate."""
    least = facts.options.min_informative
    informative = facts.estimates.fit.biases.n_informative[facts.design.n_votes > 0, j]
    n, n_few = len(informative), int((informative < least).sum())
    if n > 1 and n_few:
        what = f"{n_few:,} of {counted(n, 'annotator')} have fewer than {least} informative votes"
        remedy = "use tau and the estimates for classes; the individual estimates for these annotators are uncertain"
        yield Problem("W404", what, _place(facts, j), remedy, n_few)


def infinite_estimates(facts: AuditFacts, j: int) -> Found:
    """W405: the votes put no finite limit on the size of an annotator's bias."""
    n = int(facts.estimates.pool[facts.design.attributes[j]]["n_separated"])
    if n:
        yield Problem(
            "W405",
            f"{counted(n, 'annotator')} have no finite estimate: their disagreements with certain other annotators all "
            "point in the same direction, either toward or away from the attribute",
            _place(facts, j),
            "use the shrunken estimate, if one exists; the unshrunken estimate is infinite",
            n,
        )


def separate_groups(facts: AuditFacts, j: int) -> Found:
    """W406: annotators form groups that are connected by few or no votes."""
    graph = facts.estimates.checks["components"]["informative"][facts.design.attributes[j]]
    sizes = [f"{n:,}" for n in graph["sizes"]] + ["..."] * (graph["n"] > len(graph["sizes"]))
    if graph["n"] > 1 and not facts.estimates.fit.sums:
        yield Problem(
            "W406",
            f"annotators form groups that are connected by few or no informative votes ({' + '.join(sizes)}); biases "
            "are measured from the mean of each group",
            _place(facts, j),
            "have annotators of different groups judge the same comparisons; the column component of "
            "annotators.parquet names the group of each annotator",
            graph["n"],
        )


def unknown_tau(facts: AuditFacts, j: int) -> Found:
    """W409: the votes are too few to estimate how much annotators differ."""
    fit, n = facts.estimates.fit, int(facts.design.informative[:, j].sum())
    if n and not fit.sums and not has_known_tau(fit.shrunken_biases[j]):
        p_value = fit.equal_p[j]
        although = f", although a test finds that they differ ({format_p_value(p_value)})"
        what = f"{counted(n, 'informative vote')} are too few to estimate how much annotators differ"
        what += although if p_value < DIFFERENT else ""
        yield Problem("W409", what, _place(facts, j), "have more annotators judge the same comparisons")


def unknown_reliability(facts: AuditFacts, j: int) -> Found:
    """W410: differences between annotators may be differences in reliability."""
    reliability, n = facts.estimates.checks["reliability"], int(facts.design.informative[:, j].sum())
    if reliability and facts.estimates.may_be_reliability[j] and n:
        yield Problem(
            "W410",
            f"{reliability['why']}; random responders can seem biased, so tau, the test of one shared bias and the "
            "flags may reflect differences in reliability",
            _place(facts, j),
            f"have annotators {EQUAL_SIDES}; until then, read the judgments of flagged annotators (reread.csv of "
            "--people)",
            n,
        )


def doubtful_classes(facts: AuditFacts, j: int) -> Found:
    """W417: differences between classes may be differences in reliability."""
    if doubt := facts.estimates.fit.classes[j].doubt:
        yield Problem(
            "W417",
            "classes of annotators choose the response with the attribute at different rates, and the votes cannot "
            f"separate bias from reliability: {doubt}",
            _place(facts, j),
            f"have annotators of each class {EQUAL_SIDES}",
        )


def outliers(facts: AuditFacts, j: int) -> Found:
    """W414: some differences in a continuous attribute are very large, and the estimates cap or ignore them."""
    unit, n = facts.design.unit[j], int(facts.design.n_cut[j])
    largest = np.abs(facts.judgments.delta[:, j]).max(initial=0.0)
    if n and largest > OUTLYING * unit:
        yield Problem(
            "W414",
            f"the sides of {counted(n, 'judgment')} differ by more than {MOST_UNITS:g} times the median difference "
            f"({unit:#.3g}; largest difference {largest:#.3g}); the estimates of annotator bias cap differences at "
            f"{MOST_UNITS:g} times the median and ignore judgments whose sides differ by more than {OUTLYING:g} times "
            "the median",
            _place(facts, j),
            "check these judgments for errors, or declare a 0/1 attribute with a threshold to avoid outliers",
            n,
        )


def confounding_features(facts: AuditFacts) -> Found:
    """W416: an undeclared feature explains the biases better than a declared attribute."""
    design, both = facts.design, (facts.judgments, facts.features)
    shrunk = facts.estimates.table.pivot(index="annotator", columns="attribute", values="shrunk")
    biases = shrunk.reindex(index=design.annotators, columns=design.attributes).to_numpy()
    for one in find_confounding_features(*both, design.votes, biases):
        yield Problem(
            "W416",
            f"the undeclared feature {one.feature} correlates with {one.attribute} ({one.correlation:.2f}) and "
            "explains the biases better on comparisons whose sides differ in only one of the two "
            f"({format_p_value(one.p_value)}): tau, intervals and flags may reflect the feature instead of the "
            "attribute",
            f'attribute "{one.attribute}"',
            "declare the feature as an additional attribute, and run the audit again",
        )
