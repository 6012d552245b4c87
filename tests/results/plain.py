"""Sentences without the characters that only typography needs."""


def plain(text: str) -> str:
    """The text with ordinary spaces, minus signs and apostrophes."""
    for typographic, ordinary in (("\u00a0", " "), ("\u2212", "-"), ("\u2019", "'")):
        text = text.replace(typographic, ordinary)
    return text
