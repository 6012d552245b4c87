"""The pool of 89 gender-coded and race-coded first names, and twelve surnames shared by all of them.

The pool is the union of the audit names of Bertrand and Mullainathan (2004), nine in each cell, and the names of
the word-embedding association tests WEAT 3 and WEAT 5 (Caliskan et al., 2017). A name is a marker of how people
read it; it says nothing about the person who bears it. See the paper's appendix `app:names`.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "CELLS",
    "FIRST_NAMES",
    "NAMES",
    "SURNAMES",
    "Name",
    "black_names",
    "cell_names",
    "name_of",
    "woman_names",
]


@dataclass(frozen=True)
class Name:
    """One first name of the pool and the attribute vector that it gives to a signed response.

    Attributes
    ----------
    first : str
        The first name.
    woman : int
        1 when the name is coded as a woman's, 0 when as a man's.
    black : int
        1 when the name is coded as Black, 0 when as white.
    """

    first: str
    woman: int
    black: int


# Cell -> (woman, black). The order is part of the recipe: random cells are drawn by their position here.
CELLS: dict[str, tuple[int, int]] = {
    "white_woman": (1, 0),
    "white_man": (0, 0),
    "black_woman": (1, 1),
    "black_man": (0, 1),
}

_FIRST_NAMES_OF_CELL = {
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

NAMES: tuple[Name, ...] = tuple(
    Name(first, *CELLS[cell]) for cell in CELLS for first in _FIRST_NAMES_OF_CELL[cell].split()
)
FIRST_NAMES: tuple[str, ...] = tuple(name.first for name in NAMES)
SURNAMES: tuple[str, ...] = (
    "Miller",
    "Davis",
    "Anderson",
    "Thomas",
    "Taylor",
    "Moore",
    "Martin",
    "Thompson",
    "Harris",
    "Clark",
    "Lewis",
    "Allen",
)
_BY_FIRST = {name.first: name for name in NAMES}


def cell_names(cell: str) -> tuple[Name, ...]:
    """Names of one cell, in the order of the recipe.

    Parameters
    ----------
    cell : str
        A key of ``CELLS``.

    Returns
    -------
    tuple of Name
        23 names for ``white_woman``, 23 for ``white_man``, 18 for ``black_woman`` and 25 for ``black_man``.

    Raises
    ------
    KeyError
        When there is no such cell.

    Examples
    --------
    >>> [len(cell_names(cell)) for cell in CELLS]
    [23, 23, 18, 25]
    >>> cell_names("black_woman")[0]
    Name(first='Aisha', woman=1, black=1)
    """
    woman, black = CELLS[cell]
    return tuple(name for name in NAMES if (name.woman, name.black) == (woman, black))


def name_of(first: str) -> Name:
    """Pool entry of a first name.

    Parameters
    ----------
    first : str
        A first name of the pool, spelled exactly: ``Kristen`` and ``Kristin`` are two names.

    Returns
    -------
    Name
        The name with its attribute vector.

    Raises
    ------
    KeyError
        When the name is not in the pool.

    Examples
    --------
    >>> name_of("Jamal")
    Name(first='Jamal', woman=0, black=1)
    """
    return _BY_FIRST[first]


def woman_names() -> tuple[str, ...]:
    """First names coded as a woman's (41 of the 89).

    Returns
    -------
    tuple of str
        In the order of the pool; the others are the man-coded names.

    Examples
    --------
    >>> len(woman_names()), woman_names()[0]
    (41, 'Allison')
    """
    return tuple(name.first for name in NAMES if name.woman)


def black_names() -> tuple[str, ...]:
    """First names coded as Black (43 of the 89).

    Returns
    -------
    tuple of str
        In the order of the pool; the others are the white-coded names.

    Examples
    --------
    >>> len(black_names()), black_names()[-1]
    (43, 'Wardell')
    """
    return tuple(name.first for name in NAMES if name.black)
