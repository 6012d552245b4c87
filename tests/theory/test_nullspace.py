import numpy as np
import pytest
from scipy import sparse

from badpo.theory.identifiability import null_basis


def vote_equations(rng, n_annotators, n_comparisons, q):
    """Differences between the votes on each comparison, for continuous attributes: nothing merges."""
    comparison = np.repeat(np.arange(n_comparisons), 4)
    annotator = rng.integers(0, n_annotators, len(comparison))
    delta = rng.normal(size=(n_comparisons, q))[comparison]
    columns = (annotator[:, None] * q + np.arange(q)).ravel()
    rows = np.repeat(np.arange(len(comparison)), q)
    design = sparse.coo_array(
        (delta.ravel(), (rows, columns)), shape=(len(comparison), n_annotators * q)
    ).tocsr()
    return design - design[4 * comparison]


@pytest.mark.parametrize("n_comparisons", [110, 180, 900])
def test_the_rank_is_that_of_the_equations_and_solutions_hold_to_rounding(n_comparisons):
    """The Gram matrix alone would leave residuals of 1e-12 and more here."""
    equations = vote_equations(np.random.default_rng(n_comparisons), 100, n_comparisons, 3)
    basis = null_basis(equations)
    size = np.linalg.svd(equations.toarray(), compute_uv=False)
    nullity = equations.shape[1] - int((size > 1e-9).sum())
    assert basis.shape[1] == nullity >= 3
    assert np.linalg.matrix_rank(basis.toarray()) == nullity
    assert abs(equations @ basis).max() < 5e-14


def test_nearly_dependent_equations_are_still_equations():
    """A pivot of 1e-5 is 1e-10 in the Gram matrix, and no rounding."""
    equations = sparse.csr_array([[1.0, 1.0, 0.5], [1.0, 1.0 + 1e-5, 0.5], [1.0, -2.0, 0.25]])
    assert null_basis(equations).shape[1] == 0
    equations = sparse.csr_array([[1.0, 1.0, 0.5], [1.0, 1.0 + 1e-14, 0.5], [1.0, -2.0, 0.25]])
    assert null_basis(equations).shape[1] == 1


def test_signs_that_contradict_each_other_fix_an_unknown():
    same, opposite, free = [1.0, -1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]
    assert null_basis(sparse.csr_array([same, free])).shape[1] == 2
    assert null_basis(sparse.csr_array([same, opposite])).toarray().ravel().tolist() == [0.0, 0.0, 1.0]


def test_no_equations_leave_every_unknown_free():
    assert null_basis(sparse.csr_array((0, 4))).toarray().tolist() == np.eye(4).tolist()
