"""One key for pseudonyms, so that tables made once serve several tests."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="session")
def _one_key():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BADPO_PSEUDONYM_KEY", "the key of the tests of the audit")
        yield
