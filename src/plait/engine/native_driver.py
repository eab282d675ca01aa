"""The ``native`` mode: main is a native thread, too, so that no Python runs between steps.

    any thread --messages--> main --steps--> compute
     callbacks <-- I/O <--outputs-- main <--results-- compute

Requests cross in their native form, straight from the thread that submits. The I/O thread is Python's and only calls
callbacks. This is what Python on the main thread is measured against.
"""

from __future__ import annotations

import logging

from plait import _native
from plait.engine.delivery import Delivery
from plait.engine.driver import Message, OnDeath, enter_thread, join_threads, new_thread
from plait.engine.mail import Abort, LiveRequest, Stop
from plait.engine.parts import EngineParts
from plait.engine.threads_driver import MAX_STEPS_IN_FLIGHT
from plait.engine.tracing import new_span
from plait.types import FinishReason

_log = logging.getLogger(__name__)

_HEARTBEAT_S = 2.0
_RETRY_S = 0.005


class _Gauges:
    """See plait.engine.driver.Gauges."""

    def __init__(self, loop: _native.EngineLoop, compute: _native.ComputeThread) -> None:
        self._loop = loop
        self._compute = compute

    @property
    def steps_total(self) -> int:
        return self._loop.steps_total

    @property
    def failed_steps_total(self) -> int:
        return self._loop.failed_steps_total

    @property
    def step_seconds_total(self) -> float:
        return self._loop.step_seconds_total

    @property
    def forward_seconds_total(self) -> float:
        return self._loop.forward_seconds_total

    @property
    def step_gap_seconds_total(self) -> float:
        return self._compute.gap_ns * 1e-9

    @property
    def step_gap_max_seconds(self) -> float:
        return self._compute.max_gap_ns * 1e-9

    @property
    def num_steps_in_flight(self) -> int:
        return self._loop.num_steps_in_flight

    @property
    def last_progress_at(self) -> float:
        return self._loop.last_progress_s


class NativeDriver:
    """See plait.engine.driver.Driver."""

    def __init__(
        self,
        parts: EngineParts,
        scheduler: _native.Scheduler,
        live: dict[int, LiveRequest],
        num_messages: int,
        on_death: OnDeath,
    ) -> None:
        if not isinstance(parts.executor, _native.ComputeThread):
            raise ValueError("this mode needs the native compute thread")
        if not isinstance(parts.main_bell, _native.Doorbell):
            raise ValueError("this mode needs a native doorbell")
        self._bell = _native.Doorbell()
        self._loop = _native.EngineLoop(
            scheduler,
            parts.executor,
            parts.main_bell,
            self._bell,
            num_messages=num_messages,
            max_steps_in_flight=MAX_STEPS_IN_FLIGHT,
            swap=parts.swap,
        )
        self._gauges = _Gauges(self._loop, parts.executor)
        self._compute = parts.executor
        self._compute_cpu = parts.compute_cpu
        self._wait_span = new_span("wait", "io")
        self._unsent_aborts: list[int] = []
        self._delivery = Delivery(live, self._unsent_aborts.append)
        self._on_death = on_death
        self._thread = new_thread("plait-io", self._run)

    @property
    def gauges(self) -> _Gauges:
        return self._gauges

    @property
    def accepts(self) -> _native.LatencyHistogram:
        return self._loop.accepts

    @property
    def num_messages(self) -> int:
        return self._loop.num_messages

    def ring_depths(self) -> dict[str, int]:
        return {
            "outputs": self._loop.num_outputs,
            "ready_steps": self._compute.num_queued_steps,
            "results": self._compute.num_queued_results,
        }

    def start(self) -> None:
        self._loop.start()
        self._thread.start()

    def try_send(self, message: Message) -> bool:
        if isinstance(message, Stop):
            self._loop.push_stop()
            return True
        if isinstance(message, Abort):
            return self._loop.push_abort(message.request_id)
        return self._loop.push(message)

    def end_live(self, error: str) -> None:
        self._delivery.end_live(FinishReason.ERROR, error)

    def join(self, timeout_s: float) -> bool:
        # The I/O thread ends after main, whose last item it waits for; if it died, it has abandoned main.
        return join_threads([self._thread], timeout_s) and self._loop.join(timeout_s)

    def _run(self) -> None:
        try:
            enter_thread(off_cpu=self._compute_cpu)
            self._deliver_until_end()
        except BaseException as caught:
            _log.exception("the I/O thread of the engine died")
            reason = f"the engine's I/O thread died: {caught!r}"
            self._on_death(reason)
            self.end_live(reason)
            self._loop.abandon_outputs()
            self._loop.push_stop()

    def _deliver_until_end(self) -> None:
        while True:
            seen = self._bell.epoch()
            for item in self._loop.pop_outputs():
                if isinstance(item, _native.EngineEnded):
                    self._end(item.error)
                    return
                self._delivery.deliver(item)
            while self._unsent_aborts and self._loop.push_abort(self._unsent_aborts[0]):
                self._unsent_aborts.pop(0)
            with self._wait_span:
                self._bell.wait(seen, _RETRY_S if self._unsent_aborts else _HEARTBEAT_S)

    def _end(self, error: str | None) -> None:
        if error is None:
            self._delivery.end_live(FinishReason.ABORT, None)
            return
        _log.error("the main thread of the engine died: %s", error)
        reason = f"the engine's main thread died: {error}"
        self._on_death(reason)
        self.end_live(reason)
