"""Inputs that once crashed, as plain tests: each is taken, or refused with an error of ours that says what to do."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from badpo.anchoring.source import read_prompts
from badpo.attributes import Length
from badpo.auditing.audit import audit
from badpo.data.judgments import Judgments
from badpo.data.privacy import direct_identifiers
from badpo.data.problems import ConfigError, DataError
from badpo.data.yaml_files import parse_value, read_yaml
from badpo.estimation.pool import offline_log_odds
from badpo.estimation.significance import pool_agreement
from badpo.importers.fields import personal_fields
from badpo.importers.formats import import_votes
from badpo.readouts.judge import strip_markdown
from badpo.theory.tilt import fit_calibration
from badpo.training.checkpoints import write_json
from badpo.training.recipe import read_recipe

ROW = {"prompt": "Why?", "chosen": "It just is so.", "rejected": "So."}
DEEP = 3_000
HALF_A_PAIR = "\ud800"
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


def said_of(source) -> str:
    with pytest.raises(DataError) as refused:
        Judgments.read(source)
    return str(refused.value)


def written(path, content: str | bytes):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("name", ["votes.json", "votes.jsonl"])
@pytest.mark.parametrize(
    ("content", "said"),
    [('{"a":' * DEEP, "recursion"), ('{"a": ' + "9" * 5_000 + "}", "digits")],
)
def test_json_that_python_gives_up_on(tmp_path, name, content, said):
    path = written(tmp_path / name, content if name == "votes.jsonl" else f"[{content}")
    assert said in said_of(path) and "E102" in said_of(path)


@pytest.mark.parametrize(
    ("metadata", "said"),
    [*(({"badpo.dropped": told}, "at import") for told in ("5", '[{"n": "x"}]', "[")), ({"pandas": "{"}, "")],
)
def test_what_stands_beside_a_table_and_is_damaged(tmp_path, metadata, said):
    pq.write_table(pa.Table.from_pylist([ROW]).replace_schema_metadata(metadata), tmp_path / "votes.parquet")
    if said:
        assert "what an earlier import left out are damaged" in said_of(tmp_path / "votes.parquet")
    else:  # what pandas wrote does not matter
        assert Judgments.read(tmp_path / "votes.parquet").n_votes == 1


def test_names_of_models_that_are_no_names_do_not_keep_a_table_from_being_written(tmp_path):
    rows = [ROW | {"model_a": a, "model_b": "m", "note": note} for a, note in ((False, 1), ("m", "x"))]
    judgments = Judgments.read(rows)
    judgments.to_parquet(tmp_path / "votes.parquet")
    assert "model_a" not in judgments.votes
    with pytest.raises(DataError, match='keep: "note" holds values of several kinds'):
        Judgments.read(rows, keep=["note"])


@pytest.mark.parametrize("extras", [(1, "x"), ({}, {}), (10**400, 1)])
def test_fields_of_messages_that_no_column_can_hold_are_said_when_writing(tmp_path, extras):
    rows = [
        {name: [{"role": "user", "content": text, "extra": extra}] for name, text in ROW.items()}
        for extra in extras
    ]
    with pytest.raises(DataError, match="fields besides role and content"):
        Judgments.read(rows).to_parquet(tmp_path / "votes.parquet")
    assert [path for path in tmp_path.iterdir() if path.suffix != ".lock"] == []


IDS = ["annotator", "annotator_class", "comparison_id", "prompt_id", "judgment_id"]


@pytest.mark.parametrize("column", IDS)
def test_an_id_that_is_no_text(tmp_path, column):
    rows = [
        {"prompt": f"q{i}", "response_a": "It just is so.", "response_b": "So.", "winner": "ab"[i % 2]}
        | dict.fromkeys(IDS[:2], "1")
        | dict.fromkeys(IDS[2:], i)
        for i in range(4)
    ]
    for row in rows if column == "annotator_class" else rows[:1]:
        row[column] = HALF_A_PAIR
    Judgments.read(rows).to_parquet(tmp_path / "votes.parquet")
    assert Judgments.read(tmp_path / "votes.parquet").n_votes == 4
    audit(rows, [Length()]).write(tmp_path / "audit")


def test_the_name_of_a_column_that_is_no_text(tmp_path):
    rows = [ROW | {HALF_A_PAIR: 1}]
    for source in (written(tmp_path / "votes.json", json.dumps(rows)), rows):
        for read in (Judgments.read, import_votes):
            with pytest.raises(DataError, match="half of a surrogate pair"):
                read(source)


@pytest.mark.parametrize("extra", [b"\xff", {1: "a", "b": 2}, pd.Timestamp(0)])
def test_a_field_of_a_message_that_is_no_json(extra):
    answer = [{"role": "assistant", "content": "So.", "extra": extra}]
    row = {"prompt": [{"role": "user", "content": "Why?"}], "chosen": answer, "rejected": answer}
    assert "beside its content" in said_of([row])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max_steps: " + "[" * DEEP, "nested too deep"),
        ("a: &a [*a]\n", "an alias (*name) is not read"),
        (BOMB, "an alias (*name) is not read"),
        ("a: " + "9 " * 100_000, "more than 200,000 characters"),
        ("seed: !!timestamp x\n", "a tag (!name) is not read"),
        ("\x01", "not valid YAML"),
        ("seed: !!int a\n", "not valid YAML"),
        ("seed: 2001-99-99\n", "not valid YAML"),
        ("seed: " + "9" * 5_000 + "\n", "not valid YAML"),
    ],
)
def test_yaml_that_python_gives_up_on(tmp_path, text, said):
    with pytest.raises(ConfigError, match="E208 run.yaml") as refused:
        read_yaml(written(tmp_path / "run.yaml", text))
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "text",
    ["5: a\n", ".nan: a\n", "bias: {5: a}\n", "attributes: [{type: length, 5: a}]\n", "null: {a: b}\n"],
)
def test_a_key_that_is_no_text_is_one_that_is_not_known(tmp_path, text):
    with pytest.raises(ConfigError, match=r"unknown key|has no parameter|keys should be strings"):
        read_recipe(written(tmp_path / "run.yaml", text))


@pytest.mark.parametrize("text", ["!!int a", "2001-99-99", "[" * DEEP])
def test_a_value_of_the_command_line_that_is_no_yaml_is_text(text):
    assert parse_value(text) == text


@pytest.mark.parametrize(
    "keys",
    [
        *({"preset": ["paper-0.5b"]}, {"seed": float("inf")}, {"use_peft": "maybe"}),
        *(
            {"attributes": [{"type": "length", **more}]}
            for more in ({"type": ["length"]}, {"ratio": 10**400}, {"name": HALF_A_PAIR}, {"name": ["x"]})
        ),
        {"attributes": [{"type": "regex", "name": "q", "pattern": 5}]},
        {"attributes": [{"type": "word_list", "name": "x", "words": 5}]},
        {"attributes": [{"type": "column", "name": "x", "a": 1, "b": 2}]},
    ],
)
def test_values_of_a_recipe_of_another_kind(keys):
    with pytest.raises(ConfigError):
        read_recipe(overrides=keys)


def test_a_message_does_not_obey_what_it_quotes():
    with pytest.raises(ConfigError) as refused:
        read_recipe(overrides={"\x1b[2J" + HALF_A_PAIR: 1})
    assert "\x1b" not in str(refused.value) and r"1b[2J\ud800" in str(refused.value)
    str(refused.value).encode()


def test_prompts_that_agree_exactly_are_no_certainty():
    (found,) = offline_log_odds([1, -1] * 2, [[1]] * 4, [[True]] * 4, [0, 0, 1, 1])
    assert found.log_odds == 0 and found.interval(naive=True)[0] is not None
    assert (found.se_clustered, found.ci_low, found.ci_high, found.p_value) == (None, None, None, None)
    agreed = pool_agreement([0, 0, 1, 1], [1, 1, 1, 1], [0, 1, 0, 1])
    assert agreed.percent == agreed.high == 1 and agreed.low < 0.5


def leaning(n_prompts: int, winners: str) -> list[dict]:
    """One vote of each winner on each prompt, the longer answer on the left and first."""
    texts = {"response_a": "It just is so.", "response_b": "So.", "shown_first": "a"}
    return [
        texts | {"prompt": f"q{p}", "winner": w, "annotator": w} for p in range(n_prompts) for w in winners
    ]


def test_the_audit_of_prompts_that_agree_exactly(tmp_path):
    found = audit(leaning(2, "ab"), [Length()])
    (length,) = found.summary["attributes"]
    assert length["interval"] == "naive only" and length["ci_low"] is None
    position = found.summary["data"]["position"]
    assert (position["first_wins"], position["ci_low"], position["ci_high"]) == (0.5, None, None)
    found.write(tmp_path)


@pytest.mark.parametrize("winner", ["a", "b"])
def test_a_side_that_always_won_has_an_interval_with_a_width(winner):
    position = audit(leaning(3, winner), [Length()]).summary["data"]["position"]
    low, high = position["ci_low"], position["ci_high"]
    assert 0.0 <= low < high <= 1.0 and position["first_wins"] in (low, high)


def test_shifts_that_differ_by_rounding_are_one_shift():
    line = fit_calibration([-6.8e-233, -6.8e-233, 0.0], [1.77, 0.0, 1.0])
    assert line.slope == 1 and np.isfinite(line.intercept)


def test_json_with_half_of_a_surrogate_pair_is_written_and_read(tmp_path):
    write_json(tmp_path / "a.json", {HALF_A_PAIR: "\N{PARTY POPPER}"})
    assert json.loads((tmp_path / "a.json").read_text()) == {HALF_A_PAIR: "\N{PARTY POPPER}"}


@pytest.mark.parametrize(
    "content",
    [
        *(b"\xff", b'{"prompt": "\\ud800"}', b"[" * DEEP, b"[]", b'{"a": 1}'),
        b'{"prompt": ' + b"9" * 5_000 + b"}",
    ],
)
def test_questions_that_are_no_texts(tmp_path, content):
    with pytest.raises((ConfigError, DataError)):
        read_prompts(written(tmp_path / "prompts.jsonl", content))


@pytest.mark.parametrize(
    "read", [lambda x: direct_identifiers([x]), lambda x: personal_fields(pd.DataFrame({"x": [x]}))]
)
def test_a_long_cell_that_begins_as_an_address_does(read):
    assert not read("a@" + "." * 60_000 + " ")
    assert read("someone@example.org")


@pytest.mark.parametrize(("unit", "left"), [("- ", ""), ("|:\n", "\n"), ("1. # ", "")])
def test_a_long_row_of_marks_is_stripped_at_once(unit, left):
    text = unit * 100_000
    assert strip_markdown(text + "x").replace("\n", "").endswith("x")
