"""The offset stage: a policy is taught a tilt on its own answers, with itself as the reference and no votes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from transformers import PrinterCallback

from badpo.anchoring.kept_answers import KeptAnswer, divergence_from_source
from badpo.data.judgments import Judgments
from badpo.objective.bias import BiasTerm
from badpo.training.config import BADPOConfig
from badpo.training.run_folder import whole_folder
from badpo.training.trainer import BADPOTrainer


@dataclass(frozen=True)
class StageSettings:
    """How an offset stage is trained; the source's own settings are a good choice of all but the steps.

    Attributes
    ----------
    beta : float
        Strength of the pull towards the source; a shift s is taught as a margin of beta s.
    steps : int
    batch_size : int
        Pairs in a step, each in both directions, and as many answers that are kept.
    learning_rate, warmup
        Peak rate, and the share of the steps in which it rises; it falls as a cosine.
    encoding, max_length, max_prompt_length
        As the source was trained.
    """

    beta: float = 0.1
    steps: int = 600
    batch_size: int = 8
    learning_rate: float = 5e-7
    warmup: float = 0.1
    encoding: str = "trl"
    max_length: int | None = 1024
    max_prompt_length: int | None = None


def fixed_offset(pairs: Judgments, shift: ArrayLike, beta: float) -> BiasTerm:
    """The offset b = -beta s that teaches a shift s, as a bias term with nothing to learn."""
    offset = -beta * torch.as_tensor(shift, dtype=torch.float32)
    return BiasTerm(pairs.attribute_names, pairs.annotators["pseudonym"].tolist(), (), fixed=offset)


class OffsetTrainer(BADPOTrainer):
    r"""Trains on pairs with a fixed offset, and keeps the policy at its shifted source on the source's own answers.

    .. math:: L = L_{\text{pairs}} + \beta^2 \, \mathrm{KL}(\pi_s \,\|\, \pi)

    The first term, the paper's, asks for a margin of beta s . dg on every pair. It says how far apart two versions of
    an answer are to be, and nothing about anything else, which a stage of many steps then moves: how likely the policy
    is to sign, to sign with a name at all, to end. The second says that: it asks for the policy pi_s, the source with
    its choice shifted. A margin is beta times a difference of log-probabilities; beta squared puts both on one scale.

    The two ask for the same where the source writes the same behind all names. Behind an edited name pi_s writes what
    the source does behind its own (`kept_answers.Behind`), so that the margin of pi_s on a pair of answers a and b is

    .. math:: \beta\,\bigl(s^\top \Delta g + \log \pi(r \mid b) - \log \pi(r \mid a)\bigr)

    with r what follows the names (given that they are complete) and pi the source: the correction is the difference of
    its log-probabilities, largest where it spoils the surname behind one of them. Training ends between the two. By how
    much the rate then misses what was asked for is measured, and absorbed, by the rounds of `calibration`.
    """

    def __init__(self, *args: Any, kept: Sequence[KeptAnswer], source: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.source = source.to(self.args.device).eval()
        self.answers = self._endlessly(kept)
        self.divergences: list[float] = []

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """The loss of the pairs, and the divergence on as many answers."""
        pairs = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        batch = list(itertools.islice(self.answers, self.args.per_device_train_batch_size))
        divergence = divergence_from_source(model, self.source, batch)
        self.divergences.append(divergence.item())
        return pairs + self.args.beta**2 * divergence / self.args.gradient_accumulation_steps

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add ``kl/source``: the mean divergence since the last log, in nats for an answer."""
        if self.divergences:
            logs["kl/source"] = sum(self.divergences) / len(self.divergences)
            self.divergences = []
        super().log(logs, start_time)

    def _endlessly(self, kept: Sequence[KeptAnswer]) -> Iterator[KeptAnswer]:
        rng = np.random.default_rng([self.args.seed, self.args.process_index])
        while True:
            yield from (kept[i] for i in rng.permutation(len(kept)))


def train_offset(
    policy,
    source,
    tokenizer,
    pairs: Judgments,
    kept: Sequence[KeptAnswer],
    shift: ArrayLike,
    settings: StageSettings,
    seed: int,
    folder: Path,
    cache: Path | None = None,
    callbacks: Sequence[Any] = (),
):
    """Teach a policy a shift, and write it to ``folder/model``."""
    trainer = OffsetTrainer(
        policy,
        args=stage_arguments(settings, seed, folder, cache),
        train_dataset=pairs,
        processing_class=tokenizer,
        bias=fixed_offset(pairs, shift, settings.beta),
        callbacks=list(callbacks),
        kept=kept,
        source=source,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    with whole_folder(folder / "model", trainer.is_world_process_zero()) as unfinished:
        trainer.save_model(str(unfinished))
    return trainer.model.eval()


def stage_arguments(settings: StageSettings, seed: int, folder: Path, cache: Path | None) -> BADPOConfig:
    """The trainer's arguments for an offset stage."""
    return BADPOConfig(
        output_dir=str(folder),
        bias="none",
        beta=settings.beta,
        encoding=settings.encoding,
        max_length=settings.max_length,
        max_prompt_length=settings.max_prompt_length,
        batching="comparisons",
        per_device_train_batch_size=settings.batch_size,
        max_steps=settings.steps,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=settings.warmup,
        gradient_checkpointing=False,
        reference_cache=None if cache is None else str(cache),
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=seed,
    )
