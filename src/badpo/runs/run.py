"""Train a recipe and write its run folder. Every training run of badpo uses `_train_into`."""

# mypy does not analyze transformers, so its classes have the type Any
# mypy: disallow-subclassing-any=False

import contextlib
import json
import logging
import math
import shlex
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import yaml
from accelerate.utils import release_memory
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from badpo.data.attributes import attribute_from_config
from badpo.data.checks import check
from badpo.data.files import (
    LOG_FILE,
    MARKER,
    RUN_ENVIRONMENT,
    RUN_RECIPE,
    RUN_SEAL,
    file_checksum,
    require_safe_to_read,
    write_atomically,
    write_json,
)
from badpo.data.judgments import Judgments
from badpo.data.privacy import key_name
from badpo.data.problems import ConfigError, DataError, Problem, counted, worst_first
from badpo.data.yaml_files import read_yaml
from badpo.objective.bias import BiasTerm
from badpo.objective.objectives import Objective
from badpo.objective.registry import make_objective
from badpo.results.model_card import model_card
from badpo.runs.start import find_reference, load_model, load_policy, require_undamaged
from badpo.theory.summaries import wilson_ends
from badpo.training.checkpoints import (
    Facts,
    describe_changes,
    environment,
    find_newest_complete,
    list_checkpoints,
    mark_run_complete,
    remove_incomplete,
    save_on_sigterm,
    whole_folder,
)
from badpo.training.inputs import as_judgments, build_bias, choose_variant, require_texts_alone
from badpo.training.processes import lock_by_first
from badpo.training.recipe import PATHS, Keys, Recipe, make_portable
from badpo.training.reference import default_cache
from badpo.training.self_test import SelfTest
from badpo.training.trainer import BADPOTrainer

logger = logging.getLogger(__name__)

BEGUN = "begun.json"  # file with the properties that identify an unfinished run
FEW_HELD_OUT = 30  # with 30 prompts, the confidence interval of a rate of 0.5 is about 0.33 wide

# -- plans -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunPlan:
    """Plan of one run: its folder, number of steps, and number of passes over the votes."""

    folder: str
    is_finished: bool
    n_steps: int
    n_passes: float

    def __str__(self) -> str:
        if self.is_finished:
            return f"run         {self.folder}: finished, and reused"
        steps = f"{self.n_steps:,} steps, {self.n_passes:.2g} passes over the votes"
        return f"run         {self.folder}: {steps}"


@dataclass(frozen=True)
class Plan:
    """Plan of a training run and of the baselines with which the run is compared."""

    runs: tuple[RunPlan, ...]
    n_judgments: int
    n_comparisons: int
    n_annotators: int
    n_held_out: int
    n_trained: int
    n_parameters: int
    trains_reference: bool
    reference_cache: str
    self_tests: tuple[SelfTest, ...]
    findings: tuple[Problem, ...]

    def lines(self) -> list[str]:
        """Return the plan as lines of text, one fact per line."""
        shared = f" for all {len(self.runs)} runs" if len(self.runs) > 1 else ""
        first = "trained first, " if self.trains_reference else ""
        return [
            *map(str, self.runs),
            f"judgments   {self.n_judgments:,} on {self.n_comparisons:,} comparisons by {self.n_annotators:,} "
            f"annotators; {self.n_held_out:,} judgments held out",
            f"policy      {self.n_trained:,} of {self.n_parameters:,} weights trained",
            f"reference   {first}scored once{shared}; its log-probabilities are kept in {self.reference_cache}",
            *(
                f"self-test   the scoring forward agrees with the model's own forward in {test}"
                for test in self.self_tests
            ),
            *(str(finding) for finding in self.findings),
        ]


def plan_run(recipe: Recipe, resume: bool = False, allow_changed: Sequence[str] = ()) -> Plan:
    """Plan a run: read its data, count its votes and steps, and test the forward pass of its model.

    The function trains nothing and writes no file. If a run is finished, unfinished or changed, the function raises the
    same `ConfigError` as `train_run`. If the recipe requires a supervised reference that does not exist yet, the tests
    use the initial model of the supervised stage.
    """
    train, held_out = read_judgments(recipe)
    recipe, findings = settle_variant(recipe, train, held_out)
    recipes = _map_recipes(recipe)
    _find_unfinished(recipes, resume, allow_changed)
    reference = find_reference(recipe, train, recipe.arguments()) if recipe.reference.sft else None
    model, tokenizer = load_model(str(reference or recipe.model.model_name_or_path), recipe.model)
    with tempfile.TemporaryDirectory() as nowhere:
        trainer = make_trainer(recipe, nowhere, Prepared(train), held_out, model, tokenizer)
    args, judgments = recipe.arguments(), trainer.judgments
    _require_same(recipes, judgments.fingerprint())
    weights = list(trainer.model.parameters())
    for baseline in recipe.baselines:  # raises an error if the data for an objective are missing
        if baseline.objective:
            make_objective(baseline.objective, judgments, args.seed, args.beta)
    n_drawn = judgments.n_comparisons if args.batching == "comparisons" else judgments.n_votes
    n_of_epochs = math.ceil(args.num_train_epochs * math.ceil(n_drawn / args.step_size))
    n_steps = args.max_steps if args.max_steps > 0 else n_of_epochs
    n_passes = n_steps * args.step_size / n_drawn
    return Plan(
        runs=tuple(RunPlan(str(f), (f / RUN_SEAL).exists(), n_steps, n_passes) for f in recipes),
        n_judgments=judgments.n_votes,
        n_comparisons=judgments.n_comparisons,
        n_annotators=judgments.n_annotators,
        n_held_out=held_out.n_votes,
        n_trained=sum(p.numel() for p in weights if p.requires_grad),
        n_parameters=sum(p.numel() for p in weights),
        trains_reference=recipe.reference.sft and not reference,
        reference_cache=str(args.reference_cache or default_cache()),
        self_tests=tuple(trainer.self_tests),
        findings=(*findings, *trainer.findings),
    )


# -- a run of a recipe -------------------------------------------------------------------------------------------


Progress = Callable[[str, float], None]


def silent(what: str, share: float) -> None:
    """Ignore the progress."""


def train_run(
    recipe: Recipe,
    resume: bool = False,
    allow_changed: Sequence[str] = (),
    progress: Progress = silent,
) -> Path:
    """Train a recipe and its baselines, write their run folders, and return the folder of the recipe's run.

    A run's folder ``model`` appears only when the model is complete. The file ``run.json``, which contains the
    checksums of all files, appears last. After SIGTERM, the trainer finishes the current step and writes a checkpoint.
    The message of the `KeyboardInterrupt` states which files are kept and how to continue. With ``resume``, a run
    continues from its newest complete checkpoint. The resumed run may differ from the checkpoint only in what
    ``allow_changed`` names, which is "code" or nothing. Finished baselines are reused. `ConfigError` means that there
    is nothing to train or to resume, that another process uses a folder, or that settings have changed. `DataError`
    means that the table cannot be used.
    """
    recipes, folder = _map_recipes(recipe), run_folder(recipe)
    try:
        with contextlib.ExitStack() as locks:
            # the run folders are locked before the votes are read, so that `badpo forget` cannot run in between
            for place in recipes:
                locks.enter_context(lock_by_first(place))
            unfinished = _find_unfinished(recipes, resume, allow_changed)
            progress("reading the votes", 0.0)
            state_of_table = _state_of_file(recipe.data.dataset_name)
            train, held_out = read_judgments(recipe)
            recipe_with_variant, findings = settle_variant(recipe, train, held_out)
            if run_folder(recipe_with_variant) != folder:
                logger.info("%s", findings[0])  # without annotators, another variant is trained
                return train_run(recipe_with_variant, resume, allow_changed, progress)
            for finding in findings:
                level = logging.INFO if finding.severity == "notice" else logging.WARNING
                logger.log(level, "%s", finding)
            # building the bias term here reveals its errors before a reference is trained
            build_bias(
                train,
                recipe_with_variant.training["bias"],
                "zero",
                recipe_with_variant.training["gold_annotators"],
            )
            recipes[folder] = recipe_with_variant
            for place, is_begun in unfinished.items():
                trainer = _load_trainer(recipes[place], place, train, held_out, progress)
                _require_same(recipes, trainer.judgments.fingerprint())
                command, go_on = (
                    f"badpo train --config {place.name}/{RUN_RECIPE}",
                    _resume_command(recipe),
                )
                _train_into(trainer, recipes[place], command, is_begun, allow_changed, go_on=go_on)
                del trainer
                release_memory()
            if _state_of_file(recipe.data.dataset_name) not in (None, state_of_table):
                _require_nobody_removed(recipe, train, folder)
    except KeyboardInterrupt as stopped:
        kept = [p if (p / RUN_SEAL).exists() else next(_find_checkpoints(p), None) for p in recipes]
        names = ", ".join(str(place) for place in kept if place)
        message = f"stopped; kept: {names}; continue with: {_resume_command(recipe)}" if names else ""
        raise KeyboardInterrupt(str(stopped) or message) from None
    return folder


def _state_of_file(name: str) -> tuple[int, int] | None:
    """Return the modification time and the size of a file, or None if the file does not exist."""
    path = Path(name)
    return (path.stat().st_mtime_ns, path.stat().st_size) if path.is_file() else None


def _require_nobody_removed(recipe: Recipe, train: Judgments, folder: Path) -> None:
    """Raise `ConfigError` if the table no longer contains all annotators of the run, for example after `badpo forget`.

    `badpo forget` cannot find a run that has not yet written any file.
    """
    now = [part.annotators["pseudonym"] for part in read_judgments(recipe)]
    if n := len({*train.annotators["pseudonym"]}.difference(*now)):
        raise ConfigError(
            f"{recipe.data.dataset_name} was changed during training and no longer contains the votes of "
            f"{counted(n, 'annotator')}, but the run learned from these votes; remove {folder} and its baselines, and "
            "train again"
        )


def _map_recipes(recipe: Recipe) -> dict[Path, Recipe]:
    """Map the run folders of a recipe and its baselines to their recipes."""
    all_recipes = [recipe, *recipe.baselines]
    recipes = {run_folder(each): each for each in all_recipes}
    if len(recipes) < len(all_recipes):
        raise ConfigError(
            f"compare names a run twice, or names the run {run_folder(recipe).name} itself"
        )
    return recipes


def _resume_command(recipe: Recipe) -> str:
    """Return the command that continues the training of a run and its baselines."""
    words = ["badpo", "train", "--config", str(run_folder(recipe) / RUN_RECIPE), "--resume"]
    named = [one["name"] if len(one) == 1 else json.dumps(one) for one in recipe.keys.get("compare", ())]
    return shlex.join([*words, "--compare", *named] if named else words)


def _load_trainer(
    recipe: Recipe, folder: Path, train: Judgments, held_out: Judgments, progress: Progress
) -> BADPOTrainer:
    args = recipe.arguments(output_dir=str(folder))
    model, tokenizer = load_policy(recipe, train, args, callbacks=[Ticker("reference", progress)])
    trainer = make_trainer(recipe, folder, Prepared(train), held_out, model, tokenizer)
    trainer.add_callback(Ticker(folder.name, progress))
    trainer.reference.cache.progress = progress
    return trainer


def _find_checkpoints(folder: Path) -> Iterator[Path]:
    """Yield the complete checkpoints of a run, newest first."""
    return (path for path in list_checkpoints(folder / "checkpoints") if (path / MARKER).exists())


def _find_unfinished(
    folders: Collection[Path], resume: bool, allow_changed: Sequence[str]
) -> dict[Path, bool]:
    """Find the folders of unfinished runs; map each folder to whether its run can continue from a checkpoint."""
    if allow_changed and not resume:
        raise ConfigError(
            "--allow-changed states what may differ from a checkpoint, so it requires --resume"
        )
    unfinished = {}
    for folder in folders:
        if folder.is_symlink():
            raise ConfigError(
                f"{folder} is a symbolic link; remove the link, or choose another output_dir"
            )
        require_safe_to_read(folder)
        begun = next(_find_checkpoints(folder), None)
        if (folder / "model").exists() and ((folder / RUN_SEAL).exists() or not begun):
            continue
        if begun and not resume:
            problem = f"{folder} holds an unfinished run ({begun.name}); continue it with --resume"
            raise ConfigError(f"{problem}, or remove it to start again")
        unfinished[folder] = begun is not None
    names = " and ".join(map(str, folders))
    if not unfinished:
        hold = "holds" if len(folders) == 1 else "each hold"
        raise ConfigError(f"{names} {hold} a finished run; remove it or choose another output_dir")
    if resume and len(unfinished) == len(folders) and not any(unfinished.values()):
        raise ConfigError(f"{names} has no complete checkpoint to resume from; train without --resume")
    return unfinished


def _require_same(recipes: Mapping[Path, Recipe], data: str) -> None:
    """Raise `ConfigError` if a finished baseline has other votes or settings than the run to be trained."""
    for folder, recipe in recipes.items():
        if len(recipes) == 1 or not (folder / RUN_SEAL).exists():
            continue
        require_undamaged(folder, but=["readouts.json"])
        votes = read_json(folder / "bias.json")["extra"]["data"]
        before = {**read_yaml(folder / RUN_RECIPE).values, "compare": None, "votes": votes}
        now = {**_as_json(make_portable(recipe.keys, folder)), "compare": None, "votes": data}
        if changes := describe_changes(before, now):
            problem = f"{folder} holds a run with other settings: {'; '.join(changes.values())}"
            raise ConfigError(f"{problem}; restore the earlier settings, or choose another output_dir")


def read_judgments(recipe: Recipe) -> tuple[Judgments, Judgments]:
    """Read the training judgments and the held-out judgments of a recipe, split by prompt."""
    data = recipe.data
    attributes = [attribute_from_config(dict(config)) for config in recipe.attributes]
    judgments = as_judgments(data.source(), attributes, **data.reading)
    if data.held_out_name:
        return judgments, as_judgments(data.held_out_name, attributes, **data.reading)
    return judgments.split(data.held_out, data.split_seed)


def check_held_out_size(recipe: Recipe, train: Judgments, held_out: Judgments) -> list[Problem]:
    """Return a warning if so few prompts are held out that the evaluation's confidence intervals are wide."""
    n, n_trained = (part.comparisons["prompt_id"].nunique() for part in (held_out, train))
    share = recipe.data.held_out
    if n >= FEW_HELD_OUT or not share or recipe.data.held_out_name:
        return []
    low, high = wilson_ends(np.array(0.5), np.array(n))
    wide = (
        f"confidence intervals are wide, {low:.2f} to {high:.2f} for a rate of 0.5"
        if n
        else "no evaluation"
    )
    what = f"{counted(n, 'prompt')} held out: {wide}"
    # the suggested held-out share is a multiple of 0.05 and at most 0.5
    enough = min(0.5, math.ceil(20 * FEW_HELD_OUT / (n_trained + n)) / 20)
    more = "have more prompts judged"
    remedy = f"train with --held_out {enough:g}, or {more}" if enough > share else more
    return [Problem("W137", what, f"held_out: {share:g}", remedy, n)]


def settle_variant(
    recipe: Recipe, train: Judgments, held_out: Judgments
) -> tuple[Recipe, list[Problem]]:
    """Return the recipe with its bias variant filled in, and findings about the votes.

    If the recipe names no variant, the variant depends on whether the votes name annotators. `DataError` means that no
    bias can be learned from the votes.
    """
    variant, noticed = choose_variant(recipe.training["bias"], train)
    bias = {**recipe.keys["bias"], "variant": variant}
    settled = replace(
        recipe, training=recipe.training | {"bias": variant}, keys=recipe.keys | {"bias": bias}
    )
    require_texts_alone(train)
    found = check(train)
    if variant != "none" and any(problem.severity == "error" for problem in found):
        raise DataError(found)
    return settled, [*noticed, *worst_first([*found, *check_held_out_size(recipe, train, held_out)])]


def run_folder(recipe: Recipe) -> Path:
    """Return the run folder of a recipe; its name states the variant, anchor, objective and seed."""
    training, objective = recipe.training, recipe.objective
    # shared_mean is the default; if the votes name no annotators, `settle_variant` chooses another variant
    bias = training["bias"] or "shared_mean"
    name = "dpo" if bias == "none" else bias
    name += "_gold" if training["gold_annotators"] else ""
    name += {"zero": "", "offline": "_warm", "audit": "_audit"}[training["warm_start"]]
    name += f"_{objective['name']}" if objective else ""
    return Path(recipe.output_dir) / f"{name}-s{training.get('seed', 42)}"


# -- runs with settings outside of the recipe -------------------------------------------------------------------------


class Ticker(TrainerCallback):
    """Callback that reports the progress of a training stage to a function."""

    def __init__(self, what: str, progress: Progress):
        self._what = what
        self._progress = progress

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **others: object,
    ) -> None:
        """Report the share of training steps that have been completed."""
        self._progress(self._what, state.global_step / state.max_steps)


@dataclass(frozen=True)
class Prepared:
    """Judgments for a run and, optionally, a bias term and an objective that replace those in the run's recipe.

    If ``bias`` or ``objective`` is None, the trainer uses the recipe's bias term or objective. ``facts`` contains JSON
    values that distinguish the run from other runs with the same recipe and votes.
    """

    judgments: Judgments
    bias: BiasTerm | None = None
    objective: Objective | None = None
    facts: Facts = field(default_factory=dict)


def keep_run(
    recipe: Recipe, folder: Path, prepared: Prepared, command: str, progress: Progress
) -> BiasTerm:
    """Train a run, unless ``folder`` already contains the finished run, and return its bias term.

    An unfinished run continues from its newest complete checkpoint. The recipe must name the folder of the reference as
    its model. ``command`` is the command that reproduces the run. `ConfigError` means that the folder contains a run
    with other data or settings.
    """
    facts = run_facts(recipe, prepared)
    if not has_finished_run(folder, facts):
        write_json(folder / BEGUN, {"facts": facts}, private=True)
        model, tokenizer = load_model(recipe.model.model_name_or_path, recipe.model)
        ticker = Ticker(f"{folder.parent.name}/{folder.name}", progress)
        trainer = make_trainer(recipe, folder, prepared, None, model, tokenizer, [ticker])
        is_begun = find_newest_complete(folder / "checkpoints")[0] is not None
        _train_into(trainer, recipe, command, is_begun, facts=facts)
    return BiasTerm.load(folder)


def run_facts(recipe: Recipe, prepared: Prepared) -> Facts:
    """Return the properties that determine the results of a run: settings, votes, initial model and method.

    The settings are the name of the pseudonym key and all recipe keys whose values are not paths.
    """
    facts: Facts = {"pseudonym key": key_name()}
    for name, value in recipe.keys.items():
        if isinstance(value, dict):
            facts |= {f"{name}.{inner}": entry for inner, entry in value.items()}
        elif name not in (*PATHS, "attributes"):
            facts[name] = value
    start = checksum_weights(Path(recipe.model.model_name_or_path))
    own = {"data": prepared.judgments.fingerprint(), "reference": start, **prepared.facts}
    return _as_json(facts | own)


def checksum_weights(model_folder: Path) -> str:
    """Return the checksums of the weight files of a saved model or adapter."""
    return ",".join(file_checksum(path) for path in sorted(model_folder.glob("*.safetensors")))


def read_json(path: Path) -> Facts:
    """Return the content of a run's JSON file, or an empty dict if the file is missing or cannot be read."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        return _parse_object(path.read_text(encoding="utf-8"))
    return {}


def read_last_step(folder: Path) -> Facts:
    """Return the metrics of a run's last training step, or an empty dict if the log cannot be read."""
    with contextlib.suppress(OSError, ValueError, IndexError, RecursionError):
        return _parse_object((folder / LOG_FILE).read_text(encoding="utf-8").splitlines()[-1])
    return {}


def _parse_object(text: str) -> Facts:
    found = json.loads(text)
    return found if isinstance(found, dict) else {}


def read_facts(folder: Path) -> Facts:
    """Return the recorded properties of a finished or unfinished run, or an empty dict if they cannot be read."""
    for name in (RUN_SEAL, BEGUN):
        facts = read_json(folder / name).get("facts")
        if isinstance(facts, dict):
            return facts
    return {}


def has_finished_run(folder: Path, facts: Facts) -> bool:
    """Return whether a folder contains a finished and undamaged run with the given properties."""
    require_undamaged(folder, but=["readouts.json"])  # every measurement replaces the file
    is_begun = (folder / RUN_SEAL).exists() or (folder / BEGUN).exists()
    if is_begun and (changes := describe_changes(read_facts(folder), facts)):
        raise ConfigError(
            f"{folder} holds a run with other data or settings: {'; '.join(changes.values())}; remove "
            f"{folder.parent} or choose another folder"
        )
    return (folder / RUN_SEAL).exists()


# -- training and writing ----------------------------------------------------------------------------------------


def make_trainer(
    recipe: Recipe,
    folder: Path | str,
    prepared: Prepared,
    held_out: Judgments | None,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    callbacks: Sequence[TrainerCallback] = (),
) -> BADPOTrainer:
    """Create the trainer of a recipe from the given judgments and the loaded initial policy."""
    args, judgments = recipe.arguments(output_dir=str(folder)), prepared.judgments
    objective = None
    if recipe.objective:
        objective = make_objective(recipe.objective, judgments, args.seed, args.beta)
    # `settle_variant` has already reported the findings from reading the table
    trainer = BADPOTrainer(
        model,
        args=args,
        train_dataset=replace(judgments, findings=()),
        eval_dataset=replace(held_out, findings=())
        if held_out is not None and held_out.n_votes
        else None,
        processing_class=tokenizer,
        callbacks=list(callbacks),
        bias=prepared.bias,
        objective=prepared.objective or objective,
        peft_config=recipe.model.peft_config(),
    )
    trainer.is_script = False
    if callbacks:
        trainer.remove_callback(PrinterCallback)
    return trainer


def _train_into(
    trainer: BADPOTrainer,
    recipe: Recipe,
    command: str,
    resume: bool,
    allow_changed: Sequence[str] = (),
    facts: Facts | None = None,
    go_on: str = "",
) -> None:
    """Train a policy and write its run folder: first the recipe and provenance, then the model, then the manifest."""
    folder, is_writer = trainer.run_folder, trainer.is_world_process_zero()
    made_with = environment(command)
    if is_writer and not resume:  # a resumed run keeps its first provenance
        write_recipe(folder, recipe)
        write_json(folder / RUN_ENVIRONMENT, made_with)
    try:
        with save_on_sigterm(trainer, go_on or command):
            trainer.train(resume_from_checkpoint=resume or None, allow_changed=allow_changed)
            with whole_folder(folder / "model", is_writer) as unfinished:
                trainer.save_model(str(unfinished))
    except Exception:  # for example a full disk, for which every library has its own exception
        if is_writer:
            remove_incomplete(folder / "checkpoints")
        raise
    if is_writer:
        # the folder of a resumed run may contain another machine's recipe, so the recipe that was used is written
        write_recipe(folder, recipe)
        if allow_changed:
            write_json(folder / RUN_ENVIRONMENT, {**made_with, "allowed_changes": list(allow_changed)})
        write_card(folder)
        mark_run_complete(folder, {"facts": facts} if facts else None)
    trainer.accelerator.wait_for_everyone()
    if trainer.args.push_to_hub:
        trainer.push_to_hub()


def finish_run(folder: Path, recipe: Recipe, command: str, facts: Facts) -> None:
    """For a run with several policies, write the recipe and the provenance, and then the manifest."""
    write_recipe(folder, recipe)
    write_json(folder / RUN_ENVIRONMENT, environment(command))
    mark_run_complete(folder, {"facts": facts})


def write_recipe(folder: Path, recipe: Recipe) -> None:
    """Write a run's recipe into its folder, with paths relative to the folder and without secrets."""
    keys = make_portable(recipe.keys, folder)
    content = yaml.safe_dump(_as_json(keys), sort_keys=False).encode()
    write_atomically(folder / RUN_RECIPE, content, private=True)  # the recipe names gold annotators


def write_card(folder: Path) -> None:
    """Write a run's model card into its folder ``model``, with the evaluation metrics if they exist."""
    write_atomically(folder / "model" / "README.md", model_card(folder).encode())


def _as_json(keys: Keys) -> Keys:
    """Convert values from a recipe or from a run's metadata to JSON types."""
    plain: Keys = json.loads(json.dumps(keys, default=str))
    return plain
