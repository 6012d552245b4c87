"""Whether the scoring forward gives what the model's own forward gives, tried before anything is trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from badpo.data.problems import ConfigError
from badpo.training.attention import require_fixed_positions, unsupported_reason
from badpo.training.encoding import EncodedComparisons
from badpo.training.logprobs import (
    Layout,
    on_device,
    padded_layout,
    response_logps,
    rows_at_once,
    scoring_attention,
)
from badpo.training.packing import packed_layout

# The largest differences that are always allowed, of log-probabilities and of gradients.
FLOOR = (1e-5, 1e-5)
FLOOR_IN_16_BITS = (2e-3, 1e-2)
# How many times as far as its own rounding the scoring forward may be from the model's own.
TIMES_THE_NOISE = 2.0
# How many times as far apart two seeds may be as two forwards with the same one.
TIMES_THE_SAME_SEED = 4.0
# Of the input embeddings, how many are a rounding off in the forward that measures the noise.
SHARE_NUDGED = 1 / 32
# More than this is not rounding: what stands behind a token changes what the model says of it.
MOST_NOISE, MOST_NOISE_IN_16_BITS = 1e-2, 0.5
# Tokens behind the responses, in the forward that shows how much rounding alone changes.
N_PADDING = 7
N_TRIED = 3

Comparison = tuple[np.ndarray, np.ndarray, np.ndarray]
# Log-probabilities of tokens, and the gradient of their weighed sum with respect to the input embeddings.
Found = tuple[torch.Tensor, torch.Tensor]


class Side(NamedTuple):
    """A response of a tried comparison, which of its tokens are looked at, and what each weighs in the sum."""

    prompt: np.ndarray
    response: np.ndarray
    tokens: np.ndarray
    weight: torch.Tensor


@dataclass(frozen=True)
class SelfTest:
    """How far the scoring forward is from the model's own forward, in one precision.

    Attributes
    ----------
    precision : str
        Of the weights, or of autocast.
    values : float
        Root mean square of the differences of single tokens' log-probabilities, relative to their spread.
    gradient : float
        Norm of the difference of the gradients with respect to the input embeddings, relative to the norm.
    values_noise, gradient_noise : float
        The same of two of the model's own forwards that are padded differently, one of them with some embeddings a
        rounding off: two that only differ in padding may compute every bit alike, which no other attention does.
    floor : (float, float)
        What is allowed of ``values`` and ``gradient`` however small the noise is.
    """

    precision: str
    values: float
    gradient: float
    values_noise: float
    gradient_noise: float
    floor: tuple[float, float]

    @property
    def passed(self) -> bool:
        """Both differences are within what rounding explains, which what is not a number never is."""
        return self.values <= self.most(0) and self.gradient <= self.most(1)

    def most(self, which: int) -> float:
        """The largest difference that rounding explains, of log-probabilities (0) or of the gradient (1)."""
        noise = (self.values_noise, self.gradient_noise)[which]
        return max(self.floor[which], TIMES_THE_NOISE * noise)

    def __str__(self) -> str:
        found = {"log-probabilities": (self.values, self.values_noise)}
        found["gradient"] = (self.gradient, self.gradient_noise)
        parts = (
            f"{name} {value:.1e} (noise {noise:.1e}, at most {self.most(i):.1e})"
            for i, (name, (value, noise)) in enumerate(found.items())
        )
        return f"{self.precision}: {', '.join(parts)}"


def choose_layout(
    model,
    attention: str,
    encoded: EncodedComparisons,
    autocast: Callable[[], AbstractContextManager] | None = None,
) -> tuple[Layout, str | None, list[SelfTest]]:
    """The layout to train with, why it is not the one asked for, and the tests that it passed; refused where it fails.

    The model is tried in the mode that it is in: gradients are checkpointed in training mode only. Autocast, where
    training has it, is tried after the weights' own precision, which shows a smaller fault.
    """
    require_fixed_positions(model.config, encoded.longest)
    layout, reason = padded_layout, None
    if attention == "packed":
        reason = unsupported_reason(model.config, encoded.longest)
        layout = padded_layout if reason else packed_layout
    try:
        tests = self_tests(model, layout, encoded, autocast)
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"there is not enough memory for the longest comparison, of {encoded.longest} tokens, without an optimizer "
            "and its moments: lower max_length, turn gradient_checkpointing on, or take a larger device"
        ) from error
    except ConfigError:
        raise
    except (RuntimeError, ValueError, TypeError, AttributeError) as error:
        if layout is padded_layout:
            raise ConfigError(f"{type(model).__name__} cannot be trained here: {error}") from error
        layout, _, tests = choose_layout(model, "padded", encoded, autocast)
        return layout, str(error), tests
    for test in tests:
        most = MOST_NOISE if test.floor == FLOOR else MOST_NOISE_IN_16_BITS
        if max(test.values_noise, test.gradient_noise) > most:
            raise ConfigError(
                f"{type(model).__name__} does not read from left to right: what stands behind a response changes its "
                f"log-probabilities or their gradients, in {test}"
            )
        if not test.passed:
            raise ConfigError(
                f"self-test failed: the {layout.__name__.removesuffix('_layout')} forward differs from "
                f"{type(model).__name__}'s own forward, in {test}. This model does something that badpo does not know; "
                + (
                    "try attention: padded"
                    if layout is packed_layout
                    else "please report the model's configuration"
                )
            )
    return layout, reason, tests


def self_tests(
    model,
    layout: Layout,
    encoded: EncodedComparisons,
    autocast: Callable[[], AbstractContextManager] | None = None,
) -> list[SelfTest]:
    """The test in the weights' precision, and in that of autocast where there is one."""
    _require_determinate(model, layout, encoded)
    in_full = all(parameter.dtype.itemsize >= 4 for parameter in model.parameters())
    name = str(model.dtype).removeprefix("torch.")
    tests = [_self_test(model, layout, encoded, name, FLOOR if in_full else FLOOR_IN_16_BITS)]
    if autocast is not None:
        with autocast():
            tests.append(_self_test(model, layout, encoded, "autocast", FLOOR_IN_16_BITS))
    return tests


def _require_determinate(model, layout: Layout, encoded: EncodedComparisons) -> None:
    """Refuse a model whose log-probabilities depend on a seed: dropout, layer drop or jitter of the router."""
    inputs, _ = layout(*zip(*_packs(encoded)[-1], strict=True))
    scoring = on_device(inputs, model.device)
    found = []
    with torch.random.fork_rng([model.device] if model.device.type == "cuda" else []), torch.no_grad():
        for seed in (0, 0, 1):
            torch.manual_seed(seed)
            with scoring_attention(model, layout):
                found.append(model(scoring=scoring).double())
    first, again, other = found
    if _rms(other - first) > max(
        TIMES_THE_SAME_SEED * _rms(again - first), FLOOR[0] * float(first.std(correction=0))
    ):
        raise ConfigError(
            f"{type(model).__name__} has dropout or router jitter that badpo cannot turn off: two forwards in training "
            f"mode differ by {_rms(other - first):.1e} per token. Set it to 0 in the model's configuration, or train "
            "with it: disable_dropout: false"
        )


def _self_test(model, layout, encoded, precision: str, floor: tuple[float, float]) -> SelfTest:
    with _frozen(model), _without_tf32(), torch.enable_grad():
        tried = [_figures(model, layout, comparisons) for comparisons in _packs(encoded)]
    spread = float(torch.cat([own for _, own in tried]).std(correction=0)) or 1.0
    # numpy's maximum, unlike Python's, keeps what is not a number
    values, gradient, values_noise, gradient_noise = np.max(
        [figures for figures, _ in tried], axis=0
    ).tolist()
    return SelfTest(precision, values / spread, gradient, values_noise / spread, gradient_noise, floor)


def _packs(encoded: EncodedComparisons) -> list[list[Comparison]]:
    """The longest comparisons one by one, since a short one cannot see a window, and some others together.

    Two equal responses would show little, and are left out unless there are no others.
    """
    differs = encoded.fits & ~encoded.identical()
    able = np.flatnonzero(differs if differs.any() else encoded.fits)
    longest = able[np.argsort(-encoded.n_tokens[able], kind="stable")[:N_TRIED]]
    others = np.random.default_rng(0).choice(able, min(N_TRIED, len(able)), replace=False)
    return [list(encoded.take(np.array(members)).triples()) for members in [*longest[:, None], others]]


def _figures(model, layout: Layout, comparisons: list[Comparison]) -> tuple[list[float], torch.Tensor]:
    """Error of log-probabilities and of the gradient, the noise of both; and the model's own log-probabilities."""
    inputs, first_scored = layout(*zip(*comparisons, strict=True))
    most = rows_at_once(model.config.get_text_config().vocab_size, model.device)
    rng = np.random.default_rng(0)
    sides = []
    for (prompt, *responses), first in zip(comparisons, first_scored.tolist(), strict=True):
        for response in responses:
            n = len(response) - first
            tokens = first + np.linspace(0, n - 1, min(n, most)).astype(np.int64)
            weight = torch.from_numpy(rng.standard_normal(len(tokens))).to(model.device)
            sides.append(Side(prompt, response, tokens, weight))
    values, gradient = _own(model, sides)
    # with torch's attention where packs have it, so that rounding of an "eager" one is no fault of theirs
    with scoring_attention(model, layout):
        noisy_values, noisy_gradient = _own(model, sides, N_PADDING)
    scored_values, scored_gradient = _by_layout(model, layout, inputs, sides)
    as_reference = response_logps(model, [(side.prompt, side.response) for side in sides])
    kept = np.concatenate([found[side.tokens] for found, side in zip(as_reference, sides, strict=True)])
    norm = float(gradient.norm()) or 1.0
    figures = [
        max(_rms(scored_values - values), _rms(torch.from_numpy(kept).double() - values)),
        float((scored_gradient - gradient).norm()) / norm,
        _rms(noisy_values - values),
        float((noisy_gradient - gradient).norm()) / norm,
    ]
    return figures, values


def _own(model, sides: list[Side], n_padding: int = 0) -> Found:
    """Log-probabilities of some tokens by the model's own forward, and their gradient by comparison and position.

    Each response has a forward of its own, or, with padding, both responses of a comparison share one, from nudged
    embeddings.
    """
    values, gradient = [], _no_gradient(model, sides)
    at_once = 2 if n_padding else 1
    for first in range(0, len(sides), at_once):
        rows, of_part = _own_forward(model, sides[first : first + at_once], n_padding)
        values.append(rows)
        gradient[first // 2, : of_part.shape[1]] += of_part.sum(0)
    return torch.cat(values), gradient.flatten(0, 1)


def _own_forward(model, sides: list[Side], n_padding: int) -> Found:
    fed = [np.concatenate([side.prompt, side.response[:-1]]) for side in sides]
    width = max(map(len, fed)) + n_padding
    ids = torch.zeros((len(fed), width), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, sequence in enumerate(fed):
        ids[row, : len(sequence)] = torch.from_numpy(sequence)
        mask[row, : len(sequence)] = 1
    # seen, so that a model that reads ahead shows it
    mask[:, -1] = 1
    index, target = (
        torch.from_numpy(np.concatenate(parts)).to(model.device)
        for parts in (
            [row * width + len(side.prompt) - 1 + side.tokens for row, side in enumerate(sides)],
            [side.response[side.tokens] for side in sides],
        )
    )
    options = {"attention_mask": mask.to(model.device)} if n_padding else {}
    with _chosen_rows(model, index), _embedded(model, is_nudged=n_padding > 0) as embedded:
        output = model(input_ids=ids.to(model.device), use_cache=False, return_dict=True, **options)
    logits = output.logits.flatten(0, 1)
    if len(logits) != len(index):
        # this class does not call its head as a module
        logits = logits[index]
    values = logits.float().log_softmax(-1).gather(1, target[:, None])[:, 0].double()
    return values.detach().cpu(), _gradient(model, embedded, values, sides)


def _by_layout(model, layout, inputs, sides: list[Side]) -> Found:
    """As `_own`, by the forward that is tried."""
    with scoring_attention(model, layout), _embedded(model) as embedded:
        scored = model(scoring=on_device(inputs, model.device)).double()
        ends = np.cumsum(np.bincount(inputs["response"]))
        # what both responses begin with is not scored
        index = [end - len(side.response) + side.tokens for end, side in zip(ends, sides, strict=True)]
        values = scored[torch.from_numpy(np.concatenate(index)).to(model.device)]
        of_tokens = _gradient(model, embedded, values, sides).flatten(0, 1)
    gradient = _no_gradient(model, sides)
    places = torch.from_numpy(_places(inputs, gradient.shape[1]))
    return values.detach().cpu(), gradient.flatten(0, 1).index_add(0, places, of_tokens)


def _places(inputs: dict[str, np.ndarray], width: int) -> np.ndarray:
    """Comparison and position of every token that is fed, as one number."""
    if "segments" in inputs:
        position = inputs["position_ids"]
        return (np.cumsum(position == 0) - 1) * width + position
    rows, columns = np.indices(inputs["input_ids"].shape)
    return (rows // 2 * width + columns).ravel()


def _no_gradient(model, sides: list[Side]) -> torch.Tensor:
    width = max(len(side.prompt) + len(side.response) for side in sides) + N_PADDING
    size = model.get_input_embeddings().weight.shape[1]
    return torch.zeros((len(sides) // 2, width, size), dtype=torch.float64)


def _gradient(model, embedded: list[torch.Tensor], values: torch.Tensor, sides: list[Side]) -> torch.Tensor:
    (values * torch.cat([side.weight for side in sides])).sum().backward()
    if not embedded or embedded[0].grad is None:
        raise ValueError(
            f"{type(model).__name__} does not take its input embeddings from the module that it names"
        )
    return embedded[0].grad.cpu().double()


@contextmanager
def _embedded(model, is_nudged: bool = False) -> Iterator[list[torch.Tensor]]:
    """Yields a list that the input embeddings of the block's first forward are put into, as a leaf."""
    found: list[torch.Tensor] = []

    def leaf(module, args, output):
        if found:
            return None
        found.append(output.detach().requires_grad_())
        # some models scale their embeddings in place, which a leaf forbids
        return _nudged(found[0]) if is_nudged else found[0].clone()

    handle = model.get_input_embeddings().register_forward_hook(leaf)
    try:
        yield found
    finally:
        handle.remove()


def _nudged(embedded: torch.Tensor) -> torch.Tensor:
    """Embeddings of which some are larger by half of the last bit of the precision that is computed in."""
    device = embedded.device.type
    autocast = torch.is_autocast_enabled(device)
    eps = torch.finfo(torch.get_autocast_dtype(device) if autocast else embedded.dtype).eps
    nudged = torch.rand(embedded.shape, generator=torch.Generator().manual_seed(0)) < SHARE_NUDGED
    return (embedded.double() * (1 + eps / 2 * nudged.to(embedded.device))).to(embedded.dtype)


@contextmanager
def _chosen_rows(model, index: torch.Tensor) -> Iterator[None]:
    """Let the head see some positions only, so that the logits of all of them never exist."""
    head = model.get_output_embeddings()
    if not isinstance(head, torch.nn.Module):
        yield
        return
    handle = head.register_forward_pre_hook(lambda _, args: (args[0].flatten(0, 1)[index][None], *args[1:]))
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _frozen(model) -> Iterator[None]:
    """No weight asks for a gradient, so that none is kept beside the activations."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)


@contextmanager
def _without_tf32() -> Iterator[None]:
    """Matrix products of float32 in full, where a GPU would round their factors to 11 bits."""
    matmul = torch.backends.cuda.matmul
    usual = matmul.fp32_precision
    matmul.fp32_precision = "ieee"
    try:
        yield
    finally:
        matmul.fp32_precision = usual


def _rms(differences: torch.Tensor) -> float:
    return float(differences.square().mean().sqrt())
