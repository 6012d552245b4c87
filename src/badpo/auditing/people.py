"""What an audit finds out about annotators: which way each leans, how sure that is, and what cannot be known."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri, stdtrit

from badpo.data.cells import side_pairs
from badpo.data.files import Json
from badpo.data.judgments import Judgments
from badpo.data.privacy import FEWEST_ANNOTATORS, model_names, pseudonyms
from badpo.data.problems import ConfigError, counted, did_you_mean, refuse_other_types
from badpo.estimation.care import FEWEST, Care, Line, beside_care, equal_care_test, fit_care
from badpo.estimation.fit import Leans, fit_conditional, weakly_joined_teams
from badpo.estimation.pool import summed
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
    annotator_agreement,
    assignment_test,
    class_offsets,
    equal_leans_test,
    recommend,
)
from badpo.theory import Bools, Floats, Ints
from badpo.theory.identifiability import informative_judgments

# exp(5) is odds of 148 to 1: no distance between people
WIDEST_SPREAD = 5.0
FEWEST_CROSS = 200
# A few vast differences of a continuous attribute, which may be errors, would decide alone. Where 3 % of them are forty
# times too large own intervals hold the truth in 74 %, cut at five units in 92 %, at three in 95 %. Posterior intervals
# hold it in 89 % even then, as such comparisons tell nothing of a lean; without those beyond ten units in 94 %.
MOST_UNITS, OUTLYING = 3.0, 10.0
SURELY_NOT_RANDOM = 0.05
SIZES_SHOWN = 5
# With so many comparisons for each prompt, errors are clustered by prompt.
OFTEN_REPEATED = 1.25
# The statuses of who has a lean, finite or not.
TOLD = ("ok", "insufficient", "separated_high", "separated_low")

CONDITIONAL = (
    "conditional likelihood: given how many votes each side of a comparison got, its "
    "unknown quality drops out, and nothing is assumed about who judged what"
)
RANDOM = (
    "the comparisons' qualities are taken as draws from one normal distribution, whoever judged them"
)
QUALITIES = {
    "conditional": CONDITIONAL,
    "random": RANDOM,
    "fixed": "the comparisons' qualities are taken from {column}, times a factor that is fitted",
}
NOT_IDENTIFIED = (
    "not known: if everyone leaned more toward it, and the responses without it were "
    "better by as much, the votes would be the same; naming annotators who are known "
    "to lean nowhere (anchors) would tell"
)
OUT_OF_REACH = (
    "not known: the votes do not compare everyone with the annotators declared to lean nowhere (anchors)"
)
ANCHORED = "known from {n} declared to lean nowhere (anchors), and only as far as that is true"
VARIES = "known because votes on one comparison differ in this attribute, so that no quality can stand in for it"
NO_INFORMATION = "not known: no vote tells annotators apart"
# Who follows quality less than half as closely as the others is careless.
CARELESS = 0.5
# Below so many votes on equal sides, on average, who clicks at random is hardly found. Where 6 of 30 do and nobody
# leans, 25 pools had 25 flags at 10 such votes, all wrong, 11 at 20, and none at 40.
FEW_EQUAL = 25
# By what is known of care.
ABOUT_CARE = {
    "": "deviations count from a line in care, which comparisons whose sides do not differ tell",
    "hardly": "care is hardly known: annotators have few votes each where sides do not differ in any attribute",
    "few": "care is not known: too few votes are on comparisons whose sides do not differ in any attribute",
    "careless": "care is not known: where sides do not differ in any attribute, no agreement beyond chance shows",
    "unanimous": "care is not known: where sides do not differ in any attribute, annotators hardly ever disagree",
}
LEVELS_KNOWN = "care is not needed: the levels of all leans are known"
MAYBE_CARE = " They may differ in care instead, of which too little is known (W410)."
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
        kind, colon, column = ("conditional" if self.quality is None else self.quality).partition(":")
        if kind not in QUALITIES:
            known = tuple(QUALITIES)
            raise ConfigError(
                f"quality must be one of {', '.join(known)}; got {self.quality!r}."
                f"{did_you_mean(kind, known)}"
            )
        is_fixed = kind == "fixed"
        if is_fixed != bool(column) or (colon and not is_fixed):
            raise ConfigError(
                f'quality="{self.quality}": name the column that holds the quality, as in '
                "fixed:score, and none for the other kinds"
            )
        if not 0 <= self.rho < math.inf:
            raise ConfigError(f"rho is a size in log-odds, 0 or more, such as 0.5; got {self.rho!r}")
        if not 0 < self.fdr < 1:
            raise ConfigError(f"fdr is a share above 0 and below 1, such as 0.1; got {self.fdr!r}")
        if self.anchors and self.anchor_class is not None:
            raise ConfigError("name anchors one by one or by their class, not both")
        if not self.min_informative >= 1:
            raise ConfigError(f"min_informative must be 1 or more; got {self.min_informative}")

    @property
    def quality_column(self) -> str:
        """The column of ``fixed:COLUMN``; empty for the other kinds."""
        return (self.quality or "").partition(":")[2]


# -- the votes as arrays -----------------------------------------------------------------------------------------


class Design:
    """Who judged what, with which difference on each attribute, and how they voted.

    Of each vote: ``comparison``; ``stratum``, what is conditioned on in its place (`Judgments.comparable_votes`),
    apart for teams that hardly meet (`weakly_joined_teams`), so that each has a mean of its own; ``annotator``;
    ``sign``, +1 for a; ``delta``, g(a) - g(b) of each attribute in ``unit``, of which differences count as at most
    ``most_units`` (``n_cut`` judgments had more), and as none where they are ``OUTLYING``; ``cross``, whether the sides
    differ by more than the attribute's threshold; ``informative``, whether the vote tells annotators apart when nothing
    is known of the comparison's quality; ``prompt``, None unless prompts have several comparisons. Of each attribute:
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
        is_repeated = judgments.n_comparisons >= OFTEN_REPEATED * n_prompts
        self.prompt = prompt if is_repeated else None
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
        self.care_votes = (*self.votes[:3], cut[:, ~self.is_shown], m)
        self.informative = informative_judgments(self.stratum, self.annotator, self.sign, self.delta)

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


def choose_quality(design: Design, options: AuditOptions, assignment_p: float | None) -> tuple[str, str]:
    """The estimator and the reason for it, as a sentence for people.

    What is asked for; otherwise the conditional one, unless it would leave more than half of those who saw the sides of
    an attribute differ without an informative vote, for every attribute: it spends the votes of comparisons that are
    unanimous or have one. Random qualities use all votes, but are only right where comparisons were not chosen, so
    not when the test of assignment says otherwise.
    """
    if options.quality is not None:
        kind = options.quality.partition(":")[0]
        return kind, f"asked for; {QUALITIES[kind].format(column=options.quality_column)}"
    if not design.informative.any() and len(np.unique(design.comparison)) < len(design.comparison):
        return "conditional", UNANIMOUS
    saw = design.per_annotator(design.cross) > 0
    informed, n_saw = saw & (design.per_annotator(design.informative) > 0), saw.sum(axis=0)
    without = 1 - informed.sum(axis=0) / np.maximum(n_saw, 1)
    if not (without > 0.5).all() or (n_saw < 2).any():
        return "conditional", CONDITIONAL
    lacking = "Most annotators who saw the sides differ have no informative vote"
    if design.cross.sum(axis=0).min() < FEWEST_CROSS:
        return (
            "conditional",
            f"{CONDITIONAL}. {lacking}, and there are too few votes to assume more",
        )
    if assignment_p is not None and assignment_p < SURELY_NOT_RANDOM:
        return "conditional", (
            f"{CONDITIONAL}. {lacking}; taking the qualities as random would use more "
            "votes, but comparisons were not given to annotators at random, and it "
            "would then be wrong"
        )
    return "random", (
        f"{lacking} for the conditional likelihood, so {RANDOM}; this is right only "
        "when comparisons were given to annotators at random"
    )


def fit(
    quality: str, design: Design, judgments: Judgments, anchored: NDArray, options: AuditOptions
) -> Leans:
    """The annotators' leans by the estimator that was chosen."""
    from badpo.estimation.alternative_estimators import fit_fixed, fit_random

    given: Json = {"anchored": anchored, "min_informative": options.min_informative}
    if quality == "random":
        return fit_random(*design.votes, **given)
    if quality == "fixed":
        first = np.unique(design.stratum, return_index=True)[1]
        margins = quality_of(judgments, options.quality_column)
        return fit_fixed(*design.votes, margins[design.comparison[first]], **given)
    return fit_conditional(*design.votes, **given, clusters=design.prompt)


def quality_of(judgments: Judgments, column: str) -> Floats:
    """Quality of a minus that of b for each comparison, from two columns: ``score_a`` and ``score_b`` of ``score``."""
    numbers = judgments.comparisons.select_dtypes("number")
    shared = {os.path.commonprefix(pair).rstrip("_"): pair for pair in side_pairs(numbers).items()}
    if column not in shared:
        raise ConfigError(
            f"quality=fixed:{column}: there are no two number columns {column}_a and "
            f"{column}_b (_chosen, _rejected) with one value for each "
            f"comparison.{did_you_mean(column, list(shared))} Found: "
            f"{', '.join(shared) or 'none'}"
        )
    a, b = (numbers[name].to_numpy(dtype=float) for name in shared[column])
    if missing := np.count_nonzero(~np.isfinite(a - b)):
        raise ConfigError(
            f"quality=fixed:{column}: {missing:,} of {judgments.n_comparisons:,} "
            "comparisons have no number; fill them in or leave these comparisons out"
        )
    return a - b


def care_of(design: Design, leans: Leans) -> Care:
    """How closely each annotator follows quality; leans toward attributes of the judgment are no part of it."""
    own, shift = _own(leans), np.zeros(len(design.sign))
    for j in np.flatnonzero(design.is_shown & leans.absolute):
        believed = shrink_normal(*own[:, :, j]).posterior.mean
        shift += np.nan_to_num(believed)[design.annotator] * design.delta[:, j]
    return fit_care(*design.care_votes, shift)


def shrunken(design: Design, leans: Leans, lines: Mapping[int, Line]) -> list[Shrunk]:
    """What is believed of each attribute's deviations, from a line in care as far as the attribute has one.

    With the conditional likelihood the leans are integrated out of the votes, which holds with few votes each too, else
    the estimates are taken as normal. Where hardly anybody has more than a vote or two on contested comparisons the
    likelihood of the spread rises without end: tau is then NaN, and nothing can be shrunk to it.
    """
    is_normal = leans.absolute | design.is_shown | (leans.status == "anchored").any()
    is_normal |= leans.quality != "conditional"
    integrated = [] if is_normal.all() else shrink_votes(*design.votes, design.prompt)
    own, found = _own(leans), []
    for j, normal in enumerate(is_normal):
        spread = shrink_normal(*own[:, :, j]) if normal else integrated[j]
        if j in lines and np.isfinite(spread.tau):
            left, variance = lines[j].averaged(*own[:, :, j])
            spread = averaged(spread, shrink_normal(left, np.sqrt(variance)), lines[j].chance)
        if spread.tau > WIDEST_SPREAD or spread.tau_high == np.inf:
            spread = replace(spread, tau=np.nan, tau_low=0.0, tau_high=np.inf, reliability=np.nan)
        found.append(spread)
    return found


def _own(leans: Leans, *values: Floats) -> Floats:
    """Estimates and their errors, finite unless others are given; NaN for those who are anchored, or not compared."""
    is_given = (leans.status == "anchored") | (leans.se == 0)
    return np.where(is_given, np.nan, values or (leans.finite_deviation, leans.finite_se))


def annotator_table(
    design: Design, leans: Leans, spreads: Sequence[Shrunk], care: Care, options: AuditOptions
) -> pd.DataFrame:
    """The rows of ``annotators.parquet``: for each annotator the attributes, in the order of their declaration.

    Shrunken estimates are NaN for who has no informative vote; only who has enough of them can be flagged.
    ``odds_ratio`` is of the shrunken deviation, or of the deviation itself where nothing was shrunk.
    """
    m, q = leans.deviation.shape
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
    shrunk, post_sd, post_low, post_high, prob_exceeds = np.where(
        is_shrunk, np.swapaxes(believed, 1, 2), np.nan
    )
    own = _own(leans, leans.deviation, leans.se)
    is_told = leans.n_informative >= options.min_informative
    of_flags = np.where(is_told, prob_exceeds, np.nan)
    of_care = np.where(care.n_votes > 0, care.cdf(CARELESS), np.nan)
    with np.errstate(over="ignore"):
        odds_ratio = np.exp(np.where(np.isnan(shrunk), leans.deviation, shrunk))
    agreement = annotator_agreement(design.comparison, design.sign, design.annotator, m)
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
    """What an audit knows of annotators: estimates, shrunken ones, rows by annotator, ``pool`` and ``checks``."""

    leans: Leans
    spreads: list[Shrunk]
    table: pd.DataFrame
    pool: Json
    checks: Json


def people_of(judgments: Judgments, design: Design, options: AuditOptions) -> AuditedPeople:
    """Estimate the annotators' leans, and test what the estimate rests on.

    Classes are compared by the conditional likelihood without anchors, whatever the annotators' own leans come from.
    """
    anchored = anchored_annotators(design, options)
    told = design.has_identities
    assignment_p = assignment_test(*design.votes[:4]).p_value if told else None
    quality, why = choose_quality(design, options, assignment_p)
    leans = fit(quality, design, judgments, anchored, options)
    care = care_of(design, leans)
    equal_p = equal_leans_test(*design.votes[:4], leans, design.prompt)
    beside = beside_care(leans, care)
    spreads = shrunken(design, leans, beside.lines)
    for j, line in beside.lines.items():
        equal_p[j] += line.chance * (beside.equal_leans_p[j] - equal_p[j])
    leans = beside.leans
    table = annotator_table(design, leans, spreads, care, options)
    about_care = _care(design, care, bool(beside.lines), table) if told else {}
    is_open = any(about_care.get(name) for name in ("is_unknown", "is_hardly_known"))
    classes, pool, graph = _classes(design, leans), {}, {}
    for j, name in enumerate(design.attributes):
        group, spread = pd.Series(leans.component[:, j]), spreads[j]
        sizes = group[group >= 0].value_counts()
        outside = (group[design.n_votes > 0] < 0).sum()
        graph[name] = {
            "n": len(sizes),
            "sizes": sizes.to_numpy()[:SIZES_SHOWN],
            "outside": outside,
        }
        groups, (offsets, class_p) = _groups(design, leans, j, sizes), classes[j]
        advice = recommend(spread, equal_p[j], class_p)
        is_care = is_open and not leans.absolute[j] and advice.variant != "pooled"
        pool[name] = {
            "components": len(sizes),
            **_counts(design, leans, j),
            "n_flagged": table["flag"][table["attribute"] == name].sum(),
            "is_beside_care": j in beside.lines,
            "unit": design.unit[j],
            "most_units": design.most_units[j],
            **_tau(spread),
            "reliability": spread.reliability,
            "equal_leans_p": equal_p[j],
            "is_divided": len(groups) > 0,
            "groups": groups,
            "classes": offsets,
            "class_test_p": class_p,
            "recommendation": advice.variant,
            "recommendation_reason": advice.reason + WITHIN * bool(groups) + MAYBE_CARE * is_care,
            **_level(design, leans, j, int(anchored.sum())),
        }
    checks = {
        "assignment": {"p_value": assignment_p} if told else None,
        "estimator": {"quality": quality, "why": why},
        "components": {"informative": graph},
        "anchors": _anchors(design, anchored, options) if anchored.any() else None,
        "care": about_care or None,
    }
    return AuditedPeople(leans, spreads, table, pool, checks)


def _tau(found: Shrunk) -> Json:
    """The spread with its interval, which holds nothing where the spread is not known."""
    is_known = not np.isnan(found.tau)
    return {
        "tau": found.tau,
        "tau_ci": [found.tau_low, found.tau_high] if is_known else [None] * 2,
    }


def _care(design: Design, care: Care, is_used: bool, table: pd.DataFrame) -> Json:
    """Whether annotators are equally careful, how far they differ, and whether leans are told from care."""
    is_sparse = bool(care.n_votes[design.n_votes > 0].mean() < FEW_EQUAL)
    known = care.unknown or ("hardly" if is_sparse else "")
    return {
        "p_value": equal_care_test(*design.care_votes),
        "spread": care.spread,
        "n_told": 0 if care.unknown else (care.n_votes >= FEWEST).sum(),
        "n_flagged": table.loc[table["flag_care"], "annotator"].nunique(),
        "is_used": is_used,
        "is_unknown": bool(care.unknown),
        "is_hardly_known": is_used and known == "hardly",
        "why": ABOUT_CARE[known] if care.unknown or is_used else LEVELS_KNOWN,
    }


def _classes(design: Design, leans: Leans) -> list[tuple[list[Json], float | None]]:
    """Of each attribute the classes' offsets and the p-value of no difference; nothing with fewer than two classes."""
    if len(design.labels) < 2:
        return [([], None)] * len(design.attributes)
    if leans.quality != "conditional" or (leans.status == "anchored").any():
        leans = fit_conditional(*design.votes, clusters=design.prompt)
    found = class_offsets(leans, pd.Categorical(design.classes, design.labels).codes)
    told = (leans.n_informative > 0) & design.is_person[:, None]
    people = [told[design.classes == label].sum(axis=0) for label in design.labels]
    figures = np.array([people, found.n, found.offset, found.ci_low, found.ci_high], dtype=object)
    names = "n_people", "n", "offset", "ci_low", "ci_high"
    return [
        (
            [
                {"class": label, **dict(zip(names, of, strict=True))}
                for label, of in zip(design.labels, figures[:, :, j].T, strict=True)
            ],
            p_value,
        )
        for j, p_value in enumerate(found.p_value)
    ]


def _groups(design: Design, leans: Leans, j: int, sizes: pd.Series) -> list[Json]:
    """How far annotators differ within the largest groups that the votes do not compare; nothing where one is large."""
    large, rows = sizes.index[sizes >= FEWEST_ANNOTATORS], []
    own = _own(leans)[:, :, j]
    for group in large[:SIZES_SHOWN] if len(large) > 1 else ():
        mine = leans.component[:, j] == group
        n_people = (mine & design.is_person).sum()
        tau = _tau(shrink_normal(*own[:, mine]))
        rows.append({"n": mine.sum(), "n_people": n_people, **tau})
    return rows


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


def _level(design: Design, leans: Leans, j: int, n_anchors: int) -> Json:
    """The mean lean of those who have one, for these annotators on other comparisons, and for others like them."""
    is_known, level = bool(leans.absolute[j]), leans.level[j]
    behind = (leans.se[:, j] > 0) & is_known
    n, within, beyond = behind.sum(), leans.level_se[j], leans.level_se_beyond[j]
    reaches = ndtri(0.975) * within, stdtrit(n - 1, 0.975) * beyond
    ends = [[level - one, level + one] if np.isfinite(one) else None for one in reaches]
    if is_known and (leans.status[:, j] == "anchored").any():
        why = ANCHORED.format(n=counted(n_anchors, "annotator"))
    elif is_known:
        why = VARIES
    elif (leans.component[:, j] >= 0).any():
        why = OUT_OF_REACH if n_anchors else NOT_IDENTIFIED
    else:
        why = NO_INFORMATION
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
