"""The suites and their plans; these tests train nothing."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from badpo.data.files import write_json
from badpo.data.problems import ConfigError
from badpo.readouts.names import CELLS, FIRST_NAMES
from badpo_paper.datasets import make_style_dataset
from badpo_paper.patterns import PATTERNS, VERDICTS, select_patterns
from badpo_paper.reproduce import make_reproduction, read_suite
from badpo_paper.schedule import Reproduction, read_states
from badpo_paper.settings import SCALES
from badpo_paper.suites import ARMS, SUITES, Condition, Offset, Panel, Row, Suite
from badpo_paper.tables import REFERENCE, load_paper_numbers
from tests.paper.suite_scale import SIGNED, STYLE, small, suite

SEEDS = (42, 123, 456)
DPO, POOLED = Condition("dpo"), Condition("pooled")


def list_paths(*suites: Suite, scale: str = "tiny", seeds=SEEDS) -> list[str]:
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
    sentences = re.findall(rf"^- (?:{'|'.join(VERDICTS)}): (.*?)(?: \([\w-]+\))?\. \S", section, re.M)
    assert sentences == [
        PATTERNS[name]["says"] for name in select_patterns(title.split(", ")[0].split()[0])
    ]


def test_suites_share_runs_and_anchored_runs_come_last(tmp_path):
    paths = list_paths(SUITES["offset"], seeds=(42, 123))
    assert paths[:3] == ["signed/reference", "signed/dpo-s42", "signed/dpo-s123"]
    assert paths[3:5] == ["signed/pooled-s42", "signed/pooled-s123"]
    assert [path.rsplit("-s")[-1] for path in paths[5:]] == ["42"] * 6 + ["123"] * 3
    assert set(list_paths(SUITES["names"], seeds=(42, 123))) > set(paths[:3])
    # a source without its own row is trained too
    exact = Condition("dpo", variant="exact_0.4", offset=Offset(DPO, 0.4, 1))
    alone = Suite("alone", "", (Panel("x", "", SIGNED, (Row("Exact", exact),), {}),))
    assert list_paths(alone, seeds=(42,)) == [*paths[:2], "signed/dpo_exact_0.4-s42"]
    paths_of = {name: set(list_paths(suite)) for name, suite in SUITES.items()}
    assert paths_of["votes"] & paths_of["names"] == paths_of["names"]
    assert {"style/dpo-s42", "style/rdpo-s42"} <= paths_of["multipref-length"] & paths_of[
        "multipref-formatting"
    ]
    everything = list_paths(*SUITES.values())
    assert len(set(everything)) == len(everything) < sum(map(len, paths_of.values()))
    is_reference = ["reference" in path for path in everything]
    assert is_reference == sorted(is_reference, reverse=True)
    assert [path for path in paths_of["names"] if "em_dpo" in path] == ["signed/em_dpo-s42"]
    assert "signed/pooled_lora_fast-s42" in paths_of["lora"]
    other = replace(DPO, overrides=(("beta", 0.5),))
    with pytest.raises(ConfigError, match="a different run with the folder signed/dpo-s42"):
        assert small(tmp_path, suite(DPO), suite(other)).runs


def test_a_plan_lists_the_state_of_each_run(tmp_path):
    for name in ("run.json", "readouts.json"):
        write_json(tmp_path / "signed" / "dpo-s42" / name, {})
    write_json(tmp_path / "signed" / "pooled-s42" / "begun.json", {})
    planned = read_states(small(tmp_path, suite(DPO, POOLED)))
    states = {"signed/reference": "to do", "signed/dpo-s42": "done", "signed/pooled-s42": "begun"}
    assert planned == states
    for scale in ("tiny", "paper"):
        every_suite = Reproduction(list(SUITES.values()), SCALES[scale], SEEDS, tmp_path / scale)
        assert set(read_states(every_suite).values()) == {"to do"}


def test_tables_name_the_model_that_replaces_the_model_of_the_paper(tmp_path):
    names = SUITES["names"]
    reproductions = (
        Reproduction([names], SCALES[scale], SEEDS, tmp_path) for scale in ("tiny", "paper")
    )
    tiny, paper = (read_suite(names, reproduction) for reproduction in reproductions)
    assert "has 0.4 million weights" in tiny.text()
    assert tiny.left_out == ("Llama-3.1-8B-Instruct, LoRA",) and paper.left_out == ()
    assert "in their place" not in paper.text()
    # the table of signatures is the last table, and exists only if signatures were measured
    samples = Reproduction([SUITES["names-samples"]], SCALES["tiny"], SEEDS, tmp_path)
    for name, n_tables in (("reference", 2), ("dpo-s42", 3)):
        shares = {"signatures": dict.fromkeys(FIRST_NAMES, 0.01)}
        write_json(tmp_path / "signed" / name / "readouts.json", shares)
        assert len(read_suite(*samples.suites, samples).tables) == n_tables


def test_a_table_of_votes_replaces_the_bundled_votes_at_the_scale_tiny(tmp_path):
    own_votes = make_style_dataset(60, 3).judgments
    own_votes.to_parquet(tmp_path / "own.parquet")
    reproduction = make_reproduction(
        "multipref-length", "tiny", SEEDS, tmp_path, tmp_path / "own.parquet"
    )
    own = reproduction.make_dataset(STYLE)
    train, held_out = own.split()
    assert reproduction.out.name == "tiny-own" and own.planted is None
    assert own.judgments.n_votes == own_votes.n_votes and train.attribute_names == (
        "length",
        "markdown",
    )
    # the prompts are repeated up to 300 answers
    assert set(own.prompts) == set(held_out.comparisons["prompt"]) and len(own.prompts) == 14 * 21
    assert not set(own.prompts) & set(train.comparisons["prompt"])
    result = read_suite(reproduction.suites[0], reproduction)
    assert f"{own_votes.n_votes} votes of 40 annotators" in result.text()
    assert "14 evaluation prompts, each answered 21 times" in result.text()


def test_a_file_replaces_the_public_corpus_of_a_suite(tmp_path):
    rows = tmp_path / "rows.parquet"

    def reproduce(name):
        return make_reproduction(name, "paper", SEEDS, tmp_path, rows)

    with pytest.raises(ConfigError, match="does not exist"):
        reproduce("multipref-length")
    rows.write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match="the corpus of one suite; name that suite"):
        reproduce("all")
    assert reproduce("names").out.name == "paper-rows" and reproduce("names").find_file(SIGNED) == rows
    # if a suite has both kinds of corpora, the file replaces the votes on length
    both = reproduce("mistral")
    assert {corpus.kind: both.find_file(corpus) for corpus in both.corpora} == {
        "signed": None,
        "style": rows,
    }
