"""Tree attention: a prefix that several sequences share goes through the model only once.

A pack (`badpo.training.packing`) is one row of tokens that contains several sequences without padding. Apart from
attention, all layers of a model process each token separately and need no change. badpo registers an attention function
in transformers under the name `TREE_ATTENTION`. The attention function reads a `TreePlan` from a keyword argument of
the model's forward method. Without a `TreePlan`, the attention function computes ordinary attention with the padding
mask, so that generation during training stays exact.

The plan is a keyword argument rather than a context, because gradient checkpointing runs the layers again in the
backward pass. For the same reason, the context `tree_attention` must enclose the backward pass.
"""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.integrations.sdpa_attention import repeat_kv, use_gqa_in_sdpa

from badpo.data.problems import ConfigError

# Attention kernels also compute the scores that a causal mask removes, which doubles the number of scores.
# If the queries of a segment are split into n blocks, the kernels compute only 1 + 1/n times the necessary scores.
_QUERIES_PER_BLOCK = 48
_MOST_BLOCKS = 4
# Query blocks share a padded attention call if padding adds at most 5 % of the attention scores plus 1,024 scores.
# The constant of 1,024 scores represents the fixed cost of a separate attention call.
_PADDING_FACTOR = 1.05
_SCORES_PER_CALL = 1024
# Torch's variable-length attention kernel requires an Ampere GPU (compute capability 8.0) or a newer one.
_FIRST_WITH_VARLEN = (8, 0)
# In older versions of torch, the variable-length kernel requires as many key heads as query heads.
_VARLEN_SHARES_HEADS = "enable_gqa" in inspect.signature(varlen_attn).parameters


class RowGroup(NamedTuple):
    """Query blocks that share one attention call. Each query block is a row of n_query queries and n_key keys."""

    n_rows: int
    n_query: int
    n_key: int
    mask: Tensor | None


@dataclass(frozen=True, eq=False)
class TreePlan:
    """Attention pattern of a packed row: which tokens each token attends to, in the formats that the kernels need."""

    segments: np.ndarray
    device: torch.device

    @property
    def n_tokens(self) -> int:
        """Number of tokens in the packed row."""
        return int(self.segments[-1, 1])

    @property
    def longest(self) -> int:
        """Number of tokens in the longest sequence of the packed row."""
        q_start, q_end, prefix_start, prefix_end = self.segments.T
        return int((q_end - q_start + prefix_end - prefix_start).max())

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        """Compute the attention output of shape (T, heads, value_dim) from the query, key and value tensors.

        Under autocast, the attention output has the precision of autocast, as in torch's own attention.
        """
        device_type = query.device.type
        if torch.is_autocast_enabled(device_type):
            # rotary embeddings return queries and keys in float32, which the variable-length kernel does not accept
            dtype = torch.get_autocast_dtype(device_type)
            query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
        attend = self._attend_varlen if _supports_varlen(query, value) else self._attend_rows
        return attend(query, key, value, scaling)

    def _attend_rows(self, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        """Compute the attention in a few padded batches; this works on every device and in every precision."""
        query_index, key_index, output_index, groups = self._rows
        # All row groups share one index_select, because the backward pass of each call allocates a full gradient.
        queries = query.index_select(0, query_index).split([g.n_rows * g.n_query for g in groups])
        n_keys = [g.n_rows * g.n_key for g in groups]
        keys, values = (t.index_select(0, key_index).split(n_keys) for t in (key, value))
        outputs = []
        for group, *parts in zip(groups, queries, keys, values, strict=True):
            q, k, v = (part.unflatten(0, (group.n_rows, -1)).transpose(1, 2) for part in parts)
            if not _fused_kernel_shares_heads(group.mask, k, v):
                k, v = (repeat_kv(part, query.shape[1] // key.shape[1]) for part in (k, v))
            output = scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=group.mask,
                is_causal=group.mask is None,
                scale=scaling,
                enable_gqa=q.shape[1] != k.shape[1],
            )
            outputs.append(output.transpose(1, 2).flatten(0, 1))
        return torch.cat(outputs).index_select(0, output_index)

    def _attend_varlen(self, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        """Compute the attention with torch's variable-length flash kernel, which requires CUDA and half precision.

        The kernel aligns the causal mask with the end of the keys, so that all queries attend to the whole prefix.
        """
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
    def _rows(self) -> tuple[Tensor, Tensor, Tensor, list[RowGroup]]:
        """Return the query and key indices of all attention calls, the output positions, and the row groups."""
        query_parts, key_parts, groups = [], [], []
        blocks = _blocks(self.segments)
        for members in _similar_blocks(blocks):
            queries, keys = _padded_indices(blocks[members])
            (n_rows, n_query), n_key = queries.shape, keys.shape[1]
            n_before = blocks[members, 2]
            mask = None
            if n_before.any():
                # each query attends to the keys up to its own position; padding keys come after all real queries
                place = n_before[:, None] + np.arange(n_query)
                mask = self._to_device(place[:, None, :, None] >= np.arange(n_key))
            query_parts.append(queries.ravel())
            key_parts.append(keys.ravel())
            groups.append(RowGroup(n_rows, n_query, n_key, mask))
        query_index = np.concatenate(query_parts)
        output_index = np.empty(self.n_tokens, dtype=np.int64)
        # the first occurrence of a query index is the token itself, and all later occurrences are padding
        # the assignment runs in reverse order, so that each query index keeps the position of its first occurrence
        output_index[query_index[::-1]] = np.arange(len(query_index))[::-1]
        indices = (query_index, np.concatenate(key_parts), output_index)
        return *map(self._to_device, indices), groups

    @cached_property
    def _varlen(self) -> tuple[Tensor, Tensor, Tensor, int, int]:
        """Return the arguments that torch's variable-length attention kernel needs for the segments.

        The arguments are the key indices, the cumulative query and key counts over the segments, and the largest query
        and key counts of a segment.
        """
        whole = _blocks(self.segments, most=1)
        n_query = whole[:, 1] - whole[:, 0]
        n_key = n_query + whole[:, 2]
        _, keys = _padded_indices(whole)
        key_index = keys[np.arange(keys.shape[1]) < n_key[:, None]]
        ends = (np.append(0, np.cumsum(n)).astype(np.int32) for n in (n_query, n_key))
        return *map(self._to_device, (key_index, *ends)), int(n_query.max()), int(n_key.max())

    def _to_device(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device, non_blocking=True)


def _supports_varlen(query: Tensor, value: Tensor) -> bool:
    if not query.is_cuda or query.dtype not in (torch.float16, torch.bfloat16):
        return False
    if torch.cuda.get_device_capability(query.device) < _FIRST_WITH_VARLEN or not _VARLEN_SHARES_HEADS:
        return False
    width = query.shape[-1]
    return bool(width == value.shape[-1] and width <= 256 and width % 8 == 0)


def _fused_kernel_shares_heads(mask: Tensor | None, key: Tensor, value: Tensor) -> bool:
    """Whether the device has a fused attention kernel that supports fewer key heads than query heads."""
    return not key.is_cuda or use_gqa_in_sdpa(mask, key, value)


def _blocks(segments: np.ndarray, most: int = _MOST_BLOCKS) -> np.ndarray:
    """Cut each segment into at most ``most`` query blocks; return an int64 array of shape (n_blocks, 5).

    The columns of the array are begin, end, n_before, prefix_start and n_prefix. Each query in [begin, end) attends to
    the n_before tokens before its block and to the block's tokens up to the query's own position. Of the n_before
    tokens, the first n_prefix are the shared prefix, and the rest belong to the same segment as the queries.
    """
    q_start, q_end, prefix_start, prefix_end = segments.T
    n_query, n_prefix = q_end - q_start, prefix_end - prefix_start
    n_blocks = np.clip(n_query // _QUERIES_PER_BLOCK, 1, most)
    segment = np.repeat(np.arange(len(segments)), n_blocks)
    number = np.arange(len(segment)) - np.repeat(np.cumsum(n_blocks) - n_blocks, n_blocks)
    first, last = (n_query[segment] * i // n_blocks[segment] for i in (number, number + 1))
    start, n_prefix = q_start[segment], n_prefix[segment]
    return np.stack(
        [start + first, start + last, n_prefix + first, prefix_start[segment], n_prefix], axis=1
    )


def _similar_blocks(blocks: np.ndarray) -> Iterator[np.ndarray]:
    """Yield groups of query blocks for which one padded attention call is faster than separate calls."""
    begin, end, n_before, *_ = blocks.T
    n_query, n_key = end - begin, end - begin + n_before
    by_size = np.lexsort((n_query, n_key))[::-1]
    for alike in (n_before == 0, n_before > 0):
        rest = by_size[alike[by_size]]
        while len(rest):
            queries, keys = n_query[rest], n_key[rest]
            padded = np.arange(1, len(rest) + 1) * np.maximum.accumulate(queries) * keys[0]
            too_much = padded > _PADDING_FACTOR * np.cumsum(queries * keys) + _SCORES_PER_CALL
            too_much[0] = False
            n = int(too_much.argmax()) or len(rest)
            yield rest[:n]
            rest = rest[n:]


def _padded_indices(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the query and key token indices of each block, padded with the block's last token."""
    begin, end, n_before, prefix_start, n_prefix = blocks[:, :, None].transpose(1, 0, 2)
    queries = np.minimum(begin + np.arange((end - begin).max()), end - 1)
    column = np.arange((end - begin + n_before).max())
    own = np.minimum(begin - n_before + column, end - 1)
    return queries, np.where(column < n_prefix, prefix_start + column, own)


TREE_ATTENTION = "badpo_tree"


class AttentionOptions(TypedDict, total=False):
    """Keyword arguments of attention functions. A `TreePlan` replaces some; `_require_supported` checks the others."""

    position_ids: Tensor
    cache_position: Tensor
    use_cache: bool
    scaling: float | None
    sliding_window: int | None
    dropout: float | None
    is_causal: bool | None


class Rotation(TypedDict, total=False):
    """Settings of rotary position embeddings."""

    rope_type: str | None
    original_max_position_embeddings: int | None
    mrope_section: list[int]


def tree_hidden_states(decoder: PreTrainedModel, pack: Mapping[str, Tensor]) -> Tensor:
    """Return the hidden states of all tokens in a packed row, as if each sequence had a forward pass of its own.

    Call this function inside the context `tree_attention`.
    """
    input_ids = pack["input_ids"]
    plan = TreePlan(pack["segments"], input_ids.device)
    # some models do not pass their sliding window to the attention function, so badpo checks the configuration
    reason = unsupported_reason(decoder.config, plan.longest)
    if reason:
        raise ValueError(
            f"the packed forward does not support this model, which has {reason}; use the padded forward"
        )
    output = decoder(
        input_ids=input_ids[None],
        position_ids=pack["position_ids"][None],
        # Transformers passes an empty four-dimensional attention mask to the attention function unchanged.
        # An attention function that ignores the tree plan fails on the empty mask instead of returning wrong values.
        attention_mask=torch.zeros(1, 1, 0, 0, dtype=torch.bool, device=input_ids.device),
        tree_plan=plan,
        use_cache=False,
        return_dict=True,
    )
    return output.last_hidden_state[0]


@contextmanager
def tree_attention(model: PreTrainedModel) -> Iterator[None]:
    """Context manager that makes ``model`` use tree attention.

    The context must enclose the entire training or scoring, including every backward pass. Inside the context, forward
    passes without a packed row, such as those of generation, use ``sdpa`` attention. If a model is saved inside the
    context, the saved configuration does not mention tree attention.
    """
    if not model._can_set_attn_implementation():
        raise ValueError(
            f"{type(model).__name__} cannot switch its attention to tree attention; use the padded forward"
        )
    AttentionInterface.register(TREE_ATTENTION, tree_attention_forward)
    # Transformers ignores the padding mask unless a mask function is registered under the attention function's name.
    AttentionMaskInterface.register(TREE_ATTENTION, AttentionMaskInterface()["sdpa"])
    ordinary = model.config._attn_implementation
    model.set_attn_implementation(TREE_ATTENTION)
    try:
        yield
    finally:
        model.set_attn_implementation(ordinary)


def tree_attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    tree_plan: TreePlan | None = None,
    **options: Unpack[AttentionOptions],
) -> tuple[Tensor, None]:
    """Attention function for transformers: tree attention if ``tree_plan`` is given, ``sdpa`` otherwise."""
    if tree_plan is None:
        if attention_mask is not None and attention_mask.numel() == 0:
            raise RuntimeError(
                f"{type(module).__name__} did not receive the tree plan of the packed forward; use the padded forward"
            )
        attend = AttentionInterface()["sdpa"]
        output, weights = attend(module, query, key, value, attention_mask, **options)
        return output, weights
    _require_supported(module, tree_plan, options)
    n_tokens = tree_plan.n_tokens
    if query.shape[0] != 1 or query.shape[2] != n_tokens or key.shape[2] != n_tokens:
        raise ValueError(
            f"the tree plan describes one row of {n_tokens} tokens, but the queries have the shape "
            f"{tuple(query.shape)} and the keys have the shape {tuple(key.shape)}. Turn off the key-value cache, which "
            "cannot be used with a packed row"
        )
    query, key, value = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    return tree_plan.attend(query, key, value, options.get("scaling"))[None], None


def _require_supported(module: torch.nn.Module, plan: TreePlan, options: AttentionOptions) -> None:
    """Raise `ValueError` if an attention layer needs a feature that tree attention does not support."""
    used = {name for name, value in options.items() if value is not None and value is not False}
    problems = sorted(used - AttentionOptions.__annotations__.keys())
    window, dropout = options.get("sliding_window"), options.get("dropout")
    if window and plan.longest > window:
        problems.append(f"a sliding window of {window} tokens on sequences of {plan.longest} tokens")
    if dropout:
        problems.append(
            f"attention dropout of {dropout:g}, which both responses of a comparison would share"
        )
    if options.get("is_causal") is False or getattr(module, "is_causal", True) is False:
        problems.append("attention that is not causal")
    if problems:
        raise ValueError(
            f"{type(module).__name__} uses features that tree attention does not support: {'; '.join(problems)}. "
            "Turn off these features of the model, or use the padded forward"
        )


def unsupported_reason(config: PreTrainedConfig, longest: int | None = None) -> str | None:
    """Return a model feature that tree attention does not support, or None if it supports all features."""
    text = config.get_text_config()
    if getattr(text, "is_encoder_decoder", False):
        return "an encoder"
    if getattr(text, "num_attention_heads", None) is None:
        return "no attention heads (the model may have recurrent layers)"
    if any("mrope_section" in rope or "mrope" in rope.values() for rope in _read_rotations(text)):
        return "rotary positions in several dimensions (M-RoPE)"
    if getattr(text, "alibi", False) or text.model_type in ("bloom", "mpt"):
        return "attention biases by distance (ALiBi)"
    if getattr(text, "attn_logit_softcapping", None) is not None:
        return f"attention scores capped at {text.attn_logit_softcapping:g} (soft-capping)"
    layers = (getattr(text, name, None) or () for name in ("layer_types", "attention_layers"))
    layer_types = {kind for kinds in layers for kind in kinds}
    if other := layer_types - {"full_attention", "sliding_attention", "global"}:
        return f"layers of type {', '.join(sorted(other))}"
    window = getattr(text, "sliding_window", None)
    if "sliding_attention" in layer_types and window is None:
        return "sliding-window layers of unknown length"
    # some models without a sliding window set `sliding_window` to 0, and some set a window that no layer uses
    slides = not layer_types or "sliding_attention" in layer_types
    if window and slides and (longest is None or longest > window):
        return f"a sliding window of {window} tokens"
    return None


def require_fixed_positions(config: PreTrainedConfig, longest: int) -> None:
    """Raise `ConfigError` if a sequence exceeds learned positions, or if its positions depend on other sequences.

    If one sequence is longer than the model's original context length, "longrope" and dynamic NTK scaling change the
    rotary frequencies for the whole forward pass. Dynamic NTK scaling keeps the changed frequencies for later forward
    passes.
    """
    text = config.get_text_config()
    rotations, n_positions = _read_rotations(text), getattr(text, "max_position_embeddings", None)
    if not rotations and n_positions is not None and longest > n_positions:
        raise ConfigError(
            f"the model has {n_positions} positions, but the longest prompt with its response has {longest} tokens; "
            f"set max_length: {n_positions}"
        )
    for rope in rotations:
        kind, original = rope.get("rope_type") or "", None
        if kind == "longrope":
            original = rope.get("original_max_position_embeddings")
        elif "dynamic" not in kind:
            continue
        original = original or text.max_position_embeddings
        if longest > original:
            raise ConfigError(
                f'if one sequence in a batch is longer than {original} tokens, the rotary positions ("{kind}") of this '
                f"model change for the whole batch. The longest prompt with its response has {longest} tokens, so "
                "a sequence's log-probabilities would depend on the other sequences in its batch; set "
                f"max_length: {original}"
            )


def _read_rotations(text: PreTrainedConfig) -> list[Rotation]:
    """Return a model's rotary embedding settings: those for all layers and those for each layer type."""
    rope = getattr(text, "rope_parameters", None)
    return [rope, *(part for part in rope.values() if hasattr(part, "values"))] if rope else []
