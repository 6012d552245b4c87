"""What every test stands on: one thread, no network, nothing written outside its own folder."""

import logging
import os

import pytest

# set before torch is imported: the tests are small, and several test runs may share a machine
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"


@pytest.fixture(autouse=True, scope="session")
def _own_key(tmp_path_factory):
    """Keep the pseudonym key in a temporary place, one for all tests: some share runs that were made with it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("XDG_CONFIG_HOME")))
        yield


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    """Send the user's cache to a temporary place."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("XDG_CACHE_HOME")))


@pytest.fixture(autouse=True)
def _own_log_level():
    """What a command or a bench makes quiet is heard again in the next test of the same worker."""
    log = logging.getLogger("badpo")
    before = log.level
    yield
    log.setLevel(before)
