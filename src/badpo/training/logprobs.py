"""Log-probabilities of response tokens, computed inside the model's own forward.

`attach` adds a scoring branch to a causal language model before PEFT, DDP or FSDP wraps it. The branch runs the
decoder once. The logits at the positions where a scored token is predicted are those of the model's own forward,
which then finds the decoder's result already there: its head, bias, scale and soft cap are applied by the code of
its class, a bounded number of logits at a time. Callers always go through ``model(scoring=...)``: calling a
sub-module of a wrapped model drops its gradients silently under DDP.
"""

import inspect
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from badpo.data.problems import ConfigError
from badpo.training.attention import (
    require_fixed_positions,
    tree_attention,
    tree_hidden_states,
    unsupported_reason,
)
from badpo.training.packing import (
    Branch,
    Inputs,
    Layout,
    Pair,
    Tree,
    bin_pack,
    n_fed,
    packed_comparisons,
    packed_responses,
    padded_rows,
    plan_pack,
    response_trees,
)

# The most logits (positions x vocabulary) that exist at any moment; 2**22 fp32 logits are 16 MiB.
LOGITS_AT_ONCE = 2**22
# On a GPU 512 MiB: a few rows would leave it idle, and every chunk makes a gradient of the whole output embedding.
LOGITS_AT_ONCE_ON_GPU = 2**27


def attach(model):
    """Give ``model`` the keyword ``scoring`` in its forward; return the same model.

    ``model(scoring=inputs)`` returns the log-probability of every target token, a float32 tensor of shape
    (n_scored,); with ``row_weight`` in the inputs, how often each row counts, also the routers' load-balancing loss.
    Without the keyword the forward is the model's own. Attaching twice is harmless. Of a model with an
    adapter it is the model inside that gets the branch: the adapter's own forward passes the keyword on.

    The forward is bound with `types.MethodType`, so that a deep copy of the model runs the copy's weights.
    """

    def forward(self, *args, scoring=None, **kwargs):
        if scoring is None:
            return type(self).forward(self, *args, **kwargs)
        return _token_logps(self, scoring)

    base = plain(model)
    # `generate` gives padded rows their positions only where the signature asks for positions
    forward.__signature__ = inspect.signature(type(base).forward)  # type: ignore[attr-defined]
    base.forward = types.MethodType(forward, base)
    return model


def plain(model):
    """The language model itself, where an adapter is around it."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _token_logps(model, scoring: dict) -> Tensor | tuple[Tensor, Tensor]:
    inner = _inner_models(model)
    weighs_rows = "row_weight" in scoring
    if "attention_mask" in scoring:
        asked = {"output_router_logits": True} if weighs_rows else {}
        rows = {name: scoring[name] for name in ("input_ids", "attention_mask")}
        found = inner[-1](**rows, use_cache=False, return_dict=True, **asked)
        hidden = found.last_hidden_state.flatten(0, 1)
    else:
        hidden = tree_hidden_states(inner[-1], scoring)
    logps = target_logps(
        partial(_own_logits, model, inner),
        hidden.index_select(0, scoring["head_index"]),
        scoring["target"],
        model.config.get_text_config().vocab_size,
    )
    if not weighs_rows:
        return logps
    return logps, _router_load(model, found, scoring["attention_mask"] * scoring["row_weight"][:, None])


def _router_load(model, found, weight: Tensor) -> Tensor:
    """The load-balancing loss of a mixture of experts, as TRL computes it, over tokens that count ``weight`` times."""
    config = model.config.get_text_config()
    routed = getattr(found, "router_logits", None)
    if not routed or not hasattr(config, "num_experts"):
        raise ConfigError(
            f"{type(model).__name__} does not return what its routers chose, so that their auxiliary loss cannot be "
            "added; train without it: router_aux_loss_coef: 0"
        )
    return load_balancing_loss_func(routed, config.num_experts, config.num_experts_per_tok, weight)


def _inner_models(model) -> list[PreTrainedModel]:
    """The models inside a language model that end in hidden states, outermost first: the last one is the decoder."""
    embeddings = model.get_input_embeddings()
    inner, outers = [], [model]
    while outers:
        parts = (part for part in outers[0].children() if isinstance(part, PreTrainedModel))
        outers = [part for part in parts if part.get_input_embeddings() is embeddings]
        inner += [part for part in outers[:1] if part.get_output_embeddings() is None]
    if not inner:
        raise ConfigError(
            f"{type(model).__name__} keeps its decoder where badpo cannot find it, so that it cannot be trained here"
        )
    return inner


class _HiddenStates(BaseModelOutputWithPast):
    """What a decoder returned, for a forward that asks for no more: everything else is None."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def _own_logits(model, inner: Sequence[PreTrainedModel], rows: Tensor) -> Tensor:
    """Logits that the model's own forward makes of hidden states (n, hidden): shape (n, vocabulary)."""
    given = _HiddenStates(last_hidden_state=rows[None])
    n_calls = 0

    def give(*args, **kwargs):
        nonlocal n_calls
        n_calls += 1
        return given

    # hooks of accelerate keep a forward of their own in the instance
    own = [vars(part).get("forward") for part in inner]
    for part in inner:
        part.forward = give
    try:
        nothing = rows.new_zeros((1, len(rows)), dtype=torch.long)
        logits = type(model).forward(model, input_ids=nothing, use_cache=False, return_dict=True).logits
    finally:
        for part, forward in zip(inner, own, strict=True):
            del part.forward
            if forward is not None:
                part.forward = forward
    if not n_calls or logits.shape[:2] != (1, len(rows)):
        raise ConfigError(
            f"{type(model).__name__} makes its logits in a way that badpo cannot follow position by position, so that "
            "it cannot be trained here"
        )
    # a view, whose gradient is one too: that of an element would be a copy of all logits
    return logits.squeeze(0)


def target_logps(
    logits_of: Callable[[Tensor], Tensor],
    hidden: Tensor,
    target: Tensor,
    n_vocabulary: int,
) -> Tensor:
    """Log-probability of each target token under the softmax of ``logits_of(hidden)``, in fp32.

    At most `LOGITS_AT_ONCE` logits exist at a time, or `LOGITS_AT_ONCE_ON_GPU`; where that needs more than one
    chunk, each chunk's logits are computed again in the backward pass instead of being kept.
    """

    def chunk_logps(rows, targets):
        return picked_logps(logits_of(rows), targets)

    size = rows_at_once(n_vocabulary, hidden.device)
    if len(target) <= size:
        return chunk_logps(hidden, target)
    chunks = [
        checkpoint(chunk_logps, rows, targets, use_reentrant=False)
        for rows, targets in zip(hidden.split(size), target.split(size), strict=True)
    ]
    return torch.cat(chunks)


def rows_at_once(n_vocabulary: int, device: torch.device) -> int:
    """How many positions' logits may exist at a time."""
    at_once = LOGITS_AT_ONCE if device.type == "cpu" else LOGITS_AT_ONCE_ON_GPU
    return max(1, at_once // n_vocabulary)


def picked_logps(logits: Tensor, target: Tensor) -> Tensor:
    r"""Log-probability of the target token of each row under the softmax of its logits, in fp32.

    .. math:: \ell_i = z_{i, t_i} - \log \sum_v \exp z_{iv}

    Equal to ``-cross_entropy(logits.float(), target, reduction="none")``, with one array of the size of the logits
    kept for the backward pass and turned into their gradient in place, where that keeps one and makes two more. A
    second backward pass through the same result therefore raises an error.

    Parameters
    ----------
    logits : tensor of shape (n, vocabulary)
    target : int64 tensor of shape (n,)

    Returns
    -------
    float32 tensor of shape (n,), in nats

    Examples
    --------
    >>> picked_logps(torch.zeros(2, 4), torch.tensor([0, 3])).exp()
    tensor([0.2500, 0.2500])
    """
    return _PickedLogps.apply(logits, target)


class _PickedLogps(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, target):
        logps = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
        ctx.save_for_backward(logps, target)
        ctx.dtype = logits.dtype
        return logps.gather(1, target[:, None])[:, 0]

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        logps, target = ctx.saved_tensors
        of_logits = logps.exp_().mul_(-gradient[:, None])
        of_logits.scatter_add_(1, target[:, None], gradient[:, None])
        return of_logits.to(ctx.dtype), None


def scoring_attention(model, layout: Layout) -> AbstractContextManager:
    """The attention that a layout needs, for the time of a block that covers forwards and their backward passes."""
    is_packed = layout in (packed_comparisons, packed_responses)
    return tree_attention(plain(model)) if is_packed else nullcontext()


@contextmanager
def in_mode(model, training: bool) -> Iterator[None]:
    """Training or evaluation mode for the block.

    The mode of every module is put back afterwards, also when some were in training mode and others not.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for module, before in modes:
            module.training = before


@contextmanager
def looking_at(model) -> Iterator[torch.device]:
    """Evaluation mode and no gradients for the block; yields the device that inputs belong on."""
    with in_mode(model, training=False), torch.no_grad():
        yield next(model.parameters()).device


def response_logps(model, pairs: Sequence[Pair], token_budget: int = 16384) -> list[np.ndarray]:
    """Log-probability of every token of each response given its prompt, without gradient.

    Where the tree attention serves the model, responses to one prompt are read together: the prompt once for all of
    them, and once what they begin with.
    """
    layout = response_layout(attach(model), pairs)
    found = [np.zeros(0, dtype=np.float32)] * len(pairs)
    with looking_at(model) as device, scoring_attention(model, layout):
        for trees, inputs in _forwards(pairs, token_budget, layout):
            values = model(scoring=on_device(inputs, device)).float().cpu().numpy()
            parts = iter(np.split(values, np.flatnonzero(np.diff(inputs["response"])) + 1))
            for tree in trees:
                for i, n_shared, _ in tree:
                    found[i] = np.concatenate([found[tree[0].position][:n_shared], next(parts)])
    return found


def on_device(inputs: Inputs, device: torch.device) -> dict:
    """The arrays of a layout as tensors where the model is, but for ``segments``: the plan is made of the array."""
    return {
        name: value if name == "segments" else torch.as_tensor(value).to(device)
        for name, value in inputs.items()
    }


def _forwards(
    pairs: Sequence[Pair], token_budget: int, layout: Layout
) -> Iterator[tuple[Sequence[Tree], Inputs]]:
    """The responses of each forward pass, longest first, and its inputs."""
    if layout is packed_responses:
        trees = response_trees(pairs, token_budget)
        for members in bin_pack([n_fed(pairs, tree) for tree in trees], token_budget):
            batch = [trees[i] for i in members]
            yield batch, plan_pack(pairs, batch)
        return
    lengths = np.array([len(prompt) + len(response) for prompt, response in pairs])
    order = np.argsort(-lengths, kind="stable")
    while len(order):
        n_rows = max(1, token_budget // lengths[order[0]])
        rows, order = order[:n_rows].tolist(), order[n_rows:]
        yield [[Branch(i, 0, 0)] for i in rows], padded_rows([pairs[i] for i in rows])


def response_layout(model, pairs: Sequence[Pair] = ()) -> Layout:
    """How single responses are laid out for this model: packed where the tree attention serves it, else padded.

    A model may pass every look at its configuration and still not hand the tree plan to its attention, so that two
    short responses are tried.
    """
    require_fixed_positions(model.config, max((len(p) + len(r) for p, r in pairs), default=0))
    if unsupported_reason(model.config):
        return padded_rows
    one = np.zeros(1, dtype=np.int64)
    inputs = packed_responses([(one, one), (one, one)])
    try:
        with looking_at(model) as device, scoring_attention(model, packed_responses):
            model(scoring=on_device(inputs, device))
    except (RuntimeError, ValueError):
        return padded_rows
    return packed_responses
