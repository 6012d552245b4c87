"""Metrics of sampled answers: signatures, attributes, numbers of tokens, and KL divergence from the reference."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike
from transformers import PreTrainedModel

from badpo.data.attributes import Attribute
from badpo.data.cells import numbered
from badpo.readouts.generation import Generation
from badpo.readouts.names import read_signature
from badpo.theory import Floats, Ints
from badpo.theory.summaries import (
    Interval,
    cluster_mean,
    clustered_share,
    length_matched_mean,
    ratio_of_sums,
    wilson_interval,
)
from badpo.training.logprobs import response_logps

# Numbers in ``readouts.json`` by name; JSON has no NaN, so a number that is not finite becomes None.
Figures = dict[str, float | None]


def finite_or_none(value: float) -> float | None:
    """Return a number as a Python float; None if the number is not finite."""
    return float(value) if np.isfinite(value) else None


def figures(**numbers: float) -> Figures:
    """Convert numbers for JSON; counts stay integers."""
    return {
        name: number if isinstance(number, int) else finite_or_none(number)
        for name, number in numbers.items()
    }


def estimate_figures(name: str, interval: Interval, *fields: str, **more: float) -> Figures:
    """Convert an estimate, the given fields of its interval, and further numbers to JSON values."""
    of_interval = {field: getattr(interval, field) for field in fields}
    return figures(**{name: interval.estimate}, **of_interval, **more)


def sampled_rates(
    generations: Sequence[Generation],
    names: Sequence[str],
    indicator: ArrayLike,
    attributes: Sequence[str],
) -> Mapping[str, float | Figures]:
    """Compute the shares of signed and of complete answers, and each attribute's rate among the signed answers.

    The intervals are Wilson intervals. Sampled rates saturate, so use `badpo.readouts.name_rates.name_probabilities` to
    measure the policy's tilt. Use sampled rates to check that the policy signs its answers.
    """
    signatures = [read_signature(generation.text, tuple(names)) for generation in generations]
    signers = np.asarray(indicator)[[names.index(name) for name in signatures if name]]
    return {
        "n": len(generations),
        "signed": len(signers) / len(generations),
        "ended": sum(generation.ended for generation in generations) / len(generations),
        **{
            name: estimate_figures(
                "rate", wilson_interval(int(column.sum()), len(signers)), "low", "high", "n"
            )
            for name, column in zip(attributes, signers.T, strict=True)
        },
    }


def mean_tokens(generations: Sequence[Generation]) -> Figures:
    """Compute the mean number of sampled tokens, including the end-of-text token, with its interval.

    The interval is clustered by prompt. Padding tokens are not counted, even if the tokenizer uses the end-of-text
    token for padding.
    """
    mean = cluster_mean(token_counts(generations), prompt_numbers(generations))
    return estimate_figures("mean", mean, "se", "high", low=max(mean.low, 0.0), n=len(generations))


def rate_figures(values: ArrayLike, is_share: bool) -> Figures:
    """Compute the mean of an attribute over answers to different prompts; the interval of a share lies in [0, 1]."""
    mean = clustered_share(values) if is_share else cluster_mean(values)
    return estimate_figures("rate", mean, "se", "low", "high", "n")


def prompt_numbers(generations: Sequence[Generation]) -> Ints:
    """Return the index of each answer's prompt among the distinct prompts, as an array of shape (n_generations,).

    Answers to the same prompt are not independent, so intervals are clustered by prompt.
    """
    return numbered(tuple(generation.prompt_ids) for generation in generations)[0]


def token_counts(generations: Sequence[Generation]) -> Ints:
    """Count the sampled tokens in each answer; return an array of shape (n_generations,)."""
    return np.array([len(generation.token_ids) for generation in generations], int)


def attribute_values(
    attribute: Attribute, prompts: Sequence[str], generations: Sequence[Generation]
) -> Floats:
    """Measure a response attribute in each sampled answer."""
    pairs = zip(prompts, generations, strict=True)
    return np.array([attribute.measure(prompt, answer.text) for prompt, answer in pairs], float)


def style_rates(
    values: ArrayLike, generations: Sequence[Generation], reference: Sequence[Generation]
) -> Figures:
    """Compute an attribute's rate in answers, once unweighted and once reweighted to the reference's answer lengths.

    Shorter answers contain less Markdown. The reweighted rate does not fall if only the lengths of answers change. The
    standard errors are clustered by prompt.
    """
    lengths, prompts = token_counts(generations), prompt_numbers(generations)
    raw, tokens = cluster_mean(values, prompts), cluster_mean(lengths, prompts)
    matched = length_matched_mean(values, lengths, token_counts(reference), clusters=prompts)
    return estimate_figures(
        "rate",
        raw,
        "se",
        matched=matched.estimate,
        matched_se=matched.se,
        tokens=tokens.estimate,
        tokens_se=tokens.se,
        n=len(lengths),
    )


def answer_logps(policy: PreTrainedModel, answers: Sequence[Generation]) -> list[Floats]:
    """Compute the log-probability of every token of each answer under a policy at temperature 1."""
    return response_logps(policy, [(np.asarray(a.prompt_ids), np.asarray(a.token_ids)) for a in answers])


def divergence(
    policy: PreTrainedModel,
    reference: PreTrainedModel,
    answers: Sequence[Generation],
    temperature: float,
    top_p: float,
) -> Figures:
    """Estimate the per-token KL divergence of the policy from the reference on the policy's own answers."""
    logps, reference_logps = answer_logps(policy, answers), answer_logps(reference, answers)
    return kl_per_token(logps, reference_logps, temperature, top_p, prompt_numbers(answers))


def kl_per_token(
    policy_logps: Sequence[ArrayLike],
    reference_logps: Sequence[ArrayLike],
    temperature: float = 1.0,
    top_p: float = 1.0,
    prompts: ArrayLike | None = None,
) -> Figures:
    r"""Estimate a policy's KL divergence from the reference on its own answers, with clustered standard errors.

    The estimate is the mean of :math:`\log \pi(y_t \mid \cdot) - \log \pi_{ref}(y_t \mid \cdot)` over the sampled
    tokens, including the end-of-text token. It can be negative by chance. The log-probabilities are at temperature 1,
    regardless of the sampling temperature.

    References
    ----------
    BA-DPO, Appendix `app:readouts`, "Distance from the reference".
    """
    pairs = zip(policy_logps, reference_logps, strict=True)
    differences = [np.asarray(p, float) - np.asarray(r, float) for p, r in pairs]
    if not all(np.isfinite(x).all() for x in differences):
        raise ValueError("a sampled token has a log-probability that is not finite")
    n_tokens = np.array([len(x) for x in differences])
    sums = np.array([x.sum() for x in differences])
    response = cluster_mean(sums, prompts)
    return estimate_figures("per_token", ratio_of_sums(sums, n_tokens, prompts), "se") | figures(
        per_response=response.estimate,
        per_response_se=response.se,
        n_tokens=int(n_tokens.sum()),
        n_generations=len(differences),
        temperature=float(temperature),
        top_p=float(top_p),
    )
