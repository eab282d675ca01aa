"""What request bodies mean: sampling parameters, messages, prompts."""

from __future__ import annotations

from typing import Any

import pytest

from plait.errors import InvalidRequestError
from plait.server.body import convert
from plait.server.errors import HttpError
from plait.server.requests import (
    ChatRequest,
    CompletionRequest,
    chat_messages,
    chat_sampling,
    completion_prompts,
    completion_sampling,
    only_echoes,
)
from plait.types import SamplingParams

HI = [{"role": "user", "content": "hi"}]


def chat(**fields: Any) -> SamplingParams:
    return chat_sampling(convert({"messages": HI, **fields}, ChatRequest, allow_unknown=False))


def completion(**fields: Any) -> SamplingParams:
    return completion_sampling(convert({"prompt": "hi", **fields}, CompletionRequest, allow_unknown=False))


def messages(*raw: dict[str, Any], allow_unknown: bool = False) -> list[dict[str, Any]]:
    return chat_messages(list(raw), allow_unknown=allow_unknown)


def test_defaults() -> None:
    expected = SamplingParams(max_tokens=None)
    assert chat() == completion() == expected


def test_null_is_the_same_as_leaving_out() -> None:
    nulls = {name: None for name in ChatRequest.__struct_fields__ if name != "messages"}
    assert chat(**nulls) == chat()
    nulls = {name: None for name in CompletionRequest.__struct_fields__ if name != "prompt"}
    assert completion(**nulls) == completion()


def test_every_sampling_field_is_passed_on() -> None:
    fields = {
        "n": 2,
        "temperature": 0,
        "top_p": 0.5,
        "top_k": 5,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": -1,
        "frequency_penalty": 1,
        "seed": 7,
        "max_tokens": 9,
        "min_tokens": 2,
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
    }
    expected = SamplingParams(
        **fields,
        stop=("a",),
        stop_token_ids=(3,),
        logit_bias=((4, -2.0),),  # type: ignore[arg-type]
    )
    assert chat(**fields, stop="a", stop_token_ids=[3], logit_bias={"4": -2}) == expected
    assert completion(**fields, stop=["a"], stop_token_ids=[3], logit_bias={"4": -2}) == expected


def test_logprobs_of_both_endpoints() -> None:
    assert chat(logprobs=False).logprobs is None
    assert chat(logprobs=True).logprobs == 0
    assert chat(logprobs=True, top_logprobs=3).logprobs == 3
    assert completion(logprobs=0).logprobs == 0
    assert completion(logprobs=0).prompt_logprobs is None
    assert completion(logprobs=2, echo=True).prompt_logprobs == 2


def test_max_tokens_has_two_names_in_chats() -> None:
    assert chat(max_completion_tokens=5).max_tokens == 5
    assert chat(max_completion_tokens=5, max_tokens=5).max_tokens == 5
    with pytest.raises(InvalidRequestError, match="contradict"):
        chat(max_completion_tokens=5, max_tokens=6)


def test_max_tokens_0_is_for_echo_only() -> None:
    body = CompletionRequest(prompt="a", echo=True, max_tokens=0)
    assert only_echoes(body)
    assert completion_sampling(body).max_tokens == 1
    with pytest.raises(InvalidRequestError) as caught:
        completion(max_tokens=0)
    assert caught.value.param == "max_tokens"


def test_fields_that_change_nothing_are_taken() -> None:
    chat(user="u", metadata={"a": "b"}, store=False, service_tier="auto", response_format={"type": "text"})
    chat(tools=[], tool_choice="none", parallel_tool_calls=True, prompt_cache_key="k", safety_identifier="s")
    completion(best_of=1, suffix="", user="u")
    completion(best_of=3, n=3)


def test_a_reply_can_be_sent_back_as_it_came() -> None:
    reply = {
        "role": "assistant",
        "content": "yes",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": None,
    }
    assert messages(*HI, reply)[1] == {"role": "assistant", "content": "yes"}
    with pytest.raises(HttpError) as caught:
        messages({**reply, "function_call": {"name": "f"}})
    assert caught.value.param == "messages[0].function_call"


def test_tool_messages_reach_the_template() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    rendered = messages(
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "42", "tool_call_id": "1", "name": "f"},
    )
    assert rendered == [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "42", "tool_call_id": "1", "name": "f"},
    ]


def test_parts_are_joined_and_pictures_refused() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert messages({"role": "user", "content": parts})[0]["content"] == "ab"
    with pytest.raises(InvalidRequestError) as caught:
        messages({"role": "user", "content": [*parts, {"type": "image_url", "image_url": {"url": "x"}}]})
    assert caught.value.param == "messages[0].content[2].type"
    assert "image_url" in caught.value.message


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a", [("prompt", "a")]),
        (["a", "b"], [("prompt[0]", "a"), ("prompt[1]", "b")]),
        ([1, 2], [("prompt", [1, 2])]),
        ([[1], [2, 3]], [("prompt[0]", [1]), ("prompt[1]", [2, 3])]),
    ],
)
def test_forms_of_prompts(prompt: Any, expected: Any) -> None:
    assert completion_prompts(prompt, max_prompts=8) == expected


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ([], "prompt"),
        (["a", 1], "prompt[1]"),
        ([1, "a"], "prompt[1]"),
        ([1, True], "prompt[1]"),
        ([True], "prompt[0]"),
        ([[1], "a"], "prompt[1]"),
        ([[1], [1.0]], "prompt[1][0]"),
        ([{}], "prompt[0]"),
        ([None], "prompt[0]"),
        (["a"] * 9, "prompt"),
    ],
)
def test_bad_prompts(prompt: Any, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        completion_prompts(prompt, max_prompts=8)
    assert caught.value.param == param
