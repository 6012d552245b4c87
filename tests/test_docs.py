"""The documentation: links lead somewhere, commands and targets are there, pages keep to their measure."""

import ast
import math
import pkgutil
import re
import shlex
import shutil
from pathlib import Path
from types import FunctionType

import pandas as pd
import pytest

from bench import codes
from tests.public_face import commands, invoke

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
AUDIT = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")])
WRITTEN = {"results", "options.md"}  # by a program
BY_HAND = [page for page in (ROOT / "docs").rglob("*.md") if not WRITTEN & {*page.parts}] + [README]
CHEAP = ("check", "attributes", "audit", "watch", "import")


def names(path: Path) -> str:
    return str(path.relative_to(ROOT))


def written_commands(page: Path) -> list[str]:
    """Lines of code that call badpo, without those that leave something open."""
    text = page.read_text(encoding="utf-8")
    code = re.findall(r"```(?:bash|console)\n(.*?)```", text, re.S)
    code += re.findall(r"^    (.*)", text, re.M)
    lines = [line for block in code for line in block.splitlines()]
    lines = [line.removeprefix("$ ").partition(" #")[0].strip() for line in lines]
    is_open = re.compile(r"[\[<|…]|\.\.\.")
    return [line for line in lines if line.startswith("badpo ") and not is_open.search(line)]


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_links_lead_somewhere_and_commands_with_their_options_are_there(page):
    targets = re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (page.parent / target).exists()] == []
    known = dict(commands())
    for line in written_commands(page):
        words = shlex.split(line)[1:]
        name = next((n for n in (" ".join(words[:2]), words[0]) if n in known), None)
        assert name, line
        options = {option for parameter in known[name].params for option in parameter.opts}
        given = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert name == "train" or given <= options, (line, given - options)


def run_as_written(lines: list[str], folder: Path, model: Path | None = None) -> None:
    """Run commands in a folder with the examples, there with a small model; each prints what stands below it."""
    shutil.copytree(ROOT / "examples", folder / "examples")
    recipe = folder / "examples" / "train.yaml"
    recipe.write_text(recipe.read_text().replace("Qwen/Qwen2.5-0.5B-Instruct", str(model)))
    for line in lines:
        result = invoke(*shlex.split(line)[1:])
        assert result.exit_code == 0, (line, result.output)
        below = re.escape(line) + r"\n```\n\n```text\n(.*?)```"
        for shown in re.findall(below, README.read_text(encoding="utf-8"), re.S):
            printed = " ".join(result.output.split())
            assert [part for part in shown.split("\n\n") if " ".join(part.split()) not in printed] == []


IN_BLOCKS = [line for line in written_commands(README) if "TORCH_INDEX" not in line]


@pytest.mark.parametrize("line", [line for line in IN_BLOCKS if line.split()[1] in CHEAP])
def test_the_commands_of_the_readme_run(line, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    run_as_written([line], tmp_path)


@pytest.mark.slow
def test_all_commands_of_the_readme_run_one_after_the_other(monkeypatch, tmp_path):
    pytest.importorskip("torch")
    from tests.runs.recipes import save_model

    monkeypatch.chdir(tmp_path)
    run_as_written(IN_BLOCKS, tmp_path, save_model(tmp_path / "model"))
    assert (tmp_path / "report.html").exists()


def test_the_picture_shows_what_was_measured():
    (told,) = re.findall(r"<desc.*?>(.*?)</desc>", (ROOT / "docs" / "images" / "readme.svg").read_text())
    tables = (ROOT / "docs" / "results" / "demo_data_seed_1.md").read_text(encoding="utf-8")
    rows = {"reference": "Reference", "DPO": "DPO", "BA-DPO": "shared mean"}
    for name, row in rows.items():
        rate = re.search(rf"^\| {row} +\| +([\d.]+)", tables, re.M)[1]
        assert f"{name} {float(rate):.0%}"[:-1] in told
    votes = re.search(r"([\d,]+) judgments, 32 prompts", AUDIT)[1]
    lean = re.search(r"^length +\S+ % +(\d+) % +\S+ +(\S+) to (\S+)", AUDIT, re.M)
    low, high = (f"{1 / (1 + math.exp(-float(end))):.0%}"[:-1] for end in lean.groups()[1:])
    assert f"{votes} votes" in told and f"wins {lean[1]} percent" in told
    assert f"interval {low} to {high}" in told


def test_the_python_of_the_audits_page_runs(monkeypatch, tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "audit.md").read_text(), re.S)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "audit.md", "exec"), {})
    assert (tmp_path / "leans.svg").exists() and (tmp_path / "runs" / "audit" / "audit.json").exists()


def files_shown(page: Path, folder: Path) -> None:
    """The files that a page shows, in a folder; a table as Excel and parquet too."""
    shown = re.compile(r"^`([\w.]+)`:\n\n```text\n(.*?)```", re.M | re.S)
    for name, text in shown.findall(page.read_text(encoding="utf-8")):
        path = folder / name
        path.write_text(text, encoding="utf-8")
        if path.suffix == ".csv":
            pd.read_csv(path).to_excel(path.with_suffix(".xlsx"), index=False)
        if name == "votes.jsonl":
            pd.read_json(path, lines=True).to_parquet(path.with_suffix(".parquet"))


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "formats").glob("*.md")), ids=names)
def test_the_commands_of_a_format_print_what_its_page_shows(page, monkeypatch, tmp_path):
    pytest.importorskip("openpyxl")
    files_shown(page, tmp_path)
    monkeypatch.chdir(tmp_path)
    console = "".join(re.findall(r"```console\n(.*?)```", page.read_text(encoding="utf-8"), re.S))
    for called in console.split("$ badpo ")[1:]:
        command, *shown = called.splitlines()
        result = invoke(*shlex.split(command))
        assert result.exit_code == 0, result.output
        for line in shown:
            assert re.search(re.escape(line).replace("…", ".*"), result.output), (line, result.output)


def test_the_lines_that_replace_trl_are_python_and_name_what_is_there():
    (change,) = re.findall(r"```diff\n(.*?)```", README.read_text(), re.S)
    new = "\n".join(line[1:] for line in change.splitlines() if line.startswith("+"))
    imports = [node for node in ast.parse(new).body if isinstance(node, ast.ImportFrom)]
    exec(compile(ast.Module(imports, []), "README.md", "exec"), {})


def written_imports(page: Path) -> list[tuple[str, str]]:
    """The modules and names that the Python code of a page imports from badpo."""
    line = r"^(?:>>> )?from (badpo[\w.]*) import ([\w, ]+)$"
    found = re.findall(line, page.read_text(encoding="utf-8"), re.M)
    return [(module, name) for module, listed in found for name in listed.split(", ")]


@pytest.mark.parametrize("page", [page for page in BY_HAND if written_imports(page)], ids=names)
def test_names_that_a_page_imports_exist(page):
    pytest.importorskip("torch")
    found = {name: pkgutil.resolve_name(f"{module}.{name}") for module, name in written_imports(page)}
    assert None not in found.values()


ROOMS = "theory|objective|data|estimation|training|readouts|anchoring|auditing|runs|results|badpo_paper"


def is_there(name: str) -> bool:
    """Whether a module, or what it defines itself, has this name."""
    whole = name if name.startswith("badpo_paper.") else f"badpo.{name}"
    try:
        found = pkgutil.resolve_name(whole)
    except (ImportError, AttributeError):
        return False
    return not isinstance(found, type | FunctionType) or whole.startswith(found.__module__)


def test_the_code_of_the_papers_map_is_there():
    pytest.importorskip("torch")
    text = (ROOT / "docs" / "paper_map.md").read_text(encoding="utf-8")
    names = set(re.findall(rf"`((?:{ROOMS})(?:\.\w+)+)`", text))
    assert len(names) > 25
    assert [name for name in names if not is_there(name)] == []
    assert not is_there("theory.tilt.shift_to_target") and not is_there("theory.tilt.softmax")


def test_make_targets_are_there():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    called = re.compile(r"(?:`|^    )make ([a-z-]+)", re.M)
    assert {name for page in PAGES for name in called.findall(page.read_text())} <= targets


def test_the_page_of_codes_is_that_of_the_source():
    assert codes.PAGE.read_text(encoding="utf-8") == codes.page(), "make codes"
    known = set(re.findall(r"^## ([EWN]\d{3})$", codes.page(), re.M))
    assert len(known) > 100
    named = {code for page in BY_HAND for code in re.findall(r"\b[EWN]\d{3}\b", page.read_text())}
    assert named <= known
