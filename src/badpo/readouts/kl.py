r"""Distance of a policy from the reference, on the policy's own answers.

With :math:`x_t = \log \pi(y_t \mid \cdot) - \log \pi_{ref}(y_t \mid \cdot)` for every sampled token, the mean of
:math:`x_t` (k1) estimates the divergence and may be negative by chance; the mean of
:math:`e^{-x_t} - 1 + x_t` (k3) never is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from badpo.readouts.sampled import json_number
from badpo.theory.summaries import Interval, cluster_mean, ratio_of_sums


@dataclass(frozen=True)
class Divergence:
    """Estimates of KL(policy || reference)."""

    per_token: Interval
    k3: Interval
    per_response: Interval
    n_tokens: int
    n_generations: int
    temperature: float
    top_p: float

    def to_json(self) -> dict[str, float | int | None]:
        """{"per_token", "se", "k3", "k3_se", "per_response", "per_response_se", "n_tokens", ...}."""
        return {
            "per_token": self.per_token.estimate,
            "se": json_number(self.per_token.se),
            "k3": self.k3.estimate,
            "k3_se": json_number(self.k3.se),
            "per_response": self.per_response.estimate,
            "per_response_se": json_number(self.per_response.se),
            "n_tokens": self.n_tokens,
            "n_generations": self.n_generations,
            "temperature": self.temperature,
            "top_p": self.top_p,
        }


def kl_per_token(
    policy_logps: Sequence[ArrayLike],
    reference_logps: Sequence[ArrayLike],
    temperature: float = 1.0,
    top_p: float = 1.0,
    prompts: ArrayLike | None = None,
) -> Divergence:
    """Divergence of the policy from the reference, estimated on answers of the policy.

    Parameters
    ----------
    policy_logps, reference_logps : sequences of n_generations arrays
        Log-probabilities of every sampled token at temperature 1, the end-of-text token included where there is
        one, under the policy that sampled and under the reference.
    temperature, top_p : float
        How the answers were sampled; repeated in the result.
    prompts : array of shape (n_generations,) or None
        Which prompt each answer is to (`badpo.readouts.sampled.prompt_numbers`). None: each to one of its own.

    Raises
    ------
    ValueError
        No tokens, answers whose two arrays differ in length, or a log-probability that is not finite.

    References
    ----------
    BA-DPO, Appendix `app:readouts`, "Distance from the reference".

    Examples
    --------
    >>> found = kl_per_token([[-1.0, -1.0], [-2.0]], [[-1.5, -1.0], [-1.9]])
    >>> round(found.per_token.estimate, 4), round(found.per_response.estimate, 4), found.n_tokens
    (0.1333, 0.2, 3)
    >>> found.k3.estimate > 0
    True
    """
    differences = _differences(policy_logps, reference_logps)
    n_tokens = np.array([len(x) for x in differences])
    k1 = np.array([x.sum() for x in differences])
    k3 = np.array([(np.expm1(-x) + x).sum() for x in differences])
    return Divergence(
        per_token=ratio_of_sums(k1, n_tokens, prompts),
        k3=ratio_of_sums(k3, n_tokens, prompts),
        per_response=cluster_mean(k1, prompts),
        n_tokens=int(n_tokens.sum()),
        n_generations=len(differences),
        temperature=float(temperature),
        top_p=float(top_p),
    )


def _differences(policy_logps, reference_logps) -> list[np.ndarray]:
    if len(policy_logps) != len(reference_logps):
        raise ValueError(
            f"policy and reference scored different answers: {len(policy_logps)} and {len(reference_logps)}"
        )
    found = []
    for i, (policy, reference) in enumerate(zip(policy_logps, reference_logps, strict=True)):
        p, r = np.asarray(policy, dtype=np.float64), np.asarray(reference, dtype=np.float64)
        if p.shape != r.shape or p.ndim != 1:
            raise ValueError(f"answer {i} has log-probabilities of shape {p.shape} and {r.shape}")
        if not (np.isfinite(p).all() and np.isfinite(r).all()):
            raise ValueError(f"answer {i} has a log-probability that is not finite")
        found.append(p - r)
    if not sum(map(len, found)):
        raise ValueError("there is no sampled token to measure the divergence on")
    return found
