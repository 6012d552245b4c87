"""The model a run starts from: loaded by name, or fine-tuned once on the majority's choices and kept."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from transformers import AutoTokenizer, PrinterCallback, TrainerCallback, TrainingArguments, set_seed

from badpo.data.attributes import Attribute, plain_text
from badpo.data.files import RUN_SEAL, run_damage
from badpo.data.judgments import Judgments, measure_sides
from badpo.data.markers import signature_first_name
from badpo.data.problems import ConfigError, did_you_mean
from badpo.training.batches import balanced_rows
from badpo.training.checkpoints import changed_facts, seal_run, whole_folder
from badpo.training.config import RENAMED
from badpo.training.encoding import encode_responses, require_matching_tokenizer
from badpo.training.inputs import encode_judgments, reads_more_than_text, require_trainable, with_adapter
from badpo.training.model_files import load_weights
from badpo.training.packing import Pair
from badpo.training.processes import locked_by_first
from badpo.training.recipe import ModelChoice, Recipe, relative_to
from badpo.training.trainer import SupervisedTrainer, supervised_arguments

logger = logging.getLogger(__name__)

UNREADABLE = (
    OSError,
    ValueError,
    SafetensorError,
)  # what loading a model raises where its files cannot be read


def load_model(name: str, choice: ModelChoice):
    """A causal language model and its tokenizer."""
    shared = {"revision": choice.model_revision, "trust_remote_code": choice.trust_remote_code}
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, **shared)
        return load_weights(name, **choice.init_kwargs), tokenizer
    except UNREADABLE as error:
        raise ConfigError(unreadable(name, error)) from error


def unreadable(name: str, error: Exception, kind: str = "a causal language model") -> str:
    """Why a model of a kind cannot be loaded by its name, and what helps."""
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    if Path(name).is_dir():
        what = f"a file in this folder is missing, damaged or not that of {kind}"
        remedy = "Copy or download the model again"
    elif "gated" in reason:
        what = "its owner wants an agreement first"
        remedy = "Accept its terms on the Hub and log in with hf auth login"
    else:
        what = "it is neither a folder with a model nor reachable on the Hub"
        remedy = "Download it once with network, or give a local folder"
    return f'cannot load "{name}": {what} ({reason}). {remedy}'


def load_policy(
    recipe: Recipe,
    train: Judgments,
    args,
    responses: Sequence[str] | None = None,
    callbacks: Sequence[TrainerCallback] = (),
):
    """The start policy and its tokenizer; after the supervised stage where the recipe asks for one.

    The supervised reference is kept in ``output_dir/reference`` and shared by every arm and seed of it.
    """
    if not recipe.reference.sft:
        return load_model(recipe.model.model_name_or_path, recipe.model)
    folder = Path(recipe.output_dir) / "reference"
    with locked_by_first(folder):
        kept = kept_reference(recipe, train, args, responses)
        model, tokenizer = load_model(str(kept or recipe.model.model_name_or_path), recipe.model)
        if not kept:
            model = fit_reference(model, tokenizer, recipe, train, args, responses, callbacks)
        return model, tokenizer


def kept_reference(
    recipe: Recipe, train: Judgments, args, responses: Sequence[str] | None = None
) -> Path | None:
    """The supervised reference that stands in ``output_dir`` already; None when there is none."""
    folder = Path(recipe.output_dir) / "reference"
    seal = folder / RUN_SEAL
    if not (folder / "model").exists() or not seal.exists():
        return None
    if reason := run_damage(folder):
        raise ConfigError(f"{folder.parent}/{reason}; restore the file, or remove {folder} to train it again")
    before = json.loads(seal.read_text(encoding="utf-8")).get("facts", {})
    changes = changed_facts(before, reference_facts(recipe, train, args, responses))
    if changes:
        raise ConfigError(
            f"{folder} was made with other settings: {'; '.join(changes.values())}. "
            "Change them back, or choose another output_dir"
        )
    return folder / "model"


def reference_facts(recipe: Recipe, train: Judgments, args, responses: Sequence[str] | None = None) -> dict:
    """What a supervised reference is made of: runs that share it must agree in it, arms and attributes aside."""
    balanced = balanced_attributes(train, recipe.reference.balance)
    model = recipe.model.model_dump(exclude={"trust_remote_code"})
    if Path(recipe.model.model_name_or_path).exists():
        # however it is spelt from where the program was started
        model["model_name_or_path"] = relative_to(recipe.model.model_name_or_path, Path(recipe.output_dir))
    facts = {
        "votes": train.with_attributes(()).fingerprint(),
        **model,
        **{
            f"reference.{name}": value
            for name, value in recipe.reference.model_dump().items()
            if name != "balance"
        },
        "reference.balance": [dict(a.config) for a in balanced],
        "responses": None
        if responses is None
        else hashlib.sha256(json.dumps(list(responses)).encode()).hexdigest(),
        **{name: getattr(args, name) for name in ("encoding", "max_length", "max_prompt_length")},
        "responses per step": _batch_size(recipe, args) * args.gradient_accumulation_steps * args.world_size,
    }
    # as they will be read back
    return json.loads(json.dumps(facts))


def _batch_size(recipe: Recipe, args) -> int:
    return recipe.reference.per_device_train_batch_size or args.per_device_train_batch_size


def fit_reference(
    model,
    tokenizer,
    recipe: Recipe,
    train: Judgments,
    args,
    responses: Sequence[str] | None = None,
    callbacks: Sequence[TrainerCallback] = (),
):
    """Fine-tune on one response to the prompt of every comparison; keep the result in ``output_dir/reference``."""
    folder = Path(recipe.output_dir) / "reference"
    if responses is None:
        balanced = balanced_attributes(train, recipe.reference.balance)
        pairs = majority_pairs(train, tokenizer, args, model.get_input_embeddings().weight.shape[0], balanced)
    else:
        prompts = list(train.comparisons["prompt"])
        pairs = encode_responses(
            prompts, responses, tokenizer, args.encoding, args.max_length, args.max_prompt_length
        )
        require_matching_tokenizer(pairs, tokenizer, model.get_input_embeddings().weight.shape[0])
    peft_config = recipe.model.peft_config()
    set_seed(0)  # that of the stage: a new adapter starts at random values
    policy = with_adapter(model, peft_config)
    require_trainable(policy)
    # the preference stage's batches and precision, the reference's own rate and length
    stage = supervised_arguments(
        folder,
        per_device_train_batch_size=_batch_size(recipe, args),
        gradient_accumulation_steps=args.gradient_accumulation_steps,
        learning_rate=recipe.reference.learning_rate,
        num_train_epochs=recipe.reference.num_train_epochs,
        max_steps=recipe.reference.max_steps,
        lr_scheduler_type=args.lr_scheduler_type,
        max_grad_norm=args.max_grad_norm,
        bf16=args.bf16,
        use_cpu=args.use_cpu,
        disable_tqdm=args.disable_tqdm,
        **({checkpointing_argument(): True} if args.gradient_checkpointing else {}),
        ddp_find_unused_parameters=args.ddp_find_unused_parameters or reads_more_than_text(policy),
    )
    trainer = SupervisedTrainer(policy, stage, pairs, list(callbacks))
    if callbacks:
        trainer.remove_callback(PrinterCallback)
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        raise ConfigError(
            "reference: {sft: true} is not trained with divided weights. Train it once without FSDP or DeepSpeed, with "
            f"the same responses per step; it is then found in {folder}"
        )
    trainer.train()
    policy = policy if peft_config is None else policy.merge_and_unload()
    is_writer = trainer.is_world_process_zero()
    with whole_folder(folder / "model", is_writer) as unfinished:
        if is_writer:
            policy.save_pretrained(unfinished)
            tokenizer.save_pretrained(unfinished)
    if is_writer:
        seal_run(folder, {"facts": reference_facts(recipe, train, args, responses)})
    trainer.accelerator.wait_for_everyone()
    return load_weights(folder / "model", dtype=model.dtype)


def checkpointing_argument() -> str:
    """What `transformers.TrainingArguments` calls activation checkpointing; an older one has its old name only."""
    new = RENAMED["gradient_checkpointing"]
    return new if hasattr(TrainingArguments, new) else "gradient_checkpointing"


def majority_pairs(
    train: Judgments, tokenizer, args, n_embeddings: int, balanced: Sequence[Attribute] = ()
) -> list[Pair]:
    """(prompt ids, response ids) of the majority-chosen response of every comparison that fits the length limit.

    Where attributes are to be balanced, every combination of their values is made equally frequent
    (`badpo.training.batches.balanced_rows`).
    """
    kept, encoded, _ = encode_judgments(train, tokenizer, args)
    require_matching_tokenizer(encoded.pairs, tokenizer, n_embeddings)
    sides = zip(kept.majority(), encoded.prompt_ids, encoded.a_ids, encoded.b_ids, strict=True)
    pairs = [(prompt, a if side > 0 else b) for side, prompt, a, b in sides]
    return [pairs[row] for row in majority_rows(kept, balanced)] if balanced else pairs


def balanced_attributes(train: Judgments, names: Sequence[str]) -> list[Attribute]:
    """The declared attributes that a reference is to be balanced on."""
    declared = {attribute.name: attribute for attribute in train.attributes}
    for name in dict.fromkeys(names):
        if name not in declared:
            raise ConfigError(
                f'reference.balance: "{name}" is not declared.{did_you_mean(name, list(declared))} Attributes: '
                f"{', '.join(declared) or 'none'}"
            )
        if declared[name].scope != "response" or declared[name].continuous:
            raise ConfigError(
                f'reference.balance: "{name}" is no 0 or 1 of a single response, so there are no two values to make '
                "equally frequent; name attributes such as markdown or a name in the signature"
            )
    return [declared[name] for name in dict.fromkeys(names)]


def majority_rows(judgments: Judgments, balanced: Sequence[Attribute]) -> NDArray[np.intp]:
    """The comparisons whose majority-chosen response is trained on, each as often as balance asks for.

    An attribute of the name in a signature does not apply to a response without a signature.
    """
    chosen_b = (judgments.majority() < 0).astype(int)
    rows = np.arange(judgments.n_comparisons)
    values = np.stack([measure_sides(a, judgments.comparisons)[rows, chosen_b] for a in balanced], axis=1)
    of_names = [attribute.config.get("type") == "signature_name" for attribute in balanced]
    if any(of_names):
        unsigned = [not signature_first_name(text) for text in majority_responses(judgments)]
        values[np.ix_(unsigned, of_names)] = np.nan
    names = [attribute.name for attribute in balanced]
    try:
        taken = balanced_rows(values, seed=0)
    except ValueError as error:
        raise ConfigError(
            f"reference.balance: {error} of {', '.join(names)} among the majority-chosen responses, so nothing can "
            "stand for it; balance fewer attributes, or give data that have it"
        ) from error
    before = ", ".join(f"{n} {mean:.1%}" for n, mean in zip(names, np.nanmean(values, axis=0), strict=True))
    most = np.bincount(taken).max()
    logger.info(
        "reference: %s responses balanced (%s before, one half each now); a response stands up to %d times",
        f"{len(taken):,}",
        before,
        most,
    )
    return taken


def majority_responses(judgments: Judgments) -> list[str]:
    """Text of the response that most annotators chose, per comparison; a tie goes to the earliest vote."""
    side = np.where(judgments.majority() > 0, "response_a", "response_b")
    frame = judgments.comparisons
    return [plain_text(frame[name].iloc[i]) for i, name in enumerate(side)]
