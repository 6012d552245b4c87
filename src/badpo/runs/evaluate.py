"""Measure a trained run: held-out accuracy, predicted votes, answers, and divergence from the reference."""

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from transformers import PreTrainedModel

from badpo.data.attributes import Text, plain_text
from badpo.data.files import (
    RUN_SEAL,
    locked,
    made_here,
    require_safe_to_read,
    resealed,
    write_json,
)
from badpo.data.judgments import Judgments
from badpo.data.privacy import is_about_single_people
from badpo.data.problems import ConfigError, counted
from badpo.objective.bias import BiasTerm
from badpo.objective.theta import WINDOW, AnchoredFit
from badpo.readouts import heldout, sampled
from badpo.readouts.generation import Decoding, Generation
from badpo.results.formatting import REFERENCE
from badpo.results.run_files import BY_COMMAND
from badpo.runs.run import (
    Progress,
    check_held_out_size,
    checksum_weights,
    read_json,
    read_judgments,
    read_last_step,
    run_folder,
    write_card,
)
from badpo.runs.stage import Stage
from badpo.runs.start import find_reference, load_model, require_undamaged
from badpo.theory import Floats
from badpo.theory.likelihood import judgment_loss, loss_slopes, shared_bias_intervals
from badpo.theory.summaries import sums_by_cluster
from badpo.training.checkpoints import Facts
from badpo.training.encoding import read_template_options
from badpo.training.inputs import (
    build_bias,
    encode_judgments,
    find_revealing_attributes,
    make_start_votes,
)
from badpo.training.model_files import load_adapter
from badpo.training.recipe import NO_SOURCES, RunSources, read_run_recipe

logger = logging.getLogger(__name__)

VERSION = 6  # version of the measurements; if it changes, finished runs are measured again
RUN_VERSION = 1  # version of the measurements that only `evaluate_run` makes
N_PROMPTS = 300
MAX_NEW_TOKENS = 512
N_SHOWN, SHOWN_LETTERS = 3, 600  # number of answers on a report page, and their maximum length


Metrics = Facts  # content of readouts.json, or a part of it


@dataclass(frozen=True)
class PolicyReading:
    """A policy and its measurements so far."""

    stage: Stage
    policy: PreTrainedModel
    seed: int
    written: list[Generation]
    bias: BiasTerm | None = None
    theta: Floats | None = None
    margins: Floats | None = None


# Function that returns further metrics of a policy, given the policy and its measurements so far.
More = Callable[[PolicyReading], Metrics]


def measure(
    folder: Path,
    stage: Stage,
    seed: int,
    bias: BiasTerm | None,
    more: More,
    progress: Progress,
    facts: Sequence[object] = (),
) -> Metrics:
    """Return all metrics of the policy in ``folder/model``; reuse ``readouts.json`` if it describes the same policy.

    If ``bias`` is None, the policy is the reference, whose folder is next to the run folders. ``seed`` is the seed of
    the answers. ``more`` returns further metrics, and ``facts`` contains the JSON values that determine the further
    metrics.
    """
    own = stage.key if bias is None else checksum_weights(folder / "model")
    args, prompts = stage.args, [plain_text(p) for p in stage.prompts]
    content: list[object] = [VERSION, own, stage.key, prompts, asdict(stage.decoding), seed]
    content += [args.encoding, args.max_prompt_length, stage.held_out.fingerprint(), *facts]
    key = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]
    readouts_before = read_json(folder / "readouts.json")
    if readouts_before.get("measured") == key:
        require_undamaged(folder, ["readouts.json"])
        # an interrupted evaluation may leave an outdated model card, or a manifest that lacks readouts.json
        if "readouts.json" not in read_json(folder / RUN_SEAL).get("files", ["readouts.json"]):
            write_readouts(folder, readouts_before)
        elif bias is not None:
            write_card(folder)
        return readouts_before
    what = f"{folder.parent.name}/{folder.name} readouts"
    progress(what, 0.0)
    summary = f"{counted(len(prompts), 'prompt')} answered {'once' if bias is None else 'twice'}"
    summary += f" with at most {stage.decoding.max_new_tokens} tokens"
    if bias is not None:
        summary += f", {counted(stage.judged.n_comparisons, 'held-out comparison')} scored"
    logger.info("%s: %s", what, summary)
    policy = stage.model if bias is None else load_trained(folder, stage).to(args.device)
    written = stage.written if bias is None and seed == 0 else stage.answers(policy, seed)
    progress(what, 0.4)
    found = PolicyReading(stage, policy, seed, written)
    readouts: Metrics = {
        "arm": folder.name.rsplit("-s", 1)[0],
        "seed": seed,
        "measured": key,
        "version": VERSION,
    }
    readouts["tokens"] = sampled.mean_tokens(written)
    readouts["answers"] = _shorten_answers(stage.prompts, written)
    answered = sums_by_cluster(
        sampled.token_counts(written), np.ones(len(written)), sampled.prompt_numbers(written)
    )
    by_prompt = {"tokens": heldout.round_sums(*answered)}
    if bias is not None:
        theta, ratios = align_theta(bias, stage.judged), stage.log_ratios(policy)
        margins = ratios.margins(args.beta)
        tilts, sums = heldout.measure_tilt(margins, stage.judged)
        by_prompt |= sums
        found = replace(found, bias=bias, theta=theta, margins=margins)
        progress(what, 0.6)
        # the divergence concerns the policy's own distribution, so it is measured at temperature 1 and top-p 1
        decoding = replace(stage.decoding, temperature=1.0, top_p=1.0)
        drawn = stage.answers(policy, seed, decoding=decoding)
        readouts |= {
            "tilt": tilts,
            "log_ratio": heldout.log_ratio_per_token(ratios, stage.judged),
            "heldout": heldout.heldout_accuracy(margins, stage.judged),
            "votes": heldout.vote_accuracy(margins, theta, stage.judged),
            "revealing": heldout.find_revealing_figures(stage.judged),
            "kl": sampled.divergence(policy, stage.model, drawn, 1.0, 1.0),
        }
    progress(what, 0.8)
    readouts |= more(found) | {"by_prompt": by_prompt}
    write_readouts(folder, readouts)
    progress(what, 1.0)
    return readouts


def _shorten_answers(prompts: Sequence[Text], written: Sequence[Generation]) -> list[dict[str, str]]:
    """Return the first distinct prompts and their answers, shortened for the report page."""
    answers = {plain_text(p): one.text for p, one in zip(prompts, written, strict=True)}
    shown = islice(answers.items(), N_SHOWN)
    return [{"prompt": p[:SHOWN_LETTERS], "answer": text[:SHOWN_LETTERS]} for p, text in shown]


def write_readouts(folder: Path, readouts: Metrics) -> None:
    """Write ``readouts.json`` and a model card that contains its metrics."""
    with resealed(folder, ["readouts.json"]):
        write_json(folder / "readouts.json", readouts, private=True)  # contains prompts and answers
    if (folder / "bias.json").exists():
        write_card(folder)


def align_theta(bias: BiasTerm, judgments: Judgments) -> Floats:
    """Return theta of every annotator for every attribute of ``judgments``, in log-odds.

    The returned theta is 0 for attributes that the run did not declare, and for runs whose theta is not in log-odds. If
    ``judgments`` lacks an attribute of the run, such as the length in a length penalty, the result contains no column
    for the attribute.
    """
    learned = pd.DataFrame(bias.theta().detach().numpy(), columns=list(bias.attributes))
    known = learned.reindex(columns=list(judgments.attribute_names), fill_value=0.0).to_numpy()
    if not bias.extra.get("theta_in_log_odds", True):
        known = np.zeros_like(known)
    return heldout.align_theta(judgments, list(bias.annotators), known)


def evaluate_run(
    folder: Path,
    progress: Progress,
    sources: RunSources = NO_SOURCES,
    reported: set[str] | None = None,
) -> Metrics:
    """Measure a finished run on its held-out judgments; write and return ``readouts.json``.

    The policy answers at most 300 held-out prompts with at most 512 tokens, at temperature 0.7 and top-p 0.9. Held-out
    comparisons that exceed ``max_length`` are excluded and counted. Unless the run was made on another machine, the
    function also measures the reference and writes the results to a folder next to the run. ``reported`` contains
    warnings about other runs; the function does not repeat them, and adds its own.

    `ConfigError` means that the folder contains a damaged file or no finished run, that nothing was held out, that the
    reference is missing, or that ``sources`` lacks a model or a table for a run from another machine. `DataError` means
    that the table cannot be read, or that every held-out comparison exceeds ``max_length``.
    """
    stage = prepare_stage(folder, sources)
    stage.reported = set() if reported is None else reported
    if stage.held_out.n_votes == 0:
        raise ConfigError(
            f"the run {folder} held no judgments out; set held_out to a share such as 0.1 and train again"
        )
    for finding in check_held_out_size(stage.recipe, stage.train, stage.held_out):
        stage.warn(str(finding))
    if stage.recipe.data.held_out_name == stage.recipe.data.dataset_name:
        stage.warn(
            f"{folder}: the script had no eval_dataset, so the run is measured on its training votes; on "
            "held-out votes, accuracies and tilts may be smaller"
        )
    progress(f"{folder.name}: loading", 0.0)
    comparisons = stage.judged.comparisons.drop_duplicates("prompt_id")[:N_PROMPTS]
    stage.prompts, stage.given = tuple(comparisons["prompt"]), read_template_options(comparisons)
    bias = BiasTerm.load(folder)
    if sources.trusted or made_here(folder):
        reference = folder.parent / REFERENCE
        require_safe_to_read(reference)
        with locked(reference, wait=True):
            measure(reference, stage, stage.args.seed, None, _measure_answers, progress)
    run = {
        # the recipe determines the name of the arm, because a script may choose any name for its run folder
        "arm": run_folder(stage.recipe).name.rpartition("-s")[0],
        "training": {
            "learning_rate": stage.args.learning_rate,
            "steps": read_last_step(folder).get("step"),
        },
    }
    facts = [RUN_VERSION, run]
    return measure(
        folder,
        stage,
        stage.args.seed,
        bias,
        lambda found: _measure_answers(found) | run,
        progress,
        facts,
    )


def _measure_answers(found: PolicyReading) -> Metrics:
    """Return the attribute rates in a policy's answers and, unless the policy is the reference, the means of theta.

    A single answer has no value for an attribute of response pairs, such as the length ratio. If the length ratio is
    declared, reports compare the token counts of the answers.
    """
    prompts, rates = [plain_text(prompt) for prompt in found.stage.prompts], {}
    for attribute in found.stage.held_out.attributes:
        if attribute.scope == "response":
            values = sampled.attribute_values(attribute, prompts, found.written)
            rates[attribute.name] = sampled.rate_figures(values, not attribute.continuous)
    if found.bias is None:
        return {"generated": rates}
    return {"generated": rates, "theta": _average_theta(found, found.bias)}


def implied_theta(found: PolicyReading, bias: BiasTerm) -> dict[str, sampled.Figures]:
    """Return the mean theta that the training votes imply for the final policy, with its confidence interval.

    The implied theta is the theta that the anchored fit (`badpo.objective.theta.AnchoredFit`) would set after the last
    step. The growth of theta since the start of training is estimated from up to 1,024 evenly spaced votes. The
    confidence interval is as wide as the interval for the initial theta, which is fitted to all votes. The result is
    empty if the run learned no theta in log-odds.
    """
    if not bias.parts or not bias.extra.get("theta_in_log_odds", True):
        return {}
    stage, train = found.stage, found.stage.train
    some = train.take(np.unique(np.linspace(0, train.n_votes - 1, WINDOW).round().astype(int)))
    some, _, _ = encode_judgments(some, stage.tokenizer, stage.args)
    u = stage.margins(found.policy, some)[some.votes["comparison"]]
    term = build_bias(train, str(bias.extra["variant"]), "zero", bias.gold_annotators)
    votes = make_start_votes(train)
    rule = AnchoredFit(term, judgment_loss, votes)
    logits = (rule.start[votes.annotator] * votes.delta).sum(dim=1)
    rule.fit_to(replace(make_start_votes(some), margin=torch.from_numpy(u)))
    slopes, means = loss_slopes(judgment_loss, votes.sign), term.theta().mean(dim=0).tolist()
    prompts = train.prompt_of_votes()
    intervals = shared_bias_intervals(slopes, votes.delta, logits, votes.weight, means, prompts)
    each = zip(train.attribute_names, intervals, strict=True)
    return {
        name: sampled.figures(implied=one.estimate, low=one.low, high=one.high) for name, one in each
    }


def _average_theta(found: PolicyReading, bias: BiasTerm) -> dict[str, sampled.Figures]:
    """For each attribute, return the mean of theta, the implied mean of theta, and the log-odds of the votes.

    All values are rounded to two decimal places, so that they do not reveal an individual vote. No values are reported
    if theta was learned for fewer than five annotators or if an attribute's theta depends on too few people.
    """
    train = found.stage.train
    if is_about_single_people(bias.learned_annotators):
        return {name: {} for name in train.attribute_names}
    revealing = find_revealing_attributes(train, bias)
    level = dict(zip(bias.attributes, bias.theta().mean(dim=0).tolist(), strict=True))
    implied, known = implied_theta(found, bias), {}
    for name, votes in zip(train.attribute_names, train.offline_log_odds(), strict=True):
        low, high = votes.interval()
        offline = {"offline": votes.log_odds, "offline_low": low, "offline_high": high}
        figures = {"level": level[name], **offline, **implied.get(name, {})}
        known[name] = {} if name in revealing else figures
    return {
        name: {key: None if value is None else round(value, 2) for key, value in of.items()}
        for name, of in known.items()
    }


def prepare_stage(folder: Path, sources: RunSources) -> Stage:
    """Check a finished run and its initial model for damage, and return the inputs for measuring the run."""
    if not (folder / "model").exists() or not (folder / "config.yaml").exists():
        missing = "has no finished run, which would consist of a folder model and a file config.yaml"
        raise ConfigError(f"{folder} {missing}. {BY_COMMAND}")
    require_safe_to_read(folder)
    require_undamaged(folder)
    recipe = read_run_recipe(folder, sources)
    started_from = Path(recipe.model.model_name_or_path).parent
    if (started_from / RUN_SEAL).exists():
        require_safe_to_read(started_from)
        require_undamaged(started_from)
    train, held_out = read_judgments(recipe)
    start: Path | str | None = recipe.model.model_name_or_path
    if recipe.reference.sft:
        start = find_reference(recipe, train, recipe.arguments(output_dir=str(folder)))
    if start is None:
        raise ConfigError(
            f"{Path(recipe.output_dir) / 'reference'} has no model, but the evaluation compares the run with the "
            "reference in this folder; restore the reference model, or train the run again"
        )
    return Stage(recipe, train, held_out, str(start), (), Decoding(MAX_NEW_TOKENS))


def load_trained(folder: Path, stage: Stage) -> PreTrainedModel:
    """Load the trained policy of a run; if it is an adapter, add it to the reference."""
    if not (folder / "model" / "adapter_config.json").exists():
        return load_model(str(folder / "model"), stage.recipe.model)[0]
    return load_adapter(load_model(stage.start, stage.recipe.model)[0], folder / "model")
