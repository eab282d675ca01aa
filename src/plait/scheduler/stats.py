"""Totals of a scheduler. Written by the scheduling thread, readable from any (plain integers)."""

from __future__ import annotations

from dataclasses import dataclass

from plait.scheduler.sequence import Sequence


@dataclass(slots=True)
class SchedulerStats:
    requests_total: int = 0
    requests_dequeued_total: int = 0
    """Left the queue for the first time: admitted, or ended before."""
    dequeued_prompt_tokens_total: int = 0
    dequeued_choices_total: int = 0
    """Got a slot for the first time, or ended before."""
    requests_finished_total: int = 0
    choices_aborted_total: int = 0
    choices_failed_total: int = 0
    prompt_tokens_total: int = 0
    cached_tokens_total: int = 0
    generated_tokens_total: int = 0
    prefill_tokens_total: int = 0
    """Tokens whose KV was computed by prefill, recomputation after a preemption included."""
    dropped_tokens_total: int = 0
    """Sampled in a step that was already running when the sequence ended."""
    preemptions_total: int = 0

    def leave_queue(self, seq: Sequence) -> None:
        """Count a choice that gets a slot, or ends: once, whatever comes later."""
        if not seq.has_left_queue:
            seq.has_left_queue = True
            self.dequeued_choices_total += 1
