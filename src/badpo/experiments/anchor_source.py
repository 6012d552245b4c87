"""What is anchored: a policy, with its reference, prompts and settings where it is a run of ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from badpo.anchoring.offset_stage import StageSettings
from badpo.data.attributes import plain_text
from badpo.data.corpora import bundled, signed
from badpo.data.importers.cells import is_unicode
from badpo.data.importers.tables import read_table
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError, DataError, Problem
from badpo.experiments import demo
from badpo.experiments.evaluate import load_trained, require_undamaged, start_model
from badpo.experiments.run import read_judgments
from badpo.experiments.signed_suite import SuiteSettings
from badpo.experiments.start_policy import load_model
from badpo.training.recipe import read_recipe
from badpo.training.recipe_blocks import ModelChoice
from badpo.training.reference import default_cache

N_REPORT = 300
FEWEST_PROMPTS = 50
STAGE_STEPS = 600
# What is kept holds everything else in place, so that a stage can go faster than the run that made its source.
TIMES_THE_RATE = 4.0
STAGE_BATCH = 8
MAX_NEW_TOKENS = 512


@dataclass(frozen=True)
class Prompts:
    """Three disjoint sets of prompts: to train on, to find the tilt on, to report on."""

    fresh: list[str]
    find: list[str]
    report: list[str]


@dataclass(frozen=True)
class Decoding:
    """How answers are sampled."""

    max_new_tokens: int
    temperature: float = 0.7
    top_p: float = 0.9


@dataclass(frozen=True)
class AnchorSource:
    """A policy to anchor and what is known about it.

    Attributes
    ----------
    name : str
        Of the run or model.
    load : function
        Loads the policy anew.
    reference : causal language model or None
        What it was trained from; None for a model of which nothing is known.
    tokenizer : PreTrainedTokenizerBase
    stage : StageSettings
        Of the source, with the steps of an offset stage.
    decoding : Decoding
    prompts : Prompts
    held_out : Judgments or None
        Votes to measure the gap on.
    cache : Path
        Of log-probabilities.
    out, lines : Path
        Where the result is written unless another folder is asked for, and where calibration lines are kept.
    """

    name: str
    load: Callable[[], Any]
    reference: Any
    tokenizer: Any
    stage: StageSettings
    decoding: Decoding
    prompts: Prompts
    held_out: Judgments | None
    cache: Path
    out: Path
    lines: Path


def open_source(name: str, prompts_file: Path | None = None) -> AnchorSource:
    """A run of a suite, a run of a recipe, or any causal language model.

    Parameters
    ----------
    name : str
        A run folder, a folder with a model, or a name on the Hub.
    prompts_file : Path or None
        Questions of your own, one a line, or a column ``prompt`` of CSV or JSON lines; None takes the bundled ones,
        or those of the run's own table.

    Raises
    ------
    ConfigError
        Nothing there can be loaded.
    DataError
        Too few prompts.
    """
    folder = Path(name)
    own = None if prompts_file is None else split_prompts(read_prompts(prompts_file), str(prompts_file))
    config = folder / "config.yaml"
    if config.exists() and (folder / "model").exists():
        settings = yaml.safe_load(config.read_text())
        require_undamaged(folder)
        return suite_source(folder, settings, own) if "sft_steps" in settings else recipe_source(folder, own)
    if folder.is_dir() and not (folder / "config.json").exists():
        raise ConfigError(
            f"{folder} holds neither a finished run (model/ with a config.yaml) nor a model (config.json)"
        )
    return model_source(name, own)


def with_stage(source: AnchorSource, steps: int | None, learning_rate: float | None) -> AnchorSource:
    """The source with other steps or another rate of its offset stage, where they are given."""
    stage = source.stage
    stage = stage if steps is None else replace(stage, steps=steps)
    stage = stage if learning_rate is None else replace(stage, learning_rate=learning_rate)
    return replace(source, stage=stage)


def suite_source(folder: Path, settings: dict, own: Prompts | None) -> AnchorSource:
    """A run of the demo or of another signed suite, with the suite's reference beside it."""
    known = {field.name for field in fields(SuiteSettings)}
    suite = SuiteSettings(**{key: value for key, value in settings.items() if key in known})
    reference = folder.parent / "reference"
    if not (reference / "model").exists():
        raise ConfigError(f"{reference} holds no model, and the run is measured against it; put it back")
    return AnchorSource(
        name=folder.name,
        load=lambda: AutoModelForCausalLM.from_pretrained(folder / "model"),
        reference=AutoModelForCausalLM.from_pretrained(reference / "model"),
        tokenizer=AutoTokenizer.from_pretrained(folder / "model"),
        stage=StageSettings(
            beta=suite.beta,
            steps=STAGE_STEPS,
            batch_size=STAGE_BATCH,
            learning_rate=TIMES_THE_RATE * suite.learning_rate,
            encoding="paper",
            max_length=suite.max_length,
            max_prompt_length=suite.max_prompt_length,
        ),
        decoding=Decoding(suite.max_new_tokens, suite.temperature, suite.top_p),
        prompts=own or bundled_prompts(),
        # the bundled corpus's own votes; prompts of one's own come with another corpus
        held_out=bundled_votes(suite.held_out) if own is None else None,
        cache=reference / "cache",
        out=folder.parent / f"{folder.name}-anchored",
        lines=folder.parent / "anchor_lines.json",
    )


def recipe_source(folder: Path, own: Prompts | None) -> AnchorSource:
    """A run of `badpo train`, measured on what it held out."""
    recipe = read_recipe(folder / "config.yaml")
    train, held_out = read_judgments(recipe)
    args = recipe.arguments(output_dir=str(folder))
    start = start_model(recipe, train, args)
    reference, tokenizer = load_model(start, recipe.model)

    def load():
        policy = load_trained(folder, start, recipe)
        return policy.merge_and_unload() if hasattr(policy, "merge_and_unload") else policy

    texts = [plain_text(prompt) for prompt in train.comparisons.drop_duplicates("prompt_id")["prompt"]]
    return AnchorSource(
        name=folder.name,
        load=load,
        reference=reference,
        tokenizer=tokenizer,
        stage=StageSettings(
            beta=args.beta,
            steps=STAGE_STEPS,
            batch_size=STAGE_BATCH,
            learning_rate=TIMES_THE_RATE * args.learning_rate,
            encoding=args.encoding,
            max_length=args.max_length,
            max_prompt_length=args.max_prompt_length,
        ),
        decoding=Decoding(MAX_NEW_TOKENS),
        prompts=own or split_prompts(texts, str(folder / "config.yaml")),
        held_out=held_out if held_out.n_votes else None,
        cache=Path(args.reference_cache or default_cache()),
        out=folder.parent / f"{folder.name}-anchored",
        lines=folder.parent / "anchor_lines.json",
    )


def model_source(name: str, own: Prompts | None) -> AnchorSource:
    """Any causal language model: no reference, no votes."""
    model, tokenizer = load_model(name, ModelChoice(name))
    longest = getattr(model.config, "max_position_embeddings", None) or 2048
    return AnchorSource(
        name=Path(name).name,
        load=lambda: load_model(name, ModelChoice(name))[0],
        reference=None,
        tokenizer=tokenizer,
        stage=StageSettings(
            steps=STAGE_STEPS,
            batch_size=STAGE_BATCH,
            encoding="trl" if tokenizer.chat_template is None else "paper",
            max_length=min(1024, longest),
            max_prompt_length=None if tokenizer.chat_template is None else min(384, longest // 2),
        ),
        decoding=Decoding(min(MAX_NEW_TOKENS, longest // 2)),
        prompts=own or bundled_prompts(),
        held_out=None,
        cache=default_cache(),
        out=Path("runs") / f"{Path(name).name}-anchored",
        lines=Path("runs") / "anchor_lines.json",
    )


def bundled_prompts() -> Prompts:
    """The bundled fresh prompts, and the signing prompts to report on."""
    fresh = bundled.fresh_prompts()
    return Prompts(fresh[N_REPORT:], fresh[:N_REPORT], bundled.signing_prompts())


def bundled_votes(share: float) -> Judgments:
    """The held-out votes of the demo's corpus."""
    corpus = signed.build(bundled.scored_pairs(demo.N_PAIRS, seed=demo.DATA_SEED), seed=demo.DATA_SEED)
    return corpus.judgments.split(share, seed=0)[1]


def split_prompts(prompts: Sequence[str], where: str) -> Prompts:
    """A fifth of the prompts to find on, a fifth to report on (300 at most each), the others to train on."""
    distinct = sorted(set(prompts))
    if len(distinct) < FEWEST_PROMPTS:
        what = f"{len(distinct)} prompts; a fifth is set apart to find the tilt on, and a fifth to report on"
        remedy = f"give {FEWEST_PROMPTS} prompts or more with --prompts"
        raise DataError([Problem("E137", what, where, remedy, "error", len(distinct))])
    shuffled = [distinct[i] for i in np.random.default_rng(0).permutation(len(distinct))]
    n = min(N_REPORT, len(distinct) // 5)
    return Prompts(fresh=shuffled[2 * n :], find=shuffled[n : 2 * n], report=shuffled[:n])


def read_prompts(path: Path) -> list[str]:
    """Questions of a file: the column ``prompt`` of .csv or .jsonl, else one a line.

    Raises
    ------
    DataError
        A table that cannot be read.
    ConfigError
        A table without that column, or a file that is no text.
    """
    if path.suffix in (".csv", ".jsonl"):
        frame = read_table(path).frame
        if "prompt" not in frame:
            raise ConfigError(f'{path} has no column "prompt"; it has {", ".join(map(str, frame.columns))}')
        rows = [str(prompt) for prompt in frame["prompt"].dropna()]
    else:
        try:
            rows = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} cannot be read as text: {error}") from error
    if not all(map(is_unicode, rows)):
        raise ConfigError(f"{path}: a question holds half of a surrogate pair, which is no character")
    return [row.strip() for row in rows if row.strip()]
