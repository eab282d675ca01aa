"""Endpoint: an ASGI application that runs one handler; Call: what a handler may do.

Here, once for all endpoints: the API key, draining, errors as replies, clients that leave, metrics.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace
from starlette.types import Receive, Scope, Send

from plait.server.body import convert, decode_json, read_body
from plait.server.errors import ClientGoneError, HttpError, to_http_error
from plait.server.replies import encode
from plait.server.state import ServerState
from plait.server.tenant import tenant_of
from plait.types import GenerateRequest

S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T")

JSON_HEADERS = [(b"content-type", b"application/json")]
SSE_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
# Parsing more than this takes long enough to delay other clients' events.
MAX_BYTES_ON_LOOP = 64 << 10


class Call:
    """One request and its reply."""

    def __init__(self, state: ServerState, scope: Scope, receive: Receive, send: Send) -> None:
        self.state = state
        self.scope = scope
        self.arrived_at = time.monotonic()
        self.status = 0
        self._receive = receive
        self._send = send
        self._sending_since: float | None = None

    def header(self, name: bytes) -> bytes | None:
        for key, value in self.scope["headers"]:
            if key == name:
                return bytes(value)
        return None

    async def read(self, kind: type[S]) -> S:
        """The body as a struct. Raises HttpError and ClientGoneError."""
        config = self.state.config
        body = await read_body(
            self._receive,
            self.scope["headers"],
            max_bytes=config.max_body_bytes,
            timeout_s=config.body_timeout_s,
            room=self.state.body_room,
        )

        def parse() -> S:
            return convert(decode_json(body), kind, allow_unknown=config.allow_unknown_fields)

        if len(body) <= MAX_BYTES_ON_LOOP:
            return parse()
        return await self.while_connected(self.state.frontend.call(parse))

    def owned(self, request: GenerateRequest) -> GenerateRequest:
        """The request as its client's."""
        client = self.scope.get("client")
        return replace(request, tenant=tenant_of(client[0]) if client else "")

    def check_choices(self, num_prompts: int, n: int) -> None:
        """Raises HttpError when they are more than one request may ask for."""
        limit = self.state.config.max_choices_per_request
        if num_prompts * n > limit:
            raise HttpError(
                400,
                f"{num_prompts} prompts with n {n} make {num_prompts * n} choices, but at most {limit} are allowed.",
                param="prompt" if n == 1 else "n",
                code="too_many_choices",
            )

    def check_model(self, name: str | None) -> None:
        """Raises HttpError for a model that is not served; no name means ours."""
        if name is not None and name != self.state.model_name:
            raise HttpError(
                404,
                f"This model is not served here; the model is '{self.state.model_name}'.",
                param="model",
                code="model_not_found",
            )

    async def while_connected(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work``; it is cancelled as soon as the client leaves or reads nothing for too long.

        Raises:
            ClientGoneError: it was.
        """
        timeout_s = self.state.config.send_timeout_s
        task = asyncio.ensure_future(work)
        watch = asyncio.ensure_future(self._wait_disconnect())
        try:
            while not task.done():
                await asyncio.wait((task, watch), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
                is_stalled = (
                    self._sending_since is not None and time.monotonic() - self._sending_since > timeout_s
                )
                if not task.done() and (watch.done() or is_stalled):
                    self._cut()
                    raise ClientGoneError
            return task.result()
        finally:
            watch.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))
                if not task.cancelled():
                    task.exception()

    def _cut(self) -> None:
        """Close the connection without waiting for what the client does not read."""
        cut = self.scope.get("extensions", {}).get("plait.cut")
        if cut is not None:
            cut()

    async def _wait_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def reply(self, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        self.status = status
        headers = [*headers, (b"content-length", str(len(body)).encode()), *self._closing()]
        try:
            async with asyncio.timeout(self.state.config.send_timeout_s):
                await self._send({"type": "http.response.start", "status": status, "headers": headers})
                await self._send({"type": "http.response.body", "body": body})
        except TimeoutError:
            self._cut()
            raise ClientGoneError from None

    def _closing(self) -> list[tuple[bytes, bytes]]:
        """While draining, kept connections go elsewhere."""
        return [(b"connection", b"close")] if self.state.is_draining else []

    async def reply_json(self, content: Any, status: int = 200) -> None:
        await self.reply(status, encode(content), JSON_HEADERS)

    async def reply_error(self, error: HttpError) -> None:
        await self.reply(error.status, encode(error.body()), JSON_HEADERS + error.headers())

    async def begin_events(self) -> None:
        """Start a reply of server-sent events; from here on errors are events, too."""
        self.status = 200
        headers = [*SSE_HEADERS, *self._closing()]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def send_events(self, events: bytes, *, is_last: bool = False) -> None:
        """Returns when the client's socket takes more: waiting here is what bounds the buffers."""
        self._sending_since = time.monotonic()
        await self._send({"type": "http.response.body", "body": events, "more_body": not is_last})
        self._sending_since = None


Handler = Callable[[Call], Awaitable[None]]


class Endpoint:
    """Runs ``handler`` for every request.

    Args:
        is_work: refused while draining, and waited for by the drain.
        needs_key: answers only to clients that send the API key, when there is one.
    """

    def __init__(
        self,
        state: ServerState,
        name: str,
        handler: Handler,
        *,
        is_work: bool = False,
        needs_key: bool = False,
    ) -> None:
        self._state = state
        self._name = name
        self._handler = handler
        self._is_work = is_work
        self._needs_key = needs_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = self._state
        call = Call(state, scope, receive, send)
        try:
            if self._needs_key:
                self._check_key(call)
            if self._is_work:
                state.admit()
                with state.active():
                    await self._handler(call)
            else:
                await self._handler(call)
        except ClientGoneError:
            call.status = call.status or 499
            state.metrics.disconnects.add()
        except Exception as error:
            reply = to_http_error(error, retry_after_s=state.config.retry_after_s)
            if call.status == 0:
                await call.reply_error(reply)
        finally:
            state.metrics.requests.add(self._name, str(call.status))

    def _check_key(self, call: Call) -> None:
        key = self._state.config.api_key
        if key is None:
            return
        given = call.header(b"authorization") or b""
        scheme, _, token = given.partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(token.strip(), key.encode()):
            raise HttpError(401, "The API key is missing or wrong.", code="invalid_api_key")
