from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import false_discovery_control

from badpo.attributes import Bold, Length, LengthWords, Links, Lists, Markdown
from badpo.auditing.pool import FEATURES, scan_features
from badpo.data.judgments import Judgments

PHRASES = {"lists": "- item\n", "hedging": "perhaps ", "first_person": "I say ", "links": "www.example.org "}


def rows(n=800, n_prompts=40, leans=None, shown=None, seed=0, spread=0.0):
    """Votes on texts with and without each phrase; the logit leans toward some of them."""
    rng = np.random.default_rng(seed)
    prompt_effect = spread * rng.normal(size=n_prompts)
    table = []
    for i in range(n):
        sides = rng.integers(0, 2, (len(PHRASES), 2))
        texts = ["".join(p * has[k] for p, has in zip(PHRASES.values(), sides, strict=True)) for k in (0, 1)]
        difference = dict(zip(PHRASES, sides[:, 0] - sides[:, 1], strict=True))
        prompt = int(rng.integers(n_prompts))
        toward = sum(lean * difference[name] for name, lean in (leans or {}).items())
        toward += prompt_effect[prompt] * difference["hedging"]
        row = {
            "prompt": f"question {prompt}",
            "response_a": f"{texts[0]}one {i}",
            "response_b": f"{texts[1]}two {i}",
        }
        if shown is not None:
            row["shown_first"] = "ab"[rng.integers(2)]
            toward += shown * (1 if row["shown_first"] == "a" else -1)
        row["winner"] = "a" if rng.random() < expit(toward) else "b"
        table.append(row)
    return table


def scanned(table, *attributes):
    found = scan_features(Judgments.read(table, attributes=attributes))
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    return {row["feature"]: row for row in found}


def test_planted_preferences_are_found_and_the_others_are_not():
    found = scanned(rows(2000, leans={"lists": 0.8, "links": -0.7}, shown=0.6))
    assert list(found) == list(FEATURES)
    assert {name: row["advice"] for name, row in found.items() if row["advice"] != "nothing"} == {
        "lists": "declare",
        "links": "declare",
        "position": "declare",
    }
    for name, lean in (("lists", 0.8), ("links", -0.7), ("position", 0.6), ("hedging", 0.0)):
        assert found[name]["ci_low"] < lean < found[name]["ci_high"]
        assert found[name]["beyond_declared"] is None
    assert found["headers"]["q_value"] is None


def test_declared_features_are_skipped_and_position_needs_to_be_known():
    table = rows(100)
    assert set(FEATURES) - set(scanned(table)) == {"position"}
    assert set(FEATURES) - set(scanned(table, Length(), Links(name="addresses"))) == {
        "position",
        "length",
        "links",
    }
    assert "length" not in scanned(table, LengthWords(threshold=2))


def test_what_a_declared_attribute_explains_is_to_be_watched():
    table = rows(3000, leans={"lists": 1.0})
    for row in table:  # bold goes with lists four times in five
        for side in ("response_a", "response_b"):
            if row[side].startswith("- ") == (len(row[side] + row["prompt"]) % 5 > 0):
                row[side] += " **so**"
    alone, beside = scanned(table)["bold"], scanned(table, Lists())["bold"]
    assert alone["advice"] == "declare"
    assert alone["log_odds"] > 0.4
    assert abs(beside["beyond_declared"]["log_odds"]) < 0.3
    assert beside["log_odds"] == alone["log_odds"]
    assert beside["advice"] == "watch"


def test_what_a_declared_attribute_says_already_is_nothing():
    found = scanned(rows(1000, leans={"lists": 1.0}), Markdown())["lists"]
    assert found["log_odds"] > 0.5
    assert (found["advice"], found["beyond_declared"]) == ("nothing", None)


def test_a_lean_that_another_one_hides_is_to_be_watched():
    table = rows(3000, leans={"hedging": -0.9})
    rng = np.random.default_rng(1)
    for row in table:  # hedged texts are bold, and bold is liked as much as hedging is not
        for side in ("response_a", "response_b"):
            if ("perhaps" in row[side]) == (rng.random() < 0.95):
                row[side] += " **so**"
        bold = ("**" in row["response_a"]) - ("**" in row["response_b"])
        hedged = ("perhaps" in row["response_a"]) - ("perhaps" in row["response_b"])
        row["winner"] = "a" if rng.random() < expit(0.95 * bold - 0.9 * hedged) else "b"
    hidden = scanned(table, Bold())["hedging"]
    assert abs(hidden["log_odds"]) < 0.3
    assert hidden["beyond_declared"]["ci_high"] < -0.3
    assert hidden["advice"] == "watch"


def test_small_or_rare_preferences_are_not_declared():
    small = scanned(rows(20_000, leans={"lists": 0.15}))["lists"]
    assert small["q_value"] < 0.01
    assert small["advice"] == "nothing"
    table = rows(3000)
    for i, row in enumerate(table):
        if i % 40 == 0:
            row["response_a"], row["winner"] = "\N{PARTY POPPER}" + row["response_a"], "a" if i % 240 else "b"
    rare = scanned(table)["emoji"]
    assert rare["cross_share"] == 1 / 40
    assert rare["q_value"] < 0.1
    assert rare["advice"] == "watch"


def test_votes_that_go_one_way_have_a_one_sided_interval():
    table = rows(400)
    for row in table:
        row["winner"] = "a" if row["response_a"].startswith("- ") else "b"
        if row["response_a"].startswith("- ") == row["response_b"].startswith("- "):
            row["response_a"] = row["response_b"] = "so"
    lists = scanned(table)["lists"]
    assert (lists["carrier_wins"], lists["log_odds"], lists["ci_high"]) == (1.0, None, None)
    assert lists["ci_low"] > 1
    assert lists["advice"] == "declare"


def test_one_prompt_is_never_sure_and_no_vote_tells_nothing():
    found = scanned(rows(300, n_prompts=1, leans={"lists": 1.0}))["lists"]
    assert (found["q_value"], found["ci_low"], found["advice"]) == (None, None, "watch")
    judgments = Judgments.read(rows(5))
    for row in scan_features(judgments.take(np.zeros(5, dtype=bool))):
        assert (row["n_cross"], row["advice"], row["ci_low"]) == (0, "nothing", None)


@pytest.mark.parametrize("spread", [0.0, 0.6])
def test_false_alarms_without_any_preference(spread):
    sure, outside = [], []
    for seed in range(60):
        found = scanned(rows(240, n_prompts=12, seed=seed, spread=spread))
        tested = [row for row in found.values() if row["n_cross"]]
        sure.append(any(row["q_value"] <= 0.1 for row in tested))
        outside.append(any(not row["ci_low"] < 0 < row["ci_high"] for row in tested))
    # 10 % and 5 % of sixty, and three standard errors
    assert np.mean(sure) <= 0.10 + 3 * 0.039
    assert np.mean(outside) <= 0.05 + 3 * 0.028


def test_q_values_are_those_of_benjamini_and_hochberg():
    judgments = Judgments.read(rows(400, leans={"hedging": 0.25, "first_person": 0.2}, seed=3))
    found = [row for row in scan_features(judgments) if row["q_value"] is not None]
    measured = judgments.with_attributes([FEATURES[row["feature"]]() for row in found])
    p_values = np.array([one.p_value for one in measured.offline_log_odds()])
    ranks = p_values.argsort().argsort() + 1
    assert (false_discovery_control(p_values) < p_values * len(p_values) / ranks - 1e-6).any()
    assert [row["q_value"] for row in found] == pytest.approx(false_discovery_control(p_values))
