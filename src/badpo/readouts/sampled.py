"""What is counted in sampled answers: signatures, endings, attributes, tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from badpo.data.attributes import Attribute
from badpo.data.corpora.signatures import read_signature
from badpo.data.numbering import numbered
from badpo.readouts.json_number import json_number
from badpo.theory.summaries import Interval, cluster_mean, wilson_interval


@dataclass(frozen=True)
class SampledRates:
    """How sampled answers end and whom they are signed by.

    Attributes
    ----------
    n : int
        Answers.
    signed : Interval
        Share of answers that end in a signature with a first name of the pool.
    ended : Interval
        Share of answers that the policy ended itself.
    attributes : dict of str to Interval
        Share of the signed answers whose name carries the attribute; ``n`` counts signed answers and the
        estimate is NaN when there is none.
    """

    n: int
    signed: Interval
    ended: Interval
    attributes: dict[str, Interval]

    def to_json(self) -> dict:
        """{"n", "signed", "ended", attribute: {"rate", "low", "high", "n"}}; null where nothing was signed."""
        return {
            "n": self.n,
            "signed": self.signed.estimate,
            "ended": self.ended.estimate,
            **{
                name: {
                    "rate": json_number(found.estimate),
                    "low": json_number(found.low),
                    "high": json_number(found.high),
                    "n": found.n,
                }
                for name, found in self.attributes.items()
            },
        }


@dataclass(frozen=True)
class MeanTokens:
    """Mean length of sampled answers in tokens, the end-of-text token counted.

    Attributes
    ----------
    mean : float
    se : float
        Over answers; NaN for a single one.
    n : int
    """

    mean: float
    se: float
    n: int

    def to_json(self) -> dict:
        """{"mean", "se", "n"}."""
        return {"mean": self.mean, "se": json_number(self.se), "n": self.n}


def sampled_rates(
    generations: Sequence, names: Sequence[str], indicator: ArrayLike, attributes: Sequence[str]
) -> SampledRates:
    """Signed share, ended share, and the share of signed answers by attribute, with Wilson intervals.

    Sampled rates saturate: read the policy's lean from `attribute_rate.name_probabilities`, and this to see that
    it signs at all.
    """
    if not generations:
        raise ValueError("there are no sampled answers to count in")
    rows = {name: i for i, name in enumerate(names)}
    found = [read_signature(generation.text, tuple(names)) for generation in generations]
    signers = np.asarray(indicator)[[rows[name] for name in found if name]]
    n = len(generations)
    return SampledRates(
        n=n,
        signed=wilson_interval(len(signers), n),
        ended=wilson_interval(sum(generation.ended for generation in generations), n),
        attributes={
            name: wilson_interval(int(column.sum()), len(signers))
            for name, column in zip(attributes, signers.T, strict=True)
        },
    )


def mean_tokens(generations: Sequence) -> MeanTokens:
    """Mean and standard error of the number of sampled tokens, the latter clustered by prompt.

    Every sampled token counts, the end-of-text token of answers that ended included, whatever the tokenizer pads
    with.
    """
    lengths = token_counts(generations)
    if not len(lengths):
        raise ValueError("there are no sampled answers to measure")
    found = cluster_mean(lengths, prompt_numbers(generations))
    return MeanTokens(found.estimate, found.se, len(lengths))


def prompt_numbers(generations: Sequence) -> NDArray[np.intp]:
    """Which prompt each answer is to, shape (n_generations,): answers to one prompt are no independent evidence."""
    return numbered(tuple(generation.prompt_ids) for generation in generations)[0]


def token_counts(generations: Sequence) -> NDArray[np.int64]:
    """Sampled tokens of each answer, shape (n_generations,)."""
    return np.array([len(generation.token_ids) for generation in generations], dtype=np.int64)


def attribute_values(
    attribute: Attribute, prompts: Sequence[str], generations: Sequence
) -> NDArray[np.float64]:
    """Value g of each sampled answer, for an attribute that is a function of one response.

    Its mean is the attribute's rate over generations (`summaries.cluster_mean` gives the interval); with
    `summaries.length_matched_mean` and `token_counts` it is the paper's formatting rate.
    """
    if attribute.scope != "response":
        raise ValueError(
            f'attribute "{attribute.name}" is defined on a {attribute.scope}, so a single sampled answer has no '
            "value of it; for length, read mean_tokens"
        )
    pairs = zip(prompts, generations, strict=True)
    return np.array(
        [attribute.measure(prompt, generation.text) for prompt, generation in pairs], dtype=np.float64
    )
