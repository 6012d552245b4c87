"""Going on from a checkpoint: what may not change, what may, and theta taken up by name."""

from __future__ import annotations

import json
from dataclasses import replace

import pandas as pd
import pytest
import torch
from transformers import TrainerCallback

from badpo.attributes import Length, Markdown
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError
from badpo.objective.bias import VARIANTS, BiasTerm
from badpo.training import checkpoints as resume
from badpo.training.checkpoints import (
    MARKER,
    adam_tensors,
    checkpoints,
    damage,
    load_adam_tensors,
    rows_taken_up,
    take_up,
)
from badpo.training.trainer import BADPOTrainer
from tests import tiny
from tests.training.test_trainer import config, judgments, log_lines, lora

SAVED = dict(save_strategy="steps", save_steps=2, max_steps=4)


# What a resumed run must share with the run that it continues.
OF_CONTENT = """data, annotators, pseudonym key, attributes, attribute values, parts of theta, fixed part of theta,
gold_annotators, tokenizer, reference, precision, adapter, configuration of the model, objective, code,
judgments per step"""
ARGUMENTS = """attention batching beta bias bias_learning_rate disable_dropout encoding max_length max_prompt_length
router_aux_loss_coef warm_start learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps optim optim_args
weight_decay adam_beta1 adam_beta2 adam_epsilon max_grad_norm max_steps num_train_epochs seed data_seed"""
FACTS = {*ARGUMENTS.split(), *(name.strip() for name in OF_CONTENT.split(","))}


def begun(folder, data=None, **options) -> BADPOTrainer:
    run = make(folder, data, **options)
    run.train()
    return run


def make(folder, data=None, model=None, tokenizer=None, peft_config=None, **options) -> BADPOTrainer:
    return BADPOTrainer(
        model or tiny.model(),
        args=config(folder, **(SAVED | options)),
        train_dataset=data if data is not None else judgments(),
        processing_class=tokenizer or tiny.tokenizer(),
        peft_config=peft_config,
    )


def refusal(run: BADPOTrainer, **options) -> str:
    with pytest.raises(ConfigError) as caught:
        run.train(resume_from_checkpoint=True, **options)
    return str(caught.value)


def other_tokenizer():
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = tiny.CHAT_TEMPLATE + " "
    return tokenizer


def other_rope():
    """The same weights under another rotary base."""
    model = tiny.model()
    config = type(model.config)(
        **model.config.to_dict() | {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
    )
    other = type(model)(config)
    other.load_state_dict(model.state_dict())
    return other


def more_annotators() -> Judgments:
    """The votes of `judgments`, and those of two people more."""
    table = tiny.votes()
    new = table.iloc[:6].assign(annotator=["new one", "new two"] * 3, annotator_class="second")
    return Judgments.read(pd.concat([table, new], ignore_index=True), attributes=[Length(ratio=1.5)])


# -- what may not change ---------------------------------------------------------------------------------------


def test_everything_that_has_changed_is_listed_with_both_values(tmp_path):
    begun(tmp_path)
    told = refusal(make(tmp_path, beta=0.5, seed=8, learning_rate=2e-3, adam_epsilon=1e-6, weight_decay=0.1))
    for change in (
        "beta was 0.1, is now 0.5",
        "seed was 7, is now 8",
        "learning_rate was 0.001, is now 0.002",
        "adam_epsilon was 1e-08, is now 1e-06",
        "weight_decay was 0.0, is now 0.1",
    ):
        assert change in told
    assert "--allow-changed" not in told
    assert log_lines(tmp_path)[-1]["step"] == 4


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (
            {"data": judgments(seed=1)},
            ["data was 72 judgments on 24 comparisons (", "--allow-changed data"],
        ),
        (
            {"data": judgments(n_comparisons=23)},
            ["data was 72 judgments", "is now 69 judgments on 23 comparisons"],
        ),
        (
            {"data": Judgments.read(tiny.votes(), attributes=[Length(ratio=2.0)])},
            ['attributes was {"type": "length", "name": "length", "ratio": 1.5}', '"ratio": 2.0}'],
        ),
        (
            {"data": Judgments.read(tiny.votes(), attributes=[Length(ratio=1.5), Markdown()])},
            ['"type": "markdown"', "attribute values was 1 a judgment (", "is now 2 a judgment ("],
        ),
        ({"tokenizer": other_tokenizer()}, ["tokenizer was 59 tokens (", "is now 59 tokens ("]),
        ({"model": tiny.model(seed=1)}, ["reference was "]),
        ({"model": other_rope()}, ["configuration of the model was ", "reference was "]),
        ({"peft_config": lora()}, ["adapter was None, is now {'default': "]),
        (
            {"bias": "pooled"},
            ["bias was shared_mean, is now pooled", "parts of theta was mean, deviation, is now mean"],
        ),
    ],
    ids=["votes", "fewer", "threshold", "attribute", "tokenizer", "model", "rope", "adapter", "variant"],
)
def test_what_decides_a_run_is_named(tmp_path, options, names):
    begun(tmp_path)
    told = refusal(make(tmp_path, **options))
    for name in names:
        assert name in told


# -- what may change -------------------------------------------------------------------------------------------


def test_another_version_is_refused_unless_it_is_allowed(tmp_path, monkeypatch, caplog):
    begun(tmp_path / "whole")
    folder = tmp_path / "run"
    begun(folder)
    (folder / "checkpoints" / "checkpoint-4" / MARKER).unlink()
    before = resume.package_versions(["torch"])["torch"]
    monkeypatch.setattr(resume, "package_versions", lambda names: {"torch": "0.0"})
    told = refusal(make(folder))
    assert f"torch {before}" in told and "is now torch 0.0" in told
    assert "go on with --allow-changed code" in told
    run = make(folder)
    run.train(resume_from_checkpoint=True, allow_changed=["code"])
    assert "resumed with a change that was allowed: code was" in caplog.text
    assert log_lines(folder) == log_lines(tmp_path / "whole")


class Rates(TrainerCallback):
    """The learning rates that the optimizer steps with."""

    def __init__(self):
        self.seen: list[float] = []

    def on_pre_optimizer_step(self, args, state, control, optimizer=None, **kwargs):
        self.seen.append(optimizer.param_groups[0]["lr"])


@pytest.mark.parametrize("schedule", ["constant", "linear"])
def test_a_run_can_be_made_longer_and_follows_the_schedule_of_its_new_length(tmp_path, schedule):
    options = dict(lr_scheduler_type=schedule)
    begun(tmp_path / "run", max_steps=2, **options)
    assert "go on with --allow-changed max_steps" in refusal(make(tmp_path / "run", **options))
    longer, whole = make(tmp_path / "run", **options), make(tmp_path / "whole", **options)
    rates = [Rates(), Rates()]
    for run, seen in zip((longer, whole), rates, strict=True):
        run.add_callback(seen)
    longer.train(resume_from_checkpoint=True, allow_changed=["max_steps"])
    whole.train()
    assert rates[0].seen == rates[1].seen[2:]
    logged = [[x["learning_rate"] for x in run.state.log_history if "loss" in x] for run in (longer, whole)]
    assert logged[0][2:] == logged[1][2:] == rates[0].seen
    same = [
        torch.equal(a, b) for a, b in zip(longer.model.parameters(), whole.model.parameters(), strict=True)
    ]
    assert all(same) == (schedule == "constant")


@pytest.mark.parametrize("kind", ["pissa", True])
def test_a_run_with_a_new_adapter_goes_on_from_the_same_base(tmp_path, kind):
    adapter = lora(init_lora_weights=kind)
    whole = begun(tmp_path / "whole", peft_config=adapter)
    begun(tmp_path / "run", peft_config=adapter)
    (tmp_path / "run" / "checkpoints" / "checkpoint-4" / MARKER).unlink()
    run = make(tmp_path / "run", peft_config=adapter)
    run.train(resume_from_checkpoint=True)
    assert log_lines(tmp_path / "run") == log_lines(tmp_path / "whole")
    for name, value in run.model.state_dict().items():
        assert torch.equal(value, whole.model.state_dict()[name])


def test_another_pseudonym_key_is_told_with_the_key_as_the_remedy(tmp_path, monkeypatch):
    begun(tmp_path)
    monkeypatch.setenv("BADPO_PSEUDONYM_KEY", "the key of another machine")
    told = refusal(make(tmp_path), allow_changed=["annotators", "data"])
    assert "pseudonym key was" in told and "bring the key of the machine that began the run" in told


def test_what_cannot_be_allowed_is_said(tmp_path):
    begun(tmp_path)
    assert refusal(make(tmp_path), allow_changed=["beta"]).startswith('"beta" cannot be allowed to change;')
    assert 'Did you mean "annotators"?' in refusal(make(tmp_path), allow_changed=["anotators"])
    told = refusal(make(tmp_path, more_annotators(), beta=0.2), allow_changed=["annotators", "data"])
    assert "beta was 0.1, is now 0.2" in told and "annotators was" in told


def test_new_annotators_start_at_the_pool_mean(tmp_path, caplog):
    first = begun(tmp_path)
    theta = dict(zip(first.bias.annotators, first.bias.theta().detach(), strict=True))
    run = make(tmp_path, more_annotators(), max_steps=4)
    told = refusal(run, allow_changed=["annotators"])
    assert "--allow-changed annotators --allow-changed data" in told
    run = make(tmp_path, more_annotators(), max_steps=4)
    run.train(resume_from_checkpoint=True, allow_changed=["annotators", "data"])
    found = dict(zip(run.bias.annotators, run.bias.theta().detach(), strict=True))
    assert len(found) == 7 and "2 annotators are new and start at the pool mean" in caplog.text
    for name, value in theta.items():
        torch.testing.assert_close(found[name], value)
    mean = torch.stack(list(theta.values())).mean(dim=0)
    for name in found.keys() - theta.keys():
        torch.testing.assert_close(found[name], mean, rtol=0, atol=1e-6)


@pytest.mark.parametrize("variant", list(VARIANTS)[1:])
def test_theta_is_taken_up_by_name(variant):
    people, labels = ["ann_a", "ann_b", "ann_c"], ["x", "x", "y"]
    saved = BiasTerm(["length"], people, VARIANTS[variant], annotator_class=labels)
    torch.manual_seed(0)
    for parameter in saved.parameters():
        torch.nn.init.normal_(parameter)
    again = BiasTerm(["length"], people[::-1], VARIANTS[variant], annotator_class=labels[::-1])
    assert take_up(again, saved) == []
    assert torch.equal(again.theta(), saved.theta().flip(0))


def test_moments_follow_their_annotators():
    saved = BiasTerm(["length"], ["ann_a", "ann_b"], VARIANTS["shared_mean"])
    optimizer = torch.optim.Adam(saved.parameters())
    saved.theta()[0].sum().backward()
    optimizer.step()
    bias = BiasTerm(["length"], ["ann_new", "ann_b", "ann_a"], VARIANTS["shared_mean"])
    moved = rows_taken_up(adam_tensors(optimizer), bias, saved)
    assert moved["1.exp_avg"].flatten().tolist() == pytest.approx([0.0, 0.0, 0.1])
    load_adam_tensors(torch.optim.Adam(bias.parameters()), moved)


# -- the files -------------------------------------------------------------------------------------------------


def test_a_run_does_not_mix_with_the_checkpoints_of_another(tmp_path):
    begun(tmp_path)
    with pytest.raises(ConfigError, match="holds checkpoints of a run; continue it"):
        make(tmp_path).train()


def test_what_a_killed_process_left_unsealed_is_not_built_upon(tmp_path):
    stale = tmp_path / "checkpoints" / "checkpoint-2"
    stale.mkdir(parents=True)
    (stale / "adapter_model.safetensors").write_bytes(b"of another run")
    begun(tmp_path)
    assert damage(stale) is None and not (stale / "adapter_model.safetensors").exists()


def test_a_torn_log_is_put_back_from_the_checkpoint(tmp_path):
    begun(tmp_path / "whole", max_steps=4)
    folder = tmp_path / "run"
    begun(folder)
    (folder / "checkpoints" / "checkpoint-4" / MARKER).unlink()
    (folder / "log.jsonl").write_text('{"step": 1}\n{"st')
    make(folder).train(resume_from_checkpoint=True)
    assert (folder / "log.jsonl").read_bytes() == (tmp_path / "whole" / "log.jsonl").read_bytes()


def test_a_damaged_later_checkpoint_does_not_cost_the_one_that_was_resumed(tmp_path):
    """It is of a later step: kept as the newest of one, it would have every new one deleted."""
    begun(tmp_path, save_total_limit=2)
    newest = tmp_path / "checkpoints" / "checkpoint-4"
    (newest / "model.safetensors").write_bytes(b"torn")
    make(tmp_path, save_steps=1, save_total_limit=1).train(resume_from_checkpoint=True)
    assert [path.name for path in checkpoints(tmp_path / "checkpoints")] == ["checkpoint-4"]
    assert damage(newest) is None


def test_a_named_checkpoint_must_be_whole_too(tmp_path):
    begun(tmp_path)
    named = tmp_path / "checkpoints" / "checkpoint-2"
    (named / "optimizer.pt").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"checkpoint-2/optimizer.pt is damaged .* resume from another"):
        make(tmp_path).train(resume_from_checkpoint=str(named))


def test_when_nothing_is_whole_every_reason_is_told(tmp_path):
    begun(tmp_path)
    for path in checkpoints(tmp_path / "checkpoints"):
        content = json.loads((path / MARKER).read_text())
        (path / MARKER).write_text(json.dumps({**content, "facts": {**content["facts"], "beta": 0.2}}))
    told = refusal(make(tmp_path))
    assert "checkpoint-2/complete.json is damaged" in told and "checkpoint-4/complete.json is damaged" in told


def test_a_new_adapter_starts_at_the_values_of_the_seed(tmp_path):
    torch.rand(3)
    one = make(tmp_path / "one", peft_config=lora())
    torch.rand(5)
    other = make(tmp_path / "other", peft_config=lora())
    for p, q in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(p, q)


def test_facts_are_what_is_read_back(tmp_path):
    run = make(tmp_path, more_annotators())
    assert json.loads(json.dumps(run.facts)) == run.facts
    assert set(run.facts) == FACTS
    shuffled = replace(run.judgments, annotators=run.judgments.annotators.iloc[::-1].reset_index(drop=True))
    assert make(tmp_path, shuffled).facts["annotators"] != run.facts["annotators"]


def test_another_fixed_theta_is_another_run(tmp_path):
    people = judgments().annotators["pseudonym"].tolist()
    facts = [
        BADPOTrainer(
            tiny.model(),
            args=config(tmp_path, **SAVED),
            train_dataset=judgments(),
            processing_class=tiny.tokenizer(),
            bias=BiasTerm(["length"], people, ["mean"], fixed=torch.tensor([value])),
        ).facts["fixed part of theta"]
        for value in (0.0, 0.5, 1.0)
    ]
    assert len(set(facts)) == 3
