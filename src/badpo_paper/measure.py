"""What is read from a policy of the paper's experiments besides what is read from every run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from badpo.data.files import resealed
from badpo.objective.bias import BiasTerm
from badpo.readouts.heldout import vote_accuracy, vote_difference
from badpo.readouts.judge import judge_answers, load_judge, strip_markdown, strip_signatures
from badpo.readouts.kl import divergence
from badpo.readouts.sampled import attribute_values, json_number, style_rates
from badpo.runs.evaluate import PolicyReading, measure
from badpo.runs.run import Progress, kept_json
from badpo.training.checkpoints import write_json
from badpo_paper.name_readouts import name_readouts, name_tokens
from badpo_paper.settings import Scale
from badpo_paper.stages import CorpusStage


@dataclass(frozen=True)
class ClassTheta:
    """Theta of one class of annotators on one attribute, learned and planted."""

    n: int
    mean: float
    planted_mean: float
    offset: float
    planted_offset: float


@dataclass(frozen=True)
class ThetaAgreement:
    """Learned theta on one attribute beside the planted one."""

    level: float
    planted_level: float
    correlation: float
    classes: dict[str, ClassTheta]

    def to_json(self) -> dict[str, Any]:
        """{"level", "planted_level", "correlation", "classes": {class: {...}}}; null where nothing is known."""
        return {
            "level": self.level,
            "planted_level": self.planted_level,
            "correlation": json_number(self.correlation),
            "classes": {name: dict(vars(found)) for name, found in self.classes.items()},
        }


def theta_agreement(
    theta: ArrayLike, planted: ArrayLike, attributes: Sequence[str], classes: Sequence[str | None]
) -> dict[str, ThetaAgreement]:
    """Agreement of the learned theta with the planted one, attribute by attribute."""
    learned, truth = np.asarray(theta, dtype=np.float64), np.asarray(planted, dtype=np.float64)
    if learned.shape != truth.shape or learned.shape != (len(classes), len(attributes)):
        raise ValueError(
            f"theta needs one row for each of {len(classes)} annotators and one column for each of {len(attributes)} "
            f"attributes; got {learned.shape} and {truth.shape}"
        )
    if not (np.isfinite(learned).all() and np.isfinite(truth).all()):
        raise ValueError("theta holds a number that is not finite")
    labels = np.array([name if isinstance(name, str) else "" for name in classes])
    return {
        name: _on_attribute(learned[:, column], truth[:, column], labels)
        for column, name in enumerate(attributes)
    }


def centered_offsets(offsets: Mapping[str, float], sizes: Mapping[str, int]) -> dict[str, float]:
    """Class offsets around their mean over annotators: the raw parameters hold a part of the level too."""
    mean = sum(offsets[name] * sizes[name] for name in offsets) / sum(sizes[name] for name in offsets)
    return {name: float(offset - mean) for name, offset in offsets.items()}


def _on_attribute(
    learned: NDArray[np.float64], truth: NDArray[np.float64], labels: NDArray[np.str_]
) -> ThetaAgreement:
    level, planted_level = float(learned.mean()), float(truth.mean())
    # rounding leaves a spread of 1e-16 where every annotator has the one pooled value
    varies = min(learned.std(), truth.std()) > 1e-9
    classes = {}
    for name in sorted(set(labels.tolist()) - {""}):
        members = labels == name
        mean, planted_mean = float(learned[members].mean()), float(truth[members].mean())
        classes[name] = ClassTheta(
            int(members.sum()), mean, planted_mean, mean - level, planted_mean - planted_level
        )
    return ThetaAgreement(
        level=level,
        planted_level=planted_level,
        correlation=float(np.corrcoef(learned, truth)[0, 1]) if varies else float("nan"),
        classes=classes,
    )


JUDGE_TOKENS = 2048  # the paper's limit; what is over it is cut from the answer, not from the end of text


def measure_run(
    folder: Path,
    stage: CorpusStage,
    seed: int,
    bias: BiasTerm | None,
    scale: Scale,
    progress: Progress,
) -> dict[str, Any]:
    """Every readout of a run on a corpus, or of its reference (no bias); see `badpo.runs.evaluate.measure`."""

    def more(found: PolicyReading) -> dict[str, Any]:
        is_signed = stage.corpus.kind == "signed"
        readouts = name_readouts(found, stage, scale.is_brief) if is_signed else _style_readouts(found, stage)
        if bias is not None:
            readouts |= theta_readouts(found, stage)
        elif is_signed and not scale.is_brief:
            readouts["name_tokens"] = name_tokens(stage.tokenizer)
        if scale.judge is not None:
            reward = load_judge(scale.judge)
            reward.model.to(stage.args.device)
            texts = [answer.text for answer in found.written]
            strip = strip_signatures if is_signed else strip_markdown
            readouts["judge"] = judge_answers(reward, stage.prompts, texts, strip, JUDGE_TOKENS)
        return readouts

    if bias is not None:
        write_planted(folder, stage)
    return measure(folder, stage, seed, bias, more, progress, [scale.judge, scale.is_brief])


def _style_readouts(found: PolicyReading, stage: CorpusStage) -> dict[str, Any]:
    """How often the answers show each attribute of single responses."""
    return {
        attribute.name: style_rates(
            attribute_values(attribute, list(stage.prompts), found.written), found.written, stage.written
        )
        for attribute in stage.held_out.attributes
        if attribute.scope == "response"
    }


def theta_readouts(found: PolicyReading, stage: CorpusStage) -> dict[str, Any]:
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
        return {"kl_published": published, "theta": level}
    classes = stage.held_out.annotators["annotator_class"].tolist()
    # nothing was planted on an attribute of the arm's own
    truth = np.pad(stage.planted, ((0, 0), (0, theta.shape[1] - stage.planted.shape[1])))
    agreement = theta_agreement(theta, truth, attributes, classes)
    return {
        "kl_published": published,
        "theta": {name: one.to_json() for name, one in agreement.items()},
        "ceiling": vote_accuracy(margins, truth, judged),
        "votes_minus_ceiling": vote_difference(margins, theta, truth, judged),
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
