"""What is wrong with data or settings, in words that name the place and the remedy."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["error", "warning", "notice"]
SEVERITIES: dict[str, Severity] = {"E": "error", "W": "warning", "N": "notice"}  # the worst first

LISTED = 5
_LONGEST_SENTENCE = 2_000
_LONGEST_NAME = 200  # the comparison of two longer words takes seconds
# tab and line feed stay; a carriage return goes back over what stands before it
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True)
class Problem:
    """One thing that a person should know about their data.

    Attributes
    ----------
    code : str
        ``E``, ``W`` or ``N`` (error, warning, notice) and a number that the documentation lists.
    what : str
        What was found, with the count.
    where : str
        File, column, rows and pseudonyms; never a raw annotator id.
    remedy : str
        What to do.
    severity : "error", "warning" or "notice"
        As the letter of the code says. An error stops the reader. A warning is legal but wrong for the statistics. A
        notice only counts.
    count : int
        How many rows, judgments, comparisons or annotators it concerns, as ``what`` says.

    Examples
    --------
    >>> print(Problem("E107", "1 judgment has no winner", "votes.csv, row 3", "write a, b or tie"))
    E107 error: 1 judgment has no winner
        where:  votes.csv, row 3
        remedy: write a, b or tie
    """

    code: str
    what: str
    where: str
    remedy: str
    severity: Severity = field(init=False)
    count: int = 1

    def __post_init__(self):
        object.__setattr__(self, "severity", SEVERITIES[self.code[0]])
        # labels and names of columns come from the table: nobody's terminal should obey them
        for name in ("what", "where", "remedy"):
            sentence = written_out(getattr(self, name))
            if len(sentence) > _LONGEST_SENTENCE:
                sentence = f"{sentence[:_LONGEST_SENTENCE]}... ({len(sentence):,} characters)"
            object.__setattr__(self, name, sentence)

    def __str__(self) -> str:
        return f"{self.code} {self.severity}: {self.what}\n    where:  {self.where}\n    remedy: {self.remedy}"


def worst_first(problems: Iterable[Problem]) -> list[Problem]:
    """Errors, then warnings, then notices."""
    return sorted(problems, key=lambda problem: [*SEVERITIES].index(problem.code[0]))


class DataError(ValueError):
    """The data cannot be used as they are; everything found in one pass is in `problems` and in the message."""

    def __init__(self, problems: Iterable[Problem]):
        self.problems: tuple[Problem, ...] = tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        return "\n".join(
            ["the data cannot be used as they are:", *(str(problem) for problem in self.problems)]
        )


class ConfigError(ValueError):
    """A setting, an argument or a combination of them is wrong; nothing was started."""

    def __str__(self) -> str:
        # what a file or a command line says may be quoted in it: nobody's terminal should obey that
        return written_out(super().__str__())


def written_out(text: str) -> str:
    r"""Text whose control characters, and those that turn the reading direction, are written as codes."""
    # in the form that JSON has for them too
    written = _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return written.encode("utf-8", "backslashreplace").decode("utf-8")


def is_unicode(text: str) -> bool:
    r"""Whether a text can be written anywhere: it holds no half of a surrogate pair, which JSON can escape."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def did_you_mean(word: str, candidates: Sequence[str]) -> str:
    """A question that names the closest candidate, with a space before it; empty when none is close."""
    if len(word) > _LONGEST_NAME:
        return ""
    folded = {candidate.casefold(): candidate for candidate in reversed(candidates)}
    close = difflib.get_close_matches(word.casefold(), folded, n=1, cutoff=0.6)
    return f' Did you mean "{folded[close[0]]}"?' if close else ""


def listed(values: Sequence[Any], n: int | None = None) -> str:
    """The first five of ``n`` values, and how many more there are."""
    n_more = (len(values) if n is None else n) - LISTED
    return ", ".join(map(str, values[:LISTED])) + f" and {n_more:,} more" * (n_more > 0)


def counted(n: int, noun: str) -> str:
    """A number and its noun."""
    return f"{n:,} {noun}{'s' * (n != 1)}"
