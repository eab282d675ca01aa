"""The scheduler's fixed limits: resolved numbers, no None, no units left open."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    num_blocks: int
    """Blocks in the KV pool."""
    block_tokens: int
    max_batch_size: int = 64
    """Sequences per step."""
    max_batch_tokens: int = 512
    """Tokens per step, decodes and prefill slices together."""
    prefill_chunk_tokens: int = 512
    """Tokens of one prompt per step."""
    batch_timeout_s: float = 0.0
    """How long an idle engine waits for a fuller first batch."""
    enable_prefix_cache: bool = True
    target_step_s: float = 0.1
    """Prefill slices shrink so that a step with decodes takes about this long."""
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in (
            "num_blocks",
            "block_tokens",
            "max_batch_size",
            "max_batch_tokens",
            "prefill_chunk_tokens",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    @property
    def num_slots(self) -> int:
        """Sequences that may run: each must be able to have one token in every step."""
        return min(self.max_batch_size, self.max_batch_tokens)
