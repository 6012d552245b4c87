"""Attention over token trees: each prefix goes through the model once, and nothing else changes.

A pack (`badpo.training.packing`) is one flat row. Every layer but attention works on single tokens and needs no
change; attention is replaced by a function that is registered with transformers under the name `TREE_ATTENTION`
and reads a `TreePlan` from a keyword of the model's forward. Without a plan it is the model's ordinary attention,
padding mask included, so that generation during training stays exact.

The plan travels as a keyword and not as a surrounding context because gradient checkpointing runs the layers a
second time in the backward pass. For the same reason `tree_attention` must still be open when that happens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface

from badpo.data.problems import ConfigError
from badpo.training.tree_plan import TreePlan

TREE_ATTENTION = "badpo_tree"

# Keywords that models hand to every attention function and that a plan already settles.
_SETTLED_BY_THE_PLAN = frozenset({"position_ids", "cache_position", "use_cache"})


def tree_hidden_states(decoder, pack: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Last hidden state of every token of a pack, equal to those of the plain forward of each sequence.

    Inside `tree_attention` the tree attention runs. Outside it, or for a model that cannot switch its attention,
    a dense mask of shape (T, T) is used with the model's own ``sdpa`` or ``eager`` attention: exact too, but
    T squared in memory.
    """
    input_ids = pack["input_ids"]
    segments = torch.as_tensor(pack["segments"]).cpu().numpy()
    plan = TreePlan(segments, len(input_ids), input_ids.device)
    reason = unsupported_reason(decoder.config, plan.longest)
    if reason:
        raise ValueError(
            f"the packed forward cannot serve this model: it has {reason}; use the padded forward"
        )
    implementation = decoder.config._attn_implementation
    if implementation == TREE_ATTENTION:
        # An empty four-dimensional mask is passed on as it is, and every attention that does not know the plan
        # fails on it instead of attending wrongly.
        inputs = {
            "attention_mask": torch.zeros(1, 1, 0, 0, dtype=torch.bool, device=plan.device),
            "tree_plan": plan,
        }
    elif implementation in ("sdpa", "eager"):
        inputs = {"attention_mask": _dense_mask(plan, implementation, decoder.dtype)}
    else:
        raise ValueError(
            f'the packed forward needs attention "sdpa" or "eager", the model has "{implementation}"; '
            'load it with attn_implementation="sdpa"'
        )
    output = decoder(
        input_ids=input_ids[None],
        position_ids=pack["position_ids"][None],
        use_cache=False,
        return_dict=True,
        **inputs,
    )
    return output.last_hidden_state[0]


@contextmanager
def tree_attention(model) -> Iterator[str]:
    """Switch the attention of ``model`` to the tree attention, and back on leaving.

    To be open around training or scoring as a whole, backward passes included. Forwards without a pack, such as
    generation, are those of ``sdpa`` meanwhile; a configuration saved meanwhile keeps no trace of the name.
    """
    reason = unsupported_reason(model.config, longest=0)
    if reason:
        raise ValueError(
            f"the packed forward cannot serve this model: it has {reason}; use the padded forward"
        )
    AttentionInterface.register(TREE_ATTENTION, tree_attention_forward)
    # Without a mask function of that name transformers drops the padding mask of ordinary forwards.
    AttentionMaskInterface.register(TREE_ATTENTION, AttentionMaskInterface()["sdpa"])
    ordinary = model.config._attn_implementation
    model.set_attn_implementation(TREE_ATTENTION)
    try:
        yield "tree" if model.config._attn_implementation == TREE_ATTENTION else "dense"
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


def _dense_mask(plan: TreePlan, implementation: str, dtype: torch.dtype) -> torch.Tensor:
    """The plan as a mask of shape (1, 1, T, T): boolean for ``sdpa``, added to the scores for ``eager``."""
    sees = np.zeros((plan.n_tokens, plan.n_tokens), dtype=bool)
    for q_start, q_end, prefix_start, prefix_end in plan.segments:
        sees[q_start:q_end, prefix_start:prefix_end] = True
        sees[q_start:q_end, q_start:q_end] = np.tri(q_end - q_start, dtype=bool)
    mask = torch.from_numpy(sees)[None, None].to(plan.device)
    if implementation == "sdpa":
        return mask
    return torch.zeros(mask.shape, dtype=dtype, device=plan.device).masked_fill_(
        ~mask, torch.finfo(dtype).min
    )


def _mentions_mrope(rope) -> bool:
    if not isinstance(rope, dict):
        return False
    return (
        "mrope_section" in rope
        or "mrope" in rope.values()
        or any(_mentions_mrope(part) for part in rope.values())
    )
