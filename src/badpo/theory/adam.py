r"""How much slower Adam moves a parameter that only some steps have a gradient for."""

from __future__ import annotations

import math


def shared_speed(n_annotators: int, cross_per_step: float) -> float:
    r"""How many times further a step of Adam moves one shared theta than each of the annotators' own.

    .. math:: \frac{-\eta\,\sqrt{1}}{-\eta\,\sqrt{p}} = \sqrt{m / b}, \qquad p = b / m

    A coordinate whose gradient is g in a share p of the steps and 0 in the others moves at the rate
    :math:`\eta \sqrt{p}`: Adam's first moment is p g, and its second p g squared.

    Parameters
    ----------
    n_annotators : int
        m, who have equally many judgments.
    cross_per_step : float
        b, the cross-group judgments of an optimizer step: its judgments times the share of them that is cross-group.

    Returns
    -------
    float
        1 with as many cross-group judgments in a step as annotators, or more: everyone then has a gradient in about
        every step. An estimate that orders the two, not a prediction of where they stop.

    Raises
    ------
    ValueError
        No annotator, or no cross-group judgment.

    References
    ----------
    BA-DPO, Appendix `app:proof_rate`, "A rough estimate under Adam"; under gradient descent the factor is m (Prop.
    `rate`).

    Examples
    --------
    MultiPref: 227 annotators, 59 % of 32 judgments cross-group.

    >>> round(shared_speed(227, 0.59 * 32), 1)
    3.5
    """
    if n_annotators < 1 or not cross_per_step > 0:
        raise ValueError(
            f"a speed needs annotators and cross-group judgments; got {n_annotators} and {cross_per_step:g}"
        )
    return max(1.0, math.sqrt(n_annotators / cross_per_step))
