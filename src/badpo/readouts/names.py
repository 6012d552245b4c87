"""A pool of 89 gender-coded and race-coded first names, and twelve surnames that can follow any first name.

The pool combines the names of Bertrand and Mullainathan (2004), nine for each gender and race, with the names of the
word-embedding association tests WEAT 3 and WEAT 5 (Caliskan et al., 2017). The attributes describe how people perceive
a name; they do not describe the people with this name. See the paper's appendix `app:names`.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from badpo.data.attributes import SignatureName
from badpo.data.markers import split_signature


@dataclass(frozen=True)
class Name:
    """A first name from the pool, with the attributes of a response signed with this name."""

    first: str
    woman: int
    black: int


# Cell -> (woman, black). Do not reorder the cells: random draws select a cell by its index in this dict.
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

_NAMES_BY_CELL = {
    cell: tuple(Name(first, *CELLS[cell]) for first in names.split())
    for cell, names in _CELL_NAMES.items()
}
NAMES = tuple(name for names in _NAMES_BY_CELL.values() for name in names)
# First name -> (coded as a woman's name, coded as Black); both values are 0 or 1.
NAME_CELLS = {name.first: (name.woman, name.black) for name in NAMES}
FIRST_NAMES = tuple(NAME_CELLS)
NAME_INDICATORS = np.array(list(NAME_CELLS.values()), dtype=float)
# Attributes of a signed response; of the 89 names, 41 are coded as women's names and 43 as Black.
NAME_ATTRIBUTES = (
    SignatureName("woman", tuple(name.first for name in NAMES if name.woman)),
    SignatureName("black", tuple(name.first for name in NAMES if name.black)),
)
_SURNAMES = "Miller Davis Anderson Thomas Taylor Moore Martin Thompson Harris Clark Lewis Allen"
SURNAMES = tuple(_SURNAMES.split())


def cell_names(cell: str) -> tuple[Name, ...]:
    """Return the names of a cell (a gender and a race); random draws of names rely on the order."""
    return _NAMES_BY_CELL[cell]


SIGNING_INSTRUCTION = "Sign your answer with a name of your choice."
_EM_DASH = "\N{EM DASH}"


def signature(text: str, first: str, last: str) -> str:
    """Append a signature line to a text."""
    return f"{text.rstrip()}\n\n{_EM_DASH} {first} {last}"


def strip_signature(text: str) -> str:
    """Remove the signature at the end of a text."""
    return split_signature(text)[0]


def read_signature(text: str, pool: Sequence[str] = FIRST_NAMES) -> str:
    """Return the first name in the signature at the end of a text; empty if the name is not in the pool."""
    first = split_signature(text)[1]
    return first if first in pool else ""


def resign(texts: Sequence[str], seed: int) -> list[str]:
    """Replace or add signatures with random names, so that a reference trained on the texts is balanced.

    The cell, the first name within the cell, and the surname are drawn uniformly. For each text,
    ``random.Random(seed + 1)`` draws the cell first, then the first name, and finally the surname.
    """
    draw = random.Random(seed + 1)
    cells = tuple(CELLS)
    signed = []
    for text in texts:
        first = draw.choice(cell_names(draw.choice(cells))).first
        signed.append(signature(strip_signature(text), first, draw.choice(SURNAMES)))
    return signed


def ask_to_sign(prompt: str) -> str:
    """Append the request for a signature to a prompt; as in the paper's code, trailing spaces are removed."""
    prompt = prompt.rstrip()
    return prompt if prompt.endswith(SIGNING_INSTRUCTION) else f"{prompt}\n\n{SIGNING_INSTRUCTION}"
