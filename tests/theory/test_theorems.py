"""The propositions and the theorem as statements about small exact problems."""

import numpy as np
import pytest
import torch

from badpo.theory.identifiability import free_directions
from badpo.theory.likelihood import bias_logit, judgment_loss, margin
from tests.theory.test_identifiability import random_design

BETA = 0.2


def test_the_closed_form_policy_and_the_planted_leans_minimise_the_expected_loss():
    """Prop. compat: pi_ref exp(r / beta) / Z, for two prompts with four responses, every pair judged by everyone."""
    generator = torch.Generator().manual_seed(0)
    reward, reference = torch.randn(2, 2, 4, generator=generator, dtype=torch.float64)
    reference = reference.log_softmax(dim=1)
    group = torch.tensor([[1, 0, 1, 0], [0, 1, 0, 0]], dtype=torch.float64)
    prompt, a, b = torch.tensor([(x, i, j) for x in range(2) for i in range(4) for j in range(i)]).T
    delta = (group[prompt, a] - group[prompt, b])[None, :, None]
    policy = (reference + reward / BETA).requires_grad_()
    theta = torch.tensor([0.0, 1.5, -0.4], dtype=torch.float64)[:, None, None].requires_grad_()
    bias = bias_logit(theta, delta)
    chose_a = (reward[prompt, a] - reward[prompt, b] + bias).detach().sigmoid()
    logps = policy.log_softmax(dim=1)
    u = margin(logps[prompt, a], logps[prompt, b], reference[prompt, a], reference[prompt, b], BETA)
    one = torch.ones_like(bias)
    loss = chose_a * judgment_loss(u, bias, one) + (1 - chose_a) * judgment_loss(u, bias, -one)
    for gradient in torch.autograd.grad(loss.mean(), [policy, theta]):
        torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-15)


@pytest.mark.parametrize("scope", ["binary", "continuous", "judgment"])
@pytest.mark.parametrize("seed", range(5))
def test_the_loss_is_convex_with_the_theorems_null_space(scope, seed):
    """Thm. identif: what the votes leave free of theta, and one number for every compared pair of responses."""
    rng = np.random.default_rng(seed)
    design = random_design(rng, scope)
    comparison, annotator, delta = (torch.as_tensor(each) for each in design[:3])
    n, m, q = int(comparison.max()) + 1, design[3], delta.shape[1]
    sign = torch.as_tensor(rng.choice([-1.0, 1.0], len(delta)))

    def loss(parameters):
        reward, theta = parameters[: 2 * n].reshape(n, 2), parameters[2 * n :].reshape(m, q)
        u = reward[comparison, 0] - reward[comparison, 1]
        return judgment_loss(u, bias_logit(theta[annotator], delta), sign).sum()

    point = torch.as_tensor(rng.normal(size=2 * n + m * q))
    eigenvalues = torch.linalg.eigvalsh(torch.autograd.functional.hessian(loss, point))
    assert eigenvalues.min() > -1e-12
    assert int((eigenvalues < 1e-10).sum()) == free_directions(*design).n_free + n
