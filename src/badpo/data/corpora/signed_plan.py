"""The random plan of the signed corpus: who signs what, who votes, and how each annotator leans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from badpo.data.corpora.names import CELLS, SURNAMES, Name, cell_names
from badpo.data.problems import ConfigError

__all__ = ["SignedConfig", "SignedPlan", "draw_plan"]

_CELL_OF_VECTOR = {vector: cell for cell, vector in CELLS.items()}
_PAPER_CLASS_MEANS = {"A": (1.2, 2.5), "B": (0.8, -0.5), "C": (1.0, 1.0)}


@dataclass(frozen=True)
class SignedConfig:
    """Settings of the signed corpus; the defaults are the paper's (appendix `app:names`, "Configuration").

    Attributes
    ----------
    class_means : mapping of str to (float, float)
        Annotator class -> mean bias (woman, black) in log-odds.
    annotators_per_class : int
        Annotators in each class.
    spread : float
        Standard deviation of an annotator's bias around the mean of the class, the same on both attributes.
    quality_share, swap_share : float
        Shares of quality pairs and swap pairs; the rest are mixed pairs.
    unsigned_share : float
        Share of the quality pairs in which neither response is signed.
    judgments_per_pair : int
        Votes cast on each pair.
    quality_scale : float
        kappa: log-odds of preference per point of score difference.
    min_words : int
        A pair is kept when both responses have at least this many whitespace words.
    noise : float
        Share of votes that are flipped, whatever the responses: a case the model does not describe. 0: none.
    lean_growth : float
        g: a vote leans by ``theta_k * (1 + g * |quality|)``, so the lean grows with the quality difference; also
        outside the model. 0: the lean does not depend on quality.
    """

    class_means: Mapping[str, tuple[float, float]] = field(default_factory=lambda: dict(_PAPER_CLASS_MEANS))
    annotators_per_class: int = 20
    spread: float = 0.8
    quality_share: float = 0.4
    swap_share: float = 0.2
    unsigned_share: float = 0.5
    judgments_per_pair: int = 4
    quality_scale: float = 0.5
    min_words: int = 5
    noise: float = 0.0
    lean_growth: float = 0.0

    def __post_init__(self) -> None:
        """Refuse settings that describe no corpus."""
        for name in ("quality_share", "swap_share", "unsigned_share", "noise"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(
                    f"signed corpus: {name} is {getattr(self, name)}; give a share between 0 and 1"
                )
        if self.quality_share + self.swap_share > 1.0:
            raise ConfigError(
                "signed corpus: quality_share + swap_share is above 1; the rest are mixed pairs"
            )
        if not self.class_means:
            raise ConfigError("signed corpus: class_means is empty; give at least one annotator class")
        for name in ("annotators_per_class", "judgments_per_pair"):
            if getattr(self, name) < 1:
                raise ConfigError(f"signed corpus: {name} is {getattr(self, name)}; give 1 or more")


@dataclass(frozen=True)
class SignedPlan:
    """Everything random about a signed corpus. It depends on no text and on no score.

    ``y1`` is the originally chosen text of a pair and ``y2`` the other one; on a swap pair both are the same text.

    Attributes
    ----------
    config : SignedConfig
        The settings that the plan was drawn with.
    seed : int
        The data seed.
    theta : ndarray of shape (n_annotators, 2)
        Planted bias of each annotator on (woman, black), in log-odds; positive leans toward the attribute.
    annotator_class : ndarray of shape (n_annotators,), str
        Class of each annotator.
    kinds : ndarray of shape (n_pairs,), str
        ``"quality"``, ``"swap"`` or ``"mixed"``.
    delta : ndarray of shape (n_pairs, 2), int
        ``g(y1) - g(y2)`` with g = (woman, black); an unsigned response is (0, 0).
    names_first, names_second : ndarray of shape (n_pairs,), str
        First name under y1 and under y2; ``""`` when unsigned.
    surnames : ndarray of shape (n_pairs,), str
        Surname under both responses; ``""`` when unsigned.
    swap_source : ndarray of shape (n_pairs,), str
        On swap pairs the text that is doubled, ``"chosen"`` or ``"rejected"``; ``""`` elsewhere.
    annotators : ndarray of shape (n_pairs, judgments_per_pair), int
        The annotator of each vote. One annotator may vote twice on a pair.
    uniforms : ndarray of shape (n_pairs, judgments_per_pair), float
        The random number that decides each vote.
    flips : ndarray of shape (n_pairs, judgments_per_pair), bool
        Votes that are turned around; all false unless the configuration has noise.
    """

    config: SignedConfig
    seed: int
    theta: NDArray[np.float64]
    annotator_class: NDArray[np.str_]
    kinds: NDArray[np.str_]
    delta: NDArray[np.int64]
    names_first: NDArray[np.str_]
    names_second: NDArray[np.str_]
    surnames: NDArray[np.str_]
    swap_source: NDArray[np.str_]
    annotators: NDArray[np.int64]
    uniforms: NDArray[np.float64]
    flips: NDArray[np.bool_]

    @property
    def n_pairs(self) -> int:
        """Number of pairs that the plan covers."""
        return len(self.kinds)

    def labels(self, quality: NDArray[np.float64]) -> NDArray[np.bool_]:
        r"""Votes that the planned annotators cast on pairs of the given quality.

        .. math:: y_1 \succ y_2 \iff v < \sigma(q + (1 + g |q|)\, \theta_k^\top (g(y_1) - g(y_2)))

        with v the planned uniform number and g the configured ``lean_growth`` (0 in the paper).

        Parameters
        ----------
        quality : ndarray of shape (n_pairs,)
            q, the quality margin of y1 over y2 in log-odds. On swap pairs it is taken as 0.

        Returns
        -------
        ndarray of shape (n_pairs, judgments_per_pair), bool
            True where y1, the originally chosen text, is preferred.

        Raises
        ------
        ValueError
            When the number of qualities is not the number of pairs.

        References
        ----------
        BA-DPO, appendix `app:names`, "Annotators and labels"; the likelihood is Eq. `biased_bt`.

        Examples
        --------
        With a very large margin every mixed or quality pair goes to y1:

        >>> plan = draw_plan(50, seed=0)
        >>> bool(plan.labels(np.full(50, 1e3))[plan.kinds != "swap"].all())
        True
        """
        quality = np.asarray(quality, dtype=np.float64)
        if quality.shape != (self.n_pairs,):
            raise ValueError(f"quality has shape {quality.shape}; the plan covers {self.n_pairs} pairs")
        quality = np.where(self.kinds == "swap", 0.0, quality)
        lean = np.einsum("ijq,iq->ij", self.theta[self.annotators], self.delta)
        growth = 1.0 + self.config.lean_growth * np.abs(quality)
        log_odds = quality[:, None] + growth[:, None] * lean
        prefers_first = self.uniforms < expit(log_odds)
        return np.asarray(prefers_first ^ self.flips)


@dataclass(frozen=True)
class _PairDraw:
    """What is drawn for one pair before its votes."""

    kind: str
    first: Name | None
    second: Name | None
    surname: str
    swap_source: str = ""


def draw_plan(n_pairs: int, seed: int = 0, config: SignedConfig | None = None) -> SignedPlan:
    """Random plan of a signed corpus: a pure function of the number of pairs, the seed and the configuration.

    The order of the draws from ``numpy.random.default_rng(seed)`` is the recipe:

    1. for each class, for each of its annotators: two normals, the bias around the class mean;
    2. for each pair: the choice of a surname; a uniform number v, with v < quality_share a quality pair, v <
       quality_share + swap_share a swap pair, else a mixed pair; then

       - quality: a uniform number (unsigned when below unsigned_share); unless unsigned the choice of a cell and of
         one name in it for both sides;
       - swap: a uniform number (below 0.5 the chosen text is doubled, else the rejected one), the choice of a cell,
         an integer 0 or 1 (the attribute to flip), a name of the cell for y1, a name of the flipped cell for y2;
       - mixed: two different cells, the first for y1, and one name of each;

       and at last for each vote: the integer of an annotator, then a uniform number.

    The flips of a noisy configuration come from a generator of their own, so noise moves nothing else.

    Parameters
    ----------
    n_pairs : int
        Number of pairs.
    seed : int
        Data seed.
    config : SignedConfig or None
        None: the paper's configuration.

    Returns
    -------
    SignedPlan
        The plan; see its attributes.

    References
    ----------
    BA-DPO, appendix `app:names`.

    Examples
    --------
    The pair counts and mean bias that the paper reports:

    >>> plan = draw_plan(7177, seed=0)
    >>> [int((plan.kinds == kind).sum()) for kind in ("quality", "swap", "mixed")]
    [2887, 1462, 2828]
    >>> plan.theta.mean(axis=0).round(2).tolist()
    [1.0, 1.13]
    """
    config = config or SignedConfig()
    generator = np.random.default_rng(seed)
    theta = _draw_theta(generator, config)
    draws, annotators, uniforms = [], [], []
    for _ in range(n_pairs):
        draws.append(_draw_pair(generator, config))
        for _ in range(config.judgments_per_pair):
            annotators.append(generator.integers(len(theta)))
            uniforms.append(generator.uniform())
    votes_shape = (n_pairs, config.judgments_per_pair)
    vectors = [[_vector(draw.first), _vector(draw.second)] for draw in draws]
    pairs = np.asarray(vectors, dtype=np.int64).reshape(n_pairs, 2, 2)
    return SignedPlan(
        config=config,
        seed=seed,
        theta=theta,
        annotator_class=np.repeat(np.array(list(config.class_means)), config.annotators_per_class),
        kinds=np.array([draw.kind for draw in draws], dtype=np.str_),
        delta=pairs[:, 0] - pairs[:, 1],
        names_first=np.array([draw.first.first if draw.first else "" for draw in draws], dtype=np.str_),
        names_second=np.array([draw.second.first if draw.second else "" for draw in draws], dtype=np.str_),
        surnames=np.array([draw.surname for draw in draws], dtype=np.str_),
        swap_source=np.array([draw.swap_source for draw in draws], dtype=np.str_),
        annotators=np.array(annotators, dtype=np.int64).reshape(votes_shape),
        uniforms=np.array(uniforms, dtype=np.float64).reshape(votes_shape),
        flips=np.random.default_rng([seed, 1]).uniform(size=votes_shape) < config.noise,
    )


def _draw_theta(generator: np.random.Generator, config: SignedConfig) -> NDArray[np.float64]:
    """Planted bias, class after class."""
    return np.array(
        [
            np.asarray(mean) + generator.normal(0.0, config.spread, size=2)
            for mean in config.class_means.values()
            for _ in range(config.annotators_per_class)
        ]
    )


def _draw_pair(generator: np.random.Generator, config: SignedConfig) -> _PairDraw:
    """Kind, names and surname of one pair."""
    surname = str(generator.choice(SURNAMES))
    kind_draw = generator.uniform()
    cells = tuple(CELLS)
    if kind_draw < config.quality_share:
        if generator.uniform() < config.unsigned_share:
            return _PairDraw("quality", None, None, "")
        name = _draw_name(generator, cells[generator.choice(len(cells))])
        return _PairDraw("quality", name, name, surname)
    if kind_draw < config.quality_share + config.swap_share:
        source = "chosen" if generator.uniform() < 0.5 else "rejected"
        first_cell = cells[generator.choice(len(cells))]
        second_cell = _flipped(first_cell, attribute=int(generator.integers(2)))
        first = _draw_name(generator, first_cell)
        return _PairDraw("swap", first, _draw_name(generator, second_cell), surname, source)
    first_cell, second_cell = (cells[i] for i in generator.choice(len(cells), size=2, replace=False))
    first = _draw_name(generator, first_cell)
    return _PairDraw("mixed", first, _draw_name(generator, second_cell), surname)


def _draw_name(generator: np.random.Generator, cell: str) -> Name:
    """One name of a cell, uniformly."""
    names = cell_names(cell)
    return names[generator.choice(len(names))]


def _flipped(cell: str, attribute: int) -> str:
    """The cell that differs on one attribute (0: woman, 1: black) only."""
    woman, black = CELLS[cell]
    return _CELL_OF_VECTOR[(1 - woman, black) if attribute == 0 else (woman, 1 - black)]


def _vector(name: Name | None) -> tuple[int, int]:
    """Attribute vector of a signature; unsigned is (0, 0)."""
    return (name.woman, name.black) if name else (0, 0)
