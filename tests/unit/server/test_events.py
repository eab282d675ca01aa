"""Streams keep their promise: one finish_reason per choice, then the end; an error event before it on failure."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from plait.frontend import TextDelta, TextLogprob, Usage
from plait.server.replies import UsageCounter
from plait.server.streaming import ChatEventWriter, CompletionEventWriter, EventWriter
from plait.types import FinishReason

ENVELOPE = {"id": "x-1", "object": "chunk", "created": 1, "model": 'a "name"'}
ERROR = {"error": {"message": "broken", "type": "server_error", "param": None, "code": None}}


def delta(index: int, text: str, *, request_idx: int = 0, ends: bool = False, **fields: Any) -> TextDelta:
    finish_reason = FinishReason.LENGTH if ends else None
    usage = Usage(3, 1, 2)
    return TextDelta(request_idx, index, text, (97,), usage, finish_reason=finish_reason, **fields)


def logprobs(text: str) -> tuple[TextLogprob, ...]:
    return tuple(TextLogprob(ord(c), c, c.encode(), -0.5, idx) for idx, c in enumerate(text))


def chat(num_choices: int = 1, **options: Any) -> ChatEventWriter:
    fields = {"include_usage": False, "is_usage_continuous": False, **options}
    return ChatEventWriter(ENVELOPE, num_choices, UsageCounter([3]), **fields)


def completions(num_prompts: int, n: int, **options: Any) -> CompletionEventWriter:
    fields = {
        "include_usage": False,
        "is_usage_continuous": False,
        "echoes": None,
        "num_top_logprobs": None,
        **options,
    }
    return CompletionEventWriter(ENVELOPE, num_prompts * n, UsageCounter([3] * num_prompts), n=n, **fields)


def parse(data: bytes) -> list[Any]:
    events = data.decode().split("\n\n")
    assert events.pop() == ""
    assert all(event.startswith("data: ") for event in events)
    texts = [event.removeprefix("data: ") for event in events]
    return [text if text == "[DONE]" else json.loads(text) for text in texts]


def choices(events: list[Any]) -> list[dict[str, Any]]:
    return [choice for event in events if event != "[DONE]" for choice in event.get("choices", [])]


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 4).flatmap(
        lambda n: st.tuples(
            st.just(n),
            st.lists(st.tuples(st.integers(0, n - 1), st.text(max_size=3), st.booleans()), max_size=20),
        )
    ),
    st.booleans(),
    st.booleans(),
)
def test_every_choice_ends_once_whatever_fails(
    story: tuple[int, list[tuple[int, str, bool]]], is_chat: bool, fails: bool
) -> None:
    n, steps = story
    writer: EventWriter = chat(n) if is_chat else completions(1, n)
    data = writer.begin()
    open_choices = set(range(n))
    for index, text, ends in steps:
        if index in open_choices:
            data += writer.write([delta(index, text, ends=ends)])
            if ends:
                open_choices.discard(index)
    if fails:
        data += writer.fail(ERROR)
    else:
        data += writer.write([delta(index, "", ends=True) for index in sorted(open_choices)]) + writer.end()
    events = parse(data)
    assert events[-1] == "[DONE]"
    assert events.count("[DONE]") == 1
    ended = [choice["index"] for choice in choices(events) if choice["finish_reason"] is not None]
    assert sorted(ended) == list(range(n))
    errors = [event for event in events[:-1] if "error" in event]
    assert errors == ([ERROR] if fails else [])
    if fails:
        failed = [c["index"] for c in choices(events) if c["finish_reason"] == "error"]
        assert failed == sorted(open_choices)


def test_chat_begins_with_the_role_of_every_choice() -> None:
    begin = parse(chat(2).begin())
    assert [(c["index"], c["delta"]) for c in choices(begin)] == [
        (0, {"role": "assistant", "content": ""}),
        (1, {"role": "assistant", "content": ""}),
    ]
    assert {key: begin[0][key] for key in ENVELOPE} == ENVELOPE


def test_a_delta_without_text_is_no_chunk() -> None:
    assert chat().write([delta(0, "")]) == b""
    assert completions(1, 1).write([delta(0, "")]) == b""


def test_usage_only_at_the_end_and_null_before() -> None:
    writer = chat(include_usage=True)
    events = parse(writer.write([delta(0, "a", ends=True)]) + writer.end())
    assert events[0]["usage"] is None
    assert events[1]["choices"] == []
    assert events[1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
    assert "usage" not in parse(chat().write([delta(0, "a")]))[0]


def test_echo_without_logprobs_comes_first() -> None:
    writer = completions(2, 2, echoes=["one", "two"])
    assert [(c["index"], c["text"]) for c in choices(parse(writer.begin()))] == [
        (0, "one"),
        (1, "one"),
        (2, "two"),
        (3, "two"),
    ]


def test_echo_with_logprobs_waits_for_those_of_the_prompt() -> None:
    writer = completions(1, 2, echoes=["ab"], num_top_logprobs=0)
    assert writer.begin() == b""
    assert writer.write([delta(1, "x", logprobs=logprobs("x"))]) == b""
    prompt = (TextLogprob(97, "a", b"a", None, 0), *logprobs("ab")[1:])
    events = choices(parse(writer.write([delta(0, "y", logprobs=logprobs("y"), prompt_logprobs=prompt)])))
    assert [(c["index"], c["text"]) for c in events] == [(0, "ab"), (1, "ab"), (1, "x"), (0, "y")]
    assert events[0]["logprobs"]["token_logprobs"] == [None, -0.5]
    assert events[2]["logprobs"]["text_offset"] == [2]


def test_failure_before_the_prompts_logprobs_still_ends_every_choice() -> None:
    writer = completions(1, 2, echoes=["ab"], num_top_logprobs=1)
    data = (
        writer.begin() + writer.write([delta(1, "x", logprobs=logprobs("x"), ends=True)]) + writer.fail(ERROR)
    )
    ended = [c["index"] for c in choices(parse(data)) if c["finish_reason"] is not None]
    assert sorted(ended) == [0, 1]


@settings(deadline=None, max_examples=60)
@given(st.text())
def test_any_text_survives_the_encoding(text: str) -> None:
    events = parse(chat().write([delta(0, text, ends=True)]))
    assert events[0]["choices"][0]["delta"].get("content", "") == text
    assert len(events) == 1
