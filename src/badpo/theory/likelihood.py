r"""The likelihood of a judgment, given the policy's margin and the annotator's bias.

All differences are response a minus response b. The vote enters as a sign s, which is +1 if the annotator chose
response a and -1 if they chose response b:

.. math:: L_j = s_j (u_{c_j} + \theta_{k_j}^\top d_j), \qquad \ell_j = -\log \sigma(L_j)

The paper writes margins and biases from the winner's side: its u is s u here, and its b_k is s b here.
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
        Strength of the KL penalty. The margin includes beta, so no other function multiplies by beta again.

    Returns
    -------
    Tensor of shape (n_comparisons,)
        Positive if the policy has moved toward response a; zero if policy and reference are equal. Exchanging the two
        responses changes the sign and no other bit.

    References
    ----------
    BA-DPO, Eq. `shorthand`; the logits of Eq. `dpo_loss`.

    Examples
    --------
    The policy has 2 nats more than the reference on response a and 1 nat less on response b:

    >>> nats = [torch.tensor([value]) for value in (-10.0, -9.0, -12.0, -8.0)]
    >>> margin(*nats, beta=0.1)
    tensor([0.3000])
    """
    return beta * ((policy_a - reference_a) - (policy_b - reference_b))


def bias_logit(theta: Tensor, delta: Tensor) -> Tensor:
    r"""Contribution of the annotator's bias to the logit of choosing response a, in log-odds.

    .. math:: b_j = \theta_{k_j}^\top d_j, \qquad d_j = g(y_a) - g(y_b)

    Parameters
    ----------
    theta : Tensor of shape (n_judgments, n_attributes)
        The bias of each judgment's annotator, in log-odds per unit of the attribute.
    delta : Tensor of shape (n_judgments, n_attributes)
        Attribute difference of response a minus response b; zero for every attribute of a same-group comparison.

    Returns
    -------
    Tensor of shape (n_judgments,)
        Positive if the bias favours response a; zero if the two responses agree on every attribute.

    References
    ----------
    BA-DPO, Eq. `shorthand`; for several attributes the paragraph on multiple attributes.

    Examples
    --------
    >>> bias_logit(torch.tensor([[1.0, -0.5], [1.0, -0.5]]), torch.tensor([[1.0, 1.0], [-1.0, 0.0]]))
    tensor([ 0.5000, -1.0000])
    """
    return (theta * delta).sum(dim=-1)


def judgment_logit(margins: Tensor, bias_logits: Tensor, sign: Tensor) -> Tensor:
    r"""Log-odds of the vote that was cast, s (u + b), from the margin u, the bias b and the sign s.

    Parameters
    ----------
    margins : Tensor of shape (n_judgments,)
        Margin u of each judgment's comparison, response a over response b, including beta.
    bias_logits : Tensor of shape (n_judgments,)
        Bias logits b, response a over response b. Zeros give DPO.
    sign : Tensor of shape (n_judgments,)
        +1 if response a was chosen, -1 if response b was chosen.

    Returns
    -------
    Tensor of shape (n_judgments,)
        Positive if policy and bias together predict the vote.

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
    r"""Negative log-likelihood of each vote in the presence of annotator bias, in nats.

    .. math:: \ell_j = -\log \sigma\bigl(s_j (u_{c_j} + b_j)\bigr)

    Parameters
    ----------
    margins, bias_logits, sign : Tensor of shape (n_judgments,)
        As in `judgment_logit`. If all ``bias_logits`` are zero, the result is bit for bit the DPO loss.

    Returns
    -------
    Tensor of shape (n_judgments,)
        One loss for each judgment, so that an objective can weight the judgments; log 2 if u = b = 0.

    References
    ----------
    BA-DPO, Eq. `barp_dpo_loss`; Remark `rem:dpo_special`.

    Examples
    --------
    A vote in the direction of the bias has a smaller loss than the same vote without bias:

    >>> judgment_loss(torch.zeros(2), torch.tensor([0.0, 1.0]), torch.ones(2))
    tensor([0.6931, 0.3133])
    """
    return -F.logsigmoid(judgment_logit(margins, bias_logits, sign))


def gradient_weight(margins: Tensor, bias_logits: Tensor, sign: Tensor) -> Tensor:
    r"""Weight of a vote in the gradient, sigma(-s (u + b)), which is the probability of the opposite vote.

    With respect to the policy, the gradient of the loss is -beta times the vote's weight times the gradient of the
    winner's log-probability minus the loser's. The gradient with respect to theta is minus the vote's weight times s d.

    Parameters
    ----------
    margins, bias_logits, sign : Tensor of shape (n_judgments,)
        As in `judgment_logit`.

    Returns
    -------
    Tensor of shape (n_judgments,)
        Between 0 and 1; 0.5 if u = b = 0. The weight is below DPO's if the bias favours the winner, and above DPO's
        if the bias favours the loser.

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
    r"""IPO loss with bias: squared distance between each vote's bias-adjusted margin and IPO's target.

    .. math:: \ell_j = \left(\frac{s_j (u_{c_j} + b_j)}{\beta} - \frac{1}{2\beta}\right)^2

    Parameters
    ----------
    margins : Tensor of shape (n_judgments,)
        beta times the difference of the responses' mean log-ratios per token, response a minus response b.
    bias_logits : Tensor of shape (n_judgments,)
        Bias of response a over response b in the unit of the margins: reward per token, not log-odds. Zeros give IPO.
    sign : Tensor of shape (n_judgments,)
        +1 if response a was chosen, -1 if response b was chosen.
    beta : float
        Strength of the KL penalty.

    Returns
    -------
    Tensor of shape (n_judgments,)
        0 if margin and bias add up to 1/2 in the direction of the vote; ``1 / (4 beta**2)`` if u = b = 0.

    Examples
    --------
    >>> ipo_loss(torch.zeros(2), torch.tensor([0.0, 0.5]), torch.ones(2), beta=0.5)
    tensor([1., 0.])
    """
    return ((judgment_logit(margins, bias_logits, sign) - 0.5) / beta) ** 2
