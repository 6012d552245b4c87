"""Log-probability of one token per row of logits, with no more memory than the logits take."""

from __future__ import annotations

import torch
from torch.autograd.function import once_differentiable


def picked_logps(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    r"""Log-probability of the target token of each row under the softmax of its logits, in fp32.

    .. math:: \ell_i = z_{i, t_i} - \log \sum_v \exp z_{iv}

    Equal to ``-cross_entropy(logits.float(), target, reduction="none")``, with one array of the size of the logits
    kept for the backward pass and turned into their gradient in place, where that keeps one and makes two more. A
    second backward pass through the same result therefore raises an error.

    Parameters
    ----------
    logits : tensor of shape (n, vocabulary)
    target : int64 tensor of shape (n,)

    Returns
    -------
    float32 tensor of shape (n,), in nats

    Examples
    --------
    >>> picked_logps(torch.zeros(2, 4), torch.tensor([0, 3])).exp()
    tensor([0.2500, 0.2500])
    """
    return _PickedLogps.apply(logits, target)


class _PickedLogps(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, target):
        logps = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
        ctx.save_for_backward(logps, target)
        ctx.dtype = logits.dtype
        return logps.gather(1, target[:, None])[:, 0]

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        logps, target = ctx.saved_tensors
        of_logits = logps.exp_().mul_(-gradient[:, None])
        of_logits.scatter_add_(1, target[:, None], gradient[:, None])
        return of_logits.to(ctx.dtype), None
