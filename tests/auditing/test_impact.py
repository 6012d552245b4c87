"""Impact of the biases: labels that change without them, and judgments to reread."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy.special import log_expit

from badpo.attributes import Length, Markdown, Position
from badpo.auditing.annotators import Design
from badpo.auditing.audit import audit
from badpo.auditing.impact import (
    choose_example_pairs,
    count_changed_labels,
    count_turned_majorities,
    select_votes_to_reread,
)
from badpo.data.judgments import Judgments
from badpo.data.privacy import pseudonyms
from badpo.estimation.fit import Votes
from badpo.estimation.shrinkage import shrink_votes
from badpo.results.audit_findings import impact_sentences
from badpo.results.audit_page import shareable
from tests.auditing.planted import votes


def longer_side(table: pd.DataFrame) -> np.ndarray:
    return np.where(table["response_a"].str.len() >= table["response_b"].str.len(), "a", "b")


@pytest.mark.parametrize(
    ("sign", "logit", "shift", "turned"),
    [
        ([1, 1, -1], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0], (0, 0)),
        ([1, 1, -1], [-9.0, -9.0, -9.0], [19.0, 19.0, 0.0], (1, 2)),
        ([1, 1, -1], [-9.0, -9.0, -9.0], [-19.0, -19.0, -19.0], (0, 0)),
        ([-1, -1, -1, 1], [19.0] * 4, [-39.0] * 4, (1, 3)),
        ([1, -1], [-9.0, -9.0], [19.0, 0.0], (0, 0)),
    ],
)
def test_a_majority_turns_where_its_votes_came_from_the_bias(sign, logit, shift, turned):
    comparison, random = np.zeros(len(sign), dtype=int), np.random.default_rng(0)
    votes = np.array(sign), np.array(logit), np.array(shift)
    assert count_turned_majorities(comparison, *votes, random) == turned
    both = np.r_[comparison, comparison + 1], *(np.r_[each, -each] for each in votes)
    assert count_turned_majorities(*both, random) == (2 * turned[0], 2 * turned[1])


def test_the_interval_holds_what_turns_with_the_same_noise_in_about_95_of_100_pools():
    held, counts, comparison = 0, [], np.repeat(np.arange(500), 3)
    leans = SimpleNamespace(deviation=np.zeros((24, 1)), status=np.full((24, 1), "ok", dtype=object))
    for seed in range(40):
        random = np.random.default_rng(seed)
        lean = random.standard_normal(24)
        who = np.array([random.permutation(24)[:3] for _ in range(500)]).ravel()
        delta = np.repeat(random.choice([-1.0, 0.0, 1.0], 500), 3)
        latent = np.repeat(random.standard_normal(500), 3) + (0.7 + lean[who]) * delta
        latent += random.logistic(size=1500)
        without = np.where(latent - (lean - lean.mean())[who] * delta > 0, 1, -1)
        sign = np.where(latent > 0, 1, -1)
        cast = {"comparison": comparison, "sign": sign, "annotator": who, "delta": delta[:, None]}
        design = SimpleNamespace(**cast, attributes=("length",))
        spreads = shrink_votes(Votes(*cast.values(), 24))
        fit = SimpleNamespace(biases=leans, shrunken_biases=spreads, sums=None)
        (row,) = count_changed_labels(design, fit)
        votes = np.bincount(comparison, sign)
        truth = np.sum((votes * np.bincount(comparison, without) < 0) & (np.abs(votes) == 1))
        held += row["labels"][1] <= truth <= row["labels"][2]
        counts.append((truth, row["labels"][0]))
    leans.status[:] = "anchored"
    assert count_changed_labels(design, fit)[0]["labels"] == [0, 0, 0]
    assert 36 <= held <= 40
    truth, expected = np.mean(counts, axis=0)
    assert truth > 20 and expected == pytest.approx(truth, rel=0.1)


def test_each_attribute_and_all_have_a_row_and_what_is_not_known_is_said():
    table = votes(500, 12, votes_each=3, spread=1.2)[0]
    table["response_a"] = np.where(np.arange(len(table)) // 3 % 2, "# ", "") + table["response_a"]
    both = audit(table, [Length(), Markdown()]).summary
    length, markdown, together = both["flips"]
    assert together["attribute"] is None and 0 < length["labels"][0] <= together["labels"][0]
    assert length["pairs"][0] == 2 * length["labels"][0]  # two of three
    assert markdown["n_contested"] < together["n_contested"]
    nobody = audit(table.drop(columns=["annotator", "annotator_class"]), [Length()]).summary
    assert nobody["flips"][0]["labels"] is None
    assert "how many majority labels the biases on length change" in impact_sentences(nobody)[0]
    table = votes(200, 4)[0]
    of_four = audit(table, [Length()]).summary
    won = table.assign(n=table["response_a"].str.len().ge(40) ^ table["response_b"].str.len().ge(40))
    won = won[won["n"]].groupby("comparison_id")["winner"].agg("".join).str.count("a")
    assert of_four["flips"][0]["n_contested"] == won.isin([1, 3]).sum()
    assert not shareable(of_four)["flips"]


def test_what_to_reread_of_whom_is_flagged():
    """Somebody who chose the longer side against all others says more of a lean, and of little care, than with them."""
    table = votes(300, 12, spread=0.1, mean=0.0)[0]
    theirs = table["annotator"] == "w0"
    table["winner"] = table["winner"].mask(theirs, longer_side(table))
    judgments = Judgments.read(table, attributes=[Length()])
    of_w0 = {"annotator": pseudonyms(["w0"]), "attribute": "length", "shrunk": 2.0, "reliability": 0.1}
    found, nothing = (
        select_votes_to_reread(
            judgments, Design(judgments), pd.DataFrame(of_w0 | {"flag": flag, "flag_reliability": flag})
        )
        for flag in (True, False)
    )
    assert not len(nothing)
    assert found["about"].tolist() == ["length"] * 20 + ["reliability"] * 20
    assert (found["annotator"] == pseudonyms(["w0"])[0]).all()
    others = table[~theirs].groupby("comparison_id")["winner"].agg("".join)
    for about, told in found.groupby("about"):
        gain, alone = told["log_likelihood_ratio"], np.log(0.5 / 3.5)
        with_it = 0.1 * alone if about == "reliability" else alone + 2
        assert gain.is_monotonic_decreasing
        assert gain.iloc[0] == pytest.approx(log_expit(with_it) - log_expit(alone))
        against = zip(others[told["comparison_id"]][:10], told["winner"], strict=False)
        assert all(set(voted) == {"ab".replace(winner, "")} for voted, winner in against)
    lean = found[found["about"] == "length"]
    assert lean.iloc[0]["response_" + lean["winner"][0]].startswith("an answer")


@pytest.mark.parametrize("away", [False, True])
def test_a_telling_pair_goes_the_way_of_the_pool_and_differs_in_one_attribute_alone(away):
    """Three votes on each pair: one differs in Markdown too, one is long, one is turned, one is divided."""
    short, long = ("So it is said by all of those.", "It is so because it has been so always, and " * 2)
    pairs = [(f"**{long}**", short), (long * 20, short * 20), (short, long), *[(long, short)] * 2]
    won = [(3, 0), (3, 0), (0, 3), (2, 1), (3, 0)]
    rows = [
        {"prompt": f"Why {c}?", "response_a": a, "response_b": b, "winner": "ab"[(k >= n[0]) != away]}
        | {"annotator": f"w{k}", "shown_first": "ab"[k % 2]}
        for c, ((a, b), n) in enumerate(zip(pairs, won, strict=True))
        for k in range(3)
    ]
    found = Judgments.read(rows, attributes=[Length(), Markdown(), Position()])
    length, markdown, position = choose_example_pairs(found)
    assert length == {
        **{"attribute": "length", "prompt": "Why 2?", "carries": not away, "n_votes": 3, "n_chosen": 3},
        **{"n_annotators": 3, "n_people": 3},
        **{"chosen": short if away else long.strip(), "other": long.strip() if away else short},
    }
    assert markdown["prompt"] == "Why 0?" and position["n_votes"] == 3 > position["n_chosen"]
    # what the first words and the last do not show is looked for
    for mark, told in ((f"{long}** one ** {long}", "** one **"), ("1. A", "\u2026 1. A \u2026")):
        row = rows[6] | {"response_a": f"{long}\n{mark}\n{long}"}
        (pair,) = choose_example_pairs(Judgments.read([row], attributes=[Markdown()]))
        assert told in pair["chosen"] + pair["other"]
    # neither answer nor votes on what never differs
    alike = [row | {"response_b": row["response_a"] + "!"} for row in rows]
    (only,) = choose_example_pairs(Judgments.read(alike, attributes=[Length(), Position()]))
    cut = choose_example_pairs(found.take(found.votes["comparison"] == 1))[0]["chosen"]
    assert only["attribute"] == "position" and "\u2026" in cut
    assert "w0" not in str(only) and all(name not in str(only) for name in found.annotators["pseudonym"])
