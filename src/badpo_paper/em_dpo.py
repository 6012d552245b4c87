r"""EM-DPO: types of annotators, a policy for each, and a mixture of the policies by MinMax-DPO.

In each round every type's policy is trained from the reference, on judgments weighted by the annotators' probabilities
of being of the type; then the probabilities are taken anew from how well each policy explains votes that it was not
trained on.
"""

import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike
from scipy.cluster.vq import kmeans2
from scipy.optimize import linprog
from scipy.sparse import csr_array
from scipy.special import log_softmax
from torch import Tensor

from badpo.data.files import Json, write_json
from badpo.data.judgments import Judgments
from badpo.objective.bias import BiasTerm
from badpo.objective.objectives import Step, VoteWeights
from badpo.readouts.heldout import logit_accuracy
from badpo.readouts.sampled import answer_logps
from badpo.runs.evaluate import load_trained, write_readouts
from badpo.runs.run import (
    BEGUN,
    Prepared,
    Progress,
    finish_run,
    is_there,
    keep_run,
    kept_json,
    run_facts,
)
from badpo.theory import Floats, Ints
from badpo.training.recipe import Recipe
from badpo_paper.arm_setup import agreements, vote_table, with_checkpoints
from badpo_paper.arms import Arm
from badpo_paper.reference import CorpusStage
from badpo_paper.run_readouts import measure_run

RESTARTS, MOST_ITERATIONS = 50, 300  # of k-means
SMALLEST_PROBABILITY = 1e-6  # so that no type is lost for good
ROUND_FILE = "round{}.json"

# (judgments, weight of each annotator, share of the full number of steps, run folder): trains the policy there.
TrainType = Callable[[Judgments, Floats, float, Path], None]
# (run folder, judgments): u of every comparison under the policy in the folder.
Margins = Callable[[Path, Judgments], Floats]


class AnnotatorWeights(VoteWeights):
    r"""A constant weight for every annotator: the M-step of EM-DPO for one type.

    .. math:: \mathcal{L} = \frac{\sum_j \gamma_{k_j} w_j \ell_j}{\bar\gamma \sum_j w_j}

    with the mean weight over all votes that are trained on. It is a constant: were the sum of the step's own weights in
    its place, a step in which hardly anyone is of the type would still move the policy by a whole step, on the votes of
    the others.
    """

    def __init__(self, weight: ArrayLike, annotator: ArrayLike):
        given = torch.tensor(np.asarray(weight, float))
        self._weight = given / given[torch.tensor(np.array(annotator), dtype=torch.long)].mean()

    def __call__(self, step: Step) -> tuple[Tensor, Tensor]:
        """The annotators' weights, relative to their mean, times the votes' own, and the sum of the votes' own."""
        own = step.vote_weight.double()
        return self._weight[step.annotator] * own, own.sum()


# -- the types that a fit starts from ---------------------------------------------------------------------------------


def agreement_types(table: csr_array, n_types: int, seed: int) -> Ints:
    """Annotators divided into types, numbered by their first annotator, such that those of one type agree more.

    The matrix of mean products of votes on common comparisons, minus its mean over the pairs that have one and zero
    elsewhere, is taken to its leading ``n_types - 1`` eigenvectors, each scaled by its eigenvalue, and the annotators
    are clustered there by k-means, the best of 50 starts.
    """
    n_annotators = table.shape[1]
    _, counts, means = agreements(table)
    shared = counts > 0
    centered = np.where(shared, means - (means[shared].mean() if shared.any() else 0.0), 0.0)
    values, vectors = np.linalg.eigh(centered)
    leading = slice(n_annotators - (n_types - 1), None)
    places = vectors[:, leading] * values[leading]
    best, least, rng = np.zeros(n_annotators, dtype=int), np.inf, np.random.default_rng(seed)
    for _ in range(RESTARTS):
        start = places[rng.choice(n_annotators, n_types, replace=False)]
        with warnings.catch_warnings():
            # a type that no one is nearest to stays where it is
            warnings.simplefilter("ignore")
            centers, label = kmeans2(places, start, iter=MOST_ITERATIONS, minit="matrix")
        spread = float(((places - centers[label]) ** 2).sum())
        if spread < least - 1e-12:
            best, least = label, spread
    return pd.factorize(best)[0]


# -- the E-step and the mixture ---------------------------------------------------------------------------------------


def _sides(margins: ArrayLike, judgments: Judgments) -> Floats:
    """Margin in the direction of each vote under each type's policy, shape (n_votes, n_types)."""
    votes = judgments.votes
    return votes["sign"].to_numpy()[:, None] * np.asarray(margins)[votes["comparison"]]


def type_probabilities(margins: ArrayLike, judgments: Judgments, share: ArrayLike) -> Floats:
    r"""The E-step: how probable each type is for each annotator, by how its policy explains the annotator's votes.

    .. math:: \gamma_{ik} \propto \eta_k\, \prod_{j:\, k_j = i} \sigma\bigl(s_j u^{(k)}_{c_j}\bigr)

    with the share eta of each type, which an annotator without votes keeps. Each entry is raised to 1e-6 first, so that
    no type is lost for good.

    References
    ----------
    Chidambaram et al. (2024), Direct preference optimization with unobserved preference heterogeneity.
    """
    log_votes = -np.logaddexp(0.0, -_sides(margins, judgments))
    log_likelihood = np.zeros((judgments.n_annotators, log_votes.shape[1]))
    np.add.at(log_likelihood, judgments.votes["annotator"], log_votes)
    log_share = np.log(np.maximum(share, SMALLEST_PROBABILITY))
    gamma = np.maximum(np.exp(log_softmax(log_share + log_likelihood, axis=1)), SMALLEST_PROBABILITY)
    return gamma / gamma.sum(axis=1, keepdims=True)


def minmax_weights(log_ratios: ArrayLike) -> Floats:
    r"""The mixture of type policies whose largest regret over the types is smallest.

    .. math:: w = \arg\min_{w \in \Delta} \max\Bigl(0, \max_i \sum_j w_j (L_{ii} - L_{ij})\Bigr), \qquad
        L_{ij} = \text{mean over prompts of } \log\frac{\pi_i(y_j)}{\pi_{ref}(y_j)}

    The zero stands for a row of zeros in the game: a mixture that every type likes better than its own policy is not
    preferred over one that every type likes as well. The game is solved exactly, as a linear program; of several
    solutions the one nearest to equal weights is taken, so that types which nothing tells apart share alike.

    References
    ----------
    Chidambaram et al. (2024), MinMax-DPO; BA-DPO, Appendix `app:baselines`.

    Examples
    --------
    The type that loses three times as much from the other's policy is answered three times as often:

    >>> minmax_weights([[3.0, 0.0], [1.0, 2.0]]).round(4)
    array([0.75, 0.25])
    """
    rewards = np.asarray(log_ratios, float)
    regrets = np.diag(rewards)[:, None] - rewards
    # scaled, so that the solver's tolerances mean the same for regrets of any size
    regrets = regrets / max(np.abs(regrets).max(), 1e-300)
    n = len(regrets)
    eye, column = np.eye(n), np.ones((n, 1))
    # unknowns: the weights, none below zero, and last what is to be small
    small, total = np.eye(n + 1)[n], np.append(np.ones(n), 0.0)[None, :]
    # the largest regret
    least = linprog(small, np.hstack([regrets, -column]), np.zeros(n), total, [1.0]).fun
    # of what has no larger one, the largest distance from 1 / n
    within = np.block([[regrets, 0.0 * column], [eye, -column], [-eye, -column]])
    limits = np.repeat([least + 1e-9, 1 / n, -1 / n], n)
    weights = np.clip(linprog(small, within, limits, total, [1.0]).x[:n], 0.0, None)
    return weights / weights.sum()


def mixture_logits(margins: ArrayLike, probabilities: Floats, judgments: Judgments) -> Floats:
    r"""Logit of each vote that was cast, by the annotators' own types; positive where the vote is predicted.

    .. math:: \operatorname{logit} \sum_k \gamma_{k_j k}\, \sigma\bigl(s_j u^{(k)}_{c_j}\bigr)
    """
    side = _sides(margins, judgments)
    log_gamma = np.log(probabilities[judgments.votes["annotator"]])
    log_cast, log_other = (
        np.logaddexp.reduce(log_gamma - np.logaddexp(0.0, other), axis=1) for other in (-side, side)
    )
    return log_cast - log_other


def mixed(readouts: Sequence[Any], weights: Floats) -> Any:
    """Weighted mean of readouts of the same form, number by number; None where one of them is not known.

    Errors and ends of intervals do not average and are None; what is no number is the first's.
    """
    first = readouts[0]
    if isinstance(first, dict):
        return {
            name: None
            if name.rsplit("_", 1)[-1] in ("se", "low", "high")
            else mixed([one[name] for one in readouts], weights)
            for name in first
        }
    if isinstance(first, bool | str) or all(one == first for one in readouts):
        return first
    return None if any(one is None for one in readouts) else float(np.dot(weights, readouts))


# -- the rounds -------------------------------------------------------------------------------------------------------


def fit_types(
    judgments: Judgments,
    settings: Mapping[str, Any],
    seed: int,
    folder: Path,
    train_type: TrainType,
    margins: Margins,
) -> tuple[Floats, list[Path]]:
    """Types of annotators and a policy for each, by expectation and maximization: probabilities, and run folders.

    The start is `agreement_types`, taken for certain. Each annotator's votes are divided into two halves; a round
    trains on one and takes the probabilities from the other, and the halves change places after it. After the last
    round the policies are trained on all votes for all steps. What a round found is kept in ``round<r>.json``; its
    policies are deleted then. A call that was interrupted goes on from the last round that is there. The settings are
    ``n_types``, ``n_rounds``, and ``round_share``, the share of the steps that a round takes. The probabilities are
    estimates of single persons.

    References
    ----------
    BA-DPO, Appendix `app:baselines`; Chidambaram et al. (2024).
    """
    n_types = int(settings["n_types"])
    start = agreement_types(vote_table(judgments), n_types, seed)
    probabilities = np.clip(np.eye(n_types)[start], SMALLEST_PROBABILITY, 1.0)
    half = vote_halves(judgments.votes["annotator"].to_numpy(), seed)

    def trained(prefix: str, seen: Judgments, share: float) -> list[Path]:
        folders = [folder / f"{prefix}{k}" for k in range(n_types)]
        for weight, of_type in zip(probabilities.T, folders, strict=True):
            train_type(seen, weight, share, of_type)
        return folders

    for number in range(int(settings["n_rounds"])):
        file = folder / ROUND_FILE.format(number)
        if kept := kept_json(file):
            probabilities = np.array(kept["probabilities"])
            continue
        seen, unseen = judgments.take(half == number % 2), judgments.take(half != number % 2)
        folders = trained(f"round{number}-type", seen, float(settings["round_share"]))
        u = np.stack([margins(of_type, unseen) for of_type in folders], axis=1)
        probabilities = type_probabilities(u, unseen, probabilities.mean(axis=0))
        write_json(file, {"probabilities": probabilities.tolist()}, private=True)
        for of_type in folders:
            shutil.rmtree(of_type)
    return probabilities, trained("type", judgments, 1.0)


def vote_halves(annotator: Ints, seed: int) -> Ints:
    """Each annotator's votes divided at random into two halves, 0 and 1; of an odd number 0 has one more."""
    order = np.random.default_rng(seed).permutation(len(annotator))
    drawn = pd.Series(annotator).iloc[order]
    return (drawn.groupby(drawn).cumcount() % 2).sort_index().to_numpy()


# -- the run ----------------------------------------------------------------------------------------------------------


def train_types(
    arm: Arm,
    method: Json,
    recipe: Recipe,
    stage: CorpusStage,
    folder: Path,
    progress: Progress,
) -> None:
    """Fit the types, mix their policies by MinMax-DPO, and measure the mixture, unless that is there already.

    A mixture answers each prompt with one of its policies, so that its readouts are their weighted means. Votes are
    predicted with each annotator's own types. ``types`` in the readouts has the mixture's ``weights`` and how many
    ``annotators`` are most probably of each type. Run folders of the types are ``folder/type<k>``.
    """
    seed = recipe.training["seed"]
    facts = run_facts(recipe, Prepared(stage.train, facts=method))
    was_done = is_there(folder, facts)
    if not was_done:
        if not (folder / BEGUN).exists():
            # rounds whose beginning is gone may be those of another fit
            for round_file in folder.glob(ROUND_FILE.format("*")):
                round_file.unlink()
        write_json(folder / BEGUN, {"facts": facts}, private=True)

    def train_type(judgments: Judgments, weight: Floats, share: float, of_type: Path) -> None:
        steps = {"max_steps": max(1, round(share * recipe.training["max_steps"]))}
        shorter = replace(recipe, training=recipe.training | steps, keys=recipe.keys | steps)
        objective = AnnotatorWeights(weight, judgments.votes["annotator"])
        asked = Prepared(judgments, objective=objective, facts={"annotator_weights": weight.tolist()})
        keep_run(with_checkpoints(shorter), of_type, asked, stage.scale.command, progress)

    def policy(of_type: Path) -> Any:
        return load_trained(of_type, stage).to(stage.args.device)

    def margins(of_type: Path, judgments: Judgments) -> Floats:
        return stage.margins(policy(of_type), judgments)

    probabilities, folders = fit_types(stage.train, arm.settings, seed, folder, train_type, margins)
    each = [measure_run(one, stage, seed, BiasTerm.load(one), progress) for one in folders]
    weights = minmax_weights(_log_ratios(list(map(policy, folders)), stage, seed))
    u = np.stack([margins(one, stage.judged) for one in folders], axis=1)
    n_likeliest = np.bincount(probabilities.argmax(axis=1), minlength=len(folders))
    readouts = mixed(each, weights) | {
        "arm": folder.name.rsplit("-s", 1)[0],
        "votes": logit_accuracy(mixture_logits(u, probabilities, stage.judged), stage.judged),
        "types": {"weights": weights.tolist(), "annotators": n_likeliest.tolist()},
    }
    # that of single policies, which is not the mixture's
    readouts.pop("votes_minus_ceiling", None)
    write_readouts(folder, readouts)
    if not was_done:
        finish_run(folder, recipe, stage.scale.command, facts)


def _log_ratios(policies: Sequence[Any], stage: CorpusStage, seed: int) -> Floats:
    """Mean log pi_i(y_j) / pi_ref(y_j), the answers y_j those of policy j to the stage's prompts."""
    written = [stage.answers(policy, seed) for policy in policies]
    *own, reference = (
        [[values.sum(dtype=float) for values in answer_logps(model, each)] for each in written]
        for model in (*policies, stage.model)
    )
    return np.mean(np.subtract(own, reference), axis=2)
