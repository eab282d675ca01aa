"""What the scheduler asks of a KV manager: accounting only, never bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class KvBlocks(Protocol):
    """Blocks of KV cache by sequence. Called by one thread; every call is quick."""

    @property
    def num_free_blocks(self) -> int:
        """Blocks that try_grow can still hand out, those that only the prefix cache keeps included."""

    def open_sequence(self, seq_id: int, token_ids: Sequence[int], salt: bytes, use_cache: bool) -> int:
        """Open a sequence and return how many of its first tokens are cached (fewer than all of them)."""

    def try_grow(self, seq_id: int, num_tokens: int, first_write: int) -> bool:
        """Room for ``num_tokens`` positions and leave to write those from ``first_write``: all or nothing."""

    def fork(self, parent_id: int, child_id: int) -> None:
        """Open ``child_id`` on all blocks of ``parent_id``; a later try_grow copies what both would write."""

    def commit(self, seq_id: int, token_ids: Sequence[int]) -> None:
        """The next positions are computed and hold these tokens. May replace blocks by equal ones."""

    def close_sequence(self, seq_id: int) -> None: ...

    def block_table(self, seq_id: int) -> list[int]: ...

    def take_copies(self) -> list[tuple[int, int]]:
        """Block copies (source, target) that must be done, in order, before the next step's writes."""
