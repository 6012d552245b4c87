"""The source of an anchor: a policy, its prompts and settings, and its reference if the policy is from a badpo run."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from badpo.anchoring.offset_stage import StageSettings
from badpo.data.attributes import plain_text
from badpo.data.files import RUN_SEAL
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError, DataError, Problem, is_unicode
from badpo.data.tables import read_table
from badpo.readouts.generation import Decoding
from badpo.runs.evaluate import MAX_NEW_TOKENS, load_trained, prepare_stage
from badpo.runs.run import checksum_weights
from badpo.runs.stage import Stage
from badpo.runs.start import load_model
from badpo.training.recipe import NO_SOURCES, ModelChoice, RunSources
from badpo.training.reference import compute_weights_key, default_cache

N_REPORT = 300  # maximum number of prompts for the report, and of prompts for finding the tilt
FEWEST_PROMPTS = 50
# Learning rate of an offset stage, as a multiple of the run's learning rate. The divergence term allows a higher rate.
TIMES_THE_RATE = 4.0


@dataclass(frozen=True)
class Prompts:
    """Three disjoint sets of prompts (for training, for finding the tilt, and for the report), and their origin."""

    fresh: list[str]
    find: list[str]
    report: list[str]
    origin: str

    def to_json(self) -> dict[str, int | str]:
        """Return the origin of the prompts and the number of prompts in each of the three sets."""
        counts = {"fresh": len(self.fresh), "find": len(self.find), "report": len(self.report)}
        return {**counts, "from": self.origin}


@dataclass(frozen=True)
class AnchorSource:
    """A policy to anchor, with its reference, prompts and settings.

    ``name`` is the name of the run or model, and ``place`` is its folder or its name on the Hub. ``read()`` loads the
    policy, and ``read(folder)`` loads a policy from another folder with the same settings. If the source is not a run,
    ``reference`` is None and ``reference_key`` is empty. ``held_out`` contains the votes for the held-out gap,
    ``cache`` is the folder of cached log-probabilities, and ``out`` is the default folder for the result.
    """

    name: str
    place: str
    read: Callable[..., PreTrainedModel]
    policy_key: str
    reference_key: str
    reference: PreTrainedModel | None
    tokenizer: PreTrainedTokenizerBase
    stage: StageSettings
    decoding: Decoding
    prompts: Prompts
    held_out: Judgments | None
    cache: Path
    out: Path


def open_source(
    name: str,
    prompts_file: Path | None = None,
    sources: RunSources = NO_SOURCES,
    max_steps: int | None = None,
    learning_rate: float | None = None,
) -> AnchorSource:
    """Open a finished run or any causal language model as the source of an anchor; None means the default setting."""
    folder = Path(name)
    own = None if prompts_file is None else split_prompts(read_prompts(prompts_file), str(prompts_file))
    if (folder / "config.yaml").exists() and (folder / "model").exists():
        inputs, where = prepare_stage(folder, sources), str(folder / "config.yaml")
        source = run_source(folder, inputs, own or run_prompts(inputs.train, inputs.held_out, where))
    elif folder.is_dir() and not (folder / "config.json").exists():
        raise ConfigError(
            f"{folder} contains neither a finished run (model/ and config.yaml) nor a model (config.json)"
        )
    elif own is None:
        raise ConfigError(
            f"{name} is not a badpo run, so badpo needs a file of prompts; give one with --prompts FILE"
        )
    else:
        source = model_source(name, own)
    stage = source.stage
    steps = stage.max_steps if max_steps is None else max_steps
    rate = stage.learning_rate if learning_rate is None else learning_rate
    return replace(source, stage=replace(stage, max_steps=steps, learning_rate=rate))


def run_source(folder: Path, stage: Stage, prompts: Prompts) -> AnchorSource:
    """Return a finished run as the source of an anchor, with the run's reference and held-out votes."""
    args = stage.args

    def read(saved: Path | None = None) -> PreTrainedModel:
        policy = load_trained(folder if saved is None else saved.parent, stage)
        policy = policy.merge_and_unload() if hasattr(policy, "merge_and_unload") else policy
        return policy.to(args.device)

    return AnchorSource(
        name=folder.name,
        place=str(folder),
        read=read,
        policy_key=checksum_weights(folder / "model"),
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
        decoding=_limit_length(stage.decoding, stage.model),
        prompts=prompts,
        held_out=stage.held_out if stage.held_out.n_votes else None,
        cache=Path(args.reference_cache or default_cache()),
        out=folder.parent / f"{folder.name}-anchored",
    )


def model_source(name: str, prompts: Prompts) -> AnchorSource:
    """Return a causal language model as the source of an anchor; such a source has no reference and no votes."""
    choice, folder = ModelChoice(model_name_or_path=name), Path(name)
    model, tokenizer = load_model(name, choice)
    longest, is_chat = _n_positions(model, 2048), tokenizer.chat_template is not None
    # a policy in a run folder gets the name of the run, so that `badpo forget` finds the results of the anchor
    own_name = folder.parent.name if (folder.parent / RUN_SEAL).exists() else folder.name

    def read(saved: Path | None = None) -> PreTrainedModel:
        return load_model(name if saved is None else str(saved), choice)[0]

    return AnchorSource(
        name=own_name,
        place=name,
        read=read,
        policy_key=compute_weights_key(model, "fp32"),
        reference_key="",
        reference=None,
        tokenizer=tokenizer,
        stage=StageSettings(
            encoding="paper" if is_chat else "trl",
            max_length=min(1024, longest),
            max_prompt_length=min(384, longest // 2) if is_chat else None,
        ),
        decoding=_limit_length(Decoding(MAX_NEW_TOKENS), model),
        prompts=prompts,
        held_out=None,
        cache=default_cache(),
        out=Path("runs") / f"{own_name}-anchored",
    )


def _n_positions(model: PreTrainedModel, default: int) -> int:
    """Return the size of a model's context window, or the default if the configuration does not state the size."""
    return getattr(model.config, "max_position_embeddings", None) or default


def _limit_length(decoding: Decoding, model: PreTrainedModel) -> Decoding:
    """Limit the answer length to half of the context window, so that half remains for the prompt."""
    longest = _n_positions(model, 2 * decoding.max_new_tokens)
    return replace(decoding, max_new_tokens=min(decoding.max_new_tokens, longest // 2))


def run_prompts(train: Judgments, held_out: Judgments, where: str) -> Prompts:
    """Split a run's prompts; the report uses held-out prompts if there are enough, and training prompts if not."""
    trained = set(map(plain_text, train.comparisons["prompt"]))
    unseen = set(map(plain_text, held_out.comparisons["prompt"])) - trained
    split = split_prompts(trained, where)
    if len(unseen) < FEWEST_PROMPTS:
        return replace(
            split,
            origin=f"training prompts of the run, because only {len(unseen)} prompts were held out",
        )
    return Prompts(
        # the report uses held-out prompts, so training can also use the prompts in split.report
        fresh=[*split.fresh, *split.report],
        find=split.find,
        report=_shuffled(unseen)[:N_REPORT],
        origin="held-out prompts of the run for the report, and its training prompts for everything else",
    )


def split_prompts(prompts: Iterable[str], where: str) -> Prompts:
    """Split prompts: a fifth (at most 300) to find the tilt, as many for the report, and the rest for training."""
    shuffled = _shuffled(set(prompts))
    if len(shuffled) < FEWEST_PROMPTS:
        what = f"{len(shuffled)} prompts are too few: a fifth is used to find the tilt, and a fifth for the report"
        remedy = f"give a file with at least {FEWEST_PROMPTS} prompts: --prompts FILE"
        raise DataError([Problem("E137", what, where, remedy, len(shuffled))])
    n = min(N_REPORT, len(shuffled) // 5)
    return Prompts(shuffled[2 * n :], shuffled[n : 2 * n], shuffled[:n], where)


def _shuffled(distinct: set[str]) -> list[str]:
    """Shuffle texts; the order depends only on the set of texts."""
    texts = sorted(distinct)
    return [texts[i] for i in np.random.default_rng(0).permutation(len(texts))]


def read_prompts(path: Path) -> list[str]:
    """Read prompts from the column ``prompt`` of a .csv or .jsonl file, or from the lines of another text file."""
    if path.suffix in (".csv", ".jsonl"):
        frame = read_table(path).frame
        if "prompt" not in frame:
            raise ConfigError(
                f'{path} has no column "prompt"; rename the column that contains the prompts to "prompt"'
            )
        rows = [str(prompt) for prompt in frame["prompt"].dropna()]
    else:
        try:
            rows = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} cannot be read as text: {error}") from error
    if not all(map(is_unicode, rows)):
        raise ConfigError(
            f"{path}: a prompt contains half of a surrogate pair, which is not a character; remove it"
        )
    return [row.strip() for row in rows if row.strip()]
