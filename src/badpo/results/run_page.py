"""One page about trained runs, drawn from their folders: verdicts, a table, charts, limits and provenance."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from badpo import __version__
from badpo.results.anchor_text import anchor_sentences
from badpo.results.figures import figures
from badpo.results.labels import DPO, REFERENCE, arm_label, decimal, percent, shown, signed
from badpo.results.pages import page_templates, write_whole
from badpo.results.readings import Estimate, estimate, gap, kl, removal, votes_minus_ceiling
from badpo.results.run_files import Suite, read_suite
from badpo.results.verdicts import Quantity, attribute_labels, limits, quantities, verdicts

_KEY_PACKAGES = ("ba-dpo", "torch", "transformers", "trl", "peft", "accelerate", "numpy")


@dataclass(frozen=True)
class Cell:
    """A value of the summary table and half of its 95 % interval; ``half`` is empty when it is not known."""

    value: str
    half: str = ""
    starts_group: bool = False


@dataclass(frozen=True)
class Group:
    """A heading over several columns of the summary table."""

    name: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class SummaryTable:
    """One row per arm: its name and its cells. ``groups`` name the columns, ``key`` says what they mean."""

    groups: tuple[Group, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    key: tuple[tuple[str, str], ...]


def write_report(sources: Path | Sequence[Path], page: Path) -> Path:
    """Write one HTML page about the runs in some folders and return its path.

    The page needs no network and no script, follows a light or a dark system and prints. It names no annotator.

    Parameters
    ----------
    sources : Path or sequence of Path
        Run folders, or folders of run folders; each run has a ``readouts.json``.
    page : Path
        The file to write; replaced only once the new page is whole.

    Raises
    ------
    ConfigError
        No measured run was found, or a file in a run folder cannot be read.
    """
    return write_whole(report_html(read_suite(sources)), page)


def report_html(suite: Suite) -> str:
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


def summary_table(suite: Suite) -> SummaryTable:
    """The readings of every arm side by side; a dash where something was not measured, nothing where none applies."""
    found = quantities(suite)
    has_ceiling = any("ceiling" in run.readouts for run in suite.runs)
    columns = [
        ("rate", "removed", "log-odds") if q.is_rate else ("mean", "removed", "distance") for q in found
    ]
    groups = [Group(q.symbol, names) for q, names in zip(found, columns, strict=True)]
    groups.append(Group("all attributes", ("gap", "votes", "KL") if has_ceiling else ("gap", "KL")))
    rows = []
    for arm in suite.arms:
        cells = [cell for quantity in found for cell in _quantity_cells(suite, arm, quantity)]
        rows.append((arm_label(arm), (*cells, *_shared_cells(suite, arm, has_ceiling))))
    return SummaryTable(
        tuple(groups), tuple(rows), _key(suite, {name for group in groups for name in group.columns})
    )


def provenance(suite: Suite) -> list[tuple[str, str]]:
    """What the runs were made with, as names and values: seeds, versions, data, command."""
    environment: Mapping[str, Any] = next((run.environment for run in suite.runs if run.environment), {})
    packages = environment.get("packages", {})
    versions = ", ".join(f"{name} {packages[name]}" for name in _KEY_PACKAGES if name in packages)
    fingerprints = sorted(
        {str(data) for run in suite.runs if (data := run.bias.get("extra", {}).get("data"))}
    )
    command = environment.get("command")
    facts = [
        ("Runs", ", ".join(shown(run.folder.name) for run in suite.runs)),
        ("Training seeds", ", ".join(map(str, suite.seeds))),
        ("Data fingerprint", ", ".join(fingerprints)),
        ("Command", shown(_without_places(command), 400) if command else ""),
        ("Versions", versions),
        ("Python", f"{environment.get('python', '')}, {environment.get('platform', '')}".strip(", ")),
        ("Page written by", f"badpo {__version__}"),
    ]
    return [(name, value or "not recorded") for name, value in facts]


def settings(suite: Suite) -> list[tuple[str, str]]:
    """The settings of the first trained run; of a path only its last part is shown, of annotators their number."""
    config = next((run.config for run in suite.runs if run.config and run.arm != REFERENCE), {})
    return [
        (shown(str(key)), shown(_without_folders(_without_names(value)), 200))
        for key, value in config.items()
    ]


def _facts(suite: Suite) -> str:
    arms = [arm for arm in suite.arms if arm != REFERENCE]
    seeds = suite.seeds
    parts = [
        ", ".join(arm_label(arm) for arm in arms) if arms else "the reference alone",
        f"{len(seeds)} seeds ({', '.join(map(str, seeds))})" if len(seeds) > 1 else "",
        f"seed {seeds[0]}" if len(seeds) == 1 else "",
        f"attributes: {', '.join(attribute_labels(suite).values())}" if suite.attributes else "",
    ]
    return " \u00b7 ".join(part for part in parts if part)


def _quantity_cells(suite: Suite, arm: str, quantity: Quantity) -> list[Cell]:
    own = estimate(suite, arm, quantity.read)
    value = replace(_cell(own, quantity.number), starts_group=True)
    if arm == REFERENCE:
        return [value, Cell(""), Cell("")]
    found = removal(suite, arm, quantity.read, quantity.is_rate)
    places = 2 if quantity.is_rate else 1
    distance = _cell(found.distance, lambda number: signed(number, places))
    return [value, Cell("") if arm == DPO else _cell(found.share, percent), distance]


def _shared_cells(suite: Suite, arm: str, has_ceiling: bool) -> list[Cell]:
    if arm == REFERENCE:
        return [Cell("", starts_group=True), *[Cell("")] * (2 if has_ceiling else 1)]
    votes = [_cell(_worst_votes(suite, arm), lambda value: signed(value, 3))] if has_ceiling else []
    held_out = _cell(_gap(suite, arm), lambda value: signed(value, 3))
    return [
        replace(held_out, starts_group=True),
        *votes,
        _cell(estimate(suite, arm, kl), lambda v: decimal(v, 3)),
    ]


def _key(suite: Suite, columns: Collection[str]) -> tuple[tuple[str, str], ...]:
    over = f"over {len(suite.seeds)} seeds" if len(suite.seeds) > 1 else "over the prompts measured"
    found = [
        ("\u00b1", f"half of the 95 % interval, {over}"),
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
    ]
    return tuple((term, meaning) for term, meaning in found if term == "\u00b1" or term in columns)


def _gap(suite: Suite, arm: str) -> Estimate | None:
    return estimate(suite, arm, gap("any")) or next(
        (found for name in suite.attributes if (found := estimate(suite, arm, gap(name)))), None
    )


def _worst_votes(suite: Suite, arm: str) -> Estimate | None:
    """Votes minus ceiling on the attribute where the arm falls furthest short."""
    found = [estimate(suite, arm, votes_minus_ceiling(name, "all")) for name in suite.attributes]
    return min((reading for reading in found if reading), key=lambda reading: reading.value, default=None)


def _cell(found: Estimate | None, number: Callable[[float], str]) -> Cell:
    if found is None:
        return Cell(decimal(None))
    half = found.interval.half_width
    return Cell(number(found.value), number(half).lstrip("+") if math.isfinite(half) else "")


def _without_places(command: str) -> str:
    """A command whose paths are shortened as those of the settings."""
    return " ".join(_without_folders(word) for word in command.split())


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
