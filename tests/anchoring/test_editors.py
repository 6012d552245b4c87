"""Editors change the attribute and nothing else."""

import itertools
import random

import pytest

from badpo.anchoring.editors import MarkdownStrip, SignatureSwap, WordSwap, measure_cell
from badpo.data.markers import split_signature
from badpo.data.problems import ConfigError
from badpo.readouts.names import NAMES, SURNAMES, signature


def test_a_swapped_signature_is_in_its_cell_keeps_text_and_surname_and_is_drawn_uniformly():
    swap, draw = SignatureSwap(), random.Random(1)
    for name, cell in itertools.product(NAMES[::7], itertools.product((0, 1), repeat=2)):
        text = signature("Boil it.\n\n— Emily Clark wrote that.", name.first, SURNAMES[3])
        edited = swap.edit(text, cell, draw)
        assert (measure_cell(swap, text), measure_cell(swap, edited)) == ((name.woman, name.black), cell)
        assert split_signature(edited)[0] == split_signature(text)[0]
        assert edited.split()[-1] == SURNAMES[3]
    swap, draw = SignatureSwap(), random.Random(0)
    text = signature("Boil it.", "Emily", "Clark")
    drawn = [split_signature(swap.edit(text, (1, 1), draw))[1] for _ in range(1800)]
    counts = [drawn.count(name.first) for name in NAMES if (name.woman, name.black) == (1, 1)]
    assert len(counts) == 18 and sum(counts) == 1800 and 60 < min(counts) <= max(counts) < 145


@pytest.mark.parametrize("text", ["Boil it.", "Boil it.\n\n— Zoe Clark", "— Emily Clark said so."])
def test_an_answer_without_a_name_of_the_pool_is_no_material(text):
    assert SignatureSwap().cells(text) == ()


@pytest.mark.parametrize(
    ("text", "british", "american"),
    [
        ("Color the gray wall.", "Colour the grey wall.", "Color the gray wall."),
        ("GREY, grey, discolored", "GREY, grey, discolored", "GRAY, gray, discolored"),
    ],
)
def test_words_are_swapped_whole_and_in_their_case(text, british, american):
    swap, draw = WordSwap("british", [("color", "colour"), ("gray", "grey")]), random.Random(0)
    assert swap.edit(text, (1,), draw) == british
    assert swap.edit(text, (0,), draw) == american
    assert measure_cell(swap, british) == (1,) and measure_cell(swap, american) == (0,)


def test_an_answer_keeps_its_markdown_or_loses_it_and_words_of_both_sides_are_refused():
    text = "# Rice\n\n1. **Rinse** it\n2. Boil it\n\n```\npot\n```"
    strip = MarkdownStrip()
    assert strip.edit(text, (1,), random.Random(0)) == text and measure_cell(strip, text) == (1,)
    assert measure_cell(strip, strip.edit(text, (0,), random.Random(0))) == (0,)
    # nothing would be left of it: it counts as what it is
    assert strip.cells("```") == ((1,),)
    with pytest.raises(ConfigError, match='"grey" is on both sides'):
        WordSwap("british", [("grey", "gray"), ("slate", "Grey")])
    with pytest.raises(ConfigError, match="needs pairs"):
        WordSwap("british", [])
