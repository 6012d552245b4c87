from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit, logit

from badpo.attributes import (
    Bold,
    Emoji,
    Headers,
    Length,
    LengthWords,
    Markdown,
    Position,
    PythonFunction,
)
from badpo.auditing.pool import LENGTH_RATIOS, pool_attributes, scan_features
from badpo.data.judgments import Judgments
from badpo_paper.corpora import bundled, signed

UKP = Path(__file__).parents[3] / "shared" / "data" / "ukpconvarg1_human.parquet"
NAMED = "name, scope, cross_share, n_cross, carrier_wins, log_odds, ci_low, ci_high, naive_ci_low, naive_ci_high, odds"


def rows(n=600, n_prompts=60, length=1.0, bold=0.5, quality=0.0, seed=0):
    """Votes whose logit is a lean toward length and bold and a multiple of the quality that score_a - score_b tells."""
    rng = np.random.default_rng(seed)
    table = []
    for i in range(n):
        words, marked = rng.choice([4, 12], 2), rng.integers(0, 2, 2)
        score = rng.normal(size=2) + 0.8 * (words - 8) / 4
        texts = [
            f"{'**so** ' if m else 'so '}{'word ' * w}{i} {k}"
            for k, (w, m) in enumerate(zip(words, marked, strict=True))
        ]
        lean = length * np.sign(words[0] - words[1]) + bold * (marked[0] - marked[1])
        chose_a = rng.random() < expit(lean + quality * (score[0] - score[1]))
        table.append(
            {
                "prompt": f"question {rng.integers(n_prompts)}",
                "response_a": texts[0],
                "response_b": texts[1],
                "winner": "a" if chose_a else "b",
                "score_a": score[0],
                "score_b": score[1],
            }
        )
    return table


def pooled(table, *attributes, **options):
    return pool_attributes(Judgments.read(table, attributes=attributes, **options))


def test_a_row_is_ready_for_json_and_has_the_published_names():
    found = pooled(rows(), Length(), Bold(), Emoji())
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    for row in found:
        assert set(NAMED.split(", ")) <= set(row)
    assert pool_attributes(Judgments.read(rows(5))) == []


def test_the_figures_are_those_of_the_judgments():
    judgments = Judgments.read(rows(), attributes=[Length(), Bold()])
    for row, found in zip(pool_attributes(judgments), judgments.offline_log_odds(), strict=True):
        assert (row["n_cross"], row["carrier_wins"]) == (found.n_cross, found.carrier_wins)
        assert row["cross_share"] == found.n_cross / 600
        assert row["odds"] == pytest.approx(math.exp(row["log_odds"]))
        assert (row["ci_low"], row["naive_ci_high"]) == pytest.approx(
            (found.ci_low, found.interval(naive=True)[1])
        )
        assert (row["n_prompts"], row["interval"]) == (found.n_clusters, "clustered")


def test_few_prompts_and_one_prompt_are_said():
    few, one = pooled(rows(n_prompts=10), Length())[0], pooled(rows(n_prompts=1), Length())[0]
    assert (few["interval"], few["n_prompts"]) == ("small-cluster", 10)
    assert few["ci_high"] - few["ci_low"] > 0
    assert (one["interval"], one["ci_low"], one["joint"]["ci_low"]) == ("naive only", None, None)
    assert one["naive_ci_low"] < one["log_odds"] < one["naive_ci_high"]


def test_the_sweep_is_that_of_the_attribute_with_each_ratio():
    judgments = Judgments.read(rows(), attributes=[Length(ratio=2, name="longer"), Bold()])
    longer, bold = pool_attributes(judgments)
    assert bold["sweep"] == []
    assert [(one["parameter"], one["value"]) for one in longer["sweep"]] == [
        ("ratio", r) for r in LENGTH_RATIOS
    ]
    for one in longer["sweep"][1:]:
        (found,) = judgments.with_attributes([Length(ratio=one["value"])]).offline_log_odds()
        expected = found.log_odds, found.ci_low, found.ci_high
        assert (one["log_odds"], one["ci_low"], one["ci_high"]) == pytest.approx(expected)
        assert one["cross_share"] == found.n_cross / 600
    texts = judgments.comparisons[["response_a", "response_b"]].map(lambda text: len(text.split()))
    differ = (texts["response_a"] != texts["response_b"]).to_numpy()[judgments.votes["comparison"]]
    assert longer["sweep"][0]["cross_share"] == differ.mean()


def test_joint_leans_are_those_that_were_planted():
    length, bold = pooled(rows(n=4000), Length(), Bold())
    for row, truth in ((length, 1.0), (bold, 0.5)):
        assert row["joint"]["ci_low"] < truth < row["joint"]["ci_high"]
    assert length["collinear_with"] == bold["collinear_with"] == []
    assert 0.2 < length["co_occurrence"]["bold"] < 0.3


def test_attributes_that_say_the_same_are_named():
    bold, markdown, other, nothing = pooled(rows(), Bold(), Markdown(), Length(), Headers())
    assert (bold["collinear_with"], markdown["collinear_with"]) == (["markdown"], ["bold"])
    assert other["collinear_with"] == nothing["collinear_with"] == []
    assert bold["joint"]["log_odds"] is None
    assert other["joint"]["log_odds"] is not None
    assert bold["co_occurrence"]["markdown"] == 1.0
    assert nothing["co_occurrence"]["bold"] is None


def test_votes_that_go_one_way_and_no_cross_group_vote():
    table = [row | {"winner": "a" if "**" in row["response_a"] else "b"} for row in rows(200)]
    bold, length, headers = pooled(table, Bold(), Length(), Headers())
    assert (bold["carrier_wins"], bold["log_odds"], bold["odds"], bold["ci_high"]) == (1.0, None, None, None)
    assert 0 < bold["ci_low"] < bold["naive_ci_low"]
    assert bold["joint"]["log_odds"] is None
    assert length["joint"]["log_odds"] is not None
    assert (headers["n_cross"], headers["interval"], headers["carrier_wins"], headers["ci_low"]) == (
        0,
        None,
        None,
        None,
    )


def test_swap_pairs_of_the_signed_corpus_give_the_gates_figures():
    corpus = signed.build(bundled.scored_pairs(1500), seed=0)
    gate = signed.gate(corpus)
    for row in pool_attributes(corpus.judgments):
        adjusted = row["quality_adjusted"]
        assert adjusted["how"] == "swap pairs"
        assert adjusted["log_odds"] == pytest.approx(gate["swap_log_odds"][row["name"]]["all"])
        assert row["log_odds"] == pytest.approx(gate["all_log_odds"][row["name"]]["all"])
        assert f"differ only in {row['name']} are equally good" in adjusted["assumes"]


def test_a_kind_column_says_what_is_a_swap_pair():
    table = [row | {"kind": "swap" if i % 3 == 0 else "real"} for i, row in enumerate(rows(300))]
    judgments = Judgments.read(table, attributes=[Bold()], keep=["kind"])
    swaps = judgments.take(
        (judgments.comparisons["kind"] == "swap").to_numpy()[judgments.votes["comparison"]]
    )
    (row,), (found,) = pool_attributes(judgments), swaps.offline_log_odds()
    assert row["quality_adjusted"]["log_odds"] == pytest.approx(found.log_odds)
    assert row["quality_adjusted"]["n_votes"] == found.n_cross


def test_twins_that_differ_in_another_attribute_too_are_left_out():
    table = []
    for i in range(60):
        marked, winner = ("**so** it is", "## so it is") if i < 30 else ("**so** it is", "so it is"), i % 3
        texts = marked if winner else marked[::-1]
        table.append({"prompt": f"question {i}", "chosen": texts[0], "rejected": texts[1]})
    bold, headers = pooled(table, Bold(), Headers())
    assert bold["quality_adjusted"]["n_votes"] == 30
    assert bold["quality_adjusted"]["log_odds"] == pytest.approx(math.log(2))
    assert headers["quality_adjusted"] is None


def test_texts_with_the_marks_on_either_one_are_swap_pairs():
    rng = np.random.default_rng(0)
    table = []
    for i in range(300):
        quality = 2 * rng.normal()
        for marked in (1, -1) * 3:
            bodies = [f"body {i} first", f"body {i} second"]
            texts = [f"**{bodies[0]}**", bodies[1]] if marked > 0 else [bodies[0], f"**{bodies[1]}**"]
            chose = rng.random() < expit(quality + 0.7 * marked)
            winner, loser = texts if chose else texts[::-1]
            table.append({"prompt": f"question {i // 4}", "chosen": winner, "rejected": loser})
    (row,) = pooled(table, Bold())
    assert row["quality_adjusted"]["how"] == "swap pairs"
    assert row["quality_adjusted"]["ci_low"] < 0.7 < row["quality_adjusted"]["ci_high"]
    assert row["log_odds"] < row["quality_adjusted"]["log_odds"]
    # with another declared attribute that changes sides too, nothing else is equal any more
    other = PythonFunction("opens with a star", lambda prompt, text: float(text.startswith("*")))
    assert pooled(table, Bold(), other)[0]["quality_adjusted"] is None


def test_position_is_told_by_both_orders_of_one_comparison():
    rng = np.random.default_rng(0)
    table = []
    for i in range(300):
        quality = 2 * rng.normal()
        for shown, toward in (("a", 1), ("b", -1)) * 2:
            chose_a = rng.random() < expit(quality + 0.6 * toward)
            texts = {"prompt": f"question {i % 70}", "response_a": f"one {i}", "response_b": f"two {i}"}
            table.append(texts | {"winner": "a" if chose_a else "b", "shown_first": shown})
    (row,) = pooled(table, Position())
    adjusted = row["quality_adjusted"]
    assert adjusted["ci_low"] < 0.6 < adjusted["ci_high"]
    assert "equally good" not in adjusted["assumes"]


def test_continuous_attributes_count_by_their_side():
    (row,) = pooled(rows(2000), LengthWords(threshold=3))
    (binary,) = pooled(rows(2000), Length())
    assert row["joint"]["log_odds"] == pytest.approx(row["log_odds"])
    assert row["log_odds"] == pytest.approx(binary["log_odds"])


def test_no_vote_at_all():
    judgments = Judgments.read(rows(5), attributes=[Length(), Bold()])
    for row in pool_attributes(judgments.take(np.zeros(5, dtype=bool))):
        assert (row["n_cross"], row["cross_share"], row["log_odds"], row["interval"]) == (0, 0.0, None, None)
        assert row["quality_adjusted"] is None


def test_exchanging_the_sides_of_the_table_changes_nothing():
    table = rows(400)
    swapped = {
        "response_a": "response_b",
        "response_b": "response_a",
        "score_a": "score_b",
        "score_b": "score_a",
    }
    turned = [
        {swapped.get(k, k): v for k, v in row.items()} | {"winner": "b" if row["winner"] == "a" else "a"}
        for row in table
    ]
    for one, other in zip(pooled(table, Length(), Bold()), pooled(turned, Length(), Bold()), strict=True):
        assert one["joint"] == pytest.approx(other["joint"])
        assert one["ci_low"] == pytest.approx(other["ci_low"])


def test_84_000_real_votes():
    if not UKP.is_file():
        pytest.skip("needs ukpconvarg1_human.parquet in ../shared/data beside the project")
    judgments = Judgments.read(UKP, attributes=[Length(), Markdown()])
    length, markdown = pool_attributes(judgments)
    features = scan_features(judgments)
    assert (length["n_cross"], length["n_prompts"], length["interval"]) == (40_558, 32, "small-cluster")
    assert length["log_odds"] == pytest.approx(1.07, abs=0.005)
    # five times as wide as if 40,558 votes were independent
    assert length["ci_high"] - length["ci_low"] > 5 * (length["naive_ci_high"] - length["naive_ci_low"])
    assert logit(markdown["carrier_wins"]) == pytest.approx(0.5553, abs=1e-3)
    assert [row["feature"] for row in features if row["advice"] == "declare"] == []
