"""How pages are rendered and written: escaped, in one piece."""

from __future__ import annotations

import re
from pathlib import Path

import jinja2

from badpo.data.files import appearing


def page_templates() -> jinja2.Environment:
    """The templates of the pages; every value is escaped, and a missing one is an error."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("badpo.results", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["kept_together"] = _kept_together
    return environment


def _kept_together(text: str) -> str:
    """A number and its sign, and a p value, are not torn apart at the end of a line."""
    return re.sub(r"\bp ([<=]) (?=\d)", "p\u00a0\\1\u00a0", text.replace(" %", "\u00a0%"))


def write_whole(html: str, page: Path) -> Path:
    """Write a page and return its path; a page that was there is replaced only once the new one is whole."""
    with appearing(page) as unfinished:
        unfinished.write_text(html, encoding="utf-8")
    return page
