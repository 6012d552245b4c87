"""What stands in run folders, read for tables and pages: readouts, step logs, theta, the planted annotators."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from badpo.data.files import require_enclosed, run_damage
from badpo.data.problems import ConfigError, DataError, Problem
from badpo.data.yaml_files import read_yaml
from badpo.results.labels import REFERENCE, arm_order

_READ = (
    "readouts.json",
    "log.jsonl",
    "bias.json",
    "bias.safetensors",
    "config.yaml",
    "environment.json",
    "planted.json",
)


# What the files of a run hold that is read here; other keys are left alone.
_Number = Annotated[float, Field(allow_inf_nan=False)] | None
_Share = Annotated[float, Field(ge=0, le=1)] | None


class _Content(BaseModel):
    model_config = ConfigDict(strict=True)


class _Estimate(_Content):
    se: _Number = None
    low: _Number = None
    high: _Number = None


class _Rate(_Estimate):
    rate: _Number


class _Mean(_Estimate):
    mean: _Number


class _Divergence(_Estimate):
    per_token: _Number


class _Votes(_Estimate):
    accuracy: _Share
    n: Annotated[int, Field(ge=0)]


class _Difference(_Estimate):
    difference: _Number


class _Gap(_Content):
    gap: _Number
    gap_low: _Number = None
    gap_high: _Number = None


class _Theta(_Content):
    offline: _Number = None
    correlation: _Number = None


class _Readouts(_Content):
    arm: str = ""
    seed: int = 0
    rates: dict[str, _Rate] = {}
    generated: dict[str, _Rate] = {}
    sampled: dict[str, _Rate | _Number] = {}
    tokens: _Mean | None = None
    heldout: dict[str, _Gap] = {}
    kl: _Divergence | None = None
    votes: dict[str, dict[str, _Votes]] = {}
    ceiling: dict[str, dict[str, _Votes]] = {}
    votes_minus_ceiling: dict[str, dict[str, _Difference]] = {}
    theta: dict[str, _Theta] = {}


class _FirstMargin(_Content):
    mean: float
    difference: float
    tolerance: float


class _Extra(_Content):
    attributes: list[dict[str, Any]] = []
    gold_votes: dict[str, int] = {}
    separated: dict[str, int] = {}
    first_margin: _FirstMargin | None = None


class _Bias(_Content):
    attributes: list[str] = []
    parts: list[str] = []
    annotators: list[str] = []
    annotator_class: list[str | None] | None = None
    gold_annotators: list[str] = []
    extra: _Extra = _Extra()


class _Environment(_Content):
    packages: dict[str, str] = {}
    command: str | None = None


class _PlantedAnnotator(_Content):
    pseudonym: str
    annotator_class: str | None = None
    theta: list[float]


class _PlantedFile(_Content):
    attributes: list[str]
    annotators: list[_PlantedAnnotator]


_CONTENTS: dict[str, TypeAdapter[Any]] = {
    "readouts.json": TypeAdapter(_Readouts),
    "bias.json": TypeAdapter(_Bias),
    "environment.json": TypeAdapter(_Environment),
    "planted.json": TypeAdapter(_PlantedFile),
}
_STEP = TypeAdapter(dict[str, float | None])


@dataclass(frozen=True)
class Run:
    """One run folder's content.

    Attributes
    ----------
    folder : Path
    arm : str
    seed : int
    readouts : mapping
        ``readouts.json``.
    steps : tuple of mappings
        ``log.jsonl``, in the order of the steps; empty when there is none.
    bias : mapping
        ``bias.json``; empty for a run without a bias term.
    config, environment : mapping
        ``config.yaml`` and ``environment.json``; empty when missing.
    """

    folder: Path
    arm: str
    seed: int
    readouts: Mapping[str, Any]
    steps: tuple[Mapping[str, Any], ...]
    bias: Mapping[str, Any]
    config: Mapping[str, Any]
    environment: Mapping[str, Any]


@dataclass(frozen=True)
class Suite:
    """Measured runs side by side.

    Attributes
    ----------
    name : str
    runs : tuple of Run
        By arm in the order of the table, then by seed.
    unmeasured : tuple of str
        Run folders that hold a trained policy but no readouts.
    """

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
    def attributes(self) -> tuple[str, ...]:
        """Attributes in the order in which a bias term declares them, then any that were only measured."""
        declared = [name for run in self.runs for name in attribute_configs(run)]
        measured = [
            name for run in self.runs for key in ("rates", "theta") for name in run.readouts.get(key, {})
        ]
        return tuple(dict.fromkeys([*declared, *measured]))

    def of(self, arm: str) -> tuple[Run, ...]:
        """The runs of one arm, by seed."""
        return tuple(run for run in self.runs if run.arm == arm)


@dataclass(frozen=True)
class Planted:
    """The leans that the annotators of a constructed corpus were given.

    Attributes
    ----------
    attributes : tuple of str
    pseudonyms, classes : tuple of str
        One per annotator.
    theta : array of shape (n_annotators, n_attributes)
        In log-odds.
    """

    attributes: tuple[str, ...]
    pseudonyms: tuple[str, ...]
    classes: tuple[str, ...]
    theta: NDArray[np.float64]


def read_suite(sources: Path | Sequence[Path]) -> Suite:
    """Every measured run in the given folders, which are run folders or hold some."""
    folders = [sources] if isinstance(sources, Path) else list(sources)
    found: dict[Path, None] = {}
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f'"{folder}" is not a folder; name run folders or a folder of run folders')
        inside = [folder] if _is_run(folder) else sorted(path for path in folder.iterdir() if _is_run(path))
        found.update(dict.fromkeys(inside))
    measured = [path for path in found if (path / "readouts.json").exists()]
    unmeasured = tuple(path.name for path in found if path not in measured)
    if not measured:
        where = ", ".join(str(folder) for folder in folders)
        remedy = (
            "run `badpo evaluate` on them first"
            if unmeasured
            else "train one with `badpo train` or `badpo demo`"
        )
        raise ConfigError(f"no measured run in {where} (no readouts.json): {remedy}")
    runs = sorted((read_run(path) for path in measured), key=lambda run: (arm_order(run.arm), run.seed))
    name = folders[0].resolve().name if len(folders) == 1 else f"{len(runs)} runs"
    return Suite(name, tuple(runs), unmeasured)


def read_run(folder: Path) -> Run:
    """One run folder; what it lacks is empty. The arm and the seed are those of its readouts, else of its name."""
    require_enclosed(folder)
    if reason := run_damage(folder, _READ):
        raise ConfigError(f"{folder.parent}/{reason}; restore the file, or remove it and make it again")
    readouts = _json(folder / "readouts.json")
    arm, _, seed = folder.name.rpartition("-s")
    return Run(
        folder,
        readouts.get("arm", arm or folder.name),
        int(readouts.get("seed", seed if arm and seed.isdigit() else 0)),
        readouts,
        tuple(_steps(folder / "log.jsonl")),
        _json(folder / "bias.json"),
        _yaml(folder / "config.yaml"),
        _json(folder / "environment.json"),
    )


def attribute_configs(run: Run) -> dict[str, Mapping[str, Any]]:
    """The attributes that a run's bias term declares, by name in its order, each with its JSON identity."""
    identities = {config.get("name"): config for config in run.bias.get("extra", {}).get("attributes", ())}
    return {name: identities.get(name, {}) for name in run.bias.get("attributes", ())}


def is_continuous(config: Mapping[str, Any]) -> bool:
    """Whether an attribute is an amount, so that its mean over answers is not a rate.

    Examples
    --------
    >>> is_continuous({"type": "length_words", "name": "words"}), is_continuous({"type": "markdown"})
    (True, False)
    """
    return bool(config.get("continuous")) or config.get("type") in ("length_words", "length_tokens")


def learned_annotators(run: Run) -> set[str]:
    """Whose theta a run learned: everyone but the gold annotators, whose theta is zero by declaration."""
    return set(run.bias.get("annotators", ())) - set(run.bias.get("gold_annotators", ()))


def learned_theta(run: Run) -> NDArray[np.float64] | None:
    r"""Theta of every annotator of a run, from the parts that its bias files hold.

    .. math:: \theta_k = m_k (\bar\theta + o_{c(k)} + \epsilon_k) + f_k

    Returns
    -------
    array of shape (n_annotators, n_attributes), or None
        In log-odds, in the order of ``bias.json``; None for a run without a bias term.
    """
    path = run.folder / "bias.safetensors"
    if not run.bias or not path.exists():
        return None
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        theta = _composed({name: v.astype(np.float64) for name, v in load_file(path).items()}, run.bias)
    except (SafetensorError, KeyError, IndexError, TypeError, ValueError) as error:
        raise DataError([_unfit(str(path), f"{type(error).__name__}: {error}")]) from error
    expected = len(run.bias.get("annotators", ())), len(run.bias.get("attributes", ()))
    if theta.shape != expected:
        why = f"theta of the shape {theta.shape}, where bias.json beside it has {expected}"
        raise DataError([_unfit(str(path), why)])
    return theta


def _composed(parts: dict[str, NDArray[np.float64]], bias: Mapping[str, Any]) -> NDArray[np.float64]:
    learned = np.zeros_like(parts["fixed"])
    if "mean" in parts:
        learned = learned + parts["mean"]
    if "class_offset" in parts:
        labels = list(bias["annotator_class"])
        classes = list(dict.fromkeys(labels))
        learned = learned + parts["class_offset"][[classes.index(label) for label in labels]]
    if "deviation" in parts:
        learned = learned + parts["deviation"]
    return parts["mask"][:, None] * learned + parts["fixed"]


def read_planted(suite: Suite) -> Planted | None:
    """What was planted, from the first run folder that records it; None for votes of real annotators."""
    for run in suite.runs:
        for path in (run.folder / "planted.json", run.folder.parent / "planted.json"):
            if path.exists():
                content = _json(path)
                rows = content["annotators"]
                if any(len(row["theta"]) != len(content["attributes"]) for row in rows):
                    raise DataError(
                        [_unfit(str(path), "theta of an annotator without one number an attribute")]
                    )
                return Planted(
                    tuple(content["attributes"]),
                    tuple(row["pseudonym"] for row in rows),
                    tuple(str(row.get("annotator_class") or "all") for row in rows),
                    np.array([row["theta"] for row in rows], dtype=np.float64),
                )
    return None


def _is_run(folder: Path) -> bool:
    marks = ("readouts.json", "bias.json", "log.jsonl")
    return folder.is_dir() and any((folder / name).exists() for name in marks)


def _json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid JSON ({error}); remove it and make it again") from error
    _require(_CONTENTS[path.name], content, str(path))
    return content


def _require(expected: TypeAdapter, content: Any, where: str) -> None:
    """Raise `DataError` with every key of a file that holds something else than what is read from it."""
    try:
        expected.validate_python(content, strict=True)
    except ValidationError as error:
        raise DataError(
            _unfit(f"{where}, {'.'.join(map(str, wrong['loc'])) or 'the whole'}", wrong["msg"])
            for wrong in error.errors()
        ) from error


def _unfit(where: str, why: str) -> Problem:
    remedy = "measure or train the run again, or leave its folder out"
    return Problem(
        "E161", f"not what a run holds: {why.partition(' or instance')[0]}", where, remedy, "error"
    )


def _yaml(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        return read_yaml(path).values
    except ConfigError as error:
        raise ConfigError(f"{path} cannot be read: {error}; remove it and make it again") from error


def _steps(path: Path) -> list[dict[str, Any]]:
    """The lines of a step log; a last line that was cut off while it was written does not count."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    steps = []
    for number, line in enumerate(lines, start=1):
        try:
            steps.append(json.loads(line))
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                break
            raise ConfigError(f"{path}, line {number} is not valid JSON; remove the line") from error
        _require(_STEP, steps[-1], f"{path}, line {number}")
    return steps
