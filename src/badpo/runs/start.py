"""The model a run starts from: loaded by name, or fine-tuned once on the majority's choices and kept."""

import hashlib
import json
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
from transformers import PrinterCallback, TrainerCallback, set_seed

from badpo.data.attributes import plain_text
from badpo.data.files import RUN_SEAL, asking_once, read_seal, run_damage
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError
from badpo.training.checkpoints import changed_facts, seal_run, whole_folder
from badpo.training.encoding import encode_responses, require_matching_tokenizer
from badpo.training.inputs import (
    checkpoint_activations,
    encode_judgments,
    reads_more_than_text,
    require_trainable,
    with_adapter,
)
from badpo.training.model_files import UNREADABLE, load_tokenizer, load_weights, unreadable
from badpo.training.packing import Pair
from badpo.training.processes import locked_by_first
from badpo.training.recipe import ModelChoice, Recipe, relative_to
from badpo.training.trainer import SupervisedTrainer, supervised_arguments


def load_model(name: str, choice: ModelChoice):
    """A causal language model and its tokenizer."""
    try:
        with asking_once(name):
            tokenizer = load_tokenizer(name, choice.model_revision, choice.trust_remote_code)
            return load_weights(name, **choice.init_kwargs), tokenizer
    except ConfigError:
        raise
    except UNREADABLE as error:
        raise ConfigError(unreadable(name, error)) from error


def load_policy(
    recipe: Recipe,
    train: Judgments,
    args,
    responses: Sequence[str] | None = None,
    callbacks: Sequence[TrainerCallback] = (),
):
    """The start policy and its tokenizer; after the supervised stage where the recipe asks for one.

    The supervised reference is kept in ``output_dir/reference`` and shared by every arm and seed of it. It is trained
    on ``responses``, one to each comparison, or on the majority's choices.
    """
    if not recipe.reference.sft:
        return load_model(recipe.model.model_name_or_path, recipe.model)
    folder = Path(recipe.output_dir) / "reference"
    with locked_by_first(folder):
        kept = kept_reference(recipe, train, args, responses)
        model, tokenizer = load_model(str(kept or recipe.model.model_name_or_path), recipe.model)
        if not kept:
            pairs = _pairs(train, responses, model, tokenizer, args)
            facts = reference_facts(recipe, train, args, responses)
            model = _fitted(model, tokenizer, pairs, recipe, args, folder, facts, callbacks)
        return model, tokenizer


def kept_reference(
    recipe: Recipe, train: Judgments, args, responses: Sequence[str] | None = None
) -> Path | None:
    """The supervised reference that stands in ``output_dir`` already; None when there is none."""
    folder = Path(recipe.output_dir) / "reference"
    if not (folder / "model").exists() or not (folder / RUN_SEAL).exists():
        return None
    require_undamaged(folder)
    before = read_seal(folder / RUN_SEAL).get("facts", {})
    if changes := changed_facts(before, reference_facts(recipe, train, args, responses)):
        raise ConfigError(
            f"{folder} was made with other settings: {'; '.join(changes.values())}. "
            "Change them back, or choose another output_dir"
        )
    return folder / "model"


def require_undamaged(
    folder: Path, names: Collection[str] | None = None, but: Collection[str] = ()
) -> None:
    """Stop at a file of a finished run that is not what it was."""
    if reason := run_damage(folder, names, but):
        raise ConfigError(
            f"{folder.parent}/{reason}; restore the file, or remove {folder} and make it again"
        )


def reference_facts(
    recipe: Recipe, train: Judgments, args, responses: Sequence[str] | None = None
) -> dict:
    """What a supervised reference is made of: runs that share it must agree in it, arms and attributes aside."""
    model = recipe.model.model_dump(exclude={"trust_remote_code"})
    if Path(recipe.model.model_name_or_path).exists():
        # however it is spelt from where the program was started
        model["model_name_or_path"] = relative_to(
            recipe.model.model_name_or_path, Path(recipe.output_dir)
        )
    at_once = recipe.reference.per_device_train_batch_size or args.per_device_train_batch_size
    told = None if responses is None else json.dumps(list(responses)).encode()
    facts = {
        "votes": train.with_attributes(()).fingerprint(),
        **model,
        **{f"reference.{name}": value for name, value in recipe.reference.model_dump().items()},
        "responses": told and hashlib.sha256(told).hexdigest(),
        **{name: getattr(args, name) for name in ("encoding", "max_length", "max_prompt_length")},
        "responses per step": at_once * args.gradient_accumulation_steps * args.world_size,
    }
    # as they will be read back
    return json.loads(json.dumps(facts))


def _pairs(train: Judgments, responses: Sequence[str] | None, model, tokenizer, args) -> list[Pair]:
    """(prompt ids, response ids) of every comparison that fits the length limit, or of each of the responses."""
    n_embeddings = model.get_input_embeddings().weight.shape[0]
    if responses is None:
        kept, encoded, _ = encode_judgments(train, tokenizer, args)
        require_matching_tokenizer(encoded.pairs, tokenizer, n_embeddings)
        return [encoded.pairs[2 * i + (side <= 0)] for i, side in enumerate(kept.majority())]
    limits = (args.max_length, args.max_prompt_length)
    prompts = list(train.comparisons["prompt"])
    pairs = encode_responses(prompts, responses, tokenizer, args.encoding, *limits)
    require_matching_tokenizer(pairs, tokenizer, n_embeddings)
    return pairs


def _fitted(
    model,
    tokenizer,
    pairs: list[Pair],
    recipe: Recipe,
    args,
    folder: Path,
    facts: dict,
    callbacks: Sequence[TrainerCallback],
):
    """The model fine-tuned on pairs of a prompt and a response, and kept in a folder."""
    peft_config = recipe.model.peft_config()
    set_seed(0)  # that of the stage: a new adapter starts at random values
    policy = with_adapter(model, peft_config)
    require_trainable(policy)
    if args.gradient_checkpointing:
        checkpoint_activations(policy, {"use_reentrant": False})
    # the preference stage's batches and precision, the reference's own rate and length
    shared = ["gradient_accumulation_steps", "lr_scheduler_type", "max_grad_norm"]
    shared += ["bf16", "use_cpu", "disable_tqdm"]
    stage = supervised_arguments(
        folder,
        per_device_train_batch_size=(
            recipe.reference.per_device_train_batch_size or args.per_device_train_batch_size
        ),
        **recipe.reference.model_dump(include={"learning_rate", "num_train_epochs", "max_steps"}),
        **{name: getattr(args, name) for name in shared},
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
        seal_run(folder, {"facts": facts})
    trainer.accelerator.wait_for_everyone()
    return load_weights(folder / "model", dtype=model.dtype)


def majority_responses(judgments: Judgments) -> list[str]:
    """Text of the response that most annotators chose, per comparison; a tie goes to the earliest vote."""
    side = np.where(judgments.majority() > 0, "response_a", "response_b")
    frame = judgments.comparisons
    return [plain_text(frame[name].iloc[i]) for i, name in enumerate(side)]
