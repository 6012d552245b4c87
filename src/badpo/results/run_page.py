"""One page about trained runs, drawn from their folders: verdicts, a table, charts, limits and provenance."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from badpo import __version__
from badpo.results.anchor_text import anchor_sentences
from badpo.results.figures import figures
from badpo.results.labels import DPO, REFERENCE, arm_label, decimal, percent, shown, signed
from badpo.results.pages import page_templates, write_whole
from badpo.results.readings import Estimate, estimate, gap, kl, removal, votes_minus_ceiling
from badpo.results.run_files import Environment, MeasuredRuns, read_suite
from badpo.results.verdicts import Quantity, attribute_labels, limits, quantities, verdicts

_KEY = (
    (
        "removed",
        "share of DPO\u2019s shift from the reference that the arm does not make; 100 % is the reference",
    ),
    ("log-odds", "distance of the rate from the reference\u2019s, in log-odds; zero is the reference"),
    ("distance", "the mean minus the reference\u2019s"),
    ("gap", "held-out accuracy where any attribute differs, minus accuracy where none does"),
    (
        "votes",
        "held-out votes predicted minus the planted ceiling, on the attribute that falls furthest short",
    ),
    ("KL", "distance from the reference in nats per token"),
)
_KEY_PACKAGES = ("ba-dpo", "torch", "transformers", "trl", "peft", "accelerate", "numpy")


@dataclass(frozen=True)
class SummaryCell:
    """A value of the summary table and half of its 95 % interval; empty where it does not apply or is not known."""

    value: str = ""
    half: str = ""
    starts_group: bool = False


@dataclass(frozen=True)
class SummaryTable:
    """One row per arm: its name and its cells, under groups of columns; ``key`` says what the columns mean."""

    groups: Sequence[tuple[str, tuple[str, ...]]]
    rows: Sequence[tuple[str, list[SummaryCell]]]
    key: Sequence[tuple[str, str]]


def write_report(sources: Path | Sequence[Path], page: Path) -> Path:
    """Write one HTML page about the runs in some folders and return its path.

    The page needs no network and no script, follows a light or a dark system and prints. It names no annotator. Raises
    `ConfigError` where no measured run was found, or a file in a run folder cannot be read.
    """
    return write_whole(report_html(read_suite(sources)), page)


def report_html(suite: MeasuredRuns) -> str:
    """The page about a suite as HTML text."""
    return (
        page_templates()
        .get_template("page.html.jinja")
        .render(
            name=shown(suite.name),
            facts=_facts(suite),
            verdicts=verdicts(suite),
            anchors=anchor_sentences(suite),
            summary=summary_table(suite),
            figures=figures(suite),
            limits=limits(suite),
            unmeasured=[shown(name) for name in suite.unmeasured],
            provenance=provenance(suite),
            settings=settings(suite),
            version=__version__,
        )
    )


def summary_table(suite: MeasuredRuns) -> SummaryTable:
    """The readings of every arm side by side; a dash where something was not measured, nothing where none applies."""
    found = quantities(suite)
    has_ceiling = any(run.readouts.ceiling for run in suite.runs)
    names: dict[bool, tuple[str, ...]] = {
        True: ("rate", "removed", "log-odds"),
        False: ("mean", "removed", "distance"),
    }
    groups = [(quantity.symbol, names[quantity.is_rate]) for quantity in found]
    groups.append(("all attributes", ("gap", *["votes"] * has_ceiling, "KL")))
    rows = []
    for arm in suite.arms:
        cells = [cell for quantity in found for cell in _quantity_cells(suite, arm, quantity)]
        rows.append((arm_label(arm), cells + _shared_cells(suite, arm, has_ceiling)))
    over = f"over {len(suite.seeds)} seeds" if len(suite.seeds) > 1 else "over the prompts measured"
    columns = {name for _, names in groups for name in names}
    key = [(term, meaning) for term, meaning in _KEY if term in columns]
    return SummaryTable(groups, rows, [("\u00b1", f"half of the 95 % interval, {over}"), *key])


def provenance(suite: MeasuredRuns) -> list[tuple[str, str]]:
    """What the runs were made with, as names and values: seeds, versions, data, command."""
    unknown = Environment()
    made = next((run.environment for run in suite.runs if run.environment != unknown), unknown)
    versions = [f"{name} {made.packages[name]}" for name in _KEY_PACKAGES if name in made.packages]
    fingerprints = sorted({str(run.bias.extra.data) for run in suite.runs if run.bias.extra.data})
    command = " ".join(_without_folders(word) for word in (made.command or "").split())
    facts = [
        ("Runs", ", ".join(shown(run.folder.name) for run in suite.runs)),
        ("Training seeds", ", ".join(map(str, suite.seeds))),
        ("Data fingerprint", ", ".join(fingerprints)),
        ("Command", shown(command, 400)),
        ("Versions", ", ".join(versions)),
        ("Python", f"{made.python}, {made.platform}".strip(", ")),
        ("Page written by", f"badpo {__version__}"),
    ]
    return [(name, value or "not recorded") for name, value in facts]


def settings(suite: MeasuredRuns) -> list[tuple[str, str]]:
    """The settings of the first trained run; of a path only its last part is shown, of annotators their number."""
    config = next((run.config for run in suite.runs if run.config and run.arm != REFERENCE), {})
    return [
        (shown(str(key)), shown(_without_folders(_without_names(value)), 200))
        for key, value in config.items()
    ]


def _facts(suite: MeasuredRuns) -> str:
    arms = [arm_label(arm) for arm in suite.arms if arm != REFERENCE]
    seeds = ", ".join(map(str, suite.seeds))
    parts = [
        ", ".join(arms) or "the reference alone",
        f"{len(suite.seeds)} seeds ({seeds})" if len(suite.seeds) > 1 else f"seed {seeds}" if seeds else "",
        f"attributes: {', '.join(attribute_labels(suite).values())}" if suite.attributes else "",
    ]
    return " \u00b7 ".join(part for part in parts if part)


def _quantity_cells(suite: MeasuredRuns, arm: str, quantity: Quantity) -> list[SummaryCell]:
    value = replace(_cell(estimate(suite, arm, quantity.read), quantity.number), starts_group=True)
    if arm == REFERENCE:
        return [value, SummaryCell(), SummaryCell()]
    found = removal(suite, arm, quantity.read, quantity.is_rate)
    share = SummaryCell() if arm == DPO else _cell(found.share, percent)
    return [value, share, _cell(found.distance, quantity.difference)]


def _shared_cells(suite: MeasuredRuns, arm: str, has_ceiling: bool) -> list[SummaryCell]:
    if arm == REFERENCE:
        return [SummaryCell(starts_group=True), *[SummaryCell()] * (2 if has_ceiling else 1)]
    gaps = (estimate(suite, arm, gap(name)) for name in ("any", *suite.attributes))
    votes = [_cell(_worst_votes(suite, arm), lambda value: signed(value, 3))] if has_ceiling else []
    held_out = _cell(next(filter(None, gaps), None), lambda value: signed(value, 3))
    divergence = _cell(estimate(suite, arm, kl), lambda value: decimal(value, 3))
    return [replace(held_out, starts_group=True), *votes, divergence]


def _worst_votes(suite: MeasuredRuns, arm: str) -> Estimate | None:
    """Votes minus ceiling on the attribute where the arm falls furthest short."""
    found = [estimate(suite, arm, votes_minus_ceiling(name, "all")) for name in suite.attributes]
    return min((reading for reading in found if reading), key=lambda reading: reading.value, default=None)


def _cell(found: Estimate | None, number: Callable[[float], str]) -> SummaryCell:
    if found is None:
        return SummaryCell(decimal(None))
    half = found.interval.half_width
    return SummaryCell(number(found.value), number(half).lstrip("+") if math.isfinite(half) else "")


def _without_names(value: Any) -> Any:
    """A setting without the pseudonyms in it: gold annotators are counted."""
    if not isinstance(value, dict) or not value.get("gold_annotators"):
        return value
    return {**value, "gold_annotators": len(value["gold_annotators"])}


def _without_folders(value: Any) -> str:
    """A setting as text; of a path that names a place on a machine only the last part is left."""
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_without_folders(inner)}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_without_folders(inner) for inner in value)
    text = str(value)
    if PurePosixPath(text).is_absolute() or PureWindowsPath(text).is_absolute() or text.startswith("~"):
        return PureWindowsPath(text).name
    return text
