"""`BADPOTrainer`: a `transformers.Trainer` whose rows are comparisons and whose loss is per judgment.

The trainer knows no method by name. What a vote costs is an objective (weights and a normaliser over the whole
optimizer step) and a `BiasTerm`; the named arms of an experiment are data.
"""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.utils.data import DataLoader
from transformers import AutoTokenizer

from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError
from badpo.objective.bias import VARIANTS, BiasTerm
from badpo.objective.objectives import Step, VoteWeights
from badpo.theory.likelihood import judgment_loss, margin
from badpo.training.batches import ComparisonCollator, JudgmentIds, StepSampler
from badpo.training.config import BADPOConfig
from badpo.training.encoding import EncodedComparisons, require_matching_tokenizer
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
from badpo.training.reference import ReferenceCache, comparison_logps, default_cache, weights_key
from badpo.training.run_callback import FirstMargin, RunCallback, adam_tensors, load_adam_tensors
from badpo.training.run_folder import MARKER, changed_facts, newest_complete

logger = logging.getLogger(__name__)

BIAS_OPTIMIZER_FILE = "bias_optimizer.safetensors"
OBJECTIVE_FILE = "objective.safetensors"

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
    objective : callable or None
        (Step) -> (weights, normaliser); None weights every vote as the table does.
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
        # The Trainer's files hold pickles and the annotators' estimates; only run_folder/model is ever published.
        args.output_dir = str(self.run_folder / "checkpoints")
        keep, args.save_total_limit = args.save_total_limit, None
        tokenizer = processing_class or AutoTokenizer.from_pretrained(_model_name(model))
        model = attach(load_model(model, args))
        self._ref_model = attach(ref_model) if ref_model is not None else None
        # Of the weights as they are given: an adapter that is added now is no part of the reference.
        self._reference_model_key = weights_key(self._ref_model or model, args.mixed_precision_name)
        self._new_adapter = peft_config is not None
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
        gold_problems = gold_findings(self.judgments, self._gold)
        for finding in gold_problems:
            logger.warning("%s", finding)
        self.findings += gold_problems
        self.first_margin: FirstMargin | None = None
        self.objective = objective if objective is not None else VoteWeights()
        self._sums, self._logged = self._new_sums(), self._new_sums()
        self._resumed_from: Path | None = None
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
        self.bias.to(self.args.device)
        parameters = list(self.bias.parameters())
        self.bias_optimizer = torch.optim.Adam(parameters, lr=args.bias_learning_rate) if parameters else None
        self.add_callback(RunCallback(self, self.run_folder / "log.jsonl", keep))
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
        collator = ComparisonCollator(self.judgments, self.encoded, self.references[0], self._layout)
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
        of_training = self.reference_logps(self.encoded)
        return of_training, self.reference_logps(self.eval_encoded) if self.eval_encoded is not None else []

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
        batches = [next(epoch_iterator) for _ in range(num_batches)]
        sizes = [len(batch["sign"]) for batch in batches]
        weights, normaliser = self.objective(Step.of(batches))
        for batch, part in zip(batches, weights.split(sizes), strict=True):
            batch["weight"] = part
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
        losses = judgment_loss(margins, bias_logits.detach(), sign)
        if bias_logits.requires_grad:
            for_theta = judgment_loss(margins.detach(), bias_logits, sign)
            ((weight * for_theta).sum() / num_items_in_batch).backward()
        self._sums.add(margins, bias_logits, sign, inputs["delta"], weight, losses)
        # DDP averages gradients over processes, while the normaliser is already the sum over them
        return ((weight * losses).sum() / num_items_in_batch * self.args.world_size).float()

    def _margins(self, model, inputs) -> torch.Tensor:
        response = inputs["scoring"]["response"]
        difference = inputs["reference_difference"]
        token_logps = model(scoring=inputs["scoring"]).double()
        sums = token_logps.new_zeros(2 * len(difference)).index_add(0, response, token_logps)
        return margin(sums[0::2], sums[1::2], difference, torch.zeros_like(difference), self.args.beta)

    def self_test(self) -> float:
        """Relative difference of the scoring forward from the model's own, on the longest comparison."""
        return forward_difference(self.model, self._layout, self.encoded)

    def finish_step(self) -> StepSums:
        """Add up theta's gradient and the sums over processes, step theta, and return the step's sums."""
        parameters = [p for p in self.bias.parameters() if p.grad is not None]
        flat = torch.cat(
            [self._sums.vector.to(self.args.device), *(p.grad.flatten().double() for p in parameters)]
        )
        flat = self.accelerator.reduce(flat, reduction="sum")
        done, self._sums = self._sums, self._new_sums()
        done.vector = flat[: len(done.vector)].cpu()
        self._logged.vector += done.vector
        if not torch.isfinite(done.vector).all():
            raise FloatingPointError(
                f"step {self.state.global_step + 1}: the loss or a margin is not finite. Lower the learning rate; "
                "check that the reference log-probabilities and the policy are finite in this precision"
            )
        start = len(done.vector)
        for parameter in parameters:
            stop = start + parameter.numel()
            parameter.grad.copy_(flat[start:stop].view_as(parameter))
            start = stop
        if self.bias_optimizer is not None:
            if not self.accelerator.optimizer_step_was_skipped:
                self.bias_optimizer.step()
            self.bias_optimizer.zero_grad()
        return done

    def theta_metrics(self) -> dict[str, float]:
        """``bias/theta/<attribute>``: the mean over annotators of the composed theta."""
        mean = self.bias.theta().detach().mean(dim=0).tolist()
        return {
            f"bias/theta/{name}": value
            for name, value in zip(self.judgments.attribute_names, mean, strict=True)
        }

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the judgment-level metrics since the last log to the Trainer's own."""
        if "loss" in logs and self._logged.n_judgments:
            logs = {**logs, **self._logged.metrics(), **self.theta_metrics()}
            self._logged = self._new_sums()
        super().log(logs, start_time)

    def floating_point_ops(self, inputs) -> int:
        """Not counted: a micro-batch holds each comparison once, which the Trainer's estimate does not know."""
        return 0

    def evaluate(
        self, eval_dataset=None, ignore_keys=None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Loss and accuracies on the evaluation judgments; unknown annotators are given the pool mean of theta."""
        if self.eval_judgments is None or self.eval_encoded is None:
            raise ConfigError("there is no eval_dataset to evaluate on")
        sums = self._new_sums()
        collator = ComparisonCollator(
            self.eval_judgments, self.eval_encoded, self.references[1], self._layout
        )
        order = np.argsort(self.eval_judgments.votes["comparison"].to_numpy(), kind="stable")
        mine = order[self.args.process_index :: self.args.world_size]
        self.model.eval()
        with torch.no_grad(), self.accelerator.autocast(), scoring_attention(self.model, self._layout):
            for start in range(0, len(mine), self.args.per_device_eval_batch_size):
                inputs = self._prepare_inputs(
                    collator(mine[start : start + self.args.per_device_eval_batch_size])
                )
                margins = self._margins(self.model, inputs)[inputs["comparison"]]
                bias_logits = self.bias(inputs["annotator"], inputs["delta"])
                losses = judgment_loss(margins, bias_logits, inputs["sign"])
                sums.add(margins, bias_logits, inputs["sign"], inputs["delta"], inputs["weight"], losses)
        self.model.train()
        sums.vector = self.accelerator.reduce(sums.vector.to(self.args.device), reduction="sum").cpu()
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in sums.metrics().items()}
        self.log(dict(metrics))
        self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _new_sums(self) -> StepSums:
        return StepSums(self.judgments.attribute_names, [a.threshold for a in self.judgments.attributes])

    # -- checkpoints and results -----------------------------------------------------------------------------

    @property
    def facts(self) -> dict:
        """What a resumed run must share with the run it continues."""
        args = self.args
        return {
            "data": self.judgments.fingerprint(),
            "reference": self._reference_model_key,
            "attributes": ", ".join(self.judgments.attribute_names),
            "bias": args.bias,
            "warm_start": args.warm_start,
            "bias_learning_rate": args.bias_learning_rate,
            "beta": args.beta,
            "encoding": args.encoding,
            "max_length": args.max_length,
            "max_prompt_length": args.max_prompt_length,
            "attention": args.attention,
            "disable_dropout": args.disable_dropout,
            "learning_rate": args.learning_rate,
            "lr_scheduler_type": str(args.lr_scheduler_type),
            "warmup_steps": args.warmup_steps,
            "optim": str(args.optim),
            "weight_decay": args.weight_decay,
            "adam_beta1": args.adam_beta1,
            "adam_beta2": args.adam_beta2,
            "max_grad_norm": args.max_grad_norm,
            "batching": args.batching,
            f"{'comparisons' if args.batching == 'comparisons' else 'judgments'} per step": self._batch_size,
            "max_steps": args.max_steps,
            "num_train_epochs": args.num_train_epochs,
            "seed": args.seed,
            "data_seed": args.data_seed,
            # where there are none the fact is left out, as checkpoints of older versions have it
            **({"gold_annotators": ", ".join(gold)} if (gold := self.bias.gold_annotators) else {}),
        }

    def train(self, resume_from_checkpoint=None, **kwargs):
        """Train; with ``resume_from_checkpoint=True`` continue from the newest whole checkpoint of this run.

        Raises
        ------
        ConfigError
            Nothing to resume, or the checkpoint was made with other data or settings; each is listed.
        """
        _ = self.references
        if resume_from_checkpoint:
            self._resumed_from = self._checkpoint_to_resume(resume_from_checkpoint)
            resume_from_checkpoint = str(self._resumed_from)
        with scoring_attention(self.model, self._layout):
            return super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)

    def has_checkpoint(self) -> bool:
        """Whether this run left a whole checkpoint that `train` could resume from."""
        return newest_complete(Path(self.args.output_dir))[0] is not None

    def _checkpoint_to_resume(self, asked) -> Path:
        folder, passed_over = newest_complete(Path(self.args.output_dir))
        if asked is not True:
            folder = Path(asked)
        for reason in passed_over:
            logger.warning("not resumed from: %s", reason)
        if folder is None:
            raise ConfigError(f"no whole checkpoint to resume in {self.args.output_dir}")
        before = json.loads((folder / MARKER).read_text())["facts"]
        changes = changed_facts(before, self.facts)
        if changes:
            raise ConfigError(
                f"{folder.name} was made with other settings: {'; '.join(changes)}. "
                "Change them back, or start a new output_dir"
            )
        return folder

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
        if self._resumed_from is None:
            return
        saved = BiasTerm.load(self._resumed_from)
        self.bias.load_state_dict(saved.state_dict())
        if saved.extra.get("first_margin"):
            self.first_margin = FirstMargin(**saved.extra["first_margin"])
        if self.bias_optimizer is not None:
            load_adam_tensors(self.bias_optimizer, load_file(self._resumed_from / BIAS_OPTIMIZER_FILE))
        state = self._resumed_from / OBJECTIVE_FILE
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
        state_dict = self.accelerator.get_state_dict(self.model_wrapped) if self.is_fsdp_enabled else None
        if self.is_world_process_zero():
            folder = Path(output_dir) if output_dir else self.run_folder / "model"
            self.accelerator.unwrap_model(self.model).save_pretrained(folder, state_dict=state_dict)
            self.processing_class.save_pretrained(folder)
            self.save_bias(self.run_folder)


def _model_name(model) -> str:
    return model if isinstance(model, str) else model.config._name_or_path
