"""A small project for fault injection: a model, votes, a recipe, and the commands that use them."""

import hashlib
import importlib
import os
import pkgutil
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import yaml

from badpo.data.privacy import KEY_VARIABLE
from bench.faults.children import Ended, run_child

RUN = Path("runs/shared_mean-s42")
SHARD_RESPONSES = 8
# Files and fields that may differ between two equal runs: times and names.
TIMED = re.compile("trainer_state|training_args|summary|report[.]html|forgotten|complete[.]json")
RECIPE = yaml.safe_load(
    "{model_name_or_path: model, dataset_name: votes.parquet, output_dir: runs, reference_cache: cache, "
    "attributes: [length], held_out: 0.2, per_device_train_batch_size: 8, max_steps: 6, save_steps: 2, "
    "save_total_limit: 1, learning_rate: 1.0e-3, use_cpu: true, bf16: false, gradient_checkpointing: false, "
    "report_to: none, disable_tqdm: true}"
)
PERSON = "person 3"
LORA = {"use_peft": True, "lora_target_modules": "all-linear", "lora_r": 2}
# Words that an untrained model writes often enough.
SWAPPED = ("a=m", "c=d", "y=s", "you=the")


def prepare() -> None:
    """Set one thread, no network and one key for pseudonyms, and import every module for the children."""
    import torch

    import badpo
    import badpo_paper

    os.environ.update({"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "TOKENIZERS_PARALLELISM": "false"})
    os.environ[KEY_VARIABLE] = "a key for the small project, 32 bytes"
    for package in (badpo, badpo_paper):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    importlib.import_module("peft")
    torch.set_num_threads(1)


def make_project(changes: Mapping[str, object]) -> None:
    """Write a model, an export, a table of votes and a recipe; call this function in a child, in its folder."""
    from badpo_paper.corpora import bundled, signed
    from badpo_paper.settings import build_model, build_tokenizer

    corpus = signed.build(bundled.scored_pairs(30), seed=0).judgments
    texts = corpus.comparisons["response_a"].tolist() + corpus.comparisons["response_b"].tolist()
    tokenizer = build_tokenizer(texts, vocab_size=400)
    size = {"hidden_size": 16, "n_layers": 1, "n_heads": 2, "intermediate_size": 32}
    build_model(tokenizer, 0, **size).save_pretrained("model")
    tokenizer.save_pretrained("model")
    votes = corpus.votes.merge(corpus.comparisons, left_on="comparison", right_index=True)
    export = votes[["comparison_id", "prompt_id", "prompt", "response_a", "response_b"]].assign(
        winner=votes["sign"].map({1: "a", -1: "b"}),
        annotator=[f"person {k % 6}" for k in votes["annotator"]],
        annotator_class=np.where(votes["annotator"] % 2, "crowd", "expert"),
    )
    for name in ("response_a", "response_b"):
        export[name] = export[name].str.slice(0, 120)
    export.to_json("export.jsonl", orient="records", lines=True)
    command("import", "export.jsonl", "--out", "votes.parquet")
    Path("run.yaml").write_text(yaml.safe_dump(RECIPE | dict(changes)))
    Path("questions.txt").write_text("\n".join(bundled.fresh_prompts()[:100]))


def make_smaller() -> None:
    """Use many small shards of the reference cache, short answers and a small demo; call this function in a child."""
    from badpo.anchoring import source
    from badpo.anchoring import targets as anchor
    from badpo.runs import evaluate
    from badpo.training import reference
    from badpo_paper import datasets, settings

    reference.RESPONSES_PER_SHARD = SHARD_RESPONSES
    evaluate.MAX_NEW_TOKENS = 6
    source.MAX_NEW_TOKENS = 24
    anchor.ANSWERS_EACH, anchor.FEWEST_ANSWERS = 1, 4
    datasets.N_DEMO_PAIRS, datasets.N_DEMO_PROMPTS = 60, 4
    steps = {"max_steps": 4, "per_device_train_batch_size": 8}
    settings.DEMO |= steps | {"max_steps": 8, "reference": settings.DEMO["reference"] | steps}
    short = replace(settings.SCALES["demo"], decoding=evaluate.Decoding(max_new_tokens=6))
    settings.SCALES["demo"] = short


def command(*arguments: str, allowed: Sequence[int] = ()) -> None:
    """Run ``badpo`` with these arguments in this process; raise `SystemExit` for a status that is not allowed."""
    from badpo.cli.main import app

    try:
        app(list(arguments))
    except SystemExit as error:
        if error.code and error.code not in allowed:
            raise


def train() -> None:
    """Train a run, or resume the existing run, until it is finished."""
    if (RUN / "run.json").exists():
        return
    begun = any((RUN / "checkpoints").glob("checkpoint-*/complete.json"))
    command("train", "--config", "run.yaml", *(["--resume"] if begun else []))


evaluate = partial(command, "evaluate", str(RUN))
suite = partial(command, "demo", "--out", "runs", "--model", "model")
audit = partial(command, "audit", "votes.parquet", "--attribute", "length", "--out", "audit")


def import_votes() -> None:
    """Import the export, with its mapping unless the mapping exists."""
    mapping = [] if Path("whose.json").exists() else ["--write-mapping", "whose.json"]
    command("import", "export.jsonl", "--out", "imported.parquet", *mapping)


def forget() -> None:
    """Remove one person from the votes, the audit and the run; it is no failure if nothing is left."""
    where = ["--data", "votes.parquet", "--audit", "audit", "--runs", "runs", "--mapping", "whose.json"]
    command("forget", PERSON, *where, allowed=(3, 4))


def anchor() -> None:
    """Anchor a model by training, in two rounds; a missed target is no failure."""
    os.environ["XDG_CACHE_HOME"] = str(Path("cache").resolve())
    words = " ".join(f"--word {pair}" for pair in SWAPPED)
    stage = "--mode train --steps 2 --learning-rate 1e-2 --rounds 2 --tolerance 1e-9"
    where = "--prompts questions.txt --out anchored"
    command(*f"anchor model --target chosen=0.3 {words} {stage} {where}".split(), allowed=(1,))
    if not Path("anchored/anchor.json").exists():
        raise SystemExit(1)


def contents(folder: Path) -> dict[str, str]:
    """Compute the checksum of every file below a folder that two equal runs have in common, by path.

    Files of a checkpoint that contain times are left out, and so is the manifest, which contains their checksums.
    """
    found = {}
    for path in sorted(folder.rglob("*")):
        place = path.relative_to(folder)
        unfinished = any(part.startswith(".") for part in place.parts)
        if path.is_file() and not unfinished and not TIMED.match(path.name):
            found[str(place)] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def must(work: Callable[[], None], folder: Path) -> Ended:
    """Run something in an undisturbed child; raise RuntimeError if it fails."""
    ended = run_child(work, folder, prepare=make_smaller)
    if ended.status:
        raise RuntimeError(
            f"it fails without a fault, with status {ended.status}:\n{ended.output[-2000:]}"
        )
    return ended


def make_template(
    folder: Path, before: Sequence[Callable[[], None]] = (), changes: Mapping[str, object] | None = None
) -> Path:
    """Make a project that later projects copy, with the commands that were run in it."""
    folder.mkdir()
    must(lambda: make_project(changes or {}), folder)
    for step in before:
        must(step, folder)
    return folder


def differences(found: Mapping[str, str], expected: Mapping[str, str]) -> str:
    """Describe the differences between two results of `contents`; empty if there are none."""
    wrong = sorted({name for name, _ in found.items() ^ expected.items()})
    gone = [name for name in wrong if name not in found]
    what = f"missing: {', '.join(gone[:4])}" if gone else f"other content: {', '.join(wrong[:4])}"
    return f"{len(wrong)} files are not as without a fault; {what}" if wrong else ""


class Stage(NamedTuple):
    """A disturbed command, its number of kills, the commands before it, and changes of the recipe."""

    name: str
    command: Callable[[], None]
    n_kills: int
    before: tuple[Callable[[], None], ...] = ()
    changes: Mapping[str, object] = {}

    def template(self, place: Path) -> Path:
        """The project in which the command is the next step."""
        return make_template(place / self.name.replace(" ", "-"), self.before, self.changes)


STAGES = (
    Stage("a training run", train, 90),
    Stage("a training run with an adapter", train, 30, changes=LORA),
    Stage("the supervised stage and a run", train, 30, changes={"reference": {"sft": True}}),
    Stage("a demo", suite, 40),
    Stage("readouts", evaluate, 20, (train,)),
    Stage("badpo import", import_votes, 15),
    Stage("badpo audit", audit, 20),
    Stage("badpo anchor", anchor, 20),
    Stage("badpo forget", forget, 50, (train, audit, import_votes)),
)


def copy_project(template: Path, folder: Path) -> Path:
    """Copy a project."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(template, folder)
    return folder
