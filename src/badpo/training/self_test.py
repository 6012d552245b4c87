"""Whether the scoring forward gives what the model's own forward gives, and a run starts where its reference is."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from badpo.data.problems import ConfigError, Problem
from badpo.training.attention import require_fixed_positions, unsupported_reason
from badpo.training.encoding import EncodedComparisons
from badpo.training.logprobs import on_device, response_logps, rows_at_once, scoring_attention
from badpo.training.packing import Layout, Pair, packed_comparisons, padded_rows

# The largest differences that are always allowed, of log-probabilities and of gradients.
FLOOR = (1e-5, 1e-5)
FLOOR_IN_16_BITS = (2e-3, 1e-2)
# How many times as far as its own rounding the scoring forward may be from the model's own.
TIMES_THE_NOISE = 2.0
# Of the numbers of the input embeddings, every so-manieth is a rounding off in the forward that measures the noise.
NUDGED_EVERY = 61
# More than this is not rounding: what stands behind a token changes what the model says of it.
MOST_NOISE, MOST_NOISE_IN_16_BITS = 1e-2, 0.5
# Tokens behind the responses, in the forward that shows how much rounding alone changes.
N_PADDING = 7
N_TRIED = 3

# Log-probabilities of tokens, and the gradient of their weighed sum with respect to the embedding of every token id.
Found = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class SelfTest:
    """How far the scoring forward is from the model's own forward, of log-probabilities and of gradients.

    A difference is the root mean square over single tokens, relative to their spread, or the norm of that of the
    gradients with respect to the input embeddings, relative to the norm. ``noise`` is the same of two of the model's
    own forwards, one of them padded and with some embeddings a rounding off: two that only differ in padding may
    compute every bit alike, which no other attention does. ``floor`` is allowed however small the noise is.
    """

    precision: str  # of the weights, or "autocast"
    differences: tuple[float, float]
    noise: tuple[float, float]
    floor: tuple[float, float]

    @property
    def most(self) -> tuple[float, float]:
        """The largest differences that rounding explains."""
        most = np.maximum(self.floor, TIMES_THE_NOISE * np.array(self.noise))
        return float(most[0]), float(most[1])

    @property
    def passed(self) -> bool:
        """Both differences are within what rounding explains, which what is not a number never is."""
        return bool(np.less_equal(self.differences, self.most).all())

    def __str__(self) -> str:
        told = "{} {:.1e} (noise {:.1e}, at most {:.1e})".format
        names = ("log-probabilities", "gradient")
        return (
            f"{self.precision}: {', '.join(map(told, names, self.differences, self.noise, self.most))}"
        )


@dataclass(frozen=True)
class StartDifference:
    """How far a run's first step is from the reference, before anything has moved.

    ``difference`` is the root mean square over the step's tokens of the policy's log-probability minus the reference's,
    relative to that of the reference's: unlike in a mean, differences cannot cancel.
    """

    mean: float  # reward margin of the step's judgments; 0 where the policy starts at its reference
    difference: float
    tolerance: float  # the largest difference that rounding explains, from the self-test

    @property
    def problem(self) -> Problem | None:
        """A warning (W152) when the policy does not start at its reference."""
        if self.difference <= self.tolerance:
            return None
        return Problem(
            "W152",
            f"the policy's first log-probabilities differ from the reference's by {100 * self.difference:.2g} % "
            f"(rounding explains {100 * self.tolerance:.2g} %)",
            f"model and reference, all tokens of the first step; mean margin {self.mean:.2g}",
            "leave ref_model out, or start from its weights, and keep disable_dropout on: only where both are equal "
            "at the start does theta = 0 anchor the policy at the reference's attribute rate",
        )


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
    reason = unsupported_reason(model.config, encoded.longest) if attention == "packed" else None
    layout: Layout = packed_comparisons if attention == "packed" and not reason else padded_rows
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
        if layout is padded_rows:
            raise ConfigError(f"{type(model).__name__} cannot be trained here: {error}") from error
        layout, _, tests = choose_layout(model, "padded", encoded, autocast)
        return layout, str(error), tests
    name = type(model).__name__
    for test in tests:
        if max(test.noise) > (MOST_NOISE if test.floor == FLOOR else MOST_NOISE_IN_16_BITS):
            raise ConfigError(
                f"{name} does not read from left to right: what stands behind a response changes its "
                f"log-probabilities or their gradients, in {test}"
            )
        if not test.passed:
            is_packed = layout is packed_comparisons
            raise ConfigError(
                f"self-test failed: the {'packed' if is_packed else 'padded'} forward differs from {name}'s own "
                f"forward, in {test}. This model does something that badpo does not know; "
                + ("try attention: padded" if is_packed else "please report the model's configuration")
            )
    return layout, reason, tests


def self_tests(
    model,
    layout: Layout,
    encoded: EncodedComparisons,
    autocast: Callable[[], AbstractContextManager] | None = None,
) -> list[SelfTest]:
    """The test in the weights' precision, and in that of autocast where there is one."""
    trials = _trials(encoded)
    in_full = all(parameter.dtype.itemsize >= 4 for parameter in model.parameters())
    floor = FLOOR if in_full else FLOOR_IN_16_BITS
    _require_determinate(model, layout, trials[-1], floor[0])
    tests = [_self_test(model, layout, trials, str(model.dtype).removeprefix("torch."), floor)]
    if autocast is not None:
        with autocast():
            tests.append(_self_test(model, layout, trials, "autocast", FLOOR_IN_16_BITS))
    return tests


def _trials(encoded: EncodedComparisons) -> list[list[Pair]]:
    """The longest comparisons one by one, since a short one cannot see a window, and some others together.

    Two equal responses would show little, and are left out.
    """
    able = np.flatnonzero(~encoded.identical)
    longest = able[np.argsort(-encoded.lengths[able].sum(axis=1), kind="stable")[:N_TRIED]]
    others = np.random.default_rng(0).choice(able, min(N_TRIED, len(able)), replace=False)
    return [encoded.take(members).pairs for members in [*longest[:, None], others]]


def _require_determinate(model, layout: Layout, pairs: list[Pair], floor: float) -> None:
    """Refuse a model whose log-probabilities depend on a seed: dropout, layer drop or jitter of the router."""
    scoring, found = on_device(layout(pairs), model.device), []
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices), torch.no_grad(), scoring_attention(model, layout):
        for seed in (0, 1):
            torch.manual_seed(seed)
            found.append(model(scoring=scoring).double())
    apart = _rms(found[1] - found[0])
    if apart > floor * float(found[0].std(correction=0)):
        raise ConfigError(
            f"{type(model).__name__} has dropout or router jitter that badpo cannot turn off: two forwards in training "
            f"mode differ by {apart:.1e} per token. Set it to 0 in the model's configuration, or train with it: "
            "disable_dropout: false"
        )


def _self_test(
    model, layout: Layout, trials: list[list[Pair]], precision: str, floor: tuple[float, float]
) -> SelfTest:
    with _frozen(model), torch.enable_grad():
        tried = [_figures(_Trial(model, layout, pairs)) for pairs in trials]
    spread = float(torch.cat([own for *_, own in tried]).std(correction=0)) or 1.0
    # numpy's maximum, unlike Python's, keeps what is not a number
    differences, noise = (np.max([row[i] for row in tried], axis=0) / [spread, 1.0] for i in range(2))
    return SelfTest(precision, tuple(differences.tolist()), tuple(noise.tolist()), floor)


def _figures(trial: _Trial) -> tuple[tuple[float, float], tuple[float, float], Tensor]:
    """Differences and noise, each of log-probabilities and of the gradient; and the model's own log-probabilities."""
    values, gradient = trial.by_model()
    # with torch's attention where packs have it, so that rounding of an "eager" one is no fault of theirs
    with scoring_attention(trial.model, trial.layout):
        noisy, noisy_gradient = trial.by_model(N_PADDING)
        scored, scored_gradient = trial.by_layout()
    as_reference = zip(response_logps(trial.model, trial.pairs), trial.tokens, strict=True)
    kept = torch.from_numpy(np.concatenate([logps[tokens] for logps, tokens in as_reference]))
    apart = max(_rms(scored - values), _rms(kept.double() - values))
    norm = float(gradient.norm()) or 1.0
    differences = apart, float((scored_gradient - gradient).norm()) / norm
    return (
        differences,
        (_rms(noisy - values), float((noisy_gradient - gradient).norm()) / norm),
        values,
    )


class _Trial:
    """Some comparisons, which tokens of each response are looked at, and what each of these weighs in the sum."""

    def __init__(self, model, layout: Layout, pairs: list[Pair]):
        self.model, self.layout, self.pairs = model, layout, pairs
        self._inputs = layout(pairs)
        most = rows_at_once(model.config.get_text_config().vocab_size, model.device)
        self.tokens = []
        for (_, response), n in zip(pairs, np.bincount(self._inputs["response"]).tolist(), strict=True):
            scored = np.linspace(0, n - 1, min(n, most)).astype(np.int64)
            self.tokens.append(len(response) - n + scored)
        rng = np.random.default_rng(0)
        self._weights = [torch.from_numpy(rng.standard_normal(len(tokens))) for tokens in self.tokens]
        self._vocabulary = np.unique(np.concatenate([[0], *(part for pair in pairs for part in pair)]))

    def by_model(self, n_padding: int = 0) -> Found:
        """By a forward of the model's own for each response; with padding, from nudged embeddings."""
        found = [
            self._by_own_forward(*row, n_padding)
            for row in zip(self.pairs, self.tokens, self._weights, strict=True)
        ]
        return torch.cat([values for values, _ in found]), sum(gradient for _, gradient in found)

    def _by_own_forward(self, pair: Pair, tokens: np.ndarray, weight: Tensor, n_padding: int) -> Found:
        prompt, response = pair
        ids = np.concatenate([prompt, response[:-1], np.zeros(n_padding, dtype=np.int64)])
        index, target, input_ids = (
            torch.from_numpy(a).to(self.model.device)
            for a in (len(prompt) - 1 + tokens, response[tokens], ids[None])
        )
        options: dict = {"use_cache": False, "return_dict": True}
        if n_padding:
            # the last one is seen, so that a model that reads ahead shows it
            options["attention_mask"] = torch.ones_like(input_ids)
            options["attention_mask"][:, -n_padding:-1] = 0
        if "logits_to_keep" in inspect.signature(type(self.model).forward).parameters:
            # the logits of all positions never exist
            options["logits_to_keep"] = index

        def own_logps() -> Tensor:
            logits = self.model(input_ids=input_ids, **options).logits[0]
            if len(logits) != len(index):
                logits = logits[index]
            return logits.float().log_softmax(-1).gather(1, target[:, None])[:, 0].double()

        return self._found(own_logps, weight, ids, is_nudged=n_padding > 0)

    def by_layout(self) -> Found:
        """By the forward that is tried, to be called under the attention of its layout."""
        ends = np.cumsum(np.bincount(self._inputs["response"]))
        # what both responses begin with is not scored
        rows = zip(ends, self.pairs, self.tokens, strict=True)
        index = np.concatenate([end - len(response) + tokens for end, (_, response), tokens in rows])

        def scored_logps() -> Tensor:
            scored = self.model(scoring=on_device(self._inputs, self.model.device)).double()
            return scored[torch.from_numpy(index).to(scored.device)]

        return self._found(scored_logps, torch.cat(self._weights), self._inputs["input_ids"].ravel())

    def _found(
        self,
        forward: Callable[[], Tensor],
        weight: Tensor,
        ids: np.ndarray,
        is_nudged: bool = False,
    ) -> Found:
        """What a forward gives; the input embeddings that it begins with are a leaf."""
        embedded: list[Tensor] = []

        def leaf(module, args, output):
            if embedded:
                return None
            embedded.append(output.detach().requires_grad_())
            # some models scale their embeddings in place, which a leaf forbids
            copied = embedded[0].clone()
            if is_nudged:
                device = output.device.type
                autocast = torch.is_autocast_enabled(device)
                dtype = torch.get_autocast_dtype(device) if autocast else output.dtype
                copied.view(-1)[::NUDGED_EVERY] *= 1 + torch.finfo(dtype).eps
            return copied

        handle = self.model.get_input_embeddings().register_forward_hook(leaf)
        try:
            values = forward()
        finally:
            handle.remove()
        (values * weight.to(values.device)).sum().backward()
        if not embedded or embedded[0].grad is None:
            raise ValueError(
                f"{type(self.model).__name__} does not take its input embeddings from the module that it names"
            )
        of_tokens = embedded[0].grad.cpu().double().flatten(0, 1)
        places = torch.from_numpy(np.searchsorted(self._vocabulary, ids))
        gradient = of_tokens.new_zeros(len(self._vocabulary), of_tokens.shape[1])
        return values.detach().cpu(), gradient.index_add(0, places, of_tokens)


@contextmanager
def _frozen(model) -> Iterator[None]:
    """No weight asks for a gradient, and no GPU rounds the factors of float32 products to the 11 bits of TF32."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matmul = torch.backends.cuda.matmul
    usual, matmul.fp32_precision = matmul.fp32_precision, "ieee"
    model.requires_grad_(False)
    try:
        yield
    finally:
        matmul.fp32_precision = usual
        for parameter in trained:
            parameter.requires_grad_()


def _rms(differences: Tensor) -> float:
    return float(differences.square().mean().sqrt())
