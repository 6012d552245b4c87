from __future__ import annotations

import dataclasses
import json
import math
import sys

import pytest

from bench import gpu
from bench.gpu import CASES, Run, StepClock, figures, main, random_model
from bench.model_cost import ModelCost, Reading, peak_flops

COLUMNS = {
    "seconds_per_step",
    "judgments_per_second",
    "tokens_per_second",
    "fed_per_second",
    "projected_seconds",
}


@pytest.fixture(scope="module")
def rows():
    return gpu.measured("tiny", "cpu")


def test_the_whole_path_runs_on_a_processor(rows):
    assert [(row["batching"], row["side"]) for row in rows] == [
        (setting.batching, side) for setting in gpu.SETTINGS for side in ("TRL", "badpo")
    ]
    for row in rows:
        assert all(math.isfinite(row[name]) and row[name] > 0 for name in COLUMNS)
        assert row["projected_seconds"] == pytest.approx(1000 * row["seconds_per_step"])
        assert row["judgments_per_second"] == pytest.approx(32 / row["seconds_per_step"])
        # without a card there is neither a peak to compare with nor memory to count
        assert row["utilisation"] is None and row["peak_gib"] is None
    for trl, ours in zip(rows[::2], rows[1::2], strict=True):
        assert ours["ratio_vs_trl"] == pytest.approx(trl["seconds_per_step"] / ours["seconds_per_step"])
        assert ours["self_test"] < 1e-5
        assert trl["fed_per_second"] == trl["tokens_per_second"]
        assert ours["fed_per_second"] < ours["tokens_per_second"]


def test_json_is_all_that_is_printed(rows, monkeypatch, capsys):
    monkeypatch.setattr(gpu, "measured", lambda name, device: rows)
    monkeypatch.setattr(sys, "argv", ["bench.gpu", "--device", "cpu", "--case", "tiny", "--json"])
    main()
    assert json.loads(capsys.readouterr().out)["rows"] == rows


@pytest.mark.parametrize("asked", [[], ["--device", "cpu"], ["--device", "cpu", "--case", "qwen-0.5b"]])
def test_without_a_device_it_says_so_in_one_line(asked, monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["bench.gpu", *asked])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert (
        capsys.readouterr().err == "bench.gpu needs a CUDA device; on a processor: python -m bench.training\n"
    )


@pytest.mark.parametrize(
    ("name", "n_parameters"), [("qwen-0.5b", 494_032_768), ("llama-8b-lora", 8_030_261_248)]
)
def test_configurations_have_the_published_number_of_parameters(name, n_parameters):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**CASES[name].config))
    assert model.num_parameters() == n_parameters


def test_operations_of_a_model_by_hand():
    model = random_model(CASES["tiny"], "cpu")
    # per layer: queries and output 32 x 32, keys and values 32 x 16, biases of the three, two norms, and the MLP
    layer = 2 * 32 * 32 + 2 * 32 * 16 + (32 + 16 + 16) + 2 * 32 + 3 * 32 * 64
    body = 2 * layer + 32
    cost = ModelCost.of(model)
    assert cost == ModelCost(per_token=6 * body, per_pair=3 * 4 * 2 * 32, per_scored=6 * 32 * 512)
    reading = Reading(n_steps=2, tokens=10, attended=30, scored=4)
    by_hand = (6 * body * 10 + 3 * 4 * 2 * 32 * 30 + 6 * 32 * 512 * 4) / 2
    assert cost.operations(reading) == by_hand


def test_the_columns_of_a_row_by_hand():
    cost = ModelCost(per_token=6.0, per_pair=2.0, per_scored=4.0)
    plain, fed = Reading(2, 200, 500, 60), Reading(2, 100, 300, 50)
    row = figures(Run(seconds_per_step=0.5, peak_gib=3.0), plain, fed, cost, peak=2800.0)
    assert row["judgments_per_second"] == 64
    assert (row["tokens_per_second"], row["fed_per_second"]) == (200, 100)
    # (6 x 100 + 2 x 300 + 4 x 50) / 2 steps = 700 operations in half a second, of 2800 a second
    assert row["utilisation"] == 0.5
    assert (row["projected_seconds"], row["peak_gib"]) == (500, 3.0)


def test_a_frozen_matrix_has_no_gradient_of_its_own():
    from peft import get_peft_model

    case = dataclasses.replace(CASES["tiny"], lora=gpu.PAPERS_LORA | {"r": 4})
    model = get_peft_model(random_model(case, "cpu"), gpu.adapter(case))
    n_adapter = sum(p.numel() for p in model.parameters() if p.requires_grad)
    full = ModelCost.of(random_model(case, "cpu"))
    cost = ModelCost.of(model)
    assert cost.per_token == pytest.approx(full.per_token * 2 / 3 + 6 * n_adapter)
    assert cost.per_scored == pytest.approx(full.per_scored * 2 / 3)
    assert cost.per_pair == full.per_pair


def test_the_clock_leaves_the_first_steps_out():
    clock = StepClock("cpu", ends=[3.0, 4.0, 5.0, 7.0])
    assert clock.seconds_per_step(warm_up=2) == 1.5


@pytest.mark.parametrize(
    ("card", "tera"),
    [
        ("NVIDIA H200", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA L40S", 362),
        ("Tesla T4", None),
    ],
)
def test_peaks_are_found_by_the_cards_name(card, tera):
    assert peak_flops(card) == (None if tera is None else tera * 1e12)
