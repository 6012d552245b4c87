"""The scales: which corpora, models and recipes the suites run on, from a newcomer's minutes to what the authors ran.

The settings of a scale are keys of a recipe (`badpo.training.recipe`), so that a suite's run is a run like any other.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

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
from badpo.training.trl_keys import PRESETS
from badpo_paper.datasets import (
    Dataset,
    bundled_fresh,
    bundled_votes,
    demo_votes,
    public_fresh,
    public_votes,
)
from badpo_paper.suites import Corpus, Row

PAD, EOS, USER, ASSISTANT, SYSTEM = (
    "<|pad|>",
    "<|end|>",
    "<|user|>",
    "<|assistant|>",
    "<|system|>",
)
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ '<|assistant|>' + message['content'] + '<|end|>' }}"
    "{% elif message['role'] == 'system' %}{{ '<|system|>' + message['content'] }}"
    "{% else %}{{ '<|user|>' + message['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
# Words with the space before them, numbers, runs of punctuation, line breaks.
_PIECES = r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\n+|[^\S\n]+"


def build_tokenizer(texts: Iterable[str], vocab_size: int = 1536) -> PreTrainedTokenizerFast:
    """Byte-level BPE tokenizer learned from texts, with a chat template; the same for the same texts in the same order.

    A conversation reads ``<|user|>question<|assistant|>answer<|end|>``; ``<|end|>`` is the end-of-sequence token,
    padding has its own token, and nothing else is added to a text.
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
    is_mistral: bool = False,
) -> LlamaForCausalLM | MistralForCausalLM:
    """Llama model with random weights, in fp32; with the defaults of about 0.44 million parameters.

    Keys and values have half as many heads, input and output embeddings are one matrix, 512 positions. At this width
    a standard deviation of 0.05 learns far faster than the usual 0.02: the rows of a matrix then start near unit
    length.
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
        if is_mistral:
            return MistralForCausalLM(MistralConfig(**shape, sliding_window=256)).float().eval()
        return LlamaForCausalLM(LlamaConfig(**shape)).float().eval()


def build_start(texts: Iterable[str], vocab_size: int = 1536, **shape: Any) -> tuple[Any, Any]:
    """A start model of a shape, as `build_model` takes it, and a tokenizer learned from texts."""
    tokenizer = build_tokenizer(texts, vocab_size=vocab_size)
    return build_model(tokenizer, seed=0, **shape), tokenizer


# -- how large the runs are -------------------------------------------------------------------------------------------

# Keys of a recipe.
Keys = Mapping[str, Any]
# Of the demo's model, which has 0.18 million parameters.
DEMO_SHAPE = {"hidden_size": 64, "n_layers": 2, "n_heads": 2, "intermediate_size": 160}

# Of every run of a suite, whatever the scale.
ALWAYS = {
    "encoding": "paper",
    "lr_scheduler_type": "cosine",
    "save_strategy": "steps",
    "save_total_limit": 1,
    "report_to": "none",
    "disable_tqdm": True,
}
# The four votes of a comparison together, twice the judgments of the paper's step: half the cost of `random`.
TINY: Keys = {
    **ALWAYS,
    "beta": 0.1,
    "max_length": 192,
    "max_prompt_length": 96,
    "batching": "grouped",
    "per_device_train_batch_size": 64,
    "max_steps": 800,
    "warmup_steps": 0.3,
    "learning_rate": 2.2e-4,
    "bias": {"fit": "adam", "learning_rate": 2e-2},
    "gradient_checkpointing": False,
    "reference": {
        "sft": True,
        "max_steps": 400,
        "per_device_train_batch_size": 32,
        "learning_rate": 3e-3,
    },
}
# Chosen on data seed 0 of the votes; docs/results/demo.md has the others.
DEMO = {
    **TINY,
    "max_steps": 200,
    "learning_rate": 8e-4,
    "bias": {"fit": "adam", "learning_rate": 4e-2},
    "reference": {**TINY["reference"], "max_steps": 300, "learning_rate": 6e-3},
}
# The paper's settings (Table `tab:hyperparams`), model by model.
PAPER = {
    model: {**PRESETS[preset], **ALWAYS, "gradient_checkpointing": True}
    for model, preset in (
        ("small", "paper-0.5b"),
        ("large", "paper-8b-lora"),
        ("other", "paper-7b-lora"),
    )
}


# eq=False: a scale holds functions and mappings, and stands for itself where it is a key
@dataclass(frozen=True, eq=False)
class Scale:
    """How large the runs are: the corpora, the models and the recipe.

    Attributes
    ----------
    name : str
    dataset : function of (Corpus, a local file of its rows or None) giving `Dataset`
    keys : mapping of a corpus's model to keys of a recipe
        Of the models that the scale has; without places, votes and arm. A reference without steps makes one pass.
    shapes : mapping of a corpus's model to arguments of `build_start`
        Of the start models that are made; the others are named by the keys.
    kinds : tuple of str
        The kinds of corpora that the scale has.
    decoding : Decoding
        How the answers that are measured are sampled.
    judge : str or None
        The reward model that scores answers.
    single_seed_arms : tuple of str
        Arms that run at the first seed only.
    control_seeds : {"first", "all"}
        Where rows are run that were controls at one seed in the paper.
    scales_penalty : bool
        Whether penalties per token are made stronger by as much as answers are shorter than the paper's.
    fresh_prompts : function of a local file or None, or None
        Questions that are in no votes and not asked when policies are measured, for what is trained on a policy's own
        answers.
    lora_dtype : str
        Precision of the weights under an adapter that is put on a reference without one.
    stand_in : str
        What is to be said of the model that stands in the place of the paper's; empty where those are trained.
    ran : str
        That model's name in the titles of tables.
    command : str
        What makes the same runs again.
    is_brief : bool
        Of names, read the rates and the sampled signatures alone.
    """

    name: str
    dataset: Callable[[Corpus, Path | None], Dataset]
    keys: Mapping[str, Keys]
    shapes: Mapping[str, Keys] = field(default_factory=dict)
    kinds: tuple[str, ...] = ("signed", "style")
    decoding: Decoding = field(default_factory=Decoding)
    judge: str | None = None
    single_seed_arms: tuple[str, ...] = ()
    control_seeds: Literal["first", "all"] = "first"
    scales_penalty: bool = False
    fresh_prompts: Callable[[Path | None], tuple[str, ...]] | None = None
    lora_dtype: str = "float32"
    stand_in: str = ""
    ran: str = ""
    command: str = "badpo reproduce"
    is_brief: bool = False

    def has(self, corpus: Corpus) -> bool:
        """Whether the scale has a corpus and its model."""
        return corpus.model in self.keys and corpus.kind in self.kinds

    def seeds_of(self, row: Row, seeds: Sequence[int]) -> tuple[int, ...]:
        """Those of the seeds that a row is run at."""
        is_control = row.seeds == "first" and self.control_seeds == "first"
        is_single = is_control or row.seeds == "one" or row.condition.arm in self.single_seed_arms
        return tuple(seeds[:1] if is_single else seeds)


_TINY = Scale(
    "tiny",
    bundled_votes,
    keys=dict.fromkeys(("small", "other"), TINY),
    shapes={"small": {}, "other": {"vocab_size": 1024, "is_mistral": True}},
    decoding=Decoding(max_new_tokens=128),
    single_seed_arms=("em_dpo",),
    control_seeds="all",
    scales_penalty=True,
    fresh_prompts=bundled_fresh,
    stand_in="The model that was run has 0.4 million weights and was trained from scratch on the texts of these votes: "
    "compare orders with the paper, not numbers.",
    ran="A model of 0.4 million weights",
)
_DEMO = Scale(
    "demo",
    demo_votes,
    keys=dict.fromkeys(("small", "demo"), DEMO),
    shapes=dict.fromkeys(("small", "demo"), DEMO_SHAPE),
    kinds=("signed",),
    decoding=Decoding(max_new_tokens=96),
    command="badpo demo",
    is_brief=True,
)
_PAPER = Scale(
    "paper",
    public_votes,
    keys=PAPER,
    judge="Skywork/Skywork-Reward-V2-Qwen3-1.7B",
    fresh_prompts=public_fresh,
    lora_dtype="bfloat16",
)
SCALES = {scale.name: scale for scale in (_TINY, _DEMO, _PAPER)}
