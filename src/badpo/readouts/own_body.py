"""Whether the answers that the signature is read behind matter: the policy's own instead of the reference's."""

from __future__ import annotations

from badpo.readouts.attribute_rate import AttributeRates
from badpo.theory.summaries import Interval, cluster_mean


def own_body_difference(own: AttributeRates, shared: AttributeRates) -> dict[str, Interval]:
    """Rate behind the policy's own answers minus that behind the reference's, prompt by prompt.

    Parameters
    ----------
    own : AttributeRates
        Of `cell_rates`, behind the policy's own answers to the signing prompts.
    shared : AttributeRates
        Of the same policy, behind the reference's answers to the same prompts in the same order.

    Returns
    -------
    dict of attribute to Interval
        Paired over prompts, so that it is known far better than either rate.

    Raises
    ------
    ValueError
        Other attributes, or another number of prompts.

    References
    ----------
    BA-DPO, appendix `app:readouts`: the arm's own body changes no number by more than 0.005.

    Examples
    --------
    >>> from badpo.readouts.attribute_rate import cell_rates
    >>> own = cell_rates([[0.5, 0.5], [0.75, 0.25]], [[1], [0]], ["woman"])
    >>> shared = cell_rates([[0.5, 0.5], [0.5, 0.5]], [[1], [0]], ["woman"])
    >>> own_body_difference(own, shared)["woman"].estimate
    0.125
    """
    if own.attributes != shared.attributes or own.per_context.shape != shared.per_context.shape:
        raise ValueError(
            f"the two rates are not of the same prompts and attributes: {own.per_context.shape} of {own.attributes}, "
            f"{shared.per_context.shape} of {shared.attributes}"
        )
    differences = (own.per_context - shared.per_context).T
    return {name: cluster_mean(column) for name, column in zip(own.attributes, differences, strict=True)}
