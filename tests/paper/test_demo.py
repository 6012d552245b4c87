"""The signed suite at a very small scale: its folders, its summary, and that nothing is done twice."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from badpo.data.problems import ConfigError, DataError
from badpo.objective.bias import BiasTerm
from badpo.results.run_page import write_report
from badpo.training.trainer import BADPOTrainer, SupervisedTrainer
from badpo_paper.arms import ARMS
from badpo_paper.corpora import bundled
from badpo_paper.demo import ARMS_SHOWN, run_demo, summarize
from badpo_paper.settings import build_model, build_tokenizer
from tests.paper.conftest import SMALL_KEYS, SMALL_MODEL, small_demo
from tests.runs.recipes import log_lines, save_model, written

ATTRIBUTES = {"woman", "black"}
CLASSES = {"all", "A", "B", "C"}
ARM_FOLDERS = {f"{name}-s42" for name in ARMS_SHOWN}


def silent(what: str, share: float) -> None:
    pass


def run(out: Path, seeds=(42,), **changes):
    """The demo at the scale of a test; changes are keys of its recipe, or its arms."""
    with small_demo(**changes):
        return run_demo(out, seeds, silent)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A finished suite; tests read it and leave its runs as they are."""
    out = tmp_path_factory.mktemp("suite")
    run(out)
    return out


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model" / "model.safetensors")


def count_training(monkeypatch) -> list[str]:
    """The names of the run folders that are trained from now on, the reference among them."""
    trained = []
    for kind in (SupervisedTrainer, BADPOTrainer):

        def train(self, *args, _train=kind.train, **kwargs):
            trained.append(Path(self.args.output_dir).parent.name)
            return _train(self, *args, **kwargs)

        monkeypatch.setattr(kind, "train", train)
    return trained


# -- what is written -----------------------------------------------------------------------------------------


def test_the_summary_has_the_shape_that_is_promised(finished):
    text = (finished / "summary.json").read_text()
    assert "NaN" not in text and "Infinity" not in text
    summary = json.loads(text)
    assert summary["seed"] == 42
    assert summary["seconds"] > 0
    arms = {"dpo", "pooled", "shared_mean"}
    assert set(summary["rates"]) == {"reference", *arms}
    assert all(set(rates) == ATTRIBUTES for rates in summary["rates"].values())
    assert all(0 < rate < 1 for rates in summary["rates"].values() for rate in rates.values())
    assert set(summary["removed"]) == {"pooled", "shared_mean"}
    numbers = [*summary["removed"].values(), summary["theta_correlation"]]
    assert all(set(row) == ATTRIBUTES and np.isfinite(list(row.values())).all() for row in numbers)
    assert {"ceiling", "pooled", "shared_mean"} <= set(summary["votes"])
    for table in summary["votes"].values():
        assert {name: set(row) for name, row in table.items()} == dict.fromkeys(ATTRIBUTES, CLASSES)
        assert all(0 <= table[a]["all"] <= 1 for a in ATTRIBUTES)
    assert set(summary["kl"]) == arms
    assert np.isfinite(list(summary["kl"].values())).all()


def test_the_share_removed_is_that_of_the_rates(finished):
    summary = json.loads((finished / "summary.json").read_text())
    rates = summary["rates"]
    for name in ("pooled", "shared_mean"):
        for a in ATTRIBUTES:
            removed = (rates["dpo"][a] - rates[name][a]) / (rates["dpo"][a] - rates["reference"][a])
            assert summary["removed"][name][a] == pytest.approx(removed)


def test_every_arm_has_its_run_folder(finished):
    assert {path.name for path in finished.iterdir() if path.is_dir()} == {"reference", "start", *ARM_FOLDERS}
    for name in ARM_FOLDERS:
        files = written(finished / name)
        assert files >= {"run.json", "config.yaml", "environment.json", "log.jsonl", "readouts.json"}
        assert files >= {"bias.json", "bias.safetensors", "planted.json", "model/model.safetensors"}
        assert [line["step"] for line in log_lines(finished / name)] == list(range(1, 9))
        assert log_lines(finished / name)[0]["loss"] == pytest.approx(np.log(2), rel=1e-6)
    assert BiasTerm.load(finished / "dpo-s42").parts == ()
    assert BiasTerm.load(finished / "pooled-s42").parts == ("mean",)


def test_the_arms_share_one_reference_and_its_log_probabilities(finished):
    shards = list((finished / "reference" / "cache").rglob("*.arrow"))
    assert len(shards) == 2  # one pass over the training comparisons, one over the held-out ones
    reference = weights(finished / "reference")
    for name in ARM_FOLDERS:
        assert any(not torch.equal(value, reference[k]) for k, value in weights(finished / name).items())


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


def test_no_raw_annotator_id_is_written(finished):
    for path in finished.rglob("*.json*"):
        assert "constructed-" not in path.read_text(), path


def test_the_report_is_written(finished, tmp_path):
    page = write_report(finished, tmp_path / "report.html").read_text()
    for part in ("reference", "DPO", "pooled", "woman", "black", "<svg"):
        assert part in page


# -- what is not done twice ----------------------------------------------------------------------------------


def test_a_second_call_trains_nothing_and_says_the_same(finished, monkeypatch):
    trained = count_training(monkeypatch)
    before = {
        path: path.stat().st_mtime_ns
        for name in ("model.safetensors", "log.jsonl")
        for path in finished.rglob(name)
    }
    seals = {path: path.read_bytes() for path in finished.rglob("run.json")}
    first = json.loads((finished / "summary.json").read_text())
    (second,) = run(finished)
    assert trained == []
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert {path: path.read_bytes() for path in seals} == seals
    drop = {"seconds"}
    assert {k: v for k, v in second.items() if k not in drop} == {
        k: v for k, v in first.items() if k not in drop
    }


def test_another_seed_trains_the_arms_only(finished, tmp_path, monkeypatch):
    out = tmp_path / "suite"
    run(out, arms=("dpo",))
    trained = count_training(monkeypatch)
    summaries = run(out, seeds=(42, 7), arms=("dpo",))
    assert trained == ["dpo-s7"]
    assert [summary["seed"] for summary in summaries] == [42, 7]
    assert {"summary-s42.json", "summary-s7.json"} <= written(out)
    assert summaries[0]["rates"]["dpo"] != summaries[1]["rates"]["dpo"]
    # the reference is the one that the other suite has, to the bit
    assert all(
        torch.equal(v, weights(finished / "reference")[k]) for k, v in weights(out / "reference").items()
    )


def test_an_interrupted_suite_continues_where_it_stopped(finished, tmp_path, monkeypatch):
    finish_step = BADPOTrainer.finish_step

    def stop(self):
        if self.args.bias == "pooled" and self.state.global_step + 1 == 6:
            raise KeyboardInterrupt
        return finish_step(self)

    with monkeypatch.context() as patch:
        patch.setattr(BADPOTrainer, "finish_step", stop)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path)
    assert len(log_lines(tmp_path / "pooled-s42")) == 5
    assert not (tmp_path / "pooled-s42" / "run.json").exists()
    assert not (tmp_path / "summary.json").exists()
    trained, steps = count_training(monkeypatch), []
    monkeypatch.setattr(
        BADPOTrainer, "finish_step", lambda self: steps.append(self.args.bias) or finish_step(self)
    )
    run(tmp_path)
    assert trained == ["pooled-s42", "shared_mean-s42"]
    # continued from the checkpoint of step 4, to what an uninterrupted run gives
    assert (steps.count("pooled"), steps.count("shared_mean")) == (4, 8)
    assert log_lines(tmp_path / "pooled-s42") == log_lines(finished / "pooled-s42")
    whole = weights(finished / "pooled-s42")
    assert all(torch.equal(value, whole[k]) for k, value in weights(tmp_path / "pooled-s42").items())


@pytest.mark.parametrize(
    ("changes", "folder"),
    [
        ({"reference": {**SMALL_KEYS["reference"], "learning_rate": 1e-4}}, "reference"),
        ({"warmup_steps": 0.5}, "dpo-s42"),
        ({"beta": 0.5}, "dpo-s42"),
    ],
)
def test_runs_of_other_settings_are_neither_reused_nor_overwritten(finished, changes, folder):
    before = (finished / folder / "run.json").read_bytes()
    with pytest.raises(ConfigError, match="other (data or )?settings") as caught:
        run(finished, **changes)
    assert str(finished / folder) in str(caught.value)
    assert (finished / folder / "run.json").read_bytes() == before


def test_an_unfinished_run_of_other_settings_is_not_continued(tmp_path, monkeypatch):
    finish_step = BADPOTrainer.finish_step

    def stop(self):
        if self.state.global_step + 1 == 6:
            raise KeyboardInterrupt
        return finish_step(self)

    with monkeypatch.context() as patch:
        patch.setattr(BADPOTrainer, "finish_step", stop)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, arms=("dpo",))
    with pytest.raises(ConfigError, match="other data or settings"):
        run(tmp_path, arms=("dpo",), warmup_steps=0.5)


def test_readouts_of_other_lengths_need_no_training(finished, tmp_path, monkeypatch):
    """What only the readouts read is no part of a run's key."""
    out = shutil.copytree(finished, tmp_path / "suite")
    trained = count_training(monkeypatch)
    run(out, temperature=1.0)
    assert trained == []
    one, other = (
        json.loads((folder / "dpo-s42" / "readouts.json").read_text()) for folder in (finished, out)
    )
    assert one["kl_published"] != other["kl_published"] and one["kl"] == other["kl"]


# -- arms ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_arm_runs(tmp_path):
    # those left out differ from another by a number
    others = {
        "rdpo_strong",
        "rdpo_words",
        "group_dro_annotators",
        "group_dro_parts",
        "ipo",
        "shared_mean_warm",
    }
    names = tuple(name for name in ARMS if name not in {"reference", *others})
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


def test_a_class_without_a_held_out_vote_has_no_accuracy():
    cell = {"all": {"accuracy": 0.5}, "C": {"accuracy": None}}
    difference = {"woman": {"all": {"difference": 0.0}}}
    arm = {
        "rates": {"woman": {"rate": 0.9}},
        "theta": {"woman": {"correlation": None}},
        "votes": {"woman": cell},
        "ceiling": {"woman": cell},
        "votes_minus_ceiling": difference,
        "heldout": {"any": {"gap": 0.1}},
        "sampled": {"signed": 1.0},
        "kl": {"per_token": 0.0},
    }
    reference = {"rates": {"woman": {"rate": 0.5}}, "sampled": {"signed": 1.0}}
    summary = summarize({"reference": reference, "dpo": arm}, seed=1, seconds=1.0)
    assert summary["votes"]["dpo"]["woman"] == {"all": 0.5, "C": None}
    assert summary["theta_correlation"] == {"woman": None}


# -- the demo ------------------------------------------------------------------------------------------------


def test_the_demo_writes_its_report_and_its_time(tmp_path, tiny_demo):
    told = []
    (summary,) = run_demo(tmp_path, [42], lambda what, share: told.append(what))
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    assert summary["seconds"] > 0
    assert "<svg" in (tmp_path / "report.html").read_text()
    assert any("dpo-s42 readouts" in what for what in told) and "reference" in told


def test_the_demo_on_pairs_of_ones_own(tmp_path, tiny_demo, caplog):
    pairs = bundled.scored_pairs(140).drop(columns="prompt_id")
    pairs.loc[3, "rejected"] = "No."
    pairs.to_csv(tmp_path / "pairs.csv", index=False)
    run_demo(tmp_path / "out", [42], silent, pairs=tmp_path / "pairs.csv")
    assert "1 of 132 pairs are left out: a response has fewer than 5 words" in caplog.text
    readouts = json.loads((tmp_path / "out" / "dpo-s42" / "readouts.json").read_text())
    assert readouts["sampled"]["n"] == 8


def test_the_demo_on_a_model_of_ones_own(tmp_path, tiny_demo):
    tokenizer = build_tokenizer(["boil the rice"], vocab_size=400)
    build_model(tokenizer, 3, **SMALL_MODEL).save_pretrained(tmp_path / "mine")
    tokenizer.save_pretrained(tmp_path / "mine")
    run_demo(tmp_path / "out", [42], silent, model=str(tmp_path / "mine"))
    config = AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "dpo-s42" / "model").config
    assert config.hidden_size == 32


def test_a_model_that_does_not_fit_its_tokenizer_is_named_before_training(tmp_path, tiny_demo):
    tokenizer = build_tokenizer(["boil the rice"], vocab_size=400)
    save_model(tmp_path / "mine", n_tokens=64)
    tokenizer.save_pretrained(tmp_path / "mine")
    with pytest.raises(DataError, match="E151.*outside the model's 64 embeddings") as caught:
        run_demo(tmp_path / "out", [42], lambda what, share: None, model=str(tmp_path / "mine"))
    assert "use the model's own tokenizer" in str(caught.value)
    assert not (tmp_path / "out" / "reference" / "model").exists()
