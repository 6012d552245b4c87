"""The sentences say what the numbers say, in the words of the project."""

import json
from pathlib import Path

import pytest

from badpo.results.model_card import model_card
from badpo.results.run_files import BiasContent, FirstMargin, MeasuredRuns, Readouts, Run, read_suite
from badpo.results.run_findings import anchor_sentences, quantities, quantity_findings
from badpo.results.run_page import report_html
from tests.results.plain import plain
from tests.results.suites import changed, write_suite


def declared(kind: str, name: str) -> BiasContent:
    config = {"attributes": [{"type": kind, "name": name}]}
    return BiasContent.model_validate({"attributes": [name], "parts": ["mean"], "extra": config})


CODED = declared("signature_name", "woman")
DISTANCE = "; distance to the reference in log-odds"


def run(arm: str, rate=None, *, seed=42, se=0.01, bias=CODED, config=None, **readouts) -> Run:
    if rate is not None:
        readouts["rates"] = {"woman": {"rate": rate, "se": se}}
    if arm == "dpo":
        bias = bias.model_copy(update={"parts": []})
    return Run(Path(arm), arm, seed, Readouts.model_validate(readouts), bias, config or {})


def told_of(*runs: Run) -> list[str]:
    """The title, what DPO did, and a sentence for each other arm."""
    (verdict,) = quantity_findings(MeasuredRuns("suite", runs, ()))
    told = [verdict.title, verdict.finding, *(told for _, told in verdict.sentences)]
    return [plain(text) for text in told]


@pytest.mark.parametrize(
    ("dpo", "pooled", "told"),
    [
        (0.96, 0.55, f"removed 89 % of that shift{DISTANCE} +0.20"),
        (0.90, 0.45, f"removed 112 % of that shift, passing the reference by 0.05{DISTANCE} -0.20"),
        (0.80, 0.85, f"moved further than DPO, to 0.85{DISTANCE} +1.73"),
    ],
)
def test_the_shift_the_share_and_the_distance(dpo, pooled, told):
    title, finding, sentence = told_of(run("reference", 0.50), run("dpo", dpo), run("pooled", pooled))
    assert (title, sentence) == ("Answers: p(woman-coded)", f"BA-DPO (pooled) {told}.")
    assert finding == f"DPO moved p(woman-coded) from 0.50 to {dpo:.2f}."


def test_without_a_shift_the_gap_stands_in_and_without_a_reference_nothing_is_compared():
    gaps = [{"woman": {"gap": 0.126, "gap_low": 0.1, "gap_high": 0.15}}, {"woman": {"gap": 0.001}}]
    runs = [run("reference", 0.50, se=0.02), run("dpo", 0.54, se=0.02, heldout=gaps[0])]
    _, finding, of_dpo, of_pooled = told_of(*runs, run("pooled", 0.51, heldout=gaps[1]))
    assert (
        "includes zero (-0.015 to +0.095), so the share that each arm removed is not reported" in finding
    )
    assert of_dpo == f"DPO ended at 0.540{DISTANCE} +0.160; held-out gap +0.126 (+0.100 to +0.150)."
    assert "removed" not in of_pooled and of_pooled.endswith("held-out gap +0.001 (\u2013).")
    (values,) = told_of(run("dpo", 0.96), run("pooled", 0.55))[1:]
    assert "0.96 for DPO" in values and "0.55 for BA-DPO (pooled)" in values
    finding = told_of(runs[0], run("dpo", 0.54, se=0.02), run("pooled", 0.51))[1]
    assert finding.endswith("so the share that each arm removed is not reported.")


def test_several_seeds_bring_an_interval_and_a_run_without_theta_is_none_of_ba_dpo():
    runs = [run("dpo", 0.94 + seed / 100, seed=seed) for seed in (1, 2, 3)]
    runs += [run("pooled", 0.53 + seed / 100, seed=seed) for seed in (1, 2, 3)]
    sentence = told_of(run("reference", 0.5), *runs)[2]
    assert "removed 89 % of that shift (95 % confidence interval 84 to 94 %, 3 seeds)" in sentence
    runs = run("ipo", bias=BiasContent(attributes=["woman"])), run("ipo_pooled"), run("reference")
    assert [run.title for run in runs] == ["ipo", "BA-DPO (ipo pooled)", "the reference"]


def test_a_declared_length_is_told_in_tokens_and_an_amount_as_a_mean():
    means, length = {"reference": 288.6, "dpo": 384.5, "pooled": 335.3}, declared("length", "length")
    runs = [run(arm, tokens={"mean": mean, "se": 1.0}, bias=length) for arm, mean in means.items()]
    title, finding, sentence = told_of(*runs)
    expected = "Answers: mean tokens", "DPO moved mean tokens from 288.6 to 384.5."
    assert (title, finding) == expected
    assert sentence.endswith("removed 51 % of that shift; distance to the reference +46.7.")
    words = {"words": {"rate": 212.0, "se": 3.0}}
    amount = run("dpo", bias=declared("length_words", "words"), generated=words)
    (quantity,) = quantities(MeasuredRuns("suite", (amount,), ()))
    assert (quantity.symbol, quantity.is_rate) == ("mean words", False)


def test_beside_a_placebo_no_share_is_relative_to_the_reference():
    """The placebo moved away from the reference without any bias, so DPO may be nearer to the reference than BA-DPO."""
    tilt = {"tilt": {"woman": {"tilt": 0.1}}}
    runs = [
        run(arm, rate, **tilt) for arm, rate in (("dpo", 0.6), ("dpo_placebo", 0.7), ("pooled", 0.7))
    ]
    finding = told_of(run("reference", 0.5), *runs)[1:]
    assert len(finding) == 1 and "%" not in finding[0]
    assert [value in finding[0] for value in ("0.50", "0.60", "0.70")] == [True] * 3
    assert "moved further" in told_of(run("reference", 0.5), runs[0], runs[2])[2]


def test_small_differences_are_visible_in_rates():
    _, finding, sentence = told_of(
        run("reference", 0.02, se=1e-4), run("dpo", 0.0213, se=1e-4), run("pooled", 0.0204)
    )
    assert "from 0.0200 to 0.0213" in finding and "removed 69 %" in sentence


def learned(arm: str, config=None, **extra) -> Run:
    """A run of sixty annotators, with what its recipe and its bias.json say besides."""
    extra = CODED.extra.model_copy(update=extra)
    people = [f"ann_{i}" for i in range(60)]
    return run(arm, bias=CODED.model_copy(update={"annotators": people, "extra": extra}), config=config)


def anchors(*runs: Run) -> str:
    return "\n".join(anchor_sentences(MeasuredRuns("suite", runs, ())))


def test_each_arm_is_said_to_be_anchored_as_it_is():
    warm, reference = {"bias": {"warm_start": "offline"}}, run("reference", 0.52)
    runs = learned("pooled_warm", config=warm), learned("shared_mean")
    told = anchors(reference, run("dpo", 0.9), *runs)
    assert "Anchored at the reference: BA-DPO (shared mean). Theta models the bias" in told
    assert "with a warm start: BA-DPO (warm pooled). Theta" in told
    assert "Without an anchor: DPO." in told and "gold" not in told
    assert anchors(reference) == ""


def test_runs_that_do_not_start_at_the_reference_are_told():
    start, off = (
        learned("pooled", first_margin=FirstMargin(mean=mean, difference=difference, tolerance=1e-5))
        for mean, difference in ((3e-8, 3e-7), (-0.42, 0.2))
    )
    assert "start at" not in anchors(start, learned("pooled"))
    told = anchors(start, learned("pooled"), off)
    assert "1 of 3 runs do not start at the reference" in told
    assert "the mean margin is up to \u22120.42 instead of 0" in told


def test_gold_annotators_are_counted_and_said_to_carry_the_level(tmp_path):
    suite = write_suite(tmp_path / "demo")
    folder, gold = suite / "shared_mean-s42", ["ann_0000000003", "ann_0000000007"]
    extra = json.loads((folder / "bias.json").read_text())["extra"]
    extra["gold_votes"] = {"woman": 1204, "black": 980}
    changed(folder / "bias.json", gold_annotators=gold, extra=extra)
    found, card = read_suite(suite), model_card(folder)
    told, page = "\n".join(anchor_sentences(found)), report_html(found)
    few = "fewer than 5 gold annotators are declared"
    assert f"Anchored by gold annotators: BA-DPO (shared mean). In this arm, {few}" in told
    votes = "woman-coded about 1,200, black-coded about 980"
    assert f"that differ ({votes}) determine" in told
    assert "Anchored at the reference: BA-DPO (pooled)." in told
    assert "except that gold annotators anchor BA-DPO (shared mean)" in page
    assert "Anchors of the arms" in page and few in page
    assert f"In training, {few}" in card
    assert not any(name in document for name in gold for document in (page, card, told))
