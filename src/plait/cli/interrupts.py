"""Ctrl-C outside a command: while modules load and when the program ends anyway."""

from __future__ import annotations

import os
import signal
from types import FrameType

INTERRUPTED = 130
"""Exit code of a program that SIGINT ended, as shells show it."""


def exit_on_interrupt() -> None:
    """From now on SIGINT ends this process at once and silently."""
    signal.signal(signal.SIGINT, _exit)


def raise_on_interrupt() -> None:
    """Back to Python's KeyboardInterrupt, if SIGINT is not ignored or somebody else's."""
    if signal.getsignal(signal.SIGINT) is _exit:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _exit(number: int, frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)
