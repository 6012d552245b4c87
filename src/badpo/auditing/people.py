"""Everything that an audit finds out about annotators, computed once and then laid out in tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri, stdtrit

from badpo.data.judgments import Judgments
from badpo.data.privacy import pseudonyms
from badpo.data.problems import ConfigError, did_you_mean
from badpo.data.reading import VOTE_COLUMNS
from badpo.data.tables import side_pairs
from badpo.estimation.conditional_likelihood import Leans
from badpo.estimation.fit import fit_conditional
from badpo.estimation.shrinkage import (
    Shrunk,
    bayesian_fdr,
    benjamini_hochberg,
    finite_estimates,
    probability_exceeds,
    shrink_normal,
    shrink_npmle,
    shrink_votes,
)
from badpo.estimation.significance import (
    AssignmentTest,
    assignment_test,
    class_offsets,
    equal_leans_test,
    recommend,
)
from badpo.theory.identifiability import annotator_components, informative_judgments


@dataclass(frozen=True, eq=False)
class Design:
    """Who judged what, with which difference on each attribute, and how they voted.

    Attributes
    ----------
    comparison, annotator : int arrays of shape (n_votes,)
    stratum : int array of shape (n_votes,)
        `Judgments.comparable_votes`: what is conditioned on in place of the comparison.
    sign : int array of shape (n_votes,)
        +1 chose a, -1 chose b.
    delta : float array of shape (n_votes, n_attributes)
        g(a) - g(b).
    cross : bool array of shape (n_votes, n_attributes)
        Judgments whose sides differ by more than the attribute's threshold.
    informative : bool array of shape (n_votes, n_attributes)
        Judgments that tell annotators apart when nothing is known of the comparison's quality.
    annotators : object array of shape (n_annotators,)
        Pseudonyms.
    classes : object array of shape (n_annotators,)
        Class labels, None where there is none.
    attributes : tuple of str
        Names.
    has_identities : bool
        False when nobody knows who voted; all votes then stand under one annotator.
    """

    comparison: NDArray[np.int64]
    stratum: NDArray[np.intp]
    annotator: NDArray[np.int64]
    sign: NDArray[np.int64]
    delta: NDArray[np.float64]
    cross: NDArray[np.bool_]
    informative: NDArray[np.bool_]
    annotators: NDArray[np.object_]
    classes: NDArray[np.object_]
    attributes: tuple[str, ...]
    has_identities: bool

    @property
    def n_annotators(self) -> int:
        """Number of annotators, with or without a vote."""
        return len(self.annotators)

    @property
    def votes(self) -> tuple[NDArray, NDArray, NDArray, NDArray, int]:
        """What every estimator takes first: stratum, sign, annotator, delta, number of annotators."""
        return self.stratum, self.sign, self.annotator, self.delta, self.n_annotators

    def per_annotator(self, votes: NDArray[np.bool_]) -> NDArray[np.int64]:
        """How many of some votes each annotator cast, of shape (n_annotators,) or (n_annotators, n_attributes)."""
        columns = votes.reshape(len(votes), -1).T
        counts = [np.bincount(self.annotator[chosen], minlength=self.n_annotators) for chosen in columns]
        counted = np.stack(counts, axis=1) if counts else np.zeros((self.n_annotators, 0), dtype=np.int64)
        return counted[:, 0] if votes.ndim == 1 else counted

    def raw_rate(self) -> NDArray[np.float64]:
        """How often each annotator chose the side with more of an attribute, among their cross-group judgments.

        Shape (n_annotators, n_attributes); NaN without such a judgment.
        """
        chose_more = self.cross & (self.sign[:, None] * self.delta > 0)
        n_cross = self.per_annotator(self.cross)
        rate = np.full(n_cross.shape, np.nan)
        return np.divide(self.per_annotator(chose_more), n_cross, out=rate, where=n_cross > 0)


def design_of(judgments: Judgments) -> Design:
    """The arrays of a table of judgments."""
    comparison, annotator, sign = (
        judgments.votes[name].to_numpy(dtype=np.int64) for name in ("comparison", "annotator", "sign")
    )
    stratum = judgments.comparable_votes()
    return Design(
        comparison=comparison,
        stratum=stratum,
        annotator=annotator,
        sign=sign,
        delta=judgments.delta,
        cross=judgments.cross_group(),
        informative=informative_judgments(stratum, annotator, sign, judgments.delta),
        annotators=judgments.annotators["pseudonym"].to_numpy(),
        classes=judgments.annotators["annotator_class"].to_numpy(),
        attributes=judgments.attribute_names,
        has_identities=judgments.has_identities,
    )


QUALITIES = ("conditional", "random", "fixed", "joint")
SHRINKS = ("normal", "npmle", "none")
FLAG_RULES = ("posterior", "bh")


@dataclass(frozen=True)
class Flag:
    """When an annotator's lean is worth a look.

    Attributes
    ----------
    rho : float
        Size of a deviation that matters, in log-odds; 0.5 is an odds ratio of 1.65.
    fdr : float
        Share of the flagged that may turn out to deviate by less (false discovery rate).
    rule : "posterior" or "bh"
        ``posterior``: the probability that the deviation exceeds ``rho``, given everyone's votes, with that share
        controlled on average. ``bh``: Benjamini-Hochberg on the hypothesis of no deviation at all, which flags
        nearly everyone when there are enough votes, since hardly anyone sits exactly at the pool's mean.

    Examples
    --------
    >>> Flag(rho=0.7).fdr
    0.1
    """

    rho: float = 0.5
    fdr: float = 0.10
    rule: str = "posterior"

    def check(self) -> None:
        """Raise `ConfigError` for a value that means nothing."""
        if not (self.rho >= 0 and math.isfinite(self.rho)):
            raise ConfigError(f"rho is a size in log-odds, 0 or more, such as 0.5; got {self.rho!r}")
        if not 0 < self.fdr < 1:
            raise ConfigError(f"fdr is a share above 0 and below 1, such as 0.1; got {self.fdr!r}")
        _check_choice("flag rule", self.rule, FLAG_RULES)


@dataclass(frozen=True)
class Options:
    """Choices of an audit; `badpo.auditing.audit.audit` says what each means."""

    quality: str | None = None
    shrink: str = "normal"
    anchors: Sequence[str] = ()
    anchor_class: str | None = None
    flag: Flag = field(default_factory=Flag)
    min_informative: int = 10

    def check(self) -> None:
        """Raise `ConfigError` for a choice that is not there, or two that do not go together."""
        if self.quality is not None:
            kind, colon, column = self.quality.partition(":")
            _check_choice("quality", kind, QUALITIES)
            if (kind == "fixed") != bool(column) or (colon and kind != "fixed"):
                raise ConfigError(
                    f'quality="{self.quality}": name the column that holds the quality, as in fixed:score, and none '
                    "for the other kinds"
                )
        _check_choice("shrink", self.shrink, SHRINKS)
        self.flag.check()
        if self.shrink == "none" and self.flag.rule == "posterior":
            raise ConfigError("shrink=none leaves no posterior to flag by: add the flag rule bh, or shrink")
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


def _check_choice(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise ConfigError(
            f"{name} must be one of {', '.join(known)}; got {value!r}.{did_you_mean(str(value), known)}"
        )


def anchored_annotators(design: Design, options: Options) -> NDArray[np.bool_]:
    """Who is anchored, of shape (n_annotators,): the annotators named one by one, or everyone of a class."""
    if options.anchor_class is not None:
        return _of_class(design, options.anchor_class)
    return named_annotators(design.annotators, options.anchors, "anchors")


def named_annotators(annotators: ArrayLike, named: Sequence[object], key: str) -> NDArray[np.bool_]:
    """Who of the annotators is named, of shape (n_annotators,)."""
    wanted = pseudonyms(list(dict.fromkeys(str(name) for name in named)))
    known = np.asarray(annotators, dtype=object)
    missing = [name for name in wanted if name not in set(known)]
    if missing:
        raise ConfigError(
            f"{key}: {', '.join(missing)} cast no vote in this table (ids are shown as pseudonyms); write the id "
            "as the table has it, or the pseudonym that the report shows"
        )
    return np.isin(known, wanted)


def _of_class(design: Design, label: str) -> NDArray[np.bool_]:
    chosen = np.array([known == label for known in design.classes], dtype=bool)
    if not chosen.any():
        known_labels = sorted({known for known in design.classes if known is not None})
        raise ConfigError(
            f'anchor class: no annotator has the class "{label}".{did_you_mean(label, known_labels)} Classes: '
            f"{', '.join(known_labels) or 'none; give an annotator_class column'}"
        )
    return chosen


def anchor_check(design: Design, anchored: NDArray[np.bool_], options: Options) -> dict[str, Any] | None:
    """The part ``checks.anchors`` of audit.json; None without anchors.

    ``n_cross`` counts the anchors' cross-group judgments, by attribute, and ``equal_leans_p`` is of the test that the
    anchors do not differ among themselves: people who all lean nowhere lean alike. None where it cannot be tested.
    """
    if not anchored.any():
        return None
    n_cross = design.per_annotator(design.cross)[anchored].sum(axis=0)
    theirs = anchored[design.annotator]
    comparison, sign, annotator, delta = (each[theirs] for each in design.votes[:4])
    leans = fit_conditional(comparison, sign, annotator, delta, design.n_annotators)
    tests = equal_leans_test(comparison, sign, annotator, delta, leans)
    return {
        "n": int(anchored.sum()),
        "class": options.anchor_class,
        "annotators": sorted(design.annotators[anchored].tolist()),
        "n_cross": dict(zip(design.attributes, n_cross.tolist(), strict=True)),
        "equal_leans_p": {
            name: None if np.isnan(test.p_value) else test.p_value
            for name, test in zip(design.attributes, tests, strict=True)
        },
    }


# exp(5) is odds of 148 to 1: no distance between people
WIDEST_SPREAD = 5.0


@dataclass(frozen=True, eq=False)
class Posterior:
    """What is believed of one attribute's deviations after seeing the whole pool; arrays of shape (n_annotators,)."""

    spread: Shrunk
    shrunk: NDArray[np.float64]
    post_sd: NDArray[np.float64]
    post_low: NDArray[np.float64]
    post_high: NDArray[np.float64]
    prob_exceeds: NDArray[np.float64]
    q_value: NDArray[np.float64]
    flag: NDArray[np.bool_]


def posteriors_of(design: Design, leans: Leans, options: Options) -> tuple[Posterior, ...]:
    """Shrink each attribute's deviations and flag those that are probably large.

    With the conditional likelihood the leans are integrated out of the votes themselves, which holds with few votes
    per annotator too. Otherwise, and where anchors or the design fix the level, the estimates are taken as normal
    with their standard errors, and an infinite one as that of its number of votes.
    """
    integrated: Sequence[Shrunk | None] = [None] * len(design.attributes)
    anchored = (leans.status == "anchored").any()
    if leans.quality == "conditional" and not anchored and not leans.absolute.all():
        integrated = shrink_votes(*design.votes)
    return tuple(
        _posterior(
            leans, j, _spread(leans, j, None if leans.absolute[j] else from_votes, options.shrink), options
        )
        for j, from_votes in enumerate(integrated)
    )


def _spread(leans: Leans, attribute: int, from_votes: Shrunk | None, shrink: str) -> Shrunk:
    """The prior that was asked for; intervals always from the normal one, since the free one's are too short.

    Where hardly anybody has more than a vote or two on contested comparisons, the likelihood of the spread rises
    without end: the spread is then not known, and nothing can be shrunk to it.
    """
    estimates = _estimates(leans, attribute)
    finite = finite_estimates(*estimates, leans.n_informative[:, attribute])
    normal = shrink_normal(*finite) if from_votes is None else from_votes
    if normal.tau > WIDEST_SPREAD or normal.tau_high == np.inf:
        return replace(normal, tau=np.nan, tau_low=0.0, tau_high=np.inf, reliability=np.nan)
    if shrink != "npmle":
        return normal
    free = shrink_npmle(*finite)
    return replace(free, post_sd=normal.post_sd, post_low=normal.post_low, post_high=normal.post_high)


def _estimates(leans: Leans, attribute: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """One attribute's deviations and standard errors.

    Anchored annotators take no part, since their lean is given; nor does one who is compared with nobody, whose
    deviation from themselves is 0 by definition.
    """
    given = (leans.status[:, attribute] == "anchored") | (leans.se[:, attribute] == 0)
    deviation, se = leans.deviation[:, attribute], leans.se[:, attribute]
    return np.where(given, np.nan, deviation), np.where(given, np.nan, se)


def _posterior(leans: Leans, attribute: int, spread: Shrunk, options: Options) -> Posterior:
    told = leans.n_informative[:, attribute] > 0
    believed = told & (spread.basis != "prior") & (leans.status[:, attribute] != "anchored")
    believed &= (options.shrink != "none") & np.isfinite(spread.tau)
    shown = {
        name: np.where(believed, getattr(spread, name), np.nan)
        for name in ("shrunk", "post_sd", "post_low", "post_high")
    }
    prob_exceeds = np.where(believed, probability_exceeds(spread, options.flag.rho), np.nan)
    q_value = benjamini_hochberg(*_estimates(leans, attribute))
    enough = leans.n_informative[:, attribute] >= options.min_informative
    flag = enough & _flagged(prob_exceeds, q_value, enough, options.flag)
    return Posterior(spread, prob_exceeds=prob_exceeds, q_value=q_value, flag=flag, **shown)


def _flagged(prob_exceeds: NDArray, q_value: NDArray, enough: NDArray, flag: Flag) -> NDArray[np.bool_]:
    if flag.rule == "bh":
        return q_value <= flag.fdr
    return bayesian_fdr(np.where(enough, prob_exceeds, np.nan), flag.fdr)


COLUMNS = (
    "annotator",
    "class",
    "attribute",
    "component",
    "n_judgments",
    "n_cross",
    "n_informative",
    "raw_rate",
    "deviation",
    "se",
    "ci_low",
    "ci_high",
    "shrunk",
    "post_sd",
    "post_low",
    "post_high",
    "odds_ratio",
    "q_value",
    "prob_exceeds",
    "flag",
    "status",
    "agreement",
    "agreement_low",
    "agreement_high",
)


def annotator_table(
    design: Design, leans: Leans, posteriors: Sequence[Posterior], agreement: pd.DataFrame
) -> pd.DataFrame:
    """The annotators with a vote, by id, and the attributes of each in the order in which they were declared.

    No row where nobody knows who voted.
    """
    n_votes = design.per_annotator(np.ones(len(design.annotator), dtype=bool))
    parts = [
        _of_attribute(j, design, leans, posterior, n_votes).join(agreement)
        for j, posterior in enumerate(posteriors)
    ]
    table = pd.concat(parts) if parts else pd.DataFrame(columns=list(COLUMNS))
    table["order"] = np.tile(np.argsort(np.argsort(design.annotators, kind="stable")), len(parts))
    table = table[design.has_identities & (table["n_judgments"] > 0)].sort_values("order", kind="stable")
    return table.reset_index(drop=True)[list(COLUMNS)]


def _of_attribute(
    j: int, design: Design, leans: Leans, posterior: Posterior, n_votes: np.ndarray
) -> pd.DataFrame:
    deviation = leans.deviation[:, j]
    effect = np.where(np.isnan(posterior.shrunk), deviation, posterior.shrunk)
    with np.errstate(over="ignore"):
        odds_ratio = np.exp(effect)
    return pd.DataFrame(
        {
            "annotator": design.annotators,
            "class": design.classes,
            "attribute": design.attributes[j],
            "component": leans.component[:, j],
            "n_judgments": n_votes,
            "n_cross": design.per_annotator(design.cross[:, j]),
            "n_informative": leans.n_informative[:, j],
            "raw_rate": design.raw_rate()[:, j],
            "deviation": deviation,
            "se": leans.se[:, j],
            "ci_low": leans.ci_low[:, j],
            "ci_high": leans.ci_high[:, j],
            "shrunk": posterior.shrunk,
            "post_sd": posterior.post_sd,
            "post_low": posterior.post_low,
            "post_high": posterior.post_high,
            "odds_ratio": odds_ratio,
            "q_value": posterior.q_value,
            "prob_exceeds": posterior.prob_exceeds,
            "flag": posterior.flag,
            "status": leans.status[:, j].astype(str),
        }
    )


@dataclass(frozen=True)
class ClassLeans:
    """One attribute's classes."""

    rows: list[dict[str, Any]]
    p_value: float | None


def class_leans(design: Design) -> tuple[ClassLeans, ...]:
    """The classes' leans relative to the pool, for each attribute.

    By the conditional likelihood, whatever estimator the annotators' own leans come from.
    """
    labels = sorted({label for label in design.classes if label is not None})
    if len(labels) < 2:
        return (ClassLeans([], None),) * len(design.attributes)
    number = {label: i for i, label in enumerate(labels)}
    of = np.array([number.get(label, -1) for label in design.classes], dtype=np.int64)
    found = class_offsets(*design.votes[:4], of)
    return tuple(
        ClassLeans(
            [
                {
                    "class": label,
                    "n": int(found.n[i, j]),
                    "offset": float(found.offset[i, j]),
                    "ci_low": float(found.ci_low[i, j]),
                    "ci_high": float(found.ci_high[i, j]),
                }
                for i, label in enumerate(labels)
            ],
            p_value_or_none(found.tests[j].p_value),
        )
        for j in range(len(design.attributes))
    )


def p_value_or_none(p_value: float) -> float | None:
    """The p-value of a test, None where there was nothing to test."""
    return None if math.isnan(p_value) else float(p_value)


FEWEST_CROSS = 200
SURELY_NOT_RANDOM = 0.05

CONDITIONAL = (
    "conditional likelihood: given how many votes each side of a comparison got, its unknown quality drops out, and "
    "nothing is assumed about who judged what"
)
RANDOM = "the comparisons' qualities are taken as draws from one normal distribution, whoever judged them"
FIXED = "the comparisons' qualities are taken from {column}, times a factor that is fitted"
JOINT = (
    "a free quality for every comparison, as in the paper's theorem; deviations come out too large, by about "
    "T / (T - 1) at T votes on a comparison"
)


@dataclass(frozen=True)
class Choice:
    """The kind of estimator and the reason for it, as a sentence for people."""

    quality: str
    why: str


def choose_quality(design: Design, options: Options, assignment_p: float | None) -> Choice:
    """The estimator asked for; otherwise the conditional one, unless it would leave most annotators without an answer.

    Conditioning on the votes of a comparison spends those of comparisons with a single vote and of unanimous ones.
    Where that leaves more than half of the annotators who saw the sides of an attribute differ without an
    informative vote, for every attribute, the comparisons' qualities are taken as random instead, which uses all
    votes. That is only right when annotators did not choose, and were not given, particular comparisons; so it is not
    done when the test of assignment says otherwise.
    """
    if options.quality is not None:
        kind = options.quality.partition(":")[0]
        how = {"conditional": CONDITIONAL, "random": RANDOM, "fixed": FIXED, "joint": JOINT}[kind]
        return Choice(kind, f"asked for; {how.format(column=options.quality_column)}")
    saw = design.per_annotator(design.cross) > 0
    informed = design.per_annotator(design.informative) > 0
    without = 1 - (saw & informed).sum(axis=0) / np.maximum(saw.sum(axis=0), 1)
    if not (without > 0.5).all():
        return Choice("conditional", CONDITIONAL)
    lacking = f"{without.min():.0%} or more of the annotators have no informative vote"
    if (saw.sum(axis=0) < 2).any():
        return Choice("conditional", CONDITIONAL)
    if design.cross.sum(axis=0).min() < FEWEST_CROSS:
        return Choice("conditional", f"{CONDITIONAL}. {lacking}, and there are too few votes to assume more")
    if assignment_p is not None and assignment_p < SURELY_NOT_RANDOM:
        return Choice(
            "conditional",
            f"{CONDITIONAL}. {lacking}; taking the qualities as random would use more votes, but comparisons were "
            "not given to annotators at random, and it would then be wrong",
        )
    return Choice(
        "random",
        f"{lacking} for the conditional likelihood, so {RANDOM}; this is right only when comparisons were given to "
        "annotators at random",
    )


def quality_of(judgments: Judgments, column: str) -> NDArray[np.float64]:
    """Quality of response a minus that of b, of shape (n_comparisons,), from columns of the table.

    ``column`` is the name that two columns share (``score`` for ``score_a`` and ``score_b``), the name of one of
    them, or a single column of a over b that was kept, such as a trained policy's margins.
    """
    if column in judgments.votes.columns.difference(VOTE_COLUMNS):
        quality = _kept(judgments, column)
    else:
        a, b = (judgments.comparisons[name].to_numpy(dtype=np.float64) for name in _pair(judgments, column))
        quality = a - b
    missing = int((~np.isfinite(quality)).sum())
    if missing:
        raise ConfigError(
            f"quality=fixed:{column}: {missing:,} of {judgments.n_comparisons:,} comparisons have no number; fill "
            "them in or leave these comparisons out"
        )
    return quality


def _pair(judgments: Judgments, column: str) -> tuple[str, str]:
    pairs = side_pairs(list(judgments.comparisons.columns))
    shared = {_stem(first, second): (first, second) for first, second in pairs.items()}
    found = shared.get(column)
    if found is None:
        raise ConfigError(
            f"quality=fixed:{column}: there is no number column {column}, and there are no two {column}_a and "
            f"{column}_b (or _chosen and _rejected) with one value for each comparison."
            f"{did_you_mean(column, list(shared))} Found: {', '.join(shared) or 'none'}"
        )
    return found


def _kept(judgments: Judgments, column: str) -> NDArray[np.float64]:
    """A column of a over b, as the rows of the source have it."""
    if column in side_pairs(list(judgments.comparisons.columns)):
        raise ConfigError(f"quality=fixed:{column}: that is one side's column; write what both names share")
    if any(problem.code == "N118" for problem in judgments.findings):
        raise ConfigError(
            f"quality=fixed:{column}: some rows have the two responses the other way round, so a single column does "
            f"not say whose quality it is; give two columns, {column}_a and {column}_b"
        )
    if column not in judgments.comparisons:
        raise ConfigError(f"quality=fixed:{column}: votes on one comparison have different values of it")
    return pd.to_numeric(judgments.comparisons[column], errors="coerce").to_numpy(dtype=np.float64)


def _stem(first: str, second: str) -> str:
    """What two column names share: ``score`` for ``score_a`` and ``score_b``."""
    return "_".join(
        one for one, other in zip(first.split("_"), second.split("_"), strict=True) if one == other
    )


def fit(choice: Choice, design: Design, judgments: Judgments, anchored: NDArray, options: Options) -> Leans:
    """The annotators' leans by the estimator that was chosen."""
    least = options.min_informative
    if choice.quality == "conditional":
        from badpo.estimation.fit import fit_conditional

        return fit_conditional(*design.votes, anchored=anchored, min_informative=least)
    if choice.quality == "random":
        from badpo.estimation.alternative_estimators import fit_random

        return fit_random(*design.votes, anchored=anchored, min_informative=least)
    if choice.quality == "joint":
        from badpo.estimation.alternative_estimators import fit_joint

        return fit_joint(*design.votes, anchored=anchored, min_informative=least)
    from badpo.estimation.alternative_estimators import fit_fixed

    assert options.quality_column is not None
    quality = quality_of(judgments, options.quality_column)
    _, first = np.unique(design.stratum, return_index=True)
    quality = quality[design.comparison[first]]
    return fit_fixed(*design.votes, quality, anchored=anchored, min_informative=least)


_Z = float(ndtri(0.975))

NOT_IDENTIFIED = (
    "not known: if everyone leaned more toward it, and the responses without it were better by as much, the votes "
    "would be the same; naming annotators who are known to lean nowhere (anchors) would tell"
)
OUT_OF_REACH = (
    "not known: the votes do not compare everyone with the annotators declared to lean nowhere (anchors); "
    "requests.parquet lists comparisons that would"
)
ANCHORED = "known because {n} are declared to lean nowhere (anchors); it stands and falls with that"
VARIES = (
    "known because votes on one comparison differ in this attribute, so that no quality can stand in for it"
)
NO_INFORMATION = "not known: no vote tells annotators apart"


def lean_summary(
    j: int,
    design: Design,
    leans: Leans,
    posterior: Posterior,
    classes: ClassLeans,
    equal_leans_p: float | None,
    n_anchors: int,
) -> dict[str, Any]:
    """The entry of one attribute in the part ``pool`` of audit.json."""
    spread = posterior.spread
    voted = design.per_annotator(np.ones(len(design.annotator), dtype=bool)) > 0
    status = leans.status[voted, j].astype(str)
    n_groups = len(np.unique(leans.component[leans.component[:, j] >= 0, j]))
    n_cross = int(design.cross[:, j].sum())
    advice = recommend(spread, np.nan if equal_leans_p is None else equal_leans_p, classes.p_value)
    return {
        "tau": spread.tau,
        "tau_ci": [None, None] if np.isnan(spread.tau) else [spread.tau_low, spread.tau_high],
        "reliability": spread.reliability,
        "components": n_groups,
        "is_divided": n_groups > 1,
        "informative_share": int(design.informative[:, j].sum()) / n_cross if n_cross else None,
        "n_estimated": int((status == "ok").sum()),
        "n_insufficient": int((status == "insufficient").sum()),
        "n_no_information": int(np.isin(status, ("no_cross", "no_information")).sum()),
        "n_separated": int(np.char.startswith(status, "separated").sum()),
        "n_flagged": int(posterior.flag.sum()),
        "equal_leans_p": equal_leans_p,
        "classes": classes.rows,
        "class_test_p": classes.p_value,
        "recommendation": advice.variant,
        "recommendation_reason": advice.reason,
        **_level(j, leans),
        "absolute": bool(leans.absolute[j]),
        "absolute_why": _why(j, leans, n_anchors),
    }


def _level(j: int, leans: Leans) -> dict[str, Any]:
    """The mean lean of those who have one, for these annotators on other comparisons and for annotators like them."""
    if not leans.absolute[j]:
        return {"level": None, "level_ci": None, "level_ci_beyond": None, "n_level": 0}
    n, level = int((leans.se[:, j] > 0).sum()), float(leans.level[j])
    reaches = _Z * leans.level_se[j], stdtrit(n - 1, 0.975) * leans.level_se_beyond[j] if n > 1 else np.nan
    ends = [[level - reach, level + reach] if np.isfinite(reach) else None for reach in reaches]
    return {"level": level, "level_ci": ends[0], "level_ci_beyond": ends[1], "n_level": n}


def _why(j: int, leans: Leans, n_anchors: int) -> str:
    if not leans.absolute[j]:
        if not (leans.component[:, j] >= 0).any():
            return NO_INFORMATION
        return OUT_OF_REACH if n_anchors else NOT_IDENTIFIED
    anchored = (leans.status[:, j] == "anchored").any()
    return (
        ANCHORED.format(n=f"{n_anchors:,} annotators" if n_anchors != 1 else "1 annotator")
        if anchored
        else VARIES
    )


SIZES_SHOWN = 5


@dataclass(frozen=True, eq=False)
class People:
    """The annotators of an audit."""

    design: Design
    options: Options
    choice: Choice
    leans: Leans
    posteriors: tuple[Posterior, ...]
    classes: tuple[ClassLeans, ...]
    equal_leans_p: tuple[float | None, ...]
    anchored: NDArray[np.bool_]
    assignment: AssignmentTest | None

    def pool(self) -> dict[str, Any]:
        """The part ``pool`` of audit.json: an entry for each attribute."""
        return {
            name: lean_summary(
                j,
                self.design,
                self.leans,
                self.posteriors[j],
                self.classes[j],
                self.equal_leans_p[j],
                int(self.anchored.sum()),
            )
            for j, name in enumerate(self.design.attributes)
        }

    def checks(self) -> dict[str, Any]:
        """The part ``checks`` of audit.json."""
        leans = self.leans
        return {
            "assignment": self._assignment(),
            "estimator": {
                "quality": self.choice.quality,
                "why": self.choice.why,
                "gradient_norm": leans.gradient_norm,
                "n_newton": leans.n_newton,
                "n_cg": leans.n_cg,
                "log_likelihood": leans.log_likelihood,
                "u_scale": leans.u_scale,
                "quality_sd": leans.quality_sd,
            },
            "components": {
                "theorem": self._graph(self._theorem()),
                "informative": self._graph(leans.component),
            },
            "anchors": anchor_check(self.design, self.anchored, self.options),
        }

    def table(self, agreement: pd.DataFrame) -> pd.DataFrame:
        """One row for each annotator and attribute."""
        return annotator_table(self.design, self.leans, self.posteriors, agreement)

    def _assignment(self) -> dict[str, Any] | None:
        test = self.assignment
        if test is None:
            return None
        return {
            "p_value": test.p_value,
            "by_attribute": dict(zip(self.design.attributes, test.by_attribute, strict=True)),
            "statistic": test.statistic,
            "n_permutations": test.n_permutations,
        }

    def _theorem(self) -> NDArray[np.intp]:
        """The theorem's components: annotators who judged one cross-group comparison, whatever the votes."""
        return annotator_components(
            self.design.stratum, self.design.annotator, self.design.cross, self.design.n_annotators
        )

    def _graph(self, labels: NDArray[np.intp]) -> dict[str, Any]:
        """Number and sizes of the components of each attribute, and who stands outside of all of them."""
        voted = self.design.per_annotator(np.ones(len(self.design.annotator), dtype=bool)) > 0
        return {name: _sizes(labels[voted, j]) for j, name in enumerate(self.design.attributes)}


def people_of(judgments: Judgments, design: Design, options: Options) -> People:
    """Estimate the annotators' leans, and test what the estimate rests on."""
    anchored = anchored_annotators(design, options)
    assignment = assignment_test(*design.votes[:4]) if design.has_identities else None
    choice = choose_quality(design, options, None if assignment is None else assignment.p_value)
    leans = fit(choice, design, judgments, anchored, options)
    equal = equal_leans_test(*design.votes[:4], leans)
    return People(
        design=design,
        options=options,
        choice=choice,
        leans=leans,
        posteriors=posteriors_of(design, leans, options),
        classes=class_leans(design),
        equal_leans_p=tuple(p_value_or_none(test.p_value) for test in equal),
        anchored=anchored,
        assignment=assignment,
    )


def _sizes(labels: NDArray[np.intp]) -> dict[str, Any]:
    """Components from the largest down; only the first sizes are listed."""
    sizes = np.sort(np.unique(labels[labels >= 0], return_counts=True)[1])[::-1]
    return {
        "n": len(sizes),
        "sizes": sizes[:SIZES_SHOWN].tolist(),
        "outside": int((labels < 0).sum()),
    }
