"""Which waiting sequences get a slot and blocks."""

from __future__ import annotations

from contextlib import suppress

from plait.scheduler.blocks import KvBlocks
from plait.scheduler.endings import Endings
from plait.scheduler.limits import SchedulerLimits
from plait.scheduler.preemption import Growth
from plait.scheduler.running import RunningSet
from plait.scheduler.sequence import Sequence
from plait.scheduler.stats import SchedulerStats
from plait.scheduler.waiting import WaitingQueue
from plait.types import FinishReason


class Admission:
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
        self._hold_until = 0.0
        self._refused: Sequence | None = None
        self._refused_free_blocks = 0

    @property
    def hold_until(self) -> float:
        """When the last wait for a fuller batch ended, or will end at the latest; 0 before the first."""
        return self._hold_until

    def on_arrival(self, now: float) -> None:
        """Before a request enters the queue: the first of an idle engine opens the batch timeout."""
        if not self._waiting and self._running.is_empty:
            self._hold_until = now + self._limits.batch_timeout_s

    def held_until(self) -> float | None:
        """When the wait for a fuller batch ends, or None when nothing is held."""
        if not self._hold_until or not self._running.is_empty or not self._waiting:
            return None
        return self._hold_until if len(self._waiting) < self._limits.num_slots else None

    def make_room(self) -> None:
        """Before a step is planned: take one sequence from a tenant that runs more than its share.

        Only for the first in the queue, when it cannot be admitted, and when its tenant stays below the other
        one even after the exchange: the same two sequences never take turns.
        """
        if len(self._endings.tenants) < 2 or self._running.is_empty:
            return
        seq = self._waiting.peek()
        if seq is None:
            return
        if self._running.num_free_slots and not self._is_hopeless(seq):
            return
        tenant = seq.request.tenant
        for victim in reversed(self._running.sequences):
            if victim.rank[0] < seq.rank[0]:
                return  # what is left has a higher priority
            if victim.request.tenant.num_running >= tenant.num_running + 2:
                self._growth.preempt(victim)
                return

    def admit(self, now: float) -> list[Sequence]:
        """Moves what fits from the queue to the running set and returns it."""
        admitted: list[Sequence] = []
        held_until = self.held_until()
        if held_until is not None and now < held_until:
            return admitted
        while self._running.num_free_slots and (seq := self._waiting.peek()) is not None:
            if self._is_hopeless(seq):
                break
            try:
                is_open = self._try_open(seq)
            except Exception as error:  # the boundary of one request: the others go on
                with suppress(Exception):
                    self._kv.close_sequence(seq.seq_id)
                self._endings.finish(seq, FinishReason.ERROR, f"no KV cache for the prompt: {error!r}")
                continue
            if is_open:
                self._waiting.remove(seq)
                self._running.add(seq)
                self._stats.leave_queue(seq)
                admitted.append(seq)
            elif self._running.is_empty:
                self._fail_too_large(seq)
            else:
                self._refused = seq
                self._refused_free_blocks = self._kv.num_free_blocks
                break
        return admitted

    def _is_hopeless(self, seq: Sequence) -> bool:
        """It did not fit, and no block came free since: do not hash its prompt again."""
        return (
            seq is self._refused
            and not self._running.is_empty
            and self._kv.num_free_blocks <= self._refused_free_blocks
        )

    def _try_open(self, seq: Sequence) -> bool:
        """Blocks for all tokens that ``seq`` has, and one more for each running sequence, or nothing."""
        request = seq.request
        tokens = seq.tokens
        use_cache = self._limits.enable_prefix_cache and request.use_cache
        num_cached = self._kv.open_sequence(seq.seq_id, tokens, request.salt, use_cache)
        has_room = self._kv.try_grow(seq.seq_id, len(tokens), num_cached)
        if has_room and not self._running.is_empty and self._kv.num_free_blocks < len(self._running):
            has_room = False  # it would be preempted at once
        if not has_room:
            self._kv.close_sequence(seq.seq_id)
            return False
        seq.num_scheduled = seq.num_committed = num_cached
        seq.block_table = self._kv.block_table(seq.seq_id)
        seq.capacity = len(seq.block_table) * self._limits.block_tokens
        if request.num_cached_tokens < 0:
            request.num_cached_tokens = min(num_cached, request.num_prompt)
            request.tenant.served += request.num_prompt - request.num_cached_tokens
            self._stats.cached_tokens_total += request.num_cached_tokens
            self._stats.requests_dequeued_total += 1
            self._stats.dequeued_prompt_tokens_total += request.num_prompt
        return True

    def _fail_too_large(self, seq: Sequence) -> None:
        num_blocks = -(-len(seq.tokens) // self._limits.block_tokens)
        self._endings.finish(
            seq,
            FinishReason.ERROR,
            f"the request needs {num_blocks} KV cache blocks, the whole pool has {self._limits.num_blocks}",
        )
