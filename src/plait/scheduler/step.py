"""What goes to the compute thread and what comes back, as plain lists."""

from __future__ import annotations

from typing import Protocol

from plait.scheduler.sequence import Sequence


class StepPlan:
    """One step. The lists down to ``scores`` have the native StepInput's names, meanings and shapes."""

    __slots__ = (
        "block_tables",
        "context_lens",
        "copies",
        "forked",
        "num_prefill_tokens",
        "query_starts",
        "rows",
        "sample_rows",
        "sample_slots",
        "sampled",
        "scored",
        "scores",
        "seq_slots",
        "starts",
        "step_id",
        "token_ids",
        "wants_logprobs",
    )

    def __init__(self, step_id: int) -> None:
        self.step_id = step_id
        self.token_ids: list[int] = []
        self.seq_slots: list[int] = []
        self.query_starts: list[int] = [0]
        self.context_lens: list[int] = []
        self.block_tables: list[list[int]] = []
        self.sample_rows: list[int] = []
        self.sample_slots: list[int] = []
        self.copies: list[tuple[int, int]] = []
        self.scores: list[tuple[int, int, int]] = []
        self.starts: list[Sequence] = []
        """Sequences whose slot must be (re)started before the step."""
        self.rows: list[Sequence] = []
        """By entry of seq_slots."""
        self.sampled: list[Sequence] = []
        """By entry of sample_slots."""
        self.scored: list[Sequence] = []
        """By entry of scores."""
        self.forked: list[Sequence] = []
        """In ``sampled``, without rows of their own."""
        self.num_prefill_tokens = 0
        self.wants_logprobs = False


class StepOutcome(Protocol):
    """The native StepResult. Lists may be built anew on each access: read each once."""

    @property
    def step_id(self) -> int: ...
    @property
    def error(self) -> str: ...
    @property
    def tokens(self) -> list[int]: ...
    @property
    def logprobs(self) -> list[float]: ...
    @property
    def ranks(self) -> list[int]: ...
    @property
    def tops(self) -> list[list[tuple[int, float]]]: ...
    @property
    def scores(self) -> list[tuple[float, int, list[tuple[int, float]]]]: ...
    @property
    def begin_ns(self) -> int: ...
    @property
    def end_ns(self) -> int: ...
