"""Every arm stands in a suite and can be run there; what a row is besides its label stands under its table."""

from __future__ import annotations

import csv
import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from badpo.data.attributes import LengthWords
from badpo.data.problems import ConfigError
from badpo.objective.bias import VARIANTS, BiasTerm
from badpo.readouts.generation import sample
from badpo.readouts.heldout import vote_accuracy
from badpo.runs import evaluate
from badpo.runs.evaluate import theta_rows, with_own_attributes
from badpo.training.checkpoints import write_json
from badpo_paper import methods, schedule
from badpo_paper.arms import ARMS
from badpo_paper.methods import adjusted_arm, start_levels
from badpo_paper.reproduce import drawing_with, read_suite, run_suites, suite_html
from badpo_paper.schedule import PlannedRun, execute, planned_runs
from badpo_paper.settings import SCALES
from badpo_paper.suites import LORA, SUITES, Condition, Corpus, Row, Suite
from badpo_paper.tables import length_note, start_note
from tests.paper.suite_scale import DECODING, KEYS, SMALL, material, suite

SIGNED, STYLE = Corpus("signed"), Corpus("style")
SEEDS = (42, 123, 456)
# Rows that are run at one seed, with the corpus of their table.
AT_ONE_SEED = {
    (panel.corpus, row.condition)
    for name in ("names-ablation", "multipref-ablation")
    for panel in SUITES[name].panels
    for row in panel.rows
    if row.seeds == "one" and row.condition.arm not in ("shuffled_ids", "reliability")
}


def silent(what: str, share: float) -> None:
    pass


# -- every arm has its suite -------------------------------------------------------------------------------------


def test_every_arm_runs_in_a_suite():
    run = {row.condition.arm for found in SUITES.values() for panel in found.panels for row in panel.rows}
    assert run | {"reference"} == set(ARMS)


def test_arms_that_the_paper_has_not_are_run_at_one_seed_and_say_so():
    assert {condition.arm for _, condition in AT_ONE_SEED} == {
        "ipo",
        "ipo_pooled",
        "ld_dpo",
        "spectral",
        "length_pooled",
        "rdpo_words",
        "group_dro_parts",
    }
    rows = [row for found in SUITES.values() for panel in found.panels for row in panel.rows]
    assert all(row.note for row in rows if (STYLE, row.condition) in AT_ONE_SEED)
    assert all("(extension)" in row.label for row in rows if row.condition.arm.startswith("ipo"))
    for scale in SCALES.values():
        planned = planned_runs([SUITES["names-ablation"], SUITES["multipref-ablation"]], scale, SEEDS)
        assert {run.seed for run in planned if run.condition and run.condition.arm in ("ipo", "ld_dpo")} == {
            42
        }


@pytest.fixture(scope="module")
def references(tmp_path_factory) -> Path:
    """A folder with the references of both corpora."""
    out = tmp_path_factory.mktemp("arms")
    execute([PlannedRun(corpus, None) for corpus in (SIGNED, STYLE)], SMALL, out, None, 1, silent)
    return out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("corpus", "condition"),
    sorted(AT_ONE_SEED, key=str),
    ids=lambda found: found.kind if isinstance(found, Corpus) else found.name,
)
def test_an_arm_is_trained_and_measured(references, corpus, condition):
    two_steps = replace(SMALL, keys=lambda corpus, found: {**KEYS, "max_steps": 2})
    execute([PlannedRun(corpus, condition, 42)], two_steps, references, None, 1, silent)
    folder = references / corpus.folder / f"{condition.name}-s42"
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert len(lines) == 2 and all(np.isfinite(line["loss"]) for line in lines)
    readouts = json.loads((folder / "readouts.json").read_text())
    assert {"tokens", "heldout", "votes", "kl", "theta"} <= set(readouts)
    assert ("length_words" in readouts["votes"]) == (condition.arm == "length_pooled")


# -- votes are predicted with theta on what it was learned on ----------------------------------------------------


def bias_on_words(held_out, parts, level: float = 0.0) -> BiasTerm:
    """A bias term with the length in words as its attribute, as a run folder gives it back."""
    bias = BiasTerm(["length_words"], held_out.annotators["pseudonym"].tolist(), parts)
    bias.extra = {"attributes": [dict(LengthWords(threshold=0.0, unit=10.0).config)]}
    if parts:
        bias.mean.data.fill_(level)
    return bias


def test_votes_are_predicted_with_theta_on_an_attribute_of_the_arms_own():
    _, held_out = material(STYLE, None).split()
    bias = bias_on_words(held_out, VARIANTS["pooled"], level=0.7)
    judged = with_own_attributes(held_out, bias)
    assert judged.attribute_names == (*held_out.attribute_names, "length_words")
    np.testing.assert_array_equal(judged.delta[:, :-1], held_out.delta)
    texts = held_out.comparisons.iloc[held_out.votes["comparison"]]
    words = [
        len(a.split()) - len(b.split()) for a, b in zip(texts["response_a"], texts["response_b"], strict=True)
    ]
    logits = held_out.votes["sign"] * 0.07 * np.array(words)
    found = vote_accuracy(np.zeros(held_out.n_comparisons), theta_rows(bias, judged), judged)
    cross = held_out.cross_group()[:, 0]
    assert found["length"]["all"]["accuracy"] == pytest.approx(np.mean(logits[cross] > 0))
    assert 0.5 < np.mean(logits[cross] > 0) < 1


def test_theta_stands_in_the_column_of_its_attribute():
    _, held_out = material(STYLE, None).split()
    names = held_out.attribute_names[::-1]
    bias = BiasTerm(names, held_out.annotators["pseudonym"].tolist(), VARIANTS["pooled"])
    bias.mean.data.copy_(torch.arange(1.0, len(names) + 1))
    rows = theta_rows(bias, held_out)
    assert len(names) > 1 and (rows == np.arange(len(names), 0, -1)).all()


def test_a_penalty_says_nothing_of_annotators():
    _, held_out = material(STYLE, None).split()
    assert with_own_attributes(held_out, bias_on_words(held_out, VARIANTS["none"])) is held_out


# -- what a scale makes of a length ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "fixed", "unit"),
    [("rdpo", 0.02, 1), ("rdpo_strong", 0.08, 1), ("rdpo_words", 0.02, 1), ("length_pooled", 0, 25)],
)
def test_a_length_counts_as_much_on_shorter_answers(monkeypatch, name, fixed, unit):
    monkeypatch.setattr(methods, "penalty_factor", lambda stage: 4.0)
    arm = adjusted_arm(ARMS[name], None, SMALL)
    assert (arm.fixed, arm.length_unit) == (pytest.approx(fixed), unit)
    assert adjusted_arm(ARMS[name], None, SCALES["paper"]) is ARMS[name]
    assert adjusted_arm(ARMS["pooled"], None, SMALL) is ARMS["pooled"]


def test_the_factor_of_a_penalty_is_told_from_what_the_run_was_trained_with(tmp_path):
    row = Row("R-DPO (0.005)", Condition("rdpo", "rdpo"))
    assert length_note(row, tmp_path) == ""
    write_json(tmp_path / "run.json", {"facts": {"fixed": 0.0393}})
    assert length_note(row, tmp_path).startswith("0.005 is multiplied by 7.86 at this scale")
    write_json(tmp_path / "run.json", {"facts": {"fixed": 0.005}})
    assert length_note(row, tmp_path) == ""
    words = Row("length", Condition("length_pooled", "length_pooled"))
    write_json(tmp_path / "run.json", {"facts": {"length_unit": 12.72}})
    assert length_note(words, tmp_path) == "theta is for 12.7 words"


# -- where theta started -----------------------------------------------------------------------------------------

SWAP = Condition("pooled_swap", "pooled", start="swap")


def test_where_theta_started_is_told_as_it_was_kept(tmp_path):
    levels = {"woman": {"level": 0.876, "from": "swap pairs"}, "black": {"level": -0.2, "from": "offline"}}
    write_json(tmp_path / "start.json", levels)
    told = "theta started at woman +0.88 from swap pairs, black \u22120.20 from offline"
    assert start_note(SWAP, tmp_path, lambda: pytest.fail("the votes are not needed")) == told
    assert start_note(Condition("pooled", "pooled"), tmp_path, lambda: pytest.fail("not needed")) == ""


def test_where_theta_started_is_computed_again_from_the_votes(tmp_path):
    found = material(SIGNED, None)
    levels = start_levels(found.split()[0], "swap")
    assert {one["from"] for one in levels.values()} == {"swap pairs"}
    told = start_note(SWAP, tmp_path, lambda: found)
    assert told.startswith(f"theta started at woman {levels['woman']['level']:+.2f} from swap pairs, black ")
    one = start_note(replace(SWAP, declared=("black",)), tmp_path, lambda: found)
    assert one.startswith("theta started at black ")


@pytest.mark.slow
def test_a_run_keeps_where_theta_started_and_its_key_does_not_tell(references):
    execute([PlannedRun(SIGNED, SWAP, 42)], SMALL, references, None, 1, silent)
    folder = references / "signed/pooled_swap-s42"
    kept = json.loads((folder / "start.json").read_text())
    assert kept == start_levels(material(SIGNED, None).split()[0], "swap")
    facts = json.loads((folder / "run.json").read_text())["facts"]
    assert facts["start"] == "swap" and not {"level", "woman"} & set(facts)
    before = start_note(SWAP, folder, lambda: pytest.fail("the votes are not needed"))
    (folder / "start.json").unlink()
    assert start_note(SWAP, folder, lambda: material(SIGNED, None)) == before


# -- footnotes ---------------------------------------------------------------------------------------------------


def test_every_format_has_the_footnotes_of_its_rows(tmp_path):
    rows = SUITES["multipref-ablation"].panels[0].rows
    shown = tuple(row for row in rows if row.condition.arm in ("rdpo", "rdpo_words"))
    panel = replace(SUITES["multipref-ablation"].panels[0], rows=shown)
    write_json(tmp_path / "style/reference/readouts.json", {"tokens": {"mean": 30.0}})
    for name in ("rdpo", "rdpo_words"):
        write_json(tmp_path / f"style/{name}-s42/readouts.json", {"tokens": {"mean": 20.0}})
        write_json(tmp_path / f"style/{name}-s42/run.json", {"facts": {"fixed": 0.01}})
    result = read_suite(Suite("test", "A test", (panel,)), SMALL, (42,), tmp_path)
    multiplied = "0.005 is multiplied by 2.00 at this scale"
    for form in ("text", "markdown", "latex"):
        text = result.text(form)
        # said once, behind both rows
        assert text.count(multiplied) == 1 and f"; R-DPO (0.005 a word): {multiplied}" in text
        assert "R-DPO (0.005 a word): white-space words, as the published code counts" in text
    lines = list(csv.DictReader(io.StringIO(result.text("csv"))))
    words = next(line for line in lines if line["row"] == "R-DPO (0.005 a word)")
    assert "white-space words" in words["notes"] and multiplied in words["notes"]
    assert next(line for line in lines if line["row"] == "Reference")["notes"] == ""
    assert multiplied in result.to_json()["tables"][0]["rows"][-1]["notes"][-1]
    assert "white-space words" in suite_html(result, "--scale small") and multiplied in suite_html(
        result, "--scale small"
    )


# -- what draws the answers --------------------------------------------------------------------------------------


def test_answers_are_drawn_by_what_the_settings_name(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(evaluate, "saved_folders", lambda model: (model, tmp_path))
    monkeypatch.setattr(evaluate, "sample_saved", lambda *given, **more: asked.append((given, more)))
    how = replace(DECODING, generate_with="vllm")
    evaluate.Stage(None, None, None, "", (), how).answers(Path("run/model"), 7, [[5]])
    how = {"max_new_tokens": 8, "temperature": 0.7, "top_p": 0.9, "seed": 7, "adapter": tmp_path}
    assert asked == [((Path("run/model"), [[5]]), how)]


def test_only_what_is_known_can_draw_answers():
    assert drawing_with(SMALL, "vllm").decoding.generate_with == "vllm"
    with pytest.raises(ConfigError, match='Did you mean "vllm"'):
        drawing_with(SMALL, "vlm")


def test_without_vllm_nothing_is_trained(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ConfigError, match="vLLM, which is not installed"):
        run_suites([suite(SWAP)], drawing_with(SMALL, "vllm"), (42,), tmp_path, silent)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [(), LORA], ids=["full", "adapter"])
def test_another_generator_measures_again_and_trains_nothing(references, monkeypatch, overrides):
    run = PlannedRun(SIGNED, Condition(f"dpo{len(overrides)}", "dpo", overrides=overrides), 42)
    folder = references / run.place
    execute([run], SMALL, references, None, 1, silent)
    before = json.loads((folder / "readouts.json").read_text())
    weights = {path: path.stat().st_mtime_ns for path in (folder / "model").glob("*.safetensors")}
    drawn = []

    def sample_saved(model, prompts, adapter=None, **more):
        drawn.append((model, adapter))
        policy = AutoModelForCausalLM.from_pretrained(model)
        policy = policy if adapter is None else PeftModel.from_pretrained(policy, adapter)
        return sample(policy, AutoTokenizer.from_pretrained(model), prompts, **more)

    monkeypatch.setattr(evaluate, "sample_saved", sample_saved)
    monkeypatch.setattr(schedule, "_STAGES", {})
    execute([run], drawing_with(SMALL, "vllm"), references, None, 1, silent)
    after = json.loads((folder / "readouts.json").read_text())
    expected = (
        (references / "signed/reference/model", folder / "model") if overrides else (folder / "model", None)
    )
    assert expected in drawn
    # the same answers, drawn by the stand-in, are another measurement
    assert after.pop("measured") != before.pop("measured") and after == before
    assert {path: path.stat().st_mtime_ns for path in (folder / "model").glob("*.safetensors")} == weights
    monkeypatch.setattr(schedule, "_STAGES", {})
