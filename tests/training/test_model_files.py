"""Models of others: nothing of theirs is run, whatever their folder holds."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from huggingface_hub import constants
from peft import get_peft_model
from transformers import CONFIG_MAPPING
from trl import DPOConfig

from badpo.data.problems import ConfigError
from badpo.runs.start import load_model
from badpo.training import model_files
from badpo.training.model_files import _named, load_adapter, load_tokenizer, load_weights, require_data
from badpo.training.recipe import ModelChoice
from badpo.training.trainer import BADPOTrainer
from badpo.trl import BiasAdjustedDPOTrainer
from tests import tiny
from tests.runs.recipes import Owned, save_model
from tests.training.tiny_runs import PLAIN, config, judgments, lora


@pytest.fixture
def model_folder(tmp_path) -> Path:
    return save_model(tmp_path / "model")


def configured(folder: Path, file: str = "config", **keys: object) -> None:
    path = folder / f"{file}.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**before, **keys}))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "adapter_model.bin"])
@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_weights_in_a_pickle_are_not_opened(tmp_path, model_folder, name, dtype):
    """Also where the configuration names no dtype, so that `transformers` would look for one in the weights."""
    for path in model_folder.glob("*.safetensors"):
        path.unlink()
    torch.save(Owned(tmp_path / "owned"), model_folder / name)
    configured(model_folder, dtype=None, torch_dtype=None)
    if name.startswith("adapter"):
        (model_folder / "adapter_config.json").write_text('{"base_model_name_or_path": "x"}')
    with pytest.raises(ConfigError, match=rf"{name}.*save_pretrained"):
        load_model(str(model_folder), ModelChoice(model_name_or_path=str(model_folder), dtype=dtype))
    assert not (tmp_path / "owned").exists()


def with_adapter(folder: Path, **keys: object) -> Path:
    """A folder with the files of a new adapter, and some keys of its configuration replaced."""
    get_peft_model(tiny.model(), lora()).save_pretrained(folder)
    configured(folder, "adapter_config", **keys)
    return folder


# Of transformers 5.23: whatever names a kernel, a file, another configuration, a repository or a checkpoint.
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
        with_adapter(model_folder)
    configured(model_folder, file, **keys)
    choice = ModelChoice(model_name_or_path=str(model_folder))
    for load in (load_weights, load_tokenizer, lambda folder: load_model(str(folder), choice)):
        with pytest.raises(ConfigError, match=f"{file}.json.*may name no code"):
            load(model_folder)


@pytest.mark.parametrize("loader", [BiasAdjustedDPOTrainer, load_model])
def test_a_trained_model_does_not_name_the_code_that_its_base_names(tmp_path, model_folder, loader):
    classes = {
        "auto_map": {"AutoConfig": "someone/payload--hidden.C", "AutoTokenizer": ["hidden.T", None]}
    }
    nested = {"audio_config": {"inner": [classes]}, "vision_config": classes}
    configured(model_folder, "config", **classes, **nested)
    configured(model_folder, "tokenizer_config", **classes, of_mine=classes)
    configured(model_folder, "generation_config", **classes)
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


def test_settings_in_use_are_taken(model_folder):
    """Tokens, templates and versions are texts; the defaults of every kind of model name nothing elsewhere."""
    configured(
        model_folder, "config", prefix="</s>", model_type="llama", unsloth_version="2.1", dtype="float32"
    )
    tokens = {"pad_token": "</s>", "chat_template": "{{ messages[0].content }}"}
    configured(model_folder, "tokenizer_config", special_tokens_map_file="/x/y.json", **tokens)
    load_model(str(model_folder), ModelChoice(model_name_or_path=str(model_folder)))
    templates = [
        {"name": "default", "template": "{{ 1 / 2 }}"},
        {"name": "tool_use", "template": "{{ a.b }}"},
    ]
    named = {each["name"]: each["template"] for each in templates}
    assert not [*_named([{"chat_template": templates}, {"chat_template": named}, {"dtype": "auto"}])]
    defaults = CONFIG_MAPPING["llama"](), CONFIG_MAPPING["qwen2"](), CONFIG_MAPPING["gemma3"]()
    for default in defaults:
        assert not [*_named(json.loads(default.to_json_string(use_diff=False)))]


# Of peft 0.18 to 0.21: each kind of adapter whose configuration names a module, a file, a model or a tokenizer.
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
    {"of a later peft": "someone/model"},
    {"base_model_name_or_path": "https://someone.example/model"},
    {"auto_mapping": {"base_model_class": "M", "parent_library": "someone.module"}},
]


@pytest.mark.parametrize("keys", ADAPTERS)
def test_an_adapter_that_names_code_is_refused_alone_and_beside_a_model(tmp_path, model_folder, keys):
    adapter = with_adapter(tmp_path / "adapter", **keys)
    with pytest.raises(ConfigError, match="adapter_config.json.*may name no code"):
        load_adapter(tiny.model(), adapter)
    with_adapter(model_folder, **keys)
    with pytest.raises(ConfigError, match="adapter_config.json.*may name no code"):
        load_weights(model_folder)


ENDLESS = [
    {"target_modules": "(.*_?)*(([a-z]+)+)+!"},
    {"exclude_modules": "(([a-z_0-9.]+)+)+!"},
    {"layers_to_transform": [0], "layers_pattern": ["(([a-z]+)+)+!"]},
    {"rank_pattern": {"(([a-z_0-9.]+)+)+!": 4}},
    {"layer_replication": [[0, 1]] * 100_000},
    {"r": 10**9},
]


@pytest.mark.parametrize("keys", ENDLESS)
def test_an_adapter_that_could_keep_peft_busy_for_ever_is_refused(tmp_path, keys):
    adapter = with_adapter(tmp_path / "adapter", **keys)
    with pytest.raises(ConfigError, match="adapter_config.json.*(may take for ever|at most)"):
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
    ("adapter_config", {"layer_replication": 7}),
    ("model.safetensors.index", {"weight_map": [1]}),
]


@pytest.mark.parametrize(("file", "keys"), UNUSABLE)
def test_settings_that_no_library_knows_are_one_sentence(model_folder, file, keys):
    if file == "adapter_config":
        with_adapter(model_folder)
    configured(model_folder, file, **keys)
    with pytest.raises(ConfigError, match=f"{file}.json|a file of weights") as error:
        load_model(str(model_folder), ModelChoice(model_name_or_path=str(model_folder)))
    assert "\n" not in str(error.value)


def test_adapters_in_use_are_taken_and_the_base_of_one_is_looked_at_too(tmp_path, model_folder):
    adapter = with_adapter(tmp_path / "adapter", base_model_name_or_path=str(model_folder))
    assert load_weights(adapter).peft_config and load_adapter(tiny.model(), adapter).peft_config
    configured(model_folder, attn_implementation="someone/kernel")
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


def linked(folder: Path, name: str, target: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(target)


@pytest.mark.parametrize("name", LINKS)
def test_what_leads_out_of_the_folder_of_a_model_an_adapter_or_its_base_is_refused(
    tmp_path, model_folder, name
):
    """Libraries follow links, and would copy the victim's own files into the trained model."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "x.jinja").write_text("{}")
    adapter = with_adapter(tmp_path / "adapter", base_model_name_or_path=str(model_folder))
    linked(model_folder, name, LINKS[name])
    for load in (load_weights, load_tokenizer, lambda folder: load_weights(adapter)):
        with pytest.raises(ConfigError, match="leads out of the model's folder") as refused:
            load(model_folder)
        assert str(model_folder / name.split("/")[0]) in str(refused.value)
    linked(adapter, name, LINKS[name])
    with pytest.raises(ConfigError, match="leads out of the model's folder"):
        load_adapter(tiny.model(), adapter)


def test_a_pipe_is_refused_and_links_inside_of_the_folder_and_the_cache_are_taken(
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
    linked(cache / "blobs", "config.json", "../../model/config.json")
    with pytest.raises(ConfigError, match="leads out"):
        load_weights(snapshot)
    os.mkfifo(model_folder / "pipe")
    with pytest.raises(ConfigError, match="no file"):
        load_tokenizer(model_folder)


@pytest.mark.parametrize("trainer", [BADPOTrainer, BiasAdjustedDPOTrainer])
def test_both_trainers_look_before_they_load(tmp_path, model_folder, trainer):
    configured(model_folder, "tokenizer_config", init_inputs=["/etc/hostname"])
    settings = {
        BADPOTrainer: config(tmp_path),
        BiasAdjustedDPOTrainer: DPOConfig(str(tmp_path), **PLAIN),
    }
    rows = Dataset.from_list([{"prompt": "the ", "chosen": "cat ran home", "rejected": "cat"}])
    with pytest.raises(ConfigError, match="init_inputs: /etc/hostname"):
        trainer(str(model_folder), args=settings[trainer], train_dataset=rows)


def test_of_a_model_on_the_hub_the_same_files_are_looked_at(tmp_path, model_folder, monkeypatch):
    hub = tmp_path / "hub" / "models--someone--model"
    configured(model_folder, attn_implementation="someone/kernel")
    (hub / "refs").mkdir(parents=True)
    (hub / "refs" / "main").write_text("a" * 40)
    shutil.copytree(model_folder, hub / "snapshots" / ("a" * 40))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(ConfigError, match="someone/kernel"):
        load_weights("someone/model")
    with pytest.raises(ConfigError, match="neither a folder with a model nor reachable"):
        BADPOTrainer("nope/nope", args=config(tmp_path), train_dataset=judgments())


@pytest.mark.parametrize("content", ["[" * 100_000, "{", "[]", "\x00"])
def test_settings_that_cannot_be_read_are_named(model_folder, content):
    (model_folder / "generation_config.json").write_text(content)
    with pytest.raises(ConfigError, match="damaged or not that of .*generation_config.json"):
        load_model(str(model_folder), ModelChoice(model_name_or_path=str(model_folder)))


def test_where_kernels_would_be_fetched_no_flash_attention_and_no_quantisation_is_taken(
    model_folder, monkeypatch
):
    configured(
        model_folder, quantization_config={"quant_method": "mxfp4"}, cache_implementation="hybrid"
    )
    require_data(str(model_folder))
    monkeypatch.setattr(model_files, "find_spec", lambda name: name == "kernels")
    with pytest.raises(ConfigError, match="mxfp4"):
        require_data(str(model_folder))
    configured(model_folder, quantization_config=None, attn_implementation="flash_attention_2")
    with pytest.raises(ConfigError, match="flash_attention_2"):
        require_data(str(model_folder))


def test_a_list_of_safetensors_that_names_a_pickle_and_an_adapter_in_one_are_refused(
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
