"""What every page is asked: that it stands alone and that no text of a file does anything on it."""

import re
from html.parser import HTMLParser

VOID = {"meta", "br"}
HOSTILE = (
    '"><script>alert(1)</script><img src=x onerror=y>',
    "\u202ee\u2066\x1b[31m\x00" + "x" * 1_000_000,
)
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069]")


class Page(HTMLParser):
    """Tags, attributes and text of a page; raises where tags do not nest."""

    def __init__(self, html: str):
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open, f"not closed: {self._open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open and self._open[-1] == tag, f"</{tag}> closes {self._open[-3:]}"
        self._open.pop()

    def handle_data(self, data):
        self.text += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


def assert_inert(html: str) -> None:
    """No script, no picture, no handler, no control character, and no long text."""
    page = Page(html)
    assert not any(page.count(tag) for tag in ("script", "link", "img", "iframe", "form"))
    places = {"#" + attributes["id"] for _, attributes in page.tags if "id" in attributes}
    assert {attributes["href"] for tag, attributes in page.tags if tag == "a"} <= places
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert not CONTROLS.search(html)
    assert len(html) < 500_000


def assert_stands_alone(html: str) -> None:
    """The page needs no network, follows light, dark and narrow windows and paper, and knows every number it prints."""
    assert_inert(html)
    metas = [a for tag, a in Page(html).tags if tag == "meta"]
    policies = [a["content"] for a in metas if a.get("http-equiv") == "Content-Security-Policy"]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]
    assert set(re.findall(r"https?://[^\s\"'<)]+", html)) == {"http://www.w3.org/2000/svg"}
    assert "url(" not in html and "@import" not in html
    assert "@media (prefers-color-scheme: dark)" in html and "@media print" in html
    assert 'name="viewport" content="width=device-width, initial-scale=1"' in html
    # what is wider than the window scrolls in a box of its own
    assert html.count("<table") == html.count('<div class="scroll"')
    assert "nan" not in re.sub(r"<style>.*?</style>", "", html, flags=re.S).lower().split()
    for figure in re.findall(r"<figure>.*?</figure>", html, re.S):
        assert re.search(r"<figcaption>\S.*?</figcaption>", figure, re.S)
        assert "<title>" in figure and 'role="img" aria-label="' in figure
