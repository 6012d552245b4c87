"""Run folders are read as training leaves them; what is broken is named with its remedy."""

from __future__ import annotations

import json

import numpy as np
import pytest

from badpo.data.problems import ConfigError, DataError
from badpo.results.run_files import attribute_configs, learned_theta, read_run, read_suite
from tests.results.suites import ATTRIBUTES, write_suite


def test_a_folder_of_runs_is_read_in_the_order_of_the_table(tmp_path):
    suite = read_suite(write_suite(tmp_path / "demo", seeds=(123, 42)))
    assert suite.name == "demo"
    assert suite.arms == ("reference", "dpo", "pooled", "shared_mean")
    assert suite.seeds == (42, 123)
    assert suite.attributes == ATTRIBUTES
    assert [run.seed for run in suite.of("pooled")] == [42, 123]


def test_single_runs_may_be_named_and_twice_is_once(tmp_path):
    folder = write_suite(tmp_path / "demo")
    suite = read_suite([folder / "dpo-s42", folder / "dpo-s42", folder / "reference"])
    assert [run.arm for run in suite.runs] == ["reference", "dpo"]


def test_a_run_without_readouts_is_named_and_not_dropped_silently(tmp_path):
    folder = write_suite(tmp_path / "demo")
    (folder / "pooled-s42" / "readouts.json").unlink()
    suite = read_suite(folder)
    assert suite.unmeasured == ("pooled-s42",)
    assert "pooled" not in suite.arms


def test_nothing_to_read_says_what_to_do(tmp_path):
    with pytest.raises(ConfigError, match="is not a folder"):
        read_suite(tmp_path / "absent")
    with pytest.raises(ConfigError, match="badpo train"):
        read_suite(tmp_path)
    folder = write_suite(tmp_path / "demo", arms=("dpo",))
    (folder / "dpo-s42" / "readouts.json").unlink()
    with pytest.raises(ConfigError, match="badpo evaluate"):
        read_suite(folder / "dpo-s42")


def test_a_log_that_was_cut_while_it_was_written_loses_only_its_last_line(tmp_path):
    folder = write_suite(tmp_path / "demo") / "pooled-s42"
    with (folder / "log.jsonl").open("a") as file:
        file.write('{"step": 1001, "lo')
    assert len(read_run(folder).steps) == 1000
    lines = (folder / "log.jsonl").read_text().splitlines()
    (folder / "log.jsonl").write_text("\n".join(["{broken", *lines[1:]]))
    with pytest.raises(ConfigError, match=r"log.jsonl, line 1 "):
        read_run(folder)


def test_a_broken_file_is_named(tmp_path):
    folder = write_suite(tmp_path / "demo") / "dpo-s42"
    (folder / "bias.json").write_text("{")
    with pytest.raises(ConfigError, match="bias.json is not valid JSON"):
        read_run(folder)


@pytest.mark.parametrize("parts", [(), ("mean",), ("deviation",), ("mean", "class_offset", "deviation")])
def test_theta_is_the_one_that_the_bias_term_composes(tmp_path, parts):
    torch = pytest.importorskip("torch")
    from badpo.objective.bias import BiasTerm

    names, classes = [f"ann_{i}" for i in range(5)], ["B", "A", "B", "C", "A"]
    mask, fixed = torch.tensor([1.0, 0.0, 1.0, 1.0, 1.0]), torch.full((5, 2), 0.25)
    bias = BiasTerm(["woman", "black"], names, parts, annotator_class=classes, fixed=fixed, mask=mask)
    torch.manual_seed(0)
    for parameter in bias.parameters():
        parameter.data = torch.randn_like(parameter)
    configs = [{"type": "signature_name", "name": name} for name in ("woman", "black")]
    bias.save(tmp_path, {"attributes": configs, "variant": "class"})
    run = read_run(tmp_path)
    np.testing.assert_allclose(learned_theta(run), bias.theta().detach().numpy(), atol=1e-12)
    assert attribute_configs(run) == {config["name"]: config for config in configs}


def test_a_run_without_a_bias_term_has_no_theta(tmp_path):
    (tmp_path / "readouts.json").write_text(json.dumps({"arm": "reference", "seed": 0}))
    assert learned_theta(read_run(tmp_path)) is None


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("readouts.json", [], "readouts.json, the whole"),
        ("readouts.json", {"rates": []}, "readouts.json, rates"),
        ("readouts.json", {"rates": {"woman": {}}}, "readouts.json, rates.woman.rate"),
        ("readouts.json", {"kl": {"per_token": "much"}}, "readouts.json, kl.per_token"),
        ("readouts.json", {"seed": "42"}, "readouts.json, seed"),
        (
            "readouts.json",
            {"votes": {"woman": {"all": {"accuracy": 2.0, "n": 5}}}},
            "votes.woman.all.accuracy",
        ),
        ("readouts.json", {"heldout": {"woman": {"gap": [0.1]}}}, "readouts.json, heldout.woman.gap"),
        ("bias.json", {"annotators": 3}, "bias.json, annotators"),
        ("bias.json", {"extra": []}, "bias.json, extra"),
        (
            "bias.json",
            {"extra": {"first_margin": {"mean": 0.0, "tolerance": 1e-5}}},
            "extra.first_margin.difference",
        ),
        ("environment.json", {"packages": 3}, "environment.json, packages"),
        ("log.jsonl", [1], "log.jsonl, line 1, the whole"),
        ("log.jsonl", {"step": "one"}, "log.jsonl, line 1, step"),
    ],
)
def test_what_no_run_holds_is_named_with_its_file_and_key(tmp_path, name, content, place):
    folder = write_suite(tmp_path / "demo", arms=("pooled",)) / "pooled-s42"
    (folder / name).write_text(json.dumps(content))
    with pytest.raises(DataError) as error:
        read_suite(tmp_path / "demo")
    assert {problem.code for problem in error.value.problems} == {"E161"}
    assert place in str(error.value) and str(folder) in str(error.value)
