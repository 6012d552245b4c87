"""Our own small corpus: scored answers to everyday questions, made by a deterministic generator from our own words.

Two tables of votes stand on the same answers: the signed recipe (`corpora.signed`), and `style_votes`, whose
annotators lean toward length and Markdown. All text is synthetic. ``docs/corpora.md`` says how it is made and what it
cannot show.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import TypeVar

import numpy as np
import pandas as pd
import yaml
from numpy.typing import NDArray
from scipy.special import expit

from badpo.data.attributes import Length, Markdown
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError
from badpo.readouts.names import CELLS, SURNAMES, ask_to_sign, cell_names


@dataclass(frozen=True)
class Topic:
    """The phrases of one everyday topic."""

    name: str
    tasks: Sequence[str]
    tools: Sequence[str]
    steps: Sequence[str]
    details: Sequence[str]
    reasons: Sequence[str]
    aims: Sequence[str]
    mistakes: Sequence[str]


_PHRASES = yaml.safe_load(resources.files(__package__).joinpath("bundled.yaml").read_text(encoding="utf-8"))
TOPICS = [Topic(**phrases) for phrases in _PHRASES["topics"]]
N_SIGNING, N_FRESH = 300, 3000


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
        for situation, advice in _PHRASES["situations"]
        for form in _PHRASES["question_forms"]
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
        (job, form) for job in _PHRASES["choice_jobs"] for form in _PHRASES["choice_forms"]
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
    opener = draw.choice(_PHRASES["openers"]) if good else draw.choice(_PHRASES["vague"])
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
        return _bare(draw.choice(_PHRASES["vague"]))
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
        return draw.choice(_PHRASES["closers"]).format(aim=draw.choice(question.topic.aims))
    return draw.choice(_PHRASES["empty_closers"])


def _prose(opener: str, points: Sequence[str], closer: str, question: Question, draw: random.Random) -> str:
    """Sentences one after the other."""
    links = _PHRASES["links"]
    linked = [
        _sentence(point) if draw.random() < 0.6 else f"{draw.choice(links)} {point}." for point in points
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
    """Pairs of scored answers, one pair to each of n questions."""
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


_CLASS_MEANS = {"crowd": (1.4, 1.2), "expert": (0.6, 0.8)}


@dataclass(frozen=True)
class StyleConfig:
    """How the votes are drawn."""

    class_means: Mapping[str, tuple[float, float]] = field(default_factory=lambda: dict(_CLASS_MEANS))
    annotators_per_class: int = 20
    spread: float = 0.5
    votes_per_class: int = 2
    kept_share: float = 0.75
    quality_scale: float = 0.5

    def __post_init__(self) -> None:
        """Refuse settings that describe no votes."""
        if not 0 < self.kept_share <= 1:
            raise ConfigError(
                f"style votes: kept_share is {self.kept_share}; give a share above 0 and up to 1"
            )
        if not 1 <= self.votes_per_class <= self.annotators_per_class:
            raise ConfigError(
                f"style votes: votes_per_class is {self.votes_per_class}; give 1 to {self.annotators_per_class}, the "
                "number of annotators in a class"
            )


@dataclass(frozen=True)
class StyleCorpus:
    """Votes with leans toward length and Markdown, and what is known about them because it was planted."""

    judgments: Judgments
    planted_theta: NDArray[np.float64]
    quality: NDArray[np.float64]
    config: StyleConfig


def style_votes(n: int = 7177, seed: int = 0, config: StyleConfig | None = None) -> StyleCorpus:
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
    config : StyleConfig or None
        None: the defaults.

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
    config = config or StyleConfig()
    generator = np.random.default_rng(seed)
    theta = np.array(
        [
            np.asarray(mean) + generator.normal(0.0, config.spread, size=2)
            for mean in config.class_means.values()
            for _ in range(config.annotators_per_class)
        ]
    )
    pairs = scored_pairs(n)
    is_turned = np.empty(n, dtype=bool)
    annotators = np.empty((n, config.votes_per_class * len(config.class_means)), dtype=np.int64)
    uniforms = np.empty((*annotators.shape, 2))
    for row in range(n):
        is_turned[row] = generator.uniform() >= 0.5
        annotators[row] = _seen_by(generator, config)
        uniforms[row] = generator.uniform(size=uniforms.shape[1:])
    comparisons = _turned(pairs, is_turned)
    quality = config.quality_scale * (pairs["score_chosen"] - pairs["score_rejected"]).to_numpy()
    quality = np.where(is_turned, -quality, quality)
    lean = np.einsum("ijq,iq->ij", theta[annotators], _differences(comparisons))
    prefers_a = uniforms[..., 1] < expit(quality[:, None] + lean)
    winner = np.where(uniforms[..., 0] < config.kept_share, np.where(prefers_a, "a", "b"), "tie")
    judgments = Judgments.read(
        _vote_rows(comparisons, annotators, winner, config), attributes=(Length(ratio=1.5), Markdown())
    )
    planted = np.full((judgments.n_annotators, 2), np.nan)
    planted[judgments.votes["annotator"]] = theta[annotators.ravel()[judgments.votes["row"]]]
    by_id = pd.Series(quality, index=comparisons["comparison_id"])
    return StyleCorpus(
        judgments, planted, by_id.loc[judgments.comparisons["comparison_id"]].to_numpy(), config
    )


def _seen_by(generator: np.random.Generator, config: StyleConfig) -> NDArray[np.int64]:
    """The annotators of one pair, class after class."""
    size = config.annotators_per_class
    drawn = [generator.choice(size, config.votes_per_class, replace=False) for _ in config.class_means]
    return np.concatenate([number * size + members for number, members in enumerate(drawn)])


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
    comparisons: pd.DataFrame, annotators: NDArray[np.int64], winner: NDArray[np.str_], config: StyleConfig
) -> pd.DataFrame:
    """One row for each vote, pair after pair."""
    rows = comparisons.loc[comparisons.index.repeat(annotators.shape[1])].reset_index(drop=True)
    classes = np.repeat(list(config.class_means), config.annotators_per_class)
    drawn = annotators.ravel()
    return rows.assign(
        winner=winner.ravel(),
        annotator=[f"constructed-style-{k:02d}" for k in drawn],
        annotator_class=classes[drawn],
    )
