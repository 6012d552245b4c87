"""Answers sampled from a policy, with their token ids."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    Cache,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.modeling_outputs import CausalLMOutputWithPast

from badpo.theory import Ints
from badpo.training.logprobs import evaluation_mode

TokenIds = Sequence[int] | Ints


@cache
def _parameters(forward: Callable[..., CausalLMOutputWithPast]) -> frozenset[str]:
    return frozenset(inspect.signature(forward).parameters)


def run_forward(
    model: PreTrainedModel,
    ids: torch.Tensor,
    mask: torch.Tensor,
    positions: torch.Tensor,
    past: Cache | None = None,
    last_only: bool = False,
) -> CausalLMOutputWithPast:
    """Run a forward pass with a cache; pass ``positions`` and the number of logits only to models that accept them."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    options = {"position_ids": positions} | ({"logits_to_keep": 1} if last_only else {})
    accepted = _parameters(type(inner).forward)
    options = {name: value for name, value in options.items() if name in accepted}
    return model(input_ids=ids, attention_mask=mask, past_key_values=past, use_cache=True, **options)


def pad_rows(
    rows: Sequence[TokenIds], device: torch.device, side: str, pad: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad token ids on one side; return the ids and a 0/1 mask, both int64 arrays of shape (n_rows, longest row)."""
    tokens = [torch.as_tensor(row, dtype=torch.long) for row in rows]
    masks = [torch.ones_like(row) for row in tokens]
    ids = pad_sequence(tokens, batch_first=True, padding_value=pad, padding_side=side)
    mask = pad_sequence(masks, batch_first=True, padding_side=side)
    return ids.to(device), mask.to(device)


# Initial number of candidate tokens in nucleus sampling; it grows until the candidates' probability reaches top-p.
NUCLEUS_START = 64


@dataclass(frozen=True)
class Decoding:
    """Settings of sampling."""

    max_new_tokens: int = 512
    temperature: float = 0.7
    top_p: float = 0.9


@dataclass(frozen=True)
class Generation:
    """One sampled answer."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str
    ended: bool


def sample(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[TokenIds],
    max_new_tokens: int,
    temperature: float = 0.7,
    top_p: float = 0.9,
    seed: int = 0,
    batch: int = 64,
) -> list[Generation]:
    """Sample one answer to each prompt; the prompts are given as token ids.

    The random numbers for a prompt depend only on the seed and on the prompt's position in ``prompts``. Therefore, the
    batch size and the other prompts affect an answer only through rounding errors. Two policies that are sampled with
    the same seed use the same random numbers. The global random state is neither read nor changed. An answer ends after
    ``max_new_tokens`` tokens, or earlier if the model's context window is full. A temperature of 0 selects the most
    probable token. Each token is sampled from the smallest set of most probable tokens whose total probability is at
    least ``top_p``. Raises `ValueError` if a prompt has no tokens or leaves no room for an answer.

    References
    ----------
    BA-DPO, Appendix `app:readouts`, "Generation": temperature 0.7, top-p 0.9, 512 new tokens.
    """
    if temperature < 0 or not 0 < top_p <= 1:
        raise ValueError(f"temperature must be >= 0 and top_p in (0, 1]; got {temperature} and {top_p}")
    prompt_ids = [list(map(int, ids)) for ids in prompts]
    limits = token_limits(model.config, prompt_ids, max_new_tokens)
    uniforms = np.array(
        [np.random.default_rng([seed, i]).random(max_new_tokens) for i in range(len(prompt_ids))]
    )
    ends = end_ids(model.generation_config, tokenizer)
    order = sorted(range(len(prompt_ids)), key=lambda i: len(prompt_ids[i]))
    answers: dict[int, list[int]] = {}
    with evaluation_mode(model) as device:
        for start in range(0, len(order), batch):
            rows = order[start : start + batch]
            batch_ids = [prompt_ids[i] for i in rows]
            numbers, decoding = torch.from_numpy(uniforms[rows]).to(device), (temperature, top_p)
            sampled = _sample_batch(model, batch_ids, numbers, limits[rows], decoding, ends)
            answers |= zip(rows, sampled, strict=True)
    return [decode_answer(tokenizer, ids, answers[i], ends) for i, ids in enumerate(prompt_ids)]


def next_tokens(
    logits: torch.Tensor, uniforms: torch.Tensor, temperature: float, top_p: float
) -> torch.Tensor:
    """Sample a token for each row: the first token whose cumulative probability exceeds the row's random number."""
    if temperature == 0:
        return logits.argmax(dim=-1)
    scaled = logits.float() / temperature
    if top_p == 1:
        cumulative = scaled.softmax(-1).double().cumsum(-1)
        sought = (uniforms * cumulative[:, -1])[:, None]
        drawn = torch.searchsorted(cumulative, sought, right=True)
        return drawn.clamp(max=logits.shape[-1] - 1)[:, 0]
    return _nucleus_tokens(scaled, uniforms, top_p)


def _nucleus_tokens(scaled: torch.Tensor, uniforms: torch.Tensor, top_p: float) -> torch.Tensor:
    normaliser, n_tokens = scaled.logsumexp(-1, keepdim=True), scaled.shape[-1]
    n_candidates = min(NUCLEUS_START, n_tokens)
    while True:
        best, tokens = scaled.topk(n_candidates, dim=-1)
        cumulative = (best - normaliser).exp().double().cumsum(-1)
        if n_candidates == n_tokens or bool((cumulative[:, -1] >= top_p).all()):
            break
        n_candidates = min(4 * n_candidates, n_tokens)
    last = (cumulative < top_p).sum(-1, keepdim=True).clamp(max=n_candidates - 1)
    sought = uniforms[:, None] * cumulative.gather(1, last)
    drawn = torch.searchsorted(cumulative, sought, right=True)
    return tokens.gather(1, torch.minimum(drawn, last))[:, 0]


def _sample_batch(
    model: PreTrainedModel,
    prompts: Sequence[TokenIds],
    uniforms: torch.Tensor,
    limits: Ints,
    decoding: tuple[float, float],
    end_ids: set[int],
) -> list[list[int]]:
    """Sample answers to a batch of prompts; answer i has at most ``limits[i]`` tokens, drawn with ``uniforms[i]``."""
    device = uniforms.device
    ids, mask = pad_rows(prompts, device, "left")
    ends = torch.tensor(sorted(end_ids), dtype=torch.long, device=device)
    answers: list[list[int]] = [[] for _ in prompts]
    rows = np.arange(len(prompts))
    running = np.ones(len(prompts), dtype=bool)
    positions, past = (mask.cumsum(1) - 1).clamp(min=0), None
    for step in range(limits.max()):
        output = run_forward(model, ids, mask, positions, past, last_only=True)
        past = output.past_key_values
        drawn = next_tokens(output.logits[:, -1], uniforms[:, step], *decoding)
        for row, token, is_running in zip(rows, drawn.tolist(), running, strict=True):
            if is_running:
                answers[row].append(token)
        stopped = (torch.isin(drawn, ends).cpu().numpy() | (limits[rows] == step + 1)) & running
        running &= ~stopped
        if not running.any():
            break
        if running.mean() < 0.75:
            # removing finished answers copies the cache, so remove them only once a quarter of the answers are finished
            left = torch.from_numpy(np.flatnonzero(running)).to(device)
            past.reorder_cache(left)
            drawn, mask = drawn[left], mask[left]
            positions, uniforms = positions[left], uniforms[left]
            rows, running = rows[running], running[running]
        # keep the position of a finished answer, so that it never exceeds the model's largest position
        stepped = torch.from_numpy(running).to(device)[:, None]
        ids, positions = drawn[:, None], positions[:, -1:] + stepped
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
    return answers


def token_limits(config: PreTrainedConfig, prompts: Sequence[TokenIds], max_new_tokens: int) -> Ints:
    """Return the maximum number of tokens in each answer, as an array of shape (n_prompts,)."""
    lengths = np.array([len(ids) for ids in prompts], int)
    if not lengths.all():
        raise ValueError(
            f"prompt {int(np.argmin(lengths))} has no tokens; a prompt needs at least one token"
        )
    limit = getattr(config, "max_position_embeddings", None) or np.inf
    if (lengths >= limit).any():
        first = int(np.argmax(lengths >= limit))
        raise ValueError(
            f"prompt {first} has {lengths[first]} tokens and the model has {limit} positions, so there is no room for "
            "an answer; shorten the prompt"
        )
    return np.minimum(max_new_tokens, limit - lengths).astype(int)


def end_ids(generation_config: GenerationConfig, tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Return the ids of the tokens that end an answer, from the model's generation settings and the tokenizer."""
    configured = generation_config.eos_token_id
    ids = set(configured) if isinstance(configured, (list, tuple)) else {configured}
    return {int(i) for i in ids | {tokenizer.eos_token_id} if i is not None}


def decode_answer(
    tokenizer: PreTrainedTokenizerBase, prompt_ids: TokenIds, token_ids: list[int], ends: set[int]
) -> Generation:
    """Decode sampled tokens to an answer."""
    ended = bool(token_ids) and token_ids[-1] in ends
    body = token_ids[:-1] if ended else token_ids
    text = tokenizer.decode(body, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return Generation(tuple(map(int, prompt_ids)), tuple(token_ids), text, ended)
