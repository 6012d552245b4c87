"""BADPOConfig: defaults of TRL, fixed values and refused values."""

import dataclasses
import warnings

import numpy as np
import pytest
import torch
import yaml
from trl import DPOConfig

from badpo.data.privacy import pseudonyms
from badpo.data.problems import ConfigError
from badpo.objective.bias import VARIANTS
from badpo.training import config as config_module
from badpo.training.batches import BATCHING
from badpo.training.config import CHOICES, FIXED, RENAMED, BADPOConfig
from badpo.training.recipe import BiasBlock
from badpo.training.supervised import supervised_arguments
from tests.training.tiny_runs import lora, trained


def arguments(tmp_path, **values) -> BADPOConfig:
    return BADPOConfig(str(tmp_path / "run"), use_cpu=True, **values)


def test_defaults_equal_the_defaults_of_trl():
    ours, theirs = (
        {field.name: field.default for field in dataclasses.fields(kind)}
        for kind in (BADPOConfig, DPOConfig)
    )
    assert set(theirs) <= set(ours), "a key of TRL's that a recipe answers and Python does not"
    shared = set(theirs) - {*FIXED, "output_dir", "ddp_find_unused_parameters"}
    assert {"learning_rate", "logging_steps", "bf16", "beta", "max_length"} <= shared
    assert {name: ours[name] for name in shared} == {name: theirs[name] for name in shared}


def test_values_of_trl_and_bf16_on_a_cpu_are_accepted(tmp_path):
    given = dict(padding_free=True, dataset_num_proc=4, warmup_ratio=0.1, seed=np.int64(3))
    neutral = dict(loss_type="sigmoid", truncation_mode="keep_start", f_divergence_type="reverse_kl")
    args = arguments(tmp_path, **given, **neutral, precompute_ref_log_probs=True)
    assert args.warmup_steps == 0.1 and args.ddp_find_unused_parameters is False
    assert arguments(tmp_path, ddp_find_unused_parameters=True).ddp_find_unused_parameters is True
    assert BADPOConfig(use_cpu=True).output_dir == "runs/badpo"
    assert arguments(tmp_path, bf16=True).mixed_precision_name == "bf16-autocast"
    fields = [("who", str, dataclasses.field(default=None)), ("whose", "NotYet", None)]
    assert dataclasses.make_dataclass("Own", fields, bases=(BADPOConfig,))(use_cpu=True).who is None


def test_trackers_get_no_token_no_path_and_no_gold_annotators(tmp_path):
    asked = {"token": "hf_secret", "cache_dir": str(tmp_path / "hub")}
    gold = dict(gold_annotators=np.array(["person 1", 7, "person 1"], dtype=object))
    args = arguments(tmp_path, model_init_kwargs=asked, hub_token="hf_secret", **gold)
    assert args.gold_annotators == pseudonyms(["person 1", "7"])
    told, kept = args.to_json_string(), args.to_dict()
    assert "hf_secret" not in told and "person 1" not in told and str(tmp_path) not in told
    assert kept["output_dir"] == "run" and "gold_annotators" not in kept and BADPOConfig(**kept).use_cpu


def test_fixed_values_stay_fixed(tmp_path):
    args = arguments(tmp_path, **dict.fromkeys(FIXED, True) | {"hub_strategy": "every_save"})
    assert {name: getattr(args, name) for name in FIXED} == FIXED


def test_choices_equal_the_implemented_values():
    named, nothing = BiasBlock.model_fields["variant"].annotation.__args__
    assert named.__args__ == CHOICES["bias"] == tuple(VARIANTS) and nothing is type(None)
    assert CHOICES["batching"] == BATCHING


REFUSALS = """
beta: 0.0 -> beta is 0.0; it must be larger than 0
beta: .nan -> beta must be a number, not nan; the default is beta=0.1
beta: "0.1" -> beta must be a number, not str
seed: true -> seed must be a whole number, not bool
model_init_kwargs: 5 -> must be a dict or text, not int
save_strategy: often -> transformers refuses these arguments: often is not
gradient_accumulation_steps: 0 -> it must be at least 1
beta: 1.0e+30 -> beta is 1e+30; it must be larger than 0 and at most 100
learning_rate: 1.0e+30 -> learning_rate is 1e+30; it must be between 0 and 10
bias_learning_rate: 1.0e+30 -> bias_learning_rate is 1e+30
max_length: 1 -> max_length is 1
max_prompt_length: 100 -> requires encoding: paper
encoding: paper, max_length: 100, max_prompt_length: 100 -> between 1 and max_length - 1 = 99
bias: none, warm_start: offline -> warm_start=offline requires a learned bias
bias: none, warm_start: audit -> warm_start=audit requires a learned bias
bias: none, gold_annotators: [p1] -> gold_annotators needs a learned bias
warm_start: audit, gold_annotators: [p1] -> audit cannot be combined with gold_annotators
gold_annotators: p1 -> must be a list of annotators; write [id]
gold_annotators: 5 -> must be a list of annotators
sync_ref_model: true -> sync_ref_model: True is refused: the bias is measured from a fixed reference; set `false`
f_divergence_type: forward_kl -> set `reverse_kl`, or take `trl.DPOTrainer`
label_smoothing: 0.1 -> set `0`; with `loss_type` `robust` or `exo_pair` in Python `badpo.trl.Bias
use_weighting: true -> set `false`; in Python `badpo.trl.BiasAdjustedDPOTrainer` takes it
warmup_ratio: 0.1, warmup_steps: 5 -> warmup_ratio and warmup_steps set the same
truncation_mode: keep_end -> in Python `badpo.trl.BiasAdjustedDPOTrainer` takes `keep_end`
hub_strategy: checkpoint -> hub_strategy: checkpoint is refused: checkpoints hold the estimates
"""


@pytest.mark.parametrize("case", REFUSALS.strip().splitlines())
def test_an_unsupported_value_is_refused(tmp_path, case):
    values, message = case.split(" -> ")
    with pytest.raises(ConfigError) as caught:
        arguments(tmp_path, **yaml.safe_load(f"{{{values}}}"))
    assert message in str(caught.value)


def test_all_errors_are_reported_together_and_an_unknown_choice_with_the_choices(tmp_path):
    with pytest.raises(ConfigError) as caught:
        arguments(tmp_path, beta=-1.0, auto_find_batch_size=True, **dict.fromkeys(CHOICES, "other"))
    said = str(caught.value).splitlines()
    choices = {f'{name} is "other"; choose one of {", ".join(CHOICES[name])}' for name in CHOICES}
    assert choices < set(said) and len(said) == len(CHOICES) + 2


BF16 = [(None, True, False, True), (None, False, False, False), (True, False, False, False)]
BF16 += [(False, False, False, False), (None, True, True, False)]


@pytest.mark.parametrize(("asked", "device_has_it", "fp16", "expected"), BF16)
def test_bf16_follows_the_device(tmp_path, monkeypatch, asked, device_has_it, fp16, expected):
    monkeypatch.setattr(config_module, "is_torch_bf16_gpu_available", lambda: device_has_it)
    monkeypatch.setattr(config_module.TrainingArguments, "__post_init__", lambda self: None)
    assert BADPOConfig(str(tmp_path), bf16=asked, fp16=fp16).bf16 is expected


def test_checkpointing_raises_no_warning_and_keeps_explicit_values(tmp_path):
    # an older Trainer has only the old name
    newest = RENAMED["gradient_checkpointing"]
    newest = newest if hasattr(BADPOConfig, newest) else "gradient_checkpointing"
    reentrant = {"use_reentrant": True}
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        default = arguments(tmp_path)
        off = [arguments(tmp_path, **{n: False}) for n in (newest, "gradient_checkpointing")]
        asked = arguments(tmp_path, gradient_checkpointing_kwargs=reentrant)
        trained(tmp_path, gradient_checkpointing=True, peft_config=lora(), max_steps=1)
    assert default.gradient_checkpointing is True
    assert default.gradient_checkpointing_kwargs == {"use_reentrant": False}
    assert [args.gradient_checkpointing for args in off] == [False, False]
    assert asked.gradient_checkpointing_kwargs == reentrant


def test_a_device_without_float64_is_not_used(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert BADPOConfig(str(tmp_path)).use_cpu
    assert supervised_arguments(tmp_path).use_cpu
