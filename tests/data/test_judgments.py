"""The two tables: layouts, orientation, what is left out, measuring, splitting, writing and reading back."""

import random

import numpy as np
import pandas as pd
import pytest

from badpo.attributes import Column, Length, LengthWords, Markdown, Position, PythonFunction
from badpo.data.judgments import Judgments, measure_sides
from badpo.data.privacy import is_pseudonym
from badpo.data.problems import ConfigError, DataError
from badpo.data.reading import arrange

SHORT, LONG = "so", "because it is just so"
_OTHER = {"response_a": "response_b", "score_a": "score_b", "model_a": "model_b"}
_OTHER |= {b: a for a, b in _OTHER.items()}


def vote(winner: str = "a", annotator: str | None = "x", a: str = LONG, b: str = SHORT, **cells) -> dict:
    texts = {"prompt": "Why?", "response_a": a, "response_b": b}
    return texts | {"winner": winner, "annotator": annotator} | cells


def turned(row: dict) -> dict:
    """The same vote with the two sides exchanged, columns of the sides and all."""
    row = {_OTHER.get(name, name): cell for name, cell in row.items()}
    sides = {name: row[name] for name in ("winner", "shown_first") if name in row}
    return row | {name: {"a": "b", "b": "a"}.get(side, side) for name, side in sides.items()}


def codes(judgments: Judgments) -> list[str]:
    return [problem.code for problem in judgments.findings]


def said(role: str, text: str) -> dict:
    return {"role": role, "content": text}


Q, X, Y = said("user", "q"), said("assistant", "x"), said("assistant", "y")


def test_a_b_table_and_the_same_votes_as_chosen_and_rejected():
    judgments = Judgments.read([vote("a", "x"), vote("B ", "y")], attributes=[Length()])
    rows = judgments.votes[["comparison", "sign", "annotator", "row"]].values.tolist()
    assert rows == [[0, 1, 0, 0], [0, -1, 1, 1]] and judgments.delta.tolist() == [[1.0], [1.0]]
    assert judgments.comparisons.iloc[:, 2:].values.tolist() == [["Why?", LONG, SHORT]]
    assert judgments.has_identities and judgments.annotators["pseudonym"].map(is_pseudonym).all()
    pairs = [(LONG, SHORT, "x"), (SHORT, LONG, "y")]
    trl = [{"prompt": "Why?", "chosen": won, "rejected": lost, "annotator": k} for won, lost, k in pairs]
    assert Judgments.read(trl, attributes=[Length()]).fingerprint() == judgments.fingerprint()
    assert Judgments.read([trl[0] | {"shown_first": "rejected"}]).votes["shown_first"][0] == "b"


@pytest.mark.parametrize(
    ("first", "second", "prompt"),
    [
        # what `trl.data_utils.extract_prompt` of TRL 1.16 gives
        ("Q: hi A: yes", "Q: hi A: no", "Q: hi A:"),
        ("Q: hi\nyes", "Q: hi\nno", "Q: hi\n"),
        ("aab", "aac", "aa"),
        ("a a", "a b", "a"),
        ("abc", "abcd", "ab"),
        (" a", " b", ""),
        ([Q, X, Q, X], [Q, X, Q, Y], [Q, X, Q]),
        # where turns are marked, answers that begin alike do not lose their beginning
        ("Human: hi\n\nAssistant: I do", "Human: hi\n\nAssistant: I am", "Human: hi\n\nAssistant:"),
        *(("same", "same", "sam"), ([Q], [Q], []), ("", "", "")),  # no response comes out empty
    ],
)
def test_an_implicit_prompt_is_the_shared_beginning(first, second, prompt):
    assert arrange(None, first, second) == (prompt, first[len(prompt) :], second[len(prompt) :])


@pytest.mark.parametrize(
    ("given", "arranged"),
    [
        (("q", "same x", "same y"), ("q", "same x", "same y")),
        (([Q], [X], [Y]), ([Q], [X], [Y])),
        (("q", [Q, X], [Q, Y]), ([Q], [X], [Y])),  # perhaps trimmed: what the two share is the prompt
        (("q", [X], [Y]), ([Q], [X], [Y])),
        (([Q], "x", "y"), ([Q], [X], [Y])),
    ],
)
def test_an_explicit_prompt_stays_and_text_beside_messages_becomes_a_message(given, arranged):
    assert arrange(*given) == arranged


def test_chat_and_implicit_prompts_are_read():
    yes, no = said("assistant", LONG), said("assistant", SHORT)
    rows = {"prompt": [Q], "chosen": [yes], "rejected": [no]}, {"chosen": [Q, yes], "rejected": [Q, no]}
    explicit, implicit = (Judgments.read([row], attributes=[Length()]) for row in rows)
    assert explicit.fingerprint() == implicit.fingerprint()
    assert (explicit.comparisons["prompt"][0], explicit.delta.tolist()) == ([Q], [[1.0]])
    texts = [{"chosen": f"Why? {text}", "rejected": f"Why? {SHORT}"} for text in (LONG, "else", LONG)]
    text = Judgments.read(texts).comparisons
    assert text[["prompt", "response_a"]].values.tolist() == [["Why?", f" {LONG}"], ["Why?", " else"]]


def test_annotators_without_a_column_their_classes_weights_and_labels():
    row = {"prompt": "?", "chosen": "so", "rejected": "no"}
    judgments = Judgments.read([row | {"worker_mail": "7"}])
    assert not judgments.has_identities and codes(judgments) == ["W110"]
    assert judgments.annotators["pseudonym"].tolist() == ["everyone"]
    assert judgments.findings[0].fix == {"columns": {"annotator": "worker_mail"}}
    assert Judgments.read([row | {"worker_id": "7"}]).has_identities
    rows = [vote("a", annotator_class=None, weight=2), vote("b", annotator_class="expert", weight="0.5")]
    judgments = Judgments.read(rows)
    assert judgments.votes["weight"].tolist() == [2.0, 0.5]
    assert judgments.annotators["annotator_class"].tolist() == ["expert"]
    assert Judgments.read([vote()]).annotators["annotator_class"].tolist() == [None]
    rows = [vote("same", "z"), vote("left", "y"), vote("left", "x"), vote("right", "y")]
    votes = Judgments.read(rows, winners={"left": "a", "right": "b", "same": "tie"}).votes
    assert votes[["annotator", "sign"]].values.tolist() == [[0, 1], [1, 1], [0, -1]]
    with pytest.raises(ConfigError, match="skip; got"):
        Judgments.read(rows, winners={"left": "response_a"})


def test_equal_comparisons_are_merged_in_either_order_and_ids_keep_them_apart():
    rows = [vote("a", "x"), turned(vote("a", "y")), turned(vote("b", "z")), vote(b="other")]
    judgments = Judgments.read(rows)
    assert judgments.n_comparisons == 2 and judgments.votes["sign"].tolist() == [1, 1, -1, 1]
    notices = {problem.code: problem.count for problem in judgments.findings}
    assert notices["N138"] == notices["N118"] == 2
    rows = [vote("a", "x", comparison_id="c"), turned(vote("b", "y", comparison_id="c"))]
    judgments = Judgments.read(rows)
    assert judgments.n_comparisons == 1 and judgments.votes["sign"].tolist() == [1, -1]
    judgments = Judgments.read([vote(comparison_id="c"), vote(comparison_id="d", annotator="y")])
    assert judgments.n_comparisons == 2 and codes(judgments) == ["N139"]


@pytest.mark.parametrize(
    ("a", "b", "go_along"),
    [
        ([1, "2.5"], [3, 4], True),
        ([1, None], [None, 4], True),  # numbers where there are any
        *(([None, None], [3, 4], False), ([1, "high"], [3, 4], False), ([1, 2], ["low", None], False)),
    ],
)
def test_two_columns_go_along_where_both_hold_numbers_and_nothing_else(a, b, go_along):
    rows = [vote(b=f"so {i}", score_a=a[i], score_b=b[i]) for i in range(2)]
    assert ({"score_a", "score_b"} <= {*Judgments.read(rows).votes}) is go_along


@pytest.mark.parametrize("keep", [["code_a"], ["code_b", "code_a"]])
def test_two_columns_of_which_one_is_kept_go_along_as_they_are_written(keep):
    row = vote("a", "x", code_a="007", code_b="8")
    rows = [row, turned(row) | {"annotator": "y", "code_a": "8", "code_b": "007"}]
    found = Judgments.read(rows, keep=keep).comparisons
    assert found[["code_a", "code_b"]].values.tolist() == [["007", "8"]]
    assert Judgments.read(rows).comparisons["code_a"].tolist() == [7.0]


def test_the_models_go_along_where_every_row_has_them_and_other_columns_where_they_are_kept():
    models = {"model_a": "m1", "model_b": "m2"}
    rows = [
        vote("a", "x", judge="m2", email="x@example.org", **models),
        turned(vote("a", "y", judge="m1", email="y@example.org", **models)),
    ]
    own = PythonFunction(
        "own", lambda v, c: (v["judge"] == c["model_a"]) - (v["judge"] == c["model_b"]), scope="judgment"
    )
    judgments = Judgments.read(rows, keep=["judge"], attributes=[own])
    assert judgments.delta.ravel().tolist() == [-1.0, 1.0]
    assert judgments.comparisons[[*models]].to_numpy().tolist() == [["m1", "m2"]]
    assert "judge" not in judgments.comparisons and "email" not in judgments.votes
    rows[1]["model_a"] = None
    assert "model_a" not in Judgments.read(rows).votes


def test_what_is_left_out_is_counted_and_judging_again_is_no_copy():
    cast = [("tie", "x"), ("a", "x"), ("b", "x"), ("tie", "y"), ("tie", "x"), ("a", None)]
    judgments = Judgments.read([vote(*one) for one in cast], annotators_missing="drop", repeated="last")
    (name,) = judgments.annotators["pseudonym"]
    dropped = {(reason, who): n for reason, who, n in judgments.dropped.itertuples(index=False)}
    (other,) = {who for _, who in dropped} - {name, "unknown"}
    of_x = {("tie", name): 2, ("repeated vote", name): 1}
    assert dropped == of_x | {("tie", other): 1, ("no annotator", "unknown"): 1}
    assert judgments.votes["row"].tolist() == [2]
    assert {"N130", "N112", "N133", "W133"} <= set(codes(judgments))
    nobodys = pd.DataFrame([vote("a"), vote("tie")]).drop(columns="annotator")
    assert Judgments.read(nobodys).dropped.values.tolist() == [["tie", "everyone", 1]]
    changed = exported_twice()
    changed[-1]["winner"] = {"a": "b", "b": "a"}[changed[-1]["winner"]]
    other_order = [row | {"shown_first": "a"} for row in exported_twice()]
    for rows in (changed, other_order, exported_twice(n=9)):
        judgments = Judgments.read(rows)
        assert judgments.n_votes == len(rows) and "N132" not in codes(judgments)
    judgments = Judgments.read([vote("a", "x"), vote("b", "x"), vote("a", "y"), turned(vote("a", "y"))])
    assert judgments.n_votes == 4
    (finding,) = [problem for problem in judgments.findings if problem.code == "W133"]
    assert finding.count == 2 and "50% of 2" in finding.what


@pytest.mark.parametrize("repeated", ["all", "last"])
def test_votes_that_saw_the_other_side_first_are_no_repetition(repeated):
    rows = [vote("a", "x", shown_first="a"), turned(vote("b", "x", shown_first="b"))]
    judgments = Judgments.read([*rows, *rows[:1]], repeated=repeated)
    assert set(judgments.votes["shown_first"]) == {"a", "b"}
    assert judgments.n_votes == {"all": 3, "last": 2}[repeated]
    assert {problem.code: problem.count for problem in judgments.findings}["W133"] == 1


def exported_twice(n: int = 30, **cells) -> list[dict]:
    cast = [(i, who, {"a": f"text {i}", "comparison_id": f"c{i}"}) for i in range(n) for who in "xy"]
    rows = [vote("ab"[i % 2], who, **texts, **cells) for i, who, texts in cast]
    return [*rows, *(turned(row) | {"comparison_id": row["comparison_id"] + "'"} for row in rows)]


@pytest.mark.parametrize("ids", ["own", "same", "none"])
@pytest.mark.parametrize("cells", [{}, {"shown_first": "a"}], ids=["", "order"])
def test_a_table_exported_twice_with_the_sides_exchanged_counts_once(ids, cells):
    table = pd.DataFrame(exported_twice(**cells))
    table["comparison_id"] = table["comparison_id"].str.rstrip("'" if ids == "same" else "")
    judgments = Judgments.read(table.drop(columns="comparison_id") if ids == "none" else table)
    assert judgments.n_votes == 60 and judgments.n_comparisons == 30
    counts = {problem.code: problem.count for problem in judgments.findings}
    assert counts["N132"] == 60 and not {"N139", "W133"} & set(counts)
    assert judgments.dropped.groupby("reason")["n"].sum().to_dict() == {"exported twice": 60}


ROWS = [vote("ab"[i], "xy"[i], a="one two", b="one", prompt="p", comparison_id="c") for i in range(2)]
BAD = PythonFunction("bad", lambda prompt, response: 1 / 0)


def problems(*attributes, rows=ROWS):
    with pytest.raises(DataError) as caught:
        Judgments.read(rows, attributes=attributes)
    return caught.value.problems


def test_scopes_side_by_side_and_each_distinct_text_measured_once():
    rows = [row | {"x_a": 3.0, "x_b": 0.5} for row in ROWS]
    sizes = {"scope": "pair", "continuous": True}
    both = PythonFunction("both", lambda prompt, a, b: (len(a), len(prompt)), **sizes)
    own = PythonFunction("own", lambda v, c: v["row"] + len(c["response_b"]), scope="judgment")
    of_sides = [Length(), LengthWords(threshold=0), both, Column("x", "x_a", "x_b", threshold=1)]
    judgments = Judgments.read(rows, attributes=[*of_sides, own])
    assert judgments.delta.tolist() == [[1, 1, 6, 2.5, 3], [1, 1, 6, 2.5, 4]]
    sides = [measure_sides(attribute, judgments.comparisons).tolist() for attribute in of_sides]
    assert sides == [[[1, 0]], [[2, 1]], [[7, 1]], [[3, 0.5]]]
    seen = []
    attribute = PythonFunction("seen", lambda *texts: float(len(seen.append(texts) or texts)))
    rows = [ROWS[0] | {"comparison_id": f"c{i}", "response_b": f"other {i % 3}"} for i in range(12)]
    Judgments.read(rows, attributes=[attribute])
    assert sorted(seen) == [("p", "one two"), *(("p", f"other {i}") for i in range(3))]
    seen.clear()
    Judgments.read([{"prompt": [Q], "chosen": [X], "rejected": [Y]}], attributes=[attribute])
    assert seen == [("q", "x"), ("q", "y")]


def test_what_a_vote_does_not_record_is_missing_and_compared_only_with_its_like():
    told = {"u": 1, "v": -1, "w": None, "x": 1, "y": 0, "z": None}
    rows = [vote("a", who, own=own) for who, own in told.items()]
    own = PythonFunction("own", lambda v, c: v["own"], scope="judgment")
    judgments = Judgments.read(rows, keep=["own"], attributes=[own, Length()])
    assert judgments.missing.T.tolist() == [[False, False, True, False, False, True], [False] * 6]
    assert judgments.delta[:, 0].tolist() == [1, -1, 0, 1, 0, 0]
    assert judgments.comparable_votes().tolist() == [0, 0, 1, 0, 0, 1]
    some = judgments.take([1, 2, 5])
    assert some.missing[:, 0].tolist() == [False, True, True]
    assert not judgments.with_attributes([Length()]).missing.any()


@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        (BAD, "ZeroDivisionError"),
        (PythonFunction("bad", lambda prompt, response: None), "TypeError"),
        (PythonFunction("bad", lambda prompt, response: float("nan")), "gives no finite number: 2 of 2"),
        (PythonFunction("bad", lambda prompt, a, b: (1, float("inf")), scope="pair"), "number: 1 of 1"),
        (PythonFunction("bad", lambda prompt, a, b: 1.0, scope="pair"), "TypeError"),
        (PythonFunction("bad", lambda vote, comparison: vote["nothing"], scope="judgment"), "KeyError"),
    ],
)
def test_failing_functions_are_named_with_the_comparison(attribute, message):
    (found,) = problems(attribute)
    assert (found.code, found.where) == ("E127", "first: comparison c")
    assert '"bad"' in found.what and message in found.what


def test_all_attributes_are_tried_columns_must_hold_numbers_and_a_wrong_setting_is_none_of_the_data():
    grade, other = Column("grade", "grade_a", "grade_b"), Column("other", "grade_x", "grade_b")
    rows = [{**row, "grade_a": "high", "grade_b": 1} for row in ROWS]
    found = problems(BAD, PythonFunction("two", BAD.measure), Position())
    found += problems(grade, other, rows=rows)
    assert [problem.code for problem in found] == ["E127", "E127", "E129", "E128", "E128"]
    assert "shown_first" in found[2].remedy
    assert 'attribute column "grade_a" holds no number: 2 of 2 rows' in found[3].what
    assert 'Did you mean "grade_b"?' in found[4].what
    rows = [{**row, "grade_a": i, "grade_b": 0} for i, row in enumerate(ROWS)]
    (found,) = problems(grade, rows=rows)
    assert found.code == "E128" and "no single value for each comparison in grade_a" in found.what
    assert Judgments.read(rows).votes["grade_a"].tolist() == [0, 1]

    def refuses(prompt, response):
        raise ConfigError("no tokenizer")

    with pytest.raises(ConfigError, match="no tokenizer"):
        Judgments.read(ROWS, attributes=[PythonFunction("x", refuses)])
    with pytest.raises(ConfigError, match='two attributes are called "length"'):
        Judgments.read(ROWS, attributes=[Length(), Length(ratio=2)])


def test_majority_its_ties_and_the_threshold_of_cross_groups():
    cast = [*zip("babaa", "xyxyz", (SHORT, SHORT, "other", "other", "other"), strict=True)]
    rows = [vote(winner, who, b=b, weight=1) for winner, who, b in cast]
    rows += [vote("ab"[i > 0], "xyz"[i], b="third", weight=9 if i == 0 else 1) for i in range(3)]
    judgments = Judgments.read(rows, attributes=[Length()])
    assert judgments.majority().tolist() == [-1, 1, -1]
    assert judgments.take(np.array([1, 0])).majority().tolist() == [-1]
    assert judgments.offline_log_odds()[0].se_clustered is None  # there is one prompt
    scores = {SHORT: 0.5, "other": 0.9, "exactly": 0.75}
    rows = [vote(b=b, score_a=1.0, score_b=score) for b, score in scores.items()]
    attributes = [Column("score", "score_a", "score_b", threshold=0.25), Length()]
    judgments = Judgments.read(rows, attributes=attributes)
    assert judgments.cross_group().tolist() == [[True, True], [False, True], [False, True]]
    assert Judgments.read(rows).cross_group().shape == (3, 0)


def many(n_prompts: int = 25, seed: int = 0) -> pd.DataFrame:
    rng = random.Random(seed)
    rows = []
    for i in range(n_prompts):
        for k in rng.sample(range(6), 3):
            cells = {"prompt": f"p{i}", "prompt_id": str(i), "score_a": float(i), "score_b": 0.0}
            row = vote(rng.choice("ab"), f"person {k}", f"long answer to {i}, three times", **cells)
            rows.append(turned(row) if rng.random() < 0.4 else row)
    return pd.DataFrame(rows)


def test_split_follows_the_papers_rule():
    judgments = Judgments.read(many(29), attributes=[Length()])
    train, held_out = judgments.split(held_out=0.1, seed=3)
    prompts = sorted(str(i) for i in range(29))
    random.Random(3).shuffle(prompts)
    assert set(held_out.comparisons["prompt_id"]) == set(prompts[:2])
    assert set(train.comparisons["prompt_id"]) == set(prompts[2:])
    assert train.n_votes + len(held_out.delta) == train.n_votes + held_out.n_votes == judgments.n_votes
    assert train.annotators is held_out.annotators is judgments.annotators
    # of few prompts none is held out
    train, held_out = Judgments.read(many(5), attributes=[Length()]).split()
    assert (train.n_votes, held_out.n_comparisons, held_out.delta.shape) == (15, 0, (0, 1))
    assert len(held_out.majority()) == 0 and len(held_out.fingerprint()) == 64
    with pytest.raises(ConfigError, match="below 1"):
        judgments.split(held_out=1.0)


def test_fingerprint_sees_everything_that_training_sees():
    tables = [many() for _ in range(5)]
    tables[0].loc[0, "response_a"] += "."
    tables[1].loc[5, "winner"] = {"a": "b", "b": "a"}[tables[1]["winner"][5]]
    tables[2].loc[5, "annotator"] = "someone else"
    tables[3]["prompt_id"] = "q" + tables[3]["prompt_id"]
    tables += [many().assign(annotator_class="crowd"), many().assign(weight=2.0)]
    tables += [many().assign(shown_first=side) for side in "ab"]
    changed = [Judgments.read(table, attributes=[Length()]) for table in tables]
    column, base = Column("score", "score_a", "score_b"), changed[4]
    scored = [[vote(score_a=a, score_b=0.0)] for a in (1.0, 2.0)]
    changed += [Judgments.read(rows, attributes=[column]) for rows in scored]
    changed += [base.with_attributes([]), base.with_attributes([Length(ratio=1.6)])]
    changed.append(base.take(np.arange(74)))
    assert len({judgments.fingerprint() for judgments in changed}) == len(changed)


@pytest.mark.parametrize("chat", [False, True])
def test_parquet_reads_back_the_same(tmp_path, chat):
    table = many().assign(weight=1.5, shown_first="a", note="n", model_a="person 1", model_b="person 2")
    table["annotator_class"] = table["annotator"].map({"person 1": "model"}).fillna("crowd")
    table.loc[4, "winner"] = "tie"
    if chat:
        for name, role in (("prompt", "user"), ("response_a", "assistant"), ("response_b", "assistant")):
            table[name] = [[said(role, text)] for text in table[name]]
    attributes = [Length(), Position(), Column("score", "score_a", "score_b")]
    options = {"attributes": attributes, "keep": ["note"]}
    whole = Judgments.read(table, **options)
    nobodys = Judgments.read(table.drop(columns=["annotator", "annotator_class"]), **options)
    path = tmp_path / "new" / "judgments.parquet"
    for judgments in (*whole.split(0.3), nobodys, whole):
        judgments.to_parquet(path)
        again = Judgments.read(path, **options)
        assert again.fingerprint() == judgments.fingerprint()
        assert again.has_identities == judgments.has_identities
    assert set(whole.annotators["model"]) == {"person 1", None}
    written = {*whole.annotators["model"], *whole.annotators["pseudonym"]}
    assert {"person 1"} < {*whole.votes["model_a"], *whole.votes["model_b"]} < written
    assert ("N119", 1) in [(finding.code, finding.count) for finding in again.findings]
    for name in ("dropped", "comparisons", "annotators"):
        pd.testing.assert_frame_equal(getattr(again, name), getattr(whole, name))
    pd.testing.assert_frame_equal(again.votes.drop(columns="row"), whole.votes.drop(columns="row"))
    assert [file.name for file in path.parent.glob("[!.]*.parquet")] == ["judgments.parquet"]
    with pytest.raises(ConfigError, match="must end in .parquet"):
        whole.to_parquet(tmp_path / "j.csv")


TEXTS = ["so", "because it is", "- a list", "no", "it just is so, and more"]


def drawn(rng: random.Random) -> list[dict]:
    """Up to 25 votes on few texts, so that many are on equal comparisons; the first is no tie."""
    rows = []
    for winners in ["ab", *["abt"] * rng.randrange(25)]:
        a, b = rng.sample(TEXTS, 2)
        cells = {"prompt": f"p{rng.randrange(4)}", "shown_first": rng.choice("ab")}
        cells |= {"score_a": len(a), "score_b": len(b)}
        winner = rng.choice(winners).replace("t", "tie")
        rows.append(vote(winner, rng.choice("xyz"), a, b, **cells))
    return rows


def orientation_free(judgments: Judgments) -> list[tuple]:
    """What each vote says, whichever response is called a: sorted, so that row order does not matter."""
    votes = judgments.votes.to_dict("records")
    names = judgments.annotators["pseudonym"].tolist()
    found = []
    for one, delta in zip(votes, judgments.delta, strict=True):
        row, sides = judgments.comparisons.iloc[one["comparison"]], ["response_a", "response_b"]
        chosen, other = (row[side] for side in sides[:: int(one["sign"])])
        first = row[f"response_{one['shown_first']}"]
        ids = row["prompt_id"], row["comparison_id"]
        found.append((*ids, chosen, other, names[one["annotator"]], first, *(one["sign"] * delta)))
    return sorted(found)


@pytest.mark.parametrize("seed", range(30))
def test_neither_the_order_nor_the_orientation_of_rows_matters(seed):
    rng = random.Random(seed)
    rows = drawn(rng)
    mixed = [turned(row) if rng.random() < 0.5 else row for row in rng.sample(rows, len(rows))]
    attributes = [Length(), Markdown(), Position(), Column("score", "score_a", "score_b")]
    straight, mixed = (Judgments.read(table, attributes=attributes) for table in (rows, mixed))
    assert orientation_free(mixed) == orientation_free(straight)
    for judgments in (straight, mixed):
        assert judgments.n_votes + judgments.dropped["n"].sum() == len(rows)
    assert sorted(mixed.dropped.values.tolist()) == sorted(straight.dropped.values.tolist())
    for one, other in zip(straight.offline_log_odds(), mixed.offline_log_odds(), strict=True):
        assert (one.n_cross, one.win_rate) == (other.n_cross, other.win_rate)
    parts = [judgments.split(0.5)[1].comparisons["comparison_id"] for judgments in (straight, mixed)]
    assert set(parts[0]) == set(parts[1])
