"""The page of an audit's single annotators: their leans, the funnel, lean against agreement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from badpo.results.audit_verdicts import audit_labels, has_usable_spread
from badpo.results.charts import Level, legend
from badpo.results.figure_parts import Figure, Table
from badpo.results.labels import decimal, shown
from badpo.results.lean_charts import Cloud, Curve, LeanRow, caterpillar, point_cloud
from badpo.results.pages import page_templates

MOST_ROWS, FEWEST_DRAWN = 60, 2
_KINDS = (("fewer informative votes than asked for", 0), ("flagged", 1), ("estimated", 2))
_FUNNEL_LIMITS = (("95 %", 1.959964, 2), ("99.8 %", 3.090232, 3))
_SMALLEST_REACH, _LARGEST_REACH, _LARGEST_SE = 1.0, 4.0, 2.0


def people_html(summary: Mapping[str, Any], annotators: pd.DataFrame) -> str:
    """The page about an audit's single annotators as HTML text: personal data, which is not to be passed on."""
    figures = [draw(summary, annotators) for draw in (caterpillar_figure, funnel_figure, agreement_figure)]
    return (
        page_templates()
        .get_template("people.html.jinja")
        .render(
            name=shown(summary["data"]["source"]),
            figures=[figure for figure in figures if figure],
            version=shown(str(summary["version"])),
        )
    )


def caterpillar_figure(summary: Mapping[str, Any], annotators: pd.DataFrame) -> Figure | None:
    """Each annotator's own and shrunken estimate, most informative votes first; None where nobody has any."""
    if not (annotators["n_informative"] > 0).any():
        return None
    labels, panels, rows, left_out = audit_labels(summary), [], [], []
    for name, people in _by_attribute(summary, annotators):
        told = _told(people, summary["pool"][name])
        drawn, label = told.head(MOST_ROWS), labels[name]
        if drawn.empty:
            panels.append((label, Markup("<p>{}</p>").format(_nobody(label, summary["pool"][name]))))
            continue
        n_more, n_rest = len(told) - len(drawn), len(people) - len(told)
        left_out.append(f"{label}: {n_more:,} with fewer votes than those, {n_rest:,} with hardly any")
        persons = zip(drawn.to_dict("records"), _kinds_of(drawn, summary), strict=True)
        leans = [_lean_row(person, kind) for person, kind in persons]
        chart = caterpillar(
            leans,
            f"leans of {len(leans):,} annotators on {label} with intervals",
            "deviation, log-odds",
            _reach(drawn),
            _middle(summary["pool"][name]),
        )
        panels.append((label, chart))
        rows += [_person_cells(label, lean) for lean in leans]
    caption = (
        "Thin line with a stroke: the annotator\u2019s own estimate and its 95 % interval. Thick line with a mark: the "
        "shrunken one. An arrow: the interval goes on beyond the axis. Where the line in the middle is the pool mean, "
        "own estimates count from the mean of the finite ones and shrunken ones from that of the whole pool; where it "
        "is no lean, both count from there, and so do flags. The order is the number of informative votes, "
        "which says nothing about the lean; names of annotators are pseudonyms. Not drawn: "
        f"{'; '.join(left_out)}. Everyone is in {shown(summary['annotators_file'])}."
    )
    if not left_out:
        caption = f"What is known of everyone is in {shown(summary['annotators_file'])}."
    header = ("Attribute, annotator", "Informative votes", "Own estimate", "95 %", "Shrunken", "95 %")
    marks = legend(_KINDS) if left_out else Markup("")
    return Figure("Single annotators", tuple(panels), marks, caption, Table(header, tuple(rows)))


def funnel_figure(summary: Mapping[str, Any], annotators: pd.DataFrame) -> Figure | None:
    """Own estimates against their standard errors, with the limits that the spread of the pool leads one to expect."""
    labels, panels, rows, notes = audit_labels(summary), [], [], []
    for name, people in _by_attribute(summary, annotators):
        finite = people[np.isfinite(people["deviation"].to_numpy(dtype=float)) & (people["se"] > 0)]
        if finite.empty:
            continue
        pool, label = summary["pool"][name], labels[name]
        most = min(_LARGEST_SE, float(finite["se"].max()))
        beyond = int((finite["se"] > most).sum())
        drawn = finite[finite["se"] <= most]
        reach = _reach(finite)
        curves = _funnel_curves(pool, most) if has_usable_spread(pool) else []
        chart = point_cloud(
            _clouds(drawn, summary, "deviation", "se"),
            f"deviation against standard error on {label}",
            "deviation, log-odds",
            "standard error",
            reach,
            (most, 0.0),
            curves,
            _middle(pool),
        )
        panels.append((label, chart))
        rows += _outside(label, finite, pool)
        notes.append(f"{label}: {_funnel_note(pool, beyond, most)}")
    if not panels:
        return None
    caption = (
        "Each point is one annotator, the surer the higher; points beyond an end of the axis stand at it. Within the "
        "inner (solid) lines 95 % of annotators are expected, within the outer (dashed) ones 99.8 %, given their "
        f"standard errors and tau. {' '.join(notes)}"
    )
    header = ("Attribute", "Annotators", "Outside", "Expected outside")
    return Figure(
        "Funnel: deviation against uncertainty",
        tuple(panels),
        legend(_KINDS),
        caption,
        Table(header, tuple(rows)),
    )


def agreement_figure(summary: Mapping[str, Any], annotators: pd.DataFrame) -> Figure | None:
    """Shrunken estimates against agreement with co-voters; None where either is missing for everyone."""
    labels, panels, rows = audit_labels(summary), [], []
    for name, people in _by_attribute(summary, annotators):
        both = people[people["shrunk"].notna() & people["agreement"].notna()]
        if len(both) < 3:
            continue
        label = labels[name]
        chart = point_cloud(
            _clouds(both, summary, "shrunk", "agreement"),
            f"shrunken lean on {label} against agreement with others",
            "shrunken deviation, log-odds",
            "agreement with co-voters",
            _reach(both),
            (0.0, 1.0),
            level=_middle(summary["pool"][name]),
        )
        panels.append((label, chart))
        quartiles = np.quantile(both["agreement"].to_numpy(dtype=float), [0.25, 0.5, 0.75])
        rows.append((label, f"{len(both):,}", *map(decimal, quartiles.tolist())))
    if not panels:
        return None
    caption = (
        "How often an annotator chose the side that a co-voter on the same comparison chose, against the lean. "
        "Someone far out at usual agreement sees things differently; someone with low agreement in the middle may be "
        "less careful, or judge harder comparisons. Neither is a finding of dishonesty."
    )
    header = ("Attribute", "Annotators", "Agreement, lower quartile", "Median", "Upper quartile")
    return Figure(
        "Lean against agreement", tuple(panels), legend(_KINDS), caption, Table(header, tuple(rows))
    )


def _by_attribute(summary: Mapping[str, Any], annotators: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    names = [row["name"] for row in summary["attributes"]]
    parts = [(name, annotators[annotators["attribute"] == name]) for name in names if len(annotators)]
    return [(name, people) for name, people in parts if len(people)]


def _kinds_of(people: pd.DataFrame, summary: Mapping[str, Any]) -> list[int]:
    few = people["n_informative"] < summary["settings"]["min_informative"]
    return np.where(people["flag"].to_numpy(dtype=bool), 1, np.where(few, 0, 2)).tolist()


def _told(people: pd.DataFrame, pool: Mapping[str, Any]) -> pd.DataFrame:
    """Whom a row says something about, most informative votes first.

    Without a usable spread nobody's estimate is shrunk, and only those with enough votes of their own have one.
    """
    told = people["n_informative"] >= FEWEST_DRAWN
    if not has_usable_spread(pool):
        told &= people["status"] == "ok"
    return people[told].sort_values(["n_informative", "annotator"], ascending=[False, True], kind="stable")


def _nobody(label: str, pool: Mapping[str, Any]) -> str:
    reasons = (
        ("too few informative votes", pool["n_insufficient"]),
        ("an estimate without bound", pool["n_separated"]),
        ("no informative vote", pool["n_no_information"]),
    )
    counts = "; ".join(f"{reason}: {n:,}" for reason, n in reasons if n)
    return f"The votes estimate no single annotator on {label} ({counts}); read the pool and the classes instead."


def _reach(people: pd.DataFrame) -> tuple[float, float]:
    """An axis around zero that holds most estimates and not the absurd ends of a few intervals."""
    values = people[["shrunk", "post_low", "post_high", "deviation"]].to_numpy(dtype=float)
    values = np.abs(values[np.isfinite(values)])
    reach = float(np.quantile(values, 0.9)) if values.size else _SMALLEST_REACH
    reach = float(np.ceil(2 * min(max(reach, _SMALLEST_REACH), _LARGEST_REACH)) / 2)
    return -reach, reach


def _middle(pool: Mapping[str, Any]) -> Level:
    return Level(0.0, "no lean" if pool["absolute"] else "pool mean")


def _lean_row(person: Mapping[str, Any], kind: int) -> LeanRow:
    return LeanRow(
        name=shown(str(person["annotator"]), 20),
        votes=int(person["n_informative"]),
        raw=person["deviation"],
        raw_low=person["ci_low"],
        raw_high=person["ci_high"],
        value=person["shrunk"],
        low=person["post_low"],
        high=person["post_high"],
        style=kind,
    )


def _person_cells(label: str, lean: LeanRow) -> tuple[str, ...]:
    own = f"{decimal(lean.raw_low)} to {decimal(lean.raw_high)}"
    pulled = f"{decimal(lean.low)} to {decimal(lean.high)}"
    return (f"{label}, {lean.name}", f"{lean.votes:,}", decimal(lean.raw), own, decimal(lean.value), pulled)


def _clouds(people: pd.DataFrame, summary: Mapping[str, Any], x: str, y: str) -> list[Cloud]:
    kind = np.array(_kinds_of(people, summary), dtype=int)
    # flagged points last, so that they are not covered
    order = sorted(_KINDS, key=lambda entry: entry[1] == 1)
    return [
        Cloud(
            name,
            style,
            people[x].to_numpy(dtype=float)[kind == style],
            people[y].to_numpy(dtype=float)[kind == style],
        )
        for name, style in order
    ]


def _funnel_curves(pool: Mapping[str, Any], most: float) -> list[Curve]:
    se = np.linspace(0.0, most, 41)
    half = np.sqrt(se**2 + pool["tau"] ** 2)
    middle = _center(pool)
    return [
        Curve(
            f"{name} limit", tuple(zip((middle + side * z * half).tolist(), se.tolist(), strict=True)), dash
        )
        for name, z, dash in _FUNNEL_LIMITS
        for side in (-1, 1)
    ]


def _center(pool: Mapping[str, Any]) -> float:
    return pool["level"] if pool["absolute"] and pool["level"] is not None else 0.0


def _outside(label: str, people: pd.DataFrame, pool: Mapping[str, Any]) -> list[tuple[str, ...]]:
    if not has_usable_spread(pool):
        return []
    distance = np.abs(people["deviation"].to_numpy(dtype=float) - _center(pool))
    half = np.sqrt(people["se"].to_numpy(dtype=float) ** 2 + pool["tau"] ** 2)
    return [
        (
            f"{label}, {name} limits",
            f"{len(people):,}",
            f"{int((distance > z * half).sum()):,}",
            decimal(len(people) * (0.05 if name == "95 %" else 0.002), 1),
        )
        for name, z, _ in _FUNNEL_LIMITS
    ]


def _funnel_note(pool: Mapping[str, Any], beyond: int, most: float) -> str:
    drawn = (
        f"limits include tau {decimal(pool['tau'])}"
        if has_usable_spread(pool)
        else "no limits are drawn, since the votes do not bound tau"
    )
    out = f", {beyond:,} with a standard error beyond {decimal(most, 1)} not drawn" if beyond else ""
    return f"{drawn}{out}."
