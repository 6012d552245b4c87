"""The three lists cover TRL's configuration exactly, and refusals let neutral values pass."""

from __future__ import annotations

import dataclasses
import os
import types
import typing
from pathlib import Path

import pytest
from trl import DatasetMixtureConfig, DPOConfig, ModelConfig, ScriptArguments

from badpo.training.config import RENAMED, BADPOConfig
from badpo.training.trl_keys import (
    ACCEPTED_WITHOUT_EFFECT,
    HONOURED,
    HONOURED_DATA,
    HONOURED_MODEL,
    HONOURED_TRAINING,
    LAUNCH,
    REFUSED,
    refusal,
)

TRL_CLASSES = (ScriptArguments, DPOConfig, ModelConfig, DatasetMixtureConfig)
# TRL's parser reads the block itself, before any of the classes, and hands the others to accelerate launch.
PARSER_KEYS = {"env", *LAUNCH}


# An older Trainer has these under their old names only; a recipe that uses the new ones is then refused with a remedy.
NEWER = {name for name in RENAMED.values() if name not in {f.name for f in dataclasses.fields(BADPOConfig)}}


def trl_fields() -> dict[str, dataclasses.Field]:
    return {field.name: field for cls in TRL_CLASSES for field in dataclasses.fields(cls)}


def defaults() -> dict:
    values = {}
    for name, field in trl_fields().items():
        if field.default is not dataclasses.MISSING:
            values[name] = field.default
        else:
            values[name] = field.default_factory()
    return values


def test_every_trl_key_stands_in_one_list():
    listed = [*HONOURED, *ACCEPTED_WITHOUT_EFFECT, *REFUSED]
    assert len(listed) == len(set(listed)), "a key stands in two lists"
    assert set(listed) - NEWER == set(trl_fields()) | PARSER_KEYS


def test_honoured_lists_do_not_overlap():
    assert len(HONOURED) == sum(map(len, (HONOURED_MODEL, HONOURED_DATA, HONOURED_TRAINING, LAUNCH)))


def test_honoured_training_keys_are_arguments_of_ours():
    assert set(HONOURED_TRAINING) - NEWER <= {field.name for field in dataclasses.fields(BADPOConfig)}


@pytest.mark.parametrize("key", sorted(HONOURED.keys() - NEWER - LAUNCH.keys()))
def test_the_kind_of_an_honoured_key_is_that_of_trl(key):
    owner = next(cls for cls in TRL_CLASSES if key in {field.name for field in dataclasses.fields(cls)})
    annotation = typing.get_type_hints(owner)[key]
    kinds = set(typing.get_args(annotation)) if isinstance(annotation, types.UnionType) else {annotation}
    kinds -= {types.NoneType}
    simple = len(kinds) == 1 and kinds <= {int, float, bool, str}
    assert HONOURED[key] is (kinds.pop() if simple else typing.Any)


@pytest.mark.parametrize("key", sorted(set(REFUSED) - PARSER_KEYS))
def test_trls_default_of_a_refused_key_passes(key):
    assert refusal(key, defaults()[key]) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("auto_find_batch_size", True),
        ("loss_type", ["ipo"]),
        ("loss_type", ["sigmoid", "sft"]),
        ("label_smoothing", 0.1),
        ("hub_strategy", "checkpoint"),
        ("hub_strategy", "all_checkpoints"),
        ("trust_remote_code", True),
        ("resume_from_checkpoint", "runs/a/checkpoint-10"),
        ("torch_compile", True),
        ("neftune_noise_alpha", 5),
        ("save_only_model", True),
    ],
)
def test_a_refused_key_names_itself_and_the_reason(key, value):
    reason = refusal(key, value)
    assert reason is not None
    assert reason.startswith(f"{key}: ")
    assert REFUSED[key] in reason


def test_a_number_that_means_something_is_not_taken_for_nothing():
    assert refusal("ld_alpha", 0) is not None
    assert refusal("label_smoothing", 0) is None


PAGE = Path(__file__).parents[2] / "docs" / "results" / "trl_keys.md"


def page() -> str:
    """What becomes of every key of TRL, keys with one reason together."""
    lines = [
        "# Keys of TRL",
        "",
        "What becomes of each key of a `trl dpo` recipe, from `badpo.training.trl_keys`; written by",
        "`WRITE_PAGES=1 python -m pytest tests/training/test_trl_keys.py`.",
    ]
    honoured = {
        "Model": HONOURED_MODEL,
        "Data": HONOURED_DATA,
        "Training": HONOURED_TRAINING,
        "Launch": LAUNCH,
    }
    lines += ["", "## Honoured"]
    for kind, keys in honoured.items():
        lines += ["", f"{kind}: {', '.join(f'`{key}`' for key in sorted(keys))}."]
    named = {
        "Accepted without effect": ("Each is named in a notice.", ACCEPTED_WITHOUT_EFFECT),
        "Refused": ("A neutral value passes; any other one stops the command.", REFUSED),
    }
    for title, (what, reasons) in named.items():
        lines += ["", f"## {title}", "", what, ""]
        for reason in dict.fromkeys(reasons.values()):
            keys = ", ".join(f"`{key}`" for key, why in reasons.items() if why == reason)
            lines.append(f"- {keys}: {reason}")
    return "\n".join(lines) + "\n"


def test_the_documentation_lists_every_key():
    if os.environ.get("WRITE_PAGES"):
        PAGE.write_text(page())
    assert PAGE.read_text() == page()
