r"""EM-DPO: types of annotators, a policy for each, and a mixture of the policies by MinMax-DPO.

Of a round every type's policy is trained from the reference, on judgments weighted by the annotators' probabilities of
being of the type, and then takes the probabilities anew from how well each policy explains votes that it was not
trained on.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linprog
from scipy.special import log_softmax
from torch import Tensor

from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError
from badpo.estimation.significance import first_votes
from badpo.objective.bias import BiasTerm
from badpo.objective.objectives import Step, VoteWeights
from badpo.readouts.heldout import logit_accuracy
from badpo.runs.evaluate import load_trained, write_readouts
from badpo.runs.run import BEGUN, Prepared, Progress, finish_run, is_there, keep_run, run_facts
from badpo.training.checkpoints import write_json
from badpo.training.logprobs import response_logps
from badpo.training.recipe import Recipe
from badpo_paper.arms import Arm
from badpo_paper.measure import measure_run, write_planted
from badpo_paper.methods import agreements, with_checkpoints
from badpo_paper.settings import Scale
from badpo_paper.stages import CorpusStage

RESTARTS = 50


class AnnotatorWeights(VoteWeights):
    r"""A constant weight for every annotator: the M-step of EM-DPO for one type.

    .. math:: \mathcal{L} = \frac{\sum_j \gamma_{k_j} w_j \ell_j}{\bar\gamma \sum_j w_j}

    with the mean weight over all votes that are trained on. It is a constant: were the sum of the step's own weights in
    its place, a step in which hardly anyone is of the type would still move the policy by a whole step, on the votes of
    the others.
    """

    def __init__(self, weight, annotator):
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


def agreement_types(
    comparison: ArrayLike, sign: ArrayLike, annotator: ArrayLike, n_annotators: int, n_types: int, seed: int
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
    ValueError
        Fewer annotators than types.

    Examples
    --------
    Four annotators on three comparisons; the first two always contradict the last two:

    >>> comparison, annotator = np.repeat(np.arange(3), 4), np.tile(np.arange(4), 3)
    >>> agreement_types(comparison, [1, 1, -1, -1] * 3, annotator, 4, n_types=2, seed=0)
    array([0, 0, 1, 1])
    """
    if not 1 <= n_types <= n_annotators:
        raise ValueError(f"{n_types} types need as many annotators; there are {n_annotators}")
    if n_types == 1:
        return np.zeros(n_annotators, dtype=np.int64)
    comparison, annotator = np.asarray(comparison), np.asarray(annotator)
    kept = first_votes(comparison, annotator)
    products, counts = agreements(comparison[kept], np.asarray(sign)[kept], annotator[kept], n_annotators)
    shared = counts > 0
    means = np.divide(products, counts, out=np.zeros_like(products), where=shared)
    centered = np.where(shared, means - (means[shared].mean() if shared.any() else 0.0), 0.0)
    values, vectors = np.linalg.eigh(centered)
    leading = slice(n_annotators - (n_types - 1), None)
    places = vectors[:, leading] * np.sqrt(np.clip(values[leading], 0.0, None))
    return _numbered(_clustered(places, n_types, np.random.default_rng(seed)))


def _clustered(places: NDArray[np.float64], n_types: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Lloyd's k-means; the best of several starts, each at points drawn without replacement."""
    best, least = np.zeros(len(places), dtype=np.int64), np.inf
    for _ in range(RESTARTS):
        centers = places[rng.choice(len(places), n_types, replace=False)]
        label = np.full(len(places), -1)
        while True:
            distance = ((places[:, None] - centers) ** 2).sum(axis=2)
            nearest = distance.argmin(axis=1)
            if np.array_equal(nearest, label):
                break
            label = nearest
            # a type that no one is nearest to stays where it is
            for k in np.unique(label):
                centers[k] = places[label == k].mean(axis=0)
        spread = float(distance.min(axis=1).sum())
        if spread < least - 1e-12:
            best, least = label, spread
    return best


def _numbered(label: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same types, numbered in the order in which they first occur."""
    _, first, number = np.unique(label, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[number.reshape(-1)]


SMALLEST_PROBABILITY = 1e-6


def type_log_likelihood(
    margins: ArrayLike, comparison: ArrayLike, sign: ArrayLike, annotator: ArrayLike, n_annotators: int
) -> NDArray[np.float64]:
    r"""How well each type's policy explains each annotator's votes.

    .. math:: \Lambda_{ik} = \sum_{j:\, k_j = i} \log \sigma\bigl(s_j u^{(k)}_{c_j}\bigr)
    """
    margins, sign = np.asarray(margins, dtype=np.float64), np.asarray(sign, dtype=np.float64)
    explained = -np.logaddexp(0.0, -sign[:, None] * margins[np.asarray(comparison)])
    total = np.zeros((n_annotators, margins.shape[1]))
    np.add.at(total, np.asarray(annotator), explained)
    return total


def type_probabilities(log_likelihood: ArrayLike, share: ArrayLike) -> NDArray[np.float64]:
    r"""The E-step: how probable each type is for each annotator.

    .. math:: \gamma_{ik} \propto \eta_k\, e^{\Lambda_{ik}}

    Parameters
    ----------
    log_likelihood : array of shape (n_annotators, n_types)
        From `type_log_likelihood`.
    share : array of shape (n_types,)
        Share of each type among the annotators.

    Returns
    -------
    array of shape (n_annotators, n_types)
        Rows add up to 1; each entry was raised to 1e-6 before, so that no type is lost for good.

    References
    ----------
    Chidambaram et al. (2024), Direct preference optimization with unobserved preference heterogeneity.

    Examples
    --------
    An annotator without votes is of each type with its share:

    >>> type_probabilities([[0.0, 0.0], [-1.0, -4.0]], [0.25, 0.75]).round(3)
    array([[0.25, 0.75],
           [0.87, 0.13]])
    """
    log_share = np.log(np.maximum(np.asarray(share, dtype=np.float64), SMALLEST_PROBABILITY))
    gamma = np.exp(log_softmax(log_share + np.asarray(log_likelihood, dtype=np.float64), axis=1))
    gamma = np.maximum(gamma, SMALLEST_PROBABILITY)
    return gamma / gamma.sum(axis=1, keepdims=True)


def regret_matrix(log_ratios: ArrayLike) -> NDArray[np.float64]:
    r"""What each type loses when another type's policy answers.

    .. math:: R_{ij} = L_{ii} - L_{ij}, \qquad
        L_{ij} = \text{mean over prompts of } \log\frac{\pi_i(y_j)}{\pi_{ref}(y_j)}

    Parameters
    ----------
    log_ratios : array of shape (n_types, n_types)
        L: the reward of type i, up to beta, for answers that type j's policy wrote.

    Returns
    -------
    array of shape (n_types, n_types)
        Zero on the diagonal.

    Examples
    --------
    >>> regret_matrix([[3.0, 1.0], [0.0, 2.0]])
    array([[0., 2.],
           [2., 0.]])
    """
    rewards = np.asarray(log_ratios, dtype=np.float64)
    return np.diag(rewards)[:, None] - rewards


def minmax_weights(regrets: ArrayLike) -> NDArray[np.float64]:
    r"""The mixture of type policies whose largest regret over the types is smallest.

    .. math:: w = \arg\min_{w \in \Delta} \max\Bigl(0, \max_i \sum_j w_j R_{ij}\Bigr)

    The zero stands for a row of zeros in the game: a mixture that every type likes better than its own policy is not
    preferred over one that every type likes as well. The game is solved exactly, as a linear program; of several
    solutions the one nearest to equal weights is taken, so that types which nothing tells apart share alike.

    Parameters
    ----------
    regrets : array of shape (n_types, n_types)
        From `regret_matrix`.

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

    >>> minmax_weights([[0.0, 3.0], [1.0, 0.0]]).round(4)
    array([0.75, 0.25])
    """
    matrix = np.asarray(regrets, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not np.isfinite(matrix).all():
        raise ValueError(f"regrets are a finite square matrix; got shape {matrix.shape}")
    # scaled, so that the solver's tolerances mean the same for regrets of any size
    matrix = matrix / max(np.abs(matrix).max(), 1e-300)
    n = len(matrix)
    simplex = np.append(np.ones(n), 0.0)[None, :]
    bounds = [(0.0, 1.0)] * n + [(0.0, None)]
    last = np.append(np.zeros(n), 1.0)

    # unknowns: the weights, and last the largest regret, which is to be small
    found = linprog(last, np.hstack([matrix, -np.ones((n, 1))]), np.zeros(n), simplex, [1.0], bounds)
    # unknowns: the weights, and last their largest distance from 1 / n
    within = np.hstack([matrix, np.zeros((n, 1))])
    above, below = (np.hstack([sign * np.eye(n), -np.ones((n, 1))]) for sign in (1.0, -1.0))
    limits = np.concatenate([np.full(n, found.fun + 1e-9), np.full(n, 1 / n), np.full(n, -1 / n)])
    nearest = linprog(last, np.vstack([within, above, below]), limits, simplex, [1.0], bounds)
    weights = np.clip(nearest.x[:n], 0.0, None)
    return weights / weights.sum()


ROUND_FILE = "round{}.json"

# (judgments, weight of each annotator, share of the full number of steps, run folder): trains the policy there.
TrainType = Callable[[Judgments, NDArray[np.float64], float, Path], None]
# (run folder, judgments): u of every comparison under the policy in the folder.
Margins = Callable[[Path, Judgments], NDArray[np.float64]]


@dataclass(frozen=True)
class Types:
    """What EM-DPO ends with: for each annotator how probable each type is, and each type's run folder.

    The probabilities, of shape (n_annotators, n_types), are estimates of single persons.
    """

    probabilities: NDArray[np.float64]
    folders: tuple[Path, ...]

    @property
    def annotators(self) -> list[int]:
        """Annotators whose most probable type each is."""
        n_types = self.probabilities.shape[1]
        return np.bincount(self.probabilities.argmax(axis=1), minlength=n_types).tolist()


def train_types(
    arm: Arm,
    facts_of_method: Mapping[str, Any],
    recipe: Recipe,
    stage: CorpusStage,
    scale: Scale,
    folder: Path,
    progress: Progress,
) -> None:
    """Fit the types, mix their policies by MinMax-DPO, and measure the mixture, unless that is there already.

    A mixture answers each prompt with one of its policies, so that its readouts are their weighted means. Votes are
    predicted with each annotator's own types, and the difference from the ceiling has no interval. ``types`` in the
    readouts has the mixture's ``weights`` and how many ``annotators`` are most probably of each type. Run folders of
    the types are ``folder/type<k>``.
    """
    seed = recipe.training["seed"]
    facts = run_facts(recipe, Prepared(stage.train, facts=facts_of_method))
    was_done = is_there(folder, facts)
    if not was_done:
        write_json(folder / BEGUN, {"facts": facts}, private=True)

    def train_type(judgments: Judgments, weight: NDArray, share: float, of_type: Path) -> None:
        steps = {"max_steps": max(1, round(share * recipe.training["max_steps"]))}
        shorter = replace(recipe, training=recipe.training | steps, keys=recipe.keys | steps)
        asked = Prepared(
            judgments,
            objective=AnnotatorWeights(weight, judgments.votes["annotator"]),
            facts={"annotator_weights": weight.tolist()},
        )
        keep_run(with_checkpoints(shorter), of_type, asked, scale.command, progress)

    def margins(of_type: Path, judgments: Judgments) -> NDArray[np.float64]:
        return stage.margins(load_trained(of_type, stage).to(stage.args.device), judgments)

    types = fit_types(stage.train, arm.settings, seed, folder, train_type, margins)
    each = [measure_run(one, stage, seed, BiasTerm.load(one), scale, progress) for one in types.folders]
    weights = _minmax(types, stage, seed)
    u = np.stack([margins(of_type, stage.judged) for of_type in types.folders], axis=1)
    votes = logit_accuracy(mixture_logits(u, types.probabilities, stage.judged), stage.judged)
    readouts = mixed(each, weights)
    readouts |= {
        "arm": folder.name.rsplit("-s", 1)[0],
        "votes": votes,
        "types": {"weights": weights.tolist(), "annotators": types.annotators},
    }
    if "ceiling" in readouts:
        readouts["votes_minus_ceiling"] = _differences(votes, readouts["ceiling"])
    write_planted(folder, stage)
    write_readouts(folder, readouts)
    if not was_done:
        finish_run(folder, recipe, scale.command, facts)


def _minmax(types: Types, stage: CorpusStage, seed: int) -> NDArray[np.float64]:
    """The mixture's weights, from the answers of every type's policy to the stage's prompts."""
    policies = [load_trained(of_type, stage).to(stage.args.device) for of_type in types.folders]
    pairs = [
        [(np.asarray(one.prompt_ids), np.asarray(one.token_ids)) for one in stage.answers(policy, seed)]
        for policy in policies
    ]
    of_reference = [_sums(stage.model, written) for written in pairs]

    def log_ratio(i: int, j: int) -> float:
        return float(np.mean(_sums(policies[i], pairs[j]) - of_reference[j]))

    return mixture_weights(log_ratio, len(policies))


def _sums(model, pairs) -> NDArray[np.float64]:
    return np.array([values.sum(dtype=np.float64) for values in response_logps(model, pairs)])


def _differences(votes: Mapping[str, dict], ceiling: Mapping[str, dict]) -> dict:
    """Accuracy minus the ceiling's, by attribute and class, in the form of `badpo.readouts.heldout.vote_difference`."""

    def difference(one: Mapping[str, Any], other: Mapping[str, Any], name: str) -> float | None:
        return None if one[name] is None or other[name] is None else one[name] - other[name]

    return {
        attribute: {
            name: {
                "difference": difference(cell, ceiling[attribute][name], "accuracy"),
                "se": None,
                "low": None,
                "high": None,
                "n": cell["n"],
                "nll_difference": difference(cell, ceiling[attribute][name], "nll"),
            }
            for name, cell in row.items()
        }
        for attribute, row in votes.items()
    }


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
    votes, n_types = judgments.votes, int(settings["n_types"])
    start = agreement_types(
        votes["comparison"], votes["sign"], votes["annotator"], judgments.n_annotators, n_types, seed
    )
    probabilities = np.clip(np.eye(n_types)[start], SMALLEST_PROBABILITY, 1.0)
    half = vote_halves(votes["annotator"].to_numpy(), seed)
    content = [judgments.fingerprint(), dict(settings), seed]
    key = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    for number in range(int(settings["n_rounds"])):
        file = folder / ROUND_FILE.format(number)
        if file.exists():
            probabilities = _read_round(file, key)
            continue
        seen, unseen = judgments.take(half == number % 2), judgments.take(half != number % 2)
        folders = [folder / f"round{number}-type{k}" for k in range(n_types)]
        for k, of_type in enumerate(folders):
            train_type(seen, probabilities[:, k], float(settings["round_share"]), of_type)
        u = np.stack([margins(of_type, unseen) for of_type in folders], axis=1)
        probabilities = expected_types(u, unseen, probabilities.mean(axis=0))
        write_json(file, {"key": key, "probabilities": probabilities.tolist()}, private=True)
        for of_type in folders:
            shutil.rmtree(of_type)
    final = tuple(folder / f"type{k}" for k in range(n_types))
    for k, of_type in enumerate(final):
        train_type(judgments, probabilities[:, k], 1.0, of_type)
    return Types(probabilities, final)


def _read_round(file: Path, key: str) -> NDArray[np.float64]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        known, probabilities = found["key"], np.array(found["probabilities"], dtype=np.float64)
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file} is damaged; remove {file.parent} to fit the types again") from error
    if known != key:
        raise ConfigError(
            f"{file} is a round with other data or settings; remove {file.parent} or choose another folder"
        )
    return probabilities


def expected_types(
    margins: NDArray[np.float64], judgments: Judgments, share: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The E-step on the votes of ``judgments``: probabilities of shape (n_annotators, n_types)."""
    votes = judgments.votes
    explained = type_log_likelihood(
        margins, votes["comparison"], votes["sign"], votes["annotator"], judgments.n_annotators
    )
    return type_probabilities(explained, share)


def vote_halves(annotator: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Each annotator's votes divided at random into two halves, 0 and 1; of an odd number 0 has one more."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(annotator))
    order = order[np.argsort(annotator[order], kind="stable")]
    people = annotator[order]
    starts = np.searchsorted(people, people)
    half = np.empty(len(annotator), dtype=np.int64)
    half[order] = (np.arange(len(annotator)) - starts) % 2
    return half


def mixture_weights(log_ratio: Callable[[int, int], float], n_types: int) -> NDArray[np.float64]:
    """How often each type's policy answers, by MinMax-DPO."""
    table = [[log_ratio(i, j) for j in range(n_types)] for i in range(n_types)]
    return minmax_weights(regret_matrix(table))


def mixture_logits(
    margins: NDArray[np.float64], probabilities: NDArray[np.float64], judgments: Judgments
) -> NDArray[np.float64]:
    r"""Logit of each vote that was cast, by the annotators' own types.

    .. math:: \operatorname{logit} \sum_k \gamma_{k_j k}\, \sigma\bigl(s_j u^{(k)}_{c_j}\bigr)

    Parameters
    ----------
    margins : array of shape (n_comparisons, n_types)
    probabilities : array of shape (n_annotators, n_types)
    judgments : Judgments

    Returns
    -------
    array of shape (n_votes,)
        Positive where the vote is predicted.
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
            name: None if _is_uncertainty(name) else mixed([one[name] for one in readouts], weights)
            for name in first
        }
    if isinstance(first, bool | str) or all(one == first for one in readouts):
        return first
    if any(one is None for one in readouts):
        return None
    return float(np.dot(weights, readouts))


def _is_uncertainty(name: str) -> bool:
    return name.rsplit("_", 1)[-1] in ("se", "low", "high")
