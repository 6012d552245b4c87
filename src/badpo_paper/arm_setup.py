"""From a row of the table of arms to what a trainer takes: a recipe, judgments, a bias term."""

import logging
from dataclasses import asdict, replace
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array

from badpo.data.attributes import Attribute, LengthWords, plain_text
from badpo.data.files import Json
from badpo.data.judgments import Judgments
from badpo.estimation.significance import first_votes
from badpo.objective.bias import VARIANTS, BiasTerm
from badpo.runs.run import Prepared
from badpo.runs.start import majority_responses
from badpo.theory import Floats, Ints
from badpo.training.encoding import encode_responses
from badpo.training.recipe import Recipe, read_recipe
from badpo_paper.arms import Arm
from badpo_paper.reference import CorpusStage, declared
from badpo_paper.suites import Condition

# Of the rank-one fit of the agreements.
ROUNDS, TOLERANCE = 500, 1e-10
# What the paper's penalty per token is made for: the mean answer of its reference (Table `tab:multipref`).
PAPER_TOKENS = 288.6
# Fields of an arm that a recipe has keys for, and so its facts need not tell.
IN_RECIPE = {"bias", "warm_start", "gold"}

logger = logging.getLogger(__name__)


# -- recipes ----------------------------------------------------------------------------------------------------------


def run_recipe(condition: Condition, arm: Arm, seed: int, stage: CorpusStage) -> Recipe:
    """The recipe of a condition at a seed: the stage's, with the arm's bias term and what the condition changes."""
    changed = dict(condition.overrides)
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
    if arm.objective not in ("votes", "types"):
        keys["objective"] = {"name": arm.objective, **arm.settings}
    if changed.get("use_peft"):
        keys["dtype"] = stage.scale.lora_dtype
    return with_checkpoints(read_recipe(overrides={**keys, **changed}))


def with_checkpoints(recipe: Recipe) -> Recipe:
    """The recipe with four checkpoints over its steps."""
    steps = {"save_steps": max(1, recipe.training["max_steps"] // 4)}
    return replace(recipe, training=recipe.training | steps, keys=recipe.keys | steps)


def prepared(condition: Condition, arm: Arm, recipe: Recipe, stage: CorpusStage) -> Prepared:
    """What a run of a condition does that no key of its recipe says."""
    args = recipe.arguments()
    limits = (args.max_length, args.max_prompt_length)
    seen = arm_judgments(
        arm, declared(stage.train, condition.declared), args.seed, stage.tokenizer, *limits
    )
    return Prepared(seen, arm_bias(arm, seen), facts=method_facts(arm))


def method_facts(arm: Arm) -> Json:
    """What decides a run besides its recipe and votes; nothing where all is as usual."""
    # the types of EM-DPO are no objective that a recipe could name
    in_recipe = IN_RECIPE if arm.objective == "types" else IN_RECIPE | {"objective", "settings"}
    usual = asdict(Arm(bias=None))
    return {
        name: value
        for name, value in asdict(arm).items()
        if name not in in_recipe and value != usual[name]
    }


def adjusted_arm(arm: Arm, stage: CorpusStage) -> Arm:
    """An arm whose length counts as much, on this scale's shorter answers, as the paper's does on its own.

    A penalty is multiplied, and the unit that a theta is learned in divided.
    """
    if not stage.scale.scales_penalty or not arm.declared.startswith("length"):
        return arm
    if arm.fixed:
        return replace(arm, fixed=arm.fixed * penalty_factor(stage))
    return replace(arm, length_unit=arm.length_unit / penalty_factor(stage))


def penalty_factor(stage: CorpusStage) -> float:
    """Mean tokens of the paper's reference over those of the responses that this reference was trained on."""
    prompts = list(map(plain_text, stage.train.comparisons["prompt"]))
    limits = (stage.args.max_length, stage.args.max_prompt_length)
    pairs = encode_responses(prompts, majority_responses(stage.train), stage.tokenizer, "paper", *limits)
    return round(PAPER_TOKENS / float(np.mean([len(response) for _, response in pairs])), 2)


# -- what an arm trains on --------------------------------------------------------------------------------------------


def arm_judgments(
    arm: Arm, judgments: Judgments, seed: int, tokenizer, max_length: int, max_prompt_length: int
) -> Judgments:
    """The training judgments as an arm sees them."""
    if arm.labels == "spectral":
        judgments = labelled(judgments)
    if arm.declared == "first":
        judgments = declared(judgments, judgments.attribute_names[0])
    if arm.declared == "length_words":
        judgments = judgments.with_attributes([LengthWords(threshold=0.0, unit=arm.length_unit)])
    if arm.declared == "length_tokens":
        length = response_tokens(tokenizer, max_length, max_prompt_length, arm.length_unit)
        judgments = judgments.with_attributes([length])
    if arm.identities == "shuffled":
        annotator = np.random.default_rng(seed).integers(judgments.n_annotators, size=judgments.n_votes)
        judgments = replace(judgments, votes=judgments.votes.assign(annotator=annotator))
    return judgments


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
    """Tokens of a response as the paper's encoding trains on them: its end cut, the end-of-text token counted."""
    limits = {"max_length": max_length, "max_prompt_length": max_prompt_length}

    def measure(prompt: str, response: str) -> float:
        pairs = encode_responses([prompt], [response], tokenizer, "paper", **limits)
        # a prompt that leaves no room is left out of training
        return len(pairs[0][1]) / unit if pairs else 0.0

    config = {"type": "length_tokens", **limits, "unit": unit}
    return Attribute("length_tokens", "response", measure, continuous=True, config=config)


# -- labels of the spectral meta-learner ------------------------------------------------------------------------------


def labelled(judgments: Judgments) -> Judgments:
    """One vote for each comparison, on the side that the spectral meta-learner finds; weight 1, no identities.

    Where its sum is zero the majority decides. How much of the matrix of agreements the votes give is logged: with
    few common comparisons most of it is unknown, and the reliabilities rest on little.
    """
    found = spectral_labels(vote_table(judgments))
    label = np.where(found.label == 0, judgments.majority(), found.label)
    logger.log(
        logging.INFO if found.cells > 0.5 else logging.WARNING,
        "spectral labels: %.0f %% of the pairs of annotators share a comparison; reliabilities of %d of %d annotators "
        "are not known, and theirs is taken to be the mean",
        100 * found.cells,
        np.isnan(found.reliability).sum(),
        judgments.n_annotators,
    )
    place, first = np.unique(judgments.votes["comparison"].to_numpy(), return_index=True)
    kept = replace(judgments.take(first), has_identities=False)
    return replace(kept, votes=kept.votes.assign(sign=label[place], weight=1.0))


class SpectralLabels(NamedTuple):
    """What the spectral meta-learner finds; ``cells`` is the share of pairs of annotators with a common comparison."""

    reliability: Floats
    label: Ints
    cells: float


def vote_table(judgments: Judgments) -> csr_array:
    """Signs of the votes, shape (n_comparisons, n_annotators); of an annotator's repeated votes the first counts."""
    votes = judgments.votes
    votes = votes[first_votes(votes["comparison"], votes["annotator"])]
    shape = (judgments.n_comparisons, judgments.n_annotators)
    places = (votes["comparison"], votes["annotator"])
    return csr_array((votes["sign"].to_numpy(float), places), shape=shape)


def agreements(table: csr_array) -> tuple[NDArray, NDArray, NDArray]:
    """Sums of products of two annotators' votes over their common comparisons, how many there are, and the means."""
    others = 1.0 - np.eye(table.shape[1])
    products, counts = ((one.T @ one).toarray() * others for one in (table, abs(table)))
    return (
        products,
        counts,
        np.divide(products, counts, out=np.zeros_like(products), where=counts > 0),
    )


def spectral_labels(table: csr_array) -> SpectralLabels:
    r"""Reliabilities from the rank-one form of the agreements, and the labels that they give.

    .. math:: \min_v \sum_{i \neq j} n_{ij} (Q_{ij} - v_i v_j)^2, \qquad
        y_c = \operatorname{sign} \sum_{j \in c} v_{k_j} s_j

    with Q the mean product of two annotators' votes on their n common comparisons. Pairs without one have no weight,
    where the original assumes that everyone judged everything. The fit goes one coordinate at a time from the leading
    eigenvector. The sign of v is open: most of the votes' weight is taken to be better than chance. An annotator
    whose v is not known votes with the mean v of the others, and without any common comparison the majority decides.

    References
    ----------
    Parisi et al. (2014), Ranking and combining multiple predictors without labeled data, as used by Chhan et al.
    (2024), Crowd-PrefRL.

    Examples
    --------
    Two who always agree outweigh a third who mostly contradicts them:

    >>> found = spectral_labels(csr_array([[1.0, 1, -1], [1, 1, -1], [-1, -1, 1], [1, 1, 1]]))
    >>> found.label, found.reliability.round(2), found.cells
    (array([ 1,  1, -1,  1]), array([ 1. ,  1. , -0.5]), 1.0)
    """
    products, counts, means = agreements(table)
    values, vectors = np.linalg.eigh(means)
    v = vectors[:, -1] * np.sqrt(max(values[-1], TOLERANCE))
    for _ in range(ROUNDS):
        before = v.copy()
        for i in range(len(v)):
            information = counts[i] @ v**2
            v[i] = np.clip(products[i] @ v / information, -1.0, 1.0) if information > TOLERANCE else 0.0
        if np.abs(v - before).max() < TOLERANCE:
            break
    if abs(table).sum(axis=0) @ v < 0:
        v = -v
    reliability = pd.Series(v).where(counts.any(axis=1))
    # without a common comparison all votes weigh alike
    total = table @ reliability.fillna(reliability.mean()).fillna(1.0).to_numpy()
    # reliabilities are known to TOLERANCE: a sum below their errors leaves the label open
    label = np.sign(total.round(8)).astype(int)
    n_pairs = max(1, len(v) * (len(v) - 1))
    return SpectralLabels(reliability.to_numpy(), label, float((counts > 0).sum() / n_pairs))
