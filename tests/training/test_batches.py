"""Steps contain each judgment once per epoch, keep comparisons together and do not depend on the processes."""

import types

import numpy as np
import pytest
import torch

from badpo.attributes import Length
from badpo.data.judgments import Judgments
from badpo.training.batches import (
    BATCHING,
    ComparisonCollator,
    EncodedJudgments,
    StepSampler,
    evaluation_batches,
    plan_steps,
)
from badpo.training.encoding import encode_comparisons
from badpo.training.packing import packed_comparisons, padded_rows
from tests import tiny
from tests.training.tiny_runs import judgments


def encoded(data: Judgments) -> EncodedJudgments:
    return EncodedJudgments(data, encode_comparisons(data.comparisons, tiny.tokenizer()))


def sampler(data: Judgments, batch_size=8, micro_batches=2, rank=0, world=1, **seeds) -> StepSampler:
    sizes = dict(batching="random", step_size=batch_size, gradient_accumulation_steps=micro_batches)
    place = dict(seed=0, data_seed=None, process_index=rank, world_size=world) | seeds
    return StepSampler(encoded(data), types.SimpleNamespace(**sizes, **place))


def steps(planned: StepSampler, micro_batches: int) -> list[list[list[int]]]:
    batches = list(planned)
    return [batches[i : i + micro_batches] for i in range(0, len(batches), micro_batches)]


def flat(batches: list[list[int]]) -> list[int]:
    return [vote for batch in batches for vote in batch]


def test_the_plan_depends_on_seed_and_epoch_and_contains_each_judgment_once():
    data = judgments()
    plans = {}
    for seed in range(3):
        planned = sampler(data, batch_size=10, seed=seed)
        assert len(planned) == 2 * 8  # 72 judgments in steps of 10
        for planned.epoch in range(3):
            assert list(planned) == list(planned) and len(list(planned)) == len(planned)
            assert sorted(flat(list(planned))) == list(range(data.n_votes))
            assert [len(flat(step)) for step in steps(planned, 2)] == [10] * 7 + [2]
            plans[seed, planned.epoch] = str(list(planned))
    # the epochs of consecutive seeds differ too
    assert len(set(plans.values())) == 9
    assert str(list(sampler(data, batch_size=10, seed=1))) == plans[1, 0]
    assert str(list(sampler(data, batch_size=10, seed=2, data_seed=1))) == plans[1, 0]


@pytest.mark.parametrize("batching", BATCHING)
@pytest.mark.parametrize("size", [1, 7, 12, 1000])
def test_steps_have_each_judgment_once_and_the_requested_size(batching, size):
    rng = np.random.default_rng(5)
    comparison = rng.permutation(np.repeat(np.arange(20) * 3, rng.integers(1, 15, 20)))
    plan = plan_steps(batching, comparison, size, np.random.default_rng(0))
    order = np.concatenate(plan)
    assert sorted(order) == list(range(len(comparison)))
    counts = [len(set(comparison[votes]) if batching == "comparisons" else votes) for votes in plan]
    *whole, last = counts
    assert set(whole) <= {size} and 0 < last <= size
    # comparisons in the order of their judgments; a comparison is repeated if its judgments are not consecutive
    seen = comparison[order][np.flatnonzero(np.diff(comparison[order], prepend=-1))].tolist()
    assert seen != sorted(seen)
    assert len(seen) > 100 if batching == "random" else len(seen) == 20
    with pytest.raises(ValueError, match="random, grouped, comparisons"):
        plan_steps("group", comparison, size, rng)


@pytest.mark.parametrize(
    ("options", "world", "parts"),
    [
        ({}, 2, 2),
        ({}, 3, 2),
        # if there are fewer comparisons than micro-batches, some micro-batches are empty
        ({"n_comparisons": 3, "per_comparison": 4}, 2, 4),
    ],
)
def test_processes_divide_each_step_into_parts_of_similar_size_with_whole_comparisons(
    options, world, parts
):
    data = judgments(**options)
    comparison, pairs = data.votes["comparison"].to_numpy(), encoded(data).encoded.pairs
    fed = [packed_comparisons(pairs[i : i + 2])["input_ids"].size for i in range(0, len(pairs), 2)]
    alone = steps(sampler(data, 12, 1), 1)
    together = [steps(sampler(data, 12, parts, rank=rank, world=world), parts) for rank in range(world)]
    assert {len(plan) for plan in together} == {len(alone)} == {data.n_votes // 12}
    for [whole], *shares in zip(alone, *together, strict=True):
        assert {len(share) for share in shares} == {parts}
        assert sorted(whole) == sorted(vote for share in shares for vote in flat(share))
        members = [set(comparison[batch]) for share in shares for batch in share]
        assert sum(map(len, members)) == len(set.union(*members))
        assert sum(map(bool, members)) == min(len(set.union(*members)), parts * world)
        loads = [sum(fed[c] for c in part) for part in members]
        assert max(loads) - min(loads) <= max(fed)


@pytest.mark.parametrize(("world", "size"), [(1, 4), (2, 3), (3, 5), (40, 2)])
def test_an_evaluation_has_each_judgment_once_and_equally_many_batches_on_each_process(world, size):
    data = judgments(n_comparisons=6, per_comparison=4)
    args = types.SimpleNamespace(world_size=world, per_device_eval_batch_size=size)
    batches = [evaluation_batches(data, args) for args.process_index in range(world)]
    assert len({len(mine) for mine in batches}) == 1
    assert all(len(votes) <= size for mine in batches for votes in mine)
    order = np.concatenate([votes for mine in batches for votes in mine])
    assert sorted(order) == list(range(data.n_votes))
    # the votes on a comparison are consecutive, so that the comparison is in one or two micro-batches
    assert (np.diff(data.votes["comparison"].to_numpy()[order]) >= 0).all()


# -- micro-batches ---------------------------------------------------------------------------------------------------


def two_comparisons() -> Judgments:
    """Make two comparisons with one and with no common first token, and three votes."""
    first = {"prompt": "the cat ", "response_a": "sat and ran", "response_b": "sat home"}
    second = {"prompt": "the ", "response_a": "dog", "response_b": "red red red cat"}
    rows = [
        first | {"winner": "b", "annotator": "mia", "weight": 1.0},
        second | {"winner": "a", "annotator": "noor", "weight": 0.5},
        first | {"winner": "a", "annotator": "ola", "weight": 2.0},
    ]
    return Judgments.read(rows, attributes=[Length(ratio=1.5)])


REFERENCE = [
    *(np.array([-1.0, -2.0, -4.0, -8.0]), np.array([-1.0, -16.0, -32.0])),
    *(np.array([-0.5, -0.25]), np.array([-3.0, -5.0, -7.0, -9.0, -11.0])),
]


def batch_of(vote_ids, layout=packed_comparisons) -> dict:
    return ComparisonCollator(encoded(two_comparisons()), REFERENCE, layout)(vote_ids)


def test_votes_refer_to_comparisons_and_every_scored_token_has_a_reference_value():
    batch = batch_of([2, 1, 0])
    assert batch["vote_index"].tolist() == [2, 1, 0] and batch["comparison"].tolist() == [0, 1, 0]
    assert batch["sign"].tolist() == [1.0, 1.0, -1.0]
    assert batch["annotator"].tolist() == [2, 1, 0]
    assert batch["weight"].tolist() == [2.0, 0.5, 1.0]
    assert batch["delta"].tolist() == [[1.0], [-1.0], [1.0]]  # 3 words to 2 are 1.5 times as many
    # the prompts, and the responses without their last tokens
    assert len(batch["scoring"]["input_ids"]) == (3 + 2 + 1) + (1 + 1 + 4)
    # both responses to the first prompt have the same first token
    packed = [REFERENCE[0][1:], REFERENCE[1][1:], *REFERENCE[2:]]
    for layout, expected in ((packed_comparisons, packed), (padded_rows, REFERENCE)):
        batch = batch_of([0, 1], layout)
        assert batch["reference_logps"].tolist() == np.concatenate(expected).tolist()
        assert len(batch["reference_logps"]) == len(batch["scoring"]["target"])
        # a micro-batch without votes contains the first comparison
        empty = batch_of([], layout)
        assert not any(
            map(len, (empty[name] for name in ("comparison", "sign", "annotator", "vote_index")))
        )
        assert empty["weight"].shape == (0,) and empty["delta"].shape == (0, 1)
        assert empty["comparison"].dtype == torch.int64 and empty["comparisons"].tolist() == [0]
        assert set(empty["scoring"]["response"].tolist()) == {0, 1}
