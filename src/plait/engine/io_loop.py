"""The I/O thread of the ``threads`` mode: gives outputs to callbacks.

Runs on its own thread. Knows: callbacks. Must not know: scheduling, the compute thread.
"""

from __future__ import annotations

import time
from collections import deque

from plait.engine.delivery import Delivery
from plait.engine.mail import Abort, LiveRequest, MainEnded, Stop
from plait.engine.parts import Bell, Ring
from plait.engine.tracing import new_span
from plait.types import FinishReason

HEARTBEAT_S = 2.0
# While a full ring keeps messages back there is no bell for "room again": look this often.
_RETRY_S = 0.005


class IoLoop:
    def __init__(self, bell: Bell, outputs: Ring, to_main: Ring, live: dict[int, LiveRequest]) -> None:
        """``bell``: the one that ``outputs`` rings."""
        self._bell = bell
        self._outputs = outputs
        self._to_main = to_main
        self._unsent: deque[Abort] = deque()
        """Of requests whose callbacks raised."""
        self.delivery = Delivery(live, self._abort)
        self._wait_span = new_span("wait", "io")

    def run(self) -> str | None:
        """Until the main thread ended; returns its error. Every live request has its last output then."""
        while True:
            seen = self._bell.epoch()
            ended = self._deliver_all()
            if ended is not None:
                reason = FinishReason.ABORT if ended.error is None else FinishReason.ERROR
                self.delivery.end_live(reason, ended.error)
                return ended.error
            unsent = self._unsent
            while unsent and self._to_main.try_push(unsent[0]):
                unsent.popleft()
            with self._wait_span:
                self._bell.wait(seen, _RETRY_S if unsent else HEARTBEAT_S)

    def stop_main(self) -> None:
        """When this thread dies: let main go, too."""
        while not self._to_main.try_push(Stop()):
            time.sleep(_RETRY_S)

    def _deliver_all(self) -> MainEnded | None:
        for item in self._outputs.pop_all():
            if isinstance(item, MainEnded):
                return item
            self.delivery.deliver(item)
        return None

    def _abort(self, request_id: int) -> None:
        self._unsent.append(Abort(request_id))
