"""The command line: what it prints, its exit codes, how fast it answers, and the README's commands."""

from __future__ import annotations

import ast
import errno
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner

import badpo
from badpo.cli.main import app
from badpo.data.problems import ConfigError, DataError, Problem
from tests.public_face import commands

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "votes.csv"
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


def test_check_as_json():
    result = run("check", EXAMPLE, "--json")
    counts = json.loads(result.stdout)
    assert (counts["judgments"], counts["comparisons"], counts["errors"]) == (158, 40, 0)
    assert all({"code", "what", "where", "remedy", "severity", "count"} <= set(p) for p in counts["problems"])


def test_check_names_every_problem_and_leaves_with_3(bad_table):
    result = run("check", bad_table)
    assert result.exit_code == 3
    assert "left" in result.stderr
    assert "prompt" in result.stderr
    assert "Traceback" not in result.stderr


def test_check_reports_wrong_data_as_json(bad_table):
    result = run("check", bad_table, "--json")
    assert result.exit_code == 3
    assert json.loads(result.stdout)["exit_code"] == 3


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


def test_check_loads_no_torch():
    program = (
        "import sys; from typer.testing import CliRunner; from badpo.cli.main import app\n"
        f"assert CliRunner().invoke(app, ['check', {str(EXAMPLE)!r}, '--attribute', 'length']).exit_code == 0\n"
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


def test_corpus_signed_writes_a_table_that_check_reads(tmp_path):
    result = run("corpus", "signed", "--out", tmp_path / "signed", "--n", "60", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["n_judgments"] == 240
    counts = json.loads(run("check", tmp_path / "signed" / "judgments.parquet", "--json").stdout)
    assert (counts["judgments"], counts["comparisons"]) == (240, 60)
    planted = pd.read_parquet(tmp_path / "signed" / "planted.parquet")
    assert planted[["woman", "black"]].notna().all(axis=None)


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


def readme_blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(), re.S)


def readme_commands() -> list[str]:
    lines = [line.split(" #")[0].strip() for block in readme_blocks("bash") for line in block.splitlines()]
    return [line for line in lines if line.startswith("badpo ")]


def test_the_readme_shows_every_kind_of_command():
    shown = {shlex.split(command)[1] for command in readme_commands()}
    assert shown == {command[0] for command in COMMANDS if command} - {"demo", "corpus"}


@pytest.mark.parametrize(
    "command", [c for c in readme_commands() if shlex.split(c)[1] in ("check", "attributes")]
)
def test_cheap_readme_commands_work(monkeypatch, command):
    monkeypatch.chdir(ROOT)
    result = run(*shlex.split(command)[1:])
    assert result.exit_code == 0, result.output


def test_the_readme_recipe_is_readable(monkeypatch):
    from badpo.training.recipe import read_recipe

    monkeypatch.chdir(ROOT)
    recipe = read_recipe("examples/train.yaml")
    assert Path(recipe.data.dataset_name).exists()
    assert recipe.notices == ()


@pytest.mark.parametrize("block", readme_blocks("python"), ids=["python"])
def test_the_readme_python_names_what_is_there(block):
    tree = ast.parse(block)
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    names = {}
    exec(compile(ast.Module(imports, []), "README.md", "exec"), names)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names:
            assert hasattr(names[node.value.id], node.attr)
    trainer_methods = re.findall(r"trainer\.(\w+)\(", block)
    assert all(callable(getattr(names["BADPOTrainer"], name)) for name in trainer_methods)


def test_make_targets_of_the_readme_are_there():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    shown = set(re.findall(r"^make ([a-z-]+)", "\n".join(readme_blocks("bash")), re.M))
    assert {"demo", "test"} == shown
    assert shown <= targets


@pytest.fixture
def small_model(tmp_path) -> Path:
    """A folder with a model and a tokenizer that load by their folder's name."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from tests import tiny

    tokenizer = tiny.tokenizer()
    tokenizer.save_pretrained(tmp_path / "model")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=len(tokenizer), pad_token_id=0, eos_token_id=1, **sizes)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def recipe_file(small_model, tmp_path) -> Path:
    from tests import tiny

    tiny.votes(60, 6).to_csv(tmp_path / "votes.csv", index=False)
    recipe = {
        "model_name_or_path": str(small_model),
        "dataset_name": str(tmp_path / "votes.csv"),
        "output_dir": str(tmp_path / "runs"),
        "max_steps": 4,
        "save_steps": 2,
        "learning_rate": 1e-3,
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
        "attributes": ["length"],
    }
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(recipe))
    return path


def test_check_with_a_model_counts_what_is_cut(recipe_file, small_model):
    table = recipe_file.parent / "votes.csv"
    problems = json.loads(run("check", table, "--model", small_model, "--max-length", "8", "--json").stdout)[
        "problems"
    ]
    assert any("max_length=8" in problem["what"] for problem in problems)


def test_a_dry_run_plans_and_writes_nothing(recipe_file):
    result = run("train", "--config", recipe_file, "--dry-run")
    assert result.exit_code == 0, result.stderr
    assert "self-test" in result.stdout
    assert json.loads(run("train", "--config", recipe_file, "--dry-run", "--json").stdout)["n_steps"] == 4
    assert not (recipe_file.parent / "runs" / "shared_mean-s42" / "model").exists()


def test_train_evaluate_report(recipe_file):
    folder = recipe_file.parent / "runs" / "shared_mean-s42"
    trained = run("train", "--config", recipe_file, "--json")
    assert trained.exit_code == 0, trained.stderr
    assert json.loads(trained.stdout) == {"run": str(folder)}
    assert {"config.yaml", "log.jsonl", "bias.json", "model", "environment.json"} <= {
        p.name for p in folder.iterdir()
    }

    measured = run("evaluate", folder, "--json")
    assert measured.exit_code == 0, measured.stderr
    assert json.loads(measured.stdout)[str(folder)] == json.loads((folder / "readouts.json").read_text())

    page = recipe_file.parent / "report.html"
    reported = run("report", folder, "--out", page)
    assert reported.exit_code == 0, reported.stderr
    assert page.read_text().lstrip().lower().startswith("<!doctype html>")

    again = run("train", "--config", recipe_file)
    assert again.exit_code == 2
    assert "holds a finished run" in again.stderr
