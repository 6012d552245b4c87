"""Load a run's initial model, and fine-tune it on the majority choices if the recipe asks for this."""

import hashlib
import json
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    TrainerCallback,
    set_seed,
)

from badpo.data.attributes import plain_text
from badpo.data.files import RUN_SEAL, asking_once, read_seal, require_safe_to_read, run_damage
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError
from badpo.training import inputs
from badpo.training.checkpoints import Facts, describe_changes, mark_run_complete, whole_folder
from badpo.training.config import BADPOConfig
from badpo.training.encoding import encode_responses, require_matching_tokenizer
from badpo.training.model_files import UNREADABLE, describe_unreadable, load_tokenizer, load_weights
from badpo.training.packing import Pair
from badpo.training.processes import lock_by_first
from badpo.training.recipe import ModelChoice, Recipe, make_relative
from badpo.training.supervised import SupervisedTrainer, supervised_arguments


def load_model(name: str, choice: ModelChoice) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a causal language model and its tokenizer."""
    try:
        with asking_once(name):
            tokenizer = load_tokenizer(name, choice.model_revision, choice.trust_remote_code)
            return load_weights(name, **choice.init_kwargs), tokenizer
    except UNREADABLE as error:
        raise ConfigError(describe_unreadable(name, error)) from error


def load_policy(
    recipe: Recipe,
    train: Judgments,
    args: BADPOConfig,
    responses: Sequence[str] | None = None,
    callbacks: Sequence[TrainerCallback] = (),
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return the initial policy and its tokenizer, after the supervised stage if the recipe requires one.

    The supervised reference is stored in ``output_dir/reference``, and all arms and seeds share it. The supervised
    stage trains on ``responses``, which contains one response per comparison, or on the majority choices if
    ``responses`` is None.
    """
    if not recipe.reference.sft:
        return load_model(recipe.model.model_name_or_path, recipe.model)
    folder = Path(recipe.output_dir) / "reference"
    with lock_by_first(folder):
        reference = find_reference(recipe, train, args, responses)
        model, tokenizer = load_model(str(reference or recipe.model.model_name_or_path), recipe.model)
        if not reference:
            pairs = _encode_pairs(train, responses, model, tokenizer, args)
            facts = describe_reference(recipe, train, args, responses)
            model = _fine_tune(model, tokenizer, pairs, recipe, args, folder, facts, callbacks)
        return model, tokenizer


def find_reference(
    recipe: Recipe, train: Judgments, args: BADPOConfig, responses: Sequence[str] | None = None
) -> Path | None:
    """Return the folder of the supervised reference in ``output_dir``, or None if there is no such reference."""
    folder = Path(recipe.output_dir) / "reference"
    if not (folder / "model").exists() or not (folder / RUN_SEAL).exists():
        return None
    require_safe_to_read(folder)
    require_undamaged(folder)
    before = read_seal(folder / RUN_SEAL).get("facts", {})
    if changes := describe_changes(before, describe_reference(recipe, train, args, responses)):
        raise ConfigError(
            f"{folder} was trained with other settings: {'; '.join(changes.values())}. "
            "Change them back, or choose another output_dir"
        )
    return folder / "model"


def require_undamaged(
    folder: Path, names: Collection[str] | None = None, but: Collection[str] = ()
) -> None:
    """Raise `ConfigError` if a file of a finished run was changed or is missing."""
    if reason := run_damage(folder, names, but):
        raise ConfigError(
            f"{folder.parent}/{reason}; restore the file, or remove {folder} and train again"
        )


def describe_reference(
    recipe: Recipe, train: Judgments, args: BADPOConfig, responses: Sequence[str] | None = None
) -> Facts:
    """Return the properties on which all runs that share a supervised reference must agree."""
    model = recipe.model.model_dump(exclude={"trust_remote_code"})
    if Path(recipe.model.model_name_or_path).exists():
        # a path relative to the output folder does not depend on the working directory
        model["model_name_or_path"] = make_relative(
            recipe.model.model_name_or_path, Path(recipe.output_dir)
        )
    at_once = recipe.reference.per_device_train_batch_size or args.per_device_train_batch_size
    encoded_responses = None if responses is None else json.dumps(list(responses)).encode()
    facts = {
        "votes": train.with_attributes(()).fingerprint(),
        **model,
        **{f"reference.{name}": value for name, value in recipe.reference.model_dump().items()},
        "responses": encoded_responses and hashlib.sha256(encoded_responses).hexdigest(),
        **{name: getattr(args, name) for name in ("encoding", "max_length", "max_prompt_length")},
        "responses per step": at_once * args.gradient_accumulation_steps * args.world_size,
    }
    as_in_json: Facts = json.loads(json.dumps(facts))  # JSON changes some types
    return as_in_json


def _encode_pairs(
    train: Judgments,
    responses: Sequence[str] | None,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    args: BADPOConfig,
) -> list[Pair]:
    """Encode each prompt with its given response or majority choice; skip prompts that exceed the length limit."""
    n_embeddings = model.get_input_embeddings().weight.shape[0]
    if responses is None:
        kept, encoded, _ = inputs.encode_judgments(train, tokenizer, args)
        require_matching_tokenizer(encoded.pairs, tokenizer, n_embeddings)
        return [encoded.pairs[2 * i + (side <= 0)] for i, side in enumerate(kept.majority())]
    limits = (args.max_length, args.max_prompt_length)
    prompts = list(train.comparisons["prompt"])
    pairs = encode_responses(prompts, responses, tokenizer, args.encoding, *limits)
    require_matching_tokenizer(pairs, tokenizer, n_embeddings)
    return pairs


def _fine_tune(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: list[Pair],
    recipe: Recipe,
    args: BADPOConfig,
    folder: Path,
    facts: Facts,
    callbacks: Sequence[TrainerCallback],
) -> PreTrainedModel:
    """Fine-tune a model on prompt-response pairs, and save the fine-tuned model in a folder."""
    peft_config = recipe.model.peft_config()
    set_seed(0)  # a new adapter starts at random values
    policy = inputs.add_adapter(model, peft_config)
    inputs.require_trainable(policy)
    if args.gradient_checkpointing:
        inputs.checkpoint_activations(policy, {"use_reentrant": False})
    # the supervised stage shares the batch size and precision of preference training, but has its own learning rate
    shared = ["gradient_accumulation_steps", "lr_scheduler_type", "max_grad_norm"]
    shared += ["bf16", "use_cpu", "disable_tqdm"]
    stage = supervised_arguments(
        folder,
        per_device_train_batch_size=(
            recipe.reference.per_device_train_batch_size or args.per_device_train_batch_size
        ),
        **recipe.reference.model_dump(include={"learning_rate", "num_train_epochs", "max_steps"}),
        **{name: getattr(args, name) for name in shared},
        ddp_find_unused_parameters=args.ddp_find_unused_parameters or inputs.has_other_inputs(policy),
    )
    trainer = SupervisedTrainer(policy, stage, pairs, list(callbacks))
    if callbacks:
        trainer.remove_callback(PrinterCallback)
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        raise ConfigError(
            "reference: {sft: true} cannot be trained with FSDP or DeepSpeed. Train the reference once without them, "
            f"with the same number of responses per step; badpo then finds it in {folder}"
        )
    trainer.train()
    policy = policy if peft_config is None else policy.merge_and_unload()
    is_writer = trainer.is_world_process_zero()
    with whole_folder(folder / "model", is_writer) as unfinished:
        if is_writer:
            policy.save_pretrained(unfinished)
            tokenizer.save_pretrained(unfinished)
    if is_writer:
        mark_run_complete(folder, {"facts": facts})
    trainer.accelerator.wait_for_everyone()
    return load_weights(folder / "model", dtype=model.dtype)


def choose_majority_responses(judgments: Judgments) -> list[str]:
    """For each comparison, return the response that most annotators chose; the earliest vote breaks ties."""
    side = np.where(judgments.majority() > 0, "response_a", "response_b")
    frame = judgments.comparisons
    return [plain_text(frame[name].iloc[i]) for i, name in enumerate(side)]
