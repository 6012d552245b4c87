"""The model card tells aggregates, the anchor and the limits, and names no annotator and no place on a machine."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

from badpo.data.problems import ConfigError
from badpo.results.model_card import model_card
from tests.results.suites import changed, write_suite, write_tensors


def header(card: str) -> dict:
    _, block, _ = card.split("---\n", 2)
    return yaml.safe_load(block)


def write_config(folder, **keys) -> None:
    (folder / "config.yaml").write_text(yaml.safe_dump(keys))


@pytest.fixture
def run(tmp_path):
    return write_suite(tmp_path / "demo") / "shared_mean-s42"


def test_the_hub_reads_the_header(run):
    write_config(
        run, model_name_or_path="Qwen/Qwen2.5-0.5B-Instruct", dataset_name="allenai/multipref", beta=0.1
    )
    found = header(model_card(run))
    assert found["library_name"] == "transformers"
    assert found["pipeline_tag"] == "text-generation"
    assert found["base_model"] == "Qwen/Qwen2.5-0.5B-Instruct"
    assert found["datasets"] == ["allenai/multipref"]
    assert "ba-dpo" in found["tags"]


@pytest.mark.parametrize(
    "place", ["/srv/ada/model", "~/models/m", "./model", "C:\\models\\m", "exports/votes.parquet"]
)
def test_a_place_on_a_machine_is_not_named(run, place):
    write_config(run, model_name_or_path=place, dataset_name=place, output_dir="/srv/ada/runs")
    card = model_card(run)
    assert "base_model" not in header(card) and "datasets" not in header(card)
    assert place not in card and "/srv/ada" not in card


def test_an_adapter_is_announced_as_one(run):
    (run / "model").mkdir()
    (run / "model" / "adapter_config.json").write_text("{}")
    assert header(model_card(run))["library_name"] == "peft"


def test_the_attribute_table_the_anchor_and_the_limits(run):
    card = model_card(run)
    (row,) = [line for line in card.splitlines() if line.startswith("| woman-coded |")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1] == "signature name (2 names)"
    assert cells[2].startswith("+0.")
    assert cells[3] == "0.52"
    assert "The anchor is the reference policy" in card
    assert "## Limits" in card
    assert "over 60 annotators" in card


def test_a_warm_start_is_not_said_to_start_at_zero(tmp_path):
    run = write_suite(tmp_path / "demo") / "shared_mean-s42"
    warm = run.rename(run.with_name("shared_mean_warm-s42"))
    readouts = json.loads((warm / "readouts.json").read_text())
    (warm / "readouts.json").write_text(json.dumps({**readouts, "arm": "shared_mean_warm"}))
    card = model_card(warm)
    assert "theta starts at the log-odds of the training votes" in card
    assert "theta starts at zero" not in card


def test_a_pool_of_few_people_gets_no_mean(tmp_path):
    run = write_suite(tmp_path / "few", n_annotators=3) / "pooled-s42"
    assert "not shown (fewer than 5 annotators)" in model_card(run)
    enough = write_suite(tmp_path / "enough", n_annotators=6) / "pooled-s42"
    assert "not shown" not in model_card(enough)


def test_plain_dpo_claims_nothing(tmp_path):
    card = model_card(write_suite(tmp_path / "demo") / "dpo-s42")
    assert "Whatever its annotators\nleaned toward, it may have learned." in card
    assert "not learned" in card
    assert "The anchor is" not in card


def test_what_was_not_measured_is_said(run):
    (run / "readouts.json").unlink()
    assert "not measured yet: `badpo evaluate`" in model_card(run)
    assert (run.parent / "reference" / "readouts.json").exists()


def test_without_a_reference_there_is_no_distance(run):
    (run.parent / "reference" / "readouts.json").unlink()
    assert "no distance is given" in model_card(run)


def test_names_from_data_bring_no_markup(run):
    bias = json.loads((run / "bias.json").read_text())
    hostile = "a|b](http://x)<script>\n# head"
    bias["attributes"][0] = hostile
    bias["extra"]["attributes"][0] = {"type": "regex", "name": hostile, "pattern": "```"}
    (run / "bias.json").write_text(json.dumps(bias))
    card = model_card(run)
    assert "<script>" not in card and "\n# head" not in card
    assert not re.search(r"(?<!\\)\]\(http", card)
    rows = [line for line in card.splitlines() if line.startswith("| ")]
    table = rows[: next(i for i, row in enumerate(rows) if row.startswith("| Setting"))]
    assert {row.replace("\\|", "").count("|") for row in table} == {8}


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="holds no run"):
        model_card(tmp_path)


def test_the_card_means_over_those_whose_theta_was_learned(tmp_path):
    """Otherwise the zeros of gold annotators would thin out the lean, and with it the number of people behind it."""
    suite = write_suite(tmp_path / "demo", n_annotators=12)
    folder = suite / "shared_mean-s42"
    names = json.loads((folder / "bias.json").read_text())["annotators"]
    tensors = load_file(folder / "bias.safetensors")
    tensors["deviation"] = np.zeros_like(tensors["deviation"])
    tensors["mean"] = np.array([1.5, 0.25], dtype=np.float32)
    for n_gold, told, n in ((6, "+1.50", "10"), (9, "not shown (fewer than 5 annotators)", "fewer than 5")):
        changed(folder / "bias.json", gold_annotators=names[:n_gold])
        description = json.loads((folder / "bias.json").read_text())
        write_tensors(folder, tensors | {"mask": np.arange(12) >= n_gold}, description)
        card = model_card(folder)
        assert f"| {told} |" in card
        assert f"over {n} annotators" in card
