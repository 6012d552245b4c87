"""Every scored token of a layout sees exactly its own sequence, and each shared token is fed once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from badpo.training.packing import (
    bin_pack,
    comparison_trees,
    n_fed,
    packed_comparisons,
    packed_responses,
    padded_rows,
    plan_pack,
    response_trees,
    shared_length,
)

# Three token values only, so that shared beginnings, prefixes and identical responses are common.
token_ids = st.lists(st.integers(0, 2), min_size=1, max_size=6).map(
    lambda ids: np.array(ids, dtype=np.int64)
)
prompts = st.sampled_from([np.array([0]), np.array([1, 2])])
pair_lists = st.lists(st.tuples(prompts, token_ids), min_size=1, max_size=9)
comparisons = st.lists(st.tuples(token_ids, token_ids, token_ids), min_size=1, max_size=4).map(
    lambda rows: [(prompt, response) for prompt, *both in rows for response in both]
)
deterministic = settings(derandomize=True, deadline=None, max_examples=100)


def scored_contexts(inputs, number):
    """(context, target) of every scored token of one response of a flat row."""
    sees, contexts = {}, []
    for q_start, q_end, prefix_start, prefix_end in inputs["segments"]:
        sees |= {t: np.r_[prefix_start:prefix_end, q_start : t + 1] for t in range(q_start, q_end)}
    scored = np.flatnonzero(inputs["response"] == number)
    for at, target in zip(inputs["head_index"][scored], inputs["target"][scored], strict=True):
        assert inputs["position_ids"][sees[at]].tolist() == list(range(len(sees[at])))
        contexts.append((inputs["input_ids"][sees[at]].tolist(), int(target)))
    return contexts


def plain_contexts(pair, first):
    """The same of a response's tokens from number `first` on, as the plain forward sees them."""
    sequence = np.concatenate(pair).tolist()
    return [(sequence[:end], sequence[end]) for end in range(len(pair[0]) + first, len(sequence))]


def check_pack(pairs, trees):
    inputs = plan_pack(pairs, trees)
    order = [branch for tree in trees for branch in tree]
    for number, (i, _, first) in enumerate(order):
        assert scored_contexts(inputs, number) == plain_contexts(pairs[i], first)
    segments = inputs["segments"]
    assert len(inputs["input_ids"]) == sum(n_fed(pairs, tree) for tree in trees) == segments[-1, 1]
    np.testing.assert_array_equal(segments[1:, 0], segments[:-1, 1])
    assert segments[0, 0] == 0 and (segments[:, 1] > segments[:, 0]).all()


@deterministic
@given(comparisons, st.booleans())
def test_comparisons_share_their_beginning(pairs, scores_shared):
    trees = comparison_trees(pairs, scores_shared)
    check_pack(pairs, trees)
    for number, tree in enumerate(trees):
        n_shared = shared_length(pairs[2 * number][1], pairs[2 * number + 1][1])
        first = 0 if scores_shared else n_shared
        assert tree == [(2 * number, 0, first), (2 * number + 1, n_shared, first)]


@deterministic
@given(pair_lists, st.integers(1, 40))
def test_responses_to_a_prompt_stand_once_within_the_budget(pairs, budget):
    trees = response_trees(pairs, budget)
    check_pack(pairs, trees)
    assert sorted(i for tree in trees for i, *_ in tree) == list(range(len(pairs)))
    for tree in trees:
        assert len({pairs[i][0].tobytes() for i, *_ in tree}) == 1
        assert n_fed(pairs, tree) <= budget or len(tree) == 1
        assert tree[0].n_shared == 0
        assert all(branch.first_scored == branch.n_shared for branch in tree)


def test_responses_to_a_prompt_are_one_tree_where_they_fit():
    pairs = [(np.array([0]), np.array(response)) for response in ([5, 6, 7], [8, 9], [5, 6, 1])]
    assert response_trees(pairs, 100) == [[(2, 0, 0), (0, 2, 2), (1, 0, 0)]]


@deterministic
@given(pair_lists)
def test_single_responses_have_their_own_prompt_and_all_tokens_scored(pairs):
    inputs = packed_responses(pairs)
    for number, pair in enumerate(pairs):
        assert scored_contexts(inputs, number) == plain_contexts(pair, 0)


@deterministic
@given(token_ids, token_ids)
def test_shared_length_is_the_same_in_either_order_and_leaves_a_token_to_each(a_ids, b_ids):
    length = shared_length(a_ids, b_ids)
    assert length == shared_length(b_ids, a_ids) < min(len(a_ids), len(b_ids))
    np.testing.assert_array_equal(a_ids[:length], b_ids[:length])
    one_more = np.array_equal(a_ids[: length + 1], b_ids[: length + 1])
    assert not one_more or length + 1 == min(len(a_ids), len(b_ids))


@pytest.mark.parametrize(
    ("a", "b", "input_ids", "segments", "target"),
    [
        # a response that begins the other keeps its last token
        ([5, 6], [5, 6, 7], [1, 5, 6], [[0, 2, 0, 0], [2, 3, 0, 2]], [6, 6, 7]),
        # identical ones score the same token at the same place
        ([5, 6], [5, 6], [1, 5], [[0, 2, 0, 0]], [6, 6]),
    ],
)
def test_comparisons_by_hand(a, b, input_ids, segments, target):
    inputs = packed_comparisons([(np.array([1]), np.array(a)), (np.array([1]), np.array(b))])
    assert set(inputs) == {"input_ids", "position_ids", "segments", "head_index", "target", "response"}
    assert inputs["input_ids"].tolist() == input_ids
    assert inputs["segments"].tolist() == segments
    assert inputs["target"].tolist() == target


def test_padded_rows_by_hand():
    pairs = [(np.array([5, 6]), np.array([7, 8, 1])), (np.array([5, 6]), np.array([9]))]
    inputs = padded_rows(pairs)
    assert inputs["input_ids"].tolist() == [[5, 6, 7, 8], [5, 6, 0, 0]]
    assert inputs["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert inputs["head_index"].tolist() == [1, 2, 3, 5]
    assert inputs["target"].tolist() == [7, 8, 1, 9]
    assert inputs["response"].tolist() == [0, 0, 0, 1]
    whole = padded_rows(pairs, feed_last=True)
    assert whole["input_ids"].tolist() == [[5, 6, 7, 8, 1], [5, 6, 9, 0, 0]]
    assert whole["attention_mask"].sum() == 8 and whole["head_index"].tolist() == [1, 2, 3, 6]


@pytest.mark.parametrize("empty", ["prompt", "response a", "response b"])
@pytest.mark.parametrize("layout", [packed_comparisons, packed_responses])
def test_an_empty_part_is_refused(layout, empty):
    parts = {name: np.array([1]) for name in ("prompt", "response a", "response b")}
    prompt, a, b = (parts | {empty: np.array([], dtype=int)}).values()
    with pytest.raises(ValueError, match="has no tokens"):
        layout([(prompt, a), (prompt, b)])


lengths = st.lists(st.integers(1, 50), min_size=0, max_size=40)


@deterministic
@given(lengths, st.integers(1, 60))
def test_bins_hold_every_item_once_within_the_budget(lengths, token_budget):
    bins = bin_pack(lengths, token_budget)
    assert sorted(i for members in bins for i in members) == list(range(len(lengths)))
    loads = [sum(lengths[i] for i in members) for members in bins]
    assert all(
        load <= token_budget or len(members) == 1 for load, members in zip(loads, bins, strict=True)
    )
    # First fit: no two bins could have been one.
    assert all(x + y > token_budget for x, y in zip(sorted(loads), sorted(loads)[1:], strict=False))


@deterministic
@given(lengths, st.integers(1, 6))
def test_a_given_number_of_bins_is_balanced(lengths, n_bins):
    bins = bin_pack(lengths, n_bins=n_bins)
    assert sorted(i for members in bins for i in members) == list(range(len(lengths)))
    loads = [sum(lengths[i] for i in members) for members in bins]
    assert max(loads) - min(loads) <= max(lengths, default=0)
    assert [len(members) > 0 for members in bins] == [number < len(lengths) for number in range(n_bins)]
