"""Chat templates of others: they end, and what they raise is told in a sentence."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from badpo.data.problems import ConfigError
from badpo.training import encoding
from badpo.training.encoding import encode_prompts, rendered_chats
from tests import tiny

MESSAGES = [{"role": "user", "content": "Why?"}]
LONG = "range(99999)"


def with_template(template: str):
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = template
    return tokenizer


@pytest.mark.parametrize(
    "template",
    [
        f"{{% for i in {LONG} %}}{{% for j in {LONG} %}}{{% endfor %}}{{% endfor %}}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(30) }}",
        f"{{% for i in {LONG} %}}{{% set x = {LONG} | map('string') | sort | list %}}{{% endfor %}}",
    ],
    ids=["loops", "calls", "filters"],
)
def test_a_template_without_an_end_is_left(monkeypatch, template):
    monkeypatch.setattr(encoding, "_MOST_SECONDS", 0.1)
    # a machine that is busy for longer would end the tests; the test below this one asks for that end
    monkeypatch.setattr(encoding.faulthandler, "dump_traceback_later", lambda *_, **__: None)
    before = set(threading.enumerate())
    with pytest.raises(ConfigError, match="does not end within"):
        rendered_chats(with_template(template), [MESSAGES])
    for worker in set(threading.enumerate()) - before:
        worker.join()  # it was told to end


def test_a_step_that_nothing_can_interrupt_ends_the_process():
    program = (
        "from badpo.training import encoding as c\nfrom tests import tiny\nc._MOST_SECONDS = 0.5\n"
        # minutes of one call that lets no other thread run, as the square of a long number in a template does
        "t = tiny.tokenizer()\nt.chat_template = '{{ 1 }}'\nt.apply_chat_template = lambda *a, **o: pow(3, 10**9)\n"
        f"c.rendered_chats(t, [{MESSAGES!r}])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "encoding.py" in done.stderr and "Timeout" in done.stderr


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ raise_exception('only \x1b[2J') }}", r"TemplateError: only \\u001b\[2J"),
        ("{{ messages[9].x.y }}", "UndefinedError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{% for", "TemplateSyntaxError"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
    ],
)
def test_what_a_template_raises_is_told_in_a_sentence(template, said):
    with pytest.raises(ConfigError, match=said):
        encode_prompts(["Why?"], with_template(template), "paper", None)


def test_a_template_that_passes_arguments_on_is_rendered():
    template = "{% set n = namespace(**{'a': 2}) %}{{ n.a * 3 }} {{ messages[0].content }}"
    assert rendered_chats(with_template(template), [MESSAGES] * 2) == ["6 Why?"] * 2
