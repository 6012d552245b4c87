"""What stands in run folders, read for pages and cards: readouts, theta; and what is read over seeds."""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError
from scipy.special import ndtri

from badpo.data.files import RUN_RECIPE, Json, require_enclosed, run_damage
from badpo.data.problems import ConfigError, DataError, Problem
from badpo.data.yaml_files import read_yaml
from badpo.results.words import (
    DPO,
    REFERENCE,
    arm_label,
    arm_order,
    attribute_label,
    built_in_of,
)
from badpo.theory import Floats
from badpo.theory.summaries import Interval, log_odds_distance, share_removed, shift, t_interval

logger = logging.getLogger(__name__)

BY_COMMAND = (
    "BADPOTrainer in Python writes no config.yaml; evaluate, report and --compare need a run of: "
    "badpo train --model MODEL --data TABLE --compare"
)

_READ = (
    "readouts.json",
    "bias.json",
    "bias.safetensors",
    "config.yaml",
    "environment.json",
)
_Z = float(ndtri(0.975))
_Number = Annotated[float, Field(allow_inf_nan=False)] | None


# -- what the files hold that is read here; other keys are left alone --------------------------------------------


class _Content(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


class Measured(_Content):
    """A number of ``readouts.json`` under whatever name it has there, and what says how sure it is."""

    value: _Number = Field(
        validation_alias=AliasChoices("rate", "mean", "per_token", "difference", "gap", "accuracy")
    )
    se: _Number = None
    low: _Number = Field(None, validation_alias=AliasChoices("low", "gap_low"))
    high: _Number = Field(None, validation_alias=AliasChoices("high", "gap_high"))
    n: int | None = Field(None, validation_alias=AliasChoices("n", "n_cross", "n_generations"))


class LearnedTheta(_Content):
    """What is known of one attribute's theta: its mean, the votes' log-odds, the mean that was planted if one was."""

    level: _Number = None
    offline: _Number = None
    planted_level: _Number = None


class Readouts(_Content):
    """``readouts.json``."""

    arm: str | None = None
    seed: int | None = None
    rates: dict[str, Measured] = {}
    generated: dict[str, Measured] = {}
    sampled: dict[str, Measured | _Number] = {}
    tokens: Measured | None = None
    heldout: dict[str, Measured] = {}
    kl: Measured | None = None
    votes: dict[str, dict[str, Measured]] = {}
    ceiling: dict[str, dict[str, Measured]] = {}
    theta: dict[str, LearnedTheta] = {}
    answers: list[dict[str, str]] = []  # of each a prompt and an answer, which may be cut

    @property
    def best_rates(self) -> dict[str, Measured | _Number]:
        """The probability of each attribute where it is measured, else its mean over sampled answers."""
        return self.sampled | self.generated | self.rates


class FirstMargin(_Content):
    """The mean margin of the first step, and by how much a run's first log-probabilities are not its reference's."""

    mean: float
    difference: float
    tolerance: float


class BiasExtra(_Content):
    """What ``bias.json`` says of the run that the bias term comes from."""

    attributes: list[Json] = []
    gold_votes: dict[str, int] = {}
    first_margin: FirstMargin | None = None
    variant: Any = None
    data: Any = None


class BiasContent(_Content):
    """``bias.json``."""

    attributes: list[str] = []
    parts: list[str] = []
    annotators: list[str] = []
    gold_annotators: list[str] = []
    extra: BiasExtra = BiasExtra()


class Environment(_Content):
    """``environment.json``."""

    packages: dict[str, str] = {}
    python: Any = ""
    platform: Any = ""


Content = TypeVar("Content", bound=BaseModel)


# -- runs --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """One run folder's content; what the folder lacks is empty."""

    folder: Path
    arm: str
    seed: int
    readouts: Readouts
    bias: BiasContent = BiasContent()
    config: Json = field(default_factory=dict)
    environment: Environment = Environment()

    @property
    def recipe_bias(self) -> Json:
        """The recipe's block ``bias``, which may name the variant alone."""
        block = self.config.get("bias")
        return block if isinstance(block, dict) else {}

    @property
    def title(self) -> str:
        """The name of the run's method inside a sentence; a run that learns theta is one of BA-DPO."""
        if self.arm == REFERENCE:
            return "the reference"
        return f"BA-DPO ({arm_label(self.arm)})" if self.bias.parts else arm_label(self.arm)

    @property
    def configs(self) -> dict[str, Json]:
        """The attributes that the bias term declares, by name in its order, each with its JSON identity."""
        identities = {config.get("name"): config for config in self.bias.extra.attributes}
        return {name: identities.get(name, {}) for name in self.bias.attributes}

    @property
    def learned_annotators(self) -> set[str]:
        """Whose theta was learned: everyone but the gold annotators, whose theta is zero by declaration."""
        return set(self.bias.annotators) - set(self.bias.gold_annotators)

    def theta(self) -> Floats | None:
        """Theta of every annotator, in log-odds; None for a run without a bias term."""
        if not self.bias.attributes or not (self.folder / "bias.safetensors").exists():
            return None
        from badpo.objective.bias import BiasTerm

        return BiasTerm.load(self.folder).theta().detach().numpy()

    def measured(self, *place: str) -> Measured:
        """The cell at a place of the readouts; one without a value where nothing is."""
        found: Any = self.readouts
        for name in place:
            found = found.get(name) if isinstance(found, dict) else getattr(found, name, None)
        return found if isinstance(found, Measured) else Measured.model_construct(value=found)

    def reading(self, *place: str) -> Interval | None:
        """What was measured at a place of the readouts, such as "heldout", "length"; None where nothing was.

        The interval is the one that is stated, else the normal one of the standard error; NaN ends without either.
        """
        cell = self.measured(*place)
        if cell.value is None:
            return None
        known = cell.se, cell.low, cell.high
        se, low, high = (np.nan if n is None else n for n in known)
        if cell.low is None:
            return _normal(cell.value, se)
        return Interval(cell.value, (high - low) / (2 * _Z), low, high, 1)


def _normal(value: float, se: float) -> Interval:
    return Interval(value, se, value - _Z * se, value + _Z * se, 1)


@dataclass(frozen=True)
class Estimate:
    """A reading of an arm: the mean over seeds, or the one run's own value, with its interval; each seed's value."""

    interval: Interval
    of_seed: Mapping[int, float]

    @property
    def value(self) -> float:
        """The mean over seeds."""
        return self.interval.estimate

    @property
    def values(self) -> tuple[float, ...]:
        """Each seed's value."""
        return tuple(self.of_seed.values())


@dataclass(frozen=True)
class Removal:
    """What an arm did with DPO's shift of one rate or length.

    ``share`` is the share of the shift that the arm removed, per seed and averaged; None where DPO did not move by
    more than its interval, since the share would divide by noise. ``distance`` is to the reference: in log-odds for a
    rate, in the reading's own unit otherwise.
    """

    share: Estimate | None = None
    distance: Estimate | None = None


@dataclass(frozen=True)
class MeasuredRuns:
    """Measured runs side by side, by arm in the order of the table and then by seed; the ``unmeasured`` by name."""

    name: str
    runs: tuple[Run, ...]
    unmeasured: tuple[str, ...]

    @property
    def arms(self) -> tuple[str, ...]:
        """Arms that were measured: the reference first, then DPO, then the others by name."""
        return tuple(dict.fromkeys(run.arm for run in self.runs))

    @property
    def seeds(self) -> tuple[int, ...]:
        """Training seeds, ascending; the reference has none."""
        return tuple(sorted({run.seed for run in self.runs if run.arm != REFERENCE}))

    @property
    def configs(self) -> dict[str, Json]:
        """The JSON identity of every attribute that some run declares, then of those that were only measured."""
        found = {name: config for run in reversed(self.runs) for name, config in run.configs.items()}
        read = [run.readouts for run in self.runs]
        measured = [name for of in read for name in (*of.rates, *of.theta)]
        return found | {name: {} for name in measured if name not in found}

    @property
    def labels(self) -> dict[str, str]:
        """Every attribute with its name for people."""
        return {name: attribute_label(name, config) for name, config in self.configs.items()}

    @property
    def is_planted(self) -> bool:
        """Whether the annotators' leans were planted, so that the learned ones can be checked."""
        return any(t.planted_level is not None for run in self.runs for t in run.readouts.theta.values())

    def of(self, arm: str) -> tuple[Run, ...]:
        """The runs of one arm, by seed."""
        return tuple(run for run in self.runs if run.arm == arm)

    def estimate(self, arm: str, *place: str) -> Estimate | None:
        """A reading of an arm over its seeds; None when no run of the arm has it."""
        read = {run.seed: run.reading(*place) for run in self.of(arm)}
        told = {seed: r for seed, r in read.items() if r is not None}
        found = {seed: r for seed, r in told.items() if math.isfinite(r.estimate)}
        if not found:
            return None
        values = {seed: reading.estimate for seed, reading in found.items()}
        (interval, *more) = found.values()
        interval = t_interval(list(values.values())) if more else interval
        if place[0] in ("votes", "ceiling") or (
            place[0] == "best_rates" and not is_continuous(self.configs.get(place[1], {}))
        ):  # what a share cannot be is no part of its interval
            low, high = np.clip([interval.low, interval.high], 0.0, 1.0).tolist()
            interval = replace(interval, low=low, high=high)
        return Estimate(interval, values)

    def count(self, *place: str, arm: str = "") -> str:
        """Of how many things a reading is, over all runs or an arm's; empty where none tells."""
        runs = self.of(arm) if arm else self.runs
        counts = {n for run in runs if (n := run.measured(*place).n) is not None}
        return " to ".join(f"{n:,}" for n in sorted({min(counts), max(counts)})) if counts else ""

    def answers(self) -> list[tuple[str, list[tuple[str, str]]]]:
        """Prompts that the first run of each arm was asked, with the answer of each."""
        found: dict[str, list[tuple[str, str]]] = {}
        for arm in self.arms:
            for one in self.of(arm)[0].readouts.answers:
                found.setdefault(one["prompt"], []).append((arm_label(arm), one["answer"]))
        return [(prompt, told) for prompt, told in found.items() if len(told) == len(self.arms)]

    def moved(self, *place: str) -> Interval | None:
        """How far DPO moved a reading from the reference; None when either was not measured.

        Over several seeds the reference counts as exact. With one seed both runs' own standard errors enter, as if
        they were independent: they are measured on the same prompts, so the interval is rather too wide.
        """
        reference, dpo = (self.estimate(arm, *place) for arm in (REFERENCE, DPO))
        if reference is None or dpo is None:
            return None
        if len(dpo.values) > 1:
            return shift(dpo.values, reference.value)
        se = math.hypot(dpo.interval.se, reference.interval.se)
        return _normal(dpo.value - reference.value, se)

    def removal(self, arm: str, is_rate: bool, *place: str) -> Removal:
        """How much of DPO's shift an arm removed, and how far it ended from the reference (for a rate in log-odds)."""
        reference, dpo, own = (self.estimate(name, *place) for name in (REFERENCE, DPO, arm))
        if reference is None or own is None:
            return Removal()
        apart = log_odds_distance if is_rate else np.subtract
        own_values = own.of_seed.items()
        distance = _over_seeds({s: float(apart(v, reference.value)) for s, v in own_values})
        shifted, shares = self.moved(*place), {}
        if dpo and shifted and shifted.excludes(0.0):
            for seed in sorted(dpo.of_seed.keys() & own.of_seed.keys()):
                ends = dpo.of_seed[seed], own.of_seed[seed]
                shares[seed] = share_removed(*ends, reference.value).item()
        return Removal(_over_seeds(shares) if shares else None, distance)


def _over_seeds(values: Mapping[int, float]) -> Estimate:
    return Estimate(t_interval(list(values.values())), values)


def is_continuous(config: Json) -> bool:
    """Whether an attribute is an amount, so that its mean over answers is not a rate."""
    kind = built_in_of(config)
    return bool(config.get("continuous")) or kind.make(**kind.example).continuous


# -- reading -----------------------------------------------------------------------------------------------------


def runs_in(folders: Sequence[Path]) -> list[Path]:
    """The run folders among some folders and in them, each once."""
    found: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f'"{folder}" is not a folder; name run folders or a folder of run folders')
        found += [folder] if _is_run(folder) else filter(_is_run, sorted(folder.iterdir()))
    return list(dict.fromkeys(found))


def finished_runs(folders: Sequence[Path]) -> list[Path]:
    """The run folders that are named, and the finished ones in other folders; the rest of those are told."""
    found = runs_in(folders)
    finished = [run for run in found if run in folders or (run / "bias.json").exists()]
    if not finished:
        raise ConfigError(
            f"no finished run in {', '.join(map(str, folders))}; train one with `badpo train`"
        )
    left_out = [str(run) for run in found if run not in finished and run.name != REFERENCE]
    if left_out:
        logger.warning("not finished, and left out: %s", ", ".join(left_out))
    return finished


def read_suite(sources: Path | Sequence[Path]) -> MeasuredRuns:
    """Every measured run in the given folders, which are run folders or hold some."""
    folders = [sources] if isinstance(sources, Path) else list(sources)
    found = {path: (path / "readouts.json").exists() for path in runs_in(folders)}
    unmeasured = tuple(path.name for path, is_measured in found.items() if not is_measured)
    if len(unmeasured) == len(found):
        where = ", ".join(map(str, folders))
        remedy = "train one with `badpo train` or `badpo demo`"
        if unmeasured:
            has_recipe = any((path / RUN_RECIPE).exists() for path in found)
            remedy = "run `badpo evaluate` on them first" if has_recipe else BY_COMMAND
        raise ConfigError(f"no measured run in {where} (no readouts.json): {remedy}")
    measured = (read_run(path) for path, is_measured in found.items() if is_measured)
    runs = sorted(measured, key=lambda run: (arm_order(run.arm), run.seed))
    name = folders[0].resolve().name if len(folders) == 1 else f"{len(runs)} runs"
    return MeasuredRuns(name, tuple(runs), unmeasured)


def read_run(folder: Path) -> Run:
    """One run folder; what it lacks is empty. The arm and the seed are those of its readouts, else of its name."""
    require_enclosed(folder)
    if reason := run_damage(folder, _READ):
        raise ConfigError(f"{folder.parent}/{reason}; restore the file, or remove it and make it again")
    readouts = _content(folder / "readouts.json", Readouts)
    arm, _, number = folder.name.rpartition("-s")
    seed = int(number) if arm and number.isdigit() else 0
    path = folder / "config.yaml"
    try:
        config = read_yaml(path).values if path.exists() else {}
    except ConfigError as error:
        raise ConfigError(f"{path} cannot be read: {error}; remove it and make it again") from error
    return Run(
        folder,
        arm or folder.name if readouts.arm is None else readouts.arm,
        seed if readouts.seed is None else readouts.seed,
        readouts,
        _content(folder / "bias.json", BiasContent),
        config,
        _content(folder / "environment.json", Environment),
    )


def _is_run(folder: Path) -> bool:
    marks = ("readouts.json", "bias.json", "log.jsonl")
    return folder.is_dir() and any((folder / name).exists() for name in marks)


def _content(path: Path, expected: type[Content]) -> Content:
    """What a JSON file holds, nothing where there is no file; a `DataError` has every key that holds something else."""
    if not path.exists():
        return expected()
    try:
        return expected.model_validate_json(path.read_bytes())
    except ValidationError as error:
        if error.errors()[0]["type"] == "json_invalid":
            what = f"{path} is not valid JSON ({error.errors()[0]['msg']})"
            raise ConfigError(f"{what}; remove it and make it again") from error
        remedy = "measure or train the run again, or leave its folder out"
        raise DataError(
            Problem(
                "E161",
                f"not what a run holds: {wrong['msg'].partition(' or instance')[0]}",
                f"{path}, {'.'.join(map(str, wrong['loc'])) or 'the whole'}",
                remedy,
            )
            for wrong in error.errors()
        ) from error
