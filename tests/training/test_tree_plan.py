from __future__ import annotations

import inspect
import math

import numpy as np
import pytest
import torch

from badpo.training import attention
from badpo.training.attention import TreePlan
from badpo.training.packing import plan_pack

HEADS = (4, 2, 2)
CPU = torch.device("cpu")


def random_pack(seed, n_comparisons=12):
    """Comparisons with long and short shared beginnings and with branches of 1 to 25 tokens."""
    draw = np.random.default_rng(seed)

    def ids(high):
        return draw.integers(0, 50, draw.integers(1, high))

    def comparison():
        shared = ids(20)
        return ids(15), np.r_[shared, ids(25)], np.r_[shared, ids(25)]

    return plan_pack([comparison() for _ in range(n_comparisons)])


def plan_of(pack, device=CPU):
    return TreePlan(pack.segments, len(pack.input_ids), device)


def random_rows(n_tokens, width=8, **options):
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(n_tokens, heads, width, generator=generator).to(**options).requires_grad_()
        for heads in HEADS
    ]


def token_by_token(segments, query, key, value, scaling):
    """Attention of each token to what its segment lets it see, one token and one head at a time."""
    outputs = []
    for q_start, q_end, prefix_start, prefix_end in segments:
        for place in range(q_start, q_end):
            seen = np.r_[prefix_start:prefix_end, q_start : place + 1]
            for head in range(query.shape[1]):
                shared_head = head * key.shape[1] // query.shape[1]
                weights = (key[seen, shared_head] @ query[place, head] * scaling).softmax(0)
                outputs.append(weights @ value[seen, shared_head])
    return torch.stack(outputs).view(len(query), query.shape[1], -1)


@pytest.mark.parametrize("seed", range(3))
def test_each_token_attends_to_its_own_sequence(seed):
    pack = random_pack(seed)
    rows = random_rows(len(pack.input_ids))
    expected = token_by_token(pack.segments, *rows, 0.3)
    actual = plan_of(pack).attend(*rows, 0.3)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)
    weights = torch.linspace(-1, 1, actual.numel()).view_as(actual)
    torch.testing.assert_close(
        torch.autograd.grad(actual, rows, weights),
        torch.autograd.grad(expected, rows, weights),
        rtol=1e-4,
        atol=1e-5,
    )


def test_values_may_be_wider_than_keys():
    pack = random_pack(0)
    query, key, value = random_rows(len(pack.input_ids))
    value = torch.cat([value, 2 * value], dim=-1)
    output = plan_of(pack).attend(query, key, value, None)
    torch.testing.assert_close(output[..., 8:], 2 * output[..., :8])


def test_blocks_of_similar_size_share_a_call():
    segments = random_pack(0, n_comparisons=60).segments
    blocks = attention._blocks(segments)
    groups = list(attention._similar_blocks(blocks))
    assert sorted(np.concatenate(groups)) == list(range(len(blocks)))
    assert len(groups) < len(blocks) / 4


def long_pack():
    """Segments that are cut into two to four blocks, and one that is not cut."""
    draw = np.random.default_rng(0).integers
    lengths = [(10, 40, 60), (5, 100, 110), (30, 200, 10)]
    return plan_pack([tuple(draw(0, 50, n) for n in of_one) for of_one in lengths])


def test_a_long_segment_is_attended_to_in_blocks():
    pack = long_pack()
    blocks = attention._blocks(pack.segments)
    per_segment = np.bincount(np.searchsorted(pack.segments[:, 1], blocks[:, 1]))
    assert sorted(set(per_segment)) == [1, 2, 4]
    # laid one after the other the blocks are the row again
    assert np.array_equal(blocks[1:, 0], blocks[:-1, 1])
    assert (blocks[0, 0], blocks[-1, 1]) == (0, len(pack.input_ids))


def test_blocks_compute_little_more_than_the_scores_needed():
    pack = long_pack()
    q_start, q_end, prefix_start, prefix_end = pack.segments.T
    n_query = q_end - q_start
    needed = (n_query * (n_query + 1) // 2 + n_query * (prefix_end - prefix_start)).sum()
    groups = plan_of(pack)._rows[3]
    assert sum(g.n_rows * g.n_query * g.n_key for g in groups) < 1.5 * needed


@pytest.mark.parametrize("most", [1, 4])
def test_blocks_attend_as_whole_segments_do(monkeypatch, most):
    pack = long_pack()
    rows = random_rows(len(pack.input_ids))
    expected = token_by_token(pack.segments, *rows, 0.3)
    monkeypatch.setattr(attention._blocks, "__defaults__", (most,))
    actual = plan_of(pack).attend(*rows, 0.3)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)
    weights = torch.linspace(-1, 1, actual.numel()).view_as(actual)
    torch.testing.assert_close(
        torch.autograd.grad(actual, rows, weights),
        torch.autograd.grad(expected, rows, weights),
        rtol=1e-4,
        atol=1e-5,
    )


def test_longest_is_the_longest_sequence():
    # 2 + 3 tokens are shared; 5 + 4 - 1 tokens are read to predict the end of the longer response.
    pack = plan_pack([(np.array([1, 2]), np.array([3, 4, 5, 6]), np.array([3, 4, 5, 7, 8, 9, 9]))])
    assert plan_of(pack).longest == 8


def kernel_stand_in(query, key, value, ends_q, ends_k, max_q, max_k, *, scale, window_size):
    """What the variable-length kernel is documented to do: causal with the last query on the last key."""
    assert window_size == (-1, 0) and ends_q.dtype == ends_k.dtype == torch.int32
    assert query.shape[1] == key.shape[1] == value.shape[1]
    outputs = []
    for q_start, q_end, k_start, k_end in zip(ends_q, ends_q[1:], ends_k, ends_k[1:], strict=False):
        n_query, n_key = int(q_end - q_start), int(k_end - k_start)
        assert n_query <= max_q and n_key <= max_k
        scores = torch.einsum("qhd,khd->hqk", query[q_start:q_end], key[k_start:k_end])
        hidden = torch.ones(n_query, n_key, dtype=torch.bool).triu(n_key - n_query + 1)
        scores = scores * (scale if scale is not None else 1 / math.sqrt(query.shape[-1]))
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        outputs.append(torch.einsum("hqk,khd->qhd", weights, value[k_start:k_end]))
    return torch.cat(outputs)


def grouped_kernel_stand_in(query, key, value, *places, enable_gqa, **options):
    assert enable_gqa
    n_repeats = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(n_repeats, 1), value.repeat_interleave(n_repeats, 1)
    return kernel_stand_in(query, key, value, *places, **options)


@pytest.mark.parametrize("kernel", [kernel_stand_in, grouped_kernel_stand_in])
@pytest.mark.parametrize("scaling", [None, 0.3])
def test_the_kernel_gets_every_segment_with_its_prefix(monkeypatch, kernel, scaling):
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", kernel)
    pack = random_pack(0)
    rows = random_rows(len(pack.input_ids))
    expected = plan_of(pack)._attend_rows(*rows, scaling)
    torch.testing.assert_close(plan_of(pack)._attend_varlen(*rows, scaling), expected, rtol=1e-5, atol=1e-6)


def test_the_kernel_is_called_as_this_torch_declares_it():
    from torch.nn.attention.varlen import varlen_attn

    declared = inspect.signature(varlen_attn).parameters
    assert list(declared)[:7] == ["query", "key", "value", "cu_seq_q", "cu_seq_k", "max_q", "max_k"]
    assert {"scale", "window_size"} <= set(declared)


def test_under_autocast_the_kernel_is_asked_in_its_precision(monkeypatch):
    seen = []
    monkeypatch.setattr(attention, "_varlen_serves", lambda *tensors: seen.extend(t.dtype for t in tensors))
    pack = random_pack(0)
    query, key, value = random_rows(len(pack.input_ids))
    with torch.autocast("cpu", torch.bfloat16):
        # as rotary embeddings leave them
        output = plan_of(pack).attend(query, key, value.bfloat16(), None)
    assert {output.dtype, *seen} == {torch.bfloat16}
    expected = plan_of(pack).attend(query, key, value, None)
    torch.testing.assert_close(output.float(), expected, rtol=0.02, atol=0.02)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the variable-length kernel runs on CUDA only")
def test_the_kernel_agrees_with_padded_rows_on_cuda():
    pack = random_pack(0)
    rows = random_rows(len(pack.input_ids), width=64, device="cuda", dtype=torch.bfloat16)
    plan = plan_of(pack, torch.device("cuda"))
    expected, actual = plan._attend_rows(*rows, None), plan.attend(*rows, None)
    torch.testing.assert_close(actual, expected, rtol=0.02, atol=0.02)
    weights = torch.ones_like(actual)
    torch.testing.assert_close(
        torch.autograd.grad(actual, rows, weights),
        torch.autograd.grad(expected, rows, weights),
        rtol=0.05,
        atol=0.05,
    )
