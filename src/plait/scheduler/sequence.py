"""One choice of a request: its tokens, where it stands, what it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plait.scheduler.request import RequestState

# States. A sequence that is preempted while steps that use it are in flight gives slot and blocks back at once,
# but waits again (PREEMPTING) only when the tokens of those steps are known.
PLANNED = 0  # a choice that will be forked when the prompt is computed
WAITING = 1
RUNNING = 2
PREEMPTING = 3
FINISHED = 4

Rank = tuple[int, int, int]


class Sequence:
    """Mutable; owned by the scheduler. Prefill and decode are one thing: positions not yet given to a step.

    ``len(tokens) + num_pending`` positions have a token (the pending ones are being sampled), the first
    ``num_scheduled`` of them were given to steps.
    """

    __slots__ = (
        "block_table",
        "capacity",
        "has_left_queue",
        "has_output",
        "index",
        "max_len",
        "num_committed",
        "num_in_flight",
        "num_pending",
        "num_prompt",
        "num_scheduled",
        "rank",
        "request",
        "seed",
        "seq_id",
        "slot",
        "state",
        "tokens",
    )

    def __init__(self, request: RequestState, index: int, seq_id: int, seed: int) -> None:
        self.request = request
        self.index = index
        self.seq_id = seq_id
        self.seed = seed
        self.rank: Rank = (request.priority, request.arrival, index)
        self.tokens: list[int] = request.prompt if index == 0 else []
        self.num_prompt = request.num_prompt
        self.max_len = request.num_prompt + request.max_tokens
        self.state = PLANNED
        self.has_output = False
        self.has_left_queue = False
        """Had a slot, or ended without."""
        self.slot = -1
        self.block_table: list[int] = []
        self.reset()

    def reset(self) -> None:
        """Back to "nothing computed", as before the first step."""
        self.num_scheduled = 0
        self.num_committed = 0
        self.num_pending = 0
        self.num_in_flight = 0
        self.capacity = 0
        """Positions below this may be written without asking the KV manager."""

    @property
    def num_produced(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def prompt_ids(self) -> list[int]:
        return self.tokens[: self.num_prompt]

    @property
    def output_ids(self) -> list[int]:
        return self.tokens[self.num_prompt :]
