"""The offset stage: a policy is taught a tilt on its own answers, with itself as the reference and no votes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike
from transformers import PrinterCallback

from badpo.anchoring.editors import Cell, CounterfactualEditor
from badpo.anchoring.kept_answers import KeptAnswer, divergence_from_source
from badpo.data.judgments import Judgments
from badpo.data.problems import DataError, Problem, counted
from badpo.objective.bias import BiasTerm
from badpo.training.checkpoints import whole_folder
from badpo.training.config import BADPOConfig
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

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """The loss of the pairs, and the divergence on as many answers."""
        pairs = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        batch = list(itertools.islice(self.answers, self.args.per_device_train_batch_size))
        divergence = divergence_from_source(model, self.source, batch)
        return pairs + self.args.beta**2 * divergence / self.args.gradient_accumulation_steps

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


FEWEST_ANSWERS = 50
ANSWER = "answer-"


@dataclass(frozen=True)
class OffsetPairs:
    """Pairs for training and pairs held out, split by answer.

    Attributes
    ----------
    train, held_out : Judgments
        A comparison is a pair; it has two votes, one in each direction, so that nothing is preferred.
    unedited : tuple of int
        Numbers of the answers that the editor could not use.
    n_answers : int
        All that were given.
    """

    train: Judgments
    held_out: Judgments
    unedited: tuple[int, ...]
    n_answers: int

    @staticmethod
    def number(prompt_id: str) -> int:
        """Number of the answer that a pair was made from."""
        return int(prompt_id.removeprefix(ANSWER))

    @property
    def n_edited(self) -> int:
        """Answers that the editor could use."""
        return self.n_answers - len(self.unedited)


def offset_pairs(
    prompts: Sequence[str],
    answers: Sequence[str],
    editor: CounterfactualEditor,
    seed: int,
    held_out: float = 0.1,
    fewest: int = FEWEST_ANSWERS,
) -> OffsetPairs:
    r"""Each usable answer in a cell drawn at random, beside itself with one attribute exchanged, for every attribute.

    With both directions of a pair, the loss of an offset b in the logit is

    .. math:: -\log \sigma(u + b) - \log \sigma(-u - b)

    with its minimum at the margin u = -b and at no other preference.

    Parameters
    ----------
    prompts, answers : sequences of str
        A policy's own answers.
    editor : CounterfactualEditor
    seed : int
        Of the cells, of what an edit leaves open, and of the split.
    held_out : float
        Share of the usable answers that is held out with all their pairs.
    fewest : int
        Usable answers without which there is no stage.

    Returns
    -------
    OffsetPairs

    Raises
    ------
    DataError
        Fewer usable answers than ``fewest`` (E138), which says how many.

    References
    ----------
    BA-DPO, Appendix `app:anchor_experiment`, paragraph "Setting".

    Examples
    --------
    >>> from badpo.anchoring.editors import WordSwap
    >>> made = offset_pairs(["Why?"] * 3, ["It is grey.", "So.", "It is gray."],
    ...     WordSwap("british", [("gray", "grey")]), seed=0, held_out=0, fewest=2)
    >>> made.n_edited, made.unedited, made.train.n_comparisons, made.train.votes["sign"].tolist()
    (2, (1,), 2, [1, -1, 1, -1])
    """
    cells = [editor.cells(answer) for answer in answers]
    usable = [i for i, found in enumerate(cells) if len(found) > 1]
    if len(usable) < fewest:
        raise DataError([_too_few(len(usable), len(answers), fewest, editor)])
    draw = random.Random(seed)
    rows = [
        {
            "comparison_id": f"{ANSWER}{i:05d}-{number}",
            "prompt_id": f"{ANSWER}{i:05d}",
            "prompt": prompts[i],
            "response_a": text,
            "response_b": other,
            "winner": winner,
        }
        for i in usable
        for number, (text, other) in enumerate(_counterfactuals(answers[i], cells[i], editor, draw))
        for winner in ("a", "b")
    ]
    judgments = Judgments.read(pd.DataFrame(rows), attributes=editor.attributes)
    unedited = tuple(i for i, found in enumerate(cells) if len(found) < 2)
    return OffsetPairs(*judgments.split(held_out, seed), unedited, len(answers))


def _counterfactuals(
    answer: str, cells: Sequence[Cell], editor: CounterfactualEditor, draw: random.Random
) -> list[tuple[str, str]]:
    cell = draw.choice(cells)
    text = editor.edit(answer, cell, draw)
    flipped = (
        tuple(1 - value if j == i else value for j, value in enumerate(cell)) for i in range(len(cell))
    )
    others = [editor.edit(answer, other, draw) for other in flipped if other in cells]
    return [(text, other) for other in others if other != text]


def _too_few(n_usable: int, n_answers: int, fewest: int, editor: CounterfactualEditor) -> Problem:
    names = ", ".join(attribute.name for attribute in editor.attributes)
    return Problem(
        "E138",
        f"{counted(n_usable, 'answer')} of {n_answers:,} can be edited for {names}; the stage needs {fewest} or more",
        "the policy's own answers",
        "give more prompts that ask for it (a signature must be asked for), or allow longer answers so that they "
        "are not cut before it",
        "error",
        n_usable,
    )
