"""Run folders are read whole or refused by name; readings are taken over seeds, and shares of DPO's shift from them."""

import json
import math
from pathlib import Path

import pytest

from badpo.data.problems import ConfigError, DataError
from badpo.results.run_files import MeasuredRuns, Readouts, Run, read_run, read_suite
from tests.results.suites import ATTRIBUTES, write_suite

RATE = ("best_rates", "woman")


def test_a_folder_of_runs_is_read_in_the_order_of_the_table(tmp_path):
    suite = read_suite(folder := write_suite(tmp_path / "demo", seeds=(123, 42)))
    assert suite.name == "demo"
    assert suite.arms == ("reference", "dpo", "pooled", "shared_mean")
    assert suite.seeds == (42, 123)
    assert tuple(suite.configs) == ATTRIBUTES
    assert [run.seed for run in suite.of("pooled")] == [42, 123]
    twice = read_suite([folder / "dpo-s42", folder / "dpo-s42", folder / "reference"])
    assert [run.arm for run in twice.runs] == ["reference", "dpo"]


def test_nothing_to_read_says_what_to_do_and_a_run_without_readouts_is_named(tmp_path):
    for folder, told in ((tmp_path / "absent", "is not a folder"), (tmp_path, "badpo train")):
        with pytest.raises(ConfigError, match=told):
            read_suite(folder)
    folder = write_suite(tmp_path / "demo", arms=("dpo",))
    (folder / "dpo-s42" / "readouts.json").unlink()
    assert read_suite(folder).unmeasured == ("dpo-s42",)
    for told in ("badpo evaluate", "badpo train --model"):
        with pytest.raises(ConfigError, match=told):
            read_suite(folder / "dpo-s42")
        (folder / "dpo-s42" / "config.yaml").unlink(missing_ok=True)


def test_a_run_has_what_its_folder_has_and_a_torn_file_is_named(tmp_path):
    bias = tmp_path / "bias.json"
    bias.write_text('{"attributes": ["a"], "extra": {"attributes": []}}')
    found = read_run(tmp_path)
    assert (found.configs, found.theta()) == ({"a": {}}, None)
    bias.write_text("{")
    with pytest.raises(ConfigError, match=r"bias.json is .*not valid JSON"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("readouts.json", [], "the whole"),
        ("readouts.json", {"rates": {"woman": {}}}, "rates.woman.rate"),
        ("readouts.json", {"seed": "42"}, "seed"),
        ("readouts.json", {"heldout": {"woman": {"gap": [0.1]}}}, "heldout.woman.gap"),
        ("readouts.json", {"tilt": {"woman": {"tilt": 1e300}}}, "tilt.woman.tilt"),
        ("readouts.json", {"tilt": {"woman": {"tilt": 0.1, "typical": 0.0}}}, "tilt.woman.typical"),
        ("bias.json", {"annotators": 3}, "annotators"),
        ("bias.json", {"extra": {"first_margin": {"mean": 0.0}}}, "extra.first_margin.difference"),
        ("environment.json", {"packages": 3}, "packages"),
    ],
)
def test_what_no_run_holds_is_named_with_its_file_and_key(tmp_path, name, content, place):
    (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(DataError) as error:
        read_run(tmp_path)
    assert {problem.code for problem in error.value.problems} == {"E161"}
    assert f"{tmp_path / name}, {place}" in str(error.value)


def suite(*runs: tuple[str, int, dict]) -> MeasuredRuns:
    """Runs from their arm, their seed and their readouts."""
    made = (Run(Path(arm), arm, seed, Readouts.model_validate(found)) for arm, seed, found in runs)
    return MeasuredRuns("suite", tuple(made), ())


def rates(value: float, se: float | None = 0.01) -> dict:
    return {"rates": {"woman": {"rate": value, "se": se}}}


def of_rates(**arms: dict[int, float]) -> MeasuredRuns:
    """Runs with these rates by seed."""
    return suite(*((arm, s, rates(value)) for arm, row in arms.items() for s, value in row.items()))


def test_one_seed_keeps_its_interval_several_give_student_s_t_and_shares_are_seed_by_seed():
    found = suite(("dpo", 42, rates(0.9, 0.02))).estimate("dpo", *RATE)
    assert (found.value, found.values) == (0.9, (0.9,))
    assert found.interval.low == pytest.approx(0.9 - 1.959964 * 0.02)
    assert math.isnan(suite(("dpo", 42, rates(0.9, None))).estimate("dpo", *RATE).interval.low)
    found = of_rates(dpo={42: 0.90, 123: 0.95, 456: 1.0}).estimate("dpo", *RATE)
    assert found.value == pytest.approx(0.95)
    # a share that is larger than 1 is none
    half = 4.302653 * 0.05 / math.sqrt(3)
    assert (found.interval.low, found.interval.high) == (pytest.approx(0.95 - half), 1.0)
    assert tuple(found.of_seed) == (42, 123, 456)
    dpo, pooled = {1: 0.90, 2: 0.95, 3: 0.92}, {2: 0.59, 3: 0.71, 4: 0.99}
    found = of_rates(reference={0: 0.5}, dpo=dpo, pooled=pooled).removal("pooled", True, *RATE).share
    assert tuple(found.of_seed) == (2, 3)
    assert found.values == pytest.approx((0.36 / 0.45, 0.21 / 0.42))
    # seeds that disagree withhold the share
    unsure = of_rates(reference={0: 0.56}, dpo={42: 0.60, 123: 0.55, 456: 0.62})
    assert not unsure.moved(*RATE).excludes(0.0)


def test_sampled_rates_stand_in_for_probabilities_and_what_was_not_measured_is_none():
    sampled = {"sampled": {"n": 10, "woman": {"rate": 0.7, "low": 0.6, "high": 0.8, "n": 8}}}
    found = suite(("dpo", 42, sampled)).estimate("dpo", *RATE)
    assert (found.value, found.interval.low, found.interval.high) == (0.7, 0.6, 0.8)
    both = suite(("dpo", 42, sampled | rates(0.9) | {"theta": {"woman": {"offline": 0.8}}}))
    assert both.estimate("dpo", *RATE).value == 0.9
    # a number without more is a reading too
    assert both.estimate("dpo", "theta", "woman", "offline").value == 0.8
    measured = suite(("dpo", 42, rates(0.9) | {"votes": {"woman": {"A": {"accuracy": None, "n": 0}}}}))
    assert measured.estimate("pooled", *RATE) is None
    for place in ("best_rates black", "tokens", "heldout woman", "kl", "votes black A", "votes woman A"):
        assert measured.estimate("dpo", *place.split()) is None
