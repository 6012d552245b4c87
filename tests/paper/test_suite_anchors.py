"""Anchored runs in a suite: after their sources, from the sources' own answers, once."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from badpo.anchoring import anchor, source
from badpo.anchoring.anchor import Bench
from badpo.anchoring.offset_stage import StageSettings
from badpo.data.problems import ConfigError
from badpo.readouts.names import NAMES, SURNAMES, signature
from badpo_paper import schedule
from badpo_paper.corpora import bundled
from badpo_paper.reproduce import run_suites
from badpo_paper.schedule import PlannedRun, planned_runs, run_one
from badpo_paper.settings import SCALES
from badpo_paper.suites import SUITES, Column, Condition, Corpus, Offset, Panel, Row, Suite
from tests.paper.suite_scale import SMALL

DPO = Condition("dpo", "dpo")
EXACT = Condition("dpo_exact_0.4", "dpo", offset=Offset(DPO, 0.4, rounds=1))
CALIBRATED = Condition("dpo_calibrated_0.4", "dpo", offset=Offset(DPO, 0.4, rounds=2))
SCALE = replace(SMALL, fresh_prompts=lambda corpus, data: tuple(bundled.fresh_prompts()[:40]))


def silent(what: str, share: float) -> None:
    pass


def test_anchors_come_behind_their_sources_and_seed_by_seed():
    runs = planned_runs([SUITES["offset"]], SCALES["tiny"], (42, 123))
    places = [run.place for run in runs]
    assert places[:3] == ["signed/reference", "signed/dpo-s42", "signed/dpo-s123"]
    assert [run.seed for run in runs[3:]] == [42] * 6 + [123] * 3
    assert {run.place for run in planned_runs([SUITES["names"]], SCALES["tiny"], (42, 123))} > set(places[:3])
    # a source that stands in no row of its own is trained all the same
    alone = Suite("alone", "", (Panel("x", "", Corpus("signed"), (Row("Exact", EXACT),), ()),))
    assert [run.place for run in planned_runs([alone], SCALES["tiny"], (42,))] == [
        "signed/reference",
        "signed/dpo-s42",
        "signed/dpo_exact_0.4-s42",
    ]


def test_an_anchor_without_its_source_is_told(tmp_path):
    with pytest.raises(ConfigError, match="dpo-s42 holds no finished run, from which dpo_exact_0.4-s42"):
        schedule.anchored_run(EXACT.offset, 42, None, SCALE, None, tmp_path / "dpo_exact_0.4-s42", silent)


class SigningBench(Bench):
    """A source whose answers are signed, which a model of eight tokens does not come to."""

    @property
    def written(self):
        return [
            replace(answer, text=signature(f"Boil it, {i}.", NAMES[i % 89].first, SURNAMES[0]))
            for i, answer in enumerate(super().written)
        ]


@pytest.mark.slow
def test_a_suite_of_anchors_is_made_once_and_stands_in_its_table(tmp_path, monkeypatch):
    monkeypatch.setattr(schedule, "Bench", SigningBench)
    monkeypatch.setattr(source, "StageSettings", partial(StageSettings, steps=2, batch_size=4))
    monkeypatch.setattr(anchor, "FEWEST_ANSWERS", 10)
    trained, train_offset = [], anchor.train_offset

    def counted(*arguments, **options):
        trained.append(arguments[8].parent.name)
        return train_offset(*arguments, **options)

    monkeypatch.setattr(anchor, "train_offset", counted)
    columns = (
        Column("t", "anchor:woman.asked"),
        Column("woman", "rates.woman.rate"),
        Column("KL to the source, as published", "anchor:moved.kl_source.per_token"),
        Column("gap", "heldout.any.gap"),
    )
    rows = (Row("DPO", DPO), Row("Exact", EXACT), Row("Calibrated", CALIBRATED))
    suite = Suite("anchors", "Anchors", (Panel("tab:x", "small", Corpus("signed"), rows, columns),))

    def run():
        return run_suites([suite], SCALE, (42,), tmp_path, silent)[0].tables[0]

    table = run()
    assert not table.missing and [row.label for row in table.rows] == [
        "Reference",
        "DPO",
        "Exact",
        "Calibrated",
    ]
    assert [len(cell.values) for cell in table.rows[1].cells] == [0, 1, 0, 1]
    assert [len(cell.values) for cell in table.rows[3].cells] == [1, 1, 1, 1]
    exact, calibrated = (
        json.loads((tmp_path / "signed" / f"{c.name}-s42" / "anchor.json").read_text())
        for c in (EXACT, CALIBRATED)
    )
    assert len(exact["calibration"]) == 1 and exact["woman"]["asked_shift"] == pytest.approx(
        exact["woman"]["shift"]
    )
    assert calibrated["calibration"][0] == exact["calibration"][0]
    n_trained = len(trained)
    assert n_trained == 1 + len(calibrated["calibration"])
    assert not list((tmp_path / "signed").glob("*lines*"))
    # again: all of it is there
    assert run() == table and len(trained) == n_trained
    # of another target there is something else in the folder
    other = replace(EXACT, offset=Offset(DPO, 0.6, rounds=1))
    with pytest.raises(ConfigError, match="holds another anchor than the one that is asked for"):
        run_one(PlannedRun(Corpus("signed"), other, 42), SCALE, Path(tmp_path), None, wait=True)
