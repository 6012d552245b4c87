"""The prompt of TRL's preference layouts: explicit or implicit, text or chat messages."""

from __future__ import annotations

from typing import Any

Text = str | list[dict[str, Any]]


def arrange(prompt: Text | None, first: Text, second: Text) -> tuple[Text, Text, Text]:
    """Prompt and two responses of one row, all text or all messages.

    An explicit prompt stays. Without one, or when the prompt is text and the responses are whole conversations, the
    prompt is what the two begin with, as TRL takes it. A text beside messages becomes a message.

    Parameters
    ----------
    prompt : str, list of dict or None
        None when the table has no prompt.
    first, second : str or list of dict

    Returns
    -------
    prompt, first, second
        An empty prompt when there is none to be found.

    Raises
    ------
    ValueError
        When one response is text and the other a list of messages.

    Examples
    --------
    >>> question = {"role": "user", "content": "Why?"}
    >>> yes, no = ({"role": "assistant", "content": word} for word in ("yes", "no"))
    >>> arrange(None, [question, yes], [question, no]) == ([question], [yes], [no])
    True
    >>> arrange("Why?", [yes], [no]) == ([question], [yes], [no])
    True
    """
    if isinstance(first, str) != isinstance(second, str):
        raise ValueError("one response is text and the other a list of messages")
    chat = not isinstance(first, str)
    if prompt is None or (chat and isinstance(prompt, str)):
        n_shared = shared_beginning(first, second)
        if n_shared or prompt is None:
            return first[:n_shared], first[n_shared:], second[n_shared:]
    if chat and isinstance(prompt, str):
        return [{"role": "user", "content": prompt}], first, second
    if isinstance(prompt, list) and not chat:
        return prompt, [{"role": "assistant", "content": first}], [{"role": "assistant", "content": second}]
    assert prompt is not None
    return prompt, first, second


def shared_beginning(first: Text, second: Text) -> int:
    """How many characters, or messages, two responses share from the start and leave something of each.

    A space at the end of shared text is given back to the responses, as TRL does.

    Examples
    --------
    >>> text = "Why? Because it is."
    >>> text[:shared_beginning(text, "Why? Since it is.")]
    'Why?'
    """
    low, high = 0, max(0, min(len(first), len(second)) - 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if first[:middle] == second[:middle] else (low, middle - 1)
    differs = first[low : low + 1] != second[low : low + 1]
    gives_back = isinstance(first, str) and differs and low > 0 and first[low - 1] == " "
    return low - 1 if gives_back else low
