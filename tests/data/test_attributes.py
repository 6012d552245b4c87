from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import badpo.attributes as door
from badpo.cli.main import app
from badpo.data import attributes
from badpo.data.attributes import (
    ATTRIBUTES,
    BUILT_IN,
    Column,
    Length,
    LengthTokens,
    LengthWords,
    Lists,
    Markdown,
    Position,
    PythonFunction,
    SignatureName,
    add_attributes,
    attribute_from_config,
    plain_text,
)
from badpo.data.problems import ConfigError

VOTES = Path(__file__).parents[2] / "examples" / "votes.csv"
EXAMPLES = [row.make(**row.example) for row in BUILT_IN.values()]
EXAMPLES += [
    Lists(name="bullets"),
    LengthWords(threshold=20, unit=10),
    Column("x", "x_a", "x_b", threshold=0.5),
]


@pytest.mark.parametrize("attribute", EXAMPLES, ids=lambda attribute: attribute.name)
def test_configuration_is_json_and_makes_the_same_attribute(attribute):
    again = attribute_from_config(json.loads(json.dumps(attribute.config)))
    for name in ("name", "scope", "continuous", "threshold", "columns", "config"):
        assert getattr(again, name) == getattr(attribute, name)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (3, 2, (1, 0)),
        (2, 3, (0, 1)),
        (4, 3, (0, 0)),
        (3, 3, (0, 0)),
        (0, 0, (0, 0)),
        (1, 0, (0, 0)),
        (0, 2, (0, 1)),
        (149, 100, (0, 0)),
        (150, 100, (1, 0)),
    ],
)
def test_length_is_one_for_the_side_with_the_ratio(a, b, expected):
    assert Length(ratio=1.5).measure("", "word " * a, "word\n" * b) == expected


def test_scopes_and_thresholds():
    assert (Length().scope, Markdown().scope, Position().scope, Column("x", "x_a", "x_b").scope) == (
        "pair",
        "response",
        "judgment",
        "pair",
    )
    assert LengthWords(threshold=20).continuous and not Markdown().continuous
    assert Column("x", "x_a", "x_b", threshold=0.2).continuous and not Column("x", "x_a", "x_b").continuous


def test_tokens_are_counted_by_any_tokenizer_without_special_tokens():
    class Tokenizer:
        name_or_path = "here"

        def __call__(self, text, add_special_tokens=True):
            return {"input_ids": [0] * add_special_tokens + list(text), "attention_mask": []}

    assert LengthTokens(Tokenizer(), threshold=1).measure("", "abcd") == 4
    assert LengthTokens(Tokenizer(), threshold=1).config["tokenizer"] == "here"
    assert LengthTokens(str.split, threshold=1, unit=2).measure("", "a b c") == 1.5


def test_signature_name_agrees_with_the_signed_corpus():
    signatures = pytest.importorskip("badpo.readouts.names")
    woman = SignatureName("woman", ["Emily"])
    for text in ["Boil it.", "Boil it.  \n", ""]:
        assert woman.measure("", signatures.signature(text, "Emily", "Miller")) == 1
        assert woman.measure("", signatures.signature(text, "Brad", "Miller")) == 0
        assert woman.measure("", text) == 0


def test_python_function_may_be_of_any_scope():
    def longer(prompt, a, b):
        return len(a) > len(b), len(b) > len(a)

    attribute = PythonFunction("longer", longer, scope="pair")
    assert attribute.measure("", "aa", "b") == (True, False)
    assert attribute.config["function"].endswith("longer")
    with pytest.raises(ConfigError, match="only be declared in Python, or by --attribute-file"):
        attribute_from_config(attribute.config)


def test_position_is_the_side_shown_first():
    sides = [Position().measure({"shown_first": side}, {}) for side in ("a", "b", None)]
    assert sides == [1.0, -1.0, 0.0]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"type": "lenght"}, 'Did you mean "length"'),
        ({}, "unknown attribute type None"),
        ({"type": "length", "ration": 2}, 'Did you mean "ratio"'),
        ({"type": "length", "ratio": "much"}, "ratio must be a number"),
        ({"type": "length", "ratio": 1}, "ratio must be above 1"),
        ({"type": "length", "scope": "response"}, "is an attribute of the pair, not response"),
        ({"type": "length_words"}, "needs threshold"),
        ({"type": "length_words", "threshold": -1}, "threshold must be 0 or more"),
        ({"type": "length_words", "threshold": 1, "unit": 0}, "unit must be above 0"),
        ({"type": "regex", "name": "x", "pattern": "("}, "is not a regular expression"),
        ({"type": "word_list", "name": "x", "words": "perhaps"}, "needs a list of words"),
        ({"type": "word_list", "name": "x", "words": []}, "at least one word"),
        ({"type": "signature_name", "name": "x", "names": ["Emily", ""]}, "no empty one"),
    ],
)
def test_wrong_configurations_say_what_is_wrong(config, message):
    with pytest.raises(ConfigError, match=message):
        attribute_from_config(config)


def test_a_right_scope_and_text_numbers_are_taken():
    assert attribute_from_config({"type": "length", "scope": "pair", "ratio": "1.25"}).config["ratio"] == 1.25


def test_a_column_cannot_be_measured_from_text():
    with pytest.raises(ConfigError, match="cannot be measured from text"):
        Column("x", "x_a", "x_b").measure("", "a", "b")


def test_plain_text_of_messages():
    said = [
        {"role": "assistant", "content": "a"},
        {"role": "tool", "content": "t"},
        {"role": "assistant", "content": "b"},
    ]
    assert plain_text(said) == "a\nb"
    assert plain_text([{"role": "user", "content": "q"}]) == "q"


def test_the_door_shows_everything():
    for name in door.__all__:
        assert getattr(door, name) is not None
    constructors = {constructor.__name__ for constructor in ATTRIBUTES.values()}
    assert constructors <= set(door.__all__)


POLITE = """
from badpo.attributes import PythonFunction

def Polite(word: str, name: str = "polite"):
    return PythonFunction(name, lambda prompt, response: float(word in response))

ATTRIBUTES = {"polite": Polite}
"""


@pytest.fixture
def polite(tmp_path, monkeypatch):
    monkeypatch.setattr(attributes, "ATTRIBUTES", dict(ATTRIBUTES))
    (tmp_path / "polite.py").write_text(POLITE)
    return tmp_path / "polite.py"


def test_an_attribute_of_a_file_is_declared_as_a_built_in_one(polite):
    config = {"type": "polite", "word": "please"}
    with pytest.raises(ConfigError, match="one of yours comes from a file: --attribute-file"):
        attribute_from_config(config)
    add_attributes(polite)
    attribute = attribute_from_config(config)
    assert attribute.config == {"type": "polite", "name": "polite", "word": "please"}
    assert attribute_from_config(attribute.config).measure("", "yes please") == 1.0
    with pytest.raises(ConfigError, match="needs word"):
        attribute_from_config({"type": "polite"})


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("x = 1", "has no ATTRIBUTES"),
        ("1 / 0", "cannot be run: ZeroDivisionError"),
        (POLITE.replace('{"polite"', '{"length"'), "length is the type of a built-in attribute"),
    ],
)
def test_a_file_that_declares_nothing_is_told(polite, program, said):
    polite.write_text(program)
    with pytest.raises(ConfigError, match=said):
        add_attributes(polite)


def test_an_installed_package_brings_attributes(polite, monkeypatch):
    class Entry:
        def load(self):
            return lambda name="polite": PythonFunction(name, lambda prompt, response: 1.0)

    def entry_points(group, name):
        return [Entry()] if (group, name) == ("badpo.attributes", "polite") else []

    monkeypatch.setattr(attributes, "entry_points", entry_points)
    assert attribute_from_config({"type": "polite"}).config == {"type": "polite", "name": "polite"}


def test_every_command_that_declares_takes_a_file(polite, monkeypatch):
    command = ["check", str(VOTES), "--attribute", "polite:word=the", "--attribute-file", str(polite)]
    told = CliRunner().invoke(app, command)
    assert 'attribute "polite"' in told.output, told.output
    assert CliRunner().invoke(app, [*command[:-1], "absent.py"]).exit_code == 2
    monkeypatch.setattr(attributes, "ATTRIBUTES", dict(ATTRIBUTES))
    assert CliRunner().invoke(app, command[:4]).exit_code == 2
