"""The rules that move theta: what they read from votes and margins, and what a resumed run gets back."""

import numpy as np
import pytest
import torch

from badpo.objective.bias import VARIANTS, BiasTerm
from badpo.objective.theta import STEPS_BETWEEN_FITS, WINDOW, AdamSteps, AnchoredFit, JudgedVotes
from badpo.theory.likelihood import ipo_loss, judgment_loss

PEOPLE = [f"ann_{k}" for k in range(6)]
CLASSES = ["first", "second"] * 3
BIAS, GAP = 0.9, 0.8  # the shared bias, and how much more the second class is biased


def draw(n=20_000, seed=0, quality_sd=1.2, gold=(), merit=0.0):
    """Votes of people whose bias is known, and the quality of each comparison."""
    rng = np.random.default_rng(seed)
    annotator, delta = rng.integers(len(PEOPLE), size=n), rng.choice([-1.0, 0.0, 1.0], n)
    theta = np.where(np.arange(len(PEOPLE)) % 2, BIAS + GAP / 2, BIAS - GAP / 2)
    theta[list(gold)] = 0.0
    quality = quality_sd * rng.standard_normal(n) + merit * delta
    wins = rng.random(n) < 1 / (1 + np.exp(-quality - theta[annotator] * delta))
    votes = JudgedVotes.on_processor(
        *map(
            torch.from_numpy,
            (annotator, np.where(wins, 1.0, -1.0), delta[:, None], np.ones(n), 0.0 * delta, 0.0 * delta),
        )
    )
    return votes, torch.from_numpy(quality), torch.from_numpy(delta)


def term(variant: str, gold=()) -> BiasTerm:
    mask = torch.ones(len(PEOPLE))
    mask[list(gold)] = 0.0
    return BiasTerm(["length"], PEOPLE, VARIANTS[variant], annotator_class=CLASSES, mask=mask)


def with_margins(votes: JudgedVotes, margin: torch.Tensor) -> JudgedVotes:
    return JudgedVotes(votes.annotator, votes.sign, votes.delta, votes.weight, margin, votes.loss)


def step(rule: AnchoredFit, votes: JudgedVotes) -> None:
    for part in range(STEPS_BETWEEN_FITS):
        some = slice(part * WINDOW, (part + 1) * WINDOW)
        rule.step(JudgedVotes(*(getattr(votes, name)[some] for name in JudgedVotes.__annotations__)))


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != "none"])
def test_theta_starts_at_what_the_votes_show_in_every_variant(variant):
    votes, _, _ = draw(quality_sd=0.0)
    bias = term(variant)
    AnchoredFit(bias, judgment_loss, votes)
    theta = bias.theta()[:, 0]
    assert theta.mean().item() == pytest.approx(BIAS, abs=0.1)
    gap = (theta[1::2].mean() - theta[::2].mean()).item()
    assert gap == pytest.approx(0.0 if variant == "pooled" else GAP, abs=0.15)


@pytest.mark.parametrize("tilt", [-1.0, 0.0, 2.0])
def test_theta_grows_with_the_quality_that_is_learned_and_never_follows_the_tilt(tilt):
    votes, quality, delta = draw()
    bias = term("pooled")
    rule = AnchoredFit(bias, judgment_loss, votes)
    start = bias.theta().mean().item()
    step(rule, with_margins(votes, quality + tilt * delta))
    assert start == pytest.approx(BIAS / np.sqrt(1 + 0.346 * 1.44), abs=0.06)
    assert bias.theta().mean().item() == pytest.approx(BIAS, abs=0.09)


def test_gold_annotators_fix_the_level_and_keep_a_theta_of_zero():
    votes, _, _ = draw(quality_sd=0.0, gold=(0,), merit=0.7)
    bias = term("pooled", gold=(0,))
    AnchoredFit(bias, judgment_loss, votes)
    theta = bias.theta()[:, 0]
    others = BIAS + GAP / 2 * (3 - 2) / 5
    assert theta[0] == 0 and theta[1:].mean().item() == pytest.approx(others, abs=0.1)


def test_a_stream_starts_at_zero_and_is_fitted_to_what_came():
    votes, _, _ = draw(quality_sd=0.0)
    bias = term("pooled")
    rule = AnchoredFit(bias, judgment_loss, None)
    assert not bias.theta().any()
    step(rule, votes)
    assert bias.theta().mean().item() == pytest.approx(BIAS, abs=0.2)


def test_theta_of_ipo_is_in_ipos_unit():
    votes, _, _ = draw(quality_sd=0.0)
    bias = term("pooled")
    AnchoredFit(bias, lambda u, b, sign: ipo_loss(u, b, sign, 0.1), votes)
    sign, delta = votes.sign, votes.delta[:, 0]
    assert bias.theta().mean().item() == pytest.approx(
        ((sign * delta).sum() / delta.square().sum() / 2).item(), rel=1e-3
    )


def test_a_resumed_rule_goes_on_with_the_same_bits():
    votes, quality, delta = draw(n=4 * WINDOW)
    judged = with_margins(votes, quality + delta)
    whole, halves = term("shared_mean"), term("shared_mean")
    rule = AnchoredFit(whole, judgment_loss, votes)
    step(rule, judged)
    saved, before = rule.state_dict(), whole.state_dict()
    before = {name: value.clone() for name, value in before.items()}
    step(rule, judged)
    other = AnchoredFit(halves, judgment_loss, votes)
    halves.load_state_dict(before)
    other.load_state_dict(saved)
    step(other, judged)
    assert torch.equal(whole.theta(), halves.theta())
    assert not torch.equal(whole.theta(), term("shared_mean").theta())


def test_a_skipped_step_moves_nothing():
    votes, quality, _ = draw(n=WINDOW)
    for bias in (term("pooled"), term("pooled")):
        rule = AnchoredFit(bias, judgment_loss, votes)
        before = bias.theta()
        for _ in range(STEPS_BETWEEN_FITS):
            rule.step(None)
        assert torch.equal(bias.theta(), before)
    adam = AdamSteps(bias.requires_grad_(True), 0.1)
    bias.mean.grad = torch.ones(1)
    adam.step(None)
    assert torch.equal(bias.theta(), before) and bias.mean.grad is None
