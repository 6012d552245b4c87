"""A run folder is data: one that was not made here names no model, no table and no place to write to."""

import json
from pathlib import Path

import pytest
import yaml

from badpo.anchoring.source import open_source
from badpo.data.files import RUN_SCHEMA, RUN_SEAL, made_here, seal_damage, write_seal
from badpo.data.problems import ConfigError
from badpo.runs import start
from badpo.runs.evaluate import evaluate_run
from badpo.runs.run import train_run
from badpo.training.recipe import RunSources, read_recipe
from badpo_paper.schedule import silent
from tests.runs.recipes import recipe
from tests.runs.test_run import stopped


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def rewritten(run: Path, **changes: object) -> None:
    """The recipe with other values, in a seal that fits, as whoever has no key can make one."""
    path = run / "config.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | changes))
    files = json.loads((run / RUN_SEAL).read_text())["files"]
    (run / RUN_SEAL).unlink()
    write_seal(run / "other.json", {"schema": RUN_SCHEMA}, files)
    (run / "other.json").rename(run / RUN_SEAL)
    assert seal_damage(run / RUN_SEAL) is None


def with_the_seal_of_a_reference(run: Path) -> None:
    """Made with our key, and of our files, but not of the recipe."""
    model = [str(path.relative_to(run)) for path in (run / "model").iterdir()]
    write_seal(run / RUN_SEAL, {"schema": RUN_SCHEMA, "facts": {}}, model)


FORGERIES = {
    "another key": lambda run: None,
    "no seal": lambda run: (run / RUN_SEAL).unlink(),
    "a seal of theirs": lambda run: rewritten(run, reference_cache="elsewhere"),
    "a seal of another file of ours": with_the_seal_of_a_reference,
}


@pytest.mark.parametrize("forgery", FORGERIES)
@pytest.mark.parametrize("read", [lambda run: evaluate_run(run, silent), open_source])
def test_what_was_not_made_here_loads_and_writes_nothing(run, tmp_path, monkeypatch, forgery, read):
    assert made_here(run)
    FORGERIES[forgery](run)
    if forgery == "another key":
        monkeypatch.setenv("BADPO_PSEUDONYM_KEY", "another key than that of the run, long enough")
    before = contents(tmp_path)
    monkeypatch.setattr(start, "load_weights", lambda *_, **__: pytest.fail("a model was loaded"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="--model and --data.*--trust-run") as refused:
        read(run)
    assert not made_here(run) and "elsewhere'" not in str(refused.value)
    assert contents(tmp_path) == before


def test_it_is_measured_with_what_the_caller_names_and_stays_of_others(run, tmp_path, monkeypatch):
    theirs = dict.fromkeys(("model_name_or_path", "dataset_name", "deepspeed"), "theirs")
    places = {"reference_cache": str(tmp_path / "cache"), "output_dir": str(tmp_path / "out")}
    rewritten(run, **theirs, **places)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    folder, before = run.parents[1], contents(run.parent)
    sources = RunSources(str(folder / "model"), str(folder / "votes.jsonl"))
    assert evaluate_run(run, silent, sources)["heldout"]
    assert not made_here(run), "an evaluation does not make it ours"
    after = contents(run.parent)
    changed = {path for path, content in after.items() if before.get(path) != content}
    assert changed <= {run / "readouts.json", run / "model" / "README.md", run / RUN_SEAL}
    assert not (tmp_path / "cache").exists() and not (tmp_path / "out").exists()


@pytest.mark.parametrize("sources", [RunSources(trusted=True), RunSources("model", "votes.jsonl")])
def test_also_a_trusted_recipe_sets_only_what_a_recipe_may(run, monkeypatch, sources):
    rewritten(run, model_init_kwargs={"weights_only": False})
    monkeypatch.chdir(run.parents[1])
    if sources.trusted:
        with pytest.raises(ConfigError, match="model_init_kwargs: ... is refused"):
            evaluate_run(run, silent, sources)
    rewritten(run, model_init_kwargs={})
    assert evaluate_run(run, silent, sources)["heldout"]


def test_going_on_from_a_run_of_others_seals_the_own_recipe(tmp_path, monkeypatch):
    asked = recipe(tmp_path)
    config = stopped(asked, monkeypatch) / "config.yaml"
    own = config.read_text()
    config.write_text(own.replace("../../cache", "../../theirs"))
    folder = train_run(asked, resume=True)
    assert made_here(folder) and config.read_text() == own


def test_a_reference_that_leads_out_is_not_written_to(run, tmp_path):
    (tmp_path / "outside").mkdir()
    (run.parent / "reference").mkdir()
    (run.parent / "reference" / "readouts.json").symlink_to(tmp_path / "outside" / "target")
    with pytest.raises(ConfigError, match="symbolic link"):
        evaluate_run(run, silent)
    assert not (tmp_path / "outside" / "target").exists()


def test_a_run_names_its_places_from_its_own_folder(run, tmp_path, monkeypatch):
    kept = yaml.safe_load((run / "config.yaml").read_text())
    assert (kept["dataset_name"], kept["model_name_or_path"]) == ("../../votes.jsonl", "../../model")
    assert (kept["output_dir"], kept["reference_cache"]) == ("..", "../../cache")
    monkeypatch.chdir(run.parents[1])
    again = read_recipe("runs/shared_mean-s42/config.yaml")
    assert (again.data.dataset_name, again.output_dir) == ("votes.jsonl", "runs")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert Path(read_recipe(run / "config.yaml").data.dataset_name) == run.parents[1] / "votes.jsonl"
