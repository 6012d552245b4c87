"""The second table of votes follows the likelihood it says, and keeps the truth beside the votes."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from badpo_paper.corpora import bundled


@pytest.fixture(scope="module")
def corpus():
    return bundled.style_votes()


def planted_probability(corpus):
    """Probability that each vote goes to response a, from what is planted."""
    votes, judgments = corpus.judgments.votes, corpus.judgments
    lean = (corpus.planted_theta[votes["annotator"]] * judgments.delta).sum(axis=1)
    return expit(corpus.quality[votes["comparison"]] + lean)


@pytest.mark.parametrize("annotator_class", ["crowd", "expert"])
@pytest.mark.parametrize("attribute", [0, 1])
def test_the_carrying_side_wins_as_often_as_planted(corpus, annotator_class, attribute):
    judgments = corpus.judgments
    classes = judgments.annotators["annotator_class"].to_numpy()[judgments.votes["annotator"]]
    difference = judgments.delta[:, attribute]
    rows = (classes == annotator_class) & (difference != 0)
    probability = np.where(difference > 0, planted_probability(corpus), 1 - planted_probability(corpus))[rows]
    wins = (judgments.votes["sign"].to_numpy() * difference > 0)[rows]
    z = (wins - probability).sum() / np.sqrt((probability * (1 - probability)).sum())
    assert rows.sum() > 3000 and abs(z) < 3


def test_quality_decides_where_the_attributes_agree(corpus):
    judgments = corpus.judgments
    alike = (judgments.delta == 0).all(axis=1)
    q = corpus.quality[judgments.votes["comparison"]][alike]
    chose_a = judgments.votes["sign"].to_numpy()[alike] > 0
    assert chose_a[q > 1].mean() > 0.75 and chose_a[q < -1].mean() < 0.25
    z = (chose_a - expit(q)).sum() / np.sqrt((expit(q) * expit(-q)).sum())
    assert abs(z) < 3


def test_about_three_of_four_votes_prefer_a_side_and_ties_are_counted(corpus):
    n_ties = int(corpus.judgments.dropped["n"].sum())
    assert corpus.judgments.n_votes + n_ties == 4 * 7177
    assert n_ties / (4 * 7177) == pytest.approx(0.25, abs=0.01)


def test_two_of_each_class_see_a_pair_and_nobody_twice(monkeypatch):
    monkeypatch.setattr(bundled, "KEPT_SHARE", 1.0)
    judgments = bundled.style_votes(300).judgments
    seen = judgments.votes.groupby("comparison")["annotator"]
    assert (seen.nunique() == 4).all()
    classes = judgments.annotators["annotator_class"].to_numpy()[judgments.votes["annotator"]]
    by_class = judgments.votes.assign(annotator_class=classes).groupby(["comparison", "annotator_class"])
    assert (by_class.size() == 2).all()


def test_leans_are_those_of_the_classes(corpus):
    classes = corpus.judgments.annotators["annotator_class"].to_numpy()
    assert len(classes) == 40 and np.isfinite(corpus.planted_theta).all()
    for name, mean in bundled.CLASS_MEANS.items():
        within = corpus.planted_theta[classes == name]
        assert np.abs(within.mean(axis=0) - mean).max() < 3 * 0.5 / np.sqrt(20)


def test_neither_column_tells_which_answer_was_chosen(corpus):
    assert (corpus.quality > 0).mean() == pytest.approx((corpus.quality < 0).mean(), abs=0.03)


def test_both_attributes_differ_often_enough_to_learn_from(corpus):
    assert (corpus.judgments.cross_group().mean(axis=0) > 0.4).all()
    per_annotator = np.bincount(corpus.judgments.votes["annotator"])
    assert per_annotator.min() > 400


def test_the_same_seed_gives_the_same_votes():
    first = bundled.style_votes(200, seed=3)
    assert first.judgments.fingerprint() == bundled.style_votes(200, seed=3).judgments.fingerprint()
    assert first.judgments.fingerprint() != bundled.style_votes(200, seed=4).judgments.fingerprint()


def test_quality_stays_with_its_comparison_where_all_votes_are_ties(monkeypatch):
    full = bundled.style_votes(400)
    monkeypatch.setattr(bundled, "KEPT_SHARE", 0.2)
    few = bundled.style_votes(400)
    assert few.judgments.n_comparisons < 400
    ids = full.judgments.comparisons["comparison_id"].tolist()
    by_id = dict(zip(ids, full.quality, strict=True))
    shared = [c for c in few.judgments.comparisons["comparison_id"] if c in by_id]
    rows = dict(zip(few.judgments.comparisons["comparison_id"], few.quality, strict=True))
    assert len(shared) > 100 and all(rows[c] == by_id[c] for c in shared)
