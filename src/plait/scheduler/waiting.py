"""Sequences that wait for a slot and blocks, in the order in which they will be admitted.

Order: priority; then the tenant that was served least; of one tenant, those that ran before (preempted ones, by
rank), then by arrival. Nobody of a tenant is passed over: when the first does not fit, the others wait too, so a
large prompt cannot starve behind small ones.
"""

from __future__ import annotations

from bisect import insort
from collections import deque

from plait.scheduler.sequence import Sequence


class _Queue:
    """One tenant's, of one priority."""

    __slots__ = ("new", "resumed")

    def __init__(self) -> None:
        self.resumed: list[Sequence] = []
        self.new: deque[Sequence] = deque()

    @property
    def first(self) -> Sequence:
        return self.resumed[0] if self.resumed else self.new[0]


class WaitingQueue:
    def __init__(self) -> None:
        self._lanes: dict[int, dict[str, _Queue]] = {}
        """By priority, then by tenant; no empty ones."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def push(self, seq: Sequence) -> None:
        self._queue_of(seq).new.append(seq)
        self._size += 1

    def push_front(self, seq: Sequence) -> None:
        """For a choice that could not be forked with its siblings: next of its tenant."""
        self._queue_of(seq).new.appendleft(seq)
        self._size += 1

    def push_resumed(self, seq: Sequence) -> None:
        """For a preempted sequence: before all of its tenant that never ran, in order of rank."""
        insort(self._queue_of(seq).resumed, seq, key=lambda s: s.rank)
        self._size += 1

    def peek(self) -> Sequence | None:
        """The next to admit, or None."""
        if not self._size:
            return None
        lane = self._lanes[min(self._lanes)]
        return min((queue.first for queue in lane.values()), key=lambda seq: seq.request.tenant.served)

    def remove(self, seq: Sequence) -> None:
        """Take out a sequence that is in the queue, wherever it stands."""
        lane = self._lanes[seq.rank[0]]
        name = seq.request.tenant.name
        queue = lane[name]
        if queue.new and queue.new[0] is seq:
            queue.new.popleft()
        elif seq in queue.resumed:
            queue.resumed.remove(seq)
        else:
            queue.new.remove(seq)
        if not queue.new and not queue.resumed:
            del lane[name]
            if not lane:
                del self._lanes[seq.rank[0]]
        self._size -= 1

    def _queue_of(self, seq: Sequence) -> _Queue:
        lane = self._lanes.setdefault(seq.rank[0], {})
        return lane.setdefault(seq.request.tenant.name, _Queue())
