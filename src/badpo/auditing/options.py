"""What an audit can be asked for, checked before anything is computed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from badpo.data.problems import ConfigError, did_you_mean

QUALITIES = ("conditional", "random", "fixed", "joint")
SHRINKS = ("normal", "npmle", "none")
FLAG_RULES = ("posterior", "bh")


@dataclass(frozen=True)
class Flag:
    """When an annotator's lean is worth a look.

    Attributes
    ----------
    rho : float
        Size of a deviation that matters, in log-odds; 0.5 is an odds ratio of 1.65.
    fdr : float
        Share of the flagged that may turn out to deviate by less (false discovery rate).
    rule : "posterior" or "bh"
        ``posterior``: the probability that the deviation exceeds ``rho``, given everyone's votes, with that share
        controlled on average. ``bh``: Benjamini-Hochberg on the hypothesis of no deviation at all, which flags
        nearly everyone when there are enough votes, since hardly anyone sits exactly at the pool's mean.

    Examples
    --------
    >>> Flag(rho=0.7).fdr
    0.1
    """

    rho: float = 0.5
    fdr: float = 0.10
    rule: str = "posterior"

    def check(self) -> None:
        """Raise `ConfigError` for a value that means nothing."""
        if not (self.rho >= 0 and math.isfinite(self.rho)):
            raise ConfigError(f"rho is a size in log-odds, 0 or more, such as 0.5; got {self.rho!r}")
        if not 0 < self.fdr < 1:
            raise ConfigError(f"fdr is a share above 0 and below 1, such as 0.1; got {self.fdr!r}")
        _check_choice("flag rule", self.rule, FLAG_RULES)


@dataclass(frozen=True)
class Options:
    """Choices of an audit; `badpo.auditing.audit.audit` says what each means."""

    quality: str | None = None
    shrink: str = "normal"
    anchors: Sequence[str] = ()
    anchor_class: str | None = None
    flag: Flag = field(default_factory=Flag)
    min_informative: int = 10

    def check(self) -> None:
        """Raise `ConfigError` for a choice that is not there, or two that do not go together."""
        if self.quality is not None:
            kind, colon, column = self.quality.partition(":")
            _check_choice("quality", kind, QUALITIES)
            if (kind == "fixed") != bool(column) or (colon and kind != "fixed"):
                raise ConfigError(
                    f'quality="{self.quality}": name the column that holds the quality, as in fixed:score, and none '
                    "for the other kinds"
                )
        _check_choice("shrink", self.shrink, SHRINKS)
        self.flag.check()
        if self.shrink == "none" and self.flag.rule == "posterior":
            raise ConfigError("shrink=none leaves no posterior to flag by: add the flag rule bh, or shrink")
        if isinstance(self.anchors, str):
            raise ConfigError("anchors is a list of annotators; write [id] for a single one")
        if self.anchors and self.anchor_class is not None:
            raise ConfigError("name anchors one by one or by their class, not both")
        if self.min_informative < 1:
            raise ConfigError(f"min_informative must be 1 or more; got {self.min_informative}")

    @property
    def quality_column(self) -> str | None:
        """The column of ``fixed:COLUMN``; None for the other kinds."""
        return (self.quality or "").partition(":")[2] or None


def _check_choice(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise ConfigError(
            f"{name} must be one of {', '.join(known)}; got {value!r}.{did_you_mean(str(value), known)}"
        )
