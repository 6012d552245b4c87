"""Null spaces of large sparse systems, found by merging unknowns first and factorizing only what is left."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.linalg import cho_solve, lapack
from scipy.sparse import csgraph

# Relative size below which a coefficient is rounding and not data.
NEGLIGIBLE = 1e-10

# Unknowns solved at once: the factorization is cubic in it, the passes over the equations are inversely linear.
CORE_SIZE = 1200


def null_basis(equations: sparse.sparray) -> sparse.csr_array:
    """Independent solutions x of ``equations @ x = 0``, one per column.

    Parameters
    ----------
    equations : sparse array of shape (n_equations, n_unknowns)
        With coefficients of order 1; those below 1e-10 are taken for rounding.

    Returns
    -------
    sparse array of shape (n_unknowns, nullity)
        Not orthogonal. An unknown that is zero in every solution has an empty row.

    Notes
    -----
    Equations with one term, with two of equal size, or with an unknown of their own are solved on the spot. What
    remains falls into connected blocks, each solved by pivoted Cholesky factorizations of Gram matrices. In a large
    block the unknowns with most equations are solved first, from the equations among themselves, and substituted;
    where that determines too little, more of them are taken at once, and the cost becomes cubic in the size of the
    block.

    Examples
    --------
    x0 = x1 and x2 = 0, with x3 free:

    >>> null_basis(sparse.csr_array([[1.0, -1.0, 0.0, 0.0], [0.0, 0.0, 2.0, 0.0]])).shape
    (4, 2)
    """
    merged, remaining = _merge_unknowns(sparse.csr_array(equations))
    basis = sparse.csr_array(merged @ _blockwise_null_basis(remaining))
    basis = sparse.csr_array(basis @ sparse.diags_array(1.0 / abs(basis).max(axis=0).toarray().ravel()))
    basis.data[np.abs(basis.data) < NEGLIGIBLE] = 0.0
    basis.eliminate_zeros()
    return basis


def cycle_equations(source: ArrayLike, target: ArrayLike) -> sparse.csr_array:
    """Which signed sums of edge values vanish when every edge value is a difference of two node values.

    Parameters
    ----------
    source, target : array of int of shape (n_edges,)
        The value of an edge is node value at its source minus node value at its target.

    Returns
    -------
    sparse array of shape (n_cycles, n_edges)
        One row per independent cycle of the graph, with entries +1 and -1. An edge from a node to itself is a cycle.

    Examples
    --------
    A triangle 0 - 1, 1 - 2, 0 - 2: the third value is the sum of the first two.

    >>> float(abs(cycle_equations([0, 1, 0], [1, 2, 2]) @ np.array([5.0, 2.0, 7.0])).max())
    0.0
    """
    names, ends = np.unique(np.stack([source, target]), return_inverse=True)
    a, b = ends.reshape(2, -1)
    parent, depth = _spanning_forest(a, b, len(names))
    tree_edge: dict[tuple[int, int], int] = {}
    for edge, pair in enumerate(zip(a.tolist(), b.tolist(), strict=True)):
        child = max(pair, key=depth.__getitem__)
        if parent[child] in pair and parent[child] != child:
            tree_edge.setdefault((child, parent[child]), edge)

    rows: list[tuple[int, int, float]] = []
    closing = sorted(set(range(len(a))) - set(tree_edge.values()))
    for row, edge in enumerate(closing):
        rows.append((row, edge, 1.0))
        up, down = int(a[edge]), int(b[edge])
        while up != down:
            from_a = depth[up] >= depth[down]
            node = up if from_a else down
            step = tree_edge[node, parent[node]]
            toward_root = 1.0 if a[step] == node else -1.0
            rows.append((row, step, -toward_root if from_a else toward_root))
            up, down = (parent[node], down) if from_a else (up, parent[node])
    cycle, edges, values = np.array(rows).reshape(-1, 3).T
    entries = (values, (cycle.astype(np.intp), edges.astype(np.intp)))
    return sparse.csr_array(sparse.coo_array(entries, shape=(len(closing), len(a))))


def _spanning_forest(a: NDArray, b: NDArray, n_nodes: int) -> tuple[list[int], list[int]]:
    """Parent and depth of every node of a graph, breadth first; a root's parent is the extra node ``n_nodes``."""
    shape = (n_nodes + 1, n_nodes + 1)
    component = csgraph.connected_components(
        sparse.coo_array((np.ones(len(a)), (a, b)), shape=shape), directed=False
    )[1]
    roots = np.unique(component[:n_nodes], return_index=True)[1]
    source, target = np.concatenate([a, np.full(len(roots), n_nodes)]), np.concatenate([b, roots])
    graph = sparse.csr_array(sparse.coo_array((np.ones(len(source)), (source, target)), shape=shape))
    order, before = csgraph.breadth_first_order(graph, n_nodes, directed=False)
    parent, depth = before.tolist(), [0] * (n_nodes + 1)
    for node in order[1:].tolist():
        depth[node] = depth[parent[node]] + 1
    return parent, depth


def _merge_unknowns(equations: sparse.csr_array) -> tuple[sparse.csr_array, sparse.csr_array]:
    """Solve every equation x = 0 or x = +-y, and every equation that holds an unknown of its own.

    Returns the old unknowns as combinations of the new ones, and the other equations in the new unknowns.
    """
    merged = sparse.csr_array(sparse.eye_array(equations.shape[1]))
    equations = _significant(equations)
    while True:
        simple = _is_simple(equations)
        step = _merge(equations[np.flatnonzero(simple)]) if simple.any() else None
        if step is None:
            step, simple = _solve_leaves(equations)
        if not simple.any():
            return merged, equations
        merged = sparse.csr_array(merged @ step)
        equations = _significant(sparse.csr_array(equations[np.flatnonzero(~simple)] @ step))


def _solve_leaves(equations: sparse.csr_array) -> tuple[sparse.csr_array, NDArray[np.bool_]]:
    """Unknowns that occur in one equation only, in terms of the others in it; and which equations that uses up."""
    n_equations, n = equations.shape
    row = np.repeat(np.arange(n_equations), np.diff(equations.indptr))
    size = np.abs(equations.data)
    largest = np.zeros(n_equations)
    np.maximum.at(largest, row, size)
    occurs = np.bincount(equations.indices, minlength=n)
    # a small coefficient would make large combinations
    candidates = np.flatnonzero((occurs[equations.indices] == 1) & (size > 0.5 * largest[row]))
    solved, at = np.unique(row[candidates], return_index=True)
    leaf, pivot = equations.indices[candidates[at]], equations.data[candidates[at]]
    used = np.zeros(n_equations, dtype=bool)
    used[solved] = True

    by_leaf = sparse.coo_array((-1.0 / pivot, (leaf, solved)), shape=(n, n_equations))
    step = sparse.csr_array(sparse.eye_array(n) + by_leaf @ equations)
    return sparse.csr_array(step[:, np.setdiff1d(np.arange(n), leaf)]), used


def _significant(equations: sparse.csr_array) -> sparse.csr_array:
    """The equations without rounding and without empty rows."""
    equations.sum_duplicates()
    equations.data[np.abs(equations.data) < NEGLIGIBLE] = 0.0
    equations.eliminate_zeros()
    return equations[np.flatnonzero(np.diff(equations.indptr))]


def _is_simple(equations: sparse.csr_array) -> NDArray[np.bool_]:
    n_terms = np.diff(equations.indptr)
    size = np.abs(equations.data)
    first, last = size[equations.indptr[:-1]], size[equations.indptr[1:] - 1]
    return (n_terms == 1) | ((n_terms == 2) & (np.abs(first - last) < NEGLIGIBLE * first))


def _merge(equations: sparse.csr_array) -> sparse.csr_array:
    """Unknowns as signed copies of fewer: connected components of the graph that has every x and every -x as nodes."""
    n = equations.shape[1]
    first, last = equations.indptr[:-1], equations.indptr[1:] - 1
    x, y = equations.indices[first].astype(np.intp), equations.indices[last].astype(np.intp)
    # one term: x = -x; two terms of unequal sign: x = y; of equal sign: x = -y
    opposite = equations.data[first] * equations.data[last] > 0
    source, target = np.concatenate([x, x + n]), np.concatenate([y + n * opposite, y + n * ~opposite])
    graph = sparse.coo_array((np.ones(len(source)), (source, target)), shape=(2 * n, 2 * n))
    plus, minus = csgraph.connected_components(graph, directed=False)[1].reshape(2, n)
    kept = np.flatnonzero(plus != minus)
    names, column = np.unique(np.minimum(plus, minus)[kept], return_inverse=True)
    signs = np.where(plus < minus, 1.0, -1.0)[kept]
    return sparse.csr_array(sparse.coo_array((signs, (kept, column)), shape=(n, len(names))))


def _blockwise_null_basis(equations: sparse.csr_array) -> sparse.csr_array:
    n_equations, n = equations.shape
    coordinates = equations.tocoo()
    edges = (np.ones(equations.nnz), (coordinates.col, n + coordinates.row))
    graph = sparse.coo_array(edges, shape=(n + n_equations, n + n_equations))
    labels = csgraph.connected_components(graph, directed=False)[1]
    touched = np.zeros(n, dtype=bool)
    touched[equations.indices] = True

    free = np.flatnonzero(~touched)
    pieces = [sparse.coo_array((np.ones(len(free)), (free, np.arange(len(free)))), shape=(n, len(free)))]
    blocks = np.unique(labels[n:])
    unknowns, rows = _members(labels[:n], blocks), _members(labels[n:], blocks)
    for block_unknowns, block_rows in zip(unknowns, rows, strict=True):
        solutions = sparse.coo_array(_block_null_basis(equations[block_rows][:, block_unknowns]))
        entries = (solutions.data, (block_unknowns[solutions.row], solutions.col))
        pieces.append(sparse.coo_array(entries, shape=(n, solutions.shape[1])))
    return sparse.csr_array(sparse.hstack(pieces))


def _members(labels: NDArray, groups: NDArray) -> list[NDArray[np.intp]]:
    order = np.argsort(labels, kind="stable")
    start, stop = (np.searchsorted(labels[order], groups, side=side) for side in ("left", "right"))
    return [order[i:j] for i, j in zip(start, stop, strict=True)]


def _block_null_basis(equations: sparse.csr_array) -> sparse.csr_array:
    solved = sparse.csr_array(sparse.eye_array(equations.shape[1]))
    size = CORE_SIZE
    while equations.shape[1] > size:
        step = _solve_core(equations, size)
        if step is None:
            size *= 2
            continue
        solved, equations = sparse.csr_array(solved @ step), _significant(sparse.csr_array(equations @ step))
    basis = _combinations(equations, _factorize(equations, tolerance=1e-9))
    basis = _without_spurious(equations, basis / np.abs(basis).max(axis=0, initial=0.0))
    return sparse.csr_array(solved @ sparse.csr_array(basis))


def _solve_core(equations: sparse.csr_array, size: int) -> sparse.csr_array | None:
    """The unknowns in terms of fewer: those with most equations, solved from the equations among themselves.

    None when these equations determine less than nine tenths of them.
    """
    n = equations.shape[1]
    degree = np.bincount(equations.indices, minlength=n)
    in_core = np.zeros(n, dtype=bool)
    in_core[np.argsort(-degree, kind="stable")[:size]] = True
    inside = np.logical_and.reduceat(in_core[equations.indices], equations.indptr[:-1])
    core, other = np.flatnonzero(in_core), np.flatnonzero(~in_core)
    among = equations[np.flatnonzero(inside)][:, core]
    # only large pivots: the others are left to a later round, so that rounding does not grow from round to round
    factors = _factorize(among, tolerance=1e-3)
    if len(factors.free) > size // 10:
        return None
    solutions = sparse.coo_array(_combinations(among, factors))
    row = np.concatenate([core[solutions.row], other])
    column = np.concatenate([solutions.col, solutions.shape[1] + np.arange(len(other))])
    value = np.concatenate([solutions.data, np.ones(len(other))])
    return sparse.csr_array(
        sparse.coo_array((value, (row, column)), shape=(n, solutions.shape[1] + len(other)))
    )


class _Factors(NamedTuple):
    """Pivoted Cholesky factors of a Gram matrix scaled to a unit diagonal."""

    triangle: NDArray[np.float64]
    solved: NDArray[np.intp]
    free: NDArray[np.intp]
    scale: NDArray[np.float64]


def _factorize(equations: sparse.csr_array, tolerance: float) -> _Factors:
    gram = (equations.T @ equations).toarray()
    scale = np.sqrt(np.diag(gram))
    scale[scale == 0] = 1.0
    gram /= scale[:, None]
    gram /= scale
    factor, pivot, rank, _ = lapack.dpstrf(gram, tol=tolerance)
    return _Factors(factor[:rank, :rank], pivot[:rank] - 1, pivot[rank:] - 1, scale)


def _combinations(equations: sparse.csr_array, factors: _Factors) -> NDArray[np.float64]:
    """The unknowns (n,) as combinations of the free ones, one column for each.

    Every solution of the equations has this form; where pivots were left out, not everything of this form is one.
    """
    _, solved, free, scale = factors
    scaled = sparse.csr_array(equations @ sparse.diags_array(1.0 / scale))
    basis = np.zeros((len(scale), len(free)))
    basis[free] = np.eye(len(free))
    # the second pass corrects the first: a Gram matrix holds squares, and with them half of the digits
    for _ in range(2):
        basis[solved] -= cho_solve((factors.triangle, False), scaled[:, solved].T @ (scaled @ basis))
    return basis / scale[:, None] * scale[free]


def _without_spurious(equations: sparse.csr_array, basis: NDArray[np.float64]) -> NDArray[np.float64]:
    """The part of a basis that the equations themselves confirm.

    What the Gram matrix cannot tell from zero can be far above rounding in the equations. All solutions are among the
    columns; columns that leave a residual are kept only in combinations that leave none.
    """
    parts = np.array_split(basis, max(1, basis.shape[1] // 256), axis=1)
    residual = np.concatenate([np.abs(equations @ part).max(axis=0, initial=0.0) for part in parts])
    spurious = residual > NEGLIGIBLE
    if not spurious.any():
        return basis
    _, size, directions = np.linalg.svd(equations @ basis[:, spurious])
    size = np.pad(size, (0, len(directions) - len(size)))
    return np.hstack([basis[:, ~spurious], basis[:, spurious] @ directions[size <= NEGLIGIBLE].T])
