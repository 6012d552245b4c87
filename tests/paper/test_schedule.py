"""Runs of suites, at a scale of a second: each once, shared, resumed, side by side, with adapters and other starts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from badpo.data.files import locked
from badpo.data.problems import ConfigError, DataError
from badpo.objective.bias import BiasTerm
from badpo.training.recipe import read_recipe
from badpo.training.trainer import BADPOTrainer, SupervisedTrainer
from badpo_paper.corpora.published import require_unseen
from badpo_paper.methods import PAPER_TOKENS, penalty_factor
from badpo_paper.reproduce import plan_suites, read_suite, run_suites
from badpo_paper.schedule import PlannedRun, execute, planned_runs
from badpo_paper.settings import SCALES
from badpo_paper.stages import open_stage
from badpo_paper.suites import LORA, Condition, Corpus
from tests.paper.suite_scale import DECODING, HELD_OUT, KEYS, SMALL, material, suite
from tests.runs.recipes import log_lines

DPO, POOLED = Condition("dpo", "dpo"), Condition("pooled", "pooled")
STYLE = Corpus("style")


def silent(what: str, share: float) -> None:
    pass


def count_training(monkeypatch) -> list[str]:
    """The run folders that are trained from now on."""
    trained: list[str] = []
    for kind in (SupervisedTrainer, BADPOTrainer):

        def train(self, *args, _train=kind.train, **kwargs):
            folder = Path(self.args.output_dir).parent
            trained.append(f"{folder.parent.name}/{folder.name}")
            return _train(self, *args, **kwargs)

        monkeypatch.setattr(kind, "train", train)
    return trained


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """DPO and pooled on both corpora; tests read it and leave its runs as they are."""
    out = tmp_path_factory.mktemp("suites")
    length = Condition("pooled-length", "pooled", ("length",))
    run_suites([suite(DPO, POOLED), suite(DPO, length, corpus=STYLE)], SMALL, (42,), out, silent)
    return out


def test_every_run_stands_in_the_folder_of_its_corpus(finished):
    for place in (
        "signed/reference",
        "signed/dpo-s42",
        "signed/pooled-s42",
        "style/dpo-s42",
        "style/pooled-length-s42",
    ):
        assert (finished / place / "run.json").exists() and (finished / place / "readouts.json").exists()


def test_the_divergence_is_read_on_answers_of_the_policy_as_it_is(finished):
    readouts = json.loads((finished / "signed/dpo-s42/readouts.json").read_text())
    own, published = readouts["kl"], readouts["kl_published"]
    assert (own["temperature"], own["top_p"]) == (1.0, 1.0)
    assert (published["temperature"], published["top_p"]) == (DECODING.temperature, DECODING.top_p)


def test_names_are_read_behind_own_answers_in_samples_and_in_choices(finished):
    readouts = json.loads((finished / "signed/dpo-s42/readouts.json").read_text())
    assert set(readouts["own_body"]) == {"woman", "black"} and readouts["recommended"]["n"] == 100
    signed = readouts["sampled"]["signed"]
    assert sum(readouts["signatures"].values()) == pytest.approx(signed)
    assert "name_tokens" in json.loads((finished / "signed/reference/readouts.json").read_text())
    assert "name_tokens" not in readouts


def test_a_suite_that_is_there_trains_and_measures_nothing(finished, monkeypatch):
    trained = count_training(monkeypatch)
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("readouts.json")}
    results = run_suites([suite(DPO, POOLED)], SMALL, (42,), finished, silent)
    assert trained == []
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("readouts.json")} == before
    assert [row.label for row in results[0].tables[0].rows] == ["Reference", "dpo", "pooled"]


def test_both_attributes_are_measured_whichever_was_declared(finished):
    readouts = json.loads((finished / "style/pooled-length-s42/readouts.json").read_text())
    assert set(readouts["heldout"]) >= {"length", "markdown"}
    assert readouts["markdown"]["matched"] is not None
    assert readouts["theta"]["markdown"]["level"] == 0.0
    bias = BiasTerm.load(finished / "style/pooled-length-s42")
    assert list(bias.attributes) == ["length"]


def test_changed_parameters_under_one_name_are_refused_with_a_list(finished):
    other = Condition("dpo", "dpo", overrides=(("beta", 0.5), ("bias.learning_rate", 0.3)))
    with pytest.raises(
        ConfigError, match=r"dpo-s42 holds a run with other data or settings: beta was 0.1, is now 0.5"
    ):
        execute([PlannedRun(Corpus("signed"), other, 42)], SMALL, finished, None, 1, silent)
    assert read_suite(suite(DPO), SMALL, (42,), finished).tables[0].missing == ()


def test_a_plan_tells_that_a_folder_holds_other_settings(finished, monkeypatch):
    length = Condition("pooled-length", "pooled", ("length",))
    same = [suite(DPO, POOLED), suite(DPO, length, corpus=STYLE)]
    planned = plan_suites(same, SMALL, (42,), finished)
    assert planned.refused == {} and set(planned.states.values()) == {"done"}
    other = Condition("dpo", "dpo", overrides=(("beta", 0.5),))
    planned = plan_suites([suite(other, POOLED)], SMALL, (42,), finished)
    assert planned.states == {
        "signed/reference": "done",
        "signed/dpo-s42": "other settings",
        "signed/pooled-s42": "done",
    }
    what = "signed/dpo-s42 holds a run with other data or settings (beta was 0.1, is now 0.5)"
    assert what in planned.lines() and planned.lines()[-1].startswith("nothing would be trained")
    trained = count_training(monkeypatch)
    new = Condition("class", "class")
    with pytest.raises(ConfigError, match="beta was 0.1, is now 0.5"):
        run_suites([suite(new, other)], SMALL, (42,), finished, silent)
    assert trained == []


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (Condition("pooled-length", "class", ("length",)), "bias.variant was pooled, is now class"),
        (Condition("pooled-length", "rdpo"), "fixed was None, is now 0.005"),
        (Condition("pooled-length", "pooled", ("length",), start="swap"), "start was None, is now swap"),
        (Condition("pooled-length", "pooled", ("length",), overrides=LORA), "lora_r was None, is now 32"),
    ],
)
def test_whatever_decides_a_run_is_compared(finished, changed, told):
    planned = plan_suites([suite(changed, corpus=STYLE)], SMALL, (42,), finished)
    assert list(planned.refused) == ["style/pooled-length-s42"]
    assert told in planned.refused["style/pooled-length-s42"]


def test_a_reference_of_other_votes_is_refused(finished, tmp_path):
    votes = tmp_path / "votes.parquet"
    own = material(STYLE, None).judgments
    own.take(np.arange(own.n_votes - 1)).to_parquet(votes)
    with pytest.raises(ConfigError, match="reference was made with other settings: votes was"):
        run_suites([suite(DPO, corpus=STYLE)], SMALL, (42,), finished, silent, data=votes)


def leaking(corpus, data, of="signed"):
    """The material of the small scale with a training prompt among the evaluation prompts of one kind of corpus."""
    found = material(corpus, data)
    if corpus.kind != of:
        return found
    train, _ = found.split()
    return replace(found, prompts=(*found.prompts[1:], train.comparisons["prompt"].iloc[0]))


def contents(folder: Path) -> dict[Path, tuple[int, int]]:
    """Size and time of every file but the locks."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_evaluation_prompt_that_is_trained_on_is_refused_before_anything_is_trained(
    finished, tmp_path, monkeypatch, jobs
):
    trained = count_training(monkeypatch)
    leaky = replace(SMALL, name="leaky", material=leaking)
    # the corpus that comes first is sound, and is not trained either
    asked = [suite(DPO, corpus=STYLE), suite(DPO, POOLED, Condition("class", "class"))]
    with pytest.raises(DataError, match="1 evaluation prompt of 8 can be found among the training prompts"):
        run_suites(asked, leaky, (42,), tmp_path / "new", silent, jobs)
    assert trained == [] and contents(tmp_path) == {}
    before = contents(finished)
    with pytest.raises(DataError, match="E155"):
        run_suites(asked, leaky, (42,), finished, silent, jobs)
    assert trained == [] and contents(finished) == before


@pytest.mark.parametrize(
    "scale",
    [SMALL, pytest.param(SCALES["tiny"], marks=pytest.mark.slow)],
    ids=lambda scale: scale.name,
)
@pytest.mark.parametrize("kind", ["signed", "style"])
def test_votes_are_split_by_the_share_that_prompts_were_drawn_with(scale, kind):
    found = scale.material(Corpus(kind), None)
    train, _ = found.split()
    require_unseen(found.prompts, set(train.comparisons["prompt"]), "prompts")


def test_another_share_in_the_settings_changes_nothing(finished):
    other = replace(SMALL, keys=lambda corpus, found: {**KEYS, "held_out": 0.1})
    stage = open_stage(STYLE, other, None, finished / "style", silent)
    assert stage.recipe.data.held_out == HELD_OUT


@pytest.mark.slow
def test_an_adapter_is_trained_on_the_reference_and_measured_with_it(finished):
    lora = Condition("dpo_lora", "dpo", overrides=(*LORA, ("rate_factor", 10.0)))
    execute([PlannedRun(Corpus("signed"), lora, 42)], SMALL, finished, None, 1, silent)
    folder = finished / "signed/dpo_lora-s42"
    weights = load_file(folder / "model" / "adapter_model.safetensors")
    assert all("lora" in name for name in weights)
    assert json.loads((folder / "model/adapter_config.json").read_text())["r"] == 32
    assert json.loads((folder / "run.json").read_text())["facts"]["learning_rate"] == pytest.approx(2.2e-3)
    assert json.loads((folder / "readouts.json").read_text())["rates"]


@pytest.mark.slow
def test_theta_that_is_held_stays_where_it_started(finished):
    from badpo_paper.methods import starting_level

    conditions = Condition("pooled_held", "pooled", overrides=(("bias.learning_rate", 0.0),), start="swap")
    execute([PlannedRun(Corpus("signed"), conditions, 42)], SMALL, finished, None, 1, silent)
    train, _ = material(Corpus("signed"), None).judgments.split(HELD_OUT, seed=0)
    theta = BiasTerm.load(finished / "signed/pooled_held-s42").theta().detach().numpy()
    assert theta[0] == pytest.approx(starting_level(train, "swap")[0], rel=1e-5)
    assert json.loads((finished / "signed/pooled_held-s42/run.json").read_text())["facts"]["start"] == "swap"


@pytest.mark.slow
def test_the_penalty_per_token_is_as_strong_on_shorter_answers(finished):
    stage = open_stage(STYLE, SMALL, None, finished / "style", silent)
    execute([PlannedRun(STYLE, Condition("rdpo", "rdpo"), 42)], SMALL, finished, None, 1, silent)
    factor = penalty_factor(stage)
    assert 1 < factor < PAPER_TOKENS
    cut = replace(stage, recipe=read_recipe(overrides={**stage.keys, "max_length": 120}))
    assert penalty_factor(cut) > factor  # what is cut is not penalised
    facts = json.loads((finished / "style/rdpo-s42/run.json").read_text())["facts"]
    assert facts["fixed"] == pytest.approx(0.005 * factor)


@pytest.mark.slow
def test_own_votes_have_no_ceiling(tmp_path):
    stage = tmp_path / "votes.parquet"
    material(STYLE, None).judgments.to_parquet(stage)
    result = run_suites([suite(DPO, corpus=STYLE)], SMALL, (42,), tmp_path / "out", silent, data=stage)
    readouts = json.loads((tmp_path / "out/style/dpo-s42/readouts.json").read_text())
    assert "ceiling" not in readouts and set(readouts["theta"]["length"]) == {"level"}
    assert result[0].tables[0].missing == ()
    assert result[0].about[0].startswith("votes: ") and "texts: " in result[0].text("text")


@pytest.mark.slow
def test_a_run_that_another_process_works_on_is_left_for_last(finished, tmp_path, monkeypatch):
    import shutil
    import threading

    out = tmp_path / "out"
    shutil.copytree(finished, out)
    for name in ("dpo-s42", "pooled-s42"):
        shutil.rmtree(out / "signed" / name)
    trained = count_training(monkeypatch)
    waiting, release = threading.Event(), threading.Event()

    def hold():
        with locked(out / "signed/dpo-s42"):
            waiting.set()
            release.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    waiting.wait(60)
    told = lambda what, share: release.set() if share >= 1 and "pooled-s42 readouts" in what else None  # noqa: E731
    runs = planned_runs([suite(DPO, POOLED)], SMALL, (42,))
    execute(runs, SMALL, out, None, 1, told)
    thread.join()
    assert trained == ["signed/pooled-s42", "signed/dpo-s42"]


# -- processes -------------------------------------------------------------------------------------------------

CODE = """
import sys
from pathlib import Path
from badpo_paper.suites import Condition
from badpo_paper.schedule import execute, planned_runs
from tests.paper.suite_scale import SMALL, suite
if __name__ == "__main__":
    suites = [suite(Condition("dpo", "dpo"), Condition("pooled", "pooled"))]
    told = lambda what, share: print(what, share, flush=True)
    execute(planned_runs(suites, SMALL, (42,)), SMALL, Path(sys.argv[1]), None, int(sys.argv[2]), told)
"""


def started(tmp_path, out: Path, jobs: int = 1) -> subprocess.Popen:
    script = tmp_path / "run_suite.py"
    script.write_text(CODE, encoding="utf-8")
    paths = [str(Path(__file__).parents[2]), *(p for p in sys.path if p.endswith("src"))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), str(out), str(jobs)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )


def finish(process: subprocess.Popen) -> str:
    """What a process says until it ends well; it does not outlive the test."""
    try:
        told, _ = process.communicate(timeout=900)
    finally:
        process.kill()
    assert process.returncode == 0, told
    return told


def same_results(one: Path, other: Path) -> None:
    for name in ("dpo-s42", "pooled-s42"):
        a, b = (json.loads((out / "signed" / name / "readouts.json").read_text()) for out in (one, other))
        assert a == b
        assert log_lines(one / "signed" / name) == log_lines(other / "signed" / name)


@pytest.mark.slow
def test_two_runs_side_by_side_give_what_one_after_the_other_gives(finished, tmp_path):
    told = finish(started(tmp_path, tmp_path / "out", jobs=2))
    assert "(3 of 3)" in told
    same_results(finished, tmp_path / "out")


@pytest.mark.slow
def test_two_processes_on_one_suite_train_each_run_once(finished, tmp_path):
    out = tmp_path / "out"
    told = [finish(process) for process in [started(tmp_path, out) for _ in range(2)]]
    for name in ("dpo-s42", "pooled-s42"):
        trained = [sum(f"signed/{name} 1.0" in line for line in text.splitlines()) for text in told]
        assert sum(trained) == 1, told
    same_results(finished, out)


@pytest.mark.slow
@pytest.mark.parametrize("mark", ["signed/reference", "dpo-s42", "pooled-s42 readouts"])
def test_a_suite_that_was_killed_goes_on(finished, tmp_path, mark):
    out = tmp_path / "out"
    process = started(tmp_path, out)
    assert process.stdout is not None
    for line in process.stdout:
        if mark in line or (mark == "signed/reference" and "reference" in line):
            break
    time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    finish(started(tmp_path, out))
    same_results(finished, out)
