"""Files of a run: complete checkpoints, the facts that a resumed run must share, and resumption."""

import errno
import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import TrainerCallback

from badpo.attributes import Length, Markdown
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError
from badpo.objective.bias import BiasTerm
from badpo.objective.objectives import DiscountedTail, GroupWeights, SampledTokens, VoteWeights
from badpo.training import checkpoints as module
from badpo.training.checkpoints import (
    MARKER,
    describe_changes,
    find_damage,
    find_newest_complete,
    keep_newest,
    list_checkpoints,
    mark_complete,
    remove_checkpoint,
    save_on_sigterm,
    whole_folder,
)
from badpo.training.trainer import BADPOTrainer
from tests import tiny
from tests.training.tiny_runs import judgments, lora, trained, trainer

# -- files -------------------------------------------------------------------------------------------------------


def checkpoint(folder: Path, step: int, whole: bool = True) -> Path:
    path = folder / f"checkpoint-{step}"
    (path / "inner").mkdir(parents=True)
    (path / "weights.bin").write_bytes(b"weights of %d" % step)
    (path / "inner" / "state.json").write_text("{}")
    if whole:
        mark_complete(path, {"beta": 0.1})
    return path


def steps(folder: Path) -> list[int]:
    return [int(path.name.split("-")[-1]) for path in list_checkpoints(folder)]


def test_a_new_folder_replaces_the_old_folder_only_if_it_is_complete(tmp_path):
    with pytest.raises(OSError, match="No space"), whole_folder(tmp_path / "model") as unfinished:
        unfinished.mkdir()
        raise OSError(errno.ENOSPC, "No space left on device")
    assert not list(tmp_path.iterdir())
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "old").touch()
    with whole_folder(tmp_path / "model") as unfinished:
        unfinished.mkdir()
        (unfinished / "file").write_text("all")
        assert (tmp_path / "model" / "old").exists()
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["model", "model/file"]


def test_the_newest_complete_checkpoint_is_found_with_reasons_for_newer_ones(tmp_path, monkeypatch):
    for step in (2, 4, 8, 9, 10, 11):
        checkpoint(tmp_path, step)
    marker = json.loads((tmp_path / "checkpoint-8" / MARKER).read_text())
    assert marker["facts"] == {"beta": 0.1}
    assert set(marker["files"]) == {"weights.bin", "inner/state.json"}
    checkpoint(tmp_path, 12, whole=False)
    monkeypatch.setattr("shutil.rmtree", lambda path, **options: None)
    remove_checkpoint(tmp_path / "checkpoint-11")  # and stopped by then
    (tmp_path / "checkpoint-10" / "weights.bin").write_bytes(b"other")
    (tmp_path / "checkpoint-9" / "inner" / "state.json").write_text("[]")
    (tmp_path / "checkpoint-8" / MARKER).write_text("{}")
    (tmp_path / "checkpoint-best").mkdir()
    assert find_newest_complete(tmp_path) == (
        tmp_path / "checkpoint-4",
        [
            f"checkpoint-12 was not finished (no {MARKER})",
            f"checkpoint-11 was not finished (no {MARKER})",
            "checkpoint-10/weights.bin is damaged (its checksum does not match)",
            "checkpoint-9/inner/state.json is damaged (its checksum does not match)",
            f"checkpoint-8/{MARKER} is damaged",
        ],
    )
    assert find_newest_complete(tmp_path / "nowhere") == (None, [])


@pytest.mark.parametrize(
    ("whole", "torn", "best", "left"),
    [
        ([2, 4, 8, 10], [12], None, [12, 10, 8]),  # 12 is being written
        ([2, 4, 8, 10], [], 4, [10, 8, 4]),
        ([4], [], None, [4]),
        ([4, 6], [], None, [6, 4]),
    ],
)
def test_the_newest_complete_checkpoints_are_kept(tmp_path, whole, torn, best, left):
    for step in whole + torn:
        checkpoint(tmp_path, step, step in whole)
    keep_newest(tmp_path, 2, None if best is None else tmp_path / f"checkpoint-{best}")
    assert steps(tmp_path) == left


@pytest.mark.parametrize("limit", [0, -1])
def test_no_limit_keeps_every_checkpoint(tmp_path, limit):
    trained(tmp_path, **SHORT | dict(save_steps=1, save_total_limit=limit))
    assert steps(tmp_path / "checkpoints") == [2, 1]


# -- what a resumed run must share with the run that it continues ------------------------------------------------

SAVED = dict(save_strategy="steps", save_steps=2, max_steps=4)
SHORT = SAVED | {"max_steps": 2}
OF_CONTENT = """data, annotators, pseudonym key, attributes, attribute values, parts of theta, fixed part of theta,
gold_annotators, tokenizer, reference, precision, adapter, configuration of the model, objective, code,
judgments per step, dropout of the adapter"""
ARGUMENTS = """attention batching beta bias bias_fit bias_learning_rate disable_dropout encoding max_length
max_prompt_length router_aux_loss_coef warm_start learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps
optim optim_args
weight_decay adam_beta1 adam_beta2 adam_epsilon max_grad_norm max_steps num_train_epochs seed data_seed"""
FACTS = {*ARGUMENTS.split(), *(name.strip() for name in OF_CONTENT.split(","))}


def with_fixed(value: float) -> BiasTerm:
    people = judgments().annotators["pseudonym"].tolist()
    return BiasTerm(["length"], people, ["mean", "deviation"], fixed=torch.tensor([value]))


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    trained(folder, **SAVED)
    return folder


@pytest.fixture
def folder(saved, tmp_path) -> Path:
    """Copy a run with checkpoints of steps 2 and 4."""
    return shutil.copytree(saved, tmp_path / "run")


def refusal(run: BADPOTrainer, asked: bool | str = True, **options) -> str:
    with pytest.raises(ConfigError) as caught:
        run.train(resume_from_checkpoint=asked, **options)
    return str(caught.value)


def same_weights(one: BADPOTrainer, other: BADPOTrainer) -> bool:
    pairs = zip(one.model.state_dict().values(), other.model.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def other_tokenizer():
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = tiny.CHAT_TEMPLATE + " "
    return tokenizer


def other_rope():
    model = tiny.model()
    model.config.rope_parameters["rope_theta"] = 5e5
    return model


def dropping(share: float) -> dict:
    return {"disable_dropout": False, "peft_config": lora(lora_dropout=share)}


LENGTH = '"type": "length", "name": "length", "ratio": '
CHANGES = [
    (dict(data=judgments(seed=1)), "data was 72 judgments on 24 comparisons ("),
    (
        dict(data=Judgments.read(tiny.votes(), attributes=[Length(ratio=2.0), Markdown()])),
        f"attributes was {{{LENGTH}1.5}}, is now {{{LENGTH}2.0}}|"
        "attribute values was 1 a judgment (|is now 2 a judgment (",
    ),
    (dict(processing_class=other_tokenizer()), "tokenizer was 59 tokens (|is now 59 tokens ("),
    (dict(model=tiny.model(seed=1)), "reference was "),
    (dict(model=other_rope()), "configuration of the model was |reference was "),
    (dict(peft_config=lora()), "adapter was None, is now {'default': "),
    (dropping(0.3), "dropout of the adapter was {'default': 0.05}, is now {'default': 0.3}"),
    (dict(bias="pooled"), "bias was shared_mean, is now pooled|parts of theta was mean, deviation, "),
    (dict(gold_annotators=["person 1"]), "gold_annotators was none, is now ann_"),
    (dict(objective=DiscountedTail(0.5)), "objective was VoteWeights, is now DiscountedTail alpha=0.5"),
    (dict(bf16=True), "precision was "),
    (dict(beta=0.5, adam_epsilon=1e-6), "beta was 0.1, is now 0.5|adam_epsilon was 1e-08, is now 1e-06"),
]


@pytest.mark.parametrize(("options", "told"), CHANGES, ids=lambda given: next(iter(given)))
def test_a_changed_fact_is_named_and_stops_the_run(tmp_path, options, told):
    before = trainer(tmp_path, **SHORT | (dropping(0.05) if "disable_dropout" in options else {}))
    now = trainer(tmp_path, **SHORT | options)
    found = "; ".join(describe_changes(before.facts, now.facts).values())
    assert all(part in found for part in told.split("|")), found


def test_facts_equal_the_facts_of_the_checkpoint(tmp_path):
    run = trainer(tmp_path, **SAVED)
    assert json.loads(json.dumps(run.facts)) == run.facts
    assert set(run.facts) == FACTS
    shuffled = replace(
        run.judgments, annotators=run.judgments.annotators.iloc[::-1].reset_index(drop=True)
    )
    assert trainer(tmp_path, shuffled).facts["annotators"] != run.facts["annotators"]
    runs = [trainer(tmp_path, bias="pooled", bias_term=with_fixed(n)) for n in (0.0, 0.5, 1.0)]
    fixed = [run.facts["fixed part of theta"] for run in runs]
    assert fixed[0] == "none" and len(set(fixed)) == 3 and runs[0].facts["bias"] == "shared_mean"
    found = describe_changes({"beta": 0.1, "old": 1}, {"beta": 0.1, "new": 2})
    assert found == {"new": "new was None, is now 2", "old": "old was 1, is now None"}


def test_only_the_code_may_change_and_only_if_it_is_allowed(folder, monkeypatch, caplog):
    monkeypatch.setattr(module, "read_package_versions", lambda names: {"torch": "0.0"})
    told = refusal(trainer(folder, **SAVED), allow_changed=["beta"])
    assert told.startswith("allow_changed contains beta;")
    told = refusal(trainer(folder, **SAVED | {"max_steps": 3}), allow_changed=["code"])
    assert "max_steps was 4, is now 3. Restore the settings of the checkpoint" in told
    trainer(folder, **SAVED).train(resume_from_checkpoint=True, allow_changed=["code"])
    assert "resumed with an allowed change: code was" in caplog.text
    monkeypatch.setenv("BADPO_PSEUDONYM_KEY", "the key of another machine")
    told = refusal(trainer(folder, **SAVED))
    assert "pseudonym key was" in told and "Copy the pseudonym key from the machine that" in told


def test_a_run_is_extended_from_a_checkpoint_in_the_folder_of_trl(tmp_path, caplog):
    """With a constant learning rate, the weights equal those of a run with the longer schedule."""
    constant = {"lr_scheduler_type": "constant"}
    short, whole = tmp_path / "short", tmp_path / "whole"
    trainer(short, **SAVED | constant).train()
    longer = trainer(short, **SAVED | constant | {"max_steps": 6})
    longer.train(resume_from_checkpoint=str(short / "checkpoint-4"))
    assert "the resumed run has a schedule of the new length: max_steps was 4, is now 6" in caplog.text
    reference = trainer(whole, **SAVED | constant | {"max_steps": 6})
    reference.train()
    for ours, other in zip(longer.model.parameters(), reference.model.parameters(), strict=True):
        assert torch.equal(ours, other)
    assert torch.equal(longer.bias.theta(), reference.bias.theta())
    assert longer.state.total_flos == reference.state.total_flos > 0


def test_the_log_is_flushed_before_the_manifest_is_written(tmp_path, monkeypatch):
    flushed: list[str] = []
    (tmp_path / "log.jsonl").write_text("{}")
    monkeypatch.setattr(module, "flush_to_disk", lambda path: flushed.append(path.name))
    monkeypatch.setattr(module, "_write_manifest", lambda *_: flushed.append("seal"))
    module.mark_run_complete(tmp_path)
    assert flushed == ["log.jsonl", "seal"]


# -- what a resumed run goes on with -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_comparisons", "step", "objective", "options"),
    [
        (8, 4, VoteWeights, {}),  # in the second epoch
        (24, 4, VoteWeights, {"model": tiny.mixture_of_experts}),
        (24, 4, VoteWeights, {"peft_config": lora()}),
        (24, 4, VoteWeights, {"peft_config": lora(init_lora_weights="pissa")}),
        (24, 4, lambda: SampledTokens(seed=7), {}),
        (24, 4, lambda: GroupWeights([0, 0, 1, 1, 2], eta=0.5), {}),
        # the resumed checkpoint is the last one
        (24, 8, VoteWeights, {}),
        (24, 8, VoteWeights, {"save_strategy": "epoch"}),
    ],
)
def test_a_resumed_run_equals_the_uninterrupted_run_bit_by_bit(
    tmp_path, n_comparisons, step, objective, options
):
    def prepared(folder):
        settings = SAVED | {"max_steps": 8} | options
        settings |= {"model": options.get("model", tiny.model)()}
        return trainer(folder, judgments(n_comparisons=n_comparisons), objective=objective(), **settings)

    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    run = prepared(whole)
    run.train()
    # the resumed run has no cached reference
    shutil.copytree(whole / "checkpoints", resumed / "checkpoints")
    (resumed / "log.jsonl").write_text((whole / "log.jsonl").read_text() + '{"st')
    asked = resumed / "checkpoints" / f"checkpoint-{step}"
    sealed = (asked / MARKER).stat().st_mtime_ns
    if step < 8:
        (resumed / "checkpoints" / "checkpoint-8" / "of another future").touch()
    other = prepared(resumed)
    other.train(resume_from_checkpoint=str(asked))
    assert same_weights(other, run) and torch.equal(other.bias.theta(), run.bias.theta())
    assert (resumed / "log.jsonl").read_text() == (whole / "log.jsonl").read_text()
    assert other.first_margin == run.first_margin is not None
    assert steps(resumed / "checkpoints") == steps(whole / "checkpoints")
    assert (asked / MARKER).stat().st_mtime_ns == sealed
    assert not list(resumed.rglob("of another future"))


def test_a_damaged_later_checkpoint_is_deleted_and_the_resumed_one_is_kept(folder):
    """If the damaged checkpoint counted as the newest one, each new checkpoint would be deleted."""
    newest = folder / "checkpoints" / "checkpoint-4"
    (newest / "model.safetensors").write_bytes(b"torn")
    options = SAVED | dict(save_steps=1, save_total_limit=1)
    trainer(folder, **options).train(resume_from_checkpoint=True)
    assert steps(folder / "checkpoints") == [4]
    assert find_damage(newest) is None


def test_an_incomplete_checkpoint_of_a_killed_process_is_replaced(tmp_path):
    stale = tmp_path / "checkpoints" / "checkpoint-2"
    stale.mkdir(parents=True)
    (stale / "adapter_model.safetensors").write_bytes(b"of another run")
    trained(tmp_path, **SHORT)
    assert find_damage(stale) is None and not (stale / "adapter_model.safetensors").exists()
    with pytest.raises(ConfigError, match="contains checkpoints of a run; continue this run"):
        trainer(tmp_path, **SAVED).train()


def test_without_a_complete_checkpoint_all_reasons_are_reported(folder):
    first, second = (folder / "checkpoints" / f"checkpoint-{step}" for step in (2, 4))
    (first / "optimizer.pt").write_bytes(b"")
    (second / MARKER).unlink()
    run = trainer(folder, **SAVED)
    told = refusal(run)
    assert "checkpoint-2/optimizer.pt is damaged" in told and "checkpoint-4 was not finished" in told
    assert "is damaged (its checksum does not match); resume from another" in refusal(run, str(first))
    assert "best is not a checkpoint of a run; give a folder" in refusal(run, str(folder / "best"))


def test_the_initial_values_of_a_new_adapter_follow_the_seed(tmp_path):
    runs = []
    for n in (3, 5):
        torch.rand(n)
        runs.append(trainer(tmp_path / str(n), peft_config=lora()))
    assert same_weights(*runs)


@pytest.mark.parametrize(
    ("at", "told", "saved"),
    [("before", "", []), ("while", "stopped after step 1; resume with: badpo train --resume", [1])],
)
def test_sigterm_saves_a_checkpoint_after_training_has_started(tmp_path, at, told, saved):
    class Told(TrainerCallback):
        def on_step_begin(self, *args, **kwargs):
            os.kill(os.getpid(), signal.SIGTERM)

    run, before = trainer(tmp_path, **SAVED | {"save_steps": 100}), signal.getsignal(signal.SIGTERM)
    run.add_callback(Told())
    with pytest.raises(KeyboardInterrupt) as stopped, save_on_sigterm(run, "badpo train --resume"):
        if at == "before":
            os.kill(os.getpid(), signal.SIGTERM)
        run.train()
    assert str(stopped.value) == told and signal.getsignal(signal.SIGTERM) == before
    assert steps(tmp_path / "checkpoints") == saved
