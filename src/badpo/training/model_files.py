"""Models of others: every file of a folder is looked at before a library reads it; weights are safetensors only."""

import contextlib
import json
import logging
import os
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers import AutoModelForCausalLM

from badpo.data.problems import ConfigError

# what loading a model raises if its files cannot be read
UNREADABLE = (OSError, SafetensorError)
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
# Settings that transformers reads of a model, of its generation, of its tokenizer and of its processors.
_SETTINGS = (
    *("config", "generation_config", "tokenizer_config", "special_tokens_map", "processor_config"),
    *("preprocessor_config", "video_preprocessor_config"),
)
# Keys of settings that name code, which is used only with --trust-remote-code.
_CODE_KEYS = ("auto_map", "_auto_map")
# Keys of settings that hold any text, by which nothing is loaded. `drop_code_names` drops `auto_map`, and a module that
# a quantisation leaves out is one of the model's own.
_TEXT_KEYS = re.compile(
    "_?name_or_path|architectures|auto_map|.*_version|.*_tokens?|added_tokens_decoder|chat_template|id2label|label2id"
    "|task_specific_params|model_type|prefix|stop_strings|response_schema|response_template|(special_tokens_map|tokenizer)_file"
    "|quantization_config"
)
# What names a module, a file or a repository has one of these characters.
_NAMES_ELSEWHERE = re.compile(r"[/\\:.]")
_TEMPLATE_NAME = re.compile(r"[\w-]+")
# Keys of an adapter's configuration that hold names: of the model's own modules, of its class, of its base.
_ADAPTER_KEYS = re.compile(
    "alpha_pattern|auto_mapping|base_model_name_or_path|bias|exclude_modules|init_lora_weights|layer_replication"
    "|layers_pattern|layers_to_transform|modules_to_save|peft_type|peft_version|rank_pattern|revision|target_modules"
    "|target_parameters|task_type|trainable_token_indices"
)
# Of these, texts are regular expressions or parts of one: names of modules, which end at once, are allowed.
_PATTERN_KEYS = ("target_modules", "exclude_modules", "layers_pattern", "alpha_pattern", "rank_pattern")
_PLAIN_NAME = re.compile(r"\^?[\w.-]+\$?")
_MOST_LAYERS, _HIGHEST_RANK = 1_000, 10_000
_LAYERS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer")
# What peft writes of its own accord.
_USUAL = {"megatron_core": "megatron.core"}


def load_weights(name: str | Path, auto_class: Any = AutoModelForCausalLM, **options: Any) -> Any:
    """A model by its folder or its name on the Hub, with the options of ``from_pretrained``."""
    with reporting_settings(name, "config.json, generation_config.json or a file of weights"):
        require_data(str(name), options.get("revision", "main"))
        options = {"trust_remote_code": False, **options, "use_safetensors": True}
        loaded = auto_class.from_pretrained(name, **options)
        if not options["trust_remote_code"]:
            model = loaded[0] if isinstance(loaded, tuple) else loaded  # with output_loading_info
            drop_code_names(model, name)
        return loaded


def load_adapter(model: Any, folder: Path) -> Any:
    """A model with the adapter of a folder on it."""
    from peft import PeftModel

    with reporting_settings(folder, "adapter_config.json or a file of weights"):
        require_adapter(str(folder))
        return PeftModel.from_pretrained(model, folder)


def load_tokenizer(name: str | Path, revision: str = "main", trust_remote_code: bool = False) -> Any:
    """A tokenizer by the folder, or by the name on the Hub, of its model."""
    from transformers import AutoTokenizer

    with reporting_settings(name, "tokenizer.json, tokenizer_config.json or config.json"):
        require_settings(str(name), revision)
        tokenizer = AutoTokenizer.from_pretrained(
            name, revision=revision, trust_remote_code=trust_remote_code
        )
        if not trust_remote_code:
            drop_code_names(tokenizer, name)
        return tokenizer


def drop_code_names(loaded: Any, name: str | Path) -> None:
    """Drop the code that the settings of a loaded model or tokenizer name, so that no trained model names it."""
    if _drop_code_keys(loaded):
        logging.getLogger(__name__).warning(
            '"%s" names code under auto_map: it is not run, and a model trained from this one does not name it',
            name,
        )


def _drop_code_keys(settings: Any) -> bool:
    """Drop keys that name code from settings, and from settings inside them; whether there was one."""
    if isinstance(settings, list):
        settings = dict(enumerate(settings))
    entries = settings if isinstance(settings, dict) else vars(settings)
    dropped = [entries.pop(key) for key in _CODE_KEYS if key in entries]
    inner = [
        each for each in entries.values() if isinstance(each, dict | list) or hasattr(each, "to_dict")
    ]
    return any([*map(_drop_code_keys, inner), *dropped])


def load_configuration(name: str) -> Any:
    """A model's configuration by its folder or its name on the Hub."""
    from transformers import AutoConfig

    with reporting_settings(name, "config.json"):
        require_settings(name)
        return AutoConfig.from_pretrained(name, trust_remote_code=False)


def unreadable(name: str, error: Exception, kind: str = "a causal language model") -> str:
    """Why a model of a kind cannot be loaded by its name, and what helps."""
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    if Path(name).is_dir():
        what = f"a file in this folder is missing, damaged or not that of {kind}"
        remedy = "Copy or download the model again"
    elif "gated" in reason:
        what = "its owner wants an agreement first"
        remedy = "Accept its terms on the Hub and log in with hf auth login"
    else:
        what = "it is neither a folder with a model nor reachable on the Hub"
        remedy = "Download it once with network, or give a local folder"
    return f'cannot load "{name}": {what} ({reason}). {remedy}'


@contextlib.contextmanager
def reporting_settings(name: str | Path, files: str) -> Iterator[None]:
    """A `ConfigError` that names the files, in place of what libraries raise if they cannot use a setting in them."""
    try:
        yield
    except (ConfigError, OSError, SafetensorError, ModuleNotFoundError):
        raise
    except Exception as error:
        kind, reason = type(error).__name__, " ".join(str(error).split())
        if kind == "OutOfMemoryError":
            raise
        raise ConfigError(
            f'cannot load "{name}": {files} is missing or has a setting that cannot be used, or an option does not fit '
            f"({kind}: {reason}). Correct the setting, or copy or download the model again"
        ) from error


def require_data(name: str, revision: str = "main") -> None:
    """Raise `ConfigError` if a model, or an adapter with its base, has pickled weights or names code."""
    folder = _require_model(name, revision)
    base = _content(folder / ADAPTER_CONFIG).get("base_model_name_or_path")
    # transformers loads the base in place of a folder that is no model itself
    if base and not (Path(name) / "config.json").exists():
        _require_model(str(base), revision)


def _require_model(name: str, revision: str) -> Path:
    folder = require_settings(name, revision)
    has_adapter = (folder / ADAPTER_CONFIG).exists()
    if has_adapter:
        require_adapter(name, revision)
    if not has_adapter or (folder / "config.json").exists():
        _require_safetensors(name, folder, revision, WEIGHTS)
    return folder


def require_adapter(name: str, revision: str = "main") -> None:
    """Raise `ConfigError` if an adapter's weights are a pickle, or if its configuration has a key that names code.

    A key that is not listed may be a number, a truth value or nothing, none of which names anything.
    """
    folder = _folder(name, revision)
    content = _content(folder / ADAPTER_CONFIG)
    for key, value in content.items():
        is_number = isinstance(value, bool | int | float)
        is_listed = _ADAPTER_KEYS.fullmatch(key) or value == _USUAL.get(key)
        if value and not (is_listed or is_number):
            raise _refusal(folder / ADAPTER_CONFIG, f"{key}: {json.dumps(value)}")
    base = content.get("base_model_name_or_path")
    library = (content.get("auto_mapping") or {}).get("parent_library")
    if "://" in str(base):
        raise _refusal(folder / ADAPTER_CONFIG, f"base_model_name_or_path: {base}")
    if library and not re.fullmatch(r"transformers(\.\w+)*", str(library)):
        raise _refusal(folder / ADAPTER_CONFIG, f"auto_mapping: {library}")
    _require_bounded(folder / ADAPTER_CONFIG, content)
    _require_safetensors(name, folder, revision, (ADAPTER_WEIGHTS,))


def _require_bounded(path: Path, content: dict[str, Any]) -> None:
    """Raise `ConfigError` if peft could search for an adapter's modules for ever, or make layers without end."""
    for key in _PATTERN_KEYS:
        values = content.get(key) or []
        for text in [values] if isinstance(values, str) else values:
            if not _PLAIN_NAME.fullmatch(text):
                raise ConfigError(
                    f'"{path}" has the regular expression {key}: {text}, which may take for ever. Write the names of '
                    "the modules as a list there"
                )
    n_layers = sum(max(0, end - start) for start, end in content.get("layer_replication") or [])
    rank = max([content.get("r") or 0, *(content.get("rank_pattern") or {}).values()])
    if n_layers > _MOST_LAYERS or rank > _HIGHEST_RANK:
        raise ConfigError(
            f'"{path}" asks for {n_layers:,} layers and rank {rank:,}, and at most {_MOST_LAYERS:,} layers and rank '
            f"{_HIGHEST_RANK:,} are made. Correct layer_replication, r or rank_pattern there"
        )


def require_settings(name: str, revision: str = "main") -> Path:
    """The folder of a model's settings; `ConfigError` if one of them names a module, a file or a repository."""
    folder = _folder(name, revision)
    for kind in _SETTINGS:
        path = folder / f"{kind}.json"
        content = _content(path)
        for what in _named(content):
            raise _refusal(path, what)
        for part in (content, content.get("text_config")):
            # transformers would make a model without layers
            for key, n in part.items() if isinstance(part, dict) else ():
                if key in _LAYERS and isinstance(n, int | float) and n < 1:
                    raise ConfigError(f'"{path}" has {key}: {n}. Write a number from 1 there')
    for index in folder.glob("*.index.json"):
        parts = _content(index).get("weight_map", {})
        for part in parts.values() if isinstance(parts, dict) else [parts]:
            if not _is_safetensors(part):
                raise ConfigError(
                    f'"{index}" names {part}, which is no safetensors; only these are read'
                )
    return folder


def kernels_are_fetched() -> bool:
    """Whether `transformers` would fetch a kernel, which is code, from the Hub: its package `kernels` is installed."""
    return find_spec("kernels") is not None


def _folder(name: str, revision: str) -> Path:
    """The folder itself, or a copy of what the Hub has under this name, without weights."""
    if Path(name).is_dir():
        folder = Path(name)
    else:
        from huggingface_hub import snapshot_download

        try:
            folder = Path(snapshot_download(name, revision=revision, allow_patterns=["*.json"]))
        except ValueError as error:  # it is no name of the Hub's
            raise OSError(str(error)) from error
    _require_own_files(folder)
    return folder


def _require_own_files(folder: Path) -> None:
    """Raise `ConfigError` at anything in a folder, at any depth, that is no file or folder of its own.

    Libraries follow links, and write what they have read of a model into the trained one.
    """
    top = Path(os.path.realpath(folder))
    # the Hub's cache keeps every file once and links to it from snapshots/COMMIT
    blobs = top.parents[1] / "blobs" if top.parent.name == "snapshots" else top
    for where, folders, files in os.walk(top):
        for name in (*folders, *files):
            path = Path(where, name)
            real = Path(os.path.realpath(path))
            is_own = real.is_relative_to(top) or real.is_relative_to(blobs)
            if not is_own or not (real.is_file() or real.is_dir()):
                raise ConfigError(
                    f'"{folder / path.relative_to(top)}" leads out of the model\'s folder, or is no file. Delete it; '
                    "if the model needs it, put a copy of the file that you trust in its place"
                )


def _content(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise OSError(f"{path.name} is no JSON that can be read") from error
    if not isinstance(content, dict):
        raise OSError(f"{path.name} holds no settings")
    return content


def _refusal(path: Path, what: str) -> ConfigError:
    return ConfigError(
        f'"{path}" has {what}, and a model\'s files may name no code, file or repository. Take the key out of there, '
        "or load the model in Python and hand it to BADPOTrainer"
    )


def _is_safetensors(file: Any) -> bool:
    return re.fullmatch(r"[\w.-]+\.safetensors(\.index\.json)?", str(file)) is not None


def _require_safetensors(name: str, folder: Path, revision: str, wanted: tuple[str, ...]) -> None:
    from transformers.utils.hub import has_file

    # a folder without any weights is reported by transformers, which knows of more ways to divide them
    pickles = sorted(path.name for path in folder.glob("*") if path.suffix in (".bin", ".pt", ".pth"))
    if Path(name).is_dir() and not pickles:
        return
    if not any(has_file(name, file, revision=revision) for file in wanted):
        found = f" ({pickles[0]})" if pickles else ""
        raise ConfigError(
            f'"{name}" has no {wanted[0]}. Weights in a pickle{found} can run code and are not read. If you trust '
            "them, convert them: load the model with from_pretrained in Python, and write it with save_pretrained"
        )


def _named(settings: Any, key: str = "", is_text: bool = False) -> Iterator[str]:
    """What some settings name that is no part of the model."""
    import torch

    if isinstance(settings, dict):
        for inner, value in settings.items():
            # each named template becomes a file of that name; in a list the name is a value
            name = value if inner == "name" else inner
            if key == "chat_template" and not _TEMPLATE_NAME.fullmatch(str(name)):
                yield f"{key}: {name}"
            # the parts of a model may each name their own implementation
            own = key if "_implementation" in key else str(inner)
            yield from _named(value, own, is_text or bool(_TEXT_KEYS.fullmatch(own)))
    elif isinstance(settings, list):
        for value in settings:
            yield from _named(value, key, is_text)
    elif isinstance(settings, str):
        is_name = not is_text and bool(_NAMES_ELSEWHERE.search(settings))
        if "_implementation" in key and key != "cache_implementation":
            is_name = settings not in _implementations()
        elif key == "transformers_weights":
            is_name = not _is_safetensors(settings)
        elif key.endswith("dtype") and settings != "auto":
            is_name = not isinstance(getattr(torch, settings.removeprefix("torch."), None), torch.dtype)
        elif key == "quant_method":
            is_name = kernels_are_fetched() and not settings.startswith("bitsandbytes")
        if is_name:
            yield f"{key}: {settings}"


def _implementations() -> tuple[str, ...]:
    """Implementations of attention and of experts that are code installed here; any other is a kernel on the Hub."""
    flash = () if kernels_are_fetched() else ("flash_attention_2", "flash_attention_3")
    return ("eager", "sdpa", "flex_attention", "grouped_mm", "batched_mm", *flash)
