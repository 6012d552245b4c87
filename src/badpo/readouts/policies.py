"""A policy beside its reference: both are run, and what they say is compared."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from badpo.data.judgments import Judgments
from badpo.readouts.generation import Generation
from badpo.readouts.kl import Divergence, kl_per_token
from badpo.readouts.sampled import prompt_numbers
from badpo.training.encoding import encode_comparisons
from badpo.training.logprobs import response_logps
from badpo.training.reference import ReferenceCache, comparison_logps


def implicit_margins(
    policy,
    reference,
    cache: ReferenceCache,
    judgments: Judgments,
    tokenizer,
    encoding: str,
    max_length: int | None,
    max_prompt_length: int | None,
    beta: float,
) -> np.ndarray:
    """The policy's implicit reward margin u of every comparison, response a over b, beta included."""
    encoded = encode_comparisons(judgments, tokenizer, encoding, max_length, max_prompt_length)
    ids = (encoded.prompt_ids, encoded.a_ids, encoded.b_ids)
    pairs = [(p, r) for p, a, b in zip(*ids, strict=True) for r in (a, b)]
    ours = _sums(response_logps(policy, pairs))
    theirs = _sums([side for pair in comparison_logps(cache, reference, *ids) for side in pair])
    return beta * ((ours[0::2] - theirs[0::2]) - (ours[1::2] - theirs[1::2]))


def divergence(
    policy, reference, answers: Sequence[Generation], temperature: float, top_p: float
) -> Divergence:
    """KL of the policy from the reference per token, on the policy's own answers.

    Log-probabilities are those at temperature 1 of the very tokens that were sampled.
    """
    pairs = [(np.asarray(g.prompt_ids), np.asarray(g.token_ids)) for g in answers]
    return kl_per_token(
        response_logps(policy, pairs),
        response_logps(reference, pairs),
        temperature,
        top_p,
        prompt_numbers(answers),
    )


def _sums(values: Sequence[np.ndarray]) -> np.ndarray:
    return np.array([v.sum(dtype=np.float64) for v in values])
