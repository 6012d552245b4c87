r"""Likelihood of a judgment for a given margin and bias, and functions that fit theta to votes.

All differences are response a minus response b. The sign s of a vote is +1 if the annotator chose response a and -1 if
the annotator chose response b:

.. math:: L_j = s_j (u_{c_j} + \theta_{k_j}^\top d_j), \qquad \ell_j = -\log \sigma(L_j)

In the paper, margins and biases are differences of winner minus loser: the paper's u is s u here, and b_k is s b.

The functions that fit theta need only the first and second derivative of the loss with respect to the logit. The shared
bias is the part of theta that all annotators share, with one number for each attribute.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike
from torch import Tensor

from badpo.theory.summaries import Interval, interval_from_influence


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
        Log-probability of each whole response, summed over its tokens, in nats. With float64 sums, the rounding of long
        responses does not affect the gradient.
    beta : float
        Strength of the KL penalty. The margin includes beta, so no other function multiplies by beta.

    Returns
    -------
    Tensor of shape (n_comparisons,)
        Positive if the policy has moved toward response a; zero if policy and reference are equal. If the two responses
        are exchanged, only the sign changes.

    References
    ----------
    BA-DPO, Eq. `shorthand`; the logits of Eq. `dpo_loss`.

    Examples
    --------
    The policy's log-probability is 2 nats above the reference for response a and 1 nat below it for response b:

    >>> nats = [torch.tensor([value]) for value in (-10.0, -9.0, -12.0, -8.0)]
    >>> margin(*nats, beta=0.1)
    tensor([0.3000])
    """
    return beta * ((policy_a - reference_a) - (policy_b - reference_b))


def bias_logit(theta: Tensor, delta: Tensor) -> Tensor:
    r"""Contribution of the annotator's bias to the logit of a vote for response a, in log-odds.

    .. math:: b_j = \theta_{k_j}^\top d_j, \qquad d_j = g(y_a) - g(y_b)

    Parameters
    ----------
    theta : Tensor of shape (n_judgments, n_attributes)
        Bias of the annotator of each judgment, in log-odds per unit of the attribute.
    delta : Tensor of shape (n_judgments, n_attributes)
        Attribute difference of response a minus response b; zero for every attribute of a same-group comparison.

    Returns
    -------
    Tensor of shape (n_judgments,)
        Positive if the bias favors response a; zero if the two responses do not differ in any attribute.

    References
    ----------
    BA-DPO, Eq. `shorthand`; for several attributes, the paragraph on multiple attributes.

    Examples
    --------
    >>> bias_logit(torch.tensor([[1.0, -0.5], [1.0, -0.5]]), torch.tensor([[1.0, 1.0], [-1.0, 0.0]]))
    tensor([ 0.5000, -1.0000])
    """
    return (theta * delta).sum(dim=-1)


def judgment_logit(margins: Tensor, bias_logits: Tensor, sign: Tensor) -> Tensor:
    r"""Log-odds of the vote that was cast: s (u + b), with the margin u, the bias b and the sign s.

    Parameters
    ----------
    margins : Tensor of shape (n_judgments,)
        Margin u of response a over response b for each judgment, including beta.
    bias_logits : Tensor of shape (n_judgments,)
        Bias logit b of response a over response b. With zeros, the result is that of DPO.
    sign : Tensor of shape (n_judgments,)
        +1 if response a was chosen, -1 if response b was chosen.

    Returns
    -------
    Tensor of shape (n_judgments,)
        Positive if the policy and the bias together predict the vote.

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
    r"""Negative log-likelihood of each vote, given the annotator's bias, in nats.

    .. math:: \ell_j = -\log \sigma\bigl(s_j (u_{c_j} + b_j)\bigr)

    Parameters
    ----------
    margins, bias_logits, sign : Tensor of shape (n_judgments,)
        As in `judgment_logit`. If all ``bias_logits`` are zero, the result equals the DPO loss bit for bit.

    Returns
    -------
    Tensor of shape (n_judgments,)
        One loss for each judgment, so that objectives can weight judgments; log 2 if u = b = 0.

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
    r"""Weight of a vote in the gradient: the probability of the opposite vote, sigma(-s (u + b)).

    The gradient of the loss with respect to the policy is -beta times the weight of the vote times the gradient of the
    difference in log-probability between winner and loser. The gradient with respect to theta is minus the weight of
    the vote times s d.

    Parameters
    ----------
    margins, bias_logits, sign : Tensor of shape (n_judgments,)
        As in `judgment_logit`.

    Returns
    -------
    Tensor of shape (n_judgments,)
        Between 0 and 1; 0.5 if u = b = 0. The weight is lower than in DPO if the bias favors the winner, and higher
        than in DPO if the bias favors the loser.

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
    r"""IPO loss with bias: squared distance between the bias-adjusted margin of each vote and the target of IPO.

    .. math:: \ell_j = \left(\frac{s_j (u_{c_j} + b_j)}{\beta} - \frac{1}{2\beta}\right)^2

    Parameters
    ----------
    margins : Tensor of shape (n_judgments,)
        beta times the difference in the mean log-ratio per token, response a minus response b.
    bias_logits : Tensor of shape (n_judgments,)
        Bias toward response a, in the unit of the margins: reward per token, not log-odds. With zeros, the loss is that
        of IPO.
    sign : Tensor of shape (n_judgments,)
        +1 if response a was chosen, -1 if response b was chosen.
    beta : float
        Strength of the KL penalty.

    Returns
    -------
    Tensor of shape (n_judgments,)
        0 if the sum of margin and bias is 1/2 in the direction of the vote; ``1 / (4 beta**2)`` if u = b = 0.

    Examples
    --------
    >>> ipo_loss(torch.zeros(2), torch.tensor([0.0, 0.5]), torch.ones(2), beta=0.5)
    tensor([1., 0.])
    """
    return ((judgment_logit(margins, bias_logits, sign) - 0.5) / beta) ** 2


# -- fit of theta --------------------------------------------------------------------------------------------

# Standard deviation of the weak normal prior for theta, in log-odds for a typical difference in an attribute.
# The prior keeps theta finite if all votes are for the same side.
# For example, the prior shrinks an estimate of 1.0 that is based on 100 votes by less than 0.003.
PRIOR_SD = 5.0
# Newton's method takes at most NEWTON_STEPS steps, each of LARGEST_STEP log-odds or less.
# The method ends when a step is shorter than SETTLED.
NEWTON_STEPS, LARGEST_STEP, SETTLED = 50, 2.0, 1e-9
# Number of alternations between fitting the shared bias and fitting the group offsets.
ROUNDS = 5

Slopes = Callable[[Tensor], tuple[Tensor, Tensor]]


def loss_slopes(losses: Callable[[Tensor, Tensor, Tensor], Tensor], sign: Tensor) -> Slopes:
    """Return a function that maps logits to the first and second derivatives of the losses of all judgments.

    ``losses(margins, bias_logits, sign)`` is elementwise, like `badpo.theory.likelihood.judgment_loss`. The function
    replaces negative second derivatives with 0, so that Newton steps are descent directions even if the loss is not
    convex.

    Examples
    --------
    >>> first, second = loss_slopes(judgment_loss, torch.ones(1))(torch.zeros(1, dtype=torch.float64))
    >>> first.item(), second.item()
    (-0.5, 0.25)
    """

    def slopes(logits: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            x = logits.detach().requires_grad_()
            (first,) = torch.autograd.grad(
                losses(torch.zeros_like(x), x, sign).sum(), x, create_graph=True
            )
            (second,) = torch.autograd.grad(first.sum(), x)
        return first.detach(), second.clamp(min=0.0)

    return slopes


def prior_precision(delta: Tensor) -> Tensor:
    """Return the precision of the weak prior of theta for each attribute, with shape (n_attributes,).

    The prior standard deviation is `PRIOR_SD` divided by the root mean square of the attribute's nonzero differences.
    """
    n_cross = (delta != 0).sum(dim=0).clamp(min=1)
    return delta.square().sum(dim=0) / n_cross / PRIOR_SD**2 + torch.finfo(delta.dtype).tiny


def fit_shared_bias(
    slopes: Slopes, delta: Tensor, offset: Tensor, weight: Tensor, start: Tensor | None = None
) -> Tensor:
    r"""Fit the shared bias by Newton's method, given offsets of the logits.

    .. math:: \hat\theta = \arg\min_\theta \sum_j w_j\, \ell(o_j + \theta^\top d_j) + \tfrac12 \sum_i p_i \theta_i^2

    Parameters
    ----------
    slopes : callable
        Result of `loss_slopes` for the votes.
    delta : Tensor of shape (n_judgments, n_attributes)
    offset, weight : Tensor of shape (n_judgments,)
    start : Tensor of shape (n_attributes,), or None for zero

    Returns
    -------
    Tensor of shape (n_attributes,)
        Finite for any votes, because of the prior (`prior_precision`).

    Examples
    --------
    Three of four votes are for the response with the attribute:

    >>> sign, delta = torch.tensor([1.0, 1, 1, -1] * 500).double(), torch.ones(2000, 1).double()
    >>> fit_shared_bias(loss_slopes(judgment_loss, sign), delta, 0 * sign, sign**2).item()  # log 3 is 1.0986
    1.09849...
    """
    precision = prior_precision(delta)
    scale = (precision * PRIOR_SD**2).sqrt()  # converts a step to log-odds
    shared_bias = torch.zeros(delta.shape[1], dtype=delta.dtype) if start is None else start.clone()
    for _ in range(NEWTON_STEPS):
        first, second = slopes(offset + delta @ shared_bias)
        gradient = delta.T @ (weight * first) + precision * shared_bias
        curvature = delta.T @ ((weight * second)[:, None] * delta) + torch.diag(precision)
        step = torch.linalg.solve(curvature, gradient)
        size = (step * scale).abs().max()
        shared_bias = shared_bias - step * (LARGEST_STEP / size).clamp(max=1.0)
        if size < SETTLED:
            break
    return shared_bias


def shared_bias_intervals(
    slopes: Slopes,
    delta: Tensor,
    logits: Tensor,
    weight: Tensor,
    shared_bias: Sequence[float],
    clusters: ArrayLike,
) -> list[Interval]:
    r"""Shared bias with 95 % confidence intervals, clustered by ``clusters`` (the prompt of each vote).

    .. math:: \hat\theta - \theta \approx -\Bigl(\sum_j w_j \ell''_j d_j d_j^\top + \operatorname{diag} p\Bigr)^{-1}
        \sum_j w_j \ell'_j d_j

    ``logits`` are the logits of the votes at the optimum, including the shared bias.

    Examples
    --------
    Three of four votes are for the attribute; the usual standard error of the log-odds is sqrt(1/300 + 1/100) = 0.115:

    >>> sign, delta = torch.tensor([1.0, 1, 1, -1] * 100).double(), torch.ones(400, 1).double()
    >>> logits = torch.full((400,), 1.0986).double()
    >>> slopes = loss_slopes(judgment_loss, sign)
    >>> (interval,) = shared_bias_intervals(slopes, delta, logits, sign**2, [1.0986], range(400))
    >>> round(interval.se, 3)
    0.116
    """
    first, second = slopes(logits)
    curvature = delta.T @ ((weight * second)[:, None] * delta) + torch.diag(prior_precision(delta))
    influence = torch.linalg.solve(curvature, -(weight * first)[:, None].mul(delta).T).numpy()
    return [
        interval_from_influence(value, row, clusters)
        for value, row in zip(shared_bias, influence, strict=True)
    ]


def project_on(delta: Tensor, margins: Tensor, weight: Tensor) -> Tensor:
    r"""Compute the policy's tilt: the least-squares coefficients of the margins on the attribute differences.

    The result has the shape (n_attributes,). For a single attribute with differences of +1, 0 or -1, the tilt is the
    mean margin toward the attribute on cross-group judgments.

    Examples
    --------
    >>> project_on(torch.tensor([[1.0], [-1.0], [0.0]]), torch.tensor([0.5, -0.3, 9.0]), torch.ones(3))
    tensor([0.4000])
    """
    weighed = weight[:, None] * delta
    square = weighed.T @ delta
    # collinear attributes get equal shares of their common coefficient
    return torch.linalg.lstsq(square, weighed.T @ margins, driver="gelsd").solution


def shared_bias_growth(
    slopes: Slopes, design: Tensor, offset: Tensor, weight: Tensor, quality: Tensor
) -> Tensor:
    r"""Change in the estimated shared bias if the quality that the policy has learned is added to the logits.

    The result contains one entry for each column of ``design``:

    .. math:: \hat\theta(o + q) - \hat\theta(o)

    Here :math:`\hat\theta` is the optimum of `fit_shared_bias`. An estimate of the bias that ignores quality is
    attenuated, and the attenuation decreases as the margins explain more of the quality. Both optima use the same
    votes, so the noise of the votes cancels out in the difference.

    Examples
    --------
    >>> sign, design = torch.tensor([1.0, 1, 1, -1]).double(), torch.ones(4, 1).double()
    >>> votes = loss_slopes(judgment_loss, sign), design, 0 * sign, sign**2
    >>> shared_bias_growth(*votes, torch.tensor([1.0, -1, 1, -1]).double()).item()
    0.229...
    """
    before = fit_shared_bias(slopes, design, offset, weight)
    return fit_shared_bias(slopes, design, offset + quality, weight, before) - before


def shrink_offsets(
    slopes: Slopes, delta: Tensor, offset: Tensor, weight: Tensor, group: Tensor, n_groups: int
) -> Tensor:
    r"""Deviation of each group's theta from the common theta, shrunk with an estimated between-group variance.

    The result has the shape (n_groups, q). ``offset`` contains the logits at the common theta. In the formulas,
    :math:`g_k` is the score and :math:`H_k` is the information of the votes of group k, both at the common theta.

    .. math:: \hat\tau^2 = \max\Bigl(0, \frac{\sum_k g_k^2 / H_k - (n - 1)}{\sum_k H_k}\Bigr), \qquad
        \hat d_k = \arg\min_d \sum_{j \in k} w_j\, \ell(o_j + d^\top \delta_j)
        + \tfrac12 \sum_i d_i^2 / \hat\tau_i^2

    The variance for each attribute is estimated from the n groups with information. A group with only two votes, or
    with votes for only one side, stays near the common theta. ``group`` is -1 for votes without a group.

    Examples
    --------
    The votes of two groups do not differ more than expected by chance:

    >>> sign = torch.tensor([1.0, -1, 1, -1]).double()
    >>> votes = loss_slopes(judgment_loss, sign), torch.ones(4, 1).double(), 0 * sign, sign**2
    >>> shrink_offsets(*votes, torch.tensor([0, 0, 1, 1]), 2).flatten().tolist()
    [0.0, 0.0]
    """
    known = group >= 0
    group_of, d, w = group[known], delta[known], weight[known]
    scale = prior_precision(delta).sqrt() * PRIOR_SD  # converts a step to log-odds
    offsets = torch.zeros(n_groups, d.shape[1], dtype=d.dtype)
    variance = None
    for _ in range(NEWTON_STEPS):
        deviation = torch.zeros_like(offset)
        deviation[known] = (offsets[group_of] * d).sum(dim=1)
        first, second = slopes(offset + deviation)
        score = torch.zeros_like(offsets).index_add_(0, group_of, -(w * first[known])[:, None] * d)
        information = torch.zeros(n_groups, d.shape[1], d.shape[1], dtype=d.dtype).index_add_(
            0, group_of, (w * second[known])[:, None, None] * d[:, :, None] * d[:, None, :]
        )
        if variance is None:
            variance = _between_group_variance(score, information)
        # (tau^2 H + 1)^-1 (tau^2 g - d) equals (H + 1 / tau^2)^-1 (g - d / tau^2) and is also defined at tau = 0
        matrix = variance[:, None] * information + torch.eye(d.shape[1], dtype=d.dtype)
        step = torch.linalg.solve(matrix, variance * score - offsets)
        size = (step * scale).abs().amax(dim=1, keepdim=True)
        offsets = offsets + step * (LARGEST_STEP / size).clamp(max=1.0)
        if size.max() < SETTLED:
            break
    return offsets


def _between_group_variance(score: Tensor, information: Tensor) -> Tensor:
    """Moment estimate of the between-group variance of theta, from scores and information at the common theta."""
    own = information.diagonal(dim1=1, dim2=2)
    has_votes = own > torch.finfo(own.dtype).eps * own.sum(dim=0)
    excess = torch.where(has_votes, score.square() / own, 0.0).sum(dim=0) - (has_votes.sum(dim=0) - 1)
    return excess.clamp(min=0.0) / own.sum(dim=0).clamp(min=torch.finfo(own.dtype).tiny)


def fit_theta(
    slopes: Slopes,
    design: Tensor,
    delta: Tensor,
    weight: Tensor,
    groups: Sequence[Tensor],
) -> tuple[Tensor, list[Tensor]]:
    """Fit the shared bias, and the offsets of groups from the shared bias, for margins of zero.

    ``design`` contains the columns of the shared bias (`fit_shared_bias`), starting with the columns of the attributes.
    ``groups`` contains one tensor for each grouping of the votes, from the coarsest to the finest grouping. The tensor
    contains the group number of every vote, or -1 for a vote without a group. The offsets of a grouping have the shape
    (n_groups, n_attributes) and multiply ``delta``. Each grouping is shrunk given the offsets of the other groupings
    (`shrink_offsets`).

    The shared bias is fitted last. The gradient of the loss along each attribute is then zero over all votes, apart
    from the weak prior, so a policy that equals the reference is not pushed toward any attribute.
    """
    q = delta.shape[1]
    sizes = [int(group.max()) + 1 for group in groups]
    offsets = [torch.zeros(size, q, dtype=delta.dtype) for size in sizes]
    shared_bias = torch.zeros(design.shape[1], dtype=delta.dtype)

    def logits(left_out: int | None = None) -> Tensor:
        parts = [
            ((group >= 0).to(delta)[:, None] * offset[group] * delta).sum(dim=1)
            for i, (group, offset) in enumerate(zip(groups, offsets, strict=True))
            if i != left_out
        ]
        return sum(parts, torch.zeros_like(weight))

    for _ in range(ROUNDS if groups else 0):
        shared_bias = fit_shared_bias(slopes, design, logits(), weight, shared_bias)
        for i, group in enumerate(groups):
            others = design @ shared_bias + logits(left_out=i)
            offsets[i] = shrink_offsets(slopes, delta, others, weight, group, sizes[i])
            # The mean offset of the groups belongs to the shared bias, because the prior applies only to group offsets.
            common = offsets[i][group[group >= 0].unique()].mean(dim=0)
            offsets[i] = offsets[i] - common
            shared_bias[:q] += common
    return fit_shared_bias(slopes, design, logits(), weight, shared_bias), offsets
