"""Training and measuring the runs of suites: each once, whoever asks for it, side by side when told to."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from badpo.data.attributes import plain_text
from badpo.data.files import BusyError, locked
from badpo.data.problems import ConfigError
from badpo.experiments.arms import ARMS, Arm
from badpo.experiments.progress import Progress, Ticker
from badpo.experiments.run_keys import RunKey, begin, finish, is_done, run_key
from badpo.experiments.signed_readouts import ReferenceStage
from badpo.experiments.signed_suite import train_policy, train_types
from badpo.experiments.start_policy import majority_responses
from badpo.experiments.suite_anchors import anchored_run
from badpo.experiments.suite_parts import Condition, Corpus, Suite
from badpo.experiments.suite_readouts import VERSION, kept_readouts, measure_run
from badpo.experiments.suite_settings import PREFERENCE_FIELDS, SuiteSettings
from badpo.experiments.suite_stages import Scale, Stage, declared, open_stage, own_file
from badpo.experiments.theta_starts import FallingRate, clustered, start_bias
from badpo.objective.bias import BiasTerm
from badpo.training.encoding import encode_responses
from badpo.training.run_folder import write_json

TIMING, START = "timing.json", "start.json"
# What the paper's penalty per token is made for: the mean answer of its reference (Table `tab:multipref`).
PAPER_TOKENS = 288.6


@dataclass(frozen=True)
class PlannedRun:
    """A run that suites ask for: a condition at a seed, or the reference (no condition)."""

    corpus: Corpus
    condition: Condition | None
    seed: int = 0

    @property
    def place(self) -> str:
        """Its folder below the suites' folder.

        Examples
        --------
        >>> PlannedRun(Corpus("signed"), Condition("dpo", "dpo"), 42).place, PlannedRun(Corpus("style"), None).place
        ('signed/dpo-s42', 'style/reference')
        """
        name = "reference" if self.condition is None else f"{self.condition.name}-s{self.seed}"
        return f"{self.corpus.folder}/{name}"

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
    phases = [[run for run in runs if run.phase == phase] for phase in range(3)]
    if jobs == 1:
        for group in phases:
            busy = group
            for wait in (False, True):
                busy = [run for run in busy if not run_one(run, scale, out, own[run.corpus], wait, progress)]
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, context, initializer=_begin_worker, initargs=(os.getpid(),))
    try:
        work = partial(run_one, scale=scale, out=out)
        done = 0
        for group in phases:
            busy = group
            for wait in (False, True):
                tasks = {pool.submit(work, run, data=own[run.corpus], wait=wait): run for run in busy}
                busy = []
                for task in as_completed(tasks):
                    if not task.result():
                        busy.append(tasks[task])
                        continue
                    done += 1
                    progress(f"{tasks[task].place} ({done} of {len(runs)})", 1.0)
    except BrokenProcessPool as error:
        raise ConfigError(
            "a process that trained a run was ended from outside; finished runs are whole, start the command again to "
            "go on"
        ) from error
    except KeyboardInterrupt:
        for worker in multiprocessing.active_children():
            worker.terminate()
        raise
    finally:
        # after an error the runs that have begun are finished, and no other is begun
        pool.shutdown(wait=True, cancel_futures=True)


def _begin_worker(parent: int) -> None:
    """One thread for each of several processes, none of which outlives the one that started it."""
    torch.set_num_threads(1)
    # Ctrl-C reaches them too; the process that started them ends them
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def silent(what: str, share: float) -> None:
    """Tell nobody."""


def run_one(
    run: PlannedRun, scale: Scale, out: Path, data: Path | None, wait: bool, progress: Progress = silent
) -> bool:
    """Train and measure one run, unless it is there; False when another process works on it."""
    folder = out / run.place
    reference = out / run.corpus.folder / "reference"
    try:
        with locked(reference, wait=True if run.condition else wait):
            started, was_done = _clocks(), (reference / "run.json").exists()
            stage = _stage(run.corpus, scale, out, data, progress)
            if run.condition is None:
                trained = _clocks()
                measure_run(reference, stage, 0, None, scale.judge, progress)
                if not was_done:
                    _write_timing(reference, started, trained, _clocks())
                return True
        with locked(folder, wait):
            _train_and_measure(run, stage, scale, folder, progress)
    except BusyError:
        return False
    return True


_STAGES: dict[tuple, Stage] = {}


def _stage(corpus: Corpus, scale: Scale, out: Path, data: Path | None, progress: Progress) -> Stage:
    """The stage of a corpus, kept between the runs of this process; the last one alone, for its model is large."""
    place = (corpus, scale.name, out, data)
    if place not in _STAGES:
        _STAGES.clear()
        _STAGES[place] = open_stage(corpus, scale, data, out / corpus.folder / "reference", progress)
    return _STAGES[place]


def _train_and_measure(run: PlannedRun, stage: Stage, scale: Scale, folder: Path, progress: Progress) -> None:
    started, was_done = _clocks(), (folder / "run.json").exists()
    bias = train_run(run, stage, scale, folder, progress)
    trained = _clocks()
    if bias is not None:
        measure_run(folder, stage, run.seed, bias, scale.judge, progress)
    if not was_done:
        _write_timing(folder, started, trained, _clocks())


def train_run(
    run: PlannedRun, stage: Stage, scale: Scale, folder: Path, progress: Progress
) -> BiasTerm | None:
    """Train one run unless ``folder`` holds it; None for an arm of several policies, which is measured by itself.

    Raises
    ------
    ConfigError
        The folder holds a run with other data or settings.
    """
    condition = run.condition
    assert condition is not None
    if condition.offset is not None:
        return anchored_run(condition.offset, run.seed, stage, scale, folder, progress)
    arm = adjusted_arm(ARMS[condition.arm], stage, scale)
    settings = overridden(stage.settings, condition)
    judgments = declared(stage.train, condition.declared)
    if arm.objective == "types":
        _train_types(condition.arm, stage, scale, settings, run.seed, folder, progress)
        return None
    if condition.classes == "clusters":
        judgments = clustered(judgments)

    def prepared(trainer) -> None:
        if levels := start_bias(trainer.bias, trainer.judgments, condition.start):
            write_json(folder / START, levels)
        if condition.rate_boost != 1.0:
            trainer.add_callback(FallingRate(trainer, condition.rate_boost))

    return train_policy(
        arm,
        judgments,
        stage.folder / "model",
        stage.cache_folder,
        stage.tokenizer,
        settings,
        run.seed,
        folder,
        Ticker(run.place, progress),
        more_facts=condition_facts(condition),
        prepared=prepared,
    )


def condition_facts(condition: Condition) -> dict[str, Any]:
    """What decides a run of a condition besides its arm, its votes and its settings; nothing where it is as usual.

    Examples
    --------
    >>> condition_facts(Condition("dpo", "dpo")), condition_facts(Condition("a", "pooled", start="swap"))
    ({}, {'start': 'swap'})
    """
    told = {"start": (condition.start, "zero"), "rate_boost": (condition.rate_boost, 1.0)}
    return {name: value for name, (value, usual) in told.items() if value != usual}


def overridden(settings: SuiteSettings, condition: Condition) -> SuiteSettings:
    """The settings of a condition; ``rate_factor`` multiplies the policy's learning rate.

    Examples
    --------
    >>> overridden(SuiteSettings(), Condition("a", "dpo", overrides=(("rate_factor", 2.0),))).learning_rate
    0.00044
    """
    given: dict[str, Any] = dict(condition.overrides)
    factor = given.pop("rate_factor", 1.0)
    return replace(settings, learning_rate=settings.learning_rate * factor, **given)


def adjusted_arm(arm: Arm, stage: Stage, scale: Scale) -> Arm:
    """An arm whose length counts as much, on this scale's shorter answers, as the paper's does on its own.

    A penalty is multiplied, and the unit that a theta is learned in divided.
    """
    if not scale.scales_penalty or not arm.declared.startswith("length"):
        return arm
    if arm.fixed:
        return replace(arm, fixed=arm.fixed * penalty_factor(stage))
    return replace(arm, length_unit=arm.length_unit / penalty_factor(stage))


def penalty_factor(stage: Stage) -> float:
    """Mean tokens of the paper's reference over those of the responses that this reference was trained on."""
    prompts, settings = tuple(map(plain_text, stage.train.comparisons["prompt"])), stage.settings
    responses = tuple(majority_responses(stage.train))
    return _penalty_factor(
        prompts, responses, stage.tokenizer, settings.max_length, settings.max_prompt_length
    )


@cache
def _penalty_factor(
    prompts: tuple[str, ...], responses: tuple[str, ...], tokenizer, max_length: int, max_prompt_length: int
) -> float:
    pairs = encode_responses(prompts, responses, tokenizer, "paper", max_length, max_prompt_length)
    return round(PAPER_TOKENS / float(np.mean([len(response) for _, response in pairs])), 2)


def _train_types(
    name: str,
    stage: Stage,
    scale: Scale,
    settings: SuiteSettings,
    seed: int,
    folder: Path,
    progress: Progress,
) -> None:
    key = types_key(name, stage, settings, seed)
    was_done = is_done(folder, key)
    if was_done and kept_readouts(folder).get("version") == VERSION:
        return

    def measured(of_type: Path, bias: BiasTerm) -> dict:
        return measure_run(of_type, stage, seed, bias, scale.judge, progress)

    if not was_done:
        begin(folder, key)
    # a stage has all that is read of one there
    train_types(name, cast(ReferenceStage, stage), settings, seed, folder, measured, progress)
    if not was_done:
        finish(folder, key, settings)


def types_key(name: str, stage: Stage, settings: SuiteSettings, seed: int) -> RunKey:
    """What decides an arm of several policies."""
    facts = {
        "data": stage.train.fingerprint(),
        "reference": stage.weights,
        "seed": seed,
        "arm": asdict(ARMS[name]),
    }
    return run_key(facts, settings, PREFERENCE_FIELDS)


def _clocks() -> NDArray[np.float64]:
    """The time, and what this process has used of a processor: other work on the machine is not in the second."""
    return np.array([time.perf_counter(), time.process_time()])


def _write_timing(folder: Path, started: NDArray, trained: NDArray, measured: NDArray) -> None:
    write_json(
        folder / TIMING,
        {
            "train_seconds": round(float((trained - started)[0]), 1),
            "measure_seconds": round(float((measured - trained)[0]), 1),
            "processor_seconds": round(float((measured - started)[1]), 1),
            "peak_mib": _peak_mib(),
            "threads": torch.get_num_threads(),
            "processors": os.cpu_count(),
        },
    )


def _peak_mib() -> int | None:
    """The most memory that this process held; None where the system does not say."""
    try:
        import resource
    except ImportError:
        return None
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
