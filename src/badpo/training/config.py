"""`BADPOConfig`: the arguments of a training run, with TRL's names and defaults."""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import wraps
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import torch
from transformers import TrainingArguments
from transformers.utils import is_torch_bf16_gpu_available

from badpo.data.files import Json
from badpo.data.privacy import pseudonyms
from badpo.data.problems import ConfigError, Problem, did_you_mean
from badpo.objective.bias import VARIANTS
from badpo.objective.objectives import objective_of_loss
from badpo.training.trl_keys import (
    ACCEPTED_WITHOUT_EFFECT,
    BIAS_LEARNING_RATE,
    DEFAULT_OUTPUT_DIR,
    PAPER_MAX_PROMPT_LENGTH,
    REFUSED,
    refusal,
)

CHOICES: dict[str, tuple[str, ...]] = {
    "encoding": ("trl", "paper"),
    "bias": tuple(VARIANTS),
    "bias_fit": ("anchored", "adam"),
    "warm_start": ("zero", "offline", "audit"),
    "batching": ("random", "grouped", "comparisons"),
    "attention": ("packed", "padded"),
}

# Beyond these a run ends without an error and with numbers that say nothing, or takes no step.
LARGEST_BETA = 100
_BATCHES = (
    "per_device_train_batch_size",
    "per_device_eval_batch_size",
    "gradient_accumulation_steps",
)
RANGES: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("learning_rate", "bias_learning_rate"), (0, 10)),
    **dict.fromkeys(_BATCHES, (1, float("inf"))),
    "seed": (0, 2**32 - 1),
}

# Types of arguments that are checked, and what a person calls them.
_NOUNS = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "text",
    dict: "a dict",
}

# The trainer has one correct value for each of these. Their defaults are the Trainer's, which parsers turn into flags.
FIXED = {
    "remove_unused_columns": False,
    "average_tokens_across_devices": False,
    "logging_nan_inf_filter": False,
    "hub_strategy": "end",
}

# Keys that a file may not set, while the caller may in Python.
ALLOWED_IN_PYTHON = ("trust_remote_code", "model_init_kwargs")

# The Trainer's old names of arguments and its new ones.
RENAMED: dict[str, str] = {
    "gradient_checkpointing": "activation_checkpointing",
    "gradient_checkpointing_kwargs": "activation_checkpointing_kwargs",
}


def settled_bias_fit(
    fit: str | None, learning_rate: float | None, warm_start: str
) -> tuple[str, float | None]:
    """How theta follows the votes, and the rate of its Adam: a setting of Adam asks for it."""
    asks_for_adam = learning_rate is not None or warm_start != "zero"
    fit = fit or ("adam" if asks_for_adam else "anchored")
    return fit, BIAS_LEARNING_RATE if fit == "adam" and learning_rate is None else learning_rate


def of_adam(args: Any) -> tuple[float | None, str]:
    """The settings of theta's Adam."""
    return args.bias_learning_rate, args.warm_start


def without_double_precision() -> bool:
    """Whether training would go to a device that has no float64, in which margins and theta's gradient are summed."""
    return torch.backends.mps.is_available() and not torch.cuda.is_available()


def computes_in_bf16(use_cpu: bool) -> bool:
    """Whether a stage that is told nothing else computes under bf16 autocast: wherever its GPU has bf16.

    The weights that are trained stay in the precision that they were loaded in. Both stages ask here.
    """
    return is_torch_bf16_gpu_available() and not use_cpu


def _naming_unknown(config: Any) -> Any:
    """A dataclass that names the likeliest argument where one is unknown."""
    init, known = config.__init__, [f.name for f in fields(config)]

    @wraps(init)
    def named(self, *values, **given):
        for name in given.keys() - known:
            raise ConfigError(f'unknown argument "{name}".{did_you_mean(name, known)}')
        init(self, *values, **given)

    config.__init__ = named
    return config


@_naming_unknown
@dataclass
class BADPOConfig(TrainingArguments):
    r"""Arguments of a BA-DPO run: everything of `transformers.TrainingArguments`, and the fields below.

    Names and defaults are those of TRL's ``DPOConfig``. A batch counts judgments: an optimizer step sees
    ``per_device_train_batch_size * gradient_accumulation_steps * processes`` of them (of comparisons, with
    ``batching="comparisons"``).

    Parameters
    ----------
    beta : float
        Strength of the pull towards the reference; the margin is u = beta * (log-ratio of a minus that of b).
    max_length : int or None
        Longest prompt and response together, in tokens; the end of the response is cut. None cuts nothing.
    max_prompt_length : int or None
        Longest prompt in tokens, cut from the left. Only for ``encoding="paper"``, where None means 384.
    encoding : {"trl", "paper"}
        ``trl`` gives the token ids of TRL's ``DPOTrainer``, ``paper`` those of the paper.
    bias : str or None
        The parts of theta_k that are learned, a key of `badpo.objective.bias.VARIANTS`: ``none`` is DPO,
        ``pooled`` one lean for everyone, ``per_annotator`` one each, ``shared_mean`` both, ``class`` also an
        offset for each class of annotators. None is ``shared_mean``, and ``pooled`` where the votes name no annotators.
    bias_fit : {"anchored", "adam"} or None
        How theta follows the votes. ``anchored`` fits it to the votes beside the quality that the policy has learned
        (`badpo.objective.theta.AnchoredFit`) and needs no setting. ``adam`` is the paper's way. None is ``adam`` if one
        of the two arguments that follow is given, and ``anchored`` otherwise.
    bias_learning_rate : float or None
        With ``adam``: rate of the bias's own Adam, constant and unclipped. 0 keeps theta where it starts; None is 0.01.
    warm_start : {"zero", "offline", "audit"}
        With ``adam``: where theta starts. At 0, which anchors the policy at the reference's attribute rate, at the
        log-odds of the training votes, or at those of their swap pairs, in which quality cancels (offline without any).
    gold_annotators : list of str
        Annotators known to lean nowhere: their theta is held at zero, and their votes fix the level that the others'
        votes leave open. Ids as the table has them, or pseudonyms; kept as pseudonyms.
    batching : {"random", "grouped", "comparisons"}
        ``random`` shuffles judgments one by one, as in the paper. ``grouped`` shuffles comparisons and keeps the
        judgments of each together: a step has as many judgments on fewer comparisons, and costs that much less.
        With ``comparisons`` a batch counts comparisons, each with all of its judgments.
    disable_dropout : bool
        Train without dropout, so that policy and reference agree at the first step.
    reference_cache : str or None
        Folder of the reference log-probabilities. None is a folder in the user's cache, shared by all runs.
    attention : {"packed", "padded"}
        ``packed`` reads each prompt once for both responses and no padding; ``padded`` is the model's own
        attention with one row per response.
    router_aux_loss_coef : float or None
        Weight of the load-balancing loss of a mixture of experts, which is added as TRL adds it; responses are then
        padded. None is the model's own weight, 0 leaves that loss out.
    model_init_kwargs : dict or None
        Passed to ``AutoModelForCausalLM.from_pretrained`` when the model is given by name.
    trust_remote_code : bool
        Whether a model given by name may run its own code. Off, and never switched on by a preset or a file.
    bf16 : bool or None
        As in TRL on wherever the device has bf16. Without it the run is in float32.

    References
    ----------
    The paper's values are in its Table ``tab:hyperparams`` and in `badpo.training.recipe.PRESETS`.

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

    # Keys of TRL without effect, or with one value that can be followed: `badpo.training.trl_keys` has the reasons.
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

    def to_dict(self) -> Json:
        """The arguments as trackers get them: who is gold stays in the run folder, of places only the name is told."""
        told = {name: _told(name, value) for name, value in super().to_dict().items()}
        return {name: value for name, value in told.items() if name != "gold_annotators"}

    def __post_init__(self):
        if complaints := [*self._of_other_types()]:
            raise ConfigError("\n".join(complaints))
        if self.warmup_ratio is not None and not self.warmup_steps:
            self.warmup_steps, self.warmup_ratio = self.warmup_ratio, None
        if complaints := [*self._out_of_range(), *self._refused()]:
            raise ConfigError("\n".join(complaints))
        self.gold_annotators = pseudonyms(list(dict.fromkeys(map(str, self.gold_annotators))))
        if self.encoding == "paper" and self.max_prompt_length is None:
            self.max_prompt_length = PAPER_MAX_PROMPT_LENGTH
        self.without_effect = self._without_effect()
        self.bias_fit, self.bias_learning_rate = settled_bias_fit(self.bias_fit, *of_adam(self))
        for name, value in FIXED.items():
            setattr(self, name, value)
        self.use_cpu = self.use_cpu or without_double_precision()
        self._choose_bf16()
        self._choose_checkpointing()
        try:
            super().__post_init__()
        except (ValueError, TypeError, OverflowError, OSError) as error:
            raise ConfigError(f"transformers does not take these arguments: {error}") from error

    @property
    def step_size(self) -> int:
        """Judgments of an optimizer step, over all processes; comparisons with ``batching="comparisons"``."""
        return self.per_device_train_batch_size * self.gradient_accumulation_steps * self.world_size

    @property
    def mixed_precision_name(self) -> str:
        """The numerics of the forward: ``fp32``, ``bf16-autocast`` or ``fp16-autocast``."""
        name = "bf16-autocast" if self.bf16 else "fp16-autocast" if self.fp16 else "fp32"
        return f"{name}-tf32" if self.tf32 else name

    @classmethod
    def complaints(cls, **given: Any) -> list[str]:
        """What is wrong with some arguments where the others are as usual, each in a sentence."""
        config = cls.__new__(cls)
        for f in fields(cls):
            usual = f.default_factory() if callable(f.default_factory) else f.default
            setattr(config, f.name, given.get(f.name, usual))
        return [*config._of_other_types()] or [*config._out_of_range()]

    def _without_effect(self) -> list[Problem]:
        """A notice (N204) for each key of TRL that is set and changes nothing here."""
        set_here = [f.name for f in fields(self) if getattr(self, f.name) not in (f.default, None, [])]
        return [
            Problem("N204", f"{name} has no effect: {reason}", "the arguments", "nothing to do")
            for name, reason in ACCEPTED_WITHOUT_EFFECT.items()
            if name in set_here and name not in FIXED
        ]

    def _of_other_types(self) -> Iterator[str]:
        """What is no number, text or truth value where the field's annotation says so; arrays' become Python's."""
        # a parser of flags changes the types that the fields themselves have; what a subclass adds is its own
        hints = get_type_hints(BADPOConfig)
        for f in fields(BADPOConfig):
            value, hint = getattr(self, f.name), hints[f.name]
            if hasattr(value, "tolist"):
                setattr(self, f.name, value := value.tolist())
            either = get_args(hint) if isinstance(hint, UnionType) else [hint]
            kinds = [get_origin(kind) or kind for kind in either]
            # objects stand for some dicts; the Trainer takes more than text where its annotation says text (fsdp=True)
            elsewhere = str in kinds and f.name not in BADPOConfig.__annotations__
            elsewhere |= dict in kinds and not f.name.endswith("_kwargs")
            if elsewhere or not {*kinds} <= {NoneType, *_NOUNS}:
                continue
            taken: Any = (*kinds, *[int] * (float in kinds), *[PathLike] * (str in kinds))
            is_truth = isinstance(value, bool) and bool not in kinds
            if is_truth or not isinstance(value, taken) or value != value:
                nouns = " or ".join(_NOUNS[kind] for kind in kinds if kind in _NOUNS)
                told = "nan" if value != value else type(value).__name__
                yield f"{f.name} takes {nouns}, not {told}; the default is {f.name}={f.default!r}"

    def _out_of_range(self) -> Iterator[str]:
        for name, choices in CHOICES.items():
            is_open = name in ("bias", "bias_fit") and getattr(self, name) is None
            if (value := getattr(self, name)) not in choices and not is_open:
                yield f'{name} is "{value}"; choose one of {", ".join(choices)}'
        for name, (least, most) in RANGES.items():
            if (value := getattr(self, name)) is not None and not least <= value <= most:
                told = f"lie between {least} and {most}"
                if most == float("inf"):
                    told = f"be {least} or more"
                yield f"{name} is {value}; it must {told}"
        if not 0 < self.beta <= LARGEST_BETA:
            told = f"it must be positive (with 0 nothing is learned) and at most {LARGEST_BETA}"
            yield f"beta is {self.beta}; {told}"
        if self.warmup_ratio is not None:
            yield "warmup_ratio and warmup_steps say the same; keep warmup_steps"
        yield from self._wrong_lengths()
        yield from self._wrong_starts()

    def _wrong_lengths(self) -> Iterator[str]:
        longest = self.max_length - 1 if self.max_length is not None else float("inf")
        if longest < 1:
            yield f"max_length is {self.max_length}; a prompt and a response need 2 tokens or more"
        if self.max_prompt_length is None:
            return
        if self.encoding != "paper":
            yield (
                "max_prompt_length is used with encoding: paper only (TRL has no such key any more); with encoding: "
                "trl raise max_length instead"
            )
        if not 0 < self.max_prompt_length <= longest:
            yield (
                f"max_prompt_length is {self.max_prompt_length}; it must lie between 1 and max_length - 1, here "
                f"{longest}, so that a response fits"
            )

    def _wrong_starts(self) -> Iterator[str]:
        gold, has_bias = self.gold_annotators, self.bias != "none"
        if self.bias_fit == "anchored" and settled_bias_fit(None, *of_adam(self))[0] == "adam":
            yield (
                f"bias_fit: anchored takes no warm_start ({self.warm_start}) and no bias_learning_rate "
                f"({self.bias_learning_rate}); leave them out, or write bias_fit: adam"
            )
        if self.warm_start != "zero" and not has_bias:
            yield f"warm_start: {self.warm_start} needs a bias to start; with bias: none there is none"
        if self.warm_start == "audit" and gold:
            yield (
                "warm_start: audit starts at a level of all votes, and gold_annotators fix another; with them use "
                "warm_start: offline, which starts at estimates that are anchored on them"
            )
        if not isinstance(gold, list | tuple | set):
            yield "gold_annotators is a list of annotators; write [id] for a single one"
        if gold and not has_bias:
            yield (
                "gold_annotators hold their own theta at zero; with bias: none everyone's is, and there is nothing to "
                "learn. Choose a bias, such as shared_mean, or leave gold_annotators out"
            )

    @property
    def objective(self) -> Json:
        """What TRL's keys of the loss ask for, as a recipe writes an objective."""
        name = objective_of_loss(self.loss_type)
        if name not in (None, "votes"):
            return {"name": name}
        if self.ld_alpha is not None and 0 <= self.ld_alpha < 1:
            return {"name": "discounted_tail", "alpha": self.ld_alpha}
        return {"name": "votes"}

    def _refused(self) -> list[str]:
        given = {key: getattr(self, key, None) for key in REFUSED if key not in ALLOWED_IN_PYTHON}
        given.pop(
            {"votes": "", "discounted_tail": "ld_alpha"}.get(self.objective["name"], "loss_type"), None
        )
        # the Trainer's enumerations stand for their values
        reasons = (refusal(key, getattr(value, "value", value)) for key, value in given.items())
        return [reason for reason in reasons if reason]

    def _choose_bf16(self) -> None:
        asked = not self.fp16 if self.bf16 is None else self.bf16
        self.bf16 = asked and (computes_in_bf16(self.use_cpu) or bool(self.bf16 and self.use_cpu))

    def _choose_checkpointing(self) -> None:
        # Under their new names these arguments bring no deprecation warning; an older Trainer has the old ones only.
        for old, new in RENAMED.items():
            name = new if hasattr(self, new) else old
            value = getattr(self, name)
            value = getattr(self, old) if value is None else value
            if old.endswith("_kwargs") and not isinstance(value, str):
                value = {"use_reentrant": False, **(value or {})}
            setattr(self, name, value)


def _told(name: str, value: Any) -> Any:
    """A value of an argument without the folders of this machine and without secrets."""
    if isinstance(value, dict):
        return {inner: _told(str(inner), entry) for inner, entry in value.items()}
    if isinstance(value, str | Path) and name.endswith("token"):
        return f"<{name.upper()}>"
    if isinstance(value, str | Path) and Path(value).is_absolute():
        return Path(value).name
    return value
