"""What the code must never do, and what files that somebody else wrote must never bring about."""

from __future__ import annotations

import ast
import json
import logging
import os
import re
import socket
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from badpo.attributes import Length
from badpo.auditing.audit import audit
from badpo.cli.main import app
from badpo.data.files import seal_damage, write_seal
from badpo.data.forgetting import find_people, forget
from badpo.data.privacy import pseudonym_key
from badpo.data.problems import ConfigError
from badpo.data.yaml_files import _Loader
from badpo.importers.formats import import_file
from badpo.results.run_files import read_run, read_suite
from badpo.results.words import page_templates
from badpo.training.recipe import read_recipe
from badpo.training.trl_keys import refusal
from tests.results.suites import write_suite

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "src").rglob("*.py"))
TEMPLATES = ROOT / "src" / "badpo" / "results" / "templates"
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

# Programs of others in data, code made from text, and the network.
FORBIDDEN_IMPORTS = {
    *("pickle", "cPickle", "_pickle", "dill", "cloudpickle", "shelve", "marshal"),
    *("subprocess", "socket", "requests", "urllib", "http", "ftplib", "smtplib", "telnetlib", "webbrowser"),
}
FORBIDDEN_CALLS = {
    *("eval", "exec", "compile", "__import__", "os.system", "os.popen", "os.umask", "os.symlink"),
    *("torch.save", "torch.jit.load", "pd.read_pickle", "pd.eval", "tempfile.mktemp"),
    *("yaml.full_load", "yaml.unsafe_load", "yaml.load_all", "np.load", "np.save", "np.savez"),
}
FORBIDDEN_METHODS = {"to_pickle", "read_pickle", "tofile"}


def calls() -> list[tuple[str, str, ast.Call]]:
    """Every call in the package: where it stands, what is called (dotted), and the call."""
    found = []
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                found.append((f"{path.relative_to(ROOT)}:{node.lineno}", ast.unparse(node.func), node))
    return found


CALLS = calls()


def named(name: str) -> list[tuple[str, ast.Call]]:
    """The calls of one function."""
    return [(where, call) for where, called, call in CALLS if called == name or called.endswith(f".{name}")]


def value_of(call: ast.Call, keyword: str) -> str | None:
    """What a keyword is given, as it is written."""
    return next((ast.unparse(entry.value) for entry in call.keywords if entry.arg == keyword), None)


# -- nothing that runs what it reads ---------------------------------------------------------------------------


def test_no_module_imports_what_runs_what_it_reads_or_what_sends():
    wrong = []
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            wrong += [
                f"{path}:{node.lineno} {name}" for name in names if name.split(".")[0] in FORBIDDEN_IMPORTS
            ]
    assert not wrong


def test_only_the_scheduler_hands_objects_to_its_own_processes():
    users = {
        path.name
        for path in MODULES
        if re.search(r"^\s*(?:from|import) joblib", path.read_text(), re.MULTILINE)
    }
    assert users <= {"schedule.py"}


def test_no_call_runs_what_it_reads():
    wrong = [f"{where} {called}" for where, called, _ in CALLS if called in FORBIDDEN_CALLS]
    wrong += [f"{where} {called}" for where, called, _ in CALLS if called.split(".")[-1] in FORBIDDEN_METHODS]
    assert not wrong


def test_torch_load_reads_weights_only():
    assert [where for where, call in named("torch.load") if value_of(call, "weights_only") != "True"] == []


def test_yaml_is_read_by_the_safe_loader():
    import yaml

    assert issubclass(_Loader, yaml.SafeLoader)
    assert [where for where, call in named("yaml.load") if value_of(call, "Loader") != "_Loader"] == []
    dumped = [where for where, called, _ in CALLS if called == "yaml.dump"]
    assert dumped == [], "yaml.safe_dump writes nothing that only an unsafe loader reads"


def test_a_shell_is_never_asked():
    assert [where for where, _, call in CALLS if value_of(call, "shell") is not None] == []


def test_code_of_a_model_is_run_only_where_the_flag_is_passed_on():
    """``trust_remote_code`` is what the caller chose, or is not mentioned, which transformers takes for no."""
    said = {value_of(call, "trust_remote_code") for _, _, call in CALLS} - {None}
    assert said <= {"trust_remote_code", "choice.trust_remote_code", "args.trust_remote_code", "False"}, said
    assert refusal("trust_remote_code", True)


@pytest.mark.parametrize(
    "keys",
    [
        {"trust_remote_code": True},
        {"model_init_kwargs": {"trust_remote_code": True}},
        {"attributes": [{"type": "python_function", "name": "x", "function": "os:system"}]},
    ],
)
def test_a_recipe_cannot_ask_for_code(keys):
    with pytest.raises(ConfigError, match="trust_remote_code|Python function"):
        read_recipe(overrides=keys)


@pytest.mark.parametrize(
    "value",
    [
        "!!python/object/apply:os.system ['touch owned']",
        "!!python/name:os.system ''",
        "!!timestamp x",
        "[" + "".join(f"&a{i} [{f'*a{i - 1}, ' * 9 if i else 'x'}], " for i in range(9)) + "]",
        "&a [*a]",
        "9" * 300_000,
    ],
    ids=["call", "name", "tag", "bomb", "itself", "long"],
)
def test_yaml_holds_plain_values_in_a_recipe_and_in_a_run(tmp_path, monkeypatch, value):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run.yaml"
    path.write_text(f"output_dir: {value}\n")
    with pytest.raises(ConfigError, match="not valid YAML|characters"):
        read_recipe(path)
    folder = write_suite(tmp_path / "suite")
    (folder / "dpo-s42" / "config.yaml").write_text(f"a: {value}\n")
    with pytest.raises(ConfigError, match="not valid YAML|characters"):
        read_suite(folder)
    assert not (tmp_path / "owned").exists()


def test_yaml_is_read_in_one_place():
    reads = [where for where, called, _ in CALLS if called in ("yaml.load", "yaml.safe_load")]
    assert {where.partition(":")[0] for where in reads} == {"src/badpo/data/yaml_files.py"}


# -- models ------------------------------------------------------------------------------------------------------


def test_weights_and_adapters_are_loaded_in_one_place():
    """And every class that finds out by itself what to load is told that code of the model's own is none."""
    loads = [(where, called, call) for where, called, call in CALLS if called.endswith(".from_pretrained")]
    for where, called, call in loads:
        if called.split(".")[0] in ("AutoTokenizer", "AutoConfig"):
            assert value_of(call, "trust_remote_code") or any(k.arg is None for k in call.keywords), where
        elif called != "GenerationConfig.from_pretrained":
            assert "training/model_files.py" in where, f"{where} {called}"


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        ("weights_only", False),
        ("use_safetensors", False),
        ("attn_implementation", "someone/kernel"),
        ("attn_implementation", ["sdpa"]),
        ("allow_all_kernels", True),
        ("use_kernels", True),
        ("kernel_config", {}),
        ("quantization_config", {"quant_method": "mxfp4"}),
        ("gguf_file", "weights.gguf"),
        ("dtype", "load"),
        ("token", "hf_secret"),
        ("use_auth_token", "hf_secret"),
        ("low_cpu_mem_usage", 1),
        ("config", "/etc"),
        (1, True),
    ],
)
def test_a_recipe_sets_only_listed_keywords_of_its_model(keyword, value):
    with pytest.raises(ConfigError, match=rf"model_init_kwargs\.{keyword} is refused") as refused:
        read_recipe(overrides={"model_init_kwargs": {keyword: value}})
    assert "hf_secret" not in str(refused.value)


def test_a_recipe_may_choose_attention_and_dtype():
    keywords = {
        "attn_implementation": "sdpa",
        "dtype": "bfloat16",
        "use_cache": False,
        "use_safetensors": True,
    }
    asked = {
        "model_init_kwargs": keywords,
        "model_name_or_path": "m",
        "dataset_name": "d.csv",
        "output_dir": "o",
    }
    assert read_recipe(overrides=asked | {"bias": "none"}).model.init_kwargs["attn_implementation"] == "sdpa"


# -- terminals ---------------------------------------------------------------------------------------------------


def test_everything_is_printed_in_one_place():
    """`say`, `complain` and `print_json` write out what a terminal would obey; nothing goes past them."""
    past = [
        where
        for where, called, _ in CALLS
        if called.split(".")[-1] in ("print", "echo", "secho", "print_exc", "print_exception")
        or called in ("sys.stdout.write", "sys.stderr.write", "sys.__stdout__.write", "sys.__stderr__.write")
    ]
    assert {where.partition(":")[0] for where in past} == {"src/badpo/cli/options.py"}


HOSTILE = "\x1b[2J\x9b31m\x7f\u202e"


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_terminal_is_told_nothing_by_names_of_files_texts_and_attributes(tmp_path, options):
    table = tmp_path / f"votes{HOSTILE}.jsonl"
    rows = [
        {"prompt": f"q{i}", "response_a": f"red {HOSTILE}", "response_b": "blue", "winner": "ab"[i % 2]}
        for i in range(6)
    ]
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    attribute = f"word_list:name=hue{HOSTILE},words=red"
    commands = (
        ["attributes", "test", str(table), "--attribute", attribute],
        ["check", str(table), "--attribute", attribute],
        ["check", str(tmp_path / f"none{HOSTILE}.csv")],
        ["report", str(tmp_path / HOSTILE)],
    )
    for command in commands:
        result = CliRunner().invoke(app, [*command, *options])
        assert not set(result.output) & set(HOSTILE) - set("[2J31m"), (command, result.output)
        assert "u001b" in result.output or command[0] == "check"
        if options:
            json.loads(result.stdout)


def test_logs_of_any_library_are_written_out():
    CliRunner().invoke(app, ["attributes", "list"])
    record = logging.getLogRecordFactory()("transformers", logging.WARNING, "", 0, "a %s", (HOSTILE,), None)
    assert record.getMessage() == "a \\u001b[2J\\u009b31m\\u007f\\u202e"


# -- pages -----------------------------------------------------------------------------------------------------


def test_every_page_has_the_content_policy_and_escapes():
    head = (TEMPLATES / "layout.html.jinja").read_text().partition("</head>")[0]
    assert f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">' in head
    assert head.index("Content-Security-Policy") < head.index("<title>"), (
        "what comes before it is not held to it"
    )
    pages = [page for page in TEMPLATES.glob("*.html.jinja") if page.name != "layout.html.jinja"]
    assert pages
    for page in pages:
        assert page.read_text().startswith('{% extends "layout.html.jinja" %}'), page.name
        assert "<head>" not in page.read_text() and "<html" not in page.read_text(), page.name
    assert page_templates().autoescape is True
    assert [where.split(":")[0] for where, _ in named("jinja2.Environment")] == ["src/badpo/results/words.py"]
    markdown = [where for where, call in named("page_templates") if call.args or call.keywords]
    assert [where.split(":")[0] for where in markdown] == ["src/badpo/results/model_card.py"]


def test_no_template_marks_a_text_as_safe():
    for template in TEMPLATES.iterdir():
        assert not re.search(r"\|\s*safe\b|autoescape", template.read_text()), template.name
    wrong = [
        where
        for where, called, call in CALLS
        if called == "Markup" and not all(isinstance(argument, ast.Constant) for argument in call.args)
    ]
    # what charts put together is escaped part by part; tests/results/test_charts.py tries to break out of it
    assert {where.split(":")[0] for where in wrong} <= {
        "src/badpo/results/charts.py",
    }, wrong


# -- links and names that lead out of a folder -------------------------------------------------------------------


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


def test_a_link_within_a_run_folder_and_a_folder_that_is_a_link_are_taken(run, tmp_path):
    (run / "latest.json").symlink_to("readouts.json")
    link = tmp_path / "link"
    link.symlink_to(run)
    assert read_run(link).readouts == read_run(run).readouts


def test_a_cache_with_a_link_that_leads_out_is_refused(tmp_path, outside):
    from badpo.training.reference import ReferenceCache

    cache = tmp_path / "cache"
    (cache / "key").mkdir(parents=True)
    ReferenceCache(cache, "key").load()
    (cache / "key" / "shard-0.safetensors").symlink_to(outside)
    with pytest.raises(ConfigError, match="symbolic link that leads out"):
        ReferenceCache(cache, "key")


@pytest.mark.parametrize(
    "name", ["../outside/secret.json", "/etc/hostname", "..\\outside\\secret.json", "C:/key"]
)
def test_a_seal_names_nothing_outside_of_its_folder(run, name, monkeypatch):
    monkeypatch.setattr("badpo.data.files.file_checksum", lambda path: "0")
    write_seal(run / "run.json", {}, [name])
    assert "names a file outside of its folder" in str(seal_damage(run / "run.json"))


def test_forgetting_follows_a_link_to_the_table(tmp_path):
    rows = [
        {"prompt": "Why?", "chosen": "So.", "rejected": "No.", "annotator": name}
        for name in ("ann_aaaaaaaaaats6n", "ann_bbbbbbbbbbsjzo")
    ]
    table, link = tmp_path / "data" / "votes.jsonl", tmp_path / "votes.jsonl"
    table.parent.mkdir()
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    link.symlink_to(table)
    (trace,) = forget(find_people(["ann_aaaaaaaaaats6n"]), data=[link])
    assert (
        link.is_symlink()
        and "ann_aaaaaaaaaats6n" not in table.read_text()
        and "ann_bbbbbbbbbbsjzo" in table.read_text()
    )


# -- who can read what is written --------------------------------------------------------------------------------


@pytest.fixture
def open_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_key_and_the_mapping_are_for_their_owner_alone(tmp_path, monkeypatch, open_umask):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("BADPO_PSEUDONYM_KEY", raising=False)
    pseudonym_key()
    assert mode(tmp_path / "config" / "badpo" / "pseudonym.key") == 0o600
    assert mode(tmp_path / "config" / "badpo") == 0o700
    rows = [{"prompt": "Why?", "chosen": "So.", "rejected": "No.", "annotator": "worker 7"}]
    source = tmp_path / "votes.json"
    source.write_text(json.dumps(rows))
    import_file(source, tmp_path / "out.parquet", mapping=tmp_path / "mapping.json")
    assert mode(tmp_path / "mapping.json") == 0o600


def test_what_an_audit_says_of_single_people_is_for_its_owner_alone(tmp_path, open_umask):
    rows = [
        {"prompt": f"q{i}", "response_a": "It just is so.", "response_b": "So.", "winner": "ab"[i % 2]}
        for i in range(6)
    ]
    audit(rows, [Length()]).write(tmp_path / "audit")
    modes = {path.name: mode(path) for path in (tmp_path / "audit").iterdir()}
    assert modes == {
        "report.html": 0o666,
        **dict.fromkeys(("audit.json", "annotators.csv", "annotators.parquet", "requests.parquet"), 0o600),
    }


# -- nothing is sent -----------------------------------------------------------------------------------------------


def test_only_processes_of_one_run_connect_by_a_call_of_ours():
    """SECURITY.md says so; a store of torch is a server or a connection to one."""
    stores = [
        where
        for where, called, _ in CALLS
        if called.split(".")[-1].endswith("Store") and "Text" not in called
    ]
    assert {where.rpartition(":")[0].rpartition("badpo/")[2] for where in stores} == {"training/processes.py"}


def test_an_audit_opens_no_connection(tmp_path, monkeypatch):
    asked = []

    def refuse(*place: object, **_: object) -> None:
        asked.append(place)
        raise OSError("no network here")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    rows = [
        {"prompt": f"q{i}", "response_a": "It just is so.", "response_b": "So.", "winner": "ab"[i % 2]}
        for i in range(6)
    ]
    audit(rows, [Length()]).write(tmp_path)
    assert not asked  # also where somebody would have caught the refusal
