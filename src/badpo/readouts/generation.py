"""Answers sampled from a policy, with their token ids."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from badpo.theory import Ints
from badpo.training.logprobs import looking_at

TokenIds = Sequence[int] | Ints


@cache
def _parameters(forward: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(forward).parameters)


def read_on(model, ids, mask, positions, past=None, last_only: bool = False):
    """A forward that keeps its cache, told positions and which logits are wanted where the model's forward asks."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    options = {"position_ids": positions} | ({"logits_to_keep": 1} if last_only else {})
    taken = {name: value for name, value in options.items() if name in _parameters(type(inner).forward)}
    return model(input_ids=ids, attention_mask=mask, past_key_values=past, use_cache=True, **taken)


def padded(
    rows: Sequence[TokenIds], device: torch.device, side: str, pad: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and 0/1 mask of rows, int64 of shape (n_rows, longest), with the padding on one side."""
    tokens = [torch.as_tensor(row, dtype=torch.long) for row in rows]
    ids, mask = (
        pad_sequence(each, batch_first=True, padding_value=value, padding_side=side).to(device)
        for each, value in ((tokens, pad), ([torch.ones_like(row) for row in tokens], 0))
    )
    return ids, mask


# Candidates looked at first for nucleus sampling; more are taken where they do not hold enough probability.
NUCLEUS_START = 64


@dataclass(frozen=True)
class Decoding:
    """How answers are sampled."""

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
    model,
    tokenizer,
    prompts: Sequence[TokenIds],
    max_new_tokens: int,
    temperature: float = 0.7,
    top_p: float = 0.9,
    seed: int = 0,
    batch: int = 64,
) -> list[Generation]:
    """One answer to each prompt, given as token ids.

    The random numbers of a prompt are a function of the seed and its place in ``prompts`` alone: neither the batch size
    nor the other prompts change an answer (beyond rounding), two policies at one seed use the same numbers, and no
    global random state is read or changed. An answer is cut at ``max_new_tokens``, or where the model has no more
    positions; a temperature of 0 takes the most probable token; only the fewest most probable tokens that hold the
    probability ``top_p`` are sampled from. `ValueError` of a prompt without tokens, or that leaves no position.

    References
    ----------
    BA-DPO, Appendix `app:readouts`, "Generation": temperature 0.7, top-p 0.9, 512 new tokens.
    """
    if temperature < 0 or not 0 < top_p <= 1:
        raise ValueError(f"temperature must be >= 0 and top_p in (0, 1]; got {temperature} and {top_p}")
    prompt_ids = [list(map(int, ids)) for ids in prompts]
    most = most_tokens(model.config, prompt_ids, max_new_tokens)
    uniforms = np.array(
        [np.random.default_rng([seed, i]).random(max_new_tokens) for i in range(len(prompt_ids))]
    )
    ends = end_ids(model.generation_config, tokenizer)
    order = sorted(range(len(prompt_ids)), key=lambda i: len(prompt_ids[i]))
    answers: dict[int, list[int]] = {}
    with looking_at(model) as device:
        for start in range(0, len(order), batch):
            rows = order[start : start + batch]
            asked = [prompt_ids[i] for i in rows]
            drawn, decoding = torch.from_numpy(uniforms[rows]).to(device), (temperature, top_p)
            found = _sample_batch(model, asked, drawn, most[rows], decoding, ends)
            answers |= zip(rows, found, strict=True)
    return [as_generation(tokenizer, ids, answers[i], ends) for i, ids in enumerate(prompt_ids)]


def next_tokens(
    logits: torch.Tensor, uniforms: torch.Tensor, temperature: float, top_p: float
) -> torch.Tensor:
    """One token per row by inversion: the first whose cumulative probability exceeds the row's random number."""
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


def _sample_batch(model, prompts, uniforms, most, decoding, end_ids) -> list[list[int]]:
    device = uniforms.device
    ids, mask = padded(prompts, device, "left")
    ends = torch.tensor(sorted(end_ids), dtype=torch.long, device=device)
    answers: list[list[int]] = [[] for _ in prompts]
    rows = np.arange(len(prompts))
    running = np.ones(len(prompts), dtype=bool)
    positions, past = (mask.cumsum(1) - 1).clamp(min=0), None
    for step in range(most.max()):
        output = read_on(model, ids, mask, positions, past, last_only=True)
        past = output.past_key_values
        drawn = next_tokens(output.logits[:, -1], uniforms[:, step], *decoding)
        for row, token, is_running in zip(rows, drawn.tolist(), running, strict=True):
            if is_running:
                answers[row].append(token)
        stopped = (torch.isin(drawn, ends).cpu().numpy() | (most[rows] == step + 1)) & running
        running &= ~stopped
        if not running.any():
            break
        if running.mean() < 0.75:
            # finished rows cost as much as running ones, and copying the cache costs too
            left = torch.from_numpy(np.flatnonzero(running)).to(device)
            past.reorder_cache(left)
            drawn, mask = drawn[left], mask[left]
            positions, uniforms = positions[left], uniforms[left]
            rows, running = rows[running], running[running]
        # a finished row stays where it is, so that it never asks for a position the model does not have
        stepped = torch.from_numpy(running).to(device)[:, None]
        ids, positions = drawn[:, None], positions[:, -1:] + stepped
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
    return answers


def most_tokens(config, prompts: Sequence[TokenIds], max_new_tokens: int) -> Ints:
    """Tokens each answer may have at most, shape (n_prompts,)."""
    lengths = np.array([len(ids) for ids in prompts], int)
    if not lengths.all():
        raise ValueError(
            f"prompt {int(np.argmin(lengths))} has no tokens; an answer needs at least one token to follow"
        )
    limit = getattr(config, "max_position_embeddings", None) or np.inf
    if (lengths >= limit).any():
        first = int(np.argmax(lengths >= limit))
        raise ValueError(
            f"prompt {first} has {lengths[first]} tokens and the model {limit} positions, so none is left for an "
            "answer; shorten the prompt"
        )
    return np.minimum(max_new_tokens, limit - lengths).astype(int)


def end_ids(generation_config, tokenizer) -> set[int]:
    """The tokens that end an answer: those of the model's generation settings, and the tokenizer's."""
    configured = generation_config.eos_token_id
    ids = set(configured) if isinstance(configured, (list, tuple)) else {configured}
    return {int(i) for i in ids | {tokenizer.eos_token_id} if i is not None}


def as_generation(tokenizer, prompt_ids: TokenIds, token_ids: list[int], ends: set[int]) -> Generation:
    """The answer that some sampled tokens are."""
    ended = bool(token_ids) and token_ids[-1] in ends
    body = token_ids[:-1] if ended else token_ids
    text = tokenizer.decode(body, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return Generation(tuple(map(int, prompt_ids)), tuple(token_ids), text, ended)
