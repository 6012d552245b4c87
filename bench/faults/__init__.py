"""Faults injected into a small project: a module for each kind, whose function `rows` injects for so many seconds."""

from typing import NamedTuple

GENERATED = "generated inputs"


class Row(NamedTuple):
    """What was done in which stage, how often, what became of it, and how often something was lost or unnamed."""

    fault: str
    stage: str
    injected: int
    outcome: str
    lost: int
