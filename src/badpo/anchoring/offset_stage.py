"""The offset stage: a policy is taught a tilt on its own answers, with itself as the reference and no votes.

A stage follows the shift that it is asked for one for one after a deficit that its steps leave. `calibrate` asks,
measures, fits a line through the rounds before, and asks again.
"""

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from os.path import commonprefix
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike
from transformers import PrinterCallback

from badpo.anchoring.editors import Cell, CounterfactualEditor
from badpo.anchoring.rates import RateTable
from badpo.data.judgments import Judgments
from badpo.data.problems import DataError, Problem, counted
from badpo.objective.bias import BiasTerm
from badpo.readouts.generation import padded
from badpo.theory import Floats, Ints
from badpo.theory.tilt import fit_calibration, shift_to_targets
from badpo.training.checkpoints import whole_folder
from badpo.training.config import BADPOConfig
from badpo.training.trainer import BADPOTrainer


@dataclass(frozen=True)
class StageSettings:
    """How an offset stage is trained, in keys of `BADPOConfig`; the source's own are good for all but the steps.

    A shift s is taught as a margin of beta s; a step has so many pairs, each in both directions, and as many answers
    that are kept; the rate rises in a share of the steps, before it falls as a cosine.
    """

    beta: float = 0.1
    max_steps: int = 600
    per_device_train_batch_size: int = 8
    learning_rate: float = 5e-7
    warmup_steps: float = 0.1
    encoding: str = "trl"
    max_length: int | None = 1024
    max_prompt_length: int | None = None


def fixed_offset(pairs: Judgments, shift: ArrayLike, beta: float) -> BiasTerm:
    """The offset b = -beta s that teaches a shift s, as a bias term with nothing to learn."""
    offset = -beta * torch.as_tensor(shift, dtype=torch.float32)
    return BiasTerm(pairs.attribute_names, pairs.annotators["pseudonym"].tolist(), (), fixed=offset)


# Tokens of a prompt and an answer, and the places whose logits give the tokens that are to stay as likely as they are.
KeptAnswer = tuple[Ints, Ints]


def kept_answer(prompt_ids, answer_ids, counterfactuals: Sequence[Sequence[int]] = ()) -> KeptAnswer:
    """An answer that is kept where it agrees with every counterfactual: before the first difference, after the last."""
    answer, prompt = list(answer_ids), list(prompt_ids)
    kept = np.ones(len(answer), dtype=bool)
    for other in map(list, counterfactuals):
        n_before = len(commonprefix([answer, other]))
        n_behind = len(commonprefix([answer[n_before:][::-1], other[n_before:][::-1]]))
        # where something is only put in, the token that it stands before is the place of the choice
        kept[n_before : max(len(kept) - n_behind, n_before + 1)] = False
    return np.array(prompt + answer), np.flatnonzero(kept) + len(prompt) - 1


def divergence_from_source(policy, source, answers: Sequence[KeptAnswer]) -> torch.Tensor:
    r"""Divergence of a policy from its source on some answers, in nats for an answer.

    .. math:: \frac{1}{n} \sum_{y} \sum_{t \text{ kept}} \mathrm{KL}\bigl(
              \pi_0(\cdot \mid x, y_{<t}) \,\|\, \pi(\cdot \mid x, y_{<t})\bigr)

    The gradient goes to ``policy`` alone.
    """
    tokens, places = zip(*answers, strict=True)
    ids, mask = padded(tokens, next(source.parameters()).device, "right")
    row = torch.from_numpy(np.repeat(np.arange(len(answers)), list(map(len, places))))
    place = torch.from_numpy(np.concatenate(places))

    def logps(model) -> torch.Tensor:
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        return logits[row, place].float().log_softmax(-1)

    ours = logps(policy)
    with torch.no_grad():
        theirs = logps(source)
    return (theirs.exp() * (theirs - ours)).sum() / len(answers)


class OffsetTrainer(BADPOTrainer):
    r"""Trains on pairs with a fixed offset, and keeps the policy at its source on the source's own answers.

    .. math:: L = L_{\text{pairs}} + \beta^2 \, \mathrm{KL}(\pi_0 \,\|\, \pi)

    The first term, the paper's, asks for a margin of beta s . dg on every pair. It says how far apart two versions of
    an answer are to be, and nothing about anything else, which a stage of many steps then moves: how likely the policy
    is to sign at all, to end. The second says that, at all tokens but those in which the versions differ. A margin is
    beta times a difference of log-probabilities; beta squared puts both on one scale. By how much the rate then misses
    what was asked for is measured, and absorbed, by the rounds of `calibrate`.
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
    cache: Path,
    callbacks: Sequence[Any] = (),
):
    """Teach a policy a shift, and write it to ``folder/model``."""
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
    trainer = OffsetTrainer(
        policy,
        args=arguments,
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


# Usable answers without which there is no stage.
FEWEST_ANSWERS = 50


@dataclass(frozen=True)
class OffsetPairs:
    """Pairs for training and pairs held out, split by answer; numbers of the ``unedited`` answers, and of all.

    A comparison is a pair, its prompt_id the number of the answer; it has two votes, one in each direction, so that
    nothing is preferred.
    """

    train: Judgments
    held_out: Judgments
    unedited: tuple[int, ...]
    n_answers: int

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

    with its minimum at the margin u = -b and at no other preference. A share of the usable answers is held out with all
    their pairs. `DataError` (E138) where fewer than ``fewest`` answers can be edited.

    References
    ----------
    BA-DPO, Appendix `app:anchor_experiment`, paragraph "Setting".
    """
    cells = [editor.cells(answer) for answer in answers]
    usable = [i for i, found in enumerate(cells) if len(found) > 1]
    if len(usable) < fewest:
        names = ", ".join(attribute.name for attribute in editor.attributes)
        problem = Problem(
            "E138",
            f"{counted(len(usable), 'answer')} of {len(answers):,} can be edited for {names}; the stage needs {fewest} "
            "or more",
            "the policy's own answers",
            "give prompts whose answers have it (a signature must be asked for), more of them where they are few, or "
            "allow longer answers so that they are not cut before it",
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
    unedited = tuple(i for i, found in enumerate(cells) if len(found) < 2)
    return OffsetPairs(*judgments.split(held_out, seed), unedited, len(answers))


def _counterfactuals(
    answer: str, cells: Sequence[Cell], editor: CounterfactualEditor, draw: random.Random
) -> list[tuple[str, str]]:
    """An answer in a random cell, beside itself in each of the cells that differ from it in one attribute."""
    cell = draw.choice(cells)
    text = editor.edit(answer, cell, draw)
    flipped = [(*cell[:i], 1 - cell[i], *cell[i + 1 :]) for i in range(len(cell))]
    others = [editor.edit(answer, other, draw) for other in flipped if other in cells]
    return [(text, other) for other in others if other != text]


# A fitted slope outside of this is noise of rounds that asked for nearly the same; the steps follow one for one.
SLOPES = (0.4, 2.5)


@dataclass(frozen=True)
class Round:
    """One offset stage: the shift that was asked for, that of the source which gives the rates, and these.

    ``achieved`` is NaN where no shift gives the rates; ``distance`` is the largest of a rate from its target, infinite
    where there is no rate.
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
    """Train rounds of an offset stage until every rate is within a tolerance of its target, or the rounds are over.

    The first round asks for the exact tilt. Later rounds fit a line through the rounds before, of slope 1 after a
    single one. ``attempt`` trains a stage that asks for a shift, given the number of the round, and measures its rates
    on the prompts that ``source``, from which every round starts, was measured on. The number is that of the nearest
    round.

    References
    ----------
    BA-DPO, Appendix `app:anchor_experiment`, paragraph "Calibration", where the line was fitted by hand.
    """
    wanted = np.asarray(targets, float)
    exact = shift_to_targets(source.log_probs, source.carries, wanted, source.attributes)
    intended, rounds = exact, list[Round]()
    for number in range(n_rounds):
        rate = attempt(intended, number)
        distance = float(np.nan_to_num(np.abs(rate - wanted).max(), nan=np.inf))
        rounds.append(Round(intended, achieved_shift(source, rate), rate, distance))
        if distance <= tolerance:
            break
        intended = np.array([_next_ask(rounds, i, exact[i]) for i in range(len(exact))])
    best = int(np.argmin([found.distance for found in rounds]))
    return rounds, best


def achieved_shift(source: RateTable, rate: Floats) -> Floats:
    """The shift of a source that gives some rates, shape (n_attributes,); NaN where none does."""
    try:
        return shift_to_targets(source.log_probs, source.carries, rate, source.attributes)
    except ValueError:
        return np.full(len(rate), np.nan)


def _next_ask(rounds: Sequence[Round], i: int, exact: float) -> float:
    points = np.array([(found.intended[i], found.achieved[i]) for found in rounds])
    intended, achieved = points[np.isfinite(points[:, 1])].T
    if not len(achieved):
        # nothing that was asked for can be told from the measured rates: ask for half of it
        return rounds[-1].intended[i] / 2
    with suppress(ValueError):
        line = fit_calibration(intended, achieved)
        if SLOPES[0] <= line.slope <= SLOPES[1]:
            return line.intended_for(exact)
    return exact - float(np.mean(achieved - intended))
