"""Tables, patterns and the page, from readouts that were written by hand."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pytest

from badpo.auditing.pool import pool_attributes
from badpo.theory.summaries import t_interval
from badpo_paper.reproduce import read_suite, suite_html
from badpo_paper.suites import SUITES, Condition, Corpus, Panel, Row, SeedPlan, Suite
from badpo_paper.tables import (
    Found,
    about_votes,
    found_runs,
    panel_table,
    tables,
    to_json,
    votes_table,
    written_table,
)
from tests.paper.suite_scale import SMALL, material

SEEDS = (42, 123, 456)
QWEN = "Qwen2.5-0.5B-Instruct, full fine-tuning"


def write(folder, name, readouts):
    (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / name / "readouts.json").write_text(json.dumps(readouts), encoding="utf-8")


def names(woman, black, kl=0.02, **more):
    rates = {"woman": {"rate": woman}, "black": {"rate": black}}
    return {"rates": rates, "kl": {"per_token": kl}, **more}


@pytest.fixture
def signed(tmp_path):
    """DPO far up, pooled and shared mean near the reference, each seed a little apart."""
    folder = tmp_path / "signed"
    write(folder, "reference", names(0.5, 0.5))
    for i, seed in enumerate(SEEDS):
        write(folder, f"dpo-s{seed}", names(0.95 + i / 100, 0.98, kl=0.03))
        write(folder, f"pooled-s{seed}", names(0.55, 0.60 + i / 100, kl=0.02))
        write(folder, f"shared_mean-s{seed}", names(0.54, 0.60 + i / 100, kl=0.02))
        write(folder, f"group_dro-s{seed}", names(0.93, 0.95))
    return folder


def panel(*rows, columns=SUITES["names"].panels[0].columns, spread="t95"):
    return Panel("tab:names_v3", QWEN, Corpus("signed"), rows, columns, spread)


DPO = Row("DPO", Condition("dpo", "dpo"))
POOLED = Row("BA-DPO (pooled)", Condition("pooled", "pooled"))


# -- values ----------------------------------------------------------------------------------------------------


def test_a_cell_is_the_mean_over_seeds_with_half_of_its_interval(signed):
    table = panel_table(panel(DPO), Found(signed, SEEDS))
    cell = table.rows[1].cells[0]
    assert cell.mean == pytest.approx(0.96)
    assert cell.half == pytest.approx(t_interval([0.95, 0.96, 0.97]).half_width)
    assert panel_table(panel(DPO, spread="sd"), Found(signed, SEEDS)).rows[1].cells[0].half == pytest.approx(
        0.01
    )


def test_the_share_removed_is_taken_seed_by_seed(signed):
    table = panel_table(panel(DPO, POOLED), Found(signed, SEEDS))
    removed = table.rows[2].cells[1]
    expected = [(d - 0.55) / (d - 0.5) for d in (0.95, 0.96, 0.97)]
    assert removed.values == pytest.approx(expected)
    assert table.rows[1].cells[1].values == ()  # of DPO itself there is none


def test_there_is_no_share_of_a_shift_that_dpo_did_not_make(signed):
    for woman, seed in zip((0.405, 0.395, 0.404), SEEDS, strict=True):
        write(signed, f"dpo-s{seed}", names(0.5 + woman - 0.4, 0.98))
    table = panel_table(panel(DPO, POOLED), Found(signed, SEEDS))
    assert [column.label for column in table.columns] == ["p(woman)", "p(black)", "removed (black)", "KL"]
    note = "no share removed: DPO's own shift in p(woman), +0.001 (\u22120.012 to +0.015), does not lie above zero"
    assert table.notes == (note,)
    for text in (
        written_table(table, "text"),
        written_table(table, "markdown"),
        written_table(table, "latex"),
    ):
        assert note in text
    page = suite_html(
        read_suite(Suite("names", "Names", (panel(DPO, POOLED),)), SMALL, SEEDS, signed.parent),
        "--scale tiny --data own.parquet",
    )
    assert "badpo reproduce names --scale tiny --data own.parquet" in page
    assert "own shift in p(woman)" in page


def test_there_is_no_share_of_a_shift_the_other_way(tmp_path):
    folder = tmp_path / "style"
    write(folder, "reference", {"tokens": {"mean": 40.0}})
    for tokens, seed in zip((30.0, 31.0, 29.5), SEEDS, strict=True):
        write(folder, f"dpo-s{seed}", {"tokens": {"mean": tokens}})
        write(folder, f"pooled-s{seed}", {"tokens": {"mean": 35.0}})
    found = Found(folder, SEEDS)
    assert found.values("pooled", "removed:tokens.mean") == {}
    assert "own shift in tokens, \u22129.8 (\u221211.7 to \u22127.9)" in found.no_share("dpo", "tokens.mean")
    assert found.no_share("shared_mean", "tokens.mean") == ""


def test_with_one_seed_the_shift_itself_decides_whether_there_is_a_share(tmp_path):
    folder = tmp_path / "style"
    write(folder, "reference", {"tokens": {"mean": 40.0}})
    for tokens, share in ((41.0, {42: 0.5}), (39.0, {}), (40.0, {})):
        write(folder, "dpo-s42", {"tokens": {"mean": tokens}})
        write(folder, "pooled-s42", {"tokens": {"mean": 40.5}})
        found = Found(folder, (42,))
        assert found.values("pooled", "removed:tokens.mean") == share
        assert ("(one seed)" in found.no_share("dpo", "tokens.mean")) == (not share)


def test_beside_the_papers_number_stands_the_difference_in_interval_widths(signed):
    table = panel_table(panel(DPO), Found(signed, SEEDS))
    cell = table.rows[1].cells[0]
    assert cell.paper == (0.964, 0.005)
    assert cell.difference == pytest.approx((0.96 - 0.964) / (cell.half + 0.005))


def test_columns_that_nobody_measured_are_left_out(signed):
    table = panel_table(panel(DPO), Found(signed, SEEDS))
    assert [column.label for column in table.columns] == ["p(woman)", "p(black)", "KL"]


def test_what_is_missing_is_said(signed):
    (signed / "dpo-s123" / "readouts.json").unlink()
    table = panel_table(panel(DPO), Found(signed, SEEDS))
    assert table.missing == ("dpo-s123",)
    assert table.rows[1].seeds == (42, 456)
    assert "not run: dpo-s123" in written_table(table, "text")


def test_a_single_seed_row_is_a_control_without_an_interval(signed):
    control = panel(Row("DPO", DPO.condition, "first"), POOLED)
    (table,) = tables(Suite("names", "Names", (control,)), signed.parent, SeedPlan(SEEDS))
    assert table.rows[1].is_control and not table.rows[2].is_control
    assert np.isnan(table.rows[1].cells[0].half)
    assert "DPO (seed 42 only)" in written_table(table, "text")
    (table,) = tables(
        Suite("names", "Names", (control,)), signed.parent, SeedPlan(SEEDS, control_seeds="all")
    )
    assert table.rows[1].seeds == SEEDS and not table.rows[1].is_control


def test_a_rescored_row_reads_the_same_runs_under_the_other_attribute(tmp_path):
    folder = tmp_path / "style"
    write(folder, "reference", {"markdown": {"matched": 0.5}})
    write(folder, "rdpo-s42", {"markdown": {"matched": 0.6}, "heldout": {"markdown": {"gap": -0.04}}})
    formatting = SUITES["multipref-formatting"].panels[0]
    rescored = next(row for row in formatting.rows if row.label == "R-DPO (0.005), re-scored")
    table = panel_table(
        Panel("tab:formatting", QWEN, Corpus("style"), (rescored,), formatting.columns), Found(folder, (42,))
    )
    assert [cell.mean for cell in table.rows[1].cells] == [0.6, -0.04]


def test_the_shift_is_in_standard_deviations_over_seeds(tmp_path):
    folder = tmp_path / "style"
    write(folder, "reference", {"tokens": {"mean": 10.0}})
    for seed, tokens in zip(SEEDS, (19.0, 20.0, 21.0), strict=True):
        write(folder, f"dpo-s{seed}", {"tokens": {"mean": tokens}})
    assert Found(folder, SEEDS).shift("dpo", "tokens.mean") == pytest.approx(10.0)


def test_a_torn_file_of_readouts_counts_as_none(signed):
    (signed / "dpo-s42" / "readouts.json").write_text('{"rates": {', encoding="utf-8")
    assert panel_table(panel(DPO), Found(signed, SEEDS)).missing == ("dpo-s42",)


# -- further panels ------------------------------------------------------------------------------------------------


def panel_named(suite_name: str, label: str) -> Panel:
    return next(panel for panel in SUITES[suite_name].panels if panel.label == label)


def test_the_spread_of_group_weights_is_that_of_the_last_step(signed):
    for i, seed in enumerate(SEEDS):
        lines = [{"step": 1, "groups/weight_sd": 9.0}, {"step": 2, "groups/weight_sd": 0.5 + i / 10}]
        log = "\n".join(json.dumps(line | {"groups/weight_max": 2.0}) for line in lines)
        (signed / f"group_dro-s{seed}" / "log.jsonl").write_text(log + "\n", encoding="utf-8")
    table = panel_table(panel_named("names", "sec:names_v3"), Found(signed, SEEDS))
    (row,) = table.rows
    assert row.label == "Group-DRO DPO" and row.cells[0].values == pytest.approx((0.5, 0.6, 0.7))
    assert [column.label for column in table.columns] == ["group weights, sd", "largest weight"]
    (signed / "group_dro-s42" / "log.jsonl").write_text('{"groups/weight_sd": 0.5', encoding="utf-8")
    again = panel_table(panel_named("names", "sec:names_v3"), Found(signed, SEEDS))
    assert again.rows[0].cells[0].values == pytest.approx((0.6, 0.7))


def test_types_stand_in_the_order_of_their_annotators(signed):
    for seed, annotators in zip(SEEDS, ([2, 57, 1], [55, 3, 2], [1, 2, 57]), strict=True):
        types = {"annotators": annotators, "weights": [n / 60 for n in annotators]}
        write(signed, f"em_dpo-s{seed}", names(0.9, 0.7, types=types))
    table = panel_table(panel_named("names", "sec:names_v3"), Found(signed, SEEDS))
    cells = {column.label: cell for column, cell in zip(table.columns, table.rows[-1].cells, strict=True)}
    assert cells["annotators of type 1"].values == (57, 55, 57)
    assert cells["type 3"].values == (1, 2, 1)
    assert cells["mixture weight of type 1"].mean == pytest.approx(np.mean([57, 55, 57]) / 60)


def theta(level, correlation, offsets):
    classes = {
        name: {"mean": 1 + offset, "offset": offset, "planted_mean": 1.1 + planted, "planted_offset": planted}
        for name, offset, planted in zip("ABC", offsets, (1.5, -1.5, 0.0), strict=True)
    }
    agreement = {"level": level, "planted_level": 1.1, "correlation": correlation, "classes": classes}
    return {"theta": {"woman": agreement, "black": agreement}}


def test_class_offsets_stand_beside_the_planted_and_the_papers(signed):
    for seed in SEEDS:
        write(signed, f"class-s{seed}", names(0.52, 0.55, **theta(0.8, 0.9, (1.0, -1.0, 0.0))))
        write(signed, f"pooled-s{seed}", names(0.55, 0.6, **theta(0.6, None, (0.0, 0.0, 0.0))))
    table = panel_table(panel_named("names-ablation", "app:abl_variants"), Found(signed, SEEDS))
    rows = {
        row.label: {c.label: cell for c, cell in zip(table.columns, row.cells, strict=True)}
        for row in table.rows
    }
    assert list(rows)[0] == "Planted" and rows["Planted"]["offset (race), B"].mean == -1.5
    assert rows["Planted"]["mean theta (race)"].mean == pytest.approx(1.1)
    offset = rows["Class"]["offset (race), A"]
    assert (offset.mean, offset.paper) == (1.0, (0.98, None))
    assert rows["BA-DPO (pooled)"]["correlation (race)"].values == ()
    assert "Planted" in written_table(table, "text") and "1.00 \u00b1 0.00 [0.98]" in written_table(
        table, "markdown"
    )


def test_an_arm_at_one_seed_of_the_scale_is_missing_at_that_seed_alone(signed):
    small = panel(DPO, Row("EM", Condition("em_dpo", "em_dpo")))
    found = found_runs(
        Suite("names", "Names", (small,)), small.corpus, signed.parent, SeedPlan(SEEDS, ("em_dpo",))
    )
    assert panel_table(small, found).missing == ("em_dpo-s42",)


def test_a_scale_decides_where_the_papers_controls_are_run():
    rows = [Row(word, Condition(word, "pooled"), word) for word in ("all", "first", "one")]
    assert SeedPlan(SEEDS).by_condition(rows) == {"all": SEEDS, "first": (42,), "one": (42,)}
    everywhere = SeedPlan(SEEDS, control_seeds="all")
    assert everywhere.by_condition(rows) == {"all": SEEDS, "first": SEEDS, "one": (42,)}
    assert SeedPlan(SEEDS, ("pooled",), "all").by_condition(rows) == dict.fromkeys(
        ("all", "first", "one"), (42,)
    )
    twice = [Row("control", DPO.condition, "first"), DPO, Row("control", DPO.condition, "first")]
    assert SeedPlan(SEEDS).by_condition(twice) == {"dpo": SEEDS}


def test_a_panel_without_a_value_says_so(signed):
    empty = panel(
        Row("EM", Condition("em_dpo", "em_dpo")), columns=panel_named("names", "sec:names_v3").columns
    )
    table = panel_table(empty, Found(signed, SEEDS))
    for text in (written_table(table, "text"), written_table(table, "markdown")):
        assert "nothing measured" in text and "not run: em_dpo-s42" in text and "| --- |" not in text
    page = suite_html(
        read_suite(Suite("names", "Names", (empty,)), SMALL, SEEDS, signed.parent), "--scale tiny"
    )
    assert "Nothing measured" in page


# -- the votes before training -----------------------------------------------------------------------------------


def votes_panel() -> Panel:
    return SUITES["attributes"].votes[0]


def test_the_votes_before_training_are_the_audits(tmp_path):
    judgments = material(Corpus("style"), None).judgments
    table = votes_table(votes_panel(), judgments)
    audited = {row["name"]: row for row in pool_attributes(judgments)}
    for row in table.rows:
        cells = {c.source: cell for c, cell in zip(table.columns, row.cells, strict=True)}
        assert {source: cell.mean for source, cell in cells.items()} == {
            source: audited[row.label][source] for source in cells
        }
        width = audited[row.label]["ci_high"] - audited[row.label]["ci_low"]
        assert cells["log_odds"].half == pytest.approx(width / 2)
    assert table.rows[0].cells[0].paper == (0.587, None)
    write(tmp_path / "style", "reference", {"tokens": {"mean": 30.0}})
    result = read_suite(SUITES["attributes"], SMALL, SEEDS, tmp_path)
    assert [one.panel.title for one in result.tables] == ["The votes, before training", QWEN]
    for form in ("text", "markdown", "latex", "csv"):
        assert "offline theta" in result.text(form)
    assert "offline theta" in suite_html(result, "--scale tiny") and result.to_json()["tables"][0]["rows"]


def test_an_attribute_whose_votes_all_go_one_way_has_a_dash():
    judgments = material(Corpus("style"), None).judgments
    toward = np.where(judgments.delta[:, 0] != 0, judgments.delta[:, 0], judgments.votes["sign"])
    table = votes_table(
        votes_panel(), replace(judgments, votes=judgments.votes.assign(sign=toward.astype(int)))
    )
    cells = {c.source: cell for c, cell in zip(table.columns, table.rows[0].cells, strict=True)}
    assert cells["carrier_wins"].mean == 1.0 and cells["log_odds"].values == ()
    json.dumps(to_json(table), allow_nan=False)


def test_what_is_cut_of_own_votes_is_said(tmp_path):
    rows = [
        {"prompt": f"question {i}", "response_a": "so " * (300 if i < 10 else 200), "response_b": "so " * n,
         "winner": "a", "annotator": f"p{i % 3}"}
        for i, n in enumerate([130] * 10 + [20] * 30)
    ]  # fmt: skip
    file = tmp_path / "votes.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    told = "\n".join(about_votes(Corpus("style"), SMALL, file))
    assert "votes: 40 judgments of 3 annotators on 40 comparisons of 40 prompts" in told
    assert "cut to 192 tokens" in told and "of responses their end" in told and "responses are longer" in told
    assert 'attribute "length" is measured on whole texts; in 0 % of the judgments' in told


# -- formats ---------------------------------------------------------------------------------------------------


def test_every_format_says_the_same(signed):
    table = panel_table(panel(DPO, POOLED), Found(signed, SEEDS))
    assert "0.960 \u00b1 0.025" in written_table(table, "text")
    assert "| DPO | 0.960 \u00b1 0.025 [0.964 \u00b1 0.005] |" in written_table(table, "markdown")
    assert r"DPO & 0.960 $\pm$ 0.025 &" in written_table(table, "latex") and r"89 \%" in written_table(
        table, "latex"
    )
    rows = list(csv.DictReader(io.StringIO(written_table(table, "csv"))))
    found = next(row for row in rows if (row["row"], row["column"]) == ("DPO", "p(woman)"))
    assert float(found["mean"]) == pytest.approx(0.96) and found["values"] == "0.95 0.96 0.97"
    assert json.loads(json.dumps(to_json(table), allow_nan=False))["rows"][1]["cells"]["p(woman)"][
        "paper"
    ] == [0.964, 0.005]


def test_a_formula_in_a_label_is_text_in_csv(signed):
    table = panel_table(panel(Row("=1+1", DPO.condition)), Found(signed, SEEDS))
    assert "'=1+1" in written_table(table, "csv")


def test_the_page_has_the_table_the_paper_and_the_patterns(signed):
    found = Suite("names", "Names <b>", (panel(DPO, POOLED),), ("amplifies_names", "removes_names"))
    html = suite_html(read_suite(found, SMALL, SEEDS, signed.parent), "--scale tiny")
    assert "Names &lt;b&gt;" in html and "<script" not in html
    assert "0.964 \u00b1 0.005" in html and html.count('class="subtitle"') == 5
    assert "DPO amplifies both attributes" in html and "reproduced" in html
