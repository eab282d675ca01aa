"""Who runs an engine's scheduler, compute and I/O: one driver per engine mode, all behind this interface."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from plait import _native
from plait.engine.mail import Abort, Stop

Message = _native.Request | Abort | Stop
OnDeath = Callable[[str], None]
"""Told why, from the thread that died. The driver itself gives every live request its last output."""


class Gauges(Protocol):
    """Of the loop around the steps; any thread may read them."""

    @property
    def steps_total(self) -> int: ...
    @property
    def failed_steps_total(self) -> int: ...
    @property
    def step_seconds_total(self) -> float: ...
    @property
    def forward_seconds_total(self) -> float:
        """Of step_seconds_total: the fused operations, without sampling."""

    @property
    def step_gap_seconds_total(self) -> float:
        """Between the end of a step and the begin of the next one while there was something to compute."""

    @property
    def step_gap_max_seconds(self) -> float: ...
    @property
    def num_steps_in_flight(self) -> int: ...
    @property
    def last_progress_at(self) -> float:
        """time.monotonic() of the last end of a step."""


class Driver(Protocol):
    """After ``Stop`` was sent, and after a death, each live request gets its last output and the threads end.

    INVARIANT: whatever a thread does, from its first line on, its death is told: somebody may wait for its answer.
    """

    @property
    def gauges(self) -> Gauges: ...

    @property
    def accepts(self) -> _native.LatencyHistogram:
        """From a request's submission until the scheduler has it; without those that are not timed."""

    @property
    def num_messages(self) -> int:
        """Messages that were sent and that the scheduler has not seen. Any thread."""

    def ring_depths(self) -> dict[str, int]:
        """What waits in each ring of this mode, by its name. Any thread."""

    def start(self) -> None: ...

    def try_send(self, message: Message) -> bool:
        """Any thread; never blocks. False: the ring is full. Messages of one sender keep their order."""

    def end_live(self, error: str) -> None:
        """The engine is dead: give every live request its last output now. Any thread."""

    def join(self, timeout_s: float) -> bool:
        """Wait for the threads to end, but for the calling one; False when some did not."""


def new_thread(name: str, target: Callable[[], None]) -> threading.Thread:
    """A daemon thread, not started. ``target`` begins with enter_thread, inside the ``try`` that tells of a death."""
    return threading.Thread(target=target, name=name, daemon=True)


def enter_thread(*, passes_messages: bool = True, off_cpu: int = -1) -> None:
    """The calling thread shows its name in top, perf and /proc, too, and gets a CPU as its work needs.

    Args:
        passes_messages: it works for microseconds at a time, so it need not wait for compute threads.
        off_cpu: where such a thread does not run if there are others, -1: anywhere.
    """
    with contextlib.suppress(OSError):
        path = f"/proc/self/task/{threading.get_native_id()}/comm"
        with open(path, "w", encoding="ascii") as comm:
            comm.write(threading.current_thread().name[:15])
    if passes_messages:
        _native.favour_messenger_thread(off_cpu)


def join_threads(threads: Iterable[threading.Thread], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    others = [
        thread for thread in threads if thread is not threading.current_thread() and thread.ident is not None
    ]
    for thread in others:
        thread.join(max(deadline - time.monotonic(), 0.0))
    return not any(thread.is_alive() for thread in others)
