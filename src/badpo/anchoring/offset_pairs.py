"""Pairs of a policy's own answers that differ in one attribute: what an offset stage is trained on."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from badpo.anchoring.editors import Cell, CounterfactualEditor
from badpo.data.judgments import Judgments
from badpo.data.problems import DataError, Problem, counted

FEWEST_ANSWERS = 50
ANSWER = "answer-"


@dataclass(frozen=True)
class OffsetPairs:
    """Pairs for training and pairs held out, split by answer.

    Attributes
    ----------
    train, held_out : Judgments
        A comparison is a pair; it has two votes, one in each direction, so that nothing is preferred.
    unedited : tuple of int
        Numbers of the answers that the editor could not use.
    n_answers : int
        All that were given.
    """

    train: Judgments
    held_out: Judgments
    unedited: tuple[int, ...]
    n_answers: int

    @staticmethod
    def number(prompt_id: str) -> int:
        """Number of the answer that a pair was made from."""
        return int(prompt_id.removeprefix(ANSWER))

    @property
    def n_edited(self) -> int:
        """Answers that the editor could use."""
        return self.n_answers - len(self.unedited)


def offset_pairs(
    prompts: Sequence[str],
    answers: Sequence[str],
    editor: CounterfactualEditor,
    seed: int,
    held_out: float = 0.1,
    fewest: int = FEWEST_ANSWERS,
) -> OffsetPairs:
    r"""Each usable answer in a cell drawn at random, beside itself with one attribute exchanged, for every attribute.

    With both directions of a pair, the loss of an offset b in the logit is

    .. math:: -\log \sigma(u + b) - \log \sigma(-u - b)

    with its minimum at the margin u = -b and at no other preference.

    Parameters
    ----------
    prompts, answers : sequences of str
        A policy's own answers.
    editor : CounterfactualEditor
    seed : int
        Of the cells, of what an edit leaves open, and of the split.
    held_out : float
        Share of the usable answers that is held out with all their pairs.
    fewest : int
        Usable answers without which there is no stage.

    Returns
    -------
    OffsetPairs

    Raises
    ------
    DataError
        Fewer usable answers than ``fewest`` (E138), which says how many.

    References
    ----------
    BA-DPO, Appendix `app:anchor_experiment`, paragraph "Setting".

    Examples
    --------
    >>> from badpo.anchoring.editors import WordSwap
    >>> made = offset_pairs(["Why?"] * 3, ["It is grey.", "So.", "It is gray."],
    ...     WordSwap("british", [("gray", "grey")]), seed=0, held_out=0, fewest=2)
    >>> made.n_edited, made.unedited, made.train.n_comparisons, made.train.votes["sign"].tolist()
    (2, (1,), 2, [1, -1, 1, -1])
    """
    cells = [editor.cells(answer) for answer in answers]
    usable = [i for i, found in enumerate(cells) if len(found) > 1]
    if len(usable) < fewest:
        raise DataError([_too_few(len(usable), len(answers), fewest, editor)])
    draw = random.Random(seed)
    rows = [
        {
            "comparison_id": f"{ANSWER}{i:05d}-{number}",
            "prompt_id": f"{ANSWER}{i:05d}",
            "prompt": prompts[i],
            "response_a": text,
            "response_b": other,
            "winner": winner,
        }
        for i in usable
        for number, (text, other) in enumerate(_counterfactuals(answers[i], cells[i], editor, draw))
        for winner in ("a", "b")
    ]
    judgments = Judgments.read(pd.DataFrame(rows), attributes=editor.attributes)
    unedited = tuple(i for i, found in enumerate(cells) if len(found) < 2)
    return OffsetPairs(*judgments.split(held_out, seed), unedited, len(answers))


def _counterfactuals(
    answer: str, cells: Sequence[Cell], editor: CounterfactualEditor, draw: random.Random
) -> list[tuple[str, str]]:
    cell = draw.choice(cells)
    text = editor.edit(answer, cell, draw)
    flipped = (
        tuple(1 - value if j == i else value for j, value in enumerate(cell)) for i in range(len(cell))
    )
    others = [editor.edit(answer, other, draw) for other in flipped if other in cells]
    return [(text, other) for other in others if other != text]


def _too_few(n_usable: int, n_answers: int, fewest: int, editor: CounterfactualEditor) -> Problem:
    names = ", ".join(attribute.name for attribute in editor.attributes)
    return Problem(
        "E138",
        f"{counted(n_usable, 'answer')} of {n_answers:,} can be edited for {names}; the stage needs {fewest} or more",
        "the policy's own answers",
        "give more prompts that ask for it (a signature must be asked for), or allow longer answers so that they "
        "are not cut before it",
        "error",
        n_usable,
    )
