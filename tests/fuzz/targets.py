"""Every part of the program that is fuzzed: readers take an input or refuse it in words, and no figure is none."""

import json
import re
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from hypothesis import strategies as st

from badpo.anchoring.source import read_prompts
from badpo.attributes import Bold, Column, Length, LengthWords, Markdown, Position
from badpo.auditing.audit import audit
from badpo.cli.options import parse_flags, parse_targets, split_values
from badpo.data.attributes import BUILT_IN, as_attributes
from badpo.data.checks import check
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError, DataError, is_unicode
from badpo.data.tables import read_table
from badpo.data.yaml_files import parse_value
from badpo.training.recipe import read_recipe
from badpo_paper.cli import parse_seeds
from tests.fuzz.inputs import HOSTILE, changed_json, mutated_bytes, table_files, texts, vote_rows
from tests.fuzz.running import Target

EXAMPLE = (Path(__file__).parents[2] / "examples" / "train.yaml").read_bytes()
SECRET = "secret-id"
NOT_A_NUMBER = re.compile(r"(?<![\w/])nan(?!\w)", re.IGNORECASE)
NOT_A_FIGURE = re.compile(r"(?<![\w/])[+-]?(?:nan|inf|infinity)(?!\w)", re.IGNORECASE)


def refusing(read: Callable[[Any], Any]) -> Callable[[Any], None]:
    """The check that a reader takes an input or refuses it with an error of ours that says what to do."""

    def checked(value: Any) -> None:
        try:
            read(value)
        except (ConfigError, DataError) as error:
            _presentable(str(error))
            problems = getattr(error, "problems", None)
            assert problems is None or problems
            for problem in problems or ():
                assert problem.what and problem.where and problem.remedy, problem

    return checked


def _presentable(message: str) -> None:
    assert message.strip() and message.encode("utf-8")
    assert SECRET not in message, f"a raw annotator id in a message: {message}"


def _from_file(read: Callable[[Path], Any]) -> Callable[[tuple[str, bytes]], None]:
    def checked(file: tuple[str, bytes]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"file.{file[0]}"
            path.write_bytes(file[1])
            read(path)

    return refusing(checked)


def _read_rows(rows: list[dict[str, Any]]) -> None:
    """Every row is a vote or is counted as left out, and what was read can be written and read again."""
    judgments = Judgments.read(rows, attributes=[Length(), Markdown()])
    assert judgments.n_votes + int(judgments.dropped["n"].sum()) == len(read_table(rows).frame)
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


def _read_prompts(path: Path) -> None:
    for prompt in read_prompts(path):
        assert prompt.strip() == prompt != "" and is_unicode(prompt)


BIAS = {"variant": "class", "learning_rate": 0.01, "warm_start": "offline", "gold_annotators": ["x"]}
RECIPE = yaml.safe_load(EXAMPLE) | {
    "preset": "paper-0.5b",
    "attributes": [*({"type": kind, **row.example} for kind, row in BUILT_IN.items()), "position"],
    "winners": {"left": "a"},
    "use_peft": False,
    "gradient_checkpointing": "true",
    "lora_target_modules": ["q_proj"],
    "held_out": 0.1,
    "bias": BIAS,
    "reference": {"sft": True, "num_train_epochs": 1, "balance": ["woman"]},
    "privacy": {"pseudonymise": True},
}
KEYS = [*RECIPE, "bias.variant", "length:ratio", "word_list:name", "seed", "a"]
VALUES = ["0.5", "nan", "1e999", "[1, 2]", "a;b", "true", "1:99:99"]
VALUES += ["2001-99-99", "~", "!!int a", "&a [*a]"]
OPTION = [["", "--", "--no_"], KEYS, ["=", ":", ""]]
OPTIONS = st.tuples(*map(st.sampled_from, OPTION), texts | st.sampled_from(VALUES)).map("".join)
WORDS = st.lists(texts | OPTIONS, max_size=4)


def _read_keys(keys: Any) -> None:
    if isinstance(keys, dict):
        read_recipe(overrides={str(key): value for key, value in keys.items()})


def _command_line(words: list[str]) -> None:
    """What people write behind options is understood or refused, and so is what it means."""
    given: list[Callable[[], object]] = [
        lambda: read_recipe(overrides=parse_flags(words)),
        lambda: split_values(words, "--column", "annotator=worker_id"),
        lambda: parse_targets(words),
        *(partial(as_attributes, word) for word in words if "=" in word),
        *(partial(read, word) for read in (parse_seeds, parse_value) for word in words),
    ]
    for read in given:
        with suppress(ConfigError):
            read()


RESPONSES = ("So.", "It just is so, always and for everyone.", "- it is so", "**so**", "so", "It is", "")
PRINTED = [text for text in HOSTILE if text.strip() and text.isprintable()]
CLASSES = ("", "crowd", "<b>staff</b>", *PRINTED[:8])
ATTRIBUTES = (
    *(Length(), Markdown(), Bold(), Position(), LengthWords(threshold=2, unit=10)),
    Column("x", a="x_a", b="x_b"),
)


@st.composite
def sparse_votes(draw: st.DrawFn) -> dict[str, Any]:
    """Few votes of few people on few comparisons, with options of the audit."""
    n_people, pick = draw(st.integers(1, 6)), st.sampled_from
    told = {name for name in ("annotator", "annotator_class", "shown_first") if draw(st.booleans())}
    told |= {"annotator"} if n_people > 2 else set()
    one_pair = st.tuples(pick(RESPONSES), pick(RESPONSES), st.integers(0, 5))
    pairs = draw(st.lists(one_pair, min_size=1, max_size=12))
    classes = draw(st.lists(pick(CLASSES), min_size=n_people, max_size=n_people))
    winners = draw(pick(["ab", "ab", "ab", "ab", "a"]))
    places = st.integers(0, len(pairs) - 1), st.integers(0, n_people - 1)
    one_vote = st.tuples(*places, pick(winners), pick(["a", "b", None]))
    rows = []
    for c, k, won, shown in draw(st.lists(one_vote, min_size=1, max_size=50)):
        a, b, prompt = pairs[c]
        row = {"prompt": f"q{prompt}", "response_a": a, "response_b": b, "winner": won}
        cells = {"annotator": f"p{k}", "annotator_class": classes[k], "shown_first": shown}
        row |= {name: cell for name, cell in cells.items() if name in told}
        rows.append(row | {"q_a": len(a) + c, "q_b": len(b), "x_a": float(c % 3), "x_b": 0.25})
    options = {
        "quality": draw(pick([None, None, "conditional", "marginal"])),
        "min_informative": draw(pick([1, 3, 10])),
        "anchors": draw(pick([(), (), ("p0",), ("p0", "p1")])),
    }
    chosen = draw(st.sets(st.integers(0, 5), min_size=1, max_size=3))
    return {"rows": rows, "attributes": sorted(chosen), "options": options}


def _audited(value: dict[str, Any]) -> None:
    """The audit answers or refuses in words, and no figure of it is none."""
    attributes = [ATTRIBUTES[i] for i in value["attributes"]]
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("error", RuntimeWarning)
        judgments = Judgments.read(value["rows"], attributes=attributes, keep=["q_a", "q_b"])
        result = audit(judgments, **value["options"])
        json.dumps(result.summary, allow_nan=False)
        _ordered(result.summary)
        result.write(Path(folder))
        table = (Path(folder) / "annotators.csv").read_text(encoding="utf-8")
    # a table says that the estimate of somebody who always voted one way is infinite
    for text, figures in ((str(result), NOT_A_FIGURE), (table, NOT_A_NUMBER)):
        found = figures.search(text)
        assert not found, f"...{text[max(0, found.start() - 80) : found.end() + 40]}..."


def _ordered(value: Any) -> None:
    """Every interval holds its ends in order and apart: one of no width would claim certainty."""
    if isinstance(value, dict):
        low, high = value.get("ci_low"), value.get("ci_high")
        assert low is None or high is None or low < high, value
    for entry in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _ordered(entry)


TARGETS = {
    "judgments from rows": Target(vote_rows(), refusing(_read_rows), 40),
    "judgments from files": Target(
        table_files("csv", "tsv", "jsonl", "json", "parquet"),
        _from_file(lambda path: check(Judgments.read(path, attributes=[Length()]))),
        60,
    ),
    "recipe, changed values": Target(changed_json(RECIPE), refusing(_read_keys), 60),
    "recipe, damaged text": Target(
        st.tuples(st.just("yaml"), mutated_bytes(EXAMPLE)), _from_file(read_recipe), 30
    ),
    "prompts of an anchor": Target(table_files("csv", "jsonl", "txt"), _from_file(_read_prompts), 40),
    "command line": Target(WORDS, refusing(_command_line), 250),
    "audit of sparse designs": Target(sparse_votes(), refusing(_audited), 14),
}
