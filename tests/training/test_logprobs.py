"""Scores through the attached forward against the model's own."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, GPTJConfig, MistralConfig

from badpo.data.judgments import Judgments
from badpo.training import logprobs
from badpo.training.encoding import EncodedComparisons, encode_comparisons
from badpo.training.logprobs import (
    attach,
    looking_at,
    on_device,
    packed_responses,
    padded_layout,
    padded_rows,
    picked_logps,
    response_layout,
    response_logps,
    scoring_attention,
    target_logps,
)
from badpo.training.packing import packed_layout
from tests import tiny

SIZES = dict(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=1,
    initializer_range=0.2,
)


def made(config):
    torch.manual_seed(0)
    return attach(AutoModelForCausalLM.from_config(config).eval())


def encoded() -> EncodedComparisons:
    return encode_comparisons(Judgments.read(tiny.votes(n_comparisons=6)), tiny.tokenizer())


def pairs(n: int = 7) -> list[tuple[np.ndarray, np.ndarray]]:
    draw = np.random.default_rng(0).integers
    return [(draw(2, 60, draw(1, 6)), draw(2, 60, draw(1, 9))) for _ in range(n)]


def plain(model, prompt: np.ndarray, response: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return tiny.plain_logps(model, prompt, response).numpy()


@pytest.mark.parametrize("rows_at_once", [None, 3, 1])
def test_target_logps_and_their_gradients_are_those_of_log_softmax(monkeypatch, rows_at_once):
    torch.manual_seed(0)
    n, width, n_vocabulary = 8, 6, 11
    head = torch.nn.Linear(width, n_vocabulary)
    target = torch.randint(n_vocabulary, (n,))
    weights = torch.linspace(-1, 1, n)
    seen = []
    head.register_forward_hook(lambda module, inputs, output: seen.append(len(output)))
    if rows_at_once is not None:
        monkeypatch.setattr(logprobs, "LOGITS_AT_ONCE", rows_at_once * n_vocabulary + 1)

    def with_gradients(function):
        hidden = torch.ones(n, width, requires_grad=True) * torch.linspace(1, 2, width)
        values = function(hidden)
        return values, torch.autograd.grad((weights * values).sum(), [hidden, head.weight, head.bias])

    values, gradients = with_gradients(lambda hidden: target_logps(head, hidden, target, n_vocabulary))
    largest = max(seen)
    expected, expected_gradients = with_gradients(
        lambda hidden: head(hidden).log_softmax(-1).gather(1, target[:, None])[:, 0]
    )
    assert largest == (rows_at_once or n)
    torch.testing.assert_close(values, expected)
    torch.testing.assert_close(gradients, expected_gradients)


def test_segments_stay_where_the_plan_is_made_of_them():
    prompt, response = pairs()[0]
    inputs, _ = packed_layout([prompt], [response], [response[::-1]])
    moved = on_device(inputs, torch.device("meta"))
    assert moved.pop("segments") is inputs["segments"]
    assert {tensor.device.type for tensor in moved.values()} == {"meta"}


def test_without_the_keyword_the_forward_is_the_models_own():
    own, attached = tiny.model(), attach(attach(tiny.model()))
    ids = torch.tensor([[5, 6, 7]])
    assert torch.equal(own(input_ids=ids).logits, attached(input_ids=ids).logits)


def test_a_deep_copy_runs_its_own_weights():
    model = attach(tiny.model())
    twin = copy.deepcopy(model)
    prompt, response = pairs()[0]
    before = response_logps(twin, [(prompt, response)])[0]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    np.testing.assert_array_equal(response_logps(twin, [(prompt, response)])[0], before)
    assert not np.allclose(response_logps(model, [(prompt, response)])[0], before)


@pytest.mark.parametrize("tied", [True, False])
def test_response_logps_packed_padded_and_plain_agree(monkeypatch, tied):
    model, asked = tiny.model(tied=tied), pairs()
    expected = [plain(model, prompt, response) for prompt, response in asked]
    for layout in (packed_responses, padded_rows):
        monkeypatch.setattr(logprobs, "response_layout", lambda *_, layout=layout: layout)
        # all in one forward pass, and one after the other
        for budget in (10_000, 1):
            found = response_logps(model, asked, budget)
            assert [len(values) for values in found] == [len(response) for _, response in asked]
            for values, by_the_model in zip(found, expected, strict=True):
                np.testing.assert_allclose(values, by_the_model, rtol=0, atol=2e-6)


@pytest.mark.parametrize("layout", [packed_responses, padded_rows])
def test_no_forward_pass_has_more_tokens_than_the_budget(monkeypatch, layout):
    sizes = []

    def noted(self, scoring):
        sizes.append(scoring["input_ids"].numel())
        return token_logps(self, scoring)

    token_logps = logprobs._token_logps
    monkeypatch.setattr(logprobs, "response_layout", lambda *_: layout)
    monkeypatch.setattr(logprobs, "_token_logps", noted)
    asked = [(np.array([5]), np.arange(2, 2 + n)) for n in (1, 2, 3, 20, 4, 5)]
    assert list(map(len, response_logps(tiny.model(), asked, token_budget=24))) == [1, 2, 3, 20, 4, 5]
    assert 0 < len(sizes) < len(asked)
    assert max(sizes) <= 24


def test_response_logps_of_an_adapter_are_with_it():
    from peft import LoraConfig, get_peft_model

    base, asked = tiny.model(), pairs(2)
    without = response_logps(copy.deepcopy(base), asked)
    model = get_peft_model(base, LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False))
    found = response_logps(model, asked)
    for values, of_base, (prompt, response) in zip(found, without, asked, strict=True):
        np.testing.assert_allclose(values, plain(model, prompt, response), rtol=0, atol=2e-6)
        assert not np.allclose(values, of_base, atol=1e-3)


def test_looking_at_puts_every_mode_back():
    model = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Linear(1, 1)).train()
    model[0].eval()
    with pytest.raises(KeyError), looking_at(model):
        assert not any(module.training for module in model.modules())
        assert not torch.is_grad_enabled()
        raise KeyError
    assert [module.training for module in model] == [False, True]
    assert torch.is_grad_enabled()


def test_padded_layout_by_hand():
    inputs, first_scored = padded_layout([np.array([5, 6])], [np.array([7, 8, 1])], [np.array([9])])
    assert inputs["input_ids"].tolist() == [[5, 6, 7, 8], [5, 6, 0, 0]]
    assert inputs["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert inputs["head_index"].tolist() == [1, 2, 3, 5]
    assert inputs["target"].tolist() == [7, 8, 1, 9]
    assert inputs["response"].tolist() == [0, 0, 0, 1]
    assert first_scored.tolist() == [0]


def test_single_responses_are_packed_only_where_no_dense_mask_is_needed():
    dense = made(
        GPTJConfig(
            vocab_size=64, n_embd=32, n_layer=1, n_head=4, n_positions=64, rotary_dim=4, bos_token_id=1
        )
    )
    assert response_layout(attach(tiny.model())) is packed_responses
    assert response_layout(dense) is padded_rows
    assert response_layout(made(MistralConfig(**SIZES, sliding_window=8))) is padded_rows


@pytest.mark.parametrize("layout", [packed_layout, packed_responses, padded_layout, padded_rows])
def test_the_attention_is_switched_for_packed_layouts_only(layout):
    model = attach(tiny.model())
    ordinary = model.config._attn_implementation
    with scoring_attention(model, layout):
        inside = model.config._attn_implementation
    assert (inside != ordinary) == (layout in (packed_layout, packed_responses))
    assert model.config._attn_implementation == ordinary


def logits_and_targets(dtype=torch.float32, n=7, n_vocabulary=11):
    generator = torch.Generator().manual_seed(0)
    logits = 5 * torch.randn(n, n_vocabulary, generator=generator)
    return logits.to(dtype).requires_grad_(), torch.randint(0, n_vocabulary, (n,), generator=generator)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_and_gradients_are_those_of_cross_entropy(dtype):
    logits, target = logits_and_targets(dtype)
    upstream = torch.linspace(-2, 3, len(target))
    expected = -cross_entropy(logits.float(), target, reduction="none")
    [expected_gradient] = torch.autograd.grad(expected, logits, upstream)
    actual = picked_logps(logits, target)
    [gradient] = torch.autograd.grad(actual, logits, upstream)
    assert actual.dtype == torch.float32 and gradient.dtype == dtype
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        gradient, expected_gradient, rtol=1e-6 if dtype == torch.float32 else 1e-2, atol=1e-6
    )


def test_the_logits_are_left_as_they_are():
    logits, target = logits_and_targets()
    before = logits.detach().clone()
    picked_logps(logits, target).sum().backward()
    assert torch.equal(logits.detach(), before)


def test_a_second_backward_pass_is_refused():
    logits, target = logits_and_targets()
    total = picked_logps(logits, target).sum()
    total.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()
