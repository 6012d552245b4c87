"""TRL's `DPOTrainer` with the annotators' bias: where ``ref_chosen - b / beta`` is its reference, its u is u + b."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from badpo.data.attributes import Attributes, as_attributes
from badpo.data.files import BIAS_SUFFIX
from badpo.data.judgments import Judgments
from badpo.data.privacy import EVERYONE, keyed_digest, pseudonyms
from badpo.data.problems import (
    ConfigError,
    DataError,
    Problem,
    python_options,
    telling_what_lacks,
)
from badpo.data.vocabulary import columns_named

with telling_what_lacks():
    import torch
    from datasets import Dataset, IterableDataset
    from peft import PeftModel
    from torch.nn.functional import logsigmoid
    from transformers import TrainerCallback
    from trl import DPOConfig, DPOTrainer

from badpo.objective.bias import BiasTerm
from badpo.objective.theta import JudgedVotes
from badpo.training.checkpoints import (
    bias_facts,
    keep_parameter_names,
    load_theta,
    report_full_disk,
    save_optimizer,
    save_theta,
    whole_folder,
)
from badpo.training.config import BADPOConfig, resolve_bias_fit
from badpo.training.encoding import bounded_templates, left_out
from badpo.training.inputs import (
    build_bias,
    log_findings,
    make_theta_rule,
    nothing_fits,
    read_training,
    require_matching_bias,
)
from badpo.training.logprobs import remove_adapter
from badpo.training.metrics import REMEDY, NotFiniteError, publishable, theta_metrics
from badpo.training.model_files import drop_code_names, require_data
from badpo.training.processes import gather_votes
from badpo.training.script_run import (
    find_start_name,
    save_start,
    warn_about_votes,
    write_script_run,
)
from badpo.training.self_test import FLOOR, FLOOR_IN_16_BITS, StartDifference

# Of each row the annotator's number, and of each attribute the difference, chosen minus rejected.
COLUMN = "bias_inputs"
_OF_TRL = ("prompt", "chosen", "rejected")
_NOT_READ = ("image", "images", "tools", "chat_template_kwargs")
# Losses that see the reference in the margin alone, where its shift is b; in the first two theta is in log-odds.
_OF_THE_MARGIN = ("sigmoid", "robust", "hinge", "exo_pair", "discopop")
_IN_LOG_ODDS = {"sigmoid", "robust", "sft"}
_WITHOUT_THETA = "or take trl.DPOTrainer, without theta"
_FIXED = {
    "f_divergence_type": (
        "reverse_kl",
        f"theta shifts the reference under reverse_kl alone; set reverse_kl, {_WITHOUT_THETA}",
    ),
    "auto_find_batch_size": (
        False,
        "it starts again with a theta that has moved; set per_device_train_batch_size",
    ),
    "sync_ref_model": (
        False,
        f"theta is measured from a fixed reference; set False, {_WITHOUT_THETA}",
    ),
}


class BiasAdjustedDPOTrainer(DPOTrainer):
    r"""TRL's trainer with BA-DPO's loss: vision-language models, QLoRA, Liger, streams, whatever TRL trains.

    Rows are votes: what TRL takes, and a column that says whose vote a row is. Theta follows the votes by
    ``bias_fit`` and stays outside the model: in ``<output_dir>-bias``, under pseudonyms. The reference's rate of the
    attribute anchors both.

    Parameters
    ----------
    model, ref_model, args, data_collator, train_dataset, eval_dataset, *others, **options
        As in TRL. Losses that are not of the margin alone are refused, such as ``ipo``.
    attributes : Attribute, or text such as "length:ratio=1.5", or several
    columns : mapping
        Our column name -> the data set's, as in ``{"annotator": "worker"}``.
    bias : str, BiasTerm or None
        A variant, or a term, as a stream needs; None is ``shared_mean``, or ``pooled`` where nobody is named. The
        attribute is a `BiasTerm`, beside `judgments` (None for a stream) and `findings`.
    bias_fit, bias_learning_rate, warm_start, gold_annotators
        As in `BADPOConfig`; with a loss other than ``sigmoid`` and ``robust`` the fit is ``adam``. A stream is not read
        ahead: with ``anchored``, theta starts at zero and is fitted to the latest votes.

    Examples
    --------
    >>> BiasAdjustedDPOTrainer("model", train_dataset=[{"chosen": "yes", "rejected": "no"}])
    Traceback (most recent call last):
    badpo.data.problems.ConfigError: train_dataset is a list; give a Dataset or IterableDataset
    """

    _tag_names = [*DPOTrainer._tag_names, "ba-dpo"]
    data_collator: Any
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
        bias_fit: str | None = None,
        bias_learning_rate: float | None = None,
        warm_start: str = "zero",
        gold_annotators: Sequence[str] = (),
        **options,
    ):
        self._columns, self.attributes = columns, as_attributes(attributes)
        if hasattr(gold_annotators, "tolist"):
            gold_annotators = gold_annotators.tolist()
        losses = {*args.loss_type} if isinstance(args, DPOConfig) else {"sigmoid"}
        given: Any = bias if isinstance(bias, BiasTerm) else None
        asked: dict[str, Any] = dict(bias=None if given else bias, bias_learning_rate=bias_learning_rate)
        asked |= dict(bias_fit=bias_fit, warm_start=warm_start, gold_annotators=gold_annotators)
        if complaints := [*_complaints(args, losses, train_dataset, self.attributes, given, asked)]:
            raise ConfigError("\n".join(complaints))
        facts: dict[str, Any] = {"theta_in_log_odds": losses <= _IN_LOG_ODDS}
        facts["attributes"] = [dict(attribute.config) for attribute in self.attributes]
        self.findings: list[Problem] = []
        self.first_margin: StartDifference | None = None
        self.judgments: Judgments | None = None
        self.bias = given
        self._held_out = eval_dataset
        self._start = find_start_name(model, ref_model, options.get("peft_config"))
        if isinstance(train_dataset, Dataset):
            votes, gold = self._read(train_dataset), pseudonyms([*map(str, gold_annotators)])
            votes, variant, noticed = read_training(votes, (), given.variant if given else bias)
            for i, each in enumerate(noticed):
                if {*each.fix} - {"columns"}:
                    remedy = f"{each.remedy}: {self._rows_that(each.fix)}"
                    noticed[i] = replace(each, remedy=remedy, fix={})
            log_findings(self.findings, noticed)
            if given:
                require_matching_bias(given, votes, gold)
            self._starts = None if given else (variant, warm_start, gold)
            facts |= {"variant": variant} | self._take_in(votes)
            self.attributes = votes.attributes
        self._facts = json.loads(json.dumps(facts))  # as a checkpoint has them
        whose = keyed_digest(f"{self.bias.annotators} {facts['attributes']}".encode())
        self._column = f"{COLUMN}_{whose.hexdigest()[:12]}"
        data = self._with_inputs(train_dataset, self.judgments), self._with_inputs(eval_dataset)
        first = () if self.judgments or self.bias.annotators == (EVERYONE,) else data[0].take(64)
        if max((row[self._column][0] for row in first), default=0) < 0:
            told = "the stream's first 64 votes are by nobody of the bias term"
            raise ConfigError(f"{told}; name pseudonyms in the term, and shuffle the stream")
        revision = (getattr(args, "model_init_kwargs", None) or {}).get("revision", "main")
        for name in (model, ref_model):
            if isinstance(name, str):
                require_data(name, revision)
        self._unprepared = self.judgments  # until TRL prepares their rows, before those of any other set
        super().__init__(model, ref_model, args, data_collator, *data, *others, **options)
        trusted = (getattr(args, "model_init_kwargs", None) or {}).get("trust_remote_code")
        if isinstance(model, str) and not trusted:
            for loaded in (remove_adapter(self.model), self.processing_class):
                drop_code_names(loaded, model)
        if bias_fit is None and not losses <= _IN_LOG_ODDS:
            bias_fit = "adam"  # a fit of these losses is no estimate of a bias
        fit = resolve_bias_fit(bias_fit, bias_learning_rate, warm_start)
        self.theta_rule = make_theta_rule(self.bias.to("cpu"), self._vote_losses, self.judgments, *fit)
        self._judged: list[JudgedVotes] = []
        self.data_collator = partial(_collated, self.data_collator, self._column)
        self._set_signature_columns_if_needed()
        self._signature_columns.append(self._column)
        self.add_callback(_ThetaSteps(self))

    def _take_in(self, judgments: Judgments) -> dict[str, Any]:
        """Have `judgments`, and where theta starts, be of these votes; return what the run's facts say of them."""
        self.judgments = judgments
        if self._starts:
            self.bias = build_bias(judgments, *self._starts)
        return bias_facts(judgments, self.bias)

    def _prepare_dataset(self, dataset, processing_class, args, dataset_name):
        """As TRL's, which drops rows whose prompt fills ``max_length``: they are told, and no part of `judgments`."""
        given, place = (processing_class, args, dataset_name), f"{self._column}_row"
        votes, self._unprepared = self._unprepared, None
        if not isinstance(dataset, Dataset):
            return super()._prepare_dataset(dataset, *given)
        n_rows = len(dataset)
        with bounded_templates():
            dataset = super()._prepare_dataset(dataset.add_column(place, [*range(n_rows)]), *given)
        kept = np.isin(np.arange(n_rows), dataset[place][:])
        if not kept.any():
            raise DataError([nothing_fits(args.max_length)])
        if not kept.all():
            what = f"{(n := n_rows - len(dataset)):,} of {n_rows:,} rows ({dataset_name})"
            told = left_out(what, f"first: row {kept.argmin() + 1:,}", n, args.max_length)
            log_findings(self.findings, [told])
            if votes:
                self._facts |= json.loads(json.dumps(self._take_in(votes.take(kept))))
        return dataset.remove_columns(place)

    def _read(self, data) -> Judgments:
        """The votes of a data set, or of some rows of a stream: each row is one."""
        table = {
            name: [[*map(_text_alone, x)] if isinstance(x, list) else x for x in data[name]]
            for name in getattr(data, "column_names", data)
            if name not in _NOT_READ
        }
        told = columns_named([*table], _OF_TRL) | dict(self._columns or {})
        renamed = {told[ours]: ours for ours in _OF_TRL if told.get(ours, ours) not in (None, ours)}
        if renamed or not {"chosen", "rejected"} <= {*table}:
            remedy = f"dataset.rename_columns({renamed})"
            remedy += ', or columns={"prompt": None}' * ("prompt" in renamed.values())
            remedy = remedy if renamed else "BADPOTrainer takes other layouts"
            raise ConfigError(f"TRL reads {', '.join(_OF_TRL)} under these names; {remedy}")
        try:
            read = Judgments.read(pd.DataFrame(table), columns=self._columns, attributes=self.attributes)
        except DataError as error:
            error.call = self._rows_that
            error.fix = error.fix if isinstance(data, Dataset) else {}
            raise
        if (read.votes["weight"] != 1).any():
            raise ConfigError('TRL counts every vote once: columns={"weight": None}, or BADPOTrainer')
        return read

    def _rows_that(self, fix: Mapping[str, Any]) -> str:
        """What a script writes where options of `Judgments.read` mend its table; of those the trainer has columns."""
        named = {**(self._columns or {}), **fix.get("columns", {})}
        options = python_options({**fix, **({"columns": named} if named else {})})
        if fix.keys() <= {"columns"}:
            return f"BiasAdjustedDPOTrainer(..., {options})"
        return f"train_dataset = dataset.select(Judgments.read(dataset, {options}).votes['row'])"

    def _inputs(self, judgments: Judgments) -> list[list[float]]:
        """What `COLUMN` holds of each row; an annotator whom the bias does not know has the number -1."""
        votes, known = judgments.votes, pd.Index(self.bias.annotators)
        numbers = known.get_indexer(judgments.annotators["pseudonym"])[votes["annotator"]]
        return np.column_stack([numbers, votes["sign"].to_numpy()[:, None] * judgments.delta]).tolist()

    def _with_inputs(self, data, judgments: Judgments | None = None):
        """A data set, or several by name, with `COLUMN`."""
        if isinstance(data, Mapping):
            return {name: self._with_inputs(part) for name, part in data.items()}
        if data is None or isinstance(data, str) or self._column in next(iter(data), {}):
            return data
        if isinstance(data, Dataset):
            return data.add_column(self._column, self._inputs(judgments or self._read(data)))
        if not isinstance(data, IterableDataset):
            raise ConfigError(f"a data set is a {type(data).__name__}; give a Dataset or a stream")
        return data.map(
            lambda rows: {self._column: self._inputs(self._read(rows))},
            batched=True,
            batch_size=64,
        )

    def compute_ref_log_probs(self, model, inputs):
        """As TRL's, of inputs with or without `COLUMN`."""
        return super().compute_ref_log_probs(model, {k: v for k, v in inputs.items() if k != COLUMN})

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """TRL's loss with the reference shifted; theta's gradient is taken apart, whatever scales the policy's."""
        inputs = dict(inputs)
        rows = inputs.pop(COLUMN).cpu().view(torch.float64)
        b = self.bias(rows[:, 0].long(), rows[:, 1:])
        names, precomputed = ("ref_chosen_logps", "ref_rejected_logps"), self.precompute_ref_logps
        if not precomputed:
            found = self.compute_ref_log_probs(self.ref_model or self.model, inputs)
            inputs |= zip(names, found, strict=True)
        reference = torch.stack([inputs[name] for name in names])
        shift = (b.detach() / self.beta).to(reference).requires_grad_(b.requires_grad)
        inputs["ref_chosen_logps"] = reference[0] - shift
        scored: list[Any] = []

        def policy(**given):
            scored.append(model(**given))
            return scored[-1]

        self.precompute_ref_logps = True  # TRL takes the reference that it is given
        try:
            found = super().compute_loss(policy, inputs, return_outputs, num_items_in_batch)
        finally:
            self.precompute_ref_logps = precomputed
        if b.requires_grad:
            loss = found[0] if return_outputs else found
            (gradient,) = torch.autograd.grad(loss, shift, retain_graph=True)
            b.backward(gradient.to(b) / self.beta)
        logps = torch.stack(self.compute_ref_log_probs(lambda **given: scored[0], inputs))
        self._measure(logps.detach(), reference, b.detach())
        if model.training and self.theta_rule is not None:
            chosen, rejected = self.beta * (logps.detach() - reference).double()
            ones = torch.ones_like(chosen)
            votes = rows[:, 0], ones, rows[:, 1:], ones, chosen - rejected
            self._judged.append(JudgedVotes.on_processor(*votes))
        return found

    def _vote_losses(self, margins, bias_logits, sign):
        """What each vote costs by the first loss that is in log-odds, its label smoothing included."""
        logits, smoothing = sign * (margins + bias_logits), self.args.label_smoothing
        is_robust = next((name for name in self.loss_types if name in _IN_LOG_ODDS), "") == "robust"
        flipped = -logsigmoid(-logits) * (-smoothing if is_robust else smoothing)
        return flipped - logsigmoid(logits) * (1 - smoothing)

    def _measure(self, policy: torch.Tensor, reference: torch.Tensor, b: torch.Tensor) -> None:
        """Log rewards of the policy alone, where TRL logged them with b, and look at where the first step started."""
        rewards = self.beta * (policy - reference)
        rows = torch.cat([rewards, b.to(rewards)[None]]).T.contiguous()
        # columns of their own, whose means round as those of TRL
        chosen, rejected, b = self.accelerator.gather(rows).T.contiguous()
        margins = chosen - rejected
        logged = self._metrics["train" if self.model.training else "eval"]
        logged["votes/accuracy"].append((margins + b > 0).float().mean().item())
        alone = {"chosen": chosen, "margins": margins, "accuracies": (margins > 0).float()}
        for name, values in alone.items():
            logged[f"rewards/{name}"][-1] = values.mean().item()
        if self.model.training and self.first_margin is None:
            if self.state.global_step:
                told = "this version of transformers goes on from a checkpoint without reading its theta"
                raise RuntimeError(f"{told}; install the versions in constraints.txt")
            moved = ((policy - reference).norm() / reference.norm()).item()
            in_16_bits = self.args.bf16 or self.args.fp16 or self.model.dtype.itemsize < 4
            floor = FLOOR_IN_16_BITS if in_16_bits else FLOOR
            self.first_margin = StartDifference(margins.mean().item(), moved, floor[0])
            log_findings(self.findings, filter(None, [self.first_margin.problem]))

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As TRL's, with theta's mean over the annotators in training, where they are not a few."""
        if self.model.training:
            logs.update(publishable(theta_metrics(self.bias), self.bias))
        super().log(logs, start_time)

    def train(self, *args, **kwargs):
        """As TRL's, with chat templates that end: those of a stream, and of rows with images, are rendered in steps."""
        # a folder of its own: beside it lies theta of whatever folder the script saves its policy to
        folder = beside(self.args.output_dir, self.args.output_dir) / "run"
        is_kept = self._is_kept_for_evaluation()
        if self.judgments is not None:
            warn_about_votes(self.judgments)
        if is_kept and self._start is None and self.is_world_process_zero():
            self._start = save_start(folder, self.ref_model or self.model, self.processing_class)
        with bounded_templates():
            result = super().train(*args, **kwargs)
        if is_kept:
            self._keep_for_evaluation(folder)
        return result

    def _is_kept_for_evaluation(self) -> bool:
        """Whether `badpo evaluate` can measure the run: a text model in whole weights, on votes that were read."""
        is_divided = self.is_fsdp_enabled or self.is_deepspeed_enabled
        is_quantized = getattr(self.model, "is_quantized", False)
        is_of_text = self.judgments is not None and not self._is_vision_dataset
        return is_of_text and self._start != "" and not (is_divided or is_quantized)

    def _keep_for_evaluation(self, folder: Path) -> None:
        """Write the policy, theta and what `badpo evaluate` needs besides."""
        if self.judgments is None or not self.is_world_process_zero():
            return
        save_theta(self, folder, self._facts)
        with whole_folder(folder / "model") as unfinished:
            self.accelerator.unwrap_model(self.model).save_pretrained(unfinished)
            self.processing_class.save_pretrained(unfinished)
        given = self._held_out
        given = next(iter(given.values()), None) if isinstance(given, Mapping) else given
        held_out = self._read(given) if isinstance(given, Dataset) else None
        write_script_run(folder, str(self._start), self.judgments, held_out, self.bias, self.args)

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix="eval"):
        """As TRL's; the loss has b, that of the pool's mean for unknown annotators, and the rewards have none."""
        with bounded_templates():
            return super().evaluate(self._with_inputs(eval_dataset), ignore_keys, metric_key_prefix)

    def predict(self, test_dataset, ignore_keys=None, metric_key_prefix="test"):
        """As TRL's, also of texts that no trainer has prepared."""
        if not isinstance(test_dataset, Dataset | IterableDataset):
            told = f"predict takes one Dataset or stream, not {type(test_dataset).__name__}"
            raise ConfigError(f"{told}; of several call it for each, or evaluate")
        data = self._with_inputs(test_dataset)
        if not self._is_vision_dataset:
            data = self._prepare_dataset(data, self.processing_class, self.args, metric_key_prefix)
        if self.precompute_ref_logps and "ref_chosen_logps" not in next(iter(data), {}):
            has_reference = self.ref_model is not None or isinstance(self.model, PeftModel)
            if self.state.global_step and not has_reference:
                told = "precompute_ref_log_probs: the reference, where training started, is gone"
                raise ConfigError(f"{told}; give ref_model, or predict before training")
            data = self._precompute_ref_logps(
                data, metric_key_prefix, self.args.per_device_eval_batch_size
            )
        with bounded_templates():
            return super().predict(data, ignore_keys, metric_key_prefix)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the policy as TRL does, and theta beside ``args.output_dir``, where no upload takes it along."""
        run = self.args.output_dir
        with report_full_disk(Path(output_dir or run)):
            super().save_model(output_dir, _internal_call)
        if self.is_world_process_zero() and not _internal_call:
            save_theta(self, beside(output_dir or run, run), self._facts)

    def _save_checkpoint(self, model, trial):
        output = Path(self._get_output_dir(trial))
        folder = beside(output / f"checkpoint-{self.state.global_step}", self.args.output_dir)
        is_writer = self.is_world_process_zero()
        with report_full_disk(output):
            if is_writer:  # before the checkpoint, which is then never without it
                save_optimizer(self, folder)
                save_theta(self, folder, self._facts)
            with keep_parameter_names(self.model):
                super()._save_checkpoint(model, trial)
        for other in folder.parent.glob("checkpoint-*") if is_writer else ():
            # a run of its own may be called as this folder is: its checkpoints stay
            if not ((other / "trainer_state.json").exists() or (output / other.name).exists()):
                shutil.rmtree(other)

    def _load_optimizer_and_scheduler(self, checkpoint):
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            self._load_theta(Path(checkpoint))

    def _load_best_model(self):
        super()._load_best_model()
        self._load_theta(Path(str(self.state.best_model_checkpoint)))

    def _load_theta(self, checkpoint: Path) -> None:
        places = [beside(checkpoint, run) for run in (self.args.output_dir, checkpoint.parent)]
        folder = next(filter(Path.exists, places), places[-1])
        if not folder.exists():
            raise ConfigError(f"{folder} is not there, which has theta of {checkpoint}; bring it back")
        saved = BiasTerm.load(folder)
        names = [name for name, told in self._facts.items() if saved.extra.get(name) != told]
        of_term = ("annotators", "parts", "gold_annotators")
        names += [name for name in of_term if getattr(saved, name) != getattr(self.bias, name)]
        if told := " and ".join(names):
            raise ConfigError(f"{folder} has other {told} than this run; resume with the same ones")
        load_theta(self, saved, folder)


class _ThetaSteps(TrainerCallback):
    """Steps theta after the policy, when it is known whether a gradient scaler skipped the step."""

    def __init__(self, trainer: BiasAdjustedDPOTrainer):
        self._trainer = trainer

    def on_optimizer_step(self, args, state, control, **kwargs):
        """By the mean gradient over micro-batches and processes, of which the policy's is the mean too."""
        run, rule = self._trainer, self._trainer.theta_rule
        if rule is None:
            return
        skipped = run.accelerator.optimizer_step_was_skipped
        judged, run._judged = run._judged, []
        for parameter in run.bias.parameters() if rule.takes_gradient else ():
            mean = parameter.grad.to(args.device) / run.current_gradient_accumulation_steps
            parameter.grad = run.accelerator.reduce(mean, reduction="mean").cpu()
            if not (skipped or parameter.grad.isfinite().all()):
                raise NotFiniteError(f"theta's gradient is not finite. {REMEDY}")
        votes = gather_votes(run.accelerator, JudgedVotes.join(judged))
        if not votes.margin.isfinite().all() and not skipped:
            raise NotFiniteError(f"a margin is not finite. {REMEDY}")
        rule.step(None if skipped else votes)


def beside(folder: str | Path, run: str | Path) -> Path:
    """Where theta is that belongs to the policy in ``folder``: beside the run's folder, or its own outside of that.

    In a folder of that name and ``-bias`` it lies where the policy lies in the run's.
    """
    folder, top = Path(folder).resolve(), Path(run).resolve()
    top = top if folder.is_relative_to(top) else folder
    return Path(f"{top}{BIAS_SUFFIX}") / folder.relative_to(top)


def _complaints(args, losses, train_dataset, attributes, term, asked) -> Iterator[str]:
    """What is asked for and cannot be followed, each in a sentence."""
    if args is not None and not isinstance(args, DPOConfig):
        yield f"args is a {type(args).__name__}; give a trl.DPOConfig"
    if losses - {*_OF_THE_MARGIN, "sft"} or losses == {"sft"}:
        named, taken = ", ".join(sorted(losses)), ", ".join(_OF_THE_MARGIN)
        yield f"loss_type {named}: theta is part of a margin; take {taken}, with or without sft"
    for name, (usual, reason) in _FIXED.items():
        if (value := getattr(args, name, usual)) != usual:
            yield f"{name}: {value} is refused: {reason}"
    if not isinstance(train_dataset, Dataset | IterableDataset):
        yield f"train_dataset is a {type(train_dataset).__name__}; give a Dataset or IterableDataset"
    names = [attribute.name for attribute in attributes]
    is_ready = getattr(term, "attributes", None) == (*names,) and not asked["gold_annotators"]
    if isinstance(train_dataset, IterableDataset) and not is_ready:
        declared = "" if names else ', with attributes=["length:ratio=1.5"]'
        one = f'BiasTerm({names or ["length"]}, ["{EVERYONE}"], ["mean"]){declared}'
        yield f"a stream is not read ahead: give bias a term of those who may come, gold by its mask, or {one}"
    if asked["warm_start"] != "zero" and (term or not losses <= _IN_LOG_ODDS):
        yield f"warm_start {asked['warm_start']} needs a loss in log-odds, sigmoid or robust, and no BiasTerm"
    yield from BADPOConfig.find_errors(**asked)


def _text_alone(message):
    """A chat message; where the content is in parts, with those of text alone."""
    parts = message.get("content") if isinstance(message, Mapping) else None
    if isinstance(parts, list):
        return message | {"content": [part for part in parts if part["type"] == "text"]}
    return message


def _collated(collate, column: str, examples: Sequence[Mapping[str, Any]]):
    """A batch as another collator makes it, with `COLUMN` as bits, which nothing rounds to 16 on the way."""
    rows = [dict(example) for example in examples]
    inputs = torch.tensor([row.pop(column) for row in rows], dtype=torch.float64)
    return {**collate(rows), COLUMN: inputs.view(torch.int64)}
