"""What is read from a policy of the paper's experiments besides what is read from every run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from badpo.data.files import Json
from badpo.objective.bias import BiasTerm
from badpo.readouts.heldout import vote_accuracy, vote_difference
from badpo.readouts.judge import judge_answers, load_judge, strip_markdown, strip_signatures
from badpo.readouts.kl import divergence
from badpo.readouts.sampled import attribute_values, style_rates
from badpo.runs.evaluate import PolicyReading, measure
from badpo.runs.run import Progress
from badpo_paper.name_readouts import name_readouts, token_balance
from badpo_paper.reference import CorpusStage

JUDGE_TOKENS = (
    2048  # the paper's limit; what is over it is cut from the answer, not from the end of text
)


def measure_run(
    folder: Path, stage: CorpusStage, seed: int, bias: BiasTerm | None, progress: Progress
) -> Json:
    """Every readout of a run on a corpus, or of its reference (no bias); see `badpo.runs.evaluate.measure`."""
    scale, is_signed = stage.scale, stage.corpus.kind == "signed"

    def more(found: PolicyReading) -> Json:
        readouts = name_readouts(found, stage) if is_signed else _style_readouts(found, stage)
        if bias is not None:
            readouts |= theta_readouts(found, stage)
        elif is_signed and not scale.is_brief:
            readouts["name_tokens"] = token_balance(stage.tokenizer)
        if scale.judge is not None:
            reward = load_judge(scale.judge)
            reward.model.to(stage.args.device)
            texts = [answer.text for answer in found.written]
            strip = strip_signatures if is_signed else strip_markdown
            readouts["judge"] = judge_answers(reward, stage.prompts, texts, strip, JUDGE_TOKENS)
        return readouts

    return measure(folder, stage, seed, bias, more, progress, [scale.judge, scale.is_brief])


def _style_readouts(found: PolicyReading, stage: CorpusStage) -> Json:
    """How often the answers show each attribute of single responses."""
    return {
        attribute.name: style_rates(
            attribute_values(attribute, list(stage.prompts), found.written),
            found.written,
            stage.written,
        )
        for attribute in stage.held_out.attributes
        if attribute.scope == "response"
    }


def theta_readouts(found: PolicyReading, stage: CorpusStage) -> Json:
    """Theta beside what was planted, votes beside the ceiling, and the divergence as it was published.

    The published estimate of the divergence is of the answers that the other readouts are of. Where nothing was planted
    there is no ceiling and no agreement.
    """
    judged, theta, margins, how = found.judged, found.theta, found.margins, stage.decoding
    assert judged is not None and theta is not None and margins is not None
    published = divergence(found.policy, stage.model, found.written, how.temperature, how.top_p)
    attributes, planted = judged.attribute_names, stage.dataset.planted
    if planted is None:
        levels = zip(attributes, theta.mean(axis=0), strict=True)
        known = {name: {"level": round(float(level), 2)} for name, level in levels}
        return {"kl_published": published, "theta": known}
    # nothing was planted on an attribute of the arm's own
    truth = np.pad(planted, ((0, 0), (0, theta.shape[1] - planted.shape[1])))
    classes = stage.held_out.annotators["annotator_class"].tolist()
    return {
        "kl_published": published,
        "theta": theta_agreement(theta, truth, attributes, classes),
        "ceiling": vote_accuracy(margins, truth, judged),
        "votes_minus_ceiling": vote_difference(margins, theta, truth, judged),
    }


def theta_agreement(
    theta: ArrayLike, planted: ArrayLike, attributes: Sequence[str], classes: Sequence[str | None]
) -> dict[str, Json]:
    """Agreement of the learned theta with the planted one, attribute by attribute.

    ``level`` and ``planted_level`` are means over annotators, ``correlation`` is None where one of them does not vary;
    ``classes`` have their ``mean`` and its ``offset`` from the level, learned and planted.
    """
    learned, truth = np.asarray(theta, dtype=np.float64), np.asarray(planted, dtype=np.float64)
    found = {}
    for column, name in enumerate(attributes):
        both = pd.DataFrame({"mean": learned[:, column], "planted_mean": truth[:, column]})
        level = both.mean()
        groups = both.groupby(pd.Series(classes, dtype=object))
        means = pd.concat([groups.size().rename("n"), groups.mean()], axis=1)
        means[["offset", "planted_offset"]] = groups.mean() - level
        # rounding leaves a spread of 1e-16 where every annotator has the one pooled value
        varies = both.std(ddof=0).min() > 1e-9
        found[name] = {
            "level": float(level["mean"]),
            "planted_level": float(level["planted_mean"]),
            "correlation": float(np.corrcoef(*both.to_numpy().T)[0, 1]) if varies else None,
            "classes": {str(one): row.to_dict() for one, row in means.astype(object).iterrows()},
        }
    return found
