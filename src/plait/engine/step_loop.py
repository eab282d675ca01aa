"""What is done between steps: take results in, take messages in, plan and submit. No waiting, no threads.

One thread calls everything and owns the scheduler and the KV manager; ``gauges`` may be read from any. Every
engine mode but ``native`` runs this; ``native`` has the same in C++ (native/runtime/engine_loop.h).
"""

from __future__ import annotations

import logging
import time
from typing import Any

import msgspec

from plait import _native
from plait.engine.mail import Abort, Stop
from plait.engine.parts import Executor
from plait.engine.tracing import new_span
from plait.types import FinishReason

_log = logging.getLogger(__name__)

HEARTBEAT_S = 2.0


class LoopGauges(msgspec.Struct):
    """Written by the thread of the loop only, read by any."""

    steps_total: int = 0
    failed_steps_total: int = 0
    step_seconds_total: float = 0.0
    forward_seconds_total: float = 0.0
    """Of step_seconds_total: the fused operations, without sampling."""
    step_gap_seconds_total: float = 0.0
    """Between the end of a step and the begin of the next one while there was something to compute."""
    step_gap_max_seconds: float = 0.0
    num_steps_in_flight: int = 0
    last_progress_at: float = 0.0
    """time.monotonic() of the last end of a step."""


class StepLoop:
    def __init__(
        self,
        scheduler: _native.Scheduler,
        executor: Executor,
        max_in_flight: int,
        swap: _native.KvSwap | None = None,
    ) -> None:
        self.scheduler = scheduler
        self._executor = executor
        self._swap = swap
        self._max_in_flight = max_in_flight
        self._num_in_flight = 0
        self.is_stopping = False
        self.gauges = LoopGauges()
        self.accepts = _native.LatencyHistogram()
        """From the submission of a request that is timed until it was taken in."""
        self._results_span = new_span("results", "main", "step")
        self._schedule_span = new_span("schedule", "main", "step", "tokens", "sequences")
        self._submit_span = new_span("submit", "main", "step")

    @property
    def has_ended(self) -> bool:
        """It was told to stop, and nothing is left of any request or step."""
        is_idle = not self.scheduler.has_work and not self._num_in_flight and not self.scheduler.has_transfers
        return self.is_stopping and is_idle

    @property
    def wait_s(self) -> float:
        """How long to sleep at most when nothing happens."""
        wakeup_ns = self.scheduler.next_wakeup_ns(self._num_in_flight < self._max_in_flight)
        if wakeup_ns is None:
            return HEARTBEAT_S
        return min(max((wakeup_ns - time.monotonic_ns()) * 1e-9, 0.0), HEARTBEAT_S)

    def take_results(self) -> None:
        gauges = self.gauges
        for result in self._executor.pop_results():
            self._num_in_flight -= 1
            if result.error:
                gauges.failed_steps_total += 1
                _log.error("step %d failed: %s", result.step_id, result.error)
            with self._results_span as span:
                self.scheduler.finish_step(result)
                span.set(result.step_id)
            gauges.steps_total += 1
            gauges.step_seconds_total += (result.end_ns - result.begin_ns) * 1e-9
            gauges.forward_seconds_total += result.forward_ns * 1e-9
            gauges.last_progress_at = time.monotonic()
        gauges.step_gap_seconds_total = self._executor.gap_ns * 1e-9
        gauges.step_gap_max_seconds = self._executor.max_gap_ns * 1e-9
        gauges.num_steps_in_flight = self._num_in_flight

    def take(self, message: Any) -> None:
        """A request, an abort or a stop."""
        if isinstance(message, _native.Request):
            self._admit(message)
        elif isinstance(message, Abort):
            self.scheduler.abort(message.request_id)
        elif isinstance(message, Stop):
            self.is_stopping = True
            self.scheduler.end_all(FinishReason.ABORT)
        else:
            raise TypeError(f"unknown message {type(message).__name__}")

    def feed(self) -> None:
        """Plan and submit until enough steps are in flight, and see to what is saved and fetched."""
        self.scheduler.expire(time.monotonic_ns())
        self._run_transfers()
        self._plan_steps()
        while self._run_transfers():  # what was answered at once may leave more to plan
            self._plan_steps()
        self.gauges.num_steps_in_flight = self._num_in_flight

    def _run_transfers(self) -> bool:
        return self._swap is not None and _native.run_swap_transfers(self.scheduler, self._swap)

    def _plan_steps(self) -> None:
        while self._num_in_flight < self._max_in_flight:
            with self._schedule_span as span:
                step = self.scheduler.schedule(time.monotonic_ns())
                if step is None:
                    span.set(-1)
                else:
                    span.set(step.step_id, step.num_tokens, step.num_sequences)
            if step is None:
                break
            step_id = step.step_id
            try:
                with self._submit_span as span:
                    span.set(step_id)
                    if not self._executor.submit(step):
                        raise RuntimeError("the step ring is full")
            except Exception as error:  # the sequences of this step end, the loop goes on
                _log.exception("step %d was refused", step_id)
                self.gauges.failed_steps_total += 1
                self.scheduler.fail_step(step_id, f"{error!r}")
                continue
            self._num_in_flight += 1

    def stop_executor(self) -> None:
        """Finish the submitted steps and let the executor go."""
        self._executor.stop()

    def ring_depths(self) -> dict[str, int]:
        """Of the executor's rings. Any thread."""
        return {
            "ready_steps": self._executor.num_queued_steps,
            "results": self._executor.num_queued_results,
        }

    def take_outputs(self) -> _native.OutputBatch | None:
        outputs = self.scheduler.take_outputs()
        return outputs if len(outputs) else None

    def _admit(self, request: _native.Request) -> None:
        """The boundary of one request: whatever it breaks here ends it, and nothing else."""
        if request.is_timed:
            self.accepts.note(time.monotonic_ns() - request.arrived_ns)
        if self.is_stopping:
            self.scheduler.refuse(request, FinishReason.ABORT)
            return
        try:
            self.scheduler.add(request)
        except _native.NativeError as error:
            _log.exception("request %d could not be taken in", request.request_id)
            self.scheduler.refuse(
                request, FinishReason.ERROR, f"the request could not be taken in: {error.args[1]}"
            )
