"""The two tables: layouts, orientation, what is left out, splitting, writing and reading back."""

from __future__ import annotations

import random

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from badpo.attributes import Column, Length, Markdown, Position, PythonFunction
from badpo.data.judgments import Judgments
from badpo.data.privacy import is_pseudonym
from badpo.data.problems import ConfigError, DataError

SHORT, LONG = "so", "because it is just so"


def vote(winner: str = "a", annotator: str | None = "x", a: str = LONG, b: str = SHORT, **cells) -> dict:
    return {
        "prompt": "Why?",
        "response_a": a,
        "response_b": b,
        "winner": winner,
        "annotator": annotator,
        **cells,
    }


def turned(row: dict) -> dict:
    """The same vote with the two sides exchanged, columns of the sides and all."""
    other = {"a": "b", "b": "a"}
    names = {
        "response_a": "response_b",
        "response_b": "response_a",
        "score_a": "score_b",
        "score_b": "score_a",
    }
    row = {names.get(name, name): cell for name, cell in row.items()}
    return row | {name: other.get(row[name], row[name]) for name in ("winner", "shown_first") if name in row}


def codes(judgments: Judgments) -> list[str]:
    return [problem.code for problem in judgments.findings]


# -- layouts -------------------------------------------------------------------------------------------------


def test_a_b_table():
    judgments = Judgments.read([vote("a", "x"), vote("B ", "y")], attributes=[Length()])
    assert judgments.n_comparisons == 1
    assert judgments.votes[["comparison", "sign", "annotator", "row"]].values.tolist() == [
        [0, 1, 0, 0],
        [0, -1, 1, 1],
    ]
    assert judgments.delta.tolist() == [[1.0], [1.0]]
    row = judgments.comparisons.iloc[0]
    assert (row["prompt"], row["response_a"], row["response_b"]) == ("Why?", LONG, SHORT)
    assert judgments.has_identities
    assert judgments.annotators["pseudonym"].map(is_pseudonym).all()


def test_chosen_and_rejected_are_the_same_votes_as_a_and_b():
    pairs = [(LONG, SHORT, "x"), (SHORT, LONG, "y"), (LONG, SHORT, "y")]
    trl = [{"prompt": "Why?", "chosen": won, "rejected": lost, "annotator": k} for won, lost, k in pairs]
    a_b = [vote("a" if won == LONG else "b", k) for won, _, k in pairs]
    assert Judgments.read(trl).fingerprint() == Judgments.read(a_b).fingerprint()


def test_chat_and_implicit_prompts():
    question, yes, no = (
        {"role": r, "content": c} for r, c in [("user", "Why?"), ("assistant", LONG), ("assistant", SHORT)]
    )
    explicit = Judgments.read(
        [{"prompt": [question], "chosen": [yes], "rejected": [no]}], attributes=[Length()]
    )
    implicit = Judgments.read(
        [{"chosen": [question, yes], "rejected": [question, no]}], attributes=[Length()]
    )
    assert explicit.fingerprint() == implicit.fingerprint()
    assert explicit.comparisons["prompt"][0] == [question]
    assert explicit.delta.tolist() == [[1.0]]
    text = Judgments.read([{"chosen": f"Why? {LONG}", "rejected": f"Why? {SHORT}"}])
    assert text.comparisons["prompt"][0] == "Why?"


def test_columns_are_mapped_and_ids_stay_text(tmp_path):
    path = tmp_path / "votes.csv"
    path.write_text("question,chosen,rejected,worker,pair\nWhy?,so,no,0123,007\nWhy?,no,so,123,007\n")
    judgments = Judgments.read(
        path,
        columns={"prompt": "question", "annotator": "worker", "comparison_id": "pair", "prompt_id": None},
    )
    assert judgments.comparisons["comparison_id"].tolist() == ["007"]
    assert judgments.n_annotators == 2
    assert "W113" in codes(judgments)


def test_no_annotator_column_is_one_annotator():
    judgments = Judgments.read([{"prompt": "Why?", "chosen": "so", "rejected": "no"}])
    assert not judgments.has_identities
    assert judgments.annotators["pseudonym"].tolist() == ["everyone"]
    assert codes(judgments) == ["N110"]
    hinted = Judgments.read([{"prompt": "Why?", "chosen": "so", "rejected": "no", "worker_id": "7"}])
    assert 'columns={"annotator": "worker_id"}' in hinted.findings[0].remedy


def test_winner_labels_of_others():
    rows = [vote("left", "x"), vote("right", "y"), vote("same", "z")]
    judgments = Judgments.read(rows, winners={"left": "a", "right": "b", "same": "tie"})
    assert judgments.votes["sign"].tolist() == [1, -1]
    with pytest.raises(ConfigError, match="must mean a, b or tie"):
        Judgments.read(rows, winners={"left": "response_a"})


def test_annotator_classes_and_weights():
    rows = [
        vote("a", "x", annotator_class=None, weight=2),
        vote("b", "x", annotator_class="expert", weight="0.5"),
    ]
    judgments = Judgments.read(rows)
    assert judgments.annotators["annotator_class"].tolist() == ["expert"]
    assert judgments.votes["weight"].tolist() == [2.0, 0.5]
    assert Judgments.read([vote()]).annotators["annotator_class"].tolist() == [None]


def test_annotators_are_numbered_by_first_vote_and_the_key_is_in_names_and_fingerprint(monkeypatch):
    rows = [vote("tie", "z"), vote("a", "y"), vote("a", "x"), vote("b", "y")]
    prints, names = set(), []
    for key in ("one key of sixteen bytes", "two keys of sixteen bytes"):
        monkeypatch.setenv("BADPO_PSEUDONYM_KEY", key)
        judgments = Judgments.read(rows)
        assert judgments.votes["annotator"].tolist() == [0, 1, 0]
        prints.add(judgments.fingerprint())
        names.append(judgments.annotators["pseudonym"].tolist())
    assert len(prints) == 2
    assert names[0] != names[1]


# -- equal comparisons ---------------------------------------------------------------------------------------


def test_equal_comparisons_are_merged_in_either_order_and_counted():
    rows = [vote("a", "x"), turned(vote("a", "y")), turned(vote("b", "z")), vote(b="other")]
    judgments = Judgments.read(rows, attributes=[Length()])
    assert judgments.n_comparisons == 2
    assert judgments.votes["sign"].tolist() == [1, 1, -1, 1]
    notices = {problem.code: problem.count for problem in judgments.findings}
    assert notices["N138"] == 2
    assert notices["N118"] == 2


def test_one_id_in_two_orientations_is_turned():
    rows = [vote("a", "x", comparison_id="c"), turned(vote("b", "y", comparison_id="c"))]
    judgments = Judgments.read(rows)
    assert judgments.n_comparisons == 1
    assert judgments.votes["sign"].tolist() == [1, -1]


def test_ids_keep_equal_comparisons_apart():
    judgments = Judgments.read([vote(comparison_id="c"), vote(comparison_id="d", annotator="y")])
    assert judgments.n_comparisons == 2
    assert codes(judgments) == ["N139"]


def test_derived_ids_depend_on_the_texts_alone():
    first = Judgments.read([vote(), vote(b="other")]).comparisons.set_index("response_b")
    second = Judgments.read([vote(b="other"), vote()]).comparisons.set_index("response_b")
    for name in ("comparison_id", "prompt_id"):
        assert first[name].to_dict() == second[name].to_dict()
    flipped = Judgments.read([turned(vote())]).comparisons
    assert flipped["comparison_id"][0] == first.loc[SHORT, "comparison_id"]


def test_the_side_shown_is_turned_with_its_row():
    rows = [
        vote("a", "x", shown_first="a"),
        turned(vote("a", "y", shown_first="a")),
        vote("a", "z", shown_first=None),
    ]
    judgments = Judgments.read(rows, attributes=[Position()])
    assert judgments.votes["shown_first"].tolist() == ["a", "a", None]
    assert judgments.delta.ravel().tolist() == [1.0, 1.0, 0.0]


def test_position_is_about_the_side_that_the_annotator_saw_first():
    rows = [vote("a", "x", shown_first="a"), turned(vote("b", "y")) | {"shown_first": "a"}]
    judgments = Judgments.read(rows, attributes=[Position()])
    assert judgments.votes["shown_first"].tolist() == ["a", "b"]
    assert judgments.delta.ravel().tolist() == [1.0, -1.0]


def test_chosen_may_be_the_side_shown_first():
    rows = [{"prompt": "p", "chosen": "x", "rejected": "y", "shown_first": "rejected"}]
    assert Judgments.read(rows).votes["shown_first"].tolist() == ["b"]


# -- columns that go along -----------------------------------------------------------------------------------


def test_columns_of_the_sides_are_turned():
    rows = [vote("a", "x", score_a=3, score_b=1), turned(vote("a", "y", score_a=3, score_b=1))]
    judgments = Judgments.read(rows, attributes=[Column("score", "score_a", "score_b", threshold=1)])
    assert judgments.comparisons[["score_a", "score_b"]].values.tolist() == [[3, 1]]
    assert judgments.delta.ravel().tolist() == [2.0, 2.0]
    assert judgments.cross_group().all()


def test_columns_without_sides_stay_behind_unless_kept():
    rows = [
        vote("a", "x", email="x@example.org", judge="m1"),
        vote("b", "y", email="y@example.org", judge="m2"),
    ]
    judgments = Judgments.read(rows, keep=["judge"])
    assert "email" not in judgments.votes and "email" not in judgments.comparisons
    assert judgments.votes["judge"].tolist() == ["m1", "m2"]
    assert "judge" not in judgments.comparisons


def test_a_judgment_function_sees_kept_columns():
    rows = [
        vote("a", "x", model_a="m1", model_b="m2", judge="m2"),
        turned(vote("a", "y", judge="m1")) | {"model_a": "m2", "model_b": "m1"},
    ]
    own = PythonFunction(
        "own", lambda v, c: (v["judge"] == c["model_a"]) - (v["judge"] == c["model_b"]), scope="judgment"
    )
    judgments = Judgments.read(rows, keep=["model_a", "model_b", "judge"], attributes=[own])
    assert judgments.delta.ravel().tolist() == [-1.0, 1.0]


# -- what is left out ----------------------------------------------------------------------------------------


def test_what_is_left_out_is_counted_by_reason_and_annotator():
    rows = [
        vote("tie", "x"),
        vote("a", "x"),
        vote("b", "x"),
        vote("tie", "y"),
        vote("tie", "x"),
        vote("a", None),
    ]
    judgments = Judgments.read(rows, annotators_missing="drop", repeated="last")
    (name,) = judgments.annotators["pseudonym"]
    dropped = {(reason, who): n for reason, who, n in judgments.dropped.itertuples(index=False)}
    (other,) = {who for _, who in dropped} - {name, "unknown"}
    assert dropped == {
        ("tie", name): 2,
        ("repeated vote", name): 1,
        ("tie", other): 1,
        ("no annotator", "unknown"): 1,
    }
    assert judgments.votes["row"].tolist() == [2]
    assert {"N130", "N112", "N133", "W133"} <= set(codes(judgments))


def test_ties_without_identities_belong_to_everyone():
    rows = [{name: cell for name, cell in vote(w).items() if name != "annotator"} for w in ("a", "tie")]
    assert Judgments.read(rows).dropped.values.tolist() == [["tie", "everyone", 1]]


def test_repeated_votes_are_kept_and_their_disagreement_is_reported():
    rows = [vote("a", "x"), vote("b", "x"), vote("a", "y"), turned(vote("a", "y"))]
    judgments = Judgments.read(rows)
    assert judgments.n_votes == 4
    (finding,) = [problem for problem in judgments.findings if problem.code == "W133"]
    assert finding.count == 2
    assert "50% of 2" in finding.what


@pytest.mark.parametrize("repeated", ["all", "last"])
def test_votes_that_saw_the_other_side_first_are_no_repetition(repeated):
    rows = [vote("a", "x", shown_first="a"), turned(vote("b", "x", shown_first="b"))]
    judgments = Judgments.read([*rows, *rows[:1]], repeated=repeated)
    assert set(judgments.votes["shown_first"]) == {"a", "b"}
    assert judgments.n_votes == {"all": 3, "last": 2}[repeated]
    found = {problem.code: problem.count for problem in judgments.findings}
    assert found["W133"] == 1


# -- statistics ----------------------------------------------------------------------------------------------


def test_majority_and_its_ties():
    rows = [
        vote("b", "x"),
        vote("a", "y"),
        vote("b", "x", b="other"),
        vote("a", "y", b="other"),
        vote("a", "z", b="other"),
        vote("a", "x", b="third", weight=9),
        vote("b", "y", b="third"),
        vote("b", "z", b="third"),
    ]
    rows = [{"weight": 1, **row} for row in rows]
    assert Judgments.read(rows).majority().tolist() == [-1, 1, -1]
    assert Judgments.read(rows).take(np.array([1, 0])).majority().tolist() == [-1]


def test_cross_group_has_a_threshold():
    scores = {SHORT: 0.5, "other": 0.9, "exactly": 0.75}
    rows = [vote(b=b, score_a=1.0, score_b=score) for b, score in scores.items()]
    judgments = Judgments.read(
        rows, attributes=[Column("score", "score_a", "score_b", threshold=0.25), Length()]
    )
    assert judgments.cross_group().tolist() == [[True, True], [False, True], [False, True]]
    assert Judgments.read(rows).cross_group().shape == (3, 0)


def test_offline_log_odds_are_clustered_by_prompt():
    rows = [vote("a" if i % 4 else "b", str(i), prompt=f"p{i % 3}") for i in range(20)]
    (found,) = Judgments.read(rows, attributes=[Length()]).offline_log_odds()
    assert (found.n_cross, found.carrier_wins) == (20, 0.75)
    assert found.se_clustered is not None and found.se_clustered != pytest.approx(found.se_naive)


# -- parts ---------------------------------------------------------------------------------------------------


def many(n_prompts: int = 25, seed: int = 0) -> pd.DataFrame:
    rng = random.Random(seed)
    rows = []
    for i in range(n_prompts):
        for k in rng.sample(range(6), 3):
            row = vote(rng.choice("ab"), f"person {k}", a=f"long answer to {i}, three times", prompt=f"p{i}")
            row |= {"prompt_id": str(i), "score_a": float(i), "score_b": 0.0}
            rows.append(turned(row) if rng.random() < 0.4 else row)
    return pd.DataFrame(rows)


def test_split_follows_the_papers_rule():
    judgments = Judgments.read(many(29), attributes=[Length()])
    train, held_out = judgments.split(held_out=0.1, seed=3)
    prompts = sorted(str(i) for i in range(29))
    random.Random(3).shuffle(prompts)
    assert set(held_out.comparisons["prompt_id"]) == set(prompts[:2])
    assert set(train.comparisons["prompt_id"]) == set(prompts[2:])
    assert train.n_votes + held_out.n_votes == judgments.n_votes
    assert len(held_out.delta) == held_out.n_votes
    for part in (train, held_out):
        assert part.annotators is judgments.annotators


def test_split_of_few_prompts_holds_nothing_out():
    judgments = Judgments.read(many(5), attributes=[Length()])
    train, held_out = judgments.split()
    assert (train.n_votes, held_out.n_votes, held_out.n_comparisons) == (15, 0, 0)
    assert held_out.delta.shape == (0, 1)
    assert len(held_out.majority()) == 0 and len(held_out.fingerprint()) == 64
    with pytest.raises(ConfigError, match="below 1"):
        judgments.split(held_out=1.0)


def test_take_numbers_the_comparisons_anew():
    judgments = Judgments.read(many(), attributes=[Length()])
    part = judgments.take(np.array([70, 3, 71]))
    assert part.votes["row"].tolist() == [70, 3, 71]
    texts = part.comparisons["prompt"].to_numpy()[part.votes["comparison"]]
    whole = judgments.comparisons["prompt"].to_numpy()[judgments.votes["comparison"]]
    assert texts.tolist() == whole[[70, 3, 71]].tolist()
    assert part.delta.tolist() == judgments.delta[[70, 3, 71]].tolist()
    assert part.votes["annotator"].tolist() == judgments.votes["annotator"][[70, 3, 71]].tolist()


def test_with_attributes_replaces_them():
    judgments = Judgments.read(many(), attributes=[Length()])
    other = judgments.with_attributes([Markdown(), Length(ratio=3)])
    assert other.attribute_names == ("markdown", "length")
    assert other.delta.shape == (75, 2)
    assert other.findings == judgments.findings
    with pytest.raises(ConfigError, match='two attributes are called "length"'):
        judgments.with_attributes([Length(), Length(ratio=2)])


# -- fingerprint and parquet ---------------------------------------------------------------------------------


def test_fingerprint_sees_everything_that_training_sees():
    base = Judgments.read(many(), attributes=[Length()])
    other_text, other_vote, other_person, other_prompt, other_class = (many() for _ in range(5))
    other_text.loc[0, "response_a"] += "."
    other_vote.loc[5, "winner"] = {"a": "b", "b": "a"}[other_vote["winner"][5]]
    other_person.loc[5, "annotator"] = "someone else"
    other_prompt["prompt_id"] = "q" + other_prompt["prompt_id"]
    other_class["annotator_class"] = "crowd"
    tables = (other_text, other_vote, other_person, other_prompt, other_class, many().assign(weight=2.0))
    changed = [Judgments.read(table, attributes=[Length()]) for table in tables]
    shown = [Judgments.read(many().assign(shown_first=side), attributes=[Length()]) for side in "ab"]
    column = Column("score", "score_a", "score_b")
    numbers = [
        Judgments.read([vote(score_a=a, score_b=0.0)], attributes=[column]).fingerprint() for a in (1.0, 2.0)
    ]
    assert len(set(numbers)) == 2
    changed += [
        *shown,
        base.with_attributes([]),
        base.with_attributes([Length(ratio=1.6)]),
        base.take(np.arange(74)),
    ]
    prints = {judgments.fingerprint() for judgments in (base, *changed)}
    assert len(prints) == 1 + len(changed)


@pytest.mark.parametrize("chat", [False, True])
def test_parquet_reads_back_the_same(tmp_path, chat):
    table = many().assign(annotator_class="crowd", weight=1.5, shown_first="a", note="n")
    table.loc[4, "winner"] = "tie"
    if chat:
        table["prompt"] = [[{"role": "user", "content": text}] for text in table["prompt"]]
        for side in ("response_a", "response_b"):
            table[side] = [[{"role": "assistant", "content": text}] for text in table[side]]
    attributes = [Length(), Position(), Column("score", "score_a", "score_b")]
    judgments = Judgments.read(table, attributes=attributes, keep=["note"])
    path = tmp_path / "new" / "judgments.parquet"
    judgments.to_parquet(path)
    again = Judgments.read(path, attributes=attributes, keep=["note"])
    assert again.fingerprint() == judgments.fingerprint()
    pd.testing.assert_frame_equal(again.dropped, judgments.dropped)
    pd.testing.assert_frame_equal(again.comparisons, judgments.comparisons)
    pd.testing.assert_frame_equal(again.votes.drop(columns="row"), judgments.votes.drop(columns="row"))
    pd.testing.assert_frame_equal(again.annotators, judgments.annotators)
    assert [file.name for file in path.parent.glob("[!.]*.parquet")] == ["judgments.parquet"]


def test_a_part_reads_back_the_same(tmp_path):
    judgments = Judgments.read(many(), attributes=[Length()])
    for name, part in zip(("train", "held_out"), judgments.split(0.3), strict=True):
        part.to_parquet(tmp_path / f"{name}.parquet")
        again = Judgments.read(tmp_path / f"{name}.parquet", attributes=[Length()])
        assert again.fingerprint() == part.fingerprint()


def test_judgments_without_identities_read_back_without(tmp_path):
    judgments = Judgments.read(many().drop(columns="annotator"))
    judgments.to_parquet(tmp_path / "j.parquet")
    again = Judgments.read(tmp_path / "j.parquet")
    assert not again.has_identities
    assert again.fingerprint() == judgments.fingerprint()


def test_a_table_that_could_not_be_read_back_is_not_written(tmp_path):
    with pytest.raises(ConfigError, match="must end in .parquet"):
        Judgments.read(many()).to_parquet(tmp_path / "j.csv")


# -- privacy -------------------------------------------------------------------------------------------------


def test_raw_ids_leave_no_trace(tmp_path):
    rows = many().assign(annotator=lambda table: "raw-secret-" + table["annotator"])
    rows.loc[3, "winner"] = "tie"
    rows.loc[7, "annotator"] = "RAW-SECRET-person 1 "
    judgments = Judgments.read(rows, repeated="last")
    judgments.to_parquet(tmp_path / "j.parquet")
    told = [
        repr(judgments),
        *map(str, judgments.findings),
        judgments.dropped.to_csv(),
        judgments.annotators.to_csv(),
    ]
    told += [judgments.votes.to_csv(), judgments.comparisons.to_csv()]
    assert "raw-secret" not in "\n".join(told).casefold()
    assert b"raw-secret" not in (tmp_path / "j.parquet").read_bytes().lower()
    rows.loc[9, "winner"] = "neither"
    rows["annotator_class"] = ["one", "other", "third"] * 25
    with pytest.raises(DataError) as caught:
        Judgments.read(rows)
    assert "raw-secret" not in str(caught.value).casefold()
    assert "[ann_" in str(caught.value)


# -- properties ----------------------------------------------------------------------------------------------

TEXTS = st.sampled_from(["so", "because it is", "- a list", "no", "it just is so, and more"])
VOTES = st.lists(
    st.builds(
        lambda p, a, b, w, k, s: {
            **vote(w, k, a=a, b=b, prompt=f"p{p}"),
            "shown_first": s,
            "score_a": float(len(a)),
            "score_b": float(len(b)),
        },
        st.integers(0, 3),
        TEXTS,
        TEXTS,
        st.sampled_from(["a", "b", "tie"]),
        st.sampled_from(["x", "y", "z"]),
        st.sampled_from(["a", "b", None]),
    ).filter(lambda row: row["response_a"] != row["response_b"]),
    min_size=1,
    max_size=25,
).filter(lambda rows: any(row["winner"] != "tie" for row in rows))
ATTRIBUTES = [Length(), Markdown(), Position(), Column("score", "score_a", "score_b")]


def read(rows: list[dict]) -> Judgments:
    shown = [{**row, "shown_first": row["shown_first"] or "a"} for row in rows]
    return Judgments.read(shown, attributes=ATTRIBUTES)


def orientation_free(judgments: Judgments) -> list[tuple]:
    """What each vote says, whichever response is called a: sorted, so that row order does not matter."""
    votes = judgments.votes
    rows = judgments.comparisons.iloc[votes["comparison"]]
    names = judgments.annotators["pseudonym"].to_numpy()[votes["annotator"]]
    found = []
    for (_, row), sign, name, shown, delta in zip(
        rows.iterrows(), votes["sign"], names, votes["shown_first"], judgments.delta, strict=True
    ):
        chosen = row["response_a" if sign > 0 else "response_b"]
        other = row["response_b" if sign > 0 else "response_a"]
        first = row[f"response_{shown}"]
        found.append((row["prompt_id"], row["comparison_id"], chosen, other, name, first, *(sign * delta)))
    return sorted(found)


@settings(max_examples=40, deadline=None)
@given(rows=VOTES, flips=st.lists(st.booleans(), min_size=25, max_size=25))
def test_the_orientation_of_rows_does_not_matter(rows, flips):
    kept = [row for row in rows if row["winner"] != "tie"]
    straight = read(kept)
    first_of = {id(row): True for row in kept}
    seen = set()
    for row in kept:
        key = (row["prompt"], frozenset((row["response_a"], row["response_b"])))
        first_of[id(row)] = key not in seen
        seen.add(key)
    # the first row of a comparison gives it its orientation; any other row may come either way round
    some = read(
        [
            turned({**row, "shown_first": row["shown_first"] or "a"})
            if flip and not first_of[id(row)]
            else row
            for row, flip in zip(kept, flips, strict=False)
        ]
    )
    assert some.fingerprint() == straight.fingerprint()
    every = read([turned({**row, "shown_first": row["shown_first"] or "a"}) for row in kept])
    assert orientation_free(every) == orientation_free(straight)
    assert every.delta.tolist() == (-straight.delta).tolist()


@settings(max_examples=40, deadline=None)
@given(rows=VOTES, seed=st.integers(0, 2**20))
def test_the_order_of_rows_does_not_matter(rows, seed):
    shuffled = rows.copy()
    random.Random(seed).shuffle(shuffled)
    straight, mixed = read(rows), read(shuffled)
    assert orientation_free(mixed) == orientation_free(straight)
    for judgments in (straight, mixed):
        assert judgments.n_votes + judgments.dropped["n"].sum() == len(rows)
    assert sorted(mixed.dropped.values.tolist()) == sorted(straight.dropped.values.tolist())
    for one, other in zip(straight.offline_log_odds(), mixed.offline_log_odds(), strict=True):
        assert (one.n_cross, one.carrier_wins) == (other.n_cross, other.carrier_wins)
    held_out = [set(judgments.split(0.5)[1].comparisons["comparison_id"]) for judgments in (straight, mixed)]
    assert held_out[0] == held_out[1]


def test_the_models_go_along_where_every_row_has_them():
    rows = [
        vote("a", "x", model_a="m1", model_b="m2"),
        turned(vote("a", "y")) | {"model_a": "m2", "model_b": "m1"},
    ]
    judgments = Judgments.read(rows)
    assert judgments.comparisons[["model_a", "model_b"]].to_numpy().tolist() == [["m1", "m2"]]
    rows[1]["model_a"] = None
    assert "model_a" not in Judgments.read(rows).votes
