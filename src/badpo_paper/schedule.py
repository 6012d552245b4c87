"""The runs of suites: which they are, what they need, and each trained and measured once, side by side when told to."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from joblib import Parallel, delayed, parallel_config
from joblib.externals.loky.process_executor import TerminatedWorkerError

from badpo.anchoring.anchor import Anchor, AnchorFolder, Bench, anchor_key, make_anchor
from badpo.anchoring.editors import SignatureSwap
from badpo.anchoring.source import Prompts, run_source
from badpo.data.files import RUN_SEAL, BusyError, Json, asking_once, holder, locked
from badpo.data.problems import ConfigError
from badpo.objective.bias import BiasTerm
from badpo.runs.run import BEGUN, Progress, keep_run, silent
from badpo.runs.start import require_undamaged
from badpo.training.model_files import UNREADABLE, load_configuration, load_tokenizer, unreadable
from badpo_paper.arm_setup import adjusted_arm, method_facts, prepared, run_recipe
from badpo_paper.arms import ARMS
from badpo_paper.datasets import N_EVALUATION, Dataset, gate_lines
from badpo_paper.em_dpo import train_types
from badpo_paper.reference import CorpusStage, open_stage, unopened_stage
from badpo_paper.run_readouts import measure_run
from badpo_paper.settings import Scale
from badpo_paper.suites import Condition, Corpus, Offset, Suite

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PlannedRun:
    """A run that suites ask for: a condition at a seed, or the reference (no condition)."""

    corpus: Corpus
    condition: Condition | None
    seed: int = 0

    @property
    def place(self) -> str:
        """Its folder below the suites' folder, such as ``signed/dpo-s42``."""
        name = "reference" if self.condition is None else f"{self.condition.name}-s{self.seed}"
        return f"{self.corpus.folder}/{name}"

    @property
    def phase(self) -> int:
        """0 for a reference, 1 for what is trained from it, 2 for what is anchored from that."""
        if self.condition is None:
            return 0
        return 1 if self.condition.offset is None else 2


@dataclass(frozen=True, eq=False)
class Reproduction:
    """Suites at a scale: whose runs, of which seeds, in which folder.

    ``data`` is a local file. At a laptop's scale it has votes on any texts. At the paper's it has rows of a public
    corpus: of MultiPref if one of the suites is on length or Markdown, of UltraFeedback if all of them are on names.
    """

    suites: Sequence[Suite]
    scale: Scale
    seeds: Sequence[int]
    out: Path
    data: Path | None = None

    @cached_property
    def runs(self) -> list[PlannedRun]:
        """The runs, each once: references, then arms, then what is anchored from these, seed by seed."""
        found: dict[str, PlannedRun] = {}
        for suite in self.suites:
            for run in self._runs_of(suite):
                known = found.setdefault(run.place, run)
                if known.condition != run.condition:
                    raise ConfigError(
                        f"{suite.name}: another suite means a different run by {run.place}"
                    )
        # anchors of one source share its answers where they follow each other
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
        """The corpora of the runs, each once."""
        return list(dict.fromkeys(run.corpus for run in self.runs))

    def file_of(self, corpus: Corpus) -> Path | None:
        """The local file where it holds the rows of a corpus, else None."""
        asked = (one.kind for suite in self.suites for one in suite.corpora())
        return self.data if corpus.kind == ("style" if "style" in asked else "signed") else None

    def dataset(self, corpus: Corpus) -> Dataset:
        """Votes and prompts of a corpus."""
        return self.scale.dataset(corpus, self.file_of(corpus))

    def unopened(self, corpus: Corpus) -> CorpusStage:
        """The stage of a corpus, as it is before anything is trained."""
        return unopened_stage(corpus, self.scale, self.file_of(corpus), self.out / corpus.folder)


# -- training and measuring -------------------------------------------------------------------------------------------


def execute(asked: Reproduction, progress: Progress, jobs: int = 1) -> None:
    """Train and measure every run that is not there yet, some side by side, each on one thread then.

    Runs that another process works on are left for last and waited for. A `ConfigError` says that a folder holds a run
    with other data or settings, or that a worker was killed; a `DataError` that the votes of a corpus cannot be used,
    or that one of its evaluation prompts is a training prompt.
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
            "a process that trained a run was ended from outside; finished runs are whole, start the command again to "
            "go on"
        ) from error


# The last stage and the last source of anchors alone: their models are large, and other runs share what they drew.
_STAGES: dict[tuple, CorpusStage] = {}
_BENCHES: dict[tuple, Bench] = {}


def _last(kept: dict[tuple, Any], key: tuple, make: Callable[[], Any]) -> Any:
    """What is kept under a key, in place of everything else."""
    if key not in kept:
        kept.clear()
        kept[key] = make()
    return kept[key]


def run_one(asked: Reproduction, run: PlannedRun, wait: bool, progress: Progress = silent) -> bool:
    """Train and measure one run, unless it is there; False when another process works on it."""
    folder, scale, data = asked.out / run.corpus.folder, asked.scale, asked.file_of(run.corpus)
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
    """Train and measure a condition at a seed, unless ``folder`` holds it."""
    arm = adjusted_arm(ARMS[condition.arm], stage)
    recipe = run_recipe(condition, arm, seed, stage)
    if arm.objective == "types":
        train_types(arm, method_facts(arm), recipe, stage, folder, progress)
        return
    if condition.offset is not None:
        source = anchored_run(condition.offset, seed, stage, folder, progress)
        bias = BiasTerm.load(source)
    else:
        given = prepared(condition, arm, recipe, stage)
        bias = keep_run(recipe, folder, given, stage.scale.command, progress)
    measure_run(folder, stage, seed, bias, progress)


def anchored_run(
    offset: Offset, seed: int, stage: CorpusStage, folder: Path, progress: Progress
) -> Path:
    """Anchor a run unless ``folder`` holds that result; the folder of its source."""
    of = folder.parent / f"{offset.source.name}-s{seed}"
    if not (of / RUN_SEAL).exists():
        raise ConfigError(
            f"{of} holds no finished run, from which {folder.name} is anchored; train it first"
        )
    require_undamaged(of)
    source = run_source(of, stage, _prompts(stage))
    targets = dict.fromkeys(stage.held_out.attribute_names, offset.target)
    anchor = Anchor(SignatureSwap(), targets, rounds=offset.rounds, seed=seed)
    place = AnchorFolder(folder, anchor_key(source, anchor, "train"))
    if place.finished() is None:
        if (folder / RUN_SEAL).exists():
            raise ConfigError(
                f"{folder} holds another anchor than the one that is asked for, or a damaged one; remove it to have it "
                "made again, or give another --out"
            )
        key = (source.given, source.policy_key, source.reference_key, seed)
        bench = _last(_BENCHES, key, lambda: Bench(source, anchor, progress))
        bench.anchor = anchor
        make_anchor(bench, "train", place)
    return of


def _prompts(stage: CorpusStage) -> Prompts:
    """What an anchor is trained on, found on and reported on."""
    fresh_prompts = stage.scale.fresh_prompts
    if fresh_prompts is None or stage.corpus.kind != "signed":
        raise ConfigError(
            f"the scale {stage.scale.name} has no fresh prompts for {stage.corpus.folder} to anchor with"
        )
    fresh = fresh_prompts(stage.data)
    n = min(N_EVALUATION, len(fresh) // 5)
    return Prompts(list(fresh[n:]), list(fresh[:n]), list(stage.prompts), "the suite's corpus")


# -- what there is already --------------------------------------------------------------------------------------------


def plan(asked: Reproduction) -> Json:
    """What there is of each run (``states``), and what is to be said of the votes (``about``); loads no model.

    A corpus that is out of reach is named.
    """
    datasets, unread = [], {}
    for corpus in asked.corpora:
        # the Hub is asked once for each kind
        if corpus.kind in unread:
            continue
        try:
            datasets.append(asked.dataset(corpus))
        except ConfigError as error:
            unread[corpus.kind] = f"the votes of {corpus.folder} are not read: {error}"
    states = {run.place: state_of(asked.out / run.place) for run in asked.runs}
    return {"states": states, "about": [*unread.values(), *gate_lines(datasets)]}


def state_of(folder: Path) -> str:
    """What there is of a run: ``running``, ``done``, ``trained`` (without readouts), ``begun`` or ``to do``."""
    if holder(folder) is not None:
        return "running"
    if (folder / RUN_SEAL).exists():
        return "done" if (folder / "readouts.json").exists() else "trained"
    return "begun" if (folder / BEGUN).exists() else "to do"


# -- what is needed ---------------------------------------------------------------------------------------------------


def require_needs(asked: Reproduction) -> None:
    """Look at every model, judge and corpus that the runs of some suites need, and say what is wrong with each model.

    Nothing is trained, and no weights are read. The statistics of a public corpus are logged beside the published ones.
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
    for line in gate_lines(stage.dataset for stage in stages):
        logger.info("%s", line)


def _complaint(name: str, kind: str) -> str:
    """What is wrong with a model's tokenizer or configuration; empty where nothing is."""
    try:
        with asking_once(name):
            tokenizer = load_tokenizer(name)
            load_configuration(name)
    except UNREADABLE as error:
        return unreadable(name, error, kind)
    tokens = {
        "chat template": tokenizer.chat_template,
        "end-of-text token": tokenizer.eos_token_id,
    }
    lacking = [what for what, value in tokens.items() if value is None]
    if not lacking:
        return ""
    return (
        f'the tokenizer of "{name}" has no {" and no ".join(lacking)}, so it is not known how the model reads a prompt '
        "and ends an answer; use an instruct model, or save the tokenizer with them"
    )
