"""An export of another program as its importer sees it: what its fields hold, what a label means, what is personal."""

import fnmatch
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import pandas as pd

from badpo.data.cells import Table, columns_named, side_of
from badpo.data.files import Json
from badpo.data.privacy import EMAIL
from badpo.data.problems import DataError, Problem, did_you_mean

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


@dataclass
class Export:
    """A table of another program's, and what the user says about it; readers note here what they find.

    A reader yields a row under our column names for each answer, with the source's own annotator ids. An answer whose
    ``winner`` is None is no vote, nor is one that has a reason in ``left_out``: both are counted.
    """

    table: Table
    columns: Mapping[str, str | None] = field(default_factory=dict)  # our column -> the export's field
    winners: Mapping[str, str] = field(default_factory=dict)  # the export's labels -> a, b or tie
    used: set[str] = field(default_factory=set)  # columns that go into votes; the others stay behind
    asked: set[str] = field(
        default_factory=set
    )  # what of ``columns`` and ``winners`` the reader asked for
    findings: list[Problem] = field(default_factory=list)
    sides: tuple[str, ...] = ()  # the fields of the two responses, by whose names a label may call them

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return [str(name) for name in self.table.frame.columns]

    def records(self) -> Iterator[Json]:
        """The rows as dicts, missing cells left out."""
        for cells in self.table.frame.astype(object).itertuples(index=False, name=None):
            named = zip(self.names, cells, strict=True)
            yield {name: cell for name, cell in named if not is_missing(cell)}

    def note(self, code: str, what: str, remedy: str, count: int = 1) -> None:
        """Keep a warning or a notice for the user."""
        self.findings.append(Problem(code, what, self.table.name, remedy, count))

    def refusal(self, code: str, what: str, remedy: str) -> DataError:
        """The error for an export that cannot be read."""
        return DataError([Problem(code, what, self.table.name, remedy)])

    def named(self, ours: str, found: Sequence[str]) -> str | None:
        """The field that the user names for a column of ours; E103 where it is not ``found``."""
        self.asked.add(ours)
        theirs = self.columns.get(ours)
        if theirs is not None and theirs not in found:
            what = f'field "{theirs}" (for {ours}) is not in the export.{did_you_mean(theirs, found)}'
            raise self.refusal("E103", what, f"found: {', '.join(found)}")
        return theirs

    def question(self, found: Iterable[str]) -> str | None:
        """The question whose answers are the votes: as the user says, or the only one."""
        names = list(dict.fromkeys(found))
        asked = self.named("winner", names)
        if asked is None and len(names) > 1:
            what = f"{len(names)} questions: {', '.join(names)}"
            raise self.refusal("E146", what, f"import one at a time: --column winner={names[0]}")
        return asked or next(iter(names), None)

    def prompt_field(self, names: Sequence[str], usual: str = "") -> str:
        """The field that holds the prompt: as the user says, by its name, or the program's ``usual`` one."""
        known = columns_named(names, ["prompt"]).get("prompt") or (usual if usual in names else "")
        return self.named("prompt", names) or known or self._ask_for(names, "prompt")

    def text_fields(self, found: Iterable[str]) -> dict[str, str]:
        """The fields of the prompt and of the two responses, by our names: as the user says, or by their names."""
        names = list(dict.fromkeys(found))
        sides = tuple(filter(None, [self.named(name, names) for name in TEXTS[1:]]))
        sides = sides or tuple(columns_named(names, TEXTS[1:]).values())
        if len(sides) != 2:
            self._ask_for(names, *TEXTS[1:])
        self.sides = sides
        prompt = self.prompt_field([name for name in names if name not in sides])
        return dict(zip(TEXTS, (prompt, *sides), strict=True))

    def _ask_for(self, names: Sequence[str], *ours: str) -> NoReturn:
        what = f"cannot tell which field is {' and '.join(ours)}; found: {', '.join(names) or 'none'}"
        remedy = f"name {'both' if ours[1:] else 'it'}: {' '.join(f'--column {x}=...' for x in ours)}"
        raise self.refusal("E146", what, remedy)

    def side_of(self, label: Any) -> str:
        """``a``, ``b`` or ``tie`` for a label; the label itself where it is not known, which the reader then reports.

        A label may be the name of a field, or end in a side: ``A``, ``left``, ``response_2``, ``B-is-better``. What
        the user says comes first.
        """
        text = str(label)
        self.asked.add("winners")
        if text in self.winners:
            return self.winners[text]
        for side, name in zip("ab", self.sides, strict=False):
            if text.casefold() == name.casefold():
                return side
        named = side_of(text)
        return text if named is None else named[0]


@dataclass(frozen=True)
class Importer:
    """One format that can be read: what it is, by which columns it is known, and its reader."""

    what: str
    signs: Sequence[Collection[str]]  # it has all columns of one of these; * stands for any text
    read: Callable[[Export], Iterable[Json]]

    def fits(self, export: Export) -> bool:
        """Whether a table is of this format."""
        names = export.names
        return any(all(fnmatch.filter(names, sign) for sign in columns) for columns in self.signs)

    @property
    def known_by(self) -> str:
        """The columns by which it is known, in words."""
        return "; or ".join(", ".join(sorted(columns)) for columns in self.signs)


def listed(cell: Any) -> list[Any]:
    """A cell that holds a list, as a list; empty for a missing one."""
    return list(cell) if isinstance(cell, list | tuple | np.ndarray) else []


def is_missing(cell: Any) -> bool:
    """Whether a cell holds nothing."""
    return cell is None or (pd.api.types.is_scalar(cell) and bool(pd.isna(cell)))


def personal_fields(frame: pd.DataFrame, but: Collection[str] = ()) -> list[str]:
    """Columns, and fields inside their objects, that by name or by e-mail addresses in them tell who somebody is."""
    found: dict[str, None] = {}
    for i, name in enumerate(map(str, frame.columns)):
        paths = dict.fromkeys(
            [name, *(path for cell in frame.iloc[:, i] for path in _paths(cell, name))]
        )
        found |= {path: None for path in paths if _PERSONAL.search(path.rpartition(".")[2].casefold())}
        if any(isinstance(cell, str) and EMAIL.fullmatch(cell) for cell in frame.iloc[:, i]):
            found[name] = None
    return [path for path in found if path not in but]


def _paths(cell: Any, path: str) -> Iterator[str]:
    """The names that lead to what is inside of objects and of lists of objects."""
    if isinstance(cell, Mapping) and path.count(".") < _DEEPEST:
        for name, value in cell.items():
            yield from _paths(value, f"{path}.{name}")
    elif isinstance(cell, list | np.ndarray):
        for value in cell:
            yield from _paths(value, path)
    else:
        yield path
