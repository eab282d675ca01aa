"""What crosses between the threads of an EngineCore, and the shared record of each live request.

Requests cross as they are (``_native.Request``), outputs as ``_native.OutputBatch``.
"""

from __future__ import annotations

import msgspec

from plait.client import OutputCallback
from plait.types import FinishReason, TokenOutput


class Abort(msgspec.Struct, frozen=True):
    request_id: int


class Stop(msgspec.Struct, frozen=True):
    """End what runs and leave."""


class MainEnded(msgspec.Struct, frozen=True):
    """The last message of the main thread."""

    error: str | None


class LiveRequest:
    """From submission to the last output. Delivered to by the I/O thread, or by whoever finds it dead."""

    __slots__ = ("_open", "callback", "is_aborted", "request_id")

    def __init__(self, request_id: int, n: int, callback: OutputCallback) -> None:
        self.request_id = request_id
        self.callback = callback
        self.is_aborted = False
        self._open = set(range(n))

    @property
    def num_open(self) -> int:
        return len(self._open)

    def take(self, output: TokenOutput) -> bool:
        """Whether ``output`` may be delivered; after a finish_reason nothing more is, for that choice."""
        if output.finish_reason is None:
            return output.index in self._open
        try:
            self._open.remove(output.index)  # one operation: of two threads only one gets it
        except KeyError:
            return False
        return True

    def endings(self, reason: FinishReason, error: str | None) -> list[TokenOutput]:
        """Last outputs for the choices that have none yet."""
        return [
            TokenOutput(self.request_id, index, (), finish_reason=reason, error=error)
            for index in sorted(self._open)
        ]
