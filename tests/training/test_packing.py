from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from badpo.training.packing import (
    bin_pack,
    build_tree,
    packed_layout,
    plan_pack,
    plan_responses,
    shared_length,
)

# Three token values only, so that shared beginnings, prefixes and identical responses are common.
token_ids = st.lists(st.integers(0, 2), min_size=1, max_size=6).map(lambda ids: np.array(ids, dtype=np.int64))
comparisons = st.lists(st.tuples(token_ids, token_ids, token_ids), min_size=1, max_size=4)
deterministic = settings(derandomize=True, deadline=None, max_examples=150)


def context_of(pack, place):
    """The tokens that the token at `place` of a pack sees, in order, and their positions."""
    for q_start, q_end, prefix_start, prefix_end in pack.segments:
        if q_start <= place < q_end:
            seen = np.r_[prefix_start:prefix_end, q_start : place + 1]
            return pack.input_ids[seen].tolist(), pack.position_ids[seen].tolist()
    raise AssertionError(f"token {place} is in no segment")


def scored_contexts(pack, response):
    """(context, target) of every scored token of one response of a pack."""
    scored = np.flatnonzero(pack.response == response)
    contexts = [context_of(pack, place) for place in pack.head_index[scored]]
    assert all(positions == list(range(len(tokens))) for tokens, positions in contexts)
    return [(tokens, int(target)) for (tokens, _), target in zip(contexts, pack.target[scored], strict=True)]


def plain_contexts(prompt_ids, response_ids, first):
    """(context, target) of the tokens of a response from number `first` on, as the plain forward sees them."""
    sequence = [*prompt_ids.tolist(), *response_ids.tolist()]
    return [(sequence[:end], sequence[end]) for end in range(len(prompt_ids) + first, len(sequence))]


@deterministic
@given(comparisons, st.sampled_from(["unshared", "all"]))
def test_every_scored_token_sees_exactly_its_own_sequence(comparisons, scored_tokens):
    pack = plan_pack(comparisons, scored_tokens)
    for number, (prompt_ids, *responses) in enumerate(comparisons):
        first = shared_length(*responses) if scored_tokens == "unshared" else 0
        assert pack.first_scored[number] == first
        for side, response_ids in enumerate(responses):
            assert scored_contexts(pack, 2 * number + side) == plain_contexts(prompt_ids, response_ids, first)


@deterministic
@given(comparisons)
def test_each_token_of_a_tree_is_fed_once(comparisons):
    pack = plan_pack(comparisons)
    assert len(pack.input_ids) == sum(build_tree(*parts).n_fed for parts in comparisons)
    assert pack.segments[0, 0] == 0 and pack.segments[-1, 1] == len(pack.input_ids)
    np.testing.assert_array_equal(pack.segments[1:, 0], pack.segments[:-1, 1])
    assert (pack.segments[:, 1] > pack.segments[:, 0]).all()


@deterministic
@given(token_ids, token_ids, st.permutations(range(2)))
def test_shared_length_is_the_same_in_either_order_and_leaves_a_token_to_each(a_ids, b_ids, order):
    length = shared_length(a_ids, b_ids)
    pair = (a_ids, b_ids)
    assert shared_length(pair[order[0]], pair[order[1]]) == length
    assert length < min(len(a_ids), len(b_ids))
    np.testing.assert_array_equal(a_ids[:length], b_ids[:length])
    one_more = np.array_equal(a_ids[: length + 1], b_ids[: length + 1])
    assert not one_more or length + 1 == min(len(a_ids), len(b_ids))


def test_a_response_that_begins_the_other_keeps_its_last_token():
    pack = plan_pack([(np.array([1]), np.array([5, 6]), np.array([5, 6, 7]))])
    assert pack.input_ids.tolist() == [1, 5, 6]
    assert pack.segments.tolist() == [[0, 2, 0, 0], [2, 3, 0, 2]]
    assert pack.target.tolist() == [6, 6, 7]


def test_identical_responses_score_the_same_token_at_the_same_place():
    pack = plan_pack([(np.array([1]), np.array([5, 6]), np.array([5, 6]))])
    assert pack.head_index.tolist() == [1, 1] and pack.target.tolist() == [6, 6]


@deterministic
@given(st.lists(st.tuples(token_ids, token_ids), min_size=1, max_size=4))
def test_single_responses_see_exactly_their_own_sequence(pairs):
    pack = plan_responses(pairs)
    for number, (prompt_ids, response_ids) in enumerate(pairs):
        assert scored_contexts(pack, number) == plain_contexts(prompt_ids, response_ids, 0)


def test_layout_has_what_the_model_reads():
    prompts, a_ids, b_ids = [np.array([1, 2])], [np.array([5, 6])], [np.array([5, 7])]
    inputs, first_scored = packed_layout(prompts, a_ids, b_ids)
    assert set(inputs) == {"input_ids", "position_ids", "segments", "head_index", "target", "response"}
    assert first_scored.tolist() == [1]
    assert packed_layout(prompts, a_ids, b_ids, "all")[1].tolist() == [0]


@pytest.mark.parametrize("empty", ["prompt", "response a", "response b"])
def test_an_empty_part_is_named(empty):
    parts = {name: np.array([1]) for name in ("prompt", "response a", "response b")} | {
        empty: np.array([], dtype=int)
    }
    with pytest.raises(ValueError, match=f"the {empty} has no tokens"):
        plan_pack([tuple(parts.values())])


def test_an_empty_single_response_is_refused():
    with pytest.raises(ValueError, match="no tokens"):
        plan_responses([(np.array([1]), np.array([], dtype=int))])


lengths = st.lists(st.integers(1, 50), min_size=0, max_size=40)


@deterministic
@given(lengths, st.integers(1, 60))
def test_bins_hold_every_item_once_within_the_budget(lengths, token_budget):
    bins = bin_pack(lengths, token_budget)
    assert sorted(i for members in bins for i in members) == list(range(len(lengths)))
    loads = [sum(lengths[i] for i in members) for members in bins]
    assert all(load <= token_budget or len(members) == 1 for load, members in zip(loads, bins, strict=True))
    # First fit: no two bins could have been one.
    assert all(x + y > token_budget for x, y in zip(sorted(loads), sorted(loads)[1:], strict=False))


@deterministic
@given(lengths, st.integers(1, 6))
def test_a_given_number_of_bins_is_balanced(lengths, n_bins):
    bins = bin_pack(lengths, n_bins=n_bins)
    assert len(bins) == n_bins
    assert sorted(i for members in bins for i in members) == list(range(len(lengths)))
    loads = [sum(lengths[i] for i in members) for members in bins]
    assert max(loads) - min(loads) <= max(lengths, default=0)
    assert [len(members) > 0 for members in bins] == [number < len(lengths) for number in range(n_bins)]
