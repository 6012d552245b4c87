"""What changes for users: a commit and the present code run the same public commands, and the differences are printed.

    python -m bench.golden --base COMMIT [--only NAME ...]

Each case runs on one thread in a folder of its own, once for each side, with the base's inputs and the same key for
pseudonyms. Every file that it leaves is compared: numbers within the case's tolerance, texts exactly, times and
versions not at all.
"""

import argparse
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import yaml

from bench.faults import small_project

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data"
INPUTS = "BADPO_GOLDEN_INPUTS"  # the base's checkout, in the environment of both sides
MOST_SHOWN = 12  # differences of a case that are printed
NOTHING = "(nothing)"

# -- what may differ between two runs of the same code ----------------------------------------------------------------
# Where a file name stands in a seal, so do checksums of files with times in them.
FILES_LEFT_OUT = re.compile(
    r"(^|/)(cache|xdg|__pycache__)/|\.lock$|(environment|complete|trainer_state|timing)\.json$"
    r"|training_args\.bin$|rng_state[^/]*$|seal"
)
KEYS_LEFT_OUT = re.compile(
    r"seconds|minutes|runtime|per_second|^time|date$|version|^what$|^when$|^remedy$|^key$|^made_here$|^measured$|checksum"
    r"|sha256|memory|gib"
)

# -- the steps of cases; all of this runs in a child, in the case's own folder ----------------------------------------


def badpo(command: str, smaller: bool = False) -> None:
    """``badpo`` in a process of its own; its status, its JSON, and the codes and places of what is wrong are kept."""
    done = subprocess.run(_command(f"{command} --json", smaller), capture_output=True, text=True)
    try:
        printed = json.loads(done.stdout)
    except ValueError:
        printed = None
    # the words of a message may change
    told = done.stderr
    if isinstance(printed, dict) and "error" in printed:
        told += printed.pop("error")
    codes = sorted({*re.findall(r"\b[EWN]\d{3}\b", told), *re.findall(r"where: +(.*)", told)})
    row = {"command": command, "status": done.returncode, "codes": codes, "printed": printed}
    with open("commands.jsonl", "a") as file:
        file.write(json.dumps(row) + "\n")
    if "Traceback" in done.stderr:
        raise RuntimeError(f"badpo {command}\n{done.stderr[-3000:]}")


def _command(command: str, smaller: bool = False) -> list[str]:
    module = ["bench.golden", "--smaller"] if smaller else ["badpo"]
    return [sys.executable, "-m", *module, *shlex.split(command)]


def planted(**changes) -> pd.DataFrame:
    """Votes whose leans are known."""
    from tests.auditing.planted import votes

    return votes(**changes)[0]


def write(table: pd.DataFrame, name: str = "votes.jsonl") -> str:
    """A table as JSON lines."""
    table.to_json(name, orient="records", lines=True)
    return name


def votes(n_comparisons: int = 60, **changes) -> None:
    """The table that the commands of a case read."""
    write(planted(n_comparisons=n_comparisons, **changes))


def project(**changes) -> None:
    """A small model, votes, a recipe, and questions."""
    small_project.make_project({"max_steps": 20, "save_steps": 10, **changes})


def importers() -> None:
    """Every importer's fixture to rows."""
    inputs = Path(os.environ[INPUTS])
    examples = [inputs / "examples" / name for name in ("label_studio.json", "votes.csv")]
    for export in [*sorted((inputs / "tests" / "importers" / "exports").iterdir()), *examples]:
        shutil.copy(export, export.name)
        into = f"--out {export.stem}.parquet --write-mapping {export.stem}.mapping.json"
        badpo(f"import {export.name} {into}")
    pairs = planted(n_comparisons=20).rename(columns={"response_a": "chosen", "response_b": "rejected"})
    write(pairs[["prompt", "chosen", "rejected", "annotator"]], "pairs.jsonl")
    badpo("import pairs.jsonl --out pairs.parquet")


def watch() -> None:
    """The state, fed in three parts."""
    table = planted(n_comparisons=240)
    for part in (1, 2, 3):
        write(table.head(len(table) * part // 3))
        badpo(f"watch {TABLE} {WATCHED}")


# -- the cases --------------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """Steps that are compared: commands of badpo, at the scale of a test if ``smaller``, and functions to call."""

    steps: tuple[str | Callable[[], None], ...]
    tolerance: float = 0.0
    smaller: bool = False


TABLE, AUDIT = "votes.jsonl", "audit votes.jsonl --attribute length"
WATCHED = "--attribute length --state state.json --votes-per-comparison 3"
DEMO, NAMES, TRAIN = (
    "demo --out runs",
    "reproduce names --seeds 42 --out runs",
    "train --config run.yaml",
)
OTHERWISE = (
    "--batching grouped --output_dir grouped",
    "--batching comparisons --output_dir comparisons",
    "--use_peft true --lora_target_modules all-linear --output_dir adapter",
)
ASKED = "--target chosen=0.3 --prompts questions.txt" + "".join(
    f" --word {w}" for w in small_project.SWAPPED
)
TAUGHT = "--mode train --steps 4 --rounds 2 --learning-rate 1e-3"
WHERE = "--data imported.parquet --audit audit --runs runs --mapping whose.json --state state.json"
VARIANTS = ("none", "pooled", "per_annotator", "shared_mean", "class")
REFUSED = (
    ["", "chekc", "audit", "audit absent.csv", "audit votes.jsonl --attribute lenght", "train"]
    + ["train --betta 1", "train --config absent.yaml", "evaluate nowhere", "report nowhere"]
    + ["anchor nowhere --target woman=2", "anchor nowhere --target woman=0.5", "reproduce nothing"]
    + ["forget nobody", "import absent.csv --out a.csv", "demo --seeds x", "corpus signed"]
    + ["watch absent.csv --state s", "check run.yaml", "check absent.csv"]
)
# fmt: off
CASES = {
    "audit-planted": Case((partial(votes, n_comparisons=800, n_annotators=40, class_gap=0.5),
                           f"{AUDIT} --out plain --people", f"{AUDIT} --anchor w1 --anchor w2 --out anchored",
                           f"{AUDIT} --anchor-class crowd --out class", f"{AUDIT} --quality random --out random",
                           f"{AUDIT} --fdr 0.05 --rho 0.2 --out mixture"), 1e-6),
    "attributes": Case((votes, "attributes list",
                        f"attributes test {TABLE} --attribute length --sweep ratio=1.25,1.5,2",
                        f"attributes test {TABLE} --attribute length --attribute markdown")),
    "importers": Case((importers,)),
    "watch": Case((watch,), 1e-6),
    "refused": Case((votes, *REFUSED)),
    "corpora": Case(("corpus signed --n 300 --out signed", "corpus style --n 300 --out style"), 1e-6),
    "train": Case((project, *(f"{TRAIN} --bias {variant}" for variant in VARIANTS), f"{TRAIN} --dry-run",
                   "evaluate runs/dpo-s42 runs/shared_mean-s42", "report runs --out report.html")),
    "train-warm": Case((partial(project, bias={"variant": "shared_mean", "warm_start": "offline"}), TRAIN), 1e-5),
    "train-otherwise": Case((project, *(f"{TRAIN} {keys}" for keys in OTHERWISE))),
    "anchor": Case((project, f"anchor model {ASKED} --out sampled", f"anchor model {ASKED} {TAUGHT} --out trained",
                    f"{TRAIN} --bias none", f"anchor runs/dpo-s42 {ASKED} {TAUGHT}"), 1e-6, smaller=True),
    "forget": Case((project, "import export.jsonl --out imported.parquet --write-mapping whose.json",
                    f"{TRAIN} --dataset_name imported.parquet", f"watch imported.parquet {WATCHED}",
                    "audit imported.parquet --attribute length --out audit --people",
                    *(f"forget 'person 3' {WHERE}{then}" for then in (" --dry-run", ""))), 1e-6),
    "demo": Case((DEMO, "anchor runs/dpo-s42 --target woman=0.5 --out anchored"), 1e-6, smaller=True),
    "names": Case((NAMES,), 1e-6, smaller=True),
}
# fmt: on
for _name in ("ukpconvarg1_human", "mtbench_human_gpt4", "vicuna80_gpt4"):
    _audit = f"audit {DATA / _name}.parquet --attribute length"
    _steps = (
        f"{_audit} --attribute markdown --out audit --people",
        f"{_audit} --repeated last --out last",
    )
    if (DATA / f"{_name}.parquet").exists():
        CASES[f"audit-{_name.partition('_')[0]}"] = Case(_steps, 1e-6)


# -- comparing --------------------------------------------------------------------------------------------------------


def contents(folder: Path) -> dict[str, Any]:
    """Every value in every file of a folder, by its file and place; and every file's mode."""
    values: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and not FILES_LEFT_OUT.search(name):
            values[f"{name}: mode"] = oct(path.stat().st_mode & 0o777)
            values |= {f"{name}: {place}": value for place, value in _values(_read(path, str(folder)))}
    return values


def _read(path: Path, folder: str) -> Any:
    """A file as plain values; its text where it is torn on purpose."""
    text = path.read_bytes().decode("utf-8", "replace").replace(folder, "")
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return {name: tensor.double().numpy() for name, tensor in load_file(path).items()}
    if path.suffix == ".html":
        seen = re.sub(r"(?s)<(style|script|title)\b.*?</\1>|<[^>]+>", " ", text)
        return {"figures": " ".join(re.findall(r"(?<![\w.])[-\u2212+]?\d[\d.,]*", seen))}
    try:
        if path.suffix in (".parquet", ".csv"):
            table = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
            return {name: column.to_numpy() for name, column in table.items()}
        if path.suffix == ".jsonl":
            return [json.loads(line) for line in text.splitlines()]
        if path.suffix in (".json", ".yaml", ".yml"):
            return json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except ValueError:
        return text
    if path.suffix == ".pt":
        import torch

        return torch.load(path, weights_only=True)
    return text.splitlines()


def _values(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if not KEYS_LEFT_OUT.search(str(key)):
                yield from _values(inner, f"{place}.{key}" if place else str(key))
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _values(inner, f"{place}[{number}]")
    else:
        yield place, value.double().numpy() if hasattr(value, "detach") else value


def compare(base: dict[str, Any], here: dict[str, Any], tolerance: float) -> list[tuple]:
    """Place, what the base has and what is here, of everything that differs by more than the tolerance."""
    rows = []
    for place in dict.fromkeys([*base, *here]):
        sides = [side.get(place, NOTHING) for side in (base, here)]
        if not _same(*sides, tolerance):
            rows.append((place, *_shown(*sides)))
    return rows


def _same(a: Any, b: Any, tolerance: float) -> bool:
    first, second = np.asarray(a), np.asarray(b)
    if first.shape != second.shape:
        return False
    if {first.dtype.kind, second.dtype.kind} <= set("iuf"):
        return np.allclose(first, second, tolerance, tolerance, equal_nan=True)
    return [str(x) for x in first.ravel()] == [str(y) for y in second.ravel()]


def _shown(a: Any, b: Any) -> list[str]:
    """Both values, or of arrays the first that differ."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and a.shape == b.shape:
        pairs = zip(a.ravel(), b.ravel(), strict=True)
        a, b = next((f"{x} (first of {a.size})", str(y)) for x, y in pairs if not _same(x, y, 0.0))
    whole = (f"array of shape {x.shape}" if isinstance(x, np.ndarray) else str(x) for x in (a, b))
    return [text if len(text) <= 60 else f"{text[:57]}..." for text in whole]


# -- both sides -------------------------------------------------------------------------------------------------------


def git(*arguments: str) -> str:
    """What git prints in this checkout."""
    return subprocess.check_output(["git", "-C", str(ROOT), *arguments], text=True).strip()


def start(name: str, source: Path, folder: Path, inputs: Path) -> subprocess.Popen:
    """A case on one side, in a process that writes into a folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    fixed = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "COLUMNS": "100"}
    fixed |= {"TOKENIZERS_PARALLELISM": "false", "PYTHONHASHSEED": "0", INPUTS: str(inputs)}
    fixed |= {place: str(folder / "xdg") for place in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "HOME")}
    fixed["PYTHONPATH"] = f"{source}{os.pathsep}{ROOT}"
    fixed["BADPO_PSEUDONYM_KEY"] = "the key of the golden comparison, 32 bytes"
    command = [sys.executable, "-m", "bench.golden", "--child", name]
    with open(folder.with_suffix(".output"), "w") as told:
        return subprocess.Popen(command, cwd=folder, env=os.environ | fixed, stdout=told, stderr=told)


def compared(name: str, checkout: Path, source: Path, folder: Path) -> list[tuple]:
    """The differences of one case; a side that fails is one."""
    sources = {"base": checkout / "src", "here": source}
    places = {side: folder / side / name for side in sources}
    processes = {side: start(name, sources[side], places[side], checkout) for side in sources}
    status = {side: process.wait() for side, process in processes.items()}
    told = {side: places[side].with_suffix(".output").read_text() for side in sources if status[side]}
    if told:
        print(f"{name:<36} failed, ", end="")
        return [("failed", *(told.get(side, "(no failure)")[-1500:] for side in sources))]
    base, here = (contents(folder) for folder in places.values())
    # commands that fail alike on both sides are told too
    failed = sum(
        bool(value) for where, value in here.items() if re.fullmatch(r"commands.*\]\.status", where)
    )
    print(f"{name:<36} {len(here):6} values, {failed} commands failed; ", end="")
    return compare(base, here, CASES[name].tolerance)


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--base", metavar="COMMIT", default="HEAD", help="the commit to compare with")
    parser.add_argument("--source", type=Path, default=ROOT / "src", help="the present code; src here")
    parser.add_argument(
        "--only", nargs="+", choices=list(CASES), metavar="NAME", help="these cases alone"
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        return run_child(asked.child)
    differences: dict[str, list[tuple]] = {}
    with tempfile.TemporaryDirectory(prefix="badpo-golden-") as temporary:
        checkout = Path(temporary) / "checkout"
        git("worktree", "add", "--quiet", "--detach", str(checkout), asked.base)
        try:
            for name in asked.only or CASES:
                began = time.monotonic()
                rows = differences[name] = compared(
                    name, checkout, asked.source.resolve(), Path(temporary)
                )
                told = f"{len(rows)} differences" if rows else "the same"
                print(f"{told}, {time.monotonic() - began:.0f} s", flush=True)
        finally:
            git("worktree", "remove", "--force", str(checkout))
    for name, rows in differences.items():
        for where, *sides in rows[:MOST_SHOWN]:
            print(f"\n{name}: {where}\n  base: {sides[0]}\n  here: {sides[1]}")
        if len(rows) > MOST_SHOWN:
            print(f"\n{name}: {len(rows) - MOST_SHOWN} more")
    return int(any(differences.values()))


def run_child(name: str) -> int:
    """The steps of a case, here; both sides take their inputs from the base's checkout."""
    sys.path.insert(0, os.environ[INPUTS])
    for step in CASES[name].steps:
        badpo(step, CASES[name].smaller) if isinstance(step, str) else step()
    return 0


def run_smaller(arguments: list[str]) -> None:
    """``badpo`` with the demo and the suites at the scale of a test."""
    from badpo_paper import datasets, settings

    small_project.make_smaller()
    datasets.N_PAIRS = datasets.N_DEMO_PAIRS = 300
    tiny, steps = settings.SCALES["tiny"], {"max_steps": 20, "per_device_train_batch_size": 8}
    keys = settings.TINY | steps | {"batching": "random"}
    keys["reference"] = keys["reference"] | steps
    decoding = replace(tiny.decoding, max_new_tokens=8)
    shapes = dict.fromkeys(tiny.keys, {"n_layers": 1})
    settings.SCALES["tiny"] = replace(
        tiny, keys=dict.fromkeys(tiny.keys, keys), shapes=shapes, decoding=decoding
    )
    sys.argv[1:] = arguments
    runpy.run_module("badpo", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--smaller"]:
        run_smaller(sys.argv[2:])
    else:
        sys.exit(main())
