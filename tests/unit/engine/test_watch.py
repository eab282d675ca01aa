"""What is told of a swap that fails beside the requests."""

from __future__ import annotations

import logging
import threading

import pytest

from plait.engine.watch import REPEAT_AFTER_S, SwapWatch, Watch


class Swap:
    def __init__(self) -> None:
        self.num_failures = 0
        self.last_error = ""

    def counters(self) -> dict[str, int]:
        return {"num_failures": self.num_failures}

    def fail(self, times: int) -> None:
        self.num_failures += times
        self.last_error = "KV swap, file in /full: No space left on device"


def test_failures_are_told_once_and_then_rarely(caplog: pytest.LogCaptureFixture) -> None:
    swap, now = Swap(), [1000.0]
    watch = SwapWatch(swap, clock=lambda: now[0])
    watch.look()
    assert not caplog.records
    swap.fail(3)
    watch.look()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "that failed: 3)" in caplog.text
    assert "/full: No space left on device" in caplog.text
    for _ in range(10):
        swap.fail(5)
        now[0] += REPEAT_AFTER_S / 11
        watch.look()
    assert len(caplog.records) == 1
    now[0] += REPEAT_AFTER_S
    watch.look()
    watch.look()
    assert len(caplog.records) == 2
    assert "that failed: 50)" in caplog.text


def test_what_failed_last_is_told_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    swap = Swap()
    watch = Watch([SwapWatch(swap).look])
    watch.start()
    swap.fail(1)
    watch.stop()
    watch.stop()
    assert len(caplog.records) == 1


def test_nothing_to_look_at_needs_no_thread() -> None:
    before = threading.active_count()
    watch = Watch([])
    watch.start()
    assert threading.active_count() == before
    watch.stop()
