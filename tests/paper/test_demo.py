"""The demo on a tiny model: folders, summary, resumption, and no repeated training."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoModelForCausalLM

from badpo.data.problems import ConfigError
from badpo.objective.bias import BiasTerm
from badpo.training.trainer import BADPOTrainer
from badpo_paper.datasets import make_signed_dataset
from badpo_paper.reproduce import DEMO_ARMS, run_demo, summarize_seed
from badpo_paper.schedule import silent
from badpo_paper.settings import build_model, build_tokenizer
from badpo_paper.tables import PanelRuns
from tests.paper.conftest import SMALL_MODEL, count_training, small_demo
from tests.runs.recipes import log_lines, written

ATTRIBUTES = {"woman", "black"}


def run(out: Path, seeds=(42,), **changes):
    """Run the demo on a tiny model; ``changes`` are arguments of `small_demo`."""
    with small_demo(**changes):
        return run_demo(out, seeds, silent)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A finished demo, which tests only read."""
    out = tmp_path_factory.mktemp("suite")
    stages = []
    with small_demo():
        run_demo(out, [42], lambda stage, share: stages.append(stage))
    assert any("dpo-s42 readouts" in s for s in stages) and "reference (run 1 of 5)" in stages
    return out


def readouts(out: Path) -> dict:
    return json.loads((out / "dpo-s42" / "readouts.json").read_text())


def test_the_summary_follows_from_the_runs_and_the_simulated_votes(finished):
    text = (finished / "summary.json").read_text()
    assert "NaN" not in text and "Infinity" not in text
    summary = json.loads(text)
    assert summary["seed"] == 42 and summary["seconds"] > 0
    assert set(summary["rates"]) == {"reference", *DEMO_ARMS}
    assert all(set(row) == ATTRIBUTES and min(row.values()) > 0 for row in summary["rates"].values())
    # the correlation is computed again from the run folder and the simulated votes
    bias = BiasTerm.load(finished / "shared_mean-s42")
    simulated = make_signed_dataset(120, 1, n_prompts=8)
    assert list(bias.annotators) == simulated.judgments.annotators["pseudonym"].tolist()
    for learned, planted, name in zip(bias.theta().T, simulated.planted.T, bias.attributes, strict=True):
        expected = np.corrcoef(learned.detach().double(), planted)[0, 1]
        assert summary["theta_correlation"][name] == pytest.approx(expected)
    # all arms share one reference shard of the training comparisons and one of the held-out comparisons
    assert len(list((finished / "reference" / "cache").rglob("*.arrow"))) == 2
    for path in finished.rglob("*.json*"):
        assert "constructed-" not in path.read_text(), path


def test_finished_runs_are_not_trained_again(finished, tmp_path, monkeypatch):
    out, trained = shutil.copytree(finished, tmp_path / "suite"), count_training(monkeypatch)
    before = {path: path.read_bytes() for path in out.glob("*/*") if path.is_file()}
    run(out)
    assert trained == [] and {path: path.read_bytes() for path in before} == before
    # settings that affect only the readouts do not change the run
    before_change = readouts(out)
    run(out, temperature=1.0)
    assert trained == [] and readouts(out)["kl"] == before_change["kl"]
    assert readouts(out)["kl_published"] != before_change["kl_published"]
    summaries = run(out, seeds=(42, 7), arms=("dpo",))
    assert trained == ["suite/dpo-s7"]
    assert [summary["seed"] for summary in summaries] == [42, 7]
    assert {"summary-s42.json", "summary-s7.json"} <= written(out)
    assert summaries[0]["rates"]["dpo"] != summaries[1]["rates"]["dpo"]


def test_an_interrupted_demo_continues_where_it_stopped(finished, tmp_path, monkeypatch):
    steps, finish_step = [], BADPOTrainer.finish_step

    def count_steps(self):
        steps.append(self.args.bias)
        if steps.count("pooled") == 6:
            raise KeyboardInterrupt
        return finish_step(self)

    monkeypatch.setattr(BADPOTrainer, "finish_step", count_steps)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    assert not (tmp_path / "pooled-s42" / "run.json").exists()
    assert not (tmp_path / "summary.json").exists()
    with pytest.raises(ConfigError, match="other data or settings"):
        run(tmp_path, arms=("pooled",), warmup_steps=0.5)
    trained = count_training(monkeypatch)
    steps.clear()
    run(tmp_path)
    assert [path.split("/")[1] for path in trained] == ["pooled-s42", "shared_mean-s42"]
    # the run continues from the checkpoint of step 4 and equals an uninterrupted run
    assert (steps.count("pooled"), steps.count("shared_mean")) == (4, 8)
    assert log_lines(tmp_path / "pooled-s42") == log_lines(finished / "pooled-s42")
    model = "pooled-s42/model/model.safetensors"
    assert (tmp_path / model).read_bytes() == (finished / model).read_bytes()


def write_demo_readouts(folder: Path, rates: dict[str, float]) -> PanelRuns:
    """Write a rate of women's names for the reference and each arm; only the arm with the rate 0.6 learned a theta."""
    for name, rate in rates.items():
        place = folder / (name if name == "reference" else f"{name}-s42")
        place.mkdir(parents=True)
        correlation = 0.9 if rate == 0.6 else None
        each = {"rates": {"rate": rate}, "theta": {"correlation": correlation}}
        readouts = {part: dict.fromkeys(("woman", "black"), content) for part, content in each.items()}
        (place / "readouts.json").write_text(json.dumps(readouts))
    return PanelRuns(folder, [42])


def test_undefined_figures_are_none(tmp_path):
    rates = {"reference": 0.5, "dpo": 0.9, "pooled": 0.6, "shared_mean": 0.5}
    figures = summarize_seed(write_demo_readouts(tmp_path / "shifted", rates), 42)
    assert {arm: row["woman"] for arm, row in figures["removed"].items()} == {
        "pooled": pytest.approx(0.75),
        "shared_mean": 1.0,
    }
    assert figures["theta_correlation"] == {"woman": 0.9, "black": 0.9}
    assert figures["rates"]["dpo_placebo"] == {"woman": None, "black": None}
    # without a shift of DPO, the removed share is not defined
    figures = summarize_seed(write_demo_readouts(tmp_path / "same", dict.fromkeys(rates, 0.5)), 42)
    assert figures["removed"]["pooled"] == figures["theta_correlation"] == {"woman": None, "black": None}


def test_the_demo_on_another_model(tmp_path, tiny_demo):
    tokenizer = build_tokenizer(["boil the rice"], vocab_size=400)
    build_model(tokenizer, 3, **SMALL_MODEL).save_pretrained(tmp_path / "mine")
    tokenizer.save_pretrained(tmp_path / "mine")
    run_demo(tmp_path / "out", [42], silent, model=str(tmp_path / "mine"))
    config = AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "dpo-s42" / "model").config
    assert config.hidden_size == 32
