"""EngineClient: all that a front end may ask of an engine, wherever the engine runs. Level 1.

Forms: in-process (engine), later over rings (worker) and routed (router). Knows ids, never text or HTTP.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable

from plait.types import EngineInfo, GenerateRequest, Health, TokenOutput

OutputCallback = Callable[[TokenOutput], None]


class EngineClient(ABC):
    """Every method is thread-safe and none waits for a step."""

    @property
    @abstractmethod
    def info(self) -> EngineInfo: ...

    @abstractmethod
    def submit(self, request: GenerateRequest, on_output: OutputCallback) -> int:
        """Queue a request and return its id (ours, never the client's).

        ``on_output`` is called on the engine's I/O thread, in order; it must be quick and must not raise.
        Each of the n choices ends with exactly one output that has a finish_reason, also after an abort or an
        error.

        Raises:
            InvalidRequestError: the request can never be served; ``param`` names the field.
            OverloadedError: the queue is full.
            EngineDeadError: the engine is gone.
        """

    @abstractmethod
    def abort(self, request_id: int) -> None:
        """End a request within one step. Idempotent; unknown ids are ignored."""

    @abstractmethod
    def health(self) -> Health: ...

    @abstractmethod
    def metrics(self) -> dict[str, float]:
        """A snapshot: counters end in ``_total``; names are those of the metrics without ``plait_``."""

    @abstractmethod
    def close(self) -> None:
        """Stop the engine: running requests end with FinishReason.ABORT. Idempotent."""


async def stream_outputs(client: EngineClient, request: GenerateRequest) -> AsyncIterator[TokenOutput]:
    """Submit ``request`` and yield its outputs; leaving the iterator early aborts the request."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[TokenOutput] = asyncio.Queue()

    def on_output(output: TokenOutput) -> None:
        try:
            loop.call_soon_threadsafe(queue.put_nowait, output)
        except RuntimeError:
            client.abort(output.request_id)  # the loop is closed: nobody listens

    request_id = client.submit(request, on_output)
    num_running = request.sampling.n
    try:
        while num_running:
            output = await queue.get()
            if output.finish_reason is not None:
                num_running -= 1
            yield output
    finally:
        if num_running:
            client.abort(request_id)
