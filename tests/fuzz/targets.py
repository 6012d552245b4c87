"""Every part of the program that is fuzzed, by name."""

from __future__ import annotations

from tests.fuzz import reader_targets, vote_targets
from tests.fuzz.running import Target

TARGETS: dict[str, Target] = {
    **reader_targets.TARGETS,
    **vote_targets.TARGETS,
}
