"""The suites as data, and their plans. Nothing is trained here."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from badpo.data.files import write_json
from badpo.data.problems import ConfigError
from badpo.readouts.names import CELLS, FIRST_NAMES
from badpo_paper.arms import ARMS
from badpo_paper.datasets import make_style_dataset
from badpo_paper.patterns import PATTERNS, VERDICTS, select_patterns
from badpo_paper.reproduce import make_reproduction, read_suite
from badpo_paper.schedule import Reproduction, plan
from badpo_paper.settings import SCALES
from badpo_paper.suites import SUITES, Condition, Offset, Panel, Row, Suite
from badpo_paper.tables import REFERENCE, load_paper_numbers
from tests.paper.suite_scale import SIGNED, STYLE, small, suite

SEEDS = (42, 123, 456)
DPO, POOLED = Condition("dpo"), Condition("pooled")


def runs_of(*suites: Suite, scale: str = "tiny", seeds=SEEDS) -> list[str]:
    return [run.path for run in Reproduction(suites, SCALES[scale], seeds, None).runs]


OTHER_ROWS = {
    "votes": {"length", "markdown"},
    "signatures": {"woman", "black"},
    "names": {cell.replace("_", " ") for cell in CELLS},
}


def test_every_number_has_its_row_and_interval_every_row_an_arm_and_every_pattern_a_suite():
    every = [panel for found in SUITES.values() for panel in found.panels]
    panels = {(panel.label, panel.title): panel for panel in every}
    for label, by_title in load_paper_numbers().items():
        for title, rows in by_title.items():
            panel, place = panels[label, title], (label, title)
            labels = {REFERENCE, panel.truth, *(row.label for row in panel.rows)}
            assert set(rows) <= OTHER_ROWS.get(panel.of, labels), place
            assert {column for row in rows.values() for column in row} <= set(panel.columns), place
    spreads = {label: panel.spread for (label, _), panel in panels.items()}
    expected = dict.fromkeys(("names_v3", "multipref", "formatting", "mistral"), "t95")
    expected |= {"abl_names_v3": "sd", "abl_multipref": "sd"}
    assert {name: spreads[f"tab:{name}"] for name in expected} == expected
    rows = [row for found in SUITES.values() for panel in found.panels for row in panel.rows]
    assert {row.condition.arm for row in rows} | {"reference"} == set(ARMS)
    assert {name for found in SUITES.values() for name in select_patterns(found.name)} == set(PATTERNS)


@pytest.mark.parametrize("title", ["names, ", "multipref-length, ", "multipref-length on "])
def test_a_section_of_the_page_of_tables_has_every_pattern_of_its_suite_with_verdict_and_readings(title):
    page = Path(__file__).parents[2] / "docs" / "results" / "paper_tables.md"
    now = page.read_text("utf-8").partition("## At the former settings")[0]
    (section,) = re.findall(rf"^### {title}[^\n]*\n(.*?)(?=^### |\Z)", now, re.M | re.S)
    told = re.findall(rf"^- (?:{'|'.join(VERDICTS)}): (.*?)(?: \([\w-]+\))?\. \S", section, re.M)
    assert told == [PATTERNS[name]["says"] for name in select_patterns(title.split(", ")[0].split()[0])]


def test_suites_share_their_runs_one_name_means_one_run_and_anchors_come_behind(tmp_path):
    places = runs_of(SUITES["offset"], seeds=(42, 123))
    assert places[:3] == ["signed/reference", "signed/dpo-s42", "signed/dpo-s123"]
    assert places[3:5] == ["signed/pooled-s42", "signed/pooled-s123"]
    assert [place.rsplit("-s")[-1] for place in places[5:]] == ["42"] * 6 + ["123"] * 3
    assert set(runs_of(SUITES["names"], seeds=(42, 123))) > set(places[:3])
    # a source that stands in no row of its own is trained all the same
    exact = Condition("dpo", variant="exact_0.4", offset=Offset(DPO, 0.4, 1))
    alone = Suite("alone", "", (Panel("x", "", SIGNED, (Row("Exact", exact),), {}),))
    assert runs_of(alone, seeds=(42,)) == [*places[:2], "signed/dpo_exact_0.4-s42"]
    each = {name: set(runs_of(found)) for name, found in SUITES.items()}
    assert each["votes"] & each["names"] == each["names"]
    assert {"style/dpo-s42", "style/rdpo-s42"} <= each["multipref-length"] & each["multipref-formatting"]
    everything = runs_of(*SUITES.values())
    assert len(set(everything)) == len(everything) < sum(map(len, each.values()))
    is_reference = ["reference" in place for place in everything]
    assert is_reference == sorted(is_reference, reverse=True)
    assert [place for place in each["names"] if "em_dpo" in place] == ["signed/em_dpo-s42"]
    assert "signed/pooled_lora_fast-s42" in each["lora"]
    other = replace(DPO, overrides=(("beta", 0.5),))
    with pytest.raises(ConfigError, match="a different run with the folder signed/dpo-s42"):
        assert small(tmp_path, suite(DPO), suite(other)).runs


def test_a_plan_tells_what_is_there(tmp_path):
    for name in ("run.json", "readouts.json"):
        write_json(tmp_path / "signed" / "dpo-s42" / name, {})
    write_json(tmp_path / "signed" / "pooled-s42" / "begun.json", {})
    planned = plan(small(tmp_path, suite(DPO, POOLED)))
    states = {"signed/reference": "to do", "signed/dpo-s42": "done", "signed/pooled-s42": "begun"}
    assert planned == {"states": states, "about": []}


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["tiny", "paper"])
def test_every_scale_can_plan_everything_and_tells_which_corpora_are_out_of_reach(scale, tmp_path):
    planned = plan(Reproduction(list(SUITES.values()), SCALES[scale], SEEDS, tmp_path))
    assert set(planned["states"].values()) == {"to do"}
    unread = [line for line in planned["about"] if "are not read" in line]
    votes = ["the votes of signed", "the votes of style"] if scale == "paper" else []
    assert [line.split(" are")[0] for line in unread] == votes
    assert all("E190" in line for line in unread)


def test_tables_say_what_stands_in_for_the_models_they_name(tmp_path):
    names = SUITES["names"]
    asked = (Reproduction([names], SCALES[scale], SEEDS, tmp_path) for scale in ("tiny", "paper"))
    tiny, paper = (read_suite(names, one) for one in asked)
    assert "has 0.4 million weights" in tiny.text()
    assert tiny.left_out == ("Llama-3.1-8B-Instruct, LoRA",) and paper.left_out == ()
    assert "in their place" not in paper.text()
    # a table of signatures stands behind the others, once there is something to show
    samples = Reproduction([SUITES["names-samples"]], SCALES["tiny"], SEEDS, tmp_path)
    for name, n_tables in (("reference", 2), ("dpo-s42", 3)):
        shares = {"signatures": dict.fromkeys(FIRST_NAMES, 0.01)}
        write_json(tmp_path / "signed" / name / "readouts.json", shares)
        assert len(read_suite(*samples.suites, samples).tables) == n_tables


def test_a_table_of_votes_replaces_the_bundled_ones_at_a_laptops_scale(tmp_path):
    make_bundled_dataset = make_style_dataset(60, 3).judgments
    make_bundled_dataset.to_parquet(tmp_path / "own.parquet")
    asked = make_reproduction("multipref-length", "tiny", SEEDS, tmp_path, tmp_path / "own.parquet")
    found = asked.make_dataset(STYLE)
    train, held_out = found.split()
    assert asked.out.name == "tiny-own" and found.planted is None
    assert found.judgments.n_votes == make_bundled_dataset.n_votes and train.attribute_names == (
        "length",
        "markdown",
    )
    # 300 answers at most
    assert set(found.prompts) == set(held_out.comparisons["prompt"]) and len(found.prompts) == 14 * 21
    assert not set(found.prompts) & set(train.comparisons["prompt"])
    result = read_suite(asked.suites[0], asked)
    assert f"{make_bundled_dataset.n_votes} votes of 40 annotators" in result.text()
    assert "14 evaluation prompts, each answered 21 times" in result.text()


def test_a_file_stands_in_the_place_of_one_suites_public_corpus(tmp_path):
    rows = tmp_path / "rows.parquet"

    def asked(name):
        return make_reproduction(name, "paper", SEEDS, tmp_path, rows)

    with pytest.raises(ConfigError, match="does not exist"):
        asked("multipref-length")
    rows.write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match="the corpus of one suite; name that suite"):
        asked("all")
    assert asked("names").out.name == "paper-rows" and asked("names").find_file(SIGNED) == rows
    # of a suite on both kinds it has the votes on length
    both = asked("mistral")
    assert {one.kind: both.find_file(one) for one in both.corpora} == {"signed": None, "style": rows}
