"""The memory ledger: everything large that an engine holds, entered before it is allocated."""

from __future__ import annotations

import msgspec

from plait.errors import ConfigError


def format_bytes(num_bytes: float) -> str:
    """For people: ``"93.8 MiB"``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(num_bytes) < 1024:
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} TiB"


class MemoryLedger(msgspec.Struct):
    """Sums entries under a budget. Not thread-safe: filled once, at start."""

    budget_bytes: int
    reserve_bytes: int = 0
    """What is left to the rest of the machine."""
    entries: dict[str, int] = msgspec.field(default_factory=dict)

    @property
    def remaining_bytes(self) -> int:
        return self.budget_bytes - self.reserve_bytes - sum(self.entries.values())

    def enter(self, name: str, num_bytes: int, setting: str | None = None) -> None:
        """Add an entry; ``setting``: what to lower when it does not fit.

        Raises:
            ConfigError: the sum exceeds the budget; the message shows the whole sum.
        """
        self.entries[name] = self.entries.get(name, 0) + num_bytes
        if self.remaining_bytes < 0:
            excess, budget = format_bytes(-self.remaining_bytes), format_bytes(self.budget_bytes)
            advice = f"; lower {setting}" if setting else ""
            raise ConfigError(
                f"{name} does not fit into memory: {self.describe()} is {excess} more than {budget}{advice}"
            )

    def describe(self) -> str:
        """``"weights 93.8 MiB + kv_cache 1.0 GiB + reserve 512.0 MiB"``."""
        parts = [f"{name} {format_bytes(size)}" for name, size in self.entries.items()]
        if self.reserve_bytes:
            parts.append(f"reserve {format_bytes(self.reserve_bytes)}")
        return " + ".join(parts) or "nothing"
