"""Tables with one vote per comparison: sums of bias and merit, comparisons of annotators, and what is refused."""

import numpy as np
import pytest

from badpo.attributes import Column, Length, Position
from badpo.auditing.audit import audit
from badpo.auditing.marginal import overlap_needed
from badpo.results.audit_page import audit_html, people_html, shareable
from bench.onevote_pools import CELLS, OneVotePool, draw_table
from tests.auditing.planted import votes

X = Column("x", a="x_a", b="x_b")


def table_of(pool: OneVotePool, seed: int = 0):
    return draw_table(pool, np.random.default_rng(seed))[0]


def codes(result):
    return {row["code"] for row in result.warnings}


def test_coin_tosses_have_narrow_sums_and_nobody_is_flagged():
    result = audit(table_of(CELLS["coin tosses"], 1), [X])
    found, rows = result.summary["pool"]["x"], result.annotators
    assert result.checks["estimator"]["quality"] == "marginal" and not rows["flag"].any()
    width = rows["log_odds_high"] - rows["log_odds_low"]
    assert (width < 4).all() and found["tau_ci"][1] < 1
    assert (
        found["sum"]["ci_low"] < 0 < found["sum"]["ci_high"]
        and found["sum"]["n"] == rows["n_cross"].sum()
    )
    # what one vote per comparison does not tell
    assert found["shared_bias"] is None and result.summary["flips"][0]["labels"] is None
    assert result.summary["next"]["votes_needed"] == [] and "W411" in codes(result)
    assert found["sum"]["needed"] == pytest.approx(overlap_needed(0.5, 40, 0.5), rel=0.02)


REFUSED = {
    "specialists": "words in prompts",
    "specialists, prompts do not say of what": "cannot be tested",
    "too few": "too few to test",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_annotators_are_compared_only_if_comparisons_look_as_if_given_at_random(kind):
    pool = CELLS.get(kind, OneVotePool(n_annotators=10, votes_each=12))
    result = audit(table_of(pool), [X])
    found, rows = result.summary["pool"]["x"], result.annotators
    assert REFUSED[kind] in found["refused"]["flag"] and REFUSED[kind] in str(result).replace(
        "\n    ", " "
    )
    assert found["tau"] is None and found["equal_biases_p"] is None and not rows["flag"].any()
    assert rows[["deviation", "shrunk", "post_low"]].isna().all(axis=None)
    assert rows["log_odds"].notna().any() and "W412" in codes(result)
    assert "bias and merit together" in people_html(result.summary, rows)
    page = audit_html(result.summary)
    assert "not reported" in page and "bake" not in page and "bake" not in str(shareable(result.summary))


def test_annotators_who_differ_are_found_and_what_it_may_be_is_said():
    result = audit(table_of(CELLS["8 of 40 at 1.0 more or less, no quality"]), [X])
    found, flagged = result.summary["pool"]["x"], result.annotators["flag"].sum()
    assert (
        found["equal_biases_p"] < 0.001
        and 5 <= flagged <= 9
        and found["refused"].keys() == {"flips", "reliability"}
    )
    assert "less bias or is less reliable" in " ".join(str(result).split())


def test_models_that_are_named_tell_reliability():
    result = audit(table_of(CELLS["6 of 40 click, models named"], 1), [X])
    rows = result.annotators
    assert rows["flag_reliability"].sum() >= 3 and rows["reliability"].mean() == pytest.approx(
        1, abs=0.2
    )
    assert result.summary["pool"]["x"]["sum"]["beside_models"] and "strengths of the models" in str(
        result
    )


@pytest.mark.parametrize("is_random", [True, False])
def test_a_bias_toward_the_side_shown_first_is_known_if_the_order_is_random(is_random):
    table = table_of(OneVotePool(cross_share=0.5))
    random = np.random.default_rng(5)
    first = random.choice(["a", "b"], len(table))
    if not is_random:  # longer names come first
        table["response_a"] = np.where(
            first == "a", table["response_a"] + " and more", table["response_a"]
        )
    pulled = random.random(len(table)) < 0.4
    table = table.assign(shown_first=first, winner=np.where(pulled, first, table["winner"]))
    result = audit(table, [X, Position()])
    found = result.summary["pool"]["position"]
    assert found["absolute"] == is_random
    assert (found["shared_bias"] is not None) == is_random
    assert not is_random or found["shared_bias_ci"][0] > 0.5


def test_an_estimate_whose_interval_is_wide_is_none_and_its_shrunken_value_stays():
    rows = audit(votes(80, 20, 3)[0], [Length()], quality="conditional").annotators
    reach, is_wide = rows["ci_high"] - rows["deviation"], rows["status"] == "insufficient"
    assert (reach.dropna() <= 3).all() and (rows["deviation"].isna() & is_wide).any()
    post = (rows["post_high"] - rows["post_low"]) / 2
    assert (post.dropna() <= 3).all()
