"""One frozen model behind flags, environment (``PLAIT_*``) and YAML. Level 0.

Knows: settings, their sources, the machine's limits. Must not know: engines, models, servers.
"""

from __future__ import annotations

from plait.config.engine import EngineConfig
from plait.config.ledger import MemoryLedger, format_bytes
from plait.config.load import load_config
from plait.config.machine import Machine, read_machine
from plait.config.model import ConcurrencyConfig, PlaitConfig
from plait.config.resolve import Choice, ResolvedConfig, resolve
from plait.config.server import ServerConfig

__all__ = [
    "Choice",
    "ConcurrencyConfig",
    "EngineConfig",
    "Machine",
    "MemoryLedger",
    "PlaitConfig",
    "ResolvedConfig",
    "ServerConfig",
    "format_bytes",
    "load_config",
    "read_machine",
    "resolve",
]
