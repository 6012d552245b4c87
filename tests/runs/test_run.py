"""A recipe becomes a run folder: planned, trained, stopped and continued, and never written over."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from badpo.data.files import BusyError, locked, run_damage
from badpo.data.privacy import pseudonyms
from badpo.data.problems import ConfigError
from badpo.objective.bias import BiasTerm
from badpo.results.run_files import read_run
from badpo.runs import run
from badpo.runs.run import plan_run, read_judgments, run_folder, train_run
from badpo.runs.start import load_model
from badpo.training import reference
from badpo.training.checkpoints import RunCallback
from badpo.training.recipe import Recipe, read_recipe
from badpo.training.supervised import SupervisedTrainer
from badpo.training.trainer import BADPOTrainer
from tests import tiny
from tests.runs.recipes import log_lines, recipe, written

RUN_FILES = {"run.json", "config.yaml", "environment.json", "log.jsonl", "bias.json", "bias.safetensors"}


def weights(folder) -> dict[str, torch.Tensor]:
    return load_file(folder / "model" / "model.safetensors")


def same_weights(one, other) -> bool:
    first, second = weights(one), weights(other)
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def changed_at(folder) -> dict[str, int]:
    """When each file of a run was written last."""
    return {name: (folder / name).stat().st_mtime_ns for name in written(folder)}


def stop_at_step(monkeypatch, step: int) -> None:
    """Make training stop before the given step is finished, once."""
    finish_step = BADPOTrainer.finish_step

    def stop(self):
        if self.state.global_step + 1 == step:
            monkeypatch.setattr(BADPOTrainer, "finish_step", finish_step)
            raise KeyboardInterrupt
        return finish_step(self)

    monkeypatch.setattr(BADPOTrainer, "finish_step", stop)


def stopped(asked: Recipe, monkeypatch) -> Path:
    """The folder of a run that was interrupted in its last step, after the checkpoint of step 2."""
    stop_at_step(monkeypatch, 4)
    with pytest.raises(KeyboardInterrupt):
        train_run(asked)
    return run_folder(asked)


@pytest.mark.parametrize(
    ("batching", "epochs", "size", "steps"),
    # 96 judgments in steps of 10 are 10 steps, the last one small; a little more than one epoch is one more
    [("random", 1.02, 10, 11), ("comparisons", 1.0, 5, 7)],
)
def test_a_plan_counts_the_steps_of_epochs(tmp_path, batching, epochs, size, steps):
    of_epochs = {"max_steps": None, "num_train_epochs": epochs, "batching": batching}
    asked = recipe(tmp_path, per_device_train_batch_size=size, **of_epochs)
    (planned,) = plan_run(asked).runs
    assert planned.n_steps == log_lines(train_run(asked))[-1]["step"] == steps
    assert planned.n_passes >= epochs


def test_a_run_folder_has_everything(trained):
    folder = trained
    assert (folder.parent.name, folder.name) == ("runs", "shared_mean-s42")
    assert written(folder) >= RUN_FILES | {"model/model.safetensors", "model/README.md"}
    public = {path.name for path in folder.rglob("*") if path.is_file() and path.stat().st_mode & 0o077}
    private = {path.name for path in folder.rglob("*")} - public
    assert private >= {"bias.json", "bias_optimizer.safetensors", "run.json", "complete.json"}
    assert private >= {"log.jsonl", "trainer_state.json", "config.yaml", "bias.safetensors"}
    assert public >= {"environment.json", "README.md"}
    assert [line["step"] for line in log_lines(folder)] == [1, 2, 3, 4]
    assert log_lines(folder)[0]["rewards/margins"] == pytest.approx(0.0, abs=1e-6)
    bias = BiasTerm.load(folder)
    assert bias.parts == ("mean", "deviation")
    assert bias.theta().abs().sum() > 0
    AutoModelForCausalLM.from_pretrained(folder / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    assert tokenizer("the cat")["input_ids"] == tiny.tokenizer()("the cat")["input_ids"]
    assert not same_weights(folder, folder.parents[1])
    run = read_run(folder)
    assert (run.arm, run.seed) == ("shared_mean", 42)
    assert "badpo train --config" in (folder / "environment.json").read_text()


def test_the_files_of_a_run_hold_no_token_place_or_person_and_give_the_same_run_again(tmp_path):
    """Not even a checkpoint's; an adapter's would name its base, which it cannot be loaded without."""
    tracked = {"report_to": "tensorboard"} if find_spec("tensorboard") else {}
    gold = ["person 0", "person 4"]
    asked = {"bias": {"gold_annotators": gold, "learning_rate": 0.02}, "hub_token": "hf_secret"}
    folder = train_run(recipe(tmp_path, seed=7, **asked, **tracked))
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert any("checkpoint-4" in path.parts for path in files)
    assert not tracked or any("tfevents" in path.name for path in files)
    private = (b"hf_secret", str(tmp_path).encode(), b"person 0")
    assert [path for path, content in files.items() if any(text in content for text in private)] == []
    other = train_run(read_recipe(folder / "config.yaml", {"output_dir": str(tmp_path / "again")}))
    assert other.name == folder.name == "shared_mean_gold-s7"
    assert same_weights(folder, other)
    assert (folder / "log.jsonl").read_text() == (other / "log.jsonl").read_text()
    bias = BiasTerm.load(other)
    theta = dict(zip(bias.annotators, bias.theta().flatten().tolist(), strict=True))
    at_zero = {name for name, value in theta.items() if value == 0}
    assert at_zero == set(bias.gold_annotators) == set(pseudonyms(gold))
    assert read_run(folder).bias.extra.gold_votes["length"] > 0


def test_arms_and_seeds_have_folders_and_a_revision_is_also_the_tokenizers(tmp_path, monkeypatch):
    weighed = {"name": "group_weights", "groups": "annotator", "eta": 0.5}
    gold = {"variant": "class", "gold_annotators": ["person 0"]}
    changes = {
        "dpo-s1": {"bias": "none", "seed": 1},
        "pooled_warm-s42": {"bias": {"variant": "pooled", "warm_start": "offline"}},
        "class_gold_audit-s42": {"bias": gold | {"warm_start": "audit"}},
        "pooled_group_weights-s2": {"bias": "pooled", "objective": weighed, "seed": 2},
    }
    folders = [run_folder(recipe(tmp_path, **asked)) for asked in changes.values()]
    assert folders == [tmp_path / "runs" / name for name in changes]
    choice = recipe(tmp_path, model_revision="v2").model
    asked = Mock(return_value=SimpleNamespace())
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", asked)
    load_model(choice.model_name_or_path, choice)
    assert asked.call_args.kwargs["revision"] == "v2"


@pytest.mark.parametrize("removed", ["a vote", "an annotator"])
def test_a_training_during_which_an_annotator_is_removed_from_the_table_says_so(
    tmp_path, monkeypatch, removed
):
    asked = recipe(tmp_path)
    table = Path(asked.data.dataset_name)

    def change_table(self, *given, **options):
        lines = table.read_text().splitlines(keepends=True)
        who = json.loads(lines[0])["annotator"]
        kept = [line for line in lines if json.loads(line)["annotator"] != who]
        table.write_text("".join(kept if removed == "an annotator" else lines[1:]))
        return train(self, *given, **options)

    train = BADPOTrainer.train
    monkeypatch.setattr(BADPOTrainer, "train", change_table)
    if removed == "a vote":
        assert train_run(asked) == run_folder(asked)
        return
    with pytest.raises(
        ConfigError, match=f"1 annotator, but the run learned .* remove {run_folder(asked)}"
    ):
        train_run(asked)


def test_a_supervised_reference_learns_the_majoritys_choices_once_for_all(tmp_path, monkeypatch):
    train = Mock(side_effect=SupervisedTrainer.train)
    monkeypatch.setattr(SupervisedTrainer, "train", lambda *given, **options: train(*given, **options))
    votes = tiny.for_the_longer(tiny.votes(40, 6))
    sft = {"sft": True, "learning_rate": 1e-2, "num_train_epochs": 2}
    first = train_run(asked := recipe(tmp_path, votes, reference=sft))
    others = {"bias": "pooled", "attributes": [{"type": "length", "ratio": 2.0}]}
    second = train_run(recipe(tmp_path, votes, reference=sft, **others))
    ((stage,),) = (called.args for called in train.call_args_list)
    sides = read_judgments(asked)[0].comparisons[["response_b", "response_a"]].to_numpy()
    learned = [response for _, response in stage.train_dataset]
    told = tiny.tokenizer().batch_decode(learned, skip_special_tokens=True)
    # its first word is a part of the prompt's last
    assert told == [max(both, key=len).partition(" ")[2] for both in sides]
    reference = tmp_path / "runs" / "reference"
    assert not same_weights(reference, first) and not same_weights(reference, tmp_path)
    # both start from it: the first margin is zero
    for folder in (first, second):
        assert log_lines(folder)[0]["rewards/margins"] == pytest.approx(0.0, abs=1e-6)
    plan_run(recipe(tmp_path, votes, reference=sft, seed=3))


def test_a_reference_of_other_settings_is_not_reused(tmp_path):
    sft = {"sft": True, "learning_rate": 1e-2}
    train_run(recipe(tmp_path, reference=sft))
    slower = {"reference": sft | {"learning_rate": 1e-3}}
    for changes, seed, named in [
        (slower, 0, "reference.learning_rate was 0.01, is now 0.001"),
        ({}, 1, "votes was"),
        ({"encoding": "paper"}, 0, "encoding was trl, is now paper"),
    ]:
        asked = {"reference": sft, "bias": "pooled"} | changes
        with pytest.raises(ConfigError, match=f"was trained with other settings: {named}"):
            train_run(recipe(tmp_path, tiny.votes(40, 6, seed=seed), **asked))
    assert not (tmp_path / "runs" / "pooled-s42").exists()


def test_an_interrupted_reference_is_trained_again(tmp_path, monkeypatch):
    """A reference that was not finished leaves no model that a later run would take for one."""
    asked, stop = recipe(tmp_path, reference={"sft": True}), Mock(side_effect=KeyboardInterrupt)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(transformers.PreTrainedTokenizerBase, "save_pretrained", stop)
        train_run(asked)
    assert written(tmp_path / "runs") == set()
    train_run(asked)
    assert (tmp_path / "runs" / "reference" / "model" / "model.safetensors").exists()


@pytest.mark.parametrize("sft", [False, True])
def test_an_adapter_is_trained_and_the_base_stays(tmp_path, sft):
    asked = recipe(tmp_path, use_peft=True, lora_target_modules="all-linear", reference={"sft": sft})
    plan, base = plan_run(asked), (tmp_path / "model" / "model.safetensors").read_bytes()
    assert 0 < plan.n_trained < plan.n_parameters / 2
    folder = train_run(asked)
    assert {"adapter_model.safetensors", "adapter_config.json", "README.md"} <= written(folder / "model")
    assert not (folder / "model" / "model.safetensors").exists()
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == base
    moved = load_file(folder / "model" / "adapter_model.safetensors")
    assert any("lora_B" in name and value.abs().sum() > 0 for name, value in moved.items())
    assert log_lines(folder)[0]["rewards/margins"] == pytest.approx(0.0, abs=1e-6)
    named = json.loads((folder / "model" / "adapter_config.json").read_text())["base_model_name_or_path"]
    assert named == str(tmp_path / "runs" / "reference" / "model" if sft else tmp_path / "model")


def test_a_stopped_run_is_resumed_to_the_same_weights_and_not_otherwise(trained, tmp_path, monkeypatch):
    def refused(message, resume=False, **changes):
        with pytest.raises(ConfigError, match=message):
            train_run(recipe(tmp_path, **changes), resume=resume)

    refused("no complete checkpoint to resume from; train without --resume", resume=True)
    assert not written(tmp_path / "runs")
    folder = stopped(recipe(tmp_path), monkeypatch)
    assert [line["step"] for line in log_lines(folder)] == [1, 2, 3]
    assert not (folder / "model").exists()
    before = changed_at(folder)
    refused(r"beta was 0\.1, is now 0\.5", resume=True, beta=0.5)
    refused(r"an unfinished run \(checkpoint-2\); continue it with --resume")
    assert changed_at(folder) == before
    whole = (state := folder / "checkpoints" / "checkpoint-2" / "scheduler.pt").read_bytes()
    state.write_bytes(b"")
    refused(r"checkpoint-2/scheduler.pt is damaged .*\. Delete the checkpoint folder", resume=True)
    state.write_bytes(whole)
    assert train_run(recipe(tmp_path), resume=True) == folder
    assert same_weights(folder, trained)
    assert torch.equal(BiasTerm.load(folder).theta(), BiasTerm.load(trained).theta())
    assert (folder / "log.jsonl").read_text() == (trained / "log.jsonl").read_text()


def test_a_comparison_scores_the_reference_once_and_goes_on(trained, tmp_path, monkeypatch):
    scored = Mock(side_effect=reference.response_logps)
    monkeypatch.setattr(reference, "response_logps", scored)
    asked, other = recipe(tmp_path, compare="dpo"), ["dpo", "identity_preference"]
    plan = plan_run(asked)
    told = f"scored once for all 2 runs; its log-probabilities are kept in {tmp_path / 'cache'}"
    assert told in str(plan.lines())
    stop_at_step(monkeypatch, 4)
    with pytest.raises(KeyboardInterrupt) as told:
        train_run(asked)
    folder = run_folder(asked)
    kept = f"kept: {folder / 'checkpoints' / 'checkpoint-2'}; continue with: badpo train"
    assert kept in str(told.value) and str(told.value).endswith("--resume --compare dpo")
    n_scored = scored.call_count
    assert n_scored and train_run(asked, resume=True) == folder
    assert same_weights(folder, trained) and scored.call_count == n_scored
    dpo = folder.with_name("dpo-s42")
    assert BiasTerm.load(dpo).parts == () and not same_weights(dpo, folder)
    before = changed_at(folder), changed_at(dpo)
    for start in (train_run, plan_run):
        with pytest.raises(ConfigError, match="s42 each hold a finished run; remove it"):
            start(asked)
        with pytest.raises(ConfigError, match=r"with other settings: beta was None, is now 0\.5"):
            start(recipe(tmp_path, compare=other, beta=0.5))
    with pytest.raises(ConfigError, match="with other settings: votes was"):
        train_run(recipe(tmp_path, tiny.votes(40, 6, seed=1), compare=other))
    runs = plan_run(recipe(tmp_path, compare=other)).runs
    names = {"shared_mean-s42": True, "dpo-s42": True, "dpo_identity_preference-s42": False}
    assert {Path(one.folder).name: one.is_finished for one in runs} == names
    with pytest.raises(ConfigError, match="compare names a run twice"):
        plan_run(recipe(tmp_path, compare=["dpo", "dpo"]))
    train_run(recipe(tmp_path, compare=other))
    assert before == (changed_at(folder), changed_at(dpo)) and scored.call_count == n_scored
    assert (folder.with_name("dpo_identity_preference-s42") / "run.json").exists()


def test_what_was_allowed_to_change_is_recorded(tmp_path, monkeypatch):
    stopped(recipe(tmp_path), monkeypatch)
    monkeypatch.setattr(
        "badpo.training.checkpoints.read_package_versions", lambda names: {"torch": "0.0"}
    )
    with pytest.raises(ConfigError, match=r"code was .* is now torch 0\.0.*--allow-changed code"):
        train_run(recipe(tmp_path), resume=True)
    with pytest.raises(ConfigError, match="it requires --resume"):
        train_run(recipe(tmp_path), allow_changed=["code"])
    folder = train_run(recipe(tmp_path), resume=True, allow_changed=["code"])
    assert json.loads((folder / "environment.json").read_text())["allowed_changes"] == ["code"]
    assert [line["step"] for line in log_lines(folder)] == [1, 2, 3, 4]
    assert run_damage(folder) is None


def test_a_run_that_was_stopped_before_it_was_sealed_is_finished_by_resuming(run):
    asked = recipe(run.parents[1])
    sealed = (run / "run.json").read_bytes()
    (run / "run.json").unlink()
    (run / "model" / "README.md").unlink()
    with pytest.raises(ConfigError, match="an unfinished run"):
        train_run(asked)
    assert train_run(asked, resume=True) == run
    assert (run / "run.json").read_bytes() == sealed
    assert (run / "model" / "README.md").exists()


@pytest.mark.parametrize("resume", [False, True])
def test_a_finished_run_is_refused_before_anything_is_done(run, monkeypatch, resume):
    asked, before = recipe(run.parents[1]), changed_at(run)
    monkeypatch.setattr("badpo.runs.run.read_judgments", lambda recipe: pytest.fail("read the table"))
    refusal = "holds a finished run; remove it or choose another output_dir"
    with pytest.raises(ConfigError, match=refusal):
        train_run(asked, resume=resume)
    assert changed_at(run) == before


def test_a_folder_that_another_process_works_on_is_left_alone(tmp_path):
    folder = tmp_path / "runs" / "shared_mean-s42"
    with locked(folder), ThreadPoolExecutor() as other:
        training = other.submit(train_run, recipe(tmp_path))
        with pytest.raises(BusyError, match=f"shared_mean-s42 is in use by process {os.getpid()} on "):
            training.result()
    assert not folder.exists()


@pytest.mark.parametrize(
    "is_writer, expected", [(True, {"config.yaml", "environment.json"}), (False, set())]
)
def test_only_the_first_process_writes_the_recipe_and_the_provenance(tmp_path, is_writer, expected):
    stop = Mock(side_effect=KeyboardInterrupt)
    trainer = Mock(
        run_folder=tmp_path / "run",
        is_world_process_zero=lambda: is_writer,
        args=SimpleNamespace(world_size=2),
        callback_handler=SimpleNamespace(callbacks=[RunCallback(Mock(run_folder=tmp_path / "run"), 0)]),
        train=stop,
    )
    with pytest.raises(KeyboardInterrupt):
        run._train_into(trainer, recipe(tmp_path), "badpo train", resume=False)
    assert set(written(tmp_path / "run")) == expected
