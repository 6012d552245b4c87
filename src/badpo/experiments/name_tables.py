"""What DPO's sampled signatures rest on, and how many tokens the names of the pool take."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from badpo.experiments.name_readouts import FIRST_NAMES, INDICATOR
from badpo.experiments.suite_parts import Column, Corpus, Panel
from badpo.experiments.suite_tables import Found, Table, TableRow, cell_of, paper_numbers
from badpo.readouts.name_nulls import concentration, relabelling_null

ATTRIBUTES = ("woman", "black")
SHIFT = (
    Column("shift of the share", "shift"),
    Column("random labels, sd", "sd"),
    Column("2.5 %", "low"),
    Column("97.5 %", "high"),
    Column("share as large", "p_greater"),
    Column("three names' share", "top_share", "percent"),
    Column("shift without them", "shift_without_top"),
)
TOKENS = (
    Column("names", "n_names", "whole"),
    Column("tokens a name", "mean_tokens", "decimal1"),
    Column("one token", "one_token_share", "percent"),
    Column("first tokens", "first_tokens", "whole"),
    Column("begin alike", "largest_first_share", "percent"),
)
SHIFT_TITLE = "DPO's signatures by carriers: among 1,000 random labels, and without three names"
TOKENS_TITLE = "Tokens of the names, cell by cell"


def name_tables(corpus: Corpus, found: Found) -> list[Table]:
    """Both tables, as far as there are readouts for them.

    Parameters
    ----------
    corpus : Corpus
        A signed one.
    found : Found
        Of its runs.

    References
    ----------
    BA-DPO, appendix `app:abl_names` (relabelling, three names) and `app:names` ("Marker", tokens per cell).
    """
    values = (_shifts(found), found.readouts("reference").get("name_tokens", {}))
    return [_table(panel, rows) for panel, rows in zip(name_panels(corpus), values, strict=True) if rows]


def name_panels(corpus: Corpus) -> tuple[Panel, Panel]:
    """The shift of DPO's signatures, its rows the attributes; the tokens of names, its rows the cells."""
    return (
        Panel("app:abl_names", SHIFT_TITLE, corpus, (), SHIFT, "none"),
        Panel("app:names", TOKENS_TITLE, corpus, (), TOKENS, "none"),
    )


def _shifts(found: Found) -> dict[str, dict]:
    """For each attribute, DPO's mean share over its seeds beside random labels of the pool."""
    reference = found.readouts("reference").get("signatures")
    kept = [found.readouts(f"dpo-s{seed}").get("signatures") for seed in found.seeds_of("dpo")]
    arm = [_mass(signatures) for signatures in kept if signatures is not None]
    if reference is None or not arm:
        return {}
    masses = np.mean(arm, axis=0), _mass(reference)
    return {
        name: relabelling_null(*masses, carries).to_json()
        | concentration(*masses, carries, FIRST_NAMES).to_json()
        for name, carries in zip(ATTRIBUTES, INDICATOR.T, strict=True)
    }


def _mass(signatures: Mapping[str, float]) -> list[float]:
    return [signatures[name] for name in FIRST_NAMES]


def _table(panel: Panel, values: Mapping[str, Mapping]) -> Table:
    paper = paper_numbers().get(panel.label, {}).get(panel.title, {})
    rows = []
    for name, found in values.items():
        theirs = paper.get(name, {})
        cells = (
            cell_of([] if found[c.source] is None else [found[c.source]], panel.spread, theirs.get(c.label))
            for c in panel.columns
        )
        rows.append(TableRow(name.replace("_", " "), (), False, tuple(cells)))
    return Table(panel, panel.columns, tuple(rows), ())
