"""How likely a policy is to sign with a name of each group, read from probabilities instead of samples.

The answer is the reference's own, the same for every arm; the policy only says which first name would stand after
it. Sampled signatures saturate and depend on the decoder: a reference that is balanced by probability may sign
four answers in five with names of one group at temperature 0.7.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax

from badpo.data.corpora.signatures import strip_signature
from badpo.readouts.json_number import json_number
from badpo.readouts.name_tokens import name_token_ids, space_tokens, without_tail
from badpo.readouts.trie_pass import TrieScorer
from badpo.theory.summaries import cluster_mean

SIGNATURE_LEAD = "\n\n\u2014 "


@dataclass(frozen=True)
class AttributeRates:
    """The policy's rate of each attribute at the signature position.

    Attributes
    ----------
    attributes : tuple of str
    rate : array of shape (n_attributes,)
        Probability mass on the names that carry the attribute, mean over contexts.
    se : array of shape (n_attributes,)
        Standard error of that mean over contexts; NaN with one context.
    per_context : array of shape (n_contexts, n_attributes)
    """

    attributes: tuple[str, ...]
    rate: NDArray[np.float64]
    se: NDArray[np.float64]
    per_context: NDArray[np.float64]

    def to_json(self) -> dict[str, dict[str, float | None]]:
        """{attribute: {"rate", "se"}}."""
        return {
            name: {"rate": float(rate), "se": json_number(se)}
            for name, rate, se in zip(self.attributes, self.rate, self.se, strict=True)
        }


def signature_contexts(
    generations: Sequence,
    tokenizer,
    lead: str = SIGNATURE_LEAD,
    strip: Callable[[str], str] = strip_signature,
) -> list[list[int]]:
    """Token ids of sampled answers up to the place where the first name of a signature would stand.

    A context is the prompt as it was generated from, the answer without its signature, and ``lead``. Make the
    contexts once, from the reference's answers, and use them for every arm.
    """
    texts = [strip(generation.text).rstrip() + lead for generation in generations]
    bodies = tokenizer(texts, add_special_tokens=False)["input_ids"]
    return [[*map(int, g.prompt_ids), *body] for g, body in zip(generations, bodies, strict=True)]


def name_probabilities(
    model,
    tokenizer,
    context_ids: Sequence[Sequence[int]],
    names: Sequence[str],
    boundary: str = "none",
    lead: str = SIGNATURE_LEAD,
) -> NDArray[np.float64]:
    r"""Probability of each name of the pool after each context, renormalised over the pool.

    .. math:: p(n \mid x) = \frac{\exp s_n(x)}{\sum_{n'} \exp s_{n'}(x)}, \qquad
              s_n(x) = \sum_t \log \pi(n_t \mid x, n_{<t})

    Not normalised by length. The parameters are those of `name_logps`.

    Returns
    -------
    array of shape (n_contexts, n_names)
        Rows add up to 1.

    References
    ----------
    BA-DPO, Appendix `app:readouts`, "Attribute rate on Signed-UltraFeedback".
    """
    return softmax(name_logps(model, tokenizer, context_ids, names, boundary, lead), axis=1)


def name_logps(
    model,
    tokenizer,
    context_ids: Sequence[Sequence[int]],
    names: Sequence[str],
    boundary: str = "none",
    lead: str = SIGNATURE_LEAD,
) -> NDArray[np.float64]:
    """Log-probability that the policy goes on with each name, before any renormalisation.

    The tokens of a name are those of ``lead + name`` after the beginning that all of them share with ``lead``.
    Each context goes through the model once where the model takes that exactly (`TrieScorer`).
    """
    if boundary not in ("none", "space"):
        raise ValueError(f'unknown boundary "{boundary}"; use "none" or "space"')
    shared, token_ids = name_token_ids(tokenizer, names, lead)
    contexts = without_tail(tokenizer, context_ids, lead, shared)
    closing = space_tokens(tokenizer) if boundary == "space" else []
    return TrieScorer(model, token_ids, closing).logps(contexts)


def cell_rates(probabilities: ArrayLike, indicator: ArrayLike, attributes: Sequence[str]) -> AttributeRates:
    """Share of probability on the names that carry each attribute, with its spread over contexts."""
    per_context = np.asarray(probabilities, dtype=np.float64) @ np.asarray(indicator, dtype=np.float64)
    means = [cluster_mean(column) for column in per_context.T]
    return AttributeRates(
        attributes=tuple(attributes),
        rate=np.array([mean.estimate for mean in means]),
        se=np.array([mean.se for mean in means]),
        per_context=per_context,
    )
