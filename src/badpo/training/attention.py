"""Attention over token trees: each prefix goes through the model once, and nothing else changes.

A pack (`badpo.training.packing`) is one flat row. Every layer but attention works on single tokens and needs no
change; attention is replaced by a function that is registered with transformers under the name `TREE_ATTENTION`
and reads a `TreePlan` from a keyword of the model's forward. Without a plan it is the model's ordinary attention,
padding mask included, so that generation during training stays exact.

The plan travels as a keyword and not as a surrounding context because gradient checkpointing runs the layers a
second time in the backward pass. For the same reason `tree_attention` must still be open when that happens.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface

from badpo.data.problems import ConfigError

# The kernels compute scores that a causal mask then drops. A segment is attended to in blocks of queries, each with
# the keys up to its own end: with n blocks, 1 + 1/n times the scores needed instead of twice as many.
_QUERIES_PER_BLOCK = 48
_MOST_BLOCKS = 4
# Blocks share one padded attention call while the scores computed exceed those of the blocks by at most a twentieth,
# plus what a call of its own would cost.
_PADDING_FACTOR = 1.05
_SCORES_PER_CALL = 1024
# Compute capability of the first cards (Ampere) that the variable-length kernel runs on.
_FIRST_WITH_VARLEN = (8, 0)


class RowGroup(NamedTuple):
    """Blocks of similar size that are attended to in one call: n rows, padded to n_query and n_key tokens."""

    n_rows: int
    n_query: int
    n_key: int
    mask: torch.Tensor | None


@dataclass(frozen=True, eq=False)
class TreePlan:
    """Which tokens of a flat row see which, in the forms that the attention kernels take."""

    segments: np.ndarray
    n_tokens: int
    device: torch.device

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence in the pack, as the model sees it."""
        q_start, q_end, prefix_start, prefix_end = self.segments.T
        return int((q_end - q_start + prefix_end - prefix_start).max(initial=0))

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None
    ) -> torch.Tensor:
        """Attention output of shape (T, heads, value_dim) for query, key, value of shape (T, heads, head_dim).

        Under autocast it is computed in autocast's precision, as by torch's own attention.
        """
        device_type = query.device.type
        if torch.is_autocast_enabled(device_type):
            # rotary embeddings leave queries and keys in float32, which the variable-length kernel does not take
            dtype = torch.get_autocast_dtype(device_type)
            query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
        if _varlen_serves(query, value):
            return self._attend_varlen(query, key, value, scaling)
        return self._attend_rows(query, key, value, scaling)

    def _attend_rows(self, query, key, value, scaling) -> torch.Tensor:
        """Segments gathered into a few padded batches; exact on every device and in every precision."""
        query_index, key_index, output_index, groups = self._rows
        # One gather for all groups: each index_select costs a zero-filled full-length gradient in the backward.
        queries = query.index_select(0, query_index).split([g.n_rows * g.n_query for g in groups])
        n_keys = [g.n_rows * g.n_key for g in groups]
        keys = key.index_select(0, key_index).split(n_keys)
        values = value.index_select(0, key_index).split(n_keys)
        outputs = []
        for group, q, k, v in zip(groups, queries, keys, values, strict=True):
            n_rows, n_query, n_key, mask = group
            output = scaled_dot_product_attention(
                q.unflatten(0, (n_rows, n_query)).transpose(1, 2),
                k.unflatten(0, (n_rows, n_key)).transpose(1, 2),
                v.unflatten(0, (n_rows, n_key)).transpose(1, 2),
                attn_mask=mask,
                is_causal=mask is None,
                scale=scaling,
                enable_gqa=query.shape[1] != key.shape[1],
            )
            outputs.append(output.transpose(1, 2).flatten(0, 1))
        return torch.cat(outputs).index_select(0, output_index)

    def _attend_varlen(self, query, key, value, scaling) -> torch.Tensor:
        """Segments through torch's variable-length flash kernel. Runs on CUDA in half precision only.

        The kernel aligns the causal triangle with the end of the keys, so that a branch sees its whole prefix.
        """
        from torch.nn.attention.varlen import varlen_attn

        key_index, *places = self._varlen
        return varlen_attn(
            query.contiguous(),
            key.index_select(0, key_index),
            value.index_select(0, key_index),
            *places,
            scale=scaling,
            window_size=(-1, 0),
            enable_gqa=query.shape[1] != key.shape[1],
        )

    @cached_property
    def _rows(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[RowGroup]]:
        query_parts, key_parts, groups = [], [], []
        output_index = np.empty(self.n_tokens, dtype=np.int64)
        n_gathered = 0
        blocks = _blocks(self.segments)
        for members in _similar_blocks(blocks):
            part = blocks[members]
            queries, keys = _padded_indices(part)
            (n_rows, n_query), n_key = queries.shape, keys.shape[1]
            real = np.arange(n_query) < (part[:, 1] - part[:, 0])[:, None]
            output_index[queries[real]] = n_gathered + np.flatnonzero(real)
            n_gathered += queries.size
            query_parts.append(queries.ravel())
            key_parts.append(keys.ravel())
            groups.append(RowGroup(n_rows, n_query, n_key, self._mask(part, n_query, n_key)))
        to_device = self._to_device
        return (
            to_device(np.concatenate(query_parts)),
            to_device(np.concatenate(key_parts)),
            to_device(output_index),
            groups,
        )

    def _mask(self, part: np.ndarray, n_query: int, n_key: int) -> torch.Tensor | None:
        n_before = _n_before(part)
        if not n_before.any():
            return None
        # The place of a query among its keys; padded keys lie behind every real query.
        place = n_before[:, None] + np.arange(n_query)
        return self._to_device(place[:, None, :, None] >= np.arange(n_key))

    @cached_property
    def _varlen(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, int]:
        whole = _blocks(self.segments, most=1)
        n_query = whole[:, 1] - whole[:, 0]
        n_key = n_query + _n_before(whole)
        _, keys = _padded_indices(whole)
        key_index = keys[np.arange(keys.shape[1]) < n_key[:, None]]
        ends = [np.concatenate([[0], np.cumsum(n)]).astype(np.int32) for n in (n_query, n_key)]
        return (
            self._to_device(key_index),
            self._to_device(ends[0]),
            self._to_device(ends[1]),
            int(n_query.max()),
            int(n_key.max()),
        )

    def _to_device(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device, non_blocking=True)


def _varlen_serves(query: torch.Tensor, value: torch.Tensor) -> bool:
    if not query.is_cuda or query.dtype not in (torch.float16, torch.bfloat16):
        return False
    if torch.cuda.get_device_capability(query.device) < _FIRST_WITH_VARLEN:
        return False
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return False
    width = query.shape[-1]
    if query.dtype != value.dtype or width != value.shape[-1] or width > 256 or width % 8:
        return False
    return {"window_size", "enable_gqa"} <= inspect.signature(varlen_attn).parameters.keys()


def _blocks(segments: np.ndarray, most: int = _MOST_BLOCKS) -> np.ndarray:
    """Segments cut into at most ``most`` blocks of queries, int64 of shape (n_blocks, 5).

    Columns begin, end, q_start, prefix_start, prefix_end. The queries [begin, end) see the prefix, and the segment's
    own tokens from q_start up to their own place.
    """
    q_start, q_end, prefix_start, prefix_end = segments.T
    n_query = q_end - q_start
    n_blocks = np.clip(n_query // _QUERIES_PER_BLOCK, 1, most)
    of = np.repeat(np.arange(len(segments)), n_blocks)
    number = np.arange(len(of)) - np.repeat(np.cumsum(n_blocks) - n_blocks, n_blocks)
    begin, end = (q_start[of] + n_query[of] * i // n_blocks[of] for i in (number, number + 1))
    return np.stack([begin, end, q_start[of], prefix_start[of], prefix_end[of]], axis=1)


def _n_before(blocks: np.ndarray) -> np.ndarray:
    """How many keys every block sees before its own first token."""
    begin, _, q_start, prefix_start, prefix_end = blocks.T
    return begin - q_start + prefix_end - prefix_start


def _similar_blocks(blocks: np.ndarray) -> Iterator[np.ndarray]:
    """Positions of blocks that are worth one padded attention call together."""
    n_query = blocks[:, 1] - blocks[:, 0]
    n_before = _n_before(blocks)
    for alike in (n_before == 0, n_before > 0):
        members: list[int] = []
        needed = longest_query = longest_key = 0
        positions = np.flatnonzero(alike)
        by_size = np.lexsort((n_query[positions], (n_query + n_before)[positions]))[::-1]
        for i in positions[by_size]:
            query, key = int(n_query[i]), int(n_query[i] + n_before[i])
            padded = (len(members) + 1) * max(longest_query, query) * max(longest_key, key)
            if members and padded > _PADDING_FACTOR * (needed + query * key) + _SCORES_PER_CALL:
                yield np.array(members)
                members, needed, longest_query, longest_key = [], 0, 0, 0
            members.append(int(i))
            needed += query * key
            longest_query, longest_key = max(longest_query, query), max(longest_key, key)
        if members:
            yield np.array(members)


def _padded_indices(part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Token indices of the queries and of the keys (prefix, then own) of blocks, padded with the last own token."""
    begin, end, q_start, prefix_start, prefix_end = part[:, :, None].transpose(1, 0, 2)
    n_prefix = prefix_end - prefix_start
    queries = np.minimum(begin + np.arange((end - begin).max()), end - 1)
    column = np.arange((n_prefix + end - q_start).max())
    own = np.minimum(q_start + column - n_prefix, end - 1)
    return queries, np.where(column < n_prefix, prefix_start + column, own)


TREE_ATTENTION = "badpo_tree"

# Keywords that models hand to every attention function and that a plan already settles.
_SETTLED_BY_THE_PLAN = frozenset({"position_ids", "cache_position", "use_cache"})


def tree_hidden_states(decoder, pack: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Last hidden state of every token of a pack, equal to those of the plain forward of each sequence.

    To be called inside `tree_attention`.
    """
    input_ids = pack["input_ids"]
    segments = torch.as_tensor(pack["segments"]).cpu().numpy()
    plan = TreePlan(segments, len(input_ids), input_ids.device)
    # not every model that slides says so to its attention function
    reason = unsupported_reason(decoder.config, plan.longest)
    if reason:
        raise ValueError(
            f"the packed forward cannot serve this model: it has {reason}; use the padded forward"
        )
    output = decoder(
        input_ids=input_ids[None],
        position_ids=pack["position_ids"][None],
        # An empty four-dimensional mask is passed on as it is, and every attention that does not know the plan
        # fails on it instead of attending wrongly.
        attention_mask=torch.zeros(1, 1, 0, 0, dtype=torch.bool, device=input_ids.device),
        tree_plan=plan,
        use_cache=False,
        return_dict=True,
    )
    return output.last_hidden_state[0]


@contextmanager
def tree_attention(model) -> Iterator[None]:
    """Switch the attention of ``model`` to the tree attention, and back on leaving.

    To be open around training or scoring as a whole, backward passes included. Forwards without a pack, such as
    generation, are those of ``sdpa`` meanwhile; a configuration saved meanwhile keeps no trace of the name.
    """
    if not model._can_set_attn_implementation():
        raise ValueError(f"{type(model).__name__} cannot switch its attention; use the padded forward")
    AttentionInterface.register(TREE_ATTENTION, tree_attention_forward)
    # Without a mask function of that name transformers drops the padding mask of ordinary forwards.
    AttentionMaskInterface.register(TREE_ATTENTION, AttentionMaskInterface()["sdpa"])
    ordinary = model.config._attn_implementation
    model.set_attn_implementation(TREE_ATTENTION)
    try:
        yield
    finally:
        model.set_attn_implementation(ordinary)


def tree_attention_forward(
    module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    tree_plan: TreePlan | None = None,
    **options,
) -> tuple[torch.Tensor, None]:
    """Attention function for transformers: over a tree where a plan is given, ``sdpa`` where none is."""
    if tree_plan is None:
        if attention_mask is not None and attention_mask.numel() == 0:
            raise RuntimeError(
                f"{type(module).__name__} did not receive the tree plan; use the padded forward"
            )
        ordinary = AttentionInterface()["sdpa"]
        return ordinary(
            module,
            query,
            key,
            value,
            attention_mask,
            dropout=dropout,
            scaling=scaling,
            is_causal=is_causal,
            **options,
        )
    _refuse(module, tree_plan, dropout, is_causal, options)
    if query.shape[0] != 1 or query.shape[2] != tree_plan.n_tokens or key.shape[2] != tree_plan.n_tokens:
        raise ValueError(
            f"the plan is for one row of {tree_plan.n_tokens} tokens; got queries {tuple(query.shape)} and "
            f"keys {tuple(key.shape)}. A key-value cache cannot be used with a pack"
        )
    query, key, value = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    return tree_plan.attend(query, key, value, scaling)[None], None


def unsupported_reason(config, longest: int | None = None) -> str | None:
    """Why a model's attention cannot be run over token trees, as a noun phrase; None where it can."""
    text = config.get_text_config()
    if getattr(text, "is_encoder_decoder", False):
        return "an encoder"
    if getattr(text, "num_attention_heads", None) is None:
        return "no attention heads, or recurrent layers instead of them"
    if _mentions_mrope(getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None)):
        return "rotary positions in several dimensions (M-RoPE)"
    if getattr(text, "alibi", False) or text.model_type in ("bloom", "mpt"):
        return "attention biases by distance (ALiBi)"
    if getattr(text, "attn_logit_softcapping", None) is not None:
        return f"attention scores capped at {text.attn_logit_softcapping:g} (soft-capping)"
    layer_types = set(getattr(text, "layer_types", None) or ()) | set(
        getattr(text, "attention_layers", None) or ()
    )
    other = layer_types - {"full_attention", "sliding_attention", "global"}
    if other:
        return f"layers of type {', '.join(sorted(other))}"
    window = getattr(text, "sliding_window", None)
    if "sliding_attention" in layer_types and window is None:
        return "sliding-window layers of unknown length"
    # some models write a window of 0 where there is none, and some a window that none of their layers has
    slides = not layer_types or "sliding_attention" in layer_types
    if window and slides and (longest is None or longest > window):
        return f"a sliding window of {window} tokens"
    return None


def require_fixed_positions(config, longest: int) -> None:
    """Refuse sequences for which a model's rotary positions depend on what shares the forward with them.

    "longrope" and dynamic NTK scaling take other frequencies for the whole forward as soon as one sequence in it is
    longer than the original length; dynamic scaling keeps them for later ones.
    """
    text = config.get_text_config()
    rope = getattr(text, "rope_parameters", None) or {}
    for part in (rope, *(value for value in rope.values() if isinstance(value, dict))):
        kind = part.get("rope_type") or ""
        if kind == "longrope":
            original = part.get("original_max_position_embeddings") or text.max_position_embeddings
        elif "dynamic" in kind:
            original = text.max_position_embeddings
        else:
            continue
        if longest > original:
            raise ConfigError(
                f'this model\'s rotary positions ("{kind}") change for everything in a forward where one sequence is '
                f"longer than {original} tokens, and the longest prompt with a response has {longest}, so that no "
                f"log-probability would be well defined; set max_length: {original}"
            )


def _refuse(module, plan: TreePlan, dropout: float, is_causal: bool | None, options: dict) -> None:
    window = options.pop("sliding_window", None)
    asked = {name for name, value in options.items() if value is not None and value is not False}
    problems = sorted(asked - _SETTLED_BY_THE_PLAN)
    if window and plan.longest > window:
        problems.append(f"a sliding window of {window} tokens on sequences of {plan.longest}")
    if dropout:
        problems.append(f"attention dropout of {dropout:g}, which would be shared by both responses")
    if is_causal is False or getattr(module, "is_causal", True) is False:
        problems.append("attention that is not causal")
    if problems:
        raise ValueError(
            f"{type(module).__name__} asks for what the tree attention does not do: {'; '.join(problems)}. "
            "Turn it off, or use the padded forward"
        )


def _mentions_mrope(rope) -> bool:
    if not isinstance(rope, dict):
        return False
    return (
        "mrope_section" in rope
        or "mrope" in rope.values()
        or any(_mentions_mrope(part) for part in rope.values())
    )
