"""The page of an audit's single annotators: their leans, the funnel, lean against agreement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from badpo.results.audit_verdicts import audit_labels, has_usable_spread
from badpo.results.charts import (
    Figure,
    Level,
    Series,
    TextTable,
    caterpillar,
    legend,
    point_cloud,
)
from badpo.results.words import cleaned, decimal, interval_text, page_templates, shown

MOST_ROWS, FEWEST_DRAWN = 60, 2
# flagged points last, so that they are not covered
_KINDS = (("fewer informative votes than asked for", 0), ("estimated", 2), ("flagged", 1))
_LEGEND = tuple(sorted(_KINDS, key=lambda kind: kind[1]))
# share of annotators within, how many standard deviations that is, dash
_FUNNEL_LIMITS = ((95, 1.959964, 2), (99.8, 3.090232, 3))
_SMALLEST_REACH, _LARGEST_REACH, _LARGEST_SE = 1.0, 4.0, 2.0


def people_html(summary: Mapping[str, Any], annotators: pd.DataFrame) -> str:
    """The page about an audit's single annotators as HTML text: personal data, which is not to be passed on."""
    summary = cleaned(summary)
    annotators = annotators.assign(attribute=annotators["attribute"].map(cleaned))
    annotators["annotator"] = [shown(name, 20) for name in annotators["annotator"]]
    figures = [draw(summary, annotators) for draw in (caterpillar_figure, funnel_figure, agreement_figure)]
    return (
        page_templates()
        .get_template("people.html.jinja")
        .render(
            name=shown(summary["data"]["source"]),
            figures=[figure for figure in figures if figure],
            version=summary["version"],
        )
    )


def caterpillar_figure(summary: Mapping[str, Any], annotators: pd.DataFrame) -> Figure | None:
    """Each annotator's own and shrunken estimate, most informative votes first; None where nobody has any."""
    if not (annotators["n_informative"] > 0).any():
        return None
    panels, rows, left_out = [], [], []
    for label, pool, people in _by_attribute(summary, annotators):
        told = people["n_informative"] >= FEWEST_DRAWN
        if not has_usable_spread(pool):  # nobody's estimate is shrunk: only those with enough votes have one
            told &= people["status"] == "ok"
        order = people[told].sort_values(["n_informative", "annotator"], ascending=[False, True])
        drawn = order.head(MOST_ROWS)
        if drawn.empty:
            panels.append((label, Markup("<p>{}</p>").format(_nobody(label, pool))))
            continue
        n_more, n_rest = len(order) - len(drawn), len(people) - len(order)
        left_out.append(f"{label}: {n_more:,} with fewer votes than those, {n_rest:,} with hardly any")
        leans = drawn.to_dict("records")
        name = f"leans of {len(leans):,} annotators on {label} with intervals"
        chart = caterpillar(leans, name, "deviation, log-odds", _reach(drawn), _middle(pool))
        panels.append((label, chart))
        rows += [_person_cells(label, lean) for lean in leans]
    caption = f"What is known of everyone is in {summary['annotators_file']}."
    if left_out:
        caption = (
            "Thin line with a stroke: the annotator\u2019s own estimate and its 95 % interval. Thick line with a mark: "
            "the shrunken one. An arrow: the interval goes on beyond the axis. Where the line in the middle is the "
            "pool mean, own estimates count from the mean of the finite ones and shrunken ones from that of the whole "
            "pool; where it is no lean, both count from there, and so do flags. The order is the number of informative "
            "votes, which says nothing about the lean; names of annotators are pseudonyms. Not drawn: "
            f"{'; '.join(left_out)}. Everyone is in {summary['annotators_file']}."
        )
    header = ("Attribute, annotator", "Informative votes", "Own estimate", "95 %", "Shrunken", "95 %")
    marks = legend(_LEGEND) if left_out else Markup("")
    return Figure("Single annotators", panels, caption, TextTable(header, rows), marks)


def funnel_figure(summary: Mapping[str, Any], annotators: pd.DataFrame) -> Figure | None:
    """Own estimates against their standard errors, with the limits that the spread of the pool leads one to expect."""
    panels, rows, notes = [], [], []
    for label, pool, people in _by_attribute(summary, annotators):
        finite = people[np.isfinite(people["deviation"].to_numpy(dtype=float)) & (people["se"] > 0)]
        if finite.empty:
            continue
        most = min(_LARGEST_SE, float(finite["se"].max()))
        drawn = finite[finite["se"] <= most]
        note, curves = "no limits are drawn, since the votes do not bound tau", []
        if has_usable_spread(pool):
            note, curves = f"limits include tau {decimal(pool['tau'])}", _funnel_curves(pool, most)
            rows += _outside(label, finite, pool)
        if beyond := len(finite) - len(drawn):
            note += f", {beyond:,} with a standard error beyond {decimal(most, 1)} not drawn"
        notes.append(f"{label}: {note}.")
        chart = point_cloud(
            _clouds(drawn, "deviation", "se"),
            f"deviation against standard error on {label}",
            "deviation, log-odds",
            "standard error",
            _reach(finite),
            (most, 0.0),
            curves,
            _middle(pool),
        )
        panels.append((label, chart))
    caption = (
        "Each point is one annotator, the surer the higher; points beyond an end of the axis stand at it. Within the "
        "inner (solid) lines 95 % of annotators are expected, within the outer (dashed) ones 99.8 %, given their "
        f"standard errors and tau. {' '.join(notes)}"
    )
    table = TextTable(("Attribute", "Annotators", "Outside", "Expected outside"), rows)
    title = "Funnel: deviation against uncertainty"
    return Figure(title, panels, caption, table, legend(_LEGEND)) if panels else None


def agreement_figure(summary: Mapping[str, Any], annotators: pd.DataFrame) -> Figure | None:
    """Shrunken estimates against agreement with co-voters; None where either is missing for everyone."""
    panels, rows = [], []
    for label, pool, people in _by_attribute(summary, annotators):
        both = people[people["shrunk"].notna() & people["agreement"].notna()]
        if len(both) < 3:
            continue
        chart = point_cloud(
            _clouds(both, "shrunk", "agreement"),
            f"shrunken lean on {label} against agreement with others",
            "shrunken deviation, log-odds",
            "agreement with co-voters",
            _reach(both),
            (0.0, 1.0),
            level=_middle(pool),
        )
        panels.append((label, chart))
        quartiles = np.quantile(both["agreement"].to_numpy(dtype=float), [0.25, 0.5, 0.75])
        rows.append((label, f"{len(both):,}", *map(decimal, quartiles.tolist())))
    caption = (
        "How often an annotator chose the side that a co-voter on the same comparison chose, against the lean. "
        "Someone far out at usual agreement sees things differently; someone with low agreement in the middle may be "
        "less careful, or judge harder comparisons. Neither is a finding of dishonesty."
    )
    header = ("Attribute", "Annotators", "Agreement, lower quartile", "Median", "Upper quartile")
    table = TextTable(header, rows)
    return Figure("Lean against agreement", panels, caption, table, legend(_LEGEND)) if panels else None


def _by_attribute(
    summary: Mapping[str, Any], annotators: pd.DataFrame
) -> Iterator[tuple[str, Mapping[str, Any], pd.DataFrame]]:
    """The label, the pool and the rows of every attribute; ``style`` is added, of the kind of estimate."""
    for name, label in audit_labels(summary).items():
        people = annotators[annotators["attribute"] == name]
        few = people["n_informative"] < summary["settings"]["min_informative"]
        if len(people):
            style = np.where(people["flag"].to_numpy(dtype=bool), 1, np.where(few, 0, 2))
            yield label, summary["pool"][name], people.assign(style=style)


def _nobody(label: str, pool: Mapping[str, Any]) -> str:
    reasons = {
        "too few informative votes": pool["n_insufficient"],
        "an estimate without bound": pool["n_separated"],
        "no informative vote": pool["n_no_information"],
    }
    counts = "; ".join(f"{reason}: {n:,}" for reason, n in reasons.items() if n)
    return f"The votes estimate no single annotator on {label} ({counts}); read the pool and the classes instead."


def _reach(people: pd.DataFrame) -> tuple[float, float]:
    """An axis around zero that holds most estimates and not the absurd ends of a few intervals."""
    values = people[["shrunk", "post_low", "post_high", "deviation"]].to_numpy(dtype=float)
    values = np.abs(values[np.isfinite(values)])
    reach = np.quantile(values, 0.9) if values.size else _SMALLEST_REACH
    reach = float(np.ceil(2 * np.clip(reach, _SMALLEST_REACH, _LARGEST_REACH)) / 2)
    return -reach, reach


def _middle(pool: Mapping[str, Any]) -> Level:
    return Level(0.0, "no lean" if pool["absolute"] else "pool mean")


def _person_cells(label: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    name, votes = f"{label}, {row['annotator']}", f"{row['n_informative']:,}"
    own, pulled = (
        interval_text(row["ci_low"], row["ci_high"]),
        interval_text(row["post_low"], row["post_high"]),
    )
    return name, votes, decimal(row["deviation"]), own, decimal(row["shrunk"]), pulled


def _clouds(people: pd.DataFrame, x: str, y: str) -> list[Series]:
    of_kind = [(name, style, people[people["style"] == style]) for name, style in _KINDS]
    return [Series(name, style, kind[[x, y]].to_numpy().tolist()) for name, style, kind in of_kind]


def _expected(pool: Mapping[str, Any], se: np.ndarray) -> tuple[float, np.ndarray]:
    """Where estimates with these standard errors are expected: the middle, and their standard deviation around it."""
    middle = pool["level"] if pool["absolute"] and pool["level"] is not None else 0.0
    return middle, np.hypot(se, pool["tau"])


def _funnel_curves(pool: Mapping[str, Any], most: float) -> list[Series]:
    se = np.linspace(0.0, most, 41)
    middle, sd = _expected(pool, se)
    return [
        Series(f"{share} % limit", dash, [*zip((middle + z * sd).tolist(), se.tolist(), strict=True)])
        for share, size, dash in _FUNNEL_LIMITS
        for z in (-size, size)
    ]


def _outside(label: str, people: pd.DataFrame, pool: Mapping[str, Any]) -> list[tuple[str, ...]]:
    middle, sd = _expected(pool, people["se"].to_numpy(dtype=float))
    distance, n = np.abs(people["deviation"].to_numpy(dtype=float) - middle) / sd, len(people)
    return [
        (f"{label}, {share} % limits", f"{n:,}", f"{(distance > z).sum():,}", decimal(n * (1 - share / 100), 1))
        for share, z, _ in _FUNNEL_LIMITS
    ]  # fmt: skip
