"""Annotators whose votes bound theta on one side only: training moves theirs for as long as it lasts."""

from __future__ import annotations

import numpy as np

from badpo.data.judgments import Judgments
from badpo.data.problems import Problem, counted
from badpo.objective.bias import BiasTerm
from badpo.theory.identifiability import separated_annotators

N_NAMED = 5


def separated_by_attribute(judgments: Judgments, bias: BiasTerm) -> dict[str, list[str]]:
    """Pseudonyms of the annotators whose theta has no bounded estimate, for each attribute that has any.

    With a deviation of one's own these are the annotators who always, or never, chose the side with more of the
    attribute. Without one it is everybody, where all votes of the pool went one way; nobody, where the bias has no
    learned part. Who is held at zero does not count.
    """
    if not bias.parts:
        return {}
    pseudonyms = judgments.annotators["pseudonym"].to_numpy()
    free = bias.mask.cpu().numpy() > 0
    annotator, sign = (judgments.votes[name].to_numpy() for name in ("annotator", "sign"))
    counts = free[annotator]
    delta = np.where(judgments.cross_group(), judgments.delta, 0.0)[counts]
    own = "deviation" in bias.parts
    of_whom = annotator[counts] if own else np.zeros(counts.sum(), dtype=np.int64)
    one_way = separated_annotators(of_whom, sign[counts], delta, len(free) if own else 1) != 0
    found = {
        name: pseudonyms[free & column].tolist()
        for name, column in zip(judgments.attribute_names, one_way.T, strict=True)
    }
    return {name: people for name, people in found.items() if people}


def separated_findings(judgments: Judgments, bias: BiasTerm) -> list[Problem]:
    """A warning (W154) for each attribute on which someone's theta grows with the length of training.

    Examples
    --------
    >>> from badpo.attributes import Length
    >>> row = {"prompt": "Why?", "response_a": "It just is so.", "response_b": "So.", "annotator": "ann"}
    >>> votes = Judgments.read([row | {"winner": "a"}], attributes=[Length(ratio=1.5)])
    >>> bias = BiasTerm(["length"], votes.annotators["pseudonym"].tolist(), ["deviation"])
    >>> [(found.code, found.count) for found in separated_findings(votes, bias)]
    [('W154', 1)]
    """
    findings = []
    for name, people in separated_by_attribute(judgments, bias).items():
        shown = ", ".join(people[:N_NAMED]) + (", ..." if len(people) > N_NAMED else "")
        findings.append(
            Problem(
                "W154",
                f"{counted(len(people), 'annotator')} of {len(bias.annotators):,} always sided one way: no theta fits "
                "their votes best, and training moves theirs for as long as it lasts",
                f'attribute "{name}": {shown}',
                "read such a theta as a direction, not as a size; the audit gives a bounded lean with its interval. "
                "Let them judge more pairs that differ, or use bias: pooled, where the others' votes bound it",
                "warning",
                len(people),
            )
        )
    return findings
