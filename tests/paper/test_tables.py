"""Tables and their page, from readouts that were written by hand."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from badpo.auditing.pool_bias import pool_attributes
from badpo.data.files import write_json
from badpo.readouts.names import FIRST_NAMES
from badpo.theory.summaries import t_interval
from badpo_paper.reproduce import find_runs, format_page, read_suite
from badpo_paper.suites import SUITES, Condition, Panel, Row, Suite
from badpo_paper.tables import PanelRuns, format_table, make_run_table, make_table, to_json
from tests.paper.suite_scale import SIGNED, STYLE, dataset, small

SEEDS = (42, 123, 456)
QWEN = "Qwen2.5-0.5B-Instruct, full fine-tuning"
DPO, POOLED = Row("DPO", Condition("dpo")), Row("BA-DPO (pooled)", Condition("pooled"))


def write(folder, name, *readouts):
    """The readouts of a run, or of a condition at the seeds in turn."""
    for seed, found in zip(SEEDS, readouts, strict=False):
        run = name if name == "reference" else f"{name}-s{seed}"
        write_json(folder / run / "readouts.json", found)


def names(woman, black, kl=0.02, **more):
    rates = {"woman": {"rate": woman}, "black": {"rate": black}}
    return {"rates": rates, "kl": {"per_token": kl}, **more}


def tokens(mean, **more):
    return {"tokens": {"mean": mean}, **more}


@pytest.fixture
def signed(tmp_path):
    """DPO far up, pooled near the reference, each seed a little apart."""
    folder = tmp_path / "signed"
    write(folder, "reference", names(0.5, 0.5))
    write(folder, "dpo", *(names(0.95 + i / 100, 0.98, kl=0.03) for i in range(3)))
    write(folder, "pooled", *(names(0.55, 0.60 + i / 100) for i in range(3)))
    return folder


@pytest.fixture
def style(tmp_path):
    write(tmp_path / "style", "reference", tokens(40.0, rate=0.5))
    return tmp_path / "style"


def panel(*rows, columns=SUITES["names"].panels[0].columns, spread="t95"):
    return Panel("tab:names_v3", QWEN, SIGNED, rows, columns, spread)


def panel_named(suite: str, label: str, of: str = "runs") -> Panel:
    every = SUITES[suite].panels
    return next(panel for panel in every if (panel.label, panel.of) == (label, of))


def read(folder, asked: Panel, seeds=SEEDS):
    return make_table(asked, PanelRuns(folder, seeds), dataset)


def cells(table) -> dict:
    return {row.label: row.cells for row in table.rows}


def test_a_cell_is_the_mean_over_seeds_and_there_is_no_share_of_a_shift_that_was_not_made(signed):
    found = cells(read(signed, panel(DPO, POOLED)))
    cell = found["DPO"]["p(woman)"]
    assert cell.mean == pytest.approx(0.96) and cell.paper == (0.964, 0.005)
    assert cell.half_width == pytest.approx(t_interval([0.95, 0.96, 0.97]).half_width)
    spread = cells(read(signed, panel(DPO, spread="sd")))
    assert spread["DPO"]["p(woman)"].half_width == pytest.approx(0.01)
    # shares are taken seed by seed
    expected = [(d - 0.55) / (d - 0.5) for d in (0.95, 0.96, 0.97)]
    assert found["BA-DPO (pooled)"]["removed (woman)"].values == pytest.approx(expected)
    assert found["DPO"]["removed (woman)"].values == ()
    write(signed, "dpo", *(names(woman, 0.98) for woman in (0.505, 0.495, 0.504)))
    table = read(signed, panel(DPO, POOLED))
    # columns that nobody measured are left out
    assert table.columns == ["p(woman)", "p(black)", "removed (black)", "KL"]
    note = (
        "removed share not defined: DPO's own shift in p(woman), "
        "+0.001 (\u22120.012 to +0.015), does not lie above zero"
    )
    assert table.notes == (note,)
    assert note in format_table(table)


@pytest.mark.parametrize(
    ("means", "shares", "why"),
    [
        ((30.0, 31.0, 29.5), {}, "\u22129.8 (\u221211.7 to \u22127.9)"),
        # with one seed the shift itself decides
        ((41.0,), {42: 0.5}, ""),
        ((40.0,), {}, "(one seed)"),
    ],
)
def test_there_is_a_share_of_a_shift_up_alone(style, means, shares, why):
    write(style, "dpo", *map(tokens, means))
    write(style, "pooled", *[tokens(40.5)] * len(means))
    found = PanelRuns(style, SEEDS)
    assert found.values("pooled", "removed:tokens.mean") == shares
    assert why in found.explain_missing_share("dpo", "removed:tokens.mean")
    assert found.explain_missing_share("shared_mean", "removed:tokens.mean") == ""


def test_a_share_of_the_votes_part_starts_at_the_placebo_with_the_same_seed(style):
    write(style, "dpo", *map(tokens, (60.0, 62.0, 64.0)))
    write(style, "pooled", *map(tokens, (42.0, 40.0, 40.0)))
    source = "added:tokens.mean"
    found = PanelRuns(style, SEEDS)
    assert (
        found.values("pooled", source) == {} and found.explain_missing_share("dpo", source) == ""
    )  # no placebo
    write(style, "dpo_placebo", *map(tokens, (40.0, 42.0, 44.0)))
    found = PanelRuns(style, SEEDS)
    assert found.values("pooled", source) == {42: 0.9, 123: 1.1, 456: 1.2}  # above 1: an overshoot
    assert found.values("dpo", source) == found.values("dpo_placebo", source) == {}
    write(style, "dpo_placebo", *map(tokens, (40.0, 70.0, 50.0)))
    found = PanelRuns(style, SEEDS)
    assert found.values("pooled", source) == {}
    assert "from the placebo in tokens" in found.explain_missing_share("dpo", source)


@pytest.mark.parametrize(
    ("source", "values"),
    [
        ("shift:tokens.mean", (9.0, 10.0, 11.0)),
        # in standard deviations over seeds
        ("amplified:tokens.mean", (10.0,)),
        ("distance:rate", (np.log(9),) * 3),
        ("distance:tokens.none", ()),
        # of the last step; the last log is torn
        ("log:groups/weight_sd", (0.5, 0.6)),
        # in the order of their annotators
        ("type:annotators.0", (57, 55, 57)),
        ("type:annotators.2", (1, 2, 1)),
        ("type:weights.0", (0.57, 0.55, 0.57)),
        ("anchor:woman.target", (0.3, 0.4, 0.5)),
    ],
)
def test_where_a_value_is_read(style, source, values):
    annotators = ([2, 57, 1], [55, 3, 2], [1, 2, 57])
    types = [{"annotators": own, "weights": [n / 100 for n in own]} for own in annotators]
    write(style, "dpo", *(tokens(49.0 + i, rate=0.9, types=types[i]) for i in range(3)))
    for i, seed in enumerate(SEEDS):
        write_json(style / f"dpo-s{seed}" / "anchor.json", {"woman": {"target": 0.3 + i / 10}})
        lines = [{"groups/weight_sd": 9.0}, {"groups/weight_sd": 0.5 + i / 10}]
        log = "\n".join(map(json.dumps, lines))
        (style / f"dpo-s{seed}" / "log.jsonl").write_text(log[: -(i == 2) or None], encoding="utf-8")
    found = PanelRuns(style, SEEDS).values("dpo", source)
    assert found == pytest.approx(dict(zip(SEEDS, values, strict=False)))


def test_what_is_missing_or_torn_is_said(signed):
    (signed / "dpo-s123" / "readouts.json").write_text('{"rates": {', encoding="utf-8")
    table = read(signed, panel(DPO))
    assert table.missing == ("dpo-s123",) and table.rows[1].seeds == (42, 456)
    assert "not run: dpo-s123" in format_table(table)
    em = panel(Row("EM", Condition("em_dpo")), columns=panel_named("names", "sec:names_v3").columns)
    text = format_table(read(signed, em))
    assert "nothing measured" in text and "not run: em_dpo-s42" in text and "|" not in text


def test_a_scale_decides_where_the_papers_controls_are_run(signed):
    control = Row("control", DPO.condition, "first")
    suite = Suite("x", "", (panel(control, POOLED),))
    for where, is_single in (("first", True), ("all", False)):
        asked = small(signed.parent, suite, seeds=SEEDS, control_seeds=where)
        table = make_run_table(suite.panels[0], find_runs(suite, SIGNED, asked))
        _, row, pooled = table.rows
        # at a single seed it is marked, and has no interval
        assert row.is_control == is_single == np.isnan(row.cells["p(woman)"].half_width)
        assert ("control (seed 42 only)" in format_table(table)) == is_single
        assert not pooled.is_control
        assert asked.scale.select_seeds(replace(control, seeds="one"), SEEDS) == (42,)
        assert asked.scale.select_seeds(replace(control, condition=Condition("em_dpo")), SEEDS) == (42,)
    # of a condition in several rows the most seeds are planned
    suite = Suite("x", "", (panel(control, DPO, control),))
    assert find_runs(suite, SIGNED, small(signed, suite, seeds=SEEDS)).planned_seeds("dpo") == SEEDS


def theta(level, correlation, offsets):
    rows = zip("ABC", offsets, (1.5, -1.5, 0.0), strict=True)
    classes = {name: {"offset": own, "planted_offset": planted} for name, own, planted in rows}
    found = {"level": level, "planted_level": 1.1, "correlation": correlation, "classes": classes}
    return {"theta": {"woman": found, "black": found}}


def test_what_was_planted_stands_above_as_the_mean_over_arms_and_seeds(signed):
    write(signed, "class", *[theta(0.8, 0.9, (1.0, -1.0, 0.0))] * 3)
    write(signed, "pooled", *[theta(0.6, None, (0.0, 0.0, 0.0))] * 3)
    table = read(signed, panel_named("names-ablation", "app:abl_variants"))
    rows = cells(table)
    assert list(rows)[0] == "Planted" and rows["Planted"]["offset (race), B"].mean == -1.5
    assert rows["Planted"]["mean theta (race)"].mean == pytest.approx(1.1)
    offset = rows["Class"]["offset (race), A"]
    assert (offset.mean, offset.paper) == (1.0, (0.98, None))
    assert rows["BA-DPO (pooled)"]["correlation (race)"].values == ()
    assert "1.00 \u00b1 0.00 [0.98]" in format_table(table)
    told = [{"black": {"all": {"accuracy": accuracy}}} for accuracy in (0.7, 0.8, 0.9)]
    write(signed, "dpo", *({"votes": own, "ceiling": own} for own in told))
    table = read(signed, panel_named("votes", "tab:votes"))
    assert cells(table)["Ceiling"]["race, all"].values == (pytest.approx(0.8),)


def test_signatures_and_tokens_of_names_stand_cell_by_cell(tmp_path):
    shifts = panel_named("names-samples", "app:abl_names", "signatures")
    none = dict.fromkeys(FIRST_NAMES, 0.0)
    assert read(tmp_path, shifts).rows == ()
    kept = {"name_tokens": {"black_woman": {"n_names": 18, "mean_tokens": 2.0}}}
    write(tmp_path, "reference", {"signatures": none | {"Emily": 0.4, "Jamal": 0.1}, **kept})
    assert read(tmp_path, shifts).rows == ()
    arm = {"Latisha": 0.9}, {"Latisha": 0.7, "Emily": 0.1}
    write(tmp_path, "dpo", *({"signatures": none | own} for own in arm))
    found = cells(read(tmp_path, shifts))
    # the mean over seeds, which hangs on one name
    black = found["black"]
    assert black["shift of the share"].mean == pytest.approx(0.8 - 0.1)
    assert black["three names' share"].mean == pytest.approx(1.0)
    assert black["shift without them"].mean == pytest.approx(-0.1)
    assert black["shift of the share"].paper == (0.15, None)
    assert found["woman"]["shift of the share"].paper is None
    found = cells(read(tmp_path, panel_named("names-samples", "app:names", "names")))
    assert found["black woman"]["tokens a name"].paper == (2.1, None)


VOTES = panel_named("attributes", "tab:attributes", "votes")


def test_the_votes_before_training_are_the_audits(style):
    table = read(style, VOTES)
    audited = {row["name"]: row for row in pool_attributes(dataset(STYLE).judgments)}
    for row in table.rows:
        own = audited[row.label]
        assert all(row.cells[name].mean == own[VOTES.columns[name]] for name in table.columns)
        assert row.cells["offline theta"].half_width == pytest.approx(
            (own["ci_high"] - own["ci_low"]) / 2
        )
    assert table.rows[0].cells["cross-group"].paper == (0.587, None)
    suite = SUITES["attributes"]
    result = read_suite(suite, small(style.parent, suite, seeds=SEEDS))
    assert [one.panel.title for one in result.tables] == ["The votes, before training", QWEN]
    assert "offline theta" in result.text()
    # votes that all go one way have no finite log-odds
    found = dataset(STYLE)
    delta, votes = found.judgments.delta[:, 0], found.judgments.votes
    toward = votes.assign(sign=np.where(delta != 0, delta, votes["sign"]).astype(int))
    one_way = replace(found, judgments=replace(found.judgments, votes=toward))
    table = make_table(VOTES, PanelRuns(style, SEEDS), lambda corpus: one_way)
    row = table.rows[0].cells
    assert row["response with it wins"].mean == 1.0 and row["offline theta"].values == ()
    json.dumps(to_json(table), allow_nan=False)


def test_every_format_says_the_same(signed):
    table = read(signed, panel(DPO, POOLED))
    text = " ".join(format_table(table).split())
    assert "| DPO | 0.960 \u00b1 0.025 [0.964 \u00b1 0.005] |" in text
    assert "over seeds (Student's t)" in text and text.endswith("*values in brackets: the paper*")
    (cell,) = (
        one
        for one in json.loads(json.dumps(to_json(table), allow_nan=False))["cells"]
        if (one["row"], one["column"]) == ("DPO", "p(woman)")
    )
    assert cell["mean"] == pytest.approx(0.96) and cell["n_seeds"] == 3
    assert (cell["paper_mean"], cell["paper_half_width"]) == (0.964, 0.005)
    assert cell["values"] == [0.95, 0.96, 0.97]


def test_every_format_has_the_footnotes_of_its_rows(style):
    whole = SUITES["multipref-ablation"].panels[0]
    facts = {"rdpo": {"fixed": 0.01}, "rdpo_strong": {"fixed": 0.04}}
    shown = tuple(row for row in whole.rows if row.condition.arm in facts)
    for row in shown:
        write(style, row.condition.name, tokens(20.0))
        run = {"facts": facts[row.condition.arm]}
        write_json(style / f"{row.condition.name}-s42" / "run.json", run)
    found = Suite("test", "A test", (replace(whole, rows=shown),))
    result = read_suite(found, small(style.parent, found))
    text = result.text()
    assert text.count("R-DPO (0.005): 0.005 is multiplied by 2.00") == 1
    assert text.count("R-DPO (0.02): 0.02 is multiplied by 2.00") == 1
    # trained as the paper has it, there is nothing to say
    write_json(style / "rdpo-s42" / "run.json", {"facts": {"fixed": 0.005}})
    rows = {row.label: row.notes for row in read(style, found.panels[0], (42,)).rows}
    assert rows["R-DPO (0.005)"] == ()


def test_the_title_names_the_model_that_was_run(signed):
    found = Suite("names", "Names", (panel(DPO, POOLED),))
    result = read_suite(found, small(signed.parent, found, seeds=SEEDS, model_title="a small model"))
    assert re.match(
        r"- Of the paper's patterns: \d+ reproduced, \d+ not measured\.\n- repro", result.text()
    )
    assert f"a small model (the paper: {QWEN})" in result.text()


def test_the_page_of_results_has_every_pattern_whatever_became_of_it(style):
    write(style, "dpo", tokens(20.0))
    write(style, "pooled-length", tokens(25.0))
    write(style, "rdpo", {"heldout": {"length": {"gap": -0.1}}})
    found = replace(SUITES["multipref-length"], panels=SUITES["multipref-length"].panels[:1])
    result = read_suite(found, small(style.parent, found))
    page = format_page([result], "badpo reproduce multipref-length")
    assert {p.verdict for p in result.patterns} == {
        "reproduced",
        "pattern not reproduced",
        "not measured",
    }
    for pattern in result.patterns:
        row = f"| `multipref-length` | `{pattern.place}` | {pattern.sentence} | {pattern.verdict} |"
        assert row in page
        assert f"- {pattern.verdict}: {pattern.sentence}. {'; '.join(pattern.figures)}" in page
    assert format_table(result.tables[0]) in page and "badpo reproduce multipref-length" in page
