"""What a policy does with the names of the pool: as probabilities, in its own answers, and when it must choose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from badpo.data.markers import word_pattern
from badpo.readouts.names import CELLS, NAMES, cell_names, name_of, read_signature
from badpo.readouts.rates import SIGNATURE_LEAD, name_probabilities, name_token_ids, signature_contexts
from badpo.readouts.sampled import figures, json_number, sampled_rates
from badpo.runs.evaluate import PolicyReading
from badpo.theory.summaries import Interval, cluster_mean, wilson_interval
from badpo_paper.corpora.bundled import ChoicePrompt, choice_prompts
from badpo_paper.stages import CorpusStage


@dataclass(frozen=True)
class CellTokens:
    """Tokens of the first names of one cell, behind the lead of a signature."""

    n_names: int
    mean_tokens: float
    one_token_share: float
    first_tokens: int
    largest_first_share: float


def token_balance(
    tokenizer, cells: Mapping[str, Sequence[str]] | None = None, lead: str = SIGNATURE_LEAD
) -> dict[str, CellTokens]:
    """Tokens of the name pool under a tokenizer, cell by cell."""
    pool = cells or {cell: [name.first for name in cell_names(cell)] for cell in CELLS}
    names = [name for members in pool.values() for name in members]
    _, ids = name_token_ids(tokenizer, names, lead)
    by_name = dict(zip(names, ids, strict=True))
    return {cell: _cell_tokens([by_name[name] for name in members]) for cell, members in pool.items()}


def _cell_tokens(ids: Sequence[Sequence[int]]) -> CellTokens:
    lengths = np.array([len(tokens) for tokens in ids])
    first = Counter(tokens[0] for tokens in ids)
    return CellTokens(
        n_names=len(ids),
        mean_tokens=float(lengths.mean()),
        one_token_share=float((lengths == 1).mean()),
        first_tokens=len(first),
        largest_first_share=max(first.values()) / len(ids),
    )


@dataclass(frozen=True)
class RelabellingNull:
    """A shift beside those that random labels of the same names give."""

    shift: float
    sd: float
    low: float
    high: float
    p_greater: float
    n: int


@dataclass(frozen=True)
class Concentration:
    """How few names carry an arm's signatures."""

    top: tuple[str, ...]
    top_share: float
    effective_names: float
    shift_without_top: float

    def to_json(self) -> dict[str, object]:
        """{"top", "top_share", "effective_names", "shift_without_top"}; null where nothing is signed."""
        return {
            "top": list(self.top),
            "top_share": json_number(self.top_share),
            "effective_names": json_number(self.effective_names),
            "shift_without_top": self.shift_without_top,
        }


def signature_mass(generations: Sequence, names: Sequence[str]) -> NDArray[np.float64]:
    """Share of all answers that each first name signs; unsigned answers belong to no name."""
    if not generations:
        raise ValueError("there are no sampled answers to count in")
    row = {name: i for i, name in enumerate(names)}
    found = [read_signature(generation.text, tuple(names)) for generation in generations]
    counts = np.bincount([row[name] for name in found if name], minlength=len(names))
    return counts / len(generations)


def relabelling_null(
    arm_mass: ArrayLike, reference_mass: ArrayLike, carries: ArrayLike, n: int = 1_000, seed: int = 0
) -> RelabellingNull:
    r"""The shift toward an attribute's names beside those toward random sets of as many names.

    .. math:: \sum_i c_{\pi(i)} (m^{arm}_i - m^{ref}_i)

    with c the carriers and :math:`\pi` a random permutation of the pool.
    """
    moved, carriers = _moved(arm_mass, reference_mass, carries)
    generator = np.random.default_rng(seed)
    shifts = np.array([generator.permutation(carriers) @ moved for _ in range(n)])
    shift = float(carriers @ moved)
    # equal sums differ in the last digit by the order of adding
    n_as_large = int((shifts >= shift - 1e-12).sum())
    low, high = np.quantile(shifts, [0.025, 0.975])
    return RelabellingNull(
        shift, float(shifts.std(ddof=1)), float(low), float(high), (1 + n_as_large) / (1 + n), n
    )


def concentration(
    arm_mass: ArrayLike, reference_mass: ArrayLike, carries: ArrayLike, names: Sequence[str], n_top: int = 3
) -> Concentration:
    """How much of a shift hangs on the few names that an arm signs with most."""
    moved, carriers = _moved(arm_mass, reference_mass, carries)
    mass = np.asarray(arm_mass, dtype=np.float64)
    total = mass.sum()
    top = np.argsort(-mass, kind="stable")[:n_top]
    without = carriers.copy()
    without[top] = 0.0
    return Concentration(
        top=tuple(names[i] for i in top),
        top_share=float(mass[top].sum() / total) if total else float("nan"),
        effective_names=float(total**2 / (mass**2).sum()) if total else float("nan"),
        shift_without_top=float(without @ moved),
    )


def _moved(
    arm_mass: ArrayLike, reference_mass: ArrayLike, carries: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mass that each name gained, and the carriers as zeros and ones."""
    arm, reference, carriers = (np.asarray(x, dtype=np.float64) for x in (arm_mass, reference_mass, carries))
    if not arm.shape == reference.shape == carriers.shape or arm.ndim != 1:
        raise ValueError(
            f"one mass and one label for each name are needed; got {arm.shape}, {reference.shape}, {carriers.shape}"
        )
    return arm - reference, carriers


def own_body_difference(own: ArrayLike, shared: ArrayLike) -> list[Interval]:
    """Rate of each attribute behind the policy's own answers minus that behind the reference's, prompt by prompt."""
    differences = np.asarray(own, dtype=np.float64) - np.asarray(shared, dtype=np.float64)
    return [cluster_mean(column) for column in differences.T]


ATTRIBUTES = ("woman", "black")


@dataclass(frozen=True)
class Recommendations:
    """Shares of two-candidate prompts."""

    n: int
    readable: Interval
    first: Interval
    cells: dict[str, Interval]
    attributes: dict[str, Interval]

    def to_json(self) -> dict[str, Any]:
        """{"n", "readable", "first": {...}, "cells": {cell: {...}}, "attributes": {attribute: {...}}}."""
        return {
            "n": self.n,
            "readable": self.readable.estimate,
            "first": _share(self.first),
            "cells": {name: _share(found) for name, found in self.cells.items()},
            "attributes": {name: _share(found) for name, found in self.attributes.items()},
        }


def recommended(choice: ChoicePrompt, answer: str) -> str | None:
    """First name of the candidate that an answer recommends."""
    named = [name for name in (choice.first, choice.second) if word_pattern([name]).search(answer)]
    return named[0] if len(named) == 1 else None


def recommendations(choices: Sequence[ChoicePrompt], answers: Sequence[str]) -> Recommendations:
    """Share of recommendations for each cell of names, for each attribute, and for the first place."""
    if len(choices) != len(answers) or not choices:
        raise ValueError(
            f"one answer to each choice is needed: {len(choices)} choices, {len(answers)} answers"
        )
    taken = [recommended(choice, answer) for choice, answer in zip(choices, answers, strict=True)]
    readable = [(choice, name) for choice, name in zip(choices, taken, strict=True) if name is not None]
    # rows: readable answers; columns: first and second candidate; then the attributes
    vectors = np.array(
        [[_vector(choice.first), _vector(choice.second)] for choice, _ in readable], dtype=np.int64
    ).reshape(-1, 2, len(ATTRIBUTES))
    takes_first = np.array([name == choice.first for choice, name in readable], dtype=bool)
    cells = {}
    for cell, vector in CELLS.items():
        in_cell = (vectors == np.array(vector)).all(axis=2)
        cells[cell] = _share_of_offered(in_cell, takes_first)
    return Recommendations(
        n=len(choices),
        readable=wilson_interval(len(readable), len(choices)),
        first=wilson_interval(int(takes_first.sum()), len(readable)),
        cells=cells,
        attributes={
            name: _share_of_offered(vectors[:, :, column] == 1, takes_first)
            for column, name in enumerate(ATTRIBUTES)
        },
    )


def _share_of_offered(carries: NDArray[np.bool_], takes_first: NDArray[np.bool_]) -> Interval:
    """Share for the carrying side, among choices in which one of the two carries."""
    offered = carries[:, 0] != carries[:, 1]
    taken = np.where(takes_first, carries[:, 0], carries[:, 1])
    return wilson_interval(int(taken[offered].sum()), int(offered.sum()))


def _vector(first: str) -> tuple[int, int]:
    name = name_of(first)
    return name.woman, name.black


def _share(found: Interval) -> dict[str, float | int | None]:
    return {
        "share": json_number(found.estimate),
        "low": json_number(found.low),
        "high": json_number(found.high),
        "n": found.n,
    }


FIRST_NAMES = tuple(name.first for name in NAMES)
INDICATOR = np.array([(name.woman, name.black) for name in NAMES], dtype=np.float64)


def name_readouts(found: PolicyReading, stage: CorpusStage, is_brief: bool) -> dict[str, Any]:
    """Readouts of names: ``rates`` behind the reference's answers, ``sampled`` signatures, and what depends on them.

    ``own_body`` is what the policy's own answers change of the rates; ``signatures`` the share of all answers that each
    name signs; ``recommended`` whom the policy recommends of two candidates with the same qualifications.
    """
    attributes = stage.held_out.attribute_names

    def rates(contexts: list[list[int]]) -> NDArray[np.float64]:
        return name_probabilities(found.policy, stage.tokenizer, contexts, FIRST_NAMES) @ INDICATOR

    shared = rates(stage.contexts)
    means = zip(attributes, map(cluster_mean, shared.T), strict=True)
    readouts: dict[str, Any] = {
        "rates": {name: figures(rate=mean.estimate, se=mean.se) for name, mean in means},
        "sampled": sampled_rates(found.written, FIRST_NAMES, INDICATOR, attributes),
    }
    if is_brief:
        return readouts
    own = own_body_difference(rates(signature_contexts(found.written, stage.tokenizer)), shared)
    mass = signature_mass(found.written, FIRST_NAMES).tolist()
    choices = choice_prompts()
    written = stage.answers(found.policy, found.seed, stage.encoded([choice.prompt for choice in choices]))
    return {
        **readouts,
        "own_body": {
            name: figures(difference=one.estimate, se=one.se)
            for name, one in zip(attributes, own, strict=True)
        },
        # all names, also those that nobody signs: the readouts of a mixture's policies have one form
        "signatures": dict(zip(FIRST_NAMES, mass, strict=True)),
        "recommended": recommendations(choices, [answer.text for answer in written]).to_json(),
    }


def name_tokens(tokenizer) -> dict:
    """How many tokens the names of each cell take (`badpo_paper.name_readouts`)."""
    return {cell: dict(vars(found)) for cell, found in token_balance(tokenizer).items()}
