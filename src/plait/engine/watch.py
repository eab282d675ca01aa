"""Tells of what goes wrong beside the requests while an engine runs: a trace or a swap file that cannot be written.

Runs on a thread of its own, which the engine has only where there is something to look at.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

_log = logging.getLogger(__name__)

LOOK_INTERVAL_S = 1.0
REPEAT_AFTER_S = 60.0


class Swap(Protocol):
    """native's KvSwap, for whoever only looks."""

    @property
    def last_error(self) -> str: ...

    def counters(self) -> dict[str, int]: ...


class SwapWatch:
    """Logs that KV blocks could not be saved or fetched: the first time, then once in REPEAT_AFTER_S at most."""

    def __init__(self, swap: Swap, clock: Callable[[], float] = time.monotonic) -> None:
        self._swap = swap
        self._clock = clock
        self._num_told = 0
        self._told_at: float | None = None

    def look(self) -> None:
        num_failures = self._swap.counters()["num_failures"]
        now = self._clock()
        is_due = self._told_at is None or now - self._told_at >= REPEAT_AFTER_S
        if num_failures == self._num_told or not is_due:
            return
        _log.warning(
            "KV blocks could not be saved or fetched (transfers that failed: %d): %s; their requests are computed "
            "again instead",
            num_failures - self._num_told,
            self._swap.last_error or "no reason is known",
        )
        self._num_told, self._told_at = num_failures, now


class Watch:
    """Calls each of ``looks`` every LOOK_INTERVAL_S, from start to stop. Without any there is no thread."""

    def __init__(self, looks: Sequence[Callable[[], None]]) -> None:
        self._looks = looks
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="plait-watch", daemon=True)

    def start(self) -> None:
        if self._looks:
            self._thread.start()

    def stop(self) -> None:
        """Looks a last time and joins. Idempotent."""
        self._is_stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._is_stopping.wait(LOOK_INTERVAL_S):
            self._look()
        self._look()

    def _look(self) -> None:
        for look in self._looks:
            try:
                look()
            except Exception:
                _log.exception("a look at the engine failed")
