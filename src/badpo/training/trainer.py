"""`BADPOTrainer`: a `transformers.Trainer` whose rows are comparisons and whose loss is per judgment.

The trainer knows no method by name. What a vote costs is an objective (weights and a normaliser over the whole
optimizer step) and a `BiasTerm`; the named arms of an experiment are data.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from huggingface_hub import metadata_load, metadata_save
from peft import PeftConfig
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerBase, ProcessorMixin
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.trainer_utils import speed_metrics

from badpo.data.attributes import Attributes
from badpo.data.files import DESCRIPTION_FILE, require_enclosed
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError, Problem
from badpo.data.tables import Source
from badpo.objective.bias import BiasTerm
from badpo.objective.objectives import Metrics, Objective, Step, make_objective
from badpo.objective.theta import JudgedVotes
from badpo.theory.likelihood import margin
from badpo.training.batches import (
    ComparisonCollator,
    EncodedJudgments,
    StepSampler,
    evaluation_batches,
)
from badpo.training.checkpoints import (
    RunCallback,
    named_as_in_memory,
    ready_to_train,
    run_facts,
    save_bias,
    telling_full_disk,
)
from badpo.training.config import BADPOConfig, computes_in_bf16, without_double_precision
from badpo.training.encoding import require_matching_tokenizer
from badpo.training.inputs import (
    VISION,
    Columns,
    build_bias,
    checkpoint_activations,
    disable_dropout,
    dropouts_as_given,
    encode_judgments,
    evaluation_judgments,
    given_reference,
    load_model,
    make_theta_rule,
    reads_more_than_text,
    require_log_odds,
    require_matching_bias,
    require_own_optimizer,
    require_something_to_learn,
    require_whole,
    router_coefficient,
    start_policy,
    tell,
    training_judgments,
)
from badpo.training.logprobs import (
    attach,
    in_mode,
    on_device,
    plain,
    response_layout,
    scoring_attention,
)
from badpo.training.metrics import Tally, publishable, require_finite_reference, theta_metrics
from badpo.training.model_files import load_tokenizer
from badpo.training.packing import Pair, packed_comparisons, padded_rows
from badpo.training.processes import (
    gathered_votes,
    locked_by_first,
    prepare_division,
    require_alike,
    whole_weights,
)
from badpo.training.reference import (
    ReferenceCache,
    default_cache,
    divided_logps,
    starts_as_its_base,
    weights_key,
)
from badpo.training.self_test import FLOOR_IN_16_BITS, StartDifference, choose_layout

logger = logging.getLogger(__name__)

_NO_LOGITS = "evaluation keeps no logits; take the metrics of `evaluate`"
# Arguments of `DPOTrainer` that cannot be taken, each with the reason.
_NOT_TAKEN = {
    "data_collator": "micro-batches hold each comparison once and its votes apart, as the trainer makes them",
    "compute_metrics": _NO_LOGITS,
    "quantization_config": "give a peft_config, with model_init_kwargs={'dtype': 'bfloat16'}",
}
# Types of what can, where it is given, and what to write.
_TAKEN: dict[str, tuple[tuple[type, ...], str, str]] = {
    "processing_class": (
        (PreTrainedTokenizerBase, ProcessorMixin),
        "a tokenizer",
        "write processing_class=AutoTokenizer.from_pretrained(NAME)",
    ),
    "callbacks": ((list, tuple), "a list", "write callbacks=[...]"),
    "peft_config": ((PeftConfig,), "a peft.PeftConfig", "write peft_config=LoraConfig(...)"),
    "bias": ((BiasTerm,), "a BiasTerm", "the name of a variant goes into BADPOConfig(bias=NAME)"),
    "objective": (
        (Objective,),
        "an object",
        "write objective=GroupWeights(...) or one of your own",
    ),
}


def weigh_tokens(batch: dict, objective: Objective, step: int) -> None:
    """Add ``token_weight`` (n_scored,) to a micro-batch, where the objective weighs tokens."""
    if objective.weighs_tokens:
        lengths = np.bincount(batch["scoring"]["response"]).reshape(-1, 2)
        weights = objective.token_weights(lengths, batch["comparisons"], step)
        batch["token_weight"] = torch.from_numpy(np.concatenate(list(chain(*weights))))


class _StepTrainer(transformers.Trainer):
    """A Trainer whose loss is divided by a count over the whole step and all processes, and by nothing else."""

    def __init__(self, **options):
        super().__init__(**options)
        self.model_accepts_loss_kwargs = True
        if hasattr(self, "loss_is_scaled_for_ga"):
            self.loss_is_scaled_for_ga = True

    def floating_point_ops(self, inputs) -> int:
        """The Trainer's estimate, 6 for each weight and each token that is fed: what responses share is fed once."""
        scoring = inputs["scoring"]
        return 0 if scoring is None else super().floating_point_ops({"input_ids": scoring["input_ids"]})


class BADPOTrainer(_StepTrainer):
    r"""Train a policy on judgments while a bias term soaks up the annotators' lean on declared attributes.

    Minimizes, over the policy and theta, the weighted mean over judgments j of

    .. math:: -\log \sigma\bigl(s_j (u_{c_j} + \theta_{k_j}^\top d_j)\bigr)

    with u the implicit reward margin of the comparison (response a over b, beta included), s_j = +1 where a was
    chosen, and d_j the attribute difference a minus b. The policy is clipped and scheduled as the Trainer does;
    theta follows the votes by the rule of ``args.bias_fit``, and stays outside the saved model.

    Parameters
    ----------
    model : str, PreTrainedModel or PeftModel
        The start policy; also the reference when ``ref_model`` is None. The adapter of a `PeftModel` is trained on.
    ref_model : PreTrainedModel or None
        Another reference. Then the first margin is not zero, and the run says so (W152).
    train_dataset : Judgments, or whatever `Judgments.read` takes, or a data set that streams
    eval_dataset : the same, or a mapping of names to several
        Of several sets the metrics are called ``eval_<name>_loss`` and so on.
    processing_class : PreTrainedTokenizerBase or None
        None loads the model's own tokenizer.
    peft_config : peft.PeftConfig or None
        Trains a new adapter; the reference is the model as the adapter leaves it before the first step.
    columns : mapping
        Our column name -> the data set's, as in ``{"annotator": "worker_id"}``.
    attributes : attributes, in words or as objects
        When the data set is not a `Judgments` that carries them. With neither these nor a bias named, as in a script
        for TRL, the bias is one of length, and N163 says so.
    bias, objective
        A `BiasTerm` in place of the variant named by ``args.bias``; what a vote costs (`badpo.objective.objectives`).
    data_collator, compute_metrics, quantization_config
        Stand here for the order of TRL's arguments; anything but None is refused with the reason.

    Attributes
    ----------
    judgments : Judgments
        What is trained on, after comparisons that do not fit ``max_length`` were left out.
    findings : list of Problem
        What was noticed about the data and the start, each once.
    self_tests : list of SelfTest
        How far the scoring forward is from the model's own, in every precision of the run.
    first_margin : StartDifference or None
        How far the first step was from the reference; None before that step.

    References
    ----------
    BA-DPO, Eq. `barp_dpo_loss` and Appendix `app:training`.
    """

    def __init__(
        self,
        model: str | torch.nn.Module,
        ref_model: str | torch.nn.Module | None = None,
        args: BADPOConfig | None = None,
        data_collator: Callable[..., Any] | None = None,
        train_dataset: Judgments | Source | None = None,
        eval_dataset: Judgments | Source | Mapping[str, Judgments | Source] | None = None,
        processing_class: transformers.PreTrainedTokenizerBase | None = None,
        compute_metrics: Callable[..., Any] | None = None,
        callbacks: Sequence[transformers.TrainerCallback] | None = None,
        optimizers: tuple[torch.optim.Optimizer | None, Any] = (None, None),
        quantization_config: Any = None,
        peft_config: PeftConfig | None = None,
        *,
        columns: Columns = None,
        attributes: Attributes = (),
        bias: BiasTerm | None = None,
        objective: Objective | None = None,
    ):
        given = dict(locals())
        args = copy.copy(args) if args is not None else BADPOConfig()
        _require_understood(args, given)
        self.run_folder = Path(args.output_dir)
        require_enclosed(self.run_folder)
        # The Trainer's files hold pickles and the annotators' estimates; only run_folder/model is ever published.
        args.output_dir = str(self.run_folder / "checkpoints")
        keep, args.save_total_limit = args.save_total_limit or 0, None
        policy = start_policy(model, peft_config, args)
        tokenizer = processing_class or load_tokenizer(
            model if isinstance(model, str) else model.config._name_or_path,
            dict(args.model_init_kwargs or {}).get("revision", "main"),  # type: ignore[arg-type]
            args.trust_remote_code,
        )
        require_own_optimizer(optimizers, policy)
        self._named = model if isinstance(model, str) and peft_config is None else None
        self._dropouts = disable_dropout(policy) if args.disable_dropout else []
        self.ref_model = given_reference(ref_model, policy, args)
        base = plain(policy)
        unused = bool(args.ddp_find_unused_parameters) or reads_more_than_text(base)
        args.ddp_find_unused_parameters = unused
        self.findings: list[Problem] = []
        tell(self.findings, args.without_effect)
        self._columns = columns
        args.bias = args.bias if bias is None else bias.variant
        self._take_in(train_dataset, attributes, tokenizer, args)
        named = args.objective, self.judgments, args.seed, args.beta
        self.objective = objective or make_objective(*named)
        require_log_odds(self.objective, args)
        self.bias = bias or build_bias(
            self.judgments, str(args.bias), args.warm_start, args.gold_annotators
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
        self.eval_dataset = self._encoded_sets(eval_dataset)
        self._prepare_steps(base)
        self.add_callback(RunCallback(self, keep))
        self._choose_layout(base)

    def _take_in(self, train_dataset, attributes, tokenizer, args: BADPOConfig) -> None:
        """The judgments that are trained on, and their token ids."""
        require_whole(train_dataset, args)
        declared = train_dataset.attributes if isinstance(train_dataset, Judgments) else ()
        # a script that declares nothing is one for TRL, whose trainer tags its models so
        self._is_for_trl = args.bias is None and not (attributes or declared)
        judgments, args.bias, noticed = training_judgments(
            train_dataset, attributes, args.bias, self._columns
        )
        tell(self.findings, noticed)
        self.judgments, self.encoded, cost = encode_judgments(judgments, tokenizer, args)
        tell(self.findings, cost)
        require_something_to_learn(self.judgments, self.encoded)

    def _prepare_steps(self, base) -> None:
        """What the steps of a run need and add up."""
        args = self.args
        self.model.add_model_tags(["ba-dpo", "dpo"] + ["trl"] * self._is_for_trl)
        self.router_aux_loss_coef = router_coefficient(base, args.router_aux_loss_coef)
        self.aux_loss_enabled = self.router_aux_loss_coef != 0
        prepare_division(self.accelerator, bool(args.fsdp))
        self.bias.to(args.device)
        self.theta_rule = make_theta_rule(
            self.bias, self.objective.losses, self.judgments, args.bias_fit, args.bias_learning_rate
        )
        # of the step under way, and of the steps since the last log
        self._tally, self._logged = (Tally(self.judgments, args.device) for _ in range(2))
        self._step: Step
        self.resumed_from: Path | None = None
        self.first_margin: StartDifference | None = None
        # of the first step: squares of the policy's minus the reference's log-probabilities, and of the reference's
        self._from_reference = torch.zeros(2, dtype=torch.float64, device=args.device)

    def _choose_layout(self, base) -> None:
        """Test the layout that is asked for, in the run's precision; tell where it becomes another."""
        args = self.args
        autocast = self.accelerator.autocast if self.accelerator.mixed_precision != "no" else None
        if args.gradient_checkpointing:
            checkpoint_activations(self.model, args.gradient_checkpointing_kwargs)
        # gradients are checkpointed in training mode only, and with dropout no two forwards are the same
        attention = "padded" if self.router_aux_loss_coef else args.attention
        with in_mode(base, training=args.disable_dropout):
            found = choose_layout(base, attention, self.encoded, autocast)
        self._layout, reason, self.self_tests = found
        if self.router_aux_loss_coef:
            self._layout = partial(padded_rows, feed_last=True)
            reason = "the routers' auxiliary loss is of all tokens (router_aux_loss_coef: 0 leaves that loss out)"
        if reason:
            logger.warning("every response is padded instead of packed: %s", reason)
        for test in self.self_tests:
            logger.info("self-test in %s", test)

    def get_train_dataloader(self) -> DataLoader:
        """Micro-batches of comparisons with their votes, planned by `StepSampler`; not sharded by accelerate."""
        return self._loader(self.train_dataset, StepSampler(self.train_dataset, self.args))

    def get_eval_dataloader(self, eval_dataset=None) -> DataLoader:
        """Micro-batches of this process's share of an evaluation set: the trainer's, one of its by name, or another."""
        given = self.eval_dataset if eval_dataset is None else eval_dataset
        sets = self.eval_dataset if isinstance(self.eval_dataset, Mapping) else {}
        if isinstance(given, str) and sets:
            given = sets.get(given, given if Path(given).exists() else None)
        data = self._encoded_sets(given)
        if not isinstance(data, EncodedJudgments):
            raise ConfigError(
                "there is no eval_dataset to evaluate on; give one here or to the trainer, or name one of its sets: "
                + ", ".join(sets or ["it has none"])
            )
        return self._loader(data, evaluation_batches(data.judgments, self.args))

    def _loader(self, data: EncodedJudgments, batches) -> DataLoader:
        return DataLoader(
            data,
            batch_sampler=batches,
            collate_fn=self._collator(data),
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory and torch.cuda.is_available(),
        )

    def _collator(self, data: EncodedJudgments) -> ComparisonCollator:
        layout = self._layout
        # what both responses begin with cancels, unless they weigh it differently
        if self.objective.weighs_tokens and layout is packed_comparisons:
            layout = partial(packed_comparisons, scores_shared=True)
        return ComparisonCollator(data, self.reference_logps(data), layout)

    def _encoded_sets(self, given):
        """Evaluation data as they are given, encoded: None, one set, or a mapping of names to sets."""
        if given is None or isinstance(given, EncodedJudgments):
            return given
        if isinstance(given, Mapping):
            return {str(name): self._encoded_sets(part) for name, part in given.items()}
        require_whole(given, self.args)
        judgments = evaluation_judgments(given, self.judgments, self._columns)
        kept, encoded, cost = encode_judgments(judgments, self.processing_class, self.args)
        tell(self.findings, [*judgments.findings, *cost])
        return EncodedJudgments(kept, encoded)

    def compute_references(self) -> None:
        """Score the training set and the evaluation sets that the trainer was given by the reference.

        Before the first step and before a checkpoint is read: without ``ref_model`` the policy is its own reference
        only until then.
        """
        require_alike({name: str(value) for name, value in self.facts.items()}, self.accelerator)
        given = self.eval_dataset
        for data in (
            self.train_dataset,
            *(given.values() if isinstance(given, Mapping) else [given]),
        ):
            if isinstance(data, EncodedJudgments):
                self.reference_logps(data)

    @cached_property
    def reference_cache(self) -> ReferenceCache:
        """The reference's values, under the key of the weights that the reference has now, before the first step."""
        with self._reference() as reference:
            key = weights_key(reference, self.args.mixed_precision_name)
        return ReferenceCache(Path(self.args.reference_cache or default_cache()), key)

    @cached_property
    def _starts_as_its_base(self) -> bool:
        with self.accelerator.autocast():
            return starts_as_its_base(self.model, self.encoded.pairs)

    @contextmanager
    def _reference(self) -> Iterator[Any]:
        """The reference, for a block; None where it was the policy, which has moved since."""
        if self.ref_model is not None:
            yield self.ref_model.to(self.args.device)
        elif self._starts_as_its_base:
            with self.model.disable_adapter():
                yield self.model
        else:
            yield self.model if self.first_margin is None else self._loaded_again()

    def _loaded_again(self):
        """The policy as it started, where a name says what that was; else None."""
        if self._named is None:
            return None
        start = load_model(self._named, self.args).to(self.args.device)
        numerics = self.args.mixed_precision_name
        return start if weights_key(start, numerics) == self.reference_cache.key else None

    def reference_logps(self, data: EncodedJudgments) -> list[np.ndarray]:
        """Reference log-probabilities of both responses of every comparison, each process computing its share."""
        if data.reference is None:
            with self._reference() as reference:
                pairs = data.encoded.pairs
                cache, accelerator = self.reference_cache, self.accelerator
                before = cache.n_computed
                data.reference = divided_logps(cache, reference, pairs, accelerator)
            counts = len(pairs), cache.n_computed - before
            logger.info("reference: %d responses, %d newly scored, each text once", *counts)
            require_finite_reference(data.reference, data.judgments)
        return data.reference

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        """The micro-batches of one optimizer step with the objective's weights, and the step's normaliser.

        A step may hold fewer comparisons than micro-batches. Those that no process has a judgment in stand first,
        without model inputs: the last one must go through the model, where gradients are synchronised.
        """
        if 0 < self.state.max_steps <= self.state.global_step:
            # the Trainer takes a step more where the checkpoint that it resumes is the last one
            return [], None
        batches = [next(epoch_iterator) for _ in range(num_batches)]
        sizes = [len(batch["sign"]) for batch in batches]
        self._step = Step.of(batches)
        weights, normaliser = self.objective(self._step)
        self._weights = weights
        for batch, part in zip(batches, weights.split(sizes), strict=True):
            batch["weight"] = part
            weigh_tokens(batch, self.objective, self.state.global_step)
        totals = torch.tensor([float(normaliser), *sizes], dtype=torch.float64, device=device)
        totals = self.accelerator.reduce(totals, reduction="sum")
        normaliser, sizes = totals[0], totals[1:].tolist()
        for batch, n in zip(batches, sizes, strict=True):
            batch["share"] = len(batch["sign"]) / sum(sizes)
            if n == 0:
                batch["scoring"] = None
        return sorted(batches, key=lambda batch: batch["scoring"] is not None), normaliser

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """Sum of the micro-batch's weighted losses over the step's normaliser; theta's gradient is added apart."""
        if inputs["scoring"] is None:
            return torch.zeros((), device=self.args.device, requires_grad=True)
        sign, weight = inputs["sign"], inputs["weight"]
        margins, bias_logits, losses = self._judged(model, inputs, self._tally)
        if bias_logits.requires_grad:
            for_theta = self.objective.losses(margins.detach(), bias_logits, sign)
            ((weight * for_theta).sum() / num_items_in_batch).backward()
        loss = (weight * losses).sum() / num_items_in_batch
        if self.router_aux_loss_coef:
            loss = loss + self.router_aux_loss_coef * inputs["share"] * inputs["router_load"]
        # DDP averages gradients over processes, while the normaliser is already the sum over them
        return (loss * self.args.world_size).float()

    def settle_gradient_buckets(self) -> None:
        """Let DDP fix the order in which it sums gradients before the first step, as it otherwise does after it.

        With three processes or more the order decides the last bits: a resumed run, whose first step is another one,
        would sum it in the order before.
        """
        if not isinstance(self.model_wrapped, DistributedDataParallel):
            return
        inputs = self._prepare_inputs(self._collator(self.train_dataset)([]))
        (self._margins(self.model_wrapped, inputs).sum() * 0).backward()
        self.model_wrapped.zero_grad()

    def _prepare_input(self, data):
        """To the device, in its own precision: the Trainer would round float64 margins to DeepSpeed's 16 bits.

        Pinned memory is copied while the GPU still works on the micro-batch before.
        """
        if isinstance(data, torch.Tensor):
            return data.to(self.args.device, non_blocking=True)
        return super()._prepare_input(data)

    def _margins(self, model, inputs) -> torch.Tensor:
        """The margin u of every comparison of a micro-batch, (n_comparisons,), in float64."""
        # what DDP's wrapper does by itself; divided weights have no wrapper
        with self.accelerator.autocast():
            token_logps = model(scoring=inputs["scoring"])
        if isinstance(token_logps, tuple):
            token_logps, inputs["router_load"] = token_logps
        if self.first_margin is None:
            reference = inputs["reference_logps"]
            from_reference = torch.stack([token_logps.detach() - reference, reference]).double()
            self._from_reference += from_reference.square().sum(1)
        # float64: rounding of the sums is the largest part of the gradient's error in fp32
        values = torch.stack([token_logps.double(), inputs["reference_logps"].double()])
        weighed = values * inputs.get("token_weight", 1.0)
        sums = weighed.new_zeros(2, 2 * len(inputs["comparisons"]))
        sums = sums.index_add(1, inputs["scoring"]["response"], weighed)
        if "attention_mask" in inputs["scoring"] and "token_weight" not in inputs:
            policy, reference = sums.detach()
            inputs["response_scores"] = policy, self.args.beta * (policy - reference)
        (a, b), (reference_a, reference_b) = sums.view(2, -1, 2).mT
        return margin(a, b, reference_a, reference_b, self.args.beta)

    def _judged(self, model, inputs, tally: Tally) -> tuple[torch.Tensor, ...]:
        """The margin, the bias logit and the loss of every judgment of a micro-batch, of which a tally is kept."""
        sign = inputs["sign"]
        if self.router_aux_loss_coef:
            n_votes = torch.bincount(inputs["comparison"], minlength=len(inputs["comparisons"]))
            # a micro-batch without votes has no share, and is not divided by zero
            inputs["scoring"]["row_weight"] = (n_votes + (len(sign) == 0)).repeat_interleave(2)
        margins = self._margins(model, inputs)[inputs["comparison"]]
        bias_logits = self.bias(inputs["annotator"], inputs["delta"])
        losses = self.objective.losses(margins, bias_logits.detach(), sign)
        tally.add(inputs, margins, bias_logits, losses)
        return margins, bias_logits, losses

    def finish_step(self) -> Tally:
        """Add up theta's gradient and the sums over processes, step theta, and return the step's sums."""
        done, self._tally = self._tally, Tally(self.judgments, self.args.device)
        skipped = self.accelerator.optimizer_step_was_skipped
        learned = done.add_up_step(
            self.accelerator,
            f"step {self.state.global_step + 1}",
            [] if skipped else self.model.parameters(),
            [p for p in self.bias.parameters() if p.requires_grad],
            self.objective.sums(self._step, torch.cat(done.losses)),
        )
        self._logged.sums += done.sums
        if not skipped:
            self.objective.learn(learned)
        if self.theta_rule is not None:
            step = self._step
            votes = step.annotator, step.sign, step.delta, self._weights, done.margins
            own = JudgedVotes.on_processor(*votes)
            self.theta_rule.step(None if skipped else gathered_votes(self.accelerator, own))
        return done

    def see_start(self, mean_margin: float) -> None:
        """Keep how far the first step was from the reference, and stop, on every process, where that is not rounding.

        Where another reference was given, or dropout was asked for, the run goes on with a warning (W152).
        """
        moved, size = self.accelerator.reduce(self._from_reference, reduction="sum").tolist()
        difference = (moved / size) ** 0.5 if size else 0.0
        tolerance = max(self.self_tests[-1].most[0], FLOOR_IN_16_BITS[0] if self.args.tf32 else 0.0)
        self.first_margin = StartDifference(mean_margin, difference, tolerance)
        problem = self.first_margin.problem
        if problem is not None and self.ref_model is None and self.args.disable_dropout:
            raise ConfigError(
                f"{problem.what}, though the policy is its own reference. Either the model computes in training what "
                f"it did not compute before the first step, or {self.reference_cache.folder} holds values of another "
                "model: remove that folder and train again; where the difference stays, please report the model's "
                "configuration"
            )
        tell(self.findings, [problem] if problem else [])

    def state_metrics(self) -> Metrics:
        """The mean of theta by attribute, and what the objective tells of its own state."""
        return theta_metrics(self.bias) | self.objective.metrics()

    def log(self, logs: Metrics, start_time: float | None = None) -> None:
        """Add the judgment-level metrics since the last log to the Trainer's own."""
        # at the end, what came after the last regular log
        if {"loss", "train_loss"} & logs.keys() and self._logged.n_judgments:
            since = self._logged.metrics(self.router_aux_loss_coef)
            since |= publishable(self.state_metrics(), self.bias)
            if "loss" not in logs:
                del since["loss"]
            logs = logs | since
            self._logged = Tally(self.judgments, self.args.device)
        super().log(logs, start_time)

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix: str = "eval") -> Metrics:
        """Loss and accuracies on evaluation judgments; unknown annotators are given the pool mean of theta."""
        given = self.eval_dataset if eval_dataset is None else eval_dataset
        metrics: Metrics = {}
        if isinstance(given, Mapping) and given:
            for name, part in given.items():
                metrics |= self.evaluate(part, None, f"{metric_key_prefix}_{name}")
            return metrics
        start, loader = time.time(), self.get_eval_dataloader(given)
        for name, value in self._measured(loader).items():
            metrics[f"{metric_key_prefix}_{name}"] = value
        metrics |= speed_metrics(metric_key_prefix, start, len(loader.dataset), len(loader))
        self.log(dict(metrics))
        self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def predict(self, *args, **kwargs):
        """Refused."""
        raise ConfigError(f"predict is refused: {_NO_LOGITS}")

    def _measured(self, loader: DataLoader) -> Metrics:
        """The metrics of an evaluation set."""
        data: EncodedJudgments = loader.dataset
        tally = Tally(data.judgments, self.args.device)
        self.model.eval()
        with (
            torch.no_grad(),
            self.accelerator.autocast(),
            scoring_attention(self.model, self._layout),
        ):
            for batch in loader:
                weigh_tokens(batch, self.objective, self.state.global_step)
                batch["share"] = len(batch["sign"])
                self._judged(self.model, self._prepare_inputs(batch), tally)
        self.model.train()
        tally.add_up(self.accelerator, f"evaluation at step {self.state.global_step}")
        return tally.metrics(self.router_aux_loss_coef)

    @cached_property
    def facts(self) -> dict:
        """What a resumed run must share with the run it continues; see `badpo.training.checkpoints.run_facts`."""
        return run_facts(self)

    def train(self, resume_from_checkpoint=None, allow_changed: Sequence[str] = (), **kwargs):
        """Train; with ``resume_from_checkpoint=True`` continue from the newest whole checkpoint of this run.

        Called again it goes on from the present weights and theta with a new schedule, as in `transformers`.
        A checkpoint that was made with other data or settings is refused; ``allow_changed=["code"]`` lets the versions
        of packages differ. So is a new run where whole checkpoints of another one are.
        """
        with locked_by_first(self.run_folder):
            self.compute_references()
            self.resumed_from = resumed = ready_to_train(self, resume_from_checkpoint, allow_changed)
            with scoring_attention(self.model, self._layout):
                return super().train(resume_from_checkpoint=resumed and str(resumed), **kwargs)

    def _save_checkpoint(self, model, trial):
        with telling_full_disk(Path(self.args.output_dir)):
            super()._save_checkpoint(model, trial)

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Nothing yet: `push_to_hub` makes the repository, when there is a model to publish."""
        self.push_in_progress = None

    def push_to_hub(
        self,
        commit_message="Trained with badpo",
        blocking=True,
        token=None,
        revision=None,
        **card,
    ) -> str:
        """Publish ``run_folder/model`` and never what lies beside it; return the address of the commit.

        ``card`` are arguments of `create_model_card`. Every call waits.
        """
        adapters = getattr(self.model, "peft_config", {}).values()
        base = next((adapter.base_model_name_or_path for adapter in adapters), None)
        if base and Path(base).exists():
            # nobody else could load the adapter, and its base's place would be published
            raise ConfigError(
                "the adapter was trained on a local model, which is not published with it. Publish that model and "
                "load it by its Hub name, or merge: model.merge_and_unload().save_pretrained(FOLDER)"
            )
        folder = self.run_folder / "model"
        if not folder.exists():
            self.save_model()
        if not self.is_world_process_zero():
            return ""
        from huggingface_hub import HfApi

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

    def create_model_card(self, model_name=None, dataset_name=None, tags=None) -> None:
        """Write what is given into the header of the card in ``run_folder/model``."""
        path = self.run_folder / "model" / "README.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        there = (metadata_load(path) or {}) if path.exists() else {}
        told = {"model_name": model_name, "datasets": dataset_name, "tags": tags}
        metadata_save(path, there | {name: value for name, value in told.items() if value})

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the policy to ``run_folder/model``, no pickle and no trace of any annotator, and theta beside it.

        Where the folder that is asked for holds theta, as the run folder does, a line says what to publish.
        """
        if _internal_call:
            with named_as_in_memory(self.model):
                super().save_model(output_dir, _internal_call=True)
            # nobody reads this pickle, and it holds a token and the places of this machine
            Path(output_dir or self.args.output_dir, TRAINING_ARGS_NAME).unlink(missing_ok=True)
            return
        is_divided = self.is_fsdp_enabled or self.is_deepspeed_enabled
        state_dict = whole_weights(self.accelerator, self.model_wrapped) if is_divided else None
        if self.is_world_process_zero():
            folder = Path(output_dir or self.run_folder / "model")
            with dropouts_as_given(self._dropouts):
                self.accelerator.unwrap_model(self.model).save_pretrained(folder, state_dict=state_dict)
            self.processing_class.save_pretrained(folder)
            save_bias(self, self.run_folder)
            if any(folder.rglob(DESCRIPTION_FILE)):
                publish = f"push_to_hub(), or {self.run_folder / 'model'}, which save_model() without a folder writes"
                logger.warning("%s has theta beside the model; publish by %s", folder, publish)
            if output_dir is None:
                logger.warning("model: %s", folder)


def _require_understood(args, given: Mapping[str, Any]) -> None:
    """Raise `ConfigError` with a sentence for every argument that cannot be followed."""
    complaints = [
        f"{name} is refused: {reason}. badpo.trl.BiasAdjustedDPOTrainer takes it"
        for name, reason in _NOT_TAKEN.items()
        if given[name] is not None
    ]
    complaints += [
        f"{name} takes {noun}, not {type(given[name]).__name__}: {remedy}"
        for name, (kinds, noun, remedy) in _TAKEN.items()
        if given[name] is not None and not isinstance(given[name], kinds)
    ]
    if given["columns"] is not None and isinstance(given["train_dataset"], Judgments):
        complaints.append(
            "columns is refused: Judgments are read already; give columns to Judgments.read"
        )
    if not isinstance(args, BADPOConfig):
        kind = type(args).__name__
        complaints.append(f"args is a {kind}; give a BADPOConfig, which takes the same arguments")
    elif args.n_gpu > 1:
        complaints.append(
            f"one process sees {args.n_gpu} GPUs, over which the Trainer would copy the model (DataParallel), and the "
            "copies would score with the first one's weights. Start a process for each: accelerate launch "
            f"--num_processes {args.n_gpu} -m badpo train --config RECIPE (or your script); or show it one GPU: "
            "CUDA_VISIBLE_DEVICES=0"
        )
    if given["train_dataset"] is None:
        complaints.append(
            "`train_dataset` is required: give Judgments, or a table that Judgments.read takes"
        )
    if isinstance(given["processing_class"], ProcessorMixin):
        complaints.append(
            f"only text is trained on; give processing_class.tokenizer in place of the processor; {VISION}"
        )
    if complaints:
        raise ConfigError("\n".join(complaints))


def supervised_arguments(folder: Path, **options: Any) -> transformers.TrainingArguments:
    """The supervised stage's arguments: cosine with 10 % warm-up, no checkpoints, and the Trainer's own ``options``.

    Without ``bf16`` among the options its precision is that of a preference stage that is told nothing either.
    """
    settings: dict[str, Any] = {
        "lr_scheduler_type": "cosine",
        "warmup_steps": 0.1,
        "use_cpu": without_double_precision(),
        "remove_unused_columns": False,
        "save_strategy": "no",
        "dataloader_pin_memory": False,
        "ddp_find_unused_parameters": False,
        "report_to": "none",
        "disable_tqdm": True,
        "seed": 0,
        **options,
    }
    settings.setdefault("bf16", computes_in_bf16(settings["use_cpu"]))
    return transformers.TrainingArguments(output_dir=str(folder / "checkpoints"), **settings)


class SupervisedTrainer(_StepTrainer):
    """Fine-tunes on responses through the same forward as the preference stage.

    A step's loss is the mean over all its response tokens, whatever the micro-batches and processes.
    """

    def __init__(
        self, model, args: transformers.TrainingArguments, pairs: Sequence[Pair], callbacks=None
    ):
        self._layout = response_layout(attach(model), pairs)
        # a list is a data set
        super().__init__(
            model=model,
            args=args,
            train_dataset=list(pairs),
            data_collator=self._collated,
            callbacks=callbacks,
        )

    def _collated(self, rows: list[Pair]) -> dict:
        return {"scoring": on_device(self._layout(rows), torch.device("cpu"))}

    def train(self, *args, **kwargs):
        """As `transformers.Trainer.train`, under the attention that the packed rows need."""
        with scoring_attention(self.model, self._layout):
            return super().train(*args, **kwargs)

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        """The micro-batches of a step and its number of response tokens over all processes."""
        batches = list(islice(epoch_iterator, num_batches))
        n_tokens = torch.tensor(float(sum(len(b["scoring"]["target"]) for b in batches)), device=device)
        return batches, self.accelerator.reduce(n_tokens, reduction="sum")

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """Negative log-likelihood of the response tokens, over the step's number of them."""
        logps = model(scoring=inputs["scoring"])
        # DDP averages gradients over processes, while the count is already the sum over them
        return -logps.sum() / num_items_in_batch * self.args.world_size
