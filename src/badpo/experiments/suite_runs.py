"""The runs of suites: which they are, what they need, and each trained and measured once, side by side when told to."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from joblib import Parallel, delayed, parallel_config
from joblib.externals.loky.process_executor import TerminatedWorkerError

from badpo.data.files import RUN_SEAL, BusyError, holder, locked
from badpo.data.problems import ConfigError
from badpo.experiments.arm_setup import adjusted_arm, method_facts, prepared, run_recipe
from badpo.experiments.arms import ARMS
from badpo.experiments.em_dpo import train_types
from badpo.experiments.evaluate import kept_json
from badpo.experiments.run import BEGUN, Progress, keep_run, settings_facts
from badpo.experiments.suite_anchors import anchored_run
from badpo.experiments.suite_materials import own_file
from badpo.experiments.suite_parts import Condition, Corpus, Suite
from badpo.experiments.suite_readouts import measure_run
from badpo.experiments.suite_settings import Scale
from badpo.experiments.suite_stages import CorpusStage, open_stage
from badpo.training.run_folder import changed_facts


@dataclass(frozen=True)
class PlannedRun:
    """A run that suites ask for: a condition at a seed, or the reference (no condition)."""

    corpus: Corpus
    condition: Condition | None
    seed: int = 0

    @property
    def name(self) -> str:
        """Its folder in the corpus's, such as ``dpo-s42``."""
        return "reference" if self.condition is None else f"{self.condition.name}-s{self.seed}"

    @property
    def place(self) -> str:
        """Its folder below the suites' folder, such as ``signed/dpo-s42``."""
        return f"{self.corpus.folder}/{self.name}"

    @property
    def phase(self) -> int:
        """0 for a reference, 1 for what is trained from it, 2 for what is anchored from that."""
        if self.condition is None:
            return 0
        return 1 if self.condition.offset is None else 2


def planned_runs(suites: Iterable[Suite], scale: Scale, seeds: Sequence[int]) -> list[PlannedRun]:
    """The runs of some suites, each once: references, then arms, then what is anchored from these, seed by seed.

    Raises
    ------
    ConfigError
        Two suites mean different runs by one name.
    """
    found: dict[str, PlannedRun] = {}
    plan = scale.seed_plan(seeds)
    for suite in suites:
        for panel in suite.panels:
            if not scale.has(panel.corpus):
                continue
            asked = [PlannedRun(panel.corpus, None)]
            for row in panel.rows:
                chosen = plan.of(row)
                offset = row.condition.offset
                wanted = [row.condition] if offset is None else [offset.source, row.condition]
                asked += [
                    PlannedRun(panel.corpus, condition, seed) for condition in wanted for seed in chosen
                ]
            for run in asked:
                known = found.setdefault(run.place, run)
                if known.condition != run.condition:
                    raise ConfigError(f"{suite.name}: another suite means a different run by {run.place}")
    # anchors of one source share its answers where they follow each other
    return sorted(found.values(), key=lambda run: (run.phase, run.seed if run.phase == 2 else 0))


def execute(
    runs: Sequence[PlannedRun], scale: Scale, out: Path, data: Path | None, jobs: int, progress: Progress
) -> None:
    """Train and measure every run that is not there yet.

    Runs that another process works on are left for last and waited for.

    Parameters
    ----------
    runs : sequence of PlannedRun
        References first.
    scale : Scale
    out : Path
    data : Path or None
        A user's own file, for the corpora of the runs that it stands in the place of (`own_file`).
    jobs : int
        Runs side by side, each on one thread where there are several.
    progress : function of (what is being done, share done of it)

    Raises
    ------
    ConfigError
        A folder holds a run with other data or settings, or a worker was killed.
    DataError
        The votes of a corpus cannot be used, or one of its evaluation prompts is a training prompt.
    """
    corpora = {run.corpus for run in runs}
    own = {corpus: own_file(corpus, corpora, data) for corpus in corpora}
    told = progress if jobs == 1 else silent
    done = 0
    try:
        with parallel_config("loky", n_jobs=jobs, inner_max_num_threads=1 if jobs > 1 else None):
            for phase in range(3):
                busy = [run for run in runs if run.phase == phase]
                for wait in (False, True):
                    calls = (delayed(run_one)(run, scale, out, own[run.corpus], wait, told) for run in busy)
                    finished = Parallel(return_as="generator")(calls)
                    left = []
                    for run, is_done in zip(busy, finished, strict=True):
                        if not is_done:
                            left.append(run)
                            continue
                        done += 1
                        progress(f"{run.place} ({done} of {len(runs)})", 1.0)
                    busy = left
    except TerminatedWorkerError as error:
        raise ConfigError(
            "a process that trained a run was ended from outside; finished runs are whole, start the command again to "
            "go on"
        ) from error


def silent(what: str, share: float) -> None:
    """Tell nobody."""


def run_one(
    run: PlannedRun, scale: Scale, out: Path, data: Path | None, wait: bool, progress: Progress
) -> bool:
    """Train and measure one run, unless it is there; False when another process works on it."""
    corpus_folder, folder = out / run.corpus.folder, out / run.place
    reference = corpus_folder / "reference"
    try:
        with locked(reference, wait=True if run.condition else wait):
            stage = _stage(run.corpus, scale, corpus_folder, data, progress)
            if run.condition is None:
                measure_run(reference, stage, 0, None, scale.judge, progress)
                return True
        with locked(folder, wait):
            train_and_measure(run.condition, run.seed, stage, scale, folder, data, progress)
    except BusyError:
        return False
    return True


_STAGES: dict[tuple, CorpusStage] = {}


def _stage(corpus: Corpus, scale: Scale, folder: Path, data: Path | None, progress: Progress) -> CorpusStage:
    """The stage of a corpus, kept between the runs of this process; the last one alone, for its model is large."""
    place = (corpus, scale.name, folder, data)
    if place not in _STAGES:
        _STAGES.clear()
        _STAGES[place] = open_stage(corpus, scale, data, folder, progress)
    return _STAGES[place]


def train_and_measure(
    condition: Condition,
    seed: int,
    stage: CorpusStage,
    scale: Scale,
    folder: Path,
    data: Path | None,
    progress: Progress,
) -> None:
    """Train and measure a condition at a seed, unless ``folder`` holds it.

    Raises
    ------
    ConfigError
        The folder holds a run with other data or settings.
    """
    arm = adjusted_arm(ARMS[condition.arm], stage, scale)
    recipe = run_recipe(condition, arm, seed, stage, scale)
    if arm.objective == "types":
        train_types(arm, recipe, stage, scale, folder, progress)
        return
    if condition.offset is not None:
        bias = anchored_run(condition.offset, seed, stage, scale, data, folder, progress)
    else:
        asked = prepared(condition, arm, recipe, stage)
        bias = keep_run(recipe, folder, asked, stage.held_out, scale.command, progress)
    measure_run(folder, stage, seed, bias, scale.judge, progress)


# -- what there is already -----------------------------------------------------------------------------------------


def kept_facts(folder: Path) -> dict[str, Any]:
    """What decided the run in a folder, finished or begun; empty where that cannot be read."""
    for name in (RUN_SEAL, BEGUN):
        facts = kept_json(folder / name).get("facts")
        if isinstance(facts, dict):
            return facts
    return {}


def refused_runs(
    runs: Sequence[PlannedRun], stages: Mapping[Corpus, CorpusStage], scale: Scale, out: Path
) -> dict[str, str]:
    """Runs whose folders hold one with another recipe or method, by their place, and what differs.

    What is not known before its run, its votes as the arm sees them, is taken to be the same; of an anchored run
    nothing is known.
    """
    found = {}
    for run in runs:
        there, condition = kept_facts(out / run.place), run.condition
        if run.corpus not in stages or not there or condition is None or condition.offset is not None:
            continue
        stage, arm = stages[run.corpus], ARMS[condition.arm]
        recipe = run_recipe(condition, arm, run.seed, stage, scale)
        now = {**settings_facts(recipe), **json.loads(json.dumps(method_facts(condition, arm)))}
        if scale.scales_penalty:
            now |= {name: there[name] for name in ("fixed", "length_unit") if name in there}
        now |= {name: there.get(name) for name in ("data", "reference", "annotator_weights") if name in there}
        if changes := changed_facts(there, now):
            found[run.place] = "; ".join(changes)
    return found


def state_of(folder: Path) -> str:
    """What there is of a run: ``running``, ``done``, ``trained`` (without readouts), ``begun`` or ``to do``."""
    if holder(folder) is not None:
        return "running"
    if (folder / RUN_SEAL).exists():
        return "done" if (folder / "readouts.json").exists() else "trained"
    return "begun" if (folder / BEGUN).exists() else "to do"


@dataclass(frozen=True)
class SuitePlan:
    """The runs of some suites: what there is of each, which are refused and why, what is to be said of the votes."""

    states: dict[str, str]
    refused: dict[str, str]
    about: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """The plan for people: one line for each run, then how many there are."""
        width = max(map(len, self.states), default=0)
        n_done = sum(state == "done" for state in self.states.values())
        lines = [f"{place:<{width}}  {state}" for place, state in self.states.items()]
        return [
            *lines,
            "",
            f"{len(lines)} runs, {n_done} of them done",
            *refusals(self.refused),
            *self.about,
        ]

    def to_json(self) -> dict[str, Any]:
        """The same as plain values."""
        return asdict(self) | {"about": list(self.about)}


OTHER = "other settings"


def plan(
    runs: Sequence[PlannedRun], out: Path, refused: dict[str, str], about: tuple[str, ...] = ()
) -> SuitePlan:
    """What there is of the runs. Reads run folders, loads no model."""
    states = {run.place: OTHER if run.place in refused else state_of(out / run.place) for run in runs}
    return SuitePlan(states, refused, about)


def refusals(refused: Mapping[str, str]) -> list[str]:
    """What is said of runs that would be refused."""
    if not refused:
        return []
    each = [
        f"{place} holds a run with other data or settings ({changes})" for place, changes in refused.items()
    ]
    return [*each, "nothing would be trained: remove these folders, or give another --out"]
