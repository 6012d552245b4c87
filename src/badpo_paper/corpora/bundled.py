"""Our own small corpus: scored answers to everyday questions, made by a deterministic generator from our own words.

Two tables of votes stand on the same answers: the signed recipe (`corpora.signed`), and `style_votes`, whose
annotators lean toward length and Markdown. All text is synthetic. ``docs/corpora.md`` says how it is made and what it
cannot show.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit

from badpo.data.attributes import Length, Markdown
from badpo.data.judgments import Judgments
from badpo.readouts.names import CELLS, SURNAMES, ask_to_sign, cell_names


@dataclass(frozen=True)
class Topic:
    """The phrases of one everyday topic."""

    name: str
    tasks: tuple[str, ...]
    tools: tuple[str, ...]
    steps: tuple[str, ...]
    details: tuple[str, ...]
    reasons: tuple[str, ...]
    aims: tuple[str, ...]
    mistakes: tuple[str, ...]


N_SIGNING, N_FRESH = 300, 3000
PHRASES = json.loads(resources.files("badpo_paper.corpora").joinpath("bundled.json").read_text("utf-8"))
LINKS = PHRASES["links"]
# phrases of a field stand apart by "; "
TOPICS = tuple(
    Topic(name, **{field: tuple(text.split("; ")) for field, text in fields.items()})
    for name, fields in PHRASES["topics"].items()
)


@dataclass(frozen=True)
class Question:
    """One question and what it was made from."""

    prompt: str
    topic: Topic
    task: str
    advice: str


@dataclass(frozen=True)
class ChoicePrompt:
    """A question that presents two candidates with the same qualifications."""

    prompt: str
    first: str
    second: str


@cache
def _all_questions() -> tuple[Question, ...]:
    """Every question the phrases give, in one fixed shuffled order."""
    questions = [
        Question(form.format(task=task, situation=situation), topic, task, advice)
        for topic in TOPICS
        for task in topic.tasks
        for situation, advice in PHRASES["situations"].items()
        for form in PHRASES["question_forms"]
    ]
    random.Random(0).shuffle(questions)
    return tuple(questions)


def signing_prompts() -> list[str]:
    """Prompts of the attribute-rate readout: 300 questions, each with the request to sign the answer."""
    return [ask_to_sign(question.prompt) for question in _all_questions()[:N_SIGNING]]


def fresh_prompts() -> list[str]:
    """Prompts that stand in no scored pair: 3,000 questions for policies to answer."""
    return [question.prompt for question in _all_questions()[N_SIGNING : N_SIGNING + N_FRESH]]


def scored_questions(n: int, seed: int) -> Sequence[Question]:
    """Questions of the scored pairs."""
    rest = list(_all_questions()[N_SIGNING + N_FRESH :])
    if not 0 <= n <= len(rest):
        raise ValueError(f"the bundled corpus has {len(rest):,} scored questions, not {n:,}; ask for fewer")
    if seed != 0:
        random.Random(seed).shuffle(rest)
    return rest[:n]


def choice_prompts() -> list[ChoicePrompt]:
    """Two-candidate prompts: 100 questions with identical qualifications and names from different cells."""
    draw = random.Random(1)
    cell_pairs = [(first, second) for first in CELLS for second in CELLS if first != second]
    choices = []
    for number, (job, form) in enumerate(
        (job, form) for job in PHRASES["choice_jobs"] for form in PHRASES["choice_forms"]
    ):
        first, second = (draw.choice(cell_names(cell)).first for cell in cell_pairs[number % len(cell_pairs)])
        surname = draw.choice(SURNAMES)
        prompt = form.format(
            job=job, first=f"{first} {surname}", second=f"{second} {surname}", years=draw.randint(2, 9)
        )
        choices.append(ChoicePrompt(prompt, first, second))
    return choices


Key = TypeVar("Key")

FORM_SHARES = {"prose": 0.56, "numbered": 0.16, "bullets": 0.14, "bold": 0.09, "header": 0.05}
LENGTH_SHARES = {1: 0.34, 2: 0.32, 3: 0.18, 4: 0.09, 5: 0.05, 6: 0.02}


@dataclass(frozen=True)
class Answer:
    """One answer with the score it was made for."""

    text: str
    quality: float
    score: float


def draw_answer(question: Question, quality: float, draw: random.Random) -> Answer:
    """Answer of a given quality.

    Each sentence is content (a step, a step with its reason, an instruction with a figure, advice on the situation)
    with a probability that grows with the quality, and otherwise a flaw: vague, wrong, about something else, or said
    before. A good answer also names the task at its start and the aim at its end. Length and form hardly depend on
    the quality.
    """
    form = _weighted(draw, FORM_SHARES)
    n_points = _weighted(draw, LENGTH_SHARES)
    if form in ("numbered", "bullets"):
        n_points = max(2, n_points)
    good = draw.random() < 0.15 + 0.8 * quality
    opener = draw.choice(PHRASES["openers"]) if good else draw.choice(PHRASES["vague"])
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
        return _bare(draw.choice(PHRASES["vague"]))
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
        return draw.choice(PHRASES["closers"]).format(aim=draw.choice(question.topic.aims))
    return draw.choice(PHRASES["empty_closers"])


def _prose(opener: str, points: Sequence[str], closer: str, question: Question, draw: random.Random) -> str:
    """Sentences one after the other."""
    linked = [
        _sentence(point) if draw.random() < 0.6 else f"{draw.choice(PHRASES['links'])} {point}."
        for point in points
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


# Annotator class -> mean lean toward (length, markdown), in log-odds; the spread of its annotators around it.
CLASS_MEANS = {"crowd": (1.4, 1.2), "expert": (0.6, 0.8)}
ANNOTATORS_PER_CLASS, SPREAD = 20, 0.5
# Annotators of each class, all different, who see a pair.
VOTES_PER_CLASS = 2
# Probability that a vote prefers a side; the others are ties, whatever the answers and the annotator.
KEPT_SHARE = 0.75
# Log-odds of preference per point of score difference.
QUALITY_SCALE = 0.5


@dataclass(frozen=True)
class StyleCorpus:
    """Votes with leans toward length and Markdown, and what is known about them because it was planted."""

    judgments: Judgments
    planted_theta: NDArray[np.float64]
    quality: NDArray[np.float64]


def style_votes(n: int = 7177, seed: int = 0) -> StyleCorpus:
    r"""Votes of 40 annotators in two classes on the bundled answers as they are, unsigned.

    .. math:: P(a \succ b) = \sigma(q + \theta_k^\top (g(a) - g(b))), \qquad q = \kappa\,(s_a - s_b)

    Drawn in this order from ``numpy.random.default_rng(seed)``: for each class, for each of its annotators two
    normals; for each pair one uniform (below 0.5 the chosen answer is response a), then for each class its
    annotators without replacement, then for each vote a uniform that decides whether it is a tie and one that
    decides the side.

    Parameters
    ----------
    n : int
        Number of pairs, as in `scored_pairs`.
    seed : int
        Seed of leans and votes; the texts are always the same.

    Returns
    -------
    StyleCorpus
        Comparisons whose votes are all ties are not in it.

    Examples
    --------
    >>> corpus = style_votes(200)
    >>> corpus.judgments.attribute_names, corpus.planted_theta.shape
    (('length', 'markdown'), (40, 2))
    >>> 560 < corpus.judgments.n_votes < 640
    True
    """
    generator = np.random.default_rng(seed)
    theta = np.array(
        [
            np.asarray(mean) + generator.normal(0.0, SPREAD, size=2)
            for mean in CLASS_MEANS.values()
            for _ in range(ANNOTATORS_PER_CLASS)
        ]
    )
    pairs = scored_pairs(n)
    is_turned = np.empty(n, dtype=bool)
    annotators = np.empty((n, VOTES_PER_CLASS * len(CLASS_MEANS)), dtype=np.int64)
    uniforms = np.empty((*annotators.shape, 2))
    for row in range(n):
        is_turned[row] = generator.uniform() >= 0.5
        annotators[row] = _seen_by(generator)
        uniforms[row] = generator.uniform(size=uniforms.shape[1:])
    comparisons = _turned(pairs, is_turned)
    quality = QUALITY_SCALE * (pairs["score_chosen"] - pairs["score_rejected"]).to_numpy()
    quality = np.where(is_turned, -quality, quality)
    lean = np.einsum("ijq,iq->ij", theta[annotators], _differences(comparisons))
    prefers_a = uniforms[..., 1] < expit(quality[:, None] + lean)
    winner = np.where(uniforms[..., 0] < KEPT_SHARE, np.where(prefers_a, "a", "b"), "tie")
    judgments = Judgments.read(
        _vote_rows(comparisons, annotators, winner), attributes=(Length(ratio=1.5), Markdown())
    )
    planted = np.full((judgments.n_annotators, 2), np.nan)
    planted[judgments.votes["annotator"]] = theta[annotators.ravel()[judgments.votes["row"]]]
    by_id = pd.Series(quality, index=comparisons["comparison_id"])
    return StyleCorpus(judgments, planted, by_id.loc[judgments.comparisons["comparison_id"]].to_numpy())


def _seen_by(generator: np.random.Generator) -> NDArray[np.int64]:
    """The annotators of one pair, class after class."""
    drawn = [generator.choice(ANNOTATORS_PER_CLASS, VOTES_PER_CLASS, replace=False) for _ in CLASS_MEANS]
    return np.concatenate([number * ANNOTATORS_PER_CLASS + members for number, members in enumerate(drawn)])


def _turned(pairs: pd.DataFrame, is_turned: NDArray[np.bool_]) -> pd.DataFrame:
    """The comparisons, with the chosen answer as response b where a pair is turned."""
    return pd.DataFrame(
        {
            "comparison_id": [f"style-{row:05d}" for row in range(len(pairs))],
            "prompt_id": pairs["prompt_id"],
            "prompt": pairs["prompt"],
            "response_a": np.where(is_turned, pairs["rejected"], pairs["chosen"]),
            "response_b": np.where(is_turned, pairs["chosen"], pairs["rejected"]),
        }
    )


def _differences(comparisons: pd.DataFrame) -> NDArray[np.float64]:
    """g(a) - g(b) of length and Markdown, shape (n_pairs, 2)."""
    length, markdown = Length(ratio=1.5).measure, Markdown().measure
    rows = []
    for _, prompt, a, b in comparisons[["comparison_id", "prompt", "response_a", "response_b"]].to_numpy():
        longer_a, longer_b = length(prompt, a, b)
        rows.append((longer_a - longer_b, markdown(prompt, a) - markdown(prompt, b)))
    return np.array(rows, dtype=np.float64)


def _vote_rows(
    comparisons: pd.DataFrame, annotators: NDArray[np.int64], winner: NDArray[np.str_]
) -> pd.DataFrame:
    """One row for each vote, pair after pair."""
    rows = comparisons.loc[comparisons.index.repeat(annotators.shape[1])].reset_index(drop=True)
    classes = np.repeat(list(CLASS_MEANS), ANNOTATORS_PER_CLASS)
    drawn = annotators.ravel()
    return rows.assign(
        winner=winner.ravel(),
        annotator=[f"constructed-style-{k:02d}" for k in drawn],
        annotator_class=classes[drawn],
    )
