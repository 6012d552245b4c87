r"""Determine which bias parameters the votes identify, and which parameters remain free.

The probability of a judgment depends only on the logit u_c + theta_k . d_j (times the sign of the vote). Two
parameter vectors therefore give every judgment the same probability if and only if their difference solves

.. math:: du_{c_j} + d\theta_{k_j}^\top d_j = 0 \qquad \text{for every judgment } j,

Eq. `null_system` of the paper. For one attribute of the responses, a graph (`annotator_components`) gives the number of
solutions: one free offset for each connected group of annotators. This number is valid if delta is the same for all
votes on a comparison and is a difference g(a) - g(b) between the responses. The number can be too high or too low for
attributes of the judgment (such as the response shown first), for attributes of the pair (such as the length ratio, if
a response occurs in several comparisons), and for collinear attributes. `free_directions` therefore solves the actual
system for all attributes together.

Each argument contains one entry per judgment. Comparisons and annotators are numbered from 0. ``delta``, of shape
(n_judgments, n_attributes) or (n_judgments,), is the difference of response a minus response b. By default,
``n_annotators`` is the largest annotator index plus 1.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.linalg import cho_solve
from scipy.linalg.lapack import dpstrf
from scipy.optimize import linprog
from scipy.sparse import csgraph

from badpo.theory import Array, Bools, Floats, Ints

# Coefficients with a relative size below this value count as rounding errors.
NEGLIGIBLE = 1e-10
# For most annotators with a finite theta, this many Newton steps show that theta is finite.
# If the Newton steps do not show this for an annotator, a linear program decides whether theta is finite.
NEWTON_STEPS = 8

# -- the theorem's graph -------------------------------------------------------------------------------------


def annotator_components(
    comparison: ArrayLike, annotator: ArrayLike, delta: ArrayLike, n_annotators: int | None = None
) -> Ints:
    """Find the connected groups of annotators for each attribute.

    Two annotators are connected if both judged the same cross-group comparison.

    Returns
    -------
    array of int of shape (n_annotators, n_attributes)
        Label of each annotator's group: 0 for the largest group, 1 for the second largest, and so on. Annotators
        without a cross-group judgment have the label -1, because the votes contain no information about their biases.
        An annotator who shares no cross-group comparison with other annotators is a group of one.

    References
    ----------
    BA-DPO, Theorem `thm:identif`.

    Examples
    --------
    Annotators 0 and 1 share comparison 0, only annotator 2 judged comparison 1, and annotator 3 judged equal sides:

    >>> annotator_components([0, 0, 1, 2], [0, 1, 2, 3], [1, 1, -1, 0]).ravel()
    array([ 0,  0,  1, -1])
    """
    comparison, annotator, delta, n_annotators = judgment_arrays(
        comparison, annotator, delta, n_annotators
    )
    labels = np.full((n_annotators, delta.shape[1]), -1, dtype=np.intp)
    n_nodes = n_annotators + comparison.max(initial=-1) + 1
    for j, seen in enumerate(delta.T != 0):
        edges = np.ones(seen.sum()), (annotator[seen], n_annotators + comparison[seen])
        graph = sparse.coo_array(edges, shape=(n_nodes, n_nodes))
        present = np.unique(annotator[seen])
        _, first, group, size = np.unique(
            csgraph.connected_components(graph, directed=False)[1][present],
            return_index=True,
            return_inverse=True,
            return_counts=True,
        )
        labels[present, j] = np.argsort(np.lexsort((first, -size)))[group]
    return labels


def informative_judgments(
    comparison: ArrayLike, annotator: ArrayLike, sign: ArrayLike, delta: ArrayLike
) -> Bools:
    """Return a mask of judgments that contain information about biases if the quality of comparisons is unknown.

    A judgment is informative if the sides differ in the attribute, if the votes on the comparison are not unanimous,
    and if the votes come from different annotators or have different attribute differences. Given the number of votes
    for each response, the probability of an uninformative judgment does not depend on theta.

    Returns
    -------
    array of bool of shape (n_judgments, n_attributes)
        Mask of the informative judgments. If you multiply ``delta`` by this mask, `annotator_components` uses only
        informative judgments. Without the mask, the graph also connects annotators whom a conditional estimate cannot
        compare.

    Examples
    --------
    The votes on comparison 0 are unanimous, the votes on comparison 1 disagree, and one annotator voted twice on
    comparison 2:

    >>> informative_judgments([0, 0, 1, 1, 2, 2], [0, 1, 0, 1, 0, 0], [1, 1, 1, -1, 1, -1], [1] * 6).ravel()
    array([False, False,  True,  True, False, False])
    """
    comparison, annotator, delta, _ = judgment_arrays(comparison, annotator, delta, None)
    apart = _varies_within(comparison, annotator)
    can_compare = np.zeros(delta.shape, dtype=bool)
    for j, difference in enumerate(delta.T):
        can_compare[:, j] = apart | _varies_within(comparison, difference)
    return np.asarray(_varies_within(comparison, np.asarray(sign))[:, None] & (delta != 0) & can_compare)


def _varies_within(group: Array, values: Array) -> Bools:
    """Return a mask of entries whose group contains at least two different values."""
    one = np.empty(group.max(initial=-1) + 1, dtype=values.dtype)
    one[group] = values
    differs = np.bincount(group, values != one[group], minlength=len(one)) > 0
    return np.asarray(differs[group])


# -- separation ----------------------------------------------------------------------------------------------


def separated_annotators(
    annotator: ArrayLike, sign: ArrayLike, delta: ArrayLike, n_annotators: int | None = None
) -> Array:
    """Find annotators whose cross-group votes are all for one side; the maximum-likelihood theta is then infinite.

    For a conditional estimate, first multiply ``delta`` by the mask from `informative_judgments`. The informative votes
    of an annotator may all be for one side even if the uninformative votes are not.

    Returns
    -------
    array of int8 of shape (n_annotators, n_attributes)
        +1 for an annotator who always chose the response with more of the attribute, -1 for an annotator who never
        chose this response, and 0 for all others, including annotators without a cross-group vote. Each attribute is
        considered alone; `separating_mixes` considers all attributes together.

    References
    ----------
    BA-DPO, the paragraph after Theorem `thm:identif`.

    Examples
    --------
    >>> separated_annotators([0, 0, 1, 1, 2], [1, -1, 1, 1, 1], [1, -1, 1, -1, 0]).ravel()
    array([1, 0, 0], dtype=int8)
    """
    _, annotator, delta, n_annotators = judgment_arrays(annotator, annotator, delta, n_annotators)
    toward = np.asarray(sign)[:, None] * delta
    chose, refused = np.zeros((2, n_annotators, delta.shape[1]), dtype=bool)
    for j, votes in enumerate(toward.T):
        chose[annotator[votes > 0], j] = refused[annotator[votes < 0], j] = True
    return (chose & ~refused).astype(np.int8) - (refused & ~chose).astype(np.int8)


def separating_mixes(annotator: Ints, toward: Floats, n_annotators: int) -> tuple[Floats, Floats]:
    r"""For each attribute, find the range of its coefficient in combinations that separate chosen from rejected sides.

    A combination v of attributes, with entries between -1 and 1, separates the sides if :math:`s_j\, d_j \cdot v \ge 0`
    for all votes of an annotator. If v separates the sides, the likelihood of the annotator's votes never decreases in
    the direction of v. Either the maximum-likelihood theta diverges in the direction of v, or the votes do not
    distinguish the attributes in v. The rows of ``toward`` are :math:`s_j\, d_j`.

    Returns
    -------
    lowest, highest : arrays of shape (n_annotators, n_attributes)
        Smallest and largest coefficient of each attribute in separating combinations, found by linear programs. If
        theta is finite, both values are 0. If only one value is 0, the annotator's bias is infinite. If neither value
        is 0, the bias is not identified.

    References
    ----------
    BA-DPO, the paragraph after Theorem `thm:identif`.

    Examples
    --------
    The votes are mixed on each attribute alone, but all votes are in the direction of the attributes' difference:

    >>> toward = np.array([[1.0, 0.0], [0.0, -1.0], [2.0, 1.0], [-1.0, -2.0]])
    >>> lowest, highest = separating_mixes(np.zeros(4, dtype=int), toward, 1)
    >>> lowest.tolist(), highest.tolist()
    ([[0.0, -1.0]], [[1.0, 0.0]])
    """
    q = toward.shape[1]
    lowest, highest = np.zeros((2, n_annotators, q))
    rows = toward.any(axis=1)
    votes = toward[rows] / np.abs(toward[rows]).max(axis=1, keepdims=True, initial=0.0)
    annotators, number = np.unique(annotator[rows], return_inverse=True)
    is_open = ~_is_balanced(number, votes, len(annotators))
    distinct = np.unique(np.column_stack([number, votes])[is_open[number]], axis=0)
    annotators, number = annotators[is_open], np.unique(distinct[:, 0], return_inverse=True)[1]
    against = -bias_design(number, distinct[:, 1:], len(annotators))
    for ends, way in ((lowest, 1), (highest, -1)) if len(annotators) else ():
        for j, aim in enumerate(way * np.eye(q)):
            solution = linprog(
                np.tile(aim, len(annotators)), A_ub=against, b_ub=0.0 * number, bounds=(-1, 1)
            )
            entries = solution.x.reshape(len(annotators), q)[:, j]
            ends[annotators, j] = np.where(np.abs(entries) < 1e-7, 0.0, entries)
    return lowest, highest


def _is_balanced(annotator: Ints, toward: Floats, n_annotators: int) -> Bools:
    r"""Find annotators whose votes no attribute combination separates (some w > 0 has :math:`\sum_j w_j s_j d_j = 0`).

    If no combination of attributes separates an annotator's chosen sides from the rejected sides, the votes identify
    the annotator's bias toward every attribute. The search minimizes the sum of the weights :math:`e^{-s_j d_j \cdot
    v}` by Newton steps c. If :math:`s_j\, d_j \cdot c < 1` for all votes, the weights times :math:`1 - s_j\, d_j \cdot
    c` are positive and solve the equation.
    """
    q = toward.shape[1]
    design = bias_design(annotator, toward, n_annotators)
    mix = np.zeros(n_annotators * q)
    for _ in range(NEWTON_STEPS):
        weight = np.exp(np.clip(-design @ mix, -30, 30))
        square = sparse.bsr_array(design.T @ (design * weight[:, None]), blocksize=(q, q)).data
        inverse = np.linalg.pinv(square, 1e-6, hermitian=True)
        step = (inverse @ (design.T @ weight).reshape(-1, q, 1)).ravel()
        mix += step
    is_balanced = np.asarray(np.trace(square @ inverse, axis1=1, axis2=2) > q - 0.5)
    is_balanced[annotator[design @ step > 0.5]] = False
    return is_balanced


# -- rank of the design --------------------------------------------------------------------


@dataclass(frozen=True)
class FreeDirections:
    """Directions of theta whose effect on every judgment can be canceled by a change in the margins.

    Attributes
    ----------
    basis : sparse array of shape (n_annotators * n_attributes, n_free)
        Linearly independent directions; row ``k * n_attributes + a`` belongs to annotator k and attribute a.
    n_annotators, n_attributes : int
    """

    basis: sparse.csr_array
    n_annotators: int
    n_attributes: int

    @property
    def n_free(self) -> int:
        """Number of free directions of theta; each free direction needs an anchor."""
        return int(self.basis.shape[1])

    def theta_identified(self) -> Bools:
        """Mask, of shape (n_annotators, n_attributes), of thetas that the votes identify absolutely."""
        is_fixed = np.diff(self.basis.indptr) == 0
        return np.asarray(is_fixed.reshape(self.n_annotators, self.n_attributes))

    def difference_groups(self) -> Ints:
        """Return the label of each annotator's group for every attribute, with the shape (n_annotators, n_attributes).

        The votes identify the difference between two annotators' thetas toward an attribute if and only if the
        annotators have the same label for this attribute.
        """
        # equal rows have equal random projections, and different rows have different projections with probability 1
        probe = np.random.default_rng(0).standard_normal((self.n_free, 3))
        rows = np.asarray(self.basis @ probe).reshape(self.n_annotators, self.n_attributes, 3)
        labels = np.zeros(rows.shape[:2], dtype=np.intp)
        for j in range(self.n_attributes):
            tolerance = 1e4 * NEGLIGIBLE * max(np.abs(rows[:, j]).max(initial=0.0), 1e-300)
            # the offset of 0.3 keeps the frequent values 0 and 1 away from rounding boundaries
            cells = np.round(rows[:, j] / tolerance + 0.3)
            _, first, group = np.unique(cells, axis=0, return_index=True, return_inverse=True)
            labels[:, j] = np.argsort(np.argsort(first))[group.reshape(-1)]
        return labels


def free_directions(
    comparison: ArrayLike,
    annotator: ArrayLike,
    delta: ArrayLike,
    n_annotators: int | None = None,
) -> FreeDirections:
    r"""Compute the free directions of theta from the rank of the design matrix of all attributes together.

    Returns
    -------
    FreeDirections
        With a single attribute of the responses, there is one direction for each component from `annotator_components`.

    Notes
    -----
    Every comparison has a free margin. This assumption is exact if no two comparisons share a response, and
    conservative otherwise. The function first eliminates the margins, so that only differences of theta . d within each
    comparison remain. `null_basis` solves the remaining equations.

    References
    ----------
    BA-DPO, Eq. `null_system` and Theorem `thm:identif`.

    Examples
    --------
    Two annotators share two comparisons. For an attribute of the responses, one common offset is free:

    >>> free_directions([0, 0, 1, 1], [0, 1, 0, 1], [1, 1, -1, -1]).n_free
    1

    An attribute that differs between the votes on a comparison, such as the response shown first, leaves nothing
    free:

    >>> free_directions([0, 0, 1, 1], [0, 1, 0, 1], [1, -1, 1, 1]).n_free
    0
    """
    comparison, annotator, delta, n_annotators = judgment_arrays(
        comparison, annotator, delta, n_annotators
    )
    scale = np.sqrt(np.mean(delta**2, axis=0)) if len(delta) else np.ones(delta.shape[1])
    scale[scale == 0] = 1.0
    design = bias_design(annotator, delta / scale, n_annotators)
    _, first, group = np.unique(comparison, return_index=True, return_inverse=True)
    # the attributes were divided by their scale, so theta must be divided by the same scale
    unscaled = sparse.diags_array(np.tile(1.0 / scale, n_annotators))
    basis = unscaled @ null_basis(design - design[first[group]])
    return FreeDirections(sparse.csr_array(basis), n_annotators, delta.shape[1])


def judgment_arrays(
    comparison: ArrayLike, annotator: ArrayLike, delta: ArrayLike, n_annotators: int | None
) -> tuple[Ints, Ints, Floats, int]:
    """Convert the columns of a judgment table to arrays; raise `ValueError` if they are inconsistent."""
    comparison, annotator = np.asarray(comparison), np.asarray(annotator)
    delta = np.asarray(delta, float)
    delta = delta[:, None] if delta.ndim == 1 else delta
    if not len(comparison) == len(annotator) == len(delta):
        raise ValueError(
            f"expected one value per judgment in every argument; got {len(comparison)} comparisons, {len(annotator)} "
            f"annotators, {len(delta)} rows of delta"
        )
    if not np.isfinite(delta).all():
        row, column = np.argwhere(~np.isfinite(delta))[0]
        raise ValueError(f"delta is not finite at judgment {row}, attribute {column}")
    largest = int(annotator.max(initial=-1))
    n_annotators = largest + 1 if n_annotators is None else n_annotators
    if largest >= n_annotators or annotator.min(initial=0) < 0:
        raise ValueError(f"annotator indices must be between 0 and {n_annotators - 1}")
    return comparison.astype(np.intp), annotator.astype(np.intp), delta, n_annotators


def bias_design(annotator: Ints, delta: Floats, n_annotators: int) -> sparse.csr_array:
    """Build the sparse design matrix; row j contains the attribute differences d_j in the columns of annotator k_j."""
    n, q = delta.shape
    # 32-bit indices are faster; products with the design matrix take most of the time of a fit
    columns = (annotator[:, None] * q + np.arange(q)).astype(np.int32)
    entries = delta.ravel(), columns.ravel(), q * np.arange(n + 1, dtype=np.int32)
    return sparse.csr_array(entries, shape=(n, n_annotators * q))


def null_basis(equations: sparse.sparray) -> sparse.csr_array:
    """Return linearly independent solutions x of ``equations @ x = 0``, one per column.

    Returns
    -------
    sparse array of shape (n_unknowns, nullity)
        The columns are not orthogonal. If an unknown is zero in every solution, its row has no entries.

    Notes
    -----
    Unknowns that no equation connects are in separate blocks. For each block, the function computes a pivoted Cholesky
    factor of the Gram matrix, at a cost that is cubic in the number of unknowns.

    Examples
    --------
    The equations are x0 = x1 and x2 = 0, and x3 is free:

    >>> null_basis(sparse.csr_array([[1.0, -1.0, 0.0, 0.0], [0.0, 0.0, 2.0, 0.0]])).shape
    (4, 2)
    """
    known = sparse.csc_array(equations)
    known.data[np.abs(known.data) < NEGLIGIBLE] = 0.0
    known.eliminate_zeros()
    n = known.shape[1]
    linked = np.diff(known.indptr) > 0
    block = csgraph.connected_components(abs(known).T @ abs(known), directed=False)[1]
    parts = [sparse.eye_array(n, format="csc")[:, ~linked]]
    for label in np.unique(block[linked]):
        unknowns = np.flatnonzero(block == label)
        among = known[:, unknowns]
        number = np.unique(among.indices, return_inverse=True)[1]
        basis = _dense_null_basis(sparse.csc_array((among.data, number, among.indptr)).tocsr())
        row, column = np.nonzero(np.abs(basis) > NEGLIGIBLE)
        entries = basis[row, column], (unknowns[row], column)
        parts.append(sparse.csc_array(entries, shape=(n, basis.shape[1])))
    return sparse.csr_array(sparse.hstack(parts))


def _dense_null_basis(equations: sparse.csr_array) -> Floats:
    """Solve a dense homogeneous system of equations; the largest absolute entry of each solution is 1."""
    scale = np.sqrt(equations.power(2).sum(axis=0))
    scaled = sparse.csr_array(equations @ sparse.diags_array(1.0 / scale))
    factor, order, rank, _ = dpstrf((scaled.T @ scaled).toarray(), tol=1e-9)
    fixed, free = np.split(order - 1, [rank])
    basis = np.eye(len(order))[:, free]
    # squares in the Gram matrix lose half of the digits, so two more iterations refine the first solution
    for _ in range(3):
        residual = scaled.T @ (scaled @ basis)
        basis[fixed] -= cho_solve((factor[:rank, :rank], False), residual[fixed])
    # due to rounding, some null vectors of the Gram matrix may violate the equations
    # only the linear combinations of null vectors that satisfy the equations are kept
    # null vectors that all satisfy the equations are not combined, because combining would blur exact zeros
    _, size, mixes = np.linalg.svd(np.linalg.qr(scaled @ basis, mode="r"))
    size = np.pad(size, (0, len(mixes) - len(size)))
    if (size > NEGLIGIBLE).any():
        basis = basis @ mixes[size <= NEGLIGIBLE].T
    basis /= scale[:, None]
    return np.asarray(basis / np.abs(basis).max(axis=0, initial=0.0))
