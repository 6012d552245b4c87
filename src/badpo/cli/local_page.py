"""`badpo open`: the audit as a page of this machine, where columns are picked and thresholds moved by eye.

One process answers, on 127.0.0.1 alone, and only who has the token of the printed address. The page's forms hold all
choices; kept here are the table, its votes as they were read last, and each attribute as it was measured last. What
takes long is done beside the rest, one after the other, unless who asked has gone. Nothing is written.
"""

import json
import os
import secrets
import shlex
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock, Thread
from typing import Any

import typer
from typer import Option

from badpo import __version__
from badpo.cli.options import (
    AsJson,
    AttributeFile,
    DataArgument,
    announce,
    complain,
    flags_of,
    reading_a_table,
    reporting_errors,
    tell,
)
from badpo.data.files import Json
from badpo.data.problems import ConfigError, DataError, as_argument, with_sides_exchanged

FIELDS = (
    *("prompt", "response_a", "response_b", "winner", "chosen", "rejected", "rating"),
    *("annotator", "annotator_class", "prompt_id", "comparison_id", "shown_first"),
)
RATIO = 1.5
_MAPPINGS = ("columns", "winners")
_CHOICES = ("annotators_missing", "repeated", "bad_rows", "layout")
_NOT_SAID: tuple[Any, ...] = ({}, None, "error", "all")  # options of reading that are as ever
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


@reporting_errors
@reading_a_table
def open_table(
    data: DataArgument,
    attribute_file: AttributeFile = None,
    port: int = Option(0, min=0, max=65_535, help="Port of 127.0.0.1; a free one when not given."),
    no_browser: bool = Option(False, "--no-browser", help="Only print the address."),
    as_json: AsJson = False,
    *,
    reading: dict,
) -> None:
    """The audit in your browser: pick columns, tick attributes, move the length ratio. Nothing leaves this machine."""
    import uvicorn

    from badpo.data.privacy import KEY_VARIABLE, known_key

    announce(data, as_json)
    # nothing is fetched where a name is not a file's, and no key is made where there is none
    os.environ["HF_HUB_OFFLINE"] = "1"
    if known_key() is None:
        os.environ[KEY_VARIABLE] = secrets.token_hex(32)
    token = secrets.token_urlsafe(32)
    app = local_app(Opened(data, reading), token)
    quiet: Json = {"log_config": None, "access_log": False}
    config = uvicorn.Config(app, "127.0.0.1", port, timeout_graceful_shutdown=1, **quiet)
    try:
        bound = config.bind_socket()
    except SystemExit:
        raise ConfigError(f"port {port} is taken; leave out --port for a free one") from None
    bound.listen()
    address = f"http://127.0.0.1:{bound.getsockname()[1]}/{token}/"
    tell(as_json, {"address": address}, f"open {address}\nonly this machine can; Ctrl-C ends it")
    with suppress(KeyboardInterrupt), TemporaryDirectory(prefix="badpo-") as folder:
        if not no_browser:
            # other users see the words of a command, but not into a folder of this user
            page = Path(folder, "open.html")
            page.touch(0o600)
            page.write_text(f'<meta http-equiv="refresh" content="0; url={address}">', encoding="utf-8")
            Thread(target=typer.launch, args=[str(page)], daemon=True).start()
        uvicorn.Server(config).run(sockets=[bound])
    complain("ended; nothing was written")


@dataclass(frozen=True)
class Asked:
    """What a form says: options of `Judgments.read` that are not the usual ones, attributes, and the length ratio."""

    reading: Json
    ticked: tuple[str, ...]
    ratio: float = RATIO


class Opened:
    """A table that was read once; votes and attributes are kept as they were read and measured last."""

    def __init__(self, path: Path, reading: Json):
        from badpo.data.attributes import describe_attributes
        from badpo.data.tables import read_table

        self.path, self.table = path, read_table(path, reading["bad_rows"] == "drop")
        self.names = [str(name) for name in self.table.frame]
        simple = [row["type"] for row in describe_attributes() if row["example"] == row["type"]]
        self.kinds = self.offered = ["length", *simple]
        self.quick, self.slow = Lock(), Lock()
        read = {name: value for name, value in reading.items() if value not in _NOT_SAID}
        self.first = Asked(read, ("length", "markdown", "position"))
        self._read: Any = None
        self._votes: Any = None
        self._measured: dict[str, Any] = {}

    def asked(self, form: Any) -> Asked:
        """What the fields of a form say; what they do not offer is not taken."""
        try:
            read, fix = _options_of(form["reading"]), _options_of(form.get("fix") or "{}")
            ratio = float(form.get("ratio", RATIO))
        except (KeyError, ValueError, RecursionError) as error:
            raise ConfigError("the form is not this page's; load the page again") from error
        columns = read.get("columns", {})
        taken = self.columns(columns)
        changed = {
            ours: form[f"column {ours}"] or None
            for ours in FIELDS
            if form.get(f"column {ours}", taken.get(ours, "")) != taken.get(ours, "")
        }
        read |= {"columns": columns | changed} if changed else {}
        for name, value in fix.items():
            read[name] = {**read.get(name, {}), **value} if isinstance(value, dict) else value
        # the page has no attributes before the table is read
        ticks = form.getlist("attribute") if "ratio" in form else self.first.ticked
        ticked = tuple(one for one in self.offered if one in ticks)
        return Asked(read, ticked, ratio)

    def columns(self, told: Mapping[str, str | None]) -> dict[str, str]:
        """Our names, and the columns that are read for them."""
        from badpo.data.cells import columns_named

        named = {ours: theirs for ours, theirs in told.items() if theirs}
        free = [name for name in self.names if name not in named.values()]
        return named | columns_named(free, [ours for ours in FIELDS if ours not in told])

    def votes(self, asked: Asked) -> Any:
        """The judgments, read again where the options or the columns that are ticked changed."""
        from badpo.data.cells import side_pairs
        from badpo.data.judgments import Judgments

        columns = [one for one in asked.ticked if one.startswith("column:")]
        if self._read != (asked.reading, columns):
            self._read = None
            self._votes = Judgments.read(self.table, attributes=columns, **asked.reading)
            self._read, self._measured = (asked.reading, columns), {}
            is_known = self._votes.votes["shown_first"].notna().any()
            self.offered = [one for one in self.kinds if one != "position" or is_known]
            for a, b in side_pairs(self._votes.votes.columns).items():
                parts = zip(a.split("_"), b.split("_"), strict=True)
                name = "_".join(part for part, other in parts if part == other)
                if not set(a) & set(",;"):  # which part the values of a flag
                    self.offered.append(f"column:name={name},a={a},b={b}")
        return self._votes

    def attributes(self, asked: Asked) -> list[str]:
        """What ``--attribute`` takes."""
        ticked = [one for one in asked.ticked if one in self.offered]
        return [f"length:ratio={asked.ratio:g}" if one == "length" else one for one in ticked]

    def judgments(self, asked: Asked) -> Any:
        """The judgments with the attributes that are ticked; of those only what changed is measured."""
        import numpy as np

        from badpo.data.attributes import as_attributes

        votes, attributes = self.votes(asked), as_attributes(self.attributes(asked))
        for one in attributes:
            known = self._measured.get(one.name)
            if known is None or known.attributes[0].config != one.config:
                self._measured[one.name] = votes.with_attributes([one])
        parts = [self._measured[one.name] for one in attributes]
        delta, missing = (
            np.hstack([vars(part)[name] for part in parts]) for name in ("delta", "missing")
        )
        return replace(votes, attributes=attributes, delta=delta, missing=missing)

    def command(self, asked: Asked) -> str:
        """The audit of this table with these choices, to be pasted."""
        flags = [word for text in self.attributes(asked) for word in ("--attribute", text)]
        return shlex.join(["badpo", "audit", as_argument(self.path), *flags, *flags_of(asked.reading)])

    def mapping(self, asked: Asked) -> Json:
        """What the page says of the reading: columns, rows as read, what to confirm, and what is wrong."""
        from badpo.data.reading import rows_in_words

        try:
            with self.quick:
                votes = self.votes(asked)
        except DataError as error:
            problems, rows, is_read = error.problems, error.shown, False
            fix, turned, question, answers = error.fix, error.turned, error.question, error.answers
        else:
            problems, rows, is_read = votes.findings, rows_in_words(vars(votes)), True
            question, answers = "", ()
            # a label that says its side by its order alone is confirmed first
            by_order = [one.fix for one in problems if one.code == "N107" and one.fix]
            fix = with_sides_exchanged(by_order[0]) if by_order else {}
            turned = [*by_order, with_sides_exchanged(asked.reading)][0]
        told: Json = {"problems": problems, "rows": rows, "is_open": bool(fix) or not is_read}
        told |= {"question": question, "answers": answers}
        told |= {"fix": fix and json.dumps(fix), "flags": shlex.join(flags_of(fix))}
        told |= {"turned": turned and json.dumps(turned), "fields": FIELDS, "names": self.names}
        told["offered"] = self.offered
        told["taken"] = self.columns(asked.reading.get("columns", {}))
        return told

    def found(self, asked: Asked, of_people: bool = False) -> Json:
        """What the page says of the leans: findings, a chart, and the pair of answers that shows each lean best.

        With ``of_people`` the findings tell how far annotators differ, which takes long.
        """
        from badpo.auditing.dependence import independent_votes, tie_effects
        from badpo.auditing.people import AuditOptions, Design, people_of
        from badpo.auditing.pool import plain, pool_attributes
        from badpo.auditing.worth import telling_pairs
        from badpo.results.audit_page import lean_figure
        from badpo.results.audit_verdicts import audit_labels, audit_verdicts, pair_sentences

        told: Json = {
            "command": self.command(asked),
            "verdicts": [],
            "leans": None,
            "wrong": "",
            "left_out": [],
        }
        if not self.attributes(asked):
            return told | {"wrong": "Tick an attribute."}
        try:
            with self.quick:
                whole = self.judgments(asked)
        except (DataError, ConfigError) as error:
            return told | {"wrong": str(error)}
        judgments, _, left_out = independent_votes(whole)
        configs = [{**one.config, "name": one.name} for one in judgments.attributes]
        options, pool, ties = AuditOptions(), {}, {}
        if of_people:
            pool = plain(people_of(judgments, Design(judgments), options).pool)
            ties = tie_effects(whole)
        summary: Json = {"attributes": plain(pool_attributes(judgments, ties)), "pool": pool}
        summary["settings"] = {"attributes": configs, "rho": options.rho, "fdr": options.fdr}
        summary["data"] = {
            "has_annotators": judgments.has_identities,
            "n_annotators": judgments.n_annotators,
        }
        examples = pair_sentences(summary, telling_pairs(judgments), exact=True)
        labels = audit_labels(summary)
        told["examples"] = {labels[name]: example for name, example in examples.items()}
        told["left_out"] = [problem.what for problem in left_out]
        return told | {"verdicts": audit_verdicts(summary), "leans": lean_figure(summary)}

    def report(self, asked: Asked) -> str:
        """The whole audit's page, which may be passed on."""
        from badpo.auditing.audit import audit

        with self.quick:
            judgments = self.judgments(asked)
        return audit(judgments, source=str(self.path))._html()


def _options_of(text: str) -> Json:
    """Options of `Judgments.read` in a field of a form; a `ValueError` if the page can have written no such field."""
    options = json.loads(text)
    if not isinstance(options, dict) or not options.keys() <= {*_MAPPINGS, *_CHOICES}:
        raise ValueError("other options")
    for name, value in options.items():
        texts = [*value, *value.values()] if name in _MAPPINGS and isinstance(value, dict) else [value]
        if any(not isinstance(one, str | None) for one in texts):
            raise ValueError(f"no value of {name}")
    return options


# -- the server ------------------------------------------------------------------------------------------------


def local_app(opened: Opened, token: str) -> Any:
    """The application; the path begins with the token, and the host is its own."""
    from anyio import from_thread
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.datastructures import QueryParams
    from starlette.responses import HTMLResponse, PlainTextResponse
    from starlette.routing import Route

    from badpo.results.words import page_templates, shown

    async def answer(request: Any) -> Any:
        given, _, part = request.path_params["path"].partition("/")
        host, port = request.scope["server"]
        is_here = request.headers.get("host") == f"{host}:{port}"
        is_known = secrets.compare_digest(given.encode(), token.encode())
        if not (is_here and is_known) or part not in ("", "found", "people", "report"):
            where = "403: open the address that badpo printed\n"
            return PlainTextResponse(where, 403, _HEADERS)
        form = QueryParams((await request.body()).decode("utf-8", "replace"))
        nonce = secrets.token_urlsafe(16)
        headers = _HEADERS | {"Content-Security-Policy": _POLICY.format(nonce)}
        try:
            return await run_in_threadpool(page, request, part, form, nonce, headers)
        except (ConfigError, DataError) as error:
            return PlainTextResponse(str(error), 400, headers)

    def page(request: Any, part: str, form: Any, nonce: str, headers: Json) -> Any:
        asked = opened.asked(form) if form else opened.first
        with opened.slow if part in ("people", "report") else nullcontext():
            if from_thread.run(request.is_disconnected):
                return PlainTextResponse("", headers=headers)
            if part == "report":  # that page has a policy of its own
                return HTMLResponse(opened.report(asked), headers=_HEADERS)
            told = {} if part else opened.mapping(asked)
            if part or not told["is_open"]:
                told |= opened.found(asked, part == "people")
        template = page_templates().get_template("open_found.jinja" if part else "open.html.jinja")
        told |= {
            "asked": asked,
            "state": json.dumps(asked.reading),
            "of_people": part == "people",
        }
        told |= {"name": shown(opened.path.name), "nonce": nonce, "version": __version__}
        return HTMLResponse(template.render(told), headers=headers)

    return Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])])
