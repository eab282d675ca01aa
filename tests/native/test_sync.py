"""Doorbell and the object rings, from Python threads."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from plait import _native

RINGS = [_native.ObjectRing, _native.SpscObjectRing]
LOST_S = 20.0  # a wait this long means a lost wake-up


class Item:
    """Something that a weak reference can watch."""


def run_threads(*targets: Callable[[], None]) -> None:
    errors: list[BaseException] = []

    def guarded(target: Callable[[], None]) -> None:
        try:
            target()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(target,)) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads)
    assert errors == []


def test_ring_before_wait_is_not_lost() -> None:
    bell = _native.Doorbell()
    seen = bell.epoch()
    bell.ring()
    assert bell.epoch() == seen + 1
    assert bell.wait(seen) is True
    assert bell.wait(seen, 0) is True
    assert bell.wait(bell.epoch(), 0) is False


@pytest.mark.parametrize("spin_s", [0.0, 50e-6, 1.0])
def test_wait_times_out(spin_s: float) -> None:
    bell = _native.Doorbell()
    begin = time.monotonic()
    assert bell.wait(bell.epoch(), 0.03, spin_s) is False
    assert time.monotonic() - begin >= 0.03


def test_wait_releases_the_gil_and_uses_no_cpu() -> None:
    bell = _native.Doorbell()
    results: list[bool] = []
    cpu_s: list[float] = []

    def waiter() -> None:
        begin = time.thread_time()
        results.append(bell.wait(0, LOST_S))
        cpu_s.append(time.thread_time() - begin)

    thread = threading.Thread(target=waiter)
    thread.start()
    time.sleep(0.2)  # would not return while the waiter held the GIL
    bell.ring()
    thread.join(timeout=LOST_S)
    assert results == [True]
    assert cpu_s[0] < 0.05


@pytest.mark.parametrize("timeout_s", [-1.0, float("nan")])
def test_wait_refuses_bad_times(timeout_s: float) -> None:
    bell = _native.Doorbell()
    with pytest.raises(_native.NativeError) as caught:
        bell.wait(0, timeout_s)
    assert caught.value.args[0] == "invalid_argument"


def test_infinite_timeout_is_no_limit() -> None:
    bell = _native.Doorbell()
    timer = threading.Timer(0.02, bell.ring)
    timer.start()
    assert bell.wait(0, float("inf")) is True
    timer.join()


def test_wait_runs_signal_handlers() -> None:
    class StopError(Exception):
        pass

    def on_signal(number: int, frame: Any) -> None:
        raise StopError

    before = signal.signal(signal.SIGUSR1, on_signal)
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1))
    timer.start()
    try:
        with pytest.raises(StopError):
            _native.Doorbell().wait(0, LOST_S)
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)


def test_signal_without_exception_keeps_the_deadline() -> None:
    before = signal.signal(signal.SIGUSR1, lambda number, frame: None)
    timer = threading.Timer(0.03, os.kill, (os.getpid(), signal.SIGUSR1))
    timer.start()
    try:
        begin = time.monotonic()
        assert _native.Doorbell().wait(0, 0.1) is False
        assert 0.1 <= time.monotonic() - begin < 5
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("ring_type", RINGS)
def test_ring_is_first_in_first_out_and_bounded(ring_type: Any) -> None:
    ring = ring_type(3)
    assert ring.capacity == 4
    assert len(ring) == 0
    assert all(ring.try_push(i) for i in range(4))
    assert ring.try_push(4) is False
    assert len(ring) == 4
    assert ring.try_pop() == 0
    assert ring.pop_all(max=2) == [1, 2]
    assert ring.pop_all(max=0) == []
    assert ring.try_push(4) is True
    assert ring.pop_all() == [3, 4]
    assert ring.pop_all() == []


@pytest.mark.parametrize("ring_type", RINGS)
def test_empty_and_none_can_be_told_apart(ring_type: Any) -> None:
    ring = ring_type(2)
    empty = object()
    assert ring.try_pop() is None
    assert ring.try_pop(default=empty) is empty
    assert ring.try_push(None)
    assert ring.try_pop(default=empty) is None


@pytest.mark.parametrize("ring_type", RINGS)
def test_bad_arguments(ring_type: Any) -> None:
    with pytest.raises(_native.NativeError):
        ring_type(0)
    with pytest.raises(_native.NativeError):
        ring_type(2).pop_all(max=-1)
    with pytest.raises(TypeError):
        ring_type(2, object())


@pytest.mark.parametrize("ring_type", RINGS)
def test_push_rings_the_doorbell_only_on_success(ring_type: Any) -> None:
    bell = _native.Doorbell()
    ring = ring_type(2, bell)
    assert ring.doorbell is bell
    assert ring_type(2).doorbell is None
    while ring.try_push("x"):
        pass
    assert bell.epoch() == ring.capacity
    ring.pop_all()
    assert bell.epoch() == ring.capacity


@pytest.mark.parametrize("ring_type", RINGS)
def test_ring_keeps_its_doorbell_alive(ring_type: Any) -> None:
    ring = ring_type(2, _native.Doorbell())
    gc.collect()
    assert ring.try_push(1)
    assert ring.doorbell.epoch() == 1


@pytest.mark.parametrize("ring_type", RINGS)
def test_no_reference_leaks(ring_type: Any) -> None:
    ring = ring_type(4)
    item = Item()
    base = sys.getrefcount(item)
    for _ in range(100):
        assert ring.try_push(item)
        assert sys.getrefcount(item) == base + 1
        assert ring.try_pop() is item
        assert sys.getrefcount(item) == base
    while ring.try_push(item):
        pass
    assert sys.getrefcount(item) == base + 4  # the refused push keeps nothing
    watched = weakref.ref(item)
    del item
    assert watched() is not None
    del ring
    gc.collect()
    assert watched() is None


def num_stress_messages() -> int:
    return 2_000_000 if os.environ.get("PLAIT_STRESS") == "1" else 20_000


@pytest.mark.parametrize(
    ("ring_type", "num_producers"), [(_native.ObjectRing, 3), (_native.SpscObjectRing, 1)]
)
def test_threads_lose_nothing(ring_type: Any, num_producers: int) -> None:
    bell, room = _native.Doorbell(), _native.Doorbell()
    ring = ring_type(64, bell)
    per_producer = num_stress_messages() // num_producers
    got: list[list[int]] = [[] for _ in range(num_producers)]

    def producer(idx: int) -> None:
        for i in range(per_producer):
            seen = room.epoch()
            while not ring.try_push((idx, i)):
                assert room.wait(seen, LOST_S)
                seen = room.epoch()

    def consumer() -> None:
        num_left = per_producer * num_producers
        while num_left:
            seen = bell.epoch()
            items = ring.pop_all()
            if not items:
                assert bell.wait(seen, LOST_S, 20e-6)
                continue
            room.ring()
            num_left -= len(items)
            for idx, i in items:
                got[idx].append(i)

    run_threads(consumer, *[lambda idx=idx: producer(idx) for idx in range(num_producers)])
    assert got == [list(range(per_producer))] * num_producers


@pytest.mark.parametrize("ring_type", RINGS)
def test_wait_pop_sleeps_until_there_is_an_object(ring_type: Any) -> None:
    ring = ring_type(4, _native.Doorbell())
    default = Item()
    begin = time.monotonic()
    assert ring.wait_pop(default, 0.03) is default
    assert time.monotonic() - begin >= 0.03
    assert ring.wait_pop(default, 0) is default

    taken: list[Any] = []
    items = [Item() for _ in range(100)]

    def consumer() -> None:
        taken.extend(ring.wait_pop(timeout_s=LOST_S) for _ in items)

    def producer() -> None:
        for item in items:
            while not ring.try_push(item):
                time.sleep(0.001)

    run_threads(consumer, producer)
    assert taken == items


@pytest.mark.parametrize("ring_type", RINGS)
def test_wait_pop_needs_a_doorbell(ring_type: Any) -> None:
    with pytest.raises(_native.NativeError, match="doorbell"):
        ring_type(4).wait_pop()
    with pytest.raises(_native.NativeError, match="timeout_s"):
        ring_type(4, _native.Doorbell()).wait_pop(None, -1.0)
