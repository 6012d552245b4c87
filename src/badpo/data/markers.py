"""Find Markdown, emoji, links, signatures and words in texts, in linear time."""

import re
from collections.abc import Iterable

# As in the paper's detector, headers and list items start with a marker that is followed by white space.
# White space may precede the marker. ``[^\S\n]`` matches white space within a line; ``\s`` would rescan blank lines.
_INDENT = r"^[^\S\n]*"
HEADER = re.compile(_INDENT + r"#{1,6}\s", re.MULTILINE)
LIST = re.compile(_INDENT + r"(?:[-*+]|\d+\.)\s", re.MULTILINE)
TABLE = re.compile(_INDENT + r"\|.*\|[^\S\n]*$", re.MULTILINE)
BOLD = re.compile(r"\*\*[^*]+\*\*")
FENCE = re.compile("```")
# a web address, or the characters "](" in the middle of a Markdown link
# the pattern does not match the text of a Markdown link, because the search would then take quadratic time
LINK = re.compile(r"https?://\w|(?<!\w)www\.\w|\]\([^\s()]", re.IGNORECASE)
# Unlike the pattern _SIGNATURE, the paper's published detector accepts tabs and line breaks in a signature.
# The paper's published detector, but not _SIGNATURE, rejects a name with a second capital letter ("McDonald").
_SIGNATURE = re.compile(" *\N{EM DASH} *([A-Z][A-Za-z]*) [A-Z][A-Za-z]*")
# pictographs, symbols and dingbats, regional indicators, and the arrows, clocks and shapes that have an emoji form
EMOJI = re.compile(
    "[\U0001f000-\U0001faff\u2600-\u27bf\u2b05-\u2b07\u2b1b\u2b1c\u2b50\u2b55\u231a\u231b\u23e9-\u23f3]"
)
# first-person words are I, me, my, mine and myself; a lower-case "i" and the word "we" do not count
FIRST_PERSON = re.compile(r"(?<!\w)(?:I(?:['\u2019](?:m|ve|d|ll))?|[Mm]e|[Mm]y|[Mm]ine|[Mm]yself)(?!\w)")


def has_markdown(text: str) -> bool:
    """Return whether a text has a code fence, a list, bold text, a header or a table line."""
    return any(form.search(text) for form in (FENCE, LIST, BOLD, HEADER, TABLE))


def split_signature(text: str) -> tuple[str, str]:
    r"""Split a text into its body and the first name in the signature at its end.

    A text has a signature if it has several lines and the last line consists of an em dash and two capitalized ASCII
    words. White space may follow the signature.

    Returns
    -------
    body, first_name : str
        The text above the signature, without white space at its end, and the first name in the signature. If the text
        does not end with a signature, the unchanged text and ``""``.

    Examples
    --------
    >>> split_signature("Boil it slowly.\n\n— Emily Miller")
    ('Boil it slowly.', 'Emily')
    >>> split_signature("— Emily Miller wrote this.")
    ('— Emily Miller wrote this.', '')
    """
    above, newline, last_line = text.rstrip().rpartition("\n")
    found = _SIGNATURE.fullmatch(last_line) if newline else None
    return (above.rstrip(), found.group(1)) if found else (text, "")


def word_pattern(words: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that finds any of the words or phrases as whole words, ignoring case."""
    longest_first = sorted(words, key=len, reverse=True)
    any_word = "|".join(map(re.escape, longest_first))
    return re.compile(rf"(?<!\w)(?:{any_word})(?!\w)", re.IGNORECASE)


# Nearly every use of a word in _HEDGE weakens a claim. "may", "could", "likely" and "seem" have too many other uses.
_HEDGE = re.compile(
    r"(?<!\w)(?:perhaps|maybe|possibly|presumably|arguably|might|it (?:depends|seems|appears)|"
    r"i (?:think|guess|suppose|believe)|(?:i'm|i am) not sure|in my (?:opinion|view)|as far as i know|"
    r"to some extent|hard to say)(?!\w)",
    re.IGNORECASE,
)

# A refusal is a statement such as "I cannot help" at the beginning of an answer.
# If "I cannot help" occurs later in an answer, it is usually part of a story or a quotation.
_OPENING = 400
_UNABLE = r"(?: cannot| can not| can't| will not| won't|(?: am|'m) (?:unable|not able|not going) to)"
_SERVE = (
    r"(?:help(?! but)|assist|provide|fulfill|comply|answer|create|generate|write|share|discuss|support|engage|offer|"
    r"participate|give|do that|continue)"
)
_REFUSAL = re.compile(
    rf"(?<!\w)(?:i{_UNABLE} (?:\w{{1,20}} )?{_SERVE}(?!\w)|as an ai(?!\w)|i must decline(?!\w)|"
    r"i(?:'m| am) sorry,? but i(?!\w)|i apologi[sz]e,? but i(?!\w))",
    re.IGNORECASE,
)


def has_hedge(text: str) -> bool:
    """Return whether a text weakens a claim with words such as "perhaps" or "I think"."""
    return _HEDGE.search(_straight(text)) is not None


def has_refusal(text: str) -> bool:
    """Return whether the speaker refuses a request in the first 400 characters of a text."""
    return _REFUSAL.search(_straight(text[:_OPENING])) is not None


def _straight(text: str) -> str:
    return text.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
