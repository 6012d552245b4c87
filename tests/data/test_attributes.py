"""Attributes: what each measures, how it is declared, the marks it looks for, and what it finds in data."""

import json
import os
from pathlib import Path

import pytest

import badpo.attributes as door
from badpo.data import attributes, markers
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
    WordList,
    add_attributes,
    as_attributes,
    attribute_from_config,
    describe_attributes,
    plain_text,
)
from badpo.data.checks import attribute_trials
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError

VOTES = Path(__file__).parents[2] / "examples" / "votes.csv"
EXAMPLES = [row.make(**row.example) for row in BUILT_IN.values()]
EXAMPLES += [Lists("bullets"), LengthWords(threshold=20, unit=10), Column("x", "a", "b", threshold=0.5)]


@pytest.mark.parametrize("attribute", EXAMPLES, ids=lambda attribute: attribute.name)
def test_configuration_is_json_and_makes_the_same_attribute(attribute):
    again = attribute_from_config(json.loads(json.dumps(attribute.config)))
    for name in ("name", "scope", "continuous", "threshold", "columns", "config"):
        assert getattr(again, name) == getattr(attribute, name)


def test_every_attribute_has_an_example_that_works_and_stands_behind_the_door():
    rows = describe_attributes()
    assert [row["type"] for row in rows] == list(ATTRIBUTES)
    for row, attribute in zip(rows, EXAMPLES, strict=False):
        assert row["scope"] == attribute.scope
        assert row["what"].strip() and "`" not in row["what"] and row["example"].startswith(row["type"])
    assert {constructor.__name__ for constructor in ATTRIBUTES.values()} <= set(door.__all__)
    assert all(getattr(door, name) is not None for name in door.__all__)


@pytest.mark.parametrize(
    ("declared", "known"),
    [
        ("length", ["length 1.5"]),
        (Length(2), ["length 2.0"]),
        ({"type": "length", "ratio": 3}, ["length 3.0"]),
        (("length:ratio=2", Length(name="two"), "length:name=x"), ["length 2.0", "two 1.5", "x 1.5"]),
        (Length, "Length is no attribute; write Length(ratio=1.5)"),
        ([WordList], "write WordList(name='thanks', words=['thank you', 'thanks'])"),
        (str.strip, 'strip is no attribute; write PythonFunction("name", function)'),
        (["length", 2.5], '2.5 is no attribute; write "length:ratio=1.5" or Length(ratio=1.5)'),
        ("length:ratio=2,ratio=3", 'attribute "length:ratio=2,ratio=3": ratio is given twice'),
        ("length,markdown", "Declare each by itself: length, markdown. Known: length"),
        ("length:ratio=1.5, markdown", '"markdown" is an attribute of its own; declare each by itself'),
    ],
)
def test_attributes_are_declared_in_words_or_as_objects_one_or_several(declared, known):
    if isinstance(known, list):
        found = as_attributes(declared)
        assert [f"{one.name} {one.config['ratio']}" for one in found] == known
        return
    with pytest.raises(ConfigError) as error:
        Judgments.read(VOTES, attributes=declared)
    assert known in str(error.value)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        *((3, 2, (1, 0)), (2, 3, (0, 1)), (4, 3, (0, 0)), (3, 3, (0, 0)), (0, 0, (0, 0))),
        *((1, 0, (0, 0)), (0, 2, (0, 1)), (149, 100, (0, 0)), (150, 100, (1, 0))),
    ],
)
def test_length_is_one_for_the_side_with_the_ratio(a, b, expected):
    assert Length(ratio=1.5).measure("", "word " * a, "word\n" * b) == expected


def test_scopes_and_thresholds():
    column, above = Column("x", "x_a", "x_b"), Column("x", "x_a", "x_b", threshold=0.2)
    made = (Length(), Markdown(), Position(), column)
    assert [attribute.scope for attribute in made] == ["pair", "response", "judgment", "pair"]
    assert LengthWords(threshold=20).continuous and above.continuous
    assert not Markdown().continuous and not column.continuous
    sides = [Position().measure({"shown_first": side}, {}) for side in ("a", "b", None)]
    assert sides == [1.0, -1.0, None]
    assert PythonFunction("x", Judgments.read).config["function"].endswith("judgments:Judgments.read")
    with pytest.raises(ConfigError, match="the first argument of the function must be the prompt"):
        PythonFunction("turned", lambda response, prompt: 0.0)
    with pytest.raises(ConfigError, match="cannot be measured from text"):
        column.measure("", "a", "b")


def test_tokens_are_counted_by_any_tokenizer_and_messages_are_plain_text():
    class Tokenizer:
        name_or_path = "here"

        def __call__(self, text, add_special_tokens=True):
            return {"input_ids": [0] * add_special_tokens + list(text), "attention_mask": []}

    attribute = LengthTokens(Tokenizer(), threshold=1)
    assert (attribute.measure("", "abcd"), attribute.config["tokenizer"]) == (4, "here")
    assert LengthTokens(str.split, threshold=1, unit=2).measure("", "a b c") == 1.5
    said = [("assistant", "a"), ("tool", "t"), ("assistant", "b")]
    assert plain_text([{"role": role, "content": text} for role, text in said]) == "a\nb"
    assert plain_text([{"role": "user", "content": "q"}]) == "q"


def test_the_tokenizer_of_a_folder_is_its_tokenizer_json_alone(tmp_path):
    pytest.importorskip("transformers")
    from tests import tiny

    tokenizer = tiny.tokenizer()
    tokenizer.backend_tokenizer.enable_truncation(2)
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"init_inputs": ["/etc/hostname"]}')
    attribute = attribute_from_config(
        {"type": "length_tokens", "tokenizer": str(tmp_path), "threshold": 1}
    )
    assert attribute.measure("", "the cat ran home") == len(tokenizer.tokenize("the cat ran home")) == 4
    for name in ("absent", "pipe"):
        (tmp_path / name).mkdir()
    os.mkfifo(tmp_path / "pipe" / "tokenizer.json")
    for name in ("absent", "pipe"):
        with pytest.raises(ConfigError, match="is no file"):
            LengthTokens(str(tmp_path / name), threshold=1).measure("", "the cat")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"type": "lenght"}, 'Did you mean "length"'),
        ({}, "unknown attribute type None"),
        ({"type": "length", "ration": 2}, 'Did you mean "ratio"'),
        ({"type": "length", "ratio": "much"}, "ratio must be a number"),
        ({"type": "length", "ratio": 1}, "ratio must be above 1"),
        ({"type": "length_words"}, "needs threshold"),
        ({"type": "length_words", "threshold": -1}, "threshold must be 0 or more"),
        ({"type": "length_words", "threshold": 1, "unit": 0}, "unit must be above 0"),
        ({"type": "regex", "name": "x", "pattern": "("}, "is not a regular expression"),
        ({"type": "word_list", "name": "x", "words": "perhaps"}, "needs a list of words"),
        ({"type": "word_list", "name": "x", "words": []}, "at least one word"),
        ({"type": "signature_name", "name": "x", "names": ["Emily", ""]}, "no word may be empty"),
        ({"type": "python_function"}, "only in Python or with --attribute-file"),
    ],
)
def test_wrong_configurations_say_what_is_wrong(config, message):
    with pytest.raises(ConfigError, match=message):
        attribute_from_config(config)


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
    with pytest.raises(ConfigError, match="one of yours: PythonFunction or --attribute-file"):
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


APOSTROPHE, DASH = "\N{RIGHT SINGLE QUOTATION MARK}", "\N{EM DASH}"
FORMS = {  # has it, has it not
    markers.HEADER.search: (["# A", "t\n###### A", "  ## A", "#\tA"], ["#A", "####### A", "a # b", "#"]),
    markers.LIST.search: (
        ["- a", "* a", "+ a", "x\n  - a", "1. a", "a\n 12. b"],
        ["-a", "1.a", "a - b", "1) a", "\N{BULLET} a", "2024", "-", "**a**"],
    ),
    markers.BOLD.search: (
        ["**a**", "x **a b** y", "**a\nb**"],
        ["**", "****", "*a*", "**a*b**c", "a ** b"],
    ),
    markers.FENCE.search: (["```", "a```b"], ["``", "`a`"]),
    markers.TABLE.search: (["| a |", "x\n | a | b | \ny", "||"], ["a | b", "|", "| a", "|\n|"]),
}
OTHERS = {
    markers.has_hedge: (
        ["Perhaps.", "It MIGHT rain", "I think so", f"I{APOSTROPHE}m not sure it does", "it depends"],
        ["mighty", "I thinker", "You may go.", "it  seems", ""],
    ),
    markers.has_refusal: (
        [
            *("I'm sorry, but I can't help with that.", f"I{APOSTROPHE}m unable to assist you."),
            *("I cannot really discuss this.", "As an AI language model, I have no taste."),
            *("I won't write that.", "I am not able to provide it."),
        ],
        [
            *("You cannot help it.", "I can't help but laugh.", "I can't wait.", "Sorry!", ""),
            "word " * 100 + "I cannot help.",
        ],
    ),
    markers.FIRST_PERSON.search: (
        ["I say", "so do I", "I'd go", f"I{APOSTROPHE}ve been", "My town", "it is mine", "by myself"],
        ["In it", "i.e. this", "we and you", "mystery", "HIV", "", "mines"],
    ),
    markers.LINK.search: (
        ["https://example.org", "HTTP://x.y", "www.example.org", "[here](/rice)", "![](a.png)"],
        ["http", "https://", "awww.x", "f(x)[0](", "[a] (b)", "]( )", ""],
    ),
    markers.EMOJI.search: (
        ["\U0001f600", "\u2714 done", "\U0001f1eb\U0001f1f7", "\u2b50"],
        ["\u65e5\u672c", "na\u00efve \u20ac 5", "x \u2192 y", "\u2022 a"],
    ),
    markers.word_pattern(["it depends", "c++", "may"]).search: (
        ["It Depends!", "in c++ now", "MAY"],
        ["maybe", "dismay", "c+"],
    ),
}


@pytest.mark.parametrize("test", [*FORMS, *OTHERS])
def test_each_form_and_its_near_misses(test):
    positive, negative = (FORMS | OTHERS)[test]
    assert [text for text in positive if not test(text)] == []
    assert [text for text in negative if test(text)] == []
    if test in FORMS:
        assert all(map(markers.has_markdown, positive))
    assert not markers.has_markdown("Plain text, 3.5 times - really. #tag, 2 * 3 * 4; say `x`.")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((f"Done.\n\n{DASH} Emily Miller", "Emily"), (f"Done.\n {DASH} Emily Miller \n\n", "Emily")),
        *((f"Done.\n{DASH}Emily Miller", "Emily"), (f"{DASH} Emily Miller", ""), ("", "")),
        *((f"Done. {DASH} Emily Miller", ""), ("Done.\n\n\N{EN DASH} Emily Miller", "")),
        *((f"Done.\n\n{DASH} emily Miller", ""), (f"Done.\n\n{DASH} Emily", "")),
        *((f"Done.\n\n{DASH} Emily Ann Miller", ""), (f"Done.\n\n{DASH} Zo\u00eb Miller", "")),
        (f"Done.\n\n{DASH} Emily Miller\nP.S. More.", ""),
    ],
)
def test_signature_stands_at_the_very_end(text, expected):
    assert markers.split_signature(text)[1] == expected


LONGEST, MIDDLE, SHORT = "one two three four five six", "one two three four", "one two"
PAIRS = [
    *((LONGEST, SHORT, "a"), (SHORT, LONGEST, "b"), (LONGEST, SHORT, "b"), (MIDDLE, LONGEST, "b")),
    (SHORT, "eins zwei", "a"),
]


def trials(configs, **options):
    names = ("response_a", "response_b", "winner")
    rows = [dict(zip(names, pair, strict=True)) | {"prompt": f"q{i}"} for i, pair in enumerate(PAIRS)]
    return attribute_trials(Judgments.read(rows), configs, **options)


def test_counts_shares_and_examples_which_are_cut():
    (trial,) = trials([{"type": "length", "ratio": 2}])
    told = [trial[name] for name in ("attribute", "scope", "parameters", "n_cross", "cross_share")]
    assert told == ["length", "pair", {"ratio": 2.0}, 3, 0.6]
    assert trial["win_rate"] == pytest.approx(2 / 3)
    assert trial["ci_low"] < trial["log_odds"] < trial["ci_high"]
    assert trial["examples"] == {"with": [LONGEST], "without": [SHORT]}
    (none,) = trials([{"type": "length"}], n_examples=0)
    assert none["examples"] == {"with": [], "without": []}
    said = {"chosen": "word\n" * 100, "rejected": "no", "prompt": "Why?"}
    row = {name: [{"role": "assistant", "content": text}] for name, text in said.items()}
    (trial,) = attribute_trials(Judgments.read([row]), [{"type": "length"}])
    (example,) = trial["examples"]["with"]
    assert example.startswith("word word") and example.endswith("...") and len(example) == 100


def test_an_attribute_is_tried_with_several_thresholds():
    found = trials([{"type": "length", "ratio": ratio} for ratio in ("1.5", 2, 4)])  # as text, too
    assert [trial["parameters"]["ratio"] for trial in found] == [1.5, 2.0, 4.0]
    assert [trial["n_cross"] for trial in found] == [4, 3, 0] and found[-1]["win_rate"] is None
    with pytest.raises(ConfigError, match='no parameter "ration"'):
        trials([{"type": "length", "ration": 1.5}])
    with pytest.raises(ConfigError, match="name an attribute"):
        trials([])


def test_a_regular_expression_that_does_not_end_is_stopped(monkeypatch):
    monkeypatch.setattr(attributes, "_REGEX_SECONDS", 0.1)
    slow = attributes.Regex("slow", "(a+)+$")
    assert slow.measure("", "aaa") == 1.0
    with pytest.raises(ConfigError, match='"slow": the regular expression'):
        slow.measure("", "a" * 40 + "!")
