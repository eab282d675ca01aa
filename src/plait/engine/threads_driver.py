"""The ``threads`` mode: main and I/O are Python threads, compute is a native one that never holds the GIL.

    any thread --messages--> main --steps--> compute
     callbacks <-- I/O <--outputs-- main <--results-- compute

Every arrow is a bounded lock-free ring with a doorbell; nobody polls. Shortly before a step ends, main plans the
next one, so that compute never waits for Python.
"""

from __future__ import annotations

import logging

from plait import _native
from plait.engine.driver import Message, OnDeath, enter_thread, join_threads, new_thread
from plait.engine.io_loop import IoLoop
from plait.engine.mail import LiveRequest
from plait.engine.main_loop import MainLoop
from plait.engine.parts import EngineParts
from plait.engine.step_loop import LoopGauges, StepLoop
from plait.types import FinishReason

_log = logging.getLogger(__name__)

MAX_STEPS_IN_FLIGHT = 2
"""One that runs and one that is ready when it ends."""
_NUM_OUTPUTS = 256


class ThreadsDriver:
    """See plait.engine.driver.Driver."""

    def __init__(
        self,
        parts: EngineParts,
        scheduler: _native.Scheduler,
        live: dict[int, LiveRequest],
        num_messages: int,
        on_death: OnDeath,
    ) -> None:
        io_bell = parts.new_bell()
        self._messages = parts.new_mpsc_ring(num_messages, parts.main_bell)
        outputs = parts.new_spsc_ring(_NUM_OUTPUTS, io_bell)
        self._steps = StepLoop(scheduler, parts.executor, MAX_STEPS_IN_FLIGHT, parts.swap)
        self._main = MainLoop(self._steps, parts.main_bell, self._messages, outputs)
        self._io = IoLoop(io_bell, outputs, self._messages, live)
        self._outputs = outputs
        self._on_death = on_death
        self._compute_cpu = parts.compute_cpu
        self._threads = [new_thread("plait-main", self._run_main), new_thread("plait-io", self._run_io)]

    @property
    def gauges(self) -> LoopGauges:
        return self._steps.gauges

    @property
    def accepts(self) -> _native.LatencyHistogram:
        return self._steps.accepts

    @property
    def num_messages(self) -> int:
        return len(self._messages)

    def ring_depths(self) -> dict[str, int]:
        return {
            "outputs": len(self._outputs),
            **self._steps.ring_depths(),
        }

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def try_send(self, message: Message) -> bool:
        return self._messages.try_push(message)

    def end_live(self, error: str) -> None:
        self._io.delivery.end_live(FinishReason.ERROR, error)

    def join(self, timeout_s: float) -> bool:
        return join_threads(self._threads, timeout_s)

    def _run_main(self) -> None:
        error = None
        try:
            enter_thread(passes_messages=False)
            self._main.run(_native.RealtimeMessenger(self._compute_cpu).check)
        except BaseException as caught:
            _log.exception("the main thread of the engine died")
            error = f"the engine's main thread died: {caught!r}"
            self._on_death(error)
        try:
            self._main.leave(error)
        except BaseException as caught:
            self._die(f"the engine's main thread could not leave: {caught!r}")

    def _run_io(self) -> None:
        try:
            enter_thread(off_cpu=self._compute_cpu)
            self._io.run()
        except BaseException as caught:
            _log.exception("the I/O thread of the engine died")
            self._die(f"the engine's I/O thread died: {caught!r}")
            self._main.is_io_dead = True
            self._io.stop_main()

    def _die(self, reason: str) -> None:
        self._on_death(reason)
        self.end_live(reason)
