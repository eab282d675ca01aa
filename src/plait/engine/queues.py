"""The queues between threads alone, without an engine around them: timers and the ring of objects, for benchmarks.

A thin front of ``plait._native``; nothing here is used by an engine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from plait import _native
from plait.errors import ConfigError


class QueueTiming(msgspec.Struct, frozen=True):
    """What native threads made of a queue."""

    runs_s: tuple[float, ...]
    """Seconds of one message by run, or of each round trip. Empty when the queue is wrong."""
    difference: str
    """What was lost, torn or out of order; "" when nothing was."""


class QueueTimers:
    """Times queues between native threads. Every method blocks while it measures, without the GIL."""

    def __init__(self, cpus: Sequence[int]) -> None:
        """``cpus``: where the threads are pinned, the consumer on the first; empty: not pinned."""
        self._cpus = list(cpus)

    def time_messages(
        self,
        kind: str,
        num_producers: int,
        message_bytes: int,
        num_messages: int,
        capacity: int,
        repeats: int,
    ) -> QueueTiming:
        """One queue, checked and then timed; kind: "spsc", "spsc-batch", "mpsc", "channel" or "mutex".

        Raises:
            ConfigError: there is no such queue, or it cannot take such messages.
        """
        try:
            timing = _native.time_messages(
                kind, num_producers, message_bytes, num_messages, capacity, repeats, self._cpus
            )
        except _native.NativeError as error:
            raise ConfigError(str(error.args[1])) from None
        return QueueTiming(tuple(timing.seconds), timing.difference)

    def time_round_trips(self, kind: str, num_rounds: int) -> QueueTiming:
        """There through one queue and back through another, message by message.

        Raises:
            ConfigError: there is no such queue, or nothing to time.
        """
        try:
            timing = _native.time_round_trips(kind, num_rounds, self._cpus)
        except _native.NativeError as error:
            raise ConfigError(str(error.args[1])) from None
        return QueueTiming(tuple(timing.seconds), timing.difference)

    def time_line_transfers(self, num_rounds: int, repeats: int) -> list[float]:
        """Seconds that a changed cache line takes from one CPU to the other, by run."""
        return _native.time_line_transfers(num_rounds, repeats, self._cpus)


def new_object_ring(capacity: int) -> Any:
    """An engine's ring of Python objects (any thread pushes, one pops) with a doorbell of its own."""
    return _native.ObjectRing(capacity, _native.Doorbell())


@contextmanager
def wake_ups(period_s: float) -> Iterator[Callable[[], float]]:
    """A bell that a native thread rings every ``period_s``; the function waits for a ring.

    It sleeps without the interpreter lock, as an engine's main thread does while a step runs, and returns the seconds
    from the ring to the moment when Python runs again.
    """
    bell = _native.Doorbell()
    seen = bell.epoch()
    metronome = _native.Metronome(bell, period_s)

    def wait() -> float:
        nonlocal seen
        bell.wait(seen)
        woken_at_ns = time.monotonic_ns()
        rung_at_ns = metronome.rung_at_ns
        seen = bell.epoch()
        return max(woken_at_ns - rung_at_ns, 0) * 1e-9

    try:
        yield wait
    finally:
        metronome.stop()
