"""The program's standard streams, made so that no command needs to think of closed, full or ASCII-only ones.

A write to stdout that fails is one OutputError, whoever wrote; what stderr cannot take is dropped.
"""

from __future__ import annotations

import codecs
import errno
import io
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from plait.errors import InvalidRequestError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_ESCAPE = "plait.escape"


class OutputError(Exception):
    """stdout does not take what a command wrote."""

    def __init__(self, cause: OSError) -> None:
        super().__init__("it is closed" if cause.errno == errno.EBADF else cause.strerror or str(cause))
        self.is_closed_pipe = cause.errno == errno.EPIPE


def take_over_streams() -> None:
    """Replace stdin, stdout and stderr of this process. For programs only, before anything else opens a file:
    otherwise that file would get the number of a closed stream."""
    _fill_closed_descriptors()
    codecs.register_error(_ESCAPE, _escape)
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False), "utf-8")
    elif isinstance(sys.stdin, io.TextIOWrapper):
        # ASCII is what Python falls back to when no language is set; a byte beyond it can only be UTF-8.
        encoding = "utf-8" if _is_ascii(sys.stdin) else None
        sys.stdin.reconfigure(encoding=encoding, errors="strict")
    sys.stdout = _wrap(_Stdout(1, "wb", closefd=False), sys.stdout)
    sys.stderr = _wrap(_Stderr(2, "wb", closefd=False), sys.stderr, is_line_buffered=True)


def finish_stdout() -> None:
    """Write what is still buffered.

    Raises:
        OutputError: that failed.
    """
    if sys.stdout is not None:
        sys.stdout.flush()


def abandon_stdout() -> None:
    """After an OutputError: what is still buffered goes nowhere, so that the end of the program is quiet."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def read_input() -> str:
    """All of stdin.

    Raises:
        InvalidRequestError: it is no text.
    """
    with _text_expected():
        return sys.stdin.read()


def read_line(prompt: str) -> str:
    """The next line of stdin; like ``input``.

    Raises:
        InvalidRequestError: it is no text.
    """
    with _text_expected():
        return input(prompt)


@contextmanager
def _text_expected() -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:
        encoding = error.encoding.upper()
        raise InvalidRequestError(f"standard input is no {encoding} text: {error.reason}") from None


class _Stdout(io.FileIO):
    def write(self, data: ReadableBuffer, /) -> int:
        try:
            # None: whoever started us made the pipe non-blocking.
            while (num_bytes := super().write(data)) is None:
                select.select([], [self.fileno()], [])
        except OSError as error:
            raise OutputError(error) from None
        return num_bytes


class _Stderr(io.FileIO):
    def write(self, data: ReadableBuffer, /) -> int:
        try:
            while (num_bytes := super().write(data)) is None:
                select.select([], [self.fileno()], [])
        except OSError:
            return memoryview(data).nbytes
        return num_bytes


def _fill_closed_descriptors() -> None:
    """Opens /dev/null for each closed one of 0, 1, 2; writing to a closed stdout must still fail."""
    for descriptor, flags in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, flags)  # takes the lowest free number, which is this one
            os.set_inheritable(descriptor, True)


def _wrap(raw: io.FileIO, old: TextIO | None, *, is_line_buffered: bool = False) -> TextIO:
    encoding = "utf-8" if old is None else old.encoding
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding, errors=_ESCAPE, line_buffering=is_line_buffered or raw.isatty()
    )


def _is_ascii(stream: TextIO) -> bool:
    return codecs.lookup(stream.encoding).name == "ascii"


def _escape(error: UnicodeError) -> tuple[str, int]:
    """Characters that a stream cannot show as JSON's escapes, which people and programs can read."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    codes = (int.from_bytes(units[i : i + 2], "big") for i in range(0, len(units), 2))
    return "".join(f"\\u{code:04x}" for code in codes), error.end
