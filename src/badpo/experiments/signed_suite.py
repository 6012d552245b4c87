"""Reference and arms on a signed corpus, from scored pairs to ``summary.json``.

The demo, the real-text experiment and any user's scored pairs go through the same functions; only the corpus,
the start model and the settings differ.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml
from transformers import AutoModelForCausalLM, PrinterCallback, TrainerCallback, TrainingArguments, set_seed

from badpo.data.corpora import signed
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError
from badpo.data.seals import RUN_SEAL, run_damage
from badpo.experiments.arm_setup import arm_bias, arm_facts, arm_judgments, arm_objective
from badpo.experiments.arms import ARMS, Arm
from badpo.experiments.run import train_and_save
from badpo.experiments.signed_readouts import ReferenceStage, measure, reference_contexts, summarize
from badpo.experiments.signed_types import MeasurePolicy, types_readouts
from badpo.experiments.start_policy import majority_responses
from badpo.objective.bias import BiasTerm
from badpo.objective.objectives import Objective
from badpo.training.config import RENAMED, BADPOConfig
from badpo.training.encoding import encode_prompts, encode_responses
from badpo.training.inputs import with_adapter
from badpo.training.reference import weights_key
from badpo.training.run_folder import (
    changed_facts,
    environment,
    seal_run,
    whole_folder,
    write_atomically,
    write_json,
)
from badpo.training.supervised import SupervisedTrainer, supervised_arguments
from badpo.training.trainer import BADPOTrainer

MEASURED_FILES = ("planted.json", "readouts.json")  # written anew by every call
Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class SuiteSettings:
    """Everything that decides the figures of a signed suite, besides the corpus and the start model.

    Attributes
    ----------
    held_out : float
        Share of prompts held out, split by prompt.
    sft_steps, sft_batch_size, sft_learning_rate
        The supervised stage; batches count responses.
    steps, warmup, batching, batch_size, learning_rate, bias_learning_rate, beta
        The preference stage; ``warmup`` is the share of steps in which the policy's rate rises, and ``batch_size``
        counts what ``batching`` says (`badpo.training.batches.BATCHING`).
    max_length, max_prompt_length : int
        In tokens, of the paper's encoding.
    max_new_tokens : int
        Longest sampled answer.
    temperature, top_p : float
        How answers are sampled.
    arms : tuple of str
        Keys of `badpo.experiments.arms.ARMS`.
    command : str
        What makes the same runs again; told in the report.
    lora_rank, lora_alpha : int
        Of an adapter on all linear layers; rank 0 trains all weights.
    lora_base : str
        Precision of the weights under an adapter, such as "bfloat16"; "auto" keeps that of the reference.
    micro_batch_size : int
        What one forward pass takes of a batch; 0 takes all of it.
    gradient_checkpointing : bool
        Compute activations again in the backward pass.
    generate_with : str
        What draws the answers that are measured, one of `badpo.readouts.generation_vllm.GENERATORS`.
    """

    held_out: float = 0.25
    sft_steps: int = 400
    sft_batch_size: int = 32
    sft_learning_rate: float = 3e-3
    steps: int = 800
    warmup: float = 0.3
    batching: str = "random"
    batch_size: int = 32
    learning_rate: float = 2.2e-4
    bias_learning_rate: float = 2e-2
    beta: float = 0.1
    max_length: int = 192
    max_prompt_length: int = 96
    max_new_tokens: int = 128
    temperature: float = 0.7
    top_p: float = 0.9
    arms: tuple[str, ...] = ("dpo", "pooled", "shared_mean")
    command: str = "badpo demo"
    lora_rank: int = 0
    lora_alpha: int = 0
    lora_base: str = "auto"
    micro_batch_size: int = 0
    gradient_checkpointing: bool = False
    generate_with: str = "transformers"

    def micro_batches(self, batch_size: int) -> tuple[int, int]:
        """What one forward pass takes of a batch, and how many make the batch.

        Examples
        --------
        >>> SuiteSettings(micro_batch_size=2).micro_batches(32), SuiteSettings().micro_batches(64)
        ((2, 16), (64, 1))
        """
        size = min(self.micro_batch_size or batch_size, batch_size)
        return size, -(-batch_size // size)


SUPERVISED_FIELDS = (
    "held_out",
    "sft_steps",
    "sft_batch_size",
    "sft_learning_rate",
    "max_length",
    "max_prompt_length",
)
# These decide a run's figures only where they are not what they have always been.
ADAPTER_FIELDS = ("lora_rank", "lora_alpha", "lora_base")
PREFERENCE_FIELDS = (
    "steps",
    "warmup",
    "batching",
    "batch_size",
    "learning_rate",
    "bias_learning_rate",
    "beta",
    "max_length",
    "max_prompt_length",
)


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
    model = AutoModelForCausalLM.from_pretrained(folder / "model").to(start_model.device)
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


def checkpointing_argument() -> str:
    """What `transformers.TrainingArguments` calls activation checkpointing; an older one has its old name only."""
    new = RENAMED["gradient_checkpointing"]
    return new if hasattr(TrainingArguments, new) else "gradient_checkpointing"


def adapter_config(settings: SuiteSettings):
    """The adapter that is trained instead of the weights; None where all weights are."""
    if not settings.lora_rank:
        return None
    from peft import LoraConfig

    return LoraConfig(
        r=settings.lora_rank,
        lora_alpha=settings.lora_alpha,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )


def supervised_settings(settings: SuiteSettings) -> dict:
    """The suite's settings as arguments of the supervised stage."""
    size, accumulation = settings.micro_batches(settings.sft_batch_size)
    return {
        "max_steps": settings.sft_steps,
        "per_device_train_batch_size": size,
        "gradient_accumulation_steps": accumulation,
        **({checkpointing_argument(): True} if settings.gradient_checkpointing else {}),
        "learning_rate": settings.sft_learning_rate,
        "logging_steps": 50,
    }


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
            AutoModelForCausalLM.from_pretrained(
                reference, dtype=settings.lora_base if settings.lora_rank else "auto"
            ),
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


def weights_of(model_folder: Path) -> str:
    """Checksum of the weights file of a saved model."""
    with (model_folder / "model.safetensors").open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def arm_arguments(arm: Arm, settings: SuiteSettings, seed: int, folder: Path, cache: Path) -> BADPOConfig:
    """The trainer's arguments for an arm: the paper's encoding and schedule at the suite's scale."""
    size, accumulation = settings.micro_batches(settings.batch_size)
    return BADPOConfig(
        output_dir=str(folder),
        bias=arm.bias or "none",
        warm_start=arm.warm_start,
        gold_annotators=list(arm.gold),
        beta=settings.beta,
        encoding="paper",
        max_length=settings.max_length,
        max_prompt_length=settings.max_prompt_length,
        batching=settings.batching,
        per_device_train_batch_size=size,
        gradient_accumulation_steps=accumulation,
        max_steps=settings.steps,
        learning_rate=settings.learning_rate,
        bias_learning_rate=settings.bias_learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=settings.warmup,
        gradient_checkpointing=settings.gradient_checkpointing,
        reference_cache=str(cache),
        save_strategy="steps",
        save_steps=max(1, settings.steps // 4),
        save_total_limit=1,
        report_to="none",
        disable_tqdm=True,
        seed=seed,
    )


@dataclass(frozen=True)
class RunKey:
    """What a run is known by.

    Attributes
    ----------
    key : str
        A hash of the facts.
    facts : dict
        Everything that decides its figures, as JSON has it.
    """

    key: str
    facts: dict


def run_key(facts: dict, settings: SuiteSettings, fields: Sequence[str]) -> RunKey:
    """What a run is known by: everything that decides its figures, and a hash of it.

    Parameters
    ----------
    facts : dict
        Data, start model, method and seed.
    settings : SuiteSettings
    fields : sequence of str
        The settings that this stage reads.
    """
    adapter = {name: getattr(settings, name) for name in ADAPTER_FIELDS if settings.lora_rank}
    if settings.lora_base == SuiteSettings.lora_base:
        adapter.pop("lora_base", None)
    decided = {**facts, **{name: getattr(settings, name) for name in fields}, **adapter}
    content = json.dumps(decided, sort_keys=True)
    return RunKey(hashlib.sha256(content.encode()).hexdigest()[:16], json.loads(content))


def is_done(folder: Path, key: RunKey) -> bool:
    """Whether a folder holds the finished run of this key, undamaged.

    Raises
    ------
    ConfigError
        It holds a run of another key, begun or finished: its checkpoints must not be continued under this one. Or a
        file of the finished run is not what it was.
    """
    if reason := run_damage(folder, but=MEASURED_FILES):
        raise ConfigError(f"{folder.parent}/{reason}; restore the file, or remove {folder} to train it again")
    for name in (RUN_SEAL, "begun.json"):
        path = folder / name
        if not path.exists():
            continue
        try:
            before = json.loads(path.read_text(encoding="utf-8"))
            same = before["key"] == key.key
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path} is damaged; remove {folder} to train it again") from error
        if not same:
            changes = changed_facts(before["facts"], key.facts) if "facts" in before else []
            raise ConfigError(
                f"{folder} holds a run with other data or settings{': ' * bool(changes)}{'; '.join(changes)}; remove "
                f"{folder.parent} or choose another folder"
            )
    return (folder / RUN_SEAL).exists()


def begin(folder: Path, key: RunKey) -> None:
    """Write which run the folder is of, before anything else is written there."""
    write_json(folder / "begun.json", asdict(key))


def finish(folder: Path, key: RunKey, settings: SuiteSettings) -> None:
    """Write what the run was made with, and last of all that it is done, with the checksums of its files."""
    write_atomically(
        folder / "config.yaml", yaml.safe_dump(json.loads(json.dumps(asdict(settings)))).encode()
    )
    write_json(folder / "environment.json", environment(settings.command))
    seal_run(folder, asdict(key))


class Ticker(TrainerCallback):
    """Tells a progress function how far a training stage is."""

    def __init__(self, what: str, progress: Progress):
        self._what = what
        self._progress = progress

    def on_step_end(self, args, state, control, **kwargs):
        """Tell it every ten steps and at the end."""
        if state.global_step % 10 == 0 or state.global_step == state.max_steps:
            self._progress(self._what, state.global_step / state.max_steps)
