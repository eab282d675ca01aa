"""The HTTP server: the only place that knows HTTP, JSON schemas and SSE. Is handed a frontend."""

from __future__ import annotations

from plait.server.app import create_app
from plait.server.ports import Ports
from plait.server.run import HttpServer, run_server

__all__ = ["HttpServer", "Ports", "create_app", "run_server"]
