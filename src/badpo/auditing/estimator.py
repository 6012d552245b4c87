"""Which estimator an audit uses, and why."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from badpo.auditing.design import Design
from badpo.auditing.options import Options
from badpo.data.carried import VOTE_COLUMNS
from badpo.data.importers.columns import side_pairs
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError, did_you_mean
from badpo.estimation.leans import Leans

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
        from badpo.estimation.conditional import fit_conditional

        return fit_conditional(*design.votes, anchored=anchored, min_informative=least)
    if choice.quality == "random":
        from badpo.estimation.random_effects import fit_random

        return fit_random(*design.votes, anchored=anchored, min_informative=least)
    if choice.quality == "joint":
        from badpo.estimation.joint import fit_joint

        return fit_joint(*design.votes, anchored=anchored, min_informative=least)
    from badpo.estimation.fixed import fit_fixed

    assert options.quality_column is not None
    quality = quality_of(judgments, options.quality_column)
    _, first = np.unique(design.stratum, return_index=True)
    quality = quality[design.comparison[first]]
    return fit_fixed(*design.votes, quality, anchored=anchored, min_informative=least)
