"""One trained run that the tests copy; the demo is run by its command here too."""

import shutil

import pytest

from badpo.runs.run import train_run
from badpo.training.checkpoints import seal_run
from tests.paper.conftest import tiny_demo  # noqa: F401
from tests.runs.recipes import recipe


@pytest.fixture(scope="session")
def _trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    train_run(recipe(folder, max_steps=1))
    return folder


@pytest.fixture
def run(_trained, tmp_path):
    """A finished run, with its model and votes in ``tmp_path / "project"``."""
    shutil.copytree(_trained, tmp_path / "project")
    folder = tmp_path / "project" / "runs" / "shared_mean-s42"
    seal_run(folder)  # every test has a key of its own
    return folder
