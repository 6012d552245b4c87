"""Forgetting a person in runs of EM-DPO and of weighted groups, whose files hold a number for everyone, by index."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from badpo.data.files import RUN_SEAL, read_seal, run_damage, write_seal
from badpo.data.forgetting import erase, find_people, find_traces
from badpo.data.privacy import KEY_VARIABLE, pseudonyms
from badpo.data.problems import ConfigError

save = pytest.importorskip("safetensors.numpy").save
PEOPLE = ["ann", "tom", "mia"]
# in no other file of a run, so that what is left of a person is found by their digits
PROBABILITIES = {"ann": [0.25, 0.75], "tom": [0.8125, 0.1875], "mia": [0.625, 0.375]}
TOMS = [b"0.8125", b"0.1875"]


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, "a key that only this test knows")


@pytest.fixture
def arm(tmp_path) -> Path:
    """The folder that `badpo.experiments.em_dpo.fit_types` leaves, with a checkpoint for each type."""
    folder = tmp_path / "runs" / "em_dpo-s42"
    for k in range(2):
        weights = np.array([PROBABILITIES[name][k] for name in PEOPLE])
        run = folder / f"type{k}"
        write_bias(run)
        (run / "model").mkdir()
        facts = {"seed": 42, "annotator_weights": weights.tolist()}
        (run / "begun.json").write_text(json.dumps({"key": "k", "facts": facts}))
        write_seal(run / RUN_SEAL, {"key": "k", "facts": facts}, ["bias.json", "bias.safetensors"])
        checkpoint = run / "checkpoints" / "checkpoint-4"
        write_bias(checkpoint)
        (checkpoint / "objective.safetensors").write_bytes(save({"annotator_weights": weights}))
        (checkpoint / "complete.json").write_text("{}")
    for number in range(2):
        write_round(folder / f"round{number}.json")
    return folder


def write_bias(folder: Path) -> None:
    folder.mkdir(parents=True)
    content = save({"fixed": np.zeros((3, 1), dtype=np.float32), "mask": np.ones(3, dtype=np.float32)})
    (folder / "bias.safetensors").write_bytes(content)
    description = {
        "format": 1,
        "attributes": ["length"],
        "parts": [],
        "annotators": pseudonyms(PEOPLE),
        "annotator_class": None,
        "sha256": hashlib.sha256(content).hexdigest(),
        "extra": {},
    }
    (folder / "bias.json").write_text(json.dumps(description))


def write_round(path: Path) -> None:
    path.write_text(json.dumps({"key": "f00", "probabilities": [PROBABILITIES[name] for name in PEOPLE]}))


def forget(*annotators: str, runs: Path, **how) -> list:
    traces = find_traces(find_people(annotators), runs=[runs], **how)
    erase(traces)
    return traces


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_everything_is_named_with_what_is_left_to_do(arm):
    traces = forget("tom", runs=arm.parent)
    found = {
        trace.path.relative_to(arm).as_posix(): (trace.what, trace.remedy, trace.erase is not None)
        for trace in traces
    }
    again = "fit the types and train their policies again, on the table without them"
    weights = "the weights of the votes, by annotator, that a type's policy was trained with"
    for number in range(2):
        assert found.pop(f"round{number}.json") == ("type probabilities of 1 annotator", again, True)
        assert found.pop(f"type{number}/begun.json") == (weights, again, True)
        assert found.pop(f"type{number}/run.json") == (weights, again, True)
        assert "train again" in found.pop(f"type{number}/model")[1]
        what, remedy, erased = found.pop(f"type{number}/checkpoints/checkpoint-4")
        assert what == "a checkpoint with theta and the weight of the votes of 1 annotator"
        assert "--checkpoints remove" in remedy
        assert not erased
        assert found.pop(f"type{number}/bias.safetensors")[2]
    assert found == {}


def test_the_row_goes_and_the_others_stay(arm):
    forget("tom", runs=arm)
    ann, _, mia = pseudonyms(PEOPLE)
    for number in range(2):
        left = json.loads((arm / f"round{number}.json").read_text())
        assert left["annotators"] == [ann, mia]
        assert left["probabilities"] == [PROBABILITIES["ann"], PROBABILITIES["mia"]]
        assert left["key"] is None  # the fit of all is not continued from the rows of some
        assert run_damage(arm / f"type{number}") is None
        assert read_seal(arm / f"type{number}" / RUN_SEAL)["facts"] == {"seed": 42}
        assert json.loads((arm / f"type{number}" / "begun.json").read_text())["facts"] == {"seed": 42}


def test_nothing_of_them_is_left_when_checkpoints_go_too(arm):
    tom = np.array([row for name, row in PROBABILITIES.items() if name == "tom"])
    gone = [*TOMS, *(value.tobytes() for value in tom.ravel()), pseudonyms(["tom"])[0].encode()]
    assert all(any(one in content for content in contents(arm).values()) for one in gone)
    forget("tom", runs=arm, checkpoints="remove")
    for name, content in contents(arm).items():
        assert not any(one in content for one in gone), name
    assert forget("tom", runs=arm) == []


def test_the_next_person_is_found_in_what_is_left(arm):
    forget("tom", runs=arm, checkpoints="remove")
    forget("mia", runs=arm)
    assert json.loads((arm / "round1.json").read_text())["probabilities"] == [PROBABILITIES["ann"]]
    forget("ann", runs=arm)
    assert not list(arm.glob("round*.json"))


def test_nobody_else_is_touched(arm):
    before = contents(arm)
    assert forget("a stranger", runs=arm) == []
    assert contents(arm) == before


def test_interrupted_between_any_two_places_it_ends_the_same(arm, tmp_path):
    whole = tmp_path / "whole"
    shutil.copytree(arm, whole)
    n_places = len(forget("tom", runs=whole, checkpoints="remove"))
    assert n_places == 2 + 2 * 5
    for place in range(n_places):
        again = tmp_path / f"again{place}"
        shutil.copytree(arm, again)
        erase(find_traces(find_people(["tom"]), runs=[again], checkpoints="remove")[:place])
        forget("tom", runs=again, checkpoints="remove")
        assert contents(again) == contents(whole), place


def test_rows_that_nothing_names_are_told(tmp_path):
    write_round(tmp_path / "round0.json")
    (trace,) = forget("tom", runs=tmp_path)
    assert trace.what == "type probabilities of 3 annotators"
    assert "nothing beside it says whose" in trace.remedy
    assert trace.erase is None


def test_a_torn_round_is_an_error(arm):
    (arm / "round0.json").write_text('{"key": ')
    with pytest.raises(ConfigError, match="round0.json is not a round of EM-DPO"):
        forget("tom", runs=arm)


@pytest.mark.parametrize(("n_groups", "named"), [(3, True), (2, False)])
def test_weights_of_groups_are_named_where_groups_are_people(tmp_path, n_groups, named):
    checkpoint = tmp_path / "group_dro-s42" / "checkpoints" / "checkpoint-4"
    write_bias(checkpoint)
    (checkpoint / "objective.safetensors").write_bytes(save({"group_weights": np.ones(n_groups)}))
    (trace,) = forget("tom", runs=tmp_path)
    assert ("the weight of the votes" in trace.what) is named


def test_a_checkpoint_that_a_killed_training_left_torn_is_named(tmp_path):
    checkpoint = tmp_path / "group_dro-s42" / "checkpoints" / "checkpoint-4"
    write_bias(checkpoint)
    (checkpoint / "objective.safetensors").write_bytes(b"torn")
    forget("tom", runs=tmp_path, checkpoints="remove")
    assert not checkpoint.exists()
