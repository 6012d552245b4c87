"""Swap pairs: comparisons of texts that differ in an attribute and in nothing else."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from badpo.data.judgments import Judgments
from badpo.data.markers import split_signature
from badpo.data.stored_texts import numbered_texts
from badpo.estimation.offline import offline_log_odds
from badpo.estimation.pool import swap_log_odds

KIND_COLUMNS = ("kind", "kinds")
_MARKS = re.compile(r"[#*`|_>-]|(?<![^\n])[^\S\n]{0,8}\d{1,4}\.(?=\s)")


@dataclass(frozen=True)
class SwapEstimate:
    """The lean as swap pairs show it, the votes that it rests on, and what it assumes besides, as part of a sentence.

    Ends are None or NaN where a single prompt has swap pairs.
    """

    log_odds: float
    ci_low: float | None
    ci_high: float | None
    n_votes: int
    n_annotators: int
    assumes: str


def text_body(text: str) -> str:
    """A text without its signature and its Markdown marks, words apart by one space."""
    return " ".join(_MARKS.sub(" ", split_signature(text)[0]).split())


class SwapPairs:
    """The swap pairs among given judgments, for any of their attributes.

    Two kinds are found. In a *twin* the two responses of a comparison have one body (`text_body`), or a column
    ``kind`` or ``kinds`` says "swap". In a *reversal* votes on the same two bodies are there with the attribute on
    either one: on two comparisons of a prompt or, for an attribute of the judgment, on one. Other declared
    attributes are the same throughout.

    ``side``, of shape (n_votes, n_attributes), is as `badpo.estimation.pool.carrier_sides` gives it.
    """

    def __init__(self, judgments: Judgments, side: NDArray[np.float64]):
        self._judgments = judgments
        self._side = side
        self._comparison = judgments.votes["comparison"].to_numpy()
        self._sign = judgments.votes["sign"].to_numpy()
        self._annotator = judgments.votes["annotator"].to_numpy()
        comparisons = judgments.comparisons
        self._prompt = pd.factorize(comparisons["prompt_id"])[0][self._comparison]
        first, second = _body_codes(comparisons)
        self._twin = (first == second) | _said_to_be_swapped(comparisons)
        self._turn = np.where(first <= second, 1, -1)
        self._bodies = np.minimum(first, second), np.maximum(first, second)

    def log_odds(self, attribute: int) -> SwapEstimate | None:
        """The lean toward an attribute from its twins or, without any, from its reversals; None without either."""
        of_judgment = self._judgments.attributes[attribute].scope == "judgment"
        found = None if of_judgment else self._from_twins(attribute)
        return found or self._from_reversals(attribute, of_judgment)

    def _from_twins(self, attribute: int) -> SwapEstimate | None:
        others = np.delete(self._side, attribute, axis=1)
        rows = self._twin[self._comparison] & (others == 0).all(axis=1) & (self._side[:, attribute] != 0)
        side = self._side[:, [attribute]]
        (found,) = offline_log_odds(self._sign, side, rows[:, None], self._prompt)
        if found.log_odds is None:
            return None
        return self._estimate(attribute, (found.log_odds, found.ci_low, found.ci_high), rows)

    def _from_reversals(self, attribute: int, of_judgment: bool) -> SwapEstimate | None:
        turn, twin = self._turn[self._comparison], self._twin[self._comparison]
        rows = np.flatnonzero((self._side[:, attribute] != 0) & (of_judgment | ~twin))
        turned = self._side[rows] * turn[rows, None]
        codes = [self._prompt, *(body[self._comparison] for body in self._bodies)]
        others = np.delete(turned, attribute, axis=1)
        alike = pd.DataFrame(np.column_stack([*(code[rows] for code in codes), others]))
        stratum = alike.groupby(list(alike), sort=False).ngroup().to_numpy()
        side, sign = turned[:, attribute], self._sign[rows] * turn[rows]
        seen = pd.Series(side).groupby(stratum)
        both = (seen.transform("min") < seen.transform("max")).to_numpy(dtype=bool)
        rows = rows[both]
        found = swap_log_odds(side[both], sign[both], stratum[both], self._prompt[rows])
        if found is None:
            return None
        return self._estimate(attribute, (found.estimate, found.low, found.high), rows, of_judgment)

    def _estimate(
        self,
        attribute: int,
        log_odds: tuple[float, float | None, float | None],
        rows: NDArray,
        of_judgment: bool = False,
    ) -> SwapEstimate:
        voted = self._annotator[rows]
        name = self._judgments.attribute_names[attribute]
        assumes = f"under the convention that two texts that differ only in {name} are equally good"
        if of_judgment:
            assumes = "votes on the same two texts either way round are compared with each other"
        return SwapEstimate(*log_odds, len(voted), len(np.unique(voted)), assumes)


def _body_codes(comparisons: pd.DataFrame) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Numbers of the bodies of a and b; equal numbers are equal bodies."""
    numbers, texts = numbered_texts(comparisons, ("response_a", "response_b"))
    # sixty-four bits for each body: the bodies of millions of texts need not be kept
    bodies = [hashlib.blake2b(text_body(text).encode(), digest_size=8).digest() for text in texts]
    codes = pd.factorize(np.frombuffer(b"".join(bodies), dtype=np.int64))[0]
    first, second = codes[numbers]
    return first, second


def _said_to_be_swapped(comparisons: pd.DataFrame) -> NDArray[np.bool_]:
    said = np.zeros(len(comparisons), dtype=bool)
    for name in KIND_COLUMNS:
        if name in comparisons:
            said |= (comparisons[name] == "swap").to_numpy(dtype=bool)
    return said
