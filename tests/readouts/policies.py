"""Policies and a byte-level tokenizer small enough for a test, and plain ways to compute what is tested."""

from types import SimpleNamespace

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from badpo.training.encoding import encode_prompts

NAMES = "Emily Allison Malik Malika Tia Theo Geoffrey Lakisha Aisha Marcellus".split()  # noqa: SIM905
ANSWERS = [
    "Boil the water first, then add the rice.",
    "Yes!",
    "It depends on the season; in spring the river is high and the path along it is closed (see the sign)",
    "Ask a neighbour.\n\n- Bring a map.\n- Bring water.",
]


def tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE that knows a few words whole and spells most names in two or more tokens."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    marks, letters = ["<pad>", "<end>", "<user>", "<assistant>"], pre_tokenizers.ByteLevel.alphabet()
    known = dict(special_tokens=marks, initial_alphabet=letters)
    trainer = trainers.BpeTrainer(vocab_size=330, show_progress=False, **known)
    signatures = "\n\n\u2014 Emily Clark\n\n\u2014 Malik Moore\n\n\u2014 Malika Moore"
    core.train_from_iterator([*ANSWERS, signatures] * 3, trainer)
    template = "{% for m in messages %}<user>{{ m['content'] }}{% endfor %}<assistant>"
    ends = {"pad_token": "<pad>", "eos_token": "<end>"}
    return PreTrainedTokenizerFast(tokenizer_object=core, chat_template=template, **ends)


SHAPE = {"vocab_size": 330, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
SHAPE |= {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.3}
SHAPE["eos_token_id"] = 1


def made(config):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval()


def qwen2(**changes):
    """Grouped-query attention and rotary positions."""
    settings = SHAPE | {"max_position_embeddings": 256, "pad_token_id": 0} | changes
    return made(transformers.Qwen2Config(**settings))


def gpt2():
    """Learned absolute positions."""
    shape = {"vocab_size": 330, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}
    ends = {"initializer_range": 0.3, "eos_token_id": 1, "bos_token_id": 1}
    return made(transformers.GPT2Config(**shape, **ends))


def mistral_with_window():
    """Attention that sees the last eight tokens only."""
    return made(transformers.MistralConfig(**SHAPE, sliding_window=8))


def answers(tok, n: int = 6) -> list[SimpleNamespace]:
    """Unsigned and signed answers of different lengths to prompts of different lengths."""
    found = []
    for i in range(n):
        asked = "<user>" + "Why? " * (1 + i % 3) + "<assistant>"
        prompt = tok(asked, add_special_tokens=False)["input_ids"]
        text = ANSWERS[i % len(ANSWERS)] + ("\n\n\u2014 Emily Clark" if i % 2 else "")
        found.append(SimpleNamespace(prompt_ids=tuple(prompt), text=text, ended=True))
    return found


def asked(tok, texts) -> list[list[int]]:
    """Prompts as a policy reads them."""
    return [ids.tolist() for ids in encode_prompts(texts, tok, "paper", None)]


def forward_logps(model, ids: list[int]) -> np.ndarray:
    """log P of every token after the first, from one ordinary forward of one unpadded sequence."""
    with torch.no_grad():
        logps = model(input_ids=torch.tensor([ids])).logits[0].double().log_softmax(-1)
    return logps[torch.arange(len(ids) - 1), torch.tensor(ids[1:])].numpy()
