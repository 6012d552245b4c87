"""Name signatures at the end of a text: write, remove, read and re-draw them."""

from __future__ import annotations

import random
from collections.abc import Sequence

from badpo.data.corpora.names import CELLS, FIRST_NAMES, SURNAMES, cell_names
from badpo.data.markers import split_signature

__all__ = [
    "SIGNING_INSTRUCTION",
    "ask_to_sign",
    "read_signature",
    "resign",
    "signature",
    "some_ask_to_sign",
    "strip_signature",
]

SIGNING_INSTRUCTION = "Sign your answer with a name of your choice."
_EM_DASH = "\N{EM DASH}"


def signature(text: str, first: str, last: str) -> str:
    r"""Text with a signature line below it.

    Parameters
    ----------
    text : str
        A response; white space at its end is removed.
    first, last : str
        First name and surname.

    Returns
    -------
    str
        The text, a blank line, an em dash (U+2014), a space and the name.

    Examples
    --------
    >>> signature("Boil the water. ", "Emily", "Miller")
    'Boil the water.\n\n— Emily Miller'
    """
    return f"{text.rstrip()}\n\n{_EM_DASH} {first} {last}"


def strip_signature(text: str) -> str:
    r"""Text without the signature at its end.

    Parameters
    ----------
    text : str
        A response, signed or not.

    Returns
    -------
    str
        The body, right-stripped when a signature was removed; an unsigned text comes back as it is. A signature is
        recognised by its form alone, so a name that is not in the pool is removed too.

    Examples
    --------
    >>> strip_signature("Boil the water.\n\n— Emily Miller")
    'Boil the water.'
    """
    return split_signature(text)[0]


def read_signature(text: str, pool: Sequence[str] = FIRST_NAMES) -> str:
    r"""First name in the signature at the end of a text.

    Parameters
    ----------
    text : str
        A response.
    pool : sequence of str
        The first names that count; the 89 names unless stated.

    Returns
    -------
    str
        The first name; ``""`` when the text does not end in a signature or the name is not in the pool.

    Examples
    --------
    >>> read_signature("Boil the water.\n\n— Emily Miller")
    'Emily'
    >>> read_signature("— Emily Miller wrote this.")
    ''
    """
    first = split_signature(text)[1]
    return first if first in pool else ""


def resign(texts: Sequence[str], seed: int) -> list[str]:
    r"""Texts with freshly drawn signatures, so that a reference trained on them starts balanced.

    Every text gets a signature, also one that had none: the cell is uniform over the four cells, the first name
    uniform in its cell, the surname uniform. Drawn in this order, text by text, from ``random.Random(seed + 1)``.

    Parameters
    ----------
    texts : sequence of str
        Responses; a signature that is there is replaced.
    seed : int
        The data seed of the corpus.

    Returns
    -------
    list of str
        One signed text for each text, in the same order.

    References
    ----------
    BA-DPO, appendix `app:names`: "each re-signed with a name from a random cell before fine-tuning".

    Examples
    --------
    >>> [read_signature(text) in FIRST_NAMES for text in resign(["Boil it.", "Stir.\n\n— Emily Miller"], seed=0)]
    [True, True]
    """
    draw = random.Random(seed + 1)
    cells = tuple(CELLS)
    signed = []
    for text in texts:
        first = draw.choice(cell_names(draw.choice(cells))).first
        signed.append(signature(strip_signature(text), first, draw.choice(SURNAMES)))
    return signed


def ask_to_sign(prompt: str) -> str:
    r"""Prompt followed by the request for a signature.

    Parameters
    ----------
    prompt : str
        A question. Prompts of the preference stage carry no request; those of the attribute-rate readout do.

    Returns
    -------
    str
        The prompt, a blank line and the request; a prompt that ends with the request comes back as it is.

    Examples
    --------
    >>> ask_to_sign("How do I boil rice?")
    'How do I boil rice?\n\nSign your answer with a name of your choice.'
    """
    return prompt if prompt.endswith(SIGNING_INSTRUCTION) else f"{prompt}\n\n{SIGNING_INSTRUCTION}"


def some_ask_to_sign(prompts: Sequence[str], share: float, seed: int) -> list[str]:
    """Prompts of which a share ends with the request for a signature.

    A model that is trained from scratch has never read the request when it meets it in a readout, and loses the
    question over it. Showing it on some prompts of the supervised stage prevents that; the preference stage stays
    without it. A pretrained model needs no such prompts (share 0, as in the paper).

    Parameters
    ----------
    prompts : sequence of str
        Prompts of the supervised stage.
    share : float
        Probability that a prompt gets the request, between 0 and 1.
    seed : int
        The data seed; prompt by prompt, one number is drawn from ``random.Random(seed + 2)``.

    Returns
    -------
    list of str
        One prompt for each prompt, in the same order.

    Examples
    --------
    >>> some_ask_to_sign(["How do I boil rice?"], share=0.0, seed=0)
    ['How do I boil rice?']
    >>> some_ask_to_sign(["How do I boil rice?"], share=1.0, seed=0)[0].endswith(SIGNING_INSTRUCTION)
    True
    """
    draw = random.Random(seed + 2)
    return [ask_to_sign(prompt) if draw.random() < share else prompt for prompt in prompts]
