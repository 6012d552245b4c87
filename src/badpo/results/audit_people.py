"""The page of an audit's single annotators: their leans and their care."""

from __future__ import annotations

import numpy as np
import pandas as pd

from badpo.data.files import Json
from badpo.results.audit_verdicts import audit_labels, has_usable_spread
from badpo.results.charts import (
    OWN,
    DotPanel,
    DotRow,
    Figure,
    Level,
    Limits,
    Mark,
    dot_figure,
    legend,
)
from badpo.results.words import cleaned, page, shown

MOST_ROWS, FEWEST_DRAWN = 60, 2
_KINDS = ("fewer informative votes than asked for", "flagged", "estimated")
_FEW, _FLAGGED, _ESTIMATED = range(3)
_MARKS = [(name, style) for style, name in enumerate(_KINDS)]
_SMALLEST_REACH, _LARGEST_REACH = 1.0, 4.0


def people_html(summary: Json, annotators: pd.DataFrame) -> str:
    """The page about an audit's single annotators as HTML text: personal data, which is not to be passed on."""
    summary = cleaned(summary)
    annotators = annotators.assign(
        attribute=annotators["attribute"].map(cleaned),
        annotator=[shown(name, 20) for name in annotators["model"].fillna(annotators["annotator"])],
    )
    figures = (draw(summary, annotators) for draw in (caterpillar_figure, care_figure))
    source, version = shown(summary["data"]["source"]), summary["version"]
    return page("people", name=source, figures=[*filter(None, figures)], version=version)


def caterpillar_figure(summary: Json, annotators: pd.DataFrame) -> Figure | None:
    """Each annotator's own and shrunken estimate, most informative votes first; None where nobody has any."""
    panels, left_out = [], []
    least = summary["settings"]["min_informative"]
    for name, label in audit_labels(summary).items():
        people = annotators[annotators["attribute"] == name]
        if people.empty:
            continue
        pool, told = summary["pool"][name], people["n_informative"] >= FEWEST_DRAWN
        if not has_usable_spread(pool):
            # nobody's estimate is shrunk: only those with enough votes have one
            told &= people["status"] == "ok"
        order = _ordered(people[told], "n_informative")
        drawn = order.head(MOST_ROWS)
        rows = [_leans(row, least) for row in drawn.to_dict("records")]
        n_more, n_rest = len(order) - len(rows), len(people) - len(order)
        left_out.append(f"{label}: {n_more:,} with fewer votes than those, {n_rest:,} with hardly any")
        what = f"leans of {len(rows):,} annotators on {label} with intervals"
        origin = "group mean" if pool["is_divided"] else "pool mean"
        middle = Level(0.0, "no lean" if pool["absolute"] else origin)
        how = "deviation, log-odds", middle, _limits(drawn)
        panels.append(DotPanel(label, rows, what, *how, notes="votes"))
    caption = (
        "Thin line with a stroke: the annotator\u2019s own estimate and its 95 % interval. Thick line with a mark: "
        "the shrunken one. An arrow: the interval goes on beyond the axis. Where the line in the middle is a "
        "mean, own estimates count from that of the finite ones and shrunken ones from that of the whole pool or "
        "group, both without what goes with care; where it is no lean, both count from there, and so do flags. The "
        "order is the number of informative votes, which says nothing about the lean; people have pseudonyms. Not "
        "drawn: "
        f"{'; '.join(left_out)}. Everyone is in {summary['annotators_file']}."
    )
    return dot_figure("Single annotators", panels, caption, legend(_MARKS))


def care_figure(summary: Json, annotators: pd.DataFrame) -> Figure | None:
    """Each annotator's care, most judgments first; None where nobody's is known."""
    people = annotators.dropna(subset="care").drop_duplicates("annotator")
    order = _ordered(people, "n_judgments")
    rows = []
    for row in order.head(MOST_ROWS).to_dict("records"):
        name, ends = row["annotator"], (row["care_low"], row["care_high"])
        style = _FLAGGED if row["flag_care"] else _ESTIMATED
        mark = Mark(row["care"], name, style, *ends)
        rows.append(DotRow(name, (mark,), f"{row['n_judgments']:,}"))
    caption = (
        "How closely each annotator follows quality where the sides do not differ in any attribute, with its 95 % "
        "interval: 1 is the mean, 0 is answering at random. It is shrunk toward 1, where few votes leave it. The "
        f"order is the number of judgments; {len(order) - len(rows):,} more are in {summary['annotators_file']}."
    )
    label, middle = f"care of {len(rows):,} annotators with intervals", Level(1.0, "mean")
    panel = DotPanel("", rows, label, "care", middle, (-1.0, 3.0), notes="judgments")
    return dot_figure("Care", [panel], caption, legend(_MARKS[1:]))


def _ordered(people: pd.DataFrame, votes: str) -> pd.DataFrame:
    return people.sort_values([votes, "annotator"], ascending=[False, True])


def _leans(row: Json, least: int) -> DotRow:
    name, n_votes = row["annotator"], row["n_informative"]
    style = _FEW if n_votes < least else _ESTIMATED
    style = _FLAGGED if row["flag"] else style
    ends, post = (row["ci_low"], row["ci_high"]), (row["post_low"], row["post_high"])
    own = Mark(row["deviation"], f"{name}, own estimate", OWN, *ends)
    shrunken = Mark(row["shrunk"], f"{name}, shrunken", style, *post)
    return DotRow(name, (own, shrunken), f"{n_votes:,}")


def _limits(people: pd.DataFrame) -> Limits:
    """An axis around zero that holds most estimates and not the absurd ends of a few intervals."""
    values = people[["shrunk", "post_low", "post_high", "deviation"]].to_numpy(dtype=float)
    values = np.abs(values[np.isfinite(values)])
    reach = np.quantile(values, 0.9) if values.size else 0.0
    reach = np.ceil(2 * np.clip(reach, _SMALLEST_REACH, _LARGEST_REACH)).item() / 2
    return -reach, reach
