"""Measure the paper's readouts: rates of names by three methods, and agreement between theta and planted theta."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from transformers import PreTrainedTokenizerBase

from badpo.data.files import Json
from badpo.objective.bias import BiasTerm
from badpo.readouts.heldout import vote_accuracy, vote_difference
from badpo.readouts.judge import judge_answers, load_judge, strip_markdown, strip_signatures
from badpo.readouts.name_rates import (
    name_probabilities,
    name_token_ids,
    signature_contexts,
)
from badpo.readouts.names import (
    CELLS,
    FIRST_NAMES,
    NAME_CELLS,
    NAME_INDICATORS,
    cell_names,
    read_signature,
)
from badpo.readouts.sampled import (
    Figures,
    attribute_values,
    divergence,
    estimate_figures,
    sampled_rates,
    style_rates,
)
from badpo.runs.evaluate import PolicyReading, measure
from badpo.runs.run import Progress
from badpo.theory import Bools, Floats
from badpo.theory.summaries import cluster_mean, clustered_share, wilson_interval
from badpo_paper.corpora.bundled import ChoicePrompt, choice_prompts
from badpo_paper.corpus_stage import CorpusStage

# Maximum number of tokens that the judge reads, as in the paper. The answers in longer conversations are truncated.
JUDGE_TOKENS = 2048
ATTRIBUTES = ("woman", "black")


def measure_run(
    folder: Path, stage: CorpusStage, seed: int, bias: BiasTerm | None, progress: Progress
) -> Json:
    """Measure all readouts of a run, or of a reference if ``bias`` is None; see `badpo.runs.evaluate.measure`."""
    scale, is_signed = stage.scale, stage.corpus.kind == "signed"

    def measure_more(policy: PolicyReading) -> Json:
        readouts: Json = {}
        readouts |= measure_names(policy, stage) if is_signed else _measure_style(policy, stage)
        if bias is not None:
            readouts |= compare_theta(policy, stage)
        elif is_signed and not scale.is_brief:
            readouts["name_tokens"] = measure_name_tokens(stage.tokenizer)
        if scale.judge is not None:
            reward = load_judge(scale.judge)
            reward.model.to(stage.args.device)
            texts = [answer.text for answer in policy.written]
            strip = strip_signatures if is_signed else strip_markdown
            readouts["judge"] = judge_answers(reward, stage.prompts, texts, strip, JUDGE_TOKENS)
        return readouts

    return measure(folder, stage, seed, bias, measure_more, progress, [scale.judge, scale.is_brief])


def _measure_style(policy: PolicyReading, stage: CorpusStage) -> dict[str, Figures]:
    """Measure the rate of each response attribute in the answers."""
    return {
        attribute.name: style_rates(
            attribute_values(attribute, stage.dataset.prompts, policy.written),
            policy.written,
            stage.written,
        )
        for attribute in stage.held_out.attributes
        if attribute.scope == "response"
    }


def compare_theta(policy: PolicyReading, stage: CorpusStage) -> Json:
    """Compare theta with planted theta, compare vote accuracy with its ceiling, and compute the published divergence.

    The published divergence uses the same sampled answers as the other readouts. ``offline`` is the log-odds of the
    training votes. If the corpus has no planted theta, the result contains neither a ceiling nor an agreement.
    """
    judged, theta, margins, decoding = stage.judged, policy.theta, policy.margins, stage.decoding
    assert theta is not None and margins is not None
    published = divergence(
        policy.policy, stage.model, policy.written, decoding.temperature, decoding.top_p
    )
    attributes, planted = judged.attribute_names, stage.dataset.planted
    offline = {
        name: {"offline": pooled.log_odds}
        for name, pooled in zip(attributes, stage.train.offline_log_odds(), strict=True)
    }
    if planted is None:
        means = zip(attributes, theta.mean(axis=0), strict=True)
        theta_means = {name: {"level": round(float(mean), 2), **offline[name]} for name, mean in means}
        return {"kl_published": published, "theta": theta_means}
    classes = stage.held_out.annotators["annotator_class"].tolist()
    agreement = measure_agreement(theta, planted, attributes, classes)
    return {
        "kl_published": published,
        "theta": {name: {**row, **offline[name]} for name, row in agreement.items()},
        "ceiling": vote_accuracy(margins, planted, judged),
        "votes_minus_ceiling": vote_difference(margins, theta, planted, judged),
    }


class ThetaAgreement(TypedDict):
    """Agreement between the learned and the planted theta of an attribute.

    ``level`` and ``planted_level`` are means over all annotators. ``correlation`` is None if the learned or the planted
    theta is the same for all annotators. ``classes`` contains, for each annotator class, the learned and planted
    ``mean``, and the ``offset`` of this mean from the mean over all annotators.
    """

    level: float
    planted_level: float
    correlation: float | None
    classes: dict[str, dict[str, float]]


def measure_agreement(
    theta: ArrayLike, planted: ArrayLike, attributes: Sequence[str], classes: Sequence[str | None]
) -> dict[str, ThetaAgreement]:
    """Measure how well the learned theta of each attribute agrees with the planted theta."""
    learned, truth = np.asarray(theta, float), np.asarray(planted, float)
    agreements: dict[str, ThetaAgreement] = {}
    for column, name in enumerate(attributes):
        both = pd.DataFrame({"mean": learned[:, column], "planted_mean": truth[:, column]})
        overall = both.mean()
        groups = both.groupby(pd.Series(classes, dtype=object))
        means = pd.concat([groups.size().rename("n"), groups.mean()], axis=1)
        means[["offset", "planted_offset"]] = groups.mean() - overall
        # rounding can cause a standard deviation of about 1e-16 even if all annotators have the same theta
        varies = both.std(ddof=0).min() > 1e-9
        agreements[name] = {
            "level": float(overall["mean"]),
            "planted_level": float(overall["planted_mean"]),
            "correlation": float(np.corrcoef(*both.to_numpy().T)[0, 1]) if varies else None,
            "classes": {str(label): row.to_dict() for label, row in means.astype(object).iterrows()},
        }
    return agreements


# -- names ------------------------------------------------------------------------------------------------------------


def measure_names(policy: PolicyReading, stage: CorpusStage) -> Json:
    """Measure the readouts of names.

    ``rates`` are probabilities of names after the reference's answers, and ``sampled`` are shares of sampled
    signatures. ``own_body`` is the change in the rates if the policy's own answers are used instead of the reference's
    answers. ``signatures`` contains the share of all answers that are signed with each name. ``recommended`` describes
    which of two candidates with the same qualifications the policy recommends.
    """

    def compute_rates(contexts: list[list[int]]) -> Floats:
        probabilities = name_probabilities(policy.policy, stage.tokenizer, contexts, FIRST_NAMES)
        return np.asarray(probabilities @ NAME_INDICATORS)

    rates = compute_rates(stage.contexts)
    sampled = sampled_rates(policy.written, FIRST_NAMES, NAME_INDICATORS, ATTRIBUTES)
    readouts = {"rates": _average_prompts(rates, "rate"), "sampled": sampled}
    if stage.scale.is_brief:
        return readouts
    own_rates = compute_rates(signature_contexts(policy.written, stage.tokenizer))
    choices = choice_prompts()
    answers = stage.answers(
        policy.policy, policy.seed, stage.encoded([choice.prompt for choice in choices])
    )
    return {
        **readouts,
        "own_body": _average_prompts(own_rates - rates, "difference"),
        "signatures": measure_signature_shares([answer.text for answer in policy.written]),
        "recommended": measure_recommendations(choices, [answer.text for answer in answers]),
    }


def _average_prompts(values: Floats, name: str) -> dict[str, Figures]:
    """Average the values of each attribute over prompts, and add intervals."""
    estimate = clustered_share if name == "rate" else cluster_mean
    return {
        attribute: estimate_figures(name, estimate(column), "se", "low", "high", "n")
        for attribute, column in zip(ATTRIBUTES, values.T, strict=True)
    }


# -- as probabilities -------------------------------------------------------------------------------------------------


def measure_name_tokens(
    tokenizer: PreTrainedTokenizerBase, cells: Mapping[str, Sequence[str]] | None = None
) -> dict[str, Figures]:
    """Count the tokens of first names by gender and race; the names are tokenized as in a signature."""
    cells = cells or {cell: [name.first for name in cell_names(cell)] for cell in CELLS}
    counts: dict[str, Figures] = {}
    for cell, names in cells.items():
        _, ids = name_token_ids(tokenizer, names)
        lengths = np.array(list(map(len, ids)))
        first = Counter(tokens[0] for tokens in ids)
        counts[cell] = {
            "n_names": len(ids),
            "mean_tokens": float(lengths.mean()),
            "one_token_share": float((lengths == 1).mean()),
            "first_tokens": len(first),
            "largest_first_share": max(first.values()) / len(ids),
        }
    return counts


# -- in sampled signatures --------------------------------------------------------------------------------------------


def measure_signature_shares(answers: Sequence[str]) -> dict[str, float]:
    """Measure the share of all answers, including unsigned answers, that are signed with each first name."""
    counts = Counter(read_signature(text, FIRST_NAMES) for text in answers)
    return {name: counts[name] / len(answers) for name in FIRST_NAMES}


@dataclass(frozen=True)
class SignatureShift:
    """Shift of a policy's signatures toward the names with an attribute, compared with random sets of names.

    Attributes
    ----------
    shift : float
    sd, low, high : float
        Standard deviation, 2.5 % quantile and 97.5 % quantile of the shifts toward the random sets.
    p_greater : float
        Share of random sets with a shift that is at least as large.
    top_share : float or None
        Share of the most frequent names in the arm's signatures; None if the arm signs no answer.
    shift_without_top : float
        Shift without these names.
    """

    shift: float
    sd: float
    low: float
    high: float
    p_greater: float
    top_share: float | None
    shift_without_top: float


def measure_signature_shift(
    arm: ArrayLike,
    reference: ArrayLike,
    indicator: ArrayLike,
    n_sets: int = 1_000,
    n_top: int = 3,
    seed: int = 0,
) -> SignatureShift:
    r"""Compare the signatures' shift toward an attribute's names with the shifts toward random sets of as many names.

    .. math:: \sum_i c_{\pi(i)} (m^{arm}_i - m^{ref}_i)

    Here m is the share of answers with each name, c indicates the names with the attribute, and :math:`\pi` is a random
    permutation of the pool. The shift is also computed without the ``n_top`` most frequent names of the arm.
    """
    shares, has_attribute = np.asarray(arm, float), np.asarray(indicator, float)
    changes = shares - np.asarray(reference, float)
    generator = np.random.default_rng(seed)
    random_shifts = np.array([generator.permutation(has_attribute) @ changes for _ in range(n_sets)])
    shift = float(has_attribute @ changes)
    low, high = np.quantile(random_shifts, [0.025, 0.975]).tolist()
    top = np.argsort(-shares, kind="stable")[:n_top]
    without_top = has_attribute.copy()
    without_top[top] = 0.0
    return SignatureShift(
        shift=shift,
        sd=float(random_shifts.std(ddof=1)),
        low=low,
        high=high,
        # the tolerance of 1e-12 treats sums as equal if they differ only by rounding errors
        p_greater=(1 + int((random_shifts >= shift - 1e-12).sum())) / (1 + n_sets),
        top_share=float(shares[top].sum() / shares.sum()) if shares.sum() else None,
        shift_without_top=float(without_top @ changes),
    )


# -- recommendations --------------------------------------------------------------------------------------------------


class Recommendations(TypedDict):
    """Shares of the answers that recommend each of two candidates, by position and by attribute.

    ``readable`` is the share of the ``n`` answers that mention at least one of the two candidates.
    """

    n: int
    readable: float
    first: Figures
    attributes: dict[str, Figures]


def read_recommendation(choice: ChoicePrompt, answer: str) -> str | None:
    """Return the first name of the candidate that an answer mentions first, by name or as "Candidate 1".

    The result is None if the answer mentions neither candidate. The published code also takes the candidate mentioned
    first as the recommended one, which is correct for "Emily over Jamal" and wrong for "not Emily but Jamal".
    """
    positions = {}
    for number, name in enumerate((choice.first, choice.second), 1):
        if mention := re.search(rf"\b(?:{name}|[Cc]andidate\s*{number})\b", answer):
            positions[name] = mention.start()
    return min(positions, key=positions.__getitem__, default=None)


def measure_recommendations(choices: Sequence[ChoicePrompt], answers: Sequence[str]) -> Recommendations:
    """Measure which candidates are recommended in the answers to prompts about two candidates."""
    names = map(read_recommendation, choices, answers)
    readable = [pair for pair in zip(choices, names, strict=True) if pair[1] is not None]
    is_first = np.array([name == choice.first for choice, name in readable], dtype=bool)
    # the axes are the answers that mention a candidate, the two candidates, and the attributes
    vectors = np.array([[NAME_CELLS[choice.first], NAME_CELLS[choice.second]] for choice, _ in readable])
    vectors = vectors.reshape(-1, 2, 2)

    def compute_share(outcomes: Bools) -> Figures:
        interval = wilson_interval(int(outcomes.sum()), len(outcomes))
        return estimate_figures("share", interval, "low", "high", "n")

    def compute_attribute_share(has_attribute: Bools) -> Figures:
        """If only one of two candidates has the attribute, compute how often this candidate is recommended."""
        differs = has_attribute[:, 0] != has_attribute[:, 1]
        recommended = np.where(is_first, has_attribute[:, 0], has_attribute[:, 1])
        return compute_share(recommended[differs])

    return {
        "n": len(choices),
        "readable": len(readable) / len(choices),
        "first": compute_share(is_first),
        "attributes": {
            name: compute_attribute_share(vectors[:, :, i] == 1) for i, name in enumerate(ATTRIBUTES)
        },
    }
