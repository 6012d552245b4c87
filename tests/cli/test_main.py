"""The command line: what it prints, its exit codes, and what it loads."""

import errno
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from unittest import mock

import pytest
from typer.testing import CliRunner

import badpo
from badpo.cli.main import app
from badpo.cli.options import terminal_progress
from badpo.data.attributes import parsed_attribute
from badpo.data.problems import ConfigError, DataError, Problem
from tests.public_face import commands
from tests.public_face import invoke as run

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "votes.csv"
EXPORT = ROOT / "examples" / "label_studio.json"
COMMANDS = [(), *(tuple(name.split()) for name, _ in commands())]
HEAVY = {*("numpy", "pandas", "pyarrow", "scipy", "torch", "transformers")}
HEAVY |= {"rich.markdown", "jinja2", "yaml"}
ONLY_UNIX = ("fcntl", "resource", "termios", "pwd", "grp")


def python(*arguments: str) -> str:
    command = [sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


HELP = f"""
from typer.testing import CliRunner
from badpo.cli.main import app
for command in {COMMANDS!r}:
    assert CliRunner().invoke(app, [*command, '--help']).exit_code == 0, command
"""


def test_help_loads_nothing_heavy_and_needs_nothing_that_only_unix_has():
    assert python("-c", f"{HELP}\nimport sys; print(*sys.modules.keys() & {HEAVY!r})").split() == []
    hidden = f"import sys\nfor name in {ONLY_UNIX}: sys.modules[name] = None\n"
    python("-c", f"{hidden}{HELP}\nimport badpo; badpo.Judgments, badpo.audit, badpo.attributes")


def started(folder: Path, *arguments: str, **options) -> subprocess.Popen:
    command = [sys.executable, "-m", "badpo", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": folder} | options
    return subprocess.Popen(command, **pipes)


@pytest.mark.parametrize("command", ["check", "watch --state s.json", "attributes test"])
def test_whoever_ends_a_command_gets_one_line_and_130(command, tmp_path):
    (tmp_path / "slow.py").write_text("import time; print(flush=True); time.sleep(60); ATTRIBUTES = []")
    asked = started(tmp_path, *command.split(), str(EXAMPLE), "--attribute-file", "slow.py")
    with asked as running:
        assert running.stdout.readline() == b"\n"
        running.terminate()
        assert (running.communicate()[1], running.returncode) == (b"stopped\n", 130)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_output_that_cannot_be_written_is_one_line():
    with Path("/dev/full").open("wb") as full:
        asked = started(ROOT, "check", str(EXAMPLE), "--json", stdout=full)
        said = asked.communicate()[1]
    assert (asked.returncode, len(said.splitlines())) == (1, 1) and os.strerror(errno.ENOSPC) in str(
        said
    )


def test_signs_that_the_terminal_lacks_are_written_as_codes(tmp_path):
    encoding = "iso-8859-1"
    row = {"prompt": "q", "response_a": "\U0001f600 \u201ca\u201d", "response_b": "b"}
    rows = [row | {"winner": "ab"[k % 2], "judge \u2013 id": f"x{k}"} for k in range(6)]
    (tmp_path / "votes.json").write_text(json.dumps(rows), encoding="utf-8")
    known = os.environ | {"PYTHONIOENCODING": encoding}
    for extra in ((), ("--json",)):
        asked = started(
            tmp_path, "attributes", "test", "votes.json", "--attribute", "length", *extra, env=known
        )
        out, said = asked.communicate()
        assert asked.returncode == 0, said
        assert not extra or "\U0001f600" in str(json.loads(out.decode(encoding)))


@pytest.mark.parametrize("words", [("./--out=z.csv",), ("--", "--out=z.csv")])
def test_a_file_that_is_called_like_an_option_is_no_option_of_a_remedy(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wrong = EXAMPLE.read_text().replace("winner", "wanner", 1)
    Path("--out=z.csv").write_text(wrong)
    found = run("check", *words)
    pasted = shlex.split(found.stderr.splitlines()[-1])
    assert pasted[:3] == ["badpo", "check", "./--out=z.csv"] and run(*pasted[1:]).exit_code == 0


def test_version_also_of_python_m():
    version = f"badpo {badpo.__version__}\n"
    assert run("--version").output == python("-m", "badpo", "--version") == version


@pytest.mark.parametrize(
    ("told", "completed"),
    [
        ({"_BADPO_COMPLETE": "source_bash"}, "complete -o default -F _badpo_completion badpo"),
        ({"COMP_WORDS": "badpo au", "COMP_CWORD": "1"}, "audit"),
        ({"COMP_WORDS": "badpo re", "COMP_CWORD": "1"}, "report\nreproduce"),
        ({"COMP_WORDS": "badpo audit --fail", "COMP_CWORD": "2"}, "--fail-on"),
    ],
)
def test_a_shell_completes_commands_and_flags(told, completed):
    told = {"_BADPO_COMPLETE": "complete_bash"} | told
    assert CliRunner().invoke(app, prog_name="badpo", env=told).stdout.strip().endswith(completed)


def test_check_passes_the_example_shows_no_raw_id_and_tells_what_is_to_mend():
    result = run("check", EXAMPLE, "--attribute", "length:ratio=1.5")
    assert result.exit_code == 0 and result.output.startswith(f"reading {EXAMPLE}\n")
    assert all(told in result.output for told in ("judgments 158", "annotators 7", "dropped 2"))
    assert not re.search(r"(reader|editor)-\d", result.output + run("check", EXAMPLE, "--json").output)
    wrong = run("check", EXAMPLE, "--attribute", "emoji")
    assert wrong.exit_code == 3
    assert "E120" in wrong.output and "1 problem must" in wrong.output


def test_what_needs_no_model_loads_no_torch_nor_do_runs_that_are_not_there(tmp_path):
    asked = [
        f"check {EXAMPLE} --attribute length",
        f"audit {EXAMPLE} --attribute length --out {tmp_path / 'audit'}",
        f"watch {EXAMPLE} --attribute length --state {tmp_path / 'state.json'}",
        f"import {EXPORT} --out {tmp_path / 'votes.parquet'}",
        f"forget editor-1 --data {EXAMPLE} --dry-run",
    ]
    program = (
        "import sys; from typer.testing import CliRunner; from badpo.cli.main import app\n"
        f"for words in {[words.split() for words in asked]}:\n"
        "    assert CliRunner().invoke(app, words).exit_code == 0, words\n"
        "    print(*[name for name in ('torch', 'transformers', 'datasets') if name in sys.modules])"
    )
    assert python("-c", program).split() == []
    called = "from typer.testing import CliRunner\nfrom badpo.cli.main import app\nimport sys\n"
    called += f"found = CliRunner().invoke(app, ['evaluate', {str(tmp_path / 'none')!r}])\n"
    told = python("-c", called + "print(found.exit_code, 'torch' in sys.modules, found.stderr)")
    assert told.startswith("2 False ") and "is not a folder; name run folders or a folder of run" in told


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (f"check {EXAMPLE} --attribute lenght", 'Did you mean "length"?'),
        (f"check {EXAMPLE} --attribute length:ratio", '"ratio" is not KEY=VALUE'),
        (f"check {EXAMPLE} --column annotator", "write it as in --column annotator=worker_id"),
        (f"check {EXAMPLE} --winner left", "write it as in --winner model_a=a"),
        (f"check {EXAMPLE} --repeated keep", "repeated must be"),
        (
            f"check {EXAMPLE} --attribute length_tokens:tokenizer=a/b,threshold=5",
            "the tokenizer once with network access",
        ),
        (f"check {EXAMPLE} --attribute-file absent.py", "absent.py cannot be run"),
        (f"attributes test {EXAMPLE}", "name an attribute to test"),
        ("train run.yaml", "the recipe as --config FILE"),
        ("train --betta 0.1", 'unknown key "betta". Did you mean "beta"?'),
        ("train --config absent.yaml", "absent.yaml"),
    ],
)
def test_a_wrong_command_leaves_with_2(command, message):
    result = run(*command.split())
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert "Traceback" not in result.stderr


NO_ROWS = Problem("E104", "the table has no rows", "votes.csv", "export it again")
FULL = "No space left on device"
ERRORS = {
    "config": (ConfigError("no such thing"), 2, "no such thing"),
    "data": (DataError([NO_ROWS]), 3, "E104"),
    "disk": (OSError(errno.ENOSPC, FULL, "runs/a/model"), 1, f"{FULL}: runs/a/model\nfree some space"),
    "place": (OSError(errno.EROFS, "Read-only file system", "a"), 1, "a\nchoose a writable folder"),
    "other": (RuntimeError("it broke"), 1, "RuntimeError: it broke"),
    "extra": (ModuleNotFoundError("no torch", name="torch"), 2, 'constraints.txt ".[train]"'),
    "module": (ModuleNotFoundError("no scipy", name="scipy"), 1, "ModuleNotFoundError: no scipy"),
    "memory": (type("OutOfMemoryError", (RuntimeError,), {})("CUDA"), 1, "E180 out of memory"),
}


@pytest.mark.parametrize(("error", "code", "message"), ERRORS.values(), ids=ERRORS)
@pytest.mark.parametrize("flag", ["", "--debug", "--json"])
def test_an_error_is_one_message_and_a_code(monkeypatch, error, code, message, flag):
    raising = mock.Mock(side_effect=[error, KeyboardInterrupt()])
    monkeypatch.setattr("badpo.data.judgments.Judgments.read", raising)
    result = run("check", EXAMPLE, *([flag] if flag else []))
    assert result.exit_code == code
    assert message in (json.loads(result.stdout)["error"] if flag == "--json" else result.stderr)
    assert ("Traceback" in result.stderr) is (flag == "--debug")
    assert "--resume" not in result.output
    # a command that is interrupted has a code of its own
    stopped = run("check", EXAMPLE)
    assert (stopped.exit_code, stopped.stderr) == (130, "stopped\n")


def test_what_is_stopped_says_what_is_left_and_the_command(monkeypatch):
    monkeypatch.setattr("badpo.cli.votes.locked", mock.Mock(side_effect=KeyboardInterrupt))
    result = run("audit", "my votes.csv")
    told = "stopped before the audit was complete; start again with: badpo audit 'my votes.csv'\n"
    assert (result.exit_code, result.stderr) == (130, told)


def test_an_interrupt_while_the_program_loads_is_a_line(monkeypatch, capsys):
    stopping = mock.Mock(app=mock.Mock(side_effect=KeyboardInterrupt))
    monkeypatch.setitem(sys.modules, "badpo.cli.main", stopping)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, name = project["scripts"]["badpo"].partition(":")
    with pytest.raises(SystemExit, match="130"):
        getattr(importlib.import_module(module), name)()
    assert capsys.readouterr().err == "stopped\n"


def test_a_pipe_is_told_what_is_done_while_it_is_done(monkeypatch):
    said, end = [], time.monotonic() + 60
    monkeypatch.setattr("badpo.cli.options.SECONDS_A_LINE", 0.01)
    monkeypatch.setattr("badpo.cli.options.complain", said.append)
    with terminal_progress(False) as progress:
        for share in (0.0, 0.25):
            progress("reading", share)
            n = len(said) + 2
            while len(said) < n and time.monotonic() < end:
                time.sleep(0.01)
    assert said[1].endswith(" s  reading") and " s  reading  25 %" in said[-1]


def test_the_time_left_counts_down_while_a_long_stage_runs(monkeypatch):
    said, now = [], [0.0]
    monkeypatch.setattr("badpo.cli.options.time.monotonic", lambda: now[0])
    monkeypatch.setattr("badpo.cli.options.SECONDS_A_LINE", 0.01)
    monkeypatch.setattr("badpo.cli.options.complain", said.append)
    with terminal_progress(False) as progress:
        progress("audit: reading", 0.0)
        now[0] = 60.0
        progress("audit: fitting", 0.2)
        for now[0], left in ((60.0, ", 0:04:00 left"), (240.0, ", 0:01:00 left"), (360.0, "20 %")):
            said.clear()
            while len(said) < 2:
                time.sleep(0.01)
            assert said[-1].endswith(left)


def test_attributes_test_shows_shares_and_values_are_numbers_true_or_texts():
    result = run("attributes", "test", EXAMPLE, "--attribute", "length:ratio=2", "--examples", "1")
    assert result.exit_code == 0, result.output
    assert "length, with:\n  Basil wants light above all." in result.output
    asked = ("--attribute", "length:ratio=1.5", "--attribute", "length:ratio=3", "--json")
    swept = json.loads(run("attributes", "test", EXAMPLE, *asked).stdout)
    assert [trial["parameters"]["ratio"] for trial in swept] == [1.5, 3.0]
    assert swept[0]["n_cross"] > swept[1]["n_cross"] > 0
    never = run("attributes", "test", EXAMPLE, "--attribute", "emoji")
    assert never.exit_code == 3 and "emoji: the value is 0 for every response" in never.stderr
    found = parsed_attribute('regex:pattern="a",one=.5,two=null,three=true,four=[5],five=1;2')
    texts = {"pattern": '"a"', "two": "null", "four": "[5]"}
    assert found == {"type": "regex", "one": 0.5, "three": True, "five": [1, 2], **texts}


def test_train_gives_the_recipe_to_one_function(monkeypatch, tmp_path):
    seen = {}
    monkeypatch.setattr(
        "badpo.runs.run.train_run",
        lambda recipe, *options: seen.update(recipe=recipe, options=options) or tmp_path / "pooled-s7",
    )
    config = ("train", "--config", ROOT / "examples" / "train.yaml")
    flags = "--attribute length:ratio=2 --resume --allow-changed code --bias.variant pooled --learning-rate 1e-5"
    trl = "--no_disable_dropout --use_peft --report_to tensorboard trackio --dataset_num_proc 4"
    result = run(*config, *flags.split(), "--seed=7", *trl.split())
    assert result.exit_code == 0, result.stderr
    recipe = seen["recipe"]
    expected = {"bias": "pooled", "learning_rate": 1e-5, "seed": 7, "max_steps": 100}
    expected |= {"disable_dropout": False, "report_to": ["tensorboard", "trackio"]}
    assert {key: recipe.training[key] for key in expected} == expected
    assert recipe.attributes == ({"type": "length", "ratio": 2},)
    assert seen["options"][:2] == (True, ["code"])
    assert (recipe.model.use_peft, recipe.model.trust_remote_code) == (True, False)
    assert "dataset_num_proc" in result.stderr and str(tmp_path / "pooled-s7") in result.stdout
    monkeypatch.chdir(ROOT)
    assert run(*config, "--trust-remote-code").exit_code == 0
    assert seen["recipe"].model.trust_remote_code is True
    assert Path(seen["recipe"].data.dataset_name).exists() and seen["recipe"].notices == ()
    assert run(*config, "--model_init_kwargs.trust_remote_code", "true").exit_code == 2
