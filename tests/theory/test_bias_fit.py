"""Theta as an optimum: against finite differences, closed forms, and votes that were drawn."""

from functools import partial

import numpy as np
import pytest
import torch

from badpo.theory.likelihood import (
    PRIOR_SD,
    fit_shared_bias,
    fit_theta,
    ipo_loss,
    judgment_loss,
    loss_slopes,
    prior_precision,
    project_on,
    shared_bias_growth,
    shrink_offsets,
)

LOSSES = {"votes": judgment_loss, "ipo": partial(ipo_loss, beta=0.5)}


def draw(n: int, seed: int = 0, q: int = 1):
    """Random differences, signs, offsets and weights, float64."""
    rng = np.random.default_rng(seed)
    delta = rng.choice([-1.0, 0.0, 1.0], (n, q))
    sign, offset, weight = rng.choice([-1.0, 1.0], n), rng.standard_normal(n), rng.random(n) + 0.5
    return tuple(map(torch.from_numpy, (delta, sign, offset, weight)))


@pytest.mark.parametrize("name", LOSSES)
def test_slopes_are_finite_differences_of_the_loss(name):
    _, sign, x, _ = draw(20)
    losses, h = LOSSES[name], 1e-4
    below, at, above = (losses(torch.zeros_like(x), x + step, sign) for step in (-h, 0.0, h))
    first, second = loss_slopes(losses, sign)(x)
    torch.testing.assert_close(first, (above - below) / (2 * h), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(second, (above - 2 * at + below) / h**2, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", LOSSES)
def test_the_level_is_where_the_penalized_loss_has_no_slope(name):
    delta, sign, offset, weight = draw(300, q=2)
    slopes = loss_slopes(LOSSES[name], sign)
    level = fit_shared_bias(slopes, delta, offset, weight)
    first, _ = slopes(offset + delta @ level)
    score = delta.T @ (weight * first) + prior_precision(delta) * level
    assert score.abs().max() < 1e-9


def test_a_level_of_ipo_is_a_least_squares_coefficient():
    delta, sign, offset, weight = draw(300)
    level = fit_shared_bias(loss_slopes(LOSSES["ipo"], sign), delta, offset, weight)
    target = sign / 2 - offset
    expected = (weight * delta[:, 0] * target).sum() / (weight * delta[:, 0] ** 2).sum()
    assert level.item() == pytest.approx(expected.item(), rel=1e-3)


@pytest.mark.parametrize("n", [1, 50, 5000])
def test_votes_that_all_go_one_way_give_a_finite_level(n):
    delta = torch.ones(n, 1, dtype=torch.float64)
    sign = delta[:, 0]
    level = fit_shared_bias(loss_slopes(judgment_loss, sign), delta, 0 * sign, sign)
    assert 0 < level.item() < 2 * PRIOR_SD
    assert level.item() == pytest.approx(n * PRIOR_SD**2 / (1 + np.exp(level.item())), rel=1e-6)


def test_an_attribute_that_never_differs_has_a_level_of_zero():
    delta, sign, offset, weight = draw(50, q=2)
    delta[:, 1] = 0.0
    assert fit_shared_bias(loss_slopes(judgment_loss, sign), delta, offset, weight)[1] == 0.0
    assert project_on(delta, offset, weight)[1].abs() < 1e-12


def test_the_unit_of_an_attribute_is_no_matter():
    delta, sign, offset, weight = draw(200)
    slopes = loss_slopes(judgment_loss, sign)
    one, hundred = (fit_shared_bias(slopes, scale * delta, offset, weight) for scale in (1.0, 100.0))
    torch.testing.assert_close(one, 100 * hundred)


def test_a_projection_leaves_nothing_along_the_attributes_and_two_that_are_one_share_it():
    delta, _, margins, weight = draw(200, q=2)
    rest = margins - delta @ project_on(delta, margins, weight)
    torch.testing.assert_close(delta.T @ (weight * rest), torch.zeros(2).double(), atol=1e-10, rtol=0)
    twice = torch.cat([delta[:, :1]] * 2, dim=1)
    shared = project_on(twice, margins, weight)
    assert shared[0] == pytest.approx(shared[1].item()) and shared.isfinite().all()


def test_the_level_grows_from_the_attenuated_to_the_conditional_bias_as_quality_is_learned():
    rng, n = np.random.default_rng(0), 40_000
    delta = torch.from_numpy(rng.choice([-1.0, 0.0, 1.0], (n, 1)))
    quality = torch.from_numpy(1.2 * rng.standard_normal(n))
    wins = torch.from_numpy(rng.random(n)) < torch.sigmoid(quality + 0.9 * delta[:, 0])
    sign = wins.double() * 2 - 1
    slopes, weight = loss_slopes(judgment_loss, sign), torch.ones(n, dtype=torch.float64)
    start = fit_shared_bias(slopes, delta, 0 * sign, weight).item()
    grown = shared_bias_growth(slopes, delta, 0 * sign, weight, quality).item()
    assert start == pytest.approx(0.9 / np.sqrt(1 + 0.346 * 1.44), abs=0.04)
    assert start + grown == pytest.approx(0.9, abs=0.04)


def pool(n_annotators: int, each: int, spread: float, seed: int = 0):
    """Votes of annotators whose biases are normal around 0.5."""
    rng = np.random.default_rng(seed)
    theta = 0.5 + spread * rng.standard_normal(n_annotators)
    annotator = np.repeat(np.arange(n_annotators), each)
    delta = rng.choice([-1.0, 1.0], len(annotator))
    sign = np.where(rng.random(len(annotator)) < 1 / (1 + np.exp(-theta[annotator] * delta)), 1.0, -1.0)
    return torch.from_numpy(theta), torch.from_numpy(annotator), torch.from_numpy(delta)[:, None], sign


@pytest.mark.parametrize("each, most", [(2, 0.4), (400, 0.15)])
def test_shrunken_biases_are_nearer_to_the_truth_than_the_level_alone_or_free_ones(each, most):
    theta, annotator, delta, sign = pool(200, each, spread=0.5)
    slopes = loss_slopes(judgment_loss, torch.from_numpy(sign))
    weight = torch.ones(len(sign), dtype=torch.float64)
    level, (offset,) = fit_theta(slopes, delta, delta, weight, [annotator])
    error = (level + offset[:, 0] - theta).square().mean().sqrt().item()
    alone = (level - theta).square().mean().sqrt().item()
    assert error < alone + 0.01 and (each == 2 or error < most)
    assert offset.abs().max() < 2.5


def test_offsets_of_annotators_who_are_alike_are_small():
    _, annotator, delta, sign = pool(50, 20, spread=0.0)
    slopes = loss_slopes(judgment_loss, torch.from_numpy(sign))
    weight = torch.ones(len(sign), dtype=torch.float64)
    found = shrink_offsets(slopes, delta, 0.5 * delta[:, 0], weight, annotator, 50)
    assert found.abs().max() < 0.25


@pytest.mark.parametrize("spread", [0.0, 0.5, 2.0])
def test_a_policy_at_the_reference_has_no_gradient_along_an_attribute(spread):
    """Whatever the annotators' biases are, theta explains the votes' whole preference for the attribute."""
    _, annotator, delta, sign = pool(60, 300, spread)
    slopes = loss_slopes(judgment_loss, torch.from_numpy(sign))
    weight = torch.ones(len(sign), dtype=torch.float64)
    shared_bias, (offset,) = fit_theta(slopes, delta, delta, weight, [annotator])
    first, _ = slopes((shared_bias + offset[annotator, 0]) * delta[:, 0])
    assert (first @ delta).abs().item() < 1e-3 * len(sign) ** 0.5
    assert offset.mean().abs() < 1e-6


def test_offsets_are_the_optimum_of_the_penalised_loss():
    _, annotator, delta, sign = pool(20, 100, spread=2.0)
    slopes = loss_slopes(judgment_loss, torch.from_numpy(sign))
    weight = torch.ones(len(sign), dtype=torch.float64)
    offset = shrink_offsets(slopes, delta, 0.5 * delta[:, 0], weight, annotator, 20)[:, 0]
    first, _ = slopes((0.5 + offset[annotator]) * delta[:, 0])
    score = torch.zeros(20, dtype=torch.float64).index_add_(0, annotator, -first * delta[:, 0])
    # at the optimum the score of each annotator is offset / tau^2, with one tau for all
    precision = score / offset
    assert precision.min() > 0 and precision.max() / precision.min() == pytest.approx(1, abs=1e-6)
