"""Exports of other programs become votes under our names; what is no vote is counted, what is personal stays behind."""

import json
import math
import re
import stat
from contextlib import suppress
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
from badpo.importers.convert import FORMATS, import_file, import_votes
from badpo.importers.export import Export, personal_fields
from tests.auditing import planted
from tests.fuzz.inputs import changed_json
from tests.fuzz.running import Target, attack

EXPORTS = Path(__file__).parent / "exports"
LABEL_STUDIO = Path(__file__).parents[2] / "examples" / "label_studio.json"
ALL = {
    "multipref": EXPORTS / "multipref.jsonl",
    "label-studio": LABEL_STUDIO,
    "argilla": EXPORTS / "argilla_flat.jsonl",
    "prodigy": EXPORTS / "prodigy.jsonl",
    "arena": EXPORTS / "arena.json",
    "prism": EXPORTS / "prism_conversations.jsonl",
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
}


def votes(source, *columns: str, **options) -> list[tuple]:
    frame = import_votes(source, **options).table.frame
    return list(frame[list(columns)].astype(object).itertuples(index=False, name=None))


def records_of(path: Path) -> list:
    text = path.read_text()
    return json.loads(text) if path.suffix == ".json" else [*map(json.loads, text.splitlines())]


@pytest.mark.parametrize("name", FORMATS)
def test_the_votes_of_each_format(name):
    columns, rows, counts = EXPECTED[name]
    found, named = import_votes(ALL[name]), import_votes(ALL[name], format=name)
    assert found.format == named.format == name
    pd.testing.assert_frame_equal(found.table.frame, named.table.frame)
    assert "|".join(" ".join(map(str, row)) for row in votes(ALL[name], *columns.split())) == rows
    assert pd.DataFrame(found.table.dropped).groupby("reason")["n"].sum().to_dict() == counts
    judgments = Judgments.read(found.table, columns=found.columns)
    people = set(judgments.annotators["pseudonym"])
    assert people.isdisjoint(map(str, found.table.frame["annotator"]))
    n_ties = (found.table.frame["winner"] == "tie").sum()
    assert judgments.dropped["n"].sum() == sum(counts.values()) + n_ties


@pytest.mark.parametrize("name", [name for name in ALL if name != "label-studio"])
def test_parquet_gives_the_same_votes(name, tmp_path):
    records, path = records_of(ALL[name]), tmp_path / "export.parquet"
    if name == "argilla":  # one column holds labels and lists here, which no parquet column can
        records = [records[0] | {"preference.responses": ["response_1", "response_2", None]}]
    pq.write_table(pa.Table.from_pylist(records), path)
    shown = ["winner", "annotator", "response_a"]
    assert import_votes(path).format == name and votes(path, *shown) == votes(records, *shown)


def test_multipref_has_texts_and_other_questions():
    imported = import_votes(ALL["multipref"])
    assert imported.table.dropped[0]["annotator"] == pseudonyms(["wise_badger"])[0]
    texts = ("How do I dry herbs?", "**Hang** them:\n- in bunches\n- in the dark", "model-y")
    assert votes(ALL["multipref"], "prompt", "response_b", "model_b")[0] == texts
    assert "highest_level_degree" in imported.left_behind
    assert set(votes(ALL["multipref"], "winner", columns={"winner": "helpful_pref"})) == {("tie",)}


def test_label_studio_takes_only_the_id_of_a_person_and_fields_by_their_names():
    tasks = records_of(LABEL_STUDIO)
    for task in tasks:
        named = {"question": "input", "text1": "answer_a", "text2": "answer_b"}
        task["data"] = {named.get(name, name): cell for name, cell in task["data"].items()}
        for annotation in task["annotations"]:
            annotation["completed_by"] = annotation["completed_by"]["id"]
    tasks[1]["annotations"][2]["result"][0]["value"]["choices"] = ["hard to say"]
    columns = ("annotator", "winner", "prompt", "response_a")
    assert votes(tasks, *columns, winners={"hard to say": "tie"}) == votes(LABEL_STUDIO, *columns)


def test_a_question_is_asked_for_where_there_are_two():
    tasks = records_of(LABEL_STUDIO)
    results = tasks[0]["annotations"][0]["result"]
    results.append(results[0] | {"from_name": "kinder", "value": {"selected": "right"}})
    for export, questions in ((tasks, "better, kinder"), (NESTED, "choice, notes")):
        with pytest.raises(DataError, match=f"2 questions: {questions}"):
            import_votes(export)
    assert votes(tasks, "annotator", "winner", columns={"winner": "kinder"})[0] == (3, "b")
    with pytest.raises(DataError, match='"chioce" .for winner. is not in the export'):
        import_votes(NESTED, columns={"winner": "chioce"})
    choice = {"winner": "choice"}
    assert votes(NESTED, "prompt", "response_b", "winner", columns=choice) == [
        ("Name a river.", "The Rhine.", winner) for winner in ("a", "tie")
    ]
    imported = import_votes(NESTED, columns=choice)
    assert imported.personal == ["metadata.reviewer_email"] and "metadata" in imported.left_behind
    assert "preference.suggestion" in import_votes(ALL["argilla"]).left_behind


def test_prodigy_counts_unnamed_sessions_and_falls_back_on_the_session():
    (finding,) = import_votes(ALL["prodigy"]).findings
    assert (finding.code, finding.count) == ("W146", 1)
    assert votes(ALL["prodigy"], "response_b")[0] == ("A sea inlet.",)
    records = records_of(ALL["prodigy"])
    for record in records:
        record.pop("_annotator_id", None)
    assert votes(records, "annotator")[0] == ("pairs-kim",)
    (finding,) = import_votes([record | {"_session_id": "2024-02-06"} for record in records]).findings
    assert finding.count == len(records)
    with pytest.raises(DataError, match="no vote to import .not submitted: 7"):
        import_votes([record | {"answer": "ignore"} for record in records])


def test_arena_turns_battles_into_comparisons():
    imported = import_votes(ALL["arena"])
    assert [len(x) for (x,) in votes(ALL["arena"], "response_a")] == [1, 3, 1]
    judgments = Judgments.read(imported.table)
    # the first and the third battle show the same two texts in the two orders
    assert (judgments.n_comparisons, judgments.votes["shown_first"].tolist()) == (1, ["a", "b"])
    assert "user_location" in imported.personal
    battles = records_of(ALL["arena"])
    by_model = import_votes([battle | {"judge": "gpt4_pair"} for battle in battles]).table
    assert Judgments.read(by_model).annotators["model"].tolist() == ["gpt4_pair"]
    for battle in battles:
        battle["evaluation_session_id"] = battle.pop("judge")
    assert "annotator" not in import_votes(battles).table.frame
    mapped = votes(battles, "annotator", columns={"annotator": "evaluation_session_id"})
    assert mapped[0] == ("arena_user_12",)


def test_prism_has_the_history_with_the_first_chosen_answer():
    history = votes(ALL["prism"], "prompt")[3][0]
    said = ["Is tea better than coffee?", "It depends.", "On what?"]
    assert [message["content"] for message in history] == said
    assert "open_feedback" in import_votes(ALL["prism"]).personal
    (record, *_) = records_of(ALL["prism"])
    for entry in record["conversation_history"]:  # two were chosen: the first of them is the history
        entry["if_chosen"] = entry["role"] == "model"
    with pytest.raises(DataError, match="no vote to import"):
        import_votes([record])
    record["conversation_history"][-1]["if_chosen"] = False
    ((first,), *_) = votes([record], "prompt")
    assert [message["role"] for message in first].count("assistant") == 1


def test_a_plain_table_is_taken_as_it_is_and_an_unknown_one_is_refused(tmp_path):
    texts = {"prompt": "Why?", "a_text": "So.", "response_b": "No.", "winner": "a"}
    imported = import_votes([texts | {"email": "x@example.org"}], columns={"response_a": "a_text"})
    assert (imported.format, imported.left_behind, imported.personal) == ("table", ["email"], ["email"])
    with pytest.raises(DataError) as caught:
        import_file([{"question": "Why?", "good": "So.", "bad": "No."}], tmp_path / "votes.parquet")
    (problem,) = caught.value.problems
    assert problem.code == "E101" and "found: question, good, bad" in problem.where


def test_labels_that_the_user_exchanges_are_exchanged_once(tmp_path):
    battles = [battle | {"winner": str(battle["winner"])[-1:]} for battle in records_of(ALL["arena"])]
    battles = [battle for battle in battles if battle["winner"] in ("a", "b")]
    signs = []
    for winners in (None, {"a": "b", "b": "a"}):
        import_file(battles, tmp_path / "votes.parquet", winners=winners)
        signs.append(Judgments.read(tmp_path / "votes.parquet").votes["sign"].to_numpy())
    assert len(signs[0]) and (signs[1] == -signs[0]).all()


TOLD = [  # export, options, what is said
    ("label-studio", {"columns": {"prompt": "qestion"}}, 'field "qestion" .*Did you mean "question"'),
    ("argilla", {"columns": {"response_a": "x", "response_b": "y"}}, 'field "x" .for response_a'),
    ("prodigy", {"columns": {"annotator": "who"}}, 'field "who" .for annotator'),
    ("arena", {"columns": {"annotator": "jugde"}}, 'Did you mean "judge"'),
    ("multipref", {"columns": {"winner": "helpful"}}, 'Did you mean "helpful_pref"'),
    ("multipref", {"columns": {"annotator": "evaluator"}}, "^annotator: .* MultiPref"),
    ("prism", {"winners": {"x": "a"}}, "^winners: .* PRISM"),
    ("prodigy", {"format": "arena"}, ": conversation_a, conversation_b, winner"),
    ("arena", {"format": "arenas"}, 'Did you mean "arena"'),
]


@pytest.mark.parametrize(("name", "options", "message"), TOLD)
def test_what_the_user_says_and_the_export_does_not_have_is_told(name, options, message):
    with pytest.raises((ConfigError, DataError), match=message):
        import_votes(ALL[name], **options)


@pytest.mark.parametrize("name", [*ALL, "argilla_nested"])
def test_a_spoiled_export_is_read_or_refused_in_words(name):
    columns, taken = None if name in ALL else {"winner": "choice"}, []

    def read(broken: object) -> None:
        with suppress(ConfigError, DataError):
            imported = import_votes(broken, columns=columns)
            Judgments.read(imported.table, columns=imported.columns)
            taken.append(imported.format)

    spoiled = Target(changed_json(records_of(ALL.get(name, NESTED))), read, share=1)
    found = attack(spoiled, 60, first_seed=0, budget_seconds=math.inf)
    assert not found.crashes, "\n\n".join(found.crashes.values())
    assert 5 < len(taken) < found.n_inputs == 60


UNKNOWN = "badpo recognizes none of the fields as "
FIELDS = [  # names, what the user says of them, and which are taken, or what is asked
    ("Question|my_answer_a|my_answer_b|answer_a|answer_b", {}, "Question|answer_a|answer_b"),
    (
        "Question|response_a|prompt",
        {},
        f"{UNKNOWN}response_a or response_b; the fields are: Question, resp",
    ),
    ("x|y|z", {"response_a": "x", "response_b": "y"}, f"{UNKNOWN}prompt; the fields are: z"),
    ("x|answer_a|answer_b", {"prompt": "x"}, "x|answer_a|answer_b"),
    (
        "prompt|response_a|other",
        {"response_b": "other"},
        ": --column response_a=... --column response_b",
    ),
]


@pytest.mark.parametrize(("names", "told", "found"), FIELDS)
def test_the_fields_of_the_prompt_and_the_two_sides(names, told, found):
    export = Export(read_table([{"x": 1}]), columns=told)
    if "|" in found:
        assert "|".join(export.find_text_fields(names.split("|")).values()) == found
    else:
        with pytest.raises(DataError, match=re.escape(found)):
            export.find_text_fields(names.split("|"))


def test_what_a_label_means():
    # a field's name is its side even where it ends otherwise
    sides, winners = ("text_x", "answer_a"), {"shrug": "tie", "left": "b"}
    export = Export(read_table([{"x": 1}]), winners=winners, sides=sides)
    meant = {"text_x": "a", "TEXT_X": "a", "answer_a": "b", "left": "b", "shrug": "tie", 1: "a"}
    meant |= {"Response-2": "b", "tie (bothbad)": "tie", "abstain": "abstain"}
    assert {label: export.side_of(label) for label in meant} == meant


def test_personal_by_name_or_by_content():
    inner = np.array([{"a": 1}, {"b": {"email": 2}}], dtype=object)
    cells = {"reply_to": ["x", "a.b@example.org"], "email": ["", ""], "topic": ["a @ b", "c"]}
    frame = pd.DataFrame(cells | {"v": [inner, None]})
    assert personal_fields(frame) == ["reply_to", "email", "v.b.email"]


def test_what_was_imported_is_told_and_a_mapping_is_written_when_asked_for_one_reader(tmp_path):
    told = import_file(LABEL_STUDIO, tmp_path / "judgments.parquet")
    counts = {"judgments": 6, "annotators": 3, "comparisons": 3}
    assert told | counts | {"mapping": None} == told
    names = ("email", "first_name", "last_name")
    assert told["personal"] == [f"annotations.completed_by.{name}" for name in names]
    dropped = {row["reason"]: row["n"] for row in told["dropped"]}
    assert dropped == {NOT_SENT: 1, NO_CHOICE: 1, "tie": 1}
    written = sorted(path.name for path in tmp_path.glob("[!.]*"))
    assert written == ["judgments.parquet", "judgments.parquet.sha256"]
    mapping, out = tmp_path / "private" / "who.json", tmp_path / "j.parquet"
    assert import_file(LABEL_STUDIO, out, mapping=mapping)["mapping"] == str(mapping)
    assert stat.S_IMODE(mapping.stat().st_mode) == 0o600
    ids = ["3", "7", "9"]
    assert json.loads(mapping.read_text()) == dict(zip(pseudonyms(ids), ids, strict=True))
    # the same command again changes nothing; another table has another mapping
    content = mapping.read_bytes()
    import_file(LABEL_STUDIO, out, mapping=mapping)
    assert mapping.read_bytes() == content
    mapping.write_text("{}")
    for taken, told in {
        mapping: "does not overwrite",
        tmp_path / "x.parquet": "JSON",
    }.items():
        with pytest.raises(ConfigError, match=told):
            import_file(LABEL_STUDIO, tmp_path / "x.parquet", mapping=taken)


def test_a_kept_column_that_names_annotators_is_told_and_one_about_votes_is_not(tmp_path):
    table = planted.votes(40, 6)[0]
    badges = {name: f"K{i}" for i, name in enumerate(sorted(set(table["annotator"])))}
    table["badge"], table["score"], table["copy"] = table["annotator"].map(badges), 1, table["annotator"]
    table.to_csv(tmp_path / "votes.csv", index=False)
    told = import_file(tmp_path / "votes.csv", tmp_path / "j.parquet", keep=["badge", "score", "copy"])
    (found,) = [problem for problem in told["problems"] if problem.code == "W303"]
    assert found.what.startswith("badge: ")


def test_nothing_is_written_when_the_table_or_a_choice_is_wrong(tmp_path):
    texts = {"prompt": "Why?", "response_a": "So.", "response_b": "No."}
    cast = zip("aba", ("1", None, "3"), strict=True)
    rows = [texts | {"winner": winner, "annotator": who} for winner, who in cast]
    with pytest.raises(DataError, match="no annotator"):
        import_file(rows, tmp_path / "j.parquet")
    with pytest.raises(ConfigError, match=r"must end in \.parquet"):
        import_file(LABEL_STUDIO, tmp_path / "j.csv")
    nobodys = [{"prompt": "Why?", "chosen": "So.", "rejected": "No."}]
    with pytest.raises(ConfigError, match="leave out the mapping"):
        columns = {"annotator": None}
        import_file(nobodys, tmp_path / "j.parquet", columns=columns, mapping=tmp_path / "who.json")
    with pytest.raises(DataError, match="E110"):
        import_file(nobodys, tmp_path / "j.parquet")
    assert list(tmp_path.iterdir()) == []
    told = import_file(rows, tmp_path / "j.parquet", annotators_missing="drop")
    assert told["dropped"] == [{"reason": "no annotator", "n": 1}]


def test_argilla_responses_in_a_list_are_votes_and_discarded_ones_are_counted():
    labels = {"u-1": "response-1", "u-2": "response-2"}
    responses = [
        {"user_id": who, "values": {"better": {"value": label}}, "status": "submitted"}
        for who, label in labels.items()
    ]
    responses.append({"user_id": "u-3", "values": {}, "status": "discarded"})
    fields = {"prompt": "Why?", "response-1": "So.", "response-2": "No."}
    imported = import_votes([{"fields": fields, "responses": responses}])
    assert imported.table.frame["winner"].tolist() == ["a", "b"]
    assert [(entry["reason"], entry["n"]) for entry in imported.table.dropped] == [(NOT_SENT, 1)]
