"""The main thread of the ``threads`` mode: takes requests in, keeps the compute thread fed, takes results.

Runs on its own thread, which owns the scheduler and the KV manager. Knows: order of work. Must not know:
callbacks, clients.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from plait.engine.mail import MainEnded
from plait.engine.parts import Bell, Ring
from plait.engine.step_loop import StepLoop
from plait.engine.tracing import new_span

# While a full ring keeps outputs back there is no bell for "room again": look this often.
_RETRY_S = 0.005


class MainLoop:
    def __init__(self, steps: StepLoop, bell: Bell, messages: Ring, outputs: Ring) -> None:
        """``bell``: the one that the executor and ``messages`` ring."""
        self._steps = steps
        self._bell = bell
        self._messages = messages
        self._outputs = outputs
        self._outbox: deque[object] = deque()
        self.is_io_dead = False
        """Set by the I/O thread when it dies: nobody takes outputs any more."""
        self._wait_span = new_span("wait", "main")

    def run(self, on_wake: Callable[[], None]) -> None:
        """Until a Stop message, or an error that is nobody's request: then it raises."""
        steps = self._steps
        while True:
            on_wake()
            seen = self._bell.epoch()
            steps.take_results()
            for message in self._messages.pop_all():
                steps.take(message)
            steps.feed()
            outputs = steps.take_outputs()
            if outputs is not None:
                self._outbox.append(outputs)
            self._push_outbox()
            if steps.has_ended:
                return
            with self._wait_span:
                self._bell.wait(seen, _RETRY_S if self._outbox else steps.wait_s)

    def leave(self, error: str | None) -> None:
        """The last words of this thread: hand over what is left, stop the compute thread."""
        self._outbox.append(MainEnded(error))
        self._push_outbox()
        while self._outbox and not self.is_io_dead:
            time.sleep(_RETRY_S)
            self._push_outbox()
        self._steps.stop_executor()

    def _push_outbox(self) -> None:
        outbox = self._outbox
        while outbox and self._outputs.try_push(outbox[0]):
            outbox.popleft()
