"""POST /v1/chat/completions through the official client."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.fake_client import REPLY
from tests.fakes.fake_server import CHAT, Served
from tests.fakes.fake_tokenizer import BOS, TURN

HELLO: list[Any] = [{"role": "user", "content": "hello"}]
SAY: list[Any] = [{"role": "user", "content": "say:good 🙂 day;"}]


def test_unary(shared: Served) -> None:
    reply = shared.openai.chat.completions.create(model="fake", messages=HELLO, max_tokens=9)
    (choice,) = reply.choices
    assert choice.message.role == "assistant"
    assert choice.message.content == REPLY[:9].decode()
    assert choice.message.refusal is None
    assert choice.finish_reason == "length"
    assert choice.logprobs is None
    assert choice.index == 0
    assert reply.object == "chat.completion"
    assert reply.model == "fake"
    assert reply.id.startswith("chatcmpl-")
    assert reply.usage is not None
    num_prompt = len("<|turn|>user:hello<|turn|>assistant:") - 2 * len("<|turn|>") + 2 + 1
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (num_prompt, 9)
    assert reply.usage.total_tokens == num_prompt + 9
    assert reply.usage.prompt_tokens_details is not None
    assert reply.usage.prompt_tokens_details.cached_tokens == num_prompt // 16 * 16


def test_ends_with_eos_which_is_no_text(shared: Served) -> None:
    reply = shared.openai.chat.completions.create(model="fake", messages=SAY)
    assert reply.choices[0].message.content == "good 🙂 day"
    assert reply.choices[0].finish_reason == "stop"
    assert reply.choices[0].model_extra == {"stop_reason": None}


def test_stream_through_the_official_client(shared: Served) -> None:
    stream = shared.openai.chat.completions.create(model="fake", messages=SAY, stream=True)
    chunks = list(stream)
    assert len({chunk.id for chunk in chunks}) == 1
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(chunk.choices[0].delta.role is None for chunk in chunks[1:])
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "good 🙂 day"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["stop"]
    assert all(chunk.usage is None for chunk in chunks)


def test_stream_ends_with_done_and_usage_only_when_asked(shared: Served) -> None:
    plain = shared.events(CHAT, messages=HELLO, max_tokens=3)
    assert plain[-1] == "[DONE]"
    assert all("usage" not in event for event in plain[:-1])
    with_usage = shared.events(
        CHAT,
        messages=HELLO,
        max_tokens=3,
        stream_options={"include_usage": True, "include_obfuscation": False},
    )
    assert with_usage[-1] == "[DONE]"
    assert with_usage[-2]["choices"] == []
    assert with_usage[-2]["usage"]["completion_tokens"] == 3
    assert all(event["usage"] is None for event in with_usage[:-2])
    unary = shared.post(CHAT, messages=HELLO, max_tokens=3).json()
    assert unary["usage"] == with_usage[-2]["usage"]


def test_continuous_usage(shared: Served) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = shared.events(CHAT, messages=HELLO, max_tokens=4, stream_options=options)
    counts = [event["usage"]["completion_tokens"] for event in events[:-1]]
    assert counts == sorted(counts)
    assert counts[-1] == 4


@pytest.mark.parametrize("n", [2, 5])
def test_n_choices(shared: Served, n: int) -> None:
    expected = [(REPLY * 2)[idx : idx + 6].decode() for idx in range(n)]
    reply = shared.openai.chat.completions.create(model="fake", messages=HELLO, n=n, max_tokens=6)
    assert [choice.index for choice in reply.choices] == list(range(n))
    assert [choice.message.content for choice in reply.choices] == expected
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 6 * n
    texts = [""] * n
    ends = []
    for event in shared.events(CHAT, messages=HELLO, n=n, max_tokens=6)[:-1]:
        for choice in event["choices"]:
            texts[choice["index"]] += choice["delta"].get("content", "")
            if choice["finish_reason"]:
                ends.append((choice["index"], choice["finish_reason"]))
    assert texts == expected
    assert sorted(ends) == [(idx, "length") for idx in range(n)]


def test_max_completion_tokens(shared: Served) -> None:
    reply = shared.openai.chat.completions.create(model="fake", messages=HELLO, max_completion_tokens=4)
    assert reply.choices[0].message.content == REPLY[:4].decode()


def test_without_max_tokens_the_rest_of_the_context_is_used(shared: Served) -> None:
    reply = shared.openai.chat.completions.create(model="fake", messages=HELLO)
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage is not None
    assert reply.usage.total_tokens == 512


def test_content_parts_are_joined(fake: Served) -> None:
    parts = [{"type": "text", "text": "say:a"}, {"type": "text", "text": "b;"}]
    reply = fake.post(CHAT, messages=[{"role": "user", "content": parts}])
    assert reply.json()["choices"][0]["message"]["content"] == "ab"


def test_developer_is_system_and_nulls_are_left_out(fake: Served) -> None:
    messages = [{"role": "developer", "content": "x"}, {"role": "user", "content": "y", "name": None}]
    nulls = dict.fromkeys(
        (
            "temperature",
            "n",
            "stop",
            "seed",
            "stream",
            "tools",
            "logit_bias",
            "top_logprobs",
            "stream_options",
        )
    )
    assert fake.post(CHAT, messages=messages, max_tokens=1, **nulls).status_code == 200
    ids = fake.client.requests[-1].prompt_token_ids
    assert bytes(i for i in ids if i < 256) == b"system:xuser:yassistant:"
    assert ids[0] == BOS


def test_typed_control_tokens_are_text(fake: Served) -> None:
    fake.post(CHAT, messages=[{"role": "user", "content": "a<|turn|>b"}], max_tokens=1)
    assert fake.client.requests[-1].prompt_token_ids.count(TURN) == 2  # the user's turn and the assistant's


def test_template_refusal_is_400(shared: Served) -> None:
    reply = shared.post(CHAT, messages=[*HELLO, *HELLO])
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "messages[1].role"


def test_stop_strings(shared: Served) -> None:
    for stream in (False, True):
        if stream:
            events = shared.events(CHAT, messages=HELLO, stop=["brown", "zzz"])[:-1]
            text = "".join(event["choices"][0]["delta"].get("content", "") for event in events)
            last = events[-1]["choices"][0]
        else:
            last = shared.post(CHAT, messages=HELLO, stop=["brown", "zzz"]).json()["choices"][0]
            text = last["message"]["content"]
        assert text == "The quick "
        assert last["finish_reason"] == "stop"
        assert last["stop_reason"] == "brown"


def test_stop_string_is_never_shown_in_part(shared: Served) -> None:
    events = shared.events(CHAT, messages=HELLO, stop="brown fox jumps over the LAZY", max_tokens=45)[:-1]
    texts = [event["choices"][0]["delta"].get("content", "") for event in events]
    assert "".join(texts) == REPLY.decode()  # no stop: what was held back comes in the end
    held = shared.events(CHAT, messages=HELLO, stop="fox", max_tokens=45)[:-1]
    joined = ""
    for event in held:
        joined += event["choices"][0]["delta"].get("content", "")
        assert "f" not in joined
    assert joined == "The quick brown "


def test_include_stop_string(shared: Served) -> None:
    reply = shared.post(CHAT, messages=HELLO, stop="brown", include_stop_str_in_output=True).json()
    assert reply["choices"][0]["message"]["content"] == "The quick brown"


def test_stop_token_ids_give_their_reason(shared: Served) -> None:
    choice = shared.post(CHAT, messages=HELLO, stop_token_ids=[ord("q")]).json()["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", ord("q"))
    assert choice["message"]["content"] == "The "


def test_a_stopped_request_is_ended_in_the_engine(fake: Served) -> None:
    fake.post(CHAT, messages=HELLO, stop="brown")
    assert len(fake.client.aborted) >= 1
    for _ in range(200):
        if fake.client.num_running == 0:
            break
        fake.http.get("/health/live")
    assert fake.client.num_running == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "me", "safety_identifier": "me", "metadata": {"a": "b"}, "store": True},
        {"service_tier": "auto", "prompt_cache_key": "a", "prompt_cache_retention": "24h"},
        {"reasoning_effort": "low", "verbosity": "high"},
        {"prediction": {"type": "content", "content": "The quick"}},
        {"modalities": ["text"], "response_format": {"type": "text"}},
        {"modalities": None, "audio": None, "web_search_options": None, "functions": None},
        {"tools": [], "tool_choice": "auto", "parallel_tool_calls": False},
        {"functions": [], "function_call": "none"},
    ],
)
def test_fields_that_change_nothing_here_are_taken(fake: Served, fields: dict[str, Any]) -> None:
    reply = fake.openai.chat.completions.create(
        model="fake", messages=[{"role": "user", "content": "hello"}], max_tokens=4, extra_body=fields
    )
    assert reply.choices[0].message.content == REPLY[:4].decode()


def test_sampling_fields_reach_the_engine(fake: Served) -> None:
    reply = fake.post(
        CHAT,
        messages=HELLO,
        max_tokens=2,
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.1,
        presence_penalty=0.3,
        frequency_penalty=-0.3,
        repetition_penalty=1.1,
        seed=-7,
        min_tokens=1,
        ignore_eos=True,
        stop_token_ids=[3],
        logit_bias={"65": 5, "66": -100},
        skip_special_tokens=False,
        user="me",
    )
    assert reply.status_code == 200
    sampling = fake.client.requests[-1].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 40, 0.1)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.3, -0.3)
    assert (sampling.repetition_penalty, sampling.seed, sampling.min_tokens) == (1.1, -7, 1)
    assert (sampling.ignore_eos, sampling.stop_token_ids, sampling.skip_special_tokens) == (True, (3,), False)
    assert sampling.logit_bias == ((65, 5.0), (66, -100.0))
