"""`BADPOTrainer`: a `transformers.Trainer` whose rows are comparisons and whose loss is per judgment.

The trainer knows no method by name. What a vote costs is an objective (weights and a normaliser over the whole
optimizer step) and a `BiasTerm`; the named arms of an experiment are data.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
import transformers
from accelerate.utils import gather_object
from safetensors.torch import load_file, save_file
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from transformers import AutoTokenizer

from badpo.data.enclosed import require_enclosed
from badpo.data.judgments import Judgments
from badpo.data.privacy import is_about_single_people
from badpo.data.problems import ConfigError
from badpo.objective.bias import VARIANTS, BiasTerm
from badpo.objective.objectives import Step, VoteWeights
from badpo.theory.likelihood import margin
from badpo.training.batches import ComparisonCollator, JudgmentIds, StepSampler
from badpo.training.config import BADPOConfig
from badpo.training.encoding import EncodedComparisons, require_matching_tokenizer
from badpo.training.finite import (
    NotFiniteError,
    StepWatch,
    gradient_message,
    gradients_not_finite,
    not_finite_message,
    require_finite_reference,
)
from badpo.training.gold_annotators import gold_cross_votes, gold_findings
from badpo.training.inputs import (
    as_judgments,
    build_bias,
    disable_dropout,
    encode_judgments,
    evaluation_judgments,
    load_model,
    require_matching_bias,
    with_adapter,
)
from badpo.training.logprobs import attach, choose_layout, forward_difference, scoring_attention
from badpo.training.metrics import StepSums
from badpo.training.processes import prepare_division, require_alike, whole_weights
from badpo.training.reference import ReferenceCache, comparison_logps, default_cache, weights_key
from badpo.training.resume import checkpoint_to_resume, remove_later, rows_taken_up, run_facts, take_up
from badpo.training.run_callback import LOG_FILE, FirstMargin, RunCallback, adam_tensors, load_adam_tensors
from badpo.training.run_folder import newest_complete, remove_unsealed
from badpo.training.separated import separated_by_attribute, separated_findings
from badpo.training.token_weights import require_comparable_start, scored_layout, weigh_tokens

logger = logging.getLogger(__name__)

BIAS_OPTIMIZER_FILE = "bias_optimizer.safetensors"
OBJECTIVE_FILE = "objective.safetensors"
THETA_METRIC = "bias/theta/"

# Of both responses of every comparison, one value per token.
ReferenceLogps = list[tuple[np.ndarray, np.ndarray]]


class BADPOTrainer(transformers.Trainer):
    r"""Train a policy on judgments while a bias term soaks up the annotators' lean on declared attributes.

    Minimizes, over the policy and theta, the weighted mean over judgments j of

    .. math:: -\log \sigma\bigl(s_j (u_{c_j} + \theta_{k_j}^\top d_j)\bigr)

    with u the implicit reward margin of the comparison (response a over b, beta included), s_j = +1 where a was
    chosen, and d_j the attribute difference a minus b. The policy is clipped and scheduled as the Trainer does;
    theta has its own Adam, constant and unclipped, and stays outside the saved model.

    Parameters
    ----------
    model : str or PreTrainedModel
        The start policy; also the reference when ``ref_model`` is None.
    ref_model : PreTrainedModel or None
        Another reference. Then the first margin is not zero, and the run says so.
    args : BADPOConfig
    train_dataset, eval_dataset : Judgments, or whatever `Judgments.read` takes
    processing_class : PreTrainedTokenizerBase or None
        None loads the model's own tokenizer.
    attributes : sequence of Attribute
        Declared attributes, when the data set is not a `Judgments` that carries them.
    peft_config : peft.PeftConfig or None
        Trains an adapter; the reference is the model without it.
    bias : BiasTerm or None
        None builds the variant named by ``args.bias``.
    objective : Objective or None
        What a vote costs (`badpo.objective.objectives`); None weights every vote as the table does.
    callbacks, optimizers
        As in `transformers.Trainer`.

    Attributes
    ----------
    bias : BiasTerm
    judgments : Judgments
        What is trained on, after comparisons that do not fit ``max_length`` were left out.
    findings : list of Problem
        What the length limit cost.
    reference_cache : ReferenceCache
    first_margin : FirstMargin or None
        The mean margin of the first step, which is 0 where the policy starts at its reference; None before it.

    References
    ----------
    BA-DPO, Eq. `barp_dpo_loss` and Appendix `app:training`.
    """

    def __init__(
        self,
        model,
        ref_model=None,
        args: BADPOConfig | None = None,
        train_dataset=None,
        eval_dataset=None,
        processing_class=None,
        attributes: Sequence = (),
        peft_config=None,
        bias: BiasTerm | None = None,
        objective=None,
        callbacks=None,
        optimizers=(None, None),
    ):
        args = copy.copy(args) if args is not None else BADPOConfig("runs/badpo")
        self.run_folder = Path(args.output_dir)
        require_enclosed(self.run_folder)
        # The Trainer's files hold pickles and the annotators' estimates; only run_folder/model is ever published.
        args.output_dir = str(self.run_folder / "checkpoints")
        keep, args.save_total_limit = args.save_total_limit, None
        tokenizer = processing_class or AutoTokenizer.from_pretrained(_model_name(model))
        model = attach(load_model(model, args))
        self._ref_model = attach(ref_model) if ref_model is not None else None
        # Of the weights as they are given: an adapter that is added now is no part of the reference.
        self._reference_model_key = weights_key(self._ref_model or model, args.mixed_precision_name)
        self._new_adapter = peft_config is not None
        # a new adapter starts at random values, which must be those of the seed
        transformers.set_seed(args.seed)
        policy = with_adapter(model, peft_config)
        if args.disable_dropout:
            disable_dropout(policy)
        self._read_data(train_dataset, eval_dataset, tokenizer, args, attributes)
        require_matching_tokenizer(self.encoded, tokenizer, model.get_input_embeddings().weight.shape[0])

        self.bias = (
            bias
            if bias is not None
            else build_bias(self.judgments, args.bias, args.warm_start, args.gold_annotators)
        )
        require_matching_bias(self.bias, self.judgments, args.gold_annotators)
        of_people = gold_findings(self.judgments, self._gold) + separated_findings(self.judgments, self.bias)
        for finding in of_people:
            logger.warning("%s", finding)
        self.findings += of_people
        self.first_margin: FirstMargin | None = None
        self.objective = objective if objective is not None else VoteWeights()
        require_comparable_start(self.objective, args.warm_start)
        self._sums, self._logged = self._new_sums(), self._new_sums()
        self._step: Step
        self._losses: list[torch.Tensor] = []
        self.resumed_from: Path | None = None
        super().__init__(
            model=policy,
            args=args,
            train_dataset=JudgmentIds(self.judgments.n_votes),
            eval_dataset=None if self.eval_judgments is None else JudgmentIds(self.eval_judgments.n_votes),
            processing_class=tokenizer,
            callbacks=callbacks,
            optimizers=optimizers,
        )
        self.model_accepts_loss_kwargs = True
        if hasattr(self, "loss_is_scaled_for_ga"):
            self.loss_is_scaled_for_ga = True
        prepare_division(self.accelerator, bool(self.args.fsdp))
        self.bias.to(self.args.device)
        self._watch = StepWatch(self.judgments, self.args.device)
        parameters = list(self.bias.parameters())
        self.bias_optimizer = torch.optim.Adam(parameters, lr=args.bias_learning_rate) if parameters else None
        self.add_callback(RunCallback(self, self.run_folder / LOG_FILE, keep))
        mixed = self.accelerator.mixed_precision != "no"
        autocast = self.accelerator.autocast if mixed else None
        self._layout, reason = choose_layout(model, args.attention, self.encoded, autocast)
        if reason:
            logger.warning("every response is padded instead of packed: %s", reason)
        cache_folder = Path(args.reference_cache) if args.reference_cache else default_cache()
        self.reference_cache = ReferenceCache(cache_folder, self._reference_model_key)

    # -- data ------------------------------------------------------------------------------------------------

    def _read_data(self, train_dataset, eval_dataset, tokenizer, args, attributes) -> None:
        judgments = as_judgments(train_dataset, attributes)
        if VARIANTS[args.bias] and not judgments.attributes:
            raise ConfigError(
                f"bias: {args.bias} needs at least one attribute. Declare it, for example "
                'attributes=[Length(ratio=1.5)], or train plain DPO with bias="none"'
            )
        self.judgments, self.encoded, self.findings = encode_judgments(judgments, tokenizer, args)
        self.eval_judgments: Judgments | None = None
        self.eval_encoded: EncodedComparisons | None = None
        if eval_dataset is not None:
            judgments, strangers = evaluation_judgments(eval_dataset, self.judgments)
            self.eval_judgments, self.eval_encoded, findings = encode_judgments(judgments, tokenizer, args)
            self.findings += strangers + findings
        for finding in self.findings:
            logger.warning("%s", finding)

    def get_train_dataloader(self) -> DataLoader:
        """Micro-batches of comparisons with their votes, planned by `StepSampler`; not sharded by accelerate."""
        sampler = StepSampler(
            self.judgments,
            self.encoded,
            self.args.batching,
            self._batch_size,
            self.args.gradient_accumulation_steps,
            self.args.data_seed if self.args.data_seed is not None else self.args.seed,
            self.args.process_index,
            self.args.world_size,
        )
        layout = scored_layout(self.objective, self._layout)
        collator = ComparisonCollator(self.judgments, self.encoded, self.references[0], layout)
        return DataLoader(
            self.train_dataset,
            batch_sampler=sampler,
            collate_fn=collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory and torch.cuda.is_available(),
        )

    @property
    def _batch_size(self) -> int:
        args = self.args
        return args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size

    @cached_property
    def references(self) -> tuple[ReferenceLogps, ReferenceLogps]:
        """Reference log-probabilities of the training and of the evaluation comparisons.

        Asked for before the first step and before a checkpoint is read: without ``ref_model`` the policy is its own
        reference only until then.
        """
        require_alike({name: str(value) for name, value in self.facts.items()}, self.accelerator)
        of_training = self.reference_logps(self.encoded)
        require_finite_reference(of_training, self.judgments)
        if self.eval_encoded is None or self.eval_judgments is None:
            return of_training, []
        of_evaluation = self.reference_logps(self.eval_encoded)
        require_finite_reference(of_evaluation, self.eval_judgments)
        return of_training, of_evaluation

    def reference_logps(self, encoded: EncodedComparisons) -> ReferenceLogps:
        """Reference log-probabilities of both responses of every comparison, each process computing its share."""
        model = self._ref_model.to(self.args.device) if self._ref_model is not None else self.model
        without_adapter = (
            self.model.disable_adapter() if self._ref_model is None and self._new_adapter else nullcontext()
        )
        rank, world = self.args.process_index, self.args.world_size
        with without_adapter, self.accelerator.autocast():
            part = encoded.take(np.arange(rank, len(encoded), world))
            comparison_logps(self.reference_cache, model, part.prompt_ids, part.a_ids, part.b_ids)
            self.accelerator.wait_for_everyone()
            values = comparison_logps(
                self.reference_cache, model, encoded.prompt_ids, encoded.a_ids, encoded.b_ids
            )
        for shard in self.reference_cache.damaged:
            logger.warning("reference cache: %s is damaged; its values were computed again", shard)
        return values

    # -- the step --------------------------------------------------------------------------------------------

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
        for batch, part in zip(batches, weights.split(sizes), strict=True):
            batch["weight"] = part
            self._weigh_tokens(batch, self.judgments, self.references[0])
        totals = torch.tensor([float(normaliser), *sizes], dtype=torch.float64, device=device)
        totals = self.accelerator.reduce(totals, reduction="sum")
        normaliser, sizes = totals[0], totals[1:].tolist()
        skipped = [{**batch, "scoring": None} for batch, n in zip(batches, sizes, strict=True) if n == 0]
        return skipped + [batch for batch, n in zip(batches, sizes, strict=True) if n], normaliser

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """Sum of the micro-batch's weighted losses over the step's normaliser; theta's gradient is added apart."""
        if inputs["scoring"] is None:
            return torch.zeros((), device=self.args.device, requires_grad=True)
        sign, weight = inputs["sign"], inputs["weight"]
        margins = self._margins(model, inputs)[inputs["comparison"]]
        bias_logits = self.bias(inputs["annotator"], inputs["delta"])
        losses = self.objective.losses(margins, bias_logits.detach(), sign)
        if bias_logits.requires_grad:
            for_theta = self.objective.losses(margins.detach(), bias_logits, sign)
            ((weight * for_theta).sum() / num_items_in_batch).backward()
        self._losses.append(losses.detach())
        self._sums.add(margins, bias_logits, sign, inputs["delta"], weight, losses)
        self._watch.see(inputs["votes"], margins, bias_logits, losses)
        # DDP averages gradients over processes, while the normaliser is already the sum over them
        return ((weight * losses).sum() / num_items_in_batch * self.args.world_size).float()

    def settle_gradient_buckets(self) -> None:
        """Let DDP fix the order in which it sums gradients before the first step, as it otherwise does after it.

        With three processes or more the order decides the last bits: a resumed run, whose first step is another one,
        would sum it in the order before.
        """
        if not isinstance(self.model_wrapped, DistributedDataParallel):
            return
        collator = ComparisonCollator(self.judgments, self.encoded, self.references[0], self._layout)
        inputs = self._prepare_inputs(collator([]))
        (self._margins(self.model_wrapped, inputs).sum() * 0).backward()
        self.model_wrapped.zero_grad()

    def _prepare_input(self, data):
        """To the device, in its own precision: the Trainer would round float64 margins to DeepSpeed's 16 bits."""
        if isinstance(data, torch.Tensor):
            return data.to(self.args.device)
        return super()._prepare_input(data)

    def _margins(self, model, inputs) -> torch.Tensor:
        response = inputs["scoring"]["response"]
        difference = inputs["reference_difference"]
        # what DDP's wrapper does by itself; divided weights have no wrapper
        with self.accelerator.autocast():
            token_logps = model(scoring=inputs["scoring"]).double()
        if "token_weight" in inputs:
            token_logps = token_logps * inputs["token_weight"]
        sums = token_logps.new_zeros(2 * len(difference)).index_add(0, response, token_logps)
        return margin(sums[0::2], sums[1::2], difference, torch.zeros_like(difference), self.args.beta)

    def _weigh_tokens(self, batch: dict, judgments: Judgments, references: ReferenceLogps) -> None:
        """Give a micro-batch the weight of every token, where the objective weighs them."""
        if self.objective.weighs_tokens:
            weigh_tokens(batch, self.objective, judgments, references, self.state.global_step)

    def self_test(self) -> float:
        """Relative difference of the scoring forward from the model's own, on the longest comparison."""
        return forward_difference(self.model, self._layout, self.encoded)

    def finish_step(self) -> StepSums:
        """Add up theta's gradient and the sums over processes, step theta, and return the step's sums.

        Raises
        ------
        NotFiniteError
            A margin, a loss, a gradient or theta is not finite, on any process; raised by all of them.
        """
        skipped = self.accelerator.optimizer_step_was_skipped
        parameters = list(self.bias.parameters())
        gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
        # a scaler that skips the step has seen what is not finite, and goes on with a smaller scale
        broken = gradients_not_finite([] if skipped else self.model.parameters(), self.args.device)
        flat = torch.cat(
            [
                torch.stack([self._watch.count, broken]),
                self._sums.vector.to(self.args.device),
                *(g.flatten().double() for g in gradients),
                self._objective_sums().to(self.args.device),
            ]
        )
        flat = self.accelerator.reduce(flat, reduction="sum")
        (n_judgments, n_gradients), flat = flat[:2].tolist(), flat[2:]
        done, self._sums = self._sums, self._new_sums()
        watch, self._watch = self._watch, StepWatch(self.judgments, self.args.device)
        done.vector = flat[: len(done.vector)].cpu()
        self._logged.vector += done.vector
        when = f"step {self.state.global_step + 1}"
        if n_judgments:
            self._stop_not_finite(watch, when, int(n_judgments), done.n_judgments)
        if n_gradients or not torch.isfinite(flat).all():
            names = sorted(set(gather_object(watch.comparisons())))
            raise NotFiniteError(gradient_message(when, names))
        start = len(done.vector)
        for parameter in parameters:
            stop = start + parameter.numel()
            parameter.grad = flat[start:stop].view_as(parameter).to(parameter.dtype)
            start = stop
        if not skipped:
            self.objective.learn(flat[start:].cpu())
        if self.bias_optimizer is not None:
            if not skipped:
                self.bias_optimizer.step()
            self.bias_optimizer.zero_grad()
        return done

    def _objective_sums(self) -> torch.Tensor:
        """What the objective learns from this process's share of the step."""
        losses, self._losses = self._losses, []
        return self.objective.sums(self._step, torch.cat(losses))

    def _stop_not_finite(self, watch: StepWatch, when: str, n_broken: int, n_judgments: int) -> None:
        findings = gather_object(watch.findings())
        raise NotFiniteError(not_finite_message(when, findings, n_broken, n_judgments))

    def theta_metrics(self) -> dict[str, float]:
        """``bias/theta/<attribute>``: the mean over annotators of the composed theta."""
        mean = self.bias.theta().detach().mean(dim=0).tolist()
        return {
            f"{THETA_METRIC}{name}": value
            for name, value in zip(self.judgments.attribute_names, mean, strict=True)
        }

    def state_metrics(self) -> dict[str, float]:
        """`theta_metrics`, and what the objective tells of its own state."""
        return {**self.theta_metrics(), **self.objective.metrics()}

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the judgment-level metrics since the last log to the Trainer's own."""
        if "loss" in logs and self._logged.n_judgments:
            logs = {**logs, **self._logged.metrics(), **self._publishable(self.state_metrics())}
            self._logged = self._new_sums()
        super().log(logs, start_time)

    def _publishable(self, metrics: dict[str, float]) -> dict[str, float]:
        """The metrics that a tracker may get: a mean of theta over a few annotators is about those."""
        learned = [name for name in self.bias.annotators if name not in self.bias.gold_annotators]
        if not is_about_single_people(learned):
            return metrics
        return {name: value for name, value in metrics.items() if not name.startswith(THETA_METRIC)}

    def floating_point_ops(self, inputs) -> int:
        """Not counted: a micro-batch holds each comparison once, which the Trainer's estimate does not know."""
        return 0

    def evaluate(
        self, eval_dataset=None, ignore_keys=None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Loss and accuracies on the evaluation judgments; unknown annotators are given the pool mean of theta."""
        if self.eval_judgments is None or self.eval_encoded is None:
            raise ConfigError("there is no eval_dataset to evaluate on")
        sums, watch = self._new_sums(), StepWatch(self.eval_judgments, self.args.device)
        collator = ComparisonCollator(
            self.eval_judgments,
            self.eval_encoded,
            self.references[1],
            scored_layout(self.objective, self._layout),
        )
        order = np.argsort(self.eval_judgments.votes["comparison"].to_numpy(), kind="stable")
        mine = np.array_split(order, self.args.world_size)[self.args.process_index]
        # as many forward passes on every process: divided weights are gathered by all of them together
        longest, size = math.ceil(len(order) / self.args.world_size), self.args.per_device_eval_batch_size
        self.model.eval()
        with torch.no_grad(), self.accelerator.autocast(), scoring_attention(self.model, self._layout):
            for start in range(0, longest, size):
                batch = collator(mine[start : start + size])
                self._weigh_tokens(batch, self.eval_judgments, self.references[1])
                inputs = self._prepare_inputs(batch)
                margins = self._margins(self.model, inputs)[inputs["comparison"]]
                bias_logits = self.bias(inputs["annotator"], inputs["delta"])
                losses = self.objective.losses(margins, bias_logits, inputs["sign"])
                sums.add(margins, bias_logits, inputs["sign"], inputs["delta"], inputs["weight"], losses)
                watch.see(inputs["votes"], margins, bias_logits, losses)
        self.model.train()
        flat = torch.cat([watch.count[None], sums.vector.to(self.args.device)])
        flat = self.accelerator.reduce(flat, reduction="sum").cpu()
        sums.vector = flat[1:]
        if n_broken := int(flat[0]):
            when = f"evaluation at step {self.state.global_step}"
            self._stop_not_finite(watch, when, n_broken, len(order))
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in sums.metrics().items()}
        self.log(dict(metrics))
        self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _new_sums(self) -> StepSums:
        return StepSums(self.judgments.attribute_names, [a.threshold for a in self.judgments.attributes])

    # -- checkpoints and results -----------------------------------------------------------------------------

    @cached_property
    def facts(self) -> dict:
        """What a resumed run must share with the run it continues; see `badpo.training.resume.run_facts`."""
        return run_facts(
            self.args,
            self.judgments,
            self.bias,
            self.processing_class,
            self.model,
            self.objective,
            self._reference_model_key,
            self._batch_size,
        )

    def train(self, resume_from_checkpoint=None, allow_changed: Sequence[str] = (), **kwargs):
        """Train; with ``resume_from_checkpoint=True`` continue from the newest whole checkpoint of this run.

        Parameters
        ----------
        resume_from_checkpoint : bool or str or None
        allow_changed : sequence of str
            What may differ from the checkpoint: names in `badpo.training.run_folder.ALLOWED_CHANGES`.

        Raises
        ------
        ConfigError
            Nothing to resume, or the checkpoint was made with other data or settings; each is listed. Without
            resuming: there are whole checkpoints already, of a run that this one would mix with.
        """
        _ = self.references, self.facts
        folder = Path(self.args.output_dir)
        if resume_from_checkpoint:
            resume_from_checkpoint = self._prepare_resume(folder, resume_from_checkpoint, allow_changed)
        elif self.has_checkpoint():
            raise ConfigError(
                f"{folder} holds checkpoints of a run; continue it with resume_from_checkpoint=True, or choose another "
                "output_dir"
            )
        if self.is_world_process_zero():
            remove_unsealed(folder)
        with scoring_attention(self.model, self._layout):
            return super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)

    def has_checkpoint(self) -> bool:
        """Whether this run left a whole checkpoint that `train` could resume from."""
        return newest_complete(Path(self.args.output_dir))[0] is not None

    def _prepare_resume(self, folder: Path, asked, allowed: Sequence[str]) -> str:
        self.resumed_from, changes = checkpoint_to_resume(folder, asked, self.facts, allowed)
        for change in changes:
            logger.warning("resumed with a change that was allowed: %s", change)
        self.accelerator.wait_for_everyone()
        if self.is_world_process_zero():
            remove_later(folder, self.resumed_from)
        return str(self.resumed_from)

    def save_bias_state(self, folder: Path) -> None:
        """Write theta, its optimizer and the objective's state into a checkpoint."""
        self.save_bias(folder)
        if self.bias_optimizer is not None:
            save_file(adam_tensors(self.bias_optimizer), folder / BIAS_OPTIMIZER_FILE)
        if state := self.objective.state_dict():
            save_file(dict(state), folder / OBJECTIVE_FILE)

    @property
    def _gold(self) -> np.ndarray:
        return self.bias.mask.cpu().numpy() == 0

    def gold_votes(self) -> dict[str, int]:
        """Cross-group judgments of the gold annotators by attribute; empty when no one is gold."""
        return gold_cross_votes(self.judgments, self._gold) if self._gold.any() else {}

    def load_bias_state(self) -> None:
        """Read back what `save_bias_state` wrote, when training resumes."""
        if self.resumed_from is None:
            return
        saved = BiasTerm.load(self.resumed_from)
        new = take_up(self.bias, saved)
        if new:
            logger.warning("%d annotators are new and start at the pool mean of theta", len(new))
        if saved.extra.get("first_margin"):
            self.first_margin = FirstMargin(**saved.extra["first_margin"])
        if self.bias_optimizer is not None:
            moments = load_file(self.resumed_from / BIAS_OPTIMIZER_FILE)
            load_adam_tensors(self.bias_optimizer, rows_taken_up(moments, self.bias, saved))
        state = self.resumed_from / OBJECTIVE_FILE
        self.objective.load_state_dict(load_file(state) if state.exists() else {})

    def save_bias(self, folder: Path) -> None:
        """Write ``bias.safetensors`` and ``bias.json`` with what they were fitted to."""
        self.bias.save(
            folder,
            {
                "variant": self.args.bias,
                "attributes": [dict(a.config) for a in self.judgments.attributes],
                "data": self.judgments.fingerprint(),
                "beta": self.args.beta,
                "first_margin": None if self.first_margin is None else asdict(self.first_margin),
                "gold_votes": self.gold_votes(),
                **({} if self.objective.in_log_odds else {"theta_in_log_odds": False}),
                "separated": {
                    name: len(people)
                    for name, people in separated_by_attribute(self.judgments, self.bias).items()
                },
            },
        )

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Nothing yet: `push_to_hub` makes the repository, when there is a model to publish."""
        self.push_in_progress = None

    def push_to_hub(self, commit_message: str = "Trained with badpo", **kwargs) -> str:
        """Publish ``run_folder/model`` and nothing else; return the address of the commit.

        The run folder beside it holds the annotators' estimates and the checkpoints, which are never uploaded.

        Raises
        ------
        ConfigError
            An adapter whose base is a local folder: nobody else could load it, and its path would be published.
        """
        from huggingface_hub import HfApi

        base = next(
            (c.base_model_name_or_path for c in getattr(self.model, "peft_config", {}).values()), None
        )
        if base and Path(base).exists():
            raise ConfigError(
                "the adapter was trained on a local model, which is not published with it. Publish that model and "
                "load it by its Hub name, or merge: model.merge_and_unload().save_pretrained(FOLDER)"
            )
        if not (self.run_folder / "model").exists():
            self.save_model()
        if not self.is_world_process_zero():
            return ""
        api = HfApi(token=self.args.hub_token)
        name = self.args.hub_model_id or self.run_folder.resolve().name
        address = api.create_repo(name, private=self.args.hub_private_repo, exist_ok=True)
        commit = api.upload_folder(
            repo_id=address.repo_id,
            folder_path=self.run_folder / "model",
            commit_message=commit_message,
            **kwargs,
        )
        return str(commit.commit_url)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the policy to ``run_folder/model`` and the bias term beside it.

        The policy is written with ``save_pretrained``: weights, configuration and tokenizer, no pickle and no
        trace of any annotator.
        """
        if _internal_call:
            super().save_model(output_dir, _internal_call=True)
            return
        is_divided = self.is_fsdp_enabled or self.is_deepspeed_enabled
        state_dict = whole_weights(self.accelerator, self.model_wrapped) if is_divided else None
        if self.is_world_process_zero():
            folder = Path(output_dir) if output_dir else self.run_folder / "model"
            self.accelerator.unwrap_model(self.model).save_pretrained(folder, state_dict=state_dict)
            self.processing_class.save_pretrained(folder)
            self.save_bias(self.run_folder)


def _model_name(model) -> str:
    return model if isinstance(model, str) else model.config._name_or_path
