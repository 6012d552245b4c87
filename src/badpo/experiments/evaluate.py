"""Readouts of a run on a user's own votes: held-out accuracy, vote prediction, answers, distance from the reference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from transformers import AutoModelForCausalLM

from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError
from badpo.experiments.run import load_policy, read_judgments, write_card
from badpo.objective.bias import BiasTerm
from badpo.readouts.generation import Generation, sample
from badpo.readouts.heldout import heldout_accuracy
from badpo.readouts.policies import divergence, implicit_margins
from badpo.readouts.sampled import attribute_values, mean_tokens
from badpo.readouts.votes import theta_rows_for, vote_accuracy
from badpo.theory.summaries import cluster_mean
from badpo.training.encoding import encode_prompts
from badpo.training.recipe import read_recipe
from badpo.training.reference import ReferenceCache, default_cache, weights_key
from badpo.training.run_folder import write_json

N_PROMPTS = 300
MAX_NEW_TOKENS = 512
TEMPERATURE, TOP_P = 0.7, 0.9


def evaluate_run(folder: Path, progress: Callable[[str, float], None]) -> dict:
    """Measure a finished run on its held-out judgments; write and return ``readouts.json``.

    Answers are sampled to at most 300 held-out prompts, of at most 512 tokens, at temperature 0.7 and top-p 0.9.

    Raises
    ------
    ConfigError
        The folder holds no finished run, or the run held nothing out.
    """
    if not (folder / "model").exists() or not (folder / "config.yaml").exists():
        raise ConfigError(f"{folder} holds no finished run: there is no model/ with a config.yaml beside it")
    recipe = read_recipe(folder / "config.yaml")
    train, held_out = read_judgments(recipe)
    if held_out.n_votes == 0:
        raise ConfigError(
            f"{folder} held no judgments out; set held_out to a share such as 0.1 and train again"
        )
    args = recipe.arguments(output_dir=str(folder))
    progress(f"{folder.name}: loading", 0.0)
    reference, tokenizer = load_policy(recipe, train, args)
    policy = load_trained(folder, recipe)
    bias = BiasTerm.load(folder)
    name = folder.name.rsplit("-s", 1)[0]
    progress(f"{folder.name}: held-out judgments", 0.1)
    cache = ReferenceCache(
        Path(args.reference_cache or default_cache()), weights_key(reference, args.mixed_precision_name)
    )
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
    measure_reference(folder.parent / "reference", reference, tokenizer, held_out, args)
    written = held_out_answers(policy, tokenizer, held_out, args)
    offline = train.offline_log_odds()
    readouts = {
        "arm": name,
        "seed": args.seed,
        "heldout": heldout_accuracy(margins, held_out).to_json(),
        "votes": vote_accuracy(margins, theta, held_out).to_json(),
        "tokens": mean_tokens(written).to_json(),
        "generated": generated_rates(written, held_out),
        "kl": divergence(policy, reference, written, TEMPERATURE, TOP_P).to_json(),
        "theta": {
            a: {"level": float(theta[:, i].mean()), "offline": offline[i].log_odds}
            for i, a in enumerate(held_out.attribute_names)
        },
    }
    write_json(folder / "readouts.json", readouts)
    write_card(folder)
    progress(f"{folder.name}: done", 1.0)
    return readouts


def measure_reference(folder: Path, reference, tokenizer, held_out: Judgments, args) -> None:
    """The reference's own answers, measured once beside the runs, so that a report can say what has moved."""
    if (folder / "readouts.json").exists():
        return
    written = held_out_answers(reference, tokenizer, held_out, args)
    readouts = {
        "arm": "reference",
        "seed": args.seed,
        "tokens": mean_tokens(written).to_json(),
        "generated": generated_rates(written, held_out),
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "readouts.json", readouts)


def load_trained(folder: Path, recipe):
    """The trained policy; an adapter is put on the model it was trained on."""
    if not (folder / "model" / "adapter_config.json").exists():
        return AutoModelForCausalLM.from_pretrained(folder / "model", dtype=recipe.model.dtype)
    from peft import AutoPeftModelForCausalLM

    return AutoPeftModelForCausalLM.from_pretrained(folder / "model", dtype=recipe.model.dtype)


def held_out_answers(policy, tokenizer, held_out: Judgments, args) -> list[Generation]:
    """One answer of the policy to each of the first held-out prompts, in the order of the table."""
    prompts = held_out.comparisons.drop_duplicates("prompt_id")["prompt"].tolist()[:N_PROMPTS]
    prompt_ids = encode_prompts(prompts, tokenizer, args.encoding, args.max_prompt_length)
    return sample(policy, tokenizer, prompt_ids, MAX_NEW_TOKENS, TEMPERATURE, TOP_P, seed=args.seed)


def generated_rates(written: list[Generation], held_out: Judgments) -> dict:
    """Share, or mean, of every attribute of single responses in the sampled answers.

    An attribute of the pair, such as the length ratio, has no value for one answer: read the tokens instead.
    """
    prompts = held_out.comparisons.drop_duplicates("prompt_id")["prompt"].tolist()[:N_PROMPTS]
    found = {}
    for attribute in held_out.attributes:
        if attribute.scope == "response":
            mean = cluster_mean(attribute_values(attribute, prompts, written))
            found[attribute.name] = {"rate": mean.estimate, "se": mean.se}
    return found
