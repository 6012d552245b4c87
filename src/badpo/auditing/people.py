"""What an audit finds out about annotators: which way each leans, how sure that is, and what cannot be known."""

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
from badpo.data.problems import ConfigError, counted, did_you_mean
from badpo.data.reading import VOTE_COLUMNS
from badpo.data.tables import side_pairs
from badpo.estimation.conditional_likelihood import Leans
from badpo.estimation.fit import fit_conditional
from badpo.estimation.shrinkage import (
    Shrunk,
    bayesian_fdr,
    benjamini_hochberg,
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

SHRINKS = ("normal", "npmle", "none")
FLAG_RULES = ("posterior", "bh")
# exp(5) is odds of 148 to 1: no distance between people
WIDEST_SPREAD = 5.0
FEWEST_CROSS = 200
SURELY_NOT_RANDOM = 0.05
SIZES_SHOWN = 5
_Z = float(ndtri(0.975))

CONDITIONAL = (
    "conditional likelihood: given how many votes each side of a comparison got, its unknown quality drops out, and "
    "nothing is assumed about who judged what"
)
RANDOM = "the comparisons' qualities are taken as draws from one normal distribution, whoever judged them"
QUALITIES = {
    "conditional": CONDITIONAL,
    "random": RANDOM,
    "fixed": "the comparisons' qualities are taken from {column}, times a factor that is fitted",
    "joint": "a free quality for every comparison, as in the paper's theorem; deviations come out too large, by about "
    "T / (T - 1) at T votes on a comparison",
}
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


# -- what is asked for -------------------------------------------------------------------------------------------


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
class AuditOptions:
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
            _check_choice("quality", kind, tuple(QUALITIES))
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


# -- the votes as arrays -----------------------------------------------------------------------------------------


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
    def votes(self) -> tuple[NDArray, NDArray, NDArray, NDArray, int]:
        """What every estimator takes first: stratum, sign, annotator, delta, number of annotators."""
        return self.stratum, self.sign, self.annotator, self.delta, len(self.annotators)

    @property
    def n_votes(self) -> NDArray[np.int64]:
        """How many votes each annotator cast, of shape (n_annotators,)."""
        return np.bincount(self.annotator, minlength=len(self.annotators))

    def per_annotator(self, chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
        """How many of the chosen votes each annotator cast, of shape (n_annotators, n_attributes)."""
        m = len(self.annotators)
        counts = [np.bincount(self.annotator, weights=column, minlength=m) for column in chosen.T]
        return np.array(counts, dtype=np.int64).reshape(-1, m).T

    def raw_rate(self) -> NDArray[np.float64]:
        """How often each annotator chose the side with more of an attribute, among their cross-group judgments.

        Shape (n_annotators, n_attributes); NaN without such a judgment.
        """
        chose_more = self.per_annotator(self.cross & (self.sign[:, None] * self.delta > 0))
        n_cross = self.per_annotator(self.cross)
        return np.divide(chose_more, n_cross, out=np.full(n_cross.shape, np.nan), where=n_cross > 0)


def design_of(judgments: Judgments) -> Design:
    """The arrays of a table of judgments."""
    votes = judgments.votes
    comparison, annotator, sign = (
        votes[name].to_numpy(dtype=np.int64) for name in ("comparison", "annotator", "sign")
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


# -- anchors -----------------------------------------------------------------------------------------------------


def anchored_annotators(design: Design, options: AuditOptions) -> NDArray[np.bool_]:
    """Who is known to lean nowhere, of shape (n_annotators,): those named one by one, or everyone of a class."""
    label = options.anchor_class
    if label is None:
        return named_annotators(design.annotators, options.anchors, "anchors")
    chosen = np.array([known == label for known in design.classes], dtype=bool)
    if not chosen.any():
        labels = _labels(design)
        raise ConfigError(
            f'anchor class: no annotator has the class "{label}".{did_you_mean(label, labels)} Classes: '
            f"{', '.join(labels) or 'none; give an annotator_class column'}"
        )
    return chosen


def named_annotators(annotators: ArrayLike, named: Sequence[object], key: str) -> NDArray[np.bool_]:
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


def _labels(design: Design) -> list[str]:
    return sorted({label for label in design.classes if label is not None})


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
    from badpo.estimation.alternative_estimators import fit_fixed, fit_joint, fit_random

    votes, least = design.votes, options.min_informative
    if options.quality_column is not None:
        margins = quality_of(judgments, options.quality_column)
        first = np.unique(design.stratum, return_index=True)[1]
        margins = margins[design.comparison[first]]
        return fit_fixed(*votes, margins, anchored=anchored, min_informative=least)
    estimator = {"conditional": fit_conditional, "random": fit_random, "joint": fit_joint}[quality]
    return estimator(*votes, anchored=anchored, min_informative=least)


def quality_of(judgments: Judgments, column: str) -> NDArray[np.float64]:
    """Quality of response a minus that of b, of shape (n_comparisons,), from columns of the table.

    ``column`` is the name that two columns share (``score`` for ``score_a`` and ``score_b``), the name of one of
    them, or a single column of a over b that was kept, such as a trained policy's margins.
    """
    pairs = side_pairs(list(judgments.comparisons.columns))
    if column in judgments.votes.columns.difference(VOTE_COLUMNS):
        quality = _kept(judgments, column, column in pairs)
    else:
        shared = {_stem(*pair): pair for pair in pairs.items()}
        if column not in shared:
            raise ConfigError(
                f"quality=fixed:{column}: there is no number column {column}, and there are no two {column}_a and "
                f"{column}_b (or _chosen and _rejected) with one value for each comparison."
                f"{did_you_mean(column, list(shared))} Found: {', '.join(shared) or 'none'}"
            )
        a, b = (judgments.comparisons[name].to_numpy(dtype=np.float64) for name in shared[column])
        quality = a - b
    missing = int((~np.isfinite(quality)).sum())
    if missing:
        raise ConfigError(
            f"quality=fixed:{column}: {missing:,} of {judgments.n_comparisons:,} comparisons have no number; fill "
            "them in or leave these comparisons out"
        )
    return quality


def _kept(judgments: Judgments, column: str, is_of_one_side: bool) -> NDArray[np.float64]:
    """A column of a over b, as the rows of the source have it."""
    if is_of_one_side:
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
    parts = zip(first.split("_"), second.split("_"), strict=True)
    return "_".join(one for one, other in parts if one == other)


# -- shrunken estimates and flags --------------------------------------------------------------------------------


def shrunken(design: Design, leans: Leans, shrink: str) -> list[Shrunk]:
    """What is believed of each attribute's deviations, under the prior that was asked for.

    With the conditional likelihood the leans are integrated out of the votes themselves, which holds with few votes
    per annotator too. Otherwise, and where anchors or the design fix the level, the estimates are taken as normal
    with their standard errors, and an infinite one as that of its number of votes. Intervals always come from the
    normal prior, since those of the free one are too short.

    Where hardly anybody has more than a vote or two on contested comparisons, the likelihood of the spread rises
    without end: the spread is then not known (tau is NaN), and nothing can be shrunk to it.
    """
    integrated: Sequence[Shrunk | None] = [None] * len(design.attributes)
    anchored = (leans.status == "anchored").any()
    if leans.quality == "conditional" and not anchored and not leans.absolute.all():
        integrated = shrink_votes(*design.votes)
    found = []
    for j, from_votes in enumerate(integrated):
        finite = _estimates(leans, j, leans.finite_deviation, leans.finite_se)
        spread = from_votes
        if spread is None or leans.absolute[j]:
            spread = shrink_normal(*finite)
        if spread.tau > WIDEST_SPREAD or spread.tau_high == np.inf:
            spread = replace(spread, tau=np.nan, tau_low=0.0, tau_high=np.inf, reliability=np.nan)
        elif shrink == "npmle":
            ends = {name: getattr(spread, name) for name in ("post_sd", "post_low", "post_high")}
            spread = replace(shrink_npmle(*finite), **ends)
        found.append(spread)
    return found


def _estimates(leans: Leans, j: int, deviation: NDArray, se: NDArray) -> tuple[NDArray, NDArray]:
    """One attribute's column of deviations and standard errors.

    Anchored annotators take no part, since their lean is given; nor does one who is compared with nobody, whose
    deviation from themselves is 0 by definition.
    """
    given = (leans.status[:, j] == "anchored") | (leans.se[:, j] == 0)
    return np.where(given, np.nan, deviation[:, j]), np.where(given, np.nan, se[:, j])


def annotator_rows(
    j: int, design: Design, leans: Leans, spread: Shrunk, options: AuditOptions
) -> pd.DataFrame:
    """The rows of ``annotators.parquet`` on attribute j, without agreement: row k is annotator k.

    Shrunken estimates are NaN for who has no informative vote: all that is known of them is the pool. Only who has
    enough informative votes can be flagged. ``odds_ratio`` is of the shrunken deviation, or of the deviation itself
    where nothing was shrunk.
    """
    n_informative, status = leans.n_informative[:, j], leans.status[:, j].astype(str)
    believed = (n_informative > 0) & (spread.basis != "prior") & (status != "anchored")
    believed &= (options.shrink != "none") & np.isfinite(spread.tau)
    shrunk = np.where(believed, spread.shrunk, np.nan)
    prob_exceeds = np.where(believed, probability_exceeds(spread, options.flag.rho), np.nan)
    q_value = benjamini_hochberg(*_estimates(leans, j, leans.deviation, leans.se))
    enough, fdr = n_informative >= options.min_informative, options.flag.fdr
    if options.flag.rule == "bh":
        flag = enough & (q_value <= fdr)
    else:
        flag = bayesian_fdr(np.where(enough, prob_exceeds, np.nan), fdr)
    deviation = leans.deviation[:, j]
    with np.errstate(over="ignore"):
        odds_ratio = np.exp(np.where(np.isnan(shrunk), deviation, shrunk))
    return pd.DataFrame(
        {
            "annotator": design.annotators,
            "class": design.classes,
            "attribute": design.attributes[j],
            "component": leans.component[:, j],
            "n_judgments": design.n_votes,
            "n_cross": design.per_annotator(design.cross)[:, j],
            "n_informative": n_informative,
            "raw_rate": design.raw_rate()[:, j],
            "deviation": deviation,
            "se": leans.se[:, j],
            "ci_low": leans.ci_low[:, j],
            "ci_high": leans.ci_high[:, j],
            "shrunk": shrunk,
            "post_sd": np.where(believed, spread.post_sd, np.nan),
            "post_low": np.where(believed, spread.post_low, np.nan),
            "post_high": np.where(believed, spread.post_high, np.nan),
            "odds_ratio": odds_ratio,
            "q_value": q_value,
            "prob_exceeds": prob_exceeds,
            "flag": flag,
            "status": status,
        }
    )


# -- everything together -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class AuditedPeople:
    """The annotators of an audit.

    ``quality`` is the estimator and ``why`` the reason for it. For each attribute: ``spreads`` is what is believed of
    the pool, ``rows`` those of ``annotators.parquet``, ``classes`` the classes' offsets (empty with fewer than two),
    ``class_p`` and ``equal_leans_p`` the p-values of no difference between classes and between annotators (NaN where
    there was nothing to test). ``assignment`` is None where nobody knows who voted.
    """

    design: Design
    options: AuditOptions
    quality: str
    why: str
    leans: Leans
    spreads: list[Shrunk]
    rows: list[pd.DataFrame]
    classes: list[list[dict[str, Any]]]
    class_p: list[float]
    equal_leans_p: list[float]
    anchored: NDArray[np.bool_]
    assignment: AssignmentTest | None

    def pool(self) -> dict[str, Any]:
        """The part ``pool`` of audit.json: an entry for each attribute."""
        return {name: self._pool_entry(j) for j, name in enumerate(self.design.attributes)}

    def checks(self) -> dict[str, Any]:
        """The part ``checks`` of audit.json."""
        design, leans, test = self.design, self.leans, self.assignment
        measures = ("gradient_norm", "n_newton", "n_cg", "log_likelihood", "u_scale", "quality_sd")
        # the theorem's: annotators who judged one cross-group comparison, whatever the votes
        theorem = annotator_components(design.stratum, design.annotator, design.cross, len(design.annotators))
        return {
            "assignment": test
            and {
                "p_value": test.p_value,
                "by_attribute": dict(zip(design.attributes, test.by_attribute, strict=True)),
                "statistic": test.statistic,
                "n_permutations": test.n_permutations,
            },
            "estimator": {"quality": self.quality, "why": self.why}
            | {name: getattr(leans, name) for name in measures},
            "components": {"theorem": self._graph(theorem), "informative": self._graph(leans.component)},
            "anchors": self._anchors() if self.anchored.any() else None,
        }

    def table(self, agreement: pd.DataFrame) -> pd.DataFrame:
        """The annotators with a vote, by id, and the attributes of each in the order in which they were declared.

        Row k of ``agreement`` is annotator k. No row where nobody knows who voted.
        """
        rows = [part.join(agreement) for part in self.rows]
        table = pd.concat(rows).sort_values("annotator", kind="stable", ignore_index=True)
        return table[self.design.has_identities & (table["n_judgments"] > 0)].reset_index(drop=True)

    def _pool_entry(self, j: int) -> dict[str, Any]:
        design, spread, leans = self.design, self.spreads[j], self.leans
        status = self.rows[j]["status"][design.n_votes > 0]
        n_groups = len(np.unique(leans.component[leans.component[:, j] >= 0, j]))
        n_cross, class_p = design.cross[:, j].sum(), self.class_p[j] if self.classes[j] else None
        advice = recommend(spread, self.equal_leans_p[j], class_p)
        return {
            "tau": spread.tau,
            "tau_ci": [None, None] if np.isnan(spread.tau) else [spread.tau_low, spread.tau_high],
            "reliability": spread.reliability,
            "components": n_groups,
            "is_divided": n_groups > 1,
            "informative_share": design.informative[:, j].sum() / n_cross if n_cross else None,
            "n_estimated": (status == "ok").sum(),
            "n_insufficient": (status == "insufficient").sum(),
            "n_no_information": status.isin(["no_cross", "no_information"]).sum(),
            "n_separated": status.str.startswith("separated").sum(),
            "n_flagged": self.rows[j]["flag"].sum(),
            "equal_leans_p": self.equal_leans_p[j],
            "classes": self.classes[j],
            "class_test_p": class_p,
            "recommendation": advice.variant,
            "recommendation_reason": advice.reason,
            **self._level(j),
            "absolute": leans.absolute[j],
            "absolute_why": self._why(j),
        }

    def _level(self, j: int) -> dict[str, Any]:
        """The mean lean of those who have one, for these annotators on other comparisons, and for others like them."""
        leans = self.leans
        if not leans.absolute[j]:
            return {"level": None, "level_ci": None, "level_ci_beyond": None, "n_level": 0}
        n, level = int((leans.se[:, j] > 0).sum()), leans.level[j]
        beyond = stdtrit(n - 1, 0.975) * leans.level_se_beyond[j] if n > 1 else np.nan
        reaches = _Z * leans.level_se[j], beyond
        ends = [[level - reach, level + reach] if np.isfinite(reach) else None for reach in reaches]
        return {"level": level, "level_ci": ends[0], "level_ci_beyond": ends[1], "n_level": n}

    def _why(self, j: int) -> str:
        leans, n_anchors = self.leans, int(self.anchored.sum())
        if leans.absolute[j]:
            anchored = (leans.status[:, j] == "anchored").any()
            return ANCHORED.format(n=counted(n_anchors, "annotator")) if anchored else VARIES
        if not (leans.component[:, j] >= 0).any():
            return NO_INFORMATION
        return OUT_OF_REACH if n_anchors else NOT_IDENTIFIED

    def _graph(self, labels: NDArray[np.intp]) -> dict[str, Any]:
        """Number and sizes of each attribute's components, from the largest down, and who stands outside of all."""
        graph = {}
        for name, label in zip(self.design.attributes, labels[self.design.n_votes > 0].T, strict=True):
            sizes = np.sort(np.unique(label[label >= 0], return_counts=True)[1])[::-1]
            graph[name] = {"n": len(sizes), "sizes": sizes[:SIZES_SHOWN], "outside": (label < 0).sum()}
        return graph

    def _anchors(self) -> dict[str, Any]:
        """How many cross-group judgments anchors cast, and whether anchors differ: who leans nowhere leans alike."""
        design, anchored = self.design, self.anchored
        cast = anchored[design.annotator]
        comparison, sign, annotator, delta = (each[cast] for each in design.votes[:4])
        leans = fit_conditional(comparison, sign, annotator, delta, len(anchored))
        equal_p = equal_leans_test(comparison, sign, annotator, delta, leans)
        n_cross = design.cross[cast].sum(axis=0)
        return {
            "n": anchored.sum(),
            "class": self.options.anchor_class,
            "annotators": sorted(design.annotators[anchored]),
            "n_cross": dict(zip(design.attributes, n_cross, strict=True)),
            "equal_leans_p": dict(zip(design.attributes, equal_p.tolist(), strict=True)),
        }


def people_of(judgments: Judgments, design: Design, options: AuditOptions) -> AuditedPeople:
    """Estimate the annotators' leans, and test what the estimate rests on.

    Classes are compared by the conditional likelihood, whatever estimator the annotators' own leans come from.
    """
    anchored = anchored_annotators(design, options)
    assignment = assignment_test(*design.votes[:4]) if design.has_identities else None
    quality, why = choose_quality(design, options, assignment.p_value if assignment else None)
    leans = fit(quality, design, judgments, anchored, options)
    spreads = shrunken(design, leans, options.shrink)
    attributes, labels = range(len(design.attributes)), _labels(design)
    classes: list[list[dict[str, Any]]] = [[] for _ in attributes]
    class_p = [np.nan] * len(attributes)
    if len(labels) > 1:
        number = {label: i for i, label in enumerate(labels)}
        of = np.array([number.get(label, -1) for label in design.classes], dtype=np.int64)
        found = class_offsets(*design.votes[:4], of)
        shown = ("n", "offset", "ci_low", "ci_high")
        classes = [
            [{"class": label} | {name: getattr(found, name)[i, j] for name in shown} for i, label in enumerate(labels)]
            for j in attributes
        ]  # fmt: skip
        class_p = found.p_value.tolist()
    return AuditedPeople(
        design=design,
        options=options,
        quality=quality,
        why=why,
        leans=leans,
        spreads=spreads,
        rows=[annotator_rows(j, design, leans, spread, options) for j, spread in enumerate(spreads)],
        classes=classes,
        class_p=class_p,
        equal_leans_p=equal_leans_test(*design.votes[:4], leans).tolist(),
        anchored=anchored,
        assignment=assignment,
    )
