from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GPT2Config,
    GPTJConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    NemotronConfig,
    Qwen2Config,
    Qwen2VLConfig,
    T5Config,
)

from badpo.training.attention import (
    TREE_ATTENTION,
    TreePlan,
    tree_attention,
    tree_attention_forward,
    tree_hidden_states,
    unsupported_reason,
)
from badpo.training.packing import plan_pack, shared_length

N_VOCABULARY = 31
SIZES = {
    "vocab_size": N_VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT2_SIZES = {
    "vocab_size": N_VOCABULARY,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "resid_pdrop": 0.0,
}
CONFIGS = {
    "qwen2": Qwen2Config(**SIZES),
    "llama": LlamaConfig(**SIZES),
    "mistral": MistralConfig(**SIZES, sliding_window=None),
    "gpt2": GPT2Config(**GPT2_SIZES),
}
TOLERANCE = 1e-5

token_ids = st.lists(st.integers(3, 6), min_size=1, max_size=12).map(
    lambda ids: np.array(ids, dtype=np.int64)
)
comparisons = st.lists(st.tuples(token_ids, token_ids, token_ids), min_size=1, max_size=4)
deterministic = settings(derandomize=True, deadline=None, max_examples=20)


def tiny_model(config, attention="sdpa"):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(copy.deepcopy(config), attn_implementation=attention)


@pytest.fixture(scope="module", params=CONFIGS)
def model(request):
    return tiny_model(CONFIGS[request.param])


@pytest.fixture
def qwen2():
    return tiny_model(CONFIGS["qwen2"])


def mixed_comparisons():
    """A shared beginning, a prefix, identical responses, one-token responses and a long plain pair."""
    draw = np.random.default_rng(0).integers
    shared, tail = draw(3, N_VOCABULARY, 6), draw(3, N_VOCABULARY, 4)
    return [
        (draw(3, N_VOCABULARY, 5), np.r_[shared, 7, 8, 9], np.r_[shared, 10, 11]),
        (draw(3, N_VOCABULARY, 2), tail[:2], tail),
        (draw(3, N_VOCABULARY, 3), tail, tail),
        (draw(3, N_VOCABULARY, 1), np.array([4]), np.array([5])),
        (draw(3, N_VOCABULARY, 9), draw(3, N_VOCABULARY, 14), draw(3, N_VOCABULARY, 11)),
    ]


def tensors(pack):
    return {name: torch.from_numpy(value) for name, value in vars(pack).items()}


def packed_margins(model, comparisons, scored_tokens="unshared"):
    """Difference of the two responses' log-probabilities, through the tree."""
    pack = tensors(plan_pack(comparisons, scored_tokens))
    hidden = tree_hidden_states(model.get_decoder(), pack)[pack["head_index"]]
    logps = model.get_output_embeddings()(hidden).log_softmax(-1).gather(1, pack["target"][:, None])[:, 0]
    sums = torch.zeros(2 * len(comparisons), dtype=torch.float64).index_add(
        0, pack["response"], logps.double()
    )
    return sums[0::2] - sums[1::2]


def plain_hidden(model, prompt_ids, response_ids):
    ids = torch.from_numpy(np.concatenate([prompt_ids, response_ids[:-1]]))
    return model.get_decoder()(input_ids=ids[None], use_cache=False).last_hidden_state[0]


def plain_margins(model, comparisons):
    """The same, by one ordinary forward for each response."""
    margins = []
    for prompt_ids, *responses in comparisons:
        sums = []
        for response_ids in responses:
            hidden = plain_hidden(model, prompt_ids, response_ids)[len(prompt_ids) - 1 :]
            logps = model.get_output_embeddings()(hidden).log_softmax(-1)
            sums.append(logps.gather(1, torch.from_numpy(response_ids)[:, None]).double().sum())
        margins.append(sums[0] - sums[1])
    return torch.stack(margins)


def gradient(model, margins):
    weights = torch.linspace(1.0, 2.0, len(margins), dtype=torch.float64)
    gradients = torch.autograd.grad((weights * margins).sum(), list(model.parameters()), allow_unused=True)
    return torch.cat([g.flatten() for g in gradients if g is not None])


def relative(actual, expected):
    return float(((actual - expected).abs().max() / expected.abs().max()).detach())


def plain_tree_hidden(model, comparisons):
    """Hidden states in the order of a pack, by ordinary forwards."""
    parts = []
    for prompt_ids, a_ids, b_ids in comparisons:
        fork = len(prompt_ids) + shared_length(a_ids, b_ids)
        parts += [plain_hidden(model, prompt_ids, a_ids), plain_hidden(model, prompt_ids, b_ids)[fork:]]
    return torch.cat(parts)


@deterministic
@given(comparisons=comparisons)
def test_hidden_states_and_gradients_equal_the_plain_forward(model, comparisons):
    with tree_attention(model) as route:
        hidden = tree_hidden_states(model.get_decoder(), tensors(plan_pack(comparisons)))
        margins = packed_margins(model, comparisons)
        packed_gradient = gradient(model, margins)
    expected = plain_margins(model, comparisons)
    assert route == "tree"
    assert relative(hidden, plain_tree_hidden(model, comparisons)) <= TOLERANCE
    torch.testing.assert_close(margins, expected, rtol=TOLERANCE, atol=TOLERANCE)
    expected_gradient = gradient(model, expected)
    # Identical responses have no gradient: then rounding is measured against the size of one.
    scale = max(1.0, float(expected_gradient.abs().max()))
    assert float((packed_gradient - expected_gradient).abs().max()) <= TOLERANCE * scale


def test_scoring_all_tokens_gives_the_same_margins(model):
    with tree_attention(model), torch.no_grad():
        difference = packed_margins(model, mixed_comparisons(), "all") - packed_margins(
            model, mixed_comparisons()
        )
    assert float(difference.abs().max()) <= TOLERANCE


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_gives_the_same_gradient(model, reentrant):
    expected = gradient(model, plain_margins(model, mixed_comparisons()))
    checkpointed = copy.deepcopy(model).train()
    checkpointed.gradient_checkpointing_enable({"use_reentrant": reentrant})
    checkpointed.enable_input_require_grads()
    with tree_attention(checkpointed):
        margins = packed_margins(checkpointed, mixed_comparisons())
        (margins @ torch.linspace(1.0, 2.0, 5, dtype=torch.float64)).backward()
    actual = torch.cat([p.grad.flatten() for p in checkpointed.parameters() if p.grad is not None])
    assert relative(actual, expected) <= TOLERANCE


def test_leaving_before_a_checkpointed_backward_fails_aloud(qwen2):
    qwen2.train().gradient_checkpointing_enable({"use_reentrant": False})
    with tree_attention(qwen2):
        margins = packed_margins(qwen2, mixed_comparisons())
    with pytest.raises(RuntimeError):
        margins.sum().backward()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_dense_mask_serves_where_the_tree_attention_is_off(attention):
    for config in (*CONFIGS.values(), GPTJConfig(**GPT2_SIZES, rotary_dim=4)):
        if attention == "sdpa" and config.model_type == "gptj":
            continue
        model = tiny_model(config, attention).eval()
        with torch.no_grad():
            hidden = tree_hidden_states(model.get_decoder(), tensors(plan_pack(mixed_comparisons())))
            assert relative(hidden, plain_tree_hidden(model, mixed_comparisons())) <= TOLERANCE


def test_a_model_without_switchable_attention_is_said_to_be_dense():
    with tree_attention(tiny_model(GPTJConfig(**GPT2_SIZES, rotary_dim=4), "eager")) as route:
        assert route == "dense"


def test_a_model_that_drops_the_plan_is_refused():
    model = tiny_model(NemotronConfig(**SIZES))
    with (
        tree_attention(model),
        pytest.raises(RuntimeError, match="NemotronAttention did not receive the tree plan"),
    ):
        tree_hidden_states(model.get_decoder(), tensors(plan_pack(mixed_comparisons())))


def test_a_cache_is_refused(qwen2):
    with tree_attention(qwen2), pytest.raises(ValueError, match="one row of 3 tokens"):
        attention_call(qwen2, n_tokens=3, n_keys=5)


def attention_call(model, n_tokens=3, n_keys=3, **keywords):
    layer = model.get_decoder().layers[0].self_attn
    plan = TreePlan(np.array([[0, n_tokens, 0, 0]]), n_tokens, torch.device("cpu"))
    query, key = torch.ones(1, 4, n_tokens, 8), torch.ones(1, 2, n_keys, 8)
    return tree_attention_forward(layer, query, key, key, None, tree_plan=plan, **keywords)


@pytest.mark.parametrize(
    ("keywords", "named"),
    [
        ({"softcap": 30.0}, "softcap"),
        ({"s_aux": torch.zeros(4)}, "s_aux"),
        ({"position_bias": torch.zeros(1)}, "position_bias"),
        ({"some_future_keyword": 1}, "some_future_keyword"),
        ({"sliding_window": 2}, "a sliding window of 2 tokens on sequences of 3"),
        ({"dropout": 0.1}, "attention dropout of 0.1"),
        ({"is_causal": False}, "attention that is not causal"),
    ],
)
def test_a_keyword_that_would_be_ignored_is_refused(qwen2, keywords, named):
    with pytest.raises(
        ValueError, match=f"Qwen2Attention asks for what the tree attention does not do: {named}"
    ):
        attention_call(qwen2, **keywords)


def test_keywords_that_ask_for_nothing_pass(qwen2):
    output, weights = attention_call(
        qwen2,
        softcap=None,
        sliding_window=3,
        output_attentions=False,
        position_ids=torch.arange(3),
        is_causal=True,
    )
    assert output.shape == (1, 3, 4, 8) and weights is None


WINDOWED_QWEN2 = Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=6, max_window_layers=1)
MIXED_ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (CONFIGS["qwen2"], None),
        (CONFIGS["gpt2"], None),
        (MistralConfig(**SIZES, sliding_window=8), "a sliding window of 8 tokens"),
        (WINDOWED_QWEN2, "a sliding window of 6 tokens"),
        (Gemma2Config(**SIZES), r"soft-capping"),
        (Qwen2VLConfig(text_config=SIZES | {"rope_parameters": MIXED_ROPE}), "M-RoPE"),
        (MambaConfig(), "recurrent layers"),
        (T5Config(), "an encoder"),
    ],
)
def test_unsupported_attention_is_named(config, reason):
    found = unsupported_reason(config)
    assert found is None if reason is None else reason in found


@pytest.mark.parametrize("config", [MistralConfig(**SIZES, sliding_window=8), WINDOWED_QWEN2])
def test_a_window_is_refused_on_longer_sequences_and_harmless_on_shorter(config):
    model = tiny_model(config)
    short, long = mixed_comparisons()[3:4], mixed_comparisons()[4:]
    with tree_attention(model), torch.no_grad():
        hidden = tree_hidden_states(model.get_decoder(), tensors(plan_pack(short)))
        assert relative(hidden, plain_tree_hidden(model, short)) <= TOLERANCE
        with pytest.raises(ValueError, match="sliding window of . tokens; use the padded forward"):
            tree_hidden_states(model.get_decoder(), tensors(plan_pack(long)))


def test_switching_on_refuses_what_no_length_can_save():
    with (
        pytest.raises(ValueError, match="soft-capping"),
        tree_attention(tiny_model(Gemma2Config(**SIZES), "eager")),
    ):
        pytest.fail("the tree attention was switched on")


def test_left_padded_generation_is_exact_while_switched_on(model):
    ids = torch.tensor([[0, 0, 0, 5, 9], [4, 8, 7, 6, 3]])
    batch = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    model.eval()
    wanted = {"max_new_tokens": 6, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    expected = model.generate(**batch, **wanted)
    unpadded = model.generate(input_ids=ids[:1, 3:], **wanted)
    with tree_attention(model):
        packed_margins(model, mixed_comparisons()).sum().backward()
        actual = model.generate(**batch, **wanted)
    model.zero_grad()
    assert torch.equal(actual.sequences, expected.sequences)
    assert all(torch.equal(x, y) for x, y in zip(actual.logits, expected.logits, strict=True))
    assert relative(actual.logits[0][0], unpadded.logits[0][0]) <= TOLERANCE


def test_the_saved_configuration_keeps_no_trace(qwen2, tmp_path):
    with pytest.raises(KeyboardInterrupt), tree_attention(qwen2):
        assert qwen2.config._attn_implementation == TREE_ATTENTION
        qwen2.save_pretrained(tmp_path)
        raise KeyboardInterrupt
    assert qwen2.config._attn_implementation == "sdpa"
    assert all("badpo" not in path.read_text() for path in tmp_path.glob("*.json"))
    assert AutoModelForCausalLM.from_pretrained(tmp_path).config._attn_implementation == "sdpa"


def test_switching_on_twice_ends_with_the_outer(qwen2):
    with tree_attention(qwen2):
        with tree_attention(qwen2):
            pass
        assert qwen2.config._attn_implementation == TREE_ATTENTION
    assert qwen2.config._attn_implementation == "sdpa"
