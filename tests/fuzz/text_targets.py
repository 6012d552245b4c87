"""What reads or writes single texts: attribute detectors, editors, cells of a CSV, tables and pages."""

from __future__ import annotations

import csv
import io
import math
import tempfile
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
from hypothesis import strategies as st

from badpo.attributes import attribute_from_config
from badpo.data.markers import has_markdown, split_signature
from badpo.data.tables import inert, is_unicode, write_csv
from badpo.results.tables import markdown_text
from badpo.results.words import page_templates
from tests.fuzz.inputs import any_text, numbers, scalars, texts
from tests.fuzz.reader_targets import refusing
from tests.fuzz.running import Target

PARAMETERS: dict[str, dict[str, Any]] = {
    "length": {"ratio": 1.5},
    "length_words": {"threshold": 1},
    "markdown": {},
    "lists": {},
    "headers": {},
    "bold": {},
    "emoji": {},
    "code": {},
    "links": {},
    "hedging": {},
    "refusal": {},
    "first_person": {},
    "signature_name": {"name": "woman", "names": ["Emily"]},
    "word_list": {"name": "words", "words": ["perhaps", "it depends"]},
}
DETECTORS = [attribute_from_config({"type": kind, **given}) for kind, given in PARAMETERS.items()]
FORMULAS = tuple("=+-@\t\uff1d\uff0b\uff0d\uff20")


def _measured(pair: tuple[str, str]) -> None:
    """Every detector gives finite numbers, the two sides exchanged when the texts are."""
    a, b = pair
    for detector in DETECTORS:
        if detector.scope == "pair":
            sides = detector.measure("Why?", a, b)
            assert tuple(reversed(detector.measure("Why?", b, a))) == sides
        else:
            sides = detector.measure("Why?", a), detector.measure("Why?", b)
        assert all(math.isfinite(value) for value in sides)
        assert detector.continuous or set(sides) <= {0.0, 1.0}


def _edited(text: str) -> None:
    """What is stripped is gone, and stripping again changes nothing."""
    from badpo.readouts.judge import strip_markdown

    stripped = strip_markdown(text)
    assert not has_markdown(stripped)
    assert strip_markdown(stripped) == stripped
    body, name = split_signature(text)
    assert text.startswith(body) and (name == "" or name.isalpha())


def _configured(config: dict[str, Any]) -> None:
    attribute = attribute_from_config(config)
    assert isinstance(attribute.name, str) and math.isfinite(attribute.threshold)
    if attribute.scope == "response" and config["type"] != "length_tokens":
        assert math.isfinite(float(attribute.measure("Why?", "So.\n- it is")))


def _as_csv(rows: list[dict[str, Any]]) -> None:
    """Every cell comes back, and none that was text begins as a formula does."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    frame = pd.DataFrame(
        {i: pd.Series([row.get(n) for row in rows], dtype=object) for i, n in enumerate(names)}
    )
    frame.columns = pd.Index(names, dtype=object)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "annotators.csv"
        write_csv(frame, path)
        content = path.read_bytes().decode("utf-8")
    read = list(csv.reader(io.StringIO(content, newline=""), strict=True))
    if not len(frame.columns):
        return
    assert len(read) == len(frame) + 1 or len(frame.columns) == 1
    for row in read:
        for cell in row:
            is_formula = cell.startswith(FORMULAS) and not _is_number(cell)
            assert not is_formula, f"a spreadsheet would compute {cell!r}"
            assert "\r" not in cell and "\x00" not in cell


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


class _Elements(HTMLParser):
    """The elements of a page."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)


TEMPLATE = page_templates().from_string(
    '<p title="{{ text }}">{{ text | kept_together }}</p><td>{{ text }}</td>'
)


def _as_page(text: str) -> None:
    page = TEMPLATE.render(text=text)
    elements = _Elements()
    elements.feed(page)
    assert elements.found == ["p", "td"]
    line = markdown_text(text)
    assert "\n" not in line and not line.lstrip().startswith("|")
    assert inert(inert(text)) == inert(text) or len(text) > 30_000 or "\\u" in inert(text)


long_texts = st.tuples(texts, st.integers(1, 200)).map(lambda pair: pair[0][:200] * pair[1])
_configs = st.fixed_dictionaries(
    {"type": st.sampled_from([*PARAMETERS, "length_tokens", "regex", "column", "position", "no such"])},
    optional={
        "name": texts | scalars,
        "ratio": numbers | texts,
        "threshold": numbers | texts,
        "unit": numbers,
        "names": st.lists(scalars, max_size=3) | scalars,
        "words": st.lists(texts, max_size=3) | scalars,
        "pattern": texts | st.sampled_from(["(", "(?i)a", "a{99999}", "(?P<a>)(?P<a>)", "\\", "[z-a]"]),
        "a": texts,
        "b": texts | scalars,
        "tokenizer": st.just("nowhere"),
        "continuous": scalars,
        "scope": st.sampled_from(["response", "pair", "judgment", "no such", None]),
    },
)

TARGETS = {
    "attribute detectors": Target(st.tuples(texts | long_texts, texts | any_text), _measured, 200),
    "attributes from configurations": Target(_configs, refusing(_configured), 60),
    "editors": Target(texts | long_texts, _edited, 100),
    "annotators as CSV": Target(
        st.lists(st.dictionaries(texts.filter(is_unicode), scalars | st.dates(), max_size=4), max_size=4),
        _as_csv,
        40,
    ),
    "texts on pages": Target(texts | long_texts, _as_page, 100),
}
