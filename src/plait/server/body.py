"""Reads a request body and turns it into a checked struct. Every fault is an HttpError that names the field."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, NoReturn, TypeVar

import msgspec

from plait.server.errors import ClientGoneError, HttpError
from plait.validation import is_whole

S = TypeVar("S", bound=msgspec.Struct)
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
ERROR_PATH = re.compile(r" - at (?:the key in )?`\$(.*)`$", re.DOTALL)
SAFE_NAME = re.compile(r"[\w.\[\]-]{1,64}")
# Python refuses to read longer integers.
MAX_DIGITS = 4300
_BAD = object()


class BodyRoom:
    """Bytes of bodies that are still arriving, of all connections together. Owned by the event loop."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0


async def read_body(
    receive: Receive,
    headers: list[tuple[bytes, bytes]],
    *,
    max_bytes: int,
    timeout_s: float,
    room: BodyRoom,
) -> bytes:
    """The whole body.

    Raises:
        HttpError: 413 larger than max_bytes, 408 slower than timeout_s, 415 compressed, 503 too many bodies
            arrive at once.
        ClientGoneError: the connection closed first.
    """
    for name, value in headers:
        if name == b"content-length" and value.isdigit() and int(value[:19]) > max_bytes:
            raise _too_large(max_bytes)
        if name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            raise HttpError(415, "Compressed request bodies are not read here; send plain JSON.")
    body = bytearray()
    try:
        return await _read(receive, body, max_bytes, timeout_s, room)
    finally:
        room.num_bytes -= len(body)


async def _read(receive: Receive, body: bytearray, max_bytes: int, timeout_s: float, room: BodyRoom) -> bytes:
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGoneError
                part = message.get("body", b"")
                if room.num_bytes + len(part) > room.max_bytes:
                    raise HttpError(503, "Too many large requests arrive at once.", retry_after_s=1.0)
                body += part
                room.num_bytes += len(part)
                if len(body) > max_bytes:
                    raise _too_large(max_bytes)
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        raise HttpError(408, f"The request body did not arrive within {timeout_s:g} s.") from None


def _too_large(max_bytes: int) -> HttpError:
    return HttpError(413, f"The request body is larger than {max_bytes} bytes.", code="body_too_large")


def decode_json(body: bytes) -> Any:
    """Strict JSON: UTF-8, no NaN or Infinity, no duplicate names, no lone surrogates, bounded depth."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise _bad_json(f"it is not valid UTF-8 at byte {error.start}") from None
    try:
        value = json.loads(text, object_pairs_hook=_unique_names, parse_constant=_refuse_constant)
        if SURROGATE_ESCAPE.search(body):
            _refuse_surrogates(value, "")
    except json.JSONDecodeError as error:
        raise _bad_json(f"{error.msg} at line {error.lineno} column {error.colno}") from None
    except RecursionError:
        raise _bad_json("it is nested too deeply") from None
    except ValueError:
        raise _bad_json("it holds a number that is none or has too many digits", _bad_number(text)) from None
    return value


def _bad_number(text: str) -> str | None:
    """Where the first NaN, Infinity or endless integer of a JSON text stands; None: it breaks off before its end."""

    def mark(digits: str) -> Any:
        return _BAD if digits[-1:].isalpha() or len(digits) > MAX_DIGITS else 0

    try:
        path = _path_of_bad(json.loads(text, parse_constant=mark, parse_int=mark), "")
    except (ValueError, RecursionError):
        return None
    return path.removeprefix(".") if path else None


def _path_of_bad(value: Any, path: str) -> str | None:
    if value is _BAD:
        return path
    inner: Iterable[tuple[str, Any]] = ()
    if isinstance(value, list):
        inner = ((f"{path}[{idx}]", item) for idx, item in enumerate(value))
    elif isinstance(value, dict):
        inner = ((f"{path}.{_param(name) or '?'}", item) for name, item in value.items())
    return next((found for place, item in inner if (found := _path_of_bad(item, place)) is not None), None)


def _bad_json(reason: str, param: str | None = None) -> HttpError:
    return HttpError(
        400, f"The request body is not acceptable JSON: {reason}.", param=param, code="invalid_json"
    )


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise _bad_json(f"the name {_quote(name)} stands twice in one object", _param(name))
            seen.add(name)
    return fields


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _refuse_surrogates(value: Any, path: str) -> None:
    if isinstance(value, str):
        if not is_whole(value):
            raise _bad_json("a string holds half of a surrogate pair", path or None)
    elif isinstance(value, list):
        for idx, item in enumerate(value):
            _refuse_surrogates(item, f"{path}[{idx}]")
    elif isinstance(value, dict):
        for name, item in value.items():
            _refuse_surrogates(name, path)
            _refuse_surrogates(item, f"{path}.{name}".removeprefix("."))


def convert(value: Any, kind: type[S], *, allow_unknown: bool) -> S:
    """A struct of ``kind``, strictly: no bool for int, no string for number, no unknown fields."""
    if not isinstance(value, dict):
        raise HttpError(400, "The request body must be a JSON object.")
    if not allow_unknown:
        refuse_unknown(value, kind.__struct_fields__, "")
        for name, inner in getattr(kind, "nested_kinds", {}).items():
            if isinstance(value.get(name), dict):
                refuse_unknown(value[name], inner.__struct_fields__, name)
    try:
        return msgspec.convert(value, kind, strict=True)
    except msgspec.ValidationError as error:
        text = str(error)
        match = ERROR_PATH.search(text)
        param = _clean_path(match[1]) if match else None
        reason = text[: match.start()] if match else text
        missing = re.search(r"required field `(\w+)`", reason)
        if missing:
            param = f"{param}.{missing[1]}" if param else missing[1]
        where = f"{param}: " if param else ""
        reason = reason.replace(" | null", "").replace("`", "'")
        raise HttpError(400, f"{where}{reason}.", param=param, code="invalid_type") from None
    except RecursionError:
        raise _bad_json("it is nested too deeply") from None


def refuse_unknown(fields: dict[str, Any], known: tuple[str, ...], path: str) -> None:
    for name in fields:
        if name not in known:
            where = f" in {path}" if path else ""
            raise HttpError(
                400,
                f"Unknown field {_quote(name)}{where}. A server that is started with --allow-unknown-fields"
                " (allow_unknown_fields) ignores such fields.",
                param=_param(f"{path}.{name}".removeprefix(".")),
                code="unknown_field",
            )


def _clean_path(path: str) -> str | None:
    return path.removeprefix(".").replace("[...]", "") or None


def _quote(name: str) -> str:
    """A client's name for a message, cut and without control characters."""
    short = name if len(name) <= 64 else name[:61] + "..."
    return json.dumps(short)


def _param(name: str) -> str | None:
    return name if SAFE_NAME.fullmatch(name) else None
