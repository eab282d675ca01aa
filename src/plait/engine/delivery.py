"""From outputs to callbacks, for whichever thread delivers them in the engine's mode."""

from __future__ import annotations

import logging
from collections.abc import Callable

from plait import _native
from plait.engine.mail import LiveRequest
from plait.engine.scheduling import token_output
from plait.engine.tracing import new_span
from plait.types import FinishReason, TokenOutput

_log = logging.getLogger(__name__)


class Delivery:
    """``live`` is shared: submitters insert, the delivering thread deletes; each is one dictionary operation."""

    def __init__(self, live: dict[int, LiveRequest], abort: Callable[[int], None]) -> None:
        """``abort``: ends a request whose callback raised; called on the delivering thread, must not block."""
        self._live = live
        self._abort = abort
        self._span = new_span("deliver", "io", "outputs")

    def deliver(self, batch: _native.OutputBatch) -> None:
        with self._span as span:
            outputs = batch.take()
            span.set(len(outputs))
            for fields in outputs:
                self._deliver_one(token_output(fields))

    def _deliver_one(self, output: TokenOutput) -> None:
        live = self._live.get(output.request_id)
        if live is None or not live.take(output):
            return
        if not live.num_open:
            # Before the callback: a client that saw the end must not count the request as live.
            self._live.pop(output.request_id, None)
        self._call(live, output)

    def end_live(self, reason: FinishReason, error: str | None) -> None:
        """Give every live request its last outputs. Any thread."""
        for request_id in list(self._live):
            # Whoever takes it out of the dictionary answers for it: nobody else does.
            live = self._live.pop(request_id, None)
            if live is None:
                continue
            for output in live.endings(reason, error):
                if live.take(output):
                    self._call(live, output)

    def _call(self, live: LiveRequest, output: TokenOutput) -> None:
        try:
            live.callback(output)
        except Exception:
            _log.exception("request %d: its output callback raised; the request is aborted", live.request_id)
            if not live.is_aborted:
                live.is_aborted = True
                self._abort(live.request_id)
