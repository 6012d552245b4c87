"""Measure how accurately a policy's margins predict held-out votes on cross-group and on same-group comparisons.

A policy that has learned the annotators' bias predicts their votes better on cross-group comparisons. The gap is the
cross-group accuracy minus the same-group accuracy; it is near zero if the policy has not learned the bias.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from badpo.auditing.pool_bias import swap_pair_sides
from badpo.data.judgments import Judgments
from badpo.data.privacy import withheld_classes
from badpo.readouts.sampled import Figures, estimate_figures, figures
from badpo.theory import Bools, Floats, Ints
from badpo.theory.summaries import (
    Interval,
    cluster_difference,
    cluster_mean,
    clustered_share,
    ratio_of_sums,
    sums_by_cluster,
)
from badpo.training.encoding import encode_comparisons
from badpo.training.logprobs import response_logps
from badpo.training.reference import ReferenceCache


def heldout_accuracy(margins: ArrayLike, judgments: Judgments) -> dict[str, Figures]:
    """Compute the share of same-group votes and of cross-group votes that the margins predict correctly, by attribute.

    A prediction is correct if ``sign * u > 0``; a margin of exactly 0 counts as wrong. Every vote counts once,
    regardless of its training weight. The key "any" contains the figures for comparisons that are cross-group for at
    least one attribute.

    References
    ----------
    BA-DPO, Appendix `app:readouts`, "Held-out accuracy and the gap".
    """
    correct = judgment_margins(margins, judgments) > 0
    prompts, groups = judgments.prompt_of_votes(), _find_cross_votes(judgments)
    return {name: group_accuracy(correct, cross, prompts) for name, cross in groups.items()}


def find_revealing_figures(judgments: Judgments) -> list[str]:
    """Find the attributes with held-out figures that would reveal too much about the votes of individual people.

    The list contains an attribute if its cross-group votes or its same-group votes reveal people
    (`Judgments.reveals_people`).
    """
    groups = _find_cross_votes(judgments).items()
    reveals = judgments.reveals_people
    return [name for name, cross in groups if reveals(cross) or reveals(~cross)]


def _find_cross_votes(judgments: Judgments) -> dict[str, Bools]:
    """Return a mask of the cross-group votes for each attribute, and for any attribute ("any")."""
    cross = judgments.cross_group()
    names = (*judgments.attribute_names, "any")
    return dict(zip(names, [*cross.T, cross.any(axis=1)], strict=True))


def group_accuracy(correct: Bools, cross: Bools, clusters: Ints) -> Figures:
    """Compute the accuracy and the number of votes in both groups (same-group, cross-group), and the gap."""
    gap = cluster_difference(correct, cross, clusters)
    return figures(
        same=cluster_mean(correct[~cross]).estimate,
        cross=cluster_mean(correct[cross]).estimate,
        gap=gap.estimate,
        n_same=int((~cross).sum()),
        n_cross=int(cross.sum()),
        # a difference of two accuracies lies between -1 and 1
        gap_low=np.maximum(gap.low, -1.0),
        gap_high=np.minimum(gap.high, 1.0),
    )


def judgment_margins(margins: ArrayLike, judgments: Judgments) -> Floats:
    """Return the margin in the direction of each vote, sign * u, as an array of shape (n_votes,).

    The directed margin is positive if the policy prefers the response that was chosen.
    """
    u = np.asarray(margins, float)
    if len(bad := np.flatnonzero(~np.isfinite(u))):
        first = judgments.comparisons["comparison_id"].iloc[bad[0]]
        raise ValueError(
            f"the margins of {len(bad)} comparisons are not finite (first: comparison {first}); "
            "exclude these comparisons with Judgments.take, and report how many you excluded"
        )
    return np.asarray(judgments.votes["sign"].to_numpy(float) * u[judgments.votes["comparison"]])


@dataclass(frozen=True)
class LogRatios:
    """Log-probability of each response under the policy minus its log-probability under the reference, in nats.

    In ``sums`` and ``n_tokens``, index 2 c belongs to response a of comparison c, and index 2 c + 1 to response b.
    ``n_tokens`` is the number of tokens of each response.
    """

    sums: Floats
    n_tokens: Ints

    def margins(self, beta: float) -> Floats:
        """Compute the implicit reward margin u of response a over response b for every comparison."""
        return beta * (self.sums[0::2] - self.sums[1::2])


def response_log_ratios(
    policy: PreTrainedModel,
    reference: PreTrainedModel,
    cache: ReferenceCache,
    judgments: Judgments,
    tokenizer: PreTrainedTokenizerBase,
    encoding: str,
    max_length: int | None,
    max_prompt_length: int | None,
) -> LogRatios:
    """Compute the log-ratios between policy and reference for both responses in every comparison."""
    lengths = (max_length, max_prompt_length)
    encoded = encode_comparisons(judgments.comparisons, tokenizer, encoding, *lengths)
    logps = response_logps(policy, encoded.pairs), cache.logps(reference, encoded.pairs)
    of_policy, of_reference = (np.array([row.sum(dtype=float) for row in rows]) for rows in logps)
    return LogRatios(
        of_policy - of_reference, np.array([len(response) for _, response in encoded.pairs])
    )


class PromptSums(TypedDict):
    """Sums of a metric by prompt (``sums``), and the divisors that turn the sums into means (``sizes``)."""

    sums: list[float]
    sizes: list[float]


def measure_tilt(
    margins: ArrayLike, judgments: Judgments
) -> tuple[dict[str, dict[str, str | float | Figures | None]], dict[str, PromptSums]]:
    r"""Compute the policy's tilt toward each attribute in log-odds; also return sums by prompt for paired differences.

    .. math:: t = \frac{\sum_c d_c u_c}{\sum_c d_c^2}

    The sums run over the cross-group comparisons c, and each comparison counts once. If the attribute is binary, the
    tilt is the mean margin toward the attribute. If the attribute is continuous, the tilt is the coefficient of the
    margin on the attribute, per unit. An attribute of the judgment, such as the position, has no tilt, because a policy
    does not see this attribute.

    Returns
    -------
    tilts : dict
        The tilt toward each attribute with its interval, which is clustered by prompt; the ``unit`` of the tilt;
        ``typical``, the root mean square of the attribute difference, which is 1 unless the attribute is continuous;
        and the same figures for ``swap`` pairs, if the judgments have any.
    sums : dict
        The sums of each tilt by prompt, with the keys "tilt/NAME" and "swap/NAME". The tilts of two policies are
        computed on the same comparisons if the ``sizes`` of their sums are equal.
    """
    u, comparison = np.asarray(margins, float), judgments.votes["comparison"].to_numpy()
    first = np.unique(comparison, return_index=True)[1]
    prompts = judgments.prompt_of_votes()[first]
    difference = np.where(judgments.cross_group(), judgments.delta, 0.0)[first]
    swap_votes = swap_pair_sides(judgments)
    tilts: dict[str, dict[str, str | float | Figures | None]] = {}
    by_prompt: dict[str, PromptSums] = {}
    for j, attribute in enumerate(judgments.attributes):
        if attribute.scope == "judgment" or not (d := difference[:, j]).any():
            continue
        is_swap = np.zeros(len(d), dtype=bool)
        is_swap[comparison[swap_votes[:, j] != 0]] = True
        unit = "coefficient per unit" if attribute.continuous else "mean margin toward the attribute"
        tilt = tilts[attribute.name] = {
            "unit": unit,
            "typical": float(np.sqrt(np.mean(d[d != 0] ** 2))),
        }
        for name, rows in (("tilt", d != 0), ("swap", is_swap & (d != 0))):
            if rows.any():
                sums = sums_by_cluster(d[rows] * u[rows], d[rows] ** 2, prompts[rows])
                estimate = ratio_of_sums(*sums)
                n = int(rows.sum())
                cell = estimate_figures("tilt", estimate, "se", "low", "high", "n", n_comparisons=n)
                tilt.update(cell if name == "tilt" else {name: cell})
                by_prompt[f"{name}/{attribute.name}"] = round_sums(*sums)
    return tilts, by_prompt


def log_ratio_per_token(ratios: LogRatios, judgments: Judgments) -> Figures:
    """Compute the mean log-ratio per token of the compared responses, in nats.

    The mean log-ratio is far below 0 if training made all responses less likely.
    """
    prompts = np.repeat(pd.factorize(judgments.comparisons["prompt_id"])[0], 2)
    mean = ratio_of_sums(ratios.sums, ratios.n_tokens, prompts)
    return estimate_figures("per_token", mean, "se", "low", "high", "n")


def round_sums(sums: Floats, sizes: Floats) -> PromptSums:
    """Round the sums and sizes by prompt, and convert both to lists for ``readouts.json``."""
    return {"sums": sums.round(9).tolist(), "sizes": sizes.round(9).tolist()}


def vote_accuracy(
    margins: ArrayLike, theta: Floats, judgments: Judgments
) -> dict[str, dict[str, Figures]]:
    r"""Compute the accuracy of the bias-adjusted logit on cross-group votes.

    .. math:: \operatorname{logit}_j = s_j\,(u_{c_j} + \theta_{k_j}^\top d_j)

    A prediction is correct if the logit is positive; a logit of exactly 0 counts as wrong. The logit always includes
    all attributes. With the planted theta, the accuracy is the ceiling. Row k of theta belongs to annotator k of the
    judgments (`align_theta`).

    References
    ----------
    BA-DPO, Appendix `app:readouts`, "Vote prediction with the arm's own bias parameters"; Table `tab:votes`.
    """
    return logit_accuracy(bias_adjusted_logits(margins, theta, judgments), judgments)


def logit_accuracy(logits: Floats, judgments: Judgments) -> dict[str, dict[str, Figures]]:
    """Compute the accuracy and the mean loss of given logits, by attribute and annotator class; see `vote_accuracy`."""
    names, nats = ("accuracy", "nll"), np.logaddexp(0.0, -logits)
    return _summarize_by_class(names, (logits > 0).astype(np.float64), nats, clustered_share, judgments)


def vote_difference(
    margins: ArrayLike, theta: Floats, other_theta: Floats, judgments: Judgments
) -> dict[str, dict[str, Figures]]:
    """Compute the accuracy with ``theta`` minus the accuracy with ``other_theta``, for the same margins.

    For most votes, the predictions with the two thetas agree. Therefore, the standard error of the difference is much
    smaller than the standard error of either accuracy.
    """
    one, other = (bias_adjusted_logits(margins, each, judgments) for each in (theta, other_theta))
    accuracy = (one > 0).astype(float) - (other > 0)
    nats = np.logaddexp(0.0, -one) - np.logaddexp(0.0, -other)
    names = ("difference", "nll_difference")
    return _summarize_by_class(names, accuracy, nats, cluster_mean, judgments)


def bias_adjusted_logits(margins: ArrayLike, theta: Floats, judgments: Judgments) -> Floats:
    """Compute each vote's logit, sign * (u + theta . delta), as an array of shape (n_votes,); see `vote_accuracy`."""
    if not np.isfinite(theta).all():
        raise ValueError("theta contains a number that is not finite")
    votes = judgments.votes
    bias = (theta[votes["annotator"]] * judgments.delta).sum(axis=1)
    return np.asarray(judgment_margins(margins, judgments) + votes["sign"].to_numpy() * bias)


def align_theta(judgments: Judgments, pseudonyms: Sequence[str], theta: Floats) -> Floats:
    """Return theta in the order of ``judgments.annotators``; annotators without a theta get the pool mean."""
    with_mean = np.vstack([theta, theta.mean(axis=0)])
    rows = pd.Index(pseudonyms).get_indexer(judgments.annotators["pseudonym"])
    return np.asarray(with_mean[rows])


def _summarize_by_class(
    names: tuple[str, str],
    values: Floats,
    nats: Floats,
    summarize: Callable[[Floats, Ints], Interval],
    judgments: Judgments,
) -> dict[str, dict[str, Figures]]:
    """For each attribute, average the values and losses (nats) of cross-group votes, in total and by class."""
    prompts = judgments.prompt_of_votes()
    annotator = judgments.votes["annotator"].to_numpy()
    classes = judgments.annotators["annotator_class"].to_numpy()[annotator]

    def cell(mask: Bools) -> Figures:
        estimate = summarize(values[mask], prompts[mask])
        more = {"n": int(mask.sum()), names[1]: cluster_mean(nats[mask]).estimate}
        return estimate_figures(names[0], estimate, "se", "low", "high", **more)

    found = {}
    for attribute, cross in zip(judgments.attribute_names, judgments.cross_group().T, strict=True):
        voters = pd.Series(annotator[cross]).groupby(classes[cross]).nunique()
        n_others = int(pd.unique(annotator[cross]).size - voters.sum())
        published = set(voters.index) - withheld_classes(voters.to_dict(), n_others)
        masks = {"all": cross} | {name: cross & (classes == name) for name in sorted(published)}
        found[attribute] = {name: cell(mask) for name, mask in masks.items()}
    return found
