"""How prompts and responses lie in one forward: as token trees end to end in a flat row, or as padded rows.

Responses to one prompt often begin with the same words. A tree holds some of them: the prompt and the first response
in full, and of each other response what follows the tokens that the first begins with too. Each shared token goes
through the model once. Trees lie one after the other in a flat row without padding, and a table of segments says which
tokens see which. This module knows token ids only; `badpo.training.attention` runs the model on them.

A layout takes pairs (prompt ids, response ids) and returns the inputs of the scoring forward, as described at
`plan_pack`, and how many leading tokens of each response are not scored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

ScoredTokens = Literal["unshared", "all"]
Pair = tuple[np.ndarray, np.ndarray]
Inputs = dict[str, np.ndarray]
Layout = Callable[[Sequence[Pair]], tuple[Inputs, np.ndarray]]


class Tree(NamedTuple):
    """Responses to one prompt that share its tokens.

    Attributes
    ----------
    members : list of int
        Positions in a list of pairs. The first is laid out in full.
    n_shared : list of int
        How many leading tokens of each response are those of the first one; 0 for the first itself.
    first_scored : list of int
        How many leading tokens of each response are not scored.
    """

    members: list[int]
    n_shared: list[int]
    first_scored: list[int]


def shared_length(a_ids: np.ndarray, b_ids: np.ndarray) -> int:
    """How many leading tokens two responses share, leaving at least one token to each."""
    limit = max(min(len(a_ids), len(b_ids)) - 1, 0)
    differs = np.flatnonzero(a_ids[:limit] != b_ids[:limit])
    return int(differs[0]) if len(differs) else limit


def comparison_trees(pairs: Sequence[Pair], scored_tokens: ScoredTokens = "unshared") -> list[Tree]:
    """A tree of each two pairs that follow each other: the responses a and b of a comparison."""
    trees = []
    for i in range(0, len(pairs), 2):
        n_shared = shared_length(pairs[i][1], pairs[i + 1][1])
        first = n_shared if scored_tokens == "unshared" else 0
        trees.append(Tree([i, i + 1], [0, n_shared], [first, first]))
    return trees


def response_trees(pairs: Sequence[Pair], token_budget: int) -> list[Tree]:
    """Responses to the same prompt in trees of at most ``token_budget`` tokens, unless one response alone has more.

    A token that a response shares with the first of its tree is scored there only.
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
                trees.append(Tree([], [], []))
            for column, value in zip(trees[-1], (i, n_shared, n_shared), strict=True):
                column.append(value)
    return trees


def n_fed(pairs: Sequence[Pair], tree: Tree) -> int:
    """Tokens of a tree that go through the model: a response's last token is predicted but never fed."""
    own = (len(pairs[i][1]) - n - 1 for i, n in zip(tree.members, tree.n_shared, strict=True))
    return len(pairs[tree.members[0]][0]) + sum(own)


def plan_pack(pairs: Sequence[Pair], trees: Sequence[Tree]) -> tuple[Inputs, np.ndarray]:
    """Trees laid end to end in one flat row of T fed and N scored tokens.

    Returns
    -------
    inputs : dict of int64 arrays
        ``input_ids``, ``position_ids`` of shape (T,): the tokens, and the position of each in its own sequence.
        ``segments`` of shape (S, 4): columns q_start, q_end, prefix_start, prefix_end, in the order of the row and
        covering it. The tokens [q_start, q_end) see all of [prefix_start, prefix_end) and, among themselves, those up
        to their own place.
        ``head_index``, ``target``, ``response`` of shape (N,): where in the row a next token is predicted, that token,
        and the number of its response in the order of the trees. Ascending, and in token order within a response.
    first_scored : int64 array of shape (n_responses,)
    """
    fed, positions, segments, heads, targets, n_scored = [], [], [], [], [], []
    end = 0
    for tree in trees:
        start = end
        for i, n_shared, first in zip(*tree, strict=True):
            prompt, response = pairs[i]
            if not len(prompt) or not len(response):
                raise ValueError(
                    "a prompt or a response has no tokens, so that there is nothing to predict from or to; leave it "
                    "out, or raise the length limit"
                )
            own = response[n_shared:-1]
            root, fork = start + len(prompt) - 1, start + len(prompt) + n_shared
            is_first = end == start
            prefix_end = start if is_first else fork
            begin, end = end, end + len(own) + (len(prompt) if is_first else 0)
            fed += [prompt, own] if is_first else [own]
            positions.append(np.arange(begin, end) - begin + prefix_end - start)
            if end > begin:
                segments.append((begin, end, start, prefix_end))
            path = np.arange(root, end)
            if not is_first:
                path = np.concatenate([np.arange(root, fork), np.arange(begin, end)])
            heads.append(path[first:])
            targets.append(response[first:])
            n_scored.append(len(response) - first)
    inputs = {
        "input_ids": _flat(fed),
        "position_ids": _flat(positions),
        "segments": np.array(segments, dtype=np.int64).reshape(-1, 4),
        "head_index": _flat(heads),
        "target": _flat(targets),
        "response": np.repeat(np.arange(len(n_scored)), n_scored),
    }
    return inputs, _flat([tree.first_scored for tree in trees])


def packed_comparisons(
    pairs: Sequence[Pair], scored_tokens: ScoredTokens = "unshared"
) -> tuple[Inputs, np.ndarray]:
    """The layout of comparisons, two pairs each, as trees.

    Parameters
    ----------
    pairs : sequence of (int array, int array)
        Prompt with response a, prompt with response b, and so on; no part may be empty.
    scored_tokens : "unshared" or "all"
        ``unshared`` leaves out what both responses begin with. Those tokens have the same log-probability in both, so
        the difference between the responses, and with it the margin, is exact; a response's own log-probability is
        not available. ``all`` scores every response token, those of the trunk once for either side.

    Examples
    --------
    >>> prompt = np.array([1, 2])
    >>> inputs, first_scored = packed_comparisons([(prompt, np.array([5, 6, 7])), (prompt, np.array([5, 9, 8]))])
    >>> inputs["input_ids"]
    array([1, 2, 5, 6, 9])
    >>> inputs["position_ids"]
    array([0, 1, 2, 3, 3])
    >>> inputs["segments"]  # 1 2 5 6 in order; 9 after 1 2 5
    array([[0, 4, 0, 0],
           [4, 5, 0, 3]])
    >>> inputs["head_index"], inputs["target"]
    (array([2, 3, 2, 4]), array([6, 7, 9, 8]))
    >>> inputs["response"], first_scored
    (array([0, 0, 1, 1]), array([1, 1]))
    """
    return plan_pack(pairs, comparison_trees(pairs, scored_tokens))


def packed_responses(pairs: Sequence[Pair]) -> tuple[Inputs, np.ndarray]:
    """The layout of single responses, each a tree of its own, every response token scored."""
    return plan_pack(pairs, [Tree([i], [0], [0]) for i in range(len(pairs))])


def padded_rows(pairs: Sequence[Pair], feed_last: bool = False) -> tuple[Inputs, np.ndarray]:
    """The layout of one right-padded row per response, every response token scored.

    The last token of a row is fed only where it is asked for: nothing after it is predicted.
    """
    whole = [np.concatenate(pair) for pair in pairs]
    lengths = np.array([len(row) - (not feed_last) for row in whole])
    n_scored = [len(response) for _, response in pairs]
    width = int(lengths.max())
    input_ids = np.zeros((len(pairs), width), dtype=np.int64)
    for row, tokens, length in zip(input_ids, whole, lengths, strict=True):
        row[:length] = tokens[:length]
    starts = [i * width + len(prompt) - 1 for i, (prompt, _) in enumerate(pairs)]
    inputs = {
        "input_ids": input_ids,
        "attention_mask": (np.arange(width) < lengths[:, None]).astype(np.int64),
        "head_index": _flat([start + np.arange(n) for start, n in zip(starts, n_scored, strict=True)]),
        "target": _flat([response for _, response in pairs]),
        "response": np.repeat(np.arange(len(pairs)), n_scored),
    }
    return inputs, np.zeros(len(pairs), dtype=np.int64)


def bin_pack(
    lengths: Sequence[int] | np.ndarray, token_budget: int | None = None, n_bins: int = 0
) -> list[np.ndarray]:
    """Items shared out, longest first: over bins within a budget, or over ``n_bins`` of about equal loads."""
    lengths = np.asarray(lengths, dtype=np.int64)
    bins: list[list[int]] = [[] for _ in range(n_bins)]
    loads = [0] * n_bins
    for item in np.argsort(-lengths, kind="stable"):
        if token_budget is None:
            chosen = min(range(n_bins), key=loads.__getitem__)
        else:
            room = token_budget - lengths[item]
            chosen = next((i for i, load in enumerate(loads) if load <= room), len(bins))
        if chosen == len(bins):
            bins.append([])
            loads.append(0)
        bins[chosen].append(int(item))
        loads[chosen] += int(lengths[item])
    return [np.array(sorted(members), dtype=np.int64) for members in bins]


def _flat(parts: Sequence[Any]) -> np.ndarray:
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts]).astype(np.int64, copy=False)
