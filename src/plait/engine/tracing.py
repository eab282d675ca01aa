"""The trace of an engine: what its threads did when, as a file for Perfetto (`--trace`)."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterable
from pathlib import Path

from plait import _native
from plait.config import format_bytes
from plait.errors import ConfigError, PlaitError
from plait.output_file import TRACE_START, check_output, part_of, put_in_place

_log = logging.getLogger(__name__)

MAX_FILE_BYTES = 1 << 30
"""What comes later is counted and left out: neither the disk nor the viewer takes any length."""

Span = _native.TraceSpan
"""``with span:`` records an event of the thread; one span belongs to one thread."""


def new_span(name: str, category: str, *args: str) -> Span:
    """``args``: names of up to three numbers, which ``span.set`` fills in."""
    return Span(name, category, args)


class Trace:
    """From start to close; there is one in a process at a time.

    The events go to a file beside ``path`` and take its place when they are whole: neither a start that fails nor a
    full disk costs an earlier trace, and processes that name the same file each write a whole one.
    """

    def __init__(self, path: Path, inputs: Iterable[Path] = ()) -> None:
        """Begins the file. ``inputs``: files that are read meanwhile.

        Raises:
            ConfigError: it cannot or must not be written, or another trace runs; nothing has been started then.
        """
        check_output("--trace", path, TRACE_START, inputs=inputs, must_be_file=True)
        self._path = path
        self._part = part_of(path)
        self._lock = threading.Lock()
        self._is_open = True
        self._failure: str | None = None
        try:
            _native.start_trace(str(self._part), MAX_FILE_BYTES)
        except _native.NativeError as error:
            raise ConfigError(f"--trace: {error.args[1]}") from None
        except BaseException:  # a signal that came meanwhile
            self.discard()
            raise

    def metrics(self) -> dict[str, float]:
        """Any thread."""
        totals = _native.trace_totals()
        return {
            "trace_events_total": totals.num_events,
            "trace_dropped_events_total": totals.num_dropped,
        }

    def look(self) -> None:
        """Ends a trace that cannot be written any more, and says so in the log. Any thread."""
        if self._is_open and _native.trace_totals().error:
            self._end()
            if self._failure is not None:
                _log.error("%s", self._failure)

    def close(self) -> None:
        """Ends the file and says where it is and what is missing in it. Idempotent.

        Raises:
            PlaitError: once, when the trace could not be written.
        """
        self._end()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise PlaitError(failure)

    def discard(self) -> None:
        """Ends the trace of an engine that did not start, without a file. Idempotent."""
        with self._lock:
            if self._is_open:
                self._is_open = False
                _native.stop_trace()
                self._part.unlink(missing_ok=True)

    def _end(self) -> None:
        with self._lock:
            if not self._is_open:
                return
            self._is_open = False
            totals = _native.stop_trace()
            reason = totals.error or self._try_put_in_place()
        if reason:
            with contextlib.suppress(OSError):
                self._part.unlink(missing_ok=True)
            self._failure = f"--trace: {self._path}: {reason}; there is no trace of this run"
        elif totals.num_dropped:
            _log.warning(
                "trace: %s holds %d events; %d more did not fit (a file takes %s)",
                self._path,
                totals.num_events,
                totals.num_dropped,
                format_bytes(MAX_FILE_BYTES),
            )
        else:
            _log.info("trace: %s holds %d events", self._path, totals.num_events)

    def _try_put_in_place(self) -> str:
        """Why that is not possible, or "" when it is done."""
        try:
            put_in_place(self._part, self._path)
        except OSError as error:
            return error.strerror or str(error)
        return ""
