"""Inputs of a run: a policy, encoded judgments, and a bias term for the annotators."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import types
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Unpack

import numpy as np
import pandas as pd
import torch
import transformers
from datasets import IterableDataset
from peft import PeftConfig, get_peft_model
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from badpo.auditing.annotators import find_named_annotators
from badpo.auditing.pool_bias import estimate_shared_biases
from badpo.data.attributes import Attributes, Length
from badpo.data.judgments import Judgments, ReadingOptions
from badpo.data.problems import ConfigError, DataError, Problem, counted
from badpo.data.tables import Source, read_table
from badpo.data.vocabulary import TEMPLATE_COLUMNS
from badpo.estimation.fit import Votes, fit_conditional
from badpo.estimation.shrinkage import shrink_normal
from badpo.objective.bias import VARIANTS, BiasTerm
from badpo.objective.objectives import Objective
from badpo.objective.theta import AdamSteps, AnchoredFit, JudgedVotes, Losses, ThetaRule
from badpo.theory import Bools, Floats
from badpo.training.config import RENAMED, BADPOConfig
from badpo.training.encoding import (
    EncodedComparisons,
    encode_comparisons,
    report_lengths,
)
from badpo.training.logprobs import attach
from badpo.training.model_files import UNREADABLE, describe_unreadable, load_weights
from badpo.training.trl_keys import ALIASES

logger = logging.getLogger(__name__)

# For each configuration object of a model, the dropout settings before `disable_dropout` set them to zero.
Dropouts = list[tuple[PreTrainedConfig, dict[str, float]]]
# badpo's column names, mapped to the table's column names; None leaves a column unused.
Columns = Mapping[str, str | None] | None
VISION = "badpo.trl.BiasAdjustedDPOTrainer trains vision-language models on images too"
# Codes of notices about defaults that badpo chose for a script; these notices are logged like warnings.
_LOGGED_NOTICES = ("N103", "N161", "N162", "N163")


class TrainingData(NamedTuple):
    """Training judgments, the bias variant, and findings about both."""

    judgments: Judgments
    variant: str
    findings: list[Problem]


class EncodedData(NamedTuple):
    """Judgments whose comparisons fit the length limit, their token ids, and findings about the length limit."""

    judgments: Judgments
    comparisons: EncodedComparisons
    findings: list[Problem]


def log_findings(known: list[Problem], findings: Iterable[Problem]) -> None:
    """Log each finding that is not yet in ``known``, and add it to ``known``."""
    for finding in findings:
        if finding not in known:
            known.append(finding)
            is_quiet = finding.severity == "notice" and finding.code not in _LOGGED_NOTICES
            logger.log(logging.INFO if is_quiet else logging.WARNING, "%s", finding)


# -- models ------------------------------------------------------------------------------------------------------


def load_model(
    model: str | PreTrainedModel, args: BADPOConfig, argument: str = "model"
) -> PreTrainedModel:
    """Return a model with the scoring branch; if ``model`` is a name, load it with ``args.model_init_kwargs``.

    The default ``dtype`` is float32, because bfloat16 weights would lose the small updates of preference training.
    """
    if isinstance(model, str):
        init_kwargs = args.model_init_kwargs
        init_options = init_kwargs if isinstance(init_kwargs, dict) else {}
        options = {ALIASES.get(key, key): value for key, value in init_options.items()}
        defaults = {"trust_remote_code": args.trust_remote_code, "dtype": "float32"}
        try:
            model = load_weights(model, **defaults | options)
        except ConfigError as error:
            if "Unrecognized configuration class" not in str(error):
                raise
            raise ConfigError(
                f'"{model}" is not a causal language model, and this trainer supports no other kind; {VISION}'
            ) from error
        except UNREADABLE as error:
            raise ConfigError(describe_unreadable(str(model), error)) from error
    if not hasattr(model, "config"):
        raise ConfigError(
            f"{argument} must be a PreTrainedModel, a PeftModel or the name of a model, not {type(model).__name__}"
        )
    if getattr(model, "is_quantized", False):
        raise ConfigError(
            f"{argument} is quantized, but this trainer requires weights without quantization. Load the model in "
            "bfloat16 without a quantization_config, and pass a peft_config. For QLoRA, use "
            "badpo.trl.BiasAdjustedDPOTrainer"
        )
    if hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None):
        raise ConfigError(
            f"{argument} is compiled by torch.compile, which does not support the forward pass for scoring "
            "comparisons; pass the model without torch.compile"
        )
    return attach(model)


def start_policy(
    model: str | PreTrainedModel, peft_config: PeftConfig | None, args: BADPOConfig
) -> PreTrainedModel:
    """Return the initial policy with the scoring branch; raise `ConfigError` if it cannot be trained."""
    policy = load_model(model, args)
    # the seed determines the random initial weights of a new adapter
    transformers.set_seed(args.seed)
    policy = add_adapter(policy, peft_config)
    require_trainable(policy)
    return policy


def require_trainable(model: PreTrainedModel) -> None:
    """Raise `ConfigError` if the model has no trainable weight."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(
            "no weight of the model is trainable. Load an adapter with PeftModel.from_pretrained(base, adapter, "
            "is_trainable=True), or call model.requires_grad_(True), or add a new adapter with peft_config "
            "(use_peft: true in a recipe)"
        )


def has_other_inputs(model: PreTrainedModel) -> bool:
    """Whether a model has parts that process no text, such as a vision tower. DDP would wait for their gradients."""
    return model.config.get_text_config() is not model.config


def load_reference(
    ref_model: str | PreTrainedModel | None, policy: PreTrainedModel, args: BADPOConfig
) -> PreTrainedModel | None:
    """Return ``ref_model`` with the scoring branch, or None if the initial policy is the reference."""
    if ref_model is None:
        return None
    trained = {id(parameter) for parameter in policy.parameters() if parameter.requires_grad}
    reference = load_model(ref_model, args, "ref_model")
    if any(id(parameter) in trained for parameter in reference.parameters()):
        raise ConfigError(
            "model and ref_model cannot be the same object or share trained weights, because the reference would "
            "change with the policy. Omit ref_model to use the initial policy as the reference"
        )
    return reference


def require_own_optimizer(
    optimizers: tuple[Optimizer | None, LRScheduler | None], policy: PreTrainedModel
) -> None:
    """Raise `ConfigError` unless the optimizer trains the policy and the scheduler belongs to this optimizer."""
    kinds = Optimizer, LRScheduler
    is_pair = isinstance(optimizers, list | tuple) and len(optimizers) == 2
    pairs = zip(optimizers, kinds, strict=True) if is_pair else ()
    if not is_pair or not all(value is None or isinstance(value, kind) for value, kind in pairs):
        raise ConfigError(
            "optimizers must contain an optimizer from torch.optim and a scheduler from torch.optim.lr_scheduler. For "
            "a default, write None, as in optimizers=(torch.optim.SGD(model.parameters(), lr=1e-6), None)"
        )
    optimizer, schedule = optimizers
    trained = {id(parameter) for parameter in policy.parameters() if parameter.requires_grad}
    groups = optimizer.param_groups if optimizer is not None else [{"params": policy.parameters()}]
    if not any(id(parameter) in trained for group in groups for parameter in group["params"]):
        raise ConfigError(
            "optimizers: the optimizer contains none of the model's trained weights. Create the optimizer from the "
            "parameters of the model object that you pass. For a new adapter, pass get_peft_model(model, peft_config) "
            "as the model instead of peft_config"
        )
    if schedule is not None and schedule.optimizer is not optimizer:
        raise ConfigError(
            "optimizers: the scheduler belongs to another optimizer; pass that optimizer together with the scheduler"
        )


def add_adapter(model: PreTrainedModel, peft_config: PeftConfig | None) -> PreTrainedModel:
    """Add a new adapter to a model, unless ``peft_config`` is None."""
    present = getattr(model, "peft_config", {})
    configs = [*present.values()] if peft_config is None else [peft_config]
    if any(config.is_prompt_learning for config in configs):
        raise ConfigError(
            "prompt tuning is not supported, because it adds virtual tokens to every sequence; use LoRA, or train all "
            "weights"
        )
    if peft_config is None:
        return model
    if present:
        raise ConfigError(
            "the model already has an adapter, and peft_config would add another one. First merge the adapter and save "
            "the model (PeftModel.from_pretrained(base, adapter).merge_and_unload().save_pretrained(folder)); then "
            "pass the folder of the merged model with the peft_config"
        )
    if str(getattr(peft_config, "init_lora_weights", "")).startswith("pissa_niter"):
        raise ConfigError(
            f"init_lora_weights={peft_config.init_lora_weights} moves a random part of the base weights into the "
            "adapter, so that the saved adapter would not match the base model; use pissa, which is deterministic"
        )
    with warnings.catch_warnings():
        # peft still reads the old name of the attribute for gradient checkpointing
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        return get_peft_model(model, peft_config)


def checkpoint_activations(model: PreTrainedModel, options: Mapping[str, object] | None) -> None:
    """Turn on gradient checkpointing with the method name of the installed version of transformers."""
    newest = f"{RENAMED['gradient_checkpointing']}_enable"
    enable = getattr(model, newest) if hasattr(model, newest) else model.gradient_checkpointing_enable
    enable(options)


def read_router_coefficient(model: PreTrainedModel, requested: float | None) -> float:
    """Return the weight of the load-balancing loss: ``requested``, or by default the weight in the configuration.

    The result is 0 if the model is not a mixture of experts with a load-balancing loss.
    """
    config = model.config.get_text_config()
    if not hasattr(config, "output_router_logits"):
        if requested:
            raise ConfigError(
                f"router_aux_loss_coef is {requested}, but {type(model).__name__} is not a mixture of experts that "
                "returns router logits; omit router_aux_loss_coef"
            )
        return 0.0
    return float(getattr(config, "router_aux_loss_coef", 0.0) if requested is None else requested)


def disable_dropout(model: PreTrainedModel) -> Dropouts:
    """Turn off every dropout, layer drop and router jitter in ``model``; return the removed dropout settings.

    Dropout rates become 0 in both modules and configurations, because some layers read the rate from a module and
    others from the configuration. A module with router jitter keeps the jitter value, which some models also use as a
    routing threshold, but always stays in evaluation mode.
    """
    removed: Dropouts = []
    for module in model.modules():
        for holder in (module, vars(module).get("config") or module):
            numbers = {name: x for name, x in vars(holder).items() if isinstance(x, float) and x}
            dropouts = {name: x for name, x in numbers.items() if "drop" in name}
            holder.__dict__.update(dict.fromkeys(dropouts, 0.0))
            if holder is not module and dropouts:
                removed.append((holder, dropouts))
            if holder is module and any("jitter" in name for name in numbers):
                module.eval()
                module.train = types.MethodType(lambda module, mode=True: module, module)
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0
    return removed


@contextmanager
def restore_dropouts(removed: Dropouts) -> Iterator[None]:
    """Context manager that restores the dropout settings that `disable_dropout` removed, in order to save the model."""
    for configuration, dropouts in removed:
        configuration.__dict__.update(dropouts)
    try:
        yield
    finally:
        for configuration, dropouts in removed:
            configuration.__dict__.update(dict.fromkeys(dropouts, 0.0))


# -- bias terms --------------------------------------------------------------------------------------------------


def build_bias(
    judgments: Judgments, variant: str, warm_start: str, gold_named: Sequence[str] = ()
) -> BiasTerm:
    """Create the bias term of a variant in `badpo.objective.bias.VARIANTS`, with theta at zero or at an estimate.

    With ``warm_start`` "audit", every theta starts at the estimate of
    `badpo.auditing.pool_bias.estimate_shared_biases`. With ``warm_start`` "offline", theta starts at the log-odds that
    a vote is for the response with the attribute. ``gold_named`` lists gold annotators, whose theta is held at zero.
    With gold annotators, "offline" and "audit" start at the result of `estimate_bias_from_gold`.
    """
    parts = VARIANTS[variant]
    if "deviation" in parts and not judgments.has_identities:
        raise ConfigError(
            f"bias: {variant} needs an annotator column, but there is none. Map the column with columns: "
            "{annotator: NAME}, or use bias: pooled, which needs no identities"
        )
    classes = judgments.annotators["annotator_class"].tolist() if "class_offset" in parts else None
    gold = find_gold_annotators(judgments, gold_named)
    bias = BiasTerm(
        judgments.attribute_names,
        judgments.annotators["pseudonym"].tolist(),
        parts,
        annotator_class=classes,
        mask=torch.from_numpy(~gold),
    )
    if warm_start == "zero" or not parts:
        return bias
    if gold.any():
        bias.start_at(torch.from_numpy(estimate_bias_from_gold(judgments, gold)))
        return bias
    if warm_start == "audit":
        estimates = [estimate for estimate, _ in estimate_shared_biases(judgments).values()]
    else:
        estimates = [estimate.log_odds for estimate in judgments.offline_log_odds()]
    bias.warm_start(torch.tensor([estimate or 0.0 for estimate in estimates]))
    return bias


def make_theta_rule(
    bias: BiasTerm,
    losses: Losses,
    judgments: Judgments | None,
    fit: str | None,
    learning_rate: float | None,
) -> ThetaRule | None:
    """Create the update rule of theta ("anchored" or "adam"); return None if no part of theta is learned.

    ``losses`` is the objective's loss function. ``judgments`` contains all training votes. For a stream, ``judgments``
    is None, and theta starts at 0.
    """
    if not bias.parts:
        return None
    if fit == "adam" and learning_rate is not None:
        return AdamSteps(bias, learning_rate)
    return AnchoredFit(bias, losses, None if judgments is None else make_start_votes(judgments))


def make_start_votes(judgments: Judgments) -> JudgedVotes:
    """Return the training votes with the policy's margins before training, which are zero."""
    names = ("annotator", "sign", "weight")
    annotator, sign, weight = (torch.from_numpy(judgments.votes[n].to_numpy(copy=True)) for n in names)
    delta = torch.from_numpy(np.array(judgments.delta, float))
    zeros = torch.zeros(len(sign))
    return JudgedVotes.on_processor(annotator, sign, delta, weight, margin=zeros, loss=zeros)


def find_gold_annotators(judgments: Judgments, names: Sequence[object]) -> Bools:
    """Find the gold annotators by their ids or pseudonyms; return a mask of shape (n_annotators,).

    Gold annotators are known to have no bias, so their votes identify the bias that the other annotators share.
    """
    if not len(names):
        return np.zeros(judgments.n_annotators, dtype=bool)
    gold = find_named_annotators(judgments.annotators["pseudonym"].to_numpy(), names, "gold_annotators")
    if gold.all():
        raise ConfigError(
            f"gold_annotators: all {counted(len(gold), 'annotator')} are gold, so no bias is left to learn. If no "
            "annotator has a bias, train plain DPO with bias: none"
        )
    without_votes = [name for name, n in count_gold_votes(judgments, gold).items() if n == 0]
    if without_votes:
        raise ConfigError(
            f"gold_annotators: the {counted(int(gold.sum()), 'gold annotator')} have no vote on responses that differ "
            f"on {', '.join(without_votes)}, so their votes do not identify this bias. Name other annotators, let the "
            "gold annotators judge such comparisons, or train on this attribute without gold annotators"
        )
    return gold


def count_gold_votes(judgments: Judgments, gold: Bools) -> dict[str, int]:
    """Count, for each attribute, the gold annotators' votes on responses that differ in the attribute."""
    is_gold_vote = gold[judgments.votes["annotator"].to_numpy()]
    n_cross = judgments.cross_group()[is_gold_vote].sum(axis=0)
    return dict(zip(judgments.attribute_names, n_cross.tolist(), strict=True))


def find_revealing_attributes(judgments: Judgments, bias: BiasTerm) -> list[str]:
    """Find the attributes whose learned theta would reveal too much about individual people.

    Theta is learned from the cross-group votes of the annotators who are not gold annotators.
    """
    is_gold = judgments.annotators["pseudonym"].isin(bias.gold_annotators).to_numpy()
    is_learned = ~is_gold[judgments.votes["annotator"].to_numpy()]
    votes = zip(judgments.attribute_names, judgments.cross_group().T, strict=True)
    return [name for name, cross in votes if judgments.reveals_people(cross & is_learned)]


def estimate_bias_from_gold(judgments: Judgments, gold: Bools) -> Floats:
    """Estimate the bias of every annotator in log-odds, assuming that the gold annotators have no bias.

    The estimates come from the conditional estimator with the gold annotators as anchors
    (`badpo.estimation.fit.fit_conditional`). As in the audit, the estimates are shrunk toward their mean. The array has
    the shape (n_annotators, n_attributes). The function raises `ConfigError` if an attribute has no comparison that
    connects the gold annotators with the other annotators.
    """
    sign, annotator = (judgments.votes[c].to_numpy() for c in ("sign", "annotator"))
    strata, n_annotators = judgments.comparable_votes(), judgments.n_annotators
    votes = Votes(strata, sign, annotator, judgments.delta, n_annotators)
    fit = fit_conditional(votes, anchored=gold)
    bias = np.zeros_like(fit.deviation)
    for i, name in enumerate(judgments.attribute_names):
        if not fit.absolute[i] or not np.isfinite(fit.deviation[~gold, i]).any():
            raise ConfigError(
                f"gold_annotators: on {name}, no comparison connects the gold annotators with the other annotators, so "
                "warm_start: offline has no estimate. Use warm_start: zero, or let gold annotators and other "
                "annotators judge the same comparisons"
            )
        shrunk = shrink_normal(fit.finite_deviation[~gold, i], fit.finite_se[~gold, i])
        bias[~gold, i] = shrunk.posterior.mean
    return bias


def require_log_odds(objective: Objective, args: BADPOConfig) -> None:
    """Raise `ConfigError` if theta would start at log-odds although the objective uses another unit for theta."""
    if args.warm_start != "zero" and not objective.in_log_odds:
        raise ConfigError(
            f'warm_start "{args.warm_start}" starts theta at the log-odds of the votes, but theta in '
            f"{type(objective).__name__} has another unit; use warm_start: zero"
        )


def require_matching_bias(bias: BiasTerm, judgments: Judgments, gold_named: Sequence[str] = ()) -> None:
    """Raise `ConfigError` unless ``bias`` has the same annotators, attributes and gold annotators as the run."""
    annotators = tuple(judgments.annotators["pseudonym"])
    if bias.annotators != annotators or bias.attributes != judgments.attribute_names:
        raise ConfigError(
            f"the bias term has {counted(len(bias.annotators), 'annotator')} and the attributes "
            f"{list(bias.attributes)}, but the judgments have {counted(len(annotators), 'annotator')} and the "
            f"attributes {list(judgments.attribute_names)}; annotators and attributes must be the same and in the same "
            "order. Without the argument bias, the trainer makes the bias term from the judgments"
        )
    if gold_named and set(gold_named) != set(bias.gold_annotators):
        raise ConfigError(
            f"gold_annotators names {counted(len(gold_named), 'annotator')}, but the mask of the bias term has "
            f"{len(bias.gold_annotators)} gold annotators; both must name the same annotators. Omit "
            "gold_annotators or bias; without bias, the trainer makes the bias term from the judgments"
        )


# -- judgments ---------------------------------------------------------------------------------------------------


def read_training(
    data: Judgments | Source, attributes: Attributes, variant: str | None, columns: Columns = None
) -> TrainingData:
    """Read the training data and choose the bias variant.

    If a script written for TRL declares neither a bias variant nor an attribute, badpo uses the attribute length.
    """
    try:
        judgments = as_judgments(data, attributes, columns=columns)
    except DataError as error:
        codes = {problem.code for problem in error.problems if problem.severity == "error"}
        if variant not in ("pooled", "none") or codes != {"E112"}:
            raise
        # the bias variants "pooled" and "none" ignore annotator ids, so badpo can use votes without an annotator
        judgments = as_judgments(data, attributes, columns={**(columns or {}), "annotator": None})
    require_texts_alone(judgments)
    chosen, findings = choose_variant(variant, judgments)
    if variant is None and not judgments.attributes:
        judgments = judgments.with_attributes([Length(ratio=1.5)])
        reason = "no attribute is declared"
        if findings:
            reason += " and the votes name no annotators"
        remedy = (
            'declare the attribute toward which the votes may be biased, as in attributes=["length:ratio=1.5"], and '
            'the column of the annotators, as in columns={"annotator": NAME}; or train plain DPO with bias="none"'
        )
        what = f'the bias "{chosen}" toward length (ratio=1.5) was chosen, because {reason}'
        findings = [Problem("N163", what, "the table of votes", remedy)]
    if chosen != "none" and not judgments.attributes:
        raise ConfigError(
            f"bias: {chosen} needs at least one attribute. Declare an attribute, for example "
            'attributes=[Length(ratio=1.5)], or train plain DPO with bias="none"'
        )
    # the notice N110 would only repeat the notice N161 or N163, so N110 is dropped if one of them is given
    known = [finding for finding in judgments.findings if finding.code != "N110" or not findings]
    return TrainingData(judgments, chosen, [*known, *findings])


def require_texts_alone(judgments: Judgments) -> None:
    """Raise `DataError` (E144) if the table contains images, which the policy would not see."""
    for finding in judgments.findings:
        if finding.code == "W108":
            what = f"{finding.what}; the votes are about images, and this trainer trains only on text"
            remedy = f"omit the image column if the texts can be judged without images; {VISION}"
            raise DataError([Problem("E144", what, finding.where, remedy)])


def choose_variant(requested: str | None, judgments: Judgments) -> tuple[str, list[Problem]]:
    """Choose the bias variant; the default is `shared_mean`, or `pooled` (N161) if the votes name no annotators."""
    # the warning W110 reports an unused column that looks like annotator ids
    has_unused_ids = any(finding.code == "W110" for finding in judgments.findings)
    if requested or judgments.has_identities or has_unused_ids:
        return requested or "shared_mean", []
    what = "bias: pooled was chosen (one bias for all annotators), because the votes name no annotators"
    remedy = "map the column with columns: {annotator: NAME} to learn a bias for each annotator; or write bias: pooled"
    return "pooled", [Problem("N161", what, "the table of votes", remedy)]


def encode_judgments(
    judgments: Judgments, tokenizer: PreTrainedTokenizerBase, args: BADPOConfig
) -> EncodedData:
    """Encode judgments and drop comparisons that exceed ``max_length``; raise `DataError` (E140) if no vote remains."""
    encoded = encode_comparisons(
        judgments.comparisons, tokenizer, args.encoding, args.max_length, args.max_prompt_length
    )
    findings = report_lengths(judgments, encoded, tokenizer, args.max_length)
    if judgments.n_votes and encoded.fits.all():
        return EncodedData(judgments, encoded, findings)
    fitting = judgments.take(encoded.fits[judgments.votes["comparison"].to_numpy()])
    if fitting.n_votes:
        return EncodedData(fitting, encoded.take(np.flatnonzero(encoded.fits)), findings)
    if judgments.n_votes:
        raise DataError([report_no_fit(args.max_length)])
    remedy = "check which rows of the table were excluded"
    raise DataError([Problem("E140", "no comparison fits", "there is no judgment", remedy)])


def report_no_fit(max_length: int | None) -> Problem:
    """Return the problem E140, which states that no prompt leaves room for a response."""
    where = f"every prompt has {max_length} tokens or more"
    return Problem("E140", "no comparison fits", where, "raise max_length")


def require_something_to_learn(judgments: Judgments, encoded: EncodedComparisons) -> None:
    """Raise `DataError` (E143) if both responses of every comparison have the same token ids."""
    if encoded.identical.all():
        what = f"nothing to learn: the two responses of all {counted(len(encoded), 'comparison')} have identical tokens"
        where = f"first: comparison {judgments.comparisons['comparison_id'].iloc[0]}"
        remedy = "check the response columns; raise max_length if the responses were cut"
        raise DataError([Problem("E143", what, where, remedy, len(encoded))])


def read_evaluation(data: Judgments | Source, train: Judgments, columns: Columns = None) -> Judgments:
    """Read evaluation data with the same attributes and annotator indices as the training data ``train``.

    Annotators without training votes get the index -1, for which a `BiasTerm` uses the mean theta of the pool.
    """
    declared = [attribute.config for attribute in train.attributes]
    is_measured = isinstance(data, Judgments) and [a.config for a in data.attributes] == declared
    judgments = as_judgments(data, () if is_measured else train.attributes, columns=columns)
    require_texts_alone(judgments)
    numbers = pd.Index(train.annotators["pseudonym"]).get_indexer(judgments.annotators["pseudonym"])
    votes = judgments.votes.assign(annotator=numbers[judgments.votes["annotator"].to_numpy()])
    return dataclasses.replace(judgments, annotators=train.annotators, votes=votes)


def as_judgments(
    data: Judgments | Source, attributes: Attributes, **options: Unpack[ReadingOptions]
) -> Judgments:
    """Return ``data`` as `Judgments` with the attributes; if it is a table, also read TRL's chat-template columns.

    ``options`` are passed to `Judgments.read`.
    """
    if isinstance(data, Judgments):
        return data.with_attributes(attributes) if attributes else data
    if isinstance(data, str | os.PathLike):
        judgments = Judgments.read(data, attributes=attributes, **options)
        # the warning W107 reports a column that TRL reads and that `Judgments.read` ignores
        if all(finding.code != "W107" for finding in judgments.findings):
            return judgments
    # `datasets` decodes cells of its JSON feature only if the data set is read row by row
    needs_rows = is_stream(data) or "Json(" in str(getattr(data, "features", ""))
    source = list(data) if needs_rows and isinstance(data, Iterable) else data
    table = read_table(source, options.get("bad_rows") == "drop")
    present = [name for name in TEMPLATE_COLUMNS if name in table.frame]
    used = [name for name in present if table.frame[name].notna().any()]
    cells = {name: pd.Series([*map(_encode_cell, table.frame[name])], dtype=object) for name in used}
    table = dataclasses.replace(table, frame=table.frame.assign(**cells))
    with_template_columns: ReadingOptions = {**options, "keep": used}
    judgments = Judgments.read(table, attributes=attributes, **with_template_columns)
    if lost := [name for name in used if name not in judgments.comparisons]:
        what = f"rows with the same prompt and responses differ in {' and '.join(lost)}"
        remedy = "give each of these rows its own comparison_id, so that they are different comparisons"
        raise DataError([Problem("E147", what, table.name, remedy)])
    if not is_stream(data):
        return judgments
    what = f"the whole stream was read: {counted(len(table.frame), 'row')}"
    remedy = "if the rows do not fit into memory, use only part of the stream: dataset.take(100_000)"
    streamed = Problem("N162", what, type(data).__name__, remedy, len(table.frame))
    return dataclasses.replace(judgments, findings=(*judgments.findings, streamed))


def is_stream(data: object) -> bool:
    """Whether a data set is a stream, which `datasets` returns with ``streaming=True``."""
    return isinstance(data, IterableDataset)


def require_no_stream(data: object, args: BADPOConfig) -> None:
    """Raise `ConfigError` for a stream with ``precompute_ref_log_probs``, as TRL does."""
    if args.precompute_ref_log_probs and is_stream(data):
        raise ConfigError(
            "precompute_ref_log_probs=True is not supported with IterableDataset, as in TRL. Omit this argument, so "
            "that badpo reads the whole stream, or load the data set without streaming=True"
        )


def _encode_cell(cell: object) -> str | None:
    """Convert a table cell in one of the `TEMPLATE_COLUMNS` to JSON; a string is already JSON."""
    if isinstance(cell, str):
        return cell or None
    if pd.api.types.is_scalar(cell) and pd.isna(cell):
        return None
    return json.dumps(cell, default=list)
