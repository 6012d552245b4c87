"""How pages are rendered and written: escaped, in one piece."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import jinja2


def page_templates() -> jinja2.Environment:
    """The templates of the pages; every value is escaped, and a missing one is an error.

    Examples
    --------
    >>> page_templates().from_string("{{ name }}").render(name="<b>")
    '&lt;b&gt;'
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("badpo.results", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["kept_together"] = lambda text: text.replace(" %", "\u00a0%")
    return environment


def write_whole(html: str, page: Path) -> Path:
    """Write a page and return its path; a page that was there is replaced only once the new one is whole.

    Examples
    --------
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_whole("<p>so</p>", Path(folder) / "page.html").read_text()
    '<p>so</p>'
    """
    page.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=page.parent, prefix=f".{page.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(html)
        os.chmod(temporary, 0o644)
        os.replace(temporary, page)
    except BaseException:
        os.unlink(temporary)
        raise
    return page
