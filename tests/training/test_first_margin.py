"""A run starts at its reference, whatever adapter it has, or stops; what cannot be trained is refused before."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from badpo.data.problems import ConfigError
from badpo.training.trainer import BADPOTrainer
from tests import tiny
from tests.training.test_trainer import log_lines, lora, trainer


def run_of(folder, **options) -> BADPOTrainer:
    return trainer(folder, **({"max_steps": 1} | options))


def with_trained_adapter(**options):
    """A model whose adapter has learned something: a start at zero would hide that the adapter is dropped."""
    from peft import get_peft_model

    return get_peft_model(tiny.model(), lora(init_lora_weights=False, **options))


@pytest.fixture
def adapter_folder(tmp_path):
    """A trained adapter as its own folder, beside the base that the folder names."""
    base, folder = tmp_path / "base", tmp_path / "adapter"
    tiny.model().save_pretrained(base)
    model = with_trained_adapter()
    model.peft_config["default"].base_model_name_or_path = str(base)
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("kind", [True, "pissa", "olora"])
def test_an_adapter_that_changes_the_base_is_its_own_reference_and_leaves_no_values_to_others(
    tmp_path, kind, bf16
):
    options = dict(bf16=bf16, reference_cache=str(tmp_path / "cache"))
    adapted = run_of(tmp_path / "adapter", peft_config=lora(init_lora_weights=kind), **options)
    adapted.train()
    whole = run_of(tmp_path / "whole", **options)
    whole.train()
    assert (whole.reference_cache.n_computed == 0) == (kind is True)
    for name in ("adapter", "whole"):
        first = log_lines(tmp_path / name)[0]
        assert first["loss"] == pytest.approx(math.log(2), abs=1e-3 if bf16 else 1e-6)


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
def test_an_adapter_given_as_the_start_is_trained_on_and_is_the_reference(tmp_path, bf16):
    model = with_trained_adapter()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    run = run_of(tmp_path, model=model, bf16=bf16)
    of_the_start = run.reference_logps(run.train_dataset)
    run.train()
    assert run.first_margin.difference <= run.first_margin.tolerance
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved and all("lora_" in name for name in moved)
    plain = run_of(tmp_path / "base", bf16=bf16)
    base = plain.reference_logps(plain.train_dataset)
    assert np.abs(of_the_start[0] - base[0]).max() > 0.1


def read_adapter(folder):
    from peft import PeftModel

    return PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder.parent / "base"), folder)


REFUSED = {
    "an adapter and a new one": (lambda _: dict(model=with_trained_adapter(), peft_config=lora()), "already"),
    "a folder and a new one": (lambda folder: dict(model=str(folder), peft_config=lora()), "already"),
    "a folder": (lambda folder: dict(model=str(folder)), "loaded to be used"),
    "an adapter for use": (lambda folder: dict(model=read_adapter(folder)), "is_trainable=True"),
    "frozen": (lambda _: dict(model=tiny.model().requires_grad_(False)), "requires_grad is off"),
    "drawn anew": (lambda _: dict(peft_config=lora(init_lora_weights="pissa_niter_4")), "use pissa"),
}


def test_a_reference_may_be_named(tmp_path):
    tiny.model(seed=1).save_pretrained(tmp_path / "other")
    named = run_of(tmp_path / "named", ref_model=str(tmp_path / "other"))
    given = run_of(tmp_path / "given", ref_model=tiny.model(seed=1))
    assert named.reference_cache.key == given.reference_cache.key


@pytest.mark.parametrize("peft_config", [None, lora()], ids=["the same", "an adapter's base"])
def test_a_reference_that_would_move_with_the_policy_is_refused(tmp_path, peft_config):
    model = tiny.model()
    with pytest.raises(ConfigError, match="the reference would move with the policy"):
        run_of(tmp_path, model=model, ref_model=model, peft_config=peft_config)


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_trained_is_refused_before_the_reference_is_computed(tmp_path, adapter_folder, case):
    start, told = REFUSED[case]
    with pytest.raises(ConfigError, match=told):
        run_of(tmp_path / "run", **start(adapter_folder))


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
def test_values_of_another_model_in_the_cache_stop_the_run(tmp_path, bf16, monkeypatch):
    monkeypatch.setattr("badpo.training.trainer.weights_key", lambda model, numerics: "one key for all")
    options = dict(bf16=bf16, reference_cache=str(tmp_path / "cache"))
    run_of(tmp_path / "first", **options).train()
    nearly = tiny.model()
    with torch.no_grad():
        for parameter in nearly.parameters():
            parameter.mul_(1.1)
    second = run_of(tmp_path / "second", model=nearly, **options)
    with pytest.raises(ConfigError, match=r"differ from the reference's .*/one key for all-\w+ holds values"):
        second.train()
    assert second.first_margin.difference > second.first_margin.tolerance


def test_differences_that_cancel_in_the_mean_margin_stop_the_run(tmp_path):
    run = run_of(tmp_path)
    values = run.reference_logps(run.train_dataset)
    run.train_dataset.reference = [side + 0.01 * (-1.0) ** np.arange(len(side)) for side in values]
    with pytest.raises(ConfigError, match="differ from the reference's"):
        run.train()
    assert abs(run.first_margin.mean) < 1e-3


@pytest.mark.parametrize("differs", [True, False])
def test_a_reference_that_is_given_may_differ_and_is_named(tmp_path, caplog, differs):
    run = run_of(tmp_path, ref_model=tiny.model(seed=1 if differs else 0))
    run.train()
    said = [record.getMessage() for record in caplog.records if "W152" in record.getMessage()]
    assert [found.code for found in run.findings] == ["W152"] * differs
    assert len(said) == differs
    assert all("leave ref_model out" in sentence for sentence in said)
    run.save_model()
    recorded = json.loads((tmp_path / "bias.json").read_text())["extra"]["first_margin"]
    assert (recorded["difference"] > recorded["tolerance"]) == differs


def test_dropout_that_was_asked_for_is_no_reason_to_stop(tmp_path):
    run = run_of(tmp_path, model=with_trained_adapter(lora_dropout=0.5), disable_dropout=False)
    run.train()
    assert [found.code for found in run.findings] == ["W152"]
