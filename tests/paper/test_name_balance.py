"""Tokens of the names, cell by cell."""

from __future__ import annotations

import pytest

from badpo.readouts.names import CELLS, cell_names
from badpo_paper.name_readouts import token_balance
from badpo_paper.settings import build_tokenizer


def test_names_that_the_tokenizer_has_seen_are_one_token():
    white = [name.first for cell in ("white_woman", "white_man") for name in cell_names(cell)]
    tokenizer = build_tokenizer([f"Hi.\n\n\u2014 {name} Clark" for name in white] * 20, vocab_size=700)
    found = token_balance(tokenizer)
    assert list(found) == list(CELLS) and sum(cell.n_names for cell in found.values()) == 89
    for cell in ("white_woman", "white_man"):
        assert found[cell].one_token_share == 1.0 and found[cell].mean_tokens == 1.0
        assert found[cell].first_tokens == found[cell].n_names
    for cell in ("black_woman", "black_man"):
        assert found[cell].mean_tokens > 2 and found[cell].first_tokens < found[cell].n_names


def test_counts_are_the_tokenizers_own():
    tokenizer = build_tokenizer(["rice and water"], vocab_size=270)
    found = token_balance(tokenizer, {"few": ["La", "Lo", "Mi"]})["few"]
    lead = tokenizer("\n\n\u2014 ")["input_ids"]
    # the space of the lead belongs to the name's first piece, so it is counted with the name
    pieces = [tokenizer(f"\n\n\u2014 {name}")["input_ids"] for name in ("La", "Lo", "Mi")]
    shared = min(
        next((i for i, (x, y) in enumerate(zip(lead, ids, strict=False)) if x != y), len(lead))
        for ids in pieces
    )
    assert found.mean_tokens == pytest.approx(sum(len(ids) - shared for ids in pieces) / 3)
    assert found.largest_first_share >= 2 / 3


def test_one_token_share_counts_single_tokens():
    def characters(texts, add_special_tokens):
        return {"input_ids": [[ord(c) for c in text] for text in texts]}

    found = token_balance(characters, {"x": ["A", "Bo", "Cy"], "y": ["Do"]})
    assert found["x"].one_token_share == pytest.approx(1 / 3) and found["y"].one_token_share == 0.0
