"""Responses to one prompt are read together, and every token's log-probability is that of the plain forward."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from badpo.training import logprobs
from badpo.training.logprobs import response_logps
from badpo.training.packing import plan_stars, response_stars
from tests import tiny

ids = st.lists(st.integers(5, 9), min_size=1, max_size=6).map(np.array)
responses = st.lists(
    st.tuples(st.sampled_from([np.array([5]), np.array([6, 7])]), ids), min_size=1, max_size=9
)


def pair(prompt: list[int], response: list[int]) -> tuple[np.ndarray, np.ndarray]:
    return np.array(prompt), np.array(response)


@given(responses, st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_stars_hold_every_response_once_within_the_budget(pairs, budget):
    stars = response_stars(pairs, budget)
    assert sorted(i for star in stars for i in star.members) == list(range(len(pairs)))
    for star in stars:
        assert len({pairs[i][0].tobytes() for i in star.members}) == 1
        assert star.n_fed <= budget or len(star.members) == 1
        first = pairs[star.members[0]][1]
        for i, n_shared in zip(star.members, star.n_shared, strict=True):
            np.testing.assert_array_equal(pairs[i][1][:n_shared], first[:n_shared])
    pack = plan_stars(pairs, stars)
    assert len(pack.input_ids) == sum(star.n_fed for star in stars)


@given(responses, st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_every_scored_token_sees_its_own_prompt_and_beginning(pairs, budget):
    stars = response_stars(pairs, budget)
    pack = plan_stars(pairs, stars)
    sees = {}
    for q_start, q_end, prefix_start, prefix_end in pack.segments:
        for t in range(q_start, q_end):
            sees[t] = [*range(prefix_start, prefix_end), *range(q_start, t + 1)]
    order = [(i, n) for star in stars for i, n in zip(star.members, star.n_shared, strict=True)]
    for number, (i, n_shared) in enumerate(order):
        prompt, response = pairs[i]
        scored = np.flatnonzero(pack.response == number)
        assert pack.target[scored].tolist() == response[n_shared:].tolist()
        for place, at in enumerate(pack.head_index[scored], start=n_shared):
            context = np.concatenate([prompt, response[:place]])
            assert pack.input_ids[sees[at]].tolist() == context.tolist()
            assert pack.position_ids[sees[at]].tolist() == list(range(len(context)))


def test_a_second_copy_of_the_prompt_is_made_only_where_it_pays():
    prompt = [11, 12, 13]
    signed = [pair(prompt, [*range(20, 30), last]) for last in (1, 2)]
    others = [pair(prompt, [30, 31, last]) for last in (3, 4)]
    stars = response_stars([*signed, *others], token_budget=100)
    # the second pair shares 2 tokens, less than the prompt's 3
    assert [star.members for star in stars] == [[0, 1, 2, 3]]
    long = [pair(prompt, [*range(40, 50), last]) for last in (3, 4)]
    stars = response_stars([*signed, *long], token_budget=100)
    assert [star.members for star in stars] == [[0, 1], [2, 3]]
    assert [star.n_shared for star in stars] == [[0, 10], [0, 10]]


def test_a_shared_prompt_and_beginning_change_no_value(monkeypatch):
    model = tiny.model()
    rng = np.random.default_rng(0)
    prompts = [rng.integers(5, 60, n) for n in (1, 4, 9)]
    start = rng.integers(5, 60, 8)
    pairs = [(prompt, rng.integers(5, 60, rng.integers(1, 12))) for prompt in prompts for _ in range(5)]
    pairs += [(prompt, np.append(start[:n], 7)) for prompt in prompts for n in (0, 3, 8)]
    fed = []
    token_logps = logprobs._token_logps
    monkeypatch.setattr(
        logprobs,
        "_token_logps",
        lambda self, scoring: fed.append(scoring["input_ids"].numel()) or token_logps(self, scoring),
    )
    for budget in (10_000, 30):
        fed.clear()
        found = response_logps(model, pairs, budget)
        for (prompt, response), values in zip(pairs, found, strict=True):
            expected = tiny.plain_logps(model, prompt, response).detach().numpy()
            np.testing.assert_allclose(values, expected, rtol=0, atol=2e-6)
    # the self-test of the layout reads two tokens; singly the responses would need every prompt eight times
    assert sum(fed) < sum(len(p) + len(r) for p, r in pairs)


def test_equal_responses_to_a_prompt_are_both_scored():
    same = [pair([5, 6], [7, 8, 9])] * 2
    first, second = response_logps(tiny.model(), same)
    assert len(first) == 3
    np.testing.assert_allclose(first, second, atol=2e-6)


@pytest.mark.parametrize("empty", [([], [5]), ([5], [])])
def test_nothing_to_predict_is_an_error(empty):
    with pytest.raises(ValueError, match="no tokens"):
        response_logps(tiny.model(), [pair(*empty)])
