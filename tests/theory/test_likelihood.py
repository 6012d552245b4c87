import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from badpo.theory.likelihood import bias_logit, gradient_weight, judgment_loss, margin

BETA = 0.1


def draw(seed: int, n: int = 40, dtype=torch.float64):
    """Margins, theta rows, attribute differences and signs of n judgments, for two attributes."""
    generator = torch.Generator().manual_seed(seed)
    u, theta = torch.randn(n, generator=generator), torch.randn(n, 2, generator=generator)
    delta = torch.randint(-1, 2, (n, 2), generator=generator)
    sign = torch.randint(0, 2, (n,), generator=generator) * 2 - 1
    return (each.to(dtype) for each in (u, theta, delta, sign))


def test_theta_zero_is_dpo_to_the_bit():
    for dtype in (torch.float32, torch.float64):
        _, _, delta, sign = draw(1, n=500, dtype=dtype)
        # of the policy and of the reference: responses a and b, or the chosen and the rejected
        generator = torch.Generator().manual_seed(0)
        logps = (-100 * torch.rand(2, 2, 500, generator=generator, dtype=dtype)).requires_grad_()
        chosen = torch.where(sign > 0, logps, logps.flip(1))
        dpo = -F.logsigmoid(BETA * ((chosen[0, 0] - chosen[1, 0]) - (chosen[0, 1] - chosen[1, 1])))
        u = margin(logps[0, 0], logps[0, 1], logps[1, 0], logps[1, 1], BETA)
        ours = judgment_loss(u, bias_logit(torch.zeros_like(delta), delta), sign)
        assert torch.equal(ours, dpo)
        gradients = (torch.autograd.grad(loss.mean(), logps)[0] for loss in (ours, dpo))
        assert torch.equal(*gradients)


def test_gradients_are_the_papers_and_extreme_margins_stay_finite():
    """Eqs. grad_policy and grad_bias: every vote pulls with sigma(-s (u + b)), on its margin and on its annotator."""
    u, theta, delta, sign = draw(4, n=60)
    annotator = torch.arange(60) % 5
    annotator[:13] = 0  # unequal shares
    u, theta = u.requires_grad_(), theta[:5].clone().requires_grad_()
    judgment_loss(u, bias_logit(theta[annotator], delta), sign).mean().backward()
    pull = gradient_weight(u, bias_logit(theta[annotator], delta), sign).detach() * sign
    torch.testing.assert_close(u.grad, -pull / 60, rtol=1e-12, atol=1e-14)
    for k in range(5):
        mine = annotator == k
        mean = (pull[mine, None] * delta[mine]).mean(dim=0)
        torch.testing.assert_close(theta.grad[k], -int(mine.sum()) / 60 * mean, rtol=1e-12, atol=1e-14)
    u = torch.tensor([-1e4, 1e4], dtype=torch.float64, requires_grad=True)
    loss = judgment_loss(u, torch.zeros(2), torch.ones(2))
    loss.sum().backward()
    assert loss.tolist() == [1e4, 0.0]
    assert u.grad.tolist() == [-1.0, 0.0]


@given(st.integers(0, 10_000))
def test_exchanging_the_responses_changes_nothing(seed):
    u, theta, delta, sign = draw(seed)
    b = bias_logit(theta, delta)
    assert torch.equal(judgment_loss(u, b, sign), judgment_loss(-u, bias_logit(theta, -delta), -sign))
    assert torch.equal(gradient_weight(u, b, sign), gradient_weight(-u, -b, -sign))


def test_the_closed_form_policy_and_the_planted_leans_minimise_the_expected_loss():
    """Prop. compat: pi_ref exp(r / beta) / Z, for two prompts with four responses, every pair judged by everyone."""
    generator, beta = torch.Generator().manual_seed(0), 0.2
    reward, reference = torch.randn(2, 2, 4, generator=generator, dtype=torch.float64)
    reference = reference.log_softmax(dim=1)
    group = torch.tensor([[1, 0, 1, 0], [0, 1, 0, 0]], dtype=torch.float64)
    prompt, a, b = torch.tensor([(x, i, j) for x in range(2) for i in range(4) for j in range(i)]).T
    delta = (group[prompt, a] - group[prompt, b])[None, :, None]
    policy = (reference + reward / beta).requires_grad_()
    theta = torch.tensor([0.0, 1.5, -0.4], dtype=torch.float64)[:, None, None].requires_grad_()
    bias = bias_logit(theta, delta)
    chose_a = (reward[prompt, a] - reward[prompt, b] + bias).detach().sigmoid()
    logps = policy.log_softmax(dim=1)
    u = margin(logps[prompt, a], logps[prompt, b], reference[prompt, a], reference[prompt, b], beta)
    one = torch.ones_like(bias)
    loss = chose_a * judgment_loss(u, bias, one) + (1 - chose_a) * judgment_loss(u, bias, -one)
    for gradient in torch.autograd.grad(loss.mean(), [policy, theta]):
        torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-15)
