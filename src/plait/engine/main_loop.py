"""The main thread: takes requests in, keeps the compute thread fed, takes results.

Runs on its own thread, which owns the scheduler and the KV manager. Knows: order of work. Must not know:
callbacks, clients.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from plait import _native
from plait.engine.mail import Abort, MainEnded, Stop
from plait.engine.parts import EngineParts, Ring
from plait.types import FinishReason

_log = logging.getLogger(__name__)

HEARTBEAT_S = 2.0
MAX_STEPS_IN_FLIGHT = 2
# While a full ring keeps outputs back there is no bell for "room again": look this often.
_RETRY_S = 0.005


@dataclass(slots=True)
class LoopGauges:
    """Written by the main thread only, read by any."""

    steps_total: int = 0
    failed_steps_total: int = 0
    step_seconds_total: float = 0.0
    forward_seconds_total: float = 0.0
    """Of step_seconds_total: the fused operations, without sampling."""
    num_steps_in_flight: int = 0
    last_progress_at: float = 0.0
    """time.monotonic() of the last end of a step."""


class MainLoop:
    def __init__(self, parts: EngineParts, scheduler: _native.Scheduler, inbox: Ring, outputs: Ring) -> None:
        self._parts = parts
        self._scheduler = scheduler
        self._inbox = inbox
        self._outputs = outputs
        self._num_in_flight = 0
        self._outbox: deque[object] = deque()
        self._is_stopping = False
        self.is_io_dead = False
        """Set by the I/O thread when it dies: nobody takes outputs any more."""
        self.gauges = LoopGauges()

    def run(self) -> None:
        """Until a Stop message, or an error that is nobody's request: then it raises."""
        bell = self._parts.main_bell
        while True:
            seen = bell.epoch()
            self._take_results()
            for message in self._inbox.pop_all():
                self._take(message)
            self._feed()
            self._send_outputs()
            if self._is_stopping and not self._scheduler.has_work and not self._num_in_flight:
                return
            bell.wait(seen, self._timeout_s())

    def leave(self, error: str | None) -> None:
        """The last words of this thread: hand over what is left, stop the compute thread."""
        self._outbox.append(MainEnded(error))
        self._push_outbox()
        while self._outbox and not self.is_io_dead:
            time.sleep(_RETRY_S)
            self._push_outbox()
        self._parts.executor.stop()

    def _timeout_s(self) -> float:
        if self._outbox:
            return _RETRY_S
        wakeup_ns = self._scheduler.next_wakeup_ns()
        if wakeup_ns is None:
            return HEARTBEAT_S
        return min(max((wakeup_ns - time.monotonic_ns()) * 1e-9, 0.0), HEARTBEAT_S)

    def _take_results(self) -> None:
        gauges = self.gauges
        for result in self._parts.executor.pop_results():
            self._num_in_flight -= 1
            if result.error:
                gauges.failed_steps_total += 1
                _log.error("step %d failed: %s", result.step_id, result.error)
            self._scheduler.finish_step(result)
            gauges.steps_total += 1
            gauges.step_seconds_total += (result.end_ns - result.begin_ns) * 1e-9
            gauges.forward_seconds_total += result.forward_ns * 1e-9
            gauges.last_progress_at = time.monotonic()
        gauges.num_steps_in_flight = self._num_in_flight

    def _take(self, message: Any) -> None:
        if isinstance(message, _native.Request):
            self._admit(message)
        elif isinstance(message, Abort):
            self._scheduler.abort(message.request_id)
        elif isinstance(message, Stop):
            self._is_stopping = True
            self._scheduler.end_all(FinishReason.ABORT)
        else:
            raise TypeError(f"unknown message {type(message).__name__}")

    def _admit(self, request: _native.Request) -> None:
        """The boundary of one request: whatever it breaks here ends it, and nothing else."""
        if self._is_stopping:
            self._scheduler.refuse(request, FinishReason.ABORT)
            return
        try:
            self._scheduler.add(request)
        except _native.NativeError as error:
            _log.exception("request %d could not be taken in", request.request_id)
            self._scheduler.refuse(
                request, FinishReason.ERROR, f"the request could not be taken in: {error.args[1]}"
            )

    def _feed(self) -> None:
        """Keep the compute thread busy: plan the next step while one runs."""
        scheduler = self._scheduler
        while self._num_in_flight < MAX_STEPS_IN_FLIGHT:
            step = scheduler.schedule(time.monotonic_ns())
            if step is None:
                break
            step_id = step.step_id
            try:
                if not self._parts.executor.submit(step):
                    raise RuntimeError("the step ring is full")
            except Exception as error:  # the sequences of this step end, the loop goes on
                _log.exception("step %d was refused", step_id)
                self.gauges.failed_steps_total += 1
                scheduler.fail_step(step_id, f"{error!r}")
                continue
            self._num_in_flight += 1
        self.gauges.num_steps_in_flight = self._num_in_flight

    def _send_outputs(self) -> None:
        outputs = self._scheduler.take_outputs()
        if len(outputs):
            self._outbox.append(outputs)
        self._push_outbox()

    def _push_outbox(self) -> None:
        outbox = self._outbox
        while outbox and self._outputs.try_push(outbox[0]):
            outbox.popleft()
