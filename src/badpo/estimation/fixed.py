"""Leans when the quality of every comparison is given, up to a scale: by a column or a trained policy's margins."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.special import expit

from badpo.estimation.comparison_blocks import ComparisonBlocks
from badpo.estimation.lean_fit import fit_leans
from badpo.estimation.lean_votes import cross_group
from badpo.estimation.leans import Leans
from badpo.estimation.maximizing import Curvature


class GivenQuality:
    r"""Votes with :math:`u_c = \text{scale} \cdot \text{quality}_c`; the scale is fitted.

    Parameters
    ----------
    blocks : ComparisonBlocks
    sign : array of shape (n_votes,)
    quality : array of shape (n_votes,)
        That of the vote's comparison, a over b.
    """

    def __init__(
        self, blocks: ComparisonBlocks, sign: NDArray[np.float64], quality: NDArray[np.float64]
    ) -> None:
        self._blocks, self._sign, self._quality = blocks, sign, quality
        self.start = np.zeros(1)

    def settle(self, logits: NDArray[np.float64], extra: NDArray[np.float64]) -> None:
        """Nothing to place."""

    def values(self, logits: NDArray[np.float64], extra: NDArray[np.float64]) -> NDArray[np.float64]:
        """Log-likelihood of each comparison."""
        return self._blocks.sums(-np.logaddexp(0.0, -self._sign * (extra[0] * self._quality + logits)))

    def curvature(self, logits: NDArray[np.float64], extra: NDArray[np.float64]) -> Curvature:
        """Derivatives of the sum of the values."""
        chance = expit(extra[0] * self._quality + logits)
        residual, weight = (self._sign > 0) - chance, chance * (1 - chance)
        return Curvature(
            residual,
            sparse.csr_array(sparse.diags_array(weight)),
            np.array([residual @ self._quality]),
            (weight * self._quality)[:, None],
            np.array([[weight @ self._quality**2]]),
        )


def fit_fixed(
    comparison: ArrayLike,
    sign: ArrayLike,
    annotator: ArrayLike,
    delta: ArrayLike,
    n_annotators: int,
    quality: ArrayLike,
    *,
    anchored: ArrayLike | None = None,
    min_informative: int = 10,
) -> Leans:
    r"""Leans with the quality of the comparisons given, and its scale fitted.

    .. math:: \operatorname{logit} P(a \text{ wins}) = \beta\, \text{quality}_c + \theta_k \cdot d_j

    A quality that is a poor stand-in for the true one makes leans too small, the more so the more the true quality
    varies (by simulation a slope of 0.84 with no quality at all and a true sd of 1, 0.62 at 2), and where annotators
    judge different material it biases them; scaling the given quality repairs only its unit.

    Parameters
    ----------
    comparison, annotator : int array of shape (n_votes,)
        ``comparison`` indexes ``quality``; ``annotator`` is below ``n_annotators``.
    sign : array of shape (n_votes,)
        +1 chose a, -1 chose b.
    delta : array of shape (n_votes, n_attributes)
        g(a) - g(b).
    n_annotators : int
    quality : array of shape (n_comparisons,)
        a over b, in any unit.
    anchored : bool array of shape (n_annotators,), or None
        Annotators whose lean is zero by declaration.
    min_informative : int
        With fewer informative votes the status is "insufficient". Every cross-group vote is informative here.

    Returns
    -------
    Leans
        ``u_scale`` is the fitted factor.

    Raises
    ------
    ValueError
        If a quality is missing or not finite.

    Examples
    --------
    >>> votes = dict(comparison=[0, 0, 1, 1, 2, 2, 3, 3], sign=[1, 1, -1, 1, 1, -1, -1, -1])
    >>> votes |= dict(annotator=[0, 1] * 4, delta=[[1], [1], [1], [1], [-1], [-1], [1], [1]], n_annotators=2)
    >>> leans = fit_fixed(**votes, quality=[1.0, 0.0, 0.5, -1.0])
    >>> bool(leans.deviation[0, 0] < 0 < leans.deviation[1, 0]), bool(leans.u_scale > 0)
    (True, True)
    """
    given, chosen = np.asarray(quality, dtype=np.float64), np.asarray(comparison)
    if len(chosen) and (chosen.min() < 0 or chosen.max() >= len(given)):
        raise ValueError(
            f"quality has {len(given)} entries, and comparisons are numbered {chosen.min()} to {chosen.max()}; "
            "give one number for each comparison"
        )
    if not np.isfinite(given).all():
        raise ValueError(
            f"the quality of comparison {int(np.flatnonzero(~np.isfinite(given))[0])} is not finite"
        )

    def model(blocks: ComparisonBlocks, votes: NDArray[np.intp]) -> GivenQuality:
        return GivenQuality(blocks, np.asarray(sign, dtype=np.float64)[votes], given[chosen[votes]])

    return fit_leans(
        "fixed",
        model,
        cross_group,
        (chosen, sign, annotator, delta, n_annotators),
        anchored=anchored,
        min_informative=min_informative,
    )
