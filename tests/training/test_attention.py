"""Attention over token trees equals attention over separate sequences, and unsupported features are refused."""

import copy
import inspect

import numpy as np
import pytest
import torch
import transformers
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoModelForCausalLM
from transformers.integrations.sdpa_attention import use_gqa_in_sdpa

from badpo.training import attention
from badpo.training.logprobs import _token_logps, attach, move_inputs
from badpo.training.packing import packed_comparisons
from tests import tiny
from tests.training.test_self_test import KERNELS, SIZES, config, plain_attention

GPT2 = dict(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=64)
CONFIGS = {
    "qwen2": config("Qwen2"),
    "llama": config("Llama"),
    "mistral": config("Mistral", sliding_window=None),
    "gpt2": transformers.GPT2Config(**GPT2, embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0),
}
TOLERANCE = 1e-5
CPU = torch.device("cpu")


def tiny_model(configuration, attention="sdpa"):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(copy.deepcopy(configuration), attn_implementation=attention)


@pytest.fixture(scope="module", params=CONFIGS)
def model(request):
    return tiny_model(CONFIGS[request.param])


@pytest.fixture
def qwen2():
    return tiny_model(CONFIGS["qwen2"])


# -- the plan --------------------------------------------------------------------------------------------------------


def as_pairs(comparisons):
    return [(prompt, response) for prompt, *both in comparisons for response in both]


def random_segments(seed):
    """Make comparisons with long and short shared beginnings and with branches of 1 to 25 tokens."""
    draw, comparisons = np.random.default_rng(seed).integers, []
    for _ in range(12):
        prompt, shared, a, b = (draw(0, 50, draw(1, high)) for high in (20, 15, 25, 25))
        comparisons.append((prompt, np.r_[shared, a], np.r_[shared, b]))
    return packed_comparisons(as_pairs(comparisons))["segments"]


def long_segments():
    """Make segments that are cut into one, two and four blocks."""
    draw = np.random.default_rng(0).integers
    lengths = [(60, 150, 40), (3, 5, 110), (30, 200, 10)]
    return packed_comparisons(as_pairs([[draw(0, 50, n) for n in row] for row in lengths]))["segments"]


def random_rows(segments, width=8, **options):
    generator = torch.Generator().manual_seed(0)
    shapes = [(int(segments[-1, 1]), heads, width) for heads in (4, 2, 2)]
    return [torch.randn(shape, generator=generator).to(**options).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("most", [1, 4])
@pytest.mark.parametrize(
    ("segments", "width"), [(random_segments(0), 8), (random_segments(1), 5), (long_segments(), 8)]
)
def test_each_token_attends_to_its_own_sequence(monkeypatch, segments, width, most):
    monkeypatch.setattr(attention._blocks, "__defaults__", (most,))
    query, key, _ = random_rows(segments)
    rows = [query, key, random_rows(segments, width)[2]]
    plan = attention.TreePlan(segments, CPU)
    expected = plain_attention(plan, *rows, 0.3, KERNELS["right"])
    actual = plan.attend(*rows, 0.3)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)
    weights = torch.linspace(-1, 1, actual.numel()).view_as(actual)
    gradients = [torch.autograd.grad(output, rows, weights) for output in (actual, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


def test_blocks_compute_few_unneeded_scores():
    segments = long_segments()
    q_start, q_end, prefix_start, prefix_end = segments.T
    n_query = q_end - q_start
    assert n_query.max() > 4 * 48
    needed = (n_query * (n_query + 1) // 2 + n_query * (prefix_end - prefix_start)).sum()
    assert (
        sum(g.n_rows * g.n_query * g.n_key for g in attention.TreePlan(segments, CPU)._rows[3])
        < 1.5 * needed
    )


def test_calls_have_a_mask_or_shared_heads_but_not_both_if_no_fused_kernel_takes_both(monkeypatch):
    rows, plan, calls = (
        random_rows(random_segments(0)),
        attention.TreePlan(random_segments(0), CPU),
        set(),
    )
    expected = plan.attend(*rows, 0.3)

    def attend(*args, **options):
        calls.add((options["attn_mask"] is not None, options["enable_gqa"]))
        return scaled_dot_product_attention(*args, **options)

    monkeypatch.setattr(attention, "scaled_dot_product_attention", attend)
    monkeypatch.setattr(attention, "_fused_kernel_shares_heads", use_gqa_in_sdpa)
    torch.testing.assert_close(plan.attend(*rows, 0.3), expected, rtol=1e-5, atol=1e-6)
    assert calls == {(True, False), (False, True)}


DECLARED = inspect.signature(attention.varlen_attn)


def kernel_stand_in(*args, **options):
    """Simulate the documented kernel of torch: causal attention in which the last query is at the last key."""
    given = DECLARED.bind(*args, **options).arguments
    query, key, value = (given[name] for name in ("query", "key", "value"))
    assert query.dtype == key.dtype == value.dtype
    ends_q, ends_k = given["cu_seq_q"], given["cu_seq_k"]
    assert given["window_size"] == (-1, 0) and ends_q.dtype == ends_k.dtype == torch.int32
    outputs = []
    for q_start, q_end, k_start, k_end in zip(ends_q, ends_q[1:], ends_k, ends_k[1:], strict=False):
        n_query, n_key = int(q_end - q_start), int(k_end - k_start)
        assert n_query <= given["max_q"] and n_key <= given["max_k"]
        parts = query[q_start:q_end], key[k_start:k_end], value[k_start:k_end]
        seen = torch.ones(n_query, n_key, dtype=torch.bool).tril(n_key - n_query)
        options = dict(attn_mask=seen, scale=given["scale"], enable_gqa=given["enable_gqa"])
        output = scaled_dot_product_attention(*(part.transpose(0, 1) for part in parts), **options)
        outputs.append(output.transpose(0, 1))
    return torch.cat(outputs)


@pytest.mark.parametrize("scaling", [None, 0.3])
def test_the_kernel_gets_every_segment_with_its_prefix_and_under_autocast_its_precision(
    monkeypatch, scaling
):
    monkeypatch.setattr(attention, "varlen_attn", kernel_stand_in)
    monkeypatch.setattr(attention, "_supports_varlen", lambda *_: True)
    rows, plan = random_rows(random_segments(0)), attention.TreePlan(random_segments(0), CPU)
    expected = plan._attend_rows(*rows, scaling)
    torch.testing.assert_close(plan.attend(*rows, scaling), expected, rtol=1e-5, atol=1e-6)
    with torch.autocast("cpu", torch.bfloat16):
        # the precision of queries and keys after rotary embeddings
        output = plan.attend(*rows[:2], rows[2].bfloat16(), scaling)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), expected, rtol=0.02, atol=0.02)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the variable-length kernel runs on CUDA only")
def test_the_kernel_agrees_with_padded_rows_on_cuda():
    rows = random_rows(random_segments(0), width=64, device="cuda", dtype=torch.bfloat16)
    plan = attention.TreePlan(random_segments(0), torch.device("cuda"))
    outputs = plan.attend(*rows, None), plan._attend_rows(*rows, None)
    torch.testing.assert_close(*outputs, rtol=0.02, atol=0.02)
    gradients = [torch.autograd.grad(output, rows, torch.ones_like(output)) for output in outputs]
    torch.testing.assert_close(*gradients, rtol=0.05, atol=0.05)


# -- models under the tree attention ---------------------------------------------------------------------------------


def mixed():
    """Make comparisons with a shared beginning, a prefix, identical responses, one-token responses and a long pair."""
    draw = np.random.default_rng(0).integers
    shared, tail = draw(3, 31, 6), draw(3, 31, 4)
    rows = [
        (draw(3, 31, 5), np.r_[shared, 7, 8, 9], np.r_[shared, 10, 11]),
        (draw(3, 31, 2), tail[:2], tail),
        (draw(3, 31, 3), tail, tail),
        (draw(3, 31, 1), np.array([4]), np.array([5])),
        (draw(3, 31, 9), draw(3, 31, 14), draw(3, 31, 11)),
    ]
    return as_pairs(rows)


def packed_margins(model, pairs):
    """Compute the difference of the two responses' log-probabilities by the tree attention."""
    pack = move_inputs(packed_comparisons(pairs), CPU)
    logps = _token_logps(model, pack).double()
    sums = logps.new_zeros(len(pairs)).index_add(0, pack["response"], logps)
    return sums[0::2] - sums[1::2]


def plain_margins(model, pairs):
    """Compute the same difference by one ordinary forward for each response."""
    sums = torch.stack([tiny.plain_logps(model, *pair).sum() for pair in pairs])
    return sums[0::2] - sums[1::2]


def gradient(model, margins):
    weights = torch.linspace(1.0, 2.0, len(margins), dtype=torch.float64)
    total = (weights * margins).sum()
    gradients = torch.autograd.grad(total, list(model.parameters()), allow_unused=True)
    return torch.cat([g.flatten() for g in gradients if g is not None])


def relative(actual, expected):
    return float(((actual - expected).abs().max() / expected.abs().max()).detach())


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_gives_the_same_gradient(model, reentrant):
    expected = gradient(model, plain_margins(model, mixed()))
    checkpointed = copy.deepcopy(model).train()
    checkpointed.gradient_checkpointing_enable({"use_reentrant": reentrant})
    checkpointed.enable_input_require_grads()
    with attention.tree_attention(checkpointed):
        margins = packed_margins(checkpointed, mixed())
        (margins @ torch.linspace(1.0, 2.0, 5, dtype=torch.float64)).backward()
    actual = torch.cat([p.grad.flatten() for p in checkpointed.parameters() if p.grad is not None])
    assert relative(actual, expected) <= TOLERANCE


def test_a_pack_outside_the_tree_attention_raises_an_error(qwen2):
    for outside in ("sdpa", "eager"):
        with pytest.raises((RuntimeError, ValueError)):
            packed_margins(tiny_model(CONFIGS["qwen2"], outside), mixed())
    # the context of the tree attention ends before a checkpointed backward pass
    qwen2.train().gradient_checkpointing_enable({"use_reentrant": False})
    with attention.tree_attention(qwen2):
        margins = packed_margins(qwen2, mixed())
    with pytest.raises(RuntimeError):
        margins.sum().backward()


def attention_call(model, n_rows=1, n_query=3, n_key=3, **keywords):
    layer = model.get_decoder().layers[0].self_attn
    plan = attention.TreePlan(np.array([[0, 3, 0, 0]]), CPU)
    query, key = torch.ones(n_rows, 4, n_query, 8), torch.ones(n_rows, 2, n_key, 8)
    return attention.tree_attention_forward(layer, query, key, key, None, tree_plan=plan, **keywords)


OTHER_TOKENS = "the tree plan describes one row of 3 tokens"


@pytest.mark.parametrize(
    ("keywords", "named"),
    [
        ({"softcap": 30.0}, "softcap"),
        ({"s_aux": torch.zeros(4)}, "s_aux"),
        ({"some_future_keyword": 1}, "some_future_keyword"),
        ({"sliding_window": 2}, "a sliding window of 2 tokens on sequences of 3"),
        ({"dropout": 0.1}, "attention dropout of 0.1"),
        ({"is_causal": False}, "attention that is not causal"),
        # a second row, a query of another length, and the keys of a cache
        ({"n_rows": 2}, OTHER_TOKENS),
        ({"n_query": 4}, OTHER_TOKENS),
        ({"n_key": 5}, OTHER_TOKENS),
    ],
)
def test_features_that_a_plan_does_not_support_are_refused(qwen2, keywords, named):
    with pytest.raises(ValueError, match=named):
        attention_call(qwen2, **keywords)
    # keywords with neutral values
    nothing = {"softcap": None, "sliding_window": 3, "output_attentions": False, "is_causal": True}
    output, weights = attention_call(qwen2, **nothing, position_ids=torch.arange(3))
    assert output.shape == (1, 3, 4, 8) and weights is None


UNKNOWN = dict(layer_types=["sliding_attention", "full_attention"])
MIXED_ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}


@pytest.mark.parametrize(
    ("configuration", "reason"),
    [
        (config("Qwen2", **UNKNOWN, use_sliding_window=True, sliding_window=6), "window of 6 tokens"),
        (config("Qwen2", **UNKNOWN), "sliding-window layers of unknown length"),
        (config("Gemma2"), "soft-capping"),
        (transformers.Qwen2VLConfig(text_config=SIZES | {"rope_parameters": MIXED_ROPE}), "M-RoPE"),
        (transformers.MambaConfig(), "recurrent layers"),
        (transformers.T5Config(), "an encoder"),
    ],
)
def test_unsupported_attention_is_named(configuration, reason):
    assert reason in attention.unsupported_reason(configuration)


def test_a_pack_that_exceeds_a_window_of_the_configuration_is_refused():
    experts = dict(num_experts=2, num_experts_per_tok=1, moe_intermediate_size=16)
    experts |= dict(shared_expert_intermediate_size=16, layer_types=["sliding_attention"] * 2)
    moe = tiny_model(config("Qwen2Moe", **experts, use_sliding_window=True, sliding_window=20))
    with attention.tree_attention(moe):
        packed_margins(moe, mixed()[:8])
        with pytest.raises(ValueError, match="a sliding window of 20 tokens; use the padded forward"):
            packed_margins(moe, mixed())


def test_left_padded_generation_is_exact_inside_the_tree_attention(model):
    ids = torch.tensor([[0, 0, 0, 5, 9], [4, 8, 7, 6, 3]])
    batch = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    model.eval()
    wanted = dict(max_new_tokens=6, do_sample=False, output_logits=True, return_dict_in_generate=True)
    expected = model.generate(**batch, **wanted)
    unpadded = model.generate(input_ids=ids[:1, 3:], **wanted)
    attached = attach(copy.deepcopy(model))
    with attention.tree_attention(attached):
        packed_margins(attached, mixed()).sum().backward()
        actual = attached.generate(**batch, **wanted)
    assert torch.equal(actual.sequences, expected.sequences)
    assert all(torch.equal(x, y) for x, y in zip(actual.logits, expected.logits, strict=True))
    assert relative(actual.logits[0][0], unpadded.logits[0][0]) <= TOLERANCE


def test_the_context_restores_the_attention_and_is_not_saved(qwen2, tmp_path):
    with pytest.raises(KeyboardInterrupt), attention.tree_attention(qwen2):
        with attention.tree_attention(qwen2):
            pass
        assert qwen2.config._attn_implementation == attention.TREE_ATTENTION
        qwen2.save_pretrained(tmp_path)
        raise KeyboardInterrupt
    assert qwen2.config._attn_implementation == "sdpa"
    assert all("badpo" not in path.read_text() for path in tmp_path.glob("*.json"))
    assert AutoModelForCausalLM.from_pretrained(tmp_path).config._attn_implementation == "sdpa"
