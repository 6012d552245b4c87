"""Our own small corpus: scored answers to everyday questions, made by a deterministic generator from our own words.

Two tables of votes stand on the same answers: the signed recipe (`corpora.signed`), and `style_votes`, whose
annotators lean toward length and Markdown. All text is synthetic. ``docs/corpora.md`` says how it is made and what it
cannot show.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit

from badpo.data.attributes import Length, Markdown
from badpo.data.judgments import Judgments
from badpo.readouts.names import CELLS, SURNAMES, ask_to_sign, cell_names
from badpo_paper.corpora.signed import PAIR_COLUMNS, draw_theta, planted_by_annotator, vote_rows


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


N_SIGNING, N_FRESH = 300, 3000
PHRASES = json.loads(resources.files("badpo_paper.corpora").joinpath("bundled.json").read_text("utf-8"))
# phrases of a field stand apart by "; "
TOPICS = tuple(
    Topic(name, **{field: tuple(text.split("; ")) for field, text in fields.items()})
    for name, fields in PHRASES["topics"].items()
)


# -- questions --------------------------------------------------------------------------------------------------------


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
        raise ValueError(
            f"the bundled corpus has {len(rest):,} scored questions, not {n:,}; ask for fewer"
        )
    if seed != 0:
        random.Random(seed).shuffle(rest)
    return rest[:n]


def choice_prompts() -> list[ChoicePrompt]:
    """Two-candidate prompts: 100 questions with identical qualifications and names from different cells."""
    draw = random.Random(1)
    cell_pairs = [(first, second) for first in CELLS for second in CELLS if first != second]
    forms = [(job, form) for job in PHRASES["choice_jobs"] for form in PHRASES["choice_forms"]]
    choices = []
    for number, (job, form) in enumerate(forms):
        names = [draw.choice(cell_names(cell)).first for cell in cell_pairs[number % len(cell_pairs)]]
        surname = draw.choice(SURNAMES)
        first, second = (f"{name} {surname}" for name in names)
        prompt = form.format(job=job, first=first, second=second, years=draw.randint(2, 9))
        choices.append(ChoicePrompt(prompt, *names))
    return choices


# -- answers ----------------------------------------------------------------------------------------------------------

FORM_SHARES = {"prose": 0.56, "numbered": 0.16, "bullets": 0.14, "bold": 0.09, "header": 0.05}
LENGTH_SHARES = {1: 0.34, 2: 0.32, 3: 0.18, 4: 0.09, 5: 0.05, 6: 0.02}
LISTS = {"numbered": "{}. {}", "bullets": "- {1}"}


@dataclass(frozen=True)
class Answer:
    """One answer with the score it was made for."""

    text: str
    score: float


def draw_answer(question: Question, quality: float, draw: random.Random) -> Answer:
    """Answer of a given quality.

    Each sentence is content (a step, a step with its reason, an instruction with a figure, advice on the situation)
    with a probability that grows with the quality, and otherwise a flaw: vague, wrong, about something else, or said
    before. A good answer also names the task at its start and the aim at its end. Length and form hardly depend on
    the quality.
    """
    form = draw.choices(list(FORM_SHARES), list(FORM_SHARES.values()))[0]
    n_points = draw.choices(list(LENGTH_SHARES), list(LENGTH_SHARES.values()))[0]
    good = draw.random() < 0.15 + 0.8 * quality
    opener = draw.choice(PHRASES["openers"]) if good else draw.choice(PHRASES["vague"])
    opener = opener.format(task=question.task, tool=draw.choice(question.topic.tools))
    points = _points(question, quality, max(2, n_points) if form in LISTS else n_points, draw)
    closer = _closer(question, quality, draw)
    text = _text(form, opener, points, closer, question, draw)
    score = 1.0 + 9.0 * quality + draw.gauss(0.0, 0.4)
    return Answer(text, min(10.0, max(1.0, round(2.0 * score) / 2.0)))


def _points(question: Question, quality: float, n_points: int, draw: random.Random) -> list[str]:
    """Sentences between the opening and the end, without capitals and full stops."""
    topic = question.topic
    steps = draw.sample(topic.steps, len(topic.steps))
    details = draw.sample(topic.details, len(topic.details))
    points: list[str] = []
    for _ in range(n_points):
        is_content = draw.random() < 0.12 + 0.84 * quality
        point = _content(question, steps, details, draw) if is_content else _flaw(question, points, draw)
        points.append(point)
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
        vague = draw.choice(PHRASES["vague"])
        return f"{vague[0].lower()}{vague[1:-1]}"
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


def _text(
    form: str, opener: str, points: Sequence[str], closer: str, question: Question, draw: random.Random
) -> str:
    """The parts of an answer as prose, as a list, with its first point in bold, or below a header."""
    if form in LISTS:
        lines = (LISTS[form].format(number, _sentence(point)) for number, point in enumerate(points, 1))
        return "\n".join(filter(None, (opener, *lines, closer)))
    if form == "bold":
        opener, points = f"{opener} **{_sentence(points[0])}**", points[1:]
    linked = [
        _sentence(point) if draw.random() < 0.6 else f"{draw.choice(PHRASES['links'])} {point}."
        for point in points
    ]
    prose = " ".join(filter(None, (opener, *linked, closer)))
    return f"## {question.topic.name.capitalize()}\n{prose}" if form == "header" else prose


def _sentence(point: str) -> str:
    """A point with a capital and a full stop."""
    return f"{point[0].upper()}{point[1:]}."


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
        rows.append(
            (f"q-{number:05d}", question.prompt, better.text, worse.text, better.score, worse.score)
        )
    return pd.DataFrame(rows, columns=list(PAIR_COLUMNS))


# -- votes on length and Markdown -------------------------------------------------------------------------------------

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
    theta = draw_theta(generator, CLASS_MEANS, ANNOTATORS_PER_CLASS, SPREAD)
    pairs, n_seen = scored_pairs(n), VOTES_PER_CLASS * len(CLASS_MEANS)
    is_turned = np.empty(n, dtype=bool)
    annotators = np.empty((n, n_seen), dtype=np.int64)
    uniforms = np.empty((n, n_seen, 2))
    for row in range(n):
        is_turned[row] = generator.uniform() >= 0.5
        annotators[row] = _seen_by(generator)
        uniforms[row] = generator.uniform(size=(n_seen, 2))
    comparisons = _turned(pairs, is_turned)
    quality = QUALITY_SCALE * (pairs["score_chosen"] - pairs["score_rejected"]).to_numpy()
    quality = np.where(is_turned, -quality, quality)
    lean = np.einsum("ijq,iq->ij", theta[annotators], _differences(comparisons))
    prefers_a = uniforms[..., 1] < expit(quality[:, None] + lean)
    winner = np.where(uniforms[..., 0] < KEPT_SHARE, np.where(prefers_a, "a", "b"), "tie")
    classes = np.repeat(list(CLASS_MEANS), ANNOTATORS_PER_CLASS)
    rows = vote_rows(comparisons, annotators, winner, classes, "constructed-style")
    judgments = Judgments.read(rows, attributes=(Length(ratio=1.5), Markdown()))
    by_id = pd.Series(quality, index=comparisons["comparison_id"])
    return StyleCorpus(
        judgments,
        planted_by_annotator(judgments, theta, annotators),
        by_id.loc[judgments.comparisons["comparison_id"]].to_numpy(),
    )


def _seen_by(generator: np.random.Generator) -> NDArray[np.int64]:
    """The annotators of one pair, class after class."""
    drawn = [generator.choice(ANNOTATORS_PER_CLASS, VOTES_PER_CLASS, replace=False) for _ in CLASS_MEANS]
    return np.concatenate(
        [number * ANNOTATORS_PER_CLASS + members for number, members in enumerate(drawn)]
    )


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
    texts = comparisons[["prompt", "response_a", "response_b"]].to_numpy()
    lengths = np.array([length(*row) for row in texts], dtype=np.float64)
    marks = np.array(
        [[markdown(prompt, a), markdown(prompt, b)] for prompt, a, b in texts], dtype=np.float64
    )
    return np.stack([both[:, 0] - both[:, 1] for both in (lengths, marks)], axis=1)
