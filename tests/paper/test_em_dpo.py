"""EM-DPO's rounds, with policies that are told their margins instead of being trained."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from transformers import AutoModelForCausalLM

from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError
from badpo.readouts.heldout import implicit_margins
from badpo.training.config import BADPOConfig
from badpo.training.reference import ReferenceCache, weights_key
from badpo.training.trainer import BADPOTrainer
from badpo_paper.em_dpo import (
    AnnotatorWeights,
    Types,
    fit_types,
    mixed,
    mixture_logits,
    mixture_weights,
    vote_halves,
)
from tests import tiny

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
            rows.append(
                {
                    "comparison_id": f"c{c}",
                    "prompt": f"question {c}",
                    "response_a": THIS if side > 0 else THAT,
                    "response_b": THAT if side > 0 else THIS,
                    "winner": "a" if vote > 0 else "b",
                    "annotator": f"person {k}",
                }
            )
    return Judgments.read(pd.DataFrame(rows))


class Trainer:
    """Learns, as a policy, how much the weighted votes prefer THIS to THAT."""

    def __init__(self):
        self.calls: list[tuple[str, int, float]] = []

    def train(self, judgments: Judgments, weight: np.ndarray, share: float, folder: Path) -> None:
        self.calls.append((folder.name, judgments.n_votes, share))
        votes = judgments.votes
        this_is_a = (judgments.comparisons["response_a"] == THIS).to_numpy()[votes["comparison"]]
        chose_this = np.where(this_is_a, votes["sign"], -votes["sign"])
        mean = np.average(chose_this, weights=weight[votes["annotator"]])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "lean.json").write_text(json.dumps(float(np.arctanh(np.clip(mean, -0.99, 0.99)))))

    @staticmethod
    def margins(folder: Path, judgments: Judgments) -> np.ndarray:
        lean = json.loads((folder / "lean.json").read_text())
        return np.where(judgments.comparisons["response_a"] == THIS, lean, -lean)


def kinds(judgments: Judgments) -> np.ndarray:
    """Whether each annotator is of the second kind, by how they vote."""
    votes = judgments.votes
    this_is_a = (judgments.comparisons["response_a"] == THIS).to_numpy()[votes["comparison"]]
    chose_this = np.where(this_is_a, votes["sign"], -votes["sign"])
    return np.bincount(votes["annotator"], weights=chose_this) < 0


def fitted(
    folder: Path, trainer: Trainer, judgments: Judgments | None = None, seed: int = 1, **settings
) -> Types:
    data = judgments if judgments is not None else two_kinds()
    return fit_types(data, SETTINGS | settings, seed, folder, trainer.train, trainer.margins)


def test_the_kinds_are_found(tmp_path):
    types = fitted(tmp_path, Trainer())
    of_type = types.probabilities.argmax(axis=1)
    kind = kinds(two_kinds()).astype(int)
    assert (of_type == kind).all() or (of_type == 1 - kind).all()
    assert types.annotators == [5, 5]
    assert types.probabilities.max(axis=1).min() > 0.95


def test_the_rounds_are_those_of_the_method(tmp_path):
    trainer = Trainer()
    fitted(tmp_path, trainer)
    assert [name for name, _, _ in trainer.calls] == [
        *(f"round{r}-type{k}" for r in range(3) for k in range(2)),
        "type0",
        "type1",
    ]
    n_votes = two_kinds().n_votes
    seen = [n for _, n, _ in trainer.calls]
    assert seen[0] + seen[2] == n_votes and seen[0] == seen[4]  # the halves change places
    assert seen[-2:] == [n_votes, n_votes]
    assert [share for _, _, share in trainer.calls] == [0.25] * 6 + [1.0] * 2


def test_types_are_taken_from_votes_that_no_policy_was_trained_on(tmp_path):
    trained, scored, data = [], [], two_kinds()

    def train(judgments, weight, share, folder):
        trained.append(set(judgments.votes["row"]))
        Trainer().train(judgments, weight, share, folder)

    def margins(folder, judgments):
        scored.append(set(judgments.votes["row"]))
        return Trainer.margins(folder, judgments)

    fit_types(data, SETTINGS, 1, tmp_path, train, margins)
    assert len(scored) == 6
    for seen, unseen in zip(trained, scored, strict=False):
        assert not seen & unseen
        assert seen | unseen == set(data.votes["row"])


def test_the_policies_of_a_round_are_deleted_and_the_last_ones_kept(tmp_path):
    types = fitted(tmp_path, Trainer())
    assert {path.name for path in tmp_path.iterdir()} == {
        "round0.json",
        "round1.json",
        "round2.json",
        "type0",
        "type1",
    }
    assert types.folders == (tmp_path / "type0", tmp_path / "type1")


def test_a_fit_that_was_interrupted_goes_on(tmp_path):
    whole = fitted(tmp_path / "whole", Trainer())

    class Dying(Trainer):
        def train(self, *arguments):
            if len(self.calls) == 3:
                raise InterruptedError
            super().train(*arguments)

    with pytest.raises(InterruptedError):
        fitted(tmp_path / "cut", Dying())
    again = Trainer()
    resumed = fitted(tmp_path / "cut", again)
    assert again.calls[0][0] == "round1-type0"  # whether a policy is there already is for its trainer to say
    np.testing.assert_array_equal(whole.probabilities, resumed.probabilities)


def test_a_finished_fit_trains_no_round_again(tmp_path):
    fitted(tmp_path, Trainer())
    again = Trainer()
    fitted(tmp_path, again)
    assert [name for name, _, _ in again.calls] == ["type0", "type1"]


def test_rounds_of_other_settings_or_damaged_are_refused(tmp_path):
    fitted(tmp_path, Trainer())
    with pytest.raises(ConfigError, match="other data or settings"):
        fitted(tmp_path, Trainer(), round_share=0.5)
    with pytest.raises(ConfigError, match="other data or settings"):
        fitted(tmp_path, Trainer(), seed=2)
    (tmp_path / "round1.json").write_text('{"key": ')
    with pytest.raises(ConfigError, match="round1.json is damaged"):
        fitted(tmp_path, Trainer())


def test_types_need_identities(tmp_path):
    table = pd.DataFrame({"prompt": ["p"], "chosen": ["a"], "rejected": ["b"]})
    with pytest.raises(ConfigError, match="annotator column"):
        fitted(tmp_path, Trainer(), Judgments.read(table))


def test_halves_are_halves_of_everyone():
    annotator = np.random.default_rng(0).integers(7, size=500)
    half = vote_halves(annotator, seed=3)
    for k in range(7):
        zeros, ones = np.bincount(half[annotator == k], minlength=2)
        assert 0 <= zeros - ones <= 1
    np.testing.assert_array_equal(half, vote_halves(annotator, seed=3))
    assert not np.array_equal(half, vote_halves(annotator, seed=4))


def test_a_vote_is_predicted_by_the_annotators_own_types():
    judgments = two_kinds(n_comparisons=30)
    u = np.where(judgments.comparisons["response_a"] == THIS, 1.0, -1.0)
    margins = np.stack([u, -u], axis=1)
    second = kinds(judgments)
    certain = np.stack([~second, second], axis=1) * (1 - 2e-6) + 1e-6
    votes = judgments.votes
    own = np.where(second, -1, 1)[votes["annotator"]] * u[votes["comparison"]]
    np.testing.assert_allclose(mixture_logits(margins, certain, judgments), votes["sign"] * own, atol=1e-4)
    even = np.full((10, 2), 0.5)
    np.testing.assert_allclose(mixture_logits(margins, even, judgments), 0.0, atol=1e-12)


def test_the_mixture_favours_the_type_that_loses_most():
    weights = mixture_weights(lambda i, j: [[6.0, 0.0], [4.0, 5.0]][i][j], 2)
    np.testing.assert_allclose(weights, [6 / 7, 1 / 7], atol=1e-6)


def test_means_of_readouts():
    one = {
        "arm": "x",
        "rates": {"woman": {"rate": 0.2, "se": 0.01}},
        "n": 3,
        "mean": None,
        "kl": 1.0,
        "kl_se": 0.1,
    }
    other = {
        "arm": "y",
        "rates": {"woman": {"rate": 0.6, "se": 0.01}},
        "n": 4,
        "mean": 2.0,
        "kl": 1.0,
        "kl_se": 0.1,
    }
    found = mixed([one, other], np.array([0.75, 0.25]))
    assert found == {
        "arm": "x",
        "rates": {"woman": {"rate": pytest.approx(0.3), "se": None}},
        "n": 3.25,
        "mean": None,
        "kl": 1.0,
        "kl_se": None,
    }


@pytest.mark.slow
def test_the_kinds_are_found_with_policies_that_are_trained(tmp_path):
    """The trainer itself: two kinds of annotators who want the opposite, and a policy for each."""
    judgments = two_kinds(n_comparisons=60)
    start = tiny.model()

    def train(judgments, weight, share, folder):
        run = BADPOTrainer(
            tiny.model(),
            args=BADPOConfig(
                str(folder),
                bias="none",
                per_device_train_batch_size=32,
                max_steps=round(100 * share),
                learning_rate=3e-3,
                save_strategy="no",
                report_to="none",
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                disable_tqdm=True,
                reference_cache=str(tmp_path / "cache"),
            ),
            train_dataset=judgments,
            processing_class=tiny.tokenizer(),
            objective=AnnotatorWeights(weight, judgments.votes["annotator"]),
        )
        run.train()
        run.save_model()

    def margins(folder, judgments):
        policy = AutoModelForCausalLM.from_pretrained(folder / "model")
        cache = ReferenceCache(tmp_path / "cache", weights_key(start, "fp32"))
        return implicit_margins(policy, start, cache, judgments, tiny.tokenizer(), "trl", 1024, None, 0.1)

    settings = {"n_types": 2, "n_rounds": 2, "round_share": 0.3}
    types = fit_types(judgments, settings, 1, tmp_path / "types", train, margins)
    of_type, kind = types.probabilities.argmax(axis=1), kinds(judgments).astype(int)
    assert (of_type == kind).all() or (of_type == 1 - kind).all()
    u = np.stack([margins(folder, judgments) for folder in types.folders], axis=1)
    assert (mixture_logits(u, types.probabilities, judgments) > 0).mean() > 0.8
    assert abs(np.mean(u[:, 0] * judgments.majority() > 0) - 0.5) < 0.3  # neither type is the pool
