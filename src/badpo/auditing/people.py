"""What an audit finds out about annotators: which way each leans, how sure that is, and what cannot be known."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri, stdtrit

from badpo.data.files import Json
from badpo.data.judgments import Judgments
from badpo.data.privacy import FEWEST_ANNOTATORS, pseudonyms
from badpo.data.problems import ConfigError, counted, did_you_mean
from badpo.data.tables import side_pairs
from badpo.estimation.care import FEWEST, Care, Line, beside_care, equal_care_test, fit_care
from badpo.estimation.fit import Leans, fit_conditional, weakly_joined_teams
from badpo.estimation.shrinkage import (
    Mixture,
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
    "conditional likelihood: given how many votes each side of a comparison got, its unknown quality drops out, and "
    "nothing is assumed about who judged what"
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
    "not known: if everyone leaned more toward it, and the responses without it were better by as much, the votes "
    "would be the same; naming annotators who are known to lean nowhere (anchors) would tell"
)
OUT_OF_REACH = (
    "not known: the votes do not compare everyone with the annotators declared to lean nowhere (anchors)"
)
ANCHORED = "known because {n} are declared to lean nowhere (anchors); it stands and falls with that"
VARIES = "known because votes on one comparison differ in this attribute, so that no quality can stand in for it"
NO_INFORMATION = "not known: no vote tells annotators apart"
# Who follows quality less than half as closely as the others is careless.
CARELESS = 0.5
# By what is known of care.
ABOUT_CARE = {
    "": "deviations count from a line in care, which comparisons whose sides do not differ tell",
    "few": "care is not known: too few votes are on comparisons whose sides do not differ in any attribute",
    "careless": "care is not known: where sides do not differ in any attribute, annotators agree as if by chance",
    "unanimous": "care is not known: where sides do not differ in any attribute, annotators hardly ever disagree",
}
LEVELS_KNOWN = "care is not needed: the levels of all leans are known"
WITHIN = " That is within groups; whether they differ from one another the votes do not say."
UNANIMOUS = f"{CONDITIONAL}. All who judged the same comparison agree, which tells nobody from anybody"


# -- what is asked for -------------------------------------------------------------------------------------------


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
        kind, colon, column = (self.quality or "conditional").partition(":")
        if kind not in QUALITIES:
            raise ConfigError(
                f"quality must be one of {', '.join(QUALITIES)}; got {self.quality!r}."
                f"{did_you_mean(kind, tuple(QUALITIES))}"
            )
        if (kind == "fixed") != bool(column) or (colon and kind != "fixed"):
            raise ConfigError(
                f'quality="{self.quality}": name the column that holds the quality, as in fixed:score, and none for '
                "the other kinds"
            )
        if not (self.rho >= 0 and math.isfinite(self.rho)):
            raise ConfigError(f"rho is a size in log-odds, 0 or more, such as 0.5; got {self.rho!r}")
        if not 0 < self.fdr < 1:
            raise ConfigError(f"fdr is a share above 0 and below 1, such as 0.1; got {self.fdr!r}")
        if isinstance(self.anchors, str):
            raise ConfigError("anchors is a list of annotators; write [id] for a single one")
        if self.anchors and self.anchor_class is not None:
            raise ConfigError("name anchors one by one or by their class, not both")
        if self.min_informative < 1:
            raise ConfigError(f"min_informative must be 1 or more; got {self.min_informative}")

    @property
    def quality_column(self) -> str | None:
        """The column of ``fixed:COLUMN``; None for the other kinds."""
        return (self.quality or "").partition(":")[2] or None


# -- the votes as arrays -----------------------------------------------------------------------------------------


class Design:
    """Who judged what, with which difference on each attribute, and how they voted.

    Of each vote: ``comparison``; ``stratum``, what is conditioned on in its place (`Judgments.comparable_votes`),
    apart for teams that hardly meet (`weakly_joined_teams`), so that each has a mean of its own; ``annotator``;
    ``sign``, +1 for a; ``delta``, g(a) - g(b) of each attribute in ``unit``, of which an attribute's differences
    have at most ``MOST_UNITS`` (``n_cut`` judgments had more), and none where they are ``OUTLYING``; ``cross``,
    whether the sides differ by more than the attribute's threshold; ``informative``, whether the vote tells
    annotators apart when nothing is known of the comparison's quality; ``prompt``, None unless prompts have several
    comparisons. Of each attribute: ``is_shown``, whether it is one of the judgment, such as which side was shown
    first. Of each annotator: ``annotators``, the pseudonym; ``classes``; ``models``, the names of those that are
    models; ``n_votes``. Where nobody knows who voted, all votes stand under one annotator.
    """

    def __init__(self, judgments: Judgments):
        votes = judgments.votes
        self.comparison, self.annotator, self.sign = (
            votes[name].to_numpy(dtype=np.int64) for name in ("comparison", "annotator", "sign")
        )
        self.cross = judgments.cross_group()
        self.is_shown = np.array([one.scope == "judgment" for one in judgments.attributes], dtype=bool)
        self.unit = standard_units(judgments)
        delta = judgments.delta / self.unit
        most = np.where([attribute.continuous for attribute in judgments.attributes], MOST_UNITS, np.inf)
        self.n_cut = (np.abs(delta) > most).sum(axis=0)
        is_vast = np.abs(delta) > most * OUTLYING / MOST_UNITS
        self.delta = np.where(is_vast, 0.0, np.clip(delta, -most, most))
        self.stratum, prompt = judgments.comparable_votes(), judgments.prompt_of_votes()
        is_repeated = judgments.n_comparisons >= OFTEN_REPEATED * (prompt.max(initial=-1) + 1)
        self.prompt = prompt if is_repeated else None
        self.stratum = self._within_teams(len(judgments.annotators))
        self.informative = informative_judgments(self.stratum, self.annotator, self.sign, self.delta)
        self.annotators = judgments.annotators["pseudonym"].to_numpy()
        self.classes = judgments.annotators["annotator_class"].to_numpy()
        self.models = judgments.annotators["model"].to_numpy()
        self.labels = sorted({label for label in self.classes if label is not None})
        self.n_votes = np.bincount(self.annotator, minlength=len(self.annotators))
        self.attributes = judgments.attribute_names
        self.has_identities = judgments.has_identities
        # what every estimator takes first
        self.votes = (self.stratum, self.sign, self.annotator, self.delta, len(self.annotators))

    def _within_teams(self, n_annotators: int) -> Ints:
        """Number of the comparison and, where its sides differ, the team of the vote's annotator."""
        votes = self.stratum, self.sign, self.annotator, self.delta
        teams = weakly_joined_teams(*votes, n_annotators)
        if not teams.any():
            return self.stratum
        labels = np.column_stack([self.stratum, teams[self.annotator] * (self.delta != 0)])
        return np.unique(labels, axis=0, return_inverse=True)[1].reshape(-1)

    def per_annotator(self, chosen: Bools) -> NDArray[np.int64]:
        """How many of the chosen votes each annotator cast, of shape (n_annotators, n_attributes)."""
        counts = np.zeros((len(self.annotators), chosen.shape[1]), dtype=np.int64)
        np.add.at(counts, self.annotator, chosen)
        return counts

    def raw_rate(self) -> Floats:
        """How often each annotator chose the side with more of an attribute, among their cross-group judgments.

        Shape (n_annotators, n_attributes); NaN without such a judgment.
        """
        chose_more = self.per_annotator(self.cross & (self.sign[:, None] * self.delta > 0))
        n_cross = self.per_annotator(self.cross)
        return np.divide(chose_more, n_cross, out=np.full(n_cross.shape, np.nan), where=n_cross > 0)


def standard_units(judgments: Judgments) -> Floats:
    """The difference that leans, tau and rho count per, of shape (n_attributes,).

    1, the attribute present against absent; of a continuous attribute the median difference of the judgments whose
    sides differ, so that its scale moves nothing.
    """
    cross, units = judgments.cross_group(), np.ones(judgments.n_attributes)
    for j, attribute in enumerate(judgments.attributes):
        if attribute.continuous and cross[:, j].any():
            units[j] = np.median(np.abs(judgments.delta[cross[:, j], j]))
    return units


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
    wanted = pseudonyms(list(dict.fromkeys(str(name) for name in named)))
    known = np.asarray(annotators, dtype=object)
    missing = [name for name in wanted if name not in set(known)]
    if missing:
        raise ConfigError(
            f"{key}: {', '.join(missing)} cast no vote in this table (ids are shown as pseudonyms); write the id "
            "as the table has it, or the pseudonym that the report shows"
        )
    return np.isin(known, wanted)


def with_models(judgments: Judgments, models: Sequence[str]) -> Judgments:
    """The judgments, with these annotators named beside those of the class "model"."""
    annotators = judgments.annotators.copy()
    named_annotators(annotators["pseudonym"], models, "models")
    for name in models:
        annotators.loc[annotators["pseudonym"] == pseudonyms([name])[0], "model"] = name
    return replace(judgments, annotators=annotators)


# -- estimates ---------------------------------------------------------------------------------------------------


def choose_quality(design: Design, options: AuditOptions, assignment_p: float | None) -> tuple[str, str]:
    """The estimator and the reason for it, as a sentence for people.

    What is asked for; otherwise the conditional one, unless it would leave most annotators without an answer.
    Conditioning on the votes of a comparison spends those of comparisons with a single vote and of unanimous ones.
    Where that leaves more than half of the annotators who saw the sides of an attribute differ without an
    informative vote, for every attribute, the comparisons' qualities are taken as random instead, which uses all
    votes. That is only right when annotators did not choose, and were not given, particular comparisons; so it is not
    done when the test of assignment says otherwise.
    """
    if options.quality is not None:
        kind = options.quality.partition(":")[0]
        return kind, f"asked for; {QUALITIES[kind].format(column=options.quality_column)}"
    if not design.informative.any() and len(np.unique(design.comparison)) < len(design.comparison):
        return "conditional", UNANIMOUS
    saw = design.per_annotator(design.cross) > 0
    informed = saw & (design.per_annotator(design.informative) > 0)
    without = 1 - informed.sum(axis=0) / np.maximum(saw.sum(axis=0), 1)
    if not (without > 0.5).all() or (saw.sum(axis=0) < 2).any():
        return "conditional", CONDITIONAL
    lacking = f"{without.min():.0%} or more of the annotators have no informative vote"
    if design.cross.sum(axis=0).min() < FEWEST_CROSS:
        return "conditional", f"{CONDITIONAL}. {lacking}, and there are too few votes to assume more"
    if assignment_p is not None and assignment_p < SURELY_NOT_RANDOM:
        return "conditional", (
            f"{CONDITIONAL}. {lacking}; taking the qualities as random would use more votes, but comparisons were "
            "not given to annotators at random, and it would then be wrong"
        )
    return "random", (
        f"{lacking} for the conditional likelihood, so {RANDOM}; this is right only when comparisons were given to "
        "annotators at random"
    )


def fit(
    quality: str, design: Design, judgments: Judgments, anchored: NDArray, options: AuditOptions
) -> Leans:
    """The annotators' leans by the estimator that was chosen."""
    from badpo.estimation.alternative_estimators import fit_fixed, fit_random

    votes, least = design.votes, options.min_informative
    if options.quality_column is not None:
        first = np.unique(design.stratum, return_index=True)[1]
        margins = quality_of(judgments, options.quality_column)[design.comparison[first]]
        return fit_fixed(*votes, margins, anchored=anchored, min_informative=least)
    if quality == "random":
        return fit_random(*votes, anchored=anchored, min_informative=least)
    return fit_conditional(*votes, anchored=anchored, min_informative=least, clusters=design.prompt)


def quality_of(judgments: Judgments, column: str) -> Floats:
    """Quality of response a minus that of b, of shape (n_comparisons,), from two columns of the table.

    ``column`` is the name that the two share: ``score`` for ``score_a`` and ``score_b``.
    """
    numbers = judgments.comparisons.select_dtypes("number")
    pairs = side_pairs(list(numbers)).items()
    shared = {os.path.commonprefix(pair).rstrip("_"): pair for pair in pairs}
    if column not in shared:
        raise ConfigError(
            f"quality=fixed:{column}: there are no two number columns {column}_a and {column}_b (_chosen, _rejected) "
            f"with one value for each comparison.{did_you_mean(column, list(shared))} Found: "
            f"{', '.join(shared) or 'none'}"
        )
    a, b = shared[column]
    quality = (numbers[a] - numbers[b]).to_numpy(dtype=np.float64)
    missing = int((~np.isfinite(quality)).sum())
    if missing:
        raise ConfigError(
            f"quality=fixed:{column}: {missing:,} of {judgments.n_comparisons:,} comparisons have no number; fill "
            "them in or leave these comparisons out"
        )
    return quality


def care_of(design: Design, judgments: Judgments, leans: Leans) -> Care:
    """How closely each annotator follows quality, from comparisons whose responses do not differ in any attribute.

    Leans toward attributes of the judgment, such as which side was shown first, are taken from the logits as far as
    they are believed.
    """
    is_shown = design.is_shown
    comparison, sign, annotator, delta, m = design.votes
    shift = np.zeros(len(comparison))
    for j in np.flatnonzero(is_shown & leans.absolute):
        believed = shrink_normal(
            _own(leans, leans.finite_deviation)[:, j], _own(leans, leans.finite_se)[:, j]
        )
        shift += np.nan_to_num(believed.posterior.mean)[annotator] * delta[:, j]
    return fit_care(comparison, sign, annotator, delta[:, ~is_shown], m, shift)


def shrunken(design: Design, leans: Leans, lines: Mapping[int, Line]) -> list[Shrunk]:
    """What is believed of each attribute's deviations, from a line in care as far as the attribute has one.

    With the conditional likelihood the leans are integrated out of the votes themselves, which holds with few votes
    per annotator too. Otherwise, and where anchors or the design fix the level, the estimates are taken as normal with
    their standard errors, and an infinite one as that of its number of votes.

    Where hardly anybody has more than a vote or two on contested comparisons, the likelihood of the spread rises
    without end: the spread is then not known (tau is NaN), and nothing can be shrunk to it.
    """
    is_normal = leans.absolute | design.is_shown
    from_votes = leans.quality == "conditional" and not (leans.status == "anchored").any()
    from_votes = from_votes and not is_normal.all()
    integrated = shrink_votes(*design.votes, design.prompt) if from_votes else []
    deviation, se = _own(leans, leans.finite_deviation), _own(leans, leans.finite_se)
    found = []
    for j, normal in enumerate(is_normal):
        spread = integrated[j] if integrated and not normal else shrink_normal(deviation[:, j], se[:, j])
        if j in lines and np.isfinite(spread.tau):
            left, variance = lines[j].averaged(deviation[:, j], se[:, j])
            spread = averaged(spread, shrink_normal(left, np.sqrt(variance)), lines[j].chance)
        if spread.tau > WIDEST_SPREAD or spread.tau_high == np.inf:
            spread = replace(spread, tau=np.nan, tau_low=0.0, tau_high=np.inf, reliability=np.nan)
        found.append(spread)
    return found


def _own(leans: Leans, values: Floats) -> Floats:
    """Estimates or their errors, NaN for those that are none.

    The lean of an anchored annotator is given; that of who is compared with nobody is 0 from themselves by definition.
    """
    return np.where((leans.status == "anchored") | (leans.se == 0), np.nan, values)


def annotator_table(
    design: Design, leans: Leans, spreads: Sequence[Shrunk], care: Care, options: AuditOptions
) -> pd.DataFrame:
    """The rows of ``annotators.parquet``: for each annotator the attributes, in the order of their declaration.

    Shrunken estimates are NaN for who has no informative vote: all that is known of them is the pool. Only who has
    enough informative votes can be flagged. ``odds_ratio`` is of the shrunken deviation, or of the deviation itself
    where nothing was shrunk. ``care`` is 1 on average; ``flag_care`` is about following quality less than half as
    closely.
    """
    m, q = leans.deviation.shape

    def believed(per_attribute: Sequence[NDArray]) -> NDArray:
        return np.where(is_shrunk, np.stack(per_attribute, axis=1), np.nan)

    is_shrunk = (leans.n_informative > 0) & (leans.status != "anchored")
    is_shrunk &= np.stack([(one.basis != "prior") & np.isfinite(one.tau) for one in spreads], axis=1)
    shrunk = believed([one.posterior.mean for one in spreads])
    prob_exceeds = believed([probability_exceeds(one, options.rho) for one in spreads])
    own = zip(_own(leans, leans.deviation).T, _own(leans, leans.se).T, strict=True)
    q_value = np.stack([benjamini_hochberg(deviation, se) for deviation, se in own], axis=1)
    enough = leans.n_informative >= options.min_informative
    chances = np.where(enough, prob_exceeds, np.nan).T
    with np.errstate(over="ignore"):
        odds_ratio = np.exp(np.where(np.isnan(shrunk), leans.deviation, shrunk))
    agreement = annotator_agreement(design.comparison, design.sign, design.annotator, m)
    followed = Mixture(care.means, care.sds, care.weights)
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
        "post_sd": believed([one.posterior.sd for one in spreads]),
        "post_low": believed([one.posterior.quantile(0.025) for one in spreads]),
        "post_high": believed([one.posterior.quantile(0.975) for one in spreads]),
        "odds_ratio": odds_ratio,
        "q_value": q_value,
        "prob_exceeds": prob_exceeds,
        "flag": np.stack([bayesian_fdr(chance, options.fdr) for chance in chances], axis=1),
        "status": leans.status,
        "care": followed.mean,
        "care_low": followed.quantile(0.025),
        "care_high": followed.quantile(0.975),
        "flag_care": bayesian_fdr(
            np.where(care.n_votes > 0, followed.cdf(CARELESS), np.nan), options.fdr
        ),
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
    same = both.groupby("annotator")["same"].agg(["size", "mean"])
    same.index = design.annotators[same.index]
    rows = table[table["model"].notna() & (table["n_judgments"] > 0)]
    rows = rows.assign(
        both_orders=rows["annotator"].map(same["size"]).fillna(0).astype(int),
        same_share=rows["annotator"].map(same["mean"]),
    )
    return rows.sort_values(["model", "attribute"], kind="stable")[SHOWN_OF_MODELS].to_dict("records")


# -- everything together -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class AuditedPeople:
    """What an audit knows of annotators: estimates, shrunken ones, rows by annotator, ``pool`` and ``checks``."""

    leans: Leans
    spreads: list[Shrunk]
    table: pd.DataFrame
    pool: dict[str, Json]
    checks: Json


def people_of(judgments: Judgments, design: Design, options: AuditOptions) -> AuditedPeople:
    """Estimate the annotators' leans, and test what the estimate rests on.

    Classes are compared by the conditional likelihood without anchors, whatever the annotators' own leans come from.
    """
    anchored = anchored_annotators(design, options)
    assignment = assignment_test(*design.votes[:4]) if design.has_identities else None
    quality, why = choose_quality(design, options, assignment.p_value if assignment else None)
    leans = fit(quality, design, judgments, anchored, options)
    care = care_of(design, judgments, leans)
    equal_p = equal_leans_test(*design.votes[:4], leans, design.prompt)
    beside = beside_care(leans, care)
    spreads = shrunken(design, leans, beside.lines)
    for j, line in beside.lines.items():
        equal_p[j] += line.chance * (beside.equal_leans_p[j] - equal_p[j])
    leans = beside.leans
    table = annotator_table(design, leans, spreads, care, options)
    classes = _classes(design, leans)
    pool, is_person = {}, pd.isna(design.models)
    for j, name in enumerate(design.attributes):
        groups = _groups(leans, j, is_person)
        spread = _spread(spreads[j], float(equal_p[j]), groups, *classes[j])
        counts = _counts(design, leans, j, is_person) | {
            "n_flagged": table["flag"][table["attribute"] == name].sum()
        }
        is_continuous = judgments.attributes[j].continuous
        counts |= {
            "is_beside_care": j in beside.lines,
            "unit": design.unit[j],
            "most_units": MOST_UNITS if is_continuous else None,
        }
        pool[name] = counts | spread | _level(leans, j, int(anchored.sum()), is_person)
    checks = {
        "assignment": assignment and {"p_value": assignment.p_value},
        "estimator": {"quality": quality, "why": why},
        "components": {"informative": _graph(design, leans.component)},
        "anchors": _anchors(design, anchored, options) if anchored.any() else None,
        "care": _care(design, judgments, care, bool(beside.lines), table)
        if design.has_identities
        else None,
    }
    return AuditedPeople(leans, spreads, table, pool, checks)


def _care(design: Design, judgments: Judgments, care: Care, is_used: bool, table: pd.DataFrame) -> Json:
    """Whether annotators are equally careful, how far they differ, and whether leans are told from care."""
    comparison, sign, annotator, delta, m = design.votes
    return {
        "p_value": equal_care_test(comparison, sign, annotator, delta[:, ~design.is_shown], m),
        "spread": care.spread,
        "n_told": (care.n_votes >= FEWEST).sum() if not care.unknown else 0,
        "n_flagged": table.loc[table["flag_care"], "annotator"].nunique(),
        "is_used": is_used,
        "is_unknown": bool(care.unknown),
        "why": ABOUT_CARE[care.unknown] if care.unknown or is_used else LEVELS_KNOWN,
    }


def _by_attribute(design: Design, values: Sequence[Any] | NDArray) -> Json:
    return dict(zip(design.attributes, values, strict=True))


def _classes(design: Design, leans: Leans) -> list[tuple[list[Json], float | None]]:
    """Of each attribute the classes' offsets and the p-value of no difference; nothing with fewer than two classes."""
    if len(design.labels) < 2:
        return [([], None)] * len(design.attributes)
    number = np.array([design.labels.index(label) if label else -1 for label in design.classes])
    if leans.quality != "conditional" or (leans.status == "anchored").any():
        leans = fit_conditional(*design.votes, clusters=design.prompt)
    found = class_offsets(leans, number)
    shown = ("n", "offset", "ci_low", "ci_high")
    told = (design.per_annotator(design.informative) > 0) & pd.isna(design.models)[:, None]
    n_people = np.stack([told[design.classes == label].sum(axis=0) for label in design.labels])
    rows = [
        pd.DataFrame(
            {"class": design.labels, "n_people": n_people[:, j]}
            | {name: getattr(found, name)[:, j] for name in shown}
        )
        for j in range(len(design.attributes))
    ]
    return [(of.to_dict("records"), p) for of, p in zip(rows, found.p_value.tolist(), strict=True)]


def _groups(leans: Leans, j: int, is_person: Bools) -> list[Json]:
    """How far annotators differ within the largest groups that the votes do not compare; nothing where one is large."""
    rows, sizes = [], pd.Series(leans.component[:, j])[leans.component[:, j] >= 0].value_counts()
    large = sizes.index[sizes >= FEWEST_ANNOTATORS]
    for group in large[:SIZES_SHOWN] if len(large) > 1 else ():
        mine = leans.component[:, j] == group
        own = (_own(leans, each)[mine, j] for each in (leans.finite_deviation, leans.finite_se))
        found = shrink_normal(*own)
        rows.append(
            {"n": mine.sum(), "n_people": (mine & is_person).sum(), "tau": found.tau}
            | {"tau_ci": [found.tau_low, found.tau_high]}
        )
    return rows


def _spread(
    spread: Shrunk, equal_p: float, groups: list[Json], classes: list[Json], class_p: float | None
) -> Json:
    """How far annotators, groups and classes differ, and the variant of training that follows."""
    advice = recommend(spread, equal_p, class_p)
    return {
        "tau": spread.tau,
        "tau_ci": [None, None] if np.isnan(spread.tau) else [spread.tau_low, spread.tau_high],
        "reliability": spread.reliability,
        "equal_leans_p": equal_p,
        "is_divided": len(groups) > 0,
        "groups": groups,
        "classes": classes,
        "class_test_p": class_p,
        "recommendation": advice.variant,
        "recommendation_reason": f"{advice.reason}{WITHIN * bool(groups)}",
    }


def _counts(design: Design, leans: Leans, j: int, is_person: Bools) -> Json:
    """How many annotators have which status, and how many of those with a lean are people."""
    told = np.isin(leans.status[:, j].astype(str), TOLD)
    status = pd.Series(leans.status[design.n_votes > 0, j], dtype=object)
    n_cross, n_groups = design.cross[:, j].sum(), len(set(leans.component[:, j]) - {-1})
    return {
        "components": n_groups,
        "informative_share": design.informative[:, j].sum() / n_cross if n_cross else None,
        "n_estimated": (status == "ok").sum(),
        "n_insufficient": (status == "insufficient").sum(),
        "n_no_information": status.isin(["no_cross", "no_information"]).sum(),
        "n_separated": status.str.startswith("separated").sum(),
        "n_people_told": (told & is_person).sum(),
    }


def _level(leans: Leans, j: int, n_anchors: int, is_person: Bools) -> Json:
    """The mean lean of those who have one, for these annotators on other comparisons, and for others like them."""
    is_known, level = bool(leans.absolute[j]), leans.level[j]
    behind = (leans.se[:, j] > 0) & is_known
    n = int(behind.sum())
    reaches = ndtri(0.975) * leans.level_se[j], stdtrit(n - 1, 0.975) * leans.level_se_beyond[j]
    ends = [
        [level - reach, level + reach] if is_known and np.isfinite(reach) else None for reach in reaches
    ]
    why = OUT_OF_REACH if n_anchors else NOT_IDENTIFIED
    if not (leans.component[:, j] >= 0).any():
        why = NO_INFORMATION
    if is_known:
        is_anchored = (leans.status[:, j] == "anchored").any()
        why = ANCHORED.format(n=counted(n_anchors, "annotator")) if is_anchored else VARIES
    shown = {"level": level if is_known else None, "level_ci": ends[0], "level_ci_beyond": ends[1]}
    shown |= {"n_level": n, "n_people_level": (behind & is_person).sum()}
    return shown | {"absolute": is_known, "absolute_why": why}


def _graph(design: Design, labels: Ints) -> Json:
    """Number and sizes of each attribute's components, from the largest down, and who stands outside of all."""
    graph = {}
    for name, label in zip(design.attributes, labels[design.n_votes > 0].T, strict=True):
        sizes = np.sort(np.unique(label[label >= 0], return_counts=True)[1])[::-1]
        graph[name] = {"n": len(sizes), "sizes": sizes[:SIZES_SHOWN], "outside": (label < 0).sum()}
    return graph


def _anchors(design: Design, anchored: Bools, options: AuditOptions) -> Json:
    """How many cross-group judgments anchors cast, and whether anchors differ: who leans nowhere leans alike."""
    cast = anchored[design.annotator]
    stratum, sign, annotator, delta = (each[cast] for each in design.votes[:4])
    leans = fit_conditional(stratum, sign, annotator, delta, len(anchored))
    prompt = None if design.prompt is None else design.prompt[cast]
    equal_p = equal_leans_test(stratum, sign, annotator, delta, leans, prompt)
    return {
        "n": anchored.sum(),
        "n_people": (anchored & pd.isna(design.models)).sum(),
        "class": options.anchor_class,
        "annotators": sorted(design.annotators[anchored]),
        "n_cross": _by_attribute(design, design.cross[cast].sum(axis=0)),
        "equal_leans_p": _by_attribute(design, equal_p),
    }
