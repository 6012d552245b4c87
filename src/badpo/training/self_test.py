"""Test before training that scoring matches the model's own forward pass, and that the policy matches the reference."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from badpo.data.problems import ConfigError, Problem
from badpo.training.attention import require_fixed_positions, unsupported_reason
from badpo.training.encoding import EncodedComparisons
from badpo.training.logprobs import max_rows, move_inputs, response_logps, scoring_attention
from badpo.training.packing import Layout, Pair, packed_comparisons, padded_rows

logger = logging.getLogger(__name__)

Autocast = Callable[[], AbstractContextManager[object]]

# The self-test accepts differences of up to `FLOOR`, however small the rounding noise is.
# The first value of `FLOOR` applies to log-probabilities, and the second value applies to gradients.
FLOOR = (1e-5, 1e-5)
FLOOR_IN_16_BITS = (2e-3, 1e-2)
# Scoring may differ from the model's own forward pass by at most this factor times the rounding noise.
NOISE_FACTOR = 2.0
# To measure the rounding noise, one forward pass changes every 61st entry of the input embeddings by a rounding error.
NUDGED_EVERY = 61
# Largest relative difference that rounding can cause between two forward passes of the same model.
# A larger difference between two forward passes means that tokens after a response change its log-probabilities.
MAX_NOISE, MAX_NOISE_IN_16_BITS = 1e-2, 0.5
# Number of padding tokens in the forward pass that measures the rounding noise.
N_PADDING = 7
# The self-test uses the `N_TRIED` longest comparisons and the same number of random comparisons.
N_TRIED = 3


@dataclass(frozen=True)
class SelfTest:
    """Differences in log-probabilities and gradients between scoring and the model's own forward pass.

    The difference in log-probabilities is the root mean square over tokens, divided by the standard deviation of the
    log-probabilities. Gradients are taken with respect to the input embeddings. The difference between two gradients is
    the norm of their difference vector, divided by the norm of the model's own gradient. ``noise`` contains the same
    measures for two forward passes of the model itself, one of which has padding and rounding errors in some input
    embeddings. Padding alone would not reveal the rounding noise, because results with and without padding can be
    bitwise equal. Differences of up to ``floor`` pass the test even if the noise is smaller.
    """

    precision: str  # precision of the weights, or "autocast"
    differences: tuple[float, float]
    noise: tuple[float, float]
    floor: tuple[float, float]

    @property
    def most(self) -> tuple[float, float]:
        """Largest differences that rounding explains."""
        most = np.maximum(self.floor, NOISE_FACTOR * np.array(self.noise))
        return float(most[0]), float(most[1])

    @property
    def passed(self) -> bool:
        """Whether rounding explains the differences in log-probabilities and gradients; False if one of them is NaN."""
        return bool(np.less_equal(self.differences, self.most).all())

    def __str__(self) -> str:
        form = "{} {:.1e} (noise {:.1e}, at most {:.1e})".format
        names = ("log-probabilities", "gradient")
        return (
            f"{self.precision}: {', '.join(map(form, names, self.differences, self.noise, self.most))}"
        )


@dataclass(frozen=True)
class StartDifference:
    """Difference between policy and reference at the first training step, before any parameter has changed.

    For each token of the step, the reference's log-probability is subtracted from the policy's. ``difference`` is the
    root mean square of the results, divided by the root mean square of the reference's log-probabilities. In a plain
    mean, positive and negative differences could cancel.
    """

    mean: float  # mean reward margin of the step's judgments; 0 if the policy starts at its reference
    difference: float
    tolerance: float  # largest difference that rounding explains, from the self-test

    @property
    def problem(self) -> Problem | None:
        """The warning W152 if the policy differs from its reference at the first training step, or None."""
        if self.difference <= self.tolerance:
            return None
        return Problem(
            "W152",
            f"the policy's first log-probabilities differ from the reference's by {100 * self.difference:.2g} % "
            f"(rounding explains {100 * self.tolerance:.2g} %)",
            f"comparison of model and reference on all tokens of the first step; mean margin {self.mean:.2g}",
            "leave ref_model out, or start the policy from the weights of ref_model, and keep disable_dropout on. "
            "Theta = 0 anchors the policy at the attribute rate of the reference only if policy and reference are "
            "equal at the start",
        )


@dataclass(frozen=True)
class LayoutChoice:
    """Layout for the scoring forward pass of a run, with the self-tests that this layout passed."""

    layout: Layout
    padding_reason: str | None  # why responses are padded although packing was requested
    tests: list[SelfTest]


def choose_layout(
    model: PreTrainedModel,
    attention: str,
    encoded: EncodedComparisons,
    autocast: Autocast | None = None,
    *,
    has_router_loss: bool = False,
) -> LayoutChoice:
    """Choose and test the layout for scoring; if no layout passes the self-test, raise `ConfigError`.

    The self-test does not change the model's mode, because gradient checkpointing works only in training mode. The
    first test runs in the precision of the weights, because it detects smaller errors than the test under ``autocast``.
    The load-balancing loss of the routers needs every token of a response, so it requires padded responses.
    """
    if has_router_loss:
        tests = _test_layout(model, padded_rows, encoded, autocast)
        reason = "the auxiliary loss of the routers needs all tokens (router_aux_loss_coef: 0 disables this loss)"
        choice = LayoutChoice(partial(padded_rows, feed_last=True), reason, tests)
    else:
        choice = _choose_attention(model, attention, encoded, autocast)
    if choice.padding_reason:
        logger.warning("every response is padded instead of packed: %s", choice.padding_reason)
    for test in choice.tests:
        logger.info("self-test in %s", test)
    return choice


def _choose_attention(
    model: PreTrainedModel, attention: str, encoded: EncodedComparisons, autocast: Autocast | None
) -> LayoutChoice:
    reason = unsupported_reason(model.config, encoded.longest) if attention == "packed" else None
    if attention == "padded" or reason:
        return LayoutChoice(padded_rows, reason, _test_layout(model, padded_rows, encoded, autocast))
    try:
        return LayoutChoice(
            packed_comparisons, None, _test_layout(model, packed_comparisons, encoded, autocast)
        )
    except ConfigError:
        raise
    except _FORWARD_ERRORS as error:
        tests = _test_layout(model, padded_rows, encoded, autocast)
        return LayoutChoice(padded_rows, str(error), tests)


# Errors that a model may raise if its forward method does not support a layout.
_FORWARD_ERRORS = (RuntimeError, ValueError, TypeError, AttributeError)


def _test_layout(
    model: PreTrainedModel, layout: Layout, encoded: EncodedComparisons, autocast: Autocast | None
) -> list[SelfTest]:
    """Run the self-tests of a layout; raise `ConfigError` if a test or even the padded forward pass itself fails."""
    require_fixed_positions(model.config, encoded.longest)
    name = type(model).__name__
    try:
        tests = self_tests(model, layout, encoded, autocast)
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"there is not enough memory for the longest comparison, which has {encoded.longest} tokens, even without "
            "the optimizer: lower max_length, set gradient_checkpointing: true, or use a larger device"
        ) from error
    except ConfigError:
        raise
    except _FORWARD_ERRORS as error:
        if layout is padded_rows:
            raise ConfigError(f"badpo cannot train {name}: {error}") from error
        raise
    for test in tests:
        if max(test.noise) > (MAX_NOISE if test.floor == FLOOR else MAX_NOISE_IN_16_BITS):
            raise ConfigError(
                f"{name} does not read from left to right: tokens after a response change its log-probabilities or "
                f"their gradients, in {test}"
            )
        if not test.passed:
            is_packed = layout is packed_comparisons
            remedy = "try attention: padded" if is_packed else "please report the model's configuration"
            raise ConfigError(
                f"self-test failed: the {'packed' if is_packed else 'padded'} forward pass differs from {name}'s own "
                f"forward pass, in {test}. The model uses a feature that badpo does not support; {remedy}"
            )
    return tests


def self_tests(
    model: PreTrainedModel,
    layout: Layout,
    encoded: EncodedComparisons,
    autocast: Autocast | None = None,
) -> list[SelfTest]:
    """Test a layout in the precision of the weights and, if the run uses ``autocast``, also under ``autocast``.

    The longest comparisons are tested one by one, because only long comparisons reveal an attention window. Random
    comparisons are tested together. Comparisons with two identical responses are skipped, because they reveal little.
    """
    able = np.flatnonzero(~encoded.identical)
    longest = able[np.argsort(-encoded.lengths[able].sum(axis=1), kind="stable")[:N_TRIED]]
    others = np.random.default_rng(0).choice(able, min(N_TRIED, len(able)), replace=False)
    samples = [encoded.take(members).pairs for members in [*longest[:, None], others]]
    in_full = all(parameter.dtype.itemsize >= 4 for parameter in model.parameters())
    floor = FLOOR if in_full else FLOOR_IN_16_BITS
    _require_determinate(model, layout, samples[-1], floor[0])
    tests = [_run_test(model, layout, samples, str(model.dtype).removeprefix("torch."), floor)]
    if autocast is not None:
        with autocast():
            tests.append(_run_test(model, layout, samples, "autocast", FLOOR_IN_16_BITS))
    return tests


def _require_determinate(
    model: PreTrainedModel, layout: Layout, pairs: list[Pair], floor: float
) -> None:
    """Raise `ConfigError` if dropout, layer drop or router jitter makes the log-probabilities depend on the seed."""
    scoring, logps = move_inputs(layout(pairs), model.device), []
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices), torch.no_grad(), scoring_attention(model, layout):
        for seed in (0, 1):
            torch.manual_seed(seed)
            logps.append(model(scoring=scoring).double())
    difference = _root_mean_square(logps[1] - logps[0])
    if difference > floor * float(logps[0].std(correction=0)):
        raise ConfigError(
            f"{type(model).__name__} has dropout or router jitter that badpo cannot turn off: two forward passes in "
            f"training mode differ by {difference:.1e} per token. Set the dropout or jitter to 0 in the model's "
            "configuration, or allow it with disable_dropout: false"
        )


def _run_test(
    model: PreTrainedModel,
    layout: Layout,
    samples: list[list[Pair]],
    precision: str,
    floor: tuple[float, float],
) -> SelfTest:
    with _frozen(model), torch.enable_grad():
        results = [_compare_forwards(_Trial(model, layout, pairs)) for pairs in samples]
    spread = float(torch.cat([result.logps for result in results]).std(correction=0)) or 1.0
    # unlike Python's max, np.max always returns NaN if any value is NaN
    differences = np.max([result.differences for result in results], axis=0) / [spread, 1.0]
    noise = np.max([result.noise for result in results], axis=0) / [spread, 1.0]
    return SelfTest(
        precision,
        (float(differences[0]), float(differences[1])),
        (float(noise[0]), float(noise[1])),
        floor,
    )


@dataclass(frozen=True)
class _Comparison:
    """Differences in log-probabilities and in gradients between forward passes on the same sample."""

    differences: tuple[float, float]  # between the scoring forward and the model's own forward
    noise: tuple[float, float]  # between two forwards of the model itself
    logps: Tensor  # log-probabilities of the model's own forward


@dataclass(frozen=True)
class _Scores:
    """Log-probabilities of tokens, and the gradient of their weighted sum with respect to each token's embedding."""

    logps: Tensor
    gradient: Tensor


def _compare_forwards(trial: _Trial) -> _Comparison:
    own = trial.score_by_model()
    # the noise is measured with the attention of the tested layout, because "eager" attention rounds differently
    with scoring_attention(trial.model, trial.layout):
        noisy = trial.score_by_model(N_PADDING)
        scored = trial.score_by_layout()
    reference = zip(response_logps(trial.model, trial.pairs), trial.tokens, strict=True)
    reference_logps = torch.from_numpy(np.concatenate([logps[tokens] for logps, tokens in reference]))
    logps_difference = max(
        _root_mean_square(logps - own.logps) for logps in (scored.logps, reference_logps.double())
    )
    norm = float(own.gradient.norm()) or 1.0
    return _Comparison(
        (logps_difference, float((scored.gradient - own.gradient).norm()) / norm),
        (
            _root_mean_square(noisy.logps - own.logps),
            float((noisy.gradient - own.gradient).norm()) / norm,
        ),
        own.logps,
    )


class _Trial:
    """Sample of comparisons for the self-test, with the response tokens to compare and a random weight per token."""

    def __init__(self, model: PreTrainedModel, layout: Layout, pairs: list[Pair]):
        self.model, self.layout, self.pairs = model, layout, pairs
        self._inputs = layout(pairs)
        most = max_rows(model.config.get_text_config().vocab_size, model.device)
        self.tokens = []
        for (_, response), n in zip(pairs, np.bincount(self._inputs["response"]).tolist(), strict=True):
            scored = np.linspace(0, n - 1, min(n, most)).astype(np.int64)
            self.tokens.append(len(response) - n + scored)
        rng = np.random.default_rng(0)
        self._weights = [torch.from_numpy(rng.standard_normal(len(tokens))) for tokens in self.tokens]
        self._vocabulary = np.unique(np.concatenate([[0], *(part for pair in pairs for part in pair)]))

    def score_by_model(self, n_padding: int = 0) -> _Scores:
        """Score each response with a separate forward pass of the model itself.

        If ``n_padding`` is positive, some entries of the input embeddings are changed by a rounding error.
        """
        scores = [
            self._score_response(*row, n_padding)
            for row in zip(self.pairs, self.tokens, self._weights, strict=True)
        ]
        gradient = torch.stack([score.gradient for score in scores]).sum(0)
        return _Scores(torch.cat([score.logps for score in scores]), gradient)

    def _score_response(self, pair: Pair, tokens: np.ndarray, weight: Tensor, n_padding: int) -> _Scores:
        prompt, response = pair
        ids = np.concatenate([prompt, response[:-1], np.zeros(n_padding, dtype=np.int64)])
        index, target, input_ids = (
            torch.from_numpy(a).to(self.model.device)
            for a in (len(prompt) - 1 + tokens, response[tokens], ids[None])
        )
        options: dict[str, Tensor] = {}
        if n_padding:
            # the last padding token is not masked, so that a model that reads ahead fails the test
            options["attention_mask"] = torch.ones_like(input_ids)
            options["attention_mask"][:, -n_padding:-1] = 0
        if "logits_to_keep" in inspect.signature(type(self.model).forward).parameters:
            # with logits_to_keep, the model computes logits only at the given positions
            options["logits_to_keep"] = index

        def compute_logps() -> Tensor:
            output = self.model(input_ids=input_ids, use_cache=False, return_dict=True, **options)
            logits = output.logits[0]
            if len(logits) != len(index):
                logits = logits[index]
            return logits.float().log_softmax(-1).gather(1, target[:, None])[:, 0].double()

        return self._score(compute_logps, weight, ids, is_nudged=n_padding > 0)

    def score_by_layout(self) -> _Scores:
        """Score all responses with the tested layout; call this method inside the context `scoring_attention`."""
        ends = np.cumsum(np.bincount(self._inputs["response"]))
        # a packed layout does not score the common prefix of both responses
        rows = zip(ends, self.pairs, self.tokens, strict=True)
        index = np.concatenate([end - len(response) + tokens for end, (_, response), tokens in rows])

        def compute_logps() -> Tensor:
            scored = self.model(scoring=move_inputs(self._inputs, self.model.device)).double()
            return scored[torch.from_numpy(index).to(scored.device)]

        return self._score(compute_logps, torch.cat(self._weights), self._inputs["input_ids"].ravel())

    def _score(
        self,
        compute_logps: Callable[[], Tensor],
        weight: Tensor,
        ids: np.ndarray,
        is_nudged: bool = False,
    ) -> _Scores:
        """Compute the log-probabilities of a forward pass, and their gradient with respect to the input embeddings."""
        embedded: list[Tensor] = []

        def make_leaf(module: torch.nn.Module, args: object, output: Tensor) -> Tensor | None:
            if embedded:
                return None
            embedded.append(output.detach().requires_grad_())
            # some models scale their embeddings in place, which torch does not allow for a leaf tensor
            copied = embedded[0].clone()
            if is_nudged:
                device = output.device.type
                autocast = torch.is_autocast_enabled(device)
                dtype = torch.get_autocast_dtype(device) if autocast else output.dtype
                copied.view(-1)[::NUDGED_EVERY] *= 1 + torch.finfo(dtype).eps
            return copied

        handle = self.model.get_input_embeddings().register_forward_hook(make_leaf)
        try:
            logps = compute_logps()
        finally:
            handle.remove()
        (logps * weight.to(logps.device)).sum().backward()
        if not embedded or embedded[0].grad is None:
            raise ValueError(
                f"{type(self.model).__name__} does not use the module that get_input_embeddings() returns"
            )
        token_gradient = embedded[0].grad.cpu().double().flatten(0, 1)
        rows = torch.from_numpy(np.searchsorted(self._vocabulary, ids))
        gradient = token_gradient.new_zeros(len(self._vocabulary), token_gradient.shape[1])
        return _Scores(logps.detach().cpu(), gradient.index_add(0, rows, token_gradient))


@contextmanager
def _frozen(model: PreTrainedModel) -> Iterator[None]:
    """Context manager that freezes all weights and prevents GPUs from using TF32 for float32 products."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matmul = torch.backends.cuda.matmul
    precision, matmul.fp32_precision = matmul.fp32_precision, "ieee"
    model.requires_grad_(False)
    try:
        yield
    finally:
        matmul.fp32_precision = precision
        for parameter in trained:
            parameter.requires_grad_()


def _root_mean_square(values: Tensor) -> float:
    return float(values.square().mean().sqrt())
