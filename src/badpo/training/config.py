"""`BADPOConfig`: the arguments of a training run, with TRL's names and defaults."""

# mypy does not analyze transformers, so its classes are untyped
# mypy: disallow-subclassing-any=False

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import get_args, get_origin, get_type_hints

import torch
from transformers import TrainingArguments
from transformers.utils import is_torch_bf16_gpu_available

from badpo.data.files import Json
from badpo.data.privacy import pseudonyms
from badpo.data.problems import ConfigError, Problem
from badpo.objective.bias import VARIANTS
from badpo.objective.registry import objective_of_trl_keys
from badpo.training.batches import BATCHING
from badpo.training.encoding import ENCODINGS
from badpo.training.model_files import Settings
from badpo.training.trl_keys import (
    ACCEPTED_WITHOUT_EFFECT,
    DEFAULT_OUTPUT_DIR,
    REFUSED,
    refusal,
)

CHOICES: dict[str, tuple[str, ...]] = {
    "encoding": ENCODINGS,
    "bias": tuple(VARIANTS),
    "bias_fit": ("anchored", "adam"),
    "warm_start": ("zero", "offline", "audit"),
    "batching": BATCHING,
    "attention": ("packed", "padded"),
}

# Default learning rate of Adam for theta, as in the BA-DPO paper.
BIAS_LEARNING_RATE = 1e-2

# If beta exceeds LARGEST_BETA, the loss saturates, and training gives meaningless results without an error.
LARGEST_BETA = 100
PAPER_MAX_PROMPT_LENGTH = 384
RANGES: dict[str, tuple[float, float]] = {
    "learning_rate": (0, 10),
    "bias_learning_rate": (0, 10),
    "per_device_train_batch_size": (1, float("inf")),
    "per_device_eval_batch_size": (1, float("inf")),
    "gradient_accumulation_steps": (1, float("inf")),
    "seed": (0, 2**32 - 1),
}

# Argument types that badpo checks, mapped to their names in error messages.
_TYPE_NAMES = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "text",
    dict: "a dict",
}

# Trainer arguments that `BADPOConfig` always sets to the values below.
# `BADPOConfig` does not redefine fixed arguments as fields, because command-line parsers turn fields into flags.
FIXED = {
    "remove_unused_columns": False,
    "average_tokens_across_devices": False,
    "logging_nan_inf_filter": False,
    "hub_strategy": "end",
}

# Arguments that Python code may pass to `BADPOConfig` but a recipe must not set.
ALLOWED_IN_PYTHON = ("trust_remote_code", "model_init_kwargs")

# Old names of arguments of `transformers.TrainingArguments`, mapped to the new names.
RENAMED: dict[str, str] = {
    "gradient_checkpointing": "activation_checkpointing",
    "gradient_checkpointing_kwargs": "activation_checkpointing_kwargs",
}


def resolve_bias_fit(
    fit: str | None, learning_rate: float | None, warm_start: str
) -> tuple[str, float | None]:
    """Return theta's update rule and its learning rate, with defaults filled in.

    If ``fit`` is None, the update rule is "adam" if a learning rate or a warm start is set, and "anchored" otherwise.
    """
    sets_adam = learning_rate is not None or warm_start != "zero"
    fit = fit or ("adam" if sets_adam else "anchored")
    return fit, BIAS_LEARNING_RATE if fit == "adam" and learning_rate is None else learning_rate


def lacks_float64() -> bool:
    """Whether the default device lacks float64, which margins and the gradient of theta require."""
    return torch.backends.mps.is_available() and not torch.cuda.is_available()


def computes_in_bf16(use_cpu: bool) -> bool:
    """Whether training uses bf16 autocast by default, which requires a GPU that supports bf16.

    Trained weights keep the precision in which they were loaded. The supervised stage and the preference stage of a run
    have the same default precision.
    """
    return bool(is_torch_bf16_gpu_available()) and not use_cpu


@dataclass
class BADPOConfig(TrainingArguments):
    r"""Arguments of a BA-DPO run: those of `transformers.TrainingArguments` and the fields below.

    The arguments have the same names and defaults as in TRL's ``DPOConfig``. The batch size counts judgments: an
    optimizer step takes ``per_device_train_batch_size * gradient_accumulation_steps * processes`` judgments. With
    ``batching="comparisons"``, the batch size counts comparisons instead of judgments.

    Parameters
    ----------
    beta : float
        Strength of the pull toward the reference. The margin is u = beta * (log-ratio of a minus log-ratio of b).
    max_length : int or None
        Maximum number of tokens in a prompt together with a response. If there are more tokens, the end of the response
        is truncated. None means no limit.
    max_prompt_length : int or None
        Maximum number of tokens in a prompt. Longer prompts are truncated on the left. The limit requires
        ``encoding="paper"``, for which None means 384.
    encoding : {"trl", "paper"}
        ``trl`` produces the same token ids as TRL's ``DPOTrainer``; ``paper`` produces those of the paper.
    bias : str or None
        Learned parts of theta_k, as a key of `badpo.objective.bias.VARIANTS`. ``none`` is DPO, ``pooled`` learns one
        bias for all annotators, ``per_annotator`` learns one bias for each annotator, ``shared_mean`` learns both, and
        ``class`` adds an offset for each class of annotators. None means ``shared_mean``, or ``pooled`` if the votes
        name no annotators.
    bias_fit : {"anchored", "adam"} or None
        Rule that moves theta. ``anchored`` fits theta to the votes given the quality that the policy has learned
        (`badpo.objective.theta.AnchoredFit`) and needs no settings. ``adam`` is the rule of the paper. None means
        ``adam`` if one of the next two arguments is set, and ``anchored`` otherwise.
    bias_learning_rate : float or None
        With ``adam``: constant learning rate of theta's Adam optimizer, which does not clip gradients. 0 keeps theta at
        its initial value. None means 0.01.
    warm_start : {"zero", "offline", "audit"}
        With ``adam``: initial value of theta. "zero" starts at 0, which anchors the policy at the attribute rate of the
        reference. "offline" starts at the log-odds of the training votes. "audit" starts at the log-odds of the votes
        on swap pairs, in which quality cancels out, or like "offline" if there are no swap pairs.
    gold_annotators : list of str
        Annotators who are known to have no bias. Their theta is held at zero, and their votes identify the shared bias
        of the other annotators. The list contains ids as in the table, or pseudonyms; the config stores pseudonyms.
    batching : {"random", "grouped", "comparisons"}
        ``random`` shuffles individual judgments, as in the paper. ``grouped`` shuffles comparisons and keeps the
        judgments on a comparison together. A step then contains the same number of judgments on fewer comparisons,
        which makes it faster. With ``comparisons``, the batch size counts comparisons, each with all its judgments.
    disable_dropout : bool
        Whether to train without dropout, so that the policy and the reference agree at the first step.
    reference_cache : str or None
        Folder of the reference log-probabilities. None means a folder in the user's cache, which all runs share.
    attention : {"packed", "padded"}
        ``packed`` reads each prompt once for both responses and needs no padding. ``padded`` uses the model's own
        attention, with one row for each response.
    router_aux_loss_coef : float or None
        Weight of the load-balancing loss of a mixture of experts, as in TRL. The loss requires padded responses. None
        means the weight in the model's configuration; 0 disables the loss.
    model_init_kwargs : dict or None
        Arguments for ``AutoModelForCausalLM.from_pretrained`` if the model is given by name.
    trust_remote_code : bool
        Whether a model that is given by name may run its own code. Presets and recipes cannot set this to True.
    bf16 : bool or None
        Whether to use bf16 autocast. None means True if the device supports bf16, as in TRL. On other devices, the run
        uses float32.

    References
    ----------
    The values of the paper are in its Table ``tab:hyperparams`` and in ``badpo/training/presets.yaml``.

    Examples
    --------
    >>> args = BADPOConfig("runs/length", bias="pooled", use_cpu=True)
    >>> args.learning_rate, args.beta, args.remove_unused_columns
    (1e-06, 0.1, False)
    >>> BADPOConfig("runs/length", encoding="paper", max_length=1280, use_cpu=True).max_prompt_length
    384
    """

    _VALID_DICT_FIELDS = [*TrainingArguments._VALID_DICT_FIELDS, "model_init_kwargs"]

    learning_rate: float = 1e-6
    logging_steps: float = 10
    gradient_checkpointing: bool | None = True
    bf16: bool | None = None
    output_dir: str = DEFAULT_OUTPUT_DIR
    use_cpu: bool = False
    ddp_find_unused_parameters: bool | None = False
    warmup_steps: float = 0

    beta: float = 0.1
    max_length: int | None = 1024
    max_prompt_length: int | None = None
    encoding: str = "trl"
    bias: str | None = None
    bias_fit: str | None = None
    bias_learning_rate: float | None = None
    warm_start: str = "zero"
    gold_annotators: list[str] = field(default_factory=list)
    batching: str = "random"
    disable_dropout: bool = True
    reference_cache: str | None = None
    router_aux_loss_coef: float | None = None
    attention: str = "packed"
    model_init_kwargs: Json | str | None = None
    trust_remote_code: bool = False

    # TRL arguments that badpo ignores or supports with only one value; `trl_keys.yaml` gives the reasons.
    warmup_ratio: float | None = None
    dataset_num_proc: int | None = None
    truncation_mode: str = "keep_start"
    padding_free: bool = False
    pad_to_multiple_of: int | str | None = "auto"
    pad_token: str | None = None
    precompute_ref_log_probs: bool = False
    precompute_ref_batch_size: int | None = None
    loss_type: list[str] = field(default_factory=lambda: ["sigmoid"])
    loss_weights: list[float] | None = None
    ld_alpha: float | None = None
    f_divergence_type: str = "reverse_kl"
    f_alpha_divergence_coef: float = 0.5
    label_smoothing: float = 0.0
    use_weighting: bool = False
    discopop_tau: float = 0.05
    activation_offloading: bool = False
    sync_ref_model: bool = False
    ref_model_mixup_alpha: float = 0.6
    ref_model_sync_steps: int = 512

    def to_dict(self) -> dict[str, Settings]:
        """Return the arguments for experiment trackers, without gold annotators, secrets or folder names in paths."""
        public = {name: _hide_private(name, value) for name, value in super().to_dict().items()}
        return {name: value for name, value in public.items() if name != "gold_annotators"}

    def __post_init__(self) -> None:
        if errors := [*self._find_wrong_types()]:
            raise ConfigError("\n".join(errors))
        if self.warmup_ratio is not None and not self.warmup_steps:
            self.warmup_steps, self.warmup_ratio = self.warmup_ratio, None
        if errors := [*self._find_wrong_values(), *self._find_refused_keys()]:
            raise ConfigError("\n".join(errors))
        self.gold_annotators = pseudonyms(list(dict.fromkeys(map(str, self.gold_annotators))))
        if self.encoding == "paper" and self.max_prompt_length is None:
            self.max_prompt_length = PAPER_MAX_PROMPT_LENGTH
        set_keys = [f.name for f in fields(self) if getattr(self, f.name) not in (f.default, None, [])]
        self.notices = [
            Problem("N204", f"{name} has no effect: {reason}", "the arguments", "nothing to do")
            for name, reason in ACCEPTED_WITHOUT_EFFECT.items()
            if name in set_keys and name not in FIXED
        ]
        self.bias_fit, self.bias_learning_rate = resolve_bias_fit(
            self.bias_fit, self.bias_learning_rate, self.warm_start
        )
        for name, value in FIXED.items():
            setattr(self, name, value)
        self.use_cpu = self.use_cpu or lacks_float64()
        wants_bf16 = not self.fp16 if self.bf16 is None else self.bf16
        self.bf16 = wants_bf16 and (computes_in_bf16(self.use_cpu) or bool(self.bf16 and self.use_cpu))
        self._choose_checkpointing()
        try:
            super().__post_init__()
        except (ValueError, TypeError, OverflowError, OSError) as error:
            raise ConfigError(f"transformers refuses these arguments: {error}") from error

    @property
    def step_size(self) -> int:
        """Number of judgments in an optimizer step, or of comparisons if ``batching`` is "comparisons"."""
        size: int = self.per_device_train_batch_size * self.gradient_accumulation_steps * self.world_size
        return size

    @property
    def mixed_precision_name(self) -> str:
        """Precision of the forward pass: ``fp32``, ``bf16-autocast`` or ``fp16-autocast``."""
        name = "bf16-autocast" if self.bf16 else "fp16-autocast" if self.fp16 else "fp32"
        return f"{name}-tf32" if self.tf32 else name

    @property
    def objective(self) -> Json:
        """Recipe block of the objective that TRL's arguments ``loss_type`` and ``ld_alpha`` select."""
        return objective_of_trl_keys(self.loss_type, self.ld_alpha)[0]

    @classmethod
    def find_errors(cls, **arguments: object) -> list[str]:
        """Return one sentence for each error in the given arguments; all other arguments have their defaults."""
        config = cls.__new__(cls)
        for f in fields(cls):
            default = f.default_factory() if callable(f.default_factory) else f.default
            setattr(config, f.name, arguments.get(f.name, default))
        return [*config._find_wrong_types()] or [*config._find_wrong_values()]

    def _find_wrong_types(self) -> Iterator[str]:
        """Describe each argument of the wrong type; convert NumPy numbers to Python numbers."""
        # Command-line parsers change the types of dataclass fields, so the class annotations are used instead.
        # badpo does not check the types of fields that a subclass of `BADPOConfig` adds.
        hints = get_type_hints(BADPOConfig)
        for f in fields(BADPOConfig):
            value, hint = getattr(self, f.name), hints[f.name]
            if hasattr(value, "tolist"):
                setattr(self, f.name, value := value.tolist())
            alternatives = get_args(hint) if isinstance(hint, UnionType) else [hint]
            kinds = [get_origin(kind) or kind for kind in alternatives]
            # for some text and dict arguments, the Trainer also accepts values of other types, such as fsdp=True
            is_unchecked = str in kinds and f.name not in BADPOConfig.__annotations__
            is_unchecked |= dict in kinds and not f.name.endswith("_kwargs")
            if is_unchecked or not {*kinds} <= {NoneType, *_TYPE_NAMES}:
                continue
            accepted = (
                *kinds,
                *([int] if float in kinds else []),
                *([PathLike] if str in kinds else []),
            )
            is_wrong_bool = isinstance(value, bool) and bool not in kinds
            is_nan = value != value
            if is_wrong_bool or is_nan or not isinstance(value, accepted):
                expected = " or ".join(_TYPE_NAMES[kind] for kind in kinds if kind in _TYPE_NAMES)
                actual = "nan" if is_nan else type(value).__name__
                yield f"{f.name} must be {expected}, not {actual}; the default is {f.name}={f.default!r}"

    def _find_wrong_values(self) -> Iterator[str]:
        for name, choices in CHOICES.items():
            value = getattr(self, name)
            if value not in choices and not (name in ("bias", "bias_fit") and value is None):
                yield f'{name} is "{value}"; choose one of {", ".join(choices)}'
        for name, (least, most) in RANGES.items():
            if (value := getattr(self, name)) is not None and not least <= value <= most:
                limits = f"at least {least}" if most == float("inf") else f"between {least} and {most}"
                yield f"{name} is {value}; it must be {limits}"
        if not 0 < self.beta <= LARGEST_BETA:
            yield f"beta is {self.beta}; it must be larger than 0 and at most {LARGEST_BETA}"
        if self.warmup_ratio is not None:
            yield "warmup_ratio and warmup_steps set the same argument; keep warmup_steps"
        yield from self._find_wrong_lengths()
        yield from self._find_wrong_bias_settings()

    def _find_wrong_lengths(self) -> Iterator[str]:
        longest = self.max_length - 1 if self.max_length is not None else float("inf")
        if longest < 1:
            yield f"max_length is {self.max_length}; a prompt and its response need at least 2 tokens"
        if self.max_prompt_length is None:
            return
        if self.encoding != "paper":
            yield (
                "max_prompt_length requires encoding: paper, because TRL has removed this key; with encoding: trl, "
                "raise max_length instead"
            )
        if not 0 < self.max_prompt_length <= longest:
            yield (
                f"max_prompt_length is {self.max_prompt_length}; it must be between 1 and max_length - 1 = {longest}, "
                "which leaves room for a response"
            )

    def _find_wrong_bias_settings(self) -> Iterator[str]:
        gold, has_bias = self.gold_annotators, self.bias != "none"
        if self.bias_fit == "anchored" and (
            self.bias_learning_rate is not None or self.warm_start != "zero"
        ):
            yield (
                f"bias_fit: anchored supports neither warm_start ({self.warm_start}) nor bias_learning_rate "
                f"({self.bias_learning_rate}); leave out these two keys, or write bias_fit: adam"
            )
        if self.warm_start != "zero" and not has_bias:
            yield f"warm_start={self.warm_start} requires a learned bias, but bias is none; leave out warm_start"
        if self.warm_start == "audit" and gold:
            yield (
                "warm_start: audit cannot be combined with gold_annotators, because the audit's estimate ignores gold "
                "annotators; use warm_start: offline, which anchors its estimates at the gold annotators"
            )
        if not isinstance(gold, list | tuple | set):
            yield "gold_annotators must be a list of annotators; write [id] for one annotator"
        if gold and not has_bias:
            yield (
                "gold_annotators needs a learned bias, but bias is none; choose a bias, such as shared_mean, or leave "
                "gold_annotators out"
            )

    def _find_refused_keys(self) -> Iterator[str]:
        _, selecting_key = objective_of_trl_keys(self.loss_type, self.ld_alpha)
        for key in REFUSED:
            if key not in ALLOWED_IN_PYTHON and key != selecting_key:
                value = getattr(self, key, None)
                # transformers converts some arguments to enum members, so the value of the member is checked
                if reason := refusal(key, getattr(value, "value", value)):
                    yield reason

    def _choose_checkpointing(self) -> None:
        # The new argument names avoid a deprecation warning, but older transformers versions accept only the old names.
        for old, new in RENAMED.items():
            name = new if hasattr(self, new) else old
            value = getattr(self, name)
            value = getattr(self, old) if value is None else value
            if old.endswith("_kwargs") and not isinstance(value, str):
                value = {"use_reentrant": False, **(value or {})}
            setattr(self, name, value)


def _hide_private(name: str, value: Settings) -> Settings:
    """Return the value of an argument without secrets and without folders of this machine."""
    if isinstance(value, dict):
        return {inner: _hide_private(str(inner), entry) for inner, entry in value.items()}
    if isinstance(value, str | Path) and name.endswith("token"):
        return f"<{name.upper()}>"
    if isinstance(value, str | Path) and Path(value).is_absolute():
        return Path(value).name
    return value
