"""Options that several commands take, and the reading of a table with them."""

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


def parted(texts: Sequence[str] | None, option: str, example: str) -> list[tuple[str, str]]:
    """What stands left and right of the equals sign of each value of an option.

    Of several the last divides; of a column the first, since our names hold none and a table's may.
    """
    parts = [_divided(text, option) for text in texts or ()]
    for _, equals, text in parts:
        if not equals:
            raise ConfigError(f'{option} {text}: there is no "="; write it as in {option} {example}')
    return [(left, right) for left, _, right in parts]


def _divided(text: str, option: str) -> tuple[str, str, str]:
    return text.partition("=") if option == "--column" else text.rpartition("=")


def parsed_sweep(text: str | None) -> tuple[str, list[Any]] | None:
    """A parameter and the values that it is to take, from KEY=V1,V2; None for None."""
    if text is None:
        return None
    from badpo.data.attributes import parameter

    ((name, values),) = parted([text], "--sweep", "ratio=1.25,1.5,2")
    return name, [parameter(value) for value in values.split(",")]


# the user's word for a side, with any sign in it
_LABEL = re.compile(r"(winners\..+?)(?:(=)(a|b|tie))?")


def parsed_flags(arguments: Sequence[str]) -> Json:
    """Recipe keys as ``trl dpo`` takes them: ``--key value``, ``--key=value``, ``--key`` and ``--no_key``.

    Examples
    --------
    >>> parsed_flags(["--learning-rate", "5e-7", "--no_disable_dropout", "--report_to", "tensorboard", "trackio"])
    {'disable_dropout': False, 'learning_rate': 5e-07, 'report_to': ['tensorboard', 'trackio']}
    >>> parsed_flags(["--winners.Resp. A-1=b", "--winners.x=1", "a"])
    {'winners.Resp. A-1': 'b', 'winners.x=1': 'a'}
    """
    from badpo.data.yaml_files import parse_value

    given: dict[str, list[Any]] = {}
    values: list[Any] | None = None
    for argument in arguments:
        if argument.startswith("--"):
            label = _LABEL.fullmatch(argument[2:])
            name, equals, value = label.groups("") if label else argument[2:].partition("=")
            values = given.setdefault(name if label else name.replace("-", "_"), [])
            values += [parse_value(value)] if equals else []
        elif values is None:
            raise ConfigError(
                f'"{argument}" is not a flag; write keys as --key value, and the recipe as --config FILE'
            )
        else:
            values.append(parse_value(argument))
    flags = (name for name, found in given.items() if not found)
    said = {name.removeprefix("no_"): not name.startswith("no_") for name in flags}
    return said | {name: _alone(found) for name, found in given.items() if found}


def _alone(values: list[Any]) -> Any:
    return values if len(values) > 1 else values[0]


def named(column: Sequence[str] | None, winner: Sequence[str] | None) -> Json:
    """What --column and --winner say, as the readers of a table take it; a column of no name stays unused."""
    columns = {
        ours: theirs or None for ours, theirs in parted(column, "--column", "annotator=worker_id")
    }
    return {"columns": columns, "winners": dict(parted(winner, "--winner", "model_a=a"))}


def reading_a_table(command: Callable) -> Callable:
    """Give a command the options that say how its table is read; the command takes them as ``reading``."""

    @functools.wraps(command)
    def wrapped(*args, column, winner, rating, wide, counts, **kwargs):
        if wide and counts:
            raise ConfigError("--wide and --counts are two layouts; a table has one")
        reading = named([*(column or ()), *([f"rating={rating}"] if rating else [])], winner)
        reading["layout"] = "wide" if wide else "counts" if counts else None
        choices = {name: kwargs.pop(name) for name in ("annotators_missing", "repeated", "bad_rows")}
        return command(*args, reading=reading | choices, **kwargs)

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
    Path, typer.Argument(help="Votes: CSV, Excel, parquet, JSON, JSON lines or a folder.")
]
AttributeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--attribute",
        metavar="NAME[:KEY=VALUE,...]",
        help="Declare an attribute, such as length:ratio=1.5; repeatable.",
    ),
]


def _known(module: str, name: str) -> Callable[[list[Path] | None], list[Path] | None]:
    """What makes the content of the user's files known, before a recipe or an option names any of it."""

    def make_known(paths: list[Path] | None) -> list[Path] | None:
        for path in paths or ():
            try:
                getattr(importlib.import_module(module), name)(path)
            except ConfigError as error:
                raise typer.BadParameter(str(error)) from error
        return paths

    return make_known


AttributeFile = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE",
        callback=_known("badpo.data.attributes", "add_attributes"),
        help="A Python file of yours whose ATTRIBUTES can be declared as the built-in ones; repeatable.",
    ),
]
ArmFile = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE",
        callback=_known("badpo.objective.objectives", "add_objectives"),
        help="A Python file of yours whose OBJECTIVES a recipe can name as the built-in ones; repeatable.",
    ),
]
ColumnOption = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        metavar="OURS=YOURS",
        help="Name a column, such as annotator=worker_id; OURS= leaves one unused; repeatable.",
    ),
]
WinnerOption = Annotated[
    list[str] | None,
    typer.Option(
        "--winner",
        metavar="YOURS=a|b|tie",
        help="What a label in your table means, such as model_a=a; repeatable.",
    ),
]


def _option(default: Any, help: str, *names: str, kind: Any = str, **more: Any) -> tuple[Any, Any]:
    return Annotated[kind, typer.Option(*names, help=help, **more)], default


_RATING = "A column of ratings in place of a winner; --winner high=a says which side is preferred."
READING_OPTIONS: dict[str, tuple[Any, Any]] = {
    "column": (ColumnOption, None),
    "winner": (WinnerOption, None),
    "rating": _option(None, _RATING, kind=str | None, metavar="COLUMN"),
    "wide": _option(
        False,
        "Columns of labels are annotators: all, or those of --column annotator=ann_1,ann_2.",
        "--wide",
        kind=bool,
    ),
    "counts": _option(False, "Columns hold numbers of votes, such as votes_a.", "--counts", kind=bool),
    "annotators_missing": _option("error", "What to do with votes without an annotator: error or drop."),
    "repeated": _option("all", "What to do with an annotator's repeated votes: all or last."),
    "bad_rows": _option("error", "What to do with rows that cannot be read: error, or drop and count."),
}
RunModel = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="What the run started from, in place of what its recipe says.",
    ),
]
RunTable = Annotated[
    str | None,
    typer.Option("--data", metavar="FILE", help="The run's table, in place of what its recipe says."),
]
TrustRun = Annotated[
    bool,
    typer.Option("--trust-run", help="Take all that from the recipe of a run made elsewhere."),
]


# -- output ------------------------------------------------------------------------------------------------------


def is_first_process() -> bool:
    """Whether this is the only process of a run, or the first of those that a launcher started."""
    return int(os.environ.get("RANK", "0")) == 0


def say(what: Any) -> None:
    """Print something for people, at once: what it quotes from files and tables is not obeyed by a terminal."""
    try:
        print(written_out(str(what)), flush=True)
    except OSError as error:
        # the interpreter would complain once more when it writes out the rest
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):  # else who read the output has had enough
            complain(f"the output cannot be written: {error.strerror}")
        raise typer.Exit(EXIT_FAILED) from None


def complain(what: Any) -> None:
    """`say` beside the output, on the stream of errors."""
    print(written_out(str(what)), file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """Print one JSON object; paths and other plain values become text."""
    is_unicode = "utf" in (sys.stdout.encoding or "").lower()
    say(json.dumps(value, indent=2, ensure_ascii=not is_unicode, default=str))


def announce(source: Any, as_json: bool) -> None:
    """Say what is read, before anything is loaded for it."""
    if not as_json:
        say(f"reading {source}")


def tell(as_json: bool, value: Any, text: Any) -> None:
    """Print what a command found: for programs, or for people."""
    print_json(value) if as_json else say(text)


class WrittenOutRecord(logging.LogRecord):
    """A line of any program's log, as `say` would print it."""

    def getMessage(self) -> str:
        """The message with its arguments."""
        return written_out(super().getMessage())


def as_text(value: Any) -> str:
    """One value for people: four digits of a fraction, thousands separated, a dash for nothing.

    Examples
    --------
    >>> [as_text(value) for value in (0.123456, 27812, None, "pooled", [1.5, 2.0], {"ratio": 1.5})]
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
            return ", ".join(f"{name}={as_text(entry)}" for name, entry in value.items())
        case Sequence():
            return ", ".join(as_text(entry) for entry in value)
    return str(value)


def as_lines(values: Mapping, indent: int = 0) -> str:
    """Names and values, one per line, what lies deeper inside indented.

    Examples
    --------
    >>> print(as_lines({"rates": {"woman": {"before": 0.6, "after": 0.5}}, "n": 1000}))
    rates
      woman                   before=0.6, after=0.5
    n                       1,000
    """
    rows = []
    for name, value in values.items():
        if isinstance(value, Mapping) and any(isinstance(entry, Mapping) for entry in value.values()):
            rows += [f"{' ' * indent}{name}", as_lines(value, indent + 2)]
        else:
            rows.append(f"{' ' * indent}{name:<23} {as_text(value)}".rstrip())
    return "\n".join(rows)


def as_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of equal length with aligned columns."""
    from tabulate import tabulate

    return tabulate(rows, tablefmt="plain", disable_numparse=True)


SECONDS_A_LINE = 20  # where nobody watches; on a terminal the line changes each second


@contextmanager
def terminal_progress(quiet: bool) -> Iterator[Callable[[str, float], None]]:
    """A function of (what is being done, share of it done); a thread says so, also while a library computes.

    What begins alike up to a colon is one thing, of which the time left is told.
    """
    begun = time.monotonic()
    now, ended = ("starting", 0.0, begun, 0.0, begun), threading.Event()

    def progress(what: str, share: float) -> None:
        nonlocal now
        before, reached, since, first, _ = now
        goes_on = what.partition(":")[0] == before.partition(":")[0] and share >= reached
        time_now = time.monotonic()
        now = (what, share, *((since, first) if goes_on else (time_now, share)), time_now)

    def line() -> str:
        what, share, since, first, reported = now
        time_now = time.monotonic()
        left = seconds_left(share - first, reported - since, 1 - share, time_now - reported)
        told = f"{100 * share:.0f} %" if share else ""
        told += f", {timedelta(seconds=round(left))} left" if left >= 1 else ""
        return f"{time_now - begun:5.0f} s  {what}  {told}".rstrip()

    def speak() -> None:
        is_seen = sys.stderr.isatty()
        while not ended.wait(1 if is_seen else SECONDS_A_LINE):
            if is_seen:
                print(f"\r\x1b[2K{written_out(line())}\r", end="", file=sys.stderr, flush=True)
            else:
                complain(line())

    speaker = threading.Thread(target=speak, daemon=True)
    if not quiet and is_first_process():
        speaker.start()
    try:
        yield progress
    finally:
        ended.set()
        if speaker.is_alive() and sys.stderr.isatty():
            print("\x1b[2K", end="", file=sys.stderr, flush=True)


def seconds_left(share_done: float, seconds_done: float, share_left: float, since: float) -> float:
    """Seconds until work ends that took ``seconds_done`` for a share of it; the share was done ``since`` seconds ago.

    The estimate decreases while the next stage runs. It is 0 before the first stage ends, and if the next stage takes
    longer than estimated.

    >>> seconds_left(0.2, 60.0, 0.8, 0.0), seconds_left(0.2, 60.0, 0.8, 180.0), seconds_left(0.2, 60.0, 0.8, 300.0)
    (240.0, 60.0, 0.0)
    """
    return max(share_left * seconds_done / share_done - since, 0.0) if share_done > 0 else 0.0


# -- remedies ----------------------------------------------------------------------------------------------------

# the words of the command line, and the table that they name: remedies repeat them
typed: Json = {"words": (), "source": None}


def flags_of(fix: Mapping[str, Any]) -> list[str]:
    """Options of `Judgments.read` as flags, or as keys of a recipe."""
    command = [*typed["words"], ""][0]
    flags: list[str] = []
    for name, value in fix.items():
        entries = value.items() if isinstance(value, Mapping) else [(None, value)]
        for key, entry in entries:
            match command, name, key, entry:
                case "train", _, _, _:
                    own = "dataset_name" if name == "source" else name
                    flag = f"--{own}" if key is None else f"--{own}.{key}"
                    flags += [flag, "null" if entry is None else str(entry)]
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


def corrected_command(fix: Mapping[str, Any]) -> str:
    """The command that was typed, with options that mend it in place of its own, ready to be pasted."""
    words, given = list(typed["words"]), Path(str(typed["source"]))
    words = [as_argument(word) if Path(word) == given else word for word in words if word != "--"]
    if "source" in fix and given in map(Path, words):
        words = [as_argument(fix["source"]) if Path(word) == given else word for word in words]
        fix = {name: value for name, value in fix.items() if name != "source"}
    own = flags_of({name: fix[name] for name in ("columns", "winners") if name in fix})
    said = "\0".join(["badpo", *words])
    for flag, value in zip(own[::2], own[1::2], strict=True):
        start = re.escape("".join(_divided(value, flag)[:2]))  # what is named, such as "annotator="
        said = re.sub(rf"\0{re.escape(flag)}[\0=]{start}[^\0]*", "", said)
    return shlex.join([*said.split("\0"), *flags_of(fix)])


def converted(error: DataError) -> list[str]:
    """The command that converts what another program wrote and then does what was asked for, where it is such."""
    from badpo.data.tables import read_table
    from badpo.importers.convert import TABLE, Export, format_of

    source, out = typed["source"], "judgments.parquet"
    is_read = {problem.code for problem in error.problems}.isdisjoint(("E101", "E107"))
    is_read = is_read or not source or typed["words"][0] == "import"
    if is_read or format_of(Export(read_table(source))) == TABLE:
        return []
    first = shlex.join(["badpo", "import", as_argument(source), "--out", out])
    return [f"{first} && {corrected_command({'source': out})}"]


def as_told(problem: Problem) -> str:
    """A problem with its remedy as flags."""
    return problem.told(shlex.join(flags_of(problem.fix)))


def as_json_problem(problem: Problem) -> Json:
    """A problem for programs, with its remedy as flags."""
    fields = {name: value for name, value in vars(problem).items() if name != "fix"}
    return {**fields, "flags": flags_of(problem.fix), "page": problem.page}


def as_told_all(problems: Iterable[Problem]) -> list[str]:
    """Problems with their remedies as flags, and where the documentation has their codes."""
    told, pages = [*map(as_told, problems)], dict.fromkeys(problem.page for problem in problems)
    return [*told, f"more: {listed([*pages])}"] if told else []


# -- errors ------------------------------------------------------------------------------------------------------

EXIT_FAILED, EXIT_USAGE, EXIT_DATA, EXIT_NOT_MET, EXIT_STOPPED = 1, 2, 3, 4, 130


def reporting_errors(command: Callable) -> Callable:
    """Wrap a command: an error is one message and an exit code, and a traceback only with ``--debug``."""

    @functools.wraps(command)
    def wrapped(*args, debug: bool = False, **kwargs):
        if _of_several():
            # a launcher may be faster to end the others than they are to notice that one is gone
            signal.signal(signal.SIGTERM, _end_by_launcher)
        try:
            return command(*args, **kwargs)
        except typer.Exit:
            raise
        except Exception as error:
            if debug:
                complain(traceback.format_exc())
            if _of_several():
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            given = kwargs.get("data", kwargs.get("source", typed["source"]))
            if isinstance(given, list):  # of several tables the one that the error is about
                places = [problem.where for problem in getattr(error, "problems", ())]
                given = next((one for one in given if str(one.expanduser()) in places), None)
            typed["source"] = given
            code, told = _verdict(error)
            found = {"error": told, "exit_code": code}
            if isinstance(error, DataError):
                found["problems"] = [as_json_problem(problem) for problem in error.problems]
                calls = [corrected_command(fix) for fix in (error.fix, error.turned) if fix]
                found["commands"], found["as_read"] = converted(error) or calls, error.shown
                found["question"], found["answers"] = error.question, error.answers
            print_json(found) if kwargs.get("as_json") else complain(told)
            raise typer.Exit(code) from error

    # every command has the option
    own = inspect.signature(command, eval_str=True)
    option = inspect.Parameter("debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Debug)
    vars(wrapped)["__signature__"] = own.replace(parameters=[*own.parameters.values(), option])
    return wrapped


@contextmanager
def stopping_whole(what_is_left: str) -> Iterator[None]:
    """A command that is told to stop says what is left; ``{again}`` stands for the command as it was given."""
    try:
        yield
    except KeyboardInterrupt as told:
        again = shlex.join(["badpo", *typed["words"]])
        complain(str(told) or what_is_left.format(again=again))
        raise typer.Exit(EXIT_STOPPED) from None


class EndedByLauncherError(RuntimeError):
    """The launcher of several processes told this one to end."""


def _of_several() -> bool:
    """Whether a launcher started this process as one of several that train together."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def _end_by_launcher(signum, frame):
    raise EndedByLauncherError


def _verdict(error: Exception) -> tuple[int, str]:
    """The exit code for an error, and what it was and what to do."""
    kind, text = type(error).__name__, str(error)
    if isinstance(error, DataError):
        told = as_told_all(error.problems)
        if commands := converted(error):
            told += [
                "another program wrote this; it is converted and read by:",
                f"    {commands[0]}",
            ]
        else:
            told += corrected(error, corrected_command)
        return EXIT_DATA, "\n".join([error.heading, *told])
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
    if _of_several():
        from badpo.training.processes import lost_peer

        if isinstance(error, EndedByLauncherError) or lost_peer(error):
            first = (text.strip().splitlines() or [kind])[0]
            return EXIT_FAILED, (
                f"another process of this run has ended, and this one cannot go on alone: {first}\n"
                "start all of them again with --resume: the newest whole checkpoint is taken up"
            )
    # a library may tell no error number
    is_told = kind == "NotFiniteError"
    if isinstance(error, OSError) and error.strerror:
        text, is_told = error.strerror + (f": {error.filename}" if error.filename else ""), True
    if os.strerror(errno.ENOSPC) in text:
        resume = "; with --resume once there is a checkpoint" * (typed["words"][:1] == ("train",))
        return EXIT_FAILED, f"{text}\nfree some space and give the command again{resume}"
    if os.strerror(errno.EROFS) in text:
        return EXIT_FAILED, f"{text}\nname a place that can be written"
    again = f"{kind}: {text}\nrun the command again with --debug to see where"
    return EXIT_FAILED, text if is_told else again
