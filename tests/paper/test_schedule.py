"""Runs of suites on a tiny model: shared, resumed, parallel and anchored runs."""

import json
import shutil
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from badpo.anchoring import source
from badpo.anchoring import targets as anchor
from badpo.anchoring.offset_stage import StageSettings
from badpo.anchoring.targets import Bench
from badpo.data.files import locked
from badpo.data.problems import ConfigError, DataError
from badpo.objective.bias import BiasTerm
from badpo.readouts.names import NAMES, SURNAMES, signature
from badpo_paper import schedule
from badpo_paper.corpora import bundled
from badpo_paper.reproduce import run_suites
from badpo_paper.schedule import execute, silent
from badpo_paper.suites import LORA, Condition, Offset, Panel, Row, Suite
from tests.paper.conftest import count_training
from tests.paper.suite_scale import DECODING, HELD_OUT, KEYS, SIGNED, STYLE, dataset, small, suite
from tests.runs.recipes import log_lines

DPO, POOLED, LENGTH = Condition("dpo"), Condition("pooled"), Condition("pooled", "length")


def readouts(folder: Path) -> dict:
    return json.loads((folder / "readouts.json").read_text())


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """Finished runs of DPO and pooled on both corpora, which tests only read."""
    out = tmp_path_factory.mktemp("suites")
    run_suites(small(out, suite(DPO, POOLED), suite(DPO, LENGTH, corpus=STYLE)), silent)
    return out


def test_every_run_has_its_readouts_in_the_folder_of_its_corpus(finished):
    runs = "signed/reference signed/dpo-s42 signed/pooled-s42 style/dpo-s42 style/pooled-length-s42"
    assert all((finished / run / "run.json").exists() for run in runs.split())
    reference, dpo, _, _, length = (readouts(finished / run) for run in runs.split())
    # the divergence at temperature 1, and the divergence as the paper published it
    assert (dpo["kl"]["temperature"], dpo["kl"]["top_p"]) == (1.0, 1.0)
    published = dpo["kl_published"]
    assert (published["temperature"], published["top_p"]) == (DECODING.temperature, DECODING.top_p)
    assert set(dpo["own_body"]) == {"woman", "black"} and dpo["recommended"]["n"] == 100
    # rates after own answers minus rates after the answers of the reference
    differences = [{row["difference"] for row in r["own_body"].values()} for r in (reference, dpo)]
    assert differences[0] == {0.0} and 0.0 not in differences[1]
    assert sum(dpo["signatures"].values()) == pytest.approx(dpo["sampled"]["signed"])
    assert "name_tokens" in reference and "name_tokens" not in dpo
    # both attributes are measured, although only one is declared
    assert set(length["heldout"]) >= {"length", "markdown"} and length["markdown"]["matched"] is not None
    assert length["theta"]["markdown"]["level"] == 0.0
    assert list(BiasTerm.load(finished / "style/pooled-length-s42").attributes) == ["length"]


def test_a_run_with_other_settings_in_the_same_folder_is_refused(finished, monkeypatch):
    same = small(finished, suite(DPO, POOLED), suite(DPO, LENGTH, corpus=STYLE))
    assert set(schedule.read_states(same).values()) == {"done"}
    trained = count_training(monkeypatch)
    other = Condition("dpo", overrides=(("beta", 0.5), ("bias.learning_rate", 0.3)))
    with pytest.raises(ConfigError, match="dpo-s42 .*beta was 0.1, is now"):
        run_suites(small(finished, suite(other)), silent)
    monkeypatch.setattr(Condition, "name", "pooled-length")
    for arm, overrides, change in (
        ("class", (), "bias.variant was pooled, is now class"),
        # the penalty per token is multiplied for the shorter answers of this scale
        ("rdpo", (), r"fixed was None, is now (?!0\.005\b)"),
        ("pooled", (("bias.warm_start", "audit"),), "bias.warm_start was zero, is now audit"),
        ("pooled", LORA, "lora_r was None, is now 32"),
    ):
        changed = Condition(arm, "length" if arm != "rdpo" else "", overrides=overrides)
        with pytest.raises(ConfigError, match=change):
            execute(small(finished, suite(changed, corpus=STYLE)), silent)
    assert trained == []


def make_leaking_dataset(corpus, data):
    """Make a dataset; the signed corpus has a training prompt among the evaluation prompts."""
    small_dataset = dataset(corpus, data)
    if corpus.kind == "style":
        return small_dataset
    training_prompt = small_dataset.split()[0].comparisons["prompt"].iloc[0]
    return replace(small_dataset, prompts=(*small_dataset.prompts[1:], training_prompt))


def test_a_training_prompt_for_evaluation_and_an_anchor_without_its_source_are_refused(tmp_path):
    # the first corpus has no such prompt, but its runs are not trained either
    suites = suite(DPO, corpus=STYLE), suite(DPO)
    leaky = small(tmp_path / "new", *suites, name="leaky", dataset=make_leaking_dataset)
    with pytest.raises(DataError, match="E155.*contain 1 evaluation prompt of 8"):
        run_suites(leaky, silent)
    assert not (tmp_path / "new").exists()
    with pytest.raises(ConfigError, match="dpo_exact_0.4-s42 is anchored from .*dpo-s42"):
        schedule.anchor_run(EXACT.offset, 42, None, tmp_path / "dpo_exact_0.4-s42", silent)


@pytest.mark.parametrize("corpus", [SIGNED, STYLE], ids=lambda corpus: corpus.kind)
def test_votes_are_split_by_the_held_out_share_of_the_dataset_and_not_of_the_recipe(corpus, tmp_path):
    other = small(tmp_path, keys={"small": {**KEYS, "held_out": 0.1}})
    stage = other.prepare_stage(corpus)
    assert stage.recipe.data.held_out == HELD_OUT
    assert stage.held_out.n_comparisons == pytest.approx(HELD_OUT * 120, abs=2)


EXACT = Condition("dpo", variant="exact_0.4", offset=Offset(DPO, 0.4, rounds=1))
CALIBRATED = Condition("dpo", variant="calibrated_0.4", offset=Offset(DPO, 0.4, rounds=2))
FRESH = {"fresh_prompts": lambda data: tuple(bundled.fresh_prompts()[:40])}


class SigningBench(Bench):
    """A source with signed answers; the answers of the tiny model are too short for a signature."""

    @property
    def training_answers(self):
        return [
            replace(answer, text=signature(f"Boil it, {i}.", NAMES[i % 89].first, SURNAMES[0]))
            for i, answer in enumerate(super().training_answers)
        ]


@pytest.mark.slow
def test_anchored_runs_are_made_once_and_appear_in_the_table(tmp_path, monkeypatch):
    monkeypatch.setattr(schedule, "Bench", SigningBench)
    brief = partial(StageSettings, max_steps=2, per_device_train_batch_size=4)
    monkeypatch.setattr(source, "StageSettings", brief)
    monkeypatch.setattr(anchor, "FEWEST_ANSWERS", 10)
    train_offset, rounds = anchor.train_offset, []

    def train(*arguments, **options):
        rounds.append(arguments[8].name)
        if len(rounds) == 3:
            raise KeyboardInterrupt
        return train_offset(*arguments, **options)

    monkeypatch.setattr(anchor, "train_offset", train)
    columns = {
        "t": "anchor:woman.target",
        "woman": "rates.woman.rate",
        "KL to the source, as published": "anchor:changes.kl_source.per_token",
        "gap": "heldout.any.gap",
    }
    rows = (Row("DPO", DPO), Row("Exact", EXACT), Row("Calibrated", CALIBRATED))
    anchors = Suite("anchors", "Anchors", (Panel("tab:x", "small", SIGNED, rows, columns),))

    def run():
        return run_suites(small(tmp_path, anchors, **FRESH), silent)[0].tables[0]

    with pytest.raises(KeyboardInterrupt):
        run()
    table = run()
    # the interrupted round is trained again, and the finished round is not
    assert rounds == ["round-1", "round-1", "round-2", "round-2"]
    assert not table.missing
    assert [row.label for row in table.rows] == ["Reference", "DPO", "Exact", "Calibrated"]
    measured = [[len(cell.values) for cell in row.cells.values()] for row in table.rows]
    assert measured == [[0, 1, 0, 0], [0, 1, 0, 1], [1, 1, 1, 1], [1, 1, 1, 1]]
    exact, calibrated = (
        json.loads((tmp_path / "signed" / f"{c.name}-s42" / "anchor.json").read_text())
        for c in (EXACT, CALIBRATED)
    )
    assert len(exact["calibration"]) == 1
    assert exact["woman"]["intended_shift"] == pytest.approx(exact["woman"]["shift"])
    assert calibrated["calibration"][0] == exact["calibration"][0]
    # a second call trains nothing
    assert run() == table and len(rounds) == 4
    # an anchor with another target does not replace the files in the folder
    other = replace(EXACT, offset=Offset(DPO, 0.6, rounds=1))
    with pytest.raises(
        ConfigError, match="contains an anchored run that is damaged or has other settings"
    ):
        execute(small(tmp_path, suite(other), **FRESH), silent)


@pytest.mark.slow
def test_a_run_of_another_process_is_waited_for_at_the_end(finished, tmp_path, monkeypatch):
    out = shutil.copytree(finished, tmp_path / "out")
    for name in ("dpo-s42", "pooled-s42"):
        shutil.rmtree(out / "signed" / name)
    trained = count_training(monkeypatch)
    waiting, release = threading.Event(), threading.Event()

    def hold():
        with locked(out / "signed/dpo-s42"):
            waiting.set()
            release.wait(60)

    def report(stage, share):
        if share >= 1 and "pooled-s42 readouts" in stage:
            release.set()

    thread = threading.Thread(target=hold)
    thread.start()
    waiting.wait(60)
    execute(small(out, suite(DPO, POOLED)), report)
    thread.join()
    assert trained == ["signed/pooled-s42", "signed/dpo-s42"]


@pytest.mark.slow
def test_two_jobs_give_the_same_runs_as_one_job(finished, tmp_path):
    stages = []
    execute(small(tmp_path, suite(DPO, POOLED)), lambda stage, share: stages.append(stage), jobs=2)
    assert stages[-1] == "runs: 3 of 3 done"
    for name in ("dpo-s42", "pooled-s42"):
        single, parallel = (out / "signed" / name for out in (finished, tmp_path))
        assert readouts(single) == readouts(parallel) and log_lines(single) == log_lines(parallel)
