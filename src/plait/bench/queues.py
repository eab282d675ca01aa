"""``plait bench queues``: what messages between threads cost, in native code and in Python.

Native queues are checked first (every message whole, once and in its producer's order) and then timed: the lock-free
rings, the channel that sleeps, and a queue with a mutex and condition variables to compare with. A cache line's way
from one CPU to the other bounds them all, so it is measured beside them.

Between Python threads a message also waits for the interpreter lock. A thread that computes gives it away only when
it is asked for, and it is asked only after the switch interval. Two things are therefore measured at several
intervals, beside a thread that computes: round trips between two Python threads, and the wake-up of a Python thread by
a native one, which is how an engine's main thread learns that a step has ended. What the computing thread loses is
measured, too.

Rates come from the fastest run, with the median beside it: a run on a busy machine says more about the machine. Runs
are short, so that some are not interrupted.
"""

from __future__ import annotations

import itertools
import queue
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from plait.bench.bounds import check_sizes
from plait.bench.machine import describe_machine, load_average
from plait.config import read_machine
from plait.engine.isa import choose_isa
from plait.engine.queues import QueueTimers, QueueTiming, new_object_ring, wake_ups
from plait.errors import ConfigError, PlaitError

SCHEMA_VERSION = 1
MAX_COUNT = 10**9
MAX_CAPACITY = 1 << 20

NATIVE_QUEUES = (("spsc", 1), ("spsc-batch", 1), ("mpsc", 1), ("mpsc", 3), ("channel", 1), ("mutex", 1))
"""(kind, producers)."""
NATIVE_ROUND_TRIPS = ("spsc", "mpsc", "channel", "mutex")
MESSAGE_BYTES = (8, 64)
WAKE_UP = "Doorbell"
PYTHON_QUEUES = ("queue.Queue", "queue.SimpleQueue", "ObjectRing")

_LINE_ROUNDS = 1000
_ANSWER_TIMEOUT_S = 60.0
_BUSY_ALONE_S = 0.3


@dataclass(frozen=True, slots=True)
class QueueSettings:
    messages: int = 50_000
    """Of one timed run of a native queue."""
    repeats: int = 60
    """Timed runs of a native queue."""
    capacity: int = 256
    """Slots of each queue."""
    rounds: int = 20_000
    """Round trips of each native queue."""
    python_messages: int = 100_000
    python_rounds: int = 400
    python_limit_s: float = 2.0
    """The rounds of Python threads end after this, too."""
    intervals_s: tuple[float, ...] = (0.005, 0.0005, 0.00005)
    """Switch intervals of the interpreter."""

    def check(self) -> None:
        """Raises ConfigError when a size makes no sense; it names the setting and its bounds."""
        # Each producer needs a message.
        most_producers = max(producers for _, producers in NATIVE_QUEUES)
        check_sizes("queues", "--messages", self.messages, most_producers, MAX_COUNT)
        check_sizes("queues", "--repeats", self.repeats, 1, MAX_COUNT)
        check_sizes("queues", "--capacity", self.capacity, 1, MAX_CAPACITY)
        check_sizes("queues", "--rounds", self.rounds, 1, MAX_COUNT)
        check_sizes("queues", "--python-messages", self.python_messages, 1, MAX_COUNT)
        check_sizes("queues", "--python-rounds", self.python_rounds, 1, MAX_COUNT)
        if not self.python_limit_s > 0:
            raise ConfigError(
                f"bench queues: python_limit_s must be more than 0, not {self.python_limit_s:g}"
            )
        if not self.intervals_s or any(not 1e-6 <= interval <= 1.0 for interval in self.intervals_s):
            raise ConfigError("bench queues: --intervals-ms are from 0.001 to 1000, one at least")


@dataclass(frozen=True, slots=True)
class QueueRate:
    """Messages from producers to one consumer. The figures are None when the queue is wrong."""

    queue: str
    num_producers: int
    message_bytes: int | None
    """None: Python objects."""
    difference: str
    runs_s: tuple[float, ...]
    """Seconds of one message, by run."""
    messages_per_s: float | None = None
    """Of the fastest run."""
    median_messages_per_s: float | None = None

    @classmethod
    def of(cls, name: str, num_producers: int, message_bytes: int | None, timing: QueueTiming) -> QueueRate:
        if timing.difference:
            return cls(name, num_producers, message_bytes, timing.difference, ())
        runs = timing.runs_s
        return cls(name, num_producers, message_bytes, "", runs, 1 / min(runs), 1 / statistics.median(runs))


@dataclass(frozen=True, slots=True)
class Latency:
    """How long one message at a time takes."""

    what: str
    """"round trip": there and back between two threads; "wake-up": from a native thread to a sleeping Python one."""
    queue: str
    is_python: bool
    busy_interval_s: float | None
    """A third thread computed in Python meanwhile, at this switch interval. None: nobody else did anything."""
    num_rounds: int
    p50_s: float
    p99_s: float
    busy_share: float | None = None
    """What the computing thread got done, as a share of what it does alone at the longest interval; at most 1."""

    @classmethod
    def of(
        cls,
        what: str,
        queue: str,
        runs_s: Sequence[float],
        *,
        is_python: bool = True,
        busy: tuple[float, float] | None = None,
    ) -> Latency:
        """``busy``: the switch interval, and the share that the computing thread got done."""
        ordered = sorted(runs_s)
        return cls(
            what=what,
            queue=queue,
            is_python=is_python,
            busy_interval_s=busy[0] if busy else None,
            num_rounds=len(ordered),
            p50_s=ordered[len(ordered) // 2],
            p99_s=ordered[len(ordered) * 99 // 100],
            busy_share=busy[1] if busy else None,
        )


@dataclass(frozen=True, slots=True)
class QueueReport:
    settings: QueueSettings
    load_before: float
    machine: dict[str, object]
    line_transfer_s: float
    """Of the fastest run."""
    line_transfer_runs_s: tuple[float, ...]
    rates: tuple[QueueRate, ...]
    latencies: tuple[Latency, ...]

    @property
    def has_wrong_queues(self) -> bool:
        return any(rate.difference for rate in self.rates)

    def to_json(self) -> dict[str, object]:
        return {"bench": "queues", "schema_version": SCHEMA_VERSION, **asdict(self)}


class Timers(Protocol):
    """What is asked of ``QueueTimers``; tests give made-up times."""

    def time_messages(
        self,
        kind: str,
        num_producers: int,
        message_bytes: int,
        num_messages: int,
        capacity: int,
        repeats: int,
    ) -> QueueTiming: ...
    def time_round_trips(self, kind: str, num_rounds: int) -> QueueTiming: ...
    def time_line_transfers(self, num_rounds: int, repeats: int) -> list[float]: ...


def run_queue_bench(
    settings: QueueSettings, on_progress: Callable[[str], None] = lambda _: None
) -> QueueReport:
    """Measures all queues. Blocks for all of that; changes the switch interval meanwhile.

    Raises:
        ConfigError: a setting makes no sense.
        PlaitError: a queue between Python threads lost a message or an answer.
    """
    settings.check()
    load_before = load_average()
    machine = read_machine()
    # With one CPU nobody is pinned: the threads take turns anyway.
    cpus = machine.cpus if len(machine.cpus) > 1 else ()
    timers = QueueTimers(cpus)
    on_progress("a cache line's way")
    lines = timers.time_line_transfers(_LINE_ROUNDS, settings.repeats)
    rates, latencies = measure_native(timers, settings, on_progress)
    python_rates, python_latencies = measure_python(settings, on_progress)
    return QueueReport(
        settings=settings,
        load_before=load_before,
        machine=describe_machine(isa=choose_isa()[0], num_compute_threads=machine.num_usable_cores),
        line_transfer_s=min(lines),
        line_transfer_runs_s=tuple(lines),
        rates=(*rates, *python_rates),
        latencies=(*latencies, *python_latencies),
    )


def measure_native(
    timers: Timers, settings: QueueSettings, on_progress: Callable[[str], None] = lambda _: None
) -> tuple[list[QueueRate], list[Latency]]:
    rates = []
    for kind, num_producers in NATIVE_QUEUES:
        for message_bytes in MESSAGE_BYTES:
            on_progress(f"{kind}, {num_producers} producers, {message_bytes} bytes")
            timing = timers.time_messages(
                kind, num_producers, message_bytes, settings.messages, settings.capacity, settings.repeats
            )
            rates.append(QueueRate.of(kind, num_producers, message_bytes, timing))
    latencies = []
    for kind in NATIVE_ROUND_TRIPS:
        on_progress(f"round trips, {kind}")
        timing = timers.time_round_trips(kind, settings.rounds)
        if timing.difference:
            raise PlaitError(f"bench queues: round trips, {kind}: {timing.difference}")
        latencies.append(Latency.of("round trip", kind, timing.runs_s, is_python=False))
    return rates, latencies


def measure_python(
    settings: QueueSettings, on_progress: Callable[[str], None] = lambda _: None
) -> tuple[list[QueueRate], list[Latency]]:
    rates = []
    for name in PYTHON_QUEUES:
        on_progress(f"{name} between Python threads")
        runs = tuple(time_python_messages(name, settings) for _ in range(3))
        rates.append(QueueRate.of(name, 1, None, QueueTiming(runs, "")))
    latencies = [measure_latency("round trip", name, settings, None, on_progress) for name in PYTHON_QUEUES]
    latencies.append(measure_latency("wake-up", WAKE_UP, settings, None, on_progress))
    for interval_s in settings.intervals_s:
        for name in PYTHON_QUEUES:
            latencies.append(measure_latency("round trip", name, settings, interval_s, on_progress))
        latencies.append(measure_latency("wake-up", WAKE_UP, settings, interval_s, on_progress))
    return rates, latencies


class _Ends:
    """put and get of one queue between two Python threads; both block."""

    def __init__(self, name: str, capacity: int) -> None:
        self.put: Callable[[Any], None]
        self.get: Callable[[], Any]
        if name == "queue.Queue":
            bounded: queue.Queue[Any] = queue.Queue(capacity)
            self.put, self.get = bounded.put, bounded.get
        elif name == "queue.SimpleQueue":
            simple: queue.SimpleQueue[Any] = queue.SimpleQueue()
            self.put, self.get = simple.put, simple.get
        elif name == "ObjectRing":
            ring = new_object_ring(capacity)

            def put(item: Any) -> None:
                while not ring.try_push(item):
                    time.sleep(0)

            self.put, self.get = put, ring.wait_pop
        else:
            raise ConfigError(f"bench queues: no queue {name}")


def time_python_messages(name: str, settings: QueueSettings) -> float:
    """Seconds of one message from one Python thread to another.

    Raises:
        PlaitError: messages were lost or came in another order.
    """
    ends = _Ends(name, settings.capacity)
    count = settings.python_messages
    items = list(range(count))

    def produce() -> None:
        put = ends.put
        for item in items:
            put(item)

    producer = threading.Thread(target=produce, name="plait-bench-producer", daemon=True)
    got: list[object] = []
    get, take = ends.get, got.append
    begin = time.perf_counter()
    producer.start()
    for _ in range(count):
        take(get())
    seconds = time.perf_counter() - begin
    producer.join()
    if got != items:
        raise PlaitError(f"bench queues: {name} lost or mixed up messages")
    return seconds / count


def measure_latency(
    what: str,
    name: str,
    settings: QueueSettings,
    interval_s: float | None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Latency:
    """Latencies between threads, of which one is Python's; beside a thread that computes when ``interval_s`` is given.

    The switch interval is put back afterwards.

    Raises:
        PlaitError: a wrong answer came.
    """
    on_progress(
        f"{what}, {name}" + ("" if interval_s is None else f", switch interval {interval_s * 1e3:g} ms")
    )
    period_s = 4 * (interval_s or 0.0) + 0.001
    go = _round_trips(name, settings.capacity) if what == "round trip" else wake_ups(period_s)
    with go as one_round:
        if interval_s is None:
            return Latency.of(what, name, _time_rounds(one_round, settings))
        with _switch_interval(max(settings.intervals_s)):
            alone_per_s = _busy_alone_per_s()
        with _switch_interval(interval_s):
            busy = _Busy()
            try:
                before, begin = busy.count, time.perf_counter()
                runs = _time_rounds(one_round, settings)
                per_s = (busy.count - before) / (time.perf_counter() - begin)
            finally:
                busy.stop()
        with _switch_interval(max(settings.intervals_s)):
            alone_per_s = max(alone_per_s, _busy_alone_per_s())
    # Alone it is measured for a shorter time: noise can put it below.
    return Latency.of(what, name, runs, busy=(interval_s, min(per_s / alone_per_s, 1.0)))


def _time_rounds(one_round: Callable[[], float], settings: QueueSettings) -> list[float]:
    runs: list[float] = []
    begin = time.perf_counter()
    while not runs or (
        len(runs) < settings.python_rounds and time.perf_counter() - begin < settings.python_limit_s
    ):
        runs.append(one_round())
    return runs


@contextmanager
def _round_trips(name: str, capacity: int) -> Iterator[Callable[[], float]]:
    """A thread that answers each number with the next one; the function asks it once."""
    there, back = (_Ends(name, capacity) for _ in range(2))

    def answer() -> None:
        while (item := there.get()) is not None:
            back.put(item + 1)

    numbers = itertools.count()

    def ask() -> float:
        number = next(numbers)
        sent_at = time.perf_counter()
        there.put(number)
        answered = back.get()
        seconds = time.perf_counter() - sent_at
        if answered != number + 1:
            raise PlaitError(f"bench queues: {name} brought a wrong answer")
        return seconds

    other = threading.Thread(target=answer, name="plait-bench-answer", daemon=True)
    other.start()
    try:
        yield ask
    finally:
        there.put(None)
        other.join(_ANSWER_TIMEOUT_S)


class _Busy:
    """A thread that computes in Python until it is stopped."""

    def __init__(self) -> None:
        self._is_stopping = False
        self.count = 0
        """How often it went round."""
        self._thread = threading.Thread(target=self._run, name="plait-bench-busy", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_stopping:
            self.count += 1

    def stop(self) -> None:
        self._is_stopping = True
        self._thread.join()


def _busy_alone_per_s() -> float:
    busy = _Busy()
    time.sleep(_BUSY_ALONE_S / 10)  # until it runs
    before, begin = busy.count, time.perf_counter()
    time.sleep(_BUSY_ALONE_S)
    per_s = (busy.count - before) / (time.perf_counter() - begin)
    busy.stop()
    return max(per_s, 1.0)


@contextmanager
def _switch_interval(interval_s: float) -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(interval_s)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
