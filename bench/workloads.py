"""Workloads of the speed benchmarks: distributions of lengths, votes and models.

Token ids are random, because a forward pass takes the same time for all words. Lengths are a quarter of realistic
lengths, so that a step takes seconds on one core.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from badpo_paper.corpora.signed import QUALITY_SCALE, VOTES_PER_PAIR, draw_plan

LENGTHS_DIVIDED_BY = 4
# Log-normal numbers of tokens. The standard deviations of prompts and within a pair are those of MT-Bench; that of
# responses gives the published median of prompt and response in UltraFeedback, 409 tokens.
PROMPT_SPREAD, LONGEST_PROMPT = 0.78, 384
RESPONSE_SPREAD, WITHIN_PAIR, LONGEST = 0.6, 0.45, 1280
# Tokens of a signature: before the name, first name, surname; then the end-of-text token.
SIGNATURE_LEAD, SIGNATURE_END = 2, 1
SCORE_GAPS = (1, 2, 3)
N_PAIRS = 6460
N_PROMPTS, TIE_SHARE, N_ANNOTATORS = 5310, 0.2627, 227  # of MultiPref
COLUMNS = ["comparison_id", "prompt", "response_a", "response_b"]
SPECIAL = ["<pad>", "<end>", "<unk>"]


def signed(n_vocabulary: int, divided_by: int = LENGTHS_DIVIDED_BY) -> pd.DataFrame:
    """Make votes with the shape of the signed corpus: 4 per comparison; in a fifth of the pairs only the name differs.

    Kinds, annotators and votes are those of the paper's recipe (`badpo_paper.corpora.signed.draw_plan`).
    """
    rng, plan = np.random.default_rng(0), draw_plan(N_PAIRS, 0)
    prompts, responses = lengths(rng, 136, 330, (N_PAIRS, 1), divided_by)
    words = _drawn_words(n_vocabulary, rng)
    rows = []
    for i, kind in enumerate(plan.kinds):
        first = words(responses[i, 0, 0])
        second = first if kind == "swap" else words(responses[i, 0, 1])
        lead, end = words(SIGNATURE_LEAD), words(SIGNATURE_END)
        sides = [
            body + (lead + words(1) + end if name else "")
            for body, name in ((first, plan.names_first[i]), (second, plan.names_second[i]))
        ]
        rows.append((i, words(prompts[i]), *sides))
    quality = QUALITY_SCALE * rng.choice(SCORE_GAPS, N_PAIRS)
    comparison = np.repeat(np.arange(N_PAIRS), VOTES_PER_PAIR)
    return _votes(rows, comparison, plan.decide_votes(quality).ravel(), plan.annotators.ravel())


def multipref(n_vocabulary: int) -> pd.DataFrame:
    """Make votes with the shape of MultiPref: two comparisons per prompt, 4 votes each, without ties."""
    rng = np.random.default_rng(0)
    prompts, responses = lengths(rng, 96, 360, (N_PROMPTS, 2))
    words = _drawn_words(n_vocabulary, rng)
    rows = []
    for i in range(N_PROMPTS):
        prompt = words(prompts[i])
        rows += [(2 * i + j, prompt, *map(words, responses[i, j])) for j in range(2)]
    comparison = np.nonzero(rng.random((len(rows), 4)) >= TIE_SHARE)[0]
    quality = rng.standard_normal(len(rows))[comparison]
    prefers_a = rng.random(len(comparison)) < 1 / (1 + np.exp(-quality))
    return _votes(rows, comparison, prefers_a, rng.integers(0, N_ANNOTATORS, len(comparison)))


CASES = {"signed": signed, "multipref": multipref}


def _votes(rows: list[tuple], comparison, prefers_a, annotator) -> pd.DataFrame:
    votes = pd.DataFrame(rows, columns=COLUMNS).loc[comparison].reset_index(drop=True)
    winner = np.where(prefers_a, "a", "b")
    return votes.assign(winner=winner, annotator=[f"person {k}" for k in annotator])


def lengths(
    rng: np.random.Generator,
    prompt_mean: float,
    response_mean: float,
    shape: tuple[int, int],
    divided_by: int = LENGTHS_DIVIDED_BY,
) -> tuple[np.ndarray, np.ndarray]:
    """Draw the tokens of each prompt, shape (n_prompts,), and response, shape (n_prompts, n_pairs_each, 2)."""
    prompts = _log_normal(prompt_mean, PROMPT_SPREAD, rng.standard_normal(shape[0]))
    prompts = np.minimum(prompts, LONGEST_PROMPT)
    common, own = rng.standard_normal((*shape, 1)), rng.standard_normal((*shape, 2))
    normal = np.sqrt(WITHIN_PAIR) * common + np.sqrt(1 - WITHIN_PAIR) * own
    responses = _log_normal(response_mean, RESPONSE_SPREAD, normal)
    responses = np.minimum(responses, LONGEST - prompts[:, None, None])
    divided = (np.rint(n / divided_by) for n in (prompts, responses))
    return tuple(np.maximum(n, 2).astype(int) for n in divided)


def _log_normal(mean: float, spread: float, normal: np.ndarray) -> np.ndarray:
    return mean * np.exp(spread * normal - spread**2 / 2)


def _words(n_vocabulary: int) -> list[str]:
    return [f"w{i}" for i in range(n_vocabulary - len(SPECIAL))]


def _drawn_words(n_vocabulary: int, rng: np.random.Generator) -> Callable[[int], str]:
    """Make texts of random words; a word is one token of `word_tokenizer` and ends with a space."""
    known = np.array([f"{word} " for word in _words(n_vocabulary)], dtype=object)
    return lambda n: "".join(known[rng.integers(len(known), size=n)])


def word_tokenizer(n_vocabulary: int):
    """Make a tokenizer with one token per word, split at spaces, so that texts have the intended lengths."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    table = {word: i for i, word in enumerate([*SPECIAL, *_words(n_vocabulary)])}
    core = Tokenizer(models.WordLevel(table, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "<pad>", "eos_token": "<end>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=core, **special, model_max_length=10**6)


@dataclass(frozen=True)
class Size:
    """Size of a small Qwen2 with random weights that runs on a CPU."""

    hidden: int
    layers: int
    heads: int
    key_value_heads: int
    intermediate: int
    vocabulary: int


SIZES = {
    # ratio of multiply-adds in the head and the body: 0.43; it is 0.38 in Qwen2.5-0.5B
    "0.5B-like": Size(192, 3, 3, 1, 896, 4096),
    # ratio 0.08; it is 0.075 in Llama-3.1-8B
    "8B-like": Size(224, 4, 4, 2, 896, 1024),
    # nearly all multiply-adds are in the head
    "head-dominated": Size(192, 3, 3, 1, 896, 151_936),
}


def build_model(size: Size, seed: int = 0, moved: float = 0.0):
    """Build a Qwen2 with random weights in fp32; ``moved`` adds relative noise, so that margins are not 0."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.key_value_heads,
        tie_word_embeddings=True,
        max_position_embeddings=4096,
        pad_token_id=0,
        eos_token_id=1,
        attn_implementation="sdpa",
    )
    model = Qwen2ForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += moved * parameter.std(correction=0) * torch.randn_like(parameter)
    return model
