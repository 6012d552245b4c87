"""What grouping costs in precision: the variance of a step's gradient, grouped against random."""

from __future__ import annotations

import numpy as np
import torch

from badpo.training.encoding import EncodedComparisons
from badpo.training.logprobs import attach, on_device, packed_layout, scoring_attention
from bench.workloads import Workload

N_COMPARISONS = 160


def design_effect(workload: Workload, model, encoded: EncodedComparisons) -> float:
    r"""Variance of a grouped step's gradient over that of a random step with as many judgments, at the start of DPO.

    At the start every margin is 0 and the gradient of judgment j is :math:`s_j \nabla u_c` but for a factor, so that
    the votes on a comparison differ in their sign only. Steps that keep the m votes of a comparison together have
    the variance of :math:`\sum_j s_j \nabla u_c`, random steps that of independent judgments.

    Parameters
    ----------
    workload : Workload
        The comparisons of ``encoded``, in order of appearance, with all of their votes.
    model : causal language model
    encoded : EncodedComparisons
    """
    comparison = workload.comparison
    position = np.unique(comparison, return_inverse=True)[1]
    sign = np.where(workload.votes["winner"] == "a", 1.0, -1.0)
    n_votes = np.bincount(position).astype(float)
    vote_sum = np.bincount(position, weights=sign)
    squares, mean = _margin_gradients(model, encoded, vote_sum)
    n = len(encoded)
    # the squared length of the mean gradient, from products of different comparisons only
    pairs = (mean - (vote_sum**2 * squares).sum()) / (n * (n - 1))
    grouped = (vote_sum**2 * squares).mean() - pairs
    random = (n_votes * squares).mean() - pairs / n_votes.mean()
    return float(grouped / random)


def _margin_gradients(model, encoded: EncodedComparisons, weight: np.ndarray) -> tuple[np.ndarray, float]:
    """Squared length of each margin's gradient, and of their sum with the given weights."""
    attach(model)
    parameters = list(model.parameters())
    total = [torch.zeros_like(p) for p in parameters]
    squares = np.empty(len(encoded))
    with scoring_attention(model, packed_layout):
        for c in range(len(encoded)):
            inputs, _ = packed_layout([encoded.prompt_ids[c]], [encoded.a_ids[c]], [encoded.b_ids[c]])
            scoring = on_device(inputs, torch.device("cpu"))
            side = 1.0 - 2.0 * scoring["response"]
            gradients = torch.autograd.grad((side * model(scoring=scoring)).sum(), parameters)
            squares[c] = sum(float(g.square().sum(dtype=torch.float64)) for g in gradients)
            for sum_, g in zip(total, gradients, strict=True):
                sum_ += weight[c] * g
    return squares, sum(float(g.square().sum(dtype=torch.float64)) for g in total)
