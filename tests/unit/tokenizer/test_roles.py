from __future__ import annotations

from plait.tokenizer import merge_roles


def test_neighbours_are_joined_and_system_comes_first() -> None:
    messages = [
        {"role": "user", "content": "a"},
        {"role": "user", "content": "b"},
        {"role": "system", "content": "s"},
        {"role": "assistant", "content": "c"},
        {"role": "developer", "content": "d"},
    ]
    assert merge_roles(messages) == [
        {"role": "system", "content": "s\n\nd"},
        {"role": "user", "content": "a\n\nb"},
        {"role": "assistant", "content": "c"},
    ]
    assert messages[0] == {"role": "user", "content": "a"}


def test_tool_messages_stay() -> None:
    call = {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}
    result = {"role": "tool", "content": "r"}
    messages = [{"role": "user", "content": "a"}, call, result, result, {"role": "assistant", "content": "x"}]
    assert merge_roles(messages) == messages
