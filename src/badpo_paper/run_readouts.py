"""Readouts of the paper's experiments: rates of names by three methods, and agreement with planted theta."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from badpo.data.files import Json
from badpo.objective.bias import BiasTerm
from badpo.readouts.heldout import vote_accuracy, vote_difference
from badpo.readouts.judge import judge_answers, load_judge, strip_markdown, strip_signatures
from badpo.readouts.name_rates import (
    name_probabilities,
    name_token_ids,
    signature_contexts,
)
from badpo.readouts.names import CELLS, FIRST_NAMES, NAMES, cell_names, read_signature
from badpo.readouts.sampled import (
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

# The paper's limit of tokens for the judge. A longer answer is truncated before its end-of-text token.
JUDGE_TOKENS = 2048
ATTRIBUTES = ("woman", "black")
VECTORS = {name.first: (name.woman, name.black) for name in NAMES}
INDICATOR = np.array(list(VECTORS.values()), dtype=float)


def measure_run(
    folder: Path, stage: CorpusStage, seed: int, bias: BiasTerm | None, progress: Progress
) -> Json:
    """Measure all readouts of a run, or of a reference if ``bias`` is None; see `badpo.runs.evaluate.measure`."""
    scale, is_signed = stage.scale, stage.corpus.kind == "signed"

    def more(found: PolicyReading) -> Json:
        readouts = measure_names(found, stage) if is_signed else _style_readouts(found, stage)
        if bias is not None:
            readouts |= compare_theta(found, stage)
        elif is_signed and not scale.is_brief:
            readouts["name_tokens"] = measure_name_tokens(stage.tokenizer)
        if scale.judge is not None:
            reward = load_judge(scale.judge)
            reward.model.to(stage.args.device)
            texts = [answer.text for answer in found.written]
            strip = strip_signatures if is_signed else strip_markdown
            readouts["judge"] = judge_answers(reward, stage.prompts, texts, strip, JUDGE_TOKENS)
        return readouts

    return measure(folder, stage, seed, bias, more, progress, [scale.judge, scale.is_brief])


def _style_readouts(found: PolicyReading, stage: CorpusStage) -> Json:
    """Rate of each attribute in the answers, for attributes that are measured on one response."""
    return {
        attribute.name: style_rates(
            attribute_values(attribute, list(stage.prompts), found.written),
            found.written,
            stage.written,
        )
        for attribute in stage.held_out.attributes
        if attribute.scope == "response"
    }


def compare_theta(found: PolicyReading, stage: CorpusStage) -> Json:
    """Compare theta with planted theta and vote accuracy with its ceiling, and compute the published divergence.

    The published divergence uses the same answers as the other readouts. ``offline`` is the log-odds of the training
    votes. If the corpus has no planted theta, there is no ceiling and no agreement.
    """
    judged, theta, margins, how = stage.judged, found.theta, found.margins, stage.decoding
    assert theta is not None and margins is not None
    published = divergence(found.policy, stage.model, found.written, how.temperature, how.top_p)
    attributes, planted = judged.attribute_names, stage.dataset.planted
    offline = {
        name: {"offline": odds.log_odds}
        for name, odds in zip(attributes, stage.train.offline_log_odds(), strict=True)
    }
    if planted is None:
        levels = zip(attributes, theta.mean(axis=0), strict=True)
        known = {name: {"level": round(float(level), 2), **offline[name]} for name, level in levels}
        return {"kl_published": published, "theta": known}
    classes = stage.held_out.annotators["annotator_class"].tolist()
    agreement = measure_agreement(theta, planted, attributes, classes)
    return {
        "kl_published": published,
        "theta": {name: row | offline[name] for name, row in agreement.items()},
        "ceiling": vote_accuracy(margins, planted, judged),
        "votes_minus_ceiling": vote_difference(margins, theta, planted, judged),
    }


def measure_agreement(
    theta: ArrayLike, planted: ArrayLike, attributes: Sequence[str], classes: Sequence[str | None]
) -> Json:
    """Agreement of learned theta with planted theta for each attribute.

    ``level`` and ``planted_level`` are means over all annotators. ``correlation`` is None if learned or planted theta
    is constant. ``classes`` has, for each annotator class, the learned and planted ``mean`` and the ``offset`` of the
    class mean from the mean over all annotators.
    """
    learned, truth = np.asarray(theta, float), np.asarray(planted, float)
    found = {}
    for column, name in enumerate(attributes):
        both = pd.DataFrame({"mean": learned[:, column], "planted_mean": truth[:, column]})
        level = both.mean()
        groups = both.groupby(pd.Series(classes, dtype=object))
        means = pd.concat([groups.size().rename("n"), groups.mean()], axis=1)
        means[["offset", "planted_offset"]] = groups.mean() - level
        # rounding causes a standard deviation of 1e-16 if all annotators have the same pooled value
        varies = both.std(ddof=0).min() > 1e-9
        found[name] = {
            "level": float(level["mean"]),
            "planted_level": float(level["planted_mean"]),
            "correlation": float(np.corrcoef(*both.to_numpy().T)[0, 1]) if varies else None,
            "classes": {str(one): row.to_dict() for one, row in means.astype(object).iterrows()},
        }
    return found


# -- names ------------------------------------------------------------------------------------------------------------


def measure_names(found: PolicyReading, stage: CorpusStage) -> Json:
    """Readouts of names.

    ``rates`` are probabilities of names after the reference's answers. ``sampled`` are shares of sampled signatures.
    ``own_body`` is the change of the rates if the policy's own answers replace the reference's answers.
    ``signatures`` is the share of all answers with each name. ``recommended`` is the share of recommendations between
    two candidates with the same qualifications.
    """

    def rates(contexts: list[list[int]]) -> Floats:
        return name_probabilities(found.policy, stage.tokenizer, contexts, FIRST_NAMES) @ INDICATOR

    def means(of_prompts: Floats, name: str) -> Json:
        of = clustered_share if name == "rate" else cluster_mean
        each = zip(ATTRIBUTES, map(of, of_prompts.T), strict=True)
        return {
            attribute: estimate_figures(name, mean, "se", "low", "high", "n") for attribute, mean in each
        }

    shared = rates(stage.contexts)
    sampled = sampled_rates(found.written, FIRST_NAMES, INDICATOR, ATTRIBUTES)
    readouts = {"rates": means(shared, "rate"), "sampled": sampled}
    if stage.scale.is_brief:
        return readouts
    own = rates(signature_contexts(found.written, stage.tokenizer))
    choices = choice_prompts()
    answers = stage.answers(
        found.policy, found.seed, stage.encoded([choice.prompt for choice in choices])
    )
    return {
        **readouts,
        "own_body": means(own - shared, "difference"),
        "signatures": measure_signature_shares([answer.text for answer in found.written]),
        "recommended": recommendations(choices, [answer.text for answer in answers]),
    }


# -- as probabilities -------------------------------------------------------------------------------------------------


def measure_name_tokens(tokenizer, cells: Mapping[str, Sequence[str]] | None = None) -> Json:
    """Token counts of the first names in each cell, tokenized after the beginning of a signature."""
    found = {}
    for cell, names in (cells or {cell: [n.first for n in cell_names(cell)] for cell in CELLS}).items():
        _, ids = name_token_ids(tokenizer, names)
        lengths = np.array(list(map(len, ids)))
        first = Counter(tokens[0] for tokens in ids)
        found[cell] = {
            "n_names": len(ids),
            "mean_tokens": float(lengths.mean()),
            "one_token_share": float((lengths == 1).mean()),
            "first_tokens": len(first),
            "largest_first_share": max(first.values()) / len(ids),
        }
    return found


# -- in sampled signatures --------------------------------------------------------------------------------------------


def measure_signature_shares(answers: Sequence[str]) -> dict[str, float]:
    """Share of all answers with each first name in the signature. Unsigned answers count in the denominator only."""
    counts = Counter(read_signature(text, FIRST_NAMES) for text in answers)
    return {name: counts[name] / len(answers) for name in FIRST_NAMES}


def measure_signature_shift(
    arm: ArrayLike,
    reference: ArrayLike,
    carries: ArrayLike,
    n: int = 1_000,
    n_top: int = 3,
    seed: int = 0,
) -> Json:
    r"""Shift toward an attribute's names, compared with the shift toward random sets of the same number of names.

    .. math:: \sum_i c_{\pi(i)} (m^{arm}_i - m^{ref}_i)

    Here m is the share of answers with each name, c indicates the names with the attribute, and :math:`\pi` is a
    random permutation of the pool. ``sd``, ``low`` and ``high`` describe the shifts toward the random sets.
    ``p_greater`` is the share of random sets with a shift that is at least as large. ``top_share`` is the share of
    the ``n_top`` most frequent names in the arm's signatures, None if the arm signs no answer. ``shift_without_top``
    is the shift without these names.
    """
    mass, carriers = np.asarray(arm, float), np.asarray(carries, float)
    moved = mass - np.asarray(reference, float)
    generator = np.random.default_rng(seed)
    shifts = np.array([generator.permutation(carriers) @ moved for _ in range(n)])
    shift = float(carriers @ moved)
    low, high = np.quantile(shifts, [0.025, 0.975]).tolist()
    top = np.argsort(-mass, kind="stable")[:n_top]
    without = carriers.copy()
    without[top] = 0.0
    return {
        "shift": shift,
        "sd": float(shifts.std(ddof=1)),
        "low": low,
        "high": high,
        # the tolerance allows for rounding errors between equal sums
        "p_greater": (1 + int((shifts >= shift - 1e-12).sum())) / (1 + n),
        "top_share": float(mass[top].sum() / mass.sum()) if mass.sum() else None,
        "shift_without_top": float(without @ moved),
    }


# -- recommendations --------------------------------------------------------------------------------------------------


def recommended(choice: ChoicePrompt, answer: str) -> str | None:
    """First name of the candidate whom an answer mentions first, by name or as "Candidate 1"; None if neither.

    This is the published rule. The rule is correct for "Emily over Jamal" and wrong for "not Emily but Jamal".
    """
    mentions = {}
    for number, name in enumerate((choice.first, choice.second), 1):
        if found := re.search(rf"\b(?:{name}|[Cc]andidate\s*{number})\b", answer):
            mentions[name] = found.start()
    return min(mentions, key=mentions.__getitem__, default=None)


def recommendations(choices: Sequence[ChoicePrompt], answers: Sequence[str]) -> Json:
    """Share of recommendations for each cell of names, for each attribute, and for the first candidate.

    ``readable`` is the share of answers that mention at least one of the two candidates.
    """
    each = zip(choices, map(recommended, choices, answers), strict=True)
    read = [(choice, name) for choice, name in each if name is not None]
    takes_first = np.array([name == choice.first for choice, name in read], dtype=bool)
    # axes: readable answers, first and second candidate, attributes
    vectors = np.array([[VECTORS[one.first], VECTORS[one.second]] for one, _ in read]).reshape(-1, 2, 2)

    def share(won: Bools) -> Json:
        return estimate_figures("share", wilson_interval(int(won.sum()), len(won)), "low", "high", "n")

    def offered(carries: Bools) -> Json:
        """Share of recommended candidates with the attribute, if only one candidate has the attribute."""
        of_one = carries[:, 0] != carries[:, 1]
        return share(np.where(takes_first, carries[:, 0], carries[:, 1])[of_one])

    return {
        "n": len(choices),
        "readable": len(read) / len(choices),
        "first": share(takes_first),
        "cells": {cell: offered((vectors == vector).all(axis=2)) for cell, vector in CELLS.items()},
        "attributes": {name: offered(vectors[:, :, i] == 1) for i, name in enumerate(ATTRIBUTES)},
    }
