"""Models of others as data: their weights from safetensors only, no code beside them, no kernels from a hub."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, PreTrainedConfig
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME
from transformers.utils.hub import has_file
from transformers.utils.peft_utils import find_adapter_config_file

from badpo.data.problems import ConfigError
from badpo.training.trl_keys import implementations, kernels_are_fetched

ADAPTER_WEIGHTS = "adapter_model.safetensors"
WEIGHTS = (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME)


def load_weights(name: str | Path, auto_class: Any = AutoModelForCausalLM, **options: Any) -> Any:
    """A model by its folder or its name on the Hub, with the options of ``from_pretrained``."""
    require_data(str(name), options.get("revision", "main"))
    return auto_class.from_pretrained(
        name, **{"trust_remote_code": False, **options, "use_safetensors": True}
    )


def load_adapter(model: Any, folder: Path) -> Any:
    """A model with the adapter of a folder on it; `ConfigError` where the adapter's weights are a pickle."""
    from peft import PeftModel

    _require_safetensors(str(folder), "main", (ADAPTER_WEIGHTS,))
    return PeftModel.from_pretrained(model, folder)


def require_data(name: str, revision: str = "main") -> None:
    """Refuse a model whose weights are a pickle, or whose configuration names code; an adapter's base too."""
    adapter = find_adapter_config_file(name, revision=revision)
    if adapter is not None:
        _require_safetensors(name, revision, (ADAPTER_WEIGHTS,))
        base = json.loads(Path(adapter).read_text(encoding="utf-8")).get("base_model_name_or_path")
        if not (Path(name) / "config.json").exists() and base is not None:
            require_data(base)
        return
    config, _ = PreTrainedConfig.get_config_dict(name, revision=revision)
    for what in _code(config):
        raise ConfigError(
            f'config.json of "{name}" asks for {what}, which is fetched from the Hub and run, or is no safetensors; '
            "take it out of there, or load the model in Python and hand it to BADPOTrainer"
        )
    _require_safetensors(name, revision, WEIGHTS)


def _require_safetensors(name: str, revision: str, wanted: tuple[str, ...]) -> None:
    for index in Path(name).glob("*.safetensors.index.json"):
        parts = json.loads(index.read_text(encoding="utf-8")).get("weight_map", {}).values()
        if other := next((part for part in parts if not str(part).endswith(".safetensors")), None):
            raise ConfigError(f'"{index}" names {other}, which is no safetensors; only these are read')
    # a folder without any weights is told by transformers, which knows of more ways to divide them
    pickles = sorted(
        path.name for ending in ("bin", "pt", "pth") for path in Path(name).glob(f"*.{ending}")
    )
    if Path(name).is_dir() and not pickles:
        return
    if not any(has_file(name, file, revision=revision) for file in wanted):
        found = f" ({pickles[0]})" if pickles else ""
        raise ConfigError(
            f'"{name}" has no {wanted[0]}. Weights in a pickle{found} can run code and are not read. Where you trust '
            "them, convert them: load the model with from_pretrained in Python, and write it with save_pretrained"
        )


def _code(config: Any, name: str = "") -> Iterator[str]:
    """What a part of a ``config.json`` asks for that is code, or weights in another form."""
    if isinstance(config, dict):
        for key, value in config.items():
            # the parts of a model may each name their own implementation
            yield from _code(value, name if name.endswith("_implementation") else str(key))
    elif isinstance(config, list):
        for value in config:
            yield from _code(value, name)
    elif isinstance(config, str):
        names_code = name.endswith("_implementation") and name != "cache_implementation"
        is_kernel = names_code and config not in implementations()
        is_quantised = (
            name == "quant_method" and kernels_are_fetched() and not config.startswith("bitsandbytes")
        )
        is_pickle = name == "transformers_weights" and ".safetensors" not in config
        if is_kernel or is_quantised or is_pickle:
            yield f"{name}: {config}"
