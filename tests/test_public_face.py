"""What users and other programs rely on: names, signatures, commands, flags, exit codes, JSON keys.

`tests/public_face.json` says what that is. A deliberate change is written there by
``WRITE_FACE=1 python -m pytest -m face``.
"""

import dataclasses
import inspect
import json
import re
from pathlib import Path
from pkgutil import resolve_name

import pandas as pd
import pytest
import typer

import badpo
from badpo import attributes
from badpo.cli.main import app
from badpo_paper.corpora import signed
from tests.public_face import assert_face, commands, invoke, keys, signature

pytestmark = pytest.mark.face
ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "votes.csv"
EXPORT = ROOT / "examples" / "label_studio.json"
METHODS = {
    "AuditMonitor": ("update", "has_seen", "table", "save", "load"),
    "AuditResult": ("plot", "to_json", "to_html", "people_to_html", "write"),
    "BADPOTrainer": ("train", "evaluate", "save_model", "push_to_hub"),
    "BiasTerm": ("forward", "theta", "warm_start", "summary", "save", "load"),
    "Judgments": ("read", "with_attributes", "split", "take", "fingerprint", "to_parquet"),
    "trl.BiasAdjustedDPOTrainer": ("evaluate", "predict", "save_model"),
}
PROPERTIES = {
    "AuditMonitor": ("n_comparisons",),
    "AuditResult": ("attributes", "pool", "checks", "warnings"),
    "Judgments": ("n_votes", "n_comparisons", "n_annotators", "n_attributes", "attribute_names"),
}
ERRORS = ("ConfigError", "DataError")


def run(*arguments: object, code: int = 0):
    result = invoke(*arguments)
    assert result.exit_code == code, (result.output, result.stderr)
    return result


def test_names():
    assert_face("badpo.__all__", sorted(badpo.__all__))
    assert_face("badpo.attributes.__all__", sorted(attributes.__all__))
    assert_face("signed.draw_plan", {"draw_plan": signature(signed.draw_plan)})
    assert all(issubclass(getattr(badpo, name), Exception) for name in ERRORS)
    stub = Path(badpo.__file__).with_suffix(".pyi").read_text()
    assert {*re.findall(r" as (\w+)$|^(__\w+__):", stub, re.M)} == {
        ("", name) if name == "__version__" else (name, "") for name in badpo.__all__
    }


@pytest.mark.parametrize(
    "name", sorted({*badpo.__all__, *METHODS} - {"__version__", "attributes", *ERRORS})
)
def test_signature_of_a_name(name):
    value = resolve_name(":".join(f"badpo.{name}".rsplit(".", 1)))
    shown = {name: own_fields(value) if name == "BADPOConfig" else signature(value)}
    for method in METHODS.get(name, ()):
        shown[f"{name}.{method}"] = signature(getattr(value, method))
    assert_face(f"badpo.{name}", shown)
    assert all(isinstance(inspect.getattr_static(value, n), property) for n in PROPERTIES.get(name, ()))


def own_fields(config: type) -> dict[str, str]:
    """The fields that badpo adds or gives another default than transformers, with the default."""
    mine = [base for base in config.__mro__ if base.__module__.startswith("badpo")]
    names = {name for base in mine for name in vars(base).get("__annotations__", {})}
    return {field.name: default(field) for field in dataclasses.fields(config) if field.name in names}


def default(field: dataclasses.Field) -> str:
    if field.default is not dataclasses.MISSING:
        return repr(field.default)
    return "required" if field.default_factory is dataclasses.MISSING else repr(field.default_factory())


@pytest.mark.parametrize("name", sorted(attributes.__all__))
def test_signature_of_an_attribute(name):
    value = getattr(attributes, name)
    if name == "ATTRIBUTES":
        shown = {kind: found.__name__ for kind, found in value.items()}
        assert all(getattr(attributes, found) is value[kind] for kind, found in shown.items())
    else:
        shown = signature(value)
    assert_face(f"badpo.attributes.{name}", shown)


def flag(parameter) -> str:
    """One option or argument in a line: spellings, whether it takes a value or may come again, its default."""
    kind = "flag" * getattr(parameter, "is_flag", False)
    again = "repeatable" * (getattr(parameter, "multiple", False) or parameter.nargs == -1)
    given = "required" * parameter.required
    is_unset = parameter.required or parameter.default in (None, False, (), [])
    value = None if is_unset else parameter.default
    shown = "" if callable(value) or value is None else f"= {value}"
    names = "/".join([*parameter.opts, *parameter.secondary_opts])
    return " ".join(part for part in (names, kind, again, given, shown) if part)


def test_commands_and_flags():
    root = typer.main.get_command(app)
    shown = {"badpo": [flag(parameter) for parameter in root.params]}
    for name, command in commands():
        shown[f"badpo {name}"] = sorted(flag(parameter) for parameter in command.params)
    assert_face("commands", shown)


@pytest.fixture(scope="module")
def audited(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("audited") / "audit"
    declared = ("--attribute", "length:ratio=1.5", "--attribute", "length_words:threshold=10")
    printed = run("audit", EXAMPLE, *declared, "--out", folder, "--json").stdout
    assert json.loads(printed) == json.loads((folder / "audit.json").read_text())
    return folder


def test_what_an_audit_writes(audited):
    found = json.loads((audited / "audit.json").read_text())
    assert found["schema"] == "badpo.audit/1"
    promised = (
        "name scope cross_share n_cross win_rate log_odds ci_low ci_high naive_ci_low naive_ci_high odds"
    )
    assert all(set(promised.split()) <= set(row) for row in found["attributes"])
    assert all("tau" in found["pool"][row["name"]] for row in found["attributes"])
    assert_face("audit.json", keys(found))
    table = pd.read_parquet(audited / "annotators.parquet")
    assert_face("annotators.parquet", sorted(table.columns))
    assert_face("files of an audit", sorted(path.name for path in audited.iterdir()))


@pytest.mark.parametrize(
    "command",
    [
        f"check {EXAMPLE} --attribute length",
        "attributes list",
        f"attributes test {EXAMPLE} --attribute length",
        f"watch {EXAMPLE} --attribute length --state OUT/state.json",
        f"import {EXPORT} --out OUT/votes.parquet",
        f"forget editor-1 --data {EXAMPLE} --dry-run",
        "corpus signed --n 60 --out OUT",
        "corpus style --n 60 --out OUT",
        "reproduce names --dry-run --out OUT",
        "train --betta 1",
    ],
    ids=lambda command: " ".join(word for word in command.split()[:2] if "/" not in word),
)
def test_what_a_command_prints_as_json(command, tmp_path, request):
    words = [word.replace("OUT", str(tmp_path)) for word in command.split()]
    code = 2 if "--betta" in command else 0
    if "reproduce" in command:
        pytest.importorskip("torch")
    found = json.loads(run(*words, "--json", code=code).stdout)
    assert_face(f"{request.node.callspec.id} --json", keys(found))
    assert "--dry-run" not in command or not [*tmp_path.iterdir()]
