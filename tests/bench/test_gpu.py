from __future__ import annotations

import json
import math
import sys

import pytest

from bench import gpu


@pytest.fixture(scope="module")
def rows():
    return gpu.measured("tiny", "cpu")


def test_the_whole_path_runs_on_a_processor(rows):
    expected = [(batching, side) for batching, *_ in gpu.SETTINGS for side in ("TRL", "badpo")]
    assert [(row["batching"], row["side"]) for row in rows] == expected
    for row in rows:
        assert math.isfinite(row["seconds_per_step"]) and row["seconds_per_step"] > 0
        assert row["projected_seconds"] == pytest.approx(1000 * row["seconds_per_step"])
        assert row["judgments_per_second"] == pytest.approx(32 / row["seconds_per_step"])
        assert row["peak_gib"] is None
    for trl, ours in zip(rows[::2], rows[1::2], strict=True):
        assert ours["ratio_vs_trl"] == pytest.approx(trl["seconds_per_step"] / ours["seconds_per_step"])
        assert ours["self_test"] < 1e-5


def test_json_is_all_that_is_printed(rows, monkeypatch, capsys):
    monkeypatch.setattr(gpu, "measured", lambda name, device: rows)
    monkeypatch.setattr(sys, "argv", ["bench.gpu", "--device", "cpu", "--case", "tiny", "--json"])
    gpu.main()
    assert json.loads(capsys.readouterr().out)["rows"] == rows


@pytest.mark.parametrize("asked", [[], ["--device", "cpu"], ["--device", "cpu", "--case", "qwen-0.5b"]])
def test_without_a_device_it_says_so_in_one_line(asked, monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["bench.gpu", *asked])
    with pytest.raises(SystemExit) as end:
        gpu.main()
    assert end.value.code == 2
    assert capsys.readouterr().err == f"{gpu.NO_DEVICE}\n"


@pytest.mark.parametrize(
    ("name", "n_parameters"), [("qwen-0.5b", 494_032_768), ("llama-8b-lora", 8_030_261_248)]
)
def test_configurations_have_the_published_number_of_parameters(name, n_parameters):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**gpu.CASES[name].config))
    assert model.num_parameters() == n_parameters
