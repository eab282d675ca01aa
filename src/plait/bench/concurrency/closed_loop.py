"""Clients that wait for their answer before they ask again, cheap enough not to be what is measured.

Outputs arrive on the engine's thread, which only notes them; one driver thread, the caller's, submits. Both add up
what they cost, so that a result can say what share of the machine its own load took.
"""

from __future__ import annotations

import heapq
import queue
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from plait.bench.concurrency.scenario import SlowClients
from plait.bench.concurrency.work import WorkItem
from plait.client import EngineClient
from plait.errors import EngineDeadError, PlaitError
from plait.types import FinishReason, TokenOutput

_HEALTH_INTERVAL_S = 2.0


class Turn:
    """One request on its way. ``take`` runs on the engine's thread, everything else on the driver's."""

    __slots__ = (
        "_events",
        "_wants_abort",
        "arrivals_ns",
        "begin_ns",
        "callback_ns",
        "client_idx",
        "end_ns",
        "error",
        "finish_reason",
        "item",
        "num_cached_tokens",
        "request_id",
        "submitted_ns",
        "token_ids",
    )

    def __init__(self, item: WorkItem, client_idx: int, events: Events) -> None:
        self.item = item
        self.client_idx = client_idx
        self.token_ids: list[int] = []
        self.arrivals_ns: list[int] = []
        """When each output with tokens came."""
        self.begin_ns = 0
        self.submitted_ns = 0
        """When submit() returned."""
        self.end_ns = 0
        self.callback_ns = 0
        self.request_id = 0
        self.num_cached_tokens = 0
        self.finish_reason: FinishReason | None = None
        self.error: str | None = None
        self._events = events
        self._wants_abort = item.abort_after_tokens is not None

    @property
    def is_done(self) -> bool:
        """Ended by itself, with all the tokens that were asked for."""
        return self.finish_reason is FinishReason.LENGTH

    def take(self, output: TokenOutput) -> None:
        now = time.monotonic_ns()
        if output.token_ids:
            self.arrivals_ns.append(now)
            self.token_ids.extend(output.token_ids)
            if not self.num_cached_tokens:
                self.num_cached_tokens = output.num_cached_tokens
        if output.finish_reason is not None:
            self.end_ns = now
            self.finish_reason = output.finish_reason
            self.error = output.error
            self._events.put((self, True))
        elif self._wants_abort and len(self.token_ids) >= (self.item.abort_after_tokens or 0):
            self._wants_abort = False
            self._events.put((self, False))
        self.callback_ns += time.monotonic_ns() - now


Events = queue.SimpleQueue[tuple[Turn, bool]]
"""(turn, whether it has ended; otherwise it is to be aborted)."""


@dataclass(slots=True)
class LoopResult:
    begin_ns: int
    end_ns: int = 0
    """The last output of the last request."""
    turns: list[Turn] = field(default_factory=list)
    """In the order of the work."""
    driver_cpu_ns: int = 0


def run_closed_loop(
    client: EngineClient, work: Sequence[WorkItem], num_clients: int, slow: SlowClients | None = None
) -> LoopResult:
    """Returns when every request has ended. Blocks; the work is handed out in order, to whoever is free.

    Raises:
        EngineDeadError: the engine stopped or makes no progress.
        PlaitError: a request failed or ended early.
    """
    loop = _Loop(client, work, slow)
    cpu = time.thread_time_ns()
    result = loop.run(num_clients)
    result.driver_cpu_ns = time.thread_time_ns() - cpu
    result.end_ns = max(turn.end_ns for turn in result.turns)
    return result


class _Loop:
    def __init__(self, client: EngineClient, work: Sequence[WorkItem], slow: SlowClients | None) -> None:
        self._client = client
        self._work = work
        self._slow = slow
        self._events: Events = queue.SimpleQueue()
        self._reading: list[tuple[int, int]] = []
        """(when it has read the last output, client) of slow clients; a heap."""
        self._num_open = 0
        self._result = LoopResult(time.monotonic_ns())

    def run(self, num_clients: int) -> LoopResult:
        for client_idx in range(num_clients):
            self._ask(client_idx)
        while self._num_open or self._reading:
            event = self._next_event()
            if event is None:
                continue
            turn, is_end = event
            if is_end:
                self._end(turn)
            else:
                self._client.abort(turn.request_id)
        return self._result

    def _next_event(self) -> tuple[Turn, bool] | None:
        """The next turn that ended or is to be aborted; None: a slow client went on, or nothing happened."""
        timeout_s = _HEALTH_INTERVAL_S
        if self._reading:
            due_s = (self._reading[0][0] - time.monotonic_ns()) / 1e9
            if due_s <= 0:
                self._ask(heapq.heappop(self._reading)[1])
                return None
            timeout_s = min(timeout_s, due_s)
        try:
            return self._events.get(timeout=timeout_s)
        except queue.Empty:
            health = self._client.health()
            if not (health.is_alive and health.is_progressing):
                raise EngineDeadError(
                    f"the engine makes no progress: {health.detail or 'it is gone'}"
                ) from None
            return None

    def _ask(self, client_idx: int) -> None:
        turns = self._result.turns
        if len(turns) >= len(self._work):
            return
        turn = Turn(self._work[len(turns)], client_idx, self._events)
        turns.append(turn)
        self._num_open += 1
        turn.begin_ns = time.monotonic_ns()
        turn.request_id = self._client.submit(turn.item.request, turn.take)
        turn.submitted_ns = time.monotonic_ns()

    def _end(self, turn: Turn) -> None:
        self._num_open -= 1
        may_be_aborted = turn.item.abort_after_tokens is not None
        if not turn.is_done and not (may_be_aborted and turn.finish_reason is FinishReason.ABORT):
            raise PlaitError(f"a request ended with {turn.finish_reason}: {turn.error or 'no reason given'}")
        slow = self._slow
        if slow is None or (turn.client_idx + 1) % slow.every:
            self._ask(turn.client_idx)
            return
        read_ns = 0
        for arrival_ns in turn.arrivals_ns:
            read_ns = max(read_ns, arrival_ns) + int(slow.interval_s * 1e9)
        heapq.heappush(self._reading, (max(read_ns, turn.end_ns), turn.client_idx))
