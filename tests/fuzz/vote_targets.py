"""What computes from votes: the audit on sparse designs, the estimators beneath it, calibration and tilts."""

from __future__ import annotations

import json
import re
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from badpo.attributes import Bold, Column, Length, LengthWords, Markdown, Position
from badpo.auditing.audit import audit
from badpo.auditing.result import AuditResult
from badpo.data.judgments import Judgments
from badpo.estimation.pool import offline_log_odds
from badpo.theory.identifiability import annotator_components, free_directions
from tests.fuzz.inputs import HOSTILE
from tests.fuzz.reader_targets import refusing
from tests.fuzz.running import Target

NOT_A_NUMBER = re.compile(r"(?<![\w/])nan(?!\w)", re.IGNORECASE)
NOT_A_FIGURE = re.compile(r"(?<![\w/])[+-]?(?:nan|inf|infinity)(?!\w)", re.IGNORECASE)
TEXTS = ("So.", "It just is so, always and for everyone.", "- it is so", "**so**", "so", "It is", "")
_NAMES = ("", "crowd", "<b>staff</b>", *[text for text in HOSTILE if text.strip() and text.isprintable()][:8])


@st.composite
def sparse_votes(draw: st.DrawFn) -> dict[str, Any]:
    """Few votes of few people on few comparisons, with options of the audit."""
    n_people = draw(st.integers(1, 6))
    told = {
        "annotator": draw(st.booleans()) or n_people > 2,
        "annotator_class": draw(st.booleans()),
        "shown_first": draw(st.booleans()),
    }
    one_pair = st.tuples(st.sampled_from(TEXTS), st.sampled_from(TEXTS), st.integers(0, 5))
    pairs = draw(st.lists(one_pair, min_size=1, max_size=12))
    who, which = st.integers(0, n_people - 1), st.integers(0, len(pairs) - 1)
    one_vote = st.tuples(which, who, st.sampled_from("ab"), st.sampled_from(["a", "b", None]))
    one_way = draw(st.integers(0, 5)) == 0
    classes = draw(st.lists(st.sampled_from(_NAMES), min_size=n_people, max_size=n_people))
    rows = []
    for c, k, won, shown in draw(st.lists(one_vote, min_size=1, max_size=50)):
        a, b, prompt = pairs[c]
        row = {"prompt": f"q{prompt}", "response_a": a, "response_b": b, "winner": "a" if one_way else won}
        cells = {"annotator": f"p{k}", "annotator_class": classes[k], "shown_first": shown}
        row |= {name: cell for name, cell in cells.items() if told[name]}
        rows.append(row | {"q_a": len(a) + c, "q_b": len(b), "x_a": float(c % 3), "x_b": 0.25})
    chosen = draw(st.sets(st.sampled_from(range(6)), min_size=1, max_size=3))
    options: dict[str, Any] = {
        "quality": draw(st.sampled_from([None, None, "conditional", "random", "fixed:q"])),
        "min_informative": draw(st.sampled_from([1, 3, 10])),
        "anchors": draw(st.sampled_from([(), (), ("p0",), ("p0", "p1")])),
    }
    return {"rows": rows, "attributes": sorted(chosen), "options": options}


_ATTRIBUTES = (
    Length(),
    Markdown(),
    Bold(),
    Position(),
    LengthWords(threshold=2, unit=10),
    Column("x", a="x_a", b="x_b"),
)


def _audited(value: dict[str, Any]) -> None:
    """The audit answers or refuses in words, and no figure of it is none."""
    attributes = [_ATTRIBUTES[i] for i in value["attributes"]]
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        judgments = Judgments.read(value["rows"], attributes=attributes, keep=["q_a", "q_b"])
        result = audit(judgments, **value["options"])
        _no_empty_figure(result)


def _no_empty_figure(result: AuditResult) -> None:
    json.dumps(result.summary, allow_nan=False)
    _ordered(result.summary)
    with tempfile.TemporaryDirectory() as folder:
        result.write(Path(folder))
        table = (Path(folder) / "annotators.csv").read_text(encoding="utf-8")
    # a table says that the estimate of somebody who always voted one way is infinite
    for text, figures in ((str(result), NOT_A_FIGURE), (table, NOT_A_NUMBER)):
        found = figures.search(text)
        assert not found, f"...{text[max(0, found.start() - 80) : found.end() + 40]}..."


def _ordered(value: Any) -> None:
    """Every interval holds its ends in order and apart: one of no width would claim certainty."""
    if isinstance(value, dict):
        low, high = value.get("ci_low"), value.get("ci_high")
        assert low is None or high is None or low < high, value
        for entry in value.values():
            _ordered(entry)
    elif isinstance(value, list):
        for entry in value:
            _ordered(entry)


def documented(compute: Any) -> Any:
    """The check that a function of arrays answers or raises the ValueError that it documents, with words in it."""

    def checked(value: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            try:
                compute(value)
            except ValueError as error:
                assert len(str(error)) > 10

    return checked


@st.composite
def _designs(draw: st.DrawFn) -> tuple[Any, ...]:
    n, q, people = draw(st.integers(0, 25)), draw(st.integers(1, 3)), draw(st.integers(1, 5))

    def rows(values: st.SearchStrategy[Any]) -> Any:
        return draw(st.lists(values, min_size=n, max_size=n))

    delta = np.array(rows(st.lists(st.sampled_from([-1.0, 0.0, 1.0, 0.5]), min_size=q, max_size=q))).reshape(
        n, q
    )
    comparison, annotator = rows(st.integers(0, 8)), rows(st.integers(0, people - 1))
    return (
        np.array(comparison, int),
        np.array(annotator, int),
        delta,
        np.array(rows(st.sampled_from([1, -1])), int),
        people,
    )


def _identified(value: tuple[Any, ...]) -> None:
    comparison, annotator, delta, sign, people = value
    groups = annotator_components(comparison, annotator, delta != 0, people)
    assert groups.shape == (people, delta.shape[1])
    free = free_directions(comparison, annotator, delta, people)
    assert 0 <= free.n_free <= people * delta.shape[1]
    for found in offline_log_odds(sign, delta, delta != 0, comparison):
        ends = (found.ci_low, found.log_odds, found.ci_high)
        known = [end for end in ends if end is not None]
        assert np.isfinite(known).all() and known == sorted(known)


TARGETS = {
    "audit of sparse designs": Target(sparse_votes(), refusing(_audited), 14),
    "what a design identifies": Target(_designs(), documented(_identified), 40),
}
