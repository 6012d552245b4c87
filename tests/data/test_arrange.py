from __future__ import annotations

import pytest

from badpo.data.reading import arrange, shared_beginning


def user(text: str) -> dict:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict:
    return {"role": "assistant", "content": text}


@pytest.mark.parametrize(
    ("first", "second", "prompt"),
    [
        # what `trl.data_utils.extract_prompt` of TRL 1.16 gives
        ("Q: hi A: yes", "Q: hi A: no", "Q: hi A:"),
        ("Q: hi\nyes", "Q: hi\nno", "Q: hi\n"),
        ("aab", "aac", "aa"),
        ("a a", "a b", "a"),
        ("abc", "abcd", "ab"),
        (" a", " b", ""),
    ],
)
def test_implicit_text_prompt_is_the_shared_beginning(first, second, prompt):
    assert arrange(None, first, second) == (prompt, first[len(prompt) :], second[len(prompt) :])


def test_responses_never_come_out_empty():
    assert shared_beginning("same", "same") == 3
    assert shared_beginning([user("q")], [user("q")]) == 0
    assert shared_beginning("", "x") == 0


def test_implicit_chat_prompt_is_the_shared_messages():
    turns = [user("1"), assistant("2"), user("3")]
    assert arrange(None, [*turns, assistant("x")], [*turns, assistant("y")]) == (
        turns,
        [assistant("x")],
        [assistant("y")],
    )


def test_explicit_prompts_stay():
    assert arrange("q", "same start x", "same start y") == ("q", "same start x", "same start y")
    chat = [user("q")], [assistant("x")], [assistant("y")]
    assert arrange(*chat) == chat


def test_text_prompt_beside_whole_conversations_gives_way_to_what_they_share():
    question = user("the same words, perhaps trimmed")
    assert arrange("q", [question, assistant("x")], [question, assistant("y")])[0] == [question]


def test_text_beside_messages_becomes_a_message():
    assert arrange("q", [assistant("x")], [assistant("y")]) == (
        [user("q")],
        [assistant("x")],
        [assistant("y")],
    )
    assert arrange([user("q")], "x", "y") == ([user("q")], [assistant("x")], [assistant("y")])
