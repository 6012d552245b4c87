"""The audit as a whole: what is found, what is refused, what is said not to be known."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from badpo.attributes import Column, Length, Markdown, Position
from badpo.auditing.audit import audit
from badpo.data.judgments import Judgments
from badpo.data.privacy import pseudonyms
from badpo.data.problems import ConfigError, DataError
from tests.auditing.planted import seen_in_order, votes

COLUMNS = (
    "annotator class attribute component n_judgments n_cross n_informative raw_rate deviation se ci_low ci_high shrunk "
    "post_sd post_low post_high odds_ratio q_value prob_exceeds flag status agreement agreement_low agreement_high"
)


@pytest.fixture(scope="module")
def table() -> tuple[pd.DataFrame, np.ndarray]:
    return votes(1200, 12, spread=0.7)


@pytest.fixture(scope="module")
def result(table, tmp_path_factory):
    return audit(table[0], [Length()], source="votes.csv")


def codes(result) -> set[str]:
    return {row["code"] for row in result.warnings}


def truth_of(result, lean: np.ndarray) -> np.ndarray:
    """The planted leans in the order of the table's rows, relative to their mean."""
    of = dict(zip(pseudonyms([f"w{k}" for k in range(len(lean))]), lean - lean.mean(), strict=True))
    return np.array([of[name] for name in result.annotators["annotator"]])


# -- what is found -------------------------------------------------------------------------------------------


def test_planted_leans_are_found(result, table):
    rows, truth = result.annotators, truth_of(result, table[1])
    assert (rows["status"] == "ok").all()
    assert ((rows["ci_low"] < truth) & (truth < rows["ci_high"])).mean() >= 0.75
    assert np.corrcoef(rows["deviation"], truth)[0, 1] > 0.9
    low, high = result.pool["length"]["tau_ci"]
    assert low < 0.7 < high


def test_the_common_level_is_not_printed(result):
    entry = result.pool["length"]
    assert entry["level"] is None
    assert entry["level_ci"] is None
    assert not entry["absolute"]
    assert "not known" in entry["absolute_why"]
    assert abs(result.annotators["deviation"].mean()) < 1e-6


def test_columns_and_plain_values(result):
    assert " ".join(result.annotators.columns) == COLUMNS
    json.dumps(result.summary, allow_nan=False)


def test_rows_and_graphs(result):
    assert result.annotators["annotator"].is_monotonic_increasing
    for graph in ("theorem", "informative"):
        assert result.checks["components"][graph]["length"] == {"n": 1, "sizes": [12], "outside": 0}


def test_the_same_votes_give_the_same_bytes(table, result, tmp_path):
    again = audit(table[0], [Length()], source="votes.csv")
    for name, found in (("one", result), ("two", again)):
        found.write(tmp_path / name)
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), path.name


def test_people_who_lean_apart_are_flagged():
    table, _ = votes(1500, 12, spread=0.0)
    random = np.random.default_rng(5)
    longer_a = table["response_a"].str.len() > table["response_b"].str.len() + 10
    longer_b = table["response_b"].str.len() > table["response_a"].str.len() + 10
    odd = (table["annotator"] == "w3") & (random.random(len(table)) < 0.8)
    table.loc[odd & longer_a, "winner"] = "b"
    table.loc[odd & longer_b, "winner"] = "a"
    found = audit(table, [Length()]).annotators
    assert found.loc[found["flag"], "annotator"].tolist() == pseudonyms(["w3"])
    by_test = found.loc[found["q_value"] <= 0.1, "annotator"].tolist()
    assert pseudonyms(["w3"])[0] in by_test


def test_classes_that_differ_are_found():
    table, _ = votes(900, 12, spread=0.2, class_gap=1.5)
    entry = audit(table, [Length()]).pool["length"]
    offset = {row["class"]: row["offset"] for row in entry["classes"]}
    assert 1.0 < offset["staff"] - offset["crowd"] < 2.0
    assert entry["class_test_p"] < 0.01
    assert entry["recommendation"] == "class"


def test_two_attributes_have_rows_of_their_own(table):
    result = audit(table[0].assign(hedge_a=1.0, hedge_b=[0.0, 1.0] * 2400), [Length()])
    assert result.annotators["attribute"].unique().tolist() == ["length"]
    table = votes(400, 8)[0]
    of_comparison = table["comparison_id"].str[1:].astype(int) % 3
    table = table.assign(
        hedge_a=(of_comparison == 1).astype(float), hedge_b=(of_comparison == 2).astype(float)
    )
    result = audit(table, [Length(), Column("hedging", "hedge_a", "hedge_b")])
    assert result.annotators["attribute"].tolist() == ["length", "hedging"] * 8
    assert list(result.pool) == ["length", "hedging"]
    assert result.attributes["name"].tolist() == ["length", "hedging"]


# -- anchors and levels --------------------------------------------------------------------------------------


def test_anchors_make_leans_absolute():
    table, lean = votes(1500, 10, spread=0.4, mean=0.9)
    neutral = votes(1500, 10, spread=0.4, mean=0.9)[0]
    assert neutral.equals(table)
    random = np.random.default_rng(7)
    # what w0 says of a pair does not depend on the lengths
    table.loc[table["annotator"] == "w0", "winner"] = random.choice(
        ["a", "b"], (table["annotator"] == "w0").sum()
    )
    result = audit(table, [Length()], anchors=["w0"])
    entry = result.pool["length"]
    assert entry["absolute"]
    assert "1 annotator" in entry["absolute_why"]
    assert entry["level_ci"][0] < lean[1:].mean() < entry["level_ci"][1]
    anchored = result.annotators.set_index("annotator").loc[pseudonyms(["w0"])[0]]
    assert (anchored["status"], anchored["deviation"], anchored["flag"]) == ("anchored", 0.0, False)
    assert result.checks["anchors"]["n"] == 1


def test_a_level_that_the_design_identifies_is_printed():
    entry = audit(seen_in_order(300, 4, 0.8, by_judge=True, seed=3), [Position()]).pool["position"]
    assert entry["absolute"]
    assert entry["level_ci"][0] < 0.8 < entry["level_ci"][1]
    assert "votes on one comparison differ" in entry["absolute_why"]


# -- estimators ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quality", ["conditional", "random", "fixed:score"])
def test_every_estimator_can_be_asked_for(quality):
    result = audit(votes(300, 6)[0].assign(score_a=1.0, score_b=0.5), [Length()], quality=quality)
    estimator = result.checks["estimator"]
    assert estimator["quality"] == quality.partition(":")[0]
    assert estimator["why"].startswith("asked for")


def test_the_fixed_quality_needs_its_columns():
    table, _ = votes(60, 4)
    with pytest.raises(ConfigError) as caught:
        audit(table.assign(score_a=1.0, score_b=0.5), [Length()], quality="fixed:scor")
    assert 'Did you mean "score"?' in str(caught.value)


def test_a_quality_that_is_no_number_is_refused():
    with pytest.raises(ConfigError, match="have no number"):
        audit(
            votes(60, 4)[0].assign(score_a=[None] * 4 + [1.0] * 236, score_b=1.0),
            [Length()],
            quality="fixed:score",
        )


def test_anchors_who_differ_are_not_believed_in_silence():
    table, lean = votes(900, 8, spread=1.5)
    ends = [f"w{lean.argmin()}", f"w{lean.argmax()}"]
    result = audit(table, [Length()], anchors=ends)
    assert result.checks["anchors"]["equal_leans_p"]["length"] < 0.01
    assert "W407" in codes(result)
    assert "W407" not in codes(audit(votes(900, 8, spread=0.0)[0], [Length()], anchors=["w0", "w1"]))


def test_with_too_little_to_condition_on_qualities_are_taken_as_random():
    estimator = audit(votes(500, 40, votes_each=1)[0], [Length()]).checks["estimator"]
    assert estimator["quality"] == "random"
    assert "have no informative vote" in estimator["why"] and "at random" in estimator["why"]


# -- little or odd data --------------------------------------------------------------------------------------


def test_without_annotators_the_pool_part_still_works():
    table, _ = votes(300, 6)
    result = audit(table.drop(columns=["annotator", "annotator_class"]), [Length()])
    assert result.attributes["log_odds"][0] > 0
    assert result.annotators.empty
    assert " ".join(result.annotators.columns) == COLUMNS
    assert not result.summary["data"]["has_annotators"]
    assert "W110" not in codes(result)
    assert "N110" in codes(result)
    assert result.pool["length"]["tau"] is None


def test_a_single_annotator():
    table, _ = votes(200, 6)
    result = audit(
        table.assign(annotator="w0", annotator_class="crowd").drop_duplicates("comparison_id"), [Length()]
    )
    assert "W111" in codes(result)
    assert result.annotators["status"].tolist() == ["no_information"]
    assert result.pool["length"]["level"] is None


def test_unanimous_votes():
    table, _ = votes(80, 6)
    table["winner"] = table.groupby("comparison_id")["winner"].transform("first")
    result = audit(table, [Length()], quality="conditional")
    assert set(result.annotators["status"]) == {"no_information"}
    assert result.summary["data"]["unanimous_share"] == 1.0
    assert result.annotators["shrunk"].isna().all()


def test_one_comparison_and_one_vote():
    table, _ = votes(40, 6)
    long = table[table["response_a"].str.len() > table["response_b"].str.len() + 10]
    result = audit(table[table["comparison_id"] == long["comparison_id"].iloc[0]], [Length()])
    assert result.summary["data"]["n_comparisons"] == 1
    assert not result.annotators["flag"].any()
    assert audit(long.head(1), [Length()]).summary["data"]["n_judgments"] == 1


@pytest.mark.parametrize(
    ("attribute", "code"), [(Markdown(), "E120"), (Column("same", "one_a", "one_b"), "E121")]
)
def test_an_attribute_without_variation(attribute, code):
    table, _ = votes(40, 4)
    with pytest.raises(DataError) as caught:
        audit(table.assign(one_a=1.0, one_b=1.0), [Length(), attribute])
    assert [problem.code for problem in caught.value.problems] == [code]


def test_repeats_are_counted_and_weights_are_not_left_out_silently():
    table, _ = votes(200, 6)
    again = table.head(30).assign(winner=table["winner"].head(30).map({"a": "b", "b": "a"}))
    result = audit(pd.concat([table, again]).assign(weight=2.0), [Length()])
    contradictions = result.summary["data"]["self_contradictions"]
    assert (contradictions["n_repeated"], contradictions["n_contradicted"]) == (30, 30)
    assert "W401" in codes(result)


def test_no_attribute():
    with pytest.raises(ConfigError, match="name an attribute"):
        audit(votes(20, 4)[0])


def test_judgments_that_are_read_already():
    judgments = Judgments.read(votes(100, 5)[0], attributes=[Length()])
    assert audit(judgments).summary["data"]["n_judgments"] == 400
    assert [row["name"] for row in audit(judgments, [Length(2.0, name="long")]).summary["attributes"]] == [
        "long"
    ]
    with pytest.raises(ConfigError, match="read already"):
        audit(judgments, winners={"left": "a"})


def test_no_folder_of_this_computer_is_in_the_summary(tmp_path):
    path = tmp_path / "someone" / "votes.csv"
    path.parent.mkdir()
    votes(60, 4)[0].to_csv(path, index=False)
    assert str(tmp_path) not in json.dumps(audit(path, [Length()]).summary)


def test_anchors_out_of_reach_of_a_part_of_the_pool():
    first, second = votes(120, 6)[0], votes(120, 6, seed=1)[0]
    for name in ("annotator", "comparison_id", "prompt_id"):
        second[name] = "other " + second[name]
    result = audit(pd.concat([first, second]), [Length()], anchors=["w0"])
    entry = result.pool["length"]
    assert entry["level"] is None
    assert "do not compare everyone with the annotators declared to lean nowhere" in entry["absolute_why"]
    assert "W408" in codes(result)


@pytest.mark.parametrize(("mean", "way"), [(1.0, "toward"), (-1.0, "away from")])
def test_the_page_says_which_way_the_pool_leans(mean, way):
    result = audit(votes(mean=mean)[0], [Length()])
    (verdict,) = [row["verdict"] for row in result.summary["attributes"]]
    assert f" {way} " in verdict and not {"toward", "away"} <= set(verdict.split())


def test_just_enough_informative_votes_can_be_flagged():
    table, _ = votes(n_comparisons=500)
    table.loc[table["annotator"].eq("w3"), "winner"] = np.where(
        table.loc[table["annotator"].eq("w3"), "response_a"].str.len() >= 40, "a", "b"
    )
    row = audit(table, [Length()]).annotators.query("annotator == @pseudonyms(['w3'])[0]").iloc[0]
    assert row["flag"]
    for least, flagged in ((row["n_informative"], True), (row["n_informative"] + 1, False)):
        found = audit(table, [Length()], min_informative=int(least)).annotators
        assert found.set_index("annotator").loc[row["annotator"], "flag"] == flagged


def test_an_order_that_few_judges_record_gives_no_level():
    """Where nobody records the other order of a comparison, its quality can stand in for the lean."""
    table = seen_in_order(300)
    table.loc[~table["annotator"].isin(["w0", "w1"]), "shown_first"] = None
    found = audit(table, [Position(), Length()])
    assert found.pool["position"]["level"] is None
    assert not found.pool["position"]["absolute"]
    unknown = next(row for row in found.summary["warnings"] if row["code"] == "W127")
    assert unknown["count"] == 4 * 300
    rows = found.annotators.set_index(["attribute", "annotator"])
    for k, pseudonym in enumerate(pseudonyms([f"w{k}" for k in range(6)])):
        assert (rows.loc[("position", pseudonym), "n_informative"] > 0) == (k < 2)
        assert rows.loc[("length", pseudonym), "n_informative"] > 0


def test_the_level_of_position_is_that_of_the_judges_who_record_both_orders():
    table = seen_in_order(500, by_judge=True)
    table.loc[~table["annotator"].isin(["w0", "w1"]), "shown_first"] = None
    result = audit(table, [Position()])
    (low, high), beyond = (result.pool["position"][name] for name in ("level_ci", "level_ci_beyond"))
    assert low < 1.0 < high
    assert high - low < 1.0
    assert beyond[0] < low
    assert high < beyond[1]
    assert result.pool["position"]["n_level"] == 2
    assert "more of it" not in result.attributes["verdict"][0]


def two_teams(is_joined: bool) -> pd.DataFrame:
    """Six people who lean one way and six who lean the other; at most one comparison has votes of both."""
    parts = []
    for letter, mean in (("w", 1.0), ("v", -1.0)):
        team = votes(300, 6, 3, spread=0.3, mean=mean)[0]
        team["annotator"] = letter + team["annotator"].str[1:]
        for name in ("comparison_id", "prompt_id", "prompt"):
            team[name] = letter + team[name]
        parts.append(team)
    longer = parts[0][parts[0]["response_a"].str.len() > parts[0]["response_b"].str.len()].iloc[0].to_dict()
    bridge = [
        longer | {"comparison_id": "both", "annotator": name, "winner": winner}
        for name, winner in (("w0", "a"), ("w1", "b"), ("v0", "a"), ("v1", "b"))
    ]
    return pd.concat([*parts, pd.DataFrame(bridge * is_joined)]).drop(columns="annotator_class")


def test_teams_joined_by_one_comparison_are_told_from_teams_apart_and_from_one_team():
    assert "W411" in codes(audit(two_teams(True), [Length()]))
    apart = codes(audit(two_teams(False), [Length()]))
    assert "W411" not in apart
    assert "W406" in apart
    assert "W411" not in codes(audit(votes(300, 12, 3)[0], [Length()]))


def test_where_care_prompts_classes_and_few_annotators_can_mislead_it_is_said():
    few = codes(audit(votes(600, 12, spread=0.9, class_gap=1.5)[0], [Length()]))
    assert {"W410", "W412", "W413", "N415"} <= set(few)
    many, _ = votes(600, 30, spread=0.0)
    many["prompt"] = many["comparison_id"]
    calm = codes(audit(many.drop(columns="prompt_id"), [Length()]))
    assert not {"W410", "W412", "W413", "W414", "N415"} & set(calm)


@pytest.mark.parametrize(("longest", "outlying"), [(9, False), (900, True)])
def test_units_of_continuous_attributes_are_said_and_so_are_outliers(longest, outlying, tmp_path):
    table, _ = votes(300, 25)
    size = np.random.default_rng(0).integers(1, 10, table["comparison_id"].nunique())
    size[0] = longest
    table["size_a"], table["size_b"] = size[pd.factorize(table["comparison_id"])[0]], 0
    result = audit(table, [Column("size", "size_a", "size_b", continuous=True)])
    (unit,) = [row for row in result.summary["warnings"] if row["code"] == "W414"]
    assert ("900" in unit["what"]) == outlying
    result.to_html(tmp_path / "report.html")
    assert "W414" in (tmp_path / "report.html").read_text()
