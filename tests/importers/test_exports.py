"""Exports of other programs become votes under our names; what is no vote is counted."""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from badpo.data.judgments import Judgments
from badpo.data.privacy import pseudonyms
from badpo.data.problems import ConfigError, DataError
from badpo.data.tables import read_table
from badpo.importers.fields import Export, personal_fields
from badpo.importers.formats import FORMATS, import_votes

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


def left_out(imported) -> Counter:
    counts: Counter = Counter()
    for entry in imported.table.dropped:
        counts[entry["reason"]] += entry["n"]
    return counts


def votes(imported, *columns: str) -> list[tuple]:
    return list(imported.table.frame[list(columns)].itertuples(index=False, name=None))


def changed(path: Path, tmp_path: Path, change) -> Path:
    """A copy of a JSON-lines export with every record changed."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    copy = tmp_path / path.name
    copy.write_text("".join(json.dumps(change(record)) + "\n" for record in records))
    return copy


@pytest.mark.parametrize("name", FORMATS)
def test_the_format_is_recognised_and_its_votes_are_read(name):
    found, named = import_votes(ALL[name]), import_votes(ALL[name], format=name)
    assert found.format == named.format == name
    pd.testing.assert_frame_equal(found.table.frame, named.table.frame)
    if name == "ultrafeedback":
        return
    judgments = Judgments.read(found.table, columns=found.columns)
    assert {str(who) for who in found.table.frame["annotator"]}.isdisjoint(judgments.annotators["pseudonym"])
    n_ties = (found.table.frame["winner"] == "tie").sum()
    assert judgments.dropped["n"].sum() == sum(left_out(found).values()) + n_ties


@pytest.mark.parametrize("name", [name for name in ALL if name != "label-studio"])
def test_parquet_gives_the_same_votes(name, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    text = ALL[name].read_text()
    records = json.loads(text) if ALL[name].suffix == ".json" else [json.loads(x) for x in text.splitlines()]
    if name == "argilla":  # one column holds labels, rankings and lists here, which no parquet column can
        records = [records[0] | {"preference.responses": ["response_1", "response_2", None]}]
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "export.parquet")
    imported = import_votes(tmp_path / "export.parquet")
    expected = import_votes(records)
    shown = [name for name in ("winner", "annotator", "response_a", "chosen") if name in expected.table.frame]
    assert imported.format == name
    assert votes(imported, *shown) == votes(expected, *shown)


def test_multipref_keeps_the_pools_apart_and_counts_slight_as_clear():
    imported = import_votes(ALL["multipref"])
    assert votes(imported, "comparison_id", "annotator", "annotator_class", "winner") == [
        ("mp-1", "calm_otter", "normal", "a"),
        ("mp-1", "brisk_heron", "normal", "tie"),
        ("mp-1", "wise_badger", "expert", "b"),
        ("mp-1", "keen_finch", "expert", "b"),
        ("mp-2", "calm_otter", "normal", "a"),
        ("mp-2", "brisk_heron", "normal", "b"),
        ("mp-2", "keen_finch", "expert", "a"),
    ]
    assert left_out(imported) == {"no preference given": 1}
    assert imported.table.dropped[0]["annotator"] == pseudonyms(["wise_badger"])[0]
    assert votes(imported, "prompt", "response_b", "model_b")[0] == (
        "How do I dry herbs?",
        "**Hang** them:\n- in bunches\n- in the dark",
        "model-y",
    )
    assert "highest_level_degree" in imported.left_behind


def test_multipref_can_read_another_question():
    imported = import_votes(ALL["multipref"], columns={"winner": "helpful_pref"})
    assert set(imported.table.frame["winner"]) == {"tie"}


def test_label_studio_takes_only_the_id_of_a_person():
    imported = import_votes(LABEL_STUDIO)
    assert votes(imported, "comparison_id", "annotator", "winner") == [
        ("101", "3", "a"),
        ("101", "7", "b"),
        ("101", "9", "b"),
        ("102", "3", "a"),
        ("102", "7", "a"),
        ("102", "9", "tie"),
        ("103", "3", "a"),
    ]
    assert left_out(imported) == {"not submitted": 1, "no preference given": 1}
    person = {f"annotations.completed_by.{name}" for name in ("email", "first_name", "last_name")}
    assert set(imported.personal) == person
    assert "example.org" not in imported.table.frame.to_csv()
    assert set(imported.table.frame["shown_first"]) == {"a"}


def test_label_studio_takes_bare_ids_and_finds_fields_without_the_control():
    tasks = json.loads(LABEL_STUDIO.read_text())
    for task in tasks:
        task["data"] = {
            "input": task["data"]["question"],
            "answer_a": task["data"]["text1"],
            "answer_b": task["data"]["text2"],
        }
        for annotation in task["annotations"]:
            annotation["completed_by"] = annotation["completed_by"]["id"]
            for entry in annotation["result"]:
                entry["to_name"] = "left-pane,right-pane"
    imported = import_votes(tasks)
    assert votes(imported, "annotator", "winner") == votes(import_votes(LABEL_STUDIO), "annotator", "winner")


def test_label_studio_asks_which_of_two_questions():
    tasks = json.loads(LABEL_STUDIO.read_text())
    entry = tasks[0]["annotations"][0]["result"][0]
    second = entry | {"from_name": "kinder", "value": {"selected": "right"}}
    tasks[0]["annotations"][0]["result"].append(second)
    with pytest.raises(DataError, match="2 pairwise questions: better, kinder"):
        import_votes(tasks)
    imported = import_votes(tasks, columns={"winner": "kinder"})
    assert votes(imported, "annotator", "winner")[0] == ("3", "b")


def test_label_studio_names_the_fields_it_cannot_tell():
    tasks = json.loads(LABEL_STUDIO.read_text())
    for task in tasks:
        task["data"] = {"x": "1", "y": "2", "z": "3"}
    with pytest.raises(
        DataError, match="cannot tell which field is response_a and response_b; found: x, y, z"
    ):
        import_votes(tasks)
    with pytest.raises(DataError, match="cannot tell which field is prompt; found: z"):
        import_votes(tasks, columns={"response_a": "x", "response_b": "y"})
    named = {"response_a": "x", "response_b": "y", "prompt": "z"}
    assert votes(import_votes(tasks, columns=named), "prompt", "response_a")[0] == ("3", "1")


def test_argilla_reads_labels_and_rankings():
    imported = import_votes(ALL["argilla"])
    assert votes(imported, "comparison_id", "annotator", "winner") == [
        ("r-1", "u-1", "a"),
        ("r-1", "u-2", "b"),
        ("r-1", "u-3", "tie"),
        ("r-2", "u-1", "b"),
    ]
    assert left_out(imported) == {"not submitted": 1, "no preference given": 1}
    assert "preference.suggestion" in imported.left_behind


def test_argilla_nested_needs_the_question_where_there_are_two():
    path = EXPORTS / "argilla_nested.json"
    with pytest.raises(DataError, match="2 questions: choice, notes"):
        import_votes(path)
    with pytest.raises(DataError, match='"chioce" .for winner. is not in the export'):
        import_votes(path, columns={"winner": "chioce"})
    imported = import_votes(path, columns={"winner": "choice"})
    assert votes(imported, "prompt", "response_b", "winner") == [
        ("Name a river.", "The Rhine.", "a"),
        ("Name a river.", "The Rhine.", "tie"),
    ]
    assert imported.personal == ["metadata.reviewer_email"] and "metadata" in imported.left_behind


def test_prodigy_reads_the_accepted_option():
    imported = import_votes(ALL["prodigy"])
    assert votes(imported, "annotator", "winner") == [
        ("pairs-kim", "a"),
        ("pairs-lee", "b"),
        ("pairs-ravi", "tie"),
        ("pairs-2024-02-06_10-17-19", "b"),
    ]
    assert left_out(imported) == {"no preference given": 1, "not submitted": 1, "not a pair of responses": 1}
    (finding,) = imported.findings
    assert (finding.code, finding.count) == ("W146", 1)
    assert votes(imported, "response_b", "shown_first")[0] == ("A sea inlet.", "a")


def test_prodigy_falls_back_on_the_session(tmp_path):
    path = changed(ALL["prodigy"], tmp_path, lambda r: {k: v for k, v in r.items() if k != "_annotator_id"})
    assert votes(import_votes(path), "annotator")[0] == ("pairs-kim",)


def test_arena_turns_battles_into_comparisons():
    imported = import_votes(ALL["arena"])
    assert votes(imported, "annotator", "winner", "model_a") == [
        ("arena_user_12", "a", "model-x"),
        ("arena_user_13", "tie", "model-y"),
        ("arena_user_12", "b", "model-y"),
    ]
    assert left_out(imported) == {"not a pair of responses": 1}
    assert [len(x) for (x,) in votes(imported, "response_a")] == [1, 3, 1]
    judgments = Judgments.read(imported.table)
    # the first and the third battle show the same two texts in the two orders
    assert (judgments.n_comparisons, judgments.votes["shown_first"].tolist()) == (1, ["a", "b"])
    assert "user_location" in imported.personal


def test_arena_takes_another_column_for_the_judge():
    battles = json.loads(ALL["arena"].read_text())
    for battle in battles:
        battle["evaluation_session_id"] = battle.pop("judge")
    assert "annotator" not in import_votes(battles).table.frame
    mapped = import_votes(battles, columns={"annotator": "evaluation_session_id"})
    assert votes(mapped, "annotator")[0] == ("arena_user_12",)


def test_prism_pairs_the_chosen_answer_with_the_others():
    imported = import_votes(ALL["prism"])
    assert votes(imported, "comparison_id", "winner", "model_a", "model_b") == [
        ("c1-t0-0-1", "b", "m1", "m2"),
        ("c1-t0-1-2", "a", "m2", "m3"),
        ("c1-t0-1-3", "a", "m2", "m4"),
        ("c1-t1-0-1", "a", "m2", "m2"),
    ]
    assert left_out(imported) == {"no preference given": 1}
    history = imported.table.frame["prompt"].iloc[3]
    assert [message["content"] for message in history] == [
        "Is tea better than coffee?",
        "It depends.",
        "On what?",
    ]
    assert "open_feedback" in imported.personal


def test_ultrafeedback_is_scored_pairs():
    imported = import_votes(ALL["ultrafeedback"])
    assert list(imported.table.frame) == [
        "prompt_id",
        "prompt",
        "chosen",
        "rejected",
        "score_chosen",
        "score_rejected",
    ]
    assert votes(imported, "chosen", "score_chosen")[0] == ("A good long answer to it.", 8.5)
    assert [finding.code for finding in imported.findings] == ["N147"]
    assert left_out(imported) == {"not a pair of responses": 1}


def test_a_plain_table_is_taken_as_it_is():
    rows = [{"prompt": "Why?", "a_text": "So.", "response_b": "No.", "winner": "a", "email": "x@example.org"}]
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


def test_a_forced_format_that_does_not_fit_is_told():
    with pytest.raises(DataError, match="known by conversation_a, conversation_b, winner"):
        import_votes(ALL["prodigy"], format="arena")
    with pytest.raises(ConfigError, match='Did you mean "arena"'):
        import_votes(ALL["arena"], format="arenas")


def test_an_export_without_a_vote_is_told():
    tasks = json.loads(LABEL_STUDIO.read_text())[:1]
    for annotation in tasks[0]["annotations"]:
        annotation["was_cancelled"] = True
    with pytest.raises(DataError, match="no vote to import \\(not submitted: 3\\)"):
        import_votes(tasks)


def test_labels_of_the_user_come_first():
    tasks = json.loads(LABEL_STUDIO.read_text())
    tasks[1]["annotations"][2]["result"][0]["value"]["choices"] = ["hard to say"]
    with pytest.raises(DataError, match='unknown winner "hard to say"'):
        Judgments.read(import_votes(tasks).table)
    imported = import_votes(tasks, winners={"hard to say": "tie"})
    assert ("9", "tie") in votes(imported, "annotator", "winner")


@pytest.mark.parametrize(
    ("name", "columns", "message"),
    [
        ("label-studio", {"prompt": "qestion"}, 'field "qestion" \\(for prompt\\).*Did you mean "question"'),
        ("argilla", {"response_a": "x", "response_b": "y"}, 'field "x" .for response_a'),
        ("prodigy", {"annotator": "who"}, 'field "who" .for annotator'),
        ("arena", {"annotator": "jugde"}, 'Did you mean "judge"'),
        ("multipref", {"winner": "helpful"}, 'Did you mean "helpful_pref"'),
    ],
)
def test_a_named_field_that_is_not_there_is_told(name, columns, message):
    with pytest.raises(DataError, match=message):
        import_votes(ALL[name], columns=columns)


def test_what_a_format_has_no_use_for_is_refused():
    with pytest.raises(ConfigError, match="annotator: MultiPref with its votes one by one have no use"):
        import_votes(ALL["multipref"], columns={"annotator": "evaluator"})
    with pytest.raises(ConfigError, match="winners: PRISM.s conversations have no use"):
        import_votes(ALL["prism"], winners={"x": "a"})


def spoiled(value, rng: random.Random):
    """A copy of a JSON value in which something was replaced, removed or repeated."""
    value = copy.deepcopy(value)
    place = value
    while isinstance(place, dict | list) and place:
        key = rng.choice(list(place)) if isinstance(place, dict) else rng.randrange(len(place))
        if not isinstance(place[key], dict | list) or not place[key] or rng.random() < 0.3:
            what = rng.choice(
                ["remove", None, 3, "text", [], {}, [None], {"id": None}, 1e300, ["a", "b"], [[]], True]
            )
            if what == "remove":
                del place[key]
            else:
                place[key] = what
            return value
        place = place[key]
    return value


@pytest.mark.parametrize("name", [*ALL, "argilla_nested"])
def test_a_spoiled_export_is_read_or_refused_in_words(name):
    path = ALL.get(name, next(EXPORTS.glob(f"{name}.*"), None))
    text = path.read_text()
    records = json.loads(text) if path.suffix == ".json" else [json.loads(line) for line in text.splitlines()]
    rng = random.Random(0)
    n_read = 0
    for _ in range(60):
        broken = spoiled(records, rng)
        broken = spoiled(broken, rng) if rng.random() < 0.5 else broken
        try:
            imported = import_votes(
                broken, columns={"winner": "choice"} if name == "argilla_nested" else None
            )
            if imported.format != "ultrafeedback":
                Judgments.read(imported.table, columns=imported.columns)
            n_read += 1
        except (ConfigError, DataError):
            pass
    assert 5 < n_read < 60


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


def test_what_a_label_means():
    export = Export(read_table([{"x": 1}]), winners={"shrug": "tie"})
    for side, labels in LABELS.items():
        # a field's name is its side even where it ends otherwise
        assert {label: export.side_of(label, "text_x", "answer_a") for label in labels} == dict.fromkeys(
            labels, side
        )
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
