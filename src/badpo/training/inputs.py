"""What a run starts from: a policy, judgments with token ids that fit, and a bias term for their annotators."""

import dataclasses
import json
import logging
import os
import types
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd
import torch
import transformers
from datasets import IterableDataset

from badpo.auditing.people import named_annotators
from badpo.auditing.pool import audit_level
from badpo.data.attributes import Attributes, Length
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError, DataError, Problem, counted
from badpo.data.tables import read_table
from badpo.estimation.fit import fit_conditional
from badpo.estimation.shrinkage import shrink_normal
from badpo.objective.bias import VARIANTS, BiasTerm
from badpo.objective.theta import AdamSteps, AnchoredFit, JudgedVotes, Losses, ThetaRule
from badpo.theory import Bools, Floats
from badpo.training.config import RENAMED, BADPOConfig
from badpo.training.encoding import (
    TEMPLATE_COLUMNS,
    EncodedComparisons,
    encode_comparisons,
    length_report,
)
from badpo.training.logprobs import attach
from badpo.training.model_files import UNREADABLE, load_weights, unreadable
from badpo.training.trl_keys import ALIASES

logger = logging.getLogger(__name__)

# Configurations, and the dropouts by name that each had.
Dropouts = list[tuple[Any, dict[str, float]]]
# Our names of columns, and the table's.
Columns = Mapping[str, str | None] | None
VISION = "badpo.trl.BiasAdjustedDPOTrainer trains vision-language models on images too"


def tell(told: list[Problem], findings: Iterable[Problem]) -> None:
    """Add findings to those ``told``, and log them, each once."""
    for finding in findings:
        if finding not in told:
            told.append(finding)
            # what was decided for a script that says nothing of it is told by default too
            is_decided = finding.code in ("N103", "N161", "N162", "N163")
            is_quiet = finding.severity == "notice" and not is_decided
            logger.log(logging.INFO if is_quiet else logging.WARNING, "%s", finding)


def load_model(model, args: BADPOConfig, which: str = "model"):
    """``model`` itself, or the one of that name, loaded with ``args.model_init_kwargs``; able to score.

    Without a ``dtype`` there the weights are float32: at preference rates a bfloat16 weight rounds its updates away.
    """
    if isinstance(model, str):
        given: Any = args.model_init_kwargs or {}
        asked = {ALIASES.get(key, key): value for key, value in given.items()}
        usual = {"trust_remote_code": args.trust_remote_code, "dtype": "float32"}
        try:
            model = load_weights(model, **usual | asked)
        except ConfigError:
            raise
        except UNREADABLE as error:
            told = unreadable(model, error)
            if "Unrecognized configuration class" in told:
                told = f'"{model}" is no causal language model. Only those are trained here; {VISION}'
            raise ConfigError(told) from error
    if not hasattr(model, "config"):
        told = "a PreTrainedModel, a PeftModel or the name of one"
        raise ConfigError(f"{which} takes {told}, not {type(model).__name__}")
    if getattr(model, "is_quantized", False):
        raise ConfigError(
            f"{which} is quantised, and only whole weights are trained here: load it without a quantization_config, "
            "in bfloat16 with a peft_config, or take badpo.trl.BiasAdjustedDPOTrainer, which trains QLoRA"
        )
    if hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None):
        raise ConfigError(
            f"{which} is compiled by torch.compile, which does not know the forward that scores comparisons; hand over "
            "the model as it was before"
        )
    return attach(model)


def start_policy(model, peft_config, args: BADPOConfig):
    """The policy that a run starts from, able to score comparisons; refused where it could not be trained."""
    policy = load_model(model, args)
    # a new adapter starts at random values, which must be those of the seed
    transformers.set_seed(args.seed)
    policy = with_adapter(policy, peft_config)
    require_trainable(policy)
    return policy


def given_reference(ref_model, policy, args: BADPOConfig):
    """A reference that is not the start policy, able to score; None where none is given."""
    if ref_model is None:
        return None
    trained = {id(parameter) for parameter in policy.parameters() if parameter.requires_grad}
    reference = load_model(ref_model, args, "ref_model")
    if any(id(parameter) in trained for parameter in reference.parameters()):
        raise ConfigError(
            "model and ref_model cannot be the same object, or have weights in common that are trained: the reference "
            "would move with the policy. Leave ref_model out; the reference is then the model as it starts"
        )
    return reference


def require_trainable(model) -> None:
    """Refuse a model of which no weight is trained, before anything is computed with it."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(
            "no weight of the model is trained. An adapter is trained on where it is loaded with "
            "PeftModel.from_pretrained(base, adapter, is_trainable=True); all weights after "
            "model.requires_grad_(True); a new adapter with peft_config (use_peft: true in a recipe)"
        )


def require_own_optimizer(optimizers: Sequence[Any], policy) -> None:
    """Refuse what is no optimizer and schedule, and those of other weights, with which nothing would be trained."""
    kinds = torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler
    given = optimizers if isinstance(optimizers, list | tuple) else ()
    pairs = zip(given, kinds, strict=False)
    if len(given) != 2 or not all(one is None or isinstance(one, kind) for one, kind in pairs):
        raise ConfigError(
            "optimizers takes an optimizer of torch.optim and a schedule of torch.optim.lr_scheduler, each made; "
            "None stands for the usual one: optimizers=(torch.optim.SGD(model.parameters(), lr=1e-6), None)"
        )
    optimizer, schedule = given
    trained = {id(parameter) for parameter in policy.parameters() if parameter.requires_grad}
    groups = optimizer.param_groups if optimizer is not None else [{"params": policy.parameters()}]
    if not any(id(parameter) in trained for group in groups for parameter in group["params"]):
        raise ConfigError(
            "optimizers: the optimizer has no weight of the model that is trained, so nothing would be learned. Make "
            "it of the parameters of the model object that is handed over; with a new adapter hand over "
            "get_peft_model(model, peft_config) in place of the peft_config"
        )
    if schedule is not None and schedule.optimizer is not optimizer:
        raise ConfigError("optimizers: the schedule is of another optimizer; give that one beside it")


def reads_more_than_text(model) -> bool:
    """Whether a model has parts that no text goes through, such as a vision tower: DDP waits for their gradients."""
    return model.config.get_text_config() is not model.config


def with_adapter(model, peft_config):
    """``model`` with a new adapter; itself where ``peft_config`` is None."""
    has = getattr(model, "peft_config", {})
    asked = [*has.values()] if peft_config is None else [peft_config]
    if any(config.is_prompt_learning for config in asked):
        raise ConfigError(
            "prompt tuning puts virtual tokens before every sequence, which the scoring forward does not know; "
            "use LoRA, or train all weights"
        )
    if peft_config is None:
        return model
    if has:
        raise ConfigError(
            "the model has an adapter already, and a peft_config asks for a new one. First merge and unload the "
            "adapter and save the resulting base model: PeftModel.from_pretrained(base, adapter).merge_and_unload()"
            ".save_pretrained(folder); then give that folder with the peft_config"
        )
    if str(getattr(peft_config, "init_lora_weights", "")).startswith("pissa_niter"):
        raise ConfigError(
            f"init_lora_weights: {peft_config.init_lora_weights} takes a random part out of the base's weights, and "
            "the saved adapter would be put on another base later; use pissa, which takes the same part every time"
        )
    from peft import get_peft_model

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)  # peft reads it
        return get_peft_model(model, peft_config)


def checkpoint_activations(model, options: Mapping[str, Any] | None) -> None:
    """Turn on gradient checkpointing, under the newest name that the model has for it."""
    newest = f"{RENAMED['gradient_checkpointing']}_enable"
    enable = getattr(model, newest) if hasattr(model, newest) else model.gradient_checkpointing_enable
    enable(options)


def router_coefficient(model, asked: float | None) -> float:
    """The weight of a mixture of experts' load-balancing loss: what is asked for, or the model's own; 0 for none."""
    config = model.config.get_text_config()
    if not hasattr(config, "output_router_logits"):
        if asked:
            raise ConfigError(
                f"router_aux_loss_coef is {asked}, and {type(model).__name__} is no mixture of experts that returns "
                "what its routers chose; leave it out"
            )
        return 0.0
    return float(getattr(config, "router_aux_loss_coef", 0.0) if asked is None else asked)


def disable_dropout(model) -> Dropouts:
    """Turn off every dropout, layer drop and router jitter of ``model``; return what its configurations said of them.

    Dropouts become 0 in the modules and in their configurations: some layers drop by a function and a number of their
    own, some read the number from the configuration. A module with jitter stays in evaluation mode instead, because
    the number that it jitters by is in some models also a threshold of the routing, training or not.
    """
    said: Dropouts = []
    for module in model.modules():
        for holder in (module, vars(module).get("config") or module):
            numbers = {name: x for name, x in vars(holder).items() if isinstance(x, float) and x}
            dropouts = {name: x for name, x in numbers.items() if "drop" in name}
            holder.__dict__.update(dict.fromkeys(dropouts, 0.0))
            if holder is not module and dropouts:
                said.append((holder, dropouts))
            if holder is module and any("jitter" in name for name in numbers):
                module.eval()
                module.train = types.MethodType(lambda module, mode=True: module, module)
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0
    return said


@contextmanager
def dropouts_as_given(said: Dropouts) -> Iterator[None]:
    """The numbers that `disable_dropout` took out of configurations, put back for a block that writes them."""
    for configuration, dropouts in said:
        configuration.__dict__.update(dropouts)
    try:
        yield
    finally:
        for configuration, dropouts in said:
            configuration.__dict__.update(dict.fromkeys(dropouts, 0.0))


def build_bias(
    judgments: Judgments, variant: str, warm_start: str, gold_named: Sequence[str] = ()
) -> BiasTerm:
    """The bias term of a variant of `badpo.objective.bias.VARIANTS`, at zero or at what its own judgments say.

    A ``warm_start`` of "audit" starts the common level at `badpo.auditing.pool.audit_level`, one of "offline" at
    the log-odds that the carrying side wins a cross-group judgment; with ``gold_named``, annotators whose theta is held
    at zero, "offline" starts every lean at what the votes say of it when theirs are zero (`leans_above_gold`).
    """
    parts = VARIANTS[variant]
    if "deviation" in parts and not judgments.has_identities:
        raise ConfigError(
            f"bias: {variant} needs an annotator column; none was given. Map it with columns: {{annotator: NAME}}, "
            "or use bias: pooled, which needs no identities"
        )
    classes = judgments.annotators["annotator_class"].tolist() if "class_offset" in parts else None
    gold = gold_annotators(judgments, gold_named)
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
        bias.start_at(torch.from_numpy(leans_above_gold(judgments, gold)))
        return bias
    levels = [estimate.log_odds for estimate in judgments.offline_log_odds()]
    if warm_start == "audit":
        levels = [level for level, _ in audit_level(judgments).values()]
    bias.warm_start(torch.tensor([level or 0.0 for level in levels]))
    return bias


def make_theta_rule(
    bias: BiasTerm, losses: Losses, judgments: Judgments | None, fit: str, learning_rate: float | None
) -> ThetaRule | None:
    """The rule of a ``fit``, "anchored" or "adam"; None if no part of theta is learned.

    ``losses`` are those of the objective, ``judgments`` all training votes; None for a stream, where theta starts at 0.
    """
    if not bias.parts:
        return None
    if fit == "adam" and learning_rate is not None:
        return AdamSteps(bias, learning_rate)
    return AnchoredFit(bias, losses, None if judgments is None else votes_before_training(judgments))


def votes_before_training(judgments: Judgments) -> JudgedVotes:
    """All votes with margins of zero, as they are before the first step."""
    names = ("annotator", "sign", "weight")
    annotator, sign, weight = (torch.from_numpy(judgments.votes[n].to_numpy(copy=True)) for n in names)
    delta = torch.from_numpy(np.array(judgments.delta, float))
    return JudgedVotes.on_processor(annotator, sign, delta, weight, torch.zeros(len(sign)))


def gold_annotators(judgments: Judgments, named: Sequence[object]) -> Bools:
    """Who of the annotators is ``named``, by id or by pseudonym, as a bool array of shape (n_annotators,).

    Gold annotators are known to lean nowhere, so that their votes fix the level that the other votes leave open.
    """
    if not len(named):
        return np.zeros(judgments.n_annotators, dtype=bool)
    gold = named_annotators(judgments.annotators["pseudonym"].to_numpy(), named, "gold_annotators")
    if gold.all():
        raise ConfigError(
            f"gold_annotators: all {counted(len(gold), 'annotator')} are named, so no bias is left to learn. If no one "
            "leans, train plain DPO with bias: none"
        )
    without = [name for name, n in gold_cross_votes(judgments, gold).items() if n == 0]
    if without:
        raise ConfigError(
            f"gold_annotators: the {counted(int(gold.sum()), 'annotator')} named cast no vote on responses that differ "
            f"on {', '.join(without)}, so their votes do not fix its level. Name others, let them judge such "
            "comparisons, or leave the attribute to a run without gold annotators"
        )
    return gold


def gold_cross_votes(judgments: Judgments, gold: Bools) -> dict[str, int]:
    """Judgments of the gold annotators whose responses differ, by attribute: what the level rests on."""
    of_gold = gold[judgments.votes["annotator"].to_numpy()]
    n_cross = judgments.cross_group()[of_gold].sum(axis=0)
    return dict(zip(judgments.attribute_names, n_cross.tolist(), strict=True))


def leans_above_gold(judgments: Judgments, gold: Bools) -> Floats:
    """How everyone leans when the gold annotators do not, in log-odds, (n_annotators, n_attributes): 0 for those.

    The leans of the conditional estimator with the gold annotators anchored
    (`badpo.estimation.fit.fit_conditional`), shrunk toward their mean as the audit does. A `ConfigError` says
    where the votes do not tie the gold annotators to the others.
    """
    sign, annotator = (judgments.votes[c].to_numpy() for c in ("sign", "annotator"))
    votes = (judgments.comparable_votes(), sign, annotator, judgments.delta)
    leans = fit_conditional(*votes, judgments.n_annotators, anchored=gold)
    found = np.zeros_like(leans.deviation)
    for i, name in enumerate(judgments.attribute_names):
        if not leans.absolute[i] or not np.isfinite(leans.deviation[~gold, i]).any():
            raise ConfigError(
                f"gold_annotators: on {name} no comparison ties them to the others, so warm_start: offline has no "
                "level to start at. Use warm_start: zero, or let them judge the same comparisons"
            )
        shrunk = shrink_normal(leans.finite_deviation[~gold, i], leans.finite_se[~gold, i])
        found[~gold, i] = shrunk.posterior.mean
    return found


def training_judgments(
    data, attributes: Attributes, variant: str | None, columns: Columns = None
) -> tuple[Judgments, str, list[Problem]]:
    """``data`` as `Judgments`, the variant that is trained on them (`chosen_variant`), and what was noticed.

    Where neither a variant nor an attribute is named, as in a script for TRL, the attribute is length.
    """
    try:
        judgments = as_judgments(data, attributes, columns)
    except DataError as error:
        lacking = {problem.code for problem in error.problems if problem.severity == "error"}
        if variant not in ("pooled", "none") or lacking != {"E112"}:
            raise
        # these need no ids, and votes without one are votes like any other
        judgments = as_judgments(data, attributes, {**(columns or {}), "annotator": None})
    require_texts_alone(judgments)
    chosen, noticed = chosen_variant(variant, judgments)
    if variant is None and not judgments.attributes:
        judgments = judgments.with_attributes([Length(ratio=1.5)])
        missing = "no attribute is declared" + " and the votes name no annotators" * bool(noticed)
        what = f"bias: {chosen} on length (ratio=1.5) was chosen, because {missing}"
        remedy = (
            'declare what the votes may lean toward, as in attributes=["length:ratio=1.5"], and who voted, as in '
            'columns={"annotator": NAME}; or train plain DPO with bias="none"'
        )
        noticed = [Problem("N163", what, "the table of votes", remedy)]
    if chosen != "none" and not judgments.attributes:
        raise ConfigError(
            f"bias: {chosen} needs at least one attribute. Declare it, for example "
            'attributes=[Length(ratio=1.5)], or train plain DPO with bias="none"'
        )
    # N110 says a part of it
    known = [each for each in judgments.findings if each.code != "N110" or not noticed]
    return judgments, chosen, [*known, *noticed]


def require_texts_alone(judgments: Judgments) -> None:
    """Raise `DataError` where the table has images, which the votes are about and the policy would not see."""
    for finding in judgments.findings:
        if finding.code == "W108":
            what = f"{finding.what}; the table is vision-related, and no vision-language model is trained here"
            remedy = f"leave the column out where the texts can be judged without them; or {VISION}"
            raise DataError([Problem("E144", what, finding.where, remedy)])


def chosen_variant(asked: str | None, judgments: Judgments) -> tuple[str, list[Problem]]:
    """The variant asked for; where none is, `shared_mean`, or `pooled` (N161) where the votes name no annotators."""
    # W110: a column that looks like that of the annotators was overlooked
    overlooked = any(finding.code == "W110" for finding in judgments.findings)
    if asked or judgments.has_identities or overlooked:
        return asked or "shared_mean", []
    what = "bias: pooled was chosen, one lean for everyone, because the votes name no annotators"
    remedy = (
        "map the column with columns: {annotator: NAME} to learn a lean for each; or write bias: pooled"
    )
    return "pooled", [Problem("N161", what, "the table of votes", remedy)]


def encode_judgments(
    judgments: Judgments, tokenizer, args: BADPOConfig
) -> tuple[Judgments, EncodedComparisons, list[Problem]]:
    """The judgments whose comparison fits ``max_length``, their token ids, and what the limit cost; E140 where none."""
    encoded = encode_comparisons(
        judgments.comparisons, tokenizer, args.encoding, args.max_length, args.max_prompt_length
    )
    findings = length_report(judgments, encoded, tokenizer, args.max_length)
    if judgments.n_votes and encoded.fits.all():
        return judgments, encoded, findings
    kept = judgments.take(encoded.fits[judgments.votes["comparison"].to_numpy()])
    if kept.n_votes:
        return kept, encoded.take(np.flatnonzero(encoded.fits)), findings
    if judgments.n_votes:
        raise DataError([nothing_fits(args.max_length)])
    remedy = "look at what was left out when the table was read"
    raise DataError([Problem("E140", "no comparison fits", "there is no judgment", remedy)])


def nothing_fits(max_length: int | None) -> Problem:
    """What is said where every prompt leaves no place for a response."""
    where = f"every prompt has {max_length} tokens or more"
    return Problem("E140", "no comparison fits", where, "raise max_length")


def require_something_to_learn(judgments: Judgments, encoded: EncodedComparisons) -> None:
    """Raise `DataError` where every comparison's two responses are the same token ids (E143): no margin can move."""
    if encoded.identical.all():
        what = f"nothing to learn: the two responses of all {counted(len(encoded), 'comparison')} are the same tokens"
        place = f"first: comparison {judgments.comparisons['comparison_id'].iloc[0]}"
        remedy = "look at the columns of the responses; raise max_length where they were cut"
        raise DataError([Problem("E143", what, place, remedy, len(encoded))])


def require_log_odds(objective, args: BADPOConfig) -> None:
    """Raise `ConfigError` where theta would start at log-odds of votes that the objective does not count in."""
    if args.warm_start != "zero" and not objective.in_log_odds:
        raise ConfigError(
            f"warm_start: {args.warm_start} starts theta at log-odds of the votes, and {type(objective).__name__} "
            "counts in another unit, in which the same number means another lean; use warm_start: zero"
        )


def require_matching_bias(bias: BiasTerm, judgments: Judgments, gold_named: Sequence[str] = ()) -> None:
    """Raise `ConfigError` unless a bias term's annotators, attributes and gold annotators are the given ones."""
    people = tuple(judgments.annotators["pseudonym"])
    if bias.annotators != people or bias.attributes != judgments.attribute_names:
        raise ConfigError(
            f"the bias term is of {counted(len(bias.annotators), 'annotator')} and the attributes "
            f"{list(bias.attributes)}, the judgments are of {counted(len(people), 'annotator')} and "
            f"{list(judgments.attribute_names)}; both must be the same and in the same order. Leave bias out to "
            "have it built from the judgments"
        )
    if gold_named and set(gold_named) != set(bias.gold_annotators):
        raise ConfigError(
            f"gold_annotators names {counted(len(gold_named), 'annotator')}, and the bias term given holds "
            f"{len(bias.gold_annotators)} at zero by its mask; they must be the same. Leave gold_annotators out, or "
            "leave bias out to have it built from the judgments"
        )


def evaluation_judgments(data, train: Judgments, columns: Columns = None) -> Judgments:
    """Evaluation data on the attributes of ``train``, with its numbers for the annotators.

    Annotators whom ``train`` does not know get the number -1, for which a `BiasTerm` gives the pool mean of theta.
    """
    declared = [attribute.config for attribute in train.attributes]
    measured = isinstance(data, Judgments) and [a.config for a in data.attributes] == declared
    judgments = as_judgments(data, () if measured else train.attributes, columns)
    require_texts_alone(judgments)
    numbers = pd.Index(train.annotators["pseudonym"]).get_indexer(judgments.annotators["pseudonym"])
    votes = judgments.votes.assign(annotator=numbers[judgments.votes["annotator"].to_numpy()])
    return dataclasses.replace(judgments, annotators=train.annotators, votes=votes)


def as_judgments(data, attributes: Attributes, columns: Columns = None, **reading: Any) -> Judgments:
    """``data`` as `Judgments` with the attributes declared; a table is read with what TRL reads of it.

    ``reading`` are further options of `Judgments.read`.
    """
    if isinstance(data, Judgments):
        return data.with_attributes(attributes) if attributes else data
    asked: dict[str, Any] = {"columns": columns, "attributes": attributes, **reading}
    if isinstance(data, str | os.PathLike):
        judgments = Judgments.read(data, **asked)
        # W107: there is more that TRL reads
        if all(finding.code != "W107" for finding in judgments.findings):
            return judgments
    # cells that hold JSON are decoded where rows are asked for
    whole = is_stream(data) or "Json(" in str(getattr(data, "features", ""))
    table = read_table(list(data) if whole else data, reading.get("bad_rows") == "drop")
    there = [name for name in TEMPLATE_COLUMNS if name in table.frame]
    given = [name for name in there if table.frame[name].notna().any()]
    cells = {name: pd.Series([*map(_as_json, table.frame[name])], dtype=object) for name in given}
    table = dataclasses.replace(table, frame=table.frame.assign(**cells))
    judgments = Judgments.read(table, keep=given, **asked)
    if lost := [name for name in given if name not in judgments.comparisons]:
        what = f"rows with the same prompt and responses differ in {' and '.join(lost)}"
        remedy = "give such rows a comparison_id each, so that they are not one comparison"
        raise DataError([Problem("E147", what, table.name, remedy)])
    if not is_stream(data):
        return judgments
    what = f"the stream was read whole: {counted(len(table.frame), 'row')}"
    remedy = "nothing where it fits into memory; otherwise take a part of it: dataset.take(100_000)"
    streamed = Problem("N162", what, type(data).__name__, remedy, len(table.frame))
    return dataclasses.replace(judgments, findings=(*judgments.findings, streamed))


def is_stream(data) -> bool:
    """Whether a data set is read row by row, as `datasets` does with ``streaming=True``."""
    return isinstance(data, IterableDataset)


def require_whole(data, args: BADPOConfig) -> None:
    """Refuse a stream whose reference values are asked for beforehand, as TRL does."""
    if args.precompute_ref_log_probs and is_stream(data):
        raise ConfigError(
            "precompute_ref_log_probs: True is not supported with IterableDataset, as in TRL. Leave it out, and the "
            "stream is read whole; or load the data set without streaming=True"
        )


def _as_json(cell: Any) -> str | None:
    """A cell of `TEMPLATE_COLUMNS` as JSON; what is a text is JSON already."""
    if isinstance(cell, str) or (pd.api.types.is_scalar(cell) and pd.isna(cell)):
        return cell or None
    return json.dumps(cell, default=list)
