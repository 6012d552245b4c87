"""How well a policy's margin predicts held-out votes where the responses differ on an attribute, and elsewhere.

A policy that took in its annotators' lean predicts their votes better exactly where the attribute differs. The
difference of the two accuracies is the gap; it falls to zero when the lean stays out of the policy.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from badpo.data.files import Json
from badpo.data.judgments import Judgments
from badpo.data.privacy import withheld_classes
from badpo.readouts.sampled import figures, told
from badpo.theory import Bools, Floats, Ints
from badpo.theory.summaries import cluster_difference, cluster_mean, clustered_share
from badpo.training.encoding import encode_comparisons
from badpo.training.logprobs import response_logps
from badpo.training.reference import ReferenceCache


def heldout_accuracy(margins: ArrayLike, judgments: Judgments) -> Json:
    """Accuracy of the policy's margin on votes, same-group and cross-group, with the gap, of every attribute and "any".

    A vote is predicted where ``sign * u > 0``; a margin of exactly 0 predicts nobody and counts as wrong. Every
    vote counts once, whatever its training weight.

    References
    ----------
    BA-DPO, Appendix `app:readouts`, "Held-out accuracy and the gap".
    """
    correct = judgment_margins(margins, judgments) > 0
    prompts = judgments.prompt_of_votes()
    cross = judgments.cross_group()
    masks = dict(zip(judgments.attribute_names, cross.T, strict=True))
    masks["any"] = cross.any(axis=1)
    return {name: group_accuracy(correct, mask, prompts) for name, mask in masks.items()}


def group_accuracy(correct: Bools, cross: Bools, clusters: Ints) -> Json:
    """{"same", "cross", "gap", "n_same", "n_cross", "gap_low", "gap_high"}; intervals are clustered by prompt."""
    gap = cluster_difference(correct, cross, clusters)
    return figures(
        same=cluster_mean(correct[~cross]).estimate,
        cross=cluster_mean(correct[cross]).estimate,
        gap=gap.estimate,
        n_same=int((~cross).sum()),
        n_cross=int(cross.sum()),
        # two accuracies are no further apart
        gap_low=np.maximum(gap.low, -1.0),
        gap_high=np.minimum(gap.high, 1.0),
    )


def judgment_margins(margins: ArrayLike, judgments: Judgments) -> Floats:
    """Margin in the direction of each vote, sign * u: positive where the two agree, shape (n_votes,)."""
    u = np.asarray(margins, float)
    if len(bad := np.flatnonzero(~np.isfinite(u))):
        first = judgments.comparisons["comparison_id"].iloc[bad[0]]
        raise ValueError(
            f"the margins of {len(bad)} comparisons are not finite (first: comparison {first}); "
            "leave those out with Judgments.take, and report how many they are"
        )
    return judgments.votes["sign"].to_numpy(float) * u[judgments.votes["comparison"]]


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
) -> Floats:
    """The policy's implicit reward margin u of every comparison, response a over b, beta included."""
    lengths = (max_length, max_prompt_length)
    encoded = encode_comparisons(judgments.comparisons, tokenizer, encoding, *lengths)
    logps = response_logps(policy, encoded.pairs), cache.logps(reference, encoded.pairs)
    ours, theirs = (np.array([of.sum(dtype=float) for of in each]) for each in logps)
    gain = ours - theirs
    return beta * (gain[0::2] - gain[1::2])


def vote_accuracy(margins: ArrayLike, theta: Floats, judgments: Judgments) -> Json:
    r"""Accuracy of the bias-adjusted logit on votes whose responses differ on the attribute.

    .. math:: \operatorname{logit}_j = s_j\,(u_{c_j} + \theta_{k_j}^\top d_j)

    A vote is predicted where its logit is positive; a logit of exactly 0 counts as wrong. All attributes enter
    the logit, also those that the row of the result is not about. With the planted theta this is the ceiling. Row k of
    theta is that of annotator k of the judgments (`theta_rows_for`).

    References
    ----------
    BA-DPO, Appendix `app:readouts`, "Vote prediction with the arm's own bias parameters"; Table `tab:votes`.
    """
    return logit_accuracy(bias_adjusted_logits(margins, theta, judgments), judgments)


def logit_accuracy(logits: Floats, judgments: Judgments) -> Json:
    """`vote_accuracy` of any prediction."""
    correct, nll = logits > 0, np.logaddexp(0.0, -logits)

    def cell(mask: Bools, prompts: Ints) -> Json:
        nats, n = cluster_mean(nll[mask]).estimate, int(mask.sum())
        share = clustered_share(correct[mask], prompts)
        return told("accuracy", share, "se", "low", "high", n=n, nll=nats)

    return _by_class(cell, judgments)


def vote_difference(
    margins: ArrayLike, theta: Floats, other_theta: Floats, judgments: Judgments
) -> Json:
    """Vote prediction with one theta minus that with another, at the same margins: the arm minus its ceiling.

    Most votes are predicted alike by both, so the difference is known far better than either accuracy.
    """
    one, other = (bias_adjusted_logits(margins, each, judgments) for each in (theta, other_theta))
    accuracy = (one > 0).astype(float) - (other > 0)
    nll = np.logaddexp(0.0, -one) - np.logaddexp(0.0, -other)

    def cell(mask: Bools, prompts: Ints) -> Json:
        nats, n = cluster_mean(nll[mask]).estimate, int(mask.sum())
        found = cluster_mean(accuracy[mask], prompts)
        return told("difference", found, "se", "low", "high", n=n, nll_difference=nats)

    return _by_class(cell, judgments)


def bias_adjusted_logits(margins: ArrayLike, theta: Floats, judgments: Judgments) -> Floats:
    """Logit of each vote, sign * (u + theta . delta), shape (n_votes,); arguments as in `vote_accuracy`."""
    if not np.isfinite(theta).all():
        raise ValueError("theta holds a number that is not finite")
    votes = judgments.votes
    lean = (theta[votes["annotator"]] * judgments.delta).sum(axis=1)
    return judgment_margins(margins, judgments) + votes["sign"].to_numpy() * lean


def theta_rows_for(judgments: Judgments, pseudonyms: Sequence[str], theta: Floats) -> Floats:
    """Theta in the order of ``judgments.annotators``; an annotator that theta does not know gets the pool mean."""
    with_mean = np.vstack([theta, theta.mean(axis=0)])
    return with_mean[pd.Index(pseudonyms).get_indexer(judgments.annotators["pseudonym"])]


def _by_class(cell: Callable[[Bools, Ints], Json], judgments: Judgments) -> Json:
    """A readout of every attribute, over all annotators and by annotator class."""
    prompts = judgments.prompt_of_votes()
    annotator = judgments.votes["annotator"].to_numpy()
    classes = judgments.annotators["annotator_class"].to_numpy()[annotator]
    each_cross = judgments.cross_group().T
    found = {}
    for attribute, cross in zip(judgments.attribute_names, each_cross, strict=True):
        voters = pd.Series(annotator[cross]).groupby(classes[cross]).nunique()
        n_others = int(pd.unique(annotator[cross]).size - voters.sum())
        withheld = withheld_classes(voters.to_dict(), n_others)
        told = sorted(set(voters.index) - withheld)
        masks = {"all": cross} | {name: cross & (classes == name) for name in told}
        found[attribute] = {name: cell(mask, prompts[mask]) for name, mask in masks.items()}
    return found
