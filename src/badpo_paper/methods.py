"""From a row of the table of arms to what a trainer takes: judgments, a bias term, an objective."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.cluster.vq import kmeans2
from transformers import TrainerCallback

from badpo.auditing.pool import audit_level
from badpo.data.attributes import Attribute, LengthWords, plain_text
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError
from badpo.estimation.fit import fit_conditional
from badpo.estimation.pool import joint_log_odds
from badpo.estimation.significance import first_votes
from badpo.objective.bias import VARIANTS, BiasTerm
from badpo.objective.objectives import Objective, make_objective
from badpo.runs.run import Prepared
from badpo.runs.start import majority_responses
from badpo.training.checkpoints import write_json
from badpo.training.encoding import encode_responses
from badpo.training.recipe import Recipe, read_recipe
from badpo.training.trainer import BADPOTrainer
from badpo_paper.arms import Arm
from badpo_paper.settings import Scale
from badpo_paper.stages import CorpusStage, declared
from badpo_paper.suites import Condition

ROUNDS = 500
TOLERANCE = 1e-10


@dataclass(frozen=True)
class SpectralLabels:
    """What the spectral meta-learner finds."""

    reliability: NDArray[np.float64]
    label: NDArray[np.int64]
    cells: float


def spectral_labels(
    comparison: ArrayLike, sign: ArrayLike, annotator: ArrayLike, n_comparisons: int, n_annotators: int
) -> SpectralLabels:
    r"""Reliabilities from the rank-one form of the agreements, and the labels that they give.

    .. math:: \min_v \sum_{i \neq j} n_{ij} (Q_{ij} - v_i v_j)^2, \qquad
        y_c = \operatorname{sign} \sum_{j \in c} v_{k_j} s_j

    with Q the mean product of two annotators' votes on their n common comparisons. Pairs without one have no weight,
    where the original assumes that everyone judged everything. The sign of v is open: most of the votes' weight is
    taken to be better than chance. An annotator whose v is not known votes with the mean v of the others. Of repeated
    votes on one comparison the first counts.

    Parameters
    ----------
    comparison, sign, annotator : array of shape (n_votes,)
    n_comparisons, n_annotators : int

    Returns
    -------
    SpectralLabels
        With no common comparison at all every reliability is NaN, and the labels are those of the majority.

    References
    ----------
    Parisi et al. (2014), Ranking and combining multiple predictors without labeled data, as used by Chhan et al.
    (2024), Crowd-PrefRL.

    Examples
    --------
    Two who always agree outweigh a third who mostly contradicts them:

    >>> comparison, annotator = np.repeat(np.arange(4), 3), np.tile(np.arange(3), 4)
    >>> sign = [1, 1, -1, 1, 1, -1, -1, -1, 1, 1, 1, 1]
    >>> found = spectral_labels(comparison, sign, annotator, 4, 3)
    >>> found.label, found.reliability.round(2), found.cells
    (array([ 1,  1, -1,  1]), array([ 1. ,  1. , -0.5]), 1.0)
    """
    comparison, annotator = np.asarray(comparison), np.asarray(annotator)
    kept = first_votes(comparison, annotator)
    votes = np.asarray(sign, dtype=np.float64)[kept]
    comparison, annotator = comparison[kept], annotator[kept]
    products, counts = agreements(comparison, votes, annotator, n_annotators)
    known = counts.sum(axis=1) > 0
    reliability = np.full(n_annotators, np.nan)
    if known.any():
        reliability[known] = _rank_one(products[np.ix_(known, known)], counts[np.ix_(known, known)])
        if (reliability[annotator][known[annotator]]).sum() < 0:
            reliability = -reliability
    weights = np.where(known, reliability, np.mean(reliability[known]) if known.any() else 1.0)
    total = np.bincount(comparison, weights=weights[annotator] * votes, minlength=n_comparisons)
    n_pairs = n_annotators * (n_annotators - 1)
    cells = float((counts > 0).sum() / n_pairs) if n_pairs else 0.0
    # reliabilities are known to TOLERANCE: a sum below their errors leaves the label open
    return SpectralLabels(reliability, np.sign(total.round(8)).astype(np.int64), cells)


def agreements(
    comparison: ArrayLike, sign: ArrayLike, annotator: ArrayLike, n_annotators: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Sums of products of two annotators' votes over their common comparisons, and how many there are."""
    order = np.argsort(np.asarray(comparison), kind="stable")
    place, votes = np.asarray(comparison)[order], np.asarray(sign, dtype=np.float64)[order]
    people = np.asarray(annotator)[order]
    products, counts = np.zeros((2, n_annotators, n_annotators))
    starts = np.flatnonzero(np.r_[True, place[1:] != place[:-1]]) if len(place) else np.zeros(0, dtype=int)
    for first, stop in zip(starts, np.r_[starts[1:], len(place)], strict=True):
        inside = np.ix_(people[first:stop], people[first:stop])
        products[inside] += np.outer(votes[first:stop], votes[first:stop])
        counts[inside] += 1.0
    np.fill_diagonal(products, 0.0)
    np.fill_diagonal(counts, 0.0)
    return products, counts


def _rank_one(products: NDArray[np.float64], counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """The v of the weighted rank-one fit, one coordinate at a time from the leading eigenvector."""
    means = np.divide(products, counts, out=np.zeros_like(products), where=counts > 0)
    values, vectors = np.linalg.eigh(means)
    v = vectors[:, -1] * np.sqrt(max(values[-1], TOLERANCE))
    for _ in range(ROUNDS):
        before = v.copy()
        for i in range(len(v)):
            information = counts[i] @ v**2
            v[i] = np.clip(products[i] @ v / information, -1.0, 1.0) if information > TOLERANCE else 0.0
        if np.abs(v - before).max() < TOLERANCE:
            break
    return v


N_CLUSTERS = 3
BOOSTED_SHARE = 0.2  # of the steps


def starting_level(judgments: Judgments, start: str) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """The level that theta starts at, and where each attribute's comes from.

    ``swap`` is the log-odds among swap pairs, in which quality cancels, and the offline log-odds where an attribute has
    none. ``burn_in`` is the optimum of the loss over one theta for everyone while the policy is still the reference:
    the loss is convex then, and this is what training theta alone would end at.
    """
    levels: list[float | None]
    if start == "swap":
        found = audit_level(judgments).values()
        levels, sources = [level for level, _ in found], tuple(source for _, source in found)
    else:
        prompts = judgments.comparisons["prompt_id"].to_numpy()[judgments.votes["comparison"].to_numpy()]
        joint = joint_log_odds(judgments.delta, judgments.votes["sign"], prompts)
        levels = [interval.estimate if interval else None for interval in joint]
        sources = ("a burn-in",) * len(levels)
    for name, level in zip(judgments.attribute_names, levels, strict=True):
        if level is None or not np.isfinite(level):
            raise ConfigError(
                f"theta cannot start at the votes' own level of {name}: they all go one way, or do not tell it apart; "
                "start at zero"
            )
    return np.array(levels, dtype=np.float64), sources


def start_bias(bias: BiasTerm, judgments: Judgments, start: str) -> dict[str, dict[str, Any]]:
    """Start a bias term at `start_levels`, and return these; ``zero`` leaves it and returns nothing."""
    if start == "zero":
        return {}
    levels = start_levels(judgments, start)
    bias.warm_start(torch.tensor([found["level"] for found in levels.values()]))
    return levels


def start_levels(judgments: Judgments, start: str) -> dict[str, dict[str, Any]]:
    """`starting_level` of each attribute and where it comes from, as JSON: {attribute: {"level", "from"}}."""
    levels, sources = starting_level(judgments, start)
    return {
        name: {"level": float(level), "from": source}
        for name, level, source in zip(judgments.attribute_names, levels, sources, strict=True)
    }


def clustered(judgments: Judgments, seed: int = 0) -> Judgments:
    """The judgments with annotators in classes that their own leans suggest, whatever classes they had.

    k-means with three centers on the deviations of the conditional fit; an annotator without one stands at the mean.
    """
    votes = judgments.votes
    delta = judgments.delta
    leans = fit_conditional(
        votes["comparison"], votes["sign"], votes["annotator"], delta, judgments.n_annotators
    )
    deviation = np.nan_to_num(leans.deviation, nan=0.0, posinf=3.0, neginf=-3.0)
    # before scipy 1.15 its name is seed, which later ones take too
    _, label = kmeans2(
        deviation, min(N_CLUSTERS, len(deviation)), minit="++", seed=np.random.default_rng(seed)
    )
    classes = [f"cluster {number}" for number in label]
    return replace(judgments, annotators=judgments.annotators.assign(annotator_class=classes))


class FallingRate(TrainerCallback):
    """Begins the bias's learning rate at ``boost`` times its value and lets it fall to it over a fifth of the steps.

    A function of the step alone, so that a resumed run has the same.
    """

    def __init__(self, trainer, boost: float):
        self._trainer = trainer
        self._boost = boost

    def on_step_begin(self, args, state, control, **kwargs):
        """Set the rate of the step."""
        done = state.global_step / max(1.0, BOOSTED_SHARE * state.max_steps)
        factor = max(1.0, self._boost - (self._boost - 1.0) * done)
        for group in self._trainer.bias_optimizer.param_groups:
            group["lr"] = args.bias_learning_rate * factor


START = "start.json"  # where theta started
# What the paper's penalty per token is made for: the mean answer of its reference (Table `tab:multipref`).
PAPER_TOKENS = 288.6

logger = logging.getLogger(__name__)


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
    if arm.objective not in ("votes", "types"):
        keys["objective"] = {"name": arm.objective, **arm.settings}
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
        facts=method_facts(condition, arm),
        started=started,
    )


def method_facts(condition: Condition, arm: Arm) -> dict[str, Any]:
    """What decides a run besides its recipe and votes; nothing where all is as usual."""
    # the types of EM-DPO are no objective that a recipe could name
    in_recipe = {"bias", "warm_start", "gold"} | (
        {"objective", "settings"} if arm.objective != "types" else set()
    )
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
    """The training judgments as an arm sees them."""
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
    return make_objective({"name": arm.objective, **arm.settings}, judgments, seed, beta)


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
