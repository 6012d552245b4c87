"""Names as paths of tokens that share their beginnings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class NameTrie:
    """The tokens of several names, each shared beginning once; a node is one token after the tokens above it.

    Attributes
    ----------
    token : int array of shape (n_nodes,)
        Token id of each node. A parent stands before its children.
    parent : int array of shape (n_nodes,)
        The node before it; -1 for the first token of a name.
    depth : int array of shape (n_nodes,)
        Tokens before it in its name: 0 for a first token.
    paths : bool array of shape (n_nodes, n_names)
        Which nodes spell which name.
    """

    token: np.ndarray
    parent: np.ndarray
    depth: np.ndarray
    paths: np.ndarray

    def above(self) -> np.ndarray:
        """Bool array of shape (n_nodes, n_nodes): [i, j] is True where j is i or stands before i in its name."""
        found = np.eye(len(self.token), dtype=bool)
        for node, parent in enumerate(self.parent):
            if parent >= 0:
                found[node] |= found[parent]
        return found


def name_trie(token_ids: Sequence[Sequence[int]]) -> NameTrie:
    """The trie of names given as token ids."""
    nodes: dict[tuple[int, ...], int] = {}
    for ids in token_ids:
        for length in range(1, len(ids) + 1):
            nodes.setdefault(tuple(ids[:length]), len(nodes))
    paths = np.zeros((len(nodes), len(token_ids)), dtype=bool)
    for column, ids in enumerate(token_ids):
        for length in range(1, len(ids) + 1):
            paths[nodes[tuple(ids[:length])], column] = True
    return NameTrie(
        token=np.array([prefix[-1] for prefix in nodes], dtype=np.int64),
        parent=np.array([nodes.get(prefix[:-1], -1) for prefix in nodes], dtype=np.int64),
        depth=np.array([len(prefix) - 1 for prefix in nodes], dtype=np.int64),
        paths=paths,
    )
