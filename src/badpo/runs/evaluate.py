"""Readouts of a run: held-out accuracy, votes predicted, answers, and the distance from the reference."""

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from badpo.data.attributes import attribute_from_config, plain_text
from badpo.data.files import (
    RUN_SEAL,
    Json,
    locked,
    made_here,
    require_enclosed,
    resealed,
    write_json,
)
from badpo.data.judgments import Judgments
from badpo.data.privacy import is_about_single_people
from badpo.data.problems import ConfigError, counted
from badpo.objective.bias import BiasTerm
from badpo.readouts.generation import Decoding, Generation, sample
from badpo.readouts.heldout import (
    heldout_accuracy,
    implicit_margins,
    theta_rows_for,
    vote_accuracy,
)
from badpo.readouts.sampled import attribute_values, divergence, mean_tokens, rate_figures
from badpo.results.run_files import BY_COMMAND
from badpo.runs.run import (
    Progress,
    few_held_out,
    kept_json,
    read_judgments,
    weights_of,
    write_card,
)
from badpo.runs.start import kept_reference, load_model, require_undamaged
from badpo.training.encoding import encode_prompts, template_options
from badpo.training.inputs import encode_judgments
from badpo.training.model_files import load_adapter
from badpo.training.recipe import NOTHING_SAID, Recipe, RunSources, read_run_recipe
from badpo.training.reference import ReferenceCache, default_cache, weights_key

logger = logging.getLogger(__name__)

VERSION = 4  # of what is measured; another one measures finished runs again
N_PROMPTS = 300
MAX_NEW_TOKENS = 512
N_SHOWN, SHOWN_LETTERS = 3, 600  # answers that a page shows, and how much of a text


@dataclass(eq=False)
class Stage:
    """What runs are measured on: held-out votes, prompts, and the reference that they started from.

    ``recipe`` is that of a run, or what those of several have in common; ``start`` the folder or name of the
    reference; a prompt that stands twice among ``prompts`` is answered twice; ``given`` is what the chat template gets
    besides each.
    """

    recipe: Recipe
    train: Judgments
    held_out: Judgments
    start: str
    prompts: tuple
    decoding: Decoding = field(default_factory=Decoding)
    given: Sequence[Json] = ()

    @cached_property
    def args(self):
        """The arguments of training, of which encoding, beta and device are read."""
        return self.recipe.arguments()

    @cached_property
    def _loaded(self) -> tuple[Any, Any]:
        return load_model(self.start, self.recipe.model)

    @cached_property
    def model(self) -> Any:
        """The reference."""
        return self._loaded[0].to(self.args.device)

    @property
    def tokenizer(self) -> Any:
        """The reference's tokenizer."""
        return self._loaded[1]

    @cached_property
    def key(self) -> str:
        """The key of the reference's weights; evaluation runs without autocast, whatever training did."""
        return weights_key(self.model, "fp32")

    @cached_property
    def judged(self) -> Judgments:
        """The held-out judgments whose comparisons fit the length limit; those that do not are counted."""
        kept, _, findings = encode_judgments(self.held_out, self.tokenizer, self.args)
        for finding in findings:
            logger.warning("%s", finding)
        return kept

    def encoded(self, prompts: Sequence, given: Sequence[Json] = ()) -> list[np.ndarray]:
        """Prompts as a policy reads them."""
        limits = self.args.encoding, self.args.max_prompt_length
        return encode_prompts(list(prompts), self.tokenizer, *limits, given)

    def answers(self, policy, seed: int, prompt_ids=None, **decoding: Any) -> list[Generation]:
        """One sampled answer of a policy to each prompt, or to each of others."""
        given = asdict(replace(self.decoding, **decoding))
        ids = self.encoded(self.prompts, self.given) if prompt_ids is None else prompt_ids
        return sample(policy, self.tokenizer, ids, seed=seed, **given)

    @cached_property
    def written(self) -> list[Generation]:
        """The reference's own answers."""
        return self.answers(self.model, 0)

    def margins(self, policy, judgments: Judgments | None = None) -> np.ndarray:
        """A policy's u of every held-out comparison, or of those of other judgments."""
        args, judged = self.args, self.judged if judgments is None else judgments
        cache = ReferenceCache(Path(args.reference_cache or default_cache()), self.key)
        limits = (args.encoding, args.max_length, args.max_prompt_length)
        return implicit_margins(policy, self.model, cache, judged, self.tokenizer, *limits, args.beta)


@dataclass(frozen=True)
class PolicyReading:
    """A policy while it is measured."""

    stage: Stage
    policy: Any
    seed: int
    written: list[Generation]
    bias: BiasTerm | None = None
    judged: Judgments | None = None
    theta: np.ndarray | None = None
    margins: np.ndarray | None = None


# What is read besides: (what was measured) -> JSON.
More = Callable[[PolicyReading], Json]


def measure(
    folder: Path,
    stage: Stage,
    seed: int,
    bias: BiasTerm | None,
    more: More,
    progress: Progress,
    facts: Sequence[Any] = (),
) -> Json:
    """Every readout of the policy in ``folder/model``, from ``readouts.json`` where that is of the same policy.

    Without a bias it is the reference's, in a folder of its own beside the runs. ``seed`` is that of the answers,
    ``more`` what is read besides, and ``facts`` are JSON that decides it.
    """
    own = stage.key if bias is None else weights_of(folder / "model")
    args, prompts = stage.args, [plain_text(p) for p in stage.prompts]
    content = [VERSION, own, stage.key, prompts, asdict(stage.decoding), seed]
    content += [args.encoding, args.max_prompt_length, stage.held_out.fingerprint(), *facts]
    key = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]
    kept = kept_json(folder / "readouts.json")
    if kept.get("measured") == key:
        require_undamaged(folder, ["readouts.json"])
        # a kill on the way leaves the seal without the readouts, or the card
        if "readouts.json" not in kept_json(folder / RUN_SEAL).get("files", ["readouts.json"]):
            write_readouts(folder, kept)
        elif bias is not None:
            write_card(folder)
        return kept
    what = f"{folder.parent.name}/{folder.name} readouts"
    progress(what, 0.0)
    told = f"{counted(len(prompts), 'prompt')} answered {'once' if bias is None else 'twice'}"
    told += f" with at most {stage.decoding.max_new_tokens} tokens"
    if bias is not None:
        told += f", {counted(stage.judged.n_comparisons, 'held-out comparison')} scored"
    logger.info("%s: %s", what, told)
    policy = stage.model if bias is None else load_trained(folder, stage).to(args.device)
    written = stage.written if bias is None and seed == 0 else stage.answers(policy, seed)
    progress(what, 0.4)
    found = PolicyReading(stage, policy, seed, written)
    readouts = {
        "arm": folder.name.rsplit("-s", 1)[0],
        "seed": seed,
        "measured": key,
        "version": VERSION,
    }
    readouts["tokens"] = mean_tokens(written)
    readouts["answers"] = _shown(stage.prompts, written)
    if bias is not None:
        judged = with_own_attributes(stage.judged, bias)
        theta, margins = theta_rows(bias, judged), stage.margins(policy)
        found = replace(found, bias=bias, judged=judged, theta=theta, margins=margins)
        progress(what, 0.6)
        # the divergence is of the policy as it is, not of what a decoder makes of it
        drawn = stage.answers(policy, seed, temperature=1.0, top_p=1.0)
        readouts |= {
            "heldout": heldout_accuracy(margins, stage.judged),
            "votes": vote_accuracy(margins, theta, judged),
            "kl": divergence(policy, stage.model, drawn, 1.0, 1.0),
        }
    progress(what, 0.8)
    readouts |= more(found)
    write_readouts(folder, readouts)
    progress(what, 1.0)
    return readouts


def _shown(prompts: Sequence, written: Sequence[Generation]) -> list[Json]:
    """The first prompts, each once, with their answers, for people to read."""
    answers = {plain_text(p): one.text for p, one in zip(prompts, written, strict=True)}
    shown = islice(answers.items(), N_SHOWN)
    return [{"prompt": p[:SHOWN_LETTERS], "answer": text[:SHOWN_LETTERS]} for p, text in shown]


def write_readouts(folder: Path, readouts: Json) -> None:
    """Write ``readouts.json``, and the model card with what stands in it."""
    with resealed(folder, ["readouts.json"]):
        write_json(folder / "readouts.json", readouts, private=True)  # it has prompts and answers
    if (folder / "bias.json").exists():
        write_card(folder)


def with_own_attributes(judgments: Judgments, bias: BiasTerm) -> Judgments:
    """The judgments with those attributes besides theirs that an arm declared for itself and learned theta on.

    Votes are predicted with theta on what it was learned on. A penalty is fixed and says nothing of annotators: the
    length that it is on is left out.
    """
    own = [
        attribute_from_config(config)
        for name, config in zip(bias.attributes, bias.extra["attributes"], strict=False)
        if name not in judgments.attribute_names and bias.parts
    ]
    return judgments.with_attributes([*judgments.attributes, *own]) if own else judgments


def theta_rows(bias: BiasTerm, judgments: Judgments) -> np.ndarray:
    """Theta of every annotator on every attribute of ``judgments``, in log-odds.

    0 for an attribute that the run did not declare. An attribute that the judgments do not have, such as the length
    that a penalty is on, has no column, and a theta that is not in log-odds is left out.
    """
    learned = pd.DataFrame(bias.theta().detach().numpy(), columns=list(bias.attributes))
    known = learned.reindex(columns=list(judgments.attribute_names), fill_value=0.0).to_numpy()
    if not bias.extra.get("theta_in_log_odds", True):
        known = np.zeros_like(known)
    return theta_rows_for(judgments, list(bias.annotators), known)


def evaluate_run(folder: Path, progress: Progress, sources: RunSources = NOTHING_SAID) -> dict:
    """Measure a finished run on its held-out judgments; write and return ``readouts.json``.

    Answers are sampled to at most 300 held-out prompts, of at most 512 tokens, at temperature 0.7 and top-p 0.9.
    Held-out comparisons that do not fit ``max_length`` are left out and counted. The reference's own answers are
    measured beside a run that was made here; nothing is written beside one that was not.

    A `ConfigError` says that the folder holds no finished run or a damaged file, that nothing was held out, that the
    reference is gone, or that ``sources`` does not say what to take in place of what a recipe made elsewhere names; a
    `DataError` that the table cannot be read any more, or that no held-out comparison fits.
    """
    stage = finished_stage(folder, sources)
    if stage.held_out.n_votes == 0:
        raise ConfigError(
            f"{folder} held no judgments out; set held_out to a share such as 0.1 and train again"
        )
    for finding in few_held_out(stage.recipe, stage.train, stage.held_out):
        logger.warning("%s", finding)
    progress(f"{folder.name}: loading", 0.0)
    asked = stage.judged.comparisons.drop_duplicates("prompt_id")[:N_PROMPTS]
    stage.prompts, stage.given = tuple(asked["prompt"]), template_options(asked)
    bias = BiasTerm.load(folder)
    if sources.trusted or made_here(folder):
        reference = folder.parent / "reference"
        require_enclosed(reference)
        with locked(reference, wait=True):
            measure(reference, stage, stage.args.seed, None, _generated, progress)
    return measure(folder, stage, stage.args.seed, bias, _generated, progress)


def _generated(found: PolicyReading) -> Json:
    """Attributes of the answers, and of a run's theta the mean beside the votes' own log-odds.

    An attribute of the pair, such as the length ratio, has no value for one answer: read the tokens instead.
    """
    prompts, rates = [plain_text(prompt) for prompt in found.stage.prompts], {}
    for attribute in found.stage.held_out.attributes:
        if attribute.scope == "response":
            values = attribute_values(attribute, prompts, found.written)
            rates[attribute.name] = rate_figures(values, not attribute.continuous)
    if found.bias is None:
        return {"generated": rates}
    return {"generated": rates, "theta": _theta_means(found.bias, found.stage.train)}


def _theta_means(bias: BiasTerm, train: Judgments) -> dict[str, dict[str, float | None]]:
    """Theta's mean and the offline log-odds of each attribute, to two digits; nothing where few people are behind."""
    if is_about_single_people(bias.learned_annotators):
        return {name: {} for name in train.attribute_names}
    level = dict(zip(bias.attributes, bias.theta().mean(dim=0).tolist(), strict=True))
    offline = (found.log_odds for found in train.offline_log_odds())
    return {
        name: {
            "level": round(level[name], 2),
            "offline": None if odds is None else round(odds, 2),
        }
        for name, odds in zip(train.attribute_names, offline, strict=True)
    }


def finished_stage(folder: Path, sources: RunSources) -> Stage:
    """What a finished run is measured on, where the run and what it started from are as they were sealed."""
    if not (folder / "model").exists() or not (folder / "config.yaml").exists():
        missing = "holds no finished run: no model/ with a config.yaml beside it"
        raise ConfigError(f"{folder} {missing}. {BY_COMMAND}")
    require_enclosed(folder)
    require_undamaged(folder)
    recipe = read_run_recipe(folder, sources)
    started_from = Path(recipe.model.model_name_or_path).parent
    if (started_from / RUN_SEAL).exists():
        require_enclosed(started_from)
        require_undamaged(started_from)
    train, held_out = read_judgments(recipe)
    start: Path | str | None = recipe.model.model_name_or_path
    if recipe.reference.sft:
        start = kept_reference(recipe, train, recipe.arguments(output_dir=str(folder)))
    if start is None:
        raise ConfigError(
            f"{Path(recipe.output_dir) / 'reference'} holds no model any more, and the run is measured against it; "
            "put it back, or train the run again"
        )
    return Stage(recipe, train, held_out, str(start), (), Decoding(MAX_NEW_TOKENS))


def load_trained(folder: Path, stage: Stage):
    """The trained policy of a run; an adapter is put on the reference that it was trained on."""
    if not (folder / "model" / "adapter_config.json").exists():
        return load_model(str(folder / "model"), stage.recipe.model)[0]
    return load_adapter(load_model(stage.start, stage.recipe.model)[0], folder / "model")
