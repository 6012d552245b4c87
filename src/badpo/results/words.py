"""Words and numbers as people read them: names of arms and attributes, signs, places, shortened texts."""

import math
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from typing import Any

import jinja2

from badpo.data.attributes import BUILT_IN, BuiltIn
from badpo.data.files import Json
from badpo.data.privacy import FEWEST_ANNOTATORS, Rounded

REFERENCE, DPO = "reference", "dpo"
LONGEST = 400
MINUS = "\u2212"
DASH = "\u2013"
_WIDEST = 10.0  # exp(10) is odds of 22,000 to 1: an interval that goes beyond says nothing

_ARMS = {
    REFERENCE: "reference",
    DPO: "DPO",
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
class Verdict:
    """The sentences on one thing: what was found, and what else there is to know, each under a term or none."""

    title: str
    finding: str
    sentences: Sequence[tuple[str, str]]


def arm_label(arm: str) -> str:
    """The short name of an arm, for a row of a table or a chart."""
    return _ARMS.get(arm, shown(arm.replace("_", " "), 20))


def arm_order(arm: str) -> tuple[int, str]:
    """The place of an arm in tables and charts: the reference, DPO, the biases of a recipe, then others by name."""
    known = list(_ARMS)
    return known.index(arm) if arm in known else len(known), arm


def built_in_of(config: Json) -> BuiltIn:
    """What is known of an attribute's type, from the attribute's JSON identity."""
    return BUILT_IN.get(str(config.get("type")), BUILT_IN["column"])


def attribute_label(attribute: str, config: Json) -> str:
    """An attribute's name for people. Attributes of names are *coded*: they are read from a name, not from a person."""
    return f"{shown(attribute, 24)}{'-coded' if built_in_of(config).is_coded else ''}"


def attribute_definition(config: Mapping) -> str:
    """An attribute's JSON identity in words; a list of words is counted, not printed."""
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
    r"""A text from a file as it may be shown: on one line, without control or direction marks, shortened."""
    spaced = " ".join(text[: 8 * limit].split())
    printable = "".join(
        c for c in spaced if unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co", "Cn")
    )
    return printable if len(printable) <= limit else printable[: limit - 1] + "\u2026"


def markdown_text(text: str) -> str:
    r"""A text from data as one cell of a Markdown table: no markup of its own, no new cell, no new line."""
    clean = escape(shown(text, 80), quote=False)
    # an underscore inside a word is no markup
    return re.sub(r"[\\`*\[\]|]|(?<!\w)_|_(?!\w)", r"\\\g<0>", clean)


def cleaned(value: Any) -> Any:
    """What a file holds, with every text in it as it may be shown, names of entries too."""
    if isinstance(value, Mapping):
        return {cleaned(name): cleaned(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [cleaned(entry) for entry in value]
    return shown(value, LONGEST) if isinstance(value, str) else value


def decimal(value: float | None, places: int = 2) -> str:
    """A number with a real minus sign; a dash where there is none."""
    if value is None or math.isnan(value):
        return DASH
    if math.isinf(value):
        return "\u221e" if value > 0 else f"{MINUS}\u221e"
    text = f"{abs(value):,.{places}f}"
    return f"{MINUS}{text}" if value < 0 and re.search("[1-9]", text) else text


def signed(value: float | None, places: int = 2) -> str:
    """A difference: like `decimal`, with a plus sign where it is positive."""
    text = decimal(value, places)
    return f"+{text}" if value and value > 0 and re.search("[1-9\u221e]", text) else text


def interval_text(
    low: float | None, high: float | None, number: Callable[[float], str] = decimal
) -> str:
    """An interval in words: with one end where the other is not known, a dash where neither is."""
    below, above = (None if end is None or math.isnan(end) else number(end) for end in (low, high))
    if below and above:
        return f"{below} to {above}"
    return f"below {above}" if above else f"above {below}" if below else DASH


def count_text(n: int | None) -> str:
    """A count as text; None is a count that is too small to be passed on."""
    if n is None:
        return f"fewer than {FEWEST_ANNOTATORS}"
    if n == 10 and isinstance(n, Rounded):
        return f"{FEWEST_ANNOTATORS} to 14"  # "about 10" would be too inaccurate for few people
    return f"about {n:,}" if isinstance(n, Rounded) else f"{n:,}"


def part_text(n: int | None, of: int | None) -> str:
    """A count of some among others; a word where both, which may differ, are rounded to the same."""
    return "many" if n == of and isinstance(n, Rounded) else count_text(n)


def with_interval(value: float | None, low: float | None, high: float | None) -> str:
    """An estimate and its interval in brackets."""
    return f"{decimal(value)} ({interval_text(low, high)})"


def percent(share: float | None) -> str:
    r"""A share in percent, with a space that does not break."""
    return DASH if share is None or math.isnan(share) else f"{decimal(100 * share, 0)}\u00a0%"


def p_value(value: float | None) -> str:
    """A p value as text; a dash where there was no test."""
    if value is None:
        return DASH
    return "p < 0.001" if value < 0.001 else f"p = {value:.2g}"


def lean_text(found: Json | None) -> str:
    """A log-odds with its interval; a dash where there is none."""
    if not found or found["log_odds"] is None:
        return DASH
    low, high = found["ci_low"], found["ci_high"]
    ends = interval_text(low, high)
    if ends == DASH:
        ends = "interval not known"
    elif None not in (low, high) and low < -_WIDEST and high > _WIDEST:
        ends = f"wider than \u00b1{_WIDEST:.0f}"
    return f"{decimal(found['log_odds'])} ({ends})"


@cache
def page_templates(autoescape: bool = True) -> jinja2.Environment:
    """The templates of the pages; every value is escaped, and a missing one is an error."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("badpo.results", "templates"),
        autoescape=autoescape,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    numbers = (count_text, decimal, interval_text, lean_text, p_value, percent, signed)
    told = (*numbers, attribute_definition, kept_together, markdown_text)
    named = {function.__name__: function for function in told}
    environment.globals |= named
    environment.filters |= named
    return environment


def page(template: str, /, **values: Any) -> str:
    """A page as HTML text, from its template and what the template is told."""
    return page_templates().get_template(f"{template}.html.jinja").render(**values)


def kept_together(text: str) -> str:
    """A number and its sign, and a p value, are not torn apart at the end of a line."""
    text = text.replace(" %", "\u00a0%").replace("\u00b1 ", "\u00b1\u00a0")
    return re.sub(r"\bp ([<=]) (?=\d)", "p\u00a0\\1\u00a0", text)
