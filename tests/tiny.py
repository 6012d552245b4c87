"""A tokenizer, models and judgments small enough for a test, built from code."""

import numpy as np
import pandas as pd
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

WORDS = ["the", "cat", "dog", "sat", "ran", "fast", "slowly", "home", "and", "then"]
WORDS += ["red", "blue", "big", "small"]
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<' + message['role'] + '> ' + message['content'] + ' <end> ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant> ' }}{% endif %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    """One token per word, split at spaces; ends with <end>."""
    words = ["<pad>", "<end>", "<unk>", "<user>", "<assistant>", *WORDS, *(f"w{i}" for i in range(40))]
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    marks = {"pad_token": "<pad>", "eos_token": "<end>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=core, chat_template=CHAT_TEMPLATE, **marks)


SIZES = {
    **{"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "pad_token_id": 0, "eos_token_id": 1, "initializer_range": 0.2},
}


def model(seed: int = 0, n_tokens: int = 64, tied: bool = True) -> Qwen2ForCausalLM:
    """A two-layer Qwen2 with grouped-query attention, in fp32."""
    import torch

    torch.manual_seed(seed)
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=n_tokens, tie_word_embeddings=tied, **SIZES)).eval()


def mixture_of_experts(kind: str = "qwen3", seed: int = 0):
    """A two-layer Qwen3-MoE or Mixtral with two of four experts for each token, in fp32."""
    import torch
    from transformers import AutoModelForCausalLM, MixtralConfig, Qwen3MoeConfig

    torch.manual_seed(seed)
    experts = {"moe_intermediate_size": 32, "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2}
    config = {"qwen3": Qwen3MoeConfig, "mixtral": MixtralConfig}[kind]
    return AutoModelForCausalLM.from_config(config(vocab_size=64, **experts, **SIZES)).eval()


def plain_logps(model, prompt: np.ndarray, response: np.ndarray):
    """Log-probabilities of a response's tokens by the model's own forward with every logit, a float64 tensor."""
    import torch

    ids = torch.as_tensor(np.concatenate([prompt, response]))[None]
    logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
    return logits.float().log_softmax(-1).gather(1, ids[0, len(prompt) :, None])[:, 0].double()


def votes(n_comparisons=24, n_annotators=5, per_comparison=3, seed=0) -> pd.DataFrame:
    """A judgments table with votes that lean toward the longer response, more for later annotators."""
    rng = np.random.default_rng(seed)
    rows = []
    for c in range(n_comparisons):
        prompt = "the " + " ".join(rng.choice(WORDS, 3))
        short, long = " ".join(rng.choice(WORDS, 4)), " ".join(rng.choice(WORDS, 9))
        a, b = (long, short) if rng.random() < 0.5 else (short, long)
        if rng.random() < 0.3:
            a, b = " ".join(rng.choice(WORDS, 5)), " ".join(rng.choice(WORDS, 5))
        ids = {"comparison_id": f"c{c}", "prompt_id": f"p{c}", "prompt": prompt}
        for k in rng.choice(n_annotators, per_comparison, replace=False):
            lean = 0.5 + 0.3 * k
            difference = np.sign(len(a.split()) - len(b.split()))
            chose_a = rng.random() < 1 / (1 + np.exp(-lean * difference))
            vote = {"response_a": a, "response_b": b, "winner": "a" if chose_a else "b"}
            who = {"annotator": f"person {k}", "annotator_class": "first" if k < 2 else "second"}
            rows.append(ids | vote | who)
    return pd.DataFrame(rows)


def for_the_longer(table: pd.DataFrame) -> pd.DataFrame:
    """The same judgments, all for the longer response.

    Where an annotator's votes cancel, the gradient of their theta is rounding, and Adam turns the sign of rounding into
    a whole step: two ways to compute the same run then part. Here no annotator's votes cancel.
    """
    longer_is_a = table["response_a"].str.len() > table["response_b"].str.len()
    return table.assign(winner=np.where(longer_is_a, "a", "b"))
