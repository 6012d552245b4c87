"""Responses to one prompt laid out together, so that the prompt goes through the model once for all of them.

Where every response is to be scored and the order is free, as for the reference, responses that continue the same
prompt form a *star*: the prompt with the first response laid out in full, and every other response as a branch that
leaves it where the two first differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from badpo.training.packing import Pack, require_tokens, shared_length

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
