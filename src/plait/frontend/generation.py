"""Running generations: outputs come in on the engine's I/O thread, deltas go out where they are consumed.

Two forms with one core: ``Generation`` is consumed on an event loop, ``SyncGeneration`` on any thread. Both
convert tokens to text on the consuming side, so the I/O thread only appends to a queue.
"""

from __future__ import annotations

import asyncio
import queue
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Executor
from types import TracebackType

from plait.client import EngineClient
from plait.frontend.choice import RequestText
from plait.frontend.delta import TextDelta
from plait.tokenizer import Tokenizer
from plait.types import GenerateRequest, TokenOutput

IndexedOutput = tuple[int, TokenOutput]

# Converting more prompt logprobs than this takes long enough to delay other clients' tokens.
MAX_LOGPROBS_ON_LOOP = 256


class Mailbox:
    """Carries outputs from other threads into one event loop with one wake-up per burst, not per token."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._items: deque[tuple[Generation, int, TokenOutput]] = deque()
        self._is_wake_due = False

    def put(self, generation: Generation, request_idx: int, output: TokenOutput) -> None:
        """Called on any thread. Raises RuntimeError when the loop is closed."""
        # A wake-up that was due when the loop closed never comes, so the flag alone does not tell.
        if self._loop.is_closed():
            self._items.clear()
            raise RuntimeError("the event loop is closed")
        self._items.append((generation, request_idx, output))
        if not self._is_wake_due:
            self._is_wake_due = True
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        # INVARIANT: the flag falls before the queue is emptied, so an item put later always finds a wake-up.
        self._is_wake_due = False
        while self._items:
            generation, request_idx, output = self._items.popleft()
            generation.receive(request_idx, output)


class RunningRequests:
    """The requests of one generation: their engine ids and their text."""

    def __init__(
        self,
        client: EngineClient,
        tokenizer: Tokenizer,
        requests: Sequence[GenerateRequest],
        *,
        discard: bool,
    ) -> None:
        self._client = client
        self._requests = requests
        self._texts = [
            RequestText(tokenizer, request, idx, discard=discard) for idx, request in enumerate(requests)
        ]
        self._request_ids: dict[int, int] = {}

    @property
    def is_running(self) -> bool:
        return any(text.num_running for text in self._texts)

    def submit(self, on_output: Callable[[int, TokenOutput], None]) -> None:
        """Submit all or none."""
        try:
            for idx, request in enumerate(self._requests):
                self._request_ids[idx] = self._client.submit(request, self._make_callback(idx, on_output))
        except BaseException:
            self.abort()
            raise

    def _make_callback(
        self, request_idx: int, on_output: Callable[[int, TokenOutput], None]
    ) -> Callable[[TokenOutput], None]:
        def receive(output: TokenOutput) -> None:
            try:
                on_output(request_idx, output)
            except RuntimeError:
                self._client.abort(output.request_id)  # the loop is closed: nobody listens

        return receive

    def read_prompt(self, request_idx: int, output: TokenOutput) -> None:
        """The slow part of converting an output that holds prompt logprobs; any one thread."""
        self._texts[request_idx].read_prompt(output)

    def convert(self, items: Sequence[IndexedOutput]) -> list[TextDelta]:
        """The deltas of ``items``; those of one choice are merged, so a slow consumer gets few large ones."""
        merged: dict[tuple[int, int], TextDelta] = {}
        for request_idx, output in items:
            text = self._texts[request_idx]
            delta = text.feed(output)
            if delta is None:
                continue
            key = (request_idx, delta.index)
            merged[key] = merged[key].then(delta) if key in merged else delta
            if text.has_stopped_early and request_idx in self._request_ids:
                self._client.abort(self._request_ids[request_idx])
        return list(merged.values())

    def abort(self) -> None:
        for idx, request_id in self._request_ids.items():
            if self._texts[idx].num_running:
                self._client.abort(request_id)


class Generation:
    """Requests that run for one consumer on an event loop. Leave it (``with``) or call ``abort`` to end them.

    What is buffered for a slow consumer is bounded by max_tokens of its own requests.
    """

    def __init__(self, running: RunningRequests, mailbox: Mailbox, pool: Executor) -> None:
        """Submits.

        Args:
            pool: runs what would hold up the event loop.

        Raises:
            InvalidRequestError, OverloadedError, EngineDeadError: as EngineClient.submit.
        """
        self._running = running
        self._pool = pool
        self._pending: list[IndexedOutput] = []
        self._has_pending = asyncio.Event()
        running.submit(lambda idx, output: mailbox.put(self, idx, output))

    def receive(self, request_idx: int, output: TokenOutput) -> None:
        """Called by the mailbox on the event loop."""
        self._pending.append((request_idx, output))
        self._has_pending.set()

    async def next_batch(self) -> list[TextDelta]:
        """Wait for output; all deltas that are due, at most one per choice. Empty when all has ended."""
        while self._running.is_running:
            await self._has_pending.wait()
            for request_idx, output in self._pending:  # may grow meanwhile
                if len(output.prompt_logprobs) > MAX_LOGPROBS_ON_LOOP:
                    reading = self._pool.submit(self._running.read_prompt, request_idx, output)
                    await asyncio.wrap_future(reading)
            # From here to the return nothing waits: a cancelled call has taken nothing.
            self._has_pending.clear()
            items, self._pending = self._pending, []
            deltas = self._running.convert(items)
            if deltas:
                return deltas
        return []

    async def __aiter__(self) -> AsyncIterator[TextDelta]:
        while batch := await self.next_batch():
            for delta in batch:
                yield delta

    def abort(self) -> None:
        """End what still runs. Idempotent."""
        self._running.abort()

    def __enter__(self) -> Generation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.abort()


class SyncGeneration:
    """Requests that run for one consumer on a thread; iterate to get the deltas."""

    def __init__(self, running: RunningRequests) -> None:
        """Submits; raises as EngineClient.submit."""
        self._running = running
        self._queue: queue.SimpleQueue[IndexedOutput] = queue.SimpleQueue()
        running.submit(lambda idx, output: self._queue.put((idx, output)))

    def __iter__(self) -> Iterator[TextDelta]:
        try:
            while self._running.is_running:
                items = [self._queue.get()]
                while not self._queue.empty():
                    items.append(self._queue.get())
                yield from self._running.convert(items)
        finally:
            self._running.abort()

    def abort(self) -> None:
        self._running.abort()
