"""The audit as a whole: what is found, what is refused, what is said not to be known."""

import json

import numpy as np
import pandas as pd
import pytest

from badpo.attributes import Column, Length, Position
from badpo.auditing.annotators import Design
from badpo.auditing.audit import audit, votes_needed
from badpo.data.judgments import Judgments
from badpo.data.privacy import pseudonyms
from badpo.data.problems import ConfigError
from badpo.results.audit_findings import attribute_findings
from badpo.results.audit_page import shareable
from bench.audited_pools import build_table, people
from bench.simulated_pools import Pool, draw_votes
from tests.auditing.planted import COLUMNS as OF_VOTES
from tests.auditing.planted import LONG, SHORT, votes

ATTRIBUTE = Column("x", a="x_a", b="x_b")
COLUMNS = (
    "annotator class model attribute component n_judgments n_cross n_informative raw_rate log_odds log_odds_low "
    "log_odds_high deviation se ci_low ci_high shrunk post_sd post_low post_high odds_ratio q_value prob_exceeds flag "
    "status reliability reliability_low reliability_high flag_reliability agreement agreement_low agreement_high n_ties"
)


@pytest.fixture(scope="module")
def table() -> tuple[pd.DataFrame, np.ndarray]:
    return votes(1200, 12, spread=0.7)


@pytest.fixture(scope="module")
def result(table):
    return audit(table[0], [Length()], source="votes.csv")


def codes(result) -> set[str]:
    return {row["code"] for row in result.warnings}


def row_of(result, annotator: str) -> pd.Series:
    return result.annotators.set_index("annotator").loc[pseudonyms([annotator])[0]]


def toward_longer(table: pd.DataFrame, annotator: str, chance: float = 1.0) -> pd.DataFrame:
    """The table with somebody who chooses the longer side with some chance where the sides differ."""
    longer = {side: table[f"response_{side}"].str.len() >= 40 for side in "ab"}
    theirs = (table["annotator"] == annotator) & (longer["a"] ^ longer["b"])
    theirs &= np.random.default_rng(5).random(len(table)) < chance
    return table.assign(winner=table["winner"].mask(theirs, np.where(longer["a"], "a", "b")))


def test_planted_leans_are_found(result, table):
    rows, lean = result.annotators, table[1]
    of = dict(zip(pseudonyms([f"w{k}" for k in range(len(lean))]), lean - lean.mean(), strict=True))
    truth = rows["annotator"].map(of)
    assert (rows["status"] == "ok").all() and rows["annotator"].is_monotonic_increasing
    assert truth.between(rows["ci_low"], rows["ci_high"]).mean() >= 0.75
    assert np.corrcoef(rows["deviation"], truth)[0, 1] > 0.9
    low, high = result.summary["pool"]["length"]["tau_ci"]
    assert low < 0.7 < high
    assert rows["agreement"].between(rows["agreement_low"], rows["agreement_high"]).all()
    graph = result.checks["components"]["informative"]["length"]
    assert graph == {"n": 1, "sizes": [12], "outside": 0}
    assert " ".join(rows.columns) == COLUMNS
    json.dumps(result.summary, allow_nan=False)
    # the common level is not known
    entry = result.summary["pool"]["length"]
    assert (entry["shared_bias"], entry["shared_bias_ci"], entry["absolute"]) == (None, None, False)
    assert "not known" in entry["absolute_why"]
    assert abs(rows["deviation"].mean()) < 1e-6


def test_the_same_votes_give_the_same_bytes_without_the_place(table, result, tmp_path):
    result.write(tmp_path / "one")
    audit(table[0], [Length()], source="votes.csv").write(tmp_path / "two")
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), path.name
    table[0].iloc[[0, *range(99)]].to_parquet(tmp_path / "votes.parquet")
    told = audit(f"{tmp_path}/./votes.parquet", [Length()]).warnings
    assert "votes.parquet, row" in str(told) and str(tmp_path) not in str(told)


def test_who_leans_apart_is_flagged_with_just_enough_votes_and_a_class_that_does_is_found():
    table = toward_longer(votes(1500, 12, spread=0.0, mean=-1.0)[0], "w3", 0.8)
    result = audit(table, [Length()])
    found = row_of(result, "w3")
    assert "leans away from length" in result.attributes["verdict"][0]
    assert result.annotators["flag"].sum() == found["flag"] == 1 and found["q_value"] <= 0.1
    for more, flagged in ((0, True), (1, False)):
        least = found["n_informative"] + more
        assert row_of(audit(table, [Length()], min_informative=least), "w3")["flag"] == flagged
    entry = audit(votes(900, 12, spread=0.2, class_gap=1.5)[0], [Length()]).summary["pool"]["length"]
    offset = {row["class"]: row["offset"] for row in entry["classes"]}
    assert 1.0 < offset["staff"] - offset["crowd"] < 2.0
    assert entry["class_test_p"] < 0.01 and entry["recommendation"] == "class"


def test_anchors_make_leans_absolute_unless_they_vote_at_random():
    """Annotator 0 has no bias; an annotator who votes at random has none either, but says nothing about merit."""
    of = Pool(1500, 10, spread=0.4, mean=0.9, n_gold=1)
    drawn = draw_votes(of, np.random.default_rng(0))
    table, gold = build_table(drawn, of), people(10)[0]
    result = audit(table, [ATTRIBUTE], anchors=[gold])
    entry = result.summary["pool"]["x"]
    assert entry["absolute"] and "1 annotator" in entry["absolute_why"] and "W418" not in codes(result)
    assert entry["shared_bias_ci"][0] < drawn.deviation[1:].mean() < entry["shared_bias_ci"][1]
    anchored = result.annotators.set_index("annotator").loc[gold]
    assert (anchored["status"], anchored["deviation"], anchored["flag"]) == ("anchored", 0.0, False)
    assert result.checks["anchors"]["n"] == 1
    theirs = table["annotator"] == gold
    table.loc[theirs, "winner"] = np.random.default_rng(7).choice(["a", "b"], theirs.sum())
    unknown = audit(table, [ATTRIBUTE], anchors=[gold])
    assert "W418" in codes(unknown) and not unknown.annotators["flag"].any()


def test_anchors_who_differ_or_do_not_reach_everyone_are_not_believed_in_silence():
    table, lean = votes(900, 8, spread=1.5)
    result = audit(table, [Length()], anchors=[f"w{lean.argmin()}", f"w{lean.argmax()}"])
    assert result.checks["anchors"]["equal_biases_p"]["length"] < 0.01 and "W407" in codes(result)
    result = audit(votes(900, 8, spread=0.0)[0], [Length()], anchor_class="staff")
    said, staff = result.checks["anchors"], result.annotators.query("`class` == 'staff'")
    assert (said["n"], said["class"]) == (4, "staff") and "W407" not in codes(result)
    assert said["annotators"] == staff["annotator"].tolist()
    assert said["n_cross"] == {"length": staff["n_cross"].sum()}
    first, second = votes(120, 6)[0], votes(120, 6, seed=1)[0]
    second[["annotator", "comparison_id", "prompt_id"]] += " other"
    result = audit(pd.concat([first, second]), [Length()], anchors=["w0"])
    entry = result.summary["pool"]["length"]
    assert entry["shared_bias"] is None and "the annotators declared" in entry["absolute_why"]
    assert "W408" in codes(result)
    within = result.annotators.groupby("component")["deviation"].mean()
    assert within.to_numpy() == pytest.approx([0, 0], abs=1e-9)


def seen_in_order(by_judge: bool) -> pd.DataFrame:
    """Six judges who prefer the side shown first; the order is drawn for each judgment, or for each comparison."""
    random, rows = np.random.default_rng(0), []
    for c in range(500):
        quality, of_comparison = random.standard_normal(), random.choice([-1, 1])
        for k in range(6):
            first = random.choice([-1, 1]) if by_judge else of_comparison
            won = "a" if random.random() < 1 / (1 + np.exp(-quality - first)) else "b"
            texts = f"{SHORT} {c}a", f"{LONG} {c}b"
            rows.append((f"c{c}", f"p{c}", f"question {c}", *texts, won, f"w{k}", "ba"[int(first > 0)]))
    return pd.DataFrame(rows, columns=[*OF_VOTES, "shown_first"])


def test_an_order_that_few_judges_record_gives_a_level_where_they_record_both():
    """Where nobody records the other order of a comparison, its quality can stand in for the lean."""
    found = {}
    for by_judge in (False, True):
        table = seen_in_order(by_judge)
        table.loc[~table["annotator"].isin(["w0", "w1"]), "shown_first"] = None
        found[by_judge] = audit(table, [Position(), Length()])
    entry = found[False].summary["pool"]["position"]
    assert (entry["shared_bias"], entry["absolute"]) == (None, False)
    (unknown,) = [row for row in found[False].warnings if row["code"] == "W127"]
    assert unknown["count"] == 4 * 500
    rows = found[False].annotators
    informed, of_position = rows["n_informative"] > 0, rows["attribute"] == "position"
    assert set(rows["annotator"][informed & of_position]) == set(pseudonyms(["w0", "w1"]))
    assert informed[~of_position].all()
    entry = found[True].summary["pool"]["position"]
    assert entry["absolute"] and "votes on one comparison differ" in entry["absolute_why"]
    (low, high), beyond = entry["shared_bias_ci"], entry["shared_bias_ci_beyond"]
    assert low < 1.0 < high < low + 1.0
    assert beyond[0] < low and high < beyond[1] and entry["n_shared_bias"] == 2


def test_where_only_some_show_both_orders_their_leans_count_from_their_own_mean():
    both, one = seen_in_order(True), seen_in_order(False)
    one[["annotator", "comparison_id", "prompt_id", "response_a"]] += " too"
    result = audit(pd.concat([both, one]), [Position()])
    entry, rows = result.summary["pool"]["position"], result.annotators
    assert (entry["shared_bias"], entry["absolute"]) == (None, False) and entry["equal_biases_p"] > 0.01
    assert rows.groupby("component")["deviation"].mean().to_numpy() == pytest.approx([0, 0], abs=1e-9)
    assert rows["shrunk"].abs().max() < 0.4 and not rows["flag"].any()


def test_who_judged_in_both_orders_is_told_and_contradicts_nobody():
    table = seen_in_order(False).query("comparison_id < 'c2'").assign(annotator_class="model")
    other = table.assign(shown_first=table["shown_first"].map({"a": "b", "b": "a"}))
    swayed = other["annotator"].isin(["w0", "w1", "w2"])
    other["winner"] = other["winner"].mask(swayed, other["winner"].map({"a": "b", "b": "a"}))
    result = audit(pd.concat([table, other]), [Position()])
    n, data = len(table), result.summary["data"]
    assert data["both_orders"] == {"n": n, "same_share": 0.5, "n_annotators": 6, "n_people": 0} | {
        "is_dominated": False
    }
    rows = [(row["model"], row["both_orders"], row["same_share"]) for row in result.summary["models"]]
    assert rows == [(f"w{k}", n // 6, float(k > 2)) for k in range(6)]
    assert f"the same answer in either order 100\u00a0% of {n // 6}" in str(result)
    assert "judgments with a recorded order (100 % of all)" in " ".join(str(result).split())
    assert "W133" not in codes(result)


@pytest.mark.parametrize("quality", ["conditional", "marginal"])
def test_every_estimator_can_be_asked_for(quality):
    estimator = audit(votes(300, 6)[0], [Length()], quality=quality).checks["estimator"]
    assert estimator["quality"] == quality
    assert estimator["why"].startswith("set by the option quality")


def test_without_annotators_the_pool_still_works():
    result = audit(votes(300, 6)[0].drop(columns=["annotator", "annotator_class"]), [Length()])
    assert result.attributes["log_odds"][0] > 0
    assert result.annotators.empty and " ".join(result.annotators.columns) == COLUMNS
    assert not result.summary["data"]["has_annotators"]
    assert "N110" in codes(result) and "W110" not in codes(result)
    assert result.summary["pool"]["length"]["tau"] is None


LITTLE = {
    "one annotator": lambda table: table[table["annotator"] == "w0"],
    "unanimous": lambda t: t.assign(winner=t.groupby("comparison_id")["winner"].transform("first")),
    "one comparison": lambda table: table.head(4),
    "one vote": lambda table: table.head(1),
}


@pytest.mark.parametrize("kind", LITTLE)
def test_too_little_to_say_much(kind):
    table = votes(80, 6)[0]
    differs = table["response_a"].str.startswith(LONG) ^ table["response_b"].str.startswith(LONG)
    table = LITTLE[kind](table[differs])
    result = audit(table, [Length()], quality="conditional")
    data, entry = result.summary["data"], result.summary["pool"]["length"]
    assert (data["n_judgments"], data["n_comparisons"]) == (len(table), table["comparison_id"].nunique())
    assert entry["shared_bias"] is None and not result.annotators["flag"].any()
    assert ("W111" in codes(result)) == (kind in ("one annotator", "one vote"))
    assert "nan" not in str(result).lower().split()
    if kind in ("one annotator", "unanimous"):
        assert set(result.annotators["status"]) == {"no_information"}
        assert result.annotators["shrunk"].isna().all()
    assert data["unanimous_share"] in ((1.0,) if kind == "unanimous" else (None, 0.0, 1.0))


def alone(table: pd.DataFrame) -> pd.DataFrame:
    """The table, and one annotator who judged other comparisons than everybody else."""
    own = table.drop_duplicates("comparison_id").assign(annotator="alone", annotator_class="crowd")
    own[["comparison_id", "response_a", "response_b"]] += " too"
    return pd.concat([table, own])


ODD = {
    "W125": ("fall into 2 groups (12 + 1)", alone),
    "W128": ("a was always shown first", lambda table: table.assign(shown_first="a")),
    "W430": ("all annotators chose the same side", LITTLE["unanimous"]),
    "W431": (
        "agree no more than by chance (50% ",
        lambda t: t.assign(winner=np.random.default_rng(3).choice(["a", "b"], len(t))),
    ),
    "N432": (
        "has a single annotator",
        lambda t: t.assign(annotator_class=np.where(t["annotator"] == "w0", "model", "people")),
    ),
}


@pytest.mark.parametrize("code", ODD)
def test_what_is_odd_is_a_sentence_that_says_what_to_do(code, table, result, tmp_path):
    what, change = ODD[code]
    odd = audit(change(table[0]), [Length(), *[Position()] * (code == "W128")])
    (told,) = [row for row in odd.warnings if row["code"] == code]
    assert what in told["what"] and told["remedy"] and code not in codes(result)
    odd.people_to_html(tmp_path / "people.html")
    assert "nan" not in str(odd).lower().split()


def test_weights_are_reported_and_models_have_their_names():
    table, _ = votes(200, 6)
    again = table.head(30).assign(winner=table["winner"].head(30).map({"a": "b", "b": "a"}))
    result = audit(pd.concat([table, again]).assign(weight=2.0), [Length()])
    assert "W401" in codes(result) and "W401" not in codes(audit(table, [Length()]))
    table = votes(100, 6)[0].replace({"annotator": {"w0": "gpt4", "w1": "ann@example.org"}})
    result = audit(table, [Length()], models=["gpt4", "ann@example.org", "gpt4"])
    named = [row["model"] for row in result.summary["models"]]
    assert sorted(named) == sorted(["gpt4", *pseudonyms(["ann@example.org"])])


def test_judgments_that_are_read_already():
    judgments = Judgments.read(votes(100, 5)[0], attributes=[Length()])
    assert audit(judgments).summary["data"]["n_judgments"] == 400
    assert audit(judgments, [Length(2.0, name="long")]).attributes["name"].tolist() == ["long"]
    with pytest.raises(ConfigError, match="already been read"):
        audit(judgments, winners={"left": "a"})
    assert audit(votes(100, 5)[0]).attributes["name"].tolist() == ["length"]


def two_teams(is_joined: bool, size: int = 6) -> pd.DataFrame:
    """A team that leans one way and one that leans the other; at most one comparison has votes of both."""
    teams = [votes(300, size, min(size, 3), spread=0.3, mean=mean)[0] for mean in (1.0, -1.0)]
    teams[1][["annotator", "comparison_id", "prompt_id", "prompt"]] += " v"
    longer = teams[0]["response_a"].str.len() > teams[0]["response_b"].str.len()
    row = teams[0][longer].iloc[0].to_dict() | {"comparison_id": "both"}
    cast = (("w0", "a"), ("w1", "b"), ("w0 v", "a"), ("w1 v", "b"))
    bridge = [row | {"annotator": name, "winner": winner} for name, winner in cast]
    return pd.concat([*teams, pd.DataFrame(bridge * is_joined)]).drop(columns="annotator_class")


@pytest.mark.parametrize("is_joined", [True, False])
def test_teams_that_one_comparison_joins_or_none_have_means_of_their_own(is_joined):
    apart = audit(two_teams(is_joined), [Length()])
    (told,) = [row for row in apart.warnings if row["code"] == "W406"]
    assert "(6 + 6)" in told["what"] and "W406" in str(shareable(apart.summary)["warnings"])
    of_team = apart.annotators.groupby(apart.annotators["component"])["deviation"].mean()
    assert of_team.to_numpy() == pytest.approx([0, 0], abs=1e-9)
    assert apart.summary["pool"]["length"]["tau"] < 0.7
    (told,) = attribute_findings(apart.summary)
    assert "the mean of their group with" in str(told) and "Tau by group: 6 annotators, 0" in str(told)
    assert (
        "applies within groups of annotators; the votes do not show whether the groups differ from each other"
        in str(told)
    )


def test_one_team_and_pairs_of_people_are_not_taken_apart():
    assert "W406" not in codes(audit(votes(300, 12, 3)[0], [Length()]))
    assert "W406" not in codes(audit(two_teams(True, size=2), [Length()]))


def test_where_care_prompts_classes_and_few_annotators_can_mislead_it_is_said():
    table = votes(600, 12, spread=0.9, class_gap=1.5)[0]
    told = audit(table, [Length()])
    assert not codes(told) & {"W410"} and "Flags for a bias are adjusted for" in " ".join(
        str(told).split()
    )
    differs = table["response_a"].str.startswith(LONG) ^ table["response_b"].str.startswith(LONG)
    few = table["comparison_id"].isin(table["comparison_id"].unique()[:120])
    for rows, how in ((differs, "is not known"), (differs | few, "reliability is uncertain")):
        told = audit(table[rows], [Length()])
        assert "W410" in codes(told) and how in str(told)
        told = " ".join(str(told).split())
        assert "Annotators may differ in reliability rather than in bias" in told
        assert "Flags for a bias are adjusted" not in told
    many = votes(1500, 30, spread=0.0)[0]
    many["prompt"] = many["comparison_id"]
    calm = codes(audit(many.drop(columns="prompt_id"), [Length()]))
    assert not {"W410", "W414"} & calm


@pytest.mark.parametrize("is_known", [True, False])
def test_classes_that_may_differ_in_reliability_are_not_said_to_differ_in_bias_alone(is_known):
    """Half of the annotators answer at random, the others choose the longer response, which is better."""
    table, random = votes(1500, 12, spread=0.0, mean=1.2)[0], np.random.default_rng(1)
    at_random = (table["annotator_class"] == "staff").to_numpy()
    table["winner"] = np.where(at_random, random.choice(["a", "b"], len(table)), table["winner"])
    differs = table["response_a"].str.startswith(LONG) ^ table["response_b"].str.startswith(LONG)
    result = audit(table if is_known else table[differs], [Length()])
    entry = result.summary["pool"]["length"]
    assert "W417" in codes(result) and "W417" in entry["recommendation_reason"]
    assert (entry["class_test_p"] >= 0.05) == is_known == (entry["recommendation"] != "class")
    assert "W417" not in codes(audit(votes(1500, 12, spread=0.2, class_gap=1.5)[0], [Length()]))


def test_reliability_is_shrunk_toward_the_mean_of_a_class():
    """The true means are 0.46 and 1.54; toward the mean of all annotators, 1, a part of this would be lost."""
    pool = Pool(900, 24, mean=0.0, classes=(12, 12), class_care=0.3)
    table = build_table(draw_votes(pool, np.random.default_rng(0)), pool)
    apart, together = (
        audit(each, [ATTRIBUTE]).annotators.set_index("annotator")["reliability"].reindex(people(24))
        for each in (table, table.drop(columns="annotator_class"))
    )
    of_class, of_all = (each[12:].mean() - each[:12].mean() for each in (apart, together))
    assert of_class > of_all + 0.1
    assert of_class == pytest.approx(1.54 - 0.46, abs=0.3)


def test_that_annotators_differ_and_that_nobody_can_say_how_far_do_not_contradict_each_other():
    result, calm = (
        audit(table.assign(prompt_id=table["comparison_id"]), [Length()], quality="conditional")
        for table, _ in (votes(30, 8, spread=8), votes(60, 60, 2, spread=0))
    )
    (told,) = [row["what"] for row in result.warnings if row["code"] == "W409"]
    assert result.summary["pool"]["length"]["tau"] is None and "that they differ (p < 0.001)" in told
    assert "Annotators differ (test of one shared bias: p < 0.001; tau not known)" in str(result)
    (told,) = [row["what"] for row in calm.warnings if row["code"] == "W409"]
    assert "surely" not in told and "cannot show differences" in str(calm)


def sized(scale: float = 1.0, outlier: float = 0.0, n_outliers: int = 0) -> pd.DataFrame:
    """A table with a continuous attribute that some annotators lean toward, and a few absurd differences in it."""
    random = np.random.default_rng(0)
    table, lean = votes(600, 25, spread=0.0)[0], 0.8 * random.standard_normal(25)
    number = pd.factorize(table["comparison_id"])[0]
    size = random.uniform(1, 9, number.max() + 1) * random.choice([-1, 1], number.max() + 1)
    logit = random.standard_normal(number.max() + 1)[number]
    logit += lean[table["annotator"].str[1:].astype(int)] * size[number] / 5
    table["winner"] = np.where(random.random(len(table)) < 1 / (1 + np.exp(-logit)), "a", "b")
    size[:n_outliers] = outlier
    return table.assign(size_a=scale * size[number], size_b=0.0)


SIZE = Column("size", "size_a", "size_b", continuous=True)


def test_the_scale_of_numbers_moves_no_lean_and_a_few_absurd_ones_little():
    declared = zip((0.01, 100.0), (SIZE, Column("size", "size_a", "size_b")), strict=True)
    small, large = (audit(sized(scale), [size]) for scale, size in declared)
    shown = ["deviation", "se", "shrunk", "post_low", "prob_exceeds", "flag"]
    both = (one.annotators[shown].astype(float) for one in (small, large))
    np.testing.assert_allclose(*both, rtol=1e-6)
    assert small.annotators["flag"].any()
    units = [one.summary["pool"]["size"]["unit"] for one in (small, large)]
    assert units == pytest.approx([0.05, 500], rel=0.1)
    assert "W414" not in codes(small) and "between two responses (0.0" in " ".join(str(small).split())
    clean, wrong = (audit(sized(n_outliers=n, outlier=5000.0), [SIZE]) for n in (0, 6))
    (told,) = [row for row in wrong.warnings if row["code"] == "W414"]
    for part in ("24 judgments differ by more than 3 times", "largest difference 5.00e+03"):
        assert part in told["what"]
    leans = (one.annotators["shrunk"] for one in (clean, wrong))
    assert np.corrcoef(*leans)[0, 1] > 0.95
    assert (wrong.annotators["n_informative"] < clean.annotators["n_informative"]).any()
    assert wrong.summary["pool"]["size"]["tau"] > 0.8 * clean.summary["pool"]["size"]["tau"]
    # sides that differ vastly are not alike, so that they tell nothing of care
    assert "W410" in codes(clean) & codes(audit(sized(n_outliers=60, outlier=5000.0), [SIZE]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quality": "conditonal"}, 'Did you mean "conditional"?'),
        *(({"rho": size}, "rho must be 0 or more") for size in (-0.1, float("nan"), float("inf"))),
        *(({"fdr": share}, "fdr must be above") for share in (0, 1.0)),
        ({"anchors": ("worker 7",), "anchor_class": "gold"}, "not both"),
        ({"anchors": ["someone@example.org"]}, "cast no vote in this table"),
        ({"anchor_class": "stuff"}, 'Did you mean "staff"?'),
        ({"min_informative": 0}, "1 or more"),
        ({"anchors": "me@here.org"}, "anchors takes a list, not str: write anchors=['expert-1']"),
        ({"anchors": {"w1": 1}}, "anchors takes a list, not dict: write anchors=['expert-1']"),
        ({"models": "gpt4"}, "models takes a list, not str: write models=['gpt-4']"),
        ({"columns": ["id"]}, "takes a mapping, not list: write columns={'annotator': 'worker_id'}"),
        ({"winners": "a"}, "write winners={'model_a': 'a'}"),
        ({"keep": "score"}, "write keep=['score']"),
        ({"columns": {1: 2}}, "columns takes a mapping, not int: write columns="),
        ({"keep": [5]}, "keep takes a list, not int: write keep="),
        ({"rho": "0.5"}, "rho takes a number, not str: write rho=0.5"),
        ({"progress": True}, "write progress=print"),
        ({"colums": {}}, 'audit takes no "colums". Did you mean "columns"?'),
    ],
)
def test_what_is_refused_and_why(options, message):
    with pytest.raises(ConfigError) as caught:
        audit(votes(20, 6)[0], [Length()], **options)
    assert message in str(caught.value) and "@" not in str(caught.value)


def test_counts_rates_and_the_votes_that_a_judge_needs():
    cast = [("1", "x", "a", "a"), ("1", "y", "b", "a"), ("2", "x", "a", "b"), ("2", "y", "a", "b")]
    cast += [("3", "x", "a", "-"), ("4", "z", "a", "-")]
    rows = [
        {"comparison_id": c, "prompt": "Why?", "winner": winner, "annotator": who}
        | {f"response_{side}": f"{LONG if longer == side else SHORT} {side}{c}" for side in "ab"}
        for c, who, winner, longer in cast
    ]
    design = Design(Judgments.read(rows, attributes=[Length()]))
    assert design.count_by_annotator(design.cross).ravel().tolist() == [2, 2, 0]
    assert design.count_by_annotator(design.informative).ravel().tolist() == [1, 1, 0]
    np.testing.assert_array_equal(design.raw_rate().ravel(), [0.5, 0.0, np.nan])
    assert design.n_votes.tolist() == [3, 2, 1]
    found = votes_needed([[0.5, np.nan], [np.nan, np.inf]], [[16, 0], [3, 5]], 0.98)
    np.testing.assert_array_equal(found, [16, np.nan])
    assert votes_needed([[0.5]], [[1]], 0.98) == [1]
