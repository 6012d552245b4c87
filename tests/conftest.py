"""What every test stands on: one thread, no network, nothing written outside its own folder."""

from __future__ import annotations

import logging
import os

import pytest

# set before torch is imported: the tests are small, and several test runs may share a machine
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"


@pytest.fixture(autouse=True)
def _own_user_folders(tmp_path_factory, monkeypatch):
    """Send the user's cache and configuration folders to a temporary place."""
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path_factory.mktemp(name)))


@pytest.fixture(autouse=True)
def _own_log_level():
    """What a command or a bench makes quiet is heard again in the next test of the same worker."""
    log = logging.getLogger("badpo")
    before = log.level
    yield
    log.setLevel(before)
