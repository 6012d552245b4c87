"""Token ids are kept once, outside of memory, and are the same as if all texts had been encoded together."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from badpo.data.importers import tables
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError
from badpo.training import encoding
from badpo.training.encoding import encode_comparisons
from badpo.training.token_rows import TokenRows, TokenWriter
from tests import tiny


def test_rows_come_back_and_share_their_tokens():
    rows = [[1, 2, 3], [], [4], [2**40]]
    writer = TokenWriter()
    for row in rows:
        writer.add(row)
    kept = writer.finish()
    assert [row.tolist() for row in kept] == rows
    taken = kept.take(np.array([3, 0, 0]))
    assert [row.tolist() for row in taken] == [rows[3], rows[0], rows[0]]
    assert taken.tokens is kept.tokens and not kept.tokens.flags.writeable
    assert [row.tolist() for row in pickle.loads(pickle.dumps(kept))] == rows


def test_no_row_is_no_mapping():
    empty = TokenWriter().finish()
    assert isinstance(empty, TokenRows) and len(empty) == 0


def test_no_room_is_said():
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer = TokenWriter()
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, before[1]))
    try:
        with pytest.raises(ConfigError, match="do not fit into .*TMPDIR"):
            writer.add(range(100_000))
            writer.finish()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("kind", ["trl", "paper"])
def test_pieces_give_the_same_ids_as_the_whole_and_stored_texts_as_texts_in_memory(
    kind, tmp_path, monkeypatch
):
    tiny.votes().to_parquet(tmp_path / "v.parquet")
    whole = encode_comparisons(Judgments.read(tmp_path / "v.parquet"), tiny.tokenizer(), kind, 12, 6)
    monkeypatch.setattr(encoding, "_ENCODED_AT_ONCE", 5)
    monkeypatch.setattr(tables, "STORED_BYTES", 1)
    pieces = encode_comparisons(Judgments.read(tmp_path / "v.parquet"), tiny.tokenizer(), kind, 12, 6)
    for name in ("prompt_ids", "a_ids", "b_ids"):
        assert [row.tolist() for row in getattr(pieces, name)] == [
            row.tolist() for row in getattr(whole, name)
        ]
    assert pieces.cut.tolist() == whole.cut.tolist() and pieces.fits.tolist() == whole.fits.tolist()
    assert whole.cut.any() and len(whole) > 5
