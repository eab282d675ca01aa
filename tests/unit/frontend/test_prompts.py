"""Frontend over the fake engine: the forms that the library and the CLI use."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from plait.errors import InvalidRequestError, OverloadedError
from plait.frontend import Frontend
from plait.types import FinishReason, GenerateRequest, SamplingParams
from tests.fakes.fake_client import REPLY, FakeClient
from tests.fakes.fake_server import make_frontend, wait_until


@pytest.fixture
def client() -> Iterator[FakeClient]:
    client = FakeClient()
    yield client
    client.close()


@pytest.fixture
def frontend(client: FakeClient) -> Iterator[Frontend]:
    frontend = make_frontend(client)
    yield frontend
    frontend.close()


def say(frontend: Frontend, text: str, **sampling: object) -> GenerateRequest:
    return frontend.build_completion(f"say:{text};", SamplingParams(max_tokens=None, **sampling))  # type: ignore[arg-type]


def test_sync_generation(frontend: Frontend) -> None:
    deltas = list(frontend.generate_sync(say(frontend, "good 🙂")))
    assert "".join(delta.text for delta in deltas) == "good 🙂"
    assert deltas[-1].finish_reason is FinishReason.STOP
    assert [delta.finish_reason for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert deltas[-1].usage.completion_tokens == len("good 🙂".encode()) + 1


def test_several_requests_in_one_generation(frontend: Frontend) -> None:
    texts = ["", "", ""]
    for delta in frontend.submit_sync([say(frontend, text) for text in ("a", "bc", "🙂")]):
        texts[delta.request_idx] += delta.text
    assert texts == ["a", "bc", "🙂"]


def test_32_threads_do_not_disturb_each_other(frontend: Frontend) -> None:
    results: dict[int, str] = {}

    def run(idx: int) -> None:
        request = say(frontend, f"thread {idx} 🙂")
        results[idx] = "".join(delta.text for delta in frontend.generate_sync(request))

    threads = [threading.Thread(target=run, args=(idx,)) for idx in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == {idx: f"thread {idx} 🙂" for idx in range(32)}


def test_leaving_early_aborts(frontend: Frontend, client: FakeClient) -> None:
    request = frontend.build_completion("endless", SamplingParams(max_tokens=None))
    for _ in frontend.generate_sync(request):
        break
    assert wait_until(lambda: client.num_running == 0)
    assert client.aborted

    async def leave() -> None:
        generation = frontend.generate(request)
        async for _ in generation:
            break
        await generation.aclose()  # type: ignore[attr-defined]

    client.aborted.clear()
    asyncio.run(leave())
    assert wait_until(lambda: client.num_running == 0)
    assert client.aborted


def test_a_loop_that_closed_ends_its_requests(frontend: Frontend, client: FakeClient) -> None:
    client.step_s = 0.02

    async def forget() -> None:
        frontend.submit([frontend.build_completion("endless", SamplingParams(max_tokens=None))])

    asyncio.run(forget())
    assert wait_until(lambda: client.num_running == 0, 5)
    assert client.aborted


def test_many_loops(frontend: Frontend) -> None:
    async def run(text: str) -> str:
        return "".join([delta.text async for delta in frontend.generate(say(frontend, text))])

    results: dict[int, str] = {}
    threads = [
        threading.Thread(target=lambda idx=idx: results.update({idx: asyncio.run(run(f"loop {idx}"))}))
        for idx in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == {idx: f"loop {idx}" for idx in range(8)}


def test_a_slow_consumer_gets_few_large_deltas(frontend: Frontend, client: FakeClient) -> None:
    client.step_s = 0.0

    async def run() -> list[str]:
        request = frontend.build_completion("endless", SamplingParams(max_tokens=90))
        with frontend.submit([request]) as generation:
            while client.num_running:
                await asyncio.sleep(0.01)
            return [delta.text async for delta in generation]

    texts = asyncio.run(run())
    assert "".join(texts) == (REPLY * 2).decode()
    assert len(texts) == 1


def test_overload_submits_all_or_none(frontend: Frontend, client: FakeClient) -> None:
    client.max_queued = 2
    client.step_s = 0.02
    requests = [frontend.build_completion("endless", SamplingParams(max_tokens=None)) for _ in range(3)]
    with pytest.raises(OverloadedError):
        frontend.submit_sync(requests)
    assert wait_until(lambda: client.num_running == 0)


def test_errors_name_the_field_of_the_caller(frontend: Frontend) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        frontend.build_completion([1, 999], SamplingParams(), param="prompt[3]")
    assert caught.value.param == "prompt[3]"
    with pytest.raises(InvalidRequestError) as caught:
        frontend.build_chat([{"role": "user", "content": "a" * 600}], SamplingParams())
    assert (caught.value.param, caught.value.code) == ("messages", "context_length_exceeded")


def test_a_model_without_template_refuses_chats(client: FakeClient) -> None:
    frontend = Frontend(client, make_frontend(client).tokenizer, None)
    with pytest.raises(InvalidRequestError, match="no chat template") as caught:
        frontend.build_chat([{"role": "user", "content": "a"}], SamplingParams())
    assert caught.value.code == "no_chat_template"


def test_cancelling_a_wait_drops_work_that_has_not_begun(frontend: Frontend) -> None:
    ran = []

    async def run() -> None:
        busy = [asyncio.ensure_future(frontend.call(time.sleep, 0.2)) for _ in range(2)]
        waiting = asyncio.ensure_future(frontend.call(ran.append, 1))
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.gather(*busy)

    asyncio.run(run())
    assert ran == []
