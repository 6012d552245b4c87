"""Recipes: YAML files that define a training run with TRL's keys, badpo's blocks and presets of the paper's values.

badpo reads a recipe without loading torch, so it reports a misspelled key at once. One `ConfigError` reports all errors
in a recipe file, each with its line number.
"""

# pydantic creates a class from the list of TRL's keys at run time, which mypy cannot analyze
# mypy: disallow-subclassing-any=False

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    create_model,
    field_validator,
)
from pydantic_core import ErrorDetails

from badpo.data.attributes import attribute_from_config, parsed_attribute
from badpo.data.files import RUN_ENVIRONMENT, RUN_RECIPE, Json, made_here
from badpo.data.privacy import KEY_VARIABLE, pseudonyms
from badpo.data.problems import ConfigError, Problem, did_you_mean
from badpo.data.tables import Source, from_hub, is_hub_name
from badpo.data.yaml_files import YamlFile, read_yaml
from badpo.objective.registry import DPO, PLACEBO, objective_of_loss, require_known
from badpo.training import trl_keys
from badpo.training.trl_keys import ACCEPTED_WITHOUT_EFFECT, ALIASES, PRESETS, REFUSED, refusal

if TYPE_CHECKING:
    from peft import LoraConfig

    from badpo.training.config import BADPOConfig

# Keys and values of a recipe or a recipe block, as read from YAML.
Keys = Json


def _refuse_bool(value: object) -> object:
    # pydantic, like Python, would accept True as the number 1
    if isinstance(value, bool):
        raise ValueError("true and false are not numbers")
    return value


Whole = Annotated[int, BeforeValidator(_refuse_bool)]
Number = Annotated[float, BeforeValidator(_refuse_bool)]


def _parse_attribute(entry: object) -> Mapping[str, object]:
    config = parsed_attribute(entry) if isinstance(entry, str) else entry
    if not isinstance(config, dict) or "type" not in config:
        raise ConfigError(f"the attribute {entry!r} must be a name, or a block with a type")
    attribute_from_config(config)
    return config


def _check_objective(block: object, further: Sequence[str] = ()) -> Mapping[str, object]:
    if not isinstance(block, dict) or not isinstance(block.get("name"), str):
        raise ConfigError(f"objective is {block!r}; it must be a block with a name")
    require_known(block["name"], further)
    return block


def _parse_baselines(value: object) -> list[Mapping[str, object]]:
    """Parse the key ``compare``: a list of objectives, each a name or a block, or true for DPO and the placebo."""
    if isinstance(value, bool):
        value = [DPO, PLACEBO] if value else []
    entries = value if isinstance(value, list) else [value]
    blocks = ({"name": entry} if isinstance(entry, str) else entry for entry in entries)
    return [_check_objective(block, [DPO]) for block in blocks]


# -- blocks ------------------------------------------------------------------------------------------------------


class Block(BaseModel):
    """Base class of recipe blocks, which reject unknown keys."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, coerce_numbers_to_str=True, protected_namespaces=()
    )


class BiasBlock(Block):
    """Recipe block for the bias term: its variant, theta's update rule, and the gold annotators.

    The alias of each field is the setting's name in `BADPOConfig`.
    """

    variant: Literal["none", "pooled", "per_annotator", "shared_mean", "class"] | None = Field(
        default=None, serialization_alias="bias"
    )
    fit: Literal["anchored", "adam"] | None = Field(default=None, serialization_alias="bias_fit")
    learning_rate: float | None = Field(default=None, ge=0, serialization_alias="bias_learning_rate")
    warm_start: Literal["zero", "offline", "audit"] = "zero"
    gold_annotators: list[str] = []

    @field_validator("gold_annotators", mode="before")
    @classmethod
    def _replace_ids(cls, names: object) -> object:
        # the run stores its recipe, so pseudonyms replace the ids of annotators; YAML may read an id as a number
        return pseudonyms([str(name) for name in names]) if isinstance(names, list | tuple) else names


class ReferenceBlock(Block):
    """Recipe block for the reference: the initial model, with or without supervised fine-tuning on majority choices.

    A positive ``max_steps`` replaces ``num_train_epochs``. By default, the supervised stage uses the batch size of the
    preference stage.
    """

    sft: bool = False
    learning_rate: float = Field(default=2e-5, gt=0)
    num_train_epochs: float = Field(default=1.0, gt=0)
    max_steps: int = -1
    per_device_train_batch_size: int | None = Field(default=None, gt=0)


class ModelChoice(Block):
    """Recipe keys for the model and its adapter, with TRL's names and defaults."""

    model_name_or_path: str
    model_revision: str = "main"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "float32"
    trust_remote_code: bool = False
    use_peft: bool = False
    lora_r: Whole = 16
    lora_alpha: Whole = 32
    lora_dropout: Number = 0.05
    lora_target_modules: str | list[str] | None = None

    @property
    def init_kwargs(self) -> Keys:
        """Keyword arguments for ``AutoModelForCausalLM.from_pretrained``."""
        return {
            "revision": self.model_revision,
            "dtype": self.dtype,
            "trust_remote_code": self.trust_remote_code,
        }

    def peft_config(self) -> LoraConfig | None:
        """Return the LoRA adapter's configuration, or None if all model weights are trained."""
        if not self.use_peft:
            return None
        from peft import LoraConfig

        return LoraConfig(
            task_type="CAUSAL_LM",
            r=self.lora_r,
            lora_alpha=self.lora_alpha,
            lora_dropout=self.lora_dropout,
            target_modules=self.lora_target_modules,
        )


class DataChoice(Block):
    """Recipe keys for the table of votes and for the options of `Judgments.read`.

    ``columns`` maps badpo's column names to the table's column names; None leaves a column unused. ``held_out`` is the
    share of prompts whose judgments are held out of training. ``split_seed`` selects the held-out prompts and is
    independent of the training seed, so that runs with several seeds share their held-out judgments. If
    ``held_out_name`` is given, the table of this name contains the held-out votes, and ``held_out`` is not used.
    """

    dataset_name: str
    held_out_name: str | None = None
    dataset_config: str | None = None
    dataset_train_split: str = "train"
    columns: dict[str, str | None] = {}
    held_out: Number = Field(default=0.1, ge=0, lt=1)
    split_seed: Whole = 0
    annotators_missing: str = "error"
    repeated: str = "all"
    winners: dict[Any, Any] = {}
    bad_rows: str = "error"
    layout: str | None = None

    def source(self) -> Source:
        """Return the source for `Judgments.read`: a path, or a split of a Hub data set like ``allenai/multipref``."""
        path = Path(self.dataset_name)
        if is_hub_name(path):
            return from_hub(self.dataset_name, self.dataset_config, self.dataset_train_split)
        return path

    @property
    def reading(self) -> Keys:
        """Options of `Judgments.read`."""
        return self.model_dump(include=_READING)


_READING = {"columns", "annotators_missing", "repeated", "winners", "bad_rows", "layout"}
_FIELD_TYPES = {int: Whole, float: Number}
_TRL_FIELDS = {name: (_FIELD_TYPES.get(kind, kind), None) for name, kind in trl_keys.HONOURED.items()}
_TrlKeys: Any = create_model("_TrlKeys", __base__=Block, **_TRL_FIELDS)  # type: ignore[call-overload]


class _RecipeKeys(ModelChoice, DataChoice, _TrlKeys):
    """All keys of a recipe."""

    encoding: str | None = None
    max_length: Whole | None = None
    max_prompt_length: Whole | None = None
    batching: str | None = None
    attention: str | None = None
    reference_cache: str | None = None
    bias: BiasBlock
    reference: ReferenceBlock
    objective: Annotated[Keys, AfterValidator(_check_objective)] = {}
    compare: Annotated[list[Keys], BeforeValidator(_parse_baselines)] = []
    attributes: Annotated[
        list[Annotated[Keys, BeforeValidator(_parse_attribute)]],
        BeforeValidator(lambda value: value if isinstance(value, list) else [value]),
    ]

    @field_validator("attributes")
    @classmethod
    def _require_attribute(cls, attributes: list[Keys], info: ValidationInfo) -> list[Keys]:
        if not attributes and "bias" in info.data and info.data["bias"].variant != "none":
            raise ConfigError(
                "no attribute is declared. Add one, as in attributes: [{type: length, ratio: 1.5}] or "
                "--attribute length:ratio=1.5, or train plain DPO with bias: {variant: none}"
            )
        return attributes


# Default values for recipe keys that neither the recipe file nor its preset sets.
_DEFAULTS: Keys = {
    "output_dir": trl_keys.DEFAULT_OUTPUT_DIR,
    "columns": {},
    "bias": {},
    "reference": {},
    "attributes": [],
}
# Arguments of `BADPOConfig` that a recipe sets inside a block, mapped to the names of the block and the key.
_KEYS_IN_BLOCKS = {
    "warm_start": "bias.warm_start",
    "bias_learning_rate": "bias.learning_rate",
    "bias_fit": "bias.fit",
    "gold_annotators": "bias.gold_annotators",
}
_BLOCKS: dict[str, type[Block]] = {"bias": BiasBlock, "reference": ReferenceBlock}
# If a recipe contains a string instead of a block, this string is the value of the block's main key.
_MAIN_KEYS = {"bias": "variant", "objective": "name"}
_KNOWN_KEYS = sorted(
    {
        *_RecipeKeys.model_fields,
        *_KEYS_IN_BLOCKS,
        *ACCEPTED_WITHOUT_EFFECT,
        *REFUSED,
        *ALIASES,
        "preset",
    }
)
# Wrong names that users may try for a recipe key, such as options of another command.
_SHORT_NAMES = {
    **dict.fromkeys(("model", "base_model", "policy"), "model_name_or_path"),
    **dict.fromkeys(("data", "dataset", "votes", "table", "train_file"), "dataset_name"),
    **dict.fromkeys(("out", "output", "folder"), "output_dir"),
    **dict.fromkeys(("lr", "rate"), "learning_rate"),
    **dict.fromkeys(("steps", "n_steps"), "max_steps"),
    **dict.fromkeys(("epochs", "num_epochs"), "num_train_epochs"),
    **dict.fromkeys(("batch_size", "train_batch_size"), "per_device_train_batch_size"),
    "baseline": "compare",
    "test_size": "held_out",
}
_MOST_ERRORS = 20  # maximum number of recipe errors that one message lists
# Descriptions of the recipe keys without a default.
_REQUIRED = {
    "model_name_or_path": "the model to train, given as a folder or a name on the Hub",
    "dataset_name": "the table of judgments",
}


@dataclass(frozen=True)
class Recipe:
    """All checked settings of a training run."""

    output_dir: str  # folder of the arms and seeds of the run
    training: Keys  # arguments of `BADPOConfig` without ``output_dir``
    model: ModelChoice
    data: DataChoice
    attributes: tuple[Keys, ...]  # for `badpo.data.attributes.attribute_from_config`
    reference: ReferenceBlock
    objective: Keys  # name in `OBJECTIVES` with settings; empty for the default of `BADPOConfig`
    keys: Keys  # all keys, including those of the preset; reading them gives this recipe again
    notices: tuple[Problem, ...]  # keys that are accepted without effect

    def arguments(self, **changes: object) -> BADPOConfig:
        """`BADPOConfig` of this recipe; ``changes`` replace individual arguments, such as the seed."""
        from badpo.training.config import BADPOConfig

        try:
            return BADPOConfig(**{"output_dir": self.output_dir, **self.training, **changes})
        except ModuleNotFoundError as error:
            reason = " ".join(str(error.name or error).split())
            raise ConfigError(
                f"E202 a recipe key requires a package that is not installed: {reason}. Install the package, or "
                "delete the key"
            ) from error

    @property
    def baselines(self) -> list[Recipe]:
        """Recipes of the baselines: the same settings, but with another objective and without theta."""
        dropped = ("compare", "objective", "push_to_hub")
        keys = {name: value for name, value in self.keys.items() if name not in dropped}
        keys["bias"] = {"variant": "none"}
        objectives = (
            {} if block["name"] == DPO else {"objective": block}
            for block in self.keys.get("compare", ())
        )
        trust_remote_code = self.model.trust_remote_code
        return [
            read_recipe(overrides=keys | one, trust_remote_code=trust_remote_code) for one in objectives
        ]


def read_recipe(
    path: str | Path | None = None,
    overrides: Keys | None = None,
    *,
    trust_remote_code: bool = False,
) -> Recipe:
    """Read a recipe from a YAML file and override individual keys.

    The file contains TRL's flat keys, the blocks ``columns``, ``attributes``, ``bias`` and ``reference``, and
    optionally the key ``preset``. Keys in the file override the values of the preset. In the ``config.yaml`` of a run
    folder, paths are relative to this folder. Like command-line options, ``overrides`` replace keys; a key with a dot
    sets a key inside a block. One `ConfigError` reports all unknown, refused, missing and invalid keys with their line
    numbers. Only the caller can allow a model to run its own code; a recipe file cannot.

    Examples
    --------
    >>> recipe = read_recipe(overrides={
    ...     "preset": "paper-0.5b", "dataset_name": "votes.csv", "output_dir": "runs/length",
    ...     "attributes": ["length"], "bias.variant": "pooled"})
    >>> recipe.training["learning_rate"], recipe.training["bias"], recipe.reference.learning_rate
    (5e-07, 'pooled', 1e-05)
    """
    file = YamlFile("", {}, {})
    if path is not None:
        file, folder = read_yaml(path), Path(path).parent
        if Path(path).name == RUN_RECIPE and (folder / RUN_ENVIRONMENT).exists():
            file = _resolve_paths(file, folder)
    return _check_recipe(file, overrides or {}, trust_remote_code)


def _check_recipe(file: YamlFile, overrides: Keys, trust_remote_code: bool) -> Recipe:
    checker = _RecipeChecker(file, overrides)
    keys = checker.check()
    model_keys, data_keys = {*ModelChoice.model_fields}, {*DataChoice.model_fields}
    other_keys = model_keys | data_keys | {*_DEFAULTS, "objective", "compare"}
    model = ModelChoice(**keys.model_dump(include=model_keys))
    return Recipe(
        output_dir=keys.output_dir,
        training=keys.model_dump(exclude_unset=True, exclude=other_keys)
        | keys.bias.model_dump(by_alias=True),
        model=model.model_copy(update={"trust_remote_code": trust_remote_code}),
        data=DataChoice(**keys.model_dump(include=data_keys)),
        attributes=tuple(keys.attributes),
        reference=keys.reference,
        objective=keys.objective,
        keys=keys.model_dump(exclude_unset=True),
        notices=tuple(checker.notices),
    )


class _RecipeChecker:
    """Check the keys of a recipe and collect all errors and notices."""

    def __init__(self, file: YamlFile, overrides: Keys):
        self.notices: list[Problem] = []
        self._errors: list[str] = []
        self._file = file
        self._overrides = overrides

    def check(self) -> _RecipeKeys:
        """Return the checked keys of the recipe; raise one `ConfigError` that lists all errors."""
        try:
            keys = _RecipeKeys.model_validate(self._merge_keys())
        except ValidationError as error:
            errors = error.errors(include_url=False)
            for details in errors[:_MOST_ERRORS]:
                self._add_pydantic_error(details)
            if n_more := len(errors[_MOST_ERRORS:]):
                self._errors.append(f"E202 {self._file.where(())}: {n_more:,} more errors like these")
        if self._errors:
            raise ConfigError("\n".join(self._errors))
        return keys

    def _merge_keys(self) -> Keys:
        keys = _merge_layers(self._file.values, self._overrides)
        preset = keys.pop("preset", None)
        if preset is not None and preset not in list(PRESETS):
            what = f'unknown preset "{preset}"; choose one of {", ".join(PRESETS)}'
            self._add_error("E201", ("preset",), what)
        for old, new in ALIASES.items():
            if old in keys and new in keys:
                self._add_error("E203", (old,), f"{old} and {new} set the same argument; keep {new}")
            if old in keys:
                keys.setdefault(new, keys.pop(old))
        for name in [key for key in keys if key.startswith("no_") and isinstance(keys[key], bool)]:
            keys.setdefault(name[3:], not keys.pop(name))
        loss_type = keys.get("loss_type")
        objective = objective_of_loss(loss_type) if refusal("loss_type", loss_type) else None
        if objective and "objective" not in keys:
            keys["objective"] = {"name": objective}
            del keys["loss_type"]
        effective = {key: value for key, value in keys.items() if self._has_effect(key, value)}
        merged = _merge_layers(PRESETS.get(str(preset), {}), effective)
        # an empty key removes the preset's value, except that an empty max_length means no limit
        set_keys = {
            key: value for key, value in merged.items() if value is not None or key == "max_length"
        }
        return _DEFAULTS | set_keys

    def _has_effect(self, key: str, value: object) -> bool:
        """Return whether badpo uses a recipe key; report a key that has no effect or is not allowed."""
        if key in ACCEPTED_WITHOUT_EFFECT:
            what = f"{key} has no effect: {ACCEPTED_WITHOUT_EFFECT[key]}"
            self.notices.append(Problem("N204", what, self._locate((key,)), "nothing to do"))
        elif key == "hub_token" and value and key not in self._overrides:
            what = "a recipe must not contain a token; use the option `--hub_token`, or log in with `hf auth login`"
            self._add_error("E205", (key,), what)
        elif reason := refusal(key, value):
            self._add_error("E205", (key,), reason)
        return key not in ACCEPTED_WITHOUT_EFFECT and key not in REFUSED

    def _add_pydantic_error(self, error: ErrorDetails) -> None:
        """Translate a pydantic error."""
        place, cause = (
            tuple(str(part) for part in error["loc"]),
            error.get("ctx", {}).get("error"),
        )
        if error["type"] == "missing":
            self._add_missing_key(place[0])
        elif error["type"] == "extra_forbidden":
            self._add_unknown_key(place)
        elif isinstance(cause, ConfigError):
            attribute_code = "E207" if place == ("attributes",) else "E204"
            code = attribute_code if place[0] == "attributes" else "E202"
            self._add_error(code, place, str(cause))
        else:
            what = f"{'.'.join(place)} is {error['input']!r}: {error['msg'].lower()}"
            self._add_error("E202", place, what)

    def _add_missing_key(self, key: str) -> None:
        """Report a missing key, unless the error about an unknown key already suggests it."""
        if any(_SHORT_NAMES.get(name) == key for name in (*self._overrides, *self._file.values)):
            return
        name = key if self._file.name else f"--{key}"
        self._add_error("E206", (key,), f"{name} is missing: {_REQUIRED[key]}")

    def _add_unknown_key(self, place: tuple[str, ...]) -> None:
        """Report an unknown key or option, and suggest the name that the user probably meant."""
        *outer, key = place
        meant = "" if outer else _SHORT_NAMES.get(key, "")
        if meant:
            question = f" Did you mean {'--' * (key in self._overrides)}{meant}?"
        else:
            question = did_you_mean(key, [*_BLOCKS[outer[0]].model_fields] if outer else _KNOWN_KEYS)
        where = f" in {outer[0]}" if outer else ""
        self._add_error("E201", place, f'unknown key "{key}"{where}.{question}')

    def _add_error(self, code: str, place: tuple[str, ...], what: str) -> None:
        self._errors.append(f"{code} {self._locate(place)}: {what}")

    def _locate(self, place: tuple[str, ...]) -> str:
        """Return the option or line that sets a key; if nothing sets the key, return the innermost block around it."""
        for length in range(len(place), 0, -1):
            dotted = ".".join(place[:length])
            flat = next((name for name, inner in _KEYS_IN_BLOCKS.items() if inner == dotted), dotted)
            for name in (dotted, flat):
                if name in self._overrides:
                    return f"--{name}"
            if flat != dotted and flat in self._file.values:
                return self._file.where((flat,))
        return self._file.where(place)


def _merge_layers(lower: Keys, upper: Keys) -> Keys:
    """Merge keys; ``upper`` overrides ``lower``. A key with a dot sets a key inside a block, and blocks are merged."""
    merged: Keys = {}
    for key, value in [*lower.items(), *upper.items()]:
        # YAML may read a key as a number; as a string, the key is reported as unknown
        name, _, inner = _KEYS_IN_BLOCKS.get(str(key), str(key)).partition(".")
        if inner or (name in _MAIN_KEYS and isinstance(value, str)):
            value = {inner or _MAIN_KEYS[name]: value}
        both_blocks = isinstance(value, dict) and isinstance(merged.get(name), dict)
        merged[name] = {**merged[name], **value} if both_blocks else value
    return merged


# -- recipes of run folders --------------------------------------------------------------------------------------

# Recipe keys whose values may be paths; in the recipe of a run folder, these paths are relative to that folder.
PATHS = (
    "model_name_or_path",
    "dataset_name",
    "held_out_name",
    "output_dir",
    "reference_cache",
    "deepspeed",
    "fsdp_config",
    "accelerator_config",
)
# Recipe keys whose values contain neither paths nor code, so that badpo reads them even from another machine's run.
_TRUSTED_KEYS = [
    *("attributes", "bias", "columns", "held_out", "split_seed", "annotators_missing"),
    *("repeated", "winners", "bad_rows", "layout", "beta", "dtype", "encoding", "learning_rate"),
    *("max_length", "max_prompt_length", "seed", "use_cpu"),
]

_SOURCE_OPTIONS = {"model_name_or_path": "--model", "dataset_name": "--data"}


@dataclass(frozen=True)
class RunSources:
    """Initial model and table that the caller names; they replace the model and table in a run's recipe."""

    model_name_or_path: str | None = None
    dataset_name: str | None = None
    trusted: bool = (
        False  # whether to trust the recipe of a run that was not made with this machine's key
    )


NO_SOURCES = RunSources()


def read_run_recipe(folder: Path, sources: RunSources = NO_SOURCES) -> Recipe:
    """Read the recipe of a finished run, and make its paths relative to the current folder."""
    named = {name: value for name, value in asdict(sources).items() if isinstance(value, str)}
    file = _resolve_paths(read_yaml(folder / RUN_RECIPE), folder)
    values = dict(file.values)
    if not (sources.trusted or made_here(folder)):
        missing = [option for name, option in _SOURCE_OPTIONS.items() if name not in named]
        if missing:
            raise ConfigError(
                f"{folder} was made with another pseudonym key ({KEY_VARIABLE}), so badpo does not trust its "
                f"{RUN_RECIPE}, which can name any model, table and folder. Add {' and '.join(missing)}, or add "
                "--trust-run if you know who made the run"
            )
        values = {name: values[name] for name in _TRUSTED_KEYS if name in values}
        values["output_dir"] = str(folder.parent)
    if "model_name_or_path" in named:
        values.pop("reference", None)  # the named model is the reference
    return _check_recipe(replace(file, values=values), named, False)


def make_portable(keys: Keys, folder: Path) -> Keys:
    """Return the keys of a recipe for storage in a run folder, without secrets and with relative paths."""
    portable = {name: value for name, value in keys.items() if name != "hub_token"}
    for name in PATHS:
        value, is_path = portable.get(name), name in ("output_dir", "reference_cache")
        if isinstance(value, str) and (is_path or Path(value).exists()):
            portable[name] = make_relative(value, folder)
    return portable


def make_relative(path: str, folder: Path) -> str:
    """Return a path relative to a folder, with a leading dot; if it is on another drive, return its last component."""
    try:
        relative = Path(os.path.relpath(os.path.realpath(path), os.path.realpath(folder))).as_posix()
    except ValueError:
        return Path(path).name
    return relative if relative.startswith(".") else f"./{relative}"


def _resolve_paths(file: YamlFile, folder: Path) -> YamlFile:
    """Replace paths relative to a run folder with paths relative to the current folder, or with absolute paths."""
    values = dict(file.values)
    for name in PATHS:
        value = values.get(name)
        if isinstance(value, str) and value.startswith("."):
            path = os.path.normpath(os.path.join(os.path.realpath(folder), value))
            values[name] = os.path.relpath(path) if Path(path).is_relative_to(Path.cwd()) else path
    return replace(file, values=values)
