"""What the runs of suites need, looked at before the first of them is trained: models, judges and votes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)
from transformers.utils import (
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    WEIGHTS_INDEX_NAME,
    WEIGHTS_NAME,
)
from transformers.utils.hub import has_file

from badpo.data.problems import ConfigError
from badpo.experiments.start_policy import UNREADABLE, unreadable
from badpo.experiments.suite_parts import Suite
from badpo.experiments.suite_plan import state_of
from badpo.experiments.suite_runs import PlannedRun, planned_runs
from badpo.experiments.suite_stages import Scale, own_file, sound_material
from badpo.experiments.suite_votes import gate_lines
from badpo.readouts.judge import checked_judge
from badpo.training.recipe_blocks import ModelChoice

logger = logging.getLogger(__name__)

WEIGHTS = (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_NAME, WEIGHTS_INDEX_NAME)


def require_needs(
    suites: Sequence[Suite], scale: Scale, seeds: Sequence[int], out: Path, data: Path | None
) -> None:
    """Look at every model, judge and corpus that the runs of some suites need, and say what is wrong with each model.

    Nothing is trained, and no weights are read. The statistics of a public corpus are logged beside the published ones.

    Parameters
    ----------
    suites : sequence of Suite
    scale : Scale
    seeds : sequence of int
    out : Path
        Of the runs: a judge is needed where one of them is not measured yet.
    data : Path or None
        A user's own file.

    Raises
    ------
    ConfigError
        A model or judge that cannot be loaded or used, with the suites that need it; a corpus that is out of reach.
    DataError
        The votes of a corpus cannot be used, or one of its evaluation prompts is a training prompt.
    """
    runs = {suite.name: planned_runs([suite], scale, seeds) for suite in suites}
    complaints = [*_of_models(runs, scale), *_of_judge(runs, scale, out)]
    if complaints:
        raise ConfigError("\n".join([*complaints, "Nothing was trained."]))
    corpora = list(dict.fromkeys(run.corpus for asked in runs.values() for run in asked))
    for corpus in corpora:
        material = sound_material(corpus, scale, own_file(corpus, corpora, data))
        for line in gate_lines(corpus, material):
            logger.info("%s", line)


def require_model(choice: ModelChoice) -> None:
    """Look at a start model without its weights: its tokenizer, its configuration, and whether there are weights.

    Raises
    ------
    ConfigError
        It is not there, is no causal language model, or its tokenizer has no chat template or no end-of-text token.
    """
    name = choice.model_name_or_path
    shared = {"revision": choice.model_revision, "trust_remote_code": choice.trust_remote_code}
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, **shared)
        config = AutoConfig.from_pretrained(name, **shared)
        with torch.device("meta"):
            AutoModelForCausalLM.from_config(config, trust_remote_code=choice.trust_remote_code)
        _require_weights(name, choice.model_revision)
    except UNREADABLE as error:
        raise ConfigError(unreadable(name, error)) from error
    lacking = [
        what
        for what, value in (
            ("chat template", tokenizer.chat_template),
            ("end-of-text token", tokenizer.eos_token_id),
        )
        if value is None
    ]
    if lacking:
        raise ConfigError(
            f'the tokenizer of "{name}" has no {" and no ".join(lacking)}, so it is not known how the model reads a '
            "prompt and ends an answer; use an instruct model, or save the tokenizer with them"
        )


def require_judge(name: str) -> None:
    """Look at a reward model without its weights.

    Raises
    ------
    ConfigError
        It is not there, has no chat template, or has another number of outputs than one.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
        config = AutoConfig.from_pretrained(name)
        with torch.device("meta"):
            model = AutoModelForSequenceClassification.from_config(config)
        _require_weights(name, "main")
    except UNREADABLE as error:
        raise ConfigError(unreadable(name, error, "a reward model")) from error
    checked_judge(model, tokenizer, name)


def _require_weights(name: str, revision: str) -> None:
    if not any(has_file(name, file, revision=revision) for file in WEIGHTS):
        raise OSError(f"none of {', '.join(WEIGHTS)} is there")


def _of_models(runs: Mapping[str, Sequence[PlannedRun]], scale: Scale) -> list[str]:
    """What is wrong with the start models, each with the suites that need it."""
    if scale.model_named is None:
        return []
    chosen: dict[str, ModelChoice] = {}
    needed: dict[str, list[str]] = {}
    for suite, asked in runs.items():
        choices = [scale.model_named(corpus) for corpus in dict.fromkeys(run.corpus for run in asked)]
        for name, choice in {choice.model_name_or_path: choice for choice in choices}.items():
            chosen[name] = choice
            needed.setdefault(name, []).append(suite)
    return [
        complaint
        for name, suites in needed.items()
        if (complaint := _complaint(require_model, chosen[name], suites))
    ]


def _of_judge(runs: Mapping[str, Sequence[PlannedRun]], scale: Scale, out: Path) -> list[str]:
    """What is wrong with the judge, with the suites that have runs to measure."""
    suites = [
        suite for suite, asked in runs.items() if any(state_of(out / run.place) != "done" for run in asked)
    ]
    if scale.judge is None or not suites:
        return []
    complaint = _complaint(require_judge, scale.judge, suites)
    return [complaint] if complaint else []


def _complaint(require: Callable[[Any], None], needed: Any, suites: Sequence[str]) -> str:
    """What a look at something says of it, and which suites need it; empty where nothing is wrong."""
    try:
        require(needed)
    except ConfigError as error:
        return f"{error} (needed by {', '.join(suites)})"
    return ""
