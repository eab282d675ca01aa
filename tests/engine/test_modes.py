"""One suite for every way to run an engine (tests/configs/*.json): the same answers, the same manners.

The reference is an engine in the ``threads`` mode with one compute thread, which gets one request at a time.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plait.client import EngineClient
from plait.config import EngineConfig
from plait.engine import start_engine
from plait.errors import InvalidRequestError, OverloadedError, ShuttingDownError
from plait.types import FinishReason, GenerateRequest, SamplingParams, TokenOutput
from tests.engine.test_determinism import make_requests
from tests.fakes.answers import run

pytestmark = [pytest.mark.model, pytest.mark.slow]

CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("*.json"))
BASE = {"max_model_len": 1024, "enable_prefix_cache": True}


def start(path: Path, **settings: object) -> EngineClient:
    return start_engine(path, EngineConfig.model_validate(BASE | settings))


def settings_of(config: Path) -> dict[str, object]:
    settings: dict[str, object] = json.loads(config.read_text(encoding="utf-8"))
    return settings


@pytest.fixture(scope="module")
def requests() -> list[GenerateRequest]:
    mixed = make_requests("smollm2")
    choices = SamplingParams(n=3, temperature=1.0, seed=7, max_tokens=12, logprobs=2, ignore_eos=True)
    scored = SamplingParams(temperature=0.0, max_tokens=2, prompt_logprobs=2, ignore_eos=True)
    return [
        *mixed,
        GenerateRequest(mixed[11].prompt_token_ids, choices),
        GenerateRequest(mixed[13].prompt_token_ids, scored),
    ]


@pytest.fixture(scope="module")
def alone(smollm2_path: Path, requests: list[GenerateRequest]) -> list[list[object]]:
    client = start(smollm2_path, num_compute_threads=1, enable_prefix_cache=False)
    try:
        return [[answer.content() for answer in run(client, [request])[0]] for request in requests]
    finally:
        client.close()


@pytest.fixture(scope="module", params=CONFIGS, ids=lambda path: path.stem)
def client(request: pytest.FixtureRequest, smollm2_path: Path) -> Iterator[EngineClient]:
    client = start(smollm2_path, **settings_of(request.param))
    try:
        yield client
    finally:
        client.close()


def eventually(holds: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def is_idle(client: EngineClient) -> bool:
    metrics = client.metrics()
    return (
        metrics["requests_live"] == metrics["requests_running"] == metrics["requests_waiting"] == 0
        and metrics["kv_blocks_free"] == metrics["kv_blocks"]
    )


class Stream:
    """A callback that waits for its end."""

    def __init__(self) -> None:
        self.outputs: list[TokenOutput] = []
        self.has_begun = threading.Event()
        self.has_ended = threading.Event()

    def __call__(self, output: TokenOutput) -> None:
        self.outputs.append(output)
        if output.token_ids:
            self.has_begun.set()
        if output.finish_reason is not None:
            self.has_ended.set()

    @property
    def reason(self) -> FinishReason | None:
        assert self.has_ended.wait(60)
        return self.outputs[-1].finish_reason


LONG = SamplingParams(temperature=0.0, max_tokens=800, ignore_eos=True)


def test_answers_are_those_of_a_lone_run(
    client: EngineClient, requests: list[GenerateRequest], alone: list[list[object]]
) -> None:
    for _ in range(2):  # the second time from the cache
        answers = run(client, requests)
        assert [[choice.content() for choice in answer] for answer in answers] == alone
    assert client.metrics()["cached_tokens_total"] > 0
    eventually(lambda: is_idle(client))


def test_aborts_free_everything_and_leave_others_alone(
    client: EngineClient, requests: list[GenerateRequest], alone: list[list[object]]
) -> None:
    streams = [Stream() for _ in range(6)]
    ids = [client.submit(GenerateRequest(requests[12].prompt_token_ids, LONG), stream) for stream in streams]
    assert streams[0].has_begun.wait(60)
    for request_id in ids[1:]:
        client.abort(request_id)
    kept = run(client, requests[3:6])
    client.abort(ids[0])
    client.abort(ids[0])
    client.abort(123_456_789)
    assert [stream.reason for stream in streams] == [FinishReason.ABORT] * 6
    assert [[choice.content() for choice in answer] for answer in kept] == alone[3:6]
    eventually(lambda: is_idle(client))


def test_a_deadline_ends_a_request(client: EngineClient) -> None:
    stream = Stream()
    client.submit(GenerateRequest((1, 2, 3), LONG, deadline_s=0.05), stream)
    assert stream.reason is FinishReason.ABORT
    eventually(lambda: is_idle(client))


def test_a_callback_that_raises_ends_its_request_only(
    client: EngineClient, requests: list[GenerateRequest], alone: list[list[object]]
) -> None:
    def fail(_: TokenOutput) -> None:
        raise ValueError("a client's fault")

    client.submit(GenerateRequest((1, 2, 3), LONG), fail)
    assert [[c.content() for c in answer] for answer in run(client, requests[:2])] == alone[:2]
    eventually(lambda: is_idle(client))


def test_bad_requests_are_refused_at_once(client: EngineClient) -> None:
    for bad in (
        GenerateRequest(()),
        GenerateRequest((client.info.vocab_size,)),
        GenerateRequest((1,) * (client.info.max_model_len + 1)),
        GenerateRequest((1,), SamplingParams(temperature=float("nan"))),
    ):
        with pytest.raises(InvalidRequestError):
            client.submit(bad, Stream())
    assert client.health().is_ready


def test_health_and_metrics(client: EngineClient) -> None:
    before = client.metrics()
    run(client, [GenerateRequest((5, 6, 7), SamplingParams(max_tokens=5, ignore_eos=True))])
    eventually(lambda: is_idle(client))
    after = client.metrics()
    assert after["requests_finished_total"] - before["requests_finished_total"] == 1
    assert after["generated_tokens_total"] - before["generated_tokens_total"] == 5
    assert after["steps_total"] - before["steps_total"] == 5
    assert after["step_seconds_total"] > before["step_seconds_total"]
    assert 0.0 < after["compute_busy_share"] <= 1.0
    health = client.health()
    assert (health.is_alive, health.is_ready, health.is_progressing) == (True, True, True)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_a_full_queue_and_close_under_load(smollm2_path: Path, config: Path) -> None:
    client = start(smollm2_path, **settings_of(config), max_batch_size=1, max_queued_requests=2)
    streams: list[Stream] = []

    def fill() -> None:
        for _ in range(10):
            stream = Stream()
            client.submit(GenerateRequest((1, 2, 3), LONG), stream)
            streams.append(stream)

    with pytest.raises(OverloadedError):
        fill()
    begin = time.monotonic()
    client.close()
    assert time.monotonic() - begin < 10.0
    assert len(streams) >= 2
    assert [stream.reason for stream in streams] == [FinishReason.ABORT] * len(streams)
    with pytest.raises(ShuttingDownError):
        client.submit(GenerateRequest((1,)), Stream())
    client.close()


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_a_pool_of_a_tenth_of_the_need(smollm2_path: Path, config: Path) -> None:
    """Twelve sequences of ten blocks each share twelve blocks: all end with the right tokens, by preemption."""
    block_bytes = 30 * 3 * 64 * 2 * 2 * 16
    settings = settings_of(config) | {"kv_cache_bytes": 12 * block_bytes, "max_model_len": 190}
    sampling = SamplingParams(temperature=0.8, seed=3, max_tokens=80, logprobs=1, ignore_eos=True)
    prompts = [tuple((i * 977 + k * 31) % 40_000 for k in range(80)) for i in range(12)]
    requests = [GenerateRequest(prompt, sampling) for prompt in prompts]
    client = start(smollm2_path, **settings)
    try:
        assert client.info.num_kv_blocks == 12
        together = run(client, requests)
        assert client.metrics()["preemptions_total"] > 0
        alone = [run(client, [request])[0] for request in requests]
        assert [a[0].content() for a in together] == [a[0].content() for a in alone]
        with pytest.raises(InvalidRequestError) as refusal:
            client.submit(GenerateRequest(tuple(range(150)), SamplingParams(max_tokens=100)), Stream())
        assert "150" in refusal.value.message
        assert "190" in refusal.value.message
        eventually(lambda: is_idle(client))
    finally:
        client.close()
