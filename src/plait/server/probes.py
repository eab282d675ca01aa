"""The second listener: health replies from a thread of their own, however busy the server's event loop is.

Knows the health paths and just enough HTTP for them. Must not wait for the server's loop or the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from http import HTTPStatus

from plait.server.health import HEALTH_PATHS, health_reply
from plait.server.replies import encode
from plait.types import Health

MAX_HEAD_BYTES = 16 << 10
TIMEOUT_S = 5.0


class HealthThread:
    """Serves HEALTH_PATHS on a bound socket until ``stop``. One request per connection."""

    def __init__(self, source: Callable[[], Health], listener: socket.socket) -> None:
        self.source = source
        """Called on this thread for every reply; may be replaced at any time."""
        self._listener = listener
        self._is_leaving = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="plait-health", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns when the thread has ended. Idempotent."""
        if self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # it has just closed its loop
                self._loop.call_soon_threadsafe(self._is_leaving.set)
            self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve_until_told())
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.run_until_complete(asyncio.sleep(0))
        finally:
            self._loop.close()

    async def _serve_until_told(self) -> None:
        server = await asyncio.start_server(self._serve, sock=self._listener, limit=MAX_HEAD_BYTES)
        await self._is_leaving.wait()
        server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._reply(head))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.transport.abort()
        finally:
            writer.close()

    def _reply(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0].decode("latin-1")
        status: int
        if path not in HEALTH_PATHS:
            status, body = HTTPStatus.NOT_FOUND, b'{"detail":"only health paths are served here"}'
        elif method not in (b"GET", b"HEAD"):
            status, body = HTTPStatus.METHOD_NOT_ALLOWED, b'{"detail":"only GET and HEAD"}'
        else:
            status, content = health_reply(self.source(), path)
            body = encode(content)
        lines = (
            f"HTTP/1.1 {int(status)} {HTTPStatus(status).phrase}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            "connection: close",
            "\r\n",
        )
        return "\r\n".join(lines).encode() + (b"" if method == b"HEAD" else body)
