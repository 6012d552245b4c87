"""Options that several commands take, and the reading of a table with them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from badpo.cli_parsing import parsed_attribute, parsed_pairs

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
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


def read_judgments(data: Path, attribute: Sequence[str] | None, column: Sequence[str] | None, **options):
    """The judgments in a file, as `badpo.data.judgments.Judgments.read` reads them with the options given."""
    from badpo.data.attributes import attribute_from_config
    from badpo.data.judgments import Judgments

    attributes = [attribute_from_config(parsed_attribute(text)) for text in attribute or []]
    return Judgments.read(data, columns=parsed_pairs(column, "--column"), attributes=attributes, **options)
