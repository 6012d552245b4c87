"""The shipped configurations are read by what will read them."""

from __future__ import annotations

import json

import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file

from tests.training.groups import ROOT

FOLDER = ROOT / "examples" / "accelerate"
FILES = sorted(path.name for path in FOLDER.glob("*.yaml"))


@pytest.mark.parametrize("name", FILES)
def test_accelerate_reads_the_file_and_its_comment_names_it(name):
    found, text = load_config_from_file(str(FOLDER / name)), (FOLDER / name).read_text()
    expected = {"ddp.yaml": "MULTI_GPU", "zero2.yaml": "DEEPSPEED"}.get(name, "FSDP")
    assert str(found.distributed_type).removeprefix("DistributedType.") == expected
    assert f"accelerate launch --config_file examples/accelerate/{name} -m badpo train" in text
    if expected == "FSDP":  # divided weights are loaded by every process
        settings = yaml.safe_load(text)["fsdp_config"]
        assert settings["fsdp_version"] == 2 and settings["fsdp_cpu_ram_efficient_loading"] is False


def test_the_deepspeed_file_is_there_and_divides_moments_and_gradients():
    launched = yaml.safe_load((FOLDER / "zero2.yaml").read_text())["deepspeed_config"]
    settings = json.loads((ROOT / launched["deepspeed_config_file"]).read_text())
    assert settings["zero_optimization"]["stage"] == 2
    left_to_the_recipe = ("gradient_accumulation_steps", "gradient_clipping", "train_batch_size")
    assert all(settings[key] == "auto" for key in left_to_the_recipe)
