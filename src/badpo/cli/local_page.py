"""`badpo open`: the audit as a page on this machine, with a choice of columns, attributes and the length ratio.

The server listens on 127.0.0.1 and answers only requests with the secret token in the printed address. The forms on the
page contain all of the user's choices. The server keeps the table, the votes that it read last, and the attributes
measured on these votes. It writes no files.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock, Thread
from typing import TYPE_CHECKING

import typer
from typer import Option

from badpo import __version__
from badpo.cli.options import (
    AsJson,
    AttributeFile,
    DataArgument,
    announce,
    complain,
    convert_to_flags,
    print_result,
    report_errors,
)
from badpo.data.problems import ConfigError, DataError, as_argument, with_sides_exchanged

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.datastructures import QueryParams
    from starlette.requests import Request
    from starlette.responses import Response

    from badpo.data.judgments import Judgments, ReadingOptions

FIELDS = (
    *("prompt", "response_a", "response_b", "winner", "chosen", "rejected", "rating"),
    *("annotator", "annotator_class", "prompt_id", "comparison_id", "shown_first"),
)
RATIO = 1.5
_READING = ("columns", "winners", "annotators_missing", "repeated", "bad_rows", "layout")
_POLICY = (
    "default-src 'none'; style-src 'nonce-{0}'; script-src 'nonce-{0}'; img-src data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@report_errors
def open_table(
    data: DataArgument,
    attribute_file: AttributeFile = None,
    port: int = Option(0, min=0, max=65_535, help="Port on 127.0.0.1; by default, any free port."),
    no_browser: bool = Option(False, "--no-browser", help="Only print the address."),
    as_json: AsJson = False,
    *,
    reading: ReadingOptions,
) -> None:
    """Show the audit in your browser: choose columns, attributes and the length ratio. No data leave this machine."""
    import uvicorn

    from badpo.data.privacy import KEY_VARIABLE, known_key

    announce(data, as_json)
    # the command neither downloads a table nor creates a permanent pseudonym key
    os.environ["HF_HUB_OFFLINE"] = "1"
    if known_key() is None:
        os.environ[KEY_VARIABLE] = secrets.token_hex(32)
    token = secrets.token_urlsafe(32)
    app = local_app(OpenedTable(data, reading), token)
    config = uvicorn.Config(
        app, "127.0.0.1", port, log_config=None, access_log=False, timeout_graceful_shutdown=1
    )
    try:
        bound = config.bind_socket()
    except SystemExit:
        raise ConfigError(f"port {port} is in use; leave out --port to use a free port") from None
    bound.listen()
    address = f"http://127.0.0.1:{bound.getsockname()[1]}/{token}/"
    print_result(
        as_json,
        {"address": address},
        f"open {address}\nOnly this machine can open the address. Press Ctrl-C to end.",
    )
    with suppress(KeyboardInterrupt), TemporaryDirectory(prefix="badpo-") as folder:
        if not no_browser:
            # pass the address in a private file, because other users can see the arguments of a command
            page = Path(folder, "open.html")
            page.touch(0o600)
            page.write_text(f'<meta http-equiv="refresh" content="0; url={address}">', encoding="utf-8")
            Thread(target=typer.launch, args=[str(page)], daemon=True).start()
        uvicorn.Server(config).run(sockets=[bound])
    complain("ended; nothing was written")


@dataclass(frozen=True)
class Choices:
    """The user's choices on the page: reading options, attributes, and the length ratio."""

    reading: ReadingOptions
    ticked: tuple[str, ...]
    ratio: float = RATIO


class OpenedTable:
    """State of the page: the table, the votes that were read last, and the attributes measured on these votes."""

    def __init__(self, path: Path, reading: ReadingOptions):
        from badpo.data.attributes import describe_attributes
        from badpo.data.tables import read_table

        self.path, self.table = path, read_table(path, reading.get("bad_rows") == "drop")
        self.names = [str(name) for name in self.table.frame]
        simple = [row["type"] for row in describe_attributes() if row["example"] == row["type"]]
        self.built_in = self.offered = ["length", *simple]
        self.lock = Lock()
        self.first = Choices(reading, ("length", "markdown", "position"))
        self._read: tuple[ReadingOptions, list[str]] | None = None
        self._votes: Judgments | None = None
        self._measured: dict[str, Judgments] = {}

    def choices(self, form: QueryParams) -> Choices:
        """Read the fields of a form; ignore attributes that the page does not offer."""
        try:
            read, fix = json.loads(form["reading"]), json.loads(form.get("fix") or "{}")
            ratio = float(form.get("ratio", RATIO))
            is_known = read.keys() | fix.keys() <= {*_READING}
        except (AttributeError, KeyError, ValueError, RecursionError):
            is_known = False
        if not is_known:
            raise ConfigError("the form does not belong to this page; load the page again")
        columns = read.get("columns", {})
        recognized = self.columns(columns)
        changed = {
            ours: form[f"column {ours}"] or None
            for ours in FIELDS
            if form.get(f"column {ours}", recognized.get(ours, "")) != recognized.get(ours, "")
        }
        read |= {"columns": columns | changed} if changed else {}
        for name, value in fix.items():
            read[name] = {**read.get(name, {}), **value} if isinstance(value, dict) else value
        # before the table is read, the page offers no attributes
        ticks = form.getlist("attribute") if "ratio" in form else self.first.ticked
        return Choices(read, tuple(one for one in self.offered if one in ticks), ratio)

    def columns(self, chosen: Mapping[str, str | None]) -> dict[str, str]:
        """Return the chosen or recognized column of the table for each of badpo's column names."""
        from badpo.data.vocabulary import columns_named

        named = {ours: column for ours, column in chosen.items() if column}
        free = [name for name in self.names if name not in named.values()]
        return named | columns_named(free, [ours for ours in FIELDS if ours not in chosen])

    def votes(self, choices: Choices) -> Judgments:
        """Return the judgments; if the reading options or the ticked columns have changed, read the table again."""
        from badpo.data.judgments import Judgments
        from badpo.data.vocabulary import side_pairs

        columns = [one for one in choices.ticked if one.startswith("column:")]
        if self._votes is None or self._read != (choices.reading, columns):
            self._votes, self._measured = None, {}
            votes = Judgments.read(self.table, attributes=columns, **choices.reading)
            self._votes, self._read = votes, (choices.reading, columns)
            is_position_known = votes.votes["shown_first"].notna().any()
            self.offered = [one for one in self.built_in if one != "position" or is_position_known]
            for a, b in side_pairs(votes.votes.columns).items():
                parts = zip(a.split("_"), b.split("_"), strict=True)
                name = "_".join(part for part, other in parts if part == other)
                if not set(a) & set(",;"):  # commas and semicolons separate an option's values
                    self.offered.append(f"column:name={name},a={a},b={b}")
        return self._votes

    def attributes(self, choices: Choices) -> list[str]:
        """Format the ticked attributes as values of the option ``--attribute``."""
        ticked = [one for one in choices.ticked if one in self.offered]
        return [f"length:ratio={choices.ratio:g}" if one == "length" else one for one in ticked]

    def judgments(self, choices: Choices) -> Judgments:
        """Return the votes with the values of the ticked attributes; measure each attribute only once."""
        import numpy as np

        with self.lock:
            votes, attributes = self.votes(choices), self.attributes(choices)
            for text in attributes:
                if text not in self._measured:
                    self._measured[text] = votes.with_attributes(text)
            parts = [self._measured[text] for text in attributes]
        return replace(
            votes,
            attributes=tuple(part.attributes[0] for part in parts),
            delta=np.hstack([part.delta for part in parts]),
            missing=np.hstack([part.missing for part in parts]),
        )

    def mapping(self, choices: Choices) -> dict[str, object]:
        """Return the content of the page that describes the table: columns, first rows, questions, and problems."""
        from badpo.data.reading import rows_in_words

        try:
            with self.lock:
                votes = self.votes(choices)
        except DataError as error:
            problems, rows, is_read = error.problems, error.shown, False
            fix, turned, question, answers = error.fix, error.turned, error.question, error.answers
        else:
            pseudonyms = votes.annotators["pseudonym"] if votes.has_identities else None
            rows = rows_in_words(votes.votes, votes.comparisons, pseudonyms)
            problems, is_read = votes.findings, True
            question, answers = "", ()
            # ask the user to confirm labels whose sides badpo inferred only from their order
            by_order = [one.fix for one in problems if one.code == "N107" and one.fix]
            fix = with_sides_exchanged(by_order[0]) if by_order else {}
            winners = choices.reading.get("winners") or {}
            turned = [*by_order, with_sides_exchanged({"winners": winners})][0]
        return {
            "problems": problems,
            "rows": rows,
            "is_open": bool(fix) or not is_read,
            "question": question,
            "answers": answers,
            "fix": fix and json.dumps(fix),
            "flags": shlex.join(convert_to_flags(fix)),
            "turned": turned and json.dumps(turned),
            "fields": FIELDS,
            "names": self.names,
            "offered": self.offered,
            "recognized": self.columns(choices.reading.get("columns") or {}),
        }

    def findings(self, choices: Choices) -> dict[str, object]:
        """Return the content of the page that describes biases: findings, a chart, examples, and the audit command."""
        from badpo.auditing.annotators import AuditOptions
        from badpo.auditing.dependence import select_independent_votes
        from badpo.auditing.impact import choose_example_pairs
        from badpo.auditing.pool_bias import plain, pool_attributes
        from badpo.results.audit_findings import attribute_findings, pair_sentences
        from badpo.results.audit_json import AuditedBiases
        from badpo.results.audit_page import draw_bias_figure

        flags = [word for text in self.attributes(choices) for word in ("--attribute", text)]
        words = ["badpo", "audit", as_argument(self.path), *flags, *convert_to_flags(choices.reading)]
        content: dict[str, object] = {"command": shlex.join(words), "leans": None, "wrong": ""}
        content |= {"verdicts": [], "left_out": [], "examples": {}}
        if not flags:
            return content | {"wrong": "Tick an attribute."}
        try:
            judgments, left_out = select_independent_votes(self.judgments(choices))
        except (DataError, ConfigError) as error:
            return content | {"wrong": str(error)}
        configs = [{**one.config, "name": one.name} for one in judgments.attributes]
        options = AuditOptions()
        summary: AuditedBiases = {
            "attributes": plain(pool_attributes(judgments, {})),
            "pool": {},
            "settings": {"attributes": configs, "rho": options.rho, "fdr": options.fdr},
            "data": {
                "has_annotators": judgments.has_identities,
                "n_annotators": judgments.n_annotators,
            },
        }
        return content | {
            "examples": pair_sentences(summary, choose_example_pairs(judgments)),
            "left_out": [problem.what for problem in left_out],
            "verdicts": attribute_findings(summary),
            "leans": draw_bias_figure(summary),
        }

    def report(self, choices: Choices) -> str:
        """Return the whole audit as a page that the user may share."""
        from badpo.auditing.audit import audit

        return audit(self.judgments(choices), source=str(self.path))._html()


# -- the server ------------------------------------------------------------------------------------------------


def local_app(opened: OpenedTable, token: str) -> Starlette:
    """Create the web application; it answers only requests to its own host with the token at the start of the path."""
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.datastructures import QueryParams
    from starlette.requests import ClientDisconnect
    from starlette.responses import HTMLResponse, PlainTextResponse
    from starlette.routing import Route

    from badpo.results.formatting import page_templates, shown

    async def answer(request: Request) -> Response:
        path_token, _, part = request.path_params["path"].partition("/")
        host, port = request.scope["server"]
        is_here = request.headers.getlist("host") == [f"{host}:{port}"]
        is_known = secrets.compare_digest(path_token.encode(), token.encode())
        if not (is_here and is_known) or part not in ("", "found", "report"):
            return PlainTextResponse("403: open the address that badpo printed\n", 403, _HEADERS)
        try:
            form = QueryParams((await request.body()).decode("utf-8", "replace"))
            return await run_in_threadpool(page, part, form)
        except ClientDisconnect:  # the browser has closed the connection
            return PlainTextResponse("", 400, _HEADERS)
        except (ConfigError, DataError) as error:
            return PlainTextResponse(str(error), 400, _HEADERS)

    def page(part: str, form: QueryParams) -> Response:
        choices = opened.choices(form) if form else opened.first
        if part == "report":  # the report has a content security policy of its own
            return HTMLResponse(opened.report(choices), headers=_HEADERS)
        content = {} if part else opened.mapping(choices)
        if part or not content["is_open"]:
            content |= opened.findings(choices)
        nonce = secrets.token_urlsafe(16)
        content |= {"choices": choices, "state": json.dumps(choices.reading), "nonce": nonce}
        content |= {"name": shown(opened.path.name), "version": __version__}
        template = page_templates().get_template("open_found.jinja" if part else "open.html.jinja")
        headers = _HEADERS | {"Content-Security-Policy": _POLICY.format(nonce)}
        return HTMLResponse(template.render(content), headers=headers)

    return Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])])
