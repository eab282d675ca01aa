"""What plait changes in uvicorn: no ticking while idle, no signal handlers, connections with bounds."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Generator

import uvicorn
from starlette.applications import Starlette

from plait.config.server import ServerConfig
from plait.server.connection import Connection
from plait.server.ports import BACKLOG
from plait.server.state import ServerState

HEARTBEAT_S = 1.0
LEAVE_TIMEOUT_S = 2


class UvicornServer(uvicorn.Server):
    """Serves ``app`` on the running loop until ``leave``; wakes once a second while nothing happens."""

    def __init__(self, app: Starlette, state: ServerState, config: ServerConfig) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=Connection,
                ws="none",
                lifespan="off",
                interface="asgi3",
                loop="none",
                log_config=None,
                log_level="error",
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=config.keep_alive_s,
                timeout_graceful_shutdown=LEAVE_TIMEOUT_S,
                backlog=BACKLOG,
            )
        )
        self._state = state
        self._is_leaving = asyncio.Event()

    def leave(self) -> None:
        """Stop listening, close what is idle, give open replies a moment. Call on the loop."""
        self.should_exit = True
        self._is_leaving.set()

    async def main_loop(self) -> None:
        # uvicorn's own loop wakes ten times a second.
        while not await self.on_tick(0):
            self._state.heartbeat = time.monotonic()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_S):
                    await self._is_leaving.wait()

    @property
    def num_connections(self) -> int:
        return len(self.server_state.connections)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield
