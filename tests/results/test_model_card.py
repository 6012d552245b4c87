"""The model card tells aggregates, the anchor and the limits, and names no annotator and no place on a machine."""

import json
import re

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

from badpo.data.problems import ConfigError
from badpo.results.model_card import model_card
from tests.results.suites import changed, write_suite, write_tensors


@pytest.fixture
def run(tmp_path):
    return write_suite(tmp_path / "demo", arms=("dpo", "shared_mean")) / "shared_mean-s42"


def header(run, **recipe) -> dict:
    """What the Hub reads of a run with this recipe."""
    (run / "config.yaml").write_text(yaml.safe_dump(recipe))
    return yaml.safe_load(model_card(run).split("---\n", 2)[1])


def test_the_hub_reads_the_header(run):
    model, data = "Qwen/Qwen2.5-0.5B-Instruct", "allenai/multipref"
    found = header(run, model_name_or_path=model, dataset_name=data)
    assert (found["library_name"], found["pipeline_tag"]) == ("transformers", "text-generation")
    assert (found["base_model"], found["datasets"]) == (model, [data])
    assert "ba-dpo" in found["tags"]
    (run / "model").mkdir()
    (run / "model" / "adapter_config.json").write_text("{}")
    assert header(run)["library_name"] == "peft"


@pytest.mark.parametrize(
    "place", ["/srv/ada/m", "~/models/m", "./model", "C:\\models\\m", "out/v.parquet"]
)
def test_a_place_on_a_machine_is_not_named(run, place):
    found = header(run, model_name_or_path=place, dataset_name=place, output_dir="/srv/ada/runs")
    assert not {"base_model", "datasets"} & set(found)
    assert place not in (card := model_card(run)) and "/srv/ada" not in card


def test_the_attribute_table_the_anchor_and_the_limits(run):
    card = model_card(run)
    (row,) = [line for line in card.splitlines() if line.startswith("| woman-coded |")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert (cells[1], cells[2][:3], cells[3]) == ("signature name (2 names)", "+0.", "0.52")
    limits = ("The anchor is the reference", "## Limits", "over about 60 annotators", "| beta | 0.1 |")
    assert all(told in card for told in limits)
    (run.parent / "reference" / "readouts.json").unlink()
    assert "contains no distance" in model_card(run)
    (run / "readouts.json").unlink()
    assert "not measured yet: `badpo evaluate`" in model_card(run)
    with pytest.raises(ConfigError, match="is not a run folder"):
        model_card(run.parent)


def test_a_warm_start_is_not_said_to_start_at_zero_and_dpo_claims_nothing(run):
    warm = run.rename(run.with_name("shared_mean_warm-s42"))
    changed(warm / "readouts.json", arm="shared_mean_warm")
    (warm / "config.yaml").write_text("bias: {variant: shared_mean, warm_start: offline}\n")
    card = model_card(warm)
    assert "theta starts at the log-odds of the training votes" in card
    assert "theta models the bias in the votes" not in card
    card = model_card(run.with_name("dpo-s42"))
    assert "This model may have learned the biases of the annotators." in card
    assert "not learned" in card and "The anchor is" not in card


def test_names_from_data_bring_no_markup(run):
    hostile = "a|b](http://x)<script>\n# head"
    attributes = [{"type": "regex", "name": hostile, "pattern": "```"}, {"name": "black"}]
    changed(run / "bias.json", attributes=[hostile, "black"], extra={"attributes": attributes})
    card = model_card(run)
    assert "<script>" not in card and "\n# head" not in card
    assert not re.search(r"(?<!\\)\]\(http", card)
    table = [line for line in card.partition("| Setting")[0].splitlines() if line.startswith("| ")]
    assert {row.replace("\\|", "").count("|") for row in table} == {8}


FEW = "not shown (fewer than 5 annotators)", "fewer than 5"


@pytest.mark.parametrize(
    ("n_people", "n_gold", "told"),
    [(3, 0, FEW), (6, 0, ("+1.50", "5 to 14")), (12, 6, ("+1.50", "5 to 14")), (12, 9, FEW)],
)
def test_the_card_means_over_those_whose_theta_was_learned(tmp_path, n_people, n_gold, told):
    """Else the zeros of gold annotators would thin out the lean, and with it the number of people behind it."""
    folder = write_suite(tmp_path / "demo", n_annotators=n_people) / "shared_mean-s42"
    description = json.loads((folder / "bias.json").read_text())
    description["gold_annotators"] = description["annotators"][:n_gold]
    tensors = load_file(folder / "bias.safetensors")
    tensors |= {"mean": [1.5, 0.25], "mask": np.arange(n_people) >= n_gold}
    tensors["deviation"] *= 0
    write_tensors(folder, tensors, description)
    card = model_card(folder)
    assert f"| {told[0]} |" in card and f"over {told[1]} annotators" in card


def test_the_card_leaves_out_a_held_out_gap_that_few_people_determine(run):
    changed(run / "readouts.json", revealing=["woman"])
    card = model_card(run)
    rows = [line for line in card.splitlines() if re.match(r"\| (woman|black)-coded", line)]
    assert [row.split("|")[-2].strip() == "\u2013" for row in rows] == [True, False]
