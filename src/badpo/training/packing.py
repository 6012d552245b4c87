"""Comparisons as token trees, laid end to end in one flat row.

The two responses of a comparison continue the same prompt and often begin with the same words. A comparison is
therefore a *trunk*, the prompt and all that both responses begin with, and two *branches*. The trunk is fed to
the model once. Several comparisons lie one after the other in a flat row without padding, and a table of segments
says which tokens see which. This module knows token ids only; `badpo.training.attention` runs the model on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

ScoredTokens = Literal["unshared", "all"]


class Tree(NamedTuple):
    """One comparison as a trunk and two branches.

    Attributes
    ----------
    trunk : int64 array of shape (n_trunk,)
        The prompt followed by the tokens that both responses begin with.
    branch_a, branch_b : int64 arrays, at least one token each
        What is left of either response. The last token of a branch is predicted but never fed.
    n_shared : int
        How many response tokens are part of the trunk.
    """

    trunk: np.ndarray
    branch_a: np.ndarray
    branch_b: np.ndarray
    n_shared: int

    @property
    def n_fed(self) -> int:
        """Tokens that go through the model: the trunk once, and each branch without its last token."""
        return len(self.trunk) + len(self.branch_a) + len(self.branch_b) - 2


@dataclass(frozen=True)
class Pack:
    """Several comparisons, or several responses, in one flat row: T tokens fed, N tokens scored, S segments.

    Attributes
    ----------
    input_ids : int64 array of shape (T,)
        Tokens fed to the model.
    position_ids : int64 array of shape (T,)
        The position of each token in its own sequence, counted from 0.
    segments : int64 array of shape (S, 4)
        Columns q_start, q_end, prefix_start, prefix_end, in the order of the row and covering it. The tokens
        [q_start, q_end) see all of [prefix_start, prefix_end) and, among themselves, those up to their own place.
    head_index : int64 array of shape (N,)
        Where in the row the next-token prediction is scored.
    target : int64 array of shape (N,)
        The token scored there.
    response : int64 array of shape (N,)
        The response it belongs to: 2 * comparison + (0 for a, 1 for b), counted within the pack; in a pack of
        single responses, the response. Ascending, and in token order within a response.
    first_scored : int64 array of shape (n_comparisons,)
        How many leading tokens of both responses are not scored.
    """

    input_ids: np.ndarray
    position_ids: np.ndarray
    segments: np.ndarray
    head_index: np.ndarray
    target: np.ndarray
    response: np.ndarray
    first_scored: np.ndarray

    @classmethod
    def of(cls, fed, positions, segments, heads, targets, n_scored, first_scored) -> Pack:
        """The pack made of parts in the order of the row, and of one count of scored tokens per response."""
        return cls(
            _flat(fed),
            _flat(positions),
            np.array(segments, dtype=np.int64).reshape(-1, 4),
            _flat(heads),
            _flat(targets),
            np.repeat(np.arange(len(n_scored)), n_scored),
            np.array(first_scored, dtype=np.int64),
        )

    @property
    def inputs(self) -> dict[str, np.ndarray]:
        """What the model is given: everything but ``first_scored``."""
        return {name: value for name, value in vars(self).items() if name != "first_scored"}


def shared_length(a_ids: np.ndarray, b_ids: np.ndarray) -> int:
    """How many leading tokens two responses share, leaving at least one token to each."""
    limit = min(len(a_ids), len(b_ids)) - 1
    differs = np.flatnonzero(a_ids[:limit] != b_ids[:limit])
    return int(differs[0]) if len(differs) else limit


def require_tokens(prompt_ids: np.ndarray, response_ids: np.ndarray) -> None:
    """Raise ValueError where a prompt or a response is empty: there is nothing to predict from or to."""
    if len(prompt_ids) == 0 or len(response_ids) == 0:
        raise ValueError(
            "a prompt or a response has no tokens, so that there is nothing to predict from or to"
        )


def build_tree(prompt_ids: np.ndarray, a_ids: np.ndarray, b_ids: np.ndarray) -> Tree:
    """The comparison of two responses to one prompt as a trunk and two branches, found on token ids."""
    for name, ids in (("prompt", prompt_ids), ("response a", a_ids), ("response b", b_ids)):
        if len(ids) == 0:
            raise ValueError(f"the {name} has no tokens; leave the comparison out, or raise the length limit")
    n_shared = shared_length(a_ids, b_ids)
    trunk = np.concatenate([prompt_ids, a_ids[:n_shared]])
    return Tree(trunk, a_ids[n_shared:], b_ids[n_shared:], n_shared)


def plan_pack(
    comparisons: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]], scored_tokens: ScoredTokens = "unshared"
) -> Pack:
    """Comparisons (prompt_ids, a_ids, b_ids) laid end to end in one flat row, each prefix once.

    Parameters
    ----------
    comparisons : sequence of (int array, int array, int array)
        Prompt, response a, response b of each; no part may be empty.
    scored_tokens : "unshared" or "all"
        ``unshared`` scores the branches only. The tokens that both responses begin with have the same
        log-probability in both, so the difference between the responses, and with it the margin, is exact; a
        response's own log-probability is not available. ``all`` scores every response token, those of the trunk
        once for either side.

    Examples
    --------
    >>> pack = plan_pack([(np.array([1, 2]), np.array([5, 6, 7]), np.array([5, 9, 8]))])
    >>> pack.input_ids
    array([1, 2, 5, 6, 9])
    >>> pack.position_ids
    array([0, 1, 2, 3, 3])
    >>> pack.segments  # 1 2 5 6 in order; 9 after 1 2 5
    array([[0, 4, 0, 0],
           [4, 5, 0, 3]])
    >>> pack.head_index, pack.target
    (array([2, 3, 2, 4]), array([6, 7, 9, 8]))
    >>> pack.response, pack.first_scored
    (array([0, 0, 1, 1]), array([1]))
    """
    fed, positions, segments, heads, targets, n_scored, first_scored = [], [], [], [], [], [], []
    start = 0
    for prompt_ids, a_ids, b_ids in comparisons:
        trunk, a, b, n_shared = build_tree(prompt_ids, a_ids, b_ids)
        fork = start + len(trunk) - 1
        a_end = fork + len(a)
        b_end = a_end + len(b) - 1
        fed += [trunk, a[:-1], b[:-1]]
        positions += [np.arange(a_end - start), np.arange(len(trunk), len(trunk) + len(b) - 1)]
        segments.append((start, a_end, start, start))
        if b_end > a_end:
            segments.append((a_end, b_end, start, fork + 1))
        first = n_shared if scored_tokens == "unshared" else 0
        shared = np.arange(fork - n_shared + first, fork)
        heads += [shared, np.arange(fork, a_end), shared, [fork], np.arange(a_end, b_end)]
        targets += [a_ids[first:], b_ids[first:]]
        n_scored += [len(a_ids) - first, len(b_ids) - first]
        first_scored.append(first)
        start = b_end
    return Pack.of(fed, positions, segments, heads, targets, n_scored, first_scored)


def plan_responses(pairs: Sequence[Pair]) -> Pack:
    """Single responses (prompt_ids, response_ids) laid end to end in one flat row, every response token scored."""
    for prompt_ids, response_ids in pairs:
        require_tokens(prompt_ids, response_ids)
    return plan_stars(pairs, [Star([i], [0], n_fed=0) for i in range(len(pairs))])


def packed_layout(
    prompts: Sequence[np.ndarray],
    a_ids: Sequence[np.ndarray],
    b_ids: Sequence[np.ndarray],
    scored_tokens: ScoredTokens = "unshared",
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Model inputs that score both responses of some comparisons in one flat row."""
    pack = plan_pack(list(zip(prompts, a_ids, b_ids, strict=True)), scored_tokens)
    return pack.inputs, pack.first_scored


def bin_pack(
    lengths: Sequence[int] | np.ndarray, token_budget: int | None = None, n_bins: int | None = None
) -> list[np.ndarray]:
    """Items shared out over bins, longest first; the same lengths always give the same bins."""
    lengths = np.asarray(lengths, dtype=np.int64)
    bins: list[list[int]] = [[] for _ in range(n_bins or 0)]
    loads = [0] * len(bins)
    for item in np.argsort(-lengths, kind="stable"):
        if token_budget is None:
            chosen = min(range(len(bins)), key=loads.__getitem__)
        else:
            room = token_budget - lengths[item]
            chosen = next((i for i, load in enumerate(loads) if load <= room), len(bins))
        if chosen == len(bins):
            bins.append([])
            loads.append(0)
        bins[chosen].append(int(item))
        loads[chosen] += int(lengths[item])
    return [np.array(sorted(members), dtype=np.int64) for members in bins]


def _flat(parts: Sequence) -> np.ndarray:
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts]).astype(np.int64, copy=False)


Pair = tuple[np.ndarray, np.ndarray]


class Star(NamedTuple):
    """Responses to one prompt, as positions in a list of (prompt ids, response ids).

    Attributes
    ----------
    members : list of int
        The first is laid out in full.
    n_shared : list of int
        How many leading tokens of each response are those of the first one; 0 for the first itself.
    n_fed : int
        Tokens that go through the model.
    """

    members: list[int]
    n_shared: list[int]
    n_fed: int


def response_stars(pairs: Sequence[Pair], token_budget: int) -> list[Star]:
    """Responses grouped into stars of at most ``token_budget`` tokens, unless one response alone has more.

    Responses to a prompt that begin alike share their beginning too, where that saves more than another copy of
    the prompt costs.
    """
    by_prompt: dict[bytes, list[int]] = {}
    for i, (prompt, response) in enumerate(pairs):
        require_tokens(prompt, response)
        by_prompt.setdefault(np.ascontiguousarray(prompt, dtype=np.int64).tobytes(), []).append(i)
    stars = []
    for members in by_prompt.values():
        for group in _alike(pairs, members):
            stars += _within_budget(pairs, group, token_budget)
    return stars


def plan_stars(pairs: Sequence[Pair], stars: Sequence[Star]) -> Pack:
    """Stars laid end to end in one flat row.

    Every token of the first response of a star is scored, and of the others those that they do not share with it;
    ``first_scored`` says how many are left out, one entry per response in the order of the stars.
    """
    fed, positions, segments, heads, targets, n_scored, first_scored = [], [], [], [], [], [], []
    start = 0
    for star in stars:
        prompt, first = pairs[star.members[0]]
        end = start + len(prompt) + len(first) - 1
        fed += [prompt, first[:-1]]
        positions.append(np.arange(end - start))
        segments.append((start, end, start, start))
        heads.append(np.arange(start + len(prompt) - 1, end))
        targets.append(first)
        n_scored.append(len(first))
        for member, n_shared in zip(star.members[1:], star.n_shared[1:], strict=True):
            own = pairs[member][1][n_shared:]
            fork = start + len(prompt) + n_shared
            fed.append(own[:-1])
            positions.append(np.arange(fork - start, fork - start + len(own) - 1))
            if len(own) > 1:
                segments.append((end, end + len(own) - 1, start, fork))
            heads += [np.array([fork - 1]), np.arange(end, end + len(own) - 1)]
            targets.append(own)
            n_scored.append(len(own))
            end += len(own) - 1
        first_scored += star.n_shared
        start = end
    return Pack.of(fed, positions, segments, heads, targets, n_scored, first_scored)


def _alike(pairs: Sequence[Pair], members: list[int]) -> list[list[int]]:
    """The responses to one prompt, split where a second copy of the prompt is worth its tokens."""
    n_prompt = len(pairs[members[0]][0])
    in_order = sorted(members, key=lambda i: pairs[i][1].tolist())
    runs: list[list[int]] = []
    saved = 0
    for i in in_order:
        n_shared = shared_length(pairs[runs[-1][0]][1], pairs[i][1]) if runs else 0
        if n_shared:
            runs[-1].append(i)
            saved += n_shared
            continue
        # what the last run saves besides the prompt decides whether it stays apart
        if len(runs) > 1 and saved <= n_prompt:
            runs[0] += runs.pop()
        runs.append([i])
        saved = 0
    if len(runs) > 1 and saved <= n_prompt:
        runs[0] += runs.pop()
    return runs


def _within_budget(pairs: Sequence[Pair], group: list[int], token_budget: int) -> list[Star]:
    stars = []
    members: list[int] = []
    n_shared: list[int] = []
    n_fed = 0
    for i in group:
        prompt, response = pairs[i]
        shared = shared_length(pairs[members[0]][1], response) if members else 0
        cost = len(response) - shared - 1
        if members and n_fed + cost > token_budget:
            stars.append(Star(members, n_shared, n_fed))
            members, n_shared, n_fed = [], [], 0
            shared, cost = 0, len(response) - 1
        if not members:
            n_fed = len(prompt)
        members.append(i)
        n_shared.append(shared)
        n_fed += cost
    stars.append(Star(members, n_shared, n_fed))
    return stars
