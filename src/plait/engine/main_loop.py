"""The main thread: takes requests in, keeps the compute thread fed, takes results.

Runs on its own thread, which owns the scheduler and the KV manager. Knows: order of work. Must not know:
callbacks, clients.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from plait.engine.mail import Abort, MainEnded, Stop, Submission
from plait.engine.parts import EngineParts, Ring, StepOutcome
from plait.engine.steps import build_step, check_sampling
from plait.errors import InvalidRequestError
from plait.scheduler import Scheduler, StepPlan
from plait.types import EngineInfo, FinishReason, TokenOutput
from plait.validation import validate_request

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
    num_free_blocks: int = 0
    last_progress_at: float = 0.0
    """time.monotonic() of the last end of a step."""
    refused_requests_total: int = 0
    refused_choices_total: int = 0
    refused_prompt_tokens_total: int = 0


@dataclass(frozen=True, slots=True)
class _FailedStep:
    """Stands for the result of a step that could not be submitted."""

    step_id: int
    error: str
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    tops: list[list[tuple[int, float]]] = field(default_factory=list)
    scores: list[tuple[float, int, list[tuple[int, float]]]] = field(default_factory=list)
    begin_ns: int = 0
    end_ns: int = 0
    forward_ns: int = 0


class MainLoop:
    def __init__(
        self, parts: EngineParts, scheduler: Scheduler, info: EngineInfo, inbox: Ring, outputs: Ring
    ) -> None:
        self._parts = parts
        self._scheduler = scheduler
        self._info = info
        self._inbox = inbox
        self._outputs = outputs
        self._in_flight: deque[StepPlan] = deque()
        self._outbox: deque[object] = deque()
        self._is_stopping = False
        self.is_io_dead = False
        """Set by the I/O thread when it dies: nobody takes outputs any more."""
        self.gauges = LoopGauges(num_free_blocks=parts.kv.num_free_blocks)

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
            self.gauges.num_free_blocks = self._parts.kv.num_free_blocks
            if self._is_stopping and not self._scheduler.has_work and not self._in_flight:
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
        wakeup = self._scheduler.next_wakeup()
        if wakeup is None:
            return HEARTBEAT_S
        return min(max(wakeup - time.monotonic(), 0.0), HEARTBEAT_S)

    def _take_results(self) -> None:
        gauges = self.gauges
        for result in self._parts.executor.pop_results():
            plan = self._in_flight.popleft()
            if plan.step_id != result.step_id:
                raise RuntimeError(f"the result of step {result.step_id} came, {plan.step_id} was due")
            self._finish(plan, result)
            gauges.steps_total += 1
            gauges.step_seconds_total += (result.end_ns - result.begin_ns) * 1e-9
            gauges.forward_seconds_total += result.forward_ns * 1e-9
            gauges.last_progress_at = time.monotonic()
        gauges.num_steps_in_flight = len(self._in_flight)

    def _finish(self, plan: StepPlan, result: StepOutcome) -> None:
        if result.error:
            self.gauges.failed_steps_total += 1
            _log.error("step %d failed: %s", plan.step_id, result.error)
        self._scheduler.finish_step(plan, result)

    def _take(self, message: Any) -> None:
        if isinstance(message, Submission):
            self._admit(message)
        elif isinstance(message, Abort):
            self._scheduler.abort(message.request_id)
        elif isinstance(message, Stop):
            self._is_stopping = True
            self._scheduler.end_all(FinishReason.ABORT)
        else:
            raise TypeError(f"unknown message {type(message).__name__}")

    def _admit(self, submission: Submission) -> None:
        """The boundary of one request: whatever it breaks here ends it, and nothing else."""
        request_id = submission.request_id
        if self._is_stopping:
            self._refuse(submission, FinishReason.ABORT, None)
            return
        try:
            validate_request(submission.request, self._info)
            state = self._scheduler.add(
                request_id,
                submission.request,
                max_tokens=submission.max_tokens,
                seed=submission.seed,
                now=submission.submitted_at,
                may_hold=submission.may_hold,
            )
        except InvalidRequestError as error:
            self._refuse(submission, FinishReason.ERROR, error.message)
            return
        except Exception as error:
            _log.exception("request %d could not be taken in", request_id)
            self._refuse(submission, FinishReason.ERROR, f"the request could not be taken in: {error!r}")
            return
        try:
            check_sampling(self._parts, state)
        except Exception as error:
            _log.exception("request %d: its sampling parameters were refused", request_id)
            self._scheduler.end(request_id, FinishReason.ERROR, f"bad sampling parameters: {error!r}")

    def _refuse(self, submission: Submission, reason: FinishReason, error: str | None) -> None:
        self.gauges.refused_requests_total += 1
        self.gauges.refused_choices_total += submission.request.sampling.n
        self.gauges.refused_prompt_tokens_total += len(submission.request.prompt_token_ids)
        self._outbox.append(
            [
                TokenOutput(submission.request_id, index, (), finish_reason=reason, error=error)
                for index in range(submission.request.sampling.n)
            ]
        )

    def _feed(self) -> None:
        """Keep the compute thread busy: plan the next step while one runs."""
        in_flight = self._in_flight
        while len(in_flight) < MAX_STEPS_IN_FLIGHT:
            plan = self._scheduler.schedule(time.monotonic())
            if plan is None:
                break
            try:
                if not self._parts.executor.submit(build_step(self._parts, plan)):
                    raise RuntimeError("the step ring is full")
            except Exception as error:  # the sequences of this step end, the loop goes on
                _log.exception("step %d was refused", plan.step_id)
                self._finish(plan, _FailedStep(plan.step_id, f"{error!r}"))
                continue
            in_flight.append(plan)
        self.gauges.num_steps_in_flight = len(in_flight)

    def _send_outputs(self) -> None:
        outputs = self._scheduler.take_outputs()
        if outputs:
            self._outbox.append(outputs)
        self._push_outbox()

    def _push_outbox(self) -> None:
        outbox = self._outbox
        while outbox and self._outputs.try_push(outbox[0]):
            outbox.popleft()
