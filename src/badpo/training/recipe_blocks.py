"""The parts of a recipe: its blocks, the keys that TRL does not have, and the choice of model and data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model, field_validator

from badpo.data.attributes import Attribute
from badpo.data.importers.columns import KNOWN
from badpo.data.judgments import Judgments
from badpo.data.privacy import pseudonyms
from badpo.data.problems import ConfigError
from badpo.training.trl_keys import ALIASES, REFUSED

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
# Of attention and of experts: code of transformers itself. Any other name is that of a kernel on the Hub.
IMPLEMENTATIONS = ("eager", "sdpa", "flex_attention", "grouped_mm", "batched_mm")
FLASH = ("flash_attention_2", "flash_attention_3")

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


def kernels_are_fetched() -> bool:
    """Whether `transformers` would fetch a kernel, which is code, from the Hub: where the package for that is there."""
    return find_spec("kernels") is not None


def is_implementation(name: str) -> bool:
    """Whether an implementation of attention or experts is code that is installed here."""
    return name in IMPLEMENTATIONS or (name in FLASH and not kernels_are_fetched())


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
