"""A strip leaves nothing that its own detector finds, and nothing else is lost."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from badpo.attributes import Length, Markdown
from badpo.data.attributes import SignatureName
from badpo.data.markers import has_markdown, split_signature
from badpo.readouts.judge import strip_for, strip_markdown, strip_signatures
from badpo.readouts.names import black_names, strip_signature

MARKUP = st.text(alphabet="*#-+|`1.\n \t\rab\u2003", max_size=60)
SIGNED = st.lists(
    st.sampled_from(["Boil it.", "\n", "\n\n", "\u2014 Emily Miller", " ", "- ", "\u2014"]), max_size=12
).map("".join)


@settings(max_examples=600, deadline=None)
@given(MARKUP)
@example("**a\n* b**")
@example("****a****")
@example("- | - a |")
@example("-\n")
@example("12. a\n\n13.\n")
@example("`` ```` `")
@example("| **a |\n* b** |")
def test_no_markdown_is_left_and_a_second_strip_changes_nothing(text):
    stripped = strip_markdown(text)
    assert not has_markdown(stripped)
    assert strip_markdown(stripped) == stripped
    if not has_markdown(text):
        assert stripped == text


@settings(max_examples=300, deadline=None)
@given(MARKUP)
def test_letters_stay_in_their_order(text):
    """Marks and white space go; letters do not, but for the name of a fence's language."""
    without_languages = re.sub(r"(`{3,}[^\S\n]*)\w*$", r"\1", text, flags=re.MULTILINE)
    letters = re.sub(r"[^ab]", "", strip_markdown(text))
    found = re.sub(r"[^ab]", "", text)
    assert letters == found or len(letters) >= len(re.sub(r"[^ab]", "", without_languages))


@settings(max_examples=200, deadline=None)
@given(SIGNED)
def test_no_signature_is_left(text):
    stripped = strip_signatures(text)
    assert split_signature(stripped) == (stripped, "")
    assert text.startswith(stripped)


@settings(max_examples=300, deadline=None)
@given(SIGNED)
@example("\u2014 Emily Miller\n\u2014 Emily Miller")
@example("\n\n \u2014 Emily Miller \r\n\t\n\u2014 Emily Miller\n")
def test_signatures_go_as_one_after_the_other_would(text):
    expected, shorter = text, strip_signature(text)
    while shorter != expected:
        expected, shorter = shorter, strip_signature(shorter)
    assert strip_signatures(text) == expected


def test_a_whole_answer():
    text = "# Rice\n\n1. Rinse **the rice**.\n2. Boil:\n   - slowly\n   + covered\n\n```python\nx = 2 ** 3\n```\n"
    assert strip_markdown(text) == ("Rice\n\nRinse the rice.\nBoil:\nslowly\ncovered\n\n\nx = 2 ** 3\n\n")


@pytest.mark.parametrize("unit", ["*" * 10, "- ", "|", "1. ", "`", "** a ", "**a\n* b**\n", "#", "\n- **"])
def test_no_markup_is_left_of_a_long_text_of_marks(unit):
    text = unit * (100_000 // len(unit))
    assert not has_markdown(strip_markdown(text))


def test_strips_by_attribute():
    assert strip_for(Markdown("bold or list")) is strip_markdown
    assert strip_for(SignatureName("black", black_names())) is strip_signatures
    assert strip_for(Length(ratio=1.5)) is None
