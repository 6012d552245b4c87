"""The commands that bring public corpora to a folder: `corpus multipref`, `corpus ultrafeedback`, `corpus style`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from badpo.cli_errors import reporting_errors
from badpo.cli_options import AsJson, Debug
from badpo.cli_printing import announce, as_lines, as_text, tell

if TYPE_CHECKING:
    from badpo.data.corpora.gates import GateRow

OutFolder = Annotated[Path, typer.Option("--out", "-o", help="Folder to write; made when it is not there.")]


@reporting_errors
def corpus_multipref(
    out: OutFolder,
    source: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="Rows of allenai/multipref; from the Hub if not given."),
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """MultiPref with its votes one by one, its evaluation prompts, and its statistics beside the published ones."""
    from badpo.data.corpora.corpus_files import write_multipref

    _tell(lambda: write_multipref(out, source), out, source, as_json)


@reporting_errors
def corpus_ultrafeedback(
    out: OutFolder,
    train: Annotated[
        Path | None,
        typer.Argument(metavar="[TRAIN]", help="Rows of split train_prefs; from the Hub if not given."),
    ] = None,
    test: Annotated[
        Path | None,
        typer.Argument(metavar="[TEST]", help="Rows of split test_prefs; from the Hub if not given."),
    ] = None,
    n: Annotated[int, typer.Option(min=1, help="Rows to draw before short responses are left out.")] = 8_000,
    signing: Annotated[int, typer.Option(min=1, help="Signing prompts.")] = 300,
    seed: Annotated[int, typer.Option(help="Seed of the draw and of the plan.")] = 0,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Signed-UltraFeedback: real pairs signed with names, 60 planted annotators, prompts to evaluate on."""
    from badpo.data.corpora.corpus_files import write_signed_ultrafeedback

    _tell(lambda: write_signed_ultrafeedback(out, train, test, n, signing, seed), out, train, as_json)


@reporting_errors
def corpus_style(
    out: OutFolder,
    n: Annotated[int, typer.Option(min=1, help="How many of the bundled pairs.")] = 7_177,
    seed: Annotated[int, typer.Option(help="Seed of leans and votes.")] = 0,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Votes of 40 planted annotators who lean toward length and Markdown, on the bundled answers."""
    from badpo.data.corpora.corpus_files import write_style_votes

    told = write_style_votes(out, n, seed)
    tell(as_json, told, f"{as_lines(told)}\n\n{out / 'judgments.parquet'}")


def _tell(write: Callable[[], tuple[GateRow, ...]], out: Path, source: Path | None, as_json: bool) -> None:
    """Write a corpus and print its statistics beside the published ones."""
    announce("from the Hub" if source is None else source, as_json)
    rows = write()
    lines = [f"{'statistic':<32} {'here':>9}  {'published':>9}"]
    for row in rows:
        found, published = as_text(row.found), as_text(row.published)
        lines.append(f"{row.name:<32} {found:>9}  {published:>9}  {'' if row.agrees else 'differs'}".rstrip())
    agree = f"{sum(row.agrees for row in rows)} of {len(rows)} agree with the published statistics"
    shown = "\n".join([*lines, "", agree, str(out / "card.md")])
    tell(as_json, {"out": out, "gate": [row.to_json() for row in rows]}, shown)
