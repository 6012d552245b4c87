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
from transformers.utils import SAFE_WEIGHTS_NAME
from transformers.utils.hub import has_file

from badpo.data.checks import check
from badpo.data.problems import ConfigError, DataError
from badpo.experiments.arm_setup import arm_facts, arm_judgments
from badpo.experiments.arms import ARMS
from badpo.experiments.run_keys import run_key
from badpo.experiments.start_policy import UNREADABLE, unreadable
from badpo.experiments.suite_parts import Corpus, Suite
from badpo.experiments.suite_plan import refusals
from badpo.experiments.suite_readouts import VERSION, kept_facts, kept_readouts
from badpo.experiments.suite_runs import PlannedRun, condition_facts, overridden, planned_runs, types_key
from badpo.experiments.suite_settings import PREFERENCE_FIELDS, SUPERVISED_FIELDS
from badpo.experiments.suite_stages import (
    Scale,
    Stage,
    declared,
    own_file,
    reference_facts,
    unopened_stage,
)
from badpo.experiments.suite_votes import gate_lines
from badpo.objective.bias import VARIANTS
from badpo.readouts.judge import checked_judge
from badpo.theory.adam import shared_speed
from badpo.training.model_files import WEIGHTS
from badpo.training.recipe_blocks import ModelChoice
from badpo.training.run_folder import changed_facts

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
    stages = {
        corpus: unopened_stage(
            corpus, scale, own_file(corpus, corpora, data), out / corpus.folder / "reference"
        )
        for corpus in corpora
    }
    for corpus, stage in stages.items():
        if stage.data is not None:
            require_differences(stage, [run for run in every if run.corpus == corpus])
            require_same_file(stage, reference_facts(scale.material(corpus, data))["corpus"])
    if refused := refused_runs(every, stages, scale, out):
        raise ConfigError("\n".join(refusals(refused)))
    for line in gate_lines(scale.material(corpus, stage.data) for corpus, stage in stages.items()):
        logger.info("%s", line)


def require_differences(stage: Stage, runs: Sequence[PlannedRun]) -> None:
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
        raise DataError([replace(problem, where=f"{stage.data}, {problem.where}") for problem in silent])


def require_same_file(stage: Stage, fingerprint: str) -> None:
    """Stop at a table that is not the one that the runs of this folder were made from.

    Parameters
    ----------
    stage : Stage
    fingerprint : str
        Of the table's judgments.

    Raises
    ------
    ConfigError
        The reference was trained on other votes.
    """
    if kept_facts(stage.folder).get("corpus", fingerprint) != fingerprint:
        raise ConfigError(
            f"--data {stage.data}: the runs in {stage.folder.parent.parent} were made from other votes under that "
            "name; give that table, or name another folder with --out; nothing was changed"
        )


def read_stages(
    corpora: Sequence[Corpus], scale: Scale, out: Path, data: Path | None
) -> tuple[dict[Corpus, Stage], list[str]]:
    """The corpora that are within reach, as stages without a model, and what is to be said of the others.

    Raises
    ------
    DataError
        The votes of a corpus cannot be used.
    """
    stages: dict[Corpus, Stage] = {}
    unread: dict[str, str] = {}
    for corpus in corpora:
        # the Hub is asked once for each kind
        if corpus.kind in unread:
            continue
        try:
            own = own_file(corpus, corpora, data)
            stages[corpus] = unopened_stage(corpus, scale, own, out / corpus.folder / "reference")
        except ConfigError as error:
            unread[corpus.kind] = f"the votes of {corpus.folder} are not read: {error}"
    return stages, list(unread.values())


def refused_runs(
    runs: Sequence[PlannedRun], stages: Mapping[Corpus, Stage], scale: Scale, out: Path
) -> dict[str, str]:
    """Runs whose folders hold one with other data or settings, by their place, and what differs.

    What cannot be known without a model is taken to be the same: the weights of a start model, and what a length in
    tokens is measured as. Of an anchored run nothing is known.
    """
    found = {}
    for run in runs:
        there = kept_facts(out / run.place)
        if run.corpus in stages and there:
            changes = changed_facts(there, expected_facts(run, stages[run.corpus], scale, there))
            if changes:
                found[run.place] = "; ".join(changes)
    return found


def expected_facts(
    run: PlannedRun, stage: Stage, scale: Scale, there: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The facts that would decide a run now; those that are not known without a model as they are ``there``."""
    condition = run.condition
    if condition is None:
        facts = reference_facts(scale.material(run.corpus, stage.data)) | {"start": there.get("start")}
        return run_key(facts, stage.settings, SUPERVISED_FIELDS).facts
    if condition.offset is not None:
        return there
    arm, settings = ARMS[condition.arm], overridden(stage.settings, condition)
    if not (stage.folder / "model" / SAFE_WEIGHTS_NAME).exists():
        return there
    if arm.objective == "types":
        return types_key(condition.arm, stage, settings, run.seed).facts
    facts = {
        "seed": run.seed,
        "reference": stage.weights,
        **arm_facts(arm),
        **condition_facts(condition),
        "data": there.get("data"),
    }
    if arm.declared in ("all", "first") and arm.labels == "votes" and condition.classes == "given":
        judgments = arm_judgments(arm, declared(stage.train, condition.declared), run.seed, None, 0, 0)
        facts["data"] = judgments.fingerprint()
    elif scale.scales_penalty:
        facts |= {name: there[name] for name in ("fixed", "length_unit") if name in there}
    return run_key(facts, settings, PREFERENCE_FIELDS).facts


def free_theta_lines(runs: Sequence[PlannedRun], stages: Mapping[Corpus, Stage]) -> list[str]:
    """How much slower each annotator's own theta moves than one that all share, for runs without a shared part."""
    found: dict[str, list[str]] = {}
    for run in runs:
        condition = run.condition
        if condition is None or run.corpus not in stages:
            continue
        if VARIANTS.get(ARMS[condition.arm].bias or "none") != ("deviation",):
            continue
        stage = stages[run.corpus]
        judgments = declared(stage.train, condition.declared)
        cross = judgments.cross_group().mean(axis=0).min() * stage.settings.batch_size
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
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
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
        suite
        for suite, asked in runs.items()
        if any(kept_readouts(out / run.place).get("version") != VERSION for run in asked)
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
