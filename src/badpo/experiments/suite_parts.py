"""What a suite is made of: corpora, conditions, rows and columns of tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Spread = Literal["t95", "sd", "mean", "prompts95", "none"]


@dataclass(frozen=True)
class Corpus:
    """What a panel's runs share: votes, start model and reference.

    Attributes
    ----------
    kind : {"signed", "style"}
        Names in signatures with planted annotators, or length and Markdown: MultiPref and its offline twin.
    model : {"small", "large", "other", "demo"}
        Which of a scale's models; a scale may lack one. That of the demo has its runs in the demo's own folder.
    data_seed : int
        Of the planted votes.
    """

    kind: Literal["signed", "style"]
    model: Literal["small", "large", "other", "demo"] = "small"
    data_seed: int = 0

    @property
    def folder(self) -> str:
        """Name of the folder that holds the runs.

        Examples
        --------
        >>> Corpus("signed").folder, Corpus("style", "other").folder, Corpus("signed", data_seed=1).folder
        ('signed', 'style-other', 'signed-d1')
        """
        if self.model == "demo":
            return "."
        model = "" if self.model == "small" else f"-{self.model}"
        return f"{self.kind}{model}{f'-d{self.data_seed}' if self.data_seed else ''}"


@dataclass(frozen=True)
class Offset:
    """A finished run anchored by an offset stage on its own answers.

    Attributes
    ----------
    source : Condition
        The run, at the same seed.
    target : float
        Rate of every attribute.
    rounds : int
        Most rounds of the calibration; one asks for the exact tilt.
    """

    source: Condition
    target: float
    rounds: int = 4


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
        Keys of the recipe that differ; ``rate_factor`` multiplies the policy's learning rate.
    start : {"zero", "swap", "burn_in"}
        Where theta starts, when the arm does not say: at 0, at the level of the swap pairs, or at its convex optimum
        while the policy is the reference.
    classes : {"given", "clusters"}
        Classes of annotators as the corpus has them, or found in their offline deviations.
    rate_boost : float
        The bias's learning rate begins at so many times its value and falls to it over the first fifth of the steps.
    offset : Offset or None
        Anchored from another condition's run, whose arm it has, and not trained from the reference.
    """

    name: str
    arm: str
    declared: tuple[str, ...] = ()
    overrides: tuple[tuple[str, Any], ...] = ()
    start: Literal["zero", "swap", "burn_in"] = "zero"
    classes: Literal["given", "clusters"] = "given"
    rate_boost: float = 1.0
    offset: Offset | None = None


@dataclass(frozen=True)
class Row:
    """One row of a table.

    Attributes
    ----------
    label : str
        As the table has it; a key of the paper's numbers.
    condition : Condition
    seeds : {"all", "first", "one"}
        ``first``: a control that the paper ran at its first seed, and a scale at all of them where it can
        (`SeedPlan`). ``one``: run at the first at every scale.
    against : str
        The condition whose shift is removed, at the same seed.
    note : str
        A footnote, where the row is not what its label alone says.
    """

    label: str
    condition: Condition
    seeds: Literal["all", "first", "one"] = "all"
    against: str = "dpo"
    note: str = ""


@dataclass(frozen=True)
class SeedPlan:
    """At which seeds a scale runs what.

    Attributes
    ----------
    seeds : tuple of int
    single_seed_arms : tuple of str
        Arms that are run at the first seed only.
    control_seeds : {"first", "all"}
        Where rows are run that were controls at one seed in the paper.
    """

    seeds: tuple[int, ...]
    single_seed_arms: tuple[str, ...] = ()
    control_seeds: Literal["first", "all"] = "first"

    def of(self, row: Row) -> tuple[int, ...]:
        """The seeds that a row is run at.

        Examples
        --------
        >>> row = Row("Warm", Condition("pooled_warm", "pooled_warm"), "first")
        >>> SeedPlan((42, 123)).of(row), SeedPlan((42, 123), control_seeds="all").of(row)
        ((42,), (42, 123))
        """
        is_control = row.seeds == "first" and self.control_seeds == "first"
        is_single = is_control or row.seeds == "one" or row.condition.arm in self.single_seed_arms
        return self.seeds[:1] if is_single else self.seeds

    def by_condition(self, rows: Sequence[Row]) -> dict[str, tuple[int, ...]]:
        """The seeds of every condition in some rows, by its name; of a condition in several rows the most."""
        found: dict[str, tuple[int, ...]] = {}
        for row in rows:
            found[row.condition.name] = max(found.get(row.condition.name, ()), self.of(row), key=len)
        return found


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes
    ----------
    label : str
        A key of the paper's numbers.
    source : str
        A place in ``readouts.json``, its keys joined by dots. ``removed:PLACE`` is the share of the shift that is
        removed, ``shift:PLACE`` the shift from the reference in seed standard deviations, ``distance:PLACE`` that in
        log-odds. ``log:NAME`` is a metric of the last training step. ``type:annotators.0`` and ``type:weights.0`` are
        of the type of EM-DPO that most annotators are of, ``.1`` of the second. ``anchor:PLACE`` is in ``anchor.json``.
    style : {"decimal3", "decimal2", "decimal1", "whole", "percent", "percent1"}
    """

    label: str
    source: str
    style: Literal["decimal3", "decimal2", "decimal1", "whole", "percent", "percent1"] = "decimal3"


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
        The reference stands above them by itself, where the columns tell something of it.
    columns : tuple of Column
    spread : {"t95", "sd", "mean", "prompts95", "none"}
        What stands behind the mean: half of Student's 95 % interval over seeds, one standard deviation, nothing, or
        half of the 95 % interval clustered by prompt; ``none`` where a value is no mean over seeds.
    truth : str
        Label of a row with what was planted, in place of what was learned; empty: no such row.
    """

    label: str
    title: str
    corpus: Corpus
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    spread: Spread = "t95"
    truth: str = ""


@dataclass(frozen=True)
class Suite:
    """A table of the paper, or one of ours.

    Attributes
    ----------
    name, title : str
    panels : tuple of Panel
    patterns : tuple of str
        Keys of `badpo.experiments.patterns.PATTERNS`.
    votes : tuple of Panel
        Above the others: panels without conditions, whose rows are the attributes of the corpus and whose columns are
        read from its votes (keys of `badpo.auditing.pool.log_odds_row`).
    signatures : tuple of Corpus
        Below the others: what DPO's signatures on these rest on, and how many tokens the names take.
    """

    name: str
    title: str
    panels: tuple[Panel, ...]
    patterns: tuple[str, ...] = ()
    votes: tuple[Panel, ...] = ()
    signatures: tuple[Corpus, ...] = ()

    def corpora(self) -> list[Corpus]:
        """The corpora of its panels, each once."""
        return list(dict.fromkeys(panel.corpus for panel in (*self.votes, *self.panels)))
