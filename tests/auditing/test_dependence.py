"""Votes that are not independent: repeated votes, adjudication; annotators as a sample."""

import numpy as np
import pandas as pd
import pytest

from badpo.attributes import Length, Position
from badpo.auditing.audit import audit
from badpo.auditing.dependence import find_adjudicating_votes
from badpo.estimation.log_odds import population_interval
from tests.auditing.planted import votes


def codes(result) -> set[str]:
    return {warning["code"] for warning in result.warnings}


def test_copies_of_votes_move_no_figure_about_annotators():
    table, _ = votes(200, 8)
    once, often = (audit(pd.concat([table] * n), [Length()]) for n in (1, 3))
    pd.testing.assert_frame_equal(once.annotators, often.annotators)
    assert once.summary["pool"] == often.summary["pool"]
    assert codes(often) - codes(once) == {"W133", "N434"}
    assert often.summary["data"]["n_judgments"] == 3 * once.summary["data"]["n_judgments"]


def test_both_orders_count_once_unless_the_position_is_declared_and_then_by_comparison():
    table, _ = votes(200, 8)
    table["prompt_id"] = table["comparison_id"]
    both = pd.concat([table.assign(shown_first=side) for side in "ab"])
    once, length = audit(table, [Length()]), audit(both, [Length()])
    pd.testing.assert_frame_equal(once.annotators, length.annotators)
    position = audit(both, [Length(), Position()])
    assert position.summary["pool"]["position"]["absolute"]
    of_length = position.annotators[position.annotators["attribute"] == "length"]
    # twice the same votes: errors clustered by comparison stay about as large as those of one vote
    ratio = of_length["se"].to_numpy() / once.annotators["se"].to_numpy()
    assert np.median(ratio) > 0.9


def adjudicated(kind: str) -> pd.DataFrame:
    """Two votes each, and a third where they disagree: of an expert, or of anybody."""
    table, _ = votes(900, 20, votes_each=3, spread=0.0)
    nth = table.groupby("comparison_id").cumcount()
    split = table[nth < 2].groupby("comparison_id")["winner"].nunique() > 1
    is_late = (nth == 2).to_numpy()
    table = table.assign(annotator_class=np.where(is_late, "expert", "crowd"))
    if kind == "expert":
        table.loc[is_late, "annotator"] = [f"e{i % 4}" for i in range(is_late.sum())]
    else:
        table = table.drop(columns="annotator_class")
    table = table[~is_late | table["comparison_id"].map(split)]
    return table.sample(frac=1.0, random_state=0) if kind == "shuffled" else table


@pytest.mark.parametrize("kind", ["expert", "anybody"])
def test_votes_that_decide_disagreements_are_named_and_left_out(kind):
    table = adjudicated(kind)
    first = table[table.groupby("comparison_id").cumcount() < 2]
    found, plain = audit(table, [Length()]), audit(first, [Length()])
    assert codes(found) - codes(plain) == {"W441"} and "W441" not in codes(plain)
    assert found.summary["pool"]["length"]["tau"] == plain.summary["pool"]["length"]["tau"]
    for name in ("log_odds", "n_cross", "population_ci"):
        assert found.summary["attributes"][0][name] == plain.summary["attributes"][0][name]


def test_deciding_votes_that_cannot_be_told_from_others_are_named_and_stay():
    table = adjudicated("shuffled")
    found = audit(table, [Length()])
    assert "W441" in codes(found)
    assert found.annotators["n_judgments"].sum() == len(table)


@pytest.mark.parametrize("extra", ["none", "by chance", "harder"])
def test_more_votes_that_were_not_chosen_by_votes_are_no_adjudication(extra):
    random = np.random.default_rng(0)
    quality = random.standard_normal(600)
    more = {"none": quality > 9, "by chance": random.random(600) < 0.4, "harder": abs(quality) < 0.5}
    comparison = np.repeat(np.arange(600), 2 + more[extra])
    sign = np.where(random.logistic(size=len(comparison)) < 2 * quality[comparison], 1, -1)
    annotator = random.integers(20, size=len(comparison))
    assert find_adjudicating_votes(comparison, sign, annotator) is None


def tied(kind: str, seed: int = 0) -> pd.DataFrame:
    """Votes of which some become ties: of everybody at random, or where the shorter response would have won."""
    table, _ = votes(500, 16, spread=0.0, seed=seed)
    random, who = np.random.default_rng(seed), table["annotator"].str[1:].astype(int)
    at_random = random.random(len(table)) < 0.3
    longer = table[["response_a", "response_b"]].apply(lambda texts: texts.str.len())
    lost = np.where(
        table["winner"] == "a", *(longer.diff(axis=1).iloc[:, 1] * one > 5 for one in (1, -1))
    )
    is_tie = {
        "at random": at_random,
        "everybody spares": at_random & lost,
        "half spare": lost & (who % 2 == 0),
    }
    return table.assign(winner=np.where(is_tie[kind], "tie", table["winner"]))


@pytest.mark.parametrize("kind", ["at random", "everybody spares", "half spare"])
def test_ties_are_counted_and_named_if_they_are_selective(kind):
    table = tied(kind)
    result = audit(table, [Length()])
    (row,) = result.summary["attributes"]
    ties, is_tie = row["ties"], table["winner"] == "tie"
    assert ("W442" in codes(result)) == ties["is_selective"] == (kind != "at random")
    assert (ties["annotators_p"] < 0.01) == (kind == "half spare")
    n_ties = result.annotators.set_index("annotator")["n_ties"].to_numpy()
    assert sorted(n_ties) == sorted(is_tie.groupby(table["annotator"]).sum())
    differs = table["response_a"].str.startswith("an") ^ table["response_b"].str.startswith("an")
    assert ties["n"] == (is_tie & differs).sum()
    assert ties["differing_share"] == pytest.approx(is_tie[differs].mean())
    assert ties["log_odds_low"] < ties["log_odds_half"] < ties["log_odds"] < ties["log_odds_high"]
    assert ties["log_odds"] == pytest.approx(row["log_odds"])
    untied = audit(table[~is_tie], [Length()])
    assert untied.summary["attributes"][0]["ties"] is None
    pd.testing.assert_frame_equal(
        untied.annotators.drop(columns="n_ties"), result.annotators.drop(columns="n_ties")
    )


def test_the_share_of_ties_counts_repeated_judgments():
    table = tied("at random")
    again = table.assign(winner="tie")
    ties = audit(pd.concat([table, again], ignore_index=True), [Length()]).summary["attributes"][0][
        "ties"
    ]
    assert 0.5 < ties["differing_share"] < 1 and ties["log_odds_low"] <= ties["log_odds"]


def test_the_population_interval_holds_the_value_of_others_where_few_annotators_differ():
    held, narrow = 0, 0
    for seed in range(200):
        random = np.random.default_rng(seed)
        bias = random.standard_normal(10)
        who = np.tile(np.arange(10), 60)
        won = random.random(600) < 1 / (1 + np.exp(-bias[who]))
        low, high = population_interval(won, np.repeat(np.arange(150), 4), who)
        held += low <= 0 <= high
        narrow += high - low < 0.4
    assert 180 <= held <= 198 and not narrow
    assert population_interval([1, 1, 1], [0, 1, 2], [0, 1, 1]) == (None, None)
    assert population_interval([1, 0, 1], [0, 1, 2], [0, 0, 0]) == (None, None)
