"""The files of an anchor: the result is the old one or the new one, and finished rounds are told from others'."""

import shutil
from dataclasses import fields
from pathlib import Path

import pytest

from badpo.anchoring import source as anchor_source
from badpo.anchoring import targets as anchor_train
from badpo.anchoring.attribute_rates import answer_rates
from badpo.anchoring.editors import MarkdownStrip, SignatureSwap
from badpo.anchoring.offset_stage import StageSettings
from badpo.anchoring.source import AnchorSource, Prompts
from badpo.anchoring.targets import Anchor, AnchorFolder, Bench, anchor_key, require_teachable
from badpo.data.files import run_damage, write_json
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError
from badpo.readouts.generation import Decoding, Generation
from tests import tiny
from tests.readouts import policies


def model_folder(place: Path, content: str) -> Path:
    (place / "model").mkdir(parents=True)
    (place / "model" / "weights").write_text(content)
    return place / "model"


def test_a_result_replaces_the_one_before_as_a_whole(tmp_path, monkeypatch):
    out = tmp_path / "out"
    first, second = AnchorFolder(out, "1"), AnchorFolder(out, "2")
    assert first.read_result() is None
    first.finish({"n": 1}, model_folder(tmp_path / "a", "one"))
    assert first.read_result() == {"n": 1} and second.read_result() is None and run_damage(out) is None
    with monkeypatch.context() as patch, pytest.raises(TypeError):
        patch.setattr(anchor_train, "write_seal", None)  # as if it were killed
        second.finish({"n": 2}, None)
    assert first.read_result() == {"n": 1} and (out / "model" / "weights").read_text() == "one"
    (out / "model" / "weights").write_text("two")
    assert first.read_result() is None
    second.finish({"n": 2}, None)
    assert second.read_result() == {"n": 2} and not (out / "model").exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_rounds_and_results_are_those_of_the_same_anchor(tmp_path):
    folder = AnchorFolder(tmp_path / "out", "1")
    for key, shift, kept in (("1", -2.0, True), ("1", -2.5, False), ("2", -2.0, False)):
        folder.begin("a")
        model_folder(folder.round_folder(0), "one")
        write_json(folder.round_folder(0) / "round.json", {"shift": [-2.0], "rate": [0.5]})
        again = AnchorFolder(tmp_path / "out", key)
        again.begin("a")
        assert again.read_round(0, [shift]) == ([0.5] if kept else None)
        assert folder.round_folder(0).exists() == kept
        shutil.rmtree(folder.round_folder(0), ignore_errors=True)
    known = dict.fromkeys(field.name for field in fields(AnchorSource))
    known |= {"policy_key": "p", "stage": StageSettings(), "decoding": Decoding(8)}
    known["prompts"] = Prompts(["a"], ["b"], ["c"], "here")

    def key(mode="train", seed=42, target=0.4, **changes) -> str:
        anchor = Anchor(SignatureSwap(), {"woman": target}, seed=seed)
        return anchor_key(AnchorSource(**(known | changes)), anchor, mode)

    changes = [{}, {"mode": "sample"}, {"policy_key": "q"}, {"stage": StageSettings(max_steps=7)}]
    changes += [{"target": 0.3}, {"prompts": Prompts(["a"], ["b"], ["d"], "here")}, {"seed": 1}]
    assert len({key(**change) for change in changes}) == 7 and key() == key()


def test_more_markdown_than_there_is_cannot_be_taught():
    answers = [Generation((), (), text, True) for text in ["- a"] * 6 + ["a"] * 14]
    bench = Bench.__new__(Bench)
    bench.anchor = Anchor(MarkdownStrip(), {"markdown": 0.5})
    with pytest.raises(ConfigError, match="is 0.300 and the target is 0.5.*--mode sample"):
        require_teachable(bench, answer_rates(answers, MarkdownStrip(), range(20)))


def test_a_run_is_reported_on_prompts_that_it_held_out_where_there_are_enough(monkeypatch):
    monkeypatch.setattr(anchor_source, "FEWEST_PROMPTS", 10)
    votes = Judgments.read(tiny.votes(n_comparisons=60, n_annotators=3))

    def found(share):
        parts = votes.split(share, 0)
        own = [set(part.comparisons["prompt"].astype(str)) for part in parts]
        return anchor_source.run_prompts(*parts, "run"), *own

    prompts, theirs, kept_apart = found(0.4)
    assert set(prompts.report) == kept_apart and not kept_apart & theirs
    fresh, find = set(prompts.fresh), set(prompts.find)
    assert fresh | find == theirs and not fresh & find
    assert prompts.origin.startswith("held-out prompts of the run")
    few, theirs, _ = found(0.1)
    assert set(few.report) < theirs and few.origin.startswith("training prompts")


def test_what_a_bare_model_reads_fits_its_positions(tmp_path):
    policies.qwen2().save_pretrained(tmp_path)
    policies.tokenizer().save_pretrained(tmp_path)
    stage = anchor_source.model_source(str(tmp_path), Prompts([], [], [], "here")).stage
    assert (stage.encoding, stage.max_length, stage.max_prompt_length) == ("paper", 256, 128)
