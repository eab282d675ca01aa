"""The exception tree, sorted by who must act, and what several of its members need. Level 0: standard library only."""

from __future__ import annotations

import os


class PlaitError(Exception):
    """Base of every error that plait raises on purpose."""


class InvalidRequestError(PlaitError):
    """The client must change the request (HTTP 400).

    Args:
        message: what is wrong and what would be right.
        param: the field at fault, as the client spells it, e.g. ``"messages[2].content"``.
        code: a stable machine-readable word, e.g. ``"context_length_exceeded"``.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class OverloadedError(PlaitError):
    """The queue is full (HTTP 429); the client may try again after ``retry_after_s`` seconds."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s


class ShuttingDownError(OverloadedError):
    """The server is draining and takes no new work (HTTP 503)."""


class EngineDeadError(PlaitError):
    """The engine stopped and cannot serve any more (HTTP 503); the cause is in the message."""


class ModelFileError(PlaitError):
    """A model file is missing, damaged, hostile or of a kind that plait does not run."""


class ConfigError(PlaitError):
    """A flag, environment variable or configuration file is wrong; the message names it."""


def check_process(pid: int) -> None:
    """Raises EngineDeadError in a process that was forked from ``pid``, where an engine has no threads."""
    if os.getpid() != pid:
        raise EngineDeadError(
            f"this engine belongs to process {pid}, of which this one is a fork: threads do not come along. "
            "Load the model after the fork, or start processes with the method spawn"
        )


def one_line(text: str) -> str:
    """Text of any origin as one line that is safe to show in a terminal."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(text.split()))
