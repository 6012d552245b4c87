"""Reference and arms on a signed corpus, from scored pairs to ``summary.json``.

The demo, the real-text experiment and any user's scored pairs go through the same functions; only the corpus,
the start model and the settings differ.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from transformers import PrinterCallback, set_seed

from badpo.data.corpora import signed
from badpo.data.judgments import Judgments
from badpo.experiments.arm_setup import arm_bias, arm_facts, arm_judgments, arm_objective
from badpo.experiments.arms import ARMS, Arm
from badpo.experiments.progress import Progress, Ticker
from badpo.experiments.run import train_and_save
from badpo.experiments.run_keys import begin, finish, is_done, run_key, weights_of
from badpo.experiments.signed_readouts import ReferenceStage, measure, reference_contexts, summarize
from badpo.experiments.signed_types import MeasurePolicy, types_readouts
from badpo.experiments.start_policy import majority_responses
from badpo.experiments.suite_settings import (
    PREFERENCE_FIELDS,
    SUPERVISED_FIELDS,
    SuiteSettings,
    adapter_config,
    arm_arguments,
    supervised_settings,
)
from badpo.objective.bias import BiasTerm
from badpo.objective.objectives import Objective
from badpo.training.encoding import encode_prompts, encode_responses
from badpo.training.inputs import with_adapter
from badpo.training.model_files import load_weights
from badpo.training.reference import weights_key
from badpo.training.run_folder import whole_folder, write_json
from badpo.training.supervised import SupervisedTrainer, supervised_arguments
from badpo.training.trainer import BADPOTrainer


def run_suite(
    corpus: signed.SignedCorpus,
    signing_prompts: Sequence[str],
    start_model,
    tokenizer,
    settings: SuiteSettings,
    seeds: Sequence[int],
    out: Path,
    progress: Progress,
) -> list[dict]:
    """Train a reference and every arm at every seed, measure them, and write one summary per seed.

    Run folders are ``out/reference`` and ``out/<arm>-s<seed>``; a run whose key stands in its ``run.json`` is not
    run again, and an interrupted one is continued. The summary of a seed is ``out/summary-s<seed>.json``; with one
    seed it is ``out/summary.json``.

    Parameters
    ----------
    corpus : SignedCorpus
    signing_prompts : sequence of str
        Questions that end with the request to sign; disjoint from the corpus.
    start_model : PreTrainedModel
        What the supervised stage starts from.
    tokenizer : PreTrainedTokenizerBase
    settings : SuiteSettings
    seeds : sequence of int
        Training seeds; the data do not depend on them.
    out : Path
    progress : function of (what is being done, share done of it)

    Returns
    -------
    list of dict
        The summaries, in the order of the seeds.

    Raises
    ------
    ConfigError
        A run folder holds a run with other data or settings.
    """
    stage = fit_reference(
        corpus, signing_prompts, start_model, tokenizer, settings, out / "reference", progress
    )
    reference = measure(stage.folder, stage, settings, seed=0, bias=None, progress=progress)
    summaries = []
    for seed in seeds:
        started = time.perf_counter()
        readouts = {"reference": reference}
        for name in settings.arms:
            folder = out / f"{name}-s{seed}"
            readouts[name] = arm_readouts(name, stage, settings, seed, folder, progress)
        summary = summarize(readouts, seed, time.perf_counter() - started)
        write_json(out / ("summary.json" if len(seeds) == 1 else f"summary-s{seed}.json"), summary)
        summaries.append(summary)
    return summaries


def fit_reference(
    corpus, signing_prompts, start_model, tokenizer, settings: SuiteSettings, folder: Path, progress: Progress
) -> ReferenceStage:
    """The supervised stage on the majority-chosen responses, each with a newly drawn signature.

    The signatures are drawn uniformly over the four cells, so that the reference starts balanced and all of the
    lean arrives through the preference stage.
    """
    train, held_out = corpus.judgments.split(settings.held_out, seed=0)
    responses = signed.resign(majority_responses(train), seed=0)
    facts = {"corpus": corpus.judgments.fingerprint()}
    fit_supervised(start_model, tokenizer, train, responses, facts, settings, folder, progress)
    model = load_weights(folder / "model").to(start_model.device)
    prompt_ids = encode_prompts(list(signing_prompts), tokenizer, "paper", settings.max_prompt_length)
    contexts = reference_contexts(model, tokenizer, prompt_ids, settings)
    return ReferenceStage(
        train,
        held_out,
        corpus.planted_theta,
        corpus.plan.config,
        tokenizer,
        model,
        folder,
        prompt_ids,
        contexts,
    )


def fit_supervised(
    start_model,
    tokenizer,
    train: Judgments,
    responses: Sequence[str],
    facts: dict,
    settings: SuiteSettings,
    folder: Path,
    progress: Progress,
) -> None:
    """Fine-tune ``start_model`` on one response to each comparison's prompt, unless ``folder`` holds that reference.

    With ``lora_rank`` an adapter is trained and merged, as the paper's references of the larger models are.
    """
    key = run_key({**facts, "start": weights_key(start_model, "fp32")}, settings, SUPERVISED_FIELDS)
    if is_done(folder, key):
        return
    begin(folder, key)
    pairs = encode_responses(
        list(train.comparisons["prompt"]),
        responses,
        tokenizer,
        "paper",
        settings.max_length,
        settings.max_prompt_length,
    )
    set_seed(0)  # that of the stage: a new adapter starts at random values
    model = with_adapter(start_model, adapter_config(settings))
    args = supervised_arguments(folder, **supervised_settings(settings))
    trainer = SupervisedTrainer(model, args, pairs, [Ticker("reference", progress)])
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    trained = model.merge_and_unload() if settings.lora_rank else model
    with whole_folder(folder / "model") as unfinished:
        trained.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
    finish(folder, key, settings)


def arm_readouts(
    name: str, stage: ReferenceStage, settings: SuiteSettings, seed: int, folder: Path, progress: Progress
) -> dict:
    """Train one arm of a suite at one seed, unless it is there already, and measure it."""

    def measured(run: Path, bias: BiasTerm) -> dict:
        return measure(run, stage, settings, seed, bias, progress)

    if ARMS[name].objective == "types":
        return train_types(name, stage, settings, seed, folder, measured, progress)
    return measured(folder, train_arm(name, stage, settings, seed, folder, progress))


def train_types(
    name: str,
    stage: ReferenceStage,
    settings: SuiteSettings,
    seed: int,
    folder: Path,
    measured: MeasurePolicy,
    progress: Progress,
) -> dict:
    """Train an arm of several policies, unless they are there already; measure each, and their mixture."""
    arm = ARMS[name]

    def train(judgments, of_settings, objective, more_facts, of_type: Path) -> None:
        train_policy(
            arm,
            judgments,
            stage.folder / "model",
            stage.cache_folder,
            stage.tokenizer,
            of_settings,
            seed,
            of_type,
            Ticker(f"{name} s{seed} {of_type.name}", progress),
            objective,
            more_facts,
        )

    return types_readouts(arm.settings, stage, settings, seed, folder, train, measured)


def train_arm(
    name: str, stage: ReferenceStage, settings: SuiteSettings, seed: int, folder: Path, progress: Progress
) -> BiasTerm:
    """Train one arm of a suite at one seed, unless its folder holds that run already; return its bias term."""
    return train_policy(
        ARMS[name],
        stage.train,
        stage.folder / "model",
        stage.cache_folder,
        stage.tokenizer,
        settings,
        seed,
        folder,
        Ticker(f"{name} s{seed}", progress),
    )


def train_policy(
    arm: Arm,
    train: Judgments,
    reference: Path,
    cache: Path,
    tokenizer,
    settings: SuiteSettings,
    seed: int,
    folder: Path,
    ticker: Ticker,
    objective: Objective | None = None,
    more_facts: Mapping[str, Any] = MappingProxyType({}),
    prepared: Callable[[BADPOTrainer], None] | None = None,
) -> BiasTerm:
    """Train the policy in ``reference`` as an arm says, unless ``folder`` holds that run; return the bias term.

    An interrupted run is continued from its newest whole checkpoint.

    Parameters
    ----------
    arm : Arm
    train : Judgments
    reference, cache : Path
        Of the start policy and of its log-probabilities.
    tokenizer : PreTrainedTokenizerBase
    settings : SuiteSettings
    seed : int
    folder : Path
    ticker : Ticker
    objective : Objective or None
        Another one than the arm's; then ``more_facts`` must tell it from others in the run's key.
    more_facts : mapping
        JSON.
    prepared : function of the trainer, or None
        Called before training, to start theta elsewhere or add a callback; ``more_facts`` must tell of it.
    """
    judgments = arm_judgments(arm, train, seed, tokenizer, settings.max_length, settings.max_prompt_length)
    if objective is None:
        objective = arm_objective(arm, judgments, seed, settings.beta)
    facts = {
        "data": judgments.fingerprint(),
        "reference": weights_of(reference),
        "seed": seed,
        **arm_facts(arm),
        **more_facts,
    }
    key = run_key(facts, settings, PREFERENCE_FIELDS)
    if not is_done(folder, key):
        begin(folder, key)
        trainer = BADPOTrainer(
            load_weights(reference, dtype=settings.lora_base if settings.lora_rank else "auto"),
            args=arm_arguments(arm, settings, seed, folder, cache),
            train_dataset=judgments,
            processing_class=tokenizer,
            callbacks=[ticker],
            bias=arm_bias(arm, judgments),
            objective=objective,
            peft_config=adapter_config(settings),
        )
        trainer.remove_callback(PrinterCallback)
        if prepared is not None:
            prepared(trainer)
        train_and_save(trainer, resume=trainer.has_checkpoint())
        finish(folder, key, settings)
    return BiasTerm.load(folder)
