r"""Tilt a policy so that the rate of an attribute equals a target.

The votes leave one number free for each attribute. The probabilities of all votes stay the same if a number c is added
to the margin of every response with the attribute and subtracted from every annotator's bias. The tilted policy is

.. math:: \pi_c(y \mid x) \propto \pi(y \mid x) \exp(c^\top g(y) / \beta)

The `tilt` c has the unit of the margin, which includes beta. The `shift` s = c / beta is in log-odds. A `rate` is the
probability of choices with the attribute, averaged over prompts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq, root
from scipy.special import logit, softmax

from badpo.theory import Floats

# A rate this close to 0 or 1 cannot be tilted, because tilting would amplify rounding errors.
NEVER = 1e-9
# The search for shifts ends when the difference between every rate and its target is below this value.
RATE_TOLERANCE = 1e-10
SHOW_IT = "anchor a policy that sometimes produces the attribute, or use prompts that ask for the attribute (--prompts)"
# Shifts count as equal if the sum of their squared distances from the mean is below this value.
_SAME = 1e-20


@dataclass(frozen=True)
class CalibrationLine:
    """Line that predicts the achieved shift of a training stage from the intended shift, in log-odds.

    Attributes
    ----------
    slope, intercept : float
        achieved = slope * intended + intercept. The intercept is a deficit, with the opposite sign of the shifts, so a
        line is valid for shifts in one direction only.
    """

    slope: float
    intercept: float

    def intended_for(self, achieved: float) -> float:
        """Compute the intended shift for a given achieved shift.

        Examples
        --------
        >>> round(CalibrationLine(slope=0.888, intercept=0.777).intended_for(-3.39), 3)
        -4.693
        """
        return (achieved - self.intercept) / self.slope


def tilted_probabilities(log_probs: ArrayLike, carries: ArrayLike, shift: ArrayLike) -> Floats:
    r"""Probability of every choice under the tilted policy.

    .. math:: \pi_s(y \mid x) = \frac{\pi(y \mid x) \exp(s^\top g_y)}{\sum_{y'} \pi(y' \mid x) \exp(s^\top g_{y'})}

    Parameters
    ----------
    log_probs : array of shape (n_prompts, n_choices)
        Log-probabilities in nats, up to an additive constant for each prompt; -inf for a choice that the prompt does
        not offer.
    carries : array of shape (n_choices, n_attributes)
        1 if the choice has the attribute, else 0. For one attribute, the shape may be ``(n_choices,)``.
    shift : array of shape (n_attributes,)
        Shifts in log-odds.

    Returns
    -------
    array of shape (n_prompts, n_choices)
        Each row sums to 1.

    References
    ----------
    BA-DPO, Corollary `cor:anchor`.

    Examples
    --------
    The log-odds of the two choices change by exactly the shift:

    >>> tilted_probabilities(np.log([[0.9, 0.1]]), [1, 0], -np.log(9)).round(3)
    array([[0.5, 0.5]])
    """
    logs, indicator = _validate_choices(log_probs, carries)
    return np.asarray(softmax(logs + indicator @ np.atleast_1d(shift), axis=1))


def tilted_rates(log_probs: ArrayLike, carries: ArrayLike, shift: ArrayLike) -> Floats:
    """Rate of each attribute under the tilted policy: the probability of the attribute, averaged over prompts.

    References
    ----------
    BA-DPO, Appendix `app:anchor_target`.

    Examples
    --------
    >>> tilted_rates(np.log([[0.9, 0.1], [0.5, 0.5]]), [1, 0], 0.0)
    array([0.7])
    """
    _, indicator = _validate_choices(log_probs, carries)
    return np.asarray((tilted_probabilities(log_probs, carries, shift) @ indicator).mean(axis=0))


def shift_to_targets(
    log_probs: ArrayLike, carries: ArrayLike, targets: ArrayLike, attributes: Sequence[str] = ()
) -> Floats:
    r"""Compute the shifts with which the rates of all attributes equal their targets.

    The shifts minimize a convex function, whose gradient is the difference between the rates and the targets:

    .. math:: \frac{1}{n} \sum_x \log \sum_y \pi(y \mid x) \exp(s^\top g_y) - s^\top t

    Parameters
    ----------
    log_probs, carries
        As in `tilted_probabilities`. A choice with several attributes is shifted by the sum of their shifts.
    targets : array of shape (n_attributes,)
        Target rates, strictly between 0 and 1.
    attributes : sequence of str
        Names for error messages; by default, the attributes are numbered.

    Returns
    -------
    array of shape (n_attributes,)
        Shift s in log-odds, which is negative if the attribute becomes rarer. The tilt is beta times the shift. A
        training stage teaches this tilt with a fixed offset of -beta times the shift.

    References
    ----------
    BA-DPO, Appendix `app:anchor_target`: "the target is reached at exactly one value".

    Examples
    --------
    The choices are four names with two attributes. Each shift changes both rates, but both rates reach their targets:

    >>> names = np.log([[0.6, 0.3, 0.05, 0.05]]), [[1, 1], [1, 0], [0, 1], [0, 0]]
    >>> tilted_rates(*names, shift_to_targets(*names, [0.5, 0.4])).round(6)
    array([0.5, 0.4])
    """
    logs, indicator = _validate_choices(log_probs, carries, attributes)
    wanted = np.atleast_1d(np.asarray(targets, float))
    names = list(attributes) or [f"attribute {i}" for i in range(len(wanted))]
    before = tilted_rates(logs, indicator, np.zeros(len(wanted)))
    for i, name in enumerate(names):
        _check_reachable(name, wanted[i], before[i], logs, indicator[:, i])

    def missing(shift: ArrayLike) -> Floats:
        return np.asarray(tilted_rates(logs, indicator, shift) - wanted)

    def slope(shift: Floats) -> Floats:
        probabilities = tilted_probabilities(logs, indicator, shift)
        rates = probabilities @ indicator
        pairs = indicator.T @ (probabilities.mean(axis=0)[:, None] * indicator)
        return np.asarray(pairs - rates.T @ rates / len(rates))

    if len(wanted) == 1:
        reach = 1.0
        while missing(-reach) > 0 or missing(reach) < 0:
            reach *= 2
        return np.array([brentq(lambda shift: float(missing(shift)[0]), -reach, reach, xtol=1e-14)])
    # the initial value is exact if all prompts have the same log-odds and the attributes are independent
    solution = root(missing, logit(wanted) - logit(before), jac=slope, tol=1e-12)
    if np.abs(solution.fun).max() < RATE_TOLERANCE:
        return np.asarray(solution.x)
    raise ValueError(
        f"the targets of {', '.join(names)} cannot be reached together: no reweighting of these choices reaches "
        f"{wanted.tolist()}; choose targets that a single policy over these choices can reach"
    )


def fit_calibration(intended: ArrayLike, achieved: ArrayLike) -> CalibrationLine:
    """Fit a least-squares line that predicts the achieved shifts of an attribute from the intended shifts.

    References
    ----------
    BA-DPO, Appendix `app:anchor_experiment`, paragraph "Calibration".

    Examples
    --------
    The paper's three offsets for gender make the attribute rarer:

    >>> line = fit_calibration([-3.39, -4.42, -5.13], [-2.24, -3.13, -3.79])
    >>> round(line.slope, 2), round(line.intercept, 2)
    (0.89, 0.78)
    >>> fit_calibration([-3.39], [-2.24])
    CalibrationLine(slope=1.0, intercept=1.15)
    """
    x, y = np.asarray(intended, float), np.asarray(achieved, float)
    centered = x - x.mean()
    squares = float(centered @ centered)
    slope = 1.0 if squares < _SAME else float(centered @ y) / squares
    if slope <= 0:
        raise ValueError(
            f"achieved shifts do not increase with intended shifts (slope {slope:.3g} over {len(x)} rounds); "
            "train with intended shifts that differ more, or train longer"
        )
    return CalibrationLine(slope, float(y.mean() - slope * x.mean()))


def _validate_choices(
    log_probs: ArrayLike, carries: ArrayLike, attributes: Sequence[str] = ()
) -> tuple[Floats, Floats]:
    """Convert log-probabilities and attribute indicators to arrays; raise `ValueError` if the values are invalid."""
    logs, indicator = np.asarray(log_probs, float), np.asarray(carries, float)
    indicator = indicator[:, None] if indicator.ndim == 1 else indicator
    broken = np.isnan(logs) | (logs == np.inf)
    bad = broken.any(axis=1) | np.isneginf(logs).all(axis=1)
    if bad.any():
        prefix = f"{', '.join(attributes)}: " if len(attributes) else ""
        raise ValueError(
            f"{prefix}prompt {int(np.argmax(bad))} has a log-probability that is NaN or +inf, or offers no choice "
            f"({int(bad.sum())} of {len(bad)} prompts); {SHOW_IT}"
        )
    return logs, indicator


def _check_reachable(name: str, target: float, rate: float, logs: Floats, carrying: Floats) -> None:
    """Raise `ValueError` if no shift of the policy brings the attribute's rate to the target."""
    if not 0 < target < 1:
        raise ValueError(f"{name}: the target {target:g} must lie strictly between 0 and 1")
    if rate < NEVER or rate > 1 - NEVER:
        how = "never" if rate < NEVER else "always"
        raise ValueError(
            f"{name}: the policy {how} produces the attribute (rate {rate:.3g}), so the rate cannot change; {SHOW_IT}"
        )
    offered = np.isfinite(logs)
    most = offered[:, carrying == 1].any(axis=1).mean()
    least = 1 - offered[:, carrying == 0].any(axis=1).mean()
    if not least < target < most:
        raise ValueError(
            f"{name}: the target {target:g} cannot be reached. With these prompts, the rate of any policy is between "
            f"{least:.3g} and {most:.3g}. Choose a target in this range, or add prompts that have answers with and "
            "without the attribute"
        )
