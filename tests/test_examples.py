"""Scripts and configurations in examples/ and the code in docs/extending.md work as they stand."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from badpo.data.attributes import ATTRIBUTES
from badpo.importers.convert import FORMATS
from tests.public_face import invoke

ROOT = Path(__file__).parents[1]
VOTES = ROOT / "examples" / "votes.csv"
ACCELERATE = ROOT / "examples" / "accelerate"
ONE_SCREEN = 50


def ran(name: str, folder: Path, *arguments: object) -> str:
    """What an example prints, run in a folder of its own."""
    command = [sys.executable, str(ROOT / "examples" / name), *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_an_example_fits_on_one_screen(path):
    assert len(path.read_text().splitlines()) <= ONE_SCREEN


def test_audit(tmp_path):
    printed = ran("audit.py", tmp_path, VOTES, tmp_path / "audit")
    assert "wins 67% of 90 votes, log-odds 0.21 to 1.18" in printed
    assert {"report.html", "leans.svg"} <= {path.name for path in (tmp_path / "audit").iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train.py", "own_objective.py"])
def test_training(name, tmp_path):
    from tests.runs.recipes import save_model

    printed = ran(name, tmp_path, save_model(tmp_path / "model"), VOTES)
    assert "{'length': " in printed


@pytest.mark.parametrize("name", sorted(path.name for path in ACCELERATE.glob("*.yaml")))
def test_accelerate_reads_the_file_and_its_comment_names_it(name):
    config_args = pytest.importorskip("accelerate.commands.config.config_args")
    found = config_args.load_config_from_file(str(ACCELERATE / name))
    text = (ACCELERATE / name).read_text()
    expected = {"ddp.yaml": "MULTI_GPU", "zero2.yaml": "DEEPSPEED"}.get(name, "FSDP")
    assert str(found.distributed_type).removeprefix("DistributedType.") == expected
    assert f"accelerate launch --config_file examples/accelerate/{name} -m badpo train" in text
    if expected == "FSDP":  # divided weights are loaded by every process
        settings = yaml.safe_load(text)["fsdp_config"]
        assert settings["fsdp_version"] == 2 and settings["fsdp_cpu_ram_efficient_loading"] is False


def test_the_deepspeed_file_is_there_and_divides_moments_and_gradients():
    launched = yaml.safe_load((ACCELERATE / "zero2.yaml").read_text())["deepspeed_config"]
    settings = json.loads((ROOT / launched["deepspeed_config_file"]).read_text())
    assert settings["zero_optimization"]["stage"] == 2
    left_to_the_recipe = ("gradient_accumulation_steps", "gradient_clipping", "train_batch_size")
    assert all(settings[key] == "auto" for key in left_to_the_recipe)


@pytest.fixture
def as_before():
    """What the page adds to the lists of names is taken out again."""
    from badpo.objective.registry import OBJECTIVES

    lists = (ATTRIBUTES, FORMATS, OBJECTIVES)
    before = [dict(known) for known in lists]
    yield
    for known, content in zip(lists, before, strict=True):
        known.clear()
        known.update(content)


@pytest.mark.usefixtures("as_before")
def test_the_page_on_extending_runs(monkeypatch, tmp_path, capsys):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    page = (ROOT / "docs" / "extending.md").read_text()
    for language, block in re.findall(r"```(python|bash)\n(.*?)```", page, re.S):
        if language == "bash":
            for line in block.splitlines():
                if line.startswith("badpo train"):
                    continue  # tests/runs/test_command_line.py trains with the page's --arm-file
                result = invoke(*shlex.split(line)[1:])
                assert result.exit_code == 0 and "polite" in result.output, result.output
            continue
        if block.startswith("# "):
            (tmp_path / block.split()[1]).write_text(block)
        exec(compile(block, "docs/extending.md", "exec"), names)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("('polite',)")
    assert printed[1:] == ["0.5", "duel 1 no preference given"]
