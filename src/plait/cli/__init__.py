"""The ``plait`` command: thin commands that wire configuration, engine, frontend and server together."""

from __future__ import annotations

from plait.cli.app import main

__all__ = ["main"]
