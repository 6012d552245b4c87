"""Strategies for hostile texts, cells, tables and files: mostly right, and wrong in one place or a few."""

import io
import json
from typing import Any

import pandas as pd
import pyarrow as pa
from hypothesis import strategies as st

HOSTILE = (
    *("", " ", "\t", "\x00", "\ud800", "\u202eexe.txt", "-2+3", "\r=1+1", "nan", "None", "1e999", "-0"),
    *("\x1b[2J\x1b]0;owned\x07", "=cmd|'/C calc'!A0", "{{ 7*7 }}", "../../etc/passwd"),
    *("<script>alert(1)</script>", "'\"><img src=x onerror=alert(1)>", "ann_aaaaaaaaaats6n"),
    *("9" * 400, "a" * 3_000, "**" * 50, "| a\n" * 50, "# head\n- item"),
    *("\N{FAMILY}\N{ZERO WIDTH JOINER}" * 8, "So.\n\n\N{EM DASH} Emily Miller"),
)
texts = (
    st.sampled_from(HOSTILE) | st.text(max_size=30) | st.text("a \n*#|-`_=+<>&'\"\\/.\r\t1", max_size=60)
)
_PLAIN = ("Why?", "So.", "It just is so.", "- one\n- two", "because it is so", "No.")
plain_texts = st.sampled_from(_PLAIN)
odd_numbers = st.sampled_from([2**53 + 1, 2**63, -(2**64), 10**400, 1e308, 5e-324, -0.0])
scalars = st.one_of(st.none(), st.booleans(), st.integers(-5, 50), st.floats(), odd_numbers, texts)
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system"]), "content": texts},
        optional={"name": scalars, "more": st.dictionaries(texts, scalars)},
    ),
    max_size=3,
)
odd_cells = st.one_of(json_values, messages, st.binary(max_size=6), st.dates(), st.datetimes())

_TEXTS = ("prompt", "response_a", "response_b")
_VOTES: dict[str, st.SearchStrategy[Any]] = dict.fromkeys(_TEXTS, plain_texts) | {
    "winner": st.sampled_from(["a", "b", "tie", "A", " b "])
}
_OPTIONAL: dict[str, st.SearchStrategy[Any]] = {
    "annotator": st.sampled_from(["secret-id-1", "secret-id-2", "secret-id-3", "gpt-secret-id"]),
    "annotator_class": st.sampled_from(["crowd", "expert"]),
    "comparison_id": st.sampled_from(["c1", "c2", "c3"]),
    "prompt_id": st.sampled_from(["p1", "p2"]),
    "judgment_id": st.uuids().map(str),
    "weight": st.sampled_from([1, 2.5, "3"]),
    "shown_first": st.sampled_from(["a", "b", None]),
    **dict.fromkeys(("score_a", "score_b"), st.floats(-3, 3)),
    **dict.fromkeys(("model_a", "model_b"), st.sampled_from(["m1", "m2"])),
}
_ONE_OF_MANY = st.integers(0, 60)
_AS_CHOSEN = {"response_a": "chosen", "response_b": "rejected"}


@st.composite
def vote_rows(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Rows of votes: a layout, some of the optional columns, and up to three cells that should not be there."""
    optional = draw(st.sets(st.sampled_from(sorted(_OPTIONAL))))
    cells = _VOTES | {name: cell for name, cell in _OPTIONAL.items() if name in optional}
    rows = draw(st.lists(st.fixed_dictionaries(cells), max_size=8))
    if draw(st.integers(0, 3)) == 0:
        rows = [{_AS_CHOSEN.get(n, n): cell for n, cell in row.items() if n != "winner"} for row in rows]
    if draw(st.integers(0, 4)) == 0:  # chat
        for row in rows:
            for name in {*_TEXTS, "chosen", "rejected"} & {*row}:
                row[name] = [{"role": "assistant", "content": row[name]}]
    for _ in range(draw(st.integers(0, 3)) if rows else 0):
        row = draw(st.sampled_from(rows))
        name = draw(st.sampled_from(sorted(row)) | texts) if row else draw(texts)
        if draw(st.integers(0, 6)) == 0:
            row.pop(name, None)
        else:
            row[name] = draw(odd_cells)
    return rows


@st.composite
def mutated_bytes(draw: st.DrawFn, content: bytes) -> bytes:
    """The bytes as they are, or cut, flipped, doubled or with something put in between."""
    changed = bytearray(content)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(changed)))
        change = draw(st.sampled_from(["cut", "flip", "insert", "double", "nest"]))
        if change == "cut":
            del changed[at : at + draw(st.integers(1, 40))]
        elif change == "flip" and at < len(changed):
            changed[at] ^= 1 << draw(st.integers(0, 7))
        else:
            odd = st.sampled_from([b"\xff\xfe", b'"', b",", b"9" * 5_000])
            nested = [b"[", b'{"a":', b"(", b"&a [*a,"]
            put_in = {
                "insert": st.binary(max_size=8) | odd,
                "nest": st.sampled_from([one * n for one in nested for n in (1, 3, 5_000)]),
            }.get(change, st.just(changed[at : at + 60]))
            changed[at:at] = draw(put_in)
    return bytes(changed)


@st.composite
def table_files(draw: st.DrawFn, *endings: str) -> tuple[str, bytes]:
    """The ending and the bytes of a table of votes, damaged more often than not."""
    ending = draw(st.sampled_from(endings))
    return ending, draw(mutated_bytes(as_file(draw(vote_rows()), ending)))


def as_file(rows: list[dict[str, Any]], ending: str) -> bytes:
    """Rows as a file of this kind; cells that it cannot hold become text."""
    if ending in ("csv", "tsv", "parquet"):
        # pandas cannot infer the type of half of a surrogate pair as a column's name
        named = [
            {str(name).encode(errors="replace").decode(): cell for name, cell in row.items()}
            for row in rows
        ]
        frame, sink = pd.DataFrame(named, dtype=object), io.BytesIO()
        if ending != "parquet":
            text = frame.to_csv(index=False, sep="\t" if ending == "tsv" else ",")
            return text.encode(errors="surrogatepass")
        try:
            frame.to_parquet(sink)
        except (pa.ArrowException, OverflowError, UnicodeEncodeError):
            sink = io.BytesIO()
            frame.map(repr).to_parquet(sink)
        return sink.getvalue()
    lines = [json.dumps(row, default=str) for row in rows]
    return ("\n".join(lines) if ending == "jsonl" else f"[{', '.join(lines)}]").encode()


@st.composite
def changed_json(draw: st.DrawFn, value: Any) -> Any:
    """A JSON value with a part here and there replaced, removed or under another name."""

    def changed(value: Any) -> Any:
        change = draw(_ONE_OF_MANY)
        if change == 0:
            return draw(odd_cells)
        if isinstance(value, list):
            return [changed(part) for part in (value[1:] if change == 1 else value)]
        if isinstance(value, dict):
            parts = {name: changed(part) for name, part in value.items()}
            if parts and change == 1:
                parts[draw(texts)] = parts.pop(draw(st.sampled_from(sorted(parts))))
            return parts
        return value

    return changed(value)
