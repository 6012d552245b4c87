"""Plan, train and measure the runs of suites. Several runs can be trained in parallel processes."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from joblib import Parallel, delayed, parallel_config
from joblib.externals.loky.process_executor import TerminatedWorkerError

from badpo.anchoring.editors import SignatureSwap
from badpo.anchoring.source import Prompts, run_source
from badpo.anchoring.targets import Anchor, AnchorFolder, Bench, anchor_key, make_anchor
from badpo.data.files import RUN_SEAL, BusyError, Json, asking_once, holder, locked
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
from badpo_paper.arms import ARMS
from badpo_paper.corpus_stage import (
    CorpusStage,
    adjust_arm,
    collect_method_facts,
    make_run_recipe,
    open_stage,
    prepare_stage,
    prepared,
)
from badpo_paper.datasets import N_EVALUATION, Dataset, describe_statistics
from badpo_paper.em_dpo import train_types
from badpo_paper.run_readouts import measure_run
from badpo_paper.settings import Scale
from badpo_paper.suites import Condition, Corpus, Offset, Suite

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PlannedRun:
    """A run of a suite: a condition at a seed. If the condition is None, the run is the reference."""

    corpus: Corpus
    condition: Condition | None
    seed: int = 0

    @property
    def place(self) -> str:
        """Folder of the run below the suites' folder, for example ``signed/dpo-s42``."""
        name = "reference" if self.condition is None else f"{self.condition.name}-s{self.seed}"
        return f"{self.corpus.folder}/{name}"

    @property
    def phase(self) -> int:
        """Order of training: 0 for a reference, 1 for a run trained from it, 2 for a run anchored from another run."""
        if self.condition is None:
            return 0
        return 1 if self.condition.offset is None else 2


@dataclass(frozen=True, eq=False)
class Reproduction:
    """Suites to run, with their scale, seeds and output folder.

    ``data`` is a local file that replaces a corpus. At the scale ``tiny`` the file has votes on any texts. At the
    scale ``paper`` the file has rows of a public corpus: rows of MultiPref if a suite uses length or Markdown,
    otherwise rows of UltraFeedback.
    """

    suites: Sequence[Suite]
    scale: Scale
    seeds: Sequence[int]
    out: Path
    data: Path | None = None

    @cached_property
    def runs(self) -> list[PlannedRun]:
        """Distinct runs in the order of training: references, trained arms, and anchored runs seed by seed."""
        found: dict[str, PlannedRun] = {}
        for suite in self.suites:
            for run in self._runs_of(suite):
                known = found.setdefault(run.place, run)
                if known.condition != run.condition:
                    raise ConfigError(
                        f"{suite.name}: another suite defines a different run with the folder {run.place}"
                    )
        # consecutive anchored runs of the same source share the source's answers
        return sorted(found.values(), key=lambda run: (run.phase, run.seed if run.phase == 2 else 0))

    def _runs_of(self, suite: Suite) -> Iterator[PlannedRun]:
        for panel in suite.panels:
            if not self.scale.has(panel.corpus):
                continue
            yield PlannedRun(panel.corpus, None)
            for row in panel.rows:
                offset = row.condition.offset
                wanted = [row.condition] if offset is None else [offset.source, row.condition]
                seeds = self.scale.seeds_of(row, self.seeds)
                for condition in wanted:
                    yield from (PlannedRun(panel.corpus, condition, seed) for seed in seeds)

    @property
    def corpora(self) -> list[Corpus]:
        """Distinct corpora of the runs."""
        return list(dict.fromkeys(run.corpus for run in self.runs))

    def find_file(self, corpus: Corpus) -> Path | None:
        """The local file if it has rows of the corpus, otherwise None."""
        asked = (one.kind for suite in self.suites for one in suite.corpora())
        return self.data if corpus.kind == ("style" if "style" in asked else "signed") else None

    def dataset(self, corpus: Corpus) -> Dataset:
        """Votes and prompts of a corpus."""
        return self.scale.dataset(corpus, self.find_file(corpus))

    def unopened(self, corpus: Corpus) -> CorpusStage:
        """Stage of a corpus before its reference is trained."""
        return prepare_stage(corpus, self.scale, self.find_file(corpus), self.out / corpus.folder)


# -- training and measuring -------------------------------------------------------------------------------------------


def execute(asked: Reproduction, progress: Progress, jobs: int = 1) -> None:
    """Train and measure every run that is not complete. If ``jobs`` is 2 or more, each run uses one thread.

    Runs that another process trains come last, and the function waits for that process. A `ConfigError` says that a
    folder contains a run with other data or settings, or that a worker process was killed. A `DataError` says that
    the votes of a corpus cannot be used, or that an evaluation prompt is a training prompt.
    """
    n_done, n = 0, len(asked.runs)

    def told(what: str, share: float) -> None:
        progress(f"{what} (run {n_done + 1} of {n})", share)

    given = [told] if jobs == 1 else []
    try:
        with parallel_config("loky", n_jobs=jobs, inner_max_num_threads=1 if jobs > 1 else None):
            for phase in range(3):
                left = [run for run in asked.runs if run.phase == phase]
                for wait in (False, True):
                    calls = (delayed(run_one)(asked, run, wait, *given) for run in left)
                    finished = zip(left, Parallel(return_as="generator")(calls), strict=True)
                    left = []
                    for run, is_done in finished:
                        if not is_done:
                            left.append(run)
                            continue
                        n_done += 1
                        progress(f"runs: {n_done} of {n} done", n_done / n)
    except TerminatedWorkerError as error:
        raise ConfigError(
            "a training process was killed by another program or by the system; finished runs are complete; run the "
            "command again to continue"
        ) from error


# Caches of the last stage and of the last source of anchors. Consecutive runs share the answers of these models. Each
# cache has one entry, because the models are large.
_STAGES: dict[tuple, CorpusStage] = {}
_BENCHES: dict[tuple, Bench] = {}


def _last(kept: dict[tuple, Any], key: tuple, make: Callable[[], Any]) -> Any:
    """Cached value of a key. A new value replaces all other entries."""
    if key not in kept:
        kept.clear()
        kept[key] = make()
    return kept[key]


def run_one(asked: Reproduction, run: PlannedRun, wait: bool, progress: Progress = silent) -> bool:
    """Train and measure one run that is not complete. False if another process trains the run."""
    folder, scale, data = asked.out / run.corpus.folder, asked.scale, asked.find_file(run.corpus)
    try:
        with locked(folder / "reference", wait=True if run.condition else wait):
            key = (run.corpus, scale.name, folder, data)
            stage = _last(_STAGES, key, lambda: open_stage(run.corpus, scale, data, folder, progress))
            if run.condition is None:
                measure_run(folder / "reference", stage, 0, None, progress)
                return True
        with locked(asked.out / run.place, wait):
            train_and_measure(run.condition, run.seed, stage, asked.out / run.place, progress)
    except BusyError:
        return False
    return True


def train_and_measure(
    condition: Condition, seed: int, stage: CorpusStage, folder: Path, progress: Progress
) -> None:
    """Train and measure a condition at a seed, if ``folder`` does not contain the result."""
    arm = adjust_arm(ARMS[condition.arm], stage)
    recipe = make_run_recipe(condition, arm, seed, stage)
    if arm.objective == "types":
        train_types(arm, collect_method_facts(arm), recipe, stage, folder, progress)
        return
    if condition.offset is not None:
        source = anchor_run(condition.offset, seed, stage, folder, progress)
        bias = BiasTerm.load(source)
    else:
        given = prepared(condition, arm, recipe, stage)
        bias = keep_run(recipe, folder, given, stage.scale.command, progress)
    measure_run(folder, stage, seed, bias, progress)


def anchor_run(offset: Offset, seed: int, stage: CorpusStage, folder: Path, progress: Progress) -> Path:
    """Anchor a run if ``folder`` does not contain the result, and return the folder of the source run."""
    of = folder.parent / f"{offset.source.name}-s{seed}"
    if not (of / RUN_SEAL).exists():
        raise ConfigError(
            f"{of} holds no finished run, but {folder.name} is anchored from this run; train {of.name} first"
        )
    require_undamaged(of)
    source = run_source(of, stage, _prompts(stage))
    targets = dict.fromkeys(stage.held_out.attribute_names, offset.target)
    anchor = Anchor(SignatureSwap(), targets, rounds=offset.rounds, seed=seed)
    place = AnchorFolder(folder, anchor_key(source, anchor, "train"))
    if place.read_result() is None:
        if (folder / RUN_SEAL).exists():
            raise ConfigError(
                f"{folder} holds an anchored run with other settings, or a damaged one; remove the folder to anchor "
                "again, or give another --out"
            )
        key = (source.stage, source.policy_key, source.reference_key, seed)
        bench = _last(_BENCHES, key, lambda: Bench(source, anchor, progress))
        bench.anchor = anchor
        make_anchor(bench, "train", place)
    return of


def _prompts(stage: CorpusStage) -> Prompts:
    """Prompts for training an anchor, for estimating the tilt, and for the reported rates."""
    assert stage.scale.fresh_prompts is not None, "the scales of the suite offset have fresh prompts"
    fresh = stage.scale.fresh_prompts(stage.data)
    n = min(N_EVALUATION, len(fresh) // 5)
    return Prompts(list(fresh[n:]), list(fresh[:n]), list(stage.prompts), "the suite's corpus")


# -- states of the runs ----------------------------------------------------------------------------------------------


def plan(asked: Reproduction) -> Json:
    """State of each run (``states``), and lines about the votes (``about``). The function loads no model.

    If a corpus cannot be read, a line says so.
    """
    datasets, unread = [], {}
    for corpus in asked.corpora:
        # after a failed attempt, corpora of the same kind are not read from the Hub again
        if corpus.kind in unread:
            continue
        try:
            datasets.append(asked.dataset(corpus))
        except ConfigError as error:
            unread[corpus.kind] = f"the votes of {corpus.folder} are not read: {error}"
    states = {run.place: read_state(asked.out / run.place) for run in asked.runs}
    return {"states": states, "about": [*unread.values(), *describe_statistics(datasets)]}


def read_state(folder: Path) -> str:
    """State of a run: ``running``, ``done``, ``trained`` (without readouts), ``begun`` or ``to do``."""
    if holder(folder) is not None:
        return "running"
    if (folder / RUN_SEAL).exists():
        return "done" if (folder / "readouts.json").exists() else "trained"
    return "begun" if (folder / BEGUN).exists() else "to do"


# -- requirements -----------------------------------------------------------------------------------------------------


def require_needs(asked: Reproduction) -> None:
    """Check every model, judge and corpus of the runs before training, and raise `ConfigError` with all problems.

    The function trains nothing and reads no weights. It logs the comparison of a public corpus's statistics with the
    published statistics.
    """
    named = (asked.scale.keys[corpus.model].get("model_name_or_path") for corpus in asked.corpora)
    kinds = dict.fromkeys(filter(None, named), "a causal language model")
    if asked.scale.judge is not None:
        kinds[asked.scale.judge] = "a reward model"
    if complaints := [told for name, kind in kinds.items() if (told := _complaint(name, kind))]:
        raise ConfigError("\n".join([*complaints, "nothing was trained"]))
    stages = [asked.unopened(corpus) for corpus in asked.corpora]
    for stage in stages:
        stage.kept_reference()
    for line in describe_statistics(stage.dataset for stage in stages):
        logger.info("%s", line)


def _complaint(name: str, kind: str) -> str:
    """Problem of a model's tokenizer or configuration; an empty text if there is no problem."""
    try:
        with asking_once(name):
            load_tokenizer(name)
            load_configuration(name)
    except ConfigError as error:
        return str(error)
    except UNREADABLE as error:
        return describe_unreadable(name, error, kind)
    return ""
