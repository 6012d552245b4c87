"""Read the results in run folders for pages and model cards, and combine results over seeds."""

import logging
import math
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, JsonValue, ValidationError
from scipy.special import ndtri

from badpo.data.attributes import Config
from badpo.data.files import RUN_RECIPE, made_here, require_safe_to_read, run_damage
from badpo.data.problems import ConfigError, DataError, Problem
from badpo.data.yaml_files import read_yaml
from badpo.objective.registry import PLACEBO as PLACEBO_OBJECTIVE
from badpo.results.formatting import (
    DPO,
    PLACEBO,
    REFERENCE,
    arm_label,
    arm_order,
    attribute_label,
    built_in_of,
)
from badpo.theory import Floats
from badpo.theory.summaries import (
    Interval,
    log_odds_distance,
    ratio_of_sums,
    share_removed,
    shift,
    t_interval,
)

logger = logging.getLogger(__name__)

BY_COMMAND = (
    "a finished trainer.train() of BADPOTrainer writes it into output_dir, that of BiasAdjustedDPOTrainer into "
    "<output_dir>-bias/run; or train with: badpo train --model_name_or_path MODEL --dataset_name TABLE --compare"
)

_READ = (
    "readouts.json",
    "bias.json",
    "bias.safetensors",
    "config.yaml",
    "environment.json",
)
_Z = float(ndtri(0.975))
# If a policy's log-ratio to the reference is below this value, in nats per token, all responses became less likely.
FAR_BELOW = -0.3
_LARGEST = 1e12  # larger values are rejected, because no metric has them and charts cannot draw them
_Number = Annotated[float, Field(allow_inf_nan=False, ge=-_LARGEST, le=_LARGEST)] | None


# -- content of the files; other keys are ignored --------------------------------------------


class _Content(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


class Measured(_Content):
    """An estimate in ``readouts.json``, with its standard error or interval, and its sample size n."""

    value: _Number = Field(
        validation_alias=AliasChoices(
            "rate", "mean", "per_token", "difference", "gap", "accuracy", "tilt"
        )
    )
    se: _Number = None
    low: _Number = Field(None, validation_alias=AliasChoices("low", "gap_low"))
    high: _Number = Field(None, validation_alias=AliasChoices("high", "gap_high"))
    n: int | None = Field(None, validation_alias=AliasChoices("n", "n_cross", "n_generations"))


class Tilt(Measured):
    """A policy's tilt toward an attribute, the tilt's unit, and the root mean square of the attribute difference."""

    unit: str = "mean margin toward the attribute"
    typical: float = Field(1.0, gt=0.0, le=_LARGEST)
    n_comparisons: int | None = None


class StoredSums(_Content):
    """Sums of a metric over the rows of each prompt, and the divisors that turn the sums into means."""

    sums: list[float]
    sizes: list[float]


class LearnedTheta(_Content):
    """Learned theta for one attribute: the mean over annotators and, if the votes were simulated, the planted mean.

    ``implied`` is the mean theta that the votes and the final policy imply, with the interval from ``low`` to ``high``.
    ``offline`` is the log-odds that the response with the attribute wins a training vote, with its interval.
    """

    level: _Number = None
    implied: _Number = None
    low: _Number = None
    high: _Number = None
    offline: _Number = None
    offline_low: _Number = None
    offline_high: _Number = None
    planted_level: _Number = None

    @property
    def bias_in_votes(self) -> Interval | None:
        """Log-odds that the response with the attribute wins a training vote; None if they were not recorded."""
        if self.offline is None or self.offline_low is None or self.offline_high is None:
            return None
        se = (self.offline_high - self.offline_low) / (2 * _Z)
        return Interval(self.offline, se, self.offline_low, self.offline_high, 1)


class TrainingSize(_Content):
    """Peak learning rate of a run, and its number of steps if the run has a step log."""

    learning_rate: float
    steps: int | None = None


class Readouts(_Content):
    """Content of ``readouts.json``."""

    arm: str | None = None
    seed: int | None = None
    training: TrainingSize | None = None
    rates: dict[str, Measured] = {}
    generated: dict[str, Measured] = {}
    sampled: dict[str, Measured | _Number] = {}
    tokens: Measured | None = None
    heldout: dict[str, Measured] = {}
    kl: Measured | None = None
    tilt: dict[str, Tilt] = {}
    log_ratio: Measured | None = None
    by_prompt: dict[str, StoredSums] = {}
    votes: dict[str, dict[str, Measured]] = {}
    revealing: list[
        str
    ] = []  # attributes whose held-out figures must not be published, because they are about too few people
    ceiling: dict[str, dict[str, Measured]] = {}
    theta: dict[str, LearnedTheta] = {}
    answers: list[dict[str, str]] = []  # each entry contains a prompt and a possibly truncated answer

    @property
    def best_rates(self) -> dict[str, Measured | _Number]:
        """Rate of each attribute, from measured probabilities or, if there are none, from sampled answers."""
        return self.sampled | self.generated | self.rates


class FirstMargin(_Content):
    """How far the policy is from the reference at the first step, in log-probabilities and as a mean margin."""

    mean: float
    difference: float
    tolerance: float


class BiasExtra(_Content):
    """Facts in ``bias.json`` about the run that trained the bias term."""

    attributes: list[dict[str, JsonValue]] = []
    gold_votes: dict[str, int] = {}
    revealing: list[
        str
    ] = []  # attributes whose theta must not be published, because it is learned from the votes of too few people
    first_margin: FirstMargin | None = None
    variant: str | None = None
    data: str | None = None


class BiasContent(_Content):
    """Content of ``bias.json``."""

    attributes: list[str] = []
    parts: list[str] = []
    annotators: list[str] = []
    gold_annotators: list[str] = []
    extra: BiasExtra = BiasExtra()


class RunEnvironment(_Content):
    """Content of ``environment.json``."""

    packages: dict[str, str] = {}
    python: str = ""
    platform: str = ""


Content = TypeVar("Content", bound=BaseModel)


# -- runs --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """Content of a run folder; the content of a missing file is empty."""

    folder: Path
    arm: str
    seed: int
    readouts: Readouts
    bias: BiasContent = BiasContent()
    config: Mapping[str, JsonValue] = field(default_factory=dict)
    environment: RunEnvironment = RunEnvironment()
    is_made_here: bool = False  # see `badpo.data.files.made_here`

    @property
    def is_trainable(self) -> bool:
        """Whether badpo may show a command that runs this recipe: it names a table and was made on this machine."""
        return self.is_made_here and "dataset_name" in self.config

    @property
    def recipe_bias(self) -> Mapping[str, JsonValue]:
        """The section ``bias`` of the run's recipe; empty if the recipe contains only the name of a variant."""
        block = self.config.get("bias")
        return block if isinstance(block, dict) else {}

    @property
    def title(self) -> str:
        """Name of the run's method for use in a sentence; the method of a run that learns theta is called BA-DPO."""
        if self.arm in (REFERENCE, PLACEBO):
            return f"the {arm_label(self.arm)}"
        return f"BA-DPO ({arm_label(self.arm)})" if self.bias.parts else arm_label(self.arm)

    @property
    def uses_adam(self) -> bool:
        """Whether theta was trained with Adam: the recipe selects Adam, or sets an option that only Adam uses."""
        block = self.recipe_bias
        started = block.get("warm_start", "zero") != "zero" or block.get("learning_rate") is not None
        return bool(block["fit"] == "adam") if block.get("fit") else started

    @property
    def is_named_after_arm(self) -> bool:
        """Whether the run folder has the name that `badpo train` would give it; a script may use any name."""
        return self.folder.name == f"{self.arm}-s{self.seed}"

    @property
    def shown_folder(self) -> Path:
        """Path of the run folder for use on a page: the relative path, or only the last part of an absolute path."""
        return Path(self.folder.name) if self.folder.is_absolute() else self.folder

    @property
    def shown_table(self) -> str:
        """Path of the vote table for use in a command, without absolute folders; empty if there is no table."""
        table = self.config.get("dataset_name")
        if not isinstance(table, str):
            return ""
        path = os.path.normpath(self.folder / table) if table.startswith(".") else table
        return Path(path).name if os.path.isabs(path) else path

    def train_command(self, *options: str) -> str:
        """Return the `badpo train` command with this run's recipe and further options."""
        return shlex.join(["badpo", "train", "--config", str(self.shown_folder / RUN_RECIPE), *options])

    @property
    def configs(self) -> Mapping[str, Config]:
        """JSON configuration of each attribute in the run's bias term, in the order of the bias term."""
        identities = {config.get("name"): config for config in self.bias.extra.attributes}
        return {name: identities.get(name, {}) for name in self.bias.attributes}

    @property
    def learned_annotators(self) -> set[str]:
        """Annotators with a learned theta: all annotators except gold annotators, whose theta is fixed at zero."""
        return set(self.bias.annotators) - set(self.bias.gold_annotators)

    def theta(self) -> Floats | None:
        """Return every annotator's theta in log-odds; None if the run has no bias term."""
        if not self.bias.attributes or not (self.folder / "bias.safetensors").exists():
            return None
        from badpo.objective.bias import BiasTerm

        values: Floats = BiasTerm.load(self.folder).theta().detach().numpy()
        return values

    def measured(self, *place: str) -> Measured:
        """Return the estimate at a path in the readouts; if nothing is there, return an estimate without a value."""
        found: Any = self.readouts
        for name in place:
            found = found.get(name) if isinstance(found, dict) else getattr(found, name, None)
        return found if isinstance(found, Measured) else Measured.model_construct(value=found)

    def reading(self, *place: str) -> Interval | None:
        """Return the estimate at a path in the readouts, such as "heldout", "length"; None if nothing was measured.

        If no interval was recorded, the function computes a normal interval from the standard error; without a standard
        error, the ends are NaN. The result is also None if the estimate would reveal too much about the held-out votes
        of individual people.
        """
        if place[0] in ("heldout", "votes") and place[1] in self.readouts.revealing:
            return None
        cell = self.measured(*place)
        if cell.value is None:
            return None
        known = cell.se, cell.low, cell.high
        se, low, high = (np.nan if n is None else n for n in known)
        if cell.low is None:
            return _normal_interval(cell.value, se)
        return Interval(cell.value, (high - low) / (2 * _Z), low, high, 1)


def _normal_interval(value: float, se: float) -> Interval:
    return Interval(value, se, value - _Z * se, value + _Z * se, 1)


@dataclass(frozen=True)
class Estimate:
    """An arm's estimate (a mean over seeds, or the value of a single run), its interval, and its values by seed."""

    interval: Interval
    of_seed: Mapping[int, float]

    @property
    def value(self) -> float:
        """Mean over seeds."""
        return self.interval.estimate

    @property
    def values(self) -> tuple[float, ...]:
        """Value of each seed."""
        return tuple(self.of_seed.values())


@dataclass(frozen=True)
class Removal:
    """How much an arm reduced DPO's shift in a rate or in a length.

    ``share`` is the removed share of the shift, by seed and averaged. If the interval of DPO's shift includes zero,
    ``share`` is None: division by a shift near zero would only yield noise. ``distance`` is the distance of the arm
    from the reference, in log-odds for a rate and in the metric's unit for a length.
    """

    share: Estimate | None = None
    distance: Estimate | None = None


@dataclass(frozen=True)
class MeasuredRuns:
    """Measured runs, sorted by arm and then by seed, and the names of ``unmeasured`` runs."""

    name: str
    runs: tuple[Run, ...]
    unmeasured: tuple[str, ...]

    @property
    def arms(self) -> tuple[str, ...]:
        """Names of the measured arms: the reference, DPO, and then all other arms in the order of `arm_order`."""
        return tuple(dict.fromkeys(run.arm for run in self.runs))

    @property
    def seeds(self) -> tuple[int, ...]:
        """Training seeds in ascending order; the reference has no seed."""
        return tuple(sorted({run.seed for run in self.runs if run.arm != REFERENCE}))

    @property
    def configs(self) -> Mapping[str, Config]:
        """JSON configurations by attribute: first the declared attributes, then attributes that were only measured."""
        found = {name: config for run in reversed(self.runs) for name, config in run.configs.items()}
        read = [run.readouts for run in self.runs]
        measured = [name for of in read for name in (*of.rates, *of.theta)]
        return found | {name: {} for name in measured if name not in found}

    @property
    def labels(self) -> dict[str, str]:
        """Display name of every attribute."""
        return {name: attribute_label(name, config) for name, config in self.configs.items()}

    @property
    def is_planted(self) -> bool:
        """Whether the annotators' biases were planted, so that the true theta is known."""
        return any(t.planted_level is not None for run in self.runs for t in run.readouts.theta.values())

    def name_of(self, arm: str) -> str:
        """Return the short name of an arm for a table or a chart; several BA-DPO arms are distinguished by variant."""
        is_only_one = {run.arm for run in self.runs if run.bias.parts} == {arm}
        return "BA-DPO" if is_only_one else arm_label(arm)

    def of(self, arm: str) -> tuple[Run, ...]:
        """Return the runs of one arm, sorted by seed."""
        return tuple(run for run in self.runs if run.arm == arm)

    def estimate(self, arm: str, *place: str) -> Estimate | None:
        """Return an arm's estimate of a metric over its seeds; None if no run of the arm has the metric."""
        read = {run.seed: run.reading(*place) for run in self.of(arm)}
        known = {seed: r for seed, r in read.items() if r is not None and math.isfinite(r.estimate)}
        found = _combine_seeds(known)
        if found is None:
            return None
        if place[0] in ("votes", "ceiling") or (
            place[0] == "best_rates" and not is_continuous(self.configs.get(place[1], {}))
        ):  # the interval of a share lies between 0 and 1
            low, high = np.clip([found.interval.low, found.interval.high], 0.0, 1.0).tolist()
            return replace(found, interval=replace(found.interval, low=low, high=high))
        return found

    def count(self, *place: str, arm: str = "") -> str:
        """Format the sample size of a metric in all runs or in the runs of one arm; empty if it was not recorded."""
        runs = self.of(arm) if arm else self.runs
        counts = {n for run in runs if (n := run.measured(*place).n) is not None}
        return " to ".join(f"{n:,}" for n in sorted({min(counts), max(counts)})) if counts else ""

    def answers(self) -> list[tuple[str, list[tuple[str, str]]]]:
        """Return the example prompts, each with one answer from the first run of every arm."""
        found: dict[str, list[tuple[str, str]]] = {}
        for arm in self.arms:
            for one in self.of(arm)[0].readouts.answers:
                found.setdefault(one["prompt"], []).append((self.name_of(arm), one["answer"]))
        return [(prompt, answers) for prompt, answers in found.items() if len(answers) == len(self.arms)]

    def moved(self, *place: str) -> Interval | None:
        """Return how far DPO shifted a metric from the reference; None if DPO or the reference was not measured.

        With several seeds, the interval of the shift treats the reference as exact. With one seed, the function
        combines the standard errors of DPO and the reference as if they were independent. The combined interval is
        conservative, because DPO and the reference were measured on the same prompts.
        """
        reference, dpo = (self.estimate(arm, *place) for arm in (REFERENCE, DPO))
        if reference is None or dpo is None:
            return None
        if len(dpo.values) > 1:
            return shift(dpo.values, reference.value)
        se = math.hypot(dpo.interval.se, reference.interval.se)
        return _normal_interval(dpo.value - reference.value, se)

    def difference(self, arm: str, other: str, key: str) -> Estimate | None:
        """Return the paired difference between two arms in a metric such as "tilt/length".

        The result is None if the arms were not measured on the same rows. With one seed, the interval of the difference
        is clustered by prompt. With several seeds, the interval of the difference is a Student's t interval over seeds.
        The tilt of the reference is zero.
        """
        differences = self._differences(arm, other, key)
        return _combine_seeds({seed: ratio_of_sums(*sums) for seed, sums in differences.items()})

    def share_removed(self, arm: str, target: str, key: str) -> Estimate | None:
        """Return the share of the difference between DPO and the target that an arm removed, with its interval.

        The values of the arm, DPO and the target are paired by row. If the values were measured on different rows, the
        result is None.
        """
        removed, excess = self._differences(DPO, arm, key), self._differences(DPO, target, key)
        shares = {
            seed: ratio_of_sums(removed[seed][0], excess[seed][0])
            for seed in removed.keys() & excess.keys()
        }
        return _combine_seeds(dict(sorted(shares.items())))

    def _differences(self, arm: str, other: str, key: str) -> dict[int, tuple[Floats, Floats]]:
        """Return the differences between two arms' sums for each prompt, and the divisors of the sums, by seed."""
        own, others = (
            {run.seed: run.readouts.by_prompt for run in self.of(name)} for name in (arm, other)
        )
        found = {}
        for seed, sums in own.items():
            ours = sums.get(key)
            is_reference = other == REFERENCE  # one run for all seeds
            theirs = (next(iter(others.values()), {}) if is_reference else others.get(seed, {})).get(key)
            if is_reference and key != "tokens":
                theirs = ours and StoredSums(sums=[0.0] * len(ours.sums), sizes=ours.sizes)
            if ours and theirs and ours.sizes == theirs.sizes:
                found[seed] = np.subtract(ours.sums, theirs.sums), np.array(ours.sizes)
        return found

    def compare_command(self) -> str:
        """Return the command that trains DPO and the placebo for the first run with theta, or an empty string."""
        for run in self.runs:
            if run.is_trainable and run.bias.parts:
                # `badpo train` would train the run of a script again, because it expects the run in another folder
                own = (
                    ["--compare"]
                    if run.is_named_after_arm
                    else ["--bias", "none", "--compare", PLACEBO_OBJECTIVE]
                )
                return run.train_command(*own)
        return ""

    def is_drifting(self, arm: str) -> bool:
        """Return whether an arm's log-probabilities of the compared responses are far below those of the reference."""
        found = self.estimate(arm, "log_ratio")
        return found is not None and found.value < FAR_BELOW

    def is_length(self, name: str) -> bool:
        """Return whether an attribute measures the length of responses."""
        return built_in_of(self.configs.get(name, {})).is_length

    def removal(self, arm: str, is_rate: bool, *place: str) -> Removal:
        """Return the share of DPO's shift that an arm removed, and the arm's distance from the reference."""
        reference, dpo, own = (self.estimate(name, *place) for name in (REFERENCE, DPO, arm))
        if reference is None or own is None:
            return Removal()
        apart = log_odds_distance if is_rate else np.subtract
        own_values = own.of_seed.items()
        distance = _average_seeds({s: float(apart(v, reference.value)) for s, v in own_values})
        shifted, shares = self.moved(*place), {}
        if dpo and shifted and shifted.excludes(0.0):
            for seed in sorted(dpo.of_seed.keys() & own.of_seed.keys()):
                ends = dpo.of_seed[seed], own.of_seed[seed]
                shares[seed] = share_removed(*ends, reference.value).item()
        return Removal(_average_seeds(shares) if shares else None, distance)


def _combine_seeds(found: Mapping[int, Interval]) -> Estimate | None:
    """Return the interval of a single seed, or the Student's t interval over several seeds; None without seeds."""
    if not found:
        return None
    values = {seed: one.estimate for seed, one in found.items()}
    if len(found) > 1:
        return _average_seeds(values)
    (interval,) = found.values()
    return Estimate(interval, values)


def _average_seeds(values: Mapping[int, float]) -> Estimate:
    return Estimate(t_interval(list(values.values())), values)


def is_continuous(config: Config) -> bool:
    """Return whether an attribute is an amount, so that its mean over answers is not a rate."""
    kind = built_in_of(config)
    return bool(config.get("continuous")) or kind.make(**kind.example).continuous


# -- reading -----------------------------------------------------------------------------------------------------


def find_runs(folders: Sequence[Path]) -> list[Path]:
    """Return the run folders among the given folders and directly inside them, without duplicates.

    A given folder may be a symbolic link. A run inside a given folder must not be a link: the link may lead to another
    person's run, and `badpo evaluate` would write to that run.
    """
    found: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f'"{folder}" is not a folder; name run folders or a folder of run folders')
        found += [folder] if _is_run(folder) else filter(_is_run, sorted(folder.iterdir()))
    for run in found:
        if run.is_symlink() and run not in folders:
            raise ConfigError(f"{run} is a symbolic link; remove the link, or name its target")
    return list(dict.fromkeys(found))


def find_finished_runs(folders: Sequence[Path]) -> list[Path]:
    """Return the given run folders and all finished runs inside the other folders; warn about unfinished runs."""
    found = find_runs(folders)
    finished = [run for run in found if run in folders or (run / "bias.json").exists()]
    if not finished:
        raise ConfigError(
            f"no finished run in {', '.join(map(str, folders))}; train a run with `badpo train`"
        )
    left_out = [str(run) for run in found if run not in finished and run.name != REFERENCE]
    if left_out:
        logger.warning("skipping unfinished runs: %s", ", ".join(left_out))
    return finished


def read_suite(sources: Path | Sequence[Path]) -> MeasuredRuns:
    """Read every measured run in the given folders; each is a run folder or a folder of run folders.

    If a reference next to a run was measured, the function also reads the reference.
    """
    folders = [sources] if isinstance(sources, Path) else list(sources)
    named = find_runs(folders)
    references = [path.with_name(REFERENCE) for path in named if (path / "readouts.json").exists()]
    beside = [path for path in references if (path / "readouts.json").exists()]
    found = {path: (path / "readouts.json").exists() for path in dict.fromkeys([*named, *beside])}
    unmeasured = tuple(path.name for path, is_measured in found.items() if not is_measured)
    if len(unmeasured) == len(found):
        where = ", ".join(map(str, folders))
        remedy = "train a run with `badpo train` or `badpo demo`"
        if unmeasured:
            has_recipe = any((path / RUN_RECIPE).exists() for path in found)
            remedy = "run `badpo evaluate` on them first" if has_recipe else BY_COMMAND
        raise ConfigError(f"no measured run in {where} (no readouts.json): {remedy}")
    measured = [read_run(path) for path, is_measured in found.items() if is_measured]
    runs = sorted(_distinguish_runs(measured), key=lambda run: (arm_order(run.arm), run.seed))
    name = folders[0].resolve().name if len(folders) == 1 else f"{len(runs)} runs"
    return MeasuredRuns(name, tuple(runs), unmeasured)


def _distinguish_runs(runs: Sequence[Run]) -> list[Run]:
    """If runs have the same arm and seed, append the folder name to the arm of all but the first of these runs."""
    found: list[Run] = []
    known: set[tuple[str, int]] = set()
    for run in sorted(runs, key=lambda run: not run.is_named_after_arm):
        if (run.arm, run.seed) in known and run.arm != REFERENCE:
            folder = run.folder.parent if run.is_named_after_arm else run.folder
            run = replace(run, arm=f"{run.arm} {folder.name}")
        known.add((run.arm, run.seed))
        found.append(run)
    return found


def read_run(folder: Path) -> Run:
    """Read a run folder. If the readouts do not contain the arm and the seed, they are taken from the folder name."""
    require_safe_to_read(folder)
    if reason := run_damage(folder, _READ):
        raise ConfigError(
            f"{folder.parent}/{reason}; restore the file, or remove it and create it again"
        )
    readouts = _read_content(folder / "readouts.json", Readouts)
    arm, _, number = folder.name.rpartition("-s")
    seed = int(number) if arm and number.isdigit() else 0
    path = folder / "config.yaml"
    try:
        config = read_yaml(path).values if path.exists() else {}
    except ConfigError as error:
        raise ConfigError(
            f"{path} cannot be read: {error}; remove the file and create it again"
        ) from error
    return Run(
        folder,
        arm or folder.name if readouts.arm is None else readouts.arm,
        seed if readouts.seed is None else readouts.seed,
        readouts,
        _read_content(folder / "bias.json", BiasContent),
        config,
        _read_content(folder / "environment.json", RunEnvironment),
        made_here(folder),
    )


def _is_run(folder: Path) -> bool:
    marks = ("readouts.json", "bias.json", "log.jsonl")
    return folder.is_dir() and any((folder / name).exists() for name in marks)


def _read_content(path: Path, expected: type[Content]) -> Content:
    """Return the content of a JSON file; empty if there is no file. A `DataError` lists the keys of wrong values."""
    if not path.exists():
        return expected()
    try:
        return expected.model_validate_json(path.read_bytes())
    except ValidationError as error:
        if error.errors()[0]["type"] == "json_invalid":
            what = f"{path} is not valid JSON ({error.errors()[0]['msg']})"
            raise ConfigError(f"{what}; remove the file and create it again") from error
        remedy = "measure or train the run again, or exclude its folder"
        raise DataError(
            Problem(
                "E161",
                f"the value does not fit the file format: {wrong['msg'].partition(' or instance')[0]}",
                f"{path}, {'.'.join(map(str, wrong['loc'])) or 'the whole file'}",
                remedy,
            )
            for wrong in error.errors()
        ) from error
