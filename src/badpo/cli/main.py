"""Commands of badpo: each command parses its arguments, calls one function and prints the result.

The commands import large libraries only when they run, so that ``--help`` is fast and `check` does not load torch.
Longer commands have modules of their own in this package. `badpo.cli.options` defines the exit codes.
"""

import logging
import os
import sys
from contextlib import redirect_stdout
from dataclasses import asdict
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
import typer.core
from typer import Argument, Option

from badpo import __version__
from badpo.cli import options
from badpo.cli.local_page import open_table
from badpo.cli.votes import audit, forget, import_votes, watch
from badpo.data.files import locked
from badpo.data.problems import ConfigError, counted

if TYPE_CHECKING:
    from badpo.data.judgments import ReadingOptions

RunsArgument = Annotated[
    list[Path],
    typer.Argument(metavar="RUN...", help="Run folders, or a folder that contains run folders."),
]

COMMANDS = "badpo.commands"


class Commands(typer.core.TyperGroup):
    """Commands of badpo, and commands that other packages provide with the entry-point group `badpo.commands`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Store the words of the command line, so that badpo can suggest corrected commands."""
        options.command_line.words, options.command_line.source = tuple(args), None
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run a command, and print a general message if the user interrupts it."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            options.complain("stopped")
            raise typer.Exit(options.EXIT_STOPPED) from None

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands: badpo's commands, then those of other packages."""
        return [*super().list_commands(ctx), *sorted(entry_points(group=COMMANDS).names)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; import a command of another package only when the user calls it."""
        own = super().get_command(ctx, cmd_name)
        further = entry_points(group=COMMANDS, name=cmd_name)
        return own or (_load_command(*further) if further else None)


def _load_command(entry: EntryPoint) -> Any:
    """Load an entry point's command, which is a function or a typer app."""
    group = entry.load()
    if not isinstance(group, typer.Typer):
        function, group = group, typer.Typer(add_completion=False)
        group.command(entry.name)(function)
    group.rich_markup_mode = None
    logging.getLogger(entry.module.partition(".")[0]).setLevel(_log_level())
    return typer.main.get_command(group)


def _log_level() -> int:
    """Return the log level: INFO for the first of several training processes, and ERROR for the others."""
    return logging.INFO if options.is_first_process() else logging.ERROR


app = typer.Typer(
    name="badpo",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help, without importing rich
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Find the biases in preference votes, and train language models that do not learn the shared bias.",
)
attributes_app = typer.Typer(
    no_args_is_help=True, help="List the attributes of responses, or test an attribute on your votes."
)
app.add_typer(attributes_app, name="attributes")
app.command("audit")(audit)
app.command("open")(open_table)
app.command("watch")(watch)
app.command("import")(import_votes)
app.command()(forget)


def _show_version(is_requested: bool) -> None:
    """Print the version and exit."""
    if is_requested:
        options.say(f"badpo {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = Option(
        False, "--version", callback=_show_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Configure logging and other libraries before a command runs."""
    # kernels are code, so transformers must not download them, even if the kernels package is installed
    os.environ.setdefault("USE_HUB_KERNELS", "0")
    # escape control characters in the logs of all libraries, because logs can quote a model's files
    logging.setLogRecordFactory(options.WrittenOutRecord)
    logging.captureWarnings(True)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("badpo").setLevel(_log_level())
    # disable other libraries' progress bars, which would overwrite badpo's progress line
    os.environ.setdefault("TQDM_DISABLE", "1")


@app.command()
@options.report_errors
def check(
    data: options.DataArgument,
    attribute: options.AttributeOption = None,
    attribute_file: options.AttributeFile = None,
    as_json: options.AsJson = False,
    *,
    reading: "ReadingOptions",
) -> None:
    """Report all problems of a table of votes. The exit code is 3 if a problem prevents training."""
    options.announce(data, as_json)
    from badpo.data.checks import check as check_judgments
    from badpo.data.judgments import Judgments

    judgments = Judgments.read(data, attributes=attribute or (), **reading)
    problems = check_judgments(judgments)
    counts = {
        "judgments": judgments.n_votes,
        "comparisons": judgments.n_comparisons,
        "prompts": int(judgments.comparisons["prompt_id"].nunique()),
        "annotators": judgments.n_annotators,
        "dropped": int(judgments.dropped["n"].sum()),
    }
    n_errors = sum(problem.severity == "error" for problem in problems)
    counted_text = "   ".join(f"{name} {n:,}" for name, n in counts.items())
    verdict = (
        f"{counted(n_errors, 'problem')} must be corrected before training"
        if n_errors
        else "no problem prevents training"
    )
    content = counts | {
        "errors": n_errors,
        "problems": [options.convert_problem(each) for each in problems],
    }
    options.print_result(
        as_json, content, "\n".join([counted_text, *options.format_problems(problems), verdict])
    )
    if n_errors:
        raise typer.Exit(options.EXIT_DATA)


@attributes_app.command("list")
@options.report_errors
def attributes_list(
    attribute_file: options.AttributeFile = None, as_json: options.AsJson = False
) -> None:
    """List the built-in attributes and the attributes of your files, with their scope and parameters."""
    from badpo.data.attributes import describe_attributes

    rows, columns = describe_attributes(), ("type", "scope", "example", "what")
    options.print_result(
        as_json, rows, options.format_table([[row[name] for name in columns] for row in rows])
    )


@attributes_app.command("test")
@options.report_errors
def attributes_test(
    data: options.DataArgument,
    attribute: options.AttributeOption = None,
    attribute_file: options.AttributeFile = None,
    examples: int = Option(3, help="Number of examples of each kind."),
    as_json: options.AsJson = False,
    *,
    reading: "ReadingOptions",
) -> None:
    """Test an attribute on your votes: how often responses differ, which response wins, and examples."""
    from badpo.data.attributes import parsed_attribute
    from badpo.data.checks import attribute_trials
    from badpo.data.judgments import Judgments

    configs = [parsed_attribute(text) for text in attribute or []]
    judgments = Judgments.read(data, **reading)
    trials = attribute_trials(judgments, configs, n_examples=examples)
    figures = ("cross_share", "n_cross", "win_rate", "log_odds", "ci_low", "ci_high")
    columns = ("attribute", "parameters", *figures)
    heading = (
        *("attribute", "parameters", "responses differ", "judgments"),
        *("response with more wins", "log-odds", "95 % CI from", "to"),
    )
    lines = [
        options.format_table(
            [heading, *([options.format_value(trial[name]) for name in columns] for trial in trials)]
        )
    ]
    for trial in trials:
        for kind, texts in trial["examples"].items():
            lines += ["", f"{trial['attribute']}, {kind}:"]
            lines += [f"  {text}" for text in texts] or ["  (none)"]
    options.print_result(as_json, trials, "\n".join(lines))
    for trial in trials:
        if trial["problem"]:
            options.complain(f"{trial['attribute']}: {trial['problem']}")
    if not any(trial["n_cross"] for trial in trials):
        raise typer.Exit(options.EXIT_DATA)


# "\b" preserves the line breaks of the next paragraph
TRAIN_HELP = """Train on your votes.

Every key of a recipe is also an option. The most important keys are:

\b
--model_name_or_path MODEL  model to train: a folder, or a name on the Hub
--dataset_name TABLE        table of votes
--attribute length          attribute toward which annotators may be biased
--output_dir FOLDER         folder of the runs
--learning_rate 1e-6        learning rate of the policy
--max_steps 1000            number of steps; or --num_train_epochs 1
--per_device_train_batch_size 8
--bias pooled               shared_mean, pooled, class, per_annotator, or none for DPO
--held_out 0.1              share of the prompts held out for badpo evaluate
--use_peft                  train a LoRA adapter
--seed 42

--compare also trains DPO, and DPO on votes without the bias (the placebo). --compare dpo leaves out the placebo.
--compare OBJECTIVE... trains other objectives.
"""


@app.command(
    help=TRAIN_HELP,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
@options.report_errors
@options.handle_interrupt(
    "stopped before the first checkpoint, so no result is kept; start again with: {again}"
)
def train(
    ctx: typer.Context,
    config: Path | None = Option(
        None, help="A recipe in YAML; a configuration file of trl dpo also works."
    ),
    attribute: options.AttributeOption = None,
    attribute_file: options.AttributeFile = None,
    arm_file: options.ArmFile = None,
    dry_run: bool = Option(
        False, help="Print the plan of the run and run a self-test, without training."
    ),
    resume: bool = Option(False, help="Continue from the newest complete checkpoint."),
    allow_changed: list[str] | None = Option(
        None,
        metavar="NAME",
        help="With --resume: allow the run to differ from the checkpoint. NAME is code, for package versions.",
    ),
    trust_remote_code: bool = Option(False, help="Allow the model to run its own code from the Hub."),
    as_json: options.AsJson = False,
    *,
    reading: "ReadingOptions",
) -> None:
    """Train the runs of a recipe."""
    from badpo.training.recipe import read_recipe

    overrides = options.parse_flags(ctx.args) | options.convert_to_recipe_keys(reading, ctx)
    if attribute:
        overrides["attributes"] = attribute
    recipe = read_recipe(config, overrides, trust_remote_code=trust_remote_code)
    options.command_line.source = recipe.data.dataset_name
    for notice in recipe.notices if options.is_first_process() and not as_json else ():
        options.complain(str(notice))
    from badpo.runs.run import plan_run, run_folder, train_run

    if dry_run:
        with redirect_stdout(sys.stderr):
            plan = plan_run(recipe, resume, allow_changed or ())
        content = asdict(plan) | {"findings": [options.convert_problem(each) for each in plan.findings]}
        options.print_result(as_json, content, "\n".join(plan.lines()))
        return
    with options.terminal_progress(as_json) as progress, redirect_stdout(sys.stderr):
        folder = train_run(recipe, resume, allow_changed or (), progress)
    baselines = [folder.with_name(run_folder(one).name) for one in recipe.baselines]
    if options.is_first_process():
        folders = "\n".join(map(str, (folder, *baselines)))
        next_one = f"next: badpo evaluate {folder.parent if baselines else folder}"
        content = {"run": folder} | ({"compared": baselines} if baselines else {})
        options.print_result(as_json, content, f"{folders}\n{next_one}")


@app.command()
@options.report_errors
@options.handle_interrupt("stopped; finished measurements are kept; continue with: {again}")
def evaluate(
    runs: RunsArgument,
    attribute_file: options.AttributeFile = None,
    arm_file: options.ArmFile = None,
    model: options.RunModel = None,
    data: options.RunTable = None,
    trust_run: options.TrustRun = False,
    as_json: options.AsJson = False,
) -> None:
    """Evaluate trained runs on their held-out votes, and write readouts.json to each run folder."""
    from badpo.results.run_files import find_finished_runs, read_suite

    folders = find_finished_runs(runs)  # report a missing folder before loading torch
    from badpo.results.bias_check import bias_findings, bias_verdicts
    from badpo.results.run_page import arms_side_by_side, page_notices
    from badpo.runs.evaluate import evaluate_run
    from badpo.training.recipe import RunSources

    results, sources = {}, RunSources(model, data, trust_run)
    reported: set[str] = set()  # report each warning about held-out votes only once for all runs
    with options.terminal_progress(as_json) as progress, redirect_stdout(sys.stderr):
        for folder in folders:
            with locked(folder):
                results[str(folder)] = evaluate_run(folder, progress, sources, reported)
    if as_json:
        return options.print_json(results)
    lines = []
    for parent in dict.fromkeys(folder.parent for folder in folders):
        group = [folder for folder in (parent / "reference", *folders) if folder.parent == parent]
        measured = [folder for folder in group if (folder / "readouts.json").exists()]
        suite = read_suite(measured)
        lines.append(options.format_table(arms_side_by_side(suite)))
        for verdict in bias_findings(suite):
            sentences = (": ".join(filter(None, one)) for one in verdict.sentences)
            lines.append("\n  ".join([f"{verdict.title}: {verdict.finding}", *sentences]))
        lines += [*page_notices(suite), *bias_verdicts(suite)]
    options.say("\n".join([*filter(None, lines), f"next: badpo report {folders[0].parent}"]))


@app.command()
@options.report_errors
def report(
    runs: RunsArgument,
    out: Path = Option(Path("report.html"), "--out", "-o", help="Page to write."),
    texts: bool = Option(True, help="Show the first prompts with the answers of each policy."),
    as_json: options.AsJson = False,
) -> None:
    """Write one page with tables and charts of runs. The page needs neither a network nor scripts."""
    from badpo.results.run_files import read_suite
    from badpo.results.run_page import write_report

    if out.is_dir():
        raise ConfigError(f"{out} is a folder, but --out must be a file: --out {out / 'report.html'}")
    suite = read_suite(runs)
    write_report(suite, out, texts)
    options.print_result(as_json, {"report": out}, out)


@app.command()
@options.report_errors
@options.handle_interrupt("stopped; finished rounds are kept; continue with: {again}")
def anchor(
    source: str = Argument(
        ...,
        metavar="RUN_OR_MODEL",
        help="A run folder, a model folder, or the name of a model on the Hub.",
    ),
    target: list[str] = Option(
        [],
        metavar="ATTRIBUTE=RATE",
        help="Target rate of an attribute, such as woman=0.5; repeatable.",
    ),
    mode: Literal["sample", "train"] = Option(
        "sample",
        help="sample: reweight answers during sampling; train: train the policy to reach the target.",
    ),
    tolerance: float = Option(
        0.03,
        min=0,
        max=1,
        help="Largest accepted difference between a rate and its target; larger differences give the exit code 1.",
    ),
    rounds: int = Option(
        4, min=1, metavar="N", help="With --mode train: maximum number of calibration rounds."
    ),
    steps: int | None = Option(
        None, metavar="N", help="With --mode train: number of optimizer steps in each calibration round."
    ),
    learning_rate: float | None = Option(
        None,
        help="With --mode train: peak learning rate; the default is four times the run's rate, or 5e-7 without a run.",
    ),
    word: list[str] = Option(
        [],
        metavar="WITHOUT=WITH",
        help="A pair of words that defines your own attribute, such as color=colour; repeatable.",
    ),
    prompts: Path | None = Option(
        None,
        help="File of prompts: a text file with one prompt per line, or CSV or JSONL with a column named prompt.",
    ),
    out: Path | None = Option(
        None,
        "--out",
        "-o",
        help="Folder for anchor.json and, with --mode train, for the model; replaces earlier results in this folder.",
    ),
    seed: int = Option(42, help="Seed of sampling and training."),
    attribute_file: options.AttributeFile = None,
    arm_file: options.ArmFile = None,
    model: options.RunModel = None,
    data: options.RunTable = None,
    trust_run: options.TrustRun = False,
    as_json: options.AsJson = False,
) -> None:
    """Move the rate of an attribute in a policy's answers to a target, and report side effects. No votes are needed."""
    targets = options.parse_targets(target)
    words = options.split_values(word, "--word", "color=colour")
    if words and len(targets) != 1:
        raise ConfigError(
            "--word defines one attribute, so it needs exactly one --target, with a name of your choice"
        )
    from badpo.anchoring.targets import Anchor, anchor_run, editor_for, require_own_folder

    if out is not None:
        require_own_folder(out, source)
    from badpo.anchoring.source import open_source
    from badpo.training.recipe import RunSources

    editor = editor_for(list(targets), words)
    sources = RunSources(model, data, trust_run)
    with options.terminal_progress(as_json) as progress, redirect_stdout(sys.stderr):
        opened = open_source(source, prompts, sources, steps, learning_rate)
        asked = Anchor(editor, targets, tolerance, rounds, seed)
        folder = out or opened.out
        result = anchor_run(opened, asked, mode, folder, progress)
    options.print_result(as_json, result, f"{options.format_lines(result)}\n\n{folder / 'anchor.json'}")
    if not result["converged"]:
        options.complain(result["reason"])
        raise typer.Exit(options.EXIT_FAILED)
