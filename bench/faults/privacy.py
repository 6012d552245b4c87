"""Recognisable ids in every source, and a look at every byte that comes out: the tests of privacy, counted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from bench.faults.table import Row

TESTS = ("tests/test_privacy.py", "tests/test_privacy_of_training.py", "tests/data/test_forgetting.py")
OUTCOME = "no id, and nobody's estimate where others see it"


class Counts:
    """How often each test was run, and how often it failed."""

    def __init__(self) -> None:
        self.run: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.partition("::")[2].partition("[")[0]
        if report.failed:
            self.failed[name] += 1
        if report.when == "call" and not report.skipped:
            self.run[name] += 1


def rows(budget_seconds: float) -> list[Row]:
    """One row for each test: how many sources, commands or uploads it looked at."""
    root, counts = Path(__file__).parents[2], Counts()
    tests = [str(root / test) for test in TESTS]
    pytest.main(["-q", "-p", "no:cacheprovider", "--rootdir", str(root), *tests], plugins=[counts])
    return [
        Row(
            "ids planted in the source",
            name.removeprefix("test_").replace("_", " "),
            max(counts.run[name], counts.failed[name]),
            "failed" if counts.failed[name] else OUTCOME,
            counts.failed[name],
        )
        for name in counts.run | counts.failed
    ]
