"""The command that chooses where an attribute's rate ends: `anchor`."""

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Literal

import typer
from typer import Argument, Option

from badpo.cli.options import (
    EXIT_FAILED,
    ArmFile,
    AsJson,
    AttributeFile,
    RunModel,
    RunTable,
    TrustRun,
    as_lines,
    complain,
    parted,
    reporting_errors,
    stopping_whole,
    tell,
    terminal_progress,
)
from badpo.data.problems import ConfigError

EXAMPLE = "woman=0.5"


@reporting_errors
@stopping_whole("stopped; finished rounds are kept; go on with: {again}")
def anchor(
    source: str = Argument(
        ..., metavar="RUN_OR_MODEL", help="A run folder, a model folder or a name on the Hub."
    ),
    target: list[str] = Option(
        [],
        metavar="ATTRIBUTE=RATE",
        help="Where a rate is to end, such as woman=0.5; repeatable.",
    ),
    mode: Literal["sample", "train"] = Option(
        "sample", help="Reweight while sampling, or teach the policy the tilt itself."
    ),
    tolerance: float = Option(
        0.03,
        min=0,
        max=1,
        help="Largest distance of a rate from its target; beyond it the exit status is 1.",
    ),
    rounds: int = Option(4, min=1, metavar="N", help="With train: most rounds of the calibration."),
    steps: int | None = Option(None, metavar="N", help="With train: optimizer steps of a round."),
    learning_rate: float | None = Option(
        None,
        help="With train: peak rate. Unless given, four times the source's own; 5e-7 for a model without a run.",
    ),
    word: list[str] = Option(
        [],
        metavar="WITHOUT=WITH",
        help="A pair of words for a target on an attribute of your own, such as color=colour; repeatable.",
    ),
    prompts: Path | None = Option(
        None, help="Questions of your own: one a line, or a column prompt of CSV or JSONL."
    ),
    judge: str | None = Option(
        None,
        metavar="MODEL",
        help="A reward model, its folder or name on the Hub, to score the answers with.",
    ),
    out: Path | None = Option(
        None,
        "--out",
        "-o",
        help="Folder of the result alone: anchor.json, and the model with train; what it held is replaced.",
    ),
    seed: int = Option(42, help="Seed of the answers and of the training."),
    attribute_file: AttributeFile = None,
    arm_file: ArmFile = None,
    model: RunModel = None,
    data: RunTable = None,
    trust_run: TrustRun = False,
    as_json: AsJson = False,
) -> None:
    """Choose where a policy's attribute rate ends, get it there, and see what else moved. No votes needed."""
    targets = parsed_targets(target)
    words = word_pairs(word, len(targets))
    from badpo.anchoring.anchor import Anchor, anchor_run, editor_for, require_own_folder

    if out is not None:
        require_own_folder(out, source)
    from badpo.anchoring.source import open_source
    from badpo.training.recipe import RunSources

    editor = editor_for(list(targets), words)
    sources = RunSources(model, data, trust_run)
    stage = {"max_steps": steps, "learning_rate": learning_rate}
    given = {name: value for name, value in stage.items() if value is not None}
    with terminal_progress(as_json) as progress, redirect_stdout(sys.stderr):
        opened = open_source(source, prompts, sources, **given)
        asked = Anchor(editor, targets, tolerance, rounds, seed, judge)
        folder = out or opened.out
        result = anchor_run(opened, asked, mode, folder, progress)
    tell(as_json, result, f"{as_lines(result)}\n\n{folder / 'anchor.json'}")
    if not result["converged"]:
        complain(result["reason"])
        raise typer.Exit(EXIT_FAILED)


def parsed_targets(texts: Sequence[str]) -> dict[str, float]:
    """Attribute and rate of every --target; a `ConfigError` where a rate is none or an attribute has two."""
    if not texts:
        raise ConfigError(f"nothing to anchor: give --target ATTRIBUTE=RATE, as in --target {EXAMPLE}")
    targets: dict[str, float] = {}
    for name, value in parted(texts, "--target", EXAMPLE):
        if name in targets:
            raise ConfigError(f"--target {name} is given twice; every attribute has one target")
        if name == "length":
            raise ConfigError(
                "length: no share of longer answers is fair, so there is no rate to anchor at. To keep answers about "
                "as long as the reference's, train with badpo train --attribute length; the run's report says how far "
                "the length of the answers moved"
            )
        try:
            targets[name] = float(value)
        except ValueError:
            raise ConfigError(
                f"--target {name}={value}: the rate is no number, as in --target {EXAMPLE}"
            ) from None
        if not 0 < targets[name] < 1:
            raise ConfigError(
                f"--target {name}={value}: a rate must lie strictly between 0 and 1; no finite tilt reaches 0 or 1. "
                "To keep an attribute out altogether, forbid it when decoding"
            )
    return targets


def word_pairs(texts: Sequence[str], n_targets: int = 1) -> list[tuple[str, str]]:
    """The pairs of every --word."""
    if texts and n_targets != 1:
        raise ConfigError(
            "--word makes one attribute, so it takes one --target, with a name of your choice"
        )
    return parted(texts, "--word", "color=colour")
