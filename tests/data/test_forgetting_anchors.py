"""A policy that was anchored from a run has learned from everybody who voted in that run."""

from __future__ import annotations

import json

import pytest

from badpo.data.forgetting import find_people, find_traces
from badpo.data.forgetting_anchors import BEGUN, RESULT
from badpo.data.problems import ConfigError

PERSON, OTHER = "ann_wdfyjw2xn4g5pc", "ann_2222222222bat7"


def run(folder, name, annotators):
    here = folder / name
    (here / "model").mkdir(parents=True)
    (here / "bias.json").write_text(json.dumps({"annotators": annotators}))
    return here


def anchor(folder, name, source, model=True):
    here = folder / name
    (here / "model" if model else here).mkdir(parents=True)
    (here / RESULT).write_text(json.dumps({"source": source, "woman": {"asked": 0.5}}))
    return here


def anchored(*folders):
    traces = find_traces(find_people([PERSON]), runs=folders)
    found = [trace for trace in traces if "anchored" in trace.what]
    assert all(trace.erase is None and "anchor it again" in trace.remedy for trace in found)
    return [trace.path for trace in found]


def test_the_policies_anchored_from_their_runs_are_listed_and_no_others(tmp_path):
    run(tmp_path, "dpo-s42", [PERSON, OTHER])
    run(tmp_path, "dpo-s7", [OTHER])
    first = anchor(tmp_path, "dpo-s42-anchored", "dpo-s42")
    elsewhere = anchor(tmp_path / "anchors", "half", "dpo-s42")
    anchor(tmp_path, "dpo-s7-anchored", "dpo-s7")
    anchor(tmp_path, "sampled", "dpo-s42", model=False)
    anchor(tmp_path, "gpt-anchored", "gpt")
    assert anchored(tmp_path) == [elsewhere / "model", first / "model"]


def test_a_policy_beside_the_run_that_is_named_is_listed_once(tmp_path):
    folder = run(tmp_path, "dpo-s42", [PERSON])
    here = anchor(tmp_path, "dpo-s42-anchored", "dpo-s42")
    assert anchored(folder) == [here / "model"]
    assert anchored(folder, tmp_path) == [here / "model"]


def test_a_policy_anchored_from_an_anchored_one_is_listed(tmp_path):
    run(tmp_path, "dpo-s42", [PERSON])
    first = anchor(tmp_path, "dpo-s42-anchored", "dpo-s42")
    second = anchor(tmp_path, "again", "dpo-s42-anchored")
    assert anchored(tmp_path) == [second / "model", first / "model"]


def test_a_run_of_the_same_name_in_another_folder_is_not_its_source(tmp_path):
    run(tmp_path / "one", "dpo-s42", [PERSON])
    run(tmp_path / "two", "dpo-s42", [OTHER])
    anchor(tmp_path / "two", "dpo-s42-anchored", "dpo-s42")
    assert anchored(tmp_path) == []


def test_the_rounds_of_an_interrupted_anchor_are_listed(tmp_path):
    source = run(tmp_path, "dpo-s42", [PERSON])
    work = tmp_path / ".dpo-s42-anchored.anchoring"
    for number in (1, 2):
        (work / f"round-{number}" / "model").mkdir(parents=True)
    (work / BEGUN).write_text(json.dumps({"source": "dpo-s42", "lines": {}}))
    rounds = [work / f"round-{number}" / "model" for number in (1, 2)]
    assert anchored(tmp_path) == anchored(source) == rounds


def test_the_names_are_those_which_an_anchor_writes():
    files = pytest.importorskip("badpo.experiments.anchor_files")
    assert (files.RESULT, files.BEGUN) == (RESULT, BEGUN)


def test_a_result_that_cannot_be_read_is_named(tmp_path):
    run(tmp_path, "dpo-s42", [PERSON])
    (anchor(tmp_path, "a", "dpo-s42") / RESULT).write_text("{")
    with pytest.raises(ConfigError, match=r"anchor\.json does not tell what was anchored"):
        anchored(tmp_path)
