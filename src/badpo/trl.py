"""TRL's `DPOTrainer` with a bias term for the annotators.

Subtracting ``b / beta`` from the reference log-probability of the chosen response adds an annotator's bias b to the
margin u. The trainer therefore shifts the reference log-probabilities and leaves TRL's loss unchanged.
"""

# mypy does not analyze transformers and trl, so classes from these packages have no types
# mypy: disallow-subclassing-any=False

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from badpo.data.attributes import Attribute, Attributes, as_attributes
from badpo.data.files import BIAS_SUFFIX
from badpo.data.judgments import Judgments
from badpo.data.privacy import EVERYONE, keyed_digest, pseudonyms
from badpo.data.problems import (
    ConfigError,
    Correction,
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
    from torch import Tensor
    from torch.nn.functional import logsigmoid
    from transformers import (
        PreTrainedModel,
        PreTrainedTokenizerBase,
        TrainerCallback,
        TrainerControl,
        TrainerState,
        TrainingArguments,
    )
    from transformers.trainer_utils import PredictionOutput, TrainOutput
    from trl import DPOConfig, DPOTrainer

from badpo.objective.bias import BiasTerm
from badpo.objective.theta import JudgedVotes
from badpo.training.checkpoints import (
    Facts,
    collect_bias_facts,
    keep_parameter_names,
    load_theta,
    report_full_disk,
    save_optimizer,
    save_theta,
    whole_folder,
)
from badpo.training.config import BADPOConfig, resolve_bias_fit
from badpo.training.encoding import limit_templates, report_long_prompts
from badpo.training.inputs import (
    Columns,
    build_bias,
    log_findings,
    make_theta_rule,
    read_training,
    report_no_fit,
    require_matching_bias,
)
from badpo.training.logprobs import remove_adapter
from badpo.training.metrics import REMEDY, NotFiniteError, select_publishable, theta_metrics
from badpo.training.model_files import drop_code_names, require_data
from badpo.training.processes import gather_votes
from badpo.training.script_run import (
    find_start_name,
    save_start,
    warn_about_votes,
    write_script_run,
)
from badpo.training.self_test import FLOOR, FLOOR_IN_16_BITS, StartDifference

# Data for TRL: one data set or a mapping from names to data sets.
DataSets: TypeAlias = Dataset | IterableDataset | Mapping[str, Dataset | IterableDataset] | str | None
# Tensors of a micro-batch by name.
Batch = dict[str, Tensor]
# Loss of a micro-batch, with the model's outputs if requested.
Loss: TypeAlias = Tensor | tuple[Tensor, Any]

# The trainer adds this column with the annotator's index and each attribute difference (chosen minus rejected).
COLUMN = "bias_inputs"
# The trainer reads this many rows from a stream at a time.
ROWS_AT_ONCE = 64
_TRL_COLUMNS = ("prompt", "chosen", "rejected")
_UNUSED_COLUMNS = ("image", "images", "tools", "chat_template_kwargs")
# Loss types that depend on the reference only through the margin, so that a shifted reference acts like a bias.
_MARGIN_LOSSES = ("sigmoid", "robust", "hinge", "exo_pair", "discopop")
# Loss types for which theta is measured in log-odds; the loss type sft does not depend on theta.
_LOG_ODDS_LOSSES = {"sigmoid", "robust", "sft"}
_WITHOUT_THETA = "or use trl.DPOTrainer, which has no theta"
# TRL settings of which the trainer supports only one value: the value and the reason.
_FIXED_SETTINGS = {
    "f_divergence_type": (
        "reverse_kl",
        f"theta acts as a shift of the reference only with reverse_kl; set reverse_kl, {_WITHOUT_THETA}",
    ),
    "auto_find_batch_size": (
        False,
        "auto_find_batch_size restarts training but does not reset theta; set per_device_train_batch_size",
    ),
    "sync_ref_model": (
        False,
        f"theta is relative to a fixed reference; set sync_ref_model to False, {_WITHOUT_THETA}",
    ),
}


@dataclass(frozen=True)
class _BiasSettings:
    """Bias arguments of `BiasAdjustedDPOTrainer`; they mean the same as in `BADPOConfig`."""

    bias: str | BiasTerm | None
    fit: str | None
    learning_rate: float | None
    warm_start: str
    gold_annotators: Sequence[str]

    @property
    def term(self) -> BiasTerm | None:
        """Bias term that the caller passed."""
        return self.bias if isinstance(self.bias, BiasTerm) else None

    @property
    def variant(self) -> str | None:
        """Variant of the bias term; None means the default variant."""
        return self.bias.variant if isinstance(self.bias, BiasTerm) else self.bias


class BiasAdjustedDPOTrainer(DPOTrainer):
    r"""TRL's `DPOTrainer` with BA-DPO's loss; it supports vision-language models, QLoRA, Liger kernels and streams.

    Each row of a data set is a vote in TRL's layout, and one column identifies the annotator. The rule ``bias_fit``
    updates theta. The trainer saves theta with pseudonyms in ``<output_dir>-bias``, outside the model's folder.

    Parameters
    ----------
    model, ref_model, args, data_collator, train_dataset, eval_dataset, *others, **options
        As in TRL. The trainer refuses losses that depend on more than the margin, such as ``ipo``.
    attributes : Attribute, or text such as "length:ratio=1.5", or several of them
    columns : mapping
        Maps column names of badpo to those of the data set, as in ``{"annotator": "worker"}``.
    bias : str, BiasTerm or None
        Variant of the bias term, or a bias term; a stream requires a bias term. None means ``shared_mean``, or
        ``pooled`` if the votes name no annotators.
    bias_fit, bias_learning_rate, warm_start, gold_annotators
        As in `BADPOConfig`. For losses other than ``sigmoid`` and ``robust``, ``bias_fit`` defaults to ``adam``. A
        stream is not read in advance: with ``anchored``, theta starts at zero and is fitted to the latest votes.

    Attributes
    ----------
    bias : BiasTerm
    judgments : Judgments or None
        Training votes; None for a stream.
    findings : list of Problem
        Findings about the votes and the start of the run.
    first_margin : StartDifference or None
        Difference between policy and reference at the first step; None before the first step.

    Examples
    --------
    >>> BiasAdjustedDPOTrainer("model", train_dataset=[{"chosen": "yes", "rejected": "no"}])
    Traceback (most recent call last):
    badpo.data.problems.ConfigError: train_dataset is a list; pass a Dataset or an IterableDataset
    """

    _tag_names = [*DPOTrainer._tag_names, "ba-dpo"]
    bias: BiasTerm
    data_collator: Callable[[list[Mapping[str, object]]], Batch]
    precompute_ref_logps: bool

    def __init__(
        self,
        model: str | PreTrainedModel,
        ref_model: str | PreTrainedModel | None = None,
        args: DPOConfig | None = None,
        data_collator: Callable[[list[Mapping[str, object]]], Batch] | None = None,
        train_dataset: Dataset | IterableDataset | None = None,
        eval_dataset: DataSets = None,
        *others: object,
        attributes: Attributes = (),
        columns: Columns = None,
        bias: str | BiasTerm | None = None,
        bias_fit: str | None = None,
        bias_learning_rate: float | None = None,
        warm_start: str = "zero",
        gold_annotators: Sequence[str] = (),
        **options: object,
    ):
        self._columns, self.attributes = columns, as_attributes(attributes)
        if hasattr(gold_annotators, "tolist"):
            gold_annotators = gold_annotators.tolist()
        losses = {*args.loss_type} if isinstance(args, DPOConfig) else {"sigmoid"}
        settings = _BiasSettings(bias, bias_fit, bias_learning_rate, warm_start, gold_annotators)
        if problems := [*_find_problems(args, losses, train_dataset, self.attributes, settings)]:
            raise ConfigError("\n".join(problems))
        self._facts: Facts = {}
        self.findings: list[Problem] = []
        self.first_margin: StartDifference | None = None
        self.judgments: Judgments | None = None
        # makes the bias term from the votes; None if the caller passed a bias term
        self._make_bias: Callable[[Judgments], BiasTerm] | None = None
        if settings.term is not None:
            self.bias = settings.term
        self._held_out = eval_dataset
        self._start_name = find_start_name(model, ref_model, options.get("peft_config"))
        self._add_facts(
            theta_in_log_odds=losses <= _LOG_ODDS_LOSSES,
            attributes=[dict(attribute.config) for attribute in self.attributes],
        )
        if isinstance(train_dataset, Dataset):
            self._read_training(train_dataset, settings)
        term = keyed_digest(f"{self.bias.annotators} {self._facts['attributes']}".encode())
        self._column = f"{COLUMN}_{term.hexdigest()[:12]}"
        train_rows = self._add_column(train_dataset, self.judgments)
        evaluation_rows = self._add_inputs(eval_dataset)
        if self.judgments is None and self.bias.annotators != (EVERYONE,):
            first_rows = train_rows.take(ROWS_AT_ONCE)
            if max((row[self._column][0] for row in first_rows), default=0) < 0:
                raise ConfigError(
                    f"the bias term has none of the annotators of the stream's first {ROWS_AT_ONCE} votes; name the "
                    "pseudonyms of the annotators in the bias term, and shuffle the stream"
                )
        model_options = getattr(args, "model_init_kwargs", None) or {}
        for name in (model, ref_model):
            if isinstance(name, str):
                require_data(name, model_options.get("revision", "main"))
        # `_unprepared` holds the votes of the data set that TRL prepares first, which is the training set
        self._unprepared = self.judgments
        super().__init__(
            model, ref_model, args, data_collator, train_rows, evaluation_rows, *others, **options
        )
        if isinstance(model, str) and not model_options.get("trust_remote_code"):
            for loaded in (remove_adapter(self.model), self.processing_class):
                drop_code_names(loaded, model)
        if bias_fit is None and not losses <= _LOG_ODDS_LOSSES:
            bias_fit = "adam"  # for losses not in _LOG_ODDS_LOSSES, an anchored fit estimates no bias
        fit, learning_rate = resolve_bias_fit(bias_fit, bias_learning_rate, warm_start)
        self.theta_rule = make_theta_rule(
            self.bias.to("cpu"), self._vote_losses, self.judgments, fit, learning_rate
        )
        self._step_votes: list[JudgedVotes] = []
        self.data_collator = partial(_collate_with_inputs, self.data_collator, self._column)
        self._set_signature_columns_if_needed()
        self._signature_columns.append(self._column)
        self.add_callback(_ThetaCallback(self))

    # -- data --------------------------------------------------------------------------------------------------------

    def _read_training(self, data: Dataset, settings: _BiasSettings) -> None:
        """Read the training votes, and make the bias term if the caller passed none."""
        training = read_training(self._read_votes(data), (), settings.variant)
        gold = pseudonyms([*map(str, settings.gold_annotators)])
        log_findings(self.findings, map(self._complete_remedy, training.findings))
        if settings.term is None:
            self._make_bias = partial(
                build_bias,
                variant=training.variant,
                warm_start=settings.warm_start,
                gold_named=gold,
            )
        else:
            require_matching_bias(settings.term, training.judgments, gold)
        self._add_facts(variant=training.variant)
        self._use_judgments(training.judgments)
        self.attributes = training.judgments.attributes

    def _complete_remedy(self, finding: Problem) -> Problem:
        """If no argument of the trainer solves the problem, extend the remedy by code that corrects the data set."""
        if finding.fix.keys() <= {"columns"}:
            return finding
        return replace(
            finding, remedy=f"{finding.remedy}: {self._write_correction(finding.fix)}", fix={}
        )

    def _use_judgments(self, judgments: Judgments) -> None:
        """Set the training votes, build the bias term, and record facts about both for checkpoints."""
        self.judgments = judgments
        if self._make_bias is not None:
            self.bias = self._make_bias(judgments)
        self._add_facts(**collect_bias_facts(judgments, self.bias))

    def _add_facts(self, **facts: object) -> None:
        """Convert facts about the run to JSON types, and record them for checkpoints."""
        self._facts |= json.loads(json.dumps(facts))

    def _prepare_dataset(
        self,
        dataset: Dataset | IterableDataset,
        processing_class: PreTrainedTokenizerBase,
        args: DPOConfig,
        dataset_name: str,
    ) -> Dataset | IterableDataset:
        """Prepare a data set as TRL does, and report (W140) rows that TRL drops because their prompts are too long.

        Rows that TRL drops from the training set are also removed from `judgments`.
        """
        judgments, self._unprepared = self._unprepared, None
        if not isinstance(dataset, Dataset):
            return super()._prepare_dataset(dataset, processing_class, args, dataset_name)
        n_rows, row_column = len(dataset), f"{self._column}_row"
        with limit_templates():
            dataset = super()._prepare_dataset(
                dataset.add_column(row_column, [*range(n_rows)]), processing_class, args, dataset_name
            )
        is_prepared = np.isin(np.arange(n_rows), dataset[row_column][:])
        if not is_prepared.any():
            raise DataError([report_no_fit(args.max_length)])
        if not is_prepared.all():
            n_dropped = n_rows - len(dataset)
            subject = f"{n_dropped:,} of {n_rows:,} rows ({dataset_name})"
            first = f"first: row {is_prepared.argmin() + 1:,}"
            log_findings(
                self.findings, [report_long_prompts(subject, first, n_dropped, args.max_length)]
            )
            if judgments is not None:
                self._use_judgments(judgments.take(is_prepared))
        return dataset.remove_columns(row_column)

    def _read_votes(self, data: Dataset | Mapping[str, Sequence[object]]) -> Judgments:
        """Read the votes of a data set or of a batch from a stream; each row is a vote."""
        table = {
            name: [
                [*map(_remove_images, cell)] if isinstance(cell, list) else cell for cell in data[name]
            ]
            for name in getattr(data, "column_names", data)
            if name not in _UNUSED_COLUMNS
        }
        names = columns_named([*table], _TRL_COLUMNS) | dict(self._columns or {})
        renamed = {
            names[name]: name
            for name in _TRL_COLUMNS
            if names.get(name) is not None and names[name] != name
        }
        if renamed or not {"chosen", "rejected"} <= {*table}:
            remedy = "BADPOTrainer reads other layouts"
            if renamed:
                remedy = f"write dataset.rename_columns({renamed})"
                if "prompt" in renamed.values():
                    remedy += ', or columns={"prompt": None}'
            raise ConfigError(
                f"TRL requires the column names {', '.join(_TRL_COLUMNS)}; the data set has other names. {remedy}"
            )
        try:
            judgments = Judgments.read(
                pd.DataFrame(table), columns=self._columns, attributes=self.attributes
            )
        except DataError as error:
            error.call = self._write_correction
            error.fix = error.fix if isinstance(data, Dataset) else {}
            raise
        if (judgments.votes["weight"] != 1).any():
            raise ConfigError(
                "the column of weights cannot be used, because TRL counts each vote once. Write "
                'columns={"weight": None}, or use BADPOTrainer'
            )
        return judgments

    def _write_correction(self, fix: Correction) -> str:
        """Return code that applies options of `Judgments.read` to a data set; the trainer accepts only ``columns``."""
        columns = {**(self._columns or {}), **fix.get("columns", {})}
        options = python_options({**fix, "columns": columns} if columns else fix)
        if fix.keys() <= {"columns"}:
            return f"BiasAdjustedDPOTrainer(..., {options})"
        return f"train_dataset = dataset.select(Judgments.read(dataset, {options}).votes['row'])"

    def _bias_inputs(self, judgments: Judgments) -> list[list[float]]:
        """Compute `COLUMN` for each vote; annotators who are not in the bias term have the index -1."""
        votes, known = judgments.votes, pd.Index(self.bias.annotators)
        annotator = known.get_indexer(judgments.annotators["pseudonym"])[votes["annotator"]]
        delta = votes["sign"].to_numpy()[:, None] * judgments.delta
        inputs: list[list[float]] = np.column_stack([annotator, delta]).tolist()
        return inputs

    def _add_inputs(self, data: DataSets) -> DataSets:
        """Add the column `COLUMN` to one or several data sets."""
        if isinstance(data, Mapping):
            return {name: self._add_inputs(part) for name, part in data.items()}
        return data if data is None or isinstance(data, str) else self._add_column(data)

    def _add_column(
        self, data: Dataset | IterableDataset, judgments: Judgments | None = None
    ) -> Dataset | IterableDataset:
        """Add `COLUMN` to a data set that lacks it; ``judgments`` contains the votes if they were already read."""
        if self._column in next(iter(data), {}):
            return data
        if isinstance(data, Dataset):
            return data.add_column(self._column, self._bias_inputs(judgments or self._read_votes(data)))
        if not isinstance(data, IterableDataset):
            raise ConfigError(
                f"a data set is a {type(data).__name__}; pass a Dataset or an IterableDataset"
            )
        return data.map(
            lambda rows: {self._column: self._bias_inputs(self._read_votes(rows))},
            batched=True,
            batch_size=ROWS_AT_ONCE,
        )

    # -- losses ------------------------------------------------------------------------------------------------------

    def compute_ref_log_probs(self, model: Callable[..., Any], inputs: Batch) -> tuple[Tensor, Tensor]:
        """Compute the log-probabilities of both responses as TRL does, after removing `COLUMN` from the inputs."""
        logps: tuple[Tensor, Tensor] = super().compute_ref_log_probs(
            model, {name: value for name, value in inputs.items() if name != COLUMN}
        )
        return logps

    def compute_loss(
        self,
        model: PreTrainedModel,
        inputs: Batch,
        return_outputs: bool = False,
        num_items_in_batch: Tensor | None = None,
    ) -> Loss:
        """Compute TRL's loss with a shifted reference, and compute the gradient of theta separately."""
        inputs = dict(inputs)
        rows = inputs.pop(COLUMN).cpu().view(torch.float64)
        annotator, delta = rows[:, 0], rows[:, 1:]
        bias = self.bias(annotator.long(), delta)
        is_precomputed = self.precompute_ref_logps
        if not is_precomputed:
            inputs["ref_chosen_logps"], inputs["ref_rejected_logps"] = self.compute_ref_log_probs(
                self.ref_model or self.model, inputs
            )
        reference = torch.stack([inputs["ref_chosen_logps"], inputs["ref_rejected_logps"]])
        shift = (bias.detach() / self.beta).to(reference).requires_grad_(bias.requires_grad)
        inputs["ref_chosen_logps"] = reference[0] - shift
        outputs: list[Any] = []

        def run_policy(**model_inputs: object) -> Any:
            outputs.append(model(**model_inputs))
            return outputs[-1]

        # if precompute_ref_logps is True, TRL uses the shifted reference log-probabilities in the inputs
        self.precompute_ref_logps = True
        try:
            result: Loss = super().compute_loss(run_policy, inputs, return_outputs, num_items_in_batch)
        finally:
            self.precompute_ref_logps = is_precomputed
        if bias.requires_grad:
            loss = result[0] if isinstance(result, tuple) else result
            # never scale the gradient of theta, even if a gradient scaler scales the policy's gradient
            (gradient,) = torch.autograd.grad(loss, shift, retain_graph=True)
            bias.backward(gradient.to(bias) / self.beta)
        logps = torch.stack(self.compute_ref_log_probs(lambda **_: outputs[0], inputs)).detach()
        self._log_rewards(logps, reference, bias.detach())
        if model.training and self.theta_rule is not None:
            chosen, rejected = self.beta * (logps - reference).double()
            margins, ones = chosen - rejected, torch.ones_like(chosen)
            losses = self._vote_losses(margins, bias.detach().double(), ones)
            self._step_votes.append(
                JudgedVotes.on_processor(annotator, ones, delta, ones, margins, losses)
            )
        return result

    def _vote_losses(self, margins: Tensor, bias_logits: Tensor, sign: Tensor) -> Tensor:
        """Compute each vote's loss, with label smoothing, for the first loss type with theta in log-odds."""
        logits, smoothing = sign * (margins + bias_logits), self.args.label_smoothing
        log_odds_losses = [name for name in self.loss_types if name in _LOG_ODDS_LOSSES]
        is_robust = log_odds_losses[:1] == ["robust"]
        flipped = -logsigmoid(-logits) * (-smoothing if is_robust else smoothing)
        return flipped - logsigmoid(logits) * (1 - smoothing)

    def _log_rewards(self, policy: Tensor, reference: Tensor, bias: Tensor) -> None:
        """Log the rewards of the policy alone instead of TRL's rewards, which include the bias."""
        rewards = self.beta * (policy - reference)
        rows = torch.cat([rewards, bias.to(rewards)[None]]).T.contiguous()
        # means over contiguous rows are rounded as in TRL
        chosen, rejected, bias = self.accelerator.gather(rows).T.contiguous()
        margins = chosen - rejected
        metrics = self._metrics["train" if self.model.training else "eval"]
        metrics["votes/accuracy"].append((margins + bias > 0).float().mean().item())
        metrics["rewards/chosen"][-1] = chosen.mean().item()
        metrics["rewards/margins"][-1] = margins.mean().item()
        metrics["rewards/accuracies"][-1] = (margins > 0).float().mean().item()
        if self.model.training and self.first_margin is None:
            difference = ((policy - reference).norm() / reference.norm()).item()
            self._check_start(margins.mean().item(), difference)

    def _check_start(self, mean_margin: float, difference: float) -> None:
        """Record how policy and reference differ at the first step; warn (W152) if they differ beyond rounding."""
        if self.state.global_step:
            raise RuntimeError(
                "this version of transformers resumes from a checkpoint without loading theta; install the package "
                "versions in constraints.txt"
            )
        is_in_16_bits = self.args.bf16 or self.args.fp16 or self.model.dtype.itemsize < 4
        floor = FLOOR_IN_16_BITS if is_in_16_bits else FLOOR
        self.first_margin = StartDifference(mean_margin, difference, floor[0])
        log_findings(self.findings, filter(None, [self.first_margin.problem]))

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log as TRL does; during training, add the mean of theta unless there are few annotators."""
        if self.model.training:
            revealing = self._facts.get("revealing", ())
            logs.update(select_publishable(theta_metrics(self.bias), self.bias, revealing))
        super().log(logs, start_time)

    # -- training and evaluation -------------------------------------------------------------------------------------

    def train(self, *args: object, **kwargs: object) -> TrainOutput:
        """Train as TRL does, and write the files that `badpo evaluate` needs to measure the run.

        The trainer limits the time for rendering each chat template. For streams and for rows with images, TRL renders
        the templates during training.
        """
        # the folder "run" is for this run; the folders next to it belong to policies that the script saves
        folder = find_theta_folder(self.args.output_dir, self.args.output_dir) / "run"
        is_measurable = self._is_measurable()
        if self.judgments is not None:
            warn_about_votes(self.judgments)
        if is_measurable and self._start_name is None and self.is_world_process_zero():
            self._start_name = save_start(folder, self.ref_model or self.model, self.processing_class)
        with limit_templates():
            result = super().train(*args, **kwargs)
        if is_measurable and self.judgments is not None and self.is_world_process_zero():
            self._write_run(folder, self.judgments)
        return result

    def _is_measurable(self) -> bool:
        """Whether `badpo evaluate` can measure the run, which needs votes and an unsharded, unquantized text model."""
        is_divided = self.is_fsdp_enabled or self.is_deepspeed_enabled
        is_quantized = getattr(self.model, "is_quantized", False)
        is_text_model = self.judgments is not None and not self._is_vision_dataset
        return is_text_model and self._start_name != "" and not (is_divided or is_quantized)

    def _write_run(self, folder: Path, judgments: Judgments) -> None:
        """Write the policy, theta and the other files that `badpo evaluate` needs."""
        save_theta(self, folder, self._facts)
        with whole_folder(folder / "model") as unfinished:
            self.accelerator.unwrap_model(self.model).save_pretrained(unfinished)
            self.processing_class.save_pretrained(unfinished)
        data = self._held_out
        if isinstance(data, Mapping):
            data = next(iter(data.values()), None)
        held_out = self._read_votes(data) if isinstance(data, Dataset) else None
        write_script_run(folder, str(self._start_name), judgments, held_out, self.bias, self.args)

    def evaluate(
        self,
        eval_dataset: DataSets = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Evaluate as TRL does; the loss includes the annotators' bias, but the rewards do not.

        Annotators without training votes are assigned the mean theta of the pool.
        """
        with limit_templates():
            metrics: dict[str, float] = super().evaluate(
                self._add_inputs(eval_dataset), ignore_keys, metric_key_prefix
            )
        return metrics

    def predict(
        self,
        test_dataset: Dataset | IterableDataset,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "test",
    ) -> PredictionOutput:
        """Predict as TRL does, even for a data set that the trainer has not prepared yet."""
        if not isinstance(test_dataset, Dataset | IterableDataset):
            raise ConfigError(
                f"predict requires one Dataset or IterableDataset, not a {type(test_dataset).__name__}; call predict "
                "for each data set, or call evaluate"
            )
        data = self._add_column(test_dataset)
        if not self._is_vision_dataset:
            data = self._prepare_dataset(data, self.processing_class, self.args, metric_key_prefix)
        if self.precompute_ref_logps and "ref_chosen_logps" not in next(iter(data), {}):
            has_reference = self.ref_model is not None or isinstance(self.model, PeftModel)
            if self.state.global_step and not has_reference:
                raise ConfigError(
                    "precompute_ref_log_probs: the reference was the initial policy, which training has changed; pass "
                    "a ref_model, or predict before training"
                )
            data = self._precompute_ref_logps(
                data, metric_key_prefix, self.args.per_device_eval_batch_size
            )
        with limit_templates():
            return super().predict(data, ignore_keys, metric_key_prefix)

    # -- files -------------------------------------------------------------------------------------------------------

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the policy as TRL does, and save theta in a folder that is never uploaded (see `find_theta_folder`)."""
        run = self.args.output_dir
        with report_full_disk(Path(output_dir or run)):
            super().save_model(output_dir, _internal_call)
        if self.is_world_process_zero() and not _internal_call:
            save_theta(self, find_theta_folder(output_dir or run, run), self._facts)

    def _save_checkpoint(self, model: PreTrainedModel, trial: object) -> None:
        output = Path(self._get_output_dir(trial))
        checkpoint = output / f"checkpoint-{self.state.global_step}"
        folder = find_theta_folder(checkpoint, self.args.output_dir)
        is_writer = self.is_world_process_zero()
        with report_full_disk(output):
            # save theta before the policy, so that no checkpoint lacks theta
            if is_writer:
                save_optimizer(self, folder)
                save_theta(self, folder, self._facts)
            with keep_parameter_names(self.model):
                super()._save_checkpoint(model, trial)
        for other in folder.parent.glob("checkpoint-*") if is_writer else ():
            # delete theta of checkpoints that TRL has deleted; a folder with a trainer state is itself a checkpoint
            if not ((other / "trainer_state.json").exists() or (output / other.name).exists()):
                shutil.rmtree(other)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            self._load_theta(Path(checkpoint))

    def _load_best_model(self) -> None:
        super()._load_best_model()
        self._load_theta(Path(str(self.state.best_model_checkpoint)))

    def _load_theta(self, checkpoint: Path) -> None:
        """Load a checkpoint's theta; raise `ConfigError` if the checkpoint belongs to a different run."""
        folders = [
            find_theta_folder(checkpoint, run) for run in (self.args.output_dir, checkpoint.parent)
        ]
        folder = next(filter(Path.exists, folders), folders[-1])
        if not folder.exists():
            raise ConfigError(
                f"{folder} does not exist, but it must contain theta of checkpoint {checkpoint}; restore this folder"
            )
        saved = BiasTerm.load(folder)
        changes = [name for name, fact in self._facts.items() if saved.extra.get(name) != fact]
        term_facts = ("annotators", "parts", "gold_annotators")
        changes += [name for name in term_facts if getattr(saved, name) != getattr(self.bias, name)]
        if changes:
            raise ConfigError(
                f"the run of {folder} differs from this run in {' and '.join(changes)}; resume with the same values"
            )
        load_theta(self, saved, folder)


class _ThetaCallback(TrainerCallback):
    """Callback that updates theta after the policy. Only then is it known whether the step was skipped."""

    def __init__(self, trainer: BiasAdjustedDPOTrainer):
        self._trainer = trainer

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Update theta; average its gradient over micro-batches and processes like the policy's gradient."""
        run, rule = self._trainer, self._trainer.theta_rule
        if rule is None:
            return
        is_skipped = run.accelerator.optimizer_step_was_skipped
        own_votes, run._step_votes = run._step_votes, []
        for parameter in run.bias.parameters() if rule.takes_gradient else ():
            mean = parameter.grad.to(args.device) / run.current_gradient_accumulation_steps
            parameter.grad = run.accelerator.reduce(mean, reduction="mean").cpu()
            if not (is_skipped or parameter.grad.isfinite().all()):
                raise NotFiniteError(f"the gradient of theta is not finite. {REMEDY}")
        votes = gather_votes(run.accelerator, JudgedVotes.join(own_votes))
        if not votes.margin.isfinite().all() and not is_skipped:
            raise NotFiniteError(f"a margin is not finite. {REMEDY}")
        rule.step(None if is_skipped else votes)


def find_theta_folder(folder: str | Path, run: str | Path) -> Path:
    """Return the folder for the theta of the policy in ``folder``; ``run`` is the output folder of the run.

    If the policy is in RUN/PATH, theta is in RUN-bias/PATH. If the policy is outside RUN, theta is in a folder with the
    policy folder's name and the suffix -bias.
    """
    folder, top = Path(folder).resolve(), Path(run).resolve()
    top = top if folder.is_relative_to(top) else folder
    return Path(f"{top}{BIAS_SUFFIX}") / folder.relative_to(top)


def _find_problems(
    args: DPOConfig | None,
    losses: set[str],
    train_dataset: Dataset | IterableDataset | None,
    attributes: Sequence[Attribute],
    settings: _BiasSettings,
) -> Iterator[str]:
    """Yield one sentence for each argument that the trainer cannot use."""
    if args is not None and not isinstance(args, DPOConfig):
        yield f"args is a {type(args).__name__}; pass a trl.DPOConfig"
    if losses - {*_MARGIN_LOSSES, "sft"} or losses == {"sft"}:
        yield (
            f"loss_type {', '.join(sorted(losses))} is not supported, because the bias is added to the margin; use "
            f"{', '.join(_MARGIN_LOSSES)}, with or without sft"
        )
    for name, (supported, reason) in _FIXED_SETTINGS.items():
        if (value := getattr(args, name, supported)) != supported:
            yield f"{name}: {value} is refused: {reason}"
    if not isinstance(train_dataset, Dataset | IterableDataset):
        kind = type(train_dataset).__name__
        yield f"train_dataset is a {kind}; pass a Dataset or an IterableDataset"
    names, term = tuple(attribute.name for attribute in attributes), settings.term
    fits_stream = term is not None and term.attributes == names and not settings.gold_annotators
    if isinstance(train_dataset, IterableDataset) and not fits_stream:
        remedy = f'bias=BiasTerm({[*names] or ["length"]}, ["{EVERYONE}"], ["mean"])'
        if not names:
            remedy += ' with attributes=["length:ratio=1.5"]'
        yield (
            "a stream is not read in advance: as bias, pass a BiasTerm that contains every possible annotator, with "
            f"gold annotators in its mask; or use one bias for all annotators: {remedy}"
        )
    if settings.warm_start != "zero" and (term is not None or not losses <= _LOG_ODDS_LOSSES):
        yield (
            f"warm_start {settings.warm_start} requires the loss sigmoid or robust, in which theta is in log-odds, and "
            "cannot be combined with a BiasTerm"
        )
    yield from BADPOConfig.find_errors(
        bias=None if term is not None else settings.bias,
        bias_fit=settings.fit,
        bias_learning_rate=settings.learning_rate,
        warm_start=settings.warm_start,
        gold_annotators=settings.gold_annotators,
    )


def _remove_images(message: object) -> object:
    """Remove all non-text parts from a chat message."""
    parts = message.get("content") if isinstance(message, dict) else None
    if isinstance(message, dict) and isinstance(parts, list):
        return message | {"content": [part for part in parts if part["type"] == "text"]}
    return message


def _collate_with_inputs(
    collate: Callable[[list[Mapping[str, object]]], Batch],
    column: str,
    examples: Sequence[Mapping[str, object]],
) -> Batch:
    """Collate a micro-batch with the given collator, and add `COLUMN` as integers, which no library rounds."""
    rows = [dict(example) for example in examples]
    inputs = torch.tensor([row.pop(column) for row in rows], dtype=torch.float64)
    return {**collate([*rows]), COLUMN: inputs.view(torch.int64)}
