"""What a policy does with the names of the pool: as probabilities, in its own answers, and when it must choose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from badpo.data.files import Json
from badpo.data.markers import word_pattern
from badpo.readouts.names import CELLS, FIRST_NAMES, NAMES, cell_names, read_signature
from badpo.readouts.rates import (
    SIGNATURE_LEAD,
    name_probabilities,
    name_token_ids,
    signature_contexts,
)
from badpo.readouts.sampled import figures, sampled_rates
from badpo.runs.evaluate import PolicyReading
from badpo.theory import Bools, Floats
from badpo.theory.summaries import cluster_mean, wilson_interval
from badpo_paper.corpora.bundled import ChoicePrompt, choice_prompts
from badpo_paper.reference import CorpusStage

ATTRIBUTES = ("woman", "black")
VECTORS = {name.first: (name.woman, name.black) for name in NAMES}
INDICATOR = np.array(list(VECTORS.values()), dtype=np.float64)


def name_readouts(found: PolicyReading, stage: CorpusStage) -> Json:
    """Readouts of names: ``rates`` behind the reference's answers, ``sampled`` signatures, and what depends on them.

    ``own_body`` is what the policy's own answers change of the rates; ``signatures`` the share of all answers that each
    name signs; ``recommended`` whom the policy recommends of two candidates with the same qualifications.
    """

    def rates(contexts: list[list[int]]) -> Floats:
        return name_probabilities(found.policy, stage.tokenizer, contexts, FIRST_NAMES) @ INDICATOR

    def means(of_prompts: Floats, name: str) -> dict[str, dict[str, float | None]]:
        each = zip(ATTRIBUTES, map(cluster_mean, of_prompts.T), strict=True)
        told = {a: {name: mean.estimate, "se": mean.se, "n": mean.n} for a, mean in each}
        return {attribute: figures(**given) for attribute, given in told.items()}

    shared = rates(stage.contexts)
    sampled = sampled_rates(found.written, FIRST_NAMES, INDICATOR, ATTRIBUTES)
    readouts: Json = {"rates": means(shared, "rate"), "sampled": sampled}
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


def token_balance(
    tokenizer, cells: Mapping[str, Sequence[str]] | None = None
) -> dict[str, dict[str, float]]:
    """Tokens of the first names under a tokenizer, behind the lead of a signature, cell by cell."""
    found = {}
    for cell, names in (cells or {cell: [n.first for n in cell_names(cell)] for cell in CELLS}).items():
        _, ids = name_token_ids(tokenizer, names, SIGNATURE_LEAD)
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
) -> dict[str, float | None]:
    r"""The shift toward an attribute's names beside that toward random sets of as many names, and without the top ones.

    .. math:: \sum_i c_{\pi(i)} (m^{arm}_i - m^{ref}_i)

    with m the share of answers that each name signs, c the carriers and :math:`\pi` a random permutation of the pool.

    Returns
    -------
    dict
        ``shift``; ``sd``, ``low`` and ``high`` of the random sets, and ``p_greater``, the share of them whose shift is
        as large; ``top_share`` of the arm's signatures that its ``n_top`` most frequent names carry, None where it
        signs nothing, and ``shift_without_top``.
    """
    mass, carriers = np.asarray(arm, dtype=np.float64), np.asarray(carries, dtype=np.float64)
    moved = mass - np.asarray(reference, dtype=np.float64)
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
    """First name of the candidate that an answer recommends."""
    named = [name for name in (choice.first, choice.second) if word_pattern([name]).search(answer)]
    return named[0] if len(named) == 1 else None


def recommendations(choices: Sequence[ChoicePrompt], answers: Sequence[str]) -> Json:
    """Share of recommendations for each cell of names, for each attribute, and for the first place.

    ``readable`` is the share of answers that name one of the two.
    """
    each = zip(choices, map(recommended, choices, answers), strict=True)
    read = [(choice, name) for choice, name in each if name is not None]
    takes_first = np.array([name == choice.first for choice, name in read], dtype=bool)
    # of readable answers, first and second candidate, and the attributes
    vectors = np.array([[VECTORS[one.first], VECTORS[one.second]] for one, _ in read]).reshape(-1, 2, 2)

    def share(won: Bools) -> dict[str, float | None]:
        found = wilson_interval(int(won.sum()), len(won))
        return figures(share=found.estimate, low=found.low, high=found.high, n=found.n)

    def offered(carries: Bools) -> dict[str, float | None]:
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
