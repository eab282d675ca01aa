"""The two shapes of logprobs, whole and streamed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.fake_server import CHAT, COMPLETIONS, Served

SAY: list[Any] = [{"role": "user", "content": "say:h🙂;"}]


def test_chat_shape(shared: Served) -> None:
    reply = shared.openai.chat.completions.create(
        model="fake", messages=SAY, logprobs=True, top_logprobs=3, max_tokens=3
    )
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert logprobs.refusal is None
    assert len(logprobs.content) == 3
    first = logprobs.content[0]
    assert (first.token, first.logprob, first.bytes) == ("h", -0.5, [104])
    assert [top.logprob for top in first.top_logprobs] == [-0.5, -1.0, -2.0]
    assert first.top_logprobs[1].bytes == list("héllo".encode())
    raw = bytes(byte for entry in logprobs.content for byte in entry.bytes or ())
    assert raw == "h🙂".encode()[:3]  # bytes hold what the lossy token text cannot


def test_chat_without_top_logprobs(shared: Served) -> None:
    reply = shared.post(CHAT, messages=SAY, logprobs=True, max_tokens=2).json()
    assert [entry["top_logprobs"] for entry in reply["choices"][0]["logprobs"]["content"]] == [[], []]
    assert (
        shared.post(CHAT, messages=SAY, logprobs=False, max_tokens=2).json()["choices"][0]["logprobs"] is None
    )


@pytest.mark.parametrize("num_top", [0, 2])
def test_streamed_chat_logprobs_are_those_of_the_whole_reply(shared: Served, num_top: int) -> None:
    body = {"messages": SAY, "logprobs": True, "top_logprobs": num_top}
    whole = shared.post(CHAT, **body).json()["choices"][0]
    streamed: list[Any] = []
    for event in shared.events(CHAT, **body)[:-1]:
        streamed += (event["choices"][0]["logprobs"] or {"content": []})["content"]
    assert streamed == whole["logprobs"]["content"]
    text = bytes(byte for entry in streamed[:-1] for byte in entry["bytes"])  # the last one is EOS
    assert text.decode() == whole["message"]["content"]


def test_completion_shape(shared: Served) -> None:
    reply = shared.openai.completions.create(model="fake", prompt="say:ab;", logprobs=2, max_tokens=2)
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["a", "b"]
    assert logprobs.token_logprobs == [-0.5, -0.5]
    assert logprobs.top_logprobs == [{"a": -0.5, "héllo": -1.0}, {"b": -0.5, "héllo": -1.0}]
    assert logprobs.text_offset == [0, 1]


def test_logprobs_0_is_on(shared: Served) -> None:
    for events in (False, True):
        if events:
            choice = shared.events(COMPLETIONS, prompt="say:a;", logprobs=0, max_tokens=1)[0]["choices"][0]
        else:
            choice = shared.post(COMPLETIONS, prompt="say:a;", logprobs=0, max_tokens=1).json()["choices"][0]
        assert choice["logprobs"] == {
            "tokens": ["a"],
            "token_logprobs": [-0.5],
            "top_logprobs": [None],
            "text_offset": [0],
        }


def test_parts_of_a_code_point_keep_their_names(shared: Served) -> None:
    choice = shared.post(COMPLETIONS, prompt="say:🙂;", logprobs=1, max_tokens=4).json()["choices"][0]
    assert choice["logprobs"]["tokens"] == [f"bytes:\\x{byte:02x}" for byte in "🙂".encode()]
    assert choice["text"] == "🙂"


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("prompt", ["say:ab;", ["say:ab;", "say:cde;"]])
def test_streamed_completion_logprobs_with_echo(shared: Served, prompt: Any, n: int) -> None:
    body = {"prompt": prompt, "logprobs": 1, "echo": True, "max_tokens": 8, "n": n}
    whole = shared.post(COMPLETIONS, **body).json()["choices"]
    assert whole[0]["logprobs"]["tokens"][:3] == ["<s>", "s", "a"]
    assert whole[0]["logprobs"]["token_logprobs"][0] is None
    events = shared.events(COMPLETIONS, **body)[:-1]
    for expected in whole:
        chunks = [c for event in events for c in event["choices"] if c["index"] == expected["index"]]
        assert "".join(chunk["text"] for chunk in chunks) == expected["text"]
        for name, values in expected["logprobs"].items():
            joined = [item for chunk in chunks for item in (chunk["logprobs"] or {name: []})[name]]
            assert joined == values
        assert [chunk["finish_reason"] for chunk in chunks if chunk["finish_reason"]] == ["stop"]


def test_tokens_that_are_dropped_by_a_stop_string_have_no_logprobs(shared: Served) -> None:
    choice = shared.post(COMPLETIONS, prompt="a", logprobs=0, stop="quick", max_tokens=40).json()["choices"][
        0
    ]
    assert "".join(choice["logprobs"]["tokens"]) == "The quick"


def test_offsets_point_into_the_text(shared: Served) -> None:
    choice = shared.post(COMPLETIONS, prompt="say:a🙂é;", echo=True, logprobs=1, max_tokens=9).json()[
        "choices"
    ][0]
    tokens, offsets = choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"]
    for token, offset in zip(tokens, offsets, strict=True):
        if not token.startswith(("bytes:", "<")):
            assert choice["text"][offset : offset + len(token)] == token
