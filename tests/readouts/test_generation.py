"""Answers against sampling one by one."""

import numpy as np
import pytest
import torch

from badpo.readouts import generation
from badpo.readouts.generation import next_tokens, sample
from tests.readouts import policies

TEXTS = ["Why?", "Why is the river high in spring, and who closes the path along it?", "How much rice?"]
PROMPTS = policies.asked(policies.tokenizer(), TEXTS)


@pytest.fixture(scope="module")
def tok():
    return policies.tokenizer()


def one_by_one(model, prompt_ids, uniforms, temperature, top_p, found, end_id=1):
    """The same sampling without a cache, without padding, one prompt at a time.

    Where two tokens are equally likely but for rounding, either may stand first: it goes on with the one ``found``.
    """
    ids = list(prompt_ids)
    for step, u in enumerate(uniforms):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids])).logits[0, -1].double().numpy() / temperature
        probabilities = np.exp(logits - logits.max())
        probabilities /= probabilities.sum()
        order = np.argsort(-probabilities, kind="stable")
        kept = order[: int(np.searchsorted(np.cumsum(probabilities[order]), top_p)) + 1]
        cumulative = np.cumsum(probabilities[kept]) / probabilities[kept].sum()
        token = int(kept[np.searchsorted(cumulative, u, side="right")])
        other = found[step] if step < len(found) else token
        is_tie = abs(probabilities[other] / probabilities[token] - 1) < 1e-4
        ids.append(other if is_tie else token)
        if ids[-1] == end_id:
            break
    return ids[len(prompt_ids) :]


@pytest.mark.parametrize(
    ("build", "n", "decoding"),
    [
        (policies.qwen2, 30, (0.7, 0.9)),
        (policies.gpt2, 30, (0.7, 0.9)),
        (policies.mistral_with_window, 30, (0.7, 0.9)),
        # some end early, and keep the end token
        (policies.qwen2, 60, (3.0, 0.99)),
    ],
)
def test_batched_answers_equal_answers_one_by_one(build, n, decoding, tok):
    model = build()
    found = sample(model, tok, PROMPTS * (n // 10), n, *decoding, batch=9)
    for i, answer in enumerate(found):
        uniforms = np.random.default_rng([0, i]).random(n)
        alone = one_by_one(model, answer.prompt_ids, uniforms, *decoding, answer.token_ids)
        assert list(answer.token_ids) == alone
        assert (answer.token_ids[-1] == 1) == answer.ended
        assert 1 not in answer.token_ids[:-1] and "<end>" not in answer.text
        assert answer.ended or len(answer.token_ids) == n
    assert n == 30 or {answer.ended for answer in found} == {True, False}


def test_same_seed_same_answers_and_temperature_zero_the_most_probable_token(tok):
    model = policies.qwen2()
    torch.manual_seed(1)
    first = sample(model, tok, PROMPTS * 3, 20, seed=5, batch=64)
    assert torch.equal(torch.get_rng_state(), torch.manual_seed(1).get_state())
    torch.manual_seed(2)
    assert sample(model, tok, PROMPTS * 3, 20, seed=5, batch=2) == first
    assert sample(model, tok, PROMPTS * 3, 20, seed=6) != first
    ids = sample(model, tok, PROMPTS[:1], 5, temperature=0)[0]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*ids.prompt_ids, *ids.token_ids]])).logits[0]
    assert logits[len(ids.prompt_ids) - 1 : -1].argmax(-1).tolist() == list(ids.token_ids)


def test_answers_stop_where_the_model_has_no_more_positions_and_bad_requests_are_refused(tok):
    model, calls = policies.qwen2(), []
    model.generation_config.eos_token_id = list(range(330))
    model.register_forward_hook(lambda *told: calls.append(told))
    found = sample(model, tok, PROMPTS, 30)
    assert [len(answer.token_ids) for answer in found] == [1] * 3 and len(calls) == 1
    found = sample(policies.gpt2(), tok, [[5] * 200] * 9 + [[5] * 250], 30)
    assert not any(answer.ended for answer in found)
    assert [len(answer.token_ids) for answer in found] == [30] * 9 + [6]

    def draw(prompts, **more):
        sample(policies.qwen2(), tok, prompts, 4, **more)

    with pytest.raises(ValueError, match="prompt 1 has no tokens"):
        draw([[5], []])
    with pytest.raises(ValueError, match="prompt 1 has 256 tokens"):
        draw([[5], [5] * 256])
    with pytest.raises(ValueError, match="top_p"):
        draw(PROMPTS, top_p=0.0)


@pytest.mark.parametrize("top_p", [0.5, 0.9, 1.0])
def test_tokens_are_drawn_with_their_probabilities(top_p):
    """A grid of random numbers gives each token its share of the nucleus."""
    torch.manual_seed(0)
    logits = 0.7 * torch.randn(500)
    probabilities = (logits.double() / 0.7).softmax(0).numpy()
    order = np.argsort(-probabilities)
    kept = order[: int(np.searchsorted(np.cumsum(probabilities[order]), top_p)) + 1]
    assert top_p < 0.9 or len(kept) > generation.NUCLEUS_START
    expected = np.zeros(500)
    expected[kept] = probabilities[kept] / probabilities[kept].sum()
    grid = (torch.arange(4000).double() + 0.5) / 4000
    drawn = next_tokens(logits.expand(4000, -1), grid, 0.7, top_p)
    assert np.abs(np.bincount(drawn, minlength=500) / 4000 - expected).max() < 1.1 / 4000
