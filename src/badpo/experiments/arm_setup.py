"""From a row of the table of arms to what a trainer takes: judgments, a bias term, an objective."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np
import torch

from badpo.data.attribute import Attribute
from badpo.data.attributes import LengthWords
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError
from badpo.estimation.spectral import spectral_labels
from badpo.experiments.arms import Arm
from badpo.objective.bias import VARIANTS, BiasTerm
from badpo.objective.group_weights import GroupWeights
from badpo.objective.objectives import Objective, VoteWeights
from badpo.objective.token_objectives import DiscountedTail, IdentityPreference, SampledTokens
from badpo.training.encoding import encode_responses

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


def arm_facts(arm: Arm) -> dict:
    """What an arm is, for the key of its run; without what is as it was before there was a choice.

    Examples
    --------
    >>> arm_facts(Arm(bias="pooled"))
    {'bias': 'pooled', 'warm_start': 'zero', 'identities': 'given', 'declared': 'all'}
    >>> arm_facts(Arm(bias="none", fixed=0.005))["fixed"]
    0.005
    """
    first = {"bias", "warm_start", "identities", "declared"}
    plain = asdict(Arm(bias=None))
    values = asdict(arm)
    names = [field.name for field in fields(Arm)]
    return {name: values[name] for name in names if name in first or values[name] != plain[name]}


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
