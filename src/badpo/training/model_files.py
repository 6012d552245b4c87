"""Load models, adapters and tokenizers from third parties without running code from their files.

badpo inspects a model's settings files before any library reads them. Weights are read only from safetensors
files, because a pickle can run code when it is opened.
"""

import contextlib
import json
import logging
import os
import re
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from textwrap import shorten
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from transformers import (
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from badpo.data.problems import ConfigError

logger = logging.getLogger(__name__)

# Content of a settings file, or a part of that content.
Settings: TypeAlias = "None | bool | int | float | str | list[Settings] | dict[str, Settings]"
# Errors that libraries raise when they cannot read a model's files.
UNREADABLE = (OSError, SafetensorError)
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
# Names of the settings files that transformers reads for models, generation, tokenizers and processors.
_SETTINGS_FILES = (
    *("config", "generation_config", "tokenizer_config", "special_tokens_map", "processor_config"),
    *("preprocessor_config", "video_preprocessor_config"),
)
# Keys whose values refer to code, which transformers runs only with trust_remote_code=True.
_CODE_KEYS = ("auto_map", "_auto_map")
# Keys whose values may be any string, since no library uses these values to load a file or code.
# `drop_code_names` removes `auto_map`, and the modules in `quantization_config` belong to the model itself.
_TEXT_KEYS = re.compile(
    "_?name_or_path|architectures|auto_map|.*_version|.*_tokens?|added_tokens_decoder|chat_template|id2label|label2id"
    "|task_specific_params|model_type|prefix|stop_strings|response_schema|response_template|(special_tokens_map|tokenizer)_file"
    "|quantization_config"
)
# The name of a module, file or repository contains at least one of the characters below.
_NAMES_ELSEWHERE = re.compile(r"[/\\:.]")
_TEMPLATE_NAME = re.compile(r"[\w-]+")
# Maximum number of layers and maximum adapter rank; both are far above the values used in practice.
_MAX_LAYERS, _MAX_RANK = 1_000, 10_000
# Maximum lora_alpha, the scale of an adapter's weights; in practice it is below 1,000.
_MAX_ALPHA = 1e6
# Configuration keys for the number of layers; which key is used depends on the model type.
_LAYER_COUNTS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer")


def _require_module_name(name: str) -> str:
    # peft treats module names as regular expressions; a search for a plain name always ends quickly
    if not re.fullmatch(r"\^?[\w.-]+\$?", name):
        raise ValueError(
            "this is a regular expression, and searching for it may never end; list module names instead"
        )
    return name


def _require_few_layers(ranges: list[list[int]]) -> list[list[int]]:
    n_layers = sum(max(0, end - start) for start, end in ranges)
    if n_layers > _MAX_LAYERS:
        raise ValueError(f"{n_layers:,} layers are more than {_MAX_LAYERS:,}")
    return ranges


_Name = Annotated[str, AfterValidator(_require_module_name)]
_Names = _Name | list[_Name]
_Rank = Annotated[int, Field(gt=0, le=_MAX_RANK)]
_Alpha = Annotated[float, Field(gt=0, le=_MAX_ALPHA, allow_inf_nan=False)]


class _LoraSettings(BaseModel):
    """Settings that badpo accepts in ``adapter_config.json``, and the types of their values.

    ``init_lora_weights`` must not select a method that computes initial values from the base model's weights, because
    such a method changes the base model and can run for any length of time.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    peft_type: Literal["LORA"]
    task_type: str = ""
    peft_version: str = ""
    auto_mapping: dict[str, str] = {}
    base_model_name_or_path: str = ""
    revision: str = ""
    inference_mode: bool = False
    r: _Rank = 8
    lora_alpha: _Alpha = 8
    lora_dropout: float = Field(0, ge=0, le=1)
    target_modules: _Names = []
    exclude_modules: _Names = []
    modules_to_save: list[_Name] = []
    target_parameters: list[_Name] = []
    layers_to_transform: int | list[int] = []
    layers_pattern: _Names = []
    rank_pattern: dict[_Name, _Rank] = {}
    alpha_pattern: dict[_Name, _Alpha] = {}
    layer_replication: Annotated[
        list[Annotated[list[int], Field(min_length=2, max_length=2)]],
        AfterValidator(_require_few_layers),
    ] = []
    trainable_token_indices: list[int] | dict[str, list[int]] = []
    bias: Literal["none", "all", "lora_only"] = "none"
    init_lora_weights: bool | Literal["gaussian"] = True
    fan_in_fan_out: bool = False
    use_rslora: bool = False
    use_dora: bool = False
    lora_bias: bool = False
    ensure_weight_tying: bool = False


# -- loading -------------------------------------------------------------------------------------------------------


def load_weights(
    name: str | Path,
    auto_class: type[AutoModelForCausalLM] = AutoModelForCausalLM,
    /,
    **options: object,
) -> PreTrainedModel:
    """Load a model from a folder or from the Hub.

    Parameters
    ----------
    name : str or Path
        Folder of the model, or its name on the Hub.
    auto_class : class of transformers
    options
        Keyword arguments of ``auto_class.from_pretrained``.

    Returns
    -------
    The result of ``from_pretrained``.
    """
    with report_settings(name, "config.json, generation_config.json or a file of weights"):
        require_data(str(name), str(options.get("revision", "main")))
        options = {"trust_remote_code": False, **options, "use_safetensors": True}
        loaded = auto_class.from_pretrained(name, **options)
        if not options["trust_remote_code"]:
            # with output_loading_info, from_pretrained returns a tuple of the model and the loading information
            drop_code_names(loaded[0] if isinstance(loaded, tuple) else loaded, name)
        return loaded


def load_adapter(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """Load an adapter from a folder and add it to a model."""
    from peft import PeftModel

    with report_settings(folder, "adapter_config.json or a file of weights"):
        require_adapter(str(folder))
        with warnings.catch_warnings():
            # without the error, an adapter with missing weights would change the model at random or not at all
            warnings.filterwarnings("error", "Found missing adapter keys")
            return PeftModel.from_pretrained(model, folder)


def load_tokenizer(
    name: str | Path, revision: str = "main", trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    """Load a model's tokenizer from the model's folder or from the Hub."""
    from transformers import AutoTokenizer

    with report_settings(name, "tokenizer.json, tokenizer_config.json or config.json"):
        require_settings(str(name), revision)
        tokenizer = AutoTokenizer.from_pretrained(
            name, revision=revision, trust_remote_code=trust_remote_code
        )
        longest = getattr(tokenizer, "model_max_length", 0)
        if not isinstance(longest, int | float):
            raise TypeError(f"model_max_length is {longest!r}, not a number")
        if not trust_remote_code:
            drop_code_names(tokenizer, name)
        return tokenizer


def load_configuration(name: str) -> PreTrainedConfig:
    """Load a model's configuration from the model's folder or from the Hub."""
    from transformers import AutoConfig

    with report_settings(name, "config.json"):
        require_settings(name)
        return AutoConfig.from_pretrained(name, trust_remote_code=False)


def drop_code_names(loaded: PreTrainedModel | PreTrainedTokenizerBase, name: str | Path) -> None:
    """Remove all references to code from the settings of a loaded model or tokenizer.

    A model that is fine-tuned from the loaded model is therefore saved without references to code.
    """
    if _drop_code_keys(loaded):
        logger.warning(
            'the settings of "%s" refer to code under auto_map; badpo does not run this code, and the models that it '
            "trains do not refer to it",
            name,
        )


def _drop_code_keys(settings: "PreTrainedModel | PreTrainedTokenizerBase | Settings") -> bool:
    """Remove keys that refer to code from nested settings; return whether any key was removed."""
    if isinstance(settings, list):
        settings = dict(enumerate(settings))
    entries = settings if isinstance(settings, dict) else vars(settings)
    dropped = [entries.pop(key) for key in _CODE_KEYS if key in entries]
    inner = [
        value
        for value in entries.values()
        if isinstance(value, dict | list) or hasattr(value, "to_dict")
    ]
    return any([*map(_drop_code_keys, inner), *dropped])


# -- errors --------------------------------------------------------------------------------------------------------


def describe_unreadable(name: str, error: Exception, kind: str = "a causal language model") -> str:
    """Explain why a model cannot be loaded and what the user can do about it."""
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    if Path(name).is_dir():
        problem = f"a file in this folder is missing or damaged, or does not belong to {kind}"
        remedy = "Copy or download the model again"
    elif "gated" in reason:
        problem = "the owner of this model requires you to accept its terms"
        remedy = "Accept the terms on the model's Hub page, and log in with hf auth login"
    else:
        problem = "this name is neither a folder with a model nor reachable on the Hub"
        remedy = "Download the model once while you have network access, or give a local folder"
    return f'cannot load "{name}": {problem} ({reason}). {remedy}'


@contextlib.contextmanager
def report_settings(name: str | Path, files: str) -> Iterator[None]:
    """Context manager that turns a library's error about model settings into a `ConfigError` that names the files."""
    try:
        yield
    except (ConfigError, OSError, SafetensorError):
        raise
    except Exception as error:
        kind, reason = type(error).__name__, shorten(str(error), 400)
        if kind == "OutOfMemoryError":
            raise
        raise ConfigError(
            f'cannot load "{name}": {files} is missing or has an unusable setting, or an option does not suit the '
            f"model ({kind}: {reason}). Correct the model's setting, or copy or download the model again"
        ) from error


def _refusal(path: Path, setting: str) -> ConfigError:
    return ConfigError(
        f'"{path}" has the setting {setting}. Settings of a model must not refer to code, files or repositories. '
        "Delete this setting, or load the model in Python and pass it to BADPOTrainer"
    )


# -- inspection of files -------------------------------------------------------------------------------------------


def require_data(name: str, revision: str = "main") -> None:
    """Raise `ConfigError` if a model, adapter or base model has pickled weights or settings that refer to code."""
    folder = _require_model(name, revision)
    base = _read_settings(folder / ADAPTER_CONFIG).get("base_model_name_or_path")
    # if a folder contains an adapter but no model, transformers also loads the adapter's base model
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
    """Raise `ConfigError` if an adapter has pickled weights or a setting that `_LoraSettings` does not accept."""
    folder = _find_folder(name, revision)
    path = folder / ADAPTER_CONFIG
    _require_safetensors(name, folder, revision, (ADAPTER_WEIGHTS,))
    settings = _read_lora(path)
    base = settings.base_model_name_or_path
    library = settings.auto_mapping.get("parent_library")
    if "://" in base:
        raise _refusal(path, f"base_model_name_or_path: {base}")
    if library and not re.fullmatch(r"transformers(\.\w+)*", library):
        raise _refusal(path, f"auto_mapping: {library}")


def _read_lora(path: Path) -> _LoraSettings:
    """Raise `ConfigError` unless each setting is accepted by `_LoraSettings`, empty, or equal to peft's default."""
    from peft import LoraConfig

    content = _read_settings(path)
    # peft writes every setting that its version supports, and leaves most of them empty
    unset = {**LoraConfig().to_dict(), "peft_type": None}
    chosen = {key: value for key, value in content.items() if value and value != unset.get(key)}
    try:
        return _LoraSettings.model_validate(chosen)
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        key = str(wrong["loc"][0])
        value, reason = json.dumps(content.get(key)), wrong["msg"].partition(", ")
        raise ConfigError(
            f'"{path}" has the setting {key}: {shorten(value, 100)}, which badpo does not accept '
            f"({reason[2] or reason[0]}). badpo reads LoRA adapters whose settings are plain names and numbers. "
            "Correct or delete this setting. Alternatively, load the adapter in Python, merge it into "
            "its model (merge_and_unload), and save the model"
        ) from error


def require_settings(name: str, revision: str = "main") -> Path:
    """Inspect a model's settings files and return the folder that contains them.

    Raises
    ------
    ConfigError
        If a setting names a module, a file or a repository.
    """
    folder = _find_folder(name, revision)
    for kind in _SETTINGS_FILES:
        path = folder / f"{kind}.json"
        content = _read_settings(path)
        for setting in find_outside_names(content):
            raise _refusal(path, setting)
        for part in (content, content.get("text_config")):
            # if the number of layers is 0, transformers creates a model without layers and reports no error
            for key, n in part.items() if isinstance(part, dict) else ():
                if key in _LAYER_COUNTS and isinstance(n, int | float) and n < 1:
                    raise ConfigError(f'"{path}" sets {key} to {n}; the value must be at least 1')
    for index in folder.glob("*.index.json"):
        parts = _read_settings(index).get("weight_map", {})
        for part in parts.values() if isinstance(parts, dict) else [parts]:
            if not _is_safetensors(part):
                raise ConfigError(
                    f'"{index}" names {part}; badpo reads weights only from .safetensors files'
                )
    return folder


def _find_folder(name: str, revision: str) -> Path:
    """Return a model's local folder; if the model is on the Hub, download its settings files."""
    if Path(name).is_dir():
        folder = Path(name)
    else:
        from huggingface_hub import snapshot_download

        try:
            folder = Path(snapshot_download(name, revision=revision, allow_patterns=["*.json"]))
        except ValueError as error:  # the name is not a valid name on the Hub
            raise OSError(str(error)) from error
    _require_own_files(folder)
    return folder


def _require_own_files(folder: Path) -> None:
    """Raise `ConfigError` if a link leads out of the folder, or if an entry is neither a file nor a folder.

    Libraries follow symbolic links and could copy other files on this machine into the trained model.
    """
    top = Path(os.path.realpath(folder))
    # the Hub cache stores each file once and links to it from snapshots/COMMIT
    blobs = top.parents[1] / "blobs" if top.parent.name == "snapshots" else top
    for parent, folders, files in os.walk(top):
        for name in (*folders, *files):
            path = Path(parent, name)
            real = Path(os.path.realpath(path))
            is_own = real.is_relative_to(top) or real.is_relative_to(blobs)
            if not is_own or not (real.is_file() or real.is_dir()):
                raise ConfigError(
                    f'"{folder / path.relative_to(top)}" leads out of the model\'s folder, or is no file. Delete it. '
                    "If the model needs the linked file, replace the link with a copy of a file that you trust"
                )


def _read_settings(path: Path) -> dict[str, Settings]:
    """Read a JSON file, or return an empty dict if the file does not exist."""
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise OSError(f"{path.name} is not valid JSON") from error
    if not isinstance(content, dict):
        raise OSError(f"{path.name} is not a JSON object")
    return content


def _is_safetensors(file: object) -> bool:
    return re.fullmatch(r"[\w.-]+\.safetensors(\.index\.json)?", str(file)) is not None


def _require_safetensors(name: str, folder: Path, revision: str, accepted: tuple[str, ...]) -> None:
    """Raise `ConfigError` if a model's weights are not in an accepted safetensors file."""
    from transformers.utils.hub import has_file

    # if the folder contains no pickles, transformers reports missing weights; it knows more file formats than badpo
    pickles = sorted(path.name for path in folder.glob("*") if path.suffix in (".bin", ".pt", ".pth"))
    if Path(name).is_dir() and not pickles:
        return
    if not any(has_file(name, file, revision=revision) for file in accepted):
        example = f" ({pickles[0]})" if pickles else ""
        raise ConfigError(
            f'"{name}" has no {accepted[0]}. badpo does not read weights from a pickle{example}, because a pickle can '
            "run code. If you trust the pickle, convert it: in Python, load the model with from_pretrained and save it "
            "with save_pretrained"
        )


def find_outside_names(settings: Settings, key: str = "", is_text: bool = False) -> Iterator[str]:
    """Find the model settings that refer to a module, file or repository outside the model.

    Parameters
    ----------
    settings : JSON value
        Content of a settings file, or a part of that content.
    key : str
        Key under which ``settings`` appears in the enclosing settings.
    is_text : bool
        Whether ``settings`` is plain text that no library uses to load a file or a module. Any such text is allowed.

    Yields
    ------
    str
        A setting that refers to something outside the model, as ``key: value``.
    """
    if isinstance(settings, dict):
        for inner, value in settings.items():
            # transformers writes each named chat template to a file with the template's name
            # a list of chat templates stores the name of each template under the key "name"
            name = value if inner == "name" else inner
            if key == "chat_template" and not _TEMPLATE_NAME.fullmatch(str(name)):
                yield f"{key}: {name}"
            # each part of a composite model may choose its own attention or expert implementation
            inner_key = key if "_implementation" in key else str(inner)
            is_inner_text = is_text or bool(_TEXT_KEYS.fullmatch(inner_key))
            yield from find_outside_names(value, inner_key, is_inner_text)
    elif isinstance(settings, list):
        for value in settings:
            yield from find_outside_names(value, key, is_text)
    elif isinstance(settings, str) and _names_outside(key, settings, is_text):
        yield f"{key}: {settings}"


def _names_outside(key: str, value: str, is_text: bool) -> bool:
    """Whether a setting's value refers to something outside the model."""
    import torch

    if "_implementation" in key and key != "cache_implementation":
        # installed attention and expert implementations; transformers treats every other name as a kernel on the Hub
        installed = {"eager", "sdpa", "flex_attention", "grouped_mm", "batched_mm"}
        installed |= set() if _is_fetching_kernels() else {"flash_attention_2", "flash_attention_3"}
        return value not in installed
    if key == "transformers_weights":
        return not _is_safetensors(value)
    if key.endswith("dtype") and value != "auto":
        return not isinstance(getattr(torch, value.removeprefix("torch."), None), torch.dtype)
    if key == "quant_method":
        return _is_fetching_kernels() and not value.startswith("bitsandbytes")
    return not is_text and bool(_NAMES_ELSEWHERE.search(value))


def _is_fetching_kernels() -> bool:
    """Whether transformers downloads kernel code from the Hub, which it does if the package `kernels` is installed."""
    return find_spec("kernels") is not None
