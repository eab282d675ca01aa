"""The engine modes by name: which driver runs an engine."""

from __future__ import annotations

from plait import _native
from plait.config.engine import EngineMode
from plait.engine.coroutine_driver import CoroutineDriver
from plait.engine.driver import Driver, OnDeath
from plait.engine.mail import LiveRequest
from plait.engine.native_driver import NativeDriver
from plait.engine.parts import EngineParts
from plait.engine.threads_driver import ThreadsDriver

_DRIVERS: dict[EngineMode, type[ThreadsDriver | CoroutineDriver | NativeDriver]] = {
    "threads": ThreadsDriver,
    "coroutine": CoroutineDriver,
    "native": NativeDriver,
}


def new_driver(
    mode: EngineMode,
    parts: EngineParts,
    scheduler: _native.Scheduler,
    live: dict[int, LiveRequest],
    num_messages: int,
    on_death: OnDeath,
) -> Driver:
    """``num_messages``: room for messages that the scheduler has not seen."""
    return _DRIVERS[mode](parts, scheduler, live, num_messages, on_death)
