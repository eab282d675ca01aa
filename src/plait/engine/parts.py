"""What an EngineCore is put together from. What is a Protocol here can be a fake in tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from plait import _native


class Bell(Protocol):
    """Wakes one sleeping thread; native.sync's Doorbell."""

    def ring(self) -> None: ...

    def epoch(self) -> int: ...

    def wait(self, seen: int, timeout_s: float | None = None) -> bool:
        """Sleep until the epoch is not ``seen``, without the GIL."""


class Ring(Protocol):
    """A bounded ring of objects that rings a bell after each push."""

    def try_push(self, item: Any, /) -> bool: ...

    def pop_all(self) -> list[Any]: ...

    def __len__(self) -> int: ...


class Executor(Protocol):
    """The compute thread. Rings the main bell when a result is ready; results come in step order."""

    @property
    def gap_ns(self) -> int:
        """Nanoseconds between steps while there was something to compute. Any thread, as the next ones."""

    @property
    def max_gap_ns(self) -> int: ...

    @property
    def num_queued_steps(self) -> int:
        """Submitted and not begun."""

    @property
    def num_queued_results(self) -> int:
        """Ready and not popped."""

    def submit(self, step: _native.StepInput, /) -> bool:
        """Takes the step's content. False: its ring is full, and the step is unchanged."""

    def pop_results(self) -> list[_native.StepResult]:
        """Those that are ready; never waits."""

    def stop(self) -> None:
        """Finish the submitted steps and join. Idempotent."""


NewRing = Callable[[int, Any], Ring]
"""(capacity, bell)."""


class EngineParts(msgspec.Struct, frozen=True):
    executor: Executor
    kv: _native.KvManager
    main_bell: Bell
    """The bell that ``executor`` rings, if it runs steps on a thread of its own."""
    new_bell: Callable[[], Bell]
    new_mpsc_ring: NewRing
    new_spsc_ring: NewRing
    swap: _native.KvSwap | None = None
    """Where the KV blocks of displaced requests are saved; rings ``main_bell``. None: they are computed again."""
    kv_block_bytes: int = 0
    """Of one KV block; 0 without ``swap``."""
    run_next: Callable[[], bool] | None = None
    """Of an executor without a thread: runs the oldest submitted step on the calling one; False: there is none."""
    compute_cpu: int = -1
    """The CPU that the compute thread is pinned to, -1: none. Threads that wake when a step ends keep off it."""
