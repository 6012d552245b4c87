"""From a row of the table of arms to what a trainer takes: judgments, a bias term, an objective."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch

from badpo.data.attribute import Attribute
from badpo.data.attributes import LengthWords, plain_text
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError
from badpo.estimation.spectral import spectral_labels
from badpo.experiments.arms import Arm
from badpo.experiments.run import Prepared
from badpo.experiments.start_policy import majority_responses
from badpo.experiments.suite_parts import Condition
from badpo.experiments.suite_settings import Scale
from badpo.experiments.suite_stages import CorpusStage, declared
from badpo.experiments.theta_starts import FallingRate, clustered, start_bias
from badpo.objective.bias import VARIANTS, BiasTerm
from badpo.objective.group_weights import GroupWeights
from badpo.objective.objectives import Objective, VoteWeights
from badpo.objective.token_objectives import DiscountedTail, IdentityPreference, SampledTokens
from badpo.training.encoding import encode_responses
from badpo.training.recipe import Recipe, read_recipe
from badpo.training.run_folder import write_json
from badpo.training.trainer import BADPOTrainer

START = "start.json"  # where theta started
# What the paper's penalty per token is made for: the mean answer of its reference (Table `tab:multipref`).
PAPER_TOKENS = 288.6

logger = logging.getLogger(__name__)

# Each makes an objective from the arm's settings, the judgments, the seed and beta.
OBJECTIVES: dict[str, Callable[[Mapping[str, Any], Judgments, int, float], Objective]] = {
    "votes": lambda settings, judgments, seed, beta: VoteWeights(),
    "sampled_tokens": lambda settings, judgments, seed, beta: SampledTokens(seed),
    "discounted_tail": lambda settings, judgments, seed, beta: DiscountedTail(**settings),
    "identity_preference": lambda settings, judgments, seed, beta: IdentityPreference(beta),
    "group_weights": lambda settings, judgments, seed, beta: GroupWeights(
        group_numbers(judgments, settings["groups"]),
        **{name: value for name, value in settings.items() if name != "groups"},
    ),
}


def run_recipe(condition: Condition, arm: Arm, seed: int, stage: CorpusStage, scale: Scale) -> Recipe:
    """The recipe of a condition at a seed: the stage's, with the arm's bias term and what the condition changes."""
    changed: dict[str, Any] = dict(condition.overrides)
    keys = {
        **stage.keys,
        "attributes": [dict(a.config) for a in declared(stage.train, condition.declared).attributes],
        "bias": {
            **stage.keys["bias"],
            "variant": arm.bias or "none",
            "warm_start": arm.warm_start,
            "gold_annotators": list(arm.gold),
        },
        "learning_rate": stage.keys["learning_rate"] * changed.pop("rate_factor", 1.0),
        "seed": seed,
    }
    if changed.get("use_peft"):
        keys["dtype"] = scale.lora_dtype
    recipe = read_recipe(overrides={**keys, **changed})
    return with_checkpoints(recipe)


def with_checkpoints(recipe: Recipe) -> Recipe:
    """The recipe with four checkpoints over its steps."""
    steps = {"save_steps": max(1, recipe.training["max_steps"] // 4)}
    return replace(recipe, training=recipe.training | steps, keys=recipe.keys | steps)


def prepared(condition: Condition, arm: Arm, recipe: Recipe, stage: CorpusStage) -> Prepared:
    """What a run of a condition does that no key of its recipe says."""
    args = recipe.arguments()
    judgments = declared(stage.train, condition.declared)
    if condition.classes == "clusters":
        judgments = clustered(judgments)
    judgments = arm_judgments(
        arm, judgments, args.seed, stage.tokenizer, args.max_length, args.max_prompt_length
    )

    def started(trainer: BADPOTrainer) -> None:
        if levels := start_bias(trainer.bias, trainer.judgments, condition.start):
            write_json(trainer.run_folder / START, levels)
        if condition.rate_boost != 1.0:
            trainer.add_callback(FallingRate(trainer, condition.rate_boost))

    return Prepared(
        judgments,
        arm_bias(arm, judgments),
        arm_objective(arm, judgments, args.seed, args.beta),
        method_facts(condition, arm),
        started,
    )


def method_facts(condition: Condition, arm: Arm) -> dict[str, Any]:
    """What decides a run besides its recipe and votes; nothing where all is as usual.

    Examples
    --------
    >>> method_facts(Condition("a", "pooled", start="swap"), Arm(bias="pooled"))
    {'start': 'swap'}
    >>> method_facts(Condition("rdpo", "rdpo"), Arm(bias="none", fixed=0.005))
    {'fixed': 0.005}
    """
    in_recipe = {"bias", "warm_start", "gold"}
    told = {**asdict(arm), "start": condition.start, "rate_boost": condition.rate_boost}
    usual = {**asdict(Arm(bias=None)), "start": "zero", "rate_boost": 1.0}
    return {name: value for name, value in told.items() if name not in in_recipe and value != usual[name]}


def adjusted_arm(arm: Arm, stage: CorpusStage, scale: Scale) -> Arm:
    """An arm whose length counts as much, on this scale's shorter answers, as the paper's does on its own.

    A penalty is multiplied, and the unit that a theta is learned in divided.
    """
    if not scale.scales_penalty or not arm.declared.startswith("length"):
        return arm
    if arm.fixed:
        return replace(arm, fixed=arm.fixed * penalty_factor(stage))
    return replace(arm, length_unit=arm.length_unit / penalty_factor(stage))


def penalty_factor(stage: CorpusStage) -> float:
    """Mean tokens of the paper's reference over those of the responses that this reference was trained on."""
    prompts, responses, args = (
        list(stage.train.comparisons["prompt"]),
        majority_responses(stage.train),
        stage.args,
    )
    limits = (args.max_length, args.max_prompt_length)
    pairs = encode_responses(list(map(plain_text, prompts)), responses, stage.tokenizer, "paper", *limits)
    return round(PAPER_TOKENS / float(np.mean([len(response) for _, response in pairs])), 2)


def arm_judgments(
    arm: Arm, judgments: Judgments, seed: int, tokenizer, max_length: int, max_prompt_length: int
) -> Judgments:
    """The training judgments as an arm sees them.

    Parameters
    ----------
    arm : Arm
    judgments : Judgments
    seed : int
        Of the annotators drawn for ``identities="shuffled"``.
    tokenizer : PreTrainedTokenizerBase
    max_length, max_prompt_length : int
        As the run encodes, so that a declared length counts the tokens that are trained on.
    """
    if arm.labels == "spectral":
        judgments = labelled(judgments)
    if arm.declared == "first":
        judgments = replace(judgments, attributes=judgments.attributes[:1], delta=judgments.delta[:, :1])
    if arm.declared == "length_words":
        judgments = judgments.with_attributes([LengthWords(threshold=0.0, unit=arm.length_unit)])
    if arm.declared == "length_tokens":
        length = response_tokens(tokenizer, max_length, max_prompt_length, arm.length_unit)
        judgments = judgments.with_attributes([length])
    if arm.identities == "shuffled":
        annotator = np.random.default_rng(seed).integers(judgments.n_annotators, size=judgments.n_votes)
        judgments = replace(judgments, votes=judgments.votes.assign(annotator=annotator))
    return judgments


def arm_objective(arm: Arm, judgments: Judgments, seed: int, beta: float) -> Objective:
    """The objective of an arm; ``judgments`` are those of `arm_judgments`."""
    return OBJECTIVES[arm.objective](arm.settings, judgments, seed, beta)


def arm_bias(arm: Arm, judgments: Judgments) -> BiasTerm | None:
    """The bias term of an arm that fixes a part of theta; None lets the trainer build the arm's variant."""
    if not arm.fixed:
        return None
    return BiasTerm(
        judgments.attribute_names,
        judgments.annotators["pseudonym"].tolist(),
        VARIANTS[arm.bias or "none"],
        fixed=torch.full((judgments.n_attributes,), arm.fixed),
    )


def response_tokens(tokenizer, max_length: int, max_prompt_length: int, unit: float) -> Attribute:
    """Tokens of a response as the paper's encoding trains on them: its end cut, the end-of-text token counted.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
    max_length, max_prompt_length : int
    unit : float
        Tokens that count 1.
    """

    def measure(prompt: str, response: str) -> float:
        pairs = encode_responses([prompt], [response], tokenizer, "paper", max_length, max_prompt_length)
        # a prompt that leaves no room is left out of training
        return len(pairs[0][1]) / unit if pairs else 0.0

    config = {
        "type": "length_tokens",
        "max_length": max_length,
        "max_prompt_length": max_prompt_length,
        "unit": unit,
    }
    return Attribute("length_tokens", "response", measure, continuous=True, config=config)


def group_numbers(judgments: Judgments, groups: str) -> list[int]:
    """Group of every annotator, counted from 0: their class, or each a group of their own.

    Parameters
    ----------
    judgments : Judgments
    groups : "class" or "annotator"

    Raises
    ------
    ConfigError
        Groups by class where an annotator has none.
    """
    if groups == "annotator":
        return list(range(judgments.n_annotators))
    classes = judgments.annotators["annotator_class"].tolist()
    missing = [
        name
        for name, label in zip(judgments.annotators["pseudonym"], classes, strict=True)
        if not isinstance(label, str)
    ]
    if missing:
        raise ConfigError(
            f"{len(missing)} of {len(classes)} annotators have no class (first: {missing[0]}), and the groups are the "
            "classes; fill the column annotator_class, or use group_dro_annotators, whose groups are the annotators"
        )
    numbers = {label: number for number, label in enumerate(dict.fromkeys(classes))}
    return [numbers[label] for label in classes]


def labelled(judgments: Judgments) -> Judgments:
    """One vote for each comparison, on the side that the spectral meta-learner finds; weight 1, no identities.

    Where its sum is zero the majority decides. How much of the matrix of agreements the votes give is logged: with
    few common comparisons most of it is unknown, and the reliabilities rest on little.
    """
    votes = judgments.votes
    found = spectral_labels(
        votes["comparison"],
        votes["sign"],
        votes["annotator"],
        judgments.n_comparisons,
        judgments.n_annotators,
    )
    label = np.where(found.label == 0, judgments.majority(), found.label)
    logger.log(
        logging.INFO if found.cells > 0.5 else logging.WARNING,
        "spectral labels: %.0f %% of the pairs of annotators share a comparison; reliabilities of %d of %d annotators "
        "are not known, and theirs is taken to be the mean",
        100 * found.cells,
        np.isnan(found.reliability).sum(),
        judgments.n_annotators,
    )
    first = np.unique(votes["comparison"].to_numpy(), return_index=True)[1]
    kept = replace(judgments.take(first), has_identities=False)
    place = votes["comparison"].to_numpy()[first]
    return replace(kept, votes=kept.votes.assign(sign=label[place], weight=1.0))
