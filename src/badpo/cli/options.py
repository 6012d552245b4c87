"""Options that several commands share, output for people and programs, and errors with corrected commands."""

import errno
import functools
import importlib
import inspect
import json
import logging
import os
import re
import shlex
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from badpo.data.problems import (
    ConfigError,
    DataError,
    Problem,
    as_argument,
    corrected,
    lacking,
    listed,
    written_out,
)

if TYPE_CHECKING:
    from badpo.data.judgments import ReadingOptions
    from badpo.training.recipe import Keys


def split_values(texts: Sequence[str] | None, option: str, example: str) -> list[tuple[str, str]]:
    """Split each value of an option at its equals sign.

    A value is split at its last equals sign. A value of --column is split at its first equals sign, because only the
    name of the user's column may contain an equals sign.
    """
    parts = [_split_value(text, option) for text in texts or ()]
    for _, equals, text in parts:
        if not equals:
            raise ConfigError(f'{option} {text} contains no "="; write it as in {option} {example}')
    return [(left, right) for left, _, right in parts]


def _split_value(text: str, option: str) -> tuple[str, str, str]:
    """Split an option value into the text before its equals sign, the sign, and the text after it."""
    return text.partition("=") if option == "--column" else text.rpartition("=")


_TARGET = "woman=0.5"


def parse_targets(texts: Sequence[str]) -> dict[str, float]:
    """Parse the values of --target; raise `ConfigError` for an invalid rate or an attribute with two rates."""
    if not texts:
        raise ConfigError(
            f"a target is missing: write --target ATTRIBUTE=RATE, as in --target {_TARGET}"
        )
    targets: dict[str, float] = {}
    for name, value in split_values(texts, "--target", _TARGET):
        if name in targets:
            raise ConfigError(f"--target {name} is given twice; every attribute has one target")
        if name == "length":
            raise ConfigError(
                "length has no target rate, because there is no fair share of longer answers. To keep the answers "
                "about as long as the reference's, train with badpo train --attribute length; the run's report shows "
                "how much the length of the answers has changed"
            )
        try:
            targets[name] = float(value)
        except ValueError:
            targets[name] = float("nan")
        if not 0 < targets[name] < 1:
            raise ConfigError(
                f"--target {name}={value}: a rate must be a number strictly between 0 and 1, as in --target {_TARGET}; "
                "no finite tilt reaches 0 or 1. To exclude an attribute completely, forbid its tokens in decoding"
            )
    return targets


def parse_flags(arguments: Sequence[str]) -> "Keys":
    """Parse recipe keys as ``trl dpo`` does, in the forms ``--key value``, ``--key=value``, ``--key`` and ``--no_key``.

    Examples
    --------
    >>> parse_flags(["--learning-rate", "5e-7", "--no_disable_dropout", "--report_to", "tensorboard", "trackio"])
    {'disable_dropout': False, 'learning_rate': 5e-07, 'report_to': ['tensorboard', 'trackio']}
    """
    from badpo.data.yaml_files import parse_value

    keys: Keys = {}
    values = None
    for argument in arguments:
        if argument.startswith("--"):
            name, equals, value = argument[2:].partition("=")
            values = keys.setdefault(name.replace("-", "_"), [])
            values += [parse_value(value)] if equals else []
        elif values is None:
            raise ConfigError(
                f'"{argument}" is not an option; write keys as --key value, and the recipe as --config FILE'
            )
        else:
            values.append(parse_value(argument))
    flags = (name for name, values in keys.items() if not values)
    switches = {name.removeprefix("no_"): not name.startswith("no_") for name in flags}
    return switches | {
        name: values if len(values) > 1 else values[0] for name, values in keys.items() if values
    }


def convert_to_recipe_keys(reading: "ReadingOptions", ctx: typer.Context) -> "Keys":
    """Convert the reading options on the command line to recipe keys; an option that was not given has no key."""
    keys: Keys = {}
    for name, value in reading.items():
        # write the label of empty cells as NULL, because a part of a key must not be empty
        entries = value.items() if isinstance(value, Mapping) else ()
        keys |= {f"{name}.{key or 'NULL'}": entry for key, entry in entries}
    if "layout" in reading:
        keys["layout"] = reading["layout"]
    for name in ("annotators_missing", "repeated", "bad_rows"):
        source = ctx.get_parameter_source(name)
        if source and source.name == "COMMANDLINE":
            keys[name] = ctx.params[name]
    return keys


# -- options -----------------------------------------------------------------------------------------------------

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
DataArgument = Annotated[
    Path,
    typer.Argument(help="Votes, as a CSV, Excel, parquet, JSON or JSON lines file, or as a folder."),
]
AttributeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--attribute",
        metavar="NAME[:KEY=VALUE,...]",
        help="Declare an attribute, such as length:ratio=1.5; repeatable.",
    ),
]


def _file_loader(module: str, name: str) -> Callable[[list[Path] | None], list[Path] | None]:
    """Return a callback that loads the user's Python files before a recipe or an option uses them."""

    def load_files(paths: list[Path] | None) -> list[Path] | None:
        for path in paths or ():
            try:
                getattr(importlib.import_module(module), name)(path)
            except ConfigError as error:
                raise typer.BadParameter(str(error)) from error
        return paths

    return load_files


AttributeFile = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE",
        callback=_file_loader("badpo.data.attributes", "add_attributes"),
        help="A Python file whose dictionary ATTRIBUTES defines further attributes; repeatable.",
    ),
]
ArmFile = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE",
        callback=_file_loader("badpo.objective.registry", "add_objectives"),
        help="A Python file whose dictionary OBJECTIVES defines further objectives; repeatable.",
    ),
]
ColumnOption = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        metavar="OURS=YOURS",
        help="Name a column of your table, such as annotator=worker_id. With annotator=, badpo reads no column as the "
        "annotators. Repeatable.",
    ),
]


def convert_columns(column: Sequence[str] | None) -> dict[str, str | None]:
    """Convert --column to the argument ``columns`` of `Judgments.read`; an empty name leaves a column unused."""
    named = split_values(column, "--column", "annotator=worker_id")
    return {name: column or None for name, column in named}


def convert_reading_options(
    column: ColumnOption = None,
    winner: list[str] = Option(
        [],
        metavar="YOURS=a|b|tie|skip",
        help="Define the meaning of a label in your table, such as model_a=a; repeatable.",
    ),
    rating: str | None = Option(
        None,
        metavar="COLUMN",
        help="Column with ratings instead of a winner; --winner high=a means that high ratings prefer response a.",
    ),
    wide: bool = Option(
        False,
        "--wide",
        help="The table has one column of labels for each annotator; --column annotator=ann_1,ann_2 selects the "
        "columns.",
    ),
    counts: bool = Option(
        False, "--counts", help="The table has columns with vote counts, such as votes_a."
    ),
    annotators_missing: str = Option("error", help="Votes without an annotator: error or drop."),
    repeated: str = Option(
        "all",
        help="If an annotator judges a comparison repeatedly, use all votes (all) or only the last vote (last).",
    ),
    bad_rows: str = Option(
        "error", help="If a row cannot be read, stop (error) or drop and count the row (drop)."
    ),
) -> "ReadingOptions":
    """Convert reading options to arguments of `Judgments.read`; leave out arguments that have their default values."""
    if wide and counts:
        raise ConfigError("--wide and --counts exclude each other: a table has one layout")
    reading: ReadingOptions = {
        "columns": convert_columns([*(column or ()), *([f"rating={rating}"] if rating else [])]),
        "winners": dict(split_values(winner, "--winner", "model_a=a")),
    }
    if wide or counts:
        reading["layout"] = "wide" if wide else "counts"
    if annotators_missing != "error":
        reading["annotators_missing"] = annotators_missing
    if repeated != "all":
        reading["repeated"] = repeated
    if bad_rows != "error":
        reading["bad_rows"] = bad_rows
    return reading


RunModel = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="The initial model of the run; replaces the model in the run's recipe.",
    ),
]
RunTable = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="FILE",
        help="The votes of the run; replaces the table in the run's recipe.",
    ),
]
TrustRun = Annotated[
    bool,
    typer.Option(
        "--trust-run",
        help="Trust a run from another machine, and use the model and the table that its recipe names.",
    ),
]


# -- output ------------------------------------------------------------------------------------------------------


# the result of a command that is printed as JSON
Content = Mapping[str, object] | Sequence[Mapping[str, object]]


def is_first_process() -> bool:
    """Whether this process is the only process or the first process of a run."""
    return int(os.environ.get("RANK", "0")) == 0


def say(what: str | Path) -> None:
    """Print text for people immediately; escape control characters that come from files and tables."""
    try:
        print(written_out(str(what)), flush=True)
    except OSError as error:
        # redirect the output, because the interpreter would report the error again when it flushes the output
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # a broken pipe is not an error, because it only means that nobody reads the output any more
        if not isinstance(error, BrokenPipeError):
            complain(f"the output cannot be written: {error.strerror}")
        raise typer.Exit(EXIT_FAILED) from None


def complain(what: str) -> None:
    """Print text for people on standard error."""
    print(written_out(what), file=sys.stderr, flush=True)


def print_json(value: Content) -> None:
    """Print one JSON object; paths and other values that JSON does not support become text."""
    is_unicode = "utf" in (sys.stdout.encoding or "").lower()
    say(json.dumps(value, indent=2, ensure_ascii=not is_unicode, default=str))


def announce(source: str | Path, as_json: bool) -> None:
    """Print the name of a source before badpo loads the library that reads it."""
    if not as_json:
        say(f"reading {source}")


def print_result(as_json: bool, value: Content, text: str | Path) -> None:
    """Print the result of a command as JSON for programs, or as text for people."""
    print_json(value) if as_json else say(text)


class WrittenOutRecord(logging.LogRecord):
    """Log record that escapes the control characters in its message, as `say` does."""

    def getMessage(self) -> str:
        """The message with its arguments."""
        return written_out(super().getMessage())


def format_value(value: object) -> str:
    """Format a value for people: four significant digits, thousands separators, and a dash for None.

    Examples
    --------
    >>> [format_value(value) for value in (0.123456, 27812, None, "pooled", [1.5, 2.0], {"ratio": 1.5})]
    ['0.1235', '27,812', '-', 'pooled', '1.5, 2', 'ratio=1.5']
    """
    match value:
        case None:
            return "-"
        case bool() | str():
            return str(value)
        case float():
            return f"{value:.4g}"
        case int():
            return f"{value:,}"
        case Mapping():
            return ", ".join(f"{name}={format_value(entry)}" for name, entry in value.items())
        case Sequence():
            return ", ".join(format_value(entry) for entry in value)
    return str(value)


def format_lines(values: Mapping[str, object], indent: int = 0) -> str:
    """Format names with their values, one pair per line; nested values are indented.

    Examples
    --------
    >>> print(format_lines({"rates": {"woman": {"before": 0.6, "after": 0.5}}, "n": 1000}))
    rates
      woman                   before=0.6, after=0.5
    n                       1,000
    """
    rows = []
    for name, value in values.items():
        if isinstance(value, Mapping) and any(isinstance(entry, Mapping) for entry in value.values()):
            rows += [f"{' ' * indent}{name}", format_lines(value, indent + 2)]
        else:
            rows.append(f"{' ' * indent}{name:<23} {format_value(value)}".rstrip())
    return "\n".join(rows)


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Format rows of equal length as a table with aligned columns."""
    from tabulate import tabulate

    return str(tabulate(rows, tablefmt="plain", disable_numparse=True))


# Seconds between two progress lines if the output is not a terminal; on a terminal, the line changes every second.
SECONDS_A_LINE = 20


@contextmanager
def terminal_progress(quiet: bool) -> Iterator[Callable[[str, float], None]]:
    """Yield a function to report the progress of a task; a thread prints the progress and the remaining time.

    Tasks are stages of one task if their names have the same part before a colon.
    """
    start = time.monotonic()
    # last report (text and share), start of its task (time and share), and expected end of the task
    stage, ended = ("starting", 0.0, start, 0.0, start), threading.Event()

    def progress(what: str, share: float) -> None:
        nonlocal stage
        before, reached, since, first, _ = stage
        now = time.monotonic()
        if what.partition(":")[0] != before.partition(":")[0] or share < reached:
            since, first = now, share
        seconds_a_share = (now - since) / (share - first) if share > first else 0.0
        stage = (what, share, since, first, now + (1 - share) * seconds_a_share)

    def format_line() -> str:
        what, share, _, _, end = stage
        now = time.monotonic()
        state = f"{100 * share:.0f} %" if share else ""
        state += f", {timedelta(seconds=round(end - now))} left" if end - now >= 1 else ""
        return f"{now - start:5.0f} s  {what}  {state}".rstrip()

    def print_lines() -> None:
        is_terminal = sys.stderr.isatty()
        while not ended.wait(1 if is_terminal else SECONDS_A_LINE):
            if is_terminal:
                print(f"\r\x1b[2K{written_out(format_line())}\r", end="", file=sys.stderr, flush=True)
            else:
                complain(format_line())

    printer = threading.Thread(target=print_lines, daemon=True)
    if not quiet and is_first_process():
        printer.start()
    try:
        yield progress
    finally:
        ended.set()
        if printer.is_alive() and sys.stderr.isatty():
            print("\x1b[2K", end="", file=sys.stderr, flush=True)


# -- remedies ----------------------------------------------------------------------------------------------------


@dataclass
class CommandLine:
    """The user's command line, from which badpo forms corrected commands: its words and the table that it names."""

    words: tuple[str, ...] = ()
    source: Path | str | None = None


command_line = CommandLine()


def convert_to_flags(fix: Mapping[str, object]) -> list[str]:
    """Convert arguments of `Judgments.read` to command-line options."""
    flags: list[str] = []
    for name, value in fix.items():
        if isinstance(value, Mapping):
            for key, entry in value.items():
                flags += [f"--{name.removesuffix('s')}", f"{key}={'' if entry is None else entry}"]
        elif name == "layout":
            flags.append(f"--{value}")
        elif name == "source" and command_line.words[:1] == ("train",):
            flags += ["--dataset_name", str(value)]
        else:
            flags += [f"--{name.replace('_', '-')}", str(value)]
    return flags


def write_corrected_command(fix: Mapping[str, object]) -> str:
    """Return the user's command with corrected options, ready to paste into a shell."""
    words, table = list(command_line.words), Path(str(command_line.source))
    words = [as_argument(word) if Path(word) == table else word for word in words if word != "--"]
    if "source" in fix and table in map(Path, words):
        words = [as_argument(fix["source"]) if Path(word) == table else word for word in words]
        fix = {name: value for name, value in fix.items() if name != "source"}
    own = convert_to_flags({name: fix[name] for name in ("columns", "winners") if name in fix})
    command = "\0".join(["badpo", *words])
    for flag, value in zip(own[::2], own[1::2], strict=True):
        start = re.escape("".join(_split_value(value, flag)[:2]))  # for example "annotator="
        command = re.sub(rf"\0{re.escape(flag)}[\0=]{start}[^\0]*", "", command)
    return shlex.join([*command.split("\0"), *convert_to_flags(fix)])


def find_conversion(error: DataError) -> list[str]:
    """If the table is an export that must be converted first, return a command that converts and reads it."""
    from badpo.data.tables import read_table
    from badpo.importers.convert import TABLE, detect_format
    from badpo.importers.export import Export

    source, out = command_line.source, "judgments.parquet"
    is_read = {problem.code for problem in error.problems}.isdisjoint(("E101", "E107"))
    if is_read or not source or command_line.words[0] == "import":
        return []
    if detect_format(Export(read_table(source))) == TABLE:
        return []
    first = shlex.join(["badpo", "import", as_argument(source), "--out", out])
    return [f"{first} && {write_corrected_command({'source': out})}"]


def format_problem(problem: Problem) -> str:
    """Format a problem, with its remedy as command-line options."""
    return problem.told(shlex.join(convert_to_flags(problem.fix)))


def convert_problem(problem: Problem) -> dict[str, object]:
    """Convert a problem to JSON, with its remedy as command-line options."""
    fields = {name: value for name, value in vars(problem).items() if name not in ("fix", "lengths")}
    return {**fields, "flags": convert_to_flags(problem.fix), "page": problem.page}


def format_problems(problems: Iterable[Problem]) -> list[str]:
    """Format problems with their remedies as command-line options, and list the documentation pages about them."""
    lines, pages = [*map(format_problem, problems)], dict.fromkeys(problem.page for problem in problems)
    return [*lines, f"more: {listed([*pages])}"] if lines else []


# -- errors ------------------------------------------------------------------------------------------------------

EXIT_FAILED, EXIT_USAGE, EXIT_DATA, EXIT_NOT_MET, EXIT_STOPPED = 1, 2, 3, 4, 130


def report_errors(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command so that errors print one message and set the exit code; ``--debug`` shows the traceback."""
    takes_reading = command.__annotations__.pop("reading", None) is not None

    @functools.wraps(command)
    def wrapped(debug: bool = False, **arguments: Any) -> None:
        if _is_one_of_several():
            # if one process ends, the launcher may end the other processes before they notice the failure
            signal.signal(signal.SIGTERM, _end_by_launcher)
        try:
            if takes_reading:
                given = {option.name: arguments.pop(option.name) for option in reading_options}
                arguments["reading"] = convert_reading_options(**given)
            command(**arguments)
        except typer.Exit:
            raise
        except Exception as error:
            if debug:
                complain(traceback.format_exc())
            if _is_one_of_several():
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            source = arguments.get("data", arguments.get("source", command_line.source))
            if isinstance(source, list):  # select the table with the error
                places = [problem.where for problem in getattr(error, "problems", ())]
                source = next((one for one in source if str(one.expanduser()) in places), None)
            command_line.source = source
            code, message = _describe_error(error)
            if arguments.get("as_json"):
                print_json({"error": message, "exit_code": code} | _convert_corrections(error))
            else:
                complain(message)
            raise typer.Exit(code) from error

    # add the options to the signature of the command
    own = inspect.signature(command, eval_str=True)
    parameters = [parameter for name, parameter in own.parameters.items() if name != "reading"]
    keyword, reading_options = inspect.Parameter.KEYWORD_ONLY, []
    if takes_reading:
        reading_options = [*inspect.signature(convert_reading_options).parameters.values()]
    parameters += [option.replace(kind=keyword) for option in reading_options]
    parameters.append(inspect.Parameter("debug", keyword, default=False, annotation=Debug))
    vars(wrapped)["__signature__"] = own.replace(parameters=parameters)
    return wrapped


def _convert_corrections(error: Exception) -> dict[str, object]:
    """Convert the problems of a `DataError` and its corrected commands to JSON."""
    if not isinstance(error, DataError):
        return {}
    fixes = [error.fix, error.turned, *(fix for _, fix in error.others)]
    return {
        "problems": [convert_problem(problem) for problem in error.problems],
        "commands": find_conversion(error) or [write_corrected_command(fix) for fix in fixes if fix],
        "as_read": error.shown,
        "question": error.question,
        "answers": error.answers,
    }


@contextmanager
def handle_interrupt(what_is_left: str) -> Iterator[None]:
    """If the user interrupts the command, print ``what_is_left`` with the user's command in place of ``{again}``."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        again = shlex.join(["badpo", *command_line.words])
        complain(str(interrupt) or what_is_left.format(again=again))
        raise typer.Exit(EXIT_STOPPED) from None


class EndedByLauncherError(RuntimeError):
    """The launcher of several training processes has ended this process."""


def _is_one_of_several() -> bool:
    """Whether this process is one of several that a launcher started to train together."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def _end_by_launcher(signum: int, frame: FrameType | None) -> None:
    """Raise an error in this process when the launcher sends SIGTERM."""
    raise EndedByLauncherError


def _describe_error(error: Exception) -> tuple[int, str]:
    """Return the exit code for an error, and a message with the remedy."""
    kind, text = type(error).__name__, str(error)
    if isinstance(error, DataError):
        lines = format_problems(error.problems)
        if commands := find_conversion(error):
            lines += [
                "another program wrote this table; the following command converts and reads the table:",
                f"    {commands[0]}",
            ]
        else:
            lines += corrected(error, write_corrected_command)
        return EXIT_DATA, "\n".join([error.heading, *lines])
    if isinstance(error, ConfigError):
        return EXIT_USAGE, text
    if isinstance(error, ModuleNotFoundError) and (needed := lacking(error.name)):
        return EXIT_USAGE, needed
    if kind == "OutOfMemoryError":
        return EXIT_FAILED, (
            "E180 out of memory on the device\n"
            "try in this order: a smaller per_device_train_batch_size with more gradient_accumulation_steps; "
            "gradient_checkpointing: true; use_peft: true"
        )
    if _is_one_of_several():
        from badpo.training.processes import is_peer_lost

        if isinstance(error, EndedByLauncherError) or is_peer_lost(error):
            first = (text.strip().splitlines() or [kind])[0]
            return EXIT_FAILED, (
                f"another process of this run has ended, and this process cannot continue alone: {first}\n"
                "start all processes again with --resume: they continue from the newest complete checkpoint"
            )
    # a library may report a full disk with an exception that has no error number
    is_clear = kind == "NotFiniteError"
    if isinstance(error, OSError) and error.strerror:
        text, is_clear = error.strerror + (f": {error.filename}" if error.filename else ""), True
    if os.strerror(errno.ENOSPC) in text:
        resume = ", with --resume if there is a checkpoint" * (command_line.words[:1] == ("train",))
        return EXIT_FAILED, f"{text}\nfree some space and run the command again{resume}"
    if os.strerror(errno.EROFS) in text:
        return EXIT_FAILED, f"{text}\nchoose a writable folder"
    again = f"{kind}: {text}\nrun the command again with --debug to see the traceback"
    return EXIT_FAILED, text if is_clear else again
