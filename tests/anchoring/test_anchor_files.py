"""An anchor that is killed: the result is the old one or the new one, and finished rounds are not trained again."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from badpo.anchoring import anchor as anchor_train
from badpo.anchoring import source as anchor_source
from badpo.anchoring.anchor import (
    Anchor,
    AnchorFolder,
    Bench,
    anchor_key,
    anchor_run,
    require_teachable,
)
from badpo.anchoring.editors import MarkdownStrip, SignatureSwap
from badpo.anchoring.offset_stage import StageSettings
from badpo.anchoring.rates import answer_rates
from badpo.anchoring.source import AnchorSource, Prompts
from badpo.data.attributes import Length
from badpo.data.files import run_damage, write_json
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError
from badpo.readouts.generation import Decoding, Generation
from tests import tiny
from tests.readouts import policies

TARGETS = {"woman": 0.4}


def silent(what: str, share: float) -> None:
    pass


def source(**changes) -> AnchorSource:
    """One that is not loaded."""
    known = dict.fromkeys(field.name for field in fields(AnchorSource))
    known |= {"policy_key": "p", "stage": StageSettings(), "decoding": Decoding(8)}
    known["prompts"] = Prompts(["a"], ["b"], ["c"], "here")
    return AnchorSource(**(known | changes))


# -- the folder --------------------------------------------------------------------------------------------------


def model_folder(place: Path, content: str) -> Path:
    (place / "model").mkdir(parents=True)
    (place / "model" / "weights").write_text(content)
    return place / "model"


def test_a_result_replaces_the_one_before_as_a_whole(tmp_path):
    out = tmp_path / "out"
    first, second = AnchorFolder(out, "1"), AnchorFolder(out, "2")
    assert first.finished() is None
    first.finish({"n": 1}, model_folder(tmp_path / "a", "one"))
    assert first.finished() == {"n": 1} and second.finished() is None
    assert run_damage(out) is None
    second.finish({"n": 2}, None)
    assert second.finished() == {"n": 2} and not (out / "model").exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_result_that_cannot_be_written_leaves_the_one_before(tmp_path, monkeypatch):
    out = tmp_path / "out"
    first, second = AnchorFolder(out, "1"), AnchorFolder(out, "2")
    first.finish({"n": 1}, model_folder(tmp_path / "a", "one"))

    def killed(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(anchor_train, "write_seal", killed)
    with pytest.raises(KeyboardInterrupt):
        second.finish({"n": 2}, None)
    assert first.finished() == {"n": 1} and (out / "model" / "weights").read_text() == "one"
    # a damaged result is none
    (out / "model" / "weights").write_text("two")
    assert first.finished() is None


def test_rounds_are_those_of_the_same_anchor_and_shift(tmp_path):
    folder = AnchorFolder(tmp_path / "out", "1")

    def one_round():
        model_folder(folder.round(0), "one")
        write_json(folder.round(0) / "round.json", {"shift": [-2.0], "rate": [0.5]})

    folder.begin("a")
    one_round()
    AnchorFolder(tmp_path / "out", "1").begin("a")
    assert folder.kept_round(0, [-2.0])["rate"] == [0.5]
    assert folder.kept_round(0, [-2.5]) == {} and not folder.round(0).exists()
    one_round()
    AnchorFolder(tmp_path / "out", "2").begin("a")
    assert not folder.round(0).exists()


def test_whatever_decides_a_result_is_in_its_key():
    def key(mode="train", seed=42, target=0.4, **changes) -> str:
        return anchor_key(source(**changes), Anchor(SignatureSwap(), {"woman": target}, seed=seed), mode)

    changes = [
        {"mode": "sample"},
        {"policy_key": "q"},
        {"stage": StageSettings(steps=7)},
        {"target": 0.3},
    ]
    changes += [{"prompts": Prompts(["a"], ["b"], ["d"], "here")}, {"seed": 1}]
    assert len({key(), *(key(**change) for change in changes)}) == 7 and key() == key()


# -- what cannot be taught ---------------------------------------------------------------------------------------


def test_more_markdown_than_there_is_cannot_be_taught():
    def before(n: int):
        texts = ["- a"] * n + ["a"] * (20 - n)
        return answer_rates(
            [Generation((), (), text, True) for text in texts], MarkdownStrip(), range(20)
        )

    bench = Bench.__new__(Bench)
    bench.anchor = Anchor(MarkdownStrip(), {"markdown": 0.5})
    with pytest.raises(
        ConfigError, match="source's rate is 0.300 and the target 0.5.*use --mode sample"
    ):
        require_teachable(bench, before(6))
    with pytest.raises(ConfigError, match="never produces it.*anchor a policy that shows it sometimes"):
        require_teachable(bench, before(0))


# -- prompts -----------------------------------------------------------------------------------------------------


def votes(n: int) -> Judgments:
    return Judgments.read(tiny.votes(n_comparisons=n, n_annotators=3), attributes=[Length()])


def test_a_run_is_reported_on_prompts_that_it_held_out_where_there_are_enough(monkeypatch):
    monkeypatch.setattr(anchor_source, "FEWEST_PROMPTS", 10)
    train, held_out = votes(60).split(0.4, 0)
    found = anchor_source.run_prompts(train, held_out, "run")
    theirs, kept_apart = (set(part.comparisons["prompt"].astype(str)) for part in (train, held_out))
    assert set(found.report) == kept_apart and not set(found.report) & theirs
    assert set(found.fresh) | set(found.find) == theirs and not set(found.fresh) & set(found.find)
    assert found.origin.startswith("prompts that the run held out to report on")
    train, held_out = votes(60).split(0.1, 0)
    few = anchor_source.run_prompts(train, held_out, "run")
    assert set(few.report) < set(train.comparisons["prompt"].astype(str)) and "trained on" in few.origin


def test_what_a_bare_model_reads_fits_its_positions(tmp_path):
    policies.qwen2().save_pretrained(tmp_path)
    policies.tokenizer().save_pretrained(tmp_path)
    stage = anchor_source.model_source(str(tmp_path), Prompts([], [], [], "here")).stage
    assert (stage.encoding, stage.max_length, stage.max_prompt_length) == ("paper", 256, 128)


# -- the whole ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_killed_anchor_goes_on_with_its_rounds_and_ends_the_same(signer, tmp_path, monkeypatch):
    opened = anchor_source.open_source(
        str(signer / "signer"), signer / "prompts.txt", steps=4, learning_rate=1e-3
    )
    anchor = Anchor(SignatureSwap(), TARGETS, tolerance=1e-6, rounds=2)
    trained, train_offset = [], anchor_train.train_offset

    def train(*arguments, **options):
        if killing and len(trained) == 1:
            raise KeyboardInterrupt
        trained.append(arguments[8].name)
        return train_offset(*arguments, **options)

    monkeypatch.setattr(anchor_train, "train_offset", train)

    def run(place: str) -> dict:
        return anchor_run(opened, anchor, "train", tmp_path / place / "out", silent)

    killing = True
    with pytest.raises(KeyboardInterrupt):
        run("killed")
    assert not (tmp_path / "killed" / "out").exists()
    killing = False
    found = run("killed")
    assert trained == ["round-1", "round-2"] and len(found["calibration"]) == 2
    assert run("whole") == found
    for name in ("out/anchor.json", "out/model/model.safetensors"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), (
            name
        )
    # what is there is not made again
    trained.clear()
    assert run("whole") == found and not trained
    assert {path.name for path in (tmp_path / "whole").iterdir()} == {"anchor_cache", "out", ".out.lock"}
    assert np.isfinite(found["woman"]["asked_shift"])
