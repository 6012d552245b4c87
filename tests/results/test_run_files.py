"""Run folders are read whole or refused by name; readings are taken over seeds, and shares of DPO's shift from them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from badpo.data.problems import ConfigError, DataError
from badpo.results.run_files import MeasuredRuns, Readouts, Run, read_run, read_suite
from tests.results.suites import ATTRIBUTES, write_suite

RATE = ("best_rates", "woman")


# -- reading -------------------------------------------------------------------------------------------------


def test_a_folder_of_runs_is_read_in_the_order_of_the_table(tmp_path):
    suite = read_suite(write_suite(tmp_path / "demo", seeds=(123, 42)))
    assert suite.name == "demo"
    assert suite.arms == ("reference", "dpo", "pooled", "shared_mean")
    assert suite.seeds == (42, 123)
    assert tuple(suite.configs) == ATTRIBUTES
    assert [run.seed for run in suite.of("pooled")] == [42, 123]
    folder = tmp_path / "demo"
    twice = read_suite([folder / "dpo-s42", folder / "dpo-s42", folder / "reference"])
    assert [run.arm for run in twice.runs] == ["reference", "dpo"]


def test_nothing_to_read_says_what_to_do_and_a_run_without_readouts_is_named(tmp_path):
    for folder, told in ((tmp_path / "absent", "is not a folder"), (tmp_path, "badpo train")):
        with pytest.raises(ConfigError, match=told):
            read_suite(folder)
    folder = write_suite(tmp_path / "demo", arms=("dpo",))
    (folder / "dpo-s42" / "readouts.json").unlink()
    assert read_suite(folder).unmeasured == ("dpo-s42",)
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


def test_a_run_has_what_its_folder_has(tmp_path):
    (tmp_path / "bias.json").write_text(json.dumps({"attributes": ["a"], "extra": {"attributes": []}}))
    found = read_run(tmp_path)
    assert (found.configs, found.theta(), found.steps) == ({"a": {}}, None, ())
    (tmp_path / "bias.json").write_text("{")
    with pytest.raises(ConfigError, match="bias.json is not valid JSON"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("readouts.json", [], "readouts.json, the whole"),
        ("readouts.json", {"rates": []}, "readouts.json, rates"),
        ("readouts.json", {"rates": {"woman": {}}}, "readouts.json, rates.woman.rate"),
        ("readouts.json", {"kl": {"per_token": "much"}}, "readouts.json, kl.per_token"),
        ("readouts.json", {"seed": "42"}, "readouts.json, seed"),
        ("readouts.json", {"heldout": {"woman": {"gap": [0.1]}}}, "readouts.json, heldout.woman.gap"),
        ("bias.json", {"annotators": 3}, "bias.json, annotators"),
        ("bias.json", {"extra": {"first_margin": {"mean": 0.0}}}, "extra.first_margin.difference"),
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


# -- readings ------------------------------------------------------------------------------------------------


def run(arm: str, seed: int = 42, **readouts) -> Run:
    return Run(Path(f"{arm}-s{seed}"), arm, seed, Readouts.model_validate(readouts))


def suite(*runs: Run) -> MeasuredRuns:
    return MeasuredRuns("suite", runs, ())


def rates(value: float, se: float | None = 0.01) -> dict:
    return {"woman": {"rate": value, "se": se}}


def of_rates(**arms: float | dict[int, float]) -> MeasuredRuns:
    """Runs with these rates, of one seed or by seed."""
    seeds = {arm: value if isinstance(value, dict) else {42: value} for arm, value in arms.items()}
    return suite(
        *(run(arm, seed, rates=rates(v)) for arm, row in seeds.items() for seed, v in row.items())
    )


def test_one_seed_keeps_the_run_s_own_interval():
    found = suite(run("dpo", rates=rates(0.9, 0.02))).estimate("dpo", *RATE)
    assert (found.value, found.values) == (0.9, (0.9,))
    assert found.interval.low == pytest.approx(0.9 - 1.959964 * 0.02)
    assert math.isnan(suite(run("dpo", rates=rates(0.9, None))).estimate("dpo", *RATE).interval.low)


def test_several_seeds_give_student_s_t_over_the_seeds():
    found = of_rates(dpo={42: 0.90, 123: 0.95, 456: 1.0}).estimate("dpo", *RATE)
    assert found.value == pytest.approx(0.95)
    assert found.interval.half_width == pytest.approx(4.302653 * 0.05 / math.sqrt(3), rel=1e-6)
    assert tuple(found.of_seed) == (42, 123, 456)


def test_what_was_not_measured_is_none():
    measured = of_rates(dpo=0.9)
    assert measured.estimate("pooled", *RATE) is None
    for place in (
        ("best_rates", "black"),
        ("tokens",),
        ("heldout", "woman"),
        ("kl",),
        ("votes", "woman", "all"),
    ):
        assert measured.estimate("dpo", *place) is None
    empty = suite(run("dpo", votes={"woman": {"A": {"accuracy": None, "n": 0}}}))
    assert empty.estimate("dpo", "votes", "woman", "A") is None


def test_sampled_rates_stand_in_where_there_are_no_probabilities():
    sampled = {"n": 10, "woman": {"rate": 0.7, "low": 0.6, "high": 0.8, "n": 8}}
    found = suite(run("dpo", sampled=sampled)).estimate("dpo", *RATE)
    assert (found.value, found.interval.low, found.interval.high) == (0.7, 0.6, 0.8)
    both = suite(run("dpo", sampled=sampled, rates=rates(0.9), theta={"woman": {"offline": 0.8}}))
    assert both.estimate("dpo", *RATE).value == 0.9
    # a number without more is a reading too
    assert both.estimate("dpo", "theta", "woman", "offline").value == 0.8


def test_no_share_where_dpo_did_not_move_by_more_than_its_interval():
    values = {"reference": (0.50, 0.02), "dpo": (0.54, 0.02), "pooled": (0.51, 0.01)}
    still = suite(*(run(arm, rates=rates(*value)) for arm, value in values.items()))
    assert still.moved(*RATE).high == pytest.approx(0.04 + 1.959964 * math.hypot(0.02, 0.02))
    assert still.removal("pooled", True, *RATE).share is None
    assert still.removal("pooled", True, *RATE).distance.value > 0
    # seeds that disagree withhold the share too
    assert not of_rates(reference=0.56, dpo={42: 0.60, 123: 0.55, 456: 0.62}).moved(*RATE).excludes(0.0)


def test_the_share_is_taken_seed_by_seed_over_the_seeds_that_both_arms_have():
    dpo, pooled = {1: 0.90, 2: 0.95, 3: 0.92}, {2: 0.59, 3: 0.71, 4: 0.99}
    found = of_rates(reference=0.5, dpo=dpo, pooled=pooled).removal("pooled", True, *RATE).share
    assert tuple(found.of_seed) == (2, 3)
    assert found.values == pytest.approx((0.36 / 0.45, 0.21 / 0.42))
