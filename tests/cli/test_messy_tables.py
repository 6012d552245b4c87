"""Tables as people have them: each is audited at once, or answered with a command that audits it when pasted."""

import csv
import io
import itertools
import json
import random
import shlex
from pathlib import Path

import pytest

from tests.public_face import invoke

N_TABLES, N_PROMPTS, PEOPLE = 40, 30, ("Zoë", "Jürgen", "Ann Lee")
ENCODINGS = ["utf-8", "utf-8-sig", "cp1252", "utf-16", "utf-16-le", "xlsx"]
SEPARATORS = ",;\t|"
HEADERS = ["plain", "title", "repeated", "spaced", "others", "foreign"]
LAYOUTS = ["long", "long", "long", "chosen", "wide", "counts", "ratings", "ranks", "ticked"]
LAYOUTS += ["signed", "likert", "ranking"]
# both sides and a tie in the words of a label
WORDS = {
    "a": ("a", "b", "tie"),
    "1": ("1", "2", "tie"),
    "left": ("left", "right", "same"),
    "model_a": ("model_a", "model_b", "tie (bothbad)"),
    "Response A": ("Response A", "Response B", "Equal"),
    "response_1": ("response_1", "response_2", "both"),
    "0": ("0", "1", "tie"),
    "-1": ("-1", "1", "0"),
    "A>B": ("A>B", "B>A", "A=B"),
    "model": ("gpt-x", "llama-y", "tie"),
    "foreign": ("links", "rechts", "gleich"),
}
LABELS = (*WORDS, "text")
OURS = ("prompt", "response_a", "response_b", "winner", "annotator")
NAMES = {
    "spaced": "prompt|Response A|Response B|winner|Annotator ID",
    "others": "Question|answer_1|answer_2|preferred|worker_id",
    "foreign": "Frage|Text links|Text rechts|Urteil|Wer",
}


def truth(seed: int) -> list[dict]:
    """Comparisons with one vote of each person (1, -1 or 0): longer answers win more often than not."""
    rng, found = random.Random(seed), []
    for i in range(N_PROMPTS):
        long = f"Yes; number {i}, because “é” | it is so, and\nfor many other reasons that take a while to tell"
        short = f"No, not in case {i} of these"
        a, b = (long, short) if rng.random() < 0.5 else (short, long)
        longer = 1 if a == long else -1
        votes = [0 if rng.random() < 0.1 else longer if rng.random() < 0.7 else -longer for _ in PEOPLE]
        found.append({"prompt": f"What of case {i}, dear café?", "a": a, "b": b, "votes": votes})
    return found


def label(vote: int, form: str, row: dict) -> str:
    sides = (row["a"], row["b"], "tie") if form == "text" else WORDS[form]
    return sides[(1, -1, 0).index(vote)]


def table(rows: list[dict], layout: str, form: str) -> list[dict]:
    """The votes as records in a layout, under our names where it has them."""
    found: list[dict] = []
    for row in rows:
        base, cast = dict(zip(OURS, (row["prompt"], row["a"], row["b"]), strict=False)), row["votes"]
        if form == "model" and layout in ("long", "wide"):
            base |= {"model_a": "gpt-x", "model_b": "llama-y"}
        if layout == "wide":
            labels = (label(vote, form, row) for vote in cast)
            found.append(base | dict(zip(PEOPLE, labels, strict=True)))
        elif layout == "counts":
            names = {"votes_a": 1, "votes_b": -1, "ties": 0}
            found.append(base | {name: str(cast.count(vote)) for name, vote in names.items()})
        elif layout == "chosen":
            for who, vote in zip(PEOPLE, cast, strict=True):
                won, lost = (row["a"], row["b"])[:: vote or 1]
                sides = {"chosen": won, "rejected": lost}
                found += [{"prompt": row["prompt"], **sides, "annotator": who}] * abs(vote)
        else:
            for who, vote in zip(PEOPLE, cast, strict=True):
                found.append(record(base, vote, layout, form, row, len(found)) | {"annotator": who})
    return found


def record(base: dict, vote: int, layout: str, form: str, row: dict, n: int) -> dict:
    """One vote in a layout that has a row for each."""
    score = vote * (1 + n % 3)
    match layout:
        case "long":
            return base | {"winner": label(vote, form, row)}
        case "ratings":
            return base | {"rating_a": f"{3 + vote / 2}".replace(".", ","), "rating_b": "3"}
        case "ranks":
            return base | {"Rank A": str(2 - vote), "Rank B": "2"}
        case "ticked":
            names = {"winner_model_a": 1, "winner_model_b": -1, "winner_tie": 0}
            return base | {name: str(vote == meant).lower() for name, meant in names.items()}
        case "signed" | "likert":
            return base | {"score": str(score + 4 * (layout == "likert"))}
    ranks = {1: "123", -1: "213", 0: "113"}[vote]
    texts = [row["a"], row["b"], "Something else that nobody likes at all"]
    numbered = {f"response_{k}": text for k, text in enumerate(texts, start=1)}
    ranked = {f"rank_{k}": rank for k, rank in enumerate(ranks, start=1)}
    return {"prompt": row["prompt"]} | numbered | ranked


def cells(records: list[dict], header: str) -> list[list[str]]:
    names = [*records[0]]
    theirs = dict(zip(OURS, NAMES.get(header, "|".join(OURS)).split("|"), strict=True))
    shown = [theirs.get(name, name) for name in names]
    body = [[record[name] for name in names] for record in records]
    if header == "title":
        return [["Votes of spring, final"], [], shown, *body]
    if header == "repeated":
        half = len(body) // 2
        return [shown, *body[:half], shown, *body[half:]]
    return [shown, *body]


def write(rows: list[list[str]], encoding: str, separator: str, folder: Path) -> Path:
    if encoding == "xlsx":
        openpyxl = pytest.importorskip("openpyxl")
        book = openpyxl.Workbook()
        for row in rows:
            # a spreadsheet holds numbers as numbers
            book.active.append([float(cell) if cell.lstrip("-").isdigit() else cell for cell in row])
        book.save(folder / "votes of spring.xlsx")
        return folder / "votes of spring.xlsx"
    text = io.StringIO()
    csv.writer(text, delimiter=separator, lineterminator="\r\n").writerows(rows)
    path = folder / "votes of spring.csv"
    path.write_bytes(text.getvalue().encode(encoding))
    return path


def pasted(result) -> list[str]:
    """The first command that a message offers."""
    lines = [line.strip() for line in result.stderr.splitlines()]
    offered = [line for line in lines if line.startswith("badpo ")]
    assert offered, result.stderr
    assert not any({*"{}"} & {*line} for line in offered), "a name in braces was not filled in"
    return shlex.split(offered[0])[1:]


@pytest.mark.parametrize("typed", [[], ["--column", "annotator=wer"], ["--column=annotator=wer"]])
def test_the_offered_command_names_who_voted_and_takes_the_place_of_a_mistyped_name(typed, tmp_path):
    rows = [
        {
            "Frage": f"Why is task {i} so hard?",
            "Antwort 1": f"Nobody knows {i} at all",
            "Antwort 2": f"Somebody knows {i} and says so at length, with a reason for all of it",
        }
        for i in range(12)
    ]
    rows = [
        row | {"besser?": f"Antwort {1 + i % 2}", "Wer": f"p{i % 3}", "Datum": f"{i % 4} May"}
        for i, row in enumerate(rows)
    ]
    path = write([[*rows[0]], *([*row.values()] for row in rows)], "utf-8", ",", tmp_path)
    told = invoke("audit", path, *typed, "--out", tmp_path / "audit").stderr
    assert "found: Frage, Antwort 1, Antwort 2, besser?, Wer, Datum" in told
    assert "who voted?" not in told
    offered = [line for line in told.splitlines() if "badpo audit" in line]
    assert offered and all(line.count("annotator=Wer") == line.count("annotator=") for line in offered)
    again = invoke(*shlex.split(offered[-1])[1:])
    assert again.exit_code == 0, again.output
    assert "everyone" not in again.output and (
        'column "Wer"' in again.output or "annotator=Wer" in offered[-1]
    )


EVERY = [*itertools.product(ENCODINGS, SEPARATORS, HEADERS, LABELS, LAYOUTS)]
DRAWN = random.Random(18).sample(EVERY, N_TABLES)


@pytest.mark.parametrize(("encoding", "separator", "header", "form", "layout"), DRAWN)
def test_a_messy_table_is_audited_or_answered(encoding, separator, header, form, layout, tmp_path):
    rows = truth(seed=7)
    path = write(cells(table(rows, layout, form), header), encoding, separator, tmp_path)
    told = audit = "audit", path, "--out", tmp_path / "audit"
    result = invoke(*told)
    if result.exit_code != 0:
        assert result.exit_code == 3, result.stderr
        told = pasted(result)
        result = invoke(*told)
    assert result.exit_code == 0, (told, result.stderr[-3000:])
    (length,) = json.loads((tmp_path / "audit" / "audit.json").read_text())["attributes"]
    signs = [v * (len(row["a"]) - len(row["b"])) for row in rows for v in row["votes"] if v]
    n, n_wins = len(signs), sum(sign > 0 for sign in signs)
    if layout == "ranking":
        # a best answer that is longer also beats the third, which is as short as the other; so does the first of two
        n_first = sum(v == 0 and len(row["a"]) > len(row["b"]) for row in rows for v in row["votes"])
        n, n_wins = n + n_wins + n_first, 2 * n_wins + n_first
    assert length["n_cross"] == n
    is_confirmed = told != audit
    wins = length["win_rate"]
    assert wins == pytest.approx(n_wins / n) or (is_confirmed and wins == pytest.approx(1 - n_wins / n))
    assert not any(who in result.output for who in ("Jürgen", "Ann Lee"))
