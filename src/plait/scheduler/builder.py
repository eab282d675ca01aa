"""Fills a StepPlan: decodes first, then slices of prompts."""

from __future__ import annotations

from plait.scheduler.blocks import KvBlocks
from plait.scheduler.budget import PrefillPacer, share_prefill
from plait.scheduler.endings import Endings
from plait.scheduler.limits import SchedulerLimits
from plait.scheduler.preemption import Growth
from plait.scheduler.running import RunningSet
from plait.scheduler.sequence import RUNNING, WAITING, Sequence
from plait.scheduler.stats import SchedulerStats
from plait.scheduler.step import StepPlan
from plait.scheduler.waiting import WaitingQueue
from plait.types import FinishReason


class StepBuilder:
    def __init__(
        self,
        kv: KvBlocks,
        limits: SchedulerLimits,
        waiting: WaitingQueue,
        running: RunningSet,
        growth: Growth,
        endings: Endings,
        stats: SchedulerStats,
    ) -> None:
        self._kv = kv
        self._limits = limits
        self._waiting = waiting
        self._running = running
        self._growth = growth
        self._endings = endings
        self._stats = stats

    def add_decodes(self, plan: StepPlan) -> list[Sequence]:
        """One token of each sequence that decodes; returns those that prefill or are recomputed."""
        prompts = []
        token_ids = plan.token_ids
        for seq in tuple(self._running.sequences):
            tokens = seq.tokens
            length = len(tokens) + seq.num_pending
            position = seq.num_scheduled
            if position < seq.num_prompt or length - position > 1:
                prompts.append(seq)
                continue
            # At max_len all tokens that it may produce are known or on their way.
            if length >= seq.max_len or seq.state != RUNNING:
                continue
            if position >= seq.capacity and not self._growth.grow(seq, length):
                continue
            token_ids.append(-1 if seq.num_pending else tokens[position])
            plan.sample_rows.append(len(token_ids) - 1)
            self._close_row(plan, seq, length)
            self._sample(plan, seq)
        return [seq for seq in prompts if seq.state == RUNNING]

    def add_prompts(self, plan: StepPlan, prompts: list[Sequence], pacer: PrefillPacer) -> None:
        """Slices of ``prompts`` (running, oldest first) within what the decodes left of the step."""
        budget = pacer.budget(len(plan.rows))
        remaining = [len(seq.tokens) - seq.num_scheduled for seq in prompts]
        shares = share_prefill(remaining, budget, self._limits.prefill_chunk_tokens)
        for seq, share in zip(prompts, shares, strict=True):
            if share:
                self._add_slice(plan, seq, share)

    def _add_slice(self, plan: StepPlan, seq: Sequence, num_tokens: int) -> None:
        begin = seq.num_scheduled
        end = begin + num_tokens
        first_row = len(plan.token_ids)
        plan.token_ids += seq.tokens[begin:end]
        plan.num_prefill_tokens += num_tokens
        self._close_row(plan, seq, end)
        if seq.request.wants_scores and seq.index == 0:
            self._add_scores(plan, seq, begin, end, first_row)
        if end < len(seq.tokens):
            return
        row = len(plan.token_ids) - 1
        plan.sample_rows.append(row)
        self._sample(plan, seq)
        if not seq.request.is_forked:
            self._fork(plan, seq, row)

    def _close_row(self, plan: StepPlan, seq: Sequence, end: int) -> None:
        seq.num_scheduled = end
        seq.num_in_flight += 1
        plan.seq_slots.append(seq.slot)
        plan.query_starts.append(len(plan.token_ids))
        plan.context_lens.append(end)
        plan.block_tables.append(seq.block_table)
        plan.rows.append(seq)

    @staticmethod
    def _sample(plan: StepPlan, seq: Sequence) -> None:
        seq.num_pending += 1
        plan.sample_slots.append(seq.slot)
        plan.sampled.append(seq)
        if seq.request.wants_logprobs:
            plan.wants_logprobs = True

    @staticmethod
    def _add_scores(plan: StepPlan, seq: Sequence, begin: int, end: int, first_row: int) -> None:
        """The row of position p tells how likely the prompt's token at p + 1 was."""
        request = seq.request
        num_top = request.request.sampling.prompt_logprobs or 0
        for position in range(max(begin, request.num_scores_scheduled - 1), min(end, seq.num_prompt - 1)):
            plan.scores.append((first_row + position - begin, seq.tokens[position + 1], num_top))
            plan.scored.append(seq)
            request.num_scores_scheduled = position + 2

    def _fork(self, plan: StepPlan, parent: Sequence, row: int) -> None:
        """The other choices share the prompt's blocks and its last row; those without room wait."""
        request = parent.request
        request.is_forked = True
        late = []
        for child in request.choices[1:]:
            child.tokens = parent.tokens[: parent.num_prompt]
            if not self._running.num_free_slots or self._kv.num_free_blocks <= len(self._running):
                late.append(child)
                continue
            try:
                self._kv.fork(parent.seq_id, child.seq_id)
            except Exception as error:  # the boundary of one choice: the others go on
                self._endings.finish(child, FinishReason.ERROR, f"no KV cache for this choice: {error!r}")
                continue
            self._running.add(child)
            self._stats.leave_queue(child)
            child.block_table = parent.block_table
            child.num_scheduled = parent.num_scheduled
            child.num_committed = parent.num_committed
            child.num_in_flight = 1
            # Both must ask before they write on: the last block is shared.
            child.capacity = parent.capacity = parent.num_scheduled
            plan.sample_rows.append(row)
            plan.forked.append(child)
            plan.starts.append(child)
            self._sample(plan, child)
        for child in reversed(late):
            child.state = WAITING
            self._waiting.push_front(child)
