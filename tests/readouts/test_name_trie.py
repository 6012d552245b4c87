from __future__ import annotations

import numpy as np

from badpo.readouts.rates import name_trie


def test_paths_spell_the_names_in_order():
    names = [(7, 8), (7, 8, 9), (5,), (7, 6, 8), (5, 5)]
    trie = name_trie(names)
    for column, ids in enumerate(names):
        nodes = np.flatnonzero(trie.paths[:, column])
        assert tuple(trie.token[nodes]) == ids
        assert trie.depth[nodes].tolist() == list(range(len(ids)))
        assert trie.parent[nodes].tolist() == [-1, *nodes[:-1]]


def test_above_holds_a_node_and_what_stands_before_it():
    trie = name_trie([(1, 2, 3), (1, 4)])
    assert trie.above().astype(int).tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 0, 1]]
