"""The spectral meta-learner against votes whose reliabilities are planted."""

from __future__ import annotations

import numpy as np
import pytest

from badpo_paper.em_dpo import agreement_types
from badpo_paper.methods import agreements, spectral_labels


def votes(accuracy, n_comparisons: int, per_comparison: int, seed: int):
    """Independent votes on hidden true sides, by annotators drawn at random."""
    rng = np.random.default_rng(seed)
    truth = rng.choice([-1, 1], n_comparisons)
    annotator = np.concatenate(
        [rng.choice(len(accuracy), per_comparison, replace=False) for _ in range(n_comparisons)]
    )
    comparison = np.repeat(np.arange(n_comparisons), per_comparison)
    right = rng.random(len(annotator)) < np.asarray(accuracy)[annotator]
    return truth, comparison, np.where(right, truth[comparison], -truth[comparison]), annotator


def test_reliabilities_are_recovered_from_overlapping_votes():
    accuracy = np.linspace(0.45, 0.95, 12)
    truth, comparison, sign, annotator = votes(accuracy, 3000, 4, seed=0)
    found = spectral_labels(comparison, sign, annotator, 3000, 12)
    np.testing.assert_allclose(found.reliability, 2 * accuracy - 1, atol=0.12)
    assert found.cells == 1.0


def test_labels_beat_the_majority_where_annotators_differ():
    accuracy = np.array([0.95, 0.92, 0.55, 0.52, 0.5, 0.5, 0.48])
    truth, comparison, sign, annotator = votes(accuracy, 2000, 5, seed=1)
    found = spectral_labels(comparison, sign, annotator, 2000, 7)
    majority = np.sign(np.bincount(comparison, weights=sign))
    assert (found.label == truth).mean() > (majority == truth).mean() + 0.05


def test_a_swapped_orientation_changes_the_labels_sign_alone():
    truth, comparison, sign, annotator = votes([0.9, 0.8, 0.6, 0.55], 200, 3, seed=2)
    flip = np.random.default_rng(0).choice([-1, 1], 200)
    one = spectral_labels(comparison, sign, annotator, 200, 4)
    other = spectral_labels(comparison, sign * flip[comparison], annotator, 200, 4)
    np.testing.assert_allclose(one.reliability, other.reliability, atol=1e-8)
    np.testing.assert_array_equal(one.label * flip, other.label)


def test_without_common_comparisons_it_is_the_vote():
    found = spectral_labels([0, 1, 2], [1, -1, 1], [0, 1, 2], 4, 3)
    assert np.isnan(found.reliability).all()
    assert found.label.tolist() == [1, -1, 1, 0]
    assert found.cells == 0.0


def test_an_annotator_without_common_comparisons_votes_like_the_mean():
    truth, comparison, sign, annotator = votes([0.9, 0.9, 0.9], 300, 3, seed=3)
    found = spectral_labels(np.r_[comparison, 300], np.r_[sign, -1], np.r_[annotator, 3], 301, 4)
    assert np.isnan(found.reliability[3]) and np.isfinite(found.reliability[:3]).all()
    assert found.label[300] == -1


def test_repeated_votes_count_once():
    comparison, sign, annotator = [0, 0, 0, 1, 1], [1, -1, 1, 1, 1], [0, 0, 1, 0, 1]
    products, counts = agreements([0, 0, 1, 1], [1, 1, 1, 1], [0, 1, 0, 1], 2)
    found = spectral_labels(comparison, sign, annotator, 2, 2)
    assert counts[0, 1] == 2 and products[0, 1] == 2
    np.testing.assert_allclose(found.reliability, [1, 1])


def test_types_that_disagree_are_told_apart():
    """Three types of twenty, as the signed corpus has them: on half of the comparisons each has a side of its own."""
    rng = np.random.default_rng(4)
    n, kind = 1500, np.repeat([0, 1, 2], 20)
    sides = rng.choice([-1, 1], (n, 3))
    annotator = np.concatenate([rng.choice(60, 4, replace=False) for _ in range(n)])
    comparison = np.repeat(np.arange(n), 4)
    sign = sides[comparison, kind[annotator]] * np.where(rng.random(len(annotator)) < 0.8, 1, -1)
    found = agreement_types(comparison, sign, annotator, 60, 3, seed=0)
    together = found[:, None] == found
    assert (together == (kind[:, None] == kind)).mean() > 0.95
    np.testing.assert_array_equal(found, agreement_types(comparison, sign, annotator, 60, 3, seed=0))
    assert found[0] == 0


def test_one_type_is_everyone_and_more_types_than_annotators_are_refused():
    assert agreement_types([0, 0], [1, 1], [0, 1], 2, 1, seed=0).tolist() == [0, 0]
    with pytest.raises(ValueError, match="3 types"):
        agreement_types([0, 0], [1, 1], [0, 1], 2, 3, seed=0)


def test_votes_without_overlap_still_make_types():
    assert set(agreement_types([0, 1, 2], [1, 1, -1], [0, 1, 2], 3, 2, seed=0)) <= {0, 1}


def test_a_start_that_meets_no_type_does_not_decide():
    """Six types of four: several k-means starts out of ten put two centers into one type."""
    rng = np.random.default_rng(0)
    n, kind = 2000, np.repeat(np.arange(6), 4)
    sides = rng.choice([-1, 1], (n, 6))
    annotator = np.concatenate([rng.choice(24, 6, replace=False) for _ in range(n)])
    comparison = np.repeat(np.arange(n), 6)
    sign = sides[comparison, kind[annotator]]
    for seed in range(8):
        assert agreement_types(comparison, sign, annotator, 24, 6, seed=seed).tolist() == kind.tolist()
