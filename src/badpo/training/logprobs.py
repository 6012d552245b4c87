"""Log-probabilities of response tokens, computed inside the model's own forward.

`attach` adds a scoring branch to a causal language model before PEFT, DDP or FSDP wraps it. The branch runs the
decoder once and the output embedding only at the positions where a scored token is predicted, a bounded number
of logits at a time. Callers always go through ``model(scoring=...)``: calling a sub-module of a wrapped model
drops its gradients silently under DDP.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from badpo.data.problems import ConfigError
from badpo.training.attention import tree_attention, tree_hidden_states, unsupported_reason
from badpo.training.encoding import EncodedComparisons
from badpo.training.packing import bin_pack, packed_layout, plan_responses
from badpo.training.prompt_trees import Pair, plan_stars, response_stars
from badpo.training.token_logps import picked_logps

Layout = Callable[..., tuple[dict[str, np.ndarray], np.ndarray]]

# The most logits (positions x vocabulary) that exist at any moment; 2**22 fp32 logits are 16 MiB.
LOGITS_AT_ONCE = 2**22
# On a GPU 512 MiB: a few rows would leave it idle, and every chunk makes a gradient of the whole output embedding.
LOGITS_AT_ONCE_ON_GPU = 2**27


def attach(model):
    """Give ``model`` the keyword ``scoring`` in its forward; return the same model.

    ``model(scoring=inputs)`` returns the log-probability of every target token, a float32 tensor of shape
    (n_scored,). Without the keyword the forward is the model's own. Attaching twice is harmless.

    The forward is bound with `types.MethodType`, so that a deep copy of the model runs the copy's weights.
    """

    def forward(self, *args, scoring=None, **kwargs):
        if scoring is None:
            return type(self).forward(self, *args, **kwargs)
        return _token_logps(self, scoring)

    model.forward = types.MethodType(forward, model)
    return model


def _token_logps(model, scoring: dict) -> torch.Tensor:
    decoder = model.get_decoder()
    if "attention_mask" in scoring:
        hidden = decoder(
            input_ids=scoring["input_ids"], attention_mask=scoring["attention_mask"], use_cache=False
        ).last_hidden_state.flatten(0, 1)
    else:
        hidden = tree_hidden_states(decoder, scoring)
    return target_logps(
        model.get_output_embeddings(), hidden.index_select(0, scoring["head_index"]), scoring["target"]
    )


def target_logps(head: Callable, hidden: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Log-probability of each target token under the softmax of ``head(hidden)``, in fp32.

    At most `LOGITS_AT_ONCE` logits exist at a time, or `LOGITS_AT_ONCE_ON_GPU`; where that needs more than one
    chunk, each chunk's logits are computed again in the backward pass instead of being kept.

    Parameters
    ----------
    head : module from (n, hidden) to (n, vocabulary)
    hidden : tensor of shape (n, hidden)
    target : int64 tensor of shape (n,)

    Returns
    -------
    float32 tensor of shape (n,), in nats

    Examples
    --------
    >>> head = torch.nn.Linear(2, 2, bias=False)
    >>> _ = head.weight.data.zero_()
    >>> target_logps(head, torch.ones(1, 2), torch.tensor([1])).exp()
    tensor([0.5000], grad_fn=<ExpBackward0>)
    """

    def chunk_logps(rows, targets):
        return picked_logps(head(rows), targets)

    at_once = LOGITS_AT_ONCE if hidden.device.type == "cpu" else LOGITS_AT_ONCE_ON_GPU
    n_vocabulary = head.weight.shape[0] if hasattr(head, "weight") else at_once
    size = max(1, at_once // n_vocabulary)
    if len(target) <= size:
        return chunk_logps(hidden, target)
    chunks = [
        checkpoint(chunk_logps, rows, targets, use_reentrant=False)
        for rows, targets in zip(hidden.split(size), target.split(size), strict=True)
    ]
    return torch.cat(chunks)


def padded_layout(
    prompts: Sequence[np.ndarray], a_ids: Sequence[np.ndarray], b_ids: Sequence[np.ndarray]
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Model inputs that score both responses of some comparisons, one padded row per response.

    The last token of a row is never fed, because nothing after it is predicted.

    Returns
    -------
    inputs : dict
        ``input_ids`` and ``attention_mask`` of shape (2 * n_comparisons, longest), right-padded;
        ``head_index`` positions in the flattened rows whose prediction is scored; ``target`` the token ids
        scored there; ``response`` the response each belongs to, 2 * comparison + (0 for a, 1 for b).
    first_scored : int array of shape (n_comparisons,)
        How many leading tokens of the responses are not scored: 0 here.
    """
    pairs = [(p, r) for p, a, b in zip(prompts, a_ids, b_ids, strict=True) for r in (a, b)]
    inputs = padded_rows(pairs)
    inputs["response"] = np.repeat(np.arange(len(pairs)), [len(r) for _, r in pairs])
    return inputs, np.zeros(len(prompts), dtype=np.int64)


def choose_layout(
    model,
    attention: str,
    encoded: EncodedComparisons,
    autocast: Callable[[], AbstractContextManager] | None = None,
) -> tuple[Layout, str | None]:
    """The layout to train with, after a test on the longest comparison.

    Parameters
    ----------
    model : attached causal language model
    attention : "packed" or "padded"
        What is asked for. ``packed`` falls back to ``padded`` for models whose attention it cannot follow.
    encoded : EncodedComparisons
    autocast : function to a context, optional
        Mixed precision, where training has it: tested after the weights' own precision, which shows a smaller
        fault, because other attention kernels may run in it.

    Returns
    -------
    layout : function
    reason : str or None
        Why ``packed`` was asked for and ``padded`` is used, in words; None otherwise.

    Raises
    ------
    ConfigError
        The layout does not give the log-probabilities of the model's own forward.
    """
    layout, reason = padded_layout, None
    if attention == "packed":
        reason = unsupported_reason(model.config, encoded.longest)
        layout = padded_layout if reason else packed_layout
    try:
        tested = _self_test(model, layout, encoded, autocast)
    except (RuntimeError, ValueError) as error:
        if layout is padded_layout:
            raise
        layout, reason = padded_layout, str(error)
        tested = _self_test(model, layout, encoded, autocast)
    for difference, tolerance in tested:
        if difference < tolerance:
            continue
        raise ConfigError(
            f"self-test failed: on the longest comparison the {layout.__name__.removesuffix('_layout')} forward "
            f"differs from the model's own forward by {difference:.1e} (relative; at most {tolerance:.0e} is allowed). "
            "This model's head or attention does something that badpo does not know; "
            + (
                "try attention: padded"
                if layout is packed_layout
                else "please report the model's configuration"
            )
        )
    return layout, reason


def _self_test(model, layout, encoded, autocast) -> list[tuple[float, float]]:
    """Differences from the model's own forward, each with the largest that rounding explains."""
    full = next(model.parameters()).dtype == torch.float32
    tested = [(forward_difference(model, layout, encoded), 1e-4 if full else 5e-2)]
    if autocast is not None:
        with autocast():
            tested.append((forward_difference(model, layout, encoded), 5e-2))
    return tested


def scoring_attention(model, layout: Callable) -> AbstractContextManager:
    """The attention that a layout needs, for the time of a block that covers forwards and their backward passes."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return tree_attention(inner) if layout in (packed_layout, packed_responses) else nullcontext()


def forward_difference(model, layout: Layout, encoded: EncodedComparisons) -> float:
    """Relative difference between a layout's scores and the model's own forward, on the longest comparison.

    What is compared is the difference of the two responses' log-probabilities, from which the margin is made. The
    longest comparison is used because a short one cannot see a window; two equal responses would show nothing.
    """
    differs = encoded.fits & ~encoded.identical()
    longest = int(np.argmax(encoded.n_tokens * (differs if differs.any() else encoded.fits)))
    prompt, a, b = encoded.prompt_ids[longest], encoded.a_ids[longest], encoded.b_ids[longest]
    with looking_at(model) as device:
        inputs, first_scored = layout([prompt], [a], [b])
        scoring = on_device(inputs, device)
        with scoring_attention(model, layout):
            values = model(scoring=scoring).double()
        sums = values.new_zeros(2).index_add(0, scoring["response"], values)
        start = int(first_scored[0])
        plain_a, plain_b = plain_response_logps(model, prompt, a), plain_response_logps(model, prompt, b)
    expected = plain_a[start:].sum() - plain_b[start:].sum()
    scale = plain_a.abs().sum() + plain_b.abs().sum()
    return float((sums[0] - sums[1] - expected).abs() / scale)


def plain_response_logps(model, prompt: np.ndarray, response: np.ndarray) -> torch.Tensor:
    """Log-probabilities of a response's tokens by the model's own forward with every logit, in float64."""
    device = next(model.parameters()).device
    ids = torch.as_tensor(np.concatenate([prompt, response]), device=device)[None]
    logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
    return -cross_entropy(logits, ids[0, len(prompt) :], reduction="none").double()


@contextmanager
def looking_at(model) -> Iterator[torch.device]:
    """Evaluation mode and no gradients for the block; yields the device that inputs belong on.

    The mode of every module is put back afterwards, also when some were in training mode and others not.

    Examples
    --------
    >>> model = torch.nn.Linear(1, 1).train()
    >>> with looking_at(model) as device:
    ...     model.training, device.type
    (False, 'cpu')
    >>> model.training
    True
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield next(model.parameters()).device
    finally:
        for module, training in modes:
            module.training = training


def response_logps(model, pairs: Sequence[Pair], token_budget: int = 16384) -> list[np.ndarray]:
    """Log-probability of every token of each response given its prompt, without gradient.

    Where the tree attention serves the model, responses to one prompt are read together: the prompt once for all of
    them, and once what they begin with.

    Parameters
    ----------
    model : causal language model, plain, attached or with an adapter
        A plain one is given its scoring branch.
    pairs : sequence of (prompt ids, response ids)
    token_budget : int
        Tokens per forward pass, padding included. It changes the speed and, in the last digits, the rounding.

    Returns
    -------
    list of float32 arrays, one value per response token, in the order given
    """
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    if "forward" not in vars(inner):
        attach(inner)
    layout = response_layout(inner)
    with looking_at(model) as device, scoring_attention(model, layout):

        def score(inputs: dict[str, np.ndarray]) -> np.ndarray:
            return model(scoring=on_device(inputs, device)).float().cpu().numpy()

        logps_of = _star_logps if layout is packed_responses else _row_logps
        results = dict(logps_of(score, pairs, token_budget))
    return [results[i] for i in range(len(pairs))]


def on_device(inputs: dict[str, np.ndarray], device: torch.device) -> dict:
    """The arrays of a layout as tensors where the model is, but for ``segments``: the plan is made of the array."""
    return {
        name: value if name == "segments" else torch.as_tensor(value).to(device)
        for name, value in inputs.items()
    }


def _star_logps(
    score: Callable, pairs: Sequence[Pair], token_budget: int
) -> Iterator[tuple[int, np.ndarray]]:
    """Responses to one prompt share it, and what they begin with; each prompt's order is free."""
    stars = response_stars(pairs, token_budget)
    for members in bin_pack([star.n_fed for star in stars], token_budget=token_budget):
        batch = [stars[i] for i in members]
        pack = plan_stars(pairs, batch)
        parts = iter(np.split(score(pack.inputs), np.flatnonzero(np.diff(pack.response)) + 1))
        for star in batch:
            first = next(parts)
            yield star.members[0], first
            for i, n_shared in zip(star.members[1:], star.n_shared[1:], strict=True):
                yield i, np.concatenate([first[:n_shared], next(parts)])


def _row_logps(score: Callable, pairs: Sequence[Pair], token_budget: int) -> Iterator[tuple[int, np.ndarray]]:
    """One padded row for each response."""
    for batch in _batches_by_length(pairs, token_budget):
        values = score(padded_rows([pairs[i] for i in batch]))
        ends = np.cumsum([len(pairs[i][1]) for i in batch])
        yield from zip(batch, np.split(values, ends[:-1]), strict=True)


def response_layout(model) -> Callable[[Sequence[tuple[np.ndarray, np.ndarray]]], dict[str, np.ndarray]]:
    """How single responses are laid out for this model: packed where the tree attention serves it, else padded.

    A model may pass every look at its configuration and still not hand the tree plan to its attention, so that two
    short responses are tried. One that needs a dense mask instead is padded: the mask grows with the square of the
    tokens of a forward pass.
    """
    if unsupported_reason(model.config):
        return padded_rows
    one = np.zeros(1, dtype=np.int64)
    inputs = packed_responses([(one, one), (one, one)])
    try:
        with looking_at(model) as device, tree_attention(model) as route:
            model(scoring=on_device(inputs, device))
    except (RuntimeError, ValueError):
        return padded_rows
    return packed_responses if route == "tree" else padded_rows


def packed_responses(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> dict[str, np.ndarray]:
    """Inputs that score every response token of (prompt ids, response ids), end to end in one row.

    Examples
    --------
    >>> packed_responses([(np.array([5, 6]), np.array([7, 8]))])["input_ids"].tolist()
    [5, 6, 7]
    """
    return plan_responses(pairs).inputs


def padded_rows(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> dict[str, np.ndarray]:
    """Right-padded rows of (prompt ids, response ids) that score every response token.

    The last token of a row is never fed. The keys are those of `padded_layout`, without ``response``.

    Examples
    --------
    >>> rows = padded_rows([(np.array([5, 6]), np.array([7, 8]))])
    >>> rows["input_ids"].tolist(), rows["head_index"].tolist(), rows["target"].tolist()
    ([[5, 6, 7]], [1, 2], [7, 8])
    """
    lengths = np.array([len(p) + len(r) - 1 for p, r in pairs])
    width = int(lengths.max())
    input_ids = np.zeros((len(pairs), width), dtype=np.int64)
    head_index = []
    for row, (prompt, response) in enumerate(pairs):
        input_ids[row, : len(prompt)] = prompt
        input_ids[row, len(prompt) : lengths[row]] = response[:-1]
        head_index.append(row * width + len(prompt) - 1 + np.arange(len(response)))
    return {
        "input_ids": input_ids,
        "attention_mask": (np.arange(width) < lengths[:, None]).astype(np.int64),
        "head_index": np.concatenate(head_index),
        "target": np.concatenate([response for _, response in pairs]).astype(np.int64),
    }


def _batches_by_length(pairs, token_budget: int) -> Iterator[list[int]]:
    lengths = np.array([len(p) + len(r) for p, r in pairs])
    batch: list[int] = []
    for i in np.argsort(-lengths, kind="stable"):
        if batch and (len(batch) + 1) * lengths[batch[0]] > token_budget:
            yield batch
            batch = []
        batch.append(int(i))
    if batch:
        yield batch
