"""Describe problems with data and settings: where each problem occurs and how to solve it."""

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from numbers import Real
from os import PathLike
from typing import Any, Literal, TypedDict

Severity = Literal["error", "warning", "notice"]
SEVERITIES: dict[str, Severity] = {"E": "error", "W": "warning", "N": "notice"}  # the most severe first

TRAIN = ("torch", "transformers", "accelerate", "peft", "trl", "safetensors", "datasets")
EXTRAS = dict.fromkeys(TRAIN, "train") | dict.fromkeys(("starlette", "uvicorn"), "app")

Json = dict[str, Any]  # an object of a JSON file, or a part of one
Messages = list[Json]  # a chat: each message has a role, a content and possibly other fields


class Correction(TypedDict, total=False):
    """Options of `Judgments.read`; if another table must be read, ``source`` is its name."""

    source: str
    columns: Mapping[str, str | None]
    winners: Mapping[str, str]
    layout: str
    annotators_missing: str
    repeated: str
    bad_rows: str


LISTED = 5  # a message lists this many values before "and N more"
_LONGEST_SENTENCE = 2_000  # a field of a problem is cut off after this many characters
_LONGEST_NAME = 200  # comparing words of more than _LONGEST_NAME characters takes seconds
# control characters that change what a terminal shows, except tabs and line feeds
# carriage returns are included, because a terminal overwrites the text before a carriage return
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True)
class Problem:
    """An error, a warning or a notice about data.

    Attributes
    ----------
    code : str
        ``E``, ``W`` or ``N`` (error, warning, notice) and a number that the documentation lists.
    what : str
        Description of the problem, with the count.
    where : str
        File, column, rows and pseudonyms; never a raw annotator id.
    remedy : str
        Action that solves the problem.
    severity : "error", "warning" or "notice"
        The severity that the letter of the code stands for. An error stops the reader. A warning is about data that can
        be read but may make the statistics wrong. A notice is only information.
    count : int
        Number of rows, judgments, comparisons or annotators that ``what`` mentions.
    fix : Correction
        Options of `Judgments.read` that solve the problem; empty if no options solve it.
    shown : tuple of str
        Rows as they were read, if a label could mean either side. Only the owner of the table may see these rows.
    lengths : tuple of str
        If the table contains no texts, the names of two columns with the lengths of the responses.

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
    fix: Correction = field(default_factory=lambda: Correction())
    shown: tuple[str, ...] = ()
    lengths: tuple[()] | tuple[str, str] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "severity", SEVERITIES[self.code[0]])
        # a message quotes labels and column names, whose control characters must not reach the terminal
        for name in ("what", "where", "remedy"):
            sentence = written_out(getattr(self, name))
            if len(sentence) > _LONGEST_SENTENCE:
                sentence = f"{sentence[:_LONGEST_SENTENCE]}... ({len(sentence):,} characters)"
            object.__setattr__(self, name, sentence)

    @property
    def page(self) -> str:
        """Path and anchor of the documentation page that describes the problem's code."""
        return f"docs/results/codes.md#{self.code.lower()}"

    def __str__(self) -> str:
        return self.told(python_options(self.fix))

    def told(self, options: str) -> str:
        """Format the problem as text, with ``options`` of `Judgments.read` after the remedy.

        For an error, ``options`` are not printed, because `corrected` formats one call with the options that solve all
        errors.
        """
        options *= self.severity != "error"
        lines = [f"{self.code} {self.severity}: {self.what}", f"    where:  {self.where}"]
        lines += [f"    as read: {row}" for row in self.shown]
        return "\n".join([*lines, f"    remedy: {self.remedy}{f': {options}' if options else ''}"])


def worst_first(problems: Iterable[Problem]) -> list[Problem]:
    """Sort problems: errors first, then warnings, then notices."""
    return sorted(problems, key=lambda problem: [*SEVERITIES].index(problem.code[0]))


class DataError(ValueError):
    """Raised if data contain errors and cannot be used; `problems` and the message list all errors.

    ``fix`` contains options with which `Judgments.read` can read the table; it is empty if no such options were found.
    ``shown`` contains a few rows as they are read with ``fix``. If ``fix`` reads the table without annotators,
    ``unused`` names the columns that may hold the annotators. If the table does not say which side its labels prefer,
    ``question`` asks the user about a row of the table, and ``shown`` contains unchanged rows of the table. The options
    ``fix`` apply if the user chooses the first of the two ``answers``, and the options ``turned`` apply if the user
    chooses the second. ``others`` lists further ways to read the table, each with a condition and the options that
    apply if the condition is true. ``left_out`` describes the rows that the options ``fix`` leave out. ``call`` is a
    function that formats ``fix`` as a Python call or as a command. ``preparation`` is a command that must run before
    this call.
    """

    def __init__(self, problems: Iterable[Problem]):
        self.problems: tuple[Problem, ...] = tuple(problems)
        self.fix: Correction = {}
        self.shown: tuple[str, ...] = ()
        self.unused: tuple[str, ...] = ()
        self.question = ""
        self.answers: tuple[str, ...] = ()
        self.others: tuple[tuple[str, Correction], ...] = ()
        self.left_out: tuple[str, ...] = ()
        self.call = python_call
        self.preparation = ""
        super().__init__(self.problems)

    @property
    def turned(self) -> Correction:
        """``fix`` with the sides exchanged; empty unless ``fix`` gives meanings to labels or belongs to a question."""
        if self.question and "rating_a" in (columns := self.fix.get("columns", {})):
            ranks = {name.replace("rating_", "rank_"): column for name, column in columns.items()}
            return {**self.fix, "columns": ranks}
        return with_sides_exchanged(self.fix)

    @property
    def heading(self) -> str:
        """First line of the error message; the problems follow on the next lines."""
        is_absent = any("there is no such file" in problem.what for problem in self.problems)
        return "the file is not there:" if is_absent else "the data contain errors and cannot be used:"

    def __str__(self) -> str:
        told = [
            self.heading,
            *(str(problem) for problem in self.problems),
        ]
        return "\n".join(told + corrected(self, self.call))


def with_sides_exchanged(fix: Correction) -> Correction:
    """Exchange the sides a and b in the option ``winners``; return no options if ``fix`` names no side."""
    other = {"a": "b", "b": "a"}
    winners = {label: other.get(side, side) for label, side in fix.get("winners", {}).items()}
    return {**fix, "winners": winners} if {*other} & {*winners.values()} else {}


def python_options(fix: Correction) -> str:
    """Format options of `Judgments.read` as Python arguments."""
    return ", ".join(f"{name}={value!r}" for name, value in fix.items())


def python_call(fix: Correction) -> str:
    """Format a call of `Judgments.read` with the options in ``fix``, which `badpo.audit` also accepts."""
    options = fix.copy()
    source = repr(options.pop("source")) if "source" in options else "..."
    return f"Judgments.read({', '.join(filter(None, (source, python_options(options))))})"


def corrected(error: DataError, call: Callable[[Correction], str]) -> list[str]:
    """Return the lines of a call that reads the table without errors; return no lines if no such call is known."""
    if not error.fix:
        return []
    # a corrected command follows error.preparation after &&; a Python call follows it on the next line
    first = error.preparation and error.preparation + (" && " if call is not python_call else "\n    ")
    told = [
        "this call reads the table with rows such as:" if error.shown else "this call reads the table:"
    ]
    told = [error.question or told[0], *(f"    {row}" for row in error.shown)]
    if error.question:
        for answer, fix in zip(error.answers, (error.fix, error.turned), strict=True):
            told += [f"if {answer}:", f"    {first}{call(fix)}"]
    else:
        told.append(f"    {first}{call(error.fix)}")
    if error.left_out:
        told.append(f"    rows that this leaves out: {listed(error.left_out)}")
    for condition, fix in error.others:
        told += [f"if {condition}:", f"    {first}{call(fix)}"]
    if error.unused:
        named = {**error.fix.get("columns", {}), "annotator": error.unused[0]}
        told.append(f"who voted? unused: {listed(error.unused)}; if {error.unused[0]} says who:")
        told.append(f"    {first}{call({**error.fix, 'columns': named})}")
    return told


class ConfigError(ValueError):
    """Raised if a setting, an argument, or a combination of settings is wrong.

    badpo raises a `ConfigError` before any work starts.
    """

    def __str__(self) -> str:
        # the message may quote a file or a command line, whose control characters must not reach the terminal
        return written_out(super().__str__())


# types of public arguments, with examples; arguments that take a mapping or a string also accept None
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
    """Raise `ConfigError` if an argument has the wrong type; the message shows a correct example."""
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
                # the message does not quote the value, because it may be a person's id
                raise ConfigError(f"{told}: write {name}={examples[name]}")


def as_argument(path: Any) -> str:
    """Format a path as a command-line argument that no program mistakes for an option."""
    return f"./{path}" if str(path).startswith("-") else str(path)


def written_out(text: str) -> str:
    r"""Escape control characters and characters that change the writing direction, for example as ``\u001b``."""
    # use the escape sequences of JSON
    written = _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return written.encode("utf-8", "backslashreplace").decode("utf-8")


def is_unicode(text: str) -> bool:
    r"""Return whether UTF-8 can encode a string. JSON allows lone surrogates, which UTF-8 cannot encode."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def lacking(module: str | None) -> str:
    """Return a message with the command that installs a missing module; return "" if no extra contains the module."""
    extra = EXTRAS.get((module or "").partition(".")[0])
    told = f'{module} is needed but not installed; run in the clone: pip install -c constraints.txt ".[{extra}]"'
    return told if extra else ""


@contextmanager
def telling_what_lacks() -> Iterator[None]:
    """If an import in the ``with`` block fails for a module of an extra, add the installation command to the error."""
    try:
        yield
    except ModuleNotFoundError as error:
        error.msg = lacking(error.name) or error.msg
        raise


def did_you_mean(word: str, candidates: Sequence[str]) -> str:
    """Return ' Did you mean "CANDIDATE"?' with the most similar candidate; return "" if no candidate is similar."""
    if len(word) > _LONGEST_NAME:
        return ""
    folded = {candidate.casefold(): candidate for candidate in reversed(candidates)}
    close = difflib.get_close_matches(word.casefold(), folded, n=1, cutoff=0.6)
    return f' Did you mean "{folded[close[0]]}"?' if close else ""


def listed(values: Sequence[Any], n: int | None = None) -> str:
    """List the first five of ``n`` values, and count the remaining values."""
    n_more = (len(values) if n is None else n) - LISTED
    return ", ".join(map(str, values[:LISTED])) + f" and {n_more:,} more" * (n_more > 0)


def counted(n: int, noun: str) -> str:
    """Format a number with its noun in the singular or plural."""
    return f"{n:,} {noun}{'s' * (n != 1)}"
