"""POST /v1/completions through the official client."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.fake_client import REPLY
from tests.fakes.fake_server import CHAT, COMPLETIONS, Served, serve_fake
from tests.fakes.fake_tokenizer import BOS


def text_of(events: list[Any], index: int = 0) -> str:
    return "".join(
        choice["text"] for event in events[:-1] for choice in event["choices"] if choice["index"] == index
    )


def test_unary(shared: Served) -> None:
    reply = shared.openai.completions.create(model="fake", prompt="hello", max_tokens=9)
    (choice,) = reply.choices
    assert (choice.index, choice.text, choice.finish_reason) == (0, REPLY[:9].decode(), "length")
    assert choice.logprobs is None
    assert reply.object == "text_completion"
    assert reply.id.startswith("cmpl-")
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (6, 9)


def test_stream(shared: Served) -> None:
    chunks = list(
        shared.openai.completions.create(
            model="fake",
            prompt="say:good 🙂 day;",
            stream=True,
            stream_options={"include_usage": True},
            max_tokens=50,
        )
    )
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == "good 🙂 day"
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert reasons == ["stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len("good 🙂 day".encode()) + 1


@pytest.mark.parametrize(
    ("fields", "num_tokens"),
    [
        ({"prompt": "hello"}, 16),
        ({"prompt": "hello", "max_tokens": None}, 16),
        ({"prompt": "hello", "min_tokens": 20}, 20),
        ({"prompt": "a" * 505}, 512 - 506),
        ({"prompt": "hello", "echo": True}, 16),
        ({"prompt": "hello", "max_tokens": 300}, 300),
    ],
)
def test_sixteen_tokens_or_what_is_left_when_max_tokens_is_absent(
    shared: Served, fields: dict[str, Any], num_tokens: int
) -> None:
    reply = shared.post(COMPLETIONS, **fields).json()
    assert reply["usage"]["completion_tokens"] == num_tokens
    assert reply["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ["a"] * 9}, "prompt"),
        ({"prompt": ["a"] * 3, "n": 3}, "n"),
        ({"prompt": "a", "n": 9}, "n"),
        ({"messages": [{"role": "user", "content": "a"}], "n": 9}, "n"),
    ],
)
def test_choices_of_one_request_are_bounded(fields: dict[str, Any], param: str) -> None:
    with serve_fake(max_choices_per_request=8) as talk:
        path = CHAT if "messages" in fields else COMPLETIONS
        error = talk.post(path, max_tokens=1, **fields).json()["error"]
        assert (error["code"], error["param"]) == ("too_many_choices", param)
        assert "9 choices" in error["message"]
        assert "at most 8" in error["message"]
        assert talk.client.requests == []
        full = talk.post(COMPLETIONS, prompt=["a"] * 4, n=2, max_tokens=1).json()
        assert len(full["choices"]) == 8


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        (["say:one;", "say:two;"], ["one", "two"]),
        ([[*b"say:x;"], [*b"say:yz;"]], ["x", "yz"]),
        ([*b"say:ids;"], ["ids"]),
    ],
)
def test_prompt_lists(shared: Served, prompt: Any, texts: list[str]) -> None:
    reply = shared.openai.completions.create(model="fake", prompt=prompt, max_tokens=20)
    assert [choice.text for choice in reply.choices] == texts
    assert [choice.index for choice in reply.choices] == list(range(len(texts)))
    events = shared.events(COMPLETIONS, prompt=prompt, max_tokens=20)
    assert [text_of(events, idx) for idx in range(len(texts))] == texts


def test_prompt_list_with_n(shared: Served) -> None:
    reply = shared.post(COMPLETIONS, prompt=["a", "say:bc;"], n=2, max_tokens=4).json()
    texts = [choice["text"] for choice in reply["choices"]]
    assert texts == [REPLY[:4].decode(), REPLY[1:5].decode(), "bc", "bc"]
    assert reply["usage"]["prompt_tokens"] == 2 + 8
    assert reply["usage"]["completion_tokens"] == 4 + 4 + 3 + 3


def test_ids_are_taken_as_they_are(fake: Served) -> None:
    fake.post(COMPLETIONS, prompt=[1, 2, 3], max_tokens=1)
    assert fake.client.requests[-1].prompt_token_ids == (1, 2, 3)
    fake.post(COMPLETIONS, prompt="ab", max_tokens=1)
    assert fake.client.requests[-1].prompt_token_ids == (BOS, 97, 98)
    fake.post(COMPLETIONS, prompt="ab", max_tokens=1, add_special_tokens=False)
    assert fake.client.requests[-1].prompt_token_ids == (97, 98)


def test_echo(shared: Served) -> None:
    reply = shared.post(COMPLETIONS, prompt=["say:a;", "say:b;"], echo=True, max_tokens=5).json()
    assert [choice["text"] for choice in reply["choices"]] == ["say:a;a", "say:b;b"]
    events = shared.events(COMPLETIONS, prompt=["say:a;", "say:b;"], echo=True, max_tokens=5)
    assert [text_of(events, idx) for idx in range(2)] == ["say:a;a", "say:b;b"]


def test_echo_of_ids_is_their_text(shared: Served) -> None:
    reply = shared.post(COMPLETIONS, prompt=[*"say:🙂;".encode()], echo=True, max_tokens=5).json()
    assert reply["choices"][0]["text"] == "say:🙂;🙂"


def test_echo_alone_with_max_tokens_0(shared: Served) -> None:
    body = {"prompt": "abc", "echo": True, "max_tokens": 0, "logprobs": 1}
    reply = shared.post(COMPLETIONS, **body).json()
    (choice,) = reply["choices"]
    assert choice["text"] == "abc"
    assert choice["logprobs"]["tokens"] == ["<s>", "a", "b", "c"]
    assert choice["logprobs"]["token_logprobs"] == [None, -0.5, -0.5, -0.5]
    assert choice["logprobs"]["text_offset"] == [0, 0, 1, 2]
    assert choice["finish_reason"] == "length"
    assert reply["usage"]["completion_tokens"] == 0
    events = shared.events(COMPLETIONS, **body)
    assert text_of(events) == "abc"


def test_seed_and_bias_reach_the_engine(fake: Served) -> None:
    fake.openai.completions.create(
        model="fake", prompt="a", seed=42, logit_bias={"65": -1}, max_tokens=2, best_of=1
    )
    sampling = fake.client.requests[-1].sampling
    assert sampling.seed == 42
    assert sampling.logit_bias == ((65, -1.0),)


def test_stop(shared: Served) -> None:
    reply = shared.openai.completions.create(model="fake", prompt="a", stop=["quick"], max_tokens=50)
    assert reply.choices[0].text == "The "
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage is not None
    assert reply.usage.completion_tokens == len("The quick")
