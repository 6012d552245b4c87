"""Attention over token trees: each prefix goes through the model once, and nothing else changes.

A pack (`badpo.training.packing`) is one flat row. Every layer but attention works on single tokens and needs no
change; attention is replaced by a function that is registered with transformers under the name `TREE_ATTENTION`
and reads a `TreePlan` from a keyword of the model's forward. Without a plan it is the model's ordinary attention,
padding mask included, so that generation during training stays exact.

The plan travels as a keyword and not as a surrounding context because gradient checkpointing runs the layers a
second time in the backward pass. For the same reason `tree_attention` must still be open when that happens.
"""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import repeat_kv, use_gqa_in_sdpa

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
# Older ones want as many heads of keys as of queries.
_VARLEN_SHARES_HEADS = "enable_gqa" in inspect.signature(varlen_attn).parameters


class RowGroup(NamedTuple):
    """Blocks of similar size that are attended to in one call: n rows, padded to n_query and n_key tokens."""

    n_rows: int
    n_query: int
    n_key: int
    mask: Tensor | None


@dataclass(frozen=True, eq=False)
class TreePlan:
    """Which tokens of a flat row see which, in the forms that the attention kernels take."""

    segments: np.ndarray
    device: torch.device

    @property
    def n_tokens(self) -> int:
        """Tokens of the row."""
        return int(self.segments[-1, 1])

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence in the pack, as the model sees it."""
        q_start, q_end, prefix_start, prefix_end = self.segments.T
        return int((q_end - q_start + prefix_end - prefix_start).max())

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        """Attention output of shape (T, heads, value_dim) for query, key, value of shape (T, heads, head_dim).

        Under autocast it is computed in autocast's precision, as by torch's own attention.
        """
        device_type = query.device.type
        if torch.is_autocast_enabled(device_type):
            # rotary embeddings leave queries and keys in float32, which the variable-length kernel does not take
            dtype = torch.get_autocast_dtype(device_type)
            query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
        attend = self._attend_varlen if _varlen_serves(query, value) else self._attend_rows
        return attend(query, key, value, scaling)

    def _attend_rows(self, query, key, value, scaling) -> Tensor:
        """Segments gathered into a few padded batches; exact on every device and in every precision."""
        query_index, key_index, output_index, groups = self._rows
        # One gather for all groups: each index_select costs a zero-filled full-length gradient in the backward.
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

    def _attend_varlen(self, query, key, value, scaling) -> Tensor:
        """Segments through torch's variable-length flash kernel. Runs on CUDA in half precision only.

        The kernel aligns the causal triangle with the end of the keys, so that a branch sees its whole prefix.
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
        """Which tokens are gathered as queries and as keys, where each token's output then lies, and the calls."""
        query_parts, key_parts, groups = [], [], []
        blocks = _blocks(self.segments)
        for members in _similar_blocks(blocks):
            queries, keys = _padded_indices(blocks[members])
            (n_rows, n_query), n_key = queries.shape, keys.shape[1]
            n_before = blocks[members, 2]
            mask = None
            if n_before.any():
                # the place of a query among its keys; padded keys lie behind every real query
                place = n_before[:, None] + np.arange(n_query)
                mask = self._to_device(place[:, None, :, None] >= np.arange(n_key))
            query_parts.append(queries.ravel())
            key_parts.append(keys.ravel())
            groups.append(RowGroup(n_rows, n_query, n_key, mask))
        query_index = np.concatenate(query_parts)
        output_index = np.empty(self.n_tokens, dtype=np.int64)
        # of equal ones the first is assigned last: the others are padding
        output_index[query_index[::-1]] = np.arange(len(query_index))[::-1]
        indices = (query_index, np.concatenate(key_parts), output_index)
        return *map(self._to_device, indices), groups

    @cached_property
    def _varlen(self) -> tuple[Tensor, Tensor, Tensor, int, int]:
        """Which tokens are gathered as keys, where each segment's queries and keys end, and the most of either."""
        whole = _blocks(self.segments, most=1)
        n_query = whole[:, 1] - whole[:, 0]
        n_key = n_query + whole[:, 2]
        _, keys = _padded_indices(whole)
        key_index = keys[np.arange(keys.shape[1]) < n_key[:, None]]
        ends = (np.append(0, np.cumsum(n)).astype(np.int32) for n in (n_query, n_key))
        return *map(self._to_device, (key_index, *ends)), int(n_query.max()), int(n_key.max())

    def _to_device(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device, non_blocking=True)


def _varlen_serves(query: Tensor, value: Tensor) -> bool:
    if not query.is_cuda or query.dtype not in (torch.float16, torch.bfloat16):
        return False
    if torch.cuda.get_device_capability(query.device) < _FIRST_WITH_VARLEN or not _VARLEN_SHARES_HEADS:
        return False
    width = query.shape[-1]
    return width == value.shape[-1] and width <= 256 and width % 8 == 0


def _fused_kernel_shares_heads(mask: Tensor | None, key: Tensor, value: Tensor) -> bool:
    """Whether fewer heads of keys than of queries leave a kernel on this device that does not store all scores."""
    return not key.is_cuda or use_gqa_in_sdpa(mask, key, value)


def _blocks(segments: np.ndarray, most: int = _MOST_BLOCKS) -> np.ndarray:
    """Segments cut into at most ``most`` blocks of queries, int64 of shape (n_blocks, 5).

    Columns begin, end, n_before, prefix_start, n_prefix. The queries [begin, end) see n_before tokens before the first
    of them, of which n_prefix are the prefix and the others their own segment's, and themselves up to their own place.
    """
    q_start, q_end, prefix_start, prefix_end = segments.T
    n_query, n_prefix = q_end - q_start, prefix_end - prefix_start
    n_blocks = np.clip(n_query // _QUERIES_PER_BLOCK, 1, most)
    of = np.repeat(np.arange(len(segments)), n_blocks)
    number = np.arange(len(of)) - np.repeat(np.cumsum(n_blocks) - n_blocks, n_blocks)
    first, last = (n_query[of] * i // n_blocks[of] for i in (number, number + 1))
    start, n_prefix = q_start[of], n_prefix[of]
    return np.stack([start + first, start + last, n_prefix + first, prefix_start[of], n_prefix], axis=1)


def _similar_blocks(blocks: np.ndarray) -> Iterator[np.ndarray]:
    """Positions of blocks that are worth one padded attention call together."""
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
    """Token indices of the queries and of the keys (prefix, then own) of blocks, padded with the last own token."""
    begin, end, n_before, prefix_start, n_prefix = blocks[:, :, None].transpose(1, 0, 2)
    queries = np.minimum(begin + np.arange((end - begin).max()), end - 1)
    column = np.arange((end - begin + n_before).max())
    own = np.minimum(begin - n_before + column, end - 1)
    return queries, np.where(column < n_prefix, prefix_start + column, own)


TREE_ATTENTION = "badpo_tree"

# Keywords of attention functions that a plan already settles, and those that are looked at by name.
_SETTLED = {"position_ids", "cache_position", "use_cache", "scaling"}
_SETTLED |= {"sliding_window", "dropout", "is_causal"}


def tree_hidden_states(decoder, pack: Mapping[str, Any]) -> Tensor:
    """Last hidden state of every token of a pack, equal to those of the plain forward of each sequence.

    To be called inside `tree_attention`.
    """
    input_ids = pack["input_ids"]
    plan = TreePlan(pack["segments"], input_ids.device)
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
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    tree_plan: TreePlan | None = None,
    **options,
) -> tuple[Tensor, None]:
    """Attention function for transformers: over a tree where a plan is given, ``sdpa`` where none is."""
    if tree_plan is None:
        if attention_mask is not None and attention_mask.numel() == 0:
            raise RuntimeError(
                f"{type(module).__name__} did not receive the tree plan; use the padded forward"
            )
        return AttentionInterface()["sdpa"](module, query, key, value, attention_mask, **options)
    _refuse(module, tree_plan, options)
    n_tokens = tree_plan.n_tokens
    if query.shape[0] != 1 or query.shape[2] != n_tokens or key.shape[2] != n_tokens:
        raise ValueError(
            f"the plan is for one row of {n_tokens} tokens; got queries {tuple(query.shape)} and "
            f"keys {tuple(key.shape)}. A key-value cache cannot be used with a pack"
        )
    query, key, value = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    return tree_plan.attend(query, key, value, options.get("scaling"))[None], None


def _refuse(module, plan: TreePlan, options: Mapping[str, Any]) -> None:
    """Raise `ValueError` where an attention layer is asked for what a plan does not settle."""
    asked = {name: value for name, value in options.items() if value is not None and value is not False}
    problems = sorted(asked.keys() - _SETTLED)
    window, dropout = asked.get("sliding_window"), asked.get("dropout")
    if window and plan.longest > window:
        problems.append(f"a sliding window of {window} tokens on sequences of {plan.longest}")
    if dropout:
        problems.append(f"attention dropout of {dropout:g}, which would be shared by both responses")
    if options.get("is_causal") is False or getattr(module, "is_causal", True) is False:
        problems.append("attention that is not causal")
    if problems:
        raise ValueError(
            f"{type(module).__name__} asks for what the tree attention does not do: {'; '.join(problems)}. "
            "Turn it off, or use the padded forward"
        )


def unsupported_reason(config, longest: int | None = None) -> str | None:
    """Why a model's attention cannot be run over token trees, as a noun phrase; None where it can."""
    text = config.get_text_config()

    def setting(name: str) -> Any:
        return getattr(text, name, None)

    if setting("is_encoder_decoder"):
        return "an encoder"
    if setting("num_attention_heads") is None:
        return "no attention heads, or recurrent layers instead of them"
    if any("mrope_section" in rope or "mrope" in rope.values() for rope in _rotations(text)):
        return "rotary positions in several dimensions (M-RoPE)"
    if setting("alibi") or text.model_type in ("bloom", "mpt"):
        return "attention biases by distance (ALiBi)"
    if setting("attn_logit_softcapping") is not None:
        return f"attention scores capped at {text.attn_logit_softcapping:g} (soft-capping)"
    layer_types = {*(setting("layer_types") or ()), *(setting("attention_layers") or ())}
    other = layer_types - {"full_attention", "sliding_attention", "global"}
    if other:
        return f"layers of type {', '.join(sorted(other))}"
    window = setting("sliding_window")
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
    for rope in _rotations(text):
        kind, original = rope.get("rope_type") or "", None
        if kind == "longrope":
            original = rope.get("original_max_position_embeddings")
        elif "dynamic" not in kind:
            continue
        original = original or text.max_position_embeddings
        if longest > original:
            raise ConfigError(
                f'this model\'s rotary positions ("{kind}") change for everything in a forward where one sequence is '
                f"longer than {original} tokens, and the longest prompt with a response has {longest}, so that no "
                f"log-probability would be well defined; set max_length: {original}"
            )


def _rotations(text) -> list[dict[str, Any]]:
    """The settings of a model's rotary positions: of all layers, and of each type of layer."""
    rope = getattr(text, "rope_parameters", None) or {}
    return [rope, *(part for part in rope.values() if isinstance(part, dict))]
