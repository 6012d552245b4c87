r"""Distance of a policy from the reference, on the policy's own answers.

With :math:`x_t = \log \pi(y_t \mid \cdot) - \log \pi_{ref}(y_t \mid \cdot)` for every sampled token, the mean of
:math:`x_t` (k1) estimates the divergence and may be negative by chance; the mean of
:math:`e^{-x_t} - 1 + x_t` (k3) never is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from badpo.data.files import Json
from badpo.readouts.generation import Generation
from badpo.readouts.sampled import figures, prompt_numbers
from badpo.theory.summaries import cluster_mean, ratio_of_sums
from badpo.training.logprobs import response_logps


def answer_logps(policy, answers: Sequence[Generation]) -> list[np.ndarray]:
    """Log-probability of every sampled token of each answer under a policy, at temperature 1."""
    return response_logps(policy, [(np.asarray(a.prompt_ids), np.asarray(a.token_ids)) for a in answers])


def divergence(
    policy, reference, answers: Sequence[Generation], temperature: float, top_p: float
) -> Json:
    """KL of the policy from the reference per token, on the policy's own answers."""
    ours, theirs = answer_logps(policy, answers), answer_logps(reference, answers)
    return kl_per_token(ours, theirs, temperature, top_p, prompt_numbers(answers))


def kl_per_token(
    policy_logps: Sequence[ArrayLike],
    reference_logps: Sequence[ArrayLike],
    temperature: float = 1.0,
    top_p: float = 1.0,
    prompts: ArrayLike | None = None,
) -> Json:
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

    Returns
    -------
    dict
        {"per_token", "se", "k3", "k3_se", "per_response", "per_response_se", "n_tokens", "n_generations",
        "temperature", "top_p"}.

    Raises
    ------
    ValueError
        Answers whose two arrays differ in length, or a log-probability that is not finite.

    References
    ----------
    BA-DPO, Appendix `app:readouts`, "Distance from the reference".

    Examples
    --------
    >>> found = kl_per_token([[-1.0, -1.0], [-2.0]], [[-1.5, -1.0], [-1.9]])
    >>> round(found["per_token"], 4), round(found["per_response"], 4), found["n_tokens"]
    (0.1333, 0.2, 3)
    """
    pairs = zip(policy_logps, reference_logps, strict=True)
    differences = [np.asarray(p, dtype=np.float64) - np.asarray(r, dtype=np.float64) for p, r in pairs]
    if not all(np.isfinite(x).all() for x in differences):
        raise ValueError("a sampled token has a log-probability that is not finite")
    n_tokens = np.array([len(x) for x in differences])
    k1 = np.array([x.sum() for x in differences])
    k3 = np.array([(np.expm1(-x) + x).sum() for x in differences])
    token, bounded = (ratio_of_sums(sums, n_tokens, prompts) for sums in (k1, k3))
    response = cluster_mean(k1, prompts)
    return figures(
        per_token=token.estimate,
        se=token.se,
        k3=bounded.estimate,
        k3_se=bounded.se,
        per_response=response.estimate,
        per_response_se=response.se,
        n_tokens=int(n_tokens.sum()),
        n_generations=len(differences),
        temperature=float(temperature),
        top_p=float(top_p),
    )
