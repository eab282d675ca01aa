"""Signals that end a command: Ctrl-C while modules load and when the program ends anyway, and SIGTERM and SIGHUP.

A server has its own handlers while it serves (``plait.server.run``).
"""

from __future__ import annotations

import atexit
import os
import signal
from types import FrameType

INTERRUPTED = 130
"""Exit code of a program that SIGINT ended, as shells show it."""
_ENDING = (signal.SIGTERM, signal.SIGHUP)
_came: list[int] = []
"""The signal that raised Terminated."""


class Terminated(SystemExit):
    """SIGTERM or SIGHUP came: whoever has something to clean up does so while this passes."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)  # as shells show it; who waits for this process sees the signal itself


def exit_on_interrupt() -> None:
    """From now on SIGINT ends this process at once and silently."""
    signal.signal(signal.SIGINT, _exit)


def raise_on_interrupt() -> None:
    """Back to Python's KeyboardInterrupt, if SIGINT is not ignored or somebody else's."""
    if signal.getsignal(signal.SIGINT) is _exit:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def raise_on_termination() -> None:
    """From now on SIGTERM and SIGHUP raise Terminated in the main thread, if they are not ignored.

    For programs only: the process ends by the signal in the end, as one without handlers does.
    """
    atexit.register(_end_by_signal)  # before anything else is, so that it is called last
    for number in _ENDING:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _raise_terminated)


def end_on_termination() -> None:
    """SIGTERM and SIGHUP end this process at once again."""
    for number in _ENDING:
        if signal.getsignal(number) in (_raise_terminated, _ignore):
            signal.signal(number, signal.SIG_DFL)


def _exit(number: int, frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)


def _raise_terminated(number: int, frame: FrameType | None) -> None:
    # A terminal that closes sends SIGHUP twice, and supervisors like to add one to SIGTERM: neither must cut the
    # cleaning up short. Ctrl-C does.
    for other in _ENDING:
        if signal.getsignal(other) is _raise_terminated:
            signal.signal(other, _ignore)
    _came.append(number)
    raise Terminated(number)


def _ignore(number: int, frame: FrameType | None) -> None:
    pass


def _end_by_signal() -> None:
    """By the one that came, if one did. Returns, then, only in process 1 of a container, which no signal ends."""
    for number in _came:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
