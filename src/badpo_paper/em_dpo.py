r"""Fit EM-DPO: latent types of annotators, one policy per type, and a mixture of policies with MinMax-DPO weights.

In each round, EM-DPO trains one policy for every type, starting from the reference. A judgment is weighted by the
probability that its annotator has the type. EM-DPO then updates the type probabilities of the annotators, using the
likelihood of held-out votes under each policy.
"""

import shutil
import warnings
from collections.abc import Callable, Sequence
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
from transformers import PreTrainedModel

from badpo.data.files import Json, write_json
from badpo.data.judgments import Judgments
from badpo.estimation.significance import first_votes
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
    has_finished_run,
    keep_run,
    read_json,
    run_facts,
)
from badpo.theory import Floats, Ints
from badpo.training.recipe import Recipe
from badpo_paper.corpus_stage import CorpusStage, add_checkpoints, collect_method_facts
from badpo_paper.run_readouts import measure_run
from badpo_paper.suites import Arm, Settings

# K-means: number of random starts, and maximum number of iterations.
N_STARTS, MAX_ITERATIONS = 50, 300
# Lower bound on the probability that an annotator has a type.
MIN_PROBABILITY = 1e-6
ROUND_FILE = "round{}.json"

# Type of a function that trains a policy; arguments: judgments, annotator weights, share of the steps, run folder.
TrainType = Callable[[Judgments, Floats, float, Path], None]
# Type of a function that returns the margins u under a run's policy; arguments: run folder and judgments.
Margins = Callable[[Path, Judgments], Floats]


class AnnotatorWeights(VoteWeights):
    r"""The weights of judgments in EM-DPO's M-step for one type: each annotator has one constant weight.

    .. math:: \mathcal{L} = \frac{\sum_j \gamma_{k_j} w_j \ell_j}{\bar\gamma \sum_j w_j}

    The mean weight is computed over all training votes, so it is the same in every step. If the loss of a step were
    divided by the weights in this step, a step with few annotators of the type would change the policy as much as a
    step with many.
    """

    def __init__(self, weight: ArrayLike, annotator: ArrayLike):
        weights = torch.tensor(np.asarray(weight, float))
        self._weight = weights / weights[torch.tensor(np.array(annotator), dtype=torch.long)].mean()

    def __call__(self, step: Step) -> tuple[Tensor, Tensor]:
        """Return the product of annotator weight and vote weight for each vote, and the sum of the vote weights."""
        vote_weight = step.vote_weight.double()
        return self._weight[step.annotator] * vote_weight, vote_weight.sum()


# -- initial types of the annotators ----------------------------------------------------------------------------------


def make_vote_table(judgments: Judgments) -> csr_array:
    """Drop repeated votes, and return the signs of the other votes as a table (n_comparisons, n_annotators)."""
    votes = judgments.votes
    votes = votes[first_votes(votes["comparison"], votes["annotator"])]
    shape = (judgments.n_comparisons, judgments.n_annotators)
    cells = (votes["comparison"], votes["annotator"])
    return csr_array((votes["sign"].to_numpy(float), cells), shape=shape)


def cluster_annotators(table: csr_array, n_types: int, seed: int) -> Ints:
    """Cluster the annotators into types whose members agree with one another; type 0 contains the first annotator.

    The agreement of two annotators is the mean product of their votes on common comparisons. The mean over all pairs of
    annotators with common comparisons is subtracted from the agreement; pairs without common comparisons are set to
    zero. The coordinates of an annotator are the leading ``n_types - 1`` eigenvectors, scaled by their eigenvalues.
    K-means clusters the coordinates from 50 random starts, and the solution with the smallest within-cluster sum of
    squares is returned.
    """
    n_annotators = table.shape[1]
    off_diagonal = 1.0 - np.eye(n_annotators)
    products, counts = ((signs.T @ signs).toarray() * off_diagonal for signs in (table, abs(table)))
    is_shared = counts > 0
    means = np.divide(products, counts, out=np.zeros_like(products), where=is_shared)
    centered = np.where(is_shared, means - (means[is_shared].mean() if is_shared.any() else 0.0), 0.0)
    values, vectors = np.linalg.eigh(centered)
    leading = slice(n_annotators - (n_types - 1), None)
    coordinates = vectors[:, leading] * values[leading]
    best, least, rng = np.zeros(n_annotators, dtype=int), np.inf, np.random.default_rng(seed)
    for _ in range(N_STARTS):
        start = coordinates[rng.choice(n_annotators, n_types, replace=False)]
        with warnings.catch_warnings():
            # if a cluster is empty, scipy warns and keeps the previous center
            warnings.simplefilter("ignore")
            centers, label = kmeans2(coordinates, start, iter=MAX_ITERATIONS, minit="matrix")
        sum_of_squares = float(((coordinates - centers[label]) ** 2).sum())
        if sum_of_squares < least - 1e-12:
            best, least = label, sum_of_squares
    return np.asarray(pd.factorize(best)[0])


# -- the E-step and the mixture ---------------------------------------------------------------------------------------


def _vote_margins(margins: ArrayLike, judgments: Judgments) -> Floats:
    """Return the margin of each chosen response under each type's policy, as an array of shape (n_votes, n_types)."""
    votes = judgments.votes
    return np.asarray(votes["sign"].to_numpy()[:, None] * np.asarray(margins)[votes["comparison"]])


def estimate_probabilities(margins: ArrayLike, judgments: Judgments, share: ArrayLike) -> Floats:
    r"""Estimate the posterior probability that each annotator has each type, from the likelihood of the votes (E-step).

    .. math:: \gamma_{ik} \propto \eta_k\, \prod_{j:\, k_j = i} \sigma\bigl(s_j u^{(k)}_{c_j}\bigr)

    The prior eta is the share of each type, and the posterior of an annotator without votes is the prior.
    Probabilities below 1e-6 are set to 1e-6 before normalization, so that every type keeps a positive probability.

    References
    ----------
    Chidambaram et al. (2024), Direct preference optimization with unobserved preference heterogeneity.
    """
    log_votes = -np.logaddexp(0.0, -_vote_margins(margins, judgments))
    log_likelihood = np.zeros((judgments.n_annotators, log_votes.shape[1]))
    np.add.at(log_likelihood, judgments.votes["annotator"], log_votes)
    log_share = np.log(np.maximum(share, MIN_PROBABILITY))
    gamma = np.maximum(np.exp(log_softmax(log_share + log_likelihood, axis=1)), MIN_PROBABILITY)
    return np.asarray(gamma / gamma.sum(axis=1, keepdims=True))


def solve_minmax(log_ratios: ArrayLike) -> Floats:
    r"""Find the mixture weights of the types' policies that minimize the largest regret of any type.

    .. math:: w = \arg\min_{w \in \Delta} \max\Bigl(0, \max_i \sum_j w_j (L_{ii} - L_{ij})\Bigr), \qquad
        L_{ij} = \text{mean over prompts of } \log\frac{\pi_i(y_j)}{\pi_{ref}(y_j)}

    The zero means that negative regrets do not count: a mixture that every type prefers to its own policy has the
    same value as a mixture without regret. A linear program solves the game exactly. If there are several solutions,
    the function returns the solution nearest to equal weights, so that indistinguishable types get equal weights.

    References
    ----------
    Chidambaram et al. (2024), MinMax-DPO; BA-DPO, Appendix `app:baselines`.

    Examples
    --------
    The first type loses three times as much under the other type's policy, so its policy gets three times the weight:

    >>> solve_minmax([[3.0, 0.0], [1.0, 2.0]]).round(4)
    array([0.75, 0.25])
    """
    rewards = np.asarray(log_ratios, float)
    regrets = np.diag(rewards)[:, None] - rewards
    # the solver has absolute tolerances, so scale the regrets
    regrets = regrets / max(np.abs(regrets).max(), 1e-300)
    n = len(regrets)
    identity, column = np.eye(n), np.ones((n, 1))
    # the variables of the linear program are the nonnegative weights and, at the end, the objective value
    objective, total = np.eye(n + 1)[n], np.append(np.ones(n), 0.0)[None, :]
    # first program: minimize the largest regret
    least = linprog(objective, np.hstack([regrets, -column]), np.zeros(n), total, [1.0]).fun
    # among the weights with the smallest regret, the second program keeps every weight as close to 1 / n as possible
    constraints = np.block([[regrets, 0.0 * column], [identity, -column], [-identity, -column]])
    limits = np.repeat([least + 1e-9, 1 / n, -1 / n], n)
    weights = np.clip(linprog(objective, constraints, limits, total, [1.0]).x[:n], 0.0, None)
    return np.asarray(weights / weights.sum())


def compute_mixture_logits(margins: ArrayLike, probabilities: Floats, judgments: Judgments) -> Floats:
    r"""Compute the log-odds of each vote from the type probabilities of the vote's annotator.

    .. math:: \operatorname{logit} \sum_k \gamma_{k_j k}\, \sigma\bigl(s_j u^{(k)}_{c_j}\bigr)
    """
    vote_margins = _vote_margins(margins, judgments)
    log_gamma = np.log(probabilities[judgments.votes["annotator"]])
    log_vote, log_opposite = (
        np.logaddexp.reduce(log_gamma - np.logaddexp(0.0, opposite), axis=1)
        for opposite in (-vote_margins, vote_margins)
    )
    return np.asarray(log_vote - log_opposite)


def mix_readouts(readouts: Sequence[Any], weights: Floats) -> Any:
    """Compute the weighted mean of every number in several readouts (JSON objects with the same keys).

    If one of the numbers is None, the weighted mean is None. Standard errors and interval limits become
    None, because a weighted mean of them has no meaning. Lists are averaged entry by entry. Strings and bools are
    copied from ``readouts[0]``.
    """
    first = readouts[0]
    if isinstance(first, dict):
        return {
            name: None
            if name.rsplit("_", 1)[-1] in ("se", "low", "high")
            else mix_readouts([readout[name] for readout in readouts], weights)
            for name in first
        }
    if isinstance(first, list):
        return [mix_readouts(entries, weights) for entries in zip(*readouts, strict=True)]
    if isinstance(first, bool | str) or all(readout == first for readout in readouts):
        return first
    return None if any(readout is None for readout in readouts) else float(np.dot(weights, readouts))


# -- the rounds -------------------------------------------------------------------------------------------------------


def fit_types(
    judgments: Judgments,
    settings: Settings,
    seed: int,
    folder: Path,
    train_type: TrainType,
    margins: Margins,
) -> tuple[Floats, list[Path]]:
    """Fit annotator types, and one policy for each type, by expectation maximization.

    Returns the type probabilities of every annotator and the run folders of the policies. The fit starts from
    `cluster_annotators`. The votes of each annotator are divided into two halves. A round trains on one half and
    estimates the probabilities from the other half; the next round exchanges the halves. After the last round, the
    policies are trained on all votes with all steps. A round writes its probabilities to ``round<r>.json`` and
    deletes its policies. After an interruption, the next call continues after the last complete round. The settings
    are ``n_types``, ``n_rounds`` and ``round_share``, the share of the training steps in a round. The probabilities
    are personal data: estimates about individual annotators.

    References
    ----------
    BA-DPO, Appendix `app:baselines`; Chidambaram et al. (2024).
    """
    n_types = int(settings["n_types"])
    start = cluster_annotators(make_vote_table(judgments), n_types, seed)
    probabilities = np.clip(np.eye(n_types)[start], MIN_PROBABILITY, 1.0)
    half = split_votes(judgments.votes["annotator"].to_numpy(), seed)

    def train_types_on(votes: Judgments, prefix: str, share: float) -> list[Path]:
        folders = [folder / f"{prefix}{k}" for k in range(n_types)]
        for weight, type_folder in zip(probabilities.T, folders, strict=True):
            train_type(votes, weight, share, type_folder)
        return folders

    for number in range(int(settings["n_rounds"])):
        file = folder / ROUND_FILE.format(number)
        if finished_round := read_json(file):
            probabilities = np.array(finished_round["probabilities"])
            continue
        training, held_out = judgments.take(half == number % 2), judgments.take(half != number % 2)
        folders = train_types_on(training, f"round{number}-type", float(settings["round_share"]))
        u = np.stack([margins(type_folder, held_out) for type_folder in folders], axis=1)
        probabilities = estimate_probabilities(u, held_out, probabilities.mean(axis=0))
        write_json(file, {"probabilities": probabilities.tolist()}, private=True)
        for type_folder in folders:
            shutil.rmtree(type_folder)
    return probabilities, train_types_on(judgments, "type", 1.0)


def split_votes(annotator: Ints, seed: int) -> Ints:
    """Randomly split the votes of each annotator into halves 0 and 1; if the number is odd, half 0 is larger."""
    order = np.random.default_rng(seed).permutation(len(annotator))
    shuffled = pd.Series(annotator).iloc[order]
    return np.asarray((shuffled.groupby(shuffled).cumcount() % 2).sort_index().to_numpy())


# -- the run ----------------------------------------------------------------------------------------------------------


def train_types(arm: Arm, recipe: Recipe, stage: CorpusStage, folder: Path, progress: Progress) -> None:
    """Fit the annotator types, mix their policies with MinMax-DPO, and measure the mixture. A finished result is kept.

    A mixture answers each prompt with one of its policies, so the readouts of a mixture are weighted means of the
    readouts of its policies. The prediction of a vote uses the type probabilities of the vote's annotator. ``types`` in
    the readouts has the ``weights`` of the mixture and the number of ``annotators`` for whom each type is the most
    probable. The run folder of the policy for type k is ``folder/type<k>``.
    """
    seed = recipe.training["seed"]
    facts = run_facts(recipe, Prepared(stage.train, facts=collect_method_facts(arm)))
    is_finished = has_finished_run(folder, facts)
    if not is_finished:
        if not (folder / BEGUN).exists():
            # if the begin marker is missing, the round files may come from another fit
            for round_file in folder.glob(ROUND_FILE.format("*")):
                round_file.unlink()
        write_json(folder / BEGUN, {"facts": facts}, private=True)

    def train_type(judgments: Judgments, weight: Floats, share: float, type_folder: Path) -> None:
        steps = {"max_steps": max(1, round(share * recipe.training["max_steps"]))}
        shorter = replace(recipe, training=recipe.training | steps, keys=recipe.keys | steps)
        objective = AnnotatorWeights(weight, judgments.votes["annotator"])
        prepared = Prepared(judgments, objective=objective, facts={"annotator_weights": weight.tolist()})
        keep_run(add_checkpoints(shorter), type_folder, prepared, stage.scale.command, progress)

    def load_policy(type_folder: Path) -> PreTrainedModel:
        return load_trained(type_folder, stage).to(stage.args.device)

    def compute_margins(type_folder: Path, judgments: Judgments) -> Floats:
        return stage.margins(load_policy(type_folder), judgments)

    probabilities, folders = fit_types(
        stage.train, arm.settings, seed, folder, train_type, compute_margins
    )
    type_readouts = [
        measure_run(type_folder, stage, seed, BiasTerm.load(type_folder), progress)
        for type_folder in folders
    ]
    weights = solve_minmax(_measure_log_ratios(list(map(load_policy, folders)), stage, seed))
    u = np.stack([compute_margins(type_folder, stage.judged) for type_folder in folders], axis=1)
    n_likeliest = np.bincount(probabilities.argmax(axis=1), minlength=len(folders))
    readouts: Json = mix_readouts(type_readouts, weights) | {
        "arm": folder.name.rsplit("-s", 1)[0],
        "votes": logit_accuracy(compute_mixture_logits(u, probabilities, stage.judged), stage.judged),
        "types": {"weights": weights.tolist(), "annotators": n_likeliest.tolist()},
    }
    # for a mixture, votes_minus_ceiling is not a weighted mean of the policies' values, so drop it
    readouts.pop("votes_minus_ceiling", None)
    write_readouts(folder, readouts)
    if not is_finished:
        finish_run(folder, recipe, stage.scale.command, facts)


def _measure_log_ratios(policies: Sequence[PreTrainedModel], stage: CorpusStage, seed: int) -> Floats:
    """Compute the mean over prompts of log pi_i(y_j) / pi_ref(y_j), where y_j is the answer of policy j."""
    answers = [stage.answers(policy, seed) for policy in policies]
    *logps, reference_logps = (
        [[values.sum(dtype=float) for values in answer_logps(model, batch)] for batch in answers]
        for model in (*policies, stage.model)
    )
    return np.asarray(np.mean(np.subtract(logps, reference_logps), axis=2))
