"""Models of others, loaded from safetensors only and after `badpo.data.model_folders` has looked at their files."""

from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers import AutoModelForCausalLM

from badpo.data.model_folders import reporting_settings, require_adapter, require_data

# what loading a model raises if its files cannot be read
UNREADABLE = (OSError, ValueError, SafetensorError)


def load_weights(name: str | Path, auto_class: Any = AutoModelForCausalLM, **options: Any) -> Any:
    """A model by its folder or its name on the Hub, with the options of ``from_pretrained``."""
    with reporting_settings(name):
        require_data(str(name), options.get("revision", "main"))
        return auto_class.from_pretrained(
            name, **{"trust_remote_code": False, **options, "use_safetensors": True}
        )


def load_adapter(model: Any, folder: Path) -> Any:
    """A model with the adapter of a folder on it."""
    from peft import PeftModel

    with reporting_settings(folder):
        require_adapter(str(folder))
        return PeftModel.from_pretrained(model, folder)


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
