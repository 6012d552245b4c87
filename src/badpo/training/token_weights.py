"""From tokens to margins: which tokens of the responses are scored, what each counts, and their sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError
from badpo.objective.objectives import Objective
from badpo.theory.likelihood import margin
from badpo.training.logprobs import Layout
from badpo.training.packing import packed_layout


def scored_layout(objective: Objective, layout: Layout) -> Layout:
    """The layout that scores what an objective reads.

    A pack leaves out the tokens that both responses begin with, because they cancel; they do not where the two
    responses weigh them differently.

    Parameters
    ----------
    objective : Objective
    layout : function
        `packed_layout` or `padded_layout`.

    Examples
    --------
    >>> from badpo.objective.objectives import VoteWeights
    >>> scored_layout(VoteWeights(), packed_layout) is packed_layout
    True
    """
    if objective.weighs_tokens and layout is packed_layout:
        return partial(packed_layout, scored_tokens="all")
    return layout


def weigh_tokens(
    batch: dict,
    objective: Objective,
    judgments: Judgments,
    references: Sequence[tuple[np.ndarray, np.ndarray]],
    step: int,
) -> None:
    """Add the weight of every scored token to a micro-batch, and weigh the reference's side of the margin alike.

    Nothing changes where the objective weighs no tokens.

    Parameters
    ----------
    batch : dict
        From `badpo.training.batches.ComparisonCollator`, with every token of both responses scored. Changed in
        place: ``token_weight`` (n_scored,) is new, and ``reference_difference`` is of the weighted sums.
    objective : Objective
    judgments : Judgments
        What the batch is a part of.
    references : sequence of (array, array), one per comparison
        Reference log-probabilities of every token of response a and of response b.
    step : int
        Optimizer steps before this one.
    """
    if not objective.weighs_tokens:
        return
    votes = batch["votes"].numpy()
    place = judgments.votes["comparison"].to_numpy()
    # a micro-batch without votes carries the first comparison
    comparisons = np.unique(place[votes]) if len(votes) else np.zeros(1, dtype=np.int64)
    pairs = [references[c] for c in comparisons.tolist()]
    lengths = np.array([[len(a), len(b)] for a, b in pairs])
    weights = objective.token_weights(lengths, comparisons, step)
    batch["token_weight"] = torch.from_numpy(np.concatenate([side for both in weights for side in both]))
    batch["reference_difference"] = torch.tensor(
        [a @ weight_a - b @ weight_b for (a, b), (weight_a, weight_b) in zip(pairs, weights, strict=True)],
        dtype=torch.float64,
    )


def batch_margins(token_logps: torch.Tensor, inputs: Mapping[str, Any], beta: float) -> torch.Tensor:
    """The margin u of every comparison of a micro-batch, (n_comparisons,), in float64.

    Parameters
    ----------
    token_logps : Tensor of shape (n_scored,)
        Of the policy.
    inputs : mapping
        The micro-batch, from `badpo.training.batches.ComparisonCollator`, weighed where the objective weighs tokens.
    beta : float
    """
    values = token_logps.double()
    if "token_weight" in inputs:
        values = values * inputs["token_weight"]
    difference = inputs["reference_difference"]
    sums = values.new_zeros(2 * len(difference)).index_add(0, inputs["scoring"]["response"], values)
    return margin(sums[0::2], sums[1::2], difference, torch.zeros_like(difference), beta)


def require_comparable_start(objective: Objective, warm_start: str) -> None:
    """Raise `ConfigError` where theta would start at log-odds and the objective counts in another unit."""
    if warm_start != "zero" and not objective.in_log_odds:
        raise ConfigError(
            f"warm_start: {warm_start} starts theta at log-odds of the votes, and {type(objective).__name__} counts in "
            "another unit, in which the same number means another lean; use warm_start: zero"
        )
