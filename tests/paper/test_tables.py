"""Tables and their page, made from simulated readouts."""

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
    """Write the readouts of a run, or of a condition at consecutive seeds."""
    for seed, content in zip(SEEDS, readouts, strict=False):
        run = name if name == "reference" else f"{name}-s{seed}"
        write_json(folder / run / "readouts.json", content)


def names(woman, black, kl=0.02, **more):
    rates = {"woman": {"rate": woman}, "black": {"rate": black}}
    return {"rates": rates, "kl": {"per_token": kl}, **more}


def tokens(mean, **more):
    return {"tokens": {"mean": mean}, **more}


@pytest.fixture
def signed(tmp_path):
    """Readouts in which DPO is far from the reference, and pooled is near the reference."""
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


def find_panel(suite: str, label: str, of: str = "runs") -> Panel:
    panels = SUITES[suite].panels
    return next(panel for panel in panels if (panel.label, panel.of) == (label, of))


def read(folder, panel: Panel, seeds=SEEDS):
    return make_table(panel, PanelRuns(folder, seeds), dataset)


def cells(table) -> dict:
    return {row.label: row.cells for row in table.rows}


def test_a_cell_is_the_mean_over_seeds_and_a_share_requires_a_shift(signed):
    rows = cells(read(signed, panel(DPO, POOLED)))
    cell = rows["DPO"]["p(woman)"]
    assert cell.mean == pytest.approx(0.96) and cell.paper == (0.964, 0.005)
    assert cell.half_width == pytest.approx(t_interval([0.95, 0.96, 0.97]).half_width)
    spread = cells(read(signed, panel(DPO, spread="sd")))
    assert spread["DPO"]["p(woman)"].half_width == pytest.approx(0.01)
    # shares are computed at each seed
    expected = [(d - 0.55) / (d - 0.5) for d in (0.95, 0.96, 0.97)]
    assert rows["BA-DPO (pooled)"]["removed (woman)"].values == pytest.approx(expected)
    assert rows["DPO"]["removed (woman)"].values == ()
    write(signed, "dpo", *(names(woman, 0.98) for woman in (0.505, 0.495, 0.504)))
    table = read(signed, panel(DPO, POOLED))
    # the table leaves out columns without values
    assert table.columns == ["p(woman)", "p(black)", "removed (black)", "KL"]
    note = (
        "the share removed is not reported: DPO's shift in p(woman), "
        "+0.001 (\u22120.012 to +0.015), is not reliably above zero"
    )
    assert table.notes == (note,)
    assert note in format_table(table)


@pytest.mark.parametrize(
    ("means", "shares", "reason"),
    [
        ((30.0, 31.0, 29.5), {}, "\u22129.8 (\u221211.7 to \u22127.9)"),
        # with one seed, the shift itself must be positive
        ((41.0,), {42: 0.5}, ""),
        ((40.0,), {}, "(one seed)"),
    ],
)
def test_a_removed_share_requires_a_positive_shift(style, means, shares, reason):
    write(style, "dpo", *map(tokens, means))
    write(style, "pooled", *[tokens(40.5)] * len(means))
    runs = PanelRuns(style, SEEDS)
    assert runs.values("pooled", "removed:tokens.mean") == shares
    assert reason in runs.explain_missing_share("dpo", "removed:tokens.mean")
    assert runs.explain_missing_share("shared_mean", "removed:tokens.mean") == ""


def test_the_added_share_starts_at_the_placebo_with_the_same_seed(style):
    write(style, "dpo", *map(tokens, (60.0, 62.0, 64.0)))
    write(style, "pooled", *map(tokens, (42.0, 40.0, 40.0)))
    source = "added:tokens.mean"
    without_placebo = PanelRuns(style, SEEDS)
    assert without_placebo.values("pooled", source) == {}
    assert without_placebo.explain_missing_share("dpo", source) == ""
    write(style, "dpo_placebo", *map(tokens, (40.0, 42.0, 44.0)))
    runs = PanelRuns(style, SEEDS)
    # a share above 1 is an overshoot
    assert runs.values("pooled", source) == {42: 0.9, 123: 1.1, 456: 1.2}
    assert runs.values("dpo", source) == runs.values("dpo_placebo", source) == {}
    write(style, "dpo_placebo", *map(tokens, (40.0, 70.0, 50.0)))
    runs = PanelRuns(style, SEEDS)
    assert runs.values("pooled", source) == {}
    assert "from the placebo in tokens" in runs.explain_missing_share("dpo", source)


@pytest.mark.parametrize(
    ("source", "values"),
    [
        ("shift:tokens.mean", (9.0, 10.0, 11.0)),
        # in standard deviations over seeds
        ("amplified:tokens.mean", (10.0,)),
        ("distance:rate", (np.log(9),) * 3),
        ("distance:tokens.none", ()),
        # the last step of the log; the third log is truncated
        ("log:groups/weight_sd", (0.5, 0.6)),
        # types sorted by the number of annotators
        ("type:annotators.0", (57, 55, 57)),
        ("type:annotators.2", (1, 2, 1)),
        ("type:weights.0", (0.57, 0.55, 0.57)),
        ("anchor:woman.target", (0.3, 0.4, 0.5)),
    ],
)
def test_a_source_is_read_from_its_file(style, source, values):
    annotators = ([2, 57, 1], [55, 3, 2], [1, 2, 57])
    types = [{"annotators": counts, "weights": [n / 100 for n in counts]} for counts in annotators]
    write(style, "dpo", *(tokens(49.0 + i, rate=0.9, types=types[i]) for i in range(3)))
    for i, seed in enumerate(SEEDS):
        write_json(style / f"dpo-s{seed}" / "anchor.json", {"woman": {"target": 0.3 + i / 10}})
        lines = [{"groups/weight_sd": 9.0}, {"groups/weight_sd": 0.5 + i / 10}]
        log = "\n".join(map(json.dumps, lines))
        (style / f"dpo-s{seed}" / "log.jsonl").write_text(log[: -(i == 2) or None], encoding="utf-8")
    read_values = PanelRuns(style, SEEDS).values("dpo", source)
    assert read_values == pytest.approx(dict(zip(SEEDS, values, strict=False)))


def test_missing_and_truncated_runs_are_listed(signed):
    (signed / "dpo-s123" / "readouts.json").write_text('{"rates": {', encoding="utf-8")
    table = read(signed, panel(DPO))
    assert table.missing == ("dpo-s123",) and table.rows[1].seeds == (42, 456)
    assert "not run: dpo-s123" in format_table(table)
    em = panel(Row("EM", Condition("em_dpo")), columns=find_panel("names", "sec:names_v3").columns)
    text = format_table(read(signed, em))
    assert "nothing measured" in text and "not run: em_dpo-s42" in text and "|" not in text


def test_a_scale_determines_the_seeds_of_controls(signed):
    control = Row("control", DPO.condition, "first")
    suite = Suite("x", "", (panel(control, POOLED),))
    for control_seeds, is_single in (("first", True), ("all", False)):
        reproduction = small(signed.parent, suite, seeds=SEEDS, control_seeds=control_seeds)
        table = make_run_table(suite.panels[0], find_runs(suite, SIGNED, reproduction))
        _, row, pooled = table.rows
        # a control at a single seed is marked and has no interval
        assert row.is_control == is_single == np.isnan(row.cells["p(woman)"].half_width)
        assert ("control (seed 42 only)" in format_table(table)) == is_single
        assert not pooled.is_control
        assert reproduction.scale.select_seeds(replace(control, seeds="one"), SEEDS) == (42,)
        assert reproduction.scale.select_seeds(
            replace(control, condition=Condition("em_dpo")), SEEDS
        ) == (42,)
    # if several rows have a condition, the longest list of seeds is planned
    suite = Suite("x", "", (panel(control, DPO, control),))
    assert find_runs(suite, SIGNED, small(signed, suite, seeds=SEEDS)).planned_seeds("dpo") == SEEDS


def theta(level, correlation, offsets):
    rows = zip("ABC", offsets, (1.5, -1.5, 0.0), strict=True)
    classes = {name: {"offset": own, "planted_offset": planted} for name, own, planted in rows}
    agreement = {"level": level, "planted_level": 1.1, "correlation": correlation, "classes": classes}
    return {"theta": {"woman": agreement, "black": agreement}}


def test_the_first_row_has_the_mean_of_the_true_values_over_arms_and_seeds(signed):
    write(signed, "class", *[theta(0.8, 0.9, (1.0, -1.0, 0.0))] * 3)
    write(signed, "pooled", *[theta(0.6, None, (0.0, 0.0, 0.0))] * 3)
    table = read(signed, find_panel("names-ablation", "app:abl_variants"))
    rows = cells(table)
    assert list(rows)[0] == "Planted" and rows["Planted"]["offset (race), B"].mean == -1.5
    assert rows["Planted"]["mean theta (race)"].mean == pytest.approx(1.1)
    offset = rows["Class"]["offset (race), A"]
    assert (offset.mean, offset.paper) == (1.0, (0.98, None))
    assert rows["BA-DPO (pooled)"]["correlation (race)"].values == ()
    assert "1.00 \u00b1 0.00 [0.98]" in format_table(table)
    votes = [{"black": {"all": {"accuracy": accuracy}}} for accuracy in (0.7, 0.8, 0.9)]
    write(signed, "dpo", *({"votes": row, "ceiling": row} for row in votes))
    table = read(signed, find_panel("votes", "tab:votes"))
    assert cells(table)["Ceiling"]["race, all"].values == (pytest.approx(0.8),)


def test_tables_of_signatures_and_of_name_tokens(tmp_path):
    shifts = find_panel("names-samples", "app:abl_names", "signatures")
    none = dict.fromkeys(FIRST_NAMES, 0.0)
    assert read(tmp_path, shifts).rows == ()
    tokens_of_names = {"name_tokens": {"black_woman": {"n_names": 18, "mean_tokens": 2.0}}}
    write(tmp_path, "reference", {"signatures": none | {"Emily": 0.4, "Jamal": 0.1}, **tokens_of_names})
    assert read(tmp_path, shifts).rows == ()
    arm = {"Latisha": 0.9}, {"Latisha": 0.7, "Emily": 0.1}
    write(tmp_path, "dpo", *({"signatures": none | own} for own in arm))
    rows = cells(read(tmp_path, shifts))
    # the mean shift over seeds, which depends on one name
    black = rows["black"]
    assert black["shift of the share"].mean == pytest.approx(0.8 - 0.1)
    assert black["three names' share"].mean == pytest.approx(1.0)
    assert black["shift without them"].mean == pytest.approx(-0.1)
    assert black["shift of the share"].paper == (0.15, None)
    assert rows["woman"]["shift of the share"].paper is None
    rows = cells(read(tmp_path, find_panel("names-samples", "app:names", "names")))
    assert rows["black woman"]["tokens a name"].paper == (2.1, None)


VOTES = find_panel("attributes", "tab:attributes", "votes")


def test_the_table_of_votes_equals_the_audit(style):
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
    assert [table.panel.title for table in result.tables] == ["The votes, before training", QWEN]
    assert "offline theta" in result.text()
    # if all votes are for the response with the attribute, the log-odds are not finite
    style_dataset = dataset(STYLE)
    delta, votes = style_dataset.judgments.delta[:, 0], style_dataset.judgments.votes
    toward = votes.assign(sign=np.where(delta != 0, delta, votes["sign"]).astype(int))
    one_way = replace(style_dataset, judgments=replace(style_dataset.judgments, votes=toward))
    table = make_table(VOTES, PanelRuns(style, SEEDS), lambda corpus: one_way)
    row = table.rows[0].cells
    assert row["response with it wins"].mean == 1.0 and row["offline theta"].values == ()
    json.dumps(to_json(table), allow_nan=False)


def test_markdown_and_json_have_the_same_values(signed):
    table = read(signed, panel(DPO, POOLED))
    text = " ".join(format_table(table).split())
    assert "| DPO | 0.960 \u00b1 0.025 [0.964 \u00b1 0.005] |" in text
    assert "over seeds (Student's t)" in text and text.endswith("*values in brackets: the paper*")
    (cell,) = (
        entry
        for entry in json.loads(json.dumps(to_json(table), allow_nan=False))["cells"]
        if (entry["row"], entry["column"]) == ("DPO", "p(woman)")
    )
    assert cell["mean"] == pytest.approx(0.96) and cell["n_seeds"] == 3
    assert (cell["paper_mean"], cell["paper_half_width"]) == (0.964, 0.005)
    assert cell["values"] == [0.95, 0.96, 0.97]


def test_a_changed_penalty_has_a_footnote(style):
    whole = SUITES["multipref-ablation"].panels[0]
    facts = {"rdpo": {"fixed": 0.01}, "rdpo_strong": {"fixed": 0.04}}
    penalized = tuple(row for row in whole.rows if row.condition.arm in facts)
    for row in penalized:
        write(style, row.condition.name, tokens(20.0))
        run = {"facts": facts[row.condition.arm]}
        write_json(style / f"{row.condition.name}-s42" / "run.json", run)
    suite = Suite("test", "A test", (replace(whole, rows=penalized),))
    result = read_suite(suite, small(style.parent, suite))
    text = result.text()
    assert text.count("R-DPO (0.005): 0.005 is multiplied by 2.00") == 1
    assert text.count("R-DPO (0.02): 0.02 is multiplied by 2.00") == 1
    # the penalty of the paper has no footnote
    write_json(style / "rdpo-s42" / "run.json", {"facts": {"fixed": 0.005}})
    rows = {row.label: row.note for row in read(style, suite.panels[0], (42,)).rows}
    assert rows["R-DPO (0.005)"] == ""


def test_the_title_names_the_model_that_was_run(signed):
    suite = Suite("names", "Names", (panel(DPO, POOLED),))
    result = read_suite(suite, small(signed.parent, suite, seeds=SEEDS, model_title="a small model"))
    assert re.match(
        r"- Of the paper's patterns: \d+ reproduced, \d+ not measured\.\n- repro", result.text()
    )
    assert f"a small model (the paper: {QWEN})" in result.text()


def test_the_page_of_results_lists_every_pattern(style):
    write(style, "dpo", tokens(20.0))
    write(style, "pooled-length", tokens(25.0))
    write(style, "rdpo", {"heldout": {"length": {"gap": -0.1}}})
    suite = replace(SUITES["multipref-length"], panels=SUITES["multipref-length"].panels[:1])
    result = read_suite(suite, small(style.parent, suite))
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
