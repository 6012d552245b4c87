"""Inject faults into a small project. Each kind of fault has a module, whose function `rows` takes a number of
seconds.
"""

from typing import NamedTuple

GENERATED = "generated inputs"


class Row(NamedTuple):
    """A row of the page: fault, stage, number of injections, outcome, and number of losses or unnamed damages."""

    fault: str
    stage: str
    injected: int
    outcome: str
    lost: int
