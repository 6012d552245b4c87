import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from badpo.theory.likelihood import bias_logit, gradient_weight, judgment_logit, judgment_loss, margin

BETA = 0.1


def draw(seed: int, n: int = 40, q: int = 2, dtype=torch.float64):
    """Margins, theta rows, attribute differences and signs of n judgments."""
    generator = torch.Generator().manual_seed(seed)
    u = torch.randn(n, generator=generator, dtype=dtype)
    theta = torch.randn(n, q, generator=generator, dtype=dtype)
    delta = torch.randint(-1, 2, (n, q), generator=generator).to(dtype)
    sign = torch.randint(0, 2, (n,), generator=generator).to(dtype) * 2 - 1
    return u, theta, delta, sign


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_theta_zero_is_dpo_to_the_bit(dtype):
    generator = torch.Generator().manual_seed(0)
    logps = -100 * torch.rand(4, 500, generator=generator, dtype=dtype)
    _, _, delta, sign = draw(1, n=500, dtype=dtype)
    policy_a, policy_b = logps[0].clone().requires_grad_(), logps[1].clone().requires_grad_()
    ours = judgment_loss(
        margin(policy_a, policy_b, logps[2], logps[3], BETA),
        bias_logit(torch.zeros_like(delta), delta),
        sign,
    )
    ours.mean().backward()

    chosen_is_a = sign > 0
    plain_a, plain_b = logps[0].clone().requires_grad_(), logps[1].clone().requires_grad_()
    chosen, rejected = (
        torch.where(chosen_is_a, plain_a, plain_b),
        torch.where(chosen_is_a, plain_b, plain_a),
    )
    ref_chosen = torch.where(chosen_is_a, logps[2], logps[3])
    ref_rejected = torch.where(chosen_is_a, logps[3], logps[2])
    dpo = -F.logsigmoid(BETA * ((chosen - ref_chosen) - (rejected - ref_rejected)))
    dpo.mean().backward()

    assert torch.equal(ours, dpo)
    assert torch.equal(policy_a.grad, plain_a.grad)
    assert torch.equal(policy_b.grad, plain_b.grad)


def test_gradients_are_the_papers():
    """Eqs. grad_policy and grad_bias: every vote pulls with sigma(-s (u + b)), on its margin and on its annotator."""
    u, _, delta, sign = draw(4, n=60)
    annotator = torch.arange(60) % 5
    annotator[:13] = 0  # unequal shares
    theta = torch.randn(5, 2, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    u.requires_grad_(), theta.requires_grad_()
    judgment_loss(u, bias_logit(theta[annotator], delta), sign).mean().backward()

    pull = gradient_weight(u, bias_logit(theta[annotator], delta), sign).detach() * sign
    torch.testing.assert_close(u.grad, -pull / 60, rtol=1e-12, atol=1e-14)
    for k in range(5):
        mine = annotator == k
        mean = (pull[mine, None] * delta[mine]).mean(dim=0)
        torch.testing.assert_close(theta.grad[k], -int(mine.sum()) / 60 * mean, rtol=1e-12, atol=1e-14)


def test_moving_a_constant_from_theta_into_the_reward_changes_no_probability():
    """Cor. degeneracy, for a vector of attributes: (r + c . g, theta - c)."""
    generator = torch.Generator().manual_seed(8)
    _, theta, _, sign = draw(9, n=50, q=3)
    group_a, group_b = torch.randint(0, 2, (2, 50, 3), generator=generator).double()
    reward_a, reward_b = torch.randn(2, 50, generator=generator, dtype=torch.float64)
    c = torch.tensor([0.7, -2.0, 5.0], dtype=torch.float64)
    before = judgment_logit(reward_a - reward_b, bias_logit(theta, group_a - group_b), sign)
    moved = (reward_a + group_a @ c) - (reward_b + group_b @ c)
    after = judgment_logit(moved, bias_logit(theta - c, group_a - group_b), sign)
    torch.testing.assert_close(after, before, rtol=0, atol=1e-13)
    # only theta moved: the probabilities must change, or the test could not fail
    only_theta = judgment_logit(reward_a - reward_b, bias_logit(theta - c, group_a - group_b), sign)
    assert (only_theta - before).abs().max() > 0.5


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10_000))
def test_exchanging_the_responses_changes_nothing(seed):
    u, theta, delta, sign = draw(seed)
    b = bias_logit(theta, delta)
    assert torch.equal(judgment_loss(u, b, sign), judgment_loss(-u, bias_logit(theta, -delta), -sign))
    assert torch.equal(gradient_weight(u, b, sign), gradient_weight(-u, -b, -sign))


def test_extreme_margins_stay_finite():
    u = torch.tensor([-1e4, 1e4], dtype=torch.float64, requires_grad=True)
    loss = judgment_loss(u, torch.zeros(2), torch.ones(2))
    loss.sum().backward()
    assert loss.tolist() == [1e4, 0.0]
    assert u.grad.tolist() == [-1.0, 0.0]
