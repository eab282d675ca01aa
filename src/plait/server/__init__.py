"""The HTTP server: the only place that knows HTTP, JSON schemas and SSE. Is handed a frontend."""

from __future__ import annotations

from plait.server.app import create_app
from plait.server.ports import Ports
from plait.server.run import HttpServer, run_server
from plait.server.tenant import read_tenant_weights

__all__ = ["HttpServer", "Ports", "create_app", "read_tenant_weights", "run_server"]
