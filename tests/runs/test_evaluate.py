"""Readouts of a finished run on its held-out votes, and the page that is drawn from them."""

import json
import shutil

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM

from badpo.data.problems import ConfigError, DataError
from badpo.objective.bias import BiasTerm
from badpo.runs import evaluate, stage
from badpo.runs.evaluate import evaluate_run
from badpo.runs.run import read_judgments, train_run
from badpo.training.checkpoints import mark_run_complete
from badpo_paper.schedule import silent
from tests import tiny
from tests.runs.recipes import as_chat, recipe, save_model, written


def run_and_measure(folder, table=None, **changes) -> dict:
    return evaluate_run(train_run(recipe(folder, table, **changes)), silent)


def test_readouts_are_written_and_returned(run):
    told = {}
    readouts = evaluate_run(run, lambda what, share: told.setdefault(what, []).append(share))
    text = (run / "readouts.json").read_text()
    assert json.loads(text) == readouts
    assert (run / "readouts.json").stat().st_mode & 0o077 == 0  # it has texts
    assert "NaN" not in text and "Infinity" not in text
    own = {"heldout", "votes", "revealing", "tokens", "generated", "kl", "theta", "answers"}
    own |= {"tilt", "log_ratio", "by_prompt", "training"}
    assert set(readouts) == {"arm", "seed", "measured", "version", *own}
    assert (readouts["arm"], readouts["seed"]) == ("shared_mean", 42)
    held_out = read_judgments(recipe(run.parents[1]))[1]
    cell = readouts["heldout"]["length"]
    assert cell["n_cross"] == int(held_out.cross_group().sum())
    assert cell["n_same"] + cell["n_cross"] == held_out.n_votes
    assert set(readouts["votes"]["length"]) == {"all"}  # the classes have two and four annotators
    assert readouts["tokens"]["n"] == held_out.comparisons["prompt_id"].nunique() == 8
    assert 1 <= readouts["tokens"]["mean"] <= 12
    assert readouts["kl"]["per_token"] != 0
    learned = round(float(BiasTerm.load(run).theta().detach().mean()), 2)
    theta = readouts["theta"]["length"]
    assert theta["level"] == learned != 0
    # the default rule is the one that the estimate is made by
    assert theta["implied"] == pytest.approx(learned, abs=0.02)
    assert theta["low"] < theta["implied"] < theta["high"]
    assert theta["offline_low"] < theta["offline"] < theta["offline_high"]
    assert readouts["training"] == {"learning_rate": 1e-3, "steps": 4}
    tilt, rows = readouts["tilt"]["length"], readouts["by_prompt"]["tilt/length"]
    assert tilt["n_comparisons"] == held_out.take(held_out.cross_group()[:, 0]).n_comparisons
    assert tilt["tilt"] == pytest.approx(sum(rows["sums"]) / sum(rows["sizes"]))
    loading, *measured = told.values()
    assert loading == [0.0] and len(measured) == 2
    for shares in measured:
        assert (shares[0], shares[-1]) == (0.0, 1.0) and shares == sorted(shares)


ADAPTER = {"use_peft": True, "lora_target_modules": "all-linear"}
SUPERVISED = {"reference": {"sft": True, "learning_rate": 1e-2}}


@pytest.mark.parametrize("kind", [{}, ADAPTER, ADAPTER | SUPERVISED], ids=["whole", "adapter", "sft"])
def test_an_untrained_policy_is_its_reference(tmp_path, kind):
    readouts = run_and_measure(tmp_path, learning_rate=0.0, bias="none", attributes=None, **kind)
    assert (readouts["arm"], readouts["theta"], readouts["votes"]) == ("dpo", {}, {})
    assert readouts["kl"]["per_token"] == pytest.approx(0, abs=1e-6)
    # every margin is zero, and a margin of zero predicts nobody
    assert (readouts["heldout"]["any"]["same"], readouts["heldout"]["any"]["n_same"]) == (0.0, 24)
    reference = json.loads((tmp_path / "runs" / "reference" / "readouts.json").read_text())
    assert reference["tokens"] == readouts["tokens"]


def test_the_reference_is_measured_once_for_all_runs_and_again_where_it_is_another(tmp_path):
    run_and_measure(tmp_path, max_steps=1)
    path = tmp_path / "runs" / "reference" / "readouts.json"
    before, written_at = json.loads(path.read_text()), path.stat().st_mtime_ns
    assert before["arm"] == "reference" and before["tokens"]["n"] == 8
    run_and_measure(tmp_path, max_steps=1, bias="pooled")
    assert path.stat().st_mtime_ns == written_at
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    with torch.no_grad():
        model.lm_head.weight.mul_(-1)
    model.save_pretrained(tmp_path / "model")
    run_and_measure(tmp_path, max_steps=1, bias="none")
    after = json.loads(path.read_text())
    assert after["measured"] != before["measured"] and after["tokens"] != before["tokens"]


def test_one_held_out_prompt_of_chat_messages_is_read_with_its_tools(tmp_path, monkeypatch):
    read, sample = [], stage.sample
    monkeypatch.setattr(stage, "sample", lambda *a, **k: read.extend(a[2]) or sample(*a, **k))
    save_model(tmp_path / "model", chat_template="{{ tools[0]['name'] }} " + tiny.CHAT_TEMPLATE)
    words = {"type": "word_list", "name": "animals", "words": ["cat", "dog"]}
    asked = {"attributes": [words, "length"], "held_out": 0.03}
    votes = as_chat(tiny.votes(40, 6)).assign(tools='[{"name": "cat"}]')
    readouts = run_and_measure(tmp_path, votes, **asked)
    assert {tiny.tokenizer().convert_ids_to_tokens(int(ids[0])) for ids in read} == {"cat"}
    # a ratio of two lengths has no value for one answer
    assert set(readouts["generated"]) == {"animals"} and set(readouts["theta"]) == {"animals", "length"}
    assert 0 <= readouts["generated"]["animals"]["rate"] <= 1
    # nor has one prompt an interval
    assert readouts["tokens"]["n"] == 1 and readouts["generated"]["animals"]["se"] is None
    assert "NaN" not in (tmp_path / "runs" / "shared_mean-s42" / "readouts.json").read_text()


def test_held_out_comparisons_that_do_not_fit_are_left_out_and_counted(tmp_path, caplog):
    votes = tiny.votes(40, 6)
    asked = recipe(tmp_path, votes)
    long_prompt = read_judgments(asked)[1].comparisons["prompt_id"].iloc[0]
    is_long = votes["prompt_id"] == long_prompt
    votes.loc[is_long, "prompt"] = votes.loc[is_long, "prompt"] + " red" * 60
    readouts = run_and_measure(tmp_path, votes, max_length=40)
    assert readouts["heldout"]["length"]["n_same"] + readouts["heldout"]["length"]["n_cross"] == 21
    assert readouts["tokens"]["n"] == 7
    assert "W140" in caplog.text and "1 comparisons (3 judgments) are left out" in caplog.text


def on_a_reference_that_is_gone(run):
    config = yaml.safe_load((run / "config.yaml").read_text()) | {"reference": {"sft": True}}
    (run / "config.yaml").write_text(yaml.safe_dump(config))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda run: shutil.rmtree(run / "model"), "has no finished run"),
        (lambda run: (run / "config.yaml").unlink(), "BADPOTrainer writes it.*badpo train --model"),
        (on_a_reference_that_is_gone, "has no model"),
        (lambda run: (run.parents[1] / "votes.jsonl").unlink(), "there is no such file"),
    ],
)
def test_what_cannot_be_measured_is_told(run, change, told):
    change(run)
    mark_run_complete(run)
    with pytest.raises((ConfigError, DataError), match=told):
        evaluate_run(run, silent)
    assert not (run / "readouts.json").exists()


def test_a_damaged_file_and_a_run_that_held_nothing_out_are_told(run, tmp_path):
    (run / "bias.json").write_bytes(b"{}")
    with pytest.raises(ConfigError, match=r"bias.json is damaged \(its checksum does not match\)"):
        evaluate_run(run, silent)
    folder = train_run(recipe(tmp_path, held_out=0, max_steps=1))
    with pytest.raises(ConfigError, match="held no judgments out; set held_out to a share such as 0.1"):
        evaluate_run(folder, silent)


def test_a_failed_measurement_leaves_the_old_one_and_a_card_left_behind_is_written(run, monkeypatch):
    evaluate_run(run, silent)
    before, card = (run / "readouts.json").read_bytes(), run / "model" / "README.md"
    whole = card.read_text()
    card.write_text("of before")
    evaluate_run(run, silent)
    assert card.read_text() == whole
    monkeypatch.setattr(
        evaluate.sampled, "divergence", lambda *args: (_ for _ in ()).throw(OSError("disk"))
    )
    monkeypatch.setattr(evaluate, "VERSION", 0)  # else what is there already is not measured again
    with pytest.raises(OSError, match="disk"):
        evaluate_run(run, silent)
    assert (run / "readouts.json").read_bytes() == before
    assert not [name for name in written(run) if name.startswith(".")]
