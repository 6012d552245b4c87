"""Annotators whose votes bound theta on one side only: training moves theirs for as long as it lasts."""

from __future__ import annotations

import numpy as np

from badpo.data.judgments import Judgments
from badpo.objective.bias import BiasTerm
from badpo.theory.identifiability import separated_annotators


def separated_by_attribute(judgments: Judgments, bias: BiasTerm) -> dict[str, int]:
    """How many annotators have a theta without a bounded estimate, for each attribute on which any has.

    With a deviation of one's own these are the annotators who always, or never, chose the side with more of the
    attribute. Without one it is everybody, where all votes of the pool went one way; nobody, where the bias has no
    learned part. Who is held at zero does not count.
    """
    if not bias.parts:
        return {}
    free = bias.mask.cpu().numpy() > 0
    annotator, sign = (judgments.votes[name].to_numpy() for name in ("annotator", "sign"))
    counts = free[annotator]
    delta = np.where(judgments.cross_group(), judgments.delta, 0.0)[counts]
    own = "deviation" in bias.parts
    of_whom = annotator[counts] if own else np.zeros(counts.sum(), dtype=np.int64)
    one_way = separated_annotators(of_whom, sign[counts], delta, len(free) if own else 1) != 0
    n_people = (free[:, None] & one_way).sum(axis=0).tolist()
    return {name: n for name, n in zip(judgments.attribute_names, n_people, strict=True) if n}
