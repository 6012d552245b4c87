"""The pool of names is the published one."""

from __future__ import annotations

import pytest

from badpo.readouts import names


def test_counts_of_the_cells():
    assert {cell: len(names.cell_names(cell)) for cell in names.CELLS} == {
        "white_woman": 23,
        "white_man": 23,
        "black_woman": 18,
        "black_man": 25,
    }
    assert len(names.NAMES) == len(set(names.FIRST_NAMES)) == 89


def test_names_that_are_easily_lost_or_misplaced():
    assert {"Kristen", "Kristin", "Jamal", "Jamel", "Malik", "Malika", "Tyree"} <= set(names.FIRST_NAMES)
    assert not {"Hank", "Chip", "Ian", "Fred", "Amber", "Lerone", "tvree"} & set(names.FIRST_NAMES)
    assert {first: names.name_of(first).woman for first in ("Theo", "Lionel", "Tia", "Shereen")} == {
        "Theo": 0,
        "Lionel": 0,
        "Tia": 1,
        "Shereen": 1,
    }


def test_malik_is_the_only_name_that_begins_another():
    prefixes = {
        (short, long)
        for short in names.FIRST_NAMES
        for long in names.FIRST_NAMES
        if long != short and long.startswith(short)
    }
    assert prefixes == {("Malik", "Malika")}


def test_surnames_are_twelve_and_no_first_names():
    assert len(set(names.SURNAMES)) == 12
    assert not set(names.SURNAMES) & set(names.FIRST_NAMES)


def test_indicator_lists_agree_with_the_vectors():
    assert set(names.woman_names()) == {name.first for name in names.NAMES if name.woman}
    assert set(names.black_names()) == {name.first for name in names.NAMES if name.black}
    assert (len(names.woman_names()), len(names.black_names())) == (41, 43)


def test_an_unknown_name_is_no_member():
    with pytest.raises(KeyError):
        names.name_of("emily")
