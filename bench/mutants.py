"""Two hundred small mistakes, planted one at a time: does a test that runs the line notice? `python -m bench.mutants`.

`mutants.json` holds them: a function, a line of it, and what the mistake makes of the line. A mutant follows its code:
the function is found by its name in whatever module, the line by its text without spaces. Where that fails the tool
says so, and somebody states the mutant again, or says under ``gone`` why its code went; the next of the list then takes
its place. They were drawn at random in proportion to the tokens of functions.
"""

import argparse
import ast
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
LIST = Path(__file__).with_suffix(".json")
PAGE = ROOT / "docs" / "results" / "mutants.md"
N_PLANTED = 200
LIMIT = 600.0  # seconds of tests for one mutant: files of its own room first, then quick ones
# tests that take so many times as long as without a mutant, and these seconds more, hang
PATIENCE, GRACE = 8, 120
COVERAGE = """[run]
source = {tree}/src
data_file = {folder}/coverage
context = ${{COVERED_BY-}}
parallel = true
sigterm = true
"""
_LAYOUT = {"COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT", "ENDMARKER"}


class Function(NamedTuple):
    """A function or a method, with those inside of it, and the tokens of its body."""

    name: str
    file: Path
    node: ast.FunctionDef | ast.AsyncFunctionDef
    tokens: list[tokenize.TokenInfo]


class Place(NamedTuple):
    """Where an old text stands: its first and last character, and its rows."""

    file: Path
    start: int
    stop: int
    rows: range


def functions(root: Path) -> list[Function]:
    """Every function in a folder's files, by file and line."""
    found = []
    for file in sorted(root.rglob("*.py")):
        text = file.read_text()
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
        tokens = [token for token in tokens if tokenize.tok_name[token.type] not in _LAYOUT]
        for name, node in _named(ast.parse(text), ""):
            body = node.body[ast.get_docstring(node) is not None :] or node.body
            inside = range(body[0].lineno, (node.end_lineno or 0) + 1)
            found.append(Function(name, file, node, [t for t in tokens if t.start[0] in inside]))
    return found


def _named(tree: ast.AST, owner: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield owner + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _named(node, f"{owner}{node.name}.")


def find(mutant: dict[str, str], known: list[Function]) -> list[Place]:
    """Every place that a mutant may mean: one, unless its code was changed, removed or copied."""
    letters = r"\s*".join(map(re.escape, re.sub(r"\s", "", mutant["old"])))
    found = []
    for function in (one for one in known if one.name == mutant["function"] and one.tokens):
        text, rows = function.file.read_text(), [token.start[0] for token in function.tokens]
        lines = text.splitlines(keepends=True)
        first, last = (sum(map(len, lines[:n])) for n in (rows[0] - 1, max(rows)))
        for match in re.compile(rf"(?<!\w){letters}(?!\w)").finditer(text, first, last):
            start, stop = (text.count("\n", 0, at) + 1 for at in match.span())
            found.append(Place(function.file, *match.span(), range(start, stop + 1)))
    return found


def chosen(mutants: list[dict[str, str]], known: list[Function]) -> tuple[list[dict], list[dict]]:
    """The first of the list whose code is there, and those before them whose code is neither there nor explained."""
    there, lost = [], []
    for mutant in (mutant for mutant in mutants if "gone" not in mutant):
        if len(there) + len(lost) < N_PLANTED:
            (there if len(find(mutant, known)) == 1 else lost).append(mutant)
    return there, lost


# -- planting ------------------------------------------------------------------------------------------------


def cover(root: Path, folder: Path) -> None:
    """Copy a tree to ``folder/tree``, run its tests, and leave which file of them runs which line, and its seconds."""
    tree, settings = folder / "tree", folder / "coverage.ini"
    names = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, check=True, text=True)
    for name in filter(lambda name: (root / name).is_file(), names.stdout.splitlines()):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, tree / name)
    head = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(head, cwd=root, capture_output=True, text=True).stdout.strip()
    (folder / "commit.txt").write_text(commit)
    settings.write_text(COVERAGE.format(tree=tree, folder=folder))
    pytest = ["pytest", "-q", "-p", "no:cacheprovider"]
    run = [sys.executable, "-m", *pytest, "--collect-only"]
    listed = subprocess.run(run, cwd=tree, env=_environment(tree), capture_output=True, text=True).stdout
    seconds: dict[str, float] = {}
    for file in dict.fromkeys(re.findall("^(.+?)::", listed, re.MULTILINE)):
        told = {"COVERED_BY": file, "COVERAGE_PROCESS_START": str(settings)}
        run = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", "-m", *pytest, file]
        start = time.perf_counter()
        # tests that fail without a mutant say nothing about one
        if not subprocess.run(run, cwd=tree, env=_environment(tree) | told).returncode:
            seconds[file] = time.perf_counter() - start
    (folder / "times.json").write_text(json.dumps(seconds))


def _environment(tree: Path) -> dict[str, str]:
    """For tests of a copy and what they start: its own code, and no bytecode of a mistake that is gone again."""
    paths = {"PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    return os.environ | paths | {"OMP_NUM_THREADS": "1"}


def covering(folder: Path, place: Place) -> tuple[list[str], float, int]:
    """The files of tests that run a place, as far as there is time; their seconds; and how many there are."""
    import coverage

    seconds, contexts = json.loads((folder / "times.json").read_text()), set[str]()
    for file in folder.glob("coverage.*.*"):
        data = coverage.CoverageData(str(file))
        data.read()
        by_row = data.contexts_by_lineno(str(place.file))
        contexts.update(context for row in place.rows for context in by_row.get(row, ()))
    room, asked, spent = place.file.parent.name, [], 0.0
    files = sorted(
        contexts & set(seconds), key=lambda file: (Path(file).parent.name != room, seconds[file])
    )
    for file in files:
        if not asked or spent + seconds[file] <= LIMIT:
            asked.append(file)
            spent += seconds[file]
    return asked, spent, len(files)


def outcome(tree: Path, place: Place, new: str, tests: list[str], seconds: float) -> str:
    """What tests say of a copy of the code with a mistake in it: "killed", "hangs" (killed, too) or "survived"."""
    if not tests:
        return "survived"
    sound = place.file.read_text()
    run = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    place.file.write_text(sound[: place.start] + new + sound[place.stop :])
    try:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        limit = GRACE + PATIENCE * seconds
        done = subprocess.run(run, cwd=tree, env=_environment(tree), timeout=limit, **quiet)
        return "killed" if done.returncode else "survived"
    except subprocess.TimeoutExpired:
        return "hangs"
    finally:
        place.file.write_text(sound)


def plant(folder: Path, mutants: list[dict[str, str]]) -> list[dict[str, Any]]:
    """Every mutant with its outcome and how many of the files that run it were run; those known are not run again."""
    tree, kept = folder / "tree", folder / "outcomes.json"
    known, found = functions(tree / "src"), json.loads(kept.read_text()) if kept.exists() else {}
    for mutant in (mutant for mutant in mutants if str(mutant) not in found):
        (place,) = find(mutant, known)
        tests, seconds, n_tests = covering(folder, place)
        told = {"file": str(place.file.relative_to(tree)), "run": len(tests), "of": n_tests}
        told["outcome"] = outcome(tree, place, mutant["new"], tests, seconds)
        found[str(mutant)] = mutant | told
        kept.write_text(json.dumps(found, indent=1))
        print(f"{told['outcome']:9} {mutant['function']}: {mutant['new']}", flush=True)
    return [found[str(mutant)] for mutant in mutants]


def page(found: list[dict], mutants: list[dict], lost: list[dict], commit: str) -> str:
    """How many are noticed, which are not, and whose code went."""
    survived = [one for one in found if one["outcome"] == "survived"]
    # what is not noticed may be no mistake: ``equal`` says why the code does the same
    told = [f"- `{m['function']}`: `{m['old']}` to `{m['new']}`. {m.get('equal', '')}" for m in survived]
    missing = [f"- `{m['function']}`: `{m['old']}`" for m in lost]
    why: dict[str, set[str]] = {}
    for mutant in (mutant for mutant in mutants if "gone" in mutant):
        why.setdefault(mutant["gone"].partition(":")[0], set()).add(f"`{mutant['function']}`")
    gone = [f"- {reason}: {', '.join(sorted(names))}" for reason, names in why.items()]
    parts = [
        "# Planted mistakes",
        f"Of {len(found)} in `bench/mutants.json`, planted one at a time, the tests that run the line notice "
        f"{len(found) - len(survived)}, at commit {commit}. Written by `make mutants`.",
    ]
    for title, lines in (("Not noticed", told), ("Code that went", gone), ("Not found", missing)):
        parts += [f"## {title}", "\n".join(map(str.rstrip, lines)) or "None."]
    return "\n\n".join(parts) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=ROOT, help="the tree in which they are planted")
    runs = ROOT / "runs" / "mutants"
    parser.add_argument("--folder", type=Path, default=runs, help="remove it to begin anew")
    parser.add_argument("--find", action="store_true", help="print those whose code is not found")
    asked = parser.parse_args()
    folder = asked.folder.resolve()
    if not asked.find and not (folder / "tree").exists():
        cover(asked.root, folder)
    mutants = json.loads(LIST.read_text())
    there, lost = chosen(mutants, functions((asked.root if asked.find else folder / "tree") / "src"))
    for mutant in lost:
        print("not found:", json.dumps(mutant))
    if not asked.find:
        commit = (folder / "commit.txt").read_text()
        PAGE.write_text(page(plant(folder, there), mutants, lost, commit))
    return int(bool(lost))


if __name__ == "__main__":
    sys.exit(main())
