"""EM-DPO: the start, the E-step, the rounds with policies that are told their margins, and the mixture."""

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
from badpo_paper.arms import ARMS
from tests.objective.test_objectives import step

THIS, THAT = "red cat", "blue dog"  # words that the small tokenizer knows
SETTINGS = {"n_types": 2, "n_rounds": 3, "round_share": 0.25}


def two_kinds(n_comparisons: int = 150, seed: int = 0) -> Judgments:
    """Ten annotators; the second five vote for the other side, nine times of ten."""
    rng = np.random.default_rng(seed)
    rows = []
    for c in range(n_comparisons):
        side = rng.choice([-1, 1])
        for k in rng.choice(10, 4, replace=False):
            wanted = side if k < 5 else -side
            vote = wanted if rng.random() < 0.9 else -wanted
            sides, winner = (THIS, THAT)[::side], "a" if vote > 0 else "b"
            rows.append((f"question {c}", *sides, winner, f"person {k}"))
    columns = ["prompt", "response_a", "response_b", "winner", "annotator"]
    return Judgments.read(pd.DataFrame(rows, columns=columns))


def chose_this(judgments: Judgments) -> np.ndarray:
    """1 for every vote for THIS, -1 for one for THAT."""
    this_is_a = (judgments.comparisons["response_a"] == THIS).to_numpy()[judgments.votes["comparison"]]
    return np.where(this_is_a, judgments.votes["sign"], -judgments.votes["sign"])


class Trainer:
    """Learns, as a policy, how much the weighted votes prefer THIS to THAT."""

    def __init__(self):
        self.calls: list[tuple[str, set[int], float]] = []
        self.scored: list[set[int]] = []

    def train(self, judgments: Judgments, weight: np.ndarray, share: float, folder: Path) -> None:
        self.calls.append((folder.name, set(judgments.votes["row"]), share))
        mean = np.average(chose_this(judgments), weights=weight[judgments.votes["annotator"]])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "lean.json").write_text(json.dumps(float(np.arctanh(np.clip(mean, -0.99, 0.99)))))

    def margins(self, folder: Path, judgments: Judgments) -> np.ndarray:
        self.scored.append(set(judgments.votes["row"]))
        lean = json.loads((folder / "lean.json").read_text())
        return np.where(judgments.comparisons["response_a"] == THIS, lean, -lean)


def kinds(judgments: Judgments) -> np.ndarray:
    """Whether each annotator is of the second kind, by how they vote."""
    return np.bincount(judgments.votes["annotator"], weights=chose_this(judgments)) < 0


def fitted(folder: Path, trainer: Trainer, judgments: Judgments | None = None):
    data = judgments or two_kinds()
    return em_dpo.fit_types(data, SETTINGS, 1, folder, trainer.train, trainer.margins)


def test_the_kinds_are_found_by_the_rounds_of_the_method(tmp_path):
    trainer, every_row = Trainer(), set(two_kinds().votes["row"])
    probabilities, folders = fitted(tmp_path, trainer)
    of_type, kind = probabilities.argmax(axis=1), kinds(two_kinds()).astype(int)
    assert (of_type == kind).all() or (of_type == 1 - kind).all()
    assert probabilities.max(axis=1).min() > 0.95
    names, seen, shares = zip(*trainer.calls, strict=True)
    assert names == (*(f"round{r}-type{k}" for r in range(3) for k in range(2)), "type0", "type1")
    # types are taken from votes that no policy was trained on, and the halves change places
    assert len(trainer.scored) == 6 and trainer.scored[0] == seen[2] != seen[0] == seen[4]
    for trained, scored in zip(seen, trainer.scored, strict=False):
        assert not trained & scored and trained | scored == every_row
    assert seen[-2:] == (every_row, every_row) and shares == (0.25,) * 6 + (1.0,) * 2
    # the policies of a round are deleted, and the last ones kept
    kept = {"round0.json", "round1.json", "round2.json", "type0", "type1"}
    assert {path.name for path in tmp_path.iterdir()} == kept
    assert folders == [tmp_path / "type0", tmp_path / "type1"]
    # a finished fit trains no round again
    again = Trainer()
    fitted(tmp_path, again)
    assert [name for name, _, _ in again.calls] == ["type0", "type1"]


def test_a_fit_that_was_interrupted_goes_on_and_a_damaged_round_is_made_again(tmp_path):
    class Dying(Trainer):
        def train(self, *arguments):
            if len(self.calls) == 3:
                raise InterruptedError
            super().train(*arguments)

    whole, _ = fitted(tmp_path / "whole", Trainer())
    with pytest.raises(InterruptedError):
        fitted(tmp_path / "cut", Dying())
    for first in ("round1-type0", "round2-type0"):
        again = Trainer()
        resumed, _ = fitted(tmp_path / "cut", again)
        # whether a policy is there already is for its trainer to say
        assert again.calls[0][0] == first
        np.testing.assert_array_equal(whole, resumed)
        (tmp_path / "cut" / "round2.json").write_text('{"probabilities": ')


def test_a_folder_is_of_one_run_from_its_start(tmp_path, monkeypatch):
    def trained(seed: int) -> None:
        monkeypatch.setattr(em_dpo, "run_facts", lambda recipe, prepared: {"seed": seed})
        recipe, stage = SimpleNamespace(training={"seed": seed}), SimpleNamespace(train=two_kinds(3))
        em_dpo.train_types(ARMS["em_dpo"], {}, recipe, stage, tmp_path, None)

    monkeypatch.setattr(em_dpo, "fit_types", Mock(side_effect=InterruptedError))
    for _ in range(2):
        with pytest.raises(InterruptedError):
            trained(1)
    with pytest.raises(ConfigError, match="other data or settings"):
        trained(2)


def test_halves_are_halves_of_everyone():
    annotator = np.random.default_rng(0).integers(7, size=500)
    half = em_dpo.split_votes(annotator, seed=3)
    counts = [np.bincount(half[annotator == k], minlength=2) for k in range(7)]
    assert all(0 <= zeros - ones <= 1 for zeros, ones in counts)
    np.testing.assert_array_equal(half, em_dpo.split_votes(annotator, seed=3))
    assert not np.array_equal(half, em_dpo.split_votes(annotator, seed=4))


def of_kinds(n: int, n_kinds: int, n_each: int, per_comparison: int):
    """Votes of kinds of annotators that each have a side of their own on every comparison."""
    rng, kind = np.random.default_rng(0), np.repeat(np.arange(n_kinds), n_each)
    sides = rng.choice([-1, 1], (n, n_kinds))
    annotator = np.concatenate([rng.choice(len(kind), per_comparison, replace=False) for _ in range(n)])
    comparison = np.repeat(np.arange(n), per_comparison)
    sign = sides[comparison, kind[annotator]].astype(float)
    return kind, csr_array((sign, (comparison, annotator)), shape=(n, len(kind)))


def test_a_start_of_few_comparisons_and_one_that_meets_no_type():
    assert set(em_dpo.cluster_annotators(csr_array(np.diag([1.0, 1, -1])), 2, seed=0)) <= {0, 1}
    # six types of four: several k-means starts out of ten put two centers into one type
    kind, table = of_kinds(2000, 6, 4, 6)
    for seed in range(8):
        assert em_dpo.cluster_annotators(table, 6, seed=seed).tolist() == kind.tolist()


@pytest.mark.parametrize("seed", [3, 5, 8])
def test_the_start_is_the_best_partition_in_eigenvectors_that_are_scaled_by_their_eigenvalues(seed):
    """On tables on which the roots of the eigenvalues give another partition; every partition is tried."""
    table = np.random.default_rng(seed).choice([-1.0, 0.0, 1.0], size=(40, 7))
    off_diagonal, common = ~np.eye(7, dtype=bool), abs(table).T @ abs(table)
    share = (
        (common + table.T @ table) / 2 / common
    )  # of the common comparisons, on which two chose alike
    values, vectors = np.linalg.eigh(np.where(off_diagonal, share - share[off_diagonal].mean(), 0.0))

    def spread(labels, scale) -> float:
        places = vectors[:, -2:] * scale(values[-2:])
        each = (places[np.equal(labels, label)] for label in set(labels))
        return sum(((one - one.mean(axis=0)) ** 2).sum() for one in each)

    partitions = [(0, *rest) for rest in product(range(3), repeat=6)]
    best, by_roots = (min(partitions, key=lambda one: spread(one, scale)) for scale in (np.abs, np.sqrt))
    found = em_dpo.cluster_annotators(csr_array(table), 3, seed=0).tolist()
    assert (
        found == pd.factorize(np.array(best))[0].tolist() != pd.factorize(np.array(by_roots))[0].tolist()
    )


def test_the_e_step_is_bayes_rule_and_annotator_weights_are_a_weighted_dpo():
    judgments, share = two_kinds(n_comparisons=3), np.array([0.3, 0.7])
    margins = np.array([[1.0, -1.0], [0.5, 2.0], [0.0, -0.2]])
    likelihood = np.ones((judgments.n_annotators, 2))
    for _, vote in judgments.votes.iterrows():
        likelihood[vote["annotator"]] /= 1 + np.exp(-vote["sign"] * margins[vote["comparison"]])
    expected = share * likelihood / (share * likelihood).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(em_dpo.estimate_probabilities(margins, judgments, share), expected)
    # no type is lost for good
    gamma = em_dpo.estimate_probabilities(np.array([[0, -9e3]] * 3), judgments, [1.0, 0.0])
    np.testing.assert_allclose(gamma.sum(axis=1), 1.0)
    assert gamma.min() == pytest.approx(1e-6, rel=1e-3)
    objective = em_dpo.AnnotatorWeights([0.75, 0.5, 0.25], [0, 1, 2, 1])
    weights, normaliser = objective(step([0, 1, 2, 1], [1.0, 1.0, 1.0, 2.0]))
    assert weights.tolist() == [1.5, 1.0, 0.5, 2.0] and normaliser == 5
    # a step without anyone of the type moves nothing
    weights, normaliser = em_dpo.AnnotatorWeights([1.0, 0.0], [0, 1])(step([1, 1, 1]))
    assert (weights / normaliser == 0).all()
    assert em_dpo.AnnotatorWeights([1.0, 1.0], [0, 1])(step([]))[1] == 0


@pytest.mark.parametrize(
    ("regrets", "expected"),
    [
        ([[0, 3], [1, 0]], [3 / 4, 1 / 4]),  # 3 (1 - w) = w
        ([[0, 1, 1], [1, 0, 1], [1, 1, 0]], [1 / 3, 1 / 3, 1 / 3]),
        # the first type is hurt by both others, which do not mind its answers
        ([[0, 2, 2], [0, 0, 2], [0, 2, 0]], [1, 0, 0]),
        # three types in a ring, each hurt by the next alone: a w2 = b w3 = c w1
        ([[0, 1, 0], [0, 0, 2], [4, 0, 0]], [1 / 7, 4 / 7, 2 / 7]),
        # nothing tells the types apart
        ([[0, 0], [0, 0]], [1 / 2, 1 / 2]),
        # every mixture is as good for everyone as the own policy, or better: the row of zeros decides nothing
        ([[0, -1], [-1, 0]], [1 / 2, 1 / 2]),
    ],
)
def test_games_solved_by_hand(regrets, expected):
    # whatever the own rewards and the scale, which regrets leave out
    own = np.arange(len(expected))[:, None]
    for scale in (1.0, 1e-6, 1e6):
        found = em_dpo.solve_minmax(scale * (own - np.array(regrets)))
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_vote_is_predicted_by_the_annotators_own_types_and_readouts_are_means():
    judgments = two_kinds(n_comparisons=30)
    u = np.where(judgments.comparisons["response_a"] == THIS, 1.0, -1.0)
    margins, second, votes = np.stack([u, -u], axis=1), kinds(judgments), judgments.votes
    certain = np.stack([~second, second], axis=1) * (1 - 2e-6) + 1e-6
    own = np.where(second, -1, 1)[votes["annotator"]] * u[votes["comparison"]]
    found = em_dpo.compute_mixture_logits(margins, certain, judgments)
    np.testing.assert_allclose(found, votes["sign"] * own, atol=1e-4)
    even = np.full((10, 2), 0.5)
    np.testing.assert_allclose(em_dpo.compute_mixture_logits(margins, even, judgments), 0.0, atol=1e-12)
    one = {"arm": "x", "rates": {"rate": 0.2, "se": 0.01}, "n": 3, "mean": None, "kl": 1.0, "kl_se": 0.1}
    other = one | {"arm": "y", "rates": {"rate": 0.6, "se": 0.01}, "n": 4, "mean": 2.0}
    one["sums"], other["sums"] = [{"text": "a", "n": 1.0}, 2.0], [{"text": "b", "n": 5.0}, 4.0]
    rates = {"rate": pytest.approx(0.3), "se": None}
    expected = {"arm": "x", "rates": rates, "n": 3.25, "mean": None, "kl": 1.0, "kl_se": None}
    expected["sums"] = [{"text": "a", "n": 2.0}, 2.5]
    assert em_dpo.mix_readouts([one, other], np.array([0.75, 0.25])) == expected
