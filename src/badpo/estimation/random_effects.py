"""Leans when the quality of the comparisons is one normal distribution, integrated out by Gauss-Hermite quadrature."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, logsumexp

from badpo.estimation.comparison_blocks import ComparisonBlocks
from badpo.estimation.lean_fit import fit_leans
from badpo.estimation.lean_votes import cross_group
from badpo.estimation.leans import Leans
from badpo.estimation.maximizing import Curvature

MODE_STEPS = 60
CHUNK = 50_000


class RandomQuality:
    r"""Votes with :math:`u_c \sim N(0, \sigma^2)`; the extra number is log sigma.

    The nodes of a comparison lie around the most likely u given its votes, spread by the curvature there, so that a
    few of them are exact to many digits also where sigma or the number of votes is large.

    Parameters
    ----------
    blocks : ComparisonBlocks
    sign : array of shape (n_votes,)
    n_nodes : int
    """

    def __init__(self, blocks: ComparisonBlocks, sign: NDArray[np.float64], n_nodes: int) -> None:
        self._blocks, self._sign, self._won = blocks, sign, (sign > 0).astype(np.float64)
        self._points, weights = np.polynomial.hermite_e.hermegauss(n_nodes)
        self._log_weights = np.log(weights) + self._points**2 / 2 - np.log(2 * np.pi) / 2
        self._mode = np.zeros(len(blocks.starts))
        self._spread = np.ones(len(blocks.starts))
        self.start = np.zeros(1)

    def settle(self, logits: NDArray[np.float64], extra: NDArray[np.float64]) -> None:
        """Put every comparison's nodes where its votes want the quality."""
        precision, mode = np.exp(-2 * extra[0]), self._mode.copy()
        for _ in range(MODE_STEPS):
            chance = expit(mode[self._blocks.comparison] + logits)
            curvature = self._blocks.sums(chance * (1 - chance)) + precision
            step = (self._blocks.sums(self._won - chance) - precision * mode) / curvature
            mode += np.clip(step, -2.0, 2.0)
            if np.abs(step).max(initial=0.0) < 1e-10:
                break
        self._mode, self._spread = mode, 1 / np.sqrt(curvature)

    def _chunks(
        self, logits: NDArray[np.float64], log_sd: float
    ) -> Iterator[tuple[int, NDArray, NDArray, NDArray, NDArray]]:
        """Stack number, votes (n, T), comparisons (n,), nodes (n, H) and log terms (n, H), a chunk at a time."""
        for number, stack in enumerate(self._blocks.stacks):
            for first in range(0, len(stack), CHUNK):
                votes = stack[first : first + CHUNK]
                rows = self._blocks.comparison[votes[:, 0]]
                spread = self._spread[rows, None]
                nodes = self._mode[rows, None] + spread * self._points
                terms = np.log(spread) + self._log_weights - log_sd - nodes**2 / (2 * np.exp(2 * log_sd))
                sign = self._sign[votes]
                for i in range(votes.shape[1]):
                    side = sign[:, i, None]
                    terms -= np.logaddexp(0.0, -side * (nodes + logits[votes[:, i], None]))
                yield number, votes, rows, nodes, terms

    def values(self, logits: NDArray[np.float64], extra: NDArray[np.float64]) -> NDArray[np.float64]:
        """Log-likelihood of each comparison."""
        found = np.empty(len(self._blocks.starts))
        for _, _, rows, _, terms in self._chunks(logits, float(extra[0])):
            found[rows] = logsumexp(terms, axis=1)
        return found

    def curvature(self, logits: NDArray[np.float64], extra: NDArray[np.float64]) -> Curvature:
        """Derivatives of the sum of the values, the nodes held where they are."""
        score, cross = np.empty(len(logits)), np.empty((len(logits), 1))
        blocks: list[list[NDArray]] = [[] for _ in self._blocks.stacks]
        extra_score = extra_information = 0.0
        variance = np.exp(2 * extra[0])
        for number, votes, _, nodes, terms in self._chunks(logits, float(extra[0])):
            mass = np.exp(terms - logsumexp(terms, axis=1, keepdims=True))
            chance = expit(nodes[:, None, :] + logits[votes][:, :, None])
            residual = self._won[votes][:, :, None] - chance
            mean = np.einsum("nth,nh->nt", residual, mass)
            pull = nodes**2 / variance - 1
            mean_pull = (mass * pull).sum(axis=1)
            centered = residual - mean[:, :, None]
            score[votes] = mean
            cross[votes, 0] = -np.einsum("nth,nh->nt", centered, mass * pull)
            extra_score += float(mean_pull.sum())
            bend = 2 * (pull + 1) - (pull - mean_pull[:, None]) ** 2
            extra_information += float((mass * bend).sum())
            block = -(centered * mass[:, None, :]) @ centered.transpose(0, 2, 1)
            diagonal = np.arange(votes.shape[1])
            block[:, diagonal, diagonal] += np.einsum("nth,nh->nt", chance * (1 - chance), mass)
            blocks[number].append(block)
        entries = [block.ravel() for parts in blocks for block in parts]
        information = self._blocks.matrix(np.concatenate([np.zeros(0), *entries]))
        return Curvature(score, information, np.array([extra_score]), cross, np.array([[extra_information]]))


def fit_random(
    comparison: ArrayLike,
    sign: ArrayLike,
    annotator: ArrayLike,
    delta: ArrayLike,
    n_annotators: int,
    *,
    n_nodes: int = 15,
    anchored: ArrayLike | None = None,
    min_informative: int = 10,
) -> Leans:
    r"""Leans with the quality of the comparisons drawn from one normal distribution, whose spread is fitted.

    .. math:: \ell(\theta, \sigma) = \sum_c \log \int \prod_{j \in c} \sigma\big(s_j (u + \theta_{k_j} \cdot d_j)\big)
        \, N(u; 0, \sigma^2)\, du

    It uses every vote, also single and unanimous ones, and is a tenth more precise than the conditional likelihood
    **where comparisons were given to annotators at random**. Where annotators judge different material it is wrong
    without a sign of it (by simulation 95 % intervals that hold the truth in 21 of 100 cases).

    Parameters
    ----------
    comparison, annotator : int array of shape (n_votes,)
    sign : array of shape (n_votes,)
        +1 chose a, -1 chose b.
    delta : array of shape (n_votes, n_attributes)
        g(a) - g(b).
    n_annotators : int
    n_nodes : int
        Quadrature nodes per comparison, placed adaptively.
    anchored : bool array of shape (n_annotators,), or None
        Annotators whose lean is zero by declaration.
    min_informative : int
        With fewer informative votes the status is "insufficient". Every cross-group vote is informative here.

    Returns
    -------
    Leans
        ``quality_sd`` is the fitted spread. Standard errors come from the observed information with the spread
        estimated along. The common level is not reported unless anchors or the design identify it: here it rests on
        the mean quality not depending on the attribute.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> votes = dict(comparison=np.repeat(np.arange(300), 3), annotator=np.tile(np.arange(3), 300), n_annotators=3)
    >>> delta = np.repeat(rng.choice([-1.0, 1.0], 300), 3)
    >>> logit = np.repeat(rng.normal(size=300), 3) + np.array([1.0, 0.0, -1.0])[votes["annotator"]] * delta
    >>> sign = np.where(rng.random(900) < 1 / (1 + np.exp(-logit)), 1, -1)
    >>> leans = fit_random(**votes, sign=sign, delta=delta[:, None])
    >>> bool(np.all(np.abs(leans.deviation.ravel() - [1, 0, -1]) < 3 * leans.se.ravel()))
    True
    """

    def model(blocks: ComparisonBlocks, votes: NDArray[np.intp]) -> RandomQuality:
        return RandomQuality(blocks, np.asarray(sign, dtype=np.float64)[votes], n_nodes)

    return fit_leans(
        "random",
        model,
        cross_group,
        (comparison, sign, annotator, delta, n_annotators),
        anchored=anchored,
        min_informative=min_informative,
    )
