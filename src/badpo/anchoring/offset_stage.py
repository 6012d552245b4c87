"""The offset stage: a policy is taught a tilt on its own answers, with itself as the reference and no votes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from numpy.typing import ArrayLike
from transformers import PrinterCallback

from badpo.anchoring.differing_parts import differing_parts
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
        Pairs in a step, each in both directions.
    learning_rate, warmup
        Peak rate, and the share of the steps in which it rises; it falls as a cosine.
    encoding, max_length, max_prompt_length
        As the source was trained.
    """

    beta: float = 0.1
    steps: int = 400
    batch_size: int = 32
    learning_rate: float = 5e-7
    warmup: float = 0.1
    encoding: str = "trl"
    max_length: int | None = 1024
    max_prompt_length: int | None = None


def fixed_offset(pairs: Judgments, shift: ArrayLike, beta: float) -> BiasTerm:
    r"""The offset b = -beta s that teaches a shift s, as a bias term with nothing to learn.

    Parameters
    ----------
    pairs : Judgments
    shift : array of shape (n_attributes,)
        In log-odds.
    beta : float

    Returns
    -------
    BiasTerm

    References
    ----------
    BA-DPO, Appendix `app:anchor_target`: "a fixed offset b = -c(t) in the logit".
    """
    offset = -beta * torch.as_tensor(shift, dtype=torch.float32)
    return BiasTerm(pairs.attribute_names, pairs.annotators["pseudonym"].tolist(), (), fixed=offset)


def train_offset(
    source,
    tokenizer,
    pairs: Judgments,
    shift: ArrayLike,
    settings: StageSettings,
    seed: int,
    folder: Path,
    cache: Path | None = None,
    callbacks: Sequence[Any] = (),
):
    """Teach a policy a shift, and write it to ``folder/model``.

    Parameters
    ----------
    source : causal language model
        Trained in place; its weights as they are given are the reference.
    tokenizer : PreTrainedTokenizerBase
    pairs : Judgments
        From `offset_pairs.offset_pairs`.
    shift : array of shape (n_attributes,)
        To ask for, in log-odds. What a stage achieves of it falls short by what its steps leave; see
        `calibration`.
    settings : StageSettings
    seed : int
        Of the order of the pairs.
    folder : Path
        A run folder.
    cache : Path or None
        Where the source's log-probabilities are kept, so that further rounds do not compute them again; None is the
        user's cache.
    callbacks : sequence of TrainerCallback

    Returns
    -------
    The policy.
    """
    trainer = BADPOTrainer(
        source,
        args=stage_arguments(settings, seed, folder, cache),
        train_dataset=pairs,
        processing_class=tokenizer,
        bias=fixed_offset(pairs, shift, settings.beta),
        callbacks=list(callbacks),
    )
    trainer.remove_callback(PrinterCallback)
    trainer.encoded = differing_parts(trainer.encoded, tokenizer)
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
