"""Ways of speaking in a text: hedges, refusals, the first person. English; linear in the length of the text."""

from __future__ import annotations

import re

from badpo.data.markers import word_pattern

# Words that weaken a claim in nearly every use. "may", "could", "likely" and "seem" have too many other uses.
HEDGES = (
    "perhaps",
    "maybe",
    "possibly",
    "presumably",
    "arguably",
    "might",
    "it depends",
    "it seems",
    "it appears",
    "i think",
    "i guess",
    "i suppose",
    "i believe",
    "i'm not sure",
    "i am not sure",
    "in my opinion",
    "in my view",
    "as far as i know",
    "to some extent",
    "hard to say",
)
_HEDGE = word_pattern(HEDGES)

# A refusal is what the speaker says about themselves in the opening of an answer; later on, "I cannot help" is
# mostly part of what is told.
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
_FIRST_PERSON = re.compile(r"(?<!\w)(?:I(?:['\u2019](?:m|ve|d|ll))?|[Mm]e|[Mm]y|[Mm]ine|[Mm]yself)(?!\w)")


def has_hedge(text: str) -> bool:
    """Whether a word or phrase of ``HEDGES`` is there, such as "perhaps" or "I think".

    Examples
    --------
    >>> has_hedge("Perhaps it rains."), has_hedge("The mighty rain.")
    (True, False)
    """
    return _HEDGE.search(_straight(text)) is not None


def has_refusal(text: str) -> bool:
    """Whether the first 400 characters say that the speaker will not or cannot do it.

    Examples
    --------
    >>> has_refusal("I'm sorry, but I can't help with that."), has_refusal("It can't help to ask.")
    (True, False)
    """
    return _REFUSAL.search(_straight(text[:_OPENING])) is not None


def has_first_person(text: str) -> bool:
    """Whether the speaker speaks of themselves in the singular: I, me, my, mine, myself.

    A lower-case "i" does not count, nor does "we".

    Examples
    --------
    >>> has_first_person("In my town."), has_first_person("In your town.")
    (True, False)
    """
    return _FIRST_PERSON.search(text) is not None


def _straight(text: str) -> str:
    return text.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
