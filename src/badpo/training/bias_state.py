"""Theta, its optimizer and the objective's state as files: beside the policy, and in every checkpoint."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from badpo.data.files import appearing
from badpo.data.judgments import Judgments
from badpo.objective.bias import BiasTerm
from badpo.objective.objectives import Objective
from badpo.training.gold_annotators import gold_cross_votes
from badpo.training.reference import FirstMargin
from badpo.training.resume import rows_taken_up, take_up
from badpo.training.separated import separated_by_attribute

logger = logging.getLogger(__name__)

BIAS_OPTIMIZER_FILE = "bias_optimizer.safetensors"
OBJECTIVE_FILE = "objective.safetensors"


def save_state(folder: Path, optimizer: torch.optim.Optimizer | None, objective: Objective) -> None:
    """Write what a checkpoint needs besides the bias term: the moments of its optimizer and the objective's state."""
    if optimizer is not None:
        save_privately(adam_tensors(optimizer), folder / BIAS_OPTIMIZER_FILE)
    if state := objective.state_dict():
        save_privately(dict(state), folder / OBJECTIVE_FILE)


def save_privately(tensors: dict[str, torch.Tensor], path: Path) -> None:
    """Write tensors that concern single annotators; the file is readable by this user only."""
    with appearing(path, private=True) as unfinished:
        save_file(tensors, unfinished)


def load_state(
    folder: Path, bias: BiasTerm, optimizer: torch.optim.Optimizer | None, objective: Objective
) -> FirstMargin | None:
    """Read back a bias term, by the names of annotators and classes, and what `save_state` wrote beside it.

    Returns the first margin of the run that is resumed; None where the checkpoint has none.
    """
    saved = BiasTerm.load(folder)
    new = take_up(bias, saved)
    if new:
        logger.warning("%d annotators are new and start at the pool mean of theta", len(new))
    if optimizer is not None:
        moments = load_file(folder / BIAS_OPTIMIZER_FILE)
        load_adam_tensors(optimizer, rows_taken_up(moments, bias, saved))
    state = folder / OBJECTIVE_FILE
    objective.load_state_dict(load_file(state) if state.exists() else {})
    first_margin = saved.extra.get("first_margin")
    return FirstMargin(**first_margin) if first_margin else None


def bias_facts(run) -> dict[str, Any]:
    """What the numbers of the bias term of a `BADPOTrainer` belong to and rest on, as its description keeps it."""
    judgments = run.judgments
    return {
        "variant": run.args.bias,
        "attributes": [dict(attribute.config) for attribute in judgments.attributes],
        "data": judgments.fingerprint(),
        "beta": run.args.beta,
        "first_margin": None if run.first_margin is None else asdict(run.first_margin),
        "gold_votes": gold_votes(judgments, run.bias),
        **({} if run.objective.in_log_odds else {"theta_in_log_odds": False}),
        "separated": separated_by_attribute(judgments, run.bias),
    }


def gold_votes(judgments: Judgments, bias: BiasTerm) -> dict[str, int]:
    """Cross-group judgments of those whose theta is held at zero, by attribute; empty when no one's is."""
    gold = bias.mask.cpu().numpy() == 0
    return gold_cross_votes(judgments, gold) if gold.any() else {}


def adam_tensors(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The moments of an optimizer as named tensors, so that they need no pickle."""
    return {
        f"{index}.{name}": torch.as_tensor(value).clone()
        for index, state in optimizer.state_dict()["state"].items()
        for name, value in state.items()
    }


def load_adam_tensors(optimizer: torch.optim.Optimizer, tensors: dict[str, torch.Tensor]) -> None:
    """Put back what `adam_tensors` took out."""
    state: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in tensors.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
