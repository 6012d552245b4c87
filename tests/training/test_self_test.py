"""The self-test passes correct models and refuses every planted fault, in fp32 and in bf16."""

from functools import partial, partialmethod
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, Qwen2ForCausalLM, T5ForConditionalGeneration

from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError
from badpo.training import logprobs
from badpo.training.attention import TreePlan
from badpo.training.encoding import EncodedComparisons, encode_comparisons
from badpo.training.inputs import disable_dropout
from badpo.training.logprobs import attach, response_logps, scoring_attention
from badpo.training.packing import packed_comparisons, padded_rows
from badpo.training.self_test import choose_layout, self_tests
from tests import tiny

TOKENS = dict(vocab_size=64, pad_token_id=0, bos_token_id=1, eos_token_id=1)
HEADS = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
SIZES = TOKENS | HEADS | dict(intermediate_size=48, num_key_value_heads=2, head_dim=8)
SIZES |= dict(max_position_embeddings=64, initializer_range=0.2)
PRECISIONS = (torch.float32, torch.bfloat16)


def config(kind: str, **options):
    """Make the configuration of a small model of a kind."""
    return getattr(transformers, f"{kind}Config")(**SIZES | options)


CONFIGS = {
    "llama": config("Llama"),
    # without soft-capping of attention scores, the model can be packed
    "gemma2": config(
        "Gemma2", attn_logit_softcapping=None, final_logit_softcapping=5.0, sliding_window=64
    ),
    "cohere": config("Cohere", logit_scale=0.25),
    "granite": config("Granite", logits_scaling=4.0),
}


def made(configuration, dtype=torch.float32):
    torch.manual_seed(0)
    return attach(AutoModelForCausalLM.from_config(configuration).to(dtype))


@pytest.fixture(scope="module")
def encoded() -> EncodedComparisons:
    return encode_comparisons(Judgments.read(tiny.votes(n_comparisons=12)).comparisons, tiny.tokenizer())


def plain_attention(plan, query, key, value, scaling, sees, tiled=False):
    """Compute attention for each segment of a plan, with a mask that may be wrong."""
    groups = query.shape[1] // key.shape[1]
    key, value = (
        t.repeat(1, groups, 1) if tiled else t.repeat_interleave(groups, 1) for t in (key, value)
    )
    outputs = []
    for q_start, q_end, prefix_start, prefix_end in plan.segments.tolist():
        keys = [*range(prefix_start, prefix_end), *range(q_start, q_end)]
        n_prefix, n = prefix_end - prefix_start, q_end - q_start
        mask = torch.tensor(
            [[sees(i + n_prefix, j, n_prefix) for j in range(n_prefix + n)] for i in range(n)]
        )
        scores = torch.einsum("qhd,khd->hqk", query[q_start:q_end], key[keys]).float() * scaling
        weights = scores.masked_fill(~mask, -torch.inf).softmax(-1).nan_to_num()
        outputs.append(torch.einsum("hqk,khd->qhd", weights.to(value.dtype), value[keys]))
    return torch.cat(outputs)


# Whether a query at position i attends to the key at position j; the first n keys are the prefix.
KERNELS = {
    "right": lambda i, j, n: j <= i,
    "top-left causal": lambda i, j, n: j <= i - n,
    "prefix unseen": lambda i, j, n: n <= j <= i,
    "not causal": lambda i, j, n: True,
    "window": lambda i, j, n: i - 8 < j <= i,
    "one key late": lambda i, j, n: j <= i + 1,
    "heads tiled": lambda i, j, n: j <= i,
}


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("fault", KERNELS)
def test_a_wrong_kernel_is_refused(monkeypatch, encoded, fault, dtype):
    wrong = partialmethod(plain_attention, sees=KERNELS[fault], tiled=fault == "heads tiled")
    monkeypatch.setattr(TreePlan, "attend", wrong)
    model = made(CONFIGS["llama"], dtype)
    if fault == "right":
        assert choose_layout(model, "packed", encoded).padding_reason is None
    else:
        told = "the packed forward pass differs from LlamaForCausalLM's own forward pass"
        with pytest.raises(ConfigError, match=told):
            choose_layout(model, "packed", encoded)


@pytest.mark.parametrize("precision", ["bfloat16", "autocast"])
@pytest.mark.parametrize("kind", ["Llama", "Mixtral"])
def test_rounding_is_accepted_if_two_plain_forwards_agree(kind, precision):
    rng = np.random.default_rng(0)
    prompts = [rng.integers(2, 256, 40) for _ in range(4)]
    pairs = [(prompt, rng.integers(2, 256, n)) for prompt in prompts for n in (150, 120)]
    data = EncodedComparisons(pairs, np.ones(4, bool), np.zeros((4, 2), bool))
    sizes = dict(vocab_size=256, hidden_size=128, head_dim=32, num_hidden_layers=4)
    model = made(config(kind, **sizes, initializer_range=0.02, max_position_embeddings=256))
    autocast = partial(torch.autocast, "cpu", torch.bfloat16) if precision == "autocast" else None
    for attention in ("packed", "padded"):
        tests = choose_layout(model if autocast else model.bfloat16(), attention, data, autocast).tests
        assert tests[-1].differences[0] > tests[-1].floor[0]


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("attention", ["packed", "padded"])
@pytest.mark.parametrize("name", CONFIGS)
def test_changes_of_logits_by_the_model_class_are_kept_and_their_absence_is_detected(
    monkeypatch, encoded, name, attention, dtype
):
    model = made(CONFIGS[name], dtype)
    if name == "llama":
        model.lm_head.bias = torch.nn.Parameter(torch.randn(64).to(dtype))
    assert choose_layout(model, attention, encoded).padding_reason is None
    weight = model.get_output_embeddings().weight
    monkeypatch.setattr(logprobs, "_own_logits", lambda model, inner, rows: rows @ weight.T)
    with pytest.raises(ConfigError, match="differs from"):
        choose_layout(model, attention, encoded)


def changed(layout, fault):
    """Make a layout in which one input is wrong."""

    def wrong(*planned):
        inputs, (name, change) = layout(*planned), WRONG[fault]
        return {**inputs, name: change(inputs[name])}

    return wrong


WRONG = {
    "earlier": ("head_index", lambda index: np.maximum(index - 1, 0)),
    "rolled": ("target", lambda target: np.roll(target, 1)),
    "exchanged": ("target", lambda target: target[::-1].copy()),
    "shifted": ("position_ids", lambda positions: np.where(positions, positions + 1, 0)),
    # only the positions of the branch
    "branch": ("position_ids", lambda p: np.where(np.r_[False, np.diff(p) != 1], p + 1, p)),
    "unseen": ("attention_mask", lambda mask: np.roll(mask, 1, axis=1)),
}
LAYOUTS = [
    *((packed_comparisons, fault) for fault in WRONG if fault != "unseen"),
    *((padded_rows, fault) for fault in ("earlier", "rolled", "exchanged", "unseen")),
]


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize(("layout", "fault"), LAYOUTS)
def test_a_wrong_layout_is_refused(monkeypatch, encoded, layout, fault, dtype):
    model = made(CONFIGS["llama"], dtype)
    with scoring_attention(model, layout):
        assert self_tests(model, layout, encoded)[0].passed
        assert not self_tests(model, changed(layout, fault), encoded)[0].passed
        if (layout, fault) == (packed_comparisons, "rolled"):  # that of the reference is tried too
            monkeypatch.setattr(logprobs, "plan_pack", changed(logprobs.plan_pack, fault))
            [test] = self_tests(model, layout, encoded)
            assert test.differences[0] > 0.1 and not test.passed


class Halved(Qwen2ForCausalLM):
    """Model that halves the logits under autocast, except in the scoring branch."""

    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        if torch.is_autocast_enabled("cpu") and not vars(self.model).get("forward"):
            output.logits = output.logits * 0.5
        return output


def test_mixed_precision_has_its_own_test(encoded):
    autocast = partial(torch.autocast, "cpu", torch.bfloat16)
    tests = choose_layout(attach(tiny.model()), "packed", encoded, autocast).tests
    assert [test.precision for test in tests] == ["float32", "autocast"]
    assert tests[0].differences[1] < 1e-5 < tests[1].differences[1] < 3e-2
    model = attach(Halved(tiny.model().config))
    assert choose_layout(model, "packed", encoded).layout is packed_comparisons
    with pytest.raises(ConfigError, match="in autocast"):
        choose_layout(model, "packed", encoded, autocast)


@pytest.mark.parametrize("window, passes", [(40, True), (24, False)])
def test_a_window_that_is_shorter_than_one_of_many_comparisons_is_detected(monkeypatch, window, passes):
    rows = [{"prompt": "the ", "chosen": "cat ran", "rejected": f"dog w{i % 40}"} for i in range(40)]
    rows.append({"prompt": "the " * 12, "chosen": "cat ran " * 10, "rejected": "dog sat " * 10})
    comparisons = encode_comparisons(Judgments.read(rows).comparisons, tiny.tokenizer())

    windowed = partialmethod(plain_attention, sees=lambda i, j, n: i - window < j <= i)
    monkeypatch.setattr(TreePlan, "attend", windowed)
    [test] = self_tests(made(CONFIGS["llama"]), packed_comparisons, comparisons)
    assert test.passed is passes


MOE = dict(num_experts=4, moe_intermediate_size=16, shared_expert_intermediate_size=16)
LOCAL = dict(num_local_experts=4, num_experts_per_tok=1)


@pytest.mark.parametrize(
    ("configuration", "reason"),
    [
        (config("Mistral", sliding_window=13), None),
        (config("Mistral", sliding_window=12), "a sliding window of 12 tokens"),
        (config("Nemotron"), "did not receive the tree plan"),
        # a window of 0, and a window that no layer uses
        (config("Qwen2Moe", **MOE, num_experts_per_tok=2), None),
        (config("Qwen2", sliding_window=4), None),
        # models whose class does not name the decoder
        (config("Llama4Text", **LOCAL, intermediate_size_mlp=48), "layers of type chunked_attention"),
        (config("ModernBertDecoder", global_attn_every_n_layers=1), None),
    ],
)
def test_a_model_that_cannot_be_packed_is_padded_with_a_reason(encoded, configuration, reason):
    assert encoded.longest == 13
    choice = choose_layout(made(configuration), "packed", encoded)
    layout, found, tests = choice.layout, choice.padding_reason, choice.tests
    assert tests[0].passed and layout is (packed_comparisons if reason is None else padded_rows)
    assert found is None if reason is None else reason in found


def test_other_models_and_missing_memory_raise_errors_instead_of_padding(monkeypatch, encoded):
    sizes = dict(d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2)
    t5 = T5ForConditionalGeneration(transformers.T5Config(vocab_size=64, **sizes))
    with pytest.raises(ConfigError, match="T5ForConditionalGeneration"):
        choose_layout(attach(t5), "packed", encoded)
    ahead = dict(vocab_size=64, intermediate_size=48, initializer_range=0.2)
    bert = made(transformers.BertConfig(**HEADS, **ahead)).eval()
    with pytest.raises(ConfigError, match="BertLMHeadModel does not read from left to right"):
        choose_layout(bert, "packed", encoded)
    no_room = torch.OutOfMemoryError("CUDA out of memory")
    monkeypatch.setattr(TreePlan, "attend", Mock(side_effect=no_room))
    told = f"not enough memory for the longest comparison, which has {encoded.longest} tokens"
    with pytest.raises(ConfigError, match=told):
        choose_layout(made(CONFIGS["llama"]), "packed", encoded)


def test_the_self_test_never_computes_all_logits_and_restores_the_model(monkeypatch, encoded):
    monkeypatch.setattr(logprobs, "LOGITS_AT_ONCE", 3 * 64)
    model, sizes = made(CONFIGS["llama"]).train(), []
    model.lm_head.weight.requires_grad_(False)
    model.lm_head.eval()
    model.lm_head.register_forward_hook(lambda *seen: sizes.append(seen[-1][..., 0].numel()))
    trained = [parameter.requires_grad for parameter in model.parameters()]
    modes = [module.training for module in model.modules()]
    assert choose_layout(model, "packed", encoded).layout is packed_comparisons
    assert max(sizes) <= 3
    assert [parameter.requires_grad for parameter in model.parameters()] == trained
    assert all(parameter.grad is None for parameter in model.parameters())
    assert [module.training for module in model.modules()] == modes
    assert not model.get_input_embeddings()._forward_hooks and not model.lm_head._forward_pre_hooks


# -- what must not depend on a seed or on what shares the forward --------------------------------------------------

OPT_SIZES = dict(word_embed_proj_dim=32, ffn_dim=48, max_position_embeddings=64, init_std=0.2)
OPT_SIZES |= HEADS | dict(vocab_size=64, pad_token_id=0)
JITTER = dict(router_jitter_noise=0.5, input_jitter_noise=0.5)
DROPPING = {
    "a function's number": transformers.OPTConfig(**OPT_SIZES, dropout=0.5, attention_dropout=0.5),
    "modules": transformers.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.5),
    "whole layers": transformers.OPTConfig(**OPT_SIZES, dropout=0.0, layerdrop=0.5),
    "residual": config("Starcoder2", residual_dropout=0.5, embedding_dropout=0.5),
    "of a fused add": transformers.FalconConfig(vocab_size=64, **HEADS, hidden_dropout=0.5, alibi=False),
    "jitter of the router": config("Phimoe", **LOCAL | dict(num_experts_per_tok=2), **JITTER),
}


@pytest.mark.parametrize("name", DROPPING)
def test_all_dropouts_are_removed_and_remaining_dropouts_are_refused(encoded, name):
    model = made(DROPPING[name])
    assert self_tests(model.eval(), padded_rows, encoded)[0].passed
    torch.manual_seed(3)
    with pytest.raises(ConfigError, match=f"{type(model).__name__} has dropout or router jitter"):
        self_tests(model.train(), padded_rows, encoded)
    # the test changes no random state
    found = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(found, torch.rand(1))
    disable_dropout(model)
    expected = padded_rows if name == "of a fused add" else packed_comparisons
    choice = choose_layout(model, "packed", encoded)
    layout, reason, [test] = choice.layout, choice.padding_reason, choice.tests
    assert layout is expected and test.passed
    assert reason is None if layout is packed_comparisons else "cannot switch its attention" in reason


LONGROPE = dict(rope_type="longrope", rope_theta=1e4)
LONGROPE |= dict(short_factor=[1.0] * 4, long_factor=[4.0] * 4)
DYNAMIC = dict(rope_type="dynamic", factor=2.0, rope_theta=1e4)
ROTATIONS = {
    "longrope": config("Phi3", original_max_position_embeddings=8, rope_parameters=LONGROPE),
    "dynamic": config("Llama", max_position_embeddings=8, rope_parameters=DYNAMIC),
    "learned": config(
        "GPT2", max_position_embeddings=8, embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0
    ),
}


@pytest.mark.parametrize("name", ROTATIONS)
def test_positions_that_end_or_depend_on_another_sequence_are_refused(encoded, name):
    assert encoded.longest > 8
    model = made(ROTATIONS[name])
    short, long = (np.array([5, 6, 7]), np.arange(5, 9)), (np.arange(5, 15), np.arange(5, 15))
    [alone] = response_logps(model, [short])
    np.testing.assert_allclose(alone, tiny.plain_logps(model, *short).detach(), atol=1e-5)
    with pytest.raises(ConfigError, match="set max_length: 8"):
        response_logps(model, [short, long])
    for attention in ("packed", "padded"):
        with pytest.raises(ConfigError, match="set max_length: 8"):
            choose_layout(model, attention, encoded)
