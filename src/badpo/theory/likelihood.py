r"""The likelihood of a judgment, given the policy's margin and the annotator's bias.

Everything is written in the a-minus-b orientation of the comparison. The vote enters as a sign s, +1 where the
annotator chose response a and -1 where they chose b:

.. math:: L_j = s_j (u_{c_j} + \theta_{k_j}^\top d_j), \qquad \ell_j = -\log \sigma(L_j)

With the winner's sign pulled out in this way, s u is the paper's u and s b is its b_k.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def margin(
    policy_a: Tensor,
    policy_b: Tensor,
    reference_a: Tensor,
    reference_b: Tensor,
    beta: float | Tensor,
) -> Tensor:
    r"""Implicit reward margin u of response a over response b, in nats.

    .. math:: u = \beta \left[\log\frac{\pi(y_a|x)}{\pi_{ref}(y_a|x)} - \log\frac{\pi(y_b|x)}{\pi_{ref}(y_b|x)}\right]

    Parameters
    ----------
    policy_a, policy_b, reference_a, reference_b : Tensor of shape (n_comparisons,)
        Log-probabilities of the whole response, summed over its tokens, in nats. Float64 sums keep the rounding of
        long responses out of the gradient.
    beta : float
        Strength of the KL penalty. Included in the margin, so every other function leaves it alone.

    Returns
    -------
    Tensor of shape (n_comparisons,)
        Positive when the policy has moved toward a, zero when policy and reference are equal. Exchanging the two
        responses changes the sign and nothing else, to the bit.

    References
    ----------
    BA-DPO, Eq. `shorthand`; the logits of Eq. `dpo_loss`.

    Examples
    --------
    The policy gained 2 nats on a and lost 1 on b:

    >>> nats = [torch.tensor([value]) for value in (-10.0, -9.0, -12.0, -8.0)]
    >>> margin(*nats, beta=0.1)
    tensor([0.3000])
    """
    return beta * ((policy_a - reference_a) - (policy_b - reference_b))


def bias_logit(theta: Tensor, delta: Tensor) -> Tensor:
    r"""What the annotator's bias adds to the logit of choosing response a, in log-odds.

    .. math:: b_j = \theta_{k_j}^\top d_j, \qquad d_j = g(y_a) - g(y_b)

    Parameters
    ----------
    theta : Tensor of shape (n_judgments, n_attributes)
        The bias of each judgment's annotator, in log-odds per unit of the attribute.
    delta : Tensor of shape (n_judgments, n_attributes)
        Attribute difference a minus b; all zero on a same-group comparison.

    Returns
    -------
    Tensor of shape (n_judgments,)
        Positive when the bias favours a; zero when the two responses agree on every attribute.

    References
    ----------
    BA-DPO, Eq. `shorthand`, and the paragraph on multiple attributes for vectors.

    Examples
    --------
    >>> bias_logit(torch.tensor([[1.0, -0.5], [1.0, -0.5]]), torch.tensor([[1.0, 1.0], [-1.0, 0.0]]))
    tensor([ 0.5000, -1.0000])
    """
    return (theta * delta).sum(dim=-1)


def judgment_logit(margins: Tensor, bias_logits: Tensor, sign: Tensor) -> Tensor:
    r"""Log-odds of the vote that was cast, s (u + b).

    Parameters
    ----------
    margins : Tensor of shape (n_judgments,)
        u of each judgment's comparison, a over b, beta included.
    bias_logits : Tensor of shape (n_judgments,)
        b, a over b. Zeros give DPO.
    sign : Tensor of shape (n_judgments,)
        +1 where a was chosen, -1 where b was.

    Returns
    -------
    Tensor of shape (n_judgments,)
        Positive when policy and bias together predict the vote.

    References
    ----------
    BA-DPO, Eq. `biased_bt`; Prop. `compat`.

    Examples
    --------
    >>> judgment_logit(torch.tensor([0.5, 0.5]), torch.tensor([1.0, 1.0]), torch.tensor([1.0, -1.0]))
    tensor([ 1.5000, -1.5000])
    """
    return sign * (margins + bias_logits)


def judgment_loss(margins: Tensor, bias_logits: Tensor, sign: Tensor) -> Tensor:
    r"""Negative log-likelihood of each vote when annotators carry a bias, in nats.

    .. math:: \ell_j = -\log \sigma\bigl(s_j (u_{c_j} + b_j)\bigr)

    Parameters
    ----------
    margins, bias_logits, sign : Tensor of shape (n_judgments,)
        As in `judgment_logit`. With ``bias_logits`` all zero this is the DPO loss, to the bit.

    Returns
    -------
    Tensor of shape (n_judgments,)
        Not reduced, so that an objective can weight the judgments. log 2 where u = b = 0.

    References
    ----------
    BA-DPO, Eq. `barp_dpo_loss`; Remark `rem:dpo_special`.

    Examples
    --------
    A vote that bias explains costs less than the same vote without it:

    >>> judgment_loss(torch.zeros(2), torch.tensor([0.0, 1.0]), torch.ones(2))
    tensor([0.6931, 0.3133])
    """
    return -F.logsigmoid(judgment_logit(margins, bias_logits, sign))


def gradient_weight(margins: Tensor, bias_logits: Tensor, sign: Tensor) -> Tensor:
    r"""How much a vote still teaches, sigma(-s (u + b)): the probability of the vote that was not cast.

    The gradient of the loss with respect to the policy is -beta times this weight times the gradient of the
    winner's minus the loser's log-probability; with respect to theta it is minus this weight times s d.

    Parameters
    ----------
    margins, bias_logits, sign : Tensor of shape (n_judgments,)
        As in `judgment_logit`.

    Returns
    -------
    Tensor of shape (n_judgments,)
        In (0, 1); 0.5 where u = b = 0; below DPO's weight where the bias favours the winner and above it where the
        winner was preferred against the bias.

    References
    ----------
    BA-DPO, Eqs. `grad_policy` and `grad_bias`.

    Examples
    --------
    >>> gradient_weight(torch.zeros(3), torch.tensor([0.0, 1.0, 1.0]), torch.tensor([1.0, 1.0, -1.0]))
    tensor([0.5000, 0.2689, 0.7311])
    """
    return torch.sigmoid(-judgment_logit(margins, bias_logits, sign))


def ipo_loss(margins: Tensor, bias_logits: Tensor, sign: Tensor, beta: float) -> Tensor:
    r"""Squared distance of each vote's bias-adjusted margin from IPO's target, with the bias in the margin's unit.

    .. math:: \ell_j = \left(\frac{s_j (u_{c_j} + b_j)}{\beta} - \frac{1}{2\beta}\right)^2

    Parameters
    ----------
    margins : Tensor of shape (n_judgments,)
        beta times the difference of the responses' mean log-ratios per token, a over b.
    bias_logits : Tensor of shape (n_judgments,)
        b, a over b, in the same unit: reward per token, not log-odds. Zeros give IPO.
    sign : Tensor of shape (n_judgments,)
        +1 where a was chosen, -1 where b was.
    beta : float
        Strength of the pull towards the reference.

    Returns
    -------
    Tensor of shape (n_judgments,)
        0 where the vote is explained by a margin of exactly 1/2; ``1 / (4 beta**2)`` where u = b = 0.

    Examples
    --------
    >>> ipo_loss(torch.zeros(2), torch.tensor([0.0, 0.5]), torch.ones(2), beta=0.5)
    tensor([1., 0.])
    """
    return ((judgment_logit(margins, bias_logits, sign) - 0.5) / beta) ** 2
