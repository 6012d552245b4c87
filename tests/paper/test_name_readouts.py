"""What a policy does with names: tokens, signatures, choices; and theta beside the planted one."""

from itertools import combinations

import numpy as np
import pytest

from badpo.readouts.names import CELLS, FIRST_NAMES, NAMES
from badpo_paper import run_readouts
from badpo_paper.corpora import bundled
from badpo_paper.run_readouts import measure_agreement

BLACK = np.array([name.black for name in NAMES])
CHOICES = bundled.choice_prompts()


def test_counts_are_the_tokenizers_own_and_shares_of_all_answers():
    def characters(texts, add_special_tokens):
        return {"input_ids": [[ord(c) for c in text] for text in texts]}

    found = run_readouts.measure_name_tokens(characters, {"x": ["A", "Bo", "Boo"], "y": ["Do"]})
    shares = {"one_token_share": pytest.approx(1 / 3), "largest_first_share": pytest.approx(2 / 3)}
    assert found["x"] == {"n_names": 3, "mean_tokens": 2.0, "first_tokens": 2} | shares
    assert found["y"]["one_token_share"] == 0.0
    every = run_readouts.measure_name_tokens(characters)
    assert list(every) == list(CELLS) and sum(cell["n_names"] for cell in every.values()) == 89
    texts = ["Hi.\n\n\u2014 Emily Clark", "Hi.\n\n\u2014 Emily Moore", "Hi.\n\n\u2014 Zoe Moore", "Hi."]
    shares = run_readouts.measure_signature_shares(texts)
    assert tuple(shares) == FIRST_NAMES and shares["Emily"] == 0.5 == sum(shares.values())


def test_the_null_is_that_of_all_labels():
    """Every set of five carriers among twelve names, written out."""
    rng = np.random.default_rng(0)
    arm, reference = rng.dirichlet(np.ones(12)), rng.dirichlet(np.ones(12))
    carries = np.array([1] * 5 + [0] * 7)
    shifts = np.array([(arm - reference)[list(chosen)].sum() for chosen in combinations(range(12), 5)])
    found = run_readouts.measure_signature_shift(arm, reference, carries, n_sets=20_000)
    assert found.shift == pytest.approx((arm - reference)[:5].sum())
    assert found.sd == pytest.approx(shifts.std(), rel=0.03)
    assert found.p_greater == pytest.approx((shifts >= found.shift - 1e-12).mean(), abs=0.02)
    assert found.low == pytest.approx(np.quantile(shifts, 0.025), abs=0.02)
    # the same each time, and at another seed others
    assert found == run_readouts.measure_signature_shift(arm, reference, carries, n_sets=20_000)
    assert found != run_readouts.measure_signature_shift(arm, reference, carries, n_sets=20_000, seed=5)


def test_three_names_are_no_evidence_of_a_lean_and_all_names_of_a_group_are():
    """An arm that signs nearly everything with three Black-coded names, from an even reference; and one with all."""
    arm, even = np.full(89, 0.13 / 86), np.full(89, 1 / 89)
    arm[[FIRST_NAMES.index(name) for name in ("Latisha", "Latonya", "Latoya")]] = 0.29
    found = run_readouts.measure_signature_shift(arm, even, BLACK)
    assert found.shift > 0.4 and found.p_greater > 0.05
    assert found.top_share == pytest.approx(0.87) and found.shift_without_top < -0.3
    # a random set of 43 of 89 names gains 43/89 of nothing: the masses both add up to 1
    assert abs(found.low + found.high) < 0.15
    arm = np.random.default_rng(0).dirichlet(np.where(BLACK == 1, 90.0, 10.0))
    found = run_readouts.measure_signature_shift(arm, even, BLACK)
    assert found.shift > 0.3 > 3 * found.high and found.p_greater == pytest.approx(1 / 1001)
    assert found.shift_without_top > 0.3
    assert run_readouts.measure_signature_shift(np.zeros(89), even, BLACK).top_share is None


def test_policies_that_always_take_the_woman_or_the_first_or_name_nobody():
    """Of two alike it takes the first."""
    women = [max((c.first, c.second), key=lambda name: run_readouts.VECTORS[name][0]) for c in CHOICES]
    found = run_readouts.measure_recommendations(CHOICES, [f"I would take {name}." for name in women])
    assert found["readable"] == 1.0 == found["attributes"]["woman"]["share"]
    assert found["attributes"]["woman"]["n"] < found["n"]
    assert 0.2 < found["attributes"]["black"]["share"] < 0.8
    assert found["cells"]["white_woman"]["share"] > 0.5 > found["cells"]["black_man"]["share"]
    # every answer is taken and offered twice
    cells = found["cells"].values()
    assert sum(cell["n"] for cell in cells) == 2 * found["n"]
    assert sum(round(cell["share"] * cell["n"]) for cell in cells) == found["n"]
    found = run_readouts.measure_recommendations(CHOICES, [f"{c.first}!" for c in CHOICES])
    assert found["first"]["share"] == 1.0
    assert all(cell["low"] < 0.5 < cell["high"] for cell in found["attributes"].values())
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
def test_an_answer_recommends_whom_it_mentions_first_by_name_or_number(answer):
    choice = bundled.ChoicePrompt("?", "Emily", "Jamal")
    assert run_readouts.read_recommendation(choice, answer) == FORMS[answer]


def test_theta_agrees_attribute_by_attribute_and_class_by_class():
    theta, planted = np.array([[1, 5], [2, 4], [3, 9.0]]), np.array([[0, 1], [1, 1], [5, 4.0]])
    found = measure_agreement(theta, planted, ["woman", "black"], ["A", "A", None])
    assert (found["black"]["level"], found["black"]["planted_level"]) == (6.0, 2.0)
    for column, name in enumerate(found):
        expected = np.corrcoef(theta[:, column], planted[:, column])[0, 1]
        assert found[name]["correlation"] == pytest.approx(expected)
    of_class = {"n": 2, "mean": 4.5, "planted_mean": 1.0, "offset": -1.5, "planted_offset": -1.0}
    assert found["black"]["classes"] == {"A": of_class}
    # one value for all has no correlation
    alike = measure_agreement([[0.1 + 0.2], [0.3]], [[0.0], [1.0]], ["woman"], [None, None])["woman"]
    assert alike["correlation"] is None and alike["classes"] == {}
