"""Predictions of votes that were left out, where leans and care are known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.special import logsumexp

from bench.held_out import People, log_joint, log_loss, logits_at_nodes, most_likely
from bench.simulated_pools import Pool, draw_votes

N = 1500


@pytest.fixture(scope="module")
def drawn():
    pool = Pool(N, 30, votes_each=6, quality_sd=2.0, n_clickers=6, better=0.7)
    truth = draw_votes(pool, np.random.default_rng(0))
    side = {"won": truth.sign > 0, "longer": truth.delta[:, 0], "prompt": truth.comparison}
    votes = pd.DataFrame({"comparison": truth.comparison, "annotator": truth.annotator} | side)
    line = np.polynomial.Polynomial.fit(truth.care, truth.deviation, 1)
    return votes.to_records(index=False), truth.care / truth.care.mean(), truth.deviation, line


def test_votes_are_predicted_best_by_the_model_that_they_were_drawn_from(drawn):
    votes, care, deviation, line = drawn
    asked, equal = np.random.default_rng(1).integers(5, size=len(votes)) == 0, np.ones(30)
    models = {
        "neither": People(equal, 0 * equal),
        "lean": People(equal, deviation),
        "care and lean": People(care, deviation),
        "line": People(care, deviation - line(care * (24 / 30)), True),
    }
    seen = votes[~asked], votes[asked], N
    mean = {name: log_loss(people, *seen).mean() for name, people in models.items()}
    # the better side is so for those who follow quality alone
    assert mean["line"] < mean["care and lean"] < mean["lean"] < mean["neither"]
    found = most_likely(models["line"], votes, N)
    near = [found * (1 + 0.02 * one) for one in (*np.eye(3), *-np.eye(3))]
    heights = [
        logsumexp(log_joint(logits_at_nodes(common, models["line"], votes), votes, N), axis=1).sum()
        for common in (found, *near)
    ]
    assert np.argmax(heights) == 0
