"""Sequences that hold a slot and blocks, and preempted ones whose last tokens are still on their way.

Slot and blocks come free at once, even while a step in flight uses them: steps run in the order in which they
are planned, so whatever that step still writes comes before anything that a new owner's step does.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from plait.scheduler.blocks import KvBlocks
from plait.scheduler.sequence import RUNNING, Rank, Sequence


def _rank(seq: Sequence) -> Rank:
    return seq.rank


class RunningSet:
    def __init__(self, num_slots: int, kv: KvBlocks) -> None:
        self.sequences: list[Sequence] = []
        """By rank: the first is the last to be preempted."""
        self.draining: list[Sequence] = []
        """PREEMPTING, with steps in flight: they hold nothing, and wait again once their tokens are known."""
        self._free_slots = list(range(num_slots - 1, -1, -1))
        self._kv = kv

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def num_free_slots(self) -> int:
        return len(self._free_slots)

    @property
    def is_empty(self) -> bool:
        """Nobody holds a block."""
        return not self.sequences

    def add(self, seq: Sequence) -> None:
        """Give a slot (there must be a free one) to a sequence that the KV manager has open."""
        seq.slot = self._free_slots.pop()
        seq.state = RUNNING
        seq.request.tenant.num_running += 1
        insort(self.sequences, seq, key=_rank)

    def remove(self, seq: Sequence, state: int) -> None:
        """Take a RUNNING sequence out; its slot and blocks are free."""
        del self.sequences[bisect_left(self.sequences, seq.rank, key=_rank)]
        self._kv.close_sequence(seq.seq_id)
        self._free_slots.append(seq.slot)
        seq.request.tenant.num_running -= 1
        seq.slot = -1
        seq.state = state

    def take_drained(self) -> list[Sequence]:
        """Those of ``draining`` whose last step ended."""
        drained = [seq for seq in self.draining if not seq.num_in_flight]
        if drained:
            self.draining = [seq for seq in self.draining if seq.num_in_flight]
        return drained
