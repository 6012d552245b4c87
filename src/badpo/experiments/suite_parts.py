"""What a suite is made of: corpora, conditions, rows and columns of tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Spread = Literal["t95", "sd", "mean"]


@dataclass(frozen=True)
class Corpus:
    """What a panel's runs share: votes, start model and reference.

    Attributes
    ----------
    kind : {"signed", "style"}
        Names in signatures with planted annotators, or length and Markdown: MultiPref and its offline twin.
    model : {"small", "large", "other"}
        Which of a scale's models; a scale may lack one.
    data_seed : int
        Of the planted votes.
    """

    kind: Literal["signed", "style"]
    model: Literal["small", "large", "other"] = "small"
    data_seed: int = 0

    @property
    def folder(self) -> str:
        """Name of the folder that holds the runs.

        Examples
        --------
        >>> Corpus("signed").folder, Corpus("style", "other").folder, Corpus("signed", data_seed=1).folder
        ('signed', 'style-other', 'signed-d1')
        """
        model = "" if self.model == "small" else f"-{self.model}"
        return f"{self.kind}{model}{f'-d{self.data_seed}' if self.data_seed else ''}"


@dataclass(frozen=True)
class Condition:
    """What is trained, apart from corpus and seed; its name is the run folder's.

    Attributes
    ----------
    name : str
    arm : str
        A key of `badpo.experiments.arms.ARMS`.
    declared : tuple of str
        Attributes that the votes are given; empty: all of the corpus's.
    overrides : tuple of (str, number)
        Fields of the suite's settings that differ; ``rate_factor`` multiplies the policy's learning rate.
    start : {"zero", "swap", "burn_in"}
        Where theta starts, when the arm does not say: at 0, at the level of the swap pairs, or at its convex optimum
        while the policy is the reference.
    classes : {"given", "clusters"}
        Classes of annotators as the corpus has them, or found in their offline deviations.
    rate_boost : float
        The bias's learning rate begins at so many times its value and falls to it over the first fifth of the steps.
    """

    name: str
    arm: str
    declared: tuple[str, ...] = ()
    overrides: tuple[tuple[str, float], ...] = ()
    start: Literal["zero", "swap", "burn_in"] = "zero"
    classes: Literal["given", "clusters"] = "given"
    rate_boost: float = 1.0


@dataclass(frozen=True)
class Row:
    """One row of a table.

    Attributes
    ----------
    label : str
        As the table has it; a key of the paper's numbers.
    condition : Condition
    seeds : {"all", "first"}
        ``first``: a control at one seed.
    against : str
        The condition whose shift is removed, at the same seed.
    """

    label: str
    condition: Condition
    seeds: Literal["all", "first"] = "all"
    against: str = "dpo"


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes
    ----------
    label : str
        A key of the paper's numbers.
    source : str
        A place in ``readouts.json``, its keys joined by dots. ``removed:PLACE`` is the share of the shift that is
        removed, ``shift:PLACE`` the shift from the reference in seed standard deviations.
    style : {"decimal3", "decimal2", "decimal1", "percent"}
    """

    label: str
    source: str
    style: Literal["decimal3", "decimal2", "decimal1", "percent"] = "decimal3"


@dataclass(frozen=True)
class Panel:
    """A part of a table whose rows share a corpus and a model.

    Attributes
    ----------
    label : str
        The paper's label of the table.
    title : str
    corpus : Corpus
    rows : tuple of Row
        The reference stands above them by itself.
    columns : tuple of Column
    spread : {"t95", "sd", "mean"}
        What stands behind the mean: half of Student's 95 % interval, one standard deviation, or nothing.
    """

    label: str
    title: str
    corpus: Corpus
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    spread: Spread = "t95"


@dataclass(frozen=True)
class Suite:
    """A table of the paper, or one of ours.

    Attributes
    ----------
    name, title : str
    panels : tuple of Panel
    patterns : tuple of str
        Keys of `badpo.experiments.patterns.PATTERNS`.
    """

    name: str
    title: str
    panels: tuple[Panel, ...]
    patterns: tuple[str, ...] = ()
