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
    found = load_config_from_file(str(FOLDER / name))
    expected = {"ddp.yaml": "MULTI_GPU", "zero2.yaml": "DEEPSPEED"}.get(name, "FSDP")
    assert str(found.distributed_type).removeprefix("DistributedType.") == expected
    assert (
        f"accelerate launch --config_file examples/accelerate/{name} -m badpo train"
        in (FOLDER / name).read_text()
    )


@pytest.mark.parametrize(
    "name", [name for name in FILES if "fsdp_config" in (FOLDER / name).read_text()]
)
def test_divided_weights_are_loaded_by_every_process_under_fsdp2(name):
    settings = yaml.safe_load((FOLDER / name).read_text())["fsdp_config"]
    assert settings["fsdp_version"] == 2 and settings["fsdp_cpu_ram_efficient_loading"] is False


def test_the_deepspeed_file_is_there_and_divides_moments_and_gradients():
    named = yaml.safe_load((FOLDER / "zero2.yaml").read_text())["deepspeed_config"][
        "deepspeed_config_file"
    ]
    settings = json.loads((ROOT / named).read_text())
    assert settings["zero_optimization"]["stage"] == 2
    left_to_the_recipe = ("gradient_accumulation_steps", "gradient_clipping", "train_batch_size")
    assert all(settings[key] == "auto" for key in left_to_the_recipe)
