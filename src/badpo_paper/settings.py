"""Define the scales at which suites are run: corpora, models and recipes, from a short demo to the authors' settings.

The settings of a scale are keys of recipes (`badpo.training.recipe`), so the runs of a suite are ordinary badpo runs.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
)

from badpo.readouts.generation import Decoding
from badpo.training.recipe import Keys
from badpo.training.trl_keys import PRESETS
from badpo_paper import datasets
from badpo_paper.suites import Corpus, Row

PAD, EOS, USER, ASSISTANT, SYSTEM = (
    f"<|{name}|>" for name in ("pad", "end", "user", "assistant", "system")
)
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ '<|assistant|>' + message['content'] + '<|end|>' }}"
    "{% elif message['role'] == 'system' %}{{ '<|system|>' + message['content'] }}"
    "{% else %}{{ '<|user|>' + message['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
# Pattern for splitting texts before tokenization: words, numbers, punctuation, line breaks, and other spaces.
_PIECES = r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\n+|[^\S\n]+"


def build_tokenizer(texts: Iterable[str], vocab_size: int = 1536) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer with a chat template; it depends only on the texts and their order.

    The chat template writes ``<|user|>question<|assistant|>answer<|end|>``. The end-of-sequence token is ``<|end|>``,
    and padding has a separate token. The tokenizer adds no special tokens to a text.
    """
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, EOS, USER, ASSISTANT, SYSTEM],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=EOS,
        additional_special_tokens=[USER, ASSISTANT, SYSTEM],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=512,
    )


def build_model(
    tokenizer: PreTrainedTokenizerFast,
    seed: int,
    *,
    hidden_size: int = 96,
    n_layers: int = 3,
    n_heads: int = 3,
    intermediate_size: int = 256,
    sliding_window: int = 0,
) -> LlamaForCausalLM | MistralForCausalLM:
    """Build a model with random fp32 weights: a Llama or, if ``sliding_window`` is given, a Mistral.

    The default model has about 0.44 million parameters. The model has half as many key-value heads as query heads, tied
    input and output embeddings, and a context window of 512 tokens. The weights are initialized with a standard
    deviation of 0.05. With this standard deviation and the default width, the rows of a weight matrix have a norm near
    one, so training is much faster than with the usual standard deviation of 0.02.
    """
    shape = {
        "vocab_size": len(tokenizer),
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": n_layers,
        "num_attention_heads": n_heads,
        "num_key_value_heads": max(1, n_heads // 2),
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": None,
        "attention_dropout": 0.0,
        "initializer_range": 0.05,
        "dtype": "float32",
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if sliding_window:
            config = MistralConfig(**shape, sliding_window=sliding_window)
            return MistralForCausalLM(config).float().eval()
        return LlamaForCausalLM(LlamaConfig(**shape)).float().eval()


def build_start(
    texts: Iterable[str], vocab_size: int = 1536, **shape: int
) -> tuple[LlamaForCausalLM | MistralForCausalLM, PreTrainedTokenizerFast]:
    """Train a tokenizer on the texts, and build a start model with the arguments of `build_model`."""
    tokenizer = build_tokenizer(texts, vocab_size=vocab_size)
    return build_model(tokenizer, seed=0, **shape), tokenizer


# -- recipes -----------------------------------------------------------------------------------------------------------

# Shape of the demo's model, which has 0.18 million parameters.
DEMO_SHAPE = {"hidden_size": 64, "n_layers": 2, "n_heads": 2, "intermediate_size": 160}

# Recipe keys of all runs at all scales.
ALWAYS = {
    "encoding": "paper",
    "lr_scheduler_type": "cosine",
    "save_strategy": "steps",
    "save_total_limit": 1,
    "report_to": "none",
    "disable_tqdm": True,
}
# The number of steps, the batch size, the warm-up and theta's learning rate are the paper's.
# The learning rate of the policy follows a rule in docs/reproduce.md.
# Each step uses all four votes on each of its comparisons, so the step costs half as much.
TINY: Keys = {
    **ALWAYS,
    "beta": 0.1,
    "max_length": 192,
    "max_prompt_length": 96,
    "batching": "grouped",
    "per_device_train_batch_size": 32,
    "max_steps": 1000,
    "warmup_steps": 0.1,
    "learning_rate": 5e-5,
    "bias": {"fit": "adam"},
    "gradient_checkpointing": False,
    "reference": {
        "sft": True,
        "max_steps": 400,
        "per_device_train_batch_size": 32,
        "learning_rate": 3e-3,
    },
}
# The demo trains on each vote once, and fits theta as `badpo train` does by default.
# In the demo's 200 steps, Adam with the paper's learning rate could not reach the planted theta.
# As at the scale ``tiny``, the learning rate of the policy follows a rule in docs/reproduce.md.
DEMO = {
    **TINY,
    "per_device_train_batch_size": 64,
    "max_steps": 200,
    "learning_rate": 2e-4,
    "bias": {},
    "reference": {**TINY["reference"], "max_steps": 300, "learning_rate": 6e-3},
}
# The paper's training settings for each model (Table `tab:hyperparams`).
PAPER = {
    model: {**PRESETS[preset], **ALWAYS, "gradient_checkpointing": True}
    for model, preset in (
        ("small", "paper-0.5b"),
        ("large", "paper-8b-lora"),
        ("other", "paper-7b-lora"),
    )
}


# eq=False: a scale contains functions and mappings, so it is hashed by identity
@dataclass(frozen=True, eq=False)
class Scale:
    """A scale at which suites are run: its corpora, models and recipes.

    Attributes
    ----------
    name : str
    dataset : function of (Corpus, a local file of its rows or None) giving `Dataset`
    keys : mapping of a corpus's model to keys of a recipe
        Recipe of each model of the scale, except the folders, the votes and the arm. If the recipe does not give the
        reference's number of steps, the reference is trained for one epoch.
    shapes : mapping of a corpus's model to arguments of `build_start`
        Shapes of the start models that are built from scratch. The recipe keys name the other start models.
    decoding : Decoding
        Sampling settings of the measured answers.
    judge : str or None
        The reward model that scores answers.
    single_seed_arms : tuple of str
        Arms that run at the first seed only.
    control_seeds : {"first", "all"}
        Seeds for the rows that the paper ran at one seed only.
    scales_penalty : bool
        Whether a per-token penalty is multiplied by the ratio of the paper's answer length to this scale's answer
        length.
    fresh_prompts : function of a local file or None, or None
        Returns questions that are neither training prompts nor evaluation prompts. Anchoring trains on a policy's
        answers to these questions.
    lora_dtype : str
        Precision of the base weights if a LoRA adapter is added to a fully fine-tuned reference.
    stand_in : str
        Sentence about the model that replaces the paper's model; empty if the paper's model is trained.
    model_title : str
        Name of the replacing model in the titles of tables.
    command : str
        Command that reproduces the runs.
    is_brief : bool
        Whether the readouts of names contain only the rates and the sampled signatures.
    """

    name: str
    dataset: Callable[[Corpus, Path | None], datasets.Dataset]
    keys: Mapping[str, Keys]
    shapes: Mapping[str, Keys] = field(default_factory=dict)
    decoding: Decoding = field(default_factory=Decoding)
    judge: str | None = None
    single_seed_arms: tuple[str, ...] = ()
    control_seeds: Literal["first", "all"] = "first"
    scales_penalty: bool = False
    fresh_prompts: Callable[[Path | None], tuple[str, ...]] | None = None
    lora_dtype: str = "float32"
    stand_in: str = ""
    model_title: str = ""
    command: str = "badpo reproduce"
    is_brief: bool = False

    def has_corpus(self, corpus: Corpus) -> bool:
        """Return whether this scale defines a model for the corpus."""
        return corpus.model in self.keys

    def select_seeds(self, row: Row, seeds: Sequence[int]) -> tuple[int, ...]:
        """Select the seeds at which the runs of a table row are trained."""
        is_control = row.seeds == "first" and self.control_seeds == "first"
        is_single = is_control or row.seeds == "one" or row.condition.arm in self.single_seed_arms
        return tuple(seeds[:1] if is_single else seeds)


_TINY = Scale(
    "tiny",
    datasets.make_bundled_dataset,
    keys=dict.fromkeys(("small", "other"), TINY),
    shapes={"small": {}, "other": {"vocab_size": 1024, "sliding_window": 256}},
    decoding=Decoding(max_new_tokens=128),
    single_seed_arms=("em_dpo",),
    control_seeds="all",
    scales_penalty=True,
    fresh_prompts=datasets.make_fresh_prompts,
    stand_in="The model of these runs has 0.4 million weights and was trained from scratch on the texts of these "
    "votes. Compare the order of the arms with the paper, not the numbers.",
    model_title="A model of 0.4 million weights",
)
_DEMO = Scale(
    "demo",
    datasets.make_demo_dataset,
    keys={"demo": DEMO},
    shapes={"demo": DEMO_SHAPE},
    decoding=Decoding(max_new_tokens=96),
    command="badpo demo",
    is_brief=True,
)
_PAPER = Scale(
    "paper",
    datasets.load_public_dataset,
    keys=PAPER,
    judge="Skywork/Skywork-Reward-V2-Qwen3-1.7B",
    fresh_prompts=datasets.load_fresh_prompts,
    lora_dtype="bfloat16",
)
SCALES = {scale.name: scale for scale in (_TINY, _DEMO, _PAPER)}
# Scales of `badpo reproduce`.
SUITE_SCALES = ("tiny", "paper")
