"""The runs of suites: which they are, what they need, and each trained and measured once, side by side when told to."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from joblib import Parallel, delayed, parallel_config
from joblib.externals.loky.process_executor import TerminatedWorkerError
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils.hub import has_file

from badpo.anchoring.anchor import Anchor, AnchorFolder, Bench, anchor_key, make_anchor
from badpo.anchoring.editors import SignatureSwap
from badpo.anchoring.source import AnchorSource, Prompts, run_source
from badpo.data.checks import check
from badpo.data.files import RUN_SEAL, BusyError, holder, locked
from badpo.data.problems import ConfigError, DataError
from badpo.objective.bias import BiasTerm
from badpo.readouts.judge import checked_judge
from badpo.runs.evaluate import VERSION, load_bias, require_undamaged
from badpo.runs.run import BEGUN, Progress, keep_run, kept_facts, kept_json, settings_facts
from badpo.runs.start import UNREADABLE, kept_reference, unreadable
from badpo.training.checkpoints import changed_facts
from badpo.training.model_files import WEIGHTS
from badpo.training.recipe import ModelChoice
from badpo_paper.arms import ARMS
from badpo_paper.em_dpo import train_types
from badpo_paper.materials import N_EVALUATION, gate_lines, own_file
from badpo_paper.measure import measure_run
from badpo_paper.methods import adjusted_arm, method_facts, prepared, run_recipe
from badpo_paper.settings import Scale
from badpo_paper.stages import (
    CorpusStage,
    declared,
    open_stage,
    reference_recipe,
    supervised_responses,
    unopened_stage,
)
from badpo_paper.suites import Condition, Corpus, Offset, Suite


def anchored_run(
    offset: Offset,
    seed: int,
    stage: CorpusStage,
    scale: Scale,
    data: Path | None,
    folder: Path,
    progress: Progress,
) -> BiasTerm:
    """Anchor a run unless ``folder`` holds that result; the bias term is that of the source.

    No calibration lines are kept: what a run comes out as would depend on those that were there before it.
    """
    of = folder.parent / f"{offset.source.name}-s{seed}"
    if not (of / RUN_SEAL).exists():
        raise ConfigError(f"{of} holds no finished run, from which {folder.name} is anchored; train it first")
    require_undamaged(of)
    source = _source(of, stage, scale, data)
    names = stage.held_out.attribute_names
    anchor = Anchor(SignatureSwap(), dict.fromkeys(names, offset.target), rounds=offset.rounds, seed=seed)
    place = AnchorFolder(folder, anchor_key(source, anchor, "train"))
    if place.finished() is None:
        if (folder / RUN_SEAL).exists():
            raise ConfigError(
                f"{folder} holds another anchor than the one that is asked for, or a damaged one; remove it to have it "
                "made again, or give another --out"
            )
        bench = _bench(source, anchor, progress)
        make_anchor(bench.at(anchor), "train", place)
    return load_bias(of)


def _source(folder: Path, stage: CorpusStage, scale: Scale, data: Path | None) -> AnchorSource:
    if scale.fresh_prompts is None or stage.corpus.kind != "signed":
        raise ConfigError(
            f"the scale {scale.name} has no fresh prompts for {stage.corpus.folder} to anchor with"
        )
    fresh = scale.fresh_prompts(stage.corpus, data)
    n = min(N_EVALUATION, len(fresh) // 5)
    prompts = Prompts(list(fresh[n:]), list(fresh[:n]), list(stage.prompts), "the suite's corpus")
    return run_source(folder, stage, prompts)


# The last source alone: its answers are shared by all of its targets, and its model is large.
_BENCHES: dict[tuple, Bench] = {}


def _bench(source: AnchorSource, anchor: Anchor, progress: Progress) -> Bench:
    place = (source.given, source.policy_key, source.reference_key, anchor.seed)
    if place not in _BENCHES:
        _BENCHES.clear()
        bench = Bench(source, anchor, progress)
        # sampled before the targets share it
        progress(f"{bench.pairs.n_edited} of {bench.pairs.n_answers} answers to train on", 0.0)
        _BENCHES[place] = bench
    return _BENCHES[place]


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
    """The runs of some suites, each once: references, then arms, then what is anchored from these, seed by seed."""
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
    run: PlannedRun, scale: Scale, out: Path, data: Path | None, wait: bool, progress: Progress = silent
) -> bool:
    """Train and measure one run, unless it is there; False when another process works on it."""
    corpus_folder, folder = out / run.corpus.folder, out / run.place
    reference = corpus_folder / "reference"
    try:
        with locked(reference, wait=True if run.condition else wait):
            stage = _stage(run.corpus, scale, corpus_folder, data, progress)
            if run.condition is None:
                measure_run(reference, stage, 0, None, scale, progress)
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
    """Train and measure a condition at a seed, unless ``folder`` holds it."""
    arm = adjusted_arm(ARMS[condition.arm], stage, scale)
    recipe = run_recipe(condition, arm, seed, stage, scale)
    if arm.objective == "types":
        train_types(arm, method_facts(condition, arm), recipe, stage, scale, folder, progress)
        return
    if condition.offset is not None:
        bias = anchored_run(condition.offset, seed, stage, scale, data, folder, progress)
    else:
        asked = prepared(condition, arm, recipe, stage)
        bias = keep_run(recipe, folder, asked, scale.command, progress)
    measure_run(folder, stage, seed, bias, scale, progress)


# -- what there is already -----------------------------------------------------------------------------------------


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
            found[run.place] = "; ".join(changes.values())
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


logger = logging.getLogger(__name__)


def require_needs(
    suites: Sequence[Suite], scale: Scale, seeds: Sequence[int], out: Path, data: Path | None
) -> None:
    """Look at every model, judge and corpus that the runs of some suites need, and say what is wrong with each model.

    Nothing is trained, and no weights are read. The statistics of a public corpus are logged beside the published ones.
    """
    runs = {suite.name: planned_runs([suite], scale, seeds) for suite in suites}
    complaints = [*_of_models(runs, scale), *_of_judge(runs, scale, out)]
    if complaints:
        raise ConfigError("\n".join([*complaints, "nothing was trained"]))
    every = planned_runs(suites, scale, seeds)
    corpora = list(dict.fromkeys(run.corpus for run in every))
    own = {corpus: own_file(corpus, corpora, data) for corpus in corpora}
    stages = {corpus: unopened_stage(corpus, scale, own[corpus], out / corpus.folder) for corpus in corpora}
    for corpus, stage in stages.items():
        if own[corpus] is not None:
            require_differences(stage, own[corpus], [run for run in every if run.corpus == corpus])
        recipe = reference_recipe(stage, scale, own[corpus])
        kept_reference(recipe, stage.train, recipe.arguments(), supervised_responses(stage))
    if refused := refused_runs(every, stages, scale, out):
        raise ConfigError("\n".join(refusals(refused)))
    for line in gate_lines(scale.material(corpus, own[corpus]) for corpus in corpora):
        logger.info("%s", line)


def require_differences(stage: CorpusStage, data: Path | None, runs: Sequence[PlannedRun]) -> None:
    """Stop at votes that say nothing of an attribute that a run declares by name."""
    wanted = {name for run in runs if run.condition is not None for name in run.condition.declared}
    attributes = [name for name in stage.train.attribute_names if name in wanted]
    if not attributes:
        return
    found = check(declared(stage.train, tuple(attributes)))
    silent = [problem for problem in found if problem.code in ("E120", "E121")]
    if silent:
        raise DataError([replace(problem, where=f"{data}, {problem.where}") for problem in silent])


def read_stages(
    corpora: Sequence[Corpus], scale: Scale, out: Path, data: Path | None
) -> tuple[dict[Corpus, CorpusStage], list[str]]:
    """The corpora that are within reach, as stages without a model, and what is to be said of the others."""
    stages: dict[Corpus, CorpusStage] = {}
    unread: dict[str, str] = {}
    for corpus in corpora:
        # the Hub is asked once for each kind
        if corpus.kind in unread:
            continue
        try:
            own = own_file(corpus, corpora, data)
            stages[corpus] = unopened_stage(corpus, scale, own, out / corpus.folder)
        except ConfigError as error:
            unread[corpus.kind] = f"the votes of {corpus.folder} are not read: {error}"
    return stages, list(unread.values())


def require_model(choice: ModelChoice) -> None:
    """Look at a start model without its weights: its tokenizer, its configuration, and whether there are weights."""
    name = choice.model_name_or_path
    kind = "a causal language model"
    _, tokenizer = _looked_at(
        name, AutoModelForCausalLM, kind, choice.model_revision, choice.trust_remote_code
    )
    tokens = {"chat template": tokenizer.chat_template, "end-of-text token": tokenizer.eos_token_id}
    lacking = [what for what, value in tokens.items() if value is None]
    if lacking:
        raise ConfigError(
            f'the tokenizer of "{name}" has no {" and no ".join(lacking)}, so it is not known how the model reads a '
            "prompt and ends an answer; use an instruct model, or save the tokenizer with them"
        )


def require_judge(name: str) -> None:
    """Look at a reward model without its weights."""
    checked_judge(*_looked_at(name, AutoModelForSequenceClassification, "a reward model"), name)


def _looked_at(
    name: str, auto_class: Any, kind: str, revision: str = "main", trust_remote_code: bool = False
) -> tuple[Any, Any]:
    """A model without its weights, and its tokenizer; `ConfigError` where they cannot be read."""
    shared = {"revision": revision, "trust_remote_code": trust_remote_code}
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, **shared)
        config = AutoConfig.from_pretrained(name, **shared)
        with torch.device("meta"):
            model = auto_class.from_config(config, trust_remote_code=trust_remote_code)
        if not any(has_file(name, file, revision=revision) for file in WEIGHTS):
            raise OSError(f"none of {', '.join(WEIGHTS)} is there")
    except UNREADABLE as error:
        raise ConfigError(unreadable(name, error, kind)) from error
    return model, tokenizer


def _of_models(runs: Mapping[str, Sequence[PlannedRun]], scale: Scale) -> list[str]:
    """What is wrong with the start models that are named, each with the suites that need it."""
    if scale.preset_of is None:
        return []
    needed: dict[str, list[str]] = {}
    for suite, asked in runs.items():
        for name in dict.fromkeys(scale.preset_of[run.corpus.model] for run in asked):
            needed.setdefault(name, []).append(suite)
    found = [
        _complaint(require_model, ModelChoice(model_name_or_path=name), suites)
        for name, suites in needed.items()
    ]
    return list(filter(None, found))


def _of_judge(runs: Mapping[str, Sequence[PlannedRun]], scale: Scale, out: Path) -> list[str]:
    """What is wrong with the judge, with the suites that have runs to measure."""
    suites = [
        suite
        for suite, asked in runs.items()
        if any(kept_json(out / run.place / "readouts.json").get("version") != VERSION for run in asked)
    ]
    if scale.judge is None or not suites:
        return []
    return list(filter(None, [_complaint(require_judge, scale.judge, suites)]))


def _complaint(require: Callable[[Any], None], needed: Any, suites: Sequence[str]) -> str:
    """What a look at something says of it, and which suites need it; empty where nothing is wrong."""
    try:
        require(needed)
    except ConfigError as error:
        return f"{error} (needed by {', '.join(suites)})"
    return ""
