"""One run on a user's own votes: from a recipe to a run folder, and from a run folder to its readouts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainingArguments

from badpo.data.attributes import attribute_from_config, plain_text
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError, Problem
from badpo.results.model_card import model_card
from badpo.training.encoding import encode_responses
from badpo.training.recipe import Recipe
from badpo.training.run_folder import environment, write_atomically, write_json
from badpo.training.supervised import SupervisedTrainer
from badpo.training.trainer import BADPOTrainer

BYTES_PER_TRAINED_PARAMETER = 16  # fp32 weight, gradient and two Adam moments
BYTES_PER_LAYER_ACTIVATION = (
    34  # per token and hidden unit of a decoder layer, in bf16, without checkpointing
)


@dataclass(frozen=True)
class Plan:
    """What a run would do, before it does it.

    Attributes
    ----------
    run_folder : str
    n_judgments, n_comparisons, n_annotators, n_held_out : int
    n_steps : int
        Optimizer steps.
    n_bias_parameters : int
    n_trained, n_parameters : int
        Weights that are trained, and all weights of the policy.
    memory_gib : float
        Estimated peak on the device: weights, gradients, moments and the activations of the largest micro-batch.
    self_test : float
        Largest relative difference, over the longest comparison, between the scoring forward and the model's
        own forward with theta at zero. About 1e-6 in fp32.
    findings : tuple of Problem
    """

    run_folder: str
    n_judgments: int
    n_comparisons: int
    n_annotators: int
    n_held_out: int
    n_steps: int
    n_bias_parameters: int
    n_trained: int
    n_parameters: int
    memory_gib: float
    self_test: float
    findings: tuple[Problem, ...]

    def lines(self) -> list[str]:
        """The plan for people, one fact per line."""
        return [
            f"run         {self.run_folder}",
            f"judgments   {self.n_judgments:,} on {self.n_comparisons:,} comparisons by {self.n_annotators:,} "
            f"annotators; {self.n_held_out:,} judgments held out",
            f"steps       {self.n_steps:,}",
            f"policy      {self.n_trained:,} of {self.n_parameters:,} weights trained",
            f"bias        {self.n_bias_parameters:,} numbers with their own Adam",
            "anchor      the reference: theta starts at 0, and the policy keeps the reference's attribute rate",
            f"memory      about {self.memory_gib:.1f} GiB at the peak",
            f"self-test   theta = 0 against the plain forward: relative difference {self.self_test:.1e}",
            *(str(finding) for finding in self.findings),
        ]


def arm_name(bias: str, warm_start: str) -> str:
    """The arm's name in folder names and tables: ``dpo`` without a bias term, else the variant.

    Examples
    --------
    >>> arm_name("none", "zero"), arm_name("pooled", "offline")
    ('dpo', 'pooled_warm')
    """
    return {"none": "dpo"}.get(bias, bias) + ("_warm" if warm_start == "offline" else "")


def plan_run(recipe: Recipe) -> Plan:
    """Everything a run would start with: data read, tokens counted, memory estimated, forward tested."""
    trainer, held_out = make_trainer(recipe)
    steps_per_epoch = len(trainer.get_train_dataloader()) // trainer.args.gradient_accumulation_steps
    return Plan(
        str(trainer.run_folder),
        trainer.judgments.n_votes,
        trainer.judgments.n_comparisons,
        trainer.judgments.n_annotators,
        held_out.n_votes,
        trainer.args.max_steps
        if trainer.args.max_steps > 0
        else round(trainer.args.num_train_epochs * steps_per_epoch),
        sum(p.numel() for p in trainer.bias.parameters()),
        sum(p.numel() for p in trainer.model.parameters() if p.requires_grad),
        sum(p.numel() for p in trainer.model.parameters()),
        memory_estimate(trainer) / 2**30,
        trainer.self_test(),
        tuple(trainer.findings),
    )


def train_run(recipe: Recipe, resume: bool = False) -> Path:
    """Train as a recipe says and write the run folder; return it.

    Parameters
    ----------
    recipe : Recipe
    resume : bool
        Continue from the newest whole checkpoint of the same run folder.

    Raises
    ------
    ConfigError
        The folder holds a finished run, or there is nothing to resume.
    """
    trainer, _ = make_trainer(recipe)
    folder = trainer.run_folder
    if (folder / "model").exists():
        raise ConfigError(f"{folder} holds a finished run; remove it or choose another output_dir")
    write_atomically(folder / "config.yaml", yaml.safe_dump(_plain(recipe.keys), sort_keys=False).encode())
    write_json(
        folder / "environment.json", environment(command=f"badpo train --config {folder / 'config.yaml'}")
    )
    trainer.train(resume_from_checkpoint=resume or None)
    trainer.save_model()
    write_card(folder)
    return folder


def write_card(folder: Path) -> None:
    """Write the model card of a run into its ``model`` folder, with the readouts that are there."""
    write_atomically(folder / "model" / "README.md", model_card(folder).encode())


def make_trainer(recipe: Recipe) -> tuple[BADPOTrainer, Judgments]:
    """The trainer of a recipe and the held-out judgments."""
    train, held_out = read_judgments(recipe)
    training = recipe.training
    name = arm_name(training["bias"], training["warm_start"])
    folder = Path(recipe.output_dir) / f"{name}-s{training.get('seed', 42)}"
    args = recipe.arguments(output_dir=str(folder))
    model, tokenizer = load_policy(recipe, train, args)
    trainer = BADPOTrainer(
        model,
        args=args,
        train_dataset=train,
        eval_dataset=held_out if held_out.n_votes else None,
        processing_class=tokenizer,
        peft_config=recipe.model.peft_config(),
    )
    return trainer, held_out


def read_judgments(recipe: Recipe) -> tuple[Judgments, Judgments]:
    """The training judgments and the held-out ones of a recipe, split by prompt."""
    data = recipe.data
    judgments = data.read([attribute_from_config(dict(config)) for config in recipe.attributes])
    return judgments.split(data.held_out, data.split_seed)


def load_policy(recipe: Recipe, train: Judgments, args):
    """The start policy and its tokenizer; after the supervised stage where the recipe asks for one.

    The supervised reference is kept in ``output_dir/reference`` and shared by every arm and seed of it.
    """
    name = recipe.model.model_name_or_path
    kept = Path(recipe.output_dir) / "reference" / "model"
    if recipe.reference.sft and kept.exists():
        name = str(kept)
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=recipe.model.trust_remote_code)
        model = AutoModelForCausalLM.from_pretrained(name, **recipe.model.init_kwargs)
    except OSError as error:
        raise ConfigError(
            f'cannot load "{name}": it is neither a folder with a model nor reachable on the Hub. '
            f"Download it once with network, or give a local folder ({str(error).splitlines()[0]})"
        ) from error
    if recipe.reference.sft and not kept.exists():
        model = fit_reference(model, tokenizer, recipe, train, args, kept)
    return model, tokenizer


def fit_reference(model, tokenizer, recipe: Recipe, train: Judgments, args, folder: Path):
    """Fine-tune on the majority-chosen response of every comparison, and keep the result in ``folder``."""
    from peft import get_peft_model

    pairs = encode_responses(
        list(train.comparisons["prompt"]),
        majority_responses(train),
        tokenizer,
        args.encoding,
        args.max_length,
        args.max_prompt_length,
    )
    peft_config = recipe.model.peft_config()
    policy = model if peft_config is None else get_peft_model(model, peft_config)
    SupervisedTrainer(policy, supervised_arguments(args, recipe.reference, folder.parent), pairs).train()
    policy = policy if peft_config is None else policy.merge_and_unload()
    policy.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=model.dtype)


def supervised_arguments(args, block, folder: Path) -> TrainingArguments:
    """The supervised stage's arguments: the preference stage's batches and precision, its own rate and length."""
    return TrainingArguments(
        output_dir=str(folder / "checkpoints"),
        per_device_train_batch_size=args.per_device_train_batch_size,
        gradient_accumulation_steps=args.gradient_accumulation_steps,
        learning_rate=block.learning_rate,
        num_train_epochs=block.num_train_epochs,
        lr_scheduler_type=args.lr_scheduler_type,
        warmup_steps=0.1,
        max_grad_norm=args.max_grad_norm,
        bf16=args.bf16,
        use_cpu=args.use_cpu,
        remove_unused_columns=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=args.disable_tqdm,
        seed=0,
    )


def majority_responses(judgments: Judgments) -> list[str]:
    """Text of the response that most annotators chose, per comparison; a tie goes to the earliest vote."""
    side = np.where(judgments.majority() > 0, "response_a", "response_b")
    frame = judgments.comparisons
    return [plain_text(frame[name].iloc[i]) for i, name in enumerate(side)]


def memory_estimate(trainer: BADPOTrainer) -> float:
    """Bytes at the peak of training: weights, gradients, moments, activations and one chunk of logits."""
    config = trainer.model.config
    trained = sum(p.numel() for p in trainer.model.parameters() if p.requires_grad)
    frozen = sum(p.numel() * p.element_size() for p in trainer.model.parameters() if not p.requires_grad)
    largest = int(np.sort(trainer.encoded.n_tokens)[-trainer.args.per_device_train_batch_size :].sum())
    layers = 1 if trainer.args.gradient_checkpointing else config.num_hidden_layers
    return (
        trained * BYTES_PER_TRAINED_PARAMETER
        + frozen
        + largest * config.hidden_size * (BYTES_PER_LAYER_ACTIVATION * layers + 4 * config.num_hidden_layers)
        + 8 * 2**22
    )


def _plain(value):
    return json.loads(json.dumps(value, default=str))
