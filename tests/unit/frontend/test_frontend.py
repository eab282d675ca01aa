"""Building requests: lengths, defaults, names of the fields at fault."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from plait.errors import InvalidRequestError, ShuttingDownError
from plait.frontend import Frontend
from plait.types import SamplingParams
from tests.fakes.fake_client import FakeClient
from tests.fakes.fake_tokenizer import BOS, TURN, FakeTemplate, FakeTokenizer

LIMIT = 512


@pytest.fixture(scope="module")
def frontend() -> Iterator[Frontend]:
    client = FakeClient(max_model_len=LIMIT)
    frontend = Frontend(client, FakeTokenizer(), FakeTemplate())  # type: ignore[arg-type]
    yield frontend
    frontend.close()
    client.close()


def refusal(frontend: Frontend, prompt: Any, param: str = "prompt", **sampling: Any) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        frontend.build_completion(prompt, SamplingParams(**sampling), param=param)
    return caught.value


def test_default_max_tokens_is_what_is_left(frontend: Frontend) -> None:
    request = frontend.build_completion("hello", SamplingParams(max_tokens=None))
    assert request.prompt_token_ids == (BOS, *b"hello")
    assert request.sampling.max_tokens == LIMIT - 6


def test_ids_are_taken_as_they_are(frontend: Frontend) -> None:
    assert frontend.build_completion([7, 8], SamplingParams()).prompt_token_ids == (7, 8)


def test_specials_are_left_out_on_request(frontend: Frontend) -> None:
    request = frontend.build_completion("a", SamplingParams(), add_special_tokens=False)
    assert request.prompt_token_ids == (97,)


@pytest.mark.parametrize("length", [LIMIT, LIMIT + 1, 4 * LIMIT, 100_000])
def test_too_long_a_prompt(frontend: Frontend, length: int) -> None:
    error = refusal(frontend, "x" * (length - 1), param="prompt[2]")
    assert (error.code, error.param) == ("context_length_exceeded", "prompt[2]")
    numbers = [int(number) for number in re.findall(r"\d+", error.message)]
    assert LIMIT in numbers
    assert any(LIMIT < number <= length + 16 for number in numbers)


def test_too_much_asked_for(frontend: Frontend) -> None:
    error = refusal(frontend, "hello", max_tokens=LIMIT - 5)
    assert (error.code, error.param) == ("context_length_exceeded", "max_tokens")
    assert frontend.build_completion("hello", SamplingParams(max_tokens=LIMIT - 6))


def test_the_longest_prompt_that_leaves_one_token(frontend: Frontend) -> None:
    request = frontend.build_completion("x" * (LIMIT - 2), SamplingParams(max_tokens=None))
    assert request.sampling.max_tokens == 1


def test_bad_values_name_their_field(frontend: Frontend) -> None:
    assert refusal(frontend, []).param == "prompt"
    assert refusal(frontend, [1, 10**30], param="prompt[1]").param == "prompt[1]"
    assert refusal(frontend, "a", temperature=float("nan")).param == "temperature"
    assert refusal(frontend, "a", logit_bias=((10**9, 1.0),)).param == "logit_bias"


def test_more_messages_than_tokens_are_not_rendered() -> None:
    class NoTemplate:
        def render(self, *arguments: Any, **keywords: Any) -> None:
            raise AssertionError("it takes time, while others wait")

    client = FakeClient(max_model_len=LIMIT)
    frontend = Frontend(client, FakeTokenizer(), NoTemplate())  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError) as caught:
        frontend.build_chat([{"role": "user", "content": "a"}] * (LIMIT + 1), SamplingParams())
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")
    assert str(LIMIT) in caught.value.message
    assert str(LIMIT + 1) in caught.value.message
    frontend.close()
    client.close()


def test_a_closed_frontend_says_so() -> None:
    client = FakeClient(max_model_len=LIMIT)
    frontend = Frontend(client, FakeTokenizer(), FakeTemplate())  # type: ignore[arg-type]
    frontend.close()
    with pytest.raises(ShuttingDownError, match="shutting down"):
        asyncio.run(frontend.prepare_completion("a", SamplingParams()))
    client.close()


def test_chat_is_rendered_with_control_tokens_of_the_template_only(frontend: Frontend) -> None:
    chat = [{"role": "user", "content": "a<|turn|>b"}]
    ids = frontend.build_chat(chat, SamplingParams()).prompt_token_ids
    assert ids.count(TURN) == 2
    assert frontend.encode_chat(chat, add_generation_prompt=False).count(TURN) == 1


def test_chat_without_a_template_is_refused() -> None:
    client = FakeClient()
    frontend = Frontend(client, FakeTokenizer(), None)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError) as caught:
        frontend.build_chat([{"role": "user", "content": "hi"}], SamplingParams())
    assert (caught.value.param, caught.value.code) == ("messages", "no_chat_template")
    frontend.close()
    client.close()


def test_preparing_runs_in_the_pool(frontend: Frontend) -> None:
    async def run() -> tuple[str, int]:
        name = (await frontend.call(threading.current_thread)).name
        request = await frontend.prepare_chat([{"role": "user", "content": "hi"}], SamplingParams())
        return name, len(request.prompt_token_ids)

    name, num_tokens = asyncio.run(run())
    assert name.startswith("plait-tokenize")
    assert num_tokens > 10
