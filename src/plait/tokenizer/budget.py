"""Budget: what one rendering of a hostile template may use. Belongs to one thread."""

from __future__ import annotations

import time

MAX_RENDER_S = 2.0
"""CPU time of the rendering thread: a busy machine does not make good templates fail."""
MAX_TEXT_CHARS = 4_000_000
"""The longest string, over and above four times what the request brings."""
MAX_TOTAL_CHARS = 64_000_000
"""All strings and lists made on the way, over and above 64 times what the request brings."""
_MAX_DEPTH = 64
_TICKS_PER_CLOCK = 64


class BudgetError(Exception):
    """The template wants more than it may have."""


class Budget:
    def __init__(self, input_chars: int, max_render_s: float) -> None:
        self._deadline = time.thread_time() + max_render_s
        self._max_text = MAX_TEXT_CHARS + 4 * input_chars
        self._left = MAX_TOTAL_CHARS + 64 * input_chars
        self._ticks = 0

    def tick(self) -> None:
        """Count one operation; looks at the clock now and then."""
        self._ticks += 1
        if self._ticks % _TICKS_PER_CLOCK == 0 and time.thread_time() > self._deadline:
            raise BudgetError("it takes too long")

    def check_size(self, size: int) -> None:
        """Refuse a string or list of ``size`` before it is made."""
        if size > self._max_text:
            raise BudgetError("it makes a text that is too large")

    def charge(self, size: int) -> None:
        """Pay for a string or list of ``size``."""
        self.check_size(size)
        self._left -= size
        if self._left < 0:
            raise BudgetError("it uses too much memory")

    def charge_result(self, value: object) -> None:
        """Pay for what an operation made."""
        if isinstance(value, str):
            self.charge(len(value))
        elif isinstance(value, (list, tuple)):
            self.charge(len(value) + sum(len(item) for item in value if isinstance(item, str)))
        elif isinstance(value, dict):
            self.charge(len(value))

    def measure(self, value: object, depth: int = 0) -> int:
        """Nodes and characters of a value that something will walk; shared parts count each time."""
        self.tick()
        if isinstance(value, str):
            return 1 + len(value)
        if depth > _MAX_DEPTH:
            raise BudgetError("it nests values too deeply")
        size = 1
        if isinstance(value, dict):
            for key, item in value.items():
                size += self.measure(key, depth + 1) + self.measure(item, depth + 1)
                self.check_size(size)
        elif isinstance(value, (list, tuple, set, frozenset)):
            for item in value:
                size += self.measure(item, depth + 1)
                self.check_size(size)
        return size
