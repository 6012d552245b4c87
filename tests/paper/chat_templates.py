"""Chat templates with the features of three model families, and tokenizers with these templates."""

# A conversation without a system message gets a default system message.
DEFAULT_SYSTEM = (
    "{% if messages[0]['role'] != 'system' %}{{ '<|open|>system\\nAnswer kindly.<|shut|>\\n' }}{% endif %}"
    "{% for message in messages %}"
    "{{ '<|open|>' + message['role'] + '\\n' + message['content'] + '<|shut|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|open|>assistant\\n' }}{% endif %}"
)
# The template writes the first token and a header with a date, and removes spaces around texts.
DATED = (
    "{% if date_string is not defined %}{% set date_string = '01 Mar 2024' %}{% endif %}"
    "{{ bos_token + '<|head|>system<|text|>\\n\\nToday: ' + date_string + '<|turn|>' }}"
    "{% for message in messages %}"
    "{{ '<|head|>' + message['role'] + '<|text|>\\n\\n' + message['content'] | trim + '<|turn|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|head|>assistant<|text|>\\n\\n' }}{% endif %}"
)
# The template has no system role, requires alternating roles, and writes no marker at the start of an answer.
NO_SYSTEM = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must take turns: user, assistant, user') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[ASK]' + ' ' + message['content'] + '[/ASK]' }}"
    "{% else %}{{ ' ' + message['content'] + eos_token }}{% endif %}"
    "{% endfor %}"
)
# Family -> template, first token, last token of an answer, other special tokens.
FAMILIES = {
    "small": (DEFAULT_SYSTEM, None, "<|shut|>", ("<|open|>",)),
    "large": (DATED, "<|first|>", "<|turn|>", ("<|head|>", "<|text|>")),
    "other": (NO_SYSTEM, "<s>", "</s>", ("[ASK]", "[/ASK]")),
}
# Family -> text before and text after a prompt.
AROUND = {
    "small": ("<|open|>system\nAnswer kindly.<|shut|>\n<|open|>user\n", "<|shut|>\n<|open|>assistant\n"),
    "large": (
        "<|first|><|head|>system<|text|>\n\nToday: 01 Mar 2024<|turn|><|head|>user<|text|>\n\n",
        "<|turn|><|head|>assistant<|text|>\n\n",
    ),
    "other": ("<s>[ASK] ", "[/ASK]"),
}


def set_family(tokenizer, family: str):
    """Give a tokenizer of `build_tokenizer` the template and the special tokens of a family; return it."""
    template, first, end, marks = FAMILIES[family]
    tokens = {"eos_token": end, "additional_special_tokens": list(marks)}
    tokenizer.add_special_tokens(tokens | ({"bos_token": first} if first else {}))
    tokenizer.chat_template = template
    return tokenizer
