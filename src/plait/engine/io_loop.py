"""The I/O thread: requests and aborts in, outputs out.

Runs on its own thread. Knows: callbacks. Must not know: scheduling, the compute thread.
"""

from __future__ import annotations

import logging
import time
from collections import deque

from plait.engine.mail import Abort, LiveRequest, MainEnded, Stop
from plait.engine.parts import Bell, Ring
from plait.engine.scheduling import token_output
from plait.types import FinishReason, TokenOutput

_log = logging.getLogger(__name__)

HEARTBEAT_S = 2.0
# While a full ring keeps messages back there is no bell for "room again": look this often.
_RETRY_S = 0.005


class IoLoop:
    """``live`` is shared: submitters insert, the I/O thread deletes; each is one dictionary operation."""

    def __init__(
        self, bell: Bell, submissions: Ring, to_main: Ring, outputs: Ring, live: dict[int, LiveRequest]
    ) -> None:
        self._bell = bell
        self._submissions = submissions
        self._to_main = to_main
        self._outputs = outputs
        self._live = live
        self._backlog: deque[object] = deque()

    @property
    def num_backlog(self) -> int:
        return len(self._backlog)

    def run(self) -> str | None:
        """Until the main thread ended; returns its error. Every live request has its last output then."""
        while True:
            seen = self._bell.epoch()
            self._backlog.extend(self._submissions.pop_all())
            self._forward()
            ended = self._deliver_all()
            if ended is not None:
                reason = FinishReason.ABORT if ended.error is None else FinishReason.ERROR
                self.end_live(reason, ended.error)
                return ended.error
            self._bell.wait(seen, _RETRY_S if self._backlog else HEARTBEAT_S)

    def stop_main(self) -> None:
        """When this thread dies: let main go, too."""
        while not self._to_main.try_push(Stop()):
            time.sleep(_RETRY_S)

    def end_live(self, reason: FinishReason, error: str | None) -> None:
        """Give every live request its last outputs."""
        for request_id in list(self._live):
            # Whoever takes it out of the dictionary answers for it: nobody else does.
            live = self._live.pop(request_id, None)
            if live is None:
                continue
            for output in live.endings(reason, error):
                if live.take(output):
                    self._call(live, output)

    def _forward(self) -> None:
        backlog = self._backlog
        while backlog and self._to_main.try_push(backlog[0]):
            backlog.popleft()

    def _deliver_all(self) -> MainEnded | None:
        for item in self._outputs.pop_all():
            if isinstance(item, MainEnded):
                return item
            for fields in item.take():
                live = self._live.get(fields[0])
                if live is not None:
                    self._deliver(live, token_output(fields))
        return None

    def _deliver(self, live: LiveRequest, output: TokenOutput) -> None:
        if not live.take(output):
            return
        if not live.num_open:
            # Before the callback: a client that saw the end must not count the request as live.
            self._live.pop(output.request_id, None)
        self._call(live, output)

    def _call(self, live: LiveRequest, output: TokenOutput) -> None:
        try:
            live.callback(output)
        except Exception:
            _log.exception("request %d: its output callback raised; the request is aborted", live.request_id)
            if not live.is_aborted:
                live.is_aborted = True
                self._backlog.append(Abort(live.request_id))
                self._bell.ring()
