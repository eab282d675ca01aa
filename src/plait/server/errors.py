"""Errors as replies in OpenAI's shape, by who must act: client 4xx, overload 429, draining or dead 503, us 500."""

from __future__ import annotations

import logging
import math
import traceback
from http import HTTPStatus
from typing import Any

from plait.errors import (
    EngineDeadError,
    InvalidRequestError,
    OverloadedError,
    ShuttingDownError,
)

logger = logging.getLogger("plait.server")


class HttpError(Exception):
    """A reply that is not 2xx."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str | None = None,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
        allow: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind or _kind(status)
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s
        self.allow = allow

    def body(self) -> dict[str, Any]:
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error}

    def headers(self) -> list[tuple[bytes, bytes]]:
        headers = []
        if self.retry_after_s is not None:
            headers.append((b"retry-after", str(max(1, math.ceil(self.retry_after_s))).encode()))
        if self.status == HTTPStatus.UNAUTHORIZED:
            headers.append((b"www-authenticate", b"Bearer"))
        if self.allow is not None:
            headers.append((b"allow", self.allow.encode("latin-1")))
        return headers


class ClientGoneError(Exception):
    """The client closed the connection: nobody to reply to."""


class GenerationFailedError(Exception):
    """The engine ended a request before it was finished."""

    def __init__(self, message: str, *, is_abort: bool) -> None:
        super().__init__(message)
        self.message = message
        self.is_abort = is_abort


def _kind(status: int) -> str:
    if status == HTTPStatus.UNAUTHORIZED:
        return "authentication_error"
    if status == HTTPStatus.NOT_FOUND:
        return "not_found_error"
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return "rate_limit_error"
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        return "service_unavailable_error"
    return "invalid_request_error" if status < 500 else "server_error"


def to_http_error(error: Exception, *, retry_after_s: float) -> HttpError:
    """The reply for any error; an unknown one is a bug of ours, logged by its place and never by its text."""
    if isinstance(error, HttpError):
        return error
    if isinstance(error, InvalidRequestError):
        return HttpError(400, error.message, param=error.param, code=error.code)
    if isinstance(error, ShuttingDownError):
        return HttpError(503, error.message, code="shutting_down", retry_after_s=error.retry_after_s)
    if isinstance(error, OverloadedError):
        return HttpError(429, error.message, code="overloaded", retry_after_s=error.retry_after_s)
    if isinstance(error, EngineDeadError):
        return HttpError(503, f"The engine stopped: {error}", code="engine_dead", retry_after_s=retry_after_s)
    if isinstance(error, GenerationFailedError):
        if error.is_abort:
            return HttpError(503, error.message, code="aborted", retry_after_s=retry_after_s)
        return HttpError(500, error.message, code="engine_error")
    places = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)[-6:]]
    logger.error("unexpected %s at %s", type(error).__name__, " < ".join(reversed(places)))
    return HttpError(500, "Internal error; see the server's log.", code="internal_error")
