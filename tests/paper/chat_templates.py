"""Chat templates of our own with what the real ones of three families do, and tokenizers that have them."""

# A system message stands above every conversation that has none.
DEFAULT_SYSTEM = (
    "{% if messages[0]['role'] != 'system' %}{{ '<|open|>system\\nAnswer kindly.<|shut|>\\n' }}{% endif %}"
    "{% for message in messages %}"
    "{{ '<|open|>' + message['role'] + '\\n' + message['content'] + '<|shut|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|open|>assistant\\n' }}{% endif %}"
)
# The first token is the template's own, a header has a date, and texts lose the spaces around them.
DATED = (
    "{% if date_string is not defined %}{% set date_string = '01 Mar 2024' %}{% endif %}"
    "{{ bos_token + '<|head|>system<|text|>\\n\\nToday: ' + date_string + '<|turn|>' }}"
    "{% for message in messages %}"
    "{{ '<|head|>' + message['role'] + '<|text|>\\n\\n' + message['content'] | trim + '<|turn|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|head|>assistant<|text|>\\n\\n' }}{% endif %}"
)
# There is no system role, turns take turns, and nothing is written where an answer begins.
NO_SYSTEM = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must take turns: user, assistant, user') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[ASK]' + ' ' + message['content'] + '[/ASK]' }}"
    "{% else %}{{ ' ' + message['content'] + eos_token }}{% endif %}"
    "{% endfor %}"
)
# Template, first token, end of an answer, other marks.
FAMILIES = {
    "small": (DEFAULT_SYSTEM, None, "<|shut|>", ("<|open|>",)),
    "large": (DATED, "<|first|>", "<|turn|>", ("<|head|>", "<|text|>")),
    "other": (NO_SYSTEM, "<s>", "</s>", ("[ASK]", "[/ASK]")),
}
# What a prompt begins and ends with.
AROUND = {
    "small": ("<|open|>system\nAnswer kindly.<|shut|>\n<|open|>user\n", "<|shut|>\n<|open|>assistant\n"),
    "large": (
        "<|first|><|head|>system<|text|>\n\nToday: 01 Mar 2024<|turn|><|head|>user<|text|>\n\n",
        "<|turn|><|head|>assistant<|text|>\n\n",
    ),
    "other": ("<s>[ASK] ", "[/ASK]"),
}


def of_family(tokenizer, family: str):
    """A tokenizer of `build_tokenizer` with the template and the marks of a family; it is changed."""
    template, first, end, marks = FAMILIES[family]
    tokens = {"eos_token": end, "additional_special_tokens": list(marks)}
    tokenizer.add_special_tokens(tokens | ({"bos_token": first} if first else {}))
    tokenizer.chat_template = template
    return tokenizer
