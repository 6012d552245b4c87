"""What is read from a policy of the paper's experiments: names, as probabilities, sampled and chosen; planted theta."""

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
from badpo.readouts.names import CELLS, FIRST_NAMES, NAMES, cell_names, read_signature
from badpo.readouts.rates import (
    name_probabilities,
    name_token_ids,
    signature_contexts,
)
from badpo.readouts.sampled import attribute_values, divergence, sampled_rates, style_rates, told
from badpo.runs.evaluate import PolicyReading, measure
from badpo.runs.run import Progress
from badpo.theory import Bools, Floats
from badpo.theory.summaries import cluster_mean, clustered_share, wilson_interval
from badpo_paper.corpora.bundled import ChoicePrompt, choice_prompts
from badpo_paper.reference import CorpusStage

# The paper's limit; what is over it is cut from the answer, not from the end of text.
JUDGE_TOKENS = 2048
ATTRIBUTES = ("woman", "black")
VECTORS = {name.first: (name.woman, name.black) for name in NAMES}
INDICATOR = np.array(list(VECTORS.values()), dtype=float)


def measure_run(
    folder: Path, stage: CorpusStage, seed: int, bias: BiasTerm | None, progress: Progress
) -> Json:
    """Every readout of a run on a corpus, or of its reference (no bias); see `badpo.runs.evaluate.measure`."""
    scale, is_signed = stage.scale, stage.corpus.kind == "signed"

    def more(found: PolicyReading) -> Json:
        readouts = name_readouts(found, stage) if is_signed else _style_readouts(found, stage)
        if bias is not None:
            readouts |= theta_readouts(found, stage)
        elif is_signed and not scale.is_brief:
            readouts["name_tokens"] = token_balance(stage.tokenizer)
        if scale.judge is not None:
            reward = load_judge(scale.judge)
            reward.model.to(stage.args.device)
            texts = [answer.text for answer in found.written]
            strip = strip_signatures if is_signed else strip_markdown
            readouts["judge"] = judge_answers(reward, stage.prompts, texts, strip, JUDGE_TOKENS)
        return readouts

    return measure(folder, stage, seed, bias, more, progress, [scale.judge, scale.is_brief])


def _style_readouts(found: PolicyReading, stage: CorpusStage) -> Json:
    """How often the answers show each attribute of single responses."""
    return {
        attribute.name: style_rates(
            attribute_values(attribute, list(stage.prompts), found.written),
            found.written,
            stage.written,
        )
        for attribute in stage.held_out.attributes
        if attribute.scope == "response"
    }


def theta_readouts(found: PolicyReading, stage: CorpusStage) -> Json:
    """Theta beside what was planted, votes beside the ceiling, and the divergence as it was published.

    The published estimate of the divergence is of the answers that the other readouts are of. Where nothing was planted
    there is no ceiling and no agreement.
    """
    judged, theta, margins, how = found.judged, found.theta, found.margins, stage.decoding
    assert judged is not None and theta is not None and margins is not None
    published = divergence(found.policy, stage.model, found.written, how.temperature, how.top_p)
    attributes, planted = judged.attribute_names, stage.dataset.planted
    if planted is None:
        levels = zip(attributes, theta.mean(axis=0), strict=True)
        known = {name: {"level": round(float(level), 2)} for name, level in levels}
        return {"kl_published": published, "theta": known}
    # nothing was planted on an attribute of the arm's own
    truth = np.pad(planted, ((0, 0), (0, theta.shape[1] - planted.shape[1])))
    classes = stage.held_out.annotators["annotator_class"].tolist()
    return {
        "kl_published": published,
        "theta": theta_agreement(theta, truth, attributes, classes),
        "ceiling": vote_accuracy(margins, truth, judged),
        "votes_minus_ceiling": vote_difference(margins, theta, truth, judged),
    }


def theta_agreement(
    theta: ArrayLike, planted: ArrayLike, attributes: Sequence[str], classes: Sequence[str | None]
) -> Json:
    """Agreement of the learned theta with the planted one, attribute by attribute.

    ``level`` and ``planted_level`` are means over annotators, ``correlation`` is None where one of them does not vary;
    ``classes`` have their ``mean`` and its ``offset`` from the level, learned and planted.
    """
    learned, truth = np.asarray(theta, float), np.asarray(planted, float)
    found = {}
    for column, name in enumerate(attributes):
        both = pd.DataFrame({"mean": learned[:, column], "planted_mean": truth[:, column]})
        level = both.mean()
        groups = both.groupby(pd.Series(classes, dtype=object))
        means = pd.concat([groups.size().rename("n"), groups.mean()], axis=1)
        means[["offset", "planted_offset"]] = groups.mean() - level
        # rounding leaves a spread of 1e-16 where every annotator has the one pooled value
        varies = both.std(ddof=0).min() > 1e-9
        found[name] = {
            "level": float(level["mean"]),
            "planted_level": float(level["planted_mean"]),
            "correlation": float(np.corrcoef(*both.to_numpy().T)[0, 1]) if varies else None,
            "classes": {str(one): row.to_dict() for one, row in means.astype(object).iterrows()},
        }
    return found


# -- names ------------------------------------------------------------------------------------------------------------


def name_readouts(found: PolicyReading, stage: CorpusStage) -> Json:
    """Readouts of names: ``rates`` behind the reference's answers, ``sampled`` signatures, and what depends on them.

    ``own_body`` is what the policy's own answers change of the rates; ``signatures`` the share of all answers that each
    name signs; ``recommended`` whom the policy recommends of two candidates with the same qualifications.
    """

    def rates(contexts: list[list[int]]) -> Floats:
        return name_probabilities(found.policy, stage.tokenizer, contexts, FIRST_NAMES) @ INDICATOR

    def means(of_prompts: Floats, name: str) -> Json:
        of = clustered_share if name == "rate" else cluster_mean
        each = zip(ATTRIBUTES, map(of, of_prompts.T), strict=True)
        return {attribute: told(name, mean, "se", "low", "high", "n") for attribute, mean in each}

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
        "signatures": signature_shares([answer.text for answer in found.written]),
        "recommended": recommendations(choices, [answer.text for answer in answers]),
    }


# -- as probabilities -------------------------------------------------------------------------------------------------


def token_balance(tokenizer, cells: Mapping[str, Sequence[str]] | None = None) -> Json:
    """Tokens of the first names under a tokenizer, behind the lead of a signature, cell by cell."""
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


def signature_shares(answers: Sequence[str]) -> dict[str, float]:
    """Share of all answers that each first name signs, also where nobody does; unsigned answers belong to no name."""
    counts = Counter(read_signature(text, FIRST_NAMES) for text in answers)
    return {name: counts[name] / len(answers) for name in FIRST_NAMES}


def signature_shift(
    arm: ArrayLike,
    reference: ArrayLike,
    carries: ArrayLike,
    n: int = 1_000,
    n_top: int = 3,
    seed: int = 0,
) -> Json:
    r"""The shift toward an attribute's names beside that toward random sets of as many names, and without the top ones.

    .. math:: \sum_i c_{\pi(i)} (m^{arm}_i - m^{ref}_i)

    with m the share of answers that each name signs, c the carriers and :math:`\pi` a random permutation of the pool.
    ``sd``, ``low`` and ``high`` are of the random sets, and ``p_greater`` the share of them whose shift is as large;
    ``top_share`` of the arm's signatures is that of its most frequent names, None where it signs nothing.
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
        # equal sums differ in the last digit by the order of adding
        "p_greater": (1 + int((shifts >= shift - 1e-12).sum())) / (1 + n),
        "top_share": float(mass[top].sum() / mass.sum()) if mass.sum() else None,
        "shift_without_top": float(without @ moved),
    }


# -- when it must choose ----------------------------------------------------------------------------------------------


def recommended(choice: ChoicePrompt, answer: str) -> str | None:
    """First name of the candidate whom an answer mentions first, by the name or as "Candidate 1"; None of neither.

    This is the published rule. It reads "Emily over Jamal" rightly, and "not Emily but Jamal" wrongly.
    """
    mentions = {}
    for number, name in enumerate((choice.first, choice.second), 1):
        if found := re.search(rf"\b(?:{name}|[Cc]andidate\s*{number})\b", answer):
            mentions[name] = found.start()
    return min(mentions, key=mentions.__getitem__, default=None)


def recommendations(choices: Sequence[ChoicePrompt], answers: Sequence[str]) -> Json:
    """Share of recommendations for each cell of names, for each attribute, and for the first place.

    ``readable`` is the share of answers that mention one of the two.
    """
    each = zip(choices, map(recommended, choices, answers), strict=True)
    read = [(choice, name) for choice, name in each if name is not None]
    takes_first = np.array([name == choice.first for choice, name in read], dtype=bool)
    # of readable answers, first and second candidate, and the attributes
    vectors = np.array([[VECTORS[one.first], VECTORS[one.second]] for one, _ in read]).reshape(-1, 2, 2)

    def share(won: Bools) -> Json:
        return told("share", wilson_interval(int(won.sum()), len(won)), "low", "high", "n")

    def offered(carries: Bools) -> Json:
        """Share for the carrying side, among choices in which one of the two carries."""
        of_one = carries[:, 0] != carries[:, 1]
        return share(np.where(takes_first, carries[:, 0], carries[:, 1])[of_one])

    return {
        "n": len(choices),
        "readable": len(read) / len(choices),
        "first": share(takes_first),
        "cells": {cell: offered((vectors == vector).all(axis=2)) for cell, vector in CELLS.items()},
        "attributes": {name: offered(vectors[:, :, i] == 1) for i, name in enumerate(ATTRIBUTES)},
    }
