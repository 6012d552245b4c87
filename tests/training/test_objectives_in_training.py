"""Objectives inside the trainer: whatever the micro-batches, the layout and the interruptions, the same run."""

from __future__ import annotations

import math

import pytest
import torch

from badpo.data.problems import ConfigError
from badpo.objective.objectives import (
    DiscountedTail,
    GroupWeights,
    IdentityPreference,
    SampledTokens,
    VoteWeights,
)
from badpo.training.trainer import BADPOTrainer
from tests.training import test_trainer
from tests.training.test_trainer import judgments, log_lines

OBJECTIVES = {
    "sampo": lambda: SampledTokens(seed=7),
    "ld_dpo": lambda: DiscountedTail(alpha=0.5),
    "ipo": lambda: IdentityPreference(beta=0.1),
    "group_dro": lambda: GroupWeights([0, 0, 1, 1, 2], eta=0.5),
    "reliability": lambda: GroupWeights(range(5), eta=-0.5),
}


def trainer(folder, objective, **options) -> BADPOTrainer:
    return test_trainer.trainer(folder, objective=objective, **options)


def assert_same_run(one: BADPOTrainer, other: BADPOTrainer) -> None:
    for p, q in zip(one.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(one.bias.theta(), other.bias.theta(), rtol=1e-4, atol=1e-6)


QUICK = ("sampo", "group_dro")
BY_NAME = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in OBJECTIVES]


@pytest.mark.parametrize("name", BY_NAME)
def test_micro_batches_and_layout_do_not_change_the_run(tmp_path, name):
    one = trainer(
        tmp_path / "one", OBJECTIVES[name](), per_device_train_batch_size=8, gradient_accumulation_steps=1
    )
    parts = trainer(
        tmp_path / "parts",
        OBJECTIVES[name](),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4,
        attention="padded",
    )
    one.train()
    parts.train()
    assert_same_run(one, parts)


@pytest.mark.slow
@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_objective_changes_the_run(tmp_path, name):
    with_it = trainer(tmp_path / "with", OBJECTIVES[name]())
    plain = trainer(tmp_path / "plain", VoteWeights())
    with_it.train()
    plain.train()
    pairs = zip(with_it.model.parameters(), plain.model.parameters(), strict=True)
    assert any((p - q).abs().max() > 1e-5 for p, q in pairs)


def test_token_weights_of_one_are_dpo(tmp_path):
    neutral = trainer(tmp_path / "neutral", DiscountedTail(alpha=1.0))
    plain = trainer(tmp_path / "plain", VoteWeights())
    neutral.train()
    plain.train()
    assert_same_run(neutral, plain)


@pytest.mark.parametrize("name", ["sampo", pytest.param("group_dro", marks=pytest.mark.slow)])
def test_a_run_killed_and_resumed_is_the_uninterrupted_one(tmp_path, name):
    options = dict(save_strategy="steps", save_steps=2)
    whole = trainer(tmp_path / "whole", OBJECTIVES[name](), **options)
    whole.train()
    cut = trainer(tmp_path / "cut", OBJECTIVES[name](), **options)
    finish, done = cut.finish_step, []

    def finish_then_die():
        done.append(1)
        if len(done) == 5:
            raise InterruptedError
        return finish()

    cut.finish_step = finish_then_die
    with pytest.raises(InterruptedError):
        cut.train()
    resumed = trainer(tmp_path / "cut", OBJECTIVES[name](), **options)
    resumed.train(resume_from_checkpoint=True)
    for p, q in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(p, q)
    assert (tmp_path / "cut" / "log.jsonl").read_text() == (tmp_path / "whole" / "log.jsonl").read_text()


def test_a_checkpoint_of_another_objective_is_refused(tmp_path):
    options = dict(save_strategy="steps", save_steps=2)
    trainer(tmp_path, SampledTokens(seed=7), **options).train()
    other = trainer(tmp_path, SampledTokens(seed=8), **options)
    with pytest.raises(ConfigError, match="SampledTokens seed=7"):
        other.train(resume_from_checkpoint=True)


def test_the_weights_of_the_groups_are_learned_and_told(tmp_path):
    run = trainer(tmp_path, OBJECTIVES["group_dro"]())
    run.train()
    spread = [line["groups/weight_sd"] for line in log_lines(tmp_path)]
    assert spread[-1] > 0
    assert run.objective.metrics()["groups/weight_sd"] == spread[-1]


def test_the_weights_follow_the_losses_of_the_whole_step(tmp_path):
    seen = []

    class Noting(GroupWeights):
        def sums(self, step, losses):
            seen.append((len(step), len(losses), losses.clone()))
            return super().sums(step, losses)

    run = trainer(tmp_path, Noting([0, 0, 1, 1, 2], eta=0.5))
    run.train()
    assert [(n, m) for n, m, _ in seen] == [(8, 8)] * 6
    torch.testing.assert_close(seen[0][2], torch.full_like(seen[0][2], math.log(2)))


def test_the_first_margin_is_zero_under_token_weights(tmp_path):
    for name in ("sampo", "ld_dpo", "ipo"):
        trainer(tmp_path / name, OBJECTIVES[name](), max_steps=1).train()
        assert log_lines(tmp_path / name)[0]["rewards/margins"] == pytest.approx(0.0, abs=1e-6)


def test_ipo_starts_at_its_own_loss_and_learns_a_bias(tmp_path):
    run = trainer(tmp_path, IdentityPreference(beta=0.1), bias="pooled")
    run.train()
    first, last = log_lines(tmp_path)[0], log_lines(tmp_path)[-1]
    assert first["loss"] == pytest.approx(1 / (4 * 0.1**2), rel=1e-5)
    assert first["bias/theta/length"] == pytest.approx(
        0.01, rel=1e-3
    )  # the first step of Adam, toward the longer
    assert last["bias/theta/length"] > first["bias/theta/length"]


def test_estimates_of_the_votes_do_not_start_what_is_in_another_unit(tmp_path):
    with pytest.raises(ConfigError, match="IdentityPreference counts in another unit"):
        trainer(tmp_path, IdentityPreference(beta=0.1), bias="pooled", warm_start="offline")
    trainer(tmp_path, SampledTokens(seed=7), bias="pooled", warm_start="offline")


@pytest.mark.parametrize(("name", "loss"), [("sampo", math.log(2)), ("ipo", 25.0)])
def test_evaluation_counts_tokens_as_training_does(tmp_path, name, loss):
    run = trainer(tmp_path, OBJECTIVES[name](), eval_dataset=judgments(seed=3))
    assert run.evaluate()["eval_loss"] == pytest.approx(loss, rel=1e-5)


def test_the_log_of_dpo_says_nothing_of_groups(tmp_path):
    run = trainer(tmp_path, None)
    run.train()
    assert not [key for line in log_lines(tmp_path) for key in line if key.startswith("groups/")]
