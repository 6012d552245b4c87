"""The attached scoring forward equals the model's own forward."""

import copy

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.nn.functional import cross_entropy
from transformers import GPTJConfig

from badpo.training import logprobs
from badpo.training.packing import packed_comparisons, packed_responses, padded_rows
from tests import tiny
from tests.training.test_self_test import config, made

MISTRAL = config("Mistral", sliding_window=8)
GPTJ = GPTJConfig(vocab_size=64, n_embd=32, n_layer=1, n_head=4, n_positions=64, rotary_dim=4)


def pairs() -> list[tuple[np.ndarray, np.ndarray]]:
    """Make responses of 1 to 12 tokens to three prompts, some with common beginnings."""
    rng = np.random.default_rng(0)
    start = rng.integers(5, 60, 8)
    prompts = [rng.integers(5, 60, n) for n in (1, 4, 9)]
    found = [(prompt, rng.integers(5, 60, rng.integers(1, 12))) for prompt in prompts for _ in range(5)]
    found += [(prompt, np.append(start[:n], 7)) for prompt in prompts for n in (0, 3, 8)]
    return [*found, found[0]]


def assert_plain(model, asked, found):
    for (prompt, response), values in zip(asked, found, strict=True):
        with torch.no_grad():
            expected = tiny.plain_logps(model, prompt, response).numpy()
        np.testing.assert_allclose(values, expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("max_rows", [None, 3, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_and_gradients_equal_cross_entropy(monkeypatch, dtype, max_rows):
    generator, seen = torch.Generator().manual_seed(0), []
    logits = (5 * torch.randn(7, 11, generator=generator)).to(dtype).requires_grad_()
    target, upstream = torch.randint(0, 11, (7,), generator=generator), torch.linspace(-2, 3, 7)
    before = logits.detach().clone()
    expected = -cross_entropy(logits.float(), target, reduction="none")
    [expected_gradient] = torch.autograd.grad(expected, logits, upstream)

    def head(rows):
        seen.append(len(rows))
        return rows

    if max_rows is not None:
        monkeypatch.setattr(logprobs, "LOGITS_AT_ONCE", max_rows * 11 + 1)
    actual = logprobs.target_logps(head, logits, target, 11)
    [gradient] = torch.autograd.grad(actual, logits, upstream)
    assert max(seen) == (max_rows or 7)
    assert actual.dtype == torch.float32 and gradient.dtype == dtype
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)
    rtol = 1e-6 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(gradient, expected_gradient, rtol=rtol, atol=1e-6)
    assert torch.equal(logits.detach(), before)
    # the backward pass overwrites the stored array, so a second one raises an error
    total = logprobs.pick_logps(logits, target).sum()
    total.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


def test_segments_stay_an_array_on_the_processor():
    inputs = packed_comparisons(pairs()[:2])
    moved = logprobs.move_inputs(inputs, torch.device("meta"))
    assert moved.pop("segments") is inputs["segments"]
    assert {tensor.device.type for tensor in moved.values()} == {"meta"}


def test_without_the_keyword_the_forward_is_unchanged_and_a_deep_copy_uses_its_own_weights():
    own, model = tiny.model(), logprobs.attach(logprobs.attach(tiny.model()))
    ids = torch.tensor([[5, 6, 7]])
    assert torch.equal(own(input_ids=ids).logits, model(input_ids=ids).logits)
    twin = copy.deepcopy(model)
    before = logprobs.response_logps(twin, pairs()[:1])[0]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    np.testing.assert_array_equal(logprobs.response_logps(twin, pairs()[:1])[0], before)
    assert not np.allclose(logprobs.response_logps(model, pairs()[:1])[0], before)


@pytest.mark.parametrize("budget", [10_000, 30, 1])
@pytest.mark.parametrize("layout", [packed_responses, padded_rows])
@pytest.mark.parametrize("tied", [True, False])
def test_response_logps_equal_the_plain_forward_within_the_budget(monkeypatch, tied, layout, budget):
    model, asked, fed = tiny.model(tied=tied).train(), pairs(), []
    token_logps = logprobs._token_logps

    def noted(self, scoring):
        assert not any(module.training for module in self.modules())
        fed.append(scoring["input_ids"].numel())
        return token_logps(self, scoring)

    monkeypatch.setattr(logprobs, "response_layout", lambda *_: layout)
    monkeypatch.setattr(logprobs, "_token_logps", noted)
    assert_plain(model, asked, logprobs.response_logps(model, asked, budget))
    assert len(fed) == (1 if budget == 10_000 else len(fed))
    assert max(fed) <= max(budget, *(len(p) + len(r) - 1 for p, r in asked))
    if layout is packed_responses and budget > 1:
        # separate responses would read each prompt eight times
        assert sum(fed) < sum(len(p) + len(r) for p, r in asked)


def test_responses_are_packed_only_if_the_tree_attention_works():
    adapter = LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
    adapted = logprobs.attach(get_peft_model(tiny.model(), adapter)).eval()
    rows = [(adapted, packed_responses, pairs()[:2])]
    rows += [(made(configuration).eval(), padded_rows, pairs()) for configuration in (GPTJ, MISTRAL)]
    for model, layout, asked in rows:
        assert logprobs.response_layout(model) is layout
        assert_plain(model, asked, logprobs.response_logps(model, asked))
