"""Null spaces of sparse systems: unknowns are merged first, and what is left is factorized."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import cho_solve, lapack
from scipy.sparse import csgraph

# Relative size below which a coefficient is rounding and not data.
NEGLIGIBLE = 1e-10


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
    Equations with one term, and with two of equal size, are solved on the spot. What remains is solved by a pivoted
    Cholesky factorization of its Gram matrix, whose cost is cubic in the unknowns that are left.

    Examples
    --------
    x0 = x1 and x2 = 0, with x3 free:

    >>> null_basis(sparse.csr_array([[1.0, -1.0, 0.0, 0.0], [0.0, 0.0, 2.0, 0.0]])).shape
    (4, 2)
    """
    merged, remaining = _merge_unknowns(sparse.csr_array(equations))
    basis = sparse.csr_array(merged @ sparse.csr_array(_dense_null_basis(remaining)))
    basis = sparse.csr_array(basis @ sparse.diags_array(1.0 / abs(basis).max(axis=0).toarray().ravel()))
    basis.data[np.abs(basis.data) < NEGLIGIBLE] = 0.0
    basis.eliminate_zeros()
    return basis


def _merge_unknowns(equations: sparse.csr_array) -> tuple[sparse.csr_array, sparse.csr_array]:
    """Solve every equation x = 0 or x = +-y.

    Returns the old unknowns as combinations of the new ones, and the other equations in the new unknowns.
    """
    merged = sparse.csr_array(sparse.eye_array(equations.shape[1]))
    equations = _significant(equations)
    while True:
        simple = _is_simple(equations)
        if not simple.any():
            return merged, equations
        step = _merge(equations[np.flatnonzero(simple)])
        merged = sparse.csr_array(merged @ step)
        equations = _significant(sparse.csr_array(equations[np.flatnonzero(~simple)] @ step))


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


def _dense_null_basis(equations: sparse.csr_array) -> NDArray[np.float64]:
    n = equations.shape[1]
    gram = (equations.T @ equations).toarray()
    scale = np.sqrt(np.diag(gram))
    scale[scale == 0] = 1.0
    factor, pivot, rank, _ = lapack.dpstrf(gram / scale[:, None] / scale, tol=1e-9)
    solved, free = pivot[:rank] - 1, pivot[rank:] - 1
    scaled = sparse.csr_array(equations @ sparse.diags_array(1.0 / scale))
    basis = np.zeros((n, len(free)))
    basis[free] = np.eye(len(free))
    # the second pass corrects the first: a Gram matrix holds squares, and with them half of the digits
    for _ in range(2):
        basis[solved] -= cho_solve((factor[:rank, :rank], False), scaled[:, solved].T @ (scaled @ basis))
    basis = basis / scale[:, None] * scale[free]
    return _without_spurious(equations, basis / np.abs(basis).max(axis=0, initial=0.0))


def _without_spurious(equations: sparse.csr_array, basis: NDArray[np.float64]) -> NDArray[np.float64]:
    """The part of a basis that the equations themselves confirm.

    What the Gram matrix cannot tell from zero can be far above rounding in the equations. All solutions are among the
    columns; columns that leave a residual are kept only in combinations that leave none.
    """
    spurious = np.abs(equations @ basis).max(axis=0, initial=0.0) > NEGLIGIBLE
    if not spurious.any():
        return basis
    _, size, directions = np.linalg.svd(equations @ basis[:, spurious])
    size = np.pad(size, (0, len(directions) - len(size)))
    return np.hstack([basis[:, ~spurious], basis[:, spurious] @ directions[size <= NEGLIGIBLE].T])
