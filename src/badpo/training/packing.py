"""Layouts of prompts and responses for a forward pass: one row of token trees, or padded rows.

Responses to the same prompt often begin with the same tokens. A token tree contains the prompt and all tokens of the
first response. For every further response, the token tree contains only the tokens after the common prefix with the
first response. A token that several responses share therefore goes through the model only once. The token trees are
concatenated in one row without padding, and a table of segments defines which tokens attend to which. This module
handles only token ids; `badpo.training.attention` runs the model.

A layout function takes pairs (prompt ids, response ids) and returns the inputs of the scoring forward; see
`plan_pack`. The scored tokens of a response are always its last tokens.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

Pair = tuple[np.ndarray, np.ndarray]
Inputs = dict[str, np.ndarray]
Layout = Callable[[Sequence[Pair]], Inputs]


class Branch(NamedTuple):
    """A response in a tree.

    Attributes
    ----------
    position : int
        Position of the response in the list of pairs.
    n_shared : int
        Number of leading tokens that the response shares with the tree's first response; 0 for the first response.
    first_scored : int
        Number of leading tokens that are not scored.
    """

    position: int
    n_shared: int
    first_scored: int


# A token tree is a list of responses to the same prompt; the responses share the prompt's tokens.
Tree = list[Branch]


def shared_length(a_ids: np.ndarray, b_ids: np.ndarray) -> int:
    """Count the leading tokens that two responses share; the last token of a response never counts as shared."""
    limit = max(min(len(a_ids), len(b_ids)) - 1, 0)
    differs = np.flatnonzero(a_ids[:limit] != b_ids[:limit])
    return int(differs[0]) if len(differs) else limit


def comparison_trees(pairs: Sequence[Pair], scores_shared: bool = False) -> list[Tree]:
    """Build one token tree per comparison; responses a and b of a comparison are consecutive entries in ``pairs``."""
    trees = []
    for i in range(0, len(pairs), 2):
        n_shared = shared_length(pairs[i][1], pairs[i + 1][1])
        first = 0 if scores_shared else n_shared
        trees.append([Branch(i, 0, first), Branch(i + 1, n_shared, first)])
    return trees


def response_trees(pairs: Sequence[Pair], token_budget: int) -> list[Tree]:
    """Build the token trees of each prompt. A tree exceeds ``token_budget`` tokens only if one response needs more.

    If a response has a common prefix with the first response of its tree, this prefix is scored only once.
    """
    by_prompt: dict[bytes, list[int]] = {}
    for i, (prompt, _) in enumerate(pairs):
        by_prompt.setdefault(np.asarray(prompt, dtype=np.int64).tobytes(), []).append(i)
    trees: list[Tree] = []
    for members in by_prompt.values():
        first, used = np.zeros(0, dtype=np.int64), math.inf
        for i in sorted(members, key=lambda i: pairs[i][1].tolist()):
            prompt, response = pairs[i]
            n_shared = shared_length(first, response)
            used += len(response) - n_shared - 1
            if used > token_budget:
                first, n_shared, used = response, 0, len(prompt) + len(response) - 1
                trees.append([])
            trees[-1].append(Branch(i, n_shared, n_shared))
    return trees


def n_fed(pairs: Sequence[Pair], tree: Tree) -> int:
    """Number of tokens in a token tree that go through the model; the last token of each response does not."""
    own = sum(len(pairs[i][1]) - n_shared - 1 for i, n_shared, _ in tree)
    return len(pairs[tree[0].position][0]) + own


def plan_pack(pairs: Sequence[Pair], trees: Sequence[Tree]) -> Inputs:
    """Arrange token trees in one row with T input tokens and N scored tokens.

    Returns
    -------
    dict of int64 arrays
        ``input_ids`` and ``position_ids`` of shape (T,): the tokens and their positions in their sequences.
        ``segments`` of shape (S, 4) with the columns q_start, q_end, prefix_start and prefix_end. The segments cover
        the row in order. The tokens [q_start, q_end) attend to all of [prefix_start, prefix_end) and to the tokens of
        their segment up to their own position. ``head_index``, ``target`` and ``response`` of shape (N,): the
        position in the row at which a token is predicted, the token, and the number of its response in the order of
        the trees. The responses are in ascending order, and the tokens of a response are in their own order.
    """
    fed, positions, segments, heads, targets = [], [], [], [], []
    end = 0
    for tree in trees:
        start = end
        for i, n_shared, first in tree:
            prompt, response = pairs[i]
            if not len(prompt) or not len(response):
                raise ValueError(
                    "a prompt or a response has no tokens, so the model has nothing to predict; leave out the pair, or "
                    "raise the length limit"
                )
            n_prompt, n_before = len(prompt), len(prompt) + n_shared if end > start else 0
            own = np.concatenate([prompt, response])[n_before:-1]
            begin, end = end, end + len(own)
            fed.append(own)
            positions.append(np.arange(n_before, n_before + len(own)))
            if len(own):
                segments.append((begin, end, start, start + n_before))
            # `path` contains the positions of the prompt's and the response's tokens in the packed row
            path = np.concatenate([np.arange(start, start + n_before), np.arange(begin, end)])
            heads.append(path[n_prompt - 1 + first :])
            targets.append(response[first:])
    return {
        "input_ids": np.concatenate(fed, dtype=np.int64),
        "position_ids": np.concatenate(positions, dtype=np.int64),
        "segments": np.array(segments, dtype=np.int64),
        "head_index": np.concatenate(heads, dtype=np.int64),
        "target": np.concatenate(targets, dtype=np.int64),
        "response": np.repeat(np.arange(len(targets)), [len(scored) for scored in targets]),
    }


def packed_comparisons(pairs: Sequence[Pair], scores_shared: bool = False) -> Inputs:
    """Layout of comparisons as token trees; each comparison takes two consecutive entries of ``pairs``.

    Parameters
    ----------
    pairs : sequence of (int array, int array)
        Prompt with response a and prompt with response b of each comparison; no part may be empty.
    scores_shared : bool
        If False, the common prefix of both responses is not scored. Its tokens have the same log-probability in both
        responses, so the margin is exact, but the log-probability of a response is not available. If True, every token
        of both responses is scored.

    Examples
    --------
    >>> prompt = np.array([1, 2])
    >>> inputs = packed_comparisons([(prompt, np.array([5, 6, 7])), (prompt, np.array([5, 9, 8]))])
    >>> inputs["input_ids"]
    array([1, 2, 5, 6, 9])
    >>> inputs["position_ids"]
    array([0, 1, 2, 3, 3])
    >>> inputs["segments"]  # 1 2 5 6 in order; 9 after 1 2 5
    array([[0, 4, 0, 0],
           [4, 5, 0, 3]])
    >>> inputs["head_index"], inputs["target"]
    (array([2, 3, 2, 4]), array([6, 7, 9, 8]))
    >>> inputs["response"]
    array([0, 0, 1, 1])
    """
    return plan_pack(pairs, comparison_trees(pairs, scores_shared))


def packed_responses(pairs: Sequence[Pair]) -> Inputs:
    """Layout in which each response is a tree of its own; every response token is scored."""
    return plan_pack(pairs, [[Branch(i, 0, 0)] for i in range(len(pairs))])


def padded_rows(pairs: Sequence[Pair], feed_last: bool = False) -> Inputs:
    """Layout with one right-padded row for each response; every response token is scored.

    No scored token follows the last token of a row, so the last token is an input only if ``feed_last`` is True.
    """
    n_prompt, n_response = np.array([[len(part) for part in pair] for pair in pairs]).T[:, :, None]
    lengths = n_prompt + n_response - (not feed_last)
    column = np.arange(lengths.max())
    is_fed = column < lengths
    input_ids = np.zeros(is_fed.shape, dtype=np.int64)
    whole = [np.concatenate(pair)[:n] for pair, n in zip(pairs, lengths[:, 0], strict=True)]
    input_ids[is_fed] = np.concatenate(whole)
    is_head = (column >= n_prompt - 1) & (column < n_prompt + n_response - 1)
    return {
        "input_ids": input_ids,
        "attention_mask": is_fed.astype(np.int64),
        "head_index": np.flatnonzero(is_head),
        "target": np.concatenate([response for _, response in pairs], dtype=np.int64),
        "response": np.nonzero(is_head)[0],
    }


def bin_pack(
    lengths: Sequence[int] | np.ndarray, token_budget: int | None = None, n_bins: int = 0
) -> list[list[int]]:
    """Distribute items over bins of at most ``token_budget`` tokens, or over ``n_bins`` bins of about equal size."""
    bins: list[list[int]] = [[] for _ in range(n_bins)]
    loads = [0] * n_bins
    for item in np.argsort(-np.asarray(lengths), kind="stable").tolist():
        if token_budget is None:
            chosen = loads.index(min(loads))
        else:
            room = token_budget - lengths[item]
            chosen = next((i for i, load in enumerate(loads) if load <= room), len(bins))
        if chosen == len(bins):
            bins.append([])
            loads.append(0)
        bins[chosen].append(item)
        loads[chosen] += int(lengths[item])
    return [sorted(members) for members in bins]
