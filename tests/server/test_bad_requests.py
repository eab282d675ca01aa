"""Bad requests are refused with 400 and the field's name, and nobody else notices."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fakes.fake_client import REPLY
from tests.fakes.fake_server import CHAT, COMPLETIONS, Served, serve_fake

MESSAGE = {"role": "user", "content": "a"}
TOKENIZE, DETOKENIZE = "/tokenize", "/detokenize"


def completion(**fields: Any) -> tuple[str, Any]:
    return COMPLETIONS, {"prompt": "a", "max_tokens": 4, **fields}


def chat(**fields: Any) -> tuple[str, Any]:
    return CHAT, {"messages": [MESSAGE], "max_tokens": 4, **fields}


def messages(*given: Any) -> tuple[str, Any]:
    return CHAT, {"messages": list(given), "max_tokens": 4}


def raw(text: str | bytes) -> tuple[str, Any]:
    return COMPLETIONS, text.encode() if isinstance(text, str) else text


# (path, body), the field that the reply names
CASES: list[tuple[tuple[str, Any], str | None]] = [
    # no JSON
    (raw(""), None),
    (raw("{"), None),
    (raw('{"prompt": "a"} x'), None),
    (raw("prompt=a"), None),
    (raw(b'{"prompt": "\xff\xfe"}'), None),
    (raw(b"\xef\xbb\xbf{}"), None),
    (raw('{"prompt": ' + "[" * 100_000 + "]" * 100_000 + "}"), None),
    (raw('{"prompt": ' + '{"a":' * 50_000 + "1" + "}" * 50_000 + "}"), None),
    (raw("null"), None),
    (raw("[]"), None),
    (raw('"a"'), None),
    (raw("1"), None),
    # numbers that are none
    (raw('{"prompt": "a", "temperature": NaN}'), "temperature"),
    (raw('{"prompt": "a", "top_p": Infinity}'), "top_p"),
    (raw('{"prompt": "a", "logit_bias": {"5": -Infinity}}'), "logit_bias.5"),
    (raw('{"prompt": "a", "temperature": 1e999}'), "temperature"),
    (raw('{"prompt": "a", "logit_bias": {"5": 1e999}}'), "logit_bias"),
    (raw('{"prompt": "a", "max_tokens": 1' + "0" * 5000 + "}"), "max_tokens"),
    (raw('{"prompt": [1, 2, 1' + "0" * 5000 + "]}"), "prompt[2]"),
    (raw('{"prompt": "a", "n": 1' + "0" * 400 + "}"), "n"),
    # names
    (raw('{"prompt": "a", "prompt": "b"}'), "prompt"),
    (
        raw('{"prompt": "a", "stream_options": {"include_usage": true, "include_usage": true}}'),
        "include_usage",
    ),
    (completion(unknown=1), "unknown"),
    (completion(**{"\u0000\n": 1}), None),
    (chat(prompt="a"), "prompt"),
    (chat(logprobs=True, stream=True, stream_options={"other": 1}), "stream_options.other"),
    # lone surrogates
    (raw('{"prompt": "\\ud800"}'), "prompt"),
    (raw('{"prompt": ["a", "\\udfff x"]}'), "prompt[1]"),
    (raw('{"prompt": "a", "stop": ["\\ud83d"]}'), "stop[0]"),
    (raw('{"prompt": "a", "\\ud83d": 1}'), None),
    ((CHAT, b'{"messages": [{"role": "user", "content": "\\ud83d"}]}'), "messages[0].content"),
    # prompts
    ((COMPLETIONS, {}), "prompt"),
    ((COMPLETIONS, {"prompt": None}), "prompt"),
    (completion(prompt=[]), "prompt"),
    (completion(prompt=[[]]), "prompt[0]"),
    (completion(prompt="", add_special_tokens=False), "prompt"),
    (completion(prompt=["a", []]), "prompt[1]"),
    (completion(prompt=["a", 1]), "prompt[1]"),
    (completion(prompt=[1, "a"]), "prompt[1]"),
    (completion(prompt=[1, True]), "prompt[1]"),
    (completion(prompt=[True]), "prompt[0]"),
    (completion(prompt=[1.5]), "prompt[0]"),
    (completion(prompt=[None]), "prompt[0]"),
    (completion(prompt=[{"a": 1}]), "prompt[0]"),
    (completion(prompt=[[[1]]]), "prompt[0][0]"),
    (completion(prompt={"a": 1}), "prompt"),
    (completion(prompt=5), "prompt"),
    (completion(prompt=[262]), "prompt"),
    (completion(prompt=[-1]), "prompt"),
    (completion(prompt=[[1], [10**30]]), "prompt[1]"),
    (completion(prompt=["a"] * 129), "prompt"),
    (completion(prompt=["a"] * 128, n=2), "n"),
    (completion(prompt="a" * 513), "prompt"),
    (completion(prompt="a" * 100_000), "prompt"),
    (completion(prompt=["a", "b" * 600]), "prompt[1]"),
    # lengths
    (completion(max_tokens=0), "max_tokens"),
    (completion(max_tokens=-1), "max_tokens"),
    (completion(max_tokens=511), "max_tokens"),
    (completion(max_tokens=2**31), "max_tokens"),
    (completion(max_tokens=2**70), "max_tokens"),
    (completion(max_tokens=1.5), "max_tokens"),
    (completion(max_tokens="4"), "max_tokens"),
    (completion(max_tokens=True), "max_tokens"),
    (completion(min_tokens=5), "min_tokens"),
    (completion(min_tokens=-1), "min_tokens"),
    (chat(max_completion_tokens=5), "max_completion_tokens"),
    ((CHAT, {"messages": [MESSAGE], "max_completion_tokens": 0}), "max_completion_tokens"),
    # sampling
    (completion(temperature=-0.1), "temperature"),
    (completion(temperature=1e9), "temperature"),
    (completion(temperature="hot"), "temperature"),
    (completion(temperature=True), "temperature"),
    (completion(temperature=[1]), "temperature"),
    (completion(top_p=0), "top_p"),
    (completion(top_p=1.1), "top_p"),
    (completion(top_k=-2), "top_k"),
    (completion(top_k=2**40), "top_k"),
    (completion(top_k=0.5), "top_k"),
    (completion(min_p=2), "min_p"),
    (completion(presence_penalty=2.1), "presence_penalty"),
    (completion(frequency_penalty=-3), "frequency_penalty"),
    (completion(repetition_penalty=0), "repetition_penalty"),
    (completion(seed=2**64), "seed"),
    (completion(seed=-(2**63) - 1), "seed"),
    (completion(seed=1.5), "seed"),
    (completion(seed="1"), "seed"),
    (completion(n=0), "n"),
    (completion(n=65), "n"),
    (completion(n=10**12), "n"),
    (completion(n=True), "n"),
    (completion(best_of=2), "best_of"),
    (completion(logit_bias={"a": 1}), "logit_bias"),
    (completion(logit_bias={"262": 1}), "logit_bias"),
    (completion(logit_bias={"-1": 1}), "logit_bias"),
    (completion(logit_bias={"1": 101}), "logit_bias"),
    (completion(logit_bias={"1": 1, "01": 1}), "logit_bias"),
    (completion(logit_bias={str(i): 1 for i in range(1025)}), "logit_bias"),
    (completion(logit_bias={"1": "x"}), "logit_bias"),
    (completion(logit_bias=[1]), "logit_bias"),
    # stops
    (completion(stop=""), "stop"),
    (completion(stop=["a", ""]), "stop"),
    (completion(stop=["a"] * 17), "stop"),
    (completion(stop=[1]), "stop[0]"),
    (completion(stop=5), "stop"),
    (completion(stop="x" * 2000), "stop"),
    (completion(stop_token_ids=[262]), "stop_token_ids"),
    (completion(stop_token_ids=[-1]), "stop_token_ids"),
    (completion(stop_token_ids=["a"]), "stop_token_ids[0]"),
    (completion(stop_token_ids=[1] * 2000), "stop_token_ids"),
    # logprobs
    (completion(logprobs=-1), "logprobs"),
    (completion(logprobs=21), "logprobs"),
    (completion(logprobs=True), "logprobs"),
    (chat(logprobs=1), "logprobs"),
    (chat(logprobs=True, top_logprobs=21), "top_logprobs"),
    (chat(logprobs=True, top_logprobs=-1), "top_logprobs"),
    (chat(top_logprobs=1), "top_logprobs"),
    # the rest of completions
    (completion(suffix="x"), "suffix"),
    (completion(echo="yes"), "echo"),
    (completion(stream="true"), "stream"),
    (completion(stream=1), "stream"),
    (completion(stream_options={"include_usage": True}), "stream_options"),
    (completion(stream=True, stream_options=[]), "stream_options"),
    (completion(stream=True, stream_options={"include_usage": 1}), "stream_options.include_usage"),
    (completion(user=5), "user"),
    (completion(model=5), "model"),
    # messages
    ((CHAT, {}), "messages"),
    (messages(), "messages"),
    ((CHAT, {"messages": "hello"}), "messages"),
    ((CHAT, {"messages": {"role": "user"}}), "messages"),
    (messages("hello"), "messages[0]"),
    (messages(None), "messages[0]"),
    (messages({}), "messages[0].role"),
    (messages({"role": "robot", "content": "a"}), "messages[0].role"),
    (messages({"role": ["user"], "content": "a"}), "messages[0].role"),
    (messages({"role": {"a": 1}, "content": "a"}), "messages[0].role"),
    (messages(MESSAGE, {"role": "assistant"}), "messages[1].content"),
    (messages({"role": "user", "content": None}), "messages[0].content"),
    (messages({"role": "user", "content": 5}), "messages[0].content"),
    (messages({"role": "user", "content": True}), "messages[0].content"),
    (messages({"role": "user", "content": {"type": "text", "text": "a"}}), "messages[0].content"),
    (messages({"role": "user", "content": ["a"]}), "messages[0].content[0]"),
    (messages({"role": "user", "content": [{"type": "text"}]}), "messages[0].content[0].text"),
    (messages({"role": "user", "content": [{"type": "text", "text": 5}]}), "messages[0].content[0].text"),
    (messages({"role": "user", "content": [{"text": "a"}]}), "messages[0].content[0].type"),
    (
        messages({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}),
        "messages[0].content[0].type",
    ),
    (messages({**MESSAGE, "extra": 1}), "messages[0].extra"),
    (messages({**MESSAGE, "name": 5}), "messages[0].name"),
    (messages({"role": "assistant", "tool_calls": "x"}), "messages[0].tool_calls"),
    (messages({"role": "user", "content": "a" * 600}), "messages"),
    # the rest of chat
    (chat(tools=[{"type": "function", "function": {"name": "f"}}]), "tools"),
    (chat(tools=5), "tools"),
    (chat(tool_choice="required"), "tool_choice"),
    (chat(tool_choice="sometimes"), "tool_choice"),
    (chat(tool_choice={"type": "function"}), "tool_choice"),
    (chat(response_format={"type": "json_object"}), "response_format"),
    (chat(response_format={}), "response_format"),
    (chat(chat_template_kwargs=[]), "chat_template_kwargs"),
    (chat(metadata={"a": 1}), "metadata"),
    (chat(modalities=["text", "audio"]), "modalities"),
    (chat(modalities=[]), "modalities"),
    (chat(modalities="text"), "modalities"),
    (chat(audio={"voice": "a", "format": "wav"}), "audio"),
    (chat(web_search_options={}), "web_search_options"),
    (chat(functions=[{"name": "f"}]), "functions"),
    (chat(function_call={"name": "f"}), "function_call"),
    (chat(function_call="maybe"), "function_call"),
    (chat(verbosity=1), "verbosity"),
    (chat(reasoning_effort=True), "reasoning_effort"),
    (chat(prediction="a"), "prediction"),
    # tokenize
    ((TOKENIZE, {}), "prompt"),
    ((TOKENIZE, {"prompt": "a", "content": "b"}), "content"),
    ((TOKENIZE, {"prompt": 5}), "prompt"),
    ((TOKENIZE, {"messages": []}), "messages"),
    ((DETOKENIZE, {}), "tokens"),
    ((DETOKENIZE, {"tokens": "a"}), "tokens"),
    ((DETOKENIZE, {"tokens": [1, 262]}), "tokens[1]"),
    ((DETOKENIZE, {"tokens": [-1]}), "tokens[0]"),
    ((DETOKENIZE, {"tokens": [True]}), "tokens[0]"),
    ((DETOKENIZE, {"tokens": [2**80]}), "tokens[0]"),
    ((DETOKENIZE, {"tokens": [0.5]}), "tokens[0]"),
]


class LongStream:
    """Someone else's stream, which goes on while bad requests come."""

    def __init__(self, talk: Served) -> None:
        self._talk = talk
        self.text = ""
        self.finish_reason: str | None = None
        self.has_begun = threading.Event()
        self.thread = threading.Thread(target=self._read)
        self.thread.start()

    def _read(self) -> None:
        stream = self._talk.openai.completions.create(
            model="fake", prompt="long", stream=True, max_tokens=450
        )
        for chunk in stream:
            self.text += chunk.choices[0].text
            self.finish_reason = chunk.choices[0].finish_reason
            self.has_begun.set()


@pytest.fixture(scope="module")
def disturbed() -> Iterator[tuple[Served, LongStream]]:
    """A server with a stream on it that lasts for all the cases; in the end the stream must be whole."""
    with serve_fake(engine={"step_s": 0.1}) as talk:
        stream = LongStream(talk)
        assert stream.has_begun.wait(10)
        yield talk, stream
        assert stream.thread.is_alive(), "the stream ended before the bad requests did"
        talk.client.step_s = 0.0005
        stream.thread.join(60)
        assert stream.text == (REPLY * 20)[:450].decode()
        assert stream.finish_reason == "length"


def send(talk: Served, path: str, body: Any) -> Any:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return talk.http.post(path, content=content, headers={"content-type": "application/json"})


@pytest.mark.parametrize(("request_", "param"), CASES, ids=[str(idx) for idx in range(len(CASES))])
def test_is_refused(
    disturbed: tuple[Served, LongStream], request_: tuple[str, Any], param: str | None
) -> None:
    talk, _ = disturbed
    reply = send(talk, *request_)
    error = reply.json()["error"]
    assert reply.status_code == 400, error
    assert error["param"] == param, error
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    assert len(reply.content) < 1000
    assert set(error) == {"message", "type", "param", "code"}


def test_the_same_body_without_the_fault_is_served(disturbed: tuple[Served, LongStream]) -> None:
    talk, _ = disturbed
    for path, body in (completion(), chat()):
        assert send(talk, path, body).status_code == 200
    too_long = send(talk, *completion(prompt="a" * 600)).json()["error"]
    assert too_long["code"] == "context_length_exceeded"
    assert "512" in too_long["message"]
    assert "60" in too_long["message"]


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 60
    assert len({json.dumps([path, str(body)]) for (path, body), _ in CASES}) == len(CASES)
