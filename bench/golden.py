"""What changes for users: a commit and the present code run the same public commands, and the differences are printed.

    python -m bench.golden --base COMMIT [--only NAME ...] [--all] [--list]

Each case runs on one thread in a folder of its own, once for each side, with the same key for pseudonyms. Every file
that it leaves is compared: numbers within the case's tolerance, texts exactly, times and versions not at all.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data"
MOST_SHOWN = 12  # differences of a case that are printed

# -- what is no public name: where it stands, the first place that a side has; a move adds a place --------------------
PLACES = {
    "ARMS": ("badpo.experiments.arms:ARMS",),
    "arm_judgments": ("badpo.experiments.arm_setup:arm_judgments",),
    "arm_objective": ("badpo.experiments.arm_setup:arm_objective",),
    "arm_bias": ("badpo.experiments.arm_setup:arm_bias",),
    "honoured": ("badpo.training.trl_keys:HONOURED",),
    "without effect": ("badpo.training.trl_keys:ACCEPTED_WITHOUT_EFFECT",),
    "refused": ("badpo.training.trl_keys:REFUSED",),
}
# The demo and the suites at the scale of a test: what stands in a place is replaced by what is made of it, in this
# order, before anything above imports it.
TINY_MODEL = {"hidden_size": 32, "n_layers": 1, "n_heads": 2, "intermediate_size": 64}
TINY_SUITE = {
    "sft_steps": 40,
    "sft_batch_size": 8,
    "steps": 40,
    "batching": "random",
    "batch_size": 8,
    "max_new_tokens": 8,
}
SMALLER: tuple[tuple[tuple[str, ...], Callable], ...] = (
    (("badpo.experiments.small_model:build_model",), lambda old: partial(old, **TINY_MODEL)),
    (("badpo.experiments.small_model:build_tokenizer",), lambda old: partial(old, vocab_size=600)),
    (("badpo.data.corpora.bundled:signing_prompts",), lambda old: lambda: old()[:8]),
    (("badpo.experiments.demo:N_PAIRS",), lambda old: 300),
    (("badpo.experiments.demo:SETTINGS",), lambda old: replace(old, **TINY_SUITE)),
)
RENAMED: dict[
    str, str
] = {}  # files of the base that have another name today: a part of the path, and the new one

# -- what may differ between two runs of the same code ----------------------------------------------------------------
# Where a file name stands in a seal, so do checksums of files with times in them.
FILES_LEFT_OUT = re.compile(
    r"(^|/)(cache|xdg|__pycache__)/|\.lock$|(environment|complete|trainer_state|timing)\.json$"
    r"|training_args\.bin$|rng_state[^/]*$|seal"
)
KEYS_LEFT_OUT = re.compile(
    r"seconds|minutes|runtime|per_second|^time|date$|version|^what$|^remedy$|^key$|checksum|sha256|memory|gib"
)


@dataclass(frozen=True)
class Case:
    """Commands whose results are compared; a slow one takes long and runs when it is named, or with --all."""

    run: Callable[[], None]
    tolerance: float = 0.0
    needs: Path | None = None
    slow: bool = False


CASES: dict[str, Case] = {}


def case(tolerance: float = 0.0) -> Callable:
    """Enter a function as a case; its name is the function's."""

    def enter(function: Callable[[], None]) -> Callable[[], None]:
        CASES[function.__name__.replace("_", "-")] = Case(function, tolerance)
        return function

    return enter


# -- what cases are made of; all of this runs in a child, in the case's own folder ------------------------------------


def found(what: str) -> Any:
    """What stands in the first of its places that this side has."""
    module, name = _place(PLACES[what])
    return getattr(module, name)


def _place(places: tuple[str, ...]):
    for place in places:
        module, _, name = place.partition(":")
        try:
            found_module = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("badpo"):
                raise
            continue
        if hasattr(found_module, name):
            return found_module, name
    raise LookupError(
        f"this side has none of {', '.join(places)}: add where it stands to the tables of {__file__}"
    )


def badpo(command: str, smaller: bool = False) -> Any:
    """``badpo`` in a process of its own; its status, codes and JSON go to commands.jsonl, and the JSON comes back."""
    done = subprocess.run(_command(f"{command} --json", smaller), capture_output=True, text=True, check=False)
    try:
        printed = json.loads(done.stdout)
    except ValueError:
        printed = None
    # of what is wrong its codes and places; the words may change
    told = done.stderr
    if isinstance(printed, dict) and "error" in printed:
        told += printed.pop("error")
    codes = sorted({*re.findall(r"\b[EWN]\d{3}\b", told), *re.findall(r"where: +(.*)", told)})
    with open("commands.jsonl", "a") as file:
        row = {"command": command, "status": done.returncode, "codes": codes, "printed": printed}
        file.write(json.dumps(row) + "\n")
    if "Traceback" in done.stderr:
        raise RuntimeError(f"badpo {command}\n{done.stderr[-3000:]}")
    return printed


def _command(command: str, smaller: bool = False) -> list[str]:
    module = ["bench.golden", "--smaller"] if smaller else ["badpo"]
    return [sys.executable, "-m", *module, *shlex.split(command)]


def killed(moments: list[str], command: str, smaller: bool = False) -> None:
    """The same command again and again, killed as soon as a file of each pattern is there."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    for moment in moments:
        process = subprocess.Popen(_command(command, smaller), **quiet)
        while process.poll() is None and not any(Path().glob(moment)):
            time.sleep(0.02)
        process.kill()
        process.wait()


def planted(**changes) -> pd.DataFrame:
    """Votes whose leans are known."""
    from tests.auditing.planted import votes

    return votes(**changes)[0]


def write(table: pd.DataFrame, name: str) -> str:
    """A table as JSON lines."""
    table.to_json(name, orient="records", lines=True)
    return name


TRAINING = yaml.safe_load(
    "{max_steps: 40, save_steps: 20, per_device_train_batch_size: 8, learning_rate: 1.0e-3, reference_cache: cache, "
    "use_cpu: true, bf16: false, gradient_checkpointing: false, report_to: none, disable_tqdm: true}"
)
RECIPE = yaml.safe_load(
    "{model_name_or_path: model, dataset_name: votes.jsonl, output_dir: runs, attributes: [length], held_out: 0.2}"
)


def project(**changes) -> None:
    """A small model, votes and a recipe."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from tests import tiny

    torch.manual_seed(0)
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    tokens = {"vocab_size": 64, "pad_token_id": 0, "eos_token_id": 1, "max_position_embeddings": 96}
    model = LlamaForCausalLM(LlamaConfig(**size, **tokens, num_key_value_heads=2, initializer_range=0.2))
    model.save_pretrained("model")
    tiny.tokenizer().save_pretrained("model")
    write(tiny.votes(n_comparisons=60, n_annotators=6), "votes.jsonl")
    Path("run.yaml").write_text(yaml.safe_dump(RECIPE | TRAINING | changes))


# -- the cases --------------------------------------------------------------------------------------------------------

AUDITS = (  # {} is the table
    "check {} --attribute length",
    "audit {} --attribute length --attribute markdown --out audit --people",
    "audit {} --attribute length --repeated last --out last",
)
PLANTED_AUDITS = (
    "audit {} --attribute length --out plain --people",
    "audit {} --attribute length --anchor w1 --anchor w2 --out anchored",
    "audit {} --attribute length --anchor-class crowd --out class",
    "audit {} --attribute length --shrink npmle --fdr 0.05 --rho 0.2 --out mixture",
    "audit {} --attribute length --shrink none --flag-rule bh --out raw",
    "audit {} --attribute length --quality joint --out joint",
)
ATTRIBUTES = (
    "attributes list",
    "attributes test {} --attribute length --sweep ratio=1.25,1.5,2",
    "attributes test {} --attribute length --attribute markdown",
)
VARIANTS = ("none", "pooled", "per_annotator", "shared_mean", "class")
TRAIN = (
    *(f"train --config run.yaml --bias {variant}" for variant in VARIANTS),
    "train --config run.yaml --dry-run",
    "evaluate runs/dpo-s42 runs/shared_mean-s42",
    "report runs --out report.html",
)
CORPORA = ("corpus signed --n 300 --out signed", "corpus style --n 300 --out style")
WATCHED = "--attribute length --state state.json --votes-per-comparison 3"
DEMO, NAMES = "demo --out runs", "reproduce names --seeds 42 --out runs"
REFUSED = ("", "chekc", "audit", "audit absent.csv", "audit {} --attribute lenght", "train", "train --betta 1",
           "train --config absent.yaml", "evaluate nowhere", "report nowhere", "anchor nowhere --target woman=2",
           "anchor nowhere --target woman=0.5", "reproduce nothing", "forget nobody", "import absent.csv --out a.csv",
           "demo --seeds x", "corpus signed", "watch absent.csv --state s")  # fmt: skip


def lines(commands: tuple[str, ...], table: object = "", smaller: bool = False) -> None:
    """One command after another."""
    for command in commands:
        badpo(command.format(shlex.quote(str(table))), smaller=smaller)


def on_planted(commands: tuple[str, ...], **changes) -> None:
    """The same on votes whose leans are known."""
    lines(commands, write(planted(**changes), "votes.jsonl"))


def in_project(commands: tuple[str, ...], **changes) -> None:
    """The same where there is a small model and a recipe."""
    project(**changes)
    lines(commands)


for _name in ("ukpconvarg1_human", "mtbench_human_gpt4", "vicuna80_gpt4"):
    _file = DATA / f"{_name}.parquet"
    CASES[f"audit-{_name.partition('_')[0]}"] = Case(partial(lines, AUDITS, _file), 1e-6, _file)
_pool = partial(on_planted, PLANTED_AUDITS, n_comparisons=800, n_annotators=40, class_gap=0.5)
_warm = partial(
    in_project, ("train --config run.yaml",), bias={"variant": "shared_mean", "warm_start": "offline"}
)
CASES |= {
    "audit-planted": Case(_pool, 1e-6),
    "attributes": Case(partial(on_planted, ATTRIBUTES, n_comparisons=60)),
    "corpora": Case(partial(lines, CORPORA), 1e-6),
    "train": Case(partial(in_project, TRAIN)),
    "train-warm": Case(_warm, 1e-5),
    "two-processes": Case(partial(in_project, ("train --config run.yaml --num_processes 2",))),
    "demo": Case(partial(lines, (DEMO,), smaller=True), 1e-6),
    "names": Case(partial(lines, (NAMES,), smaller=True), 1e-6),
    "demo-whole": Case(partial(lines, (DEMO,)), 1e-6, slow=True),
    "names-whole": Case(partial(lines, (NAMES,)), 1e-6, slow=True),
}


@case()
def check() -> None:
    votes = planted(n_comparisons=60)
    at = votes.index == 3

    def changed(name: str, value: object) -> pd.DataFrame:
        return votes.assign(**{name: votes[name].mask(at, value)})

    tables = {
        "good": votes,
        "no winner": votes.drop(columns="winner"),
        "misnamed": votes.rename(columns={"response_a": "respons_a"}),
        "empty text": changed("response_a", ""),
        "other winner": changed("winner", "left"),
        "no annotator": changed("annotator", None),
        "two texts": changed("response_a", "another"),
        "two classes": changed("annotator_class", "other"),
        "same texts": votes.assign(response_b=votes["response_a"]),
        "ties": votes.assign(winner="tie"),
        "first side": votes.assign(winner="a"),
        "one annotator": votes.assign(annotator="w0"),
        "an annotator each": votes.assign(annotator=[f"w{i}" for i in range(len(votes))]),
        "repeated": pd.concat([votes, votes.head(40)]),
        "empty": votes.head(0),
        "no ids": votes.drop(columns=["comparison_id", "prompt_id"]),
        "number": votes.assign(prompt=7),
        "scores": votes.assign(score_a=1.0, score_b=2.0),
    }
    for number, table in enumerate(tables.values()):
        badpo(f"check {write(table, f'{number}.jsonl')} --attribute length")
    Path("torn.jsonl").write_text('{"prompt": "a"')
    Path("other.csv").write_bytes(b"\xff\xfe\x00")
    lines(("check torn.jsonl", "check other.csv", "check absent.csv"))


@case()
def importers() -> None:
    exports = sorted((ROOT / "tests" / "data" / "importers" / "exports").iterdir())
    for export in [*exports, ROOT / "examples" / "label_studio.json", ROOT / "examples" / "votes.csv"]:
        name = export.stem
        lines((f"import {{}} --out {name}.parquet --write-mapping {name}.json",), export)


@case(1e-6)
def watch() -> None:
    votes = planted(n_comparisons=240)
    for part in range(3):
        write(votes.head(len(votes) * (part + 1) // 3), "votes.jsonl")
        badpo(f"watch votes.jsonl {WATCHED}")


@case()
def commands() -> None:
    """What is refused, and what a command loads."""
    votes = write(planted(n_comparisons=60), "votes.jsonl")
    lines(REFUSED, votes)
    names = sorted(re.findall(r"^  ([a-z]+)  ", _printed("--help"), re.MULTILINE))
    loaded = {f"{name} --help": _loaded(name, "--help") for name in names}
    loaded |= {"check": _loaded("check", votes), "audit": _loaded("audit", votes, "--attribute", "length")}
    Path("loaded.json").write_text(json.dumps(loaded))


def _printed(argument: str) -> str:
    return subprocess.run(_command(argument), capture_output=True, text=True, check=True).stdout


def _loaded(*arguments: str) -> list[str]:
    """The packages of others that a command has loaded when it ends."""
    code = (
        "import runpy, sys\n"
        "try: runpy.run_module('badpo', run_name='__main__', alter_sys=True)\n"
        "except SystemExit: pass\n"
        "print('LOADED', *{name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names))"
    )
    command = [sys.executable, "-c", code, *arguments]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    packages = sorted(printed.rsplit("LOADED", 1)[1].split())
    return [name for name in packages if not name.startswith(("badpo", "_"))]


@case()
def keys() -> None:
    """In which list every key of TRL's stands."""
    from dataclasses import fields

    from trl import DPOConfig

    lists = ("honoured", "without effect", "refused")
    stands = {
        field.name: [name for name in lists if field.name in found(name)] for field in fields(DPOConfig)
    }
    Path("keys.json").write_text(json.dumps(stands))


@case()
def train_killed() -> None:
    project(reference={"sft": True, "num_train_epochs": 1})
    killed(["runs/*/checkpoints/checkpoint-20/complete.json"], "train --config run.yaml")
    badpo("train --config run.yaml --resume")


def _arm(name: str, folder: str, lora: bool = False, batching: str = "random") -> None:
    """Forty steps of an arm, by the public trainer."""
    from peft import LoraConfig
    from transformers import AutoTokenizer, set_seed

    from badpo import BADPOConfig, BADPOTrainer, Judgments
    from badpo.attributes import Length, Markdown

    arm, tokenizer = found("ARMS")[name], AutoTokenizer.from_pretrained("model")
    votes = Judgments.read("votes.jsonl", attributes=[Length(ratio=1.5), Markdown()])
    seen = found("arm_judgments")(arm, votes, 42, tokenizer, 64, 32)
    set_seed(42)
    args = BADPOConfig(
        folder,
        bias=arm.bias,
        warm_start=arm.warm_start,
        batching=batching,
        encoding="paper",
        max_length=64,
        max_prompt_length=32,
        **TRAINING,
    )
    trainer = BADPOTrainer(
        "model",
        args=args,
        train_dataset=seen,
        processing_class=tokenizer,
        bias=found("arm_bias")(arm, seen),
        objective=found("arm_objective")(arm, seen, 42, args.beta),
        peft_config=LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM") if lora else None,
    )
    trainer.train()


def _arms(of: Callable[[Any], bool]) -> None:
    project()
    # EM-DPO's several policies are in the case names
    for name, arm in found("ARMS").items():
        if arm.bias is not None and arm.objective != "types" and of(arm):
            _arm(name, f"runs/{name}")


@case()
def arms() -> None:
    _arms(lambda arm: arm.warm_start == "zero")


@case(1e-5)
def arms_from_an_estimate() -> None:
    _arms(lambda arm: arm.warm_start != "zero")


@case()
def arms_with_adapters_and_in_batches() -> None:
    project()
    for name in ("dpo", "pooled", "shared_mean", "group_dro"):
        _arm(name, f"runs/{name}-lora", lora=True)
        for batching in ("grouped", "comparisons"):
            _arm(name, f"runs/{name}-{batching}", batching=batching)


@case(1e-6)
def names_killed() -> None:
    """Each run is killed once, EM-DPO in a round and at its end; the same command goes on."""
    runs = ("dpo", "pooled", "shared_mean", "group_dro")
    moments = [f"runs/**/{run}-s42/checkpoints/checkpoint-*/complete.json" for run in runs]
    moments += [
        "runs/**/em_dpo-s42/round1.json",
        "runs/**/em_dpo-s42/type1/checkpoints/checkpoint-*/complete.json",
    ]
    killed(moments, NAMES, smaller=True)
    lines((NAMES,), smaller=True)


@case(1e-6)
def anchor() -> None:
    project()
    firsts, seconds = ("cat", "dog", "red", "blue", "big"), ("sat", "ran", "and", "then")
    thirds = ("fast", "slowly", "home", "w1", "w2")
    questions = [f"the {a} {b} {c}" for a in firsts for b in seconds for c in thirds]
    Path("questions.txt").write_text("\n".join(questions))
    words = "--word cat=dog --word red=blue --word big=small --word fast=slowly"
    asked = f"anchor model --target chosen=0.4 {words} --prompts questions.txt"
    badpo(f"{asked} --out sampled")
    badpo(f"{asked} --mode train --steps 4 --rounds 2 --learning-rate 1e-3 --out trained")


@case()
def forget() -> None:
    """Everything of one person taken out; which files still name them."""
    project(max_steps=10)
    lines(
        (
            "import votes.jsonl --out imported.parquet --write-mapping whose.json",
            "train --config run.yaml --dataset_name imported.parquet",
            "audit imported.parquet --attribute length --out audit --people",
            f"watch imported.parquet {WATCHED}",
        )
    )
    whose = json.loads(Path("whose.json").read_text())
    wanted = [word.encode() for pair in whose.items() if "person 3" in pair for word in pair]
    where = "--data imported.parquet --audit audit --runs runs --mapping whose.json --state state.json"
    lines((f"forget 'person 3' {where} --dry-run", f"forget 'person 3' {where}"))
    files = [path for path in sorted(Path().rglob("*")) if path.is_file()]
    left = [str(path) for path in files if any(word in path.read_bytes() for word in wanted)]
    Path("left.json").write_text(json.dumps(left))


@case()
def python_interface() -> None:
    from badpo import Judgments, audit
    from badpo.attributes import Length

    table = planted()
    # some pairs of which one side is twice as long
    table.loc[table["comparison_id"].str.endswith("0"), "response_a"] += " and a few words"
    votes = Judgments.read(write(table, "votes.jsonl"), attributes=[Length()])
    result = audit(votes)
    result.annotators.to_parquet("annotators-table.parquet")
    result.attributes.to_parquet("attributes-table.parquet")
    result.to_html("page.html")


# -- comparing --------------------------------------------------------------------------------------------------------


def contents(folder: Path) -> dict[str, Any]:
    """Every value in every file of a folder, by its file and place; and every file's mode."""
    values: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and not FILES_LEFT_OUT.search(name):
            for old, new in RENAMED.items():
                name = name.replace(old, new)
            values[f"{name}: mode"] = oct(path.stat().st_mode & 0o777)
            values |= {f"{name}: {place}": value for place, value in _values(_read(path, str(folder)))}
    return values


def _read(path: Path, folder: str) -> Any:
    """A file as plain values."""
    if path.suffix == ".parquet":
        return {name: column.to_numpy() for name, column in pd.read_parquet(path).items()}
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return {name: tensor.double().numpy() for name, tensor in load_file(path).items()}
    if path.suffix == ".pt":
        import torch

        return torch.load(path, weights_only=True)
    text = path.read_bytes().decode("utf-8", "replace").replace(folder, "")
    try:
        if path.suffix == ".jsonl":
            return [json.loads(line) for line in text.splitlines()]
        if path.suffix == ".json":
            return json.loads(text)
    except ValueError:
        return text  # torn on purpose
    if path.suffix in (".yaml", ".yml"):
        return yaml.safe_load(text)
    if path.suffix == ".html":
        seen = re.sub(r"(?s)<(style|script|title)\b.*?</\1>|<[^>]+>", " ", text)
        return {"figures": " ".join(re.findall(r"(?<![\w.])[-\u2212+]?\d[\d.,]*", seen))}
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


def compare(base: dict[str, Any], here: dict[str, Any], tolerance: float) -> list[tuple[str, str, str]]:
    """Place, what the base has and what is here, of everything that differs by more than the tolerance."""
    rows = []
    for place in dict.fromkeys([*base, *here]):
        if place not in base or place not in here:
            rows.append(
                (place, *(_short(side[place]) if place in side else "(nothing)" for side in (base, here)))
            )
        elif not _same(base[place], here[place], tolerance):
            rows.append((place, *_parts(base[place], here[place])))
    return rows


def _same(a: Any, b: Any, tolerance: float) -> bool:
    arrays = [np.asarray(value) for value in (a, b)]
    if arrays[0].shape != arrays[1].shape:
        return False
    if not all(array.dtype.kind in "iuf" for array in arrays):
        return all(str(x) == str(y) for x, y in zip(*(array.ravel() for array in arrays), strict=True))
    return np.allclose(*(array.astype(float) for array in arrays), tolerance, tolerance, equal_nan=True)


def _parts(a: Any, b: Any) -> tuple[str, str]:
    """Both values, or of long ones of the same kind the parts around the first place where they differ."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and a.shape == b.shape:
        x, y = next((x, y) for x, y in zip(a.ravel(), b.ravel(), strict=True) if not _same(x, y, 0.0))
        return f"{x} (first of {a.size})", str(y)
    if isinstance(a, str) and isinstance(b, str):
        start = max(len(os.path.commonprefix([a, b])) - 12, 0)
        return _short(a[start:]), _short(b[start:])
    return _short(a), _short(b)


def _short(value: Any) -> str:
    text = f"array of shape {value.shape}" if isinstance(value, np.ndarray) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


# -- both sides -------------------------------------------------------------------------------------------------------


@contextmanager
def checked_out(commit: str, folder: Path) -> Iterator[Path]:
    """The sources of a commit, in a worktree that is removed at the end."""
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", str(folder), commit], check=True)
    try:
        yield folder / "src"
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], check=True)


def start(name: str, source: Path, folder: Path) -> subprocess.Popen:
    """A case on one side, in a process that writes into a folder."""
    folder.mkdir(parents=True)
    places = {"XDG_CACHE_HOME": folder / "xdg", "XDG_CONFIG_HOME": folder / "xdg", "HOME": folder / "xdg"}
    fixed = {
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TQDM_DISABLE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    environment = {**os.environ, **fixed, **{key: str(place) for key, place in places.items()}}
    environment |= {"PYTHONPATH": f"{source}{os.pathsep}{ROOT}", "PYTHONHASHSEED": "0", "COLUMNS": "100"}
    environment["BADPO_PSEUDONYM_KEY"] = "the key of the golden comparison, 32 bytes"
    with open(folder.with_suffix(".output"), "w") as output:
        command = [sys.executable, "-m", "bench.golden", "--child", name]
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT)


def compared(name: str, sources: dict[str, Path], place: Path) -> list[tuple[str, str, str]]:
    """The differences of one case; a side that fails is one."""
    folders = {side: place / name / side for side in sources}
    processes = {side: start(name, source, folders[side]) for side, source in sources.items()}
    status = {side: process.wait() for side, process in processes.items()}
    failed = {side: folders[side].with_suffix(".output").read_text() for side in sources if status[side]}
    if failed:
        print(f"{name:<36} failed, ", end="")
        return [("failed", *(failed.get(side, "(no failure)")[-1500:] for side in sources))]
    base, here = (contents(folder) for folder in folders.values())
    # commands that fail alike on both sides are told too
    ended = Counter(value for where, value in here.items() if where.endswith(".status"))
    statuses = ", ".join(f"{n} with status {status}" for status, n in sorted(ended.items()))
    print(f"{name:<36} {len(here):6} values, commands: {statuses or 'none'}; ", end="")
    return compare(base, here, CASES[name].tolerance)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base", metavar="COMMIT", help="what the present code is compared with")
    parser.add_argument(
        "--source", type=Path, default=ROOT / "src", help="the present code; src of this checkout"
    )
    parser.add_argument("--only", nargs="+", choices=list(CASES), metavar="NAME", help="these cases alone")
    parser.add_argument("--all", action="store_true", help="also the slow cases")
    parser.add_argument("--list", action="store_true", help="the cases, and nothing else")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        CASES[asked.child].run()
        return 0
    chosen = asked.only or [name for name, one in CASES.items() if asked.all or not one.slow]
    if asked.list or not asked.base:
        for name, one in CASES.items():
            print(f"{name:<36} {one.tolerance or 'exact':<6} {'slow' if one.slow else ''}".rstrip())
        return 0 if asked.list else 2
    differences: dict[str, list[tuple[str, str, str]]] = {}
    with tempfile.TemporaryDirectory(prefix="badpo-golden-") as temporary, \
            checked_out(asked.base, Path(temporary) / "base") as base:  # fmt: skip
        for name in chosen:
            needed = CASES[name].needs
            if needed is not None and not needed.exists():
                print(f"{name:<36} left out: {needed} is not there", flush=True)
                continue
            began = time.monotonic()
            sources = {"base": base, "here": asked.source.resolve()}
            differences[name] = compared(name, sources, Path(temporary) / "cases")
            told = f"{len(differences[name])} differences" if differences[name] else "the same"
            print(f"{told}, {time.monotonic() - began:.0f} s", flush=True)
    for name, rows in differences.items():
        for where, *sides in rows[:MOST_SHOWN]:
            print(f"\n{name}: {where}\n  base: {sides[0]}\n  here: {sides[1]}")
        if len(rows) > MOST_SHOWN:
            print(f"\n{name}: {len(rows) - MOST_SHOWN} more")
    return int(any(differences.values()))


def run_smaller(arguments: list[str]) -> None:
    """``badpo`` with the demo and the suites at the scale of a test."""
    for places, made in SMALLER:
        module, name = _place(places)
        setattr(module, name, made(getattr(module, name)))
    import runpy

    sys.argv[1:] = arguments
    runpy.run_module("badpo", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--smaller"]:
        run_smaller(sys.argv[2:])
    else:
        sys.exit(main())
