"""Going on from a checkpoint: what must be as it was, what may change, and theta taken up by name."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

from badpo.data.privacy import KEY_VARIABLE, key_name, keyed_digest
from badpo.data.problems import ConfigError
from badpo.objective.bias import BiasTerm
from badpo.training.reference import configuration, scoring_code, used_adapter
from badpo.training.run_folder import (
    ALLOWED_CHANGES,
    changed_facts,
    changed_names,
    checkpoints,
    damage,
    facts_of,
    newest_complete,
    package_versions,
    remove_checkpoint,
    remove_unsealed,
    require_allowed,
)

logger = logging.getLogger(__name__)

VALUES = "attribute values"
KEY = "pseudonym key"
CODE = ("ba-dpo", "torch", "transformers", "accelerate", "peft", "numpy")
# Arguments that decide what a checkpoint holds. What the others of ours lead to is a fact of its own.
_ARGUMENTS = (
    "attention",
    "batching",
    "beta",
    "bias",
    "bias_learning_rate",
    "disable_dropout",
    "encoding",
    "max_length",
    "max_prompt_length",
    "router_aux_loss_coef",
    "warm_start",
    "learning_rate",
    "lr_scheduler_type",
    "lr_scheduler_kwargs",
    "warmup_steps",
    "optim",
    "optim_args",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "max_grad_norm",
    "max_steps",
    "num_train_epochs",
    "seed",
    "data_seed",
)


def run_facts(run) -> dict[str, Any]:
    """What a resumed run must share with the run that it continues, by names that a person knows.

    Content of a `BADPOTrainer` that is no setting is a number of things and the beginning of its checksum.
    """
    args, judgments, bias = run.args, run.judgments, run.bias
    people = judgments.annotators[["pseudonym", "annotator_class"]].to_numpy().tolist()
    votes = f"{judgments.n_votes:,} judgments on {judgments.n_comparisons:,} comparisons"
    attributes = [json.dumps(dict(attribute.config)) for attribute in judgments.attributes]
    fixed = bias.fixed.detach().cpu().numpy()
    code = [f"{name} {version}" for name, version in package_versions(CODE).items()]
    facts = {
        "data": f"{votes} ({judgments.with_attributes(()).fingerprint()[:12]})",
        "annotators": f"{len(people):,} ({_of_people(json.dumps(people, default=str).encode())})",
        KEY: key_name(),
        "attributes": ", ".join(attributes) or "none",
        VALUES: f"{judgments.delta.shape[1]} a judgment ({_of_people(judgments.delta.astype('<f8').tobytes())})",
        "parts of theta": ", ".join(bias.parts) or "none",
        "fixed part of theta": _digest(fixed) if fixed.any() else "none",
        "gold_annotators": ", ".join(bias.gold_annotators) or "none",
        "tokenizer": tokenizer_key(run.processing_class),
        "reference": run.reference_cache.key[:12],
        "precision": args.mixed_precision_name,
        "adapter": used_adapter(run.model) or None,
        "configuration of the model": _digest(
            json.dumps(configuration(run.model), sort_keys=True, default=str)
        ),
        "objective": _objective_name(run.objective),
        "code": ", ".join([*code, f"scoring {scoring_code()}"]),
        f"{'comparisons' if args.batching == 'comparisons' else 'judgments'} per step": args.step_size,
        **{name: getattr(args, name) for name in _ARGUMENTS},
    }
    return json.loads(json.dumps(facts, default=str))


def tokenizer_key(tokenizer) -> str:
    """A key that changes with whatever decides the token ids of a text: vocabulary, merges, template."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    words = backend.to_str() if backend is not None else json.dumps(tokenizer.get_vocab(), sort_keys=True)
    special = json.dumps(tokenizer.special_tokens_map, sort_keys=True, default=str)
    return f"{len(tokenizer):,} tokens ({_digest(''.join([words, special, str(tokenizer.chat_template)]))})"


def checkpoint_to_resume(
    folder: Path, asked: bool | str, facts: dict[str, Any], allowed: Sequence[str]
) -> tuple[Path, list[str]]:
    """The checkpoint that a run goes on from, and what has changed since with the user's consent.

    ``asked`` is True for the newest whole one, or names one. Any other change is refused, all of them listed.
    """
    require_allowed(allowed)
    if asked is True:
        found, passed_over = newest_complete(folder)
        for reason in passed_over:
            logger.warning("not resumed from: %s", reason)
        if found is None:
            told = "".join(f"; {reason}" for reason in passed_over)
            raise ConfigError(f"no whole checkpoint to resume in {folder}{told}. Remove it and train anew")
    else:
        found = Path(str(asked))
        reason_against = damage(found)
        if reason_against is not None:
            raise ConfigError(f"{found}: {reason_against}; resume from another checkpoint")
    before = facts_of(found)
    if before["data"] != facts["data"]:
        # other votes have other values, which say nothing of their own
        before = {**before, VALUES: facts[VALUES]}
    changes, names = changed_facts(before, facts), changed_names(before, facts)
    if not set(names) <= set(allowed):
        raise ConfigError(_refusal(found.name, changes, names))
    return found, changes


def ready_to_train(
    folder: Path,
    asked: bool | str | None,
    facts: dict[str, Any],
    allowed: Sequence[str],
    accelerator: Accelerator,
) -> Path | None:
    """Leave in a folder only the checkpoints that a run goes on from; return the newest, None for a new run.

    A new run is refused where whole checkpoints of another one are, which it would mix with.
    """
    resumed = None
    if asked:
        resumed, changes = checkpoint_to_resume(folder, asked, facts, allowed)
        for change in changes:
            logger.warning("resumed with a change that was allowed: %s", change)
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            remove_later(folder, resumed)
    elif newest_complete(folder)[0] is not None:
        raise ConfigError(
            f"{folder} holds checkpoints of a run; continue it with resume_from_checkpoint=True, or choose another "
            "output_dir"
        )
    if accelerator.is_main_process:
        remove_unsealed(folder)
    return resumed


def remove_later(folder: Path, resumed: Path) -> None:
    """Delete the checkpoints after the one that a run goes on from: they are damaged, or not of this run's future."""
    for path in checkpoints(folder):
        if path == resumed or path.resolve() == resumed.resolve():
            return
        logger.warning("%s is removed and will be made again", path.name)
        remove_checkpoint(path)


@torch.no_grad()
def take_up(bias: BiasTerm, saved: BiasTerm) -> list[str]:
    """Give a bias term the parameters of a saved one, by name; return the annotators whom the saved one does not know.

    Those start at its pool mean of theta, where they have a deviation of their own; a class that it does not know
    starts at the mean of the others. The fixed part and the mask stay as they are.
    """
    if bias.mean is not None and saved.mean is not None:
        bias.mean.copy_(saved.mean)
    if bias.class_offset is not None and saved.class_offset is not None:
        bias.class_offset.copy_(saved.class_offset.mean(dim=0).expand_as(bias.class_offset))
        ours, theirs = _shared(bias.classes, saved.classes)
        bias.class_offset[ours] = saved.class_offset[theirs].to(bias.class_offset.device)
    ours, theirs = _shared(bias.annotators, saved.annotators)
    new = sorted(set(range(len(bias.annotators))) - set(ours))
    if bias.deviation is not None and saved.deviation is not None:
        bias.deviation.zero_()
        missing = saved.theta().mean(dim=0).to(bias.fixed.device) - bias.theta()
        bias.deviation[new] = missing[new].to(bias.deviation.dtype)
        bias.deviation[ours] = saved.deviation[theirs].to(bias.deviation.device)
    return [bias.annotators[k] for k in new]


def rows_taken_up(
    tensors: dict[str, torch.Tensor], bias: BiasTerm, saved: BiasTerm
) -> dict[str, torch.Tensor]:
    """Adam's moments of a saved bias term, by index and name, in the order of another one's annotators and classes.

    Both have the same parts. The moments of new annotators start at 0.
    """
    names = {
        "class_offset": (bias.classes, saved.classes),
        "deviation": (bias.annotators, saved.annotators),
    }
    moved = dict(tensors)
    for key, values in tensors.items():
        part = saved.parts[int(key.split(".", 1)[0])]
        if part in names and values.ndim:
            ours, theirs = _shared(*names[part])
            moved[key] = values.new_zeros(len(names[part][0]), *values.shape[1:])
            moved[key][ours] = values[theirs]
    return moved


def _refusal(name: str, changes: Sequence[str], names: Sequence[str]) -> str:
    allowed = [fact for fact in names if fact in ALLOWED_CHANGES]
    remedy = "Change them back, or start a new output_dir"
    if allowed == list(names):
        options = " ".join(f"--allow-changed {fact}" for fact in allowed)
        remedy += f"; or go on with {options}: " + ", and ".join(ALLOWED_CHANGES[fact] for fact in allowed)
    if KEY in names:
        remedy = (
            "Pseudonyms and the checksums of votes are made with the pseudonym key, which is another one here: bring "
            f"the key of the machine that began the run ({KEY_VARIABLE}, or pseudonym.key in the configuration folder)"
        )
    return f"{name} was made with other settings: {'; '.join(changes)}. {remedy}"


def _shared(ours: Sequence[str], theirs: Sequence[str]) -> tuple[list[int], list[int]]:
    place = {name: i for i, name in enumerate(theirs)}
    both = [i for i, name in enumerate(ours) if name in place]
    return both, [place[ours[i]] for i in both]


def _objective_name(objective) -> str:
    """The objective's class with its settings."""
    public = {key: value for key, value in sorted(vars(objective).items()) if not key.startswith("_")}
    settings = [f"{key}={value}" for key, value in public.items() if isinstance(value, str | int | float)]
    return " ".join([type(objective).__qualname__, *settings])


def _of_people(content: bytes) -> str:
    return keyed_digest(content).hexdigest()[:12]


def _digest(content: str | np.ndarray) -> str:
    raw = content.encode() if isinstance(content, str) else np.ascontiguousarray(content).tobytes()
    return hashlib.sha256(raw).hexdigest()[:12]
