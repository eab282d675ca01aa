"""How choices and requests end: exactly one output with a finish_reason per choice, then nothing."""

from __future__ import annotations

from plait.scheduler.request import RequestState
from plait.scheduler.running import RunningSet
from plait.scheduler.sequence import FINISHED, RUNNING, WAITING, Sequence
from plait.scheduler.stats import SchedulerStats
from plait.scheduler.tenants import Tenants
from plait.scheduler.waiting import WaitingQueue
from plait.types import FinishReason, TokenLogprob, TokenOutput


class Endings:
    """Owner of the unfinished requests and of the outputs that were not taken yet."""

    def __init__(self, waiting: WaitingQueue, running: RunningSet, stats: SchedulerStats) -> None:
        self.requests: dict[int, RequestState] = {}
        self.outputs: list[TokenOutput] = []
        self.tenants = Tenants()
        self._waiting = waiting
        self._running = running
        self._stats = stats

    def emit(
        self,
        seq: Sequence,
        token_ids: tuple[int, ...],
        logprobs: tuple[TokenLogprob, ...] = (),
        finish_reason: FinishReason | None = None,
        stop_token_id: int | None = None,
        error: str | None = None,
    ) -> None:
        request = seq.request
        scores: tuple[TokenLogprob | None, ...] = ()
        if not seq.has_output:
            seq.has_output = True
            if request.wants_scores and seq.index == 0 and len(request.prompt_scores) == request.num_prompt:
                scores = tuple(request.prompt_scores)
        self.outputs.append(
            TokenOutput(
                request.request_id,
                seq.index,
                token_ids,
                logprobs,
                finish_reason,
                stop_token_id,
                max(request.num_cached_tokens, 0),
                scores,
                error,
            )
        )

    def finish(self, seq: Sequence, reason: FinishReason, error: str | None = None) -> None:
        """End a choice from outside; before the fork of its siblings they end with it."""
        if seq.request.is_forked:
            self._finish_now(seq, reason, error)
        else:
            self.finish_request(seq.request, reason, error)

    def finish_request(self, request: RequestState, reason: FinishReason, error: str | None = None) -> None:
        """End every choice that has not ended."""
        request.is_forked = True
        for seq in request.choices:
            self._finish_now(seq, reason, error)

    def _finish_now(self, seq: Sequence, reason: FinishReason, error: str | None) -> None:
        if seq.state != FINISHED:
            self.emit(seq, (), finish_reason=reason, error=error)
            self.close(seq, reason)

    def close(self, seq: Sequence, reason: FinishReason) -> None:
        """Take a choice, whose last output was emitted, out of wherever it is."""
        if seq.state == WAITING:
            self._waiting.remove(seq)
        if seq.state == RUNNING:
            self._running.remove(seq, FINISHED)
        # A PREEMPTING one stays in `draining` until its steps ended, and is dropped from there.
        seq.state = FINISHED
        self._stats.leave_queue(seq)
        request = seq.request
        request.num_open -= 1
        if request.num_open == 0:
            del self.requests[request.request_id]
            self.tenants.leave(request.tenant)
            self._stats.requests_finished_total += 1
            if request.num_cached_tokens < 0:
                self._stats.requests_dequeued_total += 1
                self._stats.dequeued_prompt_tokens_total += request.num_prompt
        if reason is FinishReason.ABORT:
            self._stats.choices_aborted_total += 1
        elif reason is FinishReason.ERROR:
            self._stats.choices_failed_total += 1
