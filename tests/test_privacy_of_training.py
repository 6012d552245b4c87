"""What training prints, writes, tells a tracker and publishes holds no raw id, and outside the run folder no person."""

import json
import logging
import types
from pathlib import Path

import huggingface_hub
import pytest
import transformers
from safetensors import safe_open
from safetensors.torch import load_file

from badpo.runs.run import make_trainer, train_run
from tests import tiny
from tests.public_face import invoke as badpo
from tests.runs.recipes import recipe, write_recipe
from tests.test_privacy import PLANTED, files, leaks, said

pytestmark = pytest.mark.slow


def settings(n_annotators: int, **changes):
    votes = tiny.votes(n_comparisons=40, n_annotators=n_annotators)
    votes["annotator"] = votes["annotator"].str.replace("person", "Planted")
    return {"table": votes, "logging_steps": 1, "eval_strategy": "steps", "eval_steps": 2, **changes}


def test_no_raw_id_in_what_training_prints_and_writes(tmp_path, monkeypatch):
    gold = {"variant": "shared_mean", "gold_annotators": ["Planted 5"]}
    config = write_recipe(tmp_path, **settings(6, report_to="tensorboard", bias=gold))
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    monkeypatch.setenv("BADPO_PSEUDONYM_KEY", "sixteen letters and more")
    results = [badpo("train", "--config", config, "--dry-run"), badpo("train", "--config", config)]
    run = next((tmp_path / "runs").iterdir())
    results += [badpo("evaluate", run), badpo("report", run, "-o", tmp_path / "runs" / "report.html")]
    logging.getLogger().removeHandler(handler)
    for result in results:
        assert result.exit_code == 0, result.output
        assert not PLANTED.search(said(result))
    assert [message for message in messages if PLANTED.search(message.encode())] == []
    assert [*leaks(tmp_path / "runs"), *leaks(tmp_path / "cache")] == []
    written = {path.name for path in files(tmp_path / "runs")}
    some = {"bias.safetensors", "log.jsonl", "readouts.json", "report.html", "trainer_state.json"}
    assert some <= written
    assert any(name.startswith("events.out.tfevents") for name in written)


class Tracker(transformers.TrainerCallback):
    """Keeps what every tracker of transformers is handed: arguments, the model's configuration and the metrics."""

    def __init__(self):
        self.got: list[str] = []
        self.metrics: set[str] = set()

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.got += [args.to_json_string(), str(args.to_sanitized_dict()), model.config.to_json_string()]

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.got.append(json.dumps(logs))
        self.metrics |= set(logs)


def annotators_of(folder) -> set[str]:
    return set(json.loads((folder / "bias.json").read_text())["annotators"])


@pytest.mark.parametrize(("n_learned", "told"), [(4, False), (5, True)])
def test_a_tracker_gets_no_annotator_and_no_mean_over_a_few(tmp_path, monkeypatch, n_learned, told):
    gold = {"variant": "shared_mean", "gold_annotators": [f"Planted {n_learned}"]}
    tracker = Tracker()

    def with_tracker(*arguments):
        trainer = make_trainer(*arguments)
        trainer.add_callback(tracker)
        return trainer

    monkeypatch.setattr("badpo.runs.run.make_trainer", with_tracker)
    folder = train_run(recipe(tmp_path, **settings(n_learned + 1, bias=gold)))
    assert len(annotators_of(folder)) == n_learned + 1
    text = "\n".join(tracker.got)
    assert not any(name in text for name in annotators_of(folder)) and "Planted" not in text
    assert "gold_annotators" not in text and {"loss", "eval_loss"} <= tracker.metrics
    assert ("bias/theta/length" in tracker.metrics) == told
    # the user's own log and card: the log stays in the run folder, the card is published
    assert "bias/theta/length" in (folder / "log.jsonl").read_text()
    card = (folder / "model" / "README.md").read_text()
    assert ("not shown (fewer than 5 annotators)" in card) != told


def test_everything_that_is_uploaded_is_about_nobody(tmp_path, monkeypatch):
    uploaded: dict[str, bytes] = {}

    def create_repo(*arguments, repo_id=None, **options):
        return huggingface_hub.RepoUrl(f"https://huggingface.co/someone/{repo_id or arguments[-1]}")

    def upload_folder(*arguments, folder_path, **options):
        for path in files(Path(folder_path)):
            uploaded[str(path.relative_to(folder_path))] = path.read_bytes()
        return types.SimpleNamespace(commit_url="the commit", done=lambda: True)

    def unexpected(*arguments, **options):
        raise AssertionError(f"an upload that nobody looked at: {arguments} {options}")

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", create_repo)
    monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", upload_folder)
    others = ("upload_large_folder", "preupload_lfs_files", "run_as_future")
    for name in ("upload_file", "create_commit", *others):
        monkeypatch.setattr(huggingface_hub.HfApi, name, unexpected, raising=False)
    for name in ("create_repo", "upload_folder", "upload_file", "create_commit"):
        monkeypatch.setattr(huggingface_hub, name, unexpected)
    asked = {"push_to_hub": True, "hub_model_id": "policy", "hub_token": "hf_secret"}
    asked["hub_strategy"] = "every_save"
    folder = train_run(recipe(tmp_path, **settings(6, **asked)))
    assert {"README.md", "config.json", "model.safetensors"} <= set(uploaded)
    assert set(uploaded) == {str(path.relative_to(folder / "model")) for path in files(folder / "model")}
    thetas = [value.reshape(-1, 1) for value in load_file(folder / "bias.safetensors").values()]
    about = [row.numpy().tobytes() for rows in thetas for row in rows if row.any()]
    about += [name.encode() for name in (*annotators_of(folder), "Planted", "hf_secret", str(tmp_path))]
    for name, content in uploaded.items():
        assert [mark for mark in about if mark in content] == [], name
    with safe_open(folder / "model" / "model.safetensors", "pt") as weights:
        assert weights.metadata() == {"format": "pt"}
