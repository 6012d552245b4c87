"""Names of the objectives that recipes and TRL's keys can select; a user's file can add more.

This module does not load torch, so a recipe with an unknown objective is rejected immediately.
"""

from __future__ import annotations

import importlib
import runpy
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from badpo.data.files import Json
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError, did_you_mean

if TYPE_CHECKING:
    from badpo.objective.objectives import Objective

# Baselines of `compare`. The DPO baseline uses the vote weights in the table.
# The placebo baseline uses weights that cancel the votes' shared bias.
DPO, PLACEBO = "dpo", "placebo"


def _objectives() -> ModuleType:
    """Import the module that defines the objectives; this loads torch."""
    return importlib.import_module("badpo.objective.objectives")


# Map each objective's name to a function that creates the objective.
# Each function takes the training judgments, the run's seed and beta, and the settings of the objective.
OBJECTIVES: dict[str, Callable[..., Objective]] = {
    "votes": lambda judgments, seed, beta: _objectives().VoteWeights(),
    "sampled_tokens": lambda judgments, seed, beta: _objectives().SampledTokens(seed),
    "discounted_tail": lambda judgments, seed, beta, alpha: _objectives().DiscountedTail(alpha),
    PLACEBO: lambda judgments, seed, beta: _objectives().PlaceboWeights(
        _objectives().votes_of(judgments)
    ),
    "identity_preference": lambda judgments, seed, beta: _objectives().IdentityPreference(beta),
    "group_weights": lambda judgments, seed, beta, groups, eta: _objectives().GroupWeights(
        _objectives().group_numbers(judgments, groups), eta
    ),
}

_BUILT_IN = frozenset(OBJECTIVES)
_TRL_NAMES = {"sigmoid": "votes", "ipo": "identity_preference"}


def objective_of_loss(loss_type: object) -> str | None:
    """Return the name in `OBJECTIVES` for a value of TRL's key ``loss_type``, or None if badpo lacks the loss."""
    losses = [loss_type] if isinstance(loss_type, str) else loss_type
    if not isinstance(losses, list) or len(losses) != 1:
        return None
    name = _TRL_NAMES.get(losses[0], losses[0])
    return name if name in OBJECTIVES else None


def objective_of_trl_keys(loss_type: object, ld_alpha: float | None) -> tuple[Json, str]:
    """Return the recipe block of the objective that TRL's keys select, and the key that selects it ("" by default)."""
    name = objective_of_loss(loss_type)
    if name not in (None, "votes"):
        return {"name": name}, "loss_type"
    if ld_alpha is not None and 0 <= ld_alpha < 1:
        return {"name": "discounted_tail", "alpha": ld_alpha}, "ld_alpha"
    return {"name": "votes"}, ""


def require_known(name: str, further: Sequence[str] = ()) -> None:
    """Raise `ConfigError` if ``name`` is neither in `OBJECTIVES` nor in ``further``."""
    known = [*further, *OBJECTIVES]
    if name not in known:
        raise ConfigError(
            f'unknown objective "{name}".{did_you_mean(name, known)} Choose one of {", ".join(known)}, or add your '
            "own objective from a file with --arm-file. EM-DPO and shuffled annotators are not objectives but "
            "procedures of the paper; to run them, use badpo reproduce"
        )


def add_objectives(path: str | Path) -> None:
    """Add the objectives that a user's Python file defines in an ``OBJECTIVES`` dictionary like the one in this module.

    Only a command-line option or a function call can name a file of objectives. A recipe or a run folder cannot.
    """
    try:
        added = runpy.run_path(str(path))["OBJECTIVES"]
    except KeyError:
        raise ConfigError(
            f"{path} does not define OBJECTIVES. Write for example "
            'OBJECTIVES = {"bounded": lambda judgments, seed, beta, q: Bounded(q)}'
        ) from None
    except Exception as error:  # the file is a program of the user and can raise anything
        raise ConfigError(f"{path} cannot be run: {type(error).__name__}: {error}") from error
    if taken := sorted(_BUILT_IN & added.keys()):
        raise ConfigError(f"{path}: {', '.join(taken)} is a built-in objective; choose another name")
    OBJECTIVES.update(added)


def make_objective(block: Json, judgments: Judgments, seed: int, beta: float) -> Objective:
    """Create the objective that ``block`` names, with its settings; raise `ConfigError` if the settings are wrong."""
    settings = dict(block)
    require_known(name := settings.pop("name"))
    try:
        return OBJECTIVES[name](judgments, seed, beta, **settings)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"objective {name}: {str(error).removeprefix('<lambda>() ')}") from error
