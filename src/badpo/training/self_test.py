"""Test before training that the scoring forward equals the model's own forward and the policy equals the reference."""

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

# Differences of log-probabilities and of gradients that are always allowed.
FLOOR = (1e-5, 1e-5)
FLOOR_IN_16_BITS = (2e-3, 1e-2)
# The scoring forward may differ from the model's own forward by this multiple of the rounding noise.
NOISE_FACTOR = 2.0
# The noise is measured by a forward in which every 61st number of the input embeddings has a rounding error.
NUDGED_EVERY = 61
# Largest noise that rounding can cause. If tokens after a response change its log-probabilities, the noise is larger.
MAX_NOISE, MAX_NOISE_IN_16_BITS = 1e-2, 0.5
# Number of padding tokens in the forward that measures the noise.
N_PADDING = 7
# Number of longest comparisons, and number of random comparisons, in the test.
N_TRIED = 3


@dataclass(frozen=True)
class SelfTest:
    """Differences between the scoring forward and the model's own forward, of log-probabilities and of gradients.

    The difference of log-probabilities is the root mean square over tokens, relative to their standard deviation. The
    difference of the gradients with respect to the input embeddings is the norm, relative to the norm of the gradient.
    ``noise`` has the same differences between two forwards of the model itself, one of which has padding and some
    embeddings with a rounding error. Padding alone is not sufficient, because it may not change any bit. ``floor`` is
    allowed even if the noise is smaller.
    """

    precision: str  # of the weights, or "autocast"
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
        """Whether rounding explains both differences; False if one of them is NaN."""
        return bool(np.less_equal(self.differences, self.most).all())

    def __str__(self) -> str:
        form = "{} {:.1e} (noise {:.1e}, at most {:.1e})".format
        names = ("log-probabilities", "gradient")
        return (
            f"{self.precision}: {', '.join(map(form, names, self.differences, self.noise, self.most))}"
        )


@dataclass(frozen=True)
class StartDifference:
    """Difference between policy and reference at the first step, before any parameter has changed.

    ``difference`` is the root mean square over the tokens of the step of the policy's log-probability minus the
    reference's, relative to the root mean square of the reference's. In a mean, differences could cancel.
    """

    mean: (
        float  # mean reward margin of the judgments of the step; 0 if the policy starts at its reference
    )
    difference: float
    tolerance: float  # largest difference that rounding explains, from the self-test

    @property
    def problem(self) -> Problem | None:
        """Warning W152 if the policy does not start at its reference."""
        if self.difference <= self.tolerance:
            return None
        return Problem(
            "W152",
            f"the policy's first log-probabilities differ from the reference's by {100 * self.difference:.2g} % "
            f"(rounding explains {100 * self.tolerance:.2g} %)",
            f"comparison of model and reference on all tokens of the first step; mean margin {self.mean:.2g}",
            "leave ref_model out, or start from its weights, and keep disable_dropout on. Theta = 0 anchors the policy "
            "at the attribute rate of the reference only if both are equal at the start",
        )


@dataclass(frozen=True)
class LayoutChoice:
    """Layout of the scoring forward of a run, with the self-tests that it passed."""

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
    """Choose the layout to train with and test it; raise `ConfigError` if no layout passes.

    The model is tested in its present mode, because gradients are checkpointed only in training mode. The test in the
    precision of the weights precedes the test under ``autocast``, because it detects smaller errors. The auxiliary loss
    of routers needs every token of a response, so it requires padded responses.
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


# Errors of a forward that does not support a layout.
_FORWARD_ERRORS = (RuntimeError, ValueError, TypeError, AttributeError)


def _test_layout(
    model: PreTrainedModel, layout: Layout, encoded: EncodedComparisons, autocast: Autocast | None
) -> list[SelfTest]:
    """Return the passed self-tests of a layout; raise `ConfigError` if one fails or nothing but padding is left."""
    require_fixed_positions(model.config, encoded.longest)
    name = type(model).__name__
    try:
        tests = self_tests(model, layout, encoded, autocast)
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"there is not enough memory for the longest comparison, of {encoded.longest} tokens, even without the "
            "optimizer: lower max_length, set gradient_checkpointing: true, or use a larger device"
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
                f"self-test failed: the {'packed' if is_packed else 'padded'} forward differs from {name}'s own "
                f"forward, in {test}. The model uses a feature that badpo does not support; {remedy}"
            )
    return tests


def self_tests(
    model: PreTrainedModel,
    layout: Layout,
    encoded: EncodedComparisons,
    autocast: Autocast | None = None,
) -> list[SelfTest]:
    """Test a layout in the precision of the weights, and under ``autocast`` if the run uses it.

    The longest comparisons are tested one by one, because a short comparison cannot show an attention window, and
    random comparisons are tested together. Comparisons with equal responses show little and are left out.
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
    """Refuse a model whose log-probabilities depend on a seed: dropout, layer drop or router jitter."""
    scoring, logps = move_inputs(layout(pairs), model.device), []
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices), torch.no_grad(), scoring_attention(model, layout):
        for seed in (0, 1):
            torch.manual_seed(seed)
            logps.append(model(scoring=scoring).double())
    difference = _root_mean_square(logps[1] - logps[0])
    if difference > floor * float(logps[0].std(correction=0)):
        raise ConfigError(
            f"{type(model).__name__} has dropout or router jitter that badpo cannot turn off: two forwards in training "
            f"mode differ by {difference:.1e} per token. Set it to 0 in the model's configuration, or allow it with "
            "disable_dropout: false"
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
    # if a value is NaN, the maximum of numpy is NaN; the maximum of Python may not be
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
    """Differences between forwards on one sample, each of log-probabilities and of the gradient."""

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
    # packs use torch's attention; the noise must use it too, because "eager" attention rounds differently
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
    """A sample of comparisons, the tokens of each response that are compared, and their random weights in the sum."""

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
        """Score by a separate forward of the model itself for each response.

        With padding, some numbers of the input embeddings have a rounding error.
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
            # never computes the logits of all positions
            options["logits_to_keep"] = index

        def compute_logps() -> Tensor:
            output = self.model(input_ids=input_ids, use_cache=False, return_dict=True, **options)
            logits = output.logits[0]
            if len(logits) != len(index):
                logits = logits[index]
            return logits.float().log_softmax(-1).gather(1, target[:, None])[:, 0].double()

        return self._score(compute_logps, weight, ids, is_nudged=n_padding > 0)

    def score_by_layout(self) -> _Scores:
        """Score by the tested forward; requires the context `scoring_attention` of its layout."""
        ends = np.cumsum(np.bincount(self._inputs["response"]))
        # the common beginning of both responses is not scored
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
        """Log-probabilities of a forward and their gradient with respect to the input embeddings."""
        embedded: list[Tensor] = []

        def make_leaf(module: torch.nn.Module, args: object, output: Tensor) -> Tensor | None:
            if embedded:
                return None
            embedded.append(output.detach().requires_grad_())
            # some models scale their embeddings in place, which a leaf does not allow
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
                f"{type(self.model).__name__} does not use the module of get_input_embeddings() for its input"
            )
        token_gradient = embedded[0].grad.cpu().double().flatten(0, 1)
        rows = torch.from_numpy(np.searchsorted(self._vocabulary, ids))
        gradient = token_gradient.new_zeros(len(self._vocabulary), token_gradient.shape[1])
        return _Scores(logps.detach().cpu(), gradient.index_add(0, rows, token_gradient))


@contextmanager
def _frozen(model: PreTrainedModel) -> Iterator[None]:
    """Context in which no weight requires a gradient and no GPU uses TF32 for float32 products."""
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
