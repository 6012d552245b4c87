"""The result of an audit, as tables, files and a report page."""

import html
import json
import math
import operator
import os
import re
import textwrap
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, TypedDict

import pandas as pd

from badpo.data.files import appearing, locked, write_atomically
from badpo.data.privacy import FEWEST_ANNOTATORS
from badpo.data.problems import ConfigError, counted, refuse_other_types
from badpo.results.audit_json import AuditSummary, Checks, ExamplePair, ProblemRow
from badpo.results.charts import Picture, picture
from badpo.results.formatting import decimal, interval_text

SCHEMA = "badpo.audit/1"
ANNOTATORS_FILE = "annotators.parquet"
ANNOTATORS_CSV = "annotators.csv"
SUMMARY_FILE = "audit.json"
REPORT_FILE = "report.html"
PEOPLE_FILE = "people.html"
REREAD_FILE = "reread.csv"
PEOPLE_TABLE = "people.csv"
_NOTEBOOK_HEIGHT = 700
_CONDITION = re.compile(r"(.+)\.(\w+)\s*([<>]=?)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)", re.I)
_NO_PLACE = (
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)
_SIGNS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}


def split_bound(text: str) -> tuple[str, ...]:
    """Split a bound such as "length.log_odds>0.7" into its text, attribute, figure, comparison operator and number."""
    match = _CONDITION.fullmatch(text.strip())
    if match is None:
        form = 'write ATTRIBUTE.FIGURE>NUMBER in quotes, as in "length.log_odds>0.7"'
        raise ConfigError(f'bound "{text}": {form}')
    return text, *match.groups()


class AuditedTable(TypedDict, total=False):
    """Facts about an earlier audit: where the votes came from and how many annotators there were.

    The mapping is empty if the folder contains no audit.
    """

    source: str
    n_annotators: int


def read_audited_table(folder: Path) -> AuditedTable:
    """Read facts about an earlier audit from a folder; return an empty mapping if the audit cannot be read."""
    with suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
        data = json.loads((folder / SUMMARY_FILE).read_text(encoding="utf-8"))["data"]
        return {"source": str(data["source"]), "n_annotators": int(data["n_annotators"])}
    return {}


def _refuse_bound(text: str, wanted: str, known: Collection[str]) -> NoReturn:
    problem = f"this audit has no {wanted}; it has {', '.join(known)}"
    raise ConfigError(f'bound "{text}" would test nothing: {problem}')


def audit_folder(path: str | os.PathLike[str]) -> Path:
    """Return the output folder of the audit; raise `ConfigError` if a file with the folder's name exists."""
    refuse_other_types(folder=path)
    folder = Path(path).expanduser()
    if os.path.lexists(folder) and not folder.is_dir():
        problem = f"{path} is a file or a broken link, but an audit needs a folder"
        raise ConfigError(f"{problem}; name another folder, such as {folder.with_name('audit')}")
    return folder


def _write_text(path: str | os.PathLike[str], text: str, private: bool = False) -> None:
    """Write a file atomically; raise `ConfigError` if the file cannot be written."""
    refuse_other_types(path=path)
    try:
        with appearing(path, private) as unfinished:
            unfinished.write_text(text, encoding="utf-8")
    except _NO_PLACE as error:
        problem = f"{path} cannot be written ({error.strerror})"
        raise ConfigError(f"{problem}; name a file in a folder that you can write to") from error


@dataclass(frozen=True, eq=False)
class AuditResult:
    """The finished audit.

    Attributes
    ----------
    summary : dict
        Content of ``audit.json`` as plain Python values: everything except the tables with one row per annotator.
        Counts and estimates are exact, so readers may be able to derive the votes of individual annotators. Treat the
        summary as personal data.
    annotators : DataFrame
        One row for each annotator and attribute, sorted by annotator; `docs/audit.md` explains the columns. The table
        describes individual people. Treat the table as personal data.
    reread : DataFrame
        Judgments with the strongest evidence for each flag, with the texts. Treat the table as personal data.
    pairs : list of dict
        For each attribute, short excerpts of the pair of responses that illustrates the bias best.

    Examples
    --------
    >>> result = AuditResult({"schema": SCHEMA, "attributes": [{"name": "length", "odds": 2.5}]}, pd.DataFrame())
    >>> result.attributes["odds"].tolist()
    [2.5]
    """

    summary: AuditSummary
    annotators: pd.DataFrame
    reread: pd.DataFrame = field(default_factory=pd.DataFrame)
    pairs: list[ExamplePair] = field(default_factory=list)

    @property
    def attributes(self) -> pd.DataFrame:
        """One row for each attribute with the pool's log-odds and intervals, without nested values."""
        table = pd.DataFrame(self.summary["attributes"])
        return table[[name for name in table if not table[name].map(type).isin([dict, list]).any()]]

    @property
    def pool(self) -> pd.DataFrame:
        """One row for each attribute: number of votes whose sides differ, win rate, log-odds, and tau.

        ``ci_low`` and ``ci_high`` are the limits of the 95 % confidence interval of ``log_odds``; ``tau_low`` and
        ``tau_high`` are the limits for ``tau``. ``n_estimated`` is the number of annotators with enough votes for an
        individual estimate.
        """
        pool = self.summary["pool"]
        rows = [
            {
                "attribute": row["name"],
                "n": row["n_cross"],
                "win_rate": row["win_rate"],
                "log_odds": row["log_odds"],
                "ci_low": row["ci_low"],
                "ci_high": row["ci_high"],
                "n_estimated": pool[row["name"]]["n_estimated"],
                "tau": pool[row["name"]]["tau"],
                "tau_low": pool[row["name"]]["tau_ci"][0],
                "tau_high": pool[row["name"]]["tau_ci"][1],
            }
            for row in self.summary["attributes"]
        ]
        estimates = "win_rate", "log_odds", "ci_low", "ci_high", "tau", "tau_low", "tau_high"
        return pd.DataFrame(rows).set_index("attribute").astype(dict.fromkeys(estimates, float))

    def plot(self, path: str | os.PathLike[str] | None = None) -> Picture:
        """Draw the shareable chart of the report: how often the response with each attribute wins.

        Notebooks display the returned picture. If ``path`` is given, the method also writes an SVG file. If too few
        people voted for the report to show any attribute, the method raises `ConfigError`.
        """
        from badpo.results.audit_page import draw_bias_figure, shareable

        is_path = isinstance(path, str | os.PathLike)
        if path is not None and not (is_path and Path(path).suffix.lower() == ".svg"):
            remedy = "write plot('bias.svg'), which draws every attribute"
            raise ConfigError(f"plot needs a path that ends in .svg, not {str(path)!r}: {remedy}")
        figure = draw_bias_figure(shareable(self.summary))
        if figure is None:
            few = f"fewer than {FEWEST_ANNOTATORS} people judged sides that differ, or chose one of the sides"
            raise ConfigError(f"there is no shareable chart: {few}; the figures are in .pool")
        chart = picture(figure.panels[0][1])
        if path is not None:
            _write_text(path, chart.svg)
        return chart

    @property
    def checks(self) -> Checks:
        """Checks of the audit: estimator, assignment of comparisons, groups of annotators, anchors and reliability."""
        return self.summary["checks"]

    @property
    def warnings(self) -> list[ProblemRow]:
        """Problems and notices, each with the keys code, what, where, remedy, severity and count."""
        return self.summary["warnings"]

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write the summary atomically to a file that only its owner can read."""
        text = json.dumps(self.summary, indent=2, ensure_ascii=False, allow_nan=False)
        _write_text(path, f"{text}\n", private=True)

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write the shareable report page, a single file without scripts that works offline."""
        _write_text(path, self._html())

    def people_to_html(
        self, path: str | os.PathLike[str], names: Mapping[str, str] | None = None
    ) -> None:
        """Write the page about individual annotators to a file that only its owner can read.

        The page is personal data. ``names`` maps pseudonyms to the names that the page shows.
        """
        from badpo.results.audit_page import people_html

        _write_text(path, people_html(self.summary, self.annotators, names), private=True)

    def write(self, folder: str | os.PathLike[str]) -> Path:
        """Write the audit to a folder, and create the folder if needed.

        ``report.html`` may be shared. All other files of an audit are about individual people, and only the owner of
        the files can read them. The method replaces the files of an earlier audit, and removes earlier pages and tables
        about individual people. ``audit.json`` is removed first and written last, so a folder with ``audit.json``
        contains one complete audit.

        Returns
        -------
        Path
            Path of the report page.
        """
        from badpo.data.tables import write_csv

        folder = audit_folder(folder)
        with locked(folder, wait=True), ExitStack() as files:
            # .gitignore keeps data about individual people out of git; a folder with other files gets no .gitignore
            if all(path.name.endswith("-.gitignore") for path in folder.glob("*")):
                write_atomically(folder / ".gitignore", b"*\n", private=True)

            def start(name: str) -> Path:
                return files.enter_context(appearing(folder / name, private=name != REPORT_FILE))

            # The file created first is renamed last, after all other files have been written.
            self.to_json(start(SUMMARY_FILE))
            self.to_html(start(REPORT_FILE))
            write_csv(self.annotators, start(ANNOTATORS_CSV))
            self.annotators.to_parquet(start(ANNOTATORS_FILE), index=False)
            for name in (SUMMARY_FILE, PEOPLE_FILE, PEOPLE_TABLE, REREAD_FILE):
                (folder / name).unlink(missing_ok=True)
        return folder / REPORT_FILE

    def beyond(self, bounds: Sequence[str]) -> list[str]:
        """Return a message for each of the ``bounds``, such as "length.log_odds>0.7", that the audit exceeds.

        A bound names an attribute and a figure of this attribute in the parts ``attributes`` or ``pool`` of audit.json.
        Log-odds are infinite if all votes are for one side. If a bound names an attribute or a figure that the audit
        does not contain, the method raises `ConfigError`.
        """
        several = [bounds] if isinstance(bounds, str) else bounds
        return [message for bound in several if (message := self._report_exceeded(*split_bound(bound)))]

    def _report_exceeded(self, text: str, name: str, figure: str, sign: str, bound: str) -> str:
        """Return a message if the figure exceeds the bound, and an empty string if it does not."""
        rows = {row["name"]: row for row in self.summary["attributes"]}
        if name not in rows:
            _refuse_bound(text, name, rows)
        row, pool = rows[name], self.summary["pool"][name]
        figures = {
            key: value
            for key, value in {**row, **pool}.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
        if row["n_cross"] and row["log_odds"] is None and row["interval"] != "too wide":
            figures["log_odds"] = math.inf if row["win_rate"] else -math.inf
        if figure not in figures:
            _refuse_bound(text, figure, figures)
        if not _SIGNS[sign](figures[figure], float(bound)):
            return ""
        intervals = {"log_odds": [row["ci_low"], row["ci_high"]], "tau": pool["tau_ci"]}
        intervals["shared_bias"] = [*(pool["shared_bias_ci"] or ())]
        ends = intervals.get(figure)
        interval = f", 95 % confidence interval {interval_text(ends[0], ends[1])}" if ends else ""
        return f"{text}: {figure} is {decimal(figures[figure])}{interval}"

    def _html(self) -> str:
        from badpo.results.audit_page import audit_html

        return audit_html(self.summary)

    def _repr_html_(self) -> str:
        """Show the report page in an iframe, so that the style of the page does not affect the notebook."""
        # This base URL makes links within the report page lead to the page instead of the notebook.
        inside = self._html().replace("<head>", '<head><base href="about:srcdoc">', 1)
        page = html.escape(inside, quote=True)
        return (
            f'<iframe sandbox srcdoc="{page}" title="annotator audit" '
            f'style="width:100%;height:{_NOTEBOOK_HEIGHT}px;border:0"></iframe>'
        )

    def __str__(self) -> str:
        from badpo.results.audit_page import audit_table

        return audit_table(self.summary, self.pairs)

    def __repr__(self) -> str:
        from badpo.results.audit_findings import attribute_findings

        data = self.summary["data"]
        votes = counted(data["n_judgments"], "judgment")
        votes += f" by {counted(data['n_annotators'], 'annotator')}" * data["has_annotators"]
        table = self.pool.to_string(float_format="{:.2f}".format)
        findings = [f"{one.title}: {one.sentences[0][1]}" for one in attribute_findings(self.summary)]
        then = "next: .plot(), .pool, .annotators; print() for all findings; .write('audit') for the report page"
        steps = (textwrap.fill(text, 100, subsequent_indent="  ") for text in findings)
        return "\n".join([f"AuditResult: {votes}", table, *steps, then])
