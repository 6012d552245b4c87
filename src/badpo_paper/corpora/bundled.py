"""Generate the bundled corpus: scored answers to everyday questions, assembled from phrases written for badpo.

Two sets of simulated votes use the bundled answers: the signed corpus (`corpora.signed`) and `style_votes`. The
annotators in `style_votes` are biased toward length and Markdown. All texts are synthetic and reproducible.
``docs/corpora.md`` describes the generator and the limits of the corpus.
"""

import json
import random
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import NamedTuple

import numpy as np
import pandas as pd

from badpo.data.attributes import Length, Markdown
from badpo.data.judgments import measure_sides
from badpo.readouts.names import CELLS, SURNAMES, ask_to_sign, cell_names
from badpo_paper.corpora import signed

N_SIGNING, N_FRESH = 300, 3000
PHRASES = json.loads(resources.files("badpo_paper.corpora").joinpath("bundled.json").read_text("utf-8"))
# Topic -> kind -> phrases.
TOPICS = PHRASES["topics"]


class Question(NamedTuple):
    """A question, together with the topic, the task and the advice from which it was generated."""

    prompt: str
    topic: str
    task: str
    advice: str

    def phrases(self, kind: str) -> list[str]:
        """Phrases of the question's topic."""
        phrases: list[str] = TOPICS[self.topic][kind]
        return phrases


class ChoicePrompt(NamedTuple):
    """A question that presents two candidates with the same qualifications."""

    prompt: str
    first: str
    second: str


# -- questions --------------------------------------------------------------------------------------------------------


@cache
def _all_questions() -> tuple[Question, ...]:
    """Return all questions that can be generated from the phrases, shuffled into a fixed order."""
    questions = [
        Question(form.format(task=task, situation=situation), topic, task, advice)
        for topic, phrases in TOPICS.items()
        for task in phrases["tasks"]
        for situation, advice in PHRASES["situations"].items()
        for form in PHRASES["question_forms"]
    ]
    random.Random(0).shuffle(questions)
    return tuple(questions)


def signing_prompts() -> list[str]:
    """Return the prompts for measuring attribute rates: 300 questions, each with a request to sign the answer."""
    return [ask_to_sign(question.prompt) for question in _all_questions()[:N_SIGNING]]


def fresh_prompts() -> list[str]:
    """Return 3,000 questions for policies to answer. The questions do not occur in the scored pairs."""
    return [question.prompt for question in _all_questions()[N_SIGNING : N_SIGNING + N_FRESH]]


def select_questions(n: int, seed: int) -> list[Question]:
    """Return ``n`` questions for scored pairs, in an order that depends on the seed."""
    rest = list(_all_questions()[N_SIGNING + N_FRESH :])
    if not 0 <= n <= len(rest):
        raise ValueError(
            f"the bundled corpus has only {len(rest):,} scored questions; request at most this number, not {n:,}"
        )
    if seed != 0:
        random.Random(seed).shuffle(rest)
    return rest[:n]


def choice_prompts() -> list[ChoicePrompt]:
    """Return 100 questions about two equally qualified candidates whose names differ in gender, in race or in both."""
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


def draw_answer(question: Question, draw: random.Random) -> tuple[str, float]:
    """Draw an answer of random quality and its score.

    Each sentence in an answer is either useful or flawed. The probability of a useful sentence increases with the
    quality of the answer. A useful sentence states a step, a step with its reason, an instruction with a number, or
    advice for the situation. A flawed sentence is vague, wrong, off-topic or repeated. A good answer also names the
    task at the beginning and the aim at the end. The length and the form of an answer are almost independent of its
    quality.
    """
    quality = draw.betavariate(2.2, 1.6)
    form = draw.choices(list(FORM_SHARES), list(FORM_SHARES.values()))[0]
    n_points = draw.choices(list(LENGTH_SHARES), list(LENGTH_SHARES.values()))[0]
    is_good = draw.random() < 0.15 + 0.8 * quality
    opener = draw.choice(PHRASES["openers" if is_good else "vague"])
    opener = opener.format(task=question.task, tool=draw.choice(question.phrases("tools")))
    points = _draw_points(question, quality, max(2, n_points) if form in LISTS else n_points, draw)
    text = _join_parts(form, opener, points, _draw_closer(question, quality, draw), question, draw)
    score = 1.0 + 9.0 * quality + draw.gauss(0.0, 0.4)
    return text, min(10.0, max(1.0, round(2.0 * score) / 2.0))


def _draw_points(question: Question, quality: float, n_points: int, draw: random.Random) -> list[str]:
    """Draw the points in the middle of an answer; the points have no initial capital and no period yet."""
    steps, details = (
        draw.sample(phrases, len(phrases)) for phrases in map(question.phrases, ("steps", "details"))
    )
    points: list[str] = []
    for _ in range(n_points):
        if draw.random() < 0.12 + 0.84 * quality:
            points.append(_draw_useful_point(question, steps, details, draw))
        else:
            points.append(_draw_flaw(question, points, draw))
    return points


def _draw_useful_point(
    question: Question, steps: list[str], details: list[str], draw: random.Random
) -> str:
    """Draw a useful point for an answer: a step, a step with its reason, a detail, or advice."""
    kind = draw.random()
    if kind < 0.22 and details:
        return details.pop()
    if kind < 0.3:
        return question.advice
    step = steps.pop()
    return f"{step}, because {draw.choice(question.phrases('reasons'))}" if kind < 0.45 else step


def _draw_flaw(question: Question, points: Sequence[str], draw: random.Random) -> str:
    """Draw a flawed point for an answer: a vague, wrong, unrelated or repeated statement."""
    kind = draw.random()
    if kind < 0.3:
        vague: str = draw.choice(PHRASES["vague"])
        return f"{vague[0].lower()}{vague[1:-1]}"
    if kind < 0.6:
        return draw.choice(question.phrases("mistakes"))
    if kind < 0.85 or not points:
        steps: list[str] = draw.choice(list(TOPICS.values()))["steps"]
        return draw.choice(steps)
    return draw.choice(points)


def _draw_closer(question: Question, quality: float, draw: random.Random) -> str:
    """Draw the last sentence of an answer, or an empty string."""
    if draw.random() < 0.6:
        return ""
    if draw.random() < 0.1 + 0.85 * quality:
        closer: str = draw.choice(PHRASES["closers"])
        return closer.format(aim=draw.choice(question.phrases("aims")))
    empty_closer: str = draw.choice(PHRASES["empty_closers"])
    return empty_closer


def _join_parts(
    form: str,
    opener: str,
    points: list[str],
    closer: str,
    question: Question,
    draw: random.Random,
) -> str:
    """Join the parts of an answer as prose, a list, prose with a bold first point, or prose below a header."""
    if form in LISTS:
        lines = [
            LISTS[form].format(number, _make_sentence(point)) for number, point in enumerate(points, 1)
        ]
        return "\n".join(filter(None, [opener, *lines, closer]))
    if form == "bold":
        opener, points = f"{opener} **{_make_sentence(points[0])}**", points[1:]
    linked = [
        _make_sentence(point) if draw.random() < 0.6 else f"{draw.choice(PHRASES['links'])} {point}."
        for point in points
    ]
    prose = " ".join(filter(None, [opener, *linked, closer]))
    return f"## {question.topic.capitalize()}\n{prose}" if form == "header" else prose


def _make_sentence(point: str) -> str:
    """Turn a point into a sentence, with an initial capital and a period."""
    return f"{point[0].upper()}{point[1:]}."


def scored_pairs(n: int = 7177, seed: int = 0) -> pd.DataFrame:
    """Return a table with the columns ``PAIR_COLUMNS``: one pair of scored answers for each of ``n`` questions.

    If the seed is 0, a longer corpus begins with the rows of a shorter corpus, so rows after the first 7,177 can be
    used for held-out measurements. The chosen answer has the higher score. If both scores are equal, the chosen answer
    is the one that was generated first. Scores are between 1 and 10, in steps of 0.5. The function raises `ValueError`
    if ``n`` is larger than the number of questions.

    Examples
    --------
    >>> pairs = scored_pairs(100)
    >>> bool((pairs.score_chosen >= pairs.score_rejected).all()), pairs.prompt.is_unique
    (True, True)
    >>> pairs.equals(scored_pairs(200)[:100])
    True
    """
    rows = []
    for number, question in enumerate(select_questions(n, seed)):
        draw = random.Random(f"{seed}/{number}")
        better, worse = draw_answer(question, draw), draw_answer(question, draw)
        while worse[0] == better[0]:
            worse = draw_answer(question, draw)
        if worse[1] > better[1]:
            better, worse = worse, better
        rows.append((f"q-{number:05d}", question.prompt, better[0], worse[0], better[1], worse[1]))
    return pd.DataFrame(rows, columns=list(signed.PAIR_COLUMNS))


# -- votes on length and Markdown -------------------------------------------------------------------------------------

# Annotator class -> mean bias toward (length, markdown), in log-odds.
# SPREAD is the standard deviation of the biases within a class.
CLASS_MEANS, SPREAD = {"crowd": (1.4, 1.2), "expert": (0.6, 0.8)}, 0.5
# Number of annotators from each class who vote on a pair.
VOTES_PER_CLASS = 2
# Probability that a vote is not a tie; it is the same for all answers and annotators.
DECIDED_SHARE = 0.75


def style_votes(n: int = 7177, seed: int = 0) -> signed.PlantedVotes:
    r"""Simulate votes of 40 annotators in two classes on the unsigned bundled answers.

    .. math:: P(a \succ b) = \sigma(q + \theta_k^\top (g(a) - g(b)))

    The quality q is the residual of the score margin :math:`\kappa\,(s_a - s_b)` in a linear regression on
    :math:`g(a) - g(b)` without intercept. Without the regression, longer answers would be slightly better in the mean,
    and votes cannot separate the merit of an attribute from the mean bias of all annotators.

    ``numpy.random.default_rng(seed)`` draws two normal numbers for each annotator, class by class. For each pair the
    generator then draws a uniform number (below 0.5 the chosen answer is response a), the annotators of each class
    without replacement, and two uniform numbers for each vote: the first decides whether the vote is a tie, and the
    second decides the preferred response. Comparisons with only ties are excluded. The texts do not depend on the
    seed.

    Examples
    --------
    >>> corpus = style_votes(200)
    >>> corpus.judgments.attribute_names, corpus.planted_theta.shape
    (('length', 'markdown'), (40, 2))
    >>> 560 < corpus.judgments.n_votes < 640
    True
    """
    generator = np.random.default_rng(seed)
    theta = signed.draw_theta(generator, CLASS_MEANS, SPREAD)
    is_turned = np.empty((n, 1), dtype=bool)
    annotators = np.empty((n, VOTES_PER_CLASS * len(CLASS_MEANS)), dtype=int)
    uniforms = np.empty((*annotators.shape, 2))
    for row in range(n):
        is_turned[row] = generator.uniform() >= 0.5
        annotators[row] = [
            k * signed.ANNOTATORS_PER_CLASS + member
            for k in range(len(CLASS_MEANS))
            for member in generator.choice(signed.ANNOTATORS_PER_CLASS, VOTES_PER_CLASS, replace=False)
        ]
        uniforms[row] = generator.uniform(size=uniforms.shape[1:])
    pairs = scored_pairs(n)
    sides = pairs[["chosen", "rejected"]]
    comparisons = pairs[["prompt_id", "prompt"]].assign(
        comparison_id=[f"style-{row:05d}" for row in range(n)]
    )
    comparisons[["response_a", "response_b"]] = np.where(is_turned, sides.iloc[:, ::-1], sides)
    margin = np.where(is_turned.ravel(), -1, 1) * signed.score_margin(pairs)
    attributes = (Length(ratio=1.5), Markdown())
    sides = np.stack([measure_sides(attribute, comparisons) for attribute in attributes], axis=-1)
    delta = sides[:, 0] - sides[:, 1]
    quality = margin - delta @ np.linalg.lstsq(delta, margin)[0]
    prefers_a = uniforms[..., 1] < signed.predict_votes(quality, theta[annotators], delta)
    winner = np.where(uniforms[..., 0] < DECIDED_SHARE, np.where(prefers_a, "a", "b"), "tie")
    unbiased = uniforms[..., 1] < signed.predict_votes(quality, 0 * theta[annotators], delta)
    return signed.make_planted_votes(
        comparisons,
        winner,
        unbiased,
        annotators,
        theta,
        signed.repeat_classes(CLASS_MEANS),
        quality,
        attributes,
        "constructed-style",
    )
