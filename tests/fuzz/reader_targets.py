"""What reads other people's files: tables, exports, recipes. It takes them or refuses them in words."""

from __future__ import annotations

import functools
import json
import math
import re
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from hypothesis import strategies as st

from badpo.anchoring.source import read_prompts
from badpo.attributes import Length, Markdown, attribute_from_config
from badpo.cli.anchor import parsed_targets, word_pairs
from badpo.cli.options import parsed_attribute, parsed_flags, parsed_sweep, parted
from badpo.data.attributes import BUILT_IN
from badpo.data.checks import check
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError, DataError
from badpo.data.tables import is_unicode, read_table
from badpo.data.yaml_files import parse_value
from badpo.importers.formats import FORMATS, import_votes
from badpo.training.recipe import read_recipe
from badpo_paper.cli import parsed_seeds
from tests.fuzz.inputs import (
    as_file,
    changed_json,
    json_values,
    mutated_bytes,
    numbers,
    scalars,
    table_files,
    texts,
    vote_rows,
)
from tests.fuzz.running import Target

EXPORTS = Path(__file__).parents[1] / "importers" / "exports"
EXAMPLES = Path(__file__).parents[2] / "examples"
SECRET = "secret-id"
_IDS = re.compile(
    r"calm_otter|wise_badger|keen_finch|brisk_heron|mia@|tom@|ana@|u-\d|pairs-[a-z]+|arena_user_\d+|user1\d"
)


def refusing(read: Callable[[Any], Any]) -> Callable[[Any], None]:
    """The check that a reader takes an input or refuses it with an error of ours that says what to do."""

    @functools.wraps(read)
    def checked(value: Any) -> None:
        try:
            read(value)
        except DataError as error:
            assert error.problems
            for problem in error.problems:
                assert problem.what and problem.where and problem.remedy, problem
            _presentable(str(error))
        except ConfigError as error:
            _presentable(str(error))

    return checked


def _presentable(message: str) -> None:
    assert message.strip()
    message.encode("utf-8")
    assert SECRET not in message, f"a raw annotator id in a message: {message}"


def _read_judgments(source: Any) -> None:
    judgments = Judgments.read(source, attributes=[Length(), Markdown()])
    _consistent(judgments, len(read_table(source).frame))


def _consistent(judgments: Judgments, n_rows: int) -> None:
    """Every row is a vote or is counted as left out, and what was read can be written and read again."""
    assert judgments.n_votes + int(judgments.dropped["n"].sum()) == n_rows
    assert np.isfinite(judgments.delta).all()
    assert set(judgments.votes["sign"]) <= {1, -1}
    for problem in check(judgments):
        _presentable(str(problem))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "votes.parquet"
        judgments.to_parquet(path)
        assert SECRET.encode() not in path.read_bytes()
        again = Judgments.read(path, attributes=judgments.attributes)
    assert again.fingerprint() == judgments.fingerprint()


def _read_file(file: tuple[str, bytes]) -> None:
    ending, content = file
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"votes.{ending}"
        path.write_bytes(content)
        judgments = Judgments.read(path, attributes=[Length()])
        check(judgments)


def _export(name: str) -> Any:
    """An export whose annotators have ids that can be told from any other text."""
    path = EXAMPLES / name if name == "label_studio.json" else EXPORTS / name
    text = _IDS.sub(lambda found: f"{SECRET}-{found[0]}", path.read_text())
    return json.loads(text) if path.suffix == ".json" else [json.loads(line) for line in text.splitlines()]


def _import(value: tuple[Any, str | None]) -> None:
    records, named = value
    imported = import_votes(records, format=named)
    for problem in imported.findings:
        _presentable(str(problem))
    if imported.format != "ultrafeedback":
        Judgments.read(imported.table, columns=imported.columns)


def _import_file(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "export.json"
        path.write_bytes(content)
        imported = import_votes(path)
        if imported.format != "ultrafeedback":
            Judgments.read(imported.table, columns=imported.columns)


def _read_prompts(file: tuple[str, bytes]) -> None:
    """The questions that an anchor is measured on: texts, or an error that says what is wrong with the file."""
    ending, content = file
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"prompts.{ending}"
        path.write_bytes(content)
        for prompt in read_prompts(path):
            assert prompt.strip() == prompt != "" and is_unicode(prompt)


@st.composite
def _prompt_files(draw: st.DrawFn) -> tuple[str, bytes]:
    rows = draw(st.lists(st.fixed_dictionaries({"prompt": texts | scalars}), max_size=5))
    ending = draw(st.sampled_from(["csv", "jsonl", "txt"]))
    return ending, draw(mutated_bytes(as_file(rows, "csv" if ending == "txt" else ending)))


RECIPE = yaml.safe_load((EXAMPLES / "train.yaml").read_text())
RECIPE |= {
    "preset": "paper-0.5b",
    "attributes": [
        {"type": "length", "ratio": 1.5, "scope": "pair"},
        {"type": "length_words", "threshold": 10, "unit": 2, "name": "words"},
        {"type": "length_tokens", "tokenizer": "nowhere", "threshold": 1},
        {"type": "signature_name", "name": "woman", "names": ["Emily"]},
        {"type": "word_list", "name": "hedges", "words": ["perhaps"]},
        {"type": "regex", "name": "question", "pattern": "[?]$"},
        {"type": "column", "name": "cells", "a": "x_a", "b": "x_b", "threshold": 0, "continuous": True},
        "position",
    ],
    "winners": {"left": "a"},
    "use_peft": False,
    "gradient_checkpointing": "true",
    "lora_target_modules": ["q_proj"],
    "held_out": 0.1,
    "model_init_kwargs": {"attn_implementation": "sdpa"},
    "bias": {"variant": "class", "learning_rate": 0.01, "warm_start": "offline", "gold_annotators": ["x"]},
    "reference": {"sft": True, "num_train_epochs": 1, "balance": ["woman"]},
    "privacy": {"pseudonymise": True},
}
RECIPE_TEXT = (EXAMPLES / "train.yaml").read_bytes()
_VALUES = json_values | st.sampled_from(
    ["5e-7", "true", "1:99:99", "2001-99-99", "0x", "~", "!!int a", "&a [*a]"]
)


def _read_recipe_bytes(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.yaml"
        path.write_bytes(content)
        read_recipe(path)


def _read_recipe_keys(keys: Any) -> None:
    if isinstance(keys, dict):
        read_recipe(overrides={str(key): value for key, value in keys.items()})


def _command_line(words: list[str]) -> None:
    """What people write behind options is understood or refused, and so is what it means."""
    given: list[Callable[[], object]] = [
        lambda: read_recipe(overrides=parsed_flags(words)),
        lambda: parted(words, "--column", "annotator=worker_id"),
        lambda: parsed_targets(words),
        lambda: word_pairs(words),
        *(partial(attribute_from_config, parsed_attribute(word)) for word in words if "=" in word),
        *(partial(parsed_seeds, word) for word in words),
        *(partial(parsed_sweep, word) for word in words),
    ]
    for read in given:
        with suppress(ConfigError):
            read()


_words = st.lists(
    st.one_of(
        texts,
        st.tuples(
            st.sampled_from(["", "--", "--no_"]),
            st.sampled_from([*RECIPE, "bias.variant", "length:ratio", "word_list:name", "seed", "a"]),
            st.sampled_from(["=", ":", ""]),
            texts | st.sampled_from(["0.5", "nan", "1e999", "[1, 2]", "a;b", "true"]),
        ).map("".join),
    ),
    max_size=4,
)
_export_names = (
    "multipref.jsonl",
    "label_studio.json",
    "argilla_flat.jsonl",
    "argilla_nested.json",
    "prodigy.jsonl",
    "arena.json",
    "prism_conversations.jsonl",
    "ultrafeedback.jsonl",
)
_formats = st.none() | st.none() | st.sampled_from([*FORMATS, "table"])


def _exports(*names: str) -> st.SearchStrategy[tuple[Any, str | None]]:
    changed = [changed_json(_export(name)).filter(lambda value: isinstance(value, list)) for name in names]
    return st.tuples(st.one_of(changed), _formats)


_export_bytes = st.sampled_from(_export_names).flatmap(
    lambda name: mutated_bytes(json.dumps(_export(name)).encode())
)


def _configured(config: dict[str, Any]) -> None:
    attribute = attribute_from_config(config)
    assert isinstance(attribute.name, str) and math.isfinite(attribute.threshold)
    if attribute.scope == "response" and config["type"] != "length_tokens":
        assert math.isfinite(float(attribute.measure("Why?", "So.\n- it is")))


_configs = st.fixed_dictionaries(
    {"type": st.sampled_from([*BUILT_IN, "no such"])},
    optional={
        "name": texts | scalars,
        "ratio": numbers | texts,
        "threshold": numbers | texts,
        "unit": numbers,
        "names": st.lists(scalars, max_size=3) | scalars,
        "words": st.lists(texts, max_size=3) | scalars,
        "pattern": texts | st.sampled_from(["(", "(?i)a", "a{99999}", "(?P<a>)(?P<a>)", "\\", "[z-a]"]),
        "a": texts,
        "b": texts | scalars,
        "tokenizer": st.just("nowhere"),
        "continuous": scalars,
        "scope": st.sampled_from(["response", "pair", "judgment", "no such", None]),
    },
)

TARGETS = {
    "attributes from configurations": Target(_configs, refusing(_configured), 60),
    "judgments from rows": Target(vote_rows(), refusing(_read_judgments), 40),
    "judgments from files": Target(table_files(), refusing(_read_file), 60),
    **{
        f"importer, {name.partition('.')[0]}": Target(_exports(name), refusing(_import), 12)
        for name in _export_names
    },
    "importers, damaged files": Target(_export_bytes, refusing(_import_file), 30),
    "recipe, changed values": Target(changed_json(RECIPE), refusing(_read_recipe_keys), 80),
    "recipe, damaged text": Target(mutated_bytes(RECIPE_TEXT), refusing(_read_recipe_bytes), 30),
    "prompts of an anchor": Target(_prompt_files(), refusing(_read_prompts), 40),
    "command line": Target(_words, refusing(_command_line), 60),
    "values on the command line": Target(texts | _VALUES.map(str), parse_value, 150),
}
