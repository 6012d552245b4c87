"""From tokens to margins: which tokens of the responses are scored, what each counts, and their sums."""

from __future__ import annotations

from collections.abc import Mapping
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
    """
    if objective.weighs_tokens and layout is packed_layout:
        return partial(packed_layout, scored_tokens="all")
    return layout


def weigh_tokens(batch: dict, objective: Objective, judgments: Judgments, step: int) -> None:
    """Add the weight of every scored token to a micro-batch, ``token_weight`` of shape (n_scored,).

    Nothing changes where the objective weighs no tokens.
    """
    if not objective.weighs_tokens:
        return
    votes = batch["votes"].numpy()
    place = judgments.votes["comparison"].to_numpy()
    # a micro-batch without votes carries the first comparison
    comparisons = np.unique(place[votes]) if len(votes) else np.zeros(1, dtype=np.int64)
    lengths = np.bincount(batch["scoring"]["response"], minlength=2 * len(comparisons)).reshape(-1, 2)
    weights = objective.token_weights(lengths, comparisons, step)
    batch["token_weight"] = torch.from_numpy(np.concatenate([side for both in weights for side in both]))


def batch_margins(token_logps: torch.Tensor, inputs: Mapping[str, Any], beta: float) -> torch.Tensor:
    """The margin u of every comparison of a micro-batch, (n_comparisons,), in float64."""

    def response_sums(values: torch.Tensor) -> torch.Tensor:
        # float64: rounding of the sums is the largest part of the gradient's error in fp32
        weighed = values.double() * inputs.get("token_weight", 1.0)
        sums = weighed.new_zeros(2 * inputs["n_comparisons"])
        return sums.index_add(0, inputs["scoring"]["response"], weighed)

    policy, reference = response_sums(token_logps), response_sums(inputs["reference_logps"])
    return margin(policy[0::2], policy[1::2], reference[0::2], reference[1::2], beta)


def require_comparable_start(objective: Objective, warm_start: str) -> None:
    """Raise `ConfigError` where theta would start at log-odds and the objective counts in another unit."""
    if warm_start != "zero" and not objective.in_log_odds:
        raise ConfigError(
            f"warm_start: {warm_start} starts theta at log-odds of the votes, and {type(objective).__name__} counts in "
            "another unit, in which the same number means another lean; use warm_start: zero"
        )
