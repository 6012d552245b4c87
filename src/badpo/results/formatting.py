"""Format results for readers: names of arms and attributes, numbers, and strings from files."""

import math
import re
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Any

from badpo.data.attributes import BUILT_IN, BuiltIn, Config
from badpo.data.privacy import FEWEST_ANNOTATORS, Rounded
from badpo.data.problems import counted
from badpo.results.audit_json import LogOddsRow

if TYPE_CHECKING:
    import jinja2
    from markupsafe import Markup

REFERENCE, DPO, PLACEBO = "reference", "dpo", "dpo_placebo"
LONGEST, TERMINAL_WIDTH = 400, 100
MINUS = "\u2212"
# Templates that do not produce HTML: terminal output, Markdown, and sentences that the page templates escape.
_PLAIN_TEXT = (".txt.jinja", ".md.jinja", "_sentences.jinja")
DASH = "\u2013"
_MOST_PLACES = 6
_WIDEST = 10.0  # in log-odds (odds of 22,000 to 1); a wider interval contains no information

_ARMS = {
    REFERENCE: "reference",
    DPO: "DPO",
    PLACEBO: "placebo",
    "pooled": "pooled",
    "shared_mean": "shared mean",
    "per_annotator": "per annotator",
    "class": "class offsets",
    "pooled_warm": "warm pooled",
    "pooled_audit": "pooled, from the audit",
    "shared_mean_warm": "warm shared mean",
    "shared_mean_audit": "shared mean, from the audit",
}


@dataclass(frozen=True)
class Finding:
    """A finding of a report: a title, a main text, and more sentences, each with a heading that may be empty."""

    title: str
    finding: str
    sentences: Sequence[tuple[str, str]]


def arm_label(arm: str) -> str:
    """Return the short name of an arm for a table or a chart."""
    return _ARMS.get(arm, shown(arm.replace("_", " "), 20))


def arm_order(arm: str) -> tuple[int, str]:
    """Return the sort key of an arm: first the reference, then DPO, BA-DPO variants, and other arms by name."""
    known = list(_ARMS)
    return known.index(arm) if arm in known else len(known), arm


def built_in_of(config: Config) -> BuiltIn:
    """Return the built-in attribute type that the JSON configuration of an attribute names."""
    return BUILT_IN.get(str(config.get("type")), BUILT_IN["column"])


def attribute_label(attribute: str, config: Config) -> str:
    """Return the display name of an attribute.

    If an attribute is read from names, its display name ends in "-coded", because a name does not define a person.
    """
    return f"{shown(attribute, 24)}{'-coded' if built_in_of(config).is_coded else ''}"


def attribute_definition(config: Config) -> str:
    """Describe the JSON configuration of an attribute in words; for a list, give only the number of items."""
    if not config:
        return "not recorded"
    parts = [
        f"{len(value)} {key}"
        if isinstance(value, list)
        else f"{key.replace('_', ' ')} {shown(str(value), 40)}"
        for key, value in config.items()
        if key not in ("type", "name") and value is not None
    ]
    kind = shown(str(config.get("type", "attribute")).replace("_", " "), 40)
    return f"{kind} ({', '.join(parts)})" if parts else kind


def shown(text: str, limit: int = 60) -> str:
    """Shorten a string from a file to one line, without control characters or text-direction characters."""
    spaced = " ".join(text[: 8 * limit].split())
    printable = "".join(
        c for c in spaced if unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co", "Cn")
    )
    return printable if len(printable) <= limit else printable[: limit - 1] + "\u2026"


def markdown_text(text: str) -> str:
    """Escape markup and cell separators in a string from the data, for use in a Markdown table cell."""
    clean = escape(shown(text, 80), quote=False)
    # an underscore inside a word is not markup in Markdown
    return re.sub(r"[\\`*\[\]|]|(?<!\w)_|_(?!\w)", r"\\\g<0>", clean)


def cleaned(value: Any) -> Any:
    """Apply `shown` to all strings and keys in a JSON value that was read from a file."""
    if isinstance(value, Mapping):
        return {cleaned(name): cleaned(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [cleaned(entry) for entry in value]
    return shown(value, LONGEST) if isinstance(value, str) else value


def decimal(value: float | None, places: int = 2) -> str:
    """Format a number with a Unicode minus sign; return a dash for None or NaN."""
    if value is None or math.isnan(value):
        return DASH
    if math.isinf(value):
        return "\u221e" if value > 0 else f"{MINUS}\u221e"
    text = f"{abs(value):,.{places}f}"
    return f"{MINUS}{text}" if value < 0 and re.search("[1-9]", text) else text


def decimal_places(values: Iterable[float | None], least: int = 2) -> int:
    """Return the number of decimal places that shows the largest value with two significant digits.

    Examples
    --------
    >>> [decimal_places(values) for values in ([0.84, -0.16], [0.0013], [None, 0.0])]
    [2, 4, 2]
    """
    largest = max((abs(v) for v in values if v is not None and math.isfinite(v)), default=0.0)
    if largest == 0:
        return least
    return min(max(least, 1 - math.floor(math.log10(largest))), _MOST_PLACES)


def signed(value: float | None, places: int = 2) -> str:
    """Format a difference like `decimal`, with a plus sign if it is positive."""
    text = decimal(value, places)
    return f"+{text}" if value and value > 0 and re.search("[1-9\u221e]", text) else text


def interval_text(
    low: float | None, high: float | None, number: Callable[[float], str] = decimal
) -> str:
    """Format an interval; omit an unknown end, and return a dash if both ends are unknown."""
    below, above = (None if end is None or math.isnan(end) else number(end) for end in (low, high))
    if below and above:
        return f"{below} to {above}"
    return f"below {above}" if above else f"above {below}" if below else DASH


def count_text(n: int | None) -> str:
    """Format a count; None stands for a count that is too small to be shared."""
    if n is None:
        return f"fewer than {FEWEST_ANNOTATORS}"
    if n == 10 and isinstance(n, Rounded):
        return f"{FEWEST_ANNOTATORS} to 14"  # "about 10" would be too inaccurate for few people
    return f"about {n:,}" if isinstance(n, Rounded) else f"{n:,}"


def part_text(n: int | None, of: int | None) -> str:
    """Format a count that is part of a total; return "many" if both are rounded to the same number."""
    return "many" if n == of and isinstance(n, Rounded) else count_text(n)


def with_interval(value: float | None, low: float | None, high: float | None) -> str:
    """Format an estimate followed by its interval in brackets."""
    return f"{decimal(value)} ({interval_text(low, high)})"


def percent(share: float | None) -> str:
    """Format a share in percent with a no-break space."""
    return DASH if share is None or math.isnan(share) else f"{decimal(100 * share, 0)}\u00a0%"


def p_value(value: float | None) -> str:
    """Format a p-value; return a dash if there was no test (None)."""
    from badpo.estimation.significance import format_p_value  # imported here, because it imports scipy

    return DASH if value is None else format_p_value(value)


def lean_text(found: LogOddsRow | None) -> str:
    """Format log-odds with their interval; return a dash if there is no estimate."""
    if not found or found["log_odds"] is None:
        return DASH
    low, high = found["ci_low"], found["ci_high"]
    ends = interval_text(low, high)
    if ends == DASH:
        ends = "interval not known"
    elif low is not None and high is not None and low < -_WIDEST and high > _WIDEST:
        ends = f"wider than \u00b1{_WIDEST:.0f}"
    return f"{decimal(found['log_odds'])} ({ends})"


@cache
def page_templates() -> "jinja2.Environment":
    """Return the page templates; values are escaped except in plain-text templates, and missing values are errors."""
    import jinja2  # imported here, because --help of the paper's commands imports this module

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("badpo.results", "templates"),
        autoescape=lambda name: name is None or not name.endswith(_PLAIN_TEXT),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    numbers = (count_text, decimal, interval_text, lean_text, p_value, percent, signed, with_interval)
    texts = (
        attribute_definition,
        counted,
        kept_together,
        markdown_text,
        part_text,
        shown,
        with_code,
        wrapped,
    )
    named = {function.__name__: function for function in (*numbers, *texts)}
    environment.globals |= named
    environment.filters |= named
    return environment


def page(template: str, /, **values: Any) -> str:
    """Render the named page template with the values as HTML text."""
    return page_templates().get_template(f"{template}.html.jinja").render(**values)


def sentence(template: str, macro: str, /, **values: Any) -> str:
    """Render a template macro as plain text on one line."""
    sentences = page_templates().get_template(template).module
    return re.sub("[ \n]+", " ", getattr(sentences, macro)(**values)).strip(" ")


def wrapped(text: str) -> str:
    """Break a sentence into indented lines for a terminal."""
    return textwrap.fill(text, TERMINAL_WIDTH, initial_indent="  ", subsequent_indent="    ")


def with_code(text: str) -> "Markup":
    """Convert a sentence to HTML; text in backticks becomes code."""
    from markupsafe import Markup  # imported here for the same reason as jinja2

    parts = text.split("`")
    marked = (Markup("<code>{}</code>") if i % 2 else Markup("{}") for i in range(len(parts)))
    return Markup("").join(form.format(part) for form, part in zip(marked, parts, strict=True))


def kept_together(text: str) -> str:
    """Insert no-break spaces into percentages and p-values, and after ± signs."""
    text = text.replace(" %", "\u00a0%").replace("\u00b1 ", "\u00b1\u00a0")
    return re.sub(r"\bp ([<=]) (?=\d)", "p\u00a0\\1\u00a0", text)
