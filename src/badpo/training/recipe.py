"""A training run as a file: TRL's flat keys, blocks of ours, and the paper's values as presets.

Reading a recipe loads no torch, so that a misspelt key is answered at once. All mistakes of a file are
reported together, each with its line.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

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

from badpo.data.attributes import attribute_from_config, parsed_attribute
from badpo.data.files import RUN_ENVIRONMENT, RUN_RECIPE, Json, made_here
from badpo.data.privacy import KEY_VARIABLE, pseudonyms
from badpo.data.problems import ConfigError, Problem, did_you_mean
from badpo.data.tables import from_hub, is_hub_name
from badpo.data.yaml_files import YamlFile, read_yaml
from badpo.training import trl_keys
from badpo.training.trl_keys import ACCEPTED_WITHOUT_EFFECT, ALIASES, PRESETS, REFUSED, refusal

DPO = "dpo"  # a baseline's name: every vote counts as the table says, and no theta
PLACEBO = "placebo"  # DPO on votes that are weighted so that their shared bias leaves them


def _no_truth_value(value: Any) -> Any:
    # to pydantic, as to Python, true is the number 1
    if isinstance(value, bool):
        raise ValueError("true and false are no numbers")
    return value


Whole = Annotated[int, BeforeValidator(_no_truth_value)]
Number = Annotated[float, BeforeValidator(_no_truth_value)]


def _attribute(entry: Any) -> Json:
    config = parsed_attribute(entry) if isinstance(entry, str) else entry
    if not isinstance(config, dict) or "type" not in config:
        raise ConfigError(f"an attribute is {entry!r}; it must be a name, or a block with a type")
    attribute_from_config(config)
    return config


def _objective(named: Any, further: Sequence[str] = ()) -> Json:
    if not isinstance(named, dict) or not isinstance(named.get("name"), str):
        raise ConfigError(f"objective is {named!r}; it must be a block with a name")
    if named["name"] not in further:
        from badpo.objective.objectives import require_known  # brings torch

        require_known(named["name"], further)
    return named


def _objective_of(loss_type: Any) -> str | None:
    if refusal("loss_type", loss_type) is None:
        return None
    from badpo.objective.objectives import objective_of_loss  # brings torch

    return objective_of_loss(loss_type)


def _baselines(given: Any) -> list[Json]:
    """Objectives by name or block; DPO and its placebo if a flag or ``true`` names none."""
    if isinstance(given, bool):
        given = [DPO, PLACEBO] * given
    named = given if isinstance(given, list) else [given]
    blocks = ({"name": one} if isinstance(one, str) else one for one in named)
    return [_objective(one, [DPO, PLACEBO]) for one in blocks]


# -- blocks ------------------------------------------------------------------------------------------------------


class Block(BaseModel):
    """Some of a recipe's keys; unknown ones are errors."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, coerce_numbers_to_str=True, protected_namespaces=()
    )


class BiasBlock(Block):
    """The bias term: which parts are learned, how theta follows the votes, and whose theta is held at zero.

    Aliases are the names in `BADPOConfig`.
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
    def _as_pseudonyms(cls, named: Any) -> Any:
        # of ids that YAML reads as numbers too; a recipe is kept with its run, so it holds no id as the table has it
        return pseudonyms([str(name) for name in named]) if isinstance(named, list | tuple) else named


class ReferenceBlock(Block):
    """The reference: the model as it is, or after a supervised stage on the majority-chosen responses.

    ``max_steps`` replaces ``num_train_epochs`` where it is positive; the batch is that of the preference stage unless
    ``per_device_train_batch_size`` says otherwise.
    """

    sft: bool = False
    learning_rate: float = Field(default=2e-5, gt=0)
    num_train_epochs: float = Field(default=1.0, gt=0)
    max_steps: int = -1
    per_device_train_batch_size: int | None = Field(default=None, gt=0)


class ModelChoice(Block):
    """Which model is trained, and whether through an adapter; TRL's names and defaults."""

    model_name_or_path: str
    model_revision: str = "main"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "float32"
    trust_remote_code: bool = False
    use_peft: bool = False
    lora_r: Whole = 16
    lora_alpha: Whole = 32
    lora_dropout: Number = 0.05
    lora_target_modules: Any = None

    @property
    def init_kwargs(self) -> Json:
        """Keyword arguments for ``AutoModelForCausalLM.from_pretrained``."""
        named = {"revision": self.model_revision, "dtype": self.dtype}
        return {**named, "trust_remote_code": self.trust_remote_code}

    def peft_config(self):
        """The ``peft.LoraConfig`` asked for; None when all weights are trained."""
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
    """Which table is read and how; what is not told here is as in `Judgments.read`.

    ``columns`` gives our column name the table's; None leaves a column unused. ``held_out`` is the share of the prompts
    whose judgments are not trained on, and ``split_seed`` decides which: not the training seed, so that seeds share
    their held-out judgments.
    """

    dataset_name: str
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

    def source(self) -> Any:
        """The table for `Judgments.read`: a path, or the split of one on the Hub, as in ``allenai/multipref``."""
        path = Path(self.dataset_name)
        if is_hub_name(path):
            return from_hub(self.dataset_name, self.dataset_config, self.dataset_train_split)
        return path

    @property
    def reading(self) -> Json:
        """Options of `Judgments.read`."""
        return self.model_dump(include=_READING)


_KINDS: dict[Any, Any] = {int: Whole, float: Number}
_of_trl = {name: (_KINDS.get(kind, kind), None) for name, kind in trl_keys.HONOURED.items()}
_Honoured: Any = create_model("_Honoured", __base__=Block, **_of_trl)  # type: ignore[call-overload]


class _Keys(ModelChoice, DataChoice, _Honoured):
    """Every key of a recipe, those of the run beside those of its model and data."""

    encoding: str = "trl"
    max_length: Whole | None = None
    max_prompt_length: Whole | None = None
    batching: str = "random"
    attention: str = "packed"
    reference_cache: str | None = None
    bias: BiasBlock
    reference: ReferenceBlock
    objective: Annotated[Json, AfterValidator(_objective)] = {}
    compare: Annotated[list[Json], BeforeValidator(_baselines)] = []
    attributes: Annotated[
        list[Annotated[Json, BeforeValidator(_attribute)]],
        BeforeValidator(lambda given: given if isinstance(given, list) else [given]),
    ]

    @field_validator("attributes")
    @classmethod
    def _some_with_a_bias(cls, declared: list, info: ValidationInfo) -> list:
        if not declared and "bias" in info.data and info.data["bias"].variant != "none":
            raise ConfigError(
                "no attribute is declared. Add one, as in attributes: [{type: length, ratio: 1.5}] or "
                "--attribute length:ratio=1.5, or train plain DPO with bias: {variant: none}"
            )
        return declared


# What stands in every recipe, where neither the file nor a preset says another thing.
_DEFAULTS: Json = {
    "output_dir": trl_keys.DEFAULT_OUTPUT_DIR,
    **{name: {} for name in ("columns", "bias", "reference")},
    "attributes": [],
}
# Keys of a block under the names that `BADPOConfig` has for them.
_IN_BLOCKS = {"warm_start": "bias.warm_start", "bias_learning_rate": "bias.learning_rate"}
_IN_BLOCKS["bias_fit"] = "bias.fit"
_IN_BLOCKS["gold_annotators"] = "bias.gold_annotators"
# A block that is given as a text names one of its keys.
_MAIN_KEYS = {"bias": "variant", "objective": "name"}
_KNOWN_KEYS = sorted(
    {*_Keys.model_fields, *_IN_BLOCKS, *ACCEPTED_WITHOUT_EFFECT, *REFUSED, *ALIASES, "preset"}
)


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a training run, checked."""

    output_dir: str  # of the run's arms and seeds
    training: Json  # arguments of `BADPOConfig`, apart from ``output_dir``
    model: ModelChoice
    data: DataChoice
    attributes: tuple[Json, ...]  # for `badpo.data.attributes.attribute_from_config`
    reference: ReferenceBlock
    objective: Json  # its name in `OBJECTIVES` with its settings; empty for every vote's own weight
    keys: Json  # the recipe in full, with the preset's values written out; reading it again gives this recipe
    notices: tuple[Problem, ...]  # what was accepted without effect

    def arguments(self, **changes):
        """The `BADPOConfig` of this recipe; ``changes`` replace single arguments, such as the seed."""
        from badpo.training.config import BADPOConfig

        return BADPOConfig(**{"output_dir": self.output_dir, **self.training, **changes})

    @property
    def baselines(self) -> list[Recipe]:
        """What the run is compared with: an objective without theta each, and all else alike."""
        left_out = ("compare", "objective", "push_to_hub")
        keys = {name: value for name, value in self.keys.items() if name not in left_out}
        keys["bias"] = {"variant": "none"}
        named = (
            {"objective": one} if one["name"] != DPO else {} for one in self.keys.get("compare", ())
        )
        trust_remote_code = self.model.trust_remote_code
        return [read_recipe(overrides=keys | one, trust_remote_code=trust_remote_code) for one in named]


def read_recipe(
    path: str | Path | None = None,
    overrides: Json | None = None,
    *,
    trust_remote_code: bool = False,
) -> Recipe:
    """The recipe in a YAML file, with single keys replaced.

    The file has TRL's flat keys, the blocks ``columns``, ``attributes``, ``bias`` and ``reference``, and possibly
    ``preset``, whose values it replaces. In the ``config.yaml`` of a run folder relative places are seen from there.
    ``overrides`` replace keys as from the command line; a dot reaches into a block. A `ConfigError` has every unknown,
    refused, missing or ill-typed key at once, each with its line. A file cannot allow remote code, only the caller.

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
            file = _from_run_folder(file, folder)
    return _read(file, overrides or {}, trust_remote_code)


def _read(file: YamlFile, overrides: Json, trust_remote_code: bool) -> Recipe:
    reading = _Reading(file, overrides)
    found = reading.keys()
    of_model, of_data = {*ModelChoice.model_fields}, {*DataChoice.model_fields}
    apart = of_model | of_data | {*_DEFAULTS, "objective", "compare"}
    model = ModelChoice(**found.model_dump(include=of_model))
    return Recipe(
        output_dir=found.output_dir,
        training=found.model_dump(exclude_unset=True, exclude=apart)
        | found.bias.model_dump(by_alias=True),
        model=model.model_copy(update={"trust_remote_code": trust_remote_code}),
        data=DataChoice(**found.model_dump(include=of_data)),
        attributes=tuple(found.attributes),
        reference=found.reference,
        objective=found.objective,
        keys=found.model_dump(exclude_unset=True),
        notices=tuple(reading.notices),
    )


class _Reading:
    """One pass over a recipe's keys that collects what is wrong with it."""

    def __init__(self, file: YamlFile, overrides: Json):
        self.notices: list[Problem] = []
        self._complaints: list[str] = []
        self._file = file
        self._overrides = overrides

    def keys(self) -> Any:
        """The keys, checked; a `ConfigError` with everything that is wrong with them."""
        try:
            found = _Keys.model_validate(self._merged())
        except ValidationError as error:
            for detail in error.errors():
                self._tell(detail)
        if self._complaints:
            raise ConfigError("\n".join(self._complaints))
        return found

    def _merged(self) -> Json:
        given = _layered(self._file.values, self._overrides)
        preset = given.pop("preset", None)
        if preset is not None and preset not in list(PRESETS):
            what = f'unknown preset "{preset}"; choose one of {", ".join(PRESETS)}'
            self._complain("E201", ("preset",), what)
        for old, new in ALIASES.items():
            if old in given and new in given:
                self._complain("E203", (old,), f"{old} and {new} say the same; keep {new}")
            if old in given:
                given.setdefault(new, given.pop(old))
        for name in [key for key in given if key.startswith("no_") and isinstance(given[key], bool)]:
            given.setdefault(name[3:], not given.pop(name))
        if "objective" not in given and (objective := _objective_of(given.get("loss_type"))):
            given["objective"] = {"name": objective}
            del given["loss_type"]
        followed = {key: value for key, value in given.items() if self._is_followed(key, value)}
        merged = _layered(PRESETS.get(str(preset), {}), followed)
        # a key without a value is not set, whatever the preset says; only for max_length does it count
        named = {key: value for key, value in merged.items() if value is not None or key == "max_length"}
        return _DEFAULTS | named

    def _is_followed(self, key: str, value: Any) -> bool:
        if key in ACCEPTED_WITHOUT_EFFECT:
            what = f"{key} has no effect: {ACCEPTED_WITHOUT_EFFECT[key]}"
            self.notices.append(Problem("N204", what, self._where((key,)), "nothing to do"))
        elif key == "hub_token" and value and key not in self._overrides:
            what = (
                "a file may hold no token; give `--hub_token` yourself, or log in with `hf auth login`"
            )
            self._complain("E205", (key,), what)
        elif reason := refusal(key, value):
            self._complain("E205", (key,), reason)
        return key not in ACCEPTED_WITHOUT_EFFECT and key not in REFUSED

    def _tell(self, error: Any) -> None:
        """Translate one of pydantic's errors."""
        place, cause = (
            tuple(str(part) for part in error["loc"]),
            error.get("ctx", {}).get("error"),
        )
        block: Any = _Keys.model_fields[place[0]].annotation if len(place) > 1 else _Keys
        if error["type"] == "missing":
            self._complain("E206", place, f"{place[0]} is missing: {_NEEDED[place[0]]}")
        elif error["type"] == "extra_forbidden":
            known = _KNOWN_KEYS if block is _Keys else list(block.model_fields)
            inside = "" if block is _Keys else f" in {place[0]}"
            what = f'unknown key "{place[-1]}"{inside}.{did_you_mean(place[-1], known)}'
            self._complain("E201", place, what)
        elif isinstance(cause, ConfigError):
            of_attributes = "E207" if place == ("attributes",) else "E204"
            code = of_attributes if place[0] == "attributes" else "E202"
            self._complain(code, place, str(cause))
        else:
            what = f"{'.'.join(place)} is {error['input']!r}: {error['msg'].lower()}"
            self._complain("E202", place, what)

    def _complain(self, code: str, place: tuple[str, ...], what: str) -> None:
        self._complaints.append(f"{code} {self._where(place)}: {what}")

    def _where(self, place: tuple[str, ...]) -> str:
        for length in range(len(place), 0, -1):
            dotted = ".".join(place[:length])
            flat = next((name for name, inner in _IN_BLOCKS.items() if inner == dotted), dotted)
            for name in (dotted, flat):
                if name in self._overrides:
                    return f"--{name}"
            if flat != dotted and flat in self._file.values:
                return self._file.where((flat,))
        return self._file.where(place)


_NEEDED = {
    "model_name_or_path": "the model to train, a folder or a name on the Hub",
    "dataset_name": "the table of judgments",
}


def _layered(below: Mapping[Any, Any], above: Mapping[Any, Any]) -> Json:
    """Both together, the second before the first; a key with a dot in it is one of a block, and blocks are merged."""
    merged: Json = {}
    for key, value in [*below.items(), *above.items()]:
        # a key may be a number to YAML; as a text it is one that is not known
        name, _, inner = _IN_BLOCKS.get(str(key), str(key)).partition(".")
        if inner or (name in _MAIN_KEYS and isinstance(value, str)):
            value = {inner or _MAIN_KEYS[name]: value}
        both_blocks = isinstance(value, dict) and isinstance(merged.get(name), dict)
        merged[name] = {**merged[name], **value} if both_blocks else value
    return merged


# -- recipes of run folders --------------------------------------------------------------------------------------

# What names a file or a folder of this machine, where it is one; a run keeps them relative to its own folder.
PATHS = (
    *("model_name_or_path", "dataset_name", "output_dir", "reference_cache"),
    *("deepspeed", "fsdp_config", "accelerator_config"),
)
# What is taken from the recipe of a run that was not made here: numbers and names of columns, no place and no program.
OF_OTHERS = [
    *("attributes", "bias", "columns", "held_out", "split_seed", "annotators_missing"),
    *("repeated", "winners", "bad_rows", "layout", "beta", "dtype", "encoding", "learning_rate"),
    *("max_length", "max_prompt_length", "seed", "use_cpu"),
]

_READING = {"columns", "annotators_missing", "repeated", "winners", "bad_rows", "layout"}
_FLAGS = {"model_name_or_path": "--model", "dataset_name": "--data"}


@dataclass(frozen=True)
class RunSources:
    """What the caller says of a run: the model that it started from and its table, in place of the recipe's."""

    model_name_or_path: str | None = None
    dataset_name: str | None = None
    trusted: bool = False  # the recipe of a run that was not made with this machine's key may name them


NOTHING_SAID = RunSources()


def read_run_recipe(folder: Path, sources: RunSources = NOTHING_SAID) -> Recipe:
    """The recipe of a finished run, its places relative to its folder made relative to where we are."""
    named = {name: value for name, value in asdict(sources).items() if isinstance(value, str)}
    file = _from_run_folder(read_yaml(folder / RUN_RECIPE), folder)
    values = dict(file.values)
    if not (sources.trusted or made_here(folder)):
        lacking = [flag for name, flag in _FLAGS.items() if name not in named]
        if lacking:
            raise ConfigError(
                f"{folder} was not made with this machine's key ({KEY_VARIABLE} is another one elsewhere), and its "
                f"{RUN_RECIPE} may name any model, table and folder. Name them yourself with {' and '.join(lacking)}, "
                "or take them from there with --trust-run if you know who made it"
            )
        values = {name: values[name] for name in OF_OTHERS if name in values}
        values["output_dir"] = str(folder.parent)
    if "model_name_or_path" in named:
        values.pop("reference", None)  # it is the model that the run started from
    return _read(replace(file, values=values), named, False)


def kept_in_run(keys: Json, folder: Path) -> Json:
    """The keys of a recipe as a run folder keeps them: no secret, and places relative to the folder."""
    kept = {name: value for name, value in keys.items() if name != "hub_token"}
    for name in PATHS:
        value, is_place = kept.get(name), name in ("output_dir", "reference_cache")
        if isinstance(value, str) and (is_place or Path(value).exists()):
            kept[name] = relative_to(value, folder)
    return kept


def relative_to(path: str, folder: Path) -> str:
    """A place as seen from a folder, with a dot in front; the name alone where it is on another drive."""
    try:
        seen = Path(os.path.relpath(os.path.realpath(path), os.path.realpath(folder))).as_posix()
    except ValueError:
        return Path(path).name
    return seen if seen.startswith(".") else f"./{seen}"


def _from_run_folder(file: YamlFile, folder: Path) -> YamlFile:
    """A run's own recipe, with its places as they are seen from here."""
    values = dict(file.values)
    for name in PATHS:
        value = values.get(name)
        if isinstance(value, str) and value.startswith("."):
            there = os.path.normpath(os.path.join(os.path.realpath(folder), value))
            values[name] = os.path.relpath(there) if Path(there).is_relative_to(Path.cwd()) else there
    return replace(file, values=values)
