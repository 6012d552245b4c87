"""Each scored token of a layout attends to its own sequence, and each shared token is an input once."""

from os.path import commonprefix

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from badpo.training.packing import (
    Branch,
    bin_pack,
    comparison_trees,
    n_fed,
    packed_comparisons,
    packed_responses,
    padded_rows,
    plan_pack,
    response_trees,
)

# There are three token values, so that shared beginnings, prefixes and identical responses are frequent.
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
    """List (context, target) of each scored token of a response in a flat row."""
    sees, contexts = {}, []
    for q_start, q_end, prefix_start, prefix_end in inputs["segments"]:
        sees |= {t: np.r_[prefix_start:prefix_end, q_start : t + 1] for t in range(q_start, q_end)}
    scored = np.flatnonzero(inputs["response"] == number)
    for at, target in zip(inputs["head_index"][scored], inputs["target"][scored], strict=True):
        assert inputs["position_ids"][sees[at]].tolist() == list(range(len(sees[at])))
        contexts.append((inputs["input_ids"][sees[at]].tolist(), int(target)))
    return contexts


def plain_contexts(pair, first):
    """List (context, target) of a response's tokens from number `first` on in a plain forward."""
    sequence = np.concatenate(pair).tolist()
    return [(sequence[:end], sequence[end]) for end in range(len(pair[0]) + first, len(sequence))]


def check_pack(pairs, trees, inputs):
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
    check_pack(pairs, trees, packed_comparisons(pairs, scores_shared))
    for number, tree in enumerate(trees):
        responses = [response.tolist() for _, response in pairs[2 * number : 2 * number + 2]]
        # each response has at least one own token
        n_shared = min(len(commonprefix(responses)), *(len(response) - 1 for response in responses))
        first = 0 if scores_shared else n_shared
        assert tree == [(2 * number, 0, first), (2 * number + 1, n_shared, first)]


@deterministic
@given(pair_lists, st.integers(1, 40))
def test_trees_contain_each_response_once_within_the_budget(pairs, budget):
    trees = response_trees(pairs, budget)
    check_pack(pairs, trees, plan_pack(pairs, trees))
    check_pack(pairs, [[Branch(i, 0, 0)] for i in range(len(pairs))], packed_responses(pairs))
    assert sorted(i for tree in trees for i, *_ in tree) == list(range(len(pairs)))
    for tree in trees:
        assert len({pairs[i][0].tobytes() for i, *_ in tree}) == 1
        assert n_fed(pairs, tree) <= budget or len(tree) == 1
        assert tree[0].n_shared == 0
        assert all(branch.first_scored == branch.n_shared for branch in tree)


def test_responses_share_a_tree_if_they_fit_and_padded_rows_by_hand():
    pairs = [(np.array([0]), np.array(response)) for response in ([5, 6, 7], [8, 9], [5, 6, 1])]
    assert response_trees(pairs, 4) == [[(2, 0, 0), (0, 2, 2), (1, 0, 0)]]
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


@pytest.mark.parametrize("layout", [packed_comparisons, packed_responses])
def test_an_empty_part_is_refused(layout):
    one, none = np.array([1]), np.array([], dtype=int)
    for prompt, a, b in ((none, one, one), (one, none, one), (one, one, none)):
        with pytest.raises(ValueError, match="has no tokens"):
            layout([(prompt, a), (prompt, b)])


@deterministic
@given(st.lists(st.integers(1, 12), max_size=40), st.integers(1, 30), st.integers(1, 6))
def test_bins_contain_each_item_once_within_a_budget_or_balanced(lengths, token_budget, n_bins):
    within, given_number = bin_pack(lengths, token_budget), bin_pack(lengths, n_bins=n_bins)
    for bins in (within, given_number):
        assert sorted(i for members in bins for i in members) == list(range(len(lengths)))
    both = within, given_number
    within_loads, loads = ([sum(lengths[i] for i in one) for one in bins] for bins in both)
    for load, members in zip(within_loads, within, strict=True):
        assert load <= token_budget or len(members) == 1
    # no two bins fit into one bin
    assert sum(sorted(within_loads)[:2]) > token_budget or len(within) < 2
    assert max(loads) - min(loads) <= max(lengths, default=0)
    assert [len(members) > 0 for members in given_number] == [i < len(lengths) for i in range(n_bins)]
