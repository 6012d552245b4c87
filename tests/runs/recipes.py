"""Models on disk, tables of votes and recipes small enough for a test."""

import json
import os
from pathlib import Path

import pandas as pd
import yaml
from transformers import LlamaConfig, LlamaForCausalLM

from badpo.training.recipe import Recipe, read_recipe
from tests import tiny


def save_model(folder: Path, n_tokens: int = 64, chat_template: str | None = tiny.CHAT_TEMPLATE) -> Path:
    """A model and its tokenizer in a folder, from which they load by name."""
    import torch

    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(vocab_size=n_tokens, **tiny.SIZES)).save_pretrained(folder)
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = chat_template
    tokenizer.save_pretrained(folder)
    return folder


class Owned:
    """A pickle that makes a folder where it is read."""

    def __init__(self, path: Path):
        self._path = path

    def __reduce__(self):
        return os.mkdir, (str(self._path),)


def write_recipe(folder: Path, table: pd.DataFrame | None = None, **changes) -> Path:
    """``folder/run.yaml`` with the votes beside it, and a model if there is none; None as a change drops a key."""
    if not (folder / "model").exists():
        save_model(folder / "model")
    frame = tiny.votes(n_comparisons=40, n_annotators=6) if table is None else table
    frame.to_json(folder / "votes.jsonl", orient="records", lines=True)
    keys = {
        "model_name_or_path": str(folder / "model"),
        "dataset_name": str(folder / "votes.jsonl"),
        "output_dir": str(folder / "runs"),
        "reference_cache": str(folder / "cache"),
        **{"attributes": ["length"], "held_out": 0.2},
        **{"max_steps": 4, "save_steps": 2, "learning_rate": 1e-3},
        **{"use_cpu": True, "gradient_checkpointing": False, "report_to": "none", "disable_tqdm": True},
    }
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump({k: v for k, v in (keys | changes).items() if v is not None}))
    return path


def recipe(folder: Path, table: pd.DataFrame | None = None, **changes) -> Recipe:
    """The recipe of `write_recipe`, read; a token comes as a flag."""
    flags = {name: changes.pop(name) for name in ["hub_token"] if name in changes}
    return read_recipe(write_recipe(folder, table, **changes), flags)


def as_trl(votes: pd.DataFrame) -> pd.DataFrame:
    """The votes as ``prompt, chosen, rejected``, the annotator kept."""
    chose_a = votes["winner"] == "a"
    a, b = votes["response_a"], votes["response_b"]
    sides = votes.assign(chosen=a.where(chose_a, b), rejected=b.where(chose_a, a))
    return sides[["prompt", "chosen", "rejected", "annotator"]]


def as_chat(votes: pd.DataFrame) -> pd.DataFrame:
    """The votes as chat messages: a question of the user's and two answers."""
    roles = {"prompt": "user", "response_a": "assistant", "response_b": "assistant"}
    for name, role in roles.items():
        votes = votes.assign(**{name: [[{"role": role, "content": text}] for text in votes[name]]})
    return votes


def written(folder: Path) -> set[str]:
    """Every file below a folder, by its path, the locks left out."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")
    return {str(path.relative_to(folder)) for path in files}


def log_lines(folder: Path) -> list[dict]:
    """The step log of a run."""
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
