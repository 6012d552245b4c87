"""What else moved when a policy was anchored: each figure before and after, and the paired difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from badpo.anchoring.deviations import deviation_change, leans_beside
from badpo.anchoring.editors import CounterfactualEditor
from badpo.anchoring.rates import answer_rates
from badpo.data import attributes as declared
from badpo.data.judgments import Judgments
from badpo.data.numbering import numbered
from badpo.readouts.generation import Generation
from badpo.readouts.heldout import judgment_margins, judgment_prompts
from badpo.readouts.json_number import json_number
from badpo.readouts.judge import JudgeReadout
from badpo.readouts.kl import Divergence
from badpo.readouts.sampled import attribute_values, token_counts
from badpo.theory.summaries import Interval, cluster_difference, cluster_mean

# Attributes that nobody asked to move, looked at in every answer.
WATCHED = (
    declared.Markdown,
    declared.Lists,
    declared.Headers,
    declared.Bold,
    declared.Emoji,
    declared.Code,
    declared.Links,
    declared.Hedging,
    declared.Refusal,
    declared.FirstPerson,
)


@dataclass(frozen=True)
class Behavior:
    """What a policy does on the prompts that are reported on.

    Attributes
    ----------
    answers : list of Generation
        To each prompt as many as to every other, sampled with the same random numbers for every policy.
    kl_source, kl_reference : Divergence or None
        From the policy that was anchored, and from the reference where there is one; None where not measured.
    margins : array of shape (n_comparisons,) or None
        Implicit reward margin on held-out comparisons, against the reference.
    margins_from : {"measured", "closed form"}
        Where they come from: the policy's own log-probabilities, or the source's margins plus the tilt.
    """

    answers: Sequence[Generation]
    kl_source: Divergence | None = None
    kl_reference: Divergence | None = None
    margins: NDArray[np.float64] | None = None
    margins_from: Literal["measured", "closed form"] = "measured"


def moved(
    before: Behavior,
    after: Behavior,
    prompts: Sequence[str],
    editor: CounterfactualEditor,
    judgments: Judgments | None = None,
    judged: tuple[JudgeReadout, JudgeReadout] | None = None,
) -> dict:
    """Every readout of the source and of the anchored policy side by side."""
    texts = [[answer.text for answer in behavior.answers] for behavior in (before, after)]
    editable = [np.array([len(editor.cells(text)) > 1 for text in side], dtype=float) for side in texts]
    tokens = [token_counts(behavior.answers) for behavior in (before, after)]
    ended = [np.array([answer.ended for answer in b.answers], dtype=float) for b in (before, after)]
    return {
        "sampled": _sampled((before, after), prompts, editor),
        "editable": _paired(editable, prompts),
        "ended": _paired(ended, prompts),
        "tokens": {**_paired(tokens, prompts), "ratio": float(tokens[1].mean() / tokens[0].mean())},
        "kl_source": _divergence(after.kl_source),
        "kl_reference": {
            "before": _divergence(before.kl_reference),
            "after": _divergence(after.kl_reference),
        },
        "heldout": _heldout(before.margins, after.margins, judgments),
        "undeclared": _undeclared(before, after, prompts, editor),
        "deviations": _deviations(before.margins, after.margins, judgments),
        "heldout_from": None if after.margins is None else after.margins_from,
        "judge": None if judged is None else _judged(*judged, prompts),
    }


def tilted_margins(margins: ArrayLike, delta: ArrayLike, tilt: ArrayLike) -> NDArray[np.float64]:
    """Margins of the policy that is tilted in closed form: u + c (g_a - g_b)."""
    return np.asarray(margins, dtype=np.float64) + np.asarray(delta, dtype=np.float64) @ np.asarray(tilt)


def _sampled(sides: Sequence[Behavior], prompts: Sequence[str], editor: CounterfactualEditor) -> dict:
    numbers = numbered(prompts)[0]
    tables = [answer_rates(side.answers, editor, numbers.tolist()) for side in sides]
    before, after = ([_interval(found) for found in table.intervals()] for table in tables)
    return {
        attribute.name: {"before": before[i], "after": after[i]}
        for i, attribute in enumerate(editor.attributes)
    }


def _undeclared(
    before: Behavior, after: Behavior, prompts: Sequence[str], editor: CounterfactualEditor
) -> dict:
    anchored = {attribute.config["type"] for attribute in editor.attributes}
    watched = [attribute for make in WATCHED if (attribute := make()).config["type"] not in anchored]
    return {
        attribute.name: _paired(
            [attribute_values(attribute, prompts, side.answers) for side in (before, after)], prompts
        )
        for attribute in watched
    }


def _heldout(before: NDArray | None, after: NDArray | None, judgments: Judgments | None) -> dict | None:
    if before is None or after is None or judgments is None:
        return None
    correct = [(judgment_margins(margins, judgments) > 0).astype(np.float64) for margins in (before, after)]
    cross = judgments.cross_group().any(axis=1)
    prompts = judgment_prompts(judgments)
    change = correct[1] - correct[0]
    gaps = [cluster_difference(side, cross, prompts).estimate for side in correct]
    same = [cluster_mean(side[~cross], prompts[~cross]).estimate for side in correct]
    return {
        "same": _row(same[0], same[1], cluster_mean(change[~cross], prompts[~cross])),
        "gap": _row(gaps[0], gaps[1], cluster_difference(change, cross, prompts)),
    }


def _deviations(before: NDArray | None, after: NDArray | None, judgments: Judgments | None) -> dict | None:
    if before is None or after is None or judgments is None:
        return None
    change = deviation_change(leans_beside(before, judgments), leans_beside(after, judgments))
    return {name: json_number(value) for name, value in zip(judgments.attribute_names, change, strict=True)}


def _judged(before: JudgeReadout, after: JudgeReadout, prompts: Sequence[str]) -> dict:
    found = {"rm": _paired([before.raw.scores, after.raw.scores], prompts)}
    if before.stripped is not None and after.stripped is not None:
        found["rm_minus"] = _paired([before.stripped.scores, after.stripped.scores], prompts)
    return found


def _paired(sides: Sequence[NDArray], prompts: Sequence[str]) -> dict:
    before, after = sides
    change = cluster_mean(after.astype(np.float64) - before, numbered(prompts)[0])
    return _row(before.mean(), after.mean(), change)


def _row(before: float, after: float, difference: Interval) -> dict:
    return {
        "before": json_number(before),
        "after": json_number(after),
        "difference": json_number(difference.estimate),
        "ci_low": json_number(difference.low),
        "ci_high": json_number(difference.high),
    }


def _interval(found: Interval) -> dict:
    return {
        "rate": json_number(found.estimate),
        "low": json_number(found.low),
        "high": json_number(found.high),
        "n": found.n,
    }


def _divergence(found: Divergence | None) -> dict | None:
    return None if found is None else found.to_json()
