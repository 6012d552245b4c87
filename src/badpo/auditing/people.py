"""What an audit finds out about annotators: which way each leans, how sure that is, and what cannot be known."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.special import ndtri, stdtrit

from badpo.auditing.marginal import ATTENUATION, HALF_WIDTH, Sums, find_sums
from badpo.data.files import Json
from badpo.data.judgments import Judgments
from badpo.data.privacy import FEWEST_ANNOTATORS, model_names, pseudonyms
from badpo.data.problems import ConfigError, counted, did_you_mean, refuse_other_types
from badpo.estimation.care import (
    FEWEST,
    Care,
    Line,
    beside_care,
    beyond_care,
    class_merit,
    equal_care_test,
    fit_care,
)
from badpo.estimation.fit import Leans, fit_conditional, weakly_joined_teams
from badpo.estimation.gold_annotators import GoldLine, beside_gold, own_variance
from badpo.estimation.pool import WIDEST_HALF, joint_log_odds, summed
from badpo.estimation.shrinkage import (
    Shrunk,
    averaged,
    bayesian_fdr,
    benjamini_hochberg,
    probability_exceeds,
    shrink_normal,
    shrink_votes,
)
from badpo.estimation.significance import (
    LEVEL,
    annotator_agreement,
    class_offsets,
    equal_leans_test,
    recommend,
)
from badpo.estimation.taste import Camps, find_camps
from badpo.theory import Bools, Floats, Ints
from badpo.theory.identifiability import informative_judgments
from badpo.theory.summaries import Interval

# exp(5) is odds of 148 to 1: no distance between people
WIDEST_SPREAD = 5.0
# A few vast differences of a continuous attribute, which may be errors, would decide alone. Where 3 % of them are forty
# times too large own intervals hold the truth in 74 %, cut at five units in 92 %, at three in 95 %. Posterior intervals
# hold it in 89 % even then, as such comparisons tell nothing of a lean; without those beyond ten units in 94 %.
MOST_UNITS, OUTLYING = 3.0, 10.0
SIZES_SHOWN = 5
# Errors are clustered by prompt above this mean number of comparisons for each prompt, or this share of repeats.
OFTEN_REPEATED, FEWEST_REPEATED = 1.25, 0.01
# The statuses of annotators whose bias has an estimate, finite or not.
TOLD = ("ok", "insufficient", "separated_high", "separated_low")

CONDITIONAL = (
    "conditional likelihood: given how many votes each side of a comparison got, its "
    "unknown quality drops out, and nothing is assumed about who judged what"
)
MARGINAL = (
    "nothing is taken out: each figure is the sum of bias and of reliability times the merit that goes with the "
    "attribute, which votes on comparisons of one's own do not split"
)
QUALITIES = {"conditional": CONDITIONAL, "marginal": MARGINAL}
NOT_IDENTIFIED = (
    "not known: if everyone leaned more toward it, and the responses without it were "
    "better by as much, the votes would be the same; naming annotators who are known "
    "to lean nowhere (anchors) would tell"
)
OUT_OF_REACH = (
    "not known: the votes do not compare everyone with the annotators declared to lean nowhere (anchors)"
)
ANCHORED = "known from {n} declared to lean nowhere (anchors), and only as far as that is true"
AS_RELIABLE = (
    "; reliability is not known (W410), and the intervals allow for one that differs between anchors and others with a "
    "standard deviation of half its mean"
)
VARIES = "known because votes on one comparison differ in this attribute, so that no quality can stand in for it"
NO_INFORMATION = "not known: no vote tells annotators apart"
NOT_SPLIT = (
    "not known: one vote per comparison does not split that sum. At least {:,} comparisons whose sides differ need a "
    "second annotator before the median annotator's deviation from the pool is known to within \u00b1{:g}"
)
RANDOM_ORDER = (
    "known because the order does not go with anything that the table says of the responses; averaged over "
    "comparisons, which pulls it toward zero"
)
UNRELIABLE = "not known: reliability shows where two annotators judge the same comparison"
BY_MODELS = "reliability shows in how closely somebody follows the strengths of the models that wrote the responses"
# Who follows quality less than half as closely as the others is careless.
CARELESS = 0.5
# Below so many votes on equal sides, on average, who clicks at random is hardly found. Where 6 of 30 do and nobody
# leans, 25 pools had 25 flags at 10 such votes, all wrong, 11 at 20, and none at 40.
FEW_EQUAL = 25
# If annotators differ in reliability and its standard error is larger than this share of the mean, on average, the line
# in reliability is uncertain: with a standard deviation of 0.5 between annotators and 100 such votes each, own
# intervals hold the truth in 88 %.
UNSURE = 0.25
# By what is known of care.
ABOUT_CARE = {
    "": "deviations count from a line in reliability, estimated on comparisons whose sides do not differ",
    "hardly": (
        "reliability is hardly known: annotators have too few votes each on comparisons whose sides do not differ in "
        "any attribute"
    ),
    "few": "reliability is not known: too few votes are on comparisons whose sides do not differ in any attribute",
    "careless": (
        "reliability is not known: on comparisons whose sides do not differ in any attribute, annotators agree no more "
        "than by chance"
    ),
    "unanimous": (
        "reliability is not known: on comparisons whose sides do not differ in any attribute, annotators hardly ever "
        "disagree"
    ),
}
NOT_NEEDED = "reliability is not needed: the votes on one comparison differ in each attribute"
LESS_OF_EITHER = (
    "Whoever chooses the attribute less often has less bias or is less reliable. Differences are smaller than with "
    "several votes per comparison (about {:g} times as large in simulations). They count because comparisons look "
    "assigned at random (p = {:.2g}; a spread of {:.2f} standard deviations between annotators is found with a power "
    "of 80 %)."
)
NO_MAJORITIES = "hardly any comparison has two votes"
TOO_WIDE = f"not known: its 95 % confidence interval is wider than \u00b1{WIDEST_HALF:g} log-odds"
NO_TAU = "the 95 % confidence interval of the spread has no end below {:g} log-odds"
MAYBE_CARE = " They may differ in reliability instead, of which too little is known (W410)."
EXPLAINED = "the classes differ in reliability, or their reliability is known too little"
MAYBE_CLASS_CARE = " That classes differ in their choices may be reliability instead of bias (W417)."
WITHIN = " That is within groups; whether groups differ from one another the votes do not say."
UNANIMOUS = f"{CONDITIONAL}. All who judged the same comparison agree, which tells nobody from anybody"


@dataclass(frozen=True)
class AuditOptions:
    """Choices of an audit; `badpo.auditing.audit.audit` says what each means."""

    quality: str | None = None
    anchors: Sequence[str] = ()
    anchor_class: str | None = None
    rho: float = 0.5
    fdr: float = 0.1
    min_informative: int = 10

    def __post_init__(self):
        refuse_other_types(**vars(self))
        if self.quality is not None and self.quality not in QUALITIES:
            hint = did_you_mean(self.quality, [*QUALITIES])
            raise ConfigError(f"quality must be {' or '.join(QUALITIES)}; got {self.quality!r}.{hint}")
        if not 0 <= self.rho < math.inf:
            raise ConfigError(f"rho is a size in log-odds, 0 or more, such as 0.5; got {self.rho!r}")
        if not 0 < self.fdr < 1:
            raise ConfigError(f"fdr is a share above 0 and below 1, such as 0.1; got {self.fdr!r}")
        if self.anchors and self.anchor_class is not None:
            raise ConfigError("name anchors one by one or by their class, not both")
        if not self.min_informative >= 1:
            raise ConfigError(f"min_informative must be 1 or more; got {self.min_informative}")


# -- the votes as arrays -----------------------------------------------------------------------------------------


class Design:
    """Who judged what, with which difference on each attribute, and how they voted.

    Of each vote: ``comparison``; ``stratum``, what is conditioned on in its place (`Judgments.comparable_votes`),
    apart for teams that hardly meet (`weakly_joined_teams`), so that each has a mean of its own; ``annotator``;
    ``sign``, +1 for a; ``delta``, g(a) - g(b) of each attribute in ``unit``, of which differences count as at most
    ``most_units`` (``n_cut`` judgments had more), and as none where they are ``OUTLYING``; ``cross``, whether the sides
    differ by more than the attribute's threshold; ``informative``, whether the vote tells annotators apart when nothing
    is known of the comparison's quality; ``is_first``, whether the annotator had not voted on the comparison before;
    ``prompt``, by which errors are clustered: None unless prompts have several comparisons (``has_repeated_prompts``)
    or annotators several votes on one (in both orders). Of each attribute:
    ``unit``, the difference that leans, tau and rho count per: 1, present against absent, or the median of a continuous
    one where sides differ, so that its scale moves nothing; ``is_shown``, whether it is one of the judgment, such as
    which side was shown first. Of each annotator: ``annotators``, the pseudonym; ``classes``; ``models``, the names of
    models; ``is_person``; ``n_votes``. Where nobody knows who voted, all votes stand under one annotator.
    """

    def __init__(self, judgments: Judgments):
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
        self.is_shown = np.array([one.scope == "judgment" for one in declared], dtype=bool)
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
        of_annotators = judgments.votes.duplicated(["annotator", "comparison"]).to_numpy()
        self.is_first = ~(of_annotators & self.has_identities)
        self.prompt_of_first_votes = prompt[self.is_first]
        self.has_repeated_prompts = judgments.n_comparisons >= OFTEN_REPEATED * n_prompts
        are_repeated = (~self.is_first).mean() > FEWEST_REPEATED
        self.prompt = prompt if self.has_repeated_prompts or are_repeated else None
        votes = self.sign, self.annotator, self.delta
        self.stratum = judgments.comparable_votes()
        teams = weakly_joined_teams(self.stratum, *votes, m)
        if teams.any():
            apart = teams[self.annotator] * (self.delta != 0)
            labels = np.column_stack([self.stratum, apart])
            self.stratum = np.unique(labels, axis=0, return_inverse=True)[1].reshape(-1)
        # what every estimator of leans takes first, and of care: vast differences are none
        # that are alike
        self.votes = (self.stratum, *votes, m)
        first, of_responses = self.is_first, cut[:, ~self.is_shown]
        stratum, sign, annotator, _, _ = self.votes
        self.care_votes = stratum[first], sign[first], annotator[first], of_responses[first], m
        self.informative = informative_judgments(self.stratum, self.annotator, self.sign, self.delta)

    @property
    def first_votes(self) -> tuple[Ints, Ints, Ints]:
        """Comparison, sign and annotator of the first vote of each annotator on each comparison."""
        return tuple(each[self.is_first] for each in (self.comparison, self.sign, self.annotator))

    def per_annotator(self, chosen: Bools) -> Ints:
        """How many of the chosen votes each annotator cast, of shape (n_annotators, n_attributes)."""
        return summed(self.annotator, chosen, len(self.annotators)).astype(int)

    def raw_rate(self) -> Floats:
        """How often each annotator chose the side with more of an attribute, among their cross-group judgments.

        Shape (n_annotators, n_attributes); NaN without such a judgment.
        """
        chose_more = self.cross & (self.sign[:, None] * self.delta > 0)
        with np.errstate(invalid="ignore"):
            return self.per_annotator(chose_more) / self.per_annotator(self.cross)


def anchored_annotators(design: Design, options: AuditOptions) -> Bools:
    """Who is known to lean nowhere, of shape (n_annotators,): those named one by one, or everyone of a class."""
    label = options.anchor_class
    if label is None:
        return named_annotators(design.annotators, options.anchors, "anchors")
    if label not in design.labels:
        raise ConfigError(
            f'anchor class: no annotator has the class "{label}".{did_you_mean(label, design.labels)} Classes: '
            f"{', '.join(design.labels) or 'none; give an annotator_class column'}"
        )
    return design.classes == label


def named_annotators(annotators: ArrayLike, named: Sequence[object], key: str) -> Bools:
    """Who of the annotators is named, by id or pseudonym, in a list that was given under ``key``.

    Raises `ConfigError` for a name that is not among the annotators; the message shows pseudonyms only.
    """
    wanted = pseudonyms(list(dict.fromkeys(map(str, named))))
    known = np.asarray(annotators, dtype=object)
    if missing := [name for name in wanted if name not in set(known)]:
        raise ConfigError(
            f"{key}: {', '.join(missing)} cast no vote in this table (ids are shown as "
            "pseudonyms); write the id as the table has it, or the pseudonym that the "
            "report shows"
        )
    return np.isin(known, wanted)


def with_models(judgments: Judgments, models: Sequence[str]) -> Judgments:
    """The judgments, with these annotators named beside those of the class "model"."""
    annotators = judgments.annotators.copy()
    named_annotators(annotators["pseudonym"], models, "models")
    ids = list(dict.fromkeys(map(str, models)))
    names = dict(zip(pseudonyms(ids), model_names(ids), strict=True))
    known = zip(annotators["pseudonym"], annotators["model"], strict=True)
    annotators["model"] = [names.get(pseudonym, model) for pseudonym, model in known]
    return replace(judgments, annotators=annotators)


# -- estimates ---------------------------------------------------------------------------------------------------


def choose_quality(design: Design, options: AuditOptions) -> tuple[str, str]:
    """The estimator and the reason for it, as a sentence for people.

    What is asked for; otherwise the conditional one, unless more than half of those who saw the sides of an attribute
    differ have no informative vote, for every attribute: it spends the votes of comparisons that are unanimous or have
    one. Sums of bias and merit use all votes.
    """
    if options.quality is not None:
        return options.quality, f"asked for; {QUALITIES[options.quality]}"
    is_shared = np.bincount(design.comparison)[design.comparison] > 1
    if not design.informative.any() and is_shared.mean() > 0.5:
        return "conditional", UNANIMOUS
    saw = design.per_annotator(design.cross) > 0
    informed, n_saw = saw & (design.per_annotator(design.informative) > 0), saw.sum(axis=0)
    without = 1 - informed.sum(axis=0) / np.maximum(n_saw, 1)
    if not (without > 0.5).all() or (n_saw < 2).any():
        return "conditional", CONDITIONAL
    lacking = "most annotators who saw the sides differ share no contested comparison with anybody"
    return "marginal", f"{lacking}, so {MARGINAL}"


def care_of(design: Design, leans: Leans, anchored: Bools) -> Care:
    """Reliability of each annotator; leans toward attributes of the judgment are no part of it."""
    return fit_care(*design.care_votes, _logits_of_judgments(design, leans), anchored)


def gold_choices(design: Design, anchored: Bools) -> tuple[Interval | None, ...]:
    """Log-odds that gold annotators choose the side with each attribute, beside the others."""
    cast = anchored[design.annotator]
    of = design.comparison if design.prompt is None else design.prompt
    return joint_log_odds(design.delta[cast], design.sign[cast], of[cast])


def _logits_of_judgments(design: Design, leans: Leans) -> Floats:
    """What leans toward attributes of the judgment add to the logit of each first vote, as in ``care_votes``."""
    own, logits = _own(leans), np.zeros(len(design.sign))
    for j in np.flatnonzero(design.is_shown & leans.absolute):
        believed = shrink_normal(*own[:, :, j]).posterior.mean
        logits += np.nan_to_num(believed)[design.annotator] * design.delta[:, j]
    return logits[design.is_first]


def shrunken(
    design: Design, leans: Leans, lines: Mapping[int, Line | GoldLine], shared: Floats
) -> list[Shrunk]:
    """What is believed of each attribute's deviations, from a line in care as far as the attribute has one.

    With the conditional likelihood the leans are integrated out of the votes, which holds with few votes each too, else
    the estimates are taken as normal. Where hardly anybody has more than a vote or two on contested comparisons the
    likelihood of the spread rises without end: tau is then NaN, and nothing can be shrunk to it. An error with the
    variance ``shared`` that all estimates of an attribute have in common is no part of their spread.
    """
    is_normal = leans.absolute | design.is_shown | (leans.status == "anchored").any()
    is_normal |= leans.quality != "conditional"
    integrated = [] if is_normal.all() else shrink_votes(*design.votes, design.prompt)
    own, found = _own(leans), []
    for j, normal in enumerate(is_normal):
        if shared[j]:
            line = lines.get(j)
            gold_line = line if isinstance(line, GoldLine) else None
            spread = _shrunken_beside_gold(own[:, :, j], gold_line, shared[j])
        else:
            spread = shrink_normal(*own[:, :, j]) if normal else integrated[j]
            if j in lines and np.isfinite(spread.tau):
                left, variance = lines[j].averaged(spread.estimate, spread.error)
                spread = averaged(spread, shrink_normal(left, np.sqrt(variance)), lines[j].chance)
        if spread.tau > WIDEST_SPREAD or spread.tau_high == np.inf:
            spread = replace(spread, tau=np.nan, tau_low=0.0, tau_high=np.inf, reliability=np.nan)
        found.append(spread)
    return found


def _shrunken_beside_gold(own: Floats, line: GoldLine | None, shared: float) -> Shrunk:
    """Posterior of biases that count from gold annotators: the shared error is added to it after shrinking."""
    value, variance = own[0], own[1] ** 2
    if line is not None:
        value, variance = line.averaged(*own)
    found = shrink_normal(value, np.sqrt(own_variance(variance, shared)))
    # reliability explains some of the spread at most
    whole = shrink_normal(own[0], np.sqrt(own_variance(own[1] ** 2, shared)))
    sds = np.sqrt(found.posterior.sds**2 + shared)
    return replace(
        found,
        posterior=replace(found.posterior, sds=sds),
        tau_low=min(found.tau_low, whole.tau_low),
        tau_high=max(found.tau_high, whole.tau_high),
    )


def _own(leans: Leans, *values: Floats) -> Floats:
    """Estimates and their errors, finite unless others are given; NaN for those who are anchored, or not compared."""
    is_given = (leans.status == "anchored") | (leans.se == 0)
    return np.where(is_given, np.nan, values or (leans.finite_deviation, leans.finite_se))


def annotator_table(
    design: Design,
    leans: Leans,
    spreads: Sequence[Shrunk],
    care: Care,
    options: AuditOptions,
    sums: Leans | None,
) -> pd.DataFrame:
    """The rows of ``annotators.parquet``: for each annotator the attributes, in the order of their declaration.

    Shrunken estimates are NaN for who has no informative vote; only who has enough of them can be flagged.
    ``odds_ratio`` is of the shrunken deviation, or of the deviation itself where nothing was shrunk; ``log_odds`` are
    the ``sums`` of bias and merit, NaN in a table whose comparisons have several votes.
    """
    (m, q), nothing = leans.deviation.shape, np.full(leans.deviation.shape, np.nan)
    is_shrunk = (leans.n_informative > 0) & (leans.status != "anchored")
    is_shrunk &= np.stack([(one.basis != "prior") & np.isfinite(one.tau) for one in spreads], axis=1)
    posteriors = [one.posterior for one in spreads]
    believed = [
        [of.mean for of in posteriors],
        [of.sd for of in posteriors],
        [of.quantile(0.025) for of in posteriors],
        [of.quantile(0.975) for of in posteriors],
        [probability_exceeds(one, options.rho) for one in spreads],
    ]
    is_shrunk &= np.stack(
        [(high - low) / 2 <= WIDEST_HALF for low, high in zip(*believed[2:4], strict=True)], axis=1
    )
    shrunk, post_sd, post_low, post_high, prob_exceeds = np.where(
        is_shrunk, np.swapaxes(believed, 1, 2), np.nan
    )
    own = _own(leans, leans.deviation, leans.se)
    is_told = leans.n_informative >= options.min_informative
    of_flags = np.where(is_told, prob_exceeds, np.nan)
    of_care = np.where(care.n_votes > 0, care.cdf(CARELESS), np.nan)
    with np.errstate(over="ignore"):
        odds_ratio = np.exp(np.where(np.isnan(shrunk), leans.deviation, shrunk))
    agreement = annotator_agreement(*design.first_votes, m)
    columns = {
        "annotator": design.annotators,
        "class": design.classes,
        "model": design.models,
        "attribute": np.tile(np.array(design.attributes, dtype=object), (m, 1)),
        "component": leans.component,
        "n_judgments": design.n_votes,
        "n_cross": design.per_annotator(design.cross),
        "n_informative": leans.n_informative,
        "raw_rate": design.raw_rate(),
        "log_odds": nothing if sums is None else sums.deviation,
        "log_odds_low": nothing if sums is None else sums.ci_low,
        "log_odds_high": nothing if sums is None else sums.ci_high,
        "deviation": leans.deviation,
        "se": leans.se,
        "ci_low": leans.ci_low,
        "ci_high": leans.ci_high,
        "shrunk": shrunk,
        "post_sd": post_sd,
        "post_low": post_low,
        "post_high": post_high,
        "odds_ratio": odds_ratio,
        "q_value": np.stack([benjamini_hochberg(*own[:, :, j]) for j in range(q)], axis=1),
        "prob_exceeds": prob_exceeds,
        "flag": np.apply_along_axis(bayesian_fdr, 0, of_flags, options.fdr),
        "status": leans.status,
        "care": care.mean,
        "care_low": care.quantile(0.025),
        "care_high": care.quantile(0.975),
        "flag_care": bayesian_fdr(of_care, options.fdr),
        "agreement": agreement.agreement,
        "agreement_low": agreement.low,
        "agreement_high": agreement.high,
    }
    # one value for each annotator stands in each of their rows
    cells = {name: np.repeat(of, q) if of.ndim == 1 else of.ravel() for name, of in columns.items()}
    return pd.DataFrame(cells).sort_values("annotator", kind="stable", ignore_index=True)


SHOWN_OF_MODELS = [
    *("model", "attribute", "n_judgments", "n_cross", "n_informative", "raw_rate", "deviation"),
    *("ci_low", "ci_high", "shrunk", "post_low", "post_high", "flag", "status"),
    *("care", "care_low", "care_high", "flag_care", "both_orders", "same_share"),
]


def both_orders(judgments: Judgments) -> pd.DataFrame:
    """Who judged a comparison with either side shown first: ``annotator``, and whether it was the ``same`` answer."""
    votes = judgments.votes[judgments.votes["shown_first"].notna()]
    votes = votes[votes.duplicated(["annotator", "comparison"], keep=False)]
    asked = votes.groupby(["annotator", "comparison"], sort=False)
    kinds = asked[["shown_first", "sign"]].nunique().reset_index("annotator")
    both = kinds[kinds["shown_first"] == 2]
    return pd.DataFrame({"annotator": both["annotator"], "same": both["sign"] == 1})


def models_of(table: pd.DataFrame, design: Design, both: pd.DataFrame) -> list[Json]:
    """The rows of the annotators' table that are about models, and how often the order changed nothing."""
    same = both.groupby("annotator")["same"].agg(both_orders="size", same_share="mean")
    same.index = design.annotators[same.index]
    rows = table[table["model"].notna() & (table["n_judgments"] > 0)].join(same, on="annotator")
    rows["both_orders"] = rows["both_orders"].fillna(0).astype(int)
    return rows.sort_values(["model", "attribute"], kind="stable")[SHOWN_OF_MODELS].to_dict("records")


# -- everything together -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class AuditedPeople:
    """What an audit knows of annotators: estimates, shrunken ones, rows by annotator, ``pool`` and ``checks``.

    ``class_doubts`` has for each attribute the reason why a difference between classes may be one in reliability.
    """

    leans: Leans
    spreads: list[Shrunk]
    table: pd.DataFrame
    pool: Json
    checks: Json
    class_doubts: Sequence[str]
    camps: Camps


def people_of(judgments: Judgments, design: Design, options: AuditOptions) -> AuditedPeople:
    """Estimate the annotators' leans, and test what the estimate rests on.

    Classes are compared by the conditional likelihood without anchors, whatever the annotators' own leans come from.
    """
    anchored = anchored_annotators(design, options)
    told = design.has_identities
    quality, why = choose_quality(design, options)
    sums = sums_of(judgments, design, options) if quality == "marginal" else None
    if sums is None:
        given: Json = {"anchored": anchored, "min_informative": options.min_informative}
        leans = fit_conditional(*design.votes, **given, clusters=design.prompt)
        care = care_of(design, leans, anchored)
        equal_p = equal_leans_test(*design.votes[:4], leans, design.prompt)
    else:
        leans, equal_p = sums.leans, sums.equal_p
        care = care_of(design, leans, anchored) if sums.care is None else sums.care
    beside = beside_care(leans, care, beyond_care(*design.votes[1:]))
    is_gold = anchored.any() and quality == "conditional"
    choices = gold_choices(design, anchored) if is_gold else [None] * len(design.attributes)
    gold = beside_gold(beside.leans, care, choices, is_gold & ~design.is_shown)
    lines = beside.lines | gold.lines
    spreads = shrunken(design, leans, lines, gold.shared)
    line_p = np.fmax(beside.equal_leans_p, gold.equal_leans_p)
    for j, line in lines.items():
        equal_p[j] += line.chance * (line_p[j] - equal_p[j])
    classes, leans = _classes(design, leans), gold.leans
    shown = without_wide(leans)
    each = None if sums is None else without_wide(sums.each)
    table = annotator_table(design, shown, spreads, care, options, each)
    camps = _camps(design, table) if told else Camps(np.nan, np.nan)
    if camps.are_found:
        table["flag_care"] = False
    about_care = (
        _care(design, care, bool(lines) and not care.unknown, table, camps, sums) if told else {}
    )
    is_open = any(about_care.get(name) for name in ("is_unknown", "is_hardly_known"))
    pool, graphs = {}, {}
    for j, name in enumerate(design.attributes):
        spread, of_class = spreads[j], classes[j]
        graphs[name], groups = _groups(design, leans, j)
        known = spread if has_known_spread(spread) else replace(spread, tau=np.nan)
        advice = recommend(known, equal_p[j], of_class.p_value)
        needs_care = not leans.absolute[j] or bool(anchored.any() and not design.is_shown[j])
        is_care = is_open and sums is None and needs_care and advice.variant != "pooled"
        reason = advice.reason + WITHIN * bool(groups) + MAYBE_CARE * is_care
        pool[name] = {
            "components": graphs[name]["n"],
            **_counts(design, shown, j),
            "n_flagged": table["flag"][table["attribute"] == name].sum(),
            "is_beside_care": j in lines and not care.unknown,
            "unit": design.unit[j],
            "most_units": design.most_units[j],
            **spread_row(spread),
            "reliability": np.nan if np.isnan(known.tau) else known.reliability,
            "refused": _refused(spread, sums, bool(leans.absolute[j])),
            "caveat": _caveat(sums, bool(leans.absolute[j])),
            "equal_leans_p": equal_p[j],
            "is_divided": len(groups) > 0,
            "groups": groups,
            "classes": of_class.rows,
            "class_test_p": of_class.p_value,
            "recommendation": advice.variant,
            "recommendation_reason": reason + MAYBE_CLASS_CARE * bool(of_class.doubt),
            **_level(design, leans, j, int(anchored.sum()), sums, needs_care and bool(care.unknown)),
            "sum": sums and _sum(sums, j),
        }
    checks = {
        "assignment": asdict(sums.assignment) if told and sums is not None else None,
        "estimator": {"quality": quality, "why": why},
        "components": {"informative": graphs},
        "anchors": _anchors(design, anchored, options) if anchored.any() else None,
        "care": about_care or None,
    }
    if sums is not None:
        # nobody else judged the same comparisons: there are no majorities
        spreads = [replace(one, tau=np.nan) for one in spreads]
    doubts = [of_class.doubt for of_class in classes]
    return AuditedPeople(leans, spreads, table, pool, checks, doubts, camps)


def sums_of(judgments: Judgments, design: Design, options: AuditOptions) -> Sums:
    """The sums of bias and merit, by votes on the comparisons themselves."""
    votes = design.comparison, *design.votes[1:]
    return find_sums(judgments, votes, design.is_shown, design.prompt, options.min_informative)


def _sum(sums: Sums, j: int) -> Json:
    """The pooled sum of bias and merit of one attribute with its interval, which holds nothing if it is too wide."""
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


def has_known_spread(found: Shrunk) -> bool:
    """Whether the likelihood of tau falls by 1.92 on either side within a range that people can have."""
    return bool(found.tau_high <= WIDEST_SPREAD)


def spread_row(found: Shrunk) -> Json:
    """The spread with its interval, which holds nothing where the spread is not known."""
    is_known = has_known_spread(found)
    return {
        "tau": found.tau if is_known else np.nan,
        "tau_ci": [found.tau_low, found.tau_high] if is_known else [None] * 2,
    }


def _caveat(sums: Sums | None, is_absolute: bool) -> str:
    """What holds of differences between annotators whose comparisons nobody else judged; else nothing."""
    if sums is None or is_absolute or sums.assignment.reason:
        return ""
    return LESS_OF_EITHER.format(ATTENUATION, sums.assignment.p_value, sums.assignment.smallest)


def without_wide(leans: Leans) -> Leans:
    """The leans without estimates whose intervals are so wide that they say nothing; "insufficient" is their status."""
    is_wide = leans.ci_high - leans.deviation > WIDEST_HALF
    return replace(
        leans,
        deviation=np.where(is_wide, np.nan, leans.deviation),
        se=np.where(is_wide, np.nan, leans.se),
        status=np.where(is_wide & (leans.status == "ok"), "insufficient", leans.status),
    )


def _refused(spread: Shrunk, sums: Sums | None, is_absolute: bool) -> dict[str, str]:
    """Figures of an attribute that are refused, each with the reason."""
    refused = {}
    if not has_known_spread(spread):
        refused["tau"] = NO_TAU.format(WIDEST_SPREAD)
    if sums is not None and not is_absolute and sums.assignment.reason:
        refused |= dict.fromkeys(("tau", "deviation", "shrunk", "flag"), sums.assignment.reason)
    if sums is not None:
        refused["flips"] = NO_MAJORITIES
    if sums is not None and sums.care is None:
        refused["care"] = UNRELIABLE
    return refused


def _camps(design: Design, table: pd.DataFrame) -> Camps:
    """Whether annotators share one taste; annotators whose reliability seems low may have another."""
    is_flagged = table.drop_duplicates("annotator").set_index("annotator")["flag_care"]
    delta = design.delta[design.is_first]
    return find_camps(*design.first_votes, delta, is_flagged.reindex(design.annotators))


def _care(
    design: Design, care: Care, is_used: bool, table: pd.DataFrame, camps: Camps, sums: Sums | None
) -> Json:
    """Whether annotators are equally careful, how far they differ, and whether leans are told from care."""
    has_voted, p_value = design.n_votes > 0, equal_care_test(*design.care_votes)
    is_hardly_known = care.n_votes[has_voted].mean() < FEW_EQUAL
    is_hardly_known |= p_value < LEVEL and care.sd[has_voted].mean() > UNSURE
    known = care.unknown or ("hardly" if is_hardly_known else "")
    is_by_models = sums is not None and sums.care is not None
    why = ABOUT_CARE[known] if care.unknown or is_used else NOT_NEEDED
    if sums is not None:
        why = BY_MODELS if is_by_models else UNRELIABLE
    return {
        "p_value": p_value,
        "spread": care.spread,
        "n_told": 0 if care.unknown else (care.n_votes >= FEWEST).sum(),
        "n_flagged": table.loc[table["flag_care"], "annotator"].nunique(),
        "is_used": is_used,
        "is_unknown": bool(care.unknown),
        "is_hardly_known": is_used and known == "hardly",
        "why": why,
        "has_camps": camps.are_found,
        "is_by_models": is_by_models,
    }


class _ClassFindings(NamedTuple):
    """Rows of the classes' offsets, the p-value of no difference, and why a difference may be one in reliability."""

    rows: list[Json]
    p_value: float | None
    doubt: str


def _classes(design: Design, leans: Leans) -> list[_ClassFindings]:
    """Compare the classes on each attribute; no rows with fewer than two classes."""
    if len(design.labels) < 2:
        return [_ClassFindings([], None, "")] * len(design.attributes)
    shift = _logits_of_judgments(design, leans)
    if leans.quality != "conditional" or (leans.status == "anchored").any():
        leans = fit_conditional(*design.votes, clusters=design.prompt)
    codes = pd.Categorical(design.classes, design.labels).codes
    stratum, sign, annotator, delta, _ = design.care_votes
    merit = class_merit(stratum, sign, codes[annotator], delta, len(design.labels), shift)
    found, if_equal = class_offsets(leans, codes, merit), class_offsets(leans, codes)
    is_wide = found.ci_high - found.offset > WIDEST_HALF
    cells = [np.where(is_wide, np.nan, each) for each in (found.offset, found.ci_low, found.ci_high)]
    doubt = ABOUT_CARE[merit.unknown] if merit.unknown else EXPLAINED
    is_doubted = (if_equal.p_value < LEVEL) & ~leans.absolute
    is_doubted &= (found.p_value >= LEVEL) | bool(merit.unknown)
    told = (leans.n_informative > 0) & design.is_person[:, None]
    people = [told[design.classes == label].sum(axis=0) for label in design.labels]
    figures = np.array([people, found.n, *cells], dtype=object)
    names = "n_people", "n", "offset", "ci_low", "ci_high"
    return [
        _ClassFindings(
            [
                {"class": label, **dict(zip(names, of, strict=True))}
                for label, of in zip(design.labels, figures[:, :, j].T, strict=True)
            ],
            p_value,
            doubt * bool(is_doubted[j]),
        )
        for j, p_value in enumerate(found.p_value)
    ]


def _groups(design: Design, leans: Leans, j: int) -> tuple[Json, list[Json]]:
    """Sizes of the groups that votes do not compare, and how far annotators differ within several large ones."""
    component = pd.Series(leans.component[:, j])
    sizes = component[component >= 0].value_counts()
    outside = (component[design.n_votes > 0] < 0).sum()
    graph = {"n": len(sizes), "sizes": sizes.to_numpy()[:SIZES_SHOWN], "outside": outside}
    large, rows = sizes.index[sizes >= FEWEST_ANNOTATORS], []
    own = _own(leans)[:, :, j]
    for group in large[:SIZES_SHOWN] if len(large) > 1 else ():
        mine = leans.component[:, j] == group
        n_people = (mine & design.is_person).sum()
        tau = spread_row(shrink_normal(*own[:, mine]))
        rows.append({"n": mine.sum(), "n_people": n_people, **tau})
    return graph, rows


def _counts(design: Design, leans: Leans, j: int) -> Json:
    """How many annotators have which status, and how many of those with a lean are people."""
    status = pd.Series(leans.status[:, j], dtype=object)
    of_people = status[design.is_person]
    n, n_cross = status[design.n_votes > 0].value_counts(), design.cross[:, j].sum()
    n = n.reindex([*TOLD, "no_cross", "no_information"], fill_value=0)
    return {
        "informative_share": design.informative[:, j].sum() / n_cross if n_cross else None,
        "n_estimated": n["ok"],
        "n_insufficient": n["insufficient"],
        "n_no_information": n["no_cross"] + n["no_information"],
        "n_separated": n["separated_high"] + n["separated_low"],
        "n_people_told": of_people.isin(TOLD).sum(),
    }


def _level(
    design: Design,
    leans: Leans,
    j: int,
    n_anchors: int,
    sums: Sums | None,
    is_reliability_unknown: bool,
) -> Json:
    """The mean lean of those who have one, for these annotators on other comparisons, and for others like them."""
    is_known, level = bool(leans.absolute[j]), leans.level[j]
    behind = (leans.se[:, j] > 0) & is_known
    n, within, beyond = behind.sum(), leans.level_se[j], leans.level_se_beyond[j]
    reaches = ndtri(0.975) * within, stdtrit(n - 1, 0.975) * beyond
    ends = [[level - one, level + one] if one <= WIDEST_HALF else None for one in reaches]
    if sums is not None:
        why = RANDOM_ORDER if is_known else NOT_SPLIT.format(int(sums.needed[j]), HALF_WIDTH)
    elif is_known and (leans.status[:, j] == "anchored").any():
        why = ANCHORED.format(n=counted(n_anchors, "annotator"))
        why += AS_RELIABLE * is_reliability_unknown
    elif is_known:
        why = VARIES
    elif (leans.component[:, j] >= 0).any():
        why = OUT_OF_REACH if n_anchors else NOT_IDENTIFIED
    else:
        why = NO_INFORMATION
    if is_known and ends[0] is None:
        level, why = np.nan, TOO_WIDE
    return {
        "level": level,
        "level_ci": ends[0],
        "level_ci_beyond": ends[1],
        "n_level": n,
        "n_people_level": (behind & design.is_person).sum(),
        "absolute": is_known,
        "absolute_why": why,
    }


def _anchors(design: Design, anchored: Bools, options: AuditOptions) -> Json:
    """How many cross-group judgments anchors cast, and whether anchors differ: who leans nowhere leans alike."""
    cast = anchored[design.annotator]
    stratum, sign, annotator, delta = (each[cast] for each in design.votes[:4])
    leans = fit_conditional(stratum, sign, annotator, delta, len(anchored))
    prompt = None if design.prompt is None else design.prompt[cast]
    equal_p = equal_leans_test(stratum, sign, annotator, delta, leans, prompt)
    counts = {"n_cross": design.cross[cast].sum(axis=0), "equal_leans_p": equal_p}
    return {
        "n": anchored.sum(),
        "n_people": (anchored & design.is_person).sum(),
        "class": options.anchor_class,
        "annotators": sorted(design.annotators[anchored]),
        **{key: dict(zip(design.attributes, of, strict=True)) for key, of in counts.items()},
    }
