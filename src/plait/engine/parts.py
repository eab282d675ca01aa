"""What an EngineCore is put together from, as Protocols: native parts in service, fakes in tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from plait.scheduler import KvBlocks, StepOutcome


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


class StepInput(Protocol):
    """The native StepInput; setting a list copies it."""

    step_id: int
    token_ids: list[int]
    seq_slots: list[int]
    query_starts: list[int]
    context_lens: list[int]
    block_tables: list[list[int]]
    sample_rows: list[int]
    sample_slots: list[int]
    copies: list[tuple[int, int]]
    slot_starts: list[Any]
    scores: list[tuple[int, int, int]]


class Executor(Protocol):
    """The compute thread. Rings the main bell when a result is ready; results come in step order."""

    def submit(self, step: Any, /) -> bool:
        """False: its ring is full."""

    def pop_results(self) -> list[Any]:
        """StepOutcomes that are ready; never waits."""

    def stop(self) -> None:
        """Finish the submitted steps and join. Idempotent."""


NewRing = Callable[[int, Any], Ring]
"""(capacity, bell)."""


@dataclass(frozen=True, slots=True)
class EngineParts:
    executor: Executor
    kv: KvBlocks
    main_bell: Bell
    """The bell that ``executor`` rings."""
    new_bell: Callable[[], Bell]
    new_mpsc_ring: NewRing
    new_spsc_ring: NewRing
    new_step: Callable[[], StepInput]
    new_slot_start: Callable[..., Any]


__all__ = ["Bell", "EngineParts", "Executor", "NewRing", "Ring", "StepInput", "StepOutcome"]
