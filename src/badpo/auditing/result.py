"""What an audit found, as tables, files and a page."""

import html
import json
import math
import operator
import os
import re
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from badpo.data.files import Json, appearing, locked, write_atomically
from badpo.data.privacy import FEWEST_ANNOTATORS
from badpo.data.problems import ConfigError, counted, refuse_other_types
from badpo.results.charts import Picture, picture
from badpo.results.words import decimal, interval_text

SCHEMA = "badpo.audit/1"
ANNOTATORS_FILE = "annotators.parquet"
ANNOTATORS_CSV = "annotators.csv"
SUMMARY_FILE = "audit.json"
REPORT_FILE = "report.html"
PEOPLE_FILE = "people.html"
REREAD_FILE = "reread.csv"
PEOPLE_SHEET = "people.xlsx"
_FIGURES = ("carrier_wins", "log_odds", "ci_low", "ci_high")
_ENDS = ("tau_low", "tau_high")
_POOL = {"name": "attribute", "n_cross": "n"}
_POOL |= {name: name for name in (*_FIGURES, "n_estimated", "tau")}
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


def bound_parts(text: str) -> tuple[str, ...]:
    """A bound such as "length.log_odds>0.7", and its attribute, figure, sign and number."""
    found = _CONDITION.fullmatch(text.strip())
    if found is None:
        form = 'write ATTRIBUTE.FIGURE>NUMBER in quotes, as in "length.log_odds>0.7"'
        raise ConfigError(f'bound "{text}": {form}')
    return text, *found.groups()


def audited_table(folder: Path) -> Json:
    """Source and number of annotators of the table whose audit a folder holds; empty if none can be read."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        data = json.loads((folder / SUMMARY_FILE).read_text(encoding="utf-8"))["data"]
        return {"source": str(data["source"]), "n_annotators": int(data["n_annotators"])}
    return {}


def audit_folder(path: str | os.PathLike) -> Path:
    """The folder that an audit is written into; a `ConfigError` where a file has that name."""
    refuse_other_types(folder=path)
    folder = Path(path).expanduser()
    if folder.exists() and not folder.is_dir():
        told = f"{path} is a file, and an audit is written into a folder"
        raise ConfigError(f"{told}; name another place, such as {folder.with_name('audit')}")
    return folder


def _write_text(path: str | os.PathLike, text: str, private: bool = False) -> None:
    """Write a file, which appears whole or not at all; a `ConfigError` where there can be none."""
    refuse_other_types(path=path)
    try:
        with appearing(path, private) as unfinished:
            unfinished.write_text(text, encoding="utf-8")
    except _NO_PLACE as error:
        told = f"{path} cannot be written ({error.strerror})"
        raise ConfigError(f"{told}; name a file in a folder of yours") from error


@dataclass(frozen=True, eq=False)
class AuditResult:
    """The finished audit.

    Attributes
    ----------
    summary : dict
        Everything except the per-annotator tables, as ``audit.json`` holds it; plain values only. Its counts and
        estimates are exact, so that single annotators can be computed from it: personal data.
    annotators : DataFrame
        One row for each annotator and attribute, in the order of the annotators' ids; `docs/audit.md` explains the
        columns. Estimates about people: treat it as personal data.
    reread : DataFrame
        The judgments that say most for each flag, with their texts: personal data.
    pairs : list of dict
        For each attribute the pair of answers that shows its lean best, in a few words.

    Examples
    --------
    >>> result = AuditResult({"schema": SCHEMA, "attributes": [{"name": "length", "odds": 2.5}]}, pd.DataFrame())
    >>> result.attributes["odds"].tolist()
    [2.5]
    """

    summary: Json
    annotators: pd.DataFrame
    reread: pd.DataFrame = field(default_factory=pd.DataFrame)
    pairs: list[Json] = field(default_factory=list)

    @property
    def attributes(self) -> pd.DataFrame:
        """One row for each attribute: the pool's log-odds with intervals; parts with parts of their own left out."""
        table = pd.DataFrame(self.summary["attributes"])
        return table[[name for name in table if not table[name].map(type).isin([dict, list]).any()]]

    @property
    def pool(self) -> pd.DataFrame:
        """One row for each attribute: the n votes whose sides differ, which side won them, the spread over annotators.

        ``ci_low`` and ``ci_high`` are of ``log_odds``, ``tau_low`` and ``tau_high`` of ``tau``, which all annotators
        with a lean give; ``n_estimated`` of them have enough votes for an estimate of their own.
        """
        rows = [
            row | dict(zip(_ENDS, row.get("tau_ci", ()), strict=False)) for row in self._rows.values()
        ]
        table = pd.DataFrame(rows, columns=[*_POOL, *_ENDS]).rename(columns=_POOL)
        return table.set_index("attribute").astype(dict.fromkeys((*_FIGURES, "tau", *_ENDS), float))

    @property
    def _rows(self) -> dict[str, Json]:
        """Each attribute's figures, those of the spread over annotators among them."""
        rows, spread = self.summary["attributes"], self.summary["pool"]
        return {row["name"]: row | spread.get(row["name"], {}) for row in rows}

    def plot(self, path: str | os.PathLike | None = None) -> Picture:
        """The chart of the page, which may be passed on: how often the side with each attribute wins.

        A notebook shows what is returned; ``path`` names a file to write, as SVG. A `ConfigError` says where the votes
        are of so few people that the page says nothing of any attribute.
        """
        from badpo.results.audit_page import lean_figure, shareable

        is_path = isinstance(path, str | os.PathLike)
        if path is not None and not (is_path and Path(path).suffix.lower() == ".svg"):
            told = "write plot('leans.svg'), which draws every attribute"
            raise ConfigError(f"plot takes a path that ends in .svg, not {str(path)!r}: {told}")
        figure = lean_figure(shareable(self.summary))
        if figure is None:
            few = f"fewer than {FEWEST_ANNOTATORS} people judged sides that differ, or chose one of them"
            raise ConfigError(f"no chart that may be passed on: {few}; the figures are in .pool")
        drawn = picture(figure.panels[0][1])
        if path is not None:
            _write_text(path, drawn.svg)
        return drawn

    @property
    def checks(self) -> Json:
        """The estimator used and why, the assignment of comparisons to annotators, components, anchors."""
        return self.summary["checks"]

    @property
    def warnings(self) -> list[Json]:
        """Problems and notices, each with code, what, where, remedy, severity and count."""
        return self.summary["warnings"]

    def to_json(self, path: str | os.PathLike) -> None:
        """Write the summary, for its owner alone; the file appears whole or not at all."""
        text = json.dumps(self.summary, indent=2, ensure_ascii=False, allow_nan=False)
        _write_text(path, f"{text}\n", private=True)

    def to_html(self, path: str | os.PathLike, examples: bool = False) -> None:
        """Write the page that may be passed on: one file that needs no network and no script.

        With ``examples`` the page has for each attribute a pair of answers that five people or more judged, in words of
        the table.
        """
        _write_text(path, self._html(examples))

    def people_to_html(self, path: str | os.PathLike, names: Mapping[str, str] | None = None) -> None:
        """Write the page about individual annotators: personal data, for its owner alone; ``names`` by pseudonym."""
        from badpo.results.audit_page import people_html

        _write_text(path, people_html(self.summary, self.annotators, names), private=True)

    def write(self, folder: str | os.PathLike, examples: bool = False) -> Path:
        """Write the audit into a folder, which is made when it is not there.

        ``report.html`` may be passed on; every other file is about single people, and is its owner's alone. Files of
        an earlier audit are replaced, and what it said of single people is removed. ``audit.json`` is removed first and
        appears last, so that a folder that holds it holds one audit. ``examples`` is that of `to_html`.

        Returns
        -------
        Path
            The page.
        """
        from badpo.data.tables import write_csv

        folder = audit_folder(folder)
        with locked(folder, wait=True), ExitStack() as files:
            if not folder.exists():
                # no git takes along what is about single people; a folder of somebody's own keeps its rules
                write_atomically(folder / ".gitignore", b"*\n", private=True)

            def begun(name: str) -> Path:
                return files.enter_context(appearing(folder / name, private=name != REPORT_FILE))

            # what is begun first appears last, when everything is written
            self.to_json(begun(SUMMARY_FILE))
            self.to_html(begun(REPORT_FILE), examples)
            write_csv(self.annotators, begun(ANNOTATORS_CSV))
            self.annotators.to_parquet(begun(ANNOTATORS_FILE), index=False)
            for name in (SUMMARY_FILE, PEOPLE_FILE, PEOPLE_SHEET, REREAD_FILE):
                (folder / name).unlink(missing_ok=True)
        return folder / REPORT_FILE

    def beyond(self, bounds: Sequence[str]) -> list[str]:
        """Those of the ``bounds``, such as "length.log_odds>0.7", that are passed, with figure and interval.

        A bound names an attribute and a figure of the attribute's row, or of the pool's. Log-odds are infinite where
        every vote went one way; a `ConfigError` tells which bounds name a figure that is not known, since they test
        nothing.
        """
        several = [bounds] if isinstance(bounds, str) else bounds
        return [told for bound in several if (told := self._passed(*bound_parts(bound)))]

    def _passed(self, text: str, name: str, figure: str, sign: str, bound: str) -> str:
        rows = self._rows
        row = rows.get(name, {})
        if row.get("n_cross") and row["log_odds"] is None and row["interval"] != "too wide":
            row["log_odds"] = math.inf if row["carrier_wins"] else -math.inf
        figures = [key for key, value in row.items() if type(value) in (int, float)]
        for given, known in ((name, rows), (figure, figures)):
            if given not in known:
                there = f"this audit knows no {given}; it knows {', '.join(known)}"
                raise ConfigError(f'bound "{text}" would test nothing: {there}')
        value, ends = row[figure], row.get(f"{figure}_ci")
        if figure == "log_odds":
            ends = row["ci_low"], row["ci_high"]
        passed = _SIGNS[sign](value, float(bound))
        interval = f", 95 % interval {interval_text(*ends)}" if ends else ""
        return f"{text}: {figure} is {decimal(value)}{interval}" * passed

    def _html(self, examples: bool = False) -> str:
        from badpo.results.audit_page import audit_html

        return audit_html(self.summary, self.pairs if examples else ())

    def _repr_html_(self) -> str:
        """The page in a frame of its own, so that its style does not touch the notebook's."""
        # there a link of the page leads into the page, and not to the notebook
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
        from badpo.results.audit_verdicts import audit_verdicts

        data = self.summary["data"]
        votes = counted(data["n_judgments"], "judgment")
        votes += f" by {counted(data['n_annotators'], 'annotator')}" * data["has_annotators"]
        table = self.pool.to_string(float_format="{:.2f}".format)
        told = [f"{one.title}: {one.sentences[0][1]}" for one in audit_verdicts(self.summary)]
        then = "next: .plot(), .pool, .annotators; print() for all that was found; .write('audit') for the page"
        steps = (textwrap.fill(text, 100, subsequent_indent="  ") for text in told)
        return "\n".join([f"AuditResult: {votes}", table, *steps, then])
