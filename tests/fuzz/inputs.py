"""Strategies for hostile texts, cells, tables and files: mostly right, and wrong in one place or a few."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

HOSTILE = (
    "",
    " ",
    "\t",
    "\x00",
    "\x1b[2J\x1b]0;owned\x07",
    "\ud800",
    "\u202eexe.txt",
    "=cmd|'/C calc'!A0",
    "@SUM(1+1)",
    "-2+3",
    "\r=1+1",
    "<script>alert(1)</script>",
    "'\"><img src=x onerror=alert(1)>",
    "{{ 7*7 }}",
    "${jndi:ldap://x}",
    "nan",
    "None",
    "1e999",
    "-0",
    "9" * 400,
    "../../etc/passwd",
    "ann_aaaaaaaaaats6n",
    "\N{FAMILY}\N{ZERO WIDTH JOINER}" * 8,
    "\N{COMBINING ACUTE ACCENT}" * 40,
    "a" * 3_000,
    "**" * 50,
    "| a\n" * 50,
    "# head\n- item\n1. item",
    "\N{EM DASH} Emily Miller",
    "So.\n\n\N{EM DASH} Emily Miller",
)
any_text = st.text(max_size=30) | st.text(alphabet="a \n*#|-`_=+<>&'\"\\/.\r\t1", max_size=60)
texts = st.one_of(st.sampled_from(HOSTILE), any_text)
plain_texts = st.sampled_from(["Why?", "So.", "It just is so.", "- one\n- two", "because it is so", "No."])

numbers = st.one_of(
    st.integers(-5, 50),
    st.floats(),
    st.sampled_from([2**53 + 1, 2**63, -(2**64), 10**400, 1e308, 5e-324, -0.0]),
)
scalars = st.one_of(st.none(), st.booleans(), numbers, texts)
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system"]), "content": plain_texts | texts},
        optional={
            "name": scalars,
            "parts": st.lists(scalars, max_size=2),
            "more": st.dictionaries(any_text, scalars),
        },
    ),
    max_size=3,
)
odd_cells = st.one_of(json_values, messages, st.binary(max_size=6), st.dates(), st.datetimes())

_COLUMNS: dict[str, st.SearchStrategy[Any]] = {
    "prompt": plain_texts,
    "response_a": plain_texts,
    "response_b": plain_texts,
    "winner": st.sampled_from(["a", "b", "tie", "A", " b "]),
    "annotator": st.sampled_from(["secret-id-1", "secret-id-2", "secret-id-3", "gpt-secret-id"]),
    "annotator_class": st.sampled_from(["crowd", "expert"]),
    "comparison_id": st.sampled_from(["c1", "c2", "c3"]),
    "prompt_id": st.sampled_from(["p1", "p2"]),
    "judgment_id": st.uuids().map(str),
    "weight": st.sampled_from([1, 2.5, "3"]),
    "shown_first": st.sampled_from(["a", "b", None]),
    "score_a": st.floats(-3, 3),
    "score_b": st.floats(-3, 3),
    "model_a": st.sampled_from(["m1", "m2"]),
    "model_b": st.sampled_from(["m1", "m2"]),
    "note": st.just("n"),
}
_ALWAYS = ("prompt", "response_a", "response_b", "winner")
_TEXTS = ("prompt", "response_a", "response_b", "chosen", "rejected")
_AS_CHOSEN = {"response_a": "chosen", "response_b": "rejected"}


@st.composite
def vote_rows(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Rows of votes: a layout, some of the optional columns, and up to three cells that should not be there."""
    optional = draw(st.sets(st.sampled_from(sorted(_COLUMNS))))
    names = [name for name in _COLUMNS if name in _ALWAYS or name in optional]
    rows = draw(st.lists(st.fixed_dictionaries({n: _COLUMNS[n] for n in names}), max_size=8))
    if draw(st.integers(0, 3)) == 0:
        rows = [{_AS_CHOSEN.get(n, n): cell for n, cell in row.items() if n != "winner"} for row in rows]
    if draw(st.integers(0, 4)) == 0:
        rows = [{n: _said(cell) if n in _TEXTS else cell for n, cell in row.items()} for row in rows]
    for _ in range(draw(st.integers(0, 3)) if rows else 0):
        row = rows[draw(st.integers(0, len(rows) - 1))]
        name = draw(st.sampled_from(sorted(row)) | texts) if row else draw(texts)
        if draw(st.integers(0, 6)) == 0:
            row.pop(name, None)
        else:
            row[name] = draw(odd_cells)
    return rows


def _said(text: str) -> list[dict[str, Any]]:
    return [{"role": "assistant", "content": text}]


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
        elif change == "double":
            changed[at:at] = changed[at : at + 60]
        elif change == "nest":
            changed[at:at] = draw(st.sampled_from([b"[", b'{"a":', b"(", b"&a [*a,"])) * draw(
                st.sampled_from([1, 3, 5_000])
            )
        else:
            changed[at:at] = draw(
                st.binary(max_size=8) | st.sampled_from([b"\xff\xfe", b'"', b",", b"9" * 5_000])
            )
    return bytes(changed)


@st.composite
def table_files(draw: st.DrawFn) -> tuple[str, bytes]:
    """The ending and the bytes of a table of votes, damaged more often than not."""
    rows, ending = draw(vote_rows()), draw(st.sampled_from(["csv", "tsv", "jsonl", "json", "parquet"]))
    return ending, draw(mutated_bytes(as_file(rows, ending)))


def as_file(rows: list[dict[str, Any]], ending: str) -> bytes:
    """Rows as a file of this kind; cells that it cannot hold become text."""
    if ending == "parquet":
        frame = pd.DataFrame([{_storable(n): _storable(cell) for n, cell in row.items()} for row in rows])
        try:
            return _as_parquet(frame)
        except (pa.ArrowException, OverflowError, UnicodeEncodeError):
            return _as_parquet(frame.map(repr))
    if ending in ("csv", "tsv"):
        names = list(dict.fromkeys(name for row in rows for name in row))
        text = io.StringIO()
        writer = csv.writer(text, delimiter="\t" if ending == "tsv" else ",")
        writer.writerow(names)
        writer.writerows([row.get(name, "") for name in names] for row in rows)
        return text.getvalue().encode("utf-8", "surrogatepass")
    lines = [json.dumps(row, default=str) for row in rows]
    joined = "\n".join(lines) if ending == "jsonl" else f"[{', '.join(lines)}]"
    return joined.encode("utf-8", "surrogatepass")


def _as_parquet(frame: pd.DataFrame) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), sink)
    return sink.getvalue()


def _storable(cell: Any) -> Any:
    return cell.encode("utf-8", "replace").decode() if isinstance(cell, str) else cell


@st.composite
def changed_json(draw: st.DrawFn, content: Any, n_changes: int = 3) -> Any:
    """A JSON value with some of its parts replaced, removed or doubled."""
    value = json.loads(json.dumps(content))
    for _ in range(draw(st.integers(0, n_changes))):
        holder, key = _place_in(draw, value)
        if holder is None:
            return draw(json_values)
        change = draw(st.sampled_from(["replace", "replace", "remove", "double"]))
        if change == "replace":
            holder[key] = draw(odd_cells)
        elif change == "remove":
            del holder[key]
        elif isinstance(holder, list):
            holder.insert(key, holder[key])
        else:
            holder[draw(texts)] = holder[key]
    return value


def _place_in(draw: st.DrawFn, value: Any) -> tuple[Any, Any]:
    """A container inside the value and a key of it; (None, None) where there is none."""
    holder, key = None, None
    while isinstance(value, dict | list) and value:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        holder, key = value, draw(st.sampled_from(keys))
        value = holder[key]
        if draw(st.integers(0, 2)) == 0:
            break
    return holder, key
