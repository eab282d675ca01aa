"""Clients over the fake engine: who asks when, what is noted, what ends a run."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator

import pytest

import plait.bench.concurrency.closed_loop as closed_loop
from plait.bench.concurrency.closed_loop import Turn, run_closed_loop
from plait.bench.concurrency.scenario import SlowClients
from plait.bench.concurrency.work import WorkItem
from plait.client import OutputCallback
from plait.errors import EngineDeadError, PlaitError
from plait.types import FinishReason, GenerateRequest, SamplingParams, TokenOutput
from tests.fakes.fake_client import FakeClient


class CountingClient(FakeClient):
    """Knows how many requests were open at once."""

    def __init__(self) -> None:
        super().__init__(step_s=0.0005)
        self.most_open = 0

    def submit(self, request: GenerateRequest, on_output: OutputCallback) -> int:
        request_id = super().submit(request, on_output)
        self.most_open = max(self.most_open, self.num_running)
        return request_id


@pytest.fixture
def client() -> Iterator[CountingClient]:
    client = CountingClient()
    yield client
    client.close()


def items(count: int, max_tokens: int = 5, abort_after: int | None = None) -> list[WorkItem]:
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return [
        WorkItem(GenerateRequest((1, 2, i % 200), sampling), abort_after_tokens=abort_after)
        for i in range(count)
    ]


def test_every_client_waits_for_its_answer(client: CountingClient) -> None:
    result = run_closed_loop(client, items(20), 3)
    assert len(result.turns) == 20
    assert client.most_open <= 3
    assert all(turn.is_done and len(turn.token_ids) == 5 for turn in result.turns)
    by_client: dict[int, list[Turn]] = {}
    for turn in result.turns:
        by_client.setdefault(turn.client_idx, []).append(turn)
    assert set(by_client) == {0, 1, 2}
    for turns in by_client.values():
        for before, after in itertools.pairwise(turns):
            assert after.begin_ns >= before.end_ns


def test_turns_stand_in_the_order_of_the_work(client: CountingClient) -> None:
    work = items(12)
    result = run_closed_loop(client, work, 4)
    assert [turn.item for turn in result.turns] == work
    assert [request.prompt_token_ids[2] for request in client.requests] == list(range(12))


def test_times_are_in_order(client: CountingClient) -> None:
    result = run_closed_loop(client, items(6), 2)
    for turn in result.turns:
        times = [turn.begin_ns, *turn.arrivals_ns]
        assert times == sorted(times)
        assert turn.begin_ns <= turn.submitted_ns
        assert turn.end_ns >= turn.arrivals_ns[-1]
        assert turn.callback_ns > 0
    assert result.begin_ns <= result.turns[0].begin_ns
    assert result.end_ns == max(turn.end_ns for turn in result.turns)
    assert result.driver_cpu_ns > 0


def test_more_clients_than_work(client: CountingClient) -> None:
    result = run_closed_loop(client, items(2), 8)
    assert len(result.turns) == 2


def test_aborts(client: CountingClient) -> None:
    client.step_s = 0.002
    result = run_closed_loop(client, items(8, max_tokens=400, abort_after=3), 4)
    assert len(client.aborted) == 8
    for turn in result.turns:
        assert turn.finish_reason is FinishReason.ABORT
        assert 3 <= len(turn.token_ids) < 400
        assert not turn.is_done


def test_an_abort_that_comes_too_late_counts_once(client: CountingClient) -> None:
    """The request ends by itself before the driver gets to abort it."""
    ended = threading.Event()
    abort = client.abort

    def late(request_id: int) -> None:
        ended.wait(5)
        abort(request_id)

    client.abort = late  # type: ignore[method-assign]
    timer = threading.Timer(0.1, ended.set)
    timer.start()
    result = run_closed_loop(client, items(6, max_tokens=4, abort_after=1), 1)
    timer.join()
    assert len(result.turns) == 6
    assert result.turns[0].is_done


def test_slow_clients_hold_back_their_next_request(client: CountingClient) -> None:
    client.step_s = 0.004
    slow = SlowClients(every=2, interval_s=0.02)
    result = run_closed_loop(client, items(30), 2, slow)
    turns = [turn for turn in result.turns if turn.client_idx == 1]
    assert len(turns) >= 2
    for before, after in itertools.pairwise(turns):
        # Five outputs, each read 20 ms after the one before.
        assert after.begin_ns - before.arrivals_ns[0] >= 5 * 20e6
    quick = [turn for turn in result.turns if turn.client_idx == 0]
    assert len(quick) > len(turns)


def test_a_failed_request_is_an_error(client: CountingClient) -> None:
    client.fail_after = 2
    with pytest.raises(PlaitError, match="a request ended with error: the engine stopped"):
        run_closed_loop(client, items(3), 1)


def test_a_request_that_ends_early_is_an_error(client: CountingClient) -> None:
    def submit(request: GenerateRequest, on_output: OutputCallback) -> int:
        on_output(TokenOutput(1, 0, (5,), finish_reason=FinishReason.ABORT))
        return 1

    client.submit = submit  # type: ignore[method-assign]
    with pytest.raises(PlaitError, match="a request ended with abort"):
        run_closed_loop(client, items(1), 1)


def test_a_stuck_engine_is_an_error_and_no_hang(
    client: CountingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(closed_loop, "_HEALTH_INTERVAL_S", 0.05)
    client.is_stuck = True
    begin = time.monotonic()
    with pytest.raises(EngineDeadError, match="no progress"):
        run_closed_loop(client, items(1), 1)
    assert time.monotonic() - begin < 20
