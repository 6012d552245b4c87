"""Write, check and read the files of a training run, such as its checkpoints, step log and package versions."""

# mypy does not analyze transformers, so its classes are untyped
# mypy: disallow-subclassing-any=False

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import logging
import os
import platform
import shutil
import signal
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Protocol, TypedDict

from safetensors.torch import load_file, save_file
from torch.utils.data import DataLoader
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer import TRAINER_STATE_NAME

from badpo.data.files import (
    BIAS_OPTIMIZER_FILE,
    HELD_OUT_FILE,
    LOG_FILE,
    MARKER,
    OBJECTIVE_FILE,
    RUN_FILES,
    RUN_SEAL,
    VOTES_FILE,
    Json,
    appearing,
    flush_to_disk,
    read_seal,
    seal_damage,
    write_atomically,
    write_seal,
)
from badpo.data.judgments import Judgments
from badpo.data.privacy import KEY_VARIABLE, key_name, keyed_digest
from badpo.data.problems import ConfigError
from badpo.objective.bias import BiasTerm
from badpo.objective.objectives import Objective, Tensors
from badpo.objective.theta import ThetaRule
from badpo.training.inputs import count_gold_votes, find_revealing_attributes
from badpo.training.reference import read_configuration, scoring_code
from badpo.training.self_test import StartDifference

logger = logging.getLogger(__name__)

# Properties on which a run and its checkpoints must agree, by name and as JSON values.
Facts = Json

# `CODE`: packages whose code determines the results of a run. `PACKAGES`: all packages whose versions a run records.
CODE = ("ba-dpo", "torch", "transformers", "accelerate", "peft", "numpy")
PACKAGES = (*CODE, "trl", "pandas", "scipy", "safetensors")


class BiasRun(Protocol):
    """A trainer with a bias term: `BADPOTrainer` or `badpo.trl.BiasAdjustedDPOTrainer`."""

    bias: BiasTerm
    theta_rule: ThetaRule | None
    first_margin: StartDifference | None


class Environment(TypedDict):
    """The command and platform of a run, and the versions of Python and of packages, but not the machine's name."""

    command: str
    python: str
    platform: str
    packages: dict[str, str]


@contextlib.contextmanager
def whole_folder(folder: Path, is_writer: bool = True) -> Iterator[Path]:
    """Yield a temporary folder, which replaces ``folder`` at the end of the context or is deleted after an error.

    If several processes train together, ``is_writer`` is true in only one of them.
    """
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    if is_writer:
        shutil.rmtree(unfinished, ignore_errors=True)
    try:
        with report_full_disk(folder):
            yield unfinished
        if is_writer:
            _flush_tree(unfinished)
            shutil.rmtree(folder, ignore_errors=True)
            unfinished.rename(folder)
            flush_to_disk(folder.parent)
    finally:
        if is_writer:
            shutil.rmtree(unfinished, ignore_errors=True)


@contextlib.contextmanager
def keep_parameter_names(model: PreTrainedModel) -> Iterator[None]:
    """Context manager that makes ``save_pretrained`` keep the parameter names of the loaded model.

    By default, transformers saves fused experts under the names in the published checkpoint, and a resumed run could
    not load them.
    """
    model.save_pretrained = functools.partial(model.save_pretrained, save_original_format=False)
    try:
        yield
    finally:
        del model.save_pretrained


@contextlib.contextmanager
def report_full_disk(folder: Path) -> Iterator[None]:
    """Context manager that turns a full-disk error into an `OSError` that names a file or folder.

    Without this context manager, torch raises an error that does not mention the disk.
    """
    try:
        yield
    except Exception as error:
        full = os.strerror(errno.ENOSPC)
        try:
            if full in str(error):
                raise OSError(errno.ENOSPC, full) from error
            existing = next(place for place in (folder, *folder.parents) if place.exists())
            with tempfile.TemporaryFile(dir=existing) as file:
                file.write(bytes(2**20))
        except OSError as disk_error:
            disk_error.filename = getattr(error, "filename", None) or str(folder)
            raise disk_error from error
        raise


def _flush_tree(folder: Path) -> None:
    """Flush all files and directory entries in a folder to the disk."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.exists():
            flush_to_disk(path)
    flush_to_disk(folder)


def mark_run_complete(folder: Path, content: Mapping[str, object] | None = None) -> None:
    """Write the manifest ``run.json`` of a finished run, with checksums of the run files and the model files.

    The manifest does not include the model card, because every evaluation rewrites the model card.
    """
    names = (*RUN_FILES, VOTES_FILE, HELD_OUT_FILE)
    paths = [*map(folder.joinpath, names), *(folder / "model").rglob("*")]
    if (log := folder / LOG_FILE).exists():
        flush_to_disk(log)  # the log is the only file that is written line by line
    _write_manifest(folder / RUN_SEAL, content or {}, paths)


def _write_manifest(manifest: Path, content: Mapping[str, object], paths: Iterable[Path]) -> None:
    """Write a manifest with the checksums of all files in ``paths``, except the model card, which may change later."""
    folder = manifest.parent
    names = {str(path.relative_to(folder)) for path in paths if path.is_file()}
    write_seal(manifest, content, names - {manifest.name, "model/README.md"})


def environment(command: str) -> Environment:
    """Return ``command`` together with the platform and the versions of Python and of installed packages."""
    return {
        "command": command,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "packages": read_package_versions(PACKAGES),
    }


def read_package_versions(names: Sequence[str]) -> dict[str, str]:
    """Read the version of each installed package."""
    versions = {}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


# -- checkpoints -------------------------------------------------------------------------------------------------


def mark_complete(folder: Path, facts: Mapping[str, object]) -> None:
    """Write a checkpoint's manifest: the checksums of its files, and the properties that a resumed run must keep."""
    _flush_tree(folder)
    _write_manifest(folder / MARKER, {"facts": dict(facts)}, folder.rglob("*"))


def find_damage(folder: Path) -> str | None:
    """Return why a checkpoint is incomplete, or None if it has a manifest and every checksum matches."""
    if not (folder / MARKER).exists():
        return f"{folder.name} was not finished (no {MARKER})"
    return seal_damage(folder / MARKER)


def list_checkpoints(folder: Path) -> list[Path]:
    """List all checkpoint folders of a run from newest to oldest, including incomplete ones."""
    return sorted(filter(_step, folder.glob("checkpoint-*")), key=_step, reverse=True)


def _step(checkpoint: Path) -> int:
    """Return the step number in the name of a checkpoint folder, or 0 if the folder is not a checkpoint."""
    number = checkpoint.name.rpartition("-")[2]
    return int(number) if number.isdigit() else 0


def find_newest_complete(folder: Path) -> tuple[Path | None, list[str]]:
    """Find the newest complete checkpoint of a run; also return why each newer checkpoint is incomplete."""
    reasons: list[str] = []
    for path in list_checkpoints(folder):
        if (reason := find_damage(path)) is None:
            return path, reasons
        reasons.append(reason)
    return None, reasons


def keep_newest(folder: Path, n_kept: int, best: Path | None = None) -> None:
    """Delete checkpoints that have a manifest, except the ``n_kept`` newest checkpoints and the best checkpoint."""
    complete = [path for path in list_checkpoints(folder) if (path / MARKER).exists()]
    for path in complete[n_kept:]:
        if path != best:
            remove_checkpoint(path)


def remove_checkpoint(path: Path) -> None:
    """Delete a checkpoint, starting with its manifest, so that a partly deleted checkpoint never looks complete."""
    (path / MARKER).unlink(missing_ok=True)
    flush_to_disk(path)
    shutil.rmtree(path)


def remove_incomplete(folder: Path) -> None:
    """Delete checkpoints without a manifest, such as those left behind by a full disk or a killed process."""
    for path in list_checkpoints(folder):
        if not (path / MARKER).exists():
            shutil.rmtree(path, ignore_errors=True)


# -- facts that a run and its checkpoints must share -------------------------------------------------------------

KEY = "pseudonym key"
CODE_FACT = "code"  # the only fact that the user can allow to change
# Training arguments that a resumed run may increase, as in TRL's trainer.
_LENGTHS = ("max_steps", "num_train_epochs")
# Training arguments that must be equal in a checkpoint and in the run that resumes from it.
# `collect_facts` records the effects of some other arguments, such as the precision of the forward pass.
_ARGUMENTS = """
    attention batching beta bias bias_fit bias_learning_rate disable_dropout encoding max_length max_prompt_length
    router_aux_loss_coef warm_start learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps optim optim_args
    weight_decay adam_beta1 adam_beta2 adam_epsilon max_grad_norm max_steps num_train_epochs seed data_seed
"""


def collect_facts(run: Trainer) -> Facts:
    """Collect the properties that a resumed run must share with its checkpoint, named as in error messages."""
    args, judgments, bias, delta = run.args, run.judgments, run.bias, run.judgments.delta
    configuration = read_configuration(run.model)
    annotators = judgments.annotators[["pseudonym", "annotator_class"]].to_numpy().tolist()
    votes = f"{judgments.n_votes:,} judgments on {judgments.n_comparisons:,} comparisons"
    attributes = [json.dumps(dict(attribute.config)) for attribute in judgments.attributes]
    fixed = bias.fixed.detach().cpu().numpy()
    adapters = getattr(run.model, "peft_config", {}).items()
    dropout = {name: getattr(adapter, "lora_dropout", 0.0) for name, adapter in adapters}
    code = [f"{name} {version}" for name, version in read_package_versions(CODE).items()]
    model = json.dumps({**configuration, "adapter": None}, sort_keys=True, default=str)
    facts = {
        "data": f"{votes} ({judgments.with_attributes(()).fingerprint()[:12]})",
        "annotators": f"{len(annotators):,} ({_personal_digest(json.dumps(annotators, default=str).encode())})",
        KEY: key_name(),
        "attributes": ", ".join(attributes) or "none",
        "attribute values": f"{delta.shape[1]} a judgment ({_personal_digest(delta.astype('<f8').tobytes())})",
        "parts of theta": ", ".join(bias.parts) or "none",
        "fixed part of theta": _digest(fixed.tobytes()) if fixed.any() else "none",
        "gold_annotators": ", ".join(bias.gold_annotators) or "none",
        "tokenizer": _describe_tokenizer(run.processing_class),
        "reference": run.reference.cache.key[:12],
        "precision": args.mixed_precision_name,
        "adapter": configuration["adapter"] or None,
        "dropout of the adapter": None if args.disable_dropout else dropout or None,
        "configuration of the model": _digest(model.encode()),
        "objective": _describe_objective(run.objective),
        CODE_FACT: ", ".join([*code, f"scoring {scoring_code()}"]),
        f"{'comparisons' if args.batching == 'comparisons' else 'judgments'} per step": args.step_size,
        **{name: getattr(args, name) for name in _ARGUMENTS.split()},
    }
    # the properties are converted to JSON types, because they are compared with the content of a JSON file
    plain: Facts = json.loads(json.dumps(facts, default=str))
    return plain


def _describe_tokenizer(tokenizer: PreTrainedTokenizerBase) -> str:
    """Describe a tokenizer by its number of tokens and a digest of its vocabulary, merges and chat template."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    words = json.dumps(tokenizer.get_vocab(), sort_keys=True) if backend is None else backend.to_str()
    special = json.dumps(tokenizer.special_tokens_map, sort_keys=True, default=str)
    content = "".join([words, special, str(tokenizer.chat_template)])
    return f"{len(tokenizer):,} tokens ({_digest(content.encode())})"


def _describe_objective(objective: Objective) -> str:
    """Name the objective's class and its settings."""
    words = [type(objective).__qualname__]
    for name, value in sorted(vars(objective).items()):
        if isinstance(value, str | int | float) and not name.startswith("_"):
            words.append(f"{name}={value}")
    return " ".join(words)


def _personal_digest(content: bytes) -> str:
    return keyed_digest(content).hexdigest()[:12]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def describe_changes(before: Mapping[str, object], now: Mapping[str, object]) -> dict[str, str]:
    """Describe each property that differs between a checkpoint and the run that resumes from it."""
    return {
        name: f"{name} was {before.get(name)}, is now {now.get(name)}"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    }


# -- resuming from a checkpoint ----------------------------------------------------------------------------------


def prepare_folder(run: Trainer, checkpoint: bool | str | None, allowed: Sequence[str]) -> Path | None:
    """Return the checkpoint from which a run resumes, or None for a new run; delete all later checkpoints.

    ``checkpoint`` is a folder, or True for the newest complete checkpoint. If the folder of a new run already contains
    complete checkpoints, the function raises `ConfigError`.
    """
    folder, resumed = Path(run.args.output_dir), None
    if not {*allowed} <= {CODE_FACT}:
        raise ConfigError(
            f"allow_changed contains {', '.join(allowed)}; the only allowed value is {CODE_FACT}"
        )
    if checkpoint:
        resumed = (
            _find_newest(folder) if checkpoint is True else _find_named(Path(str(checkpoint)), folder)
        )
        _require_same_run(resumed, run.facts, allowed)
        run.accelerator.wait_for_everyone()
    elif find_newest_complete(folder)[0] is not None:
        raise ConfigError(
            f"{folder} contains checkpoints of a run; continue this run with resume_from_checkpoint=True, or choose "
            "another output_dir"
        )
    if run.accelerator.is_main_process:
        remove_incomplete(folder)
        # checkpoints after the resumed step are damaged or will be written again
        for path in list_checkpoints(folder):
            if resumed is not None and _step(path) > _step(resumed):
                logger.warning("%s is deleted; the run will write it again", path.name)
                remove_checkpoint(path)
    return resumed


def _find_newest(folder: Path) -> Path:
    newest, reasons = find_newest_complete(folder)
    for reason in reasons:
        logger.warning("not resumed from: %s", reason)
    if newest is None:
        causes = "; ".join([f"{folder} has no complete checkpoint", *reasons])
        raise ConfigError(f"{causes}. Delete the checkpoint folder to start a new run")
    return newest


def _find_named(checkpoint: Path, folder: Path) -> Path:
    if not checkpoint.exists() and (folder / checkpoint.name).exists():
        checkpoint = (
            folder / checkpoint.name
        )  # TRL's trainer would have written the checkpoint to the parent of ``folder``
    if not _step(checkpoint):
        raise ConfigError(
            f"{checkpoint} is not a checkpoint of a run; give a folder such as {folder}/checkpoint-100"
        )
    if reason := find_damage(checkpoint):
        raise ConfigError(f"{checkpoint}: {reason}; resume from another checkpoint")
    return checkpoint


def _require_same_run(checkpoint: Path, facts: Facts, allowed: Sequence[str]) -> None:
    """If a checkpoint belongs to another run, raise a `ConfigError` that lists all changes; log allowed changes."""
    before = read_seal(checkpoint / MARKER)["facts"]
    changes = describe_changes(before, facts)
    for name in [name for name in _LENGTHS if name in changes and 0 < before[name] < facts[name]]:
        logger.warning("the resumed run has a schedule of the new length: %s", changes.pop(name))
    for name in changes.keys() & allowed:
        logger.warning("resumed with an allowed change: %s", changes[name])
    if changes.keys() <= {*allowed}:
        return
    remedy = "Restore the settings of the checkpoint, or start a new run in another output_dir"
    if changes.keys() == {CODE_FACT}:
        remedy += f"; or allow the change with --allow-changed {CODE_FACT}: another version may round differently"
    elif KEY in changes:
        remedy = (
            "Pseudonyms and the checksums of votes depend on the pseudonym key, and this machine has another key. Copy "
            f"the pseudonym key from the machine that started the run; the key is in the variable {KEY_VARIABLE} or "
            "in pseudonym.key in the configuration folder"
        )
    raise ConfigError(
        f"{checkpoint.name} was made with other settings: {'; '.join(changes.values())}. {remedy}"
    )


def save_optimizer(run: BiasRun, folder: Path) -> None:
    """Write the state of theta's update rule, if any part of theta is learned."""
    if run.theta_rule is not None:
        save_privately(run.theta_rule.state_dict(), folder / BIAS_OPTIMIZER_FILE)


def save_privately(tensors: Tensors, path: Path) -> None:
    """Write tensors about individual annotators to a file that only the owner can read."""
    with appearing(path, private=True) as unfinished:
        save_file(tensors, unfinished)


def load_theta(run: BiasRun, saved: BiasTerm, folder: Path) -> None:
    """Restore theta from the bias term ``saved``, and its update rule and ``first_margin`` from the checkpoint."""
    run.bias.load_state_dict(saved.state_dict())
    if run.theta_rule is not None:
        run.theta_rule.load_state_dict(load_file(folder / BIAS_OPTIMIZER_FILE))
    # every checkpoint is written after the first step, so `first_margin` is known
    run.first_margin = StartDifference(**saved.extra["first_margin"])


def save_bias(run: Trainer, folder: Path) -> None:
    """Write the bias term of a run, with information about the run's votes and the unit of theta."""
    facts = {"variant": run.args.bias, **collect_bias_facts(run.judgments, run.bias)}
    if not run.objective.in_log_odds:
        facts["theta_in_log_odds"] = False
    save_theta(run, folder, facts)


def save_theta(run: BiasRun, folder: Path, facts: Facts) -> None:
    """Write the bias term of a run, ``facts``, and the difference between policy and reference at the first step."""
    run.bias.save(folder, facts | {"first_margin": run.first_margin and asdict(run.first_margin)})


def collect_bias_facts(judgments: Judgments, bias: BiasTerm) -> Facts:
    """Describe the votes from which a bias term learns."""
    gold = bias.mask.cpu().numpy() == 0
    return {
        "attributes": [dict(attribute.config) for attribute in judgments.attributes],
        "data": judgments.fingerprint(),
        "gold_votes": count_gold_votes(judgments, gold) if gold.any() else {},
        "revealing": find_revealing_attributes(judgments, bias),
    }


# -- during training ---------------------------------------------------------------------------------------------


class RunCallback(TrainerCallback):
    """Callback of `BADPOTrainer` that updates theta, writes the step log, and completes each checkpoint.

    If ``n_kept`` is positive, the callback keeps only the ``n_kept`` newest checkpoints and the best checkpoint.
    """

    def __init__(self, trainer: Trainer, n_kept: int):
        self._trainer = trainer
        self._log = trainer.run_folder / LOG_FILE
        self._n_kept = n_kept
        self._has_finished = False
        self.is_training = False
        self.resume_command = (
            ""  # if this is not empty, the run stops after the next checkpoint and reports the command
        )

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Restore theta and the step log from the checkpoint, if the run resumes from one."""
        resumed = self._trainer.resumed_from
        if resumed is not None:
            self._load_state(resumed)
        self._trainer.fix_gradient_buckets()
        if state.is_world_process_zero:
            log = b"" if resumed is None else (resumed / LOG_FILE).read_bytes()
            # the step log is private, because the mean of theta may describe a single annotator
            write_atomically(self._log, log, private=True)
        self.is_training = True

    def on_epoch_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        train_dataloader: DataLoader,
        **kwargs: object,
    ) -> None:
        """Set the epoch of the sampler."""
        # a run that resumes from the checkpoint of its last step reads no further micro-batches
        self._has_finished = state.global_step >= state.max_steps
        steps_per_epoch = len(train_dataloader) // args.gradient_accumulation_steps
        train_dataloader.batch_sampler.epoch = state.global_step // steps_per_epoch

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Skip saving and evaluation if the run resumed from the checkpoint of its last step."""
        if self._has_finished:
            control.should_save = control.should_evaluate = control.should_log = False

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Update theta, compare policy and reference at the first step, and write a line of the step log."""
        tally = self._trainer.finish_step()
        metrics = tally.metrics(self._trainer.router_aux_loss_coef)
        if self._trainer.first_margin is None:
            self._trainer.check_start(metrics.get("rewards/margins", 0.0))
        if state.is_world_process_zero:
            line = {"step": state.global_step + 1, "n_judgments": tally.n_judgments, **metrics}
            with self._log.open("a") as log:
                log.write(json.dumps(line | self._trainer.state_metrics()) + "\n")

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Request a checkpoint if the run must stop after this step."""
        control.should_save = control.should_save or bool(self.resume_command)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Add theta and the step log to a new checkpoint, write its manifest, and delete old checkpoints."""
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        run = self._trainer
        run.accelerator.wait_for_everyone()
        if state.is_world_process_zero:
            with report_full_disk(folder):
                save_bias(run, folder)
                save_optimizer(run, folder)
                if objective_state := run.objective.state_dict():
                    save_privately(dict(objective_state), folder / OBJECTIVE_FILE)
                shutil.copy(self._log, folder / LOG_FILE)
                # the trainer state repeats metrics from the step log, which may describe a single annotator
                (folder / TRAINER_STATE_NAME).chmod(0o600)
                mark_complete(folder, run.facts)
            # as in transformers, 0 keeps all checkpoints
            if self._n_kept > 0:
                keep_newest(Path(args.output_dir), self._n_kept, _find_best(args, state))
        run.accelerator.wait_for_everyone()
        if self.resume_command:
            raise KeyboardInterrupt(
                f"stopped after step {state.global_step}; resume with: {self.resume_command}"
            )

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Restore the best checkpoint's theta, if the Trainer has restored its weights."""
        if best := _find_best(args, state):
            self._load_state(best)

    def _load_state(self, folder: Path) -> None:
        """Restore theta and the objective's state from a checkpoint."""
        run, state = self._trainer, folder / OBJECTIVE_FILE
        load_theta(run, BiasTerm.load(folder), folder)
        run.objective.load_state_dict(load_file(state) if state.exists() else {})


def _find_best(args: TrainingArguments, state: TrainerState) -> Path | None:
    """Return the checkpoint that the Trainer restores after training if ``load_best_model_at_end`` is set."""
    name = state.best_model_checkpoint if args.load_best_model_at_end else None
    return None if name is None else Path(name)


@contextlib.contextmanager
def save_on_sigterm(trainer: Trainer, resume_command: str) -> Iterator[None]:
    """Context manager that makes a run react to SIGTERM: finish the step, save a checkpoint, raise `KeyboardInterrupt`.

    Before the first step, SIGTERM stops the run at once. If several processes train together, their launcher handles
    SIGTERM and stops them. The exception's message contains ``resume_command``.
    """
    callbacks = trainer.callback_handler.callbacks
    [callback] = (callback for callback in callbacks if isinstance(callback, RunCallback))

    def stop(signum: int, frame: FrameType | None) -> None:
        if not callback.is_training:
            raise KeyboardInterrupt
        callback.resume_command = resume_command

    if trainer.args.world_size > 1:
        yield
        return
    handler = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)
