"""The propositions and the theorem as statements about small exact problems."""

import numpy as np
import pytest
import torch

from badpo.objective.bias import BiasTerm
from badpo.theory.identifiability import annotator_components, free_directions
from badpo.theory.likelihood import bias_logit, judgment_loss, margin

BETA = 0.2


# -- Prop. compat: the optimum is pi_ref exp(r / beta) / Z -----------------------------------------------------


def population(theta: torch.Tensor, seed: int = 0):
    """Two prompts with four responses each, every pair judged by everyone; the exact probability of each vote."""
    generator = torch.Generator().manual_seed(seed)
    reward = 0.5 * torch.randn(2, 4, generator=generator, dtype=torch.float64)
    reference = torch.randn(2, 4, generator=generator, dtype=torch.float64).log_softmax(dim=1)
    group = torch.tensor([[1, 0, 1, 0], [0, 1, 0, 0]], dtype=torch.float64)
    prompt, a, b = torch.tensor([(x, i, j) for x in range(2) for i in range(4) for j in range(i)]).T
    annotator = torch.arange(len(theta)).repeat_interleave(len(a))
    prompt, a, b = (index.repeat(len(theta)) for index in (prompt, a, b))
    delta = (group[prompt, a] - group[prompt, b])[:, None]
    logit = reward[prompt, a] - reward[prompt, b] + bias_logit(theta[annotator], delta)
    return reward, reference, (prompt, a, b), annotator, delta, torch.sigmoid(logit)


def expected_loss(policy, reference, responses, annotator, delta, chosen_a, bias) -> torch.Tensor:
    prompt, a, b = responses
    logps = policy.log_softmax(dim=1)
    u = margin(logps[prompt, a], logps[prompt, b], reference[prompt, a], reference[prompt, b], BETA)
    logits = bias(annotator, delta)
    one = torch.ones_like(u)
    return (
        chosen_a * judgment_loss(u, logits, one) + (1 - chosen_a) * judgment_loss(u, logits, -one)
    ).mean()


def test_training_to_the_optimum_reaches_the_closed_form_policy():
    theta = torch.tensor([[0.0], [1.5], [-0.4]], dtype=torch.float64)
    reward, reference, responses, annotator, delta, chosen_a = population(theta)
    # annotator 0 is known to have no bias, which fixes the level that the other votes leave open
    bias = BiasTerm(
        ["g"], ["gold", "x", "y"], ["deviation"], mask=torch.tensor([0.0, 1.0, 1.0])
    ).double()
    policy = reference.clone().requires_grad_()
    exactly = {"tolerance_grad": 1e-13, "tolerance_change": 0, "history_size": 50}
    optimizer = torch.optim.LBFGS(
        [policy, *bias.parameters()], max_iter=2000, line_search_fn="strong_wolfe", **exactly
    )

    def loss():
        optimizer.zero_grad()
        loss = expected_loss(policy, reference, responses, annotator, delta, chosen_a, bias)
        loss.backward()
        return loss

    optimizer.step(loss)
    closed_form = (reference + reward / BETA).softmax(dim=1)
    torch.testing.assert_close(policy.detach().softmax(dim=1), closed_form, rtol=0, atol=1e-6)
    torch.testing.assert_close(bias.theta().detach(), theta, rtol=0, atol=1e-6)


# -- Theorem identif -------------------------------------------------------------------------------------------


def votes_of(pools, n_pairs: int = 5, seed: int = 0):
    """Every annotator of a pool judges every pair of that pool, each pair on two responses of its own.

    A pool without an attribute difference is given as a negative number of annotators.
    """
    rng = np.random.default_rng(seed)
    comparison, annotator, delta = [], [], []
    n_annotators = 0
    for pool in pools:
        for _ in range(n_pairs):
            pair = (max(comparison) + 1) if comparison else 0
            difference = 0 if pool < 0 else int(rng.choice([-1, 1]))
            for k in range(abs(pool)):
                comparison.append(pair)
                annotator.append(n_annotators + k)
                delta.append(difference)
        n_annotators += abs(pool)
    sign = rng.choice([-1.0, 1.0], len(comparison))
    return np.array(comparison), np.array(annotator), np.array(delta, dtype=float), sign


def full_loss(parameters, comparison, annotator, delta, sign):
    n_responses = 2 * (int(comparison.max()) + 1)
    reward, theta = parameters[:n_responses], parameters[n_responses:, None]
    u = reward[2 * comparison] - reward[2 * comparison + 1]
    return judgment_loss(u, bias_logit(theta[annotator], delta[:, None]), sign).sum()


@pytest.mark.parametrize(
    ("pools", "offsets"), [([3], 1), ([3, 2], 2), ([2, 2, 1], 3), ([3, -2], 3), ([-1, -1], 2)]
)
def test_the_loss_is_convex_with_the_theorems_null_space(pools, offsets):
    votes = votes_of(pools)
    comparison, annotator, delta, sign = (torch.from_numpy(x) for x in votes)
    n_comparisons, n_annotators = int(comparison.max()) + 1, int(annotator.max()) + 1
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        point = torch.randn(2 * n_comparisons + n_annotators, generator=generator, dtype=torch.float64)
        hessian = torch.autograd.functional.hessian(
            lambda x: full_loss(x, comparison, annotator, delta, sign), point
        )
        eigenvalues = torch.linalg.eigvalsh(hessian)
        assert eigenvalues.min() > -1e-12
        # c for every connected group of annotators, h for every compared pair
        assert int((eigenvalues < 1e-10).sum()) == offsets + n_comparisons
    assert free_directions(*votes[:3]).n_free == offsets
    components = annotator_components(*votes[:3])
    assert components.max() + 1 + (components < 0).sum() == offsets
