"""What a run is known by, and its folder from the first file to the seal."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml

from badpo.data.files import RUN_SEAL, run_damage
from badpo.data.privacy import key_name
from badpo.data.problems import ConfigError
from badpo.experiments.suite_settings import ADAPTER_FIELDS, SuiteSettings
from badpo.training.run_folder import changed_facts, environment, seal_run, write_atomically, write_json

MEASURED_FILES = ("planted.json", "readouts.json")  # written anew by every call


@dataclass(frozen=True)
class RunKey:
    """What a run is known by.

    Attributes
    ----------
    key : str
        A hash of the facts.
    facts : dict
        Everything that decides its figures, as JSON has it.
    """

    key: str
    facts: dict


def run_key(facts: dict, settings: SuiteSettings, fields: Sequence[str]) -> RunKey:
    """What a run is known by: everything that decides its figures, and a hash of it.

    Parameters
    ----------
    facts : dict
        Data, start model, method and seed.
    settings : SuiteSettings
    fields : sequence of str
        The settings that this stage reads.
    """
    adapter = {name: getattr(settings, name) for name in ADAPTER_FIELDS if settings.lora_rank}
    if settings.lora_base == SuiteSettings.lora_base:
        adapter.pop("lora_base", None)
    # pseudonyms and fingerprints are made with it: where it is another, they are too, and the data may be the same
    decided = {
        **facts,
        "pseudonym key": key_name(),
        **{name: getattr(settings, name) for name in fields},
        **adapter,
    }
    content = json.dumps(decided, sort_keys=True)
    return RunKey(hashlib.sha256(content.encode()).hexdigest()[:16], json.loads(content))


def weights_of(model_folder: Path) -> str:
    """Checksum of the weights file of a saved model, or of a saved adapter."""
    adapter = model_folder / "adapter_model.safetensors"
    with (adapter if adapter.exists() else model_folder / "model.safetensors").open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_done(folder: Path, key: RunKey) -> bool:
    """Whether a folder holds the finished run of this key, undamaged.

    Raises
    ------
    ConfigError
        It holds a run of another key, begun or finished: its checkpoints must not be continued under this one. Or a
        file of the finished run is not what it was.
    """
    if reason := run_damage(folder, but=MEASURED_FILES):
        raise ConfigError(f"{folder.parent}/{reason}; restore the file, or remove {folder} to train it again")
    for name in (RUN_SEAL, "begun.json"):
        path = folder / name
        if not path.exists():
            continue
        try:
            before = json.loads(path.read_text(encoding="utf-8"))
            same = before["key"] == key.key
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path} is damaged; remove {folder} to train it again") from error
        if not same:
            changes = changed_facts(before["facts"], key.facts) if "facts" in before else []
            raise ConfigError(
                f"{folder} holds a run with other data or settings{': ' * bool(changes)}{'; '.join(changes)}; remove "
                f"{folder.parent} or choose another folder"
            )
    return (folder / RUN_SEAL).exists()


def begin(folder: Path, key: RunKey) -> None:
    """Write which run the folder is of, before anything else is written there."""
    write_json(folder / "begun.json", asdict(key), private=True)


def finish(folder: Path, key: RunKey, settings: SuiteSettings) -> None:
    """Write what the run was made with, and last of all that it is done, with the checksums of its files."""
    write_atomically(
        folder / "config.yaml", yaml.safe_dump(json.loads(json.dumps(asdict(settings)))).encode()
    )
    write_json(folder / "environment.json", environment(settings.command))
    seal_run(folder, asdict(key))
