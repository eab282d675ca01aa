"""What all endpoints of one server share: the frontend, the numbers it counts, and whether it drains.

One event loop owns it; only ``heartbeat`` and the client are read by other threads.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from plait.config.server import ServerConfig
from plait.errors import ShuttingDownError
from plait.frontend import Frontend, Generation
from plait.metrics import Counter, Gauge, Histogram, MetricsPage
from plait.server.body import BodyRoom
from plait.types import Health

# The event loop runs once a second when nothing else happens.
STUCK_AFTER_S = 10.0
# Of request bodies that have not arrived in full, of all clients together.
MAX_ARRIVING_BYTES = 64 << 20


class ServerMetrics:
    """What the server counts; the engine counts the rest."""

    def __init__(self, frontend: Frontend) -> None:
        self.requests = Counter("http_requests", "Replies by endpoint and status.", ("endpoint", "status"))
        self.disconnects = Counter("client_disconnects", "Requests whose client left before the end.")
        self.prompt_tokens = Counter("server_prompt_tokens", "Prompt tokens of admitted requests.")
        self.completion_tokens = Counter("server_completion_tokens", "Tokens delivered to clients.")
        self.active = Gauge("http_active_requests", "Requests that are being served.")
        self.queue_time = Histogram(
            "prepare_seconds",
            "From the arrival of a request to its submission: template, tokenizer and their queue.",
        )
        self.first_token = Histogram(
            "time_to_first_token_seconds", "From the arrival of a request to its first token."
        )
        self.inter_token = Histogram("inter_token_latency_seconds", "Between two tokens of one choice.")
        self.end_to_end = Histogram("request_seconds", "From the arrival of a request to its end.")
        self.page = MetricsPage(
            "plait",
            [value for value in vars(self).values() if isinstance(value, Counter | Gauge | Histogram)],
            frontend.client.metrics,
        )


class ServerState:
    """INVARIANT: ``num_active`` returns to 0 after every request, whatever ended it."""

    def __init__(self, frontend: Frontend, config: ServerConfig) -> None:
        self.frontend = frontend
        self.config = config
        self.model_name = config.served_model_name or frontend.info.model_name
        self.started_at = int(time.time())
        self.metrics = ServerMetrics(frontend)
        self.is_draining = False
        self.refuses_work = False
        self.is_stopping_now = False
        self.num_active = 0
        self.body_room = BodyRoom(max(MAX_ARRIVING_BYTES, 2 * config.max_body_bytes))
        self.heartbeat = time.monotonic()
        """When the event loop last ran; written by the loop once a second, read by the health thread."""
        self._generations: set[Generation] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def admit(self) -> None:
        """Raises ShuttingDownError."""
        if self.refuses_work:
            raise ShuttingDownError("The server is shutting down.", retry_after_s=self.config.retry_after_s)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Counts one request that a drain waits for."""
        self.num_active += 1
        self.metrics.active.value = self.num_active
        self._idle.clear()
        try:
            yield
        finally:
            self.num_active -= 1
            self.metrics.active.value = self.num_active
            if self.num_active == 0:
                self._idle.set()

    @contextmanager
    def running(self, generation: Generation) -> Iterator[Generation]:
        """Ends the generation on leaving, and lets ``abort_all`` find it meanwhile."""
        self._generations.add(generation)
        try:
            with generation:
                yield generation
        finally:
            self._generations.discard(generation)

    async def wait_idle(self, timeout_s: float) -> bool:
        """Whether no request is active, after at most ``timeout_s``."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def abort_all(self) -> None:
        """Running generations end within a step; their clients are told so."""
        for generation in self._generations:
            generation.abort()

    def health(self) -> Health:
        """The engine's health, not ready while draining, no progress while the event loop is stuck. Any thread."""
        health = self.frontend.client.health()
        stuck_s = time.monotonic() - self.heartbeat
        if stuck_s > STUCK_AFTER_S:
            return replace(
                health, is_progressing=False, detail=f"the event loop has not run for {stuck_s:.0f} s"
            )
        if self.is_draining and health.is_ready:
            return replace(health, is_ready=False, detail="draining")
        return health
