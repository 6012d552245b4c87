"""The command line: each command parses, calls one function and prints.

Everything heavy is imported inside the commands, so that ``--help`` answers at once and `check` loads no
torch. Commands with much to say live in the modules beside this one; `badpo.cli.options` has the exit codes.
"""

import logging
import os
import sys
from contextlib import redirect_stdout
from dataclasses import asdict
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Annotated

import typer
import typer.core
from typer import Option

from badpo import __version__
from badpo.cli.anchor import anchor
from badpo.cli.local_page import open_table
from badpo.cli.options import (
    EXIT_DATA,
    EXIT_STOPPED,
    ArmFile,
    AsJson,
    AttributeFile,
    AttributeOption,
    DataArgument,
    RunModel,
    RunTable,
    TrustRun,
    WrittenOutRecord,
    announce,
    as_json_problem,
    as_lines,
    as_table,
    as_text,
    as_told_all,
    complain,
    is_first_process,
    parsed_flags,
    parsed_sweep,
    print_json,
    reading_a_table,
    reporting_errors,
    say,
    stopping_whole,
    tell,
    terminal_progress,
    typed,
)
from badpo.cli.votes import audit, forget, import_votes, watch
from badpo.data.files import locked
from badpo.data.problems import ConfigError

RunsArgument = Annotated[
    list[Path], typer.Argument(metavar="RUN...", help="Run folders, or a folder of run folders.")
]

COMMANDS = "badpo.commands"


class Commands(typer.core.TyperGroup):
    """The commands of badpo, and those that other packages name in the entry-point group `badpo.commands`."""

    def parse_args(self, ctx, args):
        """What was typed is kept, for remedies that repeat it."""
        typed.update(words=tuple(args), source=None)
        return super().parse_args(ctx, args)

    def invoke(self, ctx):
        """What is interrupted without a word of its own leaves with one."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            complain("stopped")
            raise typer.Exit(EXIT_STOPPED) from None

    def list_commands(self, ctx) -> list[str]:
        """All names, our own first."""
        return [*super().list_commands(ctx), *sorted(entry_points(group=COMMANDS).names)]

    def get_command(self, ctx, cmd_name: str):
        """A command, imported only where it is asked for."""
        own, further = (
            super().get_command(ctx, cmd_name),
            entry_points(group=COMMANDS, name=cmd_name),
        )
        return own or (_command_of(*further) if further else None)


def _command_of(entry: EntryPoint):
    """The command that an entry point names: a function, or an app of several."""
    found = entry.load()
    if not isinstance(found, typer.Typer):
        function, found = found, typer.Typer(add_completion=False)
        found.command(entry.name)(function)
    found.rich_markup_mode = None
    logging.getLogger(entry.module.partition(".")[0]).setLevel(_level())
    return typer.main.get_command(found)


def _level() -> int:
    """Of several processes that train together the first one speaks."""
    return logging.INFO if is_first_process() else logging.ERROR


app = typer.Typer(
    name="badpo",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help, without importing rich
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train a language model on people's votes without teaching it the lean that they share.",
)
attributes_app = typer.Typer(
    no_args_is_help=True, help="What a response can carry that annotators may lean toward."
)
app.add_typer(attributes_app, name="attributes")
app.command("audit")(audit)
app.command("open")(open_table)
app.command("watch")(watch)
app.command("anchor")(anchor)
app.command("import")(import_votes)
app.command()(forget)


def _show_version(asked: bool) -> None:
    if asked:
        say(f"badpo {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = Option(
        False, "--version", callback=_show_version, is_eager=True, help="Print the version."
    ),
) -> None:
    # a kernel is code that transformers would fetch from the Hub, where the package kernels is there
    os.environ.setdefault("USE_HUB_KERNELS", "0")
    # of every library, also where it quotes a model's files
    logging.setLogRecordFactory(WrittenOutRecord)
    logging.captureWarnings(True)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("badpo").setLevel(_level())
    # the bars of other libraries would stand in the line of ours
    os.environ.setdefault("TQDM_DISABLE", "1")


@app.command()
@reporting_errors
@reading_a_table
def check(
    data: DataArgument,
    attribute: AttributeOption = None,
    attribute_file: AttributeFile = None,
    model: str | None = Option(
        None, help="Also encode with this model's tokenizer and count what is cut."
    ),
    encoding: str = Option("trl", help="With --model: trl or paper."),
    max_length: int = Option(1024, help="With --model: longest prompt and response together."),
    as_json: AsJson = False,
    *,
    reading: dict,
) -> None:
    """Everything wrong with a table of judgments, at once. Exit code 3 when something must be mended."""
    announce(data, as_json)
    from badpo.data.checks import check as check_judgments
    from badpo.data.judgments import Judgments

    judgments = Judgments.read(data, attributes=attribute or (), **reading)
    problems = list(check_judgments(judgments))
    if model is not None:
        from badpo.training.encoding import model_problems

        problems += model_problems(judgments, model, encoding, max_length)
    counts = {
        "judgments": judgments.n_votes,
        "comparisons": judgments.n_comparisons,
        "prompts": int(judgments.comparisons["prompt_id"].nunique()),
        "annotators": judgments.n_annotators,
        "dropped": int(judgments.dropped["n"].sum()),
    }
    n_errors = sum(problem.severity == "error" for problem in problems)
    shown = "   ".join(f"{name} {n:,}" for name, n in counts.items())
    verdict = f"{n_errors} to mend before training" if n_errors else "nothing to mend"
    found = counts | {
        "errors": n_errors,
        "problems": [as_json_problem(each) for each in problems],
    }
    tell(as_json, found, "\n".join([shown, *as_told_all(problems), verdict]))
    if n_errors:
        raise typer.Exit(EXIT_DATA)


@attributes_app.command("list")
@reporting_errors
def attributes_list(attribute_file: AttributeFile = None, as_json: AsJson = False) -> None:
    """The built-in attributes and those of your files, their scope and their parameters."""
    from badpo.data.attributes import describe_attributes

    rows, columns = describe_attributes(), ("type", "scope", "example", "what")
    tell(as_json, rows, as_table([[row[name] for name in columns] for row in rows]))


@attributes_app.command("test")
@reporting_errors
@reading_a_table
def attributes_test(
    data: DataArgument,
    attribute: AttributeOption = None,
    attribute_file: AttributeFile = None,
    sweep: str | None = Option(
        None,
        metavar="KEY=V1,V2,...",
        help="Repeat with these values of a parameter, such as ratio=1.25,1.5,2.",
    ),
    examples: int = Option(3, help="How many responses to show on each side."),
    as_json: AsJson = False,
    *,
    reading: dict,
) -> None:
    """What an attribute finds in your data: how often the two sides differ, who wins then, and examples."""
    from badpo.data.attributes import parsed_attribute
    from badpo.data.checks import attribute_trials
    from badpo.data.judgments import Judgments

    configs = [parsed_attribute(text) for text in attribute or []]
    judgments = Judgments.read(data, **reading)
    trials = attribute_trials(judgments, configs, sweep=parsed_sweep(sweep), n_examples=examples)
    figures = ("cross_share", "n_cross", "carrier_wins", "log_odds", "ci_low", "ci_high")
    columns = ("attribute", "parameters", *figures)
    heading = (
        *("attribute", "parameters", "sides differ", "judgments"),
        *("side with more wins", "log-odds", "95 % from", "to"),
    )
    lines = [as_table([heading, *([as_text(trial[name]) for name in columns] for trial in trials)])]
    for trial in trials if sweep is None else []:
        for kind, texts in trial["examples"].items():
            lines += ["", f"{trial['attribute']}, {kind}:"]
            lines += [f"  {text}" for text in texts] or ["  (none)"]
    tell(as_json, trials, "\n".join(lines))
    for trial in trials:
        if trial["problem"]:
            complain(f"{trial['attribute']}: {trial['problem']}")
    if not any(trial["n_cross"] for trial in trials):
        raise typer.Exit(EXIT_DATA)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
@reporting_errors
@stopping_whole("stopped before the first checkpoint, so nothing is kept; start again with: {again}")
def train(
    ctx: typer.Context,
    config: Path | None = Option(None, help="A recipe in YAML; a trl dpo file works too."),
    attribute: AttributeOption = None,
    attribute_file: AttributeFile = None,
    arm_file: ArmFile = None,
    dry_run: bool = Option(False, help="Plan, counts and a self-test; nothing is trained."),
    resume: bool = Option(False, help="Continue from the newest checkpoint whose checksums agree."),
    allow_changed: list[str] | None = Option(
        None,
        metavar="NAME",
        help="With --resume: what may differ from the checkpoint; only code, the versions of packages.",
    ),
    trust_remote_code: bool = Option(False, help="Let the model run code of its own from the Hub."),
    as_json: AsJson = False,
) -> None:
    """Train on your own votes. Any key of the recipe may follow as a flag: --beta 0.2 --bias pooled.

    --compare trains DPO and its placebo beside the run, --compare dpo only DPO, --compare OBJECTIVE... others.
    """
    from badpo.training.recipe import read_recipe

    overrides = parsed_flags(ctx.args)
    if attribute:
        overrides["attributes"] = attribute
    recipe = read_recipe(config, overrides, trust_remote_code=trust_remote_code)
    typed["source"] = recipe.data.dataset_name
    for notice in recipe.notices if is_first_process() and not as_json else ():
        complain(notice)
    from badpo.runs.run import plan_run, run_folder, train_run

    if dry_run:
        with redirect_stdout(sys.stderr):
            plan = plan_run(recipe)
        told = asdict(plan) | {"findings": [as_json_problem(each) for each in plan.findings]}
        tell(as_json, told, "\n".join(plan.lines()))
        return
    with terminal_progress(as_json) as progress, redirect_stdout(sys.stderr):
        folder = train_run(recipe, resume, allow_changed or (), progress)
    beside = [folder.with_name(run_folder(one).name) for one in recipe.baselines]
    if is_first_process():
        folders = "\n".join(map(str, (folder, *beside)))
        next_one = f"next: badpo evaluate {folder.parent if beside else folder}"
        told = {"run": folder} | ({"compared": beside} if beside else {})
        tell(as_json, told, f"{folders}\n{next_one}")


@app.command()
@reporting_errors
@stopping_whole("stopped; what was measured is kept; go on with: {again}")
def evaluate(
    runs: RunsArgument,
    attribute_file: AttributeFile = None,
    arm_file: ArmFile = None,
    model: RunModel = None,
    data: RunTable = None,
    trust_run: TrustRun = False,
    as_json: AsJson = False,
) -> None:
    """Measure trained runs on their held-out judgments and write readouts.json into each."""
    from badpo.results.run_files import finished_runs, read_suite

    folders = finished_runs(runs)  # a folder that is not there is told before torch is loaded
    from badpo.results.run_page import arms_side_by_side
    from badpo.runs.evaluate import evaluate_run
    from badpo.training.recipe import RunSources

    results, sources = {}, RunSources(model, data, trust_run)
    with terminal_progress(as_json) as progress, redirect_stdout(sys.stderr):
        for folder in folders:
            with locked(folder):
                results[str(folder)] = evaluate_run(folder, progress, sources)
    if as_json:
        return print_json(results)
    told = []
    for run, found in results.items():
        # what decides whether a run is measured again is no figure
        rest = {k: found[k] for k in found if k not in ("measured", "version") and found[k] != {}}
        told.append(f"{run}\n{as_lines(rest | {'answers': len(found['answers'])})}")
    for parent in dict.fromkeys(folder.parent for folder in folders):
        beside = [folder for folder in (parent / "reference", *folders) if folder.parent == parent]
        measured = [folder for folder in beside if (folder / "readouts.json").exists()]
        told.append(as_table(arms_side_by_side(read_suite(measured))))
    say("\n".join([*filter(None, told), f"next: badpo report {folders[0].parent}"]))


@app.command()
@reporting_errors
def report(
    runs: RunsArgument,
    out: Path = Option(Path("report.html"), "--out", "-o", help="The page to write."),
    texts: bool = Option(True, help="Show the first prompts and what each arm answered."),
    as_json: AsJson = False,
) -> None:
    """One page with the runs' tables and charts, which needs no network and no script."""
    from badpo.results.run_page import write_report

    if out.is_dir():
        raise ConfigError(f"{out} is a folder, and the page is a file: --out {out / 'report.html'}")
    write_report(runs, out, texts)
    tell(as_json, {"report": out}, out)
