"""What is wrong with data or settings, in words that name the place and the remedy."""

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from numbers import Real
from os import PathLike
from typing import Any, Literal

Severity = Literal["error", "warning", "notice"]
SEVERITIES: dict[str, Severity] = {"E": "error", "W": "warning", "N": "notice"}  # the worst first

TRAIN = ("torch", "transformers", "accelerate", "peft", "trl", "safetensors", "datasets")
EXTRAS = dict.fromkeys(TRAIN, "train") | dict.fromkeys(("starlette", "uvicorn"), "app")

Json = dict[str, Any]  # an object of a JSON file, or a part of one

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
    fix : mapping
        The options of `Judgments.read` that mend it, where some do.
    shown : tuple of str
        Rows as they were read, where a label could mean either side: for the eyes of who holds the table.
    lengths : tuple of str
        Two columns that hold the lengths of the responses, where the table has no texts.

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
    fix: Mapping[str, Any] = field(default_factory=dict)
    shown: tuple[str, ...] = ()
    lengths: tuple[()] | tuple[str, str] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "severity", SEVERITIES[self.code[0]])
        # labels and names of columns come from the table: nobody's terminal should obey them
        for name in ("what", "where", "remedy"):
            sentence = written_out(getattr(self, name))
            if len(sentence) > _LONGEST_SENTENCE:
                sentence = f"{sentence[:_LONGEST_SENTENCE]}... ({len(sentence):,} characters)"
            object.__setattr__(self, name, sentence)

    @property
    def page(self) -> str:
        """Where the documentation tells of the code."""
        return f"docs/results/codes.md#{self.code.lower()}"

    def __str__(self) -> str:
        return self.told(python_options(self.fix))

    def told(self, options: str) -> str:
        """The problem in words, with the options that mend it in the language of who reads it.

        Those of an error are told once all are known to work; see `corrected`.
        """
        options *= self.severity != "error"
        lines = [f"{self.code} {self.severity}: {self.what}", f"    where:  {self.where}"]
        lines += [f"    as read: {row}" for row in self.shown]
        return "\n".join([*lines, f"    remedy: {self.remedy}{f': {options}' if options else ''}"])


def worst_first(problems: Iterable[Problem]) -> list[Problem]:
    """Errors, then warnings, then notices."""
    return sorted(problems, key=lambda problem: [*SEVERITIES].index(problem.code[0]))


class DataError(ValueError):
    """The data cannot be used as they are; everything found in one pass is in `problems` and in the message.

    ``fix`` are options of `Judgments.read` with which the same table was read without an error, empty where none were
    found; ``shown`` are a few rows as they were read then, and ``unused`` columns that may say who voted, which then
    nothing says. If the table does not say which side its labels prefer, ``question`` asks about a row of the table,
    ``shown`` are rows as they stand in the table, and the two ``answers`` belong to ``fix`` and to ``turned``.
    ``call`` writes ``fix`` as the caller can follow it, and ``preparation`` is a command to run before.
    """

    def __init__(self, problems: Iterable[Problem]):
        self.problems: tuple[Problem, ...] = tuple(problems)
        self.fix: Mapping[str, Any] = {}
        self.shown: tuple[str, ...] = ()
        self.unused: tuple[str, ...] = ()
        self.question = ""
        self.answers: tuple[str, ...] = ()
        self.call = python_call
        self.preparation = ""
        super().__init__(self.problems)

    @property
    def turned(self) -> Mapping[str, Any]:
        """``fix`` with the sides exchanged, where it says what a label means or a question asks it; else empty."""
        if self.question and "rating_a" in (columns := self.fix.get("columns", {})):
            ranks = {name.replace("rating_", "rank_"): column for name, column in columns.items()}
            return {**self.fix, "columns": ranks}
        return with_sides_exchanged(self.fix)

    @property
    def heading(self) -> str:
        """The line above the problems."""
        is_absent = any("there is no such file" in problem.what for problem in self.problems)
        return "the file is not there:" if is_absent else "the data cannot be used as they are:"

    def __str__(self) -> str:
        told = [
            self.heading,
            *(str(problem) for problem in self.problems),
        ]
        return "\n".join(told + corrected(self, self.call))


def with_sides_exchanged(fix: Mapping[str, Any]) -> Mapping[str, Any]:
    """Options of `Judgments.read` whose labels mean the other side; empty where no label is explained."""
    other = {"a": "b", "b": "a"}
    winners = {label: other.get(side, side) for label, side in fix.get("winners", {}).items()}
    return {**fix, "winners": winners} if winners else {}


def python_options(fix: Mapping[str, Any]) -> str:
    """Options of `Judgments.read` as they are written in Python."""
    return ", ".join(f"{name}={value!r}" for name, value in fix.items())


def python_call(fix: Mapping[str, Any]) -> str:
    """The reading of a table with options that mend it; `badpo.audit` takes the same ones."""
    options = dict(fix)
    source = repr(options.pop("source")) if "source" in options else "..."
    return f"Judgments.read({', '.join(filter(None, (source, python_options(options))))})"


def corrected(error: DataError, call: Callable[[Mapping[str, Any]], str]) -> list[str]:
    """The lines that say with which call the same table can be read, where there is one."""
    if not error.fix:
        return []
    # in Python the command stands on a line of its own
    first = error.preparation and error.preparation + (" && " if call is not python_call else "\n    ")
    told = ["this reads the table, with rows such as:" if error.shown else "this reads the table:"]
    told = [error.question or told[0], *(f"    {row}" for row in error.shown)]
    if error.question:
        for answer, fix in zip(error.answers, (error.fix, error.turned), strict=True):
            told += [f"if {answer}:", f"    {first}{call(fix)}"]
    else:
        told.append(f"    {first}{call(error.fix)}")
    if error.unused:
        named = {**error.fix.get("columns", {}), "annotator": error.unused[0]}
        told.append(f"who voted? unused: {listed(error.unused)}; if {error.unused[0]} says who:")
        told.append(f"    {first}{call({**error.fix, 'columns': named})}")
    return told


class ConfigError(ValueError):
    """A setting, an argument or a combination of them is wrong; nothing was started."""

    def __str__(self) -> str:
        # what a file or a command line says may be quoted in it: nobody's terminal should obey that
        return written_out(super().__str__())


# what arguments take, each with an example; what takes a mapping or a text may be None
_TAKEN: tuple[tuple[Any, str, dict[str, str]], ...] = (
    (
        Mapping,
        "a mapping",
        {"columns": "{'annotator': 'worker_id'}", "winners": "{'model_a': 'a'}"},
    ),
    (str, "text", {"quality": "'marginal'", "anchor_class": "'expert'"}),
    (str | PathLike, "a path", {"folder": "'audit'", "path": "'report.html'", "state": "'watch.json'"}),
    (
        Real,
        "a number",
        {"rho": "0.5", "fdr": "0.1", "min_informative": "10", "held_out": "0.1", "seed": "0"},
    ),
    (Callable, "a function", {"progress": "print"}),
    (Iterable, "a list", {"keep": "['score']", "models": "['gpt-4']", "anchors": "['expert-1']"}),
)


def refuse_other_types(**given: Any) -> None:
    """A `ConfigError` for an argument of another type than it takes, with one that is right."""
    for kind, noun, examples in _TAKEN:
        for name in examples.keys() & given:
            value = given[name]
            if (
                name in ("columns", "keep")
                and isinstance(value, Collection)
                and not isinstance(value, str)
            ):
                names = [*value, *value.values()] if isinstance(value, Mapping) else value
                value = next((one for one in names if not isinstance(one, str | None)), value)
            is_other = kind is Iterable and isinstance(value, str | Mapping)
            is_left_out = value is None and kind in (Mapping, str)
            if is_other or not (is_left_out or isinstance(value, kind)):
                told = f"{name} takes {noun}, not {type(value).__name__}"
                # not with what was given, which may be somebody's id
                raise ConfigError(f"{told}: write {name}={examples[name]}")


def as_argument(path: Any) -> str:
    """A path as a word of a command that no program takes for an option."""
    return f"./{path}" if str(path).startswith("-") else str(path)


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


def lacking(module: str | None) -> str:
    """What to install for a module that an extra brings; empty for any other."""
    extra = EXTRAS.get((module or "").partition(".")[0])
    told = f'this needs {module}, which is not installed; in the clone: pip install -c constraints.txt ".[{extra}]"'
    return told if extra else ""


@contextmanager
def telling_what_lacks() -> Iterator[None]:
    """For a block that imports: a missing module of an extra is told with what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        error.msg = lacking(error.name) or error.msg
        raise


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
