"""Plan, train and measure the runs of suites; several processes can train runs in parallel."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from joblib import Parallel, delayed, parallel_config
from joblib.externals.loky.process_executor import TerminatedWorkerError

from badpo.anchoring.editors import SignatureSwap
from badpo.anchoring.source import Prompts, run_source
from badpo.anchoring.targets import Anchor, AnchorFolder, Bench, anchor_key, make_anchor
from badpo.data.files import RUN_SEAL, BusyError, asking_once, holder, locked
from badpo.data.problems import ConfigError
from badpo.objective.bias import BiasTerm
from badpo.runs.run import BEGUN, Progress, keep_run, silent
from badpo.runs.start import require_undamaged
from badpo.training.model_files import (
    UNREADABLE,
    describe_unreadable,
    load_configuration,
    load_tokenizer,
)
from badpo_paper.corpora.public import N_EVALUATION
from badpo_paper.corpus_stage import (
    CorpusStage,
    adjust_arm,
    make_run_recipe,
    open_stage,
    prepare_run,
    prepare_stage,
)
from badpo_paper.datasets import Dataset, describe_statistics
from badpo_paper.em_dpo import train_types
from badpo_paper.run_readouts import measure_run
from badpo_paper.settings import Scale
from badpo_paper.suites import ARMS, Condition, Corpus, Offset, Suite

logger = logging.getLogger(__name__)

Cached = TypeVar("Cached")


@dataclass(frozen=True)
class PlannedRun:
    """A run of a suite: a condition at a seed, or the reference if the condition is None."""

    corpus: Corpus
    condition: Condition | None
    seed: int = 0

    @property
    def path(self) -> str:
        """Path of the run's folder inside the output folder, for example ``signed/dpo-s42``."""
        name = "reference" if self.condition is None else f"{self.condition.name}-s{self.seed}"
        return f"{self.corpus.folder}/{name}"

    @property
    def phase(self) -> int:
        """Training order: 0 for a reference, 1 for a run trained from a reference, 2 for an anchored run."""
        if self.condition is None:
            return 0
        return 1 if self.condition.offset is None else 2


@dataclass(frozen=True, eq=False)
class Reproduction:
    """A reproduction: the suites to run, with their scale, seeds and output folder.

    ``data`` is a local file to use instead of a corpus. At the scale ``tiny``, the file may be any table of votes. At
    the scale ``paper``, suites about length or Markdown require a file with rows of MultiPref, and all other suites a
    file with rows of UltraFeedback.
    """

    suites: Sequence[Suite]
    scale: Scale
    seeds: Sequence[int]
    out: Path
    data: Path | None = None

    @cached_property
    def runs(self) -> list[PlannedRun]:
        """All distinct runs in training order: references, trained arms, and anchored runs (seed by seed)."""
        runs: dict[str, PlannedRun] = {}
        for suite in self.suites:
            for run in self._list_runs(suite):
                if runs.setdefault(run.path, run).condition != run.condition:
                    raise ConfigError(
                        f"{suite.name}: another suite defines a different run with the folder {run.path}"
                    )
        # anchored runs with the same source follow each other, because they share the source's answers
        return sorted(runs.values(), key=lambda run: (run.phase, run.seed if run.phase == 2 else 0))

    def _list_runs(self, suite: Suite) -> Iterator[PlannedRun]:
        for panel in suite.panels:
            if not self.scale.has_corpus(panel.corpus):
                continue
            yield PlannedRun(panel.corpus, None)
            for row in panel.rows:
                offset = row.condition.offset
                conditions = [row.condition] if offset is None else [offset.source, row.condition]
                seeds = self.scale.select_seeds(row, self.seeds)
                for condition in conditions:
                    yield from (PlannedRun(panel.corpus, condition, seed) for seed in seeds)

    @property
    def corpora(self) -> list[Corpus]:
        """Distinct corpora of the runs."""
        return list(dict.fromkeys(run.corpus for run in self.runs))

    def find_file(self, corpus: Corpus) -> Path | None:
        """Return the local file, or None if the file does not replace the given corpus."""
        kinds = {corpus.kind for suite in self.suites for corpus in suite.corpora()}
        return self.data if corpus.kind == ("style" if "style" in kinds else "signed") else None

    def make_dataset(self, corpus: Corpus) -> Dataset:
        """Make or read the votes and prompts of a corpus."""
        return self.scale.dataset(corpus, self.find_file(corpus))

    def prepare_stage(self, corpus: Corpus) -> CorpusStage:
        """Prepare the inputs that all runs on a corpus share, but do not train the reference yet."""
        return prepare_stage(corpus, self.scale, self.find_file(corpus), self.out / corpus.folder)


# -- training and measuring -------------------------------------------------------------------------------------------


def execute(reproduction: Reproduction, progress: Progress, jobs: int = 1) -> None:
    """Train and measure all runs that are not complete. If ``jobs`` is 2 or more, each run uses one thread.

    If another process is training a run, the function leaves this run to the end and waits for the other process. The
    function raises a `ConfigError` if a folder contains a run with other data or settings, or if a worker process was
    killed. The function raises a `DataError` if the votes of a corpus cannot be used, or if an evaluation prompt is
    also a training prompt.
    """
    n_done, n = 0, len(reproduction.runs)

    def report_run(stage: str, share: float) -> None:
        progress(f"{stage} (run {n_done + 1} of {n})", share)

    reporters = [report_run] if jobs == 1 else []
    try:
        with parallel_config("loky", n_jobs=jobs, inner_max_num_threads=1 if jobs > 1 else None):
            for phase in range(3):
                pending = [run for run in reproduction.runs if run.phase == phase]
                for wait in (False, True):
                    calls = (delayed(run_one)(reproduction, run, wait, *reporters) for run in pending)
                    results = zip(pending, Parallel(return_as="generator")(calls), strict=True)
                    pending = []
                    for run, is_done in results:
                        if not is_done:
                            pending.append(run)
                            continue
                        n_done += 1
                        progress(f"runs: {n_done} of {n} done", n_done / n)
    except TerminatedWorkerError as error:
        raise ConfigError(
            "another program or the system killed a training process; finished runs are kept, so run the command "
            "again to continue"
        ) from error


# Caches of the latest corpus stage, and of the latest policy to anchor with its answers; consecutive runs share both.
# Each cache has only one entry, because the models are large.
_STAGES: dict[tuple[object, ...], CorpusStage] = {}
_BENCHES: dict[tuple[object, ...], Bench] = {}


def _cache_last(
    cache: dict[tuple[object, ...], Cached], key: tuple[object, ...], make: Callable[[], Cached]
) -> Cached:
    """Return the cached value of a key; a new key replaces the cached entry."""
    if key not in cache:
        cache.clear()
        cache[key] = make()
    return cache[key]


def run_one(
    reproduction: Reproduction, run: PlannedRun, wait: bool, progress: Progress = silent
) -> bool:
    """Train and measure a run unless it is complete; return False if another process is training the run."""
    scale, data = reproduction.scale, reproduction.find_file(run.corpus)
    folder = reproduction.out / run.corpus.folder
    try:
        with locked(folder / "reference", wait=True if run.condition else wait):
            key = (run.corpus, scale.name, folder, data)
            stage = _cache_last(
                _STAGES, key, lambda: open_stage(run.corpus, scale, data, folder, progress)
            )
            if run.condition is None:
                measure_run(folder / "reference", stage, 0, None, progress)
                return True
        run_folder = reproduction.out / run.path
        with locked(run_folder, wait):
            train_and_measure(run.condition, run.seed, stage, run_folder, progress)
    except BusyError:
        return False
    return True


def train_and_measure(
    condition: Condition, seed: int, stage: CorpusStage, folder: Path, progress: Progress
) -> None:
    """Train and measure a condition at a seed, unless ``folder`` already contains the result."""
    arm = adjust_arm(ARMS[condition.arm], stage)
    recipe = make_run_recipe(condition, arm, seed, stage)
    if arm.objective == "types":
        train_types(arm, recipe, stage, folder, progress)
        return
    if condition.offset is not None:
        source = anchor_run(condition.offset, seed, stage, folder, progress)
        bias = BiasTerm.load(source)
    else:
        prepared = prepare_run(condition, arm, recipe, stage)
        bias = keep_run(recipe, folder, prepared, stage.scale.command, progress)
    measure_run(folder, stage, seed, bias, progress)


def anchor_run(offset: Offset, seed: int, stage: CorpusStage, folder: Path, progress: Progress) -> Path:
    """Anchor a run unless ``folder`` already contains the result; return the folder of the run that is anchored."""
    source_folder = folder.parent / f"{offset.source.name}-s{seed}"
    if not (source_folder / RUN_SEAL).exists():
        raise ConfigError(
            f"{folder.name} is anchored from {source_folder}, which contains no finished run; train "
            f"{source_folder.name} first"
        )
    require_undamaged(source_folder)
    source = run_source(source_folder, stage, _select_prompts(stage))
    targets = dict.fromkeys(stage.held_out.attribute_names, offset.target)
    anchor = Anchor(SignatureSwap(), targets, rounds=offset.rounds, seed=seed)
    anchor_folder = AnchorFolder(folder, anchor_key(source, anchor, "train"))
    if anchor_folder.read_result() is None:
        if (folder / RUN_SEAL).exists():
            raise ConfigError(
                f"{folder} contains an anchored run that is damaged or has other settings; remove the folder to "
                "anchor again, or choose another --out"
            )
        key = (source.stage, source.policy_key, source.reference_key, seed)
        bench = _cache_last(_BENCHES, key, lambda: Bench(source, anchor, progress))
        bench.anchor = anchor
        make_anchor(bench, "train", anchor_folder)
    return source_folder


def _select_prompts(stage: CorpusStage) -> Prompts:
    """Select three sets of prompts: to train an anchor, to estimate the tilt, and to report the rates."""
    assert stage.scale.fresh_prompts is not None, "the suite offset requires a scale with fresh prompts"
    fresh = stage.scale.fresh_prompts(stage.data)
    n = min(N_EVALUATION, len(fresh) // 5)
    return Prompts(list(fresh[n:]), list(fresh[:n]), list(stage.dataset.prompts), "the suite's corpus")


# -- states of the runs ----------------------------------------------------------------------------------------------


def read_states(reproduction: Reproduction) -> dict[str, str]:
    """Return the state of each run by its path; the function loads no model and reads no corpus."""
    return {run.path: read_state(reproduction.out / run.path) for run in reproduction.runs}


def read_state(folder: Path) -> str:
    """Return the state of a run: ``running``, ``done``, ``trained`` (without readouts), ``begun`` or ``to do``."""
    if holder(folder) is not None:
        return "running"
    if (folder / RUN_SEAL).exists():
        return "done" if (folder / "readouts.json").exists() else "trained"
    return "begun" if (folder / BEGUN).exists() else "to do"


# -- requirements -----------------------------------------------------------------------------------------------------


def require_inputs(reproduction: Reproduction) -> None:
    """Check all models, judges and corpora of the runs before training, and raise `ConfigError` with all problems.

    The function trains nothing and reads no weights. For a public corpus, the function logs a comparison of the
    statistics with the published statistics.
    """
    scale, corpora = reproduction.scale, reproduction.corpora
    names = (scale.keys[corpus.model].get("model_name_or_path") for corpus in corpora)
    kinds = dict.fromkeys(filter(None, names), "a causal language model")
    if scale.judge is not None:
        kinds[scale.judge] = "a reward model"
    if problems := [text for name, kind in kinds.items() if (text := _find_problem(name, kind))]:
        raise ConfigError("\n".join([*problems, "nothing was trained"]))
    stages = [reproduction.prepare_stage(corpus) for corpus in corpora]
    for stage in stages:
        stage.find_reference()
    for line in describe_statistics(stage.dataset for stage in stages):
        logger.info("%s", line)


def _find_problem(name: str, kind: str) -> str:
    """Describe the problem with a model's tokenizer or configuration; return an empty string if there is none."""
    try:
        with asking_once(name):
            load_tokenizer(name)
            load_configuration(name)
    except ConfigError as error:
        return str(error)
    except UNREADABLE as error:
        return describe_unreadable(name, error, kind)
    return ""
