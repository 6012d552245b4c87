"""Where theta starts and how fast it moves, beyond the paper's own: the arms of the suite ``beyond``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.cluster.vq import kmeans2
from transformers import TrainerCallback

from badpo.auditing.start_level import audit_level
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError
from badpo.estimation.conditional import fit_conditional
from badpo.estimation.pool import joint_log_odds
from badpo.objective.bias import BiasTerm

N_CLUSTERS = 3
BOOSTED_SHARE = 0.2  # of the steps


def starting_level(judgments: Judgments, start: str) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """The level that theta starts at, and where each attribute's comes from.

    ``swap`` is the log-odds among swap pairs, in which quality cancels, and the offline log-odds where an attribute has
    none. ``burn_in`` is the optimum of the loss over one theta for everyone while the policy is still the reference:
    the loss is convex then, and this is what training theta alone would end at.

    Parameters
    ----------
    judgments : Judgments
        The training judgments.
    start : {"swap", "burn_in"}

    Returns
    -------
    array of shape (n_attributes,), in log-odds, and a tuple of str

    Raises
    ------
    ConfigError
        An attribute whose votes all go one way, or which the votes do not tell apart from the others.
    """
    levels: list[float | None]
    if start == "swap":
        found = audit_level(judgments).values()
        levels, sources = [level for level, _ in found], tuple(source for _, source in found)
    else:
        prompts = judgments.comparisons["prompt_id"].to_numpy()[judgments.votes["comparison"].to_numpy()]
        joint = joint_log_odds(judgments.delta, judgments.votes["sign"], prompts)
        levels = [interval.estimate if interval else None for interval in joint]
        sources = ("a burn-in",) * len(levels)
    for name, level in zip(judgments.attribute_names, levels, strict=True):
        if level is None or not np.isfinite(level):
            raise ConfigError(
                f"theta cannot start at the votes' own level of {name}: they all go one way, or do not tell it apart; "
                "start at zero"
            )
    return np.array(levels, dtype=np.float64), sources


def start_bias(bias: BiasTerm, judgments: Judgments, start: str) -> dict[str, dict[str, Any]]:
    """Start a bias term at `start_levels`, and return these; ``zero`` leaves it and returns nothing."""
    if start == "zero":
        return {}
    levels = start_levels(judgments, start)
    bias.warm_start(torch.tensor([found["level"] for found in levels.values()]))
    return levels


def start_levels(judgments: Judgments, start: str) -> dict[str, dict[str, Any]]:
    """`starting_level` of each attribute and where it comes from, as JSON: {attribute: {"level", "from"}}."""
    levels, sources = starting_level(judgments, start)
    return {
        name: {"level": float(level), "from": source}
        for name, level, source in zip(judgments.attribute_names, levels, sources, strict=True)
    }


def clustered(judgments: Judgments, seed: int = 0) -> Judgments:
    """The judgments with annotators in classes that their own leans suggest, whatever classes they had.

    k-means with three centers on the deviations of the conditional fit; an annotator without one stands at the mean.

    Parameters
    ----------
    judgments : Judgments
    seed : int
        Of the starts.
    """
    votes = judgments.votes
    delta = judgments.delta
    leans = fit_conditional(
        votes["comparison"], votes["sign"], votes["annotator"], delta, judgments.n_annotators
    )
    deviation = np.nan_to_num(leans.deviation, nan=0.0, posinf=3.0, neginf=-3.0)
    # before scipy 1.15 its name is seed, which later ones take too
    _, label = kmeans2(
        deviation, min(N_CLUSTERS, len(deviation)), minit="++", seed=np.random.default_rng(seed)
    )
    classes = [f"cluster {number}" for number in label]
    return replace(judgments, annotators=judgments.annotators.assign(annotator_class=classes))


class FallingRate(TrainerCallback):
    """Begins the bias's learning rate at ``boost`` times its value and lets it fall to it over a fifth of the steps.

    A function of the step alone, so that a resumed run has the same.

    Parameters
    ----------
    trainer : BADPOTrainer
    boost : float
    """

    def __init__(self, trainer, boost: float):
        self._trainer = trainer
        self._boost = boost

    def on_step_begin(self, args, state, control, **kwargs):
        """Set the rate of the step."""
        done = state.global_step / max(1.0, BOOSTED_SHARE * state.max_steps)
        factor = max(1.0, self._boost - (self._boost - 1.0) * done)
        for group in self._trainer.bias_optimizer.param_groups:
            group["lr"] = args.bias_learning_rate * factor
