"""Models of others: nothing of theirs is run, whatever their folder holds."""

import json
from pathlib import Path

import pytest
import torch

from badpo.data.problems import ConfigError
from badpo.runs.start import load_model
from badpo.training import trl_keys
from badpo.training.model_files import load_adapter, load_weights, require_data
from badpo.training.recipe import ModelChoice
from tests.runs.recipes import Owned, save_model


@pytest.fixture
def model_folder(tmp_path) -> Path:
    return save_model(tmp_path / "model")


def configured(folder: Path, **keys: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))


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


@pytest.mark.parametrize(
    "keys",
    [
        {"attn_implementation": "someone/kernel"},
        {"text_config": {"attn_implementation": {"": "sdpa", "vision": "someone/kernel@main:f"}}},
        {"experts_implementation": "sonicmoe"},
        {"transformers_weights": "adapter_model.bin"},
    ],
)
def test_a_configuration_that_asks_for_a_kernel_or_a_pickle_is_refused(model_folder, keys):
    configured(model_folder, **keys)
    with pytest.raises(ConfigError, match="hand it to BADPOTrainer"):
        load_weights(model_folder)


def test_where_kernels_would_be_fetched_no_flash_attention_and_no_quantisation_is_taken(
    model_folder, monkeypatch
):
    configured(
        model_folder, quantization_config={"quant_method": "mxfp4"}, cache_implementation="hybrid"
    )
    require_data(str(model_folder))
    monkeypatch.setattr(trl_keys, "find_spec", lambda name: name == "kernels")
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
