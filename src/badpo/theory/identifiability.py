r"""What the votes determine about the annotators, and what they leave open.

A judgment sees only the logit u_c + theta_k . d_j (times its sign), so two parameter vectors give every judgment the
same probability exactly when their difference solves

.. math:: du_{c_j} + d\theta_{k_j}^\top d_j = 0 \qquad \text{for every judgment } j,

Eq. `null_system` of the paper. For one attribute of the responses the solutions are counted by a graph
(`annotator_components`): one free offset per connected group of annotators. That count needs delta to be the same
for all votes on a comparison and to be a difference g(a) - g(b) of the responses. Attributes of the judgment (which
side was shown first), attributes of the pair (the length ratio, where responses meet in several comparisons) and
attributes that copy each other break it, in either direction. `free_directions` therefore solves the system that is
there, all attributes at once.

Judgments are arrays of equal length, their comparisons and annotators numbered from 0; ``delta`` is of shape
(n_judgments, n_attributes) or (n_judgments,), a minus b. Without ``n_annotators`` there are as many as the largest
index says.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.linalg import cho_solve
from scipy.linalg.lapack import dpstrf
from scipy.optimize import linprog
from scipy.sparse import csgraph

from badpo.theory import Bools, Floats, Ints

# Relative size below which a coefficient is rounding and not data.
NEGLIGIBLE = 1e-10
# So many find most annotators whose theta is finite; linear programs decide about the others.
NEWTON_STEPS = 8

# -- the theorem's graph -------------------------------------------------------------------------------------


def annotator_components(
    comparison: ArrayLike, annotator: ArrayLike, delta: ArrayLike, n_annotators: int | None = None
) -> Ints:
    """Connected groups of annotators, one attribute at a time.

    Two annotators are joined when both judged one cross-group comparison.

    Returns
    -------
    array of int of shape (n_annotators, n_attributes)
        0 for the largest group, 1 for the next, and so on; -1 for an annotator without a cross-group judgment,
        about whom the votes say nothing. An annotator who judged cross-group comparisons alone is a group of one.

    References
    ----------
    BA-DPO, Theorem `thm:identif`.

    Examples
    --------
    Annotators 0 and 1 share comparison 0, 2 judged comparison 1 alone, 3 saw no difference:

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
    """Judgments that tell annotators apart when the quality of each comparison is unknown.

    Such a judgment is cross-group, the votes on its comparison are not unanimous, and the votes differ in who cast
    them or in the attribute difference that the voter saw. Given the number of wins, every other judgment has a
    probability that no theta changes.

    Returns
    -------
    array of bool of shape (n_judgments, n_attributes)
        Multiply ``delta`` by it to get the informative graph from `annotator_components`; the raw graph overstates
        what a conditional estimate can use.

    Examples
    --------
    Comparison 0 is unanimous, comparison 1 is not, in comparison 2 one annotator voted twice:

    >>> informative_judgments([0, 0, 1, 1, 2, 2], [0, 1, 0, 1, 0, 0], [1, 1, 1, -1, 1, -1], [1] * 6).ravel()
    array([False, False,  True,  True, False, False])
    """
    comparison, annotator, delta, _ = judgment_arrays(comparison, annotator, delta, None)
    apart = _varies_within(comparison, annotator)
    beside = np.zeros(delta.shape, dtype=bool)
    for j, difference in enumerate(delta.T):
        beside[:, j] = apart | _varies_within(comparison, difference)
    return _varies_within(comparison, np.asarray(sign))[:, None] & (delta != 0) & beside


def _varies_within(group: NDArray, values: NDArray) -> Bools:
    one = np.empty(group.max(initial=-1) + 1, dtype=values.dtype)
    one[group] = values
    differs = np.bincount(group, values != one[group], minlength=len(one)) > 0
    return differs[group]


# -- separation ----------------------------------------------------------------------------------------------


def separated_annotators(
    annotator: ArrayLike, sign: ArrayLike, delta: ArrayLike, n_annotators: int | None = None
) -> NDArray:
    """Annotators whose cross-group votes all went one way, so that their maximum likelihood theta is infinite.

    For a conditional estimate multiply ``delta`` by `informative_judgments` first: an annotator can have mixed votes
    and still be separated on those that count.

    Returns
    -------
    array of int8 of shape (n_annotators, n_attributes)
        +1 who always chose the side with more of the attribute, -1 who never did, 0 otherwise, also for who has no
        cross-group vote. One attribute at a time; `separating_mixes` looks at all of them at once.

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
    r"""How far each attribute goes, in the mixes of attributes that contradict none of an annotator's votes.

    A mix v with :math:`s_j\, d_j \cdot v \ge 0` for all votes, of entries between -1 and 1, is a direction in which the
    likelihood of the votes never falls: the maximum likelihood theta diverges along it, or the votes do not tell the
    attributes in it apart. ``toward`` has :math:`s_j\, d_j` in its rows.

    Returns
    -------
    lowest, highest : arrays of shape (n_annotators, n_attributes)
        Least and largest entry of an attribute among these mixes, by linear programs; 0 and 0 where theta is finite.
        An attribute that goes one way only has an infinite lean, one that goes both ways is undetermined.

    References
    ----------
    BA-DPO, the paragraph after Theorem `thm:identif`.

    Examples
    --------
    Mixed votes on either attribute alone, none on their difference:

    >>> toward = np.array([[1.0, 0.0], [0.0, -1.0], [2.0, 1.0], [-1.0, -2.0]])
    >>> lowest, highest = separating_mixes(np.zeros(4, dtype=int), toward, 1)
    >>> lowest.tolist(), highest.tolist()
    ([[0.0, -1.0]], [[1.0, 0.0]])
    """
    q = toward.shape[1]
    lowest, highest = np.zeros((2, n_annotators, q))
    rows = toward.any(axis=1)
    votes = toward[rows] / np.abs(toward[rows]).max(axis=1, keepdims=True, initial=0.0)
    people, number = np.unique(annotator[rows], return_inverse=True)
    is_open = ~_is_balanced(number, votes, len(people))
    distinct = np.unique(np.column_stack([number, votes])[is_open[number]], axis=0)
    people, number = people[is_open], np.unique(distinct[:, 0], return_inverse=True)[1]
    against = -lean_design(number, distinct[:, 1:], len(people))
    for ends, way in ((lowest, 1), (highest, -1)) if len(people) else ():
        for j, aim in enumerate(way * np.eye(q)):
            found = linprog(np.tile(aim, len(people)), A_ub=against, b_ub=0.0 * number, bounds=(-1, 1))
            entries = found.x.reshape(len(people), q)[:, j]
            ends[people, j] = np.where(np.abs(entries) < 1e-7, 0.0, entries)
    return lowest, highest


def _is_balanced(annotator: Ints, toward: Floats, n_annotators: int) -> Bools:
    r"""Annotators for whom positive weights w with :math:`\sum_j w_j s_j d_j = 0` are found: no mix separates them.

    Their votes tell all attributes apart, too. The weights are :math:`e^{-s_j d_j \cdot v}`, and their sum falls to
    its least value by Newton steps c; where :math:`s_j\, d_j \cdot c < 1` for all votes, the weights times :math:`1 -
    s_j\, d_j \cdot c` are such weights.
    """
    q = toward.shape[1]
    design = lean_design(annotator, toward, n_annotators)
    mix = np.zeros(n_annotators * q)
    for _ in range(NEWTON_STEPS):
        weight = np.exp(np.clip(-design @ mix, -30, 30))
        square = sparse.bsr_array(design.T @ (design * weight[:, None]), blocksize=(q, q)).data
        inverse = np.linalg.pinv(square, 1e-6, hermitian=True)
        step = (inverse @ (design.T @ weight).reshape(-1, q, 1)).ravel()
        mix += step
    found = np.trace(square @ inverse, axis1=1, axis2=2) > q - 0.5
    found[annotator[design @ step > 0.5]] = False
    return found


# -- the rank of the design that is there --------------------------------------------------------------------


@dataclass(frozen=True)
class FreeDirections:
    """The changes of theta that some change of the margins cancels in every judgment.

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
        """How many numbers the votes leave open; each one has to be fixed by an anchor."""
        return self.basis.shape[1]

    def level_identified(self) -> Bools:
        """Array (n_annotators, n_attributes): whether the votes fix theta itself, not only differences of it."""
        return (np.diff(self.basis.indptr) == 0).reshape(self.n_annotators, self.n_attributes)

    def difference_groups(self) -> Ints:
        """Array (n_annotators, n_attributes) of labels, attribute by attribute.

        The votes fix the difference of two annotators' theta exactly when they carry the same label.
        """
        # equal rows have equal projections, and distinct ones distinct projections, in all three almost surely
        probe = np.random.default_rng(0).standard_normal((self.n_free, 3))
        rows = np.asarray(self.basis @ probe).reshape(self.n_annotators, self.n_attributes, 3)
        labels = np.zeros(rows.shape[:2], dtype=np.intp)
        for j in range(self.n_attributes):
            tolerance = 1e4 * NEGLIGIBLE * max(np.abs(rows[:, j]).max(initial=0.0), 1e-300)
            # off the middle, so that zeros and ones do not lie where rounding parts them
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
    r"""What the votes leave open about theta, from the rank of the design, all attributes jointly.

    Returns
    -------
    FreeDirections
        For one attribute of the responses, one direction per component of `annotator_components`.

    Notes
    -----
    The margins are taken as free, which is exact where no two comparisons share a response and cautious elsewhere.
    They are eliminated first: the votes of a comparison give differences of theta . d. `null_basis` solves the rest.

    References
    ----------
    BA-DPO, Eq. `null_system` and Theorem `thm:identif`.

    Examples
    --------
    Two annotators share two comparisons. An attribute of the responses leaves one common offset open:

    >>> free_directions([0, 0, 1, 1], [0, 1, 0, 1], [1, 1, -1, -1]).n_free
    1

    Which side was shown first differs between the votes on a comparison, and leaves nothing open:

    >>> free_directions([0, 0, 1, 1], [0, 1, 0, 1], [1, -1, 1, 1]).n_free
    0
    """
    comparison, annotator, delta, n_annotators = judgment_arrays(
        comparison, annotator, delta, n_annotators
    )
    scale = np.sqrt(np.mean(delta**2, axis=0)) if len(delta) else np.ones(delta.shape[1])
    scale[scale == 0] = 1.0
    design = lean_design(annotator, delta / scale, n_annotators)
    _, first, group = np.unique(comparison, return_index=True, return_inverse=True)
    # attributes are measured in units of their spread, so theta is divided by it on the way back
    unscaled = sparse.diags_array(np.tile(1.0 / scale, n_annotators))
    basis = unscaled @ null_basis(design - design[first[group]])
    return FreeDirections(sparse.csr_array(basis), n_annotators, delta.shape[1])


def judgment_arrays(
    comparison: ArrayLike, annotator: ArrayLike, delta: ArrayLike, n_annotators: int | None
) -> tuple[Ints, Ints, Floats, int]:
    """The judgments as arrays of whole numbers and a matrix; `ValueError` where they do not fit together."""
    comparison, annotator = np.asarray(comparison), np.asarray(annotator)
    delta = np.asarray(delta, float)
    delta = delta[:, None] if delta.ndim == 1 else delta
    if not len(comparison) == len(annotator) == len(delta):
        raise ValueError(
            f"one value per judgment is needed: {len(comparison)} comparisons, {len(annotator)} annotators, "
            f"{len(delta)} rows of delta"
        )
    if not np.isfinite(delta).all():
        row, column = np.argwhere(~np.isfinite(delta))[0]
        raise ValueError(f"delta is not finite at judgment {row}, attribute {column}")
    largest = int(annotator.max(initial=-1))
    n_annotators = largest + 1 if n_annotators is None else n_annotators
    if largest >= n_annotators or annotator.min(initial=0) < 0:
        raise ValueError(f"annotator indices must lie between 0 and {n_annotators - 1}")
    return comparison.astype(np.intp), annotator.astype(np.intp), delta, n_annotators


def lean_design(annotator: Ints, delta: Floats, n_annotators: int) -> sparse.csr_array:
    """Row j holds d_j in the columns of annotator k_j."""
    n, q = delta.shape
    # short numbers, since products with the design are what estimates wait for
    columns = (annotator[:, None] * q + np.arange(q)).astype(np.int32)
    entries = delta.ravel(), columns.ravel(), q * np.arange(n + 1, dtype=np.int32)
    return sparse.csr_array(entries, shape=(n, n_annotators * q))


def null_basis(equations: sparse.sparray) -> sparse.csr_array:
    """Independent solutions x of ``equations @ x = 0``, one per column.

    Returns
    -------
    sparse array of shape (n_unknowns, nullity)
        Not orthogonal. An unknown that is zero in every solution has an empty row.

    Notes
    -----
    Unknowns that no equation links are solved apart, each block by a pivoted Cholesky factor of its Gram matrix,
    whose cost is cubic in its unknowns.

    Examples
    --------
    x0 = x1 and x2 = 0, with x3 free:

    >>> null_basis(sparse.csr_array([[1.0, -1.0, 0.0, 0.0], [0.0, 0.0, 2.0, 0.0]])).shape
    (4, 2)
    """
    known = sparse.csc_array(equations)
    known.data[np.abs(known.data) < NEGLIGIBLE] = 0.0
    known.eliminate_zeros()
    n = known.shape[1]
    linked = np.diff(known.indptr) > 0
    block = csgraph.connected_components(abs(known).T @ abs(known), directed=False)[1]
    found = [sparse.eye_array(n, format="csc")[:, ~linked]]
    for label in np.unique(block[linked]):
        unknowns = np.flatnonzero(block == label)
        among = known[:, unknowns]
        number = np.unique(among.indices, return_inverse=True)[1]
        basis = _dense_null_basis(sparse.csc_array((among.data, number, among.indptr)).tocsr())
        row, column = np.nonzero(np.abs(basis) > NEGLIGIBLE)
        entries = basis[row, column], (unknowns[row], column)
        found.append(sparse.csc_array(entries, shape=(n, basis.shape[1])))
    return sparse.csr_array(sparse.hstack(found))


def _dense_null_basis(equations: sparse.csr_array) -> Floats:
    """Solutions of equations in which every unknown occurs, scaled to a largest entry of 1."""
    scale = np.sqrt(equations.power(2).sum(axis=0))
    scaled = sparse.csr_array(equations @ sparse.diags_array(1.0 / scale))
    factor, order, rank, _ = dpstrf((scaled.T @ scaled).toarray(), tol=1e-9)
    fixed, free = np.split(order - 1, [rank])
    basis = np.eye(len(order))[:, free]
    # later passes correct the first: a Gram matrix holds squares, and with them half of the digits
    for _ in range(3):
        residual = scaled.T @ (scaled @ basis)
        basis[fixed] -= cho_solve((factor[:rank, :rank], False), residual[fixed])
    # what the Gram matrix takes for zero can be far above rounding in the equations: only mixes without a residual
    # stay. Without such a direction nothing is mixed: a mix has small entries that are not rounding
    _, size, mixes = np.linalg.svd(np.linalg.qr(scaled @ basis, mode="r"))
    size = np.pad(size, (0, len(mixes) - len(size)))
    if (size > NEGLIGIBLE).any():
        basis = basis @ mixes[size <= NEGLIGIBLE].T
    basis /= scale[:, None]
    return basis / np.abs(basis).max(axis=0, initial=0.0)
