"""Swap pairs: comparisons of texts that differ in an attribute and in nothing else."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from badpo.data.judgments import Judgments
from badpo.data.markers import split_signature
from badpo.data.stored_texts import numbered_texts
from badpo.estimation.offline import offline_log_odds
from badpo.estimation.pool import swap_log_odds
from badpo.theory.summaries import Interval

KIND_COLUMNS = ("kind", "kinds")
_MARKS = re.compile(r"[#*`|_>-]|(?<![^\n])[^\S\n]{0,8}\d{1,4}\.(?=\s)")


@dataclass(frozen=True)
class SwapEstimate:
    """The lean as swap pairs show it.

    Attributes
    ----------
    log_odds, ci_low, ci_high : float or None
        Ends are None where a single prompt has swap pairs.
    n_votes, n_annotators : int
        Votes that it rests on, and who cast them.
    assumes : str
        What it rests on besides, as part of a sentence.
    """

    log_odds: float
    ci_low: float | None
    ci_high: float | None
    n_votes: int
    n_annotators: int
    assumes: str


def text_body(text: str) -> str:
    r"""A text without its signature and its Markdown marks, words apart by one space.

    Examples
    --------
    >>> text_body("# Rice\n- **Boil** it.\n\n— Emily Miller")
    'Rice Boil it.'
    """
    return " ".join(_MARKS.sub(" ", split_signature(text)[0]).split())


class SwapPairs:
    """The swap pairs among given judgments, for any of their attributes.

    Two kinds are found. In a *twin* the two responses of a comparison have one body (`text_body`), or a column
    ``kind`` or ``kinds`` says "swap". In a *reversal* votes on the same two bodies are there with the attribute on
    either one: on two comparisons of a prompt or, for an attribute of the judgment, on one. Other declared
    attributes are the same throughout.

    Parameters
    ----------
    judgments : Judgments
    side : array of shape (n_votes, n_attributes)
        As `badpo.estimation.pool.carrier_sides` gives them.

    Examples
    --------
    >>> from badpo.attributes import Bold
    >>> rows = [{"prompt": "Why?", "chosen": a, "rejected": b} for a, b in
    ...     [("**so**", "so"), ("**so**", "so"), ("**so**", "so"), ("so", "**so**")]]
    >>> judgments = Judgments.read(rows, attributes=[Bold()])
    >>> pairs = SwapPairs(judgments, judgments.delta)
    >>> round(pairs.log_odds(0).log_odds, 3)
    1.099
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
        n_annotators = len(np.unique(self._annotator[rows]))
        ends = found.ci_low, found.ci_high
        return SwapEstimate(found.log_odds, *ends, found.n_cross, n_annotators, self._convention(attribute))

    def _from_reversals(self, attribute: int, of_judgment: bool) -> SwapEstimate | None:
        others = np.delete(self._side, attribute, axis=1)
        turn = self._turn[self._comparison]
        rows = np.flatnonzero(
            (self._side[:, attribute] != 0) & ~(self._twin[self._comparison] & ~of_judgment)
        )
        same: dict[Any, Any] = {"prompt": self._prompt[rows]}
        same |= {i: codes[self._comparison[rows]] for i, codes in enumerate(self._bodies)}
        same |= {("other", i): values[rows] * turn[rows] for i, values in enumerate(others.T)}
        table = pd.DataFrame(same)
        stratum = table.groupby(list(table.columns), sort=False).ngroup().to_numpy()
        side, sign = self._side[rows, attribute] * turn[rows], self._sign[rows] * turn[rows]
        seen = pd.DataFrame({"side": side}).groupby(stratum)["side"]
        both = (seen.transform("min") < seen.transform("max")).to_numpy(dtype=bool)
        found = swap_log_odds(side[both], sign[both], stratum[both], self._prompt[rows][both])
        if found is None:
            return None
        assumes = (
            "votes on the same two texts either way round are compared with each other"
            if of_judgment
            else self._convention(attribute)
        )
        n_annotators = len(np.unique(self._annotator[rows][both]))
        return SwapEstimate(found.estimate, *_known(found), int(both.sum()), n_annotators, assumes)

    def _convention(self, attribute: int) -> str:
        name = self._judgments.attribute_names[attribute]
        return f"under the convention that two texts that differ only in {name} are equally good"


def _known(interval: Interval) -> tuple[float | None, float | None]:
    if np.isnan(interval.se):
        return None, None
    return interval.low, interval.high


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
