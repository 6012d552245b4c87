"""What a run starts from: judgments with token ids that fit, and a bias term for their annotators."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError, DataError, Problem
from badpo.objective.bias import VARIANTS, BiasTerm
from badpo.training.config import BADPOConfig
from badpo.training.encoding import EncodedComparisons, encode_comparisons, length_report


def build_bias(judgments: Judgments, variant: str, warm_start: str) -> BiasTerm:
    """The bias term of a named variant for a pool, at zero or at the offline estimate of its own judgments.

    Parameters
    ----------
    variant : str
        A key of `badpo.objective.bias.VARIANTS`.
    warm_start : "zero" or "offline"
        ``offline`` starts the common level at the log-odds that the carrying side wins a cross-group judgment.

    Raises
    ------
    ConfigError
        Per-annotator parameters without annotator identities, or class offsets without classes.
    """
    parts = VARIANTS[variant]
    if "deviation" in parts and not judgments.has_identities:
        raise ConfigError(
            f"bias: {variant} needs an annotator column; none was given. Map it with columns: {{annotator: NAME}}, "
            "or use bias: pooled, which needs no identities"
        )
    classes = judgments.annotators["annotator_class"].tolist() if "class_offset" in parts else None
    bias = BiasTerm(
        judgments.attribute_names, judgments.annotators["pseudonym"].tolist(), parts, annotator_class=classes
    )
    if warm_start == "offline" and parts:
        estimates = judgments.offline_log_odds()
        bias.warm_start(torch.tensor([e.log_odds if e.log_odds is not None else 0.0 for e in estimates]))
    return bias


def encode_judgments(
    judgments: Judgments, tokenizer, args: BADPOConfig
) -> tuple[Judgments, EncodedComparisons, list[Problem]]:
    """The judgments whose comparison fits ``max_length``, their token ids, and what the limit cost.

    Raises
    ------
    DataError
        No comparison fits (E140).
    """
    encoded = encode_comparisons(judgments, tokenizer, args.encoding, args.max_length, args.max_prompt_length)
    findings = length_report(judgments, encoded, tokenizer, args.max_length)
    if encoded.fits.all():
        return judgments, encoded, findings
    kept = judgments.take(encoded.fits[judgments.votes["comparison"].to_numpy()])
    if kept.n_votes == 0:
        raise DataError(
            [
                Problem(
                    "E140",
                    "no comparison fits",
                    f"every prompt has {args.max_length} tokens or more",
                    "raise max_length",
                    "error",
                )
            ]
        )
    return kept, encoded.take(np.flatnonzero(encoded.fits)), findings


def as_judgments(data, attributes: Sequence) -> Judgments:
    """``data`` as `Judgments` with the attributes declared; anything but `Judgments` goes through `Judgments.read`."""
    if isinstance(data, Judgments):
        return data.with_attributes(attributes) if attributes else data
    return Judgments.read(data, attributes=attributes)
