"""The class `Export` describes an export from another program: its fields, the meaning of labels, and personal data."""

import fnmatch
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, TypeAlias

import numpy as np
import pandas as pd

from badpo.data.cells import Table
from badpo.data.privacy import EMAIL
from badpo.data.problems import DataError, Problem, did_you_mean
from badpo.data.vocabulary import columns_named, side_of

_PERSONAL = re.compile(
    r"e_?mail|(first|last|full|given|family|nick|user|display|screen)_?name|^name$|surname|phone|^ip$|^ip_|_ip$|"
    r"address|birth|^dob$|^age$|gender|^sex$|ethnic|religion|nationality|location|country|city|^zip|postcode|"
    r"avatar|login|^user$|cookie|user_agent|prolific|mturk|open_feedback|own_reason|comment"
)
_DEEPEST = 50
NOT_SUBMITTED = "not submitted"
NO_PREFERENCE = "no preference given"
NOT_A_PAIR = "not a pair of responses"
TEXTS = ("prompt", "response_a", "response_b")

# a value in an export: a cell of a table or a part of a nested object
Cell: TypeAlias = "None | bool | int | float | str | np.ndarray | Sequence[Cell] | Mapping[str, Cell]"
Record = Mapping[str, Cell]


@dataclass
class Export:
    """An export from another program, the user's options, and the reader's findings.

    ``columns`` maps badpo's columns to fields of the export, and ``winners`` maps labels to a, b or tie. ``used``
    contains the columns that the reader uses; other columns are not imported. ``used_options`` contains the names in
    ``columns`` that the reader has used, and "winners" if the reader has used ``winners``.
    """

    table: Table
    columns: Mapping[str, str | None] = field(default_factory=dict)
    winners: Mapping[str, str] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    used_options: set[str] = field(default_factory=set)
    findings: list[Problem] = field(default_factory=list)
    sides: tuple[str, ...] = ()  # field names of the two responses; a label may be such a name

    @property
    def names(self) -> list[str]:
        """Return the names of the export's columns."""
        return [str(name) for name in self.table.frame.columns]

    def records(self) -> Iterator[Record]:
        """Yield each row as a dict without missing cells."""
        for cells in self.table.frame.astype(object).itertuples(index=False, name=None):
            named = zip(self.names, cells, strict=True)
            yield {name: cell for name, cell in named if not is_missing(cell)}

    def note(self, code: str, what: str, remedy: str, count: int = 1) -> None:
        """Add a warning or a notice to the findings."""
        self.findings.append(Problem(code, what, self.table.name, remedy, count))

    def build_error(self, code: str, what: str, remedy: str) -> DataError:
        """Return the error for an export that cannot be read."""
        return DataError([Problem(code, what, self.table.name, remedy)])

    def chosen_field(self, column: str, fields: Sequence[str]) -> str | None:
        """Return the field that the user chose for one of badpo's columns; raise E103 if the field does not exist."""
        self.used_options.add(column)
        chosen = self.columns.get(column)
        if chosen is not None and chosen not in fields:
            what = f'field "{chosen}" (for {column}) is not in the export.{did_you_mean(chosen, fields)}'
            raise self.build_error("E103", what, f"found: {', '.join(fields)}")
        return chosen

    def find_question(self, questions: Iterable[str]) -> str | None:
        """Return the question whose answers are the votes: the user's choice or the only question."""
        names = list(dict.fromkeys(questions))
        chosen = self.chosen_field("winner", names)
        if chosen is None and len(names) > 1:
            what = f"the export has {len(names)} questions: {', '.join(names)}"
            raise self.build_error(
                "E146", what, f"import the votes of one question at a time: --column winner={names[0]}"
            )
        return chosen or next(iter(names), None)

    def find_prompt_field(self, names: Sequence[str], usual: str = "") -> str:
        """Return the prompt field: the user's choice, a field with a known name, or the program's ``usual`` field."""
        known = columns_named(names, ["prompt"]).get("prompt") or (usual if usual in names else "")
        return self.chosen_field("prompt", names) or known or self._ask_for(names, "prompt")

    def find_text_fields(self, fields: Iterable[str]) -> dict[str, str]:
        """Return the fields of the prompt and the two responses: the user's choice or fields with known names."""
        names = list(dict.fromkeys(fields))
        sides = tuple(filter(None, [self.chosen_field(name, names) for name in TEXTS[1:]]))
        sides = sides or tuple(columns_named(names, TEXTS[1:]).values())
        if len(sides) != 2:
            self._ask_for(names, *TEXTS[1:])
        self.sides = sides
        prompt = self.find_prompt_field([name for name in names if name not in sides])
        return dict(zip(TEXTS, (prompt, *sides), strict=True))

    def _ask_for(self, names: Sequence[str], *columns: str) -> NoReturn:
        """Raise E146, which asks the user which fields of the export hold some of badpo's columns."""
        fields = ", ".join(names) or "none"
        what = f"badpo recognizes none of the fields as {' or '.join(columns)}; the fields are: {fields}"
        flags = " ".join(f"--column {column}=..." for column in columns)
        remedy = f"name {'both fields' if columns[1:] else 'the field'}: {flags}"
        raise self.build_error("E146", what, remedy)

    def side_of(self, label: Cell) -> str:
        """Convert a label to ``a``, ``b`` or ``tie``; unknown labels are returned unchanged and reported later.

        A label may be the name of a response's field, or it may name a side, such as ``A``, ``left``, ``response_2`` or
        ``B-is-better``. If ``winners`` gives a meaning to the label, this meaning takes precedence.
        """
        text = str(label)
        self.used_options.add("winners")
        if text in self.winners:
            return self.winners[text]
        for side, name in zip("ab", self.sides, strict=False):
            if text.casefold() == name.casefold():
                return side
        side_and_strength = side_of(text)
        return text if side_and_strength is None else side_and_strength[0]


@dataclass(frozen=True)
class Answer:
    """An answer in an export, with badpo's column names; values that the export lacks are None.

    An answer without ``winner`` or with a reason in ``left_out`` is counted but not imported. ``annotator`` is the id
    in the export.
    """

    prompt: Cell = None
    response_a: Cell = None
    response_b: Cell = None
    winner: Cell = None
    annotator: Cell = None
    annotator_class: Cell = None
    comparison_id: Cell = None
    prompt_id: Cell = None
    model_a: Cell = None
    model_b: Cell = None
    shown_first: Cell = None
    left_out: Cell = None


@dataclass(frozen=True)
class Importer:
    """An export format: its description, the columns that identify it, and the function that reads it.

    ``signs`` contains sets of column names, in which * matches any string. A table has the format if it contains all
    columns of at least one set.
    """

    description: str
    signs: Sequence[Collection[str]]
    read: Callable[[Export], Iterable[Answer]]

    def matches(self, export: Export) -> bool:
        """Return whether the columns of an export match this format."""
        names = export.names
        return any(all(fnmatch.filter(names, sign) for sign in columns) for columns in self.signs)

    @property
    def known_by(self) -> str:
        """Describe the columns that identify the format."""
        return "; or ".join(", ".join(sorted(columns)) for columns in self.signs)


def as_list(cell: Cell) -> list[Cell]:
    """Return the list in a cell, or an empty list if the cell contains no list."""
    return list(cell) if isinstance(cell, list | tuple | np.ndarray) else []


def as_record(cell: Cell) -> Record:
    """Return the object in a cell, or an empty object if the cell is missing; raise an error for any other cell."""
    if not isinstance(cell, Mapping | None):
        raise TypeError(f"{cell!r} is not an object")
    return cell or {}


def as_records(cell: Cell) -> list[Record]:
    """Return the objects in a cell that contains a list of objects."""
    return [*map(as_record, as_list(cell))]


def is_missing(cell: Cell) -> bool:
    """Return whether a cell is missing."""
    return cell is None or (pd.api.types.is_scalar(cell) and bool(pd.isna(cell)))


def personal_fields(frame: pd.DataFrame, but: Collection[str] = ()) -> list[str]:
    """Return the columns and nested fields that may identify people, based on field names and e-mail addresses."""
    personal: dict[str, None] = {}
    for i, name in enumerate(map(str, frame.columns)):
        paths = dict.fromkeys(
            [name, *(path for cell in frame.iloc[:, i] for path in _paths(cell, name))]
        )
        personal |= {
            path: None for path in paths if _PERSONAL.search(path.rpartition(".")[2].casefold())
        }
        if any(isinstance(cell, str) and EMAIL.fullmatch(cell) for cell in frame.iloc[:, i]):
            personal[name] = None
    return [path for path in personal if path not in but]


def _paths(cell: Cell, path: str) -> Iterator[str]:
    """Yield the path of each value in nested objects and lists of objects, with dots between the names."""
    if isinstance(cell, Mapping) and path.count(".") < _DEEPEST:
        for name, value in cell.items():
            yield from _paths(value, f"{path}.{name}")
    elif isinstance(cell, list | np.ndarray):
        for value in cell:
            yield from _paths(value, path)
    else:
        yield path
