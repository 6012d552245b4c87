"""What is read from sampled answers: signatures, endings, attributes, tokens, the distance from the reference."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from badpo.data.attributes import Attribute
from badpo.data.cells import numbered
from badpo.data.files import Json
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


def json_number(value: float) -> float | None:
    """The value, or None where it is not finite: JSON has no NaN, and null says that nothing is known."""
    return float(value) if np.isfinite(value) else None


def figures(**found: float) -> Json:
    """Numbers as JSON has them; counts stay whole."""
    return {
        name: value if isinstance(value, int) else json_number(value) for name, value in found.items()
    }


def told(name: str, found: Interval, *fields: str, **more: float) -> Json:
    """An estimate under a name, some fields of its interval, and more figures."""
    of_interval = {field: getattr(found, field) for field in fields}
    return figures(**{name: found.estimate}, **of_interval, **more)


def sampled_rates(
    generations: Sequence, names: Sequence[str], indicator: ArrayLike, attributes: Sequence[str]
) -> Json:
    """Signed share, ended share, and the share of signed answers by attribute, with Wilson intervals.

    Sampled rates saturate: read the policy's lean from `badpo.readouts.rates.name_probabilities`, and this to see that
    it signs at all.
    """
    found = [read_signature(generation.text, tuple(names)) for generation in generations]
    signers = np.asarray(indicator)[[names.index(name) for name in found if name]]
    return {
        "n": len(generations),
        "signed": len(signers) / len(generations),
        "ended": sum(generation.ended for generation in generations) / len(generations),
        **{
            name: told("rate", wilson_interval(int(column.sum()), len(signers)), "low", "high", "n")
            for name, column in zip(attributes, signers.T, strict=True)
        },
    }


def mean_tokens(generations: Sequence) -> Json:
    """{"mean", "se", "low", "high", "n"} of the sampled tokens, the end-of-text token counted.

    The tokens are those that were sampled, whatever the tokenizer pads with; errors are clustered by prompt.
    """
    found = cluster_mean(token_counts(generations), prompt_numbers(generations))
    return told("mean", found, "se", "high", low=max(found.low, 0.0), n=len(generations))


def rate_figures(values: ArrayLike, is_share: bool) -> Json:
    """The mean of an attribute's values over answers to different prompts, as a share where it is one."""
    found = clustered_share(values) if is_share else cluster_mean(values)
    return told("rate", found, "se", "low", "high", "n")


def prompt_numbers(generations: Sequence) -> Ints:
    """Which prompt each answer is to, shape (n_generations,): answers to one prompt are no independent evidence."""
    return numbered(tuple(generation.prompt_ids) for generation in generations)[0]


def token_counts(generations: Sequence) -> Ints:
    """Sampled tokens of each answer, shape (n_generations,)."""
    return np.array([len(generation.token_ids) for generation in generations], int)


def attribute_values(attribute: Attribute, prompts: Sequence[str], generations: Sequence) -> Floats:
    """Value g of each sampled answer, for an attribute that is a function of one response."""
    pairs = zip(prompts, generations, strict=True)
    return np.array([attribute.measure(prompt, answer.text) for prompt, answer in pairs], float)


def style_rates(values: ArrayLike, generations: Sequence, reference: Sequence) -> Json:
    """Rate of an attribute in a policy's answers, also reweighted onto the lengths of the reference's answers.

    A policy that merely writes shorter answers writes less Markdown too; the reweighted rate does not fall for that.
    Intervals are clustered by prompt.
    """
    lengths, prompts = token_counts(generations), prompt_numbers(generations)
    raw, tokens = cluster_mean(values, prompts), cluster_mean(lengths, prompts)
    matched = length_matched_mean(values, lengths, token_counts(reference), clusters=prompts)
    beside = figures(tokens=tokens.estimate, tokens_se=tokens.se, n=len(lengths))
    return told("rate", raw, "se", matched=matched.estimate, matched_se=matched.se) | beside


def answer_logps(policy, answers: Sequence[Generation]) -> list[Floats]:
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
    r"""Divergence of the policy from the reference, estimated on answers of the policy, clustered by their prompts.

    The mean of :math:`\log \pi(y_t \mid \cdot) - \log \pi_{ref}(y_t \mid \cdot)` over sampled tokens, the end-of-text
    token among them, estimates it, and may be negative by chance. Log-probabilities are at temperature 1, whatever the
    answers were sampled at.

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
    return told("per_token", ratio_of_sums(sums, n_tokens, prompts), "se") | figures(
        per_response=response.estimate,
        per_response_se=response.se,
        n_tokens=int(n_tokens.sum()),
        n_generations=len(differences),
        temperature=float(temperature),
        top_p=float(top_p),
    )
