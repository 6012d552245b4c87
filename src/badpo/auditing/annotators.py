"""Estimates of annotator bias: individual biases, intervals, flags, tau, class comparisons and reliability."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.special import ndtri, stdtrit

from badpo.auditing.marginal import ATTENUATION, HALF_WIDTH, Sums, fit_sums
from badpo.data.judgments import Judgments
from badpo.data.privacy import FEWEST_ANNOTATORS, is_dominated, model_names, pseudonyms
from badpo.data.problems import ConfigError, counted, did_you_mean, refuse_other_types
from badpo.estimation.fit import BiasEstimates, Votes, find_weakly_joined_teams, fit_conditional
from badpo.estimation.gold_annotators import GoldLine, adjust_to_gold, own_variance
from badpo.estimation.log_odds import LEVEL, WIDEST_HALF, joint_log_odds, summed
from badpo.estimation.reliability import (
    FEWEST,
    Line,
    Reliability,
    adjust_for_reliability,
    equal_reliability_p_value,
    estimate_class_merit,
    find_unexplained_choices,
    fit_reliability,
)
from badpo.estimation.shrinkage import (
    ShrunkenBiases,
    average_posteriors,
    bayesian_fdr,
    benjamini_hochberg,
    probability_exceeds,
    shrink_normal,
    shrink_votes,
)
from badpo.estimation.significance import (
    annotator_agreement,
    class_offsets,
    equal_bias_p_value,
    format_p_value,
    recommend,
)
from badpo.estimation.taste import Camps, find_camps
from badpo.results import audit_json
from badpo.theory import Array, Bools, Floats, Ints
from badpo.theory.identifiability import informative_judgments
from badpo.theory.summaries import Interval

# The largest plausible tau is 5 log-odds, which correspond to odds of 148 to 1.
WIDEST_TAU = 5.0
# Very large differences in a continuous attribute are often errors; without a cap, they would dominate the estimates.
# If 3 % of the differences are 40 times too large, annotators' confidence intervals have a coverage of only 74 %.
# A cap at five units raises the coverage of confidence intervals to 92 %, and a cap at three units to 95 %.
# With a cap at three units, credible intervals have a coverage of only 89 %.
# A judgment whose difference is capped contains no information about bias.
# If differences beyond ten units are ignored, credible intervals have a coverage of 94 %.
MOST_UNITS, OUTLYING = 3.0, 10.0
# The audit reports the sizes of at most this many annotator groups.
SIZES_SHOWN = 5
# Standard errors are clustered by prompt if the mean number of comparisons per prompt is at least OFTEN_REPEATED.
# Standard errors are also clustered by prompt if the share of repeated votes exceeds FEWEST_REPEATED.
OFTEN_REPEATED, FEWEST_REPEATED = 1.25, 0.01
# An annotator with one of these statuses has a finite or infinite estimate of bias.
ESTIMATED = ("ok", "insufficient", "separated_high", "separated_low")

CONDITIONAL = (
    "conditional likelihood: the unknown quality of a comparison cancels out, because the likelihood conditions on the "
    "number of votes for each side; comparisons may be assigned to annotators in any way"
)
MARGINAL = (
    "marginal estimator: each estimate is the bias plus reliability times the merit of the attribute; "
    "comparisons with a single vote cannot separate the two parts"
)
QUALITIES = {"conditional": CONDITIONAL, "marginal": MARGINAL}
NOT_IDENTIFIED = (
    "not known: the votes would be the same if all annotators had a larger bias and responses without the attribute "
    "were better by the same amount; to identify the shared bias, name annotators known to be unbiased (anchors)"
)
OUT_OF_REACH = (
    "not known: the votes do not connect all annotators with the annotators declared unbiased (anchors)"
)
ANCHORED = "the shared bias is known if {n} declared unbiased (anchors) are in fact unbiased"
AS_RELIABLE = (
    "; reliability is not known (W410), so the intervals assume that the reliability of anchors and other annotators "
    "differs with a standard deviation of half the mean reliability"
)
VARIES = (
    "the shared bias is known because votes on one comparison differ in this attribute, so quality cannot explain the "
    "differences"
)
NO_INFORMATION = "not known: no vote shows a difference between annotators"
NOT_SPLIT = (
    "not known: one vote per comparison cannot separate bias from merit. At least {:,} comparisons whose sides differ "
    "need a second annotator before the median annotator's deviation from the pool mean is known to within \u00b1{:g}"
)
RANDOM_ORDER = (
    "the shared bias is known because the order of the responses correlates with none of their features in the table; "
    "the estimate is attenuated, because it averages over comparisons of different quality"
)
UNRELIABLE = "not known: estimating reliability requires comparisons with two annotators"
BY_MODELS = "reliability is estimated from how votes depend on the strengths of the models that wrote the responses"
# An annotator is unreliable if their reliability is below this share of the pool's mean reliability.
LOW_RELIABILITY = 0.5
# If annotators average fewer votes on equal sides than this, random responders are hard to detect.
# FEW_EQUAL comes from 25 simulated pools without bias, in which 6 of 30 annotators were random responders.
# With 10, 20 and 40 votes on equal sides per annotator, audits of the simulated pools raised 25, 11 and 0 false flags.
FEW_EQUAL = 25
# The adjustment for reliability is uncertain if the mean standard error exceeds this share of the mean reliability.
# In pools simulated with tau = 0.5, confidence intervals covered 92 % of the biases, and credible intervals 90 %.
# Each simulated annotator had 100 votes on comparisons whose responses do not differ.
UNSURE = 0.25
# If a class has at least this many annotators, their reliability is shrunk toward the mean of the class.
# If all annotators were shrunk toward one mean, differences in reliability between classes would look like bias.
LARGE_CLASS = 8
# For each state of the reliability estimate, the report shows one of these explanations.
RELIABILITY_NOTES = {
    "": "deviations are adjusted for reliability, which is estimated on comparisons whose sides do not differ",
    "hardly": (
        "reliability is uncertain: annotators have too few votes on comparisons whose sides do not differ in "
        "any attribute"
    ),
    "few": "reliability is not known: too few votes are on comparisons whose sides do not differ in any attribute",
    "unreliable": (
        "reliability is not known: on comparisons whose sides do not differ in any attribute, annotators agree no "
        "more than by chance"
    ),
    "unanimous": (
        "reliability is not known: on comparisons whose sides do not differ in any attribute, annotators almost never "
        "disagree"
    ),
}
NOT_NEEDED = "reliability is not needed: two votes on the same comparison can differ in every attribute"
LESS_OF_EITHER = (
    "An annotator who chooses the attribute less often has less bias or is less reliable. Differences are smaller "
    "than with several votes per comparison (about {:g} times as large in simulations). The audit reports "
    "differences because no deviation from random assignment of comparisons was found ({}; the test detects "
    "a standard deviation of {:.2f} between annotators with a power of 80 %)."
)
NO_MAJORITIES = "almost no comparison has two votes"
TOO_WIDE = f"not known: the 95 % confidence interval of the shared bias is wider than \u00b1{WIDEST_HALF:g} log-odds"
NO_TAU = "the 95 % confidence interval of tau has no upper end below {:g} log-odds"
MAYBE_RELIABILITY = (
    " Annotators may differ in reliability rather than in bias, because the estimates of reliability are too uncertain "
    "to exclude this (W410)."
)
EXPLAINED = "the classes differ in reliability, or the estimates of their reliability are too uncertain"
MAYBE_CLASS_RELIABILITY = (
    " The difference between classes may be a difference in reliability rather than in bias (W417)."
)
WITHIN = " This applies within groups of annotators; the votes do not show whether the groups differ from each other."
UNANIMOUS = (
    f"{CONDITIONAL}. All comparisons are unanimous, so the votes show no difference between annotators"
)


@dataclass(frozen=True)
class AuditOptions:
    """Options of an audit; `badpo.auditing.audit.audit` documents each option."""

    quality: str | None = None
    anchors: Sequence[str] = ()
    anchor_class: str | None = None
    rho: float = 0.5
    fdr: float = 0.1
    min_informative: int = 10

    def __post_init__(self) -> None:
        refuse_other_types(**vars(self))
        if self.quality is not None and self.quality not in QUALITIES:
            hint = did_you_mean(self.quality, [*QUALITIES])
            raise ConfigError(f"quality must be {' or '.join(QUALITIES)}; got {self.quality!r}.{hint}")
        if not 0 <= self.rho < math.inf:
            raise ConfigError(f"rho must be 0 or more (log-odds), such as 0.5; got {self.rho!r}")
        if not 0 < self.fdr < 1:
            raise ConfigError(f"fdr must be above 0 and below 1, such as 0.1; got {self.fdr!r}")
        if self.anchors and self.anchor_class is not None:
            raise ConfigError("list anchors by id or name their class, but not both")
        if not self.min_informative >= 1:
            raise ConfigError(f"min_informative must be 1 or more; got {self.min_informative}")


# -- the votes as arrays -----------------------------------------------------------------------------------------


class Design:
    """The votes of an audit as arrays.

    Arrays with one entry per vote: ``comparison``; ``stratum``, the group of votes on which the conditional likelihood
    conditions (`Judgments.comparable_votes`), split between teams with few common comparisons
    (`find_weakly_joined_teams`), so that each team has its own mean; ``annotator``; ``sign``, +1 for a vote for a;
    ``delta``, g(a) - g(b) of each attribute in multiples of ``unit``, capped at ``most_units`` (``n_cut`` judgments
    exceed the cap) and set to 0 beyond ``OUTLYING`` units; ``cross``, whether the sides differ by more than the
    attribute's threshold; ``informative``, whether the vote contributes to the conditional likelihood; ``is_first``,
    whether the vote is the annotator's first vote on the comparison; ``prompt``, the clusters of standard errors, which
    is None unless prompts have several comparisons (``has_repeated_prompts``) or annotators have several votes on one
    comparison (in both orders).

    Arrays with one entry per attribute: ``unit``, the difference to which biases, tau and rho refer, which is 1 for a
    0/1 attribute and the median difference for a continuous attribute, so that the scale does not matter;
    ``is_judgment_attribute``, whether the attribute belongs to the judgment, such as the position.

    Arrays with one entry per annotator: ``annotators``, the pseudonyms; ``classes``; ``models``, the names of models;
    ``is_person``; ``n_votes``. If the table has no annotators, all votes belong to one annotator.
    """

    def __init__(self, judgments: Judgments) -> None:
        self.attributes, declared = judgments.attribute_names, judgments.attributes
        self.has_identities, people = judgments.has_identities, judgments.annotators
        self.comparison, self.annotator, self.sign = (
            judgments.votes[name].to_numpy(dtype=int) for name in ("comparison", "annotator", "sign")
        )
        self.annotators, self.classes, self.models = (
            people[name].to_numpy() for name in ("pseudonym", "annotator_class", "model")
        )
        self.is_person = pd.isna(self.models)
        self.labels = sorted(set(self.classes) - {None})
        m = len(people)
        self.n_votes = np.bincount(self.annotator, minlength=m)
        self.cross = judgments.cross_group()
        self.is_judgment_attribute = np.array([one.scope == "judgment" for one in declared], dtype=bool)
        sizes = pd.DataFrame(np.abs(judgments.delta))
        is_continuous = [one.continuous for one in declared] | ~sizes.isin([0.0, 1.0]).all().to_numpy()
        self.unit = sizes.where(self.cross & is_continuous).median().fillna(1.0).to_numpy()
        self.most_units = most = np.where(is_continuous, MOST_UNITS, np.inf)
        delta = judgments.delta / self.unit
        size, cut = np.abs(delta), np.clip(delta, -most, most)
        self.n_cut = (size > most).sum(axis=0)
        self.delta = np.where(size > most * OUTLYING / MOST_UNITS, 0.0, cut)
        prompt = judgments.prompt_of_votes()
        n_prompts = prompt.max(initial=-1) + 1
        is_repeated = judgments.votes.duplicated(["annotator", "comparison"]).to_numpy()
        self.is_first = ~(is_repeated & self.has_identities)
        self.prompt_of_first_votes = prompt[self.is_first]
        self.has_repeated_prompts = judgments.n_comparisons >= OFTEN_REPEATED * n_prompts
        are_repeated = (~self.is_first).mean() > FEWEST_REPEATED
        self.prompt = prompt if self.has_repeated_prompts or are_repeated else None
        self.stratum = judgments.comparable_votes()
        teams = find_weakly_joined_teams(Votes(self.stratum, self.sign, self.annotator, self.delta, m))
        if teams.any():
            apart = teams[self.annotator] * (self.delta != 0)
            labels = np.column_stack([self.stratum, apart])
            self.stratum = np.unique(labels, axis=0, return_inverse=True)[1].reshape(-1)
        # The bias estimators read `votes`, and the reliability estimators read `reliability_votes`.
        # In `reliability_votes`, outliers are capped instead of set to 0, because 0 would mean equal sides.
        self.votes = Votes(self.stratum, self.sign, self.annotator, self.delta, m)
        response_votes = self.votes._replace(delta=cut[:, ~self.is_judgment_attribute])
        self.reliability_votes = response_votes.select(self.is_first)
        self.informative = informative_judgments(self.stratum, self.annotator, self.sign, self.delta)

    @property
    def first_votes(self) -> tuple[Ints, Ints, Ints]:
        """Comparisons, signs and annotators of the votes, limited to each annotator's first vote on each comparison."""
        first = self.is_first
        return self.comparison[first], self.sign[first], self.annotator[first]

    def count_by_annotator(self, chosen: Bools) -> Ints:
        """Count the votes selected by ``chosen``; the result has one row per annotator and one column per attribute."""
        return summed(self.annotator, chosen, len(self.annotators)).astype(int)

    def raw_rate(self) -> Floats:
        """Share of each annotator's cross-group judgments that favor the side with more of the attribute.

        The result has the shape (n_annotators, n_attributes); an entry is NaN without a cross-group judgment.
        """
        chose_more = self.cross & (self.sign[:, None] * self.delta > 0)
        with np.errstate(invalid="ignore"):
            return self.count_by_annotator(chose_more) / self.count_by_annotator(self.cross)


def find_anchors(design: Design, options: AuditOptions) -> Bools:
    """Return a mask of the anchors (annotators known to be unbiased), listed by id or given as a class."""
    label = options.anchor_class
    if label is None:
        return find_named_annotators(design.annotators, options.anchors, "anchors")
    if label not in design.labels:
        raise ConfigError(
            f'anchor class: no annotator has the class "{label}".{did_you_mean(label, design.labels)} Classes: '
            f"{', '.join(design.labels) or 'none; give an annotator_class column'}"
        )
    return np.asarray(design.classes == label)


def find_named_annotators(annotators: ArrayLike, named: Sequence[object], key: str) -> Bools:
    """Return a mask of the annotators listed by id or pseudonym; error messages call the option ``key``.

    Raises `ConfigError` if a name is not among the annotators; the message shows pseudonyms only.
    """
    wanted = pseudonyms(list(dict.fromkeys(map(str, named))))
    known = np.asarray(annotators, dtype=object)
    if missing := [name for name in wanted if name not in set(known)]:
        raise ConfigError(
            f"{key}: {', '.join(missing)} cast no vote in this table (this message shows ids as "
            "pseudonyms); write the id as in the table, or the pseudonym as in the report"
        )
    return np.isin(known, wanted)


def mark_models(judgments: Judgments, models: Sequence[str]) -> Judgments:
    """Return the judgments with the listed annotators marked as models, as if their class were "model"."""
    annotators = judgments.annotators.copy()
    find_named_annotators(annotators["pseudonym"], models, "models")
    ids = list(dict.fromkeys(map(str, models)))
    names = dict(zip(pseudonyms(ids), model_names(ids), strict=True))
    known = zip(annotators["pseudonym"], annotators["model"], strict=True)
    annotators["model"] = [names.get(pseudonym, model) for pseudonym, model in known]
    return replace(judgments, annotators=annotators)


# -- estimates ---------------------------------------------------------------------------------------------------


class ClassComparison(NamedTuple):
    """Class offsets with the p-value of the hypothesis that all offsets are equal.

    If reliability may explain the differences between classes, ``doubt`` says why.
    """

    rows: list[audit_json.ClassRow]
    p_value: float | None
    doubt: str


@dataclass(frozen=True, eq=False)
class BiasFit:
    """Estimated biases of the annotators, with estimates of reliability, tests and class comparisons.

    ``sums`` is None unless almost every comparison has exactly one vote. For each adjusted attribute, ``lines``
    contains the adjustment for reliability. For each attribute, ``equal_p`` is the p-value of the hypothesis that all
    biases are equal, and ``needs_reliability`` says whether differences in reliability would change the biases.
    """

    anchored: Bools
    sums: Sums | None
    biases: BiasEstimates
    reliability: Reliability
    lines: dict[int, Line | GoldLine]
    shrunken_biases: list[ShrunkenBiases]
    equal_p: Floats
    needs_reliability: Bools
    classes: list[ClassComparison]

    @property
    def is_adjusted(self) -> bool:
        """Whether the biases toward at least one attribute are adjusted for reliability."""
        return bool(self.lines) and not self.reliability.unknown

    def reason_not_to_compare(self, j: int) -> str:
        """Reason why the audit does not compare annotators on an attribute; an empty string if it does."""
        if self.sums is None or self.biases.absolute[j]:
            return ""
        return self.sums.assignment["reason"]


def choose_quality(design: Design, options: AuditOptions) -> tuple[str, str]:
    """Choose the estimator of the biases, and return its name and the reason for the choice as a sentence.

    The option ``quality`` sets the estimator. By default, the audit uses the conditional estimator. If, for every
    attribute, most annotators with cross-group judgments have no informative vote, the audit uses the marginal
    estimator instead. The conditional estimator ignores comparisons that are unanimous or have one vote; the marginal
    estimator uses all votes.
    """
    if options.quality is not None:
        return options.quality, f"set by the option quality; {QUALITIES[options.quality]}"
    is_shared = np.bincount(design.comparison)[design.comparison] > 1
    if not design.informative.any() and is_shared.mean() > 0.5:
        return "conditional", UNANIMOUS
    saw = design.count_by_annotator(design.cross) > 0
    informed, n_saw = saw & (design.count_by_annotator(design.informative) > 0), saw.sum(axis=0)
    without = 1 - informed.sum(axis=0) / np.maximum(n_saw, 1)
    if not (without > 0.5).all() or (n_saw < 2).any():
        return "conditional", CONDITIONAL
    lacking = (
        "most annotators with cross-group judgments share no contested comparison with another annotator"
    )
    return "marginal", f"{lacking}, so {MARGINAL}"


def estimate_reliability(design: Design, biases: BiasEstimates, anchored: Bools) -> Reliability:
    """Estimate the reliability of each annotator, adjusted for bias toward attributes of the judgment."""
    code = pd.Categorical(design.classes, design.labels).codes
    is_large = np.bincount(code + 1)[code + 1] >= LARGE_CLASS
    group = 2 * np.where(is_large, code, -1) + anchored
    return fit_reliability(design.reliability_votes, _logits_of_judgments(design, biases), group)


def estimate_gold_choices(design: Design, anchored: Bools) -> tuple[Interval | None, ...]:
    """Log-odds that gold annotators choose the side with each attribute, adjusted for the other attributes."""
    cast = anchored[design.annotator]
    cluster = design.comparison if design.prompt is None else design.prompt
    return joint_log_odds(design.delta[cast], design.sign[cast], cluster[cast])


def _logits_of_judgments(design: Design, biases: BiasEstimates) -> Floats:
    """Part of each vote's logit that is due to biases toward attributes of the judgment (for ``reliability_votes``)."""
    estimates, logits = _usable_estimates(biases), np.zeros(len(design.sign))
    for j in np.flatnonzero(design.is_judgment_attribute & biases.absolute):
        mean = shrink_normal(*estimates[:, :, j]).posterior.mean
        logits += np.nan_to_num(mean)[design.annotator] * design.delta[:, j]
    return np.asarray(logits[design.is_first])


def shrink_deviations(
    design: Design, biases: BiasEstimates, lines: Mapping[int, Line | GoldLine], shared: Floats
) -> list[ShrunkenBiases]:
    """Compute the posterior of the deviations for each attribute; ``lines`` contains the adjustments for reliability.

    With the conditional likelihood, the function integrates the likelihood of the votes over the biases, so the result
    is accurate even with few votes per annotator. With an estimator other than the conditional likelihood, the function
    treats the estimates as normally distributed. If almost no annotator has more than one or two votes on contested
    comparisons, the votes put no upper limit on tau; tau is then NaN, and no estimate is shrunk. ``shared`` is the
    variance of an error that all estimates of an attribute have in common, which is not part of tau.
    """
    is_normal = biases.absolute | design.is_judgment_attribute | (biases.status == "anchored").any()
    is_normal |= biases.quality != "conditional"
    integrated = [] if is_normal.all() else shrink_votes(design.votes, design.prompt, ~is_normal)
    estimates, result = _usable_estimates(biases), []
    for j, normal in enumerate(is_normal):
        if shared[j]:
            line = lines.get(j)
            gold_line = line if isinstance(line, GoldLine) else None
            shrunken = _shrink_relative_to_gold(estimates[:, :, j], gold_line, shared[j])
        else:
            shrunken = shrink_normal(*estimates[:, :, j]) if normal else integrated[j]
            if j in lines and np.isfinite(shrunken.tau):
                left, variance = lines[j].adjust(shrunken.estimate, shrunken.error)
                shrunken = average_posteriors(
                    shrunken, shrink_normal(left, np.sqrt(variance)), lines[j].chance
                )
        if shrunken.tau > WIDEST_TAU or shrunken.tau_high == np.inf:
            shrunken = replace(shrunken, tau=np.nan, tau_low=0.0, tau_high=np.inf, reliability=np.nan)
        result.append(shrunken)
    return result


def _shrink_relative_to_gold(estimates: Floats, line: GoldLine | None, shared: float) -> ShrunkenBiases:
    """Shrink biases that were measured relative to gold annotators, then add the error that the biases share."""
    value, variance = estimates[0], estimates[1] ** 2
    if line is not None:
        value, variance = line.adjust(*estimates)
    adjusted = shrink_normal(value, np.sqrt(own_variance(variance, shared)))
    # The interval of tau covers two cases: reliability explains part of the variance between annotators, or none.
    unadjusted = shrink_normal(estimates[0], np.sqrt(own_variance(estimates[1] ** 2, shared)))
    sds = np.sqrt(adjusted.posterior.sds**2 + shared)
    return replace(
        adjusted,
        posterior=replace(adjusted.posterior, sds=sds),
        tau_low=min(adjusted.tau_low, unadjusted.tau_low),
        tau_high=max(adjusted.tau_high, unadjusted.tau_high),
    )


def _usable_estimates(biases: BiasEstimates, *values: Floats) -> Floats:
    """Return estimates and standard errors, with NaN for gold annotators and for annotators who share no comparison."""
    is_missing = (biases.status == "anchored") | (biases.se == 0)
    return np.where(is_missing, np.nan, values or (biases.finite_deviation, biases.finite_se))


def annotator_table(design: Design, fit: BiasFit, options: AuditOptions) -> pd.DataFrame:
    """Build the table ``annotators.parquet``, with one row per annotator and attribute.

    Shrunken estimates are NaN for annotators without an informative vote. Only annotators with at least
    ``options.min_informative`` informative votes can be flagged for bias. ``odds_ratio`` belongs to the shrunken
    deviation, or to the deviation if nothing was shrunk. ``log_odds`` are the sums of bias and merit; ``log_odds`` is
    NaN if comparisons have several votes.
    """
    biases, reliability = without_wide(fit.biases), fit.reliability
    (m, q), nothing = biases.deviation.shape, np.full(biases.deviation.shape, np.nan)
    sums = None if fit.sums is None else without_wide(fit.sums.each)
    low_probability = np.where(reliability.n_votes > 0, reliability.cdf(LOW_RELIABILITY), np.nan)
    agreement = annotator_agreement(*design.first_votes, m)
    columns = {
        "annotator": design.annotators,
        "class": design.classes,
        "model": design.models,
        "attribute": np.tile(np.array(design.attributes, dtype=object), (m, 1)),
        "component": biases.component,
        "n_judgments": design.n_votes,
        "n_cross": design.count_by_annotator(design.cross),
        "n_informative": biases.n_informative,
        "raw_rate": design.raw_rate(),
        "log_odds": nothing if sums is None else sums.deviation,
        "log_odds_low": nothing if sums is None else sums.ci_low,
        "log_odds_high": nothing if sums is None else sums.ci_high,
        "deviation": biases.deviation,
        "se": biases.se,
        "ci_low": biases.ci_low,
        "ci_high": biases.ci_high,
        **_posterior_columns(biases, fit.shrunken_biases, options),
        "status": biases.status,
        "reliability": reliability.mean,
        "reliability_low": reliability.quantile(0.025),
        "reliability_high": reliability.quantile(0.975),
        "flag_reliability": bayesian_fdr(low_probability, options.fdr),
        "agreement": agreement.agreement,
        "agreement_low": agreement.low,
        "agreement_high": agreement.high,
    }
    # a value that describes an annotator is repeated in each of the annotator's rows
    cells = {
        name: np.repeat(values, q) if values.ndim == 1 else values.ravel()
        for name, values in columns.items()
    }
    return pd.DataFrame(cells).sort_values("annotator", kind="stable", ignore_index=True)


def _posterior_columns(
    biases: BiasEstimates, shrunken_biases: Sequence[ShrunkenBiases], options: AuditOptions
) -> dict[str, Array]:
    """Return shrunken deviations and flags; each column has the shape (n_annotators, n_attributes)."""
    posteriors = [one.posterior for one in shrunken_biases]
    statistics = {
        "shrunk": [one.mean for one in posteriors],
        "post_sd": [one.sd for one in posteriors],
        "post_low": [one.quantile(0.025) for one in posteriors],
        "post_high": [one.quantile(0.975) for one in posteriors],
        "prob_exceeds": [probability_exceeds(one, options.rho) for one in shrunken_biases],
        "is_known": [(one.basis != "prior") & np.isfinite(one.tau) for one in shrunken_biases],
    }
    found = {name: np.stack(values, axis=1) for name, values in statistics.items()}
    is_shrunk = found.pop("is_known") & (biases.n_informative > 0) & (biases.status != "anchored")
    is_shrunk &= (found["post_high"] - found["post_low"]) / 2 <= WIDEST_HALF
    found = {name: np.where(is_shrunk, values, np.nan) for name, values in found.items()}
    prob_exceeds = found.pop("prob_exceeds")
    can_be_flagged = biases.n_informative >= options.min_informative
    flag_probability = np.where(can_be_flagged, prob_exceeds, np.nan)
    estimates = _usable_estimates(biases, biases.deviation, biases.se)
    with np.errstate(over="ignore"):
        odds_ratio = np.exp(np.where(np.isnan(found["shrunk"]), biases.deviation, found["shrunk"]))
    return found | {
        "odds_ratio": odds_ratio,
        "q_value": np.stack(
            [benjamini_hochberg(*each) for each in np.moveaxis(estimates, 2, 0)], axis=1
        ),
        "prob_exceeds": prob_exceeds,
        "flag": np.apply_along_axis(bayesian_fdr, 0, flag_probability, options.fdr),
    }


def both_orders(judgments: Judgments) -> pd.DataFrame:
    """Find comparisons that an annotator judged in both orders.

    ``same`` says whether both votes chose the same response.
    """
    votes = judgments.votes[judgments.votes["shown_first"].notna()]
    votes = votes[votes.duplicated(["annotator", "comparison"], keep=False)]
    groups = votes.groupby(["annotator", "comparison"], sort=False)
    kinds = groups[["shown_first", "sign"]].nunique().reset_index("annotator")
    both = kinds[kinds["shown_first"] == 2]
    return pd.DataFrame({"annotator": both["annotator"], "same": both["sign"] == 1})


def build_model_rows(
    table: pd.DataFrame, design: Design, both: pd.DataFrame
) -> list[audit_json.ModelRow]:
    """Select the models' rows from ``table``, and add how often a model chose the same response in both orders."""
    same = both.groupby("annotator")["same"].agg(both_orders="size", same_share="mean")
    same.index = design.annotators[same.index]
    rows = table[table["model"].notna() & (table["n_judgments"] > 0)].join(same, on="annotator")
    rows["both_orders"] = rows["both_orders"].fillna(0).astype(int)
    columns = [name for name in audit_json.ModelRow.__annotations__ if name in rows]
    models: list[audit_json.ModelRow] = rows.sort_values(["model", "attribute"], kind="stable")[
        columns
    ].to_dict("records")
    return models


# -- everything together -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class AnnotatorEstimates:
    """Results about annotators: biases, posteriors, a table, and the parts ``pool`` and ``checks`` of audit.json.

    ``may_be_reliability`` says for each attribute whether annotators may differ in reliability rather than in bias.
    """

    fit: BiasFit
    table: pd.DataFrame
    pool: dict[str, audit_json.PoolRow]
    checks: audit_json.Checks
    camps: Camps
    may_be_reliability: Bools


def estimate_annotators(
    judgments: Judgments, design: Design, options: AuditOptions
) -> AnnotatorEstimates:
    """Estimate the annotators' biases, and test the assumptions behind the estimates."""
    quality, why = choose_quality(design, options)
    fit = fit_biases(judgments, design, options, quality)
    table = annotator_table(design, fit, options)
    camps, reliability = Camps(np.nan, np.nan, np.nan), None
    may_be_reliability = np.zeros_like(fit.needs_reliability)
    if design.has_identities:
        camps = _test_camps(design, table)
        table["flag_reliability"] &= not camps.are_found
        reliability = _build_reliability_row(design, fit, table, camps)
        is_open = reliability["is_unknown"] or reliability["is_hardly_known"]
        may_be_reliability = fit.needs_reliability & (is_open and fit.sums is None)
    graphs = {name: _build_graph_row(design, fit.biases, j) for j, name in enumerate(design.attributes)}
    pool = {
        name: _build_pool_row(design, fit, table, j, bool(may_be_reliability[j]))
        for j, name in enumerate(design.attributes)
    }
    checks: audit_json.Checks = {
        "assignment": fit.sums.assignment if fit.sums and design.has_identities else None,
        "estimator": {"quality": quality, "why": why},
        "components": {"informative": graphs},
        "anchors": _build_anchors_row(design, fit.anchored, options) if fit.anchored.any() else None,
        "reliability": reliability,
    }
    return AnnotatorEstimates(fit, table, pool, checks, camps, may_be_reliability)


def fit_biases(judgments: Judgments, design: Design, options: AuditOptions, quality: str) -> BiasFit:
    """Estimate the annotators' biases, adjust the biases for reliability, and compare the classes."""
    anchored = find_anchors(design, options)
    sums = estimate_sums(judgments, design, options) if quality == "marginal" else None
    if sums is None:
        biases = fit_conditional(
            design.votes,
            anchored=anchored,
            min_informative=options.min_informative,
            clusters=design.prompt,
        )
        equal_p = equal_bias_p_value(design.votes, biases, design.prompt)
    else:
        biases, equal_p = sums.biases, sums.equal_p
    known = sums and sums.reliability
    reliability = known or estimate_reliability(design, biases, anchored)
    adjusted = adjust_for_reliability(biases, reliability, find_unexplained_choices(design.votes))
    is_gold = anchored.any() and quality == "conditional"
    choices = estimate_gold_choices(design, anchored) if is_gold else [None] * len(design.attributes)
    gold = adjust_to_gold(adjusted.biases, reliability, choices, is_gold & ~design.is_judgment_attribute)
    lines = adjusted.lines | gold.lines
    line_p = np.fmax(adjusted.equal_bias_p, gold.equal_bias_p)
    for j, line in lines.items():
        equal_p[j] += line.chance * (line_p[j] - equal_p[j])
    return BiasFit(
        anchored=anchored,
        sums=sums,
        biases=gold.biases,
        reliability=reliability,
        lines=lines,
        shrunken_biases=shrink_deviations(design, biases, lines, gold.shared),
        equal_p=equal_p,
        needs_reliability=~gold.biases.absolute | (anchored.any() & ~design.is_judgment_attribute),
        classes=_compare_classes(design, biases),
    )


def estimate_sums(judgments: Judgments, design: Design, options: AuditOptions) -> Sums:
    """Estimate each annotator's sum of bias and merit from all votes, without conditioning on the comparison."""
    votes = design.votes._replace(comparison=design.comparison)
    return fit_sums(
        judgments, votes, design.is_judgment_attribute, design.prompt, options.min_informative
    )


def _build_sum_row(sums: Sums, j: int) -> audit_json.SumRow:
    """Pooled sum of bias and merit for one attribute, with an interval; None if the interval is too wide."""
    log_odds, reach = sums.pooled.log_odds[j], ndtri(0.975) * sums.pooled.se[j]
    is_known = reach <= WIDEST_HALF
    return {
        "log_odds": log_odds if is_known else None,
        "ci_low": log_odds - reach if is_known else None,
        "ci_high": log_odds + reach if is_known else None,
        "n": int(sums.each.n_informative[:, j].sum()),
        "beside_models": len(sums.pooled.strength) > 0,
        "needed": int(sums.needed[j]),
    }


def has_known_tau(shrunken: ShrunkenBiases) -> bool:
    """Whether the confidence interval of tau is within a plausible range."""
    return bool(shrunken.tau_high <= WIDEST_TAU)


def build_tau_row(shrunken: ShrunkenBiases) -> audit_json.TauRow:
    """Return tau with its 95 % confidence interval; if tau cannot be estimated, tau is NaN and both limits are None."""
    is_known = has_known_tau(shrunken)
    return {
        "tau": shrunken.tau if is_known else np.nan,
        "tau_ci": [shrunken.tau_low, shrunken.tau_high] if is_known else [None] * 2,
    }


def _build_pool_row(
    design: Design, fit: BiasFit, table: pd.DataFrame, j: int, may_be_reliability: bool
) -> audit_json.PoolRow:
    """Build the entry of one attribute in the part ``pool`` of audit.json."""
    shrunken, comparison, sums = fit.shrunken_biases[j], fit.classes[j], fit.sums
    known = shrunken if has_known_tau(shrunken) else replace(shrunken, tau=np.nan)
    advice, groups = (
        recommend(known, fit.equal_p[j], comparison.p_value),
        _build_group_rows(design, fit, j),
    )
    reason = advice.reason + WITHIN * bool(groups)
    reason += MAYBE_RELIABILITY * (may_be_reliability and advice.variant != "pooled")
    return {
        "components": len(_count_members(fit.biases, j)),
        **_count_statuses(design, without_wide(fit.biases), j),
        "n_flagged": table["flag"][table["attribute"] == design.attributes[j]].sum(),
        "is_beside_reliability": j in fit.lines and fit.is_adjusted,
        "unit": design.unit[j],
        "most_units": design.most_units[j],
        **build_tau_row(shrunken),
        "reliability": np.nan if np.isnan(known.tau) else known.reliability,
        "refused": _list_refused_figures(fit, j),
        "caveat": _write_caveat(fit, j),
        "equal_biases_p": fit.equal_p[j],
        "is_divided": len(groups) > 0,
        "groups": groups,
        "classes": comparison.rows,
        "class_test_p": comparison.p_value,
        "recommendation": advice.variant,
        "recommendation_reason": reason + MAYBE_CLASS_RELIABILITY * bool(comparison.doubt),
        **_build_shared_bias_row(design, fit, j),
        "sum": None if sums is None else _build_sum_row(sums, j),
    }


def _write_caveat(fit: BiasFit, j: int) -> str:
    """If comparisons have one vote each, return a caveat about annotator differences; otherwise, an empty string."""
    if fit.sums is None or fit.biases.absolute[j] or fit.reason_not_to_compare(j):
        return ""
    p_value, smallest = fit.sums.assignment["p_value"], fit.sums.assignment["smallest"]
    return LESS_OF_EITHER.format(ATTENUATION, format_p_value(p_value), smallest)


def without_wide(biases: BiasEstimates) -> BiasEstimates:
    """Remove estimates whose intervals are too wide to be useful, and set their status to "insufficient"."""
    is_wide = biases.ci_high - biases.deviation > WIDEST_HALF
    return replace(
        biases,
        deviation=np.where(is_wide, np.nan, biases.deviation),
        se=np.where(is_wide, np.nan, biases.se),
        status=np.where(is_wide & (biases.status == "ok"), "insufficient", biases.status),
    )


def _list_refused_figures(fit: BiasFit, j: int) -> dict[str, str]:
    """Map each figure that the audit omits for an attribute to the reason for the omission."""
    refused = {}
    if not has_known_tau(fit.shrunken_biases[j]):
        refused["tau"] = NO_TAU.format(WIDEST_TAU)
    if reason := fit.reason_not_to_compare(j):
        refused |= dict.fromkeys(("tau", "deviation", "shrunk", "flag"), reason)
    if fit.sums:
        refused["flips"] = NO_MAJORITIES
    if fit.sums and fit.sums.reliability is None:
        refused["reliability"] = UNRELIABLE
    return refused


def _test_camps(design: Design, table: pd.DataFrame) -> Camps:
    """Test whether annotators share one taste; annotators with low estimated reliability may have a different taste."""
    is_flagged = table.drop_duplicates("annotator").set_index("annotator")["flag_reliability"]
    votes = design.votes._replace(comparison=design.comparison).select(design.is_first)
    return find_camps(votes, is_flagged.reindex(design.annotators))


def _build_reliability_row(
    design: Design, fit: BiasFit, table: pd.DataFrame, camps: Camps
) -> audit_json.ReliabilityRow:
    """Test whether annotators are equally reliable, and say whether the biases are adjusted for reliability."""
    reliability, has_voted = fit.reliability, design.n_votes > 0
    p_value = equal_reliability_p_value(design.reliability_votes)
    is_hardly_known = reliability.n_votes[has_voted].mean() < FEW_EQUAL
    is_hardly_known |= p_value < LEVEL and reliability.sd[has_voted].mean() > UNSURE
    known = reliability.unknown or ("hardly" if is_hardly_known else "")
    is_by_models = fit.sums is not None and fit.sums.reliability is not None
    why = RELIABILITY_NOTES[known] if reliability.unknown or fit.is_adjusted else NOT_NEEDED
    if fit.sums:
        why = BY_MODELS if is_by_models else UNRELIABLE
    return {
        "p_value": p_value,
        "spread": reliability.between_sd,
        "n_estimated": 0 if reliability.unknown else (reliability.n_votes >= FEWEST).sum(),
        "n_flagged": table.loc[table["flag_reliability"], "annotator"].nunique(),
        "is_used": fit.is_adjusted,
        "is_unknown": bool(reliability.unknown),
        "is_hardly_known": fit.is_adjusted and known == "hardly",
        "why": why,
        "has_camps": camps.are_found,
        "is_by_models": is_by_models,
    }


def _compare_classes(design: Design, biases: BiasEstimates) -> list[ClassComparison]:
    """Compare the annotator classes on each attribute; with fewer than two classes, the comparisons are empty."""
    if len(design.labels) < 2:
        return [ClassComparison([], None, "")] * len(design.attributes)
    shift = _logits_of_judgments(design, biases)
    if biases.quality != "conditional" or (biases.status == "anchored").any():
        biases = fit_conditional(design.votes, clusters=design.prompt)
    codes = pd.Categorical(design.classes, design.labels).codes
    class_votes = design.reliability_votes._replace(
        annotator=codes[design.reliability_votes.annotator], n_annotators=len(design.labels)
    )
    merit = estimate_class_merit(class_votes, shift)
    offsets, if_equal = class_offsets(biases, codes, merit), class_offsets(biases, codes)
    is_wide = offsets.ci_high - offsets.offset > WIDEST_HALF
    low, offset, high = (
        np.where(is_wide, np.nan, each) for each in (offsets.ci_low, offsets.offset, offsets.ci_high)
    )
    doubt = RELIABILITY_NOTES[merit.unknown] if merit.unknown else EXPLAINED
    is_doubted = (if_equal.p_value < LEVEL) & ~biases.absolute
    is_doubted &= (offsets.p_value >= LEVEL) | bool(merit.unknown)
    # for each class and attribute, number of informative votes that people in the class cast
    n_votes = np.where(design.is_person[:, None], biases.n_informative, 0)
    of_class = [np.where((design.classes == label)[:, None], n_votes, 0) for label in design.labels]
    return [
        ClassComparison(
            [
                {
                    "class": label,
                    "n_people": (of_class[i][:, j] > 0).sum(),
                    "is_dominated": is_dominated(of_class[i][:, j]),
                    "n": offsets.n[i, j],
                    "offset": offset[i, j],
                    "ci_low": low[i, j],
                    "ci_high": high[i, j],
                }
                for i, label in enumerate(design.labels)
            ],
            p_value,
            doubt * bool(is_doubted[j]),
        )
        for j, p_value in enumerate(offsets.p_value)
    ]


def _count_members(biases: BiasEstimates, j: int) -> pd.Series:
    """Sizes of the groups of annotators who are connected by informative comparisons; the largest group comes first."""
    component = pd.Series(biases.component[:, j])
    return component[component >= 0].value_counts()


def _build_graph_row(design: Design, biases: BiasEstimates, j: int) -> audit_json.GraphRow:
    """Count the groups of annotators who are connected by informative comparisons."""
    sizes, component = _count_members(biases, j), biases.component[:, j]
    outside = (component[design.n_votes > 0] < 0).sum()
    return {"n": len(sizes), "sizes": sizes.to_list()[:SIZES_SHOWN], "outside": outside}


def _build_group_rows(design: Design, fit: BiasFit, j: int) -> list[audit_json.GroupRow]:
    """If several large groups of annotators share no comparisons, estimate tau in each large group."""
    sizes, rows = _count_members(fit.biases, j), list[audit_json.GroupRow]()
    large = sizes.index[sizes >= FEWEST_ANNOTATORS]
    for group in large[:SIZES_SHOWN] if len(large) > 1 else ():
        is_member = fit.biases.component[:, j] == group
        tau = build_tau_row(shrink_normal(*_usable_estimates(fit.biases)[:, is_member, j]))
        rows.append({"n": is_member.sum(), "n_people": (is_member & design.is_person).sum(), **tau})
    return rows


def _count_statuses(design: Design, biases: BiasEstimates, j: int) -> audit_json.StatusCounts:
    """Number of annotators with each status, and number of people with an estimate."""
    status = pd.Series(biases.status[:, j], dtype=object)
    people_status = status[design.is_person]
    n, n_cross = status[design.n_votes > 0].value_counts(), design.cross[:, j].sum()
    n = n.reindex([*ESTIMATED, "no_cross", "no_information"], fill_value=0)
    return {
        "informative_share": design.informative[:, j].sum() / n_cross if n_cross else None,
        "n_estimated": n["ok"],
        "n_insufficient": n["insufficient"],
        "n_no_information": n["no_cross"] + n["no_information"],
        "n_separated": n["separated_high"] + n["separated_low"],
        "n_people_estimated": people_status.isin(ESTIMATED).sum(),
    }


def _build_shared_bias_row(design: Design, fit: BiasFit, j: int) -> audit_json.SharedBiasRow:
    """Mean bias with two intervals: for the same annotators on new comparisons, and for a population of annotators."""
    biases, sums, n_anchors = fit.biases, fit.sums, int(fit.anchored.sum())
    is_known, mean = bool(biases.absolute[j]), biases.shared_bias[j]
    is_used = (biases.se[:, j] > 0) & is_known
    n, se, population_se = is_used.sum(), biases.shared_bias_se[j], biases.shared_bias_se_population[j]
    reaches = ndtri(0.975) * se, stdtrit(n - 1, 0.975) * population_se
    ends = [[mean - one, mean + one] if one <= WIDEST_HALF else None for one in reaches]
    if sums is not None:
        why = RANDOM_ORDER if is_known else NOT_SPLIT.format(int(sums.needed[j]), HALF_WIDTH)
    elif is_known and (biases.status[:, j] == "anchored").any():
        why = ANCHORED.format(n=counted(n_anchors, "annotator"))
        why += AS_RELIABLE * bool(fit.needs_reliability[j] and fit.reliability.unknown)
    elif is_known:
        why = VARIES
    elif (biases.component[:, j] >= 0).any():
        why = OUT_OF_REACH if n_anchors else NOT_IDENTIFIED
    else:
        why = NO_INFORMATION
    if is_known and ends[0] is None:
        mean, why = np.nan, TOO_WIDE
    return {
        "shared_bias": mean,
        "shared_bias_ci": ends[0],
        "shared_bias_ci_beyond": ends[1],
        "n_shared_bias": n,
        "n_people_shared_bias": (is_used & design.is_person).sum(),
        "absolute": is_known,
        "absolute_why": why,
    }


def _build_anchors_row(design: Design, anchored: Bools, options: AuditOptions) -> audit_json.AnchorRow:
    """Count the gold annotators' cross-group judgments, and test whether gold annotators differ in bias."""
    cast = anchored[design.annotator]
    votes = design.votes.select(cast)
    prompt = None if design.prompt is None else design.prompt[cast]
    equal_p = equal_bias_p_value(votes, fit_conditional(votes), prompt)
    n_cross = design.cross[cast].sum(axis=0)
    return {
        "n": anchored.sum(),
        "n_people": (anchored & design.is_person).sum(),
        "class": options.anchor_class,
        "annotators": sorted(design.annotators[anchored]),
        "n_cross": dict(zip(design.attributes, n_cross, strict=True)),
        "equal_biases_p": dict(zip(design.attributes, equal_p, strict=True)),
    }
