"""Models on disk, tables of votes and recipes small enough for a test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import yaml
from transformers import LlamaConfig, LlamaForCausalLM

from tests import tiny


def save_model(folder: Path, n_tokens: int = 64, **tokenizer_changes) -> Path:
    """A model and a tokenizer that load by their folder's name; changes set attributes of the tokenizer."""
    import torch

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=n_tokens,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        pad_token_id=0,
        eos_token_id=1,
        initializer_range=0.2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer = tiny.tokenizer()
    for name, value in tokenizer_changes.items():
        setattr(tokenizer, name, value)
    tokenizer.save_pretrained(folder)
    return folder


def write_recipe(folder: Path, table: pd.DataFrame | None = None, **changes) -> Path:
    """A recipe in a folder, with its model and its votes beside it; changes replace keys of the recipe."""
    if not (folder / "model").exists():
        save_model(folder / "model")
    frame = tiny.votes(n_comparisons=40, n_annotators=6) if table is None else table
    frame.to_csv(folder / "votes.csv", index=False)
    recipe = {
        "model_name_or_path": str(folder / "model"),
        "dataset_name": str(folder / "votes.csv"),
        "output_dir": str(folder / "runs"),
        "reference_cache": str(folder / "cache"),
        "max_steps": 4,
        "save_steps": 2,
        "learning_rate": 1e-3,
        "held_out": 0.2,
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
        "attributes": ["length"],
    }
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(recipe | changes))
    return path


def files(folder: Path) -> dict[str, bytes]:
    """Every file below a folder with its content, so that two moments can be compared."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def interrupt(after: int) -> Callable:
    """A stand-in for an optimizer callback's hook that stops training while a step is under way."""

    def hook(self, args, state, control, **kwargs):
        if state.global_step + 1 == after:
            raise KeyboardInterrupt

    return hook
