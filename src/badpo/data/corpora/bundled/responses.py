"""Answers of the bundled corpus: a latent quality decides what they say, a form how they look."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from badpo.data.corpora.bundled.prompts import TOPICS, Question

__all__ = ["Answer", "draw_answer"]

Key = TypeVar("Key")

OPENERS = (
    "To {task}, start with {tool}.",
    "You can {task} with {tool}.",
    "It is easy to {task}.",
    "Take {tool}.",
)
VAGUE = (
    "It depends on many things.",
    "There are many ways to do this.",
    "Some people like it and some do not.",
    "You will see how it goes.",
    "Just do it well.",
    "That is a good question.",
    "It is hard to say.",
    "Do what feels right.",
)
CLOSERS = ("This way {aim}.", "In the end {aim}.", "Then {aim}.")
EMPTY_CLOSERS = ("Good luck with it.", "I hope this helps.", "That is all I know.")
LINKS = ("Then", "Next,", "After that,", "Also", "Now")
FORM_SHARES = {"prose": 0.56, "numbered": 0.16, "bullets": 0.14, "bold": 0.09, "header": 0.05}
LENGTH_SHARES = {1: 0.34, 2: 0.32, 3: 0.18, 4: 0.09, 5: 0.05, 6: 0.02}


@dataclass(frozen=True)
class Answer:
    """One answer with the score it was made for.

    Attributes
    ----------
    text : str
        The answer, unsigned.
    quality : float
        Latent quality between 0 and 1.
    score : float
        1 to 10 in steps of 0.5: ``1 + 9 * quality`` plus a small error.
    """

    text: str
    quality: float
    score: float


def draw_answer(question: Question, quality: float, draw: random.Random) -> Answer:
    """Answer of a given quality.

    Each sentence is content (a step, a step with its reason, an instruction with a figure, advice on the situation)
    with a probability that grows with the quality, and otherwise a flaw: vague, wrong, about something else, or said
    before. A good answer also names the task at its start and the aim at its end. Length and form hardly depend on
    the quality.

    Parameters
    ----------
    question : Question
        What was asked.
    quality : float
        Between 0 and 1.
    draw : random.Random
        Source of all choices.

    Returns
    -------
    Answer
        Text and score.

    Examples
    --------
    >>> from badpo.data.corpora.bundled.prompts import scored_questions
    >>> answer = draw_answer(scored_questions(1, seed=0)[0], quality=0.9, draw=random.Random(0))
    >>> 1 <= answer.score <= 10, len(answer.text.split()) >= 5
    (True, True)
    """
    form = _weighted(draw, FORM_SHARES)
    n_points = _weighted(draw, LENGTH_SHARES)
    if form in ("numbered", "bullets"):
        n_points = max(2, n_points)
    good = draw.random() < 0.15 + 0.8 * quality
    opener = draw.choice(OPENERS) if good else draw.choice(VAGUE)
    opener = opener.format(task=question.task, tool=draw.choice(question.topic.tools))
    points = _points(question, quality, n_points, draw)
    closer = _closer(question, quality, draw)
    text = FORMS[form](opener, points, closer, question, draw)
    score = 1.0 + 9.0 * quality + draw.gauss(0.0, 0.4)
    return Answer(text, quality, min(10.0, max(1.0, round(2.0 * score) / 2.0)))


def _points(question: Question, quality: float, n_points: int, draw: random.Random) -> list[str]:
    """Sentences between the opening and the end, without capitals and full stops."""
    topic = question.topic
    steps = draw.sample(topic.steps, len(topic.steps))
    details = draw.sample(topic.details, len(topic.details))
    points: list[str] = []
    for _ in range(n_points):
        if draw.random() < 0.12 + 0.84 * quality:
            points.append(_content(question, steps, details, draw))
        else:
            points.append(_flaw(question, points, draw))
    return points


def _content(question: Question, steps: list[str], details: list[str], draw: random.Random) -> str:
    """The next thing worth saying."""
    kind = draw.random()
    if kind < 0.22 and details:
        return details.pop()
    if kind < 0.3:
        return question.advice
    step = steps.pop()
    return f"{step}, because {draw.choice(question.topic.reasons)}" if kind < 0.45 else step


def _flaw(question: Question, said: Sequence[str], draw: random.Random) -> str:
    """A vague, wrong, unrelated or repeated point."""
    kind = draw.random()
    if kind < 0.3:
        return _bare(draw.choice(VAGUE))
    if kind < 0.6:
        return draw.choice(question.topic.mistakes)
    if kind < 0.85 or not said:
        return draw.choice(draw.choice(TOPICS).steps)
    return draw.choice(said)


def _closer(question: Question, quality: float, draw: random.Random) -> str:
    """Last sentence, or nothing."""
    if draw.random() < 0.6:
        return ""
    if draw.random() < 0.1 + 0.85 * quality:
        return draw.choice(CLOSERS).format(aim=draw.choice(question.topic.aims))
    return draw.choice(EMPTY_CLOSERS)


def _prose(opener: str, points: Sequence[str], closer: str, question: Question, draw: random.Random) -> str:
    """Sentences one after the other."""
    linked = [
        _sentence(point) if draw.random() < 0.6 else f"{draw.choice(LINKS)} {point}." for point in points
    ]
    return " ".join(part for part in (opener, *linked, closer) if part)


def _numbered(
    opener: str, points: Sequence[str], closer: str, question: Question, draw: random.Random
) -> str:
    """A numbered list."""
    lines = [f"{number}. {_sentence(point)}" for number, point in enumerate(points, start=1)]
    return "\n".join(part for part in (opener, *lines, closer) if part)


def _bullets(opener: str, points: Sequence[str], closer: str, question: Question, draw: random.Random) -> str:
    """A list with dashes."""
    return "\n".join(
        part for part in (opener, *(f"- {_sentence(point)}" for point in points), closer) if part
    )


def _bold(opener: str, points: Sequence[str], closer: str, question: Question, draw: random.Random) -> str:
    """Prose whose first point stands in bold."""
    rest = _prose("", points[1:], closer, question, draw)
    return f"{opener} **{_sentence(points[0])}** {rest}".rstrip()


def _header(opener: str, points: Sequence[str], closer: str, question: Question, draw: random.Random) -> str:
    """Prose below a header that names the topic."""
    return f"## {question.topic.name.capitalize()}\n{_prose(opener, points, closer, question, draw)}"


FORMS: dict[str, Callable[..., str]] = {
    "prose": _prose,
    "numbered": _numbered,
    "bullets": _bullets,
    "bold": _bold,
    "header": _header,
}


def _sentence(point: str) -> str:
    """A point with a capital and a full stop."""
    return f"{point[0].upper()}{point[1:]}."


def _bare(sentence: str) -> str:
    """A sentence without its capital and full stop."""
    return f"{sentence[0].lower()}{sentence[1:-1]}"


def _weighted(draw: random.Random, shares: Mapping[Key, float]) -> Key:
    """One key, as likely as its share says."""
    return draw.choices(list(shares), weights=list(shares.values()))[0]
