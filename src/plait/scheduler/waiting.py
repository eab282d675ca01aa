"""Sequences that wait for a slot and blocks, in the order in which they will be admitted.

Order: priority; then those that ran before (preempted ones, by rank); then the first of the tenant that was
served least. Nobody is passed over: when the first does not fit, the others wait too, so a large prompt
cannot starve behind small ones.
"""

from __future__ import annotations

from bisect import insort
from collections import deque

from plait.scheduler.sequence import Sequence


class _Lane:
    """One priority."""

    __slots__ = ("by_tenant", "resumed")

    def __init__(self) -> None:
        self.resumed: list[Sequence] = []
        self.by_tenant: dict[str, deque[Sequence]] = {}


class WaitingQueue:
    def __init__(self) -> None:
        self._lanes: dict[int, _Lane] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def push(self, seq: Sequence) -> None:
        self._tenant_queue(seq).append(seq)
        self._size += 1

    def push_front(self, seq: Sequence) -> None:
        """For a choice that could not be forked with its siblings: next of its tenant."""
        self._tenant_queue(seq).appendleft(seq)
        self._size += 1

    def push_resumed(self, seq: Sequence) -> None:
        """For a preempted sequence: before all that never ran, in order of rank."""
        lane = self._lanes.setdefault(seq.rank[0], _Lane())
        insort(lane.resumed, seq, key=lambda s: s.rank)
        self._size += 1

    def peek(self) -> Sequence | None:
        """The next to admit, or None."""
        if not self._size:
            return None
        lane = self._lanes[min(self._lanes)]
        if lane.resumed:
            return lane.resumed[0]
        return min(lane.by_tenant.values(), key=lambda queue: queue[0].request.tenant.served)[0]

    def remove(self, seq: Sequence) -> None:
        """Take out a sequence that is in the queue, wherever it stands."""
        lane = self._lanes[seq.rank[0]]
        queue = lane.by_tenant.get(seq.request.tenant.name)
        if queue is not None and queue[0] is seq:
            queue.popleft()
        elif seq in lane.resumed:
            lane.resumed.remove(seq)
        else:
            assert queue is not None
            queue.remove(seq)
        if queue is not None and not queue:
            del lane.by_tenant[seq.request.tenant.name]
        if not lane.resumed and not lane.by_tenant:
            del self._lanes[seq.rank[0]]
        self._size -= 1

    def _tenant_queue(self, seq: Sequence) -> deque[Sequence]:
        lane = self._lanes.setdefault(seq.rank[0], _Lane())
        return lane.by_tenant.setdefault(seq.request.tenant.name, deque())
