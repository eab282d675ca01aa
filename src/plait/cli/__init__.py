"""The ``plait`` command: thin commands that wire configuration, engine, frontend and server together."""

from __future__ import annotations

import signal
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """The ``plait`` program: always ends in SystemExit; 2 for wrong usage, 1 for other failures.

    Args:
        arguments: None: those of this process, whose streams and interrupts are then taken over.
    """
    if arguments is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # While modules load, Ctrl-C has nothing to clean up and nobody to tell. Set before the first import of
        # weight, which is why this is no part of app.
        from plait.cli.interrupts import exit_on_interrupt

        exit_on_interrupt()
    from plait.cli.app import run

    run(arguments)
