"""The bundled corpus is large, varied, disjoint and always the same."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import pytest

from badpo.data.attributes import Markdown
from badpo.readouts import names
from badpo.readouts.names import SIGNING_INSTRUCTION
from badpo_paper.corpora import bundled
from badpo_paper.corpora.bundled import TOPICS, draw_answer, scored_questions

# Changes when a phrase of a topic, a situation or a question form changes: then every figure of the demo does too.
SIGNING_DIGEST = "92aba519bd60ed68"


@pytest.fixture(scope="module")
def pairs():
    return bundled.scored_pairs()


def n_words(texts):
    return texts.str.split().str.len().to_numpy()


def test_sizes_and_disjoint_prompts():
    scored = set(bundled.scored_pairs(10_000)["prompt"])
    signing = {prompt.split("\n\n")[0] for prompt in bundled.signing_prompts()}
    fresh, choice = set(bundled.fresh_prompts()), {choice.prompt for choice in bundled.choice_prompts()}
    assert [len(part) for part in (scored, signing, fresh, choice)] == [10_000, 300, 3000, 100]
    assert len(scored | signing | fresh | choice) == 13_400


def test_another_seed_draws_from_the_same_part():
    held_apart = set(bundled.fresh_prompts()) | {p.split("\n\n")[0] for p in bundled.signing_prompts()}
    other = bundled.scored_pairs(500, seed=1)
    assert not held_apart & set(other["prompt"])
    assert not other.equals(bundled.scored_pairs(500))


def test_the_corpus_is_the_same_everywhere(pairs):
    again = bundled.scored_pairs(300)
    assert again.equals(pairs[:300])
    digest = hashlib.sha256("\n".join(bundled.signing_prompts()).encode()).hexdigest()
    assert digest[:16] == SIGNING_DIGEST


def test_more_than_there_is_cannot_be_asked_for():
    with pytest.raises(ValueError, match="ask for fewer"):
        bundled.scored_pairs(1_000_000)


def test_topics_are_many_and_complete():
    assert len(TOPICS) >= 30
    assert len({topic.name for topic in TOPICS}) == len(TOPICS)
    assert all(len(topic.steps) >= 6 and len(topic.tasks) >= 4 for topic in TOPICS)


def test_every_response_is_long_enough_for_the_recipe():
    longest = bundled.scored_pairs(12_000)
    assert min(n_words(longest["chosen"]).min(), n_words(longest["rejected"]).min()) >= 5


def test_length_and_form_vary(pairs):
    words = np.stack([n_words(pairs["chosen"]), n_words(pairs["rejected"])])
    assert (words.max(axis=0) >= 1.5 * words.min(axis=0)).mean() > 0.3
    assert np.percentile(words, 5) < 15 < 40 < np.percentile(words, 95)
    markdown = pairs["chosen"].map(lambda text: Markdown().measure("", text))
    assert 0.3 < markdown.mean() < 0.6


def test_scores_order_the_pair_and_are_spread(pairs):
    difference = pairs["score_chosen"] - pairs["score_rejected"]
    scores = np.stack([pairs["score_chosen"], pairs["score_rejected"]])
    assert (difference >= 0).all() and scores.min() >= 1 and scores.max() <= 10
    assert 1.5 < difference.mean() < 3.5
    assert (difference >= 5).mean() > 0.05 < (difference <= 0.5).mean()


def test_the_longer_answer_is_hardly_the_better_one(pairs):
    longer = n_words(pairs["chosen"]) > n_words(pairs["rejected"])
    assert 0.45 < longer.mean() < 0.6


@pytest.mark.parametrize(("quality", "low", "high"), [(0.95, 0.85, 1.0), (0.05, 0.0, 0.35)])
def test_quality_shows_in_the_text(quality, low, high):
    draw = random.Random(0)
    shares = []
    for question in scored_questions(200, seed=0):
        text = draw_answer(question, quality, draw).text.lower()
        good = sum(step in text for step in question.topic.steps + question.topic.details)
        flaws = sum(mistake in text for mistake in question.topic.mistakes)
        other = sum(step in text for topic in TOPICS if topic is not question.topic for step in topic.steps)
        shares.append(good / (good + flaws + other) if good + flaws + other else np.nan)
    assert low <= np.nanmean(shares) <= high


def test_no_name_of_the_pool_stands_in_the_texts(pairs):
    words = set(" ".join([*pairs["prompt"], *pairs["chosen"], *pairs["rejected"]]).split())
    assert not words & (set(names.FIRST_NAMES) | set(names.SURNAMES))


def test_signing_prompts_ask_once():
    assert all(prompt.count(SIGNING_INSTRUCTION) == 1 for prompt in bundled.signing_prompts())


def test_choice_prompts_offer_equal_candidates_from_two_cells():
    cell_pairs = set()
    for choice in bundled.choice_prompts():
        first, second = names.name_of(choice.first), names.name_of(choice.second)
        assert choice.prompt.index(first.first) < choice.prompt.index(second.first)
        assert (first.woman, first.black) != (second.woman, second.black)
        cell_pairs.add(((first.woman, first.black), (second.woman, second.black)))
    assert len(cell_pairs) == 12
