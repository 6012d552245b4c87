"""What the runs of suites need, looked at before the first of them is trained: models, judges and votes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)
from transformers.utils.hub import has_file

from badpo.data.checks import check
from badpo.data.problems import ConfigError, DataError
from badpo.experiments.arms import ARMS
from badpo.experiments.evaluate import VERSION, kept_json
from badpo.experiments.start_policy import UNREADABLE, kept_reference, unreadable
from badpo.experiments.suite_materials import gate_lines, own_file
from badpo.experiments.suite_parts import Corpus, Suite
from badpo.experiments.suite_runs import PlannedRun, planned_runs, refusals, refused_runs
from badpo.experiments.suite_settings import Scale
from badpo.experiments.suite_stages import (
    CorpusStage,
    declared,
    reference_recipe,
    supervised_responses,
    unopened_stage,
)
from badpo.objective.bias import VARIANTS
from badpo.readouts.judge import checked_judge
from badpo.theory.adam import shared_speed
from badpo.training.model_files import WEIGHTS
from badpo.training.recipe_blocks import ModelChoice

logger = logging.getLogger(__name__)


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
        A model or judge that cannot be loaded or used, with the suites that need it; a corpus that is out of reach; a
        folder that holds a run with other data or settings.
    DataError
        The votes of a corpus cannot be used, or one of its evaluation prompts is a training prompt.
    """
    runs = {suite.name: planned_runs([suite], scale, seeds) for suite in suites}
    complaints = [*_of_models(runs, scale), *_of_judge(runs, scale, out)]
    if complaints:
        raise ConfigError("\n".join([*complaints, "nothing was trained"]))
    every = planned_runs(suites, scale, seeds)
    corpora = list(dict.fromkeys(run.corpus for run in every))
    own = {corpus: own_file(corpus, corpora, data) for corpus in corpora}
    stages = {corpus: unopened_stage(corpus, scale, own[corpus], out / corpus.folder) for corpus in corpora}
    for corpus, stage in stages.items():
        if own[corpus] is not None:
            require_differences(stage, own[corpus], [run for run in every if run.corpus == corpus])
        recipe = reference_recipe(stage, scale, own[corpus])
        kept_reference(recipe, stage.train, recipe.arguments(), supervised_responses(stage))
    if refused := refused_runs(every, stages, scale, out):
        raise ConfigError("\n".join(refusals(refused)))
    for line in gate_lines(scale.material(corpus, own[corpus]) for corpus in corpora):
        logger.info("%s", line)


def require_differences(stage: CorpusStage, data: Path | None, runs: Sequence[PlannedRun]) -> None:
    """Stop at votes that say nothing of an attribute that a run declares by name.

    Raises
    ------
    DataError
        E120 or E121, with the file.
    """
    wanted = {name for run in runs if run.condition is not None for name in run.condition.declared}
    attributes = [name for name in stage.train.attribute_names if name in wanted]
    if not attributes:
        return
    found = check(declared(stage.train, tuple(attributes)))
    silent = [problem for problem in found if problem.code in ("E120", "E121")]
    if silent:
        raise DataError([replace(problem, where=f"{data}, {problem.where}") for problem in silent])


def read_stages(
    corpora: Sequence[Corpus], scale: Scale, out: Path, data: Path | None
) -> tuple[dict[Corpus, CorpusStage], list[str]]:
    """The corpora that are within reach, as stages without a model, and what is to be said of the others.

    Raises
    ------
    DataError
        The votes of a corpus cannot be used.
    """
    stages: dict[Corpus, CorpusStage] = {}
    unread: dict[str, str] = {}
    for corpus in corpora:
        # the Hub is asked once for each kind
        if corpus.kind in unread:
            continue
        try:
            own = own_file(corpus, corpora, data)
            stages[corpus] = unopened_stage(corpus, scale, own, out / corpus.folder)
        except ConfigError as error:
            unread[corpus.kind] = f"the votes of {corpus.folder} are not read: {error}"
    return stages, list(unread.values())


def free_theta_lines(runs: Sequence[PlannedRun], stages: Mapping[Corpus, CorpusStage]) -> list[str]:
    """How much slower each annotator's own theta moves than one that all share, for runs without a shared part."""
    found: dict[str, list[str]] = {}
    for run in runs:
        condition = run.condition
        if condition is None or run.corpus not in stages:
            continue
        if VARIANTS.get(ARMS[condition.arm].bias or "none") != ("deviation",):
            continue
        stage = stages[run.corpus]
        judgments, args = declared(stage.train, condition.declared), stage.args
        in_a_step = args.per_device_train_batch_size * args.gradient_accumulation_steps
        cross = judgments.cross_group().mean(axis=0).min() * in_a_step
        if cross:
            speed = f"{shared_speed(judgments.n_annotators, cross):.1f}"
            found.setdefault(speed, []).append(f"{run.corpus.folder}/{condition.name}")
    return [
        f"each annotator's own theta alone ({', '.join(dict.fromkeys(names))}): one that all share would move about "
        f"{speed} times as far in a step (Adam: sqrt(annotators / cross-group judgments of a step))"
        for speed, names in found.items()
    ]


def require_model(choice: ModelChoice) -> None:
    """Look at a start model without its weights: its tokenizer, its configuration, and whether there are weights.

    Raises
    ------
    ConfigError
        It is not there, is no causal language model, or its tokenizer has no chat template or no end-of-text token.
    """
    name = choice.model_name_or_path
    kind = "a causal language model"
    _, tokenizer = _looked_at(
        name, AutoModelForCausalLM, kind, choice.model_revision, choice.trust_remote_code
    )
    tokens = {"chat template": tokenizer.chat_template, "end-of-text token": tokenizer.eos_token_id}
    lacking = [what for what, value in tokens.items() if value is None]
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
    checked_judge(*_looked_at(name, AutoModelForSequenceClassification, "a reward model"), name)


def _looked_at(
    name: str, auto_class: Any, kind: str, revision: str = "main", trust_remote_code: bool = False
) -> tuple[Any, Any]:
    """A model without its weights, and its tokenizer; `ConfigError` where they cannot be read."""
    shared = {"revision": revision, "trust_remote_code": trust_remote_code}
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, **shared)
        config = AutoConfig.from_pretrained(name, **shared)
        with torch.device("meta"):
            model = auto_class.from_config(config, trust_remote_code=trust_remote_code)
        if not any(has_file(name, file, revision=revision) for file in WEIGHTS):
            raise OSError(f"none of {', '.join(WEIGHTS)} is there")
    except UNREADABLE as error:
        raise ConfigError(unreadable(name, error, kind)) from error
    return model, tokenizer


def _of_models(runs: Mapping[str, Sequence[PlannedRun]], scale: Scale) -> list[str]:
    """What is wrong with the start models that are named, each with the suites that need it."""
    if scale.preset_of is None:
        return []
    needed: dict[str, list[str]] = {}
    for suite, asked in runs.items():
        for name in dict.fromkeys(scale.preset_of[run.corpus.model] for run in asked):
            needed.setdefault(name, []).append(suite)
    found = [_complaint(require_model, ModelChoice(name), suites) for name, suites in needed.items()]
    return list(filter(None, found))


def _of_judge(runs: Mapping[str, Sequence[PlannedRun]], scale: Scale, out: Path) -> list[str]:
    """What is wrong with the judge, with the suites that have runs to measure."""
    suites = [
        suite
        for suite, asked in runs.items()
        if any(kept_json(out / run.place / "readouts.json").get("version") != VERSION for run in asked)
    ]
    if scale.judge is None or not suites:
        return []
    return list(filter(None, [_complaint(require_judge, scale.judge, suites)]))


def _complaint(require: Callable[[Any], None], needed: Any, suites: Sequence[str]) -> str:
    """What a look at something says of it, and which suites need it; empty where nothing is wrong."""
    try:
        require(needed)
    except ConfigError as error:
        return f"{error} (needed by {', '.join(suites)})"
    return ""
