"""Readouts of a run on a user's own votes: held-out accuracy, vote prediction, answers, distance from the reference."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Collection
from pathlib import Path

from badpo.data.attributes import plain_text
from badpo.data.files import locked, made_here, require_enclosed, resealed, run_damage
from badpo.data.judgments import Judgments
from badpo.data.privacy import is_about_single_people
from badpo.data.problems import ConfigError
from badpo.experiments.run import read_judgments, write_card
from badpo.experiments.start_policy import kept_reference, load_model
from badpo.objective.bias import BiasFileError, BiasTerm
from badpo.readouts.generation import Generation, sample
from badpo.readouts.heldout import heldout_accuracy
from badpo.readouts.json_number import json_number
from badpo.readouts.policies import divergence, implicit_margins
from badpo.readouts.sampled import attribute_values, mean_tokens
from badpo.readouts.votes import theta_rows_for, vote_accuracy
from badpo.theory.summaries import cluster_mean
from badpo.training.encoding import encode_prompts
from badpo.training.inputs import encode_judgments
from badpo.training.model_files import load_adapter
from badpo.training.recipe import NOTHING_SAID, Recipe, RunSources, read_run_recipe
from badpo.training.reference import ReferenceCache, default_cache, weights_key
from badpo.training.run_folder import write_json

logger = logging.getLogger(__name__)

N_PROMPTS = 300
MAX_NEW_TOKENS = 512
TEMPERATURE, TOP_P = 0.7, 0.9


def evaluate_run(
    folder: Path, progress: Callable[[str, float], None], sources: RunSources = NOTHING_SAID
) -> dict:
    """Measure a finished run on its held-out judgments; write and return ``readouts.json``.

    Answers are sampled to at most 300 held-out prompts, of at most 512 tokens, at temperature 0.7 and top-p 0.9.
    Held-out comparisons that do not fit ``max_length`` are left out and counted. The reference's own answers are
    measured beside a run that was made here; nothing is written beside one that was not.

    Raises
    ------
    ConfigError
        The folder holds no finished run, a file in it is damaged, the run held nothing out, its reference is gone, or
        it was made elsewhere and ``sources`` does not say what to take in place of what its recipe names.
    DataError
        The table cannot be read any more, or no held-out comparison fits.
    """
    recipe, train, held_out = finished_run(folder, sources)
    args = recipe.arguments(output_dir=str(folder))
    progress(f"{folder.name}: loading", 0.0)
    start = start_model(recipe, train, args)
    reference, tokenizer = load_model(start, recipe.model)
    reference = reference.to(args.device)
    policy = load_trained(folder, start, recipe).to(args.device)
    bias = load_bias(folder)
    held_out, _, findings = encode_judgments(held_out, tokenizer, args)
    for finding in findings:
        logger.warning("%s", finding)
    name = folder.name.rsplit("-s", 1)[0]
    progress(f"{folder.name}: held-out judgments", 0.1)
    # evaluation runs without autocast, whatever training did
    key = weights_key(reference, "fp32")
    cache = ReferenceCache(Path(args.reference_cache or default_cache()), key)
    margins = implicit_margins(
        policy,
        reference,
        cache,
        held_out,
        tokenizer,
        args.encoding,
        args.max_length,
        args.max_prompt_length,
        args.beta,
    )
    theta = theta_rows_for(held_out, list(bias.annotators), bias.theta().detach().double().numpy())
    progress(f"{folder.name}: answers", 0.4)
    if sources.trusted or made_here(folder):
        measure_reference(folder.parent / "reference", reference, key, tokenizer, held_out, args)
    written = held_out_answers(policy, tokenizer, held_out, args)
    # the divergence is of the policy as it is, not of what a decoder makes of it
    drawn = held_out_answers(policy, tokenizer, held_out, args, temperature=1.0, top_p=1.0)
    readouts = {
        "arm": name,
        "seed": args.seed,
        "heldout": heldout_accuracy(margins, held_out).to_json(),
        "votes": vote_accuracy(margins, theta, held_out).to_json(),
        "tokens": mean_tokens(written).to_json(),
        "generated": generated_rates(written, held_out),
        "kl": divergence(policy, reference, drawn, 1.0, 1.0).to_json(),
        "theta": _theta_means(bias, train),
    }
    with resealed(folder, ["readouts.json"]):
        write_json(folder / "readouts.json", readouts)
    write_card(folder)
    progress(f"{folder.name}: done", 1.0)
    return readouts


def _theta_means(bias: BiasTerm, train: Judgments) -> dict[str, dict[str, float | None]]:
    """Theta's mean and the offline log-odds of each attribute, to two digits; nothing where few people are behind."""
    if is_about_single_people(bias.learned_annotators):
        return {name: {} for name in train.attribute_names}
    theta = bias.theta().detach().double().mean(dim=0).tolist()
    level = dict(zip(bias.attributes, theta, strict=True))
    offline = {
        name: found.log_odds
        for name, found in zip(train.attribute_names, train.offline_log_odds(), strict=True)
    }
    return {
        name: {"level": round(level[name], 2), "offline": None if odds is None else round(odds, 2)}
        for name, odds in offline.items()
    }


def finished_run(folder: Path, sources: RunSources) -> tuple[Recipe, Judgments, Judgments]:
    """The recipe of a finished run that is as it was sealed, and its training and held-out judgments.

    Raises
    ------
    ConfigError
        The folder holds no finished run, a file in it is damaged, or the run held nothing out.
    DataError
        The table cannot be read any more.
    """
    if not (folder / "model").exists() or not (folder / "config.yaml").exists():
        raise ConfigError(f"{folder} holds no finished run: there is no model/ with a config.yaml beside it")
    require_enclosed(folder)
    require_undamaged(folder)
    recipe = read_run_recipe(folder, sources)
    train, held_out = read_judgments(recipe)
    if held_out.n_votes == 0:
        raise ConfigError(
            f"{folder} held no judgments out; set held_out to a share such as 0.1 and train again"
        )
    return recipe, train, held_out


def measure_reference(folder: Path, reference, key: str, tokenizer, held_out: Judgments, args) -> None:
    """The reference's own answers, measured once beside the runs, so that a report can say what has moved.

    Parameters
    ----------
    folder : Path
        Where ``readouts.json`` is written, unless it holds the same measurement already.
    reference : causal language model
    key : str
        The key of its weights.
    tokenizer, held_out, args
        As the run has them.
    """
    require_enclosed(folder)
    facts = [key, held_out.fingerprint(), args.encoding, args.max_prompt_length, args.seed, MAX_NEW_TOKENS]
    measured = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
    path = folder / "readouts.json"
    if path.exists():
        require_undamaged(folder, [path.name])
        if json.loads(path.read_text()).get("measured") == measured:
            return
        logger.warning("%s: another reference, or another table, was measured here; measured again", path)
    written = held_out_answers(reference, tokenizer, held_out, args)
    readouts = {
        "arm": "reference",
        "seed": args.seed,
        "measured": measured,
        "tokens": mean_tokens(written).to_json(),
        "generated": generated_rates(written, held_out),
    }
    with locked(folder, wait=True), resealed(folder, [path.name]):
        write_json(path, readouts)


def require_undamaged(folder: Path, names: Collection[str] | None = None) -> None:
    """Stop at a file of a finished run that is not what it was.

    Raises
    ------
    ConfigError
        Its checksum is another one.
    """
    if reason := run_damage(folder, names):
        raise ConfigError(f"{folder.parent}/{reason}; restore the file, or remove {folder} and make it again")


def start_model(recipe: Recipe, train: Judgments, args) -> str:
    """The folder or name of the model that a finished run started from.

    Raises
    ------
    ConfigError
        It was a supervised reference that is not there any more.
    """
    if not recipe.reference.sft:
        return recipe.model.model_name_or_path
    kept = kept_reference(recipe, train, args)
    if kept is None:
        raise ConfigError(
            f"{Path(recipe.output_dir) / 'reference'} holds no model any more, and the run is measured against it; "
            "put it back, or train the run again"
        )
    return str(kept)


def load_trained(folder: Path, start: str, recipe: Recipe):
    """The trained policy; an adapter is put on the model that it was trained on."""
    if not (folder / "model" / "adapter_config.json").exists():
        return load_model(str(folder / "model"), recipe.model)[0]
    return load_adapter(load_model(start, recipe.model)[0], folder / "model")


def load_bias(folder: Path) -> BiasTerm:
    """The bias term of a run; `ConfigError` when its files are missing or damaged."""
    try:
        return BiasTerm.load(folder)
    except BiasFileError as error:
        raise ConfigError(str(error)) from error


def held_out_answers(
    policy, tokenizer, held_out: Judgments, args, temperature: float = TEMPERATURE, top_p: float = TOP_P
) -> list[Generation]:
    """One answer of the policy to each of the first held-out prompts, in the order of the table."""
    prompts = held_out.comparisons.drop_duplicates("prompt_id")["prompt"].tolist()[:N_PROMPTS]
    prompt_ids = encode_prompts(prompts, tokenizer, args.encoding, args.max_prompt_length)
    return sample(policy, tokenizer, prompt_ids, MAX_NEW_TOKENS, temperature, top_p, seed=args.seed)


def generated_rates(written: list[Generation], held_out: Judgments) -> dict:
    """Share, or mean, of every attribute of single responses in the sampled answers.

    An attribute of the pair, such as the length ratio, has no value for one answer: read the tokens instead.
    """
    prompts = [plain_text(p) for p in held_out.comparisons.drop_duplicates("prompt_id")["prompt"][:N_PROMPTS]]
    found = {}
    for attribute in held_out.attributes:
        if attribute.scope == "response":
            mean = cluster_mean(attribute_values(attribute, prompts, written))
            found[attribute.name] = {"rate": mean.estimate, "se": json_number(mean.se)}
    return found
