"""Gold annotators: known to lean nowhere, so that their votes fix the level that the other votes leave open."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from badpo.auditing.anchors import named_annotators
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError, Problem, counted
from badpo.estimation.conditional import fit_conditional
from badpo.estimation.shrinkage import finite_estimates, shrink_normal

KEY = "gold_annotators"


def gold_annotators(judgments: Judgments, named: Sequence[object]) -> NDArray[np.bool_]:
    """Who is gold, of shape (n_annotators,).

    Parameters
    ----------
    judgments : Judgments
        What is trained on.
    named : sequence
        Ids as the table has them, or pseudonyms; empty for no one.

    Raises
    ------
    ConfigError
        A name that is not in the table, a table without annotators, everyone named, or an attribute that differs in
        none of their judgments: nothing would then fix its level.
    """
    if not len(named):
        return np.zeros(judgments.n_annotators, dtype=bool)
    if not judgments.has_identities:
        raise ConfigError(
            f"{KEY}: the table has no annotator column, so no one in it can be named. Map it with "
            "columns: {annotator: NAME}"
        )
    gold = named_annotators(judgments.annotators["pseudonym"].to_numpy(), named, KEY)
    if gold.all():
        raise ConfigError(
            f"{KEY}: all {counted(len(gold), 'annotator')} are named, so no bias is left to learn. If no one leans, "
            "train plain DPO with bias: none"
        )
    n_cross = gold_cross_votes(judgments, gold)
    without = [name for name, n in n_cross.items() if n == 0]
    if without:
        raise ConfigError(
            f"{KEY}: the {counted(int(gold.sum()), 'annotator')} named cast no vote on responses that differ on "
            f"{', '.join(without)}, so their votes do not fix its level. Name others, let them judge such "
            "comparisons, or leave the attribute to a run without gold annotators"
        )
    return gold


def gold_cross_votes(judgments: Judgments, gold: NDArray[np.bool_]) -> dict[str, int]:
    """Judgments of the gold annotators whose responses differ, by attribute: what the level rests on."""
    theirs = gold[judgments.votes["annotator"].to_numpy()]
    n_cross = judgments.cross_group()[theirs].sum(axis=0)
    return dict(zip(judgments.attribute_names, n_cross.tolist(), strict=True))


def gold_findings(judgments: Judgments, gold: NDArray[np.bool_]) -> list[Problem]:
    """A warning (W153) for gold annotators who never saw a declared attribute differ: they fix no level."""
    annotator = judgments.votes["annotator"].to_numpy()
    saw = np.bincount(annotator[judgments.cross_group().any(axis=1)], minlength=judgments.n_annotators) > 0
    idle = np.flatnonzero(gold & ~saw)
    if not len(idle):
        return []
    pseudonyms = judgments.annotators["pseudonym"].to_numpy()[idle]
    return [
        Problem(
            "W153",
            f"{counted(len(idle), 'gold annotator')} cast no vote on responses that differ on a declared attribute "
            f"({', '.join(pseudonyms[:5])}{', ...' if len(idle) > 5 else ''})",
            KEY,
            "nothing, if others did; the level rests on those alone",
            "warning",
            len(idle),
        )
    ]


def leans_above_gold(judgments: Judgments, gold: NDArray[np.bool_]) -> NDArray[np.float64]:
    """How everyone leans when the gold annotators do not: from the votes alone, before anything is trained.

    The leans of the conditional estimator with the gold annotators anchored
    (`badpo.estimation.conditional.fit_conditional`), shrunk toward their mean as the audit does.

    Returns
    -------
    array of shape (n_annotators, n_attributes)
        In log-odds; 0 for the gold annotators.

    Raises
    ------
    ConfigError
        The votes do not tie the gold annotators to the others: no comparison was judged by both in a way that tells.
    """
    sign, annotator = (judgments.votes[c].to_numpy() for c in ("sign", "annotator"))
    leans = fit_conditional(
        judgments.strata(), sign, annotator, judgments.delta, judgments.n_annotators, anchored=gold
    )
    found = np.zeros_like(leans.deviation)
    for i, name in enumerate(judgments.attribute_names):
        value = leans.deviation[~gold, i]
        if not leans.absolute[i] or not np.isfinite(value).any():
            raise ConfigError(
                f"{KEY}: on {name} no comparison ties them to the others, so warm_start: offline has no level to start "
                "at. Use warm_start: zero, or let them judge the same comparisons"
            )
        estimates = finite_estimates(value, leans.se[~gold, i], leans.n_informative[~gold, i])
        found[~gold, i] = shrink_normal(*estimates).shrunk
    return found
