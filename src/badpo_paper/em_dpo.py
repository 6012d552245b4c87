r"""EM-DPO: types of annotators, a policy for each, and a mixture of the policies by MinMax-DPO.

In each round every type's policy is trained from the reference, on judgments weighted by the annotators' probabilities
of being of the type; then the probabilities are taken anew from how well each policy explains votes that it was not
trained on.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.cluster.vq import kmeans2
from scipy.optimize import linprog
from scipy.special import log_softmax
from torch import Tensor

from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError
from badpo.objective.bias import BiasTerm
from badpo.objective.objectives import Step, VoteWeights
from badpo.readouts.heldout import logit_accuracy
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
from badpo.training.checkpoints import write_json
from badpo.training.logprobs import response_logps
from badpo.training.recipe import Recipe
from badpo_paper.arm_setup import agreements, with_checkpoints
from badpo_paper.arms import Arm
from badpo_paper.reference import CorpusStage
from badpo_paper.run_readouts import measure_run, write_planted
from badpo_paper.settings import Scale

RESTARTS, MOST_ITERATIONS = 50, 300  # of k-means
SMALLEST_PROBABILITY = 1e-6  # so that no type is lost for good
ROUND_FILE = "round{}.json"

# (judgments, weight of each annotator, share of the full number of steps, run folder): trains the policy there.
TrainType = Callable[[Judgments, NDArray[np.float64], float, Path], None]
# (run folder, judgments): u of every comparison under the policy in the folder.
Margins = Callable[[Path, Judgments], NDArray[np.float64]]


class AnnotatorWeights(VoteWeights):
    r"""A constant weight for every annotator: the M-step of EM-DPO for one type.

    .. math:: \mathcal{L} = \frac{\sum_j \gamma_{k_j} w_j \ell_j}{\bar\gamma \sum_j w_j}

    with the mean weight over all votes that are trained on. It is a constant: were the sum of the step's own weights in
    its place, a step in which hardly anyone is of the type would still move the policy by a whole step, on the votes of
    the others.
    """

    def __init__(self, weight: ArrayLike, annotator: ArrayLike):
        given = torch.tensor(np.asarray(weight, dtype=np.float64))
        mean = given[torch.tensor(np.array(annotator), dtype=torch.long)].mean()
        if not mean > 0:
            raise ValueError("no vote has a weight, so that there is nothing to train on")
        self._weight = given / mean

    def __call__(self, step: Step) -> tuple[Tensor, Tensor]:
        """The annotators' weights, relative to their mean, times the votes' own, and the sum of the votes' own."""
        own = step.vote_weight.double()
        return self._weight[step.annotator] * own, own.sum()

    def state_dict(self) -> dict[str, Tensor]:
        """The weights, by which a checkpoint knows its type."""
        return {"annotator_weights": self._weight}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Make sure that the checkpoint was made with the same weights."""
        before = state.get("annotator_weights")
        if before is None or not torch.equal(before, self._weight):
            raise ValueError(
                "the checkpoint was made with other weights of the annotators; remove its run folder and train anew"
            )


# -- the types that a fit starts from ---------------------------------------------------------------------------------


def agreement_types(
    comparison: ArrayLike,
    sign: ArrayLike,
    annotator: ArrayLike,
    n_annotators: int,
    n_types: int,
    seed: int,
) -> NDArray[np.int64]:
    """Annotators divided into types, such that those of one type agree more than those of different types.

    The matrix of mean products of votes on common comparisons, minus its mean over the pairs that have one and zero
    elsewhere, is taken to its leading ``n_types - 1`` eigenvectors, each scaled by the root of its eigenvalue, and the
    annotators are clustered there by k-means, the best of 50 starts.

    Parameters
    ----------
    comparison, sign, annotator : array of shape (n_votes,)
        Of repeated votes of an annotator on one comparison the first counts.
    n_annotators, n_types : int
    seed : int
        Of the starts.

    Returns
    -------
    int array of shape (n_annotators,)
        0 to ``n_types - 1``, numbered in the order of their first annotator.

    Raises
    ------
    ConfigError
        Fewer annotators than types.

    Examples
    --------
    Four annotators on three comparisons; the first two always contradict the last two:

    >>> comparison, annotator = np.repeat(np.arange(3), 4), np.tile(np.arange(4), 3)
    >>> agreement_types(comparison, [1, 1, -1, -1] * 3, annotator, 4, n_types=2, seed=0)
    array([0, 0, 1, 1])
    """
    if not 1 <= n_types <= n_annotators:
        raise ConfigError(f"{n_types} types need as many annotators; there are {n_annotators}")
    if n_types == 1:
        return np.zeros(n_annotators, dtype=np.int64)
    products, counts = agreements(comparison, sign, annotator, n_annotators)
    shared = counts > 0
    means = np.divide(products, counts, out=np.zeros_like(products), where=shared)
    centered = np.where(shared, means - (means[shared].mean() if shared.any() else 0.0), 0.0)
    values, vectors = np.linalg.eigh(centered)
    leading = slice(n_annotators - (n_types - 1), None)
    places = vectors[:, leading] * np.sqrt(np.clip(values[leading], 0.0, None))
    return pd.factorize(_clustered(places, n_types, np.random.default_rng(seed)))[0]


def _clustered(places: NDArray[np.float64], n_types: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """k-means; the best of several starts, each at points drawn without replacement."""
    best, least = np.zeros(len(places), dtype=np.int64), np.inf
    for _ in range(RESTARTS):
        start = places[rng.choice(len(places), n_types, replace=False)]
        with warnings.catch_warnings():
            # a type that no one is nearest to stays where it is
            warnings.simplefilter("ignore")
            centers, label = kmeans2(places, start, iter=MOST_ITERATIONS, minit="matrix")
        spread = float(((places - centers[label]) ** 2).sum())
        if spread < least - 1e-12:
            best, least = label, spread
    return best


# -- the E-step and the mixture ---------------------------------------------------------------------------------------


def type_probabilities(
    margins: ArrayLike, judgments: Judgments, share: ArrayLike
) -> NDArray[np.float64]:
    r"""The E-step: how probable each type is for each annotator, by how its policy explains the annotator's votes.

    .. math:: \gamma_{ik} \propto \eta_k\, \prod_{j:\, k_j = i} \sigma\bigl(s_j u^{(k)}_{c_j}\bigr)

    Parameters
    ----------
    margins : array of shape (n_comparisons, n_types)
        u under each type's policy.
    judgments : Judgments
        The votes that are to be explained.
    share : array of shape (n_types,)
        Share of each type among the annotators, which an annotator without votes keeps.

    Returns
    -------
    array of shape (n_annotators, n_types)
        Rows add up to 1; each entry was raised to 1e-6 before, so that no type is lost for good.

    References
    ----------
    Chidambaram et al. (2024), Direct preference optimization with unobserved preference heterogeneity.
    """
    votes, margins = judgments.votes, np.asarray(margins, dtype=np.float64)
    side = votes["sign"].to_numpy()[:, None] * margins[votes["comparison"].to_numpy()]
    log_likelihood = np.zeros((judgments.n_annotators, margins.shape[1]))
    np.add.at(log_likelihood, votes["annotator"].to_numpy(), -np.logaddexp(0.0, -side))
    log_share = np.log(np.maximum(np.asarray(share, dtype=np.float64), SMALLEST_PROBABILITY))
    gamma = np.maximum(np.exp(log_softmax(log_share + log_likelihood, axis=1)), SMALLEST_PROBABILITY)
    return gamma / gamma.sum(axis=1, keepdims=True)


def minmax_weights(log_ratios: ArrayLike) -> NDArray[np.float64]:
    r"""The mixture of type policies whose largest regret over the types is smallest.

    .. math:: w = \arg\min_{w \in \Delta} \max\Bigl(0, \max_i \sum_j w_j (L_{ii} - L_{ij})\Bigr), \qquad
        L_{ij} = \text{mean over prompts of } \log\frac{\pi_i(y_j)}{\pi_{ref}(y_j)}

    The zero stands for a row of zeros in the game: a mixture that every type likes better than its own policy is not
    preferred over one that every type likes as well. The game is solved exactly, as a linear program; of several
    solutions the one nearest to equal weights is taken, so that types which nothing tells apart share alike.

    Parameters
    ----------
    log_ratios : array of shape (n_types, n_types)
        L: the reward of type i, up to beta, for answers that type j's policy wrote.

    Returns
    -------
    array of shape (n_types,)
        Not negative, adding up to 1.

    Raises
    ------
    ValueError
        A matrix that is not square, or not finite.

    References
    ----------
    Chidambaram et al. (2024), MinMax-DPO; BA-DPO, Appendix `app:baselines`.

    Examples
    --------
    The type that loses three times as much from the other's policy is answered three times as often:

    >>> minmax_weights([[3.0, 0.0], [1.0, 2.0]]).round(4)
    array([0.75, 0.25])
    """
    rewards = np.asarray(log_ratios, dtype=np.float64)
    if rewards.ndim != 2 or rewards.shape[0] != rewards.shape[1] or not np.isfinite(rewards).all():
        raise ValueError(f"rewards are a finite square matrix; got shape {rewards.shape}")
    regrets = np.diag(rewards)[:, None] - rewards
    # scaled, so that the solver's tolerances mean the same for regrets of any size
    regrets = regrets / max(np.abs(regrets).max(), 1e-300)
    n = len(regrets)
    simplex = np.append(np.ones(n), 0.0)[None, :]
    bounds = [(0.0, 1.0)] * n + [(0.0, None)]
    last = np.append(np.zeros(n), 1.0)

    # unknowns: the weights, and last the largest regret, which is to be small
    found = linprog(last, np.hstack([regrets, -np.ones((n, 1))]), np.zeros(n), simplex, [1.0], bounds)
    # unknowns: the weights, and last their largest distance from 1 / n
    within = np.hstack([regrets, np.zeros((n, 1))])
    above, below = (np.hstack([sign * np.eye(n), -np.ones((n, 1))]) for sign in (1.0, -1.0))
    limits = np.concatenate([np.full(n, found.fun + 1e-9), np.full(n, 1 / n), np.full(n, -1 / n)])
    nearest = linprog(last, np.vstack([within, above, below]), limits, simplex, [1.0], bounds)
    weights = np.clip(nearest.x[:n], 0.0, None)
    return weights / weights.sum()


def mixture_logits(
    margins: NDArray[np.float64], probabilities: NDArray[np.float64], judgments: Judgments
) -> NDArray[np.float64]:
    r"""Logit of each vote that was cast, by the annotators' own types; positive where the vote is predicted.

    .. math:: \operatorname{logit} \sum_k \gamma_{k_j k}\, \sigma\bigl(s_j u^{(k)}_{c_j}\bigr)
    """
    votes = judgments.votes
    side = votes["sign"].to_numpy()[:, None] * margins[votes["comparison"].to_numpy()]
    log_gamma = np.log(probabilities[votes["annotator"].to_numpy()])
    log_cast = np.logaddexp.reduce(log_gamma - np.logaddexp(0.0, -side), axis=1)
    log_other = np.logaddexp.reduce(log_gamma - np.logaddexp(0.0, side), axis=1)
    return log_cast - log_other


def mixed(readouts: Sequence[Any], weights: NDArray[np.float64]) -> Any:
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


@dataclass(frozen=True)
class Types:
    """What EM-DPO ends with: for each annotator how probable each type is, and each type's run folder.

    The probabilities, of shape (n_annotators, n_types), are estimates of single persons.
    """

    probabilities: NDArray[np.float64]
    folders: tuple[Path, ...]

    @property
    def annotators(self) -> list[int]:
        """How many annotators are most probably of each type."""
        return np.bincount(self.probabilities.argmax(axis=1), minlength=len(self.folders)).tolist()


def fit_types(
    judgments: Judgments,
    settings: Mapping[str, Any],
    seed: int,
    folder: Path,
    train_type: TrainType,
    margins: Margins,
) -> Types:
    """Types of annotators and a policy for each, by expectation and maximization.

    The start is `agreement_types`, taken for certain. Each annotator's votes are divided into two halves; a round
    trains on one and takes the probabilities from the other, and the halves change places after it. After the last
    round the policies are trained on all votes for all steps. What a round found is kept in ``round<r>.json``; its
    policies are deleted then. A call that was interrupted goes on from the last round that is there.

    Parameters
    ----------
    judgments : Judgments
    settings : mapping
        ``n_types``, ``n_rounds``, and ``round_share``, the share of the steps that a round takes.
    seed : int
        Of the halves and of the starts of the clustering.
    folder : Path
    train_type, margins : functions

    References
    ----------
    BA-DPO, Appendix `app:baselines`; Chidambaram et al. (2024).

    Raises
    ------
    ConfigError
        No annotator identities; or the folder holds rounds of other data or settings.
    """
    if not judgments.has_identities:
        raise ConfigError(
            "EM-DPO divides annotators into types and needs an annotator column; none was given"
        )
    n_types = int(settings["n_types"])
    votes, n = judgments.votes, judgments.n_annotators
    start = agreement_types(votes["comparison"], votes["sign"], votes["annotator"], n, n_types, seed)
    probabilities = np.clip(np.eye(n_types)[start], SMALLEST_PROBABILITY, 1.0)
    half = vote_halves(votes["annotator"].to_numpy(), seed)
    content = [judgments.fingerprint(), dict(settings), seed]
    key = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    def trained(prefix: str, seen: Judgments, share: float) -> tuple[Path, ...]:
        folders = tuple(folder / f"{prefix}{k}" for k in range(n_types))
        for k, of_type in enumerate(folders):
            train_type(seen, probabilities[:, k], share, of_type)
        return folders

    for number in range(int(settings["n_rounds"])):
        file = folder / ROUND_FILE.format(number)
        if file.exists():
            kept = kept_json(file)
            if kept.get("key") != key:
                raise ConfigError(
                    f"{file} is damaged, or a round with other data or settings; remove {folder} to fit the types "
                    "again, or choose another folder"
                )
            probabilities = np.array(kept["probabilities"], dtype=np.float64)
            continue
        seen, unseen = judgments.take(half == number % 2), judgments.take(half != number % 2)
        folders = trained(f"round{number}-type", seen, float(settings["round_share"]))
        u = np.stack([margins(of_type, unseen) for of_type in folders], axis=1)
        probabilities = type_probabilities(u, unseen, probabilities.mean(axis=0))
        write_json(file, {"key": key, "probabilities": probabilities.tolist()}, private=True)
        for of_type in folders:
            shutil.rmtree(of_type)
    return Types(probabilities, trained("type", judgments, 1.0))


def vote_halves(annotator: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Each annotator's votes divided at random into two halves, 0 and 1; of an odd number 0 has one more."""
    order = np.random.default_rng(seed).permutation(len(annotator))
    half = np.empty(len(annotator), dtype=np.int64)
    half[order] = pd.Series(annotator[order]).groupby(annotator[order]).cumcount() % 2
    return half


# -- the run ----------------------------------------------------------------------------------------------------------


def train_types(
    arm: Arm,
    method: Mapping[str, Any],
    recipe: Recipe,
    stage: CorpusStage,
    scale: Scale,
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
        write_json(folder / BEGUN, {"facts": facts}, private=True)

    def train_type(judgments: Judgments, weight: NDArray, share: float, of_type: Path) -> None:
        steps = {"max_steps": max(1, round(share * recipe.training["max_steps"]))}
        shorter = replace(recipe, training=recipe.training | steps, keys=recipe.keys | steps)
        objective = AnnotatorWeights(weight, judgments.votes["annotator"])
        asked = Prepared(judgments, objective=objective, facts={"annotator_weights": weight.tolist()})
        keep_run(with_checkpoints(shorter), of_type, asked, scale.command, progress)

    def margins(of_type: Path, judgments: Judgments) -> NDArray[np.float64]:
        return stage.margins(_policy(of_type, stage), judgments)

    types = fit_types(stage.train, arm.settings, seed, folder, train_type, margins)
    each = [measure_run(one, stage, seed, BiasTerm.load(one), scale, progress) for one in types.folders]
    weights = minmax_weights(_log_ratios(types, stage, seed))
    u = np.stack([margins(of_type, stage.judged) for of_type in types.folders], axis=1)
    readouts = mixed(each, weights) | {
        "arm": folder.name.rsplit("-s", 1)[0],
        "votes": logit_accuracy(mixture_logits(u, types.probabilities, stage.judged), stage.judged),
        "types": {"weights": weights.tolist(), "annotators": types.annotators},
    }
    # that of single policies, which is not the mixture's
    readouts.pop("votes_minus_ceiling", None)
    write_planted(folder, stage)
    write_readouts(folder, readouts)
    if not was_done:
        finish_run(folder, recipe, scale.command, facts)


def _policy(of_type: Path, stage: CorpusStage) -> Any:
    return load_trained(of_type, stage).to(stage.args.device)


def _log_ratios(types: Types, stage: CorpusStage, seed: int) -> NDArray[np.float64]:
    """Mean log pi_i(y_j) / pi_ref(y_j), the answers y_j those of type j's policy to the stage's prompts."""
    policies = [_policy(of_type, stage) for of_type in types.folders]
    written = [
        [(np.asarray(one.prompt_ids), np.asarray(one.token_ids)) for one in stage.answers(policy, seed)]
        for policy in policies
    ]
    own = [[_sums(policy, answers) for answers in written] for policy in policies]
    return np.mean(np.array(own) - [_sums(stage.model, answers) for answers in written], axis=2)


def _sums(model: Any, pairs: Sequence[Any]) -> NDArray[np.float64]:
    return np.array([values.sum(dtype=np.float64) for values in response_logps(model, pairs)])
