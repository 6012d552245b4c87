"""Prepare the runs on a corpus: the shared votes, start model and reference, and the recipe and votes of each arm."""

from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from badpo.data.attributes import Attribute, plain_text
from badpo.data.judgments import Judgments
from badpo.objective.bias import VARIANTS, BiasTerm
from badpo.readouts.name_rates import signature_contexts
from badpo.readouts.names import resign
from badpo.runs.run import Prepared, Progress, Ticker
from badpo.runs.stage import Stage
from badpo.runs.start import choose_majority_responses, find_reference, load_policy
from badpo.training.checkpoints import whole_folder
from badpo.training.encoding import encode_responses
from badpo.training.recipe import Keys, Recipe, read_recipe
from badpo_paper.corpora.public import require_unseen
from badpo_paper.datasets import Dataset
from badpo_paper.settings import Scale, build_start
from badpo_paper.suites import Arm, Condition, Corpus, Settings


@dataclass(eq=False, kw_only=True)
class CorpusStage(Stage):
    """The inputs that all runs on one corpus share.

    ``folder`` contains the runs. ``data`` is a local file with the rows of a public corpus. ``keys`` are the keys of
    the recipe of a run, which starts from the reference. ``reference`` is the recipe that trains the reference.
    """

    corpus: Corpus
    scale: Scale
    folder: Path
    data: Path | None
    dataset: Dataset
    keys: Keys
    reference: Recipe

    @cached_property
    def contexts(self) -> list[list[int]]:
        """Token ids of the reference's answers, up to the position where the first name of a signature begins."""
        return signature_contexts(self.written, self.tokenizer)

    @property
    def responses(self) -> list[str] | None:
        """Responses on which the reference is trained, one per comparison; None if these are the majority winners.

        In a signed corpus, the responses get new signatures, drawn uniformly from four groups of names (gender by
        race). With the new signatures, the reference is balanced, so only preference training can introduce a bias.
        """
        return (
            resign(choose_majority_responses(self.train), seed=0)
            if self.corpus.kind == "signed"
            else None
        )

    def find_reference(self) -> Path | None:
        """Return the folder of the trained reference, or None if the reference was not trained.

        If the folder contains a reference trained with other votes or settings, the method raises an error.
        """
        return find_reference(self.reference, self.train, self.reference.arguments(), self.responses)


def prepare_stage(corpus: Corpus, scale: Scale, data: Path | None, folder: Path) -> CorpusStage:
    """Prepare the inputs that all runs on a corpus share; do not train the reference yet. The function writes no files.

    Raises
    ------
    DataError
        If an evaluation prompt is also a training prompt.
    """
    dataset, keys = scale.dataset(corpus, data), scale.keys[corpus.model]
    train, held_out = dataset.split()
    training_prompts = set(map(plain_text, train.comparisons["prompt"]))
    require_unseen(dataset.prompts, training_prompts, "evaluation prompts")
    batch = keys["per_device_train_batch_size"] * keys.get("gradient_accumulation_steps", 1)
    shared = {
        "model_name_or_path": str(folder / "start"),
        **keys,
        "dataset_name": str(folder / "votes.parquet"),
        "output_dir": str(folder),
        "reference_cache": str(folder / "reference" / "cache"),
        "attributes": [dict(attribute.config) for attribute in dataset.judgments.attributes],
        "held_out": dataset.held_out,
        "reference": {"max_steps": train.n_comparisons // batch, **keys["reference"]},
    }
    start = str(folder / "reference" / "model")
    run_keys = {name: value for name, value in shared.items() if name != "reference"}
    run_keys["model_name_or_path"] = start
    return CorpusStage(
        read_recipe(overrides=run_keys),
        train,
        held_out,
        start,
        dataset.prompts,
        scale.decoding,
        corpus=corpus,
        scale=scale,
        folder=folder,
        data=data,
        dataset=dataset,
        keys=run_keys,
        reference=read_recipe(overrides=shared),
    )


def open_stage(
    corpus: Corpus, scale: Scale, data: Path | None, folder: Path, progress: Progress
) -> CorpusStage:
    """Prepare the inputs that all runs on a corpus share; train the reference if ``folder`` does not contain one."""
    stage = prepare_stage(corpus, scale, data, folder)
    has_reference = stage.find_reference() is not None
    if not has_reference:
        if corpus.model in scale.shapes:
            with whole_folder(folder / "start") as unfinished:
                for part in build_start(stage.dataset.texts, **scale.shapes[corpus.model]):
                    part.save_pretrained(unfinished)
        args, callbacks = stage.reference.arguments(), [Ticker("reference", progress)]
        load_policy(stage.reference, stage.train, args, stage.responses, callbacks)
    # The function writes the votes after it trains the reference, so no files remain if the model cannot be loaded.
    if not (has_reference and (folder / "votes.parquet").exists()):
        stage.dataset.judgments.to_parquet(folder / "votes.parquet")
    return stage


def select_attribute(judgments: Judgments, name: str) -> Judgments:
    """Return the judgments with only the attribute ``name``, or with all attributes if ``name`` is empty."""
    if not name:
        return judgments
    column = judgments.attribute_names.index(name)
    selected = slice(column, column + 1)
    return replace(
        judgments, attributes=judgments.attributes[selected], delta=judgments.delta[:, selected]
    )


# Mean number of tokens in the answers of the paper's reference (Table `tab:multipref`).
PAPER_TOKENS = 288.6
# The facts about a run omit these fields of an arm; the run's recipe already contains them.
IN_RECIPE = {"bias", "warm_start"}

# -- recipes ----------------------------------------------------------------------------------------------------------


def make_run_recipe(condition: Condition, arm: Arm, seed: int, stage: CorpusStage) -> Recipe:
    """Make the recipe of a run from the stage's keys, the arm's bias term, and the condition's overrides."""
    changed = dict(condition.overrides)
    keys = {
        **stage.keys,
        "attributes": [
            dict(a.config) for a in select_attribute(stage.train, condition.declared).attributes
        ],
        "bias": {
            **stage.keys["bias"],
            "variant": arm.bias or "none",
            "warm_start": arm.warm_start,
            "gold_annotators": [],  # finished runs of earlier versions have this setting too
        },
        "learning_rate": stage.keys["learning_rate"] * condition.rate_factor,
        "seed": seed,
    }
    if arm.objective not in ("votes", "types"):
        keys["objective"] = {"name": arm.objective, **arm.settings}
    if changed.get("use_peft"):
        keys["dtype"] = stage.scale.lora_dtype
    return add_checkpoints(read_recipe(overrides={**keys, **changed}))


def add_checkpoints(recipe: Recipe) -> Recipe:
    """Make a recipe save four checkpoints, evenly spaced over the training steps."""
    steps = {"save_steps": max(1, recipe.training["max_steps"] // 4)}
    return replace(recipe, training=recipe.training | steps, keys=recipe.keys | steps)


def prepare_run(condition: Condition, arm: Arm, recipe: Recipe, stage: CorpusStage) -> Prepared:
    """Prepare the judgments and the bias term of a run, and collect facts about the run that are not in its recipe."""
    args = recipe.arguments()
    limits = (args.max_length, args.max_prompt_length)
    votes = stage.train if arm.votes == "given" else stage.dataset.split_placebo()
    judgments = select_arm_judgments(
        arm, select_attribute(votes, condition.declared), args.seed, stage.tokenizer, *limits
    )
    return Prepared(judgments, make_arm_bias(arm, judgments), facts=collect_method_facts(arm))


def collect_method_facts(arm: Arm) -> dict[str, str | float | Settings | None]:
    """Collect the settings of an arm that differ from the defaults and are missing in the run's recipe."""
    # a recipe cannot contain the objective of EM-DPO
    in_recipe = IN_RECIPE if arm.objective == "types" else IN_RECIPE | {"objective", "settings"}
    defaults = asdict(Arm(bias=None))
    return {
        name: value
        for name, value in asdict(arm).items()
        if name not in in_recipe and value != defaults[name]
    }


def adjust_arm(arm: Arm, stage: CorpusStage) -> Arm:
    """Adjust an arm to a stage.

    If the answers at a scale are shorter than the paper's answers, a per-token penalty is increased so that it has the
    same effect as in the paper. If people cast the votes, the placebo is trained with an objective that cancels the
    votes' bias.
    """
    if arm.votes == "unbiased" and stage.dataset.placebo is None:
        return replace(arm, votes="given", objective="placebo")
    if not stage.scale.scales_penalty or not arm.fixed:
        return arm
    return replace(arm, fixed=arm.fixed * compute_penalty_factor(stage))


def compute_penalty_factor(stage: CorpusStage) -> float:
    """Return the paper's mean answer length divided by the mean length of the reference's training responses."""
    prompts = list(map(plain_text, stage.train.comparisons["prompt"]))
    limits = (stage.args.max_length, stage.args.max_prompt_length)
    pairs = encode_responses(
        prompts, choose_majority_responses(stage.train), stage.tokenizer, "paper", *limits
    )
    return round(PAPER_TOKENS / float(np.mean([len(response) for _, response in pairs])), 2)


# -- judgments of an arm ----------------------------------------------------------------------------------------------


def select_arm_judgments(
    arm: Arm,
    judgments: Judgments,
    seed: int,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int | None,
    max_prompt_length: int | None,
) -> Judgments:
    """Select the training judgments of an arm, with its declared attributes and its true or shuffled annotator ids."""
    if arm.declared == "first":
        judgments = select_attribute(judgments, judgments.attribute_names[0])
    if arm.declared == "length_tokens":
        length = make_token_attribute(tokenizer, max_length, max_prompt_length)
        judgments = judgments.with_attributes([length])
    if arm.identities == "shuffled":
        annotator = np.random.default_rng(seed).integers(judgments.n_annotators, size=judgments.n_votes)
        judgments = replace(judgments, votes=judgments.votes.assign(annotator=annotator))
    return judgments


def make_arm_bias(arm: Arm, judgments: Judgments) -> BiasTerm | None:
    """Return the bias term of an arm with a fixed part of theta; for any other arm, return None."""
    if not arm.fixed:
        return None
    return BiasTerm(
        judgments.attribute_names,
        judgments.annotators["pseudonym"].tolist(),
        VARIANTS[arm.bias or "none"],
        fixed=torch.full((judgments.n_attributes,), arm.fixed),
    )


def make_token_attribute(
    tokenizer: PreTrainedTokenizerBase, max_length: int | None, max_prompt_length: int | None
) -> Attribute:
    """Make an attribute that counts the tokens of a response as training encodes it.

    Responses are truncated by the paper's encoding, and the number of tokens includes the end-of-text token.
    """
    limits = {"max_length": max_length, "max_prompt_length": max_prompt_length}

    def measure(prompt: str, response: str) -> float:
        pairs = encode_responses([prompt], [response], tokenizer, "paper", **limits)
        # a prompt that leaves no room for a response is not used in training
        return float(len(pairs[0][1])) if pairs else 0.0

    config = {"type": "length_tokens", **limits}
    return Attribute("length_tokens", "response", measure, continuous=True, config=config)
