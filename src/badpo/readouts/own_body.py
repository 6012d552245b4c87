"""Whether the answers that the signature is read behind matter: the policy's own instead of the reference's."""

from __future__ import annotations

from badpo.readouts.attribute_rate import AttributeRates
from badpo.theory.summaries import Interval, cluster_mean


def own_body_difference(own: AttributeRates, shared: AttributeRates) -> dict[str, Interval]:
    """Rate behind the policy's own answers minus that behind the reference's, prompt by prompt."""
    if own.attributes != shared.attributes or own.per_context.shape != shared.per_context.shape:
        raise ValueError(
            f"the two rates are not of the same prompts and attributes: {own.per_context.shape} of {own.attributes}, "
            f"{shared.per_context.shape} of {shared.attributes}"
        )
    differences = (own.per_context - shared.per_context).T
    return {name: cluster_mean(column) for name, column in zip(own.attributes, differences, strict=True)}
