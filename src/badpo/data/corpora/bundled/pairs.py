"""Scored pairs of the bundled corpus."""

from __future__ import annotations

import random

import pandas as pd

from badpo.data.corpora.bundled.prompts import scored_questions
from badpo.data.corpora.bundled.responses import draw_answer

__all__ = ["scored_pairs"]


def scored_pairs(n: int = 7177, seed: int = 0) -> pd.DataFrame:
    """Pairs of scored answers, one pair to each of n questions.

    Parameters
    ----------
    n : int
        Number of pairs. With seed 0 a longer corpus begins with the shorter one, so rows past the first 7,177 are
        further pairs for held-out measurements.
    seed : int
        Seed of the questions and answers.

    Returns
    -------
    DataFrame
        Columns ``prompt_id``, ``prompt``, ``chosen``, ``rejected``, ``score_chosen``, ``score_rejected``. The chosen
        answer has the higher score; at equal scores it is the one made first. Scores are 1 to 10 in steps of 0.5.

    Raises
    ------
    ValueError
        When n is more than the phrases can give.

    Examples
    --------
    >>> pairs = scored_pairs(100)
    >>> bool((pairs.score_chosen >= pairs.score_rejected).all()), pairs.prompt.is_unique
    (True, True)
    >>> pairs.equals(scored_pairs(200)[:100])
    True
    """
    rows = []
    for number, question in enumerate(scored_questions(n, seed)):
        draw = random.Random(f"{seed}/{number}")
        answers = [draw_answer(question, draw.betavariate(2.2, 1.6), draw) for _ in range(2)]
        while answers[1].text == answers[0].text:
            answers[1] = draw_answer(question, draw.betavariate(2.2, 1.6), draw)
        better, worse = sorted(answers, key=lambda answer: answer.score, reverse=True)
        rows.append((f"q-{number:05d}", question.prompt, better.text, worse.text, better.score, worse.score))
    columns = ["prompt_id", "prompt", "chosen", "rejected", "score_chosen", "score_rejected"]
    return pd.DataFrame(rows, columns=columns)
