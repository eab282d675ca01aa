"""The trace of an engine: what its threads did when, as a file for Perfetto (`--trace`)."""

from __future__ import annotations

import logging
from pathlib import Path

from plait import _native
from plait.config import format_bytes
from plait.errors import ConfigError

_log = logging.getLogger(__name__)

MAX_FILE_BYTES = 1 << 30
"""What comes later is counted and left out: neither the disk nor the viewer takes any length."""

Span = _native.TraceSpan
"""``with span:`` records an event of the thread; one span belongs to one thread."""


def new_span(name: str, category: str, *args: str) -> Span:
    """``args``: names of up to three numbers, which ``span.set`` fills in."""
    return Span(name, category, args)


class Trace:
    """From start to close; there is one in a process at a time."""

    def __init__(self, path: Path) -> None:
        """Begins the file.

        Raises:
            ConfigError: it cannot be written, or another trace runs; nothing has been started then.
        """
        self._path = path
        self._is_open = True
        try:
            _native.start_trace(str(path), MAX_FILE_BYTES)
        except _native.NativeError as error:
            raise ConfigError(f"--trace: {error.args[1]}") from None

    def metrics(self) -> dict[str, float]:
        """Any thread."""
        totals = _native.trace_totals()
        return {
            "trace_events_total": totals.num_events,
            "trace_dropped_events_total": totals.num_dropped,
        }

    def close(self) -> None:
        """Ends the file and says where it is and what is missing in it. Idempotent."""
        if not self._is_open:
            return
        self._is_open = False
        totals = _native.stop_trace()
        if totals.error:
            _log.error("trace: %s: %s", self._path, totals.error)
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
