"""The second listener: health replies from a thread of their own, however busy the server's event loop is.

Knows the health paths and just enough HTTP for them. Must not wait for the server's loop or the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import threading
from collections.abc import Callable
from http import HTTPStatus

from plait.server.health import HEALTH_PATHS, health_reply
from plait.server.replies import encode
from plait.types import Health

_log = logging.getLogger(__name__)

MAX_HEAD_BYTES = 16 << 10
TIMEOUT_S = 5.0
_NO_ROOM = frozenset([errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
SCARCE_TIMEOUT_S = 1.0
"""Of a probe that uses the descriptor kept for it: the next one waits meanwhile."""
RETRY_S = 0.2


def _any_descriptor() -> int:
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


class HealthThread:
    """Serves HEALTH_PATHS on a bound socket until ``stop``. One request per connection."""

    def __init__(self, source: Callable[[], Health], listener: socket.socket) -> None:
        self.source = source
        """Called on this thread for every reply; may be replaced at any time."""
        self._listener = listener
        self._is_leaving = asyncio.Event()
        self._reserve: int | None = _any_descriptor()
        """Given up for a probe when the process has no other file descriptor left."""
        self._has_warned = False
        self._connections: set[asyncio.Task[None]] = set()
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
            self._give_reserve()

    async def _serve_until_told(self) -> None:
        self._listener.setblocking(False)
        accepting = self._loop.create_task(self._accept_all())
        await self._is_leaving.wait()
        accepting.cancel()

    async def _accept_all(self) -> None:
        while True:
            try:
                client, _ = await self._loop.sock_accept(self._listener)
            except OSError as error:
                if error.errno in _NO_ROOM:
                    await self._serve_without_room(error)
                else:
                    await asyncio.sleep(RETRY_S)  # most likely the client has gone; never without a pause
                continue
            task = self._loop.create_task(self._serve(client, TIMEOUT_S))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

    async def _serve_without_room(self, error: OSError) -> None:
        """No file descriptor is left: one probe gets the one that was kept, the next one waits for its end."""
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "no connection to the health port can be accepted (%s): raise ulimit -n, or let clients keep fewer "
                "connections; probes are answered one at a time meanwhile",
                error.strerror,
            )
        self._give_reserve()
        try:
            client, _ = self._listener.accept()
        except OSError:
            await asyncio.sleep(RETRY_S)  # another thread took it, or nobody waits any more
        else:
            await self._serve(client, SCARCE_TIMEOUT_S)
        with contextlib.suppress(OSError):
            self._reserve = _any_descriptor()

    def _give_reserve(self) -> None:
        if self._reserve is not None:
            os.close(self._reserve)
            self._reserve = None

    async def _serve(self, client: socket.socket, timeout_s: float) -> None:
        reader, writer = await asyncio.open_connection(sock=client, limit=MAX_HEAD_BYTES)
        try:
            async with asyncio.timeout(timeout_s):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._reply(head))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.transport.abort()
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

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
