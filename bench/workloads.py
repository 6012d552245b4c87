"""What the speed benches run on: length distributions, votes and models, all written down here.

Token ids are drawn at random: a forward pass costs the same whatever the words are. Lengths are a quarter of the
full-size corpora's, so that a step takes seconds on one core.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from badpo_paper.corpora.signed import QUALITY_SCALE, VOTES_PER_PAIR, draw_plan

LENGTHS_DIVIDED_BY = 4


@dataclass(frozen=True)
class Lengths:
    """Log-normal token counts of prompts and responses, in full-size tokens.

    A spread is the standard deviation of the logarithm. That of prompts and ``within_pair``, the correlation of the
    logarithms of a pair's two responses, are those of MT-Bench; that of responses gives the published
    median of UltraFeedback's prompt and response together, 409 tokens.
    """

    prompt_mean: float
    response_mean: float
    prompt_spread: float = 0.78
    response_spread: float = 0.6
    within_pair: float = 0.45
    longest_prompt: int = 384
    longest: int = 1280

    def draw(
        self, n_prompts: int, n_pairs_each: int, rng, divided_by: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of each prompt, shape (n_prompts,), and of each response, shape (n_prompts, n_pairs_each, 2)."""
        prompts = _log_normal(self.prompt_mean, self.prompt_spread, rng.standard_normal(n_prompts))
        prompts = np.minimum(prompts, self.longest_prompt)
        shape = (n_prompts, n_pairs_each)
        common, own = rng.standard_normal((*shape, 1)), rng.standard_normal((*shape, 2))
        normal = np.sqrt(self.within_pair) * common + np.sqrt(1 - self.within_pair) * own
        room = self.longest - prompts[:, None, None]
        responses = np.minimum(_log_normal(self.response_mean, self.response_spread, normal), room)
        return tuple(np.maximum(np.rint(n / divided_by), 2).astype(int) for n in (prompts, responses))


def _log_normal(mean: float, spread: float, normal: np.ndarray) -> np.ndarray:
    return mean * np.exp(spread * normal - spread**2 / 2)


SIGNED_LENGTHS = Lengths(prompt_mean=136, response_mean=330)
MULTIPREF_LENGTHS = Lengths(prompt_mean=96, response_mean=360)
# A signature: what stands before the name, the first name, the surname; the end-of-text token follows.
SIGNATURE_LEAD, SIGNATURE_END = 2, 1
SCORE_GAPS = (1, 2, 3)
MULTIPREF_TIE_SHARE, MULTIPREF_ANNOTATORS = 0.2627, 227
SIGNED_PAIRS, MULTIPREF_PROMPTS = 6460, 5310
COLUMNS = ["comparison_id", "prompt", "response_a", "response_b", "winner", "annotator"]


@dataclass(frozen=True)
class Workload:
    """Comparisons as texts: ``votes`` has one row for each judgment, with the columns that `Judgments.read` takes."""

    votes: pd.DataFrame
    comparison: np.ndarray

    def take(self, judgments: np.ndarray) -> Workload:
        votes = self.votes.iloc[judgments].reset_index(drop=True)
        return Workload(votes, self.comparison[judgments])


def signed(n_vocabulary: int, divided_by: int = LENGTHS_DIVIDED_BY, seed: int = 0) -> Workload:
    """The shape of the signed corpus: 4 votes on a comparison; a fifth of the pairs differ in the signed name only.

    Kinds, annotators and votes are those of the paper's recipe (`badpo_paper.corpora.signed.draw_plan`).
    """
    rng = np.random.default_rng(seed)
    plan = draw_plan(SIGNED_PAIRS, seed)
    prompts, responses = SIGNED_LENGTHS.draw(SIGNED_PAIRS, 1, rng, divided_by)
    words = _Words(n_vocabulary, rng)
    rows = []
    for i in range(SIGNED_PAIRS):
        first = words.draw(responses[i, 0, 0])
        second = first if plan.kinds[i] == "swap" else words.draw(responses[i, 0, 1])
        lead, end = words.draw(SIGNATURE_LEAD), words.draw(SIGNATURE_END)
        sides = [
            body + (lead + words.draw(1) + end if name else "")
            for body, name in ((first, plan.names_first[i]), (second, plan.names_second[i]))
        ]
        rows.append((f"c{i}", words.draw(prompts[i]), *sides))
    quality = QUALITY_SCALE * rng.choice(SCORE_GAPS, SIGNED_PAIRS)
    comparison = np.repeat(np.arange(SIGNED_PAIRS), VOTES_PER_PAIR)
    return _workload(rows, comparison, plan.labels(quality).ravel(), plan.annotators.ravel())


def multipref(n_vocabulary: int, divided_by: int = LENGTHS_DIVIDED_BY, seed: int = 0) -> Workload:
    """The shape of MultiPref: two comparisons to a prompt, 4 votes each, of which a quarter are ties and left out."""
    rng = np.random.default_rng(seed)
    prompts, responses = MULTIPREF_LENGTHS.draw(MULTIPREF_PROMPTS, 2, rng, divided_by)
    words = _Words(n_vocabulary, rng)
    rows = []
    for i in range(MULTIPREF_PROMPTS):
        prompt = words.draw(prompts[i])
        for j in range(2):
            rows.append((f"c{i}-{j}", prompt, *(words.draw(n) for n in responses[i, j])))
    decided = rng.random((len(rows), 4)) >= MULTIPREF_TIE_SHARE
    comparison = np.nonzero(decided)[0]
    quality = rng.standard_normal(len(rows))[comparison]
    prefers_a = rng.random(len(comparison)) < 1 / (1 + np.exp(-quality))
    annotator = rng.integers(0, MULTIPREF_ANNOTATORS, len(comparison))
    return _workload(rows, comparison, prefers_a, annotator)


CASES: dict[str, Callable[..., Workload]] = {"signed": signed, "multipref": multipref}


class _Words:
    """Texts of random words; a word is one token of `word_tokenizer`, and ends with a space."""

    def __init__(self, n_vocabulary: int, rng):
        self._words = np.array(
            [f"{word} " for word in _vocabulary(n_vocabulary)[N_SPECIAL:]], dtype=object
        )
        self._rng = rng

    def draw(self, n: int) -> str:
        return "".join(self._words[self._rng.integers(len(self._words), size=n)])


N_SPECIAL = 3


def _vocabulary(n_vocabulary: int) -> list[str]:
    return ["<pad>", "<end>", "<unk>", *(f"w{i}" for i in range(n_vocabulary - N_SPECIAL))]


def _workload(rows, comparison, prefers_a, annotator) -> Workload:
    table = pd.DataFrame(rows, columns=COLUMNS[:4])
    votes = table.iloc[comparison].reset_index(drop=True)
    votes["winner"] = np.where(prefers_a, "a", "b")
    votes["annotator"] = [f"person {k}" for k in annotator]
    return Workload(votes, np.asarray(comparison))


def word_tokenizer(n_vocabulary: int):
    """One token per word, split at spaces, so that texts have the lengths that were drawn."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    table = {word: i for i, word in enumerate(_vocabulary(n_vocabulary))}
    core = Tokenizer(models.WordLevel(table, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "<pad>", "eos_token": "<end>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=core, **special, model_max_length=10**6)


@dataclass(frozen=True)
class Size:
    """A Qwen2 small enough for a processor, with random weights."""

    hidden: int
    layers: int
    heads: int
    key_value_heads: int
    intermediate: int
    vocabulary: int


SIZES = {
    # head to body in multiply-adds 0.43, as 0.38 in Qwen2.5-0.5B
    "0.5B-like": Size(192, 3, 3, 1, 896, 4096),
    # 0.08, as 0.075 in Llama-3.1-8B
    "8B-like": Size(224, 4, 4, 2, 896, 1024),
    # the head is nearly everything
    "head-dominated": Size(192, 3, 3, 1, 896, 151_936),
}


def build_model(size: Size, seed: int = 0, moved: float = 0.0):
    """A Qwen2 with random weights in fp32; ``moved`` adds that much noise, relative, so that margins are not 0."""
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
