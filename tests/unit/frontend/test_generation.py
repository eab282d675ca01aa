"""Generations over a fake engine: async and sync, aborts, many at once."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from plait.errors import EngineDeadError, OverloadedError
from plait.frontend import Frontend
from plait.frontend.generation import Mailbox
from plait.types import FinishReason, SamplingParams, TokenOutput
from tests.fakes.fake_client import FakeClient
from tests.fakes.fake_tokenizer import FakeTemplate, FakeTokenizer


@pytest.fixture
def client() -> Iterator[FakeClient]:
    client = FakeClient(max_model_len=1000)
    yield client
    client.close()


@pytest.fixture
def frontend(client: FakeClient) -> Iterator[Frontend]:
    frontend = Frontend(client, FakeTokenizer(), FakeTemplate())  # type: ignore[arg-type]
    yield frontend
    frontend.close()


def wait_until(claim: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_async_and_sync_give_the_same(frontend: Frontend) -> None:
    request = frontend.build_completion("say:one two three;", SamplingParams(max_tokens=50))

    async def run() -> str:
        return "".join([delta.text async for delta in frontend.generate(request)])

    assert asyncio.run(run()) == "one two three"
    assert "".join(delta.text for delta in frontend.generate_sync(request)) == "one two three"


def test_leaving_early_aborts(frontend: Frontend, client: FakeClient) -> None:
    request = frontend.build_completion("hello", SamplingParams(max_tokens=None, n=3))

    async def run() -> None:
        generator = frontend.generate(request)
        await anext(generator)
        await generator.aclose()

    asyncio.run(run())
    wait_until(lambda: client.num_running == 0)
    for _ in frontend.generate_sync(request):
        break
    wait_until(lambda: client.num_running == 0)
    assert set(client.aborted) == {1, 2}


def test_cancelling_aborts(frontend: Frontend, client: FakeClient) -> None:
    request = frontend.build_completion("hello", SamplingParams(max_tokens=None))

    async def run() -> None:
        with frontend.submit([request]) as generation:
            await generation.next_batch()
            async with asyncio.timeout(0.05):
                while await generation.next_batch():
                    pass

    with pytest.raises(TimeoutError):
        asyncio.run(run())
    wait_until(lambda: client.num_running == 0)


def test_a_cancelled_wait_loses_nothing(frontend: Frontend) -> None:
    words = "a long reply that is taken piece by piece"
    request = frontend.build_completion(f"say:{words};", SamplingParams(max_tokens=100, prompt_logprobs=0))

    async def run() -> str:
        text = ""
        with frontend.submit([request]) as generation:
            while True:
                try:
                    batch = await asyncio.wait_for(generation.next_batch(), 0.001)
                except TimeoutError:
                    continue
                if not batch:
                    return text
                text += "".join(delta.text for delta in batch)

    assert asyncio.run(run()) == words


def test_several_requests_are_admitted_together_or_not_at_all(frontend: Frontend, client: FakeClient) -> None:
    request = frontend.build_completion("hello", SamplingParams(max_tokens=5))
    client.max_queued = 2

    async def run(num_requests: int) -> set[tuple[int, int]]:
        return {(d.request_idx, d.index) async for d in frontend.submit([request] * num_requests)}

    assert asyncio.run(run(2)) == {(0, 0), (1, 0)}
    wait_until(lambda: client.num_running == 0)
    with pytest.raises(OverloadedError):
        asyncio.run(run(3))
    wait_until(lambda: client.num_running == 0)


def test_stop_string_ends_the_request_in_the_engine(frontend: Frontend, client: FakeClient) -> None:
    request = frontend.build_completion("hello", SamplingParams(max_tokens=None, n=2, stop=("fox",)))
    deltas = list(frontend.generate_sync(request))
    ends = [delta for delta in deltas if delta.finish_reason]
    assert [(end.finish_reason, end.stop_reason) for end in ends] == [(FinishReason.STOP, "fox")] * 2
    assert "".join(delta.text for delta in deltas if delta.index == 0) == "The quick brown "
    wait_until(lambda: client.num_running == 0)
    assert len(client.aborted) >= 1


def test_long_prompt_logprobs_are_read_off_the_loop(frontend: Frontend) -> None:
    request = frontend.build_completion("x" * 900, SamplingParams(max_tokens=3, prompt_logprobs=2))
    threads = set()
    place = frontend.tokenizer.token_text
    frontend.tokenizer.token_text = lambda i: threads.add(threading.current_thread().name) or place(i)  # type: ignore

    async def run() -> list[int]:
        return [len(delta.prompt_logprobs or ()) async for delta in frontend.generate(request)]

    assert sum(asyncio.run(run())) == 901
    assert threads
    assert all(name.startswith("plait-tokenize") for name in threads)


def test_engine_that_dies_ends_every_choice(frontend: Frontend, client: FakeClient) -> None:
    request = frontend.build_completion("hello", SamplingParams(max_tokens=None, n=2))
    ends = []
    for delta in frontend.generate_sync(request):
        client.die()
        if delta.finish_reason is not None:
            ends.append((delta.finish_reason, delta.error))
    assert ends == [(FinishReason.ERROR, "the engine stopped")] * 2
    with pytest.raises(EngineDeadError):
        frontend.submit_sync([request])


def test_a_closed_loop_aborts_what_nobody_reads(frontend: Frontend, client: FakeClient) -> None:
    request = frontend.build_completion("hello", SamplingParams(max_tokens=None))

    async def run() -> None:
        frontend.submit([request])

    asyncio.run(run())
    wait_until(lambda: client.num_running == 0)
    assert client.aborted


def test_a_wake_up_that_the_loop_did_not_live_to_see() -> None:
    loop = asyncio.new_event_loop()
    mailbox = Mailbox(loop)
    output = TokenOutput(1, 0, (97,))
    mailbox.put(None, 0, output)  # type: ignore[arg-type]
    loop.close()
    for _ in range(2):
        with pytest.raises(RuntimeError):
            mailbox.put(None, 0, output)  # type: ignore[arg-type]


def test_many_threads_and_loops_at_once(frontend: Frontend) -> None:
    results: dict[int, str] = {}

    def run_sync(idx: int) -> None:
        request = frontend.build_completion(f"say:reply {idx};", SamplingParams(max_tokens=50))
        results[idx] = "".join(delta.text for delta in frontend.generate_sync(request))

    def run_async(idx: int) -> None:
        async def run() -> str:
            request = await frontend.prepare_completion(f"say:reply {idx};", SamplingParams(max_tokens=50))
            return "".join([delta.text async for delta in frontend.generate(request)])

        results[idx] = asyncio.run(run())

    threads = [threading.Thread(target=run_sync if i % 2 else run_async, args=(i,)) for i in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert results == {idx: f"reply {idx}" for idx in range(32)}
