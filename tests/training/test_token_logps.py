from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from badpo.training.token_logps import picked_logps


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


def test_the_gradient_of_float64_logits_is_right():
    logits, target = logits_and_targets()
    logits = logits.detach().double().requires_grad_()
    (probabilities,) = torch.autograd.grad(picked_logps(logits, target).sum(), logits)
    rest = torch.nn.functional.one_hot(target, logits.shape[1]) - logits.softmax(-1)
    torch.testing.assert_close(probabilities, rest, rtol=1e-5, atol=1e-6)


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


def test_it_can_be_recomputed():
    logits, target = logits_and_targets()
    [expected] = torch.autograd.grad(picked_logps(logits, target).sum(), logits)
    again = checkpoint(lambda z: picked_logps(2 * z / 2, target), logits, use_reentrant=False)
    [gradient] = torch.autograd.grad(again.sum(), logits)
    torch.testing.assert_close(gradient, expected)
