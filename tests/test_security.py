"""What the code must never do, and what files that somebody else wrote must never bring about."""

import ast
import json
import logging
import os
import re
import socket
import stat
import time
import tomllib
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from typer.testing import CliRunner

from badpo import Judgments
from badpo.attributes import Length
from badpo.auditing.audit import audit
from badpo.cli.main import app
from badpo.data.files import seal_damage, write_seal
from badpo.data.forgetting import find_people, forget
from badpo.data.problems import ConfigError, DataError
from badpo.data.yaml_files import _Loader
from badpo.results.bias_check import _again
from badpo.results.formatting import page_templates
from badpo.results.run_files import BiasContent, MeasuredRuns, find_finished_runs, read_run, read_suite
from badpo.runs.evaluate import prepare_stage
from badpo.runs.run import _find_unfinished
from badpo.training.recipe import NO_SOURCES, read_recipe
from badpo.training.trl_keys import refusal
from tests.results.suites import write_suite

ROOT = Path(__file__).parents[1]
TEMPLATES = ROOT / "src" / "badpo" / "results" / "templates"
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

# Programs of others in data, code made from text, and the network.
FORBIDDEN_IMPORTS = {
    *("pickle", "cPickle", "_pickle", "dill", "cloudpickle", "shelve", "marshal", "subprocess"),
    *("socket", "requests", "urllib", "http", "ftplib", "smtplib", "telnetlib", "webbrowser"),
}
FORBIDDEN_CALLS = {
    *("eval", "exec", "compile", "__import__", "os.system", "os.popen", "os.umask", "os.symlink"),
    *("torch.save", "torch.jit.load", "pd.read_pickle", "pd.eval", "tempfile.mktemp"),
    *("yaml.full_load", "yaml.unsafe_load", "yaml.load_all", "np.load", "np.save", "np.savez"),
}
FORBIDDEN_METHODS = {"to_pickle", "read_pickle", "tofile"}
NODES = [
    (str(path.relative_to(ROOT / "src")), node)
    for path in (ROOT / "src").rglob("*.py")
    for node in ast.walk(ast.parse(path.read_text()))
]
# every call in the package: its file, what is called (dotted), and the call
CALLS = [(file, ast.unparse(node.func), node) for file, node in NODES if isinstance(node, ast.Call)]


def value_of(call: ast.Call, keyword: str) -> str | None:
    """What a keyword is given, as it is written."""
    return next((ast.unparse(entry.value) for entry in call.keywords if entry.arg == keyword), None)


def is_called(called: str, *names: str) -> bool:
    return any(called == name or called.endswith(f".{name}") for name in names)


STREAMS = ("sys.stdout.write", "sys.stderr.write", "sys.__stdout__.write", "sys.__stderr__.write")
PRINTS = ("print", "echo", "secho", "print_exc", "print_exception")
REMOTE = {None, "trust_remote_code", "choice.trust_remote_code", "args.trust_remote_code", "False"}
NEVER = {
    "runs what it reads": lambda called, call: (
        called in FORBIDDEN_CALLS or called.split(".")[-1] in FORBIDDEN_METHODS
    ),
    "reads more than weights": lambda called, call: (
        is_called(called, "torch.load") and value_of(call, "weights_only") != "True"
    ),
    "reads YAML that makes objects": lambda called, call: (
        is_called(called, "yaml.load") and value_of(call, "Loader") != "_Loader"
    ),
    "writes YAML that only an unsafe loader reads": lambda called, call: called == "yaml.dump",
    "takes a text for markup": lambda called, call: (
        called == "Markup" and not all(isinstance(argument, ast.Constant) for argument in call.args)
    ),
    # SECURITY.md: only processes of one run connect; a store of torch is a server or a connection to one
    "serves or asks a store": lambda called, call: called.endswith("Store") and "Text" not in called,
    "asks a shell": lambda called, call: value_of(call, "shell") is not None,
    # what the caller chose, or not mentioned, which transformers takes for no
    "runs code of a model unasked": lambda called, call: (
        value_of(call, "trust_remote_code") not in REMOTE
    ),
    "loads a tokenizer or configuration without saying that its code is not run": lambda called, call: (
        called in ("AutoTokenizer.from_pretrained", "AutoConfig.from_pretrained")
        and not value_of(call, "trust_remote_code")
        and not any(keyword.arg is None for keyword in call.keywords)
    ),
}
READ_OF_A_FOLDER = ("AutoTokenizer.from_pretrained", "AutoConfig.from_pretrained")
ONLY_IN = {
    "badpo/data/yaml_files.py": lambda called, call: called in ("yaml.load", "yaml.safe_load"),
    # what a terminal would obey is written out there; in a text of ours is nothing of the kind
    "badpo/cli/options.py": lambda called, call: (
        (called.split(".")[-1] in PRINTS or called in STREAMS)
        and not all(isinstance(argument, ast.Constant) for argument in call.args)
    ),
    # behind the guard of a model's files
    "badpo/training/model_files.py": lambda called, call: called.endswith(".from_pretrained"),
    "badpo/results/formatting.py": lambda called, call: is_called(called, "jinja2.Environment"),
}


@pytest.mark.parametrize("what", NEVER)
def test_no_call(what):
    assert [(file, call.lineno) for file, called, call in CALLS if NEVER[what](called, call)] == []


@pytest.mark.parametrize("place", ONLY_IN)
def test_calls_of_one_file_only(place):
    assert {file for file, called, call in CALLS if ONLY_IN[place](called, call)} == {place}


def test_no_module_imports_what_runs_what_it_reads_or_what_sends():
    whole = [(file, node) for file, node in NODES if isinstance(node, ast.Import)]
    imported = [(file, alias.name) for file, node in whole for alias in node.names]
    imported += [(file, node.module or "") for file, node in NODES if isinstance(node, ast.ImportFrom)]
    places = {(file, name.split(".")[0]) for file, name in imported}
    assert {place for place in places if place[1] in FORBIDDEN_IMPORTS} == set()
    # it hands objects to processes of its own
    assert {Path(file).name for file, name in places if name == "joblib"} == {"schedule.py"}
    assert issubclass(_Loader, yaml.SafeLoader) and refusal("trust_remote_code", True)


YAML = {
    "call": "!!python/object/apply:os.system ['touch owned']",
    "name": "!!python/name:os.system ''",
    "tag": "!!timestamp x",
    "bomb": "[" + "".join(f"&a{i} [{f'*a{i - 1}, ' * 9 if i else 'x'}], " for i in range(9)) + "]",
    "itself": "&a [*a]",
    "long": "x" * 300_000,
    "deep": "[" * 600 + "]" * 600,
}


@pytest.mark.parametrize("name", YAML)
def test_yaml_holds_plain_values(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run.yaml"
    path.write_text(f"output_dir: {YAML[name]}\n")
    with pytest.raises(ConfigError, match="not valid YAML: (?!maximum)|characters"):
        read_recipe(path)
    assert not (tmp_path / "owned").exists()


HOSTILE = "\x1b[2J\x9b31m\x7f\u202e"


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_terminal_is_told_nothing_by_names_of_files_texts_and_attributes(tmp_path, options):
    table = tmp_path / f"votes{HOSTILE}.jsonl"
    row = {"response_a": f"red {HOSTILE}", "response_b": "blue"}
    rows = [row | {"prompt": f"q{i}", "winner": "ab"[i % 2]} for i in range(6)]
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    declared = ["--attribute", f"word_list:name=hue{HOSTILE},words=red"]
    commands = (
        ["attributes", "test", str(table), *declared],
        ["check", str(table), *declared],
        ["check", str(tmp_path / f"none{HOSTILE}.csv")],
        ["report", str(tmp_path / HOSTILE)],
    )
    for command in commands:
        result = CliRunner().invoke(app, [*command, *options])
        assert not set(result.output) & set(HOSTILE) - set("[2J31m"), (command, result.output)
        assert "u001b" in result.output or command[0] == "check"
        assert not options or json.loads(result.stdout)


def test_logs_of_any_library_are_written_out():
    CliRunner().invoke(app, ["attributes", "list"])
    make = logging.getLogRecordFactory()
    record = make("transformers", logging.WARNING, "", 0, "a %s", (HOSTILE,), None)
    assert record.getMessage() == "a \\u001b[2J\\u009b31m\\u007f\\u202e"


def test_every_page_has_the_content_policy_and_escapes():
    head = (TEMPLATES / "layout.html.jinja").read_text().partition("</head>")[0]
    assert f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">' in head
    # what comes before it is not held to it
    assert head.index("Content-Security-Policy") < head.index("<title>")
    pages = [page for page in TEMPLATES.glob("*.html.jinja") if page.name != "layout.html.jinja"]
    assert pages
    for page in pages:
        assert page.read_text().startswith('{% extends "layout.html.jinja" %}'), page.name
        assert "<head>" not in page.read_text() and "<html" not in page.read_text(), page.name
    escapes = page_templates().autoescape
    plain = {"audit.txt.jinja", "model_card.md.jinja", "audit_sentences.jinja", "run_sentences.jinja"}
    assert {path.name for path in TEMPLATES.iterdir() if not escapes(path.name)} == plain
    assert escapes(None)
    for template in TEMPLATES.iterdir():
        assert not re.search(r"\|\s*safe\b|autoescape", template.read_text()), template.name


def test_the_constraints_name_a_version_of_all_that_an_installation_brings():
    requirements = pytest.importorskip("packaging.requirements")
    text = (ROOT / "constraints.txt").read_text()
    known = {name.lower().replace("_", "-") for name in re.findall(r"^([\w.-]+)==", text, re.M)}
    own = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = own["optional-dependencies"].values()
    asked, seen = [*own["dependencies"], *(line for extra in extras for line in extra)], set()
    while asked:
        one = requirements.Requirement(asked.pop())
        name = one.name.lower().replace("_", "-")
        chosen = ({"extra": extra} for extra in ("", *one.extras))
        if name in seen or not (one.marker is None or any(map(one.marker.evaluate, chosen))):
            continue
        seen.add(name)
        with suppress(PackageNotFoundError):  # an extra that is not installed here
            asked += requires(one.name) or []
    assert len(seen) > 20 and seen - known == set()


@pytest.fixture
def outside(tmp_path) -> Path:
    path = tmp_path / "outside" / "secret.json"
    path.parent.mkdir()
    path.write_text('{"secret": "do not show"}')
    return path


@pytest.fixture
def run(tmp_path) -> Path:
    return write_suite(tmp_path / "suite") / "dpo-s42"


@pytest.mark.parametrize("name", ["environment.json", "log.jsonl", "bias.json", "model"])
def test_a_run_folder_with_a_link_that_leads_out_is_refused(run, outside, name):
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(outside.parent if name == "model" else outside)
    for read in (lambda: read_run(run), lambda: read_suite(run.parent)):
        with pytest.raises(ConfigError, match="symbolic link that leads out") as refused:
            read()
        assert "do not show" not in str(refused.value)
    with pytest.raises(ConfigError, match="symbolic link that leads out"):
        forget(find_people(["ann_aaaaaaaaaats6n"]), runs=[run])


@pytest.mark.parametrize(
    "name",
    [
        *("config.yaml", "run.json", "bias.json", "bias.safetensors", "log.jsonl", "readouts.json"),
        *(
            "environment.json",
            "model/adapter_model.safetensors",
            "checkpoints/checkpoint-1/complete.json",
        ),
    ],
)
def test_a_run_folder_with_a_pipe_is_refused_before_a_file_is_read(run, monkeypatch, name):
    (run / name).parent.mkdir(exist_ok=True, parents=True)
    (run / "model").mkdir(exist_ok=True)
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: pytest.fail("a file was read"))
    for read in (
        lambda: read_run(run),
        lambda: read_suite(run.parent),
        lambda: prepare_stage(run, NO_SOURCES),
        lambda: _find_unfinished([run], resume=True, allow_changed=[]),
    ):
        with pytest.raises(ConfigError, match=re.escape(f"{run / name} is a named pipe")):
            read()


def test_no_command_for_the_recipe_of_a_run_that_was_not_made_here_is_shown(run):
    write_seal(run / "run.json", {}, ["config.yaml"])
    config = {"dataset_name": "votes.csv", "push_to_hub": True}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    write_seal(run / "run.json", {}, ["config.yaml"])
    assert read_run(run).is_trainable
    (run / "run.json").unlink()
    assert not read_run(run).is_trainable and _again(read_run(run), "--beta", "1") == ""
    arm = replace(read_run(run), bias=BiasContent(parts=["mean"]))
    assert MeasuredRuns("runs", (arm,), ()).compare_command() == ""


def test_a_linked_run_folder_is_neither_trained_into_nor_found(run, tmp_path):
    (tmp_path / "linked").symlink_to(run)
    with pytest.raises(ConfigError, match="symbolic link"):
        _find_unfinished([tmp_path / "linked"], resume=True, allow_changed=[])
    (tmp_path / "handed").mkdir()
    (tmp_path / "handed" / "run").symlink_to(run)
    with pytest.raises(ConfigError, match="symbolic link"):
        find_finished_runs([tmp_path / "handed"])
    assert find_finished_runs([tmp_path / "handed" / "run"])


def test_links_within_a_run_are_taken_and_one_out_of_a_cache_is_refused(run, tmp_path, outside):
    (run / "latest.json").symlink_to("readouts.json")
    link = tmp_path / "link"
    link.symlink_to(run)
    assert read_run(link).readouts == read_run(run).readouts
    from badpo.training.reference import ReferenceCache

    cache = tmp_path / "cache"
    (cache / "key").mkdir(parents=True)
    ReferenceCache(cache, "key").open_new_shards()
    (cache / "key" / "shard-0.safetensors").symlink_to(outside)
    with pytest.raises(ConfigError, match="symbolic link that leads out"):
        ReferenceCache(cache, "key")


@pytest.mark.parametrize("name", ["../secret.json", "/etc/hostname", "..\\secret.json", "C:/key"])
def test_a_seal_names_nothing_outside_of_its_folder(run, name, monkeypatch):
    monkeypatch.setattr("badpo.data.files.file_checksum", lambda path: "0")
    write_seal(run / "run.json", {}, [name])
    assert "names a file outside of the manifest's folder" in str(seal_damage(run / "run.json"))


def test_an_audit_is_for_its_owner_alone_but_for_the_page_and_opens_no_connection(tmp_path, monkeypatch):
    asked, row = [], {"response_a": "It just is so.", "response_b": "So."}
    votes = [row | {"prompt": f"q{i}", "winner": "ab"[i % 2]} for i in range(6)]

    def refuse(*place: object, **_: object) -> None:
        asked.append(place)
        raise OSError("no network here")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    before = os.umask(0)
    (tmp_path / "audit").mkdir()  # as a command leaves it that is stopped at once
    audit(votes, [Length()]).write(tmp_path / "audit")
    os.umask(before)
    written = (tmp_path / "audit").iterdir()
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in written}
    personal = (".gitignore", "audit.json", "annotators.csv", "annotators.parquet")
    assert modes == {"report.html": 0o666, **dict.fromkeys(personal, 0o600)}
    assert not asked  # also where somebody would have caught the refusal


def _wide_table(n_columns: int, name: str, cells: list[str]) -> pd.DataFrame:
    rows = [[cells[(i * j + j // 7) % len(cells)] for i in range(n_columns)] for j in range(40)]
    return pd.DataFrame(rows, columns=[name.format(i) for i in range(n_columns)])


def _long_table(header: str, cell: str) -> pd.DataFrame:
    return pd.DataFrame(
        {"prompt": "p", "response_a": "x" + cell, "response_b": cell + "y z", header: ["a", "b"] * 10}
    )


LEGEND = "1 = A much better, 7 = B much better"
# each took minutes or hours while the time grew with the square of the length of a text or of the width of a table
SLOW_TABLES = {
    "columns of ratings": lambda: _wide_table(300, "col{}", list("1234567")),
    "columns of texts": lambda: _wide_table(
        300, "col{}", ["one text is here", "another text is longer"]
    ),
    "columns of votes": lambda: _wide_table(200, "Preference {} (" + LEGEND + ")", list("1234567")),
    "spaces in cells": lambda: _long_table("winner", " " * 100_000),
    "letters in cells": lambda: _long_table("winner", "a" * 100_000),
    "marks in cells": lambda: _long_table("winner", "e" + "\u0300\u0316" * 100_000),
    "a name of spaces": lambda: _long_table("winner" + " " * 100_000 + "x", ""),
    "a name of sides": lambda: _long_table("Preference (" + "1 = " * 20_000 + ")", ""),
    "a name that is a legend": lambda: _long_table("Preference (" + "1 = A, " * 20_000 + ")", ""),
}


@pytest.mark.parametrize("table", SLOW_TABLES)
def test_the_form_of_a_table_exhausts_no_time(table, tmp_path):
    SLOW_TABLES[table]().to_csv(tmp_path / "votes.csv", index=False)
    start = time.process_time()
    with suppress(DataError):
        Judgments.read(tmp_path / "votes.csv")
    assert time.process_time() - start < 20


def test_a_text_that_a_file_stores_once_for_very_many_rows_is_refused(tmp_path):
    zeros = pa.array(np.zeros(1_000_000, dtype="int32"))
    texts = {name: pa.DictionaryArray.from_arrays(zeros, pa.array([text])) for name, text in
             {"prompt": "p", "response_a": "w " * 20_000, "response_b": "w", "winner": "a"}.items()}  # fmt: skip
    pq.write_table(pa.table(texts), tmp_path / "votes.parquet", store_schema=False)
    with pytest.raises(DataError) as refused:
        Judgments.read(tmp_path / "votes.parquet")
    assert [problem.code for problem in refused.value.problems] == ["E102"]
