"""EM-DPO: initial types, E-step, rounds with simulated policies, and the mixture of policies."""

import json
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array

from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError
from badpo_paper import em_dpo
from badpo_paper.suites import ARMS
from tests.objective.test_objectives import step

# Responses whose words the small tokenizer has.
FIRST, SECOND = "red cat", "blue dog"
SETTINGS = {"n_types": 2, "n_rounds": 3, "round_share": 0.25}


def two_kinds(n_comparisons: int = 150, seed: int = 0) -> Judgments:
    """Make votes of ten annotators; the last five prefer the opposite responses, with 90 % reliability."""
    rng = np.random.default_rng(seed)
    rows = []
    for c in range(n_comparisons):
        side = rng.choice([-1, 1])
        for k in rng.choice(10, 4, replace=False):
            preferred = side if k < 5 else -side
            vote = preferred if rng.random() < 0.9 else -preferred
            sides, winner = (FIRST, SECOND)[::side], "a" if vote > 0 else "b"
            rows.append((f"question {c}", *sides, winner, f"person {k}"))
    columns = ["prompt", "response_a", "response_b", "winner", "annotator"]
    return Judgments.read(pd.DataFrame(rows, columns=columns))


def choose_first(judgments: Judgments) -> np.ndarray:
    """Return 1 for each vote for FIRST, and -1 for each vote for SECOND."""
    first_is_a = (judgments.comparisons["response_a"] == FIRST).to_numpy()[judgments.votes["comparison"]]
    return np.where(first_is_a, judgments.votes["sign"], -judgments.votes["sign"])


class Trainer:
    """Simulated trainer: a policy is the log-odds with which the weighted votes prefer FIRST to SECOND."""

    def __init__(self):
        self.calls: list[tuple[str, set[int], float]] = []
        self.scored: list[set[int]] = []

    def train(self, judgments: Judgments, weight: np.ndarray, share: float, folder: Path) -> None:
        self.calls.append((folder.name, set(judgments.votes["row"]), share))
        mean = np.average(choose_first(judgments), weights=weight[judgments.votes["annotator"]])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "margin.json").write_text(json.dumps(float(np.arctanh(np.clip(mean, -0.99, 0.99)))))

    def margins(self, folder: Path, judgments: Judgments) -> np.ndarray:
        self.scored.append(set(judgments.votes["row"]))
        margin = json.loads((folder / "margin.json").read_text())
        return np.where(judgments.comparisons["response_a"] == FIRST, margin, -margin)


def kinds(judgments: Judgments) -> np.ndarray:
    """Whether the votes of each annotator belong to the second kind."""
    return np.bincount(judgments.votes["annotator"], weights=choose_first(judgments)) < 0


def fitted(folder: Path, trainer: Trainer, judgments: Judgments | None = None):
    data = judgments or two_kinds()
    return em_dpo.fit_types(data, SETTINGS, 1, folder, trainer.train, trainer.margins)


def test_the_rounds_find_the_kinds_of_annotators(tmp_path):
    trainer, every_row = Trainer(), set(two_kinds().votes["row"])
    probabilities, folders = fitted(tmp_path, trainer)
    types, kind = probabilities.argmax(axis=1), kinds(two_kinds()).astype(int)
    assert (types == kind).all() or (types == 1 - kind).all()
    assert probabilities.max(axis=1).min() > 0.95
    names, seen, shares = zip(*trainer.calls, strict=True)
    assert names == (*(f"round{r}-type{k}" for r in range(3) for k in range(2)), "type0", "type1")
    # the probabilities are estimated on votes that no policy was trained on, and the halves are exchanged
    assert len(trainer.scored) == 6 and trainer.scored[0] == seen[2] != seen[0] == seen[4]
    for trained, scored in zip(seen, trainer.scored, strict=False):
        assert not trained & scored and trained | scored == every_row
    assert seen[-2:] == (every_row, every_row) and shares == (0.25,) * 6 + (1.0,) * 2
    # the policies of a round are deleted, and the last policies remain
    remaining = {"round0.json", "round1.json", "round2.json", "type0", "type1"}
    assert {path.name for path in tmp_path.iterdir()} == remaining
    assert folders == [tmp_path / "type0", tmp_path / "type1"]
    # a finished fit trains no round again
    again = Trainer()
    fitted(tmp_path, again)
    assert [name for name, _, _ in again.calls] == ["type0", "type1"]


def test_an_interrupted_fit_continues_and_a_damaged_round_is_repeated(tmp_path):
    class InterruptedTrainer(Trainer):
        def train(self, *arguments):
            if len(self.calls) == 3:
                raise InterruptedError
            super().train(*arguments)

    whole, _ = fitted(tmp_path / "whole", Trainer())
    with pytest.raises(InterruptedError):
        fitted(tmp_path / "cut", InterruptedTrainer())
    for first in ("round1-type0", "round2-type0"):
        again = Trainer()
        resumed, _ = fitted(tmp_path / "cut", again)
        # the fit calls the trainer for finished policies too
        assert again.calls[0][0] == first
        np.testing.assert_array_equal(whole, resumed)
        (tmp_path / "cut" / "round2.json").write_text('{"probabilities": ')


def test_a_folder_with_a_started_run_refuses_another_run(tmp_path, monkeypatch):
    def train(seed: int) -> None:
        monkeypatch.setattr(em_dpo, "run_facts", lambda recipe, prepared: {"seed": seed})
        recipe, stage = SimpleNamespace(training={"seed": seed}), SimpleNamespace(train=two_kinds(3))
        em_dpo.train_types(ARMS["em_dpo"], recipe, stage, tmp_path, None)

    monkeypatch.setattr(em_dpo, "fit_types", Mock(side_effect=InterruptedError))
    for _ in range(2):
        with pytest.raises(InterruptedError):
            train(1)
    with pytest.raises(ConfigError, match="other data or settings"):
        train(2)


def test_the_votes_of_each_annotator_are_halved():
    annotator = np.random.default_rng(0).integers(7, size=500)
    half = em_dpo.split_votes(annotator, seed=3)
    counts = [np.bincount(half[annotator == k], minlength=2) for k in range(7)]
    assert all(0 <= zeros - ones <= 1 for zeros, ones in counts)
    np.testing.assert_array_equal(half, em_dpo.split_votes(annotator, seed=3))
    assert not np.array_equal(half, em_dpo.split_votes(annotator, seed=4))


def make_kinds(n: int, n_kinds: int, n_each: int, per_comparison: int):
    """Make votes of several kinds of annotators; each kind has its own preferred side on every comparison."""
    rng, kind = np.random.default_rng(0), np.repeat(np.arange(n_kinds), n_each)
    sides = rng.choice([-1, 1], (n, n_kinds))
    annotator = np.concatenate([rng.choice(len(kind), per_comparison, replace=False) for _ in range(n)])
    comparison = np.repeat(np.arange(n), per_comparison)
    sign = sides[comparison, kind[annotator]].astype(float)
    return kind, csr_array((sign, (comparison, annotator)), shape=(n, len(kind)))


def test_clusters_of_few_comparisons_and_of_many_types():
    assert set(em_dpo.cluster_annotators(csr_array(np.diag([1.0, 1, -1])), 2, seed=0)) <= {0, 1}
    # with six types of four annotators, some k-means starts put two centers into one type
    kind, table = make_kinds(2000, 6, 4, 6)
    for seed in range(8):
        assert em_dpo.cluster_annotators(table, 6, seed=seed).tolist() == kind.tolist()


@pytest.mark.parametrize("seed", [3, 5, 8])
def test_clusters_are_the_best_partition_of_the_scaled_eigenvectors(seed):
    """The square roots of the eigenvalues would give another partition of these tables."""
    table = np.random.default_rng(seed).choice([-1.0, 0.0, 1.0], size=(40, 7))
    off_diagonal, common = ~np.eye(7, dtype=bool), abs(table).T @ abs(table)
    # share of the common comparisons on which two annotators agree
    share = (common + table.T @ table) / 2 / common
    values, vectors = np.linalg.eigh(np.where(off_diagonal, share - share[off_diagonal].mean(), 0.0))

    def spread(labels, scale) -> float:
        coordinates = vectors[:, -2:] * scale(values[-2:])
        clusters = (coordinates[np.equal(labels, label)] for label in set(labels))
        return sum(((cluster - cluster.mean(axis=0)) ** 2).sum() for cluster in clusters)

    partitions = [(0, *rest) for rest in product(range(3), repeat=6)]
    best, by_roots = (
        min(partitions, key=lambda labels: spread(labels, scale)) for scale in (np.abs, np.sqrt)
    )
    types = em_dpo.cluster_annotators(csr_array(table), 3, seed=0).tolist()
    assert (
        types == pd.factorize(np.array(best))[0].tolist() != pd.factorize(np.array(by_roots))[0].tolist()
    )


def test_the_e_step_is_bayes_rule_and_annotator_weights_weight_the_loss():
    judgments, share = two_kinds(n_comparisons=3), np.array([0.3, 0.7])
    margins = np.array([[1.0, -1.0], [0.5, 2.0], [0.0, -0.2]])
    likelihood = np.ones((judgments.n_annotators, 2))
    for _, vote in judgments.votes.iterrows():
        likelihood[vote["annotator"]] /= 1 + np.exp(-vote["sign"] * margins[vote["comparison"]])
    expected = share * likelihood / (share * likelihood).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(em_dpo.estimate_probabilities(margins, judgments, share), expected)
    # every type keeps a positive probability
    gamma = em_dpo.estimate_probabilities(np.array([[0, -9e3]] * 3), judgments, [1.0, 0.0])
    np.testing.assert_allclose(gamma.sum(axis=1), 1.0)
    assert gamma.min() == pytest.approx(1e-6, rel=1e-3)
    objective = em_dpo.AnnotatorWeights([0.75, 0.5, 0.25], [0, 1, 2, 1])
    weights, normaliser = objective(step([0, 1, 2, 1], [1.0, 1.0, 1.0, 2.0]))
    assert weights.tolist() == [1.5, 1.0, 0.5, 2.0] and normaliser == 5
    # a step without annotators of the type has no gradient
    weights, normaliser = em_dpo.AnnotatorWeights([1.0, 0.0], [0, 1])(step([1, 1, 1]))
    assert (weights / normaliser == 0).all()
    assert em_dpo.AnnotatorWeights([1.0, 1.0], [0, 1])(step([]))[1] == 0


@pytest.mark.parametrize(
    ("regrets", "expected"),
    [
        ([[0, 3], [1, 0]], [3 / 4, 1 / 4]),  # 3 (1 - w) = w
        ([[0, 1, 1], [1, 0, 1], [1, 1, 0]], [1 / 3, 1 / 3, 1 / 3]),
        # the first type has regrets under both other policies, and the others have none under its policy
        ([[0, 2, 2], [0, 0, 2], [0, 2, 0]], [1, 0, 0]),
        # three types in a ring, each with a regret only under the next policy: a w2 = b w3 = c w1
        ([[0, 1, 0], [0, 0, 2], [4, 0, 0]], [1 / 7, 4 / 7, 2 / 7]),
        # the types are indistinguishable
        ([[0, 0], [0, 0]], [1 / 2, 1 / 2]),
        # for every type, every mixture is at least as good as its own policy
        ([[0, -1], [-1, 0]], [1 / 2, 1 / 2]),
    ],
)
def test_minmax_weights_equal_solutions_by_hand(regrets, expected):
    # the weights do not depend on the scale and on the rewards of the own policies
    own = np.arange(len(expected))[:, None]
    for scale in (1.0, 1e-6, 1e6):
        weights = em_dpo.solve_minmax(scale * (own - np.array(regrets)))
        np.testing.assert_allclose(weights, expected, atol=1e-6)


def test_votes_are_predicted_by_the_types_of_the_annotator_and_readouts_are_averaged():
    judgments = two_kinds(n_comparisons=30)
    u = np.where(judgments.comparisons["response_a"] == FIRST, 1.0, -1.0)
    margins, second, votes = np.stack([u, -u], axis=1), kinds(judgments), judgments.votes
    certain = np.stack([~second, second], axis=1) * (1 - 2e-6) + 1e-6
    own = np.where(second, -1, 1)[votes["annotator"]] * u[votes["comparison"]]
    logits = em_dpo.compute_mixture_logits(margins, certain, judgments)
    np.testing.assert_allclose(logits, votes["sign"] * own, atol=1e-4)
    even = np.full((10, 2), 0.5)
    np.testing.assert_allclose(em_dpo.compute_mixture_logits(margins, even, judgments), 0.0, atol=1e-12)
    first_readouts = {
        "arm": "x",
        "rates": {"rate": 0.2, "se": 0.01},
        "n": 3,
        "mean": None,
        "kl": 1.0,
        "kl_se": 0.1,
    }
    other = first_readouts | {"arm": "y", "rates": {"rate": 0.6, "se": 0.01}, "n": 4, "mean": 2.0}
    first_readouts["sums"], other["sums"] = (
        [{"text": "a", "n": 1.0}, 2.0],
        [{"text": "b", "n": 5.0}, 4.0],
    )
    rates = {"rate": pytest.approx(0.3), "se": None}
    expected = {"arm": "x", "rates": rates, "n": 3.25, "mean": None, "kl": 1.0, "kl_se": None}
    expected["sums"] = [{"text": "a", "n": 2.0}, 2.5]
    assert em_dpo.mix_readouts([first_readouts, other], np.array([0.75, 0.25])) == expected
