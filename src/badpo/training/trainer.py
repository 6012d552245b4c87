"""`BADPOTrainer`: a `transformers.Trainer` that trains on judgments of comparisons.

An objective defines the loss of a vote, the weights of the votes and the normaliser of these weights. A `BiasTerm`
describes the annotators' bias. The trainer contains no code for individual objectives.
"""

# mypy does not analyze transformers, so its classes are untyped
# mypy: disallow-subclassing-any=False

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
import transformers
from huggingface_hub import HfApi, metadata_load, metadata_save
from peft import PeftConfig
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.trainer_utils import TrainOutput, speed_metrics

from badpo.data.attributes import Attributes
from badpo.data.files import DESCRIPTION_FILE, require_safe_to_read
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError, Problem
from badpo.data.tables import Source
from badpo.objective.bias import BiasTerm
from badpo.objective.objectives import Metrics, Objective, Step
from badpo.objective.registry import make_objective
from badpo.objective.theta import JudgedVotes
from badpo.theory.likelihood import margin
from badpo.training.batches import (
    ComparisonCollator,
    EncodedJudgments,
    MicroBatch,
    StepSampler,
    evaluation_batches,
)
from badpo.training.checkpoints import (
    Facts,
    RunCallback,
    collect_facts,
    keep_parameter_names,
    prepare_folder,
    report_full_disk,
    save_bias,
    whole_folder,
)
from badpo.training.config import BADPOConfig
from badpo.training.encoding import require_matching_tokenizer
from badpo.training.inputs import (
    VISION,
    Columns,
    as_judgments,
    build_bias,
    checkpoint_activations,
    disable_dropout,
    encode_judgments,
    find_revealing_attributes,
    has_other_inputs,
    load_model,
    load_reference,
    log_findings,
    make_theta_rule,
    read_evaluation,
    read_router_coefficient,
    read_training,
    require_log_odds,
    require_matching_bias,
    require_no_stream,
    require_own_optimizer,
    require_something_to_learn,
    restore_dropouts,
    start_policy,
)
from badpo.training.logprobs import (
    in_mode,
    remove_adapter,
    scoring_attention,
)
from badpo.training.metrics import (
    Tally,
    report_unmoved_policy,
    select_publishable,
    theta_metrics,
)
from badpo.training.model_files import load_tokenizer
from badpo.training.packing import packed_comparisons
from badpo.training.processes import (
    gather_votes,
    gather_weights,
    lock_by_first,
    prepare_fsdp,
    require_same_facts,
)
from badpo.training.reference import ReferenceScorer
from badpo.training.script_run import (
    find_start_name,
    save_start,
    warn_about_votes,
    write_script_run,
)
from badpo.training.self_test import FLOOR_IN_16_BITS, StartDifference, choose_layout
from badpo.training.supervised import StepTrainer

logger = logging.getLogger(__name__)

# Evaluation data: one data set, or a mapping from names to data sets.
EvaluationData: TypeAlias = Judgments | Source | Mapping[str, Judgments | Source] | None

# Encoded evaluation data: one data set, a mapping from names to data sets, or None.
EncodedSets: TypeAlias = "EncodedJudgments | dict[str, EncodedSets] | None"

_NO_LOGITS = "the evaluation keeps no logits; use the metrics that `evaluate` returns"
# Arguments of TRL's `DPOTrainer` that `BADPOTrainer` does not support, each with a reason or an alternative.
_UNSUPPORTED = {
    "data_collator": "the trainer builds its own micro-batches, which contain each comparison only once",
    "compute_metrics": _NO_LOGITS,
    "quantization_config": "use a peft_config with model_init_kwargs={'dtype': 'bfloat16'}",
}
# Types of supported arguments, each with the type's name and a remedy for the error message.
_EXPECTED: dict[str, tuple[tuple[type, ...], str, str]] = {
    "processing_class": (
        (PreTrainedTokenizerBase, ProcessorMixin),
        "a tokenizer",
        "write processing_class=AutoTokenizer.from_pretrained(NAME)",
    ),
    "callbacks": ((list, tuple), "a list", "write callbacks=[...]"),
    "peft_config": ((PeftConfig,), "a peft.PeftConfig", "write peft_config=LoraConfig(...)"),
    "bias": ((BiasTerm,), "a BiasTerm", "to choose a variant by its name, write BADPOConfig(bias=NAME)"),
    "objective": (
        (Objective,),
        "an object",
        "pass an instance of a class in badpo.objective.objectives or of your own subclass",
    ),
}


class BADPOTrainer(StepTrainer):
    r"""Train a policy on judgments, with a bias term for the annotators' bias toward declared attributes.

    The training loss is the weighted mean of the following term over judgments j:

    .. math:: -\log \sigma\bigl(s_j (u_{c_j} + \theta_{k_j}^\top d_j)\bigr)

    Here u is the implicit reward margin of the comparison (response a over b, including beta), s_j is +1 if response a
    was chosen, and d_j is the attribute difference of a minus b. The Trainer clips the policy's gradients and schedules
    its learning rate. Theta follows the votes according to ``args.bias_fit`` and is not part of the saved model.

    Parameters
    ----------
    model : str, PreTrainedModel or PeftModel
        The initial policy, which is also the reference if ``ref_model`` is None. If the model is a `PeftModel`, its
        adapter is trained further.
    ref_model : PreTrainedModel or None
        A reference other than the initial policy. The first margin is then not zero, and the warning W152 says so.
    train_dataset : Judgments, a source for `Judgments.read`, or a streaming data set
    eval_dataset : as train_dataset, or a mapping from names to data sets
        With a mapping, the metrics are called ``eval_<name>_loss`` and so on.
    processing_class : PreTrainedTokenizerBase or None
        None loads the tokenizer of the model.
    peft_config : peft.PeftConfig or None
        Configuration of a new adapter. The reference is the model with the adapter before the first step.
    columns : mapping
        badpo's column names, mapped to the names in the data set, as in ``{"annotator": "worker_id"}``.
    attributes : attributes, as text or objects
        Required if the data set is not a `Judgments` with attributes. If a script written for TRL declares neither
        attributes nor a bias, the trainer chooses a length bias and reports this choice in notice N163.
    bias : BiasTerm or None
        Bias term that replaces the variant ``args.bias``.
    objective : Objective or None
        Object that defines the weights and the losses of the votes (`badpo.objective.objectives`).
    data_collator, compute_metrics, quantization_config
        Not supported: a value other than None raises an error. The parameters only keep the argument order of TRL.

    Attributes
    ----------
    judgments : Judgments
        Training data without the comparisons that exceed ``max_length``.
    findings : list of Problem
        Findings about the data and the start of the run.
    self_tests : list of SelfTest
        Differences between the forward pass for scoring and the model's own forward pass, in every precision of the
        run.
    first_margin : StartDifference or None
        Difference between policy and reference at the first step; None before this step.

    References
    ----------
    BA-DPO, Eq. `barp_dpo_loss` and Appendix `app:training`.
    """

    def __init__(
        self,
        model: str | PreTrainedModel,
        ref_model: str | PreTrainedModel | None = None,
        args: BADPOConfig | None = None,
        data_collator: Callable[..., object] | None = None,
        train_dataset: Judgments | Source | None = None,
        eval_dataset: EvaluationData = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        compute_metrics: Callable[..., object] | None = None,
        callbacks: Sequence[transformers.TrainerCallback] | None = None,
        optimizers: tuple[Optimizer | None, LRScheduler | None] = (None, None),
        quantization_config: object = None,
        peft_config: PeftConfig | None = None,
        *,
        columns: Columns = None,
        attributes: Attributes = (),
        bias: BiasTerm | None = None,
        objective: Objective | None = None,
    ):
        arguments = dict(locals())
        args = copy.copy(args) if args is not None else BADPOConfig()
        _require_supported(args, arguments)
        self.run_folder = Path(args.output_dir)
        require_safe_to_read(self.run_folder)
        # Checkpoints contain pickles and estimates about annotators, so only run_folder/model is published.
        args.output_dir = str(self.run_folder / "checkpoints")
        n_kept, args.save_total_limit = args.save_total_limit or 0, None
        policy = start_policy(model, peft_config, args)
        model_options = args.model_init_kwargs if isinstance(args.model_init_kwargs, dict) else {}
        tokenizer = processing_class or load_tokenizer(
            model if isinstance(model, str) else model.config._name_or_path,
            model_options.get("revision", "main"),
            args.trust_remote_code,
        )
        require_own_optimizer(optimizers, policy)
        self._dropouts = disable_dropout(policy) if args.disable_dropout else []
        self.ref_model = load_reference(ref_model, policy, args)
        base = remove_adapter(policy)
        has_unused = bool(args.ddp_find_unused_parameters) or has_other_inputs(base)
        args.ddp_find_unused_parameters = has_unused
        self.findings: list[Problem] = []
        log_findings(self.findings, args.notices)
        self._columns = columns
        self.is_script = True
        self._held_out: Judgments | Source | None = (
            next(iter(eval_dataset.values())) if isinstance(eval_dataset, dict) else eval_dataset
        )
        self._start = find_start_name(model, ref_model, peft_config)
        args.bias = args.bias if bias is None else bias.variant
        require_no_stream(train_dataset, args)
        declared = train_dataset.attributes if isinstance(train_dataset, Judgments) else ()
        is_for_trl = args.bias is None and not (attributes or declared)
        training = read_training(train_dataset, attributes, args.bias, columns)
        args.bias = training.variant
        log_findings(self.findings, training.findings)
        encoded = encode_judgments(training.judgments, tokenizer, args)
        self.judgments, self.encoded = encoded.judgments, encoded.comparisons
        log_findings(self.findings, encoded.findings)
        require_something_to_learn(self.judgments, self.encoded)
        self.objective = objective or make_objective(
            args.objective, self.judgments, args.seed, args.beta
        )
        require_log_odds(self.objective, args)
        self.bias = bias or build_bias(
            self.judgments, training.variant, args.warm_start, args.gold_annotators
        )
        require_matching_bias(self.bias, self.judgments, args.gold_annotators)
        n_embeddings = base.get_input_embeddings().weight.shape[0]
        require_matching_tokenizer(self.encoded.pairs, tokenizer, n_embeddings)
        super().__init__(
            model=policy,
            args=args,
            train_dataset=EncodedJudgments(self.judgments, self.encoded),
            eval_dataset=eval_dataset,
            processing_class=tokenizer,
            callbacks=list(callbacks or []),
            optimizers=optimizers,
        )
        self.eval_dataset = self._encode_evaluation(eval_dataset)
        self.model.add_model_tags(["ba-dpo", "dpo", *(["trl"] if is_for_trl else [])])
        self.router_aux_loss_coef = read_router_coefficient(base, args.router_aux_loss_coef)
        self.aux_loss_enabled = self.router_aux_loss_coef != 0
        prepare_fsdp(self.accelerator, bool(args.fsdp))
        self.bias.to(args.device)
        self.theta_rule = make_theta_rule(
            self.bias, self.objective.losses, self.judgments, args.bias_fit, args.bias_learning_rate
        )
        is_named = isinstance(model, str) and peft_config is None
        load_start = partial(load_model, model, args) if is_named else None
        self.reference = ReferenceScorer(
            self.model, self.ref_model, self.accelerator, args, load_start, self.encoded.pairs
        )
        # `_tally` sums metrics over the current step, and `_logged` sums them over all steps since the last log entry
        self._tally = Tally(self.judgments, args.device)
        self._logged = Tally(self.judgments, args.device)
        self._step: Step
        self._weights: Tensor
        self.resumed_from: Path | None = None
        self.first_margin: StartDifference | None = None
        # entry 0 sums the squared differences between the policy's and the reference's log-probabilities of all tokens
        # entry 1 sums the squared log-probabilities of all tokens under the reference
        self._from_reference = torch.zeros(2, dtype=torch.float64, device=args.device)
        self.add_callback(RunCallback(self, n_kept))
        if args.gradient_checkpointing:
            checkpoint_activations(self.model, args.gradient_checkpointing_kwargs)
        autocast = self.accelerator.autocast if self.accelerator.mixed_precision != "no" else None
        # the self-test needs training mode for gradient checkpointing, but dropout would make its forward passes differ
        with in_mode(base, training=args.disable_dropout):
            choice = choose_layout(
                base, args.attention, self.encoded, autocast, has_router_loss=self.aux_loss_enabled
            )
        self._layout, self.self_tests = choice.layout, choice.tests

    def get_train_dataloader(self) -> DataLoader:
        """Return the loader of the micro-batches that `StepSampler` plans; accelerate does not shard this loader."""
        return self._make_loader(self.train_dataset, StepSampler(self.train_dataset, self.args))

    def get_eval_dataloader(self, eval_dataset: EvaluationData = None) -> DataLoader:
        """Return the loader of this process's share of an evaluation set; the set is given as data or by name."""
        data = self.eval_dataset if eval_dataset is None else eval_dataset
        sets = self.eval_dataset if isinstance(self.eval_dataset, Mapping) else {}
        if isinstance(data, str) and sets:
            data = sets.get(data, data if Path(data).exists() else None)
        encoded = self._encode_evaluation(data)
        if not isinstance(encoded, EncodedJudgments):
            raise ConfigError(
                "there is no eval_dataset to evaluate on; pass one to `evaluate` or to the trainer, or name one of the "
                f"trainer's evaluation sets: {', '.join(sets) or 'it has no named sets'}"
            )
        return self._make_loader(encoded, evaluation_batches(encoded.judgments, self.args))

    def _make_loader(
        self, data: EncodedJudgments, batches: StepSampler | list[np.ndarray]
    ) -> DataLoader:
        return DataLoader(
            data,
            batch_sampler=batches,
            collate_fn=self._make_collator(data),
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory and torch.cuda.is_available(),
        )

    def _make_collator(self, data: EncodedJudgments) -> ComparisonCollator:
        layout = self._layout
        # without token weights, the log-probabilities of the responses' common prefix cancel in the margin
        if self.objective.weighs_tokens and layout is packed_comparisons:
            layout = partial(packed_comparisons, scores_shared=True)
        return ComparisonCollator(data, self.reference.score(data), layout)

    def _encode_evaluation(self, data: EvaluationData | EncodedJudgments) -> EncodedSets:
        """Encode one or several evaluation sets."""
        if data is None or isinstance(data, EncodedJudgments):
            return data
        if isinstance(data, Mapping):
            return {str(name): self._encode_evaluation(part) for name, part in data.items()}
        require_no_stream(data, self.args)
        judgments = read_evaluation(data, self.judgments, self._columns)
        encoded = encode_judgments(judgments, self.processing_class, self.args)
        log_findings(self.findings, [*judgments.findings, *encoded.findings])
        return EncodedJudgments(encoded.judgments, encoded.comparisons)

    def compute_references(self) -> None:
        """Compute the reference log-probabilities of all data sets, before the first step of a new or resumed run."""
        require_same_facts({name: str(value) for name, value in self.facts.items()}, self.accelerator)
        self.reference.score_all(self.train_dataset, self.eval_dataset)

    def get_batch_samples(
        self, epoch_iterator: Iterator[MicroBatch], num_batches: int, device: torch.device
    ) -> tuple[list[MicroBatch], Tensor | None]:
        """Return the micro-batches of an optimizer step, with the objective's weights, and the normaliser of the step.

        An optimizer step may have fewer comparisons than micro-batches. If no process has a judgment in a micro-batch,
        the micro-batch comes first and contains no model inputs. The last micro-batch of a step must go through the
        model, because it makes the processes synchronize their gradients.
        """
        if 0 < self.state.max_steps <= self.state.global_step:
            # the Trainer asks for one more step if a run resumes from the checkpoint of its last step
            return [], None
        batches = [next(epoch_iterator) for _ in range(num_batches)]
        sizes = [len(batch["sign"]) for batch in batches]
        self._step = Step.of(batches)
        weights, normaliser = self.objective(self._step)
        self._weights = weights
        for batch, part in zip(batches, weights.split(sizes), strict=True):
            batch["weight"] = part
            self._add_token_weights(batch)
        totals = torch.tensor([float(normaliser), *sizes], dtype=torch.float64, device=device)
        totals = self.accelerator.reduce(totals, reduction="sum")
        normaliser, sizes = totals[0], totals[1:].tolist()
        for batch, n in zip(batches, sizes, strict=True):
            batch["share"] = len(batch["sign"]) / sum(sizes)
            if n == 0:
                batch["scoring"] = None
        return sorted(batches, key=lambda batch: batch["scoring"] is not None), normaliser

    def _add_token_weights(self, batch: MicroBatch) -> None:
        """Add ``token_weight`` to a micro-batch if the objective assigns weights to tokens."""
        if self.objective.weighs_tokens and batch["scoring"] is not None:
            lengths = np.bincount(batch["scoring"]["response"]).reshape(-1, 2)
            step = self.state.global_step
            weights = self.objective.token_weights(lengths, batch["comparisons"], step)
            batch["token_weight"] = torch.from_numpy(np.concatenate(list(chain(*weights))))

    def compute_loss(
        self,
        model: PreTrainedModel,
        inputs: MicroBatch,
        return_outputs: bool = False,
        num_items_in_batch: Tensor | None = None,
    ) -> Tensor:
        """Return the sum of the weighted losses in a micro-batch, divided by the normaliser of the step.

        The gradient of theta is computed separately.
        """
        if inputs["scoring"] is None:
            return torch.zeros((), device=self.args.device, requires_grad=True)
        sign, weight = inputs["sign"], inputs["weight"]
        margins, bias_logits, losses = self._compute_losses(model, inputs, self._tally)
        if bias_logits.requires_grad:
            theta_losses = self.objective.losses(margins.detach(), bias_logits, sign)
            ((weight * theta_losses).sum() / num_items_in_batch).backward()
        loss = (weight * losses).sum() / num_items_in_batch
        if self.aux_loss_enabled:
            loss = loss + self.router_aux_loss_coef * inputs["share"] * inputs["router_load"]
        # the normaliser is a sum over all processes, so DDP's averaging of gradients must be undone
        return (loss * self.args.world_size).float()

    def fix_gradient_buckets(self) -> None:
        """Make DDP fix its order of gradient sums early: before the first step instead of after it.

        With three or more processes, the order of summation changes the last bits of the gradients. Without this
        method, the first step of a resumed run would sum the gradients in a different order than the uninterrupted run.
        """
        if not isinstance(self.model_wrapped, DistributedDataParallel):
            return
        inputs = self._prepare_inputs(self._make_collator(self.train_dataset)([]))
        (self._compute_margins(self.model_wrapped, inputs).sum() * 0).backward()
        self.model_wrapped.zero_grad()

    def _prepare_input(self, data: Any) -> Any:
        """Move tensors to the device in their own precision, without waiting for the device.

        With DeepSpeed, the Trainer's own method would round float64 margins to 16 bits.
        """
        if isinstance(data, Tensor):
            return data.to(self.args.device, non_blocking=True)
        return super()._prepare_input(data)

    def _compute_margins(self, model: PreTrainedModel, inputs: MicroBatch) -> Tensor:
        """Return the margin of every comparison in a micro-batch as a float64 tensor of shape (n_comparisons,)."""
        scoring = inputs["scoring"]
        assert scoring is not None
        # DDP enters autocast itself, but a model with sharded weights does not
        with self.accelerator.autocast():
            token_logps = model(scoring=scoring)
        if isinstance(token_logps, tuple):
            token_logps, inputs["router_load"] = token_logps
        if self.first_margin is None:
            reference = inputs["reference_logps"]
            from_reference = torch.stack([token_logps.detach() - reference, reference]).double()
            self._from_reference += from_reference.square().sum(1)
        # in float32, rounding in the sums over tokens would dominate the gradient error
        values = torch.stack([token_logps.double(), inputs["reference_logps"].double()])
        weighted = values * inputs.get("token_weight", 1.0)
        sums = weighted.new_zeros(2, 2 * len(inputs["comparisons"]))
        sums = sums.index_add(1, scoring["response"], weighted)
        if "attention_mask" in scoring and "token_weight" not in inputs:
            policy, reference = sums.detach()
            inputs["response_scores"] = policy, self.args.beta * (policy - reference)
        (a, b), (reference_a, reference_b) = sums.view(2, -1, 2).mT
        return margin(a, b, reference_a, reference_b, self.args.beta)

    def _compute_losses(
        self, model: PreTrainedModel, inputs: MicroBatch, tally: Tally
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the margins, bias logits and losses of a micro-batch's judgments, and add them to ``tally``."""
        sign = inputs["sign"]
        if self.aux_loss_enabled and inputs["scoring"] is not None:
            n_votes = torch.bincount(inputs["comparison"], minlength=len(inputs["comparisons"]))
            # row weights of 1 avoid a division by zero in a micro-batch without votes, whose share of the loss is 0
            inputs["scoring"]["row_weight"] = (n_votes + (len(sign) == 0)).repeat_interleave(2)
        margins = self._compute_margins(model, inputs)[inputs["comparison"]]
        bias_logits = self.bias(inputs["annotator"], inputs["delta"])
        losses = self.objective.losses(margins, bias_logits.detach(), sign)
        tally.add(inputs, margins, bias_logits, losses)
        return margins, bias_logits, losses

    def finish_step(self) -> Tally:
        """Sum the gradient of theta and the metrics over all processes, update theta, and return the step's metrics."""
        tally, self._tally = self._tally, Tally(self.judgments, self.args.device)
        skipped = self.accelerator.optimizer_step_was_skipped
        tally.add_up_step(
            self.accelerator,
            f"step {self.state.global_step + 1}",
            [] if skipped else self.model.parameters(),
            [p for p in self.bias.parameters() if p.requires_grad],
        )
        self._logged.sums += tally.sums
        if self.theta_rule is not None or self.objective.follows_votes:
            step = self._step
            own = JudgedVotes.on_processor(
                step.annotator, step.sign, step.delta, self._weights, tally.margins, tally.losses
            )
            votes = None if skipped else gather_votes(self.accelerator, own)
            if votes is not None and self.objective.follows_votes:
                self.objective.learn(votes)
            if self.theta_rule is not None:
                self.theta_rule.step(votes)
        return tally

    def check_start(self, mean_margin: float) -> None:
        """Record the difference between policy and reference at the first step; stop if rounding cannot explain it.

        If the user passed a reference model or kept dropout on, the run continues with the warning W152 instead.
        """
        squares, size = self.accelerator.reduce(self._from_reference, reduction="sum").tolist()
        difference = (squares / size) ** 0.5 if size else 0.0
        tolerance = max(self.self_tests[-1].most[0], FLOOR_IN_16_BITS[0] if self.args.tf32 else 0.0)
        self.first_margin = StartDifference(mean_margin, difference, tolerance)
        problem = self.first_margin.problem
        if problem is not None and self.ref_model is None and self.args.disable_dropout:
            raise ConfigError(
                f"{problem.what}, although the policy is its own reference. The cache "
                f"{self.reference.cache.folder} may hold values of another model: remove this folder and train "
                "again. If the difference remains, the model computes different log-probabilities before and during "
                "training: please report the model's configuration"
            )
        log_findings(self.findings, [problem] if problem else [])

    def state_metrics(self) -> Metrics:
        """Return the mean theta of each attribute, and metrics that describe the state of the objective."""
        return theta_metrics(self.bias) | self.objective.metrics()

    @cached_property
    def _revealing_attributes(self) -> list[str]:
        return find_revealing_attributes(self.judgments, self.bias)

    def log(self, logs: Metrics, start_time: float | None = None) -> None:
        """Add metrics about the judgments since the last log entry to the Trainer's own metrics."""
        # at the end of training, some steps may follow the last regular log entry
        if {"loss", "train_loss"} & logs.keys() and self._logged.n_judgments:
            metrics = self._logged.metrics(self.router_aux_loss_coef)
            metrics |= select_publishable(self.state_metrics(), self.bias, self._revealing_attributes)
            if "loss" not in logs:
                del metrics["loss"]
            logs = logs | metrics
            self._logged = Tally(self.judgments, self.args.device)
        super().log(logs, start_time)

    def evaluate(
        self,
        eval_dataset: EvaluationData = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> Metrics:
        """Compute the loss and accuracies on evaluation data; unknown annotators get the pool mean of theta."""
        data = self.eval_dataset if eval_dataset is None else eval_dataset
        metrics: Metrics = {}
        if isinstance(data, Mapping) and data:
            for name, part in data.items():
                metrics |= self.evaluate(part, None, f"{metric_key_prefix}_{name}")
            return metrics
        start, loader = time.time(), self.get_eval_dataloader(data)
        tally = Tally(loader.dataset.judgments, self.args.device)
        self.model.eval()
        with (
            torch.no_grad(),
            self.accelerator.autocast(),
            scoring_attention(self.model, self._layout),
        ):
            for batch in loader:
                self._add_token_weights(batch)
                batch["share"] = len(batch["sign"])
                self._compute_losses(self.model, self._prepare_inputs(batch), tally)
        self.model.train()
        tally.add_up(self.accelerator, f"evaluation at step {self.state.global_step}")
        for name, value in tally.metrics(self.router_aux_loss_coef).items():
            metrics[f"{metric_key_prefix}_{name}"] = value
        metrics |= speed_metrics(metric_key_prefix, start, len(loader.dataset), len(loader))
        self.log(dict(metrics))
        self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def predict(self, *args: object, **kwargs: object) -> None:
        """Not supported; raises `ConfigError`."""
        raise ConfigError(f"predict is not supported: {_NO_LOGITS}")

    @cached_property
    def facts(self) -> Facts:
        """Properties that a resumed run must share with its checkpoint (`badpo.training.checkpoints.collect_facts`)."""
        return collect_facts(self)

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        allow_changed: Sequence[str] = (),
        **kwargs: object,
    ) -> TrainOutput:
        """Train the policy; ``resume_from_checkpoint=True`` continues from the newest complete checkpoint of this run.

        A second call to `train` continues from the current weights and theta with a new schedule, as in `transformers`.
        A checkpoint with other data or settings raises an error; ``allow_changed=["code"]`` permits other package
        versions. A new run raises an error if its folder contains complete checkpoints of another run.
        """
        with lock_by_first(self.run_folder):
            self.compute_references()
            self.resumed_from = prepare_folder(self, resume_from_checkpoint, allow_changed)
            is_kept = self.is_script and not self._is_divided
            if self.is_script:
                warn_about_votes(self.judgments)
            if is_kept and self._start is None and self.is_world_process_zero():
                with self.reference.reference() as reference, restore_dropouts(self._dropouts):
                    self._start = save_start(self.run_folder, reference, self.processing_class)
            self.reference.policy_has_moved = True
            checkpoint = str(self.resumed_from) if self.resumed_from else None
            with scoring_attention(self.model, self._layout):
                result = super().train(resume_from_checkpoint=checkpoint, **kwargs)
            log = self.state.log_history
            unmoved = report_unmoved_policy(log, self.state.global_step, self.args.learning_rate)
            log_findings(self.findings, unmoved)
            if is_kept:
                self._write_run()
            return result

    @property
    def _is_divided(self) -> bool:
        """Whether the weights are sharded over processes."""
        return bool(self.is_fsdp_enabled or self.is_deepspeed_enabled)

    def _write_run(self) -> None:
        """Write the policy, theta and the files that `badpo evaluate` needs, after a script has trained a run."""
        with whole_folder(self.run_folder / "model", self.is_world_process_zero()) as unfinished:
            self.save_model(str(unfinished))
        if not self._start:
            logger.warning(
                "badpo evaluate cannot measure %s, because the reference cannot be loaded by name",
                self.run_folder,
            )
        elif self.is_world_process_zero():
            held_out = None
            if self._held_out is not None:
                held_out = as_judgments(self._held_out, self.judgments.attributes, columns=self._columns)
            write_script_run(
                self.run_folder, self._start, self.judgments, held_out, self.bias, self.args
            )

    def _save_checkpoint(self, model: PreTrainedModel, trial: object) -> None:
        with report_full_disk(Path(self.args.output_dir)):
            super()._save_checkpoint(model, trial)

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Do nothing; `push_to_hub` creates the repository after training."""
        self.push_in_progress = None

    def push_to_hub(
        self,
        commit_message: str = "Trained with badpo",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        **card: Any,
    ) -> str:
        """Publish only ``run_folder/model``, wait for the upload, and return the URL of the commit.

        ``card`` contains arguments of `create_model_card`.
        """
        adapters = getattr(self.model, "peft_config", {}).values()
        base = next((adapter.base_model_name_or_path for adapter in adapters), None)
        if base and Path(base).exists():
            # an adapter for a local model refers to a local path, so other people cannot load the adapter
            raise ConfigError(
                "the adapter was trained on a local model, which badpo does not publish. Publish the local model and "
                "train with its Hub name, or merge the adapter: model.merge_and_unload().save_pretrained(FOLDER)"
            )
        folder = self.run_folder / "model"
        if not folder.exists():
            self.save_model()
        if not self.is_world_process_zero():
            return ""
        if card:
            self.create_model_card(**card)
        args = self.args
        api = HfApi(token=token or args.hub_token)
        name = args.hub_model_id or self.run_folder.resolve().name
        repository = api.create_repo(name, private=args.hub_private_repo, exist_ok=True)
        if revision := revision or args.hub_revision:
            api.create_branch(repository.repo_id, branch=revision, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repository.repo_id,
            folder_path=folder,
            commit_message=commit_message,
            revision=revision,
        )
        return str(commit.commit_url)

    def create_model_card(
        self,
        model_name: str | None = None,
        dataset_name: str | list[str] | None = None,
        tags: str | list[str] | None = None,
    ) -> None:
        """Write the model name, data sets and tags to the metadata of the model card in ``run_folder/model``."""
        path = self.run_folder / "model" / "README.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        metadata = (metadata_load(path) or {}) if path.exists() else {}
        added = {"model_name": model_name, "datasets": dataset_name, "tags": tags}
        metadata_save(path, metadata | {name: value for name, value in added.items() if value})

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the policy to ``run_folder/model``, without pickles or annotator data, and theta to ``run_folder``.

        If ``output_dir`` contains theta, a warning names the folder that should be published instead.
        """
        if _internal_call:
            with keep_parameter_names(self.model):
                super().save_model(output_dir, _internal_call=True)
            # the pickled training arguments are not needed and contain a token and local paths
            Path(output_dir or self.args.output_dir, TRAINING_ARGS_NAME).unlink(missing_ok=True)
            return
        state_dict = gather_weights(self.accelerator, self.model_wrapped) if self._is_divided else None
        if self.is_world_process_zero():
            folder = Path(output_dir or self.run_folder / "model")
            with restore_dropouts(self._dropouts):
                self.accelerator.unwrap_model(self.model).save_pretrained(folder, state_dict=state_dict)
            self.processing_class.save_pretrained(folder)
            save_bias(self, self.run_folder)
            if any(folder.rglob(DESCRIPTION_FILE)):
                logger.warning(
                    "%s contains theta; publish the model with push_to_hub(), or publish %s, which save_model() "
                    "without an argument writes",
                    folder,
                    self.run_folder / "model",
                )
            if output_dir is None:
                logger.warning("model: %s", folder)


def _require_supported(args: BADPOConfig, arguments: Mapping[str, Any]) -> None:
    """Raise one `ConfigError` with a sentence for every argument that is not supported."""
    errors = [
        f"{name} is not supported: {reason}. badpo.trl.BiasAdjustedDPOTrainer supports it"
        for name, reason in _UNSUPPORTED.items()
        if arguments[name] is not None
    ]
    errors += [
        f"{name} must be {noun}, not {type(arguments[name]).__name__}: {remedy}"
        for name, (kinds, noun, remedy) in _EXPECTED.items()
        if arguments[name] is not None and not isinstance(arguments[name], kinds)
    ]
    if arguments["columns"] is not None and isinstance(arguments["train_dataset"], Judgments):
        errors.append(
            "columns cannot be combined with Judgments, which have already been read; pass columns to Judgments.read"
        )
    if not isinstance(args, BADPOConfig):
        kind = type(args).__name__
        errors.append(f"args is a {kind}; pass a BADPOConfig, which has the same arguments")
    elif args.n_gpu > 1:
        errors.append(
            f"one process uses {args.n_gpu} GPUs. The Trainer would copy the model to every GPU (DataParallel), and "
            "all copies would score with the first copy's weights. Start one process for each GPU: accelerate launch "
            f"--num_processes {args.n_gpu} -m badpo train --config RECIPE (or your script); or use one GPU: "
            "CUDA_VISIBLE_DEVICES=0"
        )
    if arguments["train_dataset"] is None:
        errors.append("`train_dataset` is required: pass Judgments, or a table for Judgments.read")
    if isinstance(arguments["processing_class"], ProcessorMixin):
        errors.append(
            f"this trainer trains only on text; pass processing_class.tokenizer instead of the processor; {VISION}"
        )
    if errors:
        raise ConfigError("\n".join(errors))
