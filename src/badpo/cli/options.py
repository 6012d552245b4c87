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
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from badpo.data.files import Json
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


def split_values(texts: Sequence[str] | None, option: str, example: str) -> list[tuple[str, str]]:
    """Split each value of an option at its equals sign.

    Option values are split at their last equals sign. A value of --column is split at the first equals sign, because
    only the name of the user's column may contain an equals sign.
    """
    parts = [_split_value(text, option) for text in texts or ()]
    for _, equals, text in parts:
        if not equals:
            raise ConfigError(f'{option} {text} contains no "="; write it as in {option} {example}')
    return [(left, right) for left, _, right in parts]


def _split_value(text: str, option: str) -> tuple[str, str, str]:
    """Split an option value into the part before the equals sign, the sign, and the part after the sign."""
    return text.partition("=") if option == "--column" else text.rpartition("=")


def parse_sweep(text: str | None) -> tuple[str, list[Any]] | None:
    """Parse KEY=V1,V2 into a parameter and its values; return None if the option is missing."""
    if text is None:
        return None
    from badpo.data.attributes import parameter

    ((name, values),) = split_values([text], "--sweep", "ratio=1.25,1.5,2")
    return name, [parameter(value) for value in values.split(",")]


_TARGET = "woman=0.5"


def parse_targets(texts: Sequence[str]) -> dict[str, float]:
    """Parse every --target; raise `ConfigError` for an invalid rate or an attribute with two rates."""
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
            raise ConfigError(
                f"--target {name}={value}: the rate is not a number; write it as in --target {_TARGET}"
            ) from None
        if not 0 < targets[name] < 1:
            raise ConfigError(
                f"--target {name}={value}: a rate must lie strictly between 0 and 1; no finite tilt reaches 0 or 1. "
                "To exclude an attribute completely, forbid its tokens in decoding"
            )
    return targets


def parse_flags(arguments: Sequence[str]) -> Json:
    """Parse recipe keys as ``trl dpo`` does, in the forms ``--key value``, ``--key=value``, ``--key`` and ``--no_key``.

    Examples
    --------
    >>> parse_flags(["--learning-rate", "5e-7", "--no_disable_dropout", "--report_to", "tensorboard", "trackio"])
    {'disable_dropout': False, 'learning_rate': 5e-07, 'report_to': ['tensorboard', 'trackio']}
    """
    from badpo.data.yaml_files import parse_value

    keys: dict[str, list[Any]] = {}
    values: list[Any] | None = None
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


def convert_columns(column: Sequence[str] | None, winner: Sequence[str] | None) -> Json:
    """Convert --column and --winner to arguments of `Judgments.read`; an empty column name leaves a column unused."""
    columns = {
        name: column or None for name, column in split_values(column, "--column", "annotator=worker_id")
    }
    return {"columns": columns, "winners": dict(split_values(winner, "--winner", "model_a=a"))}


def convert_to_recipe_keys(reading: Json, ctx: typer.Context) -> Json:
    """Convert the reading options on the command line to keys of a recipe; an option that was not given has no key."""
    # empty cells have an empty label, which cannot be a part of a key
    keys = {
        f"{name}.{key or 'NULL'}": value
        for name in ("columns", "winners")
        for key, value in reading[name].items()
    }
    layout = {"layout": reading["layout"]} if reading["layout"] else {}
    choices = ("annotators_missing", "repeated", "bad_rows")
    sources = {name: ctx.get_parameter_source(name) for name in choices}
    given = [name for name, source in sources.items() if source and source.name == "COMMANDLINE"]
    return keys | layout | {name: reading[name] for name in given}


def add_reading_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for reading a table to a command, which receives them as the argument ``reading``."""

    @functools.wraps(command)
    def wrapped(
        *args: Any,
        column: Sequence[str] | None,
        winner: Sequence[str] | None,
        rating: str | None,
        wide: bool,
        counts: bool,
        **kwargs: Any,
    ) -> None:
        if wide and counts:
            raise ConfigError("--wide and --counts exclude each other: a table has one layout")
        reading = convert_columns([*(column or ()), *([f"rating={rating}"] if rating else [])], winner)
        reading["layout"] = "wide" if wide else "counts" if counts else None
        choices = {name: kwargs.pop(name) for name in ("annotators_missing", "repeated", "bad_rows")}
        command(*args, reading=reading | choices, **kwargs)

    own = inspect.signature(command, eval_str=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [parameter for name, parameter in own.parameters.items() if name != "reading"]
    parameters += [
        inspect.Parameter(name, keyword, default=default, annotation=kind)
        for name, (kind, default) in READING_OPTIONS.items()
    ]
    vars(wrapped)["__signature__"] = own.replace(parameters=parameters)
    return wrapped


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
    """Return a callback that loads the user's Python files before a recipe or an option uses their content."""

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
        help="Name a column of your table, such as annotator=worker_id. With annotator= badpo reads no column as the "
        "annotators. Repeatable.",
    ),
]
WinnerOption = Annotated[
    list[str] | None,
    typer.Option(
        "--winner",
        metavar="YOURS=a|b|tie|skip",
        help="Define the meaning of a label in your table, such as model_a=a; repeatable.",
    ),
]


def _option(default: Any, help: str, *names: str, kind: Any = str, **more: Any) -> tuple[Any, Any]:
    """Annotation and default of an option."""
    return Annotated[kind, typer.Option(*names, help=help, **more)], default


_RATING = (
    "Column with ratings instead of a winner; --winner high=a means that high ratings prefer response a."
)
READING_OPTIONS: dict[str, tuple[Any, Any]] = {
    "column": (ColumnOption, None),
    "winner": (WinnerOption, None),
    "rating": _option(None, _RATING, kind=str | None, metavar="COLUMN"),
    "wide": _option(
        False,
        "The table has one column of labels for each annotator; --column annotator=ann_1,ann_2 selects the columns.",
        "--wide",
        kind=bool,
    ),
    "counts": _option(
        False, "The table has columns with numbers of votes, such as votes_a.", "--counts", kind=bool
    ),
    "annotators_missing": _option("error", "Votes without an annotator: error or drop."),
    "repeated": _option(
        "all", "Use all votes (all) or only the last vote (last) if an annotator repeats a comparison."
    ),
    "bad_rows": _option(
        "error", "If a row cannot be read, stop (error), or drop and count the row (drop)."
    ),
}
RunModel = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="The model from which the run started; it replaces the model in the recipe of the run.",
    ),
]
RunTable = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="FILE",
        help="The votes of the run; this table replaces the table in the run's recipe.",
    ),
]
TrustRun = Annotated[
    bool,
    typer.Option(
        "--trust-run",
        help="Trust a run from another machine, and use the model and the table in its recipe.",
    ),
]


# -- output ------------------------------------------------------------------------------------------------------


def is_first_process() -> bool:
    """Whether this process is the only process or the first process of a run."""
    return int(os.environ.get("RANK", "0")) == 0


def say(what: str | Path) -> None:
    """Print text for people immediately; escape control characters that come from files and tables."""
    try:
        print(written_out(str(what)), flush=True)
    except OSError as error:
        # the output is redirected, because the interpreter would report the error again when it flushes the output
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # if a pipe is broken, nobody reads the output any more, so a broken pipe is not an error
        if not isinstance(error, BrokenPipeError):
            complain(f"the output cannot be written: {error.strerror}")
        raise typer.Exit(EXIT_FAILED) from None


def complain(what: str) -> None:
    """Print text for people on standard error."""
    print(written_out(what), file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """Print one JSON object, in which paths and other values that are not JSON become text."""
    is_unicode = "utf" in (sys.stdout.encoding or "").lower()
    say(json.dumps(value, indent=2, ensure_ascii=not is_unicode, default=str))


def announce(source: str | Path, as_json: bool) -> None:
    """Print the name of a source before badpo loads the library that reads the source."""
    if not as_json:
        say(f"reading {source}")


def print_result(as_json: bool, value: Any, text: str | Path) -> None:
    """Print the result of a command as JSON for programs, or as text for people."""
    print_json(value) if as_json else say(text)


class WrittenOutRecord(logging.LogRecord):
    """Log record whose message has escaped control characters, like the text that `say` prints."""

    def getMessage(self) -> str:
        """The message with its arguments."""
        return written_out(super().getMessage())


def format_value(value: Any) -> str:
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


def format_lines(values: Mapping[str, Any], indent: int = 0) -> str:
    """Format names with their values, one pair in each line; nested values are indented.

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
    """Format rows of equal length with aligned columns."""
    from tabulate import tabulate

    return str(tabulate(rows, tablefmt="plain", disable_numparse=True))


# Seconds between two lines of progress if the output is not a terminal; on a terminal the line changes every second.
SECONDS_A_LINE = 20


@contextmanager
def terminal_progress(quiet: bool) -> Iterator[Callable[[str, float], None]]:
    """Yield a function that reports the progress of a task; a thread prints the progress and the remaining time.

    Tasks with the same text before a colon are stages of one task.
    """
    start = time.monotonic()
    stage, ended = ("starting", 0.0, start, 0.0, start), threading.Event()

    def progress(what: str, share: float) -> None:
        nonlocal stage
        before, reached, since, first, _ = stage
        is_same_task = what.partition(":")[0] == before.partition(":")[0] and share >= reached
        now = time.monotonic()
        stage = (what, share, *((since, first) if is_same_task else (now, share)), now)

    def format_line() -> str:
        what, share, since, first, reported = stage
        now = time.monotonic()
        left = seconds_left(share - first, reported - since, 1 - share, now - reported)
        state = f"{100 * share:.0f} %" if share else ""
        state += f", {timedelta(seconds=round(left))} left" if left >= 1 else ""
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


def seconds_left(share_done: float, seconds_done: float, share_left: float, since: float) -> float:
    """Estimated seconds until a task ends; ``share_done`` took ``seconds_done`` and was reached ``since`` seconds ago.

    The estimated time decreases while the next stage runs. The estimated time is 0 before the first stage ends, and if
    the next stage takes longer than estimated.

    >>> seconds_left(0.2, 60.0, 0.8, 0.0), seconds_left(0.2, 60.0, 0.8, 180.0), seconds_left(0.2, 60.0, 0.8, 300.0)
    (240.0, 60.0, 0.0)
    """
    return max(share_left * seconds_done / share_done - since, 0.0) if share_done > 0 else 0.0


# -- remedies ----------------------------------------------------------------------------------------------------

# words of the user's command line and the path of the table, from which badpo writes corrected commands
command_line: Json = {"words": (), "source": None}


def convert_to_flags(fix: Mapping[str, Any]) -> list[str]:
    """Convert arguments of `Judgments.read` to options of the user's command."""
    command = [*command_line["words"], ""][0]
    flags: list[str] = []
    for name, value in fix.items():
        entries = value.items() if isinstance(value, Mapping) else [(None, value)]
        for key, entry in entries:
            match command, name, key, entry:
                case "train", "source", _, _:
                    flags += ["--dataset_name", str(entry)]
                case _, "layout", _, _:
                    flags += [f"--{entry}"]
                case "import", "columns", "annotator", None:
                    flags += ["--annotators", "none"]
                case _, _, None, _:
                    flags += [f"--{name.replace('_', '-')}", str(entry)]
                case _:
                    flags += [
                        f"--{name.removesuffix('s')}",
                        f"{key}={'' if entry is None else entry}",
                    ]
    return flags


def write_corrected_command(fix: Mapping[str, Any]) -> str:
    """Return the user's command with corrected options, which the user can paste into a shell."""
    words, table = list(command_line["words"]), Path(str(command_line["source"]))
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
    """If the table is an export that must be converted first, return a command that converts and reads the export."""
    from badpo.data.tables import read_table
    from badpo.importers.convert import TABLE, detect_format
    from badpo.importers.export import Export

    source, out = command_line["source"], "judgments.parquet"
    is_read = {problem.code for problem in error.problems}.isdisjoint(("E101", "E107"))
    is_read = is_read or not source or command_line["words"][0] == "import"
    if is_read or detect_format(Export(read_table(source))) == TABLE:
        return []
    first = shlex.join(["badpo", "import", as_argument(source), "--out", out])
    return [f"{first} && {write_corrected_command({'source': out})}"]


def format_problem(problem: Problem) -> str:
    """Format a problem, with its remedy as options of the user's command."""
    return problem.told(shlex.join(convert_to_flags(problem.fix)))


def convert_problem(problem: Problem) -> Json:
    """Convert a problem to JSON, with its remedy as options of the user's command."""
    fields = {name: value for name, value in vars(problem).items() if name not in ("fix", "lengths")}
    return {**fields, "flags": convert_to_flags(problem.fix), "page": problem.page}


def format_problems(problems: Iterable[Problem]) -> list[str]:
    """Format problems with their remedies as options, followed by the documentation pages about these problems."""
    lines, pages = [*map(format_problem, problems)], dict.fromkeys(problem.page for problem in problems)
    return [*lines, f"more: {listed([*pages])}"] if lines else []


# -- errors ------------------------------------------------------------------------------------------------------

EXIT_FAILED, EXIT_USAGE, EXIT_DATA, EXIT_NOT_MET, EXIT_STOPPED = 1, 2, 3, 4, 130


def report_errors(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command so that an error prints one message and sets the exit code; ``--debug`` shows the traceback."""

    @functools.wraps(command)
    def wrapped(*args: Any, debug: bool = False, **kwargs: Any) -> None:
        if _is_one_of_several():
            # if one process ends, the launcher may end the other processes before they notice that it has ended
            signal.signal(signal.SIGTERM, _end_by_launcher)
        try:
            command(*args, **kwargs)
        except typer.Exit:
            raise
        except Exception as error:
            if debug:
                complain(traceback.format_exc())
            if _is_one_of_several():
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            source = kwargs.get("data", kwargs.get("source", command_line["source"]))
            if isinstance(source, list):  # select the table with the error
                places = [problem.where for problem in getattr(error, "problems", ())]
                source = next((one for one in source if str(one.expanduser()) in places), None)
            command_line["source"] = source
            code, message = _describe_error(error)
            content: Json = {"error": message, "exit_code": code}
            if isinstance(error, DataError):
                content["problems"] = [convert_problem(problem) for problem in error.problems]
                fixes = [error.fix, error.turned, *(fix for _, fix in error.others)]
                calls = [write_corrected_command(fix) for fix in fixes if fix]
                content["commands"], content["as_read"] = find_conversion(error) or calls, error.shown
                content["question"], content["answers"] = error.question, error.answers
            print_json(content) if kwargs.get("as_json") else complain(message)
            raise typer.Exit(code) from error

    # add the option --debug to the signature of the command
    own = inspect.signature(command, eval_str=True)
    option = inspect.Parameter("debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Debug)
    vars(wrapped)["__signature__"] = own.replace(parameters=[*own.parameters.values(), option])
    return wrapped


@contextmanager
def handle_interrupt(what_is_left: str) -> Iterator[None]:
    """If the user interrupts the command, print ``what_is_left``, in which ``{again}`` is the user's command."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        again = shlex.join(["badpo", *command_line["words"]])
        complain(str(interrupt) or what_is_left.format(again=again))
        raise typer.Exit(EXIT_STOPPED) from None


class EndedByLauncherError(RuntimeError):
    """The launcher of several training processes has ended this process."""


def _is_one_of_several() -> bool:
    """Whether a launcher started this process as one of several processes that train together."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def _end_by_launcher(signum: int, frame: FrameType | None) -> None:
    """Handle SIGTERM from the launcher by raising an error in this process."""
    raise EndedByLauncherError


def _describe_error(error: Exception) -> tuple[int, str]:
    """Return the exit code and the message of an error, with the remedy."""
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
    # a library may report a full disk with an exception without an error number
    is_clear = kind == "NotFiniteError"
    if isinstance(error, OSError) and error.strerror:
        text, is_clear = error.strerror + (f": {error.filename}" if error.filename else ""), True
    if os.strerror(errno.ENOSPC) in text:
        resume = ", with --resume if there is a checkpoint" * (command_line["words"][:1] == ("train",))
        return EXIT_FAILED, f"{text}\nfree some space and run the command again{resume}"
    if os.strerror(errno.EROFS) in text:
        return EXIT_FAILED, f"{text}\nchoose a folder that can be written"
    again = f"{kind}: {text}\nrun the command again with --debug to see the traceback"
    return EXIT_FAILED, text if is_clear else again
