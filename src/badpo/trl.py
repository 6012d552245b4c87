r"""`BiasAdjustedDPOTrainer`: TRL's `DPOTrainer` with the annotators' bias in its loss, for whatever TRL trains.

A judgment's bias logit enters as a shift of the reference: with ``ref_chosen - b / beta`` in place of ``ref_chosen``
TRL's own loss computes :math:`-\log \sigma(u + b)`, and its gradient by the shift is that by b.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from datasets import Dataset, IterableDataset
from safetensors.torch import load_file
from torch import Tensor
from transformers import TrainerCallback
from trl import DPOConfig, DPOTrainer

from badpo.data.attributes import Attributes, as_attributes
from badpo.data.files import BIAS_OPTIMIZER_FILE
from badpo.data.judgments import Judgments
from badpo.data.privacy import EVERYONE, pseudonyms
from badpo.data.problems import ConfigError, Problem
from badpo.objective.bias import BiasTerm
from badpo.training.checkpoints import adam_tensors, bias_facts, load_adam_tensors, save_privately
from badpo.training.config import CHOICES
from badpo.training.inputs import build_bias, require_matching_bias, training_judgments
from badpo.training.metrics import REMEDY, NotFiniteError, publishable, theta_metrics
from badpo.training.self_test import FLOOR, FLOOR_IN_16_BITS, StartDifference

logger = logging.getLogger(__name__)

# Of each row the annotator's number, and of each attribute the difference, chosen minus rejected.
COLUMN = "bias_inputs"
_NOT_READ = ("image", "images", "tools", "chat_template_kwargs")
# Losses that see the reference in the margin alone, where its shift is b; in the first two theta is in log-odds.
_OF_THE_MARGIN = ("sigmoid", "robust", "hinge", "exo_pair", "discopop")


class BiasAdjustedDPOTrainer(DPOTrainer):
    r"""TRL's trainer with BA-DPO's loss: vision-language models, QLoRA, Liger, streams, whatever TRL trains.

    Rows are votes: what TRL takes, and a column that says whose vote a row is. Theta has its own Adam, constant,
    unclipped and without decay, and stays outside the model: in the folder ``<output_dir>-bias``, under pseudonyms.
    The votes leave open a level that all annotators share. As in `BADPOTrainer` theta starts at zero and the policy at
    its reference, which anchors the policy at the reference's own rate of the attribute.

    Parameters
    ----------
    model, ref_model, args, data_collator, train_dataset, eval_dataset, *others, **options
        As in TRL. Losses that are not of the margin alone are refused, such as ``ipo``.
    attributes : Attribute, or text such as "length:ratio=1.5", or several
    columns : mapping
        Our column name -> the data set's, as in ``{"annotator": "worker"}``.
    bias : str, BiasTerm or None
        A variant, or a term that was built, as a stream needs. None is ``shared_mean``, or ``pooled`` where nobody is
        named.
    bias_learning_rate, warm_start, gold_annotators
        As in `BADPOConfig`.

    Attributes
    ----------
    bias : BiasTerm
    judgments : Judgments or None
        The training votes; None for a stream.
    findings : list of Problem
        What was noticed about the votes and the start (W152 where the policy does not start at its reference).

    Examples
    --------
    >>> BiasAdjustedDPOTrainer("model", train_dataset=[{"chosen": "yes", "rejected": "no"}])
    Traceback (most recent call last):
    badpo.data.problems.ConfigError: train_dataset is a list; give a Dataset or IterableDataset of the package datasets
    """

    _tag_names = [*DPOTrainer._tag_names, "ba-dpo"]
    data_collator: Any
    _signature_columns: Any
    precompute_ref_logps: bool

    def __init__(
        self,
        model,
        ref_model=None,
        args: DPOConfig | None = None,
        data_collator=None,
        train_dataset=None,
        eval_dataset=None,
        *others,
        attributes: Attributes = (),
        columns: Mapping[str, str | None] | None = None,
        bias: str | BiasTerm | None = None,
        bias_learning_rate: float = 1e-2,
        warm_start: str = "zero",
        gold_annotators: Sequence[str] = (),
        **options,
    ):
        self._columns, self.attributes = columns, as_attributes(attributes)
        arm = self.attributes, bias, warm_start
        in_log_odds = _require_understood(args, train_dataset, *arm)
        self._facts: dict[str, Any] = {} if in_log_odds else {"theta_in_log_odds": False}
        self.findings: list[Problem] = []
        self.first_margin: StartDifference | None = None
        self.judgments: Judgments | None = None
        if isinstance(bias, BiasTerm):
            self.bias = bias
        if isinstance(train_dataset, Dataset):
            self._take_in(self._read(train_dataset), bias, warm_start, gold_annotators)
        learned = list(self.bias.to("cpu").parameters())
        self.bias_optimizer = torch.optim.Adam(learned, lr=bias_learning_rate) if learned else None
        data = self._with_inputs(train_dataset, self.judgments), self._with_inputs(eval_dataset)
        super().__init__(model, ref_model, args, data_collator, *data, *others, **options)
        self.data_collator = partial(_collated, self.data_collator)
        self.add_callback(_ThetaSteps(self))

    def _take_in(self, judgments: Judgments, bias, warm_start: str, gold: Sequence[str]) -> None:
        """The votes that are trained on, and the bias term, given or built from them."""
        gold, given = pseudonyms([*dict.fromkeys(map(str, gold))]), isinstance(bias, BiasTerm)
        judgments, variant, noticed = training_judgments(judgments, (), None if given else bias)
        self._tell(noticed)
        self.bias = bias if given else build_bias(judgments, variant, warm_start, gold)
        require_matching_bias(self.bias, judgments, gold)
        self.judgments, self.attributes = judgments, judgments.attributes
        self._facts |= {"variant": variant, **bias_facts(judgments, self.bias)}

    def _read(self, data) -> Judgments:
        """The votes of a data set, or of some rows of a stream: each row is one."""
        names = [*data] if isinstance(data, Mapping) else data.column_names
        table = {name: [*map(_text_alone, data[name])] for name in names if name not in _NOT_READ}
        read = Judgments.read(pd.DataFrame(table), columns=self._columns, attributes=self.attributes)
        if (read.votes["weight"] != 1).any():
            raise ConfigError(
                'TRL counts every vote once: leave weights out, columns={"weight": None}, or take BADPOTrainer'
            )
        return read

    def _inputs(self, data, judgments: Judgments | None = None) -> list[list[float]]:
        """What `COLUMN` holds of each row; an annotator whom the bias does not know has the number -1."""
        judgments = judgments or self._read(data)
        votes, known = judgments.votes, pd.Index(self.bias.annotators)
        numbers = known.get_indexer(judgments.annotators["pseudonym"])[votes["annotator"]]
        return np.column_stack([numbers, votes["sign"].to_numpy()[:, None] * judgments.delta]).tolist()

    def _with_inputs(self, data, judgments: Judgments | None = None):
        """A data set, or several by name, with `COLUMN`."""
        if isinstance(data, Mapping):
            return {name: self._with_inputs(part) for name, part in data.items()}
        if data is None or COLUMN in next(iter(data)):
            return data
        if isinstance(data, IterableDataset):
            return data.map(lambda rows: {COLUMN: self._inputs(rows)}, batched=True, batch_size=64)
        return data.add_column(COLUMN, self._inputs(data, judgments))

    def _set_signature_columns_if_needed(self):
        super()._set_signature_columns_if_needed()
        self._signature_columns = [*dict.fromkeys([*self._signature_columns, COLUMN])]

    def compute_ref_log_probs(self, model, inputs):
        """As TRL's, of inputs with or without `COLUMN`."""
        return super().compute_ref_log_probs(model, {k: v for k, v in inputs.items() if k != COLUMN})

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """TRL's loss with the reference shifted; theta's gradient is taken apart, whatever scales the policy's."""
        inputs = dict(inputs)
        rows = inputs.pop(COLUMN).cpu().view(torch.float64)
        b = self.bias(rows[:, 0].long(), rows[:, 1:])
        names, precomputed = ("ref_chosen_logps", "ref_rejected_logps"), self.precompute_ref_logps
        if precomputed:
            reference = torch.stack([inputs[name] for name in names])
        else:
            reference = torch.stack(self.compute_ref_log_probs(self.ref_model or self.model, inputs))
        learns = b.requires_grad
        shift = (b.detach() / self.beta).to(reference).requires_grad_(learns)
        inputs |= dict(zip(names, (reference[0] - shift, reference[1]), strict=True))
        scored: list[Any] = []

        def policy(**given):
            scored.append(model(**given))
            return scored[-1]

        self.precompute_ref_logps = True  # TRL takes the reference that it is given
        try:
            found = super().compute_loss(policy, inputs, return_outputs, num_items_in_batch)
        finally:
            self.precompute_ref_logps = precomputed
        if learns:
            loss = found[0] if return_outputs else found
            (gradient,) = torch.autograd.grad(loss, shift, retain_graph=True)
            b.backward(gradient.to(b) / self.beta)
        logps = torch.stack(self.compute_ref_log_probs(lambda **given: scored[0], inputs))
        self._measure(logps.detach(), reference, b.detach())
        return found

    def _measure(self, policy: Tensor, reference: Tensor, b: Tensor) -> None:
        """Log rewards of the policy alone, where TRL logged them with b, and look at where the first step started."""
        rewards = self.beta * (policy - reference)
        rows = torch.cat([rewards, b.to(rewards)[None]]).T.contiguous()
        chosen, rejected, b = self.accelerator.gather(rows).T
        margins = chosen - rejected
        mode = "train" if self.model.training else "eval"
        alone = {"chosen": chosen, "margins": margins, "accuracies": (margins > 0).float()}
        for name, values in alone.items():
            self._metrics[mode][f"rewards/{name}"][-1] = values.mean().item()
        right = (margins + b > 0).float().mean()
        self._metrics[mode]["votes/accuracy"].append(right.item())
        if self.model.training and self.first_margin is None and self.state.global_step == 0:
            moved = ((policy - reference).norm() / reference.norm()).item()
            in_16_bits = self.args.bf16 or self.args.fp16 or self.model.dtype.itemsize < 4
            floor = FLOOR_IN_16_BITS if in_16_bits else FLOOR
            self.first_margin = StartDifference(margins.mean().item(), moved, floor[0])
            self._tell(filter(None, [self.first_margin.problem]))

    def step_theta(self) -> None:
        """Step theta by its mean gradient over micro-batches and processes, of which the policy's is the mean too."""
        skipped = self.accelerator.optimizer_step_was_skipped
        for parameter in self.bias.parameters():
            mean = parameter.grad.to(self.args.device) / self.current_gradient_accumulation_steps
            parameter.grad = self.accelerator.reduce(mean, reduction="mean").cpu()
            if not (skipped or parameter.grad.isfinite().all()):
                step = self.state.global_step + 1
                raise NotFiniteError(f"step {step}: theta's gradient is not finite. {REMEDY}")
        if self.bias_optimizer is not None:
            if not skipped:
                self.bias_optimizer.step()
            self.bias_optimizer.zero_grad()

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add theta's mean over the annotators to TRL's metrics of training, where they are not a few."""
        if self.model.training:
            logs.update(publishable(theta_metrics(self.bias), self.bias))
        super().log(logs, start_time)

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix="eval"):
        """As TRL's; the loss has b, that of the pool's mean for unknown annotators, and the rewards have none."""
        given = eval_dataset if isinstance(eval_dataset, str) else self._with_inputs(eval_dataset)
        return super().evaluate(given, ignore_keys, metric_key_prefix)

    def _tell(self, findings) -> None:
        for finding in findings:
            self.findings.append(finding)
            level = logging.INFO if finding.severity == "notice" else logging.WARNING
            logger.log(level, "%s", finding)

    def _save_bias(self, folder: Path) -> None:
        margin = self.first_margin and asdict(self.first_margin)
        if self.is_world_process_zero():
            self.bias.save(folder, self._facts | {"first_margin": margin})

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the policy as TRL does, and theta beside the folder, so that no upload of the folder takes it along."""
        super().save_model(output_dir, _internal_call)
        if not _internal_call:
            self._save_bias(beside(output_dir or self.args.output_dir))

    def _save_checkpoint(self, model, trial):
        output = Path(self._get_output_dir(trial))
        folder = beside(output) / f"checkpoint-{self.state.global_step}"
        # before the checkpoint, which is then never without it
        if self.bias_optimizer is not None and self.is_world_process_zero():
            save_privately(adam_tensors(self.bias_optimizer), folder / BIAS_OPTIMIZER_FILE)
        self._save_bias(folder)
        super()._save_checkpoint(model, trial)
        for other in folder.parent.glob("checkpoint-*"):
            if self.is_world_process_zero() and not (output / other.name).exists():
                shutil.rmtree(other)

    def _load_optimizer_and_scheduler(self, checkpoint):
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            self._load_theta(Path(checkpoint))

    def _load_best_model(self):
        super()._load_best_model()
        self._load_theta(Path(str(self.state.best_model_checkpoint)))

    def _load_theta(self, checkpoint: Path) -> None:
        folder = beside(checkpoint.parent) / checkpoint.name
        saved, facts = BiasTerm.load(folder), ("annotators", "attributes", "parts", "gold_annotators")
        if changed := [name for name in facts if getattr(saved, name) != getattr(self.bias, name)]:
            raise ConfigError(
                f"{folder} has other {' and '.join(changed)} than this run; resume with the votes and the bias that "
                "the run began with"
            )
        self.bias.load_state_dict(saved.state_dict())
        if self.bias_optimizer is not None:
            load_adam_tensors(self.bias_optimizer, load_file(folder / BIAS_OPTIMIZER_FILE))


class _ThetaSteps(TrainerCallback):
    """Steps theta after the policy, when it is known whether a gradient scaler skipped the step."""

    def __init__(self, trainer: BiasAdjustedDPOTrainer):
        self._trainer = trainer

    def on_optimizer_step(self, args, state, control, **kwargs):
        """Step theta."""
        self._trainer.step_theta()


def beside(folder: str | os.PathLike) -> Path:
    """Where theta is that belongs to the policies in ``folder``: in a folder of that name and ``-bias``."""
    path = Path(folder).resolve()
    return path.with_name(f"{path.name}-bias")


def _require_understood(args: DPOConfig | None, data, attributes, bias, warm_start: str) -> bool:
    """Whether theta is in log-odds under the losses asked for; a `ConfigError` for what cannot be followed."""
    losses = {*args.loss_type} if args else {"sigmoid"}
    in_log_odds = losses <= {*_OF_THE_MARGIN[:2], "sft"}
    complaints = []
    if losses - {*_OF_THE_MARGIN, "sft"} or losses == {"sft"}:
        named, taken = (", ".join(kinds) for kinds in (sorted(losses), _OF_THE_MARGIN))
        complaints.append(
            f"loss_type {named}: theta is part of a margin, so take a loss of the margin alone ({taken}), with or "
            "without sft"
        )
    if args and args.f_divergence_type != "reverse_kl":
        complaints.append(
            "f_divergence_type: a shift of the reference adds theta under reverse_kl alone"
        )
    if args and args.auto_find_batch_size:
        complaints.append("auto_find_batch_size starts again with a theta that has moved; leave it out")
    if not isinstance(data, Dataset | IterableDataset):
        what = f"train_dataset is a {type(data).__name__}"
        complaints.append(f"{what}; give a Dataset or IterableDataset of the package datasets")
    names = [attribute.name for attribute in attributes]
    if isinstance(data, IterableDataset) and getattr(bias, "attributes", None) != (*names,):
        complaints.append(
            "a stream is not read ahead: give bias a BiasTerm of the attributes and the pseudonyms of those who may "
            f'come, or of everyone: BiasTerm({names}, ["{EVERYONE}"], ["mean"])'
        )
    for name, given in {"bias": bias, "warm_start": warm_start}.items():
        if isinstance(given, str) and given not in CHOICES[name]:
            complaints.append(f'{name} is "{given}"; choose one of {", ".join(CHOICES[name])}')
    if warm_start != "zero" and not in_log_odds:
        complaints.append(f"warm_start {warm_start} needs a loss in log-odds: sigmoid or robust")
    if complaints:
        raise ConfigError("\n".join(complaints))
    return in_log_odds


def _text_alone(cell):
    """A cell of a table; of chat messages whose content has parts, the text, with a mark for each image."""
    return [*map(_joined, cell)] if isinstance(cell, list) else cell


def _joined(message):
    parts = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(parts, list):
        return message
    texts = [part.get("text") or f"<{part.get('type')}>" for part in parts]
    return message | {"content": "".join(texts)}


def _collated(collate, examples: Sequence[Mapping[str, Any]]):
    """A batch as another collator makes it, with `COLUMN` as bits, which nothing rounds to 16 on the way."""
    rows = [dict(example) for example in examples]
    inputs = torch.tensor([row.pop(COLUMN) for row in rows], dtype=torch.float64)
    batch = collate(rows)
    batch[COLUMN] = inputs.view(torch.int64)
    return batch
