"""What is anchored: a policy, with its reference, prompts and settings where it is a run of ours."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from badpo.anchoring.offset_stage import StageSettings
from badpo.data.attributes import plain_text
from badpo.data.files import RUN_SEAL
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError, DataError, Problem, is_unicode
from badpo.data.tables import read_table
from badpo.readouts.generation import Decoding
from badpo.runs.evaluate import MAX_NEW_TOKENS, Stage, finished_stage, load_trained
from badpo.runs.run import weights_of
from badpo.runs.start import load_model
from badpo.training.recipe import NOTHING_SAID, ModelChoice, RunSources
from badpo.training.reference import default_cache, weights_key

N_REPORT = 300
FEWEST_PROMPTS = 50
# What is kept holds everything else in place, so that a stage can go faster than the run that made its source.
TIMES_THE_RATE = 4.0


@dataclass(frozen=True)
class Prompts:
    """Three disjoint sets of prompts: to train on, to find the tilt on, to report on; and where they come from."""

    fresh: list[str]
    find: list[str]
    report: list[str]
    origin: str

    def to_json(self) -> dict:
        """How many there are of each, and where they come from."""
        counts = {"fresh": len(self.fresh), "find": len(self.find), "report": len(self.report)}
        return {**counts, "from": self.origin}


@dataclass(frozen=True)
class AnchorSource:
    """A policy to anchor and what is known about it.

    ``name`` is that of the run or model, ``given`` its folder or its name on the Hub; ``load`` loads the policy anew,
    and ``read`` one from a folder in the same way. The reference, and the checksum of its weights, are empty for a
    model of which nothing is known. ``held_out`` are votes to measure the gap on, ``cache`` that of log-probabilities,
    and ``out`` where the result is written unless another folder is asked for.
    """

    name: str
    given: str
    read: Callable[..., Any]
    policy_key: str
    reference_key: str
    reference: Any
    tokenizer: Any
    stage: StageSettings
    decoding: Decoding
    prompts: Prompts
    held_out: Judgments | None
    cache: Path
    out: Path


def open_source(
    name: str,
    prompts_file: Path | None = None,
    sources: RunSources = NOTHING_SAID,
    **offset_stage: Any,
) -> AnchorSource:
    """A finished run, measured on what it held out, or any causal language model; settings of its offset stage."""
    folder = Path(name)
    own = None if prompts_file is None else split_prompts(read_prompts(prompts_file), str(prompts_file))
    if (folder / "config.yaml").exists() and (folder / "model").exists():
        stage = finished_stage(folder, sources)
        where = str(folder / "config.yaml")
        found = run_source(folder, stage, own or run_prompts(stage.train, stage.held_out, where))
    elif folder.is_dir() and not (folder / "config.json").exists():
        raise ConfigError(
            f"{folder} holds neither a finished run (model/ with a config.yaml) nor a model (config.json)"
        )
    elif own is None:
        raise ConfigError(
            f"{name} is no run with prompts of its own; name a file of them with --prompts FILE"
        )
    else:
        found = model_source(name, own)
    return replace(found, stage=replace(found.stage, **offset_stage))


def run_source(folder: Path, stage: Stage, prompts: Prompts) -> AnchorSource:
    """A run and what it is measured on, of which it has its reference."""
    args, of_policy = stage.args, folder / "model"

    def read(saved: Path = of_policy):
        policy = load_trained(saved.parent, stage)
        policy = policy.merge_and_unload() if hasattr(policy, "merge_and_unload") else policy
        return policy.to(args.device)

    return AnchorSource(
        name=folder.name,
        given=str(folder),
        read=read,
        policy_key=weights_of(of_policy),
        reference_key=stage.key,
        reference=stage.model,
        tokenizer=stage.tokenizer,
        stage=StageSettings(
            beta=args.beta,
            learning_rate=TIMES_THE_RATE * args.learning_rate,
            encoding=args.encoding,
            max_length=args.max_length,
            max_prompt_length=args.max_prompt_length,
        ),
        decoding=_fitting(stage.decoding, stage.model),
        prompts=prompts,
        held_out=stage.held_out if stage.held_out.n_votes else None,
        cache=Path(args.reference_cache or default_cache()),
        out=folder.parent / f"{folder.name}-anchored",
    )


def model_source(name: str, prompts: Prompts) -> AnchorSource:
    """Any causal language model: no reference, no votes."""
    choice, folder = ModelChoice(model_name_or_path=name), Path(name)
    model, tokenizer = load_model(name, choice)
    longest, is_chat = _positions(model, 2048), tokenizer.chat_template is not None
    # the policy of a run goes by the name of the run, by which `badpo forget` finds it
    own_name = folder.parent.name if (folder.parent / RUN_SEAL).exists() else folder.name

    def read(saved: Path | str = name):
        return load_model(str(saved), choice)[0]

    return AnchorSource(
        name=own_name,
        given=name,
        read=read,
        policy_key=weights_key(model, "fp32"),
        reference_key="",
        reference=None,
        tokenizer=tokenizer,
        stage=StageSettings(
            encoding="paper" if is_chat else "trl",
            max_length=min(1024, longest),
            max_prompt_length=min(384, longest // 2) if is_chat else None,
        ),
        decoding=_fitting(Decoding(MAX_NEW_TOKENS), model),
        prompts=prompts,
        held_out=None,
        cache=default_cache(),
        out=Path("runs") / f"{own_name}-anchored",
    )


def _positions(model, else_taken: int) -> int:
    return getattr(model.config, "max_position_embeddings", None) or else_taken


def _fitting(decoding: Decoding, model) -> Decoding:
    """A decoding whose answers leave room for the prompt, and for what is asked behind an answer."""
    longest = _positions(model, 2 * decoding.max_new_tokens)
    return replace(decoding, max_new_tokens=min(decoding.max_new_tokens, longest // 2))


def run_prompts(train: Judgments, held_out: Judgments, where: str) -> Prompts:
    """Those of a run's own table: to report on the ones that it held out, where they are enough, else a part of all."""
    trained_on, kept_apart = (
        set(map(plain_text, part.comparisons["prompt"])) for part in (train, held_out)
    )
    unseen, split = kept_apart - trained_on, split_prompts(trained_on, where)
    if len(unseen) < FEWEST_PROMPTS:
        return replace(
            split,
            origin=f"prompts that the run was trained on, for it held out {len(unseen)} only",
        )
    return Prompts(
        # those that would be reported on are as fresh as the others
        fresh=[*split.fresh, *split.report],
        find=split.find,
        report=_shuffled(unseen)[:N_REPORT],
        origin="prompts that the run held out to report on, those that it was trained on for the rest",
    )


def split_prompts(prompts: Iterable[str], where: str) -> Prompts:
    """A fifth of the prompts to find on, a fifth to report on (300 at most each), the others to train on."""
    shuffled = _shuffled(set(prompts))
    if len(shuffled) < FEWEST_PROMPTS:
        what = f"{len(shuffled)} prompts; a fifth is set apart to find the tilt on, and a fifth to report on"
        remedy = f"give {FEWEST_PROMPTS} prompts or more with --prompts"
        raise DataError([Problem("E137", what, where, remedy, len(shuffled))])
    n = min(N_REPORT, len(shuffled) // 5)
    return Prompts(shuffled[2 * n :], shuffled[n : 2 * n], shuffled[:n], where)


def _shuffled(distinct: set[str]) -> list[str]:
    """In an order that the texts decide."""
    texts = sorted(distinct)
    return [texts[i] for i in np.random.default_rng(0).permutation(len(texts))]


def read_prompts(path: Path) -> list[str]:
    """Questions of a file: the column ``prompt`` of .csv or .jsonl, else one a line."""
    if path.suffix in (".csv", ".jsonl"):
        frame = read_table(path).frame
        if "prompt" not in frame:
            raise ConfigError(
                f'{path} has no column "prompt"; it has {", ".join(map(str, frame.columns))}'
            )
        rows = [str(prompt) for prompt in frame["prompt"].dropna()]
    else:
        try:
            rows = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} cannot be read as text: {error}") from error
    if not all(map(is_unicode, rows)):
        raise ConfigError(f"{path}: a question holds half of a surrogate pair, which is no character")
    return [row.strip() for row in rows if row.strip()]
