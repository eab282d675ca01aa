"""plait bench queues: figures from made-up times, real threads for Python's queues, what is refused."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

import plait.bench.queues as queues
from plait.bench.queues import PYTHON_QUEUES, QueueSettings, measure_native, measure_python, run_queue_bench
from plait.engine.queues import QueueTimers, QueueTiming, wake_ups
from plait.errors import ConfigError, PlaitError

SMALL = QueueSettings(
    messages=300, repeats=2, capacity=8, rounds=50, python_messages=500, python_rounds=5, intervals_s=(1e-3,)
)


class FakeTimers:
    def __init__(self) -> None:
        self.wrong = ""
        self.wrong_trips = ""
        self.asked: list[tuple[str, int, int]] = []

    def time_messages(
        self,
        kind: str,
        num_producers: int,
        message_bytes: int,
        num_messages: int,
        capacity: int,
        repeats: int,
    ) -> QueueTiming:
        assert (num_messages, capacity, repeats) == (SMALL.messages, SMALL.capacity, SMALL.repeats)
        self.asked.append((kind, num_producers, message_bytes))
        if kind == self.wrong:
            return QueueTiming((), "a message came torn")
        return QueueTiming((4e-8, 2e-8, 1e-7), "")

    def time_round_trips(self, kind: str, num_rounds: int) -> QueueTiming:
        assert num_rounds == SMALL.rounds
        if kind == self.wrong_trips:
            return QueueTiming((), "a wrong answer came")
        return QueueTiming(tuple(i * 1e-6 for i in range(100, 0, -1)), "")

    def time_line_transfers(self, num_rounds: int, repeats: int) -> list[float]:
        return [1e-7] * repeats


def test_rates_come_from_the_fastest_run() -> None:
    timers = FakeTimers()
    rates, latencies = measure_native(timers, SMALL)
    assert ("spsc", 1, 8) in timers.asked
    assert ("mpsc", 3, 64) in timers.asked
    assert len(rates) == len(timers.asked)
    assert rates[0].messages_per_s == pytest.approx(50e6)
    assert rates[0].median_messages_per_s == pytest.approx(25e6)
    assert {row.queue for row in latencies} == {"spsc", "mpsc", "channel", "mutex"}
    assert latencies[0].p50_s == pytest.approx(51e-6)
    assert latencies[0].p99_s == pytest.approx(100e-6)
    assert latencies[0].busy_interval_s is None


def test_a_wrong_queue_gets_no_figures() -> None:
    timers = FakeTimers()
    timers.wrong = "mpsc"
    rates, _ = measure_native(timers, SMALL)
    for rate in rates:
        assert (rate.messages_per_s is None) == (rate.queue == "mpsc")
        assert rate.difference == ("a message came torn" if rate.queue == "mpsc" else "")


def test_wrong_answers_end_the_measurement() -> None:
    timers = FakeTimers()
    timers.wrong_trips = "channel"
    with pytest.raises(PlaitError, match="round trips, channel: a wrong answer"):
        measure_native(timers, SMALL)


def test_python_queues_are_measured_and_the_interval_is_put_back() -> None:
    before = sys.getswitchinterval()
    rates, latencies = measure_python(replace(SMALL, intervals_s=(0.002, 0.0001)))
    assert sys.getswitchinterval() == before
    assert [rate.queue for rate in rates] == list(PYTHON_QUEUES)
    assert all(rate.messages_per_s is not None and rate.message_bytes is None for rate in rates)
    keys = {(row.what, row.queue, row.busy_interval_s) for row in latencies}
    for interval in (None, 0.002, 0.0001):
        assert ("wake-up", "Doorbell", interval) in keys
        assert {("round trip", name, interval) for name in PYTHON_QUEUES} <= keys
    for row in latencies:
        assert row.is_python
        assert 0 < row.p50_s <= row.p99_s
        assert (row.busy_share is None) == (row.busy_interval_s is None)


def test_a_busy_thread_keeps_a_wake_up_waiting_for_the_interval() -> None:
    interval_s = 0.05
    settings = replace(SMALL, intervals_s=(interval_s,), python_rounds=3)
    row = queues.measure_latency("wake-up", queues.WAKE_UP, settings, interval_s)
    assert row.p99_s >= interval_s / 2
    assert row.busy_interval_s == interval_s


def _broken_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queues that hand out numbers of their own."""

    class Ends:
        def __init__(self, name: str, capacity: int) -> None:
            self._numbers = itertools.count(7)

        def put(self, item: Any) -> None:
            pass

        def get(self) -> int | None:
            return next(self._numbers) if next(self._numbers) < 10_000 else None

    monkeypatch.setattr(queues, "_Ends", Ends)


@pytest.mark.parametrize(
    "measure",
    [
        lambda: queues.time_python_messages("queue.Queue", SMALL),
        lambda: queues.measure_latency("round trip", "queue.Queue", SMALL, None),
    ],
)
def test_lost_messages_between_python_threads_are_found(
    monkeypatch: pytest.MonkeyPatch, measure: Callable[[], object]
) -> None:
    _broken_ends(monkeypatch)
    with pytest.raises(PlaitError, match=r"queue\.Queue"):
        measure()


def test_a_whole_run_becomes_json(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    report = run_queue_bench(SMALL, told.append)
    result = json.loads(json.dumps(report.to_json()))
    assert (result["bench"], result["schema_version"]) == ("queues", 1)
    assert not report.has_wrong_queues
    assert report.line_transfer_s == min(report.line_transfer_runs_s)
    assert {row["queue"] for row in result["rates"]} >= {"spsc", "mutex", "ObjectRing"}
    assert result["machine"]["cpu"]
    assert any("ObjectRing" in text for text in told)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"messages": 2}, "--messages must be from 3 to 1000000000, not 2"),
        ({"messages": 999_999_999_999}, "--messages must be from 3 to 1000000000, not 999999999999"),
        ({"python_rounds": 10**9 + 1}, "--python-rounds must be from 1 to 1000000000, not 1000000001"),
        ({"repeats": 0}, "--repeats must be from 1 to 1000000000, not 0"),
        ({"capacity": 0}, "--capacity must be from 1 to 1048576, not 0"),
        ({"capacity": 1 << 21}, "--capacity must be from 1 to 1048576, not 2097152"),
        ({"capacity": 10**10}, "--capacity must be from 1 to 1048576, not 10000000000"),
        ({"rounds": 0}, "--rounds must be from 1 to 1000000000, not 0"),
        ({"python_messages": 0}, "--python-messages must be from 1 to 1000000000, not 0"),
        ({"python_rounds": -1}, "--python-rounds must be from 1 to 1000000000, not -1"),
        ({"intervals_s": ()}, "--intervals-ms"),
        ({"intervals_s": (0.0,)}, "--intervals-ms"),
        ({"intervals_s": (float("nan"),)}, "--intervals-ms"),
        ({"intervals_s": (2.0,)}, "--intervals-ms"),
        ({"python_limit_s": 0.0}, "python_limit_s"),
        ({"python_limit_s": float("nan")}, "python_limit_s"),
    ],
)
def test_senseless_settings_are_refused_by_name(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=f"bench queues: {said}") as refusal:
        run_queue_bench(replace(SMALL, **change))
    assert str(refusal.value).count("--") <= 1, "it names the setting at fault, no other"


def test_native_refusals_become_config_errors() -> None:
    timers = QueueTimers(())
    with pytest.raises(ConfigError, match="unknown kind"):
        timers.time_messages("ring", 1, 8, 10, 8, 1)
    with pytest.raises(ConfigError, match="8 or 64"):
        timers.time_messages("spsc", 1, 9, 10, 8, 1)
    with pytest.raises(ConfigError, match="nothing"):
        timers.time_round_trips("spsc", 0)


def test_wake_ups_come_and_stop() -> None:
    @contextmanager
    def rounds() -> Iterator[list[float]]:
        with wake_ups(0.001) as wait:
            yield [wait() for _ in range(5)]

    with rounds() as seconds:
        assert all(0 <= value < 20 for value in seconds)
