"""badpo loads models of other people without running code from their folders."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from huggingface_hub import constants
from peft import LoraConfig, get_peft_model
from transformers import CONFIG_MAPPING
from trl import DPOConfig

from badpo.data.problems import ConfigError
from badpo.runs.start import load_model
from badpo.training import model_files
from badpo.training.model_files import (
    find_outside_names,
    load_adapter,
    load_tokenizer,
    load_weights,
    require_data,
)
from badpo.training.recipe import ModelChoice
from badpo.training.trainer import BADPOTrainer
from badpo.trl import BiasAdjustedDPOTrainer
from tests import tiny
from tests.runs.recipes import Owned, save_model
from tests.training.tiny_runs import PLAIN, config, judgments, lora


@pytest.fixture
def model_folder(tmp_path) -> Path:
    return save_model(tmp_path / "model")


def write_keys(folder: Path, file: str = "config", **keys: object) -> None:
    path = folder / f"{file}.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**before, **keys}))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "adapter_model.bin"])
@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_weights_in_a_pickle_are_not_opened(tmp_path, model_folder, name, dtype):
    """This holds even if the configuration has no dtype, so that transformers would read it from the weights."""
    for path in model_folder.glob("*.safetensors"):
        path.unlink()
    torch.save(Owned(tmp_path / "owned"), model_folder / name)
    write_keys(model_folder, dtype=None, torch_dtype=None)
    if name.startswith("adapter"):
        (model_folder / "adapter_config.json").write_text('{"base_model_name_or_path": "x"}')
    with pytest.raises(ConfigError, match=rf"{name}.*save_pretrained"):
        load_model(str(model_folder), ModelChoice(model_name_or_path=str(model_folder), dtype=dtype))
    assert not (tmp_path / "owned").exists()


def save_adapter(folder: Path, **keys: object) -> Path:
    """Save a new adapter in a folder, and replace some keys of its configuration."""
    get_peft_model(tiny.model(), lora()).save_pretrained(folder)
    write_keys(folder, "adapter_config", **keys)
    return folder


# Settings of transformers 5.23 that name a kernel, a file, another configuration, a repository or a checkpoint.
SETTINGS = [
    ("config", {"attn_implementation": "someone/kernel"}),
    ("config", {"_attn_implementation": "someone/kernel"}),
    ("config", {"_attn_implementation_internal": "another_word"}),
    ("config", {"text_config": {"attn_implementation": {"": "sdpa", "vision": "a/kernel@main:f"}}}),
    ("config", {"experts_implementation": "sonicmoe"}),
    ("config", {"transformers_weights": "adapter_model.bin"}),
    ("config", {"transformers_weights": "model.safetensors.bin"}),
    ("config", {"transformers_weights": "../other/model.safetensors"}),
    ("config", {"configuration_files": ["config.5.0.0.json"]}),
    ("config", {"vision_config": {"backbone": "someone/model", "use_pretrained_backbone": True}}),
    ("config", {"vision_config": {"architecture": "hf-hub:someone", "model_args": {}}}),
    ("config", {"vision_config": {"model_args": {"checkpoint_path": "x/weights.pt"}}}),
    ("generation_config", {"custom_generate": "someone/model"}),
    ("tokenizer_config", {"fast_tokenizer_files": ["tokenizer.5.0.0.json"]}),
    ("tokenizer_config", {"init_inputs": ["/etc/hostname"]}),
    ("tokenizer_config", {"sudachi_kwargs": {"sudachi_config_path": "m/plugin.json"}}),
    ("special_tokens_map", {"vocab_file": "/etc/hostname"}),
    ("tokenizer_config", {"chat_template": {"default": "x", "../../x": "y"}}),
    ("tokenizer_config", {"chat_template": [{"name": "../../x", "template": "y"}]}),
    ("config", {"dtype": "os"}),
    ("config", {"text_config": {"torch_dtype": "os"}}),
    ("processor_config", {"audio_tokenizer": {"audio_tokenizer_name_or_path": "someone/model"}}),
]


@pytest.mark.parametrize("has_adapter", [False, True])
@pytest.mark.parametrize(("file", "keys"), SETTINGS)
def test_settings_that_name_code_a_file_or_a_repository_are_refused(
    model_folder, file, keys, has_adapter
):
    if has_adapter:
        save_adapter(model_folder)
    write_keys(model_folder, file, **keys)
    choice = ModelChoice(model_name_or_path=str(model_folder))
    for load in (load_weights, load_tokenizer, lambda folder: load_model(str(folder), choice)):
        with pytest.raises(ConfigError, match=rf"{file}\.json"):
            load(model_folder)


@pytest.mark.parametrize("loader", [BiasAdjustedDPOTrainer, load_model])
def test_a_trained_model_does_not_name_the_code_that_its_base_names(tmp_path, model_folder, loader):
    classes = {
        "auto_map": {"AutoConfig": "someone/payload--hidden.C", "AutoTokenizer": ["hidden.T", None]}
    }
    nested = {"audio_config": {"inner": [classes]}, "vision_config": classes}
    write_keys(model_folder, "config", **classes, **nested)
    write_keys(model_folder, "tokenizer_config", **classes, of_mine=classes)
    write_keys(model_folder, "generation_config", **classes)
    if loader is load_model:
        model, tokenizer = load_model(
            str(model_folder), ModelChoice(model_name_or_path=str(model_folder))
        )
    else:
        rows = Dataset.from_list([{"prompt": "the ", "chosen": "cat ran home", "rejected": "cat"}])
        args = DPOConfig(str(tmp_path / "run"), **PLAIN)
        trainer = loader(str(model_folder), args=args, train_dataset=rows)
        model, tokenizer = trainer.model, trainer.processing_class
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "trained")
    written = "".join(path.read_text() for path in (tmp_path / "trained").glob("*.json"))
    assert "architectures" in written and "auto_map" not in written and "payload" not in written


def test_harmless_settings_are_accepted(model_folder):
    """Tokens, templates and versions may be any text, and the default settings of models name nothing outside."""
    write_keys(
        model_folder, "config", prefix="</s>", model_type="llama", unsloth_version="2.1", dtype="float32"
    )
    tokens = {"pad_token": "</s>", "chat_template": "{{ messages[0].content }}"}
    write_keys(model_folder, "tokenizer_config", special_tokens_map_file="/x/y.json", **tokens)
    load_model(str(model_folder), ModelChoice(model_name_or_path=str(model_folder)))
    templates = [
        {"name": "default", "template": "{{ 1 / 2 }}"},
        {"name": "tool_use", "template": "{{ a.b }}"},
    ]
    by_name = {entry["name"]: entry["template"] for entry in templates}
    settings = [{"chat_template": templates}, {"chat_template": by_name}, {"dtype": "auto"}]
    assert not [*find_outside_names(settings)]
    defaults = CONFIG_MAPPING["llama"](), CONFIG_MAPPING["qwen2"](), CONFIG_MAPPING["gemma3"]()
    for default in defaults:
        assert not [*find_outside_names(json.loads(default.to_json_string(use_diff=False)))]


# Settings of peft 0.18 to 0.21 that name a module, a file, a model or a tokenizer, for each kind of adapter.
ADAPTERS = [
    {"megatron_config": {"a": 1}, "megatron_core": "mg.evil"},
    {"megatron_config": {"a": 1}},
    {"megatron_core": "mg"},
    {"corda_config": {"cache_file": "x.pt", "covariance_file": "x.pt"}},
    {"lora_ga_config": {"cache_file": "x.pt"}},
    {"peft_type": "SHADOW", "shadow_model": "someone/model"},
    {"peft_type": "XLORA", "adapters": {"a": "someone/model"}},
    {"peft_type": "PROMPT_TUNING", "tokenizer_name_or_path": "someone/model"},
    {"peft_type": "PROMPT_TUNING", "tokenizer_kwargs": {"trust_remote_code": True}},
    {"peft_type": "MULTITASK_PROMPT_TUNING", "prompt_tuning_init_state_dict_path": "x.bin"},
    {"key of a later peft": "someone/model"},
    {"base_model_name_or_path": "https://someone.example/model"},
    {"auto_mapping": {"base_model_class": "M", "parent_library": "someone.module"}},
]


@pytest.mark.parametrize("keys", ADAPTERS)
def test_an_adapter_that_names_code_is_refused_with_and_without_a_model(tmp_path, model_folder, keys):
    adapter = save_adapter(tmp_path / "adapter", **keys)
    with pytest.raises(ConfigError, match=r"adapter_config\.json"):
        load_adapter(tiny.model(), adapter)
    save_adapter(model_folder, **keys)
    with pytest.raises(ConfigError, match=r"adapter_config\.json"):
        load_weights(model_folder)


ENDLESS = [
    {"init_lora_weights": "pissa_niter_1000000000"},
    {"init_lora_weights": "olora"},
    {"peft_type": "OFT", "oft_block_size": 16, "num_cayley_neumann_terms": 10**9},
    {"peft_type": "BOFT"},
    {"peft_type": "LOHA"},
    {"peft_type": None},
    {"key_of_a_later_peft": 10**9},
    {"lora_alpha": float("nan")},
    {"lora_alpha": 1e308},
    {"alpha_pattern": {"q_proj": 1e308}},
    {"rank_pattern": {"q_proj": "8"}},
    {"lora_dropout": -1},
    {"r": True},
    {"modules_to_save": [7]},
    {"target_modules": "(.*_?)*(([a-z]+)+)+!"},
    {"exclude_modules": "(([a-z_0-9.]+)+)+!"},
    {"layers_to_transform": [0], "layers_pattern": ["(([a-z]+)+)+!"]},
    {"rank_pattern": {"(([a-z_0-9.]+)+)+!": 4}},
    {"layer_replication": [[0, 1]] * 100_000},
    {"r": 10**9},
]


@pytest.mark.parametrize("keys", ENDLESS)
def test_an_adapter_with_endless_patterns_or_too_many_layers_is_refused(tmp_path, keys):
    adapter = save_adapter(tmp_path / "adapter", **keys)
    with pytest.raises(ConfigError, match=rf'adapter_config\.json" has the setting ({"|".join(keys)})'):
        load_adapter(tiny.model(), adapter)


@pytest.mark.parametrize(
    "settings",
    [
        {"init_lora_weights": "gaussian", "use_rslora": True, "modules_to_save": ["lm_head"]},
        {"use_dora": True, "lora_alpha": 0.5, "lora_dropout": 0.1, "target_modules": "all-linear"},
        {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"^model.layers.0.self_attn.q_proj": 3}},
        {"layers_to_transform": [0], "layers_pattern": "layers", "trainable_token_indices": [1]},
        {"task_type": None, "exclude_modules": ["v_proj"], "bias": "all", "init_lora_weights": False},
    ],
)
def test_adapters_that_peft_saves_are_loaded(tmp_path, settings):
    plain = {"task_type": "CAUSAL_LM", "r": 4, "target_modules": ["q_proj", "v_proj"]}
    get_peft_model(tiny.model(), LoraConfig(**plain | settings)).save_pretrained(tmp_path / "adapter")
    assert load_adapter(tiny.model(), tmp_path / "adapter").peft_config


def test_an_adapter_without_its_weights_is_an_error(tmp_path):
    adapter = tmp_path / "adapter"
    get_peft_model(tiny.model(), LoraConfig(target_modules=["q_proj"])).save_pretrained(adapter)
    write_keys(adapter, "adapter_config", target_modules=["q_proj", "k_proj"])
    with pytest.raises(ConfigError, match="missing adapter keys"):
        load_adapter(tiny.model(), adapter)


UNUSABLE = [
    ("config", {"rope_parameters": {"rope_type": "evil"}}),
    ("config", {"hidden_act": "evil"}),
    ("config", {"num_hidden_layers": -1}),
    ("config", {"num_attention_heads": 0}),
    ("config", {"hidden_size": -8}),
    ("config", {"vocab_size": "many"}),
    ("config", {"model_type": "evil"}),
    ("generation_config", {"max_new_tokens": -1}),
    ("tokenizer_config", {"eos_token": [1]}),
    ("tokenizer", {"model": {"type": "evil"}}),
    ("tokenizer_config", {"tokenizer_class": "BertJapaneseTokenizer"}),
    ("config", {"quantization_config": {"quant_method": "gptq", "bits": 4}}),
    ("config", {"quantization_config": {"quant_method": "torchao", "quant_type": "int8"}}),
    ("tokenizer_config", {"model_max_length": "x"}),
    ("adapter_config", {"layer_replication": 7}),
    ("model.safetensors.index", {"weight_map": [1]}),
]


@pytest.mark.parametrize(("file", "keys"), UNUSABLE)
def test_an_unusable_setting_is_reported_in_one_line(model_folder, file, keys):
    if file == "adapter_config":
        save_adapter(model_folder)
    write_keys(model_folder, file, **keys)
    with pytest.raises(ConfigError, match=f"{file}.json|a file of weights") as error:
        load_model(str(model_folder), ModelChoice(model_name_or_path=str(model_folder)))
    assert "\n" not in str(error.value)


def test_harmless_adapters_are_accepted_and_their_base_model_is_inspected(tmp_path, model_folder):
    adapter = save_adapter(tmp_path / "adapter", base_model_name_or_path=str(model_folder))
    assert load_weights(adapter).peft_config and load_adapter(tiny.model(), adapter).peft_config
    write_keys(model_folder, attn_implementation="someone/kernel")
    with pytest.raises(ConfigError, match="someone/kernel"):
        load_weights(adapter)


LINKS = {
    "additional_chat_templates/tool_use.jinja": "/proc/self/environ",
    "additional_chat_templates": "../elsewhere",
    "tokenizer.json": "../elsewhere/x.jinja",
    "a/b/c": "../../../elsewhere/nothing",
    "chat_template.jinja": "to_itself",
    "to_itself": "to_itself",
}


def make_link(folder: Path, name: str, target: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(target)


@pytest.mark.parametrize("name", LINKS)
def test_a_link_out_of_the_folder_of_a_model_or_an_adapter_is_refused(tmp_path, model_folder, name):
    """Libraries follow links, and would copy private files of the user into the trained model."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "x.jinja").write_text("{}")
    adapter = save_adapter(tmp_path / "adapter", base_model_name_or_path=str(model_folder))
    make_link(model_folder, name, LINKS[name])
    for load in (load_weights, load_tokenizer, lambda folder: load_weights(adapter)):
        with pytest.raises(ConfigError, match="leads out of the model's folder") as refused:
            load(model_folder)
        assert str(model_folder / name.split("/")[0]) in str(refused.value)
    make_link(adapter, name, LINKS[name])
    with pytest.raises(ConfigError, match="leads out of the model's folder"):
        load_adapter(tiny.model(), adapter)


def test_a_pipe_is_refused_and_links_inside_the_folder_and_the_cache_are_accepted(
    tmp_path, model_folder
):
    cache = tmp_path / "models--a--b"
    snapshot = cache / "snapshots" / ("a" * 40)
    (cache / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for path in model_folder.iterdir():
        shutil.copy(path, cache / "blobs" / path.name)
        (snapshot / path.name).symlink_to(f"../../blobs/{path.name}")
    (snapshot / "again.json").symlink_to("config.json")
    (tmp_path / "short").symlink_to(snapshot)
    assert load_weights(tmp_path / "short") and load_tokenizer(snapshot)
    make_link(cache / "blobs", "config.json", "../../model/config.json")
    with pytest.raises(ConfigError, match="leads out"):
        load_weights(snapshot)
    os.mkfifo(model_folder / "pipe")
    with pytest.raises(ConfigError, match="no file"):
        load_tokenizer(model_folder)


@pytest.mark.parametrize("trainer", [BADPOTrainer, BiasAdjustedDPOTrainer])
def test_both_trainers_inspect_a_model_before_loading(tmp_path, model_folder, trainer):
    write_keys(model_folder, "tokenizer_config", init_inputs=["/etc/hostname"])
    settings = {
        BADPOTrainer: config(tmp_path),
        BiasAdjustedDPOTrainer: DPOConfig(str(tmp_path), **PLAIN),
    }
    rows = Dataset.from_list([{"prompt": "the ", "chosen": "cat ran home", "rejected": "cat"}])
    with pytest.raises(ConfigError, match="init_inputs: /etc/hostname"):
        trainer(str(model_folder), args=settings[trainer], train_dataset=rows)


def test_the_settings_of_a_model_on_the_hub_are_inspected(tmp_path, model_folder, monkeypatch):
    hub = tmp_path / "hub" / "models--someone--model"
    write_keys(model_folder, attn_implementation="someone/kernel")
    (hub / "refs").mkdir(parents=True)
    (hub / "refs" / "main").write_text("a" * 40)
    shutil.copytree(model_folder, hub / "snapshots" / ("a" * 40))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(ConfigError, match="someone/kernel"):
        load_weights("someone/model")
    with pytest.raises(ConfigError, match="neither a folder with a model nor reachable"):
        BADPOTrainer("nope/nope", args=config(tmp_path), train_dataset=judgments())


@pytest.mark.parametrize("content", ["[" * 100_000, "{", "[]", "\x00"])
def test_an_unreadable_settings_file_is_named(model_folder, content):
    (model_folder / "generation_config.json").write_text(content)
    with pytest.raises(ConfigError, match=r"generation_config\.json"):
        load_model(str(model_folder), ModelChoice(model_name_or_path=str(model_folder)))


def test_with_the_package_kernels_flash_attention_and_quantisation_are_refused(
    model_folder, monkeypatch
):
    write_keys(
        model_folder, quantization_config={"quant_method": "mxfp4"}, cache_implementation="hybrid"
    )
    require_data(str(model_folder))
    monkeypatch.setattr(model_files, "find_spec", lambda name: name == "kernels")
    with pytest.raises(ConfigError, match="mxfp4"):
        require_data(str(model_folder))
    write_keys(model_folder, quantization_config=None, attn_implementation="flash_attention_2")
    with pytest.raises(ConfigError, match="flash_attention_2"):
        require_data(str(model_folder))


def test_an_index_of_weights_that_names_a_pickle_and_a_pickled_adapter_are_refused(
    tmp_path, model_folder
):
    (model_folder / "model.safetensors").unlink()
    for name in ("pytorch_model.bin", "adapter_model.bin"):
        torch.save(Owned(tmp_path / "owned"), model_folder / name)
    (model_folder / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "adapter_model.bin"}}'
    )
    with pytest.raises(ConfigError, match=r"names adapter_model\.bin"):
        load_weights(model_folder)
    (model_folder / "model.safetensors.index.json").unlink()
    with pytest.raises(ConfigError, match="adapter_model.bin"):
        load_adapter(None, model_folder)
    assert not (tmp_path / "owned").exists()
