from __future__ import annotations

import numpy as np
import pytest

from badpo.anchoring.sampling import acceptance_probability, rejection_sample
from badpo.theory.tilt import tilted_rates

# answers are rows of (attribute 1, attribute 2) that go together; the policy draws them with these probabilities
KINDS = np.array([[1, 1], [1, 0], [0, 1], [0, 0]])
POLICY = np.array([0.6, 0.15, 0.05, 0.2])
SHIFT = np.array([-1.2, 0.8])


def draws(probabilities):
    """A policy that answers prompt i in round r with random numbers of (i, r)."""

    def draw(prompts, number):
        rngs = (np.random.default_rng([7, i, number]) for i in prompts)
        return [int(rng.choice(len(probabilities), p=probabilities)) for rng in rngs]

    return draw


def test_rejection_draws_from_the_tilted_policy_and_reports_its_acceptance_rate():
    n = 4000
    kept = rejection_sample(draws(POLICY), lambda kind: KINDS[kind], SHIFT, n, most_draws=200)
    assert kept.n_without == 0
    counts = np.bincount(kept.answers, minlength=4)
    expected = POLICY * np.exp(KINDS @ SHIFT)
    expected *= n / expected.sum()
    assert (
        (counts - expected) ** 2 / expected
    ).sum() < 16.3  # chi-square with 3 degrees of freedom, p = 0.001
    rates = tilted_rates(np.log(POLICY)[None], KINDS, SHIFT)
    assert np.abs(kept.carries.mean(axis=0) - rates).max() < 4 * 0.5 / np.sqrt(n)
    chance = float(POLICY @ acceptance_probability(KINDS, SHIFT))
    assert kept.acceptance_rate == pytest.approx(chance, abs=4 * np.sqrt(chance / kept.n_drawn))


@pytest.mark.parametrize("shift", [-3.38, 0.0, 2.0])
def test_the_acceptance_rate_of_one_attribute(shift):
    rate = 0.967
    chance = np.array([rate, 1 - rate]) @ acceptance_probability([[1], [0]], [shift])
    expected = rate * np.exp(shift) + 1 - rate if shift < 0 else rate + (1 - rate) * np.exp(-shift)
    assert chance == pytest.approx(expected)
    assert acceptance_probability([[1], [0]], [shift]).max() == 1


def test_a_prompt_that_accepts_nothing_is_counted_and_not_made_up():
    always = rejection_sample(
        lambda prompts, number: ["yes" if i == 0 else "no" for i in prompts],
        lambda answer: [answer == "yes"],
        [-40.0],
        n_prompts=3,
        most_draws=4,
    )
    assert always.answers == [None, "no", "no"] and always.n_without == 1
    assert np.isnan(always.carries[0]).all()
    assert always.n_drawn == 4 + 2
    assert always.acceptance_rate == pytest.approx(2 / 6)


def test_the_decisions_of_a_prompt_depend_on_its_number_alone():
    few, many = (
        rejection_sample(draws(POLICY), lambda kind: KINDS[kind], SHIFT, n, most_draws=50, seed=3)
        for n in (5, 20)
    )
    assert few.answers == many.answers[:5]


def test_answers_that_are_no_choice_keep_their_share_and_are_not_turned_to():
    """Kind 3 stands for another topic: it stays as frequent as it was, whatever the tilt makes of the others."""
    n, shift = 1500, np.array([1.5, -1.5])
    kept = rejection_sample(
        draws(POLICY), lambda kind: None if kind == 3 else KINDS[kind], shift, n, most_draws=200
    )
    counts = np.bincount(kept.answers, minlength=4)
    tilted = POLICY[:3] * np.exp(KINDS[:3] @ shift)
    expected = n * np.append(0.8 * tilted / tilted.sum(), 0.2)
    assert kept.n_without == 0 and np.isnan(kept.carries[:, 0]).sum() == counts[3]
    assert (np.abs(counts - expected) < 4 * np.sqrt(expected)).all(), (counts, expected)


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="do not belong together"):
        acceptance_probability([[1, 0]], [0.5])
    with pytest.raises(ValueError, match="carries an attribute"):
        acceptance_probability([[0.5]], [0.5])
    with pytest.raises(ValueError, match="at least one of each"):
        rejection_sample(draws(POLICY), lambda kind: KINDS[kind], SHIFT, 0, 3)


def test_of_two_attributes_that_become_more_frequent_only_answers_with_both_are_always_kept():
    carries, shift = [[1, 1], [1, 0], [0, 1], [0, 0]], [1.0, 2.0]
    assert acceptance_probability(carries, shift) == pytest.approx(np.exp([0.0, -2.0, -1.0, -3.0]))
