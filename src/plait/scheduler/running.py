"""Sequences that hold a slot and blocks: those that run, and those that leave once their steps ended."""

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
        """PREEMPTING or FINISHED, with steps in flight."""
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
        return not self.sequences and not self.draining

    def add(self, seq: Sequence) -> None:
        """Give a slot (there must be a free one) to a sequence that the KV manager has open."""
        seq.slot = self._free_slots.pop()
        seq.state = RUNNING
        insort(self.sequences, seq, key=_rank)

    def remove(self, seq: Sequence, state: int) -> bool:
        """Take a RUNNING sequence out. True: slot and blocks are free; False: it drains first."""
        del self.sequences[bisect_left(self.sequences, seq.rank, key=_rank)]
        seq.state = state
        if seq.num_in_flight:
            self.draining.append(seq)
            return False
        self._release(seq)
        return True

    def take_drained(self) -> list[Sequence]:
        """Release and return those whose last step ended."""
        drained = [seq for seq in self.draining if not seq.num_in_flight]
        if drained:
            self.draining = [seq for seq in self.draining if seq.num_in_flight]
            for seq in drained:
                self._release(seq)
        return drained

    def _release(self, seq: Sequence) -> None:
        self._kv.close_sequence(seq.seq_id)
        self._free_slots.append(seq.slot)
        seq.slot = -1
