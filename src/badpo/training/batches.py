"""Select the judgments for each optimizer step and build the micro-batch tensors.

The judgments of an optimizer step are selected for all processes together and depend only on the seed and the step. The
judgments of a step are then divided into micro-batches. All of a step's votes on one comparison are in the same
micro-batch, so that the comparison goes through the model only once.
"""

# mypy does not analyze torch, so torch's classes are untyped
# mypy: disallow-subclassing-any=False

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NotRequired, TypedDict

import numpy as np
import torch
from torch import Tensor
from transformers import TrainingArguments

from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError
from badpo.training.encoding import EncodedComparisons
from badpo.training.logprobs import ScoringInputs, move_inputs
from badpo.training.packing import Layout, bin_pack, comparison_trees, n_fed

BATCHING = ("random", "grouped", "comparisons")


class MicroBatch(TypedDict):
    """Tensors that describe the judgments and the comparisons in a micro-batch."""

    scoring: ScoringInputs | None  # inputs of the scoring forward; None if no process has a judgment
    reference_logps: Tensor  # reference log-probability of every scored token
    comparisons: np.ndarray  # positions of the comparisons in the data
    comparison: Tensor  # position of each judgment's comparison in ``comparisons``
    vote_index: Tensor  # row of each judgment in the votes table
    sign: Tensor  # +1 if response a was chosen, -1 if response b was chosen
    annotator: Tensor  # index of each judgment's annotator
    delta: Tensor  # attribute difference of a minus b, (n_judgments, n_attributes)
    weight: Tensor  # weight of each judgment: from the table or, in training, from the objective
    share: NotRequired[
        float
    ]  # share of the judgments of the step, or number of judgments in an evaluation
    token_weight: NotRequired[Tensor]  # weight of every scored token, if the objective weighs tokens
    router_load: NotRequired[Tensor]  # load-balancing loss of the routers, from the forward
    # log-probabilities and rewards of all responses; present only if the forward pass scores every response token
    response_scores: NotRequired[tuple[Tensor, Tensor]]


def plan_steps(
    batching: str, comparison: np.ndarray, batch_size: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """Distribute the judgments of an epoch over optimizer steps.

    ``random`` shuffles individual judgments and puts ``batch_size`` of them into a step, as in the paper. ``grouped``
    shuffles comparisons and puts ``batch_size`` judgments of consecutive comparisons into a step; the judgments of one
    comparison may span two steps. ``comparisons`` puts ``batch_size`` comparisons with all their judgments into a step.
    """
    if batching not in BATCHING:
        raise ConfigError(f'batching is "{batching}"; choose one of {", ".join(BATCHING)}')
    ends = np.arange(batch_size, len(comparison), batch_size)
    if batching == "random":
        return np.split(rng.permutation(len(comparison)), ends)
    unique, position = np.unique(comparison, return_inverse=True)
    place = rng.permutation(len(unique))[position]
    if batching == "comparisons":
        ends = np.cumsum(np.bincount(place))[batch_size - 1 : -1 : batch_size]
    return np.split(np.argsort(place, kind="stable"), ends)


def split_step(
    votes: np.ndarray, comparison: np.ndarray, n_fed: np.ndarray, n_parts: int
) -> list[np.ndarray]:
    """Divide the judgments of a step into ``n_parts`` micro-batches with about the same number of tokens each.

    Judgments on the same comparison are in the same micro-batch. If a step has fewer comparisons than micro-batches,
    the last micro-batches are empty.
    """
    unique, position = np.unique(comparison[votes], return_inverse=True)
    part_of = np.empty(len(unique), dtype=np.int64)
    for number, members in enumerate(bin_pack(n_fed[unique], n_bins=n_parts)):
        part_of[members] = number
    return [votes[part_of[position] == number] for number in range(n_parts)]


@dataclass(eq=False)
class EncodedJudgments(torch.utils.data.Dataset):
    """Data set in which each item contains the token ids of one judgment under TRL's column names."""

    judgments: Judgments
    encoded: EncodedComparisons
    # reference log-probabilities of the responses in ``encoded.pairs``; None until they are computed
    reference: list[np.ndarray] | None = None

    def __len__(self) -> int:
        return self.judgments.n_votes

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        vote = self.judgments.votes.iloc[index]
        pairs = self.encoded.pairs[2 * vote["comparison"] :][:2][:: vote["sign"]]
        (prompt, chosen), (_, rejected) = (map(np.ndarray.tolist, pair) for pair in pairs)
        return {"prompt_ids": prompt, "chosen_ids": chosen, "rejected_ids": rejected}

    def __getitems__(self, indices: Sequence[int]) -> Sequence[int]:
        """Return the positions unchanged; `ComparisonCollator` reads the judgments itself."""
        return indices

    @property
    def comparison(self) -> np.ndarray:
        """Comparison of every judgment."""
        comparison: np.ndarray = self.judgments.votes["comparison"].to_numpy()
        return comparison


class StepSampler(torch.utils.data.Sampler):
    """Batch sampler that plans whole optimizer steps and gives each process the same number of micro-batches.

    Some micro-batches may be empty. The trainer does not pass the sampler to ``accelerator.prepare``, which would drop
    or repeat micro-batches of different sizes.
    """

    def __init__(self, data: EncodedJudgments, args: TrainingArguments):
        pairs = data.encoded.pairs
        self._comparison = data.comparison
        self._n_fed = np.array([n_fed(pairs, tree) for tree in comparison_trees(pairs)])
        self._args = args
        self._seed = args.data_seed if args.data_seed is not None else args.seed
        self.epoch = 0
        self._n_steps = len(self._plan())

    def __len__(self) -> int:
        return int(self._n_steps * self._args.gradient_accumulation_steps)

    def __iter__(self) -> Iterator[list[int]]:
        rank, world = self._args.process_index, self._args.world_size
        n_parts = self._args.gradient_accumulation_steps * world
        for votes in self._plan():
            parts = split_step(votes, self._comparison, self._n_fed, n_parts)
            yield from (part.tolist() for part in parts[rank::world])

    def _plan(self) -> list[np.ndarray]:
        rng = np.random.default_rng([self._seed, self.epoch])
        return plan_steps(self._args.batching, self._comparison, self._args.step_size, rng)


class ComparisonCollator:
    """Build the tensors of a micro-batch. A micro-batch contains each comparison only once, with all its votes.

    All processes must have the same number of micro-batches, so some micro-batches may contain no judgment. A
    micro-batch without judgments contains the first comparison in the data, but no vote. The loss of a micro-batch
    without judgments is zero but still depends on every parameter.
    """

    def __init__(self, data: EncodedJudgments, reference: Sequence[np.ndarray], layout: Layout):
        self._comparison = data.comparison
        kinds = {"sign": np.float32, "annotator": np.int64, "weight": np.float32}
        columns = {name: data.judgments.votes[name].to_numpy(kind) for name, kind in kinds.items()}
        delta, rows = data.judgments.delta.astype(np.float32), np.arange(len(data))
        self._columns = {**columns, "delta": delta, "vote_index": rows}
        self._pairs = data.encoded.pairs
        self._reference = reference
        self._layout = layout

    def __call__(self, vote_ids: Sequence[int] | np.ndarray) -> MicroBatch:
        """Build a micro-batch from the judgments at the given positions in the data set."""
        votes = np.asarray(vote_ids, dtype=np.int64)
        comparisons, position = np.unique(self._comparison[votes], return_inverse=True)
        if not len(votes):
            comparisons = np.zeros(1, dtype=np.int64)
        responses = (2 * comparisons[:, None] + [0, 1]).ravel().tolist()
        inputs = self._layout([self._pairs[i] for i in responses])
        n_scored = np.bincount(inputs["response"])
        reference = [self._reference[i][-n:] for i, n in zip(responses, n_scored, strict=True)]
        columns = {name: torch.from_numpy(column[votes]) for name, column in self._columns.items()}
        return {
            "scoring": move_inputs(inputs, torch.device("cpu")),
            "reference_logps": torch.from_numpy(np.concatenate(reference)),
            "comparisons": comparisons,
            "comparison": torch.from_numpy(position),
            "vote_index": columns["vote_index"],
            "sign": columns["sign"],
            "annotator": columns["annotator"],
            "delta": columns["delta"],
            "weight": columns["weight"],
        }


def evaluation_batches(judgments: Judgments, args: TrainingArguments) -> list[np.ndarray]:
    """Return one process's evaluation micro-batches: its share of the judgments, sorted by comparison.

    All processes have the same number of micro-batches, because every process must take part when sharded weights are
    gathered.
    """
    order = np.argsort(judgments.votes["comparison"].to_numpy(), kind="stable")
    own = np.array_split(order, args.world_size)[args.process_index]
    longest, size = math.ceil(len(order) / args.world_size), args.per_device_eval_batch_size
    return [own[start : start + size] for start in range(0, longest, size)]
