"""A plugin of pytest that tells `coverage` which test runs; shared fixtures are told by where they stand."""

from __future__ import annotations

import json
import os
import sys
import time
from functools import _lru_cache_wrapper
from pathlib import Path

import coverage
import pytest

_seconds: dict[str, float] = {}
_failed: set[str] = set()


def _switch(context: str) -> str:
    # processes that a test starts read the variable
    before, os.environ["COVERED_BY"] = os.environ.get("COVERED_BY", ""), context
    measured = coverage.Coverage.current()
    if measured:
        measured.switch_context(context)
    return before


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """All from the setup to the teardown of a test is its own, but for shared fixtures."""
    _switch(item.nodeid)
    start = time.perf_counter()
    result = yield
    _seconds[item.nodeid] = time.perf_counter() - start
    _switch("")
    _forget_caches()
    return result


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef):
    """What a shared fixture runs counts for every test below its place."""
    if fixturedef.scope == "function":
        return (yield)
    before = _switch(f"fixture {fixturedef.baseid}")
    try:
        return (yield)
    finally:
        _switch(before)


def pytest_runtest_logreport(report):
    """A test that fails without a mutant says nothing about one."""
    if report.failed:
        _failed.add(report.nodeid)


def pytest_sessionfinish():
    """Write how long each test took, for those that passed."""
    passed = {test: seconds for test, seconds in _seconds.items() if test not in _failed}
    Path(os.environ["COVERED_OUT"]).write_text(json.dumps(passed))


def _forget_caches():
    """What one test leaves in a cache would hide that the next one needs these lines, too."""
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] in ("badpo", "badpo_paper", "tests"):
            for value in list(vars(module).values()):
                if isinstance(value, _lru_cache_wrapper):
                    value.cache_clear()
