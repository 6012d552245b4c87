"""The command line: what it prints, its exit codes, and what it loads."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

import badpo
from badpo.cli.main import app
from badpo.data.problems import ConfigError, DataError, Problem
from tests.public_face import commands

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "votes.csv"
EXPORT = ROOT / "examples" / "label_studio.json"
COMMANDS = (
    (),
    ("demo",),
    ("import",),
    ("forget",),
    ("check",),
    ("anchor",),
    ("reproduce",),
    ("audit",),
    ("watch",),
    ("attributes",),
    ("attributes", "list"),
    ("attributes", "test"),
    ("corpus",),
    ("corpus", "signed"),
    ("corpus", "multipref"),
    ("corpus", "ultrafeedback"),
    ("corpus", "style"),
    ("train",),
    ("evaluate",),
    ("report",),
)


def run(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def python(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=ROOT, check=False)


HEAVY = {"numpy", "pandas", "pyarrow", "scipy", "torch", "transformers", "rich.markdown", "jinja2"}


@pytest.fixture
def bad_table(tmp_path) -> Path:
    frame = pd.read_csv(EXAMPLE)
    frame.loc[3, "winner"] = "left"
    frame.loc[5, "prompt"] = None
    path = tmp_path / "votes.csv"
    frame.to_csv(path, index=False)
    return path


def test_help_loads_nothing_heavy():
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from badpo.cli.main import app\n"
        f"for command in {COMMANDS!r}:\n"
        "    assert CliRunner().invoke(app, [*command, '--help']).exit_code == 0, command\n"
        f"    assert not sys.modules.keys() & {HEAVY!r}, (command, sys.modules.keys() & {HEAVY!r})\n"
    )
    finished = python("-c", code)
    assert finished.returncode == 0, finished.stderr


def test_help_needs_nothing_that_only_unix_has():
    program = (
        "import sys\n"
        "for name in ('fcntl', 'resource', 'termios', 'pwd', 'grp'): sys.modules[name] = None\n"
        "from typer.testing import CliRunner\n"
        "import badpo\n"
        "from badpo.cli.main import app\n"
        "[getattr(badpo, name) for name in ('Judgments', 'audit', 'attributes')]\n"
        f"for command in {COMMANDS!r}:\n"
        "    assert CliRunner().invoke(app, [*command, '--help']).exit_code == 0, command\n"
    )
    finished = python("-c", program)
    assert finished.returncode == 0, finished.stderr


def test_every_command_is_tried_here():
    assert {tuple(name.split()) for name, _ in commands()} == set(COMMANDS) - {()}


def test_version():
    assert run("--version").output == f"badpo {badpo.__version__}\n"


def test_python_m_is_the_command():
    finished = python("-m", "badpo", "--version")
    assert (finished.returncode, finished.stdout) == (0, f"badpo {badpo.__version__}\n")


def test_check_passes_the_example():
    result = run("check", EXAMPLE, "--attribute", "length:ratio=1.5")
    assert result.exit_code == 0, result.output
    assert result.output.startswith(f"reading {EXAMPLE}\n")
    assert "judgments 158" in result.output
    assert "annotators 7" in result.output
    assert "dropped 2" in result.output


def test_check_names_every_problem_and_leaves_with_3(bad_table):
    result = run("check", bad_table)
    assert result.exit_code == 3
    assert "left" in result.stderr
    assert "prompt" in result.stderr
    assert "Traceback" not in result.stderr


def test_check_maps_columns(tmp_path):
    path = tmp_path / "votes.csv"
    pd.read_csv(EXAMPLE).rename(columns={"annotator": "who"}).to_csv(path, index=False)
    counts = json.loads(run("check", path, "--column", "annotator=who", "--json").stdout)
    assert counts["annotators"] == 7


def test_check_translates_winners(tmp_path):
    path = tmp_path / "votes.csv"
    pd.read_csv(EXAMPLE).replace({"winner": {"a": "left", "b": "right"}}).to_csv(path, index=False)
    assert run("check", path).exit_code == 3
    winners = ("--winner", "left=a", "--winner", "right=b", "--winner", "tie=tie")
    assert json.loads(run("check", path, *winners, "--json").stdout)["judgments"] == 158


def test_check_never_shows_a_raw_annotator_id(bad_table):
    for arguments in (("check", EXAMPLE), ("check", bad_table), ("check", EXAMPLE, "--json")):
        result = run(*arguments)
        assert not re.search(r"(reader|editor)-\d", result.output + result.stderr)


@pytest.mark.parametrize(
    "command",
    [
        f"check {EXAMPLE} --attribute length",
        f"audit {EXAMPLE} --attribute length --out OUT/audit",
        f"watch {EXAMPLE} --attribute length --state OUT/state.json",
        f"import {EXPORT} --out OUT/votes.parquet",
        f"forget nobody-at-all --data {EXAMPLE} --dry-run",
    ],
    ids=lambda command: command.split()[0],
)
def test_what_needs_no_model_loads_no_torch(command, tmp_path):
    words = command.replace("OUT", str(tmp_path)).split()
    program = (
        "import sys; from typer.testing import CliRunner; from badpo.cli.main import app\n"
        f"assert CliRunner().invoke(app, {words!r}).exit_code in (0, 3)\n"
        "print(*[name for name in ('torch', 'transformers', 'datasets') if name in sys.modules])"
    )
    finished = python("-c", program)
    assert (finished.returncode, finished.stdout.split()) == (0, []), finished.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("check", EXAMPLE, "--attribute", "lenght"), 'Did you mean "length"?'),
        (("check", EXAMPLE, "--attribute", "length:ratio"), '"ratio" is not KEY=VALUE'),
        (("check", EXAMPLE, "--column", "annotator"), "write it as in --column annotator=worker_id"),
        (("check", EXAMPLE, "--winner", "left"), "write it as in --winner model_a=a"),
        (("check", EXAMPLE, "--ties", "keep"), "ties must be"),
        (("attributes", "test", EXAMPLE), "name an attribute to test"),
        (
            ("attributes", "test", EXAMPLE, "--attribute", "length", "--sweep", "ratio"),
            "write it as in --sweep ratio=1.25,1.5,2",
        ),
        (("demo", "--seeds", "forty-two"), "whole numbers separated by commas"),
        (("train", "run.yaml"), "the recipe as --config FILE"),
        (("train", "--betta", "0.1"), 'unknown key "betta". Did you mean "beta"?'),
        (("corpus", "signed", EXAMPLE, "--n", "10", "--out", "x"), "--n chooses among the bundled pairs"),
    ],
)
def test_a_wrong_command_leaves_with_2(arguments, message):
    if arguments[0] == "demo":
        pytest.importorskip("torch")
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("arguments", [("chekc",), ("check",), ("check", EXAMPLE, "--no-such-option")])
def test_wrong_usage_leaves_with_2(arguments):
    assert run(*arguments).exit_code == 2


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ConfigError("no such thing"), 2, "no such thing"),
        (
            DataError([Problem("E104", "the table has no rows", "votes.csv", "export it again", "error")]),
            3,
            "E104",
        ),
        (
            OSError(errno.ENOSPC, "No space left on device", "runs/a/model"),
            1,
            "No space left on device: runs/a/model",
        ),
        (RuntimeError("it broke"), 1, "RuntimeError: it broke"),
        (ModuleNotFoundError("no torch", name="torch"), 2, 'pip install "ba-dpo[train]"'),
        (ModuleNotFoundError("no scipy", name="scipy"), 1, "ModuleNotFoundError: no scipy"),
        (type("OutOfMemoryError", (RuntimeError,), {})("CUDA"), 1, "E180 out of memory"),
    ],
    ids=["config", "data", "disk", "other", "extra", "module", "memory"],
)
@pytest.mark.parametrize("flag", ["", "--debug", "--json"])
def test_an_error_is_one_message_and_a_code(monkeypatch, error, code, message, flag):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr("badpo.data.judgments.Judgments.read", fail)
    result = run("check", EXAMPLE, *([flag] if flag else []))
    assert result.exit_code == code
    assert message in (json.loads(result.stdout)["error"] if flag == "--json" else result.stderr)
    assert ("Traceback" in result.stderr) is (flag == "--debug")


def test_attributes_list_shows_every_attribute():
    from badpo.attributes import ATTRIBUTES

    rows = json.loads(run("attributes", "list", "--json").stdout)
    assert [row["type"] for row in rows] == list(ATTRIBUTES)
    assert "length:ratio=1.5" in run("attributes", "list").output


def test_attributes_test_shows_shares_and_examples():
    result = run("attributes", "test", EXAMPLE, "--attribute", "length:ratio=2", "--examples", "1")
    assert result.exit_code == 0, result.output
    assert "length, with:\n  Basil wants light above all." in result.output
    swept = json.loads(
        run("attributes", "test", EXAMPLE, "--attribute", "length", "--sweep", "ratio=1.5,3", "--json").stdout
    )
    assert [trial["parameters"]["ratio"] for trial in swept] == [1.5, 3.0]
    assert swept[0]["n_cross"] > swept[1]["n_cross"] > 0


def test_train_gives_the_recipe_to_one_function(monkeypatch, tmp_path):
    seen = {}

    def train_run(recipe, resume, allow_changed):
        seen.update(recipe=recipe, resume=resume, allow_changed=allow_changed)
        return tmp_path / "length" / "pooled-s7"

    monkeypatch.setattr("badpo.runs.run.train_run", train_run)
    result = run(
        *("train", "--config", ROOT / "examples" / "train.yaml", "--attribute", "length:ratio=2", "--resume"),
        *(
            "--bias.variant",
            "pooled",
            "--learning-rate",
            "1e-5",
            "--seed=7",
            "--no_disable_dropout",
            "--use_peft",
        ),
        *("--report_to", "tensorboard", "trackio", "--dataset_num_proc", "4"),
    )
    assert result.exit_code == 0, result.stderr
    recipe = seen["recipe"]
    assert seen["resume"] is True and not seen["allow_changed"]
    assert recipe.attributes == ({"type": "length", "ratio": 2},)
    expected = {
        "bias": "pooled",
        "learning_rate": 1e-5,
        "seed": 7,
        "disable_dropout": False,
        "report_to": ["tensorboard", "trackio"],
        "max_steps": 100,
    }
    assert {key: recipe.training[key] for key in expected} == expected
    assert recipe.model.use_peft is True
    assert recipe.model.trust_remote_code is False
    assert "dataset_num_proc" in result.stderr
    assert str(tmp_path / "length" / "pooled-s7") in result.stdout


def test_several_processes_are_started_by_accelerate_once(monkeypatch, tmp_path):
    started = []
    monkeypatch.setattr(os, "execv", lambda program, command: started.append(command))
    monkeypatch.setattr("badpo.runs.run.train_run", lambda *arguments: tmp_path / "run")
    monkeypatch.setenv("BADPO_LAUNCHED", "")  # so that it is put back
    monkeypatch.delenv("BADPO_LAUNCHED")
    words = [
        *("train", "--num_processes", "2", "--attribute", "length"),
        *("--model_name_or_path", "m", "--dataset_name", "votes.csv"),
    ]
    monkeypatch.setattr(sys, "argv", ["badpo", *words])
    assert run(*words).exit_code == 0
    assert run(*words).exit_code == 0  # as the launcher starts it
    program = [sys.executable, "-m", "accelerate.commands.launch"]
    assert started == [[*program, "--num_processes", "2", "-m", "badpo", *words]]


def test_remote_code_needs_the_flag(monkeypatch, tmp_path):
    recipes = []
    monkeypatch.setattr(
        "badpo.runs.run.train_run",
        lambda recipe, resume, allow_changed: recipes.append(recipe) or tmp_path,
    )
    config = ("train", "--config", ROOT / "examples" / "train.yaml")
    assert run(*config, "--trust-remote-code").exit_code == 0
    assert recipes[0].model.trust_remote_code is True
    assert run(*config, "--model_init_kwargs.trust_remote_code", "true").exit_code == 2


def test_check_with_a_model_counts_what_is_cut(tmp_path):
    from transformers import LlamaConfig

    from tests import tiny

    tiny.tokenizer().save_pretrained(tmp_path / "model")
    # a model whose class brings no tokenizer of its own
    LlamaConfig(vocab_size=len(tiny.tokenizer())).save_pretrained(tmp_path / "model")
    tiny.votes(60, 6).to_csv(tmp_path / "votes.csv", index=False)
    asked = ("--model", tmp_path / "model", "--max-length", "8", "--json")
    problems = json.loads(run("check", tmp_path / "votes.csv", *asked).stdout)["problems"]
    assert any("max_length=8" in problem["what"] for problem in problems)
