"""Log-probabilities of response tokens, computed inside the model's own forward method.

`attach` adds a scoring branch to a causal language model before PEFT, DDP or FSDP wraps the model. The scoring branch
runs the decoder once. The model's own forward method then converts the decoder's hidden states to logits in chunks of
limited size, and only at positions whose next token is scored. The model class therefore applies its own output head,
bias, logit scaling and soft-capping. Always call ``model(scoring=...)``: under DDP, calling a submodule of a wrapped
model silently loses the gradients.
"""

# mypy does not analyze torch and transformers, so their classes are untyped
# mypy: disallow-subclassing-any=False, disallow-untyped-decorators=False

import inspect
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast, ModelOutput
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

# Maximum number of logits (positions times vocabulary) in memory at any time; 2**22 float32 logits take 16 MiB.
LOGITS_AT_ONCE = 2**22
# On a GPU, the logits may take 512 MiB, because small chunks leave the GPU idle.
# Each chunk of logits also creates a gradient of the whole output embedding.
LOGITS_AT_ONCE_ON_GPU = 2**27

# Input tensors of the forward pass that scores responses; see `badpo.training.packing.plan_pack`.
# The value of "segments" stays a NumPy array.
ScoringInputs = dict[str, Tensor]


def attach(model: PreTrainedModel) -> PreTrainedModel:
    """Add the keyword argument ``scoring`` to the forward method of ``model``, and return the same model object.

    ``model(scoring=inputs)`` returns the log-probability of every target token, float32 of shape (n_scored,). If the
    inputs contain a weight for each row (``row_weight``), the forward pass also returns the load-balancing loss of the
    routers. Without ``scoring``, the model's forward pass is unchanged. Calling `attach` twice has no further effect.
    If the model has an adapter, `attach` changes the base model inside the adapter.

    The new forward method is bound with `types.MethodType`, so that a deep copy of the model uses the copy's weights.
    """

    def forward(
        self: PreTrainedModel,
        *args: object,
        scoring: ScoringInputs | None = None,
        **kwargs: object,
    ) -> ModelOutput | Tensor | tuple[Tensor, Tensor]:
        if scoring is None:
            return type(self).forward(self, *args, **kwargs)
        return _token_logps(self, scoring)

    base = remove_adapter(model)
    # `generate` passes position ids for padded rows only if the signature of the forward method contains position_ids
    forward.__signature__ = inspect.signature(type(base).forward)  # type: ignore[attr-defined]
    base.forward = types.MethodType(forward, base)
    return model


def remove_adapter(model: PreTrainedModel) -> PreTrainedModel:
    """Return the language model inside an adapter; return a model without an adapter unchanged."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _token_logps(model: PreTrainedModel, scoring: ScoringInputs) -> Tensor | tuple[Tensor, Tensor]:
    inner = _inner_models(model)
    weighs_rows = "row_weight" in scoring
    if "attention_mask" in scoring:
        options = {"output_router_logits": True} if weighs_rows else {}
        rows = {name: scoring[name] for name in ("input_ids", "attention_mask")}
        output = inner[-1](**rows, use_cache=False, return_dict=True, **options)
        hidden = output.last_hidden_state.flatten(0, 1)
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
    weight = scoring["attention_mask"] * scoring["row_weight"][:, None]
    return logps, _router_load(model, output, weight)


def _router_load(model: PreTrainedModel, output: ModelOutput, weight: Tensor) -> Tensor:
    """Return the load-balancing loss of a mixture of experts as in TRL; ``weight`` contains the token weights."""
    config = model.config.get_text_config()
    routed = getattr(output, "router_logits", None)
    if not routed or not hasattr(config, "num_experts"):
        raise ConfigError(
            f"{type(model).__name__} does not return its router logits, so the load-balancing loss cannot be computed; "
            "disable this loss with router_aux_loss_coef: 0"
        )
    return load_balancing_loss_func(routed, config.num_experts, config.num_experts_per_tok, weight)


def _inner_models(model: PreTrainedModel) -> list[PreTrainedModel]:
    """Return the nested models that output hidden states, ordered from the outermost model to the decoder."""
    embeddings = model.get_input_embeddings()
    inner, outers = [], [model]
    while outers:
        parts = (part for part in outers[0].children() if isinstance(part, PreTrainedModel))
        outers = [part for part in parts if part.get_input_embeddings() is embeddings]
        inner += [part for part in outers[:1] if part.get_output_embeddings() is None]
    if not inner:
        raise ConfigError(
            f"badpo cannot find the decoder inside {type(model).__name__}, so it cannot train this model"
        )
    return inner


class _HiddenStates(BaseModelOutputWithPast):
    """Decoder output that contains only hidden states; all other fields are None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def _own_logits(model: PreTrainedModel, inner: Sequence[PreTrainedModel], rows: Tensor) -> Tensor:
    """Convert hidden states (n, hidden) to logits (n, vocabulary) with the model's own forward method."""
    states = _HiddenStates(last_hidden_state=rows[None])
    n_calls = 0

    def return_states(*args: object, **kwargs: object) -> _HiddenStates:
        nonlocal n_calls
        n_calls += 1
        return states

    # accelerate's hooks store a forward method in the model instance; this method must be restored after the call
    forwards = [vars(part).get("forward") for part in inner]
    for part in inner:
        part.forward = return_states
    try:
        ids = rows.new_zeros((1, len(rows)), dtype=torch.long)
        logits = type(model).forward(model, input_ids=ids, use_cache=False, return_dict=True).logits
    finally:
        for part, forward in zip(inner, forwards, strict=True):
            del part.forward
            if forward is not None:
                part.forward = forward
    if not n_calls or logits.shape[:2] != (1, len(rows)):
        raise ConfigError(
            f"badpo cannot compute the logits of {type(model).__name__} for individual positions, so it cannot train "
            "this model"
        )
    # squeeze returns a view, whose gradient needs no memory; indexing would copy all logits in the backward pass
    return logits.squeeze(0)


def target_logps(
    logits_of: Callable[[Tensor], Tensor],
    hidden: Tensor,
    target: Tensor,
    n_vocabulary: int,
) -> Tensor:
    """Log-probability of each target token under the softmax of ``logits_of(hidden)``, in fp32.

    The number of logits in memory is at most `LOGITS_AT_ONCE` on a CPU and `LOGITS_AT_ONCE_ON_GPU` on a GPU. If more
    logits are needed, the function works in chunks, and the backward pass computes the logits of each chunk again.
    """

    def chunk_logps(rows: Tensor, targets: Tensor) -> Tensor:
        return pick_logps(logits_of(rows), targets)

    size = max_rows(n_vocabulary, hidden.device)
    if len(target) <= size:
        return chunk_logps(hidden, target)
    chunks = [
        checkpoint(chunk_logps, rows, targets, use_reentrant=False)
        for rows, targets in zip(hidden.split(size), target.split(size), strict=True)
    ]
    return torch.cat(chunks)


def max_rows(n_vocabulary: int, device: torch.device) -> int:
    """Maximum number of positions whose logits may be in memory at the same time."""
    n_logits = LOGITS_AT_ONCE if device.type == "cpu" else LOGITS_AT_ONCE_ON_GPU
    return max(1, n_logits // n_vocabulary)


def pick_logps(logits: Tensor, target: Tensor) -> Tensor:
    r"""Log-probability of each row's target token under the softmax of the row's logits, in fp32.

    .. math:: \ell_i = z_{i, t_i} - \log \sum_v \exp z_{iv}

    The result equals ``-cross_entropy(logits.float(), target, reduction="none")``. The function needs one array of the
    size of the logits, whereas cross_entropy needs three. The backward pass overwrites this array with the gradient, so
    a second backward pass through the same result raises an error.

    Parameters
    ----------
    logits : tensor of shape (n, vocabulary)
    target : int64 tensor of shape (n,)

    Returns
    -------
    float32 tensor of shape (n,), in nats

    Examples
    --------
    >>> pick_logps(torch.zeros(2, 4), torch.tensor([0, 3])).exp()
    tensor([0.2500, 0.2500])
    """
    return _PickLogps.apply(logits, target)


class _PickLogps(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, logits: Tensor, target: Tensor) -> Tensor:
        logps = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
        ctx.save_for_backward(logps, target)
        ctx.dtype = logits.dtype
        return logps.gather(1, target[:, None])[:, 0]

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None]:
        logps, target = ctx.saved_tensors
        logits_gradient = logps.exp_().mul_(-gradient[:, None])
        logits_gradient.scatter_add_(1, target[:, None], gradient[:, None])
        return logits_gradient.to(ctx.dtype), None


def scoring_attention(model: PreTrainedModel, layout: Layout) -> AbstractContextManager[None]:
    """Context manager that activates a layout's attention; it must enclose all forward and backward passes."""
    is_packed = layout in (packed_comparisons, packed_responses)
    return tree_attention(remove_adapter(model)) if is_packed else nullcontext()


@contextmanager
def in_mode(model: PreTrainedModel, training: bool) -> Iterator[None]:
    """Context manager that puts a model into training or evaluation mode and restores each module's mode at the end."""
    modes = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for module, before in modes:
            module.training = before


@contextmanager
def evaluation_mode(model: PreTrainedModel) -> Iterator[torch.device]:
    """Context manager that puts a model into evaluation mode, turns off gradients, and yields the model's device."""
    with in_mode(model, training=False), torch.no_grad():
        yield next(model.parameters()).device


def response_logps(
    model: PreTrainedModel, pairs: Sequence[Pair], token_budget: int = 16384
) -> list[np.ndarray]:
    """Compute the log-probability of every token of each response given the prompt, without gradients.

    If the model supports tree attention, it reads each prompt only once for all responses to the prompt. If several
    responses have a common prefix, the model also reads this prefix only once.
    """
    layout = response_layout(attach(model), pairs)
    logps = [np.zeros(0, dtype=np.float32)] * len(pairs)
    with evaluation_mode(model) as device, scoring_attention(model, layout):
        for trees, inputs in _forwards(pairs, token_budget, layout):
            values = model(scoring=move_inputs(inputs, device)).float().cpu().numpy()
            parts = iter(np.split(values, np.flatnonzero(np.diff(inputs["response"])) + 1))
            for tree in trees:
                for i, n_shared, _ in tree:
                    logps[i] = np.concatenate([logps[tree[0].position][:n_shared], next(parts)])
    return logps


def move_inputs(inputs: Inputs, device: torch.device) -> ScoringInputs:
    """Convert a layout's arrays to tensors on ``device``; only ``segments`` stays a NumPy array."""
    return {
        name: value if name == "segments" else torch.as_tensor(value).to(device)
        for name, value in inputs.items()
    }


def _forwards(
    pairs: Sequence[Pair], token_budget: int, layout: Layout
) -> Iterator[tuple[Sequence[Tree], Inputs]]:
    """Yield the responses and the inputs of each forward pass; the longest responses come first."""
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


def response_layout(model: PreTrainedModel, pairs: Sequence[Pair] = ()) -> Layout:
    """Choose the layout for individual responses: packed if the model supports tree attention, padded otherwise.

    A model may have a suitable configuration and still fail to pass the attention pattern (`TreePlan`) to its attention
    layers. The function therefore tests the packed layout on two short responses.
    """
    require_fixed_positions(model.config, max((len(p) + len(r) for p, r in pairs), default=0))
    if unsupported_reason(model.config):
        return padded_rows
    token = np.zeros(1, dtype=np.int64)
    inputs = packed_responses([(token, token), (token, token)])
    try:
        with evaluation_mode(model) as device, scoring_attention(model, packed_responses):
            model(scoring=move_inputs(inputs, device))
    except (RuntimeError, ValueError):
        return padded_rows
    return packed_responses
