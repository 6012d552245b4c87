"""Effect of each key of a ``trl dpo`` configuration in a recipe and in `BADPOConfig`.

``trl_keys.yaml`` contains the three lists of keys, with reasons. `HONOURED` keys have the same effect as in TRL. Keys
in `ACCEPTED_WITHOUT_EFFECT` do not change the run. Keys in `REFUSED` raise an error, because they would change what is
trained or saved.
"""

from pathlib import Path
from typing import Any

from badpo.data.yaml_files import read_yaml

DEFAULT_OUTPUT_DIR = "runs/badpo"

# Old names of TRL keys, mapped to their current names.
ALIASES: dict[str, str] = {"warmup_ratio": "warmup_steps", "torch_dtype": "dtype"}


def _reasons(entries: list[dict[str, str]]) -> dict[str, str]:
    return {key: entry["reason"] for entry in entries for key in entry["keys"].split()}


_FOLDER = Path(__file__).parent
_TABLE = read_yaml(_FOLDER / "trl_keys.yaml").values
_TYPES = {"text": str, "number": float, "whole number": int, "truth value": bool, "other": Any}
# Value type of each TRL key that has the same effect in badpo as in TRL.
HONOURED = {key: _TYPES[name] for name, keys in _TABLE["honoured"].items() for key in keys.split()}
ACCEPTED_WITHOUT_EFFECT = _reasons(_TABLE["without_effect"])
REFUSED = _reasons(_TABLE["refused"])
PRESETS: dict[str, dict[str, Any]] = read_yaml(_FOLDER / "presets.yaml").values


def refusal(key: str, value: object) -> str | None:
    """Explain in one sentence why badpo refuses a value for a key; return None if it accepts the value."""
    neutral_values = _TABLE["neutral"].get(key, [])
    is_neutral = value is None or value is False or value in ([], {}, *neutral_values)
    if key not in REFUSED or is_neutral:
        return None
    text = "..." if isinstance(value, dict) else value  # a dictionary may contain a secret
    return f"{key}: {text} is refused: {REFUSED[key]}"
