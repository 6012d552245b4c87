"""The demo is run by its command here too."""

from tests.paper.conftest import tiny_demo  # noqa: F401
