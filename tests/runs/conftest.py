"""One trained run that the tests read or copy; the demo is run by its command here too."""

import shutil

import pytest

from badpo.runs import evaluate
from badpo.runs.run import train_run
from tests.paper.conftest import tiny_demo  # noqa: F401
from tests.runs.recipes import recipe


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A finished run of four steps, to be read only; its model and votes stand in the folder above ``runs``."""
    return train_run(recipe(tmp_path_factory.mktemp("trained")))


@pytest.fixture
def run(trained, tmp_path):
    """A copy of the trained run, in ``tmp_path / "project"``."""
    shutil.copytree(trained.parents[1], tmp_path / "project")
    return tmp_path / "project" / "runs" / trained.name


@pytest.fixture(autouse=True)
def _short_answers(monkeypatch):
    monkeypatch.setattr(evaluate, "MAX_NEW_TOKENS", 12)
