"""A training run as a file: TRL's flat keys, four blocks of ours, and the paper's values as presets.

Reading a recipe loads no torch, so that a misspelt key is answered at once. All mistakes of a file are
reported together, each with its line.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model, field_validator

from badpo.data.attributes import Attribute, attribute_from_config
from badpo.data.files import RUN_ENVIRONMENT, RUN_RECIPE, made_here
from badpo.data.judgments import Judgments
from badpo.data.privacy import KEY_VARIABLE, pseudonyms
from badpo.data.problems import ConfigError, Problem, did_you_mean
from badpo.data.tables import KNOWN
from badpo.data.yaml_files import YamlFile, read_yaml
from badpo.training.trl_keys import (
    ACCEPTED_WITHOUT_EFFECT,
    ALIASES,
    DEFAULT_OUTPUT_DIR,
    FLASH,
    HONOURED,
    HONOURED_DATA,
    HONOURED_MODEL,
    HONOURED_TRAINING,
    IMPLEMENTATIONS,
    LAUNCH,
    PRESETS,
    REFUSED,
    is_implementation,
    refusal,
)

OWN_TRAINING: dict[str, Any] = {
    "encoding": str,
    "max_prompt_length": int,
    "batching": str,
    "attention": str,
    "reference_cache": str,
}

OWN_DATA: dict[str, Any] = {
    "held_out": float,
    "split_seed": int,
    "ties": str,
    "annotators_missing": str,
    "repeated": str,
    "winners": Any,
}

DTYPES = ("auto", "float32", "bfloat16", "float16")

# What a recipe may say of how its model is loaded, and the values: none is run, fetched or a secret.
MODEL_KEYWORDS: dict[str, tuple[Any, ...]] = {
    "attn_implementation": IMPLEMENTATIONS + FLASH,
    "dtype": DTYPES,
    "torch_dtype": DTYPES,
    "low_cpu_mem_usage": (True, False),
    "use_cache": (True, False),
    "local_files_only": (True, False),
    "use_safetensors": (True,),
    "trust_remote_code": (False,),
}


def model_keyword_refusal(keyword: str, value: Any) -> str | None:
    """Why a recipe may not set this keyword of ``from_pretrained``, and what to do instead; None where it may."""
    if keyword == "trust_remote_code" and value:
        return REFUSED[keyword]
    if "token" in keyword:
        return "a recipe is kept with its run and holds no secret; log in with hf auth login"
    if keyword not in MODEL_KEYWORDS:
        return (
            f"a recipe may set {', '.join(MODEL_KEYWORDS)}; for anything else load the model in Python and hand it to "
            "BADPOTrainer"
        )
    if str(value) in FLASH and not is_implementation(str(value)):
        return "the package kernels is installed, with which it may be fetched from the Hub; uninstall it, or use sdpa"
    # by their text, for 1 is True and a list has no hash
    allowed = [str(choice) for choice in MODEL_KEYWORDS[keyword]]
    if str(value) not in allowed or not isinstance(value, bool | str):
        return f"choose {', '.join(allowed)}"
    return None


class Block(BaseModel):
    """A block of a recipe; unknown keys in it are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


# Our names on the left, the names in the user's table on the right; nothing there leaves a column unused.
_COLUMNS: dict[str, Any] = dict.fromkeys(KNOWN, (str | None, None))
Columns = create_model("Columns", __base__=Block, **_COLUMNS)


class BiasBlock(Block):
    """The bias term: which parts are learned, how fast, and from where; and whose theta is held at zero."""

    variant: Literal["none", "pooled", "per_annotator", "shared_mean", "class"] | None = None
    learning_rate: float = Field(default=1e-2, ge=0)
    warm_start: Literal["zero", "offline", "audit"] = "zero"
    gold_annotators: list[str] = Field(default_factory=list)

    @field_validator("gold_annotators", mode="before")
    @classmethod
    def _as_pseudonyms(cls, named: Any) -> Any:
        # of ids that YAML reads as numbers too; a recipe is kept with its run, so it holds no id as the table has it
        return pseudonyms([str(name) for name in named]) if isinstance(named, list | tuple) else named


class ReferenceBlock(Block):
    """The reference: the model as it is, or after a supervised stage on the majority-chosen responses.

    ``max_steps`` replaces ``num_train_epochs`` where it is positive; the batch is that of the preference stage unless
    ``per_device_train_batch_size`` says otherwise. ``balance`` names declared attributes whose values are made equally
    frequent among those responses.
    """

    sft: bool = False
    learning_rate: float = Field(default=2e-5, gt=0)
    num_train_epochs: float = Field(default=1.0, gt=0)
    max_steps: int = -1
    per_device_train_batch_size: int | None = Field(default=None, gt=0)
    balance: list[str] = Field(default_factory=list)


class PrivacyBlock(Block):
    """What always holds; a file may say so, and may not say otherwise."""

    pseudonymise: Literal[True] = True
    share_annotator_estimates: Literal[False] = False


BLOCKS: dict[str, type[Block]] = {
    "columns": Columns,
    "bias": BiasBlock,
    "reference": ReferenceBlock,
    "privacy": PrivacyBlock,
}


@dataclass(frozen=True)
class ModelChoice:
    """Which model is trained, and whether through an adapter; TRL's names and defaults."""

    model_name_or_path: str
    model_revision: str = "main"
    dtype: str = "float32"
    model_init_kwargs: Mapping[str, Any] = field(default_factory=dict)
    trust_remote_code: bool = False
    use_peft: bool = False
    lora_r: int = 16
    lora_alpha: int = 32
    lora_dropout: float = 0.05
    lora_target_modules: str | list[str] | None = None

    @property
    def init_kwargs(self) -> dict[str, Any]:
        """Keyword arguments for ``AutoModelForCausalLM.from_pretrained``."""
        # as in TRL the keywords have the last word; that code may run is only the caller's to say
        given = {ALIASES.get(key, key): value for key, value in self.model_init_kwargs.items()}
        named = {"revision": self.model_revision, "dtype": self.dtype}
        return {**named, **given, "trust_remote_code": self.trust_remote_code}

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


@dataclass(frozen=True)
class DataChoice:
    """Which table is read and how.

    Attributes
    ----------
    dataset_name : str
        A file, or the name of a data set on the Hub.
    dataset_config, dataset_train_split
        Configuration and split of a data set on the Hub.
    columns : mapping
        Our column name -> the table's; None leaves a column unused.
    held_out : float
        Share of the prompts whose judgments are not trained on, 0 or more and below 1.
    split_seed : int
        Seed of that split; it is not the training seed, so that seeds share their held-out judgments.
    ties, annotators_missing, repeated, winners
        As in `Judgments.read`.
    """

    dataset_name: str
    dataset_config: str | None = None
    dataset_train_split: str = "train"
    columns: Mapping[str, str | None] = field(default_factory=dict)
    held_out: float = 0.1
    split_seed: int = 0
    ties: str = "drop"
    annotators_missing: str = "error"
    repeated: str = "all"
    winners: Mapping[str, str] = field(default_factory=dict)

    def source(self) -> Any:
        """The table for `Judgments.read`: the file's path, or the loaded split of a data set on the Hub.

        A name with one slash and no file suffix, such as ``allenai/multipref``, is looked for on the Hub when no
        file is there.
        """
        path = Path(self.dataset_name)
        if path.exists() or path.suffix or len(path.parts) != 2:
            return path
        from datasets import load_dataset

        try:
            return load_dataset(self.dataset_name, self.dataset_config, split=self.dataset_train_split)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f'E190 dataset_name: there is no file "{self.dataset_name}", and no such data set could be loaded from '
                f"the Hub ({str(error).splitlines()[0]}); download it once with network, or name a local file"
            ) from error

    def read(self, attributes: Sequence[Attribute]) -> Judgments:
        """The judgments of the table, with these attributes measured."""
        return Judgments.read(
            self.source(),
            columns=self.columns,
            attributes=attributes,
            ties=self.ties,
            annotators_missing=self.annotators_missing,
            repeated=self.repeated,
            winners=self.winners or None,
        )


# What names a file or a folder of this machine, where it is one; a run keeps them relative to its own folder.
PATHS = (
    "model_name_or_path",
    "dataset_name",
    "output_dir",
    "reference_cache",
    "deepspeed",
    "fsdp_config",
    "accelerator_config",
)
# What is taken from the recipe of a run that was not made here: numbers and names of columns, no place and no program.
OF_OTHERS = [
    "attributes",
    "bias",
    "columns",
    "held_out",
    "split_seed",
    "ties",
    "annotators_missing",
    "repeated",
    "winners",
    "beta",
    "dtype",
    "encoding",
    "learning_rate",
    "max_length",
    "max_prompt_length",
    "seed",
    "use_cpu",
]

_FLAGS = {"model_name_or_path": "--model", "dataset_name": "--data"}

_LISTED = ("attributes", "objective", "preset")
KNOWN_KEYS = sorted(
    {*HONOURED, *ACCEPTED_WITHOUT_EFFECT, *REFUSED, *OWN_TRAINING, *OWN_DATA, *ALIASES, *BLOCKS, *_LISTED}
)


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a training run, checked.

    Attributes
    ----------
    output_dir : str
        The folder of the run's arms and seeds.
    training : dict
        Keyword arguments of `BADPOConfig`, apart from ``output_dir``.
    model : ModelChoice
    data : DataChoice
    attributes : tuple of dict
        Configurations for `badpo.data.attributes.attribute_from_config`.
    reference : ReferenceBlock
    objective : dict
        Its ``name`` in `badpo.objective.objectives.OBJECTIVES` and its settings; empty for every vote's own weight.
    launch : tuple of str
        Arguments for ``accelerate launch``, which starts the run; none where one process trains.
    keys : dict
        The recipe in full but for ``launch``, with the preset's values written out; reading it again gives this recipe.
    notices : tuple of Problem
        What was accepted without effect, renamed or converted.
    """

    output_dir: str
    training: dict[str, Any]
    model: ModelChoice
    data: DataChoice
    attributes: tuple[dict[str, Any], ...]
    reference: ReferenceBlock
    objective: dict[str, Any]
    launch: tuple[str, ...]
    keys: dict[str, Any]
    notices: tuple[Problem, ...]

    def arguments(self, **changes):
        """The `BADPOConfig` of this recipe; ``changes`` replace single arguments, such as the seed."""
        from badpo.training.config import BADPOConfig

        return BADPOConfig(**{"output_dir": self.output_dir, **self.training, **changes})


def read_recipe(
    path: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    trust_remote_code: bool = False,
) -> Recipe:
    """The recipe in a YAML file, with single keys replaced.

    Parameters
    ----------
    path : str, Path or None
        A YAML file with TRL's flat keys, the blocks ``columns``, ``attributes``, ``bias`` and ``reference``,
        and possibly ``preset``. What the file says replaces the preset's values. In the ``config.yaml`` of a run folder
        relative places are seen from there. None: only the overrides.
    overrides : mapping, optional
        Keys that replace those of the file, as from the command line. A dot reaches into a block:
        ``{"bias.variant": "pooled"}``.
    trust_remote_code : bool
        Only the caller can allow it; a file cannot.

    Returns
    -------
    Recipe

    Raises
    ------
    ConfigError
        Every unknown, refused, missing or ill-typed key at once, each with its line.

    Examples
    --------
    >>> recipe = read_recipe(overrides={
    ...     "preset": "paper-0.5b", "dataset_name": "votes.csv", "output_dir": "runs/length",
    ...     "attributes": ["length"], "bias.variant": "pooled"})
    >>> recipe.training["learning_rate"], recipe.training["bias"], recipe.reference.learning_rate
    (5e-07, 'pooled', 1e-05)
    """
    if path is None:
        return _read(YamlFile("", {}, {}), overrides or {}, trust_remote_code)
    file, folder = read_yaml(path), Path(path).parent
    is_of_run = Path(path).name == RUN_RECIPE and (folder / RUN_ENVIRONMENT).exists()
    return _read(_from_run_folder(file, folder) if is_of_run else file, overrides or {}, trust_remote_code)


def _read(file: YamlFile, overrides: Mapping[str, Any], trust_remote_code: bool) -> Recipe:
    reading = _Reading(file, dict(overrides))
    recipe = reading.recipe(trust_remote_code)
    if reading.complaints:
        raise ConfigError("\n".join(reading.complaints))
    assert recipe is not None
    return recipe


@dataclass(frozen=True)
class RunSources:
    """What the caller says of a run: the model that it started from, its table, a cache, and whether to trust the rest.

    Attributes
    ----------
    model_name_or_path, dataset_name, reference_cache : str or None
        In place of what the run's recipe names.
    trusted : bool
        Whether the recipe of a run that was not made with this machine's key may name them.
    """

    model_name_or_path: str | None = None
    dataset_name: str | None = None
    reference_cache: str | None = None
    trusted: bool = False


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
        values = {name: values[name] for name in OF_OTHERS if name in values} | {
            "output_dir": str(folder.parent)
        }
    if "model_name_or_path" in named:
        values.pop("reference", None)  # it is the model that the run started from
    return _read(replace(file, values=values), named, False)


def kept_in_run(keys: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The keys of a recipe as a run folder keeps them: no secret, and places relative to the folder."""
    kept = {name: value for name, value in keys.items() if name != "hub_token"}
    for name in PATHS:
        if isinstance(kept.get(name), str) and (
            name in ("output_dir", "reference_cache") or Path(kept[name]).exists()
        ):
            kept[name] = relative_to(kept[name], folder)
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


class _Reading:
    """One pass over a recipe's keys that collects what is wrong with it."""

    def __init__(self, file: YamlFile, overrides: dict[str, Any]):
        self.complaints: list[str] = []
        self._notices: list[Problem] = []
        self._file = file
        self._overrides = overrides
        self._keys = self._merged()

    def recipe(self, trust_remote_code: bool) -> Recipe | None:
        typed = {**HONOURED, **OWN_TRAINING, **OWN_DATA}
        values = {k: self._typed(k, v, typed[k]) for k, v in self._keys.items() if k in typed}
        blocks = {name: self._block(name, model) for name, model in BLOCKS.items()}
        attributes, objective = self._attributes(), self._objective()
        values["output_dir"] = values.get("output_dir") or DEFAULT_OUTPUT_DIR
        self._require(values, blocks["bias"], attributes)
        if blocks["reference"].balance and not blocks["reference"].sft:
            what = "balance is about the supervised stage, and there is none; add sft: true, or leave it out"
            self._complain("E202", ("reference", "balance"), what)
        launch = self._launch(values.get("accelerate_config"), values.get("num_processes"))
        if self.complaints:
            return None
        bias, columns, reference = (blocks[name] for name in ("bias", "columns", "reference"))
        of_run = {name: values[name] for name in values if name in {**HONOURED_TRAINING, **OWN_TRAINING}}
        of_model = {name: values[name] for name in values if name in HONOURED_MODEL}
        of_data = {name: values[name] for name in values if name in {**HONOURED_DATA, **OWN_DATA}}
        output_dir = of_run.pop("output_dir")
        of_bias = {
            "bias": bias.variant,
            "bias_learning_rate": bias.learning_rate,
            "warm_start": bias.warm_start,
            "gold_annotators": bias.gold_annotators,
        }
        return Recipe(
            output_dir=output_dir,
            training=of_run | of_bias,
            model=ModelChoice(**of_model, trust_remote_code=trust_remote_code),
            data=DataChoice(**of_data, columns=columns.model_dump(exclude_unset=True)),
            attributes=attributes,
            reference=reference,
            objective=objective,
            launch=launch,
            keys={
                **{name: value for name, value in values.items() if name not in LAUNCH},
                **{n: b.model_dump(exclude_unset=True) for n, b in blocks.items()},
                "attributes": list(attributes),
                **({"objective": objective} if objective else {}),
            },
            notices=tuple(self._notices),
        )

    def _launch(self, config: str | None, n_processes: int | None) -> tuple[str, ...]:
        if isinstance(n_processes, int) and n_processes < 1:
            what = f"num_processes is {n_processes}; it must be 1 or more"
            self._complain("E202", ("num_processes",), what)
        processes = () if n_processes is None else ("--num_processes", str(n_processes))
        if config is None:
            return () if n_processes == 1 else processes
        file = _accelerate_file(str(config))
        if file is None and "accelerate_config" not in self._overrides:
            what = (
                f"accelerate_config: {config} is refused: a recipe may name one of TRL's files (multi_gpu, zero2, "
                "...); name a file of your own yourself: --accelerate_config FILE"
            )
            self._complain("E205", ("accelerate_config",), what)
        return ("--config_file", file or str(config), *processes)

    def _merged(self) -> dict[str, Any]:
        given = _merge(_with_blocks(self._file.values), _nested(self._overrides))
        preset = given.pop("preset", None)
        if preset is not None and preset not in list(PRESETS):
            what = f'unknown preset "{preset}"; choose one of {", ".join(PRESETS)}'
            self._complain("E201", ("preset",), what)
        self._rename(given)
        followed = {key: value for key, value in given.items() if self._is_followed(key, value)}
        merged = _merge(PRESETS.get(str(preset), {}), followed)
        # A key without a value is not set, whatever the preset says; only for max_length does it count.
        return {key: value for key, value in merged.items() if value is not None or key == "max_length"}

    def _rename(self, given: dict[str, Any]) -> None:
        for old, new in ALIASES.items():
            if old in given and new in given:
                self._complain("E203", (old,), f"{old} and {new} say the same; keep {new}")
            if old in given:
                given.setdefault(new, given.pop(old))
        for name in [key for key in given if key.startswith("no_") and key[3:] in KNOWN_KEYS]:
            if isinstance(given[name], bool):
                given.setdefault(name[3:], not given.pop(name))

    def _is_followed(self, key: str, value: Any) -> bool:
        if key in ACCEPTED_WITHOUT_EFFECT:
            what = f"{key} has no effect: {ACCEPTED_WITHOUT_EFFECT[key]}"
            self._notices.append(Problem("N204", what, self._where((key,)), "nothing to do", "notice"))
        elif key in REFUSED:
            if reason := refusal(key, value):
                self._complain("E205", (key,), reason)
        elif key not in KNOWN_KEYS:
            self._complain("E201", (key,), f'unknown key "{key}".{did_you_mean(key, KNOWN_KEYS)}')
        else:
            return True
        return False

    def _typed(self, key: str, value: Any, kind: Any) -> Any:
        if kind is Any or value is None:
            return value
        try:
            if isinstance(value, bool) and kind is not bool:
                raise ValueError
            return TypeAdapter(kind, config=ConfigDict(coerce_numbers_to_str=True)).validate_python(value)
        except ValueError:
            self._complain("E202", (key,), f"{key} is {value!r}; it must be {_KIND_NAMES[kind]}")
            return value

    def _block(self, name: str, model: type[Block]) -> Any:
        value = self._keys.get(name, {})
        if not isinstance(value, dict):
            self._complain("E202", (name,), f"{name} is {value!r}; it must be a block of keys")
            return model()
        try:
            return model(**{str(key): entry for key, entry in value.items()})
        except ValidationError as error:
            for detail in error.errors():
                cause = detail.get("ctx", {}).get("error")
                if isinstance(cause, ConfigError):
                    raise cause from error
                place = (name, *(str(part) for part in detail["loc"]))
                code, what = "E202", f"{'.'.join(place)} is {detail['input']!r}: {detail['msg'].lower()}"
                if detail["type"] == "extra_forbidden":
                    hint = did_you_mean(place[-1], list(model.model_fields))
                    code, what = "E201", f'unknown key "{place[-1]}" in {name}.{hint}'
                self._complain(code, place, what)
            return model()

    def _attributes(self) -> tuple[dict[str, Any], ...]:
        entries = self._keys.get("attributes", [])
        if not isinstance(entries, list):
            entries = [entries]
        configs = [{"type": entry} if isinstance(entry, str) else entry for entry in entries]
        for number, config in enumerate(configs):
            if not isinstance(config, dict) or "type" not in config:
                what = f"attribute {number + 1} is {config!r}; it must be a name, or a block with a type"
                self._complain("E202", ("attributes", str(number)), what)
                continue
            try:
                attribute_from_config(config)
            except ConfigError as error:
                self._complain("E204", ("attributes", str(number)), str(error))
        return tuple(configs)

    def _objective(self) -> dict[str, Any]:
        named = self._keys.get("objective", {})
        if named and (not isinstance(named, dict) or not isinstance(named.get("name"), str)):
            self._complain("E202", ("objective",), f"objective is {named!r}; it must be a block with a name")
        elif named:
            from badpo.objective.objectives import require_known  # brings torch

            try:
                require_known(named["name"])
            except ConfigError as error:
                self._complain("E202", ("objective",), str(error))
        return named

    def _require(self, values: dict[str, Any], bias: BiasBlock, attributes: tuple) -> None:
        needed = {
            "model_name_or_path": "the model to train, a folder or a name on the Hub",
            "dataset_name": "the table of judgments",
        }
        for key, meaning in needed.items():
            if not values.get(key):
                self._complain("E206", (), f"{key} is missing: {meaning}")
        if bias.variant != "none" and not attributes:
            what = (
                "no attribute is declared. Add one, as in attributes: [{type: length, ratio: 1.5}] or "
                "--attribute length:ratio=1.5, or train plain DPO with bias: {variant: none}"
            )
            self._complain("E207", (), what)
        held_out = values.get("held_out", 0.1)
        if isinstance(held_out, float) and not 0 <= held_out < 1:
            self._complain("E202", ("held_out",), f"held_out is {held_out}; it must be 0 or more and below 1")
        for key in ("model_init_kwargs", "winners"):
            if not isinstance(values.get(key, {}), dict):
                self._complain("E202", (key,), f"{key} is {values[key]!r}; it must be a block of keys")
                values[key] = {}
        for keyword, value in values.get("model_init_kwargs", {}).items():
            reason = model_keyword_refusal(str(keyword), value)
            if reason is not None:
                place = ("model_init_kwargs", str(keyword))
                # a secret is not repeated
                self._complain("E205", place, f"{'.'.join(place)} is refused: {reason}")
        if values.get("dtype", "auto") not in DTYPES:
            self._complain("E202", ("dtype",), f"dtype is {values['dtype']!r}; choose {', '.join(DTYPES)}")

    def _complain(self, code: str, place: tuple[str, ...], what: str) -> None:
        self.complaints.append(f"{code} {self._where(place)}: {what}")

    def _where(self, place: tuple[str, ...]) -> str:
        for length in range(len(place), 0, -1):
            dotted = ".".join(place[:length])
            if dotted in self._overrides:
                return f"--{dotted}"
        return self._file.where(place)


def _accelerate_file(name: str) -> str | None:
    """The file that TRL has under this name for ``accelerate launch``; None where there is none."""
    trl = find_spec("trl")
    for folder in trl.submodule_search_locations or () if trl else ():
        path = Path(folder) / "accelerate_configs" / f"{name}.yaml"
        if name.isidentifier() and path.is_file():
            return str(path)
    return None


def _with_blocks(values: Mapping[str, Any]) -> dict[str, Any]:
    # a key may be a number to YAML; as a text it is one that is not known
    named = {str(key): value for key, value in values.items()}
    main_keys = {"bias": "variant", "objective": "name"}
    return {
        key: {main_keys[key]: value} if key in main_keys and isinstance(value, str) else value
        for key, value in named.items()
    }


def _nested(overrides: Mapping[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for dotted, value in overrides.items():
        name, _, inner = dotted.partition(".")
        result = _merge(result, {name: {inner: value}} if inner else _with_blocks({name: value}))
    return result


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        both_blocks = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = {**merged[key], **value} if both_blocks else value
    return merged


_KIND_NAMES: dict[Any, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
