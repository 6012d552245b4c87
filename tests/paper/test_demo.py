"""The demo at a very small scale: its folders, its summary and tables, and that nothing is done twice."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from badpo.cli.main import app
from badpo.data.problems import ConfigError
from badpo.objective.bias import BiasTerm
from badpo.results.run_files import read_suite
from badpo.training.checkpoints import write_json
from badpo.training.trainer import BADPOTrainer
from badpo_paper.arms import ARMS
from badpo_paper.demo import (
    ARMS_SHOWN,
    demo_table,
    learned_against_planted,
    run_demo,
    seeds_markdown,
    summarize,
)
from badpo_paper.settings import build_model, build_tokenizer
from tests.paper.conftest import SMALL_MODEL, count_training, small_demo
from tests.results.suites import write_suite
from tests.runs.recipes import log_lines, written

ATTRIBUTES, CLASSES = {"woman", "black"}, {"all", "A", "B", "C"}
ARM_FOLDERS = {f"{name}-s42" for name in ARMS_SHOWN}


def silent(what: str, share: float) -> None:
    pass


def run(out: Path, seeds=(42,), **changes):
    """The demo at the scale of a test; changes are keys of its recipe, or its arms."""
    with small_demo(**changes):
        return run_demo(out, seeds, silent)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A finished demo; tests read it and leave its runs as they are."""
    out = tmp_path_factory.mktemp("suite")
    told = []
    with small_demo():
        run_demo(out, [42], lambda what, share: told.append(what))
    assert any("dpo-s42 readouts" in what for what in told) and "reference" in told
    return out


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model" / "model.safetensors")


def same(one: Path, other: Path) -> bool:
    return all(torch.equal(value, weights(other)[name]) for name, value in weights(one).items())


# -- what is written -----------------------------------------------------------------------------------------


def test_the_summary_has_the_shape_that_is_promised(finished):
    text = (finished / "summary.json").read_text()
    assert "NaN" not in text and "Infinity" not in text
    summary = json.loads(text)
    assert summary["seed"] == 42 and summary["seconds"] > 0
    arms, rates = {"dpo", "pooled", "shared_mean"}, summary["rates"]
    assert set(rates) == {"reference", *arms}
    assert all(set(row) == ATTRIBUTES and min(row.values()) > 0 for row in rates.values())
    assert set(summary["removed"]) == {"pooled", "shared_mean"}
    for name, row in summary["removed"].items():
        for a in ATTRIBUTES:
            removed = (rates["dpo"][a] - rates[name][a]) / (rates["dpo"][a] - rates["reference"][a])
            assert row[a] == pytest.approx(removed)
    assert {"ceiling", "pooled", "shared_mean"} <= set(summary["votes"])
    for table in summary["votes"].values():
        assert {name: set(row) for name, row in table.items()} == dict.fromkeys(ATTRIBUTES, CLASSES)
    assert set(summary["kl"]) == arms and np.isfinite(list(summary["kl"].values())).all()


def test_every_arm_has_its_run_folder_and_one_reference(finished):
    assert {path.name for path in finished.iterdir() if path.is_dir()} == {
        "reference",
        "start",
        *ARM_FOLDERS,
    }
    for name in ARM_FOLDERS:
        files = written(finished / name)
        assert files >= {"run.json", "config.yaml", "environment.json", "log.jsonl", "readouts.json"}
        assert files >= {"bias.json", "bias.safetensors", "planted.json", "model/model.safetensors"}
        assert [line["step"] for line in log_lines(finished / name)] == list(range(1, 9))
        assert log_lines(finished / name)[0]["loss"] == pytest.approx(np.log(2), rel=1e-6)
        assert not same(finished / name, finished / "reference")
    assert BiasTerm.load(finished / "dpo-s42").parts == ()
    assert BiasTerm.load(finished / "pooled-s42").parts == ("mean",)
    # one pass over the training comparisons, one over the held-out ones
    assert len(list((finished / "reference" / "cache").rglob("*.arrow"))) == 2
    page = (finished / "report.html").read_text()
    assert all(part in page for part in ("reference", "DPO", "pooled", "woman", "black", "<svg"))
    for path in finished.rglob("*.json*"):
        assert "constructed-" not in path.read_text(), path


def test_theta_is_compared_with_the_annotators_it_was_planted_in(finished):
    """The correlation of the summary, once more from the files alone."""
    bias = BiasTerm.load(finished / "shared_mean-s42")
    planted = json.loads((finished / "shared_mean-s42" / "planted.json").read_text())
    assert [row["pseudonym"] for row in planted["annotators"]] == list(bias.annotators)
    theta = np.array([row["theta"] for row in planted["annotators"]])
    summary = json.loads((finished / "summary.json").read_text())
    for column, name in enumerate(planted["attributes"]):
        expected = np.corrcoef(bias.theta().detach().double().numpy()[:, column], theta[:, column])[0, 1]
        assert summary["theta_correlation"][name] == pytest.approx(expected)


# -- what is not done twice ----------------------------------------------------------------------------------


def test_the_command_on_a_finished_demo_trains_nothing_and_says_the_same(finished, monkeypatch):
    trained = count_training(monkeypatch)
    kept = [path for name in ("model.safetensors", "log.jsonl") for path in finished.rglob(name)]
    before = [path.stat().st_mtime_ns for path in kept]
    seals = {path: path.read_bytes() for path in finished.rglob("run.json")}
    first = json.loads((finished / "summary.json").read_text())
    with small_demo():
        told = CliRunner().invoke(app, ["demo", "--out", str(finished), "--json"])
    second = json.loads(told.stdout)
    assert trained == [] and [path.stat().st_mtime_ns for path in kept] == before
    assert {path: path.read_bytes() for path in seals} == seals
    assert second | {"seconds": 0} == first | {"seconds": 0}


def test_another_seed_trains_the_arms_only(finished, tmp_path, monkeypatch):
    out = tmp_path / "suite"
    run(out, arms=("dpo",))
    trained = count_training(monkeypatch)
    summaries = run(out, seeds=(42, 7), arms=("dpo",))
    assert trained == ["suite/dpo-s7"]
    assert [summary["seed"] for summary in summaries] == [42, 7]
    assert {"summary-s42.json", "summary-s7.json"} <= written(out)
    assert summaries[0]["rates"]["dpo"] != summaries[1]["rates"]["dpo"]
    # the reference is the one that the other demo has, to the bit
    assert same(out / "reference", finished / "reference")


def stop_at_step_six(patch, bias: str) -> None:
    finish_step = BADPOTrainer.finish_step

    def stop(self):
        if self.args.bias == bias and self.state.global_step + 1 == 6:
            raise KeyboardInterrupt
        return finish_step(self)

    patch.setattr(BADPOTrainer, "finish_step", stop)


def test_an_interrupted_demo_continues_where_it_stopped(finished, tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stop_at_step_six(patch, "pooled")
        run(tmp_path)
    assert len(log_lines(tmp_path / "pooled-s42")) == 5
    assert not (tmp_path / "pooled-s42" / "run.json").exists()
    assert not (tmp_path / "summary.json").exists()
    with pytest.raises(ConfigError, match="other data or settings"):
        run(tmp_path, arms=("pooled",), warmup_steps=0.5)
    trained, steps, finish_step = count_training(monkeypatch), [], BADPOTrainer.finish_step
    monkeypatch.setattr(
        BADPOTrainer, "finish_step", lambda self: steps.append(self.args.bias) or finish_step(self)
    )
    run(tmp_path)
    assert [place.split("/")[1] for place in trained] == ["pooled-s42", "shared_mean-s42"]
    # continued from the checkpoint of step 4, to what an uninterrupted run gives
    assert (steps.count("pooled"), steps.count("shared_mean")) == (4, 8)
    assert log_lines(tmp_path / "pooled-s42") == log_lines(finished / "pooled-s42")
    assert same(tmp_path / "pooled-s42", finished / "pooled-s42")


def test_readouts_of_other_lengths_need_no_training(finished, tmp_path, monkeypatch):
    """What only the readouts read is no part of a run's key."""
    out = shutil.copytree(finished, tmp_path / "suite")
    trained = count_training(monkeypatch)
    run(out, temperature=1.0)
    assert trained == []
    one, other = (json.loads((f / "dpo-s42" / "readouts.json").read_text()) for f in (finished, out))
    assert one["kl_published"] != other["kl_published"] and one["kl"] == other["kl"]


@pytest.mark.slow
def test_every_arm_runs(tmp_path):
    # those left out differ from another by a number
    others = "reference rdpo_strong rdpo_words group_dro_annotators group_dro_parts ipo shared_mean_warm"
    names = tuple(name for name in ARMS if name not in others.split())
    (summary,) = run(tmp_path, arms=names)
    assert set(summary["rates"]) == {"reference", *names}
    assert BiasTerm.load(tmp_path / "declared_subset-s42").attributes == ("woman",)
    assert BiasTerm.load(tmp_path / "class-s42").parts == ("mean", "class_offset", "deviation")
    assert BiasTerm.load(tmp_path / "rdpo-s42").fixed.unique().tolist() == pytest.approx([0.005])
    assert "groups/weight_sd" in log_lines(tmp_path / "group_dro-s42")[-1]
    types = json.loads((tmp_path / "em_dpo-s42" / "readouts.json").read_text())["types"]
    assert sum(types["weights"]) == pytest.approx(1.0) and sum(types["annotators"]) == 60
    warm = log_lines(tmp_path / "pooled_warm-s42")[0]["bias/theta/woman"]
    assert abs(warm) > 5 * abs(log_lines(tmp_path / "pooled-s42")[0]["bias/theta/woman"])


# -- a user's own ----------------------------------------------------------------------------------------------


def test_the_demo_on_a_model_of_ones_own(tmp_path, tiny_demo):
    tokenizer = build_tokenizer(["boil the rice"], vocab_size=400)
    build_model(tokenizer, 3, **SMALL_MODEL).save_pretrained(tmp_path / "mine")
    tokenizer.save_pretrained(tmp_path / "mine")
    run_demo(tmp_path / "out", [42], silent, model=str(tmp_path / "mine"))
    config = AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "dpo-s42" / "model").config
    assert config.hidden_size == 32


# -- tables ----------------------------------------------------------------------------------------------------


def readouts_of(rate: float, **votes) -> dict:
    """What a run's readouts have of what the summary reads; every class at the same accuracy."""
    table = {"woman": {name: {"accuracy": value} for name, value in {"all": 0.7, **votes}.items()}}
    return {
        "rates": {"woman": {"rate": rate}},
        "theta": {"woman": {"correlation": 0.9 if rate == 0.6 else None}},
        "votes": table,
        "ceiling": {"woman": {name: {"accuracy": 0.8} for name in table["woman"]}},
        "votes_minus_ceiling": {"woman": {"all": {"difference": -0.1}}},
        "heldout": {"any": {"gap": 0.01}},
        "sampled": {"signed": 1.0},
        "kl": {"per_token": 0.0187},
    }


def summary(dpo: float = 0.9, **votes) -> dict:
    runs = {"reference": 0.5, "dpo": dpo, "pooled": 0.6, "shared_mean": 0.5}
    return summarize({name: readouts_of(rate, **votes) for name, rate in runs.items()}, 42, 512.31)


def test_the_demo_is_told_in_a_few_lines_of_plain_text():
    top, header, *rows = demo_table(summary()).splitlines()
    assert len(rows) == 7 and demo_table(summary()).isascii()
    assert top.split() == ["seed", "42,", "512", "s", "woman"]
    assert abs(header.index("rate") - top.index("woman")) <= 3
    assert rows[0].split() == ["reference", "0.50"]
    assert rows[1].split() == ["DPO", "0.90", "+2.20", "0.0187"]
    assert rows[2].split() == ["pooled", "0.60", "75", "%", "+0.41", "0.0187"]
    assert rows[4] == "learned against planted theta: woman r = 0.90"
    assert rows[5] == "votes, woman: ceiling 0.800, DPO 0.700, pooled 0.700, shared mean 0.700"


def test_what_is_not_known_is_none():
    # a share of no shift, and a class without a held-out vote
    found = summary(dpo=0.5, C=None)
    assert found["removed"]["pooled"] == {"woman": None}
    assert found["votes"]["dpo"]["woman"] == {"all": 0.7, "C": None}
    assert demo_table(found).splitlines()[4].split()[:3] == ["pooled", "0.60", "+0.41"]


def test_seeds_give_mean_and_half_of_student_s_interval(tmp_path):
    """4.302653 * 0.01 / sqrt(3) = 0.025; a reference is one run and gets no interval."""
    write_json(tmp_path / "reference/readouts.json", readouts_of(0.5))
    for seed, rate in zip((1, 2, 3), (0.54, 0.55, 0.56), strict=True):
        for name in ARMS_SHOWN:
            write_json(
                tmp_path / f"{name}-s{seed}/readouts.json", readouts_of(0.9 if name == "dpo" else rate)
            )
    told = re.sub(" +", " ", seeds_markdown(tmp_path, (1, 2, 3)))
    assert "| pooled | 0.550 \u00b1 0.025 | 88 % \u00b1 6 % |" in told and "| reference" not in told
    assert "| Reference | 0.500 | \u2013 |" in told and "| DPO | \u22120.100 \u00b1 0.000 |" in told


def test_the_learned_theta_is_drawn_against_the_planted_one(tmp_path):
    """The points are everybody's pairs; an arm whose theta is the same for all has none."""
    figure = learned_against_planted(read_suite(write_suite(tmp_path / "demo")))
    assert [title for title, _ in figure.panels] == [
        "woman-coded, shared mean",
        "black-coded, shared mean",
    ]
    people = json.loads((tmp_path / "demo/dpo-s42/planted.json").read_text())["annotators"]
    planted = np.array([one["theta"] for one in people])
    learned = BiasTerm.load(tmp_path / "demo/shared_mean-s42").theta()[:, 0].detach()
    r = np.corrcoef(planted[:, 0], learned)[0, 1]
    assert f"woman-coded, shared mean r = {r:.2f};" in figure.caption
    assert sum(int(n) for n in re.findall(r"<title>class .: (\d+)<", figure.panels[0][1])) == 60
    row = next(row for row in figure.table.rows if row[0] == "black-coded, shared mean, class A")
    assert row[:3] == (row[0], "20", f"{planted[:20, 1].mean():.2f}")
    # whatever the order of the planted file
    for folder in (tmp_path / "demo").glob("*-s*"):
        told = json.loads((folder / "planted.json").read_text())
        write_json(folder / "planted.json", told | {"annotators": told["annotators"][::-1]})
    again = learned_against_planted(read_suite(tmp_path / "demo"))
    assert again.caption == figure.caption and again.table.rows == figure.table.rows
    pooled = read_suite(write_suite(tmp_path / "pooled", arms=("dpo", "pooled")))
    assert learned_against_planted(pooled) is None
