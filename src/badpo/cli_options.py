"""Options that several commands take, and the reading of a table with them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from badpo.cli_parsing import parsed_attribute, parsed_pairs

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
DataArgument = Annotated[Path, typer.Argument(help="Judgments: CSV, parquet, JSON or JSON lines.")]
AttributeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--attribute",
        metavar="NAME[:KEY=VALUE,...]",
        help="Declare an attribute, such as length:ratio=1.5; repeatable.",
    ),
]
ColumnOption = Annotated[
    list[str] | None,
    typer.Option(
        "--column", metavar="OURS=YOURS", help="Name a column, such as annotator=worker_id; repeatable."
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
AnnotatorsMissing = Annotated[
    str, typer.Option(help="What to do with votes without an annotator: error or drop.")
]
Repeated = Annotated[str, typer.Option(help="What to do with an annotator's repeated votes: all or last.")]
RunModel = Annotated[
    str | None,
    typer.Option(
        "--model", metavar="NAME", help="What the run started from, in place of what its recipe says."
    ),
]
RunTable = Annotated[
    str | None,
    typer.Option("--data", metavar="FILE", help="The run's table, in place of what its recipe says."),
]
RunCache = Annotated[
    str | None,
    typer.Option("--reference-cache", metavar="FOLDER", help="The cache, in place of what its recipe says."),
]
TrustRun = Annotated[
    bool, typer.Option("--trust-run", help="Take all that from the recipe of a run made elsewhere.")
]


def named(column: Sequence[str] | None, winner: Sequence[str] | None) -> dict[str, Any]:
    """What --column and --winner say, as the readers of a table take it."""
    return {"columns": parsed_pairs(column, "--column"), "winners": parsed_pairs(winner, "--winner")}


def declared(attribute: Sequence[str] | None) -> list:
    """The attributes of every --attribute."""
    from badpo.data.attributes import attribute_from_config

    return [attribute_from_config(parsed_attribute(text)) for text in attribute or ()]
