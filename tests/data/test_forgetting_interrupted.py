"""Forgetting that is killed at any change of a file, and then asked for again, ends as if it had not been."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from badpo.data.files import RUN_SEAL, leftovers, run_damage, write_seal
from badpo.data.forgetting import erase, find_people, find_traces
from badpo.data.importing import import_file
from badpo.data.privacy import KEY_VARIABLE, pseudonyms
from bench.faults.children import Kill, run_child

save = pytest.importorskip("safetensors.numpy").save
PEOPLE = ["tom", "ann", "mia"]


@pytest.fixture(scope="module", autouse=True)
def key():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(KEY_VARIABLE, "a key that only this test knows")
        yield


@pytest.fixture(scope="module")
def template(tmp_path_factory, key) -> Path:
    """Votes with their mapping, an audit and a sealed run with a checkpoint."""
    folder = tmp_path_factory.mktemp("people") / "project"
    folder.mkdir()
    names = pseudonyms(PEOPLE)
    rows = [
        {"prompt": f"p{i}", "response_a": "a", "response_b": "b", "winner": "a", "annotator": PEOPLE[i % 3]}
        for i in range(9)
    ]
    pd.DataFrame(rows).to_csv(folder / "export.csv", index=False)
    import_file(folder / "export.csv", folder / "votes.parquet", mapping=folder / "who.json")
    (folder / "export.csv").unlink()
    (folder / "audit").mkdir()
    pd.DataFrame({"annotator": names, "lean": [0.1, 0.2, 0.3]}).to_parquet(
        folder / "audit" / "annotators.parquet"
    )
    (folder / "audit" / "audit.json").write_text(json.dumps({"annotators": names}))
    run = folder / "runs" / "shared_mean-s42"
    for here in (run, run / "checkpoints" / "checkpoint-2"):
        write_bias(here, names)
    (run / "checkpoints" / "checkpoint-2" / "complete.json").write_text("{}")
    write_seal(run / RUN_SEAL, {}, ["bias.json", "bias.safetensors"])
    return folder


def write_bias(folder: Path, names: list[str]) -> None:
    folder.mkdir(parents=True)
    tensors = {
        "mean": np.array([0.5], dtype=np.float32),
        "deviation": np.array([[0.1], [0.2], [0.3]], dtype=np.float32),
        "fixed": np.zeros((3, 1), dtype=np.float32),
        "mask": np.ones(3, dtype=np.float32),
    }
    content = save(tensors)
    (folder / "bias.safetensors").write_bytes(content)
    description = {
        "format": 1,
        "attributes": ["length"],
        "parts": ["mean", "deviation"],
        "annotators": names,
        "annotator_class": None,
        "sha256": hashlib.sha256(content).hexdigest(),
        "extra": {},
    }
    (folder / "bias.json").write_text(json.dumps(description))


def forget_tom() -> None:
    here = Path()
    people = find_people(["tom"], here / "who.json")
    traces = find_traces(
        people,
        data=[here / "votes.parquet"],
        audits=[here / "audit"],
        runs=[here / "runs"],
        checkpoints="remove",
        mapping=here / "who.json",
    )
    erase(traces)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def kill_and_forget_again(template: Path, folder: Path, point: int) -> dict[str, bytes]:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(template, folder)
    assert run_child(forget_tom, folder, Kill(before_write=point)).was_killed
    again = run_child(forget_tom, folder)
    assert again.status == 0, again.output
    return contents(folder)


@pytest.mark.slow
def test_killed_before_any_change_of_a_file(template, tmp_path):
    folder = tmp_path / "project"
    shutil.copytree(template, folder)
    whole = run_child(forget_tom, folder)
    expected = contents(folder)
    gone = [b"tom", pseudonyms(["tom"])[0].encode()]
    assert len(whole.writes) > 30
    for content in expected.values():
        assert not any(name in content for name in gone)
    for point in range(1, len(whole.writes) + 1, 4):
        found = kill_and_forget_again(template, folder, point)
        assert found == expected, whole.writes[point - 1]


def test_killed_between_the_two_files_of_a_bias_term(template, tmp_path):
    folder = tmp_path / "project"
    run = folder / "runs" / "shared_mean-s42"
    shutil.copytree(template, folder)
    whole = run_child(forget_tom, folder)
    expected = contents(folder)
    moved = f"os.rename {run.relative_to(folder)}/bias.safetensors.next"
    point = whole.writes.index(moved) + 1
    shutil.rmtree(folder)
    shutil.copytree(template, folder)
    run_child(forget_tom, folder, Kill(before_write=point))
    tensors, described = run / "bias.safetensors", json.loads((run / "bias.json").read_text())
    assert hashlib.sha256(tensors.read_bytes()).hexdigest() != described["sha256"]
    assert run_child(forget_tom, folder).status == 0
    assert contents(folder) == expected
    assert run_damage(run) is None and leftovers(folder) == []
