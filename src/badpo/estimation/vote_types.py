"""Types of annotators from votes alone: who agrees with whom."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from badpo.estimation.repeats import first_votes
from badpo.estimation.spectral import agreements

RESTARTS = 50


def agreement_types(
    comparison: ArrayLike, sign: ArrayLike, annotator: ArrayLike, n_annotators: int, n_types: int, seed: int
) -> NDArray[np.int64]:
    """Annotators divided into types, such that those of one type agree more than those of different types.

    The matrix of mean products of votes on common comparisons, minus its mean over the pairs that have one and zero
    elsewhere, is taken to its leading ``n_types - 1`` eigenvectors, each scaled by the root of its eigenvalue, and the
    annotators are clustered there by k-means, the best of 50 starts.

    Parameters
    ----------
    comparison, sign, annotator : array of shape (n_votes,)
        Of repeated votes of an annotator on one comparison the first counts.
    n_annotators, n_types : int
    seed : int
        Of the starts.

    Returns
    -------
    int array of shape (n_annotators,)
        0 to ``n_types - 1``, numbered in the order of their first annotator.

    Raises
    ------
    ValueError
        Fewer annotators than types.

    Examples
    --------
    Four annotators on three comparisons; the first two always contradict the last two:

    >>> comparison, annotator = np.repeat(np.arange(3), 4), np.tile(np.arange(4), 3)
    >>> agreement_types(comparison, [1, 1, -1, -1] * 3, annotator, 4, n_types=2, seed=0)
    array([0, 0, 1, 1])
    """
    if not 1 <= n_types <= n_annotators:
        raise ValueError(f"{n_types} types need as many annotators; there are {n_annotators}")
    if n_types == 1:
        return np.zeros(n_annotators, dtype=np.int64)
    comparison, annotator = np.asarray(comparison), np.asarray(annotator)
    kept = first_votes(comparison, annotator)
    products, counts = agreements(comparison[kept], np.asarray(sign)[kept], annotator[kept], n_annotators)
    shared = counts > 0
    means = np.divide(products, counts, out=np.zeros_like(products), where=shared)
    centered = np.where(shared, means - (means[shared].mean() if shared.any() else 0.0), 0.0)
    values, vectors = np.linalg.eigh(centered)
    leading = slice(n_annotators - (n_types - 1), None)
    places = vectors[:, leading] * np.sqrt(np.clip(values[leading], 0.0, None))
    return _numbered(_clustered(places, n_types, np.random.default_rng(seed)))


def _clustered(places: NDArray[np.float64], n_types: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Lloyd's k-means; the best of several starts, each at points drawn without replacement."""
    best, least = np.zeros(len(places), dtype=np.int64), np.inf
    for _ in range(RESTARTS):
        centers = places[rng.choice(len(places), n_types, replace=False)]
        label = np.full(len(places), -1)
        while True:
            distance = ((places[:, None] - centers) ** 2).sum(axis=2)
            nearest = distance.argmin(axis=1)
            if np.array_equal(nearest, label):
                break
            label = nearest
            # a type that no one is nearest to stays where it is
            for k in np.unique(label):
                centers[k] = places[label == k].mean(axis=0)
        spread = float(distance.min(axis=1).sum())
        if spread < least - 1e-12:
            best, least = label, spread
    return best


def _numbered(label: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same types, numbered in the order in which they first occur."""
    _, first, number = np.unique(label, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[number.reshape(-1)]
