import numpy as np
import pytest
from scipy import sparse

from badpo.theory.identifiability import (
    annotator_components,
    free_directions,
    informative_judgments,
    null_basis,
    separated_annotators,
    separating_mixes,
)


def dense_free_directions(comparison, annotator, delta, n_annotators):
    """The theta part of the null space of the whole design, by a singular value decomposition."""
    n, q = delta.shape
    margins = np.eye(comparison.max() + 1)[comparison]
    bias = np.zeros((n, n_annotators, q))
    bias[np.arange(n), annotator] = delta
    design = np.hstack([margins, bias.reshape(n, -1)])
    _, size, directions = np.linalg.svd(design)
    null = directions[(size > 1e-9 * max(size[0], 1e-9)).sum() :].T
    return null[margins.shape[1] :]


def random_design(rng, scope):
    n_annotators, q = int(rng.integers(1, 7)), int(rng.integers(1, 4))
    n = int(rng.integers(1, 25))
    comparison = np.unique(rng.integers(0, 8, n), return_inverse=True)[1]
    n_comparisons = comparison.max() + 1
    annotator = rng.integers(0, n_annotators, n)
    delta = {
        "binary": lambda: rng.integers(-1, 2, (n_comparisons, q))[comparison],
        "continuous": lambda: rng.normal(size=(n_comparisons, q))[comparison],
        "judgment": lambda: rng.integers(-1, 2, (n, q)),
    }
    delta["mixed"] = lambda: np.hstack([delta["binary"](), rng.choice([-1, 1], (n, 1))])
    return comparison, annotator, delta[scope]().astype(float), n_annotators


@pytest.mark.parametrize("scope", ["binary", "continuous", "judgment", "mixed"])
def test_free_directions_agree_with_the_dense_null_space(scope):
    rng = np.random.default_rng(11)
    for _ in range(60):
        design = random_design(rng, scope)
        _, _, delta, n_annotators = design
        free = free_directions(*design)
        dense = dense_free_directions(*design)
        rank = np.linalg.matrix_rank(dense, tol=1e-8) if dense.size else 0
        assert free.n_free == rank
        basis = free.basis.toarray()
        if rank:
            assert np.linalg.matrix_rank(basis, tol=1e-8) == rank
            assert np.linalg.matrix_rank(np.hstack([basis, dense]), tol=1e-7) == rank
        rows = dense.reshape(n_annotators, delta.shape[1], -1)
        moves = np.abs(rows).max(axis=2, initial=0.0) > 1e-9
        np.testing.assert_array_equal(free.theta_identified(), ~moves)
        groups = free.difference_groups()
        same = np.abs(rows[:, None] - rows[None]).max(axis=3, initial=0.0) < 1e-9
        np.testing.assert_array_equal(groups[:, None] == groups[None], same)


def test_components_are_numbered_by_size_and_informative_votes_are_contested():
    comparison = [0, 0, 1, 1, 1, 2, 3, 3]
    annotator = [0, 1, 2, 3, 4, 5, 6, 0]
    delta = [[1, 1], [1, 1], [-1, 0], [-1, 0], [-1, 0], [1, 0], [0, 1], [0, 1]]
    labels = annotator_components(comparison, annotator, delta, n_annotators=8)
    assert labels[:, 0].tolist() == [1, 1, 0, 0, 0, 2, -1, -1]
    assert labels[:, 1].tolist() == [0, 0, -1, -1, -1, -1, 0, -1]
    comparison = [0, 0, 1, 1, 2, 2, 3, 3, 4]
    annotator = [0, 1, 0, 1, 2, 2, 2, 2, 0]
    sign = [1, 1, 1, -1, 1, -1, 1, -1, 1]
    delta = [1, 1, 1, 1, 1, 1, 1, -1, 1]
    informative = informative_judgments(comparison, annotator, sign, delta)[:, 0]
    # unanimous; contested; one annotator twice; the same with the sides exchanged; a single vote
    assert informative.tolist() == [False, False, True, True, False, False, True, True, False]


def test_separation_has_a_direction_and_a_single_vote_among_many_ends_it():
    annotator = [0, 0, 1, 1, 2, 2, 3]
    sign = [1, -1, 1, 1, -1, 1, 1]
    delta = [1, -1, -1, -1, 1, 1, 0]
    assert separated_annotators(annotator, sign, delta, 5).ravel().tolist() == [1, -1, 0, 0, 0]
    toward = np.vstack([np.tile([[1.0, 0.0], [0.0, 1.0]], (200, 1)), [[-1.0, -1.0]]])
    for votes, ends in ((toward, (0, 0)), (toward[:-1], (0, 1))):
        lowest, highest = separating_mixes(np.zeros(len(votes), dtype=int), votes, 1)
        assert (lowest == ends[0]).all() and (highest == ends[1]).all()


def test_joint_separation_agrees_with_a_search_over_directions():
    rng = np.random.default_rng(2)
    annotator = np.repeat(np.arange(60), 4)
    sign = rng.choice([-1, 1], 240)
    delta = rng.integers(-2, 3, (240, 2))
    angles = np.linspace(0, 2 * np.pi, 7200, endpoint=False)
    directions = np.stack([np.cos(angles), np.sin(angles)])
    # the normals of small integer vectors, where the search must look exactly
    grid = np.array([(x, y) for x in range(-2, 3) for y in range(-2, 3) if x or y]).T
    directions = np.hstack([directions, grid])
    expected = []
    for k in range(60):
        along = (sign[annotator == k, None] * delta[annotator == k]) @ directions
        expected.append(bool(((along >= -1e-12).all(axis=0) & (along > 1e-12).any(axis=0)).any()))
    lowest, highest = separating_mixes(annotator, sign[:, None] * delta, 60)
    # a direction and its opposite: these votes do not tell the attributes apart
    found = ((lowest < 0) | (highest > 0)).any(axis=1)
    one_way = np.array([(-lowest[k] == highest[k]).all() for k in range(60)])
    assert (found & ~one_way).tolist() == expected
    alone = separated_annotators(annotator, sign, delta).any(axis=1)
    assert (found & ~alone).any()
    assert not (alone & ~found).any()


def vote_equations(rng, n_annotators, n_comparisons, q):
    """Differences between the votes on each comparison, for continuous attributes: nothing merges."""
    comparison = np.repeat(np.arange(n_comparisons), 4)
    annotator = rng.integers(0, n_annotators, len(comparison))
    delta = rng.normal(size=(n_comparisons, q))[comparison]
    columns = (annotator[:, None] * q + np.arange(q)).ravel()
    rows = np.repeat(np.arange(len(comparison)), q)
    shape = len(comparison), n_annotators * q
    design = sparse.coo_array((delta.ravel(), (rows, columns)), shape=shape).tocsr()
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


def test_nearly_dependent_equations_are_equations_and_none_leave_every_unknown_free():
    """A pivot of 1e-5 is 1e-10 in the Gram matrix, and no rounding."""
    equations = sparse.csr_array([[1.0, 1.0, 0.5], [1.0, 1.0 + 1e-5, 0.5], [1.0, -2.0, 0.25]])
    assert null_basis(equations).shape[1] == 0
    equations = sparse.csr_array([[1.0, 1.0, 0.5], [1.0, 1.0 + 1e-14, 0.5], [1.0, -2.0, 0.25]])
    assert null_basis(equations).shape[1] == 1
    assert null_basis(sparse.csr_array((0, 4))).toarray().tolist() == np.eye(4).tolist()
    free = free_directions([], [], np.zeros((0, 2)), n_annotators=3)
    assert free.n_free == 6 and not free.theta_identified().any()


@pytest.mark.parametrize(
    ("votes", "words"),
    [
        (([0, 1], [0, 1, 2], [1, 1]), "2 comparisons, 3 annotators, 2 rows of delta"),
        (([0, 1], [0, 1], [1, np.nan]), "not finite at judgment 1, attribute 0"),
        (([0, 1], [0, 2], [1, 1], 2), "between 0 and 1"),
    ],
)
def test_wrong_shapes_are_named(votes, words):
    with pytest.raises(ValueError, match=words):
        free_directions(*votes)
