"""What a BA-DPO run does besides the policy's step: theta's step, the step log, sealed checkpoints."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from torch.optim.lr_scheduler import LambdaLR
from transformers import Trainer, TrainerCallback
from transformers.trainer import TRAINER_STATE_NAME

from badpo.training.bias_state import load_state, save_state
from badpo.training.run_folder import keep_newest, mark_complete, write_atomically

LOG_FILE = "log.jsonl"


class RunCallback(TrainerCallback):
    """Steps the bias term of a `BADPOTrainer`, writes the log at ``log_path`` and seals each checkpoint.

    Theta is stepped after the policy's optimizer, once per optimizer step on every process, and not when a
    gradient scaler skipped the policy's step. Older checkpoints than the ``keep`` newest are deleted only after a newer
    one is sealed.
    """

    def __init__(self, trainer, log_path: Path, keep: int | None):
        self._trainer = trainer
        self._log_path = log_path
        self._keep = keep
        self._log_file: TextIO | None = None
        self._nothing_left = False

    def on_train_begin(self, args, state, control, **kwargs):
        """Take up theta from the checkpoint that is resumed, and put the log back to what it was then."""
        trainer, resumed = self._trainer, self._trainer.resumed_from
        if resumed is not None:
            trainer.first_margin = load_state(
                resumed, trainer.bias, trainer.bias_optimizer, trainer.objective
            )
            _follow_the_schedule(trainer.lr_scheduler)
        trainer.settle_gradient_buckets()
        if state.is_world_process_zero:
            before = b"" if resumed is None else (resumed / LOG_FILE).read_bytes()
            # theta's mean over a pool of one is that one's
            write_atomically(self._log_path, before, private=True)
            self._log_file = self._log_path.open("a")

    def on_epoch_begin(self, args, state, control, train_dataloader=None, **kwargs):
        """Tell the sampler which epoch it plans; stop when a resumed run has no step left."""
        self._nothing_left = state.global_step >= state.max_steps
        control.should_training_stop = control.should_training_stop or self._nothing_left
        steps_per_epoch = len(train_dataloader) // args.gradient_accumulation_steps
        train_dataloader.batch_sampler.epoch = state.global_step // steps_per_epoch

    def on_epoch_end(self, args, state, control, **kwargs):
        """Save and measure nothing where nothing was done: the checkpoint that was resumed is the last one."""
        if self._nothing_left:
            control.should_save = control.should_evaluate = control.should_log = False

    def on_optimizer_step(self, args, state, control, model=None, **kwargs):
        """Step theta, look at where the first step started, and write the step's line."""
        sums = self._trainer.finish_step()
        if state.global_step == 0:
            self._trainer.see_start(sums.metrics().get("rewards/margins", 0.0))
        if self._log_file is not None:
            line = {"step": state.global_step + 1, "n_judgments": sums.n_judgments, **sums.metrics()}
            self._log_file.write(json.dumps(line | self._trainer.state_metrics()) + "\n")
            self._log_file.flush()

    def on_save(self, args, state, control, **kwargs):
        """Add theta and the log so far to the checkpoint, seal it, and only then delete older ones."""
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        self._trainer.accelerator.wait_for_everyone()
        if state.is_world_process_zero:
            self._trainer.save_bias(folder)
            save_state(folder, self._trainer.bias_optimizer, self._trainer.objective)
            shutil.copy(self._log_path, folder / LOG_FILE)
            # it repeats figures of the log, which may be about one person
            (folder / TRAINER_STATE_NAME).chmod(0o600)
            mark_complete(folder, self._trainer.facts)
            if self._keep is not None:
                keep_newest(Path(args.output_dir), self._keep, _best(args, state))
        self._trainer.accelerator.wait_for_everyone()

    def on_train_end(self, args, state, control, **kwargs):
        """Put theta back to where the best weights were, if they were put back, and close the log."""
        best = _best(args, state)
        if best is not None:
            trainer = self._trainer
            load_state(best, trainer.bias, trainer.bias_optimizer, trainer.objective)
        if self._log_file is not None:
            self._log_file.close()
            self._log_file = None


def _best(args, state) -> Path | None:
    """The checkpoint whose weights the Trainer puts back at the end, where it is asked to."""
    name = state.best_model_checkpoint if args.load_best_model_at_end else None
    return None if name is None else Path(name)


def _follow_the_schedule(schedule) -> None:
    """Set the learning rates that a schedule has at its step: a checkpoint holds those of another length of the run."""
    schedule = getattr(schedule, "scheduler", schedule)
    if isinstance(schedule, LambdaLR):
        factors = [factor(schedule.last_epoch) for factor in schedule.lr_lambdas]
        schedule._last_lr = [base * factor for base, factor in zip(schedule.base_lrs, factors, strict=True)]
        for group, rate in zip(schedule.optimizer.param_groups, schedule._last_lr, strict=True):
            group["lr"] = rate


@contextmanager
def saving_when_told(trainer: Trainer, go_on: str) -> Iterator[None]:
    """At SIGTERM finish the step, write a checkpoint, and then raise KeyboardInterrupt; before the first step at once.

    Of several processes each is ended by their launcher instead. The checkpoint is sealed by a callback that is there
    already; the interrupt says ``go_on``, the command that takes up the checkpoint.
    """
    if trainer.args.world_size > 1:
        yield
        return
    saving = _SavingWhenTold(go_on)
    trainer.add_callback(saving)
    before = signal.signal(signal.SIGTERM, saving.tell)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _SavingWhenTold(TrainerCallback):
    def __init__(self, go_on: str):
        self._go_on = go_on
        self._trains = self._told = False

    def tell(self, signum, frame):
        if not self._trains:
            raise KeyboardInterrupt
        self._told = True

    def on_train_begin(self, args, state, control, **kwargs):
        self._trains = True

    def on_step_end(self, args, state, control, **kwargs):
        control.should_save = control.should_save or self._told

    def on_save(self, args, state, control, **kwargs):
        if self._told:
            raise KeyboardInterrupt(f"stopped after step {state.global_step}; go on with: {self._go_on}")
