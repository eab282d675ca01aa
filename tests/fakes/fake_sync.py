"""Doorbells and rings with the native ones' interface, by plain locks."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any


class FakeDoorbell:
    def __init__(self) -> None:
        self._epoch = 0
        self._changed = threading.Condition()
        self.num_waits = 0

    def ring(self) -> None:
        with self._changed:
            self._epoch += 1
            self._changed.notify_all()

    def epoch(self) -> int:
        return self._epoch

    def wait(self, seen: int, timeout_s: float | None = None) -> bool:
        with self._changed:
            self.num_waits += 1
            return self._changed.wait_for(lambda: self._epoch != seen, timeout_s)


class FakeRing:
    def __init__(self, capacity: int, doorbell: FakeDoorbell) -> None:
        self.capacity = capacity
        self._items: deque[Any] = deque()
        self._doorbell = doorbell

    def try_push(self, item: Any) -> bool:
        if len(self._items) >= self.capacity:
            return False
        self._items.append(item)
        self._doorbell.ring()
        return True

    def pop_all(self) -> list[Any]:
        items = []
        while self._items:
            items.append(self._items.popleft())
        return items

    def __len__(self) -> int:
        return len(self._items)
