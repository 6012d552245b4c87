"""Chat templates, programs of whoever published a model: jinja2's sandbox bounds what they reach, this the time."""

from __future__ import annotations

import ctypes
import faulthandler
import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import jinja2

from badpo.data.problems import ConfigError

# For a thousand conversations, which take less than one.
_MOST_SECONDS = 60.0


def rendered_chats(tokenizer: Any, conversations: Sequence[Sequence[Any]], **options: Any) -> list[str]:
    """Conversations as the texts that the tokenizer's chat template makes of them.

    A thread of its own renders them, which can be left alone and told to end, on any system and from any thread. A
    script without a main guard could start no other process, and a signal reaches the main thread only.
    """
    template, rendered, failed = str(tokenizer.chat_template), [], []
    if _takes_powers(template):
        raise _unusable(tokenizer, "takes powers of numbers, which can take for ever; no known template does")

    def render() -> None:
        try:
            for messages in conversations:
                rendered.append(tokenizer.apply_chat_template(messages, tokenize=False, **options))
        except BaseException as error:  # whatever a program can raise, and what tells it to end
            failed.append(error)

    worker = threading.Thread(target=render, daemon=True)
    # a single long step, such as the square of a long number, lets no other thread run: the process ends then
    faulthandler.dump_traceback_later(2 * _MOST_SECONDS, exit=True, file=2)
    try:
        worker.start()
        worker.join(_MOST_SECONDS)
    finally:
        faulthandler.cancel_dump_traceback_later()
    if worker.is_alive():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(worker.ident or 0), ctypes.py_object(SystemExit)
        )
        raise _unusable(tokenizer, f"does not end within {_MOST_SECONDS:g} seconds")
    if failed:
        raise _unusable(tokenizer, f"ends with {type(failed[0]).__name__}: {failed[0]}") from failed[0]
    return rendered


@lru_cache(maxsize=8)
def _takes_powers(template: str) -> bool:
    """Whether a template has a ``**`` that does not pass on arguments.

    jinja2 works constants out when it compiles, and 10 ** 10 ** 10 is a single step.
    """
    before = ""
    try:
        for _, kind, value in jinja2.Environment(autoescape=True).lex(template):
            if kind == "operator" and value == "**" and before not in ("(", ","):
                return True
            before = before if kind == "whitespace" else value
    except jinja2.TemplateSyntaxError:
        pass  # told when it is rendered
    return False


def _unusable(tokenizer: Any, reason: str) -> ConfigError:
    return ConfigError(
        f'the chat template of "{tokenizer.name_or_path}" {reason}. Set another tokenizer.chat_template, or give '
        "plain-text prompts with encoding: trl"
    )
