"""The files of a run: checkpoints that count only when whole, what resuming needs, the step log, provenance."""

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

from safetensors.torch import load_file, save_file
from transformers import Trainer, TrainerCallback
from transformers.trainer import TRAINER_STATE_NAME

from badpo.data.files import (
    BIAS_OPTIMIZER_FILE,
    LOG_FILE,
    MARKER,
    OBJECTIVE_FILE,
    RUN_FILES,
    RUN_SEAL,
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
from badpo.objective.objectives import Tensors
from badpo.training.inputs import gold_cross_votes
from badpo.training.reference import configuration, scoring_code
from badpo.training.self_test import StartDifference

logger = logging.getLogger(__name__)

# Packages that decide what is computed, and others that a run is told to be made with.
CODE = ("ba-dpo", "torch", "transformers", "accelerate", "peft", "numpy")
PACKAGES = (*CODE, "trl", "pandas", "scipy", "safetensors")


@contextlib.contextmanager
def whole_folder(folder: Path, is_writer: bool = True) -> Iterator[Path]:
    """A folder to write into that takes the place of ``folder`` only when everything is in it.

    Of several processes one is the writer. After an error nothing is left.
    """
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    if is_writer:
        shutil.rmtree(unfinished, ignore_errors=True)
    try:
        with telling_full_disk(folder):
            yield unfinished
        if is_writer:
            flush_tree(unfinished)
            shutil.rmtree(folder, ignore_errors=True)
            unfinished.rename(folder)
            flush_to_disk(folder.parent)
    finally:
        if is_writer:
            shutil.rmtree(unfinished, ignore_errors=True)


@contextlib.contextmanager
def named_as_in_memory(model) -> Iterator[None]:
    """For a block that writes a checkpoint: published names of fused experts are others, which no resume would load."""
    model.save_pretrained = functools.partial(model.save_pretrained, save_original_format=False)
    try:
        yield
    finally:
        del model.save_pretrained


@contextlib.contextmanager
def telling_full_disk(folder: Path) -> Iterator[None]:
    """A block that writes into a folder; where the disk takes no more, an `OSError` says so, with the folder."""
    try:
        yield
    except Exception as error:  # torch tells it without a word of the disk
        full = os.strerror(errno.ENOSPC)
        try:
            if full in str(error):
                raise OSError(errno.ENOSPC, full) from error
            there = next(place for place in (folder, *folder.parents) if place.exists())
            with tempfile.TemporaryFile(dir=there) as file:
                file.write(bytes(2**20))
        except OSError as told:
            told.filename = getattr(error, "filename", None) or str(folder)
            raise told from error
        raise


def flush_tree(folder: Path) -> None:
    """Have every file below a folder, and their names, on the disk."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.exists():
            flush_to_disk(path)
    flush_to_disk(folder)


def seal_run(folder: Path, content: Mapping | None = None) -> None:
    """Write ``run.json``, the seal of a finished run: the checksums of its files and of its policy's.

    The model card is left out, which every evaluation writes anew.
    """
    paths = [*map(folder.joinpath, RUN_FILES), *(folder / "model").rglob("*")]
    if (log := folder / LOG_FILE).exists():
        flush_to_disk(log)  # the one file that is written line by line
    _seal(folder / RUN_SEAL, content or {}, paths)


def _seal(seal: Path, content: Mapping, paths: Iterable[Path]) -> None:
    """Write a seal of those of the files beside it that are there and never change."""
    folder = seal.parent
    names = {str(path.relative_to(folder)) for path in paths if path.is_file()}
    write_seal(seal, content, names - {seal.name, "model/README.md"})


def environment(command: str) -> dict:
    """The command that makes the same run again, and the versions it depends on; nothing that names a machine."""
    return {
        "command": command,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "packages": package_versions(PACKAGES),
    }


def package_versions(names: Sequence[str]) -> dict[str, str]:
    """The installed version of each package that is there."""
    versions = {}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


# -- checkpoints -------------------------------------------------------------------------------------------------


def mark_complete(folder: Path, facts: Mapping) -> None:
    """Seal a checkpoint, with the checksum of every file in it and the ``facts`` that a resumed run must share."""
    flush_tree(folder)
    _seal(folder / MARKER, {"facts": dict(facts)}, folder.rglob("*"))


def damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint, in words; None when its marker is there and every checksum agrees."""
    if not (folder / MARKER).exists():
        return f"{folder.name} was not finished (no {MARKER})"
    return seal_damage(folder / MARKER)


def checkpoints(folder: Path) -> list[Path]:
    """Checkpoint folders of a run, newest step first, whole or not."""
    return sorted(filter(_step, folder.glob("checkpoint-*")), key=_step, reverse=True)


def _step(checkpoint: Path) -> int:
    """The step that a checkpoint's folder is named by, 1 or more; 0 for another folder."""
    number = checkpoint.name.rpartition("-")[2]
    return int(number) if number.isdigit() else 0


def newest_complete(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest whole checkpoint, and why each newer one was passed over."""
    passed_over: list[str] = []
    for path in checkpoints(folder):
        if (reason := damage(path)) is None:
            return path, passed_over
        passed_over.append(reason)
    return None, passed_over


def keep_newest(folder: Path, n_kept: int, best: Path | None = None) -> None:
    """Delete all but the ``n_kept`` newest sealed checkpoints and the best."""
    sealed = [path for path in checkpoints(folder) if (path / MARKER).exists()]
    for path in sealed[n_kept:]:
        if path != best:
            remove_checkpoint(path)


def remove_checkpoint(path: Path) -> None:
    """Delete a checkpoint, its seal first: one that is half deleted never looks whole."""
    (path / MARKER).unlink(missing_ok=True)
    flush_to_disk(path)
    shutil.rmtree(path)


def remove_unsealed(folder: Path) -> None:
    """Delete what a full disk or a killed process left of checkpoints that were never sealed."""
    for path in checkpoints(folder):
        if not (path / MARKER).exists():
            shutil.rmtree(path, ignore_errors=True)


# -- what a run and its checkpoints must share -------------------------------------------------------------------

KEY = "pseudonym key"
CODE_FACT = "code"  # the one that a resumed run may change, when it is told to
# Facts that a resumed run may raise, as with TRL's trainer.
_LENGTHS = ("max_steps", "num_train_epochs")
# Arguments that decide what a checkpoint holds. What the others of ours lead to is a fact of its own.
_ARGUMENTS = """
    attention batching beta bias bias_fit bias_learning_rate disable_dropout encoding max_length max_prompt_length
    router_aux_loss_coef warm_start learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps optim optim_args
    weight_decay adam_beta1 adam_beta2 adam_epsilon max_grad_norm max_steps num_train_epochs seed data_seed
"""


def run_facts(run) -> Json:
    """What a resumed run must share with the run that it continues, by names that a person knows."""
    args, judgments, bias, delta = run.args, run.judgments, run.bias, run.judgments.delta
    computed_with = configuration(run.model)
    people = judgments.annotators[["pseudonym", "annotator_class"]].to_numpy().tolist()
    votes = f"{judgments.n_votes:,} judgments on {judgments.n_comparisons:,} comparisons"
    attributes = [json.dumps(dict(attribute.config)) for attribute in judgments.attributes]
    fixed = bias.fixed.detach().cpu().numpy()
    adapters = getattr(run.model, "peft_config", {}).items()
    dropout = {name: getattr(adapter, "lora_dropout", 0.0) for name, adapter in adapters}
    code = [f"{name} {version}" for name, version in package_versions(CODE).items()]
    facts = {
        "data": f"{votes} ({judgments.with_attributes(()).fingerprint()[:12]})",
        "annotators": f"{len(people):,} ({_of_people(json.dumps(people, default=str).encode())})",
        KEY: key_name(),
        "attributes": ", ".join(attributes) or "none",
        "attribute values": f"{delta.shape[1]} a judgment ({_of_people(delta.astype('<f8').tobytes())})",
        "parts of theta": ", ".join(bias.parts) or "none",
        "fixed part of theta": _digest(fixed.tobytes()) if fixed.any() else "none",
        "gold_annotators": ", ".join(bias.gold_annotators) or "none",
        "tokenizer": tokenizer_key(run.processing_class),
        "reference": run.reference_cache.key[:12],
        "precision": args.mixed_precision_name,
        "adapter": computed_with["adapter"] or None,
        "dropout of the adapter": None if args.disable_dropout else dropout or None,
        "configuration of the model": _digest(
            json.dumps({**computed_with, "adapter": None}, sort_keys=True, default=str).encode()
        ),
        "objective": _objective_name(run.objective),
        CODE_FACT: ", ".join([*code, f"scoring {scoring_code()}"]),
        f"{'comparisons' if args.batching == 'comparisons' else 'judgments'} per step": args.step_size,
        **{name: getattr(args, name) for name in _ARGUMENTS.split()},
    }
    return json.loads(json.dumps(facts, default=str))


def tokenizer_key(tokenizer) -> str:
    """A key that changes with whatever decides the token ids of a text: vocabulary, merges, template."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    words = json.dumps(tokenizer.get_vocab(), sort_keys=True) if backend is None else backend.to_str()
    special = json.dumps(tokenizer.special_tokens_map, sort_keys=True, default=str)
    return f"{len(tokenizer):,} tokens ({_digest(''.join([words, special, str(tokenizer.chat_template)]).encode())})"


def _objective_name(objective) -> str:
    """The objective's class with its settings."""
    told = [type(objective).__qualname__]
    for name, value in sorted(vars(objective).items()):
        if isinstance(value, str | int | float) and not name.startswith("_"):
            told.append(f"{name}={value}")
    return " ".join(told)


def _of_people(content: bytes) -> str:
    return keyed_digest(content).hexdigest()[:12]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def changed_facts(before: Mapping, now: Mapping) -> dict[str, str]:
    """Facts that differ between a checkpoint and the run that wants to resume it, each with a line that says how."""
    return {
        name: f"{name} was {before.get(name)}, is now {now.get(name)}"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    }


# -- going on from a checkpoint ----------------------------------------------------------------------------------


def ready_to_train(run, asked: bool | str | None, allowed: Sequence[str]) -> Path | None:
    """Leave in a folder only the checkpoints that a run goes on from; return the newest, None for a new run.

    ``asked`` is True for the newest whole one, or names one. A new run is refused where whole checkpoints of another
    one are, which it would mix with.
    """
    folder, resumed = Path(run.args.output_dir), None
    if not {*allowed} <= {CODE_FACT}:
        raise ConfigError(f"{', '.join(allowed)} cannot be allowed to change; only {CODE_FACT} can")
    if asked:
        resumed = _newest(folder) if asked is True else _named(Path(str(asked)), folder)
        _require_alike(resumed, run.facts, allowed)
        run.accelerator.wait_for_everyone()
    elif newest_complete(folder)[0] is not None:
        raise ConfigError(
            f"{folder} holds checkpoints of a run; continue it with resume_from_checkpoint=True, or choose another "
            "output_dir"
        )
    if run.accelerator.is_main_process:
        remove_unsealed(folder)
        # later checkpoints are damaged, or not of this run's future
        for path in checkpoints(folder):
            if resumed is not None and _step(path) > _step(resumed):
                logger.warning("%s is removed and will be made again", path.name)
                remove_checkpoint(path)
    return resumed


def _newest(folder: Path) -> Path:
    found, passed_over = newest_complete(folder)
    for reason in passed_over:
        logger.warning("not resumed from: %s", reason)
    if found is None:
        reasons = "; ".join([f"no whole checkpoint to resume from in {folder}", *passed_over])
        raise ConfigError(f"{reasons}. Remove it to start anew")
    return found


def _named(checkpoint: Path, folder: Path) -> Path:
    if not checkpoint.exists() and (folder / checkpoint.name).exists():
        checkpoint = folder / checkpoint.name  # where TRL's trainer would have written it
    if not _step(checkpoint):
        raise ConfigError(
            f"{checkpoint} is no checkpoint of a run; name a folder such as {folder}/checkpoint-100"
        )
    if told := damage(checkpoint):
        raise ConfigError(f"{checkpoint}: {told}; resume from another checkpoint")
    return checkpoint


def _require_alike(checkpoint: Path, facts: Json, allowed: Sequence[str]) -> None:
    """Refuse a checkpoint of another run, with everything that has changed; log what was allowed to."""
    before = read_seal(checkpoint / MARKER)["facts"]
    changes = changed_facts(before, facts)
    for name in [name for name in _LENGTHS if name in changes and 0 < before[name] < facts[name]]:
        logger.warning("resumed for longer, on the schedule of the new length: %s", changes.pop(name))
    for name in changes.keys() & allowed:
        logger.warning("resumed with a change that was allowed: %s", changes[name])
    if changes.keys() <= {*allowed}:
        return
    remedy = "Change them back, or start a new output_dir"
    if changes.keys() == {CODE_FACT}:
        remedy += f"; or go on with --allow-changed {CODE_FACT}: another version may round differently"
    elif KEY in changes:
        remedy = (
            "Pseudonyms and the checksums of votes are made with the pseudonym key, which is another one here: bring "
            f"the key of the machine that began the run ({KEY_VARIABLE}, or pseudonym.key in the configuration folder)"
        )
    raise ConfigError(
        f"{checkpoint.name} was made with other settings: {'; '.join(changes.values())}. {remedy}"
    )


def save_state(run, folder: Path) -> None:
    """Write what a checkpoint needs besides the policy: the bias term with its optimizer, and the objective's state."""
    save_bias(run, folder)
    save_optimizer(run, folder)
    if state := run.objective.state_dict():
        save_privately(dict(state), folder / OBJECTIVE_FILE)


def save_optimizer(run, folder: Path) -> None:
    """Write what the rule of theta remembers, where theta is learned."""
    if run.theta_rule is not None:
        save_privately(run.theta_rule.state_dict(), folder / BIAS_OPTIMIZER_FILE)


def save_privately(tensors: Tensors, path: Path) -> None:
    """Write tensors that concern single annotators; the file is readable by this user only."""
    with appearing(path, private=True) as unfinished:
        save_file(tensors, unfinished)


def load_state(run, folder: Path) -> None:
    """Read back what `save_state` wrote."""
    load_theta(run, BiasTerm.load(folder), folder)
    state = folder / OBJECTIVE_FILE
    run.objective.load_state_dict(load_file(state) if state.exists() else {})


def load_theta(run, saved: BiasTerm, folder: Path) -> None:
    """Take up the bias term that was loaded from a checkpoint, with its optimizer and where the first step started."""
    run.bias.load_state_dict(saved.state_dict())
    if run.theta_rule is not None:
        run.theta_rule.load_state_dict(load_file(folder / BIAS_OPTIMIZER_FILE))
    # without a step before it no checkpoint is written
    run.first_margin = StartDifference(**saved.extra["first_margin"])


# -- what the bias term is told to rest on -----------------------------------------------------------------------


def save_bias(run, folder: Path) -> None:
    """Write the bias term of a `BADPOTrainer` with what its numbers belong to and rest on."""
    facts = {"variant": run.args.bias, **bias_facts(run.judgments, run.bias)}
    other_scale = {} if run.objective.in_log_odds else {"theta_in_log_odds": False}
    save_theta(run, folder, facts | other_scale)


def save_theta(run, folder: Path, facts: Json) -> None:
    """Write a bias term with some facts about its numbers and where the first step started."""
    run.bias.save(folder, facts | {"first_margin": run.first_margin and asdict(run.first_margin)})


def bias_facts(judgments: Judgments, bias: BiasTerm) -> Json:
    """What the numbers of a bias term that was learned from votes belong to and rest on."""
    gold = bias.mask.cpu().numpy() == 0
    return {
        "attributes": [dict(attribute.config) for attribute in judgments.attributes],
        "data": judgments.fingerprint(),
        "gold_votes": gold_cross_votes(judgments, gold) if gold.any() else {},
    }


# -- while a run trains ------------------------------------------------------------------------------------------


class RunCallback(TrainerCallback):
    """Steps the bias term of a `BADPOTrainer`, writes its log and seals each checkpoint; ``keep`` of them stay."""

    def __init__(self, trainer, keep: int):
        self._trainer = trainer
        self._log = trainer.run_folder / LOG_FILE
        self._keep = keep
        self._nothing_left = False
        self.trains = False
        self.go_on = ""  # what is said after the next checkpoint, where the run is to stop there

    def on_train_begin(self, args, state, control, **kwargs):
        """Take up theta from the checkpoint that is resumed, and put the log back to what it was then."""
        trainer, resumed = self._trainer, self._trainer.resumed_from
        if resumed is not None:
            load_state(trainer, resumed)
        trainer.settle_gradient_buckets()
        if state.is_world_process_zero:
            before = b"" if resumed is None else (resumed / LOG_FILE).read_bytes()
            # theta's mean over a pool of one is that one's
            write_atomically(self._log, before, private=True)
        self.trains = True

    def on_epoch_begin(self, args, state, control, train_dataloader=None, **kwargs):
        """Tell the sampler which epoch it plans."""
        # the trainer then reads no micro-batch
        self._nothing_left = state.global_step >= state.max_steps
        steps_per_epoch = len(train_dataloader) // args.gradient_accumulation_steps
        train_dataloader.batch_sampler.epoch = state.global_step // steps_per_epoch

    def on_epoch_end(self, args, state, control, **kwargs):
        """Save and measure nothing where nothing was done: the checkpoint that was resumed is the last one."""
        if self._nothing_left:
            control.should_save = control.should_evaluate = control.should_log = False

    def on_optimizer_step(self, args, state, control, model=None, **kwargs):
        """Step theta, look at where the first step started, and write the step's line."""
        sums = self._trainer.finish_step()
        metrics = sums.metrics(self._trainer.router_aux_loss_coef)
        if self._trainer.first_margin is None:
            self._trainer.see_start(metrics.get("rewards/margins", 0.0))
        if state.is_world_process_zero:
            line = {"step": state.global_step + 1, "n_judgments": sums.n_judgments, **metrics}
            with self._log.open("a") as log:
                log.write(json.dumps(line | self._trainer.state_metrics()) + "\n")

    def on_step_end(self, args, state, control, **kwargs):
        """Ask for a checkpoint where the run is to stop."""
        control.should_save = control.should_save or bool(self.go_on)

    def on_save(self, args, state, control, **kwargs):
        """Add theta and the log so far to the checkpoint, seal it, and only then delete older ones."""
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        self._trainer.accelerator.wait_for_everyone()
        if state.is_world_process_zero:
            with telling_full_disk(folder):
                save_state(self._trainer, folder)
                shutil.copy(self._log, folder / LOG_FILE)
                # it repeats figures of the log, which may be about one person
                (folder / TRAINER_STATE_NAME).chmod(0o600)
                mark_complete(folder, self._trainer.facts)
            # as in transformers, 0 keeps all
            if self._keep > 0:
                keep_newest(Path(args.output_dir), self._keep, _best(args, state))
        self._trainer.accelerator.wait_for_everyone()
        if self.go_on:
            raise KeyboardInterrupt(f"stopped after step {state.global_step}; go on with: {self.go_on}")

    def on_train_end(self, args, state, control, **kwargs):
        """Put theta back to where the best weights were, if they were put back."""
        if best := _best(args, state):
            load_state(self._trainer, best)


def _best(args, state) -> Path | None:
    """The checkpoint whose weights the Trainer puts back at the end, where it is asked to."""
    name = state.best_model_checkpoint if args.load_best_model_at_end else None
    return None if name is None else Path(name)


@contextlib.contextmanager
def saving_when_told(trainer: Trainer, go_on: str) -> Iterator[None]:
    """At SIGTERM finish the step, write a checkpoint, and then raise KeyboardInterrupt; before the first step at once.

    Of several processes each is ended by their launcher. ``go_on`` is the command that takes up the checkpoint.
    """
    [run] = (own for own in trainer.callback_handler.callbacks if isinstance(own, RunCallback))

    def tell(signum, frame):
        if not run.trains:
            raise KeyboardInterrupt
        run.go_on = go_on

    if trainer.args.world_size > 1:
        yield
        return
    before = signal.signal(signal.SIGTERM, tell)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
