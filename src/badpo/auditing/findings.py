"""Warnings and notices about an audit's estimates: each code with its condition, its message and its remedy."""

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from badpo.auditing.annotators import MOST_UNITS, OUTLYING, AnnotatorEstimates, AuditOptions, Design
from badpo.auditing.pool_bias import find_confounding_features
from badpo.data.files import Json
from badpo.data.judgments import Judgments
from badpo.data.problems import Problem, counted
from badpo.estimation.significance import format_p_value

# P-values below which the audit reports that annotators differ (W409) and that anchors differ (W407).
DIFFERENT, ANCHORS_DIFFER = 0.05, 0.01
# Agreement counts as chance agreement if its confidence interval ends below this share.
BY_CHANCE = 0.55
# With fewer prompts than this and several comparisons per prompt, individual intervals have a coverage below 95 %.
FEW_PROMPTS = 200
EQUAL_SIDES = "judge comparisons whose sides do not differ in any declared attribute"
TEST_TASTE = (
    "have annotators with low estimated reliability judge the same comparisons: random responders agree by chance, "
    "annotators who share a different taste agree more often"
)


@dataclass
class AuditProblems:
    """Problems found by the audit so far; ``where`` is the place to which the next problems will refer."""

    problems: list[Problem] = field(default_factory=list)
    where: str = ""

    def add(self, code: str, count: int | bool, what: str, remedy: str) -> None:
        """Add a problem if its number of occurrences, ``count``, is above 0."""
        if count:
            self.problems.append(Problem(code, what, self.where, remedy, int(count)))


def find_problems(
    judgments: Judgments,
    features: Judgments,
    design: Design,
    options: AuditOptions,
    estimates: AnnotatorEstimates,
    agreement: Json,
) -> list[Problem]:
    """Return the warnings and notices about the estimates, starting with the most general ones.

    ``features`` are the votes with the scanned features as attributes. ``agreement`` is a part of audit.json.
    """
    findings = AuditProblems()
    check_votes(findings, judgments, design, estimates)
    check_agreement(findings, design, estimates, agreement)
    for j, name in enumerate(design.attributes):
        findings.where = f'attribute "{name}"'
        if design.has_identities:
            check_anchors(findings, design, estimates, j)
            check_estimates(findings, design, options, estimates, j)
            check_reliability(findings, design, estimates, j)
        check_outliers(findings, judgments, design, j)
    if design.has_identities:
        check_features(findings, judgments, features, design, estimates)
    return findings.problems


def check_votes(
    findings: AuditProblems, judgments: Judgments, design: Design, estimates: AnnotatorEstimates
) -> None:
    """Report properties of the votes that limit the estimates."""
    weighted = int((judgments.votes["weight"] != 1).sum())
    findings.where = "column weight"
    findings.add(
        "W401",
        weighted,
        f"{counted(weighted, 'judgment')} have a weight, but the audit does not use weights",
        "no action is needed; the audit counts every vote once",
    )
    is_marginal = estimates.biases.quality == "marginal"
    sums = [pool["sum"] for pool in estimates.pool.values()]
    needed = max((row["needed"] for row in sums if row is not None), default=0)
    findings.where = "checks.estimator"
    findings.add(
        "W411",
        is_marginal,
        "almost no comparison has two annotators: every estimate of an annotator or of the pool is the sum of bias and "
        "of reliability times the merit that correlates with the attribute, and votes cannot separate the two parts",
        f"have a second annotator judge at least {needed:,} of the comparisons whose sides differ",
    )
    assignment = estimates.checks["assignment"]
    findings.where = "checks.assignment"
    findings.add(
        "W412",
        bool(assignment and assignment["reason"]),
        f"the audit does not compare annotators: {assignment and assignment['reason']}",
        "have annotators judge the same comparisons",
    )
    has_clusters = design.prompt is not None and design.has_repeated_prompts and design.has_identities
    n_prompts = design.prompt.max(initial=-1) + 1 if design.prompt is not None else 0
    findings.where = "column prompt_id"
    findings.add(
        "N433",
        has_clusters and not is_marginal and 0 < n_prompts < FEW_PROMPTS,
        f"{design.comparison.max(initial=-1) + 1:,} comparisons have only {n_prompts} prompts: if biases differ by "
        "prompt, the intervals of tau and of individual annotators have a coverage below their nominal level",
        "have annotators judge more prompts, with fewer comparisons for each prompt",
    )


def check_agreement(
    findings: AuditProblems, design: Design, estimates: AnnotatorEstimates, agreement: Json
) -> None:
    """Report differences in taste, unanimous votes, and agreement no better than chance."""
    camps = estimates.camps
    findings.where = "checks.reliability"
    findings.add(
        "W419",
        camps.are_found,
        f"annotators do not share one taste ({format_p_value(camps.p_value)}): some pairs of annotators agree more "
        "often than their reliability explains. Different tastes attenuate biases and tau to about "
        f"{camps.attenuation:.0%} of their size. Low reliability cannot be separated from a different taste, so the "
        "audit flags nobody for low reliability",
        "audit each group of annotators who share one taste separately, such as each class or each family of models; "
        + TEST_TASTE,
    )
    findings.add(
        "N435",
        camps.are_possible,
        f"some annotators agree less with the pool than other annotators do ({format_p_value(camps.equal_p)}): they "
        "are less reliable or have a different taste, and the votes cannot separate low reliability from a different "
        "taste. "
        "Differences in reliability or taste decrease the coverage of credible intervals below their nominal level, "
        "and different tastes attenuate biases and tau",
        TEST_TASTE,
    )
    share, low, high = (agreement[name] for name in ("percent", "ci_low", "ci_high"))
    findings.where = "data.agreement"
    findings.add(
        "W430",
        share == 1,
        "all annotators of a comparison chose the same side, so the votes show no difference between annotators",
        "check whether the export assigns the majority or a single vote to every annotator; otherwise have annotators "
        "judge comparisons with more similar responses",
    )
    findings.add(
        "W431",
        low <= 0.5 and high <= BY_CHANCE,
        f"annotators agree no more than by chance ({share:.0%} of pairs of votes, 95 % confidence interval {low:.0%} "
        f"to {high:.0%}): annotators may answer at random, or the two sides are equally good; small bias estimates "
        "then say little",
        "give each annotator some comparisons with one clearly better side, and check which annotators choose the "
        "worse side",
    )
    sizes = pd.Series(design.classes[design.n_votes > 0]).value_counts()
    for label in sizes.index[sizes == 1] if len(design.labels) > 1 else ():
        findings.where = f'class "{label}"'
        findings.add(
            "N432",
            True,
            "this class has a single annotator, so the estimates of the class describe this annotator only",
            "have more annotators of the class judge before comparing the class with other classes",
        )


def check_anchors(
    findings: AuditProblems, design: Design, estimates: AnnotatorEstimates, j: int
) -> None:
    """Report anchors that do not identify the shared bias toward an attribute."""
    name, anchors = design.attributes[j], estimates.checks["anchors"]
    if not anchors:
        return
    pool, p_value = estimates.pool[name], anchors["equal_biases_p"][name]
    findings.add(
        "W407",
        p_value < ANCHORS_DIFFER,
        f"the anchors differ from each other ({format_p_value(p_value)}): some anchors are biased, or anchors differ "
        "in reliability",
        "run the audit without anchors, and remove the anchors whose biases differ from those of the other anchors",
    )
    findings.add(
        "W408",
        not pool["absolute"],
        "no votes connect the anchors with some annotators, so the shared bias is not identified",
        "have an anchor judge comparisons that the other annotators judge; until then biases are measured from the "
        "mean of each annotator's group",
    )
    is_wide = pool["shared_bias_ci"] is None or np.diff(pool["shared_bias_ci"])[0] > 2
    findings.add(
        "W418",
        pool["absolute"] and not design.is_judgment_attribute[j] and is_wide,
        "the 95 % confidence interval of the shared bias is wider than \u00b11 log-odds, because anchors have few "
        "votes, or have low or uncertain reliability",
        f"name more anchors, and have the anchors also {EQUAL_SIDES}",
    )


def check_estimates(
    findings: AuditProblems, design: Design, options: AuditOptions, estimates: AnnotatorEstimates, j: int
) -> None:
    """Report annotator estimates that are missing, infinite or not comparable."""
    name, least = design.attributes[j], options.min_informative
    pool, graph = estimates.pool[name], estimates.checks["components"]["informative"][name]
    informative = estimates.biases.n_informative[design.n_votes > 0, j]
    n_few = (informative < least).sum()
    findings.add(
        "W404",
        n_few if len(informative) > 1 else 0,
        f"{n_few:,} of {counted(len(informative), 'annotator')} have fewer than {least} informative votes",
        "use tau and the estimates of classes; the individual estimates of these annotators are uncertain",
    )
    findings.add(
        "W405",
        pool["n_separated"],
        f"{counted(int(pool['n_separated']), 'annotator')} have no finite estimate: their disagreements with certain "
        "other annotators all point in the same direction, either toward or away from the attribute",
        "use the shrunken estimate if there is one; the unshrunken estimate is infinite",
    )
    sizes = [f"{n:,}" for n in graph["sizes"]] + ["..."] * (graph["n"] > len(graph["sizes"]))
    findings.add(
        "W406",
        graph["n"] if graph["n"] > 1 and estimates.biases.quality == "conditional" else 0,
        f"annotators form groups that few or no informative votes connect ({' + '.join(sizes)}); biases are measured "
        "from the mean of each group",
        "have annotators of different groups judge the same comparisons; the column component of annotators.parquet "
        "has the group of each annotator",
    )
    n_informative, p_value = int(design.informative[:, j].sum()), pool["equal_biases_p"]
    although = f", although a test finds that they differ ({format_p_value(p_value)})"
    findings.add(
        "W409",
        bool(np.isnan(pool["tau"]) and n_informative and pool["sum"] is None),
        f"{counted(n_informative, 'informative vote')} are too few to estimate how much annotators differ"
        f"{although if p_value < DIFFERENT else ''}",
        "have more annotators judge the same comparisons",
    )


def check_reliability(
    findings: AuditProblems, design: Design, estimates: AnnotatorEstimates, j: int
) -> None:
    """Report differences that may be due to reliability rather than bias."""
    name, checks = design.attributes[j], estimates.checks
    pool, reliability = estimates.pool[name], checks["reliability"]
    is_open = pool["sum"] is None and (reliability["is_unknown"] or reliability["is_hardly_known"])
    needs_reliability = not pool["absolute"] or (
        checks["anchors"] and not design.is_judgment_attribute[j]
    )
    findings.add(
        "W410",
        int(design.informative[:, j].sum()) if is_open and needs_reliability else 0,
        f"{reliability['why']}; random responders can seem biased, so tau, the test of one shared bias and the flags "
        "may reflect differences in reliability",
        f"have annotators {EQUAL_SIDES}; until then read the judgments of flagged annotators (reread.csv of --people)",
    )
    doubt = estimates.class_doubts[j]
    findings.add(
        "W417",
        bool(doubt),
        "classes of annotators differ in how often they choose the response with the attribute, and the votes cannot "
        f"separate bias from reliability: {doubt}",
        f"have annotators of each class {EQUAL_SIDES}",
    )


def check_outliers(findings: AuditProblems, judgments: Judgments, design: Design, j: int) -> None:
    """Report differences in a continuous attribute that the estimates cap or ignore."""
    unit, n_cut = design.unit[j], int(design.n_cut[j])
    largest = np.abs(judgments.delta[:, j]).max(initial=0.0)
    findings.add(
        "W414",
        n_cut if largest > OUTLYING * unit else 0,
        f"the sides of {counted(n_cut, 'judgment')} differ by more than {MOST_UNITS:g} times the median difference "
        f"({unit:#.3g}), and at most by {largest:#.3g}; the estimates of annotator bias cap differences at "
        f"{MOST_UNITS:g} times the median and ignore judgments whose sides differ by more than {OUTLYING:g} times "
        "the median",
        "check these judgments for errors, or declare a 0/1 attribute with a threshold, which has no outliers",
    )


def check_features(
    findings: AuditProblems,
    judgments: Judgments,
    features: Judgments,
    design: Design,
    estimates: AnnotatorEstimates,
) -> None:
    """Report undeclared features that explain the biases better than a declared attribute."""
    shrunk = estimates.table.pivot(index="annotator", columns="attribute", values="shrunk")
    biases = shrunk.reindex(index=design.annotators, columns=design.attributes).to_numpy()
    for one in find_confounding_features(judgments, features, design.votes, biases):
        findings.where = f'attribute "{one.attribute}"'
        findings.add(
            "W416",
            True,
            f"the undeclared feature {one.feature} correlates with {one.attribute} ({one.correlation:.2f}) and "
            f"explains the biases better on comparisons that differ in only one of the two "
            f"({format_p_value(one.p_value)}): tau, intervals and flags may be due to the feature instead of the "
            "attribute",
            "declare the feature as an attribute too, and audit again",
        )
