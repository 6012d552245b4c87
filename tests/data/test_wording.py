from __future__ import annotations

import pytest

from badpo.data import markers
from badpo.data import markers as wording

WAYS = {
    "hedge": (
        wording.has_hedge,
        [
            "Perhaps.",
            "It MIGHT rain",
            "well, I think so",
            "I\N{RIGHT SINGLE QUOTATION MARK}m not sure it does",
        ],
        ["mighty", "I thinker", "You may go.", "it  seems", ""],
    ),
    "refusal": (
        wording.has_refusal,
        [
            "I'm sorry, but I can't help with that.",
            "I\N{RIGHT SINGLE QUOTATION MARK}m unable to assist you.",
            "I cannot really discuss this.",
            "As an AI language model, I have no taste.",
            "I won't write that.",
            "I am not able to provide it.",
        ],
        [
            "You cannot help it.",
            "I can't help but laugh.",
            "I can't wait.",
            "Sorry!",
            "",
            "word " * 100 + "I cannot help.",
        ],
    ),
    "first person": (
        wording.has_first_person,
        [
            "I say",
            "so do I",
            "I'd go",
            "I\N{RIGHT SINGLE QUOTATION MARK}ve been",
            "My town",
            "it is mine",
            "by myself",
        ],
        ["In it", "i.e. this", "we and you", "mystery", "HIV", "", "mines"],
    ),
    "link": (
        markers.has_link,
        ["https://example.org", "HTTP://x.y", "www.example.org", "[here](/rice)", "![](a.png)"],
        ["http", "https://", "awww.x", "f(x)[0](", "[a] (b)", "]( )", ""],
    ),
}


@pytest.mark.parametrize("name", WAYS)
def test_each_way_and_its_near_misses(name):
    test, positive, negative = WAYS[name]
    assert [text for text in positive if not test(text)] == []
    assert [text for text in negative if test(text)] == []
