"""What the pool leans toward: declared attributes, swap pairs, and the scan of features nobody declared."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit

from badpo import attributes as on
from badpo.auditing import pool_bias as pool
from badpo.auditing.pool_bias import scan_features as scan_measured
from badpo.data.judgments import Judgments
from badpo_paper.corpora import bundled, signed

NAMED = "name, scope, cross_share, n_cross, win_rate, log_odds, ci_low, ci_high, naive_ci_low, naive_ci_high, odds"


def scan_features(judgments: Judgments) -> list[dict]:
    features = pool.measure_undeclared_features(judgments)
    return scan_measured(judgments, features, pool.swap_pair_sides(judgments))


def winner(rng, lean):
    """The side that a vote with these log-odds for a goes to."""
    return "a" if rng.random() < expit(lean) else "b"


def rows(n=600, n_prompts=60):
    """Votes whose logit is a lean of one toward length and of one half toward bold."""
    rng, table = np.random.default_rng(0), []
    for i in range(n):
        words, marked = rng.choice([4, 12], 2), rng.integers(0, 2, 2)
        texts = [f"{'**so** ' * marked[k] or 'so '}{'word ' * words[k]}{i} {k}" for k in (0, 1)]
        lean = np.sign(words[0] - words[1]) + 0.5 * (marked[0] - marked[1])
        row = {"prompt": f"question {rng.integers(n_prompts)}", "response_a": texts[0]}
        table.append(row | {"response_b": texts[1], "winner": winner(rng, lean)})
    return table


def pooled(table, *attributes):
    return pool.plain(pool.pool_attributes(Judgments.read(table, attributes=attributes)))


def of(row, names):
    return [row[name] for name in names.split()]


def test_a_row_has_the_published_names_and_the_figures_of_the_judgments():
    judgments = Judgments.read(rows(), attributes=[on.Length(), on.Bold(), on.Emoji()])
    found = pool.plain(pool.pool_attributes(judgments))
    for row, one in zip(found, judgments.offline_log_odds(), strict=True):
        assert set(NAMED.split(", ")) <= set(row)
        expected = [one.n_cross, one.n_clusters, one.win_rate]
        assert of(row, "n_cross n_prompts win_rate") == expected
        assert of(row, "ci_low naive_ci_high") == [one.interval()[0], one.interval(naive=True)[1]]
        assert row["cross_share"] == one.n_cross / 600
    assert [row["interval"] for row in found] == ["clustered", "clustered", None]
    assert found[0]["odds"] == pytest.approx(math.exp(found[0]["log_odds"]))
    assert pool.pool_attributes(Judgments.read(rows(5))) == []


def test_attributes_that_say_the_same_are_named():
    bold, markdown, other, nothing = pooled(rows(), on.Bold(), on.Markdown(), on.Length(), on.Headers())
    assert (bold["collinear_with"], markdown["collinear_with"]) == (["markdown"], ["bold"])
    assert other["collinear_with"] == nothing["collinear_with"] == []
    assert bold["joint"]["log_odds"] is None and other["joint"]["log_odds"] is not None


def test_votes_that_go_one_way_no_cross_group_vote_and_few_prompts():
    table = [row | {"winner": "a" if "**" in row["response_a"] else "b"} for row in rows(200)]
    bold, length, headers = pooled(table, on.Bold(), on.Length(), on.Headers())
    assert of(bold, "win_rate log_odds odds ci_high") == [1.0, None, None, None]
    assert 0 < bold["ci_low"] < bold["naive_ci_low"]
    assert bold["joint"]["log_odds"] is None and length["joint"]["log_odds"] is not None
    assert of(headers, "n_cross interval win_rate ci_low") == [0, None, None, None]
    judgments = Judgments.read(rows(5), attributes=[on.Length(), on.Bold()])
    for row in pool.plain(pool.pool_attributes(judgments.take(np.zeros(5, dtype=bool)))):
        assert of(row, "n_cross cross_share log_odds interval") == [0, 0.0, None, None]
        assert row["quality_adjusted"] is None
    few, one = pooled(rows(n_prompts=10), on.Length())[0], pooled(rows(n_prompts=1), on.Length())[0]
    assert (few["interval"], few["n_prompts"]) == ("small-cluster", 10)
    assert few["ci_high"] - few["ci_low"] > 0
    assert (one["interval"], one["ci_low"], one["joint"]["ci_low"]) == ("naive only", None, None)
    assert one["naive_ci_low"] < one["log_odds"] < one["naive_ci_high"]


def test_continuous_attributes_count_by_their_side_whichever_stands_first():
    (row,), (binary,) = pooled(rows(2000), on.LengthWords(threshold=3)), pooled(rows(2000), on.Length())
    for found in (row["joint"]["log_odds"], row["log_odds"]):
        assert found == pytest.approx(binary["log_odds"])
    names = {"response_a": "response_b", "response_b": "response_a"}
    turned = pd.DataFrame(rows(400)).rename(columns=names).replace({"winner": {"a": "b", "b": "a"}})
    attributes = (on.Length(), on.Bold())
    for one, other in zip(pooled(rows(400), *attributes), pooled(turned, *attributes), strict=True):
        assert one["joint"] == pytest.approx(other["joint"])
        assert one["ci_low"] == pytest.approx(other["ci_low"])


def test_swap_pairs_of_the_signed_corpus_give_the_gates_figures():
    corpus = signed.build(bundled.scored_pairs(1500), seed=0)
    statistics = signed.measure_corpus(corpus)
    for row in pool.pool_attributes(corpus.judgments):
        adjusted = row["quality_adjusted"]
        assert adjusted["log_odds"] == pytest.approx(statistics["swap_log_odds"][row["name"]]["all"])
        assert row["log_odds"] == pytest.approx(statistics["all_log_odds"][row["name"]]["all"])
        assert f"differ only in {row['name']} are equally good" in adjusted["assumes"]


def test_a_kind_column_says_what_is_a_swap_pair_and_twins_that_differ_elsewhere_are_none():
    table = [row | {"kind": "swap" if i % 3 == 0 else "real"} for i, row in enumerate(rows(300))]
    judgments = Judgments.read(table, attributes=[on.Bold()], keep=["kind"])
    is_swap = (judgments.comparisons["kind"] == "swap").to_numpy()[judgments.votes["comparison"]]
    (row,), (found,) = pool.pool_attributes(judgments), judgments.take(is_swap).offline_log_odds()
    assert row["quality_adjusted"]["log_odds"] == pytest.approx(found.log_odds)
    assert row["quality_adjusted"]["n_votes"] == found.n_cross
    table = []
    for i in range(60):
        marked = ("**so** it is", "## so it is" if i < 30 else "so it is")
        chosen, rejected = marked if i % 3 else marked[::-1]
        table.append({"prompt": f"question {i}", "chosen": chosen, "rejected": rejected})
    bold, headers = pooled(table, on.Bold(), on.Headers())
    assert bold["quality_adjusted"]["n_votes"] == 30
    assert bold["quality_adjusted"]["log_odds"] == pytest.approx(math.log(2))
    assert headers["quality_adjusted"] is None


PHRASES = {"lists": "- item\n", "hedging": "perhaps ", "first_person": "I say ", "links": "www.a.org "}


def phrased(n=800, n_prompts=40, leans=None, shown=None):
    """Votes on texts with and without each phrase; the logit leans toward some of them."""
    rng, table = np.random.default_rng(1), []
    for i in range(n):
        sides = rng.integers(0, 2, (len(PHRASES), 2))
        texts = ["".join(np.repeat([*PHRASES.values()], has)) for has in sides.T]
        difference = dict(zip(PHRASES, sides[:, 0] - sides[:, 1], strict=True))
        prompt = int(rng.integers(n_prompts))
        toward = sum(lean * difference[name] for name, lean in (leans or {}).items())
        row = {"response_a": f"{texts[0]}one {i}", "response_b": f"{texts[1]}two {i}"}
        if shown is not None:
            row["shown_first"] = "ab"[rng.integers(2)]
            toward += shown * (1 if row["shown_first"] == "a" else -1)
        table.append(row | {"prompt": f"question {prompt}", "winner": winner(rng, toward)})
    return table


def scanned(table, *attributes):
    found = pool.plain(scan_features(Judgments.read(table, attributes=attributes)))
    return {row["feature"]: row for row in found}


def test_planted_preferences_are_found_and_the_others_are_not():
    table = phrased(2000, leans={"lists": 0.8, "links": -0.7}, shown=0.6)
    found = scanned(table)
    assert list(found) == list(pool.FEATURES)
    advice = [(name, row["advice"]) for name, row in found.items() if row["advice"] != "nothing"]
    assert sorted(advice) == [(name, "declare") for name in ("links", "lists", "position")]
    for name, lean in (("lists", 0.8), ("links", -0.7), ("position", 0.6), ("hedging", 0.0)):
        assert found[name]["ci_low"] < lean < found[name]["ci_high"]
        assert found[name]["beyond_declared"] is None
    assert found["headers"]["q_value"] is None
    # the intervals of all features that have votes cover together
    n_tested = sum(row["n_cross"] > 0 for row in found.values())
    (alone,) = Judgments.read(table, attributes=[on.Lists()]).offline_log_odds()
    assert of(found["lists"], "ci_low ci_high") == pytest.approx(alone.interval(1 - 0.05 / n_tested))
    assert n_tested == 6


def test_declared_features_are_skipped_and_position_needs_to_be_known():
    table = phrased(100)
    assert set(pool.FEATURES) - set(scanned(table)) == {"position"}
    declared = scanned(table, on.Length(), on.Links(name="addresses"))
    assert set(pool.FEATURES) - set(declared) == {"position", "length", "links"}
    assert "length" not in scanned(table, on.LengthWords(threshold=2))


def test_what_a_declared_attribute_explains_or_hides_is_to_be_watched():
    table = phrased(3000, leans={"lists": 1.0})
    said = scanned(table[:1000], on.Markdown())["lists"]
    assert said["log_odds"] > 0.5
    assert (said["advice"], said["beyond_declared"]) == ("nothing", None)
    for row in table:  # bold goes with lists four times in five
        for side in ("response_a", "response_b"):
            if row[side].startswith("- ") == (len(row[side] + row["prompt"]) % 5 > 0):
                row[side] += " **so**"
    alone, beside = scanned(table)["bold"], scanned(table, on.Lists())["bold"]
    assert alone["advice"] == "declare" and alone["log_odds"] > 0.4
    assert abs(beside["beyond_declared"]["log_odds"]) < 0.3
    assert (beside["log_odds"], beside["advice"]) == (alone["log_odds"], "watch")
    table = phrased(3000, leans={"hedging": -0.9})
    rng = np.random.default_rng(1)
    for row in table:  # hedged texts are bold, and bold is liked as much as hedging is not
        for side in ("response_a", "response_b"):
            if ("perhaps" in row[side]) == (rng.random() < 0.95):
                row[side] += " **so**"
        bold, hedged = ((m in row["response_a"]) - (m in row["response_b"]) for m in ("**", "perhaps"))
        row["winner"] = winner(rng, 0.95 * bold - 0.9 * hedged)
    hidden = scanned(table, on.Bold())["hedging"]
    assert abs(hidden["log_odds"]) < 0.3
    assert hidden["beyond_declared"]["ci_high"] < -0.3
    assert hidden["advice"] == "watch"


def test_small_and_rare_preferences_those_of_one_prompt_and_those_of_all():
    found = scanned(phrased(300, n_prompts=1, leans={"lists": 1.0}))["lists"]
    assert of(found, "q_value ci_low advice") == [None, None, "watch"]
    listed = [(row, row["response_a"].startswith("- ")) for row in phrased(400)]
    differ = [(row, has) for row, has in listed if has != row["response_b"].startswith("- ")]
    lists = scanned([row | {"winner": "ba"[has]} for row, has in differ])["lists"]
    assert of(lists, "win_rate log_odds ci_high advice") == [1.0, None, None, "declare"]
    judgments = Judgments.read(phrased(5))
    for row in pool.plain(scan_features(judgments.take(np.zeros(5, dtype=bool)))):
        assert of(row, "n_cross advice ci_low") == [0, "nothing", None]
    small = scanned(phrased(20_000, leans={"lists": 0.15}))["lists"]
    assert small["q_value"] < 0.01 and small["advice"] == "nothing"
    table = phrased(3000)
    for i, row in enumerate(table[::40]):
        row |= {"response_a": "\N{PARTY POPPER}" + row["response_a"], "winner": "a" if i % 6 else "b"}
    rare = scanned(table)["emoji"]
    assert rare["cross_share"] == 1 / 40 and rare["q_value"] < 0.1
    assert rare["advice"] == "watch"
