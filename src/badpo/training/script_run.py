"""Write the files that `badpo evaluate` and `badpo report` need to read a Python script's run."""

import contextlib
import json
import logging
import warnings
from pathlib import Path

import yaml
from peft import PeftConfig
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments

from badpo.data.checks import check
from badpo.data.files import (
    HELD_OUT_FILE,
    RUN_ENVIRONMENT,
    RUN_RECIPE,
    START_FOLDER,
    VOTES_FILE,
    write_atomically,
    write_json,
)
from badpo.data.judgments import Judgments
from badpo.objective.bias import BiasTerm
from badpo.training.checkpoints import environment, mark_run_complete, whole_folder
from badpo.training.recipe import make_portable

logger = logging.getLogger(__name__)

# Trainer arguments that affect the policy or its evaluation and have the same names in a recipe.
_RECIPE_ARGUMENTS = (
    *("beta", "encoding", "max_length", "max_prompt_length", "batching", "reference_cache"),
    *("per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs", "max_steps"),
    *("learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "weight_decay"),
    *("optim", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm", "disable_dropout"),
    *("seed", "data_seed", "use_cpu", "bf16", "fp16"),
)


def warn_about_votes(judgments: Judgments) -> None:
    """Issue the warnings that `badpo train` would print about the votes, such as W122, as Python warnings."""
    for problem in check(judgments):
        if problem.severity != "notice" and problem not in judgments.findings:
            warnings.warn(str(problem), stacklevel=4)


def find_start_name(
    model: str | PreTrainedModel,
    ref_model: str | PreTrainedModel | None,
    peft_config: PeftConfig | None,
) -> str | None:
    """Return the name from which the reference can be loaded, or None if the script passed a model object.

    If the model object already has an adapter, the function returns an empty string. If training adds an adapter to a
    base model, the function returns the name of the base model, which also loads the reference.
    """
    reference = model if ref_model is None else ref_model
    if isinstance(reference, str):
        return reference
    if hasattr(reference, "peft_config"):
        return ""
    return str(reference.config._name_or_path) if peft_config is not None and ref_model is None else None


def save_start(folder: Path, reference: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> str:
    """Save the reference model before the first training step, and return its folder."""
    with whole_folder(folder / START_FOLDER) as unfinished:
        reference.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
    return str(folder / START_FOLDER)


def write_script_run(
    folder: Path,
    start: str,
    judgments: Judgments,
    held_out: Judgments | None,
    bias: BiasTerm,
    args: TrainingArguments,
) -> None:
    """Add votes, a recipe and a manifest to a trained model's folder, so that `badpo evaluate` can read the run.

    Without held-out votes, `badpo evaluate` measures the run on its training votes and warns about this. The recipe
    contains all arguments that affect the policy, so that `badpo train --config` trains the same policy with this
    recipe.
    """
    settings = {
        name: value for name in _RECIPE_ARGUMENTS if (value := getattr(args, name, None)) is not None
    }
    theta = {"variant": bias.variant, "gold_annotators": list(bias.gold_annotators)}
    if getattr(args, "bias_fit", None) == "adam":
        theta |= {"fit": "adam", "learning_rate": args.bias_learning_rate, "warm_start": args.warm_start}
    judgments.to_parquet(folder / VOTES_FILE)
    if held_out is not None:
        held_out.to_parquet(folder / HELD_OUT_FILE)
    with contextlib.suppress(OSError):
        for name in (VOTES_FILE, HELD_OUT_FILE):
            (folder / name).chmod(0o600)
    keys = {
        "model_name_or_path": start,
        "dataset_name": str(folder / VOTES_FILE),
        "held_out_name": str(folder / (VOTES_FILE if held_out is None else HELD_OUT_FILE)),
        "output_dir": str(folder.parent),
        "attributes": [dict(attribute.config) for attribute in judgments.attributes],
        "bias": theta,
        **settings,
    }
    plain = json.loads(json.dumps(make_portable(keys, folder), default=str))
    write_atomically(folder / RUN_RECIPE, yaml.safe_dump(plain, sort_keys=False).encode(), private=True)
    write_json(folder / RUN_ENVIRONMENT, environment("a Python script"))
    mark_run_complete(folder)
    logger.warning("next: badpo evaluate %s", folder)
