"""Held-out votes predicted by the margin, and by the margin with theta."""

import json

import numpy as np
import pandas as pd
import pytest

from badpo.data.attributes import Attribute, LengthWords, WordList
from badpo.data.judgments import Judgments
from badpo.readouts.heldout import (
    align_theta,
    find_revealing_figures,
    heldout_accuracy,
    measure_tilt,
    vote_accuracy,
    vote_difference,
)
from badpo.theory.summaries import cluster_difference, cluster_mean, ratio_of_sums


def judgments(sign, comparison, annotator, delta, prompts=None, classes=("A", "B"), threshold=0.0):
    """Judgments from arrays, with attributes that were measured elsewhere."""
    ids = [f"c{c}" for c in range(max(comparison) + 1)]
    people = {"pseudonym": [f"ann_{k}" for k in range(len(classes))], "annotator_class": [*classes]}
    delta = np.asarray(delta, dtype=np.float64).reshape(len(sign), -1)
    names = ("woman", "black")[: delta.shape[1]]
    return Judgments(
        comparisons=pd.DataFrame({"comparison_id": ids, "prompt_id": prompts or ids}),
        votes=pd.DataFrame({"comparison": comparison, "sign": sign, "annotator": annotator}),
        annotators=pd.DataFrame(people),
        attributes=tuple(Attribute(name, "response", None, threshold=threshold) for name in names),
        delta=delta,
        missing=np.zeros(delta.shape, dtype=bool),
        dropped=pd.DataFrame(),
        findings=(),
        has_identities=True,
    )


PAIR = {"sign": [1, -1], "comparison": [0, 1], "annotator": [0, 0], "delta": [0, 0]}


def test_accuracies_and_gap_by_hand():
    """Comparison 0 differs on woman only, 1 on black only, 2 on nothing; three votes on the first."""
    votes = judgments(
        sign=[1, 1, -1, 1, -1, 1],
        comparison=[0, 0, 0, 1, 2, 2],
        annotator=[0, 1, 0, 0, 1, 0],
        delta=[[1, 0], [1, 0], [1, 0], [0, -1], [0, 0], [0, 0]],
        prompts=["p", "q", "q"],
    )
    found = heldout_accuracy([0.3, -0.2, 0.1], votes)
    # correct: 1 1 0 | 0 | 0 1
    woman, black = found["woman"], found["black"]
    assert (woman["cross"], woman["same"]) == (pytest.approx(2 / 3), pytest.approx(1 / 3))
    expected = cluster_difference([1, 1, 0, 0, 0, 1], [True] * 3 + [False] * 3, list("pppqqq"))
    gap = woman["gap"], woman["gap_low"], woman["gap_high"]
    assert gap == pytest.approx((1 / 3, expected.low, expected.high))
    assert (woman["n_cross"], woman["n_same"], black["n_cross"], black["n_same"]) == (3, 3, 1, 5)
    assert black["cross"] == 0.0 and found["any"]["cross"] == pytest.approx(2 / 4)
    assert found["any"]["gap"] == pytest.approx(0.0)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert set(found) == {"woman", "black", "any"}


def test_a_tie_predicts_nobody_and_an_attribute_differs_beyond_its_threshold():
    assert heldout_accuracy([0.0, 0.0], judgments(**PAIR))["any"]["same"] == 0.0
    found = heldout_accuracy([1.0, 1.0], judgments(**PAIR))["woman"]
    assert (found["same"], found["cross"], found["gap"], found["gap_low"]) == (0.5, None, None, None)
    told = vote_accuracy([1.0, 1.0], np.zeros((2, 1)), judgments(**PAIR))["woman"]["all"]
    assert told["accuracy"] is None
    votes = judgments([1, 1], [0, 1], [0, 0], [0.2, -0.3], threshold=0.25)
    found = heldout_accuracy([-1.0, 1.0], votes)["woman"]
    assert (found["n_same"], found["n_cross"], found["same"], found["cross"]) == (1, 1, 0.0, 1.0)


def test_a_margin_that_is_not_finite_is_named_and_theta_rows_follow_the_pseudonyms():
    with pytest.raises(ValueError, match="comparison c1"):
        heldout_accuracy([1.0, np.nan], judgments(**PAIR))
    votes = judgments(sign=[1], comparison=[0], annotator=[0], delta=[1], classes=("A", "A", "B"))
    theta = np.array([[4.0, np.nan], [2.0, 1.0]])
    rows = align_theta(votes, ["ann_2", "ann_0"], theta)
    assert np.array_equal(rows, [[2, 1], [3, np.nan], [4, np.nan]], equal_nan=True)


def test_prediction_and_difference_by_hand():
    given = [1, 1, -1, 1, 1], [0, 0, 0, 1, 2], [0, 1, 2, 0, 0], [1, 1, 1, 0, 1]
    votes = judgments(*given, classes="ABC", prompts=list("ppq"))
    theta, u = np.array([[2.0], [-4.0], [-1.0]]), [-1.0, 5.0, 1.0]
    found = vote_accuracy(u, theta, votes)["woman"]
    # logits: +(-1+2) = 1; +(-1-4) = -5; -(-1-1) = 2; the fourth does not differ; +(1+2) = 3
    nll = np.log1p(np.exp([-1.0, 5.0, -2.0, -3.0]))
    right, more = (cluster_mean(each, list("pppq")) for each in ([1, 0, 1, 1], [1, 0, 0, 0]))
    ends = {end: found["all"].pop(end) for end in ("low", "high")}
    assert 0 < ends["low"] < 3 / 4 < ends["high"] < 1
    assert found["all"] == pytest.approx({"accuracy": 3 / 4, "n": 4, "se": right.se, "nll": nll.mean()})
    assert set(found) == {"all"}  # a class of one person is that person
    # without theta: -1, -1, 1, 1
    alone = np.log1p(np.exp([1.0, 1.0, -1.0, -1.0]))
    expected = {"difference": 1 / 4, "n": 4, "nll_difference": (nll - alone).mean()}
    expected |= {"se": more.se, "low": more.low, "high": more.high}
    difference = vote_difference(u, theta, 0 * theta, votes)["woman"]["all"]
    assert difference == pytest.approx(expected)
    with pytest.raises(ValueError, match="not finite"):
        vote_accuracy(u, theta * np.nan, votes)


@pytest.mark.parametrize(
    ("classes", "last", "told"),
    [("AB", 0, {"all"}), ("AB", 1, {"all", "A", "B"}), (("A", None), 1, {"all", "A"})],
    ids=["a class of four is withheld, and the other with it", "both", "no class"],
)
def test_classes_by_hand(classes, last, told):
    theta = np.where(np.arange(10) % 2, -4.0, 2.0)[:, None]
    votes = judgments([1] * 10, range(10), range(10), [1] * 9 + [last], classes=[*classes] * 5)
    found = vote_accuracy([-1.0] * 10, theta, votes)["woman"]
    assert set(found) == told
    cells = {"A": (5, 1.0), "B": (5, 0.0), "all": (9 + last, pytest.approx(5 / (9 + last)))}
    for name in told:
        assert (found[name]["n"], found[name]["accuracy"]) == cells[name]


def planted_pairs(n: int, seed: int = 0) -> Judgments:
    """Two votes each on comparisons of which the first half are swap pairs: one text, with either name."""
    rng, rows = np.random.default_rng(seed), []
    for c in range(n):
        body = f"word{c} " * int(rng.integers(2, 9))
        other = body if c < n // 2 else f"other{c} " * int(rng.integers(2, 9))
        names = ["Emily", "Greg"] if rng.random() < 0.5 else ["Greg", "Emily"]
        row = {"prompt": f"p{c // 3}", "comparison_id": f"c{c}"}
        sides = [
            f"{text.strip()}\n\n\u2014 {name} Miller"
            for text, name in zip([body, other], names, strict=True)
        ]
        row |= {"response_a": sides[0], "response_b": sides[1]}
        rows += [row | {"winner": "a", "annotator": who} for who in "xy"]
    return Judgments.read(rows, attributes=[WordList("woman", ["Emily"]), LengthWords(0, unit=2)])


def test_the_tilt_is_the_planted_one_and_says_what_it_is_per():
    votes = planted_pairs(60)
    first = votes.votes.drop_duplicates("comparison").index
    woman, words = votes.delta[first].T
    tilts, _ = measure_tilt(0.7 * woman, votes)
    assert tilts["woman"]["tilt"] == pytest.approx(0.7) == tilts["woman"]["swap"]["tilt"]
    assert (tilts["woman"]["n_comparisons"], tilts["woman"]["swap"]["n_comparisons"]) == (60, 30)
    assert (tilts["woman"]["unit"], tilts["woman"]["typical"]) == ("mean margin toward the attribute", 1)
    tilts, _ = measure_tilt(0.2 * words, votes)
    assert tilts["length_words"]["tilt"] == pytest.approx(0.2)
    assert tilts["length_words"]["unit"] == "coefficient per unit"
    assert tilts["length_words"]["typical"] == pytest.approx(np.sqrt(np.mean(words[words != 0] ** 2)))


def test_the_paired_interval_is_that_of_a_bootstrap_of_prompts_and_narrower_than_unpaired():
    votes, rng = planted_pairs(300), np.random.default_rng(1)
    first = votes.votes.drop_duplicates("comparison").index
    woman = votes.delta[first, 0]
    prompt = votes.prompt_of_votes()[first]
    shared = rng.normal(size=100)[prompt] + rng.normal(size=300)
    margins = [lean * woman + shared + 0.3 * rng.normal(size=300) for lean in (0.5, 0.1)]
    ours, other = (measure_tilt(u, votes)[1]["tilt/woman"] for u in margins)
    assert ours["sizes"] == other["sizes"]
    found = ratio_of_sums(np.subtract(ours["sums"], other["sums"]), ours["sizes"])
    rows = [np.flatnonzero(prompt == p) for p in range(100)]
    toward = woman * (margins[0] - margins[1])
    drawn = [
        toward[np.concatenate([rows[p] for p in rng.integers(0, 100, 100)])].mean() for _ in range(2000)
    ]
    assert found.se == pytest.approx(np.std(drawn), rel=0.06)
    assert found.low < 0.4 < found.high and found.n == 100
    assert found.se < 0.5 * measure_tilt(margins[0], votes)[0]["woman"]["se"]


@pytest.mark.parametrize(
    ("n_votes", "told"),
    [
        ([2] * 5, []),
        ([2] * 4, ["woman", "any"]),
        ([40, 2, 2, 2, 2], ["woman", "any"]),
        ([14], ["woman", "any"]),
    ],
)
def test_figures_that_few_people_determine_are_found(n_votes, told):
    annotator = np.repeat(np.arange(len(n_votes)), n_votes)
    n = len(annotator)
    votes = judgments([1] * n, [*range(n)], annotator, [0, 1] * (n // 2), classes="A" * len(n_votes))
    votes.annotators["model"] = None
    assert find_revealing_figures(votes) == told
