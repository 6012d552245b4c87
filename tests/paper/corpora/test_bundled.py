"""The bundled corpus is reproducible and varied, its parts are disjoint, and its votes follow their likelihood."""

import hashlib

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit

from badpo.data.attributes import Markdown
from badpo.readouts import names
from badpo.readouts.names import NAME_CELLS, SIGNING_INSTRUCTION
from badpo_paper.corpora import bundled

# Checksum of the signing prompts. A change of the phrases changes the checksum and all figures of the demo.
SIGNING_DIGEST = "92aba519bd60ed68"


@pytest.fixture(scope="module")
def pairs():
    return bundled.scored_pairs()


def n_words(texts):
    return texts.str.split().str.len().to_numpy()


def test_the_corpus_is_reproducible_and_its_prompts_are_disjoint(pairs):
    longest = bundled.scored_pairs(12_000)
    assert min(n_words(longest["chosen"]).min(), n_words(longest["rejected"]).min()) >= 5
    scored = set(longest["prompt"][:10_000])
    signing = {prompt.split("\n\n")[0] for prompt in bundled.signing_prompts()}
    fresh, choice = set(bundled.fresh_prompts()), {choice.prompt for choice in bundled.choice_prompts()}
    assert [len(part) for part in (scored, signing, fresh, choice)] == [10_000, 300, 3000, 100]
    assert len(scored | signing | fresh | choice) == 13_400
    # another seed draws from the same part
    other = bundled.scored_pairs(500, seed=1)
    assert not (fresh | signing) & set(other["prompt"]) and not other.equals(bundled.scored_pairs(500))
    with pytest.raises(ValueError, match="request at most"):
        bundled.scored_pairs(1_000_000)
    assert bundled.scored_pairs(300).equals(pairs[:300])
    signing = bundled.signing_prompts()
    assert all(prompt.count(SIGNING_INSTRUCTION) == 1 for prompt in signing)
    assert hashlib.sha256("\n".join(signing).encode()).hexdigest()[:16] == SIGNING_DIGEST


def test_lengths_forms_and_scores_vary(pairs):
    words = np.stack([n_words(pairs["chosen"]), n_words(pairs["rejected"])])
    assert (words.max(axis=0) >= 1.5 * words.min(axis=0)).mean() > 0.3
    assert np.percentile(words, 5) < 15 < 40 < np.percentile(words, 95)
    # the longer answer is better about as often as the shorter answer
    assert 0.45 < (words[0] > words[1]).mean() < 0.6
    markdown = pairs["chosen"].map(lambda text: Markdown().measure("", text))
    assert 0.3 < markdown.mean() < 0.6
    scores = pairs[["score_chosen", "score_rejected"]].to_numpy().T
    difference = scores[0] - scores[1]
    assert (difference >= 0).all() and scores.min() >= 1 and scores.max() <= 10
    assert 1.5 < difference.mean() < 3.5
    assert (difference >= 5).mean() > 0.05 < (difference <= 0.5).mean()
    texts = set(" ".join([*pairs["prompt"], *pairs["chosen"], *pairs["rejected"]]).split())
    assert not texts & (set(names.FIRST_NAMES) | set(names.SURNAMES))


def test_choice_prompts_offer_equal_candidates_from_two_cells():
    choices = bundled.choice_prompts()
    assert all(c.prompt.index(c.first) < c.prompt.index(c.second) for c in choices)
    cell_pairs = {(NAME_CELLS[choice.first], NAME_CELLS[choice.second]) for choice in choices}
    assert len(cell_pairs) == 12 and all(first != second for first, second in cell_pairs)


@pytest.fixture(scope="module")
def corpus():
    return bundled.style_votes()


def agree(outcomes, probability) -> bool:
    """Whether the number of votes agrees with the sum of their probabilities within three standard errors."""
    z = (outcomes - probability).sum() / np.sqrt((probability * (1 - probability)).sum())
    return abs(z) < 3


@pytest.mark.parametrize("annotator_class", ["crowd", "expert"])
def test_votes_follow_their_likelihood(corpus, annotator_class):
    judgments, votes = corpus.judgments, corpus.judgments.votes
    in_class = judgments.annotators["annotator_class"].to_numpy()[votes["annotator"]] == annotator_class
    bias = (corpus.planted_theta[votes["annotator"]] * judgments.delta).sum(axis=1)
    q, chose_a = corpus.quality[votes["comparison"]], votes["sign"].to_numpy() > 0
    probability = expit(q + bias)
    for difference in judgments.delta.T:
        rows, toward = in_class & (difference != 0), difference > 0
        toward_attribute = np.where(toward, probability, 1 - probability)
        assert rows.sum() > 3000 and agree((chose_a == toward)[rows], toward_attribute[rows])
    # quality decides if the attributes are equal
    is_equal = in_class & (judgments.delta == 0).all(axis=1)
    assert chose_a[is_equal & (q > 1)].mean() > 0.75 and chose_a[is_equal & (q < -1)].mean() < 0.25
    assert agree(chose_a[is_equal], expit(q[is_equal]))
    planted = corpus.planted_theta[judgments.annotators["annotator_class"] == annotator_class]
    mean = bundled.CLASS_MEANS[annotator_class]
    assert len(planted) == 20 and np.abs(planted.mean(axis=0) - mean).max() < 3 * 0.5 / np.sqrt(20)


def test_ties_are_counted_and_the_sides_are_random(corpus):
    n_ties = int(corpus.judgments.dropped["n"].sum())
    assert corpus.judgments.n_votes + n_ties == 4 * 7177
    assert n_ties / (4 * 7177) == pytest.approx(0.25, abs=0.01)
    assert (corpus.quality > 0).mean() == pytest.approx((corpus.quality < 0).mean(), abs=0.03)
    assert (corpus.judgments.cross_group().mean(axis=0) > 0.4).all()
    assert np.bincount(corpus.judgments.votes["annotator"]).min() > 400


def test_two_different_annotators_of_each_class_vote_on_a_pair(monkeypatch):
    monkeypatch.setattr(bundled, "DECIDED_SHARE", 1.0)
    judgments = bundled.style_votes(300).judgments
    classes = judgments.annotators["annotator_class"].to_numpy()[judgments.votes["annotator"]]
    of_class = judgments.votes.groupby(["comparison", classes])["annotator"]
    assert (of_class.nunique() == 2).all() and of_class.ngroups == 600 == judgments.n_votes / 2


def test_quality_belongs_to_its_comparison_if_other_comparisons_have_only_ties(monkeypatch):
    full = bundled.style_votes(400)
    monkeypatch.setattr(bundled, "DECIDED_SHARE", 0.2)
    few = bundled.style_votes(400)
    assert 100 < few.judgments.n_comparisons < 400
    few_quality, full_quality = (
        pd.Series(votes.quality, index=votes.judgments.comparisons["comparison_id"])
        for votes in (few, full)
    )
    shared = few_quality.index.intersection(full_quality.index)
    assert len(shared) > 100 and few_quality[shared].equals(full_quality[shared])
