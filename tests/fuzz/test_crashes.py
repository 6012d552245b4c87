"""Inputs that once crashed, as plain tests: each is taken, or refused with an error of ours that says what to do."""

import io
import json
from functools import partial

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from badpo.anchoring.source import read_prompts
from badpo.attributes import Length
from badpo.auditing.audit import audit
from badpo.data.files import write_json
from badpo.data.judgments import Judgments
from badpo.data.privacy import direct_identifiers
from badpo.data.problems import ConfigError, DataError
from badpo.data.yaml_files import parse_value, read_yaml
from badpo.estimation.log_odds import offline_log_odds
from badpo.estimation.significance import pool_agreement
from badpo.importers.convert import import_votes
from badpo.importers.export import personal_fields
from badpo.theory.tilt import fit_calibration
from badpo.training.recipe import read_recipe

ROW = {"prompt": "Why?", "chosen": "It just is so.", "rejected": "So."}
HALF_A_PAIR = "\ud800"
NESTED, DIGITS = '{"a":' * 3_000, "9" * 5_000
NAMED = json.dumps([ROW | {HALF_A_PAIR: 1}])


def parquet(text: str, name: str = "badpo.dropped") -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([ROW]).replace_schema_metadata({name: text}), sink)
    return sink.getvalue()


UNKNOWN_KEY = r"unknown key|has no parameter|keys should be strings"
DROPPED = ("5", '[{"n": "x"}]', "[")
NO_YAML = ("\x01", "seed: !!int a\n", "seed: 2001-99-99\n", f"seed: {DIGITS}\n")
ODD_KEYS = ("5: a", ".nan: a", "bias: {5: a}", "null: {a: b}", "attributes: [{type: length, 5: a}]")
NO_PROMPTS = (b"\xff", '{"prompt": "\\ud800"}', "[" * 3_000, "[]", '{"a": 1}', f'{{"prompt": {DIGITS}}}')
FILES: list[tuple] = [  # reader, file, what stands in it, what is said
    (Judgments.read, "votes.json", f"[{NESTED}", "(?s)E102.*recursion"),
    (Judgments.read, "votes.jsonl", NESTED, "(?s)E102.*recursion"),
    (Judgments.read, "votes.json", f'[{{"a": {DIGITS}}}', "(?s)E102.*digits"),
    (Judgments.read, "votes.jsonl", f'{{"a": {DIGITS}}}', "(?s)E102.*digits"),
    (Judgments.read, "votes.json", NAMED, "half of a surrogate pair"),
    (import_votes, "votes.json", NAMED, "half of a surrogate pair"),
    *((Judgments.read, "v.parquet", parquet(told), "left out is damaged") for told in DROPPED),
    (read_yaml, "run.yaml", "max_steps: " + "[" * 3_000, "E208 run.yaml(?s:.*)nested"),
    *((read_yaml, "run.yaml", text, "E208 run.yaml(?s:.*)not valid YAML") for text in NO_YAML),
    *((read_recipe, "run.yaml", text, UNKNOWN_KEY) for text in ODD_KEYS),
    *((read_prompts, "prompts.jsonl", content, None) for content in NO_PROMPTS),
]


def answered(extra) -> list[dict]:
    answer = [{"role": "assistant", "content": "So.", "extra": extra}]
    return [{"prompt": [{"role": "user", "content": "Why?"}], "chosen": answer, "rejected": answer}]


MODELS = [ROW | {"model_a": a, "model_b": "m", "note": note} for a, note in ((False, 1), ("m", "x"))]
WRONG_LENGTHS = ({"type": ["length"]}, {"ratio": 10**400}, {"name": HALF_A_PAIR}, {"name": ["x"]})
RECIPES = [
    *({"preset": ["paper-0.5b"]}, {"seed": float("inf")}, {"use_peft": "maybe"}),
    *({"attributes": [{"type": "length", **more}]} for more in WRONG_LENGTHS),
    {"attributes": [{"type": "regex", "name": "q", "pattern": 5}]},
    {"attributes": [{"type": "word_list", "name": "x", "words": 5}]},
    {"attributes": [{"type": "column", "name": "x", "a": 1, "b": 2}]},
]
EXTRAS = (b"\xff", {1: "a", "b": 2}, pd.Timestamp(0))
VALUES: list[tuple] = [
    *((read, "", json.loads(NAMED), "half of a surrogate") for read in (Judgments.read, import_votes)),
    *((Judgments.read, "", answered(extra), "E105") for extra in EXTRAS),
    (partial(Judgments.read, keep=["note"]), "", MODELS, 'column "note" holds values of several types'),
    *((lambda keys: read_recipe(overrides=keys), "", keys, None) for keys in RECIPES),
]


@pytest.mark.parametrize(("read", "name", "value", "said"), FILES + VALUES)
def test_what_is_refused(tmp_path, read, name, value, said):
    if name:
        value, content = tmp_path / name, value
        value.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises((ConfigError, DataError), match=said):
        read(value)


@pytest.mark.parametrize("extras", [(1, "x"), ({}, {}), (10**400, 1)])
def test_fields_of_messages_that_no_column_can_hold_are_said_when_writing(tmp_path, extras):
    said = [{"role": "user", "extra": extra} for extra in extras]
    rows = [{name: [one | {"content": text}] for name, text in ROW.items()} for one in said]
    with pytest.raises(DataError, match="fields besides role and content"):
        Judgments.read(rows).to_parquet(tmp_path / "votes.parquet")
    assert [path for path in tmp_path.iterdir() if path.suffix != ".lock"] == []


def test_ids_that_are_no_text(tmp_path):
    same = {"response_a": "It just is so.", "response_b": "So.", "annotator_class": HALF_A_PAIR}
    ids = ("annotator", "comparison_id", "prompt_id", "judgment_id")
    cast = [{"prompt": f"q{i}", "winner": "ab"[i % 2]} for i in range(4)]
    rows = [same | row | dict.fromkeys(ids, f"{HALF_A_PAIR}{i}") for i, row in enumerate(cast)]
    Judgments.read(rows).to_parquet(tmp_path / "votes.parquet")
    assert Judgments.read(tmp_path / "votes.parquet").n_votes == 4
    audit(rows, [Length()]).write(tmp_path / "audit")


def test_what_is_taken(tmp_path):
    # what pandas wrote does not matter
    (tmp_path / "pandas.parquet").write_bytes(parquet("{", "pandas"))
    assert Judgments.read(tmp_path / "pandas.parquet").n_votes == 1
    named = Judgments.read(MODELS)
    named.to_parquet(tmp_path / "models.parquet")
    assert "model_a" not in named.votes
    for text in ("!!int a", "2001-99-99", "[" * 3_000):
        assert parse_value(text) == text
    write_json(tmp_path / "a.json", {HALF_A_PAIR: "\N{PARTY POPPER}"})
    assert json.loads((tmp_path / "a.json").read_text()) == {HALF_A_PAIR: "\N{PARTY POPPER}"}
    line = fit_calibration([-6.8e-233, -6.8e-233, 0.0], [1.77, 0.0, 1.0])
    assert line.slope == 1 and np.isfinite(line.intercept)


def leaning(n_prompts: int, winners: str) -> list[dict]:
    """One vote of each winner on each prompt, the longer answer on the left and first."""
    texts = {"response_a": "It just is so.", "response_b": "So.", "shown_first": "a"}
    votes = [(f"q{p}", winner) for p in range(n_prompts) for winner in winners]
    return [texts | {"prompt": prompt, "winner": w, "annotator": w} for prompt, w in votes]


def test_prompts_that_agree_exactly_are_no_certainty(tmp_path):
    (found,) = offline_log_odds([1, -1] * 2, [[1]] * 4, [[True]] * 4, [0, 0, 1, 1])
    assert found.log_odds == 0 and found.interval(naive=True)[0] is not None
    assert (found.se_clustered, *found.interval(), found.p_value) == (None, None, None, None)
    agreed = pool_agreement([0, 0, 1, 1], [1, 1, 1, 1], [0, 1, 0, 1])
    assert agreed.percent == agreed.high == 1 and agreed.low < 0.5
    audited = audit(leaning(2, "ab"), [Length()])
    (length,) = audited.summary["attributes"]
    assert length["interval"] == "naive only" and length["ci_low"] is None
    audited.write(tmp_path)


@pytest.mark.parametrize(
    "read", [lambda x: direct_identifiers([x]), lambda x: personal_fields(pd.DataFrame({"x": [x]}))]
)
def test_a_long_cell_that_begins_as_an_address_does(read):
    assert not read("a@" + "." * 60_000 + " ")
    assert read("someone@example.org")
