"""A second table of votes on the bundled answers: annotators who lean toward length and Markdown.

It stands where the paper has MultiPref, with the truth known: crowd and expert annotators, four votes on a pair of
which about one is a tie, attributes that the answers have by themselves, and a quality that the votes follow too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit

from badpo.data.corpora.bundled.pairs import scored_pairs
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError
from badpo.data.text_attributes import Length, Markdown

__all__ = ["StyleConfig", "StyleCorpus", "style_votes"]

_CLASS_MEANS = {"crowd": (1.4, 1.2), "expert": (0.6, 0.8)}


@dataclass(frozen=True)
class StyleConfig:
    """How the votes are drawn.

    Attributes
    ----------
    class_means : mapping of str to (float, float)
        Annotator class -> mean lean toward (length, markdown), in log-odds.
    annotators_per_class : int
    spread : float
        Standard deviation of an annotator's lean around the mean of the class, the same on both attributes.
    votes_per_class : int
        Annotators of each class, all different, who see a pair.
    kept_share : float
        Probability that a vote prefers a side; the others are ties, whatever the answers and the annotator.
    quality_scale : float
        Log-odds of preference per point of score difference.
    """

    class_means: Mapping[str, tuple[float, float]] = field(default_factory=lambda: dict(_CLASS_MEANS))
    annotators_per_class: int = 20
    spread: float = 0.5
    votes_per_class: int = 2
    kept_share: float = 0.75
    quality_scale: float = 0.5

    def __post_init__(self) -> None:
        """Refuse settings that describe no votes."""
        if not 0 < self.kept_share <= 1:
            raise ConfigError(
                f"style votes: kept_share is {self.kept_share}; give a share above 0 and up to 1"
            )
        if not 1 <= self.votes_per_class <= self.annotators_per_class:
            raise ConfigError(
                f"style votes: votes_per_class is {self.votes_per_class}; give 1 to {self.annotators_per_class}, the "
                "number of annotators in a class"
            )


@dataclass(frozen=True)
class StyleCorpus:
    """Votes with leans toward length and Markdown, and what is known about them because it was planted.

    Attributes
    ----------
    judgments : Judgments
        Attributes ``length`` (pair, ratio 1.5) and ``markdown``; ties are left out and counted in ``dropped``. Which
        side a response stands on is drawn for each pair.
    planted_theta : ndarray of shape (n_annotators, 2)
        Planted lean of each annotator of ``judgments.annotators``, in log-odds; to measure with, never to train on.
    quality : ndarray of shape (n_comparisons,)
        Planted quality margin of response a over response b, in log-odds.
    config : StyleConfig
    """

    judgments: Judgments
    planted_theta: NDArray[np.float64]
    quality: NDArray[np.float64]
    config: StyleConfig


def style_votes(n: int = 7177, seed: int = 0, config: StyleConfig | None = None) -> StyleCorpus:
    r"""Votes of 40 annotators in two classes on the bundled answers as they are, unsigned.

    .. math:: P(a \succ b) = \sigma(q + \theta_k^\top (g(a) - g(b))), \qquad q = \kappa\,(s_a - s_b)

    Drawn in this order from ``numpy.random.default_rng(seed)``: for each class, for each of its annotators two
    normals; for each pair one uniform (below 0.5 the chosen answer is response a), then for each class its
    annotators without replacement, then for each vote a uniform that decides whether it is a tie and one that
    decides the side.

    Parameters
    ----------
    n : int
        Number of pairs, as in `scored_pairs`.
    seed : int
        Seed of leans and votes; the texts are always the same.
    config : StyleConfig or None
        None: the defaults.

    Returns
    -------
    StyleCorpus
        Comparisons whose votes are all ties are not in it.

    Examples
    --------
    >>> corpus = style_votes(200)
    >>> corpus.judgments.attribute_names, corpus.planted_theta.shape
    (('length', 'markdown'), (40, 2))
    >>> 560 < corpus.judgments.n_votes < 640
    True
    """
    config = config or StyleConfig()
    generator = np.random.default_rng(seed)
    theta = np.array(
        [
            np.asarray(mean) + generator.normal(0.0, config.spread, size=2)
            for mean in config.class_means.values()
            for _ in range(config.annotators_per_class)
        ]
    )
    pairs = scored_pairs(n)
    is_turned = np.empty(n, dtype=bool)
    annotators = np.empty((n, config.votes_per_class * len(config.class_means)), dtype=np.int64)
    uniforms = np.empty((*annotators.shape, 2))
    for row in range(n):
        is_turned[row] = generator.uniform() >= 0.5
        annotators[row] = _seen_by(generator, config)
        uniforms[row] = generator.uniform(size=uniforms.shape[1:])
    comparisons = _turned(pairs, is_turned)
    quality = config.quality_scale * (pairs["score_chosen"] - pairs["score_rejected"]).to_numpy()
    quality = np.where(is_turned, -quality, quality)
    lean = np.einsum("ijq,iq->ij", theta[annotators], _differences(comparisons))
    prefers_a = uniforms[..., 1] < expit(quality[:, None] + lean)
    winner = np.where(uniforms[..., 0] < config.kept_share, np.where(prefers_a, "a", "b"), "tie")
    judgments = Judgments.read(
        _vote_rows(comparisons, annotators, winner, config), attributes=(Length(ratio=1.5), Markdown())
    )
    planted = np.full((judgments.n_annotators, 2), np.nan)
    planted[judgments.votes["annotator"]] = theta[annotators.ravel()[judgments.votes["row"]]]
    by_id = pd.Series(quality, index=comparisons["comparison_id"])
    return StyleCorpus(
        judgments, planted, by_id.loc[judgments.comparisons["comparison_id"]].to_numpy(), config
    )


def _seen_by(generator: np.random.Generator, config: StyleConfig) -> NDArray[np.int64]:
    """The annotators of one pair, class after class."""
    size = config.annotators_per_class
    drawn = [generator.choice(size, config.votes_per_class, replace=False) for _ in config.class_means]
    return np.concatenate([number * size + members for number, members in enumerate(drawn)])


def _turned(pairs: pd.DataFrame, is_turned: NDArray[np.bool_]) -> pd.DataFrame:
    """The comparisons, with the chosen answer as response b where a pair is turned."""
    return pd.DataFrame(
        {
            "comparison_id": [f"style-{row:05d}" for row in range(len(pairs))],
            "prompt_id": pairs["prompt_id"],
            "prompt": pairs["prompt"],
            "response_a": np.where(is_turned, pairs["rejected"], pairs["chosen"]),
            "response_b": np.where(is_turned, pairs["chosen"], pairs["rejected"]),
        }
    )


def _differences(comparisons: pd.DataFrame) -> NDArray[np.float64]:
    """g(a) - g(b) of length and Markdown, shape (n_pairs, 2)."""
    length, markdown = Length(ratio=1.5).measure, Markdown().measure
    rows = []
    for _, prompt, a, b in comparisons[["comparison_id", "prompt", "response_a", "response_b"]].to_numpy():
        longer_a, longer_b = length(prompt, a, b)
        rows.append((longer_a - longer_b, markdown(prompt, a) - markdown(prompt, b)))
    return np.array(rows, dtype=np.float64)


def _vote_rows(
    comparisons: pd.DataFrame, annotators: NDArray[np.int64], winner: NDArray[np.str_], config: StyleConfig
) -> pd.DataFrame:
    """One row for each vote, pair after pair."""
    rows = comparisons.loc[comparisons.index.repeat(annotators.shape[1])].reset_index(drop=True)
    classes = np.repeat(list(config.class_means), config.annotators_per_class)
    drawn = annotators.ravel()
    return rows.assign(
        winner=winner.ravel(),
        annotator=[f"constructed-style-{k:02d}" for k in drawn],
        annotator_class=classes[drawn],
    )
