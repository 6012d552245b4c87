"""A tokenizer and a causal language model small enough to train from scratch on one core."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

__all__ = ["CHAT_TEMPLATE", "build_model", "build_tokenizer"]

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
    """Byte-level BPE tokenizer learned from texts, with a chat template.

    Parameters
    ----------
    texts : iterable of str
        Training text: prompts and *signed* responses, so that names become short token sequences.
    vocab_size : int
        Most tokens in all, the 256 bytes and 5 special tokens included; fewer when the texts give no more merges.

    Returns
    -------
    PreTrainedTokenizerFast
        The same for the same texts in the same order. Any text can be encoded. A conversation reads
        ``<|user|>question<|assistant|>answer<|end|>``; ``<|end|>`` is the end-of-sequence token, padding has its own
        token, and nothing else is added to a text.

    Examples
    --------
    >>> tokenizer = build_tokenizer(["boil the rice", "boil the eggs"], vocab_size=300)
    >>> tokenizer.decode(tokenizer("boil the rice")["input_ids"])
    'boil the rice'
    >>> question = [{"role": "user", "content": "rice?"}]
    >>> tokenizer.apply_chat_template(question, tokenize=False, add_generation_prompt=True)
    '<|user|>rice?<|assistant|>'
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

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
    max_positions: int = 512,
    initializer_range: float = 0.05,
) -> LlamaForCausalLM:
    """Llama model with random weights, built from a configuration, in fp32.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerFast
        Sets the size of the vocabulary and the padding and end tokens.
    seed : int
        Seed of the weights; the caller's random state is left as it was.
    hidden_size, n_layers, n_heads, intermediate_size : int
        Shape. The defaults give about 0.44 million parameters with the tokenizer of the demo; keys and values have
        half as many heads, input and output embeddings are one matrix.
    max_positions : int
        Longest sequence in tokens.
    initializer_range : float
        Standard deviation of the random weights. At this width 0.05 learns far faster than the usual 0.02: the
        rows of a matrix then start near unit length.

    Returns
    -------
    LlamaForCausalLM
        The model, in evaluation mode.

    Examples
    --------
    >>> tokenizer = build_tokenizer(["boil the rice"], vocab_size=300)
    >>> model = build_model(tokenizer, seed=0, n_layers=1)
    >>> model.config.vocab_size == len(tokenizer), model.config.tie_word_embeddings
    (True, True)
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_hidden_layers=n_layers,
        num_attention_heads=n_heads,
        num_key_value_heads=max(1, n_heads // 2),
        max_position_embeddings=max_positions,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        attention_dropout=0.0,
        initializer_range=initializer_range,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    return model.float().eval()
