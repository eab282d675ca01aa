"""One client's connection: HTTP parsed by httptools under uvicorn's protocol, with bounds that those lack.

What a connection may cost: one request head or MAX_HEAD_BYTES of anything else that is no body, the body until its
endpoint refuses it, MAX_HELD_BYTES of requests that wait for earlier replies. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httptools
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from plait.server.endpoint import JSON_HEADERS
from plait.server.errors import HttpError
from plait.server.replies import encode

MAX_HEAD_BYTES = 64 << 10
"""Of a request's head; also of a chunk's size line and of trailers."""
HEADER_COST_BYTES = 32
"""What a header counts more than its bytes, for the objects that it becomes."""
MAX_HELD_BYTES = 64 << 10
PIECE_BYTES = 4 << 10
"""The parser gets no more at once, so a piece of the smallest requests is only some hundred of them."""
LINGER_S = 2.0
"""How long a client that still sends is heard out after the last reply, so that no reset destroys the reply."""

LINGER_BYTES = 64 << 20
"""How much of it is heard: throwing away at full speed would keep the event loop busy."""


class Flow(FlowControl):
    is_held = False

    def resume_reading(self) -> None:
        if not self.is_held:
            super().resume_reading()

    def hold(self) -> None:
        self.is_held = True
        self.pause_reading()

    def release(self) -> None:
        self.is_held = False
        self.resume_reading()


class Connection(HttpToolsProtocol):
    """Requests are parsed one piece ahead of what runs; the rest waits as bytes.

    INVARIANT: a refusal is written after the replies to earlier requests, never into one.
    """

    flow: Flow
    head_timer: asyncio.TimerHandle | None = None
    linger_timer: asyncio.TimerHandle | None = None
    num_unsent = 0
    """Bytes that the client had not read at the last look."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = Flow(transport)
        self._running: RequestResponseCycle | None = None
        self._refusal: HttpError | None = None
        self._held = bytearray()
        self._num_overhead = 0
        """Bytes parsed since the last body byte or the last end of a head or message."""
        self._num_ignored = 0
        self._is_in_head = False
        self._lingers_after_reply = False
        self._has_eof = False
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._unset_keepalive_if_required()
        if self.linger_timer is not None:
            self.linger_timer.cancel()
        self._give_up(self._running)
        self._held.clear()
        self.pipeline.clear()
        super().connection_lost(exc)

    # What comes in

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None or self.linger_timer is not None:
            self._num_ignored += len(data)
            if self._num_ignored > LINGER_BYTES:
                self.flow.hold()
            return
        if self.pipeline or self._held:
            self._hold(data)
        else:
            self._feed(data)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Whether the connection stays open for the replies to what is complete.

        A client that has left looks the same, so whatever waits for the engine ends here (``_hear``).
        """
        is_whole = self._is_busy() and self.cycle is not None and not self.cycle.more_body
        if not is_whole or self._refusal is not None:
            return False
        self._has_eof = True
        if self._running is not None:
            self._running.message_event.set()
        return True

    def _feed(self, data: bytes) -> None:
        view = memoryview(data)
        start = 0
        while start < len(view) and not self.pipeline:
            size = min(PIECE_BYTES, MAX_HEAD_BYTES - self._num_overhead)
            piece = view[start : start + size]
            self._num_overhead += len(piece)
            try:
                self.parser.feed_data(piece)
                start += len(piece)
            except httptools.HttpParserUpgrade as upgrade:
                start += upgrade.args[0]  # upgrades are not offered: the rest is HTTP again
            except httptools.HttpParserError:
                self._refuse(HttpError(400, "This is not a valid HTTP request.", code="invalid_http"))
                return
            if self._num_overhead >= MAX_HEAD_BYTES:
                message = f"The request's head or trailer is larger than {MAX_HEAD_BYTES} bytes."
                self._refuse(HttpError(431, message, code="head_too_large"))
                return
        if start < len(view):
            self._hold(bytes(view[start:]))

    def _hold(self, data: bytes) -> None:
        self._held += data
        if len(self._held) > MAX_HELD_BYTES:
            self.flow.hold()

    def _feed_held(self) -> None:
        if self.transport.is_closing() or self._refusal is not None or self.pipeline:
            return
        data, self._held = bytes(self._held), bytearray()
        self._feed(data)
        if len(self._held) <= MAX_HELD_BYTES:
            self.flow.release()

    # Called by the parser

    def on_message_begin(self) -> None:
        super().on_message_begin()
        extensions: dict[Any, Any] = {"plait.cut": self.transport.abort}
        self.scope["extensions"] = extensions
        self._is_in_head = True
        self._unset_keepalive_if_required()
        self._expect_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_in_head:  # trailers are not asked for
            self._num_overhead += HEADER_COST_BYTES
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._stop_timer()
        self._is_in_head = False
        self._num_overhead = 0
        super().on_headers_complete()
        # A client that leaves is only seen while its connection is read.
        self.flow.resume_reading()

    def on_body(self, body: bytes) -> None:
        self._num_overhead = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._num_overhead = 0
        super().on_message_complete()

    # Running requests

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGIApp) -> None:  # type: ignore[override]
        self._running = cycle
        has_read_body = False

        async def hear(receive: Receive) -> Message:
            nonlocal has_read_body
            if has_read_body and self._has_eof:
                return {"type": "http.disconnect"}
            message = await receive()
            has_read_body = not message.get("more_body", False)
            return message

        async def say(send: Send, message: Message) -> None:
            if message["type"] != "http.response.start" or not cycle.more_body:
                await send(message)
                return
            # What is left of the body is not worth reading: the connection ends with this reply.
            cycle.keep_alive = False
            await send(message)
            cycle.keep_alive = True
            self._lingers_after_reply = True

        async def run(scope: Scope, receive: Receive, send: Send) -> None:
            await app(scope, lambda: hear(receive), lambda message: say(send, message))

        super()._start_asgi_task(cycle, run)  # type: ignore[arg-type]

    def on_response_complete(self) -> None:
        if self._lingers_after_reply:
            self.server_state.total_requests += 1
            self._linger()
            return
        super().on_response_complete()
        if self.transport.is_closing():
            self.timeout_keep_alive_handler()
        elif not self._is_busy():
            self._when_idle()

    def _when_idle(self) -> None:
        if self._refusal is not None:
            self._send_refusal(self._refusal)
        elif self._held:
            self.loop.call_soon(self._feed_held)
        elif self._has_eof:
            self._close()

    def _is_busy(self) -> bool:
        running = self._running
        is_running = running is not None and not (running.response_complete or running.disconnected)
        return is_running or bool(self.pipeline)

    @staticmethod
    def _give_up(cycle: RequestResponseCycle | None) -> None:
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()

    # Ends

    def _refuse(self, error: HttpError) -> None:
        """Read no more; reply with ``error`` after the replies that are due."""
        self._refusal = error
        self._stop_timer()
        self._held.clear()
        faulty = self.cycle
        if faulty is not None and faulty.more_body and not faulty.response_started:
            if self.pipeline and self.pipeline[0][0] is faulty:
                self.pipeline.popleft()
            else:
                self._give_up(faulty)
        if not self._is_busy():
            self._send_refusal(error)

    def _send_refusal(self, error: HttpError) -> None:
        if self.transport.is_closing():
            return
        body = encode(error.body())
        headers = [
            *self.server_state.default_headers,
            *JSON_HEADERS,
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
        self.transport.write(STATUS_LINE[error.status] + lines + b"\r\n" + body)
        self._linger()

    def _linger(self) -> None:
        """No reply comes any more; what the client still sends is thrown away for a while."""
        self._stop_timer()
        self._unset_keepalive_if_required()
        self._held.clear()
        if self.transport.is_closing():
            return
        self.linger_timer = self.loop.call_later(LINGER_S, self.transport.abort)
        self.transport.write_eof()
        if self._num_ignored <= LINGER_BYTES:
            self.flow.release()

    def _close(self) -> None:
        """When the client has read what was written, or at the latest when it has read nothing for a while."""
        self.transport.close()
        self.timeout_keep_alive_handler()

    def timeout_keep_alive_handler(self) -> None:
        unsent = self.transport.get_write_buffer_size()
        if not unsent:
            super().timeout_keep_alive_handler()
        elif unsent == self.num_unsent:
            self.transport.abort()
        else:
            self.num_unsent = unsent
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _expect_head(self) -> None:
        self._stop_timer()
        self.head_timer = self.loop.call_later(self.timeout_keep_alive, self._head_is_late)

    def _head_is_late(self) -> None:
        if self._is_busy():  # the rest of it may be held
            self._expect_head()
        else:
            self._close()

    def _stop_timer(self) -> None:
        if self.head_timer is not None:
            self.head_timer.cancel()
            self.head_timer = None
