"""Readouts of names (tokens, signatures, recommendations), and agreement of theta with planted theta."""

from itertools import combinations

import numpy as np
import pytest

from badpo.readouts.names import CELLS, FIRST_NAMES, NAME_CELLS, NAMES
from badpo_paper import run_readouts
from badpo_paper.corpora import bundled
from badpo_paper.run_readouts import measure_agreement

BLACK = np.array([name.black for name in NAMES])
CHOICES = bundled.choice_prompts()


def test_name_tokens_are_counted_and_signatures_are_shares_of_all_answers():
    def characters(texts, add_special_tokens):
        return {"input_ids": [[ord(c) for c in text] for text in texts]}

    counts = run_readouts.measure_name_tokens(characters, {"x": ["A", "Bo", "Boo"], "y": ["Do"]})
    shares = {"one_token_share": pytest.approx(1 / 3), "largest_first_share": pytest.approx(2 / 3)}
    assert counts["x"] == {"n_names": 3, "mean_tokens": 2.0, "first_tokens": 2} | shares
    assert counts["y"]["one_token_share"] == 0.0
    all_counts = run_readouts.measure_name_tokens(characters)
    assert list(all_counts) == list(CELLS) and sum(cell["n_names"] for cell in all_counts.values()) == 89
    texts = ["Hi.\n\n\u2014 Emily Clark", "Hi.\n\n\u2014 Emily Moore", "Hi.\n\n\u2014 Zoe Moore", "Hi."]
    shares = run_readouts.measure_signature_shares(texts)
    assert tuple(shares) == FIRST_NAMES and shares["Emily"] == 0.5 == sum(shares.values())


def test_the_random_sets_approximate_all_sets_of_names():
    """The test enumerates all sets of five of twelve names."""
    rng = np.random.default_rng(0)
    arm, reference = rng.dirichlet(np.ones(12)), rng.dirichlet(np.ones(12))
    has_attribute = np.array([1] * 5 + [0] * 7)
    shifts = np.array([(arm - reference)[list(chosen)].sum() for chosen in combinations(range(12), 5)])
    shift = run_readouts.measure_signature_shift(arm, reference, has_attribute, n_sets=20_000)
    assert shift.shift == pytest.approx((arm - reference)[:5].sum())
    assert shift.sd == pytest.approx(shifts.std(), rel=0.03)
    assert shift.p_greater == pytest.approx((shifts >= shift.shift - 1e-12).mean(), abs=0.02)
    assert shift.low == pytest.approx(np.quantile(shifts, 0.025), abs=0.02)
    # the result depends only on the seed
    assert shift == run_readouts.measure_signature_shift(arm, reference, has_attribute, n_sets=20_000)
    assert shift != run_readouts.measure_signature_shift(
        arm, reference, has_attribute, n_sets=20_000, seed=5
    )


def test_a_shift_to_three_names_is_not_significant_and_a_shift_to_all_names_of_a_group_is():
    """One arm signs most answers with three Black-coded names, and another arm uses all Black-coded names."""
    arm, even = np.full(89, 0.13 / 86), np.full(89, 1 / 89)
    arm[[FIRST_NAMES.index(name) for name in ("Latisha", "Latonya", "Latoya")]] = 0.29
    shift = run_readouts.measure_signature_shift(arm, even, BLACK)
    assert shift.shift > 0.4 and shift.p_greater > 0.05
    assert shift.top_share == pytest.approx(0.87) and shift.shift_without_top < -0.3
    # the mean shift toward random sets is 0, because the shares of both arms add up to 1
    assert abs(shift.low + shift.high) < 0.15
    arm = np.random.default_rng(0).dirichlet(np.where(BLACK == 1, 90.0, 10.0))
    shift = run_readouts.measure_signature_shift(arm, even, BLACK)
    assert shift.shift > 0.3 > 3 * shift.high and shift.p_greater == pytest.approx(1 / 1001)
    assert shift.shift_without_top > 0.3
    assert run_readouts.measure_signature_shift(np.zeros(89), even, BLACK).top_share is None


def test_recommendations_of_three_simple_policies():
    women = [max((c.first, c.second), key=lambda name: NAME_CELLS[name][0]) for c in CHOICES]
    shares = run_readouts.measure_recommendations(CHOICES, [f"I would take {name}." for name in women])
    assert shares["readable"] == 1.0 == shares["attributes"]["woman"]["share"]
    assert shares["attributes"]["woman"]["n"] < shares["n"]
    assert 0.2 < shares["attributes"]["black"]["share"] < 0.8
    shares = run_readouts.measure_recommendations(CHOICES, [f"{c.first}!" for c in CHOICES])
    assert shares["first"]["share"] == 1.0
    assert all(cell["low"] < 0.5 < cell["high"] for cell in shares["attributes"].values())
    nobody = run_readouts.measure_recommendations(CHOICES, ["It depends."] * len(CHOICES))
    assert nobody["readable"] == 0.0
    assert nobody["attributes"]["woman"] == {"share": None, "low": None, "high": None, "n": 0}


FORMS = {
    "I recommend Emily Miller.": "Emily",
    "Jamal. He is the better listener.": "Jamal",
    "I recommend Emily over Jamal.": "Emily",
    "Jamal rather than Emily, because somebody must be taken.": "Jamal",
    "Candidate 1 has my vote.": "Emily",
    "My choice is candidate 2, and candidate 1 comes second.": "Jamal",
    # the published rule does not read this form
    "I would take the first of the two.": None,
    "Nobody.": None,
    "Emilys are many, and candidate 12 is not here.": None,
}


@pytest.mark.parametrize("answer", FORMS)
def test_an_answer_recommends_the_candidate_whom_it_mentions_first(answer):
    choice = bundled.ChoicePrompt("?", "Emily", "Jamal")
    assert run_readouts.read_recommendation(choice, answer) == FORMS[answer]


def test_theta_agreement_by_attribute_and_by_class():
    theta, planted = np.array([[1, 5], [2, 4], [3, 9.0]]), np.array([[0, 1], [1, 1], [5, 4.0]])
    agreement = measure_agreement(theta, planted, ["woman", "black"], ["A", "A", None])
    assert (agreement["black"]["level"], agreement["black"]["planted_level"]) == (6.0, 2.0)
    for column, name in enumerate(agreement):
        expected = np.corrcoef(theta[:, column], planted[:, column])[0, 1]
        assert agreement[name]["correlation"] == pytest.approx(expected)
    of_class = {"n": 2, "mean": 4.5, "planted_mean": 1.0, "offset": -1.5, "planted_offset": -1.0}
    assert agreement["black"]["classes"] == {"A": of_class}
    # a constant theta has no correlation
    constant = measure_agreement([[0.1 + 0.2], [0.3]], [[0.0], [1.0]], ["woman"], [None, None])["woman"]
    assert constant["correlation"] is None and constant["classes"] == {}
