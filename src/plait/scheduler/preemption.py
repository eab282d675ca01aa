"""What happens when the pool has no block left for a running sequence, or a tenant holds what is due to another.

One other sequence, the lowest in rank, gives its blocks back and is recomputed later from its prompt and what
it produced: the same tokens, since sampling depends on (seed, number of produced tokens) only. The highest in
rank never yields, so there is always progress.
"""

from __future__ import annotations

from plait.scheduler.blocks import KvBlocks
from plait.scheduler.endings import Endings
from plait.scheduler.limits import SchedulerLimits
from plait.scheduler.running import RunningSet
from plait.scheduler.sequence import PREEMPTING, WAITING, Sequence
from plait.scheduler.stats import SchedulerStats
from plait.scheduler.waiting import WaitingQueue
from plait.types import FinishReason


class Growth:
    def __init__(
        self,
        kv: KvBlocks,
        limits: SchedulerLimits,
        waiting: WaitingQueue,
        running: RunningSet,
        endings: Endings,
        stats: SchedulerStats,
    ) -> None:
        self._kv = kv
        self._limits = limits
        self._waiting = waiting
        self._running = running
        self._endings = endings
        self._stats = stats

    def grow(self, seq: Sequence, num_tokens: int) -> bool:
        """Room for ``num_tokens`` positions, by preemption if need be. False: ``seq`` sits this step out."""
        try:
            while not self._kv.try_grow(seq.seq_id, num_tokens, seq.num_scheduled):
                victim = self._running.sequences[-1]
                if victim is seq and len(self._running) == 1:
                    self._fail_alone(seq, num_tokens)
                    return False
                self.preempt(victim)
                if victim is seq:
                    return False
            seq.block_table = self._kv.block_table(seq.seq_id)
        except Exception as error:  # the boundary of one request: the others go on
            self._endings.finish(seq, FinishReason.ERROR, f"no KV cache for the next token: {error!r}")
            return False
        seq.capacity = len(seq.block_table) * self._limits.block_tokens
        return True

    def resume_drained(self) -> None:
        """The preempted ones whose last step ended wait again."""
        for seq in self._running.take_drained():
            if seq.state == PREEMPTING:
                self._requeue(seq)

    def preempt(self, seq: Sequence) -> None:
        """Take slot and blocks from a running sequence that is in no plan which was not submitted yet."""
        self._stats.preemptions_total += 1
        self._running.remove(seq, PREEMPTING)
        if seq.num_in_flight:
            self._running.draining.append(seq)
        else:
            self._requeue(seq)

    def _requeue(self, seq: Sequence) -> None:
        seq.reset()
        seq.state = WAITING
        if seq.index == 0:
            seq.request.num_scores_scheduled = len(seq.request.prompt_scores)
        self._waiting.push_resumed(seq)

    def _fail_alone(self, seq: Sequence, num_tokens: int) -> None:
        num_blocks = -(-num_tokens // self._limits.block_tokens)
        self._endings.finish(
            seq,
            FinishReason.ERROR,
            f"the request needs {num_blocks} KV cache blocks, the whole pool has {self._limits.num_blocks}",
        )
