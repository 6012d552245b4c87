"""The offset stage: train a policy on its own answers, without votes, until it has a given tilt.

The reference of an offset stage is the policy before the stage. The achieved shift is smaller than the intended shift;
how much smaller depends on the number of training steps. `calibrate` therefore repeats the stage: it trains with an
intended shift, measures the achieved shift, and fits a line through all rounds to choose the next intended shift.
"""

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from os.path import commonprefix
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    TrainerCallback,
)

from badpo.anchoring.attribute_rates import RateTable
from badpo.anchoring.editors import Cell, CounterfactualEditor
from badpo.data.judgments import Judgments
from badpo.data.problems import DataError, Problem, counted
from badpo.objective.bias import BiasTerm
from badpo.readouts.generation import TokenIds, pad_rows
from badpo.theory import Floats, Ints
from badpo.theory.tilt import fit_calibration, shift_to_targets
from badpo.training.batches import MicroBatch
from badpo.training.checkpoints import whole_folder
from badpo.training.config import BADPOConfig
from badpo.training.trainer import BADPOTrainer


@dataclass(frozen=True)
class StageSettings:
    """Training settings of an offset stage, named as in `BADPOConfig`.

    To shift the log-odds of an attribute by s, the offset stage trains toward a margin of beta times s. A batch
    contains ``per_device_train_batch_size`` pairs with two votes each. For the divergence term of the loss, a batch
    contains as many answers as pairs. The learning rate rises during a warm-up (``warmup_steps`` is its share of all
    steps) and then falls with a cosine schedule.
    """

    beta: float = 0.1
    max_steps: int = 600
    per_device_train_batch_size: int = 8
    learning_rate: float = 5e-7
    warmup_steps: float = 0.1
    encoding: str = "trl"
    max_length: int | None = 1024
    max_prompt_length: int | None = None


# Token ids of a prompt and an answer, and the positions at which training should keep the next-token probabilities.
KeptAnswer = tuple[Ints, Ints]


def find_kept_positions(
    prompt_ids: TokenIds, answer_ids: TokenIds, counterfactuals: Sequence[TokenIds] = ()
) -> KeptAnswer:
    """Return the prompt's ids, the answer's ids, and the positions of answer tokens that no counterfactual changes."""
    answer, prompt = list(answer_ids), list(prompt_ids)
    is_kept = np.ones(len(answer), dtype=bool)
    for other in map(list, counterfactuals):
        n_before = len(commonprefix([answer, other]))
        n_after = len(commonprefix([answer[n_before:][::-1], other[n_before:][::-1]]))
        # if the counterfactual only inserts tokens, exclude the answer's next token after the insertion
        is_kept[n_before : max(len(answer) - n_after, n_before + 1)] = False
    return np.array(prompt + answer), np.flatnonzero(is_kept) + len(prompt) - 1


def divergence_from_source(
    policy: PreTrainedModel, source: PreTrainedModel, answers: Sequence[KeptAnswer]
) -> torch.Tensor:
    r"""Compute the mean divergence of a policy from its source, in nats per answer.

    .. math:: \frac{1}{n} \sum_{y} \sum_{t \text{ kept}} \mathrm{KL}\bigl(
              \pi_0(\cdot \mid x, y_{<t}) \,\|\, \pi(\cdot \mid x, y_{<t})\bigr)

    Only ``policy`` receives a gradient.
    """
    tokens, places = zip(*answers, strict=True)
    ids, mask = pad_rows(tokens, next(source.parameters()).device, "right")
    row = torch.from_numpy(np.repeat(np.arange(len(answers)), list(map(len, places))))
    place = torch.from_numpy(np.concatenate(places))

    def logps(model: PreTrainedModel) -> torch.Tensor:
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        return logits[row, place].float().log_softmax(-1)

    policy_logps = logps(policy)
    with torch.no_grad():
        source_logps = logps(source)
    return (source_logps.exp() * (source_logps - policy_logps)).sum() / len(answers)


class OffsetTrainer(BADPOTrainer):
    r"""Trainer that fits pairs with a fixed offset and keeps the policy near its source on the source's own answers.

    .. math:: L = L_{\text{pairs}} + \beta^2 \, \mathrm{KL}(\pi_0 \,\|\, \pi)

    The first term is the paper's loss, whose minimum is at the margin beta s . dg on every pair. The first term does
    not constrain other probabilities, such as the probability that the policy signs or ends its answer, so many
    training steps would change these probabilities. The second term prevents this change: it is the divergence from the
    source at all tokens that the two versions of an answer have in common. A margin is beta times a difference of
    log-probabilities, so the factor beta squared gives both terms the same scale. The rounds of `calibrate` measure and
    correct the distance between the intended and the achieved rate.
    """

    source: PreTrainedModel
    answers: Iterator[KeptAnswer]

    def keep_near(self, source: PreTrainedModel, kept: Sequence[KeptAnswer]) -> None:
        """Set the source policy and its answers; call this method before training."""
        self.source = source.to(self.args.device).eval()
        self.answers = self._repeat_shuffled(kept)

    def compute_loss(
        self,
        model: PreTrainedModel,
        inputs: MicroBatch,
        return_outputs: bool = False,
        num_items_in_batch: int | None = None,
    ) -> torch.Tensor:
        """Return the loss of a batch of pairs plus the divergence from the source on the same number of answers."""
        pairs = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        batch = list(itertools.islice(self.answers, self.args.per_device_train_batch_size))
        divergence = divergence_from_source(model, self.source, batch)
        return pairs + self.args.beta**2 * divergence / self.args.gradient_accumulation_steps

    def _repeat_shuffled(self, kept: Sequence[KeptAnswer]) -> Iterator[KeptAnswer]:
        rng = np.random.default_rng([self.args.seed, self.args.process_index])
        while True:
            yield from (kept[i] for i in rng.permutation(len(kept)))


def train_offset(
    policy: PreTrainedModel,
    source: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Judgments,
    kept: Sequence[KeptAnswer],
    shift: ArrayLike,
    settings: StageSettings,
    seed: int,
    folder: Path,
    cache: Path,
    callbacks: Sequence[TrainerCallback] = (),
) -> PreTrainedModel:
    """Train a policy so that the log-odds of its attributes change by a shift, and write it to ``folder/model``."""
    arguments = BADPOConfig(
        output_dir=str(folder),
        **vars(settings),
        bias="none",
        batching="comparisons",
        lr_scheduler_type="cosine",
        gradient_checkpointing=False,
        reference_cache=str(cache),
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=seed,
    )
    # the bias term has no parameters, and its fixed offset b = -beta s makes the policy learn the shift s
    offset = -settings.beta * torch.as_tensor(shift, dtype=torch.float32)
    annotators = pairs.annotators["pseudonym"].tolist()
    trainer = OffsetTrainer(
        policy,
        args=arguments,
        train_dataset=pairs,
        processing_class=tokenizer,
        bias=BiasTerm(pairs.attribute_names, annotators, (), fixed=offset),
        callbacks=list(callbacks),
    )
    trainer.keep_near(source, kept)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    with whole_folder(folder / "model", trainer.is_world_process_zero()) as unfinished:
        trainer.save_model(str(unfinished))
    return trainer.model.eval()


# Minimum number of editable answers that an offset stage needs.
FEWEST_ANSWERS = 50


@dataclass(frozen=True)
class OffsetPairs:
    """Counterfactual pairs, split by answer into training and held-out pairs.

    Each comparison is a pair, and all pairs made from one answer have the same prompt_id. A comparison has one vote for
    each of its two responses, so neither response is preferred. ``unedited`` contains the indices of the answers that
    were not edited.
    """

    train: Judgments
    held_out: Judgments
    unedited: tuple[int, ...]
    n_answers: int

    @property
    def n_edited(self) -> int:
        """Number of answers that the counterfactual editor can change."""
        return self.n_answers - len(self.unedited)


def offset_pairs(
    prompts: Sequence[str],
    answers: Sequence[str],
    editor: CounterfactualEditor,
    seed: int,
    held_out: float = 0.1,
    fewest: int = FEWEST_ANSWERS,
) -> OffsetPairs:
    r"""Give each usable answer random attributes, and pair the answer with versions that differ in one attribute.

    A pair has one vote for each of its two responses. If an offset b is added to the logit, the loss of the two votes
    is

    .. math:: -\log \sigma(u + b) - \log \sigma(-u - b)

    and its only minimum is the margin u = -b. A share of the usable answers is held out with all their pairs. If
    fewer than ``fewest`` answers can be edited, the function raises a `DataError` (E138).

    References
    ----------
    BA-DPO, Appendix `app:anchor_experiment`, paragraph "Setting".
    """
    cells = [editor.cells(answer) for answer in answers]
    usable = [i for i, own_cells in enumerate(cells) if len(own_cells) > 1]
    if len(usable) < fewest:
        names = ", ".join(attribute.name for attribute in editor.attributes)
        problem = Problem(
            "E138",
            f"{counted(len(usable), 'answer')} of {len(answers):,} can be edited for {names}; training needs "
            f"at least {fewest}",
            "the policy's own answers",
            f"use more prompts, or prompts whose answers have {names} (for signatures, prompts that ask for a "
            "signature), or allow longer answers, so that no answer is truncated",
            len(usable),
        )
        raise DataError([problem])
    draw = random.Random(seed)
    rows = [
        (f"answer-{i:05d}-{number}", f"answer-{i:05d}", prompts[i], *pair, winner)
        for i in usable
        for number, pair in enumerate(_counterfactuals(answers[i], cells[i], editor, draw))
        for winner in ("a", "b")
    ]
    columns = ["comparison_id", "prompt_id", "prompt", "response_a", "response_b", "winner"]
    judgments = Judgments.read(pd.DataFrame(rows, columns=columns), attributes=editor.attributes)
    unedited = tuple(i for i, own_cells in enumerate(cells) if len(own_cells) < 2)
    return OffsetPairs(*judgments.split(held_out, seed), unedited, len(answers))


def _counterfactuals(
    answer: str, cells: Sequence[Cell], editor: CounterfactualEditor, draw: random.Random
) -> list[tuple[str, str]]:
    """Give an answer a random combination of attributes, and pair it with versions that differ in one attribute."""
    cell = draw.choice(cells)
    text = editor.edit(answer, cell, draw)
    flipped = [(*cell[:i], 1 - cell[i], *cell[i + 1 :]) for i in range(len(cell))]
    others = [editor.edit(answer, other, draw) for other in flipped if other in cells]
    return [(text, other) for other in others if other != text]


# Range of plausible slopes. Slopes outside of this range are replaced by 1.
# If the intended shifts are nearly equal, noise can produce a slope outside of the range.
SLOPES = (0.4, 2.5)


@dataclass(frozen=True)
class Round:
    """One offset stage: the intended shift, the achieved shift and the measured rates.

    ``achieved`` is the shift that gives the source the same rates, or NaN if no shift does. ``distance`` is the largest
    distance of a rate from its target, or infinite if a rate could not be measured.
    """

    intended: Floats
    achieved: Floats
    rate: Floats
    distance: float


def calibrate(
    source: RateTable,
    targets: Sequence[float],
    attempt: Callable[[Floats, int], Floats],
    tolerance: float,
    n_rounds: int,
) -> tuple[list[Round], int]:
    """Repeat an offset stage until every rate is within the tolerance of its target, or ``n_rounds`` times.

    The intended shift of the first round is the exact shift from the source's rates to the targets. For each later
    round, a line that is fitted to the earlier rounds gives the intended shift. If only one round has finished, the
    fitted line has slope 1. ``attempt(shift, number)`` trains round ``number`` from the source with an intended shift,
    and returns the rates on the prompts of the table ``source``. The function returns all rounds and the index of the
    round whose rates are nearest to the targets.

    References
    ----------
    BA-DPO, Appendix `app:anchor_experiment`, paragraph "Calibration", where the line was fitted by hand.
    """
    target_rates = np.asarray(targets, float)
    exact = shift_to_targets(source.log_probs, source.indicators, target_rates, source.attributes)
    intended, rounds = exact, list[Round]()
    for number in range(n_rounds):
        rate = attempt(intended, number)
        distance = float(np.nan_to_num(np.abs(rate - target_rates).max(), nan=np.inf))
        rounds.append(Round(intended, achieved_shift(source, rate), rate, distance))
        if distance <= tolerance:
            break
        intended = np.array([_next_intended_shift(rounds, i, exact[i]) for i in range(len(exact))])
    best = int(np.argmin([one_round.distance for one_round in rounds]))
    return rounds, best


def achieved_shift(source: RateTable, rate: Floats) -> Floats:
    """Return the shift that gives the source policy these rates, with shape (n_attributes,); NaN if there is none."""
    try:
        return shift_to_targets(source.log_probs, source.indicators, rate, source.attributes)
    except ValueError:
        return np.full(len(rate), np.nan)


def _next_intended_shift(rounds: Sequence[Round], i: int, exact: float) -> float:
    """Choose the intended shift of attribute i for the next round, from a line through the earlier rounds."""
    points = np.array([(one_round.intended[i], one_round.achieved[i]) for one_round in rounds])
    intended, achieved = points[np.isfinite(points[:, 1])].T
    if not len(achieved):
        # if no achieved shift is known, halve the intended shift
        return float(rounds[-1].intended[i] / 2)
    with suppress(ValueError):
        line = fit_calibration(intended, achieved)
        if SLOPES[0] <= line.slope <= SLOPES[1]:
            return line.intended_for(exact)
    return exact - float(np.mean(achieved - intended))
