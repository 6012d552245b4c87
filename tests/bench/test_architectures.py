from __future__ import annotations

import pytest

from bench import architectures


@pytest.mark.parametrize(
    ("name", "outcome", "reason"),
    [
        ("cohere", "packed", ""),
        ("opt", "packed", ""),
        ("gemma2", "padded", "soft-capping"),
        ("phi3, longrope", "refused", "set max_length: 24"),
    ],
)
def test_every_outcome_is_measured_against_plain_forwards_and_trl(name, outcome, reason):
    row = architectures.measured(name)
    assert row["outcome"] == outcome and reason in row["reason"]
    assert not architectures.is_wrong(row)
    if outcome != "refused":
        assert 0 < row["error"] < 5e-6 and 0 < row["from_trl"] < 5e-6


def test_a_row_with_other_gradients_is_wrong():
    row = {"architecture": "llama", "error": 1e-6, "from_trl": None}
    assert not architectures.is_wrong(row)
    assert architectures.is_wrong(row | {"error": 1e-3})
    assert architectures.is_wrong(row | {"error": float("nan")})
    assert architectures.is_wrong(row | {"from_trl": 1e-3})
    assert not architectures.is_wrong(row | {"architecture": "recurrent_gemma", "from_trl": 1e-3})
