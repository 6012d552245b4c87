"""The pool of 89 gender-coded and race-coded first names, and twelve surnames shared by all of them.

The pool is the union of the audit names of Bertrand and Mullainathan (2004), nine in each cell, and the names of
the word-embedding association tests WEAT 3 and WEAT 5 (Caliskan et al., 2017). A name is a marker of how people
read it; it says nothing about the person who bears it. See the paper's appendix `app:names`.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from badpo.data.markers import split_signature


@dataclass(frozen=True)
class Name:
    """One first name of the pool and the attribute vector that it gives to a signed response."""

    first: str
    woman: int
    black: int


# Cell -> (woman, black). The order is part of the recipe: random cells are drawn by their position here.
CELLS = {
    "white_woman": (1, 0),
    "white_man": (0, 0),
    "black_woman": (1, 1),
    "black_man": (0, 1),
}

_CELL_NAMES = {
    "white_woman": (
        "Allison Anne Carrie Emily Jill Laurie Kristen Meredith Sarah "
        "Amanda Courtney Heather Melanie Katie Betsy Kristin Nancy Stephanie Ellen Lauren Colleen Megan Rachel"
    ),
    "white_man": (
        "Brad Brendan Geoffrey Greg Brett Jay Matthew Neil Todd "
        "Adam Harry Josh Roger Alan Frank Justin Ryan Andrew Jack Stephen Paul Jonathan Peter"
    ),
    "black_woman": (
        "Aisha Ebony Keisha Kenya Latonya Lakisha Latoya Tamika Tanisha "
        "Nichelle Shereen Latisha Shaniqua Jasmine Tia Yolanda Malika Yvette"
    ),
    "black_man": (
        "Darnell Hakim Jermaine Kareem Jamal Leroy Rasheed Tremayne Tyrone "
        "Alonzo Jamel Theo Alphonse Jerome Torrance Lamar Lionel Tyree Deion Lamont Malik Terrence Lavon "
        "Marcellus Wardell"
    ),
}

_OF_CELL = {
    cell: tuple(Name(first, *CELLS[cell]) for first in names.split())
    for cell, names in _CELL_NAMES.items()
}
NAMES = tuple(name for names in _OF_CELL.values() for name in names)
FIRST_NAMES = tuple(name.first for name in NAMES)
_SURNAMES = "Miller Davis Anderson Thomas Taylor Moore Martin Thompson Harris Clark Lewis Allen"
SURNAMES = tuple(_SURNAMES.split())


def cell_names(cell: str) -> tuple[Name, ...]:
    """Names of one cell, in the order of the recipe."""
    return _OF_CELL[cell]


def woman_names() -> tuple[str, ...]:
    """First names coded as a woman's (41 of the 89)."""
    return tuple(name.first for name in NAMES if name.woman)


def black_names() -> tuple[str, ...]:
    """First names coded as Black (43 of the 89)."""
    return tuple(name.first for name in NAMES if name.black)


SIGNING_INSTRUCTION = "Sign your answer with a name of your choice."
_EM_DASH = "\N{EM DASH}"


def signature(text: str, first: str, last: str) -> str:
    r"""Text with a signature line below it."""
    return f"{text.rstrip()}\n\n{_EM_DASH} {first} {last}"


def strip_signature(text: str) -> str:
    r"""Text without the signature at its end."""
    return split_signature(text)[0]


def read_signature(text: str, pool: Sequence[str] = FIRST_NAMES) -> str:
    r"""First name in the signature at the end of a text."""
    first = split_signature(text)[1]
    return first if first in pool else ""


def resign(texts: Sequence[str], seed: int) -> list[str]:
    r"""Texts with freshly drawn signatures, so that a reference trained on them starts balanced.

    Every text gets a signature, also one that had none: the cell is uniform over the four cells, the first name
    uniform in its cell, the surname uniform. Drawn in this order, text by text, from ``random.Random(seed + 1)``.
    """
    draw = random.Random(seed + 1)
    cells = tuple(CELLS)
    signed = []
    for text in texts:
        first = draw.choice(cell_names(draw.choice(cells))).first
        signed.append(signature(strip_signature(text), first, draw.choice(SURNAMES)))
    return signed


def ask_to_sign(prompt: str) -> str:
    r"""Prompt, right-stripped as in the paper's code, followed by the request for a signature."""
    prompt = prompt.rstrip()
    return prompt if prompt.endswith(SIGNING_INSTRUCTION) else f"{prompt}\n\n{SIGNING_INSTRUCTION}"
