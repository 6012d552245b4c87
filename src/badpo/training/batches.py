"""Which judgments make up an optimizer step, and the tensors of one micro-batch.

A step is planned for all processes at once, as a pure function of the seed and the step, and only then cut into
micro-batches: comparisons are kept whole, so that each goes through the model once however many of the step's
votes are on it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError
from badpo.training.encoding import EncodedComparisons
from badpo.training.logprobs import on_device
from badpo.training.packing import Layout, bin_pack, comparison_trees, n_fed

BATCHING = ("random", "grouped", "comparisons")


def planned_steps(
    batching: str, comparison: np.ndarray, batch_size: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """Judgments of each optimizer step of an epoch, by the comparison of every judgment.

    ``random`` shuffles judgments one by one, ``batch_size`` of them in a step: the paper's way. ``grouped`` shuffles
    comparisons and takes all judgments of each one after the other, as many in a step; a comparison that a step's end
    falls into goes on in the next step. ``comparisons`` takes ``batch_size`` comparisons with all of their judgments.
    """
    if batching not in BATCHING:
        raise ConfigError(f"batching is {batching}; choose one of {', '.join(BATCHING)}")
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
    """Cut a step's judgments into ``n_parts`` micro-batches of about equal token counts.

    Judgments on the same comparison stay together. With fewer comparisons than parts the last ones are empty.
    """
    unique, position = np.unique(comparison[votes], return_inverse=True)
    part_of = np.empty(len(unique), dtype=np.int64)
    for number, members in enumerate(bin_pack(n_fed[unique], n_bins=n_parts)):
        part_of[members] = number
    return [votes[part_of[position] == number] for number in range(n_parts)]


@dataclass(eq=False)
class EncodedJudgments(torch.utils.data.Dataset):
    """Judgments with the token ids of their comparisons; an item has those of a judgment, under TRL's names."""

    judgments: Judgments
    encoded: EncodedComparisons
    # the reference's log-probabilities of ``encoded.pairs``, once they are known
    reference: list[np.ndarray] | None = None

    def __len__(self) -> int:
        return self.judgments.n_votes

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        vote = self.judgments.votes.iloc[index]
        pairs = self.encoded.pairs[2 * vote["comparison"] :][:2][:: vote["sign"]]
        (prompt, chosen), (_, rejected) = (map(np.ndarray.tolist, pair) for pair in pairs)
        return {"prompt_ids": prompt, "chosen_ids": chosen, "rejected_ids": rejected}

    def __getitems__(self, indices: Sequence[int]) -> Sequence[int]:
        """What the loader hands to `ComparisonCollator`: the positions of judgments, as they are."""
        return indices

    @property
    def comparison(self) -> np.ndarray:
        """The comparison of every judgment."""
        return self.judgments.votes["comparison"].to_numpy()


class StepSampler(torch.utils.data.Sampler):
    """Batch sampler that plans whole optimizer steps and hands each process as many micro-batches; some may be empty.

    Not passed through ``accelerator.prepare``, whose sharding drops or repeats batches of varying size.
    """

    def __init__(self, data: EncodedJudgments, args):
        pairs = data.encoded.pairs
        self._comparison = data.comparison
        self._n_fed = np.array([n_fed(pairs, tree) for tree in comparison_trees(pairs)])
        self._args = args
        self._seed = args.data_seed if args.data_seed is not None else args.seed
        self.epoch = 0
        self._n_steps = len(self._plan())

    def __len__(self) -> int:
        return self._n_steps * self._args.gradient_accumulation_steps

    def __iter__(self) -> Iterator[list[int]]:
        rank, world = self._args.process_index, self._args.world_size
        n_parts = self._args.gradient_accumulation_steps * world
        for votes in self._plan():
            parts = split_step(votes, self._comparison, self._n_fed, n_parts)
            yield from (part.tolist() for part in parts[rank::world])

    def _plan(self) -> list[np.ndarray]:
        rng = np.random.default_rng([self._seed, self.epoch])
        return planned_steps(self._args.batching, self._comparison, self._args.step_size, rng)


class ComparisonCollator:
    """Tensors of a micro-batch: every comparison once for the forward, the votes apart.

    A micro-batch without judgments, which keeps the number of micro-batches equal over processes, carries the
    first comparison of the data and no vote: its loss is zero and touches every parameter.
    """

    def __init__(self, data: EncodedJudgments, reference: Sequence[np.ndarray], layout: Layout):
        self._comparison = data.comparison
        kinds = {"sign": np.float32, "annotator": np.int64, "weight": np.float32}
        columns = {name: data.judgments.votes[name].to_numpy(kind) for name, kind in kinds.items()}
        delta, places = data.judgments.delta.astype(np.float32), np.arange(len(data))
        self._columns = {**columns, "delta": delta, "votes": places}
        self._pairs = data.encoded.pairs
        self._reference = reference
        self._layout = layout

    def __call__(self, vote_ids: Sequence[int] | np.ndarray) -> dict:
        """The micro-batch of some judgments, given by their positions."""
        votes = np.asarray(vote_ids, dtype=np.int64)
        comparisons, position = np.unique(self._comparison[votes], return_inverse=True)
        if not len(votes):
            comparisons = np.zeros(1, dtype=np.int64)
        responses = (2 * comparisons[:, None] + [0, 1]).ravel().tolist()
        inputs = self._layout([self._pairs[i] for i in responses])
        n_scored = np.bincount(inputs["response"])
        reference = [self._reference[i][-n:] for i, n in zip(responses, n_scored, strict=True)]
        return {
            "scoring": on_device(inputs, torch.device("cpu")),
            "reference_logps": torch.from_numpy(np.concatenate(reference)),
            "comparisons": comparisons,
            "comparison": torch.from_numpy(position),
            **{name: torch.from_numpy(column[votes]) for name, column in self._columns.items()},
        }


def evaluation_batches(judgments: Judgments, args) -> list[np.ndarray]:
    """The share of one process of all judgments, those on a comparison together, in micro-batches.

    Every process has as many: divided weights are gathered by all of them together, so that one without judgments
    left still has to take part.
    """
    order = np.argsort(judgments.votes["comparison"].to_numpy(), kind="stable")
    mine = np.array_split(order, args.world_size)[args.process_index]
    longest, size = math.ceil(len(order) / args.world_size), args.per_device_eval_batch_size
    return [mine[start : start + size] for start in range(0, longest, size)]
