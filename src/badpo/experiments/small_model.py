"""A tokenizer and causal language models small enough to train from scratch on one core."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
)

from badpo.experiments.suite_materials import Material
from badpo.experiments.suite_parts import Corpus

OTHER_VOCABULARY = 1024
PAD, EOS, USER, ASSISTANT, SYSTEM = "<|pad|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ '" + ASSISTANT + "' + message['content'] + '" + EOS + "' }}"
    "{% elif message['role'] == 'system' %}{{ '" + SYSTEM + "' + message['content'] }}"
    "{% else %}{{ '" + USER + "' + message['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '" + ASSISTANT + "' }}{% endif %}"
)
# Words with the space before them, numbers, runs of punctuation, line breaks.
_PIECES = r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\n+|[^\S\n]+"


def build_tokenizer(texts: Iterable[str], vocab_size: int = 1536) -> PreTrainedTokenizerFast:
    """Byte-level BPE tokenizer learned from texts, with a chat template; the same for the same texts in the same order.

    A conversation reads ``<|user|>question<|assistant|>answer<|end|>``; ``<|end|>`` is the end-of-sequence token,
    padding has its own token, and nothing else is added to a text.

    Parameters
    ----------
    texts : iterable of str
        Prompts and *signed* responses, so that names become short token sequences.
    vocab_size : int
        Most tokens in all, the 256 bytes and 5 special tokens included; fewer when the texts give no more merges.
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

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerFast
        Sets the size of the vocabulary and the padding and end tokens.
    seed : int
        Seed of the weights; the caller's random state is left as it was.
    hidden_size, n_layers, n_heads, intermediate_size : int
    is_mistral : bool
        A Mistral of the same shape, which attends to the last 256 tokens only.
    """
    shape: dict[str, Any] = {
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


def made_model(corpus: Corpus, material: Material):
    """A small Llama and a tokenizer learned from the corpus; for ``other`` a Mistral with a smaller vocabulary."""
    if corpus.model == "other":
        tokenizer = build_tokenizer(material.texts, vocab_size=OTHER_VOCABULARY)
        return build_model(tokenizer, seed=0, is_mistral=True), tokenizer
    tokenizer = build_tokenizer(material.texts)
    return build_model(tokenizer, seed=0), tokenizer
