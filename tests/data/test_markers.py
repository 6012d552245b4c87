from __future__ import annotations

import pytest

from badpo.data import markers

MARKDOWN = {
    "header": (
        markers.HEADER.search,
        ["# A", "text\n###### A", "  ## A", "#\tA"],
        ["#A", "####### A", "a # b", "#"],
    ),
    "list": (
        markers.LIST.search,
        ["- a", "* a", "+ a", "x\n  - a", "1. a", "a\n 12. b"],
        ["-a", "1.a", "a - b", "1) a", "\N{BULLET} a", "2024", "-", "**a**"],
    ),
    "bold": (
        markers.BOLD.search,
        ["**a**", "x **a b** y", "**a\nb**"],
        ["**", "****", "*a*", "**a*b**c", "a ** b"],
    ),
    "fence": (markers.FENCE.search, ["```", "a```b"], ["``", "`a`"]),
    "table": (markers.TABLE.search, ["| a |", "x\n | a | b | \ny", "||"], ["a | b", "|", "| a", "|\n|"]),
}
WAYS = {
    "hedge": (
        markers.has_hedge,
        [
            "Perhaps.",
            "It MIGHT rain",
            "well, I think so",
            "I\N{RIGHT SINGLE QUOTATION MARK}m not sure it does",
        ],
        ["mighty", "I thinker", "You may go.", "it  seems", ""],
    ),
    "refusal": (
        markers.has_refusal,
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
        markers.FIRST_PERSON.search,
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
        markers.LINK.search,
        ["https://example.org", "HTTP://x.y", "www.example.org", "[here](/rice)", "![](a.png)"],
        ["http", "https://", "awww.x", "f(x)[0](", "[a] (b)", "]( )", ""],
    ),
}


@pytest.mark.parametrize("name", [*MARKDOWN, *WAYS])
def test_each_form_and_its_near_misses(name):
    test, positive, negative = {**MARKDOWN, **WAYS}[name]
    assert [text for text in positive if not test(text)] == []
    assert [text for text in negative if test(text)] == []


def test_markdown_is_any_form_and_nothing_else():
    for _, positive, _ in MARKDOWN.values():
        assert all(markers.has_markdown(text) for text in positive)
    assert not markers.has_markdown("Plain text, 3.5 times - really. #tag, 2 * 3 * 4; say `x`.")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Done.\n\n\N{EM DASH} Emily Miller", "Emily"),
        ("Done.\n \N{EM DASH} Emily Miller \n\n", "Emily"),
        ("Done.\n\N{EM DASH}Emily Miller", "Emily"),
        ("\N{EM DASH} Emily Miller", ""),
        ("Done. \N{EM DASH} Emily Miller", ""),
        ("Done.\n\N{EN DASH} Emily Miller", ""),
        ("Done.\n\N{EM DASH} emily Miller", ""),
        ("Done.\n\N{EM DASH} Emily", ""),
        ("Done.\n\N{EM DASH} Emily Ann Miller", ""),
        ("Done.\n\N{EM DASH} Zo\N{LATIN SMALL LETTER E WITH DIAERESIS} Miller", ""),
        ("Done.\n\N{EM DASH} Emily Miller\nP.S. More.", ""),
        ("", ""),
    ],
)
def test_signature_stands_at_the_very_end(text, expected):
    assert markers.signature_first_name(text) == expected


def test_words_are_whole_and_case_does_not_matter():
    pattern = markers.word_pattern(["it depends", "c++", "may"])
    assert [
        bool(pattern.search(text)) for text in ["It Depends!", "in c++ now", "MAY", "maybe", "dismay", "c+"]
    ] == [
        True,
        True,
        True,
        False,
        False,
        False,
    ]


def test_emoji_are_found_and_letters_are_not():
    assert all(
        markers.EMOJI.search(text) for text in ["\U0001f600", "\u2714 done", "\U0001f1eb\U0001f1f7", "\u2b50"]
    )
    assert not any(
        markers.EMOJI.search(text)
        for text in ["\u65e5\u672c", "na\u00efve \u20ac 5", "x \u2192 y", "\u2022 a"]
    )
