"""What is read from a policy of the paper's experiments besides what is read from every run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from badpo.data.files import resealed
from badpo.experiments.evaluate import Measured, kept_json, measure
from badpo.experiments.name_readouts import name_readouts, name_tokens
from badpo.experiments.run import Progress
from badpo.experiments.suite_stages import CorpusStage
from badpo.objective.bias import BiasTerm
from badpo.readouts.judge import judge_answers, load_judge
from badpo.readouts.policies import divergence
from badpo.readouts.sampled import attribute_values
from badpo.readouts.strips import strip_markdown, strip_signatures
from badpo.readouts.style_rates import style_rates
from badpo.readouts.theta import theta_agreement
from badpo.readouts.votes import vote_accuracy, vote_difference
from badpo.training.run_folder import write_json

JUDGE_TOKENS = 2048  # the paper's limit; what is over it is cut from the answer, not from the end of text


def measure_run(
    folder: Path,
    stage: CorpusStage,
    seed: int,
    bias: BiasTerm | None,
    judge: str | None,
    progress: Progress,
) -> dict[str, Any]:
    """Every readout of a run on a corpus, or of its reference (no bias); see `badpo.experiments.evaluate.measure`."""

    def more(found: Measured) -> dict[str, Any]:
        is_signed = stage.corpus.kind == "signed"
        readouts = name_readouts(found, stage) if is_signed else _style_readouts(found, stage)
        if bias is not None:
            readouts |= theta_readouts(found, stage)
        elif is_signed:
            readouts["name_tokens"] = name_tokens(stage.tokenizer)
        if judge is not None:
            reward = load_judge(judge)
            reward.model.to(stage.args.device)
            texts = [answer.text for answer in found.written]
            strip = strip_signatures if is_signed else strip_markdown
            scored = judge_answers(reward, stage.prompts, texts, strip, max_length=JUDGE_TOKENS)
            readouts["judge"] = scored.to_json()
        return readouts

    if bias is not None:
        write_planted(folder, stage)
    return measure(folder, stage, seed, bias, more, progress, [judge])


def _style_readouts(found: Measured, stage: CorpusStage) -> dict[str, Any]:
    """How often the answers show each attribute of single responses."""
    return {
        attribute.name: style_rates(
            attribute_values(attribute, list(stage.prompts), found.written), found.written, stage.written
        ).to_json()
        for attribute in stage.held_out.attributes
        if attribute.scope == "response"
    }


def theta_readouts(found: Measured, stage: CorpusStage) -> dict[str, Any]:
    """Theta beside what was planted, votes beside the ceiling, and the divergence as it was published.

    The published estimate of the divergence is of the answers that the other readouts are of. Where nothing was planted
    there is no ceiling and no agreement.
    """
    judged, theta, margins, how = found.judged, found.theta, found.margins, stage.decoding
    assert judged is not None and theta is not None and margins is not None
    published = divergence(found.policy, stage.model, found.written, how.temperature, how.top_p)
    attributes = judged.attribute_names
    level = {name: {"level": round(float(theta[:, i].mean()), 2)} for i, name in enumerate(attributes)}
    if stage.planted is None:
        return {"kl_published": published.to_json(), "theta": level}
    classes = stage.held_out.annotators["annotator_class"].tolist()
    # nothing was planted on an attribute of the arm's own
    truth = np.pad(stage.planted, ((0, 0), (0, theta.shape[1] - stage.planted.shape[1])))
    agreement = theta_agreement(theta, truth, attributes, classes)
    return {
        "kl_published": published.to_json(),
        "theta": {name: one.to_json() for name, one in agreement.items()},
        "ceiling": vote_accuracy(margins, truth, judged).to_json(),
        "votes_minus_ceiling": vote_difference(margins, theta, truth, judged).to_json(),
    }


def write_planted(folder: Path, stage: CorpusStage) -> None:
    """Write the planted theta by pseudonym, for the report's scatter; nothing where none was planted."""
    if stage.planted is None:
        return
    annotators = stage.train.annotators
    rows = zip(annotators["pseudonym"], annotators["annotator_class"], stage.planted.tolist(), strict=True)
    told = {
        "attributes": list(stage.train.attribute_names),
        "annotators": [{"pseudonym": p, "annotator_class": c, "theta": theta} for p, c, theta in rows],
    }
    if kept_json(folder / "planted.json") != told:
        with resealed(folder, ["planted.json"]):
            write_json(folder / "planted.json", told)
