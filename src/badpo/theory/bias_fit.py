r"""Theta as the optimum of a loss, given the policy's margins: free functions of arrays.

Everything is in the a-minus-b orientation of `badpo.theory.likelihood`. The level is the part of theta that all
annotators share, one number for each attribute. A loss enters through its first two derivatives by the logit.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

# Standard deviation, in log-odds for the typical difference of an attribute, of the normal prior that keeps theta
# finite if every vote goes one way. It moves an estimate of 1 from 100 votes by less than 0.003.
PRIOR_SD = 5.0
NEWTON_STEPS, LARGEST_STEP, SETTLED = 50, 2.0, 1e-9
ROUNDS = 5  # of fitting the level beside the deviations, and the other way round

Slopes = Callable[[Tensor], tuple[Tensor, Tensor]]


def loss_slopes(losses: Callable[[Tensor, Tensor, Tensor], Tensor], sign: Tensor) -> Slopes:
    """First and second derivative of each judgment's loss by its logit, as a function of the logits.

    ``losses(margins, bias_logits, sign)`` is elementwise, as `badpo.theory.likelihood.judgment_loss`. A negative second
    derivative counts as 0, so that a loss that is not convex is not climbed.

    Examples
    --------
    >>> from badpo.theory.likelihood import judgment_loss
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
    """Precision of the weak prior of each attribute's theta, (q,): sd `PRIOR_SD` per typical nonzero difference."""
    n_cross = (delta != 0).sum(dim=0).clamp(min=1)
    return delta.square().sum(dim=0) / n_cross / PRIOR_SD**2 + torch.finfo(delta.dtype).tiny


def fit_level(
    slopes: Slopes, delta: Tensor, offset: Tensor, weight: Tensor, start: Tensor | None = None
) -> Tensor:
    r"""The level that fits the votes best beside known parts of their logits, by Newton's method.

    .. math:: \hat\theta = \arg\min_\theta \sum_j w_j\, \ell(o_j + \theta^\top d_j) + \tfrac12 \sum_i p_i \theta_i^2

    Parameters
    ----------
    slopes : callable
        `loss_slopes` of the votes.
    delta : Tensor of shape (n_judgments, n_attributes)
    offset, weight : Tensor of shape (n_judgments,)
    start : Tensor of shape (n_attributes,), or None for zero

    Returns
    -------
    Tensor of shape (n_attributes,)
        Finite for any votes, because of `prior_precision`.

    Examples
    --------
    Three of four votes for the side with the attribute:

    >>> from badpo.theory.likelihood import judgment_loss
    >>> sign, delta = torch.tensor([1.0, 1, 1, -1] * 500).double(), torch.ones(2000, 1).double()
    >>> fit_level(loss_slopes(judgment_loss, sign), delta, 0 * sign, sign**2).item()  # log 3 is 1.0986
    1.09849...
    """
    precision = prior_precision(delta)
    scale = (precision * PRIOR_SD**2).sqrt()  # a step in these units is one in log-odds
    level = torch.zeros(delta.shape[1], dtype=delta.dtype) if start is None else start.clone()
    for _ in range(NEWTON_STEPS):
        first, second = slopes(offset + delta @ level)
        gradient = delta.T @ (weight * first) + precision * level
        curvature = delta.T @ ((weight * second)[:, None] * delta) + torch.diag(precision)
        step = torch.linalg.solve(curvature, gradient)
        size = (step * scale).abs().max()
        level = level - step * (LARGEST_STEP / size).clamp(max=1.0)
        if size < SETTLED:
            break
    return level


def project_on(delta: Tensor, margins: Tensor, weight: Tensor) -> Tensor:
    r"""The policy's tilt: least-squares coefficients of the margins on the attribute differences, (n_attributes,).

    With one attribute that is +1, 0 or -1 it is the mean margin toward the attribute on cross-group judgments.

    Examples
    --------
    >>> project_on(torch.tensor([[1.0], [-1.0], [0.0]]), torch.tensor([0.5, -0.3, 9.0]), torch.ones(3))
    tensor([0.4000])
    """
    weighed = weight[:, None] * delta
    square = weighed.T @ delta
    # attributes that only move together share a coefficient
    return torch.linalg.lstsq(square, weighed.T @ margins, driver="gelsd").solution


def level_growth(
    slopes: Slopes, design: Tensor, offset: Tensor, weight: Tensor, quality: Tensor
) -> Tensor:
    r"""How much the level grows because of the quality that the policy has learned, one number for each column.

    .. math:: \hat\theta(o + q) - \hat\theta(o)

    with :math:`\hat\theta` the optimum of `fit_level`. The bias that the votes show without the quality is attenuated,
    and less so beside the part of it that the margins explain. Both optima are of the same votes, whose noise cancels
    in the difference.

    Examples
    --------
    >>> from badpo.theory.likelihood import judgment_loss
    >>> sign, design = torch.tensor([1.0, 1, 1, -1]).double(), torch.ones(4, 1).double()
    >>> votes = loss_slopes(judgment_loss, sign), design, 0 * sign, sign**2
    >>> level_growth(*votes, torch.tensor([1.0, -1, 1, -1]).double()).item()
    0.229...
    """
    plain = fit_level(slopes, design, offset, weight)
    return fit_level(slopes, design, offset + quality, weight, plain) - plain


def shrunk_offsets(
    slopes: Slopes, delta: Tensor, offset: Tensor, weight: Tensor, group: Tensor, n_groups: int
) -> Tensor:
    r"""How far each group's theta is from the common one, shrunk by a variance that the votes reveal, (n_groups, q).

    With the score :math:`g_k` and the information :math:`H_k` of each group's votes at the common theta, which
    ``offset`` contains,

    .. math:: \hat\tau^2 = \max\Bigl(0, \frac{\sum_k g_k^2 / H_k - (n - 1)}{\sum_k H_k}\Bigr), \qquad
        \hat d_k = \bigl(H_k + \operatorname{diag} \hat\tau^{-2}\bigr)^{-1} g_k

    by attribute, over the n groups with information. A group with two votes, or with votes that all go one way, stays
    near the others: nothing is divided by its own information alone. ``group`` is -1 for votes of nobody known.

    Examples
    --------
    Votes that differ between two groups no more than chance lets them:

    >>> from badpo.theory.likelihood import judgment_loss
    >>> sign = torch.tensor([1.0, -1, 1, -1]).double()
    >>> votes = loss_slopes(judgment_loss, sign), torch.ones(4, 1).double(), 0 * sign, sign**2
    >>> shrunk_offsets(*votes, torch.tensor([0, 0, 1, 1]), 2).flatten().tolist()
    [0.0, 0.0]
    """
    first, second = slopes(offset)
    known = group >= 0
    of, d = group[known], delta[known]
    score = torch.zeros(n_groups, d.shape[1], dtype=d.dtype)
    score.index_add_(0, of, -(weight * first)[known][:, None] * d)
    information = torch.zeros(n_groups, d.shape[1], d.shape[1], dtype=d.dtype)
    information.index_add_(
        0, of, (weight * second)[known][:, None, None] * d[:, :, None] * d[:, None, :]
    )
    own = information.diagonal(dim1=1, dim2=2)
    is_told = own > torch.finfo(d.dtype).eps * own.sum(dim=0)
    spread = torch.where(is_told, score.square() / own, 0.0).sum(dim=0) - (is_told.sum(dim=0) - 1)
    variance = spread.clamp(min=0.0) / own.sum(dim=0).clamp(min=torch.finfo(d.dtype).tiny)
    # (H + 1 / tau^2)^-1 g in a form that is 0 at tau = 0: (tau^2 H + 1)^-1 tau^2 g
    matrix = variance[:, None] * information + torch.eye(d.shape[1], dtype=d.dtype)
    return torch.linalg.solve(matrix, variance * score)


def fit_theta(
    slopes: Slopes,
    design: Tensor,
    delta: Tensor,
    weight: Tensor,
    groups: Sequence[Tensor],
) -> tuple[Tensor, list[Tensor]]:
    """The level and, for each division of the votes, the offsets of its groups from it, for margins of zero.

    ``design`` has the columns of the level, `fit_level`. Each of ``groups`` numbers the group of every vote, -1 for
    none, from the coarsest division to the finest; the offsets, (n_groups, n_attributes), multiply ``delta`` and are
    shrunk beside those of the other divisions (`shrunk_offsets`).
    """
    sizes = [int(group.max()) + 1 for group in groups]
    offsets = [torch.zeros(size, delta.shape[1], dtype=delta.dtype) for size in sizes]
    level = torch.zeros(design.shape[1], dtype=delta.dtype)

    def logits(left_out: int | None = None) -> Tensor:
        parts = [
            ((group >= 0).to(delta)[:, None] * offset[group] * delta).sum(dim=1)
            for i, (group, offset) in enumerate(zip(groups, offsets, strict=True))
            if i != left_out
        ]
        return sum(parts, torch.zeros_like(weight))

    for _ in range(ROUNDS if groups else 1):
        level = fit_level(slopes, design, logits(), weight, level)
        for i, group in enumerate(groups):
            beside = design @ level + logits(left_out=i)
            offsets[i] = shrunk_offsets(slopes, delta, beside, weight, group, sizes[i])
    return level, offsets
