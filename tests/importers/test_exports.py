"""Exports of other programs become votes under our names; what is no vote is counted."""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from badpo.data.judgments import Judgments
from badpo.data.privacy import pseudonyms
from badpo.data.problems import ConfigError, DataError
from badpo.data.tables import read_table
from badpo.importers.fields import Export, personal_fields
from badpo.importers.formats import FORMATS, import_file, import_votes

EXPORTS = Path(__file__).parent / "exports"
LABEL_STUDIO = Path(__file__).parents[2] / "examples" / "label_studio.json"
ALL = {
    "multipref": EXPORTS / "multipref.jsonl",
    "label-studio": LABEL_STUDIO,
    "argilla": EXPORTS / "argilla_flat.jsonl",
    "prodigy": EXPORTS / "prodigy.jsonl",
    "arena": EXPORTS / "arena.json",
    "prism": EXPORTS / "prism_conversations.jsonl",
    "ultrafeedback": EXPORTS / "ultrafeedback.jsonl",
}
NESTED = EXPORTS / "argilla_nested.json"
# of each format some columns, its votes, and what is none
NO_CHOICE, NOT_SENT, NO_PAIR = "no preference given", "not submitted", "not a pair of responses"
EXPECTED = {
    "multipref": (
        "comparison_id annotator annotator_class winner",
        "mp-1 calm_otter normal a|mp-1 brisk_heron normal tie|mp-1 wise_badger expert b|mp-1 keen_finch expert b|"
        "mp-2 calm_otter normal a|mp-2 brisk_heron normal b|mp-2 keen_finch expert a",
        {NO_CHOICE: 1},
    ),
    "label-studio": (
        "comparison_id annotator winner shown_first",
        "101 3 a a|101 7 b a|101 9 b a|102 3 a a|102 7 a a|102 9 tie a|103 3 a a",
        {NOT_SENT: 1, NO_CHOICE: 1},
    ),
    "argilla": (
        "comparison_id annotator winner",
        "r-1 u-1 a|r-1 u-2 b|r-1 u-3 tie|r-2 u-1 b",
        {NOT_SENT: 1, NO_CHOICE: 1},
    ),
    "prodigy": (
        "annotator winner shown_first",
        "pairs-kim a a|pairs-lee b a|pairs-ravi tie a|pairs-2024-02-06_10-17-19 b a",
        {NO_CHOICE: 1, NOT_SENT: 1, NO_PAIR: 1},
    ),
    "arena": (
        "annotator winner model_a",
        "arena_user_12 a model-x|arena_user_13 tie model-y|arena_user_12 b model-y",
        {NO_PAIR: 1},
    ),
    "prism": (
        "comparison_id winner model_a model_b",
        "c1-t0-0-1 b m1 m2|c1-t0-1-2 a m2 m3|c1-t0-1-3 a m2 m4|c1-t1-0-1 a m2 m2",
        {NO_CHOICE: 1},
    ),
    "ultrafeedback": ("score_chosen score_rejected", "8.5 4.0|7.0 7.0", {NO_PAIR: 1}),
}


def left_out(imported) -> Counter:
    counts: Counter = Counter()
    for entry in imported.table.dropped:
        counts[entry["reason"]] += entry["n"]
    return counts


def votes(imported, *columns: str) -> list[tuple]:
    return list(imported.table.frame[list(columns)].itertuples(index=False, name=None))


def records_of(path: Path) -> list:
    text = path.read_text()
    return (
        json.loads(text) if path.suffix == ".json" else [json.loads(line) for line in text.splitlines()]
    )


@pytest.mark.parametrize("name", FORMATS)
def test_the_votes_of_each_format(name):
    columns, rows, counts = EXPECTED[name]
    found, named = import_votes(ALL[name]), import_votes(ALL[name], format=name)
    assert found.format == named.format == name
    pd.testing.assert_frame_equal(found.table.frame, named.table.frame)
    assert "|".join(" ".join(map(str, row)) for row in votes(found, *columns.split())) == rows
    assert left_out(found) == counts
    if name == "ultrafeedback":
        assert [finding.code for finding in found.findings] == ["N147"]
        return
    judgments = Judgments.read(found.table, columns=found.columns)
    assert {str(who) for who in found.table.frame["annotator"]}.isdisjoint(
        judgments.annotators["pseudonym"]
    )
    n_ties = (found.table.frame["winner"] == "tie").sum()
    assert judgments.dropped["n"].sum() == sum(counts.values()) + n_ties


@pytest.mark.parametrize("name", [name for name in ALL if name != "label-studio"])
def test_parquet_gives_the_same_votes(name, tmp_path):
    records = records_of(ALL[name])
    if name == "argilla":  # one column holds labels and lists here, which no parquet column can
        records = [records[0] | {"preference.responses": ["response_1", "response_2", None]}]
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "export.parquet")
    imported, expected = import_votes(tmp_path / "export.parquet"), import_votes(records)
    shown = [
        name for name in ("winner", "annotator", "response_a", "chosen") if name in expected.table.frame
    ]
    assert imported.format == name and votes(imported, *shown) == votes(expected, *shown)


def test_multipref_has_texts_and_other_questions():
    imported = import_votes(ALL["multipref"])
    assert imported.table.dropped[0]["annotator"] == pseudonyms(["wise_badger"])[0]
    texts = ("How do I dry herbs?", "**Hang** them:\n- in bunches\n- in the dark", "model-y")
    assert votes(imported, "prompt", "response_b", "model_b")[0] == texts
    assert "highest_level_degree" in imported.left_behind
    other = import_votes(ALL["multipref"], columns={"winner": "helpful_pref"})
    assert set(other.table.frame["winner"]) == {"tie"}


def test_label_studio_takes_only_the_id_of_a_person():
    imported = import_votes(LABEL_STUDIO)
    tasks = records_of(LABEL_STUDIO)
    for task in tasks:
        named = {"question": "input", "text1": "answer_a", "text2": "answer_b"}
        task["data"] = {named.get(name, name): cell for name, cell in task["data"].items()}
        for annotation in task["annotations"]:
            annotation["completed_by"] = annotation["completed_by"]["id"]
    assert votes(import_votes(tasks), "annotator", "winner") == votes(imported, "annotator", "winner")


def test_label_studio_asks_which_of_two_questions():
    tasks = records_of(LABEL_STUDIO)
    results = tasks[0]["annotations"][0]["result"]
    results.append(results[0] | {"from_name": "kinder", "value": {"selected": "right"}})
    with pytest.raises(DataError, match="2 pairwise questions: better, kinder"):
        import_votes(tasks)
    imported = import_votes(tasks, columns={"winner": "kinder"})
    assert votes(imported, "annotator", "winner")[0] == ("3", "b")


def test_label_studio_names_the_fields_it_cannot_tell():
    tasks = [task | {"data": {"x": "1", "y": "2", "z": "3"}} for task in records_of(LABEL_STUDIO)]
    named = {"response_a": "x", "response_b": "y"}
    for columns, fields in (
        (None, "response_a and response_b; found: x, y, z"),
        (named, "prompt; found: z"),
    ):
        with pytest.raises(DataError, match=f"cannot tell which field is {fields}"):
            import_votes(tasks, columns=columns)
    imported = import_votes(tasks, columns=named | {"prompt": "z"})
    assert votes(imported, "prompt", "response_a")[0] == ("3", "1")


def test_argilla_nested_needs_the_question_where_there_are_two():
    with pytest.raises(DataError, match="2 questions: choice, notes"):
        import_votes(NESTED)
    with pytest.raises(DataError, match='"chioce" .for winner. is not in the export'):
        import_votes(NESTED, columns={"winner": "chioce"})
    imported = import_votes(NESTED, columns={"winner": "choice"})
    assert votes(imported, "prompt", "response_b", "winner") == [
        ("Name a river.", "The Rhine.", winner) for winner in ("a", "tie")
    ]
    assert imported.personal == ["metadata.reviewer_email"] and "metadata" in imported.left_behind
    assert "preference.suggestion" in import_votes(ALL["argilla"]).left_behind


def test_prodigy_counts_unnamed_sessions_and_falls_back_on_the_session():
    imported = import_votes(ALL["prodigy"])
    (finding,) = imported.findings
    assert (finding.code, finding.count) == ("W146", 1)
    assert votes(imported, "response_b")[0] == ("A sea inlet.",)
    records = records_of(ALL["prodigy"])
    for record in records:
        record.pop("_annotator_id", None)
    assert votes(import_votes(records), "annotator")[0] == ("pairs-kim",)
    for record in records:
        record["_session_id"] = "2024-02-06"
    (finding,) = import_votes(records).findings
    assert finding.count == len(records)


def test_arena_turns_battles_into_comparisons():
    imported = import_votes(ALL["arena"])
    assert [len(x) for (x,) in votes(imported, "response_a")] == [1, 3, 1]
    judgments = Judgments.read(imported.table)
    # the first and the third battle show the same two texts in the two orders
    assert (judgments.n_comparisons, judgments.votes["shown_first"].tolist()) == (1, ["a", "b"])
    assert "user_location" in imported.personal
    battles = records_of(ALL["arena"])
    for battle in battles:
        battle["evaluation_session_id"] = battle.pop("judge")
    assert "annotator" not in import_votes(battles).table.frame
    mapped = import_votes(battles, columns={"annotator": "evaluation_session_id"})
    assert votes(mapped, "annotator")[0] == ("arena_user_12",)


def test_prism_has_the_history_with_the_first_chosen_answer():
    imported = import_votes(ALL["prism"])
    history = imported.table.frame["prompt"].iloc[3]
    said = ["Is tea better than coffee?", "It depends.", "On what?"]
    assert [message["content"] for message in history] == said
    assert "open_feedback" in imported.personal
    (record, *_) = records_of(ALL["prism"])
    for entry in record["conversation_history"]:
        entry["if_chosen"] = (
            entry["role"] == "model"
        )  # two were chosen: the first of them is the history
    with pytest.raises(DataError, match="no vote"):
        import_votes([record])
    record["conversation_history"][-1]["if_chosen"] = False
    (first, *_) = import_votes([record]).table.frame["prompt"]
    assert [message["role"] for message in first].count("assistant") == 1


def test_a_plain_table_is_taken_as_it_is():
    rows = [
        {"prompt": "Why?", "a_text": "So.", "response_b": "No.", "winner": "a", "email": "x@example.org"}
    ]
    imported = import_votes(rows, columns={"response_a": "a_text"})
    assert imported.format == "table"
    assert (imported.left_behind, imported.personal) == (["email"], ["email"])


def test_an_unknown_table_says_what_was_looked_for():
    with pytest.raises(DataError) as caught:
        import_votes([{"question": "Why?", "good": "So.", "bad": "No."}])
    first, second = caught.value.problems
    assert (first.code, second.code) == ("E145", "E101")
    assert all(f"{name} (" in first.what for name in FORMATS)
    assert "found: question, good, bad" in second.where


def test_an_export_without_a_vote_is_told():
    tasks = records_of(LABEL_STUDIO)[:1]
    for annotation in tasks[0]["annotations"]:
        annotation["was_cancelled"] = True
    with pytest.raises(DataError, match="no vote to import \\(not submitted: 3\\)"):
        import_votes(tasks)


def test_labels_of_the_user_come_first():
    tasks = records_of(LABEL_STUDIO)
    tasks[1]["annotations"][2]["result"][0]["value"]["choices"] = ["hard to say"]
    with pytest.raises(DataError, match='unknown winner "hard to say"'):
        Judgments.read(import_votes(tasks).table)
    imported = import_votes(tasks, winners={"hard to say": "tie"})
    assert ("9", "tie") in votes(imported, "annotator", "winner")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "label-studio",
            {"columns": {"prompt": "qestion"}},
            'field "qestion" .*Did you mean "question"',
        ),
        ("argilla", {"columns": {"response_a": "x", "response_b": "y"}}, 'field "x" .for response_a'),
        ("prodigy", {"columns": {"annotator": "who"}}, 'field "who" .for annotator'),
        ("arena", {"columns": {"annotator": "jugde"}}, 'Did you mean "judge"'),
        ("multipref", {"columns": {"winner": "helpful"}}, 'Did you mean "helpful_pref"'),
        ("multipref", {"columns": {"annotator": "evaluator"}}, "annotator: MultiPref .* have no use"),
        ("prism", {"winners": {"x": "a"}}, "winners: PRISM.s conversations have no use"),
        ("prodigy", {"format": "arena"}, "known by conversation_a, conversation_b, winner"),
        ("arena", {"format": "arenas"}, 'Did you mean "arena"'),
    ],
)
def test_what_the_user_says_and_the_export_does_not_have_is_told(name, options, message):
    with pytest.raises((ConfigError, DataError), match=message):
        import_votes(ALL[name], **options)


def spoiled(value, rng: random.Random):
    """A copy of a JSON value in which something was replaced, removed or repeated."""
    value = copy.deepcopy(value)
    place, others = value, [None, 3, "text", [], {}, [None], {"id": None}, 1e300, ["a", "b"], [[]], True]
    while isinstance(place, dict | list) and place:
        key = rng.choice(list(place)) if isinstance(place, dict) else rng.randrange(len(place))
        if not isinstance(place[key], dict | list) or not place[key] or rng.random() < 0.3:
            what = rng.choice(["remove", *others])
            if what == "remove":
                del place[key]
            else:
                place[key] = what
            return value
        place = place[key]
    return value


@pytest.mark.parametrize("name", [*ALL, "argilla_nested"])
def test_a_spoiled_export_is_read_or_refused_in_words(name):
    records, columns = (
        records_of(ALL.get(name, NESTED)),
        {"winner": "choice"} if name not in ALL else None,
    )
    rng = random.Random(0)
    n_read = 0
    for _ in range(60):
        broken = spoiled(records, rng)
        broken = spoiled(broken, rng) if rng.random() < 0.5 else broken
        try:
            imported = import_votes(broken, columns=columns)
            if imported.format != "ultrafeedback":
                Judgments.read(imported.table, columns=imported.columns)
            n_read += 1
        except (ConfigError, DataError):
            pass
    assert 5 < n_read < 60


# -- fields and labels -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["text1", "text2"], ("text1", "text2")),
        (["Response A", "Response B", "prompt"], ("Response A", "Response B")),
        (["words_a", "words_b", "answer_a", "answer_b"], ("answer_a", "answer_b")),
        (["response_a", "response_b", "answer_a", "answer_b"], None),
        (["response_a", "prompt"], None),
        ([], None),
    ],
)
def test_the_fields_of_the_two_sides_and_the_prompt(names, expected):
    export = Export(read_table([{"x": 1}]))
    if expected is None:
        with pytest.raises(DataError, match="cannot tell which field is response_a and response_b"):
            export.text_fields(["Question", *names])
    else:
        assert export.text_fields(["Question", *names])[1:] == expected
    assert export.prompt_field(["context", "Question", "prompt"]) == "prompt"
    assert export.prompt_field(["id", "Question"]) == "Question"
    with pytest.raises(DataError, match="cannot tell which field is prompt; found: id, x"):
        export.prompt_field(["id", "x"])


LABELS = {
    "a": ("A", "response 1 is better", 1, "text_x", "TEXT_X", "prefer_left"),
    "b": ("b", "Response-2", "B-is-clearly-better", "right", "model_b", "prefer B", "answer_a"),
    "tie": ("Both", "tie (bothbad)", "equally good", "neither", "shrug", "bothbad"),
}


def test_one_named_side_is_asked_for_the_other():
    export = Export(read_table([{"x": 1}]), columns={"response_b": "other"})
    with pytest.raises(DataError, match="only one of response_a and response_b is named"):
        export.text_fields(["prompt", "response_a", "response_b", "other"])


def test_labels_that_the_user_exchanges_are_exchanged_once(tmp_path):
    battles = [battle | {"winner": str(battle["winner"])[-1:]} for battle in records_of(ALL["arena"])]
    battles = [battle for battle in battles if battle["winner"] in ("a", "b")]
    signs = []
    for winners in (None, {"a": "b", "b": "a"}):
        import_file(battles, tmp_path / "votes.parquet", winners=winners)
        signs.append(Judgments.read(tmp_path / "votes.parquet").votes["sign"].to_numpy())
    assert len(signs[0]) and (signs[1] == -signs[0]).all()


def test_what_a_label_means():
    export = Export(read_table([{"x": 1}]), winners={"shrug": "tie"})
    for side, labels in LABELS.items():
        # a field's name is its side even where it ends otherwise
        assert {export.side_of(label, "text_x", "answer_a") for label in labels} == {side}
    for label in ("about", "not a", "abstain", ""):
        assert export.side_of(label) == label


def test_personal_by_name_or_by_content():
    inner = np.array([{"a": 1}, {"b": {"email": 2}}], dtype=object)
    cells = {
        "reply_to": ["x", "a.b@example.org"],
        "email": ["", ""],
        "topic": ["a @ b", "c"],
        "v": [inner, None],
    }
    assert personal_fields(pd.DataFrame(cells)) == ["reply_to", "email", "v.b.email"]
